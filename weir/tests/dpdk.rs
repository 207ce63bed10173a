//! A plane over ports of DPDK (docs/planes.md), here packet sockets at veth devices and taps: connections hold
//! whoever is killed, what is not a service's passes, and what is wrong is said.

mod common;

use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::user_plane::{self, count, enough, is_there, plane, process, sends_while, unload};
use common::{PATIENCE, WEIR};
use socket2::{Domain, Protocol, Socket, Type};
use weir_lab::topology::{BALANCER4, BALANCER6, INTERFACE, Topology, backend4, client4, device_of};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};
use weir_testbed::link;

const BACKENDS: usize = 5;
const POOL: usize = 4;
/// The methods that this plane decides by; of others it hands all to the program.
const METHODS: [&str; 2] = ["concury", "residue"];
const METRICS: &str = "127.0.0.1:9469";

fn lab(topology: Topology) -> Arc<Lab> {
    common::lab_of(LabSpec { backends: BACKENDS, topology, taps: true, ..LabSpec::default() })
}

/// The lines of a balancer's configuration; `limits`: lines at the end.
fn lines(topology: Topology, limits: &str) -> String {
    let dpdk = weir_lab::dpdk(topology);
    format!("plane = \"dpdk\"\nmetrics = \"{METRICS}\"\n{dpdk}{limits}")
}

fn start(lab: &Arc<Lab>, method: &str, service_lines: &str) -> Balancer {
    let spec = BalancerSpec {
        method: method.into(),
        balancer_lines: lines(lab.spec().topology, ""),
        service_lines: service_lines.into(),
        ..BalancerSpec::new(WEIR, POOL)
    };
    let balancer = common::start_spec(lab, spec);
    process(&balancer);
    balancer
}

/// Both processes are killed in turn while the pool changes, and nothing breaks: until there is another plane
/// nothing goes through, and is sent again.
fn unbroken_by_kills(method: &str, topology: Topology, service_lines: &str) {
    let _alone = common::alone();
    let lab = lab(topology);
    let balancer = start(&lab, method, service_lines);
    let traffic = common::mixed_traffic(&lab, 100);
    let mut held = user_plane::unbroken_by_kills(&lab, &balancer, POOL, 4, method);
    if METHODS.contains(&method) {
        user_plane::decides(&balancer, &mut held);
    } else {
        common::assert_unbroken(&mut held, "at the end", &balancer);
        assert_eq!(count(&balancer, "sent"), 0, "the program decides all of {method}");
        assert_ne!(count(&balancer, "returned"), 0, "which it gets by the tap");
    }
    enough(traffic);
}

#[test]
fn concury_holds() {
    unbroken_by_kills("concury", Topology::L2, "");
}

#[test]
fn a_killed_control_plane_loses_no_frame() {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let balancer = start(&lab, "residue", "");
    user_plane::loses_no_frame_by_kills(&lab, &balancer);
}

#[test]
fn residue_holds() {
    unbroken_by_kills("residue", Topology::L2, "");
}

#[test]
fn tracked_holds() {
    unbroken_by_kills("tracked", Topology::L2, "");
}

#[test]
fn concury_holds_in_tunnels() {
    unbroken_by_kills("concury", Topology::Routed, "forward = \"ipip\"");
}

/// By two devices: packets come by one and leave by the other.
#[test]
fn residue_holds_behind_nat() {
    unbroken_by_kills("residue", Topology::Nat, "forward = \"nat\"");
}

/// Rules of an emulated card, which does everything wrong that a card may.
fn unbroken_with_rules(method: &str, rules: u32) {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let spec = BalancerSpec {
        method: method.into(),
        balancer_lines: lines(Topology::L2, &user_plane::rules(rules, "hostile")),
        ..BalancerSpec::new(WEIR, POOL)
    };
    let balancer = common::start_spec(&lab, spec);
    process(&balancer);
    let what = format!("{method}, {rules} rules, a hostile card (emulated)");
    user_plane::unbroken_with_rules(&lab, &balancer, POOL, &what, rules < 50);
}

#[test]
fn concury_holds_over_a_hostile_card() {
    unbroken_with_rules("concury", 1_000);
}

#[test]
fn residue_holds_over_a_card_that_is_full() {
    unbroken_with_rules("residue", 8);
}

/// A table of rules, of DPDK's devices.
const RULES_OF_DEVICES: &str =
    "\n[offload]\ncard = \"rte_flow\"\nrules = 64\nqueues = 8\nchoice = \"all\"\n";

/// Whoever is killed, nothing breaks where devices take no rules; status, log and metrics say so. Returns why.
fn unbroken_without_rules(lab: &Lab, balancer: &Balancer) -> String {
    let traffic = common::mixed_traffic(lab, 100);
    let mut held = user_plane::unbroken_by_kills(lab, balancer, POOL, 2, "without rules");
    user_plane::decides(balancer, &mut held);
    enough(traffic);
    let said = plane(balancer);
    let why = said["no_rules"].as_str().unwrap_or_else(|| panic!("no reason in {said}")).to_owned();
    assert_eq!(said["offload"], "rte_flow", "{said}");
    assert_eq!((count(balancer, "led"), count(balancer, "rules_asked")), (0, 0), "{said}");
    let table = balancer.command(&["status"]).unwrap();
    let log = fs::read_to_string(balancer.log()).unwrap();
    let url = format!("http://{METRICS}/metrics");
    let read = lab.balancer().command("curl").unwrap().args(["-s", &url]).output().unwrap();
    for (all, part) in [
        (&table, "goes on without rules of a card: "),
        (&table, "rules (rte_flow): none ("),
        (&log, "the plane goes on without rules of a card"),
        (&common::stdout(&read), "weir_plane_rules{card=\"rte_flow\"} 0"),
    ] {
        assert!(all.contains(part), "no {part:?} in {all}");
    }
    why
}

/// A packet socket's driver knows no rules.
#[test]
fn a_device_without_rules_is_gone_around() {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let spec = BalancerSpec {
        method: "concury".into(),
        balancer_lines: lines(Topology::L2, RULES_OF_DEVICES),
        ..BalancerSpec::new(WEIR, POOL)
    };
    let balancer = common::start_spec(&lab, spec);
    process(&balancer);
    let why = unbroken_without_rules(&lab, &balancer);
    let device = device_of(INTERFACE);
    assert!(why.contains(&format!("net_af_packet0,iface={device} has no rules")), "{why}");
}

/// The interface of a device that a process of the plane makes, and that goes with it.
const MADE: &str = "card0";

/// Behind that interface is the balancer's cable, whichever process has made it.
struct Cabled {
    over: Arc<AtomicBool>,
    follower: Option<JoinHandle<weir_testbed::Result<()>>>,
}

impl Cabled {
    fn new(lab: &Lab) -> Self {
        let netns = lab.balancer();
        // The host is not to speak there.
        common::sysctl(netns, "ipv6/conf/default/disable_ipv6", "1");
        let end = device_of(INTERFACE);
        let lines = format!(
            "link add cabled type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link set cabled arp off up\nlink set {end} master cabled\n"
        );
        netns.ip(&lines).unwrap();
        let over = Arc::<AtomicBool>::default();
        let told = Arc::clone(&over);
        let follow = move || {
            let mut known = 0;
            while !told.load(Ordering::Relaxed) {
                let found = nix::net::if_::if_nametoindex(MADE).unwrap_or(0);
                let join = || link::ip(&format!("link set {MADE} master cabled\n")).is_ok();
                if found != known && (found == 0 || join()) {
                    known = found;
                }
                thread::sleep(Duration::from_millis(20));
            }
        };
        Self { over, follower: Some(netns.spawn(follow).unwrap()) }
    }
}

impl Drop for Cabled {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(follower) = self.follower.take() {
            let _ = follower.join();
        }
    }
}

/// Over a tap that DPDK makes, whose driver makes filters of the kernel's (flower) of rules: they lead connections to
/// their backends' queues, and whoever is killed, nothing breaks. A kernel without these refuses, and that is said; with
/// `WEIR_RULES=must` none may.
#[test]
fn rules_of_a_tap_lead_connections_or_say_why_not() {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let _cabled = Cabled::new(&lab);
    let device = format!("net_tap90,iface={MADE}");
    let spec = BalancerSpec {
        method: "concury".into(),
        balancer_lines: format!(
            "plane = \"dpdk\"\nmetrics = \"{METRICS}\"\n\n[dpdk]\ndevices = [\"{device}\"]\n\
             huge_pages = false\n{RULES_OF_DEVICES}"
        ),
        ..BalancerSpec::new(WEIR, POOL)
    };
    let balancer = common::start_spec(&lab, spec);
    process(&balancer);
    if let Some(refused) = plane(&balancer)["no_rules"].as_str() {
        println!("no rules here: {refused}");
        assert_ne!(std::env::var("WEIR_RULES").as_deref(), Ok("must"), "{refused}");
        let why = unbroken_without_rules(&lab, &balancer);
        assert!(why.contains(&device), "{why}");
        return;
    }
    let traffic = common::mixed_traffic(&lab, 50);
    let mut held = user_plane::unbroken_by_kills(&lab, &balancer, POOL, 4, "rules of a tap");
    let led = count(&balancer, "led");
    common::eventually("rules lead packets", || {
        common::assert_unbroken(&mut held, "by rules", &balancer);
        count(&balancer, "led") > led + 200 && count(&balancer, "rules") > 0
    });
    let said = plane(&balancer);
    assert!(said["no_rules"].is_null() && said["offload"] == "rte_flow", "{said}");
    user_plane::decides(&balancer, &mut held);
    enough(traffic);
    println!("rules of a tap led connections: {}", said["counts"]);
}

/// Two threads, each with a queue of every device: both are at work, and whoever is killed, nothing breaks. What is
/// counted is of both: each frame that was sent is in the counts of a backend.
#[test]
fn threads_share_the_work() {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let devices = lines(Topology::L2, "threads = 2\n");
    let spec = BalancerSpec {
        method: "concury".into(),
        balancer_lines: devices.replace("iface=", "qpairs=2,iface="),
        ..BalancerSpec::new(WEIR, POOL)
    };
    let balancer = common::start_spec(&lab, spec);
    let number = process(&balancer);
    // Before anybody has been served, so that all that is served is counted.
    let mut held = common::hold_both(&lab, 40);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "two threads", &balancer));
    let queues = 2 * Topology::L2.interfaces().len();
    assert_eq!(plane(&balancer)["counts"]["sockets"], queues, "each thread has one of each device");
    let sent = || {
        let status = balancer.status().expect("it answers");
        let of = |backend: &serde_json::Value| backend["packets"].as_u64();
        let services = status["services"].as_array().into_iter().flatten();
        let backends = services.flat_map(|service| service["backends"].as_array()).flatten();
        let packets: u64 = backends.filter_map(of).sum();
        (status["plane"]["counts"]["sent"].as_u64().unwrap_or(0), packets)
    };
    common::eventually("what was sent is counted of backends", || {
        let (sent, packets) = sent();
        sent > 0 && packets >= sent
    });
    // Of its threads two have been at the ports: the other ones sleep until somebody calls.
    let tasks = format!("/proc/{number}/task");
    let used = || -> Vec<u64> {
        let tasks = fs::read_dir(&tasks).expect("it runs").flatten();
        let text = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
        text.filter_map(|text| text.split_whitespace().nth(2)?.parse().ok()).collect()
    };
    let before = used();
    common::eventually("two threads look at their queues", || {
        let now = used();
        let busy = now.iter().zip(&before).filter(|(now, before)| **now > **before + 1000);
        busy.count() >= 2
    });
    let traffic = common::mixed_traffic(&lab, 100);
    let mut held = user_plane::unbroken_by_kills(&lab, &balancer, POOL, 2, "concury");
    user_plane::decides(&balancer, &mut held);
    enough(traffic);
}

/// Traffic, churn and a crash of the control plane, as `weir lab` has them.
#[test]
fn churn_breaks_nothing() {
    let _alone = common::alone();
    let lab = LabSpec { backends: 6, taps: true, ..LabSpec::default() };
    let balancer =
        BalancerSpec { balancer_lines: lines(Topology::L2, ""), ..BalancerSpec::new(WEIR, POOL) };
    let status = common::unbroken(lab, balancer, "dpdk");
    assert_eq!(status["plane"]["kind"], "dpdk");
    let sent = status["plane"]["counts"]["sent"].as_u64();
    assert!(sent.is_some_and(|sent| sent > 1000), "{}", status["plane"]);
}

/// What is no service's is the host's, which answers once: it is a neighbour of others by the tap alone.
#[test]
fn the_hosts_own_traffic_passes() {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let balancer = start(&lab, "concury", "");
    let returned = count(&balancer, "returned");
    for (from, to) in [
        (&lab.clients()[0], IpAddr::from(BALANCER4)),
        (&lab.clients()[0], BALANCER6.into()),
        (lab.balancer(), backend4(0).into()),
        (lab.balancer(), client4(1, 0).into()),
    ] {
        common::sysctl(from, "ipv4/ping_group_range", "0 2147483647");
        from.enter(|| ping(to)).unwrap().unwrap_or_else(|error| panic!("{to}: {error}"));
    }
    common::eventually("they are counted", || count(&balancer, "returned") >= returned + 20);
    // Whoever asks for the host's address learns the tap's, and that only.
    let known = lab.clients()[0].command("ip").unwrap().args(["neigh"]).output().unwrap();
    let known = common::stdout(&known);
    let tap = lab.balancer().command("ip").unwrap().args(["-br", "link"]).output().unwrap();
    let tap = common::stdout(&tap);
    let mac = tap.lines().find(|line| line.starts_with("eth0 ")).expect("the tap");
    let mac = mac.split_whitespace().nth(2).expect("its address");
    let entry = known.lines().find(|line| line.starts_with(&format!("{BALANCER4} ")));
    assert!(entry.is_some_and(|entry| entry.contains(mac)), "{known}\n{tap}");
}

/// Sends five echo requests, each of which is answered once.
fn ping(to: IpAddr) -> io::Result<()> {
    let (domain, protocol, kind) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128),
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
    socket.connect(&SocketAddr::new(to, 0).into())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = [0; 200];
    for number in 0..5 {
        socket.send(&[kind, 0, 0, 0, 0, 0, 0, number, b'w'])?;
        let length = (&socket).read(&mut buffer)?;
        assert_eq!(buffer[6..length], [0, number, b'w'], "{to}: {:?}", &buffer[..length]);
    }
    // One too many would be there, or come soon.
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    match (&socket).read(&mut buffer) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        more => panic!("{to}: another answer: {more:?}"),
    }
}

/// Memory of other sizes takes the place of the one in use, the control plane stops, another setting wants another
/// process, the data plane is removed: the tap and its addresses stay throughout.
#[test]
fn it_comes_and_goes() {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let balancer = start(&lab, "concury", "");
    let mut held = common::hold_both(&lab, 40);
    let traffic = common::mixed_traffic(&lab, 50);
    let first = process(&balancer);

    let before = fs::read_to_string(balancer.config()).unwrap();
    let text = before.replace(
        "\n[[service]]\nname = \"web4\"",
        "\n[limits]\npending_flows = 70000\nbackends = 500\n\n[[service]]\nname = \"web4\"",
    );
    assert_ne!(text, before);
    fs::write(balancer.config(), &text).unwrap();
    common::command(&balancer, "reload");
    common::assert_unbroken(&mut held, "in other memory", &balancer);
    // Its ports stay open, and it decides by the new memory.
    assert_eq!(process(&balancer), first);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "in other memory", &balancer));

    // What its process was started with cannot change under it.
    let other = text.replace("huge_pages = false", "huge_pages = false\nlongest_nap = \"1ms\"");
    assert_ne!(text, other);
    fs::write(balancer.config(), &other).unwrap();
    let refused = common::try_command(&balancer, "reload").unwrap_err();
    assert!(refused.contains("[dpdk] and interfaces cannot change while weir runs"), "{refused}");

    let ended = balancer.stop(PATIENCE);
    assert_eq!(ended.as_deref(), Some("exit status: 0"), "{}", common::log_tail(&balancer, 20));
    held.extend(common::hold_both(&lab, 10));
    common::assert_unbroken(&mut held, "stopped", &balancer);
    assert!(is_there(first), "it goes on");

    // A start with that is followed: the process of before ends, and another one begins.
    balancer.launch().unwrap();
    common::eventually("it is another one", || !is_there(first));
    let second = process(&balancer);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "with another one", &balancer));
    enough(traffic);
    drop(held);

    balancer.kill();
    unload(&lab, &balancer);
    assert!(!is_there(second), "weir unload waits for it");
    assert!(!balancer.pins().exists());
    let mut links = lab.balancer().command("ip").unwrap();
    let links = links.args(["addr", "show", INTERFACE]).output().unwrap();
    let links = common::stdout(&links);
    assert!(!links.contains("prog/xdp"), "{links}");
    assert!(links.contains("UP") && links.contains(&BALANCER4.to_string()), "{links}");
}

/// A device that goes away is said, without a spin, and taken again when it is back.
#[test]
fn a_device_goes_and_comes_back() {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let balancer = start(&lab, "residue", "");
    let mut held = common::hold_both(&lab, 20);
    let first = process(&balancer);
    lab.replace_balancer_interface().unwrap();
    common::eventually("it is another one", || !is_there(first));
    process(&balancer);
    common::assert_unbroken(&mut held, "the device is back", &balancer);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "after", &balancer));
    let log = fs::read_to_string(balancer.log()).unwrap();
    assert!(log.contains("has gone away: bring it back"), "{log}");
    // One that stays away.
    let device = device_of(INTERFACE);
    common::sh(lab.balancer(), &format!("ip link del {device}"));
    common::eventually("it says what is missing", || {
        let failure = plane(&balancer)["failure"].clone();
        failure.as_str().is_some_and(|why| why.contains(&format!("no interface {device}")))
    });
    let warned = balancer.command(&["status"]).unwrap();
    assert!(warned.contains("no packet comes or goes by DPDK's ports"), "{warned}");
}

/// While nothing comes it sleeps, as it says; status and metrics tell what it does.
#[test]
fn it_sleeps_when_idle() {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let balancer = start(&lab, "concury", "");
    let mut held = common::hold_both(&lab, 10);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "busy", &balancer));
    let slept = count(&balancer, "sleeps");
    common::eventually("it sleeps again and again", || count(&balancer, "sleeps") > slept + 5000);
    let told = plane(&balancer);
    assert!(told["utilisation"].as_f64().is_some_and(|share| share < 0.5), "{told}");
    let url = format!("http://{METRICS}/metrics");
    let read = lab.balancer().command("curl").unwrap().args(["-s", &url]).output().unwrap();
    let read = common::stdout(&read);
    for line in ["weir_plane_running 1", "weir_plane_frames_total{what=\"sent\"} "] {
        assert!(read.contains(line), "no {line} in {read}");
    }
    let table = balancer.command(&["status"]).unwrap();
    let process = process(&balancer);
    let wanted = format!("plane dpdk: process {process}, 0 restarts; busy ");
    assert!(table.contains(&wanted), "{table}");
}

/// A start that could not forward anything is refused, with what to do, and leaves nothing.
#[test]
fn what_is_wrong_is_said_at_the_start() {
    let _alone = common::alone();
    let lab = lab(Topology::L2);
    let netns = lab.balancer();
    let device = device_of(INTERFACE);
    let folder = lab.directory().join("wrong");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("weir.toml");
    let name = format!("wl{}-wrong", lab.id());
    let pins = Path::new("/sys/fs/bpf/weir").join(&name);
    lab.remove_later(&pins).unwrap();
    let run = |interface: &str, devices: &str, more: &str| -> Output {
        let text = format!(
            "[balancer]\nname = \"{name}\"\ninterfaces = [\"{interface}\"]\nrun_dir = \"{}\"\n\
             plane = \"dpdk\"\n\n[dpdk]\ndevices = [{devices}]\n{more}\n\n[[service]]\n\
             name = \"web\"\nvip = \"10.77.0.100\"\nprotocol = \"tcp\"\nport = 80\n\n\
             [[service.backend]]\nname = \"b0\"\naddress = \"10.77.2.1\"\n",
            folder.display()
        );
        fs::write(&file, text).unwrap();
        common::weir_in(&lab, &["run", "--config", file.to_str().unwrap()])
    };
    let refused = |output: Output, places: [&str; 2]| {
        let said = common::stderr(&output);
        assert!(!output.status.success(), "{said}");
        for place in places {
            assert!(said.contains(place), "no {place:?} in {said}");
        }
        assert!(!pins.exists(), "{said}");
    };
    const SMALL: &str = "huge_pages = false";
    let good = format!("\"net_af_packet0,iface={device}\"");
    refused(run(INTERFACE, "", SMALL), ["weir.toml:8: dpdk: devices: ", "0 devices for 1"]);
    let twice = format!("{good}, {good}");
    refused(run(INTERFACE, &twice, SMALL), ["dpdk: devices: ", "is there twice"]);
    refused(
        run(INTERFACE, "\"net_nosuch0\"", SMALL),
        ["weir.toml:8: [dpdk]: device", "DPDK has no driver for it"],
    );
    refused(
        run(INTERFACE, "\"net_af_packet0,iface=nosuch0\"", SMALL),
        ["there is no interface nosuch0", "`ip link` shows"],
    );
    refused(
        run(INTERFACE, "\"0000:ff:1f.7\"", SMALL),
        ["DPDK has found no card there", "dpdk-devbind.py"],
    );
    // More than any machine has.
    refused(
        run(INTERFACE, &good, "memory_mb = 65536"),
        ["DPDK wants 65536 MB in huge pages", "sysctl vm.nr_hugepages="],
    );
    refused(run(&device, &good, SMALL), ["it is no tap", "ip tuntap add dev eth0-cable"]);
    common::sh(netns, &format!("ip link set {device} arp on"));
    refused(
        run(INTERFACE, &good, SMALL),
        ["would answer by itself", &format!("ip link set {device} arp off")],
    );
    common::sh(netns, &format!("ip link set {device} arp off"));
    common::sh(netns, &format!("ip addr add 10.98.0.1/24 dev {device}"));
    refused(
        run(INTERFACE, &good, SMALL),
        ["it has an address", &format!("ip addr flush dev {device}")],
    );
    common::sh(netns, &format!("ip addr flush dev {device}"));
    // None of that has touched the tap, and with all of it put right it begins.
    let routes = netns.command("ip").unwrap().args(["route"]).output().unwrap();
    assert!(common::stdout(&routes).contains("10.77.0.0/16 dev eth0"), "{routes:?}");
    let balancer = start(&lab, "concury", "");
    assert_ne!(process(&balancer), 0);
}
