//! What commands do with names that they do not know, with readers that leave, and with outputs
//! that take no more.

mod common;

use common::WEIR;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

/// What a shell shows for a program that SIGPIPE has ended.
const READER_GONE: i32 = 141;

fn weir(arguments: &[&str]) -> Command {
    let mut weir = Command::new(WEIR);
    weir.args(arguments).stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
    weir
}

/// Runs a command whose reader has gone before the first line is written.
fn unread(arguments: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = weir(arguments).stdout(writer).stderr(Stdio::piped()).spawn();
    child.and_then(|child| child.wait_with_output()).expect("running weir")
}

#[test]
fn an_unknown_scenario_is_answered_with_the_built_in_ones_once() {
    let output = weir(&["sim", "nosuch"]).output().expect("running weir");
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

/// A configuration that `weir check` accepts, and `weir doctor` has much to say about.
fn configuration(directory: &Path) -> String {
    let path = directory.join("weir.toml");
    let text = "[balancer]\nname = \"nosuch\"\ninterfaces = [\"nosuch0\"]\n\
                [[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\n\
                [[service.backend]]\nname = \"b1\"\naddress = \"10.0.0.11\"\n";
    std::fs::write(&path, text).expect("writing a configuration");
    path.to_str().expect("a name").to_owned()
}

#[test]
fn output_that_nobody_reads_ends_a_command_quietly() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = configuration(directory.path());
    let report = directory.path().join("report.html");
    let report = report.to_str().expect("a name");
    let small = ["--states", "1K", "--lookups", "10K", "--rounds", "1", "--methods", "ecmp"];
    let lookup = |more: &[&'static str]| [&["bench", "lookup"], &small[..], more].concat();
    let maps = |more: &[&'static str]| {
        let small = ["--keys", "1K", "--lookups", "10K", "--rounds", "1", "--structures", "bloom"];
        [&["bench", "maps"], &small[..], more].concat()
    };
    let figure = ["reproduce", "concury-fig5", "--size", "smoke", "--out", report];
    let xdp = ["bench", "xdp", "--flows", "100", "--packets", "10000", "--rounds", "1"];
    let update = ["bench", "update", "--states", "1000", "--rounds", "1"];
    let content = ["fib", "content", "--contents", "1000", "--seconds", "0.1"];
    let commands: Vec<Vec<&str>> = vec![
        vec!["reproduce", "--json"],
        vec!["reproduce"],
        figure.to_vec(),
        [&figure[..], &["--json"]].concat(),
        vec!["sim", "--list"],
        vec!["sim", "cheetah-7", "--size", "smoke"],
        vec!["sim", "cheetah-7", "--size", "smoke", "--json"],
        vec!["sim", "cheetah-7", "--size", "smoke", "--csv", "-"],
        vec!["check", "--config", &config],
        vec!["doctor", "--config", &config],
        vec!["doctor", "--config", &config, "--json"],
        vec!["unload", "--config", &config],
        lookup(&[]),
        lookup(&["--json"]),
        lookup(&["--csv"]),
        vec!["bench", "lookup", "--control", "--states", "1K", "--rounds", "1"],
        maps(&[]),
        maps(&["--json"]),
        maps(&["--csv"]),
        xdp.to_vec(),
        [&xdp[..], &["--json"]].concat(),
        update.to_vec(),
        content.to_vec(),
        [&content[..], &["--json"]].concat(),
    ];
    for command in commands {
        let output = unread(&command);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(READER_GONE), "{command:?}: {text}");
        // Only what is being done may have been said, and by which seed.
        let progress = |line: &str| line.starts_with("[1/1] ") || line.contains("WEIR_SEED=");
        let quiet = text.lines().all(progress);
        assert!(quiet, "{command:?}: {text}");
    }
}

#[test]
fn help_may_be_cut_short() {
    for command in [&["--help"][..], &["bench", "lookup", "--help"], &["--version"]] {
        let output = unread(command);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.is_empty() && output.status.code() != Some(101), "{command:?}: {text}");
    }
}

/// As on a full disk.
#[test]
fn an_output_that_is_full_is_an_error() {
    let helps = [&["--help"][..], &["explain", "--help"], &["help", "backend"], &["--version"]];
    let others = [&["reproduce"][..], &["sim", "--list"], &["schema"]];
    for command in others.into_iter().chain(helps) {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let output = weir(command).stdout(full).output().expect("running weir");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {text}");
        let one = text.lines().count() == 1;
        assert!(one && text.starts_with("weir: standard output: No space"), "{command:?}: {text}");
    }
}

/// Nobody gets what is written to it.
#[test]
fn an_output_that_is_closed_is_an_error() {
    for words in ["schema", "explain --help"] {
        for (end, code) in [(">&-", 1), (">/dev/null", 0)] {
            let line = format!("exec \"$0\" {words} {end}");
            let output =
                Command::new("sh").args(["-c", &line, WEIR]).output().expect("running a shell");
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{words} {end}: {text}");
            let said = text == "weir: standard output: it is closed\n";
            assert_eq!(said, code != 0, "{words} {end}: {text}");
        }
    }
}

/// What a command was to write is there, whoever takes the words about it.
#[test]
fn a_file_that_is_written_is_so_whether_the_output_takes_the_words_or_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let ipvs = directory.path().join("ipvs");
    std::fs::write(&ipvs, "-A -t 192.0.2.1:80\n-a -t 192.0.2.1:80 -r 192.0.2.11:80 -g\n")
        .expect("writing what ipvsadm says");
    for (number, end) in [">&-", ">/dev/full"].into_iter().enumerate() {
        let at = directory.path().join(number.to_string());
        let (pki, config) = (at.join("pki"), at.join("weir.toml"));
        std::fs::create_dir(&at).expect("a directory");
        let (pki, to) = (pki.display(), config.display());
        for (line, made, done) in [
            (format!("pki init --directory {pki}"), "pki/ca.pem", "ca.key: until "),
            (
                format!("pki issue b1 --role agent --address 192.0.2.11 --directory {pki}"),
                "pki/b1.pem",
                "b1.key: until ",
            ),
            (
                format!("import {} --from ipvsadm --interface lan0 --output {to}", ipvs.display()),
                "weir.toml",
                "weir.toml written: 1 service with 1 backend",
            ),
        ] {
            let script = format!("exec {WEIR} {line} {end}");
            let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{line} {end}: {text}");
            let said = text.contains("it is done all the same: ") && text.contains(done);
            assert!(said, "{line} {end}: {text}");
            assert!(at.join(made).exists(), "{line} {end}");
        }
    }
    let config = directory.path().join("weir.toml");
    let output = unread(&[
        "import",
        ipvs.to_str().expect("a name"),
        "--output",
        config.to_str().expect("a name"),
    ]);
    assert_eq!(output.status.code(), Some(READER_GONE), "{output:?}");
    assert!(config.exists());
    // Where the output is to have it, nothing is done without it.
    let script = format!("exec {WEIR} import {} >&-", ipvs.display());
    let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// Answers each request at a socket with the same text.
fn answer_at(path: &Path, times: usize, body: &'static str) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).expect("a socket");
    thread::spawn(move || {
        for _ in 0..times {
            let (mut stream, _) = listener.accept().expect("a request");
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
                request.push(byte[0]);
            }
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
                .expect("answering");
        }
    })
}

#[test]
fn answers_of_an_instance_may_go_unread_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("weir.sock");
    let server = answer_at(&path, 4, r#"{"done": "so it is"}"#);
    let socket = path.to_str().expect("a name");
    for command in [
        &["reload", "--socket", socket][..],
        &["backend", "drain", "web", "b1", "--socket", socket],
        &["backend", "--socket", socket, "remove", "web", "b1", "--json"],
    ] {
        let output = unread(command);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(READER_GONE), "{command:?}: {text}");
        assert!(text.is_empty(), "{command:?}: {text}");
    }
    let heard = weir(&["reload"]).env("WEIR_SOCKET", socket).output().expect("running weir");
    assert_eq!(String::from_utf8_lossy(&heard.stdout), "so it is\n");
    assert!(heard.status.success());
    server.join().expect("the server");
}

#[test]
fn a_cut_status_of_a_real_instance() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let socket = balancer.socket();
    let socket = socket.to_str().expect("a name");
    let flow = ["tcp", "10.77.1.1:40000", "10.77.0.100:80"];
    for command in [
        vec!["status", "--socket", socket],
        vec!["status", "--socket", socket, "--json"],
        [&["explain"], &flow[..], &["--socket", socket]].concat(),
        [&["explain"], &flow[..], &["--socket", socket, "--json"]].concat(),
    ] {
        let heard = weir(&command).output().expect("running weir");
        assert!(heard.status.success() && heard.stdout.len() > 100, "{command:?}: {heard:?}");
        let output = unread(&command);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(READER_GONE), "{command:?}: {text}");
        assert!(text.is_empty(), "{command:?}: {text}");
    }
}

/// A laboratory that nobody watches any more ends, and leaves nothing.
#[test]
fn a_lab_ends_with_its_reader() {
    let _alone = common::alone();
    let arguments =
        ["lab", "--plain", "--duration", "10m", "--connections", "100", "--backends", "4"];
    let child = weir(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("running weir");
    let mut heard = [0; 1];
    let mut reader = child.stdout.take().expect("its output");
    reader.read_exact(&mut heard).expect("a first line");
    drop(reader);
    let output = child.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(READER_GONE), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// With JSON, the standard output holds the report alone.
#[test]
fn the_report_of_a_lab_is_json_alone() {
    let _alone = common::alone();
    let arguments =
        ["lab", "--json", "--duration", "2s", "--connections", "100", "--backends", "4"];
    let output = weir(&arguments).output().expect("running weir");
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(report["method"], "concury");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("pool changes"), "lines on the way: {text}");
    let (_, rest) = text.split_once("WEIR_SEED=").expect("the seed is told");
    let seed: u64 = rest.lines().next().and_then(|seed| seed.parse().ok()).expect("a number");
    // Most readers of JSON have floating-point numbers of 53 bits.
    assert!(std::env::var_os("WEIR_SEED").is_some() || seed < 1 << 53, "{seed}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("\"seed\": {seed}")));
}
