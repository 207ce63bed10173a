//! residue's change protocol by exhaustive search: the real coordinator, balancers and rule of what
//! remains, with two balancers, three backends, and everything that can go wrong at any time. No
//! packet of a live connection whose backend lives may reach another backend. Leaving out any part
//! that matters must break that, or the search proves nothing.
//!
//! `WEIR_MODEL=deep` explores every world but the last to its end, depth first; `make soak` does.

#[path = "residue_model/explore.rs"]
mod explore;
mod search;
#[path = "residue_model/tables.rs"]
mod tables;
#[path = "residue_model/world.rs"]
mod world;

use explore::Rules;
use search::Found;
use world::{Budget, Fault};

const ONE: Budget = Budget {
    flows: 1,
    changes: 1,
    reuses: 0,
    restarts: 0,
    leases: 0,
    crashes: 0,
    deaths: 0,
    stale: 0,
};

/// States after which a search ends that is not deep.
const LIMIT: usize = 40_000;
/// States after which a deep search of the largest world ends.
const ALL_TOGETHER: usize = 50_000_000;

fn run(budget: Budget, fault: Fault, limit: usize) -> Found {
    explore(&mut Rules { budget, fault, excused: 0 }, limit)
}

fn explore(rules: &mut Rules, limit: usize) -> Found {
    let found = search::explore(rules, limit);
    report(rules, found)
}

/// Prints what was found.
fn report(rules: &Rules, found: Found) -> Found {
    let Rules { budget, fault, excused } = rules;
    let verdict = match (&found.trace, found.complete) {
        (Some(_), _) => "VIOLATION",
        (None, true) => "safe",
        (None, false) => "safe as far as explored",
    };
    println!(
        "{fault:?}, {budget:?}: {} states, depth {}, {excused} excused, {:.1?}: {verdict}",
        found.states, found.depth, found.took
    );
    for (number, line) in found.trace.iter().flatten().enumerate() {
        println!("  {:2} {line}", number + 1);
    }
    found
}

/// No violation among all states within the budget, which a deep run explores to the end.
fn safe(budget: Budget, fault: Fault) -> Found {
    let found = run(budget, fault, if search::deep() { usize::MAX } else { LIMIT });
    assert!(found.trace.is_none(), "{fault:?} breaks a connection");
    assert!(found.complete || !search::deep(), "not explored to the end");
    found
}

/// The same where even the short run reaches the end.
fn safe_to_the_end(budget: Budget) {
    let found = run(budget, Fault::None, usize::MAX);
    assert!(found.trace.is_none() && found.complete);
}

fn breaks(fault: Fault, budgets: &[Budget]) {
    let found = budgets.iter().any(|&budget| run(budget, fault, 600_000).trace.is_some());
    assert!(found, "{fault:?} goes unnoticed: the search has no teeth");
}

#[test]
fn changes_and_reshuffles() {
    safe_to_the_end(ONE);
    safe_to_the_end(Budget { changes: 2, ..ONE });
    safe(Budget { flows: 2, ..ONE }, Fault::None);
}

#[test]
fn keys_are_used_again_and_ends_are_reported_wrongly() {
    safe_to_the_end(Budget { reuses: 1, ..ONE });
    safe_to_the_end(Budget { changes: 2, reuses: 2, ..ONE });
}

#[test]
fn balancers_restart_and_are_expelled() {
    safe_to_the_end(Budget { restarts: 1, ..ONE });
    safe_to_the_end(Budget { leases: 1, ..ONE });
}

#[test]
fn the_coordinator_restarts() {
    safe_to_the_end(Budget { crashes: 1, ..ONE });
    safe_to_the_end(Budget { crashes: 1, changes: 2, ..ONE });
}

#[test]
fn backends_die() {
    safe_to_the_end(Budget { deaths: 1, ..ONE });
}

/// A connection may be misled if its agent was given up; then that is on record.
#[test]
fn an_agent_that_does_not_answer_is_accounted_for() {
    let budget = Budget { stale: 1, ..ONE };
    let mut rules = Rules { budget, fault: Fault::None, excused: 0 };
    let found = explore(&mut rules, usize::MAX);
    assert!(found.trace.is_none() && found.complete);
    assert!(rules.excused > 0, "giving up an agent costs nothing?");
}

/// Everything at once: too much for any machine to explore to the end. A short run has all that
/// can happen in a few steps, a deep one long histories.
#[test]
fn all_accidents_together() {
    let all = Budget { reuses: 1, restarts: 1, leases: 1, crashes: 1, deaths: 1, ..ONE };
    let mut rules = Rules { budget: Budget { changes: 2, ..all }, fault: Fault::None, excused: 0 };
    let found = match search::deep() {
        true => {
            let found = search::depth_first(&mut rules, ALL_TOGETHER);
            report(&rules, found)
        }
        false => explore(&mut rules, LIMIT),
    };
    assert!(found.trace.is_none(), "a connection breaks");
}

#[test]
fn each_part_of_the_collection_is_needed() {
    breaks(Fault::NoGrace, &[ONE]);
    breaks(Fault::NoTransit, &[ONE]);
    breaks(Fault::NoListing, &[ONE]);
    breaks(Fault::EstablishedOnly, &[ONE]);
    breaks(Fault::NoPending, &[ONE]);
}

#[test]
fn each_part_of_the_commit_is_needed() {
    breaks(Fault::NoFreeze, &[ONE]);
    breaks(Fault::EarlyThaw, &[ONE]);
    breaks(Fault::OneForAll, &[ONE]);
    breaks(Fault::ClearExceptions, &[Budget { changes: 2, ..ONE }]);
    breaks(Fault::TrustEnds, &[Budget { changes: 2, reuses: 1, ..ONE }]);
    breaks(Fault::LateDoubts, &[Budget { changes: 2, reuses: 2, ..ONE }]);
}

#[test]
fn each_part_of_the_recovery_is_needed() {
    breaks(Fault::IgnoreEpochs, &[ONE, Budget { restarts: 1, ..ONE }]);
    breaks(Fault::NoFence, &[Budget { leases: 1, ..ONE }]);
    breaks(Fault::SilentRestart, &[Budget { restarts: 1, ..ONE }]);
    breaks(Fault::AnyIncarnation, &[Budget { restarts: 1, ..ONE }]);
    breaks(Fault::NoReport, &[Budget { crashes: 1, ..ONE }]);
}

/// The other rule drops later packets instead of first ones. It is safe only if nobody repeats a
/// SYN at another balancer within the window.
#[test]
fn hold_needs_patient_clients() {
    breaks(Fault::Hold, &[ONE]);
    assert!(safe(ONE, Fault::HoldPatient).complete);
}
