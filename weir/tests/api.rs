//! The control API as others use it: at the socket, by TLS, from browsers; who may do what, what is written
//! down, and what cannot keep it from its work.

#[path = "api/authority.rs"]
mod authority;
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use authority::Authority;
use common::{audited, eventually, start_with, stderr, stdout};
use serde_json::{Value, json};
use weir_lab::{Balancer, BalancerSpec, NetNs};

const PATIENCE: Duration = Duration::from_secs(60);
const WEB: &str = "127.0.0.1:8080";
const TLS: &str = "127.0.0.1:9443";

/// A request, as text.
fn request(method: &str, path: &str, headers: &[&str], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    let has = |name: &str| headers.iter().any(|header| header.starts_with(name));
    if !has("Host:") {
        text += "Host: localhost\r\n";
    }
    if !body.is_empty() {
        text += &format!("Content-Length: {}\r\n", body.len());
        if !has("Content-Type:") {
            text += "Content-Type: application/json\r\n";
        }
    }
    headers.iter().for_each(|header| text += &format!("{header}\r\n"));
    text + "\r\n" + body
}

/// Status and body of an answer. Whoever is refused early may not take the rest of a request.
fn exchange<S: Read + Write>(mut stream: S, request: &str) -> (u16, String) {
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (head, body) =
        answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP: {answer:?}"));
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status.expect("a status"), if chunked { dechunked(body) } else { body.to_owned() })
}

fn dechunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("the length of a chunk");
        whole += &rest[..length];
        body = rest[length..].trim_start_matches("\r\n");
    }
    whole
}

fn at_socket(balancer: &Balancer, method: &str, path: &str, body: &str) -> (u16, Value) {
    let stream = UnixStream::connect(balancer.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (status, body) = exchange(stream, &request(method, path, &[], body));
    (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("no JSON: {body}")))
}

fn connect(from: &NetNs, at: &str) -> std::io::Result<TcpStream> {
    let at: std::net::SocketAddr = at.parse().unwrap();
    let stream = from.enter(|| TcpStream::connect_timeout(&at, PATIENCE)).unwrap()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn at_web(from: &NetNs, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String) {
    exchange(connect(from, WEB).unwrap(), &request(method, path, headers, body))
}

fn number(balancer: &Balancer) -> u64 {
    balancer.status().unwrap()["change"].as_u64().unwrap()
}

#[test]
fn changes_are_made_once_and_refusals_say_why() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = start_with(&lab, "");
    let at = |method, path: &str, body: &Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        at_socket(&balancer, method, path, &body)
    };
    let before = number(&balancer);
    let (_, status) = at("GET", "/v1/services/web4", &Value::Null);
    let name = status["backends"][0]["name"].as_str().unwrap().to_owned();
    let own = format!("/v1/services/web4/backends/{name}");
    // What is expected is so once.
    let path = format!("{own}/weight?expect={before}");
    let (status, said) = at("PUT", &path, &json!({ "weight": 3 }));
    assert_eq!((status, &said["change"]), (200, &json!(before + 1)), "{said}");
    let (status, said) = at("PUT", &path, &json!({ "weight": 4 }));
    assert_eq!((status, &said["kind"]), (409, &json!("conflict")), "{said}");
    assert!(said["error"].as_str().unwrap().contains(&format!("{}, not {before}", before + 1)));
    // What is so already is no change.
    for (path, body) in [
        (format!("{own}/weight"), json!({ "weight": 3 })),
        (format!("{own}/drain"), json!({ "drain": false })),
    ] {
        let (status, said) = at("PUT", &path, &body);
        assert_eq!((status, &said["change"]), (200, &json!(before + 1)), "{said}");
        assert!(said["done"].as_str().unwrap().ends_with("already"), "{said}");
    }
    // Whole numbers may have a point, as JSON Schema has them, and so the description.
    let path = format!("{own}/weight?expect={}.0", before + 1);
    let (status, said) = at_socket(&balancer, "PUT", &path, "{\"weight\": 3.0}");
    assert_eq!((status, &said["change"]), (200, &json!(before + 1)), "{said}");
    let (_, history) = at("GET", "/v1/history", &Value::Null);
    let path = format!("/v1/history/{}", history["current"]);
    let text = at("GET", &path, &Value::Null);
    assert_eq!((text.0, at("GET", &format!("{path}.0"), &Value::Null)), (200, text), "{path}");
    // A backend is made what it is to be: added, changed, left alone; it does not move.
    let path = "/v1/services/web4/backends/more";
    let address = |number: usize| weir_lab::topology::backend4(number).to_string();
    for (weight, change) in [(5, 2), (5, 2), (7, 3)] {
        let (status, said) = at("PUT", path, &json!({ "address": address(2), "weight": weight }));
        assert_eq!((status, &said["change"]), (200, &json!(before + change)), "{said}");
    }
    let (status, said) = at("PUT", path, &json!({ "address": "192.0.2.77" }));
    assert_eq!((status, &said["kind"]), (409, &json!("conflict")), "{said}");
    let (status, _) = at("DELETE", path, &Value::Null);
    assert_eq!(status, 200);
    // Refusals are typed, whoever refuses.
    let large = "x".repeat(100 << 10);
    // A line as `weir apply` puts before the text of an included file is a comment where somebody else has written it.
    let marked = "[balancer]\ninterfaces = [\"lo\"]\n#: file /etc/shadow\nnonsense = 1\n";
    let marked = json!({ "file": "/x/weir.toml", "text": marked }).to_string();
    for (method, path, body, wanted, kind, words) in [
        ("GET", "/v1/nonsense", "", 404, "not_found", "not found"),
        ("GET", "/v1/services/none", "", 404, "not_found", "no service none"),
        ("GET", "/v1/rates?service=none", "", 404, "not_found", "no service none"),
        ("PATCH", "/v1/status", "", 405, "invalid", "not allowed"),
        (
            "PUT",
            own.as_str(),
            "{\"address\": 7}",
            400,
            "invalid",
            "the body: address: 7 is wrong here",
        ),
        (
            "PUT",
            "/v1/services/web4/backends/a%20b",
            "{\"address\": \"192.0.2.7\"}",
            400,
            "invalid",
            "name",
        ),
        ("GET", "/v1/history/seven", "", 400, "invalid", "seven"),
        ("GET", "/v1/watch?interval=99", "", 400, "invalid", "interval"),
        (
            "PUT",
            "/v1/services/web4/backends/b/drain?expect=x",
            "{\"drain\": true}",
            400,
            "invalid",
            "expect",
        ),
        (
            "PUT",
            "/v1/services/web4/backends/b/drain?expct=1",
            "{\"drain\": true}",
            400,
            "invalid",
            "expct",
        ),
        ("PUT", "/v1/services/web4/backends/b/drain", "[true]", 400, "invalid", "an array"),
        ("GET", "/v1/events?sinse=3", "", 400, "invalid", "sinse"),
        ("GET", "/v1/events?after=3.5", "", 400, "invalid", "after"),
        ("GET", "/v1/events?after=18446744073709551616", "", 400, "invalid", "after"),
        ("POST", "/v1/plan", "{\"file\": \"/dev/zero\"}", 422, "file", "no regular file"),
        ("POST", "/v1/explain", large.as_str(), 413, "invalid", "65536"),
        ("POST", "/v1/plan", "{\"file\": \"relative\"}", 400, "invalid", "absolute"),
        ("POST", "/v1/plan", marked.as_str(), 422, "file", "/x/weir.toml:4: "),
        ("POST", "/v1/apply", marked.as_str(), 422, "file", "/x/weir.toml:4: "),
    ] {
        let (status, said) = at_socket(&balancer, method, path, body);
        assert_eq!(
            (status, said["kind"].as_str()),
            (wanted, Some(kind)),
            "{method} {path}: {said}"
        );
        let error = said["error"].as_str().unwrap().to_lowercase();
        assert!(error.contains(words), "{method} {path}: {error}");
    }
    let stream = UnixStream::connect(balancer.socket()).unwrap();
    let form = ["Content-Type: application/x-www-form-urlencoded"];
    let (status, said) = exchange(stream, &request("POST", "/v1/explain", &form, "a=b"));
    assert!(status == 415 && said.contains("application/json"), "{said}");
    // All of that by root at the socket is in the log: what was done, and what was not.
    let log = audited(&balancer);
    let line = log.iter().find(|line| line["status"] == 409).unwrap();
    assert_eq!(
        (&line["who"], &line["uid"], &line["role"]),
        (&json!("root"), &json!(0), &json!("admin"))
    );
    assert_eq!((&line["method"], &line["body"]), (&json!("PUT"), &json!("{\"weight\":4}")));
    assert!(line["outcome"].as_str().unwrap().contains("somebody else"), "{line}");
    assert!(log.iter().filter(|line| line["status"] == 200).count() >= 6, "{log:?}");
}

/// Nobody who may ask pushes out of the log what was changed before.
#[test]
fn requests_that_cannot_be_done_leave_changes_in_the_audit_log() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = start_with(&lab, "");
    let weight = |backend: &str, weight: u32| {
        let path = format!("/v1/services/web4/backends/{backend}/weight");
        at_socket(&balancer, "PUT", &path, &json!({ "weight": weight }).to_string()).0
    };
    assert_eq!(weight("b1", 7), 200);
    let refuses = |status: u16| (400..500).contains(&status);
    // However slow this machine is, more come in some second than are written down.
    let unsaid = (0..50).any(|_| {
        for _ in 0..200 {
            assert!(refuses(weight("none", 7)) && refuses(weight("b1", 1 << 20)));
        }
        std::thread::sleep(Duration::from_millis(1100));
        assert!(refuses(weight("none", 7)));
        audited(&balancer).iter().any(|line| line["unsaid"].as_u64() > Some(0))
    });
    assert!(unsaid, "all of them are there");
    let log = audited(&balancer);
    assert!(log.iter().any(|line| line["status"] == 200 && line["method"] == "PUT"), "{log:?}");
    // Nor does a program that asks again and again for what is so already.
    for _ in 0..3000 {
        assert_eq!(weight("b1", 7), 200);
    }
    let log = audited(&balancer);
    let already = log.iter().filter(|line| {
        line["outcome"].as_str().is_some_and(|outcome| outcome.ends_with("already"))
    });
    let already = already.count();
    assert!(already < 1500, "{already} lines of 3000");
    // What changes something is written down all the same.
    assert_eq!(weight("b1", 8), 200);
    let last = audited(&balancer).pop().unwrap();
    assert_eq!(last["body"], json!("{\"weight\":8}"), "{last}");
}

/// Asks at a socket as another user of the host.
fn as_nobody(balancer: &Balancer, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    const ASK: &str = r#"
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except PermissionError:
    sys.exit(7)
s.sendall(sys.argv[2].encode())
answer = b""
while part := s.recv(65536):
    answer += part
sys.stdout.write(answer.decode())
"#;
    let output = Command::new("setpriv")
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            ASK,
        ])
        .arg(balancer.socket())
        .arg(request(method, path, &[], body))
        .output()
        .unwrap();
    if output.status.code() == Some(7) {
        return None;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let answer = stdout(&output);
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    Some((status, answer))
}

fn rewrite(balancer: &Balancer, from: &str, to: &str) {
    let text = fs::read_to_string(balancer.config()).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    fs::write(balancer.config(), text.replacen(from, to, 1)).unwrap();
    common::command(balancer, "reload");
}

#[test]
fn users_of_the_host_have_the_roles_that_the_file_gives_them() {
    let _alone = common::alone();
    let lab = common::lab(2);
    // As its package has it, which may give no file away.
    let weir = common::as_unit(&lab, "weir.service");
    let balancer_lines = "# here\n".to_owned();
    let spec = BalancerSpec { balancer_lines, ..BalancerSpec::new(weir, 2) };
    let balancer = common::start_spec(&lab, spec);
    // Others may come to the socket; what they may there is the socket's business.
    for folder in balancer.socket().ancestors().skip(1) {
        let mode = fs::metadata(folder).unwrap().permissions().mode();
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o001));
    }
    let mode = || fs::metadata(balancer.socket()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    assert_eq!(as_nobody(&balancer, "GET", "/v1/status", ""), None, "the socket is its owner's");
    let api = |role: &str| {
        format!(
            "[api]\nsocket_group = \"nogroup\"\n[[api.client]]\nuser = \"nobody\"\nrole = \"{role}\"\n"
        )
    };
    rewrite(&balancer, "# here\n", &format!("# here\n{}", api("read")));
    eventually("the socket is the group's", || mode() == 0o660);
    let ask = |method, path, body| as_nobody(&balancer, method, path, body).unwrap();
    let drain = "/v1/services/web4/backends/b1/drain";
    assert_eq!(ask("GET", "/v1/status", "").0, 200);
    let (status, said) = ask("PUT", drain, "{\"drain\": true}");
    assert!(status == 403 && said.contains("has the role read, and this needs operate"), "{said}");
    let name = balancer.status().unwrap()["services"][0]["backends"][0]["name"].clone();
    let drain = format!("/v1/services/web4/backends/{}/drain", name.as_str().unwrap());
    rewrite(&balancer, "role = \"read\"", "role = \"operate\"");
    assert_eq!(ask("PUT", &drain, "{\"drain\": true}").0, 200);
    assert_eq!(ask("PUT", &drain, "{\"drain\": false}").0, 200);
    // What may read files needs more.
    let file = json!({ "file": "/etc/shadow" }).to_string();
    for (method, path, body) in [
        ("POST", "/v1/reload", ""),
        ("GET", "/v1/history/1", ""),
        ("POST", "/v1/plan", file.as_str()),
        ("POST", "/v1/plan", "{\"text\": \"[balancer]\"}"),
        ("POST", "/v1/apply", "{\"file\": \"x\", \"text\": \"\"}"),
    ] {
        let (status, said) = ask(method, path, body);
        assert!(status == 403 && said.contains("\"forbidden\""), "{path}: {said}");
        assert!(!said.contains("root:"), "{said}");
    }
    assert_eq!(ask("POST", "/v1/plan", "").0, 200);
    let log = audited(&balancer);
    let of_nobody: Vec<&Value> = log.iter().filter(|line| line["who"] == "nobody").collect();
    assert!(
        of_nobody.iter().any(|line| line["status"] == 403 && line["role"] == "read"),
        "{log:?}"
    );
    assert!(of_nobody.iter().any(|line| line["status"] == 200 && line["role"] == "operate"));
    assert!(of_nobody.iter().all(|line| line["uid"] == 65_534));
    // The history says who it was, too.
    let history = balancer.command(&["history", "--json"]).unwrap();
    assert!(history.contains("nobody"), "{history}");
    // And nobody may again.
    rewrite(&balancer, &api("operate"), "");
    eventually("the socket is its owner's again", || mode() == 0o600);
    assert_eq!(as_nobody(&balancer, "GET", "/v1/status", ""), None);
}

type Requests<'a> = [(&'a str, &'a str, &'a [&'a str], &'a str)];

/// Asks by TLS with another implementation, each time anew; the status of each request, or "refused".
fn by_tls(
    from: &NetNs,
    ca: &str,
    own: Option<&(String, String)>,
    requests: &Requests<'_>,
) -> Vec<(String, String)> {
    ask_by_tls(from, ca, own, requests, false)
}

/// The same; or over one connection.
fn ask_by_tls(
    from: &NetNs,
    ca: &str,
    own: Option<&(String, String)>,
    requests: &Requests<'_>,
    together: bool,
) -> Vec<(String, String)> {
    const ASK: &str = r#"
import http.client, json, ssl, sys
given = json.load(sys.stdin)
context = ssl.create_default_context(cafile=given["ca"])
if given["own"]:
    context.load_cert_chain(*given["own"])
new = lambda: http.client.HTTPSConnection("127.0.0.1", 9443, context=context, timeout=60)
c = new()
c.auto_open = 0
if given["together"]:
    c.connect()
for method, path, headers, body in given["requests"]:
    try:
        if not given["together"]:
            c = new()
        c.request(method, path, body or None, dict(h.split(": ", 1) for h in headers))
        answer = c.getresponse()
        print(json.dumps([str(answer.status), answer.read().decode()]))
    except (ssl.SSLError, ConnectionError, http.client.HTTPException) as error:
        print(json.dumps(["refused", str(error)]))
"#;
    let mut asking = from
        .command("/usr/bin/python3")
        .unwrap()
        .args(["-c", ASK])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let given =
        json!({ "ca": ca, "own": own, "requests": requests, "together": together }).to_string();
    asking.stdin.take().unwrap().write_all(given.as_bytes()).unwrap();
    let output = asking.wait_with_output().unwrap();
    assert!(output.status.success());
    stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_certificate_that_ends_soon_is_warned_of_until_it_is_renewed() {
    const METRICS: &str = "127.0.0.1:9479";
    let _alone = common::alone();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ours = Authority::new();
    let ca = ours.write(folder, "ca.pem");
    let days = |count: u64| Duration::from_secs(count * 86_400 + 43_200);
    let (certificate, key) = ours.certify_for(folder, "server", "balancer", days(5));
    let lab = common::lab(2);
    let lines = format!(
        "metrics = \"{METRICS}\"\n[api]\nlisten = \"{TLS}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n\
         client_ca = \"{ca}\"\n"
    );
    let balancer = start_with(&lab, &lines);
    let warnings = || balancer.status().unwrap()["warnings"].to_string();
    let words = "the certificate of the API by TLS ends in 5 days: renew ";
    eventually("the status warns", || warnings().contains(words));
    eventually("the log warns", || fs::read_to_string(balancer.log()).unwrap().contains(words));
    let told = || balancer.status().unwrap()["api_certificate_ends"].as_u64();
    let soon = told().expect("it is served by TLS");
    let scraped = || {
        let asked = request("GET", "/metrics", &[], "");
        let (_, text) = exchange(connect(lab.balancer(), METRICS).unwrap(), &asked);
        let name = "weir_api_certificate_ends_timestamp_seconds ";
        let value = text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        value.and_then(|value| value.parse::<f64>().ok()).map(|value| value as u64)
    };
    eventually("it is a metric", || scraped() == Some(soon));

    ours.certify_for(folder, "server", "balancer", days(100));
    common::command(&balancer, "reload");
    eventually("nothing is warned of any more", || !warnings().contains("certificate"));
    assert!(told().is_some_and(|ends| ends > soon), "{:?}", told());

    // One that cannot be shown is told by whoever looks.
    let config = balancer.config().to_str().unwrap();
    let doctor =
        || common::stdout(&common::weir_in(&lab, &["doctor", "--no-probe", "--config", config]));
    assert!(doctor().contains("can be shown by TLS"), "{}", doctor());
    ours.certify_for(folder, "other", "balancer", days(100));
    for (with, words) in [("other.key", "server.pem cannot be used"), ("empty", "cannot be used")] {
        fs::write(folder.join("empty"), "").unwrap();
        fs::copy(folder.join(with), &key).unwrap();
        let said = balancer.command(&["reload"]).unwrap();
        assert!(said.contains("no API by TLS") && said.contains(words), "{said}");
        eventually("the status warns", || warnings().contains("no API by TLS"));
        assert!(doctor().contains("warn  certificate no API by TLS"), "{}", doctor());
    }
}

#[test]
fn certificates_have_the_roles_that_the_file_gives_them() {
    let _alone = common::alone();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let ca = ours.write(folder, "ca.pem");
    let (certificate, key) = ours.certify(folder, "server", "balancer");
    let lab = common::lab(2);
    let api = format!(
        "[api]\nlisten = \"{TLS}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nclient_ca = \"{ca}\"\n\
         [[api.client]]\ncertificate = \"alice\"\nrole = \"operate\"\n\
         [[api.client]]\ncertificate = \"bob\"\nrole = \"read\"\n\
         [[api.client]]\ncertificate = \"carol\"\nrole = \"admin\"\n"
    );
    let balancer = start_with(&lab, &api);
    let here = lab.balancer();
    eventually("the API is served by TLS", || connect(here, TLS).is_ok());
    let name = balancer.status().unwrap()["services"][0]["backends"][0]["name"].clone();
    let drain = format!("/v1/services/web4/backends/{}/drain", name.as_str().unwrap());
    let header = "X-Weir: 1";
    let json = "Content-Type: application/json";
    let body = "{\"drain\": true}";
    let requests: [(&str, &str, &[&str], &str); 7] = [
        ("GET", "/v1/status", &[], ""),
        ("PUT", &drain, &[json], body),
        ("PUT", &drain, &[json, header], body),
        ("PUT", &drain, &[json, header, "Origin: https://evil.example"], body),
        ("PUT", &drain, &[json, header, "Sec-Fetch-Site: cross-site"], body),
        ("POST", "/v1/reload", &[header], ""),
        ("GET", "/", &[], ""),
    ];
    let asked = |own: Option<&(String, String)>| {
        let answers = by_tls(here, &ca, own, &requests);
        let statuses: Vec<String> = answers.iter().map(|(status, _)| status.clone()).collect();
        (statuses, answers)
    };
    let alice = ours.certify(folder, "alice", "alice");
    let (statuses, answers) = asked(Some(&alice));
    assert_eq!(statuses, ["200", "403", "200", "403", "403", "403", "200"], "{answers:?}");
    assert!(answers[1].1.contains("X-Weir"), "{answers:?}");
    assert!(answers[6].1.contains("<title>weir</title>"));
    let bob = ours.certify(folder, "bob", "bob");
    let (statuses, answers) = asked(Some(&bob));
    assert_eq!(statuses, ["200", "403", "403", "403", "403", "403", "200"], "{answers:?}");
    // A certificate of the authority that is not named may nothing; one of another, and none, come not in.
    let eve = ours.certify(folder, "eve", "eve");
    let (statuses, answers) = asked(Some(&eve));
    assert!(statuses.iter().all(|status| status == "403"), "{answers:?}");
    let mallory = theirs.certify(folder, "mallory", "alice");
    for own in [Some(&mallory), None] {
        let (statuses, answers) = asked(own);
        assert!(statuses.iter().all(|status| status == "refused"), "{answers:?}");
    }
    let log = audited(&balancer);
    let of = |who: &str, status: u64| {
        log.iter()
            .any(|line| line["who"] == format!("certificate {who}") && line["status"] == status)
    };
    assert!(of("alice", 200) && of("alice", 403) && of("bob", 403) && of("eve", 403), "{log:?}");
    assert!(
        log.iter().all(|line| line["from"].as_str().is_none_or(|from| from.starts_with("127.")))
    );
    eventually("who is not let in is said", || {
        common::log(&balancer).contains("refused in the handshake of TLS")
    });
    // A role that is taken away is gone, for connections that there are too; another certificate is shown
    // after a reload.
    rewrite(
        &balancer,
        "certificate = \"alice\"\nrole = \"operate\"",
        "certificate = \"alice\"\nrole = \"read\"",
    );
    let other = Authority::new();
    let (again, its_key) = other.certify(folder, "server2", "balancer");
    fs::copy(again, &certificate).unwrap();
    fs::copy(its_key, &key).unwrap();
    common::command(&balancer, "reload");
    let ca = other.write(folder, "ca2.pem");
    eventually("the other certificate is shown", || {
        by_tls(here, &ca, Some(&alice), &requests[..1])[0].0 == "200"
    });
    assert_eq!(by_tls(here, &ca, Some(&alice), &requests[2..3])[0].0, "403");
    // Whoever has the balancer reload is told what came of it, and goes on over the same connection; unless
    // another certificate is to be shown: then that ends after the answer.
    let carol = ours.certify(folder, "carol", "carol");
    let (look, reload) =
        (("GET", "/v1/status", &[][..], ""), ("POST", "/v1/reload", &[header][..], ""));
    let statuses = |ca: &str| {
        let answers = ask_by_tls(here, ca, Some(&carol), &[look, reload, reload, look], true);
        answers.into_iter().map(|(status, _)| status).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&ca), ["200", "200", "200", "200"]);
    let (again, its_key) = ours.certify(folder, "server3", "balancer");
    fs::copy(again, &certificate).unwrap();
    fs::copy(its_key, &key).unwrap();
    let own = ["--cert", &carol.0, "--key", &carol.1, "--cacert", &ca];
    let watch = ["-sN", "--max-time", "100", "https://127.0.0.1:9443/v1/watch?interval=1"];
    let mut watching = here.command("curl").unwrap();
    let mut watching = watching.args(own).args(watch).stdout(Stdio::piped()).spawn().expect("curl");
    let mut first = [0];
    watching.stdout.as_mut().unwrap().read_exact(&mut first).expect("a stream");
    // What comes after the answer may be just in time.
    assert_eq!(statuses(&ca)[..2], ["200", "200"]);
    // 28: it had to end by itself, in the middle of the stream.
    let ended = watching.wait_with_output().unwrap().status;
    assert_ne!(ended.code(), Some(28), "a stream went on under the former certificate");
    let ca = folder.join("ca.pem").display().to_string();
    eventually("that one is shown", || by_tls(here, &ca, Some(&carol), &[look])[0].0 == "200");
    assert_eq!(statuses(&ca), ["200", "200", "200", "200"]);
}

#[test]
fn the_page_is_for_eyes_unless_it_may_more_and_for_no_other_site() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let here = lab.balancer();
    let balancer = start_with(&lab, &format!("web = \"{WEB}\"\n"));
    eventually("the page is served", || connect(here, WEB).is_ok());
    let (status, page) = at_web(here, "GET", "/", &[], "");
    assert!(status == 200 && page.contains("<title>weir</title>"));
    // One file, which asks for nothing from elsewhere.
    for outside in ["src=", "@import", "url(", "//cdn", "http-equiv"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let (status, status_text) = at_web(here, "GET", "/v1/status", &[], "");
    assert!(status == 200 && status_text.contains("web4"));
    let name = balancer.status().unwrap()["services"][0]["backends"][0]["name"].clone();
    let drain = format!("/v1/services/web4/backends/{}/drain", name.as_str().unwrap());
    let change = |headers: &[&str]| at_web(here, "PUT", &drain, headers, "{\"drain\": true}");
    let (status, said) = change(&["X-Weir: 1"]);
    assert!(status == 403 && said.contains("needs operate"), "{said}");
    // A name that is not ours, as another site's may be led here.
    for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example"] {
        for path in ["/", "/v1/status"] {
            let (status, said) = at_web(here, "GET", path, &[&format!("Host: {host}")], "");
            assert!(status == 403 && said.contains("web_hosts"), "{host}: {said}");
        }
    }
    let page_of_others = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors"];
    assert_eq!(at_web(here, "GET", "/v1/status", &page_of_others, "").0, 403);
    let link_of_others = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"];
    assert_eq!(at_web(here, "GET", "/", &link_of_others, "").0, 200);
    // With more rights, on loopback: from the page itself, and from nowhere else.
    rewrite(
        &balancer,
        &format!("web = \"{WEB}\"\n"),
        &format!("web = \"{WEB}\"\nweb_role = \"operate\"\nweb_hosts = [\"lb.example\"]\n"),
    );
    for (headers, wanted) in [
        (&["Content-Length: 15"][..0], 403),
        (&["X-Weir: 1", "Origin: http://evil.example", "Host: 127.0.0.1:8080"], 403),
        (&["X-Weir: 1", "Sec-Fetch-Site: same-site"], 403),
        (&["X-Weir: 1", "Host: evil.example"], 403),
        (
            &[
                "X-Weir: 1",
                "Origin: http://127.0.0.1:8080",
                "Host: 127.0.0.1:8080",
                "Sec-Fetch-Site: same-origin",
            ],
            200,
        ),
        (&["X-Weir: 1", "Host: lb.example:8080"], 200),
    ] {
        let (status, said) = change(headers);
        assert_eq!(status, wanted, "{headers:?}: {said}");
    }
    assert_eq!(at_web(here, "POST", "/v1/reload", &["X-Weir: 1"], "").0, 403);
    assert_eq!(at_web(here, "OPTIONS", "/v1/status", &["Origin: http://evil.example"], "").0, 405);
    assert!(audited(&balancer).iter().any(|line| line["who"] == "the page, from 127.0.0.1"));
    // Rights for whoever comes by are refused where everybody may come by.
    let text = fs::read_to_string(balancer.config()).unwrap().replace(WEB, "0.0.0.0:8080");
    let file = balancer.config().with_extension("other");
    fs::write(&file, text).unwrap();
    let output = common::weir(&["check", "--config", file.to_str().unwrap()]);
    assert!(
        !output.status.success() && stderr(&output).contains("web_role"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn slow_and_half_open_clients_keep_nobody_waiting() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let here = lab.balancer();
    let balancer = start_with(&lab, &format!("web = \"{WEB}\"\n"));
    eventually("the page is served", || connect(here, WEB).is_ok());
    let words: [&[u8]; 5] = [
        b"",
        b"GET /v1/sta",
        b"PUT /v1/services/web4/backends/b/drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: \
          application/json\r\nContent-Length: 1000\r\n\r\n{",
        b"\x16\x03\x01\x02\x00\x01",
        // They ask, and take no answer.
        b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ];
    let mut there: Vec<UnixStream> = Vec::new();
    let mut web: Vec<TcpStream> = Vec::new();
    for number in 0..600 {
        let words = words[number % words.len()];
        let mut stream = UnixStream::connect(balancer.socket()).unwrap();
        let _ = stream.write_all(words);
        there.push(stream);
        let mut stream = connect(here, WEB).unwrap();
        let _ = stream.write_all(words);
        web.push(stream);
        if number % 100 == 99 {
            assert!(balancer.status().is_ok(), "after {number}");
            assert_eq!(at_web(here, "GET", "/v1/status", &[], "").0, 200, "after {number}");
        }
    }
    common::command(&balancer, "reload");
    // Streams are long, and not the first to go; there is an end of them, too.
    let watch = request("GET", "/v1/watch?interval=60", &[], "");
    let mut streams: Vec<UnixStream> = Vec::new();
    let mut refused = 0;
    for _ in 0..80 {
        let mut stream = UnixStream::connect(balancer.socket()).unwrap();
        stream.write_all(watch.as_bytes()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        match &head[9..] {
            b"200" => streams.push(stream),
            b"503" => refused += 1,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
    assert_eq!((streams.len(), refused), (64, 16));
    for _ in 0..300 {
        let mut stream = UnixStream::connect(balancer.socket()).unwrap();
        let _ = stream.write_all(b"GET ");
        there.push(stream);
    }
    assert!(balancer.status().is_ok());
    let mut rest = [0; 4096];
    for stream in &mut streams {
        assert!(stream.read(&mut rest).is_ok_and(|length| length > 0), "a stream was cut off");
    }
}

/// Reads a stream until it holds all words.
fn read_until(stream: &mut UnixStream, words: &[&str]) -> String {
    let mut text = String::new();
    let mut part = [0; 65_536];
    while !words.iter().all(|word| text.contains(word)) {
        let length = stream.read(&mut part).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(length > 0, "it ended: {text}");
        text += &String::from_utf8_lossy(&part[..length]);
    }
    text
}

#[test]
fn watchers_are_told_what_happens() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = start_with(&lab, "");
    let open = |path: &str, headers: &[&str]| {
        let mut stream = UnixStream::connect(balancer.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request("GET", path, headers, "").as_bytes()).unwrap();
        stream
    };
    let mut stream = open("/v1/watch?interval=1", &[]);
    read_until(&mut stream, &["200 OK", "text/event-stream", "event: status\ndata: {"]);
    let name = balancer.status().unwrap()["services"][0]["backends"][0]["name"].clone();
    let name = name.as_str().unwrap();
    let before = number(&balancer);
    common::command(&balancer, &format!("backend drain web4 {name}"));
    let told = read_until(&mut stream, &["event: event", "drains", "\n\n"]);
    assert!(told.contains(&format!("\"number\":{}", before + 1)), "{told}");
    let id = told.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id").to_owned();
    // Whoever was cut off goes on behind the last that it had, and misses nothing.
    drop(stream);
    common::command(&balancer, &format!("backend drain --undo web4 {name}"));
    let mut stream = open("/v1/watch?interval=0", &[&format!("Last-Event-ID: {id}")]);
    let told = read_until(&mut stream, &["serves again", "\n\n"]);
    assert!(!told.contains(" drains"), "{told}");
    // By JSON Schema that is a whole number, too.
    let (_, list) = at_socket(&balancer, "GET", &format!("/v1/events?after={id}.0"), "");
    let events = list["events"].as_array().unwrap();
    assert!(
        events.iter().any(|event| event["change"]["done"].to_string().contains("serves again"))
    );
    assert!(events.iter().all(|event| event["number"].as_u64() > id.parse().ok()), "{list}");
    // Nor does it miss anything of the next process, which has had fewer events.
    balancer.kill();
    balancer.launch().unwrap();
    common::command(&balancer, &format!("backend drain web4 {name}"));
    let (_, all) = at_socket(&balancer, "GET", "/v1/events", "");
    let (_, list) = at_socket(&balancer, "GET", &format!("/v1/events?after={id}"), "");
    let first = |list: &Value| list["events"][0]["number"].as_u64();
    assert!(first(&all) > id.parse().ok() && first(&list) == first(&all), "{id}: {all} {list}");
}

/// Draws requests from the description, good ones and bad ones, and holds the answers to it.
const FUZZ: &str = r##"
import json, os, random, socket, sys, urllib.parse
from jsonschema import Draft202012Validator
path, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
doc = json.load(sys.stdin)
r = random.Random(seed)
print("seed", seed, file=sys.stderr)
names = ["web4", "web6", "echo4", "b1", "backend-1", "none", "a b", "..", "%", "\u00fc" * 40, "x" * 300]
strings = names + ["", "192.0.2.7", "2001:db8::1", "192.0.2.7:80", "tcp", "udp", "0", "null", "\u0000", "/etc/hosts"]
def resolve(schema):
    while isinstance(schema, dict) and "$ref" in schema:
        schema = doc["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema
def anything(depth=0):
    kind = r.randrange(8 if depth < 3 else 6)
    if kind == 0: return None
    if kind == 1: return r.choice([True, False])
    if kind == 2: return r.choice([0, 1, -1, 65535, 65536, 2**31, 2**64, -2**63, r.randrange(1000)])
    if kind == 3: return r.choice([0.5, -1.5, 1e308])
    if kind < 6: return r.choice(strings)
    if kind == 6: return [anything(depth + 1) for _ in range(r.randrange(3))]
    return {r.choice(strings): anything(depth + 1) for _ in range(r.randrange(3))}
def draw(schema, depth=0):
    schema = resolve(schema)
    if not isinstance(schema, dict) or depth > 5 or r.random() < 0.08: return anything()
    for many in ("anyOf", "oneOf"):
        if many in schema: return draw(r.choice(schema[many]), depth + 1)
    if "enum" in schema: return r.choice(schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list): kind = r.choice(kind)
    if kind == "integer": return r.choice([0, 1, schema.get("maximum", 7), schema.get("minimum", 0), r.randrange(70000)])
    if kind == "number": return r.choice([0, 0.75, 3])
    if kind == "boolean": return r.choice([True, False])
    if kind == "null": return None
    if kind == "array": return [draw(schema.get("items", {}), depth + 1) for _ in range(r.randrange(3))]
    if kind == "object":
        need = schema.get("required", [])
        return {k: draw(v, depth + 1) for k, v in schema.get("properties", {}).items() if (k in need and r.random() < .95) or r.random() < .5}
    return r.choice(strings)
def ask(method, target, body, headers):
    s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(path)
    text = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    if body is not None: text += f"Content-Length: {len(body)}\r\n"
    try: s.sendall(text.encode() + b"\r\n" + (body or b""))
    except OSError: pass
    got = b""
    while b"\r\n\r\n" not in got or not stream:
        try: part = s.recv(65536)
        except OSError: break
        if not part: break
        got += part
    head, _, rest = got.partition(b"\r\n\r\n")
    lines = head.decode("latin1").split("\r\n")
    kinds = [l.split(":", 1)[1].strip() for l in lines if l.lower().startswith("content-type:")]
    return int(lines[0].split(" ")[1]), (kinds or [""])[0], rest
def judge(schema, value):
    return [e.message[:300] for e in Draft202012Validator({"components": doc["components"], "allOf": [schema]}).iter_errors(value)]
count, by_status = 0, {}
for n in range(rounds):
    for place, methods in doc["paths"].items():
        for method, op in methods.items():
            target, query = place, {}
            for p in op["parameters"]:
                value = r.choice(names) if p["in"] == "path" and r.random() < .8 else draw(p["schema"])
                if p["in"] == "path": target = target.replace("{%s}" % p["name"], urllib.parse.quote(str(value), safe="") or "x")
                elif p["in"] == "query" and r.random() < .3: query[p["name"]] = value
            if query: target += "?" + urllib.parse.urlencode(query)
            body, headers = None, {}
            if "requestBody" in op and r.random() < .97:
                headers["Content-Type"] = r.choice(["application/json"] * 9 + ["text/plain"])
                body = json.dumps(draw(op["requestBody"]["content"]["application/json"]["schema"])).encode()
                if r.random() < .1: body = body[:r.randrange(len(body) + 1)] + os.urandom(0) + b"\xff{"
            media = next(iter(op["responses"]["200"]["content"]))
            stream = media in ("text/event-stream", "application/x-ndjson")
            status, kind, rest = ask(method.upper(), target, body, headers)
            count += 1; by_status[status] = by_status.get(status, 0) + 1
            what = f"{method} {target} {body!r}: {status} {rest[:300]!r}"
            assert str(status) in op["responses"], what
            assert status < 500 or (status == 503 and stream), what
            if status != 200:
                assert kind == "application/json", what
                assert not judge({"$ref": "#/components/schemas/Refusal"}, json.loads(rest)), what
            elif media == "application/json":
                faults = judge(op["responses"]["200"]["content"][media]["schema"], json.loads(rest))
                assert not faults, what + str(faults)
            else:
                assert kind.startswith(media), what
print(json.dumps({"count": count, "by_status": by_status}))
"##;

#[test]
fn what_is_described_is_what_is_served() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = start_with(&lab, &format!("web = \"{WEB}\"\n"));
    let described = stdout(&common::weir(&["schema", "--api"]));
    let (_, served) = at_socket(&balancer, "GET", "/v1/openapi.json", "");
    assert_eq!(served, serde_json::from_str::<Value>(&described).unwrap());
    assert_eq!(served["openapi"], "3.1.0");
    // Numbers that are read in 64 bits are described so.
    let mut bounded = 0;
    for operation in served["paths"].as_object().unwrap().values().flat_map(|path| path.as_object())
    {
        let parameters = operation.values().flat_map(|one| one["parameters"].as_array());
        for one in parameters.flatten() {
            if ["expect", "after", "number"].iter().any(|name| one["name"] == *name) {
                assert_eq!(one["schema"]["maximum"], u64::MAX, "{one}");
                bounded += 1;
            }
        }
    }
    assert!(bounded > 3, "{served}");
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u32 = seed.unwrap_or_else(rand::random);
    let mut fuzz = Command::new("/usr/bin/python3")
        .args(["-c", FUZZ])
        .arg(balancer.socket())
        .args(["40", &seed.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Debian's Python, with python3-jsonschema");
    fuzz.stdin.take().unwrap().write_all(described.as_bytes()).unwrap();
    let output = fuzz.wait_with_output().unwrap();
    assert!(output.status.success(), "seed {seed}: {}", stderr(&output));
    let said: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let of = |status: &str| said["by_status"][status].as_u64().unwrap_or(0);
    assert!(of("200") > 100 && of("400") > 50 && of("404") > 20, "{said}");
    assert!(!common::log(&balancer).contains("panicked"), "{}", common::log_tail(&balancer, 40));
    assert!(balancer.status().is_ok());
}

/// Another implementation's reader of the description asks by it, with what it allows and what it does not, by TLS, for
/// each of the roles. Whatever is asked, nothing of it is the balancer's own fault, and what is answered is described.
#[test]
fn schemathesis_finds_no_fault_in_any_role() {
    let _alone = common::alone();
    let made =
        Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/schemathesis")).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let program = stdout(&made).trim().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ours = Authority::new();
    let ca = ours.write(folder, "ca.pem");
    let (certificate, key) = ours.certify(folder, "server", "balancer");
    let roles = ["read", "operate", "admin"];
    let mut api = format!(
        "[api]\nlisten = \"{TLS}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nclient_ca = \"{ca}\"\n"
    );
    for role in roles {
        api += &format!("[[api.client]]\ncertificate = \"{role}\"\nrole = \"{role}\"\n");
    }
    let lab = common::lab(3);
    let balancer = start_with(&lab, &api);
    let here = lab.balancer();
    eventually("the API is served by TLS", || connect(here, TLS).is_ok());
    let description = folder.join("api.json");
    fs::write(&description, stdout(&common::weir(&["schema", "--api"]))).unwrap();
    let operations: Value = serde_json::from_slice(&fs::read(&description).unwrap()).unwrap();
    let all: usize = operations["paths"]
        .as_object()
        .unwrap()
        .values()
        .map(|one| one.as_object().unwrap().len())
        .sum();
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u32 = seed.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    for role in roles {
        let (certificate, key) = ours.certify(folder, role, role);
        let report = folder.join(format!("{role}.json"));
        let mut asks = here.command(&program).unwrap();
        asks.arg("run").arg(&description).arg("--report-json-path").arg(&report);
        asks.args(["--url", &format!("https://{TLS}"), "--tls-verify", &ca]);
        asks.args(["--request-cert", &certificate, "--request-cert-key", &key]);
        asks.args(["--header", "X-Weir: 1", "--seed", &seed.to_string(), "--max-examples", "12"]);
        asks.args(["--phases", "coverage,fuzzing", "--report", "json", "--no-color"]);
        asks.args([
            "--checks",
            "not_a_server_error,response_schema_conformance,content_type_conformance",
        ]);
        // Answers that go on until somebody closes them.
        asks.args(["--exclude-path", "/v1/watch", "--exclude-path", "/v1/trace"]);
        // Whoever is refused before its request was read may not get the answer; a machine that is busy is slow.
        asks.args(["--request-retries", "10", "--request-timeout", "120"]);
        asks.args(["--suppress-health-check", "all"]).current_dir(folder);
        let output = asks.output().expect("it runs");
        let said = format!("{role}, WEIR_SEED={seed}: {}{}", stdout(&output), stderr(&output));
        assert!(output.status.success(), "{said}");
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        assert_eq!(report["failures"], json!([]), "{said}");
        assert_eq!(report["operations"]["tested"], json!(all - 2), "{said}");
        assert!(report["test_cases"]["generated"].as_u64() > Some(300), "{said}");
        // What a role may not do was refused, and what it may was done.
        let refused = report["warnings"]["missing_auth"].as_array().unwrap();
        let may_not = |what: &str| refused.iter().any(|one| one == what);
        assert_eq!(may_not("POST /v1/reload"), role != "admin", "{said}");
        let drain = "PUT /v1/services/{service}/backends/{backend}/drain";
        assert_eq!(may_not(drain), role == "read", "{said}");
        assert!(!may_not("GET /v1/status"), "{said}");
        let log = audited(&balancer);
        assert!(log.iter().any(|line| line["who"] == format!("certificate {role}")), "{role}");
    }
    assert!(!common::log(&balancer).contains("panicked"), "{}", common::log_tail(&balancer, 40));
    assert!(balancer.status().is_ok());
}
