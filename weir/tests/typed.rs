//! Whoever types what a page shows gets an answer and no error. Every command in a code block of a page is typed
//! in a laboratory with a running balancer, or in a network of its own; benches are typed in small. What is not has
//! its reason here, and its options are read by the program all the same.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use common::{stderr, stdout};
use weir_lab::{Balancer, Lab, LabSpec};

/// First words of lines that are commands. (What a command prints may begin with its name, too: with a prompt
/// in the block, lines without one are no commands.)
const COMMANDS: [&str; 23] = [
    "weir",
    "make",
    "cargo",
    "curl",
    "grpcurl",
    "ip",
    "sysctl",
    "nft",
    "systemctl",
    "apt-get",
    "ssh",
    "for",
    "ipvsadm",
    "p4c-bm2-ss",
    "simple_switch",
    "dpdk-devbind.py",
    "nsenter",
    "tail",
    "etcd",
    "etcdctl",
    "openssl",
    "clients/python/generate",
    "PYTHONPATH=made:clients/python",
];

/// Lines that are not typed, by how they begin, and why.
static NOT_TYPED: [(&str, &str); 35] = [
    (
        "make ",
        "it is what runs this, or takes half a minute: scripts/test runs a laboratory of each method",
    ),
    ("cargo test", "it is a part of what runs this"),
    ("cargo build", "minutes: scripts/test compiles the program without the laboratory"),
    ("weir run", "a start: every test has one, and p4-test one with a switch"),
    (
        "weir init ",
        "weir/tests/init.rs types it, in a network of its own, and runs what it has written",
    ),
    ("weir lab compare [", "a form with what may be left out"),
    (
        "weir lab ",
        "half a minute and more: scripts/test and weir/tests/scenarios.rs run laboratories",
    ),
    ("weir reproduce ", "all of it takes minutes: scripts/test runs figures in small"),
    ("weir bench maps --full", "gigabytes, and no option that makes it smaller"),
    ("weir bench xdp", "minutes and gigabytes: scripts/test runs it in small, with these options"),
    ("weir bench control --full", "gigabytes, and no option that makes it smaller"),
    ("weir agent --config weir.toml --balancer", "a balancer that listens: weir/tests/agents.rs"),
    ("weir agent --balancer", "a balancer that listens: weir/tests/agents.rs"),
    ("weir agent --timestamps-only", "goes on until it is ended: weir/tests/agent.rs"),
    (
        "weir backend drain web b2 --wait",
        "ends a minute after the last connection: weir/tests/health.rs",
    ),
    ("for b in", "hosts to log into"),
    ("systemctl ", "there is no service manager: weir/tests/notify.rs plays it"),
    ("apt-get ", "scripts/test installs the packages into an empty root"),
    ("grpcurl ", "Debian has no package of it: weir/tests/grpc.rs makes the calls"),
    ("clients/python/generate ", "weir/tests/grpc.rs makes and uses the client"),
    ("PYTHONPATH=", "somebody at an interpreter: weir/tests/grpc.rs makes and uses the client"),
    ("curl --cacert", "certificates, and a balancer that serves them: weir/tests/api.rs"),
    ("ip link set tunl0", "a module of the kernel: make kernel-test has its tunnels"),
    ("ip link set sit0", "a module of the kernel: make kernel-test has its tunnels"),
    ("ip link add ip6tnl1", "a module of the kernel: make kernel-test has its tunnels"),
    ("ip link set ip6tnl1", "a module of the kernel: make kernel-test has its tunnels"),
    ("ip link add gre1", "a module of the kernel: make kernel-test has its tunnels"),
    ("ip link set gre1", "a module of the kernel: make kernel-test has its tunnels"),
    ("ip fou ", "a module of the kernel: make kernel-test has its tunnels"),
    ("sysctl vm.", "the whole machine's memory"),
    ("dpdk-devbind.py ", "a card that the kernel gives up"),
    ("p4c-bm2-ss ", "make p4-test"),
    ("simple_switch ", "make p4-test"),
    ("nsenter ", "a laboratory's number in it"),
    ("tail ", "a laboratory's number in it"),
];

/// Lines that take minutes as they stand, and the same in small: with all their options, and less of everything.
static IN_SMALL: [(&str, &str); 23] = [
    ("weir bench lookup", "weir bench lookup --states 1K --lookups 20K --rounds 1"),
    (
        "weir bench lookup --methods concury,digest,multi-digest --states 1M,8M --threads 1,2",
        "weir bench lookup --methods concury,digest,multi-digest --states 1K,4K --threads 1,2 --lookups 20K --rounds 1",
    ),
    (
        "weir bench lookup --updates 64K --states 1M",
        "weir bench lookup --updates 64K --states 5K --lookups 100K --rounds 1",
    ),
    (
        "weir bench lookup --trace flows.bin --json",
        "weir bench lookup --trace flows.bin --json --lookups 20K --rounds 1",
    ),
    (
        "weir bench xdp --forward ipip,gue --flows 65536",
        "weir bench xdp --forward ipip,gue --flows 1000 --packets 200000 --rounds 1",
    ),
    (
        "weir bench xdp --decapsulate ipip,gue --flows 65536",
        "weir bench xdp --decapsulate ipip,gue --flows 1000 --packets 200000 --rounds 1",
    ),
    (
        "weir bench control",
        "weir bench control --services 12 --backends 48 --rounds 2 --failovers 1 --scrapes 1",
    ),
    (
        "weir bench control --services 1000 --backends 10000 --json",
        "weir bench control --services 12 --backends 48 --json --rounds 2 --failovers 1 --scrapes 1",
    ),
    ("weir bench checks", "weir bench checks --backends 20 --interval 1s --seconds 2"),
    (
        "weir bench checks --backends 100,1000,2000 --seconds 60 --json",
        "weir bench checks --backends 20,40 --interval 1s --seconds 2 --json",
    ),
    (
        "weir bench checks --backends 10000 --interval 1s",
        "weir bench checks --backends 20 --interval 1s --seconds 2",
    ),
    (
        "weir bench fleet",
        "weir bench fleet --balancers 3,10 --agents 200 --backends 8 --states 2K --rate 5K --seconds 1 \
         --connections 20K --sessions 50 --rounds 1",
    ),
    (
        "weir bench fleet --methods concury --balancers 3 --connections 100K --json",
        "weir bench fleet --methods concury --balancers 3 --connections 20K --json --agents 200 --backends 8 \
         --states 2K --rate 5K --seconds 1 --sessions 50 --rounds 1",
    ),
    ("weir bench maps", "weir bench maps --keys 2K --lookups 20K --rounds 1"),
    (
        "weir bench maps --keys 1M,8M --threads 1,2 --json",
        "weir bench maps --keys 2K,8K --threads 1,2 --json --lookups 20K --rounds 1",
    ),
    (
        "weir bench maps --structures othello,ludo,fuse --bits 8,16,24,32,40 --csv",
        "weir bench maps --structures othello,ludo,fuse --bits 8,16,24,32,40 --csv --keys 2K --lookups 20K --rounds 1",
    ),
    ("weir bench maps --alien", "weir bench maps --alien --keys 2K --lookups 20K --rounds 1"),
    (
        "weir bench maps --zipf 1.0 --updates 250K",
        "weir bench maps --zipf 1.0 --updates 250K --keys 2K --lookups 20K --rounds 1",
    ),
    ("weir sim jet-3", "weir sim jet-3 --size smoke"),
    (
        "weir reproduce concury-fig13 jet-fig7",
        "weir reproduce concury-fig13 jet-fig7 --size smoke --out two.html",
    ),
    (
        "weir reproduce jet-table2 --size full --csv rows --json",
        "weir reproduce jet-table2 --size smoke --csv rows --json",
    ),
    (
        "weir lab --method cheetah --scheduler wrr --plain",
        "weir lab --method cheetah --scheduler wrr --plain --duration 1s --changes 1 --connections 100 --backends 4 \
         --limit 10m --patience 2m",
    ),
    (
        "weir lab --method tracked --scheduler p2c --load told",
        "weir lab --method tracked --scheduler p2c --load told --duration 1s --changes 1 --connections 100 --backends 4 \
         --limit 10m --patience 2m",
    ),
];

/// What is typed when nobody is connected any more: it breaks connections.
const AFTERWARDS: [&str; 1] = ["weir backend remove"];

/// What is typed in a network namespace of the page's own, with an interface: it changes the host.
const OF_A_HOST: [&str; 4] = ["ip ", "sysctl ", "nft ", "weir agent "];

/// That namespace: an interface with the addresses of the laboratory's first backend.
const HOST: &str = "ip link set lo up; ip link add eth0 type veth peer name there; ip link set there up; \
                    ip link set eth0 up; ip addr add 10.77.2.1/16 dev eth0; \
                    ip addr add fd77::2:1/64 dev eth0 nodad";

/// What stands for what of the pages: names, addresses, files, the socket; and a run that is long only to be
/// worth reading. An agent ends when the host is ready, and undoes that.
const STANDS_FOR: [(&str, &str); 18] = [
    ("/services/web/", "/services/web4/"),
    ("/etc/weir/store", "store"),
    ("/services/web", "/services/web4"),
    (" web ", " web4 "),
    ("10.0.0.1:80", "10.77.0.100:80"),
    ("lb1:9443", "localhost:9443"),
    ("--duration 15s", "--duration 2s"),
    ("/run/weir/weir.sock", "\"$WEIR_SOCKET\""),
    ("weir check --upgrade", "weir check --upgrade weir.toml"),
    ("/etc/keepalived/keepalived.conf", "keepalived.conf"),
    ("/etc/cilium/lb-state.yaml", "lb-state.yaml"),
    ("ipvsadm -S -n", "cat ipvs"),
    ("--output /etc/weir/weir.toml", "--output imported.toml"),
    ("> weir.toml", "> taken-over.toml"),
    ("weir pki init", "weir pki init --directory pki"),
    ("weir pki issue", "weir pki issue --directory pki"),
    ("weir pki list", "weir pki list --directory pki"),
    ("weir agent ", "weir agent --once --state-dir agent "),
];

/// Files of other balancers.
const FILES: [(&str, &str); 3] = [
    (
        "keepalived.conf",
        "vrrp_instance one {\n  interface eth0\n}\nvirtual_server 192.0.2.80 80 {\n  lb_kind DR\n  \
         protocol TCP\n  real_server 192.0.2.11 80 {\n    TCP_CHECK {\n    }\n  }\n}\n",
    ),
    ("ipvs", "-A -t 192.0.2.1:80 -s wlc\n-a -t 192.0.2.1:80 -r 192.0.2.11:80 -g -w 2\n"),
    (
        "lb-state.yaml",
        "services:\n  - metadata: {name: echo, namespace: test}\n    spec:\n      clusterIP: 10.96.0.7\n      \
         ports:\n      - {name: http, port: 80, protocol: TCP, targetPort: 8080}\n      \
         type: LoadBalancer\n    status:\n      loadBalancer:\n        ingress:\n        - ip: 172.16.1.1\n\
         endpoints:\n  - metadata: {name: echo-1, namespace: test, \
         labels: {kubernetes.io/service-name: echo}}\n    addressType: IPv4\n    endpoints:\n    \
         - addresses: [2.2.2.2]\n      conditions: {ready: true}\n    ports:\n    \
         - {name: http, port: 8080, protocol: TCP}\n",
    ),
];

/// A command of a page.
#[derive(Debug)]
struct Line {
    page: String,
    text: String,
}

impl Line {
    /// Whether it is typed in small.
    fn is_in_small(&self) -> bool {
        IN_SMALL.iter().any(|(there, _)| self.text == *there)
    }

    /// Why it is not typed, if it is not.
    fn why_not(&self) -> Option<&'static (&'static str, &'static str)> {
        let why = NOT_TYPED.iter().find(|why| self.text.starts_with(why.0));
        why.filter(|_| !self.is_in_small())
    }

    /// As it is typed here.
    fn here(&self) -> String {
        let mut here = self.text.clone();
        for (there, stands) in STANDS_FOR {
            let is_there = (there == "/services/web" && here.contains(STANDS_FOR[0].1))
                || (there.starts_with("weir pki") && here.contains("--directory store"));
            if !is_there {
                here = here.replace(there, stands);
            }
        }
        here
    }

    fn is_one_of(&self, begins: &[&str]) -> bool {
        begins.iter().any(|begin| self.text.starts_with(begin))
    }
}

/// The commands of a page, in their order.
fn commands_of(page: &str, text: &str) -> Vec<Line> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(fence) = lines.next() {
        let Some(language) = fence.trim_start().strip_prefix("```") else { continue };
        let block: Vec<&str> =
            lines.by_ref().take_while(|line| !line.trim_start().starts_with("```")).collect();
        let is_shell = ["", "console", "sh"].contains(&language);
        let prompts = block.iter().any(|line| line.starts_with("$ "));
        for line in block {
            let line = match (prompts, line.strip_prefix("$ ")) {
                (true, None) => continue,
                (_, typed) => typed.unwrap_or(line),
            };
            // What stands behind it explains it.
            let line = line.split(" #").next().unwrap_or_default().trim_end();
            let mut words = line.split(' ');
            let is_command = words.next().is_some_and(|word| COMMANDS.contains(&word));
            // A command says who it is by its name with a colon.
            let says = words.next().is_some_and(|word| word.ends_with(':'));
            if prompts || is_shell && is_command && !says {
                found.push(Line { page: page.to_owned(), text: line.to_owned() });
            }
        }
    }
    found
}

/// Those of all pages, page by page.
fn shown() -> Vec<Line> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let mut pages = vec![root.join("README.md")];
    pages.extend(fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    pages.retain(|page| page.extension().is_some_and(|name| name == "md"));
    pages.sort();
    let lines = pages.iter().flat_map(|page| {
        let name = page.strip_prefix(root).unwrap().display().to_string();
        commands_of(&name, &fs::read_to_string(page).unwrap())
    });
    lines.collect()
}

/// Where lines are typed.
struct Keyboard<'a> {
    lab: &'a Lab,
    balancer: &'a Balancer,
    directory: PathBuf,
    path: String,
}

impl Keyboard<'_> {
    fn set(&self, command: &mut Command) {
        command.current_dir(&self.directory).env("PATH", &self.path);
        command.env("WEIR_SOCKET", self.balancer.socket());
    }

    /// On the balancer.
    fn type_in(&self, line: &Line) {
        let here = line.here();
        let mut shell = self.lab.balancer_command("sh").unwrap();
        shell.args(["-c", &format!("timeout 60 {here}")]);
        self.set(&mut shell);
        let output = shell.output().unwrap();
        let said = said_by(&line.page, &here, &output);
        assert!(!said.is_empty() || here.contains('>'), "{}: {here}: no answer", line.page);
        assert!(!said.starts_with("{\"error\""), "{}: {here}: {said}", line.page);
    }

    /// On a host of the page's own, one after the other.
    fn type_on_host(&self, page: &str, lines: &[&Line]) {
        let mut script = format!("{HOST}\n");
        for line in lines {
            script += &format!("timeout 60 {}\n", line.here());
            if line.is_one_of(&["weir agent "]) {
                script += "timeout 60 weir agent --undo --state-dir agent\n";
            }
        }
        let mut shell = Command::new("unshare");
        shell.args(["--net", "sh", "-exc", &script]);
        self.set(&mut shell);
        let output = shell.output().unwrap();
        said_by(page, &script, &output);
        let agents = lines.iter().filter(|line| line.is_one_of(&["weir agent "])).count();
        let ready = stderr(&output).matches("weir agent: ready at eth0").count();
        assert_eq!(ready, agents, "{page}: {}", stderr(&output));
    }
}

fn said_by(page: &str, typed: &str, output: &Output) -> String {
    let (said, error) = (stdout(output), stderr(output));
    println!("{page}: {typed}\n{said}{error}");
    assert!(output.status.success(), "{page}: {typed}: {error}");
    said
}

/// Where commands are looked for: the program, and what the system has.
fn path() -> String {
    let binaries = Path::new(common::WEIR).parent().expect("its directory").display();
    format!("{binaries}:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap())
}

/// Packets of a thousand flows, of 13 bytes each (docs/sim.md).
fn tuples() -> Vec<u8> {
    let of = |flow: u16| {
        let [high, low] = flow.to_be_bytes();
        [10, 0, high, low, 10, 1, 0, 1, 0x9c, 0x40, 0, 80, 6]
    };
    (0..4000).flat_map(|packet| of(packet % 1000)).collect()
}

#[test]
fn commands_that_pages_show_can_be_typed() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 4, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 4);
    let directory = lab.directory().join("typed");
    fs::create_dir(&directory).unwrap();
    fs::copy(balancer.config(), directory.join("weir.toml")).unwrap();
    for (name, text) in FILES {
        fs::write(directory.join(name), text).unwrap();
    }
    let path = path();
    let keyboard = Keyboard { lab: &lab, balancer: &balancer, directory, path };
    // Somebody has to send what is traced.
    let traffic = common::mixed_traffic(&lab, 100);
    let lines = shown();
    let as_shown = |line: &&Line| line.why_not().is_none() && !line.is_in_small();
    let typed: Vec<&Line> = lines.iter().filter(as_shown).collect();
    let mut of_hosts = BTreeMap::<&str, Vec<&Line>>::new();
    let mut afterwards = Vec::new();
    for &line in &typed {
        if line.is_one_of(&OF_A_HOST) {
            of_hosts.entry(&line.page).or_default().push(line);
        } else if line.is_one_of(&AFTERWARDS) {
            afterwards.push(line);
        } else {
            keyboard.type_in(line);
        }
    }
    for (page, lines) in &of_hosts {
        keyboard.type_on_host(page, lines);
    }
    common::assert_none_broke(traffic);
    for line in afterwards {
        keyboard.type_in(line);
    }
    println!("{} of {} lines are typed", typed.len(), lines.len());
    assert!(typed.len() >= 40, "{} lines are typed", typed.len());
}

/// Two at a time, beside what is typed above: most of them wait more than they compute.
#[test]
fn benches_that_pages_show_run_in_small() {
    let lines = shown();
    let mut typed = BTreeSet::new();
    for &(there, small) in &IN_SMALL {
        assert!(lines.iter().any(|line| line.text == there), "no page has {there:?}");
        let options = |line: &'static str| line.split(' ').filter(|word| word.starts_with("--"));
        for option in options(there) {
            assert!(options(small).any(|one| one == option), "{small}: no {option}");
        }
        typed.insert(small);
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("flows.bin"), tuples()).unwrap();
    let left = Mutex::new(typed.into_iter());
    let type_one_by_one = || {
        loop {
            let next = left.lock().unwrap().next();
            let Some(small) = next else { return };
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("timeout 600 {small}")]);
            shell.current_dir(&directory).env("PATH", path());
            let started = Instant::now();
            let said = said_by("in small", small, &shell.output().unwrap());
            assert!(!said.is_empty(), "{small}: no answer");
            println!("{:.1} s: {small}", started.elapsed().as_secs_f64());
        }
    };
    thread::scope(|scope| {
        scope.spawn(type_one_by_one);
        scope.spawn(type_one_by_one);
    });
    let small = lines.iter().filter(|line| line.is_in_small()).count();
    println!("{small} of {} lines are typed in small", lines.len());
}

/// What is not typed is counted, with the reason; no reason stands there for nothing; and what is a line of
/// weir's has options and values that the program takes.
#[test]
fn commands_that_are_not_typed_have_a_reason_and_are_read() {
    let lines = shown();
    let mut left = BTreeMap::<&str, Vec<&Line>>::new();
    let mut faults = Vec::new();
    for line in &lines {
        let Some((begin, _)) = line.why_not() else { continue };
        left.entry(*begin).or_default().push(line);
        // Whoever asks for help is given it, if all before is right.
        let words: Vec<&str> = line.text.split_whitespace().chain(["--help"]).collect();
        if words[0] == "weir" && !line.text.contains("[--") {
            let output = common::weir(&words[1..]);
            if !output.status.success() {
                faults.push(format!("{}: {}: {}", line.page, line.text, stderr(&output)));
            }
        }
    }
    for &(begin, why) in &NOT_TYPED {
        let lines = left.get(begin).map_or(0, Vec::len);
        println!("{lines:3} {begin}...: {why}");
        if lines == 0 {
            faults.push(format!("{begin:?} has a reason, and no page has it"));
        }
    }
    let all: usize = left.values().map(Vec::len).sum();
    println!("{all} of {} lines are not typed", lines.len());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
