//! More flows of datagrams than may be pinned.

use super::*;
use std::ops::Range;

/// What there is room for; one service may have half of it where others can do without.
const ROOM: usize = 20;

fn datagram(world: &mut World, client: u32) -> BackendId {
    let flow = FlowKey { protocol: Protocol::Udp, ..flow(0, client) };
    match world.engine.plane.process(&Frame::new(flow).build()) {
        Outcome::Forwarded(backend) => backend,
        other => panic!("{flow}: {other:?}"),
    }
}

fn datagrams(world: &mut World, clients: Range<u32>) -> Vec<BackendId> {
    clients.map(|client| datagram(world, client)).collect()
}

/// At a backend that is down they do not keep their service from its next table; at one that drains they do, as each
/// of them lives.
#[test]
fn flows_of_a_dead_backend_that_find_no_pin_let_their_service_go_on() {
    let mut world = World::with(1, "protocol = \"udp\"\n[service.check]\nenabled = false");
    let at = datagrams(&mut world, 0..300);
    world.engine.plane.bounds.pins = ROOM;
    let before = world.engine.services["a"].generation;
    let down = world.health("a", "b2", false);
    world.upkeep();
    let dead = at.iter().filter(|backend| **backend == down).count();
    assert!(dead > 2 * ROOM, "{dead} of 300 at one of three backends");
    assert!(world.engine.services["a"].trouble.is_none(), "{:?}", world.warnings());
    assert!(world.engine.services["a"].generation > before);
    assert_eq!(world.engine.plane.memory.pinned.len(), ROOM / 2);
    let (said, left) = (world.warnings().concat(), dead - ROOM / 2);
    let words = format!("{left} flows of backends that are down are not pinned");
    assert!(said.contains(&words) && said.contains("limits.unreported_flows"), "{said}");
    assert!(!datagrams(&mut world, 1_000..1_200).contains(&down), "new flows");
    let stays = |world: &mut World| {
        for (client, backend) in (0..).zip(&at).filter(|(_, backend)| **backend != down) {
            assert_eq!(datagram(world, client), *backend, "client {client}");
        }
    };
    stays(&mut world);

    let refused = world.drain("a", "b1").expect_err("too many pins").to_string();
    assert!(refused.contains("no room: Pin"), "{refused}");
    world.upkeep();
    assert!(world.engine.services["a"].trouble.is_none(), "{:?}", world.warnings());
    stays(&mut world);
    world.engine.plane.bounds.pins = 1_000;
    world.drain("a", "b1").expect("there is room");
    assert!(world.engine.plane.memory.pinned.len() > dead, "all that may come again");
    stays(&mut world);
}
