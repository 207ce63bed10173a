//! Bodies of JSON, and what is wrong with them in words for whoever sent them: the field, what stands there, and
//! what would be right. They know nothing of the types that it is read into.

use serde::de::DeserializeOwned;

/// Reads a body.
///
/// # Errors
/// What is wrong, and what would be right.
pub(super) fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        told(&path, error.inner())
    })?;
    reader.end().map_err(|error| told(".", &error))?;
    Ok(value)
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
    fn what_is_no_json_is_told_with_its_place() {
        for body in ["", "{", "{\"weight\": 3}}", "weight=3", "{\"weight\": 3,}"] {
            let said = said::<WeightRequest>(body);
            assert!(said.starts_with("it is no JSON: ") && said.contains("line 1"), "{said}");
        }
        assert_eq!(from_json::<WeightRequest>(b" {\"weight\": 3} ").map(|read| read.weight), Ok(3));
    }
}
