//! Changes of pools in step by exhaustive search: two balancers, a store, agents that say what is at the backends, and
//! everything that can go wrong between them at any time. What balancers and their leader decide is decided by the code
//! that runs in them ([`weir_fleet::Part`], [`weir_fleet::Step`]). No packet of a connection may come to another backend,
//! by whichever balancer that is announced and that the others have not gone on without. Leaving out any part that
//! matters must break that, or the search proves nothing.
//!
//! `WEIR_MODEL=deep` explores worlds of one change to their end, and ten million states of each of the others; `make
//! soak` does.

#[path = "../../steering/tests/search/mod.rs"]
mod search;
#[path = "steps/world.rs"]
mod world;

use search::Found;
use world::{Budget, Fault, Rules};

const ONE: Budget = Budget { flows: 1, steps: 1, cuts: 0, kills: 0, terms: 0 };

/// States after which a search ends that is not deep.
const LIMIT: usize = 80_000;
/// States after which a deep search of a large world ends.
const LARGE: usize = 10_000_000;

fn run(budget: Budget, way: (bool, bool), fault: Fault, limit: usize) -> Found {
    searched(budget, way, fault, |rules| search::explore(rules, limit))
}

fn searched(
    budget: Budget,
    way: (bool, bool),
    fault: Fault,
    search: impl FnOnce(&mut Rules) -> Found,
) -> Found {
    let (shared, strict) = way;
    let mut rules = Rules { budget, shared, strict, fault, excused: 0 };
    let found = search(&mut rules);
    let verdict = match (&found.trace, found.complete) {
        (Some(_), _) => "VIOLATION",
        (None, true) => "safe",
        (None, false) => "safe as far as explored",
    };
    println!(
        "{fault:?}, {budget:?}, one table {shared}, strict {strict}: {} states, depth {}, {} excused, {:.1?}: {verdict}",
        found.states, found.depth, rules.excused, found.took
    );
    for (number, line) in found.trace.iter().flatten().enumerate() {
        println!("  {:2} {line}", number + 1);
    }
    found
}

const WAYS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

/// No violation among all states within the budget, which a deep run explores to the end.
fn safe(budget: Budget) {
    safe_up_to(budget, usize::MAX);
}

/// The same of a world so large that a deep run ends, too, after so many states.
fn safe_up_to(budget: Budget, deep: usize) {
    for way in WAYS {
        let found = run(budget, way, Fault::None, if search::deep() { deep } else { LIMIT });
        assert!(found.trace.is_none(), "a connection breaks");
        assert!(found.complete || !search::deep() || deep < usize::MAX, "not explored to the end");
    }
}

fn breaks(fault: Fault, budget: Budget) {
    let found = WAYS.iter().any(|&way| run(budget, way, fault, 2_000_000).trace.is_some());
    assert!(found, "{fault:?} goes unnoticed: the search has no teeth");
}

#[test]
fn nothing_goes_wrong() {
    safe(ONE);
    safe(Budget { flows: 2, steps: 2, ..ONE });
}

#[test]
fn a_balancer_is_cut_off() {
    safe(Budget { cuts: 1, ..ONE });
    safe_up_to(Budget { cuts: 1, steps: 2, ..ONE }, LARGE);
}

#[test]
fn a_control_plane_is_killed() {
    safe(Budget { kills: 1, ..ONE });
    safe_up_to(Budget { kills: 1, steps: 2, ..ONE }, LARGE);
}

#[test]
fn another_one_leads() {
    safe_up_to(Budget { cuts: 1, terms: 1, steps: 2, ..ONE }, LARGE);
    safe_up_to(Budget { kills: 1, terms: 1, steps: 2, ..ONE }, LARGE);
}

#[test]
fn all_of_it_together() {
    safe_up_to(Budget { flows: 2, steps: 2, cuts: 1, kills: 1, terms: 1 }, LARGE);
}

#[test]
fn every_part_is_needed() {
    let cut = Budget { cuts: 1, steps: 2, ..ONE };
    for (fault, budget) in [
        (Fault::NoFreeze, ONE),
        (Fault::NoListing, ONE),
        (Fault::EarlyThaw, ONE),
        (Fault::NobodyIsAwaited, ONE),
        (Fault::NoLease, cut),
        (Fault::NoWord, cut),
        (Fault::OldWords, Budget { terms: 1, ..cut }),
        (Fault::RestartUnseen, Budget { kills: 1, ..ONE }),
    ] {
        breaks(fault, budget);
    }
    // What it takes is far from the beginning.
    let budget = Budget { kills: 1, ..ONE };
    let found =
        searched(budget, WAYS[0], Fault::OldAnswers, |rules| search::depth_first(rules, 2_000_000));
    assert!(found.trace.is_some(), "old answers go unnoticed: the search has no teeth");
}
