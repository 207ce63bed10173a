//! `weir run --plane p4` over a running simple switch (docs/p4.md): connections hold whoever ends, and what is
//! missing is said. `make p4-test` finds the switch and its compiler; no part of `make test`.

mod common;

use std::sync::Arc;

use common::WEIR;
use weir_lab::topology::Topology;
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec, Program};

const POOL: usize = 4;

fn spec(topology: Topology) -> LabSpec {
    let switch = Some(Program { files: weir_plane_p4::FILES });
    LabSpec { backends: 6, topology, switch, ..LabSpec::default() }
}

fn balancer(method: &str) -> BalancerSpec {
    BalancerSpec {
        method: method.into(),
        balancer_lines: "plane = \"p4\"\n".into(),
        ..BalancerSpec::new(WEIR, POOL)
    }
}

fn warnings(balancer: &Balancer) -> Vec<String> {
    let status = balancer.status().expect("it answers");
    let told = status["warnings"].as_array().expect("warnings").iter();
    told.filter_map(|one| one.as_str().map(str::to_owned)).collect()
}

/// Connections that the control plane knows.
fn known(balancer: &Balancer) -> u64 {
    let status = balancer.status().expect("it answers");
    let states = |name| common::service(&status, name)["states"].as_u64().expect("a number");
    states("web4") + states("web6")
}

fn is_away(balancer: &Balancer) -> bool {
    warnings(balancer).iter().any(|one| one.starts_with("the switch forwards nothing"))
}

/// The control plane is killed, the switch is started anew, and stays away while the pool changes.
fn unbroken_by_ends(method: &str) {
    let _alone = common::alone();
    let lab = common::lab_of(spec(Topology::L2));
    let weir = common::start_spec(&lab, balancer(method));
    let mut held = common::hold_both(&lab, 40);
    common::command_all(&weir, |service| format!("backend drain {service} b1"));
    common::kill_and_launch(&lab, &weir, &mut held, "drained");

    lab.restart_switch(false).expect("it starts");
    common::eventually("it is filled", || !is_away(&weir) && common::log(&weir).contains("filled"));
    common::assert_unbroken(&mut held, "the switch was started anew", &weir);
    held.extend(common::hold_both(&lab, 20));
    // What has begun at this very moment is in the switch alone, and goes with it (docs/p4.md).
    common::eventually("all that has begun is known", || known(&weir) >= held.len() as u64);

    lab.restart_switch(true).expect("it ends");
    let noticed = common::eventually("it is missed", || is_away(&weir));
    println!("it was missed after {noticed:?}");
    common::command_all(&weir, |service| format!("backend undrain {service} b1"));
    common::command_all(&weir, |service| format!("backend drain {service} b2"));
    lab.restart_switch(false).expect("it starts");
    common::eventually("it is filled", || !is_away(&weir));
    common::assert_unbroken(&mut held, "the switch was away", &weir);
    held.extend(common::hold_both(&lab, 20));
    common::assert_unbroken(&mut held, "at the end", &weir);
    assert_eq!(warnings(&weir), Vec::<String>::new());
}

#[test]
fn concury_holds() {
    unbroken_by_ends("concury");
}

#[test]
fn residue_holds() {
    unbroken_by_ends("residue");
}

#[test]
fn concury_holds_in_tunnels() {
    let _alone = common::alone();
    let lab = common::lab_of(spec(Topology::Routed));
    let service_lines = "forward = \"ipip\"".into();
    let weir = common::start_spec(&lab, BalancerSpec { service_lines, ..balancer("concury") });
    let mut held = common::hold_both(&lab, 20);
    common::command_all(&weir, |service| format!("backend drain {service} b1"));
    held.extend(common::hold_both(&lab, 20));
    common::assert_unbroken(&mut held, "drained", &weir);
}

/// Without a switch nothing starts, and what to do is said.
#[test]
fn a_start_needs_a_switch() {
    let _alone = common::alone();
    let lab: Arc<Lab> = common::lab_of(spec(Topology::L2));
    lab.restart_switch(true).expect("it ends");
    let refused = Balancer::start_alone(&lab, balancer("concury")).expect_err("nobody is there");
    let said = refused.to_string();
    assert!(said.contains("the switch at 127.0.0.1:9090"), "{said}");
    assert!(said.contains("start it before weir"), "{said}");
}
