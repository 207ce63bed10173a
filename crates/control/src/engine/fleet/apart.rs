//! For how long a balancer has not followed its fleet, also over a restart.

use super::super::sources::boot;
use super::now;
use crate::engine::Engine;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;
use weir_host::files;
use weir_plane::Plane;

/// Where it stands, in the run directory, when the fleet was followed last.
const FOLLOWED: &str = "followed.json";
/// It is written down that much more often than routes would be withdrawn.
const PARTS: u32 = 5;

/// When the fleet was followed last, by the clock since boot: what it is compared with nobody sets.
#[derive(Serialize, Deserialize)]
struct Followed {
    boot: String,
    seconds: u32,
}

/// Whether the fleet is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stand {
    Together,
    /// Not since so many seconds after the machine's start.
    Since(u32),
    /// Nor is it known since when: longer than any time.
    Unknown,
}

/// How this balancer stands to its fleet. One that cannot reach the store is apart, and so is one that cannot follow
/// what it has.
pub(super) struct Apart {
    stand: Stand,
    /// It cannot tell what the others have made of a step, and they do not wait for it any more.
    doubts: bool,
    /// When it was last written down that the fleet is followed.
    written: Option<u32>,
    /// When a process before this one has followed the fleet last, if that is known.
    before: Option<u32>,
}

impl Apart {
    /// `followed`: a start goes by what the store has.
    pub(super) fn new(followed: bool) -> Self {
        let stand = if followed { Stand::Together } else { Stand::Unknown };
        Self { stand, doubts: false, written: None, before: None }
    }

    /// `since`: when the store has heard of this balancer last.
    fn look(&mut self, together: bool, since: u32) {
        self.stand = match (together, self.stand) {
            (true, _) => Stand::Together,
            (false, Stand::Together) => Stand::Since(since),
            (false, apart) => apart,
        };
    }

    fn is_longer_than(&self, time: Duration, now: u32) -> bool {
        match self.stand {
            Stand::Together => false,
            Stand::Since(since) => u64::from(now.saturating_sub(since)) >= time.as_secs(),
            Stand::Unknown => true,
        }
    }

    /// Writes down that the fleet is followed, if that was not done for a while.
    fn note(&mut self, file: &Path, after: Duration, now: u32) {
        let due = |written: u32| now.saturating_sub(written) >= (after / PARTS).as_secs() as u32;
        if self.stand != Stand::Together || !self.written.is_none_or(due) {
            return;
        }
        self.written = Some(now);
        let text = serde_json::to_vec(&Followed { boot: boot(), seconds: now });
        if let Err(error) = files::write(file, &text.unwrap_or_default()) {
            // A restart without the store withdraws the sooner.
            let file = file.display();
            warn!(%error, "{file} does not say when the fleet was followed last");
        }
    }
}

/// When a process before this one has followed the fleet last, if that was in this boot and is known.
fn followed(file: &Path, now: u32) -> Option<u32> {
    let text = files::read(file).ok()?;
    let last: Followed = serde_json::from_slice(&text).ok()?;
    (last.boot == boot() && last.seconds <= now).then_some(last.seconds)
}

impl<P: Plane> Engine<P> {
    /// A start has not followed its fleet since the process before did. One that hears it makes up first for what that
    /// has missed.
    pub(in crate::engine) fn begin_apart(&mut self) {
        let (now, file) = (self.now(), self.followed_file());
        let Some(fleet) = &mut self.fleet else { return };
        fleet.apart.before = followed(&file, now);
        let last = fleet.apart.before.map(Stand::Since);
        match fleet.apart.stand {
            // Nobody knows of any, or it did not matter to it.
            Stand::Together => fleet.apart.stand = last.unwrap_or(Stand::Together),
            _ => fleet.apart.stand = last.unwrap_or(Stand::Unknown),
        }
    }

    pub(super) fn look_whether_apart(&mut self) {
        let (now, file) = (self.now(), self.followed_file());
        let (after, doubts) = (self.withdraw_after(), self.is_in_doubt());
        let Some(fleet) = &mut self.fleet else { return };
        let apart = fleet.apart.doubts || fleet.apart.stand != Stand::Together;
        // Who comes back follows first what it has missed.
        let together = fleet.with_report(|report| report.reachable)
            && fleet.behind.is_none()
            && (!apart || fleet.stepping.is_caught_up());
        fleet.apart.doubts = doubts || fleet.apart.doubts && !together;
        // Where it is the store that does not answer: the others count from there, too.
        let (reachable, unheard) =
            fleet.with_report(|report| (report.reachable, report.unheard_for()));
        let heard = now.saturating_sub(unheard.unwrap_or_default().as_secs() as u32);
        fleet.apart.look(together, if reachable { now } else { heard });
        if let Some(after) = after {
            // A restart counts from there, too: before it is noticed that the store is silent, it was.
            fleet.apart.note(&file, after, heard);
        }
    }

    /// For how many seconds the store has not heard of this balancer, also before this process began; or, where it
    /// answers, for how many it does.
    pub(super) fn seconds_of_store(&self) -> u64 {
        let Some(fleet) = &self.fleet else { return 0 };
        let before = fleet.apart.before.map(|at| u64::from(self.now().saturating_sub(at)));
        fleet.with_report(|report| {
            let noticed = now().saturating_sub(report.since);
            if report.reachable {
                return noticed;
            }
            let unheard = report.unheard_for().map(|time| time.as_secs()).or(before);
            noticed.max(unheard.unwrap_or_default())
        })
    }

    /// What says when the fleet was followed last is gone, and is written with the next look.
    pub(in crate::engine) fn note_apart_anew(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.apart.written = None;
        }
    }

    /// Whether it has not followed its fleet for so long that its routes are to be withdrawn.
    pub(in crate::engine) fn is_apart(&self) -> bool {
        let fleet = self.fleet.as_ref().zip(self.withdraw_after());
        fleet.is_some_and(|(fleet, after)| {
            fleet.apart.doubts || fleet.apart.is_longer_than(after, self.now())
        })
    }

    fn withdraw_after(&self) -> Option<Duration> {
        self.config.store.as_ref()?.withdraw_after
    }

    fn followed_file(&self) -> PathBuf {
        self.config.balancer.run_dir.join(FOLLOWED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(30);

    /// A restart goes on with the time for which the one before it had not followed, and one that does not know it,
    /// as the machine was started meanwhile, waits until the store is heard.
    #[test]
    fn a_restart_is_apart_for_as_long_as_the_one_before() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join(FOLLOWED);
        assert_eq!(followed(&file, 100), None);
        let mut apart = Apart::new(true);
        for now in [100, 101, 105, 107, 109] {
            apart.look(true, now);
            apart.note(&file, AFTER, now);
        }
        // It is not written each time.
        assert_eq!(followed(&file, 109), Some(107));
        apart.look(false, 110);
        apart.note(&file, AFTER, 130);
        assert_eq!(followed(&file, 130), Some(107));
        assert!(!apart.is_longer_than(AFTER, 139) && apart.is_longer_than(AFTER, 140));
        apart.look(true, 150);
        assert!(!apart.is_longer_than(AFTER, 190));
        // A later clock than this one's is of another boot.
        assert_eq!(followed(&file, 106), None);
        let other = serde_json::to_vec(&Followed { boot: "another".into(), seconds: 1 });
        std::fs::write(&file, other.expect("JSON")).expect("a file");
        assert_eq!(followed(&file, 130), None);
        let mut unknown = Apart::new(false);
        unknown.look(false, 1);
        assert!(unknown.is_longer_than(AFTER, 1));
        unknown.look(true, 2);
        assert!(!unknown.is_longer_than(AFTER, 2));
    }
}
