//! The run directory is cleared away under a running balancer: what a restart goes on from is written anew, and the
//! next start knows all connections.

mod common;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use weir_lab::Balancer;

fn weight(balancer: &Balancer) -> Value {
    let status = balancer.status().unwrap();
    common::backend(common::service(&status, "web4"), "b1")["weight"].clone()
}

fn clears_away(method: &str, state_dir: bool) {
    let _alone = common::alone();
    let lab = common::lab(3);
    let state = lab.directory().join("state");
    let mut lines = "look_every = \"1s\"\n".to_owned();
    if state_dir {
        lines += &format!("state_dir = {:?}\n", state.to_str().unwrap());
    }
    let balancer = common::start_spec(
        &lab,
        weir_lab::BalancerSpec {
            method: method.into(),
            balancer_lines: lines,
            ..weir_lab::BalancerSpec::new(common::WEIR, 3)
        },
    );
    let mut held = common::hold_both(&lab, 60);
    common::command(&balancer, "backend weight web4 b1 5");
    common::command(&balancer, "drain self");
    let changes = balancer.status().unwrap()["change"].clone();
    let before: Vec<_> = fs::read_dir(balancer.run_dir()).unwrap().flatten().collect();
    let states = before.iter().any(|one| one.file_name() == "states-web4.log");
    // At once, as the files are made anew meanwhile.
    let aside = lab.directory().join("aside");
    fs::rename(balancer.run_dir(), &aside).unwrap();
    fs::remove_dir_all(&aside).unwrap();
    if state_dir {
        fs::remove_dir_all(&state).unwrap();
    }
    for file in ["runtime.json", "lock", "weir.sock", "drained"] {
        common::eventually(file, || balancer.run_dir().join(file).exists());
    }
    if states {
        common::eventually("states", || balancer.run_dir().join("states-web4.log").exists());
    }
    common::eventually("it is said", || {
        common::log(&balancer).contains("what a restart goes on from is written anew")
    });
    held.extend(common::hold_both(&lab, 20));
    common::kill_and_launch(&lab, &balancer, &mut held, "after a restart");
    let status = balancer.status().unwrap();
    assert_eq!(status["resumed"], true);
    assert_eq!(weight(&balancer), 5);
    assert_eq!(status["change"], changes, "numbers of changes go on");
    // Who does not know its connections breaks them here.
    for change in ["backend drain web4 b0", "backend drain web6 b1"] {
        common::command(&balancer, change);
        common::assert_unbroken(&mut held, change, &balancer);
    }
}

#[test]
fn concury_writes_anew_what_was_cleared_away() {
    clears_away("concury", false);
}

#[test]
fn tracked_writes_anew_what_was_cleared_away() {
    clears_away("tracked", true);
}

/// What stands where others may write, or is somebody else's, is not gone on from; and what is spoilt while weir runs is
/// written anew.
#[test]
fn nothing_of_somebody_elses_is_gone_on_from() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start_spec(
        &lab,
        weir_lab::BalancerSpec {
            balancer_lines: "look_every = \"1s\"\n".into(),
            ..weir_lab::BalancerSpec::new(common::WEIR, 3)
        },
    );
    common::command(&balancer, "backend weight web4 b1 5");
    let (run_dir, memory) = (balancer.run_dir(), balancer.run_dir().join("runtime.json"));
    let aside = lab.directory().join("aside.json");
    for link in [false, true] {
        match link {
            false => fs::write(&memory, "").unwrap(),
            true => {
                fs::copy(&memory, &aside).unwrap();
                let planted = run_dir.join("planted");
                symlink(&aside, &planted).unwrap();
                fs::rename(&planted, &memory).unwrap();
            }
        }
        common::eventually("it is written anew", || {
            fs::symlink_metadata(&memory).is_ok_and(|about| about.is_file() && about.len() > 0)
        });
    }
    let refused = |words: &str| {
        let said = format!("{:?}", balancer.launch().unwrap_err());
        assert!(said.contains(words), "{words}: {said}");
        balancer.kill();
    };
    balancer.kill();
    fs::set_permissions(run_dir, fs::Permissions::from_mode(0o777)).unwrap();
    refused("chmod go-w");
    fs::set_permissions(run_dir, fs::Permissions::from_mode(0o755)).unwrap();
    chown(run_dir, Some(65_534), None).unwrap();
    refused("cannot be used: it belongs to the user 65534");
    chown(run_dir, Some(0), None).unwrap();
    let moved = lab.directory().join("moved");
    fs::rename(run_dir, &moved).unwrap();
    symlink(&moved, run_dir).unwrap();
    refused("symbolic link");
    fs::remove_file(run_dir).unwrap();
    fs::rename(&moved, run_dir).unwrap();
    chown(&memory, Some(65_534), None).unwrap();
    refused("runtime.json: it belongs to the user 65534");
    chown(&memory, Some(0), None).unwrap();
    balancer.launch().unwrap();
    assert_eq!(weight(&balancer), 5);
}
