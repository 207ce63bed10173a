//! Reloads over a plane that is only memory. Whatever of a service changes that keeps its address,
//! protocol and port, its connections go on, or the file is refused and nothing has changed.

use super::methods::Cookied;
use super::*;
use crate::config::{Affinity, Announce, Service, Source};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use weir_announce::{Attributes, SpeakerConfig};
use weir_steering::{Phase, ServiceState, StateKey, TrackedFlow};

/// What a service's file may say between whose lines its connections go on.
pub(super) const CARRIED: &[&str] = &[
    "",
    "idle_timeout = \"7s\"",
    "idle_timeout = \"3h\"\ndcode_bits = 9",
    "dcode_bits = 14",
    "method = \"tracked\"",
    "method = \"tracked\"\ntable_size = 1009",
    "method = \"residue\"",
    "method = \"residue\"\nrows = 4096",
];

/// A SYN is repeated for so many seconds at most.
const REPEATED: u32 = 120;

impl World {
    fn wanted(&self, services: u8, fields: &str) -> Config {
        config_with(&self.directory, services, fields)
    }

    /// What a restart would find, and what stands in the run directory.
    fn everything(&self) -> (String, String, Vec<String>) {
        let saved: Vec<_> = self.engine.services.values().map(ServiceRuntime::saved).collect();
        // How often numbers were given out is no part of it.
        let written = Document::read(self.directory.path()).expect("readable").services;
        let backends = self.engine.plane.backends.iter().map(|entry| format!("{entry:?}"));
        let all = backends.chain([format!("{:?}", sorted(&self.engine.plane.vips))]).collect();
        (format!("{saved:?}"), format!("{written:?}"), all)
    }

    pub(super) fn lose_leavers(&mut self) {
        let there: HashSet<BackendId> =
            self.engine.services.values().flat_map(|s| s.pool.iter().map(|m| m.id)).collect();
        self.live.retain(|_, backend| there.contains(backend));
    }
}

pub(super) fn sorted(vips: &HashMap<VipKey, ServiceId>) -> Vec<(VipKey, ServiceId)> {
    let mut all: Vec<_> = vips.iter().map(|(key, number)| (*key, *number)).collect();
    all.sort_by_key(|one| one.1);
    all
}

/// Every ordered pair of what can be carried, with connections that begin before and after.
#[test]
fn every_change_that_can_be_carried_keeps_every_connection() {
    for from in CARRIED {
        for to in CARRIED {
            let mut world = World::with(2, from);
            (0..2).for_each(|service| drop(world.start(service, 0..80)));
            let wanted = world.wanted(2, to);
            let followed = world.follow(&wanted).unwrap_or_else(|error| panic!("{error}"));
            assert!(followed.failures.is_empty() && followed.notes.is_empty(), "{followed:?}");
            world.check();
            (0..2).for_each(|service| drop(world.start(service, 80..160)));
            world.ask(|reply| Command::Weight("a".into(), "b1".into(), 7, reply)).expect("fine");
            world.drain("a", "b2").expect("fine");
            world.check();
            assert_eq!(world.warnings(), Vec::<String>::new(), "{from:?} to {to:?}");
            // A method that does not keep them up leaves no entries that could come back.
            let tracks = to.contains("tracked");
            assert_eq!(
                world.engine.plane.memory.connections.is_empty(),
                !tracks,
                "{from:?} {to:?}"
            );
            let status = world.engine.status().expect("readable");
            assert_eq!(status.services[0].method, wanted.services[0].method.name());
        }
    }
}

/// Connections that have ended under `tracked` are taken over as such: a minute later nobody knows them. Those that
/// are silent stay, and so do those that have begun again from the same ports.
#[test]
fn what_has_ended_under_tracked_is_not_taken_over_as_live() {
    for (from, to) in [("", "concury"), ("", "residue"), ("scheduler = \"p2c\"", "concury")] {
        let mut world = World::with(1, &format!("method = \"tracked\"\n{from}"));
        world.start(0, 0..100);
        let send = |world: &mut World, clients: std::ops::Range<u32>, flags: TcpFlags| {
            for client in clients {
                let frame = Frame::new(flow(0, client)).tcp_flags(flags).build();
                assert!(matches!(world.engine.plane.process(&frame), Outcome::Forwarded(_)));
            }
        };
        send(&mut world, 0..50, TcpFlags::FIN | TcpFlags::ACK);
        send(&mut world, 50..60, TcpFlags::RST);
        send(&mut world, 0..50, TcpFlags::ACK);
        send(&mut world, 0..20, TcpFlags::SYN);
        for client in 20..60 {
            world.live.remove(&flow(0, client));
        }
        let followed = world.follow(&world.wanted(1, &format!("method = {to:?}")));
        let followed = followed.unwrap_or_else(|error| panic!("{error}"));
        assert!(followed.failures.is_empty(), "{followed:?}");
        let phase = |world: &World, client: u32| {
            let known = world.engine.services["a"].known(&StateKey::of_flow(&flow(0, client)));
            known.map(|known| known.phase)
        };
        let ended = |client: u32| (20..60).contains(&client);
        for client in 0..100 {
            let wanted = if ended(client) { Phase::Closing } else { Phase::Open };
            assert_eq!(phase(&world, client), Some(wanted), "{from} {to}: {client}");
        }
        world.check();
        for _ in 0..4 {
            world.engine.ahead += 40;
            world.engine.sweep().unwrap();
        }
        for client in 0..100 {
            assert_eq!(phase(&world, client).is_none(), ended(client), "{from} {to}: {client}");
        }
    }
}

/// What a refusal counts it says: those that have ended lately would be taken over, too, and break nobody.
#[test]
fn what_has_no_room_in_the_connection_table_is_counted_in_words() {
    let mut world = World::with(1, "method = \"concury\"");
    world.start(0, 0..50);
    world.engine.drain_reports().expect("nothing is refused");
    for client in 0..30 {
        let frame = Frame::new(flow(0, client)).tcp_flags(TcpFlags::FIN | TcpFlags::ACK).build();
        assert!(matches!(world.engine.plane.process(&frame), Outcome::Forwarded(_)));
    }
    world.engine.drain_reports().expect("nothing is refused");
    let service = &world.engine.services["a"];
    let phase = |client| service.known(&StateKey::of_flow(&flow(0, client))).map(|one| one.phase);
    let ended = (0..50).filter(|client| phase(*client) == Some(Phase::Closing)).count();
    let states = service.builder.states();
    assert!(ended > 1 && states - ended > 1, "{ended} of {states}");
    let mut wanted = world.wanted(1, "method = \"tracked\"");
    wanted.limits.tracked_flows = 1;
    let refused = world.follow(&wanted).expect_err("there is no room").to_string();
    let among = format!("{states} connections would be taken over, {ended} among them that have");
    let open = format!("{} known connections break", states - ended);
    assert!(refused.contains(&among) && refused.contains(&open), "{refused}");
}

/// What ends of a client's connections says nothing of the client.
#[test]
fn clients_outlive_their_connections_when_the_method_is_changed() {
    let fields = "affinity = \"client\"\nmethod = ";
    let mut world = World::with(1, &format!("{fields}\"tracked\""));
    world.start(0, 0..100);
    for client in 0..100 {
        let frame = Frame::new(flow(0, client)).tcp_flags(TcpFlags::FIN | TcpFlags::ACK).build();
        assert!(matches!(world.engine.plane.process(&frame), Outcome::Forwarded(_)));
    }
    let followed = world.follow(&world.wanted(1, &format!("{fields}\"concury\"")));
    assert!(followed.unwrap_or_else(|error| panic!("{error}")).failures.is_empty());
    for client in 0..100 {
        let key = StateKey::of_client(&flow(0, client));
        let known = world.engine.services["a"].known(&key).expect("carried over");
        assert_eq!(known.phase, Phase::Open, "{client}");
    }
    world.check();
}

/// Flows that begin after those that have begun were collected, and before the new table is seen: the former
/// method has noted them, and need not have reported them. They are known from then on, also those that the
/// new table leads to their backends by chance.
#[test]
fn who_begins_while_a_method_is_changed_is_known() {
    for from in CARRIED {
        for to in CARRIED.iter().filter(|to| *to != from) {
            let mut world = World::with(1, from);
            world.start(0, 0..80);
            let late: Vec<FlowKey> = (80..200).map(|client| flow(0, client)).collect();
            let syn = |flow: &FlowKey| Frame::new(*flow).tcp_flags(TcpFlags::SYN).build();
            world.engine.plane.meanwhile = late.iter().map(syn).collect();
            let wanted = world.wanted(1, to);
            let followed = world.follow(&wanted).unwrap_or_else(|error| panic!("{error}"));
            assert!(followed.failures.is_empty(), "{followed:?}");
            let came = std::mem::take(&mut world.engine.plane.came);
            assert_eq!(came.len(), late.len(), "a table was published");
            for (flow, went) in late.into_iter().zip(came) {
                let Outcome::Forwarded(at) = went else { panic!("{from:?}: {flow}: {went:?}") };
                world.live.insert(flow, at);
            }
            world.ask(|reply| Command::Weight("a".into(), "b1".into(), 7, reply)).expect("fine");
            world
                .ask(|reply| Command::Add("a".into(), Box::new(backend(0, 4)), reply))
                .expect("fine");
            world.drain("a", "b2").expect("fine");
            println!("{from:?} to {to:?}");
            world.check();
            assert_eq!(world.warnings(), Vec::<String>::new(), "{from:?} to {to:?}");
        }
    }
}

/// A control plane that was killed right after a change away from `tracked` leaves entries in the connection
/// table. They say nothing any more when the method comes back: a new connection of the same addresses and
/// ports is placed like any other.
#[test]
fn what_a_killed_process_left_in_the_connection_table_leads_nobody() {
    for from in CARRIED.iter().filter(|fields| !fields.contains("tracked")) {
        let mut world = World::with(1, from);
        world.start(0, 200..300);
        world.drain("a", "b1").expect("fine");
        let service = &world.engine.services["a"];
        let drained = service.member("b1").expect("there");
        let left = TrackedFlow::new(drained.id, drained.incarnation);
        let service = service.number;
        for client in 0..200 {
            let key = StateKey::of_flow(&flow(0, client));
            world.engine.plane.memory.connections.insert(ServiceState { service, key }, left);
        }
        let mut wanted = world.wanted(1, "method = \"tracked\"");
        let listed = &mut wanted.services[0].backends;
        listed.iter_mut().find(|one| one.name == "b1").expect("there").drain = true;
        // Where that cannot be cleared away, packets go on as they do, and it is tried again.
        world.engine.plane.refuse(Operation::Track);
        let followed = world.follow(&wanted).unwrap_or_else(|error| panic!("{error}"));
        assert!(!world.warnings().is_empty(), "{followed:?}");
        world.check();
        world.engine.plane.refuse_nothing();
        world.upkeep();
        assert_eq!(world.warnings(), Vec::<String>::new(), "{from:?}");
        let drained = world.engine.services["a"].member("b1").expect("there").id;
        let went = world.start(0, 0..200);
        assert!(!went.contains(&drained), "{from:?}: a new connection at a draining backend");
        world.check();
    }
}

/// From every method to every other: connections go on, or it is refused with the reason, and they go on as
/// they were.
#[test]
fn from_every_method_to_every_other_it_is_carried_or_refused() {
    const CARRY: [&str; 3] = ["concury", "tracked", "residue"];
    let methods: Vec<&str> = MethodId::published().map(|method| method.info().name).collect();
    assert!(CARRY.iter().all(|name| methods.contains(name)) && methods.len() >= 6, "{methods:?}");
    for from in &methods {
        for to in methods.iter().filter(|to| *to != from) {
            let mut world = World::with(1, &format!("method = {from:?}"));
            // Timestamps tell where connections of Cheetah live.
            let cookied = from.starts_with("cheetah");
            let open = if cookied { world.open(0..80) } else { Vec::new() };
            if !cookied {
                world.start(0, 0..80);
            }
            let wanted = world.wanted(1, &format!("method = {to:?}"));
            let carried = CARRY.contains(from) && CARRY.contains(to);
            match world.engine.reload_as(wanted, false) {
                Ok(_) => assert!(carried, "{from} to {to}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(
                        !carried && said.contains("service a: method: "),
                        "{from} to {to}: {said}"
                    );
                }
            }
            let now = world.engine.status().expect("readable").services[0].method.clone();
            assert_eq!(now, if carried { *to } else { *from });
            world.cookies_lead_home(&open);
            world.check();
            if carried {
                let weight = |reply| Command::Weight("a".into(), "b1".into(), 7, reply);
                world.ask(weight).expect("fine");
                world.drain("a", "b2").expect("fine");
                world.check();
            }
            assert_eq!(world.warnings(), Vec::<String>::new(), "{from} to {to}");
        }
    }
}

/// A key of cookies goes and another comes under connections. What would leave their cookies without a key is refused,
/// and changes nothing.
#[test]
fn keys_of_cookies_change_under_connections() {
    let fields = |keys: [&str; 2], issue: u8| {
        let keys = keys.map(|digit| digit.repeat(32));
        format!(
            "method = \"cheetah\"\nanswers = \"backend\"\ncookie_keys = {keys:?}\nissue_key = {issue}"
        )
    };
    // Of those with timestamps, by their cookies alone.
    fn by_cookies(world: &mut World, connections: &[Cookied]) {
        world.engine.plane.memory.connections.clear();
        world.cookies_lead_home(connections);
    }
    let mut world = World::with(1, &fields(["a", ""], 0));
    let mut old = world.open(0..200);
    old.retain(|one| one.stamp.is_some());
    for (to, why) in [
        (fields(["", "b"], 1), "cookie_keys: the one that issues goes"),
        (fields(["b", ""], 0), "cookie_keys: the one that issues goes"),
        ("method = \"cheetah\"\nanswers = \"backend\"".into(), "cannot change under connections"),
    ] {
        let wanted = world.wanted(1, &to);
        let error = world.engine.reload_as(wanted, false).expect_err("it is refused").to_string();
        assert!(error.contains(why), "{error}");
        by_cookies(&mut world, &old);
    }
    let to = |world: &mut World, keys, issue| {
        let wanted = world.wanted(1, &fields(keys, issue));
        world.follow(&wanted).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(world.warnings(), Vec::<String>::new());
    };
    to(&mut world, ["a", "b"], 0);
    world.drain("a", "b1").expect("fine");
    by_cookies(&mut world, &old);
    to(&mut world, ["a", "b"], 1);
    let mut new = world.open(200..400);
    new.retain(|one| one.stamp.is_some());
    by_cookies(&mut world, &old);
    by_cookies(&mut world, &new);
    let mut world = world.restart();
    by_cookies(&mut world, &old);
    // In the place of a key that is read yet no other one comes, which would read its cookies.
    let wanted = world.wanted(1, &fields(["c", "b"], 1));
    let error = world.engine.reload_as(wanted, false).expect_err("it is refused").to_string();
    assert!(error.contains("cookie_keys: another key would read"), "{error}");
    by_cookies(&mut world, &old);
    to(&mut world, ["", "b"], 1);
    by_cookies(&mut world, &new);
    to(&mut world, ["c", "b"], 1);
    to(&mut world, ["c", "b"], 0);
    by_cookies(&mut world, &new);
}

/// Keys in tables are drawn from those of the file and from where the service is. What would draw others of the same
/// keys is refused; addresses that come and go behind the first one draw the same, also after a restart and in the
/// next step of a rotation.
#[test]
fn keys_of_cookies_stay_where_their_service_does() {
    let key = "a".repeat(32);
    let turning = |other: &str| format!("cookie_keys = [{key:?}, {:?}]", other.repeat(32));
    for given in [format!("cookie_key = {key:?}"), turning("")] {
        let fields = format!("method = \"cheetah\"\nanswers = \"backend\"\n{given}");
        let mut world = World::with(1, &fields);
        let mut old = world.open(0..200);
        old.retain(|one| one.stamp.is_some());
        let by_cookies = |world: &mut World| {
            world.engine.plane.memory.connections.clear();
            world.cookies_lead_home(&old);
        };
        let at = |world: &World, fields: &str, vips: &[&str]| {
            let mut wanted = world.wanted(1, fields);
            let service = &mut wanted.services[0];
            service.vips = vips.iter().map(|vip| vip.parse().expect("an address")).collect();
            service.vip = service.vips[0].address;
            wanted
        };
        let mut any_port = world.wanted(1, &fields);
        any_port.services[0].port = None;
        let first = at(&world, &fields, &["2001:db8::1", "10.0.0.1"]);
        for wanted in [first, any_port] {
            let error = world.engine.reload_as(wanted, false).expect_err("it is refused");
            assert!(error.to_string().contains("vip: the keys of its cookies"), "{error}");
            by_cookies(&mut world);
        }
        let behind = at(&world, &fields, &["10.0.0.1", "10.0.0.77"]);
        world.follow(&behind).unwrap_or_else(|error| panic!("{error}"));
        let swapped = at(&world, &fields, &["10.0.0.77", "10.0.0.1"]);
        let error = world.engine.reload_as(swapped, false).expect_err("it is refused");
        assert!(error.to_string().contains("keep the first address first"), "{error}");
        let mut world = world.restart();
        by_cookies(&mut world);
        if given.starts_with("cookie_keys") {
            let fields = fields.replace(&given, &turning("b"));
            let next = at(&world, &fields, &["10.0.0.1"]);
            world.follow(&next).unwrap_or_else(|error| panic!("{error}"));
        }
        world.drain("a", "b1").expect("fine");
        by_cookies(&mut world);
        assert_eq!(world.warnings(), Vec::<String>::new());
    }
}

/// What cannot be carried is refused, with the reason and the number of connections, and changes
/// nothing; asked for all the same, it is done.
#[test]
fn what_would_break_connections_is_refused() {
    for (from, to, words) in [
        ("", "affinity = \"client\"", "by client; 50 known connections break"),
        ("method = \"tracked\"", "affinity = \"client\"", "50 known connections break"),
        ("", "method = \"jet\"", "jet cannot be told where connections live"),
        ("method = \"ecmp\"", "", "ecmp cannot change under connections"),
        ("method = \"jet\"", "method = \"jet\"\nrows = 1000", "settings of jet cannot change"),
    ] {
        let mut world = World::with(2, from);
        (0..2).for_each(|service| drop(world.start(service, 0..50)));
        world.engine.drain_reports().expect("nothing is refused");
        world.engine.save().expect("it can be kept");
        let before = world.everything();
        let wanted = world.wanted(2, to);
        let refused = world.engine.reload_as(wanted.clone(), false).expect_err("it would break");
        let said = refused.to_string();
        assert_eq!(refused.kind(), Kind::Conflict);
        assert!(said.contains(words) && said.contains("--break-connections"), "{said}");
        assert!(said.contains("service a: ") && said.contains("service b: "), "{said}");
        assert_eq!(world.everything(), before);
        world.check();
        let done = world.engine.reload_as(wanted, true).expect("it was asked for");
        assert!(done.contains("service a: ") && done.contains("break"), "{done}");
        world.live.clear();
        (0..2).for_each(|service| drop(world.start(service, 0..50)));
        world.check();
        assert_eq!(world.warnings(), Vec::<String>::new(), "{from:?} to {to:?}");
    }
}

/// A file whose pool has no room is refused whole: no service has changed, nor what is saved.
#[test]
fn a_refused_file_changes_nothing() {
    let memory = SoftMemory::new(10_000, 64, 64);
    let mut world = World::over(memory, 3, |config| config.limits.backends = 10);
    (0..3).for_each(|service| drop(world.start(service, 0..40)));
    world.engine.save().expect("it can be kept");
    let before = world.everything();
    // Other numbers for all, while the former ones are still in use: 9 and 9 are more than 10.
    let mut wanted = world.engine.config.clone();
    for (at, service) in wanted.services.iter_mut().enumerate() {
        service.backends = (11..14).map(|n| backend(at as u8, n)).collect();
    }
    let refused = world.engine.reload_as(wanted.clone(), false).expect_err("there is no room");
    assert!(refused.to_string().contains("limits.backends"), "{refused}");
    assert_eq!(world.everything(), before);
    world.check();
    // And so is one that cannot be prepared or written down, whatever is in the way.
    for (operation, granted) in [
        (Operation::Attach, 0),
        (Operation::ResetLane, 2),
        (Operation::SetBackend, 1),
        (Operation::SetBackend, 4),
        (Operation::Resize, 0),
    ] {
        let mut wanted = wanted.clone();
        wanted.limits.backends = 40;
        wanted.balancer.interfaces = vec!["eth1".into()];
        world.engine.plane.refuse_after(operation, granted, 1);
        let refused = world.engine.reload_as(wanted, false).expect_err("it is refused");
        assert!(refused.to_string().contains("refused on demand"), "{refused}");
        world.engine.plane.refuse_nothing();
        assert_eq!(world.everything(), before, "{operation:?}");
        assert_eq!(world.engine.plane.attached, ["eth0"]);
        world.check();
    }
    wanted.limits.backends = 40;
    world.engine.reload_as(wanted, false).expect("there is room");
    world.live.clear();
    (0..3).for_each(|service| drop(world.start(service, 0..40)));
    world.check();
}

/// A backend that is called otherwise is the same one, where connections are known by more than its name; what
/// leaves is said, with what ends there.
#[test]
fn a_backend_with_another_name_keeps_its_connections() {
    for method in ["concury", "tracked", "residue"] {
        let mut world = World::with(1, &format!("method = {method:?}"));
        world.start(0, 0..120);
        let mut wanted = world.engine.config.clone();
        // One has a new name, and two have changed theirs.
        let backends = &mut wanted.services[0].backends;
        backends[0].name = "other".into();
        (backends[1].name, backends[2].name) = ("b3".into(), "b2".into());
        let said = world.engine.reload_as(wanted, false).expect("only names have changed");
        assert!(!said.contains("end"), "{said}");
        world.check();
        let mut wanted = world.engine.config.clone();
        wanted.services[0].backends.remove(0);
        let gone = world.engine.services["a"].member("other").expect("there").id;
        let many = world.live.values().filter(|lives| **lives == gone).count();
        let said = world.engine.reload_as(wanted, false).expect("nothing is refused");
        if method != "tracked" {
            let words = format!("service a: backend other removed: {many} known connections end");
            assert!(said.contains(&words), "{said}");
        }
        world.lose_leavers();
        world.check();
    }
}

/// A log that is gone, cut off or damaged takes connections with it: a start says so, until the next.
#[test]
fn what_a_log_has_lost_is_said() {
    type Damage = fn(&std::path::Path);
    let damages: [(Damage, &str); 3] = [
        (|path| std::fs::remove_file(path).expect("there"), "is gone"),
        (
            |path| {
                let file = std::fs::File::options().write(true).open(path).expect("there");
                file.set_len(3_000).expect("shorter");
            },
            "was cut off",
        ),
        (
            |path| {
                let mut bytes = std::fs::read(path).expect("there");
                bytes[200..264].fill(0x55);
                std::fs::write(path, bytes).expect("writable");
            },
            "damaged record",
        ),
    ];
    for (damage, words) in damages {
        let mut world = World::new(1);
        world.start(0, 0..200);
        world.drain("a", "b1").expect("nothing is refused");
        let (directory, log) = (world.directory.path().to_owned(), &world.engine.services["a"]);
        let path = crate::engine::service::log_path(&directory, &log.log_name);
        let (engine, live, directory) = {
            let World { mut engine, live, directory } = world;
            engine.save().expect("it can be kept");
            let (config, plane) = (engine.config.clone(), std::mem::take(&mut engine.plane));
            drop(engine);
            damage(&path);
            let found = Found { resumed: true, ..Found::default() };
            (over(plane, found, &config).unwrap_or_else(|error| panic!("{error}")), live, directory)
        };
        let world = World { engine, live, directory };
        let said = world.warnings().join("; ");
        assert!(said.contains(words) && said.contains("are not known"), "{said}");
        let world = world.restart();
        assert_eq!(world.warnings(), Vec::<String>::new());
    }
}

/// A service that is called otherwise is the same one; two may even change names.
#[test]
fn a_name_is_not_what_a_service_is_known_by() {
    let mut world = World::new(2);
    (0..2).for_each(|service| drop(world.start(service, 0..40)));
    world.engine.drain_reports().expect("nothing is refused");
    let mut wanted = world.wanted(2, "");
    (wanted.services[0].name, wanted.services[1].name) = ("b".into(), "a".into());
    world.engine.reload_as(wanted.clone(), false).expect("only names have changed");
    world.check();
    wanted.services[0].name = "c".into();
    wanted.services.push(Service {
        name: "b".into(),
        vip: [10, 0, 0, 9].into(),
        ..wanted.services[0].clone()
    });
    world.engine.reload_as(wanted.clone(), false).expect("one more, by a name that was had");
    world.check();
    assert_eq!(world.engine.services["c"].builder.states(), 40);
    assert_eq!(world.engine.services["b"].builder.states(), 0);
    // Whose states are whose is known after a restart.
    let World { mut engine, live, directory } = world;
    engine.save().expect("it can be kept");
    let plane = std::mem::take(&mut engine.plane);
    drop(engine);
    let found = Found { resumed: true, ..Found::default() };
    let engine = over(plane, found, &wanted).unwrap_or_else(|error| panic!("{error}"));
    let mut world = World { engine, live, directory };
    assert_eq!(world.engine.services["c"].builder.states(), 40);
    assert_eq!(world.engine.services["b"].builder.states(), 0);
    world.check();
}

/// Files, commands, restarts, checks, time with its sweeps, and refusals of whatever a plane can refuse, as they
/// come, under connections: none moves.
#[test]
fn whatever_reloads_come_connections_stay() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let mut world = World::with(3, CARRIED[0]);
    let mut clients = 0;
    // When the first clients of each step began.
    let mut begun: Vec<(u32, u32)> = Vec::new();
    let mut was_down = HashSet::new();
    for step in 0..400 {
        begun.push((world.engine.ahead, clients));
        for service in 0..3 {
            let some = rng.random_range(0..6);
            let there = world.engine.plane.vips.values().any(|n| {
                let name = char::from(b'a' + service).to_string();
                world.engine.services.get(&name).is_some_and(|s| s.number == *n)
            });
            if there {
                world.start(service, clients..clients + some);
            }
            clients += some;
        }
        let fields = CARRIED.choose(&mut rng).expect("some");
        let refusing = rng.random_bool(0.3);
        if refusing {
            let operation = *Operation::ALL.choose(&mut rng).expect("some");
            let (granted, refused) = (rng.random_range(0..6), rng.random_range(1..8));
            world.engine.plane.refuse_after(operation, granted, refused);
            println!("{step}: {operation:?} is refused {refused} times after {granted}");
        }
        let event = rng.random_range(0..11);
        println!("{step}: event {event}, {fields:?}, at {}", world.engine.ahead);
        match event {
            8 => {
                let (service, up) = (["a", "b", "c"][rng.random_range(0..3)], rng.random_bool(0.6));
                let backend = ["b1", "b2", "b3"][rng.random_range(0..3)];
                if world.engine.services.contains_key(service) {
                    println!("{step}: {service}/{backend} is up: {up}");
                    world.health(service, backend, up);
                }
            }
            9 | 10 => {
                // Less than the shortest silence after which a connection is forgotten, as each says
                // something in each step.
                world.engine.ahead += 3;
                let _ = world.engine.sweep();
                world.upkeep();
            }
            0 => {
                let (service, up) = (["a", "b", "c"][rng.random_range(0..3)], rng.random_bool(0.5));
                if world.engine.services.contains_key(service) {
                    let weight = rng.random_range(1..9);
                    let _ = world.ask(|r| Command::Weight(service.into(), "b1".into(), weight, r));
                    let _ = world.ask(|r| Command::Drain(service.into(), "b2".into(), up, r));
                }
            }
            1 => {
                let World { mut engine, live, directory } = world;
                engine.plane.refuse_nothing();
                engine.save().expect("it can be kept");
                let (mut wanted, plane) =
                    (engine.config.clone(), std::mem::take(&mut engine.plane));
                if rng.random_bool(0.5) {
                    wanted = config_with(&directory, 3, fields);
                }
                let ahead = engine.ahead;
                drop(engine);
                let found = Found { resumed: true, ..Found::default() };
                let mut engine = over(plane, found, &wanted).unwrap_or_else(|e| panic!("{e}"));
                engine.ahead = ahead;
                world = World { engine, live, directory };
            }
            _ => {
                let mut wanted = world.wanted(3, fields);
                for service in &mut wanted.services {
                    // Two of the three stay, so that most connections do.
                    let more = rng.random_range(4..6);
                    service.backends.push(backend(service.name.as_bytes()[0] - b'a', more));
                    service.affinity = Affinity::Flow;
                }
                let _ = world.engine.reload_as(wanted, false);
            }
        }
        world.engine.plane.refuse_nothing();
        world.lose_leavers();
        let since = world.engine.ahead.saturating_sub(REPEATED);
        let old = begun.iter().rfind(|(at, _)| *at < since).map_or(0, |(_, first)| *first);
        world.check_all(step, old, &mut was_down);
        world.upkeep_later();
        world.check_all(step, old, &mut was_down);
    }
    for service in ["a", "b", "c"] {
        if world.engine.services.contains_key(service) {
            for backend in ["b1", "b2", "b3"] {
                world.health(service, backend, true);
            }
        }
    }
    world.upkeep_later();
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.check_all(400, clients, &mut was_down);
    println!("{} connections", world.live.len());
}

impl World {
    /// Packets of all connections. The SYN of one that began so long ago that nobody repeats it, of a client
    /// below `old`, is forged: where it goes matters to nobody, if the connection stays where it is. `was_down`: the
    /// backends that were down when the tables were made that are in force.
    fn check_all(&mut self, step: usize, old: u32, was_down: &mut HashSet<BackendId>) {
        // A first packet that goes to a backend which is down begins a connection elsewhere: by its check, which
        // a plane may have refused to be told of, and until there is a table that says that it is up again.
        let mut down = HashSet::new();
        for service in self.engine.services.values() {
            let reserved = service.reserved();
            for member in &service.pool {
                if !member.up {
                    was_down.insert(member.id);
                } else if !service.dirty {
                    was_down.remove(&member.id);
                }
            }
            let avoided = |member: &&crate::engine::service::PoolMember| {
                let risen = !member.wanted.drain || was_down.contains(&member.id);
                !member.up || service.dirty && risen && reserved.contains(&member.id)
            };
            down.extend(service.pool.iter().filter(avoided).map(|member| member.id));
        }
        for (flow, backend) in &self.live {
            let [.., a, b, c, d] = flow.src;
            let client = u32::from_be_bytes([a, b, c, d]) - 0x0a10_0000;
            let down = down.contains(backend) || self.engine.plane.memory.down.contains(backend);
            for flags in [TcpFlags::SYN, TcpFlags::ACK].into_iter().skip(usize::from(down)) {
                let frame = Frame::new(*flow).tcp_flags(flags).build();
                let went = self.engine.plane.process(&frame);
                if flags == TcpFlags::ACK || client >= old {
                    assert_eq!(went, Outcome::Forwarded(*backend), "step {step}: {flow} {flags:?}");
                }
            }
        }
    }
}

/// Connections that have ended are remembered for a while, and are nobody's any more.
#[test]
fn what_is_told_of_connections_leaves_out_those_that_have_ended() {
    for method in ["concury", "residue"] {
        let mut world = World::with(2, &format!("method = \"{method}\""));
        world.start(1, 0..20);
        for client in 0..5 {
            let end = Frame::new(flow(1, client)).tcp_flags(TcpFlags::RST).build();
            world.engine.plane.process(&end);
        }
        world.engine.drain_reports().expect("nothing is refused");
        assert_eq!(world.engine.services["b"].builder.states(), 20);
        let wanted = world.wanted(1, &format!("method = \"{method}\""));
        let followed = world.follow(&wanted).expect("fine");
        assert_eq!(followed.notes, ["service b removed: 15 known connections end"]);
    }
}

/// What a reload takes back, as the file does not have it, is said once; and a file that has been cut off before its
/// first service takes nobody's away.
#[test]
fn a_reload_says_what_commands_had_changed() {
    let mut world = World::new(2);
    world.start(0, 0..100);
    world.drain("a", "b1").expect("there");
    let weight = |reply| Command::Weight("a".into(), "b2".into(), 7, reply);
    world.ask(weight).expect("there");
    let wanted = world.engine.config.clone();
    let followed = world.follow(&wanted).expect("as it is");
    assert_eq!(
        followed.notes,
        [
            "service a: backend b1 takes new connections again, backend b2 has weight 1 again, as the file has it"
        ]
    );
    assert_eq!(world.follow(&wanted).expect("as it is").notes, Vec::<String>::new());
    let none = Config { services: Vec::new(), ..wanted };
    let refused = world.follow(&none).expect_err("connections would end").to_string();
    assert!(refused.contains("has no [[service]]: all 2 services"), "{refused}");
    // A plan says so, in the same words.
    let plan = world.engine.plan_to(&none, &world.engine.source()).expect("it can be looked at");
    assert!(plan.refused && plan.changes, "{plan:?}");
    let why = plan.why.expect("it is said why");
    assert!(refused.contains(&format!("{why} Nothing has changed")), "{why}: {refused}");
    world.check();
    for (backend, said) in [("b1", ""), ("b2", ""), ("b3", "; nobody in this service")] {
        let weight = |reply| Command::Weight("b".into(), backend.into(), 0, reply);
        let done = world.ask(weight).expect("there");
        assert!(done.starts_with(&format!("backend {backend} of b has weight 0{said}")), "{done}");
    }
}

/// Of what it changes, and of the first hosts; those of others in the turns that follow, so that nobody waits for
/// thousands of questions to the kernel.
#[test]
fn a_reload_looks_next_hops_up_at_once_only_of_what_it_changes() {
    let mut world = World::new(12);
    world.engine.resolve = |_| Ok(Some(neighbour()));
    let known = |world: &World, service: &str| {
        let plane = &world.engine.plane;
        let known = |id: &BackendId| plane.backends[id].hop.is_some();
        world.engine.services[service].pool.iter().filter(|member| known(&member.id)).count()
    };
    let mut wanted = world.engine.config.clone();
    wanted.services[11].backends[0].weight = 7;
    world.follow(&wanted).expect("it can be followed");
    // The first 32 hosts end within the pool of k.
    assert_eq!(["a", "j", "k", "l"].map(|name| known(&world, name)), [3, 3, 2, 3]);
    world.upkeep();
    assert_eq!(known(&world, "k"), 3);
    // One of few hosts looks at all of them.
    let mut world = World::new(2);
    world.engine.resolve = |_| Ok(Some(neighbour()));
    let wanted = world.engine.config.clone();
    world.follow(&wanted).expect("it can be followed");
    assert_eq!(["a", "b"].map(|name| known(&world, name)), [3, 3]);
}

/// A limit into which what is in use does not fit stays as it was: a plan says so beforehand, and afterwards that it
/// is not as the file has it, until it is.
#[test]
fn limits_that_stay_are_told_by_plans() {
    let mut world = World::new(2);
    let before = world.engine.config.limits.backends;
    let wants = |world: &World, backends: u32| {
        let mut wanted = world.engine.config.clone();
        wanted.limits.backends = backends;
        wanted
    };
    let plan = |world: &World, wanted: &Config| {
        let from = Source::text("weir.toml", "[limits]\nbackends = 2\n");
        world.engine.plan_to(wanted, &from).expect("it can be followed")
    };
    let (tiny, small) = (wants(&world, 2), wants(&world, 300));
    let planned = plan(&world, &tiny);
    let why = planned.limits_stay.as_deref().expect("six are in use");
    assert!(why.starts_with("weir.toml:2: "), "{why}");
    assert_eq!(plan(&world, &small).limits_stay, None);
    let said = world.engine.reload_as(tiny.clone(), false).expect("all but this");
    assert!(said.contains("it stays as it was"), "{said}");
    let left = plan(&world, &tiny);
    assert!(left.changes && world.engine.is_of_limits_that_stay(&left), "{left:?}");
    assert_eq!(left.settings, planned.settings);
    assert_eq!((&left.settings[0].from, &left.settings[0].to), (&before.into(), &2.into()));
    // Another difference is one, beside that.
    let mut other = tiny;
    other.balancer.icmp_per_second += 1;
    assert!(!world.engine.is_of_limits_that_stay(&plan(&world, &other)));
    // Fewer backends than there are in the file may be what the limit waits for, which nobody knows beforehand.
    other.services.truncate(1);
    assert_eq!(plan(&world, &other).limits_stay, None);
    world.engine.reload_as(small.clone(), false).expect("they fit");
    assert!(!plan(&world, &small).changes);
}

/// A speaker that has announced routes and does not answer keeps the one that takes its place from being told; the
/// answer says so, and so does the status.
#[test]
fn a_speaker_that_cannot_be_asked_to_withdraw_is_told_of() {
    const WORDS: &str = "may still announce routes of this balancer";
    let mut world = World::with(1, "method = \"concury\"");
    let by = |world: &World, speaker: SpeakerConfig| {
        let (learn_delay, withdraw_at_stop) = (Duration::ZERO, false);
        let mut wanted = world.engine.config.clone();
        wanted.announce = Some(Announce { speaker, learn_delay, withdraw_at_stop });
        wanted
    };
    let bird = |socket: &str| SpeakerConfig::Bird {
        socket: socket.into(),
        file: "/none/bird.conf".into(),
        attributes: Attributes::default(),
    };
    let (_keeper, _wants, reports) = world.engine.announce().expect("nothing is in the way");
    let first = by(&world, bird("/none/bird.ctl"));
    let said = world.engine.reload_as(first, false).expect("it can be followed");
    assert!(!said.contains(WORDS), "{said}");
    let about = |world: &World| {
        let found = world.warnings().into_iter().filter(|said| said.contains("BIRD is not there"));
        found.collect::<Vec<_>>()
    };
    assert_eq!(about(&world), Vec::<String>::new());
    reports.send_modify(|report| report.error = Some("BIRD is not there".into()));
    assert_eq!(about(&world).len(), 1, "{:?}", world.warnings());

    // One that has announced nothing has nothing to withdraw.
    let second = by(&world, bird("/none/other.ctl"));
    let said = world.engine.reload_as(second.clone(), false).expect("it can be followed");
    assert!(!said.contains(WORDS), "{said}");
    let file = world.directory.path().join("announced.json");
    std::fs::write(&file, "[\"10.0.0.1/32\"]").expect("a file");
    let said = world.engine.reload_as(second, false).expect("nothing has changed");
    assert!(!said.contains(WORDS), "{said}");
    let (api, attributes) = ("127.0.0.1:1".into(), Attributes::default());
    let gobgp = by(&world, SpeakerConfig::Gobgp { api, attributes });
    let said = world.engine.reload_as(gobgp, false).expect("it can be followed");
    let words =
        [WORDS, "BIRD at /none/other.ctl", "BIRD is not there", "127.0.0.1:1 is told of no"];
    assert!(words.iter().all(|words| said.contains(words)), "{said}");
    assert!(said.contains(&format!("remove {}", file.display())), "{said}");
}

/// What becomes of new connections while all are down may be said anew just then.
#[test]
fn what_all_down_means_changes_while_all_are_down() {
    use crate::config::{AllDown, Check};
    // Checks are tasks; here none is ever made.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _within = runtime.enter();
    let mut world = World::new(1);
    let mut wanted = world.engine.config.clone();
    let check = |all_down| Some(Check { all_down, ..usual_check(Duration::from_secs(60)) });
    wanted.services[0].check = check(AllDown::Keep);
    world.follow(&wanted).expect("nothing is refused");
    world.start(0, 0..60);
    for name in ["b1", "b2", "b3"] {
        world.health("a", name, false);
    }
    world.upkeep();
    let all = [AllDown::Keep, AllDown::Refuse, AllDown::Keep, AllDown::Refuse];
    for (number, all_down) in (1..).zip(all) {
        wanted.services[0].check = check(all_down);
        world.follow(&wanted).expect("nothing is refused");
        for client in number * 100..number * 100 + 50 {
            let frame = Frame::new(flow(0, client)).tcp_flags(TcpFlags::SYN).build();
            let went = world.engine.plane.process(&frame);
            let taken = matches!(went, Outcome::Forwarded(_));
            assert_eq!(taken, all_down == AllDown::Keep, "{all_down:?}: {went:?}");
        }
        // What is open stays where it is.
        for (flow, backend) in &world.live {
            let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
            let went = world.engine.plane.process(&frame);
            assert_eq!(went, Outcome::Forwarded(*backend), "{all_down:?}: {flow}");
        }
    }
}
