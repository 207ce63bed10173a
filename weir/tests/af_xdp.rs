//! A plane in user space beside the program (docs/planes.md): connections hold whoever is killed, what it does
//! is counted, and nothing is left of it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::user_plane::{self, count, gone, is_there, plane, process, sends_while, unload};
use common::{PATIENCE, WEIR};
use serde_json::Value;
use weir_lab::topology::Topology;
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};

const BACKENDS: usize = 5;
const POOL: usize = 4;
/// The methods that this plane decides by.
const METHODS: [&str; 2] = ["concury", "residue"];
const PLANE: &str = "plane = \"af-xdp\"\n";
const METRICS: &str = "127.0.0.1:9469";

fn start(lab: &Arc<Lab>, method: &str, service_lines: &str) -> Balancer {
    start_with(lab, method, service_lines, "")
}

/// The same with more tables.
fn start_with(lab: &Arc<Lab>, method: &str, service_lines: &str, tables: &str) -> Balancer {
    let spec = BalancerSpec {
        method: method.into(),
        balancer_lines: format!("{PLANE}metrics = \"{METRICS}\"\n{tables}"),
        service_lines: service_lines.into(),
        ..BalancerSpec::new(WEIR, POOL)
    };
    let balancer = common::start_spec(lab, spec);
    process(&balancer);
    balancer
}

/// Both processes are killed in turn while the pool changes, and nothing breaks.
fn unbroken_by_kills(method: &str, topology: Topology, lines: &str) {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: BACKENDS, topology, ..LabSpec::default() });
    let balancer = start(&lab, method, lines);
    let traffic = common::mixed_traffic(&lab, 200);
    let mut held = user_plane::unbroken_by_kills(&lab, &balancer, POOL, 6, method);
    if METHODS.contains(&method) {
        user_plane::decides(&balancer, &mut held);
    } else {
        common::assert_unbroken(&mut held, "at the end", &balancer);
        assert_eq!(count(&balancer, "received"), 0, "the program decides all of {method}");
    }
    common::assert_none_broke(traffic);
}

#[test]
fn concury_holds() {
    unbroken_by_kills("concury", Topology::L2, "");
}

#[test]
fn residue_holds() {
    unbroken_by_kills("residue", Topology::L2, "");
}

#[test]
fn a_killed_control_plane_loses_no_frame() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let balancer = start(&lab, "residue", "");
    user_plane::loses_no_frame_by_kills(&lab, &balancer);
}

/// What is not for this plane is decided as without it.
#[test]
fn tracked_holds() {
    unbroken_by_kills("tracked", Topology::L2, "");
}

#[test]
fn concury_holds_in_tunnels() {
    unbroken_by_kills("concury", Topology::Routed, "forward = \"ipip\"");
}

#[test]
fn residue_holds_behind_nat() {
    unbroken_by_kills("residue", Topology::Nat, "forward = \"nat\"");
}

fn unbroken_with_rules(method: &str, rules: u32, profile: &str) {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: BACKENDS, ..LabSpec::default() });
    let balancer = start_with(&lab, method, "", &user_plane::rules(rules, profile));
    let what = format!("{method}, {rules} rules, a {profile} card (emulated)");
    user_plane::unbroken_with_rules(&lab, &balancer, POOL, &what, rules < 50);
}

#[test]
fn concury_holds_over_a_hostile_card() {
    unbroken_with_rules("concury", 1_000, "hostile");
}

#[test]
fn residue_holds_over_a_hostile_card() {
    unbroken_with_rules("residue", 1_000, "hostile");
}

#[test]
fn concury_holds_over_a_card_that_is_full() {
    unbroken_with_rules("concury", 8, "hostile");
}

/// Where the card takes no rules, the plane goes on without, and says why.
#[test]
fn a_card_without_rules_is_gone_around() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let balancer = start_with(&lab, "concury", "", "\n[offload]\ncard = \"ntuple\"\n");
    let mut held = common::hold_both(&lab, 20);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "without rules", &balancer));
    let said = plane(&balancer);
    assert!(said["no_rules"].as_str().is_some_and(|why| why.contains("ntuple on")), "{said}");
    assert_eq!(count(&balancer, "led"), 0);
    let table = balancer.command(&["status"]).unwrap();
    assert!(table.contains("goes on without rules of a card: "), "{table}");
}

/// Rules lead to other queues than the first one, and here is no other.
#[test]
fn a_card_at_a_veth_needs_queues() {
    let _alone = common::alone();
    let spec = LabSpec { backends: BACKENDS, queues: Some(1), ..LabSpec::default() };
    let lab = common::lab_of(spec);
    let table = user_plane::rules_of("emulated-veth", 8, "sound");
    let balancer = start_with(&lab, "concury", "", &table);
    let said = plane(&balancer)["no_rules"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("eth0 has no other") && said.contains("numrxqueues 16"), "{said}");
    assert!(!is_played(&lab), "what cannot be used is taken away");
}

/// Frames that came by each queue of the balancer's interface and were led to a socket, as the driver counts them.
fn led(lab: &Lab) -> Vec<u64> {
    let mut ethtool = lab.balancer_command("ethtool").unwrap();
    let said = common::stdout(&ethtool.args(["-S", "eth0"]).output().unwrap());
    let counts = said.lines().filter_map(|line| {
        let (name, count) = line.trim().rsplit_once(' ')?;
        let queue = name.strip_prefix("rx_queue_")?.strip_suffix("_xdp_redirect:")?;
        Some((queue.parse::<usize>().ok()?, count.parse::<u64>().ok()?))
    });
    let mut counts: Vec<(usize, u64)> = counts.collect();
    counts.sort_unstable();
    counts.into_iter().map(|(_, count)| count).collect()
}

/// A program plays the card at the switch's end of the interface: frames come by the queues of which rules say so,
/// and nothing breaks, whoever is killed; neither when the interface is another one. Nothing is left of it.
fn unbroken_at_a_veth(method: &str, rules: u32) {
    let _alone = common::alone();
    let spec = LabSpec { backends: BACKENDS, queues: Some(8), ..LabSpec::default() };
    let lab = common::lab_of(spec);
    let table = user_plane::rules_of("emulated-veth", rules, "hostile");
    let balancer = start_with(&lab, method, "", &table);
    let by_rules = || led(&lab).iter().skip(1).sum::<u64>();
    let what = format!("{method}, {rules} rules, a hostile card at a veth device (emulated)");
    user_plane::unbroken_with_rules(&lab, &balancer, POOL, &what, rules < 50);
    assert!(by_rules() > 200, "{what}: {:?}", led(&lab));
    assert!(is_played(&lab), "{what}");

    lab.replace_balancer_interface().unwrap();
    let mut held = common::hold_both(&lab, 20);
    common::eventually("rules lead packets to the other interface", || {
        common::assert_unbroken(&mut held, &format!("{what}, another interface"), &balancer);
        by_rules() > 100
    });
    balancer.kill();
    unload(&lab, &balancer);
    assert!(!is_played(&lab), "{what}: the program is still there");
}

/// Whether the program that plays a card is at the switch's end of the balancer's interface.
fn is_played(lab: &Lab) -> bool {
    let mut tc = lab.switch().command("tc").unwrap();
    let said = tc.args(["filter", "show", "dev", "lb", "egress"]).output().unwrap();
    common::stdout(&said).contains("weir_card")
}

#[test]
fn concury_holds_over_a_card_at_a_veth() {
    unbroken_at_a_veth("concury", 1_000);
}

#[test]
fn residue_holds_over_a_card_at_a_veth_that_is_full() {
    unbroken_at_a_veth("residue", 8);
}

/// Two threads, each with the socket of one of two queues: both decide what comes by theirs, and whoever is killed
/// while the pool changes, no connection breaks. So it is when the interface is another one.
#[test]
fn threads_share_the_work() {
    let _alone = common::alone();
    let spec = LabSpec { backends: BACKENDS, queues: Some(2), ..LabSpec::default() };
    let lab = common::lab_of(spec);
    let balancer = start_with(&lab, "concury", "", "\n[af_xdp]\nthreads = 2\n");
    assert_eq!(count(&balancer, "sockets"), 2, "one of each queue");
    let mut held = common::hold_both(&lab, 40);
    let taken = |held: &mut Vec<common::Held>, when: &str| {
        let (received, before) = (count(&balancer, "received"), led(&lab));
        assert_eq!(before.len(), 2, "{when}: the interface has two queues");
        let mut more = vec![0; 2];
        common::eventually("packets come by both queues", || {
            common::assert_unbroken(held, when, &balancer);
            // Each new one takes one of them.
            held.extend(common::hold_both(&lab, 2));
            more = led(&lab).iter().zip(&before).map(|(now, before)| now - before).collect();
            more.iter().all(|more| *more >= 100)
        });
        // What neither had taken would be missing.
        let least: u64 = more.iter().sum();
        common::eventually("both threads have taken what came", || {
            count(&balancer, "received") >= received + least
        });
    };
    taken(&mut held, "two threads");
    lab.replace_balancer_interface().unwrap();
    common::assert_unbroken(&mut held, "another interface", &balancer);
    common::eventually("it has sockets there", || count(&balancer, "sockets") == 2);
    taken(&mut held, "another interface");
    drop(held);
    let traffic = common::mixed_traffic(&lab, 200);
    let mut held = user_plane::unbroken_by_kills(&lab, &balancer, POOL, 4, "concury");
    user_plane::decides(&balancer, &mut held);
    user_plane::enough(traffic);

    // Others are none that can take their place while weir runs; from the next start on they are.
    let process = process(&balancer);
    let text = fs::read_to_string(balancer.config()).unwrap();
    assert!(text.contains("threads = 2\n"), "{text}");
    fs::write(balancer.config(), text.replace("threads = 2\n", "threads = 3\n")).unwrap();
    let refused = common::try_command(&balancer, "reload").unwrap_err();
    assert!(refused.contains("[af_xdp] cannot change while weir runs"), "{refused}");
    balancer.kill();
    balancer.launch().unwrap();
    gone(process);
    // One thread more than there are queues has nothing to do, and the others go on.
    self::process(&balancer);
    common::eventually("sockets are counted", || count(&balancer, "sockets") == 2);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "three threads", &balancer));
}

/// Memory of other sizes takes the place of the one in use, the control plane stops, the setting is taken back,
/// the data plane is removed: connections hold for as long as there is one, and then nothing is left.
#[test]
fn it_comes_and_goes() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let balancer = start(&lab, "concury", "");
    let mut held = common::hold_both(&lab, 60);
    let traffic = common::mixed_traffic(&lab, 100);
    let first = process(&balancer);

    let text = fs::read_to_string(balancer.config()).unwrap();
    let text = text.replace(
        "\n[[service]]\nname = \"web4\"",
        "\n[limits]\npending_flows = 70000\nbackends = 500\n\n[[service]]\nname = \"web4\"",
    );
    fs::write(balancer.config(), &text).unwrap();
    common::command(&balancer, "reload");
    common::assert_unbroken(&mut held, "in other memory", &balancer);
    let second = process(&balancer);
    assert_ne!(first, second, "it has begun anew with the new memory");
    gone(first);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "in other memory", &balancer));

    let ended = balancer.stop(PATIENCE);
    assert_eq!(ended.as_deref(), Some("exit status: 0"), "{}", common::log_tail(&balancer, 20));
    held.extend(common::hold_both(&lab, 10));
    common::assert_unbroken(&mut held, "stopped", &balancer);
    assert!(is_there(second), "it goes on");

    fs::write(balancer.config(), text.replace(PLANE, "")).unwrap();
    balancer.launch().unwrap();
    gone(second);
    common::assert_unbroken(&mut held, "with the program alone", &balancer);
    assert_eq!(plane(&balancer), Value::Null);
    let front = balancer.pins().join("front");
    common::eventually("nothing of it is pinned", || !front.exists());

    // And back.
    balancer.kill();
    fs::write(balancer.config(), &text).unwrap();
    balancer.launch().unwrap();
    let third = process(&balancer);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "with a plane again", &balancer));
    common::assert_none_broke(traffic);
    balancer.kill();
    unload(&lab, &balancer);
    assert!(!is_there(third), "weir unload waits for it");
    assert!(!balancer.pins().exists());
    let links =
        lab.balancer().command("ip").unwrap().args(["link", "show", "eth0"]).output().unwrap();
    assert!(!common::stdout(&links).contains("prog/xdp"), "{}", common::stdout(&links));
}

/// `--plane kernel` is the way back, also where the file has rules for its own plane.
#[test]
fn the_way_back_is_open_beside_rules() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let balancer = start_with(&lab, "concury", "", "\n[offload]\ncard = \"emulated\"\n");
    let mut held = common::hold_both(&lab, 20);
    let first = process(&balancer);
    let ended = balancer.stop(PATIENCE);
    assert_eq!(ended.as_deref(), Some("exit status: 0"), "{}", common::log_tail(&balancer, 20));
    let mut run = lab.balancer_command(WEIR).unwrap();
    run.args(["run", "--plane", "kernel", "--config"]).arg(balancer.config());
    let path = lab.directory().join("kernel.log");
    let mut run = common::started(run, &path, &balancer);
    gone(first);
    let status = balancer.status().unwrap();
    let warned = status["warnings"].to_string();
    assert!(warned.contains("[offload] are set aside") && warned.contains("kernel"), "{warned}");
    assert_eq!(status["plane"], Value::Null);
    common::assert_unbroken(&mut held, "by the program alone", &balancer);
    run.kill().unwrap();
    run.wait().unwrap();
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.contains("are set aside"), "{log}");
    unload(&lab, &balancer);
}

/// In a mount namespace of its own, as `ip netns exec` makes one, pins last as long as the plane's process: whoever
/// looks from outside is told which one that is, and what removes all.
#[test]
fn what_is_pinned_elsewhere_is_named() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let balancer = start(&lab, "concury", "");
    let ended = balancer.stop(PATIENCE);
    assert_eq!(ended.as_deref(), Some("exit status: 0"), "{}", common::log_tail(&balancer, 20));
    unload(&lab, &balancer);
    let config = balancer.config().display().to_string();
    let (mut run, path) = common::started_apart(&lab, &balancer);
    let left = process(&balancer);
    common::sh(lab.balancer(), &format!("kill -TERM {}", run.id()));
    assert!(run.wait().unwrap().success());
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.contains("its process in user space go on in this mount namespace"), "{log}");
    assert!(is_there(left), "{log}");
    let told = |arguments: &[&str], words: &str| {
        let output = common::weir_in(&lab, arguments);
        let said = common::stderr(&output);
        assert!(!output.status.success() && said.contains(words), "{said}");
        said
    };
    let maybe = "another XDP program is attached, maybe that of weir";
    let said = told(&["run", "--config", &config], maybe);
    assert!(said.contains(&format!("process {left}")), "{said}");
    let said = told(&["unload", "--config", &config], "pinned in another mount namespace");
    let command = said.split('`').nth(1).expect("a command");
    common::sh(lab.balancer(), &command.replace(" weir ", &format!(" {WEIR} ")));
    gone(left);
    unload(&lab, &balancer);
}

/// The interface goes and comes back: the plane closes its socket and opens another.
#[test]
fn it_follows_interfaces() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let balancer = start(&lab, "residue", "");
    let mut held = common::hold_both(&lab, 30);
    let process = process(&balancer);
    for round in 0..2 {
        lab.replace_balancer_interface().unwrap();
        common::assert_unbroken(&mut held, &format!("interface {round}"), &balancer);
        common::eventually("it has a socket there", || count(&balancer, "sockets") == 1);
        sends_while(&balancer, || {
            common::eventually("it gets packets", || {
                let before = count(&balancer, "received");
                common::assert_unbroken(&mut held, "after", &balancer);
                count(&balancer, "received") > before
            });
        });
    }
    assert_eq!(self::process(&balancer), process, "the same");
}

/// While nothing comes it sleeps, as it says.
#[test]
fn it_sleeps_when_idle() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let balancer = start(&lab, "concury", "");
    let mut held = common::hold_both(&lab, 10);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "busy", &balancer));
    let ticks = |process: u32| {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).expect("it is there");
        let fields: Vec<&str> = text.rsplit_once(')').expect("a name").1.split(' ').collect();
        fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap()
    };
    let process = process(&balancer);
    let (before, slept) = (ticks(process), count(&balancer, "sleeps"));
    common::eventually("it sleeps again and again", || count(&balancer, "sleeps") > slept + 50);
    // 50 naps of a tenth of a second are 500 ticks, all of which a loop that spins would take.
    let used = ticks(process) - before;
    assert!(used < 150, "{used} ticks of the processor for 50 naps");
    let told = plane(&balancer);
    assert!(told["utilisation"].as_f64().is_some_and(|share| share < 0.5), "{told}");
    // Metrics and the table for people say it, too.
    let url = format!("http://{METRICS}/metrics");
    let read = lab.balancer().command("curl").unwrap().args(["-s", &url]).output().unwrap();
    let read = common::stdout(&read);
    for line in ["weir_plane_running 1", "weir_plane_frames_total{what=\"sent\"} "] {
        assert!(read.contains(line), "no {line} in {read}");
    }
    let table = balancer.command(&["status"]).unwrap();
    assert!(
        table.contains(&format!("plane af-xdp: process {process}, 0 restarts; busy ")),
        "{table}"
    );
}

/// One that is stopped takes what it is handed with it, until it is ended: another one takes its place, and what was
/// lost is sent again.
#[test]
fn one_that_stands_still_is_ended() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let balancer = start(&lab, "residue", "");
    let mut held = common::hold_both(&lab, 20);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "before", &balancer));
    let first = process(&balancer);
    let signal = |name: &str| common::sh(lab.balancer(), &format!("kill -{name} {first}"));
    let warned = || balancer.status().expect("status")["warnings"].to_string();
    let quiet = format!("(process {first}) has told nothing for ");
    signal("STOP");
    common::eventually("status tells that it stands still", || warned().contains(&quiet));
    signal("CONT");
    common::eventually("it goes on", || !warned().contains("has told nothing"));
    signal("STOP");
    common::assert_unbroken(&mut held, "as one stands still", &balancer);
    gone(first);
    let second = process(&balancer);
    assert_ne!(first, second);
    let ended = format!("(process {first}) stood still and was ended");
    common::eventually("status tells why another one runs", || warned().contains(&ended));
    sends_while(&balancer, || common::assert_unbroken(&mut held, "by another", &balancer));
    let log = fs::read_to_string(balancer.log()).unwrap();
    assert!(log.contains("stands still: it is ended"), "{log}");
}

/// One that cannot begin says why, packets are decided all the same, and it is tried again.
#[test]
fn who_cannot_begin_says_why() {
    let _alone = common::alone();
    let lab = common::lab(BACKENDS);
    let balancer = start(&lab, "concury", "");
    let mut held = common::hold_both(&lab, 20);
    let beside = Beside::start(&lab, &balancer);
    let said = beside.said();
    assert!(said.contains("one memory for AF_XDP in a network namespace"), "{said}");
    common::assert_unbroken(&mut held, "with another one beside", &balancer);
    // The first goes: the second gets what it had.
    balancer.kill();
    unload(&lab, &balancer);
    common::eventually("the second one begins", || beside.process().is_some());
}

/// A second instance in the balancer's namespace, at an interface of its own.
struct Beside<'a> {
    lab: &'a Lab,
    directory: PathBuf,
    run: std::process::Child,
}

impl<'a> Beside<'a> {
    fn start(lab: &'a Lab, balancer: &Balancer) -> Self {
        common::sh(lab.balancer(), "ip link add beside type veth peer name beside1");
        common::sh(lab.balancer(), "ip addr add 10.99.0.1/24 dev beside");
        common::sh(lab.balancer(), "ip link set beside up");
        common::sh(lab.balancer(), "ip link set beside1 up");
        let directory = lab.directory().join("beside");
        fs::create_dir_all(&directory).unwrap();
        let name = format!("{}-beside", balancer.pins().file_name().unwrap().to_string_lossy());
        lab.remove_later(&balancer.pins().with_file_name(&name)).unwrap();
        let config = directory.join("weir.toml");
        let text = format!(
            "[balancer]\nname = \"{name}\"\ninterfaces = [\"beside\"]\nrun_dir = \"{}\"\n\n\
             [[service]]\nname = \"web\"\nvip = \"10.99.0.100\"\nprotocol = \"tcp\"\nport = 80\n\n\
             [[service.backend]]\nname = \"b0\"\naddress = \"10.99.0.2\"\n",
            directory.display()
        );
        fs::write(&config, text).unwrap();
        let log = fs::File::create(directory.join("log")).unwrap();
        // By the option this time.
        let run = lab
            .balancer_command(WEIR)
            .unwrap()
            .args(["run", "--plane", "af-xdp", "--config"])
            .arg(&config)
            .stderr(log)
            .spawn()
            .unwrap();
        Self { lab, directory, run }
    }

    fn plane(&self) -> Value {
        let socket = self.directory.join("weir.sock").display().to_string();
        let output = common::weir_in(self.lab, &["status", "--json", "--socket", &socket]);
        serde_json::from_slice::<Value>(&output.stdout)
            .map_or(Value::Null, |all| all["plane"].clone())
    }

    /// Why it has no plane.
    fn said(&self) -> String {
        let mut said = String::new();
        common::eventually("the second one says why it cannot begin", || {
            let plane = self.plane();
            said = plane["failure"].as_str().unwrap_or_default().to_owned();
            !said.is_empty() && plane["process"].is_null()
        });
        said
    }

    fn process(&self) -> Option<u64> {
        self.plane()["process"].as_u64()
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        let _ = self.run.kill();
        let _ = self.run.wait();
    }
}

/// What there is not in user space is refused by name, and nothing is started.
#[test]
fn what_it_cannot_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.toml");
    let text = |balancer: &str| {
        format!(
            "[balancer]\ninterfaces = [\"eth0\"]\nrun_dir = \"{}\"\n{balancer}\n\n[[service]]\n\
             name = \"web\"\nvip = \"10.0.0.100\"\nprotocol = \"tcp\"\nport = 80\n",
            folder.path().join("run").display()
        )
    };
    let backend = "\n[[service.backend]]\nname = \"b0\"\naddress = \"10.0.1.1\"\n";
    let full = "forward = \"fullnat\"\n";
    let sources = "nat_sources = [\"10.0.0.2\"]";
    for (text, places) in [
        (
            text(&format!("{sources}\n{}", PLANE.trim())) + full + backend,
            ["weir.toml:12: service \"web\": forward: ", "balancer.plane = \"kernel\""],
        ),
        (
            text(&format!("follow_flows = 64\n{}", PLANE.trim())) + backend,
            ["weir.toml:4: balancer: follow_flows: ", "balancer.plane = \"kernel\""],
        ),
        (
            text(PLANE.trim()) + backend + "\n[af_xdp]\nthreads = 6\n",
            ["weir.toml:17: af_xdp: threads: 6 is out of range", "give 1..5"],
        ),
        (
            text("plane = \"switch\"") + backend,
            ["weir.toml:4: balancer: plane: ", "give one of kernel, af-xdp, dpdk"],
        ),
    ] {
        fs::write(&file, text).unwrap();
        refused(&["check", "--config", file.to_str().unwrap()], places);
    }
    // By the option alone.
    fs::write(&file, text(sources) + full + backend).unwrap();
    let path = file.to_str().unwrap();
    refused(&["run", "--plane", "af-xdp", "--config", path], ["forward: ", "af-xdp"]);
    refused(&["run", "--plane", "switch", "--config", path], ["switch", "kernel, af-xdp, dpdk"]);
    assert!(!Path::new(&folder.path().join("run")).exists());
}

/// A program without DPDK says how to have one with it.
#[cfg(not(feature = "dpdk"))]
#[test]
fn ports_of_dpdk_are_refused_where_they_are_not_built() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.toml");
    let text = format!(
        "[balancer]\ninterfaces = [\"eth0\"]\nrun_dir = \"{}\"\nplane = \"dpdk\"\n\n\
         [dpdk]\ndevices = [\"net_af_packet0,iface=eth1\"]\n\n[[service]]\nname = \"web\"\n\
         vip = \"10.0.0.100\"\nprotocol = \"tcp\"\nport = 80\n\n[[service.backend]]\n\
         name = \"b0\"\naddress = \"10.0.1.1\"\n",
        folder.path().join("run").display()
    );
    fs::write(&file, &text).unwrap();
    let path = file.to_str().unwrap();
    let wanted =
        ["weir.toml:4: balancer: plane: this program is built without DPDK", "--features dpdk"];
    refused(&["check", "--config", path], wanted);
    refused(&["run", "--config", path], wanted);
    // The table alone is no harm.
    fs::write(&file, text.replace("plane = \"dpdk\"\n", "")).unwrap();
    refused(
        &["run", "--plane", "dpdk", "--config", path],
        ["built without DPDK", "--features dpdk"],
    );
    assert!(common::weir(&["check", "--config", path]).status.success());
}

fn refused(arguments: &[&str], places: [&str; 2]) {
    let output = common::weir(arguments);
    let said = common::stderr(&output);
    assert!(!output.status.success(), "{arguments:?}");
    for place in places {
        assert!(said.contains(place), "{arguments:?}: no {place:?} in {said}");
    }
}
