//! Health checks of a running balancer against real servers: pages by HTTP and HTTPS, checks of single
//! backends, certificates that end soon, scripts, most failing at once.

mod common;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};

use common::{Held, WEB4, eventually};
use serde_json::Value;
use weir_lab::topology::client4;
use weir_lab::{Balancer, Lab, NetNs};

/// The instance's file with another `[service.check]` of the service web4, and fields of its backends.
fn write(balancer: &Balancer, good: &str, check: &str, backends: &[(&str, &str)]) {
    let (head, rest) = good.split_once("[service.check]\n").expect("web4 is the first service");
    let (_, rest) = rest.split_once("\n[[service.backend]]").expect("its backends");
    let (own, others) = rest.split_once("\n[[service]]").expect("the next service");
    let mut own = own.to_owned();
    for (name, fields) in backends {
        let line = format!("name = \"{name}\"\n");
        assert!(own.contains(&line), "{own}");
        own = own.replace(&line, &format!("{line}{fields}\n"));
    }
    let text =
        format!("{head}[service.check]\n{check}\n\n[[service.backend]]{own}\n[[service]]{others}");
    fs::write(balancer.config(), text).unwrap();
}

const OFTEN: &str = "interval = \"100ms\"\ntimeout = \"90ms\"\nrise = 2\nfall = 3";
/// For checks that take a process, on a machine that is busy.
const SELDOM: &str = "interval = \"1s\"\ntimeout = \"900ms\"\nrise = 1\nfall = 3";

fn backend(status: &Value, name: &str) -> Value {
    let web = common::service(status, "web4");
    let all = web["backends"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).expect("the backend").clone()
}

/// Waits until the backends' states are these, in their order.
fn states(balancer: &Balancer, wanted: &[&str]) -> Value {
    let mut last = Value::Null;
    eventually(&format!("{wanted:?}"), || {
        last = balancer.status().unwrap();
        let web = common::service(&last, "web4");
        let found: Vec<String> = web["backends"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["state"].as_str().unwrap().to_owned())
            .collect();
        found == wanted
    });
    last
}

fn until(balancer: &Balancer, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    eventually(what, || {
        last = backend(&balancer.status().unwrap(), name);
        is(&last["check"])
    });
    last
}

/// One more nginx of a backend, which serves a directory by HTTP at 8081 and by TLS at 8443.
struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nginx(at: &NetNs, home: &Path) -> Nginx {
    let home = home.display();
    let mut text = format!(
        "daemon off;\nmaster_process off;\nuser root;\nerror_log {home}/error.log;\n\
         pid {home}/nginx.pid;\nevents {{ }}\nhttp {{\n  access_log {home}/access.log;\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text += &format!("  {kind}_temp_path {home}/tmp;\n");
    }
    text += &format!(
        "  server {{\n    listen 8081;\n    listen 8443 ssl;\n    ssl_certificate {home}/own.pem;\n    \
         ssl_certificate_key {home}/own.key;\n    root {home}/www;\n    add_header X-Role primary;\n    \
         location = /moved {{ return 302 /; }}\n  }}\n}}\n"
    );
    let config = format!("{home}/nginx.conf");
    fs::write(&config, text).unwrap();
    let mut command = at.command("nginx").unwrap();
    command.args(["-c", &config, "-p", &home.to_string()]).stdin(Stdio::null());
    let log = fs::File::create(format!("{home}/output.log")).unwrap();
    command.stderr(log);
    Nginx(command.spawn().expect("nginx"))
}

/// An authority, and a certificate for shop.example that ends in three days.
fn certificates(directory: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let (key, own_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut about = CertificateParams::new(Vec::new()).unwrap();
    about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(directory.join("ca.pem"), about.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(about, key);
    let mut about = CertificateParams::new(vec!["shop.example".to_owned()]).unwrap();
    about.not_after =
        (std::time::SystemTime::now() + std::time::Duration::from_secs(76 * 3600)).into();
    let own = about.signed_by(&own_key, &issuer).unwrap();
    fs::write(directory.join("own.pem"), own.pem()).unwrap();
    fs::write(directory.join("own.key"), own_key.serialize_pem()).unwrap();
}

fn home(lab: &Lab) -> PathBuf {
    let home = lab.directory().join("more");
    fs::create_dir_all(home.join("www")).unwrap();
    certificates(&home);
    home
}

#[test]
fn pages_certificates_and_single_backends_are_checked() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "concury", 3);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let mut held = common::hold(&lab, WEB4, 60);

    // The lab's own nginx, by HTTP, with its header and its body.
    let check =
        format!("{OFTEN}\ntype = \"http\"\nbody = \"b\"\nanswer_headers = {{ X-Backend = \"b\" }}");
    write(&balancer, &good, &check, &[("b1", "check = { body = \"b2\" }")]);
    common::command(&balancer, "reload");
    let status = states(&balancer, &["up", "down", "up"]);
    let down = backend(&status, "b1");
    let error = down["check"]["last_error"].as_str().unwrap();
    assert!(error.contains("the body is without what is expected"), "{error}");
    assert!(down["check"]["failed"].as_u64().unwrap() >= 3, "{down}");
    let up = backend(&status, "b0");
    assert_eq!((&up["check"]["type"], &up["check"]["failed"]), (&"http".into(), &0.into()), "{up}");
    until(&balancer, "b0", "a check by HTTP", |check| {
        check["last"].as_str().is_some_and(|last| last.starts_with("HTTP 200 in "))
            && check["seconds"].as_f64().is_some_and(|took| took > 0.0)
    });
    common::assert_unbroken(&mut held, "with a backend down by its page", &balancer);
    let text = balancer.command(&["status"]).unwrap();
    assert!(text.contains("without what is expected"), "{text}");

    // A reload that turns the check off brings up what it had down.
    write(&balancer, &good, &check, &[("b1", "check = { enabled = false }")]);
    common::command(&balancer, "reload");
    let status = states(&balancer, &["up", "up", "up"]);
    let unchecked = backend(&status, "b1");
    assert!(unchecked["check"]["type"].is_null(), "{unchecked}");

    // A server by TLS, its page there and gone, its certificate ending.
    let home = home(&lab);
    let page = home.join("www/healthz");
    fs::write(&page, "ready\n").unwrap();
    let server = nginx(lab.backend(0).netns(), &home);
    let own = format!(
        "check = {{ type = \"https\", port = 8443, path = \"/healthz\", host = \"shop.example\", \
         body = \"ready\", ca = \"{}\", answer_headers = {{ X-Role = \"primary\" }} }}",
        home.join("ca.pem").display()
    );
    write(&balancer, &good, SELDOM, &[("b0", &own)]);
    common::command(&balancer, "reload");
    let backend0 = until(&balancer, "b0", "a check by TLS", |check| {
        check["last"].as_str().is_some_and(|last| last.starts_with("HTTP 200 in "))
    });
    assert!(backend0["check"]["certificate_ends"].as_i64().is_some(), "{backend0}");
    let status = balancer.status().unwrap();
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("backend b0: its certificate ends in 3 days"), "{warnings}");
    // weir doctor makes the very same check.
    let config = balancer.config().display().to_string();
    let said = common::stdout(&common::weir_in(&lab, &["doctor", "--config", &config]));
    assert!(said.contains("health check by https on port 8443 succeeds"), "{said}");
    fs::remove_file(&page).unwrap();
    states(&balancer, &["down", "up", "up"]);
    until(&balancer, "b0", "the reason", |check| {
        check["last_error"] == "HTTP status 404, not 200-399"
    });
    fs::write(&page, "ready\n").unwrap();
    states(&balancer, &["up", "up", "up"]);
    drop(server);
    states(&balancer, &["down", "up", "up"]);
    until(&balancer, "b0", "the reason", |check| check["last_error"] == "connection refused");
    let log = fs::read_to_string(home.join("access.log")).unwrap();
    assert!(log.contains("GET /healthz HTTP/1.1\" 200"), "{log}");
    assert!(log.contains("\"weir/"), "{log}");
    common::assert_unbroken(&mut held, "at the end", &balancer);
}

#[test]
fn a_script_decides_and_what_this_host_lacks_does_not() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "tracked", 2);
    let good = fs::read_to_string(balancer.config()).unwrap();
    // Nobody must be able to read it.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (script, ill) = (folder.path().join("check"), folder.path().join("ill"));
    let text = format!(
        "#!/bin/sh\n[ -e {ill} ] && grep -q \"$1\" {ill} && echo \"$1 is ill, says $(id -un)\" && exit 1\n\
         exit 0\n",
        ill = ill.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let check = format!(
        "{SELDOM}\ntype = \"script\"\ncommand = [\"{}\", \"{{address}}\"]",
        script.display()
    );
    write(&balancer, &good, &check, &[]);
    common::command(&balancer, "reload");
    until(&balancer, "b1", "a check by the script", |check| {
        check["last"].as_str().is_some_and(|last| last.starts_with("the script succeeded in "))
    });
    let status = balancer.status().unwrap();
    let address = backend(&status, "b1")["address"].as_str().unwrap().to_owned();
    fs::write(&ill, &address).unwrap();
    states(&balancer, &["up", "down"]);
    let words = format!("the script ended with 1: {address} is ill, says nobody");
    until(&balancer, "b1", "the reason", |check| check["last_error"] == words.as_str());
    fs::remove_file(&ill).unwrap();
    states(&balancer, &["up", "up"]);
    // A script that is not there says nothing of the backends.
    fs::remove_file(&script).unwrap();
    until(&balancer, "b0", "an unknown state", |check| check["unknown"] == true);
    let now = until(&balancer, "b1", "an unknown state", |check| check["unknown"] == true);
    assert_eq!(now["state"], "up", "{now}");
}

/// Three of four backends die together: their failures do not count, and without the setting they do.
#[test]
fn most_checks_that_fail_at_once_are_held() {
    let _alone = common::alone();
    let lab = common::lab(4);
    let balancer = common::start(&lab, "concury", 4);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let good = good.replacen("[balancer]\n", "[balancer]\nhold_checks_at = 60\n", 1);
    // Failures have the time to come together.
    let check = "interval = \"300ms\"\ntimeout = \"250ms\"\nrise = 2\nfall = 5";
    write(&balancer, &good, check, &[]);
    common::command(&balancer, "reload");
    states(&balancer, &["up"; 4]);
    let checked = || {
        let status = balancer.status().unwrap();
        (0..4).all(|n| backend(&status, &format!("b{n}"))["check"]["checks"].as_u64() > Some(2))
    };
    eventually("all are checked", checked);
    (0..3).for_each(|n| lab.backend(n).kill());
    let mut last = Value::Null;
    eventually("three of four are held", || {
        last = balancer.status().unwrap();
        (0..3).all(|n| {
            let check = &backend(&last, &format!("b{n}"))["check"];
            check["held"] == true && check["failed"].as_u64() > Some(8)
        })
    });
    states(&balancer, &["up"; 4]);
    let warnings = last["warnings"].to_string();
    assert!(warnings.contains("health checks fail at once"), "{warnings}");
    // Without the setting they go down.
    write(&balancer, &good.replace("hold_checks_at = 60\n", ""), check, &[]);
    common::command(&balancer, "reload");
    states(&balancer, &["down", "down", "down", "up"]);
}

fn effective(balancer: &Balancer, name: &str) -> f64 {
    backend(&balancer.status().unwrap(), name)["effective_weight"].as_f64().unwrap()
}

/// A backend says its weight; new connections follow, and those that are there stay.
#[test]
fn a_backend_says_its_weight() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let home = home(&lab);
    let page = home.join("www/weight");
    fs::write(&page, "weight= 10%\n").unwrap();
    let _server = nginx(lab.backend(0).netns(), &home);
    let own = "check = { type = \"http\", port = 8081, path = \"/weight\", weight_body = \"weight=\", \
               weight_step = 10, weight_every = \"1s\" }";
    write(&balancer, &good, OFTEN, &[("b0", own)]);
    common::command(&balancer, "reload");
    let mut held = common::hold(&lab, WEB4, 60);
    eventually("a tenth", || (effective(&balancer, "b0") - 0.1).abs() < 1e-6);
    until(&balancer, "b0", "what it says", |check| {
        check["last"].as_str().is_some_and(|last| last.starts_with("HTTP 200, weight 10%, in "))
    });
    let counts = common::shorts(&lab, WEB4, 1200, 1, 1);
    let share = counts.get("b0").copied().unwrap_or(0);
    assert!((20..260).contains(&share), "{counts:?}: not about a twelfth of 1200");
    common::assert_unbroken(&mut held, "with a tenth of the weight", &balancer);
    let shown = balancer.command(&["status"]).unwrap();
    assert!(shown.contains("1 (0.10)"), "{shown}");
    fs::write(&page, "weight= 0\n").unwrap();
    eventually("nothing", || effective(&balancer, "b0") == 0.0);
    // A port that was used a moment ago is known where it was: others.
    let mut part = 1;
    eventually("no new connection", || {
        part = part % 14 + 1;
        !common::shorts(&lab, WEB4, 100, part, 2).contains_key("b0")
    });
    common::assert_unbroken(&mut held, "with a weight of 0", &balancer);
    // What is none changes nothing.
    fs::write(&page, "weight= much\n").unwrap();
    until(&balancer, "b0", "no weight", |check| {
        let words = "HTTP 200, the weight in the body is \"much\", which is no weight";
        check["last"].as_str().is_some_and(|last| last.starts_with(words))
    });
    assert_eq!(effective(&balancer, "b0"), 0.0);
    fs::write(&page, "weight= 3\n").unwrap();
    eventually("three", || (effective(&balancer, "b0") - 3.0).abs() < 1e-6);
    // Not asked any more, it counts as the file has it.
    write(&balancer, &good, OFTEN, &[]);
    common::command(&balancer, "reload");
    eventually("one", || (effective(&balancer, "b0") - 1.0).abs() < 1e-6);
    common::assert_unbroken(&mut held, "at the end", &balancer);
}

/// What the checks have said is in the table that packets follow: a change of the pool is answered after that. Who
/// looks sees it before, and with nobody else up new connections still go to the dead until then.
fn published(balancer: &Balancer) {
    common::command(balancer, "backend add web4 nobody 10.77.2.99 --weight 0");
    common::command(balancer, "backend remove web4 nobody");
}

/// A backend that comes back grows to its weight; a backup serves while no other does.
#[test]
fn whoever_comes_up_starts_slowly_and_a_backup_waits() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "tracked", 3);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let check = format!("{OFTEN}\nslow_start = \"30s\"\nslow_start_curve = 2");
    write(&balancer, &good, &check, &[("b2", "backup = true")]);
    common::command(&balancer, "reload");
    states(&balancer, &["up", "up", "backup"]);
    assert!(!common::shorts(&lab, WEB4, 300, 1, 1).contains_key("b2"));
    lab.backend(1).kill();
    states(&balancer, &["up", "down", "backup"]);
    lab.backend(1).start().unwrap();
    states(&balancer, &["up", "up", "backup"]);
    let mut seen = Vec::new();
    eventually("all of its weight", || {
        seen.push(effective(&balancer, "b1"));
        seen.last() == Some(&1.0)
    });
    seen.dedup();
    assert!(seen.is_sorted() && seen.len() >= 3 && seen[0] < 0.5, "{seen:?}");
    lab.backend(0).kill();
    lab.backend(1).kill();
    states(&balancer, &["down", "down", "up"]);
    published(&balancer);
    let counts = common::shorts(&lab, WEB4, 100, 3, 3);
    assert_eq!(counts.keys().collect::<Vec<_>>(), ["b2"], "{counts:?}");
    let mut held = common::hold(&lab, WEB4, 20);
    assert!(held.iter().all(|one| one.backend == "b2"));
    lab.backend(0).start().unwrap();
    states(&balancer, &["up", "down", "backup"]);
    published(&balancer);
    let counts = common::shorts(&lab, WEB4, 100, 4, 4);
    assert_eq!(counts.keys().collect::<Vec<_>>(), ["b0"], "{counts:?}");
    common::assert_unbroken(&mut held, "on the backup, which waits again", &balancer);
}

/// Clients of a dead machine hang, or are told at once, as the service wants it.
fn dead_connections(method: &str) {
    let lab = common::lab(3);
    let balancer = common::start(&lab, method, 3);
    let good = fs::read_to_string(balancer.config()).unwrap();
    write(&balancer, &good, &format!("{OFTEN}\ndead_connections = \"move\""), &[]);
    common::command(&balancer, "reload");
    let held = common::hold(&lab, WEB4, 60);
    let (theirs, mut others): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|one| one.backend == "b1");
    assert!(!theirs.is_empty() && !others.is_empty());
    let link = weir_lab::topology::INTERFACE;
    common::sh(lab.backend(1).netns(), &format!("ip link set {link} down"));
    states(&balancer, &["up", "down", "up"]);
    for mut one in theirs {
        let error = one.ask().expect_err("its server is gone");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{method}: {one:?}: {error}");
    }
    common::assert_unbroken(&mut others, "beside a dead machine", &balancer);
    let counts = common::shorts(&lab, WEB4, 200, 5, 5);
    assert_eq!(counts.keys().collect::<Vec<_>>(), ["b0", "b2"], "{counts:?}");
}

/// The balancer itself resets what still comes for a dead machine; what has been silent meanwhile goes on when
/// the machine is back.
fn reset_connections(method: &str) {
    let lab = common::lab(3);
    let balancer = common::start(&lab, method, 3);
    let good = fs::read_to_string(balancer.config()).unwrap();
    write(&balancer, &good, &format!("{OFTEN}\ndead_connections = \"reset\""), &[]);
    common::command(&balancer, "reload");
    let held = common::hold(&lab, WEB4, 90);
    let (mut theirs, mut others): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|one| one.backend == "b1");
    assert!(theirs.len() > 3 && !others.is_empty());
    let mut silent = theirs.split_off(theirs.len() / 2);
    let link = weir_lab::topology::INTERFACE;
    common::sh(lab.backend(1).netns(), &format!("ip link set {link} down"));
    states(&balancer, &["up", "down", "up"]);
    for one in &mut theirs {
        let error = one.ask().expect_err("its server is gone");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{method}: {one:?}: {error}");
    }
    let status = balancer.status().unwrap();
    let outcomes = status["outcomes"].as_array().unwrap();
    let sent = outcomes.iter().find(|one| one["reason"] == "reset_sent");
    let sent = sent.and_then(|one| one["dropped"].as_u64()).unwrap_or(0);
    assert!(
        sent >= theirs.len() as u64,
        "{method}: {sent} resets for {}: {outcomes:?}",
        theirs.len()
    );
    common::assert_unbroken(&mut others, "beside a dead machine", &balancer);
    let counts = common::shorts(&lab, WEB4, 200, 6, 6);
    assert_eq!(counts.keys().collect::<Vec<_>>(), ["b0", "b2"], "{counts:?}");
    common::sh(lab.backend(1).netns(), &format!("ip link set {link} up"));
    states(&balancer, &["up", "up", "up"]);
    common::assert_unbroken(&mut silent, "silent while their machine was away", &balancer);
}

#[test]
fn connections_of_a_dead_machine_are_reset_by_the_balancer() {
    let _alone = common::alone();
    for method in ["concury", "tracked", "jet", "residue"] {
        reset_connections(method);
    }
}

/// What the balancer has reset takes none of its client's places, is shown for a minute and no longer, and a drain
/// does not wait for more.
#[test]
fn connections_that_were_reset_are_forgotten() {
    const MOST: usize = 6;
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let limited = good.replacen(
        "[service.check]\n",
        &format!(
            "[service.new_flows]\nsource_connections = {MOST}\nipv4_prefix = 24\n\n[service.check]\n"
        ),
        1,
    );
    let check = format!("{OFTEN}\ndead_connections = \"reset\"");
    write(&balancer, &limited, &check, &[("b0", "backup = true")]);
    common::command(&balancer, "reload");
    states(&balancer, &["backup", "up"]);
    published(&balancer);
    let client = &lab.clients()[0];
    let from = SocketAddr::from((client4(0, 0), 0));
    let open = || client.enter(|| Held::open(from, WEB4)).unwrap();
    let mut held: Vec<Held> = (0..MOST).map(|_| open().expect("a connection")).collect();
    assert!(held.iter().all(|one| one.backend == "b1"), "{held:?}");
    let full = format!("explain tcp {}:9 {WEB4}", from.ip());
    let is_full = || common::command(&balancer, &full).contains("source_connection_cap");
    eventually("it has as many as it may", is_full);
    let link = weir_lab::topology::INTERFACE;
    common::sh(lab.backend(1).netns(), &format!("ip link set {link} down"));
    states(&balancer, &["up", "down"]);
    for one in &mut held {
        let error = one.ask().expect_err("its server is gone");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{one:?}: {error}");
    }
    let known = || backend(&balancer.status().unwrap(), "b1")["states"].as_u64();
    // The laboratory has asked once before, whoever answered.
    let lingering = known();
    assert!([MOST, MOST + 1].map(|most| Some(most as u64)).contains(&lingering), "{lingering:?}");
    eventually("others may begin", || !is_full());
    assert_eq!(open().expect("in the place of one").backend, "b0");
    let drained = common::command(&balancer, "backend drain web4 b1 --wait --deadline 110s");
    assert!(drained.contains("has no connection left, after "), "{drained}");
    assert_eq!(known(), Some(0));
}

#[test]
fn connections_of_a_dead_machine_are_told_at_once() {
    let _alone = common::alone();
    dead_connections("concury");
    dead_connections("tracked");
}

/// A drain is waited for until its last connection has ended, or a time is over.
#[test]
fn a_drain_is_waited_for() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let mut held = common::hold(&lab, WEB4, 40);
    let socket = balancer.socket().display().to_string();
    let line = ["backend", "drain", "web4", "b1", "--wait", "--socket", &socket];
    eventually("the backend's connections are known", || {
        backend(&balancer.status().unwrap(), "b1")["states"].as_u64().is_some_and(|n| n > 0)
    });
    let theirs = held.iter().filter(|one| one.backend == "b1").count();
    let output = common::weir(&[&line[..], &["--deadline", "1s"]].concat());
    let said = common::stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("left after 1s"), "{theirs}: {said}");
    // A program reads what became of it, whatever that is.
    let json = |words: &[&str]| -> (Option<i32>, Value) {
        let more = ["--json", "--socket", &socket];
        let output = common::weir(&[words, &more[..]].concat());
        let said = common::stdout(&output);
        (output.status.code(), serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}")))
    };
    let drain = ["backend", "drain", "web4", "b1", "--wait", "--deadline", "1s"];
    let (status, said) = json(&drain);
    assert_eq!((status, &said["kind"]), (Some(1), &"failed".into()), "{said}");
    assert!(said["error"].as_str().unwrap().contains("left after 1s"), "{said}");
    let (status, said) = json(&["backend", "drain", "web4", "b7", "--wait"]);
    assert_eq!((status, &said["kind"]), (Some(3), &"not_found".into()), "{said}");
    common::assert_unbroken(&mut held, "while it drains", &balancer);
    // It returns when the last of them has ended, and not before.
    let mut waiting = std::process::Command::new(common::WEIR);
    let mut waiting = waiting.args(line).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(waiting.try_wait().unwrap().is_none(), "connections are open");
    // Whoever waits does not mind that the control plane is started again.
    balancer.kill();
    std::thread::sleep(std::time::Duration::from_secs(1));
    balancer.launch().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(waiting.try_wait().unwrap().is_none(), "connections are open");
    held.retain(|one| one.backend != "b1");
    let mut ended = None;
    eventually("the wait is over", || {
        ended = waiting.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success());
    let said = common::stdout(&waiting.wait_with_output().unwrap());
    assert!(said.contains("has no connection left, after "), "{said}");
    common::assert_unbroken(&mut held, "after the drain", &balancer);
    // Whoever lets it serve again ends the wait; so does whoever removes it.
    let (status, said) = json(&drain);
    assert_eq!(status, Some(0), "{said}");
    assert!(said["done"].as_str().unwrap().contains("has no connection left"), "{said}");
    let other = common::weir(&["backend", "drain", "web4", "b0", "--undo", "--wait"]);
    assert_eq!(other.status.code(), Some(2), "{}", common::stderr(&other));
    common::command(&balancer, "backend drain web4 b1 --undo");
}

/// A window that is open, a restart in the middle of it, and its end.
#[test]
fn maintenance_comes_and_goes_by_the_calendar() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "concury", 3);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let mut held = common::hold(&lab, WEB4, 60);
    let there = lab.backend(1).name();
    assert!(held.iter().any(|one| one.backend == there));
    let time = |from_now: i64| {
        let more = Duration::from_secs(from_now.unsigned_abs());
        let now = SystemTime::now();
        let time = if from_now < 0 { now - more } else { now + more };
        humantime::format_rfc3339_seconds(time).to_string()
    };
    let with = |windows: &str| {
        write(&balancer, &good, OFTEN, &[("b1", &format!("maintenance = [{windows}]"))]);
    };
    with("\"Sunday 03:00-05:00\"");
    let refused = common::try_command(&balancer, "reload").unwrap_err();
    let words = "service \"web4\": backend \"b1\": maintenance: \"Sunday 03:00-05:00\": \"Sunday\" is no day; use Mon";
    assert!(refused.contains(words), "{refused}");

    with(&format!("\"{}/{}\"", time(-3600), time(3600)));
    common::command(&balancer, "reload");
    let status = states(&balancer, &["up", "maintenance", "up"]);
    let told = &backend(&status, "b1")["maintenance"];
    assert!(told["until"].is_string() && told["next"].is_null(), "{told}");
    let text = balancer.command(&["status"]).unwrap();
    assert!(text.contains(" maintenance "), "{text}");
    let new = |held: &mut Vec<common::Held>| {
        let more = common::hold(&lab, WEB4, 40);
        let came = more.iter().any(|one| one.backend == there);
        held.extend(more);
        came
    };
    assert!(!new(&mut held), "it is in maintenance");
    let said = common::command(&balancer, "backend undrain web4 b1");
    assert!(said.contains("already; it is in maintenance until"), "{said}");
    assert!(said.contains("change `maintenance` of the backend in the file"), "{said}");
    balancer.kill();
    balancer.launch().unwrap();
    assert!(!new(&mut held), "it is in maintenance, whoever starts");
    common::assert_unbroken(&mut held, "in maintenance", &balancer);

    with(&format!("\"{}/{}\"", time(-3600), time(4)));
    common::command(&balancer, "reload");
    states(&balancer, &["up", "up", "up"]);
    eventually("it serves again", || new(&mut held));
    common::assert_unbroken(&mut held, "after maintenance", &balancer);
}
