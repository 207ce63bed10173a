//! Whatever an operator and a bad day do, in any order: commands, files good and bad, other limits, a
//! SIGKILL in the middle, second instances, a full disc, maps that are full, an interface that is made anew, a
//! cable that is pulled, files applied and gone back from, services that come and go, backends that die, floods.
//! No connection and no flow of datagrams breaks but those of a backend that has died or was removed, none is
//! reset by the balancer, no service stays behind, and in the end `weir status` is what a fresh start shows.
//!
//! `WEIR_EVENTS` events (24 of them here; `make soak` takes 500), drawn by `WEIR_SEED`; of the kinds
//! `WEIR_KINDS` alone ("11,14"), to look at one of them.

mod common;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::disc::Disc;
use common::pool::{self, Pool};
use common::{Flow, Held, SERVICES, WEB4};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use weir_lab::topology::INTERFACE;
use weir_lab::{Balancer, BalancerSpec, FrameSender, Lab, LabSpec, Resets};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

const BALANCER_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 0xff, 1];
const CLIENT_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 1, 1];
/// Backends 0 and 1 are always there; the others come and go.
const BACKENDS: usize = 5;
const STEADY: usize = 2;
const ECHO: SocketAddr = SocketAddr::new(WEB4.ip(), 5353);
/// Of a service that comes and goes.
const MORE: SocketAddr = SocketAddr::new(WEB4.ip(), pool::MORE_PORT);
/// Connections that are held at a time, at most.
const HELD: usize = 80;
/// Flows of datagrams that are held at a time, at most.
const FLOWS: usize = 24;
/// For so long what a flood has begun may be known.
const HALF_OPEN: Duration = Duration::from_secs(200);

/// What a start says of connections that could not be written down before it.
const LOST: &str = "began while the disc was full";

/// Of what `weir status` has in all, counters, and what belongs to one process.
const COUNTED: &[&str] = &[
    "pid",
    "uptime_seconds",
    "resumed",
    "lost",
    "by_interface",
    "agents_turned_away",
    "agents_refused",
    "outcomes",
    "returned",
    "ids",
    "consistency",
    "unrecorded_flows",
    "bare_packets",
    "reports",
    "pending_flows",
    "table_bytes_used",
    "tables_moved",
    "table_bytes_moved",
    "tables_packed",
    "table_bytes_packed",
];
/// The same of a service, and what its table is like, which depends on the connections that it has had.
const COUNTED_OF_A_SERVICE: &[&str] = &[
    "generation",
    "digest",
    "states",
    "published_states",
    "young",
    "forgotten_young",
    "untold",
    "half_open",
    "forgotten_half_open",
    "refused_states",
    "refused_of_prefix",
    "table_bytes",
    "control_bytes",
    "last_update_ms",
    "slots",
    "tracking",
];
/// The same of a backend.
const COUNTED_OF_A_BACKEND: &[&str] = &["states", "packets", "bytes", "flows", "load"];
/// The same of its check.
const COUNTED_OF_A_CHECK: &[&str] =
    &["detail", "last", "checks", "failed", "last_error", "last_error_seconds", "seconds", "rise"];
/// What a restart goes on from, in the run directory; all else there is of the data plane in memory.
const SAVED: [&str; 4] = ["runtime.json", "runtime.log", "history.json", "history"];

const FIELDS: &[&str] = &[
    "method = \"concury\"",
    "method = \"concury\"\nidle_timeout = \"7m\"",
    "method = \"concury\"\ndcode_bits = 10",
    "method = \"tracked\"",
    "method = \"tracked\"\ntable_size = 997",
    "method = \"residue\"",
    "method = \"residue\"\nrows = 4096",
];

/// What the file says.
#[derive(Clone, Debug)]
struct File {
    fields: &'static str,
    tracked_flows: u32,
    table_bytes: u64,
    /// Whether maps are so small that they are full at once.
    small: bool,
    /// Whether the service is there that comes and goes.
    more: bool,
    pool: Pool,
}

struct World {
    lab: Arc<Lab>,
    balancer: Balancer,
    disc: Disc,
    file: File,
    resets: Resets,
    held: Vec<Held>,
    flows: Vec<Flow>,
    /// When floods have begun connections, and how many.
    floods: Vec<(Instant, u32)>,
    kinds: Vec<u32>,
    random: StdRng,
}

impl World {
    fn new(seed: u64) -> Self {
        let more_ports = vec![pool::MORE_PORT];
        let lab = LabSpec { backends: BACKENDS, clients: 2, more_ports, ..LabSpec::default() };
        let lab = common::lab_of(lab);
        let balancer = common::start_spec(&lab, BalancerSpec::new(common::WEIR, STEADY));
        // Anew, with a run directory that can be full.
        balancer.stop(common::PATIENCE);
        let name = format!("wl{}", lab.id());
        assert!(common::weir(&["unload", "--name", &name]).status.success());
        let disc = Disc::mount(&balancer.config().parent().unwrap().join("weir"));
        balancer.launch().unwrap();
        let file = File {
            fields: FIELDS[0],
            tracked_flows: 20_000,
            table_bytes: 20 << 20,
            small: false,
            more: false,
            pool: (0..STEADY).map(|backend| (backend, (1, false))).collect(),
        };
        let kinds = match std::env::var("WEIR_KINDS") {
            Ok(text) => text.split(',').map(|kind| kind.parse().unwrap()).collect(),
            Err(_) => (0..22).collect(),
        };
        // While there was none its kernel has reset what came.
        let resets = Resets::watch(&lab).unwrap();
        let (held, flows, floods) = (Vec::new(), Vec::new(), Vec::new());
        let random = StdRng::seed_from_u64(seed);
        Self { lab, balancer, disc, file, resets, held, flows, floods, kinds, random }
    }

    fn text(&self, file: &File) -> String {
        let File { fields, tracked_flows, table_bytes, small, more, pool } = file;
        let small = match small {
            true => "pending_flows = 16\nudp_flows = 16\nhalf_open_flows = 200\n",
            false => "",
        };
        let limits = format!(
            "tracked_flows = {tracked_flows}\ntable_bytes = {table_bytes}\n\
             states_per_service = 200000\n{small}"
        );
        let mut services = SERVICES.map(|service| (service, pool)).to_vec();
        services.extend(more.then_some(("more", pool)));
        pool::text(&self.balancer, &limits, &services, fields, pool::CHECKED)
    }

    fn write(&self, file: &File) {
        fs::write(self.balancer.config(), self.text(file)).unwrap();
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

    /// How many connections floods have begun of late.
    fn flooded(&self) -> u32 {
        self.floods.iter().filter(|(at, _)| at.elapsed() < HALF_OPEN).map(|(_, count)| count).sum()
    }

    /// Other fields. The table of `tracked` has room for what it takes over, or it would forget connections.
    fn other_fields(&mut self) -> &'static str {
        let room = self.flooded() * 4 <= self.file.tracked_flows;
        loop {
            let fields = *FIELDS.choose(&mut self.random).unwrap();
            if room || !fields.contains("tracked") {
                return fields;
            }
        }
    }

    /// Another pool, of which the steady ones are part.
    fn other_pool(&mut self) -> Pool {
        let mut pool = Pool::new();
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
                let fields = self.other_fields();
                let file = File { fields, pool: self.other_pool(), ..self.file.clone() };
                let said = format!("a reload with {fields:?} and the pool {:?}", file.pool);
                self.reload(file);
                said
            }
            4 => {
                let mut sizes = vec![5_000, 20_000, 100_000];
                sizes.retain(|size| self.flooded() * 4 <= *size);
                let size = sizes.choose(&mut self.random);
                let tracked_flows = *size.unwrap_or(&self.file.tracked_flows);
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
                let file = File { fields: self.other_fields(), ..self.file.clone() };
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
                let fields = self.other_fields();
                let room = self.random.random_range(0..30) * 4096;
                self.disc.leave(room);
                let file = File { fields, ..self.file.clone() };
                self.write(&file);
                let reloaded = self.command("reload").is_ok();
                let opened = self.open(4);
                self.check("the disc is full");
                self.balancer.kill();
                self.disc.empty();
                self.balancer.launch().unwrap();
                self.file = file;
                let told = self.let_go(opened);
                format!(
                    "a full disc; commands went through: {answers:?}; a reload with {fields:?} and \
                     {room} bytes: {reloaded}; a SIGKILL; some are not known: {told}"
                )
            }
            12 | 21 => self.flood(),
            18 => self.fill_maps(),
            19 => self.second_of_the_name(),
            20 => self.turn_more(),
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
        let fields = self.other_fields();
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

    /// Frames of flows from addresses of 198.18.0.0/15, which nobody has.
    fn strangers(&mut self, flags: TcpFlags, count: u32) -> Vec<Vec<u8>> {
        let random = &mut self.random;
        let frame = |_| {
            let address = Ipv4Addr::from(0xc612_0000 | random.random_range(0..1 << 17));
            let from = (IpAddr::V4(address), random.random_range(1..=u16::MAX)).into();
            let frame = Frame::new(FlowKey::new(from, WEB4, Protocol::Tcp));
            frame.macs(BALANCER_MAC, CLIENT_MAC).tcp_flags(flags).build()
        };
        (0..count).map(frame).collect()
    }

    /// SYNs and ACKs of such: half-open connections, and packets of connections that were never there.
    fn flood(&mut self) -> String {
        let syns = *[500, 5_000, 25_000].choose(&mut self.random).unwrap();
        // A table of connections forgets who was silent longest (docs/tracked.md): it is not flooded as a whole.
        let (syns, acks) = match self.file.fields.contains("tracked") {
            true => (syns.min(self.file.tracked_flows / 8), self.file.tracked_flows / 8),
            false => (syns, 100_000),
        };
        let sender = FrameSender::open(&self.lab.clients()[0], INTERFACE).unwrap();
        self.floods.push((Instant::now(), syns));
        for (flags, count) in [(TcpFlags::SYN, syns), (TcpFlags::ACK, acks)] {
            sender.send(&self.strangers(flags, count)).unwrap();
            self.open(4);
            self.check("in a flood");
        }
        format!("a flood of {syns} SYNs and one of {acks} ACKs")
    }

    /// The sum of a number over what the status shows.
    fn counted(&self, name: &str) -> u64 {
        let status = self.balancer.status().unwrap();
        let services = status["services"].as_array().unwrap().iter();
        services.map(|service| service[name].as_u64().unwrap()).sum()
    }

    /// Maps that are so small that they are full while the pool changes: who finds no room begins again, and what
    /// was there stays.
    fn fill_maps(&mut self) -> String {
        if self.file.fields.contains("tracked") {
            return "nothing".into();
        }
        let former = self.file.clone();
        self.reload(File { small: true, ..former.clone() });
        let sender = FrameSender::open(&self.lab.clients()[0], INTERFACE).unwrap();
        let frames = self.strangers(TcpFlags::SYN, 64);
        self.floods.push((Instant::now(), 400));
        let refused = || common::dropped(&self.balancer.status().unwrap(), "pending_full");
        let (before, forgotten) = (refused(), self.counted("forgotten_half_open"));
        let stop = AtomicBool::new(false);
        let (mut rounds, started) = (0, Instant::now());
        thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || {
                let mut frames = frames;
                while !stop.load(Ordering::Relaxed) {
                    sender.send(&frames).unwrap();
                    // Others the next time: the same address, from another port.
                    for frame in &mut frames {
                        let port =
                            u16::from_be_bytes([frame[34], frame[35]]).wrapping_add(1).max(1);
                        frame[34..36].copy_from_slice(&port.to_be_bytes());
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
            // It is full when it has refused somebody.
            while common::dropped(&self.balancer.status().unwrap(), "pending_full") == before
                || self.counted("forgotten_half_open") == forgotten
            {
                if started.elapsed() > common::PATIENCE {
                    break;
                }
                rounds += 1;
                for service in SERVICES {
                    let weight = self.random.random_range(1..9);
                    self.command(&format!("backend weight {service} b0 {weight}")).unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(started.elapsed() < common::PATIENCE, "no map was full in {rounds} rounds");
        common::eventually("whoever looks is told of what was refused", || {
            common::log(&self.balancer).contains("first packets were dropped (pending_full)")
        });
        drop(common::flows(&self.lab, ECHO, 40));
        self.open(4);
        self.check("maps are full");
        self.reload(former);
        format!("maps that were full after {rounds} rounds")
    }

    /// Another instance of the same name, which has a run directory of its own, takes nothing over.
    fn second_of_the_name(&mut self) -> String {
        let own = self.balancer.run_dir().to_str().unwrap().to_owned();
        let (another, file) =
            (self.lab.directory().join("another"), self.lab.directory().join("another.toml"));
        let text = self.text(&self.file).replace(&own, another.to_str().unwrap());
        assert!(text.contains(another.to_str().unwrap()), "{text}");
        fs::write(&file, text).unwrap();
        let second = common::weir_in(&self.lab, &["run", "--config", file.to_str().unwrap()]);
        let said = common::stderr(&second);
        assert!(!second.status.success() && said.contains("an instance of this name"), "{said}");
        assert!(!another.exists(), "{} is there", another.display());
        let unloaded = common::weir_in(&self.lab, &["unload", "--name", self.balancer.name()]);
        assert!(!unloaded.status.success(), "unloaded beside an instance that runs");
        "a second instance of the name, with a run directory of its own".into()
    }

    /// A service is added, or removed, by a command.
    fn turn_more(&mut self) -> String {
        let file = File { more: !self.file.more, ..self.file.clone() };
        // Nobody's connections are there when it goes.
        self.held.retain(|one| one.target != MORE);
        let path = self.lab.directory().join("applied.toml");
        fs::write(&path, self.text(&file)).unwrap();
        self.command(&format!("apply {}", path.display()))
            .unwrap_or_else(|error| panic!("{error}"));
        self.file = file;
        if self.file.more {
            self.held.extend(common::hold(&self.lab, MORE, 4));
        }
        format!("one service more: {}", self.file.more)
    }

    /// Opens so many connections, and half as many flows: the last of those that are held. Returns how many these are.
    fn open(&mut self, count: usize) -> [usize; 2] {
        let held = common::hold_both(&self.lab, count);
        let flows = common::flows(&self.lab, ECHO, count / 2);
        let opened = [held.len(), flows.len()];
        self.held.extend(held);
        let more = self.held.len().saturating_sub(HELD);
        self.held.drain(..more);
        self.flows.extend(flows);
        let more = self.flows.len().saturating_sub(FLOWS);
        self.flows.drain(..more);
        opened
    }

    /// What began while the disc was full, and could not be written down before a SIGKILL, a change of the pool may
    /// break (docs/operations.md, How much room on the disc): if the start after it says so, and only then.
    fn let_go(&mut self, opened: [usize; 2]) -> bool {
        let status = self.balancer.status().unwrap();
        let mut warnings = status["warnings"].as_array().into_iter().flatten();
        let told = warnings.any(|one| one.to_string().contains(LOST));
        if told {
            self.held.truncate(self.held.len() - opened[0]);
            self.flows.truncate(self.flows.len() - opened[1]);
        }
        told
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
        let (mut resets, lost) = self.resets.take();
        // What comes for a service that is gone is the kernel's.
        resets.retain(|(service, _)| *service != MORE);
        assert!(
            resets.is_empty() && lost == 0,
            "{when}: reset by the balancer: {resets:?}, {lost}\nweir's log ends:\n{log}"
        );
    }

    /// All that `weir status` has to say, but for counters and times, and for what stands in `besides`.
    fn shown(&self, besides: &[&str]) -> Value {
        let strip = |value: &mut Value, names: &[&str]| {
            let all = value.as_object_mut().expect("an object");
            all.retain(|name, _| {
                !names.contains(&name.as_str()) && !besides.contains(&name.as_str())
            });
        };
        let mut status = self.balancer.status().unwrap();
        strip(&mut status, COUNTED);
        for service in status["services"].as_array_mut().expect("services") {
            strip(service, COUNTED_OF_A_SERVICE);
            for backend in service["backends"].as_array_mut().expect("backends") {
                strip(backend, COUNTED_OF_A_BACKEND);
                strip(&mut backend["check"], COUNTED_OF_A_CHECK);
            }
        }
        status
    }

    /// What there is to say of each service.
    fn services(&self) -> Value {
        self.shown(&[])["services"].take()
    }

    /// Removes all of the run directory but the files named.
    fn wipe(&self, keep: &[&str]) {
        for file in fs::read_dir(&self.disc.0).unwrap() {
            let path = file.unwrap().path();
            if keep.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            let removed =
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            removed.unwrap();
        }
    }

    /// Ends, forgets the data plane and all of its run directory but the files named, and starts anew.
    fn start_anew(&mut self, keep: &[&str]) {
        (self.held, self.flows) = (Vec::new(), Vec::new());
        self.balancer.stop(common::PATIENCE);
        assert!(common::weir(&["unload", "--name", self.balancer.name()]).status.success());
        self.wipe(keep);
        self.balancer.launch().unwrap();
        self.lab.await_service(common::PATIENCE).unwrap();
        self.resets.take();
    }

    fn are_up(&self) -> bool {
        let status = self.balancer.status().unwrap();
        let services = status["services"].as_array().unwrap().iter();
        let mut backends = services.flat_map(|service| service["backends"].as_array().unwrap());
        // Where there was no cable a moment ago, checks that could not be made say nothing yet.
        backends
            .all(|backend| backend["check"]["up"] == true && backend["check"]["unknown"] != true)
    }

    /// What a full disc has lost before this start is not to be had again.
    fn settled(&self, when: &str) {
        common::eventually(when, || {
            let status = self.balancer.status().unwrap();
            let mut warnings = status["warnings"].as_array().into_iter().flatten();
            // One that has just joined waits for its first check.
            self.are_up() && warnings.all(|one| one.to_string().contains(LOST))
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
    // What commands have changed is known to a restart, too. (Of warnings, see above.)
    let before = world.shown(&["warnings"]);
    world.balancer.kill();
    world.balancer.launch().unwrap();
    world.settled("nothing is left to be done after a restart");
    assert_eq!(world.shown(&["warnings"]), before, "after a restart");
    world.check("after a restart");
    // And to one that finds no data plane, and nothing but what was written down of changes.
    world.start_anew(&SAVED);
    world.settled("nothing is left to be done after a start from what was saved");
    assert_eq!(world.shown(&["warnings"]), before, "after a start from what was saved");
    world.open(40);
    world.reload(world.file.clone());
    world.check("at the end");
    // What the file says is what a start from nothing makes of it, but for numbers that were given out.
    let numbers = ["number", "change"];
    let before = world.shown(&numbers);
    world.start_anew(&[]);
    world.settled("nothing is left to be done after a start from nothing");
    assert_eq!(world.shown(&numbers), before, "after a start from nothing");
    world.open(40);
    world.check("after a start from nothing");
}

/// A first start that cannot write down what the next one must know is refused and leaves nothing: no start could take
/// over what it would forward by. One that is not refused can be gone on from.
#[test]
fn a_first_start_on_a_full_disc_is_refused_or_can_be_gone_on_from() {
    let _alone = common::alone();
    let mut world = World::new(common::seed());
    world.balancer.stop(common::PATIENCE);
    let unload = |world: &World| {
        assert!(common::weir(&["unload", "--name", world.balancer.name()]).status.success());
    };
    unload(&world);
    let mut refused = 0;
    for blocks in 0.. {
        assert!(blocks < 100, "it starts when there is room");
        // As if it had never been started.
        world.wipe(&[]);
        world.disc.fill();
        world.disc.leave(blocks * 4096);
        let Err(error) = world.balancer.launch() else { break };
        let said = error.to_string();
        for words in ["runtime.json", "No space left", "nothing has changed"] {
            assert!(said.contains(words), "{blocks} blocks: {said}");
        }
        assert!(!world.balancer.pins().exists(), "{blocks} blocks: its pins are there");
        let left = fs::read_dir(&world.disc.0).unwrap();
        let left: Vec<_> = left.map(|one| one.unwrap().file_name()).collect();
        assert_eq!(left, ["filler"], "{blocks} blocks");
        world.balancer.kill();
        refused += 1;
    }
    assert!(refused > 0, "without any room");
    world.balancer.kill();
    world.balancer.launch().unwrap();
    assert_eq!(world.balancer.status().unwrap()["resumed"], true);
    // What was written down before the disc became full is enough, too.
    world.balancer.stop(common::PATIENCE);
    unload(&world);
    world.wipe(&SAVED);
    world.disc.fill();
    world.balancer.launch().unwrap();
    world.lab.await_service(common::PATIENCE).unwrap();
    world.resets.take();
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

/// Nor does it keep a restart from looking after backends: what that finds the next one finds, too. What could not be
/// kept is refused, and what was in force goes on in its place.
#[test]
fn a_restart_on_a_full_disc_looks_after_backends() {
    let _alone = common::alone();
    let mut world = World::new(common::seed());
    world.open(40);
    world.command("backend weight web4 b1 7").unwrap();
    let good = fs::read_to_string(world.balancer.config()).unwrap();
    let late = "\n[[service]]\nname = \"late\"\nvip = \"10.77.0.101\"\nport = 4\n\
                [[service.backend]]\nname = \"b0\"\naddress = \"10.77.2.1\"\n";
    let more = good.clone() + late;
    for (file, words) in [(&good, "forgets changes"), (&more, "would be refused")] {
        world.balancer.kill();
        world.disc.fill();
        fs::write(world.balancer.config(), file).unwrap();
        world.balancer.launch().unwrap();
        let status = world.balancer.status().unwrap();
        let said = status["warnings"].to_string();
        assert!(said.contains(words) && said.contains("runtime.json"), "{said}");
        assert_eq!(common::backend(common::service(&status, "web4"), "b1")["weight"], 7);
        assert!(world.command("backend drain web4 b1").is_err(), "it could not be kept");
        world.open(10);
        world.check("after a restart on a full disc");
        common::eventually("backends are looked after", || world.are_up());
        world.disc.empty();
        fs::write(world.balancer.config(), &good).unwrap();
        common::eventually("there is room", || {
            let said = world.balancer.status().unwrap()["warnings"].to_string();
            !said.contains("forgets changes")
        });
        world.command("reload").unwrap();
        world.settled("all is written down");
        world.command("backend weight web4 b1 7").unwrap();
        world.check("with room again");
    }
}

/// What goes by the calendar, because people and certificates do, and decides nothing about packets.
const BY_THE_CALENDAR: [&str; 22] = [
    // When something happened, was asked for, or was counted.
    "control/src/api/audit.rs",
    "control/src/api/watch.rs",
    "control/src/engine/events.rs",
    // Since when connections are not remembered.
    "control/src/engine/beyond.rs",
    "control/src/snapshot.rs",
    "control/src/otlp.rs",
    // When a change was made, also of a fleet.
    "control/src/engine/fleet.rs",
    "control/src/history.rs",
    "watch/src/history.rs",
    "watch/src/screen.rs",
    // When maintenance begins and ends, as an operator asks for it.
    "control/src/config/maintenance.rs",
    "control/src/engine/maintenance.rs",
    "control/src/engine/tests/maintenance.rs",
    // When a certificate ends, of a server, of this balancer, or of an agent, whose session ends with it.
    "weir/src/pki.rs",
    "rpc/src/tls.rs",
    "control/src/certificates.rs",
    "control/src/health/tls.rs",
    "control/src/engine/status.rs",
    // When a packet came that somebody looks at.
    "plane/src/trace.rs",
    "dataplane/src/kernel/trace.rs",
    "control/src/engine/trace.rs",
    "watch/src/words.rs",
];

/// Nothing of what runs beside packets decides by a clock that somebody can set: what is told by the
/// calendar is the time stamps of the log, which tracing makes, and what stands above. (A test that sets the machine's clock would set
/// everybody's, and a time namespace has no calendar of its own.)
#[test]
fn no_decision_is_made_by_a_clock_that_can_be_set() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let clocks = ["SystemTime", "UNIX_EPOCH", "CLOCK_REALTIME", "gettimeofday", "libc::time("];
    let kernel = ["bpf_ktime_get_tai_ns", "bpf_ktime_get_real"];
    let parts = "hash wire lookup placement steering plane dataplane control watch cli rpc";
    let parts = parts.split(' ').map(|part| root.join("crates").join(part));
    let verbs = ["weir/src", "crates/agent/src/work.rs"].map(|part| root.join(part));
    let mut open: Vec<PathBuf> = parts.chain(verbs).collect();
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

/// What is in the place of the control socket is found before anything is made or changed, and said.
#[test]
fn a_start_without_a_place_for_its_socket_changes_nothing() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start_spec(&lab, BalancerSpec::new(common::WEIR, 2));
    balancer.stop(common::PATIENCE);
    assert!(common::weir(&["unload", "--name", balancer.name()]).status.success());
    let (run_dir, socket) = (balancer.run_dir(), balancer.socket());
    fs::remove_dir_all(run_dir).unwrap();
    let config = balancer.config().display().to_string();
    let refused = || {
        fs::create_dir_all(socket.join("there")).unwrap();
        let output = common::weir_in(&lab, &["run", "--config", &config]);
        let said = common::stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("weir.sock: a directory is there; remove it"), "{said}");
    };
    refused();
    assert!(!balancer.pins().exists(), "its pins are there");
    let left: Vec<_> = fs::read_dir(run_dir).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert_eq!(left, ["weir.sock"]);
    fs::remove_dir_all(&socket).unwrap();
    balancer.launch().unwrap();
    lab.await_service(common::PATIENCE).unwrap();
    let mut held = common::hold(&lab, WEB4, 20);
    // Nor does it change what an earlier run has left.
    balancer.kill();
    let _ = fs::remove_file(&socket);
    refused();
    common::assert_unbroken(&mut held, "after a start that was refused", &balancer);
    fs::remove_dir_all(&socket).unwrap();
    balancer.launch().unwrap();
    common::assert_unbroken(&mut held, "after a start", &balancer);
}
