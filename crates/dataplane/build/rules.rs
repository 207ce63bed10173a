//! The rules that the program's source names, and the source with a mark in the place of each.
//!
//! A comment at the end of a line, `rule: NAME`, names what stands there. The corpus counts which cases go
//! through each rule (`tests/corpus/rules.rs`); the traced program notes those that a packet goes through.

const BEGIN: &str = "/* rule: ";
const END: &str = " */";

/// The rule that a line ends with, and the line without it.
fn rule_of(line: &str) -> Option<(&str, &str)> {
    let (before, after) = line.split_once(BEGIN)?;
    Some((after.trim_end().strip_suffix(END)?, before.trim_end()))
}

/// A line that also makes a mark: before what it returns, behind a brace that it opens, or before what else
/// it does.
fn marked(line: &str, mark: usize) -> String {
    let mark = format!("RULE_MARK({mark})");
    let code = line.split("/*").next().unwrap_or(line).trim_end();
    let indent: String = code.chars().take_while(|letter| letter.is_whitespace()).collect();
    if code.trim_start() == "return;" {
        format!("{indent}{{ {mark}; return; }}")
    } else if let Some((before, after)) = code.split_once("return ") {
        format!("{before}return {mark}, {after}")
    } else if code.ends_with('{') {
        format!("{code} {mark};")
    } else {
        format!("{indent}{mark}, {}", code.trim_start())
    }
}

/// Whether a rule is meant: by its name, or by what that begins with and a star.
fn covers(out: &str, name: &str) -> bool {
    out.strip_suffix('*').map_or(out == name, |begin| name.starts_with(begin))
}

/// A source with its marks, `RULE_MARK(n)`, but of rules in `left_out`; the others are put behind those that
/// are there, of which the numbers are the places.
pub fn mark(source: &str, names: &mut Vec<String>, left_out: &[&str]) -> String {
    let mut out = String::new();
    for line in source.lines() {
        match rule_of(line) {
            Some((name, before)) if !left_out.iter().any(|out| covers(out, name)) => {
                out += &marked(before, names.len());
                names.push(name.to_owned());
            }
            _ => out += line,
        }
        out.push('\n');
    }
    out
}
