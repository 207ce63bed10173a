//! What the application says of itself: a number, from a file or by HTTP, and whether it is well, by HTTP or by a
//! command. All of it is bounded, in time and in bytes; what is old or cannot be read is not known.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Bytes of a file that are read, and of what a command prints.
const MOST_OF_A_FILE: u64 = 256;
/// Bytes of an answer that are read.
const MOST_OF_AN_ANSWER: u64 = 1 << 16;
/// A number is looked for so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For an answer or a command.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of words why the application is not well.
const MOST_OF_WORDS: usize = 128;

/// An address of HTTP on this host, or another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    host: String,
    port: u16,
    path: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "is not http://HOST[:PORT][/PATH]".to_owned();
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let (place, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        // An address of IPv6 stands in brackets.
        let inside = place.rfind(']').unwrap_or(0);
        let (host, port) = match place[inside..].rfind(':').map(|at| place.split_at(inside + at)) {
            None => (place, 80),
            Some((host, port)) => (host, port[1..].parse().map_err(|_| wrong())?),
        };
        let good = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || port == 0 || host.contains('@') || !good(rest) {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port, path })
    }
}

/// Where a number is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// At the beginning of a file that was written not longer ago than that.
    File(PathBuf, Duration),
    /// In an answer by HTTP: in a header of this name, or at the beginning of the body.
    Url(Url, Option<String>),
}

/// Whom the agent asks whether the application is well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asks {
    /// An answer by HTTP with a status of 200 to 299 is good.
    Url(Url),
    /// A command without a shell is good that ends with 0.
    Command(Vec<String>),
}

/// How it is found out whether the application is well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Health {
    /// Whom it asks.
    pub asks: Asks,
    /// How often.
    pub every: Duration,
    /// The header of an answer that says a weight.
    pub weight_header: Option<String>,
}

/// Whether the application is well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Word {
    pub good: bool,
    pub why: String,
    /// What it says as its weight.
    pub weight: Option<String>,
}

/// An answer by HTTP.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(one, _)| one.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim())
    }
}

async fn get(url: &Url) -> Result<Answer, String> {
    let Url { host, port, path } = url;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let asked = async {
        let mut stream = TcpStream::connect((bare, *port)).await?;
        // By 1.0 the body ends with the connection.
        let request =
            format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: weir-agent\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MOST_OF_AN_ANSWER).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let late = |_| format!("no answer within {} s", PATIENCE.as_secs());
    let answer =
        timeout(PATIENCE, asked).await.map_err(late)?.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("it is no answer by HTTP")?;
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let status = words.next().and_then(|status| status.parse().ok()).filter(|_| http);
    let status = status.ok_or("it is no answer by HTTP")?;
    Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

/// A number of 0 or more at the beginning of a text.
fn number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_ascii_digit() || ".eE+-".contains(c)));
    let number = text[..end.unwrap_or(text.len())].parse::<f64>().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

impl Source {
    /// The number, as the application says it now; else in words, why it is not known.
    async fn read(&self) -> Result<f64, String> {
        match self {
            Self::File(path, fresh) => {
                let (path, fresh) = (path.clone(), *fresh);
                let read = tokio::task::spawn_blocking(move || of_file(&path, fresh)).await;
                read.unwrap_or_else(|_| Err("the reader has panicked".into()))
            }
            Self::Url(url, header) => {
                let answer = get(url).await?;
                if !(200..300).contains(&answer.status) {
                    return Err(format!("HTTP status {}", answer.status));
                }
                let text = match header {
                    Some(name) => {
                        answer.header(name).ok_or_else(|| format!("it has no header {name}"))?
                    }
                    None => &answer.body,
                };
                number(text).ok_or_else(|| "it says no number of 0 or more".into())
            }
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::File(path, _) => path.display().to_string(),
            Self::Url(url, _) => format!("http://{}:{}{}", url.host, url.port, url.path),
        }
    }
}

fn of_file(path: &Path, fresh: Duration) -> Result<f64, String> {
    let words = |error: std::io::Error| error.to_string();
    // A pipe that nobody writes to would hold the reader for ever.
    let about = std::fs::metadata(path).map_err(words)?;
    if !about.is_file() {
        return Err("it is no file".into());
    }
    let written = about.modified().map_err(words)?;
    let age = SystemTime::now().duration_since(written).unwrap_or_default();
    if age > fresh {
        return Err(format!("it was written {} s ago", age.as_secs()));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(words)?;
    file.take(MOST_OF_A_FILE).read_to_string(&mut text).map_err(words)?;
    number(&text).ok_or_else(|| "it has no number of 0 or more".into())
}

/// Looks for the number again and again, and says so when it is not known any more.
pub(super) async fn follow_load(
    source: Source,
    found: watch::Sender<Option<f64>>,
    say: super::Say,
) {
    let mut every = interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut trouble = String::new();
    loop {
        every.tick().await;
        let now = source.read().await;
        // The age goes on, and is the same trouble.
        let why = now.as_ref().err().map(|why| why.split(" s ago").next().unwrap_or(why));
        let kind: String =
            why.unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).collect();
        if kind != trouble && !kind.is_empty() {
            let (shown, why) = (source.shown(), now.as_ref().err().map_or("", String::as_str));
            say(format_args!("the load is not known: {shown}: {why}"));
        }
        trouble = kind;
        found.send_replace(now.ok());
    }
}

/// Asks again and again whether the application is well.
pub(super) async fn follow_health(health: Health, found: watch::Sender<Option<Arc<Word>>>) {
    let mut every = interval(health.every);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let word = match &health.asks {
            Asks::Url(url) => by_url(url, health.weight_header.as_deref()).await,
            Asks::Command(words) => by_command(words).await,
        };
        found.send_replace(Some(Arc::new(word)));
    }
}

fn word(good: bool, why: &str) -> Word {
    let mut why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = (0..=MOST_OF_WORDS.min(why.len())).rev().find(|at| why.is_char_boundary(*at));
    why.truncate(end.unwrap_or(0));
    Word { good, why, weight: None }
}

async fn by_url(url: &Url, header: Option<&str>) -> Word {
    match get(url).await {
        Ok(answer) => {
            let said =
                word((200..300).contains(&answer.status), &format!("HTTP {}", answer.status));
            let weight = header.and_then(|name| answer.header(name));
            let short = weight.filter(|text| text.len() <= 16);
            Word { weight: short.map(str::to_owned), ..said }
        }
        Err(why) => word(false, &why),
    }
}

/// A process group, killed when this goes: what a command leaves behind goes with it.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

async fn by_command(words: &[String]) -> Word {
    let Some((program, arguments)) = words.split_first() else { return word(false, "no command") };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.process_group(0).kill_on_drop(true);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return word(false, &format!("{program}: {error}")),
    };
    let number = child.id().and_then(|id| i32::try_from(id).ok());
    let _group = number.map(|id| Group(Pid::from_raw(id)));
    let output = child.stdout.take();
    let run = async {
        let mut said = Vec::new();
        if let Some(output) = output {
            let mut output = output;
            let _ = (&mut output).take(MOST_OF_A_FILE).read_to_end(&mut said).await;
            // What it prints beyond that goes nowhere, and does not hold it up.
            let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
        }
        (child.wait().await, said)
    };
    match timeout(PATIENCE, run).await {
        Err(_) => word(false, &format!("{program}: not ended within {} s", PATIENCE.as_secs())),
        Ok((Err(error), _)) => word(false, &format!("{program}: {error}")),
        Ok((Ok(status), said)) => {
            let said = String::from_utf8_lossy(&said);
            let line = said.lines().map(str::trim).find(|line| !line.is_empty());
            match (status.success(), line) {
                (true, line) => word(true, line.unwrap_or("the command succeeded")),
                (false, None) => word(false, &format!("{program}: {status}")),
                (false, Some(line)) => word(false, &format!("{program}: {status}: {line}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Instant;
    use tokio::net::TcpListener;

    #[test]
    fn numbers_and_places_are_read_as_they_are_written() {
        for (text, wanted) in
            [(" 1.5\n", Some(1.5)), ("0", Some(0.0)), ("7;x", Some(7.0)), ("2e3 per s", Some(2e3))]
        {
            assert_eq!(number(text), wanted, "{text}");
        }
        for text in ["", "-1", "x", "NaN", "inf", "1e999", "1.2.3"] {
            assert_eq!(number(text), None, "{text}");
        }
        let url = |host: &str, port, path: &str| Url { host: host.into(), port, path: path.into() };
        for (text, wanted) in [
            ("http://127.0.0.1", url("127.0.0.1", 80, "/")),
            ("http://a.example:8080/load?x=1", url("a.example", 8080, "/load?x=1")),
            ("http://[::1]:9/", url("[::1]", 9, "/")),
            ("http://[::1]/x", url("[::1]", 80, "/x")),
        ] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
        for text in
            ["https://a", "http://", "http://a:0", "http://a:x", "http://u@a", "http://a b/"]
        {
            assert!(text.parse::<Url>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_file_that_is_old_or_says_nothing_is_not_known() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("load");
        let source = Source::File(path.clone(), Duration::from_secs(60));
        assert!(source.read().await.is_err());
        std::fs::write(&path, "17.5\n").expect("written");
        assert_eq!(source.read().await, Ok(17.5));
        let file = File::options().write(true).open(&path).expect("there");
        file.set_modified(SystemTime::now() - Duration::from_secs(120)).expect("set");
        assert!(source.read().await.expect_err("it is old").contains("s ago"));
        for text in ["", "many", "-3"] {
            std::fs::write(&path, text).expect("written");
            assert!(source.read().await.expect_err(text).contains("no number"), "{text}");
        }
        let pipe = Source::File("/dev/zero".into(), Duration::MAX);
        assert_eq!(pipe.read().await, Err("it is no file".into()));
    }

    /// A server that answers every connection alike.
    async fn canned(answer: &'static [u8], again: bool) -> Url {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 1024]).await;
                    if answer.is_empty() {
                        std::future::pending::<()>().await;
                    }
                    while stream.write_all(answer).await.is_ok() && again {}
                });
            }
        });
        format!("http://127.0.0.1:{port}/x").parse().expect("a place")
    }

    #[tokio::test]
    async fn an_answer_says_a_number_in_a_header_or_its_body() {
        let url = canned(b"HTTP/1.1 200 OK\r\nX-Load: 12\r\n\r\n34\n", false).await;
        assert_eq!(Source::Url(url.clone(), None).read().await, Ok(34.0));
        assert_eq!(Source::Url(url.clone(), Some("x-load".into())).read().await, Ok(12.0));
        let missing = Source::Url(url.clone(), Some("x-none".into())).read().await;
        assert!(missing.expect_err("it has none").contains("x-none"));
        let Word { good, weight, .. } = by_url(&url, Some("X-Load")).await;
        assert_eq!((good, weight.as_deref()), (true, Some("12")));
        let ill = canned(b"HTTP/1.1 503 No\r\n\r\n34", false).await;
        assert!(Source::Url(ill.clone(), None).read().await.is_err());
        assert_eq!(by_url(&ill, None).await.why, "HTTP 503");
        // What never ends is cut, and what is none is none.
        let endless = canned(b"ffffffffffffffff", true).await;
        assert!(Source::Url(endless, None).read().await.is_err());
        let silent = canned(b"", true).await;
        let begun = Instant::now();
        assert!(!by_url(&silent, None).await.good);
        assert!(begun.elapsed() >= PATIENCE);
    }

    #[tokio::test]
    async fn a_command_is_judged_by_its_end_and_killed_in_time() {
        let run =
            async |line: &str| by_command(&["/bin/sh".into(), "-c".into(), line.into()]).await;
        let well = run("echo ready").await;
        assert!(well.good && well.why == "ready", "{well:?}");
        let ill = run("echo no disc; exit 3").await;
        assert!(!ill.good && ill.why.contains("3: no disc"), "{ill:?}");
        let much = run("yes | head -c 1000000").await;
        assert!(much.good && much.why.len() <= MOST_OF_WORDS, "{much:?}");
        let late = run("sleep 600").await;
        assert!(!late.good && late.why.contains("not ended"), "{late:?}");
        assert!(!by_command(&["/none".into()]).await.good);
    }
}
