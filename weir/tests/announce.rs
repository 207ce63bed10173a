//! Two balancers with a GoBGP each, a router with BIRD, and clients behind it: which addresses the router
//! learns, through everything that happens to backends, control planes and speakers.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::{WEIR, eventually, stderr, stdout};
use serde_json::Value;
use weir_lab::NetNs;
use weir_testbed::{Namespaces, xdp};

const VIP: &str = "10.60.0.100";

/// A balancer: its namespace, its file, and what runs there.
struct Node {
    netns: NetNs,
    home: PathBuf,
    speaker: Option<Child>,
    control: Option<Child>,
}

/// Balancers 10.60.0.1 and .2, backends .11 and .12 and a router .254 on one network; a client behind the
/// router.
struct World {
    client: NetNs,
    router: NetNs,
    nodes: Vec<Node>,
    backends: Vec<NetNs>,
    folder: tempfile::TempDir,
    servers: Vec<Option<Child>>,
    bird: Child,
    _namespaces: Namespaces,
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl World {
    fn new() -> Self {
        let mut namespaces = Namespaces::new("ann");
        let mut add = |role: &str| namespaces.add(role).expect("a namespace (tests run as root)");
        let (client, router, switch) = (add("cl"), add("rt"), add("sw"));
        let balancers = [add("l1"), add("l2")];
        let backends = vec![add("b1"), add("b2")];
        switch.ip("link add br0 type bridge\nlink set br0 up").unwrap();
        let connect = |netns: &NetNs, port: &str, address: &str| {
            let line = format!(
                "link add eth0 netns {} type veth peer name {port} netns {}",
                netns.name(),
                switch.name()
            );
            netns.ip(&line).unwrap();
            netns.ip(&format!("link set eth0 up\naddr add {address}/24 dev eth0")).unwrap();
            netns.no_checksum_offload("eth0").unwrap();
            switch.ip(&format!("link set {port} master br0\nlink set {port} up")).unwrap();
        };
        connect(&router, "rt", "10.60.0.254");
        for (number, netns) in (1..).zip(&balancers) {
            let port = format!("l{number}");
            connect(netns, &port, &format!("10.60.0.{number}"));
            netns.ip(&format!("addr add {VIP}/32 dev lo")).unwrap();
            // Frames of XDP programs get through a veth only where its other end has one, too.
            xdp::attach_pass(&switch, &port).unwrap();
        }
        for (number, netns) in (1..).zip(&backends) {
            connect(netns, &format!("b{number}"), &format!("10.60.0.{}", 10 + number));
            netns.sysctl("ipv4/conf/all/arp_ignore", "1").unwrap();
            netns
                .ip(&format!("addr add {VIP}/32 dev lo\nroute add default via 10.60.0.254"))
                .unwrap();
        }
        let line = format!("link add eth0 netns {} type veth peer name eth1", client.name());
        router.ip(&line).unwrap();
        client.ip("link set eth0 up\naddr add 10.61.0.2/24 dev eth0").unwrap();
        client.ip("route add default via 10.61.0.254").unwrap();
        router.ip("link set eth1 up\naddr add 10.61.0.254/24 dev eth1").unwrap();
        router.sysctl("ipv4/ip_forward", "1").unwrap();
        for (netns, name) in [(&client, "eth0"), (&router, "eth1")] {
            netns.no_checksum_offload(name).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let bird = bird(&router, folder.path());
        let nodes = (1..).zip(balancers).map(|(number, netns)| {
            let home = folder.path().join(format!("l{number}"));
            fs::create_dir(&home).unwrap();
            Node::new(netns, home, number)
        });
        let nodes = nodes.collect();
        let servers = backends.iter().map(|_| None).collect();
        let mut world = Self {
            client,
            router,
            nodes,
            backends,
            folder,
            servers,
            bird,
            _namespaces: namespaces,
        };
        (0..2).for_each(|number| world.serve(number));
        world
    }

    /// An nginx on a backend, which tells its number.
    fn serve(&mut self, number: usize) {
        let home = self.folder.path().join(format!("b{number}"));
        fs::create_dir_all(&home).unwrap();
        let home = home.display();
        let mut text = format!(
            "daemon off;\nmaster_process off;\nerror_log {home}/error.log;\npid {home}/pid;\n\
             events {{ }}\nhttp {{\n  access_log off;\n"
        );
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            text += &format!("  {kind}_temp_path {home}/tmp;\n");
        }
        text += &format!(
            "  server {{ listen 80; location / {{ return 200 \"b{number}\\n\"; }} }}\n}}\n"
        );
        let config = format!("{home}/nginx.conf");
        fs::write(&config, text).unwrap();
        let mut command = self.backends[number].command("nginx").unwrap();
        command.args(["-c", &config, "-e", &format!("{home}/error.log")]);
        self.servers[number] = Some(command.stdin(Stdio::null()).spawn().expect("nginx"));
    }

    /// By which balancers the router reaches the address.
    fn next_hops(&self) -> Vec<String> {
        let mut command = self.router.command("ip").unwrap();
        let shown = stdout(&command.args(["route", "show", VIP]).output().unwrap());
        let mut hops: Vec<String> = Vec::new();
        let mut words = shown.split_whitespace();
        while let Some(word) = words.next() {
            if word == "via" {
                hops.extend(words.next().map(str::to_owned));
            }
        }
        hops.sort();
        hops
    }

    /// Waits until the router has these next hops, balancers by their numbers.
    fn leads_to(&self, what: &str, numbers: &[usize]) {
        let wanted: Vec<String> =
            numbers.iter().map(|number| format!("10.60.0.{number}")).collect();
        eventually(&format!("{what}: the router leads to {wanted:?}"), || {
            self.next_hops() == wanted
        });
    }

    /// So many requests, each of which is answered.
    fn requests(&self, many: usize) {
        for _ in 0..many {
            let mut curl = self.client.command("curl").unwrap();
            let said = curl.args(["-s", "-S", "-m", "20", &format!("http://{VIP}/")]).output();
            let said = said.unwrap();
            assert!(["b0\n", "b1\n"].contains(&&*stdout(&said)), "{}", stderr(&said));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.servers.iter_mut().flatten().for_each(end);
        end(&mut self.bird);
    }
}

/// The router's BIRD, which puts what it learns into the kernel's table, several next hops together.
fn bird(router: &NetNs, folder: &Path) -> Child {
    let mut text = "router id 10.60.0.254;\nprotocol device { scan time 1; }\nprotocol kernel { merge paths on; \
                    ipv4 { import none; export all; }; }\n"
        .to_owned();
    for number in [1, 2] {
        text += &format!(
            "protocol bgp l{number} {{ local 10.60.0.254 as 65000; neighbor 10.60.0.{number} as 65001; \
             connect delay time 1; connect retry time 1; error wait time 1, 1; hold time 9; \
             ipv4 {{ import all; export none; }}; }}\n"
        );
    }
    let config = folder.join("bird.conf");
    fs::write(&config, text).unwrap();
    let mut command = router.command("/usr/sbin/bird").unwrap();
    command.arg("-f").arg("-c").arg(&config).arg("-s").arg(folder.join("bird.ctl"));
    command.stdin(Stdio::null()).spawn().expect("bird")
}

impl Node {
    fn new(netns: NetNs, home: PathBuf, number: usize) -> Self {
        let (api, run) = (home.join("api.sock"), home.join("run"));
        let gobgp = format!(
            "[global.config]\n  as = 65001\n  router-id = \"10.60.0.{number}\"\n\
             [[neighbors]]\n  [neighbors.config]\n    neighbor-address = \"10.60.0.254\"\n    peer-as = 65000\n\
             [neighbors.timers.config]\n    connect-retry = 1\n    hold-time = 9\n    keepalive-interval = 3\n"
        );
        fs::write(home.join("gobgpd.toml"), gobgp).unwrap();
        let file = format!(
            "[balancer]\nname = \"ann{number}x{}\"\ninterfaces = [\"eth0\"]\nrun_dir = \"{}\"\n\
             [announce]\nspeaker = \"gobgp\"\napi = \"unix:{}\"\nlearn_delay = \"1s\"\nat_stop = \"withdraw\"\n\
             [[service]]\nname = \"web\"\nvip = \"{VIP}\"\nport = 80\nneed = 1\n\
             [service.check]\ninterval = \"200ms\"\ntimeout = \"100ms\"\n\
             [[service.backend]]\nname = \"b0\"\naddress = \"10.60.0.11\"\n\
             [[service.backend]]\nname = \"b1\"\naddress = \"10.60.0.12\"\n",
            std::process::id(),
            run.display(),
            api.display()
        );
        fs::write(home.join("weir.toml"), file).unwrap();
        let mut node = Self { netns, home, speaker: None, control: None };
        node.begin_speaker();
        node.begin();
        node
    }

    fn begin_speaker(&mut self) {
        let api = self.home.join("api.sock");
        let _ = fs::remove_file(&api);
        let log = fs::File::create(self.home.join("gobgpd.log")).unwrap();
        let mut command = self.netns.command("gobgpd").unwrap();
        command.arg("-f").arg(self.home.join("gobgpd.toml"));
        command.arg("--api-hosts").arg(format!("unix://{}", api.display())).arg("--pprof-disable");
        let spawned = command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).spawn();
        self.speaker = Some(spawned.expect("gobgpd"));
    }

    /// The same balancer with a BIRD as its speaker, and routes that stay when the control plane ends.
    fn turn_to_bird(&mut self) {
        assert!(self.stop());
        end(self.speaker.as_mut().expect("it runs"));
        let (file, include) = (self.home.join("weir.toml"), self.home.join("weir-bird.conf"));
        let text = fs::read_to_string(&file).unwrap();
        let (begin, rest) = text.split_once("[announce]").unwrap();
        let (_, services) = rest.split_once("[[service]]").unwrap();
        let announce = format!(
            "[announce]\nspeaker = \"bird\"\nsocket = \"{}\"\nfile = \"{}\"\nlearn_delay = \"1s\"\n",
            self.bird_socket().display(),
            include.display()
        );
        fs::write(&file, format!("{begin}{announce}[[service]]{services}")).unwrap();
        let bird = format!(
            "router id 10.60.0.9;\nprotocol device {{ }}\ninclude \"{}*\";\n",
            include.display()
        );
        fs::write(self.home.join("bird.conf"), bird).unwrap();
        self.begin_bird();
        self.begin();
    }

    fn bird_socket(&self) -> PathBuf {
        self.home.join("bird.ctl")
    }

    fn begin_bird(&mut self) {
        let _ = fs::remove_file(self.bird_socket());
        let mut command = self.netns.command("/usr/sbin/bird").unwrap();
        command.arg("-f").arg("-c").arg(self.home.join("bird.conf"));
        command.arg("-s").arg(self.bird_socket());
        self.speaker = Some(command.stdin(Stdio::null()).spawn().expect("bird"));
    }

    /// Whether its BIRD has the route.
    fn bird_has_it(&self) -> bool {
        let mut birdc = Command::new("/usr/sbin/birdc");
        birdc.arg("-s").arg(self.bird_socket()).args(["show", "route"]);
        stdout(&birdc.output().expect("birdc")).contains(VIP)
    }

    fn unload(&self) -> Output {
        let config = self.home.join("weir.toml").display().to_string();
        self.weir(&["unload", "--config", &config])
    }

    /// `weir run`.
    fn begin(&mut self) {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.home.join("log"));
        let mut command = self.netns.command(WEIR).unwrap();
        command.args(["run", "--config"]).arg(self.home.join("weir.toml"));
        let spawned = command.stdin(Stdio::null()).stderr(log.unwrap()).spawn();
        self.control = Some(spawned.expect("weir run"));
    }

    /// SIGKILL.
    fn kill(&mut self) {
        end(self.control.as_mut().expect("it runs"));
        self.control = None;
    }

    /// SIGTERM, and how it ended.
    fn stop(&mut self) -> bool {
        let mut control = self.control.take().expect("it runs");
        let pid = nix::unistd::Pid::from_raw(i32::try_from(control.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        control.wait().unwrap().success()
    }

    fn weir(&self, arguments: &[&str]) -> Output {
        let mut command = self.netns.command(WEIR).unwrap();
        command.env("WEIR_SOCKET", self.home.join("run/weir.sock"));
        command.args(arguments).output().expect("weir")
    }

    fn report(&self) -> Value {
        serde_json::from_str(&stdout(&self.weir(&["announce", "--json"]))).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.control.iter_mut().chain(&mut self.speaker).for_each(end);
        let config = self.home.join("weir.toml");
        let _ = Command::new(WEIR).args(["unload", "--config"]).arg(config).output();
    }
}

#[test]
fn routers_are_led_to_balancers_that_can_serve() {
    // Instances are named by the process.
    let _alone = common::alone();
    let mut world = World::new();
    world.leads_to("both have begun", &[1, 2]);
    world.requests(6);

    // One has other ideas of its backends: it is drained, over a restart.
    let said = world.nodes[0].weir(&["drain", "self"]);
    assert!(said.status.success(), "{}", stderr(&said));
    let (begun, over) = ("is drained: its routes are being", "none of its routes is announced any");
    let words = stdout(&said);
    assert!(words.contains(begun) && words.contains(over), "{words}");
    let again = world.nodes[0].weir(&["drain", "self"]);
    let words = "is drained already: its routes are withdrawn";
    assert!(stdout(&again).contains(words), "{}", stdout(&again));
    let as_json = stdout(&world.nodes[0].weir(&["drain", "self", "--json"]));
    let as_json: Value = serde_json::from_str(&as_json).expect("one answer alone");
    assert!(as_json["done"].as_str().is_some_and(|done| done.contains(over)), "{as_json}");
    world.leads_to("one is drained", &[2]);
    world.requests(3);
    world.nodes[0].kill();
    world.nodes[0].begin();
    eventually("it answers again", || world.nodes[0].report()["drained"] == Value::Bool(true));
    assert_eq!(world.next_hops(), ["10.60.0.2"]);
    let checked = world.nodes[0].weir(&["announce", "check", VIP]);
    assert_eq!(checked.status.code(), Some(1), "{}", stderr(&checked));
    assert!(stdout(&checked).contains("this balancer is drained"), "{}", stdout(&checked));
    // What is shown as a route is taken as one.
    let route = world.nodes[0].report()["routes"][0]["route"].as_str().expect("one").to_owned();
    let checked = world.nodes[0].weir(&["announce", "check", &route]);
    assert_eq!(checked.status.code(), Some(1), "{route}: {}", stderr(&checked));
    let wider = world.nodes[0].weir(&["announce", "check", "10.60.0.0/24"]);
    assert_eq!(wider.status.code(), Some(3), "{}", stderr(&wider));
    assert!(stderr(&wider).contains("is at 10.60.0.0/24"), "{}", stderr(&wider));
    assert!(world.nodes[0].weir(&["undrain", "self"]).status.success());
    world.leads_to("it is not any more", &[1, 2]);
    let checked = world.nodes[0].weir(&["announce", "check", VIP]);
    assert_eq!(checked.status.code(), Some(0), "{}", stderr(&checked));
    let strange = world.nodes[0].weir(&["announce", "check", "192.0.2.77"]);
    assert_eq!(strange.status.code(), Some(3), "{}", stderr(&strange));

    // A backend less is no reason; none at all is.
    end(world.servers[0].as_mut().unwrap());
    let down = |node: &Node, name: &str| {
        let status: Value =
            serde_json::from_str(&stdout(&node.weir(&["status", "--json"]))).unwrap_or_default();
        let backends = status["services"][0]["backends"].as_array().cloned().unwrap_or_default();
        backends.iter().any(|one| one["name"] == name && one["state"] == "down")
    };
    for node in &world.nodes {
        eventually("one backend is down", || down(node, "b0"));
    }
    world.requests(3);
    assert_eq!(world.next_hops(), ["10.60.0.1", "10.60.0.2"]);
    end(world.servers[1].as_mut().unwrap());
    world.leads_to("no backend is up", &[]);
    let why = world.nodes[1].report()["routes"][0].clone();
    assert_eq!((&why["why"], &why["up"], &why["need"]), (&"too_few".into(), &0.into(), &1.into()));
    (0..2).for_each(|number| world.serve(number));
    world.leads_to("they are back", &[1, 2]);
    world.requests(3);
}

#[test]
fn control_planes_and_speakers_die_and_come_back() {
    // Instances are named by the process.
    let _alone = common::alone();
    let mut world = World::new();
    world.leads_to("both have begun", &[1, 2]);

    // Dead control planes: forwarding goes on, and so do the routes.
    world.nodes.iter_mut().for_each(Node::kill);
    world.requests(6);
    assert_eq!(world.next_hops(), ["10.60.0.1", "10.60.0.2"]);

    // Somebody guards one of them.
    let config = world.nodes[0].home.join("weir.toml");
    let mut elsewhere = world.nodes[0].netns.command(WEIR).unwrap();
    elsewhere.args(["announce", "--socket", "/nowhere.sock", "guard", "--config"]).arg(&config);
    let refused = elsewhere.output().unwrap();
    assert!(!refused.status.success());
    let said = common::stderr(&refused);
    assert!(
        said.contains("--socket /nowhere.sock: ") && said.contains("leave --socket out"),
        "{said}"
    );
    let mut guard = world.nodes[0].netns.command(WEIR).unwrap();
    guard.args(["announce", "guard", "--after", "2s", "--config"]).arg(&config);
    let mut guard = guard.stdin(Stdio::null()).spawn().unwrap();
    world.leads_to("the guard has seen that nobody answers", &[2]);
    world.requests(3);
    world.nodes.iter_mut().for_each(Node::begin);
    world.leads_to("they have begun again", &[1, 2]);
    end(&mut guard);

    // A speaker dies, and with it the session; it comes back with nothing, and is told.
    end(world.nodes[1].speaker.as_mut().unwrap());
    world.leads_to("a session is gone", &[1]);
    eventually("it says so", || world.nodes[1].report()["error"].is_string());
    world.nodes[1].begin_speaker();
    world.leads_to("the speaker is back", &[1, 2]);

    // Who ends withdraws first, as its file says; the other one is asked for everything.
    assert!(world.nodes[0].stop());
    world.leads_to("one has ended", &[2]);
    world.requests(3);
    world.nodes[0].begin();
    world.leads_to("it has begun again", &[1, 2]);

    // Nothing is announced any more by a file that does not say it.
    let text = fs::read_to_string(&config).unwrap();
    let (begin, rest) = text.split_once("[announce]").unwrap();
    let (_, services) = rest.split_once("[[service]]").unwrap();
    fs::write(&config, format!("{begin}[[service]]{services}")).unwrap();
    let said = world.nodes[0].weir(&["reload"]);
    assert!(said.status.success(), "{}", stderr(&said));
    world.leads_to("its file has no [announce]", &[2]);
    fs::write(&config, text).unwrap();
    assert!(world.nodes[0].weir(&["reload"]).status.success());
    world.leads_to("it has one again", &[1, 2]);
    world.requests(3);
}

/// What outlives the control plane goes with forwarding: nobody is led to a host that forwards nothing.
#[test]
fn what_is_unloaded_is_not_announced_any_more() {
    // Instances are named by the process.
    let _alone = common::alone();
    let mut world = World::new();
    world.leads_to("both have begun", &[1, 2]);

    // By GoBGP, with a router that is led elsewhere.
    let node = &mut world.nodes[0];
    let config = node.home.join("weir.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("at_stop = \"withdraw\"", "at_stop = \"keep\"")).unwrap();
    let said = node.weir(&["reload"]);
    assert!(said.status.success(), "{}", stderr(&said));
    let refused = node.unload();
    assert_eq!(refused.status.code(), Some(5), "{}", stderr(&refused));
    assert_eq!(node.report()["routes"][0]["announced"], Value::Bool(true));
    assert!(node.stop());
    world.requests(3);
    assert_eq!(world.next_hops(), ["10.60.0.1", "10.60.0.2"]);
    let said = world.nodes[0].unload();
    assert!(said.status.success(), "{}", stderr(&said));
    let words = stdout(&said);
    assert!(words.contains("not announced any more by GoBGP"), "{words}");
    assert!(words.contains("data plane removed"), "{words}");
    world.leads_to("one is unloaded", &[2]);
    world.requests(3);

    // By BIRD, which does not answer at first.
    let node = &mut world.nodes[1];
    node.turn_to_bird();
    eventually("BIRD has the route", || node.bird_has_it());
    assert!(node.stop());
    assert!(node.bird_has_it(), "forwarding goes on");
    end(node.speaker.as_mut().expect("it runs"));
    let said = node.unload();
    assert_eq!(said.status.code(), Some(1), "{}", stdout(&said));
    assert!(stdout(&said).contains("data plane removed"), "{}", stdout(&said));
    let words = stderr(&said);
    assert!(words.contains(VIP) && words.contains("may still be announced by BIRD"), "{words}");
    node.begin_bird();
    eventually("BIRD has read the file again", || node.bird_has_it());
    let said = node.unload();
    assert!(said.status.success(), "{}", stderr(&said));
    assert!(stdout(&said).contains("not announced any more by BIRD"), "{}", stdout(&said));
    eventually("it is withdrawn", || !node.bird_has_it());
    let again = stdout(&node.unload());
    assert!(!again.contains("announced"), "{again}");
}
