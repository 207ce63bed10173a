//! Every packet is accounted for: whenever traffic pauses, the frames that came in by the balancer's interface, as
//! its driver counts them, are those that weir says it has forwarded, left to the kernel, and dropped. In between the
//! pool, the ways and the program's helpers change, a control plane is killed, and hostile frames come. Nothing is
//! counted twice, and nothing is lost, also not what is counted while somebody else writes beside it. With
//! `count_interfaces` that holds of each interface, by every way to backends; and while packets come, within those
//! that are in flight.
//!
//! `WEIR_SECONDS=3600` goes on for so long in each test (`make soak-accounting`); `WEIR_SEED=n` draws the same again.

mod common;

use common::{WEIR, command, command_all};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::topology::Topology;
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};
use weir_testbed::packet::PacketSocket;
use weir_testbed::xdp::Pinned;

const BACKENDS: usize = 4;
/// What the balancer's driver has handed to the program, over all queues.
const RECEIVED: &str = "_xdp_packets:";

/// Frames that have come in, as the driver counts them.
fn received(lab: &Lab) -> u64 {
    received_by(lab, "eth0")
}

/// The same by one of the balancer's interfaces.
fn received_by(lab: &Lab, interface: &str) -> u64 {
    by_queue(lab, interface).iter().sum()
}

/// The same by each of its queues.
fn by_queue(lab: &Lab, interface: &str) -> Vec<u64> {
    let mut ethtool = lab.balancer_command("ethtool").unwrap();
    let output = ethtool.args(["-S", interface]).output().unwrap();
    let said = common::stdout(&output);
    let counts = said.lines().filter_map(|line| {
        let (name, count) = line.trim().rsplit_once(' ')?;
        (name.starts_with("rx_queue_") && name.ends_with(RECEIVED))
            .then(|| count.parse::<u64>().unwrap())
    });
    let counts: Vec<u64> = counts.collect();
    assert!(!counts.is_empty(), "no counters: {said}");
    counts
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Frames that weir says it has forwarded, as answers of backends to clients, too; left to the kernel; and dropped.
fn counted(status: &Value) -> [u64; 3] {
    let services = status["services"].as_array().unwrap().iter();
    let backends = services.flat_map(|service| service["backends"].as_array().unwrap());
    let forwarded: u64 = backends.map(|backend| number(&backend["packets"])).sum();
    // Where backends have other addresses than their services.
    let returned = status["returned"].as_object().map_or(0, |all| number(&all["packets"]));
    // What came past the program came by another interface, or was passed by it before.
    let outcomes = status["outcomes"].as_array().unwrap();
    let outcomes = || outcomes.iter().filter(|one| one["reason"] != "past_program");
    [
        forwarded + returned,
        outcomes().map(|one| number(&one["passed"])).sum(),
        outcomes().map(|one| number(&one["dropped"])).sum(),
    ]
}

/// Waits for a moment in which nothing comes in, and compares; health checks go on all the time.
fn assert_all_counted(lab: &Lab, balancer: &Balancer, when: &str) -> [u64; 3] {
    let mut last = String::new();
    let started = Instant::now();
    loop {
        let before = received(lab);
        let status = balancer.status().unwrap();
        let after = received(lab);
        let sums = counted(&status);
        let all: u64 = sums.iter().sum();
        if before == after {
            last = format!("{before} came in, {all} are counted: {sums:?}\n{}", status["outcomes"]);
            if all == before {
                return sums;
            }
        }
        let over = started.elapsed() > Duration::from_secs(20) && !last.is_empty();
        assert!(!over && started.elapsed() < common::PATIENCE, "{when}: {last}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Frames of every kind that nobody has asked for: of other protocols, cut short, for the services from
/// anywhere, or none at all.
fn junk(rng: &mut StdRng, own: [u8; 6]) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..rng.random_range(14..200)).map(|_| rng.random()).collect();
    frame[..6].copy_from_slice(&own);
    if rng.random_bool(0.1) {
        frame[..6].fill(0xff);
    }
    frame[6] &= 0xfe;
    match rng.random_range(0..6) {
        0 => frame[12..14].copy_from_slice(&[0x08, 0x06]),
        1 => frame[12..14].copy_from_slice(&[0x86, 0xdd]),
        2..5 => {
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            frame.resize(frame.len().max(54), 0);
            frame[14] = *[0x45, 0x46, 0x4f, 0x60].get(rng.random_range(0..4)).unwrap();
            let length = (frame.len() - 14) as u16;
            frame[16..18].copy_from_slice(&length.to_be_bytes());
            frame[23] = *[1, 6, 17, 132, 4].get(rng.random_range(0..5)).unwrap();
            // The service's address.
            frame[30..34].copy_from_slice(&[10, 77, 0, 100]);
        }
        _ => {}
    }
    frame
}

/// The MAC address of the balancer's interface.
fn own_mac(lab: &Lab) -> [u8; 6] {
    let output = lab.balancer_command("ip").unwrap().args(["link", "show", "eth0"]).output();
    let said = common::stdout(&output.unwrap());
    let mut words = said.split_whitespace().skip_while(|word| *word != "link/ether");
    let text = words.nth(1).unwrap_or_else(|| panic!("no address: {said}"));
    let bytes: Vec<u8> = text.split(':').map(|one| u8::from_str_radix(one, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

fn flood(lab: &Lab, seed: u64, over: &AtomicBool) {
    let mut rng = StdRng::seed_from_u64(seed);
    let own = own_mac(lab);
    let client = lab.clients()[0].enter(|| PacketSocket::sender("eth0").unwrap()).unwrap();
    while !over.load(Relaxed) {
        let frames: Vec<Vec<u8>> = (0..32).map(|_| junk(&mut rng, own)).collect();
        // One that finds no room has not come in.
        let _ = client.send_all(&frames);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Ends a flood, also if the test fails beside it, which would wait for it for ever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// How long a test goes on beyond its rounds.
fn seconds() -> Duration {
    let long = std::env::var("WEIR_SECONDS").map(|text| text.parse().expect("a number of seconds"));
    Duration::from_secs(long.unwrap_or(0))
}

/// Prints what was compared at last, which has been so at the end of each round.
fn print_sums(what: &str, started: Instant, rounds: u64, [forwarded, passed, dropped]: [u64; 3]) {
    let (seconds, all) = (started.elapsed().as_secs(), forwarded + passed + dropped);
    println!(
        "{what}, {seconds} s, {rounds} rounds: {all} came in = {forwarded} forwarded + {passed} left to the kernel + \
         {dropped} dropped"
    );
}

/// Something that is done while packets are counted.
fn meddle(rng: &mut StdRng, lab: &Lab, balancer: &Balancer) -> &'static str {
    let backend = rng.random_range(0..BACKENDS);
    match rng.random_range(0..6) {
        0 => {
            let weight = rng.random_range(1..10);
            command_all(balancer, |service| {
                format!("backend weight {service} b{backend} {weight}")
            });
            "weight"
        }
        1 => {
            command_all(balancer, |service| format!("backend drain {service} b{backend}"));
            command_all(balancer, |service| format!("backend drain {service} b{backend} --undo"));
            "drain"
        }
        2 | 3 => {
            // Every way is another one: next hops are forgotten on all processors.
            let text = std::fs::read_to_string(balancer.config()).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with("mss = "));
            let text = lines.collect::<Vec<_>>().join("\n") + "\n";
            let mss = format!("protocol = \"tcp\"\nmss = {}\n", rng.random_range(600..1400));
            std::fs::write(balancer.config(), text.replace("protocol = \"tcp\"\n", &mss)).unwrap();
            command(balancer, "reload");
            "ways"
        }
        4 => {
            balancer.kill();
            thread::sleep(Duration::from_millis(rng.random_range(0..300)));
            balancer.launch().unwrap();
            "kill"
        }
        _ => {
            lab.backend(backend).kill();
            thread::sleep(Duration::from_millis(rng.random_range(0..1500)));
            lab.backend(backend).start().unwrap();
            "death"
        }
    }
}

#[test]
fn every_packet_is_counted_once() {
    let _alone = common::alone();
    let seed = common::seed();
    let started = Instant::now();
    let end = started + seconds();
    let mut rng = StdRng::seed_from_u64(seed);
    let lab = common::lab_of(LabSpec { backends: BACKENDS, ..LabSpec::default() });
    let balancer = common::start_spec(&lab, BalancerSpec::new(WEIR, BACKENDS));
    let mut sums = assert_all_counted(&lab, &balancer, "at first");
    let mut rounds = 0;
    while rounds < 4 || Instant::now() < end {
        let traffic = common::mixed_traffic(&lab, 150);
        let over = AtomicBool::new(false);
        let done = thread::scope(|scope| {
            let _over = Over(&over);
            scope.spawn(|| flood(&lab, seed ^ rounds, &over));
            let mut done = Vec::new();
            for _ in 0..rng.random_range(3..8) {
                done.push(meddle(&mut rng, &lab, &balancer));
                thread::sleep(Duration::from_millis(rng.random_range(0..400)));
            }
            done
        });
        let report = traffic.finish().unwrap();
        assert_eq!(report.totals.broken, 0, "{:#?}", report.broken_connections);
        assert!(report.totals.answers > 100, "{report:?}");
        let when = format!("round {rounds} of WEIR_SEED={seed}, after {done:?}");
        let now = assert_all_counted(&lab, &balancer, &when);
        let more: Vec<u64> = now.iter().zip(&sums).map(|(now, before)| now - before).collect();
        assert!(more.iter().all(|one| *one > 50), "{when}: {more:?}");
        sums = now;
        rounds += 1;
    }
    print_sums("l2", started, rounds, sums);
}

/// What weir says became of frames, by the interface that they came by: forwarded, left to the kernel, dropped.
fn by_interface(status: &Value) -> BTreeMap<String, [u64; 3]> {
    let rows = status["by_interface"].as_array().unwrap_or_else(|| panic!("not counted: {status}"));
    let row = |row: &Value| {
        let counts = ["forwarded", "passed", "dropped"].map(|what| number(&row[what]));
        (row["interface"].as_str().unwrap().to_owned(), counts)
    };
    rows.iter().map(row).collect()
}

/// Waits for a moment in which nothing comes in by any interface, and compares each, and the sums.
fn assert_each_counted(
    lab: &Lab,
    balancer: &Balancer,
    interfaces: &[&str],
    when: &str,
) -> BTreeMap<String, [u64; 3]> {
    let all = || interfaces.iter().map(|one| received_by(lab, one)).collect::<Vec<u64>>();
    let started = Instant::now();
    let mut last = String::new();
    loop {
        let before = all();
        let status = balancer.status().unwrap();
        if before == all() {
            let rows = by_interface(&status);
            let of = |name: &&str| rows.get(*name).copied().unwrap_or_default();
            let each: Vec<u64> = interfaces.iter().map(|one| of(one).iter().sum()).collect();
            let sums = [0, 1, 2].map(|what| rows.values().map(|row| row[what]).sum::<u64>());
            let instance = counted(&status);
            last = format!("{before:?} came in; {rows:?}; of the instance {instance:?}");
            if each == before && sums == instance {
                return rows;
            }
        }
        let over = started.elapsed() > Duration::from_secs(20) && !last.is_empty();
        assert!(!over && started.elapsed() < common::PATIENCE, "{when}: {last}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The frames that a queue's turn takes at most (`NAPI_POLL_WEIGHT`); its driver adds them up at the end of it.
const TURN: u64 = 64;

/// Compares each interface while packets come, and says how many came meanwhile. The program has counted a frame
/// before its driver does, which adds up a queue's frames when its turn is over: so weir has counted at least what
/// drivers had before it was asked, and at most what they have afterwards and one turn more of each queue, which may
/// still go on.
fn assert_in_flight(lab: &Lab, balancer: &Balancer, interfaces: &[&str], when: &str) -> u64 {
    let all = || interfaces.iter().map(|one| by_queue(lab, one)).collect::<Vec<_>>();
    let before = all();
    let rows = by_interface(&balancer.status().unwrap());
    let after = all();
    let mut came = 0;
    for ((name, before), after) in interfaces.iter().zip(&before).zip(&after) {
        let counted: u64 = rows.get(*name).copied().unwrap_or_default().iter().sum();
        let (least, known): (u64, u64) = (before.iter().sum(), after.iter().sum());
        let most = known + TURN * after.len() as u64;
        assert!(
            (least..=most).contains(&counted),
            "{when}: {counted} are counted by {name}, and not {least} to {most}: {rows:?}"
        );
        came += known - least;
    }
    came
}

/// Where frames are counted by the interface that they came by.
struct Place {
    topology: Topology,
    /// How services forward.
    forward: &'static str,
    /// Those that have a program: the clients', and perhaps another one.
    interfaces: &'static [&'static str],
    /// Whether answers of backends come by the program as well, and go on as the services'.
    returned: bool,
}

/// Packets, junk and whatever else meddles, a trace and a killed control plane: counts by interface are the drivers'
/// whenever traffic pauses, and within what is in flight otherwise.
fn counted_by_interface(place: &Place, balancer_lines: &str) -> (Arc<Lab>, Balancer) {
    let seed = common::seed();
    let started = Instant::now();
    let end = started + seconds();
    let mut rng = StdRng::seed_from_u64(seed);
    let &Place { topology, forward, interfaces, returned } = place;
    let lab = common::lab_of(LabSpec { backends: BACKENDS, topology, ..LabSpec::default() });
    let spec = BalancerSpec {
        balancer_lines: format!("count_interfaces = true\n{balancer_lines}"),
        service_lines: format!("forward = \"{forward}\""),
        ..BalancerSpec::new(WEIR, BACKENDS)
    };
    let balancer = common::start_spec(&lab, spec);
    let mut before = assert_each_counted(&lab, &balancer, interfaces, "at first");
    let (mut rounds, mut compared, mut came) = (0, 0, 0);
    while rounds < 3 || Instant::now() < end {
        let traffic = common::mixed_traffic(&lab, 100);
        let over = AtomicBool::new(false);
        let done = thread::scope(|scope| {
            let _over = Over(&over);
            scope.spawn(|| flood(&lab, seed ^ rounds, &over));
            let mut done = Vec::new();
            for number in 0..3 {
                done.push(match (rounds % 3, number) {
                    // Another program has its place for as long as somebody looks.
                    (1, 0) => {
                        let trace = ["trace", "--for", "2s", "--reason", "other_protocol"];
                        balancer.command(&trace).unwrap();
                        "trace"
                    }
                    (2, 0) => {
                        balancer.kill();
                        thread::sleep(Duration::from_millis(200));
                        balancer.launch().unwrap();
                        "kill"
                    }
                    _ => meddle(&mut rng, &lab, &balancer),
                });
                let when = format!("round {rounds} of WEIR_SEED={seed}, after {done:?}");
                for _ in 0..5 {
                    came += assert_in_flight(&lab, &balancer, interfaces, &when);
                    compared += 1;
                }
                thread::sleep(Duration::from_millis(rng.random_range(0..300)));
            }
            done
        });
        let report = traffic.finish().unwrap();
        assert_eq!(report.totals.broken, 0, "{:#?}", report.broken_connections);
        let when = format!("round {rounds} of WEIR_SEED={seed}, after {done:?}");
        let now = assert_each_counted(&lab, &balancer, interfaces, &when);
        // Nothing may have come by one of them at first.
        let of = |rows: &BTreeMap<String, [u64; 3]>, name: &str| {
            rows.get(name).copied().unwrap_or_default()
        };
        let more = |name: &str| {
            let (now, before) = (of(&now, name), of(&before, name));
            [0, 1, 2].map(|what| now[what] - before[what])
        };
        // Of clients every kind; of backends what goes on as a service's answer.
        assert!(more("eth0").iter().all(|one| *one > 20), "{when}: {:?}", more("eth0"));
        if let [_, other] = interfaces {
            let forwarded = more(other)[0];
            let right = if returned { forwarded > 20 } else { forwarded == 0 };
            assert!(right, "{when}: {:?}", more(other));
        }
        before = now;
        rounds += 1;
    }
    let answers = balancer.status().unwrap()["returned"]["packets"].as_u64();
    assert_eq!(answers.is_some_and(|answers| answers > 100), returned, "{answers:?}");
    // Most of them see packets come.
    assert!(came > compared, "{came} frames came in {compared} comparisons");
    let sums = [0, 1, 2].map(|what| before.values().map(|row| row[what]).sum::<u64>());
    print_sums(topology.name(), started, rounds, sums);
    println!("{compared} comparisons while {came} frames came: {before:?}");
    (lab, balancer)
}

/// Clients' packets come by one interface and leave by the other, by which backends' answers to health checks come.
/// Some are dropped, some are left to the next program.
#[test]
fn every_packet_is_counted_by_the_interface_that_it_came_by() {
    let _alone = common::alone();
    let pin = PathBuf::from(format!("/sys/fs/bpf/counted-{}", std::process::id()));
    let _next = Pinned::without_pings(&pin, true).unwrap();
    let next = format!("next_program = {:?}\n", pin.display().to_string());
    let place = Place {
        topology: Topology::Dual,
        forward: "l2",
        interfaces: &["eth0", "eth1"],
        returned: false,
    };
    let (_lab, balancer) = counted_by_interface(&place, &next);
    let text = balancer.command(&["status"]).unwrap();
    assert!(text.lines().any(|line| line.trim_start().starts_with("came by")), "{text}");
    // It is a program of its own: for the other one the balancer is to start anew.
    let text = std::fs::read_to_string(balancer.config()).unwrap();
    std::fs::write(balancer.config(), text.replace("count_interfaces = true\n", "")).unwrap();
    let refused = balancer.command(&["reload"]).unwrap_err().to_string();
    assert!(refused.contains("count_interfaces cannot change while weir runs"), "{refused}");
    balancer.kill();
    balancer.launch().unwrap();
    assert!(balancer.status().unwrap()["by_interface"].is_null(), "nobody asks for it any more");
}

/// In tunnels they leave by the interface that they came by, longer than they came.
#[test]
fn every_packet_is_counted_by_its_interface_where_tunnels_lead_to_backends() {
    let _alone = common::alone();
    let place = Place {
        topology: Topology::Routed,
        forward: "ipip",
        interfaces: &["eth0"],
        returned: false,
    };
    counted_by_interface(&place, "");
}

/// Answers come by the other one, and go on as the services'.
#[test]
fn every_packet_is_counted_by_its_interface_where_addresses_are_translated() {
    let _alone = common::alone();
    let place = Place {
        topology: Topology::Nat,
        forward: "nat",
        interfaces: &["eth0", "eth1"],
        returned: true,
    };
    counted_by_interface(&place, "");
}

/// Answers come by the one that there is, too.
#[test]
fn every_packet_is_counted_by_its_interface_where_sources_are_translated() {
    let _alone = common::alone();
    let place = Place {
        topology: Topology::FullNat,
        forward: "fullnat",
        interfaces: &["eth0"],
        returned: true,
    };
    counted_by_interface(&place, "");
}

/// An interface that comes back is counted from 0 on, as its driver's own counters are, and what came by the one
/// before stays in the sum.
#[test]
fn an_interface_that_is_gone_keeps_its_counts_among_the_others() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, ..LabSpec::default() });
    let balancer_lines = "count_interfaces = true\n".to_owned();
    let spec = BalancerSpec { balancer_lines, ..BalancerSpec::new(WEIR, 2) };
    let balancer = common::start_spec(&lab, spec);
    let traffic = common::mixed_traffic(&lab, 50);
    thread::sleep(Duration::from_millis(300));
    traffic.finish().unwrap();
    let before = assert_each_counted(&lab, &balancer, &["eth0"], "at first")["eth0"];
    lab.replace_balancer_interface().unwrap();
    common::eventually("the counts of the one before are the others'", || {
        let rows = by_interface(&balancer.status().unwrap());
        let at_least = |row: &[u64; 3]| row.iter().zip(before).all(|(now, before)| *now >= before);
        rows.get("(others)").is_some_and(at_least)
    });
    common::shorts(&lab, common::WEB4, 50, 0, 1);
    common::eventually("the new one is counted, and the sums are the instance's", || {
        let status = balancer.status().unwrap();
        let rows = by_interface(&status);
        let sums = [0, 1, 2].map(|what| rows.values().map(|row| row[what]).sum::<u64>());
        rows.len() == 2 && rows["eth0"][0] > 0 && sums == counted(&status)
    });
}
