//! What tests of planes in user space share: the process of one, what it counts, and kills.

use super as common;
use common::{Held, SERVICES};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use weir_lab::topology::INTERFACE;
use weir_lab::{Backend, Balancer, FrameSender, Lab, PoolControl, TrafficHandle};
use weir_testbed::packet::PacketSocket;
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, parse};

const BALANCER_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 0xff, 1];
const CLIENT_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 1, 1];
/// Frames that are on their way at a time: fewer than the smallest ring holds.
const BATCH: u32 = 32;

pub fn plane(balancer: &Balancer) -> Value {
    balancer.status().expect("status")["plane"].clone()
}

pub fn count(balancer: &Balancer, name: &str) -> u64 {
    plane(balancer)["counts"][name].as_u64().unwrap_or_else(|| panic!("no {name}"))
}

/// The process of the plane, as soon as one takes packets.
pub fn process(balancer: &Balancer) -> u32 {
    let mut process = None;
    common::eventually("a plane in user space takes packets", || {
        process = plane(balancer)["process"].as_u64();
        process.is_some()
    });
    process.expect("just found") as u32
}

pub fn kill(process: u32) {
    let done = Command::new("kill").args(["-KILL", &process.to_string()]).status();
    assert!(done.expect("kill").success(), "{process} is gone already");
}

pub fn is_there(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

pub fn gone(process: u32) {
    common::eventually("the plane in user space ends", || !is_there(process));
}

/// Does `work` until the plane has sent frames meanwhile: its counts come once a second.
pub fn sends_while(balancer: &Balancer, mut work: impl FnMut()) {
    let before = count(balancer, "sent");
    common::eventually("the plane in user space sends", || {
        work();
        count(balancer, "sent") > before
    });
}

/// Both processes are killed in turn, so many times, while the pool changes, and nothing breaks. Returns the
/// connections that are held.
pub fn unbroken_by_kills(
    lab: &Lab,
    balancer: &Balancer,
    pool: usize,
    rounds: u64,
    when: &str,
) -> Vec<Held> {
    let seed = common::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let mut held = common::hold_both(lab, 40);
    balancer.add(pool, 1).unwrap();
    for round in 0..rounds {
        let when = format!("{when}, round {round}, WEIR_SEED={seed}");
        let (weighed, drained) = (random.random_range(0..pool), random.random_range(0..=pool));
        balancer.set_weight(weighed, random.random_range(1..6)).unwrap();
        balancer.drain(drained).unwrap();
        held.extend(common::hold_both(lab, 10));
        let process = process(balancer);
        if round % 2 == 0 {
            let restarts = plane(balancer)["restarts"].as_u64().expect("restarts");
            // Packets are lost, and sent again; no connection is.
            kill(process);
            common::assert_unbroken(&mut held, &format!("{when}, no plane"), balancer);
            common::eventually("it is started again", || {
                plane(balancer)["restarts"].as_u64() > Some(restarts)
            });
            assert_ne!(self::process(balancer), process, "{when}");
        } else {
            balancer.kill();
            held.extend(common::hold_both(lab, 10));
            common::assert_unbroken(&mut held, &format!("{when}, killed"), balancer);
            assert!(is_there(process), "{when}: it goes on without the control plane");
            balancer.launch().unwrap();
            assert_eq!(self::process(balancer), process, "{when}: the same goes on");
        }
        common::assert_unbroken(&mut held, &when, balancer);
        balancer.undrain(drained).unwrap();
    }
    held
}

/// Ends what goes on beside a test, also if that fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Sends segments of connections that nobody has, each of another one, until it is over; each has to come to a
/// backend before more are sent. Counts those that have.
fn send_and_find(lab: &Lab, over: &AtomicBool, found: &AtomicU64) {
    let sender = FrameSender::open(&lab.clients()[0], INTERFACE).unwrap();
    let socket = || PacketSocket::open(INTERFACE).unwrap();
    let at = |backend: &Backend| (backend.netns().enter(socket).unwrap(), backend.mac());
    let sockets: Vec<(PacketSocket, [u8; 6])> = lab.backends().iter().map(at).collect();
    let mut buffer = vec![0; 2_048];
    let mut number = 0u32;
    while !over.load(Relaxed) {
        let mut missing = BTreeSet::new();
        let mut frames = Vec::new();
        for _ in 0..BATCH {
            // Addresses of 198.18.0.0/15, which nobody has.
            let from = IpAddr::V4(Ipv4Addr::from(0xc612_0000 | (number % (1 << 17))));
            let flow = FlowKey::new((from, 4_000).into(), common::WEB4, Protocol::Tcp);
            let frame = Frame::new(flow).macs(BALANCER_MAC, CLIENT_MAC).tcp_flags(TcpFlags::ACK);
            frames.push(frame.build());
            missing.insert(flow);
            number += 1;
        }
        sender.send(&frames).unwrap();
        common::eventually("each frame comes to a backend", || {
            for (socket, mac) in &sockets {
                while let Some(frame) = socket.receive(&mut buffer, Duration::ZERO).unwrap() {
                    // Not one that the switch has sent everywhere.
                    if let Some(packet) = parse(frame).ok().filter(|_| frame.starts_with(mac)) {
                        missing.remove(&packet.flow);
                    }
                }
            }
            missing.is_empty()
        });
        found.fetch_add(BATCH.into(), Relaxed);
    }
}

/// A control plane that is killed, and begins again, takes no frame with it: all that are sent meanwhile come to
/// backends, and the plane in user space is the same throughout.
pub fn loses_no_frame_by_kills(lab: &Lab, balancer: &Balancer) {
    let (process, sent) = (process(balancer), count(balancer, "sent"));
    let (over, found) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| send_and_find(lab, &over, &found));
        let more_arrive = |when: &str| {
            let enough = found.load(Relaxed) + 10 * u64::from(BATCH);
            common::eventually(when, || found.load(Relaxed) >= enough);
        };
        more_arrive("frames come to backends");
        for _ in 0..3 {
            balancer.kill();
            more_arrive("they do without a control plane");
            balancer.launch().unwrap();
            more_arrive("they do with another one");
        }
    });
    assert_eq!(self::process(balancer), process, "the same goes on");
    let half = found.load(Relaxed) / 2;
    common::eventually("it was this plane that sent them", || {
        count(balancer, "sent") >= sent + half
    });
}

/// A table of rules, of an emulated card.
pub fn rules(rules: u32, profile: &str) -> String {
    rules_of("emulated", rules, profile)
}

/// The same, of one that is emulated by memory, or in the kernel.
pub fn rules_of(card: &str, rules: u32, profile: &str) -> String {
    format!(
        "\n[offload]\ncard = \"{card}\"\nrules = {rules}\nqueues = 8\nchoice = \"all\"\n\
         profile = \"{profile}\"\n"
    )
}

/// Both processes are killed in turn while rules come and go, and nothing breaks; at the end rules lead packets.
/// `full`: there are packets of connections without a place.
pub fn unbroken_with_rules(lab: &Lab, balancer: &Balancer, pool: usize, what: &str, full: bool) {
    let traffic = common::mixed_traffic(lab, 150);
    let mut held = unbroken_by_kills(lab, balancer, pool, 6, what);
    let led = count(balancer, "led");
    common::eventually("rules lead packets", || {
        common::assert_unbroken(&mut held, what, balancer);
        let status = plane(balancer);
        let counts = |name: &str| status["counts"][name].as_u64().unwrap_or(0);
        let enough = counts("led") > led + 200 && counts("rules") > 0;
        enough && (!full || counts("rules_unplaced") > 100)
    });
    let status = plane(balancer);
    let card = status["offload"].as_str().unwrap_or_default();
    assert!(card.starts_with("emulated"), "{status}");
    assert!(status["counts"]["rules_asked"].as_u64() > Some(20), "{status}");
    let table = balancer.command(&["status"]).unwrap();
    assert!(table.contains(&format!("rules ({card}): ")), "{table}");
    let mut curl = lab.balancer().command("curl").unwrap();
    let read = curl.args(["-s", "http://127.0.0.1:9469/metrics"]).output().unwrap();
    let (read, labelled) = (common::stdout(&read), format!("weir_plane_rules{{card=\"{card}\"}} "));
    assert!(read.contains(&labelled), "no {labelled:?} in {read}");
    decides(balancer, &mut held);
    enough(traffic);
}

/// The plane decides packets of held connections, and all services had some.
pub fn decides(balancer: &Balancer, held: &mut [Held]) {
    sends_while(balancer, || common::assert_unbroken(held, "at the end", balancer));
    let services = balancer.status().unwrap();
    let services = SERVICES.map(|name| common::sum(common::service(&services, name), "packets"));
    assert!(services.iter().all(|packets| *packets > 0), "{services:?}");
}

/// Traffic that has gone on for long enough to tell ends: none of it broke.
pub fn enough(traffic: TrafficHandle) {
    common::eventually("enough was answered", || traffic.stats().snapshot().answers > 600);
    common::assert_none_broke(traffic);
}

pub fn unload(lab: &Lab, balancer: &Balancer) {
    let config = balancer.config().display().to_string();
    let output = common::weir_in(lab, &["unload", "--config", &config]);
    assert!(output.status.success(), "{}", common::stderr(&output));
}
