//! What verbs of the laboratory are asked for by mistake: it is refused before anything runs, with words that name it.

mod common;

use common::{stderr, stdout};
use std::fs;
use std::path::Path;

/// As scripts see arguments that make no sense, and what cannot be done for another reason.
const SENSELESS: i32 = 2;
const FAILED: i32 = 1;

fn refused(line: &str) -> String {
    refused_with(SENSELESS, line)
}

fn refused_with(status: i32, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = common::weir(&words);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{line}: {said}");
    assert!(output.stdout.is_empty(), "{line}: {}", stdout(&output));
    assert!(!said.contains("panicked"), "{line}: {said}");
    said
}

#[test]
fn numbers_that_cannot_be_measured_are_refused() {
    for (line, words) in [
        ("lab --change-every nan", "give a number from 0.05 to 3600"),
        ("lab --change-every 3601", "give a number from 0.05 to 3600"),
        ("lab compare --change-every -1", "give a number from 0.05 to 3600"),
        ("fib switch --moves-per-second nan", "--moves-per-second"),
        ("fib content --seconds inf", "--seconds"),
        ("bench lookup --states 1K --seconds 0 --rounds 1", "--seconds"),
        ("bench lookup --states 1K --seconds nan", "--seconds"),
        ("bench lookup --states 1K --lookups 0", "--lookups"),
        ("bench lookup --states 1K --rounds 0", "--rounds"),
        ("bench lookup --states 1K --pool-change-every 0s", "--pool-change-every"),
        ("bench lookup --states 1K --batch 1000000", "bursts of 1000000 packets: 1 to 4096"),
        ("bench lookup --states 1K --batch 0", "bursts of 0 packets: 1 to 4096"),
        ("bench lookup --states 1K --skew 3", "--keys zipf"),
        ("bench lookup --states 1K --backends 5000", "concury-othello has at most 4096"),
        ("bench lookup --states 1K --backends 10000", "10000 backends: 2 to 9,999"),
        ("bench xdp --rounds 1 --packets 0 --flows 100", "--packets"),
        ("bench xdp --rounds 0", "--rounds"),
        ("bench update --rounds 0", "--rounds"),
        ("bench update --states 0", "--states"),
        ("bench control --rounds 0", "--rounds"),
        ("bench control --scrapes 0", "--scrapes"),
        ("bench maps --rounds 0", "--rounds"),
        ("bench maps --lookups 0", "--lookups"),
        ("bench maps --keys 1K --batch 5000 --json", "bursts of 5000 keys: 1 to 4096"),
        ("bench maps --zipf nan", "--zipf"),
        ("bench lookup --control --states 0", "at least 100"),
        ("lab --backends 0", "0 is not in 2..=200"),
        ("lab --backends 1", "1 is not in 2..=200"),
        ("lab --connections 0", "--connections"),
        ("lab --duration 99999999999d", "give 30d at most"),
        ("lab compare --patience 31d", "give 30d at most"),
        ("fib switch --duration 99999999999d", "give 30d at most"),
        ("bench control --patience 99999999999d", "give 30d at most"),
        ("lab --method concury --topology tiers", "add --method cheetah-stateful"),
        (
            "lab --method cheetah-stateful --topology tiers --answers inline",
            "leave --answers out, or give --answers backend",
        ),
        ("reproduce nosuch", "there is no figure \"nosuch\""),
        ("reproduce concury-fig10 --out - --json", "--out needs a file"),
        ("sim nosuch", "neither a file nor a built-in scenario"),
        ("sim cheetah-7 --json --csv -", "so --csv and --series need a file"),
        ("bench lookup --methods nope", "no method is called nope"),
        ("bench fleet --backends 1", "1 backends: 2 to 1024"),
        ("bench xdp --instructions --beside /etc/passwd", "/etc/passwd: no BPF object"),
    ] {
        let said = refused(line);
        assert!(said.contains(words), "{line}: {said}");
    }
}

#[test]
fn the_bench_of_othello_takes_no_option_that_it_does_not_use() {
    for option in [
        "--methods nope",
        "--keys zipf",
        "--skew 2",
        "--threads 2",
        "--batch 16",
        "--backends 9",
        "--updates 5",
        "--pool-change-every 1s",
        "--neighbour",
        "--seconds 1",
        "--lookups 1K",
        "--csv",
    ] {
        let said = refused(&format!("bench lookup --control --states 1K {option}"));
        let name = option.split(' ').next().unwrap();
        assert!(said.contains("cannot be used with") && said.contains(name), "{option}: {said}");
    }
}

/// New flows are counted, whatever was asked for.
#[test]
fn new_flows_that_were_made_stand_beside_those_that_were_asked_for() {
    let output = common::weir(&[
        "bench",
        "lookup",
        "--methods",
        "residue",
        "--states",
        "1K",
        "--updates",
        "1000M",
        "--pool-change-every",
        "10s",
        "--lookups",
        "100K",
        "--rounds",
        "1",
        "--json",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let row = &report["rows"][0];
    assert_eq!(row["new_states_per_s"], 1e9);
    let made = row["new_states_made_per_s"].as_f64().unwrap();
    // Of each block of packets half may begin flows.
    let most = 1e6
        * row["mlookups_per_s"]
            .as_f64()
            .unwrap()
            .max(row["single_mlookups_per_s"].as_f64().unwrap());
    assert!(made > 0.0 && made < most, "{made} of {most}");
}

#[test]
fn a_report_that_cannot_be_written_is_found_before_any_figure_runs() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().display();
    fs::write(directory.path().join("file"), "old").unwrap();
    fs::create_dir_all(directory.path().join("rows/concury-fig10.csv")).unwrap();
    for (arguments, words) in [
        (format!("--out {at}/no/such.html"), "cannot write"),
        (format!("--out {at}"), "it is a directory"),
        (format!("--out {at}/new/"), "it names a directory"),
        (format!("--out {at}/report.html --csv {at}/file"), "cannot make the directory"),
        (format!("--out {at}/report.html --csv {at}/rows"), "concury-fig10.csv"),
    ] {
        let line = format!("reproduce concury-fig10 --size smoke {arguments}");
        let said = refused_with(FAILED, &line);
        assert!(said.contains(words), "{arguments}: {said}");
        assert!(!said.contains("[1/1]"), "it ran: {said}");
    }
    let said = refused_with(FAILED, &format!("sim cheetah-7 --size smoke --csv {at}/no/rows.csv"));
    assert!(said.contains("cannot write"), "{said}");
    assert_eq!(fs::read_to_string(directory.path().join("file")).unwrap(), "old");
    assert!(!directory.path().join("report.html").exists());
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_report_goes_to_the_output_or_takes_the_place_of_the_old_one() {
    let directory = tempfile::tempdir().unwrap();
    let (out, rows) = (directory.path().join("report.html"), directory.path().join("rows"));
    fs::write(&out, "old").unwrap();
    let run = |out: &str| {
        let rows = rows.to_str().unwrap();
        let plain = ["reproduce", "concury-fig10", "--size", "smoke", "--csv", rows, "--out", out];
        let output = common::weir(&plain);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let page = run("-");
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"), "{page}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "old");
    let said = run(out.to_str().unwrap());
    assert!(said.contains("report: "), "{said}");
    assert!(fs::read_to_string(&out).unwrap().starts_with("<!DOCTYPE html>"));
    assert_eq!(names(&rows), ["concury-fig10.csv"]);
    assert_eq!(names(directory.path()).len(), 2, "nothing is left beside them");
}

/// The fifth of six sections is at fault, and that is what is said.
#[test]
fn a_fault_in_a_scenario_is_told_with_its_line_and_field() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.toml");
    let mut text = "name = \"x\"\nduration = 20.0\n[traffic]\nflows = 50\n[pool]\nservers = 5\n\
        updates_per_minute = 0\n"
        .to_owned();
    let sound = "[[method]]\nkind = \"cheetah\"\nscheduler = \"round-robin\"\n";
    text += &sound.repeat(4);
    text += "[[method]]\nkind = \"cheetah\"\nscheduler = \"foo\"\n";
    text += sound;
    for (text, place, words) in [
        (text.clone(), 22, "method.4.scheduler: unknown variant `foo`"),
        (
            text.replace("\"foo\"", "\"round-robin\"\n[[event]]\nat = 500\nadd = 3"),
            24,
            "event.0.at must be",
        ),
        (
            text.replace("\"foo\"", "\"round-robin\"\n[[event]]\nat = 5\nadd = 3"),
            25,
            "event.0.add must be",
        ),
        (
            text.replace("20.0", "1e300").replace("\"foo\"", "\"round-robin\""),
            2,
            "duration must be",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let said = refused_with(FAILED, &format!("sim {}", file.display()));
        assert!(said.contains(&format!("x.toml:{place}: {words}")), "{said}");
    }
}
