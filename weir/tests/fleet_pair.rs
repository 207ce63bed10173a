//! A pair of balancers of one fleet without a router in front: a real keepalived beside each moves the service's
//! address between them, by the configuration and the script of `examples/keepalived`, and no connection breaks.

mod common;

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;

use common::{Held, WEB4, WEIR};
use weir_lab::topology::{INTERFACE, Topology, VIP4};
use weir_lab::{AgentSpec, BalancerSpec, Fleet, Lab, LabSpec, PoolControl};

const EXAMPLE: &str = include_str!("../../examples/keepalived/keepalived.conf");
const NOTIFY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/keepalived/keepalived-notify");
/// Of the package `keepalived`.
const KEEPALIVED: &str = "/usr/sbin/keepalived";

/// The processes of one keepalived. Dropping it ends them as a machine does whose power fails.
struct Vrrp {
    child: Child,
    vrrp: PathBuf,
}

impl Drop for Vrrp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its child would go on, and say farewell to the others.
        let pid = fs::read_to_string(&self.vrrp).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

struct Pair {
    // Before the laboratory: they run in its namespaces.
    vrrp: [Option<Vrrp>; 2],
    fleet: Fleet,
    lab: Arc<Lab>,
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

impl Pair {
    fn start() -> Self {
        let (topology, agent) = (Topology::Fleet, Some(AgentSpec::telling(WEIR)));
        let spec = LabSpec { backends: 4, balancers: 2, topology, agent, ..LabSpec::default() };
        let lab = common::lab_of(spec);
        let spec = BalancerSpec {
            method: "concury".into(),
            tcp_lines: "states = \"agents\"".into(),
            udp_method: Some("jet".into()),
            balancer_lines: "[announce]\nspeaker = \"none\"\nlearn_delay = \"1s\"".into(),
            ..BalancerSpec::new(WEIR, 3)
        };
        let fleet = Fleet::start(&lab, &spec, common::seed()).expect("a fleet of weir run");
        // Whoever has the address answers for it on the link of the clients.
        for client in lab.clients() {
            client.ip(&format!("route replace {VIP4}/32 dev {INTERFACE}\n")).unwrap();
        }
        let mut pair = Self { vrrp: [None, None], fleet, lab };
        (0..2).for_each(|member| pair.begin(member));
        pair
    }

    fn home(&self, member: usize) -> PathBuf {
        self.lab.directory().join(format!("keepalived-m{member}"))
    }

    /// Starts keepalived beside a balancer, by the example with the laboratory's address and places.
    fn begin(&mut self, member: usize) {
        let home = self.home(member);
        fs::create_dir_all(home.join("metrics")).unwrap();
        let (weir, notify) = (home.join("weir"), home.join("notify"));
        let socket = self.fleet.balancers()[member].socket();
        script(&weir, &format!("WEIR_SOCKET={} exec {WEIR} \"$@\"", socket.display()));
        let home_of = home.display();
        let words = format!(
            "STATE_DIR={home_of}/state METRICS_DIR={home_of}/metrics WEIR={home_of}/weir exec {NOTIFY} \"$@\""
        );
        script(&notify, &words);
        let mut text = EXAMPLE.to_owned();
        let places = [
            ("192.0.2.1", VIP4.to_string()),
            ("/usr/bin/weir", weir.display().to_string()),
            ("/usr/local/lib/weir/keepalived-notify", notify.display().to_string()),
        ];
        for (from, to) in places {
            assert!(text.contains(from), "{from}: {text}");
            text = text.replace(from, &to);
        }
        let config = home.join("keepalived.conf");
        fs::write(&config, text).unwrap();
        let log = OpenOptions::new().create(true).append(true).open(home.join("log")).unwrap();
        let (parent, vrrp) = (home.join("pid"), home.join("vrrp.pid"));
        let mut keepalived = self.lab.front(member).command(KEEPALIVED).unwrap();
        keepalived.args(["--dont-fork", "--log-console", "--log-detail", "--vrrp", "--use-file"]);
        keepalived.arg(&config).arg("--pid").arg(&parent).arg("--vrrp_pid").arg(&vrrp);
        let second = log.try_clone().unwrap();
        let spawned = keepalived.stdin(Stdio::null()).stdout(log).stderr(second).spawn();
        let child = spawned.expect("keepalived (Debian: apt install keepalived)");
        self.vrrp[member] = Some(Vrrp { child, vrrp });
    }

    fn has_address(&self, member: usize) -> bool {
        let mut ip = self.lab.front(member).command("ip").unwrap();
        let said = ip.args(["-o", "-4", "addr", "show", "dev", INTERFACE]).output().unwrap();
        common::stdout(&said).contains(&format!(" {VIP4}/"))
    }

    fn logs(&self) -> String {
        let log = |member| fs::read_to_string(self.home(member).join("log")).unwrap_or_default();
        format!("{}\n{}", log(0), log(1))
    }

    /// Waits until the address is this one's, among those that run.
    fn moves_to(&self, what: &str, member: usize) {
        common::eventually(&format!("{what}: balancer {member} has the address"), || {
            let other = 1 - member;
            self.has_address(member) && (self.vrrp[other].is_none() || !self.has_address(other))
        });
        self.says(member, "MASTER");
    }

    /// Waits until the script has said this of a balancer, where people and node_exporter look.
    fn says(&self, member: usize, state: &str) {
        let home = self.home(member);
        common::eventually(&format!("balancer {member} is said to be {state}"), || {
            let said = fs::read_to_string(home.join("state/services")).unwrap_or_default();
            let metric = home.join("metrics/weir-vrrp-services.prom");
            let metric = fs::read_to_string(metric).unwrap_or_default();
            let number = u8::from(state == "MASTER");
            let line = format!("weir_vrrp_master{{instance=\"services\"}} {number}\n");
            said.starts_with(&format!("{state} ")) && metric.ends_with(&line)
        });
    }

    fn assert_unbroken(&self, held: &mut [Held], when: &str) {
        let (many, troubles) = (held.len(), common::troubles(held));
        let broken = troubles.len();
        assert!(
            troubles.is_empty(),
            "{when}: {broken} of {many} broken: {troubles:#?}\n{}",
            self.logs()
        );
        println!("{when}: 0 of {many} broken");
    }

    fn agree(&self) {
        self.fleet.await_agreement(2, common::PATIENCE).expect("both follow the same");
    }
}

/// The address goes where it may be: away from a balancer that is drained, whose control plane is gone, or whose power
/// has failed; and connections go on by the other one, which has seen none of their packets, also after changes of the
/// pool that came between.
#[test]
fn an_address_moves_by_vrrp_and_connections_stay() {
    let _alone = common::alone();
    let mut pair = Pair::start();
    common::eventually("one of them has the address", || {
        pair.has_address(0) != pair.has_address(1)
    });
    let first = usize::from(pair.has_address(1));
    let other = 1 - first;
    pair.says(first, "MASTER");
    common::reach_all(&pair.lab, WEB4, 3);
    let mut held = common::hold(&pair.lab, WEB4, 48);

    common::command(&pair.fleet.balancers()[first], "drain self");
    pair.moves_to("one is drained", other);
    pair.says(first, "FAULT");
    pair.assert_unbroken(&mut held, "when one was drained");
    held.extend(common::hold(&pair.lab, WEB4, 24));
    common::command(&pair.fleet.balancers()[first], "undrain self");
    pair.says(first, "BACKUP");
    assert!(pair.has_address(other), "whoever has it keeps it");

    pair.fleet.add(3, 1).unwrap();
    pair.fleet.drain(0).unwrap();
    pair.agree();
    held.extend(common::hold(&pair.lab, WEB4, 24));
    pair.assert_unbroken(&mut held, "after changes of the pool");

    // As a machine whose power fails: nobody says farewell.
    pair.fleet.lose_power(other).unwrap();
    pair.vrrp[other] = None;
    pair.moves_to("the power of one has failed", first);
    pair.assert_unbroken(&mut held, "when the power of one has failed");
    held.extend(common::hold(&pair.lab, WEB4, 24));

    // It is back, and knows nothing but what the store and the agents tell it.
    // keepalived may have taken the address away itself when the link was gone.
    let _ = pair.lab.front(other).ip(&format!("addr del {VIP4}/32 dev {INTERFACE}\n"));
    pair.fleet.revive(other).unwrap();
    pair.begin(other);
    pair.agree();
    pair.says(other, "BACKUP");
    pair.fleet.undrain(0).unwrap();
    pair.agree();

    // Without a control plane packets go on, and nobody says that the address may stay.
    pair.fleet.balancers()[first].kill();
    pair.moves_to("a control plane is gone", other);
    pair.assert_unbroken(&mut held, "by the one that is back");
    pair.fleet.balancers()[first].launch().unwrap();
    pair.says(first, "BACKUP");
    pair.agree();
    pair.assert_unbroken(&mut held, "at the end");
}
