//! Several balancers of one fleet behind a router that spreads flows over them by ports, with etcd between them.
//! Each runs `weir run` as an operator would, with `[store] kind = "etcd"`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::agent;
use crate::balancer::{self, Balancer, BalancerSpec, Node, PoolControl, SERVICES, address};
use crate::error::{Doing, Error, Result};
use crate::lab::Lab;
use crate::topology::{Role, STORE4, Topology, VIP4, VIP6, front4, front6};
use weir_testbed::interrupt::sleep;
use weir_testbed::process;

/// Where etcd listens for balancers.
const CLIENT_PORT: u16 = 2379;
/// Where it would listen for other members of its cluster.
const PEER_PORT: u16 = 2380;
/// From one event to the next.
const EVENT_GAP: Duration = Duration::from_secs(3);
/// A router notices within this time that a balancer is dead.
const UNNOTICED: Duration = Duration::from_secs(1);
/// A step of the pools that an event has met is given up after so long: flows start again (docs/fleet.md, In step), by
/// tables that may differ, and those are not to move.
const GIVEN_UP: Duration = Duration::from_secs(3);
/// From the beginning of an event until flows move.
const MOVED_AFTER: Duration = Duration::from_secs(2);
/// What an event has disturbed is as before within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// A fleet that is changed again and again is of one mind in between only: if it was not by then, the next change waits
/// until it is.
const CALM: Duration = Duration::from_secs(10);
/// A change that was refused for a reason that passes is asked for again for so long: it may meet a whole event.
const CHANGE_PATIENCE: Duration = Duration::from_secs(180);
/// From such a refusal to the next try.
const AGAIN: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(50);

/// Why a change is refused, or not answered for, while something is away and the fleet otherwise well: what the answer
/// says, and whether the change may have been made all the same.
const PASSES: [(&str, bool); 4] = [
    ("the store cannot be reached", false),
    ("the store has not answered", true),
    ("another balancer has changed the configuration", false),
    ("it is not done yet", true),
];
/// The same of a control plane that was killed before it answered.
const NOBODY: &str = "the control plane that was asked is away";

/// The balancers of a lab of the topology `fleet`. Changes of the pool are made to one of them, a different one
/// each time.
#[derive(Debug)]
pub struct Fleet {
    lab: Arc<Lab>,
    balancers: Vec<Balancer>,
    store: Mutex<Option<Child>>,
    folder: PathBuf,
    /// Balancers that the router does not lead to, and that are not asked: their machines are off, or they
    /// cannot reach the store.
    away: Mutex<BTreeSet<usize>>,
    turn: AtomicUsize,
    dice: Mutex<StdRng>,
    /// Held through events, one at a time: the crash of all control planes is one, too.
    events: Mutex<()>,
    /// Held by each change of the pool, and by what no change is to meet.
    commanding: Mutex<()>,
    /// Held while a balancer is cut off from the store, and until it follows the others again.
    apart: Mutex<()>,
    /// How often the control plane of each balancer was killed and started: an odd number while it is away.
    crashes: Vec<AtomicUsize>,
    /// How many changes were refused at first, by the reasons.
    refused: Mutex<BTreeMap<&'static str, u64>>,
    /// Held while control planes are away.
    watching: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// Starts etcd, then all balancers by this example, and waits until a client reaches the service. The
    /// first balancer's services are those of the fleet.
    ///
    /// # Errors
    /// [`Error::BadSpec`] in another topology, and as [`Balancer::start`].
    pub fn start(lab: &Arc<Lab>, example: &BalancerSpec, seed: u64) -> Result<Self> {
        if lab.spec().topology != Topology::Fleet {
            return Err(Error::BadSpec("a fleet needs the topology fleet".into()));
        }
        let folder = lab.directory().join("etcd");
        fs::create_dir_all(&folder).doing(|| format!("creating {}", folder.display()))?;
        let mut fleet = Self {
            lab: Arc::clone(lab),
            balancers: Vec::new(),
            store: Mutex::default(),
            folder,
            away: Mutex::default(),
            turn: AtomicUsize::new(0),
            dice: Mutex::new(StdRng::seed_from_u64(seed)),
            events: Mutex::default(),
            commanding: Mutex::default(),
            apart: Mutex::default(),
            crashes: (0..lab.spec().balancers).map(|_| AtomicUsize::new(0)).collect(),
            refused: Mutex::default(),
            watching: Mutex::default(),
        };
        fleet.launch_store()?;
        for index in 0..lab.spec().balancers {
            let mut store = format!(
                "{}\n[store]\nkind = \"etcd\"\nendpoints = [\"http://{STORE4}:{CLIENT_PORT}\"]\n",
                example.balancer_lines
            );
            if lab.spec().agent.as_ref().is_some_and(|agent| agent.tells) {
                store += &agent::told(&lab.directory().join("pki"), index);
            }
            let spec = BalancerSpec {
                node: Node::Member(index),
                balancer_lines: store,
                ..example.clone()
            };
            fleet.balancers.push(Balancer::start_alone(lab, spec)?);
            fleet.await_agreement(index + 1, example.patience)?;
        }
        fleet.lead_evenly()?;
        lab.await_service(example.patience)?;
        Ok(fleet)
    }

    /// The balancers, in order.
    pub fn balancers(&self) -> &[Balancer] {
        &self.balancers
    }

    /// Waits until the first `many` balancers follow the same change, with the same tables.
    ///
    /// # Errors
    /// [`Error::NotReady`].
    pub fn await_agreement(&self, many: usize, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            let why = match self.disagreement(many) {
                Ok(None) => return Ok(()),
                Ok(Some(why)) => why,
                Err(error) => error.to_string(),
            };
            if begun.elapsed() > limit {
                return Err(Error::NotReady {
                    what: "the fleet".into(),
                    seconds: limit.as_secs_f64(),
                    detail: format!(": {why}"),
                });
            }
            if !sleep(POLL) {
                return Err(Error::Interrupted);
            }
        }
    }

    /// Whether a fleet that says this of itself is one: with `cheetah` tables are alike as soon as all follow the
    /// same, with `concury` and `residue` when the last step is over; with others they also show what each balancer has seen.
    fn is_agreed(&self, status: &serde_json::Value) -> bool {
        // Of the services of TCP, where those of UDP have another method.
        let cares = |said: &serde_json::Value| {
            let said = said.as_str().unwrap_or_default();
            self.balancers[0].spec().udp_method.is_none() || !said.contains("service echo")
        };
        let alike = status["disagreements"].as_array();
        let alike = alike.is_some_and(|said| !said.iter().any(cares));
        let all = status["balancers"].as_array().map_or(&[][..], Vec::as_slice);
        let behind = all.iter().any(|one| one["role"] == "behind");
        // Whoever waits for what agents know takes no packets yet.
        let learns = all.iter().any(|one| one["role"] != "away" && one["sign"]["steps"] != true);
        let behind =
            behind || learns && self.lab.spec().agent.as_ref().is_some_and(|agent| agent.tells);
        let one = ["cheetah", "concury", "residue"].contains(&&self.balancers[0].spec().method[..]);
        let over = status["step"]["stage"].as_str().is_none_or(|stage| stage == "done");
        status["reachable"] == true && !behind && over && (alike || !one)
    }

    /// In what the balancers differ, or what is missing.
    fn disagreement(&self, many: usize) -> Result<Option<String>> {
        for balancer in &self.balancers[..many] {
            let text = balancer.command(&["fleet", "status", "--json"])?;
            let status: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
                Error::BadFile { path: "weir fleet status --json".into(), what: error.to_string() }
            })?;
            let all = status["balancers"].as_array().map_or(&[][..], Vec::as_slice);
            let serving = all.iter().filter(|one| one["role"] == "serves").count();
            let tables = all.iter().all(|one| {
                let services = one["sign"]["services"].as_array();
                one["role"] == "away" || services.is_some_and(|all| all.len() >= SERVICES.len())
            });
            if !(tables && serving >= many && self.is_agreed(&status)) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    fn launch_store(&self) -> Result<()> {
        let Some(router) = self.lab.router() else {
            return Err(Error::BadSpec("the topology fleet has a router".into()));
        };
        let path = self.folder.join("log");
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.doing(|| format!("opening {}", path.display()))?;
        let second = log.try_clone().doing(|| format!("opening {}", path.display()))?;
        let (client, peer) =
            (format!("http://{STORE4}:{CLIENT_PORT}"), format!("http://127.0.0.1:{PEER_PORT}"));
        let mut etcd = router.command("etcd")?;
        etcd.arg("--data-dir")
            .arg(self.folder.join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second);
        *lock(&self.store) = Some(process::spawn(etcd)?);
        Ok(())
    }

    /// Kills etcd with SIGKILL.
    pub fn kill_store(&self) {
        if let Some(mut store) = lock(&self.store).take() {
            process::kill(&mut store);
        }
    }

    /// Starts it again, with the data that it had.
    ///
    /// # Errors
    /// What the system said.
    pub fn revive_store(&self) -> Result<()> {
        self.launch_store()
    }

    /// Lets etcd stand still, or go on.
    pub fn pause_store(&self, pause: bool) {
        if let Some(store) = &*lock(&self.store) {
            let signal = if pause { Signal::SIGSTOP } else { Signal::SIGCONT };
            // It may have ended, which its next use shows.
            let _ = kill(Pid::from_raw(store.id() as i32), signal);
        }
    }

    /// Makes the router spread flows over the balancers by these weights; those with 0 get none.
    ///
    /// # Errors
    /// What the system said.
    pub fn lead(&self, weights: &[u32]) -> Result<()> {
        let Some(router) = self.lab.router() else { return Ok(()) };
        let hops = |of: &dyn Fn(usize) -> String| -> String {
            let with = weights.iter().enumerate().filter(|(_, weight)| **weight > 0);
            with.map(|(at, weight)| format!(" nexthop via {} weight {weight}", of(at))).collect()
        };
        let (v4, v6) = (hops(&|at| front4(at).to_string()), hops(&|at| front6(at).to_string()));
        Ok(router.ip(&format!("route replace {VIP4}/32{v4}\nroute replace {VIP6}/128{v6}\n"))?)
    }

    /// As at first: evenly, over those that are there.
    ///
    /// # Errors
    /// What the system said.
    pub fn lead_evenly(&self) -> Result<()> {
        let away = lock(&self.away).clone();
        let weights: Vec<u32> =
            (0..self.balancers.len()).map(|at| u32::from(!away.contains(&at))).collect();
        self.lead(&weights)
    }

    /// By weights that are drawn: most flows go by another balancer afterwards than before.
    ///
    /// # Errors
    /// What the system said.
    pub fn reshuffle(&self) -> Result<()> {
        let away = lock(&self.away).clone();
        let mut dice = lock(&self.dice);
        let draw = |at| if away.contains(&at) { 0 } else { dice.random_range(1..=20) };
        let weights: Vec<u32> = (0..self.balancers.len()).map(draw).collect();
        drop(dice);
        self.lead(&weights)
    }

    /// A balancer dies as a machine does whose power fails, and the router notices it within a second.
    ///
    /// # Errors
    /// What the system said.
    pub fn die(&self, member: usize) -> Result<()> {
        self.lose_power(member)?;
        let unnoticed = lock(&self.dice).random_range(Duration::ZERO..UNNOTICED);
        sleep(unnoticed);
        self.lead_evenly()
    }

    /// A balancer dies, and the router goes on leading flows to it, until it is told to lead elsewhere
    /// ([`lead_evenly`](Self::lead_evenly)).
    ///
    /// # Errors
    /// What the system said.
    pub fn lose_power(&self, member: usize) -> Result<()> {
        lock(&self.away).insert(member);
        // A bridge floods frames for whom it does not know, and it forgets who is behind a port that goes down: other
        // balancers would take these packets, and backends would see SYNs that were led to none of them.
        let role = Self::role(member);
        let mac = role.mac().map(|byte| format!("{byte:02x}")).join(":");
        let mut bridge = self.lab.switch().command("bridge")?;
        bridge.args(["fdb", "replace", &mac, "dev", &role.name(), "master", "static"]);
        process::run(bridge, "")?;
        self.set_port(member, "down")?;
        self.balancers[member].kill();
        Ok(())
    }

    /// One that died is back, knows nothing of any connection, and gets flows once it serves.
    ///
    /// # Errors
    /// What the system said.
    pub fn revive(&self, member: usize) -> Result<()> {
        self.set_port(member, "up")?;
        let netns = self.lab.front(member);
        let weir = self.balancers[member].program();
        let mut unload = netns.command(weir)?;
        unload.args(["unload", "--name", self.balancers[member].name()]);
        process::run(unload, "")?;
        let _ = fs::remove_dir_all(self.balancers[member].run_dir());
        fs::create_dir_all(self.balancers[member].run_dir())
            .doing(|| "creating a run directory".into())?;
        self.balancers[member].launch()?;
        self.await_agreement_of(member)?;
        lock(&self.away).remove(&member);
        self.lead_evenly()
    }

    fn await_agreement_of(&self, member: usize) -> Result<()> {
        let (mut begun, mut calm) = (Instant::now(), None);
        loop {
            let text = self.balancers[member].command(&["fleet", "status", "--json"])?;
            let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            if self.is_agreed(&status) {
                return Ok(());
            }
            if calm.is_none() && begun.elapsed() > CALM {
                calm = Some(lock(&self.commanding));
                begun = Instant::now();
            }
            if begun.elapsed() > PATIENCE {
                return Err(Error::NotReady {
                    what: format!("balancer {member}"),
                    seconds: PATIENCE.as_secs_f64(),
                    detail: " in the fleet".into(),
                });
            }
            if !sleep(POLL) {
                return Err(Error::Interrupted);
            }
        }
    }

    /// Cuts a balancer off from the store, or joins it again. It goes on forwarding.
    ///
    /// # Errors
    /// What the system said.
    pub fn cut_off(&self, member: usize, off: bool) -> Result<()> {
        let verb = if off { "add" } else { "del" };
        Ok(self.lab.front(member).ip(&format!("route {verb} blackhole {STORE4}/32\n"))?)
    }

    fn role(member: usize) -> Role {
        if member == 0 { Role::Balancer } else { Role::Front(member) }
    }

    fn set_port(&self, member: usize, state: &str) -> Result<()> {
        let port = Self::role(member).name();
        Ok(self.lab.switch().ip(&format!("link set {port} {state}\n"))?)
    }

    /// Does some work while balancers die and come back, are cut off from the store, flows are spread anew, and
    /// the store stands still or dies. What goes wrong with that is an error, after the work.
    pub(crate) fn churned<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        crate::churn::beside(|over| self.churn(over), work)
    }

    fn churn(&self, over: &AtomicBool) -> Result<()> {
        let last = self.balancers.len() - 1;
        let steps: [(&str, &dyn Fn() -> Result<()>); 8] = [
            ("flows are spread anew", &|| self.reshuffle()),
            ("a balancer dies", &|| {
                // Whoever asks it is asked of no dead one.
                let _alone = lock(&self.commanding);
                self.die(last)
            }),
            ("it is back", &|| self.revive(last)),
            ("the store stands still", &|| self.store_away(true)),
            ("flows are spread anew", &|| self.reshuffle()),
            ("a balancer is cut off from the store", &|| self.cut_off_for_a_while(0)),
            ("a control plane is killed", &|| self.crash_one(1 % self.balancers.len())),
            ("the store dies", &|| self.store_away(false)),
        ];
        for (turn, (what, step)) in steps.iter().cycle().enumerate() {
            let began = Instant::now();
            while began.elapsed() < EVENT_GAP {
                if over.load(Ordering::Relaxed) || !sleep(POLL) {
                    return Ok(());
                }
            }
            let _alone = lock(&self.events);
            tracing::debug!("event {turn} of the fleet: {what}");
            step()?;
        }
        Ok(())
    }

    /// Moves flows to other balancers in an event that has begun then; not if the machine was so slow that a step may
    /// have been given up meanwhile.
    fn move_flows_in(&self, begun: Instant) -> Result<()> {
        sleep(MOVED_AFTER.saturating_sub(begun.elapsed()));
        if begun.elapsed() < GIVEN_UP - Duration::from_millis(200) {
            self.reshuffle()
        } else {
            Ok(())
        }
    }

    /// The store is away while flows are spread anew, and back.
    fn store_away(&self, pauses: bool) -> Result<()> {
        let begun = Instant::now();
        if pauses {
            self.pause_store(true)
        } else {
            self.kill_store()
        }
        self.move_flows_in(begun)?;
        sleep(EVENT_GAP);
        if pauses {
            self.pause_store(false)
        } else {
            self.revive_store()?
        }
        self.balancers.iter().enumerate().try_for_each(|(at, _)| self.await_agreement_of(at))
    }

    fn cut_off_for_a_while(&self, member: usize) -> Result<()> {
        let _apart = lock(&self.apart);
        let begun = Instant::now();
        self.cut_off(member, true)?;
        self.move_flows_in(begun)?;
        sleep(EVENT_GAP);
        self.cut_off(member, false)?;
        self.await_agreement_of(member)
    }

    fn crash_one(&self, member: usize) -> Result<()> {
        let _away = lock(&self.watching);
        self.crashes[member].fetch_add(1, Ordering::SeqCst);
        self.balancers[member].crash(Duration::from_millis(500))?;
        self.crashes[member].fetch_add(1, Ordering::SeqCst);
        self.await_agreement_of(member)
    }

    /// Whether pools change in step: a change that was accepted is in force when all balancers can make it.
    fn is_in_step(&self) -> bool {
        ["concury", "residue"].contains(&&self.balancers[0].spec().method[..])
    }

    /// Asks one balancer for a change of every service, which reaches all. One that cannot make it, because it
    /// is out of touch with the store or another one was first, is not the last word.
    fn change(&self, arguments: impl Fn(&str) -> Vec<String>) -> Result<()> {
        let _alone = lock(&self.commanding);
        let mut reasons = BTreeSet::new();
        SERVICES.iter().try_for_each(|service| {
            let words = arguments(service);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.ask(&words, &mut reasons)
        })
    }

    /// A backend that is to serve does so when the change is in force: where pools change in step, not while a balancer
    /// is cut off. Nobody else is taken away in the belief that it does.
    fn await_step(&self) {
        if self.is_in_step() {
            drop(lock(&self.apart));
        }
    }

    /// Asks one balancer for a change; the next one, if that refuses it for one of the reasons that pass. Each counts
    /// once for a change.
    ///
    /// # Errors
    /// Any other refusal, or the last one.
    fn ask(&self, words: &[&str], reasons: &mut BTreeSet<&'static str>) -> Result<()> {
        let (begun, mut may_be_made) = (Instant::now(), false);
        loop {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.balancers.len();
            if lock(&self.away).contains(&turn) {
                continue;
            }
            let crashes = || self.crashes[turn].load(Ordering::SeqCst);
            let before = crashes();
            let Err(error) = self.balancers[turn].command(words) else { return Ok(()) };
            let text = error.to_string();
            if may_be_made && shows_it_made(words, &text) {
                return Ok(());
            }
            let crashed = (before % 2 == 1 || crashes() != before).then_some((NOBODY, true));
            let Some((reason, lost)) = crashed.or_else(|| passes(&text)) else {
                return Err(error);
            };
            if begun.elapsed() > CHANGE_PATIENCE {
                return Err(error);
            }
            if reasons.insert(reason) {
                *lock(&self.refused).entry(reason).or_default() += 1;
            }
            may_be_made |= lost;
            if !sleep(AGAIN) {
                return Err(Error::Interrupted);
            }
        }
    }

    /// The folder of etcd's data and log.
    pub fn store_folder(&self) -> &Path {
        &self.folder
    }
}

/// The reason of a refusal that passes, and whether the change may have been made all the same.
fn passes(said: &str) -> Option<(&'static str, bool)> {
    PASSES.into_iter().find(|(reason, _)| said.contains(reason))
}

/// Whether a command is refused because what it asks for is so already. To drain, or to give a weight, a second time is
/// refused by nobody.
fn shows_it_made(words: &[&str], said: &str) -> bool {
    match words {
        ["backend", "add", ..] => said.contains("already has a backend"),
        ["backend", "remove", ..] => said.contains("has no backend"),
        _ => false,
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

impl PoolControl for Fleet {
    /// Who is cut off does not hear of it, and would lead connections at that backend astray. So none is added
    /// meanwhile; where pools change in step one is, as the others have no connections there before that one has
    /// followed them.
    fn add(&self, backend: usize, weight: u32) -> Result<()> {
        let spec = self.balancers[0].spec();
        let _together = (!self.is_in_step()).then(|| lock(&self.apart));
        self.change(|service| {
            let at = address(service, spec, backend).to_string();
            words(&[
                "backend",
                "add",
                service,
                &format!("b{backend}"),
                &at,
                "--weight",
                &weight.to_string(),
            ])
        })?;
        self.await_step();
        Ok(())
    }

    fn remove(&self, backend: usize) -> Result<()> {
        self.change(|service| words(&["backend", "remove", service, &format!("b{backend}")]))
    }

    fn drain(&self, backend: usize) -> Result<()> {
        self.change(|service| words(&["backend", "drain", service, &format!("b{backend}")]))
    }

    fn undrain(&self, backend: usize) -> Result<()> {
        self.change(|service| {
            words(&["backend", "drain", service, &format!("b{backend}"), "--undo"])
        })?;
        self.await_step();
        Ok(())
    }

    fn set_weight(&self, backend: usize, weight: u32) -> Result<()> {
        let weight = weight.to_string();
        self.change(|service| {
            words(&["backend", "weight", service, &format!("b{backend}"), &weight])
        })
    }

    /// By a command: the file is the fleet's.
    fn reload_with_weight(&self, backend: usize, weight: u32) -> Result<()> {
        self.set_weight(backend, weight)
    }

    /// Of every control plane, at once.
    fn crash(&self, away: Duration) -> Result<()> {
        let _alone = lock(&self.events);
        let _away = lock(&self.watching);
        let off = lock(&self.away).clone();
        let there = || self.balancers.iter().enumerate().filter(|(at, _)| !off.contains(at));
        let count =
            || there().for_each(|(at, _)| _ = self.crashes[at].fetch_add(1, Ordering::SeqCst));
        count();
        there().for_each(|(_, one)| one.kill());
        sleep(away);
        there().try_for_each(|(_, one)| one.launch())?;
        count();
        there().try_for_each(|(at, _)| self.await_agreement_of(at))
    }

    fn while_watched(&self, work: &mut dyn FnMut()) {
        let _watched = lock(&self.watching);
        work();
    }

    fn has_noticed(&self, backend: usize) -> Result<bool> {
        let off = lock(&self.away).clone();
        let there = self.balancers.iter().enumerate().filter(|(at, _)| !off.contains(at));
        balancer::all_noticed(there.map(|(_, one)| one), backend)
    }

    fn refused(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.refused).clone()
    }

    /// Of one balancer: loads are each one's own.
    fn tell_load(&self, backend: usize, load: f64) -> Result<bool> {
        self.balancers[0].tell_load(backend, load)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.kill_store();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_asked_for_again_and_nothing_else() {
        assert_eq!(
            passes("weir: the store cannot be reached: no answer; nothing has changed"),
            Some(("the store cannot be reached", false))
        );
        let lost =
            "the store has not answered; whether it took the change, weir fleet status shows";
        assert_eq!(passes(lost), Some(("the store has not answered", true)));
        let first = "another balancer has changed the configuration: this was made of change 6";
        assert_eq!(passes(first).map(|(_, lost)| lost), Some(false));
        for wrong in ["service web4 has no backend b9", "the store refuses: no such role"] {
            assert_eq!(passes(wrong), None);
        }
    }

    #[test]
    fn a_change_whose_answer_was_lost_is_known_by_the_next_refusal() {
        let (add, remove) = (["backend", "add", "web4", "b1"], ["backend", "remove", "web4", "b1"]);
        let (there, gone) =
            ("service web4 already has a backend b1", "service web4 has no backend b1");
        assert!(shows_it_made(&add, there) && shows_it_made(&remove, gone));
        assert!(!shows_it_made(&add, gone) && !shows_it_made(&remove, there));
        assert!(!shows_it_made(&["backend", "weight", "web4", "b1", "2"], gone));
    }
}
