//! Several balancers of one fleet behind a router that spreads flows by ports, with a real etcd and real
//! connections. No balancer has room to remember who went where.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::disc::Disc;
use common::{Held, WEB4, WEIR};
use serde_json::Value;
use weir_lab::demo::{self, DemoSpec};
use weir_lab::topology::{ECHO_PORT, Topology, VIP4, front4};
use weir_lab::traffic::Kind;
use weir_lab::view::Show;
use weir_lab::{AgentSpec, Balancer, BalancerSpec, Fleet, Lab, LabSpec, PoolControl, Speaker};
use weir_rpc::pki::{self, Request, Role};

/// Too few entries for the connections of a test: those that live on do so by their cookies.
const FORGETFUL: &str = "[limits]\ntracked_flows = 16";

fn lab() -> Arc<Lab> {
    let agent = Some(AgentSpec::new(WEIR));
    let topology = Topology::Fleet;
    common::lab_of(LabSpec { backends: 4, topology, agent, ..LabSpec::default() })
}

fn start(lab: &Arc<Lab>) -> Fleet {
    let spec = BalancerSpec {
        method: "cheetah".into(),
        service_lines: "answers = \"backend\"".into(),
        balancer_lines: FORGETFUL.into(),
        ..BalancerSpec::new(WEIR, 3)
    };
    Fleet::start(lab, &spec, common::seed()).expect("a fleet of weir run")
}

fn fleet_status(balancer: &Balancer) -> Value {
    let text = balancer.command(&["fleet", "status", "--json"]).expect("it answers");
    serde_json::from_str(&text).expect("JSON")
}

/// The weight of a backend of web4, as a balancer has it.
fn weight_of(balancer: &Balancer, backend: &str) -> Value {
    let status = balancer.status().expect("it answers");
    common::backend(common::service(&status, "web4"), backend)["weight"].clone()
}

fn agree(fleet: &Fleet) {
    fleet.await_agreement(fleet.balancers().len(), common::PATIENCE).expect("all follow the same");
}

fn assert_unbroken(held: &mut [Held], when: &str) {
    let troubles = common::troubles(held);
    let broken = troubles.len();
    assert!(troubles.is_empty(), "{when}: {broken} of {} broken: {troubles:#?}", held.len());
    println!("{when}: 0 of {} broken", held.len());
}

/// Packets that each balancer has forwarded to backends of its web services.
fn forwarded(fleet: &Fleet) -> Vec<u64> {
    let of = |balancer: &Balancer| {
        let status = balancer.status().unwrap();
        let web =
            ["web4", "web6"].map(|name| common::sum(common::service(&status, name), "packets"));
        web.iter().sum()
    };
    fleet.balancers().iter().map(of).collect()
}

/// What is asked of one balancer is so on all, in their files too; who comes second is told who was first; and
/// all say the same of a flow.
#[test]
fn a_change_on_one_balancer_is_one_on_all() {
    let _alone = common::alone();
    let lab = lab();
    let fleet = start(&lab);
    let all = fleet.balancers();
    let (one, two) = (&all[0], &all[1]);
    let said = common::command(one, "backend drain web4 b1");
    assert!(said.contains("backend b1 of web4 drains; change 2 of the fleet"), "{said}");
    assert!(common::command(one, "backend drain web4 b1").contains("drains already"));
    common::command(two, "backend weight web4 b2 7");
    agree(&fleet);
    for balancer in all {
        let status = balancer.status().unwrap();
        let web = common::service(&status, "web4");
        assert_eq!(common::backend(web, "b1")["drain"], true);
        assert_eq!(common::backend(web, "b2")["weight"], 7);
        let file = std::fs::read_to_string(balancer.config()).unwrap();
        assert!(file.contains("weight = 7") && file.contains("drain = true"), "{file}");
        // What is each one's own is still its own.
        assert!(file.contains(&format!("name = \"{}\"", balancer.name())), "{file}");
        let history = common::command(balancer, "history");
        for (done, by) in
            [("backend b1 of web4 drains", one), ("backend b2 of web4 has weight 7", two)]
        {
            let line = history.lines().find(|line| line.contains(done));
            let asked = format!("root@{}", by.name());
            assert!(line.is_some_and(|line| line.contains(&asked)), "{asked}, {done}: {history}");
        }
    }
    // What cannot be is refused by the one that is asked, and the others never hear of it.
    let refused = common::try_command(two, "backend remove web4 nobody").unwrap_err();
    assert!(refused.contains("service web4 has no backend nobody"), "{refused}");
    let text = std::fs::read_to_string(one.config()).unwrap();
    let file = lab.directory().join("new.toml");
    for (from, to, why) in [
        ("answers = \"backend\"", "answers = \"inline\"", "answers pass one balancer"),
        ("weight = 7", "weight = 70000", "out of range"),
    ] {
        std::fs::write(&file, text.replace(from, to)).unwrap();
        let refused = common::try_command(one, &format!("apply {}", file.display())).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(fleet_status(two)["change"], 3);
    // A whole file, by one of them: what is its own is followed there alone.
    std::fs::write(&file, text.replace("weight = 7", "weight = 5") + "# The end.\n").unwrap();
    let said = common::command(one, &format!("apply {}", file.display()));
    assert!(said.contains("change 4 of the fleet"), "{said}");
    agree(&fleet);
    assert_eq!(weight_of(&all[2], "b2"), 5);
    common::command(&all[2], "rollback");
    agree(&fleet);
    assert_eq!(weight_of(one, "b2"), 7);

    // The laboratory's etcd is at another host, and without TLS.
    let warnings = one.status().unwrap()["warnings"].to_string();
    for said in [warnings, common::log(one)] {
        assert!(said.contains("http://10.77.0.90:2379 without TLS"), "{said}");
    }

    let shown = common::command(two, "fleet status");
    for balancer in all {
        assert!(shown.contains(balancer.name()), "{shown}");
    }
    assert!(shown.contains("serves") && !shown.contains("warning"), "{shown}");
    let flow = ["explain", "tcp", "10.77.1.1:4711", "10.77.0.100:80", "--json"];
    let said: Value = serde_json::from_str(&one.command(&flow).unwrap()).unwrap();
    let others = said["fleet"].as_array().expect("the others");
    assert_eq!(others.len(), 2, "{said}");
    assert!(others.iter().all(|other| other["answered"] == true), "{said}");
}

/// What balancers would do with a flow, and whether they differ. With `tracked` the table alone says it: they do not
/// while all have the same backends up, and do where one cannot reach a backend that the others lead to.
#[test]
fn explain_says_whether_balancers_disagree() {
    let _alone = common::alone();
    let topology = Topology::Fleet;
    let lab = common::lab_of(LabSpec { backends: 2, balancers: 2, topology, ..LabSpec::default() });
    let spec = BalancerSpec { method: "tracked".into(), ..BalancerSpec::new(WEIR, 2) };
    let fleet = Fleet::start(&lab, &spec, common::seed()).expect("a fleet of weir run");
    let one = &fleet.balancers()[0];
    let ask = |port: u16, json: &[&str]| {
        let from = format!("10.77.1.1:{port}");
        let words = [&["explain", "tcp", &from, "10.77.0.100:80"], json].concat();
        one.command(&words).expect("it answers")
    };
    // Where the one that was asked leads a flow, and the other; and whether it says that they differ.
    let said = |port: u16| {
        let mut said = Value::Null;
        common::eventually("the other answers", || {
            said = serde_json::from_str(&ask(port, &["--json"])).expect("JSON");
            said["fleet"][0]["answered"] == true
        });
        assert_eq!(said["fleet"].as_array().map(Vec::len), Some(1), "{said}");
        let both =
            [&said, &said["fleet"][0]].map(|said| said["backend"].as_str().map(String::from));
        let differ = said["disagreement"].as_bool().unwrap_or(false);
        assert_eq!(differ, both[0] != both[1], "{said}");
        (both, differ)
    };
    let agrees = |port: u16| matches!(said(port), ([Some(_), Some(_)], false));
    let agree = || (4000..4024).all(agrees);
    let warns = |port| ask(port, &[]).contains("would not send it to the same backend");
    common::eventually("they agree", agree);
    assert!(!warns(4000));
    let b1 = weir_lab::topology::backend4(1);
    lab.front(1).ip(&format!("route add blackhole {b1}/32\n")).unwrap();
    let differs = || (4000..4024).find(|port| said(*port).1);
    common::eventually("they differ", || differs().is_some());
    let port = differs().expect("it does not pass");
    common::eventually("a person is warned", || warns(port));
    lab.front(1).ip(&format!("route del blackhole {b1}/32\n")).unwrap();
    common::eventually("they agree again", agree);
}

/// A balancer that starts has the fleet's services written into its file, whatever stood there: a reload of it
/// changes nothing, and none takes all services from the fleet without being told that connections may break.
#[test]
fn whoever_starts_gets_the_fleets_file() {
    let _alone = common::alone();
    let lab = lab();
    let fleet = start(&lab);
    let (one, two) = (&fleet.balancers()[0], &fleet.balancers()[1]);
    common::command(one, "backend weight web4 b2 7");
    agree(&fleet);
    let of_fleet = std::fs::read_to_string(two.config()).unwrap();
    let (own, _) = of_fleet.split_once("[[service]]").expect("services");
    let old = of_fleet.replace("weight = 7", "weight = 3");
    for (text, name) in [(own, ".edited"), (&old, ".edited.1")] {
        two.kill();
        std::fs::write(two.config(), text).unwrap();
        two.launch().unwrap();
        agree(&fleet);
        assert_eq!(std::fs::read_to_string(two.config()).unwrap(), of_fleet);
        let mut kept = two.config().as_os_str().to_owned();
        kept.push(name);
        assert_eq!(std::fs::read_to_string(kept).unwrap(), text);
        common::command(two, "reload");
        assert_eq!(weight_of(one, "b2"), 7);
        std::fs::write(two.config(), own).unwrap();
        let refused = common::try_command(two, "reload").unwrap_err();
        assert!(refused.contains("has no [[service]]: all "), "{refused}");
        std::fs::write(two.config(), &of_fleet).unwrap();
    }
    agree(&fleet);
}

/// A balancer whose file somebody has spoilt, in whatever way, starts over its running data plane with its own part as
/// it was and the fleet's services, says so, and takes the file again when it is mended.
#[test]
fn a_spoilt_file_leaves_no_balancer_of_a_fleet_without_a_control_plane() {
    let _alone = common::alone();
    let lab = lab();
    let fleet = start(&lab);
    let (one, two) = (&fleet.balancers()[0], &fleet.balancers()[1]);
    common::command(one, "backend weight web4 b2 7");
    agree(&fleet);
    let good = std::fs::read_to_string(two.config()).unwrap();
    let mut held = common::hold_both(&lab, 24);
    let warnings = || two.status().unwrap()["warnings"].to_string();
    let weight = |balancer: &Balancer| weight_of(balancer, "b2");
    type Spoil = fn(&str) -> Option<String>;
    let spoilt: [(Spoil, &str); 5] = [
        (|text| Some(text.replacen("[[service]]", "[[service", 1)), ".toml:"),
        (|text| Some(text[..text.len() / 2].to_owned() + "\nvip = \"10.0"), ".toml:"),
        (|_| Some(String::new()), "interfaces"),
        (|_| None, "No such file"),
        // Good in itself, and not on this host.
        (|text| Some(text.replacen("interfaces = [\"", "interfaces = [\"no", 1)), "interfaces"),
    ];
    for (spoil, words) in spoilt {
        two.kill();
        let text = spoil(&good);
        match &text {
            Some(text) => std::fs::write(two.config(), text).unwrap(),
            None => std::fs::remove_file(two.config()).unwrap(),
        }
        two.launch().unwrap();
        agree(&fleet);
        let said = warnings();
        assert!(said.contains("would be refused") && said.contains(words), "{said}");
        assert_eq!(weight(two), 7);
        let there = std::fs::read_to_string(two.config()).ok();
        assert_eq!(there, text, "it is left to whoever mends it");
        assert_unbroken(&mut held, "after a start over a spoilt file");
        std::fs::write(two.config(), &good).unwrap();
        common::command(two, "reload");
        assert!(!warnings().contains("would be refused"), "{}", warnings());
        agree(&fleet);
    }
    // What the fleet changes is written into the file, whatever stands there.
    two.kill();
    std::fs::write(two.config(), "[[service").unwrap();
    two.launch().unwrap();
    agree(&fleet);
    common::command(one, "backend weight web4 b2 5");
    agree(&fleet);
    assert_eq!(weight(two), 5);
    assert!(!warnings().contains("would be refused"), "{}", warnings());
    let written = std::fs::read_to_string(two.config()).unwrap();
    assert_eq!(written, good.replace("weight = 7", "weight = 5"));
    let mut kept = two.config().as_os_str().to_owned();
    kept.push(".edited");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "[[service");
    assert_unbroken(&mut held, "after a change of the fleet");
}

/// A balancer without room on its disc that has missed a change starts with what it followed before, and follows when
/// there is room.
#[test]
fn a_change_that_there_is_no_room_for_keeps_no_start_from_going_on() {
    let _alone = common::alone();
    let lab = lab();
    let fleet = start(&lab);
    let (one, two) = (&fleet.balancers()[0], &fleet.balancers()[1]);
    two.kill();
    let disc = Disc::mount_with_files(two.run_dir());
    two.launch().unwrap();
    agree(&fleet);
    let mut held = common::hold_both(&lab, 24);
    disc.fill();
    let behind = || {
        let warnings = two.status().unwrap()["warnings"].to_string();
        warnings.contains("not followed: ")
    };
    let weight = || weight_of(two, "b2");
    // There may be room for some yet, in the last block of a file.
    let mut last = 1_u16;
    common::eventually("it is behind", || {
        last += 1;
        common::command(one, &format!("backend weight web4 b2 {last}"));
        behind()
    });
    let before = weight();
    for turn in 0..2 {
        two.kill();
        two.launch().unwrap();
        common::eventually("it is behind, and says so", behind);
        assert_eq!(weight(), before);
        assert_unbroken(&mut held, &format!("after a start on a full disc, {turn}"));
    }
    disc.empty();
    agree(&fleet);
    common::eventually("it is not behind any more", || !behind());
    assert_eq!(weight(), last);
    two.kill();
}

/// Flows are spread anew, balancers die and come back, are cut off from the store, the store stands still and
/// dies, control planes restart without it, backends come, drain and go: no connection breaks but those of the
/// backend that goes.
#[test]
fn connections_outlive_balancers_and_the_store() {
    let _alone = common::alone();
    let lab = lab();
    let fleet = start(&lab);
    let all = fleet.balancers();
    common::reach_all(&lab, WEB4, 3);
    let mut held = common::hold_both(&lab, 96);
    assert!(forwarded(&fleet).iter().all(|packets| *packets > 0), "each has its part");
    for turn in 0..4 {
        fleet.reshuffle().unwrap();
        assert_unbroken(&mut held, &format!("spread anew, {turn}"));
    }
    let before = forwarded(&fleet);
    fleet.lead(&[0, 0, 1]).unwrap();
    assert_unbroken(&mut held, "all by the last balancer");
    let after = forwarded(&fleet);
    assert!(after[2] >= before[2] + held.len() as u64, "{before:?} {after:?}: it has all of them");

    fleet.lead_evenly().unwrap();
    fleet.add(3, 1).unwrap();
    agree(&fleet);
    common::reach_all(&lab, WEB4, 4);
    held.extend(common::hold_both(&lab, 48));
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "with a backend more");
    fleet.drain(0).unwrap();
    agree(&fleet);
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "while a backend drains");

    fleet.lead_evenly().unwrap();
    // What is sent to the dead one is lost until the router has noticed, and sent again.
    fleet.lose_power(2).unwrap();
    std::thread::scope(|scope| {
        let noticed = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(700));
            let at = Instant::now();
            fleet.lead_evenly().unwrap();
            at
        });
        assert_unbroken(&mut held, "when a balancer has died");
        let answered = Instant::now();
        let noticed = noticed.join().expect("no panic");
        assert!(answered > noticed, "somebody else has taken what was led to the dead one");
    });
    fleet.undrain(0).unwrap();
    fleet.revive(2).unwrap();
    agree(&fleet);
    fleet.lead(&[0, 0, 1]).unwrap();
    assert_unbroken(&mut held, "by the one that is back and knows nothing");
    held.extend(common::hold_both(&lab, 24));
    fleet.lead_evenly().unwrap();
    assert_unbroken(&mut held, "by all");

    fleet.cut_off(0, true).unwrap();
    common::eventually("it notices", || fleet_status(&all[0])["reachable"] == false);
    let refused = common::try_command(&all[0], "backend drain web4 b1").unwrap_err();
    assert!(refused.contains("the store cannot be reached"), "{refused}");
    // Nobody knows of the others what they do, and they are named all the same.
    let status = fleet_status(&all[0]);
    let others = status["balancers"].as_array().expect("balancers").iter();
    let unknown = others.filter(|one| one["role"] == "unknown" && one["sign"].is_object());
    assert_eq!(unknown.count(), all.len() - 1, "{status}");
    let said = common::command(&all[0], "explain tcp 10.77.1.1:4711 10.77.0.100:80");
    let unasked = said.matches("no answer: it was not asked: the store cannot be reached").count();
    assert_eq!(unasked, all.len() - 1, "{said}");
    let warnings = all[0].status().unwrap()["warnings"].to_string();
    assert!(warnings.contains("without the fleet's store"), "{warnings}");
    common::command(&all[1], "backend drain web4 b1");
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "while one is cut off from the store");
    all[0].crash(Duration::ZERO).unwrap();
    assert_unbroken(&mut held, "when that one has begun anew without the store");
    fleet.cut_off(0, false).unwrap();
    agree(&fleet);
    let status = all[0].status().unwrap();
    let b1 = common::backend(common::service(&status, "web4"), "b1");
    assert_eq!(b1["drain"], true, "it has heard of what it had missed");

    fleet.kill_store();
    common::eventually("all notice", || {
        all.iter().all(|one| fleet_status(one)["reachable"] == false)
    });
    all.iter().for_each(Balancer::kill);
    all.iter().try_for_each(Balancer::launch).unwrap();
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "without the store, after the death of all control planes");
    held.extend(common::hold_both(&lab, 24));
    // What is asked for meanwhile is refused, with a reason, and made when it is asked for again.
    let refused = || -> u64 {
        let all = fleet.refused().into_iter();
        all.filter(|(why, _)| why.starts_with("the store ")).map(|(_, changes)| changes).sum()
    };
    let before = refused();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| fleet.set_weight(1, 3));
        common::eventually("it is refused", || refused() > before);
        fleet.revive_store().unwrap();
        asked.join().expect("no panic").expect("it is made when the store is back");
    });
    agree(&fleet);
    let status = all[2].status().unwrap();
    assert_eq!(common::backend(common::service(&status, "web6"), "b1")["weight"], 3);
    common::command(&all[2], "backend undrain web4 b1");
    agree(&fleet);
    assert_unbroken(&mut held, "with the store again");

    // Only who sits on what goes is given up.
    let (gone, mut others): (Vec<Held>, Vec<Held>) =
        held.into_iter().partition(|one| one.backend == "b2");
    assert!(!gone.is_empty() && !others.is_empty());
    fleet.remove(2).unwrap();
    agree(&fleet);
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut others, "when a backend was removed");
}

/// A key of cookies goes and another comes, each step asked of one balancer: no connection breaks that has its key,
/// whichever balancer it comes to; and no step is made that a balancer could not follow.
#[test]
fn keys_of_cookies_rotate_in_a_fleet() {
    let _alone = common::alone();
    let lab = lab();
    let key = |digit: &str| digit.repeat(32);
    let lines = |keys: [&str; 2], issue: u8| {
        format!("cookie_keys = [\"{}\", \"{}\"]\nissue_key = {issue}", key(keys[0]), key(keys[1]))
    };
    let spec = BalancerSpec {
        method: "cheetah".into(),
        service_lines: "answers = \"backend\"".into(),
        tcp_lines: lines(["a", ""], 0),
        balancer_lines: FORGETFUL.into(),
        ..BalancerSpec::new(WEIR, 3)
    };
    let fleet = Fleet::start(&lab, &spec, common::seed()).expect("a fleet of weir run");
    let all = fleet.balancers();
    let file = lab.directory().join("keys.toml");
    let asked = |at: usize, from: ([&str; 2], u8), to: ([&str; 2], u8)| {
        let text = std::fs::read_to_string(all[at].config()).unwrap();
        let (from, to) = (lines(from.0, from.1), lines(to.0, to.1));
        assert!(text.contains(&from), "{text}");
        std::fs::write(&file, text.replace(&from, &to)).unwrap();
        common::try_command(&all[at], &format!("apply {}", file.display()))
    };
    let turn = |at, from, to| {
        asked(at, from, to).unwrap_or_else(|refused| panic!("{refused}"));
        agree(&fleet);
        fleet.reshuffle().unwrap();
    };
    let (only_a, both_a, both_b) = ((["a", ""], 0), (["a", "b"], 0), (["a", "b"], 1));
    let (only_b, both_c) = ((["", "b"], 1), (["c", "b"], 0));
    common::reach_all(&lab, WEB4, 3);
    let mut held = common::hold_both(&lab, 48);
    let refused = asked(0, only_a, both_b).unwrap_err();
    assert!(refused.contains("has to be read by all balancers before it issues"), "{refused}");
    turn(0, only_a, both_a);
    assert_unbroken(&mut held, "with a second key that is read");
    let refused = asked(1, both_a, only_b).unwrap_err();
    assert!(refused.contains("let another one issue before it goes"), "{refused}");

    // One that does not hear of it goes on with the old key, and reads both.
    fleet.cut_off(0, true).unwrap();
    common::eventually("it notices", || fleet_status(&all[0])["reachable"] == false);
    asked(1, both_a, both_b).unwrap_or_else(|refused| panic!("{refused}"));
    common::eventually("the other one follows", || {
        fleet_status(&all[2])["change"] == fleet_status(&all[1])["change"]
    });
    held.extend(common::hold_both(&lab, 48));
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "while one goes on with the old key");
    let refused = asked(1, both_b, only_b).unwrap_err();
    assert!(refused.contains("has not followed change"), "{refused}");
    assert!(refused.contains(all[0].name()), "{refused}");
    fleet.cut_off(0, false).unwrap();
    agree(&fleet);
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "when all make cookies by the new one");

    // Those that may have the old one end.
    drop(held);
    let mut held = common::hold_both(&lab, 48);
    turn(2, both_b, only_b);
    assert_unbroken(&mut held, "without the old key");
    let pending = (["c", "b"], 1);
    turn(0, only_b, pending);
    turn(1, pending, both_c);
    held.extend(common::hold_both(&lab, 48));
    fleet.reshuffle().unwrap();
    fleet.drain(0).unwrap();
    agree(&fleet);
    assert_unbroken(&mut held, "with a third key");
}

/// A balancer with `withdraw_after` that has not followed its fleet for so long is not to be announced, and says why,
/// until it follows again; the others are announced, and packets that still come are balanced.
#[test]
fn who_does_not_follow_is_withdrawn_after_the_time_that_is_set() {
    let _alone = common::alone();
    let lab = lab();
    let spec = BalancerSpec {
        method: "cheetah".into(),
        service_lines: "answers = \"backend\"".into(),
        balancer_lines: format!("{FORGETFUL}\n[announce]\nspeaker = \"none\""),
        ..BalancerSpec::new(WEIR, 3)
    };
    let fleet = Fleet::start(&lab, &spec, common::seed()).expect("a fleet of weir run");
    let (one, two) = (&fleet.balancers()[0], &fleet.balancers()[1]);
    let text = std::fs::read_to_string(one.config()).unwrap();
    let with = "kind = \"etcd\"\nwithdraw_after = \"5s\"";
    assert!(text.contains("kind = \"etcd\""), "{text}");
    one.kill();
    std::fs::write(one.config(), text.replace("kind = \"etcd\"", with)).unwrap();
    one.launch().unwrap();
    agree(&fleet);
    let checked =
        |balancer: &Balancer| common::try_command(balancer, &format!("announce check {VIP4}"));
    common::eventually("both are announced", || checked(one).is_ok() && checked(two).is_ok());
    let mut held = common::hold_both(&lab, 24);
    fleet.cut_off(0, true).unwrap();
    fleet.cut_off(1, true).unwrap();
    common::eventually("they notice", || {
        [one, two].iter().all(|balancer| fleet_status(balancer)["reachable"] == false)
    });
    common::eventually("it withdraws", || checked(one).is_err());
    let said = common::command(one, "announce");
    assert!(said.contains("has not followed"), "{said}");
    // Who has not set it is cut off for as long, and announced.
    assert!(checked(two).is_ok(), "{:?}", checked(two));
    // Nor is it announced again by a restart, after which it has not followed either.
    one.kill();
    one.launch().unwrap();
    let withdrawn = || {
        let said = common::try_command(one, "announce");
        said.is_ok_and(|said| said.contains("has not followed"))
    };
    common::eventually("it has decided", || checked(one).is_ok() || withdrawn());
    assert!(checked(one).is_err(), "{:?}", checked(one));
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "by balancers that are not announced, too");
    fleet.cut_off(0, false).unwrap();
    fleet.cut_off(1, false).unwrap();
    agree(&fleet);
    common::eventually("it is announced again", || checked(one).is_ok());
}

/// A router that learns its routes by BGP leads to the balancers that announce: not to one that is drained or dead, and
/// to it again. Connections are kept by whichever balancer they come.
#[test]
fn a_router_with_bgp_follows_who_announces() {
    follows_who_announces(Speaker::Bird);
}

/// The same where balancers tell GoBGPs.
#[test]
fn a_router_with_bgp_follows_who_announces_through_gobgp() {
    follows_who_announces(Speaker::Gobgp);
}

fn follows_who_announces(speaker: Speaker) {
    let _alone = common::alone();
    let agent = Some(AgentSpec::new(WEIR));
    let topology = Topology::Fleet;
    let lab = common::lab_of(LabSpec {
        backends: 3,
        topology,
        agent,
        bgp: Some(speaker),
        ..LabSpec::default()
    });
    let fleet = start(&lab);
    let all = fleet.balancers();
    let leads_to = |what: &str, wanted: &[usize]| {
        common::eventually(what, || fleet.led_to().unwrap() == wanted);
    };
    leads_to("all announce", &[0, 1, 2]);
    let refused = fleet.lead(&[1, 0, 0]).unwrap_err().to_string();
    assert!(refused.contains("routes are those that it learns"), "{refused}");
    common::reach_all(&lab, WEB4, 3);

    let mut one = common::hold(&lab, WEB4, 1);
    for _ in 0..8 {
        fleet.reshuffle().unwrap();
        assert_unbroken(&mut one, "by another seed");
    }

    let mut held = common::hold_both(&lab, 48);
    common::command(&all[1], "drain self");
    leads_to("one is drained", &[0, 2]);
    assert_unbroken(&mut held, "by the others");
    // Who is drained and dies is drained when it is back.
    all[1].crash(Duration::ZERO).unwrap();
    common::eventually("it knows that it is drained", || {
        let said = common::try_command(&all[1], "announce --json").unwrap_or_default();
        serde_json::from_str::<Value>(&said).is_ok_and(|said| said["drained"] == true)
    });
    leads_to("it is drained still", &[0, 2]);
    common::command(&all[1], "undrain self");
    leads_to("it is not drained any more", &[0, 1, 2]);
    assert_unbroken(&mut held, "by all");

    fleet.die(2).unwrap();
    leads_to("one is dead", &[0, 1]);
    assert_unbroken(&mut held, "when a balancer has died");
    all[0].kill();
    assert_unbroken(&mut held, "without a control plane");
    leads_to("a dead control plane changes no route", &[0, 1]);
    all[0].launch().unwrap();
    fleet.revive(2).unwrap();
    agree(&fleet);
    leads_to("it is back", &[0, 1, 2]);
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "with the one that is back and knows nothing");
}

/// Balancers whose services of TCP go by what agents list.
fn listed_by_agents() -> BalancerSpec {
    BalancerSpec {
        method: "residue".into(),
        tcp_lines: "states = \"agents\"".into(),
        udp_method: Some("jet".into()),
        ..BalancerSpec::new(WEIR, 3)
    }
}

/// Agents that are given one balancer tell all of its fleet, also those that come later, by what it says of them; and
/// when it is gone at their next start, they go by what they were told before.
#[test]
fn agents_that_are_given_one_balancer_tell_all() {
    let _alone = common::alone();
    let agent = Some(AgentSpec { given: Some(1), ..AgentSpec::telling(WEIR) });
    let topology = Topology::Fleet;
    let lab = common::lab_of(LabSpec { backends: 3, agent, topology, ..LabSpec::default() });
    let spec = listed_by_agents();
    // One after the other: each but the first joins a fleet that agents tell already.
    let fleet = Fleet::start(&lab, &spec, common::seed()).expect("a fleet of weir run");
    let all = fleet.balancers();
    // The addresses that agents speak for which have told all.
    let told = |balancer: &Balancer| {
        let status = balancer.status().unwrap();
        let agents = status["agents"].as_array().expect("agents").clone();
        let here = agents.iter().filter(|one| one["told"] == true && one["from"].is_string());
        here.count()
    };
    let all_told = |balancers: &[Balancer]| balancers.iter().all(|one| told(one) == 3);
    common::eventually("all are told", || all_told(all));
    // By these, and by no guess: none has waited in vain, and what flows by one is known to all.
    let mut held = common::hold(&lab, WEB4, 48);
    common::eventually("all know all connections", || {
        all.iter().all(|one| {
            let status = one.status().unwrap();
            common::service(&status, "web4")["states"].as_u64() >= Some(48)
        })
    });
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "spread anew");
    let said = common::command(&all[1], "backend weight web4 b0 3");
    assert!(said.contains("of the fleet; the pool of web4 changes in step"), "{said}");
    agree(&fleet);

    // The one that they are given dies, and they start again.
    fleet.die(0).unwrap();
    lab.backends().iter().for_each(weir_lab::Backend::kill_agent);
    common::eventually("nobody is told", || all[1..].iter().all(|one| told(one) == 0));
    let said = || std::fs::read_to_string(lab.backend(0).agent_log()).unwrap();
    let before = said().len();
    lab.backends().iter().try_for_each(|backend| lab.start_agent(backend)).unwrap();
    common::eventually("the others are told", || all_told(&all[1..]));
    let said = said()[before..].to_owned();
    for at in 1..all.len() {
        let learned = format!("balancer {}:4479: one of the fleet", front4(at));
        assert!(said.contains(&learned), "{learned}: {said}");
    }
    assert!(!said.contains(&format!("balancer {}:4479: connected", front4(0))), "{said}");
    assert_unbroken(&mut held, "without the one that they are given");
}

/// The certificate of one balancer ends while all serve: the others change pools without it, and say why; it goes on with
/// the configurations that come, and with a new certificate it is one of them again. No connection breaks on any way.
#[test]
fn a_certificate_that_ends_holds_nobody_else_up() {
    let _alone = common::alone();
    let (agent, topology) = (Some(AgentSpec::telling(WEIR)), Topology::Fleet);
    let lab = common::lab_of(LabSpec { backends: 4, agent, topology, ..LabSpec::default() });
    let spec = BalancerSpec { method: "concury".into(), ..listed_by_agents() };
    let fleet = Fleet::start(&lab, &spec, common::seed()).expect("a fleet of weir run");
    let all = fleet.balancers();
    agree(&fleet);
    let leader = fleet_status(&all[0])["leader"]["name"].clone();
    let leads = all.iter().position(|one| leader == one.name()).expect("one leads");
    let late = (leads + 1) % all.len();
    let pki = lab.directory().join("pki");
    for (name, days) in [("new", 20), ("ended", 0)] {
        let (addresses, hosts) = (vec![front4(late).into()], Vec::new());
        let request = Request { name: name.into(), role: Role::Balancer, addresses, hosts, days };
        pki::issue(&pki, &pki, &request).unwrap();
    }
    let show = |name: &str| {
        for kind in ["key", "pem"] {
            let from = pki.join(format!("{name}.{kind}"));
            std::fs::copy(from, pki.join(format!("lb{late}.{kind}"))).unwrap();
        }
    };
    let mut held = common::hold(&lab, WEB4, 48);
    show("ended");
    let said = all[late].command(&["reload"]).unwrap();
    assert!(said.contains("agents: ") && said.contains("has ended"), "{said}");
    let behind = || {
        let status = fleet_status(&all[leads]);
        let there = status["balancers"].as_array().expect("balancers").clone();
        let there = there.into_iter().find(|one| one["name"] == all[late].name());
        there.is_some_and(|one| one["role"] == "behind")
    };
    for weight in [2, 3, 4] {
        common::command(&all[leads], &format!("backend weight web4 b0 {weight}"));
        common::eventually("all follow the configuration", || {
            all.iter().all(|one| weight_of(one, "b0") == weight)
        });
    }
    // By a connection that is open it may still get tables.
    println!("behind: {}", behind());
    assert_unbroken(&mut held, "with a certificate that has ended");
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "spread anew");
    show("new");
    let said = all[late].command(&["reload"]).unwrap();
    assert!(!said.contains("agents: "), "{said}");
    common::eventually("it has made up for it", || !behind());
    agree(&fleet);
    fleet.reshuffle().unwrap();
    assert_unbroken(&mut held, "with a new one");
}

/// A store that was restored from an old copy takes no step back: whoever starts after that leads connections as the
/// others do. `weir apply` of what is in force puts it there again.
#[test]
fn a_store_of_an_old_copy_breaks_nothing() {
    let _alone = common::alone();
    let agent = Some(AgentSpec::telling(WEIR));
    let topology = Topology::Fleet;
    let lab = common::lab_of(LabSpec { backends: 4, agent, topology, ..LabSpec::default() });
    let spec = listed_by_agents();
    let fleet = Fleet::start(&lab, &spec, common::seed()).expect("a fleet of weir run");
    let all = fleet.balancers();
    let (data, copy) = (fleet.store_folder().join("data"), fleet.store_folder().join("copy"));
    let put = |from: &std::path::Path, to: &std::path::Path| {
        let done = std::process::Command::new("cp").arg("-a").args([from, to]).status();
        assert!(done.expect("cp").success());
    };
    agree(&fleet);
    fleet.kill_store();
    put(&data, &copy);
    fleet.revive_store().unwrap();
    agree(&fleet);
    for change in ["backend weight web4 b1 7", "backend drain web4 b0"] {
        common::command(&all[1], change);
        agree(&fleet);
    }
    let before = fleet_status(&all[0]);
    let mut held = common::hold(&lab, WEB4, 96);
    fleet.kill_store();
    std::fs::remove_dir_all(&data).unwrap();
    put(&copy, &data);
    fleet.revive_store().unwrap();
    let says = |balancer: &Balancer| {
        let status = fleet_status(balancer);
        status["reachable"] == true
            && status["disagreements"].to_string().contains("restored from a copy")
    };
    common::eventually("all see that it is a copy", || all.iter().all(says));
    // A command puts no whole text in force beside what it says.
    let refused = common::try_command(&all[0], "backend weight web4 b1 5").expect_err("a copy");
    assert!(refused.contains("nothing has changed: the store has change"), "{refused}");
    let said = common::command(&all[2], &format!("apply {}", all[2].config().display()));
    assert!(said.contains("of the fleet"), "{said}");
    agree(&fleet);
    let after = fleet_status(&all[0]);
    assert!(after["change"].as_u64() > before["change"].as_u64(), "{before} {after}");
    all[0].kill();
    all[0].launch().unwrap();
    agree(&fleet);
    let status = fleet_status(&all[1]);
    assert!(status["step"]["number"].as_u64() >= before["step"]["number"].as_u64(), "{status}");
    for turn in 0..4 {
        fleet.reshuffle().unwrap();
        assert_unbroken(&mut held, &format!("after a start from an old copy, {turn}"));
    }
}

/// A store that has lost its data gets an old text from whoever is there first, under the number of a later change that
/// the others follow. `weir apply` of it there puts it in force on all, above both, and no term of a leader comes back.
#[test]
fn an_old_text_that_an_empty_store_has_is_put_in_force_where_it_came_from() {
    let _alone = common::alone();
    let lab = lab();
    let fleet = start(&lab);
    let all = fleet.balancers();
    agree(&fleet);
    let weight = |balancer: &Balancer| weight_of(balancer, "b2");
    let leader = |balancer: &Balancer| fleet_status(balancer)["leader"]["term"].as_u64();
    all[2].kill();
    common::command(&all[0], "backend weight web4 b2 7");
    common::eventually("the other one follows", || weight(&all[1]) == 7);
    common::eventually("somebody leads", || leader(&all[1]).is_some());
    let (number, term) = (fleet_status(&all[1])["change"].clone(), leader(&all[1]));
    all[..2].iter().for_each(Balancer::kill);
    fleet.kill_store();
    std::fs::remove_dir_all(fleet.store_folder().join("data")).unwrap();
    fleet.revive_store().unwrap();
    all[2].launch().unwrap();
    common::eventually("the store has a text again", || fleet_status(&all[2])["change"] == number);
    all[..2].iter().for_each(|one| one.launch().unwrap());
    let says = || fleet_status(&all[2])["disagreements"].to_string();
    common::eventually("the others do not follow it", || {
        all[..2].iter().all(|one| says().contains(&format!("{} does not follow", one.name())))
    });
    let file = all[2].config().display().to_string();
    let planned = common::command(&all[2], &format!("plan {file}"));
    assert!(planned.contains("store.change"), "{planned}");
    let said = common::command(&all[2], &format!("apply {file}"));
    assert!(said.contains("of the fleet"), "{said}");
    agree(&fleet);
    assert!(all.iter().all(|one| weight(one) != 7), "{}", fleet_status(&all[0]));
    common::eventually("somebody leads", || leader(&all[0]) > term);
}

/// A second balancer of a name that one of the fleet has is not started, and the others say so. One that starts again
/// within its own lease is no second one.
#[test]
fn a_name_that_another_balancer_has_is_refused() {
    let _alone = common::alone();
    let lab = lab();
    let fleet = start(&lab);
    let all = fleet.balancers();
    let (one, two) = (&all[0], &all[1]);
    let text = std::fs::read_to_string(two.config()).unwrap();
    let [own, other] = [two, one].map(|balancer| format!("name = \"{}\"", balancer.name()));
    assert!(text.contains(&own), "{text}");
    two.kill();
    std::fs::write(two.config(), text.replace(&own, &other)).unwrap();
    two.launch().expect_err("it is refused");
    let said = common::log(two);
    assert!(said.contains("give this one another name"), "{said}");
    let says = |said: &str| {
        let name = one.name();
        said.contains(&format!("two balancers are called {name}; rename one of them"))
    };
    common::eventually("all are told", || {
        [one, &all[2]].iter().all(|balancer| says(&common::command(balancer, "fleet status")))
    });
    let warnings = one.status().unwrap()["warnings"].to_string();
    assert!(warnings.contains("another balancer has the name of this one"), "{warnings}");
    two.kill();
    std::fs::write(two.config(), text).unwrap();
    two.launch().unwrap();
    one.kill();
    one.launch().unwrap();
}

/// Nothing in a datagram says where its flow lives, and what a balancer has seen no other one knows. With `tracked` a
/// flow of UDP is kept all the same, by whichever balancer it comes, while the pool is the one that it began with.
#[test]
fn flows_of_udp_are_kept_by_every_balancer_while_the_pool_stays() {
    let _alone = common::alone();
    let topology = Topology::Fleet;
    let lab = common::lab_of(LabSpec { backends: 4, topology, ..LabSpec::default() });
    let spec = BalancerSpec { method: "tracked".into(), ..BalancerSpec::new(WEIR, 4) };
    let fleet = Fleet::start(&lab, &spec, common::seed()).expect("a fleet of weir run");
    let all = fleet.balancers();
    // All backends are up everywhere, and rows are the same, and others than these; returns what tells them.
    let alike = |before: &str| {
        let mut now = String::new();
        common::eventually("all decide alike", || {
            let status = fleet_status(&all[0]);
            let mut signs = Vec::new();
            for one in status["balancers"].as_array().expect("balancers") {
                signs.extend(one["sign"]["services"].as_array().into_iter().flatten().cloned());
            }
            let up = signs.iter().all(|of| of["up"] == 4 && of["backends"] == 4);
            let echo = signs.iter().filter(|of| of["name"] == "echo4");
            let digests: Vec<&str> = echo.filter_map(|of| of["digest"].as_str()).collect();
            now = digests.first().copied().unwrap_or_default().to_owned();
            let same = digests.len() == all.len() && digests.iter().all(|one| *one == now);
            up && same && now != before
        });
        now
    };
    let passed = |balancer: &Balancer| {
        common::sum(common::service(&balancer.status().unwrap(), "echo4"), "packets")
    };
    let first = alike("");
    let echo = std::net::SocketAddr::from((VIP4, ECHO_PORT));
    for change in [1, 2] {
        if change == 2 {
            common::command(&all[1], "backend drain echo4 b0");
            alike(&first);
        }
        let flows = common::flows(&lab, echo, 60);
        assert!(all.iter().all(|one| passed(one) > 0), "each has its part");
        assert!(change == 1 || flows.iter().all(|flow| flow.backend != "b0"), "it drains");
        for turn in 0..4 {
            fleet.reshuffle().unwrap();
            let moved: Vec<String> = flows.iter().filter_map(common::Flow::trouble).collect();
            assert!(moved.is_empty(), "change {change}, turn {turn}: {moved:#?}");
        }
    }
}

/// Thousands of connections, while backends change, and balancers, and the store.
fn churn(with: impl FnOnce(&mut DemoSpec)) {
    let _alone = common::alone();
    let seed = common::seed();
    let mut spec = DemoSpec::new(WEIR, seed);
    spec.lab.topology = Topology::Fleet;
    spec.lab.backends = 8;
    spec.balancer.pool = 6;
    spec.traffic.connections = 1_000;
    // There are flows of UDP, too, and whatever breaks of them is counted apart.
    spec.traffic.unpromised = vec![Kind::Udp];
    weir_lab::wanted::with_quic(&mut spec);
    (spec.traffic.timeout, spec.traffic.detection) = (common::PATIENCE, Duration::from_secs(20));
    spec.traffic.quic_timeout = common::PATIENCE;
    spec.goals.changes = 8;
    spec.duration = Duration::from_secs(60);
    spec.show = Show::LinesOnError;
    with(&mut spec);
    let report = demo::run(spec).unwrap();
    println!("{}\n{}", report.table(), report.line());
    assert!(report.held(), "{:?}", report.fault());
    assert!(report.happened.values().any(|times| *times > 0), "{:?}", report.happened);
    let of_kind = |kind: Kind| {
        let found = report.traffic.totals.kinds.iter().find(|one| one.kind == kind);
        found.expect("it is counted").clone()
    };
    let udp = of_kind(Kind::Udp);
    assert!(udp.completed > 0 && !udp.promised && of_kind(Kind::Short).promised, "{udp:?}");
    assert!(report.table().contains("flows of udp broken, for which nothing is promised"));
    // Connections of QUIC are promised, wherever their clients go on from.
    let quic = of_kind(Kind::Quic);
    assert!(quic.completed > 0 && quic.broken == 0 && quic.promised, "{quic:?}");
    assert!(report.traffic.totals.moved > quic.completed, "{quic:?}");
}

#[test]
fn churn_of_a_fleet_breaks_nothing() {
    churn(|spec| {
        spec.lab.agent = Some(AgentSpec::stamping(WEIR));
        spec.balancer.method = "cheetah".into();
        spec.balancer.service_lines = "answers = \"backend\"".into();
    });
}

/// The same where nothing in packets says where they belong, and all balancers change their tables in step.
#[test]
fn churn_of_a_fleet_that_changes_in_step_breaks_nothing() {
    churn(|spec| in_step(spec, "residue"));
}

/// The same where all follow one table, which one of them has built.
#[test]
fn churn_of_a_fleet_that_follows_one_table_breaks_nothing() {
    churn(|spec| in_step(spec, "concury"));
}

fn in_step(spec: &mut DemoSpec, method: &str) {
    spec.lab.agent = Some(AgentSpec::telling(WEIR));
    spec.balancer.method = method.into();
    spec.balancer.tcp_lines = "states = \"agents\"".into();
    spec.balancer.udp_method = Some("jet".into());
}
