//! Schedulers under real connections: who gets them, by what loads, and that nobody moves when the
//! scheduler is another one (docs/schedulers.md).

mod common;

use common::{Held, WEB4, WEIR, eventually};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use weir_lab::{Balancer, BalancerSpec, LabSpec, Loads};

const BACKENDS: usize = 4;

/// Connections of each backend.
fn shares(held: &[Held]) -> [usize; BACKENDS] {
    std::array::from_fn(|n| held.iter().filter(|one| one.backend == format!("b{n}")).count())
}

fn loads(balancer: &Balancer) -> Vec<Option<f64>> {
    let status = balancer.status().unwrap();
    let backends = common::service(&status, "web4")["backends"].as_array().unwrap();
    backends.iter().map(|backend| backend["load"].as_f64()).collect()
}

fn reschedule(balancer: &Balancer, from: &str, to: &str) {
    let text = fs::read_to_string(balancer.config()).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(balancer.config(), text.replace(from, to)).unwrap();
    let done = balancer.command(&["reload"]).unwrap();
    assert!(done.contains("configuration reloaded"), "{done}");
}

/// A backend that is busy with something else than its connections gets fewer of them, as the lab
/// measures each backend's control group and tells the balancer.
#[test]
fn a_backend_that_burns_its_cpu_gets_fewer_new_connections() {
    let _alone = common::alone();
    let seed = common::seed();
    let spec = LabSpec { backends: BACKENDS, cgroups: true, ..LabSpec::default() };
    let lab = common::lab_of(spec);
    let told = "scheduler = \"p2c\"\nload = \"told\"";
    let balancer = common::start_spec(
        &lab,
        BalancerSpec {
            method: "tracked".into(),
            service_lines: told.into(),
            ..BalancerSpec::new(WEIR, BACKENDS)
        },
    );
    let balancer = Arc::new(balancer);
    let feeding = Loads::start(&lab, Arc::clone(&balancer) as _).unwrap();
    eventually("every backend's load is told", || loads(&balancer).iter().all(Option::is_some));
    let idle = loads(&balancer);
    assert!(idle.iter().all(|load| load.is_some_and(|cpus| cpus < 0.5)), "{idle:?}");

    let mut burn = Command::new("sh");
    burn.args(["-c", "while :; do :; done"]);
    let mut burning = weir_lab::spawn(burn).unwrap();
    let group = lab.backend(1).cgroup().expect("a group");
    group.add(burning.id()).unwrap();
    // On a machine that is busy with other things it gets what it gets: more than each other.
    let is_busiest = || {
        let loads = loads(&balancer);
        let others = [0, 2, 3].iter().filter_map(|one| loads[*one]).fold(0.0, f64::max);
        loads[1] > Some(0.1) && loads[1] > Some(2.0 * others)
    };
    eventually("it is seen to burn", is_busiest);
    let counts = common::shorts(&lab, WEB4, 600, 1, seed);
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    println!("{counts:?} with loads {:?}", loads(&balancer));
    // Its share would be 150. Of two that are drawn it is always the busier one; how the others share
    // what they have hangs on what their few connections cost.
    assert!(of("b1") < 75, "{counts:?}");
    assert_eq!(counts.values().sum::<u64>(), 600);

    burning.kill().unwrap();
    burning.wait().unwrap();
    eventually("it is seen to be idle", || loads(&balancer)[1].is_some_and(|load| load < 0.05));
    // Among idle ones, whose turn it is hangs on what their few connections cost just then. Ports of a moment
    // ago are known where they were, so others are drawn each time.
    let mut look: u16 = 1;
    eventually("it has its share again", || {
        look += 1;
        let counts = common::shorts(&lab, WEB4, 200, look % 14 + 1, seed.wrapping_add(look.into()));
        counts.get("b1").is_some_and(|count| *count > 25)
    });
    assert!(feeding.told() > 0);
    drop(feeding);
    let path = group.path().to_path_buf();
    drop((balancer, lab));
    assert!(!path.exists(), "{} is left", path.display());
}

/// The same by the command: a run that tells its loads is good, and says how many it told.
#[test]
fn a_lab_tells_its_loads() {
    let _alone = common::alone();
    let seed = common::seed().to_string();
    let lab = ["lab", "--method", "tracked", "--scheduler", "p2c", "--load", "told", "--json"];
    let small = ["--connections", "300", "--backends", "4", "--duration", "4s", "--changes", "3"];
    let patient = ["--seed", &seed, "--patience", "2m", "--limit", "30m"];
    let output = common::weir(&[&lab[..], &small, &patient].concat());
    let said = common::stderr(&output);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["loads_told"].as_u64() > Some(10), "{}", report["loads_told"]);
    assert_eq!(report["traffic"]["broken"], 0);
}

#[test]
fn connections_go_where_the_scheduler_says_and_stay() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let least = "scheduler = \"least\"";
    let spec = BalancerSpec { service_lines: least.into(), ..BalancerSpec::new(WEIR, BACKENDS) };
    let balancer = common::start_spec(&lab, BalancerSpec { method: "tracked".into(), ..spec });
    let service = |status: &Value, field: &str| common::service(status, "web4")[field].clone();
    let status = balancer.status().unwrap();
    assert_eq!(
        (service(&status, "scheduler"), service(&status, "load")),
        ("least".into(), "connections".into())
    );

    // Open connections are counted: nobody has two more than another, whoever has fewer gets more.
    let mut held = common::hold(&lab, WEB4, 40);
    assert_eq!(shares(&held), [10; BACKENDS]);
    assert_eq!(loads(&balancer), [Some(10.0); BACKENDS]);
    held.retain(|one| one.backend != "b2");
    eventually("the ends are counted", || loads(&balancer)[2] == Some(0.0));
    held.extend(common::hold(&lab, WEB4, 10));
    assert_eq!(shares(&held), [10; BACKENDS]);

    // What is told decides from the next connection on.
    reschedule(&balancer, least, "scheduler = \"least\"\nload = \"told\"");
    for (backend, load) in [("b0", "7"), ("b1", "0.5"), ("b2", "1e3"), ("b3", "3.25")] {
        let said = balancer.command(&["backend", "load", "web4", backend, load]).unwrap();
        assert!(said.starts_with(&format!("backend {backend} of web4 has load ")), "{said}");
    }
    assert_eq!(loads(&balancer), [Some(7.0), Some(0.5), Some(1_000.0), Some(3.25)]);
    held.extend(common::hold(&lab, WEB4, 5));
    assert_eq!(shares(&held), [10, 15, 10, 10]);
    let socket = balancer.socket().display().to_string();
    for bad in ["-1", "inf", "NaN", "much"] {
        let refused = common::weir(&["backend", "load", "web4", "b0", bad, "--socket", &socket]);
        assert_eq!(refused.status.code(), Some(2), "{bad}");
        let said = common::stderr(&refused);
        assert!(said.contains("a load is a number of 0 or more"), "{said}");
    }
    let text = balancer.command(&["status"]).unwrap();
    assert!(text.contains(", scheduler least by told, generation"), "{text}");
    assert!(text.lines().any(|line| line.contains("b2") && line.contains("1000.000")), "{text}");

    // By turns, in proportion to the weights; nobody who is there moves.
    reschedule(&balancer, "scheduler = \"least\"\nload = \"told\"", "scheduler = \"wrr\"");
    balancer.command(&["backend", "weight", "web4", "b3", "3"]).unwrap();
    let later = common::hold(&lab, WEB4, 24);
    assert_eq!(shares(&later), [4, 4, 4, 12], "four cycles of 1 + 1 + 1 + 3");
    held.extend(later);
    balancer.kill();
    balancer.launch().unwrap();
    reschedule(&balancer, "scheduler = \"wrr\"", "scheduler = \"uniform\"");
    let moved: Vec<String> = held.iter_mut().filter_map(Held::trouble).collect();
    assert!(moved.is_empty(), "{moved:?}");
}
