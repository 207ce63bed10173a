//! What `weir plan` shows: what a file would change, in words.

use crate::text::Text;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use weir_control::engine::{FieldChange, PlanReport, ServicePlan};

/// What a file would change, in words.
pub fn plan(report: &PlanReport) -> String {
    let mut text = Text::default();
    let file = &report.file;
    if let Some(why) = &report.why {
        text.line(format_args!("! refused: {why}"));
    }
    if !report.changes {
        text.line(format_args!("{file}: nothing would change"));
        return text.all();
    }
    text.line(format_args!("{file} would change:"));
    for change in &report.settings {
        text.line(format_args!("  {}", field(change)));
    }
    if let Some(why) = &report.limits_stay {
        text.line(format_args!("  ! limits would stay as they are until another reload: {why}"));
    }
    for warning in &report.warnings {
        text.line(format_args!("  warning: {warning}"));
    }
    report.services.iter().for_each(|one| service(&mut text, one));
    if report.unchanged > 0 {
        let services = if report.unchanged == 1 {
            "service stays as it is"
        } else {
            "services stay as they are"
        };
        text.line(format_args!("  {} {services}", report.unchanged));
    }
    text.all()
}

fn service(text: &mut Text, service: &ServicePlan) {
    let ServicePlan { name, change, .. } = service;
    let mark = match &**change {
        "new" => '+',
        "removed" => '-',
        "refused" => '!',
        _ => '~',
    };
    let was =
        service.was.as_ref().map(|was| format!(", called {was} until now")).unwrap_or_default();
    let (known, broken, most) = (service.connections, service.broken, service.broken_at_most);
    let connections = match (&**change, known, broken, most) {
        ("new", ..) => String::new(),
        // It is refused all the same, for the reason below.
        ("refused", Some(0), ..) => {
            ": no connection is known now, but those that begin before it is done would break"
                .into()
        }
        (_, Some(known), Some(broken), _) => {
            format!(": {}, of which {broken} would break", count(known))
        }
        (_, Some(known), None, Some(most)) => {
            format!(": {}, of which up to {most} would break", count(known))
        }
        (_, Some(known), None, None) => {
            format!(": {}, of which an unknown number would break", count(known))
        }
        (_, None, ..) => ": an unknown number of connections".into(),
    };
    text.line(format_args!("{mark} service {name}{was}, {change}{connections}"));
    if let Some(why) = &service.why {
        text.line(format_args!("    {why}"));
    }
    // Several addresses stand in the field of one.
    let several = service.fields.iter().any(|change| change.field == "vips");
    let shown = |change: &&FieldChange| !(several && change.field == "vip" || is_of_ports(change));
    for change in service.fields.iter().filter(shown).chain(&ports(&service.fields)) {
        text.line(format_args!("    {}", field(change)));
    }
    for backend in &service.backends {
        let mark = match &*backend.change {
            "new" => '+',
            "removed" => '-',
            _ => '~',
        };
        let fields: Vec<String> = backend.fields.iter().map(field).collect();
        let held = match backend.connections {
            Some(0) | None => String::new(),
            Some(held) => format!(" ({})", count(held)),
        };
        let fields = if fields.is_empty() { backend.change.clone() } else { fields.join(", ") };
        text.line(format_args!("  {mark} backend {}: {fields}{held}", backend.name));
    }
}

fn is_of_ports(change: &FieldChange) -> bool {
    matches!(&*change.field, "port" | "ports")
}

/// The ports of a service as the file has them: one and a range are one field, and without both it is `any_port`.
fn ports(fields: &[FieldChange]) -> Vec<FieldChange> {
    let (mut from, mut to, mut all) = (Value::Null, Value::Null, Vec::new());
    for change in fields.iter().filter(|change| is_of_ports(change)) {
        for (into, value) in [(&mut from, &change.from), (&mut to, &change.to)] {
            if !value.is_null() {
                *into = range(value);
            }
        }
    }
    let any = (from.is_null(), to.is_null());
    if any != (true, true) {
        all.push(FieldChange { field: "port".into(), from, to });
    }
    if any.0 != any.1 {
        all.push(FieldChange { field: "any_port".into(), from: any.0.into(), to: any.1.into() });
    }
    all
}

fn field(change: &FieldChange) -> String {
    let mut parts = Vec::new();
    let (from, to) = (&change.from, &change.to);
    match &*change.field {
        "forward" => {
            let ((from, its_port), (to, port)) = (way(from), way(to));
            for (name, from, to) in [("forward", from, to), ("tunnel_port", its_port, port)] {
                if from != to {
                    differ(name, &from, &to, &mut parts);
                }
            }
        }
        "mss" => differ("mss", &bare(from), &bare(to), &mut parts),
        "vips" => differ("vip", &lone(from), &lone(to), &mut parts),
        "quic" => ids(from, to, &mut parts),
        name => differ(name, from, to, &mut parts),
    }
    if parts.is_empty() {
        parts.push(format!("{}: another", change.field));
    }
    parts.join(", ")
}

/// What leads packets by their ids: configurations by the numbers that ids have of them.
fn ids(from: &Value, to: &Value, parts: &mut Vec<String>) {
    let (Value::Object(before), Value::Object(after)) = (from, to) else {
        return differ("quic", from, to, parts);
    };
    let configs = |all: &Map<String, Value>| -> BTreeMap<u64, Map<String, Value>> {
        let list = all.get("configs").and_then(Value::as_array).into_iter().flatten();
        let config =
            |one: &Value| Some((one.get("config_id")?.as_u64()?, one.as_object()?.clone()));
        list.filter_map(config).collect()
    };
    let (mut had, has) = (configs(before), configs(after));
    for (number, config) in &has {
        let name = format!("quic: config {number}");
        let Some(was) = had.remove(number) else {
            parts.push(format!("{name}: new"));
            continue;
        };
        for (field, from, to) in differing(&was, config) {
            if field == "key" && from.is_string() && to.is_string() {
                parts.push(format!("{name}: another key"));
            } else {
                differ(&format!("{name}: {field}"), &from, &to, parts);
            }
        }
    }
    parts.extend(had.keys().map(|number| format!("quic: config {number}: removed")));
    for (field, from, to) in differing(before, after) {
        if field != "configs" {
            differ(&format!("quic.{field}"), &from, &to, parts);
        }
    }
}

/// The fields in which two tables differ.
fn differing(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
) -> Vec<(String, Value, Value)> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let of = |all: &Map<String, Value>, field: &String| all.get(field).cloned().unwrap_or_default();
    let all = names.into_iter().map(|field| (field.clone(), of(before, field), of(after, field)));
    all.filter(|(_, from, to)| from != to).collect()
}

/// The way to backends as the file has it: its word, and the UDP port of a tunnel in a field of its own.
fn way(of: &Value) -> (Value, Value) {
    match of {
        Value::Object(fields) if fields.len() == 1 => {
            let one = fields.iter().next();
            one.map(|(name, port)| (name.clone().into(), port.clone())).unwrap_or_default()
        }
        word => (word.clone(), Value::Null),
    }
}

/// What stands in a table of one field.
fn bare(of: &Value) -> Value {
    match of {
        Value::Object(fields) if fields.len() == 1 => {
            fields.values().next().cloned().unwrap_or_default()
        }
        other => other.clone(),
    }
}

/// A range of ports as the file has it; one is one.
fn range(of: &Value) -> Value {
    match (of.get("first"), of.get("last")) {
        (Some(first), Some(last)) => format!("{first}-{last}").into(),
        _ => of.clone(),
    }
}

/// The only one of a list.
fn lone(of: &Value) -> Value {
    match of {
        Value::Array(all) if all.len() == 1 => all[0].clone(),
        other => other.clone(),
    }
}

/// In what two values differ: of tables their fields, not all of both.
fn differ(name: &str, from: &Value, to: &Value, parts: &mut Vec<String>) {
    if let (Value::Object(before), Value::Object(after)) = (from, to)
        && !is_time(before)
        && !is_time(after)
    {
        for (field, from, to) in differing(before, after) {
            differ(&format!("{name}.{field}"), &from, &to, parts);
        }
        return;
    }
    parts.push(format!("{name}: {} -> {}", value(from), value(to)));
}

/// Whether this is a duration.
fn is_time(fields: &Map<String, Value>) -> bool {
    fields.len() == 2 && fields.contains_key("secs")
}

fn value(of: &Value) -> String {
    match of {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        Value::Object(fields) if is_time(fields) => time(fields),
        other => written(other),
    }
}

fn time(fields: &Map<String, Value>) -> String {
    let part = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or(0);
    let whole = std::time::Duration::new(part("secs"), part("nanos") as u32);
    humantime::format_duration(whole).to_string()
}

/// As a file has it behind a `=`.
fn written(of: &Value) -> String {
    match of {
        Value::Object(fields) if is_time(fields) => format!("{:?}", time(fields)),
        Value::Object(fields) => {
            let given = fields.iter().filter(|(_, value)| !value.is_null());
            let all: Vec<String> =
                given.map(|(name, value)| format!("{name} = {}", written(value))).collect();
            if all.is_empty() { "{}".into() } else { format!("{{ {} }}", all.join(", ")) }
        }
        Value::Array(all) => {
            let all: Vec<String> = all.iter().map(written).collect();
            format!("[{}]", all.join(", "))
        }
        other => other.to_string(),
    }
}

/// Known ones: where weir sees one direction only, an end that the other one tells is not among what it knows.
fn count(connections: usize) -> String {
    match connections {
        1 => "1 known connection".into(),
        n => format!("{n} known connections"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refusal_without_a_known_connection_says_what_would_break() {
        let refused = |known: usize| {
            let report = json!({ "file": "weir.toml", "changes": true, "refused": true, "settings": [],
                "unchanged": 0, "services": [{ "name": "web", "change": "refused", "why": "nat_sources: others",
                "fields": [], "backends": [], "connections": known, "broken": known }] });
            plan(&serde_json::from_value(report).unwrap())
        };
        let none = refused(0);
        assert!(none.contains("! service web, refused: no connection is known now, but"), "{none}");
        assert!(none.contains("\n    nat_sources: others\n"), "{none}");
        let some = refused(2);
        assert!(some.contains("refused: 2 known connections, of which 2 would break"), "{some}");
    }

    /// Where the number of those that break is not known, it is said how many they may be, if that is.
    #[test]
    fn so_many_at_most_is_no_number_that_nobody_knows() {
        let of = |more: &str| {
            let report = format!(
                r#"{{ "file": "weir.toml", "changes": true, "refused": true, "settings": [], "unchanged": 0,
                "services": [{{ "name": "fn", "change": "refused", "fields": [], "backends": [],
                "connections": 60, "broken": null{more} }}] }}"#
            );
            plan(&serde_json::from_str(&report).unwrap())
        };
        let most = of(", \"broken_at_most\": 4");
        assert!(
            most.contains("refused: 60 known connections, of which up to 4 would break"),
            "{most}"
        );
        let none = of("");
        let unknown = "60 known connections, of which an unknown number would break";
        assert!(none.contains(unknown), "{none}");
    }

    /// The name that is to be comes first. What ends is said with its addresses, and one address is no other field
    /// than several.
    #[test]
    fn a_service_with_another_name_and_fewer_addresses_says_both() {
        let report = json!({ "file": "weir.toml", "changes": true, "refused": false, "settings": [],
            "unchanged": 0, "services": [{ "name": "renamed", "was": "fn", "change": "changed",
            "why": "connections to 10.9.1.2 end", "fields": [
                { "field": "vip", "from": "10.9.1.2", "to": "10.9.1.3" },
                { "field": "vips", "from": ["10.9.1.2", "10.9.1.3"], "to": ["10.9.1.3"] },
            ], "backends": [], "connections": 24, "broken": 12 }] });
        let said = plan(&serde_json::from_value(report).unwrap());
        assert_eq!(
            said.trim_end(),
            "weir.toml would change:\n\
             ~ service renamed, called fn until now, changed: 24 known connections, of which 12 would break\n    \
             connections to 10.9.1.2 end\n    \
             vip: [\"10.9.1.2\", \"10.9.1.3\"] -> 10.9.1.3"
        );
    }

    /// One wording for one thing; and of ids what has become of each configuration, with no key.
    #[test]
    fn of_ids_it_is_said_what_becomes_of_each_configuration() {
        let config = |number: u8, key: &str, length: u8| json!({ "config_id": number, "key": key, "server_id_length": length });
        let said = |from: Value, to: Value| {
            let (from, to) =
                (json!({ "configs": from, "issue": 1 }), json!({ "configs": to, "issue": 1 }));
            field(&FieldChange { field: "quic".into(), from, to })
        };
        let (same, other) = ("(left out)", "(another, left out)");
        let one = config(1, same, 4);
        assert_eq!(said(json!([one]), json!([config(1, other, 4)])), "quic: config 1: another key");
        assert_eq!(
            said(json!([one, config(2, same, 4)]), json!([config(3, same, 4), config(1, same, 5)])),
            "quic: config 1: server_id_length: 4 -> 5, quic: config 3: new, quic: config 2: removed"
        );
        let alike = json!({ "send": same });
        let silent = FieldChange { field: "check".into(), from: alike.clone(), to: alike };
        assert_eq!(field(&silent), "check: another");
        let report = json!({ "file": "weir.toml", "changes": true, "refused": false, "settings": [],
            "unchanged": 0, "services": [{ "name": "t", "change": "changed", "fields": [],
            "backends": [], "connections": 7, "broken": null }] });
        let said = plan(&serde_json::from_value(report).unwrap());
        assert!(
            said.contains("7 known connections, of which an unknown number would break"),
            "{said}"
        );
    }

    #[test]
    fn any_port_is_named_as_the_file_has_it() {
        let said = |fields: Value| {
            let report = json!({ "file": "weir.toml", "changes": true, "refused": false, "settings": [],
                "unchanged": 0, "services": [{ "name": "web", "change": "changed", "fields": fields,
                "backends": [], "connections": 0, "broken": 0 }] });
            let said = plan(&serde_json::from_value(report).unwrap());
            let lines: Vec<&str> = said.lines().skip(2).map(str::trim).collect();
            lines.join("; ")
        };
        let port = |from: Value, to: Value| json!({ "field": "port", "from": from, "to": to });
        let range = json!({ "first": 80, "last": 82 });
        assert_eq!(
            said(json!([port(81.into(), Value::Null)])),
            "port: 81 -> none; any_port: false -> true"
        );
        assert_eq!(
            said(json!([port(Value::Null, 81.into())])),
            "port: none -> 81; any_port: true -> false"
        );
        let to_range = json!({ "field": "ports", "from": null, "to": range });
        assert_eq!(said(json!([port(81.into(), Value::Null), to_range])), "port: 81 -> 80-82");
        let from_range = json!({ "field": "ports", "from": range, "to": null });
        assert_eq!(said(json!([from_range])), "port: 80-82 -> none; any_port: false -> true");
        assert_eq!(said(json!([port(80.into(), 81.into())])), "port: 80 -> 81");
    }

    #[test]
    fn of_tables_that_differ_the_fields_are_told() {
        let time = |seconds| json!({ "secs": seconds, "nanos": 0 });
        let check =
            |port, seconds| json!({ "port": port, "type": "tcp", "interval": time(seconds) });
        let said = |from, to| field(&FieldChange { field: "check".into(), from, to });
        assert_eq!(
            said(check(80, 2), check(81, 5)),
            "check.interval: 2s -> 5s, check.port: 80 -> 81"
        );
        assert_eq!(
            said(json!({ "a": 1 }), json!({ "b": [2] })),
            "check.a: 1 -> none, check.b: none -> [2]"
        );
        assert!(said(check(80, 2), Value::Null).starts_with("check: {"));
        assert_eq!(said(time(1), time(60)), "check: 1s -> 1m");
    }

    #[test]
    fn values_stand_as_the_file_has_them() {
        let said = |name: &str, from, to| field(&FieldChange { field: name.into(), from, to });
        assert_eq!(
            said("forward", json!("l2"), json!({ "gue": 6080 })),
            "forward: l2 -> gue, tunnel_port: none -> 6080"
        );
        assert_eq!(
            said("forward", json!({ "gue": 6080 }), json!({ "gue": 6081 })),
            "tunnel_port: 6080 -> 6081"
        );
        assert_eq!(
            said("forward", json!({ "gue": 6080 }), json!({ "fou": 6080 })),
            "forward: gue -> fou"
        );
        assert_eq!(said("forward", json!("nat"), json!("l2")), "forward: nat -> l2");
        let check = json!({ "every": { "secs": 2, "nanos": 0 }, "none": null, "port": 80 });
        assert_eq!(
            said("check", check, Value::Null),
            "check: { every = \"2s\", port = 80 } -> none"
        );
        assert_eq!(
            said("vip", json!("10.0.0.1"), json!(["10.0.0.1", "10.0.0.2"])),
            "vip: 10.0.0.1 -> [\"10.0.0.1\", \"10.0.0.2\"]"
        );
    }
}
