//! A running simple switch against the plane in memory: the same frames, in by a port and out again, byte by
//! byte, through random pool histories; what it remembers and counts; and what becomes of a restart.
//!
//! `make p4-test` compiles the program and says where it is: these tests need the switch, and are no part of
//! `make test`. `WEIR_SEED=n` repeats a run, `WEIR_PACKETS=n` sets its length.

mod conformance;
mod cookies;
mod world;

use conformance::{CAME_IN_BY, Tally, Wanted};
use nix::net::if_::if_nametoindex;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir_plane::forward::l2;
use weir_plane::{Attachment, Outcome, Plane};
use weir_plane_p4::layout::{RING, Register};
use weir_plane_p4::{P4, Switch, Target, Write};
use weir_steering::update::Plane as _;
use weir_steering::{MethodId, SCHEDULER};
use weir_testbed::in_own_namespace;
use weir_testbed::link::ip;
use weir_testbed::packet::PacketSocket;
use weir_testbed::process::tie;
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, tcp_options};
use world::{OWN_MAC, World, from_environment};

const THRIFT: &str = "127.0.0.1:9090";
/// Frames that are in the switch at the same time: it has 32 places for those that come in by a port.
const BURST: usize = 24;
/// All of a burst is out again by then, on any machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The switch's process, in the namespace of the thread that starts it.
struct Process(Child);

impl Process {
    fn start() -> Self {
        Self::start_with("")
    }

    /// With ports of its own, before a control plane has come.
    fn start_with(ports: &str) -> Self {
        let program = std::env::var("WEIR_P4_JSON").expect("WEIR_P4_JSON: see make p4-test");
        // It looks at its ports in /sys, which has to be this namespace's.
        let line = format!(
            "mount -t sysfs sysfs /sys && exec simple_switch \"$0\" {ports} --thrift-port 9090 -L error"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &line, &program]);
        command.stdout(Stdio::null());
        tie(&mut command);
        Self(command.spawn().expect("simple_switch is in PATH"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connect() -> Switch {
    let end = Instant::now() + PATIENCE;
    loop {
        match Switch::connect(THRIFT) {
            Ok(switch) => return switch,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A link with the switch's port at one end.
fn link() -> PacketSocket {
    ip("link set lo up
        link add in type veth peer name port
        link set in address 02:00:00:00:00:01 up
        link set port address 02:00:00:00:00:02 up")
    .expect("needs root");
    quiet(&["in", "port"]);
    PacketSocket::open("in").expect("needs root")
}

/// The system itself sends nothing there.
fn quiet(interfaces: &[&str]) {
    for name in interfaces {
        let quiet = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
        std::fs::write(quiet, "1").expect("it can be set");
    }
}

/// How many packets the switch has met, when it has met no other for a while.
fn met(plane: &mut P4<Switch>) -> u64 {
    let mut met = u64::MAX;
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = plane.target().read(&[(Register::Begun, 0)]).expect("it is there")[0];
        if now == met {
            return met;
        }
        met = now;
    }
}

/// A frame that ends in its tag, or less than two bytes after it, is dropped by the kernel on its way to the
/// switch; and the socket at the other end takes none from 11.0.0.0/8, which damage may make of a source.
fn arrives(frame: &[u8]) -> bool {
    let tagged = [[0x81, 0], [0x88, 0xa8]].contains(&[frame[12], frame[13]]);
    let eleven = weir_wire::parse(frame).is_ok_and(|packet| packet.flow.src[12] == 11);
    (frame.len() >= 20 || !tagged) && !eleven
}

/// One burst through both; returns how many frames came out.
fn exchange(world: &mut World<Switch>, socket: &PacketSocket, frames: &[Vec<u8>]) -> usize {
    let mut wanted = VecDeque::new();
    for frame in frames {
        let mut out = frame.clone();
        // Before it is written over, what becomes of it.
        let outcome = world.judge_and_write(&mut out);
        if let Outcome::Forwarded(backend) = outcome {
            let hop = world.plane.oracle.backend(backend).and_then(|backend| backend.hop);
            l2(&mut out, &hop.expect("it has one").next);
            wanted.push_back(out);
        }
    }
    let count = wanted.len();
    for frame in frames {
        socket.send(frame).expect("the link is up");
    }
    let end = Instant::now() + PATIENCE;
    let mut buffer = [0; 4096];
    while let Some(next) = wanted.front() {
        if Instant::now() > end {
            let found = world.plane.p4.outcomes();
            let counted = world.plane.oracle.outcomes();
            panic!("{} did not come out: {next:02x?}; {found:?}, {counted:?}", wanted.len());
        }
        let wait = Duration::from_millis(100);
        if let Some(got) = socket.receive_whole(&mut buffer, wait).expect("the link is up") {
            assert_eq!(got, *next, "frames that came out");
            wanted.pop_front();
        }
    }
    // Those that were dropped, behind the last one that came out, are decided by then.
    world.wait_for(frames.len() as u64);
    count
}

#[test]
fn a_switch_does_what_the_plane_in_memory_does() {
    let seed = from_environment("WEIR_SEED", rand::random);
    let packets = from_environment("WEIR_PACKETS", || 100_000);
    in_own_namespace(|| {
        let socket = link();
        let _process = Process::start();
        let mut world = World::new(seed, connect(), 0, |p4: &mut P4<Switch>| {
            p4.attach(&["port".to_owned()], Attachment::Auto).expect("it is there");
        });
        let (mut sent, mut out, mut bursts) = (0, 0, 0u64);
        while sent < packets {
            for _ in 0..world.rng.random_range(0..4) {
                world.update_any();
            }
            match world.rng.random_range(0..40) {
                0 => world.turn_marks(),
                1 => world.next_generation(),
                2..10 => world.wait(),
                _ => {}
            }
            let mut frames = Vec::new();
            while frames.len() < BURST {
                let frame = world.frame();
                if arrives(&frame) && world.is_common(&frame) {
                    frames.push(frame);
                }
            }
            out += exchange(&mut world, &socket, &frames);
            sent += frames.len() as u64;
            bursts += 1;
            if bursts.is_multiple_of(50) {
                world.compare_memory();
            }
        }
        world.settle();
        world.compare_memory();
        for service in 0..world.tables.services.len() {
            let number = world.tables.services[service].number;
            assert!(world.plane.p4.published(number).expect("as it was written").is_some());
        }
        println!("{:#?}", world.outcomes);
        println!("{sent} frames, {out} came out; {} updates", world.updates);
        println!("{} reports; {:?}", world.plane.compared, world.slot_counts());
        assert!(out as u64 > sent / 2 && world.updates > sent / 1_000);
        assert_eq!(world.plane.p4.fills(), 1, "it never had to be filled anew");
        assert_eq!(world.plane.p4.unrecorded(), 0, "every report was taken");
    })
    .expect("needs root");
}

/// The interfaces of the corpus' set-ups, each the other end of one of the switch's ports.
struct Ends {
    sockets: BTreeMap<u32, PacketSocket>,
    ports: Vec<String>,
    /// Of the ports, by the numbers that set-ups have for them.
    ifindexes: BTreeMap<u32, u32>,
}

/// Of the interfaces that set-ups without tags have: frames come in by the first.
const INTERFACES: [u32; 2] = [CAME_IN_BY, 5];
/// The longest frame of the corpus goes over a link of this MTU.
const WIDE: u32 = 65_535;

impl Ends {
    fn make() -> Self {
        ip("link set lo up").expect("needs root");
        let mut ends =
            Self { sockets: BTreeMap::new(), ports: Vec::new(), ifindexes: BTreeMap::new() };
        for number in INTERFACES {
            let (near, port) = (format!("in{number}"), format!("port{number}"));
            ip(&format!("link add {near} mtu {WIDE} type veth peer name {port} mtu {WIDE}"))
                .expect("needs root");
            quiet(&[&near, &port]);
            for name in [&near, &port] {
                ip(&format!("link set {name} up")).expect("needs root");
            }
            let ifindex = if_nametoindex(&port[..]).expect("it is there");
            ends.ifindexes.insert(number, ifindex);
            ends.ports.push(port);
            ends.sockets.insert(number, PacketSocket::open(&near).expect("needs root"));
        }
        ends
    }

    /// What has come out, by which interface, within this time.
    fn next(&self, wait: Duration) -> Option<(u32, Vec<u8>)> {
        let (end, mut buffer) = (Instant::now() + wait, vec![0; 1 << 17]);
        loop {
            for (number, socket) in &self.sockets {
                let got = socket.receive_whole(&mut buffer, Duration::ZERO);
                if let Some(frame) = got.expect("the link is up") {
                    return Some((*number, frame));
                }
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// A frame through the switch, which is to have decided before anything is looked at. What a frame before it
    /// has sent late would be found here, too.
    fn through(&self, plane: &mut P4<Switch>, frame: &[u8], wanted: Option<Wanted>) -> Vec<String> {
        let decided = |plane: &mut P4<Switch>| {
            plane.target().read(&[(Register::Ended, 0)]).expect("the switch is there")[0]
        };
        let before = decided(plane);
        self.sockets[&CAME_IN_BY].send(frame).expect("the link is up");
        let end = Instant::now() + PATIENCE;
        while decided(plane) == before {
            if Instant::now() > end {
                return vec!["never comes to the switch".to_owned()];
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut wrong = Vec::new();
        if let Some(Wanted { interface, frame }) = wanted {
            match self.next(PATIENCE) {
                None => wrong.push("nothing comes out".to_owned()),
                Some((by, _)) if by != interface => {
                    wrong.push(format!("comes out by {by}, not by {interface}"));
                }
                Some((_, found)) if found != frame => {
                    wrong.push(format!("comes out as {found:02x?}, not {frame:02x?}"));
                }
                Some(_) => {}
            }
        }
        if let Some((by, found)) = self.next(Duration::ZERO) {
            wrong.push(format!("by {by} comes out what nobody expects: {found:02x?}"));
        }
        wrong
    }
}

/// What the links of the test do not carry to the switch, or not back.
fn is_lost(case: &conformance::format::Case) -> Option<&'static str> {
    let frames = case.step.iter().filter_map(|step| Some(&step.packet_bytes.as_ref()?.0));
    let tagged = |frame: &[u8]| [[0x81, 0], [0x88, 0xa8]].contains(&[frame[12], frame[13]]);
    frames.into_iter().find_map(|frame| match frame.len() {
        0..14 => Some("frames shorter than a link's header, which no link carries"),
        14..20 if tagged(frame) => Some("frames that end in a tag, which the kernel drops"),
        _ => None,
    })
}

/// Every case of the corpus that a switch can do: the frame that comes out, by which port and byte by byte, or
/// nothing, and what is counted.
#[test]
fn a_switch_does_what_the_corpus_says() {
    let only = conformance::only();
    in_own_namespace(|| {
        let ends = Ends::make();
        let _process = Process::start();
        let (mut tally, mut wrong) = (Tally::default(), Vec::new());
        let begun = Instant::now();
        let files = conformance::format::files();
        for (file, name) in files.iter().flat_map(|file| file.setup.keys().map(move |s| (file, s)))
        {
            let setup = &file.setup[name];
            let cases = file.case.iter().filter(|case| case.setup == *name);
            // Emptying a switch takes most of the time: cases that leave nothing behind share one that is filled.
            let mut standing = None;
            for case in cases.filter(|case| case.name.contains(&only)) {
                if let Some(why) = conformance::asks_too_much(setup, case).or(is_lost(case)) {
                    tally.leave(why);
                    continue;
                }
                tally.count(setup, case);
                let fresh = || {
                    let mut plane = P4::new(connect()).expect("it is there");
                    plane.attach(&ends.ports, Attachment::Auto).expect("they are there");
                    conformance::World::new(plane, setup, &ends.ifindexes)
                };
                let last = conformance::leaves_traces(setup, case);
                let found = standing.take().filter(|_| !last);
                let mut world = found.unwrap_or_else(fresh);
                let mut through = |plane: &mut P4<Switch>, frame: &[u8], wanted: Option<Wanted>| {
                    ends.through(plane, frame, wanted)
                };
                wrong.extend(world.run(file, case, &mut through));
                world.forget_datagrams();
                standing = (!last).then_some(world);
            }
        }
        if let Some((by, frame)) = ends.next(Duration::from_millis(200)) {
            wrong.push(format!("at the end {frame:02x?} comes out by {by}"));
        }
        println!("in {} s", begun.elapsed().as_secs());
        let floors = if only.is_empty() { conformance::FLOORS } else { &[] };
        tally.end(&wrong, floors);
    })
    .expect("needs root");
}

/// Where a burst of one connection's packets goes: its backend's number, and the TSecr that it came with.
fn through(socket: &PacketSocket, frame: &[u8]) -> (u8, Option<u32>) {
    socket.send(frame).expect("the link is up");
    let (mut buffer, end) = ([0; 4096], Instant::now() + PATIENCE);
    loop {
        assert!(Instant::now() < end, "it does not come out: {frame:02x?}");
        let got = socket.receive(&mut buffer, Duration::from_millis(100)).expect("the link is up");
        let Some(got) = got else { continue };
        let packet = weir_wire::parse(got).expect("it is whole");
        let stamps = tcp_options::find(&got[usize::from(packet.l4_offset)..]).expect("it is whole");
        return (got[5], stamps.map(|stamps| stamps.echo));
    }
}

/// Connections by index, and those without cookies, outlive the control plane that has filled the switch.
#[test]
fn the_next_control_plane_puts_connections_back() {
    in_own_namespace(|| {
        let socket = link();
        let _process = Process::start();
        let words = [(SCHEDULER, "wrr")];
        let image = cookies::image(MethodId::CheetahStateful, &words, &[1, 3, 2]);
        let ports = ["port".to_owned()];
        let mut plane = cookies::filled(P4::new(connect()).expect("it is there"), &image, 3);
        plane.attach(&ports, Attachment::Auto).expect("it is there");
        plane.set_clock(9);
        let syn = |number: u32| {
            cookies::frame(number, TcpFlags::SYN, (!number.is_multiple_of(5)).then_some(0))
        };
        let lives: Vec<_> = (0..60).map(|number| through(&socket, &syn(number))).collect();
        let (counts, turn) = (plane.slot_counts(cookies::SERVICE), plane.turn(cookies::SERVICE));
        assert_eq!(counts.map(|counts| counts.used), Some(48));
        drop(plane);
        let next = P4::over(connect()).expect("it is there");
        let mut plane = cookies::filled(next, &image, 3);
        let begun = Instant::now();
        plane.attach(&ports, Attachment::Auto).expect("it is there");
        println!("taken over in {} ms", begun.elapsed().as_millis());
        assert_eq!((plane.clock(), plane.turn(cookies::SERVICE)), (9, turn));
        assert_eq!(plane.slot_counts(cookies::SERVICE), counts);
        for (number, (backend, told)) in (0..).zip(&lives) {
            let ack = cookies::frame(number, TcpFlags::ACK, *told);
            assert_eq!(through(&socket, &ack), (*backend, *told), "connection {number}");
        }
        let others: BTreeSet<_> =
            (100..160).map(|number| through(&socket, &syn(number)).0).collect();
        assert_eq!(others.len(), 3);
    })
    .expect("needs root");
}

/// Thrift's library lets the switch read 100 MB of a connection, and then ends it: nobody who writes meets that.
#[test]
fn more_goes_over_than_one_connection_carries() {
    in_own_namespace(|| {
        ip("link set lo up").expect("needs root");
        let _process = Process::start();
        let mut switch = connect();
        let set = |index| Write::Set { register: Register::Slots, index, value: 1 };
        let writes: Vec<Write> = (0..4096).map(set).collect();
        // A call has more than 60 bytes: the header, two names, and three numbers.
        const BYTES: usize = 60 * 4096;
        for _ in 0..=120_000_000 / BYTES {
            switch.write(&writes).expect("it is there");
        }
    })
    .expect("needs root");
}

/// Interfaces that are wanted no more and then again, deleted and made anew, in the midst of packets, by one control
/// plane and by the next: the switch never waits for itself, takes each frame once, and none by a port that is not
/// wanted.
#[test]
fn ports_may_go_and_come_back_while_packets_come() {
    in_own_namespace(|| {
        let socket = link();
        let second = || {
            ip("link add in2 type veth peer name port2
                link set in2 address 02:00:00:00:00:03 up
                link set port2 address 02:00:00:00:00:02 up")
            .expect("needs root");
            quiet(&["in2", "port2"]);
        };
        second();
        let _process = Process::start();
        let image = cookies::image(MethodId::Cheetah, &[], &[1, 3, 2]);
        let next = || cookies::filled(P4::over(connect()).expect("it is there"), &image, 3);
        let (both, one) = (["port", "port2"].map(str::to_owned), ["port".to_owned()]);
        let attach = |plane: &mut P4<Switch>, names: &[String]| {
            plane.attach(names, Attachment::Auto).expect("they are there");
        };
        let mut plane = next();
        attach(&mut plane, &both);
        let (sent, done) = (AtomicUsize::new(0), Done::default());
        std::thread::scope(|scope| {
            // Also if something below fails.
            let _end = done.at_the_end();
            scope.spawn(|| {
                let flood = PacketSocket::open("in").expect("needs root");
                let ack = cookies::frame(7, TcpFlags::ACK, Some(0));
                while !done.is() {
                    // A link whose queue is full takes the next one.
                    sent.fetch_add(usize::from(flood.send(&ack).is_ok()), Ordering::Relaxed);
                }
            });
            let mut seen = 0;
            for turn in 0..60 {
                attach(&mut plane, if turn % 2 == 0 { &one } else { &both });
                if turn % 20 == 9 {
                    plane = next();
                    attach(&mut plane, &both);
                }
                if turn % 20 == 14 {
                    ip("link del in2").expect("it is there");
                    second();
                }
                while sent.load(Ordering::Relaxed) < seen + 500 {
                    std::thread::yield_now();
                }
                seen = sent.load(Ordering::Relaxed);
            }
        });
        println!("{} packets meanwhile", sent.into_inner());
        let other = PacketSocket::open("in2").expect("needs root");
        let through = |plane: &mut P4<Switch>, socket: &PacketSocket| {
            let before = met(plane);
            socket.send(&cookies::frame(9, TcpFlags::SYN, None)).expect("the link is up");
            met(plane) - before
        };
        for turn in 0..4 {
            if turn % 2 == 1 {
                plane = next();
            }
            attach(&mut plane, &both);
            assert_eq!((through(&mut plane, &socket), through(&mut plane, &other)), (1, 1));
            attach(&mut plane, &one);
            assert_eq!((through(&mut plane, &socket), through(&mut plane, &other)), (1, 0));
        }
        // One that is gone keeps no other from being a port.
        ip("link del in2").expect("it is there");
        assert!(plane.attach(&both, Attachment::Auto).is_err());
        let order = ["port2", "port"].map(str::to_owned);
        let attached = plane.reattach(&order, Attachment::Auto).expect("one is there");
        assert_eq!(attached.len(), 1);
        assert_eq!(through(&mut plane, &socket), 1);
    })
    .expect("needs root");
}

/// Set when it is over, however that comes about.
#[derive(Default)]
struct Done(AtomicBool);

impl Done {
    fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn at_the_end(&self) -> impl Drop {
        struct End<'a>(&'a Done);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.0.store(true, Ordering::Relaxed);
            }
        }
        End(self)
    }
}

/// A flow that nobody is told of must not begin; when reports are taken, it does.
#[test]
fn a_full_ring_starts_no_connection() {
    in_own_namespace(|| {
        let socket = link();
        let _process = Process::start();
        let image = cookies::image(MethodId::Concury, &[], &[1, 3, 2]);
        let mut plane = cookies::filled(P4::new(connect()).expect("it is there"), &image, 3);
        plane.attach(&["port".to_owned()], Attachment::Auto).expect("it is there");
        let syns = |plane: &mut P4<Switch>, from: u32, to: u32| {
            let numbers: Vec<u32> = (from..to).collect();
            for burst in numbers.chunks(BURST) {
                let seen = plane.target().read(&[(Register::Ended, 0)]).expect("there")[0];
                for number in burst {
                    let syn = cookies::frame(*number, TcpFlags::SYN, None);
                    socket.send(&syn).expect("the link is up");
                }
                let end = Instant::now() + PATIENCE;
                while plane.target().read(&[(Register::Ended, 0)]).expect("there")[0]
                    < seen + burst.len() as u64
                {
                    assert!(Instant::now() < end, "a burst did not come to its end");
                }
            }
        };
        syns(&mut plane, 0, RING + 10);
        let dropped = |plane: &P4<Switch>| {
            let outcomes = plane.outcomes().expect("they can be read");
            outcomes.get(&Reason::PendingFull).map_or(0, |(passed, dropped)| passed + dropped)
        };
        assert_eq!(dropped(&plane), 10);
        let mut told = 0;
        plane.drain(&mut |_| told += 1).expect("the switch is there");
        assert_eq!(told, RING);
        syns(&mut plane, RING, RING + 10);
        assert_eq!(dropped(&plane), 10);
    })
    .expect("needs root");
}

/// A switch that hangs: whoever asks is told soon, and it goes on as it is when it answers again.
#[test]
fn a_switch_that_hangs_holds_nobody_up() {
    in_own_namespace(|| {
        let socket = link();
        let process = Process::start();
        let pid = Pid::from_raw(process.0.id() as i32);
        let image = cookies::image(MethodId::Cheetah, &[], &[1, 3, 2]);
        let mut plane = cookies::filled(P4::new(connect()).expect("it is there"), &image, 3);
        plane.attach(&["port".to_owned()], Attachment::Auto).expect("it is there");
        let before = through(&socket, &cookies::frame(1, TcpFlags::SYN, Some(0)));
        kill(pid, Signal::SIGSTOP).expect("it runs");
        let begun = Instant::now();
        let mut turns = 0;
        let mut none = |_: &_| {};
        while begun.elapsed() < Duration::from_secs(4) {
            let turn = Instant::now();
            plane.wait(Duration::from_millis(20), None, 1, &mut none).expect("it is waited for");
            assert!(turn.elapsed() < Duration::from_secs(3), "held up for {:?}", turn.elapsed());
            turns += 1;
        }
        println!("{turns} turns while it hung");
        let trouble = plane.trouble().expect("it forwards nothing");
        assert!(trouble.starts_with("the switch forwards nothing"), "{trouble}");
        kill(pid, Signal::SIGCONT).expect("it is stopped");
        let end = Instant::now() + PATIENCE;
        while plane.trouble().is_some() {
            assert!(Instant::now() < end, "it is not found again");
            plane.wait(Duration::from_millis(20), None, 1, &mut none).expect("it is there");
        }
        assert_eq!(plane.fills(), 1, "it has everything");
        let ack = cookies::frame(1, TcpFlags::ACK, before.1);
        assert_eq!(through(&socket, &ack), before);
    })
    .expect("needs root");
}

/// The process ends, and another one begins: within a second it is seen, and filled before a packet is decided.
#[test]
fn a_restart_is_noticed_within_a_second_and_filled_first() {
    let seed = from_environment("WEIR_SEED", rand::random);
    in_own_namespace(|| {
        let socket = link();
        let process = Process::start();
        let mut world = World::new(seed, connect(), 0, |p4: &mut P4<Switch>| {
            p4.attach(&["port".to_owned()], Attachment::Auto).expect("it is there");
        });
        let some = |world: &mut World<Switch>| -> Vec<Vec<u8>> {
            let frames = std::iter::repeat_with(|| world.frame()).take(400);
            let frames: Vec<_> = frames.collect();
            let whole = |frame: &Vec<u8>| arrives(frame) && world.is_common(frame);
            frames.into_iter().filter(whole).collect()
        };
        for _ in 0..10 {
            let frames = some(&mut world);
            frames.chunks(BURST).for_each(|burst| {
                exchange(&mut world, &socket, burst);
            });
            (0..5).for_each(|_| world.update_any());
        }
        // The reports are taken: a control plane does that every few milliseconds.
        let mut reports = Vec::new();
        world.plane.p4.drain(&mut |event| reports.push(*event)).expect("the switch is there");
        world.plane.oracle.memory.events.clear();
        // What is pending is known as of the last look, and an update looks before it ends.
        world.plane.p4.pending().expect("the switch is there");
        let before = world.plane.p4.outcomes().expect("they can be read");
        drop(process);
        world.lose_connections();
        // It has its port before the control plane comes: what it cannot decide it drops.
        let _process = Process::start_with("-i 1@port");
        // As if the port was taken already: only the missing key keeps its packets from being decided.
        let taken = Write::Set { register: Register::Links, index: 1, value: 1 };
        connect().write(&[taken]).expect("the switch is there");
        let flow = FlowKey::new(
            "10.1.0.3:4001".parse().expect("an address"),
            "10.9.0.1:80".parse().expect("an address"),
            Protocol::Tcp,
        );
        let syn = Frame::new(flow).macs(OWN_MAC, [2, 0, 0, 0, 0, 1]).tcp_flags(TcpFlags::SYN);
        let syn = syn.build();
        for _ in 0..BURST {
            socket.send(&syn).expect("the link is up");
        }
        let mut buffer = [0; 4096];
        let out = socket.receive_whole(&mut buffer, Duration::from_millis(300));
        assert_eq!(
            out.expect("the link is up"),
            None,
            "decided by registers that nobody has filled"
        );
        let begun = Instant::now();
        let mut none = |_: &_| {};
        while world.plane.p4.fills() == 1 {
            let waited = world.plane.p4.wait(Duration::from_millis(50), None, 1, &mut none);
            if let Err(error) = waited {
                println!("not yet: {error}");
            }
            assert!(begun.elapsed() < PATIENCE, "it was never filled");
        }
        let took = begun.elapsed();
        println!("filled {} ms after it answered", took.as_millis());
        assert_eq!(world.plane.p4.fills(), 2);
        let after = world.plane.p4.outcomes().expect("they can be read");
        assert_eq!(before, after, "counters go on");
        // Marks and tags of datagrams are gone with the registers; decisions are as before.
        for flags in [TcpFlags::ACK, TcpFlags::SYN, TcpFlags::ACK] {
            let frame = Frame::new(flow).macs(OWN_MAC, [2, 0, 0, 0, 0, 1]).tcp_flags(flags).build();
            world.sent = world.begun();
            exchange(&mut world, &socket, &[frame]);
        }
        let frames: Vec<_> = some(&mut world);
        let tcp = |frame: &&Vec<u8>| {
            weir_wire::parse(frame).is_ok_and(|packet| packet.flow.protocol == Protocol::Tcp)
        };
        let frames: Vec<_> = frames.iter().filter(tcp).cloned().collect();
        for burst in frames.chunks(BURST) {
            exchange(&mut world, &socket, burst);
        }
    })
    .expect("needs root");
}
