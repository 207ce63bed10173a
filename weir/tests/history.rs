//! A file is put in force whole or not at all, what was changed is remembered, and gone back to.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{WEB4, WEIR, eventually, stderr, stdout};
use serde_json::Value;
use weir_lab::Balancer;

fn history(balancer: &Balancer) -> Value {
    serde_json::from_str(&balancer.command(&["history", "--json"]).unwrap()).unwrap()
}

fn whats(report: &Value) -> Vec<String> {
    let entries = report["entries"].as_array().unwrap();
    entries.iter().map(|one| one["what"].as_str().unwrap().to_owned()).collect()
}

fn idle(balancer: &Balancer) -> String {
    fs::read_to_string(balancer.config())
        .unwrap()
        .lines()
        .find(|line| line.starts_with("idle_timeout"))
        .unwrap_or_default()
        .to_owned()
}

/// Where the history cannot be written, a change is done all the same, and whoever asked is told; its number is given
/// to no other one, even if the control plane dies before there is room.
#[test]
fn what_the_history_lacks_is_told_and_its_number_is_nobody_elses() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let last = || history(&balancer)["entries"].as_array().unwrap().last().unwrap().clone();
    let warnings = || balancer.status().unwrap()["warnings"].to_string();
    common::command(&balancer, "backend weight web4 b0 7");
    let known = last()["number"].as_u64().unwrap();
    // What the list is written to first is in the way.
    let tmp = balancer.run_dir().join("history.json.tmp");
    fs::create_dir(&tmp).unwrap();
    let said = common::command(&balancer, "backend drain web4 b0");
    assert!(
        said.contains("drains") && said.contains("it is done, and the history lacks"),
        "{said}"
    );
    assert!(warnings().contains("done and not in the history"), "{}", warnings());
    let text = fs::read_to_string(balancer.config()).unwrap();
    let other = text.replacen("[[service]]", "[[service]]\nidle_timeout = \"9m\"", 1);
    fs::write(balancer.config(), &other).unwrap();
    let said = common::command(&balancer, "reload");
    assert!(
        said.contains("configuration reloaded") && said.contains("the history lacks"),
        "{said}"
    );
    balancer.kill();
    balancer.launch().unwrap();
    let status = balancer.status().unwrap();
    assert!(status["change"].as_u64().unwrap() >= known + 2, "{}", status["change"]);
    let said = common::command(&balancer, "backend weight web4 b0 9");
    assert!(said.contains("the history lacks it"), "{said}");
    fs::remove_dir(&tmp).unwrap();
    eventually("it is written down", || !warnings().contains("not in the history"));
    balancer.kill();
    balancer.launch().unwrap();
    let entry = last();
    assert!(entry["done"].as_str().unwrap().contains("has weight 9"), "{entry}");
    assert!(entry["number"].as_u64().unwrap() > known + 2, "{entry}");
}

#[test]
fn files_are_applied_whole_and_gone_back_to() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "concury", 3);
    let mut held = common::hold(&lab, WEB4, 60);
    let first = fs::read_to_string(balancer.config()).unwrap();
    fs::set_permissions(balancer.config(), fs::Permissions::from_mode(0o640)).unwrap();
    let report = history(&balancer);
    assert_eq!((whats(&report), report["current"].as_u64()), (vec!["start".to_owned()], Some(1)));
    assert!(report["drift"].is_null(), "{report}");

    // Applied: in force, and the instance's file, with the mode that it had.
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.toml");
    let second = first.replacen("[[service]]", "[[service]]\nidle_timeout = \"9m\"", 1);
    fs::write(&other, &second).unwrap();
    let path = other.to_str().unwrap();
    let said = common::command(&balancer, &format!("apply {path} --expect 1"));
    assert!(said.contains("configuration reloaded") && said.contains("it is change 2"), "{said}");
    assert_eq!(fs::read_to_string(balancer.config()).unwrap(), second);
    let mode = fs::metadata(balancer.config()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o640);
    let report = history(&balancer);
    let entry = &report["entries"][1];
    assert_eq!((&entry["what"], &entry["who"]["uid"]), (&"apply".into(), &0.into()), "{entry}");
    assert_eq!((&entry["who"]["name"], &entry["broken"]), (&"root".into(), &0.into()), "{entry}");
    assert!(entry["connections"].as_u64().unwrap() >= 60, "{entry}");
    assert!(entry["services"].to_string().contains("changed"), "{entry}");
    common::assert_unbroken(&mut held, "after an apply", &balancer);

    // Who has looked at another state than this is refused; so is what breaks connections, what makes no
    // sense, and what cannot be written. Nothing of it changes anything.
    let socket = balancer.socket().to_str().unwrap().to_owned();
    let breaking = first.replacen("[[service]]", "[[service]]\naffinity = \"client\"", 1);
    let (bad, odd) = (folder.path().join("bad.toml"), folder.path().join("odd.toml"));
    fs::write(&bad, &breaking).unwrap();
    fs::write(&odd, "[balancer]\nname = 7\n").unwrap();
    let expects: Vec<Vec<&str>> = [
        "reload",
        "rollback",
        "rollback 1",
        "backend add web4 late 10.77.2.99",
        "backend remove web4 b1",
        "backend drain web4 b1",
        "backend undrain web4 b1",
        "backend weight web4 b1 5",
        "source deny web4 192.0.2.0/24",
        "source allow web4 192.0.2.0/24",
        "source remove web4 192.0.2.0/24",
    ]
    .iter()
    .map(|line| line.split(' ').chain(["--expect", "1"]).collect())
    .collect();
    let expects =
        expects.into_iter().map(|line| (line, 4, "the last change has the number 2, not 1"));
    for (arguments, code, words) in expects.chain([
        (vec!["apply", path, "--expect", "1"], 4, "has the number 2, not 1"),
        (vec!["apply", bad.to_str().unwrap()], 4, "--break-connections does it all the same"),
        (vec!["apply", odd.to_str().unwrap()], 1, "odd.toml:2: "),
        (vec!["apply", "/nowhere.toml"], 1, "cannot read /nowhere.toml"),
        (vec!["rollback", "77"], 3, "no change 77 is remembered; there are 1, 2"),
    ]) {
        let output = common::weir(&[&arguments[..], &["--socket", &socket]].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
    }
    assert_eq!(fs::read_to_string(balancer.config()).unwrap(), second);
    assert_eq!(history(&balancer)["entries"], report["entries"]);
    let beside: Vec<_> = fs::read_dir(balancer.config().parent().unwrap())
        .unwrap()
        .filter(|one| one.as_ref().unwrap().file_name().to_string_lossy().contains("weir-new"))
        .collect();
    assert!(beside.is_empty(), "{beside:?}");

    // Commands are remembered, and are drift.
    common::command(&balancer, "backend weight web4 b1 5 --expect 2");
    let report = history(&balancer);
    // And what became of those connections that were known by then.
    let done = report["entries"][2]["done"].as_str().unwrap();
    assert!(done.starts_with("backend b1 of web4 has weight 5"), "{done}");
    let drift = report["drift"].as_str().unwrap();
    assert!(drift.contains("commands have changed it") && drift.contains("web4"), "{drift}");

    // Back, to before, and with it what the command has changed; and there again.
    let said = common::command(&balancer, "rollback --expect 3");
    assert!(said.contains("back to change 1") && said.contains("it is change 4"), "{said}");
    assert_eq!(fs::read_to_string(balancer.config()).unwrap(), first);
    let report = history(&balancer);
    assert!(report["drift"].is_null() && report["current"] == 4, "{report}");
    let status = balancer.status().unwrap();
    assert_eq!(common::backend(common::service(&status, "web4"), "b1")["weight"], 1);
    common::command(&balancer, "rollback");
    assert_eq!(idle(&balancer), "idle_timeout = \"9m\"");
    common::command(&balancer, "rollback 1");
    assert_eq!(fs::read_to_string(balancer.config()).unwrap(), first);
    assert_eq!(balancer.command(&["history", "2"]).unwrap(), second);

    // A file that was edited is drift until it is reloaded.
    fs::write(balancer.config(), &second).unwrap();
    let drift = history(&balancer)["drift"].as_str().unwrap().to_owned();
    assert!(drift.contains("the file was edited"), "{drift}");
    balancer.hang_up();
    eventually("the reload is remembered", || {
        whats(&history(&balancer)).last().unwrap() == "reload"
    });
    let report = history(&balancer);
    let last = report["entries"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["who"]["name"], "SIGHUP", "{last}");
    assert!(report["drift"].is_null(), "{report}");

    // What changes nothing is no change.
    let last = last["number"].as_u64().unwrap();
    common::command(&balancer, &format!("reload --expect {last}"));
    common::command(&balancer, &format!("apply {}", other.display()));
    assert_eq!(history(&balancer)["entries"], report["entries"]);

    // A process that is killed takes none of it along, and a start with the same file is no change.
    balancer.kill();
    balancer.launch().unwrap();
    assert_eq!(history(&balancer)["entries"], report["entries"]);
    common::command(&balancer, "rollback");
    assert_eq!(fs::read_to_string(balancer.config()).unwrap(), first);
    balancer.kill();
    fs::write(balancer.config(), &second).unwrap();
    balancer.launch().unwrap();
    assert_eq!(whats(&history(&balancer)).last().unwrap(), "start");
    // What was edited and never in force is kept beside the file that takes its place.
    let edit = format!("{first}# my own words\n");
    fs::write(balancer.config(), &edit).unwrap();
    let said = common::command(&balancer, &format!("apply {path}"));
    let beside = format!("{}.edited", balancer.config().display());
    assert!(said.contains(&beside), "{said}");
    assert_eq!(fs::read_to_string(&beside).unwrap(), edit);
    // So is what was edited after that, and neither is lost by the other.
    let more = format!("{first}# my last words\n");
    fs::write(balancer.config(), &more).unwrap();
    let said = common::command(&balancer, &format!("apply {path}"));
    assert!(said.contains(&format!("{beside}.1")), "{said}");
    assert_eq!(fs::read_to_string(format!("{beside}.1")).unwrap(), more);
    assert_eq!(fs::read_to_string(&beside).unwrap(), edit);
    // So is what no weir would read: its letters are another program's.
    let strange = [first.as_bytes(), b"# caf\xe9\n"].concat();
    fs::write(balancer.config(), &strange).unwrap();
    let said = common::command(&balancer, &format!("apply {path}"));
    assert!(said.contains(&format!("{beside}.2")), "{said}");
    assert_eq!(fs::read(format!("{beside}.2")).unwrap(), strange);
    // What is no file is in the way, and stays.
    fs::remove_file(balancer.config()).unwrap();
    fs::create_dir(balancer.config()).unwrap();
    let said = common::try_command(&balancer, &format!("apply {path}")).unwrap_err();
    assert!(said.contains("is no file") && said.contains("nothing has changed"), "{said}");
    // With nothing in it, and nothing beside it.
    let waiting = format!("{}.weir-new", balancer.config().display());
    assert!(!fs::exists(waiting).unwrap());
    // Nor is one put in force.
    let said = common::try_command(&balancer, &format!("apply {}", folder.path().display()));
    assert!(said.unwrap_err().contains("is a directory"));
    fs::remove_dir(balancer.config()).unwrap();
    fs::write(balancer.config(), &first).unwrap();
    // A file that somebody has removed is there again, for its owner only.
    fs::remove_file(balancer.config()).unwrap();
    common::command(&balancer, "rollback");
    assert_eq!(fs::read_to_string(balancer.config()).unwrap(), first);
    let mode = fs::metadata(balancer.config()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let text = balancer.command(&["history"]).unwrap();
    for words in ["rollback", "SIGHUP", "root (0)", "the instance is as "] {
        assert!(text.contains(words), "{words}: {text}");
    }
    common::assert_unbroken(&mut held, "at the end", &balancer);
}

/// What is said twice is one change, and the second answer says that it was so.
#[test]
fn a_drain_that_is_asked_for_twice_is_one_change() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let count = || whats(&history(&balancer)).len();
    let before = count();
    for (line, words, more) in [
        ("undrain self", "this balancer was not drained", 0),
        ("drain self", "this balancer is drained;", 1),
        ("drain self", "this balancer is drained already;", 1),
        ("undrain self", "this balancer is not drained any more", 2),
        ("undrain self", "this balancer was not drained", 2),
    ] {
        let said = common::command(&balancer, line);
        assert!(said.contains(words), "{line}: {said}");
        assert_eq!(count(), before + more, "{line}: {said}");
    }
}

/// A backend that goes with an applied file: what it held is what the history says.
#[test]
fn what_a_change_broke_is_remembered_and_a_pipe_will_do() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let mut held = common::hold(&lab, WEB4, 60);
    let first = fs::read_to_string(balancer.config()).unwrap();
    let at = common::spread(&held)["b1"];
    let known = || {
        let status = balancer.status().unwrap();
        common::service(&status, "web4")["states"].as_u64().unwrap() >= 60
    };
    eventually("the connections are known", known);
    let (before, rest) = first.split_once("\n[[service.backend]]\nname = \"b1\"").unwrap();
    let (_, after) = rest.split_once("\n[[service]]").unwrap();
    let without = format!("{before}\n[[service]]{after}");
    let mut apply = Command::new(WEIR)
        .args(["apply", "-", "--socket", balancer.socket().to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    apply.stdin.take().unwrap().write_all(without.as_bytes()).unwrap();
    let output = apply.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stdout(&output));
    let report = history(&balancer);
    let last = report["entries"].as_array().unwrap().last().unwrap().clone();
    assert!(last["broken"].as_u64().unwrap() >= at, "{at}: {last}");
    let broken = held.iter_mut().filter_map(common::Held::trouble).count() as u64;
    assert_eq!(broken, at, "and no other");
    // The connections are lost; the file is not.
    common::command(&balancer, "rollback");
    common::reach_all(&lab, WEB4, 2);
    // So is what the removal of one by a command broke, and where it was.
    let said = common::command(&balancer, "backend remove web4 b1");
    assert!(said.contains("backend b1 (10.77.2."), "{said}");
    let last = history(&balancer)["entries"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["what"], "command", "{last}");
    assert!(last["broken"].is_u64() && last["connections"].is_u64(), "{last}");
    assert!(last["done"].as_str().unwrap().contains("(10.77.2."), "{last}");
}

/// What a rollback refuses is told by the text that it would go back to: the file has others, and other lines.
#[test]
fn a_rollback_tells_of_the_text_that_was_kept() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let first = fs::read_to_string(balancer.config()).unwrap();
    let second = first.replacen("[[service]]", "[[service]]\nidle_timeout = \"9m\"", 1);
    fs::write(balancer.config(), &second).unwrap();
    common::command(&balancer, "reload");
    let kept = balancer.socket().with_file_name("history").join("1.toml");
    assert_eq!(fs::read_to_string(&kept).unwrap(), first);
    // Of another version, or spoilt; and with what cannot change any more.
    let down = |text: &str| format!("#\n#\n#\n{text}");
    let bad = down(&first).replacen("[[service]]", "[[service]]\nno_such_field = 1", 1);
    let line = bad.lines().position(|line| line.starts_with("no_such_field")).unwrap() + 1;
    let other = down(&first).replacen("name = \"", "name = \"x", 1);
    let named = other.lines().position(|line| line.starts_with("name = \"x")).unwrap() + 1;
    for (text, words) in [
        (bad, format!("{}:{line}: ", kept.display())),
        (other, format!("{}:{named}: [balancer] name cannot change", kept.display())),
    ] {
        fs::write(&kept, text).unwrap();
        for line in ["rollback 1", "rollback"] {
            let refused = common::try_command(&balancer, line).unwrap_err();
            assert!(refused.contains(&words), "{words}: {refused}");
            let own = format!("{}:", balancer.config().display());
            assert!(!refused.contains(&own), "{refused}");
        }
        assert_eq!(fs::read_to_string(balancer.config()).unwrap(), second);
    }
    fs::write(&kept, &first).unwrap();
    common::command(&balancer, "rollback");
    assert_eq!(fs::read_to_string(balancer.config()).unwrap(), first);
}

/// A file that cannot be replaced, because it is mounted by itself, refuses what is applied, and nothing has
/// changed; a process that was killed in the middle leaves nothing beside it.
#[test]
fn a_file_that_cannot_be_replaced_changes_nothing() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let first = fs::read_to_string(balancer.config()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.toml");
    fs::write(&other, first.replacen("[[service]]", "[[service]]\nidle_timeout = \"9m\"", 1))
        .unwrap();
    let mounted = folder.path().join("mounted.toml");
    fs::write(&mounted, &first).unwrap();
    let bind = Command::new("mount").arg("--bind").arg(&mounted).arg(balancer.config()).status();
    assert!(bind.unwrap().success());
    let refused = balancer.command(&["apply", other.to_str().unwrap()]);
    let plan = balancer.command(&["plan"]);
    assert!(Command::new("umount").arg(balancer.config()).status().unwrap().success());
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("nothing has changed"), "{said}");
    assert!(plan.unwrap().contains("nothing would change"));
    assert_eq!(history(&balancer)["entries"].as_array().unwrap().len(), 1);
    let left = balancer.config().with_extension("toml.weir-new");
    assert!(!left.exists());
    fs::write(&left, "left by a process that was killed").unwrap();
    balancer.kill();
    balancer.launch().unwrap();
    assert!(!left.exists());
}

/// What a boot takes away is the kernel's memory and the run directory.
#[test]
fn history_and_audit_log_outlive_a_boot_in_a_state_directory() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let line = format!("state_dir = \"{}\"\n", state.display());
    // A history that is there already goes along.
    let balancer = common::start(&lab, "concury", 2);
    common::command(&balancer, "backend weight web4 b1 5");
    let before = history(&balancer);
    balancer.kill();
    let text = fs::read_to_string(balancer.config()).unwrap();
    let text = text.replacen("[balancer]\n", &format!("[balancer]\n{line}"), 1);
    assert!(text.contains(&line), "{text}");
    fs::write(balancer.config(), &text).unwrap();
    balancer.launch().unwrap();
    let entries = |report: &Value| report["entries"].as_array().unwrap().clone();
    let after = entries(&history(&balancer));
    assert_eq!(after[..2], entries(&before)[..]);
    assert_eq!(after.len(), 3, "the file is another: {after:?}");
    common::command(&balancer, "backend weight web4 b1 7");
    let last = history(&balancer);

    // The last good configuration is found there, too.
    balancer.kill();
    fs::write(balancer.config(), "[balancer").unwrap();
    balancer.launch().unwrap();
    let warnings = balancer.status().unwrap()["warnings"].to_string();
    assert!(warnings.contains("the configuration of change 3 goes on"), "{warnings}");
    fs::write(balancer.config(), &text).unwrap();

    balancer.kill();
    let unloaded = common::weir(&["unload", "--name", balancer.name()]);
    assert!(unloaded.status.success(), "{}", stderr(&unloaded));
    fs::remove_dir_all(balancer.run_dir()).unwrap();
    fs::create_dir(balancer.run_dir()).unwrap();
    balancer.launch().unwrap();
    assert_eq!(entries(&history(&balancer)), entries(&last), "numbers and texts go on");
    assert_eq!(balancer.command(&["history", "3"]).unwrap(), text);
    let log = fs::read_to_string(state.join("audit.log")).unwrap();
    assert!(log.contains("has weight 7"), "{log}");
    assert!(!balancer.run_dir().join("history.json").exists());
    let edited = text.replace(&line, "");
    fs::write(balancer.config(), edited).unwrap();
    let refused = common::try_command(&balancer, "reload").unwrap_err();
    assert!(refused.contains("state_dir cannot change while weir runs"), "{refused}");
}

/// Paths in a configuration go from the folder of the instance's file, wherever its text comes from: a file elsewhere,
/// which has other lists beside it or none, the standard input, or the history.
#[test]
fn paths_go_from_the_folder_of_the_instances_file() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let first = fs::read_to_string(balancer.config()).unwrap();
    let write_list = |folder: &Path, prefixes: &str| {
        fs::create_dir_all(folder.join("lists")).unwrap();
        fs::write(folder.join("lists/abuse.txt"), prefixes).unwrap();
    };
    write_list(balancer.config().parent().unwrap(), "192.0.2.0/24\n");
    let listed = first.replacen("[[service]]", "[[service]]\ndeny_file = \"lists/abuse.txt\"", 1);
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.toml");
    fs::write(&new, &listed).unwrap();
    let weir = |line: &str, text: &str| {
        let mut command = Command::new(WEIR)
            .args(line.split(' '))
            .arg("--socket")
            .arg(balancer.socket())
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Who reads no standard input may be gone.
        let _ = command.stdin.take().unwrap().write_all(text.as_bytes());
        let output = command.wait_with_output().unwrap();
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        stdout(&output)
    };
    let denied = || {
        let status = balancer.status().unwrap();
        let services = status["services"].as_array().unwrap();
        services.iter().filter_map(|one| one["sources"]["deny"].as_u64()).sum::<u64>()
    };
    // Without a list beside the candidate, and with one that is not the instance's.
    for other in [None, Some("192.0.2.0/24\n198.51.100.0/24\n")] {
        if let Some(prefixes) = other {
            write_list(folder.path(), prefixes);
        }
        for (file, text) in [("new.toml", ""), ("-", &*listed)] {
            let plan = weir(&format!("plan {file}"), text);
            assert!(plan.contains("lists"), "{file}: {plan}");
            weir(&format!("apply {file}"), text);
            assert_eq!(denied(), 1, "{file}");
            let plan = weir(&format!("plan {file}"), text);
            assert!(plan.contains("nothing would change"), "{file}: {plan}");
            common::command(&balancer, "rollback 1");
            assert_eq!(denied(), 0, "{file}");
        }
    }
    // What the history has is in its folder, and is the instance's all the same.
    fs::write(balancer.config(), &listed).unwrap();
    common::command(&balancer, "reload");
    let third = listed.replacen("[[service]]", "[[service]]\nidle_timeout = \"9m\"", 1);
    fs::write(balancer.config(), third).unwrap();
    common::command(&balancer, "reload");
    let said = common::command(&balancer, "rollback");
    assert!(said.contains("back to change"), "{said}");
    assert_eq!(fs::read_to_string(balancer.config()).unwrap(), listed);
    assert_eq!(denied(), 1);
    // Refused is what is wrong there, by the name of the file that is there.
    let lists = balancer.config().parent().unwrap().join("lists/abuse.txt");
    fs::remove_file(&lists).unwrap();
    let socket = balancer.socket();
    let apply = ["apply", new.to_str().unwrap(), "--socket", socket.to_str().unwrap()];
    let refused = common::weir(&apply);
    let words = format!("deny_file: {}: ", lists.display());
    assert!(!refused.status.success() && stderr(&refused).contains(&words), "{}", stderr(&refused));
}
