//! The run directory is cleared away while the engine runs: what a restart goes on from is written anew.

use super::*;
use crate::store::StateLog;
use std::fs;

/// The look that comes every `look_every`.
fn look(world: &mut World) {
    let mut timers = Timers::new();
    timers.next_hops.0 -= world.engine.config.balancer.look_every;
    world.engine.upkeep(&mut timers);
}

/// The states of the first service, as the next start finds them, and its services.
fn written(world: World) -> (usize, Vec<String>) {
    let World { engine, directory, .. } = world;
    drop(engine);
    let document = Document::read(directory.path()).expect("whole");
    let log = directory.path().join("states-a.log");
    let (_, states) = StateLog::open(log).expect("whole");
    (states.len(), document.services.into_keys().collect())
}

fn with_states() -> World {
    let mut world = World::new(2);
    world.start(0, 0..50);
    world.engine.drain_reports().expect("nothing is refused");
    world.drain("a", "b1").expect("nothing is refused");
    world
}

/// A process that is killed while its disc is full has not written down what began: the next one says so, once.
#[test]
fn what_a_full_disc_has_lost_is_told_by_the_next_start() {
    let mut world = World::new(1);
    let service = world.engine.services.get_mut("a").expect("there");
    service.log.as_mut().expect("states are kept").fill_disc();
    world.start(0, 0..600);
    world.engine.drain_reports().expect("nothing is refused");
    let said = world.warnings().concat();
    assert!(said.contains("a control plane that dies now forgets connections"), "{said}");
    let words = "connections that began while the disc was full are not known, and may break";
    let world = world.restart();
    let said = world.warnings().concat();
    assert!(said.contains(words), "{said}");
    let said = world.restart().warnings().concat();
    assert!(!said.contains(words), "{said}");
}

/// A start that is refused leaves that to the next one.
#[test]
fn what_a_full_disc_has_lost_outlives_a_refused_start() {
    let mut world = World::new(1);
    let service = world.engine.services.get_mut("a").expect("there");
    let log = service.log.as_mut().expect("states are kept");
    log.fill_disc();
    let path = log.path().to_owned();
    world.start(0, 0..600);
    world.engine.drain_reports().expect("nothing is refused");
    let World { mut engine, directory, .. } = world;
    engine.save().expect("it can be kept");
    let (config, mut plane) = (engine.config.clone(), std::mem::take(&mut engine.plane));
    drop(engine);
    plane.refuse(Operation::Attach);
    let found = Found { resumed: true, ..Found::default() };
    let refused = over(plane, found, &config).err().expect("refused").to_string();
    assert!(refused.contains("Attach"), "{refused}");
    let (log, _) = StateLog::open(&path).expect("it is whole");
    assert!(log.missing() > 0, "what is missing is not told any more");
    drop(directory);
}

/// The process is killed, and something becomes of its run directory before the next start.
fn killed(world: World, spoil: impl FnOnce(&std::path::Path)) -> World {
    let World { mut engine, live, directory } = world;
    let (config, plane) = (engine.config.clone(), std::mem::take(&mut engine.plane));
    drop(engine);
    spoil(directory.path());
    let found = Found { resumed: true, ..Found::default() };
    let engine = over(plane, found, &config).unwrap_or_else(|error| panic!("{error}"));
    World { engine, live, directory }
}

/// Connections at a backend whose addition is not written down any more are told, also where its number was another's
/// before, which was removed; and once.
#[test]
fn changes_that_are_gone_are_told_by_the_next_start() {
    for reused in [false, true] {
        for left in [None, Some(0), Some(1)] {
            let mut world = World::new(1);
            if reused {
                let remove = |reply| Command::Remove("a".into(), "b3".into(), reply);
                world.ask(remove).expect("nothing is refused");
                let engine = &mut world.engine;
                engine.journal.rewrite(&engine.document).expect("there is room");
            }
            let add = |reply| Command::Add("a".into(), Box::new(backend(0, 9)), reply);
            world.ask(add).expect("nothing is refused");
            let new = world.engine.services["a"].member("b9").expect("there").id;
            let went = world.start(0, 0..200);
            world.engine.drain_reports().expect("nothing is refused");
            let there = went.iter().filter(|backend| **backend == new).count();
            assert!(there > 1, "{there}");
            let world = killed(world, |run_dir| {
                let log = run_dir.join("runtime.log");
                match left {
                    None => fs::remove_file(log).expect("it is there"),
                    Some(left) => {
                        let bytes = fs::read(&log).expect("it is there");
                        fs::write(&log, &bytes[..left]).expect("it is there");
                    }
                }
            });
            let said = world.warnings().join("; ");
            let connections = format!("service a: {there} connections are at backends of which");
            assert!(said.contains(&connections), "{reused} {left:?}: {said}");
            let cut = said.contains("runtime.log was cut off");
            assert_eq!(cut, left.is_some(), "{reused} {left:?}: {said}");
            let world = killed(world, |_| {});
            assert_eq!(world.warnings(), Vec::<String>::new(), "{reused} {left:?}: it is said");
        }
    }
}

/// A process that is killed after a removal was written down, and before its connections were, has lost nothing. The
/// next one remembers them no more, as the number may be another backend's by then.
#[test]
fn what_a_removal_leaves_behind_is_not_told() {
    let mut world = World::new(1);
    world.start(0, 0..60);
    world.engine.drain_reports().expect("nothing is refused");
    let path = world.directory.path().join("states-a.log");
    let before = fs::read(&path).expect("it is there");
    let remove = |reply| Command::Remove("a".into(), "b3".into(), reply);
    world.ask(remove).expect("nothing is refused");
    world.lose_leavers();
    let open = world.live.len();
    assert!(open < 60, "some were there");
    let mut world = killed(world, |_| fs::write(&path, &before).expect("it is there"));
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.check();
    assert_eq!(written(world), (open, vec!["a".to_owned()]));
}

/// A start that comes to nothing leaves directories as it has found them; one that is somebody's stays.
#[test]
fn a_start_that_comes_to_nothing_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut config = config(&directory, 1);
    let (run_dir, state_dir) = (directory.path().join("run"), directory.path().join("state"));
    config.balancer.run_dir = run_dir.clone();
    config.balancer.state_dir = Some(state_dir.clone());
    fs::create_dir(&state_dir).expect("it can be made");
    let begin = |begun: &dyn Fn()| {
        let guard = crate::engine::kept::Begun::at(&config.balancer);
        let locks = [&run_dir, &state_dir].map(|one| RunLock::acquire(one).expect("ours"));
        fs::write(run_dir.join("state_dir"), "elsewhere\n").expect("written");
        fs::write(state_dir.join("history.number"), "0\n").expect("written");
        begun();
        drop(locks);
        guard
    };
    drop(begin(&|| {}));
    assert!(!run_dir.exists(), "nobody had made it");
    assert_eq!(fs::read_dir(&state_dir).expect("it was there").count(), 0);
    // What somebody had there before is left as it was.
    fs::write(state_dir.join("older"), "").expect("written");
    drop(begin(&|| {}));
    assert!(!run_dir.exists(), "nobody had made it");
    let left = fs::read_dir(&state_dir).expect("it was there");
    let left: Vec<_> = left.map(|one| one.expect("readable").file_name()).collect();
    assert_eq!(left, ["older"]);
    // More than a start writes is somebody's.
    drop(begin(&|| fs::write(run_dir.join(document::FILE), "{}").expect("written")));
    assert!(run_dir.join("lock").exists() && run_dir.join(document::FILE).exists());
    fs::remove_dir_all(&run_dir).expect("it is there");
    begin(&|| {}).stays();
    assert!(run_dir.join("lock").exists() && state_dir.join("history.number").exists());
    drop(crate::engine::kept::Begun::at(&config.balancer));
    assert!(run_dir.join("lock").exists(), "they are an instance's");
}

#[test]
fn a_run_directory_that_is_removed_is_written_anew() {
    let mut world = with_states();
    let run_dir = world.directory.path().to_owned();
    let before = fs::read(run_dir.join(document::FILE)).expect("written");
    look(&mut world);
    assert_eq!(fs::read(run_dir.join(document::FILE)).expect("written"), before, "all is there");
    fs::remove_dir_all(&run_dir).expect("it is there");
    // What comes meanwhile is not lost.
    world.start(0, 50..60);
    world.engine.drain_reports().expect("nothing is refused");
    look(&mut world);
    assert_eq!(world.warnings(), Vec::<String>::new());
    // It holds the directory again.
    assert!(matches!(RunLock::acquire(&run_dir), Err(StoreError::Locked { .. })));
    world.drain("b", "b2").expect("nothing is refused");
    world.start(0, 60..65);
    world.engine.drain_reports().expect("nothing is refused");
    world.check();
    assert_eq!(written(world), (65, vec!["a".to_owned(), "b".to_owned()]));
}

#[test]
fn single_files_that_are_removed_are_written_anew() {
    for file in [document::FILE, "runtime.log", "states-a.log", "lock"] {
        let mut world = with_states();
        let path = world.directory.path().join(file);
        fs::remove_file(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        look(&mut world);
        assert_eq!(world.warnings(), Vec::<String>::new(), "{file}");
        world.start(0, 50..55);
        world.engine.drain_reports().expect("nothing is refused");
        world.check();
        assert_eq!(written(world), (55, vec!["a".to_owned(), "b".to_owned()]), "{file}");
    }
}

#[test]
fn files_that_are_emptied_or_that_a_link_takes_the_place_of_are_written_anew() {
    for file in [document::FILE, "runtime.log"] {
        for link in [false, true] {
            let mut world = with_states();
            let path = world.directory.path().join(file);
            if link {
                let aside = path.with_extension("aside");
                fs::rename(&path, &aside).unwrap_or_else(|error| panic!("{file}: {error}"));
                std::os::unix::fs::symlink(&aside, &path).expect("it is free");
            } else {
                fs::write(&path, "").unwrap_or_else(|error| panic!("{file}: {error}"));
            }
            look(&mut world);
            assert_eq!(world.warnings(), Vec::<String>::new(), "{file} {link}");
            // With everything in the document, what stands in the log's place waits for the next change.
            let about = fs::symlink_metadata(&path);
            let is_own = file != document::FILE || about.is_ok_and(|about| about.is_file());
            assert!(is_own, "{file} {link}");
            world.start(0, 50..55);
            world.engine.drain_reports().expect("nothing is refused");
            world.check();
            assert_eq!(written(world), (55, vec!["a".to_owned(), "b".to_owned()]), "{file} {link}");
        }
    }
}

/// A file of the same name is not the one that is written, nor one that has another name now.
#[test]
fn a_log_whose_place_another_file_has_is_written_anew() {
    for another in [false, true] {
        let mut world = with_states();
        let path = world.directory.path().join("states-a.log");
        fs::rename(&path, path.with_extension("aside")).expect("it is there");
        if another {
            fs::write(&path, "somebody else's").expect("it is free");
        }
        look(&mut world);
        assert_eq!(world.warnings(), Vec::<String>::new(), "{another}");
        world.start(0, 50..55);
        world.engine.drain_reports().expect("nothing is refused");
        world.check();
        assert_eq!(written(world), (55, vec!["a".to_owned(), "b".to_owned()]), "{another}");
    }
}

#[test]
fn what_cannot_be_written_anew_is_said_until_it_can() {
    let mut world = with_states();
    let run_dir = world.directory.path().to_owned();
    fs::remove_dir_all(&run_dir).expect("it is there");
    fs::write(&run_dir, "in the way").expect("its parent is there");
    for _ in 0..2 {
        look(&mut world);
        let said = world.warnings().join("; ");
        assert!(said.contains("cannot be written anew") && said.contains("lock"), "{said}");
    }
    fs::remove_file(&run_dir).expect("it is there");
    look(&mut world);
    assert_eq!(world.warnings(), Vec::<String>::new());
    assert_eq!(written(world), (50, vec!["a".to_owned(), "b".to_owned()]));
}
