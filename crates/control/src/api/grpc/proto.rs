//! `proto/weir/v1/weir.proto` is made of the list of requests and of the types that are read and written, as
//! the OpenAPI document is. A field keeps the number that it has in the file; a new one gets the next. So
//! whoever adds to the API writes the file anew, and the test tells if they have not, or if something is gone
//! that `v1` has promised:
//!
//! ```text
//! WEIR_PROTO=write cargo test --release -p weir-control --lib the_proto_is_made_of_the_types
//! ```

use super::super::openapi::{self, Described, Pieces};
use super::super::routes;
use super::{POOL, PROTO};
use prost_reflect::MessageDescriptor;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const HEAD: &str = "\
// The control API of weir, version 1. It says the same as HTTP with JSON (docs/api.md): each call stands for
// the request that is named with it, with the same roles, and its messages are made of the same types, with
// the same names of fields. Within v1, calls and fields are added; none goes or changes its meaning or its
// number. A field of a request that is not known is refused.
//
// What is `optional` may not be there, or not be known. Words of a fixed list (states, roles, kinds) are
// strings, as in JSON. A refusal has its kind in the metadata `weir-kind`:
//
//   invalid, file  INVALID_ARGUMENT     busy    UNAVAILABLE
//   forbidden      PERMISSION_DENIED    failed  INTERNAL
//   not_found      NOT_FOUND            (a request that is too large: RESOURCE_EXHAUSTED,
//   conflict       FAILED_PRECONDITION   or that does not come whole in time: DEADLINE_EXCEEDED)
//
// Made of the types of crates/control; do not write it by hand.

syntax = \"proto3\";

package weir.v1;

import \"google/protobuf/struct.proto\";

";

/// A type of a field, and how it may be there.
#[derive(Clone, Debug, PartialEq)]
struct Type {
    name: String,
    many: bool,
    /// Its absence says something that its zero does not.
    optional: bool,
}

struct Writer<'a> {
    types: &'a Map<String, Value>,
    /// Types that were named and are to be written.
    named: BTreeSet<String>,
}

/// Field, its schema, and whether it is always there.
type Fields = BTreeMap<String, (Value, bool)>;

fn text_of<'a>(schema: &'a Value, name: &str) -> Option<&'a str> {
    schema.get(name).and_then(Value::as_str)
}

fn comment(into: &mut String, indent: &str, text: &str) {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.len() + line.len() + word.len() > 104 {
            writeln!(into, "{indent}//{line}").expect("text");
            line.clear();
        }
        line += " ";
        line += word;
    }
    if !line.is_empty() {
        writeln!(into, "{indent}//{line}").expect("text");
    }
}

impl Writer<'_> {
    fn resolve(&self, schema: &Value) -> Value {
        let Some(path) = text_of(schema, "$ref") else { return schema.clone() };
        let name = path.rsplit('/').next().unwrap_or_default();
        self.types.get(name).unwrap_or_else(|| panic!("no type {name}")).clone()
    }

    /// All fields of an object; of one of several kinds, those of each.
    fn fields(&self, schema: &Value, always: bool, into: &mut Fields) {
        self.fields_of(schema, always, true, into);
    }

    /// `told`: whether one of the several kinds is there at all.
    fn fields_of(&self, schema: &Value, always: bool, told: bool, into: &mut Fields) {
        let schema = self.resolve(schema);
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .map(|all| all.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        for (name, field) in
            schema.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            let there = always && required.contains(&name.as_str());
            let entry = into.entry(name.clone()).or_insert_with(|| (field.clone(), there));
            let (mut old, mut new) = (self.resolve(&entry.0), self.resolve(field));
            for one in [&mut old, &mut new] {
                let one = one.as_object_mut().expect("a schema");
                one.retain(|name, _| !["description", "const", "default"].contains(&name.as_str()));
            }
            assert_eq!(old, new, "{name} is of two kinds");
            // Which of several kinds it is stands in all of them.
            let tag = told && field.get("const").is_some();
            entry.1 |= there || (tag && required.contains(&name.as_str()));
        }
        for many in ["oneOf", "anyOf"] {
            let kinds = schema.get(many).and_then(Value::as_array);
            let none = Value::Object(Map::new());
            let told = told && kinds.is_none_or(|kinds| !kinds.contains(&none));
            for one in kinds.into_iter().flatten() {
                self.fields_of(one, false, told, into);
            }
        }
    }

    /// Whether a type is words.
    fn is_text(schema: &Value) -> bool {
        let all = schema.get("oneOf").and_then(Value::as_array);
        text_of(schema, "type") == Some("string")
            || all.is_some_and(|all| all.iter().all(Self::is_text))
    }

    fn type_of(&mut self, schema: &Value, what: &str) -> Type {
        let one = |name: &str| Type { name: name.to_owned(), many: false, optional: false };
        if schema == &Value::Bool(true) {
            return one("google.protobuf.Value");
        }
        if let Some(all) = schema.get("anyOf").and_then(Value::as_array) {
            let there: Vec<&Value> =
                all.iter().filter(|one| text_of(one, "type") != Some("null")).collect();
            assert!(there.len() == 1 && all.len() == 2, "{what}: {schema}");
            return Type { optional: true, ..self.type_of(there[0], what) };
        }
        if let Some(path) = text_of(schema, "$ref") {
            let resolved = self.resolve(schema);
            if Self::is_text(&resolved) {
                return one("string");
            }
            let name = path.rsplit('/').next().unwrap_or_default();
            self.named.insert(name.to_owned());
            return one(name);
        }
        let (kind, optional) = match schema.get("type") {
            Some(Value::String(kind)) => (kind.as_str(), false),
            Some(Value::Array(kinds)) => {
                let null = kinds.iter().any(|kind| kind == "null");
                let kind = kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null");
                (kind.unwrap_or_else(|| panic!("{what}: {schema}")), null)
            }
            _ => ("", false),
        };
        let name = match (kind, text_of(schema, "format")) {
            ("boolean", _) => "bool",
            ("string", _) => "string",
            ("integer", Some("uint8" | "uint16" | "uint32")) => "uint32",
            ("integer", Some("uint64" | "uint")) => "uint64",
            ("integer", Some("int8" | "int16" | "int32")) => "int32",
            ("integer", Some("int64")) => "int64",
            ("number", Some("float")) => "float",
            ("number", _) => "double",
            ("array", _) if schema.get("prefixItems").is_some() => {
                match self.type_of(&schema["prefixItems"][0], what).name.as_str() {
                    "string" => "TextPair",
                    "uint32" => "NumberPair",
                    other => panic!("{what}: a pair of {other}"),
                }
            }
            ("array", _) => {
                let of = self.type_of(&schema["items"], what);
                assert!(!of.many && (!of.optional || of.name == "float"), "{what}: {schema}");
                return Type { many: true, optional: false, ..of };
            }
            ("object", _) if schema.get("additionalProperties").is_some_and(Value::is_object) => {
                let of = self.type_of(&schema["additionalProperties"], what);
                let name = match of.name.as_str() {
                    "map<string, string>" => "TextMap",
                    name => name,
                };
                return one(&format!("map<string, {name}>"));
            }
            ("", None) => "google.protobuf.Value",
            _ => panic!("{what}: {schema}"),
        };
        Type { optional, ..one(name) }
    }

    fn message(&mut self, name: &str, about: &str, fields: &Fields, request: bool) -> String {
        let known = POOL.get_message_by_name(&format!("weir.v1.{name}"));
        let numbers: BTreeMap<String, u32> = known
            .iter()
            .flat_map(MessageDescriptor::fields)
            .map(|field| (field.name().to_owned(), field.number()))
            .collect();
        for field in numbers.keys() {
            assert!(fields.contains_key(field), "{name}.{field} is gone, which v1 has promised");
        }
        let mut next = numbers.values().max().map_or(1, |most| most + 1);
        let mut lines: Vec<(u32, String)> = Vec::new();
        for (field, (schema, always)) in fields {
            let what = format!("{name}.{field}");
            let named = field.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
            assert!(named, "{what} is no name of a field");
            let Type { name: kind, many, optional } = self.type_of(schema, &what);
            let zero = schema.get("default").is_some_and(|default| {
                [Value::from(0), Value::from(false), Value::from("")].contains(default)
            });
            let scalar =
                !many && kind.chars().all(|letter| matches!(letter, 'a'..='z' | '0'..='9'));
            let optional = scalar && (optional || request || !(*always || zero));
            let optional = optional && !(request && schema.get("x-name").is_some());
            let label = if many {
                "repeated "
            } else if optional {
                "optional "
            } else {
                ""
            };
            let number = numbers.get(field).copied().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            let mut text = String::new();
            comment(&mut text, "  ", text_of(schema, "description").unwrap_or_default());
            writeln!(text, "  {label}{kind} {field} = {number};").expect("text");
            lines.push((number, text));
        }
        lines.sort();
        let mut whole = String::new();
        comment(&mut whole, "", about);
        if lines.is_empty() {
            return whole + &format!("message {name} {{}}\n");
        }
        let lines: String = lines.into_iter().map(|(_, text)| text).collect();
        whole + &format!("message {name} {{\n{lines}}}\n")
    }
}

/// The fields of a request's message: names in the path, the query, the body.
fn request(writer: &Writer<'_>, route: &Described) -> Fields {
    let mut fields = Fields::new();
    if let Some(body) = &route.body {
        writer.fields(body, true, &mut fields);
    }
    let mut query = Fields::new();
    for one in &route.query {
        writer.fields(one, true, &mut query);
    }
    for (name, field) in &route.called.query {
        let before = fields.insert(field.clone(), query[name].clone());
        assert!(before.is_none(), "{}.{field} is there twice", route.called.name);
    }
    for name in &route.names {
        let about = match *name {
            "service" => "Name of the service.",
            "backend" => "Name of the backend.",
            "balancer" => "Name of the balancer.",
            "number" => "Number of the change.",
            other => panic!("say what {other} is"),
        };
        let kind = if *name == "number" { ("integer", "uint64") } else { ("string", "name") };
        let schema = serde_json::json!({
            "type": kind.0, "format": kind.1, "description": about, "x-name": true,
        });
        let before = fields.insert((*name).to_owned(), (schema, true));
        assert!(before.is_none(), "{}.{name} is there twice", route.called.name);
    }
    fields
}

fn written() -> String {
    let (described, types) = openapi::described(&routes());
    let mut writer = Writer { types: &types, named: BTreeSet::new() };
    let (mut calls, mut messages) = (String::new(), String::new());
    for route in &described {
        let called = &route.called;
        let (method, path) = (called.method.to_ascii_uppercase(), called.path);
        let about = route.about.trim_end_matches('.');
        let role = called.rule.role.name();
        comment(&mut calls, "  ", &format!("{about}. Needs the role {role}. {method} {path}"));
        let answer = writer.type_of(&route.answer, called.name);
        assert!(!answer.many && !answer.optional, "{}", called.name);
        let stream = if called.pieces == Pieces::One { "" } else { "stream " };
        let name = format!("{}Request", called.name);
        writeln!(calls, "  rpc {}({name}) returns ({stream}{});", called.name, answer.name)
            .expect("text");
        let fields = request(&writer, route);
        messages += &writer.message(&name, &format!("For {}.", called.name), &fields, true);
        messages += "\n";
    }
    let mut done: BTreeMap<String, String> = BTreeMap::new();
    while let Some(name) = writer.named.iter().find(|name| !done.contains_key(*name)).cloned() {
        let schema = types[&name].clone();
        let mut fields = Fields::new();
        writer.fields(&schema, true, &mut fields);
        let about = text_of(&schema, "description").unwrap_or_default().to_owned();
        let text = writer.message(&name, &about, &fields, false);
        assert!(!fields.is_empty(), "{name} has no fields: {schema}");
        done.insert(name, text);
    }
    for (name, about, fields) in [
        (
            "NumberPair",
            "Two numbers, a list in JSON.",
            ["uint32 first", "uint32 second"].as_slice(),
        ),
        ("TextMap", "Texts by name.", &["map<string, string> entries"]),
        ("TextPair", "Two texts, a list in JSON.", &["string first", "string second"]),
    ] {
        let lines =
            fields.iter().zip(1..).map(|(field, number)| format!("  {field} = {number};\n"));
        let text = format!("// {about}\nmessage {name} {{\n{}}}\n", lines.collect::<String>());
        assert!(done.insert(name.to_owned(), text).is_none(), "{name} is there twice");
    }
    let messages = messages + &done.into_values().collect::<Vec<_>>().join("\n");
    format!(
        "{HEAD}// What an operator asks of a balancer.\nservice Balancer {{\n{calls}}}\n\n{messages}"
    )
}

#[test]
fn the_proto_is_made_of_the_types() {
    let text = written();
    if std::env::var("WEIR_PROTO").is_ok_and(|what| what == "write") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/weir/v1/weir.proto");
        std::fs::write(path, &text).expect("the file can be written");
        return;
    }
    let first = text.lines().zip(PROTO.lines()).find(|(made, there)| made != there);
    assert!(
        text == PROTO,
        "proto/weir/v1/weir.proto is not what the types say; write it anew (crates/control/src/api/grpc/proto.rs): \
         {first:?}"
    );
}

/// Whatever JSON may have in an answer, its message has a field for: no type is described that is not written,
/// and none of its fields is left out.
#[test]
fn no_field_of_an_answer_is_left_out() {
    let (described, types) = openapi::described(&routes());
    let mut writer = Writer { types: &types, named: BTreeSet::new() };
    for route in &described {
        writer.type_of(&route.answer, route.called.name);
    }
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut count = 0;
    while let Some(name) = writer.named.iter().find(|name| !seen.contains(*name)).cloned() {
        let message = POOL.get_message_by_name(&format!("weir.v1.{name}"));
        let message = message.unwrap_or_else(|| panic!("no message {name}"));
        let mut fields = Fields::new();
        writer.fields(&types[&name], true, &mut fields);
        for (field, (schema, _)) in &fields {
            let there = message.get_field_by_name(field);
            let there = there.unwrap_or_else(|| panic!("{name}.{field} is left out"));
            let wanted = writer.type_of(schema, field);
            assert_eq!(there.is_list(), wanted.many, "{name}.{field}");
            count += 1;
        }
        seen.insert(name);
    }
    assert!(seen.contains("BackendStatus") && seen.contains("Entry") && count > 200, "{count}");
}
