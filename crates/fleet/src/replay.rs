//! What balancers have done in steps, as each writes it down, and whether that keeps to what steps promise.
//!
//! A balancer says each thing that it does in a step as a [`Mark`]: a line of JSON in its log, under the target
//! [`TARGET`]. The marks of all balancers of a fleet, in the order of their times, are a trace; [`replay`] holds it to
//! the rules that keep flows where they are (docs/fleet.md, In step). Histories that are played in tests and fleets
//! that run are held to the same.

use crate::{Stage, StepId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

/// What marks stand under in a log.
pub const TARGET: &str = "weir::steps";

/// Something that a balancer has done in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// When, in microseconds since 1970, by its own clock.
    pub at: u64,
    /// Its name.
    pub by: String,
    /// The step.
    pub step: StepId,
    /// What.
    pub did: Did,
}

/// What a balancer can do in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Did {
    /// Its process begins.
    Begins,
    /// It hears that the store has the step at this stage.
    Hears(Stage),
    /// No flow starts here any more.
    Freezes,
    /// It says that it has come to this stage.
    Says(Stage),
    /// Packets of a service follow the pools of this stage.
    Follows {
        /// The stage.
        stage: Stage,
        /// The service.
        service: String,
        /// The number of its table.
        generation: u64,
        /// The digest of how that decides.
        digest: String,
        /// The digest that the step has for it, of the table or of its rows.
        wanted: Option<String>,
    },
    /// Flows start here again, as the step is over.
    Starts,
    /// The same, as the store does not answer, and the others do not wait any more.
    StartsAlone,
    /// The store does not answer, and the lease of this balancer has run out: the others do not wait for it any more.
    /// No flow starts here, and it is not announced.
    Lapses,
}

impl Mark {
    /// That a balancer does this now.
    pub fn now(by: &str, step: StepId, did: Did) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { at: since.as_micros() as u64, by: by.to_owned(), step, did }
    }

    /// The mark in a line of a log, if there is one.
    pub fn of_line(line: &str) -> Option<Self> {
        let at = line.find("{\"at\":")?;
        let mut values = serde_json::Deserializer::from_str(&line[at..]).into_iter();
        values.next()?.ok()
    }
}

/// What a trace has that keeps to the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Steps that were made.
    pub made: usize,
    /// Steps that were given up.
    pub given_up: usize,
    /// Tables that followed a step.
    pub followed: usize,
}

/// What is known of a step on the way through a trace.
#[derive(Default)]
struct Seen {
    written: BTreeSet<Stage>,
    heard: BTreeMap<String, Stage>,
    said: BTreeMap<String, Stage>,
    /// Digests of tables: by service, whether it is the next pool, and what the step wants.
    tables: BTreeMap<(String, bool, Option<String>), String>,
}

/// Holds a trace to the rules: the marks of all balancers of a fleet, in the order in which they were made.
///
/// - A step does not go back for anybody, and a stage is said after somebody has heard of it.
/// - *Commit* comes when all that have said *freeze*, and say more of the step later, have said *collect*.
/// - From the moment that a balancer says *freeze* until the end of the step is heard of no flow starts there, unless its
///   lease has run out; what it has said counts no more then.
/// - Packets follow the next pools after *commit* was heard of, and while no flow starts.
/// - All that follow the same pools of a step by the same digest decide alike, and numbers of tables rise.
///
/// # Errors
/// The first mark that breaks a rule, and which.
pub fn replay(trace: &[Mark]) -> Result<Replayed, String> {
    let mut steps: BTreeMap<StepId, Seen> = BTreeMap::new();
    // By balancer: the step for which no flow starts there.
    let mut frozen: BTreeMap<&str, StepId> = BTreeMap::new();
    let mut generations: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut replayed = Replayed::default();
    for mark in trace {
        let broken = |rule: &str| Err(format!("{rule}: {mark:?}"));
        let later = steps.keys().next_back().is_some_and(|last| *last > mark.step);
        let seen = steps.entry(mark.step).or_default();
        match &mark.did {
            Did::Hears(stage) => {
                let before = seen.heard.insert(mark.by.clone(), *stage);
                if before.is_some_and(|before| before > *stage) {
                    return broken("a step goes back");
                }
                if !seen.written.insert(*stage) {
                    continue;
                }
                match stage {
                    Stage::Commit => {
                        let frozen = seen.said.iter().filter(|(_, said)| **said == Stage::Freeze);
                        if frozen.into_iter().any(|(name, _)| goes_on(trace, mark, name)) {
                            return broken("somebody has not said collect");
                        }
                        replayed.made += 1;
                    }
                    Stage::Done if !seen.written.contains(&Stage::Commit) => replayed.given_up += 1,
                    _ => {}
                }
            }
            Did::Begins => {
                // What packets follow is there yet, and by which numbers nobody knows.
                frozen.remove(&*mark.by);
                generations.retain(|(by, _), _| *by != mark.by);
            }
            Did::Freezes => {
                frozen.insert(&mark.by, mark.step);
            }
            Did::Says(stage) => {
                if !seen.written.contains(stage) {
                    return broken("said before it was heard of");
                }
                if *stage >= Stage::Freeze && frozen.get(&*mark.by) != Some(&mark.step) {
                    return broken("said while flows start");
                }
                seen.said.insert(mark.by.clone(), *stage);
            }
            Did::Follows { stage, service, generation, digest, wanted } => {
                let next = *stage >= Stage::Commit;
                if next && !seen.written.contains(stage) {
                    return broken("followed before it was heard of");
                }
                if frozen.get(&*mark.by) != Some(&mark.step) {
                    return broken("followed while flows start");
                }
                // Who comes after the end collects once more, by itself, and may have flows that nobody else has.
                let together = wanted.is_some() && *stage != Stage::Done;
                let key = (service.clone(), next, wanted.clone());
                if together && seen.tables.entry(key).or_insert_with(|| digest.clone()) != digest {
                    return broken("another balancer decides otherwise in the same step");
                }
                let before = generations.insert((&mark.by, service), *generation);
                if before.is_some_and(|before| before >= *generation) {
                    return broken("the number of a table does not rise");
                }
                replayed.followed += 1;
            }
            Did::Starts => {
                let word = seen.said.get(&mark.by).is_some_and(|stage| *stage >= Stage::Freeze);
                if word && !later && !seen.written.contains(&Stage::Done) {
                    return broken("flows start in a step");
                }
                frozen.remove(&*mark.by);
            }
            Did::StartsAlone => {
                seen.said.remove(&mark.by);
                frozen.remove(&*mark.by);
            }
            Did::Lapses => {}
        }
    }
    Ok(replayed)
}

/// Whether a balancer says more of a step after this mark, and so was there all the while. One whose lease has run out in
/// the step was not.
fn goes_on(trace: &[Mark], after: &Mark, name: &str) -> bool {
    let its = trace.iter().filter(|one| one.by == name && one.step == after.step);
    for one in its {
        match one.did {
            Did::Lapses => return false,
            Did::Says(stage) if stage > Stage::Freeze && one.at >= after.at => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: StepId = (1, 2);

    fn follows(stage: Stage, generation: u64, digest: &str) -> Did {
        let (service, digest, wanted) = ("a".into(), digest.into(), Some("w".into()));
        Did::Follows { stage, service, generation, digest, wanted }
    }

    fn trace(all: &[(&str, Did)]) -> Vec<Mark> {
        let mark = |(at, (by, did)): (usize, &(&str, Did))| Mark {
            at: at as u64,
            by: (*by).into(),
            step: STEP,
            did: did.clone(),
        };
        all.iter().enumerate().map(mark).collect()
    }

    /// Two balancers, one of which leads, make a step.
    fn good() -> Vec<(&'static str, Did)> {
        use Stage::{Collect, Commit, Done, Freeze, Prepare};
        let both = |did: &Did| [("x", did.clone()), ("y", did.clone())];
        let mut all = vec![("x", Did::Hears(Prepare))];
        all.extend(both(&Did::Says(Prepare)));
        all.push(("x", Did::Hears(Freeze)));
        all.extend(both(&Did::Freezes));
        all.extend(both(&Did::Says(Freeze)));
        all.push(("x", Did::Hears(Collect)));
        all.extend(both(&Did::Says(Collect)));
        all.push(("x", Did::Hears(Commit)));
        all.extend(both(&follows(Commit, 7, "d")));
        all.extend(both(&Did::Says(Commit)));
        all.push(("x", Did::Hears(Done)));
        all.extend(both(&Did::Starts));
        all
    }

    #[test]
    fn what_keeps_to_the_rules_is_counted() {
        let all = trace(&good());
        let wanted = Replayed { made: 1, given_up: 0, followed: 2 };
        assert_eq!(replay(&all), Ok(wanted));
        // As it stands in a log.
        let lines = all.iter().map(|mark| {
            let json = serde_json::to_string(mark).expect("JSON");
            format!("2026-01-01T00:00:00Z DEBUG weir::steps: {json} more=1")
        });
        let read: Vec<Mark> = lines.filter_map(|line| Mark::of_line(&line)).collect();
        assert_eq!(read, all);
        assert_eq!(Mark::of_line("INFO weir: {\"at\":\"noon\"}"), None);
        assert_eq!(Mark::of_line("INFO weir: nothing"), None);
    }

    /// Each rule is broken by a trace that differs from a good one in one place.
    #[test]
    fn each_rule_can_be_broken() {
        let at = |wanted: (&str, Did)| good().iter().position(|one| *one == wanted).expect("there");
        let moved = |from: usize, to: usize| {
            let mut all = good();
            let one = all.remove(from);
            all.insert(to, one);
            all
        };
        let replaced = |from: usize, did: Did| {
            let mut all = good();
            all[from].1 = did;
            all
        };
        let without = |from: usize| {
            let mut all = good();
            all.remove(from);
            all
        };
        let (collects, commits) =
            (at(("y", Did::Says(Stage::Collect))), at(("x", Did::Hears(Stage::Commit))));
        let (freezes, follows_at) =
            (at(("y", Did::Freezes)), at(("y", follows(Stage::Commit, 7, "d"))));
        let (done, starts) = (at(("x", Did::Hears(Stage::Done))), at(("y", Did::Starts)));
        for (rule, all) in [
            ("has not said collect", moved(collects, commits + 1)),
            ("said before it was heard of", moved(collects, freezes + 3)),
            ("said while flows start", without(freezes)),
            ("followed before", moved(follows_at, commits)),
            ("decides otherwise", replaced(follows_at, follows(Stage::Commit, 7, "e"))),
            ("flows start in a step", moved(starts, commits)),
            ("flows start in a step", moved(starts, done)),
        ] {
            let said = replay(&trace(&all)).expect_err(rule);
            assert!(said.contains(rule), "{rule}: {said}");
        }
        let mut back = good();
        back.push(("x", Did::Hears(Stage::Freeze)));
        assert!(replay(&trace(&back)).is_err_and(|said| said.contains("goes back")));
        let mut twice = good();
        twice.insert(follows_at + 1, ("y", follows(Stage::Commit, 7, "d")));
        assert!(replay(&trace(&twice)).is_err_and(|said| said.contains("does not rise")));
        twice.insert(follows_at + 1, ("y", Did::Begins));
        twice.insert(follows_at + 2, ("y", Did::Freezes));
        assert!(replay(&trace(&twice)).is_ok(), "another process counts anew");
        // Nobody waits for one whose lease has run out, though it may say more when it is back.
        let mut lapsed = moved(collects, commits + 1);
        lapsed.insert(collects, ("y", Did::Lapses));
        assert!(replay(&trace(&lapsed)).is_ok());
        // Who has started alone has given its word back, and has to freeze again.
        let mut alone = good();
        alone.insert(commits + 1, ("y", Did::StartsAlone));
        assert!(replay(&trace(&alone)).is_err_and(|said| said.contains("followed while")));
        alone.insert(commits + 2, ("y", Did::Freezes));
        assert!(replay(&trace(&alone)).is_ok());
    }
}
