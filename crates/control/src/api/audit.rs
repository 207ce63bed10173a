//! Who has asked for which change, when, and what became of it; and who was refused. One line of JSON
//! each, in a file that only its owner reads, of bounded size: at [`MOST`] it becomes `<name>.1`, in the
//! place of the one before.

use crate::history::Who;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tracing::{error, info, warn};
use weir_host::files;

/// Bytes of a file.
const MOST: u64 = 4 << 20;
/// Requests without a change that are written down in a second; whoever asks a thousand times fills no disc.
const REFUSALS: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);
/// And in an hour: a second's, again and again, would still push what was changed out of both files within minutes.
const REFUSALS_OF_AN_HOUR: u32 = 1000;
const HOUR: Duration = Duration::from_secs(3600);
/// Beyond those one at a time, so that who asks is seen.
const BEYOND: Duration = Duration::from_secs(10);
/// Bytes that a refusal repeats of a path, and says of why.
const WORDS: usize = 512;

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    /// When, as RFC 3339 has it, in UTC.
    pub time: String,
    /// Who asked: a user by name and number, or a name in a certificate.
    pub who: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// From where, if not at the socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<SocketAddr>,
    /// What they may do.
    pub role: Option<&'static str>,
    pub method: &'a str,
    pub path: &'a str,
    /// What gRPC calls it, if it came that way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<&'a str>,
    /// The body, if it is short and has no configuration in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<&'a str>,
    /// HTTP's status of the answer.
    pub status: u16,
    /// The answer, as a sentence.
    pub outcome: &'a str,
    /// Requests before this one that changed nothing either, whatever was wrong with them, that there was no room for.
    #[serde(skip_serializing_if = "is_zero")]
    pub unsaid: u32,
    /// Lines before this one that could not be written, as on a full disc.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing: u32,
    /// What was asked for was so already.
    #[serde(skip)]
    pub same: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl<'a> Record<'a> {
    pub fn new(who: &'a Who, from: Option<SocketAddr>) -> Self {
        Self {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            who: &who.name,
            uid: who.uid,
            pid: who.pid,
            from,
            role: None,
            method: "",
            path: "",
            call: None,
            body: None,
            status: 0,
            outcome: "",
            unsaid: 0,
            missing: 0,
            same: false,
        }
    }
}

/// The file, and how many requests without a change it has taken lately.
#[derive(Debug)]
pub(super) struct Audit(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: Option<File>,
    refused: Refused,
    unsaid: u32,
    /// Lines that could not be written since the last one that was.
    missing: u32,
    /// The file ends in the middle of a line.
    torn: bool,
}

/// Those lately: since when, and how many.
#[derive(Debug)]
struct Refused {
    second: (Instant, u32),
    hour: (Instant, u32),
    last: Instant,
}

impl Refused {
    fn none(now: Instant) -> Self {
        Self { second: (now, 0), hour: (now, 0), last: now }
    }

    /// Whether there is room for one more, which is counted then.
    fn takes_one(&mut self, now: Instant) -> bool {
        for ((since, count), length) in [(&mut self.second, SECOND), (&mut self.hour, HOUR)] {
            if now.duration_since(*since) >= length {
                (*since, *count) = (now, 0);
            }
        }
        let many = self.hour.1 >= REFUSALS_OF_AN_HOUR;
        if self.second.1 >= REFUSALS || many && now.duration_since(self.last) < BEYOND {
            return false;
        }
        self.second.1 += 1;
        self.hour.1 += 1;
        self.last = now;
        true
    }
}

/// The beginning of words that somebody else has chosen.
fn few(words: &str) -> &str {
    let mut end = words.len().min(WORDS);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    &words[..end]
}

impl Audit {
    pub fn new(path: PathBuf) -> Self {
        let refused = Refused::none(Instant::now());
        let inner = Inner { path, file: None, refused, unsaid: 0, missing: 0, torn: false };
        Self(Mutex::new(inner))
    }

    /// Goes on in another file.
    pub fn write_to(&self, path: &Path) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.path != path {
            (inner.path, inner.file) = (path.to_owned(), None);
        }
    }

    /// What is in the way of its lines.
    pub fn trouble(&self) -> Option<String> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = inner.missing;
        if inner.file.is_some() && missing == 0 {
            return None;
        }
        let why = match (inner.open(), missing) {
            (Ok(()), 0) => return None,
            (Ok(()), 1) => "its last line could not be written".to_owned(),
            (Ok(()), _) => format!("its last {missing} lines could not be written"),
            (Err(error), _) => error.to_string(),
        };
        Some(format!("changes are not in the audit log {}: {why}", inner.path.display()))
    }

    /// Writes a line. Waits for the file; for threads that may.
    pub fn write(&self, mut record: Record<'_>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Whatever is wrong with what was asked for, nothing has changed, as if it was so already: who asks for that
        // again and again, be it a program that keeps things as they should be, would push what others have changed
        // out of the files, and out of the process's log.
        let refused = (400..500).contains(&record.status);
        let idle = refused || record.same;
        if idle && !inner.refused.takes_one(Instant::now()) {
            inner.unsaid += 1;
            return;
        }
        if refused {
            (record.path, record.outcome) = (few(record.path), few(record.outcome));
            record.body = record.body.map(few);
        }
        record.unsaid = if idle { std::mem::take(&mut inner.unsaid) } else { 0 };
        let Record { who, method, path, status, outcome, .. } = record;
        if matches!(status, 401 | 403) {
            warn!(who, method, path, status, "refused: {outcome}");
        } else {
            info!(who, method, path, status, "{outcome}");
        }
        record.missing = inner.missing;
        match inner.append(&record) {
            Ok(()) if inner.missing > 0 => {
                let (file, missing) = (inner.path.display(), inner.missing);
                warn!(%file, missing, "the audit log is written again; lines of it are missing");
                inner.missing = 0;
            }
            Ok(()) => {}
            Err(error) => {
                // Once, and not for each of thousands: the line above says what was done.
                if inner.missing == 0 {
                    error!(%error, file = %inner.path.display(), "cannot write the audit log");
                }
                inner.missing = inner.missing.saturating_add(1);
                inner.unsaid = inner.unsaid.saturating_add(record.unsaid);
                inner.file = None;
            }
        }
    }
}

impl Inner {
    fn append(&mut self, record: &Record<'_>) -> io::Result<()> {
        let about = self.file.as_ref().map(File::metadata).transpose()?;
        if about.as_ref().is_some_and(|about| about.nlink() == 0) {
            // Somebody has removed it.
            self.file = None;
        } else if about.is_some_and(|about| about.len() >= MOST) {
            self.file = None;
            let mut old = self.path.as_os_str().to_owned();
            old.push(".1");
            fs::rename(&self.path, old)?;
        }
        if self.file.is_none() {
            self.open()?;
        }
        let mut line = Vec::new();
        if self.torn {
            line.push(b'\n');
        }
        serde_json::to_writer(&mut line, record)?;
        line.push(b'\n');
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        // In one piece, so that a line is there or not, as long as there is room. What is there of one is found when
        // the file is opened again.
        file.write_all(&line)?;
        self.torn = false;
        Ok(())
    }

    /// Opens the file, whose last line may be one that a full disc has cut off.
    fn open(&mut self) -> io::Result<()> {
        let file = files::open_to_append(&self.path)?;
        let mut last = [b'\n'];
        if let Some(at) = file.metadata()?.len().checked_sub(1) {
            // Whoever may not read it begins a line as if it were whole.
            let _ = files::open(&self.path).and_then(|file| file.read_exact_at(&mut last, at));
        }
        self.torn = last != [b'\n'];
        self.file = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn lines_are_written_rotated_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = Audit::new(path.clone());
        let who = Who { name: "alice".into(), uid: Some(7), pid: None };
        let write = |status, outcome: &str| {
            let record = Record { status, outcome, method: "PUT", ..Record::new(&who, None) };
            audit.write(record);
        };
        write(200, "done");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let all = lines(&path);
        assert_eq!((&all[0]["who"], &all[0]["uid"]), (&"alice".into(), &7.into()));
        let long = "x".repeat(1 << 20);
        (0..6).for_each(|_| write(200, &long));
        let old = folder.path().join("audit.log.1");
        assert!(fs::metadata(&old).unwrap().len() >= MOST);
        assert!(fs::metadata(&path).unwrap().len() < MOST);
        // A link in the place of the file stays one, and what it leads to as it is.
        let target = folder.path().join("precious");
        fs::write(&target, "precious").unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let audit = Audit::new(path.clone());
        audit.write(Record { status: 200, ..Record::new(&who, None) });
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        // When it is away, the next line is written again.
        fs::remove_file(&path).unwrap();
        audit.write(Record { status: 200, ..Record::new(&who, None) });
        assert_eq!(lines(&path).len(), 1);
    }

    /// As on a disc that is full for a while.
    #[test]
    fn lines_that_are_missing_are_counted_and_half_a_line_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later").join("audit.log");
        let who = Who::nobody("alice");
        let audit = Audit::new(path.clone());
        let write = || audit.write(Record { status: 200, ..Record::new(&who, None) });
        (0..3).for_each(|_| write());
        assert!(audit.trouble().is_some());
        fs::create_dir(path.parent().unwrap()).unwrap();
        let trouble = audit.trouble().unwrap_or_default();
        assert!(trouble.contains("its last 3 lines could not be written"), "{trouble}");
        (0..2).for_each(|_| write());
        let all = lines(&path);
        assert_eq!((&all[0]["missing"], all[1].get("missing")), (&3.into(), None));
        assert_eq!(audit.trouble(), None);
        // What another process could not write to its end.
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{{\"time\":")).unwrap();
        let audit = Audit::new(path.clone());
        (0..2).for_each(|_| audit.write(Record { status: 200, ..Record::new(&who, None) }));
        let text = fs::read_to_string(&path).unwrap();
        let read: Vec<bool> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
            .collect();
        assert_eq!(read, [true, true, false, true, true], "{text}");
    }

    #[test]
    fn a_flood_of_refusals_fills_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = Audit::new(path.clone());
        let who = Who::nobody("mallory");
        let say = |status| audit.write(Record { status, ..Record::new(&who, None) });
        let refuse = || say(403);
        say(200);
        // Whatever is wrong with them.
        [400, 403, 404, 409, 422].into_iter().cycle().take(10_000).for_each(say);
        let written = lines(&path).len();
        // The loop takes less than some seconds, of which each has room for a few.
        assert!((REFUSALS as usize..2000).contains(&written), "{written}");
        std::thread::sleep(SECOND);
        refuse();
        let last = lines(&path).pop().unwrap();
        assert_eq!(last["unsaid"].as_u64().map(|n| n > 0), Some(true), "{last}");
        // What was changed before is still there.
        assert_eq!(lines(&path)[0]["status"], 200);
        // And so it is if what is asked for is so already.
        let before = lines(&path).len();
        for _ in 0..10_000 {
            audit.write(Record { status: 200, same: true, ..Record::new(&who, None) });
        }
        assert!(lines(&path).len() - before < 2000, "{}", lines(&path).len());
        say(200);
        assert_eq!(lines(&path).pop().unwrap()["unsaid"], serde_json::Value::Null);
    }

    #[test]
    fn refusals_of_a_day_do_not_push_changes_out() {
        let began = Instant::now();
        let mut refused = Refused::none(began);
        let taken = |refused: &mut Refused, seconds: std::ops::Range<u64>| {
            let all = seconds.flat_map(|second| [second; 30]);
            all.filter(|second| refused.takes_one(began + Duration::from_secs(*second))).count()
        };
        assert_eq!(taken(&mut refused, 0..10), 200);
        // The hour's, and then one in ten seconds.
        assert_eq!(taken(&mut refused, 10..50), 800);
        assert_eq!(taken(&mut refused, 50..60), 1);
        let hours = taken(&mut refused, 60..24 * 3600);
        assert!((24_000..36_000).contains(&hours), "{hours}");
    }

    #[test]
    fn a_refusal_repeats_the_beginning_of_what_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = Audit::new(path.clone());
        let who = Who::nobody("mallory");
        let long = "\u{e9}".repeat(10_000);
        let record = Record { status: 404, path: &long, outcome: &long, ..Record::new(&who, None) };
        audit.write(record);
        assert!(fs::metadata(&path).unwrap().len() < 4 * WORDS as u64);
        assert_eq!(lines(&path)[0]["path"].as_str().map(|path| path.len() <= WORDS), Some(true));
    }
}
