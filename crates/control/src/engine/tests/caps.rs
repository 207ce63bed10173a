//! How many new flows services take, over a plane that is only memory: as the file says, in place, and what a
//! plane refuses is told and tried again.

use super::*;
use weir_plane::{FlowCaps, Operation, Plane};
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
