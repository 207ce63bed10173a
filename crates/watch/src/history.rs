//! What `weir history` shows.

use crate::text::{Text, table};
use std::time::{Duration, UNIX_EPOCH};
use weir_control::engine::HistoryReport;
use weir_control::history::Entry;

/// What was changed, and whether the instance differs from its file.
pub fn history(report: &HistoryReport) -> String {
    let mut text = Text::default();
    text.line(listed(report));
    match &report.drift {
        Some(drift) => text.line(format_args!("\n{drift}")),
        None => text.line(format_args!("\nthe instance is as {} says", report.file)),
    }
    text.all()
}

/// The changes, a line each.
fn listed(report: &HistoryReport) -> String {
    let mut heads = vec!["change", "when", "who", "what", "connections", "broken", "done"];
    // Numbers of changes are each instance's own; what a fleet calls them stands beside.
    let fleet = report.entries.iter().any(|entry| entry.fleet.is_some());
    if fleet {
        heads.insert(1, "fleet");
    }
    let mut lines = table(&heads);
    for entry in &report.entries {
        let current = if report.current == Some(entry.number) { "*" } else { "" };
        let count = |count: Option<usize>| match (&*entry.what, count) {
            ("start", _) | ("command", None) => "-".to_owned(),
            (_, Some(count)) => count.to_string(),
            (_, None) => "unknown".to_owned(),
        };
        let at = UNIX_EPOCH + Duration::from_secs(entry.at);
        let mut row = vec![
            format!("{}{current}", entry.number),
            humantime::format_rfc3339_seconds(at).to_string(),
            who(entry),
            entry.what.clone(),
            count(entry.connections),
            count(entry.broken),
            done(entry),
        ];
        if fleet {
            row.insert(1, entry.fleet.map_or_else(|| "-".to_owned(), |number| number.to_string()));
        }
        lines.add_row(row);
    }
    // What fills columns up behind the last word is of no use.
    lines.trim_fmt()
}

fn who(entry: &Entry) -> String {
    match entry.who.uid {
        Some(uid) => format!("{} ({uid})", entry.who.name),
        None => entry.who.name.clone(),
    }
}

/// Characters of what was done that are shown; the JSON has all.
const SHOWN: usize = 160;
/// Services that are named of those that a change was about.
const NAMED: usize = 5;

fn done(entry: &Entry) -> String {
    let mut said = match entry.done.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}... (--json has all)", &entry.done[..end]),
        None => entry.done.clone(),
    };
    let (services, more) = (&entry.services, entry.services.len().saturating_sub(NAMED));
    if !services.is_empty() {
        said += &format!(" ({}", services[..services.len() - more].join(", "));
        said += &if more > 0 { format!(", and {more} more)") } else { ")".to_owned() };
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_control::history::Who;

    fn entry(what: &str, done: &str, services: usize) -> Entry {
        Entry {
            number: 7,
            at: 0,
            who: Who::nobody("test"),
            what: what.into(),
            fleet: None,
            done: done.into(),
            services: (0..services).map(|n| format!("s{n} changed")).collect(),
            connections: None,
            broken: None,
            kept: false,
            digest: String::new(),
        }
    }

    #[test]
    fn a_change_of_many_services_is_no_longer_than_others() {
        let said = done(&entry("reload", "reloaded", 1000));
        assert!(said.starts_with("reloaded (s0 changed, ") && said.ends_with(", and 995 more)"));
        assert_eq!(done(&entry("reload", "reloaded", 2)), "reloaded (s0 changed, s1 changed)");
        assert_eq!(done(&entry("command", "done", 0)), "done");
        let notes = "\u{e4}".repeat(10_000);
        let entries = vec![
            entry("reload", &notes, 1000),
            Entry { connections: Some(9), broken: Some(4), ..entry("command", "removed", 0) },
            entry("command", "added", 0),
        ];
        let (file, drift) = ("weir.toml".to_owned(), None);
        let text = listed(&HistoryReport { file, current: Some(7), entries, drift });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() < 400), "{text}");
        assert!(lines.iter().all(|line| !line.ends_with(' ')), "{text}");
        assert!(lines[1].contains("... (--json has all) (s0 changed"), "{text}");
        let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(columns(lines[2])[3..], ["command", "9", "4", "removed"]);
        assert_eq!(columns(lines[3])[3..], ["command", "-", "-", "added"]);
        // In a fleet its number stands beside the instance's own.
        let entries = vec![
            entry("start", "begun", 0),
            Entry { fleet: Some(43), ..entry("fleet", "drained", 0) },
        ];
        let (file, drift) = ("weir.toml".to_owned(), None);
        let text = listed(&HistoryReport { file, current: None, entries, drift });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(columns(lines[0])[..2], ["change", "fleet"]);
        assert_eq!(columns(lines[1])[..2], ["7", "-"]);
        assert_eq!(columns(lines[2])[..2], ["7", "43"]);
    }
}
