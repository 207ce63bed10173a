//! Several balancers of one fleet behind a router that spreads flows over them by ports, with etcd between them.
//! Each runs `weir run` as an operator would, with `[store] kind = "etcd"`.

mod events;
mod keys;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::agent;
use crate::balancer::{self, Balancer, BalancerSpec, Node, PoolControl, address};
use crate::bgp::Bgp;
use crate::error::{Doing, Error, Result};
use crate::lab::Lab;
use crate::topology::{Role, STORE4, Topology, VIP4, VIP6, front4, front6};
use weir_testbed::interrupt::sleep;
use weir_testbed::process;

pub use events::Happening;

/// A router notices within this time that a balancer is dead.
const UNNOTICED: Duration = Duration::from_secs(1);
/// A balancer that has found a backend down goes by that after so long where the fleet does not say so (docs/fleet.md, In
/// step: 1.5 s), and its table takes a moment.
const UNHEARD: Duration = Duration::from_secs(3);
/// What an event has disturbed is as before within this time.
const PATIENCE: Duration = Duration::from_secs(180);
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
    /// Who tells the router of balancers, where nobody sets its routes.
    bgp: Option<Bgp>,
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
    /// Those of QUIC's connection ids.
    keys: Mutex<keys::Keys>,
    /// How many changes were refused at first, by the reasons.
    refused: Mutex<BTreeMap<&'static str, u64>>,
    /// Held while control planes are away.
    watching: Mutex<()>,
    /// Since when all say of a backend that it is down.
    down: Mutex<BTreeMap<usize, Instant>>,
    /// What has happened, and how often; all that may happen is there.
    happened: Mutex<BTreeMap<&'static str, u64>>,
    /// The same, one after the other.
    diary: Mutex<Vec<Happening>>,
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
            bgp: None,
            away: Mutex::default(),
            turn: AtomicUsize::new(0),
            dice: Mutex::new(StdRng::seed_from_u64(seed)),
            events: Mutex::default(),
            commanding: Mutex::default(),
            apart: Mutex::default(),
            crashes: (0..lab.spec().balancers).map(|_| AtomicUsize::new(0)).collect(),
            keys: Mutex::default(),
            refused: Mutex::default(),
            watching: Mutex::default(),
            down: Mutex::default(),
            happened: Mutex::new(events::nothing(lab, &example.method)),
            diary: Mutex::default(),
        };
        fleet.launch_store()?;
        if let Some(speaker) = lab.spec().bgp {
            fleet.bgp = Some(Bgp::start(lab, speaker)?);
        }
        for index in 0..lab.spec().balancers {
            let mut store = format!(
                "{}\n[store]\nkind = \"etcd\"\nendpoints = [\"{}\"]\n",
                example.balancer_lines,
                store::endpoint()
            );
            if lab.spec().agent.as_ref().is_some_and(|agent| agent.tells) {
                store += &agent::told(&lab.directory().join("pki"), index);
            }
            if let Some(bgp) = &fleet.bgp {
                store += &bgp.announce(index);
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
            let of_udp = ["service echo", "service quic"].iter().any(|name| said.contains(name));
            self.balancers[0].spec().udp_method.is_none() || !of_udp
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
        let configured = self.balancers[0].spec().services().count();
        for balancer in &self.balancers[..many] {
            let text = balancer.command(&["fleet", "status", "--json"])?;
            let status: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
                Error::BadFile { path: "weir fleet status --json".into(), what: error.to_string() }
            })?;
            let all = status["balancers"].as_array().map_or(&[][..], Vec::as_slice);
            let serving = all.iter().filter(|one| one["role"] == "serves").count();
            let tables = all.iter().all(|one| {
                let services = one["sign"]["services"].as_array();
                one["role"] == "away" || services.is_some_and(|all| all.len() >= configured)
            });
            if !(tables && serving >= many && self.is_agreed(&status)) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// The balancers that a router with BGP leads to, in order.
    ///
    /// # Errors
    /// [`Error::BadSpec`] if its routes are set, and what the system said.
    pub fn led_to(&self) -> Result<Vec<usize>> {
        match &self.bgp {
            Some(bgp) => Ok(bgp.led_to()?.0),
            None => Err(Error::BadSpec("nobody tells this router of balancers".into())),
        }
    }

    /// Makes the router spread flows over the balancers by these weights; those with 0 get none.
    ///
    /// # Errors
    /// [`Error::BadSpec`] where it learns its routes, and what the system said.
    pub fn lead(&self, weights: &[u32]) -> Result<()> {
        if self.bgp.is_some() {
            return Err(Error::BadSpec("this router's routes are those that it learns".into()));
        }
        let Some(router) = self.lab.router() else { return Ok(()) };
        let hops = |of: &dyn Fn(usize) -> String| -> String {
            let with = weights.iter().enumerate().filter(|(_, weight)| **weight > 0);
            with.map(|(at, weight)| format!(" nexthop via {} weight {weight}", of(at))).collect()
        };
        let (v4, v6) = (hops(&|at| front4(at).to_string()), hops(&|at| front6(at).to_string()));
        Ok(router.ip(&format!("route replace {VIP4}/32{v4}\nroute replace {VIP6}/128{v6}\n"))?)
    }

    /// As at first: evenly, over those that are there. A router with BGP does so by itself, and is waited for.
    ///
    /// # Errors
    /// What the system said.
    pub fn lead_evenly(&self) -> Result<()> {
        let away = lock(&self.away).clone();
        if let Some(bgp) = &self.bgp {
            let there: Vec<usize> =
                (0..self.balancers.len()).filter(|at| !away.contains(at)).collect();
            return bgp.await_led_to(&there, PATIENCE);
        }
        let weights: Vec<u32> =
            (0..self.balancers.len()).map(|at| u32::from(!away.contains(&at))).collect();
        self.lead(&weights)
    }

    /// By weights that are drawn: most flows go by another balancer afterwards than before. With BGP the router's hash
    /// gets another seed.
    ///
    /// # Errors
    /// What the system said.
    pub fn reshuffle(&self) -> Result<()> {
        if let Some(bgp) = &self.bgp {
            let seed = lock(&self.dice).random();
            return bgp.reseed(seed);
        }
        let away = lock(&self.away).clone();
        let mut dice = lock(&self.dice);
        let draw = |at| if away.contains(&at) { 0 } else { dice.random_range(1..=20) };
        let weights: Vec<u32> = (0..self.balancers.len()).map(draw).collect();
        drop(dice);
        self.lead(&weights)
    }

    /// A balancer dies as a machine does whose power fails, and the router notices it within a second; one with BGP
    /// when it has heard nothing for three.
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
        if let Some(bgp) = &self.bgp {
            bgp.kill(member);
        }
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
        // First, as a machine that comes back knows of no routes that were announced, nor does its speaker run yet.
        let _ = fs::remove_dir_all(self.balancers[member].run_dir());
        let mut unload = netns.command(weir)?;
        unload.args(["unload", "--name", self.balancers[member].name()]);
        process::run(unload, "")?;
        fs::create_dir_all(self.balancers[member].run_dir())
            .doing(|| "creating a run directory".into())?;
        if let Some(bgp) = &self.bgp {
            bgp.revive(member)?;
        }
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

    /// Whether pools change in step: a change that was accepted is in force when all balancers can make it.
    fn is_in_step(&self) -> bool {
        is_in_step(&self.balancers[0].spec().method)
    }

    /// Asks one balancer for a change of every service, which reaches all. One that cannot make it, because it
    /// is out of touch with the store or another one was first, is not the last word.
    fn change(&self, arguments: impl Fn(&str) -> Vec<String>) -> Result<()> {
        let _alone = lock(&self.commanding);
        let mut reasons = BTreeSet::new();
        self.balancers[0].spec().services().try_for_each(|service| {
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
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        self.ask_with(&|_| Ok(words.clone()), reasons)
    }

    /// The same, in words for the balancer that is asked.
    fn ask_with(
        &self,
        words: &dyn Fn(usize) -> Result<Vec<String>>,
        reasons: &mut BTreeSet<&'static str>,
    ) -> Result<()> {
        let (begun, mut may_be_made) = (Instant::now(), false);
        loop {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.balancers.len();
            if lock(&self.away).contains(&turn) {
                continue;
            }
            let words = words(turn)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let crashes = || self.crashes[turn].load(Ordering::SeqCst);
            let before = crashes();
            let Err(error) = self.balancers[turn].command(&words) else { return Ok(()) };
            let text = error.to_string();
            if may_be_made && shows_it_made(&words, &text) {
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
}

/// Whether pools of this method change in step in a fleet.
fn is_in_step(method: &str) -> bool {
    ["concury", "residue"].contains(&method)
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

    /// Where pools change in step, one whose own checks have found a backend down waits for the fleet to say so, or for
    /// some time, before it leads nothing new there.
    fn has_noticed(&self, backend: usize) -> Result<bool> {
        let off = lock(&self.away).clone();
        let there = self.balancers.iter().enumerate().filter(|(at, _)| !off.contains(at));
        let noticed = balancer::all_noticed(there.map(|(_, one)| one), backend);
        let mut down = lock(&self.down);
        if !matches!(noticed, Ok(true)) {
            down.remove(&backend);
            return noticed;
        }
        let since = *down.entry(backend).or_insert_with(Instant::now);
        Ok(!self.is_in_step() || since.elapsed() >= UNHEARD)
    }

    fn refused(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.refused).clone()
    }

    fn happened(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.happened).clone()
    }

    fn diary(&self) -> Vec<Happening> {
        lock(&self.diary).clone()
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
