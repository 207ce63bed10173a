//! A change of pools that all balancers make in step.
//!
//! With a method that keeps what a change leaves behind (`residue`), no flow may start at one balancer by the new
//! pool and come to another one that has the old one still, and none may start unseen while all learn what there
//! is. So the leader takes all of them through the stages of a [`Step`], each of which begins when every balancer
//! that lives has [said](Ack) that it has come to the one before:
//!
//! ```text
//! Prepare   who is there and follows the same configuration says so
//! Freeze    no flow starts at these services
//! Collect   all has started that will: everybody learns from the backends what there is
//! Commit    packets follow tables of the next pools, and still no flow starts
//! Done      flows start again
//! ```
//!
//! The step is one value in the store, and has all that a balancer needs which comes late: the pools that are in
//! force, and those that are to be.

use crate::Report;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// No packet takes longer from a balancer to a backend, and into its kernel's tables: so long after no flow starts any
/// more all that have started are known there.
pub const FLIGHT: Duration = Duration::from_millis(20);

/// How far a step is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Nothing has begun.
    Prepare,
    /// No flow starts.
    Freeze,
    /// Nowhere does one start any more, and what has started is asked for.
    Collect,
    /// Packets follow the next pools.
    Commit,
    /// It is over.
    Done,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Prepare => "prepare",
            Self::Freeze => "freeze",
            Self::Collect => "collect",
            Self::Commit => "commit",
            Self::Done => "done",
        })
    }
}

/// A backend's part in a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Its name.
    pub name: String,
    /// Of new flows; what that counts for, with `drains` and `down`, is the method's.
    pub weight: u32,
    /// It keeps its connections, and gets no new ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drains: bool,
    /// It is down, as the leader has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub down: bool,
}

/// The pools of services, by the services' names.
pub type Pools = BTreeMap<String, Vec<Share>>;

/// A change of pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Which one it is; each has a higher number than those before.
    pub number: u64,
    /// The term of the leader that has begun it: with the number it is one that never comes again, whatever becomes of
    /// the store.
    pub begun: u64,
    /// The term of the leader that has written it.
    pub term: u64,
    /// How far it is.
    pub stage: Stage,
    /// The change of the shared configuration that it goes by. Who does not follow that yet cannot take part.
    pub change: u64,
    /// The pools that are in force before *commit*; with `Done`, that are in force.
    pub pools: Pools,
    /// Those that are to be; none with `Done`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next: Pools,
    /// Digests of the tables in force that all balancers have alike, of those services that have such; before
    /// *commit*, as `pools`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, String>,
    /// Those that are to be, from *commit* on; none with `Done`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next_tables: BTreeMap<String, String>,
    /// Digests of the rows in force, of those services whose balancers each make a table with the same rows, as their
    /// leader has made them; before *commit*, as `pools`. Of a service that has none it is not compared.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rows: BTreeMap<String, String>,
    /// Those that are to be, from *commit* on; none with `Done`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next_rows: BTreeMap<String, String>,
}

/// Tells steps apart: the term that one was begun in, and its number.
pub type StepId = (u64, u64);

impl Step {
    /// What tells it from all others, in their order.
    pub fn id(&self) -> StepId {
        (self.begun, self.number)
    }

    /// The pools in force when it has come to a stage: before `Commit` they are as they were.
    pub fn pools_at(&self, stage: Stage) -> Pools {
        let mut pools = self.pools.clone();
        if stage >= Stage::Commit {
            pools.extend(self.next.clone());
        }
        pools
    }

    /// The pool of a service in force when it has come to a stage.
    pub fn pool_at(&self, stage: Stage, service: &str) -> Option<&Vec<Share>> {
        let next = (stage >= Stage::Commit).then(|| self.next.get(service)).flatten();
        next.or_else(|| self.pools.get(service))
    }

    /// The digest of the table that all balancers have alike of a service, when it has come to a stage.
    pub fn table_at(&self, stage: Stage, service: &str) -> Option<&String> {
        let next = (stage >= Stage::Commit).then(|| self.next_tables.get(service)).flatten();
        next.or_else(|| self.tables.get(service))
    }

    /// The digest of the rows that all balancers have alike of a service, when it has come to a stage.
    pub fn rows_at(&self, stage: Stage, service: &str) -> Option<&String> {
        match stage >= Stage::Commit && self.next.contains_key(service) {
            true => self.next_rows.get(service),
            false => self.rows.get(service),
        }
    }

    /// The step one stage further.
    pub fn onward(&self) -> Self {
        match self.stage {
            Stage::Prepare => Self { stage: Stage::Freeze, ..self.clone() },
            Stage::Freeze => Self { stage: Stage::Collect, ..self.clone() },
            Stage::Collect => Self { stage: Stage::Commit, ..self.clone() },
            Stage::Commit | Stage::Done => {
                let mut tables = self.tables.clone();
                tables.extend(self.next_tables.clone());
                let mut rows = self.rows.clone();
                rows.retain(|name, _| !self.next.contains_key(name));
                rows.extend(self.next_rows.clone());
                Self {
                    stage: Stage::Done,
                    pools: self.pools_at(Stage::Commit),
                    next: Pools::new(),
                    tables,
                    next_tables: BTreeMap::new(),
                    rows,
                    next_rows: BTreeMap::new(),
                    ..self.clone()
                }
            }
        }
    }

    /// The balancers that have not come to its stage, of those that have to. A step begins with all that live; who comes
    /// later takes no packets before it is over.
    pub fn missing(&self, report: &Report) -> Vec<String> {
        let at = |name: &String, id: &str| {
            let ack = report.acks.get(name).filter(|ack| ack.id == id && ack.step == self.id());
            ack.map(|ack| ack.stage)
        };
        let waits = report.balancers.iter().filter(|(name, sign)| match at(name, &sign.id) {
            Some(stage) => stage < self.stage,
            // It has come in the midst of the step, or takes the place of one that was killed in it: packets that it takes
            // follow the table of before, and flows may start there, until it has come so far.
            None => {
                self.stage == Stage::Prepare
                    || sign.forwards
                    || sign.steps && self.stage < Stage::Commit
            }
        });
        waits.map(|(name, _)| name.clone()).collect()
    }

    /// Whether somebody of these, who are [missing](Self::missing), has not said that it knows the stage. It may be cut off, and
    /// what it does then it does for as long as its lease.
    pub fn may_not_know(&self, missing: &[String], report: &Report) -> bool {
        let knows = |name: &String| {
            report.acks.get(name).is_some_and(|ack| ack.step == self.id() && ack.late)
        };
        !missing.iter().all(knows)
    }

    /// Of these, who are [missing](Self::missing), those for whom the others hold new flows back. Who has said that it lags leads
    /// flows by another table in any case, before this step and after it.
    pub fn awaited(&self, missing: &[String], report: &Report) -> Vec<String> {
        let lags = |name: &&String| {
            let ack = report.acks.get(*name).filter(|ack| ack.step == self.id());
            ack.is_some_and(|ack| ack.lags)
        };
        missing.iter().filter(|name| self.stage < Stage::Commit || !lags(name)).cloned().collect()
    }

    /// The step given up: before *commit*, nothing has changed by it. But what is dead is dead: it gets no new flow,
    /// and no other row of a table moves by that.
    pub fn given_up(&self) -> Self {
        let mut pools = self.pools.clone();
        for (name, pool) in &mut pools {
            let Some(next) = self.next.get(name) else { continue };
            for share in pool {
                share.down |= next.iter().any(|other| other.name == share.name && other.down);
            }
        }
        let mut rows = self.rows.clone();
        rows.retain(|name, _| pools.get(name) == self.pools.get(name));
        let (next, next_tables, next_rows) = (Pools::new(), BTreeMap::new(), BTreeMap::new());
        Self { stage: Stage::Done, pools, next, next_tables, rows, next_rows, ..self.clone() }
    }

    /// Whether somebody is down in the next pools who was not before.
    pub fn has_dead(&self) -> bool {
        let down =
            |pool: &[Share], name: &str| pool.iter().any(|share| share.name == name && share.down);
        self.next.iter().any(|(name, next)| {
            let before = self.pools.get(name).map_or(&[][..], Vec::as_slice);
            let dead = next.iter().filter(|share| share.down && !down(before, &share.name));
            dead.into_iter().any(|share| before.iter().any(|other| other.name == share.name))
        })
    }
}

/// What a balancer says of a step. It goes with the balancer's lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The balancer's id.
    pub id: String,
    /// The step.
    pub step: StepId,
    /// What it has come to.
    pub stage: Stage,
    /// It has heard of a later one, to which it cannot come yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// It does not follow the tables in force before the step, as the others do, or can get none of those that come: the
    /// others do not wait for its *commit*.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lags: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(name: &str, weight: u32) -> Share {
        Share { name: name.into(), weight, drains: false, down: false }
    }

    /// Until *commit* everybody is waited for; then nobody who has said in this step that it lags.
    #[test]
    fn who_lags_is_not_waited_for_with_commit() {
        let (none, digests) = (Pools::new(), BTreeMap::new());
        let step = |stage| Step {
            number: 7,
            begun: 2,
            term: 2,
            stage,
            change: 3,
            pools: none.clone(),
            next: none.clone(),
            tables: digests.clone(),
            next_tables: digests.clone(),
            rows: digests.clone(),
            next_rows: digests.clone(),
        };
        let mut report = Report::default();
        for (name, number, lags) in [("a", 7, false), ("b", 7, true), ("c", 6, true)] {
            let (id, stage) = (name.to_owned(), Stage::Collect);
            let ack = Ack { id, step: (2, number), stage, late: false, lags };
            report.acks.insert(name.into(), ack);
        }
        let missing = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(step(Stage::Collect).awaited(&missing, &report), missing);
        assert_eq!(step(Stage::Commit).awaited(&missing, &report), ["a", "c"]);
    }

    #[test]
    fn pools_are_the_next_ones_from_commit_on_and_a_step_given_up_changes_nothing() {
        let pools = Pools::from([("a".into(), vec![share("x", 1)]), ("b".into(), vec![])]);
        let next = Pools::from([("a".into(), vec![share("x", 2)])]);
        let (stage, both) = (Stage::Prepare, (pools.clone(), next.clone()));
        let digests = |digest: &str| BTreeMap::from([("a".to_owned(), digest.to_owned())]);
        let step = Step {
            number: 7,
            begun: 2,
            term: 2,
            stage,
            change: 3,
            pools: both.0,
            next: both.1,
            tables: digests("old"),
            next_tables: BTreeMap::new(),
            rows: digests("old"),
            next_rows: BTreeMap::new(),
        };
        let step = step.onward();
        assert_eq!((step.stage, &step.next), (Stage::Freeze, &next));
        let step = step.onward();
        assert_eq!((step.stage, &step.next), (Stage::Collect, &next));
        assert_eq!(step.pools_at(Stage::Freeze), pools);
        let (next_tables, next_rows) = (digests("new"), digests("new"));
        let commit = Step { next_tables, next_rows, ..step.onward() };
        assert_eq!(commit.rows_at(Stage::Collect, "a").map(String::as_str), Some("old"));
        assert_eq!(commit.rows_at(Stage::Commit, "a").map(String::as_str), Some("new"));
        // Of an unknown pool nothing is compared with what was before.
        assert_eq!(step.onward().rows_at(Stage::Commit, "a"), None);
        assert_eq!(commit.table_at(Stage::Collect, "a").map(String::as_str), Some("old"));
        assert_eq!(commit.table_at(Stage::Commit, "a").map(String::as_str), Some("new"));
        assert_eq!((commit.stage, &commit.pools, &commit.next), (Stage::Commit, &pools, &next));
        assert_eq!(commit.pools_at(Stage::Commit)["a"], next["a"]);
        assert_eq!(commit.pools_at(Stage::Commit)["b"], pools["b"]);
        let done = commit.onward();
        assert_eq!(
            (done.stage, done.pools_at(Stage::Done)),
            (Stage::Done, commit.pools_at(commit.stage))
        );
        assert!(done.next.is_empty() && done.onward() == done);
        assert!(done.tables == digests("new") && done.next_tables.is_empty());
        assert!(done.rows == digests("new") && done.next_rows.is_empty());
        let given_up = step.given_up();
        assert_eq!((&given_up.tables, &given_up.rows), (&digests("old"), &digests("old")));
        assert_eq!((given_up.stage, given_up.pools_at(Stage::Done)), (Stage::Done, pools));
        assert!(!step.has_dead());
        let mut dead = step.clone();
        dead.next.get_mut("a").expect("it is there")[0].down = true;
        assert!(dead.has_dead());
        // Its rows are others then.
        assert!(dead.given_up().rows.is_empty());
        let pool = &dead.given_up().pools["a"];
        assert_eq!((pool[0].down, pool[0].weight), (true, 1));
        assert!(
            Stage::Prepare < Stage::Freeze
                && Stage::Freeze < Stage::Collect
                && Stage::Collect < Stage::Commit
                && Stage::Commit < Stage::Done
        );
    }
}
