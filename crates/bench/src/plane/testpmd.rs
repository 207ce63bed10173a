//! DPDK's own `testpmd`, which swaps MAC addresses of what a null port hands over: what a forwarder of DPDK's
//! authors takes.

use crate::error::{Context, ensure};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use weir_plane_burst::BURST;
use weir_testbed::process::tie;

const PROGRAM: &str = "dpdk-testpmd";
/// Longest wait for what it says.
const PATIENCE: Duration = Duration::from_secs(60);
/// A measurement in which its processor had less than this is none: it was just starting, or others had it.
const LEAST: Duration = Duration::from_millis(10);
/// Longest time of a measurement.
const MOST: Duration = Duration::from_secs(2);
/// Measurements until there is one.
const TRIES: u32 = 60;

/// Nanoseconds that threads have had a processor, by their numbers.
type Used = BTreeMap<String, u64>;

/// The program, as long as it can be measured. What is wrong with it ends no bench.
#[derive(Default)]
pub struct Aside {
    running: Option<TestPmd>,
    failure: Option<String>,
}

impl Aside {
    /// Starts it over a null port with frames of so many bytes, with as much memory as the bench has, and of that
    /// kind: otherwise its rate would be no measure. Without it, and without `stdbuf`, by which a pipe learns of its
    /// statistics before its end, there is none, and nothing to say of that.
    pub fn start(huge: bool, megabytes: u32, frame_bytes: usize) -> Self {
        if !in_path(PROGRAM) || !in_path("stdbuf") {
            return Self::default();
        }
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let free = free_huge_pages(&meminfo);
        if huge && free < u64::from(megabytes) {
            let failure = format!(
                "{PROGRAM} is not measured: it wants {megabytes} MB in huge pages beside the bench's, and {free} \
                 MB are free"
            );
            return Self { running: None, failure: Some(failure) };
        }
        Self::of(command(huge, megabytes, frame_bytes), PATIENCE)
    }

    fn of(command: Command, patience: Duration) -> Self {
        let mut aside = Self::default();
        aside.running = aside.keep(TestPmd::start(command, patience));
        aside
    }

    /// Millions of frames for each second of the processor that its forwarding thread took, over about so long;
    /// none after its first failure.
    pub fn measure(&mut self, time: Duration) -> Option<f64> {
        let rate = self.running.as_mut()?.measure(time);
        let rate = self.keep(rate);
        if rate.is_none() {
            self.running = None;
        }
        rate
    }

    /// Why there are no figures of it, though it is installed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn keep<T>(&mut self, found: Result<T>) -> Option<T> {
        found.map_err(|why| self.failure = Some(format!("{PROGRAM} is not measured: {why}"))).ok()
    }
}

/// Megabytes that nobody has, or is promised.
fn free_huge_pages(meminfo: &str) -> u64 {
    let number = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let [free, promised] =
        ["HugePages_Free:", "HugePages_Rsvd:"].map(|name| number(name).unwrap_or(0));
    free.saturating_sub(promised) * number("Hugepagesize:").unwrap_or(2048) / 1024
}

fn command(huge: bool, megabytes: u32, frame_bytes: usize) -> Command {
    let last = thread::available_parallelism().map_or(1, usize::from) - 1;
    let mut command = Command::new("stdbuf");
    command.args(["-oL", PROGRAM, "--no-pci", "--no-telemetry", "--iova-mode=va"]);
    command.args(["--log-level=*:error", "-m", &megabytes.to_string()]);
    let alone: &[&str] = if huge { &["--in-memory"] } else { &["--no-huge", "--no-shconf"] };
    // One thread takes commands, the other one forwards; neither has a processor of its own.
    command.args(alone).arg("--lcores").arg(format!("0@(0-{last}),1@(0-{last})"));
    command.arg(format!("--vdev=net_null0,size={frame_bytes}"));
    command.args(["--", "--interactive", "--forward-mode=macswap", "--nb-cores=1"]);
    command.args(["--total-num-mbufs=4096", "--port-topology=loop"]);
    command.arg(format!("--burst={BURST}"));
    command
}

/// The program while it runs. It waits between measurements.
struct TestPmd {
    child: Child,
    words: ChildStdin,
    lines: Receiver<String>,
    patience: Duration,
}

impl Drop for TestPmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

impl TestPmd {
    /// Starts it, and waits until it takes commands: until then they stand in the pipe, and what it takes meanwhile is
    /// its beginning.
    fn start(mut command: Command, patience: Duration) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        tie(&mut command);
        let mut child = command.spawn().with_context(|| format!("start {PROGRAM}"))?;
        let (Some(words), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Fault(format!("{PROGRAM} has no pipes")));
        };
        let (send, lines) = channel();
        // Ends with the program.
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(io::Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut started = Self { child, words, lines, patience };
        started.say("start\nstop\n")?;
        started.forwarded()?;
        Ok(started)
    }

    fn measure(&mut self, time: Duration) -> Result<f64> {
        let mut time = time;
        for _ in 0..TRIES {
            let before = self.used()?;
            self.say("start\n")?;
            thread::sleep(time);
            self.say("stop\n")?;
            let frames = self.forwarded()?;
            let after = self.used()?;
            let used = of_forwarding(self.child.id(), &before, &after);
            if used >= LEAST && frames > 0 {
                return Ok(frames as f64 / used.as_secs_f64() / 1e6);
            }
            time = (time * 2).min(MOST);
        }
        Err(Error::Fault(format!("{PROGRAM} forwards nothing")))
    }

    fn say(&mut self, words: &str) -> Result<()> {
        let said = self.words.write_all(words.as_bytes()).and_then(|()| self.words.flush());
        Ok(said.with_context(|| format!("tell {PROGRAM} to {}", words.trim()))?)
    }

    /// The frames that it has sent since its last start, by what it says when it stops.
    fn forwarded(&mut self) -> Result<u64> {
        let mut all = false;
        loop {
            let Ok(line) = self.lines.recv_timeout(self.patience) else {
                return Err(Error::Fault(format!(
                    "{PROGRAM} has ended, or says nothing; its own words are on standard error"
                )));
            };
            all |= line.contains("Accumulated forward statistics");
            let Some(rest) = line.split("TX-packets:").nth(1).filter(|_| all) else { continue };
            let number = rest.split_whitespace().next().and_then(|number| number.parse().ok());
            ensure!(number.is_some(), "{PROGRAM} says {line:?}");
            return Ok(number.unwrap_or(0));
        }
    }

    /// Nanoseconds that each of its threads has had a processor.
    fn used(&self) -> Result<Used> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let read = || -> io::Result<Used> {
            let mut used = Used::new();
            for task in std::fs::read_dir(&tasks)? {
                let task = task?;
                // One that has just ended is none.
                let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else {
                    continue;
                };
                let nanoseconds = text.split_whitespace().next().and_then(|at| at.parse().ok());
                let name = task.file_name().to_string_lossy().into_owned();
                used.insert(name, nanoseconds.unwrap_or(0));
            }
            Ok(used)
        };
        Ok(read().with_context(|| format!("read what {PROGRAM} has used of its processor"))?)
    }
}

/// What the thread that forwards has used between the two: the one that used most, as all others wait. The first
/// thread of the process, which takes commands, is none.
fn of_forwarding(process: u32, before: &Used, after: &Used) -> Duration {
    let first = process.to_string();
    let others = after.iter().filter(|(thread, _)| **thread != first);
    let more = others.map(|(thread, now)| now - before.get(thread).unwrap_or(&0).min(now));
    Duration::from_nanos(more.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_takes_commands_does_not_forward() {
        let used = |all: &[(&str, u64)]| -> Used {
            all.iter().map(|&(thread, used)| (thread.to_owned(), used)).collect()
        };
        let before = used(&[("7", 1_000), ("8", 500), ("9", 10)]);
        let after = used(&[("7", 9_000), ("8", 2_500), ("9", 10), ("10", 30)]);
        assert_eq!(of_forwarding(7, &before, &after), Duration::from_nanos(2_000));
        assert_eq!(of_forwarding(7, &before, &before), Duration::ZERO);
    }

    #[test]
    fn huge_pages_that_others_have_are_not_free() {
        let text =
            "HugePages_Free:       40\nHugePages_Rsvd:        8\nHugepagesize:       2048 kB\n";
        assert_eq!((free_huge_pages(text), free_huge_pages("")), (64, 0));
    }

    fn shell(words: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", words]);
        command
    }

    const STATISTICS: &str = "echo '+++ Accumulated forward statistics for all ports +++'; \
                              echo 'TX-packets: 5 TX-dropped: 0'";

    #[test]
    fn what_cannot_be_measured_is_dropped_with_a_word() {
        let soon = Duration::from_millis(50);
        let nowhere = Command::new("/nowhere/testpmd");
        // One that is not there, that ends at once, that says nothing, and that ends after its first answer.
        for (command, patience) in [
            (nowhere, PATIENCE),
            (shell("exit 1"), PATIENCE),
            (shell("exec cat > /dev/null"), soon),
            (shell(&format!("read a; read b; {STATISTICS}")), PATIENCE),
        ] {
            let mut aside = Aside::of(command, patience);
            assert_eq!(aside.measure(soon), None);
            assert!(aside.running.is_none());
            let why = aside.failure().expect("it says why").to_owned();
            assert!(why.starts_with("dpdk-testpmd is not measured: "), "{why}");
            // And is not asked again.
            assert_eq!((aside.measure(soon), aside.failure()), (None, Some(&*why)));
        }
    }
}
