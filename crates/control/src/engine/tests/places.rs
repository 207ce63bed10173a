//! Addresses of services that come, go, and change hands, under connections of clients that use one port for
//! all of them.

use super::*;
use crate::config::{Ports, Service, Vip};
use crate::engine::places::pair;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::IpAddr;

/// What services may listen on, and hosts of each.
const VIPS: [(&str, &[&str]); 7] = [
    ("10.0.0.1", &["10.0.0.1"]),
    ("10.0.0.2", &["10.0.0.2"]),
    ("10.0.0.3", &["10.0.0.3"]),
    ("10.3.0.0/24", &["10.3.0.0", "10.3.0.9"]),
    ("10.4.0.0/20", &["10.4.0.1", "10.4.15.1"]),
    ("2001:db8::1", &["2001:db8::1"]),
    ("2001:db8:7::/64", &["2001:db8:7::1", "2001:db8:7::2"]),
];

/// The file with these addresses, by service.
fn with_addresses(config: &Config, of: &[Vec<usize>]) -> Config {
    let mut config = config.clone();
    for (service, vips) in config.services.iter_mut().zip(of) {
        let vips = vips.iter().map(|at| VIPS[*at].0.parse().expect("it is one"));
        service.vips = vips.collect::<Vec<Vip>>();
        service.vip = service.vips[0].address;
    }
    config
}

fn flow_to(host: &str, client: u16) -> FlowKey {
    let to: IpAddr = host.parse().expect("an address");
    let from = match to {
        IpAddr::V4(_) => format!("192.0.2.7:{}", 4000 + client),
        IpAddr::V6(_) => format!("[2001:db8:ff::7]:{}", 4000 + client),
    };
    FlowKey::new(from.parse().expect("an address"), (to, 80).into(), Protocol::Tcp)
}

/// Live connections, with the names of their services.
type Live = HashMap<FlowKey, (String, BackendId)>;

fn check(world: &mut World, live: &Live, when: &str) {
    for (flow, (name, backend)) in live {
        let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
        let went = world.engine.plane.process(&frame);
        assert_eq!(went, Outcome::Forwarded(*backend), "{when}: {flow} of {name}");
    }
}

/// All that is listened on is somebody's, and begins connections there.
fn start(world: &mut World, live: &mut Live, config: &Config, of: &[Vec<usize>], client: u16) {
    for (service, vips) in config.services.iter().zip(of) {
        for host in vips.iter().flat_map(|at| VIPS[*at].1) {
            let flow = flow_to(host, client);
            if live.contains_key(&flow) {
                continue;
            }
            let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
            match world.engine.plane.process(&frame) {
                Outcome::Forwarded(backend) => {
                    live.insert(flow, (service.name.clone(), backend));
                }
                other => panic!("{flow}: {other:?}"),
            }
        }
    }
}

/// Those of the services that go on, at addresses that stay with them.
fn outlive(live: &mut Live, before: &[Service], wanted: &Config) {
    let there: Vec<&Service> = before.iter().collect();
    let pairs = pair(&there, &wanted.services);
    live.retain(|flow, (name, _)| {
        let now = wanted
            .services
            .iter()
            .zip(&pairs)
            .find(|(_, was)| was.is_some_and(|was| there[was].name == *name));
        let takes = |service: &&Service| service.places().iter().any(|at| at.takes(flow));
        let Some(now) = now.map(|(now, _)| now).filter(takes) else { return false };
        name.clone_from(&now.name);
        true
    });
}

fn deal(rng: &mut ChaCha8Rng) -> Vec<Vec<usize>> {
    loop {
        let mut of = vec![Vec::new(); 2];
        for at in 0..VIPS.len() {
            if let Some(vips) = of.get_mut(rng.random_range(0..3)) {
                vips.push(at);
            }
        }
        if of.iter().all(|vips| !vips.is_empty()) {
            return of;
        }
    }
}

fn addresses_come_and_go(method: &str) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let mut world = World::with(2, &format!("method = \"{method}\""));
    let mut plain = world.engine.config.clone();
    // A service that becomes the other one keeps its backends.
    plain.services[1].backends = plain.services[0].backends.clone();
    let (mut live, mut of) = (Live::new(), deal(&mut rng));
    let mut checked = 0;
    let mut config = with_addresses(&plain, &of);
    world.follow(&config).expect("nothing is refused");
    for step in 0..120u16 {
        start(&mut world, &mut live, &config, &of, step % 40);
        world.engine.drain_reports().expect("nothing is refused");
        // What ends at one address, ends nothing from the same port at another.
        let ended: Vec<FlowKey> = live.keys().filter(|_| rng.random_bool(0.2)).copied().collect();
        for flow in ended {
            let frame = Frame::new(flow).tcp_flags(TcpFlags::FIN | TcpFlags::ACK).build();
            world.engine.plane.process(&frame);
            live.remove(&flow);
        }
        world.engine.drain_reports().expect("nothing is refused");
        match rng.random_range(0..4) {
            0 => {
                let (name, on) = (["a", "b"].choose(&mut rng).expect("some"), rng.random());
                let weight = rng.random_range(1..9);
                let ask = |r| Command::Weight((*name).into(), "b1".into(), weight, r);
                world.ask(ask).expect("nothing is refused");
                world
                    .ask(|r| Command::Drain((*name).into(), "b2".into(), on, r))
                    .expect("nor this");
            }
            1 => {
                let World { mut engine, live: none, directory } = world;
                engine.save().expect("it can be kept");
                let (plane, ahead) = (std::mem::take(&mut engine.plane), engine.ahead);
                drop(engine);
                let found = Found { resumed: true, ..Found::default() };
                let mut engine = over(plane, found, &config).unwrap_or_else(|e| panic!("{e}"));
                engine.ahead = ahead;
                world = World { engine, live: none, directory };
            }
            _ => {
                of = deal(&mut rng);
                let wanted = with_addresses(&plain, &of);
                let followed = world.follow(&wanted).expect("nothing is refused");
                assert!(followed.failures.is_empty(), "{followed:?}");
                outlive(&mut live, &config.services, &wanted);
                config = wanted;
            }
        }
        check(&mut world, &live, &format!("step {step}"));
        checked += live.len();
        let wanted: usize = config.services.iter().map(|one| one.places().len()).sum();
        assert_eq!(weir_plane::Plane::services(&world.engine.plane).len(), wanted);
    }
    assert!(checked > 400, "{checked} connections were looked at");
}

/// Also where an address gets what another one had: nothing is known of that one's connections then.
#[test]
fn connections_stay_where_their_addresses_do() {
    for method in ["concury", "tracked", "residue"] {
        addresses_come_and_go(method);
    }
}

/// A configuration whose first service has these addresses.
fn listening(plain: &Config, vips: &[&str]) -> Config {
    let mut config = plain.clone();
    let vips = vips.iter().map(|vip| vip.parse().expect("it is one"));
    config.services[0].vips = vips.collect();
    config.services[0].vip = config.services[0].vips[0].address;
    config
}

/// Connections to what stays of a prefix stay, also while it grows again; to what does not, they end, and that
/// is said.
#[test]
fn a_prefix_that_narrows_and_grows_keeps_its_connections() {
    for method in ["concury", "tracked", "residue"] {
        let mut world = World::with(1, &format!("method = \"{method}\""));
        let plain = world.engine.config.clone();
        let with = |vips: &[&str]| listening(&plain, vips);
        world.follow(&with(&["10.0.0.1", "10.3.0.0/24"])).expect("nothing is refused");
        let mut live = Live::new();
        for (host, client) in ["10.3.0.0", "10.3.0.9", "10.3.0.130"]
            .iter()
            .flat_map(|host| (0..9).map(move |n| (host, n)))
        {
            let flow = flow_to(host, client);
            let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
            let Outcome::Forwarded(backend) = world.engine.plane.process(&frame) else {
                panic!("{flow} is not forwarded")
            };
            live.insert(flow, ("a".into(), backend));
        }
        world.engine.drain_reports().expect("nothing is refused");
        world.drain("a", "b2").expect("nothing is refused");
        check(&mut world, &live, "after a drain");
        let followed =
            world.follow(&with(&["10.3.0.0/25", "10.0.0.1"])).expect("nothing is refused");
        let said = followed.notes.join(" ");
        assert!(said.contains("10.3.0.0/24 (but for 10.3.0.0/25) end"), "{said}");
        let beyond = flow_to("10.3.0.130", 0).dst;
        live.retain(|flow, _| flow.dst != beyond);
        world.ask(|r| Command::Weight("a".into(), "b1".into(), 9, r)).expect("nothing is refused");
        check(&mut world, &live, "in the half that stays");
        let followed =
            world.follow(&with(&["10.3.0.0/24", "10.0.0.1"])).expect("nothing is refused");
        assert!(!followed.notes.join(" ").contains(" end"), "{followed:?}");
        world.ask(|r| Command::Weight("a".into(), "b1".into(), 1, r)).expect("nothing is refused");
        check(&mut world, &live, "in the whole again");
        assert_eq!(live.len(), 18);
    }
}

/// Addresses of a service, one list after the other, and hosts to which connections begin then.
const AROUND: [(&[&str], &[&str]); 6] = [
    (&["10.8.1.1"], &["10.8.1.1"]),
    (&["10.8.1.0/24"], &["10.8.1.9", "10.8.1.2", "10.8.1.0"]),
    (&["10.8.1.2", "10.8.1.1"], &["10.8.1.2"]),
    (&["10.8.1.1", "10.8.1.2", "10.8.1.7"], &["10.8.1.7"]),
    (&["10.8.1.0/28"], &["10.8.1.1", "10.8.1.9"]),
    (&["10.8.0.0/16"], &["10.8.200.1"]),
];

/// Whatever host of a prefix an address is, its connections stay when the prefix around it is listened on, and when it
/// is that address alone again; those of two addresses, too.
#[test]
fn addresses_that_grow_to_the_prefix_around_them_keep_their_connections() {
    for method in ["concury", "tracked", "residue"] {
        let mut world = World::with(1, &format!("method = \"{method}\""));
        let plain = world.engine.config.clone();
        let with = |vips: &[&str]| listening(&plain, vips);
        let mut live = Live::new();
        for (step, (vips, hosts)) in (0_u16..).zip(AROUND) {
            let wanted = with(vips);
            let followed = world.follow(&wanted).expect("nothing is refused");
            let said = followed.notes.join(" ");
            // What is given up is said, and else nothing ends.
            assert_eq!(said.contains(" end"), step == 2, "{method}, {vips:?}: {said}");
            live.retain(|flow, _| wanted.services[0].places().iter().any(|at| at.takes(flow)));
            check(&mut world, &live, &format!("{method}, {vips:?}"));
            let clients = || 10 * step..10 * step + 9;
            for (host, client) in
                hosts.iter().flat_map(|host| clients().map(move |client| (host, client)))
            {
                let flow = flow_to(host, client);
                let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
                let Outcome::Forwarded(backend) = world.engine.plane.process(&frame) else {
                    panic!("{flow} is not forwarded")
                };
                live.insert(flow, ("a".into(), backend));
            }
            world.engine.drain_reports().expect("nothing is refused");
            world
                .ask(|r| Command::Weight("a".into(), "b1".into(), step + 2, r))
                .expect("nothing is refused");
            check(&mut world, &live, &format!("{method}, {vips:?}, another table"));
        }
        assert!(live.len() > 40, "{} are left", live.len());
    }
}

/// An address that goes from one service to another is nobody's at no moment: whatever is refused on the
/// way, its packets are one's or the other's.
#[test]
fn an_address_that_changes_hands_is_never_nobodys() {
    for refused in 0..12 {
        let mut world = World::with(2, "");
        let plain = world.engine.config.clone();
        let before = with_addresses(&plain, &[vec![0, 1], vec![2]]);
        world.follow(&before).expect("nothing is refused");
        let after = with_addresses(&plain, &[vec![0], vec![1, 2]]);
        world.engine.plane.refuse_after(Operation::SetService, refused / 2, 1 + refused % 2);
        world.engine.plane.refuse_after(Operation::RemoveService, refused % 3, 1);
        let _ = world.follow(&after);
        for host in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
            let frame = Frame::new(flow_to(host, 1)).tcp_flags(TcpFlags::SYN).build();
            let went = world.engine.plane.process(&frame);
            assert!(matches!(went, Outcome::Forwarded(_)), "{host}: {went:?}");
        }
        world.engine.plane.refuse_nothing();
        world.engine.config = after.clone();
        assert!(world.engine.list_services().is_empty());
        let number = world.engine.services["b"].number;
        let there = weir_plane::Plane::services(&world.engine.plane);
        let mut of_b = there.iter().filter(|(_, of)| *of == number).map(|(at, _)| at.vip().0);
        assert!(of_b.any(|address| address == IpAddr::from([10, 0, 0, 2])), "{there:?}");
    }
}

/// One port that becomes a range, a range that becomes any port, and back: connections to ports that stay stay.
#[test]
fn ports_that_stay_keep_their_connections() {
    let ports = [
        (Some(80), None),
        (None, Some(Ports { first: 80, last: 83 })),
        (None, None),
        (None, Some(Ports { first: 79, last: 84 })),
        (Some(80), None),
        (None, None),
        (Some(80), None),
    ];
    let mut world = World::new(2);
    (0..2).for_each(|service| drop(world.start(service, 0..100)));
    for (port, range) in ports {
        let mut wanted = world.engine.config.clone();
        (wanted.services[0].port, wanted.services[0].ports) = (port, range);
        world.engine.reload_as(wanted, false).unwrap_or_else(|error| panic!("{error}"));
        world.check();
        world.drain("a", "b1").expect("nothing is refused");
        world.check();
        world.ask(|r| Command::Drain("a".into(), "b1".into(), false, r)).expect("nor is this");
    }
    // What is given up is said.
    let mut wanted = world.engine.config.clone();
    (wanted.services[0].port, wanted.services[0].ports) = (Some(443), None);
    let said = world.engine.reload_as(wanted, false).expect("it is another service");
    assert!(said.contains("service a removed: 100 known connections end"), "{said}");
}
