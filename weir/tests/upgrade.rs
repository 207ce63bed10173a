//! Another version takes the place of the one that runs, under traffic, and goes again: no connection
//! breaks, and what a version cannot read it refuses before it touches anything.
//!
//! `WEIR_BEFORE` is the program of the version before, and `WEIR_AFTER` that of the one after, as
//! `make upgrade-test` gives them; without them both are this one. `WEIR_METHODS` names the methods that are
//! tried (`concury`). A fleet of three is upgraded one balancer after the other. With
//! `WEIR_EXPECT=refused` the version after must not go on from what is there, and connections must not notice.

#[path = "../../crates/dataplane/tests/world/another.rs"]
mod another;
mod common;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use common::{Held, PATIENCE, WEIR};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde_json::{Map, Value, json};
use weir_dataplane::{ConvertStep, KernelPlane, Limits, other};
use weir_lab::topology::Topology;
use weir_lab::{AgentSpec, Balancer, BalancerSpec, Fleet, Lab, LabSpec, PoolControl};

/// Backends of the pool; the lab has one more.
const POOL: usize = 4;
/// What a version says of what it cannot read: of memory, and of files.
const REFUSALS: [&str; 3] =
    ["made by another version of weir", "another version of weir may have", "and this weir reads"];

fn program(variable: &str) -> PathBuf {
    env::var_os(variable).map_or_else(|| WEIR.into(), PathBuf::from)
}

/// Puts a program in the place of the one that is installed, as packages do: one that runs stays what it is.
fn install(installed: &Path, program: &Path) {
    let next = installed.with_extension("next");
    symlink(program, &next).unwrap();
    fs::rename(&next, installed).unwrap();
}

/// As the service manager does at a restart.
fn stop(balancer: &Balancer, when: &str) {
    let status = balancer.stop(PATIENCE);
    assert_eq!(status.as_deref(), Some("exit status: 0"), "{when}: {}", tail(balancer));
}

fn tail(balancer: &Balancer) -> String {
    common::log_tail(balancer, 20)
}

/// Changes of the pool that move as much as they can, in the file, too: the first time a backend comes, which
/// stays. Tables are built of what is known of connections: what was lost on the way shows here.
fn change_pool(balancer: &Balancer, held: &mut [Held], round: u32) {
    let mut unbroken = |what: &str| {
        common::assert_unbroken(held, &format!("round {round}, {what}"), balancer);
    };
    balancer.drain(1).unwrap();
    balancer.set_weight(3, 2 + round).unwrap();
    unbroken("a drain and a weight");
    balancer.undrain(1).unwrap();
    match round {
        0 => balancer.add(POOL, 3).unwrap(),
        _ => balancer.set_weight(POOL, 3 + round).unwrap(),
    }
    unbroken("the end of a drain, and another weight");
}

/// One way: the program is replaced and the process is restarted, with connections that begin while none runs.
/// Returns why the program did not start, if it did not.
fn turn(
    lab: &Lab,
    balancer: &Balancer,
    held: &mut Vec<Held>,
    (installed, program): (&Path, &Path),
    (when, killed): (&str, bool),
) -> Option<String> {
    let before = balancer.status().unwrap()["pid"].clone();
    install(installed, program);
    match killed {
        true => balancer.kill(),
        false => stop(balancer, when),
    }
    held.extend(common::hold_both(lab, 20));
    common::assert_unbroken(held, &format!("{when}: no process runs"), balancer);
    let started = balancer.launch();
    common::assert_unbroken(held, when, balancer);
    held.extend(common::hold_both(lab, 20));
    if let Err(error) = started {
        balancer.kill();
        return Some(error.to_string());
    }
    let now = balancer.status().unwrap();
    assert_eq!(now["resumed"], true, "{when}");
    assert_ne!(now["pid"], before, "{when}");
    None
}

fn there_and_back(method: &str, before: &Path, after: &Path) {
    let _alone = common::alone();
    let topology = match method.starts_with("cheetah") {
        true => Topology::Inline,
        false => Topology::L2,
    };
    let lab = common::lab_of(LabSpec { backends: POOL + 1, topology, ..LabSpec::default() });
    let installed = lab.directory().join("installed-weir");
    install(&installed, before);
    let spec = BalancerSpec {
        method: method.into(),
        udp_method: Some("tracked".into()),
        ..BalancerSpec::new(&installed, POOL)
    };
    let balancer = common::start_spec(&lab, spec);
    let traffic = common::mixed_traffic(&lab, 400);
    let mut held = common::hold_both(&lab, 200);
    change_pool(&balancer, &mut held, 0);
    if env::var("WEIR_EXPECT").is_ok_and(|expected| expected == "refused") {
        let way = (&*installed, after);
        let why = turn(&lab, &balancer, &mut held, way, ("the new version", false));
        let why = why.unwrap_or_else(|| panic!("{method}: the new version has started"));
        assert!(REFUSALS.iter().any(|words| why.contains(words)), "{why}");
        install(&installed, before);
        balancer.launch().unwrap();
        assert_eq!(balancer.status().unwrap()["resumed"], true);
        change_pool(&balancer, &mut held, 1);
        println!("{method}: refused, and the old version goes on:\n{why}");
    } else {
        let turns = [
            (after, "the new version", false),
            (before, "the old version again", false),
            (after, "the new version, after SIGKILL", true),
            (before, "back after SIGKILL", true),
        ];
        for ((to, when, killed), round) in turns.into_iter().zip(1..) {
            let refused = turn(&lab, &balancer, &mut held, (&installed, to), (when, killed));
            assert_eq!(refused, None, "{method}: {when}");
            change_pool(&balancer, &mut held, round);
        }
        println!("{method}: there and back, twice");
    }
    common::assert_unbroken(&mut held, "at the end", &balancer);
    println!("{method}: {} connections held, 0 broken", held.len());
    common::assert_none_broke(traffic);
}

#[test]
fn a_version_takes_the_place_of_another_and_goes_again() {
    let methods = env::var("WEIR_METHODS").unwrap_or_else(|_| "concury".into());
    let (before, after) = (program("WEIR_BEFORE"), program("WEIR_AFTER"));
    for method in methods.split(',') {
        there_and_back(method, &before, &after);
    }
}

/// Methods whose connections may come to any balancer of a fleet at any time.
const IN_FLEETS: [&str; 3] = ["concury", "residue", "cheetah"];
/// Balancers of the fleet.
const MEMBERS: usize = 3;

/// All balancers of a fleet get another program, one after the other, while connections change between them, and
/// begin; and the one before again. Agents stay as they are, of the version before.
fn in_turn(method: &str, before: &Path, after: &Path) {
    let _alone = common::alone();
    let by_cookies = method == "cheetah";
    let agent = if by_cookies { AgentSpec::new(before) } else { AgentSpec::telling(before) };
    let lab = common::lab_of(LabSpec {
        backends: POOL,
        topology: Topology::Fleet,
        balancers: MEMBERS,
        agent: Some(agent),
        ..LabSpec::default()
    });
    let installed = lab.directory().join("installed-weir");
    install(&installed, before);
    let lines = if by_cookies { "answers = \"backend\"" } else { "states = \"agents\"" };
    let spec = BalancerSpec {
        method: method.into(),
        tcp_lines: lines.into(),
        udp_method: Some("jet".into()),
        // Nobody has room to remember who went where; the balancers that count states have their own.
        balancer_lines: "[limits]\ntracked_flows = 16".into(),
        ..BalancerSpec::new(&installed, POOL)
    };
    let fleet = Fleet::start(&lab, &spec, common::seed()).expect("a fleet of weir run");
    let all = fleet.balancers();
    common::reach_all(&lab, common::WEB4, POOL);
    let mut held = common::hold_both(&lab, 48);
    let agree = |when: &str| {
        let agreed = fleet.await_agreement(MEMBERS, PATIENCE);
        agreed.unwrap_or_else(|error| panic!("{when}: {error}"));
    };
    for (round, (to, what)) in
        [(after, "the new version"), (before, "the old version again")].into_iter().enumerate()
    {
        install(&installed, to);
        for (at, balancer) in all.iter().enumerate() {
            let when = format!("{method}: {what} on balancer {at}");
            // Every second one as by a crash.
            match (at + round) % 2 {
                0 => stop(balancer, &when),
                _ => balancer.kill(),
            }
            common::assert_unbroken(&mut held, &format!("{when}: no process runs there"), balancer);
            balancer.launch().unwrap_or_else(|error| panic!("{when}: {error}"));
            agree(&when);
            held.extend(common::hold_both(&lab, 12));
            fleet.reshuffle().unwrap();
            common::assert_unbroken(&mut held, &format!("{when}: spread anew"), balancer);
            // A change while versions differ, by the one that is new and by one that is not.
            let other = (at + 1) % MEMBERS;
            common::command(&all[at], &format!("backend weight web4 b2 {}", 2 + at));
            agree(&when);
            common::command(&all[other], "backend drain web4 b1");
            agree(&when);
            fleet.reshuffle().unwrap();
            common::assert_unbroken(&mut held, &format!("{when}: the pool has changed"), balancer);
            common::command(&all[other], "backend undrain web4 b1");
            agree(&when);
        }
    }
    fleet.reshuffle().unwrap();
    common::assert_unbroken(&mut held, "at the end", &all[0]);
    println!("{method} in a fleet: {} connections held, 0 broken", held.len());
}

/// With other programs, as `make upgrade-test` gives them, by each method; without, every balancer gets its own program
/// anew, by the first.
#[test]
fn a_version_takes_the_place_of_another_in_a_fleet() {
    if env::var("WEIR_EXPECT").is_ok_and(|expected| expected == "refused") {
        println!("skipped: what one balancer refuses three refuse");
        return;
    }
    let given = ["WEIR_BEFORE", "WEIR_AFTER"].iter().any(|one| env::var_os(one).is_some());
    let all = if given { IN_FLEETS.join(",") } else { IN_FLEETS[0].to_owned() };
    let methods = env::var("WEIR_METHODS").unwrap_or(all);
    let (before, after) = (program("WEIR_BEFORE"), program("WEIR_AFTER"));
    for method in methods.split(',').filter(|method| IN_FLEETS.contains(method)) {
        in_turn(method, &before, &after);
    }
}

/// A balancer with connections, and a command in force that the file does not have.
fn with_history(lab: &Arc<Lab>) -> (Balancer, Vec<Held>) {
    let balancer = common::start(lab, "concury", POOL);
    let mut held = common::hold_both(lab, 100);
    common::command(&balancer, "backend drain web4 b1");
    common::assert_unbroken(&mut held, "after a drain", &balancer);
    (balancer, held)
}

/// A start goes on with what there is: packets, and what commands have set.
fn resume(balancer: &Balancer, held: &mut [Held]) {
    balancer.launch().unwrap();
    assert_eq!(balancer.status().unwrap()["resumed"], true);
    assert!(is_drained(balancer), "what a command has set is gone");
    change_pool(balancer, held, 0);
}

fn is_drained(balancer: &Balancer) -> bool {
    let status = balancer.status().unwrap();
    common::backend(common::service(&status, "web4"), "b1")["state"] == "draining"
}

fn saved(balancer: &Balancer) -> PathBuf {
    balancer.run_dir().join("runtime.json")
}

/// Changes what a process has written down as it ended.
fn edit(balancer: &Balancer, change: impl FnOnce(&mut Map<String, Value>)) {
    let text = fs::read(saved(balancer)).unwrap();
    let mut document: Value = serde_json::from_slice(&text).unwrap();
    change(document.as_object_mut().unwrap());
    fs::write(saved(balancer), serde_json::to_vec_pretty(&document).unwrap()).unwrap();
}

/// All that a run directory has, but for who holds it.
fn files(run_dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(run_dir).unwrap().map(|entry| entry.unwrap().path());
    let whole = paths.filter(|path| path.is_file() && !path.ends_with("lock"));
    whole.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// A start, and a look beforehand, are refused with words; nothing is written, and no connection notices.
fn assert_refused(lab: &Lab, balancer: &Balancer, held: &mut Vec<Held>, words: &[&str]) {
    let before = files(balancer.run_dir());
    assert_looked_at(lab, balancer, words);
    let refused = balancer.launch().unwrap_err().to_string();
    assert!(words.iter().all(|words| refused.contains(words)), "{refused}");
    balancer.kill();
    assert!(files(balancer.run_dir()) == before, "{words:?}: files have changed");
    held.extend(common::hold_both(lab, 4));
    common::assert_unbroken(held, &format!("refused: {words:?}"), balancer);
}

/// `weir check --upgrade` by the host that the balancer is.
fn look(lab: &Lab, balancer: &Balancer) -> Output {
    let config = balancer.config().to_str().unwrap();
    common::weir_in(lab, &["check", "--upgrade", "--config", config])
}

fn assert_looked_at(lab: &Lab, balancer: &Balancer, words: &[&str]) {
    let output = look(lab, balancer);
    let said = common::stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(words.iter().all(|words| said.contains(words)), "{said}");
}

fn assert_goes_on(lab: &Lab, balancer: &Balancer) {
    let output = look(lab, balancer);
    let said = common::stdout(&output);
    assert!(output.status.success(), "{}", common::stderr(&output));
    assert!(said.contains("this version goes on from what is there"), "{said}");
}

/// An older version has not written what is newer than it. Each of these fields says what was so before it was
/// there, so what commands had set is still told from what the file says.
#[test]
fn what_an_older_version_has_not_written_down_is_as_it_was_then() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: POOL + 1, ..LabSpec::default() });
    let (balancer, mut held) = with_history(&lab);
    let traffic = common::mixed_traffic(&lab, 200);
    stop(&balancer, "before");
    edit(&balancer, |document| {
        for service in document["services"].as_object_mut().unwrap().values_mut() {
            let service = service.as_object_mut().unwrap();
            for newer in ["in_force", "log", "salts", "numbered", "sources"] {
                service.remove(newer);
            }
            let configured = service["configured"].as_object_mut().unwrap();
            for newer in ["states", "forward", "need"] {
                assert!(configured.remove(newer).is_some(), "{newer} is not in {configured:?}");
            }
        }
    });
    held.extend(common::hold_both(&lab, 20));
    resume(&balancer, &mut held);
    common::assert_none_broke(traffic);
}

/// What a newer version has written down and uses is not passed over: who does not know it refuses. What it
/// knows of the file's words is passed over, as the file itself is read again.
#[test]
fn what_a_newer_version_has_written_down_is_refused_or_said_by_the_file() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: POOL + 1, ..LabSpec::default() });
    let (balancer, mut held) = with_history(&lab);
    let traffic = common::mixed_traffic(&lab, 200);
    stop(&balancer, "before");
    let whole = fs::read(saved(&balancer)).unwrap();
    let novelty = |place: &mut Value| {
        place.as_object_mut().unwrap().insert("novelty".into(), json!({ "of": 2 }));
    };
    for place in ["", "/services/web4", "/services/web4/backends/0"] {
        edit(&balancer, |document| {
            let mut all = Value::Object(std::mem::take(document));
            novelty(all.pointer_mut(place).unwrap());
            *document = all.as_object().unwrap().clone();
        });
        let file = saved(&balancer);
        let words = [file.to_str().unwrap(), "another version of weir may have", "`novelty`"];
        assert_refused(&lab, &balancer, &mut held, &words);
        fs::write(saved(&balancer), &whole).unwrap();
    }
    edit(&balancer, |document| novelty(&mut document["services"]["web4"]["configured"]));
    assert_goes_on(&lab, &balancer);
    resume(&balancer, &mut held);
    common::assert_none_broke(traffic);
}

/// Memory of another layout that cannot be taken over, of a newer version or an older one, is left as it is. `weir
/// check --upgrade` says so beforehand, so that nobody stops the process that looks after it.
#[test]
fn memory_of_another_layout_stays_with_the_version_that_made_it() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: POOL + 1, ..LabSpec::default() });
    let (balancer, mut held) = with_history(&lab);
    let traffic = common::mixed_traffic(&lab, 200);
    assert_goes_on(&lab, &balancer);
    let stamp = MapHandle::from_pinned_path(balancer.pins().join("layout")).unwrap();
    let text = MapHandle::from_pinned_path(balancer.pins().join("layout-text")).unwrap();
    let get = |map: &MapHandle| map.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
    let put = |map: &MapHandle, value: &[u8]| map.update(&[0; 4], value, MapFlags::ANY).unwrap();
    let (own, described) = (get(&stamp), get(&text));
    // Another layout, with a number that is not known here; and tables of a method that is not: eight bytes, and two
    // for each method.
    for (at, why) in [(0, "is not known here"), (8 + 2 * 200, "its tables of method 200")] {
        let words = ["made by another version of weir", "goes on forwarding", "weir unload", why];
        let (mut other, mut strange) = (own.clone(), described.clone());
        other[at] ^= 1;
        strange[0] ^= 1;
        put(&stamp, &other);
        put(&text, &strange);
        // While the version that made it runs, it goes on.
        assert_looked_at(&lab, &balancer, &words);
        common::command(&balancer, &format!("backend weight web6 b2 {}", 3 + at));
        common::assert_unbroken(&mut held, "looked at", &balancer);
        // It writes the stamp itself when a service gets a method that none has had.
        put(&stamp, &other);
        stop(&balancer, "before");
        assert_refused(&lab, &balancer, &mut held, &words);
        put(&stamp, &own);
        put(&text, &described);
        balancer.launch().unwrap();
        assert_eq!(balancer.status().unwrap()["resumed"], true);
        assert!(is_drained(&balancer), "what a command has set is gone");
    }
    change_pool(&balancer, &mut held, 0);
    common::assert_none_broke(traffic);
}

/// The program of a version whose structures are others than here, and what its memory is made of.
fn another_version() -> (Vec<u8>, String) {
    let mut sources = other::sources();
    another::change(&mut sources);
    let object = other::build(&sources, "upgrade").unwrap_or_else(|why| panic!("{why}"));
    let described = other::describe(&object, "described");
    (object, described)
}

/// A version takes memory over that one with other structures has made, under traffic, and no connection breaks: those
/// of the connection table, those that are pending, and those that begin between both processes, either. It may be
/// killed while it does so.
#[test]
fn memory_of_another_layout_is_taken_over_under_traffic() {
    let _alone = common::alone();
    let (program, described) = another_version();
    for method in ["concury", "tracked"] {
        let lab = common::lab_of(LabSpec { backends: POOL + 1, ..LabSpec::default() });
        let spec = BalancerSpec {
            method: method.into(),
            udp_method: Some("tracked".into()),
            ..BalancerSpec::new(common::WEIR, POOL)
        };
        let balancer = common::start_spec(&lab, spec);
        let traffic = common::mixed_traffic(&lab, 200);
        let mut held = common::hold_both(&lab, 100);
        change_pool(&balancer, &mut held, 0);
        for (round, killed) in [(1, false), (2, true), (3, false)] {
            let when = format!("{method}, round {round}");
            // New flows of its Dcodes are pending.
            balancer.drain(1).unwrap();
            held.extend(common::hold_both(&lab, 20));
            match killed {
                true => balancer.kill(),
                false => stop(&balancer, &when),
            }
            // As if that version had made it.
            let last = killed.then_some(ConvertStep::Fill);
            let limits = Limits::default();
            let pins = balancer.pins();
            let there =
                KernelPlane::convert(&pins, (&program, &described, 0x5eed), &limits, last).unwrap();
            if let Some(there) = &there {
                let maps: Vec<&str> = there.maps.iter().map(String::as_str).collect();
                assert!(maps.contains(&"connections") && maps.contains(&"pending"), "{maps:?}");
                println!("{when}: {} frames were held for {:?}", there.frames, there.held);
            }
            assert_eq!(there.is_none(), killed, "{when}");
            held.extend(common::hold_both(&lab, 20));
            common::assert_unbroken(&mut held, &format!("{when}: the other program"), &balancer);
            assert_goes_on(&lab, &balancer);
            balancer.launch().unwrap();
            assert_eq!(balancer.status().unwrap()["resumed"], true, "{when}");
            common::eventually("what was set is there", || is_drained(&balancer));
            held.extend(common::hold_both(&lab, 20));
            balancer.undrain(1).unwrap();
            change_pool(&balancer, &mut held, round);
        }
        common::assert_unbroken(&mut held, "at the end", &balancer);
        println!("{method}: {} connections held, 0 broken", held.len());
        common::assert_none_broke(traffic);
    }
}
