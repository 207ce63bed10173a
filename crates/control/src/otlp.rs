//! Lines of the log, for a collector of OpenTelemetry: OTLP over HTTP, in JSON (docs/metrics.md).
//!
//! Whoever says something never waits: lines go into a bounded queue, and what finds no room there is counted. A
//! thread of its own sends them, and what is not taken again, for a minute.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, info, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// What names the collector, in the environment: an address for lines alone, as OpenTelemetry has it.
pub const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT";
/// Lines that may wait.
const QUEUE: usize = 4096;
/// Lines that are sent at once, and for how long they are gathered.
const BATCH: usize = 512;
const GATHERED: Duration = Duration::from_millis(500);
/// How often who waits for the last lines looks for room in the queue.
const ROOM: Duration = Duration::from_millis(5);
/// Longest exchange with a collector.
const PATIENCE: Duration = Duration::from_secs(10);
/// From one try to the next, at first and at last, and when it is given up.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_AT_LAST: Duration = Duration::from_secs(15);
const GIVEN_UP: Duration = Duration::from_secs(60);

thread_local! {
    /// Whether this thread sends lines: what is said meanwhile would be more to send.
    static SENDS: Cell<bool> = const { Cell::new(false) };
}

/// What became of lines in this process, if they go anywhere.
static TOLD: OnceLock<Arc<Counts>> = OnceLock::new();

/// What became of lines.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
    /// The collector does not answer, or says that it takes lines later.
    away: AtomicBool,
    /// The last lines were not taken, for whatever reason, which has been said.
    refused: AtomicBool,
}

impl Counts {
    /// Lines that the collector has taken.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Lines that found no room in the queue, or that no collector took in a minute.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

/// What became of this process' lines; none if they go nowhere.
pub fn counts() -> Option<&'static Counts> {
    TOLD.get().map(|counts| &**counts)
}

/// Why lines go nowhere.
#[derive(Debug, thiserror::Error)]
#[error(
    "{ENDPOINT}{0}: lines of the log go to no collector: give http://HOST:PORT/PATH, such as \
     http://127.0.0.1:4318/v1/logs (by TLS a collector on this host can send them on)"
)]
pub struct NoEndpoint(String);

enum Item {
    Line(Value),
    Flush(SyncSender<()>),
}

/// Takes lines for the collector.
#[derive(Debug)]
pub struct Lines {
    queue: SyncSender<Item>,
    counts: Arc<Counts>,
}

/// Who sends lines.
#[derive(Debug)]
pub struct Exporter {
    queue: SyncSender<Item>,
    counts: Arc<Counts>,
}

/// Begins to send lines to where the environment says; none if it says nothing.
///
/// # Errors
/// [`NoEndpoint`] where that is no address that they can be sent to.
pub fn from_environment() -> Result<Option<(Lines, Exporter)>, NoEndpoint> {
    let Some(endpoint) = std::env::var(ENDPOINT).ok().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let (lines, exporter) = start(&endpoint)?;
    let _ = TOLD.set(Arc::clone(&exporter.counts));
    Ok(Some((lines, exporter)))
}

/// Begins to send lines to a collector.
///
/// # Errors
/// [`NoEndpoint`].
pub fn start(endpoint: &str) -> Result<(Lines, Exporter), NoEndpoint> {
    // Before an @ is a name, and often a password. Whatever it is, it is not shown.
    if endpoint.contains('@') {
        return Err(NoEndpoint(
            " has an @, and who sends lines has no name or password".to_owned(),
        ));
    }
    let wrong = || NoEndpoint(format!("={endpoint}"));
    let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
    if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    let (queue, items) = sync_channel(QUEUE);
    let counts = Arc::new(Counts::default());
    let told = Arc::clone(&counts);
    let sender = thread::Builder::new().name("log".into());
    sender.spawn(move || send_all(&uri, &items, &told)).map_err(|_| wrong())?;
    let lines = Lines { queue: queue.clone(), counts: Arc::clone(&counts) };
    Ok((lines, Exporter { queue, counts }))
}

impl Exporter {
    /// Waits until what was said is sent, but not long, and not for a collector that is away.
    pub fn flush(&self, longest: Duration) {
        let (end, (done, sent)) = (Instant::now() + longest, sync_channel(1));
        let mut ask = Item::Flush(done);
        while !self.counts.away.load(Relaxed) {
            match self.queue.try_send(ask) {
                Ok(()) => {
                    let _ = sent.recv_timeout(end.saturating_duration_since(Instant::now()));
                    return;
                }
                // There is room as soon as the next lines are gathered.
                Err(TrySendError::Full(back)) if Instant::now() < end => ask = back,
                Err(_) => return,
            }
            thread::sleep(ROOM);
        }
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if SENDS.get() {
            return;
        }
        let line = Item::Line(line(event));
        if self.queue.try_send(line).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// A line as OTLP has it.
fn line(event: &Event<'_>) -> Value {
    let mut fields = Fields::default();
    event.record(&mut fields);
    fields.add("target", json!({ "stringValue": event.metadata().target() }));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let level = *event.metadata().level();
    let severity = match level {
        Level::TRACE => 1,
        Level::DEBUG => 5,
        Level::INFO => 9,
        Level::WARN => 13,
        Level::ERROR => 17,
    };
    // Numbers of 64 bits are texts in OTLP's JSON.
    let time = now.as_nanos().to_string();
    json!({
        "timeUnixNano": time,
        "observedTimeUnixNano": time,
        "severityNumber": severity,
        "severityText": level.as_str(),
        "body": { "stringValue": fields.words },
        "attributes": fields.others,
    })
}

#[derive(Default)]
struct Fields {
    words: String,
    others: Vec<Value>,
}

impl Fields {
    fn add(&mut self, name: &str, value: Value) {
        self.others.push(json!({ "key": name, "value": value }));
    }

    fn say(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.words = text,
            name => self.add(name, json!({ "stringValue": text })),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.say(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.say(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field.name(), json!({ "intValue": value.to_string() }));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.record_i64(field, value),
            Err(_) => self.say(field, value.to_string()),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field.name(), json!({ "doubleValue": value }));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field.name(), json!({ "boolValue": value }));
    }
}

/// Lines with whose they are.
fn document(lines: Vec<Value>) -> Value {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let about = [
        ("service.name", "weir".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("host.name", host.trim().to_owned()),
    ];
    let about = about.map(|(key, value)| json!({ "key": key, "value": { "stringValue": value } }));
    json!({
        "resourceLogs": [{
            "resource": { "attributes": about },
            "scopeLogs": [{ "scope": { "name": "weir" }, "logRecords": lines }],
        }]
    })
}

/// Sends what comes until nobody can say anything any more.
fn send_all(to: &Uri, items: &Receiver<Item>, counts: &Counts) {
    SENDS.set(true);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            warn!(%error, "lines of the log go to no collector");
            return;
        }
    };
    while let Ok(first) = items.recv() {
        let (lines, asked) = gather(first, items);
        let count = lines.len() as u64;
        if count > 0 {
            let taken = deliver(&runtime, to, &Bytes::from(document(lines).to_string()), counts);
            let counted = if taken { &counts.sent } else { &counts.dropped };
            counted.fetch_add(count, Relaxed);
        }
        if let Some(asked) = asked {
            let _ = asked.try_send(());
        }
    }
}

/// What comes within a moment, and who waits for it to be sent.
fn gather(first: Item, items: &Receiver<Item>) -> (Vec<Value>, Option<SyncSender<()>>) {
    let (mut lines, end) = (Vec::new(), Instant::now() + GATHERED);
    let mut item = first;
    loop {
        match item {
            Item::Flush(asked) => return (lines, Some(asked)),
            Item::Line(line) => lines.push(line),
        }
        let left = end.saturating_duration_since(Instant::now());
        item = match items.recv_timeout(left) {
            Ok(next) if lines.len() < BATCH => next,
            // One more is no harm, and cannot be put back.
            Ok(Item::Line(line)) => {
                lines.push(line);
                return (lines, None);
            }
            Ok(Item::Flush(asked)) => return (lines, Some(asked)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return (lines, None);
            }
        };
    }
}

/// Sends it until it is taken, refused for good, or a minute is over. Whether it was taken.
fn deliver(runtime: &tokio::runtime::Runtime, to: &Uri, body: &Bytes, counts: &Counts) -> bool {
    let (begun, mut pause) = (Instant::now(), AGAIN);
    loop {
        let said = runtime.block_on(async { timeout(PATIENCE, exchange(to, body)).await });
        let (why, again) = match said {
            Ok(Ok(status)) if status.is_success() => {
                counts.away.store(false, Relaxed);
                if counts.refused.swap(false, Relaxed) {
                    info!("the collector of the log takes lines again");
                }
                return true;
            }
            Ok(Ok(status)) => {
                let later = [429, 502, 503, 504].contains(&status.as_u16());
                (format!("HTTP status {status}"), later)
            }
            Ok(Err(why)) => (why, true),
            Err(_) => ("no answer".to_owned(), true),
        };
        // Who refuses some lines for good is there, and may take the next ones.
        counts.away.store(again, Relaxed);
        if !counts.refused.swap(true, Relaxed) {
            warn!("the collector of the log at {to} takes no lines: {why}");
        }
        if !again || begun.elapsed() + pause > GIVEN_UP {
            return false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(AGAIN_AT_LAST);
    }
}

/// One request.
async fn exchange(to: &Uri, body: &Bytes) -> Result<StatusCode, String> {
    let (host, port) = (to.host().unwrap_or_default(), to.port_u16().unwrap_or(80));
    let address = (host.trim_start_matches('[').trim_end_matches(']'), port);
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let request = Request::post(to.path_and_query().map_or("/", |path| path.as_str()))
        .header(header::HOST, format!("{host}:{port}"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Full::new(body.clone()))
        .map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(|error| error.to_string());
    connection.abort();
    Ok(answer?.status())
}

#[cfg(test)]
mod tests;
