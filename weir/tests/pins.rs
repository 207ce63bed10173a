//! Pins that somebody removes, and a program that somebody detaches, under a running balancer: it attaches and pins
//! again, says what it has found, and connections go on.

mod common;

use common::WEB4;
use libbpf_rs::query::LinkTypeInfo;
use serde_json::Value;
use std::fs;
use std::thread;
use std::time::Duration;
use weir_lab::{Balancer, Lab};

/// What `weir doctor` says of interfaces that have the program, or have it not.
fn attached(lab: &Lab, balancer: &Balancer) -> Vec<Value> {
    let config = balancer.config().display().to_string();
    let output = common::weir_in(lab, &["doctor", "--config", &config, "--json"]);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    findings.into_iter().filter(|one| one["check"] == "attached").collect()
}

fn assert_attached(lab: &Lab, balancer: &Balancer, verdict: &str) {
    let found = attached(lab, balancer);
    assert!(!found.is_empty() && found.iter().all(|one| one["verdict"] == verdict), "{found:#?}");
}

/// The names of all that is pinned: some have a number of the program's, which stays the same while it is held.
fn pinned(balancer: &Balancer) -> Vec<String> {
    let Ok(entries) = fs::read_dir(balancer.pins()) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn pins_that_are_removed_are_made_again() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start_with(&lab, "look_every = \"1s\"\n");
    let mut held = common::hold_both(&lab, 60);
    let before = pinned(&balancer);
    fs::remove_dir_all(balancer.pins()).unwrap();
    common::eventually("its pins are there again", || pinned(&balancer) == before);
    common::eventually("its program is attached again", || {
        attached(&lab, &balancer).iter().all(|one| one["verdict"] == "ok")
    });
    assert_attached(&lab, &balancer, "ok");
    common::assert_unbroken(&mut held, "after its pins were removed", &balancer);
    held.extend(common::hold_both(&lab, 20));
    let log = common::log(&balancer);
    assert!(log.contains("pins were removed from outside"), "{log}");
    assert!(!log.contains("taken off from outside"), "its link is held: {log}");
    assert_eq!(balancer.status().unwrap()["warnings"], serde_json::json!([]));
    // One that runs is still known by its pins, and is gone on from by the next.
    let config = balancer.config().display().to_string();
    let second = common::weir_in(&lab, &["unload", "--config", &config]);
    assert!(!second.status.success(), "{}", common::stdout(&second));
    common::kill_and_launch(&lab, &balancer, &mut held, "after a restart");
    assert_eq!(balancer.status().unwrap()["resumed"], true);
    // A map that is only mapped, the stamp, and a guard.
    for name in ["tables", "layout", "guard-ipv4"] {
        if fs::remove_file(balancer.pins().join(name)).is_ok() {
            common::eventually("the pin is there again", || balancer.pins().join(name).exists());
        }
    }
    common::kill_and_launch(&lab, &balancer, &mut held, "after another restart");
    assert_eq!(balancer.status().unwrap()["resumed"], true);
}

/// Pins that somebody moves with their directory are still this instance's: `weir doctor` says where they are, nobody
/// else may clear them away, and they are moved back.
#[test]
fn pins_that_are_moved_are_moved_back() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start_with(&lab, "look_every = \"1h\"\n");
    let mut held = common::hold_both(&lab, 60);
    let (before, name) = (pinned(&balancer), format!("{}-x", balancer.name()));
    let moved = balancer.pins().with_file_name(&name);
    for round in 0..2 {
        fs::rename(balancer.pins(), &moved).unwrap();
        assert_attached(&lab, &balancer, "fail");
        let found = attached(&lab, &balancer)[0].to_string();
        let said = format!("somebody has moved its pins to {}", moved.display());
        assert!(found.contains(&said) && found.contains("packets are balanced as long"), "{found}");
        common::assert_unbroken(&mut held, "while its pins are elsewhere", &balancer);
        let cleared = common::weir(&["unload", "--name", &name]);
        assert!(common::stderr(&cleared).contains("running"), "{}", common::stderr(&cleared));
        common::command(&balancer, "reload");
        assert!(!moved.exists(), "they are moved back");
        assert_eq!(pinned(&balancer), before);
        assert_attached(&lab, &balancer, "ok");
        let log = common::log(&balancer);
        assert_eq!(log.matches("they are moved back").count(), round + 1, "{log}");
        assert!(!log.contains("pins were removed from outside"), "{log}");
    }
    assert_eq!(balancer.status().unwrap()["warnings"], serde_json::json!([]));
    common::kill_and_launch(&lab, &balancer, &mut held, "after a restart");
    assert_eq!(balancer.status().unwrap()["resumed"], true);
}

#[test]
fn a_program_that_is_detached_is_attached_again() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start_with(&lab, "look_every = \"1s\"\n");
    let mut held = common::hold(&lab, WEB4, 40);
    let pin = balancer.pins().join("link-eth0");
    let off = "the program was taken off from outside";
    for (by, said) in [("bpf_link_detach", off), ("unlink", "pins were removed from outside")] {
        match by {
            "unlink" => fs::remove_file(&pin).unwrap(),
            _ => libbpf_rs::Link::open(&pin).unwrap().detach().unwrap(),
        }
        common::eventually("it is said", || common::log(&balancer).contains(said));
        assert_attached(&lab, &balancer, "ok");
        common::assert_unbroken(&mut held, by, &balancer);
        held.extend(common::hold(&lab, WEB4, 10));
    }
    assert_eq!(balancer.status().unwrap()["warnings"], serde_json::json!([]));
}

/// The process holds its links: before anybody has looked, packets go on, though this host has the service's address and
/// would reset what comes to it.
#[test]
fn without_pins_packets_go_on_while_it_runs() {
    let _alone = common::alone();
    let lab = common::lab(3);
    common::sh(lab.balancer(), &format!("ip addr add {}/32 dev lo", WEB4.ip()));
    let balancer = common::start_with(&lab, "look_every = \"1h\"\n");
    let mut held = common::hold_both(&lab, 60);
    let id =
        |name: &str| libbpf_rs::Link::open(balancer.pins().join(name)).unwrap().info().unwrap().id;
    let ids = || ["link-eth0", "guard-ipv4", "guard-ipv6"].map(id);
    // Memory of another size has other guards, and the same link.
    let text = fs::read_to_string(balancer.config()).unwrap();
    fs::write(balancer.config(), format!("{text}\n[limits]\nbackends = 8192\n")).unwrap();
    common::command(&balancer, "reload");
    let before = ids();
    fs::remove_dir_all(balancer.pins()).unwrap();
    common::assert_unbroken(&mut held, "without pins", &balancer);
    held.extend(common::hold_both(&lab, 20));
    common::command(&balancer, "reload");
    assert_eq!(ids(), before, "other links are there");
    assert_attached(&lab, &balancer, "ok");
    // Links and guards alone; and the program is another one meanwhile.
    for entry in fs::read_dir(balancer.pins()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("link-") || name.starts_with("guard-") {
            fs::remove_file(path).unwrap();
        }
    }
    let socket = balancer.socket().display().to_string();
    let traced = common::weir(&["trace", "--socket", &socket, "--for", "1s", "--json"]);
    assert!(traced.status.success(), "{}", common::stderr(&traced));
    common::assert_unbroken(&mut held, "after a trace", &balancer);
    common::command(&balancer, "reload");
    assert_eq!(ids(), before, "other links are there");
    assert_eq!(balancer.status().unwrap()["warnings"], serde_json::json!([]));
    // A stop pins what would end with the process.
    fs::remove_dir_all(balancer.pins()).unwrap();
    balancer.stop(common::PATIENCE);
    assert_eq!(ids(), before, "other links are there");
    common::assert_unbroken(&mut held, "after a stop", &balancer);
    balancer.launch().unwrap();
    assert_eq!(balancer.status().unwrap()["resumed"], true);
    common::assert_unbroken(&mut held, "after a start", &balancer);
}

/// A guard that is detached is put in place again, though its pin stays: the next time that the program is detached
/// this host answers nothing.
#[test]
fn a_guard_that_is_detached_is_put_in_place_again() {
    let _alone = common::alone();
    let lab = common::lab(3);
    common::sh(lab.balancer(), &format!("ip addr add {}/32 dev lo", WEB4.ip()));
    let balancer = common::start_with(&lab, "look_every = \"1h\"\n");
    let mut held = common::hold(&lab, WEB4, 40);
    let pin = |name: &str| balancer.pins().join(name);
    let times = |what: &str| common::log(&balancer).matches(what).count();
    for round in 1..=2 {
        for guard in ["guard-ipv4", "guard-ipv6"] {
            libbpf_rs::Link::open(pin(guard)).unwrap().detach().unwrap();
        }
        common::command(&balancer, "reload");
        assert_eq!(times("the guard was taken away from outside"), round);
        libbpf_rs::Link::open(pin("link-eth0")).unwrap().detach().unwrap();
        // What they send meanwhile is dropped, and sent again.
        let troubles = thread::scope(|scope| {
            let asked = scope.spawn(|| common::troubles(&mut held));
            thread::sleep(Duration::from_millis(500));
            common::command(&balancer, "reload");
            asked.join().unwrap()
        });
        assert!(troubles.is_empty(), "{troubles:#?}");
        assert_eq!(times("the program was taken off from outside"), round);
    }
    common::command(&balancer, "reload");
    assert_eq!(times("the guard was taken away from outside"), 2, "it is in its place");
    assert_eq!(balancer.status().unwrap()["warnings"], serde_json::json!([]));
}

/// `weir doctor` fails while nobody has looked yet, and a reload looks at once.
#[test]
fn doctor_fails_for_what_was_taken_away_and_a_reload_puts_it_back() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start_with(&lab, "look_every = \"1h\"\n");
    let pin = balancer.pins().join("link-eth0");
    assert_attached(&lab, &balancer, "ok");
    libbpf_rs::Link::open(&pin).unwrap().detach().unwrap();
    assert_attached(&lab, &balancer, "fail");
    common::command(&balancer, "reload");
    assert_attached(&lab, &balancer, "ok");
    fs::remove_dir_all(balancer.pins()).unwrap();
    assert_attached(&lab, &balancer, "fail");
    common::command(&balancer, "reload");
    assert_attached(&lab, &balancer, "ok");
    assert_eq!(balancer.status().unwrap()["warnings"], serde_json::json!([]));
}

/// An interface of the file that goes is said as long as it is away.
#[test]
fn an_interface_that_is_renamed_is_said() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start_with(&lab, "look_every = \"1s\"\n");
    let is_said = || {
        let status = balancer.status().unwrap();
        let said = status["warnings"].to_string().contains("eth0 of balancer.interfaces is gone");
        let attached = status["interfaces"].as_array().unwrap().len();
        (said, attached)
    };
    assert_eq!(is_said(), (false, 1));
    let rename = |from: &str, to: &str| {
        for line in [format!("{from} down"), format!("{from} name {to}"), format!("{to} up")] {
            common::sh(lab.balancer(), &format!("ip link set {line}"));
        }
    };
    rename("eth0", "eth7");
    common::eventually("it is said", || is_said() == (true, 0));
    rename("eth7", "eth0");
    common::eventually("it is back", || is_said() == (false, 1));
    assert_attached(&lab, &balancer, "ok");
}

/// A link goes by the number of its interface: packets that come by one with another name are balanced on, and the new
/// name may be put in force. One that is gone keeps nobody from starting again.
#[test]
fn what_is_renamed_goes_on_and_what_is_gone_keeps_no_start() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let ip = |line: &str| common::sh(lab.balancer(), &format!("ip link {line}"));
    ip("add spare type veth peer name other");
    ip("set spare up");
    let balancer = common::start_with(&lab, "look_every = \"1s\"\n");
    let config = balancer.config();
    let write = |from: &str, to: &str| {
        let text = fs::read_to_string(config).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(config, text.replace(from, to)).unwrap();
    };
    let attached = |name: &str| {
        let shown = lab.balancer().command("ip").unwrap().args(["link", "show", name]).output();
        common::stdout(&shown.unwrap()).contains("xdp")
    };
    let gone = |name: &str| {
        let warnings = balancer.status().unwrap()["warnings"].to_string();
        warnings.contains(&format!("{name} of balancer.interfaces is gone"))
    };
    write("[\"eth0\"]", "[\"eth0\", \"spare\"]");
    common::command(&balancer, "reload");
    assert!(attached("spare"));
    ip("set spare name odd");
    common::eventually("it is said", || gone("spare"));
    assert!(attached("odd"), "its program is there yet");
    write("\"spare\"", "\"odd\"");
    common::command(&balancer, "reload");
    assert!(attached("odd") && !gone("spare"));
    let mut held = common::hold_both(&lab, 20);
    ip("del odd");
    common::eventually("it is said", || gone("odd"));
    common::kill_and_launch(&lab, &balancer, &mut held, "without an interface of the file");
    assert!(gone("odd"));
    ip("add odd type veth peer name other");
    common::eventually("it is back", || !gone("odd") && attached("odd"));
    common::assert_unbroken(&mut held, "with the interface again", &balancer);
    // A name that was never there is a mistake.
    write("\"odd\"", "\"odd\", \"add\"");
    let said = common::try_command(&balancer, "reload").unwrap_err();
    assert!(said.contains("interface add: not found"), "{said}");
}

/// Each pin has the name of the interface that its link is on, also where interfaces have changed names in a ring while
/// one of them had no pin.
#[test]
fn pins_follow_interfaces_that_swap_names() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let names = ["one", "two", "three"];
    for name in names {
        let lines = format!("link add {name} type veth peer name {name}-end\nlink set {name} up");
        lab.balancer().ip(&lines).unwrap();
    }
    let balancer = common::start_with(&lab, "look_every = \"1h\"\n");
    let text = fs::read_to_string(balancer.config()).unwrap();
    let four = text.replace("[\"eth0\"]", "[\"eth0\", \"one\", \"two\", \"three\"]");
    assert_ne!(four, text);
    fs::write(balancer.config(), four).unwrap();
    common::command(&balancer, "reload");
    let is_led = |name: &str| {
        let interface = lab.balancer().enter(|| weir_dataplane::Interface::find(name).unwrap());
        let index = interface.unwrap().index;
        let link = libbpf_rs::Link::open(balancer.pins().join(format!("link-{name}")));
        let info = link.and_then(|link| link.info()).map(|info| info.info);
        matches!(info, Ok(LinkTypeInfo::Xdp(on)) if on.ifindex == index)
    };
    assert!(names.into_iter().all(is_led));
    fs::remove_file(balancer.pins().join("link-one")).unwrap();
    let ring = "link set one name aside\nlink set three name one\nlink set two name three\n\
                link set aside name two";
    lab.balancer().ip(ring).unwrap();
    common::eventually("each pin leads to the interface of its name", || {
        common::try_command(&balancer, "reload").is_ok() && names.into_iter().all(is_led)
    });
    assert_eq!(balancer.status().unwrap()["warnings"], serde_json::json!([]));
    let log = common::log(&balancer);
    assert!(!log.contains("File exists"), "{log}");
}

/// What a process says at its end, and what a start says that is refused, goes by what is there.
#[test]
fn nothing_is_said_to_go_on_that_does_not() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start_with(&lab, "look_every = \"1h\"\n");
    let (goes_on, nothing) = ("stopping; the data plane goes on", "stopping; nothing goes on");
    balancer.stop(common::PATIENCE);
    let log = common::log(&balancer);
    assert!(log.contains(goes_on) && !log.contains(nothing), "{log}");
    balancer.launch().unwrap();
    libbpf_rs::Link::open(balancer.pins().join("link-eth0")).unwrap().detach().unwrap();
    balancer.stop(common::PATIENCE);
    let log = common::log(&balancer);
    assert!(log.contains(nothing), "{log}");
    // Memory without its stamp is another version's, for all that is known.
    fs::remove_file(balancer.pins().join("layout")).unwrap();
    let config = balancer.config().display().to_string();
    let refused = common::weir_in(&lab, &["run", "--config", &config]);
    let said = common::stderr(&refused);
    assert!(!refused.status.success() && said.contains("It was left as it is, on no"), "{said}");
    assert!(!said.contains("goes on"), "{said}");
}

/// A table that packets follow and that no start can read back, as its pin is gone: whose it is, what is damaged, and what
/// is possible.
#[test]
fn a_start_over_damaged_pins_says_what_to_do() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start_with(&lab, "look_every = \"1h\"\n");
    let mut held = common::hold(&lab, WEB4, 20);
    balancer.kill();
    fs::remove_file(balancer.pins().join("pool")).unwrap();
    let config = balancer.config().display().to_string();
    let refused = common::weir_in(&lab, &["run", "--config", &config]);
    let said = common::stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    let whose = |service: &str| said.contains(&format!("service {service}: published table"));
    assert!(common::SERVICES.into_iter().any(whose), "{said}");
    let pins = format!("in {} are damaged or incomplete", balancer.pins().display());
    let unload = format!("weir unload --name {}", balancer.name());
    assert!(said.contains(&pins) && said.contains(&unload), "{said}");
    common::assert_unbroken(&mut held, "after a start that was refused", &balancer);
    drop(held);
    assert!(common::weir(&["unload", "--name", balancer.name()]).status.success());
    balancer.launch().unwrap();
    common::reach_all(&lab, WEB4, 2);
}
