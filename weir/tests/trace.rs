//! `weir trace`: what it tells of packets is what became of them, and looking breaks nothing.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use common::{PATIENCE, WEB4, WEIR};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weir_lab::{Balancer, Lab};

/// A `weir trace` that has begun to look.
struct Trace {
    child: Child,
    notes: BufReader<std::process::ChildStderr>,
}

impl Trace {
    fn begin(lab: &Lab, balancer: &Balancer, words: &str) -> Self {
        let mut command = lab.balancer_command(WEIR).unwrap();
        command.arg("trace").args(words.split_whitespace());
        command.arg("--socket").arg(balancer.socket());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("running weir");
        let mut notes = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        notes.read_line(&mut line).unwrap();
        assert!(line.starts_with("looking at packets"), "{line}");
        Self { child, notes }
    }

    /// What it has printed, its status, and what it said at the end.
    fn wait(mut self) -> (String, ExitStatus, String) {
        let (mut text, mut notes) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.notes.read_to_string(&mut notes).unwrap();
        (text, self.child.wait().unwrap(), notes)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// As Ctrl-C ends it.
    fn interrupt(self) -> (String, ExitStatus, String) {
        self.signal(Signal::SIGINT);
        self.wait()
    }

    /// The packets that it tells of, which are to be so many or more.
    fn packets(self, least: usize) -> Vec<Value> {
        let (text, status, notes) = self.wait();
        assert!(status.success(), "{notes}");
        let packets: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert!(packets.len() >= least, "{} packets; {notes}", packets.len());
        packets
    }
}

fn rules(packet: &Value) -> Vec<&str> {
    packet["rules"].as_array().unwrap().iter().map(|rule| rule.as_str().unwrap()).collect()
}

/// How often the usual program was put back.
fn put_back(balancer: &Balancer) -> usize {
    common::log(balancer).matches("the usual program is in place").count()
}

#[test]
fn each_packet_is_told_as_it_went() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "concury", 3);
    // More than a connection's worth of packets, and fewer than those of all.
    let trace = Trace::begin(&lab, &balancer, "--json --service web4 --fate sent -n 60");
    let mut held = common::hold(&lab, WEB4, 20);
    let started = Instant::now();
    let mut trace = trace;
    while trace.child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < PATIENCE, "60 packets have not come");
        common::assert_unbroken(&mut held, "while somebody looks", &balancer);
    }
    let packets = trace.packets(60);
    assert_eq!(packets.len(), 60);
    let mut begun = 0;
    for packet in &packets {
        assert_eq!(packet["service"], "web4", "{packet}");
        assert_eq!(packet["protocol"], "tcp");
        assert_eq!(packet["destination"], WEB4.to_string());
        let one = held.iter().find(|one| one.source.to_string() == packet["source"]);
        let one = one.unwrap_or_else(|| panic!("of no connection: {packet}"));
        assert_eq!(packet["backend"], one.backend, "{packet}");
        let rules = rules(packet);
        assert!(
            rules.contains(&"ethernet.ipv4") && rules.contains(&"deliver.forward"),
            "{rules:?}"
        );
        let flags = packet["flags"].as_array().unwrap();
        if flags.len() == 1 && flags[0] == "SYN" {
            begun += 1;
            assert!(rules.contains(&"conclude.start"), "{rules:?}");
        } else {
            assert!(rules.contains(&"concury.middle"), "{rules:?}");
        }
        // Direct server return: other MAC addresses, and the rest as it was.
        let (before, after) = (&packet["frame"], &packet["frame_after"]);
        let (before, after) = (before.as_str().unwrap(), after.as_str().unwrap());
        assert_eq!(packet["length"], packet["length_after"]);
        assert_ne!(before[..24], after[..24]);
        assert_eq!(before[24..], after[24..]);
        assert!(
            before.len() == 384 || before.len() as u64 == 2 * packet["length"].as_u64().unwrap()
        );
    }
    assert!(begun > 0, "connections began while it looked");
    common::eventually("the usual program is back", || put_back(&balancer) == 1);
}

#[test]
fn what_is_not_forwarded_is_told_with_its_reason() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "tracked", 2);
    common::command(&balancer, "backend drain web4 b0");
    common::command(&balancer, "backend drain web4 b1");
    let trace = Trace::begin(&lab, &balancer, "--json --fate dropped --reason no_backend -n 1");
    let client = &lab.clients()[0];
    let trying = client.enter(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        let _ = socket.connect(&WEB4.into());
        Ok::<_, std::io::Error>(socket)
    });
    let trying = trying.unwrap().unwrap();
    let packets = trace.packets(1);
    drop(trying);
    assert_eq!(packets[0]["fate"], "dropped");
    assert_eq!(packets[0]["reason"], "no_backend");
    assert_eq!(packets[0]["service"], "web4");
    assert!(packets[0]["backend"].is_null() && packets[0]["frame_after"].is_null());
    // For a person: the flow, the fate, and the reason's sentence; of another port than the service's.
    let trace =
        Trace::begin(&lab, &balancer, "--fate passed --port 4711 --protocol udp --rules -n 1");
    client
        .enter(|| UdpSocket::bind("0.0.0.0:0")?.send_to(b"nobody", (WEB4.ip(), 4711)))
        .unwrap()
        .unwrap();
    let (text, status, notes) = trace.wait();
    assert!(status.success(), "{notes}");
    let first = text.lines().next().unwrap();
    assert!(
        first.contains(&format!(
            "> {}:4711 udp, 48 bytes -> passed to this host, no_service (",
            WEB4.ip()
        )),
        "{text}"
    );
    assert!(text.contains("\n    service.none               no service"), "{text}");
    assert!(notes.contains("1 packet told"), "{notes}");
    // What ends before anything is counted gives no number of what came.
    let trace = Trace::begin(&lab, &balancer, "--for 50ms");
    let (_, status, notes) = trace.wait();
    assert!(status.success(), "{notes}");
    let counted = notes.contains(" had come, and ");
    assert!(counted != notes.contains("it ended before all that came was counted"), "{notes}");
    // Of the network 10.99.0.0/16 nobody is here.
    let trace = Trace::begin(&lab, &balancer, "--host 10.99.0.0/16 --for 2s");
    let mut held = common::hold(&lab, common::WEB6, 4);
    common::assert_unbroken(&mut held, "while somebody looks", &balancer);
    let (text, status, notes) = trace.wait();
    assert!(status.success() && text.is_empty(), "{text}{notes}");
}

/// Looking begins and ends under connections that come and go, whoever looks is killed, and the
/// control plane is, too.
#[test]
fn looking_breaks_nothing() {
    let _alone = common::alone();
    for method in ["concury", "tracked", "jet"] {
        let lab = common::lab(4);
        let balancer = common::start(&lab, method, 4);
        let traffic = common::mixed_traffic(&lab, 3_000);
        let mut ends = 0;
        for round in 0..6 {
            let trace = Trace::begin(&lab, &balancer, "--json --every 3");
            let path = format!("backend drain web4 b{}", round % 4);
            common::command(&balancer, &path);
            let before = put_back(&balancer);
            match round % 3 {
                0 => {
                    let (_, status, notes) = trace.interrupt();
                    assert!(status.success(), "{notes}");
                }
                1 => {
                    trace.signal(Signal::SIGKILL);
                    trace.wait();
                }
                _ => {
                    balancer.kill();
                    let (_, status, notes) = trace.wait();
                    assert_eq!(status.code(), Some(1), "{notes}");
                    balancer.launch().unwrap();
                }
            }
            if round % 3 != 2 {
                ends += 1;
                common::eventually("the usual program is back", || put_back(&balancer) > before);
            }
            common::command(&balancer, &format!("{path} --undo"));
        }
        assert_eq!(ends, 4);
        common::assert_none_broke(traffic);
    }
}

#[test]
fn refusals_say_what_would_be_right() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let socket = balancer.socket().display().to_string();
    let refused = |words: &str| {
        let arguments: Vec<&str> =
            ["trace", "--socket", &socket].into_iter().chain(words.split_whitespace()).collect();
        let output = common::weir_in(&lab, &arguments);
        (output.status.code(), common::stderr(&output))
    };
    let pipe = lab.directory().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let into_pipe = format!("--write {} --force", pipe.display());
    for (words, status, said) in [
        ("--service none", 3, "no service none"),
        ("--service web4 --backend b9", 3, "has no backend b9"),
        ("--backend b1", 2, "--service"),
        ("--host 10.0.0.0/33", 2, "host: \"10.0.0.0/33\" is not an address or a network"),
        ("--protocol dccp", 2, "protocol: \"dccp\" is not tcp, udp or sctp"),
        ("--reason bad_mood", 2, "reason: \"bad_mood\" is not a reason that weir status prints"),
        ("--every 0", 2, "--every"),
        ("--for 0s", 2, "nothing comes in no time: give one such as 10s"),
        ("--write /nowhere/to/be --for 1s", 1, "/nowhere/to/be"),
        ("--write /dev/null --for 1s", 1, "/dev/null is no regular file"),
        (&*into_pipe, 1, "pipe is no regular file"),
    ] {
        let (code, text) = refused(words);
        assert_eq!(code, Some(status), "{words}: {text}");
        assert!(text.contains(said), "{words}: {text}");
    }
    let trace = Trace::begin(&lab, &balancer, "--json");
    let (code, text) = refused("--for 1s");
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("another trace is under way"), "{text}");
    // Memory of another size has a program of its own.
    let text = std::fs::read_to_string(balancer.config()).unwrap();
    let limits = "[limits]\ntracked_flows = 4096\n";
    assert!(!text.contains("[limits]"), "{text}");
    std::fs::write(balancer.config(), format!("{text}\n{limits}")).unwrap();
    balancer.command(&["reload"]).unwrap();
    let (_, status, notes) = trace.wait();
    assert_eq!(status.code(), Some(1), "{notes}");
    assert!(notes.contains("has changed its size"), "{notes}");
    // And the next one looks at that.
    let trace = Trace::begin(&lab, &balancer, "--json --fate sent -n 1");
    let mut held = common::hold(&lab, WEB4, 2);
    common::assert_unbroken(&mut held, "after the reload", &balancer);
    trace.packets(1);
}

/// scapy and tcpdump read the file: independent judges.
#[test]
fn a_capture_opens_elsewhere() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let file = lab.directory().join("trace.pcapng");
    let words = format!("--service web4 --fate sent -n 20 --write {}", file.display());
    let mut trace = Trace::begin(&lab, &balancer, &words);
    let mut held = common::hold(&lab, WEB4, 8);
    let started = Instant::now();
    while trace.child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < PATIENCE, "20 packets have not come");
        common::assert_unbroken(&mut held, "while somebody looks", &balancer);
    }
    let (text, status, notes) = trace.wait();
    assert!(status.success() && text.is_empty(), "{notes}");
    let judge = "import sys, time\n\
        from scapy.all import rdpcap, TCP\n\
        packets = rdpcap(sys.argv[1])\n\
        assert all(TCP in packet and packet[TCP].dport == 80 for packet in packets)\n\
        assert all(abs(float(packet.time) - time.time()) < 3600 for packet in packets)\n\
        print(len(packets), sum(b'web4' in (packet.comment or b'') for packet in packets))\n";
    let output = Command::new("/usr/bin/python3").args(["-c", judge]).arg(&file).output().unwrap();
    assert_eq!(common::stdout(&output).trim(), "40 40", "{}", common::stderr(&output));
    // One line for each.
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-n", "-q", "-r", "-", "tcp dst port 80"]);
    tcpdump.stdin(std::fs::File::open(&file).unwrap());
    let output = tcpdump.output().expect("Debian's tcpdump");
    let (said, error) = (common::stdout(&output), common::stderr(&output));
    assert!(output.status.success() && error.contains("EN10MB"), "{error}");
    let to = format!("> {}.{}: tcp ", WEB4.ip(), WEB4.port());
    assert_eq!(said.lines().filter(|line| line.contains(&to)).count(), 40, "{said}");
    assert_eq!(said.lines().count(), 40, "{said}");
    // It is not lost by the next trace, unless that is meant; nor where nobody answers.
    let before = std::fs::read(&file).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o600, "packets are in it");
    let again = |socket: &str, more: &[&str]| {
        let path = file.to_str().unwrap();
        let words = ["trace", "--socket", socket, "--for", "100ms", "--write", path];
        let output = common::weir_in(&lab, &[&words[..], more].concat());
        (output.status.code(), common::stderr(&output))
    };
    let socket = balancer.socket().display().to_string();
    let (code, text) = again(&socket, &[]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("trace.pcapng is there already") && text.contains("--force"), "{text}");
    let (code, text) = again("/nowhere/weir.sock", &["--force"]);
    assert_eq!(code, Some(5), "{text}");
    assert!(std::fs::read(&file).unwrap() == before, "the file is another");
    let (code, text) = again(&socket, &["--force"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(std::fs::read(&file).unwrap() != before, "the file is as before");
}
