//! Bodies of JSON, and what is wrong with them in words for whoever sent them: the field, what stands there, and
//! what would be right. They know nothing of the types that it is read into.

use serde::de::DeserializeOwned;

/// Reads a body. By JSON Schema, and so by the description, `306.0` and `3e2` are whole numbers, too.
///
/// # Errors
/// What is wrong, and what would be right.
pub(super) fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    read(body).or_else(|wrong| match with_digits(body) {
        Some(plain) => read(&plain),
        None => Err(wrong),
    })
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        told(&path, error.inner())
    })?;
    reader.end().map_err(|error| told(".", &error))?;
    Ok(value)
}

/// The same body with whole numbers in digits alone; none if there is no other in it. Whoever wants any number takes
/// these, too.
fn with_digits(body: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(body.len());
    let mut changed = false;
    let mut rest = body;
    while let Some(first) = rest.first() {
        let (token, after) = rest.split_at(match first {
            b'"' => text_length(rest),
            b'-' | b'0'..=b'9' => {
                let other =
                    |byte: &u8| !matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                rest.iter().position(other).unwrap_or(rest.len())
            }
            _ => 1,
        });
        match digits(token) {
            Some(digits) => {
                changed = true;
                plain.extend_from_slice(digits.as_bytes());
                // What is wrong behind it stands where it stood.
                plain.resize(plain.len() + token.len().saturating_sub(digits.len()), b' ');
            }
            None => plain.extend_from_slice(token),
        }
        rest = after;
    }
    changed.then_some(plain)
}

/// How long the text is that a body begins with, its quotes included.
fn text_length(body: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = body.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    body.len()
}

/// A whole number that has a point or an exponent, or is a zero with a sign, in digits; none for any other, and for what is no number of JSON's.
fn digits(number: &[u8]) -> Option<String> {
    /// Of the longest number that is read.
    const MOST: i64 = 20;
    let number = str::from_utf8(number).ok()?;
    let (sign, number) = match number.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", number),
    };
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (number, 0),
    };
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let all = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // Nobody who wants a whole number takes a zero with a sign.
    let is_plain = mantissa == number && !number.contains('.') && (sign, number) != ("-", "0");
    // A zero before other digits makes it no number of JSON's.
    let is_odd = !all(before) || !all(after) || before.len() > 1 && before.starts_with('0');
    if is_plain || is_odd {
        return None;
    }
    let both = format!("{before}{after}");
    let (leading, significant) = (both.trim_end_matches('0'), both.trim_matches('0'));
    if significant.is_empty() {
        return Some("0".into());
    }
    // Where the point is, behind so many of them.
    let point = i64::try_from(before.len()).ok()? + i64::from(exponent);
    let zeros = point - i64::try_from(leading.len()).ok()?;
    let length = i64::try_from(significant.len()).ok()? + zeros;
    if zeros < 0 || length > MOST {
        return None;
    }
    Some(format!("{sign}{significant}{}", "0".repeat(usize::try_from(zeros).ok()?)))
}

/// `path`: of the field, as `a.b`, or `.` of the whole.
fn told(path: &str, error: &serde_json::Error) -> String {
    let message = error.to_string();
    if !error.is_data() {
        return format!("it is no JSON: {message}");
    }
    // The field says more than line and column of what a program has sent.
    let message = message.rsplit_once(" at line ").map_or(&*message, |(message, _)| message);
    let here = if path == "." { String::new() } else { format!("{path}: ") };
    let above = |field: &str| match path.strip_suffix(field).unwrap_or(path) {
        "" | "." => field.to_owned(),
        above => format!("{}.{field}", above.trim_end_matches('.')),
    };
    if let Some(field) = quoted(message, "missing field ") {
        return format!("{}: it is missing", above(field));
    }
    if let Some(field) = quoted(message, "duplicate field ") {
        return format!("{}: it is there twice", above(field));
    }
    if let Some(field) = quoted(message, "unknown field ") {
        let known = message.split_once(", expected ").map_or("", |(_, known)| known);
        let known = known.trim_start_matches("one of ").replace('`', "");
        let known =
            if known.is_empty() { "there are none".into() } else { format!("there are {known}") };
        return format!("{}: there is no such field; {known}", above(field));
    }
    let Some((wrong, wanted)) = message.split_once(", expected ") else {
        // What a type that is written as text says of it.
        return match message {
            "invalid IP address syntax" => format!("{here}it is no IP address; give {IP}"),
            "invalid socket address syntax" => {
                format!("{here}it is no address with a port; give {SOCKET}")
            }
            other => format!("{here}{other}"),
        };
    };
    format!("{here}{} is wrong here; give {}", shown(wrong), right(wanted))
}

const IP: &str = "one such as \"192.0.2.7\" or \"2001:db8::7\"";
const SOCKET: &str = "one such as \"192.0.2.7:80\" or \"[2001:db8::7]:80\"";

/// What stands in the first quotes behind a beginning.
fn quoted<'m>(message: &'m str, begin: &str) -> Option<&'m str> {
    message.strip_prefix(begin)?.strip_prefix('`')?.split('`').next()
}

/// What was there, without how it is called in a program.
fn shown(wrong: &str) -> String {
    let wrong = wrong
        .trim_start_matches("invalid type: ")
        .trim_start_matches("invalid value: ")
        .trim_start_matches("invalid length ");
    match wrong {
        "map" => "an object".into(),
        "sequence" => "a list".into(),
        "unit value" => "null".into(),
        other => ["integer ", "floating point ", "boolean ", "string ", "unknown variant "]
            .iter()
            .find_map(|kind| other.strip_prefix(kind))
            .unwrap_or(other)
            .replace('`', ""),
    }
}

/// What would be right, as JSON calls it.
fn right(wanted: &str) -> String {
    let whole = |most: u64| format!("a whole number from 0 to {most}");
    match wanted {
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" | "usize" | "u128" => "a whole number of 0 or more".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" | "i128" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a string" | "string" | "a borrowed string" | "a character" => "a text in quotes".into(),
        "path string" => "a path in quotes".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list in [ ]".into(),
        "IP address" => format!("an IP address in quotes, {IP}"),
        "socket address" => format!("an address with a port in quotes, {SOCKET}"),
        other => match other.split(' ').next() {
            Some("struct" | "map" | "internally") => "an object in { }".into(),
            Some("a") if other == "a map" => "an object in { }".into(),
            Some("enum") => "one of the words that the description names".into(),
            _ => other.trim_start_matches("one of ").replace('`', ""),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DrainRequest, FlowRequest, LoadRequest, NewBackend, ReloadRequest};
    use super::super::{PlanRequest, RollbackRequest, WantedBackend, WeightRequest};
    use super::*;
    use crate::engine::{Apply, TraceRequest};

    fn said<T: DeserializeOwned>(body: &str) -> String {
        match from_json::<T>(body.as_bytes()) {
            Ok(_) => panic!("{body} is read"),
            Err(said) => said,
        }
    }

    #[test]
    fn fields_are_named_and_no_types() {
        let ip = format!("give an IP address in quotes, {IP}");
        let told = [
            (said::<WantedBackend>("{\"address\": 7}"), format!("address: 7 is wrong here; {ip}")),
            (
                said::<WantedBackend>("{\"address\": \"here\"}"),
                format!("address: it is no IP address; give {IP}"),
            ),
            (said::<WantedBackend>("{}"), "address: it is missing".into()),
            (
                said::<WeightRequest>("{\"weight\": 70000}"),
                "weight: 70000 is wrong here; give a whole number from 0 to 65535".into(),
            ),
            (
                said::<WeightRequest>("{\"weight\": -1}"),
                "weight: -1 is wrong here; give a whole number from 0 to 65535".into(),
            ),
            (
                said::<WeightRequest>("{\"weight\": \"3\"}"),
                "weight: \"3\" is wrong here; give a whole number from 0 to 65535".into(),
            ),
            (
                said::<WeightRequest>("{\"wieght\": 3}"),
                "wieght: there is no such field; there are weight".into(),
            ),
            (
                said::<WeightRequest>("{\"weight\": 3, \"weight\": 4}"),
                "weight: it is there twice".into(),
            ),
            (said::<WeightRequest>("7"), "7 is wrong here; give an object in { }".into()),
            (
                said::<DrainRequest>("{\"drain\": null}"),
                "drain: null is wrong here; give true or false".into(),
            ),
            (
                said::<LoadRequest>("{\"load\": [1.5]}"),
                "load: a list is wrong here; give a number".into(),
            ),
            (
                said::<RollbackRequest>("{\"number\": 1.5}"),
                "number: 1.5 is wrong here; give a whole number of 0 or more".into(),
            ),
            (
                said::<FlowRequest>("{\"protocol\": \"tcp\", \"source\": \"192.0.2.7\"}"),
                format!("source: it is no address with a port; give {SOCKET}"),
            ),
            (
                said::<PlanRequest>("{\"file\": {}}"),
                "file: an object is wrong here; give a path in quotes".into(),
            ),
            (
                said::<NewBackend>("{\"name\": true}"),
                "name: true is wrong here; give a text in quotes".into(),
            ),
        ];
        for (said, wanted) in told {
            assert_eq!(said, wanted);
        }
        for said in [
            said::<ReloadRequest>("{\"break\": true}"),
            said::<Apply>("{\"file\": 7}"),
            said::<TraceRequest>("{\"every\": \"x\"}"),
            said::<TraceRequest>("\"x\""),
        ] {
            for word in ["u32", "u64", "struct", "invalid type", "at line"] {
                assert!(!said.contains(word), "{said}");
            }
        }
    }

    #[test]
    fn whole_numbers_are_taken_however_they_are_written() {
        for (written, number) in [
            ("306.0", 306),
            ("306.000", 306),
            ("3.06e2", 306),
            ("3060e-1", 306),
            ("0.5E+1", 5),
            ("0.0", 0),
            ("-0.0", 0),
            ("-0", 0),
            ("-0e1", 0),
            ("0e9", 0),
            ("18446744073709551615.0", u64::MAX),
            ("1e19", 10_000_000_000_000_000_000),
        ] {
            let body = format!("{{\"number\": {written} }}");
            let read = from_json::<RollbackRequest>(body.as_bytes()).map(|read| read.number);
            assert_eq!(read, Ok(Some(number)), "{written}");
        }
        for written in ["1.5", "15e-1", "-1.0", "18446744073709551616.0", "1e20", "1e99999999999"] {
            let said = said::<RollbackRequest>(&format!("{{\"number\": {written} }}"));
            assert!(!said.contains("invalid"), "{written}: {said}");
        }
        // None of these is a number, and none becomes one.
        for written in ["3.", ".0", "03.0", "3e", "1-0.0", "-", "3.0e+-1"] {
            let said = said::<RollbackRequest>(&format!("{{\"number\": {written} }}"));
            assert!(said.starts_with("it is no JSON: "), "{written}: {said}");
        }
        // Texts stay as they are, whatever stands in them, and numbers of any kind, too.
        let body = "{\"file\": \"a\\\"7.0\\\\\", \"text\": \"1e2\", \"expect\": 3.0}";
        let read = from_json::<Apply>(body.as_bytes()).expect("it is good");
        assert_eq!((&*read.file, &*read.text, read.expect), ("a\"7.0\\", "1e2", Some(3)));
        let load = |body: &str| from_json::<LoadRequest>(body.as_bytes()).map(|read| read.load);
        assert_eq!(load("{\"load\": 2.5e-1}"), Ok(0.25));
        // What is wrong besides is told where it stands.
        let said = said::<RollbackRequest>("{\"number\": 3.0, \"numbr\": 1}");
        assert!(said.starts_with("numbr: there is no such field"), "{said}");
        let said = self::said::<RollbackRequest>("{\"number\": 3.000,}");
        assert!(said.ends_with("at line 1 column 18"), "{said}");
    }

    #[test]
    fn what_is_no_json_is_told_with_its_place() {
        for body in ["", "{", "{\"weight\": 3}}", "weight=3", "{\"weight\": 3,}"] {
            let said = said::<WeightRequest>(body);
            assert!(said.starts_with("it is no JSON: ") && said.contains("line 1"), "{said}");
        }
        assert_eq!(from_json::<WeightRequest>(b" {\"weight\": 3} ").map(|read| read.weight), Ok(3));
    }
}
