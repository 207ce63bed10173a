//! Balancers that change pools in step, with the store, agents, clients and backends played here: whatever comes
//! in which order, packets of a connection go to its backend, by whichever balancer they come.

mod cut;
mod looks;
mod lost;
mod named;

use super::*;
use crate::tables::Wish;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use tokio::sync::{mpsc, watch};
use weir_fleet::{
    Ack, Ask, Cache, Did, Document, Leader, Mark, Report, Sign, Stage, Step, cache_path, text,
};
use weir_rpc::Endpoints;
use weir_rpc::message::{Connection, Kind};

/// So long a test waits for what takes no time to speak of.
const PATIENCE: Duration = Duration::from_secs(600);
const BALANCERS: usize = 3;
const BACKENDS: u8 = 5;
const CLIENTS: u32 = 400;
/// The step after which addresses and ports of a connection are used again, where they are not.
const NEVER: u64 = u64::MAX - 1;
/// So much of what became of a client is said where that is not what should have.
const DOINGS: usize = 200;
/// And what was said in so many lines before is not said again.
const REPEATED: usize = 12;
/// Methods whose pools change in step, with few rows, so that many flows share one.
const RESIDUE: &str = "\"residue\"\nrows = 1024";
const CONCURY: &str = "\"concury\"\ndcode_bits = 6";

/// `strict`: whoever is apart is not announced.
fn own(directory: &TempDir, strict: bool) -> String {
    let withdraw = if strict { "withdraw_after = \"5s\"\n" } else { "" };
    format!(
        "[balancer]\ninterfaces = [\"eth0\"]\nrun_dir = {:?}\n\n[store]\nkind = \"etcd\"\n\
         endpoints = [\"http://127.0.0.1:1\"]\n{withdraw}\n[agents]\nlisten = \"127.0.0.1:4479\"\n\
         certificate = \"/none.pem\"\nkey = \"/none.key\"\nca = \"/none-ca.pem\"\nlearn = \"60s\"\n",
        directory.path().display().to_string()
    )
}

/// A service with these backends and weights; 0: it drains.
fn shared(method: &str, backends: &BTreeMap<u8, u32>) -> String {
    let mut text = format!(
        "[[service]]\nname = \"a\"\nvip = \"10.0.0.1\"\nport = 80\nmethod = {method}\n\
         states = \"agents\"\ncheck = {{ enabled = false }}\n",
    );
    for (n, weight) in backends {
        let (drain, weight) = (*weight == 0, (*weight).max(1));
        text += &format!(
            "[[service.backend]]\nname = \"b{n}\"\naddress = \"10.9.0.{n}\"\nweight = {weight}\ndrain = {drain}\n"
        );
    }
    text
}

/// What the store tells a balancer, in its order.
#[derive(Clone)]
enum Item {
    Step(Step, i64),
    Config(Box<Document>, i64),
    Ack(String, Ack),
    Sign(String, Box<Sign>),
    Lead {
        leader: usize,
        term: u64,
    },
    /// The lease of this balancer has run out.
    Gone(String),
}

/// What an agent says to a balancer, in its order.
enum Word {
    Event(Kind, u32),
    Dump(Vec<u32>),
    /// The rest of a dump.
    Part(Vec<u32>),
    End,
    Collected(u64, Vec<u32>),
}

struct Session {
    number: u64,
    endpoints: Endpoints,
    next: u64,
    orders: mpsc::Receiver<Order>,
    words: VecDeque<Word>,
    _ended: oneshot::Receiver<Over>,
}

struct Member {
    engine: Option<Engine<Soft>>,
    directory: TempDir,
    asks: mpsc::Receiver<Ask>,
    sign: watch::Receiver<Sign>,
    report: watch::Sender<Report>,
    commands: Commands,
    items: VecDeque<Item>,
    sessions: BTreeMap<u8, Session>,
    /// What was left to say in sessions that were lost, and how often their agents do not call again yet.
    cut: BTreeMap<u8, (Session, u32)>,
    /// The store does not answer it, and what it has said last of a step.
    apart: bool,
    said: Option<Ack>,
    /// Tables that it asks the others for.
    wishes: mpsc::UnboundedReceiver<Wish>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    HalfOpen,
    Open,
}

struct Fleet {
    method: &'static str,
    strict: bool,
    runtime: tokio::runtime::Runtime,
    rng: StdRng,
    members: Vec<Member>,
    revision: i64,
    document: Document,
    document_at: i64,
    step: Option<Step>,
    step_at: i64,
    acks: BTreeMap<String, Ack>,
    signs: BTreeMap<String, Sign>,
    leader: usize,
    term: u64,
    sessions: u64,
    pool: BTreeMap<u8, u32>,
    /// Where connections live.
    live: BTreeMap<u32, (u8, Phase)>,
    /// The step in which a client's connection ended, or the last balancer heard of that. Its addresses and ports are used
    /// again after two others, and not if it died with its backend (docs/fleet.md, In step, says what may happen
    /// otherwise).
    ended: BTreeMap<u32, u64>,
    /// SYNs that came to somebody dead: of which client, by which balancer, to whom, and in which step that one's agent has
    /// listed since what it holds.
    at_the_dead: BTreeMap<(u32, usize, u8), Option<u64>>,
    /// The steps that were made to the end: tables are made anew in these alone.
    committed: std::collections::BTreeSet<u64>,
    /// Backends whose machines are off.
    dead: std::collections::BTreeSet<u8>,
    /// Those with which their agents are off.
    off: std::collections::BTreeSet<u8>,
    /// How often each has been off.
    born: BTreeMap<u8, u8>,
    /// What all have done in steps.
    trace: Vec<Mark>,
    /// Who makes other rows than the leader does, as far as it can tell.
    differs: Option<usize>,
    /// To whom nobody gives a table.
    tableless: Option<usize>,
    /// A client whose doings are printed.
    watched: Option<u32>,
    /// What became of each client last.
    doings: std::cell::RefCell<BTreeMap<u32, VecDeque<String>>>,
    done: u64,
    given_up: u64,
    held_back: u64,
    told_again: u64,
}

/// A lease that does not run out.
fn far() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(3600)
}

fn name(member: usize) -> String {
    format!("lb{member}")
}

fn connection(endpoint: u32, client: u32) -> Connection {
    let flow = flow(0, client);
    let address: [u8; 4] = flow.src[12..].try_into().expect("four");
    Connection { endpoint, client: IpAddr::from(address), client_port: flow.src_port, port: None }
}

fn parsed(directory: &TempDir, shared: &str, strict: bool) -> Config {
    let text = text::join(&own(directory, strict), shared);
    Config::parse(&text, "weir.toml").expect("it can be used")
}

impl Fleet {
    fn new(seed: u64, method: &'static str, strict: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let pool: BTreeMap<u8, u32> = (1..=3).map(|n| (n, 1)).collect();
        let directory = tempfile::tempdir().expect("a temporary directory");
        // Keys as the first balancer would draw them.
        let config = parsed(&directory, &shared(method, &pool), strict);
        let cache = Cache { id: "0".into(), document: None, step: None };
        let (own, left, notes) = (own(&directory, strict), None, Vec::new());
        let begun = Begun { cache, step: None, own, joined: false, left, followed: true, notes };
        let found = Found { fleet: Some(begun), ..Found::default() };
        let first = over(Soft::new(SoftMemory::new(10_000, 64, 64)), found, &config);
        let keys = first.expect("it starts").keys_for(&config).expect("there is room");
        let document = Document::new(1, shared(method, &pool), keys);
        let mut fleet = Self {
            method,
            strict,
            runtime,
            rng: StdRng::seed_from_u64(seed),
            members: Vec::new(),
            revision: 1,
            document,
            document_at: 1,
            step: None,
            step_at: 0,
            acks: BTreeMap::new(),
            signs: BTreeMap::new(),
            leader: 0,
            term: 1,
            sessions: 0,
            pool,
            live: BTreeMap::new(),
            ended: BTreeMap::new(),
            at_the_dead: BTreeMap::new(),
            committed: std::collections::BTreeSet::new(),
            dead: std::collections::BTreeSet::new(),
            off: std::collections::BTreeSet::new(),
            born: BTreeMap::new(),
            trace: Vec::new(),
            differs: None,
            tableless: None,
            watched: std::env::var("WEIR_CLIENT").ok().and_then(|client| client.parse().ok()),
            doings: std::cell::RefCell::default(),
            done: 0,
            given_up: 0,
            held_back: 0,
            told_again: 0,
        };
        for member in 0..BALANCERS {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let plane = Soft::new(SoftMemory::new(100_000, 1 << 14, 64));
            let member = fleet.start(member, directory, plane, false);
            fleet.members.push(member);
        }
        fleet
    }

    /// A balancer starts, over a plane that may hold what the one before has left.
    fn start(&mut self, at: usize, directory: TempDir, plane: Soft, resumed: bool) -> Member {
        let file = directory.path().join("weir.toml");
        let mut cache = Cache::load(&cache_path(&file)).expect("it can be read");
        cache.id = at.to_string();
        cache.document.get_or_insert_with(|| self.document.clone());
        let document = cache.document.as_ref().expect("it is there");
        let config = parsed(&directory, &document.text, self.strict);
        let own = own(&directory, self.strict);
        std::fs::write(&file, &own).expect("a file");
        let (step, left, notes) = (self.step.clone(), None, Vec::new());
        let fleet = Some(Begun { cache, step, own, joined: true, left, followed: true, notes });
        let engine = over(plane, Found { fleet, resumed, ..Found::default() }, &config);
        let mut engine = engine.unwrap_or_else(|error| panic!("{error}"));
        let (asks, asked) = mpsc::channel(256);
        let (sign, signed) = watch::channel(Sign { id: at.to_string(), ..Sign::default() });
        let (report, reported) = watch::channel(Report::default());
        let (sender, commands) = channel(256).expect("descriptors");
        let keeper = engine.fleet.as_mut().expect("it is of one");
        keeper.keep_by(asks, sign, reported, sender);
        let (wished, wishes) = mpsc::unbounded_channel();
        keeper.fetching.by = Some(wished);
        // What a session of the keeper begins with.
        report.send_modify(|report| {
            report.reachable = true;
            report.change = self.document.change;
            report.lease_until = Some(far());
            (report.acks, report.balancers) = (self.acks.clone(), self.signs.clone());
        });
        let mut items = VecDeque::new();
        items.push_back(Item::Lead { leader: self.leader, term: self.term });
        items.extend(self.step.clone().map(|step| Item::Step(step, self.step_at)));
        items.push_back(Item::Config(Box::new(self.document.clone()), self.document_at));
        let (engine, sessions, cut) = (Some(engine), BTreeMap::new(), BTreeMap::new());
        let (asks, sign, apart, said) = (asked, signed, false, None);
        Member {
            engine,
            directory,
            asks,
            sign,
            report,
            commands,
            items,
            sessions,
            cut,
            apart,
            said,
            wishes,
        }
    }

    fn engine(&mut self, at: usize) -> &mut Engine<Soft> {
        self.members[at].engine.as_mut().expect("it runs")
    }

    /// What the store has, everybody is told.
    fn tell(&mut self, item: &Item) {
        self.revision += 1;
        self.members.iter_mut().for_each(|member| member.items.push_back(item.clone()));
    }

    /// A balancer does what is due, and its keeper what it asks for.
    fn turn(&mut self, at: usize) {
        let guard = self.runtime.enter();
        let engine = self.members[at].engine.as_mut().expect("it runs");
        engine.drain_reports().expect("nothing is refused");
        engine.go_on_settled();
        engine.upkeep(&mut Timers::new());
        engine.look_at_fleet();
        drop(guard);
        self.note_marks(at);
        self.settle();
        self.answer(at);
        self.settle();
        let member = &mut self.members[at];
        let engine = member.engine.as_mut().expect("it runs");
        let _guard = self.runtime.enter();
        member.commands.take(64, |command| {
            engine.handle(command);
            true
        });
    }

    /// Lets tasks run that the engine has begun.
    fn settle(&self) {
        self.runtime.block_on(async {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
    }

    fn answer(&mut self, at: usize) {
        while let Ok(wish) = self.members[at].wishes.try_recv() {
            let others = self.members.iter().enumerate().filter(|(other, _)| *other != at);
            let shelves = others.filter_map(|(_, other)| Some(other.engine.as_ref()?.shelf()));
            let has: Vec<_> =
                shelves.filter_map(|shelf| shelf.get(&wish.service, &wish.digest)).collect();
            // Not every call gets through.
            let lucky = self.rng.random_bool(0.7) && self.tableless != Some(at);
            let got = has.first().filter(|_| lucky).map(|bytes| bytes.to_vec());
            let news = FleetNews::Table(wish.service, wish.digest, got.ok_or("nobody".into()));
            let _guard = self.runtime.enter();
            self.members[at].engine.as_mut().expect("it runs").fleet_news(news);
        }
        while let Ok(ask) = self.members[at].asks.try_recv() {
            match ask {
                Ask::Ack(ack) => {
                    self.members[at].said = Some(ack.clone());
                    if self.members[at].apart {
                        continue;
                    }
                    self.acks.insert(name(at), ack.clone());
                    self.tell(&Item::Ack(name(at), ack));
                }
                Ask::Step { step, expected, document_at, then } => {
                    let is_so = self.leader == at
                        && !self.members[at].apart
                        && expected == self.step_at
                        && (step.stage != Stage::Prepare || document_at == self.document_at);
                    if is_so {
                        self.done += u64::from(step.stage == Stage::Done);
                        let before = self.step.as_ref().map(|step| step.stage);
                        let early = step.stage == Stage::Done && before != Some(Stage::Commit);
                        self.given_up += u64::from(early);
                        if step.stage == Stage::Done && !early {
                            self.committed.insert(step.number);
                        }
                        self.step_at = self.revision + 1;
                        self.step = Some(*step.clone());
                        let at = self.step_at;
                        self.tell(&Item::Step(*step, at));
                    }
                    let moved = || weir_fleet::FleetError::Unreachable("moved".into());
                    let _ = then.send(is_so.then_some(()).ok_or_else(moved));
                }
                _ => panic!("nobody asks for it"),
            }
        }
        if !self.members[at].apart && self.members[at].sign.has_changed().unwrap_or(false) {
            let sign = self.members[at].sign.borrow_and_update().clone();
            self.signs.insert(name(at), sign.clone());
            self.tell(&Item::Sign(name(at), Box::new(sign)));
        }
    }

    /// A balancer hears the next that the store tells it.
    fn hear(&mut self, at: usize) {
        let member = &mut self.members[at];
        let Some(item) = member.items.pop_front().filter(|_| !member.apart) else { return };
        let news = match item {
            Item::Step(mut step, revision) if self.differs == Some(at) => {
                let rows = step.rows.values_mut().chain(step.next_rows.values_mut());
                rows.for_each(|digest| *digest = "another".into());
                FleetNews::Step(Some(Box::new(step)), revision)
            }
            Item::Step(step, revision) => FleetNews::Step(Some(Box::new(step)), revision),
            Item::Config(document, revision) => {
                member.report.send_modify(|report| report.change = document.change);
                FleetNews::Config(Some(document), revision)
            }
            Item::Ack(name, ack) => {
                member.report.send_modify(|report| drop(report.acks.insert(name, ack)));
                FleetNews::Others
            }
            Item::Sign(name, sign) => {
                member.report.send_modify(|report| drop(report.balancers.insert(name, *sign)));
                FleetNews::Others
            }
            Item::Gone(name) => {
                member.report.send_modify(|report| {
                    drop((report.acks.remove(&name), report.balancers.remove(&name)));
                });
                FleetNews::Others
            }
            Item::Lead { leader, term } => {
                // A lease that has run out is no lead, whoever has heard of what.
                let until = (leader == at && self.leader == at).then_some(far());
                member.report.send_modify(|report| {
                    let seat = Leader { name: name(leader), term, ..Leader::default() };
                    report.leader = Some(seat);
                    *report = std::mem::take(report).leading(until);
                });
                FleetNews::Others
            }
        };
        let guard = self.runtime.enter();
        member.engine.as_mut().expect("it runs").fleet_news(news);
        drop(guard);
        self.note_marks(at);
    }

    /// Another balancer leads. The lease of the one before has run out.
    fn change_leader(&mut self) {
        let before = self.leader;
        let here = (0..BALANCERS).filter(|at| !self.members[*at].apart).collect::<Vec<_>>();
        self.members[before].report.send_modify(|report| {
            *report = std::mem::take(report).leading(None);
        });
        self.leader = *here.choose(&mut self.rng).expect("not all are apart");
        self.term += 1;
        let (leader, term) = (self.leader, self.term);
        self.tell(&Item::Lead { leader, term });
    }

    /// The operator changes a weight, drains, adds or removes.
    fn change_pool(&mut self) {
        // Whoever proposes it has followed all before.
        let by = (0..BALANCERS).filter(|at| !self.members[*at].apart).find(|at| {
            let fleet = self.members[*at].engine.as_ref().expect("it runs").fleet.as_ref();
            fleet.expect("it is of one").change() == self.document.change
        });
        let Some(by) = by else { return };
        let n = self.rng.random_range(1..=BACKENDS);
        let serving = self.pool.values().filter(|weight| **weight > 0).count();
        let weight = self.pool.get(&n).copied();
        match weight {
            None => drop(self.pool.insert(n, self.rng.random_range(1..4))),
            Some(_) if serving <= 2 => drop(self.pool.insert(n, self.rng.random_range(1..4))),
            // Its connections have ended when it leaves.
            Some(0) if !self.live.values().any(|(at, _)| *at == n) => {
                let drained = self.step.as_ref().is_some_and(|step| {
                    let pool = step.pools.get("a").map_or(&[][..], Vec::as_slice);
                    let drains =
                        pool.iter().any(|share| share.name == format!("b{n}") && share.drains);
                    step.stage == Stage::Done && drains
                });
                if drained {
                    self.pool.remove(&n);
                }
            }
            Some(_) => drop(self.pool.insert(n, self.rng.random_range(0..4))),
        }
        self.propose(by);
    }

    /// A balancer is given the pool as it is to be.
    fn propose(&mut self, by: usize) {
        let text = shared(self.method, &self.pool);
        let config = parsed(&self.members[by].directory, &text, self.strict);
        let keys = self.engine(by).keys_for(&config).expect("there is room");
        self.document = Document::new(self.document.change + 1, text, keys);
        self.document_at = self.revision + 1;
        let (document, at) = (Box::new(self.document.clone()), self.document_at);
        self.tell(&Item::Config(document, at));
    }

    /// A backend's machine goes off, and everything with it; or one that was off is back.
    fn change_dead(&mut self) {
        let n = self.rng.random_range(1..=BACKENDS);
        if !self.dead.is_empty() {
            // It is back when the fleet has noticed, or nobody: who keeps off it alone keeps flows from it that the
            // others lead there.
            let name = format!("b{n}");
            let pool = self.step.as_ref().and_then(|step| step.pools.get("a"));
            let fleet =
                pool.is_some_and(|pool| pool.iter().any(|one| one.name == name && one.down));
            let alone = self.members.iter().any(|member| {
                let service = &member.engine.as_ref().expect("it runs").services["a"];
                service.member(&name).is_some_and(|member| !member.up)
            });
            if fleet || !alone {
                self.dead.remove(&n);
                self.off.remove(&n);
            }
            return;
        }
        // Its servers alone die, and its agent says so; or it is off, and nobody says that its connections have ended.
        let off = self.rng.random_bool(0.5);
        self.dead.insert(n);
        if off {
            self.off.insert(n);
        }
        let born = self.born.entry(n).or_default();
        *born = (*born + 1) % 15;
        self.watched.into_iter().for_each(|client| {
            self.note(client, &|| format!("b{n} is off"));
        });
        let here: Vec<u32> =
            self.live.iter().filter(|(_, at)| at.0 == n).map(|(client, _)| *client).collect();
        for client in here {
            self.live.remove(&client);
            self.ended.insert(client, NEVER);
            self.happens(n, Kind::Closed, client);
        }
        for at in (0..BALANCERS).filter(|_| off) {
            let cut = self.members[at].cut.remove(&n).map(|(session, _)| session);
            let speaks = self.members[at].sessions.remove(&n);
            self.are_lost(cut.iter().chain(&speaks));
            if let Some(session) = speaks {
                self.engine(at).handle(Command::AgentGone(session.number));
            }
        }
    }

    /// What agents had to say is lost: of connections whose end a balancer has not heard of, addresses and ports are not
    /// used again.
    fn are_lost<'a>(&mut self, sessions: impl Iterator<Item = &'a Session>) {
        for word in sessions.flat_map(|session| &session.words) {
            if let Word::Event(Kind::Closed, client) = word {
                self.ended.insert(*client, NEVER);
            }
        }
    }

    /// Whether a balancer has yet to hear that a client's last connection has ended.
    fn has_unheard_end(&self, client: u32) -> bool {
        let ends = |session: &Session| {
            let of = |word: &Word| matches!(word, Word::Event(Kind::Closed, one) if *one == client);
            session.words.iter().any(of)
        };
        self.members.iter().any(|member| {
            member.sessions.values().any(ends) || member.cut.values().any(|(one, _)| ends(one))
        })
    }

    /// A balancer's own check of a backend says how that is.
    fn check_health(&mut self, at: usize, n: u8) {
        let up = !self.dead.contains(&n);
        let engine = self.engine(at);
        let service = &engine.services["a"];
        let Some(member) = service.member(&format!("b{n}")) else { return };
        let (id, at) = (service.target(member.id), Instant::now());
        let change = Transition { id, up, spoken: None, detail: "as it is".into(), at };
        engine.handle(Command::Health(vec![change]));
    }

    /// An agent hears what it is asked for, and says the next word that it has for a balancer; one that does not
    /// speak with it yet calls.
    fn agent(&mut self, at: usize, n: u8) {
        if self.off.contains(&n) {
            return;
        }
        if !self.members[at].sessions.contains_key(&n) {
            if let Some((_, waits)) = self.members[at].cut.get_mut(&n)
                && *waits > 0
            {
                *waits -= 1;
                return;
            }
            return self.call(at, n);
        }
        let mut session = self.members[at].sessions.remove(&n).expect("it speaks");
        while let Ok(order) = session.orders.try_recv() {
            let of = |phase| {
                let here = self.live.iter().filter(move |(_, at)| **at == (n, phase));
                here.map(|(client, _)| *client).collect::<Vec<_>>()
            };
            match order {
                Order::Endpoints(endpoints) => {
                    session.endpoints = endpoints;
                    session.words.push_back(Word::Dump(of(Phase::Open)));
                }
                Order::Dump => session.words.push_back(Word::Dump(of(Phase::Open))),
                Order::Collect(number) => {
                    session.words.push_back(Word::Collected(number, of(Phase::HalfOpen)));
                }
                Order::Balancers(_) | Order::Serving(_) | Order::QuicLb(_) => {}
            }
        }
        let endpoint = session.endpoints.endpoint.first().map(|endpoint| endpoint.id);
        let own = |clients: Vec<u32>| -> Vec<Connection> {
            let each = |id| clients.iter().map(move |client| connection(id, *client));
            endpoint.map(each).into_iter().flatten().collect()
        };
        let said: Vec<Said> = match session.words.pop_front() {
            None => Vec::new(),
            Some(Word::Event(kind, client)) => {
                // Until then it may be pinned there, and the agent of one that is down is not waited for.
                let step = self.step_at_all();
                if kind == Kind::Closed
                    && let Some(ended) = self.ended.get_mut(&client).filter(|at| **at < NEVER)
                {
                    *ended = (*ended).max(step);
                }
                let (first, next) = (session.next, session.next + 1);
                session.next = next;
                let events = own(vec![client]).into_iter().map(|one| (kind, one)).collect();
                self.note(client, &|| format!("lb{at} hears of b{n}: {kind:?}"));
                vec![Said::Events { first, next, events }]
            }
            Some(Word::Dump(mut clients)) => {
                let (next, list) = (session.next, session.endpoints.number);
                let rest = clients.split_off(clients.len() / 2);
                [Word::End, Word::Part(rest), Word::Part(clients)]
                    .into_iter()
                    .for_each(|word| session.words.push_front(word));
                vec![Said::DumpBegin { next, list }]
            }
            Some(Word::Part(clients)) => {
                let named = |watched: u32| clients.contains(&watched).then_some(watched);
                if let Some(client) = self.watched.and_then(named) {
                    self.note(client, &|| format!("lb{at} hears of b{n}: among all"));
                }
                vec![Said::Dumped(own(clients))]
            }
            Some(Word::End) => {
                self.note_listed(at, n);
                self.watched.into_iter().for_each(|client| {
                    self.note(client, &|| format!("lb{at} has heard of b{n} all"));
                });
                vec![Said::DumpEnd]
            }
            Some(Word::Collected(number, clients)) => {
                vec![Said::Collected { number, connections: own(clients), last: true }]
            }
        };
        for said in said {
            let (reply, mut answer) = oneshot::channel();
            self.engine(at).handle(Command::AgentSays(session.number, said, reply));
            answer.try_recv().expect("answered").expect("it is taken");
        }
        self.members[at].sessions.insert(n, session);
    }

    fn call(&mut self, at: usize, n: u8) {
        self.sessions += 1;
        let (orders, heard) = mpsc::channel(64);
        let (end, ended) = oneshot::channel();
        let newcomer = Newcomer {
            session: self.sessions,
            name: format!("b{n}"),
            ends: i64::MAX,
            from: ([10, 9, 0, n], 40_000).into(),
            version: "1".into(),
            // A machine that was off has another agent.
            instance: [n + 16 * self.born.get(&n).copied().unwrap_or_default(); 16],
            addresses: vec![IpAddr::from([10, 9, 0, n])],
            orders,
            end,
        };
        let (reply, mut answer) = oneshot::channel();
        let number = self.sessions;
        self.engine(at).handle(Command::AgentCalls(Box::new(newcomer), reply));
        let welcome = answer.try_recv().expect("answered").expect("welcome");
        let endpoints = welcome.endpoints.expect("a list");
        let open = self.live.iter().filter(|(_, at)| **at == (n, Phase::Open));
        let all = VecDeque::from([Word::Dump(open.map(|(client, _)| *client).collect())]);
        // It goes on where it was, if the balancer still knows where that is.
        let cut = self.members[at].cut.remove(&n).map(|(session, _)| session);
        if !welcome.resume {
            self.are_lost(cut.iter());
        }
        let words = cut.filter(|_| welcome.resume).map(|session| {
            assert_eq!(session.next, welcome.have);
            let all = session.words.into_iter();
            all.filter(|word| matches!(word, Word::Event(..))).collect()
        });
        assert_eq!(words.is_some(), welcome.resume);
        let (next, words) = (welcome.have, words.unwrap_or(all));
        let session = Session { number, endpoints, next, orders: heard, words, _ended: ended };
        self.members[at].sessions.insert(n, session);
    }

    /// A session of an agent is lost, and its backend lives. It calls again, and soon.
    fn lose_agent(&mut self, at: usize, n: u8) {
        let Some(session) = self.members[at].sessions.remove(&n) else { return };
        let number = session.number;
        let waits = self.rng.random_range(0..3);
        self.members[at].cut.insert(n, (session, waits));
        self.engine(at).handle(Command::AgentGone(number));
        self.watched.into_iter().for_each(|client| {
            self.note(client, &|| format!("lb{at} has lost the agent of b{n}"));
        });
    }

    /// What is of a client that somebody wants to know of (`WEIR_CLIENT`, beside `WEIR_SEED`).
    fn note(&self, client: u32, what: &dyn Fn() -> String) {
        let mut doings = self.doings.borrow_mut();
        let its = doings.entry(client).or_default();
        let step = self.step.as_ref().map(|step| (step.number, step.stage));
        let line = format!("{} steps, {step:?}: {}", self.done, what());
        // Segments that go where those before went say nothing new.
        if its.iter().rev().take(REPEATED).any(|one| *one == line) {
            return;
        }
        its.push_back(line);
        its.drain(..its.len().saturating_sub(DOINGS));
        drop(doings);
        if self.watched == Some(client) {
            println!("{} steps: {}\n{}", self.done, what(), self.looks(client));
        }
    }

    /// Agents tell all balancers, each in its time.
    fn happens(&mut self, n: u8, kind: Kind, client: u32) {
        self.note(client, &|| format!("b{n} has {kind:?}"));
        for member in &mut self.members {
            let speaks = member.sessions.get_mut(&n);
            let cut = member.cut.get_mut(&n).map(|(session, _)| session);
            if let Some(session) = speaks.or(cut) {
                session.words.push_back(Word::Event(kind, client));
            }
        }
    }

    /// Whether routers lead packets to it.
    fn serves(&self, at: usize) -> bool {
        let engine = self.members[at].engine.as_ref().expect("it runs");
        !engine.is_learning()
            && !engine.is_apart()
            && engine.services["a"].builder.published().is_some()
    }

    /// A packet by one of the balancers: to which backend it goes.
    fn packet(&mut self, client: u32, flags: TcpFlags) -> Option<(usize, Option<u8>)> {
        let serving: Vec<usize> = (0..BALANCERS).filter(|at| self.serves(*at)).collect();
        let at = *serving.choose(&mut self.rng)?;
        let frame = Frame::new(flow(0, client)).tcp_flags(flags).build();
        let engine = self.engine(at);
        let went = match engine.plane.process(&frame) {
            Outcome::Forwarded(id) => {
                // One that has just left the pool has a number all the same.
                let known = weir_plane::Plane::backend(&engine.plane, id).expect("it is there");
                match known.address {
                    IpAddr::V4(address) => Some(address.octets()[3]),
                    IpAddr::V6(address) => Some(address.octets()[15]),
                }
            }
            Outcome::Dropped(_) => None,
            other => panic!("{other:?}"),
        };
        Some((at, went))
    }

    fn step_at_all(&self) -> u64 {
        self.step.as_ref().map_or(0, |step| step.number)
    }

    /// The last step that all balancers are through with.
    fn done_by_all(&self) -> u64 {
        let done = self.members.iter().map(|member| {
            let engine = member.engine.as_ref().expect("it runs");
            engine.fleet.as_ref().expect("it is of one").stepping.done_for()
        });
        done.min().unwrap_or(0)
    }

    /// A client does something.
    fn client(&mut self) {
        let client = self.rng.random_range(0..CLIENTS);
        let Some((home, phase)) = self.live.get(&client).copied() else {
            let done = self.done_by_all();
            let made_anew = |ended: &u64| {
                self.committed.range(ended + 1..).nth(1).is_some_and(|step| *step <= done)
            };
            if !self.ended.get(&client).is_none_or(made_anew) || self.has_unheard_end(client) {
                return;
            }
            if self.rng.random_bool(0.5)
                && let Some((at, went)) = self.packet(client, TcpFlags::SYN)
            {
                self.note(client, &|| format!("a SYN by lb{at} to {went:?}"));
                match went {
                    Some(n) if self.dead.contains(&n) => self.note_lost(client, at, n),
                    Some(n) if !self.pool.contains_key(&n) => {}
                    Some(n) => drop(self.live.insert(client, (n, Phase::HalfOpen))),
                    None => self.held_back += 1,
                }
            }
            return;
        };
        let draw = self.rng.random_range(0..20);
        let step = self.step.clone();
        let say = |at: usize, what: &str| {
            format!("client {client} of b{home} {phase:?}: {what} by lb{at}, {step:?}")
        };
        if phase == Phase::HalfOpen && draw < 4 {
            // Its SYN again.
            match self.packet(client, TcpFlags::SYN) {
                Some((at, Some(n))) if self.dead.contains(&n) => self.note_lost(client, at, n),
                Some((at, Some(n))) if !self.not_heard(at, n) => {
                    assert_eq!(n, home, "{}\n{}", say(at, "a SYN again"), self.looks(client));
                    self.told_again += 1;
                }
                _ => {}
            }
            return;
        }
        if let Some((at, went)) = self.packet(client, TcpFlags::ACK) {
            self.note(client, &|| format!("a segment by lb{at} to {went:?}"));
            if went.is_some_and(|n| self.is_lost(client, at, n)) {
                return;
            }
            assert_eq!(went, Some(home), "{}\n{}", say(at, "a segment"), self.looks(client));
        }
        match (phase, draw) {
            (Phase::HalfOpen, 4..10) => {
                self.live.insert(client, (home, Phase::Open));
                self.happens(home, Kind::Opened, client);
            }
            (Phase::Open, 0..2) => {
                self.live.remove(&client);
                self.ended.insert(client, self.step_at_all());
                self.happens(home, Kind::Closed, client);
            }
            _ => {}
        }
    }

    /// A control plane is killed, and comes back; packets go on meanwhile.
    fn restart(&mut self, at: usize) {
        let mut engine = self.members[at].engine.take().expect("it runs");
        let plane = std::mem::take(&mut engine.plane);
        drop(engine);
        let empty = tempfile::tempdir().expect("a temporary directory");
        let directory = std::mem::replace(&mut self.members[at].directory, empty);
        let (sessions, cut) = {
            let member = &mut self.members[at];
            (std::mem::take(&mut member.sessions), std::mem::take(&mut member.cut))
        };
        self.are_lost(sessions.values().chain(cut.values().map(|(session, _)| session)));
        self.members[at] = self.start(at, directory, plane, true);
        self.watched.into_iter().for_each(|client| {
            self.note(client, &|| format!("lb{at} has started again"));
        });
    }

    /// Everybody does what there is to do, until there is nothing.
    fn rest(&mut self) {
        let begun = Instant::now();
        let mut quiet = 0;
        while quiet < 60 {
            assert!(begun.elapsed() < PATIENCE, "no rest: {}", self.stands());
            for at in 0..BALANCERS {
                while !self.members[at].items.is_empty() {
                    self.hear(at);
                }
                for n in 1..=BACKENDS {
                    self.check_health(at, n);
                    (0..20).for_each(|_| self.agent(at, n));
                }
                self.turn(at);
            }
            quiet = if self.is_quiet() { quiet + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn history(seed: u64, method: &'static str, restarts: bool, strict: bool) {
    let mut fleet = Fleet::new(seed, method, strict);
    fleet.rest();
    fleet.agree();
    let begun = Instant::now();
    let mut actions = 0u64;
    while fleet.done < 25 {
        assert!(begun.elapsed() < PATIENCE, "{} actions: {}", actions, fleet.stands());
        actions += 1;
        let at = fleet.rng.random_range(0..BALANCERS);
        match fleet.rng.random_range(0..1000) {
            0..500 => fleet.client(),
            500..700 => {
                let n = fleet.rng.random_range(1..=BACKENDS);
                fleet.agent(at, n);
            }
            700..850 => fleet.hear(at),
            850..995 => fleet.turn(at),
            995..997 => fleet.change_pool(),
            // What a balancer that is cut off does with who dies then is its own (docs/fleet.md, In step).
            997 => match fleet.rng.random_bool(0.05) {
                true if fleet.who_is_cut().is_some() => {}
                true => fleet.change_dead(),
                false => {
                    let n = fleet.rng.random_range(1..=BACKENDS);
                    fleet.check_health(at, n);
                }
            },
            998 => match fleet.rng.random_range(0..100) {
                // Who cannot be reached leads until its lease has run out.
                0..10 if !fleet.members[fleet.leader].apart => fleet.change_leader(),
                0..10 => {}
                10..12 => {
                    let n = fleet.rng.random_range(1..=BACKENDS);
                    fleet.lose_agent(at, n);
                }
                12..24 => fleet.change_cut(),
                _ => {}
            },
            _ => {
                let cut = fleet.who_is_cut() == Some(at);
                if restarts && !cut && fleet.rng.random_bool(0.05) {
                    fleet.restart(at);
                }
            }
        }
    }
    if let Some(at) = fleet.who_is_cut() {
        fleet.rejoin(at);
    }
    fleet.rest();
    fleet.agree();
    for _ in 0..2_000 {
        fleet.client();
    }
    let replayed = fleet.replay();
    println!(
        "seed {seed}: {actions} actions, {} steps, {} given up, {} SYNs held back, {} seen again, {replayed:?}",
        fleet.done, fleet.given_up, fleet.held_back, fleet.told_again
    );
    assert!(replayed.made > 0 && replayed.followed >= replayed.made);
    assert!(fleet.held_back > 0 || fleet.told_again > 0, "it has gone through steps");
}

fn seeds() -> Vec<u64> {
    match std::env::var("WEIR_SEED") {
        Ok(seed) => vec![seed.parse().expect("WEIR_SEED is a number")],
        Err(_) => (0..2).map(|_| rand::random()).collect(),
    }
}

/// Every other fleet is one whose balancers withdraw what they announce when they are apart.
fn strict(seed: u64) -> bool {
    seed % 2 == 1
}

#[test]
fn whatever_order_things_come_in_connections_stay() {
    for seed in seeds() {
        println!("WEIR_SEED={seed}");
        history(seed, RESIDUE, false, strict(seed));
    }
}

#[test]
fn connections_stay_where_all_follow_one_table() {
    for seed in seeds() {
        println!("WEIR_SEED={seed}");
        history(seed, CONCURY, false, strict(seed));
    }
}

#[test]
fn whoever_has_the_table_may_be_killed_in_any_stage() {
    for seed in seeds() {
        println!("WEIR_SEED={seed}");
        history(seed, CONCURY, true, strict(seed));
    }
}

#[test]
fn control_planes_may_be_killed_in_any_stage() {
    for seed in seeds() {
        println!("WEIR_SEED={seed}");
        history(seed, RESIDUE, true, strict(seed));
    }
}
