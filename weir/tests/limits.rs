//! Limits grow and shrink without an outage: maps of another size take the place of those in use,
//! under traffic, by a reload of the file, at a start with another file, and after SIGKILL in the
//! middle of it.

mod common;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Flow, Held, WEB4};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use weir_lab::topology::{ECHO_PORT, INTERFACE};
use weir_lab::{Balancer, BalancerSpec, FrameSender, Lab, LabSpec};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol};

const POOL: usize = 4;

/// Limits of the data plane, as the file has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    services: u32,
    backends: u32,
    flows: u32,
    event_ring_bytes: u32,
    table_bytes: u64,
}

/// Room for what the file has, and hardly more.
const SMALL: Limits = Limits {
    services: 3,
    backends: 13,
    flows: 6_000,
    event_ring_bytes: 16 << 10,
    table_bytes: 4 << 20,
};
const LARGE: Limits = Limits {
    services: 40,
    backends: 500,
    flows: 50_000,
    event_ring_bytes: 1 << 20,
    table_bytes: 24 << 20,
};

impl Limits {
    fn lines(&self) -> String {
        let Self { services, backends, flows, event_ring_bytes, table_bytes } = self;
        format!(
            "[limits]\nservices = {services}\nbackends = {backends}\npending_flows = {flows}\n\
             unreported_flows = {flows}\ntracked_flows = {flows}\nudp_flows = {flows}\n\
             event_ring_bytes = {event_ring_bytes}\ntable_bytes = {table_bytes}\n\
             states_per_service = 100000\n"
        )
    }

    /// The file with them in place of those that it has.
    fn text(&self, balancer: &Balancer) -> String {
        let text = fs::read_to_string(balancer.config()).unwrap();
        let (before, rest) = text.split_once("[limits]").unwrap();
        let (_, services) = rest.split_once("\n[[service]]").unwrap();
        format!("{before}{}\n[[service]]{services}", self.lines())
    }

    /// Writes them into the file.
    fn write(&self, balancer: &Balancer) {
        fs::write(balancer.config(), self.text(balancer)).unwrap();
    }

    /// Expects that they are in force, and that nothing is left to be done.
    fn assert_in_force(&self, balancer: &Balancer, when: &str) {
        let status = balancer.status().unwrap();
        assert_eq!(status["table_bytes"], self.table_bytes, "{when}");
        let warnings = status["warnings"].to_string();
        assert!(!warnings.contains("limit"), "{when}: {warnings}");
        assert_eq!(status["unrecorded_flows"], 0, "{when}");
    }
}

fn start(lab: &Arc<Lab>, method: &str, limits: &Limits) -> Balancer {
    let spec = BalancerSpec {
        method: method.into(),
        balancer_lines: limits.lines(),
        ..BalancerSpec::new(common::WEIR, POOL)
    };
    common::start_spec(lab, spec)
}

/// Fewer states than a service has connections: the limit stays, and says so, and those that begin afterwards are
/// remembered as the others are.
#[test]
fn fewer_states_than_there_are_connections_break_nobody() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start_with(&lab, "[limits]\nstates_per_service = 100000\n");
    let mut held = common::hold(&lab, WEB4, 300);
    // All that has been reported is known.
    common::command(&balancer, "backend weight web4 b0 2");
    let text = fs::read_to_string(balancer.config()).unwrap();
    let fewer = text.replace("states_per_service = 100000", "states_per_service = 100");
    fs::write(balancer.config(), fewer).unwrap();
    let said = common::command(&balancer, "reload");
    assert!(said.contains("limits: states_per_service: 100 is less than the "), "{said}");
    assert!(said.contains("it stays 100000"), "{said}");
    let warnings = balancer.status().unwrap()["warnings"].to_string();
    assert!(warnings.contains("it stays 100000"), "{warnings}");
    held.extend(common::hold(&lab, WEB4, 100));
    common::command(&balancer, "backend drain web4 b1");
    common::command(&balancer, "backend weight web4 b0 5");
    common::assert_unbroken(&mut held, "with a limit that is less than there are", &balancer);
}

/// Tables are built from what is known of flows: what was lost on the way shows here.
fn change_pools(balancer: &Balancer, held: &mut [Held], weight: usize) {
    let weight = weight + 2;
    common::command_all(balancer, |service| format!("backend weight {service} b3 {weight}"));
    common::assert_unbroken(held, "after a new weight", balancer);
    common::command_all(balancer, |service| format!("backend drain {service} b1 --undo"));
    common::command_all(balancer, |service| format!("backend drain {service} b2"));
    common::assert_unbroken(held, "after drains", balancer);
}

fn limits_change_under_traffic(method: &str, rounds: &[Limits]) {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 5, ..LabSpec::default() });
    let balancer = start(&lab, method, &SMALL);
    SMALL.assert_in_force(&balancer, "at first");
    let traffic = common::mixed_traffic(&lab, 400);
    let mut held = common::hold_both(&lab, 200);
    let add = |service: &str| {
        let address = if service == "web6" { "fd77::2:5" } else { "10.77.2.5" };
        // It gets no flow: the next reload removes it, since the file does not have it.
        common::try_command(&balancer, &format!("backend add {service} b4 {address} --weight 0"))
    };
    for (round, limits) in rounds.iter().enumerate() {
        // New flows of b1's and b2's Dcodes go elsewhere, and are remembered apart.
        common::command_all(&balancer, |service| format!("backend drain {service} b1"));
        if round == 0 {
            add("web4").unwrap();
            let refused = add("web6").unwrap_err();
            assert!(refused.contains("limits.backends"), "{refused}");
        }
        limits.write(&balancer);
        common::command(&balancer, "reload");
        limits.assert_in_force(&balancer, &format!("round {round}"));
        common::assert_unbroken(&mut held, &format!("round {round}"), &balancer);
        held.extend(common::hold_both(&lab, 20));
        if limits.backends > SMALL.backends {
            common::SERVICES.iter().for_each(|service| drop(add(service).unwrap()));
        }
        change_pools(&balancer, &mut held, round);
    }
    common::assert_none_broke(traffic);
    common::assert_unbroken(&mut held, "at the end", &balancer);
}

#[test]
fn limits_of_concury_change_under_traffic() {
    // One limit alone, too.
    let rounds =
        [LARGE, Limits { backends: 20, ..LARGE }, Limits { flows: 9_000, ..LARGE }, SMALL, LARGE];
    limits_change_under_traffic("concury", &rounds);
}

#[test]
fn limits_of_tracked_change_under_traffic() {
    limits_change_under_traffic("tracked", &[LARGE, SMALL]);
}

/// A table in which connections are becomes no smaller than they need, whatever the file says.
#[test]
fn tracked_connections_are_not_shrunk_away() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 5, ..LabSpec::default() });
    let balancer = start(&lab, "tracked", &SMALL);
    let mut held = common::hold_both(&lab, 30);
    let good = fs::read_to_string(balancer.config()).unwrap();
    for flows in [1, 16, 250] {
        let text = good.replace("tracked_flows = 6000", &format!("tracked_flows = {flows}"));
        assert_ne!(text, good);
        fs::write(balancer.config(), text).unwrap();
        let why = format!("limits.tracked_flows cannot be lowered to {flows}: ");
        let plan = common::command(&balancer, "plan");
        assert!(plan.contains(&why), "beforehand: {plan}");
        common::command(&balancer, "reload");
        let plan = common::command(&balancer, "plan");
        let differs = format!("tracked_flows: 6000 -> {flows}");
        assert!(plan.contains(&differs) && plan.contains(&why), "afterwards: {plan}");
        let history = common::command(&balancer, "history");
        let differs = "(limits stay as they were): tracked_flows";
        assert!(history.contains(differs), "{history}");
        let warnings = balancer.status().unwrap()["warnings"].to_string();
        assert!(warnings.contains(&why), "{warnings}");
        common::assert_unbroken(&mut held, "after the reload", &balancer);
        change_pools(&balancer, &mut held, 3);
    }
    fs::write(balancer.config(), good).unwrap();
    common::command(&balancer, "reload");
    SMALL.assert_in_force(&balancer, "as before");
    let plan = common::command(&balancer, "plan");
    assert!(plan.contains("nothing would change"), "{plan}");
}

/// Programs for memory of another size take seconds to load. Meanwhile the status is told, and a backend whose
/// check fails gets no new connection.
#[test]
fn while_limits_change_checks_count_and_questions_are_answered() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 5, ..LabSpec::default() });
    let spec = BalancerSpec {
        balancer_lines: SMALL.lines(),
        check_interval: Duration::from_millis(50),
        ..BalancerSpec::new(common::WEIR, POOL)
    };
    let balancer = common::start_spec(&lab, spec);
    let mut held = common::hold_both(&lab, 100);
    held.retain(|one| one.backend != lab.backend(3).name());
    let is = |state: &str| {
        let status = balancer.status().unwrap();
        common::backend(common::service(&status, "web4"), "b3")["state"] == state
    };
    // A check may fail too late, on a machine that loads fast or looks seldom.
    let seen = (0..20).any(|round| {
        if round % 2 == 0 { LARGE } else { SMALL }.write(&balancer);
        let seen = thread::scope(|scope| {
            let reload = scope.spawn(|| common::command(&balancer, "reload"));
            lab.backend(3).kill();
            let (mut told, mut failed) = (0, false);
            while !reload.is_finished() {
                let down = is("down");
                if !reload.is_finished() {
                    told += 1;
                    failed |= down;
                }
            }
            println!("round {round}: {told} questions answered, failed: {failed}");
            told >= 3 && failed
        });
        common::assert_unbroken(&mut held, &format!("round {round}"), &balancer);
        lab.backend(3).start().unwrap();
        let limit = Instant::now() + Duration::from_secs(60);
        while !is("up") {
            assert!(Instant::now() < limit, "b3 does not come up");
            thread::sleep(Duration::from_millis(50));
        }
        seen
    });
    assert!(seen, "a reload with other limits keeps checks and questions waiting");
}

const ECHO: SocketAddr = SocketAddr::new(WEB4.ip(), ECHO_PORT);
const BALANCER_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 0xff, 1];
const CLIENT_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 1, 1];

/// A datagram each of flows from addresses that nobody has, told by their ports.
fn strangers(ports: Range<u16>) -> Vec<Vec<u8>> {
    let frame = |port: u16| {
        let [high, low] = port.to_be_bytes();
        let from = SocketAddr::from((Ipv4Addr::new(198, 18, low, high), port));
        Frame::new(FlowKey::new(from, ECHO, Protocol::Udp)).macs(BALANCER_MAC, CLIENT_MAC).build()
    };
    ports.map(frame).collect()
}

/// A backend dies that has more flows of datagrams than may be pinned: nothing new goes there, nothing is dropped, all
/// services get their next tables, and it is said. One that has as many and lives cannot drain before there is room.
#[test]
fn flows_of_a_dead_backend_that_find_no_pin_are_left_out() {
    /// In all, and a fourth of them is more than there is room for.
    const FLOWS: u16 = 6_000;
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 4, ..LabSpec::default() });
    let spec = BalancerSpec {
        balancer_lines: "[limits]\nunreported_flows = 1000\nstates_per_service = 100000\n".into(),
        check_interval: Duration::from_millis(200),
        ..BalancerSpec::new(common::WEIR, POOL)
    };
    let balancer = common::start_spec(&lab, spec);
    let mut held = common::hold_both(&lab, 60);
    held.retain(|one| one.backend != "b3");
    let mut flows = common::flows(&lab, ECHO, 24);
    flows.retain(|one| one.backend != "b3");
    let sender = FrameSender::open(&lab.clients()[0], INTERFACE).unwrap();
    let known = || {
        let status = balancer.status().unwrap();
        common::service(&status, "echo4")["states"].as_u64().unwrap()
    };
    let of_b3 = |field: &str| {
        let status = balancer.status().unwrap();
        let of = |name: &&str| {
            common::backend(common::service(&status, name), "b3")[field].as_u64().unwrap()
        };
        common::SERVICES.iter().map(of).sum::<u64>()
    };
    let warnings = || balancer.status().unwrap()["warnings"].to_string();
    // On a busy machine an interface may lose some.
    let begin = |ports: Range<u16>, count: u64| {
        common::eventually("the flows are known", || {
            sender.send(&strangers(ports.clone())).unwrap();
            known() >= count
        });
    };
    begin(10_000..10_000 + FLOWS, u64::from(FLOWS));
    assert!(of_b3("states") > 1_000, "as many as there is room for are at each backend");

    lab.backend(3).kill();
    common::eventually("the checks of all services see it", || {
        let status = balancer.status().unwrap();
        let down = |name: &&str| {
            common::backend(common::service(&status, name), "b3")["check"]["up"] == false
        };
        common::SERVICES.iter().all(down)
    });
    let before = of_b3("flows");
    common::eventually("it is said, and by which limit", || {
        let said = warnings();
        said.contains("flows of backends that are down are not pinned")
            && said.contains("limits.unreported_flows")
    });
    begin(20_000..22_000, u64::from(FLOWS) + 2_000);
    held.extend(common::hold_both(&lab, 40));
    flows.extend(common::flows(&lab, ECHO, 24));
    let unbroken = |held: &mut [Held], flows: &[Flow], when: &str| {
        common::assert_unbroken(held, when, &balancer);
        let troubles: Vec<String> = flows.iter().filter_map(Flow::trouble).collect();
        assert!(troubles.is_empty(), "{when}: {troubles:#?}");
    };
    unbroken(&mut held, &flows, "without room for pins");
    common::eventually("all services have their tables", || !warnings().contains("tried again"));
    let refused = common::try_command(&balancer, "backend drain echo4 b1").unwrap_err();
    assert!(refused.contains("limits.unreported_flows"), "{refused}");
    unbroken(&mut held, &flows, "after a drain that was refused");
    assert_eq!(of_b3("flows"), before, "new flows of a dead backend");
    assert_eq!(common::dropped(&balancer.status().unwrap(), "pending_full"), 0);

    let text = fs::read_to_string(balancer.config()).unwrap();
    let more = text.replace("unreported_flows = 1000", "unreported_flows = 20000");
    assert_ne!(more, text);
    fs::write(balancer.config(), more).unwrap();
    common::command(&balancer, "reload");
    common::command(&balancer, "backend drain echo4 b1");
    assert!(!warnings().contains("not pinned"), "{}", warnings());
    unbroken(&mut held, &flows, "with room for pins");
    common::command(&balancer, "backend drain echo4 b1 --undo");
    lab.backend(3).start().unwrap();
    common::reach_all(&lab, WEB4, POOL);
    unbroken(&mut held, &flows, "with the backend again");
    assert_eq!(common::dropped(&balancer.status().unwrap(), "pending_full"), 0);
}

/// Operators who change limits at once: one comes after the other, and none is refused for it.
#[test]
fn changes_of_limits_at_once_wait_for_each_other() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 5, ..LabSpec::default() });
    let balancer = start(&lab, "concury", &SMALL);
    let mut held = common::hold_both(&lab, 60);
    let folder = tempfile::tempdir().unwrap();
    let wanted = [SMALL, LARGE];
    let files: Vec<String> = wanted
        .iter()
        .enumerate()
        .map(|(number, limits)| {
            let file = folder.path().join(format!("{number}.toml"));
            fs::write(&file, limits.text(&balancer)).unwrap();
            file.display().to_string()
        })
        .collect();
    for round in 0..3 {
        thread::scope(|scope| {
            let balancer = &balancer;
            for file in &files {
                scope.spawn(move || common::command(balancer, &format!("apply {file}")));
            }
        });
        common::assert_unbroken(&mut held, &format!("round {round}"), &balancer);
    }
    LARGE.write(&balancer);
    common::command(&balancer, "reload");
    LARGE.assert_in_force(&balancer, "at the end");
    change_pools(&balancer, &mut held, 1);
}

/// Also a start with a changed file takes the limits over, from whatever a SIGKILL has left.
#[test]
fn killed_while_limits_change_it_goes_on_from_a_whole_set() {
    let _alone = common::alone();
    let mut random = StdRng::seed_from_u64(common::seed());
    let lab = common::lab_of(LabSpec { backends: 5, ..LabSpec::default() });
    let balancer = start(&lab, "concury", &SMALL);
    let mut held = common::hold_both(&lab, 100);
    for round in 0..5 {
        for service in ["web4", "web6"] {
            common::command(&balancer, &format!("backend drain {service} b1"));
        }
        let limits = if round % 2 == 0 { LARGE } else { SMALL };
        limits.write(&balancer);
        balancer.hang_up();
        thread::sleep(Duration::from_micros(random.random_range(0..400_000)));
        common::kill_and_launch(&lab, &balancer, &mut held, &format!("round {round}"));
        limits.assert_in_force(&balancer, &format!("round {round}"));
        held.extend(common::hold_both(&lab, 10));
        change_pools(&balancer, &mut held, round);
    }
}

/// An upgrade, or a way back, that cannot read what is there says so and leaves it as it is.
#[test]
fn a_log_of_another_version_is_refused_before_anything_is_touched() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 5, clients: 1, ..LabSpec::default() });
    let balancer = start(&lab, "concury", &SMALL);
    let mut held = common::hold_both(&lab, 40);
    balancer.kill();
    let directory = balancer.config().parent().unwrap().join("weir");
    let is_log = |path: &std::path::PathBuf| path.extension().is_some_and(|name| name == "log");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let log = files.filter(is_log).max().expect("a log of states");
    // The version stands behind eight bytes of magic.
    let whole = fs::read(&log).unwrap();
    let mut other = whole.clone();
    other[8] += 1;
    fs::write(&log, other).unwrap();
    LARGE.write(&balancer);
    let refused = balancer.launch().unwrap_err().to_string();
    for words in [log.to_str().unwrap(), "it is of version 2, and this weir reads 1"] {
        assert!(refused.contains(words), "{refused}");
    }
    held.extend(common::hold_both(&lab, 10));
    common::assert_unbroken(&mut held, "after a start that was refused", &balancer);
    balancer.kill();
    fs::write(&log, whole).unwrap();
    balancer.launch().unwrap();
    LARGE.assert_in_force(&balancer, "after a start with the log as it was");
    change_pools(&balancer, &mut held, 1);
}
