//! What a file may say of methods.

use super::*;

/// A method that has tables and no program in the kernel: refused there, with what there is; and
/// taken by a plane that runs it, with its settings checked.
#[test]
fn a_method_must_be_one_that_the_data_plane_runs() {
    let text = |more: &str| service(&format!("port = 80\n{more}"));
    let all: Vec<_> = MethodId::published().collect();
    let without =
        || MethodId::published().filter(|id| !weir_dataplane::methods().any(|m| m == *id));
    let here: Vec<_> = weir_dataplane::methods().map(MethodId::name).collect();
    let give = format!("give one of {}", here.join(", "));
    for id in without() {
        let name = id.name();
        let wrong = format!("method: the data plane has no program for {name:?}");
        let text = text(&format!("method = {name:?}"));
        expect_one(name, &text, 8, &[&wrong, &give]);
        let config = Config::parse_for(&text, "weir.toml", &all).unwrap();
        assert_eq!(config.services[0].method.id(), id);
    }
    let jet = |more: &str| text(&format!("method = \"jet\"\n{more}"));
    let good = jet("placement = \"ring\"\nrows = 1000\nwarm_up = 0");
    let config = Config::parse_for(&good, "weir.toml", &all).unwrap();
    let wanted = vec![("rows", 1000), ("warm_up", 0), ("placement", 1)];
    assert_eq!(method(&config.services[0].method), ("jet", wanted));
    for (more, words) in [
        ("placement = \"maglev\"", ["placement: \"maglev\" is not known", "table, ring, anchor"]),
        ("placement = 2", ["placement: is of the wrong kind", "table, ring, anchor"]),
        ("rows = \"many\"", ["rows: is of the wrong kind", "give 16..4194304"]),
        ("rows = 15", ["rows: 15 is out of range", "give 16..4194304"]),
        ("warm_up = -1", ["warm_up: -1 is out of range", "give 0..86400"]),
        ("table_size = 7", ["is a setting of method = \"tracked\"", "remove it"]),
    ] {
        let said = Config::parse_for(&jet(more), "weir.toml", &all).unwrap_err().to_string();
        assert!(said.contains("weir.toml:9: service \"web\""), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

/// Where the first packet does not choose, no scheduler can: the refusal says why.
#[test]
fn a_scheduler_needs_a_method_that_remembers_where_it_sent_a_flow() {
    let text = |more: &str| service(&format!("port = 80\n{more}"));
    for method in ["tracked", "cheetah"] {
        for scheduler in weir_steering::Scheduler::WORDS {
            let fields = format!("method = {method:?}\nscheduler = {scheduler:?}");
            let config = Config::parse(&text(&fields), "weir.toml").unwrap();
            let settings = config.services[0].method.settings();
            assert_eq!(weir_steering::Scheduler::of(settings).name(), *scheduler);
        }
        let fields = format!("method = {method:?}\nscheduler = \"fair\"");
        let give = "give one of uniform, rr, wrr, awrr, p2c, least";
        expect_one("fair", &text(&fields), 9, &["scheduler: \"fair\" is not known", give]);
        let fields = format!("method = {method:?}\nload = \"cpu\"");
        let give = "give one of connections, packets, bytes, told";
        expect_one("cpu", &text(&fields), 9, &["load: \"cpu\" is not known", give]);
    }
    for (method, why) in [
        ("concury", "noted as pending until the next table"),
        ("residue", "noted as pending until the next table"),
        ("jet", "follows its row without looking"),
    ] {
        let fields = format!("method = {method:?}\nscheduler = \"rr\"");
        let wrong = format!("scheduler: {method} gives first packets their backends by hash alone");
        let right = "set method to one of tracked, cheetah, cheetah-stateful";
        expect_one(method, &text(&fields), 9, &[&wrong, why, right]);
    }
    let many: String = (0..200)
        .map(|n| format!("\n[[service.backend]]\nname = \"x{n}\"\naddress = \"10.7.0.{n}\"\n"))
        .collect();
    let text = format!("{}{many}", text("method = \"tracked\"\nscheduler = \"least\""));
    let said = Config::parse(&text, "weir.toml").unwrap_err().to_string();
    assert!(said.contains("least picks among 128 backends at most, not 2"), "{said}");
}

/// The balancer is in the way of the answers; a cookie leads one connection, not its client.
#[test]
fn cheetah_writes_cookies_itself() {
    let text = |more: &str| service(&format!("port = 80\nmethod = \"cheetah\"\n{more}"));
    let direct = "answers = \"backend\"";
    for fine in ["", "answers = \"inline\"", direct, "forged = \"refuse\"", "affinity = \"flow\""] {
        let config = Config::parse(&text(fine), "weir.toml").unwrap();
        assert_eq!(config.services[0].method.id(), MethodId::Cheetah);
    }
    let wrong = ["answers: \"direct\" is not known", "give one of inline"];
    expect_one("direct", &text("answers = \"direct\""), 9, &wrong);
    let wrong = ["affinity: a cookie of cheetah leads one connection", "remove it, or set method"];
    expect_one("affinity", &text("affinity = \"client\""), 9, &wrong);
    let counted = format!("{direct}\nscheduler = \"p2c\"");
    let wrong = ["connections that backends answer directly end where", "set load = \"told\""];
    expect_one("counted", &text(&counted), 4, &wrong);
    Config::parse(&text(&format!("{counted}\nload = \"told\"")), "weir.toml").unwrap();
    let stateful = |more: &str| text(more).replace("cheetah", "cheetah-stateful");
    Config::parse(&stateful(direct), "weir.toml").unwrap();
    Config::parse(&stateful("scheduler = \"rr\""), "weir.toml").unwrap();
    Config::parse(&stateful("scheduler = \"p2c\"\nload = \"told\""), "weir.toml").unwrap();
    let wrong = ["slots end by time", "set load = \"told\", \"packets\" or \"bytes\""];
    expect_one("counted", &stateful("scheduler = \"p2c\""), 4, &wrong);
    let config = Config::parse(&stateful("partitions = 32"), "weir.toml").unwrap();
    assert_eq!(config.services[0].method.id(), MethodId::CheetahStateful);
    assert_eq!(config.limits.slot_partitions, 32);
    let wrong = ["33 partitions in all, and limits.slot_partitions is 32", "to 33 or more"];
    expect_one("partitions", &stateful("partitions = 33"), 4, &wrong);
    let wrong = ["partitions: 1025 is out of range", "give 1..1024"];
    expect_one("most", &stateful("partitions = 1025"), 9, &wrong);
    let limits = "[limits]\nanswered_flows = 0\n";
    let said = Config::parse(&format!("{}{limits}", text("")), "weir.toml").unwrap_err();
    assert!(said.to_string().contains("answered_flows: 0 is out of range"), "{said}");
}

/// Both tiers share the cookie out alike; those in front read the same in it.
#[test]
fn two_tiers_of_cheetah() {
    let text = |more: &str| service(&format!("port = 80\nmethod = \"cheetah\"\n{more}"));
    let stateful = |more: &str| text(more).replace("cheetah", "cheetah-stateful");
    let tier = "answers = \"backend\"\ntier_bits = 5";
    let key = "cookie_key = \"8f95f09245765f80256934e50c66207F\"";
    for fine in [text(&format!("{tier}\n{key}")), text(key), stateful(tier), stateful(key)] {
        Config::parse(&fine, "weir.toml").unwrap();
    }
    let wrong = ["cookie_key: is missing", "give the same 32 of 0-9 and a-f on all balancers"];
    expect_one("no key", &text(tier), 4, &wrong);
    let wrong = ["no balancer is in the way of all answers", "set answers = \"backend\""];
    expect_one("inline", &stateful("tier_bits = 5"), 9, &wrong);
    let wrong = ["tier_bits: 7 is out of range", "give 0..6"];
    expect_one("bits", &stateful("answers = \"backend\"\ntier_bits = 7"), 10, &wrong);
    let wrong = ["cookie_key: is not 16 bytes in hexadecimal", "openssl rand -hex 16"];
    expect_one("short", &text("cookie_key = \"8f95\""), 9, &wrong);
    let concury = service(&format!("port = 80\n{key}"));
    let wrong = ["concury has no cookies", "remove it, or set method = \"cheetah\""];
    expect_one("no cookies", &concury, 8, &wrong);
    let many: String = (0..3)
        .map(|n| format!("\n[[service.backend]]\nname = \"x{n}\"\naddress = \"10.7.0.{n}\"\n"))
        .collect();
    let few = format!("answers = \"backend\"\ntier_bits = 1\n{key}");
    let said = Config::parse(&format!("{}{many}", text(&few)), "weir.toml").unwrap_err();
    assert!(said.to_string().contains("a cookie tells 2 backends apart, not "), "{said}");
}

/// Keys of cookies that say their keys, and what cannot have such.
#[test]
fn keys_of_cookies_that_change() {
    let text = |more: &str| service(&format!("port = 80\nmethod = \"cheetah\"\n{more}"));
    let (one, two) = ("8f95f09245765f80256934e50c66207f", "0f95f09245765f80256934e50c66207f");
    let keys = |list: &str| text(&format!("answers = \"backend\"\ncookie_keys = {list}"));
    let config = Config::parse(&keys(&format!("[\"{one}\"]")), "weir.toml").unwrap();
    let found = config.services[0].cookie_keys.clone().expect("it has keys");
    assert_eq!((found.key(0).is_some(), found.key(1).is_some(), found.issue), (true, false, 0));
    let both = format!("[\"{one}\", \"{two}\"]\nissue_key = 1");
    let config = Config::parse(&keys(&both), "weir.toml").unwrap();
    let found = config.services[0].cookie_keys.clone().expect("it has keys");
    assert_eq!((found.issue, found.issuing()), (1, found.key(1)));
    // The same keys are others in another service.
    assert_ne!(found.of_tables(b"a"), found.of_tables(b"b"));
    for (name, list, line, wrong) in [
        ("none", "[]".into(), 10, ["0 keys", "give one or two"]),
        ("three", format!("[\"{one}\", \"{two}\", \"\"]"), 10, ["3 keys", "give one or two"]),
        ("short", "[\"8f95\"]".into(), 10, ["is not 16 bytes in hexadecimal", "openssl rand"]),
        ("same", format!("[\"{one}\", \"{one}\"]"), 10, ["both keys are the same", "another one"]),
        ("absent", format!("[\"{one}\"]\nissue_key = 1"), 11, ["no key 1", "that there is"]),
        ("number", format!("[\"{one}\"]\nissue_key = 2"), 11, ["out of range", "0..1"]),
    ] {
        expect_one(name, &keys(&list), line, &wrong);
    }
    let own = format!("cookie_keys = [\"{one}\"]");
    let wrong = ["does not say under which key", "set answers = \"backend\""];
    expect_one("inline", &text(&own), 9, &wrong);
    let stateful = text(&own).replace("cheetah", "cheetah-stateful");
    expect_one("stateful", &stateful, 9, &["leads nowhere but to a slot", "remove it"]);
    expect_one("alone", &text("issue_key = 0"), 9, &["no keys to choose from", "give cookie_keys"]);
    expect_one(
        "concury",
        &service(&format!("port = 80\n{own}")),
        8,
        &["concury has no cookies", "remove it"],
    );
}

/// A method's name, and its settings with their values.
pub(super) fn method(method: &Method) -> (&'static str, Vec<(&'static str, u32)>) {
    (
        method.name(),
        method.settings().iter().map(|(setting, value)| (setting.name, value)).collect(),
    )
}

#[test]
fn a_method_survives_json_and_is_checked_there() {
    for id in weir_steering::MethodId::published() {
        let mut settings = weir_steering::Settings::of(id);
        for (setting, _) in weir_steering::Settings::of(id).iter() {
            let least = u64::from(setting.range.0);
            let value = if setting.prime { weir_steering::next_prime(least) } else { least };
            settings.set(setting.name, value).unwrap();
        }
        let before = Method::new(settings).unwrap();
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<Method>(&text).unwrap(), before, "{text}");
    }
    // As an earlier version of weir wrote it.
    let old: Method = serde_json::from_str(r#"{"name":"concury","dcode_bits":10}"#).unwrap();
    assert_eq!(method(&old), ("concury", vec![("dcode_bits", 10)]));
    for (text, wrong) in [
        (r#"{"name":"nothing"}"#, "no method nothing"),
        (r#"{"name":"full-tracking"}"#, "no method full-tracking"),
        (r#"{"name":"jet","placement":"maglev"}"#, "give one of table, ring, anchor"),
        (r#"{"name":"concury","dcode_bits":16}"#, "give 4..=15"),
        (r#"{"name":"concury","table_size":7}"#, "it has dcode_bits"),
        (r#"{"name":"tracked","table_size":8}"#, "prime"),
    ] {
        let error = serde_json::from_str::<Method>(text).unwrap_err().to_string();
        assert!(error.contains(wrong), "{text}: {error}");
    }
}
