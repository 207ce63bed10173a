//! The traffic driver without a balancer: clients reach a backend straight, so each test knows
//! what the driver has to say about it.

use std::time::{Duration, Instant};

use weir_lab::traffic::{
    BackendSnapshot, BrokenConnection, Failure, Kind, KindSnapshot, Mix, Report, Snapshot,
};
use weir_lab::{Lab, LabSpec, Traffic, TrafficHandle, TrafficSpec, sleep};

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
        upload_bytes: 1 << 20,
        mix: Mix { keepalive: 0.55, download: 0.1, upload: 0.05, short: 0.2, udp: 0.1, quic: 0.0 },
        udp_ipv6_share: 0.5,
        ..TrafficSpec::default()
    }
}

/// Waits until the counters are as they should be, however slow the machine is.
fn until(traffic: &TrafficHandle, what: &str, is: impl Fn(&Snapshot) -> bool) {
    let end = Instant::now() + Duration::from_secs(300);
    while !is(&traffic.stats().snapshot()) {
        assert!(Instant::now() < end, "{what}: {:?}", traffic.stats().snapshot());
        sleep(Duration::from_millis(20));
    }
}

/// Waits until connections sit on the first backend.
fn until_settled(traffic: &TrafficHandle) {
    until(traffic, "connections", |now| now.open >= 198 && now.backends[0].open > 150);
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
    // A reader may see one that has just ended and not yet been replaced.
    until_settled(&traffic);
    // One of QUIC needs a server of it, which this lab has not.
    let drawn = |kind: &&KindSnapshot| kind.kind != Kind::Quic;
    until(&traffic, "all kinds", |now| now.kinds.iter().filter(drawn).all(|kind| kind.started > 0));
    until(&traffic, "ends", |now| now.completed > 50);
    assert!(traffic.stats().snapshot().peak <= 200);
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert_eq!(report.totals.completed, report.totals.started, "{report:?}");
    for kind in report.totals.kinds.iter().filter(drawn) {
        assert!(kind.completed > 0, "{kind:?}");
    }
    assert_eq!(report.totals.backends[0].new, report.totals.started);
    assert!(report.totals.answers > report.totals.started);
    assert!(report.totals.bytes > 1 << 20);
    let uploads = report.totals.kinds.iter().find(|kind| kind.kind == Kind::Upload).unwrap();
    assert_eq!(report.totals.uploaded, uploads.completed << 20);
    assert!(report.totals.connect.count > 0);
}

#[test]
fn connections_of_a_killed_backend_are_inevitable() {
    let lab = lab();
    // Nobody checks the backend's health here, so no death is noticed late.
    let patient = TrafficSpec { detection: Duration::from_secs(300), ..spec() };
    let traffic = Traffic::start(&lab, patient).unwrap();
    until_settled(&traffic);
    lab.backend(0).kill();
    // Those that sat there, and those that came while nobody listened.
    until(&traffic, "failures", |now| {
        now.backends[0].inevitable >= 100 && now.backends[0].inevitable_at_start > 0
    });
    lab.backend(0).start().unwrap();
    let before = traffic.stats().snapshot().completed;
    until(&traffic, "new ones", |now| now.completed > before);
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert_eq!(report.totals.broken, 0, "{:?}", report.broken_connections);
    let of_backend = |b: &BackendSnapshot| b.inevitable + b.inevitable_at_start;
    let sum: u64 = report.totals.backends.iter().map(of_backend).sum();
    assert_eq!(report.totals.inevitable, sum, "{report:?}");
    assert_eq!(of_backend(&report.totals.backends[1]), 0);
    assert_eq!(report.unseen, 0);
}

#[test]
fn new_connections_to_a_backend_long_dead_are_broken() {
    let lab = lab();
    let traffic = Traffic::start(&lab, spec()).unwrap();
    until_settled(&traffic);
    lab.backend(0).kill();
    until(&traffic, "both", |now| now.inevitable > 0 && now.broken > 0);
    lab.backend(0).start().unwrap();
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert!(report.totals.inevitable > 0, "{report:?}");
    assert!(report.totals.broken > 0, "{report:?}");
    for broken in &report.broken_connections {
        assert_eq!(broken.backend, None, "{broken:?}");
        assert_eq!(broken.began.as_deref(), Some("b0"), "{broken:?}");
        let reason = broken.reason.to_string();
        let silent = broken.kind == Kind::Udp && reason.starts_with("timeout: ");
        assert!(reason.starts_with("connect: ") || silent, "{broken:?}");
    }
}

/// Connections that get no answer from a backend that lives, while another one is dead.
#[test]
fn the_death_of_another_backend_is_no_excuse() {
    let lab = lab();
    let impatient = TrafficSpec {
        timeout: Duration::from_secs(5),
        udp_timeout: Duration::from_secs(1),
        detection: Duration::from_secs(300),
        ..spec()
    };
    let traffic = Traffic::start(&lab, impatient).unwrap();
    until_settled(&traffic);
    // The second backend's servers run, and what is sent to the VIP does not reach them.
    for vip in ["10.77.0.100/32", "fd77::100/128"] {
        let mut ip = lab.backend(1).netns().command("ip").unwrap();
        assert!(ip.args(["addr", "del", vip, "dev", "lo"]).status().unwrap().success());
    }
    lab.backend(0).kill();
    for client in 0..2 {
        lab.bypass(client, Some(1)).unwrap();
    }
    until(&traffic, "broken ones", |now| now.broken > 50);
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert!(report.totals.backends[0].inevitable > 0, "{report:?}");
    assert_eq!(report.totals.backends[1].inevitable_at_start, 0, "{report:?}");
    for broken in &report.broken_connections {
        assert_eq!(broken.backend, None, "{broken:?}");
        assert_eq!(broken.began.as_deref(), Some("b1"), "{broken:?}");
        assert!(broken.reason.to_string().starts_with("timeout: "), "{broken:?}");
    }
}

#[test]
fn a_moved_connection_is_broken() {
    let lab = lab();
    let traffic = Traffic::start(&lab, spec()).unwrap();
    until_settled(&traffic);
    // As if a balancer forgot its connections: the other backend gets their packets.
    for client in 0..2 {
        lab.bypass(client, Some(1)).unwrap();
    }
    until(&traffic, "broken ones", |now| now.broken >= 100 && now.backends[1].new > 0);
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert_eq!(report.totals.inevitable, 0, "{report:?}");
    for broken in &report.broken_connections {
        let expected = match broken.kind {
            Kind::Udp => "moved to b1",
            _ => "reset",
        };
        assert_eq!(broken.reason.to_string(), expected, "{broken:?}");
        // One that had no answer yet was seen by the backend that it was taken from.
        let own = broken.backend.as_deref().or(broken.began.as_deref());
        assert_eq!(own, Some("b0"), "{broken:?}");
    }
    let of = |kind| report.broken_connections.iter().any(|b| b.kind == kind);
    assert!(of(Kind::Keepalive) && of(Kind::Udp), "{report:?}");
}

/// Packets to nobody: the driver's own patience has to end these connections. A backend that dies
/// meanwhile is the excuse of those that sit on it, and not of new ones, which no backend sees.
#[test]
fn silence_is_a_timeout() {
    let lab = lab();
    let traffic = Traffic::start(
        &lab,
        TrafficSpec {
            connections: 20,
            timeout: Duration::from_secs(1),
            udp_timeout: Duration::from_millis(200),
            detection: Duration::from_secs(300),
            mix: Mix { keepalive: 1.0, udp: 1.0, ..Mix::only(Kind::Keepalive) },
            ..spec()
        },
    )
    .unwrap();
    until(&traffic, "connections", |now| now.backends[0].open >= 18);
    lab.backend(1).kill();
    for client in lab.clients() {
        for vip in ["10.77.0.100", "fd77::100"] {
            let done = client
                .command("ip")
                .unwrap()
                .args(["neigh", "replace", vip, "lladdr"])
                .args(["02:77:00:00:00:77", "dev", "eth0", "nud", "permanent"])
                .status()
                .unwrap();
            assert!(done.success());
        }
    }
    // More than there were: some are new.
    until(&traffic, "broken ones", |now| now.broken > 30);
    let report = traffic.finish().unwrap();
    assert_balanced(&report);
    assert_eq!(report.totals.inevitable, 0, "{report:?}");
    for broken in &report.broken_connections {
        let reason = broken.reason.to_string();
        assert!(reason.starts_with("timeout: "), "{broken:?}");
        if broken.backend.is_none() && broken.reason == Failure::Timeout("connect") {
            assert_eq!(broken.began, None, "{broken:?}");
        }
    }
    let nowhere = |one: &&BrokenConnection| one.backend.is_none() && one.began.is_none();
    assert!(report.broken_connections.iter().filter(nowhere).count() > 0, "{report:?}");
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
    let reaches = |target| until(&traffic, "the target", |now| now.open == target);
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
