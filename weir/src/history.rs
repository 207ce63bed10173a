//! `weir apply`, `weir rollback` and `weir history`.

use crate::cli::Instance;
use crate::control::{self, NO_BODY, request, say, table};
use crate::out;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};
use weir_control::api::{Answer, FileText, RollbackRequest};
use weir_control::config::Config;
use weir_control::engine::{Apply, HistoryReport};
use weir_control::history::Entry;

pub fn apply(
    instance: Instance,
    file: &Path,
    break_connections: bool,
    expect: Option<u64>,
    json: bool,
) -> anyhow::Result<()> {
    let (file, text) = if control::is_stdin(file) {
        (control::STDIN.to_owned(), control::stdin_text()?)
    } else {
        (file.display().to_string(), Config::text(file)?)
    };
    let body = Apply { file, text, break_connections, expect };
    let answer: Answer = request(instance, "POST", "/v1/apply", Some(&body))?;
    say(&answer, json)
}

pub fn rollback(
    instance: Instance,
    number: Option<u64>,
    break_connections: bool,
    json: bool,
) -> anyhow::Result<()> {
    let body = RollbackRequest { number, break_connections };
    let answer: Answer = request(instance, "POST", "/v1/rollback", Some(&body))?;
    say(&answer, json)
}

pub fn show(instance: Instance, number: Option<u64>, json: bool) -> anyhow::Result<()> {
    if let Some(number) = number {
        let path = format!("/v1/history/{number}");
        let file: FileText = request(instance, "GET", &path, NO_BODY)?;
        if json {
            return out::json(&file);
        }
        out::text(file.text);
        return Ok(());
    }
    let report: HistoryReport = request(instance, "GET", "/v1/history", NO_BODY)?;
    if json {
        return out::json(&report);
    }
    let mut lines = table(&["change", "when", "who", "what", "connections", "broken", "done"]);
    for entry in &report.entries {
        let current = if report.current == Some(entry.number) { "*" } else { "" };
        let count = |count: Option<usize>| match (&*entry.what, count) {
            ("start" | "command", _) => "-".to_owned(),
            (_, Some(count)) => count.to_string(),
            (_, None) => "unknown".to_owned(),
        };
        let at = UNIX_EPOCH + Duration::from_secs(entry.at);
        lines.add_row(vec![
            format!("{}{current}", entry.number),
            humantime::format_rfc3339_seconds(at).to_string(),
            who(entry),
            entry.what.clone(),
            count(entry.connections),
            count(entry.broken),
            done(entry),
        ]);
    }
    out::line(lines);
    match &report.drift {
        Some(drift) => out::line(format_args!("\n{drift}")),
        None => out::line(format_args!("\nthe instance is as {} says", report.file)),
    }
    Ok(())
}

fn who(entry: &Entry) -> String {
    match entry.who.uid {
        Some(uid) => format!("{} ({uid})", entry.who.name),
        None => entry.who.name.clone(),
    }
}

fn done(entry: &Entry) -> String {
    match &entry.services[..] {
        [] => entry.done.clone(),
        services => format!("{} ({})", entry.done, services.join(", ")),
    }
}
