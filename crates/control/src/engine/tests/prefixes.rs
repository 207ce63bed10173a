//! No source prefix takes all states of a service, and what it may have is counted without fault.

use super::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Connections that a service may have.
const STATES: u32 = 5_000;
/// Those that a prefix may have.
const OF_PREFIX: u32 = 1_000;

fn world(fields: &str, of_prefix: u32) -> World {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut config = config_with(&directory, 1, fields);
    config.limits.states_per_service = STATES;
    config.limits.half_open_flows = STATES;
    config.limits.states_per_prefix = of_prefix;
    let plane = Soft::new(SoftMemory::new(100_000, 1 << 14, 64));
    let engine = over(plane, Found::default(), &config).unwrap_or_else(|error| panic!("{error}"));
    World { engine, live: HashMap::new(), directory }
}

/// The nth connection of 198.18.7.0/24.
fn crowd(n: u32) -> FlowKey {
    let from = ([198, 18, 7, n as u8], 1_000 + (n >> 8) as u16);
    FlowKey::new(from.into(), ([10, 0, 0, 1], 80).into(), Protocol::Tcp)
}

impl World {
    fn syn(&mut self, flow: FlowKey) -> BackendId {
        let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
        match self.engine.plane.process(&frame) {
            Outcome::Forwarded(backend) => backend,
            other => panic!("{flow}: {other:?}"),
        }
    }

    /// Connections that open, and are seen to be.
    fn connections(&mut self, flows: impl Iterator<Item = FlowKey>) {
        for flow in flows {
            let backend = self.syn(flow);
            let frame = Frame::new(flow).tcp_flags(TcpFlags::ACK).build();
            assert_eq!(self.engine.plane.process(&frame), Outcome::Forwarded(backend));
            self.live.insert(flow, backend);
        }
        self.engine.drain_reports().expect("nothing is refused");
        self.engine.sweep().expect("nothing is refused");
        (0..3).for_each(|_| self.engine.look_at_half_open().expect("nothing is refused"));
    }

    fn known(&self, flows: impl Iterator<Item = FlowKey>) -> u32 {
        let service = &self.engine.services["a"];
        let known = flows.filter(|flow| service.known(&StateKey::of_flow(flow)).is_some());
        known.count() as u32
    }

    fn refused_of_prefix(&self) -> u64 {
        let service = &self.engine.status().expect("readable").services[0];
        assert_eq!(service.refused_states, 0);
        service.refused_of_prefix
    }
}

#[test]
fn a_prefix_takes_no_more_than_its_share() {
    for method in ["concury", "residue"] {
        let mut world = world(&format!("method = \"{method}\""), OF_PREFIX);
        world.connections((0..OF_PREFIX).map(crowd));
        assert_eq!((world.refused_of_prefix(), world.warnings()), (0, Vec::new()));
        // Those beyond go where the table sends them, as packets of anybody do whom nobody knows.
        let remembered = world.live.clone();
        for round in 0..6 {
            let first = OF_PREFIX + round * 1_000;
            world.connections((first..first + 1_000).map(crowd));
        }
        assert_eq!(world.refused_of_prefix(), 6_000);
        assert_eq!(world.known((0..7_000).map(crowd)), OF_PREFIX);
        let said = world.warnings().concat();
        let words = "6000 connections began beyond limits.states_per_prefix, the last of them from \
                     198.18.7.0/24, of which 1000 are remembered";
        assert!(said.contains(words), "{said}");
        // Nobody else notices: all there is room for are remembered.
        world.live = remembered;
        world.connections((0..STATES - OF_PREFIX).map(|client| flow(0, client)));
        assert_eq!(world.known((0..STATES - OF_PREFIX).map(|n| flow(0, n))), STATES - OF_PREFIX);
        assert_eq!(world.refused_of_prefix(), 6_000);
        for (backend, drain) in [("b1", true), ("b2", true), ("b1", false)] {
            let (a, backend) = ("a".to_owned(), backend.to_owned());
            world.ask(|reply| Command::Drain(a, backend, drain, reply)).expect("done");
            world.check();
        }
        // A place that becomes free is taken.
        let end = Frame::new(crowd(5)).tcp_flags(TcpFlags::RST).build();
        world.engine.plane.process(&end);
        world.live.remove(&crowd(5));
        world.engine.drain_reports().expect("nothing is refused");
        world.engine.sweep().expect("nothing is refused");
        world.engine.ahead += 61;
        world.engine.sweep().expect("nothing is refused");
        world.check_counters();
        assert_eq!(world.known([crowd(5)].into_iter()), 0);
        (9_000..9_002).for_each(|n| world.connections([crowd(n)].into_iter()));
        assert_eq!(world.known((9_000..9_002).map(crowd)), 1);
    }
}

/// A table that grows leads those whom nobody remembers to where the one before led them, as long as it has the same
/// hash key.
#[test]
fn growth_moves_nobody_who_is_beyond_a_limit() {
    const OF_THIS: u32 = 300;
    const BEYOND: u32 = 2_000;
    let mut grown = 0;
    for _ in 0..20 {
        let mut world = world("", OF_THIS);
        world.connections((0..OF_THIS).map(crowd));
        // So many that one that closes a cycle makes the table larger.
        world.connections((0..1_000).map(|n| flow(0, n)));
        world.engine.update("a").expect("nothing is refused");
        let remembered = world.live.clone();
        world.connections((OF_THIS..OF_THIS + BEYOND).map(crowd));
        assert_eq!(world.refused_of_prefix(), u64::from(BEYOND));
        let mut beyond = std::mem::replace(&mut world.live, remembered);
        beyond.retain(|flow, _| !world.live.contains_key(flow));
        assert_eq!(beyond.len(), BEYOND as usize);
        let table = |world: &World| {
            let published = world.engine.services["a"].builder.published();
            let image = published.expect("there is one");
            (image.header().key, image.elements())
        };
        let mut before = table(&world);
        for first in (1_000..4_000).step_by(500) {
            world.connections((first..first + 500).map(|n| flow(0, n)));
            world.engine.update("a").expect("nothing is refused");
            world.check();
            let after = table(&world);
            if after.0 != before.0 {
                break;
            }
            for (flow, backend) in &beyond {
                let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
                let went = world.engine.plane.process(&frame);
                assert_eq!(went, Outcome::Forwarded(*backend), "{flow}");
            }
            grown += u32::from(after.1 > before.1);
            before = after;
        }
        if grown >= 3 {
            break;
        }
    }
    assert!(grown >= 3, "{grown}");
}

/// What the status says of connections that nobody remembers goes when those of their age have ended, and comes
/// with the next ones.
#[test]
fn a_warning_goes_with_its_cause() {
    let mut world = world("", OF_PREFIX);
    let all = OF_PREFIX + 500;
    // Those that are there are open, and no half-open ones make room.
    world.connections((0..OF_PREFIX).map(crowd));
    world.connections((OF_PREFIX..all).map(crowd));
    for _ in 0..2 {
        let said = world.warnings().concat();
        assert!(said.contains("500 connections began beyond limits.states_per_prefix"), "{said}");
        world.engine.sweep().expect("nothing is refused");
    }
    for n in 0..all {
        let end = Frame::new(crowd(n)).tcp_flags(TcpFlags::RST).build();
        world.engine.plane.process(&end);
    }
    world.live.clear();
    world.engine.drain_reports().expect("nothing is refused");
    world.engine.sweep().expect("nothing is refused");
    for _ in 0..3 {
        world.engine.ahead += 61;
        world.engine.sweep().expect("nothing is refused");
    }
    assert_eq!(world.known((0..all).map(crowd)), 0);
    assert_eq!((world.warnings(), world.refused_of_prefix()), (Vec::new(), 500));
    let first = 10_000;
    world.connections((first..first + OF_PREFIX).map(crowd));
    world.connections((first + OF_PREFIX..first + OF_PREFIX + 7).map(crowd));
    let said = world.warnings().concat();
    assert!(said.contains(" 7 connections began beyond limits.states_per_prefix"), "{said}");
}

/// An IPv6 prefix is a /56, and UDP flows count as connections do.
#[test]
fn prefixes_are_of_both_families_and_protocols() {
    let key = |address: &str| {
        let address = weir_wire::map_address(address.parse().expect("an address"));
        StateKey { address, src_port: 1, dst_port: 2 }
    };
    use crate::engine::prefixes::{name_of, number_of};
    for (one, other, name, same) in [
        ("192.0.2.1", "192.0.2.255", "192.0.2.0/24", true),
        ("192.0.2.1", "192.0.3.1", "192.0.2.0/24", false),
        ("2001:db8:0:1201::1", "2001:db8:0:12ff::2", "2001:db8:0:1200::/56", true),
        ("2001:db8:0:1201::1", "2001:db8:0:1301::1", "2001:db8:0:1200::/56", false),
        ("::1", "0.0.0.1", "::/56", false),
    ] {
        let (one, other) = (key(one), key(other));
        assert_eq!(name_of(&one), name);
        assert_eq!(number_of(&one) == number_of(&other), same, "{name}");
    }
    let mut world = world("protocol = \"udp\"\n[service.check]\nenabled = false", 100);
    for n in 0..300 {
        let flow = FlowKey { protocol: Protocol::Udp, ..crowd(n) };
        let frame = Frame::new(flow).build();
        assert!(matches!(world.engine.plane.process(&frame), Outcome::Forwarded(_)));
    }
    world.engine.drain_reports().expect("nothing is refused");
    let service = &world.engine.status().expect("readable").services[0];
    assert_eq!((service.states, service.refused_of_prefix), (100, 200));
    world.check_counters();
}

/// SYNs can be sent in anybody's name.
#[test]
fn syns_in_the_name_of_a_prefix_take_nothing_from_its_connections() {
    let mut world = world("", OF_PREFIX);
    let (mut syns, mut connected) = (0, 0);
    for _ in 0..20 {
        for _ in 0..600 {
            syns += 1;
            world.syn(crowd(100_000 + syns));
        }
        world.engine.drain_reports().expect("nothing is refused");
        world.connections((connected..connected + 45).map(crowd));
        connected += 45;
    }
    assert_eq!(world.refused_of_prefix(), 0);
    assert_eq!(world.known((0..connected).map(crowd)), connected);
    world.drain("a", "b1").expect("nothing is refused");
    for (flow, backend) in &world.live {
        let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
        assert_eq!(world.engine.plane.process(&frame), Outcome::Forwarded(*backend), "{flow}");
    }
    world.check_counters();
}

#[test]
fn the_share_changes_by_a_reload() {
    let mut world = world("", 0);
    world.connections((0..3_000).map(crowd));
    assert_eq!(world.known((0..3_000).map(crowd)), 3_000);
    assert!(world.engine.services["a"].builder.counted().is_none());
    let mut wanted = world.engine.config.clone();
    wanted.limits.states_per_prefix = OF_PREFIX;
    world.follow(&wanted).expect("fine");
    world.engine.fit(&wanted);
    // Those that are there stay.
    world.connections((3_000..3_100).map(crowd));
    assert_eq!((world.known((0..3_100).map(crowd)), world.refused_of_prefix()), (3_000, 100));
    world.live.retain(|flow, _| (0..3_000).any(|n| crowd(n) == *flow));
    world.drain("a", "b3").expect("nothing is refused");
    world.check();
    wanted.limits.states_per_prefix = 0;
    world.engine.fit(&wanted);
    world.connections((3_100..3_200).map(crowd));
    assert_eq!((world.known((0..3_200).map(crowd)), world.refused_of_prefix()), (3_100, 100));
}

/// More connections than a limit has room for from now on: it stays, with those that go with it, and all that are
/// remembered, and those that come, stay where they are. A plan says so, and the answer.
#[test]
fn fewer_states_than_there_are_wait_for_room() {
    let mut world = world("", STATES / 4);
    world.connections((0..1_000).map(crowd));
    let mut wanted = world.engine.config.clone();
    wanted.limits.states_per_service = 100;
    wanted.limits.half_open_flows = 100;
    wanted.limits.states_per_prefix = 25;
    let from = crate::config::Source::text("weir.toml", "[limits]\nstates_per_service = 100\n");
    let plan = |world: &World| world.engine.plan_to(&wanted, &from).expect("it can be followed");
    let stays = plan(&world).limits_stay.expect("a thousand are remembered");
    let words = "weir.toml:2: limits: states_per_service: 100 is less than the 1000 connections";
    assert!(stays.starts_with(words) && stays.ends_with("it stays 5000"), "{stays}");
    let said = world.engine.reload_as(wanted.clone(), false).expect("all but this");
    assert!(said.contains("it stays 5000, and the next reload or start"), "{said}");
    assert!(world.engine.is_of_limits_that_stay(&plan(&world)));
    world.connections((1_000..1_200).map(crowd));
    world.engine.look_at_unrecorded();
    let mut world = world.restart();
    assert!(world.warnings().concat().contains("it stays 5000"), "{:?}", world.warnings());
    world.connections((1_200..1_240).map(crowd));
    assert_eq!(world.known((0..1_240).map(crowd)), 1_240);
    assert_eq!(world.refused_of_prefix(), 0);
    world.drain("a", "b1").expect("nothing is refused");
    world.check();
    // When there is room, it is followed.
    for n in 0..1_240 {
        world.engine.plane.process(&Frame::new(crowd(n)).tcp_flags(TcpFlags::RST).build());
    }
    world.live.clear();
    world.engine.drain_reports().expect("nothing is refused");
    for _ in 0..4 {
        world.engine.sweep().expect("nothing is refused");
        world.engine.ahead += 61;
    }
    let said = world.engine.reload_as(wanted.clone(), false).expect("there is room");
    assert!(!said.contains("it stays"), "{said}");
    assert_eq!((plan(&world).changes, world.warnings()), (false, Vec::new()));
    // A limit of its own is followed at once, and what that means is said.
    world.connections((2_000..2_020).map(crowd));
    let mut fewer = wanted.clone();
    fewer.limits.states_per_prefix = 10;
    let words = "service \"a\" has 20 connections of one source prefix, and 10 is less";
    let planned = world.engine.plan_to(&fewer, &from).expect("it can be followed");
    assert!(planned.warnings.concat().contains(words), "{:?}", planned.warnings);
    let said = world.engine.reload_as(fewer, false).expect("it is followed");
    assert!(said.contains(words), "{said}");
}

/// Connections that are not remembered are told of by whatever changes the pool, and after a restart.
#[test]
fn those_that_are_not_remembered_outlive_a_restart() {
    let mut world = world("", OF_PREFIX);
    world.connections((0..OF_PREFIX).map(crowd));
    world.connections((OF_PREFIX..OF_PREFIX + 500).map(crowd));
    // The ends of these are seen.
    for n in OF_PREFIX..OF_PREFIX + 100 {
        world.engine.plane.process(&Frame::new(crowd(n)).tcp_flags(TcpFlags::RST).build());
    }
    world.live.retain(|flow, _| (0..OF_PREFIX).any(|n| crowd(n) == *flow));
    world.engine.drain_reports().expect("nothing is refused");
    world.engine.look_at_unrecorded();
    for weight in [7, 8] {
        let said = world.warnings().concat();
        let words = "400 connections began beyond limits.states_per_prefix, the last of them from 198.18.7.0/24";
        assert!(said.contains(words) && said.contains(" remembered (the first at 2"), "{said}");
        let weigh = |reply| Command::Weight("a".into(), "b2".into(), weight, reply);
        let said = world.ask(weigh).expect("weighed");
        assert!(
            said.ends_with(
                ", and some of 400 that began beyond a limit, and are not remembered, may break"
            ),
            "{said}"
        );
        world = world.restart();
    }
}

/// Whatever happens to states, and fails on the way: each is counted once.
#[test]
fn counters_are_right_after_any_history() {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World::new(1);
    let (mut next, mut added) = (0, 0u8);
    for round in 0..400 {
        match rng.random_range(0..10) {
            0..4 => {
                let more = rng.random_range(1..60);
                world.start(0, next..next + more);
                next += more;
            }
            4 => {
                let flags = if rng.random() { TcpFlags::RST } else { TcpFlags::SYN };
                for _ in 0..20 {
                    let flow = flow(0, rng.random_range(0..next.max(1)));
                    world.engine.plane.process(&Frame::new(flow).tcp_flags(flags).build());
                }
            }
            5 => {
                world.engine.ahead += rng.random_range(1..80);
                world.engine.sweep().expect("nothing is refused");
            }
            6 => {
                // With it go its connections; or they come back, if it cannot be done.
                added += 1;
                let address = Ipv4Addr::new(10, 8, 0, added).into();
                let (a, name) = ("a".to_owned(), format!("n{added}"));
                let one = Backend { name, address, weight: 3, ..backend(0, 1) };
                let _ = world.ask(|reply| Command::Add(a, Box::new(one), reply));
            }
            7 if added > 0 => {
                if rng.random() {
                    world.engine.plane.refuse(Operation::Show);
                }
                let (a, name) = ("a".to_owned(), format!("n{}", rng.random_range(1..=added)));
                let _ = world.ask(|reply| Command::Remove(a, name, reply));
                world.engine.plane.refuse_nothing();
                world.upkeep();
            }
            8 => {
                let method = ["concury", "residue", "tracked"][rng.random_range(0..3)];
                let fields = format!("method = \"{method}\"");
                let mut wanted = config_with(&world.directory, 1, &fields);
                wanted.services[0].backends = world.backends();
                let _ = world.follow(&wanted);
            }
            9 if round % 4 == 0 => world = world.restart(),
            _ => drop(world.engine.drain_reports()),
        }
        world.check_counters();
    }
}

impl World {
    /// The pool, as it is.
    fn backends(&self) -> Vec<Backend> {
        self.engine.services["a"].pool.iter().map(|member| member.wanted.clone()).collect()
    }
}
