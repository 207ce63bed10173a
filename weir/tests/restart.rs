//! Promise 5: the control plane may die at any time. Forwarding goes on with the last tables; a
//! restarted one resumes, knows what it knew, and learns what it has missed.

mod common;

use common::{Held, WEB4};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use weir_lab::{Balancer, BalancerSpec, LabSpec};

const POOL: usize = 4;

fn stop(balancer: &Balancer) {
    let status = balancer.stop(common::PATIENCE);
    assert_eq!(status.as_deref(), Some("exit status: 0"), "{}", common::log_tail(balancer, 20));
}

fn generations(status: &Value) -> Vec<u64> {
    common::tables(status).into_iter().map(|(_, generation, _)| generation).collect()
}

/// The state of a backend of every service.
fn states_of(balancer: &Balancer, name: &str, field: &str) -> Vec<Value> {
    let status = balancer.status().unwrap();
    let services = status["services"].as_array().unwrap();
    services.iter().map(|service| common::backend(service, name)[field].clone()).collect()
}

/// Changes of the pool of both web services that move as much as they can. Flows of the backend
/// that is removed are let go before.
fn change_everything(balancer: &Balancer, held: &mut Vec<Held>) {
    held.retain(|one| one.backend != "b0");
    for service in ["web4", "web6"] {
        let address = if service == "web4" { "10.77.2.5" } else { "fd77::2:5" };
        common::command(balancer, &format!("backend add {service} b4 {address} --weight 3"));
        common::command(balancer, &format!("backend drain {service} b1"));
    }
    common::assert_unbroken(held, "after an addition and a drain", balancer);
    for service in ["web4", "web6"] {
        common::command(balancer, &format!("backend remove {service} b0"));
        common::command(balancer, &format!("backend weight {service} b2 5"));
    }
    common::assert_unbroken(held, "after a removal and a new weight", balancer);
    for service in ["web4", "web6"] {
        common::command(balancer, &format!("backend drain {service} b1 --undo"));
        common::command(balancer, &format!("backend weight {service} b3 0"));
    }
    common::assert_unbroken(held, "after the end of a drain and weight 0", balancer);
}

fn resumes(method: &str) {
    let lab = common::lab_of(LabSpec { backends: 5, ..LabSpec::default() });
    let balancer = common::start(&lab, method, POOL);
    let mut held = common::hold_both(&lab, 200);
    let first = balancer.status().unwrap();
    assert_eq!(first["resumed"], false);

    stop(&balancer);
    held.extend(common::hold_both(&lab, 200));
    common::assert_unbroken(&mut held, "without a control plane", &balancer);
    balancer.launch().unwrap();
    common::assert_unbroken(&mut held, "after a restart", &balancer);
    let second = balancer.status().unwrap();
    assert_eq!(second["resumed"], true);
    assert_ne!(second["pid"], first["pid"]);
    for (before, after) in generations(&first).iter().zip(generations(&second)) {
        assert!(after > *before, "generation {after} after {before}");
    }
    if method == "concury" {
        for service in ["web4", "web6"] {
            // One of them is Lab::await_service's, whose end may have been seen.
            let states = common::service(&second, service)["states"].as_u64().unwrap();
            assert!((200..=201).contains(&states), "{service}: {states} states");
        }
        assert!(common::log(&balancer).contains("states restored"));
    }

    // Changes by command, of which the file knows nothing.
    common::command(&balancer, "backend drain web4 b1");
    common::command(&balancer, "backend weight web6 b2 4");
    balancer.kill();
    held.extend(common::hold_both(&lab, 200));
    assert!(held.iter().skip(400).all(|one| one.target != WEB4 || one.backend != "b1"));
    common::assert_unbroken(&mut held, "after SIGKILL", &balancer);
    balancer.launch().unwrap();
    let states = states_of(&balancer, "b1", "state");
    assert_eq!(states, ["up", "draining", "up"], "echo4, web4, web6");
    assert_eq!(states_of(&balancer, "b2", "weight"), [1, 1, 4]);
    assert!(
        generations(&balancer.status().unwrap()).iter().max() > generations(&second).iter().max()
    );
    common::command(&balancer, "backend drain web4 b1 --undo");
    change_everything(&balancer, &mut held);
    assert!(held.len() > 300);
}

#[test]
fn concury_resumes() {
    let _alone = common::alone();
    resumes("concury");
}

#[test]
fn tracked_resumes() {
    let _alone = common::alone();
    resumes("tracked");
}

/// A start over a running data plane whose file somebody has spoilt, in whatever way, goes on with what was in
/// force, says so, and takes the file again when it is mended.
#[test]
fn a_spoilt_file_leaves_nobody_without_a_control_plane() {
    let lab = common::lab(4);
    let balancer = common::start(&lab, "concury", POOL);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let mut held = common::hold(&lab, WEB4, 100);
    common::command(&balancer, "backend weight web4 b0 3");
    type Spoil = fn(&str) -> Option<String>;
    let spoilt: [(Spoil, &str); 9] = [
        (|text| text.split_once("[[service]]").map(|(before, _)| before.to_owned()), "[[service]]"),
        (
            |text| Some(text.replacen("method = \"concury\"", "method = \"concurry\"", 1)),
            "concurry",
        ),
        (|text| Some(text.replacen("[[service]]", "[[service]", 1)), ".toml:"),
        (|text| Some(text[..text.len() / 2].to_owned() + "\nvip = \"10.0"), ".toml:"),
        (|text| Some(text.replacen("interfaces = [\"", "interfaces = [\"no", 1)), "interfaces"),
        (|text| Some(text.replacen("method = \"concury\"", "method = \"jet\"", 1)), "connections"),
        (|_| Some(String::new()), "interfaces"),
        (|_| Some("\u{0}".repeat(5000)), ".toml:1"),
        (|_| None, "No such file"),
    ];
    for (spoil, words) in spoilt {
        balancer.kill();
        match spoil(&good) {
            Some(text) => {
                assert_ne!(text, good);
                fs::write(balancer.config(), text).unwrap();
            }
            None => fs::remove_file(balancer.config()).unwrap(),
        }
        balancer.launch().unwrap();
        let status = balancer.status().unwrap();
        let said = status["warnings"].to_string();
        assert!(said.contains("would be refused") && said.contains(words), "{said}");
        assert_eq!(common::backend(common::service(&status, "web4"), "b0")["weight"], 3);
        common::assert_unbroken(&mut held, "after a start over a spoilt file", &balancer);
        // It looks after its backends.
        common::command(&balancer, "backend drain web4 b1");
        common::command(&balancer, "backend drain web4 b1 --undo");
        assert!(balancer.command(&["reload"]).is_err(), "it is still spoilt");
        fs::write(balancer.config(), &good).unwrap();
        common::command(&balancer, "reload");
        let warnings = balancer.status().unwrap()["warnings"].to_string();
        assert!(!warnings.contains("would be refused"), "{warnings}");
        common::command(&balancer, "backend weight web4 b0 3");
        common::assert_unbroken(&mut held, "after the file was mended", &balancer);
    }
    // Without anything in force the file is what counts.
    stop(&balancer);
    let text = good.replacen("method = \"concury\"", "method = \"concurry\"", 1);
    fs::write(balancer.config(), text).unwrap();
    let unloaded =
        common::weir_in(&lab, &["unload", "--config", &balancer.config().display().to_string()]);
    assert!(!unloaded.status.success(), "the file does not say what to unload");
    fs::write(balancer.config(), &good).unwrap();
    let unloaded =
        common::weir_in(&lab, &["unload", "--config", &balancer.config().display().to_string()]);
    assert!(unloaded.status.success(), "{}", common::stderr(&unloaded));
    let text = good.replacen("method = \"concury\"", "method = \"concurry\"", 1);
    fs::write(balancer.config(), text).unwrap();
    assert!(balancer.launch().is_err());
}

/// The log's disk is full, or its reader is gone: an instance starts, serves and goes on all the same.
#[test]
fn nobody_need_take_the_log() {
    let lab = common::lab(4);
    let balancer = common::start(&lab, "concury", POOL);
    let mut held = common::hold(&lab, WEB4, 100);
    let config = balancer.config().display().to_string();
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    for (log, what) in [(full(), "a full disk"), (closed(), "a pipe that nobody reads")] {
        balancer.kill();
        let mut run = lab.balancer().command(common::WEIR).unwrap();
        run.args(["run", "--config", &config]).env("WEIR_LOG", "debug").stderr(log);
        let mut run = run.spawn().unwrap();
        common::eventually("it answers", || {
            assert_eq!(run.try_wait().unwrap(), None, "{what}");
            balancer.status().is_ok()
        });
        for weight in [3, 5, 2] {
            common::command(&balancer, &format!("backend weight web4 b0 {weight}"));
        }
        common::command(&balancer, "reload");
        common::assert_unbroken(&mut held, what, &balancer);
        assert_eq!(run.try_wait().unwrap(), None, "{what}");
        run.kill().unwrap();
        run.wait().unwrap();
    }
    balancer.launch().unwrap();
    common::assert_unbroken(&mut held, "at the end", &balancer);
}

/// 4,096 bytes of ring hold about a hundred reports: what starts afterwards, while nobody reads
/// them, is noted in the exact map.
#[test]
fn flows_that_no_ring_could_hold_stay_where_they_are() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 5, ..LabSpec::default() });
    let balancer = common::start_spec(
        &lab,
        BalancerSpec {
            balancer_lines: "[limits]\nevent_ring_bytes = 4096\n".into(),
            ..BalancerSpec::new(common::WEIR, POOL)
        },
    );
    let mut held = common::hold_both(&lab, 100);
    balancer.kill();
    held.extend(common::hold_both(&lab, 600));
    balancer.launch().unwrap();
    change_everything(&balancer, &mut held);

    // And once more, while tables lead to draining backends.
    balancer.kill();
    held.extend(common::hold_both(&lab, 400));
    balancer.launch().unwrap();
    common::command(&balancer, "backend weight web4 b3 6");
    common::command(&balancer, "backend weight web6 b3 6");
    common::assert_unbroken(&mut held, "after a second death", &balancer);
    let status = balancer.status().unwrap();
    assert_eq!(status["unrecorded_flows"], 0);
    for service in ["web4", "web6"] {
        let open = held.iter().filter(|one| one.target.is_ipv4() == (service == "web4")).count();
        let states = common::service(&status, service)["states"].as_u64().unwrap();
        assert!(states >= open as u64, "{service}: {states} states, {open} connections");
    }
}

#[test]
fn a_second_instance_with_the_same_run_directory_is_refused() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let mut held = common::hold_both(&lab, 20);
    let before = common::tables(&balancer.status().unwrap());
    let config = balancer.config().to_str().unwrap();
    let output = common::weir_in(&lab, &["run", "--config", config]);
    assert!(!output.status.success());
    let said = common::stderr(&output);
    for word in ["is in use by another weir", "run_dir", "/weir"] {
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(common::tables(&balancer.status().unwrap()), before);
    common::assert_unbroken(&mut held, "after a second `weir run`", &balancer);
    held.extend(common::hold_both(&lab, 20));
}

/// The kernel may let go of a killed process's locks some moments after it has told of its end. A supervisor starts the
/// next one at once.
#[test]
fn a_start_waits_for_the_locks_of_a_process_that_is_ending() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let mut held = common::hold_both(&lab, 20);
    let waits = || common::log(&balancer).matches("as its process may be ending").count();
    for place in [balancer.run_dir().join("lock"), balancer.pins()] {
        // On a machine that is busy the wait may be over before this test has seen it.
        common::eventually("a start that has waited", || {
            balancer.kill();
            let lock = fs::File::open(&place).unwrap();
            common::eventually("nobody has it", || lock.try_lock().is_ok());
            let before = waits();
            std::thread::scope(|scope| {
                let start = scope.spawn(|| balancer.launch().is_ok());
                common::eventually("it waits", || waits() > before);
                drop(lock);
                start.join().unwrap()
            })
        });
        common::assert_unbroken(&mut held, "after a start that has waited", &balancer);
    }
}

/// A data plane whose connections nobody remembers is not taken over unasked.
#[test]
fn a_run_directory_without_a_memory_is_refused() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 3);
    let mut held = common::hold_both(&lab, 40);
    balancer.kill();
    let file = balancer.config().to_str().unwrap().to_owned();
    let text = std::fs::read_to_string(&file).unwrap();
    let other = lab.directory().join("elsewhere");
    let moved: String = text
        .lines()
        .map(|line| match line.starts_with("run_dir") {
            true => format!("run_dir = {other:?}\n"),
            false => format!("{line}\n"),
        })
        .collect();
    std::fs::write(&file, &moved).unwrap();
    let words = ["has nothing of that run", "elsewhere", "--break-connections", "weir unload"];
    // What was in force goes on, where it was.
    balancer.launch().unwrap();
    let said = common::log(&balancer);
    assert!(words.iter().all(|words| said.contains(words)), "{said}");
    let warned = balancer.status().unwrap()["warnings"].to_string();
    assert!(warned.contains("has nothing of that run"), "{warned}");
    common::command(&balancer, "backend drain web4 b1");
    held.extend(common::hold_both(&lab, 10));
    common::assert_unbroken(&mut held, "with its own directory, whatever the file says", &balancer);
    balancer.kill();
    // Where the memory is gone, too, it is refused.
    let (socket, aside) = (balancer.socket().to_owned(), lab.directory().join("aside"));
    let own = socket.parent().unwrap();
    std::fs::rename(own, &aside).unwrap();
    let output = common::weir_in(&lab, &["run", "--config", &file]);
    let said = common::stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(words.iter().all(|words| said.contains(words)), "{said}");
    std::fs::rename(&aside, own).unwrap();
    held.extend(common::hold_both(&lab, 10));
    std::fs::write(&file, &text).unwrap();
    balancer.launch().unwrap();
    common::command(&balancer, "backend drain web4 b0");
    common::assert_unbroken(&mut held, "with its own directory again", &balancer);
    // What is damaged is refused with the whole way to a start, and nobody says that anything goes on.
    balancer.kill();
    let memory = own.join("runtime.json");
    fs::write(&memory, "").unwrap();
    for (code, words) in [(1, "move it away, and, "), (4, "has nothing of that run")] {
        let output = common::weir_in(&lab, &["run", "--config", &file]);
        let said = common::stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words) && said.contains("--break-connections"), "{said}");
        assert!(!said.contains("which was in force, goes on"), "{said}");
        let _ = fs::remove_file(&memory);
    }
    // A name that no socket can have is refused before anything is touched.
    let long = format!("/tmp/{}", "x".repeat(110));
    std::fs::write(&file, text.replacen("run_dir = \"", &format!("run_dir = \"{long}"), 1))
        .unwrap();
    let output = common::weir_in(&lab, &["check", "--config", &file]);
    let said = common::stderr(&output);
    assert!(output.status.code() == Some(1) && said.contains("run_dir"), "{said}");
}

/// In a mount namespace that ends with the process there is nothing that could go on, and it is said.
#[test]
fn who_takes_the_data_plane_along_says_so() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    stop(&balancer);
    let log = common::log(&balancer);
    assert!(
        log.contains("stopping; the data plane goes on") && !log.contains("as long as"),
        "{log}"
    );
    let config = balancer.config().display().to_string();
    let unloaded = common::weir_in(&lab, &["unload", "--config", &config]);
    assert!(unloaded.status.success(), "{}", common::stderr(&unloaded));
    let (mut run, path) = common::started_apart(&lab, &balancer);
    let warned = balancer.status().unwrap()["warnings"].to_string();
    assert!(warned.contains("forwarding ends with the control plane"), "{warned}");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(run.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(run.wait().unwrap().success());
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.contains("stopping; the data plane ends with this process"), "{log}");
}

const PRECIOUS: &str = "precious";

/// What a run with a plane in user space, a service of QUIC, changes by file and by command leaves in its run
/// directory, with the folder of the history.
fn names_in(run_dir: &Path) -> Vec<PathBuf> {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let mut all = inside(run_dir);
    all.extend(inside(&run_dir.join("history")));
    all.sort();
    all
}

/// Has it write whatever it writes, as far as it lets.
fn use_all(balancer: &Balancer, round: usize) {
    let file = balancer.config().display().to_string();
    let text = fs::read_to_string(&file).unwrap();
    // What else the file says is the same.
    let told = |weight: usize| format!("name = \"linked\"\nweight = {weight}\n");
    let (before, after) = (told(round + 1), told(round + 2));
    assert!(text.contains(&before), "{text}");
    fs::write(&file, text.replacen(&before, &after, 1)).unwrap();
    let weight = (round % 7 + 2).to_string();
    for line in [
        "reload".to_owned(),
        format!("backend weight web4 b0 {weight}"),
        "backend drain web4 b1".to_owned(),
        "drain self".to_owned(),
        "undrain self".to_owned(),
        "drain self".to_owned(),
        "backend drain web4 b1 --undo".to_owned(),
        "reload".to_owned(),
    ] {
        // What cannot be written down may be refused: whom a link is in the way of is told so.
        let _ = common::try_command(balancer, &line);
    }
}

/// Whoever can put a link where a run keeps something does not choose what is written into, whose it is or who may
/// read it.
#[test]
fn no_link_in_the_run_directory_is_followed() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, clients: 1, ..LabSpec::default() });
    let linked = "\n[[service]]\nname = \"quic\"\nvip = \"10.77.0.100\"\nprotocol = \"udp\"\nport = 4433\n\
                  [service.check]\nenabled = false\n[service.quic]\n\
                  [[service.quic.config]]\nconfig_id = 0\nserver_id_length = 3\nnonce_length = 9\n\
                  [[service.backend]]\naddress = \"10.77.2.1\"\nname = \"linked\"\nweight = 1\n";
    let spec = BalancerSpec {
        balancer_lines: "plane = \"af-xdp\"\n".into(),
        more_services: linked.into(),
        ..BalancerSpec::new(common::WEIR, 3)
    };
    let balancer = common::start_spec(&lab, spec);
    use_all(&balancer, 0);
    common::user_plane::process(&balancer);
    let run_dir = balancer.run_dir().to_owned();
    let names = names_in(&run_dir);
    let has = |name: &str| names.iter().any(|one| one.ends_with(name));
    let known = [
        "lock",
        "runtime.json",
        "runtime.log",
        "states-web4.log",
        "drained",
        "plane.lock",
        "quic-quic.toml",
        "audit.log",
        "history.json",
        "history",
        "weir.sock",
    ];
    for name in known {
        assert!(has(name), "no {name} in {names:?}");
    }
    // And those that are there only when something has gone wrong, or for a moment.
    let more = [
        "plane.failure",
        "unrecorded.json",
        "announced.json",
        "followed.json",
        "term.json",
        "state_dir",
    ];
    let mut all: Vec<PathBuf> = names.clone();
    all.extend(more.iter().map(|name| run_dir.join(name)));
    let beside = |path: &PathBuf| PathBuf::from(format!("{}.tmp", path.display()));
    let temporary: Vec<PathBuf> = all.iter().map(beside).collect();
    all.extend(temporary);
    let folder = lab.directory().join("targets");
    let (target, aside) = (folder.join("target"), folder.join("aside"));
    fs::create_dir(&folder).unwrap();
    let inside = folder.join("within/7.toml");
    fs::create_dir(folder.join("within")).unwrap();
    let mut round = 1;
    for name in &all {
        // A text that the history has let go meanwhile.
        if name.parent().is_some_and(|parent| !parent.is_dir()) {
            continue;
        }
        let process = common::user_plane::process(&balancer);
        balancer.kill();
        common::user_plane::kill(process);
        common::user_plane::gone(process);
        let leads_to =
            if name.ends_with("history") { folder.join("within") } else { target.clone() };
        for file in [&target, &inside] {
            fs::write(file, PRECIOUS).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o604)).unwrap();
        }
        let was = fs::rename(name, &aside).is_ok();
        symlink(&leads_to, name).unwrap();
        let started = balancer.launch();
        // Where it has not, its file says another weight all the same.
        use_all(&balancer, round);
        round += 1;
        if started.is_err() {
            let said = format!("{started:?}");
            let file = name.file_name().unwrap().to_str().unwrap();
            assert!(said.contains("symbolic link") && said.contains(file), "{name:?}: {said}");
        } else if !name.ends_with("plane.lock") {
            common::user_plane::process(&balancer);
        }
        for file in [&target, &inside] {
            let about = fs::metadata(file).unwrap();
            assert_eq!(fs::read_to_string(file).unwrap(), PRECIOUS, "{name:?}");
            assert_eq!(
                (about.mode() & 0o7777, about.uid(), about.gid()),
                (0o604, 0, 0),
                "{name:?}"
            );
        }
        let within = fs::read_dir(folder.join("within")).unwrap().count();
        assert_eq!(within, 1, "{name:?}: something was put where it leads");
        if fs::symlink_metadata(name).is_ok_and(|about| about.is_symlink()) {
            balancer.kill();
            fs::remove_file(name).unwrap();
            if was {
                fs::rename(&aside, name).unwrap();
            }
        }
        let _ = fs::remove_file(&aside);
        let _ = fs::remove_dir_all(&aside);
        balancer.launch().unwrap_or_else(|error| panic!("without the link {name:?}: {error}"));
    }
    common::reach_all(&lab, WEB4, 3);
    // What it leaves is its owner's alone; a link in a file's place was put aside as it was.
    for name in names_in(&run_dir).iter().filter(|name| !name.ends_with("history")) {
        let about = fs::symlink_metadata(name).unwrap();
        if !about.is_symlink() {
            assert_eq!(about.mode() & 0o7777, 0o600, "{name:?}");
        }
    }
}

/// Changes that were answered, and that somebody has cut off before the next start: it says so, and of how many
/// connections nothing is known. A record that was not written to its end is no reason for a word.
#[test]
fn a_log_of_changes_that_was_cut_off_is_said() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 4, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 3);
    let log = balancer.run_dir().join("runtime.log");
    let cut_to = |length: u64| {
        balancer.kill();
        fs::File::options().write(true).open(&log).unwrap().set_len(length).unwrap();
        balancer.launch().unwrap();
        balancer.status().unwrap()["warnings"].to_string()
    };
    for length in [0, 1] {
        common::command(&balancer, "backend add web4 b3 10.77.2.4");
        let mut held = Vec::new();
        common::eventually("the new one has connections", || {
            held.extend(common::hold(&lab, WEB4, 20));
            held.iter().any(|one| one.backend == "b3")
        });
        common::eventually("they are known", || {
            let status = balancer.status().unwrap();
            common::service(&status, "web4")["states"].as_u64().unwrap() >= held.len() as u64
        });
        let said = cut_to(length);
        for words in ["runtime.log was cut off", "service web4: ", "of which neither"] {
            assert!(said.contains(words), "{length}: {said}");
        }
        assert!(common::log(&balancer).contains("runtime.log was cut off"));
    }
    common::command(&balancer, "backend weight web4 b0 3");
    let whole = fs::metadata(&log).unwrap().len();
    assert_eq!(cut_to(whole - 1), "[]");
}

/// Who was alone and is to join a fleet whose store does not answer takes no service away by which packets go.
#[test]
fn a_store_that_does_not_answer_takes_no_service_away() {
    let _alone = common::alone();
    let lab = common::lab(POOL);
    let balancer = common::start(&lab, "jet", POOL);
    let mut held = common::hold(&lab, WEB4, 20);
    stop(&balancer);
    let alone = fs::read_to_string(balancer.config()).unwrap();
    let store = "[store]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]\nwait = \"1s\"\n";
    fs::write(balancer.config(), format!("{alone}\n{store}")).unwrap();
    let file = balancer.config().display().to_string();
    let output = common::weir_in(&lab, &["run", "--config", &file]);
    let said = common::stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    for words in ["never heard of its fleet", "Nothing has changed", "--break-connections"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let troubles = common::troubles(&mut held);
    assert!(troubles.is_empty(), "{troubles:#?}");
    fs::write(balancer.config(), alone).unwrap();
    balancer.launch().unwrap();
    common::assert_unbroken(&mut held, "alone again", &balancer);
}
