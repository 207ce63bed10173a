//! What happens to a fleet while its pools change: in which order, whom it meets and for how long is drawn from a seed.
//! Everything has happened once before anything happens a second time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use super::{Fleet, POLL, is_in_step, lock};
use crate::agent::TOLD_AT;
use crate::balancer::PoolControl;
use crate::error::Result;
use crate::lab::Lab;
use crate::topology::front4;
use weir_testbed::interrupt::sleep;

/// From one event to the next.
const GAP: std::ops::Range<Duration> = Duration::from_secs(1)..Duration::from_secs(4);
/// How long something is away that others do not miss for that long.
const AWAY: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_secs(5);
/// How long two balancers are cut off from each other where no third one can help with a table: a change of pools in
/// step waits for three seconds for one that cannot get it.
const AWAY_FROM_ALL: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_secs(2);
/// A step of the pools that an event has met is given up after so long: flows start again (docs/fleet.md, In step), by
/// tables that may differ, and those are not to move.
const GIVEN_UP: Duration = Duration::from_secs(3);
/// From the beginning of an event until flows move.
const MOVED_AFTER: Duration = Duration::from_secs(2);
/// From then on until what was away is back.
const BACK_AFTER: Duration = Duration::from_secs(3);
/// So long somebody waits for the leader to come to a stage of a change.
const AMBUSH: Duration = Duration::from_secs(30);
/// How often it is asked.
const GLANCE: Duration = Duration::from_millis(1);
/// A leader's machine loses its power, too, in so many cases.
const POWERLESS: f64 = 0.3;

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Reshuffled,
    Died,
    Crashed,
    /// The leader, in this stage of a change of pools in step; none: of a change of the configuration.
    LeaderKilled(Option<Stage>),
    CutOffFromStore,
    Compacted,
    Partitioned,
    WithoutAgents,
    AgentKilled,
    AgentCutOff,
    StoreStoodStill,
    StoreKilled,
    /// That of QUIC's connection ids.
    AnotherKey,
}

/// As `weir fleet status` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Prepare,
    Freeze,
    Collect,
    Commit,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Prepare, Self::Freeze, Self::Collect, Self::Commit];

    fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Freeze => "freeze",
            Self::Collect => "collect",
            Self::Commit => "commit",
        }
    }
}

impl Event {
    /// All that may happen to a fleet of this method, in this lab.
    fn all(lab: &Lab, method: &str) -> Vec<Self> {
        let mut all = vec![
            Self::Reshuffled,
            Self::Died,
            Self::Crashed,
            Self::CutOffFromStore,
            Self::Compacted,
            Self::Partitioned,
            Self::StoreStoodStill,
            Self::StoreKilled,
        ];
        match is_in_step(method) {
            true => all.extend(Stage::ALL.map(|stage| Self::LeaderKilled(Some(stage)))),
            false => all.push(Self::LeaderKilled(None)),
        }
        if lab.spec().quic {
            all.push(Self::AnotherKey);
        }
        if let Some(agent) = &lab.spec().agent {
            all.push(Self::AgentKilled);
            if agent.tells {
                all.extend([Self::WithoutAgents, Self::AgentCutOff]);
            }
        }
        all
    }

    /// In words, as the report has it.
    fn words(self) -> &'static str {
        match self {
            Self::Reshuffled => "flows were spread anew",
            Self::Died => "a balancer died and came back",
            Self::Crashed => "a control plane was killed",
            Self::LeaderKilled(None) => "the leader was killed in a change",
            Self::LeaderKilled(Some(Stage::Prepare)) => "the leader was killed in prepare",
            Self::LeaderKilled(Some(Stage::Freeze)) => "the leader was killed in freeze",
            Self::LeaderKilled(Some(Stage::Collect)) => "the leader was killed in collect",
            Self::LeaderKilled(Some(Stage::Commit)) => "the leader was killed in commit",
            Self::CutOffFromStore => "a balancer was cut off from the store",
            Self::Compacted => "the store was compacted while a balancer was cut off from it",
            Self::Partitioned => "two balancers were cut off from each other",
            Self::WithoutAgents => "a balancer was cut off from all agents",
            Self::AgentKilled => "an agent was killed and started again",
            Self::AgentCutOff => "an agent was cut off from all balancers",
            Self::StoreStoodStill => "the store stood still",
            Self::StoreKilled => "the store was killed",
            Self::AnotherKey => "ids of QUIC got another key",
        }
    }
}

/// What has happened to a fleet.
#[derive(Clone, Debug, Serialize)]
pub struct Happening {
    /// When it began, in seconds since the lab was made.
    pub from: f64,
    /// When it was over.
    pub until: f64,
    /// What it was, in words.
    pub what: &'static str,
    /// Whom it met, by their names; empty if nobody in particular.
    pub whom: String,
}

/// All that may happen, and that none of it has.
pub(super) fn nothing(lab: &Lab, method: &str) -> BTreeMap<&'static str, u64> {
    Event::all(lab, method).into_iter().map(|event| (event.words(), 0)).collect()
}

/// Events in an order that is drawn, each once before any comes again.
struct Bag {
    all: Vec<Event>,
    rest: Vec<Event>,
}

impl Bag {
    fn draw(&mut self, dice: &mut StdRng) -> Option<Event> {
        if self.rest.is_empty() {
            self.rest.clone_from(&self.all);
            self.rest.shuffle(dice);
        }
        self.rest.pop()
    }
}

impl Fleet {
    /// Does some work while balancers die and come back, leaders are killed in changes, balancers, agents and the store
    /// are cut off from each other, flows are spread anew, and the store stands still or dies. What goes wrong with
    /// that is an error, after the work.
    pub(crate) fn churned<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        crate::churn::beside(|over| self.churn(over), work)
    }

    fn churn(&self, over: &AtomicBool) -> Result<()> {
        let all = Event::all(&self.lab, &self.balancers[0].spec().method);
        let mut bag = Bag { all, rest: Vec::new() };
        loop {
            let (gap, event) = {
                let mut dice = lock(&self.dice);
                (dice.random_range(GAP), bag.draw(&mut dice))
            };
            let began = Instant::now();
            while began.elapsed() < gap {
                if over.load(Ordering::Relaxed) || !sleep(POLL) {
                    return Ok(());
                }
            }
            let Some(event) = event else { return Ok(()) };
            tracing::debug!("an event of the fleet begins: {}", event.words());
            let from = self.lab.events().elapsed().as_secs_f64();
            let Some(whom) = self.make(event, over)? else { continue };
            let until = self.lab.events().elapsed().as_secs_f64();
            let what = event.words();
            tracing::debug!("an event of the fleet is over: {what}: {whom}");
            *lock(&self.happened).entry(what).or_default() += 1;
            lock(&self.diary).push(Happening { from, until, what, whom });
        }
    }

    /// Whom it has met, if it has happened.
    fn make(&self, event: Event, over: &AtomicBool) -> Result<Option<String>> {
        if let Event::LeaderKilled(stage) = event {
            // No lock is held while it is waited for: changes go on.
            return self.kill_leader(stage, over);
        }
        let _alone = lock(&self.events);
        let (member, backend) = (self.any(), self.any_backend());
        let mut whom = self.balancers[member].name().to_owned();
        match event {
            Event::Died => self.die_for_a_while(member)?,
            Event::Crashed => self.crash_one(member)?,
            Event::CutOffFromStore => self.cut_off_for_a_while(member, false)?,
            Event::Compacted => self.cut_off_for_a_while(member, true)?,
            Event::WithoutAgents => {
                let backends: Vec<usize> = (0..self.lab.backends().len()).collect();
                self.without_agents(&[member], &backends)?;
            }
            Event::Partitioned => whom = self.partition()?,
            Event::AgentKilled => {
                whom = self.lab.backend(backend).name().to_owned();
                self.kill_agent(backend)?;
            }
            Event::AgentCutOff => {
                whom = self.lab.backend(backend).name().to_owned();
                let balancers: Vec<usize> = (0..self.balancers.len()).collect();
                self.without_agents(&balancers, &[backend])?;
            }
            Event::Reshuffled | Event::StoreStoodStill | Event::StoreKilled => {
                whom.clear();
                match event {
                    Event::StoreStoodStill => self.store_away(true)?,
                    Event::StoreKilled => self.store_away(false)?,
                    _ => self.reshuffle()?,
                }
            }
            Event::AnotherKey => {
                let Some(number) = self.rotate_keys()? else { return Ok(None) };
                whom = format!("configuration {number}");
            }
            Event::LeaderKilled(_) => {}
        }
        Ok(Some(whom))
    }

    fn any(&self) -> usize {
        lock(&self.dice).random_range(0..self.balancers.len())
    }

    fn any_backend(&self) -> usize {
        lock(&self.dice).random_range(0..self.lab.backends().len())
    }

    fn drawn(&self, from: std::ops::Range<Duration>) -> Duration {
        lock(&self.dice).random_range(from)
    }

    fn await_agreement_of_all(&self) -> Result<()> {
        (0..self.balancers.len()).try_for_each(|at| self.await_agreement_of(at))
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

    /// The machine of a balancer loses its power, and it is back with nothing in its memory.
    fn die_for_a_while(&self, member: usize) -> Result<()> {
        {
            // Whoever asks it is asked of no dead one.
            let _alone = lock(&self.commanding);
            self.die(member)?;
        }
        let gone = self.drawn(AWAY);
        sleep(gone / 2);
        self.reshuffle()?;
        sleep(gone / 2);
        self.revive(member)
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
        sleep(BACK_AFTER);
        if pauses {
            self.pause_store(false)
        } else {
            self.revive_store()?
        }
        self.await_agreement_of_all()
    }

    /// A balancer is cut off from the store, which may forget meanwhile what that one has not heard of.
    fn cut_off_for_a_while(&self, member: usize, compacts: bool) -> Result<()> {
        let _apart = lock(&self.apart);
        let begun = Instant::now();
        self.cut_off(member, true)?;
        self.move_flows_in(begun)?;
        sleep(BACK_AFTER);
        if compacts {
            self.compact_store()?;
        }
        self.cut_off(member, false)?;
        self.await_agreement_of(member)
    }

    /// No frame passes between two balancers, or all may pass again. Both reach everybody else.
    ///
    /// # Errors
    /// What the system said.
    pub fn keep_apart(&self, members: [usize; 2], apart: bool) -> Result<()> {
        let state = if apart { "on" } else { "off" };
        let line = |member: usize| {
            let port = Self::role(member).name();
            format!("link set {port} type bridge_slave isolated {state}\n")
        };
        Ok(self.lab.switch().ip(&members.map(line).concat())?)
    }

    /// Two balancers are cut off from each other while flows are spread anew: these.
    fn partition(&self) -> Result<String> {
        let mut all: Vec<usize> = (0..self.balancers.len()).collect();
        all.shuffle(&mut *lock(&self.dice));
        let (two, apart) = ([all[0], all[1]], if all.len() > 2 { AWAY } else { AWAY_FROM_ALL });
        let gone = self.drawn(apart);
        self.keep_apart(two, true)?;
        sleep(gone / 2);
        let moved = self.reshuffle();
        sleep(gone / 2);
        self.keep_apart(two, false)?;
        moved?;
        self.await_agreement_of_all()?;
        Ok(two.map(|member| self.balancers[member].name().to_owned()).join(" and "))
    }

    /// The agents of these backends do not reach these balancers, or do again. What clients send, and what balancers
    /// ask backends for their health, passes.
    ///
    /// # Errors
    /// What the system said.
    pub fn cut_off_agents(&self, members: &[usize], backends: &[usize], off: bool) -> Result<()> {
        let verb = if off { "add" } else { "del" };
        let rule = |member: &usize| {
            let to = front4(*member);
            format!("rule {verb} to {to}/32 ipproto tcp dport {TOLD_AT} blackhole\n")
        };
        let lines: String = members.iter().map(rule).collect();
        backends.iter().try_for_each(|at| Ok(self.lab.backend(*at).netns().ip(&lines)?))
    }

    fn without_agents(&self, members: &[usize], backends: &[usize]) -> Result<()> {
        let gone = self.drawn(AWAY);
        self.cut_off_agents(members, backends, true)?;
        sleep(gone / 2);
        let moved = self.reshuffle();
        sleep(gone / 2);
        self.cut_off_agents(members, backends, false)?;
        moved?;
        self.await_agreement_of_all()
    }

    fn kill_agent(&self, backend: usize) -> Result<()> {
        let backend = self.lab.backend(backend);
        let gone = self.drawn(AWAY);
        backend.kill_agent();
        sleep(gone / 2);
        self.reshuffle()?;
        sleep(gone / 2);
        self.lab.start_agent(backend)?;
        self.await_agreement_of_all()
    }

    fn crash_one(&self, member: usize) -> Result<()> {
        let _away = lock(&self.watching);
        let gone = self.drawn(AWAY) / 2;
        self.crashes[member].fetch_add(1, Ordering::SeqCst);
        self.balancers[member].crash(gone)?;
        self.crashes[member].fetch_add(1, Ordering::SeqCst);
        self.await_agreement_of(member)
    }

    /// Who leads, as any of them says.
    fn leader(&self) -> Option<usize> {
        let said = self.balancers.iter().find_map(|one| {
            let status = one.fleet().ok()?;
            status["leader"]["name"].as_str().map(str::to_owned)
        })?;
        self.balancers.iter().position(|one| one.name() == said)
    }

    /// Kills the control plane of the leader when it has come to this stage, and in some cases its machine loses its
    /// power with that. Who that was, if it came so far.
    fn kill_leader(&self, stage: Option<Stage>, over: &AtomicBool) -> Result<Option<String>> {
        let begun = Instant::now();
        let mut change = None;
        while begun.elapsed() < AMBUSH && !over.load(Ordering::Relaxed) {
            let Some(leader) = self.leader() else {
                if !sleep(POLL) {
                    return Ok(None);
                }
                continue;
            };
            let looked = Instant::now();
            while looked.elapsed() < AMBUSH / 10 {
                let Ok(status) = self.balancers[leader].fleet() else { break };
                if status["leads"] != true {
                    break;
                }
                let now = status["change"].as_u64();
                let met = match stage {
                    Some(stage) => status["step"]["stage"] == stage.name(),
                    None => *change.get_or_insert(now) != now,
                };
                // Whoever has one of these waits for nobody for long.
                if met
                    && let Ok(_alone) = self.events.try_lock()
                    && let Ok(_away) = self.watching.try_lock()
                {
                    self.crashes[leader].fetch_add(1, Ordering::SeqCst);
                    self.balancers[leader].kill();
                    let what = self.after_the_leader(leader)?;
                    return Ok(Some(format!("{}{what}", self.balancers[leader].name())));
                }
                std::thread::sleep(GLANCE);
            }
        }
        Ok(None)
    }

    /// Its control plane is gone, and it comes back. What there is to say of that.
    fn after_the_leader(&self, leader: usize) -> Result<String> {
        let powerless = lock(&self.dice).random_bool(POWERLESS);
        let gone = self.drawn(AWAY) / 2;
        if powerless {
            self.die(leader)?;
        }
        let others = self.balancers.iter().enumerate().filter(|(at, _)| *at != leader);
        let mut stages = others.filter_map(|(_, one)| {
            let status = one.fleet().ok()?;
            status["step"]["stage"].as_str().map(str::to_owned)
        });
        let seen = stages.next().map(|stage| format!(", the others saw {stage}"));
        let power = if powerless { ", with its machine" } else { "" };
        sleep(gone);
        if powerless {
            self.revive(leader)?;
        } else {
            self.balancers[leader].launch()?;
        }
        self.crashes[leader].fetch_add(1, Ordering::SeqCst);
        self.await_agreement_of_all()?;
        Ok(format!("{}{power}", seen.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn everything_happens_before_anything_happens_again() {
        let all: Vec<Event> =
            Stage::ALL.map(|stage| Event::LeaderKilled(Some(stage))).into_iter().collect();
        let orders = |seed| {
            let (mut dice, rest) = (StdRng::seed_from_u64(seed), Vec::new());
            let mut bag = Bag { all: all.clone(), rest };
            let mut round = || {
                let drawn = (0..all.len()).filter_map(|_| bag.draw(&mut dice));
                drawn.map(Event::words).collect::<Vec<_>>()
            };
            [round(), round(), round()]
        };
        let mut words: Vec<&str> = all.iter().map(|event| event.words()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), all.len(), "each has words of its own");
        for mut round in orders(5) {
            round.sort_unstable();
            assert_eq!(round, words);
        }
        assert_eq!(orders(5), orders(5));
        let other = (6..40).any(|seed| orders(seed) != orders(5));
        assert!(other, "another seed draws another order");
    }
}
