//! What `weir plan` says beforehand is what a reload does then.

mod common;

use common::WEB4;
use serde_json::Value;
use weir_lab::Balancer;

fn edit(balancer: &Balancer, change: impl Fn(&str) -> String) {
    let text = std::fs::read_to_string(balancer.config()).unwrap();
    std::fs::write(balancer.config(), change(&text)).unwrap();
}

fn plan(balancer: &Balancer, arguments: &[&str]) -> Value {
    let words = [&["plan"], arguments, &["--json"]].concat();
    serde_json::from_str(&balancer.command(&words).unwrap()).unwrap()
}

fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array().unwrap().iter().find(|one| one["name"] == name || one["field"] == name)
}

/// Tables, digests and pools.
fn in_force(balancer: &Balancer) -> String {
    let status = balancer.status().unwrap();
    let backends = |service: &Value| {
        let list = service["backends"].as_array().unwrap().iter();
        list.map(|b| format!("{} {} {}", b["name"], b["weight"], b["state"])).collect::<Vec<_>>()
    };
    let services = status["services"].as_array().unwrap().iter();
    services
        .map(|s| format!("{} {} {} {:?}", s["name"], s["generation"], s["digest"], backends(s)))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_plan_says_what_a_reload_does() {
    let _alone = common::alone();
    let lab = common::lab(4);
    let balancer = common::start(&lab, "concury", 3);
    let (name, first) = {
        let status = balancer.status().unwrap();
        let service = status["services"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["vip"] == WEB4.ip().to_string() && one["port"] == WEB4.port())
            .expect("the service of the test")
            .clone();
        let name = service["name"].as_str().unwrap().to_owned();
        (name, service["backends"][0]["name"].as_str().unwrap().to_owned())
    };
    assert_eq!(plan(&balancer, &[])["changes"], false);
    let text = balancer.command(&["plan"]).unwrap();
    assert!(text.contains("nothing would change"), "{text}");
    let mut held = common::hold(&lab, WEB4, 60);
    let known = || {
        let status = balancer.status().unwrap();
        common::service(&status, &name)["states"].as_u64().unwrap()
    };
    common::eventually("the connections are known", || known() >= 60);
    // A command has changed what the file does not say.
    common::command(&balancer, &format!("backend weight {name} {first} 7"));
    let drift = plan(&balancer, &[]);
    let service = named(&drift["services"], &name).expect("it differs from the file");
    assert_eq!(service["change"], "changed");
    let weight = &named(&service["backends"], &first).unwrap()["fields"][0];
    assert_eq!((&weight["field"], &weight["from"]), (&"weight".into(), &7.into()), "{drift}");
    assert_eq!(service["broken"], 0);
    assert!(service["connections"].as_u64().unwrap() >= 60, "{drift}");
    let before = in_force(&balancer);
    // Another file: nothing comes into force by looking at it.
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.toml");
    let text = std::fs::read_to_string(balancer.config()).unwrap();
    let shorter = text.replacen("[[service]]", "[[service]]\nidle_timeout = \"9m\"", 1);
    std::fs::write(&other, &shorter).unwrap();
    let report = plan(&balancer, &[other.to_str().unwrap()]);
    let change = report["services"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|service| named(&service["fields"], "idle_timeout"));
    assert!(change.is_some(), "{report}");
    let words = balancer.command(&["plan", other.to_str().unwrap()]).unwrap();
    assert!(words.contains("idle_timeout") && words.contains("-> 9m"), "{words}");
    assert_eq!(in_force(&balancer), before);
    // A backend that goes takes its connections; the plan says how many, before.
    edit(&balancer, |text| {
        let mut blocks: Vec<&str> = text.split("[[service.backend]]").collect();
        let at = blocks
            .iter()
            .skip(1)
            .position(|block| block.contains(&format!("\"{first}\"")))
            .unwrap();
        // What follows the block belongs to the next service.
        let rest = blocks[at + 1].find("[[service]]").map_or("", |from| &blocks[at + 1][from..]);
        let kept = format!("{}{rest}", blocks[at]);
        blocks[at] = &kept;
        blocks.remove(at + 1);
        blocks.join("[[service.backend]]")
    });
    let report = plan(&balancer, &[]);
    let service = named(&report["services"], &name).unwrap();
    let gone = named(&service["backends"], &first).unwrap();
    assert_eq!(gone["change"], "removed");
    let there = gone["connections"].as_u64().unwrap();
    assert!(there > 0, "{report}");
    assert_eq!(service["broken"], there);
    assert_eq!(in_force(&balancer), before);
    common::command(&balancer, "reload");
    assert_eq!(plan(&balancer, &[])["changes"], false, "the plan has come true");
    let at_others = held.iter_mut().filter_map(|one| one.trouble()).count() as u64;
    assert!(at_others <= there, "{at_others} of {there}");
}

/// Who knows backends by their names alone would lose the connections of one that is called otherwise.
#[test]
fn another_name_of_a_backend_is_refused_where_connections_go_by_it() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "jet", 2);
    let mut held = common::hold(&lab, WEB4, 20);
    edit(&balancer, |text| text.replace("name = \"b1\"", "name = \"bee1\""));
    let output = common::weir(&["plan", "--socket", balancer.socket().to_str().unwrap()]);
    let words = common::stdout(&output);
    assert_eq!(output.status.code(), Some(4), "{words}{}", common::stderr(&output));
    let said = "refused: an unknown number of connections\n    backend bee1: it is called b1 now";
    assert!(words.contains(said), "{words}");
    let refused = common::try_command(&balancer, "reload").expect_err("it would break connections");
    for words in ["cannot change under connections", "an unknown number of connections break"] {
        assert!(refused.contains(words), "{refused}");
    }
    common::assert_unbroken(&mut held, "after a reload that was refused", &balancer);
}

#[test]
fn what_a_reload_refuses_a_plan_refuses() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let _held = common::hold(&lab, WEB4, 10);
    let good = std::fs::read_to_string(balancer.config()).unwrap();
    // Affinity cannot change under connections.
    edit(&balancer, |text| text.replacen("[[service]]", "[[service]]\naffinity = \"client\"", 1));
    let output = common::weir(&["plan", "--socket", balancer.socket().to_str().unwrap()]);
    let words = common::stdout(&output);
    assert_eq!(output.status.code(), Some(4), "{words}{}", common::stderr(&output));
    assert!(words.contains("refused") && words.contains("affinity: flow -> client"), "{words}");
    let refused = common::try_command(&balancer, "reload").expect_err("it would break connections");
    assert!(refused.contains("affinity"), "{refused}");
    // What cannot be read is refused with its place, and nothing else happens.
    std::fs::write(balancer.config(), good.replacen("[balancer]", "[balancer]\nnme = \"x\"", 1))
        .unwrap();
    let refused = common::try_command(&balancer, "plan").expect_err("an unknown field");
    assert!(refused.contains(":2") && refused.contains("nme"), "{refused}");
    std::fs::write(balancer.config(), &good).unwrap();
    // An interface that is not there.
    let line = good.lines().find(|line| line.starts_with("interfaces = ")).unwrap();
    let more = line.replace(']', ", \"nope0\"]");
    std::fs::write(balancer.config(), good.replacen(line, &more, 1)).unwrap();
    for command in ["plan", "reload"] {
        let refused = common::try_command(&balancer, command).expect_err("no such interface");
        assert!(refused.contains("interface nope0: not found"), "{command}: {refused}");
        let at = good.lines().position(|one| one == line).unwrap() + 1;
        assert!(refused.contains(&format!(":{at}: interfaces: ")), "{command}: {refused}");
    }
    std::fs::write(balancer.config(), &good).unwrap();
    // The same of a text that is in no file.
    let socket = balancer.socket().to_str().unwrap().to_owned();
    let fed = |text: &str| common::weir_fed(&["plan", "-", "--socket", &socket], text);
    let output = fed(&good.replacen("[[service]]", "[[service]]\nidle_timeout = \"9m\"", 1));
    let words = common::stdout(&output);
    assert!(output.status.success(), "{}", common::stderr(&output));
    assert!(words.starts_with("<stdin> would change:") && words.contains("-> 9m"), "{words}");
    let line = good.lines().position(|line| line.starts_with("name = ")).unwrap() + 2;
    for (text, status, wanted) in [
        (good.replacen("[balancer]", "[balancer]\nnme = \"x\"", 1), 1, "<stdin>:2".to_owned()),
        (
            good.replacen("[balancer]", "[balancer]\n# one", 1).replacen(
                "name = \"",
                "name = \"x",
                1,
            ),
            4,
            format!("<stdin>:{line}: [balancer] name cannot change"),
        ),
    ] {
        let output = fed(&text);
        let words = common::stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{words}");
        assert!(words.contains(&wanted), "{wanted}: {words}");
    }
    let missing = common::try_command(&balancer, "plan /nowhere/weir.toml").expect_err("no file");
    assert!(missing.contains("/nowhere/weir.toml"), "{missing}");
    assert_eq!(plan(&balancer, &[])["changes"], false);
}
