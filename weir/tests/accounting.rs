//! Every packet is accounted for: whenever traffic pauses, the frames that came in by the balancer's interface, as
//! its driver counts them, are those that weir says it has forwarded, left to the kernel, and dropped. In between the
//! pool, the ways and the program's helpers change, a control plane is killed, and hostile frames come. Nothing is
//! counted twice, and nothing is lost, also not what is counted while somebody else writes beside it.
//!
//! `WEIR_SECONDS=3600` goes on for so long; `WEIR_SEED=n` draws the same again.

mod common;

use common::{WEIR, command, command_all};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};
use weir_testbed::packet::PacketSocket;

const BACKENDS: usize = 4;
/// What the balancer's driver has handed to the program, over all queues.
const RECEIVED: &str = "_xdp_packets:";

/// Frames that have come in, as the driver counts them.
fn received(lab: &Lab) -> u64 {
    let mut ethtool = lab.balancer_command("ethtool").unwrap();
    let output = ethtool.args(["-S", "eth0"]).output().unwrap();
    let said = common::stdout(&output);
    let mut counts = said.lines().filter_map(|line| {
        let (name, count) = line.trim().rsplit_once(' ')?;
        (name.starts_with("rx_queue_") && name.ends_with(RECEIVED))
            .then(|| count.parse::<u64>().unwrap())
    });
    let first = counts.next().unwrap_or_else(|| panic!("no counters: {said}"));
    first + counts.sum::<u64>()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Frames that weir says it has forwarded, left to the kernel and dropped.
fn counted(status: &Value) -> [u64; 3] {
    let services = status["services"].as_array().unwrap().iter();
    let backends = services.flat_map(|service| service["backends"].as_array().unwrap());
    let forwarded = backends.map(|backend| number(&backend["packets"])).sum();
    // What came past the program came by another interface, or was passed by it before.
    let outcomes = status["outcomes"].as_array().unwrap();
    let outcomes = || outcomes.iter().filter(|one| one["reason"] != "past_program");
    [
        forwarded,
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
    let long = std::env::var("WEIR_SECONDS").map(|text| text.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(long.unwrap_or(0));
    let mut rng = StdRng::seed_from_u64(seed);
    let lab = common::lab_of(LabSpec { backends: BACKENDS, ..LabSpec::default() });
    let balancer = common::start_spec(&lab, BalancerSpec::new(WEIR, BACKENDS));
    let mut sums = assert_all_counted(&lab, &balancer, "at first");
    let mut rounds = 0;
    while rounds < 4 || Instant::now() < end {
        let traffic = common::mixed_traffic(&lab, 150);
        let over = AtomicBool::new(false);
        let done = thread::scope(|scope| {
            scope.spawn(|| flood(&lab, seed ^ rounds, &over));
            let mut done = Vec::new();
            for _ in 0..rng.random_range(3..8) {
                done.push(meddle(&mut rng, &lab, &balancer));
                thread::sleep(Duration::from_millis(rng.random_range(0..400)));
            }
            over.store(true, Relaxed);
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
    let [forwarded, passed, dropped] = sums;
    println!(
        "{rounds} rounds: {forwarded} forwarded, {passed} left to the kernel, {dropped} dropped"
    );
}
