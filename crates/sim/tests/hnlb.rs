//! HNLB beside methods, over an *emulated* card: nothing breaks, and few rules carry many packets.

use weir_sim::{Report, Row, Scenario, Size, builtin, run};

fn rows(name: &str) -> Vec<Row> {
    let mut scenario = builtin(name, Size::Smoke).expect("it is built in");
    scenario.seed = 3;
    let Report { rows, .. } = run(&scenario).expect("it plays");
    rows
}

#[test]
fn few_rules_carry_many_packets_and_nothing_breaks() {
    let rows = rows("hnlb");
    let of = |policy: &str, rules: u32| -> &Row {
        let name = format!("hnlb {policy} {rules} beside concury");
        rows.iter().find(|row| row.method == name).unwrap_or_else(|| panic!("{name}"))
    };
    for row in &rows {
        println!("{}: {:.0} rules lead {:.1} %", row.method, row.rules, row.led_percent);
        assert_eq!((row.broken, row.misdirected), (0, 0), "{}", row.method);
        assert!(row.departures > 0 && row.flows > 500, "{}", row.method);
    }
    for policy in ["all", "heavy", "sampled"] {
        let shares = [16, 64, 256, 8192].map(|rules| of(policy, rules).led_percent);
        let more = shares.windows(2).all(|pair| pair[1] > pair[0] - 1.0);
        assert!(more, "{policy}: {shares:?}");
    }
    // 16 rules for 2,000 connections: those that send most carry far more than a hundredth.
    let (all, heavy) = (of("all", 16).led_percent, of("heavy", 16).led_percent);
    assert!(heavy > 50.0 && heavy > 1.5 * all, "{heavy} {all}");
    assert!(of("sampled", 16).led_percent > 1.3 * all);
    assert!(of("all", 8192).led_percent > 90.0);
}

const FILE: &str = r#"
name = "beside others"
duration = 20.0
warmup = 5.0
engine = "every-packet"
[traffic]
flows = 500
packets_per_kb = 0.01
[pool]
servers = 20
updates_per_minute = 12
"#;

fn parse(methods: &str) -> Result<Scenario, weir_sim::ScenarioError> {
    let text = format!("{FILE}{methods}");
    Scenario::parse_sized(&text, std::path::Path::new("hnlb.toml"), Size::Normal)
}

/// What the method alone does to connections, it does with a card beside it: with commands that take seconds, and
/// few queues.
#[test]
fn a_card_changes_nothing_for_connections() {
    for (method, table) in [("concury", ""), ("tracked", "table = 2.0\n"), ("residue", "")] {
        let rules = "rules = 100\ndelay = 2.0\nrate = 500\nqueues = 12\n";
        let alone = format!("[[method]]\nkind = \"published\"\nmethod = \"{method}\"\n{table}");
        let beside = format!(
            "[[method]]\nkind = \"hnlb\"\nbeside = \"{method}\"\npolicy = \"all\"\n{rules}"
        );
        let report =
            run(&parse(&format!("{alone}{beside}")).expect("it is right")).expect("it plays");
        let [alone, beside] = &report.rows[..] else { panic!("two") };
        assert_eq!(
            (alone.flows, alone.broken, alone.inevitable, alone.misdirected),
            (beside.flows, beside.broken, beside.inevitable, beside.misdirected),
            "{method}"
        );
        assert_eq!(beside.broken, 0);
        assert!(beside.led_percent > 1.0, "{method}: {}", beside.led_percent);
        assert_eq!(alone.led_percent, 0.0);
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_field() {
    for (field, value) in [
        ("rules", "0.5"),
        ("rules", "[2048, 70000]"),
        ("queues", "1"),
        ("delay", "-1.0"),
        ("rate", "0"),
        ("least", "0"),
        ("one_in", "0"),
        ("beside", "\"cheetah\""),
        ("policy", "\"none\""),
    ] {
        let rules = if field == "rules" { "" } else { "rules = 10\n" };
        let text = format!("[[method]]\nkind = \"hnlb\"\n{rules}{field} = {value}\n");
        let error = parse(&text).expect_err(field).to_string();
        println!("{error}");
        let named = if field == "policy" { "unknown variant `none`" } else { field };
        assert!(error.contains(named) && error.contains("hnlb.toml"), "{error}");
    }
    let text = FILE.replace("servers = 20", "servers = 20\nbalancers = 2");
    let text = format!("{text}[[method]]\nkind = \"hnlb\"\nrules = 10\n");
    let scenario = Scenario::parse_sized(&text, std::path::Path::new("hnlb.toml"), Size::Normal);
    let error = run(&scenario.expect("it is read")).expect_err("two cards").to_string();
    assert!(error.contains("pool.balancers"), "{error}");
}
