//! Promise 2: a new connection goes to a live, non-draining backend, with probability
//! proportional to weight.

mod common;

use std::collections::BTreeMap;

use common::{METHODS, WEB4, WEB6};
use weir_lab::balancer::PoolControl;
use weir_lab::{Balancer, Lab, LabSpec};

const WEIGHTS: [u32; 4] = [1, 2, 3, 4];
/// Connections in one sample.
const SAMPLE: usize = 20_000;
/// Connections after a change: none of them may go where none should.
const AFTER: usize = 5000;
/// The 99.9 % point of the chi-squared distribution with three degrees of freedom.
const BOUND: f64 = 16.27;

/// The chi-squared statistic of counts against weights. A share may be off by `slack`, as a part
/// of itself, before its deviation counts.
fn chi_squared(counts: &BTreeMap<String, u64>, slack: f64) -> f64 {
    let all: u64 = counts.values().sum();
    let weights: u32 = WEIGHTS.iter().sum();
    let deviation = |(number, weight): (usize, &u32)| {
        let expected = all as f64 * f64::from(*weight) / f64::from(weights);
        let observed = counts.get(&format!("b{number}")).copied().unwrap_or(0) as f64;
        let beyond = ((observed - expected).abs() - slack * expected).max(0.0);
        beyond * beyond / expected
    };
    WEIGHTS.iter().enumerate().map(deviation).sum()
}

/// One sample in a thousand is over the bound by chance alone; two in a row are one in a million.
fn follows_weights(lab: &Lab, method: &str, seed: u64) {
    // Concury deals 4,096 Dcodes by weight: no share is off by more than half a Dcode, here an
    // eighth of a percent of the smallest. A Maglev table of 65,537 rows is within 1 % (its page).
    let slack = if method == "concury" { 0.00125 } else { 0.01 };
    let mut said = String::new();
    for round in 0..2 {
        let counts = common::shorts(lab, WEB4, SAMPLE, round, seed);
        assert_eq!(counts.values().sum::<u64>(), SAMPLE as u64);
        let statistic = chi_squared(&counts, slack);
        said += &format!("\n{method}: {counts:?}, chi-squared {statistic:.2}");
        println!("{}", said.lines().last().unwrap_or_default());
        if statistic < BOUND {
            return;
        }
    }
    panic!("new connections do not follow weights {WEIGHTS:?}, WEIR_SEED={seed}{said}");
}

/// What keeps new connections from a backend, and what lets them in again.
fn none_for(
    lab: &Lab,
    balancer: &Balancer,
    name: &str,
    parts: [u16; 2],
    seed: u64,
    off: impl FnOnce(),
    on: impl FnOnce(),
) {
    let mut held = common::hold(lab, WEB4, 150);
    held.extend(common::hold(lab, WEB6, 50));
    let there = common::spread(&held)[name];
    assert!(there > 0, "nothing to keep on {name}");
    off();
    for (to, count) in [(WEB4, AFTER), (WEB6, AFTER / 5)] {
        let counts = common::shorts(lab, to, count, parts[0], seed);
        assert_eq!(counts.get(name), None, "{to}: {counts:?}");
        assert_eq!(counts.len(), WEIGHTS.len() - 1, "{to}: {counts:?}");
    }
    common::assert_unbroken(&mut held, "while a backend gets nothing new", balancer);
    on();
    for to in [WEB4, WEB6] {
        let counts = common::shorts(lab, to, 500, parts[1], seed);
        assert!(counts.contains_key(name), "{to}: {counts:?}");
    }
    common::assert_unbroken(&mut held, "when it does again", balancer);
}

#[test]
fn new_connections_follow_weights_and_drains() {
    let _alone = common::alone();
    let seed = common::seed();
    let lab = common::lab_of(LabSpec {
        backends: WEIGHTS.len(),
        addresses_per_client: 32,
        ..LabSpec::default()
    });
    for method in METHODS {
        let balancer = common::start(&lab, method, WEIGHTS.len());
        for (number, weight) in WEIGHTS.iter().enumerate().skip(1) {
            balancer.set_weight(number, *weight).unwrap();
        }
        follows_weights(&lab, method, seed);
        none_for(
            &lab,
            &balancer,
            "b3",
            [2, 3],
            seed,
            || balancer.drain(3).unwrap(),
            || balancer.undrain(3).unwrap(),
        );
        none_for(
            &lab,
            &balancer,
            "b2",
            [4, 5],
            seed,
            || balancer.set_weight(2, 0).unwrap(),
            || balancer.set_weight(2, 3).unwrap(),
        );
        stop(balancer, &lab);
    }
}

/// Connections from ports that were used a moment ago, by connections that have ended: they are new
/// ones, wherever the former were. (A connection table cannot tell them from repeated SYNs, so this
/// holds for concury only.)
#[test]
fn used_ports_lead_to_no_draining_backend() {
    let _alone = common::alone();
    let seed = common::seed();
    let lab = common::lab_of(LabSpec { backends: 3, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 3);
    let again = || common::shorts(&lab, WEB4, 3000, 0, seed);
    assert_eq!(again().len(), 3);
    // Its connections are placed a second time, and noted as pending.
    balancer.drain(2).unwrap();
    assert_eq!(again().get("b2"), None);
    balancer.undrain(2).unwrap();
    balancer.set_weight(1, 0).unwrap();
    let counts = again();
    assert_eq!(counts.get("b1"), None, "{counts:?}");
    balancer.set_weight(1, 1).unwrap();
    balancer.drain(0).unwrap();
    let counts = again();
    assert_eq!(counts.get("b0"), None, "{counts:?}");
}

/// Ends a balancer for good, so that the next one does not resume.
fn stop(balancer: Balancer, lab: &Lab) {
    assert_eq!(balancer.stop(common::PATIENCE).as_deref(), Some("exit status: 0"));
    let config = balancer.config().to_str().unwrap();
    let output = common::weir(&["unload", "--config", config]);
    assert!(output.status.success(), "{}", common::stderr(&output));
    drop(balancer);
    std::fs::remove_dir_all(lab.directory().join("weir")).unwrap();
}
