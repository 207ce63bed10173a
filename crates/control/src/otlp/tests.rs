//! A collector that takes lines, one that takes them later, and one that never answers.

use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use tracing::{debug, error};
use tracing_subscriber::layer::SubscriberExt;

const LONG: Duration = Duration::from_secs(60);

/// A collector that gives these answers, one after the other, the last one for ever; what it has heard.
fn collector(answers: &'static [&'static str]) -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/logs", listener.local_addr().unwrap());
    let (tell, heard) = mpsc::channel();
    thread::spawn(move || {
        for number in 0.. {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let (mut length, mut line) = (0, String::new());
            stream.read_line(&mut line).unwrap();
            assert_eq!(line, "POST /v1/logs HTTP/1.1\r\n");
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).unwrap();
                let header = line.to_lowercase();
                if let Some(value) = header.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let answer = answers[number.min(answers.len() - 1)];
            write!(stream.get_mut(), "HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n").unwrap();
            if tell.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
        }
    });
    (endpoint, heard)
}

fn records(document: &Value) -> &Vec<Value> {
    document["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap()
}

fn attribute<'a>(of: &'a Value, name: &str) -> &'a Value {
    let all = of["attributes"].as_array().unwrap();
    &all.iter().find(|one| one["key"] == name).unwrap()["value"]
}

/// Waits until so many lines were sent, and so many dropped.
fn counts(of: &Exporter, sent: u64, dropped: u64) {
    let begun = Instant::now();
    while (of.counts.sent(), of.counts.dropped()) != (sent, dropped) {
        assert!(begun.elapsed() < LONG, "{:?}, not {sent} and {dropped}", of.counts);
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn lines_reach_a_collector_with_their_fields() {
    let (endpoint, heard) = collector(&["200 OK"]);
    let (lines, exporter) = start(&endpoint).unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
        warn!(backend = "b1", times = 3, share = 0.5, up = false, "backend is {}", "down");
        debug!(huge = u64::MAX);
    });
    exporter.flush(LONG);
    let document = heard.recv_timeout(LONG).unwrap();
    let resource = &document["resourceLogs"][0]["resource"];
    assert_eq!(attribute(resource, "service.name")["stringValue"], "weir");
    let [first, second] = &records(&document)[..] else { panic!("{document:#}") };
    assert_eq!(first["body"]["stringValue"], "backend is down");
    assert_eq!((&first["severityNumber"], &first["severityText"]), (&13.into(), &"WARN".into()));
    assert!(first["timeUnixNano"].as_str().unwrap().parse::<u64>().unwrap() > 1 << 60);
    assert_eq!(attribute(first, "backend")["stringValue"], "b1");
    assert_eq!(attribute(first, "times")["intValue"], "3");
    assert_eq!(attribute(first, "share")["doubleValue"], 0.5);
    assert_eq!(attribute(first, "up")["boolValue"], false);
    assert_eq!(attribute(first, "target")["stringValue"], module_path!());
    assert_eq!(attribute(second, "huge")["stringValue"], u64::MAX.to_string());
    counts(&exporter, 2, 0);
}

#[test]
fn what_is_not_taken_is_sent_again_and_what_is_refused_is_counted() {
    let (endpoint, heard) = collector(&["503 Not Now", "200 OK", "400 Never", "200 OK"]);
    let (lines, exporter) = start(&endpoint).unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
        error!("first");
        let (once, again) = (heard.recv_timeout(LONG).unwrap(), heard.recv_timeout(LONG).unwrap());
        assert_eq!(once, again);
        counts(&exporter, 1, 0);
        error!("second");
        counts(&exporter, 1, 1);
        error!("third");
        heard.recv_timeout(LONG).unwrap();
        let last = heard.recv_timeout(LONG).unwrap();
        assert_eq!(records(&last)[0]["body"]["stringValue"], "third");
    });
}

#[test]
fn nobody_waits_for_a_collector_that_says_nothing() {
    const BEYOND: usize = 1000;
    // Connections come about, and nobody takes them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/logs", listener.local_addr().unwrap());
    let (lines, exporter) = start(&endpoint).unwrap();
    let begun = Instant::now();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
        (0..QUEUE + BATCH + 1 + BEYOND).for_each(|number| error!(number, "a line"));
    });
    assert!(begun.elapsed() < LONG);
    assert!(exporter.counts.dropped() >= BEYOND as u64, "{:?}", exporter.counts);
    assert_eq!(exporter.counts.sent(), 0);
}

#[test]
fn an_endpoint_that_is_none_is_refused() {
    for wrong in ["", "collector", "https://127.0.0.1:4318/v1/logs", "http:///v1/logs", "/v1/logs"]
    {
        let said = start(wrong).unwrap_err().to_string();
        assert!(said.contains(ENDPOINT) && said.contains("http://127.0.0.1:4318"), "{said}");
    }
    assert!(start("http://[::1]:4318/v1/logs").is_ok());
}

#[test]
fn a_password_is_neither_taken_nor_shown() {
    for wrong in ["http://me:secret@127.0.0.1:4318/v1/logs", "https://secret@collector", "secret@"]
    {
        let said = start(wrong).unwrap_err().to_string();
        assert!(said.contains(ENDPOINT) && !said.contains("secret"), "{said}");
    }
}

/// One that refuses some lines for good is not away: the last ones wait for it, also behind a full queue.
#[test]
fn the_last_lines_wait_after_a_refusal_and_for_room() {
    let (endpoint, heard) = collector(&["400 Never", "200 OK"]);
    let (lines, exporter) = start(&endpoint).unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
        error!("first");
        counts(&exporter, 0, 1);
        (0..2 * QUEUE).for_each(|number| error!(number, "more than there is room for"));
        exporter.flush(LONG);
    });
    let dropped = exporter.counts.dropped();
    assert_eq!(exporter.counts.sent() + dropped, 1 + 2 * QUEUE as u64, "{:?}", exporter.counts);
    assert!(exporter.counts.sent() >= QUEUE as u64, "{:?}", exporter.counts);
    drop(heard);
}
