//! Backends that were looked up: answers are followed, and nothing but an answer with records changes a pool.

use super::*;
use crate::config::{Discover, Forward, Records};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap as Map;

fn entry(name: &str) -> Discover {
    Discover {
        name: name.into(),
        records: Records::Dns(format!("{name}.example.org")),
        port: None,
        weight: 1,
        nat_sources: Vec::new(),
        servers: Vec::new(),
        every: Duration::from_secs(30),
        most: 64,
        leave_after: Duration::from_secs(3600),
    }
}

fn address(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 7, 0, n).into()
}

fn record(n: u8) -> Record {
    Record { backup: false, address: address(n), port: None, weight: 1 }
}

impl World {
    /// The service `a` looks backends up beside its own.
    fn seeks(mut self, entries: &[Discover]) -> Self {
        let mut wanted = self.engine.config.clone();
        wanted.services[0].discover = entries.to_vec();
        self.follow(&wanted).expect("nothing is refused");
        self
    }

    fn answers(&mut self, entry: &Discover, answer: Answer) {
        let sought = Sought { service: "a".into(), ipv4: true, discover: entry.clone() };
        self.engine.handle(Command::LookedUp(Box::new(sought), answer));
    }

    fn finds(&mut self, entry: &Discover, hosts: impl IntoIterator<Item = u8>) {
        self.answers(entry, Ok(hosts.into_iter().map(record).collect()));
    }

    /// Who was found, each with whether it leaves.
    fn found(&self) -> Map<String, bool> {
        let found = self.engine.services["a"].pool.iter().filter(|member| member.found.is_some());
        found.map(|member| (member.wanted.name.clone(), member.is_gone())).collect()
    }

    fn later(&mut self, seconds: u32) {
        self.engine.ahead += seconds;
        self.engine.let_leave();
        self.upkeep();
    }

    /// Ends all connections of a backend.
    fn end_all_of(&mut self, backend: BackendId) {
        let of_it = |(_, at): &(&FlowKey, &BackendId)| **at == backend;
        let flows: Vec<FlowKey> = self.live.iter().filter(of_it).map(|(flow, _)| *flow).collect();
        for flow in flows {
            self.live.remove(&flow);
            self.engine.plane.process(&Frame::new(flow).tcp_flags(TcpFlags::RST).build());
        }
        self.engine.drain_reports().expect("nothing is refused");
        // What has ended is kept for a while, so that late packets find it; the first look sees that there were
        // packets since the one before.
        for _ in 0..3 {
            self.engine.ahead += 100;
            self.engine.sweep().expect("nothing is refused");
        }
    }
}

/// Under full NAT packets of who is found come from the sources that the entry names, and of who is added from those that
/// the command does; with others, connections break.
#[test]
fn who_is_found_or_added_has_sources_of_its_own() {
    let source = |n: u8| IpAddr::from([10, 0, 9, n]);
    let mut web = Discover { nat_sources: vec![source(2)], ..entry("web") };
    let mut world = World::over_with(SoftMemory::new(10_000, 64, 64), (1, ""), |config| {
        config.balancer.nat.addresses = vec![source(1), source(2)];
        config.services[0].forward = Forward::FullNat;
        config.services[0].discover = vec![web.clone()];
    });
    world.engine.path = |_, _| {
        let gateway = "10.0.0.254".parse().ok();
        Ok(crate::neigh::Path { next: Some(neighbour()), gateway, source: None, mtu: 1500 })
    };
    let ports = |world: &World, name: &str| {
        let member = world.engine.services["a"].member(name).expect("it is there");
        let translation = world.engine.plane.backend(member.id).expect("it is told").translation;
        translation.and_then(|to| to.ports).map(|ports| (ports.first, ports.addresses))
    };
    world.finds(&web, [1]);
    assert_eq!(ports(&world, "b1"), Some((0, 2)), "all");
    assert_eq!(ports(&world, "web-10.7.0.1"), Some((1, 1)));

    let added = |n: u8| Backend { nat_sources: vec![source(n)], ..backend(0, 4) };
    let refused =
        world.ask(|reply| Command::Add("a".into(), Box::new(added(3)), reply)).unwrap_err();
    assert!(refused.to_string().contains("10.0.9.3 is not one of balancer.nat_sources"));
    world
        .ask(|reply| Command::Add("a".into(), Box::new(added(2)), reply))
        .expect("it has that one");
    let refused =
        world.ask(|reply| Command::Set("a".into(), Box::new(added(1)), reply)).unwrap_err();
    assert!(refused.to_string().contains("nat_sources: with others, backend b4"), "{refused}");
    world
        .ask(|reply| Command::Set("a".into(), Box::new(backend(0, 4)), reply))
        .expect("it names none");
    assert_eq!(ports(&world, "b4"), Some((1, 1)));

    web.nat_sources = vec![source(1)];
    let mut wanted = world.engine.config.clone();
    wanted.services[0].discover = vec![web.clone()];
    let refused = world.engine.reload_as(wanted.clone(), false).unwrap_err().to_string();
    let words = "nat_sources: with others, backend web-10.7.0.1 would find";
    assert!(refused.contains(words), "{refused}");
    assert_eq!(ports(&world, "web-10.7.0.1"), Some((1, 1)), "nothing has changed");
    world.engine.reload_as(wanted, true).expect("whoever wants that");
    world.finds(&web, [1]);
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    assert_eq!(ports(&world, "web-10.7.0.1"), Some((0, 1)));
}

#[test]
fn who_is_found_comes_and_whose_record_is_gone_leaves_when_its_connections_have_ended() {
    for method in ["concury", "residue"] {
        let web = entry("web");
        let mut world =
            World::with(2, &format!("method = {method:?}")).seeks(std::slice::from_ref(&web));
        world.start(0, 0..100);
        world.finds(&web, [1, 2]);
        assert_eq!(Vec::from_iter(world.found().into_keys()), ["web-10.7.0.1", "web-10.7.0.2"]);
        world.check();
        let first = world.engine.services["a"].member("web-10.7.0.1").expect("there").id;
        assert!(world.start(0, 100..300).contains(&first));
        // The same again is no change.
        let before = world.engine.services["a"].generation;
        world.finds(&web, [2, 1]);
        assert_eq!(world.engine.services["a"].generation, before);
        world.finds(&web, [2]);
        assert!(world.found()["web-10.7.0.1"]);
        assert!(!world.start(0, 300..500).contains(&first), "{method}: its record is gone");
        world.later(60);
        assert!(world.found().contains_key("web-10.7.0.1"), "{method}: it has connections");
        world.check();
        // It comes back, with all that it has.
        world.finds(&web, [1, 2]);
        assert!(!world.found()["web-10.7.0.1"]);
        assert!(world.start(0, 500..700).contains(&first));
        world.check();
        world.finds(&web, [2]);
        world.end_all_of(first);
        world.later(10);
        assert_eq!(Vec::from_iter(world.found().into_keys()), ["web-10.7.0.2"], "{method}");
        world.check();
        assert_eq!(world.warnings(), Vec::<String>::new());
        let told = world.engine.events.after(0).into_iter();
        let told = told.filter_map(|event| match event.what {
            Happening::Discovered { backend, there, .. } => Some((backend, there)),
            _ => None,
        });
        let one = |there| ("web-10.7.0.1".to_owned(), there);
        let all = [one(true), ("web-10.7.0.2".into(), true), one(false), one(true), one(false)];
        assert_eq!(Vec::from_iter(told), all, "{method}");
    }
}

#[test]
fn no_answer_and_none_with_a_record_change_nothing_and_are_told() {
    let web = entry("web");
    let mut world = World::new(1).seeks(std::slice::from_ref(&web));
    let said = world.warnings();
    assert!(said.is_empty(), "it has backends: {said:?}");
    world.finds(&web, [1, 2, 3]);
    world.start(0, 0..100);
    for answer in [Err("there is no name web.example.org".into()), Ok(Vec::new())] {
        world.answers(&web, answer);
        world.later(4000);
        assert!(world.found().values().all(|gone| !gone));
        let said = world.warnings();
        assert!(said[0].contains("no answer about dns web.example.org"), "{said:?}");
        world.check();
    }
    world.finds(&web, [1, 2, 3]);
    assert_eq!(world.warnings(), Vec::<String>::new());
}

#[test]
fn after_its_time_a_backend_whose_record_is_gone_goes_with_its_connections() {
    let web = Discover { leave_after: Duration::from_secs(100), ..entry("web") };
    let mut world = World::new(1).seeks(std::slice::from_ref(&web));
    world.finds(&web, [1, 2]);
    world.start(0, 0..200);
    world.finds(&web, [1]);
    world.later(40);
    assert_eq!(world.found().len(), 2);
    world.check();
    world.later(60);
    assert_eq!(world.found().len(), 1);
    let ids: Vec<_> = world.engine.services["a"].pool.iter().map(|member| member.id).collect();
    world.live.retain(|_, at| ids.contains(at));
    world.check();
}

/// A restart goes on with what was found before anybody has answered, and with who leaves.
#[test]
fn what_was_found_outlives_a_restart() {
    let web = entry("web");
    let mut world = World::new(1).seeks(std::slice::from_ref(&web));
    world.finds(&web, [1, 2, 3]);
    world.start(0, 0..200);
    world.finds(&web, [1, 2]);
    let before = world.found();
    world.upkeep();
    let mut world = world.restart();
    assert_eq!(world.found(), before);
    world.check();
    world.finds(&web, [1, 3]);
    assert!(world.found()["web-10.7.0.2"]);
    assert!(!world.found()["web-10.7.0.3"]);
    world.check();
}

#[test]
fn a_reload_keeps_what_was_found_while_the_entry_is_there() {
    let (web, far) = (entry("web"), entry("far"));
    let mut world = World::new(1).seeks(&[web.clone(), far.clone()]);
    world.finds(&web, [1, 2]);
    world.finds(&far, [3]);
    world.start(0, 0..200);
    // Asked elsewhere: the backends stay until that has answered.
    let other = Discover { records: Records::Srv("_web._tcp.example.org".into()), ..web.clone() };
    let mut wanted = world.engine.config.clone();
    wanted.services[0].discover = vec![other.clone(), far.clone()];
    wanted.services[0].backends[0].weight = 5;
    world.follow(&wanted).expect("nothing is refused");
    assert_eq!(world.found().len(), 3);
    world.check();
    // What the one before says comes too late.
    world.finds(&web, [1]);
    assert!(world.found().values().all(|gone| !gone));
    world.finds(&other, [2]);
    assert!(world.found()["web-10.7.0.1"]);
    world.check();
    // Who is in the file now is the file's, with what it has.
    let joins = Backend { name: "own".into(), address: address(2), ..backend(0, 9) };
    wanted.services[0].backends.push(joins);
    world.follow(&wanted).expect("nothing is refused");
    assert!(!world.found().contains_key("web-10.7.0.2"));
    world.check();
    world.finds(&other, [2, 4]);
    assert_eq!(world.engine.services["a"].member("own").expect("there").found, None);
    // An entry that is gone takes its backends along, and the plan says so.
    wanted.services[0].discover = vec![other];
    let file = Source::File(world.directory.path().join("weir.toml"));
    let plan = world.engine.plan_to(&wanted, &file).expect("it can be looked at");
    let gone: Vec<_> = plan.services[0].backends.iter().filter(|b| b.change == "removed").collect();
    assert_eq!(gone.len(), 1);
    assert_eq!(gone[0].name, "far-10.7.0.3");
    world.follow(&wanted).expect("nothing is refused");
    assert!(!world.found().contains_key("far-10.7.0.3"));
}

#[test]
fn records_say_ports_weights_and_who_is_a_backup() {
    let web = Discover { records: Records::Srv("_web._tcp.example.org".into()), ..entry("web") };
    let mut world = World::with(1, "forward = \"nat\"").seeks(std::slice::from_ref(&web));
    let with = |n, port, weight, backup| Record { backup, port: Some(port), weight, ..record(n) };
    let records = vec![with(1, 8080, 3, false), with(1, 8081, 1, false), with(2, 80, 1, true)];
    world.answers(&web, Ok(records));
    let shown = |world: &World| {
        let pool = &world.engine.services["a"].pool;
        let found = pool.iter().filter(|member| member.found.is_some());
        let of = |m: &super::super::service::PoolMember| {
            (m.wanted.name.clone(), m.wanted.weight, m.wanted.backup)
        };
        found.map(of).collect::<Vec<_>>()
    };
    let name = |text: &str| text.to_owned();
    assert_eq!(
        shown(&world),
        [
            (name("web-10.7.0.1-8080"), 3, false),
            (name("web-10.7.0.1-8081"), 1, false),
            (name("web-10.7.0.2-80"), 1, true)
        ]
    );
    // A weight by command holds until the record says another one.
    let set = |reply| Command::Weight("a".into(), "web-10.7.0.1-8080".into(), 9, reply);
    world.ask(set).expect("nothing is refused");
    world.answers(&web, Ok(vec![with(1, 8080, 3, false), with(2, 80, 1, false)]));
    assert_eq!(shown(&world)[0].1, 9);
    assert!(!shown(&world)[2].2, "it is no backup any more");
    world.answers(&web, Ok(vec![with(1, 8080, 4, false), with(2, 80, 1, false)]));
    assert_eq!(shown(&world)[0].1, 4);
    let remove = |reply| Command::Remove("a".into(), "web-10.7.0.1-8080".into(), reply);
    let refused = world.ask(remove).expect_err("it would come back").to_string();
    assert!(refused.contains("was looked up"), "{refused}");
}

#[test]
fn what_cannot_be_a_backend_is_left_out_and_told() {
    let web = Discover { most: 3, ..entry("web") };
    let mut world = World::new(1).seeks(std::slice::from_ref(&web));
    let port = Record { port: Some(8080), ..record(9) };
    let own = Record { address: Ipv4Addr::new(10, 0, 0, 1).into(), ..record(0) };
    let static_one = Record { address: Ipv4Addr::new(10, 9, 0, 1).into(), ..record(0) };
    let mut records: Vec<Record> = (1..=4).map(record).collect();
    records.extend([port, own, static_one, record(2)]);
    world.answers(&web, Ok(records));
    assert_eq!(world.found().len(), 3);
    let said = world.warnings().join("\n");
    for word in ["10.7.0.9 has port 8080", "the vip of service a", "10.7.0.4: there are most = 3"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    world.finds(&web, [1, 2]);
    assert_eq!(world.warnings(), Vec::<String>::new());
}

/// An address of the balancer's is nobody's, in whatever way it comes: by a command, by an answer, or to who was found.
#[test]
fn who_is_found_or_added_has_no_address_of_the_balancer() {
    let web = entry("web");
    let mut world = World::over_with(SoftMemory::new(10_000, 64, 64), (2, ""), |config| {
        config.balancer.nat.addresses = vec![address(7)];
        config.services[0].discover = vec![web.clone()];
    });
    let added = |at: IpAddr| Backend { address: at, ..backend(0, 4) };
    for (at, why) in [
        (address(7), "10.7.0.7 is one of balancer.nat_sources"),
        (Ipv4Addr::new(10, 0, 0, 2).into(), "10.0.0.2 is the vip of service b"),
    ] {
        let refused =
            world.ask(|reply| Command::Add("a".into(), Box::new(added(at)), reply)).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        let one = Record { address: at, ..record(0) };
        world.answers(&web, Ok(vec![record(1), one]));
        assert_eq!(Vec::from_iter(world.found().into_keys()), ["web-10.7.0.1"]);
        let said = world.warnings().join("\n");
        assert!(said.contains("not in the pool") && said.contains(why), "{said}");
    }
    world.finds(&web, [1]);
    // A file may not take the address of who was found.
    let before = world.engine.config.clone();
    let mut by_vip = before.clone();
    by_vip.services[1].vip = address(1);
    let mut by_source = before.clone();
    by_source.balancer.nat.addresses.push(address(1));
    for (wanted, why) in [
        (by_vip, "vip: 10.7.0.1 is the vip of service b, and the address of backend web-10.7.0.1"),
        (by_source.clone(), "nat_sources: 10.7.0.1 is one of balancer.nat_sources"),
    ] {
        let planned = world.engine.plan_to(&wanted, &Source::File("weir.toml".into()));
        let planned = planned.unwrap_err().to_string();
        assert!(planned.contains(why), "{planned}");
        let refused = world.engine.reload_as(wanted, false).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert!(!world.found()["web-10.7.0.1"], "nothing has changed");
    // At a start nobody is asked before: the next answer sees to it.
    world.follow(&by_source).expect("nothing is refused");
    world.finds(&web, [1, 2]);
    assert!(world.found()["web-10.7.0.1"], "it leaves");
    assert!(!world.found()["web-10.7.0.2"]);
}

#[test]
fn a_service_may_have_no_other_backends() {
    for method in MethodId::published() {
        let fields = format!("method = {:?}", method.name());
        let (web, mut world) = (entry("web"), World::with(1, &fields));
        let mut wanted = world.engine.config.clone();
        wanted.services[0].discover = vec![web.clone()];
        wanted.services[0].backends.clear();
        wanted.services[0].vip = Ipv4Addr::new(10, 0, 1, 1).into();
        world.follow(&wanted).expect("nothing is refused");
        let said = world.warnings();
        assert!(said[0].contains("no backend was found yet"), "{method}: {said:?}");
        world.finds(&web, [1, 2]);
        assert_eq!(world.found().len(), 2, "{method}");
        assert_eq!(world.warnings(), Vec::<String>::new(), "{method}");
        let up = world.engine.services["a"].pool.iter().all(|member| member.up);
        assert!(up, "{method}: nobody is waited for where nobody is up");
    }
}

/// A pool that cannot be published is as before, and the next answer does it.
#[test]
fn an_answer_that_cannot_be_followed_is_followed_by_the_next() {
    let web = entry("web");
    let mut world = World::new(1).seeks(std::slice::from_ref(&web));
    world.finds(&web, [1]);
    world.start(0, 0..100);
    world.engine.plane.refuse(Operation::Show);
    world.finds(&web, [2, 3]);
    assert_eq!(Vec::from_iter(world.found()), [("web-10.7.0.1".to_owned(), false)]);
    assert!(!world.warnings().is_empty());
    world.engine.plane.refuse_nothing();
    world.upkeep();
    world.check();
    world.finds(&web, [2, 3]);
    assert_eq!(world.found().len(), 3);
    world.check();
    world.upkeep();
    assert_eq!(world.warnings(), Vec::<String>::new());
}

/// Answers, failures, commands, reloads, ends and restarts at random: no connection moves, and in the end the
/// pool is what the last answer said.
#[test]
fn whatever_comes_no_connection_moves() {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().random());
    println!("WEIR_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..6 {
        let method = ["concury", "residue"].choose(&mut rng).expect("two");
        // Clocks run ahead: nobody is to have had its time.
        let patient =
            |name| Discover { leave_after: Duration::from_secs(30 * 86_400), ..entry(name) };
        let entries = [patient("web"), patient("far")];
        let mut world = World::with(1, &format!("method = {method:?}")).seeks(&entries);
        let mut next = 0;
        for _ in 0..120 {
            let which = rng.random_range(0..2usize);
            // Of hosts of its own, and one that both may name.
            let hosts: Vec<u8> = (0..5)
                .filter(|_| rng.random())
                .map(|n| if n == 4 { 99 } else { 10 * which as u8 + n + 1 })
                .collect();
            match rng.random_range(0..10) {
                0..4 => world.finds(&entries[which], hosts),
                4 => world.answers(&entries[which], Err("nobody answers".into())),
                5 => {
                    world.start(0, next..next + 30);
                    next += 30;
                }
                6 => {
                    let pool = &world.engine.services["a"].pool;
                    let member = pool.choose(&mut rng).expect("three are of the file");
                    let (id, name, drain) = (member.id, member.wanted.name.clone(), rng.random());
                    if rng.random() {
                        world.end_all_of(id);
                    } else if name != "b1" {
                        let _ = world.ask(|reply| Command::Drain("a".into(), name, drain, reply));
                    }
                }
                7 => world.later(rng.random_range(0..20)),
                8 => {
                    world.engine.plane.refuse(Operation::Show);
                    world.finds(&entries[which], hosts);
                    world.engine.plane.refuse_nothing();
                    world.upkeep();
                }
                _ => {
                    world.upkeep();
                    world = world.restart();
                }
            }
            // Of old connections at a backend that drains from now on, packets are told in the same turn.
            world.upkeep();
            world.check();
        }
        let last = [vec![1, 2], vec![11, 99]];
        for (entry, hosts) in entries.iter().zip(&last) {
            world.finds(entry, hosts.iter().copied());
        }
        // 99 may have been the other one's until now.
        world.later(31 * 86_400);
        world.finds(&entries[1], last[1].iter().copied());
        let found: Vec<String> = world.found().into_keys().collect();
        assert_eq!(found, ["far-10.7.0.11", "far-10.7.0.99", "web-10.7.0.1", "web-10.7.0.2"]);
    }
}
