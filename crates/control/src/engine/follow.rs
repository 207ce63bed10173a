//! The live check of consistency: some connections are followed for their life by the program that takes
//! notes, which tells whether their packets have gone to two backends (docs/consistency.md).

use super::{Engine, EngineError, Sender};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tracing::warn;
use weir_plane::{Plane, TraceCounts, Wanted};

/// After the program could not be put in place.
const AGAIN: Duration = Duration::from_secs(10);

/// What following connections has found since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsistencyStatus {
    /// One TCP connection in so many is followed.
    pub one_in: u32,
    /// Whether it is done just now.
    pub active: bool,
    /// Connections whose following has begun.
    pub followed: u64,
    /// Packets of those.
    pub packets: u64,
    /// Packets that went to another backend than the one before of their connection: suspected violations.
    pub moved: u64,
    /// The same, where the backend before had been removed.
    pub orphaned: u64,
}

/// Where it stands.
#[derive(Debug, Default)]
pub(super) struct Following {
    /// Where commands go.
    commands: Option<Sender>,
    /// One in so many, by the program that is in place; 0: none is, or it follows none.
    now: u32,
    /// What programs before have counted.
    before: TraceCounts,
    /// What this one has.
    counts: TraceCounts,
    /// Why it is not done, and when it is tried again.
    trouble: Option<(String, Instant)>,
}

impl Following {
    pub(super) fn begun(&mut self, one_in: u32) {
        (self.now, self.trouble) = (one_in, None);
    }

    /// Whether connections are followed now.
    pub(super) fn is_going(&self) -> bool {
        self.now > 0
    }

    pub(super) fn counted(&mut self, counts: TraceCounts) {
        if self.now > 0 {
            self.counts = counts;
        }
    }

    pub(super) fn ended(&mut self) {
        let TraceCounts { followed, checked, moved, orphaned, .. } =
            std::mem::take(&mut self.counts);
        self.before.followed += followed;
        self.before.checked += checked;
        self.before.moved += moved;
        self.before.orphaned += orphaned;
        self.now = 0;
    }

    pub(super) fn failed(&mut self, error: &EngineError) {
        let first = self.trouble.is_none();
        let why = format!("connections are not followed (follow_flows): {error}");
        if first {
            warn!("{why}; it is tried again");
        }
        self.trouble = Some((why, Instant::now() + AGAIN));
    }

    /// Why it is not done, if it should be.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.as_ref().map(|(why, _)| why.clone())
    }

    /// None if it is not asked for, and never was.
    pub(super) fn status(&self, wanted: u32) -> Option<ConsistencyStatus> {
        let (before, now) = (&self.before, &self.counts);
        let status = ConsistencyStatus {
            one_in: wanted,
            active: self.now > 0,
            followed: before.followed + now.followed,
            packets: before.checked + now.checked,
            moved: before.moved + now.moved,
            orphaned: before.orphaned + now.orphaned,
        };
        (wanted > 0 || status.followed > 0).then_some(status)
    }
}

impl<P: Plane> Engine<P> {
    /// Where the engine's own commands go.
    pub(crate) fn commands_go_to(&mut self, commands: Sender) {
        self.following.commands = Some(commands);
    }

    /// Sees that connections are followed if that is wanted, and not if it is not.
    pub(super) fn follow_connections(&mut self) {
        let wanted = self.config.balancer.follow_flows;
        if let Some(untold) = self.following_alone() {
            // A trace that somebody reads goes on; the next one does as the file says.
            if untold != wanted {
                self.end_trace();
            }
            return;
        }
        if wanted == 0 {
            self.following.trouble = None;
            return;
        }
        let waits = |(_, again): &(String, Instant)| *again > Instant::now();
        let (false, Some(commands)) = (
            self.is_tracing() || self.following.trouble.as_ref().is_some_and(waits),
            &self.following.commands,
        ) else {
            return;
        };
        let all = Wanted { untold: true, follow: wanted, ..Wanted::default() };
        if let Err(error) = self.load_for(all, commands.clone()) {
            self.following.failed(&error);
        }
    }
}
