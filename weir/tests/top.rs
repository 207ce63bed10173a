//! `weir top` on a real terminal drains a backend by two keys.

mod common;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use common::{WEIR, eventually, stderr};

#[test]
fn keys_drain_and_end() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("screen");
    let socket = balancer.socket();
    let line =
        format!("stty rows 40 cols 140; {WEIR} top --interval 200ms --socket {}", socket.display());
    // script(1) gives it a terminal, and writes down what is on it.
    let mut script = Command::new("script")
        .args(["-q", "-f", "-e", "-c", &line])
        .arg(&log)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("script, of bsdutils");
    let mut keys = script.stdin.take().unwrap();
    let screen = || String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    eventually("it is drawn", || screen().contains("connected in"));
    keys.write_all(b"d").unwrap();
    eventually("it asks", || screen().contains("drain b0 of echo4?"));
    let state = || {
        let status = balancer.status().unwrap();
        common::backend(common::service(&status, "echo4"), "b0")["state"].clone()
    };
    assert_eq!(state(), "up", "before the second key nothing happens");
    keys.write_all(b"y").unwrap();
    eventually("it drains", || state() == "draining");
    eventually("it is shown", || screen().contains("draining"));
    keys.write_all(b"q").unwrap();
    assert!(script.wait().unwrap().success());
    // Without a terminal it says so.
    let output = common::weir(&["top", "--socket", socket.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("needs a terminal"), "{}", stderr(&output));
}
