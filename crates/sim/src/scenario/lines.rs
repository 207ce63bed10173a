//! Where a field stands in a scenario's text.

use super::Size;
use std::collections::HashMap;

/// The line of a field, or of the table that it should be in; 1 if neither is found. Tables are
/// looked for by their headers; `method.2.rows` is in the third `[[method]]`. What a size changes
/// comes first.
pub(super) fn line_of(text: &str, size: Option<Size>, field: &str) -> usize {
    let lines = headed(text);
    let parts: Vec<&str> = field.split('.').collect();
    // a.b.c is c in [a.b], b.c in [a], or a.b.c before any table.
    let places = |prefix: &str, field: &[&str]| -> Option<usize> {
        (0..field.len()).rev().find_map(|cut| {
            let table = std::iter::once(prefix).chain(field[..cut].iter().copied());
            let table = table.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
            let key = field[cut..].join(".");
            let found = |line: &&Line| line.table == table && line.key.as_deref() == Some(&key);
            lines.iter().find(found).map(|line| line.number)
        })
    };
    let in_size = size.and_then(|size| places(&format!("size.{}", size.name()), &parts));
    in_size
        .or_else(|| places("", &parts))
        .or_else(|| {
            // The innermost table on the way that has a header.
            (1..=parts.len()).rev().find_map(|cut| {
                let table = parts[..cut].join(".");
                let header = |line: &&Line| line.key.is_none() && line.table == table;
                lines.iter().find(header).map(|line| line.number)
            })
        })
        .unwrap_or(1)
}

struct Line {
    number: usize,
    table: String,
    /// None: the table's header.
    key: Option<String>,
}

fn headed(text: &str) -> Vec<Line> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut table = String::new();
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        let mut key = None;
        if let Some(name) = line.strip_prefix("[[").and_then(|rest| rest.split("]]").next()) {
            let count = counts.entry(name.trim().to_owned()).or_insert(0);
            table = format!("{}.{count}", name.trim());
            *count += 1;
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            table = name.trim().to_owned();
        } else if let Some((name, _)) = line.split_once('=') {
            key = Some(name.trim().to_owned());
        } else {
            continue;
        }
        lines.push(Line { number, table: table.clone(), key });
    }
    lines
}
