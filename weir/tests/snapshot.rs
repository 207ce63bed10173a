//! `weir snapshot`: no secret is in it, and the tables in it lead flows where the balancer's do.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{WEIR, stderr, stdout};
use serde_json::Value;
use weir_lab::{Balancer, BalancerSpec};

fn weir(balancer: &Balancer, arguments: &[&str]) -> std::process::Output {
    let socket = balancer.socket().display().to_string();
    let mut all = arguments.to_vec();
    all.extend(["--socket", &socket]);
    common::weir(&all)
}

fn explained(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).unwrap()
}

#[test]
fn flows_go_by_a_snapshot_where_they_go_by_the_balancer() {
    let _alone = common::alone();
    for method in ["concury", "residue", "jet", "tracked"] {
        let lab = common::lab(4);
        let balancer = common::start_spec(
            &lab,
            BalancerSpec { method: method.into(), ..BalancerSpec::new(WEIR, 4) },
        );
        common::reach_all(&lab, common::WEB4, 4);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("whole.json");
        let path = file.to_str().unwrap();
        let said = weir(&balancer, &["snapshot", "--tables", "--output", path]);
        assert!(said.status.success() && stdout(&said).contains("keys"), "{}", stderr(&said));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let snapshot: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(snapshot["format"], "weir snapshot 1");
        assert_eq!(snapshot["status"]["services"].as_array().unwrap().len(), 3);
        assert!(
            snapshot["host"]["kernel"].as_str().unwrap().contains("Linux"),
            "{}",
            snapshot["host"]
        );
        assert!(!snapshot["findings"].as_array().unwrap().is_empty());
        assert!(!snapshot["history"]["entries"].as_array().unwrap().is_empty());
        assert!(snapshot["configuration"]["service"][0]["name"].is_string());
        // A file that is there is not overwritten.
        let again = weir(&balancer, &["snapshot", "--output", path]);
        let said = stderr(&again);
        assert_eq!(again.status.code(), Some(4), "{said}");
        assert!(said.contains(path) && said.contains("remove it, or give --output"), "{said}");
        // The table alone decides of flows that nobody knows.
        let mut backends = std::collections::BTreeSet::new();
        for port in 0..60 {
            let source = format!("198.51.100.{}:{}", port, 40_000 + port);
            let target = common::WEB4.to_string();
            let flow = ["explain", "tcp", &source, &target, "--json"];
            let asked = explained(&weir(&balancer, &flow));
            let mut offline = flow.to_vec();
            offline.extend(["--snapshot", path]);
            let told = explained(&common::weir(&offline));
            assert_eq!(asked["backend"], told["backend"], "{method} {source}: {asked} {told}");
            assert_eq!(asked["digest"], told["digest"]);
            backends.insert(told["backend"].as_str().unwrap().to_owned());
        }
        assert_eq!(backends.len(), 4, "{method}: {backends:?}");
        // Without the tables their headers are there, and explain says how to get the rest.
        let small = folder.path().join("small.json");
        let small = small.to_str().unwrap();
        assert!(weir(&balancer, &["snapshot", "--output", small]).status.success());
        let text = fs::read_to_string(small).unwrap();
        let digest = snapshot["tables"][0]["digest"].as_str().unwrap();
        assert!(text.contains(digest) && !text.contains("\"table\""));
        let explain = |file: &str| {
            common::weir(&["explain", "tcp", "198.51.100.1:1", "10.99.0.1:80", "--snapshot", file])
        };
        let flow =
            ["explain", "tcp", "198.51.100.1:1", &common::WEB4.to_string(), "--snapshot", small];
        let refused = common::weir(&flow);
        assert!(
            !refused.status.success() && stderr(&refused).contains("--tables"),
            "{}",
            stderr(&refused)
        );
        assert!(stdout(&explain(path)).contains("no service"), "{}", stdout(&explain(path)));
        // A damaged one, and none.
        let table = snapshot["tables"][0]["table"].as_str().unwrap();
        let name = snapshot["tables"][0]["service"].as_str().unwrap();
        let whole = fs::read_to_string(&file).unwrap();
        let at = table.len() - 9000;
        let digit = if &table[at..=at] == "0" { "1" } else { "0" };
        let odd = format!("{}{digit}{}", &table[..at], &table[at + 1..]);
        let bad = folder.path().join("bad.json");
        fs::write(&bad, whole.replacen(table, &odd, 1)).unwrap();
        let of = common::service(&snapshot["status"], name);
        let vip = format!("{}:{}", of["vip"].as_str().unwrap(), of["port"]);
        let protocol = of["protocol"].as_str().unwrap();
        let flow =
            ["explain", protocol, "198.51.100.1:1", &vip, "--snapshot", bad.to_str().unwrap()];
        let refused = common::weir(&flow);
        assert!(!refused.status.success(), "{method}: {}", stdout(&refused));
        assert!(stderr(&refused).contains("bad.json"), "{}", stderr(&refused));
        fs::write(&bad, "{\"format\": \"something\"}").unwrap();
        let refused = explain(bad.to_str().unwrap());
        assert!(stderr(&refused).contains("no snapshot"), "{}", stderr(&refused));
        let refused = explain("/nonexistent.json");
        assert!(stderr(&refused).contains("/nonexistent.json"), "{}", stderr(&refused));
    }
}

/// Where a disc is full, nothing is left that would be in the way when there is room again.
#[test]
fn what_cannot_be_written_leaves_nothing() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let disc = lab.directory().join("disc");
    fs::create_dir(&disc).unwrap();
    let (disc, socket) = (disc.display(), balancer.socket().display().to_string());
    for line in ["snapshot --output", "trace --for 1s --write"] {
        // One page, which a snapshot does not fit into, and nothing beside it.
        let script = format!(
            "mount -t tmpfs -o size=4k tmpfs {disc}; head -c 4096 /dev/zero > {disc}/full; \
             {WEIR} {line} {disc}/file --socket {socket} && exit 9; ls -A {disc}"
        );
        let mut shell = std::process::Command::new("unshare");
        let output = shell.args(["--mount", "sh", "-c", &script]).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.success() && said.contains("No space left"), "{line}: {said}");
        assert_eq!(stdout(&output), "full\n", "{line}: {said}");
    }
}

#[test]
fn secrets_stay_at_home() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let more = "\n[[service]]\nname = \"secrets\"\nvip = \"10.77.0.1\"\nport = 80\nmethod = \"concury\"\n\
                [service.check]\ntype = \"http\"\nheaders = { Authorization = \"Basic SECRETWORD\" }\n\
                [[service.backend]]\nname = \"b\"\naddress = \"ADDRESS\"\n";
    let address = weir_lab::topology::backend4(0).to_string();
    let more_services = more.replace("ADDRESS", &address);
    let balancer =
        common::start_spec(&lab, BalancerSpec { more_services, ..BalancerSpec::new(WEIR, 2) });
    for arguments in
        [&["snapshot", "--output", "-"][..], &["snapshot", "--tables", "--output", "-"]]
    {
        let text = stdout(&weir(&balancer, arguments));
        assert!(text.contains("Authorization") && text.contains("(left out)"), "{text}");
        assert!(!text.contains("SECRETWORD"), "it is in the snapshot");
    }
    // A file that is broken meanwhile is not quoted either.
    let written = fs::read_to_string(balancer.config()).unwrap();
    fs::write(balancer.config(), written + "\ncookie_key = SECRETWORD = 7\n").unwrap();
    let text = stdout(&weir(&balancer, &["snapshot", "--output", "-"]));
    assert!(text.contains("not TOML"), "{text}");
    assert!(!text.contains("SECRETWORD"), "it is in the snapshot");
}
