//! `weir schema`, read by another implementation: what runs is valid by it, and what is wrong is not.

use std::io::Write;
use std::process::{Command, Stdio};

/// Reads a schema from the file of the first argument, and TOML files, one in each further argument; prints
/// the number of faults of each.
const JUDGE: &str = r#"
import json, sys, tomllib
from jsonschema import Draft202012Validator
schema = json.load(open(sys.argv[1]))
Draft202012Validator.check_schema(schema)
judge = Draft202012Validator(schema)
for text in json.load(sys.stdin):
    faults = list(judge.iter_errors(tomllib.loads(text)))
    print(len(faults), *(fault.message[:200].replace("\n", " ") for fault in faults))
"#;

const GOOD: &str = r#"[balancer]
interfaces = ["eth0"]

[[service]]
name = "web"
vip = "10.0.0.1"
port = 80

[service.check]
interval = "2s"

[[service.backend]]
name = "b1"
address = "10.0.0.11"
"#;

fn judged(texts: &[String]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let schema = folder.path().join("schema.json");
    let made = Command::new(env!("CARGO_BIN_EXE_weir")).arg("schema").output().unwrap();
    assert!(made.status.success());
    std::fs::write(&schema, made.stdout).unwrap();
    let mut judge = Command::new("/usr/bin/python3")
        .args(["-c", JUDGE])
        .arg(&schema)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Debian's Python, with python3-jsonschema");
    let sent = serde_json::to_string(texts).unwrap();
    judge.stdin.take().unwrap().write_all(sent.as_bytes()).unwrap();
    let output = judge.wait_with_output().unwrap();
    assert!(output.status.success(), "the schema is none, or a text no TOML");
    let lines: Vec<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), texts.len());
    lines
}

#[test]
fn what_runs_is_valid() {
    let example = include_str!("../../examples/weir.toml");
    // What is commented out are defaults, and examples of what has none.
    let setting = |line: &str| {
        let bare = line.strip_prefix("# ").map(str::trim_start)?;
        let (key, _) = bare.split_once(" = ")?;
        key.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            .then(|| bare.to_owned())
    };
    let mut seen = std::collections::HashSet::new();
    let mut all = String::new();
    for line in example.lines() {
        // So are whole tables.
        let table = line.strip_prefix("# ").map(str::trim_start).filter(|bare| {
            bare.strip_prefix('[').is_some_and(|bare| bare.ends_with(']') && !bare.contains(' '))
        });
        let line = table.unwrap_or(line);
        if line.starts_with('[') {
            seen.clear();
        }
        let line = setting(line).unwrap_or_else(|| line.to_owned());
        let key = line.split_once(" = ").map(|(key, _)| key.to_owned());
        if key.is_none_or(|key| seen.insert(key)) {
            all += &(line + "\n");
        }
    }
    let followed = |one_in: u32| {
        let line = format!("interfaces = [\"eth0\"]\nfollow_flows = {one_in}");
        GOOD.replacen("interfaces = [\"eth0\"]", &line, 1)
    };
    let [none, most] = [0, 65_536].map(followed);
    let faults = judged(&[example.to_owned(), GOOD.to_owned(), all, none, most]);
    assert_eq!(faults, ["0"; 5]);
}

#[test]
fn what_is_wrong_is_not_valid() {
    let faults = [
        ("port = 80", "port = \"eighty\""),
        ("port = 80", "prot = 80"),
        ("port = 80", ""),
        ("port = 80", "port = 70000"),
        ("port = 80", "port = 80\nmethod = \"maglev\""),
        ("port = 80", "port = 80\ndcode_bits = 3"),
        ("port = 80", "port = 80\ntable_size = \"large\""),
        ("port = 80", "port = 80\nforward = \"vxlan\""),
        ("interfaces = [\"eth0\"]", ""),
        ("interfaces = [\"eth0\"]", "interfaces = []"),
        ("interfaces = [\"eth0\"]", "interfaces = \"eth0\""),
        ("interfaces = [\"eth0\"]", "interfaces = [\"eth0\"]\nname = \"No Name\""),
        ("interfaces = [\"eth0\"]", "interfaces = [\"eth0\"]\nfollow_flows = 3"),
        ("interfaces = [\"eth0\"]", "interfaces = [\"eth0\"]\nfollow_flows = 131072"),
        ("interval = \"2s\"", "interval = 2"),
        ("interval = \"2s\"", "rise = 0"),
        ("interval = \"2s\"", "type = \"ftp\""),
        ("interval = \"2s\"", "type = \"http\"\nstatus = []"),
        ("name = \"b1\"", ""),
        ("address = \"10.0.0.11\"", "address = \"10.0.0.11\"\nweight = 70000"),
        ("address = \"10.0.0.11\"", "address = \"10.0.0.11\"\ncheck = { all_down = \"keep\" }"),
        ("[[service.backend]]", "[[service.backends]]"),
    ];
    let texts: Vec<String> = faults.iter().map(|(old, new)| GOOD.replacen(old, new, 1)).collect();
    for ((fault, text), judged) in faults.iter().zip(&texts).zip(judged(&texts)) {
        assert_ne!(judged, "0", "{fault:?}");
        // weir refuses it, too.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.toml");
        std::fs::write(&file, text).unwrap();
        let checked = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["check", "--config"])
            .arg(&file)
            .output()
            .unwrap();
        assert_eq!(checked.status.code(), Some(1), "{fault:?}");
    }
}
