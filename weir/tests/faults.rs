//! Whatever an operator and a bad day do, in any order: commands, files good and bad, other limits, a
//! SIGKILL in the middle, a second instance, a full disc, an interface that is made anew, a cable that
//! is pulled, files applied and gone back from, backends that die, floods. No connection and no flow of
//! datagrams breaks but those of a backend that has died or was removed, no service stays behind, and in the
//! end `weir status` is what a fresh start shows.
//!
//! `WEIR_EVENTS` events (24 of them here; `make soak` takes 500), drawn by `WEIR_SEED`; of the kinds
//! `WEIR_KINDS` alone ("11,14"), to look at one of them.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Flow, Held, WEB4, WEB6};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use weir_lab::topology::INTERFACE;
use weir_lab::{Balancer, BalancerSpec, FrameSender, Lab, LabSpec};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

const BALANCER_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 0xff, 1];
const CLIENT_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 1, 1];
/// Backends 0 and 1 are always there; the others come and go.
const BACKENDS: usize = 5;
const STEADY: usize = 2;
const ECHO: SocketAddr = SocketAddr::new(WEB4.ip(), 5353);
const SERVICES: [&str; 3] = ["web4", "web6", "echo4"];
/// Connections that are held at a time, at most.
const HELD: usize = 80;
/// Flows of datagrams that are held at a time, at most.
const FLOWS: usize = 24;

const FIELDS: &[&str] = &[
    "method = \"concury\"",
    "method = \"concury\"\nidle_timeout = \"7m\"",
    "method = \"concury\"\ndcode_bits = 10",
    "method = \"tracked\"",
    "method = \"tracked\"\ntable_size = 997",
    "method = \"residue\"",
    "method = \"residue\"\nrows = 4096",
];

/// A file system of its own for the run directory, so that it can be full.
struct Disc(PathBuf);

impl Disc {
    fn mount(at: &Path) -> Self {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(at).status();
        assert!(mounted.is_ok_and(|status| status.success()), "mount {}", at.display());
        Self(at.to_owned())
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let filler = self.0.join("filler");
        let _ = Command::new("dd")
            .args(["if=/dev/zero", "bs=4096", "status=none"])
            .arg(format!("of={}", filler.display()))
            .output();
    }

    /// Leaves so many bytes.
    fn leave(&self, bytes: u64) {
        let filler = fs::File::options().write(true).open(self.0.join("filler")).unwrap();
        let size = filler.metadata().unwrap().len();
        filler.set_len(size.saturating_sub(bytes)).unwrap();
    }

    fn empty(&self) {
        let _ = fs::remove_file(self.0.join("filler"));
    }
}

impl Drop for Disc {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// What the file says.
#[derive(Clone, Debug)]
struct File {
    fields: &'static str,
    tracked_flows: u32,
    table_bytes: u64,
    /// Weight and drain of each backend that is there.
    pool: BTreeMap<usize, (u32, bool)>,
}

struct World {
    lab: Arc<Lab>,
    balancer: Balancer,
    disc: Disc,
    file: File,
    held: Vec<Held>,
    flows: Vec<Flow>,
    kinds: Vec<u32>,
    random: StdRng,
}

fn address(service: &str, backend: usize) -> String {
    if service == "web6" {
        format!("fd77::2:{}", backend + 1)
    } else {
        format!("10.77.2.{}", backend + 1)
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let lab = common::lab_of(LabSpec { backends: BACKENDS, clients: 2, ..LabSpec::default() });
        let balancer = common::start_spec(&lab, BalancerSpec::new(common::WEIR, STEADY));
        // Anew, with a run directory that can be full.
        balancer.stop(common::PATIENCE);
        let name = format!("wl{}", lab.id());
        assert!(common::weir(&["unload", "--name", &name]).status.success());
        let disc = Disc::mount(&balancer.config().parent().unwrap().join("weir"));
        balancer.launch().unwrap();
        let pool = (0..STEADY).map(|backend| (backend, (1, false))).collect();
        let file = File { fields: FIELDS[0], tracked_flows: 20_000, table_bytes: 20 << 20, pool };
        let kinds = match std::env::var("WEIR_KINDS") {
            Ok(text) => text.split(',').map(|kind| kind.parse().unwrap()).collect(),
            Err(_) => (0..18).collect(),
        };
        let (held, flows, random) = (Vec::new(), Vec::new(), StdRng::seed_from_u64(seed));
        Self { lab, balancer, disc, file, held, flows, kinds, random }
    }

    fn write(&self, file: &File) {
        let text = fs::read_to_string(self.balancer.config()).unwrap();
        let (head, _) = text.split_once("\n[[service]]").unwrap();
        let head = head.split("\n[limits]").next().unwrap();
        let File { fields, tracked_flows, table_bytes, pool } = file;
        let mut text = format!(
            "{head}\n[limits]\ntracked_flows = {tracked_flows}\ntable_bytes = {table_bytes}\n\
             states_per_service = 200000\n"
        );
        for service in SERVICES {
            let (vip, rest) = match service {
                "web4" => (WEB4.ip(), "port = 80".to_owned()),
                "web6" => (WEB6.ip(), "port = 80".to_owned()),
                _ => (WEB4.ip(), "port = 5353\nprotocol = \"udp\"".to_owned()),
            };
            let _ = write!(
                text,
                "\n[[service]]\nname = \"{service}\"\nvip = \"{vip}\"\n{rest}\n{fields}\n\
                 [service.check]\ninterval = \"300ms\"\nport = 80\nrise = 1\n"
            );
            for (backend, (weight, drain)) in pool {
                let address = address(service, *backend);
                let _ = write!(
                    text,
                    "[[service.backend]]\nname = \"b{backend}\"\naddress = \"{address}\"\n\
                     weight = {weight}\ndrain = {drain}\n"
                );
            }
        }
        fs::write(self.balancer.config(), text).unwrap();
    }

    fn command(&self, words: &str) -> Result<String, String> {
        let words: Vec<&str> = words.split(' ').collect();
        self.balancer.command(&words).map_err(|error| error.to_string())
    }

    fn forget(&mut self, backend: usize) {
        let name = format!("b{backend}");
        self.held.retain(|one| one.backend != name);
        self.flows.retain(|one| one.backend != name);
    }

    /// Another pool, of which the steady ones are part.
    fn other_pool(&mut self) -> BTreeMap<usize, (u32, bool)> {
        let mut pool = BTreeMap::new();
        for backend in 0..BACKENDS {
            if backend < STEADY || self.random.random_bool(0.5) {
                let drain = backend > 0 && self.random.random_bool(0.2);
                pool.insert(backend, (self.random.random_range(1..5), drain));
            }
        }
        pool
    }

    /// The file is in force when this returns, and commands made before count no more.
    fn reload(&mut self, file: File) {
        for backend in STEADY..BACKENDS {
            if !file.pool.contains_key(&backend) {
                self.forget(backend);
            }
        }
        self.write(&file);
        self.command("reload").unwrap_or_else(|error| panic!("{file:?}: {error}"));
        self.file = file;
    }

    /// Draws an event, makes it happen, and says what it was.
    fn event(&mut self) -> String {
        match *self.kinds.choose(&mut self.random).unwrap() {
            0 | 1 => {
                let file = File { pool: self.other_pool(), ..self.file.clone() };
                let said = format!("a reload with the pool {:?}", file.pool);
                self.reload(file);
                said
            }
            2 | 3 => {
                let fields = FIELDS.choose(&mut self.random).unwrap();
                let file = File { fields, pool: self.other_pool(), ..self.file.clone() };
                let said = format!("a reload with {fields:?} and the pool {:?}", file.pool);
                self.reload(file);
                said
            }
            4 => {
                let tracked_flows = *[5_000, 20_000, 60_000].choose(&mut self.random).unwrap();
                let table_bytes = *[20 << 20, 24 << 20, 32 << 20].choose(&mut self.random).unwrap();
                let file = File { tracked_flows, table_bytes, ..self.file.clone() };
                self.reload(file);
                format!("limits {tracked_flows}, {table_bytes}")
            }
            5 => {
                let backend = self.random.random_range(0..STEADY);
                let weight = self.random.random_range(1..9);
                for service in SERVICES {
                    self.command(&format!("backend weight {service} b{backend} {weight}")).unwrap();
                }
                format!("b{backend} gets weight {weight}")
            }
            6 => {
                for service in SERVICES {
                    self.command(&format!("backend drain {service} b1")).unwrap();
                }
                thread::sleep(Duration::from_millis(self.random.random_range(0..300)));
                for service in SERVICES {
                    self.command(&format!("backend drain {service} b1 --undo")).unwrap();
                }
                "b1 drains for a moment".into()
            }
            7 => {
                // Killed in the middle of a reload, or with nothing to do.
                let file =
                    File { fields: FIELDS.choose(&mut self.random).unwrap(), ..self.file.clone() };
                self.write(&file);
                self.balancer.hang_up();
                let moment = self.random.random_range(0..80_000);
                thread::sleep(Duration::from_micros(moment));
                self.balancer.kill();
                self.open(4);
                self.check("killed");
                self.balancer.launch().unwrap();
                let said = format!("a SIGKILL {moment} us after a reload with {:?}", file.fields);
                self.file = file;
                said
            }
            8 => {
                let bad = match self.random.random_range(0..3) {
                    0 => ("vip", "[[service]]\nnam = \"typo\"\n"),
                    1 => {
                        ("refused", "[[service]]\nname = \"web4\"\nvip = \"10.77.9.9\"\nport = 1\n")
                    }
                    _ => ("toml", "]]"),
                };
                self.write(&self.file);
                let good = fs::read_to_string(self.balancer.config()).unwrap();
                fs::write(self.balancer.config(), format!("{good}\n{}", bad.1)).unwrap();
                assert!(self.command("reload").is_err(), "{bad:?}");
                fs::write(self.balancer.config(), good).unwrap();
                format!("a reload of a bad file: {}", bad.0)
            }
            9 => {
                let config = self.balancer.config().to_str().unwrap().to_owned();
                let second = common::weir_in(&self.lab, &["run", "--config", &config]);
                assert_eq!(second.status.code(), Some(5), "{}", common::stderr(&second));
                "a second instance".into()
            }
            10 => {
                self.disc.fill();
                // May be refused; must not do half of it.
                let weight = self.random.random_range(1..9);
                let answers = SERVICES.map(|service| {
                    self.command(&format!("backend weight {service} b0 {weight}")).is_ok()
                });
                let fields = FIELDS.choose(&mut self.random).unwrap();
                let room = self.random.random_range(0..30) * 4096;
                self.disc.leave(room);
                let file = File { fields, ..self.file.clone() };
                self.write(&file);
                let reloaded = self.command("reload").is_ok();
                self.open(4);
                self.check("the disc is full");
                self.balancer.kill();
                self.disc.empty();
                self.balancer.launch().unwrap();
                self.file = file;
                format!(
                    "a full disc; commands went through: {answers:?}; a reload with {fields:?} and \
                     {room} bytes: {reloaded}; a SIGKILL"
                )
            }
            12 => self.flood(),
            14 => {
                let millis = self.random.random_range(1..600);
                self.lab.plug_balancer(false).unwrap();
                thread::sleep(Duration::from_millis(millis));
                self.lab.plug_balancer(true).unwrap();
                common::assert_unbroken(&mut self.held, "with the cable again", &self.balancer);
                // A check that failed for it has taken a backend down, and a datagram after silence, or
                // after a table with another key, counts as the first of a flow, which goes elsewhere then.
                common::eventually("all are up", || self.are_up());
                format!("no cable for {millis} ms")
            }
            15 => {
                // Other flows of datagrams, which nobody goes on with.
                drop(common::flows(&self.lab, ECHO, 100));
                "a hundred flows of one datagram".into()
            }
            16 | 17 => self.apply(),
            11 => {
                self.lab.replace_balancer_interface().unwrap();
                "another interface of the same name".into()
            }
            _ => {
                let Some(&backend) = self.file.pool.keys().rfind(|n| **n >= STEADY) else {
                    return "nothing".into();
                };
                self.forget(backend);
                self.lab.backend(backend).kill();
                let name = format!("b{backend}");
                common::eventually("the checks of all services see it", || {
                    let status = self.balancer.status().unwrap();
                    let services = status["services"].as_array().unwrap().iter();
                    let backends = services.flat_map(|one| one["backends"].as_array().unwrap());
                    let mut known = backends.filter(|backend| backend["name"] == name.as_str());
                    known.all(|backend| backend["check"]["up"] == false)
                });
                self.open(4);
                self.check("a backend is dead");
                self.forget(backend);
                self.lab.backend(backend).start().unwrap();
                format!("{name} dies and comes back")
            }
        }
    }

    /// Another file is applied, and perhaps gone back from, perhaps after a SIGKILL.
    fn apply(&mut self) -> String {
        let fields = FIELDS.choose(&mut self.random).unwrap();
        let former = self.file.clone();
        // What goes leaves with its connections, also where the change is undone afterwards.
        let file = File { fields, pool: self.other_pool(), ..former.clone() };
        for backend in STEADY..BACKENDS {
            if former.pool.contains_key(&backend) && !file.pool.contains_key(&backend) {
                self.forget(backend);
            }
        }
        self.write(&former);
        let inside = fs::read_to_string(self.balancer.config()).unwrap();
        self.write(&file);
        let other = self.lab.directory().join("applied.toml");
        fs::rename(self.balancer.config(), &other).unwrap();
        fs::write(self.balancer.config(), inside).unwrap();
        if self.random.random_bool(0.3) {
            return self.die_in(&other, file, former);
        }
        self.command(&format!("apply {}", other.display())).unwrap_or_else(|e| panic!("{e}"));
        self.open(4);
        let back = self.random.random_bool(0.5);
        let killed = self.random.random_bool(0.3);
        if killed {
            self.balancer.kill();
            self.balancer.launch().unwrap();
        }
        self.file = file;
        if back {
            for backend in STEADY..BACKENDS {
                if !former.pool.contains_key(&backend) {
                    self.forget(backend);
                }
            }
            self.command("rollback").unwrap_or_else(|e| panic!("{e}"));
            self.file = former;
        }
        format!("a file applied with {fields:?}; killed: {killed}; gone back: {back}")
    }

    /// The process is killed while a file is applied: it is in force whole, or not at all.
    fn die_in(&mut self, other: &Path, file: File, former: File) -> String {
        let moment = self.random.random_range(0..120_000);
        // One that has just joined becomes up with its first check, whatever else happens.
        common::eventually("all are up", || self.are_up());
        let before = self.services();
        let mut command = Command::new(common::WEIR);
        command.arg("apply").arg(other).arg("--socket").arg(self.balancer.socket());
        let applying = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        thread::sleep(Duration::from_micros(moment));
        self.balancer.kill();
        let _ = applying.unwrap().wait();
        let there = fs::read_to_string(self.balancer.config()).unwrap();
        let applied = there == fs::read_to_string(other).unwrap();
        self.file = if applied { file } else { former.clone() };
        for backend in STEADY..BACKENDS {
            if !former.pool.contains_key(&backend) || !self.file.pool.contains_key(&backend) {
                self.forget(backend);
            }
        }
        self.balancer.launch().unwrap();
        if applied {
            let plan = self.command("plan").unwrap();
            assert!(plan.contains("nothing would change"), "{plan}");
        } else {
            let (started, mut now) = (Instant::now(), self.services());
            while now != before {
                assert!(started.elapsed() < common::PATIENCE, "before: {before:#?}\nnow: {now:#?}");
                thread::sleep(Duration::from_millis(20));
                now = self.services();
            }
        }
        format!("a SIGKILL {moment} us after a file was applied, which is in force: {applied}")
    }

    /// SYNs and ACKs from addresses of 198.18.0.0/15, which nobody has: half-open connections, and packets
    /// of connections that were never there.
    fn flood(&mut self) -> String {
        if self.file.fields.contains("tracked") {
            // A table of 5,000 connections forgets who was silent longest (docs/tracked.md).
            return "nothing".into();
        }
        let sender = FrameSender::open(&self.lab.clients()[0], INTERFACE).unwrap();
        // So few that a turn to `tracked` has room for all of several floods.
        for (flags, count) in [(TcpFlags::SYN, 500), (TcpFlags::ACK, 10_000)] {
            let frames: Vec<Vec<u8>> = (0..count)
                .map(|_| {
                    let address =
                        Ipv4Addr::from(0xc612_0000 | self.random.random_range(0..1 << 17));
                    let from = (IpAddr::V4(address), self.random.random_range(1..=u16::MAX)).into();
                    let frame = Frame::new(FlowKey::new(from, WEB4, Protocol::Tcp));
                    frame.macs(BALANCER_MAC, CLIENT_MAC).tcp_flags(flags).build()
                })
                .collect();
            sender.send(&frames).unwrap();
            self.open(4);
            self.check("in a flood");
        }
        "a flood of SYNs and one of ACKs".into()
    }

    fn open(&mut self, count: usize) {
        self.held.extend(common::hold_both(&self.lab, count));
        let more = self.held.len().saturating_sub(HELD);
        self.held.drain(..more);
        self.flows.extend(common::flows(&self.lab, ECHO, count / 2));
        let more = self.flows.len().saturating_sub(FLOWS);
        self.flows.drain(..more);
    }

    fn check(&mut self, when: &str) {
        common::assert_unbroken(&mut self.held, when, &self.balancer);
        let troubles: Vec<String> = self.flows.iter().filter_map(Flow::trouble).collect();
        let all = self.flows.len();
        let log = common::log_tail(&self.balancer, 40);
        assert!(
            troubles.is_empty(),
            "{when}: of {all} flows: {troubles:#?}\nweir's log ends:\n{log}"
        );
    }

    /// What there is to say of each service, counters and ages apart.
    fn services(&self) -> Vec<Value> {
        let status = self.balancer.status().unwrap();
        let services = status["services"].as_array().unwrap().iter();
        let of = |value: &Value, names: &[&str]| -> Vec<Value> {
            names.iter().map(|name| value[*name].clone()).collect()
        };
        services
            .map(|service| {
                let backends = service["backends"].as_array().unwrap().iter();
                let names = ["name", "number", "address", "weight", "state"];
                let backends: Vec<_> = backends.map(|backend| of(backend, &names)).collect();
                let names = ["name", "number", "vip", "protocol", "port", "method", "affinity"];
                Value::from(vec![of(service, &names).into(), Value::from(backends)])
            })
            .collect()
    }

    fn are_up(&self) -> bool {
        let status = self.balancer.status().unwrap();
        let services = status["services"].as_array().unwrap().iter();
        let mut backends = services.flat_map(|service| service["backends"].as_array().unwrap());
        backends.all(|backend| backend["check"]["up"] == true)
    }

    fn settled(&self, when: &str) {
        common::eventually(when, || {
            // One that has just joined waits for its first check.
            self.are_up()
                && self.balancer.status().unwrap()["warnings"].as_array().is_some_and(Vec::is_empty)
        });
    }
}

#[test]
fn whatever_happens_no_connection_breaks() {
    let _alone = common::alone();
    let events = std::env::var("WEIR_EVENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let mut world = World::new(common::seed());
    world.reload(world.file.clone());
    world.open(40);
    for event in 0..events {
        let said = world.event();
        println!("{event}: {said}");
        let when = format!("event {event}, {said}");
        world.check(&when);
        world.open(4);
        world.check(&format!("{when}, and new connections"));
    }
    world.settled("nothing is left to be done");
    // What commands have changed is known to a restart, too.
    let before = world.services();
    world.balancer.kill();
    world.balancer.launch().unwrap();
    world.settled("nothing is left to be done after a restart");
    assert_eq!(world.services(), before);
    world.check("after a restart");
    world.reload(world.file.clone());
    world.check("at the end");
}

/// A disc without room keeps nothing from being forwarded. It is said, and made up for.
#[test]
fn a_start_on_a_full_disc_forwards() {
    let _alone = common::alone();
    let mut world = World::new(common::seed());
    world.balancer.stop(common::PATIENCE);
    let name = format!("wl{}", world.lab.id());
    assert!(common::weir(&["unload", "--name", &name]).status.success());
    // As if it had never been started.
    for file in fs::read_dir(&world.disc.0).unwrap() {
        let path = file.unwrap().path();
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.unwrap();
    }
    world.disc.fill();
    world.balancer.launch().unwrap();
    world.lab.await_service(common::PATIENCE).unwrap();
    world.open(40);
    world.check("on a full disc");
    let status = world.balancer.status().unwrap();
    let said = status["warnings"].to_string();
    for words in ["a control plane that dies now forgets connections", "forgets changes"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(common::log(&world.balancer).contains("cannot write down states"));
    // Room again.
    world.disc.empty();
    world.settled("all is written down");
    world.balancer.kill();
    world.balancer.launch().unwrap();
    world.command("backend drain web4 b1").unwrap();
    world.command("backend weight web6 b1 7").unwrap();
    world.check("after a restart and changes");
}

/// What goes by the calendar, because people and certificates do, and decides nothing about packets.
const BY_THE_CALENDAR: [&str; 20] = [
    // When something happened, was asked for, or was counted.
    "control/src/api/audit.rs",
    "control/src/api/watch.rs",
    "control/src/engine/events.rs",
    "control/src/snapshot.rs",
    // When a change was made, also of a fleet.
    "control/src/engine/fleet.rs",
    "control/src/history.rs",
    "weir/src/history.rs",
    "watch/src/screen.rs",
    // When maintenance begins and ends, as an operator asks for it.
    "control/src/config/maintenance.rs",
    "control/src/engine/maintenance.rs",
    "control/src/engine/tests/maintenance.rs",
    // When a certificate ends, of a server, of this balancer, or of an agent, whose session ends with it.
    "weir/src/pki.rs",
    "control/src/agents.rs",
    "control/src/certificates.rs",
    "control/src/health/tls.rs",
    "control/src/engine/status.rs",
    // When a packet came that somebody looks at.
    "plane/src/trace.rs",
    "dataplane/src/kernel/trace.rs",
    "control/src/engine/trace.rs",
    "weir/src/trace.rs",
];

/// Nothing of what runs beside packets decides by a clock that somebody can set: what is told by the
/// calendar is the time stamps of the log, which tracing makes, and what stands above. (A test that sets the machine's clock would set
/// everybody's, and a time namespace has no calendar of its own.)
#[test]
fn no_decision_is_made_by_a_clock_that_can_be_set() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let clocks = ["SystemTime", "UNIX_EPOCH", "CLOCK_REALTIME", "gettimeofday", "libc::time("];
    let kernel = ["bpf_ktime_get_tai_ns", "bpf_ktime_get_real"];
    let parts = "hash wire lookup placement steering plane dataplane control watch";
    let parts = parts.split(' ').map(|part| root.join("crates").join(part));
    let mut open: Vec<PathBuf> = parts.chain([root.join("weir/src")]).collect();
    let (mut read, mut found) = (0, Vec::new());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "c" || kind == "h") {
            let text = fs::read_to_string(&path).unwrap();
            read += 1;
            let names = clocks.iter().chain(&kernel).filter(|name| text.contains(**name));
            let names: Vec<_> = names.collect();
            match BY_THE_CALENDAR.iter().find(|told| path.ends_with(told)) {
                Some(told) if names.is_empty() => found.push(format!("{told}: needs no calendar")),
                Some(_) => {}
                None => {
                    let places = names.iter().map(|name| format!("{}: {name}", path.display()));
                    found.extend(places);
                }
            }
        }
    }
    assert!(read > 200, "{read} files");
    assert!(found.is_empty(), "{found:#?}");
}

/// Who cannot start for what can be seen beforehand leaves nothing behind.
#[test]
fn an_instance_that_cannot_start_leaves_no_run_directory() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start_spec(&lab, BalancerSpec::new(common::WEIR, 2));
    let text = fs::read_to_string(balancer.config()).unwrap();
    let (name, run_dir) = (format!("wl{}", lab.id()), lab.directory().join("weir"));
    let another = lab.directory().join("another");
    let text = text.replace(run_dir.to_str().unwrap(), another.to_str().unwrap());
    assert!(text.contains(another.to_str().unwrap()), "{text}");
    let file = lab.directory().join("another.toml");
    let refused = |text: &str, words: &[&str]| {
        fs::write(&file, text).unwrap();
        let output = common::weir_in(&lab, &["run", "--config", file.to_str().unwrap()]);
        let said = common::stderr(&output);
        assert!(!output.status.success(), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(!another.exists(), "{} is there: {said}", another.display());
    };
    // The name is taken; or the interface; or there is none.
    refused(&text, &["an instance of this name is running"]);
    let other = text.replace(&format!("\"{name}\""), "\"another\"");
    refused(&other, &["eth0"]);
    refused(&other.replace("\"eth0\"", "\"eth9\""), &["eth9"]);
    assert!(!Path::new("/sys/fs/bpf/weir/another").exists());
    common::reach_all(&lab, WEB4, 2);
}
