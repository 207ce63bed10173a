//! Flows whose reports found no room, neither in the ring nor in the map behind it: how many, and until when that
//! is to be said. Nobody knows them, so nobody sees them end: they are over when the last of them has been there
//! for as long as a silent one is remembered.

use super::{Engine, ServiceRuntime};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;
use weir_host::files;
use weir_plane::Plane;

/// Where it stands for the next start, below the run directory: the data plane goes on counting.
const FILE: &str = "unrecorded.json";
/// While there are more and more, it is written down after so many seconds again.
const WRITE_EVERY: u32 = 10;

/// By the data plane's counter, and by the seconds since the machine was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Told {
    /// All that there were at the last look.
    all: u64,
    /// Those that are over.
    over: u64,
    /// When the first and the last of the others were noticed.
    first: u32,
    last: u32,
}

#[derive(Debug)]
pub(super) struct Unrecorded {
    path: PathBuf,
    told: Told,
    written: u32,
}

impl Unrecorded {
    /// Goes on from what an earlier run has noticed.
    pub fn new(run_dir: &Path) -> Self {
        let path = run_dir.join(FILE);
        let text = files::read(&path).unwrap_or_default();
        let told = serde_json::from_slice(&text).unwrap_or_default();
        Self { path, told, written: 0 }
    }

    /// Those that are not over.
    fn open(&self) -> u64 {
        self.told.all.saturating_sub(self.told.over)
    }

    /// Takes notice of those since the last look, of so many in all; `idle` seconds after the last one they are
    /// over. Returns whether these are the first.
    fn look(&mut self, all: u64, now: u32, idle: u32) -> bool {
        if all < self.told.all {
            // The memory is another one.
            self.told = Told::default();
        }
        let begins = self.open() == 0 && all > self.told.all;
        if all > self.told.all {
            if begins {
                (self.told.over, self.told.first) = (self.told.all, now);
            }
            (self.told.all, self.told.last) = (all, now);
            if begins || now.saturating_sub(self.written) >= WRITE_EVERY {
                self.write(now);
            }
        } else if self.open() > 0 && now.saturating_sub(self.told.last) >= idle {
            self.told.over = all;
            self.write(now);
        }
        begins
    }

    /// Where it cannot be written, the next start takes them for new ones.
    fn write(&mut self, now: u32) {
        self.written = now;
        let text = serde_json::to_vec(&self.told).unwrap_or_default();
        if let Err(error) = files::write(&self.path, &text) {
            warn!(path = %self.path.display(), %error, "cannot write down how many flows are not recorded");
        }
    }

    /// The file is gone; without any there is none.
    pub fn write_anew(&mut self, now: u32) {
        if self.told != Told::default() {
            self.write(now);
        }
    }

    /// What `weir status` says of them.
    pub fn said(&self, now: u32) -> Option<String> {
        let open = self.open();
        let ago = |then: u32| {
            let seconds = now.saturating_sub(then).into();
            humantime::format_duration(Duration::from_secs(seconds))
        };
        (open > 0).then(|| {
            format!(
                "{open} flows have begun whose reports found no room, the first {} ago and the last {} ago: \
                 they are forwarded and not known, and the next change of the pool may break them; is \
                 this a flood? limits.event_ring_bytes and limits.unreported_flows say how long a flood has \
                 room",
                ago(self.told.first),
                ago(self.told.last)
            )
        })
    }
}

impl<P: Plane> Engine<P> {
    /// Says in the log when flows begin that nobody is told of, and keeps for the next start what is to be said of those
    /// that are not remembered.
    pub(super) fn look_at_unrecorded(&mut self) {
        let needs = |service: &&ServiceRuntime| service.configured.method.id().needs().states;
        let services = self.services.values().filter(needs);
        let idle = services.map(|service| service.configured.idle_timeout.as_secs()).max();
        let idle = idle.unwrap_or(0).try_into().unwrap_or(u32::MAX);
        let (all, now) = (self.plane.unrecorded(), self.now());
        self.services.values_mut().for_each(|service| service.keep_refusals(now));
        if self.unrecorded.look(all, now, idle) {
            let flows = self.unrecorded.open();
            warn!(
                flows,
                "reports of new flows find no room: they are not known, and a change of the pool may break \
                 them; is this a flood? See limits.event_ring_bytes and limits.unreported_flows"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_and_outlives_a_restart_until_it_is_over() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut unrecorded = Unrecorded::new(directory.path());
        assert!(!unrecorded.look(0, 100, 600) && unrecorded.said(100).is_none());
        assert!(unrecorded.look(20, 110, 600), "the first");
        assert!(!unrecorded.look(50, 130, 600), "more of the same");
        let said = unrecorded.said(190).expect("it is to be said");
        assert!(said.starts_with("50 flows") && said.contains("the first 1m 20s ago"), "{said}");
        assert!(said.contains("the last 1m ago"), "{said}");

        let mut next = Unrecorded::new(directory.path());
        assert!(!next.look(50, 200, 600), "it is told already");
        assert_eq!(next.said(200), unrecorded.said(200));
        assert!(!next.look(50, 729, 600) && next.said(729).is_some());
        assert!(!next.look(50, 730, 600) && next.said(730).is_none());

        let mut after = Unrecorded::new(directory.path());
        assert!(!after.look(50, 800, 600) && after.said(800).is_none(), "it is over");
        assert!(after.look(51, 900, 600) && after.said(900).expect("anew").starts_with("1 flows"));
        // Memory that counts from 0 again.
        assert!(after.look(7, 1_000, 600));
        assert!(after.said(1_000).expect("anew").starts_with("7 flows"));
        assert!(!after.look(0, 1_001, 600) && after.said(1_001).is_none());
    }
}
