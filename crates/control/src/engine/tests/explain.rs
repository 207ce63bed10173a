//! What `weir explain` says of packets once their backend is known: what has become of that, where frames for it go, or
//! why nowhere; and of datagrams whether their flow was seen.

use super::*;
use crate::config::{AllDown, Check};

/// The interface that [`neighbour`] is at.
fn links() -> Result<Vec<neigh::Interface>, NeighError> {
    let (name, mac) = ("eth1".to_owned(), Some([4; 6]));
    let (kind, master, link) = (None, None, None);
    let (up, running, veth, xdp) = (true, true, false, false);
    let (index, mtu) = (7, 1500);
    Ok(vec![neigh::Interface { index, name, mac, mtu, up, running, veth, kind, master, link, xdp }])
}

fn explained(world: &World, flow: &FlowKey) -> Explanation {
    world.engine.explain(flow, None).expect("it can be told")
}

fn marks(said: &Explanation) -> bool {
    said.asked.iter().any(|note| note == "would mark it as active")
}

fn forget_hops(world: &mut World) {
    world.engine.plane.backends.values_mut().for_each(|backend| backend.hop = None);
}

#[test]
fn the_next_hop_is_told_or_why_there_is_none() {
    let mut world = World::new(1);
    world.engine.links = links;
    world.engine.resolve = |_| Ok(Some(neighbour()));
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    let said = explained(&world, &flow(0, 1));
    assert_eq!(said.next_hop.as_deref(), Some("02:02:02:02:02:02 by eth1"));
    assert_eq!((said.state.as_deref(), said.dropped.as_deref()), (Some("up"), None));
    let forwarded = marks(&said);

    // The kernel has no answer any more: packets go by what it said before.
    world.engine.resolve = |_| Ok(None);
    let hop = explained(&world, &flow(0, 1)).next_hop.expect("it is known");
    assert!(hop.starts_with("02:02:02:02:02:02 by eth1, as it was last known: 10.9.0."), "{hop}");
    forget_hops(&mut world);
    let said = explained(&world, &flow(0, 1));
    let hop = said.next_hop.clone().expect("it is said why");
    assert!(hop.starts_with("none is known: 10.9.0."), "{hop}");
    assert!(hop.ends_with(" has not answered ARP"), "{hop}");
    assert_eq!(said.dropped.as_deref(), Some("no_next_hop"));
    assert!(said.backend.is_some() && forwarded && !marks(&said), "{said:?}");

    // As where the link is gone by which backends were reached.
    world.engine.resolve = |address| {
        let source = std::io::ErrorKind::NetworkUnreachable.into();
        Err(NeighError::NoRoute { address, source })
    };
    let said = explained(&world, &flow(0, 1));
    let hop = said.next_hop.expect("it is said why");
    assert!(hop.starts_with("none is known: no route to 10.9.0."), "{hop}");
    assert_eq!(said.dropped.as_deref(), Some("no_next_hop"));

    world.engine.resolve = |address| {
        let gateway = Ipv4Addr::new(10, 0, 0, 254).into();
        Err(NeighError::Gateway { address, gateway })
    };
    let said = explained(&world, &flow(0, 1));
    assert_eq!(said.dropped.as_deref(), Some("behind_gateway"));
}

#[test]
fn that_a_backend_is_down_is_told() {
    for all_down in [AllDown::Keep, AllDown::Refuse] {
        let mut world = World::new(1);
        world.engine.links = links;
        world.engine.resolve = |_| Ok(Some(neighbour()));
        world.engine.refresh_next_hops(false).expect("nothing is refused");
        let check = Check { all_down, ..usual_check(Duration::from_secs(1)) };
        let service = world.engine.services.get_mut("a").expect("there");
        service.configured.check = Some(check);
        for name in ["b1", "b2", "b3"] {
            world.health("a", name, false);
        }
        world.upkeep();
        for client in 0..20 {
            let said = explained(&world, &flow(0, client));
            let frame = Frame::new(flow(0, client)).tcp_flags(TcpFlags::ACK).build();
            match world.engine.plane.process(&frame) {
                Outcome::Forwarded(_) => {
                    assert_eq!((said.state.as_deref(), said.dropped), (Some("down"), None));
                }
                Outcome::Dropped(reason) => {
                    assert_eq!(said.dropped.as_deref(), Some(reason.name()), "{said:?}");
                    assert!(said.backend.is_none() && !marks(&said), "{said:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// It is read from the filter that packets ask, and asking puts nothing there.
#[test]
fn a_flow_of_datagrams_was_seen_if_it_was() {
    let fields = "protocol = \"udp\"\n[service.check]\nenabled = false";
    let mut world = World::with(1, fields);
    let of = |client| FlowKey { protocol: Protocol::Udp, ..flow(0, client) };
    let seen = |world: &World, client| {
        let said = explained(world, &of(client));
        let notes = said.asked.iter().find(|note| note.starts_with("seen recently: "));
        notes.cloned().unwrap_or_else(|| panic!("{said:?}"))
    };
    for _ in 0..2 {
        assert_eq!(seen(&world, 1), "seen recently: no");
    }
    let went = world.engine.plane.process(&Frame::new(of(1)).build());
    assert!(matches!(went, Outcome::Forwarded(_)), "{went:?}");
    assert_eq!(seen(&world, 1), "seen recently: yes");
    assert_eq!(seen(&world, 2), "seen recently: no");
}

/// What was asked names backends as all else does, and not by their numbers.
#[test]
fn what_was_asked_is_told_with_names() {
    for method in ["tracked", "cheetah", "cheetah-stateful"] {
        let mut world = World::with(1, &format!("method = {method:?}"));
        for name in ["b4", "b5"] {
            let new = backend(0, name[1..].parse().expect("a number"));
            world.ask(|reply| Command::Add("a".into(), Box::new(new), reply)).expect("it is new");
        }
        if method == "tracked" {
            for client in 0..40 {
                world
                    .engine
                    .plane
                    .process(&Frame::new(flow(0, client)).tcp_flags(TcpFlags::SYN).build());
            }
        } else {
            world.open(0..40);
        }
        let mut named = 0;
        for client in 0..40 {
            let said = explained(&world, &flow(0, client));
            let name = said.backend.as_deref().expect("it has one");
            let told = format!("backend {name}");
            let number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
            for note in &said.asked {
                named += usize::from(note.contains(&told));
                let mut after = note.split("backend ").skip(1);
                assert!(!after.any(number), "{method}: {note}");
            }
        }
        // A cookie that names its backend's number asks nobody.
        assert!(named >= 8, "{method}: {named}");
    }
}
