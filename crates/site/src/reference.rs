//! The reference: pages that are made of what the program says of itself, so that they cannot say anything else. `weir
//! man DIRECTORY`, `weir schema --api` and `weir schema` have printed it before.

use crate::Error;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// What is in the folder: manual pages in `man`, the two descriptions beside it.
const API: &str = "api.json";
const SCHEMA: &str = "schema.json";

/// The pages, as path and text.
///
/// # Errors
/// [`Error`] if something is not there, or is not what the program prints.
pub(crate) fn pages(folder: &Path) -> Result<Vec<(&'static str, String)>, Error> {
    Ok(vec![
        ("reference/command-line.md", command_line(&folder.join("man"))?),
        ("reference/configuration-fields.md", configuration(&json(&folder.join(SCHEMA))?)),
        ("reference/api-requests.md", api(&json(&folder.join(API))?)),
    ])
}

fn text(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}

fn json(path: &Path) -> Result<Value, Error> {
    serde_json::from_str(&text(path)?)
        .map_err(|error| Error::Wrong(vec![format!("{}: {error}", path.display())]))
}

/// Every command, by its manual page.
fn command_line(folder: &Path) -> Result<String, Error> {
    let io = |source| Error::Io { path: folder.to_owned(), source };
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|ending| ending == "1") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            all.insert(name, text(&path)?);
        }
    }
    if all.is_empty() {
        return Err(Error::Wrong(vec![format!("{}: no manual pages", folder.display())]));
    }
    let mut page = String::from(
        "# The command line\n\nEvery command and its options, as `weir man` has them for `man`; `weir help COMMAND` \
         prints the same.\n",
    );
    for manual in all.values() {
        page += &of_manual(manual);
    }
    Ok(page)
}

/// A manual page as Markdown: what clap writes of the language of such pages, and no more.
fn of_manual(manual: &str) -> String {
    let mut page = String::new();
    let mut section = String::new();
    // An option's name comes in the line after `.TP`.
    let mut names = false;
    for line in manual.lines() {
        if let Some(title) = line.strip_prefix(".SH ") {
            section = title.to_owned();
            match title {
                "OPTIONS" => page += "\n",
                "SUBCOMMANDS" => page += "\nCommands below it:\n\n",
                _ => {}
            }
            continue;
        }
        match line.split(' ').next().unwrap_or_default() {
            ".TP" => names = true,
            ".IP" | ".RS" | ".RE" | ".br" | ".TH" | ".ie" | ".el" | ".PP" => {}
            _ if line.trim().is_empty() => {}
            _ => match &*section {
                "SYNOPSIS" => {
                    let plain = plain(line);
                    let words = plain.split_whitespace();
                    let name: Vec<&str> =
                        words.take_while(|word| !word.starts_with(['[', '<'])).collect();
                    let name = name.join(" ");
                    let _ = write!(page, "\n## {name}\n\n```\n{}\n```\n", plain.trim());
                }
                "DESCRIPTION" => {
                    let _ = write!(page, "\n{}\n", escaped(&plain(line)));
                }
                "OPTIONS" if names => {
                    names = false;
                    let _ = write!(page, "- `{}`: ", plain(line).trim());
                }
                "SUBCOMMANDS" if names => {
                    names = false;
                    // Each has a page, and so a heading here, which is its name.
                    let plain = plain(line);
                    let name = plain.trim().trim_end_matches("(1)");
                    let _ = writeln!(page, "- [{name}](#{name})");
                }
                "OPTIONS" => {
                    let said = plain(line);
                    let said = said.trim();
                    // Values that are possible stand in lines of their own, the last one's sentence before them.
                    while page.ends_with('\n') {
                        page.pop();
                    }
                    let between = if page.ends_with(": ") { "" } else { " " };
                    let _ = writeln!(page, "{between}{}", escaped(said));
                }
                _ => {}
            },
        }
    }
    page
}

/// Without the marks of manual pages.
fn plain(line: &str) -> String {
    let mut plain = line.replace("\\*(Aq", "'").replace("\\(aq", "'");
    for (mark, text) in [("\\fB", ""), ("\\fI", ""), ("\\fR", ""), ("\\-", "-"), ("\\&", "")] {
        plain = plain.replace(mark, text);
    }
    plain.replace("\\e", "\\").replace("\\\\", "\\")
}

/// Text that Markdown takes as it is.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if matches!(c, '<' | '>' | '*' | '_' | '`' | '[' | ']' | '|' | '#' | '\\' | '&') {
            escaped.push('\\');
        }
        escaped.push(if c == '\n' { ' ' } else { c });
    }
    escaped
}

fn word<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

/// What a schema takes, in a few words.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    for many in ["anyOf", "oneOf"] {
        if let Some(all) = schema[many].as_array() {
            let all: Vec<String> = all.iter().map(kind).filter(|one| one != "null").collect();
            return all.join(" or ");
        }
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        Value::String(one) => vec![one],
        _ => Vec::new(),
    };
    let types: Vec<&str> = types.into_iter().filter(|one| *one != "null").collect();
    let mut kind = match &*types {
        ["array"] => match &schema["items"] {
            Value::Object(_) => format!("list of {}", self::kind(&schema["items"])),
            _ => "list".to_owned(),
        },
        [] => "anything".to_owned(),
        all => all.join(" or "),
    };
    if let (Some(least), Some(most)) = (schema.get("minimum"), schema.get("maximum")) {
        let _ = write!(kind, ", {least} to {most}");
    } else if let Some(least) = schema.get("minimum") {
        let _ = write!(kind, ", {least} or more");
    }
    kind
}

/// The fields of an object as a table; nothing if it has none.
fn fields(schema: &Value) -> String {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    if properties.is_empty() {
        return String::new();
    }
    let needed = |name: &str| {
        schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
    };
    let mut table =
        String::from("\n| field | takes | without it | what it is |\n|---|---|---|---|\n");
    for (name, field) in properties {
        let without = match field.get("default") {
            Some(value) if !value.is_null() => {
                format!("`{}`", value.to_string().replace('|', "\\|"))
            }
            _ if needed(name) => "needed".to_owned(),
            _ => String::new(),
        };
        let about = escaped(word(field, "description"));
        let _ = writeln!(table, "| `{name}` | {} | {without} | {about} |", kind(field));
    }
    table
}

/// Every table of the file.
fn configuration(schema: &Value) -> String {
    let mut page = String::from(
        "# Fields of the configuration\n\nEvery field of the file, as the schema has it that `weir schema` prints and \
         editors complete by. What they mean together, and examples, are in \
         [The configuration file](../docs/configuration.md).\n",
    );
    table_of(&mut page, "", schema, false);
    page
}

fn table_of(page: &mut String, name: &str, schema: &Value, repeated: bool) {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let inner = |field: &Value| {
        let items = &field["items"];
        if field["properties"].is_object() {
            Some((field.clone(), false))
        } else if items["properties"].is_object() {
            Some((items.clone(), true))
        } else {
            None
        }
    };
    if !name.is_empty() {
        let shown = if repeated { format!("[[{name}]]") } else { format!("[{name}]") };
        let _ = write!(page, "\n## `{shown}`\n");
        let mut own = schema.clone();
        if let Some(own) = own["properties"].as_object_mut() {
            own.retain(|_, field| inner(field).is_none());
        }
        page.push_str(&fields(&own));
    }
    for (field, schema) in properties {
        if let Some((schema, repeated)) = inner(schema) {
            let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
            table_of(page, &name, &schema, repeated);
        }
    }
}

/// Every request of the API, and what is sent and answered.
fn api(api: &Value) -> String {
    let mut page = format!(
        "# Requests of the API\n\n{} `weir schema --api` prints it as OpenAPI {}, and `weir schema --proto` what gRPC has \
         of it. How to reach it, and who may do what, is in [The API](../docs/api.md).\n",
        escaped(word(&api["info"], "description")),
        word(api, "openapi"),
    );
    let none = Map::new();
    for (path, methods) in api["paths"].as_object().unwrap_or(&none) {
        for (method, request) in methods.as_object().unwrap_or(&none) {
            let _ = write!(page, "\n## {} {path}\n", method.to_uppercase());
            let about = [word(request, "summary"), word(request, "description")];
            let about: Vec<String> = about
                .into_iter()
                .filter(|text| !text.is_empty())
                .map(|text| format!("{}.", escaped(text.trim_end_matches('.'))))
                .collect();
            let _ = write!(page, "\n{}\n", about.join(" ").replace("\\`", "`"));
            let mut listed = Vec::new();
            for one in request["parameters"].as_array().into_iter().flatten() {
                let (place, name) = (word(one, "in"), word(one, "name"));
                let about = escaped(word(one, "description"));
                let about = if about.is_empty() { about } else { format!(": {about}") };
                listed.push(format!("- `{name}`, in the {place}, {}{about}", kind(&one["schema"])));
            }
            let sent = &request["requestBody"]["content"];
            for (media, body) in sent.as_object().unwrap_or(&none) {
                listed.push(format!("- sent as `{media}`: {}", kind(&body["schema"])));
            }
            let answered = &request["responses"]["200"]["content"];
            for (media, body) in answered.as_object().unwrap_or(&none) {
                let what = kind(&body["schema"]);
                listed.push(format!("- answered as `{media}`: {what}"));
            }
            if !listed.is_empty() {
                let _ = write!(page, "\n{}\n", listed.join("\n"));
            }
        }
    }
    page.push_str("\n## What is sent and answered\n");
    for (name, schema) in api["components"]["schemas"].as_object().unwrap_or(&none) {
        let about = escaped(word(schema, "description"));
        let _ = write!(page, "\n### {name}\n\n{about}\n");
        let table = fields(schema);
        if table.is_empty() {
            let _ = write!(page, "\nTakes {}.\n", kind(schema));
        }
        page.push_str(&table);
    }
    page
}
