//! A change across many balancers and agents.

use super::agent::{Listing, Request};
use super::build::Collected;
use super::message::{Answer, Order, Routes, RowSet, Work};
use crate::update::{Perform, Progress, Update, go_on};
use std::collections::{BTreeMap, BTreeSet};

/// How balancers that change over one after the other are kept from contradicting each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Window {
    /// Not at all: there is one balancer, and its pending table outlives it.
    Alone,
    /// From before the first one changes over until the last one has, no flow starts in the rows
    /// that move. No packet of a flow that exists is dropped or misled, whatever is repeated.
    Freeze,
    /// Flows start all the time; later packets of flows that a balancer does not know are dropped
    /// in the rows that move. A SYN that is repeated at another balancer within the window may
    /// find another backend.
    Hold,
}

/// The build face, as the coordinator needs it.
pub trait Build<K> {
    /// A table as balancers publish it.
    type Table: Routes<K> + Clone;

    /// The table in force.
    fn base(&self) -> Self::Table;
    /// Fixes what the change under way leads to: the pool as it is now. Returns the rows that will
    /// differ from [`base`](Self::base); `None` if there is nothing to do.
    fn begin(&mut self) -> Option<RowSet>;
    /// Exceptions that may have to go because their connections are said to have ended.
    fn doubtful(&self) -> Vec<(K, u16)>;
    /// Builds the table to publish, from the base and what was collected.
    fn next(&mut self, collected: &Collected<K>) -> Self::Table;
    /// What [`next`](Self::next) built last is in force.
    fn commit(&mut self);
    /// A backend is dead: removes it from the base (and from what the change leads to).
    fn bury(&mut self, backend: u16);
    /// The table in force is this one: the control plane has restarted.
    fn adopt(&mut self, table: &Self::Table);
}

/// How often a change went on without an agent or a balancer, or began again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Counts {
    /// Agents that did not answer in time; their last report was used.
    pub stale_agents: u32,
    /// Balancers whose leases ran out.
    pub expelled: u32,
    /// Changes that began again.
    pub restarts: u32,
}

/// What the coordinator waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Waiting {
    /// Nothing: the table in force is what the pool asks for.
    Nothing,
    /// Answers of balancers or agents.
    Answers,
    /// Packets that were on their way to backends when the last balancer began to record: the
    /// driver calls [`Coordinator::transit_passed`].
    Transit,
}

/// What is done when all have answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
enum Stage {
    Idle,
    Recover,
    Open,
    /// Open, with nothing to change.
    Refresh,
    Transit,
    Collect,
    Prepare,
    Freeze,
    Commit,
    Stop,
    Settle,
    Clear,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Peer {
    /// How often it has started.
    incarnation: u32,
    answered: bool,
}

/// Takes one service's change through all balancers: each [`Action`](crate::Action) of an [`Update`] becomes one
/// order or several, and an order is over when every balancer has carried it out and let a grace
/// period pass.
///
/// Pure: [`orders`](Self::orders) and [`requests`](Self::requests) say what is to be sent, and
/// sent again, until answers come; time limits are the driver's, who calls
/// [`give_up_agent`](Self::give_up_agent) and [`expel`](Self::expel).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Coordinator<K, T> {
    window: Window,
    epoch: u64,
    step: u32,
    balancers: BTreeMap<u16, Peer>,
    /// Agents by backend, with what each listed last.
    agents: BTreeMap<u16, Vec<K>>,
    stage: Stage,
    update: Update,
    work: Option<Work<T>>,
    rows: RowSet,
    /// Balancers may route by the next table.
    committed: bool,
    /// The pool has changed since the change under way began.
    queued: bool,
    /// Backends that have died since nothing was under way.
    dead: BTreeSet<u16>,
    asked: BTreeSet<u16>,
    doubtful: Vec<(K, u16)>,
    collected: Collected<K>,
    /// Answers to a report order: tables and open rows.
    reports: Vec<(T, RowSet)>,
    counts: Counts,
}

impl<K: Copy + Ord, T: Routes<K> + Clone> Coordinator<K, T> {
    /// A coordinator of these balancers and agents. It first learns which table is in force; its
    /// first epoch must be above all that it, or one before it, has had.
    pub fn new(
        window: Window,
        epoch: u64,
        balancers: impl IntoIterator<Item = (u16, u32)>,
        agents: impl IntoIterator<Item = u16>,
    ) -> Self {
        let peer = |(id, incarnation)| (id, Peer { incarnation, answered: false });
        let mut new = Self {
            window,
            epoch,
            step: 0,
            balancers: balancers.into_iter().map(peer).collect(),
            agents: agents.into_iter().map(|agent| (agent, Vec::new())).collect(),
            stage: Stage::Recover,
            update: Update::begin(),
            work: None,
            rows: RowSet::default(),
            committed: false,
            queued: true,
            dead: BTreeSet::new(),
            asked: BTreeSet::new(),
            doubtful: Vec::new(),
            collected: Collected::default(),
            reports: Vec::new(),
            counts: Counts::default(),
        };
        new.give(Stage::Recover, Work::Report);
        new
    }

    /// What has to come before it can go on.
    pub fn waiting(&self) -> Waiting {
        match self.stage {
            Stage::Idle => Waiting::Nothing,
            Stage::Transit => Waiting::Transit,
            _ => Waiting::Answers,
        }
    }

    /// Whether tables may differ between balancers, or packets find rows open.
    pub fn is_busy(&self) -> bool {
        self.stage != Stage::Idle || self.queued
    }

    /// The epoch: a coordinator that takes over begins above it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How balancers are kept from contradicting each other.
    pub fn window(&self) -> Window {
        self.window
    }

    /// How often agents and balancers were not waited for, since the coordinator was made.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The order under way, and the balancers that have not answered it.
    pub fn orders(&self) -> impl Iterator<Item = (u16, Order<T>)> {
        let silent = self.balancers.iter().filter(|(_, peer)| !peer.answered);
        silent.filter_map(|(&id, peer)| {
            let &Self { epoch, step, .. } = self;
            let work = self.work.clone()?;
            Some((id, Order { epoch, step, incarnation: peer.incarnation, work }))
        })
    }

    /// The agents that have not answered, and what they are asked.
    pub fn requests(&self) -> impl Iterator<Item = (u16, Request<K>)> {
        self.asked.iter().map(|&agent| {
            let doubtful = self.doubtful.iter().filter(|(_, at)| *at == agent);
            let request = Request {
                epoch: self.epoch,
                step: self.step,
                rows: self.rows.clone(),
                doubtful: doubtful.map(|(flow, _)| *flow).collect(),
            };
            (agent, request)
        })
    }

    /// The pool has changed. A change under way is finished first; what comes meanwhile is one
    /// change after it.
    pub fn change(&mut self, build: &mut impl Build<K, Table = T>) {
        self.queued = true;
        self.advance(build);
    }

    /// A backend is dead. Its rows move at once, also in the middle of a change.
    pub fn died(&mut self, backend: u16, build: &mut impl Build<K, Table = T>) {
        build.bury(backend);
        self.dead.insert(backend);
        self.agents.remove(&backend);
        self.asked.remove(&backend);
        self.queued = true;
        self.restart(build);
    }

    /// A backend has got an agent, with no connections yet.
    pub fn add_agent(&mut self, backend: u16) {
        self.agents.entry(backend).or_default();
        self.dead.remove(&backend);
    }

    /// A backend has left for good.
    pub fn remove_agent(&mut self, backend: u16, build: &mut impl Build<K, Table = T>) {
        self.agents.remove(&backend);
        self.asked.remove(&backend);
        self.advance(build);
    }

    /// A balancer says that it has started and has no table. `incarnation` counts its starts.
    pub fn hello(&mut self, balancer: u16, incarnation: u32, build: &mut impl Build<K, Table = T>) {
        let known = self.balancers.get(&balancer).map(|peer| peer.incarnation);
        if known.is_some_and(|known| known >= incarnation) {
            return;
        }
        self.balancers.insert(balancer, Peer { incarnation, answered: false });
        self.restart(build);
    }

    /// A balancer has not answered for so long that its lease has run out: it forwards nothing
    /// until it says hello. The change goes on without it.
    pub fn expel(&mut self, balancer: u16, build: &mut impl Build<K, Table = T>) {
        if self.balancers.remove(&balancer).is_some() {
            self.counts.expelled += 1;
            self.restart(build);
        }
    }

    /// An agent has not answered in time: what it listed last is used.
    pub fn give_up_agent(&mut self, agent: u16, build: &mut impl Build<K, Table = T>) {
        if self.asked.remove(&agent) {
            self.counts.stale_agents += 1;
            self.collected.silent.push(agent);
            let last = self.agents.get(&agent).into_iter().flatten();
            self.collected.listed.extend(last.map(|&flow| (flow, agent)));
            self.advance(build);
        }
    }

    /// Every packet that was on its way to a backend when recording began has arrived.
    pub fn transit_passed(&mut self, build: &mut impl Build<K, Table = T>) {
        if self.stage == Stage::Transit {
            self.proceed(build);
        }
    }

    /// Takes a balancer's answer to an order. One that is late, or not asked for, changes nothing.
    pub fn answer(
        &mut self,
        balancer: u16,
        answer: Answer<K, T>,
        build: &mut impl Build<K, Table = T>,
    ) {
        if (answer.epoch, answer.step) != (self.epoch, self.step) || self.work.is_none() {
            return;
        }
        let Some(peer) = self.balancers.get_mut(&balancer).filter(|peer| !peer.answered) else {
            return;
        };
        let learns = self.stage == Stage::Recover && answer.incarnation > peer.incarnation;
        if !learns && answer.incarnation != peer.incarnation {
            return;
        }
        (peer.answered, peer.incarnation) = (true, answer.incarnation);
        self.collected.pending.extend(answer.pending);
        self.reports.extend(answer.state);
        self.advance(build);
    }

    /// Takes an agent's answer. One that is late changes nothing.
    pub fn listing(&mut self, listing: Listing<K>, build: &mut impl Build<K, Table = T>) {
        let current = (listing.epoch, listing.step) == (self.epoch, self.step);
        if current && self.asked.remove(&listing.backend) {
            let flows = listing.flows.iter().map(|&flow| (flow, listing.backend));
            self.collected.listed.extend(flows);
            self.agents.insert(listing.backend, listing.flows);
            self.advance(build);
        }
    }

    fn give(&mut self, stage: Stage, work: Work<T>) {
        // The first order of an epoch is number 0.
        self.step = self.work.as_ref().map_or(0, |_| self.step + 1);
        self.work = Some(work);
        self.balancers.values_mut().for_each(|peer| peer.answered = false);
        self.stage = stage;
    }

    /// A new epoch: orders of the one before are void.
    fn next_epoch(&mut self) {
        self.epoch += 1;
        self.work = None;
        self.asked.clear();
        self.collected = Collected::default();
        self.reports.clear();
    }

    /// Begins again: before *commit* from the beginning, after it by committing to all.
    fn restart(&mut self, build: &mut impl Build<K, Table = T>) {
        self.counts.restarts += u32::from(self.stage != Stage::Idle);
        let recovering = self.stage == Stage::Recover;
        self.next_epoch();
        if recovering {
            self.give(Stage::Recover, Work::Report);
        } else if self.committed {
            self.publish(build.base());
        } else {
            self.open(build);
        }
        self.advance(build);
    }

    fn publish(&mut self, next: T) {
        let freeze = self.window == Window::Freeze;
        self.committed = true;
        self.update.published_again();
        let (rows, dead) = (self.rows.clone(), self.dead.iter().copied().collect());
        self.give(Stage::Commit, Work::Commit { next, rows, freeze, dead });
    }

    /// The first order of an epoch that changes something, or lets balancers join.
    fn open(&mut self, build: &mut impl Build<K, Table = T>) {
        self.queued = false;
        let rows = build.begin();
        // Unless all was frozen, flows that the base does not lead home may be pending: they are
        // collected even if nothing else is to be done.
        let all = rows.is_some() || self.window != Window::Freeze;
        let stage = if all { Stage::Open } else { Stage::Refresh };
        self.rows = rows.unwrap_or_default();
        self.update = Update::begin();
        match stage {
            Stage::Open => self.perform(build),
            _ => self.give_open(stage, build.base()),
        }
    }

    fn give_open(&mut self, stage: Stage, base: T) {
        let (rows, dead) = (self.rows.clone(), self.dead.iter().copied().collect());
        self.give(stage, Work::Open { base, rows, dead });
    }

    /// Goes on as far as it can without waiting.
    fn advance(&mut self, build: &mut impl Build<K, Table = T>) {
        loop {
            let idle = self.stage == Stage::Idle;
            if idle && self.queued && !self.balancers.is_empty() {
                self.next_epoch();
                self.queued = false;
                if let Some(rows) = build.begin() {
                    self.rows = rows;
                    self.update = Update::begin();
                    self.perform(build);
                }
                continue;
            }
            let answered = self.balancers.values().all(|peer| peer.answered);
            let waits = !answered || !self.asked.is_empty() || self.balancers.is_empty();
            if idle || waits || self.stage == Stage::Transit {
                return;
            }
            self.proceed(build);
        }
    }

    /// All have answered.
    fn proceed(&mut self, build: &mut impl Build<K, Table = T>) {
        match self.stage {
            Stage::Idle => {}
            Stage::Recover => self.recovered(build),
            Stage::Refresh => self.give(Stage::Clear, Work::Stop),
            Stage::Prepare if self.window == Window::Freeze => {
                self.give(Stage::Freeze, Work::Freeze);
            }
            Stage::Prepare => {
                build.commit();
                self.publish(build.base());
            }
            Stage::Freeze => {
                // Nothing can start any more: with these, all that has started is known.
                build.next(&self.collected);
                build.commit();
                self.publish(build.base());
            }
            Stage::Settle => {
                let base = build.base();
                let pending = self.collected.pending.iter();
                let left = pending.filter(|(flow, at)| base.route(flow) != *at).count();
                self.update.took(Progress::Settled { left, avoids: false });
                self.perform(build);
            }
            Stage::Clear if matches!(self.work, Some(Work::Stop)) => {
                self.give(Stage::Clear, Work::Clear);
            }
            Stage::Clear => self.stop_here(),
            // Its table was published by this order, and the update has gone on from there.
            Stage::Commit => self.perform(build),
            Stage::Open | Stage::Transit | Stage::Collect | Stage::Stop => {
                self.update.took(Progress::Done);
                self.perform(build);
            }
        }
    }

    fn stop_here(&mut self) {
        self.stage = Stage::Idle;
        self.committed = false;
        self.dead.clear();
        self.rows = RowSet::default();
        self.collected = Collected::default();
    }

    /// The next actions of the update, as orders.
    fn perform(&mut self, build: &mut impl Build<K, Table = T>) {
        if !go_on(&mut Orders { to: self, build }) {
            self.stop_here();
        }
    }

    /// All balancers that answer have said what they have. If their tables differ, a commit was
    /// under way (or a backend had died), and the newest is the one to finish; all wait, frozen.
    fn recovered(&mut self, build: &mut impl Build<K, Table = T>) {
        let newest = self.reports.iter().max_by_key(|(table, _)| table.generation()).cloned();
        let Some((table, rows)) = newest else {
            // Nobody has a table: the service is new.
            self.open_next(build);
            return;
        };
        let generation = table.generation();
        let differ = self.reports.iter().any(|(other, _)| other.generation() != generation);
        build.adopt(&table);
        self.rows = rows;
        if differ {
            self.next_epoch();
            self.publish(table);
        } else {
            self.open_next(build);
        }
    }

    fn open_next(&mut self, build: &mut impl Build<K, Table = T>) {
        self.next_epoch();
        self.open(build);
    }
}

/// The actions of the update as orders to balancers and requests to agents: one is over when all have answered.
struct Orders<'a, K, T, B> {
    to: &'a mut Coordinator<K, T>,
    build: &'a mut B,
}

impl<K, T, B> Perform for Orders<'_, K, T, B>
where
    K: Copy + Ord,
    T: Routes<K> + Clone,
    B: Build<K, Table = T>,
{
    fn update(&mut self) -> &mut Update {
        &mut self.to.update
    }

    fn set_flags(&mut self, record: bool, pending: bool) -> Progress {
        if record {
            self.to.committed = false;
            self.to.give_open(Stage::Open, self.build.base());
        } else if pending {
            self.to.give(Stage::Stop, Work::Stop);
        } else {
            self.to.give(Stage::Clear, Work::Clear);
        }
        Progress::UnderWay
    }

    /// Each answer says that a grace period is over. What recording has missed must also have reached its
    /// backend, where it is found.
    fn grace(&mut self) -> Progress {
        if self.to.stage != Stage::Open {
            return Progress::Done;
        }
        self.to.stage = Stage::Transit;
        Progress::UnderWay
    }

    fn collect(&mut self) -> Progress {
        let doubtful = self.build.doubtful();
        let flows = doubtful.iter().map(|(flow, _)| *flow).collect();
        self.to.doubtful = doubtful;
        self.to.collected = Collected { doubtful: flows, ..Collected::default() };
        self.to.asked = self.to.agents.keys().copied().collect();
        self.to.give(Stage::Collect, Work::Gather);
        Progress::UnderWay
    }

    fn publish(&mut self) -> Progress {
        let next = self.build.next(&self.to.collected);
        if self.to.window == Window::Alone {
            self.build.commit();
            self.to.publish(next);
        } else {
            let hold = self.to.window == Window::Hold;
            self.to.give(Stage::Prepare, Work::Prepare { next, hold });
        }
        Progress::UnderWay
    }

    /// Nothing is pinned: exceptions are part of the table, and the table before it goes with the order to stop.
    fn retire(&mut self) -> Progress {
        Progress::Done
    }

    fn settle(&mut self) -> Progress {
        if self.to.window == Window::Freeze {
            return Progress::Done;
        }
        self.to.collected = Collected::default();
        self.to.give(Stage::Settle, Work::Gather);
        Progress::UnderWay
    }
}
