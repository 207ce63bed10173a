//! Waiting for the last connection of a backend that drains.

use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_control::api::ClientError;
use weir_control::engine::{BackendStatus, EngineError, Kind, Status};

use super::{NO_BODY, request};
use crate::cli::Instance;
use crate::out;

/// A control plane may be away for so long before the wait is given up: it is started again, perhaps with
/// another version.
const AWAY: Duration = Duration::from_secs(60);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(250);

/// Whose end is waited for.
pub struct Wanted {
    pub service: String,
    pub name: String,
    /// For so long at most.
    pub deadline: Option<Duration>,
    /// Where connections are not told by backend: so long without a packet.
    pub quiet: Duration,
}

/// Returns when the last connection has ended, and says that.
pub fn wait(instance: &Instance, wanted: &Wanted) -> anyhow::Result<String> {
    let begin = Instant::now();
    // Packets so far, and since when there are so many.
    let mut packets = (None, begin);
    let mut away: Option<Instant> = None;
    let Wanted { service, name, .. } = wanted;
    loop {
        let over = wanted.deadline.is_some_and(|deadline| begin.elapsed() >= deadline);
        let backend = match look(instance, wanted) {
            Err(error) if is_away(&error) && !over => {
                if away.is_none() {
                    out::note(format_args!("{error}; the wait goes on for a minute"));
                }
                if away.get_or_insert_with(Instant::now).elapsed() >= AWAY {
                    return Err(error);
                }
                sleep(LOOK);
                continue;
            }
            backend => backend?,
        };
        away = None;
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
        sleep(LOOK.min(rest));
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
                | ClientError::Protocol(_)
        )
    )
}

fn look(instance: &Instance, wanted: &Wanted) -> anyhow::Result<BackendStatus> {
    let status: Status = request(instance.clone(), "GET", "/v1/status", NO_BODY)?;
    let service = status.services.into_iter().find(|one| one.name == wanted.service);
    let backend =
        service.and_then(|one| one.backends.into_iter().find(|one| one.name == wanted.name));
    backend.ok_or_else(|| {
        let words = format!("backend {} of {} is not there any more", wanted.name, wanted.service);
        EngineError::NotFound(words).into()
    })
}
