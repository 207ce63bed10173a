//! What a change did to connections is said: in the answer, in the history and in the log, which nobody can flood.

use super::*;
use crate::engine::lines;
use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};

/// What is logged while something is done.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// With one subscriber alone, whoever comes first to a line of code decides for all whether it is of interest, a thread
/// without one included. So there are two.
static ANOTHER: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
    tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish())
});

fn logged<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    LazyLock::force(&ANOTHER);
    let log = Log::default();
    let into = Log(Arc::clone(&log.0));
    let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || into.clone());
    let done = tracing::subscriber::with_default(lines.finish(), work);
    let text = String::from_utf8(log.0.lock().expect("nobody panics").clone()).expect("text");
    (done, text.lines().map(str::to_owned).collect())
}

fn last(world: &World) -> (String, Option<usize>, Option<usize>) {
    let report = world.engine.history_report();
    let entry = report.entries.last().expect("it is remembered").clone();
    (entry.done, entry.connections, entry.broken)
}

#[test]
fn answers_and_the_history_say_how_many_connections_stay() {
    let mut world = World::new(1);
    world.drain("a", "b3").expect("drained");
    assert_eq!(last(&world), ("backend b3 of a drains".into(), Some(0), Some(0)));
    world.ask(|reply| Command::Drain("a".into(), "b3".into(), false, reply)).expect("serves");
    let went = world.start(0, 0..60);
    let id = world.engine.services["a"].member("b1").expect("there").id;
    let its = went.iter().filter(|backend| **backend == id).count();
    assert!(its > 1, "{went:?}");
    let (said, lines) = logged(|| world.drain("a", "b1").expect("drained"));
    assert_eq!(said, format!("backend b1 of a drains; the {its} connections that it has stay"));
    assert_eq!(last(&world), (said, Some(60), Some(0)));
    let published = |lines: &[String]| -> String {
        lines.iter().find(|line| line.contains("published")).expect("it is logged").clone()
    };
    assert!(published(&lines).contains("kept=60"), "{lines:?}");
    assert!(!published(&lines).contains("left="), "{lines:?}");
    let weight = |reply| Command::Weight("a".into(), "b2".into(), 7, reply);
    let said = world.ask(weight).expect("weighed");
    assert_eq!(said, "backend b2 of a has weight 7; the 60 connections stay where they are");
    assert_eq!(last(&world), (said, Some(60), Some(0)));
    let said = world.ask(weight).expect("as before");
    assert_eq!(said, "backend b2 of a has weight 7 already");
    let remove = |reply| Command::Remove("a".into(), "b1".into(), reply);
    let (said, lines) = logged(|| world.ask(remove).expect("removed"));
    assert!(said.contains(&format!("it held {its} connections")), "{said}");
    let words = [format!("kept={}", 60 - its), format!("left={its}")];
    assert!(words.iter().all(|word| published(&lines).contains(word)), "{lines:?}");
}

#[test]
fn a_line_of_a_health_check_says_what_becomes_of_connections() {
    let mut world = World::new(1);
    let went = world.start(0, 0..60);
    // They are known once a table was built of them.
    world.drain("a", "b3").expect("drained");
    let id = world.engine.services["a"].member("b1").expect("there").id;
    let its = went.iter().filter(|backend| **backend == id).count();
    let (_, lines) = logged(|| world.health("a", "b1", false));
    let line = lines.iter().find(|line| line.contains("health check")).expect("it is logged");
    let words = [&*format!("connections={its}"), "they=\"stay\"", "up=false", "backend=\"b1\""];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
}

#[test]
fn a_thousand_changes_at_once_are_few_lines_that_count_them_all() {
    const CHANGES: u64 = 1_000;
    let mut lines = lines::Lines::new();
    let change = |up| lines::Change {
        service: "a",
        backend: "b1",
        up,
        detail: "no answer",
        connections: Some(3),
        fate: crate::config::DeadConnections::Keep,
    };
    let ((), text) = logged(|| {
        for n in 0..CHANGES {
            lines.health(&change(n % 2 == 0));
        }
        // The second is over.
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        lines.say_rest();
    });
    let single = text.iter().filter(|line| line.contains("health check service")).count() as u64;
    let number = |line: &str, name: &str| -> u64 {
        let value = line.split(&format!(" {name}=")).nth(1).expect(name);
        value.split(' ').next().expect("a number").parse().expect("a number")
    };
    let rest = text.iter().filter(|line| line.contains("too many"));
    let counted: u64 = rest.map(|line| number(line, "up") + number(line, "down")).sum();
    assert_eq!(single + counted, CHANGES, "{text:?}");
    // As many as there were seconds, and no more than that a machine that is slow takes.
    assert!(single < CHANGES, "{single} lines");
}
