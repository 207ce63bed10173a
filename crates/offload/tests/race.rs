//! The race of HNLB's paper, by exhaustive search. *A rule still points to a queue that now means another
//! backend*: a connection has a rule to a queue; the pool changes, or the connection ends and its client begins
//! another one from the same port, which the software places elsewhere; and packets come by the old rule, or
//! are in the queue already. The card of the model carries commands out when it likes, loses some, answers
//! late, and between a command and its end leads packets by either rule.
//!
//! The real [`Ledger`](weir_offload::Ledger) keeps the account. No packet of a live connection whose backend is
//! there may reach another one, and no queue leads to a backend in another use of its number. Leaving out any part that matters must break that, or the search proves
//! nothing.
//!
//! `WEIR_MODEL=deep` explores larger worlds to their end; `make soak` does.

#[path = "../../steering/tests/search/mod.rs"]
mod search;
#[path = "race/world.rs"]
mod world;

use search::Found;
use world::{Budget, Fault, Rules};

/// States after which a search ends that is not deep.
const LIMIT: usize = 400_000;

const ONE: Budget = Budget {
    flows: 1,
    places: 1,
    starts: 2,
    packets: 2,
    insertions: 1,
    losses: 0,
    insists: 0,
    evictions: 0,
    removals: 0,
    sweeps: 0,
};

fn run(budget: Budget, fault: Fault, limit: usize) -> Found {
    let found = search::explore(&mut Rules { budget, fault }, limit);
    let verdict = match (&found.trace, found.complete) {
        (Some(_), _) => "VIOLATION",
        (None, true) => "safe",
        (None, false) => "safe as far as explored",
    };
    println!(
        "{fault:?}, {budget:?}: {} states, depth {}, {:.1?}: {verdict}",
        found.states, found.depth, found.took
    );
    for (number, line) in found.trace.iter().flatten().enumerate() {
        println!("  {:2} {line}", number + 1);
    }
    found
}

fn safe(budget: Budget) {
    let found = run(budget, Fault::None, if search::deep() { usize::MAX } else { LIMIT });
    assert!(found.trace.is_none(), "a connection breaks");
    assert!(found.complete || !search::deep(), "not explored to the end");
}

fn safe_to_the_end(budget: Budget) {
    let found = run(budget, Fault::None, usize::MAX);
    assert!(found.trace.is_none() && found.complete, "a connection breaks");
}

fn breaks(fault: Fault, budgets: &[Budget]) {
    let found = budgets.iter().any(|&budget| run(budget, fault, 2_000_000).trace.is_some());
    assert!(found, "{fault:?} goes unnoticed: the search has no teeth");
}

#[test]
fn a_connection_follows_another_with_the_same_ports() {
    safe_to_the_end(ONE);
    safe_to_the_end(Budget { evictions: 1, insertions: 2, ..ONE });
}

#[test]
fn commands_are_lost_and_given_again() {
    safe_to_the_end(Budget { losses: 1, insists: 1, ..ONE });
    safe(Budget { losses: 2, insists: 2, insertions: 2, ..ONE });
}

#[test]
fn the_pool_changes_and_a_number_is_used_again() {
    safe_to_the_end(Budget { removals: 1, ..ONE });
    safe(Budget { removals: 1, insertions: 2, evictions: 1, ..ONE });
}

#[test]
fn the_software_forgets_nobody_whose_packets_a_rule_leads() {
    safe_to_the_end(Budget { sweeps: 2, packets: 3, starts: 1, ..ONE });
    safe_to_the_end(Budget { starts: 1, sweeps: 2, evictions: 1, packets: 3, ..ONE });
    safe(Budget { sweeps: 2, evictions: 1, packets: 3, ..ONE });
}

#[test]
fn two_connections_share_a_queue_or_a_place() {
    safe(Budget { flows: 2, ..ONE });
    safe(Budget { flows: 2, places: 2, insertions: 2, ..ONE });
}

/// A short run has all that can happen in a few steps.
#[test]
fn all_accidents_together() {
    safe(Budget {
        losses: 1,
        insists: 1,
        evictions: 1,
        removals: 1,
        sweeps: 1,
        insertions: 2,
        ..ONE
    });
}

/// Worlds that only a deep run has the time for.
#[test]
fn larger_worlds() {
    safe(Budget { starts: 3, packets: 3, insertions: 2, losses: 1, insists: 1, ..ONE });
    safe(Budget { flows: 2, places: 2, insertions: 2, evictions: 1, removals: 1, ..ONE });
}

/// The paper's design as it stands: whatever is in a queue goes to the backend that the queue means now.
#[test]
fn the_race_of_the_paper_breaks_connections() {
    breaks(Fault::TakeQueuesAtTheirWord, &[ONE]);
}

#[test]
fn each_part_of_the_account_is_needed() {
    breaks(Fault::FirstPacketsByQueue, &[ONE, Budget { removals: 1, evictions: 1, ..ONE }]);
    breaks(Fault::FirstPacketsNotTold, &[ONE]);
    breaks(Fault::EvictWithoutDoubt, &[ONE]);
    breaks(Fault::NoDrain, &[ONE]);
    breaks(Fault::ToldIsDone, &[ONE]);
    breaks(Fault::NoRetirement, &[Budget { removals: 1, ..ONE }]);
    breaks(Fault::LateIsRefused, &[Budget { insists: 1, ..ONE }]);
    let silent = Budget { starts: 1, sweeps: 2, evictions: 1, packets: 3, ..ONE };
    breaks(Fault::NoAudit, &[silent, Budget { sweeps: 3, packets: 4, ..silent }]);
    breaks(Fault::NoLastLook, &[silent]);
}

/// What is asked of a card: see [`weir_offload::Rules`].
#[test]
fn what_is_asked_of_a_card_is_needed() {
    breaks(Fault::CommandsOvertake, &[ONE, Budget { evictions: 1, ..ONE }]);
    breaks(Fault::FalseAnswers, &[ONE]);
}
