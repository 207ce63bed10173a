//! The live check of consistency: it finds connections that are broken on purpose, and none where none breaks.

mod common;

use common::{WEB4, WEIR, eventually};
use serde_json::Value;
use std::fs;
use std::thread;
use std::time::Duration;
use weir_lab::{Balancer, BalancerSpec};

fn seen(balancer: &Balancer) -> Value {
    balancer.status().unwrap()["consistency"].clone()
}

fn count(balancer: &Balancer, field: &str) -> u64 {
    seen(balancer)[field].as_u64().unwrap_or_default()
}

fn active(balancer: &Balancer) -> bool {
    seen(balancer)["active"] == true
}

fn rewrite(balancer: &Balancer, from: &str, to: &str, how: &str) -> Result<String, String> {
    let text = fs::read_to_string(balancer.config()).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    fs::write(balancer.config(), text.replacen(from, to, 1)).unwrap();
    common::try_command(balancer, how)
}

/// Whether something comes to hold within ten looks, a second apart.
fn soon(mut holds: impl FnMut() -> bool) -> bool {
    (0..10).any(|_| {
        thread::sleep(Duration::from_secs(1));
        holds()
    })
}

#[test]
fn broken_connections_are_seen_and_whole_ones_are_not() {
    let _alone = common::alone();
    let lab = common::lab(4);
    let balancer = common::start_spec(
        &lab,
        BalancerSpec { balancer_lines: "follow_flows = 1\n".into(), ..BalancerSpec::new(WEIR, 3) },
    );
    eventually("connections are followed", || active(&balancer));
    let mut held = common::hold(&lab, WEB4, 200);
    eventually("all of them are", || count(&balancer, "followed") >= 200);

    // Everything that keeps connections: the pool grows, weights change, one drains, the control plane dies.
    let status = balancer.status().unwrap();
    let pool = common::service(&status, "web4")["backends"].as_array().unwrap().clone();
    let name = |at: usize| pool[at]["name"].as_str().unwrap().to_owned();
    let more = weir_lab::topology::backend4(3);
    common::command(&balancer, &format!("backend add web4 more {more}"));
    common::command(&balancer, &format!("backend weight web4 {} 7", name(1)));
    common::command(&balancer, &format!("backend drain web4 {}", name(2)));
    common::assert_unbroken(&mut held, "changes", &balancer);
    common::shorts(&lab, WEB4, 300, 0, 1);
    // Counts are read once a second.
    eventually("their packets are counted", || count(&balancer, "packets") > 1000);
    let none = (count(&balancer, "moved"), count(&balancer, "orphaned"));
    assert_eq!(none, (0, 0), "{}", seen(&balancer));
    // Whoever looks at packets meanwhile has the same program; it goes on afterwards.
    let socket = balancer.socket().display().to_string();
    let traced = common::weir(&["trace", "--socket", &socket, "--for", "2s", "--json"]);
    assert!(traced.status.success(), "{}", common::stderr(&traced));
    eventually("connections are followed again", || active(&balancer));
    let before = count(&balancer, "packets");
    // Between the two programs packets go through the usual one, and are not counted.
    eventually("packets are counted on", || {
        common::assert_unbroken(&mut held, "a trace", &balancer);
        count(&balancer, "packets") > before
    });
    assert_eq!(count(&balancer, "moved"), 0, "{}", seen(&balancer));
    balancer.kill();
    balancer.launch().unwrap();
    eventually("connections are followed by the next process", || active(&balancer));
    common::assert_unbroken(&mut held, "a death", &balancer);
    assert_eq!(count(&balancer, "moved"), 0, "{}", seen(&balancer));

    // A backend goes and takes its connections along: they are told apart.
    common::command(&balancer, &format!("backend remove web4 {}", name(0)));
    let broken = common::troubles(&mut held);
    assert!(!broken.is_empty());
    eventually("those of the removed one are seen", || count(&balancer, "orphaned") > 0);
    assert_eq!(count(&balancer, "moved"), 0, "{}", seen(&balancer));

    // Broken on purpose: by client in the place of by flow, and back, most connections lead elsewhere. A control plane
    // that a busy machine keeps from its turn for seconds lets its notes lapse, and those are not seen: then once more.
    let lines = ["[[service]]\n", "[[service]]\naffinity = \"client\"\n"];
    let mut changes = 0;
    let seen_at = (0..20).find(|_| {
        let before = count(&balancer, "packets");
        let mut held = common::hold(&lab, WEB4, 200);
        // At least three of each. One from where another came before, which has ended, is none whose following begins.
        if !soon(|| count(&balancer, "packets") >= before + 600) {
            return false;
        }
        let (line, other) = (lines[changes % 2], lines[(changes + 1) % 2]);
        changes += 1;
        let moved = count(&balancer, "moved");
        rewrite(&balancer, line, other, "reload").expect_err("connections would break");
        assert_eq!(count(&balancer, "moved"), moved);
        common::command(&balancer, "reload --break-connections");
        let broken = common::troubles(&mut held);
        assert!(!broken.is_empty(), "nothing broke");
        let wanted = moved + broken.len() as u64 / 2;
        soon(|| count(&balancer, "moved") >= wanted)
    });
    assert!(
        seen_at.is_some(),
        "broken ones are not seen: {}; weir's log ends:\n{}",
        seen(&balancer),
        common::log_tail(&balancer, 60)
    );

    // Off: the usual program is back, and what was found stays.
    let moved = count(&balancer, "moved");
    rewrite(&balancer, "follow_flows = 1\n", "", "reload").unwrap();
    eventually("nobody is followed", || !active(&balancer));
    assert!(count(&balancer, "moved") >= moved);
    eventually("the log says so", || {
        common::log(&balancer).contains("the usual program is in place")
    });
}

/// One connection in so many is drawn: between a quarter and four times of what it should be.
#[test]
fn as_many_are_drawn_as_are_asked_for() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start_spec(
        &lab,
        BalancerSpec { balancer_lines: "follow_flows = 16\n".into(), ..BalancerSpec::new(WEIR, 2) },
    );
    eventually("connections are followed", || active(&balancer));
    common::shorts(&lab, WEB4, 3200, 0, common::seed());
    eventually("one in sixteen was drawn", || count(&balancer, "followed") >= 50);
    assert!(count(&balancer, "followed") <= 800, "{}", seen(&balancer));
    assert_eq!(count(&balancer, "moved"), 0, "{}", seen(&balancer));
    for (wrong, words) in [("3", "a power of two"), ("131072", "out of range")] {
        let line = format!("follow_flows = {wrong}\n");
        let said = rewrite(&balancer, "follow_flows = 16\n", &line, "reload").unwrap_err();
        assert!(said.contains(words) && said.contains("follow_flows"), "{said}");
        fs::write(
            balancer.config(),
            fs::read_to_string(balancer.config()).unwrap().replace(&line, "follow_flows = 16\n"),
        )
        .unwrap();
    }
}
