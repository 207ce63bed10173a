//! The traffic driver without a balancer: clients reach a backend straight, so each test knows
//! what the driver has to say about it.

use std::time::{Duration, Instant};

use weir_lab::traffic::{Kind, Mix, Report};
use weir_lab::{Lab, LabSpec, Traffic, TrafficSpec, sleep};

fn lab() -> Lab {
    let lab = Lab::create(LabSpec {
        backends: 2,
        clients: 2,
        big_bytes: 1 << 20,
        big_rate: 1 << 20,
        ..LabSpec::default()
    })
    .unwrap();
    for client in 0..2 {
        lab.bypass(client, Some(0)).unwrap();
    }
    lab
}

fn spec() -> TrafficSpec {
    TrafficSpec {
        connections: 200,
        think: Duration::from_millis(50)..Duration::from_millis(500),
        life: Duration::from_secs(1)..Duration::from_secs(20),
        udp_life: Duration::from_secs(1)..Duration::from_secs(20),
        mix: Mix { keepalive: 0.6, download: 0.1, short: 0.2, udp: 0.1 },
        udp_ipv6_share: 0.5,
        ..TrafficSpec::default()
    }
}

fn seconds(seconds: f64) {
    sleep(Duration::from_secs_f64(seconds));
}

fn assert_balanced(report: &Report) {
    let totals = &report.totals;
    assert_eq!(totals.open, 0);
    assert_eq!(totals.ended(), totals.started);
    assert!(totals.backends.iter().all(|backend| backend.open == 0));
}

#[test]
fn undisturbed_connections_complete() {
    let lab = lab();
    let traffic = Traffic::start(&lab, spec()).unwrap();
    seconds(3.0);
    let running = traffic.stats().snapshot();
    // A reader may see one that has just ended and not yet been replaced.
    assert!((198..=200).contains(&running.open), "{running:?}");
    assert!(running.backends[0].open > 150);
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert_eq!(report.totals.completed, report.totals.started, "{report:?}");
    for kind in &report.totals.kinds {
        assert!(kind.completed > 0, "{kind:?}");
    }
    assert_eq!(report.totals.backends[0].new, report.totals.started);
    assert!(report.totals.answers > report.totals.started);
    assert!(report.totals.bytes > 1 << 20);
    assert!(report.totals.connect.count > 0);
}

#[test]
fn connections_of_a_killed_backend_are_inevitable() {
    let lab = lab();
    let traffic = Traffic::start(&lab, spec()).unwrap();
    seconds(2.0);
    lab.backend(0).kill();
    seconds(0.3);
    lab.backend(0).start().unwrap();
    seconds(2.0);
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert_eq!(report.totals.broken, 0, "{:?}", report.broken_connections);
    assert!(report.totals.inevitable >= 100, "{report:?}");
    assert!(report.totals.completed > 0);
}

#[test]
fn new_connections_to_a_backend_long_dead_are_broken() {
    let lab = lab();
    let traffic = Traffic::start(&lab, spec()).unwrap();
    seconds(1.0);
    lab.backend(0).kill();
    seconds(2.5);
    lab.backend(0).start().unwrap();
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert!(report.totals.inevitable > 0, "{report:?}");
    assert!(report.totals.broken > 0, "{report:?}");
    for broken in &report.broken_connections {
        assert_eq!(broken.backend, None, "{broken:?}");
        assert!(broken.reason.to_string().starts_with("connect: "));
    }
}

#[test]
fn a_moved_connection_is_broken() {
    let lab = lab();
    let traffic = Traffic::start(&lab, spec()).unwrap();
    seconds(2.0);
    // As if a balancer forgot its connections: the other backend gets their packets.
    for client in 0..2 {
        lab.bypass(client, Some(1)).unwrap();
    }
    seconds(2.0);
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert_eq!(report.totals.inevitable, 0, "{report:?}");
    assert!(report.totals.broken >= 100, "{report:?}");
    assert!(report.totals.backends[1].new > 0);
    for broken in &report.broken_connections {
        let expected = match broken.kind {
            Kind::Udp => "moved to b1",
            _ => "reset",
        };
        assert_eq!(broken.reason.to_string(), expected, "{broken:?}");
        assert_eq!(broken.backend.as_deref(), Some("b0"), "{broken:?}");
    }
    let of = |kind| report.broken_connections.iter().any(|b| b.kind == kind);
    assert!(of(Kind::Keepalive) && of(Kind::Udp), "{report:?}");
}

#[test]
fn silence_is_a_timeout() {
    let lab = lab();
    let traffic = Traffic::start(
        &lab,
        TrafficSpec {
            connections: 20,
            timeout: Duration::from_secs(1),
            udp_timeout: Duration::from_millis(200),
            mix: Mix { keepalive: 1.0, udp: 1.0, ..Mix::only(Kind::Keepalive) },
            ..spec()
        },
    )
    .unwrap();
    seconds(1.0);
    for client in lab.clients() {
        // Packets to nobody: the driver's own patience has to end these connections.
        let done = client
            .command("ip")
            .unwrap()
            .args(["neigh", "replace", "10.77.0.100", "lladdr"])
            .args(["02:77:00:00:00:77", "dev", "eth0", "nud", "permanent"])
            .status()
            .unwrap();
        assert!(done.success());
    }
    seconds(2.0);
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert!(report.totals.broken > 0);
    for broken in &report.broken_connections {
        let reason = broken.reason.to_string();
        assert!(reason.starts_with("timeout: "), "{broken:?}");
    }
}

#[test]
fn the_target_can_be_changed_and_dropping_gives_up() {
    let lab = lab();
    let traffic = Traffic::start(
        &lab,
        TrafficSpec {
            connections: 50,
            ramp: 10_000,
            life: Duration::from_millis(500)..Duration::from_secs(1),
            ..spec()
        },
    )
    .unwrap();
    let reaches = |target| {
        let end = Instant::now() + Duration::from_secs(10);
        while traffic.stats().snapshot().open != target {
            assert!(Instant::now() < end, "{:?}", traffic.stats().snapshot());
            seconds(0.02);
        }
    };
    reaches(50);
    traffic.set_target(120);
    reaches(120);
    traffic.set_target(20);
    reaches(20);
    let stats = traffic.stats().clone();
    drop(traffic);
    let after = stats.snapshot();
    assert_eq!((after.open, after.broken), (0, 0));
}

#[test]
fn more_connections_than_files_are_refused() {
    let lab = lab();
    let spec = TrafficSpec { connections: 10_000_000, ..spec() };
    assert!(Traffic::start(&lab, spec).is_err());
}
