//! Waiting, as a client of an instance, until what was asked for has come about.

use super::{Client, ClientError};
use crate::engine::{BackendStatus, EngineError, Kind, Status};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weir_announce::Report;

const NO_BODY: Option<&()> = None;
/// A speaker has withdrawn all routes by then, or somebody is told that it has not.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A control plane may be away for so long before the wait is given up: it is started again, perhaps with
/// another version.
const AWAY: Duration = Duration::from_secs(60);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(250);

/// The backend that drains.
#[derive(Clone, Debug)]
pub struct Draining {
    /// Its service.
    pub service: String,
    /// Its name.
    pub name: String,
    /// For so long at most.
    pub deadline: Option<Duration>,
    /// Where connections are not told by backend: so long without a packet.
    pub quiet: Duration,
}

/// Returns when the last connection of a backend has ended, and says that. `away` is called if the instance
/// is away meanwhile: it is waited for a minute.
///
/// # Errors
/// [`ClientError`] if the instance stays away, [`EngineError`] if the backend serves again or is gone; and what is
/// left, if the time is over.
pub async fn drained(
    client: &Client,
    wanted: &Draining,
    away: impl Fn(&anyhow::Error),
) -> anyhow::Result<String> {
    let begin = Instant::now();
    // Packets so far, and since when there are so many.
    let mut packets = (None, begin);
    let mut since: Option<Instant> = None;
    let Draining { service, name, .. } = wanted;
    loop {
        let over = wanted.deadline.is_some_and(|deadline| begin.elapsed() >= deadline);
        let backend = match look(client, wanted).await {
            Err(error) if is_away(&error) && !over => {
                if since.is_none() {
                    away(&error);
                }
                if since.get_or_insert_with(Instant::now).elapsed() >= AWAY {
                    return Err(error);
                }
                sleep(LOOK).await;
                continue;
            }
            backend => backend?,
        };
        since = None;
        // An operator, or a file, has changed their mind.
        if backend.state == "up" || backend.state == "backup" {
            let words = format!("backend {name} of {service} serves again");
            return Err(EngineError::Conflict(words).into());
        }
        if packets.0 != Some(backend.packets) {
            packets = (Some(backend.packets), Instant::now());
        }
        let ended = match backend.states {
            Some(states) => states == 0,
            None => packets.1.elapsed() >= wanted.quiet,
        };
        let waited = humantime::format_duration(Duration::from_secs(begin.elapsed().as_secs()));
        if ended {
            let done = match backend.states {
                Some(_) => {
                    format!("backend {name} of {service} has no connection left, after {waited}")
                }
                None => {
                    let quiet = humantime::format_duration(wanted.quiet);
                    format!("backend {name} of {service} has had no packet for {quiet}")
                }
            };
            return Ok(done);
        }
        if over {
            let left = match backend.states {
                Some(1) => "1 connection is left".to_owned(),
                Some(states) => format!("{states} connections are left"),
                None => "packets still come".to_owned(),
            };
            anyhow::bail!("backend {name} of {service} drains: {left} after {waited}");
        }
        let rest =
            wanted.deadline.map_or(LOOK, |deadline| deadline.saturating_sub(begin.elapsed()));
        sleep(LOOK.min(rest)).await;
    }
}

/// Whether nobody answers, somebody went away while he did, or is busy with something that takes long.
fn is_away(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref();
    matches!(
        error,
        Some(
            ClientError::Connect { .. }
                | ClientError::Silent { .. }
                | ClientError::Refused { kind: Kind::Busy, .. }
                | ClientError::Gone { .. }
                | ClientError::Protocol(_)
        )
    )
}

async fn look(client: &Client, wanted: &Draining) -> anyhow::Result<BackendStatus> {
    let status: Status = client.request("GET", "/v1/status", NO_BODY).await?;
    let service = status.services.into_iter().find(|one| one.name == wanted.service);
    let backend =
        service.and_then(|one| one.backends.into_iter().find(|one| one.name == wanted.name));
    backend.ok_or_else(|| {
        let words = format!("backend {} of {} is not there any more", wanted.name, wanted.service);
        EngineError::NotFound(words).into()
    })
}

/// Waits until the speaker of an instance that drains has withdrawn all routes, and says that. Without a speaker there
/// is nothing to wait for, nor to say.
///
/// # Errors
/// [`ClientError`]; [`EngineError::Unfinished`] if they are not withdrawn in time.
pub async fn withdrawn(client: &Client) -> anyhow::Result<Option<String>> {
    let begun = Instant::now();
    loop {
        let report: Report = client.request("GET", "/v1/announce", NO_BODY).await?;
        if report.speaker.is_none() {
            return Ok(None);
        }
        let left = report.routes.iter().filter(|one| one.announced != Some(false)).count();
        if report.drained && report.error.is_none() && left == 0 {
            let done = "this balancer is drained, and none of its routes is announced any more";
            return Ok(Some(done.into()));
        }
        if begun.elapsed() >= WITHDRAWN_WITHIN {
            let why = report.error.map_or_else(String::new, |error| format!(": {error}"));
            let words = format!(
                "this balancer is drained, but {left} of its routes are not withdrawn yet{why}; it is tried \
                 again, and weir announce says when it is done"
            );
            return Err(EngineError::Unfinished(words).into());
        }
        sleep(LOOK_EVERY).await;
    }
}
