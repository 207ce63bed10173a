//! `weir doctor` finds what is broken, says how to mend it, and its exit status says whether weir
//! can work like this.

mod common;

use std::fs;
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
