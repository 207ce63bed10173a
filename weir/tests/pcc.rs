//! Promise 1, per-connection consistency: thousands of connections, every kind of pool change, a
//! control plane that is killed, and no connection breaks.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::WEIR;
use weir_lab::churn::Change;
use weir_lab::demo::{DemoSpec, run_in};
use weir_lab::traffic::{Kind, Mix};

const CONCURRENT: usize = 5000;
const CHANGES: u64 = 60;

fn unbroken_by_churn(method: &str) {
    let _alone = common::alone();
    let seed = common::seed();
    let mut spec = DemoSpec::new(WEIR, seed);
    spec.plain = true;
    spec.balancer.method = method.into();
    spec.lab.big_bytes = 3 << 20;
    spec.duration = Duration::from_secs(45);
    spec.traffic.connections = CONCURRENT + 500;
    spec.traffic.mix = Mix { keepalive: 0.55, download: 0.01, short: 0.3, udp: 0.14 };
    spec.churn.gap = Duration::from_millis(300)..Duration::from_millis(600);
    spec.churn.settle = Duration::from_millis(2500);

    let lab = common::lab_of(spec.lab.clone());
    let balancer = Arc::new(common::start_spec(&lab, spec.balancer.clone()));
    let report = run_in(&lab, Arc::clone(&balancer) as _, &spec).unwrap();

    println!("{}\n{}", report.table(), report.line());
    if !report.held() {
        println!("{:#?}\n{}", report.churn.log, common::log_tail(&balancer, 200));
    }
    assert_eq!(report.traffic.totals.broken, 0, "{method}, WEIR_SEED={seed}");
    assert!(report.held(), "{method}, WEIR_SEED={seed}");
    assert!(report.traffic.totals.peak >= CONCURRENT as u64, "{}", report.traffic.totals.peak);
    assert!(report.churn.changes >= CHANGES, "{} changes", report.churn.changes);
    let mut kinds = BTreeMap::<&str, u32>::new();
    for change in &report.churn.log {
        *kinds.entry(change.kind).or_default() += 1;
    }
    for kind in Change::KINDS {
        assert!(kinds.contains_key(kind), "no {kind} in {kinds:?}, WEIR_SEED={seed}");
    }
    for kind in &report.traffic.totals.kinds {
        // Under keepalive and short hide both families: four of ten TCP connections use IPv6.
        let least = if kind.kind == Kind::Download { 10 } else { 500 };
        assert!(kind.completed >= least, "{kind:?}");
    }
    let status = balancer.status().unwrap();
    assert_eq!(status["resumed"], true);
    for service in ["web4", "web6", "echo4"] {
        assert!(common::sum(common::service(&status, service), "packets") > 0, "{service}");
    }
}

#[test]
fn concury_breaks_no_connection() {
    unbroken_by_churn("concury");
}

#[test]
fn tracked_breaks_no_connection() {
    unbroken_by_churn("tracked");
}
