//! What is wrong with the section of a method, and in which field.
//!
//! The fields of a section depend on its kind, so it is read when the kind is known; by then what is wrong has lost
//! its place in the text. So the field is looked for.

use super::MethodSpec;
use serde::Deserialize;
use toml::{Table, Value};

const KIND: &str = "kind";

/// The field at fault, and what is wrong with it; none if the section is that of a method.
pub(super) fn fault(section: &Table) -> Option<(String, String)> {
    let said = refusal(section)?;
    let named = ["missing field `", "unknown field `"]
        .iter()
        .find_map(|words| said.strip_prefix(*words)?.split('`').next())
        .map(str::to_owned);
    Some((named.unwrap_or_else(|| field(section, &said)), said))
}

fn refusal(section: &Table) -> Option<String> {
    MethodSpec::deserialize(section.clone()).err().map(|error| error.message().to_owned())
}

/// The field without which something else is said, or nothing. The kind decides what all others may be, so it is at
/// fault if none of them is.
fn field(section: &Table, said: &str) -> String {
    let settles = |changed: &Table| refusal(changed).as_deref() != Some(said);
    let own = |name: &&String| settles(&without(section, name));
    let Some(name) = section.keys().filter(|name| *name != KIND).find(own) else {
        return KIND.to_owned();
    };
    let Some(Value::Table(inner)) = section.get(name) else {
        return name.clone();
    };
    let within = inner.keys().find(|key| {
        let mut changed = section.clone();
        changed.insert(name.clone(), Value::Table(without(inner, key)));
        settles(&changed)
    });
    within.map_or_else(|| name.clone(), |key| format!("{name}.{key}"))
}

fn without(table: &Table, name: &str) -> Table {
    let mut rest = table.clone();
    rest.remove(name);
    rest
}
