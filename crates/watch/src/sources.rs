//! Prefixes that commands have put on services' lists of sources, in words.

use crate::text::table;
use serde::Serialize;
use std::time::Duration;
use weir_control::engine::ListedSource;

/// One of them with its service.
#[derive(Clone, Copy, Serialize)]
pub struct Listed<'a> {
    /// The service.
    pub service: &'a str,
    /// The prefix.
    #[serde(flatten)]
    pub source: &'a ListedSource,
}

/// All of them, a line each.
pub fn sources(listed: &[Listed<'_>]) -> String {
    let mut lines = table(&["service", "prefix", "packets", "for", "by", "reason"]);
    for Listed { service, source } in listed {
        let left = source.seconds_left.map_or_else(|| "ever".into(), time);
        let reason = source.reason.clone().unwrap_or_default();
        let (prefix, by) = (source.prefix.clone(), source.by.clone());
        lines.add_row(vec![(*service).to_owned(), prefix, does(source).into(), left, by, reason]);
    }
    lines.trim_fmt()
}

fn does(source: &ListedSource) -> &'static str {
    if source.allow { "taken" } else { "dropped" }
}

fn time(seconds: u32) -> String {
    humantime::format_duration(Duration::from_secs(seconds.into())).to_string()
}

/// One of them, on a line of the status.
pub(crate) fn words(source: &ListedSource) -> String {
    let left = source.seconds_left.map(|left| format!(", for {} more", time(left)));
    let reason = source.reason.as_ref().map(|reason| format!(": {reason}"));
    format!(
        "  {} {} (a command of {}{}{})",
        source.prefix,
        does(source),
        source.by,
        left.unwrap_or_default(),
        reason.unwrap_or_default()
    )
}
