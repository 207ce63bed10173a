//! Every interleaving of "flows start while tables are updated", by exhaustive search: the real
//! `Update` drives the real parts of the driver's actions against a model of the data plane and of what
//! is known of flows, and no packet may leave the backend of its flow's first packet. Leaving out any part
//! that matters must break it, or the search proves nothing.

#[path = "interleavings/explore.rs"]
mod explore;
#[path = "interleavings/model/mod.rs"]
mod model;
mod search;
mod seed;

use model::beside::{Performed, walk};
use model::{Fault, MAX_FLOWS, Rules};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use search::Found;

/// How much may happen.
#[derive(Clone, Copy, Debug)]
struct Size {
    flows: usize,
    updates: u8,
    crashes: u8,
    reuses: u8,
    failures: u8,
    marks: u8,
    drains: u8,
}

impl Size {
    /// With so many actions that fail.
    const fn failing(self, failures: u8) -> Self {
        Self { failures, ..self }
    }

    /// With so many backends that are found down.
    const fn marking(self, marks: u8) -> Self {
        Self { marks, ..self }
    }

    /// With so many reports that are taken up between the steps of updates.
    const fn draining(self, drains: u8) -> Self {
        Self { drains, ..self }
    }
}

const fn size(flows: usize, updates: u8, crashes: u8, reuses: u8) -> Size {
    assert!(flows <= MAX_FLOWS);
    Size { flows, updates, crashes, reuses, failures: 0, marks: 0, drains: 0 }
}

fn rules(size: Size, fault: Fault) -> Rules {
    Rules {
        flows: size.flows,
        updates: size.updates,
        crashes: size.crashes,
        reuses: size.reuses,
        failures: size.failures,
        marks: size.marks,
        drains: size.drains,
        fault,
    }
}

fn run(size: Size, fault: Fault) -> Found {
    let mut rules = rules(size, fault);
    let found = search::explore(&mut rules, usize::MAX);
    let verdict = match found.trace {
        Some(_) => "VIOLATION",
        None => "safe",
    };
    println!(
        "{fault:?}, {size:?}: {} states, depth {}, {:.1?}: {verdict}",
        found.states, found.depth, found.took
    );
    for (number, line) in found.trace.iter().flatten().enumerate() {
        println!("  {:2} {line}", number + 1);
    }
    found
}

fn safe(size: Size, fault: Fault) {
    let found = run(size, fault);
    assert!(found.trace.is_none() && found.complete, "{fault:?} breaks a connection");
}

/// A violation at each of the sizes that are tried in turn until one is found.
fn breaks(fault: Fault) {
    breaks_at(fault, &[size(1, 1, 0, 0), size(1, 2, 0, 1), size(1, 2, 1, 1)]);
}

fn breaks_at(fault: Fault, sizes: &[Size]) {
    assert!(
        sizes.iter().any(|&size| run(size, fault).trace.is_some()),
        "{fault:?} goes unnoticed: the search has no teeth"
    );
}

#[test]
fn one_flow_with_crashes_and_reused_keys() {
    safe(size(1, 2, 2, 2), Fault::None);
}

#[test]
fn two_flows_through_two_updates_and_a_crash() {
    safe(size(2, 2, 1, 0), Fault::None);
}

#[test]
fn two_flows_with_a_reused_key() {
    safe(size(2, 1, 0, 1), Fault::None);
}

/// Worlds that only a deep run has the time for.
#[test]
fn larger_worlds_to_their_end() {
    let sizes = match search::deep() {
        true => &[size(2, 2, 1, 1), size(2, 2, 2, 0), size(1, 3, 2, 2)][..],
        false => &[size(1, 3, 1, 1)],
    };
    sizes.iter().for_each(|&size| safe(size, Fault::None));
}

#[test]
fn each_part_of_the_update_is_needed() {
    breaks(Fault::NoFirstGrace);
    breaks(Fault::NoSecondGrace);
    breaks(Fault::SettleBeforeGrace);
    breaks(Fault::RecordAfterPublish);
    breaks(Fault::PublishWithoutPending);
    breaks(Fault::StopPendingEarly);
    breaks(Fault::SettleAll);
    breaks(Fault::NoReports);
    breaks(Fault::NoCollect);
}

#[test]
fn each_part_of_the_lookup_is_needed() {
    breaks(Fault::NoPendingLookup);
    breaks(Fault::NoNote);
    breaks(Fault::SecondPlacementNotNoted);
}

#[test]
fn pins_must_come_and_go_in_time() {
    breaks(Fault::NoPins);
    breaks(Fault::PinAfterPublish);
    breaks(Fault::UnpinBeforePublish);
    breaks(Fault::UnpinLate);
    breaks(Fault::NeverUnpin);
}

#[test]
fn a_control_plane_that_dies_must_have_logged_and_must_collect() {
    breaks(Fault::ConsumeBeforeLog);
    breaks(Fault::RestartWithoutCollect);
}

/// Any action fails at any point, before it has done anything or in the middle, and another one
/// while the failure is dealt with.
#[test]
fn any_action_may_fail() {
    safe(size(1, 2, 0, 0).failing(2), Fault::None);
    safe(size(1, 2, 0, 1).failing(2), Fault::None);
    safe(size(1, 2, 1, 0).failing(2), Fault::None);
    safe(size(1, 2, 1, 1).failing(2), Fault::None);
    safe(size(2, 1, 0, 0).failing(1), Fault::None);
}

#[test]
fn each_part_of_the_failure_path_is_needed() {
    let sizes = [
        size(1, 1, 0, 0).failing(1),
        size(1, 2, 0, 0).failing(1),
        size(1, 2, 0, 1).failing(1),
        size(1, 2, 1, 1).failing(1),
    ];
    for fault in [
        Fault::FailureEnds,
        Fault::FailureClearsFlags,
        Fault::FailedGraceCounts,
        Fault::FailedCollectCounts,
        Fault::FailureForgetsCollected,
        Fault::DraftCountsAsPublished,
        Fault::RetireForDraft,
        Fault::KeepPinsOfDraft,
        Fault::OneTry,
    ] {
        breaks_at(fault, &sizes);
    }
}

/// A health check that fails at any point, in the middle of an update as well: new flows are kept from its backend
/// from then on, and stay where they are placed instead.
#[test]
fn a_backend_may_be_found_down_at_any_time() {
    safe(size(1, 2, 0, 0).marking(2), Fault::None);
    safe(size(1, 2, 0, 1).marking(1), Fault::None);
    safe(size(1, 2, 1, 0).marking(1), Fault::None);
    safe(size(1, 2, 0, 0).marking(1).failing(1), Fault::None);
    safe(size(2, 1, 0, 0).marking(1), Fault::None);
    for fault in [Fault::ClearThoughDown, Fault::MarkBeforeClear, Fault::MarkWithoutGrace] {
        breaks_at(fault, &[size(1, 1, 0, 0).marking(1), size(1, 2, 0, 0).marking(1)]);
    }
}

/// Reports are taken up at any time, also while a table is built that does not hold what they tell of.
#[test]
fn reports_may_be_taken_at_any_time() {
    safe(size(1, 2, 0, 1).draining(2), Fault::None);
    safe(size(1, 2, 1, 1).draining(1), Fault::None);
    safe(size(1, 2, 0, 0).draining(2).failing(1), Fault::None);
    safe(size(1, 2, 0, 0).draining(1).marking(1), Fault::None);
    safe(size(2, 1, 0, 0).draining(2), Fault::None);
    breaks_at(Fault::ReportCountsAsBuilt, &[size(1, 2, 0, 0).draining(1)]);
}

/// Whoever forgets idle flows leaves their pending entries alone: a packet may be about to rely on
/// one. Settle removes them, or the removal of their backend does.
#[test]
fn forgetting_a_flow_must_not_touch_the_pending_table() {
    breaks(Fault::SweepDeletesPending);
}

/// What the proof assumes of the network: the packets of one flow that has not been answered yet
/// are decided one after the other (receive-side scaling keeps a flow on one CPU).
#[test]
fn a_first_syn_and_its_copy_must_not_be_decided_at_once() {
    breaks(Fault::OverlappingFirstSyn);
}

/// Slack in the protocol, and a stricter rule that it does not need. What the pending table is not
/// asked the reports tell a round later. Should one of these begin to matter, this test says so.
#[test]
fn what_is_left_out_without_harm() {
    for fault in [
        Fault::NoThirdGrace,
        Fault::TwoStores,
        Fault::IgnoreStalePins,
        Fault::NoPendingCollect,
        Fault::ReportBeforeNote,
    ] {
        safe(size(1, 2, 1, 1), fault);
        safe(size(2, 1, 0, 0), fault);
    }
}

/// The whole driver, on the plane and services of the model, does in each action what the model does in steps.
/// Where the model leaves something out, they differ.
#[test]
fn the_driver_ends_each_action_as_the_model_does() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed::seed());
    let mut performed = Performed::new();
    for size in [
        size(1, 3, 0, 1),
        size(1, 3, 1, 1).failing(2),
        size(2, 3, 0, 1),
        size(2, 3, 1, 1).failing(3).marking(1).draining(2),
    ] {
        for _ in 0..500 {
            walk(&rules(size, Fault::None), &mut rng, &mut performed).unwrap();
        }
    }
    println!("{performed:?}");
    // Eight: flags are set, and cleared one after the other.
    assert!(performed.len() == 8 && performed.values().flatten().all(|times| *times > 20));

    let size = size(2, 3, 0, 1).failing(3);
    for fault in [
        Fault::SettleAll,
        Fault::NoReports,
        Fault::NoCollect,
        Fault::NoPins,
        Fault::NeverUnpin,
        Fault::UnpinBeforePublish,
        Fault::PublishWithoutPending,
        Fault::RetireForDraft,
        Fault::KeepPinsOfDraft,
        Fault::FailureClearsFlags,
        Fault::FailureForgetsCollected,
        Fault::OneTry,
    ] {
        let rules = rules(size, fault);
        let differ = (0..10_000).find_map(|_| walk(&rules, &mut rng, &mut performed).err());
        println!("{fault:?}: {}", differ.expect("the driver does what the model leaves out"));
    }
}
