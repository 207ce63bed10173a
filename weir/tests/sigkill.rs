//! A control plane that is killed at random moments of its changes, again and again, while connections
//! come and go: none breaks, none is reset by the balancer, and each restart finds a whole table.
//!
//! `WEIR_KILLS` SIGKILLs (12 of them here; `make soak` sends 200), drawn by `WEIR_SEED`. `WEIR_METHODS` names
//! the methods that services turn to and from. Each of the things in [`DEEDS`] is being done when a quarter
//! of them comes, and commands about weights and drains all the time.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::pool::{self, Pool};
use common::{Held, SERVICES};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use weir_lab::traffic::Mix;
use weir_lab::{Balancer, Lab, LabSpec, Resets, Traffic, TrafficHandle, TrafficSpec};

/// Backends that are always there.
const BACKENDS: usize = 4;
/// One that is added, drained and removed.
const SPARE: usize = BACKENDS;
/// The services that have it. Not that of datagrams, where ports that are used again may belong to a flow that was
/// known there, which goes with it.
const SPARED: [&str; 2] = ["web4", "web6"];
/// Methods that connections are carried over between.
const METHODS: &str = "concury,tracked,residue";
/// Between the first command of a round and its SIGKILL, at most.
const MOMENTS: u64 = 250_000;
/// Connections that are held at a time, at most.
const HELD: usize = 80;

/// What is being done when the SIGKILL comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Deed {
    /// Commands about weights and drains, and nothing else.
    Commands,
    /// The file is read again, with another method.
    Reload,
    /// `weir apply` of another file, with another method and other weights.
    Apply,
    /// A backend is added, drained, or removed.
    Spare,
}

const DEEDS: [Deed; 4] = [Deed::Commands, Deed::Reload, Deed::Apply, Deed::Spare];

/// Gives commands about one service, one after the other, until one fails because nobody takes it any
/// more. Returns how many went through.
fn command_until_killed(balancer: &Balancer, service: &str, seed: u64, stop: &AtomicBool) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        // The first backend takes new connections always.
        let backend = format!("b{}", random.random_range(1..BACKENDS));
        let weight = random.random_range(0..6).to_string();
        let words: &[&str] = match random.random_range(0..4) {
            0 => &["backend", "drain", service, &backend],
            1 => &["backend", "drain", service, &backend, "--undo"],
            _ => &["backend", "weight", service, &backend, &weight],
        };
        done += usize::from(balancer.command(words).is_ok());
    }
    done
}

struct World {
    lab: Arc<Lab>,
    balancer: Balancer,
    resets: Resets,
    traffic: TrafficHandle,
    held: Vec<Held>,
    methods: Vec<String>,
    /// What the file says.
    method: String,
    pool: Pool,
    random: StdRng,
    commands: AtomicUsize,
    /// When the lab was made, from where connections count their time.
    begun: Instant,
}

impl World {
    fn new(seed: u64) -> Self {
        let begun = Instant::now();
        let lab = common::lab_of(LabSpec { backends: BACKENDS + 1, ..LabSpec::default() });
        let methods = std::env::var("WEIR_METHODS").unwrap_or_else(|_| METHODS.to_owned());
        let methods: Vec<String> = methods.split(',').map(str::to_owned).collect();
        let method = methods[0].clone();
        let balancer = common::start(&lab, &method, BACKENDS);
        let resets = Resets::watch(&lab).unwrap();
        let traffic = TrafficSpec {
            seed,
            connections: 400,
            mix: Mix { keepalive: 0.3, short: 0.5, udp: 0.2, ..Mix::NONE },
            // A backend that drains is soon without any.
            life: Duration::from_secs(2)..Duration::from_secs(10),
            udp_life: Duration::from_secs(2)..Duration::from_secs(10),
            timeout: common::PATIENCE,
            detection: common::PATIENCE,
            udp_timeout: Duration::from_secs(3),
            ..TrafficSpec::default()
        };
        let traffic = Traffic::start(&lab, traffic).unwrap();
        let pool = (0..BACKENDS).map(|backend| (backend, (1, false))).collect();
        let held = common::hold_both(&lab, 40);
        let (random, commands) = (StdRng::seed_from_u64(seed), AtomicUsize::new(0));
        let mut world = Self {
            lab,
            balancer,
            resets,
            traffic,
            held,
            methods,
            method,
            pool,
            random,
            commands,
            begun,
        };
        world.write();
        common::command(&world.balancer, "reload");
        world.check("the first file");
        world
    }

    fn text(&self, method: &str, pool: &Pool) -> String {
        let fields = format!("method = \"{method}\"");
        let steady: Pool =
            pool.iter().filter(|(at, _)| **at != SPARE).map(|(at, one)| (*at, *one)).collect();
        let of =
            |service| if SPARED.contains(&service) { (service, pool) } else { (service, &steady) };
        pool::text(&self.balancer, "", &SERVICES.map(of), &fields, pool::UNCHECKED)
    }

    fn write(&mut self) {
        fs::write(self.balancer.config(), self.text(&self.method, &self.pool)).unwrap();
    }

    /// Another method than the one in force, if there is one.
    fn other_method(&mut self) -> String {
        let others: Vec<&String> = self.methods.iter().filter(|one| **one != self.method).collect();
        others.choose(&mut self.random).map_or(&self.method, |one| *one).clone()
    }

    /// What is to be done with the spare backend of a service, as words of a command.
    fn spare_words(&self, service: &str) -> Vec<String> {
        let (name, address) = (format!("b{SPARE}"), pool::address(service, SPARE));
        let words = match self.pool.get(&SPARE) {
            None => vec!["backend", "add", service, &name, &address, "--weight", "2"],
            Some((_, false)) => vec!["backend", "drain", service, &name],
            Some((_, true)) => vec!["backend", "remove", service, &name],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// Whoever holds a connection to the spare backend ends it.
    fn await_nobody_on_the_spare(&mut self) {
        let name = format!("b{SPARE}");
        self.held.retain(|one| one.backend != name);
        // One whose SYN is there already counts when it is answered, which may last where clients wait for a
        // processor: the backend's kernel knows of it before.
        let in_kernel = || {
            let mut ss = self.lab.backend(SPARE).netns().command("ss").unwrap();
            let wanted = ["-Htn", "state", "established", "state", "syn-recv", "sport", "=", ":80"];
            !common::stdout(&ss.args(wanted).output().unwrap()).is_empty()
        };
        let mut nobody = Instant::now();
        common::eventually("the spare backend is without connections", || {
            if self.traffic.stats().open_on(SPARE) > 0 || in_kernel() {
                nobody = Instant::now();
            }
            nobody.elapsed() > Duration::from_secs(2)
        });
    }

    /// Does it until the SIGKILL; says what it was.
    fn kill_in(&mut self, deed: Deed) -> String {
        let mut said = format!("{deed:?}, {}", self.method);
        let mut applying = None;
        match deed {
            Deed::Commands => {}
            Deed::Reload => {
                self.method = self.other_method();
                self.write();
                said += &format!(" -> {}", self.method);
            }
            Deed::Apply => {
                let (method, mut pool) = (self.other_method(), self.pool.clone());
                for (_, (weight, _)) in pool.range_mut(..BACKENDS) {
                    *weight = self.random.random_range(1..6);
                }
                let path = self.lab.directory().join("applied.toml");
                fs::write(&path, self.text(&method, &pool)).unwrap();
                said += &format!(" -> {method}");
                applying = Some((path, method, pool));
            }
            Deed::Spare => {
                if self.pool.get(&SPARE).is_some_and(|(_, drains)| *drains) {
                    self.await_nobody_on_the_spare();
                }
                said += &format!(": {}", self.spare_words("...").join(" "));
            }
        }
        let moment = self.random.random_range(0..MOMENTS);
        let seeds: Vec<u64> = SERVICES.iter().map(|_| self.random.random()).collect();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for (service, seed) in SERVICES.into_iter().zip(seeds) {
                let (balancer, stop, commands) = (&self.balancer, &stop, &self.commands);
                scope.spawn(move || {
                    let done = command_until_killed(balancer, service, seed, stop);
                    commands.fetch_add(done, Ordering::Relaxed);
                });
            }
            // Not always the first thing that the process is asked.
            thread::sleep(Duration::from_micros(moment / 4));
            match deed {
                Deed::Commands => {}
                Deed::Reload => self.balancer.hang_up(),
                Deed::Apply => {
                    let path = &applying.as_ref().expect("written").0;
                    let mut command = Command::new(common::WEIR);
                    command.arg("apply").arg(path).arg("--socket").arg(self.balancer.socket());
                    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
                    scope.spawn(|| child.unwrap().wait());
                }
                Deed::Spare => {
                    let (words, balancer) =
                        (SPARED.map(|one| self.spare_words(one)), &self.balancer);
                    scope.spawn(move || {
                        for words in words {
                            let words: Vec<&str> = words.iter().map(String::as_str).collect();
                            let _ = balancer.command(&words);
                        }
                    });
                }
            }
            thread::sleep(Duration::from_micros(moment - moment / 4));
            self.balancer.kill();
            stop.store(true, Ordering::Relaxed);
        });
        if let Some((path, method, pool)) = applying {
            // Whole or not at all.
            let inside = fs::read_to_string(self.balancer.config()).unwrap();
            let applied = inside == fs::read_to_string(path).unwrap();
            if applied {
                (self.method, self.pool) = (method, pool);
            } else {
                assert_eq!(inside, self.text(&self.method, &self.pool));
            }
            said += &format!(", in force: {applied}");
        }
        format!("{said}, {moment} us after the first command")
    }

    /// What was killed is done, for all services that have it, and the file says so.
    fn finish_with_the_spare(&mut self) {
        let there = pool::holders(&self.balancer, SPARE);
        let former = self.pool.get(&SPARE).copied();
        for service in SPARED {
            let done = match (former, there.get(service)) {
                (None, Some(_)) | (Some((_, true)), None) => true,
                (Some((_, false)), Some(drains)) => *drains,
                (None, None) | (Some((_, true)), Some(_)) => false,
                (Some((_, false)), None) => panic!("{service} has lost b{SPARE}"),
            };
            if !done {
                common::command(&self.balancer, &self.spare_words(service).join(" "));
            }
        }
        match former {
            None => drop(self.pool.insert(SPARE, (2, false))),
            Some((weight, false)) => drop(self.pool.insert(SPARE, (weight, true))),
            Some((_, true)) => drop(self.pool.remove(&SPARE)),
        }
        self.write();
        // A restart follows a file that has changed, and not what commands have done since it was read.
        common::command(&self.balancer, "reload");
    }

    fn check(&mut self, when: &str) {
        common::assert_unbroken(&mut self.held, when, &self.balancer);
        let (resets, lost) = self.resets.take();
        assert!(
            resets.is_empty() && lost == 0,
            "{when}: reset by the balancer: {resets:?}, {lost}"
        );
    }
}

#[test]
fn no_sigkill_breaks_a_connection() {
    let _alone = common::alone();
    let kills: usize =
        std::env::var("WEIR_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let mut world = World::new(common::seed());
    let begun = world.begun;
    let (mut history, mut deck) = (Vec::new(), Vec::new());
    let mut killed_in = BTreeMap::<(Deed, String), u32>::new();
    for kill in 0..kills {
        let deed = deck.pop().unwrap_or_else(|| {
            deck = DEEDS.to_vec();
            deck.shuffle(&mut world.random);
            deck.pop().expect("four")
        });
        let said = world.kill_in(deed);
        let when = format!("SIGKILL {kill}: {said}");
        println!("{:.3} s: {when}", begun.elapsed().as_secs_f64());
        history.push((begun.elapsed(), when.clone()));
        world.held.extend(common::hold_both(&world.lab, 4));
        world.check(&when);
        world.balancer.launch().unwrap();
        world.held.extend(common::hold_both(&world.lab, 4));
        world.check(&format!("{when}, and a restart"));
        if deed == Deed::Spare {
            world.finish_with_the_spare();
            world.check(&format!("{when}, and the rest of it"));
        }
        let more = world.held.len().saturating_sub(HELD);
        world.held.drain(..more);
        *killed_in.entry((deed, world.method.clone())).or_default() += 1;
    }
    common::eventually("nothing is left to be done", || {
        world.balancer.status().unwrap()["warnings"].as_array().is_some_and(Vec::is_empty)
    });
    world.check("at the end");
    let report = world.traffic.finish().unwrap();
    println!(
        "{kills} SIGKILLs in {killed_in:?}, {:?} commands done, {} connections, {} answers, {} broken",
        world.commands,
        report.totals.ended(),
        report.totals.answers,
        report.totals.broken
    );
    if report.totals.broken > 0 {
        history.iter().for_each(|(at, when)| println!("{:.3} s: {when}", at.as_secs_f64()));
        println!("weir's log:\n{}", common::log(&world.balancer));
    }
    assert_eq!(report.totals.broken, 0, "{:?}", report.broken_connections);
    assert!(report.totals.answers > 0, "{:?}", report.totals);
    let deeds = |deed| killed_in.keys().any(|(one, _)| *one == deed);
    assert!(kills < DEEDS.len() || DEEDS.into_iter().all(deeds), "{killed_in:?}");
}
