//! Promise 4: a flood of new flows costs bounded memory and does not break connections that exist.

mod common;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use common::{WEB4, WEB6};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use weir_lab::topology::INTERFACE;
use weir_lab::{Balancer, BalancerSpec, FrameSender, Lab, LabSpec};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

const BALANCER_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 0xff, 1];
const CLIENT_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 1, 1];
/// What limits.states_per_service is set to.
const STATES: u64 = 50_000;
/// Many times what is remembered.
const SYNS: u64 = 500_000;
/// What `weir run` may allocate, in MB: it took 12.
const MOST_OWN: u64 = 64;
/// The same with the kernel's tables that it maps: they took 106.
const MOST_RSS: u64 = 256;

/// SYNs from random addresses of 198.18.0.0/15, which no route leads to: backends do not answer.
fn flood(lab: &Lab, seed: u64, sent: &AtomicU64, enough: &AtomicBool, stop: &AtomicBool) {
    let sender = FrameSender::open(&lab.clients()[0], INTERFACE).unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    while !stop.load(Relaxed) && (sent.load(Relaxed) < SYNS || !enough.load(Relaxed)) {
        let frames: Vec<Vec<u8>> = (0..512)
            .map(|_| {
                let address = Ipv4Addr::from(0xc612_0000 | random.random_range(0..1 << 17));
                let from = SocketAddr::new(IpAddr::V4(address), random.random_range(1..=u16::MAX));
                Frame::new(FlowKey::new(from, WEB4, Protocol::Tcp))
                    .macs(BALANCER_MAC, CLIENT_MAC)
                    .tcp_flags(TcpFlags::SYN)
                    .build()
            })
            .collect();
        sender.send(&frames).unwrap();
        sent.fetch_add(frames.len() as u64, Relaxed);
    }
}

/// Resident memory of `weir run` in MB: what it has allocated, and with the mapped tables.
fn memory(balancer: &Balancer) -> (u64, u64) {
    let pid = balancer.pid().expect("weir runs");
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect("field");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
    };
    (field("RssAnon:") / 1024, field("VmRSS:") / 1024)
}

/// Floods while `meanwhile` runs, again and again, until all SYNs are sent and so many rounds are
/// over; returns how many SYNs that were.
fn while_flooding(lab: &Lab, seed: u64, rounds: usize, mut meanwhile: impl FnMut(usize)) -> u64 {
    let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let enough = AtomicBool::new(false);
    let started = Instant::now();
    thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(lab, seed, &sent, &enough, &stop));
        // A panic in `meanwhile` must end the flood too, or the scope waits for it for long.
        let guard = Stop(&stop);
        let mut round = 0;
        while !flooding.is_finished() {
            meanwhile(round);
            round += 1;
            enough.store(round >= rounds, Relaxed);
        }
        drop(guard);
    });
    let sent = sent.load(Relaxed);
    let rate = sent as f64 / started.elapsed().as_secs_f64();
    println!("{sent} SYNs, {rate:.0} per second");
    assert!(sent >= SYNS);
    sent
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn start(lab: &std::sync::Arc<Lab>, method: &str, limits: &str) -> Balancer {
    common::start_spec(
        lab,
        BalancerSpec {
            method: method.into(),
            balancer_lines: format!("[limits]\n{limits}\n"),
            // A machine that is busy with the flood may answer checks late. A backend that went
            // down for that would change the pool, which is not what is tried here.
            check_interval: Duration::from_secs(3),
            ..BalancerSpec::new(common::WEIR, 4)
        },
    )
}

#[test]
fn a_flood_breaks_nothing_and_fills_nothing() {
    let _alone = common::alone();
    let seed = common::seed();
    let lab = common::lab_of(LabSpec { backends: 5, ..LabSpec::default() });
    let balancer = start(&lab, "concury", &format!("states_per_service = {STATES}"));
    let mut held = common::hold(&lab, WEB4, 400);
    held.extend(common::hold(&lab, WEB6, 100));
    // Their reports are in before the flood begins.
    let before = balancer.status().unwrap();
    assert!(common::service(&before, "web4")["states"].as_u64() >= Some(400));

    let changes: [&[&str]; 9] = [
        &["backend", "drain", "web4", "b0"],
        &["backend", "add", "web4", "b4", "10.77.2.5", "--weight", "2"],
        &["backend", "weight", "web4", "b1", "5"],
        &["backend", "drain", "web4", "b0", "--undo"],
        &["backend", "drain", "web4", "b2"],
        &["backend", "weight", "web4", "b3", "0"],
        &["backend", "weight", "web4", "b3", "2"],
        &["backend", "drain", "web4", "b2", "--undo"],
        &["backend", "remove", "web4", "b4"],
    ];
    let (mut made, mut most) = (0, 0);
    let sent = while_flooding(&lab, seed, 4, |round| {
        if round > 0 {
            balancer.command(changes[made % changes.len()]).unwrap();
            made += 1;
        }
        common::assert_unbroken(&mut held, "in a flood", &balancer);
        most = most.max(memory(&balancer).0);
    });
    println!("{made} changes during the flood");
    assert!(made >= 3, "only {made} changes during the flood");
    // To the end of the list and once through it: the pool is whole again.
    for number in made..made.next_multiple_of(changes.len()) + changes.len() {
        balancer.command(changes[number % changes.len()]).unwrap();
        common::assert_unbroken(&mut held, "after a flood", &balancer);
    }
    let status = balancer.status().unwrap();
    let web = common::service(&status, "web4");
    let (states, refused) =
        (web["states"].as_u64().unwrap(), web["refused_states"].as_u64().unwrap());
    assert!(states <= STATES, "{states} states");
    assert!(refused > sent / 2, "{refused} of {sent} refused");
    let (own, all) = memory(&balancer);
    most = most.max(own);
    println!("memory of weir run: at most {most} MB, with its tables {all} MB");
    assert!(most < MOST_OWN && all < MOST_RSS, "{most} and {all} MB");
    // All that came was steered, or is accounted for.
    let flows = common::sum(web, "flows") - common::sum(common::service(&before, "web4"), "flows");
    let dropped: u64 = status["outcomes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            println!("{}: {} dropped", one["reason"], one["dropped"]);
            one["dropped"].as_u64().unwrap()
        })
        .sum();
    println!("{flows} flows, {dropped} dropped by weir, {states} states, {refused} refused");
    assert!(flows + dropped <= sent + 2000 && flows + dropped > sent / 2);
    // New connections are served during and after it.
    assert!(common::shorts(&lab, WEB4, 200, 0, seed).len() >= 4);
}

/// The connection table is bounded and forgets who was silent longest; those that it forgot are
/// found again by Maglev, as long as the pool does not change (docs/tracked.md).
#[test]
fn a_flood_of_a_connection_table_is_bounded() {
    let _alone = common::alone();
    let seed = common::seed();
    let lab = common::lab_of(LabSpec { backends: 4, ..LabSpec::default() });
    let balancer = start(&lab, "tracked", &format!("tracked_flows = {STATES}"));
    let mut held = common::hold(&lab, WEB4, 300);
    let before = memory(&balancer).0;
    while_flooding(&lab, seed, 1, |_| {
        common::assert_unbroken(&mut held, "in a flood", &balancer);
    });
    common::assert_unbroken(&mut held, "after a flood", &balancer);
    let after = memory(&balancer).0;
    assert!(after < before + 64, "from {before} to {after} MB");
}
