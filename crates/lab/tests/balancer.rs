//! How the lab runs a balancer, churns its pool and sums it up, with a script in the
//! balancer's place: the clients reach a backend past it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_lab::balancer::PoolControl;
use weir_lab::churn::Place;
use weir_lab::demo::{DemoSpec, Goals, run_in};
use weir_lab::traffic::Kind;
use weir_lab::{Balancer, BalancerSpec, Churn, ChurnSpec, Error, Lab, LabSpec, sleep};

/// Writes down how it is called; `run` runs until it is killed, `status` needs it to.
const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")
if [ "$1" = run ]; then
    [ -e "$here/refuse" ] && { echo "no such interface"; exit 1; }
    # A shell's traps may be lost between the fork of what it waits for and the wait.
    exec python3 -c '
import os, signal, sys
here = sys.argv[1]
wanted = {signal.SIGHUP, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
with open(here + "/pid", "w") as file:
    file.write(str(os.getpid()))
while signal.sigwait(wanted) == signal.SIGHUP:
    with open(here + "/calls", "a") as file:
        file.write("reload\n")
' "$here"
fi
said="$*"
said=${said% --socket *}
case "$said" in
    status*) kill -0 "$(cat "$here/pid")" 2>/dev/null && echo '{"ready": true}' ;;
    *) echo "$said" >> "$here/calls" ;;
esac
"#;

/// Longest wait for anything: a machine that is busy with other things is slow.
const PATIENCE: Duration = Duration::from_secs(300);

struct StandIn {
    directory: PathBuf,
}

impl StandIn {
    fn new(lab: &Lab) -> Self {
        // Goes with the lab.
        let directory = lab.directory().join("stand-in");
        fs::create_dir(&directory).unwrap();
        let script = directory.join("weir");
        fs::write(&script, SCRIPT).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory }
    }

    fn program(&self) -> PathBuf {
        self.directory.join("weir")
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.join("calls")).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }
}

fn lab(backends: usize) -> (Arc<Lab>, StandIn) {
    let lab =
        Lab::create(LabSpec { backends, clients: 1, big_bytes: 256 << 10, ..LabSpec::default() })
            .unwrap();
    lab.bypass(0, Some(0)).unwrap();
    let stand_in = StandIn::new(&lab);
    (Arc::new(lab), stand_in)
}

fn eventually(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn changes_go_through_the_command_line_and_into_the_file() {
    let (lab, stand_in) = lab(3);
    let balancer = Balancer::start(&lab, BalancerSpec::new(stand_in.program(), 2)).unwrap();
    assert_eq!(balancer.status().unwrap()["ready"], true);
    balancer.add(2, 3).unwrap();
    balancer.drain(0).unwrap();
    balancer.undrain(0).unwrap();
    balancer.drain(1).unwrap();
    balancer.set_weight(2, 4).unwrap();
    assert_eq!(
        stand_in.calls(),
        [
            "backend add web4 b2 10.77.2.3 --weight 3",
            "backend add web6 b2 fd77::2:3 --weight 3",
            "backend add echo4 b2 10.77.2.3 --weight 3",
            "backend drain web4 b0",
            "backend drain web6 b0",
            "backend drain echo4 b0",
            "backend drain web4 b0 --undo",
            "backend drain web6 b0 --undo",
            "backend drain echo4 b0 --undo",
            "backend drain web4 b1",
            "backend drain web6 b1",
            "backend drain echo4 b1",
            "backend weight web4 b2 4",
            "backend weight web6 b2 4",
            "backend weight echo4 b2 4",
        ]
    );
    let config = || fs::read_to_string(balancer.config()).unwrap();
    assert_eq!(config().matches("weight = 4").count(), 3);
    assert_eq!(config().matches("drain = true").count(), 3);
    balancer.remove(1).unwrap();
    assert!(!config().contains("\"b1\""));
    balancer.reload_with_weight(2, 2).unwrap();
    assert_eq!(config().matches("weight = 2").count(), 3);
    eventually("no reload", || stand_in.calls().last().is_some_and(|call| call == "reload"));
}

#[test]
fn a_crash_brings_a_new_process_and_stop_is_polite() {
    let (lab, stand_in) = lab(1);
    let balancer = Balancer::start(&lab, BalancerSpec::new(stand_in.program(), 1)).unwrap();
    let before = balancer.pid().unwrap();
    assert!(Path::new(&format!("/proc/{before}")).exists());
    balancer.crash(Duration::from_millis(50)).unwrap();
    let after = balancer.pid().unwrap();
    assert_ne!(before, after);
    assert!(!Path::new(&format!("/proc/{before}")).exists());
    let status = balancer.stop(PATIENCE).unwrap();
    assert_eq!(status, "exit status: 0");
    assert!(balancer.status().is_err());
}

#[test]
fn a_balancer_that_does_not_start_says_why() {
    let (lab, stand_in) = lab(1);
    fs::write(stand_in.directory.join("refuse"), "").unwrap();
    match Balancer::start(&lab, BalancerSpec::new(stand_in.program(), 1)) {
        Err(error @ Error::NotReady { .. }) => {
            let text = error.to_string();
            assert!(text.contains("no such interface"), "{text}");
            assert!(text.contains("exit status: 1"), "{text}");
        }
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn churn_does_to_the_lab_what_its_log_says() {
    let (lab, stand_in) = lab(6);
    let balancer = Balancer::start(&lab, BalancerSpec::new(stand_in.program(), 4)).unwrap();
    let spec = ChurnSpec {
        seed: 5,
        gap: Duration::from_millis(5)..Duration::from_millis(30),
        settle: Duration::from_millis(100),
        ..ChurnSpec::default()
    };
    let churn = Churn::start(Arc::clone(&lab), Arc::new(balancer), 4, |_| 0, spec);
    eventually("no crash or too few changes", || {
        churn.changes() > 20 && churn.kinds().contains("crash")
    });
    let report = churn.finish();
    assert_eq!(report.failed, 0, "{:#?}", report.log);
    assert!(report.changes > 20 && report.crashes > 0, "{report:#?}");
    assert_eq!(report.changes + report.crashes, report.log.len() as u64);
    for (backend, place) in lab.backends().iter().zip(&report.places) {
        match place {
            Place::Serving | Place::Draining => assert!(backend.is_running()),
            Place::Dead => assert!(!backend.is_running()),
            Place::Out => {}
        }
    }
    // One change is three commands, one for each service, and is counted once.
    let words = ["added", "removed", "draining", "weight"];
    let commanded = report.log.iter().filter(|record| {
        !record.what.contains("reload") && words.iter().any(|word| record.what.contains(word))
    });
    let commands = stand_in.calls();
    let commands = commands.iter().filter(|call| *call != "reload");
    assert_eq!(commands.count(), commanded.count() * 3);
}

#[test]
fn a_whole_run_ends_with_the_line() {
    let (lab, stand_in) = lab(4);
    let mut spec = DemoSpec::new(stand_in.program(), 3);
    spec.balancer.pool = 3;
    spec.duration = Duration::from_secs(3);
    let completed = vec![(Kind::Short, 50)];
    spec.goals = Goals { changes: 1, open: 299, completed, ..Goals::default() };
    spec.limit = PATIENCE;
    spec.show = weir_lab::view::Show::Lines;
    spec.traffic.connections = 300;
    spec.traffic.life = Duration::from_millis(500)..Duration::from_secs(5);
    // Everything goes to one backend, which therefore must not be killed.
    spec.churn.kills = false;
    let balancer = Balancer::start(&lab, spec.balancer.clone()).unwrap();
    let report = run_in(&lab, Arc::new(balancer), &spec).unwrap();
    assert!(report.held(), "{}", report.table());
    let line = report.line();
    let numbers: Vec<u64> =
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    assert!(line.starts_with("demo: ") && line.ends_with(" 0 inevitable, 0 broken"));
    assert!(numbers[0] > 300 && numbers[1] > 0, "{line}");
    assert!(report.table().contains("keepalive"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["traffic"]["broken"], 0);
    assert_eq!(json["churn"]["changes"], numbers[1]);
}
