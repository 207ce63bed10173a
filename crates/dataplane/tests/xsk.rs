//! AF_XDP ports: real frames over veth, in a network namespace of each test's own.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_dataplane::xsk::{CHUNK, Frame, Redirect, XskConfig, XskPorts};
use weir_dataplane::{Error, Interface};
use weir_testbed::{in_own_namespace, link, packet, sysctl};

/// A machine that is busy with other things is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// An Ethernet type for experiments, which no kernel answers.
const TYPE: [u8; 2] = [0x88, 0xb5];

fn seed() -> u64 {
    let given = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    seed
}

fn ip(lines: &str) {
    link::ip(lines).expect("links");
}

/// Runs a test in a new network namespace with veth pairs `a0 b0`, `a1 b1`, ..., all up.
fn in_namespace<T: Send>(pairs: usize, test: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        // The kernel announces nothing by itself then.
        for conf in ["all", "default"] {
            sysctl(&format!("ipv6/conf/{conf}/disable_ipv6"), "1").expect("switching off IPv6");
        }
        for pair in 0..pairs {
            let names = [format!("a{pair}"), format!("b{pair}")];
            ip(&link::veth(&names.clone().map(|name| link::End::new(name).queues(1))));
            names.iter().for_each(|name| ip(&link::up(name)));
        }
        test()
    };
    in_own_namespace(inside).expect("a namespace (needs root)")
}

fn interface(name: &str) -> u32 {
    Interface::find(name).expect("an interface").index
}

fn ports(ports: usize, chunks: u32, ring: u32) -> XskPorts {
    XskPorts::open(XskConfig { ports, chunks, ring }).expect("open (needs root)")
}

/// The far end of a port: a packet socket.
struct Far(OwnedFd);

impl Far {
    fn open(name: &str) -> Self {
        let fd = packet::open(u16::from_be_bytes(TYPE), Some(name)).expect("a packet socket");
        Self(fd)
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the bytes outlive the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    /// A frame that has come; not those that were sent from here.
    fn take(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 4096];
        // SAFETY: the buffer outlives the call, which writes no more than its length.
        let got = unsafe {
            let fd = self.0.as_raw_fd();
            libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT)
        };
        (got >= 0).then(|| bytes[..got as usize].to_vec())
    }
}

/// A frame to a unicast address, with random bytes behind the header.
fn frame(length: usize, rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|_| rng.random()).collect();
    bytes[0] &= !1;
    bytes[12..14].copy_from_slice(&TYPE);
    bytes
}

/// Receives until so many frames have come.
fn receive(ports: &mut XskPorts, count: usize) -> Vec<Frame> {
    let (mut frames, end) = (Vec::new(), Instant::now() + PATIENCE);
    while frames.len() < count {
        assert!(Instant::now() < end, "{} of {count} frames; {:?}", frames.len(), ports.drops());
        ports.wait(Duration::from_millis(10)).unwrap();
        ports.receive(count - frames.len(), &mut frames);
    }
    frames
}

/// Sends what waits and looks until all chunks but those in fill rings are free again.
fn settle(ports: &mut XskPorts, free: usize) {
    let end = Instant::now() + PATIENCE;
    loop {
        ports.flush().unwrap();
        let mut more = Vec::new();
        ports.receive(64, &mut more);
        assert!(more.is_empty(), "frames that nobody sent");
        if ports.chunks() == (free, 0) {
            return;
        }
        assert!(Instant::now() < end, "chunks are missing: {:?}", ports.chunks());
    }
}

#[test]
fn frames_go_from_any_port_to_any_other_as_they_came() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    in_namespace(3, || {
        let mut ports = ports(3, 768, 256);
        let far: Vec<Far> = (0..3).map(|pair| Far::open(&format!("b{pair}"))).collect();
        (0..3).for_each(|port| ports.plug(port, interface(&format!("a{port}"))).unwrap());
        // Half of the chunks are in fill rings.
        let free = ports.chunks().0;
        assert_eq!(free, 768 - 3 * 128);
        let mut expected: Vec<VecDeque<Vec<u8>>> = vec![VecDeque::new(); 3];
        let mut held: Vec<(Frame, Vec<u8>)> = Vec::new();
        for round in 0..400 {
            // Some frames wait for a few rounds; none of them changes meanwhile.
            let burst = rng.random_range(1..40);
            for _ in 0..burst {
                let from = rng.random_range(0..3);
                let bytes = frame(rng.random_range(14..=1514), &mut rng);
                far[from].send(&bytes);
                let got = receive(&mut ports, 1).remove(0);
                assert_eq!(ports.bytes(&got), bytes, "round {round}");
                held.push((got, bytes));
            }
            while held.len() > 50 || (round == 399 && !held.is_empty()) {
                let (frame, bytes) = held.swap_remove(rng.random_range(0..held.len()));
                assert_eq!(ports.bytes(&frame), bytes);
                if rng.random_bool(0.1) {
                    ports.free(frame);
                    continue;
                }
                let to = rng.random_range(0..3);
                ports.send(frame, to).unwrap();
                expected[to].push_back(bytes);
            }
            ports.flush().unwrap();
            for (far, expected) in far.iter().zip(&mut expected) {
                let end = Instant::now() + PATIENCE;
                while let Some(bytes) = expected.front() {
                    match far.take() {
                        // What was sent from here comes by as well.
                        Some(got) if got != *bytes => {}
                        Some(_) => drop(expected.pop_front()),
                        None => assert!(Instant::now() < end, "a frame is missing"),
                    }
                }
            }
        }
        settle(&mut ports, free);
        assert_eq!(ports.drops(), Default::default());
        assert_eq!(ports.group_frames().unwrap(), 0);
    });
}

#[test]
fn frames_to_groups_are_the_kernels() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    in_namespace(1, || {
        let mut ports = ports(1, 64, 32);
        ports.plug(0, interface("a0")).unwrap();
        let (far, kernel) = (Far::open("b0"), Far::open("a0"));
        let mut group = frame(60, &mut rng);
        group[0] |= 1;
        (0..10).for_each(|_| far.send(&group));
        let own = frame(60, &mut rng);
        far.send(&own);
        let got = receive(&mut ports, 1).remove(0);
        assert_eq!(ports.bytes(&got), own);
        ports.free(got);
        for _ in 0..10 {
            assert_eq!(kernel.take(), Some(group.clone()), "as it came");
        }
        assert_eq!(kernel.take(), None, "the socket's frame is not the kernel's");
        assert_eq!(ports.group_frames().unwrap(), 10);
    });
}

/// A port that goes leaves what had come and what could not go, and all of its memory.
#[test]
fn an_unplugged_port_loses_nothing() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    in_namespace(2, || {
        let mut ports = ports(2, 256, 64);
        let (far0, far1) = (Far::open("b0"), Far::open("b1"));
        for round in 0..5 {
            ports.plug(0, interface("a0")).unwrap();
            ports.plug(1, interface("a1")).unwrap();
            let bytes: Vec<Vec<u8>> = (0..30).map(|_| frame(100, &mut rng)).collect();
            bytes.iter().for_each(|bytes| far0.send(bytes));
            let mut frames = receive(&mut ports, 20);
            ip("link set a1 down");
            for frame in frames.drain(..) {
                ports.send(frame, 1).unwrap();
            }
            ports.flush().unwrap();
            let left = ports.unplug(1);
            let text = |frames: &[Frame]| -> Vec<Vec<u8>> {
                frames.iter().map(|frame| ports.bytes(frame).to_vec()).collect()
            };
            assert_eq!(text(&left.unsent), bytes[..20], "round {round}");
            assert!(left.unread.is_empty());
            assert!(ports.unplug(1).unsent.is_empty(), "it is gone already");
            // The other ten have come by port 0.
            ip("link set a0 down");
            let rest = ports.unplug(0);
            let text: Vec<&[u8]> = rest.unread.iter().map(|frame| ports.bytes(frame)).collect();
            assert_eq!(text, bytes[20..], "round {round}");
            ip("link set a1 up");
            ip("link set a0 up");
            ports.plug(1, interface("a1")).unwrap();
            let mut expected: VecDeque<Vec<u8>> = bytes.into();
            for frame in left.unsent.into_iter().chain(rest.unread) {
                ports.send(frame, 1).unwrap();
            }
            let end = Instant::now() + PATIENCE;
            while let Some(next) = expected.front() {
                ports.flush().unwrap();
                match far1.take() {
                    Some(got) => {
                        assert_eq!(got, *next);
                        expected.pop_front();
                    }
                    None => assert!(Instant::now() < end, "{} are missing", expected.len()),
                }
            }
            ports.unplug(1);
            assert_eq!(ports.chunks(), (256, 0), "round {round}");
        }
        assert_eq!(ports.drops(), Default::default());
    });
}

/// What does not fit is dropped where a counter says so, and nothing stops.
#[test]
fn drops_have_a_reason() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    in_namespace(2, || {
        let mut ports = ports(2, 128, 64);
        ports.plug(0, interface("a0")).unwrap();
        ports.plug(1, interface("a1")).unwrap();
        let far = Far::open("b0");
        // 32 chunks in the port's fill ring, and nobody who takes frames out.
        (0..50).for_each(|_| far.send(&frame(60, &mut rng)));
        let end = Instant::now() + PATIENCE;
        while ports.drops().no_chunk < 18 {
            assert!(Instant::now() < end, "{:?}", ports.drops());
        }
        let mut frames = receive(&mut ports, 32);
        assert_eq!(ports.drops().no_chunk, 18);
        // A ring of 64 entries has room for 64, and gives the others back.
        while frames.len() < 80 {
            let bytes = frame(60, &mut rng);
            far.send(&bytes);
            frames.extend(receive(&mut ports, 1));
            assert_eq!(ports.bytes(&frames[frames.len() - 1]), bytes);
        }
        let mut back = Vec::new();
        for frame in frames {
            back.extend(ports.send(frame, 1).err());
        }
        assert_eq!(back.len(), 80 - 64);
        assert_eq!(ports.chunks().1, 16);
        back.into_iter().for_each(|frame| ports.free(frame));
        settle(&mut ports, 64);
        assert_eq!(ports.drops().bad_descriptors, 0);
        // A port that nothing is plugged into takes nothing.
        far.send(&frame(60, &mut rng));
        let one = receive(&mut ports, 1).remove(0);
        ports.unplug(1);
        let one = ports.send(one, 1).expect_err("nothing is there");
        ports.free(one);
    });
}

#[test]
fn what_the_kernel_refuses_is_named() {
    in_namespace(1, || {
        let mut first = ports(1, 64, 32);
        let second = XskPorts::open(XskConfig { ports: 1, chunks: 64, ring: 32 });
        let refused = second.err().expect("one for each namespace");
        println!("{refused}");
        assert!(refused.to_string().contains("queue 0 of lo"), "{refused}");

        let refused = first.plug(0, 10_000).expect_err("no such interface");
        println!("{refused}");
        assert!(refused.to_string().contains("queue 0 of 10000"), "{refused}");
        assert_eq!(first.chunks(), (64, 0), "a port that failed keeps nothing");

        let other = Redirect::load(1).unwrap();
        let link = attach(&other, interface("a0"));
        let refused = first.plug(0, interface("a0")).expect_err("another program is there");
        assert!(
            matches!(&refused, Error::Occupied { interface } if interface == "a0"),
            "{refused}"
        );
        drop(link);
        first.plug(0, interface("a0")).expect("it is gone");

        ip("link add a9 numrxqueues 2 numtxqueues 2 type veth peer name b9");
        first.unplug(0);
        let refused = first.plug(0, interface("a9")).expect_err("two queues");
        assert!(refused.to_string().contains("a9 has 2 receive queues"), "{refused}");
    });
}

/// Attaches a program to an interface, as someone else would.
fn attach(program: &Redirect, interface: u32) -> OwnedFd {
    let options = libbpf_rs::libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_link_create_opts>() as _,
        ..Default::default()
    };
    // SAFETY: descriptors and numbers; the options outlive the call.
    let fd = unsafe {
        libbpf_rs::libbpf_sys::bpf_link_create(
            program.program().as_raw_fd(),
            interface as i32,
            libbpf_rs::libbpf_sys::BPF_XDP,
            &options,
        )
    };
    assert!(fd >= 0, "{}", io::Error::from_raw_os_error(-fd));
    // SAFETY: a fresh descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// When the ports are dropped, programs and sockets are gone from their interfaces.
#[test]
fn nothing_stays_behind() {
    in_namespace(2, || {
        let attached = || {
            let output = Command::new("ip").args(["-o", "link", "show"]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).matches("prog/xdp").count()
        };
        let mut ports = ports(2, 64, 32);
        ports.plug(0, interface("a0")).unwrap();
        ports.plug(1, interface("a1")).unwrap();
        assert_eq!(attached(), 2);
        drop(ports);
        assert_eq!(attached(), 0);
        let mut again = self::ports(1, 64, 32);
        again.plug(0, interface("a0")).expect("its queue is free again");
        assert_eq!(again.memory_bytes(), 64 * CHUNK);
    });
}
