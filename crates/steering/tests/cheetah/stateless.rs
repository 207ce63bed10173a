//! The stateless balancer.

use super::{Packet, Verdict, caller, deviation, flow, member, seeded, verdict};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_hash::HashKey;
use weir_steering::cheetah::{
    AllServers, CookieKeys, Forged, Layout, Repair, ServiceServers, Stateless, Table,
};
use weir_steering::{Answer, Decide, Member, NoCookie, Role, StateKey};
use weir_wire::{FlowKey, TcpFlags};

const KEY: u64 = 0x5eed;

/// A pool that changes, and the balancer's tables.
struct Pool {
    all: AllServers,
    members: BTreeMap<String, Member>,
    servers: Arc<ServiceServers>,
}

impl Pool {
    fn new(cheetah: &Stateless, backends: usize) -> Self {
        let all = AllServers::new(cheetah.codec().numbers());
        let mut pool = Self { all, members: BTreeMap::new(), servers: Arc::default() };
        for n in 0..backends {
            pool.add(&format!("b{n}"), n as u16);
        }
        pool.publish();
        pool
    }

    fn add(&mut self, name: &str, backend: u16) {
        self.all.join(name).unwrap();
        self.members.insert(name.to_owned(), member(name, backend, Role::Serving));
    }

    fn remove(&mut self, name: &str) {
        assert!(self.all.leave(name));
        self.members.remove(name);
    }

    fn publish(&mut self) {
        let members: Vec<Member> = self.members.values().cloned().collect();
        self.servers = ServiceServers::new(&self.all, &members).unwrap().into();
    }

    /// One random change: a new or former server joins, one leaves, drains, goes down, returns.
    fn change(&mut self, rng: &mut ChaCha8Rng) {
        let names: Vec<String> = self.members.keys().cloned().collect();
        let name = names.choose(rng).expect("never empty").clone();
        match rng.random_range(0..5) {
            0 if names.len() < 400 => {
                let name = format!("b{}", rng.random_range(0..1_000));
                let taken = |backend: u16| self.members.values().any(|m| m.backend == backend);
                // Backend numbers are given again, to others.
                let backend = (0..).find(|&backend| !taken(backend)).unwrap();
                if !self.members.contains_key(&name) {
                    self.add(&name, backend);
                }
            }
            1 if names.len() > 20 => self.remove(&name),
            2 => self.members.get_mut(&name).unwrap().role = Role::Draining,
            3 => self.members.get_mut(&name).unwrap().role = Role::Down,
            _ => self.members.values_mut().for_each(|member| member.role = Role::Serving),
        }
        self.publish();
    }

    fn name_of(&self, backend: u16) -> String {
        self.members.values().find(|m| m.backend == backend).expect("in the pool").name.clone()
    }
}

struct Connection {
    flow: FlowKey,
    name: String,
    /// What the client echoes.
    echo: u32,
}

/// The decision for a packet, with a caller's table and scheduler.
fn decide(
    cheetah: &Stateless,
    servers: &Arc<ServiceServers>,
    packet: &Packet,
    known: impl FnOnce() -> Option<u16>,
    schedule: impl FnMut(&[u16]) -> Option<u16>,
) -> Verdict {
    let table = Table::new(*cheetah, servers.clone());
    let mut memory = caller(known, schedule);
    let decision = table.decide(&packet.question(&table, 0), &mut memory);
    verdict(decision, memory.remembered)
}

/// Where the cookie alone leads.
fn read(cheetah: &Stateless, pool: &Pool, packet: &Packet) -> Result<u16, NoCookie> {
    let table = Table::new(*cheetah, pool.servers.clone());
    cheetah.read(&pool.servers, &packet.question(&table, 0))
}

fn syn(flow: FlowKey) -> Packet {
    Packet { flow, flags: TcpFlags::SYN, echo: Some(0) }
}

fn ack(flow: FlowKey, echo: u32) -> Packet {
    Packet { flow, flags: TcpFlags::ACK, echo: Some(echo) }
}

fn unknown() -> Option<u16> {
    None
}

/// Opens a connection; a scheduler of any kind, here a random one, picks the backend.
fn connect(cheetah: &Stateless, pool: &Pool, layout: Layout, rng: &mut ChaCha8Rng) -> Connection {
    let flow = flow(rng);
    let scheduler = |serving: &[u16]| serving.choose(rng).copied();
    let verdict = decide(cheetah, &pool.servers, &syn(flow), unknown, scheduler);
    let Verdict::First { backend, cookie } = verdict else { panic!("{verdict:?}") };
    assert!(pool.servers.serves(backend));
    assert_eq!(cheetah.cookie(&pool.servers, &StateKey::of_flow(&flow), backend), Some(cookie));
    let clock = rng.random();
    let mut repair = Repair::new(layout, clock);
    Connection { flow, name: pool.name_of(backend), echo: repair.outgoing(clock, cookie) }
}

/// A packet of the connection. Whether its backend is still there.
fn check(cheetah: &Stateless, pool: &Pool, connection: &Connection) -> bool {
    let question = ack(connection.flow, connection.echo);
    let first_serving = |serving: &[u16]| serving.first().copied();
    let verdict = decide(cheetah, &pool.servers, &question, unknown, first_serving);
    match pool.members.get(&connection.name) {
        Some(member) => {
            assert_eq!(verdict, Verdict::Cookie { backend: member.backend.get() });
            true
        }
        None => {
            let why = NoCookie::NotOurs;
            assert!(matches!(verdict, Verdict::Astray { why: w, .. } if w == why), "{verdict:?}");
            false
        }
    }
}

#[test]
fn a_million_connections_through_any_history_of_the_pool() {
    const STEPS: usize = 1 << 10;
    const PER_STEP: usize = 1 << 10;
    let mut rng = seeded();
    let layout = Layout::stateless();
    let cheetah = Stateless::new(HashKey::from_seed(KEY), layout, Forged::Schedule);
    let mut pool = Pool::new(&cheetah, 100);
    let mut connections = Vec::with_capacity(STEPS * PER_STEP);
    for _ in 0..STEPS {
        for _ in 0..PER_STEP {
            let connection = connect(&cheetah, &pool, layout, &mut rng);
            assert!(check(&cheetah, &pool, &connection));
            connections.push(connection);
        }
        pool.change(&mut rng);
        while pool.servers.serving().is_empty() {
            pool.change(&mut rng);
        }
        for _ in 0..PER_STEP {
            check(&cheetah, &pool, connections.choose(&mut rng).unwrap());
        }
    }
    // Another balancer, or the same after a restart: nothing but key and tables.
    let other = Stateless::new(HashKey::from_seed(KEY), layout, Forged::Schedule);
    let held = connections.iter().filter(|connection| check(&other, &pool, connection)).count();
    println!("{held} of {} connections have a backend; all of them reach it", connections.len());
    assert!(held > connections.len() / 10 && held < connections.len());
    // All who have left come back, under other backend numbers.
    for n in 0..1_000 {
        let name = format!("b{n}");
        if !pool.members.contains_key(&name) {
            pool.add(&name, 10_000 + n);
        }
    }
    pool.publish();
    assert!(connections.iter().all(|connection| check(&other, &pool, connection)));
}

/// A service of 64 servers among 500, in 9 bits of cookie, so that enough forged ones are accepted.
fn forgery_target() -> (Stateless, Pool, Layout) {
    let layout = Layout::new(1, 9).unwrap();
    let cheetah = Stateless::new(HashKey::from_seed(KEY), layout, Forged::Schedule);
    let mut pool = Pool::new(&cheetah, 500);
    for n in 64..500 {
        pool.members.remove(&format!("b{n}")); // it stays among all servers, of other services
    }
    pool.publish();
    (cheetah, pool, layout)
}

/// Counts where forged cookies lead, and checks that they lead nowhere else.
struct Tally {
    accepted: [u32; 64],
    refused: u32,
}

impl Tally {
    fn new() -> Self {
        Self { accepted: [0; 64], refused: 0 }
    }

    fn forge(&mut self, cheetah: &Stateless, pool: &Pool, question: &Packet) {
        match read(cheetah, pool, question) {
            Ok(backend) => self.accepted[usize::from(backend)] += 1, // outside: out of bounds
            Err(why) => {
                assert_eq!(why, NoCookie::NotOurs);
                self.refused += 1;
            }
        }
    }

    fn is_uniform(&self, what: &str) {
        let accepted: u32 = self.accepted.iter().sum();
        let share = f64::from(accepted) / f64::from(accepted + self.refused);
        let off = deviation(&self.accepted);
        println!("{what}: {share:.4} accepted, chi-squared {off:+.2} standard deviations off");
        assert!((share - 64.0 / 512.0).abs() < 0.005, "{share}");
        assert!(off < 5.0, "{:?}", self.accepted);
    }
}

#[test]
fn forged_cookies_spread_evenly_over_the_service() {
    const TRIES: u32 = 1 << 19;
    let mut rng = seeded();
    let (cheetah, pool, layout) = forgery_target();

    let mut tally = Tally::new();
    for _ in 0..TRIES {
        tally.forge(&cheetah, &pool, &ack(flow(&mut rng), rng.random()));
    }
    tally.is_uniform("random cookies, random flows");

    let mut tally = Tally::new();
    let echo = rng.random();
    for _ in 0..TRIES {
        tally.forge(&cheetah, &pool, &ack(flow(&mut rng), echo));
    }
    tally.is_uniform("one cookie, random flows");

    let mut tally = Tally::new();
    let own = connect(&cheetah, &pool, layout, &mut rng);
    for _ in 0..TRIES {
        tally.forge(&cheetah, &pool, &ack(own.flow, rng.random()));
    }
    tally.is_uniform("random cookies, one flow");

    // The ports that one client can reach count up; it replays a cookie that it got.
    let mut tally = Tally::new();
    for n in 0..TRIES {
        let mut flow = own.flow;
        (flow.src[14], flow.src[15], flow.src_port) = (0, (n >> 16) as u8, n as u16);
        tally.forge(&cheetah, &pool, &ack(flow, own.echo));
    }
    tally.is_uniform("a replayed cookie, neighbouring flows");
}

/// The test sees cookies that are hidden under nothing.
#[test]
fn plain_cookies_would_be_noticed() {
    let mut rng = seeded();
    let mut counts = [0; 64];
    for _ in 0..1 << 16 {
        counts[flow(&mut rng).src_port as usize % 63] += 1; // one number is never hit
    }
    assert!(deviation(&counts) > 10.0);
}

/// Whatever comes in, only backends of the service get packets, and only those that take new
/// connections get new ones.
#[test]
fn no_question_leads_out_of_the_service() {
    let mut rng = seeded();
    for policy in [Forged::Schedule, Forged::Refuse] {
        let (_, mut pool, layout) = forgery_target();
        let cheetah = Stateless::new(HashKey::from_seed(KEY), layout, policy);
        for n in 0..32 {
            let role = if n % 2 == 0 { Role::Draining } else { Role::Down };
            pool.members.get_mut(&format!("b{n}")).unwrap().role = role;
        }
        pool.publish();
        let mut kinds = BTreeMap::<&str, u32>::new();
        for _ in 0..200_000 {
            let question = Packet {
                flow: flow(&mut rng),
                flags: TcpFlags(rng.random::<u8>() & 0x1f),
                echo: rng.random::<bool>().then(|| rng.random()),
            };
            // A table and a scheduler that say anything.
            let mut any = || rng.random_bool(0.5).then(|| rng.random_range(0..100));
            let (known, picked) = (any(), any());
            let starts = question.flags.starts();
            let verdict = decide(&cheetah, &pool.servers, &question, || known, |_| picked);
            let kind = match verdict {
                Verdict::Cookie { backend } => {
                    assert!(!starts && pool.servers.uses(backend));
                    "cookie"
                }
                Verdict::First { backend, .. } => {
                    assert!(starts && question.echo.is_some() && pool.servers.serves(backend));
                    "first"
                }
                Verdict::Known { backend } => {
                    assert!(Some(backend) == known && pool.servers.uses(backend));
                    assert!(!starts || pool.servers.serves(backend));
                    "known"
                }
                Verdict::Track { backend, why, cookie } => {
                    assert!(pool.servers.serves(backend) && cookie.is_none());
                    assert_eq!(why, NoCookie::NoTimestamp);
                    assert!(!question.flags.intersects(TcpFlags::RST));
                    "track"
                }
                Verdict::Astray { backend, why } => {
                    assert!(pool.servers.serves(backend));
                    assert!(why != NoCookie::NotOurs || policy == Forged::Schedule);
                    "astray"
                }
                Verdict::Refused { why } => {
                    assert_eq!((why, policy), (NoCookie::NotOurs, Forged::Refuse));
                    "refused"
                }
                Verdict::NoBackend => {
                    assert!(!picked.is_some_and(|backend| pool.servers.serves(backend)));
                    "no backend"
                }
            };
            *kinds.entry(kind).or_default() += 1;
        }
        println!("{policy:?}: {kinds:?}");
        assert_eq!(kinds.len(), if policy == Forged::Refuse { 7 } else { 6 });
    }
}

#[test]
fn clients_without_timestamps_are_the_callers_to_remember() {
    let mut rng = seeded();
    let (cheetah, pool, _) = forgery_target();
    let flow = flow(&mut rng);
    let syn = Packet { echo: None, ..syn(flow) };
    let verdict = decide(&cheetah, &pool.servers, &syn, unknown, |_| Some(9));
    let why = NoCookie::NoTimestamp;
    assert_eq!(verdict, Verdict::Track { backend: 9, why, cookie: None });
    let known = || Some(9);
    let never = |_: &[u16]| -> Option<u16> { panic!("the caller knows the flow") };
    for flags in [TcpFlags::SYN, TcpFlags::ACK, TcpFlags::RST, TcpFlags::ACK | TcpFlags::FIN] {
        let question = Packet { flow, flags, echo: None };
        let verdict = decide(&cheetah, &pool.servers, &question, known, never);
        assert_eq!(verdict, Verdict::Known { backend: 9 });
    }
    // A reset without the option, of a connection with cookies: passed on, but not remembered.
    let reset = Packet { flow, flags: TcpFlags::RST, echo: None };
    let verdict = decide(&cheetah, &pool.servers, &reset, unknown, |_| Some(9));
    assert_eq!(verdict, Verdict::Astray { backend: 9, why });
    // TSecr without ACK means nothing, whatever stands in it.
    let reset = Packet { flow, flags: TcpFlags::RST, echo: Some(rng.random()) };
    assert_eq!(read(&cheetah, &pool, &reset), Err(why));
}

/// Keys change under connections: whoever reads both keys leads all of them home, also where pools change meanwhile. A
/// cookie is read under the key that it says, and under no other: without that one it leads nowhere.
#[test]
fn keys_change_without_a_break() {
    let mut rng = seeded();
    // The keys by their numbers, and which of them issues.
    const STEPS: [([Option<u64>; 2], usize); 6] = [
        ([Some(1), None], 0),
        ([Some(1), Some(2)], 0),
        ([Some(1), Some(2)], 1),
        ([None, Some(2)], 1),
        ([Some(3), Some(2)], 1),
        ([Some(3), Some(2)], 0),
    ];
    for layout in [Layout::stateless(), Layout::new(1, 6).expect("one that there is")] {
        let plain = Stateless::new(HashKey::from_seed(KEY), layout, Forged::Refuse);
        let form = |(seeds, issue): ([Option<u64>; 2], usize)| {
            let keys = seeds.map(|seed| seed.map(HashKey::from_seed));
            plain.with_keys(CookieKeys::new(keys, issue))
        };
        let (backends, numbers) =
            if layout.back_bits() == 0 { (100, 1 << 14) } else { (20, 1 << 5) };
        assert_eq!(form(STEPS[0]).codec().numbers(), numbers);
        let mut pool = Pool::new(&form(STEPS[0]), backends);
        let mut all: Vec<(u64, Connection)> = Vec::new();
        for (seeds, issue) in STEPS {
            let cheetah = form((seeds, issue));
            let key = seeds[issue].expect("it issues");
            for _ in 0..500 {
                all.push((key, connect(&cheetah, &pool, layout, &mut rng)));
            }
            for name in ["b3", "b4"] {
                let member = pool.members.get_mut(name).expect("there");
                member.role = match member.role {
                    Role::Serving => Role::Draining,
                    _ => Role::Serving,
                };
            }
            pool.publish();
            for (key, connection) in &all {
                if seeds.contains(&Some(*key)) {
                    assert!(check(&cheetah, &pool, connection));
                } else if seeds.contains(&None) {
                    let packet = ack(connection.flow, connection.echo);
                    assert_eq!(read(&cheetah, &pool, &packet), Err(NoCookie::NotOurs));
                }
            }
        }
    }
    assert_eq!(CookieKeys::new([None, Some(HashKey::from_seed(1))], 0), None);
}
