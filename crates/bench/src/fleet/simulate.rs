//! A change of a pool that a fleet makes in step (docs/fleet.md), in simulated time.
//!
//! What is written into the store and read from it is real ([`Document`], [`Sign`], [`Step`], [`Ack`]), and so is by
//! what the leader goes on ([`Step::missing`], [`Step::onward`]), what agents are asked and answer, and the table that
//! follows: with `residue` each balancer builds it and compares its rows with the leader's, with `concury` the leader
//! builds it, and the others ask for it and compare its digest. Whoever does something has a processor of its own: what
//! it takes of one here is added to the simulated time, and nothing else is done there meanwhile. Messages are on their
//! way for as long as a link takes, whatever their size; tables that the leader lends leave it one after the other
//! besides, by a line of 10 Gbit/s.
//!
//! Not in it: how long the store takes to write (a link to it and a link from it are), the engine around the
//! coordinator, TLS, packets' tables in the kernel, and how agents list what is half-open.

use super::{Request, known, ms, name_of, pool, spread};
use crate::error::{Context, ensure};
use crate::plane::used;
use crate::{Error, Result, Spread};
use prost::Message;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;
use weir_fleet::text::{self, Edit};
use weir_fleet::{
    Ack, Document, FLIGHT, Keys, Pools, Report, ServiceSign, Share, Sign, Stage, Step,
};
use weir_rpc::message;
use weir_rpc::{
    Collect, Collected, FromAgent, FromBalancer, TABLE_PART, TableAsked, TablePart, from_agent,
    from_balancer,
};
use weir_steering::{Build, Member, MethodId, Parcel, StateKey, digest_of};

/// The change that is made: of the configuration, and of the pool.
const CHANGE: u64 = 2;
const SERVICE: &str = "web";
/// Connections that are half-open at a backend just then.
const HALF_OPEN: u32 = 4;
/// Who leads.
const LEADER: usize = 0;
/// Bits of tables that leave the leader in a second.
const LINE: f64 = 10e9;

/// A change of a pool.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The method of the service.
    pub method: String,
    /// Balancers of the fleet.
    pub balancers: u32,
    /// Agents, each of which speaks to all of them.
    pub agents: u32,
    /// Backends of the pool that changes.
    pub backends: u16,
    /// Connections that every balancer knows.
    pub states: u32,
    /// From anybody to anybody else, milliseconds.
    pub link_ms: f64,
    /// From the command until the last balancer has built the new table: simulated time, in which processors take
    /// what they took here.
    pub followed_ms: Spread,
    /// The longest that new flows were held back at one balancer, in the same time.
    pub held_back_ms: Spread,
    /// As `followed_ms`, if nothing took any of a processor: links, and the time that packets are given.
    pub waits_ms: f64,
    /// Of a processor: the leader, in all.
    pub leader_cpu_ms: Spread,
    /// The same of the busiest of the others.
    pub follower_cpu_ms: Spread,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, balancers, agents, backends, states, link_ms, waits_ms, .. } = self;
        write!(
            f,
            "{method}, {balancers} balancers, {agents} agents, {backends} backends, {states} states, links of \
             {link_ms} ms: "
        )?;
        spread(f, "followed after", &self.followed_ms, "ms")?;
        write!(f, ", of which {waits_ms:.1} ms are waits")?;
        spread(f, "; flows held back", &self.held_back_ms, "ms")?;
        spread(f, "; processor: leader", &self.leader_cpu_ms, "ms")?;
        spread(f, ", others", &self.follower_cpu_ms, "ms")
    }
}

pub(super) fn run(request: &Request, method: MethodId, balancers: u32) -> Result<Change> {
    let members = [pool(request.backends, 1), pool(request.backends, 2)];
    let mut builder = known(method, request.states, &members[0])?;
    let former = former(method, builder.as_mut(), &members[0])?;
    let mut round = |costs| {
        let mut fleet =
            Fleet::new(request, balancers, builder.as_mut(), &members, former.as_ref(), costs);
        fleet.change()
    };
    let waits = round(false)?;
    let rounds = (0..request.rounds).map(|_| round(true)).collect::<Result<Vec<_>>>()?;
    let column = |of: fn(&Times) -> Duration| Spread::of(rounds.iter().map(|one| ms(of(one))));
    Ok(Change {
        method: method.to_string(),
        balancers,
        agents: request.agents,
        backends: request.backends,
        states: request.states,
        link_ms: ms(request.link),
        followed_ms: column(|one| one.followed),
        held_back_ms: column(|one| one.held_back),
        waits_ms: ms(waits.followed),
        leader_cpu_ms: column(|one| one.leader),
        follower_cpu_ms: column(|one| one.follower),
    })
}

/// The table that all follow before, with a method whose balancers follow one.
fn former(
    method: MethodId,
    builder: &mut dyn Build<StateKey>,
    members: &[Member],
) -> Result<Option<Parcel>> {
    if method != MethodId::Concury {
        return Ok(None);
    }
    let parcel = parcel_of(builder, 1, members)?;
    builder.draft_of(1, members, &parcel)?;
    builder.publish_draft();
    Ok(Some(parcel))
}

/// The table that a leader builds for all, of all that it knows.
fn parcel_of(
    builder: &mut dyn Build<StateKey>,
    generation: u64,
    members: &[Member],
) -> Result<Parcel> {
    let built = builder.draft(generation, members, 0)?;
    let parcel = Parcel::of(&built.table, |id| Some(name_of(id.index() as u16)));
    builder.discard_draft()?;
    parcel.ok_or_else(|| Error::Fault("a table cannot be lent".into()))
}

/// The rows that a table of this pool has, in short.
fn digest_of_rows(builder: &mut dyn Build<StateKey>, members: &[Member]) -> Result<Option<String>> {
    let rows = builder.rows_of(members)?;
    Ok(rows.map(|rows| {
        let bytes: Vec<u8> = rows.into_iter().flat_map(u16::to_le_bytes).collect();
        digest_of(&bytes)
    }))
}

/// How long so many bytes take to leave.
fn on_the_line(bytes: usize) -> Duration {
    Duration::from_secs_f64(bytes as f64 * 8.0 / LINE)
}

struct Times {
    followed: Duration,
    held_back: Duration,
    leader: Duration,
    follower: Duration,
}

/// What the store is told, and tells all.
enum Value {
    Document(Vec<u8>),
    Sign(usize, Vec<u8>),
    Step(Vec<u8>),
    Ack(usize, Vec<u8>),
}

enum Event {
    /// It is in the store.
    Written(Value),
    /// A balancer hears of it.
    Heard(usize, Rc<Value>),
    /// What has started before is at its backend.
    Flown(usize),
    /// All agents have answered.
    Answered(usize),
    /// The leader is asked for the next table by somebody.
    Asked(usize),
    /// Who has asked has got it.
    Lent(usize),
}

#[derive(Default)]
struct Balancer {
    /// When its processor has nothing to do, and what it has done.
    free: Duration,
    cpu: Duration,
    report: Report,
    step: Option<Step>,
    frozen: Option<Duration>,
    followed: Option<Duration>,
    thawed: Option<Duration>,
}

struct Fleet<'a> {
    request: &'a Request,
    balancers: Vec<Balancer>,
    names: Vec<String>,
    builder: &'a mut dyn Build<StateKey>,
    members: &'a [Vec<Member>; 2],
    /// The table that all have followed, where it is one for all.
    former: Option<&'a Parcel>,
    /// The one that all are to follow then, as it is sent; and when all that the leader has sent of it has left.
    lent: Rc<Vec<u8>>,
    line: Duration,
    /// Whether what a processor does takes time.
    costs: bool,
    events: BTreeMap<(Duration, u64), Event>,
    number: u64,
    /// The stage that the leader has written last.
    written: Option<Stage>,
}

fn text_of(backends: u16) -> String {
    let mut text = format!(
        "[[service]]\nname = {SERVICE:?}\nvip = \"10.0.0.1\"\nport = 80\nmethod = \"residue\"\nstates = \"agents\"\n"
    );
    for backend in 0..backends {
        let address = std::net::Ipv4Addr::from(0x0a01_0000 + u32::from(backend));
        let name = name_of(backend);
        text += &format!("\n[[service.backend]]\nname = {name:?}\naddress = \"{address}\"\n");
    }
    text
}

fn shares(members: &[Member]) -> Vec<Share> {
    let share = |member: &Member| Share {
        name: member.name.clone(),
        weight: member.weight,
        drains: false,
        down: false,
    };
    members.iter().map(share).collect()
}

impl<'a> Fleet<'a> {
    fn new(
        request: &'a Request,
        balancers: u32,
        builder: &'a mut dyn Build<StateKey>,
        members: &'a [Vec<Member>; 2],
        former: Option<&'a Parcel>,
        costs: bool,
    ) -> Self {
        let (events, number, written) = (BTreeMap::new(), 0, None);
        let (lent, line) = (Rc::default(), Duration::ZERO);
        let names: Vec<String> = (0..balancers).map(|at| format!("lb{at}")).collect();
        let balancers = names.iter().map(|_| Balancer::default()).collect();
        Self {
            request,
            balancers,
            names,
            builder,
            members,
            former,
            lent,
            line,
            costs,
            events,
            number,
            written,
        }
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.number += 1;
        self.events.insert((time, self.number), event);
    }

    /// A balancer does something when it has come to that; when it has done it.
    fn works<T>(
        &mut self,
        at: usize,
        from: Duration,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(Duration, T)> {
        let begun = used();
        let made = work(self)?;
        let took = if self.costs { used().saturating_sub(begun) } else { Duration::ZERO };
        let balancer = &mut self.balancers[at];
        balancer.cpu += took;
        balancer.free = balancer.free.max(from) + took;
        Ok((balancer.free, made))
    }

    fn write(&mut self, from: Duration, value: Value) {
        self.at(from + self.request.link, Event::Written(value));
    }

    /// From the command on, until nothing happens any more.
    fn change(&mut self) -> Result<Times> {
        let before = text_of(self.request.backends);
        // The last one is asked: it does not lead, if there are others.
        let last = self.balancers.len() - 1;
        let (asked, bytes) = self.works(last, Duration::ZERO, |_| {
            let text = text::edit(&before, SERVICE, &name_of(0), &Edit::Weight(2))
                .context("changing a configuration")?;
            let keys = BTreeMap::from([(SERVICE.to_owned(), Keys::default())]);
            Ok(Document::new(CHANGE, text, keys).to_bytes())
        })?;
        self.write(asked, Value::Document(bytes));
        while let Some(((now, _), event)) = self.events.pop_first() {
            match event {
                Event::Written(value) => {
                    let value = Rc::new(value);
                    for at in 0..self.balancers.len() {
                        self.at(now + self.request.link, Event::Heard(at, Rc::clone(&value)));
                    }
                }
                Event::Heard(at, value) => self.hears(at, now, &value)?,
                Event::Flown(at) => self.acknowledges(at, now)?,
                Event::Answered(at) => self.collects(at, now)?,
                Event::Asked(by) => self.lends(by, now)?,
                Event::Lent(at) => self.commits(at, now)?,
            }
        }
        let all = |of: fn(&Balancer) -> Option<Duration>| {
            let times = self.balancers.iter().map(of).collect::<Option<Vec<_>>>();
            times.and_then(|times| times.into_iter().max())
        };
        let held = |one: &Balancer| Some(one.thawed?.saturating_sub(one.frozen?));
        let (Some(followed), Some(held_back)) = (all(|one| one.followed), all(held)) else {
            return Err(Error::Fault("a step does not come to its end".into()));
        };
        let others = self.balancers.iter().skip(1).map(|one| one.cpu);
        let leader = self.balancers[LEADER].cpu;
        Ok(Times { followed, held_back, leader, follower: others.max().unwrap_or_default() })
    }

    fn hears(&mut self, at: usize, now: Duration, value: &Value) -> Result<()> {
        match value {
            Value::Document(bytes) => {
                let id = self.names[at].clone();
                let (then, sign) = self.works(at, now, |_| {
                    let document = Document::parse(bytes).map_err(Error::Fault)?;
                    let service = ServiceSign { name: SERVICE.into(), ..ServiceSign::default() };
                    let sign = Sign {
                        id,
                        change: document.change,
                        digest: document.digest(),
                        services: vec![service],
                        steps: true,
                        ..Sign::default()
                    };
                    Ok(serde_json::to_vec(&sign).context("writing a sign")?)
                })?;
                self.write(then, Value::Sign(at, sign));
            }
            Value::Sign(of, bytes) => {
                let name = self.names[*of].clone();
                let (then, ()) = self.works(at, now, |fleet| {
                    let sign = serde_json::from_slice(bytes).context("reading a sign")?;
                    fleet.balancers[at].report.balancers.insert(name, sign);
                    Ok(())
                })?;
                let all = self.balancers[at].report.balancers.len() == self.names.len();
                if at == LEADER && all && self.written.is_none() {
                    self.begins(then)?;
                }
            }
            Value::Step(bytes) => {
                let (then, stage) = self.works(at, now, |fleet| {
                    let step: Step = serde_json::from_slice(bytes).context("reading a step")?;
                    let stage = step.stage;
                    fleet.balancers[at].step = Some(step);
                    Ok(stage)
                })?;
                self.follows(at, then, stage)?;
            }
            Value::Ack(of, bytes) => {
                let name = self.names[*of].clone();
                let (then, ()) = self.works(at, now, |fleet| {
                    let ack = serde_json::from_slice(bytes).context("reading an answer")?;
                    fleet.balancers[at].report.acks.insert(name, ack);
                    Ok(())
                })?;
                if at == LEADER {
                    self.leads_on(then)?;
                }
            }
        }
        Ok(())
    }

    /// The leader begins the step when all follow the same configuration.
    fn begins(&mut self, now: Duration) -> Result<()> {
        self.written = Some(Stage::Prepare);
        let (then, step) = self.works(LEADER, now, |fleet| {
            let one = |members: &[Member]| Pools::from([(SERVICE.to_owned(), shares(members))]);
            let step = Step {
                number: 2,
                begun: 1,
                term: 1,
                stage: Stage::Prepare,
                change: CHANGE,
                pools: one(&fleet.members[0]),
                next: one(&fleet.members[1]),
                tables: BTreeMap::new(),
                next_tables: BTreeMap::new(),
                rows: BTreeMap::new(),
                next_rows: BTreeMap::new(),
            };
            Ok(serde_json::to_vec(&step).context("writing a step")?)
        })?;
        self.write(then, Value::Step(step));
        Ok(())
    }

    /// The leader takes all one stage further, when nobody is missing.
    fn leads_on(&mut self, now: Duration) -> Result<()> {
        let written = self.written;
        let (then, next) = self.works(LEADER, now, |fleet| {
            let leader = &fleet.balancers[LEADER];
            let step = leader.step.as_ref().filter(|step| Some(step.stage) == written);
            let step = step.filter(|step| step.stage != Stage::Done);
            let Some(step) = step.filter(|step| step.missing(&leader.report).is_empty()) else {
                return Ok(None);
            };
            let mut next = step.onward();
            if next.stage == Stage::Commit && fleet.costs {
                fleet.makes_tables(&mut next)?;
            }
            let bytes = serde_json::to_vec(&next).context("writing a step")?;
            Ok(Some((next.stage, bytes)))
        })?;
        if let Some((stage, bytes)) = next {
            self.written = Some(stage);
            self.write(then, Value::Step(bytes));
        }
        Ok(())
    }

    /// The leader knows of all that there is: what all are to follow.
    fn makes_tables(&mut self, next: &mut Step) -> Result<()> {
        if self.former.is_some() {
            let bytes = parcel_of(self.builder, 2, &self.members[1])?.to_bytes();
            next.next_tables.insert(SERVICE.into(), digest_of(&bytes));
            self.lent = Rc::new(bytes);
        } else if let Some(rows) = digest_of_rows(self.builder, &self.members[1])? {
            next.next_rows.insert(SERVICE.into(), rows);
        }
        Ok(())
    }

    /// Somebody asks the leader for the table.
    fn asks(&mut self, at: usize, now: Duration) -> Result<()> {
        let (then, ()) = self.works(at, now, |fleet| {
            let step = fleet.balancers[at].step.as_ref();
            let digest = step.and_then(|step| step.table_at(Stage::Commit, SERVICE)).cloned();
            let digest = digest.unwrap_or_default();
            let asked = TableAsked { service: SERVICE.into(), digest };
            std::hint::black_box(asked.encode_to_vec());
            Ok(())
        })?;
        self.at(then + self.request.link, Event::Asked(at));
        Ok(())
    }

    /// The leader sends it, in parts; those of all who ask leave by one line.
    fn lends(&mut self, by: usize, now: Duration) -> Result<()> {
        let (then, ()) = self.works(LEADER, now, |fleet| {
            for part in fleet.lent.chunks(TABLE_PART) {
                let part = TablePart { bytes: part.to_vec() };
                std::hint::black_box(part.encode_to_vec());
            }
            Ok(())
        })?;
        self.line = self.line.max(then) + on_the_line(self.lent.len());
        self.at(self.line + self.request.link, Event::Lent(by));
        Ok(())
    }

    /// Packets follow the next table from here on, if it is what the leader says that it is.
    fn commits(&mut self, at: usize, now: Duration) -> Result<()> {
        let (then, ()) =
            self.works(at, now, |fleet| if fleet.costs { fleet.makes(at) } else { Ok(()) })?;
        if self.costs {
            // For the next one, which makes the same of the same: no part of what it does.
            self.builder.discard_draft()?;
            match self.former {
                Some(former) => self.builder.draft_of(2, &self.members[0], former)?,
                None => self.builder.draft(2, &self.members[0], 0)?,
            };
            self.builder.discard_draft()?;
        }
        self.balancers[at].followed = Some(then);
        self.acknowledges(at, then)
    }

    /// A balancer makes its next table.
    fn makes(&mut self, at: usize) -> Result<()> {
        let step = self.balancers[at].step.as_ref();
        let table = step.and_then(|step| step.table_at(Stage::Commit, SERVICE)).cloned();
        let rows = step.and_then(|step| step.rows_at(Stage::Commit, SERVICE)).cloned();
        let built = if self.former.is_some() {
            let found = digest_of(&self.lent);
            ensure!(table.as_ref() == Some(&found), "a table is {found}, and not {table:?}");
            let parcel = Parcel::from_bytes(&self.lent).context("reading a table")?;
            self.builder.draft_of(2, &self.members[1], &parcel)?
        } else {
            let found = digest_of_rows(self.builder, &self.members[1])?;
            ensure!(found.is_some() && found == rows, "rows are {found:?}, and not {rows:?}");
            self.builder.draft(2, &self.members[1], 0)?
        };
        ensure!(built.astray == 0, "{} connections are led astray", built.astray);
        std::hint::black_box(&built);
        Ok(())
    }

    /// A balancer does its part of a stage.
    fn follows(&mut self, at: usize, now: Duration, stage: Stage) -> Result<()> {
        match stage {
            Stage::Prepare => self.acknowledges(at, now)?,
            Stage::Freeze => {
                self.balancers[at].frozen = Some(now);
                self.at(now + FLIGHT, Event::Flown(at));
            }
            Stage::Collect => {
                let agents = self.request.agents;
                let (then, ()) = self.works(at, now, |_| {
                    for _ in 0..agents {
                        let what = from_balancer::What::Collect(Collect { number: 1 });
                        std::hint::black_box(FromBalancer { what: Some(what) }.encode_to_vec());
                    }
                    Ok(())
                })?;
                // Each agent answers all balancers, one after the other; this one may be the last.
                let begun = used();
                for _ in 0..self.balancers.len() {
                    std::hint::black_box(answer());
                }
                let took = if self.costs { used().saturating_sub(begun) } else { Duration::ZERO };
                self.at(then + self.request.link * 2 + took, Event::Answered(at));
            }
            Stage::Commit if self.former.is_some() && at != LEADER => self.asks(at, now)?,
            Stage::Commit => self.commits(at, now)?,
            Stage::Done => self.balancers[at].thawed = Some(now),
        }
        Ok(())
    }

    /// Reads what all agents have answered.
    fn collects(&mut self, at: usize, now: Duration) -> Result<()> {
        let bytes = answer();
        let agents = if self.costs { self.request.agents } else { 0 };
        let (then, half_open) = self.works(at, now, |_| {
            let mut half_open = 0;
            for _ in 0..agents {
                let said = FromAgent::decode(&bytes[..]).context("reading an answer")?;
                if let Some(from_agent::What::Collected(said)) = &said.what {
                    half_open += message::collected(said).context("reading an answer")?.len();
                }
            }
            Ok(half_open)
        })?;
        ensure!(half_open == (agents * HALF_OPEN) as usize, "{half_open} are read");
        self.acknowledges(at, then)
    }

    fn acknowledges(&mut self, at: usize, now: Duration) -> Result<()> {
        let id = self.names[at].clone();
        let (then, ack) = self.works(at, now, |fleet| {
            let step = fleet.balancers[at].step.as_ref();
            let Some(step) = step else { return Ok(Vec::new()) };
            let ack = Ack { id, step: step.id(), stage: step.stage, late: false, lags: false };
            Ok(serde_json::to_vec(&ack).context("writing an answer")?)
        })?;
        self.write(then, Value::Ack(at, ack));
        Ok(())
    }
}

/// What an agent answers that was asked what is half-open.
fn answer() -> Vec<u8> {
    let connection = (0..HALF_OPEN).map(|n| super::agents::connection(0, n).into()).collect();
    let what = from_agent::What::Collected(Collected { number: 1, connection, last: true });
    FromAgent { what: Some(what) }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without costs the time is that of links and of the wait for packets alone: two links for each of the document,
    /// the signs, four times a step and its answers, the agents, and the last step; and where one table is for all two
    /// more, by which it is asked for and comes.
    #[test]
    fn waits_are_links_and_the_flight_of_packets() {
        let link = Duration::from_millis(1);
        let request = Request {
            weir: "/none".into(),
            methods: vec![],
            balancers: vec![],
            agents: 10,
            backends: 8,
            states: 100,
            link,
            rate: 1,
            seconds: 1,
            connections: 1,
            sessions: 1,
            rounds: 1,
            patience: Duration::ZERO,
        };
        for (method, asks) in [(MethodId::Residue, 0), (MethodId::Concury, 2)] {
            for balancers in [1, 3, 10] {
                // The leader has what it has built.
                let asks = if balancers == 1 { 0 } else { asks };
                let members = [pool(8, 1), pool(8, 2)];
                let mut builder = known(method, 100, &members[0]).expect("a table");
                let former = former(method, builder.as_mut(), &members[0]).expect("a table");
                let (builder, former) = (builder.as_mut(), former.as_ref());
                let mut fleet = Fleet::new(&request, balancers, builder, &members, former, false);
                let times = fleet.change().expect("it ends");
                // Document, signs; prepare, freeze, collect with their answers, and commit.
                let followed = FLIGHT + link * (2 + 2 + 3 * 4 + 2 + 2 + asks);
                assert_eq!(times.followed, followed, "{method}, {balancers}");
                // From freeze on: its answers, collect with the agents and its answers, commit with its answers, done.
                let held_back = FLIGHT + link * (2 + 2 + 2 + 2 + 2 + 2 + 2 + asks);
                assert_eq!(times.held_back, held_back, "{method}, {balancers}");
                assert_eq!((times.leader, times.follower), (Duration::ZERO, Duration::ZERO));
            }
            let row = run(&request, method, 3).expect("it is measured");
            assert!(
                row.followed_ms.median >= row.waits_ms && row.held_back_ms.median > 20.0,
                "{row}"
            );
        }
    }
}
