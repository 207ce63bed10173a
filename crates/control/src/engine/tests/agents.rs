//! Backends that say what they hold: what is a state and what is not, whom is believed, and what happens when
//! an agent is lost.

mod joining;

use super::super::agents::WAITING;
use super::super::fleet::Fleet;
use super::*;
use crate::config::{Agents, Forward, Key, Quic, QuicConfig, States};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::{mpsc, watch};
use weir_fleet::{Cache, Report, Share, Sign};
use weir_rpc::message::{Connection, Kind};
use weir_rpc::{Balancers, Endpoints, QuicLb, Serving};

/// An agent of a backend, as the engine hears it.
struct Agent {
    session: u64,
    instance: [u8; 16],
    endpoints: Endpoints,
    balancers: Option<Balancers>,
    serving: Option<Serving>,
    quic: Option<QuicLb>,
    next: u64,
    resumed: bool,
    orders: mpsc::Receiver<Order>,
    ended: oneshot::Receiver<Over>,
}

/// A service of this method that asks agents.
fn world(method: &str, states: u32, half_open: u32) -> (World, Arc<AtomicU32>) {
    let memory = SoftMemory::new(200_000, 1 << 14, 64);
    let fields = format!("method = {method:?}");
    let mut world = World::over_with(memory, (1, &fields), |config| {
        config.limits.states_per_service = states;
        config.limits.half_open_flows = half_open;
        config.agents = Some(Agents {
            listen: ([127, 0, 0, 1], 4479).into(),
            certificate: "/none.pem".into(),
            key: "/none.key".into(),
            ca: "/none-ca.pem".into(),
            learn: Duration::from_secs(60),
        });
        config.services[0].states = States::Agents;
    });
    let clock = Arc::new(AtomicU32::new(1_000));
    let read = clock.clone();
    world.engine.clock = Box::new(move || read.load(Ordering::Relaxed));
    (world, clock)
}

fn connection(endpoint: u32, client: u32) -> Connection {
    let flow = flow(0, client);
    let address: [u8; 4] = flow.src[12..].try_into().expect("four");
    Connection { endpoint, client: IpAddr::from(address), client_port: flow.src_port, port: None }
}

impl World {
    /// An agent of backend b<n> of service a calls.
    fn call(&mut self, session: u64, n: u8, instance: u8) -> Agent {
        let (orders, heard) = mpsc::channel(16);
        let (end, ended) = oneshot::channel();
        let newcomer = Newcomer {
            session,
            name: format!("b{n}"),
            ends: i64::MAX,
            from: ([10, 9, 0, n], 40_000).into(),
            version: "1".into(),
            instance: [instance; 16],
            addresses: vec![IpAddr::from([10, 9, 0, n])],
            orders,
            end,
        };
        let (reply, mut answer) = oneshot::channel();
        self.engine.handle(Command::AgentCalls(Box::new(newcomer), reply));
        let welcome = answer.try_recv().expect("answered").expect("welcome");
        let endpoints = welcome.endpoints.expect("a list");
        let (next, resumed, balancers) = (welcome.have, welcome.resume, welcome.balancers);
        let (serving, quic) = (welcome.serving, welcome.quic_lb);
        let instance = [instance; 16];
        let orders = heard;
        Agent {
            session,
            instance,
            endpoints,
            balancers,
            serving,
            quic,
            next,
            resumed,
            orders,
            ended,
        }
    }

    fn says(&mut self, agent: &Agent, said: Said) -> Result<(), String> {
        let (reply, mut answer) = oneshot::channel();
        self.engine.handle(Command::AgentSays(agent.session, said, reply));
        answer.try_recv().expect("answered")
    }

    fn dumps(&mut self, agent: &mut Agent, clients: impl IntoIterator<Item = u32>) {
        let list = agent.endpoints.number;
        let id = agent.endpoints.endpoint[0].id;
        self.says(agent, Said::DumpBegin { next: agent.next, list }).unwrap();
        let found: Vec<_> = clients.into_iter().map(|client| connection(id, client)).collect();
        // As agents do: twice.
        self.says(agent, Said::Dumped(found.clone())).unwrap();
        self.says(agent, Said::Dumped(found)).unwrap();
        self.says(agent, Said::DumpEnd).unwrap();
    }

    fn tells(&mut self, agent: &mut Agent, kind: Kind, clients: impl IntoIterator<Item = u32>) {
        let id = agent.endpoints.endpoint[0].id;
        let events: Vec<_> =
            clients.into_iter().map(|client| (kind, connection(id, client))).collect();
        let (first, next) = (agent.next, agent.next + events.len() as u64);
        self.says(agent, Said::Events { first, next, events }).unwrap();
        agent.next = next;
    }

    /// It answers a question of what is half-open with these, in two parts.
    fn collected(&mut self, agent: &Agent, number: u64, clients: &[u32]) {
        let id = agent.endpoints.endpoint[0].id;
        let (some, others) = clients.split_at(clients.len() / 2);
        for (part, last) in [(some, false), (others, true)] {
            assert!(!self.engine.has_collected(number), "not all parts have come");
            let connections = part.iter().map(|client| connection(id, *client)).collect();
            self.says(agent, Said::Collected { number, connections, last }).unwrap();
        }
    }

    /// All three backends have agents that have nothing yet.
    fn agents(&mut self) -> Vec<Agent> {
        let agents = (1..=3).map(|n| {
            let mut agent = self.call(n.into(), n, n);
            self.dumps(&mut agent, []);
            agent
        });
        agents.collect()
    }

    /// SYNs, whose connections the agents tell as open.
    fn open_told(&mut self, agents: &mut [Agent], clients: std::ops::Range<u32>) {
        let began = self.start(0, clients.clone());
        self.engine.drain_reports().unwrap();
        for (n, agent) in (1..).zip(agents) {
            let own = self.engine.services["a"].member(&format!("b{n}")).expect("there").id;
            let here = clients.clone().zip(&began).filter(|(_, at)| **at == own);
            self.tells(agent, Kind::Opened, here.map(|(client, _)| client).collect::<Vec<_>>());
        }
    }

    fn states(&self) -> usize {
        self.engine.services["a"].builder.states()
    }

    fn at(&self, client: u32) -> Option<u8> {
        let service = &self.engine.services["a"];
        let known = service.known(&StateKey::of_flow(&flow(0, client)))?;
        service.name_of(known.backend)?[1..].parse().ok()
    }

    fn number_of(&self, client: u32) -> u8 {
        let name = self.engine.services["a"].name_of(self.live[&flow(0, client)]);
        name.expect("it is there")[1..].parse().expect("a number")
    }
}

fn a_flood_of_syns_makes_no_state(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 80_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..500);
    assert_eq!(world.states(), 500);
    world.live.clear();
    for round in 0..20 {
        world.start(0, 10_000 + round * 2_000..12_000 + round * 2_000);
        world.engine.drain_reports().unwrap();
        assert_eq!(world.states(), 500);
    }
    // No more are kept aside than there is room for.
    let service = &world.engine.services["a"];
    assert_eq!((service.young.len(), service.young.pushed_out), (5_000, 35_000));
    assert_eq!(service.half_open.len(), 0);
    world.drain("a", "b1").unwrap();
    assert_eq!(world.states(), 500, "nor in an update");
    assert_eq!(world.warnings(), Vec::<String>::new());
}

fn what_begins_before_an_update_and_is_told_after_it_stays(method: &str) {
    let (mut world, clock) = world(method, 100_000, 80_000);
    let mut agents = world.agents();
    for round in 0..12u32 {
        // Open, half-open, and half-open with its report still in the ring.
        world.open_told(&mut agents, round * 1_000..round * 1_000 + 300);
        world.start(0, round * 1_000 + 300..round * 1_000 + 350);
        world.engine.drain_reports().unwrap();
        world.start(0, round * 1_000 + 350..round * 1_000 + 400);
        let backend = format!("b{}", round % 3 + 1);
        world.ask(|reply| Command::Drain("a".into(), backend, round % 2 == 0, reply)).unwrap();
        world.check();
        world.engine.drain_reports().unwrap();
        for (n, agent) in (1..=3).zip(&mut agents) {
            let young = round * 1_000 + 300..round * 1_000 + 400;
            let own: Vec<u32> = young.filter(|client| world.number_of(*client) == n).collect();
            world.tells(agent, Kind::Opened, own);
        }
        assert_eq!(world.states(), world.live.len());
        clock.fetch_add(7, Ordering::Relaxed);
        world.engine.sweep().unwrap();
    }
    world.check();
    let (_, refused) = world.engine.agents_refused();
    assert_eq!(refused, 0);
}

fn ends_are_known_at_once_and_silence_says_nothing(method: &str) {
    let (mut world, clock) = world(method, 10_000, 10_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..300);
    // Much longer than any timeout.
    for _ in 0..40 {
        clock.fetch_add(600, Ordering::Relaxed);
        world.engine.sweep().unwrap();
    }
    assert_eq!(world.states(), 300);
    // A packet with FIN or RST says nothing, whoever sent it.
    for client in 0..300 {
        let frame = Frame::new(flow(0, client)).tcp_flags(TcpFlags::RST).build();
        world.engine.plane.process(&frame);
    }
    world.engine.drain_reports().unwrap();
    clock.fetch_add(600, Ordering::Relaxed);
    world.engine.sweep().unwrap();
    assert_eq!(world.states(), 300);
    for (n, agent) in (1..=3).zip(&mut agents) {
        let own: Vec<u32> = (0..300).filter(|client| world.number_of(*client) == n).collect();
        let (closed, lingers) = own.split_at(own.len() / 2);
        world.tells(agent, Kind::Closed, closed.iter().copied());
        world.tells(agent, Kind::Lingers, lingers.iter().copied());
    }
    let lingering = world.states();
    assert!((150..=152).contains(&lingering), "{lingering}");
    clock.fetch_add(61, Ordering::Relaxed);
    world.engine.sweep().unwrap();
    clock.fetch_add(61, Ordering::Relaxed);
    world.engine.sweep().unwrap();
    assert_eq!(world.states(), 0);
    world.check_counters();
}

/// Connections that agents have failed to report are where an operator looks.
#[test]
fn what_agents_fail_to_report_is_in_status_and_metrics() {
    let (mut world, _clock) = world("concury", 10_000, 10_000);
    let count = |world: &World| {
        let status = world.engine.status().expect("readable");
        let untold = status.services[0].untold;
        let text = crate::metrics::text(&status);
        let line = text.lines().find(|line| line.starts_with("weir_service_untold_total{"));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        assert_eq!(value, Some(untold as f64), "{line:?}");
        untold
    };
    assert_eq!(count(&world), 0);
    let service = world.engine.services.get_mut("a").expect("there");
    let backend = service.pool[0].id;
    for src_port in 0..3 {
        service.young.push(StateKey { src_port, ..StateKey::default() }, backend, 0);
    }
    service.young.sweep(10, 600, |_| true);
    service.young.sweep(100, 600, |_| false);
    assert_eq!(count(&world), 3);
    assert!(world.warnings().iter().any(|one| one.contains("packets of 3 connections were seen")));
    // What the next change may break it has broken, or has left, when it is made: no danger is left to warn of.
    let generation = world.engine.services["a"].generation;
    world.drain("a", "b1").unwrap();
    assert!(world.engine.services["a"].generation > generation);
    assert_eq!(count(&world), 3);
    assert!(!world.warnings().iter().any(|one| one.contains("connections were seen")));
}

/// Agents hear of all balancers of a fleet when they call, and whenever those are others.
#[test]
fn agents_hear_of_the_other_balancers() {
    let (mut world, _clock) = world("concury", 1_000, 1_000);
    assert_eq!(world.call(1, 1, 1).balancers, None, "it is of no fleet");
    let cache = Cache { id: "1".into(), document: None, step: None };
    let (own, left, notes) = (String::new(), None, Vec::new());
    let begun = Begun { cache, step: None, own, joined: true, left, followed: true, notes };
    let mut fleet = Fleet::new(begun, &world.directory.path().join("weir.toml"));
    let (asks, _asked) = mpsc::channel(1);
    let (sign, _signed) = watch::channel(Sign::default());
    let (report, reported) = watch::channel(Report::default());
    let (sender, _commands) = channel(16).expect("descriptors");
    fleet.keep_by(asks, sign, reported, sender);
    world.engine.fleet = Some(fleet);
    let mut agent = world.call(2, 2, 2);
    assert_eq!(agent.balancers, None, "the store was not heard yet");
    report.send_modify(|report| {
        report.reachable = true;
        let there = Sign { agents: Some("10.0.0.2:80".into()), ..Sign::default() };
        report.balancers.insert("other".into(), there);
    });
    let own = world.engine.config.balancer.name.clone();
    let places = |list: &Balancers| -> Vec<String> {
        let one = |one: &weir_rpc::Peer| format!("{} {}:{}", one.name, one.host, one.port);
        assert_eq!(list.own, own);
        list.peer.iter().map(one).collect()
    };
    let here = format!("{own} 127.0.0.1:4479");
    world.engine.look_at_agents();
    let Ok(Order::Balancers(list)) = agent.orders.try_recv() else { panic!("it is told") };
    assert_eq!(places(&list), [&here, "other 10.0.0.2:80"]);
    world.engine.look_at_agents();
    assert!(agent.orders.try_recv().is_err(), "once is enough");
    assert_eq!(world.call(3, 3, 3).balancers, Some(list));
    report.send_modify(|report| report.balancers.clear());
    world.engine.look_at_agents();
    let Ok(Order::Balancers(list)) = agent.orders.try_recv() else { panic!("it is told") };
    assert_eq!(places(&list), [here]);
}

/// In step with other balancers: whose a connection is that two agents have named one after the other.
fn a_connection_is_who_has_named_it_when_nobody_else_has_it(method: &str) {
    let (mut world, _clock) = world(method, 1_000, 10_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..90);
    let share = |n: u8| Share { name: format!("b{n}"), weight: 1, drains: false, down: n == 3 };
    world.engine.services.get_mut("a").expect("it is there").agreed =
        Some((1..=3).map(share).collect());
    let of = |world: &World, n: u8| -> Vec<u32> {
        (0..90).filter(|client| world.at(*client) == Some(n)).collect()
    };
    let (first, second, third) = (of(&world, 1), of(&world, 2), of(&world, 3));
    assert!(!first.is_empty() && !second.is_empty() && !third.is_empty());
    // b2 has them now, as it lists; what b1 says of their ends comes later.
    world.tells(&mut agents[1], Kind::Opened, first.clone());
    world.dumps(&mut agents[1], first.iter().chain(&second).copied());
    assert_eq!(of(&world, 1), first);
    world.tells(&mut agents[0], Kind::Closed, first.clone());
    assert!(of(&world, 1).is_empty());
    assert_eq!(of(&world, 2).len(), first.len() + second.len());
    // What has ended comes back no more.
    world.tells(&mut agents[1], Kind::Closed, first.clone());
    assert_eq!(of(&world, 2), second);
    // b3 is down, and whoever is there says what it has; when its agent is gone as well, nobody does.
    world.tells(&mut agents[0], Kind::Opened, third.clone());
    assert_eq!(of(&world, 3), third);
    world.engine.handle(Command::AgentGone(agents[2].session));
    world.tells(&mut agents[0], Kind::Opened, third.clone());
    assert_eq!((of(&world, 1), of(&world, 3)), (third, vec![]));
}

/// In step with other balancers: an agent that names connections before whoever has them keeps none.
fn who_makes_connections_up_in_step_has_none(method: &str) {
    let (mut world, _clock) = world(method, 1_000, 10_000);
    let mut agents = world.agents();
    let share = |n: u8| Share { name: format!("b{n}"), weight: 1, drains: false, down: false };
    world.engine.services.get_mut("a").expect("it is there").agreed =
        Some((1..=3).map(share).collect());
    world.start(0, 0..90);
    world.engine.drain_reports().unwrap();
    let mut liar = agents.remove(0);
    world.tells(&mut liar, Kind::Opened, 0..90);
    let wanted: Vec<u8> = (0..90).map(|client| world.number_of(client)).collect();
    for (at, agent) in agents.iter_mut().enumerate() {
        let own = (0..90).filter(|client| wanted[*client as usize] == at as u8 + 2);
        world.tells(agent, Kind::Opened, own.collect::<Vec<_>>());
    }
    let found: Vec<_> = (0..90).map(|client| world.at(client)).collect();
    assert_eq!(found, wanted.iter().copied().map(Some).collect::<Vec<_>>());
    // Whoever comes after them has no better luck.
    world.tells(&mut liar, Kind::Opened, 0..90);
    assert_eq!((0..90).map(|client| world.at(client)).collect::<Vec<_>>(), found);
}

/// In step with other balancers: an agent that names whatever others have leaves room for what honest ones name.
fn who_names_all_leaves_room_for_others(method: &str) {
    let (mut world, _clock) = world(method, 400_000, 10_000);
    let mut agents = world.agents();
    // In parts, as there is no room for the reports of all.
    for part in 0..13 {
        world.open_told(&mut agents, part * 10_000..(part + 1) * 10_000);
    }
    let share = |n: u8| Share { name: format!("b{n}"), weight: 1, drains: false, down: false };
    world.engine.services.get_mut("a").expect("it is there").agreed =
        Some((1..=3).map(share).collect());
    let homes: Vec<_> = (0..130_000).map(|client| world.at(client)).collect();
    let of = |wanted: &[u8]| -> Vec<u32> {
        let here = |client: &u32| homes[*client as usize].is_some_and(|at| wanted.contains(&at));
        (0..130_000).filter(here).collect()
    };
    let (others, second) = (of(&[2, 3]), of(&[2]));
    assert!(others.len() > 70_000);
    world.tells(&mut agents[0], Kind::Opened, others);
    // b3 has some of b2's now, and is heard first.
    let moved = &second[second.len() - 100..];
    world.tells(&mut agents[2], Kind::Opened, moved.to_vec());
    world.tells(&mut agents[1], Kind::Closed, moved.to_vec());
    assert!(moved.iter().all(|client| world.at(*client) == Some(3)));
    let claims = &world.engine.services["a"].claims;
    assert!(claims.keys().count() < 30_000, "the one that names all has its share");
}

fn an_agent_speaks_for_its_own_connections_only(method: &str) {
    let (mut world, _clock) = world(method, 1_000, 10_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..90);
    let before: Vec<_> = (0..90).map(|client| world.at(client)).collect();
    // b1 claims all, says that all have ended, and lists all.
    let mut liar = agents.remove(0);
    world.tells(&mut liar, Kind::Opened, 0..90);
    world.dumps(&mut liar, 0..90);
    let others = before.iter().filter(|at| **at != Some(1)).count() as u64;
    // In a dump each is said once, though it is listed twice.
    let (_, refused) = world.engine.agents_refused();
    assert!(refused >= 2 * others, "{refused} of {others}");
    assert_eq!((0..90).map(|client| world.at(client)).collect::<Vec<_>>(), before);
    world.tells(&mut liar, Kind::Closed, 0..90);
    let left: Vec<_> = (0..90).map(|client| world.at(client)).collect();
    assert!(left.iter().zip(&before).all(|(now, was)| match was {
        Some(1) => now.is_none(),
        was => now == was,
    }));
    // What the balancer has sent elsewhere, and nobody has told yet.
    let began = world.start(0, 200..300);
    world.engine.drain_reports().unwrap();
    world.tells(&mut liar, Kind::Opened, 200..300);
    let own = world.engine.services["a"].member("b1").unwrap().id;
    let taken = began.iter().filter(|at| **at == own).count();
    let claimed = (200..300).filter(|client| world.at(*client) == Some(1)).count();
    assert_eq!(claimed, taken);
    // Endpoints of others, and of nobody.
    let id = agents[0].endpoints.endpoint[0].id;
    let events = vec![(Kind::Opened, connection(id, 900)), (Kind::Opened, connection(77, 901))];
    let (first, next) = (liar.next, liar.next + 2);
    world.says(&liar, Said::Events { first, next, events }).unwrap();
    liar.next = next;
    assert_eq!((world.at(900), world.at(901)), (None, None));
    // However many it makes up, half of the room is the others'.
    world.tells(&mut liar, Kind::Opened, 1_000..3_000);
    assert!(world.engine.services["a"].states_of(own).unwrap() <= 500);
    let room = world.engine.services["a"].refused();
    world.open_told(&mut agents[..], 5_000..5_050);
    assert_eq!(world.engine.services["a"].refused(), room);
    world.check_counters();
}

fn a_dump_puts_right_what_was_missed(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 10_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..300);
    let own: Vec<u32> = (0..300).filter(|client| world.number_of(*client) == 2).collect();
    // Half of them have ended, and others have begun, while nobody listened.
    let (gone, stay) = own.split_at(own.len() / 2);
    let list: Vec<u32> = stay.iter().copied().chain(700..720).collect();
    world.dumps(&mut agents[1], list.clone());
    assert!(list.iter().all(|client| world.at(*client) == Some(2)));
    // They were young a moment ago, and are kept aside as such.
    assert!(gone.iter().all(|client| world.at(*client).is_none()));
    assert_eq!(world.engine.services["a"].young.len(), gone.len());
    assert_eq!(world.states(), 300 - gone.len() + 20);
    // Events that do not follow end the session.
    let events = Said::Events { first: 5_000, next: 5_000, events: Vec::new() };
    let agent = agents.remove(1);
    assert!(world.says(&agent, events).unwrap_err().contains("5000"));
    assert!(world.says(&agent, Said::DumpEnd).is_err());
    assert!(
        world
            .says(&agent, Said::Dumped(vec![connection(agent.endpoints.endpoint[0].id, 1)]))
            .is_err()
    );
}

fn a_backend_without_an_agent_is_observed(method: &str) {
    let (mut world, clock) = world(method, 10_000, 10_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..300);
    // Its agent goes; what it said counts for a while, and SYNs are kept aside.
    let lost = agents.remove(0);
    world.engine.handle(Command::AgentGone(lost.session));
    let own = world.engine.services["a"].member("b1").unwrap().id;
    assert!(world.engine.services["a"].is_told_of(own));
    let began = world.start(0, 300..400);
    world.engine.drain_reports().unwrap();
    assert_eq!(world.states(), 300);
    // It comes back in time: it goes on where it was.
    let mut back = world.call(9, 1, 1);
    assert!(back.resumed && back.next == lost.next && back.instance == lost.instance);
    let young: Vec<u32> =
        (300..400).zip(&began).filter(|(_, at)| **at == own).map(|(client, _)| client).collect();
    world.tells(&mut back, Kind::Opened, young.clone());
    assert_eq!(world.states(), 300 + young.len());
    // It goes for good: what has begun is a state now, and what packets say counts.
    world.engine.handle(Command::AgentGone(9));
    world.start(0, 400..500);
    world.engine.drain_reports().unwrap();
    let before = world.states();
    world.engine.give_up_lost();
    assert!(!world.engine.services["a"].is_told_of(own));
    let young = (400..500).filter(|client| world.number_of(*client) == 1).count();
    assert_eq!(world.states(), before + young);
    assert!(world.warnings().iter().any(|said| said.contains("no agent tells of b1")));
    world.drain("a", "b2").unwrap();
    world.check();
    // Those of which nothing was ever heard again end some time; others, whose agents tell, do not.
    let told = (0..400).filter(|client| matches!(world.at(*client), Some(2 | 3))).count();
    for _ in 0..40 {
        clock.fetch_add(600, Ordering::Relaxed);
        world.engine.sweep().unwrap();
    }
    let left: Vec<_> = (0..500).filter_map(|client| world.at(client)).collect();
    assert!(left.iter().all(|at| *at != 1), "silent for hours, and observed");
    assert_eq!(left.len(), told);
    // Another agent of the same backend: it begins with a dump.
    let mut other = world.call(10, 1, 77);
    assert!(!other.resumed);
    world.dumps(
        &mut other,
        [1, 2, 3].into_iter().filter(|client| world.number_of(*client) == 1).collect::<Vec<_>>(),
    );
    assert!(world.engine.services["a"].is_told_of(own));
}

fn a_second_agent_of_a_backend_ends_the_first(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 10_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..100);
    let mut second = world.call(20, 1, 50);
    assert_eq!(agents[0].ended.try_recv(), Ok(Over::Another));
    assert!(world.says(&agents[0], Said::DumpEnd).is_err());
    // Until it has listed all, what the first one said counts.
    assert_eq!(world.states(), 100);
    world.engine.give_up_lost();
    let mine: Vec<u32> = (0..100).filter(|client| world.number_of(*client) == 1).collect();
    world.dumps(&mut second, mine);
    assert_eq!(world.states(), 100);
    world.drain("a", "b3").unwrap();
    world.check();
    // Who ends says of nobody that another agent has come.
    drop(world);
    assert_eq!(second.ended.try_recv(), Err(oneshot::error::TryRecvError::Closed));
}

fn agents_hear_of_backends_that_come(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 10_000);
    let mut agents = world.agents();
    let mut fourth = world.call(4, 4, 4);
    assert!(fourth.endpoints.endpoint.is_empty());
    world.ask(|reply| Command::Add("a".into(), Box::new(backend(0, 4)), reply)).unwrap();
    world.engine.look_at_agents();
    let Ok(Order::Endpoints(list)) = fourth.orders.try_recv() else { panic!("it is told") };
    assert_eq!(list.endpoint.len(), 1);
    assert!(agents[0].orders.try_recv().is_err(), "nothing is new for the others");
    let own = world.engine.services["a"].member("b4").unwrap().id;
    fourth.endpoints = list;
    assert!(!world.engine.services["a"].is_told_of(own));
    world.dumps(&mut fourth, []);
    assert!(world.engine.services["a"].is_told_of(own));
    agents.push(fourth);
    world.open_told(&mut agents, 0..400);
    assert_eq!(world.states(), 400);
    world.ask(|reply| Command::Remove("a".into(), "b4".into(), reply)).unwrap();
    world.engine.look_at_agents();
    assert!(!world.engine.services["a"].is_told_of(own));
    // Of what it was not asked for any more it may still speak, without harm.
    let fourth = agents.last_mut().unwrap();
    let (_, before) = world.engine.agents_refused();
    world.tells(fourth, Kind::Opened, [9_000]);
    assert_eq!(world.engine.agents_refused().1, before);
    assert_eq!(world.at(9_000), None);
}

/// What the log of an earlier time says of a connection that has moved meanwhile, its agent puts right,
/// whoever is heard first.
fn what_is_known_of_an_earlier_time_is_put_right(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 10_000);
    // As read from the log: all at b1.
    let b1 = world.engine.services["a"].member("b1").unwrap().id;
    let service = world.engine.services.get_mut("a").unwrap();
    for client in 0..10 {
        service.builder.restore(StateKey::of_flow(&flow(0, client)), b1, 900).unwrap();
    }
    let (mut second, mut first) = (world.call(2, 2, 2), world.call(1, 1, 1));
    world.dumps(&mut second, 0..4);
    assert_eq!(world.at(0), Some(1), "one of two is wrong");
    world.dumps(&mut first, 4..10);
    assert_eq!(world.at(0), None);
    assert!(matches!(second.orders.try_recv(), Ok(Order::Dump)));
    world.dumps(&mut second, 0..4);
    let at: Vec<_> = (0..10).map(|client| world.at(client).unwrap()).collect();
    assert_eq!(at, [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
}

fn a_new_balancer_takes_no_packets_before_it_knows(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 10_000);
    assert!(world.engine.plane.attached.is_empty());
    assert!(world.warnings()[0].contains("no packets are taken yet"), "{:?}", world.warnings());
    let (_keeper, wants, _reports) = world.engine.announce().unwrap();
    assert!(wants.borrow().untaken, "nobody is to send packets here");
    // Connections of another time, wherever the table of this one would lead them.
    for n in 1..=3u8 {
        let mut agent = world.call(n.into(), n, n);
        let own: Vec<u32> = (0..300).filter(|client| client % 3 + 1 == u32::from(n)).collect();
        assert!(world.engine.plane.attached.is_empty());
        world.dumps(&mut agent, own);
    }
    assert_eq!(world.engine.plane.attached, ["eth0"]);
    world.engine.tell_announcer();
    assert!(!wants.borrow().untaken);
    for client in 0..300 {
        let name = format!("b{}", client % 3 + 1);
        let id = world.engine.services["a"].member(&name).unwrap().id;
        world.live.insert(flow(0, client), id);
    }
    world.check();
    assert_eq!(world.warnings(), Vec::<String>::new());
}

fn a_new_balancer_waits_no_longer_than_it_may(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 10_000);
    world.engine.end_learning();
    assert_eq!(world.engine.plane.attached, ["eth0"]);
    let said = world.warnings();
    assert!(said.iter().all(|said| said.contains("no agent tells of b1, b2, b3")), "{said:?}");
}

#[test]
fn loads_that_agents_tell_are_those_of_the_command() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let plane = Soft::new(SoftMemory::new(10_000, 64, 64));
    let fields = "method = \"tracked\"\nscheduler = \"least\"\nload = \"told\"";
    let mut config = config_with(&directory, 1, fields);
    config.agents = Some(Agents {
        listen: ([127, 0, 0, 1], 4479).into(),
        certificate: "/none.pem".into(),
        key: "/none.key".into(),
        ca: "/none-ca.pem".into(),
        learn: Duration::from_secs(60),
    });
    let engine = over(plane, Found::default(), &config).unwrap_or_else(|error| panic!("{error}"));
    let mut world = World { engine, live: HashMap::new(), directory };
    assert_eq!(world.engine.plane.attached, ["eth0"], "nobody is asked for connections");
    for (n, load) in [(1, 70.0), (2, 5.0), (3, 90.0)] {
        let agent = world.call(n.into(), n, n);
        let said = Said::Load { cpu: 0.1, run_queue: 2, load: Some(load), unknown: false };
        world.says(&agent, said).unwrap();
    }
    let status = world.engine.status().unwrap();
    let told: Vec<_> = status.services[0].backends.iter().map(|one| one.told_load).collect();
    assert_eq!(told, [Some(70.0), Some(5.0), Some(90.0)]);
    let least = world.engine.services["a"].member("b2").unwrap().id;
    assert!(world.start(0, 0..50).iter().all(|at| *at == least));
    // It does not know its load any more, and what it said is forgotten.
    let agent = world.call(4, 2, 2);
    let said = |unknown| Said::Load { cpu: 0.1, run_queue: 2, load: None, unknown };
    let told = |world: &mut World| world.engine.status().unwrap().services[0].backends[1].told_load;
    world.says(&agent, said(false)).unwrap();
    assert_eq!(told(&mut world), Some(5.0), "who was not asked says nothing of it");
    world.says(&agent, said(true)).unwrap();
    assert_eq!(told(&mut world), None);
}

/// The process is killed between SYNs and what agents say of them, and the next one takes over.
fn killed(world: World) -> World {
    let World { mut engine, live, directory } = world;
    let (config, plane) = (engine.config.clone(), std::mem::take(&mut engine.plane));
    drop(engine);
    let found = Found { resumed: true, ..Found::default() };
    let mut engine = over(plane, found, &config).unwrap_or_else(|error| panic!("{error}"));
    engine.clock = Box::new(|| 1_100);
    World { engine, live, directory }
}

/// What had just begun when the process was killed is known to agents only: no change moves it.
fn changes_wait_until_agents_have_listed(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 10_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..100);
    let began = world.start(0, 100..300);
    world.engine.drain_reports().unwrap();
    let mut world = killed(world);
    let (sender, mut commands) = channel(8).expect("descriptors");
    world.engine.urgent = commands.urgent();
    let (mut timers, mut answers) = (Timers::new(), Vec::new());
    for backend in ["b2", "b3"] {
        let (reply, answer) = oneshot::channel();
        let command = Command::Drain("a".into(), backend.into(), true, reply);
        assert!(sender.try_send(command).is_ok());
        answers.push(answer);
    }
    let mut turn = |world: &mut World| assert!(world.engine.turn(&mut commands, &mut timers));
    turn(&mut world);
    assert!(world.warnings()[0].contains("changes wait until agents have listed"));
    // Packets are kept from a backend that fails all the same.
    let member = world.engine.services["a"].member("b1").expect("there");
    let (b1, at) = (member.id, Instant::now());
    let id = world.engine.services["a"].target(b1);
    let failed = Transition { id, up: false, spoken: None, detail: "no answer".into(), at };
    assert!(sender.try_send(Command::Health(vec![failed])).is_ok());
    turn(&mut world);
    assert!(!world.engine.plane.backend(b1).expect("there").up);
    let generation = world.engine.services["a"].generation;
    for n in 1..=3u8 {
        assert!(
            answers.iter_mut().all(|answer| answer.try_recv().is_err()),
            "before b{n} has told"
        );
        assert_eq!(world.engine.services["a"].generation, generation);
        let own = world.engine.services["a"].member(&format!("b{n}")).expect("there").id;
        let mut agent = world.call(10 + u64::from(n), n, n);
        let new = (100..300).zip(&began).filter(|(_, at)| **at == own).map(|(client, _)| client);
        let old = (0..100).filter(|client| world.live[&flow(0, *client)] == own);
        let all: Vec<u32> = new.chain(old).collect();
        world.dumps(&mut agent, all);
        turn(&mut world);
    }
    for mut answer in answers {
        answer.try_recv().expect("answered").expect("done");
    }
    assert!(world.engine.services["a"].generation > generation);
    assert_eq!(world.states(), 300);
    // Whoever is down has lost its own.
    world.live.retain(|_, at| *at != b1);
    world.upkeep();
    world.check();
}

fn asked(agent: &mut Agent) -> Vec<u64> {
    let orders = std::iter::from_fn(|| agent.orders.try_recv().ok());
    orders.filter_map(|order| if let Order::Collect(n) = order { Some(n) } else { None }).collect()
}

/// What has begun by way of another balancer, whose table leads elsewhere, is where that has sent it.
fn what_agents_say_is_half_open_stays_in_an_update(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 80_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..90);
    let number = world.engine.collect_from_agents();
    assert_eq!(world.engine.missing_collect(number), ["b1", "b2", "b3"]);
    let at = |client: u32| client % 3 + 1;
    for (n, agent) in (1..).zip(&mut agents) {
        assert_eq!(asked(agent), [number]);
        let own: Vec<u32> = (200..500).filter(|client| at(*client) == n).collect();
        world.collected(agent, number, &own);
        let missing = world.engine.missing_collect(number);
        assert!(!missing.contains(&format!("b{n}")) && missing.len() == 3 - n as usize);
    }
    assert!(world.engine.has_collected(number));
    assert_eq!((world.states(), world.engine.services["a"].young.len()), (90, 300));
    world.drain("a", "b1").unwrap();
    for client in 200..500 {
        let id = world.engine.services["a"].member(&format!("b{}", at(client))).unwrap().id;
        world.live.insert(flow(0, client), id);
    }
    world.check();
    assert_eq!(world.states(), 90, "half-open ones are no states");
    for (n, agent) in (1..).zip(&mut agents) {
        world.tells(agent, Kind::Opened, (200..500).filter(|client| at(*client) == n));
    }
    assert_eq!((world.states(), world.engine.services["a"].young.len()), (390, 0));
    assert_eq!(world.engine.agents_refused().1, 0);
    world.check();
}

/// An agent that says that something is half-open takes no connection from where it is known to be.
fn what_is_known_to_be_elsewhere_is_not_half_open(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 80_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..90);
    world.start(0, 90..120);
    world.engine.drain_reports().unwrap();
    let number = world.engine.collect_from_agents();
    let liar = agents.remove(0);
    let all: Vec<u32> = (0..120).collect();
    world.collected(&liar, number, &all);
    let service = &world.engine.services["a"];
    assert_eq!((service.young.len(), world.engine.agents_refused().1), (30, 0));
    for client in 90..120 {
        let begun = service.young.get(&StateKey::of_flow(&flow(0, client))).expect("it has begun");
        assert_eq!(begun.backend, world.live[&flow(0, client)]);
    }
    world.drain("a", "b2").unwrap();
    world.check();
    // Of another endpoint than its own it says nothing.
    let number = world.engine.collect_from_agents();
    let connections = vec![connection(agents[0].endpoints.endpoint[0].id, 700)];
    world.says(&liar, Said::Collected { number, connections, last: true }).unwrap();
    assert_eq!(world.engine.agents_refused().1, 1);
    assert!(world.engine.services["a"].young.get(&StateKey::of_flow(&flow(0, 700))).is_none());
    // One that has ended, and whose end is kept for a minute, may have begun again.
    let own: Vec<u32> = (0..90).filter(|client| world.number_of(*client) == 2).collect();
    world.tells(&mut agents[0], Kind::Lingers, own[..1].iter().copied());
    world.collected(&agents[0], number, &own);
    assert_eq!(world.engine.services["a"].young.len(), 31);
}

fn a_question_is_answered_by_all_that_were_there(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 80_000);
    let mut agents = world.agents();
    let mut idle = world.call(9, 9, 9);
    let first = world.engine.collect_from_agents();
    let second = world.engine.collect_from_agents();
    assert_eq!(asked(&mut idle), [0; 0], "it has no backend of a service");
    // The answer to the last of them is one to those before.
    world.collected(&agents[0], second, &[1]);
    assert_eq!(world.engine.missing_collect(first), ["b2", "b3"]);
    world
        .says(&agents[0], Said::Collected { number: first, connections: vec![], last: true })
        .unwrap();
    world.collected(&agents[1], first, &[]);
    assert_eq!(world.engine.missing_collect(first), ["b3"]);
    assert_eq!(world.engine.missing_collect(second), ["b2", "b3"]);
    // Who is gone is waited for no longer, and who calls again is asked what the others were asked last.
    world.engine.handle(Command::AgentGone(agents[2].session));
    assert!(world.engine.has_collected(first));
    let mut back = world.call(33, 3, 3);
    assert!(world.engine.has_collected(first));
    world.collected(&agents[1], second, &[]);
    assert_eq!(world.engine.missing_collect(second), ["b3"]);
    assert_eq!(asked(&mut back), [second]);
    world.collected(&back, second, &[]);
    assert!(world.engine.has_collected(second));
    // Who has none to answer for, and is asked for some later, has nothing to answer either.
    world.ask(|reply| Command::Add("a".into(), Box::new(backend(0, 9)), reply)).unwrap();
    world.engine.look_at_agents();
    assert!(world.engine.has_collected(second));
    // What was not asked, what comes before all has been listed, and more than there may be.
    let answer = |number, connections| Said::Collected { number, connections, last: false };
    assert!(world.says(&back, answer(second + 1, vec![])).unwrap_err().contains("question"));
    let third = world.engine.collect_from_agents();
    assert!(world.says(&idle, answer(third, vec![])).unwrap_err().contains("before it has listed"));
    assert_eq!(asked(&mut back), [third]);
    let many = vec![connection(back.endpoints.endpoint[0].id, 1); 65_536];
    world.says(&back, answer(third, many.clone())).unwrap();
    assert!(world.says(&back, answer(third, many)).unwrap_err().contains("65536"));
    // Who takes no order is lost.
    for _ in 0..20 {
        world.engine.collect_from_agents();
    }
    let last = world.engine.collect_from_agents();
    assert!(world.engine.has_collected(last), "{:?}", world.engine.missing_collect(last));
    assert_eq!(agents[0].ended.try_recv(), Ok(Over::Deaf));
}

/// An agent that does not come back keeps no change for ever.
fn changes_wait_no_longer_than_they_may(method: &str) {
    let (mut world, _clock) = world(method, 10_000, 10_000);
    let mut agents = world.agents();
    world.open_told(&mut agents, 0..100);
    let mut world = killed(world);
    let (sender, mut commands) = channel(8).expect("descriptors");
    let (reply, mut answer) = oneshot::channel();
    assert!(sender.try_send(Command::Drain("a".into(), "b2".into(), true, reply)).is_ok());
    let mut timers = Timers::new();
    assert!(world.engine.turn(&mut commands, &mut timers));
    assert!(answer.try_recv().is_err());
    // There is room for so many only; who comes then is told at once.
    let mut drain = || {
        let (reply, answer) = oneshot::channel();
        world.engine.handle_settled(Command::Drain("a".into(), "b2".into(), true, reply));
        answer
    };
    let mut waiting: Vec<_> = (1..WAITING).map(|_| drain()).collect();
    let refused = drain().try_recv().expect("answered").expect_err("refused").to_string();
    assert!(refused.contains("wait for agents to list"), "{refused}");
    assert!(waiting.iter_mut().all(|answer| answer.try_recv().is_err()));
    world.engine.end_settling();
    assert!(world.engine.turn(&mut commands, &mut timers));
    answer.try_recv().expect("answered").expect("done");
    world.check();
}

/// Each of them holds for every method that knows all connections.
macro_rules! by_every_method {
    ($($test:ident)*) => {
        by_every_method! { concury: $($test)* }
        by_every_method! { residue: $($test)* }
    };
    ($method:ident: $($test:ident)*) => {
        mod $method {
            $(#[test]
            fn $test() {
                super::$test(stringify!($method));
            })*
        }
    };
}

by_every_method! {
    a_flood_of_syns_makes_no_state
    what_begins_before_an_update_and_is_told_after_it_stays
    ends_are_known_at_once_and_silence_says_nothing
    a_connection_is_who_has_named_it_when_nobody_else_has_it
    an_agent_speaks_for_its_own_connections_only
    who_makes_connections_up_in_step_has_none
    who_names_all_leaves_room_for_others
    a_dump_puts_right_what_was_missed
    a_backend_without_an_agent_is_observed
    a_second_agent_of_a_backend_ends_the_first
    agents_hear_of_backends_that_come
    what_is_known_of_an_earlier_time_is_put_right
    a_new_balancer_takes_no_packets_before_it_knows
    a_new_balancer_waits_no_longer_than_it_may
    changes_wait_until_agents_have_listed
    changes_wait_no_longer_than_they_may
    what_agents_say_is_half_open_stays_in_an_update
    what_is_known_to_be_elsewhere_is_not_half_open
    a_question_is_answered_by_all_that_were_there
}

/// What an agent is told of how packets come follows the pool, also of services that ask nobody for states, and is
/// told once.
#[test]
fn agents_hear_how_packets_come() {
    let (mut world, _clock) = world("concury", 1_000, 1_000);
    world.engine.services.get_mut("a").expect("there").configured.states = States::Observed;
    let read = |said: &Serving| weir_rpc::serving::serving(said).expect("good");
    let agent = world.call(1, 1, 1);
    let now = read(agent.serving.as_ref().expect("it is told"));
    let [one] = &now[..] else { panic!("one service: {now:?}") };
    let configured = &world.engine.services["a"].configured;
    assert_eq!((&*one.service, one.port), ("a", configured.port));
    assert_eq!(one.backend, IpAddr::from([10, 9, 0, 1]));
    assert_eq!(one.vips[0].address, configured.vip);
    assert_eq!((one.way, one.timestamps), (Some(weir_rpc::serving::Way::Plain), false));
    let mut stranger = world.call(9, 9, 9);
    assert_eq!(read(stranger.serving.as_ref().expect("it is told")), []);
    world.engine.look_at_agents();
    assert!(stranger.orders.try_recv().is_err(), "nothing is new");
    world.ask(|reply| Command::Add("a".into(), Box::new(backend(0, 9)), reply)).unwrap();
    world.engine.look_at_agents();
    let Ok(Order::Serving(said)) = stranger.orders.try_recv() else { panic!("it is told") };
    assert_eq!(read(&said).len(), 1);
    // Packets with the backend's own address need nothing.
    world.engine.services.get_mut("a").expect("there").configured.forward = Forward::Nat;
    world.engine.look_at_agents();
    let Ok(Order::Serving(said)) = stranger.orders.try_recv() else { panic!("it is told") };
    assert_eq!(read(&said), []);
    assert!(stranger.orders.try_recv().is_err(), "once is enough");
}

/// How servers make QUIC ids comes to each with its own id, and again when a key comes or another one issues.
#[test]
fn agents_hear_how_their_servers_make_ids() {
    let (mut world, _clock) = world("concury", 1_000, 1_000);
    let config = |config_id, key: &str| QuicConfig {
        config_id,
        server_id_length: 4,
        nonce_length: 8,
        key: Key::from_hex(&key.repeat(16)),
        encode_length: false,
    };
    let set = |world: &mut World, issue, configs: Vec<QuicConfig>| {
        let server_ids = [].into();
        let quic = Some(Quic { configs, issue, server_ids });
        world.engine.services.get_mut("a").expect("there").configured.quic = quic;
    };
    let mut agent = world.call(1, 1, 1);
    assert_eq!(agent.quic, Some(QuicLb::default()), "no service has ids");
    set(&mut world, 0, vec![config(0, "0a")]);
    let next = |agent: &mut Agent| {
        let Ok(Order::QuicLb(said)) = agent.orders.try_recv() else { panic!("it is told") };
        assert!(agent.orders.try_recv().is_err(), "once is enough");
        weir_rpc::quic::quic_lb(&said).expect("good")
    };
    world.engine.look_at_agents();
    let said = next(&mut agent);
    let id = |world: &World, backend: &str| {
        let quic = world.engine.services["a"].configured.quic.as_ref().expect("there");
        quic.server_id(backend, 4).as_bytes().to_vec()
    };
    assert_eq!((&*said[0].service, &*said[0].backend, said[0].issue), ("a", "b1", 0));
    assert_eq!(said[0].configs[0].server_id, id(&world, "b1"));
    assert_eq!(said[0].configs[0].key.expect("a key").0, [10; 16]);
    let other = world.call(2, 2, 2).quic.expect("it is told");
    assert_eq!(other.service[0].config[0].server_id, id(&world, "b2"), "each its own");
    set(&mut world, 0, vec![config(0, "0a"), config(1, "0b")]);
    world.engine.look_at_agents();
    assert_eq!(next(&mut agent)[0].configs.len(), 2);
    set(&mut world, 1, vec![config(0, "0a"), config(1, "0b")]);
    world.engine.look_at_agents();
    assert_eq!(next(&mut agent)[0].issue, 1);
}
