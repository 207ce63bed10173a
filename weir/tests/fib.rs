//! `weir fib`: forwarders that run, with real hosts, frames and datagrams.

mod common;

use common::WEIR;
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Runs `weir fib` with arguments; its report, and whether it was content with it.
fn fib(arguments: &[&str], seed: u64) -> (Value, bool) {
    let output = Command::new(WEIR)
        .arg("fib")
        .args(arguments)
        .args(["--json", "--seed", &seed.to_string()])
        .output()
        .expect("running weir");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let report = serde_json::from_str(&text).expect("a report");
    (report, output.status.success())
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"))
}

/// Namespaces of a process that runs `weir fib switch`.
fn namespaces(pid: u32) -> Vec<String> {
    let prefix = format!("weirfib{pid}-");
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

fn hosts_move_and_nothing_is_lost(fib_name: &str) {
    let _alone = common::alone();
    let seed = common::seed();
    let (report, held) = fib(
        &[
            "switch",
            "--fib",
            fib_name,
            "--nodes",
            "5",
            "--hosts",
            "6",
            "--keys",
            "20K",
            "--duration",
            "4s",
            "--moves-per-second",
            "2",
        ],
        seed,
    );
    for name in ["lost", "misdirected", "wrong_at_end", "bad_messages"] {
        assert_eq!(number(&report, name), 0, "{name}, WEIR_SEED={seed}");
    }
    assert!(held, "WEIR_SEED={seed}");
    assert_eq!(report["broken_streams"].as_array().map(Vec::len), Some(0));
    assert!(number(&report, "moves") >= 3);
    assert!(number(&report, "messages") > 300);
    assert!(number(&report, "forwarded") > 1000);
    assert_eq!(number(&report, "checked_at_end"), 5 * 20_006);
    assert_eq!(number(&report, "streams"), 3);
    assert!(number(&report, "stream_bytes") > 1 << 20);
    // A host that moves misses a few of its twenty requests each second, and no more.
    let (sent, answered) = (number(&report, "pings"), number(&report, "pings_answered"));
    assert!(answered * 2 > sent, "{answered} of {sent}");
}

#[test]
fn ofw_switches_follow_hosts_that_move() {
    hosts_move_and_nothing_is_lost("ofw");
}

#[test]
fn cfw_switches_follow_hosts_that_move() {
    hosts_move_and_nothing_is_lost("cfw");
}

#[test]
fn ludo_switches_follow_hosts_that_move() {
    hosts_move_and_nothing_is_lost("ludo");
}

/// Starts a long run, waits until its namespaces are there, sends it a signal and waits for its end.
fn stop_with(signal: &str) -> (u32, bool) {
    let mut child = Command::new(WEIR)
        .args(["fib", "switch", "--duration", "5m", "--keys", "1K", "--nodes", "3"])
        .stdout(Stdio::null())
        .spawn()
        .expect("running weir");
    let pid = child.id();
    let patience = Instant::now() + Duration::from_secs(20);
    while namespaces(pid).len() < 11 {
        assert!(Instant::now() < patience, "no namespaces");
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(Duration::from_secs(2));
    let killed = Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    let status = child.wait().expect("waiting for weir");
    (pid, status.success())
}

#[test]
fn an_interrupted_switch_leaves_nothing_behind_and_the_next_one_sweeps() {
    let _alone = common::alone();
    let (pid, held) = stop_with("-INT");
    assert!(!held, "what was not finished was not shown");
    assert_eq!(namespaces(pid), Vec::<String>::new());
    let (pid, _) = stop_with("-KILL");
    assert_eq!(namespaces(pid).len(), 11);
    let (_, held) = fib(
        &["switch", "--nodes", "2", "--hosts", "2", "--keys", "10", "--duration", "1s"],
        common::seed(),
    );
    assert!(held);
    assert_eq!(namespaces(pid), Vec::<String>::new());
}

fn an_index_answers_while_it_changes(fib_name: &str) {
    let _alone = common::alone();
    let seed = common::seed();
    let (report, held) = fib(
        &[
            "content",
            "--fib",
            fib_name,
            "--contents",
            "100K",
            "--seconds",
            "2",
            "--updates-per-second",
            "50K",
            "--clients",
            "2",
            "--servers",
            "2",
        ],
        seed,
    );
    assert!(held, "WEIR_SEED={seed}");
    for name in ["wrong", "wrong_at_end", "lost_datagrams"] {
        assert_eq!(number(&report, name), 0, "{name}, WEIR_SEED={seed}");
    }
    assert!(number(&report, "right") > 50_000);
    assert!(number(&report, "updates") > 10_000);
    // What cannot be judged is a small rest.
    assert!(number(&report, "unchecked") < number(&report, "right") / 100);
    let (aliens, answered) = (number(&report, "aliens"), number(&report, "aliens_answered"));
    assert!(aliens > 1000);
    match fib_name {
        // 0.33 / 2^8 of them.
        "ofw" => assert!(answered * 200 < aliens, "{answered} of {aliens}"),
        _ => assert_eq!(answered, aliens),
    }
}

#[test]
fn a_ludo_index_answers_while_it_changes() {
    an_index_answers_while_it_changes("ludo");
}

#[test]
fn an_othello_index_answers_while_it_changes() {
    an_index_answers_while_it_changes("ofw");
}

#[test]
fn senseless_arguments_are_refused() {
    for arguments in [
        &["switch", "--nodes", "1"][..],
        &["switch", "--moves-per-second", "nan"],
        &["switch", "--fib", "tree"],
        &["content", "--contents", "0"],
        &["content", "--seconds", "0"],
        &["content", "--batch", "33"],
    ] {
        let output = common::weir(&[&["fib"], arguments].concat());
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}
