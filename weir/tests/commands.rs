//! What an operator may ask for by mistake: it is refused with words that help and an exit status
//! that a script can tell, and nothing changes.

mod common;

use common::{WEB4, stderr, stdout};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use weir_lab::LabSpec;

/// Exit statuses, as `weir --help` tells them.
const FAILED: i32 = 1;
const INVALID: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const BUSY: i32 = 5;

#[test]
fn refusals_have_words_and_statuses() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let mut held = common::hold(&lab, WEB4, 20);
    let before = common::tables(&balancer.status().unwrap());
    let socket = balancer.socket();
    let socket = socket.to_str().unwrap();
    for (line, status, words) in [
        ("backend weight web4 b1 -3", INVALID, "a weight is a whole number from 0 to 65535"),
        ("backend weight web4 b1 65536", INVALID, "a weight is a whole number from 0 to 65535"),
        ("backend add web4 b/9 10.77.2.9", INVALID, "a name has 1 to 64 letters, digits"),
        ("backend remove web4 ..", INVALID, "a name has 1 to 64 letters, digits"),
        ("backend add web4 b9 fd77::9", INVALID, "IPv4, so its backends' must be too"),
        ("backend add web4 b9 224.0.0.1", INVALID, "is not the address of one host"),
        ("backend add web4 b9 10.77.0.100", INVALID, "is the vip of service web4 itself"),
        ("backend add web4 b1 10.77.2.9", CONFLICT, "already has a backend b1"),
        ("backend add web4 b9 10.77.2.1", CONFLICT, "has address 10.77.2.1"),
        ("backend add web4 b9 0.0.0.0", INVALID, "is not the address of one host"),
        ("backend add web4 b9 255.255.255.255", INVALID, "is not the address of one host"),
        ("backend add web4 b9 127.0.0.1", INVALID, "address: 127.0.0.1 is a loopback address"),
        ("backend add web6 b9 ::1", INVALID, "address: ::1 is a loopback address"),
        ("backend add web6 b9 ff02::1", INVALID, "address: ff02::1 is not the address of one host"),
        ("backend add web4 b9 0.1.2.3", INVALID, "is of 0.0.0.0/8, which no host has"),
        ("backend add web4 b9 10.77.255.255", CONFLICT, "is the broadcast address of a network"),
        ("source deny web4 fd00::/8", INVALID, "service web4 has addresses of IPv4 only"),
        ("source allow web6 192.0.2.0/24", INVALID, "service web6 has addresses of IPv6 only"),
        ("explain tcp 10.77.1.1 10.77.0.100:80", INVALID, "such as 192.0.2.7:4711"),
        ("rollback last", INVALID, "`weir rollback` without one goes back to the file before"),
        ("history rollback", INVALID, "`weir rollback` without one goes back to the file before"),
        ("backend drain web4 b7", NOT_FOUND, "service web4 has no backend b7"),
        ("backend drain web9 b1", NOT_FOUND, "there is no service web9"),
        (
            "explain tcp 10.77.1.1:4711 10.77.0.100:80 --connection-id a02a",
            INVALID,
            "connection_id: packets of tcp have none; leave it out, or give the protocol udp",
        ),
    ] {
        let words_of: Vec<&str> = line.split(' ').chain(["--socket", socket]).collect();
        let output = common::weir(&words_of);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}: {}", stdout(&output));
    }
    // Whatever is given for a name is asked for, and makes no path of its own.
    for name in ["a b/../c", "../status?x=1#y", "100%"] {
        let output = common::weir(&["fleet", "forget", name, "--socket", socket]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(NOT_FOUND), "{name}: {said}");
        assert!(said.contains("this balancer is of no fleet"), "{name}: {said}");
    }
    let mut unset = std::process::Command::new(common::WEIR);
    let output = unset.arg("status").env("WEIR_SOCKET", "").output().unwrap();
    assert_eq!(output.status.code(), Some(INVALID), "{}", stderr(&output));
    assert!(stderr(&output).contains("unset WEIR_SOCKET"), "{}", stderr(&output));
    let nobody = common::weir(&["status", "--socket", "/nowhere/weir.sock"]);
    assert_eq!(nobody.status.code(), Some(BUSY), "{}", stderr(&nobody));
    assert_eq!(stderr(&nobody).matches("os error 2").count(), 1, "{}", stderr(&nobody));
    assert_eq!(common::tables(&balancer.status().unwrap()), before);
    common::assert_unbroken(&mut held, "after what was refused", &balancer);
}

/// What was changed is so, whether the output takes the words for it or not.
#[test]
fn a_change_whose_output_is_closed_is_said_to_be_made() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let run = |line: &str, output: &str| {
        let socket = balancer.socket();
        let socket = socket.display();
        let script = format!("exec {} {line} --socket {socket} {output}", common::WEIR);
        std::process::Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    for (weight, more, output, why) in [
        (7, "", ">&-", "it is closed"),
        (8, "--json", ">&-", "it is closed"),
        (9, "", ">/dev/full", "No space left"),
    ] {
        let output = run(&format!("backend weight web4 b1 {weight} {more}"), output);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let done = format!("it is done all the same: backend b1 of web4 has weight {weight}");
        assert!(said.contains(why) && said.contains(&done), "{said}");
        let status = balancer.status().unwrap();
        assert_eq!(common::backend(common::service(&status, "web4"), "b1")["weight"], weight);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.json");
    let output = run(&format!("snapshot --output {}", file.display()), ">&-");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("it is done all the same: ") && file.exists(), "{said}");
    // What only looks has not done it, and what is refused is said to be.
    let looked = run("status", ">&-");
    assert_eq!(looked.status.code(), Some(FAILED), "{}", stderr(&looked));
    assert!(!stderr(&looked).contains("done all the same"), "{}", stderr(&looked));
    let refused = run("backend weight web4 b9 3", ">&-");
    assert_eq!(refused.status.code(), Some(NOT_FOUND), "{}", stderr(&refused));
}

/// A process that is stopped holds its socket: whoever asks is told in time, and nothing is lost.
#[test]
fn whoever_asks_a_stopped_instance_is_told() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let mut held = common::hold(&lab, WEB4, 20);
    let socket = balancer.socket();
    let socket = socket.to_str().unwrap();
    let pid = balancer.status().unwrap()["pid"].as_i64().unwrap();
    let process = Pid::from_raw(i32::try_from(pid).unwrap());
    kill(process, Signal::SIGSTOP).unwrap();
    let said: Vec<(Option<i32>, String)> = ["status", "backend weight web4 b1 7", "trace"]
        .iter()
        .map(|line| {
            let more = ["--patience", "2s", "--socket", socket];
            let words: Vec<&str> = line.split(' ').chain(more).collect();
            let output = common::weir(&words);
            (output.status.code(), stderr(&output))
        })
        .collect();
    common::assert_unbroken(&mut held, "while the process is stopped", &balancer);
    kill(process, Signal::SIGCONT).unwrap();
    let words =
        format!("weir at {socket} (process {pid}, which is stopped) has not answered for 2s");
    for (status, said) in &said {
        assert_eq!(*status, Some(BUSY), "{said}");
        assert!(said.contains(&words), "{said}");
        assert!(said.contains(&format!("kill -CONT {pid} lets it go on")), "{said}");
    }
    assert!(said[1].1.contains("may still be done") && !said[0].1.contains("may still be done"));
    common::eventually("it answers again", || balancer.status().is_ok());
}

/// A socket that somebody clears away is made again; what another process has put in its place stays.
#[test]
fn a_lost_socket_is_made_again() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let socket = balancer.socket();
    let is_there = || balancer.status().is_ok();
    fs::remove_file(&socket).unwrap();
    common::eventually("it is there again", is_there);
    let mode = std::os::unix::fs::PermissionsExt::mode(&socket.metadata().unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o600);
    let aside = lab.directory().join("aside.sock");
    let _others = std::os::unix::net::UnixListener::bind(&aside).unwrap();
    fs::rename(&aside, &socket).unwrap();
    let words = "something else is there now; remove it";
    common::eventually("it is said", || common::log(&balancer).contains(words));
    fs::remove_file(&socket).unwrap();
    common::eventually("it is there once more", is_there);
    fs::remove_dir_all(balancer.run_dir()).unwrap();
    common::eventually("it is there with its folder", is_there);
}

/// Two processes of one name would take each other's interface and maps, whatever their run
/// directories are.
#[test]
fn one_process_runs_an_instance() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let mut held = common::hold(&lab, WEB4, 20);
    let text = fs::read_to_string(balancer.config()).unwrap();
    let line = text.lines().find(|line| line.starts_with("run_dir")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = format!("run_dir = {:?}", directory.path().join("run").to_str().unwrap());
    let config = directory.path().join("weir.toml");
    fs::write(&config, text.replace(line, &elsewhere)).unwrap();
    let config = config.to_str().unwrap();
    for arguments in [["run", "--config", config], ["unload", "--config", config]] {
        let output = common::weir_in(&lab, &arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(BUSY), "{arguments:?}: {said}");
        assert!(said.contains("an instance of this name is running"), "{said}");
        // Another name is no way to unload this one.
        let stop = said.contains("stop it first") && !said.contains("balancer.name");
        assert_eq!(stop, arguments[0] == "unload", "{said}");
    }
    common::assert_unbroken(&mut held, "after a second instance of the name", &balancer);
    // Nor does another name help where the interface is taken: it is said by whom.
    let name = format!("wl{}", lab.id());
    let other = format!("{name}-other");
    let renamed = fs::read_to_string(config).unwrap();
    let line = format!("name = \"{name}\"");
    assert!(renamed.contains(&line), "{renamed}");
    let renamed_file = directory.path().join("other.toml");
    fs::write(&renamed_file, renamed.replacen(&line, &format!("name = \"{other}\""), 1)).unwrap();
    let refused = || {
        let output = common::weir_in(&lab, &["run", "--config", renamed_file.to_str().unwrap()]);
        assert!(!output.status.success(), "{}", stdout(&output));
        stderr(&output)
    };
    let said = refused();
    let words = format!("is that of the instance {name} of weir, which runs; take ");
    assert!(said.contains(&words) && said.contains("other.toml:"), "{said}");
    held.extend(common::hold(&lab, WEB4, 20));
    // Its end lets the name go, and only its own directory.
    balancer.kill();
    let said = refused();
    assert!(said.contains(&format!("`weir unload --name {name}` ends that")), "{said}");
    assert!(!Path::new("/sys/fs/bpf/weir").join(&other).exists());
    let output = common::weir(&["unload", "--name", &other]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(NOT_FOUND), "{said}");
    assert!(said.contains(&format!("no data plane of an instance {other} is loaded")), "{said}");
    assert!(said.contains("there are ") && said.contains(&name), "{said}");
    let output = common::weir(&["unload", "--name", &format!("../weir/{name}")]);
    assert_eq!(output.status.code(), Some(INVALID), "{}", stderr(&output));
    common::assert_unbroken(&mut held, "without a control plane", &balancer);
    let output = common::weir(&["unload", "--name", &name]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!Path::new("/sys/fs/bpf/weir").join(&name).exists());
    // By the file it may be asked for again, as scripts do.
    let output = common::weir(&["unload", "--config", config]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// A start that fails leaves nothing in the kernel.
#[test]
fn a_failed_start_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let name = format!("failed-{}", std::process::id());
    let config = directory.path().join("weir.toml");
    let file = |vip: &str, interface: &str| {
        format!(
            "[balancer]\nname = \"{name}\"\ninterfaces = [\"{interface}\"]\nrun_dir = {:?}\n\
             [[service]]\nname = \"web\"\nvip = \"{vip}\"\nport = 80\n\
             [[service.backend]]\nname = \"b1\"\naddress = \"10.0.0.11\"\n",
            directory.path().join("run").to_str().unwrap()
        )
    };
    fs::write(&config, file("10.0.0.1", "nope0")).unwrap();
    let output = common::weir(&["run", "--config", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(FAILED), "{}", stderr(&output));
    assert!(stderr(&output).contains("interface nope0: not found"), "{}", stderr(&output));
    assert!(!Path::new("/sys/fs/bpf/weir").join(&name).exists(), "its pins are there");
}
