//! Backends that drain by the calendar.

use super::*;
use crate::config::Window;
use crate::config::maintenance::tests::WALL;
use std::time::{Duration, SystemTime};

fn at(time: &str) -> SystemTime {
    humantime::parse_rfc3339(time).expect("a time")
}

impl World {
    /// The wall clock shows this, and the engine looks at it.
    fn clock(&mut self, time: SystemTime) {
        WALL.set(Some(time));
        self.engine.look_at_calendar();
        self.upkeep();
    }

    fn with_windows(mut self, backend: &str, windows: &[&str]) -> Self {
        let mut wanted = self.engine.config.clone();
        let windows = windows.iter().map(|text| Window::parse(text).expect("a window")).collect();
        wanted.services[0].maintenance.insert(backend.into(), windows);
        self.follow(&wanted).expect("nothing is refused");
        self
    }

    fn shown(&self) -> Vec<String> {
        let status = self.engine.status().expect("readable");
        status.services[0].backends.iter().map(|one| one.state.clone()).collect()
    }

    fn id_of(&self, backend: &str) -> BackendId {
        self.engine.services["a"].member(backend).expect("there").id
    }
}

#[test]
fn in_a_window_a_backend_drains_and_afterwards_it_serves() {
    for method in ["concury", "tracked", "residue"] {
        WALL.set(Some(at("2026-11-30T12:00:00Z")));
        let world = World::with(2, &format!("method = {method:?}"));
        let windows = ["2026-12-01T22:00:00Z/2026-12-02T02:00:00Z", "Wed 01:00-03:00"];
        let mut world = world.with_windows("b2", &windows);
        let b2 = world.id_of("b2");
        assert!(world.start(0, 0..100).contains(&b2));
        assert_eq!(world.shown(), ["up", "up", "up"]);
        world.clock(at("2026-12-01T22:00:00Z"));
        assert_eq!(world.shown(), ["up", "maintenance", "up"]);
        world.check();
        assert!(!world.start(0, 100..200).contains(&b2), "{method}: it is in maintenance");
        // One window begins before the other is over.
        world.clock(at("2026-12-02T02:00:00Z"));
        assert!(!world.start(0, 200..300).contains(&b2), "{method}: it is still in maintenance");
        // A command does not end it, and says so.
        let said = world.ask(|reply| Command::Drain("a".into(), "b2".into(), true, reply));
        assert!(said.expect("fine").contains("drains"));
        let said = world.ask(|reply| Command::Drain("a".into(), "b2".into(), false, reply));
        let words = "it is in maintenance until 2026-12-02T03:00:00Z";
        assert!(said.expect("fine").contains(words));
        world.upkeep();
        assert!(!world.start(0, 300..400).contains(&b2), "{method}: no command ends it");
        world.check();
        world.clock(at("2026-12-02T03:00:00Z"));
        assert_eq!(world.shown(), ["up", "up", "up"]);
        assert!(world.start(0, 400..500).contains(&b2), "{method}: it serves again");
        // A clock that is set back, and forth again.
        world.clock(at("2026-12-01T23:00:00Z"));
        assert!(!world.start(0, 500..600).contains(&b2));
        world.clock(at("2027-01-01T12:00:00Z"));
        assert!(world.start(0, 600..700).contains(&b2));
        world.check();
        assert_eq!(world.warnings(), Vec::<String>::new());
        let told = world.engine.events.after(0);
        let told = told.iter().filter(|event| matches!(event.what, Happening::Maintenance { .. }));
        assert_eq!(told.count(), 4, "{method}");
    }
    WALL.set(None);
}

#[test]
fn a_start_in_the_middle_of_a_window_goes_on_with_it() {
    WALL.set(Some(at("2026-12-02T00:00:00Z")));
    let mut world = World::with(1, "").with_windows("b1", &["daily 23:00-01:00"]);
    world.upkeep();
    let b1 = world.id_of("b1");
    assert!(!world.start(0, 0..100).contains(&b1));
    let mut world = world.restart();
    assert!(!world.start(0, 100..200).contains(&b1));
    world.check();
    // All at once: nobody takes new connections, and that is said.
    let mut world = world.with_windows("b2", &["daily 00:00-24:00"]);
    world = world.with_windows("b3", &["2026-01-01T00:00:00Z/2027-01-01T00:00:00Z"]);
    world.clock(at("2026-12-02T00:30:00Z"));
    world.check();
    let said = world.warnings().join("; ");
    assert!(said.contains("no backend takes new connections"), "{said}");
    world.clock(at("2026-12-02T00:30:00Z") + Duration::from_secs(3600));
    assert_eq!(world.shown(), ["up", "maintenance", "maintenance"]);
    WALL.set(None);
}
