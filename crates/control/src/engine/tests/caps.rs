//! How many new flows services take, over a plane that is only memory: as the file says, in place, and what a
//! plane refuses is told and tried again. And how many connections a prefix may hold, by those that live.

use super::*;
use weir_plane::{FlowCaps, Operation, Plane};
use weir_steering::update::Plane as _;
use weir_wire::Reason;

fn caps(world: &World) -> Option<FlowCaps> {
    let number = world.engine.services["a"].number;
    Plane::flow_caps(&world.engine.plane, number)
}

fn fields(rates: &str) -> String {
    if rates.is_empty() { String::new() } else { format!("new_flows = {{ {rates} }}") }
}

fn reload(world: &mut World, rates: &str) {
    let wanted = config_with(&world.directory, 1, &fields(rates));
    world.follow(&wanted).unwrap_or_else(|error| panic!("{rates}: {error}"));
}

/// A SYN of a client.
fn begin(world: &mut World, client: u32) -> Outcome {
    let frame = Frame::new(flow(0, client)).tcp_flags(TcpFlags::SYN).build();
    world.engine.plane.process(&frame)
}

#[test]
fn rates_change_in_place_and_their_keys_stay() {
    let mut world = World::with(1, "");
    assert_eq!(caps(&world), None);
    world.start(0, 0..20);
    reload(&mut world, "per_second = 1, burst = 3, source_per_second = 1, source_burst = 2");
    let first = caps(&world).expect("it has rates");
    let tables = world.engine.services["a"].generation;
    // Each client is a host; two of one, and one more of anybody.
    let taken = |outcome| matches!(outcome, Outcome::Forwarded(_));
    assert!(taken(begin(&mut world, 30)) && taken(begin(&mut world, 30)));
    assert_eq!(begin(&mut world, 30), Outcome::Dropped(Reason::SourceFlowCap));
    assert!(taken(begin(&mut world, 31)));
    assert_eq!(begin(&mut world, 32), Outcome::Dropped(Reason::NewFlowCap));
    let status = world.engine.status().expect("it can be told");
    let told = status.services[0].new_flows.expect("it has rates");
    assert!(told.in_force);
    assert_eq!((told.capped, told.capped_of_source), (1, 1));

    // `weir explain` knows it, and takes nothing.
    let explain = |world: &World, client| {
        let said = world.engine.explain(&flow(0, client), None).expect("it can be told");
        said.new_flows.expect("it has rates")
    };
    for _ in 0..2 {
        let said = explain(&world, 30);
        assert_eq!(said, "dropped as source_flow_cap, as its /32 has begun as many as it takes");
        let said = explain(&world, 31);
        assert_eq!(said, "dropped as new_flow_cap, as all sources have begun as many as it takes");
    }
    world.engine.plane.nanoseconds += 1_000_000_000;
    assert_eq!(explain(&world, 30), "taken: at once 1 more of its /32, and 1 more of all sources");
    assert_eq!(explain(&world, 33), "taken: at once 2 more of its /32, and 1 more of all sources");
    world.engine.plane.nanoseconds -= 1_000_000_000;

    // What was taken counts: the service's bucket is empty, and no table was built.
    reload(&mut world, "per_second = 1, burst = 1");
    let second = caps(&world).expect("it has rates");
    assert_eq!((second.key, second.source), (first.key, None));
    assert_eq!(begin(&mut world, 33), Outcome::Dropped(Reason::NewFlowCap));
    assert_eq!(world.engine.services["a"].generation, tables);
    reload(&mut world, "");
    assert_eq!(caps(&world), None);
    world.start(0, 40..60);
    world.check();
}

#[test]
fn rates_that_a_plane_refuses_are_told_and_set_later() {
    let mut world = World::with(1, "");
    world.engine.plane.refuse(Operation::SetFlowCaps);
    let wanted = config_with(&world.directory, 1, &fields("per_second = 1"));
    let _ = world.follow(&wanted);
    let status = world.engine.status().expect("it can be told");
    assert!(!status.services[0].new_flows.expect("it is to have rates").in_force);
    assert!(
        status.warnings.iter().any(|warning| warning.contains("refused on demand")),
        "{:?}",
        status.warnings
    );
    world.engine.plane.refuse_nothing();
    world.upkeep_later();
    let status = world.engine.status().expect("it can be told");
    assert!(status.services[0].new_flows.expect("it has rates").in_force);
    assert!(status.warnings.is_empty(), "{:?}", status.warnings);
}

/// The nth connection of 10.16.PREFIX.0/24.
fn of_prefix(prefix: u8, n: u16) -> FlowKey {
    let from = ([10, 16, prefix, n as u8], 4000 + n);
    FlowKey::new(from.into(), ([10, 0, 0, 1], 80).into(), Protocol::Tcp)
}

fn limit(most: u32) -> String {
    fields(&format!("source_connections = {most}, ipv4_prefix = 24"))
}

impl World {
    fn segment(&mut self, flow: FlowKey, flags: TcpFlags) -> Outcome {
        let frame = Frame::new(flow).tcp_flags(flags).build();
        self.engine.plane.process(&frame)
    }

    fn begins(&mut self, flow: FlowKey) -> bool {
        match self.segment(flow, TcpFlags::SYN) {
            Outcome::Forwarded(_) => true,
            Outcome::Dropped(Reason::SourceConnectionCap) => false,
            other => panic!("{flow}: {other:?}"),
        }
    }

    fn goes_on(&mut self, flow: FlowKey, flags: TcpFlags) {
        let went = self.segment(flow, flags);
        assert!(matches!(went, Outcome::Forwarded(_)), "{flow}: {went:?}");
        self.engine.drain_reports().expect("nothing is refused");
    }

    /// What has been said is looked at, some seconds later.
    fn sweep_after(&mut self, seconds: u32) {
        self.engine.ahead += seconds;
        self.engine.sweep().expect("nothing is refused");
    }
}

const END: TcpFlags = TcpFlags::FIN;

#[test]
fn a_prefix_holds_no_more_connections_than_it_may() {
    for method in ["concury", "residue"] {
        let mut world = World::with(1, &format!("method = \"{method}\"\n{}", limit(3)));
        let own = |n| of_prefix(7, n);
        for n in 0..3 {
            assert!(world.begins(own(n)), "{method}: {n}");
        }
        assert!(!world.begins(own(3)));
        assert!(world.begins(own(0)), "its SYN is sent again");
        assert!(world.begins(of_prefix(8, 0)), "another prefix");
        for n in 0..3 {
            world.goes_on(own(n), TcpFlags::ACK);
        }
        // By what packets have counted, and by what is known.
        for _ in 0..3 {
            world.sweep_after(10);
            assert!(!world.begins(own(3)), "{method}");
            assert!(world.begins(own(0)), "its SYN is sent again");
        }
        let said = world.engine.explain(&own(9), None).expect("it can be told").new_flows;
        let wanted =
            "dropped as source_connection_cap, as its /24 holds as many connections as it may";
        assert_eq!(said.as_deref(), Some(wanted));
        let said = world.engine.explain(&of_prefix(9, 0), None).expect("it can be told").new_flows;
        assert_eq!(said.as_deref(), Some("taken; its /24 may hold 3 connections more"));

        // Whoever ends one may begin another, at once.
        world.goes_on(own(0), END | TcpFlags::ACK);
        assert!(world.begins(own(4)));
        assert!(!world.begins(own(5)));
        world.goes_on(own(4), TcpFlags::ACK);
        world.sweep_after(10);
        assert!(!world.begins(own(5)), "{method}");

        // And who goes on after that has nothing of it, once that was seen.
        world.goes_on(own(1), END | TcpFlags::ACK);
        world.sweep_after(10);
        world.goes_on(own(1), TcpFlags::ACK);
        world.sweep_after(10);
        assert!(!world.begins(own(5)), "{method}");
        world.sweep_after(10);
        assert!(world.begins(own(5)), "{method}: it is silent now");

        let status = world.engine.status().expect("it can be told");
        let told = status.services[0].new_flows.expect("it has a limit");
        assert!(told.in_force);
        assert_eq!((told.source_connections, told.capped, told.capped_of_source), (Some(3), 0, 0));
        assert_eq!(told.capped_connections, 1 + 3 + 1 + 1 + 1, "{method}");
    }
}

/// SYNs in the name of a prefix keep it from others for as long as a handshake takes, and no longer.
#[test]
fn half_open_connections_count_while_they_may_open() {
    let mut world = World::with(1, &limit(3));
    for n in 0..3 {
        assert!(world.begins(of_prefix(7, n)));
    }
    (0..3).for_each(|_| world.sweep_after(10));
    assert!(!world.begins(of_prefix(7, 3)));
    // The first sweep has found what their SYNs left; from there on it is a handshake's time, and a sweep.
    (0..6).for_each(|_| world.sweep_after(10));
    for n in 3..6 {
        assert!(world.begins(of_prefix(7, n)));
    }
    assert!(!world.begins(of_prefix(7, 6)));
}

/// A limit holds for connections that were there before it, and for those that an earlier process has left.
#[test]
fn a_limit_counts_the_connections_that_there_are() {
    let mut world = World::with(1, "");
    for n in 0..5 {
        assert!(world.begins(of_prefix(7, n)));
        world.goes_on(of_prefix(7, n), TcpFlags::ACK);
    }
    for (most, more) in [(3, 0), (5, 0), (6, 1), (8, 2)] {
        let wanted = config_with(&world.directory, 1, &limit(most));
        world.follow(&wanted).unwrap_or_else(|error| panic!("{most}: {error}"));
        world.engine.fit(&wanted);
        let begun =
            (0..4).filter(|n| world.begins(of_prefix(7, 100 + most as u16 * 4 + n))).count();
        assert_eq!(begun, more, "of {most}");
    }
    // Nobody counts: the control plane is gone.
    world.engine.plane.nanoseconds += 40_000_000_000;
    assert!(world.begins(of_prefix(7, 200)));
}

/// What begins while connections are counted is not forgotten, nor is it refused by what it counted before.
#[test]
fn what_packets_count_during_a_count_stays() {
    let mut world = World::with(1, &limit(4));
    assert!(world.begins(of_prefix(7, 0)));
    for n in 1..4 {
        let before = Plane::held(&world.engine.plane).expect("readable");
        assert!(world.begins(of_prefix(7, n)));
        world.engine.plane.grace().expect("nothing is refused");
        let counted = before.clone();
        let lasts = Duration::from_secs(30);
        Plane::correct_held(&mut world.engine.plane, &before, &counted, lasts).expect("it may");
    }
    assert!(!world.begins(of_prefix(7, 4)));
}

/// A count that is refused lets nobody in and keeps nobody out, and the next one sets right what it has missed; if none
/// comes for long, nobody is refused by what is not true any more.
#[test]
fn a_count_that_is_refused_is_made_up_for() {
    for operation in [Operation::ReadHeld, Operation::CorrectHeld] {
        let mut world = World::with(1, &limit(3));
        let own = |n| of_prefix(7, n);
        for n in 0..3 {
            assert!(world.begins(own(n)));
            world.goes_on(own(n), TcpFlags::ACK);
        }
        world.sweep_after(10);
        let asked = world.engine.plane.asked(operation);
        assert!(asked > 0, "{operation:?}");
        world.engine.plane.refuse_after(operation, 0, 2);
        for _ in 0..2 {
            world.engine.ahead += 10;
            let refused = world.engine.sweep().expect_err("it is refused").to_string();
            assert!(refused.contains(&format!("{operation:?}")), "{refused}");
            assert!(!world.begins(own(3)), "{operation:?}");
            assert!(world.begins(own(0)), "{operation:?}: its SYN is sent again");
            world.goes_on(own(1), TcpFlags::ACK);
        }
        // Nothing stands as if a count were going on: whoever ends one may begin another, at once.
        world.goes_on(own(0), END | TcpFlags::ACK);
        assert!(world.begins(own(4)) && !world.begins(own(5)), "{operation:?}");
        world.goes_on(own(4), TcpFlags::ACK);
        world.sweep_after(10);
        assert!(!world.begins(own(5)), "{operation:?}");
        assert_eq!(world.engine.plane.asked(operation), asked + 3);
        // For longer than a count is believed.
        world.engine.plane.refuse(operation);
        world.engine.plane.nanoseconds += 40_000_000_000;
        assert!(world.engine.sweep().is_err());
        assert!(world.begins(own(5)), "{operation:?}: nobody counts");
        world.engine.plane.refuse_nothing();
        world.sweep_after(10);
        assert!(!world.begins(own(6)), "{operation:?}: and now somebody does");
    }
}

/// Packets that cannot be told which connections have ended count them until the next sweep, and no longer.
#[test]
fn what_packets_are_not_told_of_ends_the_next_sweep_counts_out() {
    let mut world = World::with(1, &limit(3));
    let own = |n| of_prefix(7, n);
    for n in 0..3 {
        assert!(world.begins(own(n)));
        world.goes_on(own(n), TcpFlags::ACK);
    }
    world.sweep_after(10);
    world.engine.plane.refuse_after(Operation::ReleaseHeld, 0, 1);
    assert!(matches!(world.segment(own(0), END | TcpFlags::ACK), Outcome::Forwarded(_)));
    let refused = world.engine.drain_reports().expect_err("it is refused").to_string();
    assert!(refused.contains("ReleaseHeld"), "{refused}");
    assert!(!world.begins(own(3)), "they have not been told");
    // What else that report said is known all the same.
    let key = StateKey::of_flow(&own(0));
    let known = world.engine.services["a"].known(&key).expect("it has just ended");
    assert_eq!(known.phase, weir_steering::Phase::Closing);
    world.sweep_after(10);
    assert!(world.begins(own(3)) && !world.begins(own(4)));
    // A limit that changes counts anew, and a refusal keeps it from nothing else.
    for operation in [Operation::ReadHeld, Operation::CorrectHeld, Operation::ReleaseHeld] {
        world.engine.plane.refuse_after(operation, 0, 1);
        let wanted = config_with(&world.directory, 1, &limit(4));
        world.follow(&wanted).unwrap_or_else(|error| panic!("{operation:?}: {error}"));
        world.engine.fit(&wanted);
        world.engine.plane.refuse_nothing();
    }
    world.sweep_after(10);
    assert!(world.begins(own(5)) && !world.begins(own(6)));
}
