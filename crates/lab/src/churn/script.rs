//! What happens next.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// Weights that backends get.
const WEIGHTS: Range<u32> = 1..5;
/// A kind that was not drawn for so many changes is drawn twice as often, and so on.
const AGE: u32 = 4;
/// How long the control plane is away when it is killed.
const AWAY: Range<Duration> = Duration::from_millis(100)..Duration::from_millis(800);

/// How a pool is churned: what may happen, and how often.
#[derive(Clone, Debug)]
pub struct ChurnSpec {
    /// Seed of every choice.
    pub seed: u64,
    /// Time from one change to the next.
    pub gap: Range<Duration>,
    /// Backends that serve, settled, at any time; at least 2 make sense.
    pub keep_live: usize,
    /// After this time a change has taken effect everywhere: a killed backend was noticed, one
    /// that came back is trusted. A change that would mix with the last one waits for so long.
    pub settle: Duration,
    /// Whether servers are killed and started again.
    pub kills: bool,
    /// Whether the configuration is edited and read again.
    pub reloads: bool,
    /// Whether the balancer's control plane is killed and started again.
    pub crashes: bool,
    /// Backends that are left alone, by position: somebody else does something to them.
    pub leave: Vec<usize>,
}

impl Default for ChurnSpec {
    fn default() -> Self {
        Self {
            seed: 1,
            gap: Duration::from_millis(300)..Duration::from_millis(1200),
            keep_live: 2,
            settle: Duration::from_secs(3),
            kills: true,
            reloads: true,
            crashes: true,
            leave: Vec::new(),
        }
    }
}

/// One change. Backends are named by their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A backend that is not in the pool joins it.
    Add {
        /// Position of the backend.
        backend: usize,
        /// The weight with which it joins.
        weight: u32,
    },
    /// A backend leaves: a drained one without connections, or a dead one.
    Remove {
        /// Position of the backend.
        backend: usize,
    },
    /// A backend gets no new connections.
    Drain {
        /// Position of the backend.
        backend: usize,
    },
    /// A draining backend gets new connections again.
    Undrain {
        /// Position of the backend.
        backend: usize,
    },
    /// A backend's weight changes.
    Reweight {
        /// Position of the backend.
        backend: usize,
        /// Its weight from now on.
        weight: u32,
    },
    /// A backend's servers are killed; the balancer is not told.
    Kill {
        /// Position of the backend.
        backend: usize,
    },
    /// A killed backend's servers are started again; the balancer is not told.
    BringBack {
        /// Position of the backend.
        backend: usize,
    },
    /// A backend's weight changes in the configuration file, which is read again.
    Reload {
        /// Position of the backend.
        backend: usize,
        /// Its weight from now on.
        weight: u32,
    },
    /// The control plane is killed and started again. This does not change the pool.
    Crash {
        /// How long it is away.
        away: Duration,
    },
}

impl Change {
    /// The kinds of change, each in one word.
    pub const KINDS: [&'static str; 9] =
        ["add", "remove", "drain", "undrain", "reweight", "kill", "bring back", "reload", "crash"];

    /// The kind of change in one word, one of [`Change::KINDS`].
    pub fn kind(&self) -> &'static str {
        Self::KINDS[self.number()]
    }

    /// Position of its kind in [`Change::KINDS`].
    fn number(&self) -> usize {
        match self {
            Self::Add { .. } => 0,
            Self::Remove { .. } => 1,
            Self::Drain { .. } => 2,
            Self::Undrain { .. } => 3,
            Self::Reweight { .. } => 4,
            Self::Kill { .. } => 5,
            Self::BringBack { .. } => 6,
            Self::Reload { .. } => 7,
            Self::Crash { .. } => 8,
        }
    }

    /// Whether it is counted as a pool change: everything but [`Change::Crash`]. A change is made
    /// to all services and counted once.
    pub fn changes_pool(&self) -> bool {
        !matches!(self, Self::Crash { .. })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add { backend, weight } => write!(f, "b{backend} added, weight {weight}"),
            Self::Remove { backend } => write!(f, "b{backend} removed"),
            Self::Drain { backend } => write!(f, "b{backend} draining"),
            Self::Undrain { backend } => write!(f, "b{backend} no longer draining"),
            Self::Reweight { backend, weight } => write!(f, "b{backend} weight {weight}"),
            Self::Kill { backend } => write!(f, "b{backend} killed"),
            Self::BringBack { backend } => write!(f, "b{backend} started again"),
            Self::Reload { backend, weight } => {
                write!(f, "b{backend} weight {weight}, by a reload of the file")
            }
            Self::Crash { away } => {
                write!(f, "balancer killed, started again after {:.1} s", away.as_secs_f64())
            }
        }
    }
}

/// Where a backend is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Not in the pool.
    Out,
    /// In the pool, for new connections too.
    Serving,
    /// In the pool, for the connections that it has.
    Draining,
    /// In the pool, with its servers killed.
    Dead,
}

impl Place {
    /// The place in one word, for a table: `serving`, `draining`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Dead => "dead",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Member {
    place: Place,
    /// Since when, by the script's clock; `None` is "long ago".
    since: Option<Duration>,
    weight: u32,
}

/// Decides which change is made next, from a seed and its own past; it needs no lab.
#[derive(Debug)]
pub struct Script {
    spec: ChurnSpec,
    random: ChaCha8Rng,
    members: Vec<Member>,
    last_kill: Option<Duration>,
    last_crash: Option<Duration>,
    /// Changes since the last one of each kind.
    ages: [u32; Change::KINDS.len()],
}

impl Script {
    /// A script for `backends`, of which the first `pool` serve.
    pub fn new(spec: ChurnSpec, backends: usize, pool: usize) -> Self {
        Self {
            random: ChaCha8Rng::seed_from_u64(spec.seed),
            spec,
            members: (0..backends)
                .map(|backend| Member {
                    place: if backend < pool { Place::Serving } else { Place::Out },
                    since: None,
                    weight: 1,
                })
                .collect(),
            last_kill: None,
            last_crash: None,
            ages: [0; Change::KINDS.len()],
        }
    }

    /// Where each backend is, by its position.
    pub fn places(&self) -> Vec<Place> {
        self.members.iter().map(|member| member.place).collect()
    }

    /// The weight of each backend, by its position.
    pub fn weights(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.weight).collect()
    }

    /// Draws the time from now to the next change.
    pub fn gap(&mut self) -> Duration {
        self.random.random_range(self.spec.gap.clone())
    }

    /// The change to make at `now`, taken as made; `None` if there is nothing to do. `open` says
    /// how many connections a backend holds.
    pub fn next(&mut self, now: Duration, open: impl Fn(usize) -> u64) -> Option<Change> {
        /// How often each kind of change is drawn, while it is possible. Rare are those that
        /// others wait for. A kind is drawn more often the longer it has not been, so that a run
        /// of a minute sees them all.
        type Draft = fn(&mut Script, Duration, &dyn Fn(usize) -> u64) -> Option<Change>;
        const KINDS: [(u32, Draft); 9] = [
            (4, Script::draft_add),
            (5, Script::draft_remove),
            (4, Script::draft_drain),
            (1, Script::draft_undrain),
            (3, Script::draft_reweight),
            (3, Script::draft_kill),
            (3, Script::draft_bring_back),
            (1, Script::draft_reload),
            (1, Script::draft_crash),
        ];
        let drafts: Vec<(u32, Change)> = KINDS
            .iter()
            .filter_map(|(often, draft)| {
                let change = draft(self, now, &open)?;
                Some((often * (1 + self.ages[change.number()] / AGE), change))
            })
            .collect();
        let total = drafts.iter().map(|(often, _)| often).sum::<u32>();
        if total == 0 {
            return None;
        }
        let mut ticket = self.random.random_range(0..total);
        let (_, change) = drafts.into_iter().find(|(often, _)| {
            let mine = ticket < *often;
            ticket = ticket.wrapping_sub(*often);
            mine
        })?;
        self.take(now, change);
        Some(change)
    }

    fn take(&mut self, now: Duration, change: Change) {
        self.ages.iter_mut().for_each(|age| *age += 1);
        self.ages[change.number()] = 0;
        let place = |member: &mut Member, place| {
            member.place = place;
            member.since = Some(now);
        };
        match change {
            Change::Add { backend, weight } => {
                place(&mut self.members[backend], Place::Serving);
                self.members[backend].weight = weight;
            }
            Change::Remove { backend } => place(&mut self.members[backend], Place::Out),
            Change::Drain { backend } => place(&mut self.members[backend], Place::Draining),
            Change::Undrain { backend } | Change::BringBack { backend } => {
                place(&mut self.members[backend], Place::Serving);
            }
            Change::Reweight { backend, weight } | Change::Reload { backend, weight } => {
                self.members[backend].weight = weight;
            }
            Change::Kill { backend } => {
                place(&mut self.members[backend], Place::Dead);
                self.last_kill = Some(now);
            }
            Change::Crash { .. } => self.last_crash = Some(now),
        }
    }

    /// This change, the last one, is made by `now` only: what waits for it to settle does so from now on.
    pub fn made(&mut self, now: Duration, change: Change) {
        match change {
            Change::Add { backend, .. }
            | Change::Remove { backend }
            | Change::Drain { backend }
            | Change::Undrain { backend }
            | Change::BringBack { backend } => self.members[backend].since = Some(now),
            Change::Kill { backend } => {
                self.members[backend].since = Some(now);
                self.last_kill = Some(now);
            }
            Change::Crash { .. } => self.last_crash = Some(now),
            Change::Reweight { .. } | Change::Reload { .. } => {}
        }
    }

    fn has_settled(&self, since: Option<Duration>, now: Duration) -> bool {
        since.is_none_or(|since| now.saturating_sub(since) >= self.spec.settle)
    }

    /// One of the backends in this place for long enough that meet a condition.
    fn pick(
        &mut self,
        place: Place,
        now: Duration,
        condition: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let fits = |(backend, member): &(usize, &Member)| {
            member.place == place
                && self.has_settled(member.since, now)
                && !self.spec.leave.contains(backend)
        };
        self.members
            .iter()
            .enumerate()
            .filter(fits)
            .map(|(backend, _)| backend)
            .filter(|backend| condition(*backend))
            .collect::<Vec<_>>()
            .into_iter()
            .choose(&mut self.random)
    }

    fn count(&self, place: Place) -> usize {
        let there = |member: &&Member| member.place == place;
        self.members.iter().filter(there).count()
    }

    /// Whether one backend less may serve.
    fn can_spare(&self, now: Duration) -> bool {
        let live = self
            .members
            .iter()
            .enumerate()
            .filter(|(backend, _)| !self.spec.leave.contains(backend))
            .filter(|(_, member)| {
                member.place == Place::Serving && self.has_settled(member.since, now)
            })
            .count();
        live > self.spec.keep_live.max(1)
    }

    fn new_weight(&mut self, backend: usize) -> u32 {
        let old = self.members[backend].weight;
        WEIGHTS.filter(|weight| *weight != old).choose(&mut self.random).unwrap_or(old)
    }

    fn draft_add(&mut self, now: Duration, _: &dyn Fn(usize) -> u64) -> Option<Change> {
        let backend = self.pick(Place::Out, now, |_| true)?;
        let weight = self.random.random_range(WEIGHTS);
        Some(Change::Add { backend, weight })
    }

    fn draft_remove(&mut self, now: Duration, open: &dyn Fn(usize) -> u64) -> Option<Change> {
        let drained = self.pick(Place::Draining, now, |backend| open(backend) == 0);
        let backend = drained.or_else(|| self.pick(Place::Dead, now, |_| true))?;
        Some(Change::Remove { backend })
    }

    fn draft_drain(&mut self, now: Duration, _: &dyn Fn(usize) -> u64) -> Option<Change> {
        let enough = self.count(Place::Draining) * 3 >= self.members.len();
        if enough || !self.can_spare(now) {
            return None;
        }
        let backend = self.pick(Place::Serving, now, |_| true)?;
        Some(Change::Drain { backend })
    }

    fn draft_undrain(&mut self, now: Duration, open: &dyn Fn(usize) -> u64) -> Option<Change> {
        // One without connections is due to be removed.
        let backend = self.pick(Place::Draining, now, |backend| open(backend) > 0)?;
        Some(Change::Undrain { backend })
    }

    fn draft_reweight(&mut self, now: Duration, _: &dyn Fn(usize) -> u64) -> Option<Change> {
        let backend = self.pick(Place::Serving, now, |_| true)?;
        let weight = self.new_weight(backend);
        Some(Change::Reweight { backend, weight })
    }

    fn draft_kill(&mut self, now: Duration, _: &dyn Fn(usize) -> u64) -> Option<Change> {
        let enough = self.count(Place::Dead) * 4 >= self.members.len();
        // While the control plane is away or has just come back, nobody would notice in time.
        let noticed = self.has_settled(self.last_crash, now);
        if !self.spec.kills || enough || !noticed || !self.can_spare(now) {
            return None;
        }
        let backend = self.pick(Place::Serving, now, |_| true)?;
        Some(Change::Kill { backend })
    }

    fn draft_bring_back(&mut self, now: Duration, _: &dyn Fn(usize) -> u64) -> Option<Change> {
        let backend = self.pick(Place::Dead, now, |_| true)?;
        Some(Change::BringBack { backend })
    }

    fn draft_reload(&mut self, now: Duration, _: &dyn Fn(usize) -> u64) -> Option<Change> {
        if !self.spec.reloads {
            return None;
        }
        let backend = self.pick(Place::Serving, now, |_| true)?;
        let weight = self.new_weight(backend);
        Some(Change::Reload { backend, weight })
    }

    fn draft_crash(&mut self, now: Duration, _: &dyn Fn(usize) -> u64) -> Option<Change> {
        let due = self.has_settled(self.last_kill, now) && self.has_settled(self.last_crash, now);
        if !self.spec.crashes || !due {
            return None;
        }
        let away = self.random.random_range(AWAY);
        Some(Change::Crash { away })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::mem::discriminant;

    use super::*;

    /// Plays a script for a while and checks every change against the rules.
    fn play(seed: u64, open: impl Fn(usize, Duration) -> u64) -> Vec<Change> {
        let spec = ChurnSpec { seed, ..ChurnSpec::default() };
        let (settle, keep) = (spec.settle, spec.keep_live);
        let mut script = Script::new(spec, 8, 5);
        let (mut now, mut made) = (Duration::ZERO, Vec::new());
        let mut since = [Duration::ZERO; 8];
        let (mut last_kill, mut last_crash) = (Duration::ZERO, Duration::ZERO);
        while now < Duration::from_secs(600) {
            now += script.gap();
            let before = script.places();
            let Some(change) = script.next(now, |backend| open(backend, now)) else {
                continue;
            };
            let check = |backend: usize, expected: &[Place]| {
                assert!(expected.contains(&before[backend]), "{change:?} {before:?}");
            };
            match change {
                Change::Add { backend, .. } => check(backend, &[Place::Out]),
                Change::Remove { backend } => {
                    check(backend, &[Place::Draining, Place::Dead]);
                    assert!(now - since[backend] >= settle);
                    assert!(before[backend] == Place::Dead || open(backend, now) == 0);
                }
                Change::Undrain { backend } => check(backend, &[Place::Draining]),
                Change::BringBack { backend } => check(backend, &[Place::Dead]),
                Change::Kill { backend } => {
                    check(backend, &[Place::Serving]);
                    assert!(last_crash.is_zero() || now - last_crash >= settle);
                    last_kill = now;
                }
                Change::Crash { .. } => {
                    assert!(last_kill.is_zero() || now - last_kill >= settle);
                    last_crash = now;
                }
                Change::Drain { backend }
                | Change::Reweight { backend, .. }
                | Change::Reload { backend, .. } => check(backend, &[Place::Serving]),
            }
            for (backend, place) in script.places().into_iter().enumerate() {
                if place != before[backend] {
                    since[backend] = now;
                }
            }
            let places = script.places();
            let serving = places.iter().filter(|p| **p == Place::Serving).count();
            assert!(serving >= keep, "{change:?}");
            made.push(change);
        }
        made
    }

    #[test]
    fn a_change_that_took_long_settles_from_when_it_was_made() {
        let mut script = Script::new(ChurnSpec::default(), 4, 3);
        let seconds = Duration::from_secs;
        let add = Change::Add { backend: 3, weight: 1 };
        script.take(seconds(1), add);
        script.made(seconds(10), add);
        let settled = |script: &Script, now| script.has_settled(script.members[3].since, now);
        assert!(!settled(&script, seconds(12)) && settled(&script, seconds(13)));
        let crash = Change::Crash { away: seconds(1) };
        script.take(seconds(20), crash);
        script.made(seconds(30), crash);
        assert_eq!(script.draft_kill(seconds(32), &|_| 0), None);
        assert!(script.draft_kill(seconds(33), &|_| 0).is_some());
    }

    #[test]
    fn every_kind_of_change_happens_and_every_one_is_allowed() {
        let mut kinds = HashSet::new();
        for seed in 0..20 {
            // Connections of a draining backend that come and go.
            let made = play(seed, |backend, now| now.as_secs() / 10 % 3 * backend as u64 % 2);
            assert!(made.len() > 200);
            kinds.extend(made.iter().map(discriminant));
        }
        assert_eq!(kinds.len(), 9);
    }

    #[test]
    fn eighty_changes_have_all_kinds() {
        for seed in 0..200 {
            let made = play(seed, |backend, now| (now.as_secs() / 10 + backend as u64) % 2);
            let kinds: HashSet<_> = made.iter().take(80).map(Change::kind).collect();
            assert_eq!(kinds.len(), Change::KINDS.len(), "seed {seed}: {kinds:?}");
        }
    }

    #[test]
    fn nothing_with_connections_is_removed_alive() {
        let killed_before = |made: &[Change], backend| {
            let last = made.iter().rev().find_map(|change| match change {
                Change::Kill { backend: b } if *b == backend => Some(true),
                Change::Add { backend: b, .. } | Change::BringBack { backend: b }
                    if *b == backend =>
                {
                    Some(false)
                }
                _ => None,
            });
            last == Some(true)
        };
        let made = play(3, |_, _| 1);
        for (index, change) in made.iter().enumerate() {
            if let Change::Remove { backend } = change {
                assert!(killed_before(&made[..index], *backend));
            }
        }
    }

    #[test]
    fn a_seed_gives_one_script() {
        assert_eq!(play(7, |_, _| 0), play(7, |_, _| 0));
        assert_ne!(play(7, |_, _| 0), play(8, |_, _| 0));
    }

    #[test]
    fn who_is_to_be_left_alone_is() {
        let spec = ChurnSpec { leave: vec![0, 6], ..ChurnSpec::default() };
        let mut script = Script::new(spec, 7, 4);
        let before = (script.places(), script.weights());
        for second in 0..2000 {
            script.next(Duration::from_secs(second), |_| 0);
            for backend in [0, 6] {
                assert_eq!(script.places()[backend], before.0[backend]);
                assert_eq!(script.weights()[backend], before.1[backend]);
            }
        }
        assert_ne!(script.places(), before.0);
    }

    #[test]
    fn what_is_turned_off_does_not_happen() {
        let spec =
            ChurnSpec { kills: false, reloads: false, crashes: false, ..ChurnSpec::default() };
        let mut script = Script::new(spec, 4, 3);
        for second in 0..1000 {
            let change = script.next(Duration::from_secs(second), |_| 0);
            assert!(!matches!(
                change,
                Some(Change::Kill { .. } | Change::Reload { .. } | Change::Crash { .. })
            ));
        }
    }
}
