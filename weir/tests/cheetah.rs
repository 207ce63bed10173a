//! Cheetah on real packets: the balancer is the backends' router, writes cookies into their timestamps
//! and gives them their own back. Whoever has no timestamps is tracked, and nobody is lost for it.

mod common;

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::echoes::{Echoes, refused, round_trips};
use common::{Held, PATIENCE, WEB4, WEB6, WEIR};
use serde_json::Value;
use weir_lab::demo::{DemoSpec, Goals, run_in};
use weir_lab::topology::Topology;
use weir_lab::{Balancer, BalancerSpec, LabSpec};

const TIMESTAMPS: &str = "ipv4/tcp_timestamps";

fn why(balancer: &Balancer, one: &Held) -> String {
    let (from, to) = (one.source.to_string(), one.target.to_string());
    let text = balancer.command(&["explain", "tcp", &from, &to, "--json"]).unwrap();
    let said: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(said["backend"], one.backend.as_str(), "{said:#}");
    said["why"].as_str().unwrap().to_owned()
}

/// Every connection is where it was, and `explain` knows why.
fn at_home(balancer: &Balancer, held: &mut [Held], when: &str) {
    for one in held {
        assert_eq!(one.ask().unwrap(), one.backend, "{when}: {}", one.source);
        let (why, bare) = (why(balancer, one), one.backend == "b1");
        assert_eq!(why.contains("cookie names the backend"), !bare, "{when}: {why}");
        assert_eq!(why.contains("known without one"), bare, "{when}: {why}");
    }
}

/// One of four backends has no timestamps.
#[test]
fn cookies_and_the_connection_table_lead_home() {
    lead_home("cheetah", |_, _| ());
}

/// The same where cookies name slots: the table has each connection with timestamps once, also after a
/// crash of the control plane, and no cookie was lost.
#[test]
fn connections_by_index_stay_at_home() {
    lead_home("cheetah-stateful", |status, held| {
        for service in status["services"].as_array().expect("services") {
            let vip = service["vip"].as_str().expect("an address");
            let bare = |one: &&Held| one.backend != "b1" && one.target.ip().to_string() == vip;
            let live = held.iter().filter(bare).count() as u64;
            let slots = &service["slots"];
            let number = |field: &str| slots[field].as_u64().expect("a number");
            if service["protocol"] == "tcp" && service["port"] == 80 {
                // A probe that has closed keeps its slot for a minute; those of b1 have given theirs back.
                let used = number("used");
                assert!((live..live + 4).contains(&used), "{vip}: {live}, {slots}");
            }
            assert_eq!(number("slots"), 8 * 32_768);
            let lost = ["full", "stale_cookies", "foreign_cookies"].map(number);
            assert_eq!(lost, [0; 3], "{slots}");
        }
    });
}

/// `check` sees the status at the end, and the connections.
fn lead_home(method: &str, check: impl Fn(&Value, &[Held])) {
    let _alone = common::alone();
    let spec = LabSpec { backends: 4, topology: Topology::Inline, ..LabSpec::default() };
    let lab = common::lab_of(spec);
    common::sysctl(lab.backend(1).netns(), TIMESTAMPS, "0");
    let balancer = common::start(&lab, method, 3);
    let mut held = common::hold(&lab, WEB4, 30);
    held.extend(common::hold(&lab, WEB6, 20));
    for backend in ["b0", "b1", "b2"] {
        assert!(held.iter().any(|one| one.backend == backend), "{backend}");
    }
    at_home(&balancer, &mut held, "at first");
    for change in [
        &["backend", "add", "web4", "b3", "10.77.2.4"][..],
        &["backend", "drain", "web4", "b0"],
        &["backend", "drain", "web6", "b1"],
        &["backend", "weight", "web6", "b2", "7"],
        &["backend", "weight", "web4", "b2", "50"],
    ] {
        balancer.command(change).unwrap();
        at_home(&balancer, &mut held, &format!("{change:?}"));
    }
    let later = common::hold(&lab, WEB4, 20);
    assert!(later.iter().all(|one| one.backend != "b0"), "it drains");
    held.extend(later);
    balancer.kill();
    at_home_without_explanation(&mut held);
    balancer.launch().unwrap();
    at_home(&balancer, &mut held, "after a crash of the control plane");
    let status = balancer.status().unwrap();
    let outcomes = status["outcomes"].as_array().expect("outcomes");
    let answers = outcomes.iter().find(|one| one["reason"] == "answer");
    let passed = answers.and_then(|one| one["passed"].as_u64()).unwrap_or(0);
    assert!(passed > 200, "{passed} answers passed");
    check(&status, &held);
}

fn at_home_without_explanation(held: &mut [Held]) {
    for one in held {
        assert_eq!(one.ask().unwrap(), one.backend, "{}", one.source);
    }
}

/// Half of the clients and a third of the backends have no timestamps, while the pool changes.
#[test]
fn who_has_no_timestamps_is_tracked() {
    let _alone = common::alone();
    let seed = common::seed();
    let mut spec = DemoSpec::new(WEIR, seed);
    spec.show = weir_lab::view::Show::Lines;
    spec.balancer.method = "cheetah".into();
    spec.lab.topology = Topology::Inline;
    spec.duration = Duration::from_secs(8);
    spec.limit = Duration::from_secs(1800);
    (spec.traffic.timeout, spec.traffic.detection) = (common::PATIENCE, common::PATIENCE);
    spec.traffic.udp_timeout = Duration::from_secs(3);
    spec.traffic.connections = 800;
    spec.goals = Goals { changes: 12, ..Goals::default() };
    let lab = common::lab_of(spec.lab.clone());
    common::sysctl(&lab.clients()[1], TIMESTAMPS, "0");
    for backend in lab.backends().iter().step_by(3) {
        common::sysctl(backend.netns(), TIMESTAMPS, "0");
    }
    let balancer = Arc::new(common::start_spec(&lab, spec.balancer.clone()));
    let report = run_in(&lab, Arc::clone(&balancer) as _, &spec).unwrap();
    println!("{}\n{}", report.table(), report.line());
    assert_eq!(report.traffic.totals.broken, 0, "WEIR_SEED={seed}");
    assert!(report.held(), "WEIR_SEED={seed}\n{}", common::log_tail(&balancer, 100));
}

/// The balancer writes timestamps and restores them while the backends' clocks go over the end of the lower half, under
/// connections that are busy, and others that are silent meanwhile. That half lasts 65.5 s, and Linux begins it
/// elsewhere for each connection, so of fifty connections three meet an end of it in four seconds. With WEIR_WRAPS=4
/// (`make soak`) it goes on for so many of them, and others are idle for more than one at a time.
#[test]
fn clocks_wrap_under_connections() {
    let _alone = common::alone();
    let whole: u32 = std::env::var("WEIR_WRAPS").map_or(0, |text| text.parse().unwrap());
    let wrap = Duration::from_millis(1 << 16);
    let lab = common::lab_of(LabSpec {
        backends: 4,
        topology: Topology::Inline,
        in_order: true,
        ..LabSpec::default()
    });
    let balancer = common::start(&lab, "cheetah", 4);
    common::reach_all(&lab, WEB4, 4);
    let before = refused(&lab);
    let mut echoes = Echoes::of(&lab, wrap);
    let hold = |count| common::hold_both(&lab, count);
    let (mut busy, mut idle, mut silent) = (hold(100), hold(40), hold(40));
    echoes.hear(echoes.began);
    let mut ask = |held: &mut [Held], when: &str| {
        let asked = Instant::now();
        common::assert_unbroken(held, when, &balancer);
        echoes.hear(asked);
        echoes.wraps
    };
    let started = Instant::now();
    let mut next_idle = wrap * 5 / 4;
    while ask(&mut busy, "busy") < 12 || started.elapsed() < wrap * whole {
        if started.elapsed() > next_idle {
            ask(&mut idle, "idle for more than a wrap");
            next_idle = started.elapsed() + wrap * 5 / 4;
        }
        assert!(started.elapsed() < wrap * whole + PATIENCE * 2, "no clock began anew");
        thread::sleep(Duration::from_millis(500));
    }
    ask(&mut silent, "silent all the time");
    ask(&mut idle, "idle");
    println!("{} wraps in {:?}, {} echoes", echoes.wraps, started.elapsed(), echoes.compared);
    assert_eq!(refused(&lab), before, "PAWS or a checksum dropped packets");
    for backend in lab.backends() {
        let times = round_trips(backend);
        let worst = times.iter().copied().fold(0.0, f64::max);
        // Where it goes by an echo at all, for what was sent again, one that was not restored says days.
        assert!(worst < PATIENCE.as_secs_f64() * 1e3, "{worst} ms: {times:?}");
    }
}

/// What there is room for, by the name of the limit; none where nothing needs it.
fn room(balancer: &Balancer, limit: &str) -> Option<u64> {
    let status = balancer.status().unwrap();
    let all = status["room"].as_array().expect("limits");
    let one = all.iter().find(|one| one["limit"] == limit)?;
    one["room"].as_u64()
}

/// The table of answers goes with the last service that looks into it, whatever is left there, and keeps no other limit
/// from its change.
#[test]
fn memory_of_answers_goes_with_the_last_service_that_needs_it() {
    let _alone = common::alone();
    let spec = LabSpec { backends: 3, topology: Topology::Inline, ..LabSpec::default() };
    let lab = common::lab_of(spec);
    let balancer = common::start_spec(
        &lab,
        BalancerSpec {
            method: "cheetah".into(),
            balancer_lines: "[limits]\nudp_flows = 65536\npending_flows = 50000\n".into(),
            ..BalancerSpec::new(WEIR, 3)
        },
    );
    let mut held = common::hold_both(&lab, 60);
    common::assert_unbroken(&mut held, "at first", &balancer);
    assert_eq!(room(&balancer, "answered_flows"), Some(262_144));
    let udp_flows = room(&balancer, "udp_flows").expect("it is there");
    drop(held);

    let inline = fs::read_to_string(balancer.config()).unwrap();
    let told = inline
        .replace("method = \"cheetah\"", "method = \"cheetah\"\nanswers = \"backend\"")
        .replace("udp_flows = 65536", "udp_flows = 262144")
        .replace("pending_flows = 50000", "pending_flows = 30000");
    fs::write(balancer.config(), &told).unwrap();
    let said = common::command(&balancer, "reload --break-connections");
    assert!(!said.contains("limits."), "{said}");
    let warnings = balancer.status().unwrap()["warnings"].to_string();
    assert!(!warnings.contains("limits"), "{warnings}");
    assert_eq!(room(&balancer, "answered_flows"), None, "nobody looks into it");
    assert!(room(&balancer, "udp_flows").expect("it is there") > udp_flows);
    assert_eq!(room(&balancer, "pending_flows"), Some(30_000));

    fs::write(balancer.config(), &inline).unwrap();
    common::command(&balancer, "reload --break-connections");
    assert_eq!(room(&balancer, "answered_flows"), Some(262_144));
    let mut held = common::hold_both(&lab, 30);
    common::command_all(&balancer, |service| format!("backend drain {service} b1"));
    common::assert_unbroken(&mut held, "with the method again", &balancer);
}

/// The balancer is to write into answers that go another way, and has the service's address: the doctor refuses that,
/// the start and a check say it, and the status and the log say it when many packets have come.
#[test]
fn answers_that_go_another_way_are_missed() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, ..LabSpec::default() });
    let balancer = common::start(&lab, "cheetah", 3);
    let words =
        "is an address of this host, on eth0, and the balancer is to write into its answers";
    assert!(common::log(&balancer).contains(words), "{}", common::log_tail(&balancer, 30));
    let config = balancer.config().to_str().unwrap();
    let checked = common::weir_in(&lab, &["check", "--config", config]);
    assert!(common::stdout(&checked).contains(words), "{checked:?}");
    let output = common::weir_in(&lab, &["doctor", "--config", config, "--json"]);
    assert!(!output.status.success(), "{output:?}");
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let found = findings.iter().find(|one| {
        one["verdict"] == "fail" && one["detail"].as_str().is_some_and(|text| text.contains(words))
    });
    let mend = found.expect("it fails")["mend"].as_str().expect("what to do");
    assert!(mend.contains("answers = \"backend\"") && mend.contains("ip addr del"), "{mend}");

    let mut held = common::hold(&lab, WEB4, 40);
    let missed = "no answer of its backends passed here";
    common::eventually("it is said", || {
        // Some may find another backend than before: that is what it is about.
        held.iter_mut().for_each(|one| drop(one.ask()));
        balancer.status().unwrap()["warnings"].to_string().contains(missed)
    });
    assert!(common::log(&balancer).contains(missed), "{}", common::log_tail(&balancer, 30));
}
