//! `weir doctor` finds what is broken, says how to mend it, and its exit status says whether weir
//! can work like this.

mod common;

use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use serde_json::Value;
use weir_lab::topology::{VIP4, VIP6};
use weir_lab::{Lab, LabSpec};

/// Exit status, and findings as JSON.
fn examine(lab: &Lab, config: &Path) -> (bool, Vec<Value>) {
    let config = config.to_str().unwrap();
    let output = common::weir_in(lab, &["doctor", "--config", config, "--json"]);
    let findings = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.success(), findings)
}

/// Expects findings with this verdict, one with all the words in its detail and one with all the
/// others in what is to be done about it.
fn assert_finds(findings: &[Value], verdict: &str, detail: &[&str], mend: &[&str]) {
    let has = |text: &Value, words: &[&str]| {
        words.iter().all(|word| text.as_str().is_some_and(|text| text.contains(word)))
    };
    let found = findings.iter().any(|one| {
        one["verdict"] == verdict && has(&one["detail"], detail) && has(&one["mend"], mend)
    });
    assert!(found, "no {verdict} with {detail:?} and {mend:?}: {findings:#?}");
}

fn failures(findings: &[Value]) -> Vec<&Value> {
    findings.iter().filter(|one| one["verdict"] == "fail").collect()
}

#[test]
fn doctor_finds_what_is_broken_and_says_how_to_mend_it() {
    let lab = common::lab_of(LabSpec { backends: 3, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 3);
    let config = balancer.config().to_path_buf();

    let (passed, findings) = examine(&lab, &config);
    assert!(passed && failures(&findings).is_empty(), "{findings:#?}");
    // Three services with three backends each.
    let accepting = findings.iter().filter(|one| one["check"] == "backend").count();
    assert_eq!(accepting, 9, "{findings:#?}");
    for one in &findings {
        let mend = one["mend"].as_str();
        assert_eq!(one["verdict"] == "ok", mend.is_none(), "{one}");
    }
    let text = common::weir_in(&lab, &["doctor", "--config", config.to_str().unwrap()]);
    let text = common::stdout(&text);
    assert!(text.contains("\nok ") && text.trim_end().ends_with(" 0 failed"), "{text}");

    // The address of a service is missing on a backend.
    let b1 = lab.backend(1).netns();
    common::sh(b1, &format!("ip addr del {VIP4}/32 dev lo"));
    let (passed, findings) = examine(&lab, &config);
    assert!(!passed);
    let add = format!("ip addr add {VIP4}/32 dev lo");
    let vip4 = VIP4.to_string();
    assert_finds(&findings, "fail", &["\"web4\"", "\"b1\"", &vip4], &["on the backend", &add]);
    assert_finds(&findings, "fail", &["\"echo4\"", "\"b1\""], &[&add, "arp_ignore=1"]);
    assert_eq!(failures(&findings).len(), 2, "{findings:#?}");
    common::sh(b1, &add);
    common::sh(b1, &format!("ip addr del {VIP6}/128 dev lo"));
    let (passed, findings) = examine(&lab, &config);
    assert!(!passed);
    let add = format!("ip addr add {VIP6}/128 dev lo nodad");
    assert_finds(&findings, "fail", &["\"web6\"", "\"b1\""], &[&add]);
    common::sh(b1, &add);
    let (passed, findings) = examine(&lab, &config);
    assert!(passed, "{findings:#?}");

    // A server is not running: weir works, that backend does not.
    lab.backend(0).kill();
    let (passed, findings) = examine(&lab, &config);
    assert!(passed, "{findings:#?}");
    assert_finds(
        &findings,
        "warn",
        &["\"web4\"", "\"b0\"", "nothing listens"],
        &["start the server"],
    );
    lab.backend(0).start().unwrap();

    // A backend is off the network: the neighbour table may still have it.
    let b2 = lab.backend(2).netns();
    common::sh(b2, "ip link set eth0 down");
    let (passed, findings) = examine(&lab, &config);
    assert!(!passed);
    assert_finds(&findings, "fail", &["10.77.2.3"], &[]);
    common::sh(lab.balancer(), "ip neigh flush dev eth0");
    let (passed, findings) = examine(&lab, &config);
    assert!(!passed);
    assert_finds(&findings, "fail", &["10.77.2.3 does not answer ARP"], &["is the backend up"]);
    assert_finds(&findings, "fail", &["fd77::2:3 does not answer"], &["ip neigh show fd77::2:3"]);
    common::sh(b2, "ip link set eth0 up");
    common::sh(b2, "ip addr replace fd77::2:3/64 dev eth0 nodad");
    common::sh(lab.balancer(), "ip neigh flush dev eth0");
    let (passed, findings) = examine(&lab, &config);
    assert!(passed, "{findings:#?}");

    // Forwarding is off: it works by the neighbour table, and that is worth a word.
    common::sysctl(lab.balancer(), "ipv4/conf/all/forwarding", "0");
    let (passed, findings) = examine(&lab, &config);
    assert!(passed, "{findings:#?}");
    assert_finds(
        &findings,
        "warn",
        &["ipv4 forwarding is off"],
        &["net.ipv4.conf.eth0.forwarding=1"],
    );
    common::sysctl(lab.balancer(), "ipv4/conf/all/forwarding", "1");

    // Nobody answers for the address of a service on the link.
    common::sh(lab.balancer(), &format!("ip addr del {VIP4}/32 dev eth0"));
    let (passed, findings) = examine(&lab, &config);
    assert!(passed, "{findings:#?}");
    assert_finds(&findings, "warn", &[&vip4, "on no interface"], &["ip addr add"]);
    common::sh(lab.balancer(), &format!("ip addr add {VIP4}/32 dev eth0"));

    // An interface that is not there, one that is down.
    let wrong = lab.directory().join("wrong.toml");
    let good = fs::read_to_string(&config).unwrap();
    fs::write(&wrong, good.replace("\"eth0\"", "\"eth9\"")).unwrap();
    let (passed, findings) = examine(&lab, &wrong);
    assert!(!passed);
    assert_finds(&findings, "fail", &["no interface eth9"], &["balancer.interfaces"]);
    fs::write(&wrong, good.replace("\"eth0\"", "\"lo\"")).unwrap();
    common::sh(lab.balancer(), "ip link set lo down");
    let (passed, findings) = examine(&lab, &wrong);
    assert!(!passed);
    assert_finds(&findings, "fail", &["lo is down"], &["ip link set lo up"]);
}

/// Ways to backends that frames of an XDP program do not get by; each is found, and mended again.
#[test]
fn ways_that_frames_are_lost_on_are_found() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 3);
    let config = balancer.config().to_path_buf();
    let lb = lab.balancer();
    let b1 = "10.77.2.2";
    let route = |way: &str| common::sh(lb, &format!("ip route replace {b1}/32 {way}"));
    let mac = "02:77:00:00:02:02";
    let passes = |when: &str| {
        common::sh(lb, &format!("ip route del {b1}/32"));
        let (passed, findings) = examine(&lab, &config);
        assert!(passed, "{when}: {findings:#?}");
    };

    // A bridge and a MAC VLAN take no frames from XDP programs.
    for (make, name, kind) in [
        ("ip link add br0 type bridge", "br0", "bridge"),
        ("ip link add mv0 link eth0 type macvlan mode bridge", "mv0", "macvlan"),
    ] {
        common::sh(lb, make);
        common::sh(lb, &format!("ip link set {name} up"));
        common::sh(lb, &format!("ip neigh replace {b1} lladdr {mac} dev {name} nud permanent"));
        route(&format!("dev {name}"));
        let (passed, findings) = examine(&lab, &config);
        assert!(!passed);
        let lost = "where frames of XDP programs are lost";
        assert_finds(&findings, "fail", &[b1, kind, lost], &["an interface of its own"]);
        passes(name);
        common::sh(lb, &format!("ip link del {name}"));
    }

    // Flows that live there, as they were before its check fails. By the ways above it did, too.
    common::eventually("b1 is up", || {
        let status = balancer.status().unwrap();
        common::backend(common::service(&status, "echo4"), "b1")["state"] == "up"
    });
    let client = &lab.clients()[0];
    let open = || (0..40).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect::<Vec<_>>();
    let sockets = client.enter(open).unwrap();
    let send = || {
        for socket in &sockets {
            assert_eq!(socket.send_to(b"one", (VIP4, 5353)).unwrap(), 3);
        }
    };
    send();
    // A router would send the service's packets back.
    route("via 10.77.2.3");
    let (passed, findings) = examine(&lab, &config);
    assert!(!passed);
    assert_finds(&findings, "fail", &[b1, "behind the router 10.77.2.3"], &["to this link"]);
    // On the balancer that is known to `weir check`, too, and nowhere else.
    let file = config.to_str().unwrap();
    let refused = common::weir_in(&lab, &["check", "--config", file]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let words = ["\"web4\"", "\"b1\"", "behind the router 10.77.2.3"];
    assert!(!refused.status.success() && words.iter().all(|word| said.contains(word)), "{said}");
    assert!(common::weir(&["check", "--config", file]).status.success());
    // What is sent there meanwhile does not go round for ever.
    common::eventually("packets for it are dropped and counted", || {
        send();
        let status = balancer.status().unwrap();
        let outcomes = status["outcomes"].as_array().unwrap();
        let behind = outcomes.iter().find(|one| one["reason"] == "behind_gateway");
        behind.is_some_and(|one| one["dropped"].as_u64() > Some(0))
    });
    passes("without the router");

    // Frames that come in larger than they can leave, and larger than a program takes in one buffer.
    common::sh(lb, "ip tuntap add dev tap0 mode tap");
    common::sh(lb, "ip link set tap0 mtu 9000 up");
    let wrong = lab.directory().join("jumbo.toml");
    let good = fs::read_to_string(&config).unwrap();
    fs::write(&wrong, good.replace("[\"eth0\"]", "[\"eth0\", \"tap0\"]")).unwrap();
    let (_, findings) = examine(&lab, &wrong);
    let refuses = ["tap0: MTU 9000", "may refuse native XDP above 3498"];
    assert_finds(&findings, "warn", &refuses, &["ip link set tap0 mtu 1500"]);
    let larger = ["packets of 9000 bytes come in, and eth0 takes 1500"];
    assert_finds(&findings, "warn", &larger, &["ip link set eth0 mtu 9000"]);
    // Nor is the program on it.
    assert_finds(&findings, "fail", &["tap0: instance", "has no program there"], &["weir reload"]);
}

/// Interfaces that change while nobody follows.
#[test]
fn interfaces_that_changed_behind_weirs_back_are_found() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 3);
    let config = balancer.config().to_path_buf();
    let lb = lab.balancer();
    let healthy = |when: &str| {
        common::eventually(when, || {
            let (passed, findings) = examine(&lab, &config);
            let attached = findings.iter().find(|one| one["check"] == "attached");
            passed && attached.is_some_and(|one| one["verdict"] == "ok")
        });
    };
    healthy("all is well while it runs");
    balancer.kill();
    healthy("the data plane goes on by itself");

    common::sh(lb, "ip link set dev eth0 address 02:77:00:00:ff:f1");
    let (passed, findings) = examine(&lab, &config);
    assert!(!passed);
    let words = ["eth0 has another Ethernet address (02:77:00:00:ff:f1)", "other_host"];
    assert_finds(&findings, "fail", &words, &["weir run follows"]);

    lab.replace_balancer_interface().unwrap();
    let (passed, findings) = examine(&lab, &config);
    assert!(!passed);
    let words = ["eth0: the program of", "the interface was made anew"];
    assert_finds(&findings, "fail", &words, &["weir run follows"]);

    balancer.launch().unwrap();
    healthy("it runs again");
    common::sh(lb, "ip link set dev eth0 address 02:77:00:00:ff:f2");
    healthy("it follows while it runs");

    // Nothing is said of what was never started.
    let other = lab.directory().join("other.toml");
    let text = fs::read_to_string(&config).unwrap();
    let name = format!("wl{}", lab.id());
    assert!(text.contains(&format!("\"{name}\"")), "{text}");
    fs::write(&other, text.replace(&format!("\"{name}\""), "\"never-started\"")).unwrap();
    let (_, findings) = examine(&lab, &other);
    assert!(findings.iter().all(|one| one["check"] != "attached"), "{findings:#?}");
}
