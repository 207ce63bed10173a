//! From a host without a configuration to a balanced request: weir init, weir run, curl.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use common::{WEIR, eventually, stderr, stdout};
use serde_json::Value;
use weir_lab::NetNs;
use weir_testbed::{Namespaces, xdp};

/// A client and two backends on links of a balancer's, which routes between them: 10.60.0.0/24 and
/// 10.61.0.0/24, and the service's address 10.60.0.100.
struct World {
    client: NetNs,
    balancer: NetNs,
    backends: Vec<NetNs>,
    folder: tempfile::TempDir,
    servers: Vec<Child>,
    _namespaces: Namespaces,
}

impl World {
    fn new() -> Self {
        let mut namespaces = Namespaces::new("init");
        let mut add = |role: &str| namespaces.add(role).expect("a namespace (tests run as root)");
        let (client, balancer, switch) = (add("cl"), add("lb"), add("sw"));
        let backends = vec![add("b1"), add("b2")];
        let link = |a: &NetNs, b: &NetNs, at: &str, there: &str| {
            let line = format!(
                "link add {at} netns {} type veth peer name {there} netns {}",
                a.name(),
                b.name()
            );
            a.ip(&line).unwrap();
            for (netns, name) in [(a, at), (b, there)] {
                netns.ip(&format!("link set {name} up")).unwrap();
                netns.no_checksum_offload(name).unwrap();
            }
        };
        link(&client, &balancer, "eth0", "front0");
        link(&balancer, &switch, "back0", "lb");
        switch.ip("link add br0 type bridge\nlink set br0 up\nlink set lb master br0").unwrap();
        for (number, backend) in (1..).zip(&backends) {
            let port = format!("b{number}");
            link(backend, &switch, "eth0", &port);
            switch.ip(&format!("link set {port} master br0")).unwrap();
            backend.ip(&format!("addr add 10.61.0.{}/24 dev eth0", 10 + number)).unwrap();
        }
        client.ip("addr add 10.60.0.2/24 dev eth0").unwrap();
        balancer.ip("addr add 10.60.0.1/24 dev front0\naddr add 10.61.0.1/24 dev back0").unwrap();
        // Frames of XDP programs get through a veth only where its other end has one, too.
        xdp::attach_pass(&client, "eth0").unwrap();
        xdp::attach_pass(&switch, "lb").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut world = Self {
            client,
            balancer,
            backends,
            folder,
            servers: Vec::new(),
            _namespaces: namespaces,
        };
        world.serve(8080);
        world
    }

    /// An nginx for each backend, which tells its name.
    fn serve(&mut self, port: u16) {
        for (number, backend) in (1..).zip(&self.backends) {
            let home = self.folder.path().join(format!("b{number}"));
            fs::create_dir(&home).unwrap();
            let home = home.display();
            let mut text = format!(
                "daemon off;\nmaster_process off;\nerror_log {home}/error.log;\npid {home}/pid;\n\
                 events {{ }}\nhttp {{\n  access_log off;\n"
            );
            for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
                text += &format!("  {kind}_temp_path {home}/tmp;\n");
            }
            text += &format!(
                "  server {{ listen {port}; location / {{ return 200 \"b{number}\\n\"; }} }}\n}}\n"
            );
            let config = format!("{home}/nginx.conf");
            fs::write(&config, text).unwrap();
            let mut command = backend.command("nginx").unwrap();
            command.args(["-c", &config, "-e", &format!("{home}/error.log")]);
            self.servers.push(command.stdin(Stdio::null()).spawn().expect("nginx"));
        }
    }

    fn weir(&self, arguments: &[&str]) -> Output {
        self.balancer.command(WEIR).unwrap().args(arguments).output().expect("weir")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// `weir run`, and what it leaves in the kernel, gone with the value.
struct Running<'a>(Child, &'a Path);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let config = self.1.to_str().unwrap();
        let _ = Command::new(WEIR).args(["unload", "--config", config]).output();
    }
}

/// The file with a name and a directory of its own: other instances run beside this test.
fn apart(config: &Path, run_dir: &Path) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("init{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let text = fs::read_to_string(config).unwrap();
    let own = format!("[balancer]\nname = \"{name}\"\nrun_dir = \"{}\"\n", run_dir.display());
    fs::write(config, text.replacen("[balancer]\n", &own, 1)).unwrap();
}

#[test]
fn three_commands_lead_to_a_balanced_request() {
    let world = World::new();
    for backend in &world.backends {
        backend.ip("route add default via 10.61.0.1").unwrap();
    }
    let config = world.folder.path().join("weir.toml");
    let config_text = config.to_str().unwrap();
    // The first.
    let made = world.weir(&[
        "init",
        "--vip",
        "10.60.0.100",
        "--backend",
        "10.61.0.11:8080",
        "--backend",
        "10.61.0.12:8080",
        "--forward",
        "nat",
        "--prepare",
        "--output",
        config_text,
    ]);
    let said = stdout(&made);
    assert!(made.status.success(), "{said}{}", stderr(&made));
    assert!(said.contains("ip addr add 10.60.0.100/32 dev front0"), "{said}");
    assert!(said.contains("after a restart: docs/start.md"), "{said}");
    assert!(said.contains("ip route replace default via 10.61.0.1"), "{said}");
    assert!(said.contains("sysctl -qw net.ipv4.conf.back0.accept_local=1"), "{said}");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains("interfaces = [\"front0\", \"back0\"]"), "{text}");
    assert!(text.contains("# By back0, at "), "the neighbours have answered: {text}");
    assert!(!said.contains("look at this"), "{said}");
    let checked = world.weir(&["check", "--config", config_text]);
    assert!(checked.status.success(), "{}", stderr(&checked));

    // It is not written twice, whatever is asked for.
    let again = world.weir(&[
        "init",
        "--vip",
        "10.60.0.9",
        "--backend",
        "10.61.0.11",
        "--output",
        config_text,
    ]);
    assert_eq!(again.status.code(), Some(4), "{}", stderr(&again));
    assert!(stderr(&again).contains("is there already and stays as it is"), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(&config).unwrap(), text);

    // The second.
    let run_dir = world.folder.path().join("run");
    apart(&config, &run_dir);
    let log = fs::File::create(world.folder.path().join("log")).unwrap();
    let mut command = world.balancer.command(WEIR).unwrap();
    command.args(["run", "--config", config_text]).stdin(Stdio::null()).stderr(log);
    let _running = Running(command.spawn().unwrap(), &config);
    let socket = run_dir.join("weir.sock");
    let ready = || {
        let said = world.weir(&["status", "--json", "--socket", socket.to_str().unwrap()]);
        let status: Value = serde_json::from_str(&stdout(&said)).unwrap_or_default();
        let backends = status["services"][0]["backends"].as_array().cloned().unwrap_or_default();
        backends.len() == 2
            && backends
                .iter()
                .all(|one| one["check"]["last"].as_str().is_some_and(|s| s.starts_with("conn")))
    };
    eventually("the balancer runs, and its backends are well", ready);

    // The third, often enough that both have answered.
    let mut seen = std::collections::BTreeSet::new();
    eventually("both backends answer", || {
        let mut curl = world.client.command("curl").unwrap();
        curl.args(["-s", "-m", "20", "http://10.60.0.100/"]);
        let answer = stdout(&curl.output().unwrap());
        assert!(["b1\n", "b2\n"].contains(&&*answer), "{answer:?}");
        seen.insert(answer);
        seen.len() == 2
    });
}

/// A machine's folders for configurations, what runs and what is pinned, with nothing in them, for one test.
struct Machine(Child);

impl Machine {
    fn clean(host: &NetNs) -> Self {
        let script = "mount -t tmpfs tmpfs /run && mount -t bpf bpf /sys/fs/bpf && mkdir /run/up /run/work && \
                      mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/up,workdir=/run/work /etc && \
                      rm -rf /etc/weir && touch /run/made && exec sleep infinity";
        let mut holder = host.command("unshare").unwrap();
        holder.args(["--mount", "sh", "-ec", script]).stdin(Stdio::null());
        let machine = Self(holder.spawn().expect("unshare"));
        eventually("it is there", || {
            let made = machine.command("test").args(["-e", "/run/made"]).status();
            made.is_ok_and(|status| status.success())
        });
        machine
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-m", "-n", "-t", &self.0.id().to_string(), "--", program]);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An answer to a client whose neighbour the balancer does not know is the kernel's to forward, from an address of its
/// own. What it drops a client sends again, seconds later; so once, of many times, nothing is sent again.
fn answers_get_to_clients_without_a_neighbour(world: &World, machine: &Machine) {
    let doctor = machine.command(WEIR).args(["doctor", "--no-probe"]).output().unwrap();
    let said = stdout(&doctor);
    assert!(said.contains("answers") && !said.contains("takes them for forged"), "{said}");
    assert!(said.contains("back0: not strict"), "{said}");
    // Of the lines "Tcp: names" and "Tcp: numbers".
    let sent_again = || {
        let mut read = world.client.command("cat").unwrap();
        let text = stdout(&read.arg("/proc/net/snmp").output().unwrap());
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.split(' ').position(|name| name == "RetransSegs").unwrap();
        numbers.split(' ').nth(at).unwrap().parse::<u64>().unwrap()
    };
    eventually("a client without a neighbour waits for nothing", || {
        let before = sent_again();
        world.balancer.ip("neigh flush dev front0").unwrap();
        let mut curl = world.client.command("curl").unwrap();
        curl.args(["-s", "-m", "20", "http://10.60.0.100/"]);
        let answer = stdout(&curl.output().unwrap());
        assert!(["b1\n", "b2\n"].contains(&&*answer), "{answer:?}");
        sent_again() == before
    });
}

/// Nothing but what a reader of the documentation types: init, run, curl. Nobody has touched the backends, which have
/// no route but to their own link, nor the file.
#[test]
fn three_commands_suffice_before_backends_that_nobody_may_configure() {
    let world = World::new();
    // As some distributions have it: what comes in must be from where the way back is.
    world.balancer.sysctl("ipv4/conf/all/rp_filter", "0").unwrap();
    world.balancer.sysctl("ipv4/conf/back0/rp_filter", "1").unwrap();
    let machine = Machine::clean(&world.balancer);
    let early = machine.command(WEIR).arg("run").output().unwrap();
    let said = stderr(&early);
    assert_eq!(early.status.code(), Some(1), "{said}");
    assert!(said.contains("/etc/weir/weir.toml") && said.contains("weir init"), "{said}");
    let line = "init --nat --vip 10.60.0.100 --backend 10.61.0.11:8080 --backend 10.61.0.12:8080 --prepare";
    let made = machine.command(WEIR).args(line.split(' ')).output().unwrap();
    let said = stdout(&made);
    assert!(made.status.success(), "{said}{}", stderr(&made));
    assert!(said.contains("sysctl -qw net.ipv4.conf.back0.accept_local=1"), "{said}");
    assert!(said.contains("sysctl -qw net.ipv4.conf.back0.rp_filter=2"), "{said}");
    let written = machine.command("cat").arg("/etc/weir/weir.toml").output().unwrap();
    let written = stdout(&written);
    assert!(written.contains("net.ipv4.conf.back0.accept_local = 1"), "{written}");
    // What has been prepared is what answers need, as the other command sees it.
    let doctor = stdout(&machine.command(WEIR).args(["doctor", "--no-probe"]).output().unwrap());
    assert!(doctor.contains("answers are forwarded"), "{doctor}");
    assert!(!doctor.contains("FAIL  answers"), "{doctor}");
    let log = fs::File::create(world.folder.path().join("log")).unwrap();
    let mut run = machine.command(WEIR);
    run.arg("run").stdin(Stdio::null()).stderr(log);
    let mut run = run.spawn().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    eventually("both backends answer", || {
        assert_eq!(run.try_wait().unwrap(), None, "weir run has ended");
        let mut curl = world.client.command("curl").unwrap();
        curl.args(["-s", "-m", "20", "http://10.60.0.100/"]);
        let answer = stdout(&curl.output().unwrap());
        // Until it runs the host itself refuses the connection.
        assert!(["", "b1\n", "b2\n"].contains(&&*answer), "{answer:?}");
        seen.insert(answer);
        seen.contains("b1\n") && seen.contains("b2\n")
    });
    answers_get_to_clients_without_a_neighbour(&world, &machine);
    for backend in &world.backends {
        let mut ip = backend.command("ip").unwrap();
        let routes = stdout(&ip.args(["route", "show", "default"]).output().unwrap());
        assert_eq!(routes, "", "nobody has given it a way to the client");
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let unloaded = machine.command(WEIR).arg("unload").output().unwrap();
    assert!(unloaded.status.success(), "{}", stderr(&unloaded));
}

/// Those that a command has added are in no file, and are looked at all the same.
#[test]
fn doctor_looks_at_the_sources_of_backends_that_were_added() {
    let world = World::new();
    let config = world.folder.path().join("weir.toml");
    let config_text = config.to_str().unwrap();
    let line =
        "init --nat --name web --vip 10.60.0.100 --backend 10.61.0.11:8080 --prepare --output";
    let words: Vec<&str> = line.split(' ').chain([config_text]).collect();
    let made = world.weir(&words);
    assert!(made.status.success(), "{}{}", stdout(&made), stderr(&made));
    let run_dir = world.folder.path().join("run");
    apart(&config, &run_dir);
    // Of two sources the backend of the file names the one on its own link.
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replacen("nat_sources = [", "nat_sources = [\"10.60.0.1\", ", 1);
    let own = "port = 8080\nnat_sources = [\"10.61.0.1\"]\n";
    fs::write(&config, text.replacen("port = 8080\n", own, 1)).unwrap();
    let log = fs::File::create(world.folder.path().join("log")).unwrap();
    let mut command = world.balancer.command(WEIR).unwrap();
    command.args(["run", "--config", config_text]).stdin(Stdio::null()).stderr(log);
    let _running = Running(command.spawn().unwrap(), &config);
    let socket = run_dir.join("weir.sock");
    let socket = socket.to_str().unwrap();
    eventually("it runs", || world.weir(&["status", "--socket", socket]).status.success());
    let doctor = || stdout(&world.weir(&["doctor", "--no-probe", "--config", config_text]));
    let said = doctor();
    assert!(said.contains("sources") && !said.contains("connections come to backend"), "{said}");
    let line = "backend add web b2 10.61.0.12 --port 8080 --socket";
    let words: Vec<&str> = line.split(' ').chain([socket]).collect();
    let added = world.weir(&words);
    assert!(added.status.success(), "{}", stderr(&added));
    let said = doctor();
    let words = "connections come to backend \"b2\" of service \"web\" from 10.60.0.1, too";
    assert!(said.contains(words), "{said}");
}

#[test]
fn it_looks_at_the_host_and_says_what_does_not_fit() {
    let world = World::new();
    let init = |arguments: &[&str]| {
        let output = world.weir(&[&["init", "--output", "-"], arguments].concat());
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let (vip, near) = (["--vip", "10.60.0.100"], ["--backend", "10.61.0.11"]);
    let (code, text, said) = init(&[vip, near].concat());
    assert_eq!(code, Some(0), "{said}");
    // What goes to the standard output is the file alone.
    let file = world.folder.path().join("o.toml");
    fs::write(&file, &text).unwrap();
    let checked = world.weir(&["check", "--config", file.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    assert!(text.contains("forward = \"l2\"") && text.contains("port = 80"), "{text}");
    assert!(said.contains("ip addr add 10.60.0.100/32 dev front0"), "{said}");
    assert!(said.contains("ip addr add 10.60.0.100/32 dev lo"), "{said}");

    // Backends behind a router get a tunnel; one that is not there is told.
    world.balancer.ip("route add 10.70.0.0/16 via 10.61.0.12").unwrap();
    let far = ["--backend", "10.70.0.1"];
    let (code, text, said) = init(&[vip, near, far].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(text.contains("forward = \"gue\"") && text.contains("behind the router 10.61.0.12"));
    // Many of them get the codes that they need.
    let many: Vec<String> =
        (0..600).map(|at| format!("10.70.{}.{}", at / 250, at % 250 + 1)).collect();
    let many = many.iter().flat_map(|address| ["--backend", address]).collect::<Vec<_>>();
    let (code, text, said) = init(&[&vip[..], &many].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(text.contains("\ndcode_bits = 13\n"), "{text}");
    let (_, text, said) = init(&[vip, ["--backend", "10.61.0.77"]].concat());
    assert!(text.contains("it did not answer when this was written"), "{text}");
    assert!(said.contains("10.61.0.77 does not answer on back0"), "{said}");
    let (_, text, said) =
        init(&[vip, near].concat().iter().chain(&["--udp"]).copied().collect::<Vec<_>>());
    assert!(
        text.contains("protocol = \"udp\"") && text.contains("enabled = false"),
        "{text}{said}"
    );
    // Of several sources under full NAT each backend is given the one on its own way.
    let nat = ["--nat", "--backend", "10.61.0.12:8080"];
    let (code, text, said) = init(&[&vip[..], &nat].concat());
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(text.matches("nat_sources").count(), 1, "{text}");
    world
        .balancer
        .ip("link add other0 type veth peer name other1\nlink set other0 up\nlink set other1 up\n\
             addr add 10.62.0.1/24 dev other0")
        .unwrap();
    let (code, text, said) = init(&[&vip[..], &nat, &["--backend", "10.62.0.11:8080"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(text.contains("nat_sources = [\"10.61.0.1\", \"10.62.0.1\"]\n"), "{text}");
    for own in [
        "address = \"10.61.0.12\"\nport = 8080\n# Its connections come from here alone: it may have no route to \
         the others.\nnat_sources = [\"10.61.0.1\"]\n",
        "nat_sources = [\"10.62.0.1\"]\n",
    ] {
        assert!(text.contains(own), "{own}: {text}");
    }
    // The file is written whether anybody takes the words about it or not.
    let written = world.folder.path().join("closed.toml");
    let line = format!(
        "exec {WEIR} init --vip 10.60.0.100 --backend 10.61.0.11 --output {} >&-",
        written.display()
    );
    let mut shell = world.balancer.command("sh").unwrap();
    let output = shell.args(["-c", &line]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("it is done all the same: ") && written.exists(), "{said}");
    // Directories are made for nobody who has mistyped one.
    let nowhere = world.folder.path().join("no/such/weir.toml");
    let parent = nowhere.parent().unwrap().display().to_string();
    let mistyped = ["--vip", "10.60.0.100", "--backend", "10.61.0.11", "--output"];
    let output = world.weir(&[&["init"][..], &mistyped, &[nowhere.to_str().unwrap()]].concat());
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("there is no directory {parent}")), "{said}");
    assert!(!world.folder.path().join("no").exists());
    // The address of a network that is not ours comes by a router.
    world.balancer.ip("route add default via 10.60.0.2").unwrap();
    let (code, text, said) = init(&[["--vip", "198.51.100.7:443"], near].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(
        text.contains("port = 443") && said.contains("a router must send its packets"),
        "{said}"
    );

    for (arguments, code, words) in [
        ([vip, ["--backend", "10.61.0.1"]].concat(), 1, "is an address of this host"),
        ([vip, ["--backend", "10.60.0.100"]].concat(), 2, "is the service's own address"),
        ([vip, near, near].concat(), 2, "is given twice"),
        (
            [vip, ["--backend", "10.61.0.11:8080"]].concat(),
            2,
            "for port 8080 give --forward nat, or --nat",
        ),
        ([vip, ["--backend", "fd00::1"]].concat(), 2, "are of two families"),
        ([vip, ["--backend", "10.61.0.300"]].concat(), 2, "give an address"),
        (
            [["--vip", "10.60.0.100:0"], near].concat(),
            2,
            "'--vip <ADDRESS[:PORT]>': 0 is not a port",
        ),
        ([vip, ["--backend", "10.61.0.11:0"]].concat(), 2, "0 is not a port: give 1 to 65535"),
        ([vip, far, ["--forward", "l2"]].concat(), 1, "is behind the router 10.61.0.12"),
        ([vip, near, ["--interface", "eth9"]].concat(), 1, "there is no interface eth9"),
        ([["--vip", "10.61.0.1"], near].concat(), 1, "is the only address that this host has"),
        ([["--vip", "10.60.0.255"], near].concat(), 1, "is the broadcast address of this host's"),
        ([["--vip", "10.60.0.0"], near].concat(), 1, "is the address of the network itself"),
        ([["--vip", "127.0.0.7"], near].concat(), 2, "is a loopback address"),
        ([["--vip", "0.0.0.0"], near].concat(), 2, "is of 0.0.0.0/8"),
        ([["--vip", "224.0.0.1"], near].concat(), 2, "is a multicast address"),
    ] {
        let (found, text, said) = init(&arguments);
        assert!(found == Some(code) && said.contains(words), "{arguments:?}: {found:?} {said}");
        assert!(text.is_empty(), "{text}");
    }
}
