//! What has happened lately, for whoever watches: changes of health and of configuration, numbered, the
//! last few hundred in memory. What was changed is in the history too; this is for eyes and streams.

use crate::history::Entry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Events that are kept.
const KEPT: usize = 512;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number; later ones have higher numbers, and so have those of a later process.
    pub number: u64,
    /// When it was, in milliseconds since 1970.
    pub at: u64,
    /// What it is.
    #[serde(flatten)]
    pub what: Happening,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Happening {
    /// A health check has changed its mind about a backend.
    Health {
        /// The service.
        service: String,
        /// The backend.
        backend: String,
        /// Whether it is up now.
        up: bool,
        /// What the check said.
        detail: String,
    },
    /// The maintenance of a backend begins, or is over.
    Maintenance {
        /// The service.
        service: String,
        /// The backend.
        backend: String,
        /// Whether it begins.
        begins: bool,
        /// Until when it is, as RFC 3339 has it.
        until: Option<String>,
    },
    /// A backend was looked up: there is a record of it now, or none any more.
    Discovered {
        /// The service.
        service: String,
        /// The backend.
        backend: String,
        /// Whether there is a record.
        there: bool,
    },
    /// Something was changed: a command, or the file.
    Change {
        /// As the history has it.
        change: Box<Entry>,
    },
}

/// The last events, and whoever waits for the next one.
#[derive(Debug)]
pub struct Events {
    ring: Mutex<VecDeque<Event>>,
    last: watch::Sender<u64>,
}

impl Default for Events {
    fn default() -> Self {
        Self { ring: Mutex::default(), last: watch::Sender::new(before_first()) }
    }
}

/// The number before the first one. Whoever was told of some by an earlier process, however few, is told of all of this
/// one: a process has no million events a second. Below 2^53, so that a browser reads it.
fn before_first() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() * 1_000_000
}

impl Events {
    /// Numbers an event and keeps it; the oldest goes when there are too many.
    pub fn push(&self, what: Happening) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *self.last.borrow() + 1;
        ring.push_back(Event { number, at, what });
        if ring.len() > KEPT {
            ring.pop_front();
        }
        self.last.send_replace(number);
    }

    /// Those after a number, the oldest first. A number that there has not been is of an earlier process, whose clock was
    /// ahead: all of them.
    pub fn after(&self, number: u64) -> Vec<Event> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let number = if number > *self.last.borrow() { 0 } else { number };
        ring.iter().filter(|event| event.number > number).cloned().collect()
    }

    /// Wakes whoever waits when there is another one; holds the last number.
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(up: bool) -> Happening {
        let detail = String::from("answers");
        Happening::Health { service: "a".into(), backend: "b".into(), up, detail }
    }

    #[test]
    fn the_last_ones_are_kept_and_followed() {
        let events = Events::default();
        let mut follower = events.follow();
        let before = *follower.borrow();
        for round in 0..KEPT + 10 {
            events.push(health(round % 2 == 0));
        }
        let all = events.after(0);
        assert_eq!((all.len(), all[0].number), (KEPT, before + 11));
        assert!(all.windows(2).all(|two| two[0].number + 1 == two[1].number));
        assert!(follower.has_changed().is_ok_and(|changed| changed));
        let last = *follower.borrow_and_update();
        assert_eq!(last, before + KEPT as u64 + 10);
        assert!(events.after(last).is_empty());
        assert_eq!(events.after(last - 1).len(), 1);
        assert_eq!(events.after(last + 1).len(), KEPT, "a number of an earlier process");
        assert_eq!(events.after(before).len(), KEPT, "the last of one that began a second before");
        assert!(last < 1 << 53);
    }

    #[test]
    fn an_event_says_what_it_is() {
        let events = Events::default();
        events.push(health(false));
        let json = serde_json::to_value(events.after(0)).expect("JSON");
        assert_eq!((&json[0]["type"], &json[0]["up"]), (&"health".into(), &false.into()));
    }
}
