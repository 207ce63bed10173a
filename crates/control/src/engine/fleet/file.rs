//! The file of a balancer in a fleet: what is its own, and behind it the fleet's services.

use super::super::history::Beside;
use super::parse;
use crate::config::{Config, KeptLists, PlaneKind, followed_by};
use crate::engine::{Engine, EngineError};
use std::path::Path;
use tracing::{info, warn};
use weir_fleet::text;
use weir_plane::Plane;

/// What problems call the document of a change.
pub(super) fn called(change: u64) -> String {
    format!("the fleet's document, change {change}")
}

/// A balancer's own part and a shared one, as what problems are told by: those of the second are told by its own lines,
/// as the balancer's file may have others there.
pub(super) fn told_apart(own: &str, name: &str, shared: &str) -> String {
    followed_by(&text::join(own, ""), name, shared)
}

/// The configuration of a balancer with both; problems of the shared part are told by its own lines. `lists`: what
/// counts in the place of files that list sources.
pub(super) fn parse_joined(
    own: &str,
    shared: &str,
    name: &str,
    path: &Path,
    plane: Option<PlaneKind>,
    lists: Option<&KeptLists>,
) -> Result<Config, EngineError> {
    parse(&text::join(own, shared), path, plane, lists)
        .or_else(|error| parse(&told_apart(own, name, shared), path, plane, lists).and(Err(error)))
}

impl<P: Plane> Engine<P> {
    /// After a start, the file says what the fleet does: whoever reloads it would change all balancers by what it
    /// happened to say. What somebody has written there is kept beside it. `joins`: it was not of the fleet before;
    /// `left`: the services that it has left in its file.
    pub(super) fn write_fleets_file(&self, joins: bool, left: Option<&str>) {
        let Some(text) = self.fleet_text() else { return };
        let there = Config::text(&self.config_path);
        if there.as_ref().is_ok_and(|there| *there == text) {
            return;
        }
        let path = self.config_path.display();
        // An older text of the fleet is in the history.
        let known = there.as_ref().is_ok_and(|there| self.history.knows(there));
        let kept = match there.ok().and_then(|there| text::split(&there).ok()) {
            _ if known => Ok(String::new()),
            // What is its own stays in it, and these services are the fleet's, now or as it was left.
            Some(parts) if self.is_of_shared(&parts.shared) || left == Some(&*parts.shared) => {
                Ok(String::new())
            }
            Some(parts) if joins && parts.shared.is_empty() => Ok(String::new()),
            _ if joins => self.keep_replaced(),
            _ => self.keep_edited(&text),
        };
        let written = kept.and_then(|kept| {
            let beside = Beside::write(&self.config_path, &text);
            beside.and_then(|beside| beside.exchange()).map_err(|error| {
                EngineError::Conflict(format!("{path} cannot be replaced: {error}"))
            })?;
            Ok(kept)
        });
        match written {
            Ok(kept) => info!("{path} has the services of the fleet now{kept}"),
            Err(error) => warn!(
                "{path} does not say what the fleet does, and a reload would give the fleet what it says: {error}"
            ),
        }
    }

    fn is_of_shared(&self, shared: &str) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.shared() == shared)
    }
}
