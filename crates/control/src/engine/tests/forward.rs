//! How the data plane is told to reach backends: as they are, or through tunnels.

use super::*;
use crate::neigh;
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_plane::forward::Encapsulation;

/// A router leads to every backend; nothing is on a link here.
fn through_a_router(world: &mut World) {
    world.engine.resolve =
        |address| Err(NeighError::Gateway { address, gateway: "10.0.0.254".parse().unwrap() });
    world.engine.path = |_, except: &BTreeSet<IpAddr>| {
        assert!(except.contains(&"10.0.0.1".parse::<IpAddr>().unwrap()), "the services' addresses");
        Ok(neigh::Path {
            next: Some(neighbour()),
            gateway: Some("10.0.0.254".parse().unwrap()),
            source: Some("10.0.0.2".parse().unwrap()),
            mtu: 1400,
        })
    };
}

fn neighbour() -> Neighbour {
    Neighbour { mac: [2; 6], ifindex: 7, source_mac: [4; 6] }
}

fn encapsulation(world: &World) -> Option<Encapsulation> {
    let all = world.engine.plane.backends.values().map(|backend| backend.tunnel);
    let mut all: Vec<_> = all.map(|tunnel| tunnel.map(|tunnel| tunnel.encapsulation)).collect();
    all.dedup();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

/// A reload changes the tunnel of all backends, new ones have it from the first packet on, and a tunnel
/// that is needed is not given up.
#[test]
fn tunnels_follow_the_file() {
    let mut world = World::new(1);
    assert_eq!(encapsulation(&world), None);
    through_a_router(&mut world);
    let of = |world: &World, fields: &str| {
        let mut config = config_with(&world.directory, 1, fields);
        config.balancer.tunnel_source = None;
        config
    };
    world.start(0, 0..40);
    let gue = of(&world, "forward = \"gue\"");
    world.engine.reload_as(gue, false).expect("it can be");
    assert_eq!(encapsulation(&world), Some(Encapsulation::Gue(6080)));
    for backend in world.engine.plane.backends.values() {
        let tunnel = backend.tunnel.unwrap();
        assert_eq!((tunnel.source, tunnel.mtu), (Some("10.0.0.2".parse().unwrap()), 1400));
        assert_eq!(backend.hop.unwrap().next.mac, [2; 6], "the router's");
    }
    world.check();
    let mut ipip = of(&world, "forward = \"ipip\"");
    ipip.balancer.tunnel_source =
        Some(crate::config::TunnelSource { address: "172.16.0.0".parse().unwrap(), spread: 16 });
    world.engine.reload_as(ipip, false).expect("it can be");
    assert_eq!(encapsulation(&world), Some(Encapsulation::Ipip));
    let tunnel = world.engine.plane.backends.values().next().unwrap().tunnel.unwrap();
    assert_eq!((tunnel.source, tunnel.spread), (Some("172.16.0.0".parse().unwrap()), 16));

    // Of the other family, which frames could not reach.
    let other = crate::config::Backend {
        name: "b9".into(),
        address: "2001:db8::9".parse().unwrap(),
        port: None,
        weight: 1,
        drain: false,
        backup: false,
        nat_sources: Vec::new(),
    };
    world.engine.service("a").unwrap().may_add(&other, 0).expect("a tunnel takes it");
    let back = of(&world, "");
    let refused = world.engine.reload_as(back, false).unwrap_err().to_string();
    assert!(refused.contains("behind the router 10.0.0.254"), "{refused}");
    assert_eq!(encapsulation(&world), Some(Encapsulation::Ipip), "nothing has changed");
    // On a link, nothing is in the way.
    world.engine.resolve = |_| Ok(Some(neighbour()));
    let back = of(&world, "");
    world.engine.reload_as(back, false).expect("it can be");
    assert_eq!(encapsulation(&world), None);
    world.check();
}

/// Where no way is known any more, packets do not go on by the one before the file was changed.
#[test]
fn without_a_way_a_new_tunnel_holds_all_the_same() {
    let mut world = World::new(1);
    world.engine.resolve = |_| Ok(Some(neighbour()));
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    world.engine.path = |address, _| {
        Err(NeighError::NoRoute { address, source: std::io::ErrorKind::NetworkUnreachable.into() })
    };
    let config = config_with(&world.directory, 1, "forward = \"gre\"");
    world.engine.reload_as(config, false).expect("it can be");
    assert_eq!(encapsulation(&world), Some(Encapsulation::Gre));
    let sources =
        world.engine.plane.backends.values().map(|backend| backend.tunnel.unwrap().source);
    assert!(sources.into_iter().all(|source| source.is_none()));
}

/// Where frames cannot get, a backend does not join: neither by a command nor by a file. Who is there already
/// stays, whatever routes have become, and `weir status` says that it gets nothing.
#[test]
fn nobody_joins_where_frames_do_not_get() {
    let mut world = World::new(1);
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.engine.resolve = |address| match address {
        IpAddr::V4(v4) if v4.octets()[3] == 9 => Err(NeighError::Local { address }),
        IpAddr::V4(v4) if v4.octets()[3] > 3 => {
            Err(NeighError::Gateway { address, gateway: "10.0.0.254".parse().unwrap() })
        }
        _ => Ok(Some(neighbour())),
    };
    for (last, words) in [(4, "behind the router 10.0.0.254"), (9, "belongs to this host")] {
        let joins = crate::config::Backend {
            name: "more".into(),
            address: [10, 9, 0, last].into(),
            port: None,
            weight: 1,
            drain: false,
            backup: false,
            nat_sources: Vec::new(),
        };
        let by_command =
            world.ask(|reply| Command::Add("a".into(), Box::new(joins.clone()), reply));
        assert!(by_command.unwrap_err().to_string().contains(words));
        let mut config = config_with(&world.directory, 1, "");
        config.services[0].backends.push(joins);
        let planned = world
            .engine
            .plan_to(&config, &Source::File("weir.toml".into()))
            .unwrap_err()
            .to_string();
        assert!(planned.contains(words), "{planned}");
        let by_file = world.engine.reload_as(config, false).unwrap_err().to_string();
        assert!(by_file.contains(words) && by_file.contains("backend more"), "{by_file}");
    }
    assert_eq!(world.engine.services["a"].pool.len(), 3);
    // A route has changed under a backend.
    world.engine.resolve =
        |address| Err(NeighError::Gateway { address, gateway: "10.0.0.254".parse().unwrap() });
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    let same = config_with(&world.directory, 1, "");
    world.engine.reload_as(same, false).expect("all are there");
    let said = world.warnings();
    assert!(said.len() == 3 && said[0].contains("b1 gets no packets"), "{said:?}");
    world.engine.resolve = |_| Ok(Some(neighbour()));
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    for backend in ["b1", "b2", "b3"] {
        world.drain("a", backend).unwrap();
    }
    let said = world.warnings();
    assert!(said.len() == 1 && said[0].contains("no backend takes new connections"), "{said:?}");
}
