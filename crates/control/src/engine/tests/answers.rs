//! Answers of translated backends come by interfaces of the balancer. A file that gives one of these up is refused,
//! and while they come by another it is said.

use super::*;
use crate::neigh;

const NAT: &str = "forward = \"nat\"";

/// An interface that is there on every host, one, and a VLAN of that.
fn links() -> Result<Vec<neigh::Interface>, NeighError> {
    let vlan = neigh::Kind::Vlan { id: 7, plain: true };
    let all = [(1, "lo", None, None), (7, "eth1", None, None), (8, "eth1.7", Some(vlan), Some(7))];
    let link = |(index, name, kind, link): (u32, &str, Option<neigh::Kind>, Option<u32>)| {
        let (name, mac, mtu) = (name.to_owned(), Some([4; 6]), 1500);
        let (up, running, veth, master, xdp) = (true, true, false, None, false);
        neigh::Interface { index, name, mac, mtu, up, running, veth, kind, master, link, xdp }
    };
    Ok(all.map(link).into())
}

/// The way to b1 and b2 is by eth1, to b3 by lo.
fn way(address: IpAddr) -> neigh::Path {
    let last = match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(_) => 0,
    };
    let ifindex = if last == 3 { 1 } else { 7 };
    neigh::Path {
        next: Some(Neighbour { ifindex, ..neighbour() }),
        gateway: None,
        source: None,
        mtu: 1500,
    }
}

fn file(world: &World, interfaces: &[&str]) -> Config {
    let mut config = config_with(&world.directory, 1, NAT);
    config.balancer.interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
    config
}

fn plan(world: &World, config: &Config) -> PlanReport {
    let from = Source::File("weir.toml".into());
    world.engine.plan_to(config, &from).unwrap_or_else(|error| panic!("{error}"))
}

/// The warnings that are about answers.
fn said(world: &World) -> Vec<String> {
    let about = |warning: &String| warning.starts_with("answers of ");
    world.warnings().into_iter().filter(about).collect()
}

fn translated() -> World {
    let mut world = World::with(1, NAT);
    world.engine.links = links;
    world.engine.path = |address, _| Ok(way(address));
    let both = file(&world, &["lo", "eth1"]);
    world.engine.reload_as(both, false).expect("one more interface breaks nothing");
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    world
}

#[test]
fn an_interface_by_which_answers_come_is_given_up_only_if_that_is_meant() {
    let mut world = translated();
    assert_eq!(said(&world), Vec::<String>::new());
    let without = file(&world, &["lo"]);
    let words = "interfaces: the answers of 2 backends of service a come by eth1, which is no longer among them";
    let report = plan(&world, &without);
    let why = report.why.unwrap_or_default();
    assert!(report.refused && why.contains(words), "{why}");
    let refused =
        world.engine.reload_as(without.clone(), false).expect_err("it breaks connections");
    let refused = refused.to_string();
    assert!(refused.contains(words) && refused.contains("no connection is known now"), "{refused}");
    assert!(refused.contains("--break-connections does it all the same"), "{refused}");
    assert_eq!(world.engine.config.balancer.interfaces, ["lo", "eth1"]);
    assert_eq!(world.engine.plane.attached, ["lo", "eth1"]);

    // Their backends go with it.
    let mut only = without.clone();
    only.services[0].backends.retain(|one| one.name == "b3");
    assert!(!plan(&world, &only).refused);

    let done = world.engine.reload_as(without.clone(), true).expect("it is meant");
    assert!(done.contains(words), "{done}");
    let warned = said(&world);
    assert_eq!(warned.len(), 1, "{warned:?}");
    let words = "answers of 2 backends of service a come by eth1, which weir takes no frames from";
    assert!(warned[0].starts_with(words), "{warned:?}");

    // They come by none of the balancer's before and after it, so that nothing becomes worse.
    let more = file(&world, &["lo", "eth9"]);
    world.engine.reload_as(more, false).expect("answers come as before");
    assert!(!plan(&world, &without).refused);
    assert_eq!(said(&world), warned);
    let both = file(&world, &["eth1", "lo"]);
    world.engine.reload_as(both, false).expect("nothing is in the way");
    assert_eq!(said(&world), Vec::<String>::new());
}

/// An interface by which clients' packets came is given up with a word; which those are is known where it is counted.
#[test]
fn an_interface_by_which_packets_came_is_given_up_with_a_word() {
    let mut world = World::new(1);
    world.engine.links = links;
    let to = |world: &World, interfaces: &[&str]| {
        let mut config = config(&world.directory, 1);
        config.balancer.interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
        config
    };
    let both = to(&world, &["lo", "eth1"]);
    let said = world.engine.reload_as(both, false).expect("one more interface breaks nothing");
    assert!(!said.contains("no packets are taken any more"), "{said}");

    let without = to(&world, &["lo"]);
    let words = "interfaces: no packets are taken any more from eth1";
    let warnings = |world: &World| plan(world, &without).warnings.concat();
    let said = warnings(&world);
    assert!(said.starts_with(&format!("{words}: ")) && said.contains("connections"), "{said}");
    let counts = |forwarded| {
        let counts = weir_plane::InterfaceCounters { forwarded, passed: 9, dropped: 9 };
        Some(BTreeMap::from([(7, counts)]))
    };
    world.engine.plane.by_interface = counts(0);
    assert_eq!(warnings(&world), "");
    world.engine.plane.by_interface = counts(30);
    let words = format!("{words}, by which 30 frames came that were forwarded: ");
    assert!(warnings(&world).starts_with(&words), "{}", warnings(&world));
    assert!(!plan(&world, &without).refused);
    // None came by the other one.
    assert!(world.engine.interfaces_given_up(&to(&world, &["eth1"]), false).is_none());
    let done = world.engine.reload_as(without.clone(), false).expect("it is not refused");
    assert!(done.contains(&words), "{done}");
    assert_eq!(plan(&world, &without).warnings.len(), 0);
}

/// Frames of a VLAN come through the interface below it.
#[test]
fn answers_in_a_vlan_come_by_the_interface_below() {
    let mut world = translated();
    world.engine.path = |address, _| {
        let next = Some(Neighbour { ifindex: 8, ..neighbour() });
        Ok(neigh::Path { next, ..way(address) })
    };
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    assert_eq!(said(&world), Vec::<String>::new());
    let named = file(&world, &["lo", "eth1.7"]);
    assert!(world.engine.answers_given_up(&named, false).is_none(), "it comes by itself, too");
    let without = file(&world, &["lo"]);
    let refused = world.engine.reload_as(without, false).expect_err("it breaks connections");
    assert!(refused.to_string().contains("3 backends of service a come by eth1.7"), "{refused}");
}
