//! `weir source`: prefixes on services' lists of sources, beside those of the file.

use crate::cli::{Instance, Listing, SourceVerb};
use crate::control::{NO_BODY, request, say, table};
use crate::out;
use serde::Serialize;
use std::time::Duration;
use weir_control::api::{Answer, UnlistSource};
use weir_control::engine::{EngineError, ListSource, ListedSource, Status};

pub fn run(instance: Instance, verb: SourceVerb, json: bool) -> anyhow::Result<()> {
    let answer = match verb {
        SourceVerb::Deny(listing) => put(instance, listing, false),
        SourceVerb::Allow(listing) => put(instance, listing, true),
        SourceVerb::Remove { service, prefix, expected } => {
            let path = expected.of(&format!("/v1/services/{service}/sources/remove"));
            request(instance, "POST", &path, Some(&UnlistSource { prefix }))
        }
        SourceVerb::List { service } => return list(instance, service.as_deref(), json),
    };
    say(&answer?, json)
}

fn put(instance: Instance, listing: Listing, allow: bool) -> anyhow::Result<Answer> {
    let Listing { service, prefix, duration, reason, expected } = listing;
    // The arguments were read as a year at most.
    let seconds = duration.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
    let body = ListSource { prefix, allow, seconds, reason };
    let path = expected.of(&format!("/v1/services/{service}/sources"));
    request(instance, "PUT", &path, Some(&body))
}

/// One of them with its service, for programs.
#[derive(Serialize)]
struct Listed<'a> {
    service: &'a str,
    #[serde(flatten)]
    source: &'a ListedSource,
}

fn list(instance: Instance, wanted: Option<&str>, json: bool) -> anyhow::Result<()> {
    let status: Status = request(instance, "GET", "/v1/status", NO_BODY)?;
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    let mut listed = Vec::new();
    let mut services = status.services.iter().filter(|service| is_wanted(&service.name)).peekable();
    if let (Some(wanted), None) = (wanted, services.peek()) {
        let words = format!("there is no service {wanted}; `weir status` lists them");
        return Err(EngineError::NotFound(words).into());
    }
    for service in services {
        let sources = service.sources.iter().flat_map(|sources| &sources.by_commands);
        listed.extend(sources.map(|source| Listed { service: &service.name, source }));
    }
    if json {
        return out::json(&listed);
    }
    let mut lines = table(&["service", "prefix", "packets", "for", "by", "reason"]);
    for Listed { service, source } in &listed {
        let left = source.seconds_left.map_or_else(|| "ever".into(), time);
        let reason = source.reason.clone().unwrap_or_default();
        let (prefix, by) = (source.prefix.clone(), source.by.clone());
        lines.add_row(vec![(*service).to_owned(), prefix, does(source).into(), left, by, reason]);
    }
    out::line(lines.trim_fmt());
    Ok(())
}

fn does(source: &ListedSource) -> &'static str {
    if source.allow { "taken" } else { "dropped" }
}

fn time(seconds: u32) -> String {
    humantime::format_duration(Duration::from_secs(seconds.into())).to_string()
}

/// One of them, on a line of the status.
pub fn words(source: &ListedSource) -> String {
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
