//! HNLB under churn, over an *emulated* card that does everything wrong that a card may: rules come late, are
//! lost, refused, dropped by the card, pretended; answers do not come; the table is full; connections begin from
//! the ports of others that have ended; backends drain, go, and give their numbers to others; the software
//! forgets who is silent. No connection may break, with any method that keeps connections.
//!
//! `WEIR_SEED=n` repeats a run, `WEIR_PACKETS=n` sets its length.

#[path = "hybrid/tables.rs"]
mod tables;
#[path = "hybrid/world.rs"]
mod world;

use weir_offload::Choice;
use weir_offload::emulated::{Delay, Profile};
use weir_steering::MethodId;
use weir_wire::TcpFlags;
use world::World;

fn from_environment(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("{name}={value}");
    value
}

/// The methods that rules are given beside, and that keep connections.
const METHODS: [MethodId; 4] =
    [MethodId::Concury, MethodId::Tracked, MethodId::Jet, MethodId::Residue];

const RULES: usize = 24;
const QUEUES: u16 = 12;

fn churn(profile: Profile, choice: Choice, methods: &[MethodId], seed: u64) -> World {
    let packets = from_environment("WEIR_PACKETS", 400_000);
    let mut world = World::new(profile, choice, methods, seed);
    while world.sent < packets {
        world.step();
    }
    let (counts, shares) = (world.hybrid.counts(), world.hybrid.shares());
    let statistics = world.hybrid.offload().card().statistics();
    println!("emulated, {choice:?}: {:?}\n{shares:?}\n{counts:?}\n{statistics:?}", world.tally);
    assert_eq!(world.tally.broken, 0, "seed {seed}: {:?}", world.examples);
    assert!(world.tally.checked > packets / 2, "{:?}", world.tally);
    assert!(world.tally.changes > 20 && world.tally.reused > 100, "{:?}", world.tally);
    assert!(world.tally.forgotten > 3, "{:?}", world.tally);
    world
}

const HEAVY: Choice = Choice::Heavy { width: 1024, least: 8 };

#[test]
fn nothing_breaks_over_a_hostile_card() {
    let seed = from_environment("WEIR_SEED", 14);
    for choice in [Choice::All, HEAVY, Choice::Sampled { one_in: 4, least: 2, flows: 200 }] {
        let mut world = churn(Profile::hostile(RULES, QUEUES), choice, &METHODS, seed);
        let (counts, shares) = (world.hybrid.counts(), world.hybrid.shares());
        let statistics = world.hybrid.offload().card().statistics();
        // All of it has happened.
        assert!(shares.led > 1_000 && shares.steered_apart > 100, "{shares:?}");
        assert!(counts.full > 100 && counts.doubted > 10 && counts.again > 10, "{counts:?}");
        let all = [
            statistics.lost,
            statistics.late,
            statistics.unanswered,
            statistics.pretended,
            statistics.refused,
            statistics.dropped,
        ];
        assert!(all.iter().all(|count| *count > 5), "{statistics:?}");
    }
}

/// A card that does what it is told leads most packets, and none elsewhere.
#[test]
fn a_sound_card_leads_most_packets() {
    let seed = from_environment("WEIR_SEED", 15);
    let mut world = churn(Profile::sound(1_000, 60), Choice::All, &METHODS, seed);
    let shares = world.hybrid.shares();
    let all = shares.led + shares.steered + shares.steered_apart;
    assert!(shares.led * 2 > all, "{shares:?}");
    let statistics = world.hybrid.offload().card().statistics();
    assert!(statistics.hits >= shares.led, "{statistics:?}");
}

/// Commands that take seconds: rules come when their connections are long gone, and others have their ports.
#[test]
fn rules_that_come_seconds_late_break_nothing() {
    let seed = from_environment("WEIR_SEED", 16);
    let slow = Delay::Exponential {
        least: std::time::Duration::from_millis(100),
        mean: std::time::Duration::from_secs(2),
    };
    let profile = Profile { delay: slow, ..Profile::hostile(200, QUEUES) };
    churn(profile, Choice::All, &METHODS, seed);
}

/// Connections of methods that write into packets, or keep none, get no rules: their packets all come to the
/// software.
#[test]
fn methods_that_need_every_packet_get_no_rules() {
    let mut world = World::new(
        Profile::sound(100, QUEUES),
        Choice::All,
        &[MethodId::Cheetah, MethodId::CheetahStateful],
        17,
    );
    while world.sent < 5_000 {
        world.step();
    }
    assert_eq!((world.hybrid.counts().asked, world.hybrid.shares().led), (0, 0));
}

/// With client affinity a connection that begins while its client's backend is down takes all of the client's with it,
/// those that rules lead, too.
#[test]
fn connections_of_a_client_move_together_whatever_rules_lead_them() {
    let seed = from_environment("WEIR_SEED", 18);
    let mut world = World::of_clients(Profile::sound(1_000, 60), &METHODS, seed);
    for (service, method) in METHODS.into_iter().enumerate() {
        let mut moved = 0;
        for client in 0..7 {
            let (old, later) = ([client, client + 7], client + 14);
            let home = world.goes(service, client, TcpFlags::SYN);
            assert_eq!(world.goes(service, client + 7, TcpFlags::SYN), home, "{method}");
            old.iter().for_each(|port| world.comes_to_be_led(service, *port, home));
            world.set_up(service, home, false);
            let led = world.hybrid.shares().led;
            for port in old {
                assert_eq!(world.goes(service, port, TcpFlags::ACK), home, "{method}");
            }
            if method == MethodId::Tracked {
                assert!(world.hybrid.shares().led > led, "their rules are there still");
            }
            let now = world.goes(service, later, TcpFlags::SYN);
            for port in old.into_iter().chain([later]) {
                for _ in 0..3 {
                    let went = world.goes(service, port, TcpFlags::ACK);
                    assert_eq!(went, now, "{method}: port {port} of client {client}");
                }
            }
            moved += u32::from(now != home);
            world.set_up(service, home, true);
        }
        assert!(moved > 0, "{method}: nobody has moved");
    }
    assert!(world.hybrid.counts().doubted > 0, "{:?}", world.hybrid.counts());
}
