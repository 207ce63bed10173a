//! A program at the far end of a veth device leads frames to receive queues, as the rules of a card do that is
//! **emulated**: with the delays and losses of one.

use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};
use weir_dataplane::Error;
use weir_dataplane::card::VethCard;
use weir_offload::emulated::{Delay, Leads, Mirrored, Profile};
use weir_offload::{Answered, Location, Queue, Refusal, Rule, Rules, Serial};
use weir_testbed::link::{self, End};
use weir_testbed::packet::{self, PacketSocket};
use weir_testbed::{Namespaces, NetNs, xdp};
use weir_wire::craft::{Frame, fragments};
use weir_wire::{FlowKey, Protocol};

/// A machine that is busy with other things is slow.
const PATIENCE: Duration = Duration::from_secs(120);
const HOUR: Duration = Duration::from_secs(3_600);
const QUEUES: usize = 4;
const NEAR: [u8; 6] = [2, 0x99, 0, 0, 0, 1];
const CLIENT: [u8; 6] = [2, 0x99, 0, 0, 0, 2];
/// Fewer than a receive ring holds.
const BURST: usize = 50;

/// A client behind a bridge, at whose other port is the far end of lb0.
struct World {
    near: NetNs,
    far: NetNs,
    client: PacketSocket,
    _namespaces: Namespaces,
}

impl World {
    fn new() -> Self {
        let mut namespaces = Namespaces::new("card");
        let [near, far, client] =
            ["n", "f", "c"].map(|role| namespaces.add(role).expect("a namespace; needs root"));
        for one in [&near, &far, &client] {
            for of in ["all", "default"] {
                one.sysctl(&format!("ipv6/conf/{of}/disable_ipv6"), "1").expect("a setting");
            }
        }
        for of in ["iptables", "ip6tables"] {
            // Where bridges know of filters at all, these are nobody's.
            let _ = far.sysctl(&format!("bridge/bridge-nf-call-{of}"), "0");
        }
        let ends = [End::new("p0").queues(1), End::new("src0").queues(1).inside(&client)];
        let mut lines = link::veth(&ends);
        let ours = End::new("lb0").mac(NEAR).queues(QUEUES as u16).inside(&near);
        lines += &link::veth(&[End::new("p1").queues(QUEUES as u16), ours]);
        lines += "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
                  link set p0 master br0\nlink set p1 master br0\n";
        lines += &["br0", "p0", "p1"].map(link::up).concat();
        far.ip(&lines).expect("links");
        client.ip(&link::up("src0")).expect("a link");
        near.ip(&link::up("lb0")).expect("a link");
        // With a program the driver counts what comes by each queue.
        xdp::attach_pass(&near, "lb0").expect("a program");
        let socket = client.enter(|| PacketSocket::sender("src0")).expect("a namespace");
        let world = Self { near, far, client: socket.expect("a socket"), _namespaces: namespaces };
        world.await_way();
        world
    }

    /// Links take a while until they forward. Frames of a flow do not overtake each other: when the last has come, all
    /// before it have come or are lost.
    fn await_way(&self) {
        let arrivals = self.near.enter(|| PacketSocket::open("lb0")).expect("a namespace");
        let arrivals = arrivals.expect("a socket");
        let of_length = |bytes: u16| Frame::new(flow(0)).macs(NEAR, CLIENT).payload(bytes).build();
        let (first, last) = (of_length(1), of_length(2));
        let (deadline, mut arrived, mut buffer) = (Instant::now() + PATIENCE, 0, [0; 2048]);
        let mut is_last = false;
        while !is_last {
            assert!(Instant::now() < deadline, "frames do not come");
            if arrived == 0 {
                // Until there is a carrier none is taken.
                let _ = self.client.send(&first);
            }
            let wait = Duration::from_millis(20);
            let Some(frame) = arrivals.receive(&mut buffer, wait).expect("readable") else {
                continue;
            };
            is_last = frame == last;
            if arrived == 0 {
                self.client.send(&last).expect("sent");
            }
            arrived += 1;
        }
        // The driver counts them when it has handed them over.
        while self.received().iter().sum::<u64>() < arrived {
            assert!(Instant::now() < deadline, "frames are not counted");
            sleep(Duration::from_millis(1));
        }
    }

    fn card(&self, flows: u32) -> VethCard {
        self.near.enter(|| VethCard::open("lb0", flows)).expect("a namespace").expect("a card")
    }

    /// Frames that have come by each queue.
    fn received(&self) -> [u64; QUEUES] {
        let mut ethtool = self.near.command("ethtool").expect("a namespace");
        let said = ethtool.args(["-S", "lb0"]).output().expect("ethtool runs");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let mut counts = [0; QUEUES];
        for line in said.lines() {
            let Some((name, count)) = line.trim().rsplit_once(' ') else { continue };
            let queue = name.strip_prefix("rx_queue_");
            let queue = queue.and_then(|rest| rest.strip_suffix("_xdp_packets:"));
            if let Some(queue) = queue.and_then(|queue| queue.parse::<usize>().ok()) {
                counts[queue] = count.parse().expect("a number");
            }
        }
        counts
    }

    /// Sends frames and waits for them; returns how many came by each queue.
    fn send(&self, frames: &[Vec<u8>]) -> [u64; QUEUES] {
        let before = self.received();
        let more = || {
            let now = self.received();
            let mut more = [0; QUEUES];
            (0..QUEUES).for_each(|queue| more[queue] = now[queue] - before[queue]);
            more
        };
        let (deadline, mut sent) = (Instant::now() + PATIENCE, 0);
        for burst in frames.chunks(BURST) {
            burst.iter().for_each(|frame| self.client.send(frame).expect("sent"));
            sent += burst.len() as u64;
            while more().iter().sum::<u64>() < sent {
                assert!(Instant::now() < deadline, "{sent} sent, {:?} have come", more());
                sleep(Duration::from_millis(1));
            }
        }
        more()
    }
}

/// The card's program as what an emulated card decides for.
struct Played<'a>(&'a VethCard);

impl Leads for Played<'_> {
    type Error = Error;

    fn lead(&mut self, flow: &FlowKey, queues: [Queue; 2]) -> Result<(), Error> {
        match queues {
            [Queue::SOFTWARE, Queue::SOFTWARE] => self.0.forget(flow),
            queues => self.0.lead(flow, queues.map(|queue| queue.0)),
        }
    }
}

fn flow(number: u16) -> FlowKey {
    let from = ([10, 0, 0, 1], 1024 + number).into();
    FlowKey::new(from, ([10, 9, 0, 1], 80).into(), Protocol::Tcp)
}

fn flow6(number: u16) -> FlowKey {
    let address = |last: u16| [0xfd77, 0, 0, 0, 0, 0, 0, last];
    let from = (address(1), 1024 + number).into();
    FlowKey::new(from, (address(0x100), 80).into(), Protocol::Tcp)
}

fn frame(flow: &FlowKey) -> Vec<u8> {
    Frame::new(*flow).macs(NEAR, CLIENT).build()
}

fn frames(of: &[(FlowKey, usize)]) -> Vec<Vec<u8>> {
    of.iter().flat_map(|(flow, count)| vec![frame(flow); *count]).collect()
}

#[test]
fn frames_come_by_the_queue_that_a_rule_says() {
    let world = World::new();
    let card = world.card(8);
    assert_eq!(usize::from(card.queues()), QUEUES);
    let before = card.counts().expect("readable");
    let all = frames(&[(flow(1), 10), (flow(2), 20), (flow6(3), 30)]);
    assert_eq!(world.send(&all), [60, 0, 0, 0]);
    card.lead(&flow(2), [2, 2]).expect("there is room");
    card.lead(&flow6(3), [3, 3]).expect("there is room");
    assert_eq!(world.send(&all), [10, 0, 20, 30]);
    card.lead(&flow(2), [1, 1]).expect("it has a place");
    assert_eq!(world.send(&all), [10, 20, 0, 30]);
    // Of another port, another protocol, with a tag, in pieces.
    let with = |change: fn(&mut FlowKey)| {
        let mut other = flow(2);
        change(&mut other);
        frame(&other)
    };
    let whole = Frame::new(flow(2)).macs(NEAR, CLIENT);
    let mut others = vec![
        with(|flow| flow.dst_port = 81),
        with(|flow| flow.protocol = Protocol::Udp),
        whole.clone().vlan(5).build(),
    ];
    others.extend(fragments(&whole.payload(1_000).build(), 7, 512));
    assert!(others.len() > 4);
    assert_eq!(world.send(&others), [others.len() as u64, 0, 0, 0]);
    card.forget(&flow(2)).expect("it goes");
    card.forget(&flow(2)).expect("it need not be there");
    assert_eq!(world.send(&all), [30, 0, 0, 30]);
    let counts = card.counts().expect("readable");
    let misses = 60 + 10 + 10 + others.len() as u64 + 30;
    assert_eq!((counts.hits, counts.misses - before.misses), (50 + 50 + 30, misses));
    assert_eq!(counts.dropped, 0);
}

#[test]
fn a_rule_that_changes_leads_to_either_queue() {
    let world = World::new();
    let card = world.card(8);
    card.lead(&flow(1), [1, 2]).expect("there is room");
    let [none, one, other, rest] = world.send(&frames(&[(flow(1), 400)]));
    assert_eq!((none, rest, one + other), (0, 0, 400));
    assert!((100..300).contains(&one), "{one} of 400");
}

#[test]
fn there_is_no_room_for_more_flows_than_it_was_made_for() {
    let world = World::new();
    let card = world.card(2);
    card.lead(&flow(1), [1, 1]).expect("there is room");
    card.lead(&flow(2), [2, 2]).expect("there is room");
    let full = card.lead(&flow(3), [3, 3]).expect_err("there is none");
    assert!(full.to_string().contains("enter a rule for"), "{full}");
    let all = frames(&[(flow(1), 10), (flow(2), 10), (flow(3), 10)]);
    assert_eq!(world.send(&all), [10, 10, 10, 0]);
    card.forget(&flow(1)).expect("it goes");
    card.lead(&flow(3), [3, 3]).expect("there is room again");
    assert_eq!(world.send(&all), [10, 0, 10, 10]);
}

/// As the rules of a card do whose process is killed.
#[test]
fn rules_stay_until_the_next_process_begins_without_any() {
    let world = World::new();
    let all = frames(&[(flow(1), 10)]);
    let left = world.card(4);
    left.lead(&flow(1), [1, 1]).expect("there is room");
    let before = left.far_end().clone();
    std::mem::forget(left);
    assert_eq!(world.send(&all), [0, 10, 0, 0]);
    assert!(before.has_card());
    let next = world.card(4);
    assert!(!before.has_card() && next.far_end().has_card());
    assert_eq!(world.send(&all), [10, 0, 0, 0]);
    let ended = next.far_end().clone();
    drop(next);
    assert!(!ended.has_card());
    let last = world.card(4);
    world.far.ip("link del p1\n").expect("it goes");
    assert!(!last.far_end().has_card());
}

/// The kernel leads a socket's frames by the queue that the socket had, whatever is recorded: copies go in their place.
#[test]
fn what_a_socket_at_the_far_end_sends_is_led_like_all_else() {
    let world = World::new();
    let card = world.card(4);
    card.lead(&flow(1), [2, 2]).expect("there is room");
    let open = || packet::open(packet::NOTHING, Some("p1"));
    let socket: OwnedFd = world.far.enter(open).expect("a namespace").expect("a socket");
    let before = world.received();
    let (deadline, sent) = (Instant::now() + PATIENCE, 3);
    let mut left = frames(&[(flow(1), sent)]);
    while !left.is_empty() {
        assert!(Instant::now() < deadline, "{} frames are not taken", left.len());
        let taken = packet::send_burst(&socket, &left).unwrap_or(0);
        left.drain(..taken);
    }
    while world.received()[2] < before[2] + sent as u64 {
        assert!(Instant::now() < deadline, "{:?} of {before:?}", world.received());
        sleep(Duration::from_millis(1));
    }
    assert_eq!(card.counts().expect("readable").dropped, 0);
    assert_eq!(world.send(&frames(&[(flow(2), 5)])), [5, 0, 0, 0]);
}

#[test]
fn who_has_no_far_end_is_told_so() {
    let world = World::new();
    let open = |name: &str| {
        let opened = world.near.enter(|| VethCard::open(name, 4)).expect("a namespace");
        opened.map(drop).expect_err("there is none").to_string()
    };
    let said = open("lo");
    assert!(said.contains("at the far end of lo: it is no veth device"), "{said}");
    assert!(open("lb1").contains("interface lb1: not found"));
}

/// An emulated card decides which rules are in force, and frames follow.
#[test]
fn rules_come_late_and_are_lost_as_the_card_has_it() {
    let world = World::new();
    let card = world.card(4);
    // Only the time that it is told counts.
    let delay = Delay::Fixed(HOUR);
    let profile = Profile { delay, wavering: Duration::ZERO, ..Profile::sound(2, QUEUES as u16) };
    let mut rules = Mirrored::new(profile, 1, Played(&card));
    let all = frames(&[(flow(1), 10), (flow(2), 10)]);
    for number in [1, 2] {
        let rule = Rule { flow: flow(number), queue: Queue(number) };
        rules.insert(Location(u32::from(number) - 1), &rule, Serial(1)).expect("a place");
    }
    let third = Rule { flow: flow(3), queue: Queue(3) };
    let full = rules.insert(Location(2), &third, Serial(1));
    assert_eq!(full, Err(Refusal::NoPlace(Location(2))));
    assert_eq!(world.send(&all), [20, 0, 0, 0]);
    rules.advance(HOUR * 2);
    assert_eq!(world.send(&all), [0, 10, 10, 0]);
    rules.nic().profile().lost = 1.0;
    rules.delete(Location(0), Serial(2)).expect("it is taken, and lost");
    rules.advance(HOUR * 4);
    assert_eq!(world.send(&all), [0, 10, 10, 0]);
    rules.nic().profile().lost = 0.0;
    rules.delete(Location(0), Serial(3)).expect("it is taken");
    rules.advance(HOUR * 6);
    let mut answers = Vec::new();
    rules.answers(&mut |answer| answers.push((answer.at, answer.serial, answer.what)));
    assert_eq!(answers.last(), Some(&(Location(0), Serial(3), Answered::Done)));
    assert_eq!(world.send(&all), [10, 0, 10, 0]);
    // It goes by itself.
    rules.nic().profile().dropped = 1.0;
    rules.advance(HOUR * 8);
    assert_eq!(world.send(&all), [20, 0, 0, 0]);
    assert_eq!(rules.failed(), 0);
}
