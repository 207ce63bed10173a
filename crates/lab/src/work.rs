//! The application behind a backend's nginx: it takes one request after the other, and each takes as long
//! as it asks for.
//!
//! It works by waiting, not by burning CPU: so two processors have room for the servers of a whole rack,
//! each with a queue of its own in front of it.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Doing, Result};

/// Bytes of an answer: the file of Cheetah's evaluation (section 5.2).
const ANSWER: usize = 8 << 10;
/// Longest wait for the request of who has connected: nginx sends it at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running application; dropping it ends it after the request that it works on.
#[derive(Debug)]
pub(crate) struct Work {
    busy: Arc<Mutex<Busy>>,
    /// Closing it tells the thread to end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// What was worked so far.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    /// All requests that were begun.
    begun: Duration,
    /// When the last one of them is done.
    until: Option<Instant>,
}

impl Busy {
    /// Takes the next request, that came at `now` at the latest; returns when it is done. The end of one
    /// is the beginning of the next if that waits: a thread that is woken late works no less.
    fn take(&mut self, now: Instant, demand: Duration, waits: bool) -> Instant {
        let from = self.until.filter(|_| waits).map_or(now, |until| until.min(now));
        let until = from + demand;
        self.begun += demand;
        self.until = Some(until);
        until
    }

    fn worked(&self, now: Instant) -> Duration {
        let left = self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        self.begun.saturating_sub(left)
    }
}

impl Work {
    /// Where nginx of a backend with this directory finds it.
    pub(crate) fn socket(directory: &Path) -> PathBuf {
        directory.join("work.sock")
    }

    /// Starts it; it listens when this returns.
    pub(crate) fn start(directory: &Path, name: &str) -> Result<Self> {
        let path = Self::socket(directory);
        let what = || format!("starting the application of {name}");
        // Left by one before.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).doing(what)?;
        listener.set_nonblocking(true).doing(what)?;
        let (stop, stopped) = UnixStream::pair().doing(what)?;
        let busy = Arc::new(Mutex::new(Busy::default()));
        let shared = Arc::clone(&busy);
        let thread = thread::Builder::new()
            .name(format!("{name}-work"))
            .spawn(move || serve(&listener, stopped, &shared))
            .doing(what)?;
        Ok(Self { busy, stop: Some(stop), thread: Some(thread) })
    }

    /// How long it has worked so far.
    pub(crate) fn worked(&self) -> Duration {
        lock(&self.busy).worked(Instant::now())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            let _ = thread.join();
        }
    }
}

fn lock(busy: &Mutex<Busy>) -> MutexGuard<'_, Busy> {
    busy.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(listener: &UnixListener, mut stopped: UnixStream, busy: &Mutex<Busy>) {
    let mut waits = false;
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) => {
                waits = false;
                let mut waiting = [
                    PollFd::new(listener.as_fd(), PollFlags::POLLIN),
                    PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
                ];
                if poll(&mut waiting, PollTimeout::NONE).is_ok()
                    && waiting[1].any().unwrap_or(true)
                    && matches!(stopped.read(&mut [0]), Ok(0))
                {
                    return;
                }
                continue;
            }
        };
        // nginx notices a request that fails, and tells its client.
        if let Ok(demand) = read_demand(&stream) {
            let until = lock(busy).take(Instant::now(), demand, waits);
            thread::sleep(until.saturating_duration_since(Instant::now()));
            let _ = answer(stream);
            waits = true;
        }
    }
}

/// How long a request asks to be worked on: `GET /work/<microseconds>`.
fn read_demand(mut stream: &UnixStream) -> io::Result<Duration> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut head, mut filled) = ([0; 1024], 0);
    while !head[..filled].windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut head[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => filled += length,
        }
    }
    demand_of(&head[..filled]).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn demand_of(head: &[u8]) -> Option<Duration> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let path = line.strip_prefix(b"GET /work/")?.split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(path).ok()?.parse().ok().map(Duration::from_micros)
}

fn answer(mut stream: UnixStream) -> io::Result<()> {
    let mut all = format!("HTTP/1.0 200 OK\r\nContent-Length: {ANSWER}\r\n\r\n").into_bytes();
    all.resize(all.len() + ANSWER, b'.');
    stream.write_all(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_in_microseconds() {
        let head = b"GET /work/2500 HTTP/1.0\r\nHost: x\r\n\r\n";
        assert_eq!(demand_of(head), Some(Duration::from_micros(2500)));
        for bad in [&b"GET /work/ HTTP/1.0\r\n"[..], b"GET /work/-1 HTTP/1.0\r\n", b"POST /work/1"]
        {
            assert_eq!(demand_of(bad), None);
        }
    }

    #[test]
    fn one_after_the_other_and_none_for_nothing() {
        let (now, unit) = (Instant::now(), Duration::from_millis(10));
        let mut busy = Busy::default();
        assert_eq!(busy.take(now, unit, false), now + unit);
        // It waited until its predecessor was done, which this thread has noticed late.
        assert_eq!(busy.take(now + unit * 5 / 4, unit, true), now + unit * 2);
        assert_eq!(busy.worked(now + unit * 3 / 2), unit * 3 / 2);
        assert_eq!(busy.worked(now + unit * 9), unit * 2);
        // Nobody waited.
        assert_eq!(busy.take(now + unit * 9, unit, false), now + unit * 10);
        assert_eq!(busy.worked(now + unit * 9), unit * 2);
    }

    #[test]
    fn requests_are_answered_one_after_the_other() {
        let directory = std::env::temp_dir().join(format!("weir-work-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let work = Work::start(&directory, "b0").unwrap();
        let began = Instant::now();
        let mut streams: Vec<UnixStream> = (0..4)
            .map(|_| {
                let mut stream = UnixStream::connect(Work::socket(&directory)).unwrap();
                stream.write_all(b"GET /work/20000 HTTP/1.0\r\n\r\n").unwrap();
                stream
            })
            .collect();
        for (number, stream) in streams.iter_mut().enumerate() {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            assert!(all.len() > ANSWER && all.starts_with(b"HTTP/1.0 200 OK\r\n"));
            assert!(began.elapsed() >= Duration::from_millis(20 * (number as u64 + 1)));
        }
        assert_eq!(work.worked(), Duration::from_millis(80));
        drop(work);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
