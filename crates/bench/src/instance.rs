//! `weir run` as an operator has it: a process, its socket, its files.

use crate::Result;
use crate::error::{Context, ensure};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weir_testbed::process;

/// What names of instances of the bench begin with; the process number follows, and letters if there are
/// several.
const NAME: &str = "weirctl";
/// Where their run directories are: in memory, as a balancer's own usually is.
const RUN: &str = "/run";

/// A balancer that runs.
pub struct Instance {
    weir: PathBuf,
    name: String,
    directory: PathBuf,
    process: Child,
    /// When it was started.
    pub started: Instant,
}

impl Instance {
    /// Starts a balancer by a command that is the program, perhaps somewhere else; `config` writes
    /// its file for an instance of this name with this run directory.
    pub fn start(
        weir: &Path,
        command: Command,
        config: impl FnOnce(&str, &Path) -> String,
    ) -> Result<Self> {
        Self::start_beside(weir, "", command, config)
    }

    /// The same of one of several that run at once, told apart by letters.
    pub fn start_beside(
        weir: &Path,
        letters: &str,
        mut command: Command,
        config: impl FnOnce(&str, &Path) -> String,
    ) -> Result<Self> {
        sweep(weir);
        let name = format!("{NAME}{}{letters}", std::process::id());
        let directory = Path::new(RUN).join(&name);
        fs::create_dir_all(&directory).context("making the run directory")?;
        let file = directory.join("weir.toml");
        fs::write(&file, config(&name, &directory)).context("writing the configuration")?;
        let log = fs::File::create(directory.join("log")).context("making the log")?;
        command.args(["run", "--config"]).arg(&file).stdin(Stdio::null());
        command.stdout(log.try_clone().context("using the log")?).stderr(log);
        let started = Instant::now();
        // From this thread, whose cores it is to use: it ends with it, if it is not ended before.
        let process = command.spawn().context("starting the balancer")?;
        Ok(Self { weir: weir.to_owned(), name, directory, process, started })
    }

    /// Waits until it answers at its socket.
    pub fn await_socket(&mut self, patience: Duration) -> Result<()> {
        while UnixStream::connect(self.socket()).is_err() {
            let ended = self.process.try_wait().context("waiting for the balancer")?;
            let late = self.started.elapsed() > patience;
            ensure!(ended.is_none() && !late, "the balancer does not run:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("weir.sock")
    }

    /// Sends the command that sets a backend's weight; its answer is to be [taken](Answer::take).
    pub fn set_weight(&self, service: &str, backend: &str, weight: u32) -> Result<Answer> {
        let path = format!("/v1/services/{service}/backends/{backend}/weight");
        self.request("PUT", &path, &format!("{{\"weight\":{weight}}}"))
    }

    fn request(&self, method: &str, path: &str, body: &str) -> Result<Answer> {
        let asked = Instant::now();
        let ask = || -> io::Result<UnixStream> {
            let mut stream = UnixStream::connect(self.socket())?;
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let stream = ask().with_context(|| format!("asking for {method} {path}"))?;
        Ok(Answer { stream, asked, bytes: Vec::new(), whole: None })
    }

    /// Writes another file, as at the start, and has it read.
    ///
    /// # Errors
    /// It is refused, or not answered in time.
    pub fn follow(
        &self,
        config: impl FnOnce(&str, &Path) -> String,
        patience: Duration,
    ) -> Result<()> {
        let file = self.directory.join("weir.toml");
        fs::write(&file, config(&self.name, &self.directory))
            .context("writing the configuration")?;
        self.reload(patience).map(drop)
    }

    /// All that there is to tell, and how long that took.
    pub fn status(&self, patience: Duration) -> Result<(Value, Duration)> {
        self.answer("GET", "/v1/status", patience)
    }

    /// What its own file would change, and how long it took to tell.
    pub fn plan(&self, patience: Duration) -> Result<(Value, Duration)> {
        self.answer("POST", "/v1/plan", patience)
    }

    /// Has it read its own file again; how long that took.
    pub fn reload(&self, patience: Duration) -> Result<Duration> {
        self.answer("POST", "/v1/reload", patience).map(|(_, took)| took)
    }

    /// The answer to a request without a body, and how long it took.
    fn answer(&self, method: &str, path: &str, patience: Duration) -> Result<(Value, Duration)> {
        let mut answer = self.request(method, path, "")?;
        let Answer { stream, asked, .. } = &mut answer;
        let mut bytes = Vec::new();
        stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(patience)))
            .and_then(|()| stream.read_to_end(&mut bytes))
            .with_context(|| format!("reading the answer to {method} {path}"))?;
        let took = asked.elapsed();
        let told = serde_json::from_str(body(&bytes)?)
            .with_context(|| format!("reading the answer to {method} {path}"))?;
        Ok((told, took))
    }

    /// Resident memory in bytes: all, and its own alone.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let path = format!("/proc/{}/status", self.process.id());
        let text = fs::read_to_string(path).context("reading the balancer's memory")?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
            kib.map_or(0, |kib: u64| kib * 1024)
        };
        Ok((field("VmRSS:"), field("RssAnon:")))
    }

    /// Processor time that the process has taken, of all its threads, the kernel's share of it included.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(self.process.id())
    }

    /// Bytes that its files take, but for configuration and log.
    pub fn saved(&self) -> u64 {
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        files
            .filter(|file| !["weir.toml", "log"].iter().any(|name| file.file_name() == *name))
            .filter_map(|file| file.metadata().ok())
            .map(|file| file.blocks() * 512)
            .sum()
    }
}

/// Processor time that a process has taken, of all its threads, the kernel's share of it included.
pub fn cpu_of(process: u32) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(process as i32));
    let time = clock.and_then(ClockId::now).context("reading the processor time of a process")?;
    Ok(Duration::from(time))
}

impl Drop for Instance {
    fn drop(&mut self) {
        process::kill(&mut self.process);
        remove(&self.weir, &self.name);
    }
}

/// All metrics that a balancer serves at an address, as a Prometheus in this network namespace reads them: how
/// long that took, and how many bytes there were.
pub fn scrape(address: &str, patience: Duration) -> Result<(Duration, usize)> {
    let begun = Instant::now();
    let read = || -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(patience))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n")?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().context("reading metrics")?;
    let took = begun.elapsed();
    ensure!(body(&bytes)?.contains("# EOF"), "metrics end before they are all there");
    Ok((took, bytes.len()))
}

/// Removes what an instance has left in the kernel and on disk.
fn remove(weir: &Path, name: &str) {
    let unload = Command::new(weir).args(["unload", "--name", name]).output();
    if !unload.is_ok_and(|output| output.status.success()) {
        // The next bench tries again.
        return;
    }
    let _ = fs::remove_dir_all(Path::new(RUN).join(name));
}

/// Removes what benches that were killed have left.
fn sweep(weir: &Path) {
    let names = fs::read_dir(RUN).into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let number = name.strip_prefix(NAME).and_then(process_of);
        if number.is_some_and(|number| !Path::new(&format!("/proc/{number}")).exists()) {
            remove(weir, &name);
        }
    }
}

/// The process that has made an instance: its number, with letters behind it or without.
fn process_of(instance: &str) -> Option<u32> {
    instance.trim_end_matches(|c: char| c.is_ascii_lowercase()).parse().ok()
}

/// The answer to a command, on its way.
pub struct Answer {
    stream: UnixStream,
    /// When the command was given.
    pub asked: Instant,
    bytes: Vec<u8>,
    whole: Option<Duration>,
}

impl Answer {
    /// Takes what has come; returns how long the answer took when it is whole.
    ///
    /// # Errors
    /// The command was refused.
    pub fn take(&mut self) -> Result<Option<Duration>> {
        if self.whole.is_some() {
            return Ok(self.whole);
        }
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    body(&self.bytes)?;
                    self.whole = Some(self.asked.elapsed());
                    return Ok(self.whole);
                }
                Ok(read) => self.bytes.extend(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).context("reading an answer")?,
            }
        }
    }
}

/// The body of an answer that says that all went well.
fn body(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes).context("reading an answer")?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
    ensure!(head.starts_with("HTTP/1.1 200 "), "the balancer answers {text:?}");
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::process_of;

    #[test]
    fn instances_name_their_process() {
        assert_eq!(process_of("4711"), Some(4711));
        assert_eq!(process_of("4711b"), Some(4711));
        assert_eq!(process_of("b"), None);
        assert_eq!(process_of("4711.old"), None);
    }
}
