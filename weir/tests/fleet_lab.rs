//! `weir lab` of a fleet of three: beside floods, and with agents that say what is not true.
//!
//! The floods take all of the machine that they can get, so the tests of this file have it alone (scripts/run-tests).

mod common;

use serde_json::Value;

/// What `weir lab` says of a fleet of three, with these options besides.
fn lab_of_a_fleet(options: &[&str]) -> Value {
    let seed = common::seed().to_string();
    let plain = ["lab", "--fleet", "3", "--json", "--seed", &seed, "--backends", "6"];
    let amount = ["--connections", "400", "--duration", "10s", "--patience", "120s"];
    let said = common::weir(&[&plain[..], &amount, options].concat());
    println!("{}", common::stderr(&said));
    let report = common::stdout(&said);
    let report: Value =
        serde_json::from_str(&report).unwrap_or_else(|error| panic!("{error}: {report}"));
    let fault = common::stderr(&said).lines().last().unwrap_or_default().to_owned();
    assert!(said.status.success(), "{report:#}\n{fault}");
    report
}

/// Beside a flood of SYNs and one of ACKs, as fast as they can be sent, with each method whose promise it is.
#[test]
fn a_fleet_in_floods_breaks_nothing() {
    let _alone = common::alone();
    for method in ["residue", "cheetah", "concury"] {
        let amount = ["--flood", "both", "--total", "2000", "--changes", "4"];
        let report = lab_of_a_fleet(&[&["--method", method][..], &amount].concat());
        let traffic = &report["traffic"];
        assert_eq!(traffic["broken"], 0, "{report:#}");
        assert!(traffic["completed"].as_u64() >= Some(1_000), "{report:#}");
        for kind in ["syn", "ack"] {
            assert!(report["flooded"][kind].as_u64() >= Some(100_000), "{report:#}");
        }
        println!("{method}: {}, {}", traffic["completed"], report["flooded"]);
    }
}

/// Agents leave out connections, and say of others that they have ended: some of these break, and no others.
#[test]
fn connections_that_agents_fail_to_report_are_the_only_ones_that_break() {
    let _alone = common::alone();
    let lies = ["--omit-one-in", "5", "--end-one-in", "7", "--total", "4000", "--changes", "12"];
    let report = lab_of_a_fleet(&[&["--method", "concury"][..], &lies].concat());
    let traffic = &report["traffic"];
    let count = |name: &str| traffic[name].as_u64().unwrap_or_else(|| panic!("{report:#}"));
    println!("{} of {} untold ones broke", count("broken_untold"), count("untold"));
    assert_eq!(count("broken"), 0, "{report:#}");
    assert!(count("broken_untold") > 0, "these are lost when all follow the next table");
    assert!(count("untold") < count("completed"), "{report:#}");
}
