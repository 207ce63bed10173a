//! DPDK's ports without a card: rings, null devices, and packet sockets at veth devices.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};
use weir_offload::{Answered, Location, Queue, Refusal, Rule, Rules, Serial};
use weir_plane_burst::ports::Stock;
use weir_plane_burst::{BURST, Fate, Frame, Ports, macswap};
use weir_plane_dpdk::{Buffers, Dpdk, Eal, Error, Fed, Link, Memory, Pair};
use weir_testbed::link;
use weir_wire::{FlowKey, Protocol};

const MEMORY: Memory = Memory { huge: false, megabytes: 256 };
const FEW: Buffers = Buffers { count: 1023, room: 2048 + 192, ring: 256 };
/// Longest wait for a frame.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(devices: &[&str], kernel: Option<&str>) -> Result<Dpdk, Error> {
    Dpdk::open(Eal::start(MEMORY).expect("DPDK starts"), devices, kernel, FEW)
}

fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![number; 60];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame
}

fn swapped(number: u8) -> Vec<u8> {
    let mut frame = frame(number);
    frame[..12].rotate_left(6);
    frame
}

/// Until a burst comes.
fn receive(ports: &mut Dpdk) -> Vec<Frame> {
    let mut frames = [Frame::default(); BURST];
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let count = ports.receive(&mut frames).expect("it can receive");
        if count > 0 {
            return frames[..count].to_vec();
        }
    }
    panic!("nothing comes in");
}

#[test]
fn a_ring_hands_over_what_is_sent_and_buffers_come_back() {
    let mut ring = open(&["net_ring10"], None).expect("there are rings");
    let all = ring.free_buffers();
    for round in 0..1000u32 {
        for number in 0..8 {
            ring.put(0, &frame(number)).expect("there is room");
        }
        let mut frames = receive(&mut ring);
        assert_eq!(frames.len(), 8, "round {round}");
        for (number, shape) in (0..).zip(&mut frames) {
            let place = shape.at as usize..(shape.at + shape.len) as usize;
            assert_eq!(ring.memory()[place], frame(number));
            // Grown to the front, as by a tunnel.
            shape.fate = if number % 2 == 0 { Fate::Send } else { Fate::Drop };
            shape.at -= 20;
            shape.len += 20;
            ring.memory()[shape.at as usize..][..20].fill(0xaa);
        }
        ring.finish(&frames).expect("it can send");
        // The room in front is there again.
        let back = receive(&mut ring);
        assert_eq!(back.len(), 4);
        for (shape, number) in back.iter().zip([0, 2, 4, 6]) {
            let place = shape.at as usize..(shape.at + shape.len) as usize;
            let wanted = [vec![0xaa; 20], frame(number)].concat();
            assert_eq!(ring.memory()[place], wanted);
            ring.memory()[shape.at as usize - 128..shape.at as usize].fill(0);
        }
        // Whom nobody finishes is not lost either.
        if round % 2 == 0 {
            ring.finish(&[]).expect("nothing is sent");
        }
    }
    ring.finish(&[]).expect("nothing is sent");
    assert_eq!(ring.free_buffers(), all, "{:?}", ring.counts());
    let counts = ring.counts();
    assert_eq!((counts.sent, counts.dropped, counts.foreign), (4000, 4000, 0));
}

#[test]
fn the_hosts_frames_leave_by_its_port_and_its_own_by_the_first() {
    let mut ports = open(&["net_ring20"], Some("net_ring21")).expect("there are rings");
    for number in 0..4 {
        ports.put(0, &frame(number)).expect("there is room");
    }
    let mut frames = receive(&mut ports);
    let fates = [Fate::Pass, Fate::Route, Fate::Send, Fate::Drop];
    frames.iter_mut().zip(fates).for_each(|(frame, fate)| frame.fate = fate);
    // By an interface that is none of these.
    frames[2].device = 77;
    ports.finish(&frames).expect("it can send");
    let counts = ports.counts();
    assert_eq!((counts.to_kernel, counts.no_port, counts.dropped, counts.sent), (2, 1, 1, 0));
    assert_eq!(ports.take(1), [frame(0), frame(1)]);
    // The other way.
    ports.put(1, &frame(9)).expect("there is room");
    // The first port is a ring, too: what leaves by it comes in by it.
    let back = receive(&mut ports);
    let [Frame { at, len, .. }] = back[..] else { panic!("{back:?}") };
    assert_eq!(ports.memory()[at as usize..][..len as usize], frame(9));
    assert_eq!(ports.counts().from_kernel, 1);
}

#[test]
fn without_a_port_of_the_kernel_its_frames_are_counted() {
    let mut ports = open(&["net_ring30"], None).expect("there are rings");
    ports.put(0, &frame(1)).expect("there is room");
    let mut frames = receive(&mut ports);
    frames[0].fate = Fate::Pass;
    ports.finish(&frames).expect("it can go on");
    assert_eq!(ports.counts().no_kernel, 1);
    assert_eq!(ports.take(0), Vec::<Vec<u8>>::new());
}

#[test]
fn what_a_full_queue_does_not_take_is_counted_and_free() {
    let mut ports = open(&["net_ring40", "net_ring41"], None).expect("there are rings");
    let all = ports.free_buffers();
    let mut put = 0;
    let refused = loop {
        match ports.put(0, &frame(1)) {
            Ok(()) => put += 1,
            Err(error) => break error,
        }
        assert!(put < 100_000, "a ring without an end");
    };
    assert!(refused.to_string().contains("a frame of 60 bytes does not fit"), "{refused}");
    while !ports.take(0).is_empty() {}
    assert_eq!(ports.free_buffers(), all);
    let long = ports.put(0, &[0; 4000]).unwrap_err();
    assert!(matches!(long, Error::Frame { bytes: 4000, .. }), "{long}");
    assert_eq!(ports.free_buffers(), all);
}

#[test]
fn a_null_device_is_fed_with_a_stock() {
    let stock = Stock::new((0..100).map(|number| {
        let mut frame = frame(number);
        frame.resize(64, number);
        frame
    }));
    let null = open(&["net_null50,size=64"], None).expect("there are null devices");
    let mut ports = Fed::new(null, &stock);
    let mut all = 0;
    while all < 10_000 {
        all += macswap(&mut ports).expect("it can go on") as u64;
    }
    assert_eq!((ports.sent.frames, ports.sent.others), (all, 0));
    assert_eq!(ports.sent.bytes, all * 64);
    // Each has its addresses swapped once: buffers are written anew.
    let head = u64::from_le_bytes([2, 0, 0, 0, 0, 2, 2, 0]);
    assert_eq!(ports.sent.sum, head.wrapping_mul(all));
    assert_eq!(ports.ports().counts().sent, all);
}

#[test]
fn what_is_wrong_with_a_device_is_told() {
    let error = |device: &str| open(&[device], None).err().expect("it is refused");
    let found = error("net_nosuch0");
    assert!(matches!(found, Error::Driver { .. }), "{found:?}");
    assert!(found.to_string().contains("librte-net-"), "{found}");
    assert!(matches!(error(""), Error::Device(_)));
    let found = error("net_af_packet60,iface=nosuch0");
    assert!(found.to_string().contains("no interface nosuch0: `ip link`"), "{found}");
    let first = open(&["net_ring60"], None).expect("there are rings");
    let found = error("net_ring60");
    assert!(matches!(found, Error::Busy { .. }), "{found:?}");
    drop(first);
    // What was closed can be opened.
    open(&["net_ring60"], None).expect("it is free again");
    let found = error("net_af_packet61");
    assert!(matches!(found, Error::Refused { .. }), "{found:?}");
    let eal = Eal::start(MEMORY).expect("it runs");
    let many = Buffers { count: 1 << 20, ..FEW };
    let found = Dpdk::open(eal, &["net_ring61"], None, many).err().expect("there is no memory");
    assert!(found.to_string().contains("give DPDK more memory"), "{found}");
    let other = Memory { megabytes: 64, ..MEMORY };
    assert_eq!(Eal::start(other).err(), Some(Error::Started));
}

#[test]
fn threads_have_a_queue_and_buffers_of_their_own() {
    let eal = Eal::start(MEMORY).expect("DPDK starts");
    let shares = Dpdk::open_for(eal, &["net_ring80"], None, 2, FEW).expect("rings have queues");
    assert_eq!(shares.len(), 2);
    // The name can be had again when both threads have ended, and not before.
    let both = std::sync::Barrier::new(3);
    thread::scope(|scope| {
        for (number, share) in (0..).zip(shares) {
            let both = &both;
            scope.spawn(move || {
                let mut ports = share.enter().expect("it is one of DPDK's");
                let all = ports.free_buffers();
                both.wait();
                for round in 0..1000 {
                    for at in 0..8 {
                        ports.put(0, &frame(number * 8 + at)).expect("there is room");
                    }
                    let mut frames = receive(&mut ports);
                    assert_eq!(frames.len(), 8, "thread {number}, round {round}");
                    // What the other thread has put in has come to that one.
                    for (at, shape) in (0..).zip(&mut frames) {
                        let place = shape.at as usize..(shape.at + shape.len) as usize;
                        assert_eq!(ports.memory()[place], frame(number * 8 + at));
                        shape.fate = if at % 2 == 0 { Fate::Send } else { Fate::Drop };
                    }
                    ports.finish(&frames).expect("it can send");
                    assert_eq!(ports.take(0).len(), 4);
                }
                assert_eq!(ports.free_buffers(), all, "thread {number}");
                let counts = ports.counts();
                assert_eq!((counts.received, counts.sent, counts.dropped), (8000, 4000, 4000));
                both.wait();
            });
        }
        both.wait();
        let busy = matches!(open(&["net_ring80"], None), Err(Error::Busy { .. }));
        both.wait();
        assert!(busy, "threads have it");
    });
    open(&["net_ring80"], None).expect("it is free again");
}

#[test]
fn a_device_with_fewer_queues_than_threads_says_so() {
    let run = || {
        weir_testbed::enter_own_namespace().expect("a namespace of its own");
        let ends = ["dpdk2", "dpdk3"];
        link::ip(&link::veth(&ends.map(link::End::new))).expect("a veth device");
        link::ip(&ends.map(link::up).concat()).expect("it is up");
        let eal = Eal::start(MEMORY).expect("DPDK starts");
        let one = Dpdk::open_for(eal, &["net_af_packet81,iface=dpdk2"], None, 2, FEW);
        let found = one.expect_err("it has one queue");
        assert!(matches!(found, Error::Queues { wanted: 2, there: 1, .. }), "{found:?}");
        assert!(found.to_string().contains("qpairs=2"), "{found}");
        let two = ["net_af_packet81,iface=dpdk2,qpairs=2"];
        assert_eq!(Dpdk::open_for(eal, &two, None, 2, FEW).expect("it has two").len(), 2);
    };
    thread::spawn(run).join().expect("it runs to its end");
}

/// Its driver would write past the end of a message.
#[test]
fn a_tap_has_no_more_queues_than_its_driver_can_tell_of() {
    let run = || {
        weir_testbed::enter_own_namespace().expect("a namespace of its own");
        let eal = Eal::start(MEMORY).expect("DPDK starts");
        let device = ["net_tap84,iface=weirtap84"];
        let five = Dpdk::open_for(eal, &device, None, 5, FEW).expect_err("it has four");
        assert!(matches!(five, Error::Queues { wanted: 5, there: 4, .. }), "{five:?}");
        assert_eq!(Dpdk::open_for(eal, &device, None, 4, FEW).expect("it has four").len(), 4);
    };
    thread::spawn(run).join().expect("it runs to its end");
}

/// Takes datagrams of flows, which are filled with numbers from `first` on, until each has come; returns the queues by
/// which those of each came.
fn queues_of(
    ports: &mut Dpdk,
    sockets: &[UdpSocket],
    to: SocketAddr,
    first: u8,
) -> Vec<BTreeSet<u16>> {
    let mut queues = vec![BTreeSet::new(); sockets.len()];
    let began = Instant::now();
    while queues.iter().any(BTreeSet::is_empty) {
        assert!(began.elapsed() < PATIENCE, "by queues {queues:?}");
        for (number, socket) in (first..).zip(sockets) {
            socket.send_to(&[number; 8], to).expect("it is sent");
        }
        loop {
            let mut frames = [Frame::default(); BURST];
            let count = ports.receive(&mut frames).expect("it is there");
            if count == 0 {
                break;
            }
            for frame in &frames[..count] {
                let (at, queue) = (frame.at as usize, ports.queue_of(frame));
                let bytes = &ports.memory()[at..][..frame.len as usize];
                // Those of UDP over IPv4, behind 42 bytes of headers; the kernel sends other frames, too.
                let is_ours = bytes.get(12..14) == Some(&[8, 0]) && bytes.get(23) == Some(&17);
                if let (true, Some(number)) = (is_ours, bytes.get(42))
                    && let Some(at) = number.checked_sub(first)
                    && let Some(of_flow) = queues.get_mut(usize::from(at))
                {
                    of_flow.insert(queue);
                }
            }
            // None of them has another fate than to be dropped.
            ports.finish(&frames[..count]).expect("it can");
        }
    }
    queues
}

/// A thread with several queues takes what comes by each of them, and tells them apart. Where the driver takes rules,
/// what no rule is for comes by the first one, and a rule's by its own.
#[test]
fn a_thread_has_the_queues_that_rules_lead_to() {
    let run = || {
        weir_testbed::enter_own_namespace().expect("a namespace of its own");
        link::ip(&link::tap("lan85", [2, 0, 0, 0, 0, 85])).expect("a tap");
        let eal = Eal::start(MEMORY).expect("DPDK starts");
        let pair = Pair { device: "net_tap85,iface=weirtap85", tap: "lan85" };
        let mut shares = Dpdk::open_pairs_led(eal, &[pair], 8, FEW).expect("they are there");
        assert_eq!(shares.len(), 1);
        let mut ports = shares.remove(0).enter().expect("it is one of DPDK's");
        let rules = ports.flows(0, 4);
        let commands = "link set weirtap85 up\naddr add 192.0.2.1/24 dev weirtap85\n\
                        neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev weirtap85\n";
        link::ip(commands).expect("it has an address");
        let socket = |_| UdpSocket::bind("192.0.2.1:0").expect("a socket");
        let sockets: Vec<UdpSocket> = (0..32).map(socket).collect();
        let to = "192.0.2.2:9".parse().expect("an address");
        let all = ports.free_buffers();
        let queues = queues_of(&mut ports, &sockets, to, 1);
        assert_eq!(ports.free_buffers(), all);
        let by: BTreeSet<u16> = queues.iter().flatten().copied().collect();
        assert!(by.iter().all(|queue| *queue < 4), "{by:?}");
        assert!((0..4).all(|queue| !ports.may_have_left(queue, 0)), "each was found empty");
        let mut rules = match rules {
            Ok(rules) => rules,
            Err(refused) => {
                println!("no rules here: {refused}");
                assert_ne!(std::env::var("WEIR_RULES").as_deref(), Ok("must"), "{refused}");
                assert!(refused.to_string().contains("net_tap85"), "{refused}");
                assert!(by.len() > 1, "its driver spreads flows: {by:?}");
                return;
            }
        };
        assert_eq!(by, BTreeSet::from([0]), "what no rule is for");
        let flows = sockets.iter().take(3).map(|socket| {
            let from = socket.local_addr().expect("it is bound");
            FlowKey::new(from, to, Protocol::Udp)
        });
        for (number, flow) in (1..).zip(flows) {
            let rule = Rule { flow, queue: Queue(number) };
            rules.insert(Location(number.into()), &rule, Serial(1)).expect("it is taken");
        }
        let queues = queues_of(&mut ports, &sockets, to, 100);
        for (at, queues) in queues.iter().enumerate() {
            let wanted = if at < 3 { at as u16 + 1 } else { 0 };
            assert_eq!(*queues, BTreeSet::from([wanted]), "flow {at}");
        }
        println!("rules led three flows to their queues, and the others came by the first");
    };
    thread::spawn(run).join().expect("it runs to its end");
}

#[test]
fn a_device_without_rules_says_why() {
    let ring = open(&["net_ring82"], None).expect("there are rings");
    let refused = ring.flows(0, 8).expect_err("a ring has no rules");
    let Refusal::Unsupported(why) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("the driver of net_ring82"), "{why}");
    assert!(matches!(ring.flows(7, 8), Err(Refusal::Device(_))));
}

/// Over a tap, whose driver makes filters of the kernel's (flower) of its rules: datagrams of a flow come by the queue
/// that its rule says. A kernel without these refuses, and the refusal says what; with `WEIR_RULES=must` none may.
#[test]
fn rules_lead_flows_to_queues_or_say_why_not() {
    let run = || {
        weir_testbed::enter_own_namespace().expect("a namespace of its own");
        let eal = Eal::start(MEMORY).expect("DPDK starts");
        let shares = Dpdk::open_for(eal, &["net_tap83,iface=weirtap83"], None, 2, FEW);
        let shares = shares.expect("a tap has queues").into_iter();
        let mut queues: Vec<Dpdk> =
            shares.map(|share| share.enter().expect("it is one of DPDK's")).collect();
        let mut rules = match queues[0].flows(0, 4) {
            Ok(rules) => rules,
            Err(refused) => {
                let (Refusal::Unsupported(why) | Refusal::Device(why)) = &refused else {
                    panic!("{refused:?}")
                };
                println!("no rules here: {refused}");
                assert_ne!(std::env::var("WEIR_RULES").as_deref(), Ok("must"), "{refused}");
                let (_, reason) = why.split_once("net_tap83,iface=weirtap83").expect("the device");
                assert!(reason.len() > 10, "a reason: {why}");
                return;
            }
        };
        let commands = "link set weirtap83 up\naddr add 192.0.2.1/24 dev weirtap83\n\
                        neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev weirtap83\n";
        link::ip(commands).expect("it has an address");
        let socket = std::net::UdpSocket::bind("192.0.2.1:0").expect("a socket");
        let from = socket.local_addr().expect("it is bound");
        let to = "192.0.2.2:9".parse().expect("an address");
        let flow = FlowKey::new(from, to, Protocol::Udp);
        let no = rules.insert(Location(0), &Rule { flow, queue: Queue(2) }, Serial(1));
        assert!(matches!(no, Err(Refusal::NoQueue { queues: 2, .. })), "{no:?}");
        let no = rules.insert(Location(4), &Rule { flow, queue: Queue(1) }, Serial(1));
        assert_eq!(no, Err(Refusal::NoPlace(Location(4))));
        // By either queue, one after the other.
        for (serial, wanted) in (1..).zip([1, 0, 1]) {
            let rule = Rule { flow, queue: Queue(wanted) };
            rules.insert(Location(0), &rule, Serial(serial)).expect("it is taken");
            let mut answers = Vec::new();
            rules.answers(&mut |answer| answers.push((answer.serial, answer.what)));
            assert_eq!(answers, [(Serial(serial), Answered::Done)]);
            // Neither at its place nor at another one is there a second rule, and the first one stays.
            for place in [0, 1] {
                let no = rules.insert(Location(place), &rule, Serial(serial));
                assert!(matches!(no, Err(Refusal::Unsupported(_))), "{place}: {no:?}");
            }
            rules.answers(&mut |answer| panic!("{answer:?}"));
            let (began, mut found) = (Instant::now(), 0);
            while found < 20 {
                assert!(began.elapsed() < PATIENCE, "{found} datagrams by queue {wanted}");
                socket.send_to(&[serial as u8; 8], to).expect("it is sent");
                for (queue, ports) in (0..).zip(&mut queues) {
                    // Its payload stands behind 42 bytes of headers; the kernel sends other frames, too.
                    let all = ports.take(0);
                    let ours =
                        all.iter().filter(|frame| frame.get(42..50) == Some(&[serial as u8; 8]));
                    let count = ours.count();
                    assert!(count == 0 || queue == wanted, "by queue {queue} and not {wanted}");
                    found += count;
                }
            }
            rules.delete(Location(0), Serial(serial)).expect("it goes");
            rules.answers(&mut |answer| assert_eq!(answer.what, Answered::Done));
        }
        println!("rules led datagrams to queues 1, 0 and 1");
    };
    thread::spawn(run).join().expect("it runs to its end");
}

#[test]
fn frames_cross_a_veth_until_it_goes_away() {
    let run = || {
        weir_testbed::enter_own_namespace().expect("a namespace of its own");
        let ends = ["dpdk0", "dpdk1"];
        link::ip(&link::veth(&ends.map(link::End::new))).expect("a veth device");
        link::ip(&ends.map(link::up).concat()).expect("it is up");
        let [mut near, mut far] = [("70", "dpdk0"), ("71", "dpdk1")].map(|(number, at)| {
            open(&[&format!("net_af_packet{number},iface={at}")], None).expect("a packet socket")
        });
        assert_ne!(near.interface(0), 0);
        let began = Instant::now();
        // The kernel's own frames come too: of neighbours, by IPv6.
        let (mut wanted, mut number) = (200, 0);
        while wanted > 0 {
            assert!(began.elapsed() < PATIENCE, "{wanted} are missing");
            number = (number + 1) % 200;
            near.put(0, &frame(number)).expect("there is room");
            macswap(&mut far).expect("it can go on");
            wanted -=
                near.take(0).iter().filter(|back| **back == swapped(back[20])).count().min(wanted);
        }
        assert_eq!(near.still_there(), Ok(()));
        assert_eq!(near.link(0), Link::Up);
        link::ip("link set dpdk1 down\n").expect("it is down");
        link::ip("link del dpdk0\n").expect("it is gone");
        assert_eq!(near.link(0), Link::Gone);
        let gone = near.still_there().unwrap_err();
        assert!(gone.to_string().contains("has gone away: bring it back"), "{gone}");
        // Whoever goes on nevertheless gets nothing, at once.
        for _ in 0..100 {
            near.receive(&mut [Frame::default(); BURST]).expect("it can go on");
            let _ = near.put(0, &frame(1));
            far.finish(&[]).expect("it can go on");
        }
    };
    thread::spawn(run).join().expect("it runs to its end");
}
