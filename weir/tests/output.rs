//! What commands that only print do with names that they do not know and with readers that leave.

use std::process::{Command, Stdio};

fn weir() -> Command {
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
    weir.stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
    weir
}

#[test]
fn an_unknown_scenario_is_answered_with_the_built_in_ones_once() {
    let output = weir().args(["sim", "nosuch"]).output().expect("running weir");
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(text.matches("nosuch").count(), 1, "{text}");
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '-').collect();
    for name in weir_sim::BUILTIN {
        let times = words.iter().filter(|&&word| word == name).count();
        assert_eq!(times, 1, "{name} in {text}");
    }
}

/// The reader has gone before the first line is written.
#[test]
fn output_that_nobody_reads_is_no_fault() {
    for command in [&["reproduce", "--json"][..], &["reproduce"], &["sim", "--list"]] {
        let heard = weir().args(command).output().expect("running weir");
        assert!(heard.status.success() && heard.stdout.len() > 100, "{command:?}: {heard:?}");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let child = weir().args(command).stdout(writer).stderr(Stdio::piped()).spawn();
        let output = child.and_then(|child| child.wait_with_output()).expect("running weir");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.is_empty(), "{command:?}: {text}");
        assert_ne!(output.status.code(), Some(101), "{command:?} panicked");
    }
}
