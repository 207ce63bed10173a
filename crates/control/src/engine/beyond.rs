//! Connections that began when there was no room to remember them: how many, and until when that is to be said.
//! They are not known, so of most nobody sees them end; those that were remembered beside them tell how many of their
//! age are left. What is to be said outlives the process, in a file beside the log of states.

use super::prefixes::{name_of, number_of};
use super::service::{ServiceRuntime, idle_seconds};
use crate::config::Limits;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tracing::warn;
use weir_host::files;
use weir_steering::{MethodId, StateKey};

/// So many of them are known by their keys, so that their ends are seen.
const MOST_KNOWN: usize = 1 << 16;
/// While there are more and more, it is written down after so many seconds again.
const WRITE_EVERY: u32 = 10;

/// All that is to be said of a service.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Those beyond what the service may have.
    pub all: Beyond,
    /// Those beyond what their prefix may have.
    pub of_prefix: Beyond,
    /// The limits in force, where they are not those of the file.
    pub room: Option<Room>,
    written: Saved,
    written_at: u32,
}

/// Limits of the connections of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Room {
    pub states_per_service: u32,
    pub half_open_flows: u32,
    pub states_per_prefix: u32,
}

impl Room {
    pub fn of(limits: &Limits) -> Self {
        let &Limits { states_per_service, half_open_flows, states_per_prefix, .. } = limits;
        Self { states_per_service, half_open_flows, states_per_prefix }
    }

    /// The limits of a file, but for these.
    pub fn in_place(self, limits: &Limits) -> Limits {
        let Self { states_per_service, half_open_flows, states_per_prefix } = self;
        Limits { states_per_service, half_open_flows, states_per_prefix, ..limits.clone() }
    }
}

/// What the next process is to know. Without anything in it there is no file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Saved {
    all: Option<Open>,
    of_prefix: Option<Open>,
    /// The last of the latter.
    crowded: Option<[u8; 20]>,
    room: Option<Room>,
}

/// Those of one kind that are not over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Open {
    connections: u64,
    last: Last,
}

/// Those of one kind.
#[derive(Debug, Default)]
pub(super) struct Beyond {
    /// So many there were at the last look.
    before: u64,
    /// So many of them are over.
    over: u64,
    /// Those of an earlier process.
    earlier: u64,
    last: Option<Last>,
    /// The keys of those whose ends are seen.
    known: HashSet<StateKey>,
}

/// The last of them, as far as looks tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Last {
    /// When, in seconds since the machine was started.
    at: u32,
    /// States that there was no room beside.
    held: usize,
    /// When the first of them was noticed, in seconds since 1970.
    since: u64,
}

impl Beyond {
    /// Those that are not over, of so many in all.
    pub fn open(&self, all: u64) -> u64 {
        let some = self.last.is_some() || all > self.before;
        if some { (all + self.earlier).saturating_sub(self.over) } else { 0 }
    }

    /// When the first of them was noticed, if that is known yet.
    fn since(&self) -> Option<String> {
        self.last.map(|last| {
            let at = UNIX_EPOCH + Duration::from_secs(last.since);
            humantime::format_rfc3339_seconds(at).to_string()
        })
    }

    /// From now on those that there were are over.
    pub fn end(&mut self, all: u64) {
        *self = Self { before: all, over: all, ..Self::default() };
    }

    /// One more has begun, and is counted. A first packet that comes again is no other connection.
    pub fn began(&mut self, key: StateKey) {
        if self.known.contains(&key) {
            self.over += 1;
        } else if self.known.len() < MOST_KNOWN {
            self.known.insert(key);
        }
    }

    /// Its end was seen, if it is one of those.
    pub fn ended(&mut self, key: &StateKey) {
        let is_known = !self.known.is_empty() && self.known.remove(key);
        self.over += u64::from(is_known);
    }

    /// Takes notice of those since the last look; returns how many.
    fn look(&mut self, all: u64, now: u32, held: usize) -> u64 {
        let more = all.saturating_sub(self.before);
        self.before = all;
        if more > 0 {
            let since = self.last.map_or_else(seconds_since_1970, |last| last.since);
            self.last = Some(Last { at: now, held: held.max(1), since });
        }
        more
    }

    fn saved(&self, all: u64, now: u32) -> Option<Open> {
        let connections = self.open(all);
        // Before the first look nobody has counted those beside them.
        let noticed = || Last { at: now, held: 1, since: seconds_since_1970() };
        let last = self.last.unwrap_or_else(noticed);
        (connections > 0).then_some(Open { connections, last })
    }

    /// Goes on from what an earlier process has left.
    fn restored(open: Option<Open>) -> Self {
        let earlier = open.map_or(0, |open| open.connections);
        Self { earlier, last: open.map(|open| open.last), ..Self::default() }
    }

    /// Whether they are over by all that can be told: as old as the last of them, of those that were remembered,
    /// so few are left that of these it would be less than one. `left` counts those.
    fn are_over(&self, now: u32, idle: u32, left: impl FnOnce(u32) -> usize) -> bool {
        let Some(Last { at, held, .. }) = self.last else { return false };
        // One that was silent for so long would be forgotten as well.
        self.open(self.before) == 0
            || now.saturating_sub(at) >= idle
            || u128::from(self.open(self.before)) * (left(at) as u128) < held as u128
    }
}

impl ServiceRuntime {
    /// Says in the log what there was no room for since the last look, and takes back what the status says of it
    /// once that is over.
    pub fn warn_of_refused(&mut self, now: u32) {
        let forgotten = self.half_open.forgotten;
        if forgotten > self.forgotten_before {
            let (service, more) = (&self.configured.name, forgotten - self.forgotten_before);
            warn!(
                service,
                more,
                "half-open connections beyond limits.half_open_flows: the oldest were forgotten; is \
                 this a flood of SYNs?"
            );
            self.forgotten_before = forgotten;
        }
        let (refused, states) = (self.refused(), self.builder.states());
        let more = self.refusals.all.look(refused, now, states);
        let idle = idle_seconds(&self.configured);
        if more > 0 {
            let service = &self.configured.name;
            warn!(service, more, "connections beyond limits.states_per_service: not remembered");
        } else if states < self.most_open()
            && self.refusals.all.are_over(now, idle, |at| self.left_of(at, |_| true))
        {
            self.refusals.all.end(refused);
        }
        let Some(key) = self.crowded else { return };
        let (refused, held) = (self.beyond_prefix, self.builder.of_prefix(&key));
        let more = self.refusals.of_prefix.look(refused, now, held);
        if more > 0 {
            let (service, prefix) = (&self.configured.name, name_of(&key));
            warn!(
                service,
                more, prefix, "connections beyond limits.states_per_prefix: not remembered"
            );
            return;
        }
        let same = |other: &StateKey| number_of(other) == number_of(&key);
        if !self.is_crowded(&key)
            && self.refusals.of_prefix.are_over(now, idle, |at| self.left_of(at, same))
        {
            self.refusals.of_prefix.end(refused);
            self.crowded = None;
        }
    }

    /// A connection was not remembered because there are so many of its prefix.
    pub fn count_beyond_prefix(&mut self, key: StateKey) {
        self.beyond_prefix += 1;
        self.crowded = Some(key);
        self.refusals.of_prefix.began(key);
    }

    /// The end of a connection was seen that is not remembered.
    pub fn connection_ended_unremembered(&mut self, key: &StateKey) {
        // A client outlives its connections.
        if !self.is_by_client() {
            self.ended_unremembered(key);
        }
    }

    /// What is over, or is remembered by now.
    pub fn ended_unremembered(&mut self, key: &StateKey) {
        self.refusals.all.ended(key);
        self.refusals.of_prefix.ended(key);
    }

    /// Connections that are not remembered, and may be there: the next change of the pool may break them.
    pub fn unremembered(&self) -> u64 {
        let of_prefix = self.refusals.of_prefix.open(self.beyond_prefix);
        self.refusals.all.open(self.refused()) + of_prefix
    }

    /// What `weir status` says of them.
    pub fn said_of_unremembered(&self) -> Vec<String> {
        let (mut said, name) = (Vec::new(), &self.configured.name);
        let refused = self.refusals.all.open(self.refused());
        if refused > 0 {
            let since = self.refusals.all.since().map(|at| format!(" since {at}"));
            said.push(format!(
                "service {name}: {refused} connections began beyond limits.states_per_service{} ({} are \
                 remembered): the next change of the pool may break those that are still there",
                since.unwrap_or_default(),
                self.builder.states()
            ));
        }
        let beyond = self.refusals.of_prefix.open(self.beyond_prefix);
        if let Some(key) = self.crowded.as_ref().filter(|_| beyond > 0) {
            let first = self.refusals.of_prefix.since().map(|at| format!(" (the first at {at})"));
            said.push(format!(
                "service {name}: {beyond} connections began beyond limits.states_per_prefix, the last of them \
                 from {}, of which {} are remembered{}: the next change of the pool may break those that are \
                 still there",
                name_of(key),
                self.builder.of_prefix(key),
                first.unwrap_or_default()
            ));
        }
        said
    }

    /// Writes down what the next process is to say of them, and the limits in force.
    pub fn keep_refusals(&mut self, now: u32) {
        let saved = Saved {
            all: self.refusals.all.saved(self.refused(), now),
            of_prefix: self.refusals.of_prefix.saved(self.beyond_prefix, now),
            crowded: self.crowded.map(|key| key.to_bytes()),
            room: self.refusals.room,
        };
        let Refusals { written, written_at, .. } = &mut self.refusals;
        // The first ones at once, and that all are over.
        let soon = saved.all.is_some() == written.all.is_some()
            && saved.of_prefix.is_some() == written.of_prefix.is_some()
            && saved.room == written.room
            && now.saturating_sub(*written_at) < WRITE_EVERY;
        let Some(log) = self.log.as_ref().filter(|_| saved != *written && !soon) else { return };
        let path = refusals_beside(log.path());
        let done = if saved == Saved::default() {
            files::gone(&path)
        } else {
            let text = serde_json::to_vec(&saved).unwrap_or_default();
            files::write(&path, &text)
        };
        // Where there is no room for it, it is tried again.
        *written_at = now;
        if done.is_ok() {
            *written = saved;
        }
    }

    /// Nothing is written down of them any more beside this log.
    pub fn remove_refusals(&mut self, log: &Path) {
        let _ = files::gone(&refusals_beside(log));
        self.refusals.written = Saved::default();
    }

    /// Goes on from what an earlier process has written down of the same data plane, or leaves nothing of it.
    pub fn restore_refusals(&mut self, limits: &Limits, ours: bool) {
        let Some(path) = self.log.as_ref().map(|log| refusals_beside(log.path())) else { return };
        if !ours {
            let _ = files::gone(&path);
            return;
        }
        let text = files::read(&path).unwrap_or_default();
        let saved: Saved = serde_json::from_slice(&text).unwrap_or_default();
        self.refusals = Refusals {
            all: Beyond::restored(saved.all),
            of_prefix: Beyond::restored(saved.of_prefix),
            room: saved.room,
            written: saved,
            written_at: 0,
        };
        self.crowded = saved.crowded.map(|key| StateKey::from_bytes(&key));
        if let Some(room) = saved.room {
            self.set_room(&room.in_place(limits));
        }
    }

    /// States of connections that began by a time and are remembered.
    fn left_of(&self, at: u32, is: impl Fn(&StateKey) -> bool) -> usize {
        // Residue does not keep when they began: all may have by then.
        let all = self.builder.method() == MethodId::Residue;
        let mut left = 0;
        self.builder.each_state(&mut |key, known| {
            left += usize::from((all || known.born <= at) && is(key));
        });
        left
    }
}

/// Where that stands, beside a log of states.
pub(super) fn refusals_beside(log: &Path) -> PathBuf {
    log.with_extension("beyond")
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> StateKey {
        StateKey { src_port: port, ..StateKey::default() }
    }

    /// An end that is seen is one less; a first packet that comes twice is one connection; and the next process knows
    /// how many are left.
    #[test]
    fn ends_are_counted_and_the_rest_outlives_the_process() {
        let mut beyond = Beyond::default();
        (0..5).for_each(|port| beyond.began(key(port)));
        beyond.began(key(4));
        assert_eq!((beyond.look(6, 100, 50), beyond.open(6)), (6, 5));
        beyond.ended(&key(0));
        beyond.ended(&key(0));
        beyond.ended(&key(9));
        assert_eq!(beyond.open(6), 4);
        assert!(!beyond.are_over(110, 600, |_| 50));

        let mut next = Beyond::restored(beyond.saved(6, 110));
        assert_eq!((next.open(0), next.since()), (4, beyond.since()));
        assert!(next.since().is_some_and(|at| at.starts_with('2')), "{:?}", next.since());
        next.began(key(7));
        assert_eq!((next.look(1, 120, 50), next.open(1)), (1, 5));
        next.ended(&key(7));
        assert_eq!(next.open(1), 4);
        next.end(1);
        assert_eq!((next.open(1), next.saved(1, 130)), (0, None));

        (1..5).for_each(|port| beyond.ended(&key(port)));
        assert!(beyond.are_over(110, 600, |_| 50), "all of them have ended");
    }

    #[test]
    fn what_is_over_is_said_no_more_and_what_comes_after_is() {
        let mut beyond = Beyond::default();
        assert_eq!((beyond.open(0), beyond.open(7)), (0, 7), "before it was looked at, too");
        assert_eq!(beyond.look(20, 100, 1_000), 20);
        assert_eq!(beyond.look(20, 110, 1_000), 0);
        assert_eq!(beyond.open(20), 20);
        // Of a thousand that were as old, 50 are left: so may one of these.
        assert!(!beyond.are_over(120, 600, |at| if at == 100 { 50 } else { 0 }));
        assert!(beyond.are_over(120, 600, |_| 49));
        assert!(beyond.are_over(700, 600, |_| 1_000), "silent for too long");
        beyond.end(20);
        assert_eq!(beyond.open(20), 0);
        assert!(!beyond.are_over(700, 600, |_| 0));
        assert_eq!(beyond.open(23), 3);
        assert_eq!(beyond.look(23, 800, 1_000), 3);
        assert_eq!(beyond.open(23), 3);
    }
}
