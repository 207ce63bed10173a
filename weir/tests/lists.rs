//! Sources that services take packets from: lists in the file and beside it, changed under connections, by a
//! reload and at a start, around SIGKILLs; 100,000 prefixes; and lists that are refused, which change nothing.

mod common;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{WEB4, WEB6};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use weir_lab::{Balancer, Lab, LabSpec, topology};

const POOL: usize = 3;
/// A packet that is dropped is not answered within this time, nor later.
const WHILE: Duration = Duration::from_millis(400);
/// One that is not dropped is, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// The networks of a client's further addresses; its first one is in another.
const FURTHER: &str = "\"10.77.101.0/24\", \"fd77::65:0/112\"";
const FIRST: &str = "\"10.77.1.0/24\", \"fd77::1:0/112\"";

/// Writes lines into every service of the file, in place of those before.
fn write(balancer: &Balancer, lines: &str) {
    let text = fs::read_to_string(balancer.config()).unwrap();
    let mut services = text.split("method = ");
    let mut new = services.next().unwrap().to_owned();
    for service in services {
        let rest = service.split_once("[service.check]").unwrap().1;
        new += &format!("method = \"concury\"\n{lines}\n\n[service.check]{rest}");
    }
    fs::write(balancer.config(), new).unwrap();
}

fn reload(balancer: &Balancer, lines: &str) {
    write(balancer, lines);
    let done = common::command(balancer, "reload");
    assert!(done.contains("configuration reloaded: 3 services"), "{done}");
    let status = balancer.status().unwrap();
    assert_eq!(status["warnings"].as_array().map(Vec::len), Some(0), "{}", status["warnings"]);
}

/// A client's address: its first one, or another.
fn source(to: SocketAddr, number: usize) -> IpAddr {
    match to {
        SocketAddr::V4(_) => topology::client4(0, number).into(),
        SocketAddr::V6(_) => topology::client6(0, number).into(),
    }
}

fn connect(lab: &Lab, number: usize, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let from = SocketAddr::new(source(to, number), 0);
    let open = || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), limit)?;
        Ok(TcpStream::from(socket))
    };
    lab.clients()[0].enter(open).unwrap()
}

/// Packets dropped because of their source.
fn denied(balancer: &Balancer) -> u64 {
    let status = balancer.status().unwrap();
    let outcomes = status["outcomes"].as_array().unwrap();
    let found = outcomes.iter().find(|one| one["reason"] == "denied_source");
    found.map_or(0, |one| one["dropped"].as_u64().unwrap())
}

/// Who is taken: from the first address, and from another, over both families.
fn assert_taken(lab: &Lab, balancer: &Balancer, [first, further]: [bool; 2], when: &str) {
    for (number, taken) in [(0, first), (1, further)] {
        for to in [WEB4, WEB6] {
            if taken {
                connect(lab, number, to, PATIENCE)
                    .unwrap_or_else(|error| panic!("{when}: {:?}: {error}", source(to, number)));
                continue;
            }
            let before = denied(balancer);
            let error = connect(lab, number, to, WHILE).expect_err(when);
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{when}: {:?}", source(to, number));
            assert!(denied(balancer) > before, "{when}: {:?}: not counted", source(to, number));
        }
    }
}

fn request(stream: &mut TcpStream) {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
}

/// Whether an answer begins within a time.
fn answers(stream: &mut TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).unwrap();
    let mut answer = [0; 512];
    stream.read(&mut answer).is_ok_and(|bytes| answer[..bytes].starts_with(b"HTTP/1.1 200"))
}

fn explained(balancer: &Balancer, number: usize, to: SocketAddr) -> Value {
    let from = SocketAddr::new(source(to, number), 5000);
    let said = balancer.command(&["explain", "tcp", &from.to_string(), &to.to_string(), "--json"]);
    serde_json::from_str(&said.unwrap()).unwrap()
}

fn lab() -> (Arc<Lab>, Balancer) {
    let lab =
        common::lab_of(LabSpec { backends: POOL, addresses_per_client: 3, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", POOL);
    (lab, balancer)
}

#[test]
fn lists_hold_for_connections_too_and_outlive_the_process() {
    let _alone = common::alone();
    let (lab, balancer) = lab();
    assert_taken(&lab, &balancer, [true, true], "without lists");
    let mut held: Vec<TcpStream> =
        [WEB4, WEB6].iter().map(|to| connect(&lab, 1, *to, PATIENCE).unwrap()).collect();
    held.iter_mut().for_each(request);
    assert!(held.iter_mut().all(|stream| answers(stream, PATIENCE)));

    write(&balancer, &format!("deny = [{FURTHER}]"));
    let plan = common::command(&balancer, "plan");
    assert!(plan.contains("lists"), "{plan}");
    assert_taken(&lab, &balancer, [true, true], "planned");
    reload(&balancer, &format!("deny = [{FURTHER}]"));
    assert_taken(&lab, &balancer, [true, false], "denied");
    let before = denied(&balancer);
    held.iter_mut().for_each(request);
    assert!(!held.iter_mut().any(|stream| answers(stream, WHILE)), "its connections go on");
    assert!(denied(&balancer) > before);
    for (to, prefix) in [(WEB4, "denied by 10.77.101.0/24"), (WEB6, "denied by fd77::65:0/112")] {
        let said = explained(&balancer, 1, to);
        assert_eq!(said["source"], prefix);
        assert!(said["backend"].is_null(), "{said}");
        assert!(said["why"].as_str().unwrap().contains("denied_source"), "{said}");
        let said = explained(&balancer, 0, to);
        assert_eq!(said["source"], "allowed: no prefix denies it");
        assert!(said["backend"].is_string(), "{said}");
    }
    let status = balancer.status().unwrap();
    let sources = &status["services"][0]["sources"];
    assert_eq!((&sources["allow"], &sources["deny"]), (&0.into(), &2.into()), "{sources}");
    let shown = common::command(&balancer, "status");
    assert!(shown.contains("sources: 0 prefixes allow, 2 deny; all others are allowed"), "{shown}");

    balancer.kill();
    let error = connect(&lab, 1, WEB4, WHILE).expect_err("nobody changes what packets follow");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    connect(&lab, 0, WEB4, PATIENCE).unwrap();
    balancer.launch().unwrap();
    assert_taken(&lab, &balancer, [true, false], "after SIGKILL");

    reload(&balancer, "");
    assert_taken(&lab, &balancer, [true, true], "without lists again");
    assert!(held.iter_mut().all(|stream| answers(stream, PATIENCE)), "its connections are gone");

    reload(&balancer, &format!("allow = [{FIRST}]"));
    assert_taken(&lab, &balancer, [true, false], "one network is allowed");
    let said = explained(&balancer, 1, WEB4);
    assert_eq!(said["source"], "denied: no prefix allows it");
    reload(
        &balancer,
        &format!("allow = [{FIRST}, {FURTHER}]\ndeny = [\"10.77.1.1\", \"fd77::1:1\"]"),
    );
    assert_taken(&lab, &balancer, [false, true], "all but one of two networks");

    // Changed while nobody looks.
    balancer.kill();
    write(&balancer, &format!("deny = [{FURTHER}]"));
    balancer.launch().unwrap();
    assert_taken(&lab, &balancer, [true, false], "started with other lists");
    balancer.kill();
    write(&balancer, "");
    balancer.launch().unwrap();
    assert_taken(&lab, &balancer, [true, true], "started without lists");
}

#[test]
fn what_commands_list_holds_at_once_outlives_a_kill_and_ends_by_itself() {
    let _alone = common::alone();
    let (lab, balancer) = lab();
    let mut held = connect(&lab, 1, WEB4, PATIENCE).unwrap();
    request(&mut held);
    assert!(answers(&mut held, PATIENCE));
    let said =
        common::command(&balancer, "source deny web4 10.77.101.0/24 --for 1h --reason scanner");
    assert!(said.contains("10.77.101.0/24 is denied by web4 for 1h: scanner"), "{said}");
    common::command(&balancer, "source deny web6 fd77::65:0/112");
    assert_taken(&lab, &balancer, [true, false], "denied by commands");
    request(&mut held);
    assert!(!answers(&mut held, WHILE), "its connection goes on");
    let shown = common::command(&balancer, "status");
    assert!(shown.contains("10.77.101.0/24 dropped (a command of root, for "), "{shown}");

    balancer.kill();
    balancer.launch().unwrap();
    assert_taken(&lab, &balancer, [true, false], "after SIGKILL");
    reload(&balancer, "");
    assert_taken(&lab, &balancer, [true, false], "after a reload");
    let why = explained(&balancer, 1, WEB4)["source"].to_string();
    assert!(why.contains("denied by 10.77.101.0/24 (a command of root"), "{why}");
    let listed = common::command(&balancer, "source list --json");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    assert_eq!((&listed[0]["service"], &listed[0]["reason"]), (&"web4".into(), &"scanner".into()));
    assert!(listed[0]["seconds_left"].as_u64().is_some_and(|left| left <= 3600), "{listed}");
    assert!(listed[1]["seconds_left"].is_null(), "{listed}");

    for (line, words) in [
        ("source deny web4 10.77.101.1/24", "write 10.77.101.0/24"),
        ("source allow web9 10.77.101.0/24", "there is no service web9"),
        ("source remove web4 10.77.1.0/24", "no command has put 10.77.1.0/24"),
        ("source list web9", "there is no service web9"),
    ] {
        let refused = common::try_command(&balancer, line).unwrap_err();
        assert!(refused.contains(words), "{line}: {refused}");
    }
    let audited = common::audited(&balancer);
    let line = audited.iter().find(|line| line["path"] == "/v1/services/web4/sources");
    let body = line.expect("it is in the audit log")["body"].to_string();
    assert!(body.contains("10.77.101.0/24") && body.contains("scanner"), "{body}");
    let history = common::command(&balancer, "history");
    assert!(history.contains("10.77.101.0/24 is denied by web4"), "{history}");

    // An exception of one host; then both are taken back, one by a command and one by the clock.
    common::command(&balancer, "source allow web4 10.77.101.1");
    connect(&lab, 1, WEB4, PATIENCE).unwrap();
    common::command(&balancer, "source remove web4 10.77.101.1");
    connect(&lab, 1, WEB4, WHILE).expect_err("it is denied again");
    common::command(&balancer, "source deny web4 10.77.101.0/24 --for 1s");
    common::command(&balancer, "source remove web6 fd77::65:0/112");
    assert_taken(&lab, &balancer, [true, true], "nothing is listed any more");
    assert!(answers(&mut held, PATIENCE), "its connection is gone");
    common::eventually("the status forgets it, too", || {
        let status = balancer.status().unwrap();
        status["services"].as_array().unwrap().iter().all(|one| one["sources"].is_null())
    });
}

/// Prefixes that no client has, as a file has them.
fn strangers(count: u32) -> String {
    let mut text = String::from("# of nobody here\n\n");
    for n in 0..count {
        let bits = n.wrapping_mul(0x9e37_79b1);
        let [a, b, c, d] = bits.to_be_bytes();
        match n % 4 {
            3 => text += &format!("2001:db8:{:x}:{:x}::/64\n", bits >> 16, bits & 0xffff),
            2 => text += &format!("{}.{b}.{c}.0/24 # a network\n", 128 + a % 64),
            _ => text += &format!("{}.{b}.{c}.{d}\n", 128 + a % 64),
        }
    }
    text
}

#[test]
fn a_hundred_thousand_prefixes_and_files_that_are_refused() {
    let _alone = common::alone();
    let (lab, balancer) = lab();
    let beside = |name: &str| balancer.config().with_file_name(name);
    fs::write(beside("deny.txt"), strangers(100_000)).unwrap();
    // Three services would take three times the room.
    let limits = "[limits]\nlist_prefixes = 400000\n";
    let text = fs::read_to_string(balancer.config()).unwrap();
    let lists = "deny_file = \"deny.txt\"";
    write(&balancer, lists);
    let refused = common::try_command(&balancer, "reload").unwrap_err();
    assert!(refused.contains("set limits.list_prefixes to"), "{refused}");
    assert_taken(&lab, &balancer, [true, true], "refused");
    let (before, after) = text.split_once("\n[[service]]").unwrap();
    fs::write(balancer.config(), format!("{before}\n{limits}\n[[service]]{after}")).unwrap();
    reload(&balancer, lists);
    assert_taken(&lab, &balancer, [true, true], "strangers are denied");
    let status = balancer.status().unwrap();
    let digest = |status: &Value| status["services"][0]["sources"]["digest"].clone();
    let found = status["services"][0]["sources"]["deny"].as_u64().unwrap();
    assert!((90_000..=100_000).contains(&found), "{found}");
    fs::write(beside("deny.txt"), strangers(100_000) + "10.77.101.0/24\nfd77::65:0/112\n").unwrap();
    reload(&balancer, lists);
    assert_taken(&lab, &balancer, [true, false], "one stranger more");
    balancer.kill();
    balancer.launch().unwrap();
    assert_taken(&lab, &balancer, [true, false], "after SIGKILL");
    let in_force = digest(&balancer.status().unwrap());

    // Whatever is refused says where it stands, and changes nothing.
    for (name, text, lines, wanted) in [
        ("bad.txt", "10.0.0.0/8\n10.0.0.1/8\n", "deny_file = \"bad.txt\"", "bad.txt:2: "),
        ("bad.txt", "\n# so\n10.0.0.0/33 # far\n", "deny_file = \"bad.txt\"", "bad.txt:3: "),
        (
            "bad.txt",
            "10.0.0.0/8\n",
            "allow_file = \"bad.txt\"\ndeny = [\"10.0.0.0/8\"]",
            "bad.txt:1: ",
        ),
        ("bad.txt", "\n\n# nobody\n", "allow_file = \"bad.txt\"", "allows no source at all"),
        ("bad.txt", "::ffff:10.0.0.0/104\n", "deny_file = \"bad.txt\"", "write 10.0.0.0/8"),
        ("bad.txt", "", "deny_file = \"none.txt\"", "none.txt: No such file"),
        ("bad.txt", "", "deny_file = \"/dev/zero\"", "/dev/zero: is not a file"),
        ("bad.txt", "", "deny = [\"everybody\"]", "\"everybody\" is no prefix"),
        ("bad.txt", "", "allow = []", "allows no source at all"),
        ("bad.txt", "", "deny = [\"10.0.0.0/8\"]\nallow = [\"10.0.0.0/8\"]", "denies 10.0.0.0/8"),
    ] {
        fs::write(beside(name), text).unwrap();
        write(&balancer, lines);
        let refused = common::try_command(&balancer, "reload").unwrap_err();
        assert!(refused.contains(wanted), "{lines}: {refused}");
        let file = balancer.config().file_name().unwrap().to_str().unwrap().to_owned();
        assert!(
            refused.contains(wanted) && refused.contains(&file) || refused.contains("bad.txt:"),
            "{refused}"
        );
        assert_eq!(digest(&balancer.status().unwrap()), in_force, "{lines}");
    }
    assert_taken(&lab, &balancer, [true, false], "after what was refused");

    // Room comes and goes under a list that is in force.
    fs::write(beside("deny.txt"), "10.77.101.0/24\nfd77::65:0/112\n").unwrap();
    for limit in [50_000, 16, 400_000] {
        let text = fs::read_to_string(balancer.config()).unwrap();
        let text = text.lines().map(|line| match line.starts_with("list_prefixes") {
            true => format!("list_prefixes = {limit}\n"),
            false => format!("{line}\n"),
        });
        fs::write(balancer.config(), text.collect::<String>()).unwrap();
        reload(&balancer, lists);
        assert_taken(&lab, &balancer, [true, false], &format!("room for {limit}"));
    }
}

/// Killed at any moment of a change: packets are judged by the list before or by the new one, and by the new
/// one when the next process is up. A source that both lists take is taken all the time.
#[test]
fn killed_while_lists_change() {
    let _alone = common::alone();
    let (lab, balancer) = lab();
    let mut random = StdRng::seed_from_u64(common::seed());
    let beside = |name: &str| balancer.config().with_file_name(name);
    let lists = ["deny_file = \"deny.txt\"".to_owned(), format!("allow = [{FIRST}, {FURTHER}]")];
    for round in 0..10 {
        let denies = round % 2 == 0;
        let more = if denies { "10.77.101.0/24\nfd77::65:0/112\n" } else { "" };
        fs::write(beside("deny.txt"), strangers(2000 + round) + more).unwrap();
        write(&balancer, &lists[usize::from(round % 4 == 3)]);
        balancer.hang_up();
        let until = Instant::now() + Duration::from_micros(random.random_range(0..80_000));
        while Instant::now() < until {
            connect(&lab, 0, WEB4, PATIENCE).unwrap();
        }
        balancer.kill();
        connect(&lab, 0, WEB6, PATIENCE).unwrap();
        balancer.launch().unwrap();
        assert_taken(&lab, &balancer, [true, !denies], &format!("round {round}"));
        thread::sleep(Duration::from_millis(random.random_range(0..20)));
    }
}

/// Whoever writes a list may spoil it while nobody reads it: a start over a running data plane goes on with what the
/// lists said when they came into force, says so, and takes the file again when it is mended.
#[test]
fn a_spoilt_list_leaves_nobody_without_a_control_plane() {
    let _alone = common::alone();
    let (lab, balancer) = lab();
    let beside = |name: &str| balancer.config().with_file_name(name);
    let kept = || -> Vec<(String, u64)> {
        // The folder goes with the last of them.
        let folder = balancer.run_dir().join("lists");
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let about = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().ino())
        };
        entries.map(about).collect()
    };
    let (denied, allowed) = ("10.77.101.0/24\nfd77::65:0/112\n", "10.77.1.0/24\nfd77::1:0/112\n");
    let (deny, allow) = ("deny_file = \"deny.txt\"", "allow_file = \"allow.txt\"");
    fs::write(beside("deny.txt"), denied).unwrap();
    fs::write(beside("allow.txt"), allowed).unwrap();
    for (lines, name, good, spoilt) in [
        (
            deny,
            "deny.txt",
            denied,
            &[
                (None, "deny.txt: No such file"),
                (Some("10.77.101.0/24\n192.0.2.0/2x\n"), "deny.txt:2: "),
                (Some("\u{0}\u{0}"), "deny.txt:1: "),
            ][..],
        ),
        (allow, "allow.txt", allowed, &[(Some(""), "allows no source at all")][..]),
    ] {
        reload(&balancer, lines);
        assert_taken(&lab, &balancer, [true, false], lines);
        // All services have one list, and it is written once.
        let before = kept();
        assert_eq!(before.len(), 1, "{before:?}");
        reload(&balancer, lines);
        assert_eq!(kept(), before);
        for (text, words) in spoilt {
            balancer.kill();
            match text {
                Some(text) => fs::write(beside(name), text).unwrap(),
                None => fs::remove_file(beside(name)).unwrap(),
            }
            balancer.launch().unwrap();
            let status = balancer.status().unwrap();
            let said = status["warnings"].to_string();
            assert!(said.contains("would be refused") && said.contains(words), "{words}: {said}");
            assert!(common::log(&balancer).contains(words), "{words}");
            assert_taken(&lab, &balancer, [true, false], words);
            // It looks after its backends.
            common::command(&balancer, "backend drain web4 b1");
            common::command(&balancer, "backend drain web4 b1 --undo");
            assert!(balancer.command(&["reload"]).is_err(), "it is still spoilt");
            // Whoever starts again finds the same.
            balancer.kill();
            balancer.launch().unwrap();
            assert_taken(&lab, &balancer, [true, false], words);
            assert_eq!(kept(), before, "{words}");
            fs::write(beside(name), good).unwrap();
            reload(&balancer, lines);
            assert_taken(&lab, &balancer, [true, false], "after the list was mended");
        }
    }

    // What goes on in the place of a file has the lists that it had, whatever theirs say by now.
    let text = fs::read_to_string(balancer.config()).unwrap();
    balancer.kill();
    fs::write(beside("allow.txt"), "10.0.0.0/8\nfd77::/16\n").unwrap();
    fs::write(balancer.config(), format!("{text}\n[[bad")).unwrap();
    balancer.launch().unwrap();
    assert_taken(&lab, &balancer, [true, false], "with a file that is spoilt");
    fs::write(balancer.config(), &text).unwrap();
    reload(&balancer, allow);
    assert_taken(&lab, &balancer, [true, true], "with the file and its list");
    // What somebody clears away is kept again, and what is not needed any more is not.
    let before = kept();
    fs::remove_dir_all(balancer.run_dir().join("lists")).unwrap();
    common::eventually("what the list said is kept again", || {
        balancer.run_dir().join("lists").join(&before[0].0).is_file()
    });
    reload(&balancer, "");
    assert!(kept().is_empty(), "{:?}", kept());

    // A first start has nothing to go on with.
    reload(&balancer, deny);
    let config = balancer.config().display().to_string();
    assert!(balancer.stop(PATIENCE).is_some());
    let unloaded = common::weir_in(&lab, &["unload", "--config", &config]);
    assert!(unloaded.status.success(), "{}", common::stderr(&unloaded));
    fs::remove_file(beside("deny.txt")).unwrap();
    assert!(balancer.launch().is_err());
}
