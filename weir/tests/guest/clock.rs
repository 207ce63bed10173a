//! The wall clock is set under a running balancer, back and forth, by seconds and by years: what has a time goes by the
//! clock since boot, so no connection breaks, nothing is forgotten early or kept for ever, and checks go on.

use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_lab::topology::Topology;
use weir_lab::{Balancer, BalancerSpec, PoolControl};

use super::{BACKENDS, of, unbroken};
use crate::common::{self, WEIR};

/// By how many seconds it is set, one after the other.
const STEPS: [i64; 6] = [3_600, -86_400, 400 * 86_400, -1, -399 * 86_400, 20 * 365 * 86_400];
/// Longer than the balancer takes from one look at anything to the next.
const LOOK: Duration = Duration::from_millis(1_500);

/// Seconds since 1970.
fn wall() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// Sets the wall clock. Who runs this elsewhere than in a guest of its own sets that of the whole machine.
fn step(seconds: i64) {
    assert!(std::env::var_os("WEIR_GUEST").is_some(), "the clock is set in a guest only");
    let to = wall() + seconds;
    let set = Command::new("date").args(["-u", "-s", &format!("@{to}")]).output().unwrap();
    assert!(set.status.success(), "{}", common::stderr(&set));
    assert!((wall() - to).abs() < 60, "the clock is set");
}

fn denied(balancer: &Balancer) -> String {
    common::command(balancer, "source list --json")
}

#[test]
fn clocks_that_are_set_break_nothing() {
    let _alone = common::alone();
    let spec = BalancerSpec::new(WEIR, BACKENDS);
    let (_lab, balancer) = unbroken(&of(Topology::default()), spec, |_| {
        for seconds in STEPS {
            step(seconds);
            thread::sleep(LOOK);
        }
    });

    // What is to go after a time goes after that time: not when the clock is set on, and not never when it is set back.
    common::command(&balancer, "source deny web4 192.0.2.0/24 --for 1h");
    common::command(&balancer, "source deny web4 198.51.100.0/24 --for 8s");
    step(7_200);
    thread::sleep(LOOK);
    assert!(denied(&balancer).contains("192.0.2.0/24"), "an hour of two that never were");
    step(-7 * 86_400);
    common::eventually("eight seconds are over, a week ago", || {
        !denied(&balancer).contains("198.51.100.0/24")
    });
    assert!(denied(&balancer).contains("192.0.2.0/24"));

    // Commands go on, and nothing is wrong.
    balancer.drain(1).unwrap();
    balancer.undrain(1).unwrap();
    let status = balancer.status().unwrap();
    let warnings = status["warnings"].as_array().unwrap();
    // The guest's kernel may have nothing for a guard.
    let other = |one: &serde_json::Value| !one.as_str().unwrap().starts_with("no guard");
    assert!(!warnings.iter().any(other), "{warnings:?}");
    // And what was changed stands in the order in which it came, whatever its times.
    let history = common::command(&balancer, "history --json");
    let history: serde_json::Value = serde_json::from_str(&history).unwrap();
    let entries = history["entries"].as_array().unwrap();
    let numbers: Vec<_> = entries.iter().map(|one| one["number"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted() || numbers.iter().rev().is_sorted(), "{numbers:?}");
}
