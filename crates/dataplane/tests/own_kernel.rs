//! No packet of a service goes to the balancer's own kernel while the service exists: it has no
//! socket for it and would answer with a reset.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};
use weir_dataplane::{
    BackendEntry, FrameRun, KernelPlane, Limits, LivePlane, Verdict, XdpMode, run_frame,
};
use weir_hash::HashKey;
use weir_plane::{Device, Plane as _, TooManyMacs, VipKey, Way};
use weir_steering::update::Plane as _;
use weir_steering::{BackendId, Member, Role, ServiceId, TrackedBuilder};
use weir_testbed::link::{self, End};
use weir_testbed::{in_own_namespace, sysctl};
use weir_wire::checksum::Checksum;
use weir_wire::craft::{self, Frame};
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, map_address};

/// A machine that is busy with other things is slow.
const PATIENCE: Duration = Duration::from_secs(120);

const CLIENT: &str = "02:99:00:00:00:02";
const BALANCER: &str = "02:99:00:00:00:01";
/// What the balancer's interface has later.
const ANOTHER: &str = "02:99:00:00:00:03";

fn mac(text: &str) -> [u8; 6] {
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("hex"));
    std::array::from_fn(|_| bytes.next().expect("six"))
}

fn ip(lines: &str) {
    link::ip(lines).expect("links");
}

/// The client's end of the link: a packet socket.
struct Client(OwnedFd);

impl Client {
    fn open(name: &str) -> Self {
        let protocol = libc::c_int::from((libc::ETH_P_ALL as u16).to_be());
        // SAFETY: a plain system call.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, protocol) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an address of zeros is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol as u16;
        address.sll_ifindex = weir_dataplane::Interface::find(name).expect("there").index as i32;
        // SAFETY: the address outlives the call, and its size is right.
        let done = unsafe {
            let size = size_of::<libc::sockaddr_ll>() as u32;
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size)
        };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        Self(fd)
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the buffer outlives the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    /// What has come so far, from the balancer.
    fn received(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = [0u8; 2048];
        loop {
            // SAFETY: the buffer outlives the call, which writes no more than fits.
            let got = unsafe {
                let (at, size) = (buffer.as_mut_ptr().cast(), buffer.len());
                libc::recv(self.0.as_raw_fd(), at, size, libc::MSG_DONTWAIT)
            };
            if got < 0 {
                return frames;
            }
            let frame = &buffer[..got as usize];
            if frame[6..12] != mac(CLIENT) {
                frames.push(frame.to_vec());
            }
        }
    }
}

/// The balancer's end is made, or made anew, with the addresses of the services.
fn interface(address: &str) {
    ip(&link::veth(&[End::new("lb0"), End::new("cl0")]));
    ip(&format!(
        "link set lb0 address {address}\nlink set cl0 address {CLIENT}\n\
         addr add 10.9.0.1/24 dev lb0\naddr add fd09::1/64 dev lb0 nodad\n\
         link set lb0 up\nlink set cl0 up\n"
    ));
    neighbours();
}

/// The client answers no question for its address.
fn neighbours() {
    for address in ["10.9.0.2", "fd09::2"] {
        ip(&format!("neigh replace {address} lladdr {CLIENT} dev lb0 nud permanent"));
    }
}

struct World {
    plane: KernelPlane,
    directory: PathBuf,
}

impl World {
    fn new(name: &str) -> Self {
        for conf in ["all", "default"] {
            sysctl(&format!("ipv6/conf/{conf}/accept_dad"), "0").expect("no duplicate detection");
        }
        // Every refusal is to be seen.
        for limit in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
            sysctl(limit, "0").expect("no limit");
        }
        ip(&link::up("lo"));
        interface(BALANCER);
        let directory: PathBuf =
            format!("/sys/fs/bpf/weir-test-{name}-{}", std::process::id()).into();
        let limits = Limits { services: 8, table_bytes: 1 << 16, backends: 8, ..Limits::default() };
        let (mut plane, report) = KernelPlane::open(Some(&directory), &limits).expect("root");
        assert_eq!(report.unguarded, None);
        for (number, to) in services().into_iter().enumerate() {
            plane.set_service(vip(to.0, to.1), ServiceId(number as u32)).expect("there is room");
        }
        Self { plane, directory }
    }

    fn attach(&self) {
        self.plane.attach(&["lb0".to_owned()], XdpMode::Native).expect("attach");
    }

    fn dropped(&self, reason: Reason) -> u64 {
        self.plane.outcomes().expect("readable").get(&reason).map_or(0, |counts| counts.1)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        KernelPlane::unload(&self.directory).expect("pins");
    }
}

fn services() -> [(SocketAddr, Protocol); 4] {
    [
        ("10.9.0.1:80".parse().unwrap(), Protocol::Tcp),
        ("10.9.0.1:53".parse().unwrap(), Protocol::Udp),
        ("[fd09::1]:80".parse().unwrap(), Protocol::Tcp),
        ("[fd09::1]:53".parse().unwrap(), Protocol::Udp),
    ]
}

fn vip(to: SocketAddr, protocol: Protocol) -> VipKey {
    VipKey { address: map_address(to.ip()), protocol, port: Some(to.port()) }
}

fn frame(to: SocketAddr, protocol: Protocol, mac_address: &str, source: u16) -> Vec<u8> {
    let from = if to.is_ipv4() { "10.9.0.2" } else { "fd09::2" };
    let from = SocketAddr::new(from.parse().unwrap(), source);
    let flow = FlowKey::new(from, to, protocol);
    let frame = Frame::new(flow).macs(mac(mac_address), mac(CLIENT));
    // What makes a host say that nobody is there: SYN, or ACK of a connection that it has not.
    frame.tcp_flags(if source.is_multiple_of(2) { TcpFlags::SYN } else { TcpFlags::ACK }).build()
}

/// Sends packets of all services to this MAC address, then one each to a port that no service has,
/// which is the kernel's, and waits for its refusal: by then it has had all of those before.
/// Returns how many were sent to services, and answers to those.
fn provoke(address: &str) -> (u64, Vec<Vec<u8>>) {
    let client = Client::open("cl0");
    let mut sent = 0;
    for source in 4000..4010 {
        for (to, protocol) in services() {
            client.send(&frame(to, protocol, address, source));
            sent += 1;
        }
    }
    let (refused, deadline) = ([81u16, 54], Instant::now() + PATIENCE);
    let strange = |to: &(SocketAddr, Protocol)| {
        let port = refused[usize::from(to.1 == Protocol::Udp)];
        frame(SocketAddr::new(to.0.ip(), port), to.1, address, 5000)
    };
    services().iter().for_each(|to| client.send(&strange(to)));
    let mut answers = Vec::new();
    let mut refusals = 0;
    while refusals < 4 {
        assert!(Instant::now() < deadline, "{refusals} refusals of what is the kernel's");
        for answer in client.received() {
            // From which port: the answer's own, or within what an ICMP error quotes.
            match about(&answer) {
                Some(port) if refused.contains(&port) => refusals += 1,
                Some(_) => answers.push(answer),
                None => {}
            }
        }
        sleep(Duration::from_millis(1));
    }
    (sent, answers)
}

/// The port here that an answer is about; `None` for what is no answer.
fn about(frame: &[u8]) -> Option<u16> {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let (l4, protocol, quoted) = match word(12)? {
        0x0800 => (34, frame[23], 34 + 8 + 20),
        0x86dd => (54, frame[20], 54 + 8 + 40),
        _ => return None,
    };
    match protocol {
        6 | 17 => word(l4),
        // Neighbour discovery is none.
        58 if frame[l4] >= 128 => None,
        1 | 58 => word(quoted + 2),
        _ => None,
    }
}

/// One backend for the first service, and forwarding on, so that the FIB answers.
fn with_backend(plane: &mut KernelPlane, address: &str) {
    for family in ["ipv4", "ipv6"] {
        sysctl(&format!("{family}/conf/all/forwarding"), "1").expect("forwarding");
    }
    plane
        .set_backend(BackendId::of(0), &BackendEntry::new(address.parse().expect("an address"), 1))
        .expect("room");
    let members =
        [Member { backend: BackendId::of(0), name: "b0".into(), weight: 1, role: Role::Serving }];
    let builder = TrackedBuilder::new(HashKey::from_seed(1), 251, false);
    for service in 0..services().len() as u32 {
        plane
            .publish(ServiceId(service), &builder.build(1, &members).expect("it fits"))
            .expect("room");
    }
}

/// What came back that is no answer of the kernel's: the client's own packets, as forwarded.
fn forwarded(frames: &[Vec<u8>]) -> usize {
    frames.iter().filter(|frame| frame[26..30] == [10, 9, 0, 2]).count()
}

#[test]
fn a_backend_behind_a_router_gets_nothing_and_the_drop_has_a_reason() {
    in_namespace(|| {
        let mut world = World::new("router");
        // XDP_TX over a veth arrives only where there is a program, too.
        sysctl("ipv4/conf/all/rp_filter", "0").expect("no filter");
        world.attach();
        with_backend(&mut world.plane, "10.77.0.5");
        ip("route add 10.77.0.0/16 via 10.9.0.2");
        let (sent, answers) = provoke(BALANCER);
        assert_eq!((forwarded(&answers), answers.len()), (0, 0));
        assert_eq!(world.dropped(Reason::BehindGateway), sent);
        // The neighbour table is no way round it, nor is a router that has not answered yet.
        ip("neigh del 10.9.0.2 dev lb0\nneigh del fd09::2 dev lb0");
        ip(&format!("neigh replace 10.9.0.9 lladdr {CLIENT} dev lb0 nud permanent"));
        let to = services()[0];
        Client::open("cl0").send(&frame(to.0, to.1, BALANCER, 4000));
        assert_eq!(world.dropped(Reason::BehindGateway), sent + 1);
        // On the link, it is a backend.
        ip("route del 10.77.0.0/16\nroute add 10.77.0.0/16 dev lb0");
        ip(&format!("neigh replace 10.77.0.5 lladdr {CLIENT} dev lb0 nud permanent"));
        Client::open("cl0").send(&frame(to.0, to.1, BALANCER, 4000));
        assert_eq!(world.plane.lane(BackendId::of(0)).expect("readable").packets, 1);
    });
}

/// A frame that the program is run on, as it came by another interface; what it makes of it.
fn run(world: &World, frame: &Frame) -> FrameRun {
    let frame = frame.clone().macs(mac(BALANCER), mac(CLIENT)).build();
    run_frame(world.plane.program(), &frame).expect("it runs")
}

fn to_service(service: usize, payload: u16) -> Frame {
    let (to, protocol) = services()[service];
    let from = if to.is_ipv4() { "10.9.0.2" } else { "fd09::2" };
    let flow = FlowKey::new(SocketAddr::new(from.parse().unwrap(), 4000), to, protocol);
    Frame::new(flow).payload(payload)
}

/// As it is to leave by `lb0`.
fn forwarded_as(frame: &Frame) -> FrameRun {
    let frame = frame.clone().macs(mac(CLIENT), mac(BALANCER)).build();
    FrameRun { verdict: Verdict::Redirect, frame }
}

/// Where frames leave tagged, a tag is pushed or changed; where they leave without, it is taken off;
/// and where they cannot leave they are counted. (The interface stands for a VLAN of its own.)
#[test]
fn tags_are_those_of_the_way_out() {
    in_namespace(|| {
        let mut world = World::new("vlan");
        world.attach();
        with_backend(&mut world.plane, "10.9.0.2");
        let ifindex = weir_dataplane::Interface::find("lb0").expect("there").index;
        let tag = [0x81, 0, 0, 10];
        let as_vlan = [Device { ifindex, way: Way::Tagged { lower: ifindex, tag } }];
        let set = |devices: &[Device]| {
            world.plane.set_devices(devices).expect("room");
            world.plane.forget_hop(BackendId::of(0)).expect("it is there");
        };
        for service in 0..services().len() {
            let plain = to_service(service, 100);
            let tagged = |id| plain.clone().vlan(id);
            set(&as_vlan);
            for sent in [plain.clone(), tagged(10), tagged(20)] {
                assert_eq!(run(&world, &sent), forwarded_as(&tagged(10)));
            }
            // A tag of two is all that is left.
            assert_eq!(run(&world, &tagged(20).vlan(30)), forwarded_as(&tagged(10)));
            set(&[]);
            for sent in [plain.clone(), tagged(20), tagged(20).vlan(30)] {
                assert_eq!(run(&world, &sent), forwarded_as(&plain));
            }
            set(&[Device { ifindex, way: Way::None }]);
            let before = world.dropped(Reason::NoWayOut);
            for sent in [plain.clone(), tagged(10)] {
                assert_eq!(run(&world, &sent).verdict, Verdict::Drop);
            }
            assert_eq!(world.dropped(Reason::NoWayOut), before + 2);
        }
    });
}

/// Frames of 9,000 bytes, which come in several buffers, are forwarded whole; lengths that the frame
/// does not have are found out there as well.
#[test]
fn jumbo_frames_are_forwarded_whole() {
    in_namespace(|| {
        let mut world = World::new("jumbo");
        // Without a program for several buffers the driver refuses such an MTU.
        ip("link set lb0 mtu 9000\nlink set cl0 mtu 9000");
        world.attach();
        with_backend(&mut world.plane, "10.9.0.2");
        for (service, reason) in [
            Reason::BadIpv4Length,
            Reason::BadIpv4Length,
            Reason::BadIpv6Length,
            Reason::BadIpv6Length,
        ]
        .into_iter()
        .enumerate()
        {
            let frame = to_service(service, 8900);
            for frame in [frame.clone(), frame.clone().vlan(7)] {
                let whole = forwarded_as(&to_service(service, 8900));
                assert!(run(&world, &frame) == whole, "service {service}");
                // One byte less than the IP header says.
                let frame = frame.macs(mac(BALANCER), mac(CLIENT)).build();
                let before = world.dropped(reason);
                let short = run_frame(world.plane.program(), &frame[..frame.len() - 1]);
                assert_eq!(short.expect("it runs").verdict, Verdict::Drop);
                assert_eq!(world.dropped(reason), before + 1);
            }
        }
        assert_eq!(world.plane.lane(BackendId::of(0)).expect("readable").packets, 8);
    });
}

fn in_namespace(test: impl FnOnce() + Send) {
    in_own_namespace(test).expect("a namespace (needs root)");
}

#[test]
fn after_a_change_of_its_address_the_kernel_gets_nothing() {
    in_namespace(|| {
        let world = World::new("mac");
        world.attach();
        ip(&format!("link set lb0 address {ANOTHER}"));
        // The kernel forgets them with the address.
        neighbours();
        let (sent, answers) = provoke(ANOTHER);
        assert_eq!(answers, Vec::<Vec<u8>>::new());
        assert_eq!(world.dropped(Reason::OtherHost), sent);
        // As soon as it is known, they are taken: there is no table yet.
        world.plane.accept_own_macs(&["lb0".to_owned()]);
        let (sent, answers) = provoke(ANOTHER);
        assert_eq!(answers, Vec::<Vec<u8>>::new());
        assert_eq!(world.dropped(Reason::NoTable), sent);
    });
}

/// As many addresses as the program compares are told from others; with more, frames to any are taken, and whoever
/// has set them is told.
#[test]
fn with_more_addresses_than_are_compared_any_is_taken() {
    in_namespace(|| {
        let world = World::new("macs");
        world.attach();
        let mut names = vec!["lb0".to_owned()];
        for pair in 0..4 {
            ip(&format!("link add m{pair} type veth peer name n{pair}"));
            names.extend([format!("m{pair}"), format!("n{pair}")]);
        }
        let (to, protocol) = services()[0];
        let stray = frame(to, protocol, ANOTHER, 4000);
        let run = || run_frame(world.plane.program(), &stray).expect("it runs");
        let reasons = || [Reason::OtherHost, Reason::NoTable].map(|reason| world.dropped(reason));
        let [other, decided] = reasons();
        assert_eq!(world.plane.accept_own_macs(&names[..8]), None);
        run();
        assert_eq!(reasons(), [other + 1, decided]);
        let too_many = TooManyMacs { found: 9, most: 8 };
        assert_eq!(world.plane.accept_own_macs(&names), Some(too_many));
        run();
        assert_eq!(reasons(), [other + 1, decided + 1]);
        assert_eq!(world.plane.accept_own_macs(&names[..1]), None);
        run();
        assert_eq!(reasons(), [other + 2, decided + 1]);
    });
}

#[test]
fn while_an_interface_comes_back_the_kernel_gets_nothing() {
    in_namespace(|| {
        let world = World::new("back");
        world.attach();
        ip("link del lb0");
        interface(BALANCER);
        let (sent, answers) = provoke(BALANCER);
        assert_eq!(answers, Vec::<Vec<u8>>::new());
        assert_eq!(world.dropped(Reason::PastProgram), sent);
        // Of several, the one that is there; and again, which changes nothing.
        let names = ["lb0".to_owned(), "lb1".to_owned()];
        for _ in 0..2 {
            let attached = world.plane.reattach(&names, XdpMode::Native).expect("attach");
            assert_eq!(attached.len(), 1);
        }
        let (sent, answers) = provoke(BALANCER);
        assert_eq!(answers, Vec::<Vec<u8>>::new());
        assert_eq!(world.dropped(Reason::NoTable), sent);
    });
}

/// A guard of another run is replaced by this one's; and what is removed is the kernel's again.
#[test]
fn a_service_that_is_gone_is_the_kernels() {
    in_namespace(|| {
        let mut world = World::new("gone");
        let (_, answers) = provoke(BALANCER);
        assert_eq!(answers, Vec::<Vec<u8>>::new());
        let limits = Limits { services: 8, table_bytes: 1 << 16, backends: 8, ..Limits::default() };
        for _ in 0..3 {
            let (plane, report) = KernelPlane::open(Some(&world.directory), &limits).expect("root");
            assert_eq!(report.unguarded, None);
            world.plane = plane;
        }
        let (_, answers) = provoke(BALANCER);
        assert_eq!(answers, Vec::<Vec<u8>>::new());
        for (number, to) in services().into_iter().enumerate() {
            world
                .plane
                .set_service(vip(to.0, to.1), ServiceId(number as u32))
                .expect("it is there");
            world.plane.remove_service(ServiceId(number as u32)).expect("it is there");
        }
        let (sent, answers) = provoke(BALANCER);
        assert!(!answers.is_empty() && answers.len() as u64 <= sent, "{}", answers.len());
    });
}

/// Memory of another size takes the place of the one that the guard reads, and it cannot be put in place anew: that is
/// said, and tried again, until it knows the services that have come since.
#[test]
fn a_guard_that_could_not_be_renewed_is_tried_again() {
    const NEW: u16 = 99;
    in_namespace(|| {
        let world = World::new("renewed");
        let limits = Limits { services: 8, table_bytes: 1 << 16, backends: 8, ..Limits::default() };
        let (plane, _) = KernelPlane::open(Some(&world.directory), &limits).expect("root");
        let mut live = LivePlane::new(plane).expect("reports");
        assert_eq!(live.go_on_guarding(), None);
        // What stands there is not removed for the new pin.
        let blocks = world.directory.join("guard-ipv6-new");
        std::fs::create_dir(&blocks).expect("a directory");
        live.drain(&mut |_| {}).expect("reports");
        live.resize(&Limits { services: 4096, ..limits }).expect("room");
        let why = live.go_on_guarding().expect("it is not renewed");
        assert!(why.contains("guard-ipv6"), "{why}");
        assert!(live.go_on_guarding().is_some(), "it is tried again, in vain");
        let at = SocketAddr::new("fd09::1".parse().expect("an address"), NEW);
        live.set_service(vip(at, Protocol::Udp), ServiceId(20)).expect("there is room");
        let client = Client::open("cl0");
        let deadline = Instant::now() + PATIENCE;
        client.send(&datagram(NEW, 4000));
        while !client.received().iter().any(|answer| refused_port(answer) == Some(NEW)) {
            assert!(Instant::now() < deadline, "the host does not answer: the test shows nothing");
            sleep(Duration::from_millis(1));
        }
        std::fs::remove_dir(&blocks).expect("empty");
        assert_eq!(live.go_on_guarding(), None);
        let dropped = |live: &LivePlane| {
            let outcomes = live.kernel.outcomes().expect("readable");
            outcomes.get(&Reason::PastProgram).map_or(0, |counts| counts.1)
        };
        let before = dropped(&live);
        client.send(&datagram(NEW, 4001));
        while dropped(&live) == before {
            assert!(Instant::now() < deadline, "the guard does not know the new service");
            sleep(Duration::from_millis(1));
        }
        assert!(client.received().iter().all(|answer| refused_port(answer) != Some(NEW)));
    });
}

/// The packet to the balancer's address and this port, of UDP over IPv6, long enough for fragments.
fn datagram(port: u16, source: u16) -> Vec<u8> {
    let to = SocketAddr::new("fd09::1".parse().expect("an address"), port);
    let from = SocketAddr::new("fd09::2".parse().expect("an address"), source);
    let flow = FlowKey::new(from, to, Protocol::Udp);
    Frame::new(flow).macs(mac(BALANCER), mac(CLIENT)).payload(200).build()
}

/// The same frame of IPv6 with destination options (RFC 8200 section 4.6) of 8 bytes, all padding.
fn with_options(mut frame: Vec<u8>) -> Vec<u8> {
    let next = std::mem::replace(&mut frame[20], 60);
    let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
    frame
}

/// An echo request to the balancer's address, behind destination options.
fn echo_request() -> Vec<u8> {
    let address = |text: &str| map_address(text.parse().expect("an address"));
    let mut frame = craft::icmp((address("fd09::2"), address("fd09::1")), [128, 0], 7, &[1; 32]);
    frame[..6].copy_from_slice(&mac(BALANCER));
    frame[6..12].copy_from_slice(&mac(CLIENT));
    with_options(frame)
}

/// A packet over IPv4 of a protocol that no host knows, with what would be ports.
fn of_no_protocol(port: u16) -> Vec<u8> {
    let to = SocketAddr::new("10.9.0.1".parse().expect("an address"), port);
    let mut frame = frame(to, Protocol::Udp, BALANCER, 4000);
    // The fragment header of IPv6, which IPv4 has not.
    frame[23] = 44;
    frame[24..26].fill(0);
    let sum = Checksum::default().add_bytes(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// What the program leaves to the kernel is the kernel's with the guard alone, too, and the other way
/// round: fragments and extension headers of IPv6, other protocols of IPv4.
#[test]
fn the_guard_leaves_the_kernel_what_the_program_leaves_it() {
    in_namespace(|| {
        let world = World::new("agree");
        for attached in [false, true] {
            if attached {
                world.attach();
            }
            let reason = if attached { Reason::NoTable } else { Reason::PastProgram };
            let before = world.dropped(reason);
            let client = Client::open("cl0");
            // Of a service: in fragments, behind options, and both.
            let services = [datagram(53, 4000), with_options(datagram(53, 4001))];
            for part in craft::fragments(&services[0], 1, 64) {
                client.send(&part);
                client.send(&with_options(part));
            }
            client.send(&services[1]);
            // Of nobody, which the host says.
            for part in craft::fragments(&datagram(54, 4002), 2, 64) {
                client.send(&part);
            }
            for part in craft::fragments(&datagram(55, 4003), 3, 64) {
                client.send(&with_options(part));
            }
            client.send(&with_options(datagram(56, 4004)));
            client.send(&of_no_protocol(57));
            client.send(&echo_request());
            let mut left = vec!["54", "55", "56", "57", "echo"];
            let deadline = Instant::now() + PATIENCE;
            while !left.is_empty() {
                assert!(Instant::now() < deadline, "attached: {attached}: no answer to {left:?}");
                for answer in client.received() {
                    let is_reply = answer.get(12..14) == Some(&[0x86, 0xdd])
                        && (answer.get(20), answer.get(54)) == (Some(&58), Some(&129));
                    let what = match refused_port(&answer) {
                        _ if is_reply => "echo".to_owned(),
                        Some(port) => port.to_string(),
                        None => continue,
                    };
                    assert_ne!(what, "53", "attached: {attached}");
                    left.retain(|one| *one != what);
                }
                sleep(Duration::from_millis(1));
            }
            // The first fragments, and the whole packet; another processor may be at the last of them.
            while world.dropped(reason) < before + 3 {
                assert!(Instant::now() < deadline, "attached: {attached}: not all are dropped");
                sleep(Duration::from_millis(1));
            }
            assert_eq!(world.dropped(reason), before + 3, "attached: {attached}");
        }
    });
}

/// The port here that an ICMP error is about, over whatever headers stand in the packet that it quotes.
fn refused_port(frame: &[u8]) -> Option<u16> {
    let quoted = match (frame.get(12..14)?, frame.get(20)?, frame.get(23)?) {
        ([8, 0], _, 1) => return about(frame),
        ([0x86, 0xdd], 58, _) if *frame.get(54)? == 1 => &frame[62..],
        _ => return None,
    };
    let (mut next, mut at) = (*quoted.get(6)?, 40);
    while matches!(next, 44 | 60) {
        next = *quoted.get(at)?;
        at += 8;
    }
    Some(u16::from_be_bytes([*quoted.get(at + 2)?, *quoted.get(at + 3)?]))
}
