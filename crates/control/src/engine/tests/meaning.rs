//! What connections go by keeps its meaning while there are any: names of backends, and configurations of QUIC ids.
//! And what is said of connections that end all the same.

use super::*;
use crate::config::{Key, Quic, QuicConfig};

/// Methods without states, which know a backend by its name alone.
const BY_NAME: &[&str] =
    &["method = \"jet\"", "method = \"cheetah\"", "method = \"cheetah-stateful\"\npartitions = 2"];

/// A new name is refused, and so are two that change theirs; a plan says so, and who asks for it is told what ends.
#[test]
fn methods_that_go_by_names_refuse_others_under_connections() {
    for fields in BY_NAME {
        let mut world = World::with(1, fields);
        world.start(0, 0..60);
        let before = world.engine.config.clone();
        let mut renamed = before.clone();
        renamed.services[0].backends[1].name = "bee2".into();
        let mut swapped = before.clone();
        let backends = &mut swapped.services[0].backends;
        (backends[0].name, backends[1].name) = ("b2".into(), "b1".into());
        let id = world.engine.services["a"].member("b2").expect("there").id;
        for (wanted, named) in
            [(&renamed, "backend bee2: it is called b2 now"), (&swapped, "and 1 more")]
        {
            let refused = world.engine.reload_as(wanted.clone(), false);
            let refused = refused.expect_err("connections would break").to_string();
            for words in [
                "service a: backend ",
                named,
                "cannot change under connections",
                "; an unknown number of connections break. Nothing has changed; --break-connections",
            ] {
                assert!(refused.contains(words), "{fields}: {words}: {refused}");
            }
            let plan =
                world.engine.plan_to(wanted, &world.engine.source()).expect("it is looked at");
            let planned = &plan.services[0];
            assert!(plan.refused, "{fields}");
            assert_eq!((&*planned.change, planned.broken), ("refused", None), "{fields}");
            assert!(refused.contains(planned.why.as_deref().expect("a reason")), "{fields}");
            assert_eq!(world.engine.services["a"].member("b2").expect("there").id, id);
        }
        let done = world.engine.reload_as(renamed, true).expect("it was asked for");
        for words in [
            "backend bee2: it is called b2 now",
            "an unknown number of connections break",
            "backend b2 removed: an unknown number of connections end",
        ] {
            assert!(done.contains(words), "{fields}: {words}: {done}");
        }
    }
}

/// A backend that a command has added, and the file does not have, goes with a reload: it is said, with as much as is
/// known of its connections.
#[test]
fn backends_that_go_are_named_whatever_is_known_of_them() {
    let unknown = "backend b4 removed: an unknown number of connections end";
    for (method, connections, said) in [
        ("jet", 60, unknown),
        ("cheetah", 60, unknown),
        ("tracked", 60, unknown),
        ("tracked", 0, "backend b4 removed"),
        ("concury", 0, "backend b4 removed"),
        ("residue", 0, "backend b4 removed"),
    ] {
        let mut world = World::with(1, &format!("method = {method:?}"));
        let add = |reply| Command::Add("a".into(), Box::new(backend(0, 4)), reply);
        world.ask(add).expect("there is room");
        world.start(0, 0..connections);
        let wanted = world.engine.config.clone();
        let followed = world.follow(&wanted).expect("nothing is refused");
        let said = format!("service a: {said}");
        assert!(followed.notes.contains(&said), "{method}: {followed:?}");
    }
}

/// Of many that go without connections not all are named.
#[test]
fn of_many_that_go_a_few_are_named() {
    let mut world = World::new(1);
    for n in 4..12 {
        let add = |reply| Command::Add("a".into(), Box::new(backend(0, n)), reply);
        world.ask(add).expect("there is room");
    }
    let wanted = world.engine.config.clone();
    let followed = world.follow(&wanted).expect("nothing is refused");
    let notes = followed.notes.join("; ");
    assert_eq!(notes.matches(" removed").count(), 5, "{notes}");
    assert!(notes.ends_with(", and 3 more without known connections"), "{notes}");
}

/// Whatever commands have changed of a pool, what goes back to the file is said.
#[test]
fn all_that_commands_have_changed_is_said_when_it_goes() {
    for method in ["jet", "concury"] {
        let mut world = World::with(1, &format!("method = {method:?}"));
        let mut wanted = world.engine.config.clone();
        wanted.services[0].backends[0].drain = true;
        world.follow(&wanted).expect("nothing is refused");
        world.ask(|reply| Command::Drain("a".into(), "b1".into(), false, reply)).expect("there");
        world.ask(|reply| Command::Remove("a".into(), "b3".into(), reply)).expect("there");
        let followed = world.follow(&wanted).expect("nothing is refused");
        let said =
            "service a: backend b1 drains again, backend b3 is there again, as the file has it";
        assert!(followed.notes.contains(&said.to_owned()), "{method}: {followed:?}");
        let followed = world.follow(&wanted).expect("nothing is refused");
        assert!(followed.notes.is_empty(), "{method}: {followed:?}");
    }
}

fn config_of(config_id: u8, digit: &str, server_id_length: u8) -> QuicConfig {
    let key = Key::from_hex(&digit.repeat(32));
    QuicConfig { config_id, server_id_length, nonce_length: 8, key, encode_length: false }
}

fn with_ids(config: &Config, configs: Vec<QuicConfig>) -> Config {
    let mut wanted = config.clone();
    let issue = configs.last().map_or(0, |one| one.config_id);
    wanted.services[0].quic = Some(Quic { configs, issue, server_ids: Default::default() });
    wanted
}

/// While there are ids of a configuration its number stands for nothing else; what is removed, or comes beside, is a
/// rotation.
#[test]
fn a_configuration_of_ids_keeps_its_meaning_while_it_is_in_use() {
    let mut world = World::new(1);
    world.start(0, 0..50);
    world.engine.drain_reports().expect("nothing is refused");
    let plain = world.engine.config.clone();
    let first = with_ids(&plain, vec![config_of(1, "a", 4)]);
    world.engine.reload_as(first.clone(), false).expect("there were no ids");
    let mut renamed = first.clone();
    renamed.services[0].backends[1].name = "bee2".into();
    for (wanted, words) in [
        (with_ids(&plain, vec![config_of(1, "b", 4)]), "another key"),
        (with_ids(&plain, vec![config_of(2, "a", 4), config_of(1, "b", 4)]), "another key"),
        (with_ids(&plain, vec![config_of(1, "a", 5)]), "other lengths"),
        (renamed.clone(), "for backend bee2"),
    ] {
        let refused = world.engine.reload_as(wanted.clone(), false);
        let refused = refused.expect_err("ids would be read otherwise").to_string();
        for words in ["service a: quic: config 1: ", words, "; up to 50 known connections break."] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
        let plan = world.engine.plan_to(&wanted, &world.engine.source()).expect("it is looked at");
        let planned = &plan.services[0];
        assert!(plan.refused);
        assert_eq!((planned.connections, planned.broken), (Some(50), None), "{plan:?}");
    }
    // The same ids under another name are the same.
    let quic = renamed.services[0].quic.as_mut().expect("ids");
    let id = format!("{:?}", quic.server_id("b2", 4));
    quic.server_ids.insert("bee2".into(), id);
    world.engine.reload_as(renamed.clone(), false).expect("nothing is read otherwise");
    let mut both = renamed.clone();
    both.services[0].quic.as_mut().expect("ids").configs.push(config_of(2, "b", 4));
    world.engine.reload_as(both, false).expect("it comes beside");
    // How many have ids of a configuration that goes nobody knows.
    for wanted in [&renamed, &plain] {
        let mut wanted = wanted.clone();
        wanted.services[0].backends[1].name = "bee2".into();
        let plan = world.engine.plan_to(&wanted, &world.engine.source()).expect("it is looked at");
        assert!(!plan.refused);
        assert_eq!((plan.services[0].connections, plan.services[0].broken), (Some(50), None));
        world.engine.reload_as(wanted, false).expect("it goes");
    }
    world.check();
}

/// A start over a running data plane whose file may break connections counts those, too, that have begun while nobody
/// listened. Where the file leaves out services, whose reports are to stay for who has them, it does not know.
#[test]
fn a_start_counts_connections_whose_reports_wait() {
    for (services, words) in
        [(1, "; 40 known connections break."), (2, "; an unknown number of connections break.")]
    {
        let mut world = World::with(services, "method = \"concury\"");
        world.start(0, 0..40);
        let World { mut engine, directory, .. } = world;
        engine.save().expect("it can be kept");
        let plane = std::mem::take(&mut engine.plane);
        drop(engine);
        let wanted = config_with(&directory, 1, "method = \"jet\"");
        let found = Found { resumed: true, ..Found::default() };
        let Err(refused) = over(plane, found, &wanted) else { panic!("connections would break") };
        let refused = refused.to_string();
        assert!(refused.contains("jet cannot be told") && refused.contains(words), "{refused}");
    }
}

/// A command that comes twice, as where the first answer was lost, is told that the backend is there.
#[test]
fn a_backend_that_is_there_is_no_clash_of_ids() {
    let mut world = World::new(1);
    let plain = world.engine.config.clone();
    let wanted = with_ids(&plain, vec![config_of(1, "a", 4)]);
    world.engine.reload_as(wanted, false).expect("there were no ids");
    let service = &world.engine.services["a"];
    let again = service.pool[0].wanted.clone();
    let refused = service.may_add(&again, 0).expect_err("it is there").to_string();
    assert!(refused.ends_with(&format!("already has a backend {}", again.name)), "{refused}");
}
