//! Promise 1, per-connection consistency: thousands of connections, every kind of pool change, a
//! control plane that is killed, and no connection breaks.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::WEIR;
use weir_lab::BalancerSpec;
use weir_lab::churn::Change;
use weir_lab::demo::{DemoSpec, Goals, run_in};
use weir_lab::topology::Topology;
use weir_lab::traffic::{Kind, Mix};

const CONCURRENT: usize = 5000;
const CHANGES: u64 = 40;
/// Connections of a kind that complete, at least.
fn completed() -> Vec<(Kind, u64)> {
    let kinds = [Kind::Keepalive, Kind::Download, Kind::Upload, Kind::Short, Kind::Udp];
    let few = |kind| matches!(kind, Kind::Download | Kind::Upload);
    kinds.map(|kind| (kind, if few(kind) { 10 } else { 500 })).into()
}

fn unbroken_by_churn(method: &str, topology: Topology) {
    unbroken_by_churn_with(method, topology, "");
}

/// Connections of one run that a backend's own kernel may have reset; seen in some runs, one at most.
const RESET_AT_HOME: usize = 2;

/// With further lines of the services' configuration.
fn unbroken_by_churn_with(method: &str, topology: Topology, lines: &str) {
    let _alone = common::alone();
    let seed = common::seed();
    let mut spec = DemoSpec::new(WEIR, seed);
    spec.show = weir_lab::view::Show::Lines;
    spec.balancer.method = method.into();
    spec.balancer.service_lines = lines.into();
    spec.lab.topology = topology;
    spec.lab.big_bytes = 3 << 20;
    spec.traffic.upload_bytes = 2 << 20;
    // A machine that is busy with other things takes longer to make the same, to answer, and to
    // notice a death. (That nothing new goes to a backend that is known to be down is shown
    // elsewhere, without a clock.)
    spec.duration = Duration::from_secs(30);
    spec.limit = Duration::from_secs(1800);
    (spec.traffic.timeout, spec.traffic.detection) = (common::PATIENCE, common::PATIENCE);
    spec.traffic.udp_timeout = Duration::from_secs(3);
    spec.goals = Goals {
        changes: CHANGES,
        every_kind: true,
        open: CONCURRENT as u64,
        completed: completed(),
        ..Goals::default()
    };
    spec.traffic.connections = CONCURRENT + 500;
    spec.traffic.mix =
        Mix { keepalive: 0.55, download: 0.01, upload: 0.01, short: 0.29, udp: 0.14, quic: 0.0 };
    spec.churn.gap = Duration::from_millis(300)..Duration::from_millis(600);
    spec.churn.settle = Duration::from_millis(2500);

    let lab = common::lab_of(spec.lab.clone());
    let balancer = Arc::new(common::start_spec(&lab, spec.balancer.clone()));
    let report = run_in(&lab, Arc::clone(&balancer) as _, &spec).unwrap();

    println!("{}\n{}", report.table(), report.line());
    if !report.held() {
        println!("{:#?}\n{}", report.churn.log, common::log(&balancer));
    }
    // Which of them a packet that went astray has broken, and which a backend's kernel that lost a
    // connection all of whose packets it got. The balancer writes nothing but MAC addresses with direct
    // server return; where it writes more, the latter may be its doing as well.
    let broken = report.traffic.totals.broken;
    let details = &report.traffic.broken_connections;
    let at_home = details.iter().filter(|one| one.was_reset_at_home()).count();
    let direct = [Topology::L2, Topology::Dual].contains(&topology);
    assert!(at_home <= if direct { RESET_AT_HOME } else { 0 }, "{method}: {details:#?}");
    assert_eq!(broken, at_home as u64, "{method}: {details:#?}, WEIR_SEED={seed}");
    assert_eq!(report.fault_but_broken(), None, "{method}, WEIR_SEED={seed}");
    assert!(report.traffic.totals.peak >= CONCURRENT as u64, "{}", report.traffic.totals.peak);
    assert!(report.churn.changes >= CHANGES, "{} changes", report.churn.changes);
    let mut kinds = BTreeMap::<&str, u32>::new();
    for change in &report.churn.log {
        *kinds.entry(change.kind).or_default() += 1;
    }
    for kind in Change::KINDS {
        assert!(kinds.contains_key(kind), "no {kind} in {kinds:?}, WEIR_SEED={seed}");
    }
    // Under keepalive and short hide both families: four of ten TCP connections use IPv6.
    for (kind, least) in completed() {
        let found = report.traffic.totals.kinds.iter().find(|one| one.kind == kind).unwrap();
        assert!(found.completed >= least, "{found:?}");
    }
    let status = balancer.status().unwrap();
    assert_eq!(status["resumed"], true);
    for service in ["web4", "web6", "echo4"] {
        assert!(common::sum(common::service(&status, service), "packets") > 0, "{service}");
    }
}

#[test]
fn concury_breaks_no_connection() {
    unbroken_by_churn("concury", Topology::L2);
}

/// In by one interface and out by another, answers by neither.
#[test]
fn concury_breaks_no_connection_from_one_interface_to_another() {
    unbroken_by_churn("concury", Topology::Dual);
}

#[test]
fn tracked_breaks_no_connection() {
    unbroken_by_churn("tracked", Topology::L2);
}

#[test]
fn cheetah_breaks_no_connection() {
    unbroken_by_churn("cheetah", Topology::Inline);
}

/// Its horizon is respected: a backend that nobody announced waits for longer than a connection of the
/// traffic is silent. (What breaks if it need not wait is next.)
#[test]
fn jet_breaks_no_connection() {
    unbroken_by_churn_with("jet", Topology::L2, "warm_up = 20");
}

/// What JET's paper says of a horizon that is not respected: a fourth backend that nobody announced, and that
/// may not wait, takes a quarter of the connections away from where they are, since nobody remembered any of
/// them. One that was announced takes none.
#[test]
fn jet_breaks_what_nobody_announced() {
    const HELD: usize = 400;
    let _alone = common::alone();
    let started = |backends| {
        let lab = common::lab(4);
        let spec = BalancerSpec {
            method: "jet".into(),
            service_lines: "warm_up = 0".into(),
            ..BalancerSpec::new(WEIR, backends)
        };
        let balancer = common::start_spec(&lab, spec);
        (lab, balancer)
    };
    let (lab, balancer) = started(4);
    common::command(&balancer, "backend drain web4 b3");
    let mut held = common::hold(&lab, common::WEB4, HELD);
    common::command(&balancer, "backend drain web4 b3 --undo");
    common::assert_unbroken(&mut held, "an announced backend", &balancer);
    assert!(common::spread(&common::hold(&lab, common::WEB4, 100)).contains_key("b3"));

    let (lab, balancer) = started(3);
    let mut held = common::hold(&lab, common::WEB4, HELD);
    common::command(&balancer, &format!("backend add web4 b3 {}", weir_lab::topology::backend4(3)));
    common::eventually("new connections at b3", || {
        common::spread(&common::hold(&lab, common::WEB4, 50)).contains_key("b3")
    });
    let broken = common::troubles(&mut held).len();
    println!("{broken} of {HELD} broke");
    // Of 400 draws with one in four, fewer than 56 or more than 150 are less likely than one in 10,000.
    assert!((56..=150).contains(&broken), "{broken} of {HELD}, where the paper has a quarter");
}

#[test]
fn cheetah_stateful_breaks_no_connection() {
    unbroken_by_churn("cheetah-stateful", Topology::Inline);
}

#[test]
fn residue_breaks_no_connection() {
    unbroken_by_churn("residue", Topology::L2);
}
