//! The model. One service, whose pools are numbered: by the pool with number *n* new flows go to backend *n* modulo 2, so
//! that each change moves all that it has not been told of.

use crate::search::{Model, Sink};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use weir_fleet::{
    Ack, Apart, At, Due, Lead, Leading, Part, Patience, Pools, Report, Share, Sign, Silence, Stage,
    Step,
};

const BALANCERS: usize = 2;
const FLOWS: usize = 2;
const SERVICE: &str = "a";

/// How much happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub flows: u8,
    pub steps: u8,
    pub cuts: u8,
    pub kills: u8,
    pub terms: u8,
}

/// A departure from the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// None: the protocol as it is.
    None,
    /// Balancers say *freeze* while flows start.
    NoFreeze,
    /// They follow the next pools without asking the agents.
    NoListing,
    /// They let flows start as soon as they follow the next pools.
    EarlyThaw,
    /// The leader goes on when it has come so far itself.
    NobodyIsAwaited,
    /// It does not wait for the lease of whoever has not said that it knows of *commit*.
    NoLease,
    /// Who is cut off takes its word back as soon as it notices.
    NoWord,
    /// The leader goes on by words that are old.
    OldWords,
    /// What agents have said before *collect* counts in it.
    OldAnswers,
    /// A process that has just begun does not say that packets follow the tables of the one before.
    RestartUnseen,
}

pub struct Rules {
    pub budget: Budget,
    /// All follow one table, which the leader builds.
    pub shared: bool,
    /// Who is cut off is not announced (`withdraw_after`).
    pub strict: bool,
    pub fault: Fault,
    /// States in which a packet that may be led astray would be.
    pub excused: u64,
}

/// A step as the store has it; there are few, and many states that have it.
#[derive(Clone)]
struct Shown(Rc<Step>);

impl Shown {
    fn new(step: Step) -> Self {
        Self(Rc::new(step))
    }

    /// What tells one value from another.
    fn key(&self) -> (At, u64) {
        (self.0.at(), self.0.term)
    }
}

impl PartialEq for Shown {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key() && self.0.next_tables == other.0.next_tables
    }
}

impl Hash for Shown {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key().hash(hasher);
        (number(&self.0.pools), number(&self.0.next)).hash(hasher);
        (self.0.tables.get(SERVICE), self.0.next_tables.get(SERVICE)).hash(hasher);
    }
}

fn pools(number: u8) -> Pools {
    let share = Share { name: "x".into(), weight: number.into(), drains: false, down: false };
    Pools::from([(SERVICE.into(), vec![share])])
}

fn number(pools: &Pools) -> Option<u8> {
    Some(pools.get(SERVICE)?[0].weight as u8)
}

/// A table by its digest: the flows that it was built with.
fn table(known: u8) -> BTreeMap<String, String> {
    BTreeMap::from([(SERVICE.into(), known.to_string())])
}

fn known(tables: &BTreeMap<String, String>) -> u8 {
    tables[SERVICE].parse().expect("a number")
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Said {
    id: u8,
    at: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Signed {
    id: u8,
    steps: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Seen {
    acks: [Option<Said>; BALANCERS],
    signs: [Option<Signed>; BALANCERS],
}

/// A balancer: its process, and the packets, which go on without it.
#[derive(Clone, PartialEq, Hash)]
struct Node {
    runs: bool,
    id: u8,
    /// Its process has just begun, and agents have not listed what they hold.
    settles: bool,
    part: Part,
    step: Shown,
    /// The last one that was over here, on its disc.
    kept: Shown,
    seen: Seen,
    /// Nothing that is said comes to the store or from there; it has noticed; that has lasted; its lease, and that of the
    /// process before it, has run out by its own clock.
    cut: bool,
    silent: bool,
    lasts: bool,
    lease_over: bool,
    before_over: bool,
    /// It leads, as it has it, in which term, and has written this *freeze* or *collect* not long ago.
    leads: bool,
    term: u64,
    wrote: Option<At>,
    /// By which pool packets go, but for these flows; whether flows start.
    pool: u8,
    known: u8,
    frozen: bool,
    /// What agents have said since.
    listed: Option<u8>,
    /// A process before this one has made the table.
    unsure: bool,
    /// The others have gone on without it.
    behind: bool,
}

#[derive(Clone, PartialEq, Hash)]
pub struct World {
    nodes: [Node; BALANCERS],
    step: Shown,
    seen: Seen,
    leader: Option<u8>,
    term: u64,
    /// Where flows live, and whether that may be lost: it has begun at somebody whom the others had gone on without.
    flows: [Option<(u8, bool)>; FLOWS],
    left: Budget,
}

impl Node {
    fn at(&self) -> At {
        self.step.0.at()
    }

    fn route(&self, flow: usize, home: Option<u8>) -> u8 {
        home.filter(|_| self.known & 1 << flow != 0).unwrap_or(self.pool % 2)
    }

    fn freeze(&mut self, fault: Fault) {
        (self.frozen, self.listed) = (fault != Fault::NoFreeze, None);
        self.part.frozen = Some(self.step.0.id());
    }

    fn thaw(&mut self) {
        (self.frozen, self.listed) = (false, None);
        (self.part.frozen, self.part.thawed) = (None, true);
    }
}

impl World {
    fn new(budget: Budget) -> Self {
        let step = Shown::new(Step {
            number: 1,
            begun: 1,
            term: 1,
            stage: Stage::Done,
            change: 1,
            pools: pools(0),
            next: Pools::new(),
            tables: table(0),
            next_tables: BTreeMap::new(),
            rows: BTreeMap::new(),
            next_rows: BTreeMap::new(),
        });
        let signs = [Some(Signed { id: 0, steps: true }); BALANCERS];
        let seen = Seen { acks: [None; BALANCERS], signs };
        let over = Some(step.0.id());
        let part = Part { thawed: true, committed: over, over, ..Part::after(false) };
        let node = Node {
            runs: true,
            id: 0,
            settles: false,
            part,
            step: step.clone(),
            kept: step.clone(),
            seen,
            cut: false,
            silent: false,
            lasts: false,
            lease_over: false,
            before_over: true,
            leads: false,
            term: 0,
            wrote: None,
            pool: 0,
            known: 0,
            frozen: false,
            listed: None,
            unsure: false,
            behind: false,
        };
        let mut nodes = [node.clone(), node];
        (nodes[0].leads, nodes[0].term) = (true, 1);
        Self { nodes, step, seen, leader: Some(0), term: 1, flows: [None; FLOWS], left: budget }
    }

    /// What agents say.
    fn living(&self) -> u8 {
        let living = self.flows.iter().enumerate().filter(|(_, flow)| flow.is_some());
        living.fold(0, |all, (flow, _)| all | 1 << flow)
    }

    /// A balancer says what it has come to. Without a lease in the store it is said with the next one.
    fn say(&mut self, at: usize, said: At) {
        let node = &mut self.nodes[at];
        node.part.acked = Some(said);
        self.put_said(at);
    }

    fn put_said(&mut self, at: usize) {
        let node = &self.nodes[at];
        let left = node.part.left.map(|id| (id, Stage::Prepare));
        let signed = self.seen.signs[at].is_some_and(|sign| sign.id == node.id);
        if !node.cut && signed {
            self.seen.acks[at] = node.part.acked.or(left).map(|at| Said { id: node.id, at });
        }
    }

    fn hears(&mut self, at: usize, fault: Fault) {
        let (step, seen) = (self.step.clone(), self.seen);
        let node = &mut self.nodes[at];
        let (next, _) = node.part.hears(Some(&node.step.0), Some((*step.0).clone()));
        let next = next.map_or(step, Shown::new);
        if next != node.step {
            if node.part.turns_to(Some(&node.step.0), Some(&next.0)) && fault != Fault::OldAnswers {
                node.listed = None;
            }
            node.step = next;
        }
        node.seen = seen;
        (node.silent, node.lasts, node.lease_over) = (false, false, false);
    }

    /// Whoever it is has a lease, and says what it has said before.
    fn signs(&mut self, at: usize) {
        let node = &self.nodes[at];
        self.seen.signs[at] = Some(Signed { id: node.id, steps: !node.settles });
        self.seen.acks[at] = None;
        self.put_said(at);
    }

    fn report(&self, at: usize, fault: Fault) -> Report {
        let mut report = Report::default();
        report.reachable = true;
        for (other, (ack, sign)) in
            self.nodes[at].seen.acks.iter().zip(self.nodes[at].seen.signs).enumerate()
        {
            let name = other.to_string();
            if let Some(Said { id, at: (step, stage) }) = *ack {
                let id = id.to_string();
                let ack = Ack { id, step, stage, late: false, lags: false };
                report.acks.insert(name.clone(), ack);
            }
            if let Some(Signed { id, steps }) = sign {
                let forwards = fault != Fault::RestartUnseen;
                let id = id.to_string();
                report.balancers.insert(name, Sign { id, steps, forwards, ..Sign::default() });
            }
        }
        report
    }

    /// The leader writes a step, which the store takes if it leads, and knows the one before.
    fn write(&mut self, at: usize, step: Step) -> bool {
        let node = &self.nodes[at];
        let leads = self.leader == Some(at as u8) && self.term == node.term;
        let done = !node.cut && leads && self.step == node.step;
        if done {
            self.step = Shown::new(Step { term: node.term, ..step });
        }
        done
    }
}

/// What a state does next is a copy of it, changed.
struct Next<'a> {
    world: &'a World,
    sink: &'a mut Sink<World>,
}

impl Next<'_> {
    fn may(&mut self, label: impl FnOnce() -> String, change: impl FnOnce(&mut World)) {
        let mut next = self.world.clone();
        change(&mut next);
        if next != *self.world {
            self.sink.push(next, label);
        }
    }
}

impl Rules {
    fn is_announced(&self, node: &Node) -> bool {
        !(self.strict && node.runs && node.lasts)
    }

    /// One thing that a balancer does in a step, as it is due.
    fn follows(&self, world: &mut World, at: usize) {
        let fault = self.fault;
        let living = world.living();
        let node = &mut world.nodes[at];
        let (step, when) = (node.step.clone(), node.at());
        let id = step.0.id();
        let in_force = number(&step.0.pools).expect("there is one");
        let made_up = node.pool == in_force && !node.unsure;
        let lists = |node: &mut Node| {
            node.listed = Some(if fault == Fault::NoListing { 0 } else { living });
        };
        // Whatever comes after *freeze* comes after that: one of them at a time.
        let collects = |node: &mut Node| {
            if node.part.frozen != Some(id) {
                node.freeze(fault);
            } else if node.listed.is_none() {
                lists(node);
            } else {
                return true;
            }
            false
        };
        let made = |node: &mut Node, pool: u8, tables: &BTreeMap<String, String>| {
            let listed = node.listed.expect("it was asked for");
            node.known = if self.shared { known(tables) } else { listed };
            (node.pool, node.unsure) = (pool, false);
            if fault == Fault::EarlyThaw {
                node.frozen = false;
            }
        };
        match node.part.due(when) {
            Due::Nothing => {}
            Due::Prepare | Due::End if !made_up => {
                if collects(node) {
                    made(node, in_force, &step.0.tables);
                }
            }
            Due::Prepare => {
                node.thaw();
                world.say(at, when);
            }
            Due::Freeze => {
                if node.part.frozen == Some(id) {
                    world.say(at, when);
                } else {
                    node.freeze(fault);
                }
            }
            Due::Collect => {
                if collects(node) {
                    world.say(at, when);
                }
            }
            Due::Commit => {
                if node.part.committed == Some(id) {
                    world.say(at, when);
                } else if collects(node) {
                    let next = number(&step.0.next).expect("there is one");
                    made(node, next, &step.0.next_tables);
                    node.part.committed = Some(id);
                }
            }
            Due::End => {
                node.thaw();
                (node.part.committed, node.part.over) = (Some(id), Some(id));
                node.kept = step;
                let signed = world.seen.signs[at].is_some_and(|sign| sign.id == node.id);
                let last = world.step.0.id() == id;
                if signed && !node.cut && last {
                    node.behind = false;
                }
            }
        }
    }

    fn turns(&self, next: &mut Next<'_>, at: usize) {
        let node = &next.world.nodes[at];
        if node.settles {
            // It has only to let flows start that wait for nothing.
            let follows = number(&node.step.0.pools) == Some(node.pool)
                && (!self.shared || known(&node.step.0.tables) == node.known);
            if node.step.0.stage == Stage::Done && !node.silent && follows {
                next.may(|| format!("{at} lets flows start again"), |world| world.nodes[at].thaw());
            }
            return;
        }
        let silence = Silence {
            lasts: node.lasts,
            lease_is_over: node.lease_over || self.fault == Fault::NoWord && node.lasts,
            lease_before_is_over: node.before_over,
        };
        let at_step = Some(node.at());
        match node.silent.then(|| node.part.apart(at_step, self.strict, silence)) {
            None | Some(Apart::Follows) => {
                let what =
                    || format!("{at} goes on in {:?} as {:?}", node.at(), node.part.due(node.at()));
                next.may(what, |world| self.follows(world, at));
            }
            Some(Apart::Lapses(step)) => {
                let what = || format!("{at} notes that its lease has run out");
                next.may(what, |world| world.nodes[at].part.lapsed = Some(step));
            }
            Some(Apart::Waits) => {}
            Some(Apart::Starts { word }) => {
                let found = node.part.found_word();
                if node.part.frozen.is_some() || found {
                    let what = || format!("{at} lets flows start alone");
                    next.may(what, |world| {
                        let node = &mut world.nodes[at];
                        node.thaw();
                        if word {
                            node.part.takes_back(node.step.0.id());
                        }
                    });
                }
            }
        }
    }

    fn leads(&self, next: &mut Next<'_>, at: usize) {
        let (world, fault) = (next.world, self.fault);
        let node = &world.nodes[at];
        let (step, report) = (node.step.0.clone(), world.report(at, fault));
        if step.stage == Stage::Done {
            let all = report.balancers.values().all(|sign| sign.steps);
            if node.part.over == Some(step.id()) && !node.settles && all && world.left.steps > 0 {
                let pool = number(&step.pools).expect("there is one") + 1;
                let begun = Step {
                    number: step.number + 1,
                    begun: node.term,
                    stage: Stage::Prepare,
                    next: pools(pool),
                    ..(*step).clone()
                };
                next.may(
                    || format!("{at} begins step {}", step.number + 1),
                    |world| {
                        if world.write(at, begun) {
                            world.left.steps -= 1;
                        }
                    },
                );
            }
            return;
        }
        let mut missing = step.missing(&report);
        let own = at.to_string();
        let listed = node.part.acked == Some((step.id(), Stage::Collect)) && node.listed.is_some();
        if self.shared && step.stage == Stage::Collect && !listed && !missing.contains(&own) {
            missing.push(own.clone());
        }
        if fault == Fault::NobodyIsAwaited {
            missing.retain(|name| *name == own);
        }
        let wrote = node.wrote == Some(step.at()) || fault == Fault::OldWords;
        // Whoever has a lease for so long after *commit* has heard of it.
        let knows = |name: &String| {
            let other: usize = name.parse().expect("a number");
            let there = &world.nodes[other];
            world.seen.signs[other].is_none() || there.runs && there.at() >= step.at()
        };
        let lease = missing.iter().all(knows) || fault == Fault::NoLease;
        let asked = Cell::new(false);
        for waited in [false, true] {
            let is_over = |patience: Patience| {
                asked.set(true);
                waited && (patience != Patience::Lease || lease)
            };
            let leading = Leading { missing: &missing, report: &report, wrote, lost: false };
            let does = step.led(&leading, is_over);
            let (written, without) = match does {
                Lead::Waits => continue,
                Lead::GivesUpOld | Lead::GivesUp => (step.given_up(), false),
                Lead::Commits | Lead::CommitsAnew => {
                    let next_tables = table(node.listed.unwrap_or_default());
                    (Step { stage: Stage::Commit, next_tables, ..(*step).clone() }, false)
                }
                Lead::GoesOn => (step.onward(), false),
                Lead::GoesOnWithout => (step.onward(), true),
            };
            next.may(
                || format!("{at} leads {:?}: {does:?} without {missing:?}", step.at()),
                |world| {
                    let wrote = written.at();
                    if !world.write(at, written) {
                        return;
                    }
                    if matches!(wrote.1, Stage::Freeze | Stage::Collect) {
                        world.nodes[at].wrote = Some(wrote);
                    }
                    for name in missing.iter().filter(|_| without) {
                        world.nodes[name.parse::<usize>().expect("a number")].behind = true;
                    }
                },
            );
            if !asked.get() {
                return;
            }
        }
    }

    /// What goes wrong, and is mended.
    fn suffers(&self, next: &mut Next<'_>, at: usize) {
        let world = next.world;
        let node = &world.nodes[at];
        let signed = world.seen.signs[at].is_some_and(|sign| sign.id == node.id);
        // Nobody has asked for words lately.
        let old = world.nodes.iter().all(|one| one.wrote.is_none());
        if node.wrote.is_some() {
            let what = || format!("what was said to {at} is old");
            next.may(what, |world| world.nodes[at].wrote = None);
        }
        if world.left.cuts > 0 && !node.cut {
            next.may(
                || format!("{at} is cut off"),
                |world| {
                    world.left.cuts -= 1;
                    world.nodes[at].cut = true;
                },
            );
        }
        if node.cut {
            next.may(|| format!("{at} is no longer cut off"), |world| world.nodes[at].cut = false);
            if node.runs {
                next.may(|| format!("{at} notices"), |world| world.nodes[at].silent = true);
            }
            if node.silent {
                let what = || format!("{at} hears nothing for long");
                next.may(what, |world| world.nodes[at].lasts = true);
            }
            let given = node.part.has_given_word(Some(node.at()));
            if node.lasts && (old || !given) {
                let what = || format!("the lease of {at} is over by its clock");
                next.may(what, |world| world.nodes[at].lease_over = true);
            }
        }
        if node.leads && (node.cut || !node.runs) {
            next.may(|| format!("{at} does not lead"), |world| world.nodes[at].leads = false);
        }
        if node.runs && !node.before_over && old {
            let before = world.seen.signs[at].is_some_and(|sign| sign.id != node.id);
            if !before {
                let what = || format!("the lease of the process before {at} is over");
                next.may(what, |world| world.nodes[at].before_over = true);
            }
        }
        let may_expire = !node.leads && (!node.runs || node.cut && node.lease_over || !signed);
        if world.seen.signs[at].is_some() && may_expire {
            next.may(
                || format!("the lease of {at} runs out"),
                |world| {
                    (world.seen.signs[at], world.seen.acks[at]) = (None, None);
                    world.nodes[at].behind = true;
                    if world.leader == Some(at as u8) {
                        world.leader = None;
                    }
                },
            );
        }
        if world.left.kills > 0 && node.runs {
            next.may(
                || format!("{at} is killed"),
                |world| {
                    world.left.kills -= 1;
                    world.nodes[at].runs = false;
                },
            );
        }
        if !node.runs {
            next.may(
                || format!("{at} starts again"),
                |world| {
                    let (step, seen) = (world.step.clone(), world.seen);
                    let node = &mut world.nodes[at];
                    let cut = node.cut;
                    *node = Node {
                        runs: true,
                        id: node.id + 1,
                        settles: true,
                        part: Part::after(node.frozen),
                        step: if cut { node.kept.clone() } else { step },
                        kept: node.kept.clone(),
                        seen: if cut { Seen::default() } else { seen },
                        cut,
                        silent: cut,
                        lasts: false,
                        lease_over: false,
                        before_over: false,
                        leads: false,
                        term: 0,
                        wrote: None,
                        pool: node.pool,
                        known: node.known,
                        frozen: node.frozen,
                        listed: None,
                        unsure: true,
                        behind: node.behind,
                    };
                },
            );
        }
        if node.runs && node.settles {
            next.may(
                || format!("agents have told {at}"),
                |world| {
                    world.nodes[at].settles = false;
                    if signed && !world.nodes[at].cut {
                        world.seen.signs[at] = Some(Signed { id: world.nodes[at].id, steps: true });
                    }
                },
            );
        }
        if node.runs && !node.cut {
            next.may(|| format!("{at} hears the store"), |world| world.hears(at, self.fault));
            let sign = Signed { id: node.id, steps: !node.settles };
            if world.seen.signs[at] != Some(sign) {
                next.may(|| format!("{at} signs"), |world| world.signs(at));
            }
            if world.leader.is_none() && signed && world.left.terms > 0 {
                next.may(
                    || format!("{at} leads"),
                    |world| {
                        world.left.terms -= 1;
                        world.term += 1;
                        world.leader = Some(at as u8);
                        (world.nodes[at].leads, world.nodes[at].term) = (true, world.term);
                    },
                );
            }
        }
    }

    /// Whether a packet of a flow comes to another backend by a balancer, and whether that may be.
    fn astray(&self, world: &World) -> Option<bool> {
        let mut excused = None;
        for (flow, lives) in world.flows.iter().enumerate() {
            let Some((home, may)) = *lives else { continue };
            for node in world.nodes.iter().filter(|node| self.is_announced(node)) {
                if node.route(flow, Some(home)) != home {
                    match may || node.behind {
                        true => excused = Some(true),
                        false => return Some(false),
                    }
                }
            }
        }
        excused
    }
}

impl Model for Rules {
    type State = World;

    fn initial(&self) -> Vec<World> {
        vec![World::new(self.budget)]
    }

    fn hash(&self, state: &World, hasher: &mut impl Hasher) {
        state.hash(hasher);
    }

    fn successors(&self, state: &World, sink: &mut Sink<World>) {
        let mut next = Next { world: state, sink };
        for (at, node) in state.nodes.iter().enumerate() {
            if node.runs {
                self.turns(&mut next, at);
                if node.leads && !node.silent {
                    self.leads(&mut next, at);
                }
            }
            self.suffers(&mut next, at);
            let flow = state.flows.iter().position(Option::is_none);
            if let Some(flow) = flow.filter(|_| state.left.flows > 0 && !node.frozen)
                && self.is_announced(node)
            {
                next.may(
                    || format!("flow {flow} begins by {at}, at backend {}", node.route(flow, None)),
                    |world| {
                        world.left.flows -= 1;
                        let node = &world.nodes[at];
                        world.flows[flow] = Some((node.route(flow, None), node.behind));
                    },
                );
            }
        }
    }

    fn broken(&self, state: &World) -> bool {
        self.astray(state) == Some(false)
    }

    fn visited(&mut self, state: &World) {
        self.excused += u64::from(self.astray(state).is_some());
    }
}
