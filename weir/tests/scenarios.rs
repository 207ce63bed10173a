//! `weir lab compare --scenario`: the places where balancers are known to lose connections, with a
//! method that promises to lose none (docs/lab.md).

mod common;

use serde_json::Value;

/// Runs a comparison and returns its rows; it must have ended with `status`.
fn compare(arguments: &[&str], status: i32) -> Vec<Value> {
    let seed = common::seed().to_string();
    let lab = ["lab", "compare", "--json", "--seed", &seed, "--limit", "30m", "--patience", "2m"];
    let small = ["--connections", "600", "--backends", "6"];
    let output = common::weir(&[&lab[..], &small, arguments].concat());
    let said = common::stderr(&output);
    let tail: Vec<&str> = said.lines().rev().take(60).collect();
    let log = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
    assert_eq!(output.status.code(), Some(status), "{log}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["seed"].to_string(), seed);
    report["rows"].as_array().expect("rows").clone()
}

/// Each with what has to happen in it, at least. (`syn-flood` takes as long as the machine needs for its
/// updates beside a flood that knows no measure; weir/tests/flood.rs has floods of a size.)
const SCENARIOS: [(&str, u64); 7] = [
    ("churn", 0),
    ("ack-flood", 100_000),
    ("idle", 1),
    ("handshake", 100),
    ("dead-control", 1),
    ("flap", 5),
    ("reuse", 500),
];

#[test]
fn concury_breaks_no_connection_where_others_do() {
    let _alone = common::alone();
    let names = SCENARIOS.map(|(name, _)| name).join(",");
    let rows = compare(
        &["--methods", "concury", "--scenario", &names, "--duration", "5s", "--changes", "5"],
        0,
    );
    assert_eq!(rows.len(), SCENARIOS.len());
    for (row, (name, least)) in rows.iter().zip(SCENARIOS) {
        println!("{row}");
        assert_eq!((&row["method"], &row["scenario"]), (&"concury".into(), &name.into()));
        assert_eq!(row["broken"], 0, "{row}");
        assert!(row["fault"].is_null() && row["foreseen"].is_null(), "{row}");
        assert!(row["completed"].as_u64() > Some(300), "{row}");
        assert!(row["met"].as_u64() >= Some(least), "{row}");
        assert!(row["changes"].as_u64() >= Some(5), "{row}");
        for figure in ["inevitable", "tracked", "state_bytes"] {
            assert!(row[figure].is_u64(), "{figure}: {row}");
        }
        if ["ack-flood", "idle", "handshake"].contains(&name) {
            assert_eq!(row["inevitable"], 0, "nothing is killed there: {row}");
        }
    }
}

/// A connection that is silent for longer than the warm-up may move by jet's own page, and does if
/// many are: the row says so, and the comparison does not fail for it. It shows, too, that the
/// scenario finds what moved.
#[test]
fn what_a_methods_page_foresees_is_counted_and_is_no_fault() {
    let _alone = common::alone();
    let rows = compare(&["--methods", "jet", "--scenario", "idle", "--duration", "45s"], 0);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    println!("{row}");
    // How many these are is chance; whatever they are, they are shown and are no fault.
    assert!(row["broken"].is_u64(), "{row}");
    assert!(row["foreseen"].as_str().is_some_and(|why| why.contains("warm-up")), "{row}");
    assert!(row["fault"].is_null(), "{row}");
}

#[test]
fn a_scenario_that_there_is_not_is_refused_with_those_that_there_are() {
    let output = common::weir(&["lab", "compare", "--scenario", "churn,earthquake"]);
    assert_eq!(output.status.code(), Some(2));
    let said = common::stderr(&output);
    for words in ["earthquake", "syn-flood", "dead-control"] {
        assert!(said.contains(words), "{said}");
    }
}
