//! Metrics, as Prometheus reads them: by another implementation's strict parser of the format.

mod common;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{WEB4, WEIR};
use weir_lab::{Balancer, NetNs};

const AT: &str = "127.0.0.1:9469";
/// A machine that is busy with other things is slow.
const PATIENCE: Duration = Duration::from_secs(60);
/// Prints each sample as its name, its labels in their order, and its value.
const JUDGE: &str = r#"
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.documentation, family.name
    for s in family.samples:
        print(json.dumps([s.name, sorted(s.labels.items()), s.value]))
"#;

type Samples = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// The answer to a request in plain HTTP.
fn get(from: &NetNs, at: &str, path: &str) -> io::Result<String> {
    let at: SocketAddr = at.parse().unwrap();
    let asked = from.enter(|| {
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    asked.expect("the namespace is there")
}

fn judged(text: &str) -> Samples {
    let mut judge = Command::new("/usr/bin/python3")
        .args(["-c", JUDGE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Debian's Python, with python3-prometheus-client");
    judge.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = judge.wait_with_output().unwrap();
    assert!(output.status.success(), "not OpenMetrics:\n{text}");
    let sample = |line: &str| {
        let (name, labels, value): (String, Vec<(String, String)>, f64) =
            serde_json::from_str(line).unwrap();
        ((name, labels.into_iter().collect()), value)
    };
    common::stdout(&output).lines().map(sample).collect()
}

fn scrape(from: &NetNs, at: &str) -> Samples {
    let answer = get(from, at, "/metrics").expect("metrics are served");
    let (head, text) = answer.split_once("\r\n\r\n").expect("HTTP");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    judged(text)
}

fn value(of: &Samples, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    of.get(&(name.to_owned(), labels.collect())).copied()
}

fn with_metrics(balancer: &Balancer, line: &str) {
    let text = std::fs::read_to_string(balancer.config()).unwrap();
    let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("metrics")).collect();
    let text = kept.join("\n").replacen("[balancer]", &format!("[balancer]\n{line}"), 1);
    std::fs::write(balancer.config(), text).unwrap();
}

/// Waits until all that `weir status` counts for a service is in the metrics, too, and the same.
fn agrees(lab: &NetNs, balancer: &Balancer, at: &str) -> Samples {
    let mut last = Samples::new();
    common::eventually("metrics and status agree", || {
        let status = balancer.status().unwrap();
        last = scrape(lab, at);
        let services = status["services"].as_array().unwrap();
        !services.is_empty()
            && services.iter().all(|service| {
                let name = service["name"].as_str().unwrap();
                let same = |metric: &str, field: &str| {
                    value(&last, metric, &[("service", name)]) == service[field].as_f64()
                };
                same("weir_service_tables_total", "generation")
                    && same("weir_service_states", "states")
                    && same("weir_service_untold_total", "untold")
                    && service["backends"].as_array().unwrap().iter().all(|backend| {
                        let own = backend["name"].as_str().unwrap();
                        let labels = [("service", name), ("backend", own)];
                        let up = f64::from(u8::from(backend["state"] == "up"));
                        ["packets", "bytes", "flows"].iter().all(|field| {
                            let metric = format!("weir_backend_{field}_total");
                            value(&last, &metric, &labels) == backend[*field].as_f64()
                        }) && value(&last, "weir_backend_up", &labels) == Some(up)
                    })
            })
    });
    last
}

/// What is served is what the page describes, and rules ask for nothing else.
fn documented(samples: &Samples) {
    let page = include_str!("../../docs/metrics.md");
    let known: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `weir_")?.split('`').next()).collect();
    for (name, _) in samples.keys() {
        assert!(known.iter().any(|known| format!("weir_{known}") == *name), "{name}");
    }
    let rules = include_str!("../../examples/prometheus/alerts.yml");
    let expressions = rules.lines().filter(|line| line.trim().starts_with("expr:"));
    for word in expressions.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
    {
        if let Some(name) = word.strip_prefix("weir_") {
            assert!(known.contains(&name), "a rule asks for weir_{name}");
        }
    }
    dashboard(&known);
}

/// What the panels and notes of the dashboard ask Prometheus for; every panel asks for something.
fn queries_of(board: &serde_json::Value) -> Vec<&str> {
    let mut queries: Vec<&str> = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{}", panel["title"]);
        queries.extend(targets.iter().map(|target| target["expr"].as_str().unwrap()));
    }
    let notes = board["annotations"]["list"].as_array().unwrap();
    queries.extend(notes.iter().filter_map(|one| one["expr"].as_str()));
    assert!(queries.len() > 20, "{queries:?}");
    queries
}

/// Each rule has a case in which it fires, and is named in it.
fn every_alert_is_tried() {
    let rules = include_str!("../../examples/prometheus/alerts.yml");
    let tests = include_str!("../../examples/prometheus/alerts_test.yml");
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: Vec<&str> = alerts.collect();
    assert!(alerts.len() > 12, "{alerts:?}");
    for alert in alerts {
        let fires = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels:");
        assert!(tests.contains(&fires), "{alert} fires in no case of alerts_test.yml");
    }
}

/// What is wrong with a dashboard, by what Grafana requires of one.
const IS_DASHBOARD: &str = r#"
import json, sys
from jsonschema import Draft202012Validator
schema, board = json.load(open(sys.argv[1])), json.load(sys.stdin)
Draft202012Validator.check_schema(schema)
for error in Draft202012Validator(schema).iter_errors(board):
    print("/".join(map(str, error.absolute_path)) + ": " + error.message[:200])
"#;

fn wrong_with(board: &serde_json::Value) -> String {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard.schema.json");
    let mut judge = Command::new("/usr/bin/python3")
        .args(["-c", IS_DASHBOARD, schema])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Debian's Python, with python3-jsonschema");
    judge.stdin.take().unwrap().write_all(board.to_string().as_bytes()).unwrap();
    let output = judge.wait_with_output().unwrap();
    assert!(output.status.success(), "the schema cannot be used");
    common::stdout(&output)
}

#[test]
fn the_dashboard_is_one_as_grafana_has_them() {
    let text = include_str!("../../packaging/grafana-dashboard.json");
    let board: serde_json::Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(wrong_with(&board), "");
    // Numbers of panels are theirs alone, and no panel lies over another.
    let panels = board["panels"].as_array().unwrap();
    let ids: std::collections::BTreeSet<u64> =
        panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let place = |panel: &serde_json::Value| {
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        (at("x"), at("y"), at("x") + at("w"), at("y") + at("h"))
    };
    for (number, one) in panels.iter().enumerate() {
        let (left, top, right, bottom) = place(one);
        assert!(right <= 24, "{}", one["title"]);
        for other in &panels[..number] {
            let (x, y, to_x, to_y) = place(other);
            let apart = right <= x || to_x <= left || bottom <= y || to_y <= top;
            assert!(apart, "{} lies over {}", one["title"], other["title"]);
        }
    }
    // What Grafana would not show is found.
    type Spoil = fn(&mut serde_json::Value);
    let spoilt: [(Spoil, &str); 5] = [
        (|board| drop(board["panels"][0].as_object_mut().unwrap().remove("type")), "'type'"),
        (|board| board["panels"][1]["gridPos"]["w"] = 25.into(), "25"),
        (|board| board["panels"][2]["targets"][0]["expr"] = "".into(), "targets"),
        (|board| board["templating"]["list"][1]["query"] = "label_values(a, b)".into(), "query"),
        (|board| drop(board.as_object_mut().unwrap().remove("schemaVersion")), "schemaVersion"),
    ];
    for (spoil, words) in spoilt {
        let mut board = board.clone();
        spoil(&mut board);
        let said = wrong_with(&board);
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// Every query of the dashboard is about metrics that there are, and every panel has one.
fn dashboard(known: &[&str]) {
    let text = include_str!("../../packaging/grafana-dashboard.json");
    let board: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let mut queries = queries_of(&board);
    let variables = board["templating"]["list"].as_array().unwrap();
    queries.extend(variables.iter().filter_map(|one| one["query"]["query"].as_str()));
    for query in queries {
        let words = query.split(|c: char| !c.is_alphanumeric() && c != '_');
        let names: Vec<&str> = words.filter_map(|word| word.strip_prefix("weir_")).collect();
        assert!(!names.is_empty(), "{query}");
        for name in names {
            assert!(known.contains(&name), "the dashboard asks for weir_{name}");
        }
    }
}

#[test]
fn metrics_say_what_status_says_through_reloads_and_kills() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "concury", 3);
    let here = lab.balancer();
    get(here, AT, "/metrics").expect_err("nobody asked for metrics");
    with_metrics(&balancer, &format!("metrics = \"{AT}\""));
    common::command(&balancer, "reload");
    common::eventually("metrics are served", || get(here, AT, "/metrics").is_ok());
    common::shorts(&lab, WEB4, 200, 0, 1);
    let before = agrees(here, &balancer, AT);
    documented(&before);
    let sum = |samples: &Samples, name: &str| {
        samples.iter().filter(|((own, _), _)| own == name).map(|(_, value)| value).sum::<f64>()
    };
    assert!(sum(&before, "weir_backend_flows_total") >= 200.0, "{before:?}");
    let status = balancer.status().unwrap();
    let service = &status["services"][0];
    let (name, member) =
        (service["name"].as_str().unwrap(), service["backends"][0]["name"].as_str().unwrap());
    let labels = [("service", name), ("backend", member)];
    common::command(&balancer, &format!("backend drain {name} {member}"));
    let drained = agrees(here, &balancer, AT);
    assert_eq!(value(&drained, "weir_backend_draining", &labels), Some(1.0));
    assert_eq!(value(&drained, "weir_backend_up", &labels), Some(0.0));
    // What the data plane counts goes on through a death of the control plane.
    balancer.kill();
    balancer.launch().unwrap();
    common::eventually("metrics are served again", || get(here, AT, "/metrics").is_ok());
    let resumed = agrees(here, &balancer, AT);
    for name in ["weir_backend_flows_total", "weir_backend_packets_total"] {
        assert!(sum(&resumed, name) >= sum(&drained, name), "{name}");
    }
    // Another address, and none.
    let other = "[::1]:9470";
    with_metrics(&balancer, &format!("metrics = \"{other}\""));
    common::command(&balancer, "reload");
    common::eventually("they move", || get(here, other, "/metrics").is_ok());
    get(here, AT, "/metrics").expect_err("nothing is left at the old address");
    with_metrics(&balancer, "");
    common::command(&balancer, "reload");
    common::eventually("they end", || get(here, other, "/metrics").is_err());
}

#[test]
fn no_reader_keeps_others_from_their_metrics() {
    let _alone = common::alone();
    let lab = common::lab(1);
    let balancer = common::start(&lab, "concury", 1);
    let here = lab.balancer();
    // Somebody else has the address: weir goes on, and takes it when it is free.
    let occupied = here.enter(|| std::net::TcpListener::bind(AT)).unwrap().unwrap();
    with_metrics(&balancer, &format!("metrics = \"{AT}\""));
    common::command(&balancer, "reload");
    common::eventually("it says why", || common::log(&balancer).contains("cannot listen there"));
    drop(occupied);
    common::eventually("metrics are served", || get(here, AT, "/metrics").is_ok());
    // Readers that say nothing, half a request, or nonsense.
    let at: SocketAddr = AT.parse().unwrap();
    let mut idle: Vec<TcpStream> = here
        .enter(|| (0..200).map(|_| TcpStream::connect_timeout(&at, PATIENCE).unwrap()).collect())
        .unwrap();
    for (number, stream) in idle.iter_mut().enumerate() {
        let words: &[u8] =
            [b"".as_slice(), b"GET /metr", b"\x16\x03\x01 nonsense\r\n\r\n"][number % 3];
        let _ = stream.write_all(words);
    }
    assert!(balancer.status().is_ok(), "the API answers meanwhile");
    assert!(!scrape(here, AT).is_empty());
    drop(idle);
    let answer = get(here, AT, "/v1/status").unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "the API itself is not served there: {answer}");
}

#[test]
fn an_address_without_a_port_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.toml");
    for wrong in ["9469", "127.0.0.1", "localhost:9469", "127.0.0.1:0"] {
        let text = format!("[balancer]\ninterfaces = [\"lo\"]\nmetrics = \"{wrong}\"\n");
        std::fs::write(&file, text).unwrap();
        let output = common::weir(&["check", "--config", file.to_str().unwrap()]);
        let words = common::stderr(&output) + &common::stdout(&output);
        assert!(!output.status.success());
        assert!(words.contains("weir.toml:3") && words.contains("127.0.0.1:9469"), "{words}");
    }
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let pages = tempfile::tempdir().unwrap();
    let folder = pages.path().join("man/man1");
    let output = common::weir(&["man", folder.to_str().unwrap()]);
    assert!(output.status.success(), "{}", common::stderr(&output));
    let help = common::stdout(&common::weir(&["--help"]));
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<&str> = commands
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| *word != "help")
        .collect();
    assert!(commands.contains(&"status"), "{help}");
    for shell in ["bash", "zsh", "fish"] {
        let text = common::stdout(&common::weir(&["completions", shell]));
        for command in &commands {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
    for command in commands {
        let page = folder.join(format!("weir-{command}.1"));
        let text = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{page:?}: {e}"));
        assert!(text.contains(".SH SYNOPSIS"), "{page:?}");
    }
    // Bash itself completes by them.
    let line = format!(
        "source <({WEIR} completions bash); COMP_WORDS=(weir stat); COMP_CWORD=1; _weir weir stat weir; \
         echo \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash").args(["-c", &line]).output().unwrap();
    assert_eq!(common::stdout(&output).trim(), "status", "{}", common::stderr(&output));
    // A folder that cannot be made.
    let output = common::weir(&["man", "/dev/null/man"]);
    assert!(!output.status.success() && common::stderr(&output).contains("/dev/null/man"));
}

/// A balancer whose end a test waits for.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers whoever sends lines of a log, and keeps what was sent.
fn collect(listener: &TcpListener, heard: &Mutex<String>) -> io::Result<()> {
    let mut stream = BufReader::new(listener.accept()?.0);
    let (mut length, mut line) = (0, String::new());
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line)?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
    *heard.lock().unwrap() += std::str::from_utf8(&body).expect("JSON");
    Ok(())
}

/// A collector of OpenTelemetry has the lines of the log, the last one, too, and they are counted.
#[test]
fn a_collector_has_the_lines_of_the_log() {
    let _alone = common::alone();
    let lab = common::lab(2);
    // An instance with its file, whose process is then another one.
    let balancer = common::start(&lab, "concury", 2);
    balancer.kill();
    with_metrics(&balancer, &format!("metrics = \"{AT}\""));
    let here = lab.balancer();
    let listener = here.enter(|| TcpListener::bind("127.0.0.1:4318").unwrap()).unwrap();
    let heard = Arc::new(Mutex::new(String::new()));
    let hears = Arc::clone(&heard);
    // Ends with the tests of this file.
    thread::spawn(move || {
        loop {
            let _ = collect(&listener, &hears);
        }
    });
    let said = |words: &str| heard.lock().unwrap().contains(words);
    let mut command = lab.balancer_command(WEIR).unwrap();
    command.args(["run", "--config"]).arg(balancer.config());
    command.env("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://127.0.0.1:4318/v1/logs");
    let log = std::fs::File::create(lab.directory().join("collected.log")).unwrap();
    let mut running = Running(command.stdin(Stdio::null()).stderr(log).spawn().unwrap());
    common::eventually("the collector hears that it is ready", || {
        said(r#"{"stringValue":"ready"}"#) && said(r#""severityText":"INFO""#)
    });
    common::eventually("lines are counted", || {
        let Ok(answer) = get(here, AT, "/metrics") else { return false };
        let samples = judged(answer.split_once("\r\n\r\n").expect("HTTP").1);
        documented(&samples);
        let lines = |fate| value(&samples, "weir_log_lines_total", &[("fate", fate)]);
        lines("sent").is_some_and(|sent| sent > 0.0) && lines("dropped") == Some(0.0)
    });
    let pid = nix::unistd::Pid::from_raw(i32::try_from(running.0.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(running.0.wait().unwrap().success());
    common::eventually("the last lines are there", || said("stopping; the data plane goes on"));
    // They are where they always are, too.
    let log = std::fs::read_to_string(lab.directory().join("collected.log")).unwrap();
    assert!(log.contains("stopping; the data plane goes on"), "{log}");
}

/// Prometheus itself: it takes the rules and what they say they do, and every query of the dashboard has an answer.
#[test]
fn a_real_prometheus_takes_rules_and_queries() {
    let _alone = common::alone();
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/prometheus");
    for words in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]] {
        let output = Command::new("promtool").args(words).current_dir(rules).output().unwrap();
        assert!(output.status.success(), "{}{}", common::stdout(&output), common::stderr(&output));
    }
    every_alert_is_tried();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let here = lab.balancer();
    with_metrics(&balancer, &format!("metrics = \"{AT}\""));
    common::command(&balancer, "reload");
    let config = lab.directory().join("prometheus.yml");
    let text = format!(
        "rule_files: [\"{rules}/alerts.yml\"]\n\
         scrape_configs:\n- job_name: weir\n  scrape_interval: 250ms\n  scrape_timeout: 250ms\n  \
         static_configs: [{{ targets: [\"{AT}\"] }}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let log = std::fs::File::create(lab.directory().join("prometheus.log")).unwrap();
    let mut prometheus = here.command("prometheus").unwrap();
    prometheus.arg(format!("--config.file={}", config.display()));
    prometheus.arg(format!("--storage.tsdb.path={}", lab.directory().join("tsdb").display()));
    prometheus.args(["--web.listen-address=127.0.0.1:9090", "--log.level=warn"]);
    prometheus.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut prometheus = prometheus.spawn().expect("Debian's prometheus");
    let coded =
        |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02x}")).collect() };
    // What it says to a request for data.
    let asked = |path: &str| -> io::Result<serde_json::Value> {
        let answer = get(here, "127.0.0.1:9090", path)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let json = body.find('{').zip(body.rfind('}')).map_or("", |(from, to)| &body[from..=to]);
        serde_json::from_str(json).map_err(|_| io::Error::other(answer.clone()))
    };
    // The answer to a query: how many series it has, or what is wrong with it.
    let query = |text: &str| -> io::Result<Result<usize, String>> {
        let said = asked(&format!("/api/v1/query?query={}", coded(text)))?;
        Ok(match said["status"].as_str() {
            Some("success") => Ok(said["data"]["result"].as_array().map_or(0, Vec::len)),
            _ => Err(said["error"].to_string()),
        })
    };
    // Rates need two looks.
    common::eventually("Prometheus has looked at weir twice", || {
        query("count_over_time(up{job=\"weir\"}[1m]) >= 2 and up == 1")
            .is_ok_and(|found| found == Ok(1))
    });
    let text = include_str!("../../packaging/grafana-dashboard.json");
    let board: serde_json::Value = serde_json::from_str(text).unwrap();
    let queries = queries_of(&board);
    let mut answered = 0;
    for text in &queries {
        let mut filled = (*text).to_owned();
        for (name, value) in
            [("instance", ".*"), ("service", ".*"), ("__rate_interval", "1m"), ("__range", "1h")]
        {
            filled = filled.replace(&format!("${name}"), value);
        }
        let found = query(&filled).unwrap();
        answered += usize::from(found.clone().unwrap_or_else(|why| panic!("{text}: {why}")) > 0);
    }
    // What Grafana fills its variables with: label_values(SELECTOR, LABEL) are the values of that label.
    let variables = board["templating"]["list"].as_array().unwrap();
    let mut found = BTreeMap::new();
    for variable in variables.iter().filter(|one| one["type"] == "query") {
        let text = variable["query"]["query"].as_str().unwrap();
        let inside = text.strip_prefix("label_values(").and_then(|text| text.strip_suffix(')'));
        let (selector, label) = inside.and_then(|text| text.rsplit_once(", ")).expect(text);
        let selector = selector.replace("$instance", ".*").replace("$service", ".*");
        let path = format!("/api/v1/label/{label}/values?match%5B%5D={}", coded(&selector));
        let said = asked(&path).unwrap();
        assert_eq!(said["status"], "success", "{text}: {said}");
        let values: Vec<String> = serde_json::from_value(said["data"].clone()).expect(text);
        found.insert(variable["name"].as_str().unwrap(), values);
    }
    assert_eq!(found["instance"], [AT], "{found:?}");
    assert_eq!(found["service"], ["echo4", "web4", "web6"], "{found:?}");
    // Of what has happened to nobody yet there is nothing.
    assert!(answered * 2 > queries.len(), "{answered} of {} have an answer", queries.len());
    let _ = prometheus.kill();
    let _ = prometheus.wait();
}

/// What is wrong with the API itself is counted among the warnings, and shown wherever these are.
#[test]
fn a_page_that_cannot_be_served_is_a_warning() {
    let _alone = common::alone();
    let lab = common::lab(1);
    let balancer = common::start(&lab, "concury", 1);
    let here = lab.balancer();
    const PAGE: &str = "127.0.0.1:8080";
    let occupied = here.enter(|| std::net::TcpListener::bind(PAGE)).unwrap().unwrap();
    with_metrics(&balancer, &format!("metrics = \"{AT}\"\nweb = \"{PAGE}\""));
    common::command(&balancer, "reload");
    let warned = || {
        let status = balancer.status().unwrap();
        let warnings = status["warnings"].as_array().unwrap().clone();
        let told =
            |one: &serde_json::Value| one.as_str().unwrap().starts_with("no page: cannot listen");
        (warnings.iter().any(told), warnings.len() as f64)
    };
    let counted = || get(here, AT, "/metrics").ok().map(|_| scrape(here, AT));
    common::eventually("the page is missed", || warned().0);
    common::eventually("metrics count it", || {
        let (_, warnings) = warned();
        counted().is_some_and(|samples| value(&samples, "weir_warnings", &[]) == Some(warnings))
    });
    drop(occupied);
    common::eventually("the page is served", || get(here, PAGE, "/").is_ok() && !warned().0);
}

/// Nor does only the log say that there are no metrics.
#[test]
fn metrics_that_cannot_be_served_are_a_warning() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let here = lab.balancer();
    const OTHER: &str = "127.0.0.1:9470";
    let occupied = here.enter(|| TcpListener::bind(AT)).unwrap().unwrap();
    let balancer = common::start_with(&lab, &format!("metrics = \"{AT}\"\n"));
    let warned = |at: &str| {
        let words = format!("no metrics: cannot listen at {at}: ");
        balancer.status().unwrap()["warnings"].to_string().contains(&words)
    };
    common::eventually("it is said at a start", || warned(AT));
    drop(occupied);
    let served = || get(here, AT, "/metrics").is_ok();
    common::eventually("metrics are served", || served() && !warned(AT));
    let _occupied = here.enter(|| TcpListener::bind(OTHER)).unwrap().unwrap();
    with_metrics(&balancer, &format!("metrics = \"{OTHER}\""));
    common::command(&balancer, "reload");
    common::eventually("it is said after a reload", || warned(OTHER));
    with_metrics(&balancer, "");
    common::command(&balancer, "reload");
    common::eventually("none are wanted", || !warned(OTHER));
}
