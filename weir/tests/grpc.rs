//! The control API by gRPC, as another implementation of it uses it: the Python client that is made of the
//! description (`clients/python`), at the socket and by TLS. And what cannot keep it from its work.

#[path = "api/authority.rs"]
mod authority;
mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use authority::Authority;
use common::{audited, eventually, start_with, stderr, stdout};
use serde_json::{Value, json};
use weir_lab::Balancer;

const TLS: &str = "127.0.0.1:9443";
const PATIENCE: Duration = Duration::from_secs(60);

/// The client, made of what `weir schema --proto` prints, where every user may read it.
struct Python(tempfile::TempDir);

impl Python {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let clients = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../clients/python");
        let proto = folder.path().join("printed.proto");
        fs::write(&proto, stdout(&common::weir(&["schema", "--proto"]))).unwrap();
        let made =
            Command::new(clients.join("generate")).arg(folder.path()).arg(&proto).output().unwrap();
        assert!(made.status.success(), "Debian's protobuf-compiler-grpc: {}", stderr(&made));
        fs::copy(clients.join("weir_client.py"), folder.path().join("weir_client.py")).unwrap();
        Self(folder)
    }

    fn output(&self, mut python: Command, script: &str, arguments: &[&str]) -> Output {
        python
            .args(["-c", script])
            .args(arguments)
            .env("PYTHONPATH", self.0.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap()
    }

    /// What a script prints, as JSON.
    fn run(&self, python: Command, script: &str, arguments: &[&str]) -> Value {
        let output = self.output(python, script, arguments);
        assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stdout(&output)))
    }

    fn at_socket(&self, balancer: &Balancer, script: &str) -> Value {
        let socket = balancer.socket().display().to_string();
        // A backend of the laboratory that is in no service yet.
        let spare = weir_lab::topology::backend4(2).to_string();
        self.run(Command::new("/usr/bin/python3"), script, &[&socket, &spare])
    }
}

/// Walks the status of JSON beside the one of gRPC: whatever there is in the first is in the second. Counters
/// count on: what gRPC says of a number is between what JSON says before and after. How long a check took may be
/// another in each of the three, so that they are looked at again.
const SAME: &str = r#"
import http.client, json, socket, sys
from weir_client import Client
class Local(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.connect(sys.argv[1])
def read():
    c = Local("weir"); c.request("GET", "/v1/status"); return json.load(c.getresponse())
leaves = 0
def walk(path, before, message, after):
    global leaves
    if isinstance(before, dict):
        for name in before:
            here = f"{path}.{name}"
            if hasattr(message, "keys"):
                assert name in message, here
                walk(here, before[name], message[name], after[name]); continue
            field = message.DESCRIPTOR.fields_by_name.get(name)
            assert field, f"{here} is not in {message.DESCRIPTOR.name}"
            if before[name] is None:
                assert not message.HasField(name), f"{here} is not none"
            else:
                walk(here, before[name], getattr(message, name), after[name])
    elif isinstance(before, list):
        if hasattr(message, "DESCRIPTOR"):
            assert message.DESCRIPTOR.name.endswith("Pair"), path
            message = [message.first, message.second]
        assert len(before) == len(message) == len(after), path
        for n, (a, m, b) in enumerate(zip(before, message, after)): walk(f"{path}[{n}]", a, m, b)
    else:
        leaves += 1
        if isinstance(before, bool) or isinstance(before, str): assert before == message, (path, before, message)
        else: assert min(before, after) <= message <= max(before, after), (path, before, message, after)
client = Client(sys.argv[1])
for left in reversed(range(50)):
    before, message, after = read(), client.GetStatus(), read()
    leaves = 0
    try:
        walk("status", before, message, after)
        break
    except AssertionError:
        if not left: raise
one = client.GetService(service="web4")
assert one.name == "web4" and len(one.backends) == 2, one
print(json.dumps(leaves))
"#;

/// Status, changes with what they expect, refusals, and a stream that tells of a change.
const CHANGES: &str = r#"
import json, sys
from weir_client import Client, Refused
said = {}
with Client(sys.argv[1]) as weir:
    status = weir.GetStatus()
    service = next(s for s in status.services if s.name == "web4")
    backend = service.backends[0].name
    where = dict(service="web4", backend=backend)
    def kind(call, **fields):
        try: call(**fields)
        except Refused as refused: return [refused.kind, refused.code.name, refused.words]
        return None
    watch = weir.Watch(interval=1, after=0)
    first = next(w for w in watch if w.HasField("status"))
    assert first.status.name == status.name and len(first.status.services) == len(status.services)
    done = weir.DrainBackend(**where, drain=True, expect=status.change)
    assert done.change == status.change + 1 and "drains" in done.done, done
    told = next(w.event for w in watch if w.HasField("event") and "drains" in w.event.change.done)
    assert told.type == "change" and told.change.who.name == "root", told
    watch.close()
    state = lambda: next(b.state for b in weir.GetService(service="web4").backends if b.name == backend)
    assert state() == "draining", state()
    # Somebody else has changed something since: nothing is done, and nobody's change undone.
    said["expect"] = kind(weir.DrainBackend, **where, drain=False, expect=status.change)
    assert state() == "draining", state()
    again = weir.DrainBackend(**where, drain=True, expect=done.change)
    assert again.change == done.change and again.done.endswith("already"), again
    weir.DrainBackend(**where, drain=False, expect=done.change)
    assert state() == "up", state()
    weighed = weir.WeighBackend(**where, weight=3)
    added = weir.SetBackend(service="web4", backend="more.one", address=sys.argv[2], weight=5)
    weir.RemoveBackend(service="web4", backend="more.one", expect=added.change)
    said["service"] = kind(weir.GetService, service="none")
    said["unnamed"] = kind(weir.GetService)
    said["folder"] = kind(weir.GetService, service="../status")
    said["weight"] = kind(weir.WeighBackend, **where)
    said["wide"] = kind(weir.WeighBackend, **where, weight=70000)
    said["moves"] = kind(weir.SetBackend, **where, address="192.0.2.77")
    said["file"] = kind(weir.Plan, file="/dev/zero")
    said["large"] = kind(weir.Explain, protocol="x" * 100000)
    said["number"] = kind(weir.GetFile, number=10**9)
    said["interval"] = kind(lambda **f: list(weir.Watch(**f)), interval=99)
    from weir.v1 import weir_pb2
    odd = weir_pb2.GetServiceRequest(service="web4").SerializeToString() + b"\xf8\x06\x01"
    import grpc
    def raw(path, message):
        call = weir._channel.unary_unary(path, lambda b: b, lambda b: b)
        try: call(message, timeout=60)
        except grpc.RpcError as error: return [dict(error.trailing_metadata() or ()).get("weir-kind"), error.code().name, error.details()]
    said["unknown"] = raw("/weir.v1.Balancer/GetService", odd)
    said["garbage"] = raw("/weir.v1.Balancer/GetService", b"\xff\xff")
    said["nothing"] = raw("/weir.v1.Balancer/Nothing", b"")
    where_to = weir.Explain(protocol="tcp", source="192.0.2.9:1234", destination=f"{service.vip}:{service.port}")
    said["explained"] = where_to.service
    # What there is can be asked for, as tools do.
    reflect = weir._channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", lambda b: b, lambda b: b)
    listed = b"".join(reflect(iter([b"\x3a\x01*"]), timeout=60))
    assert b"weir.v1.Balancer" in listed, listed
    named = b"".join(reflect(iter([b"\x22\x10weir.v1.Balancer"]), timeout=60))
    assert b"weir/v1/weir.proto" in named and b"DrainBackendRequest" in named
print(json.dumps(said))
"#;

#[test]
fn a_python_client_sees_and_changes_what_runs() {
    let _alone = common::alone();
    let python = Python::make();
    let lab = common::lab(3);
    let balancer = start_with(&lab, "web = \"127.0.0.1:8080\"\n");
    let leaves = python.at_socket(&balancer, SAME);
    assert!(leaves.as_u64() > Some(150), "{leaves}");
    let said = python.at_socket(&balancer, CHANGES);
    for (what, kind, code, words) in [
        ("expect", "conflict", "FAILED_PRECONDITION", "somebody else"),
        ("service", "not_found", "NOT_FOUND", "no service none"),
        ("unnamed", "invalid", "INVALID_ARGUMENT", "service: "),
        ("folder", "not_found", "NOT_FOUND", "../status"),
        ("weight", "invalid", "INVALID_ARGUMENT", "weight"),
        ("wide", "invalid", "INVALID_ARGUMENT", "70000"),
        ("moves", "conflict", "FAILED_PRECONDITION", "cannot move"),
        ("file", "file", "INVALID_ARGUMENT", "no regular file"),
        ("large", "invalid", "RESOURCE_EXHAUSTED", "65541"),
        ("number", "not_found", "NOT_FOUND", "1000000000"),
        ("interval", "invalid", "INVALID_ARGUMENT", "interval"),
        ("unknown", "invalid", "INVALID_ARGUMENT", "no field 111"),
        ("garbage", "invalid", "INVALID_ARGUMENT", "GetServiceRequest"),
    ] {
        let told: Vec<&str> = said[what]
            .as_array()
            .unwrap_or_else(|| panic!("{what}: {said}"))
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(told[..2], [kind, code], "{what}: {said}");
        assert!(told[2].contains(words), "{what}: {said}");
    }
    assert_eq!(
        (&said["nothing"][1], &said["explained"]),
        (&json!("UNIMPLEMENTED"), &json!("web4"))
    );
    // The log has the request that a call stood for, once, and what it was called.
    let log = audited(&balancer);
    let drains: Vec<&Value> = log.iter().filter(|line| line["call"] == "DrainBackend").collect();
    let statuses: Vec<&Value> = drains.iter().map(|line| &line["status"]).collect();
    assert_eq!(statuses, [200, 409, 200, 200], "{log:?}");
    assert!(drains[0]["path"].as_str().unwrap().starts_with("/v1/services/web4/backends/"));
    assert_eq!((&drains[0]["method"], &drains[0]["who"]), (&json!("PUT"), &json!("root")));
    // What is no HTTP/2 is no gRPC, and not at the page at all.
    let text = "POST /weir.v1.Balancer/GetStatus HTTP/1.1\r\nHost: x\r\nContent-Type: application/grpc\r\n\
                Content-Length: 0\r\nConnection: close\r\n\r\n";
    let mut stream = UnixStream::connect(balancer.socket()).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("needs HTTP/2"), "{answer}");
    assert!(!common::log(&balancer).contains("panicked"), "{}", common::log_tail(&balancer, 40));
}

/// What somebody may: a call of each role, streams and reflection.
const ROLES: &str = r#"
import grpc, json, sys
from weir_client import Client, Refused
weir = Client(sys.argv[1]) if len(sys.argv) == 2 else Client.tls("127.0.0.1:9443", *sys.argv[1:])
def ask(call):
    try: call()
    except Refused as refused: return refused.code.name
    except grpc.RpcError as error: return error.code().name
    return "OK"
reflect = weir._channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", lambda b: b, lambda b: b)
print(json.dumps([
    ask(weir.GetStatus),
    ask(lambda: next(weir.Watch())),
    ask(lambda: list(reflect(iter([b"\x3a\x01*"]), timeout=60))),
    ask(lambda: weir.DrainBackend(service="web4", backend=weir.GetService(service="web4").backends[0].name, drain=False)),
    ask(lambda: next(weir.Trace(fate="none"))),
    ask(weir.Reload),
    ask(lambda: weir.Plan(file="/etc/shadow")),
    ask(lambda: weir.GetFile(number=1)),
]))
"#;

const DENIED: &str = "PERMISSION_DENIED";

#[test]
fn whoever_may_not_is_refused_and_written_down() {
    let _alone = common::alone();
    let python = Python::make();
    let folder = tempfile::tempdir().unwrap();
    let folder: &Path = folder.path();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let ca = ours.write(folder, "ca.pem");
    let (certificate, key) = ours.certify(folder, "server", "balancer");
    let lab = common::lab(2);
    let balancer = start_with(
        &lab,
        &format!(
            "[api]\nsocket_group = \"nogroup\"\nlisten = \"{TLS}\"\ncertificate = \"{certificate}\"\n\
             key = \"{key}\"\nclient_ca = \"{ca}\"\n\
             [[api.client]]\ncertificate = \"alice\"\nrole = \"operate\"\n\
             [[api.client]]\ncertificate = \"bob\"\nrole = \"read\"\n"
        ),
    );
    let here = lab.balancer();
    let at: std::net::SocketAddr = TLS.parse().unwrap();
    eventually("the API is served by TLS", || {
        here.enter(|| std::net::TcpStream::connect_timeout(&at, PATIENCE)).unwrap().is_ok()
    });
    let by_tls = |who: &(String, String)| -> Vec<String> {
        let python3 = here.command("/usr/bin/python3").unwrap();
        let said = python.run(python3, ROLES, &[&ca, &who.0, &who.1]);
        serde_json::from_value(said).unwrap()
    };
    let ok = "OK";
    let invalid = "INVALID_ARGUMENT";
    let alice = ours.certify(folder, "alice", "alice");
    assert_eq!(by_tls(&alice), [ok, ok, ok, ok, invalid, DENIED, DENIED, DENIED]);
    let bob = ours.certify(folder, "bob", "bob");
    assert_eq!(by_tls(&bob), [ok, ok, ok, DENIED, DENIED, DENIED, DENIED, DENIED]);
    // A certificate that is not named may nothing at all; another authority's, and none, come not in.
    let eve = ours.certify(folder, "eve", "eve");
    assert_eq!(by_tls(&eve), [DENIED; 8]);
    let mallory = theirs.certify(folder, "mallory", "alice");
    assert_eq!(by_tls(&mallory), ["UNAVAILABLE"; 8]);
    // A user of the host who may come to the socket and has no role.
    for folder in balancer.socket().ancestors().skip(1) {
        let mode = fs::metadata(folder).unwrap().permissions().mode();
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o001));
    }
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3"]);
    let socket = balancer.socket().display().to_string();
    assert_eq!(python.run(nobody, ROLES, &[&socket]), json!(vec![DENIED; 8]));
    let log = audited(&balancer);
    let refused = |who: &str, call: Option<&str>| {
        log.iter().any(|line| {
            line["who"] == who && line["status"] == 403 && line["call"].as_str() == call
        })
    };
    for (who, call) in [
        ("certificate alice", "Reload"),
        ("certificate alice", "Plan"),
        ("certificate bob", "DrainBackend"),
        ("certificate bob", "Trace"),
        ("certificate eve", "GetStatus"),
        ("certificate eve", "Watch"),
        ("nobody", "GetStatus"),
    ] {
        assert!(refused(who, Some(call)), "{who} {call}: {log:?}");
    }
    // Reflection is no call of weir's.
    assert!(refused("certificate eve", None), "{log:?}");
    assert!(log.iter().any(|line| {
        line["who"] == "certificate alice"
            && line["call"] == "DrainBackend"
            && line["status"] == 200
    }));
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// The head of a call, in HPACK without a table of its own (RFC 7541).
fn head(path: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // :method POST, :scheme http, :path, :authority, content-type.
    let parts = [
        vec![0x83, 0x86, 0x04],
        text(path),
        vec![0x01],
        text("weir"),
        vec![0x0f, 0x10],
        text("application/grpc"),
    ];
    parts.concat()
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Clients that begin, and do not go on.
fn slow() -> Vec<Vec<u8>> {
    let settings = frame(4, 0, 0, &[]);
    // A window of nothing: no answer can be sent.
    let closed = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let begun = [PREFACE, &settings].concat();
    let (status, drain) =
        (head("/weir.v1.Balancer/GetStatus"), head("/weir.v1.Balancer/DrainBackend"));
    vec![
        Vec::new(),
        PREFACE[..7].to_vec(),
        PREFACE.to_vec(),
        begun.clone(),
        // A head of which the end does not come.
        [&begun[..], &frame(1, 0, 1, &status)].concat(),
        // Calls of which the message does not come, or half of it.
        [&begun[..], &frame(1, END_HEADERS, 1, &status)].concat(),
        [&begun[..], &frame(1, END_HEADERS, 1, &drain), &frame(0, 0, 1, &[0, 0, 0, 0, 9, 1])]
            .concat(),
        // They ask, and take no answer.
        [
            PREFACE,
            &closed,
            &frame(1, END_HEADERS, 1, &status),
            &frame(0, END_STREAM, 1, &[0, 0, 0, 0, 0]),
        ]
        .concat(),
        // Reflection has no end.
        [
            &begun[..],
            &frame(
                1,
                END_HEADERS,
                1,
                &head("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
            ),
        ]
        .concat(),
    ]
}

/// As many by TLS, with a certificate: whoever may, and does not go on.
const BY_TLS: &str = r#"
import json, socket, ssl, sys
from weir_client import Client
ca, certificate, key, words = sys.argv[1:]
words = [bytes.fromhex(w) for w in words.split(",")]
context = ssl.create_default_context(cafile=ca)
context.load_cert_chain(certificate, key)
context.set_alpn_protocols(["h2"])
there, answered = [], 0
for n in range(500):
    plain = socket.create_connection(("127.0.0.1", 9443), timeout=60)
    try:
        # Every eighth does not even begin its handshake.
        if n % 8:
            plain = context.wrap_socket(plain, server_hostname="127.0.0.1")
            plain.sendall(words[n % len(words)])
    except OSError: pass
    there.append(plain)
    if n % 100 == 99:
        with Client.tls("127.0.0.1:9443", ca, certificate, key) as weir:
            answered += len(weir.GetStatus().services) > 0
print(json.dumps(answered))
"#;

#[test]
fn slow_and_half_open_clients_keep_nobody_waiting() {
    let _alone = common::alone();
    let python = Python::make();
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new();
    let ca = ours.write(folder.path(), "ca.pem");
    let (certificate, key) = ours.certify(folder.path(), "server", "balancer");
    let alice = ours.certify(folder.path(), "alice", "alice");
    let lab = common::lab(2);
    let balancer = start_with(
        &lab,
        &format!(
            "[api]\nlisten = \"{TLS}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nclient_ca = \"{ca}\"\n\
             [[api.client]]\ncertificate = \"alice\"\nrole = \"operate\"\n"
        ),
    );
    const LOOK: &str = "import sys\nfrom weir_client import Client\n\
                        print(len(Client(sys.argv[1]).GetStatus().services))";
    let words = slow();
    let mut there: Vec<UnixStream> = Vec::new();
    for number in 0..500 {
        let mut stream = UnixStream::connect(balancer.socket()).unwrap();
        let _ = stream.write_all(&words[number % words.len()]);
        there.push(stream);
        if number % 100 == 99 {
            assert!(balancer.status().is_ok(), "after {number}");
            assert_eq!(python.at_socket(&balancer, LOOK), 3, "after {number}");
        }
    }
    // More calls of which the message does not come than there are places: nobody is worked for before it
    // is there, so they go first.
    for number in 0..400 {
        let mut stream = UnixStream::connect(balancer.socket()).unwrap();
        let _ = stream.write_all(&words[5 + number % 2]);
        there.push(stream);
    }
    assert!(balancer.status().is_ok());
    assert_eq!(python.at_socket(&balancer, LOOK), 3);
    common::command(&balancer, "reload");
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let given: Vec<String> = words.iter().map(hex).collect();
    let here = lab.balancer();
    let python3 = here.command("/usr/bin/python3").unwrap();
    let answered = python.run(python3, BY_TLS, &[&ca, &alice.0, &alice.1, &given.join(",")]);
    assert_eq!(answered, 5);
    assert!(balancer.status().is_ok());
    assert!(!common::log(&balancer).contains("panicked"), "{}", common::log_tail(&balancer, 40));
}

/// The next frame that comes: its kind, its flags and its stream.
fn read_frame(stream: &mut UnixStream) -> (u8, u8, u32) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).expect("a frame");
    let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut body).expect("all of a frame");
    (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]))
}

/// The frames of stream 1 up to the answer to a ping.
fn before_ping(stream: &mut UnixStream) -> Vec<(u8, u8)> {
    const PING: u8 = 6;
    stream.write_all(&frame(PING, 0, 0, &[7; 8])).unwrap();
    let mut frames = Vec::new();
    loop {
        match read_frame(stream) {
            (PING, 1, 0) => return frames,
            (kind, flags, 1) => frames.push((kind, flags)),
            _ => {}
        }
    }
}

#[test]
fn refusals_by_http2_come_after_all_that_is_sent() {
    const RESET: u8 = 3;
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = start_with(&lab, "");
    let refused = ["/v1/nonsense", "/weir.v1.Balancer/Nonsense"];
    let begin = |path: &str| {
        let mut stream = UnixStream::connect(balancer.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let asked = frame(1, END_HEADERS, 1, &head(path));
        let begun = [PREFACE, &frame(4, 0, 0, &[]), &asked, &frame(0, 0, 1, b"some")].concat();
        stream.write_all(&begun).unwrap();
        stream
    };
    let ends = |(kind, flags): &(u8, u8)| [0, 1].contains(kind) && flags & END_STREAM != 0;
    for path in refused {
        let mut stream = begin(path);
        std::thread::sleep(Duration::from_millis(500));
        let early = before_ping(&mut stream);
        assert!(!early.iter().any(|(kind, _)| [0, 1, RESET].contains(kind)), "{path}: {early:?}");
        stream.write_all(&frame(0, END_STREAM, 1, b"more")).unwrap();
        let mut frames = Vec::new();
        while !frames.iter().any(ends) {
            frames.extend(before_ping(&mut stream));
        }
        std::thread::sleep(Duration::from_millis(100));
        frames.extend(before_ping(&mut stream));
        assert!(!frames.iter().any(|(kind, _)| *kind == RESET), "{path}: {frames:?}");
    }
    // Nobody is waited for without end.
    let mut stream = begin(refused[0]);
    let mut frames = Vec::new();
    while !frames.iter().any(ends) {
        frames.extend(before_ping(&mut stream));
        std::thread::sleep(Duration::from_millis(50));
    }
    // And whoever sends on has the answer before anything is broken off.
    stream.write_all(&frame(0, 0, 1, b"more")).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    frames.extend(before_ping(&mut stream));
    stream.write_all(&frame(0, END_STREAM, 1, b"all")).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    frames.extend(before_ping(&mut stream));
    assert!(!frames.iter().any(|(kind, _)| *kind == RESET), "{frames:?}");
    // As curl sees it, which takes an answer before the end for an error: a path that there is not, and too much.
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    let curl = |path: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--http2-prior-knowledge", "-m", "60", "-o", "/dev/null"])
            .args(["-w", "%{http_code}", "-H", "Content-Type: application/json", "--unix-socket"])
            .arg(balancer.socket())
            .arg(format!("http://localhost{path}"));
        curl
    };
    // The last is more than is read before the answer.
    for (path, bytes, wanted) in [
        ("/v1/nonsense", 600 << 10, "404"),
        ("/v1/explain", 600 << 10, "413"),
        ("/v1/explain", 20 << 20, "413"),
    ] {
        fs::write(&large, vec![b'x'; bytes]).unwrap();
        let data = format!("@{}", large.display());
        let output = curl(path).args(["--data-binary", &data]).output().unwrap();
        assert!(output.status.success(), "{path}: {}", stderr(&output));
        assert_eq!(stdout(&output), wanted, "{path}");
    }
    // And one that takes longer.
    let mut slow = curl("/v1/nonsense");
    slow.args(["-X", "POST", "-T", "-"]).stdin(Stdio::piped());
    let mut slow = slow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut data = slow.stdin.take().unwrap();
    data.write_all(b"some").unwrap();
    std::thread::sleep(Duration::from_secs(7));
    // It may have seen by now that nobody wants more.
    let _ = data.write_all(b"more");
    drop(data);
    let output = slow.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "404");
}
