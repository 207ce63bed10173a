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
    try_fib(arguments, seed).expect("a report")
}

/// The same; none if there was no time to measure anything.
fn try_fib(arguments: &[&str], seed: u64) -> Option<(Value, bool)> {
    let output = Command::new(WEIR)
        .arg("fib")
        .args(arguments)
        .args(["--json", "--seed", &seed.to_string()])
        .output()
        .expect("running weir");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{text}{said}");
    if said.contains("no time to measure") {
        return None;
    }
    let report = serde_json::from_str(&text).expect("a report");
    Some((report, output.status.success()))
}

/// Runs `weir fib` with arguments and a number of seconds, and again with more of them as long as
/// there was not enough to see: a machine that is busy with other things does less in a second.
fn fib_until(
    arguments: &[&str],
    option: &str,
    seconds: u64,
    seed: u64,
    enough: impl Fn(&Value) -> bool,
) -> (Value, bool) {
    let mut seconds = seconds;
    loop {
        let time = if option == "--duration" { format!("{seconds}s") } else { seconds.to_string() };
        match try_fib(&[arguments, &[option, &time]].concat(), seed) {
            Some((report, held)) if enough(&report) || seconds > 300 => return (report, held),
            None if seconds > 300 => panic!("no time to measure in {seconds} s"),
            _ => {}
        }
        seconds *= 4;
    }
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

/// Drops of frames that nodes had received, for which there is no excuse.
const OURS: [&str; 8] = [
    "bad_frame",
    "no_key",
    "no_route",
    "hold_full",
    "still_held",
    "tx_ring_full",
    "refused",
    "bad_descriptor",
];

/// Drops that a machine which is too busy may cause.
const BUSY: [&str; 3] = ["device_full", "no_memory", "rx_full"];

/// `flows` is the number of keys of hosts with traffic.
fn hosts_move_and_nothing_is_lost(fib_name: &str, sockets: &str, key: &str, flows: u64) {
    let _alone = common::alone();
    let seed = common::seed();
    let mut arguments = vec!["switch", "--fib", fib_name, "--key", key, "--sockets", sockets];
    arguments.extend(["--nodes", "5", "--hosts", "6", "--keys", "20K"]);
    arguments.extend(["--moves-per-second", "3"]);
    let (report, held) = fib_until(&arguments, "--duration", 3, seed, |report| {
        number(report, "moves") >= 3
            && number(report, "messages") > 300
            && number(report, "frames") > 1000
            && number(report, "stream_bytes") > 1 << 20
    });
    for name in ["lost", "misdirected", "wrong_at_end", "bad_messages", "aliens", "unaccounted"] {
        assert_eq!(number(&report, name), 0, "{name}, WEIR_SEED={seed}");
    }
    assert!(held, "WEIR_SEED={seed}");
    assert_eq!(report["sockets"], sockets);
    assert_eq!(report["fallback"], Value::Null);
    assert_eq!(report["broken_streams"].as_array().map(Vec::len), Some(0));
    assert!(number(&report, "moves") >= 3);
    assert!(number(&report, "messages") > 300);
    let frames = number(&report, "frames");
    assert!(frames > 1000);
    for name in OURS {
        assert_eq!(number(&report["drops"], name), 0, "{name}, WEIR_SEED={seed}");
    }
    let busy: u64 = BUSY.iter().map(|name| number(&report["drops"], name)).sum();
    assert!(busy * 50 < frames, "{busy} of {frames}");
    assert_eq!(number(&report, "forwarded"), frames - number(&report["drops"], "device_full"));
    assert_eq!(number(&report, "checked_at_end"), 5 * (20_000 + flows));
    assert_eq!(number(&report, "streams"), 3);
    assert!(number(&report, "stream_bytes") > 1 << 20);
    // A host that moves misses a few of its twenty requests each second, and no more.
    let (sent, answered) = (number(&report, "pings"), number(&report, "pings_answered"));
    assert!(answered * 2 > sent, "{answered} of {sent}");
}

#[test]
fn ofw_switches_follow_hosts_that_move() {
    hosts_move_and_nothing_is_lost("ofw", "xdp", "mac", 6);
    hosts_move_and_nothing_is_lost("ofw", "packet", "mac", 6);
}

#[test]
fn cfw_switches_follow_hosts_that_move() {
    hosts_move_and_nothing_is_lost("cfw", "packet", "ipv4", 6);
    hosts_move_and_nothing_is_lost("cfw", "xdp", "ipv6", 6);
}

#[test]
fn ludo_switches_follow_hosts_that_move() {
    // Each of six hosts pings the next one and is answered; three streams have two directions.
    hosts_move_and_nothing_is_lost("ludo", "xdp", "5tuple", 6 * 2 + 3 * 2);
    hosts_move_and_nothing_is_lost("ludo", "packet", "mac", 6);
}

/// Two networks side by side have nothing of each other.
#[test]
fn two_switches_run_beside_each_other() {
    let _alone = common::alone();
    let seed = common::seed();
    let run = |sockets: &'static str| {
        let mut arguments = vec!["switch", "--sockets", sockets, "--nodes", "3", "--hosts", "4"];
        arguments.extend(["--keys", "1K", "--duration", "2s", "--moves-per-second", "2"]);
        fib(&arguments, seed)
    };
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| run("xdp"));
        let second = run("auto");
        (first.join().expect("a report"), second)
    });
    for (report, held) in [first, second] {
        assert!(held, "WEIR_SEED={seed}");
        assert_eq!(report["sockets"], "xdp");
        assert_eq!(number(&report, "lost") + number(&report, "misdirected"), 0);
    }
}

/// Without the right to lock memory the kernel refuses AF_XDP's.
fn without_locked_memory(sockets: &str) -> std::process::Output {
    let script = "ulimit -l 64; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \"$@\"";
    Command::new("sh")
        .args(["-c", script, "sh", WEIR, "fib", "switch", "--nodes", "2", "--hosts", "2"])
        .args(["--keys", "100", "--duration", "1s", "--json", "--sockets", sockets])
        .output()
        .expect("running sh")
}

#[test]
fn packet_sockets_stand_in_where_af_xdp_is_refused_and_the_reason_is_said() {
    let _alone = common::alone();
    let output = without_locked_memory("auto");
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["sockets"], "packet");
    let reason = report["fallback"].as_str().expect("a reason");
    assert!(reason.contains("memory with an AF_XDP socket"), "{reason}");
    assert!(reason.contains("No buffer space available"), "{reason}");
    assert_eq!(said.matches(reason).count(), 1, "said once");
    assert!(number(&report, "forwarded") > 0);

    let output = without_locked_memory("xdp");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("AF_XDP was refused"));
    assert!(output.stdout.is_empty());
}

#[test]
fn both_kinds_of_sockets_carry_frames_through_a_chain() {
    let _alone = common::alone();
    let arguments = ["switch", "--compare-sockets", "--nodes", "3", "--keys", "1K"];
    for key in ["mac", "5tuple"] {
        let rounds = ["--rounds", "2", "--key", key];
        let arguments = [&arguments[..], &rounds].concat();
        let (report, held) = fib_until(&arguments, "--duration", 2, common::seed(), |report| {
            ["xdp", "packet"].iter().all(|kind| number(&report[*kind], "forwarded") > 1000)
        });
        assert!(held);
        let rows = report["rows"].as_array().expect("rows");
        let sizes: Vec<u64> = rows.iter().map(|row| number(row, "frame_bytes")).collect();
        assert_eq!(sizes, [60, 1514]);
        for row in rows {
            let rates = ["xdp_frames_per_s", "packet_frames_per_s", "ratio_median"];
            for name in rates.into_iter().chain(["xdp_cpu_us", "packet_cpu_us"]) {
                assert!(row[name].as_f64().is_some_and(|figure| figure > 0.0), "{name} in {row}");
            }
        }
        for kind in ["xdp", "packet"] {
            let frames = &report[kind];
            assert!(number(frames, "forwarded") > 1000);
            for name in ["lost", "misdirected", "aliens", "unaccounted"] {
                assert_eq!(number(frames, name), 0, "{name} by {kind}");
            }
        }
    }
}

/// Starts a long run, waits until its namespaces are there, sends it a signal and waits for its end.
fn stop_with(signal: &str, sockets: &str) -> (u32, bool) {
    let mut child = Command::new(WEIR)
        .args(["fib", "switch", "--duration", "5m", "--keys", "1K", "--nodes", "3"])
        .args(["--moves-per-second", "5", "--sockets", sockets])
        .stdout(Stdio::null())
        .spawn()
        .expect("running weir");
    let pid = child.id();
    let patience = Instant::now() + common::PATIENCE;
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
    for sockets in ["xdp", "packet"] {
        let (pid, held) = stop_with("-INT", sockets);
        assert!(!held, "what was not finished was not shown");
        assert_eq!(namespaces(pid), Vec::<String>::new());
    }
    let (pid, _) = stop_with("-KILL", "xdp");
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
    let arguments = ["content", "--fib", fib_name, "--contents", "100K"];
    let loads = ["--updates-per-second", "50K", "--clients", "2", "--servers", "2"];
    let arguments = [&arguments[..], &loads].concat();
    let (report, held) = fib_until(&arguments, "--seconds", 2, seed, |report| {
        number(report, "right") > 50_000
            && number(report, "updates") > 10_000
            && number(report, "aliens") > 1000
    });
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
        &["switch", "--key", "name"],
        &["switch", "--sockets", "raw"],
        &["switch", "--compare-sockets", "--sockets", "xdp"],
        &["switch", "--rounds", "0"],
        &["content", "--contents", "0"],
        &["content", "--seconds", "0"],
        &["content", "--batch", "33"],
    ] {
        let output = common::weir(&[&["fib"], arguments].concat());
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}
