//! `weir import`: files of other balancers, by the command line.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn weir(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(WEIR)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it has read all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const IPVS: &str =
    "-A -t 192.0.2.1:80 -s wlc\n-a -t 192.0.2.1:80 -r 192.0.2.11:80 -g -w 2\n-A -f 3 -s rr\n";

#[test]
fn what_is_written_passes_the_check() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.toml").display().to_string();
    let output = weir(&["import", "-", "--interface", "lan0", "--output", &path], IPVS);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("standard input:3: services by firewall mark"), "{said}");
    assert!(text(&output.stdout).contains("1 service with 1 backend"));
    let written = fs::read_to_string(&path).unwrap();
    for words in
        ["interfaces = [\"lan0\"]", "scheduler = \"least\"", "forward = \"l2\"", "#   line 3: "]
    {
        assert!(written.contains(words), "{words}: {written}");
    }
    // Of the way to backends only a host with a route can say more.
    let checked = weir(&["check", "--config", &path], "");
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    // A file that is there stays.
    let again = weir(&["import", "-", "--output", &path], IPVS);
    assert_eq!(again.status.code(), Some(4), "{}", text(&again.stderr));
    assert_eq!(fs::read_to_string(&path).unwrap(), written);
    // Without a file it is printed, and nothing else is.
    let printed = weir(&["import", "-", "--interface", "lan0"], IPVS);
    assert_eq!(text(&printed.stdout), written);
}

#[test]
fn what_cannot_be_read_is_refused_with_its_line() {
    // What is quoted of it does nothing to a terminal.
    let odd = "virtual_server 10.0.0.1 80 {\n\u{1b}[2J\u{7}x\n real_server 10.0.0.2 80 {\n}\n}\n";
    let output = weir(&["import", "-"], odd);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("standard input:2: "), "{said}");
    assert!(!said.contains(['\u{1b}', '\u{7}']) && said.contains("u{1b}[2J"), "{said:?}");
    for (arguments, input, status, words) in [
        (&["import", "-"][..], "what is this", 2, "say which with --from"),
        (&["import", "-", "--from", "ipvsadm"], "\n-Q", 1, "standard input:2: \"-Q\" is no option"),
        (
            &["import", "-", "--from", "keepalived"],
            "virtual_server {\n",
            1,
            "standard input:1: the block",
        ),
        (&["import", "-", "--from", "cilium"], "services: [\n", 1, "no state file"),
        (&["import", "-"], "-A -f 1 -s rr\n", 1, "no service in it can be taken over"),
        (&["import", "/nowhere/at.all"], "", 1, "cannot read /nowhere/at.all"),
        (&["import", "-", "--from", "nginx"], "", 2, "invalid value"),
    ] {
        let output = weir(arguments, input);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    }
}

#[test]
fn notes_have_the_line_of_their_setting_and_no_directory_is_made() {
    let text_of = "virtual_server 192.0.2.80 80 {\n  lb_algo wlc\n  lb_kind DR protocol UDP\n  persistence_timeout 50\n  \
                   real_server 192.0.2.11 80 {\n    MISC_CHECK {\n      misc_path \"/usr/bin/check 'a b' c\"\n    }\n  }\n}\n";
    let output = weir(&["import", "-", "--interface", "lan0"], text_of);
    let (said, written) = (text(&output.stderr), text(&output.stdout));
    assert!(output.status.success(), "{said}");
    for words in [
        "standard input:2: scheduler wlc: ",
        "standard input:3: lb_kind: what follows on its line is not read (protocol UDP)",
        "standard input:4: persistence_timeout 50: ",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(written.contains("command = [\"/usr/bin/check\", \"a b\", \"c\"]"), "{written}");
    assert!(written.contains("affinity = \"client\""), "{written}");
    assert!(!written.contains("idle_timeout = "), "{written}");

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("no/such/weir.toml").display().to_string();
    let output = weir(&["import", "-", "--output", &path], IPVS);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("there is no directory") && said.contains("no/such;"), "{said}");
    assert!(!directory.path().join("no").exists());
}
