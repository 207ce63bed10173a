//! `weir source`: prefixes on services' lists of sources, beside those of the file.

use crate::control::{NO_BODY, request, say};
use crate::out;
use weir_cli::{Instance, Listing, SourceVerb};
use weir_control::api::{Answer, UnlistSource};
use weir_control::engine::{EngineError, ListSource, Status};
use weir_watch::Listed;

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

fn list(instance: Instance, wanted: Option<&str>, json: bool) -> anyhow::Result<()> {
    let status: Status = request(instance, "GET", "/v1/status", NO_BODY)?;
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    let mut services = status.services.iter().filter(|service| is_wanted(&service.name)).peekable();
    if let (Some(wanted), None) = (wanted, services.peek()) {
        let words = format!("there is no service {wanted}; `weir status` lists them");
        return Err(EngineError::NotFound(words).into());
    }
    let mut listed = Vec::new();
    for service in services {
        let sources = service.sources.iter().flat_map(|sources| &sources.by_commands);
        listed.extend(sources.map(|source| Listed { service: &service.name, source }));
    }
    out::report(&listed, json, || weir_watch::sources(&listed) + "\n")
}
