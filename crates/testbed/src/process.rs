//! Child processes that cannot outlive this one.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid};

use crate::error::{Doing, Error, Result};

/// Open files that a laboratory and its servers would like.
const OPEN_FILES: u64 = 200_000;

/// Lifts the limit of open files of this process, and so of its children, as far as the system
/// lets it (the hard limit needs CAP_SYS_RESOURCE). Returns the limit.
///
/// # Errors
/// If it can be neither read nor set.
pub fn raise_file_limit() -> Result<u64> {
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).doing(|| "reading RLIMIT_NOFILE".into())?;
    if soft >= OPEN_FILES {
        return Ok(soft);
    }
    if setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, hard.max(OPEN_FILES)).is_ok() {
        return Ok(OPEN_FILES);
    }
    let most = hard.min(OPEN_FILES);
    setrlimit(Resource::RLIMIT_NOFILE, most, hard).doing(|| "raising RLIMIT_NOFILE".into())?;
    Ok(most)
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
/// If there is no such CPU.
pub fn stay_on_cpu(cpu: usize) -> Result<()> {
    let only = || {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        sched_setaffinity(Pid::from_raw(0), &set)
    };
    only().doing(|| format!("staying on CPU {cpu}"))
}

/// Ties a command to the life of this process: SIGKILL when the spawning thread ends, and a
/// process group of its own, so that a Ctrl-C at the terminal reaches this process and not its servers.
///
/// A child that has to live on must be started with `spawn`, since "the spawning thread ends"
/// is what the kernel watches, and not the process.
pub fn tie(command: &mut Command) {
    let parent = getpid();
    command.process_group(0);
    // SAFETY: only async-signal-safe system calls, and no allocation, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have died before the line above.
            if getppid() != parent {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// Spawns from a thread that lives as long as the process, so that "tied to its spawner" means "as
/// long as the process" whichever thread asks.
///
/// # Errors
/// If the program cannot be started.
pub fn spawn(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let name = command.get_program().to_string_lossy().into_owned();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, reply) in jobs {
                // The asker waits for this answer; if it is gone, the child was tied and the
                // handle is dropped.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, answer) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    spawner
        .send((command, reply))
        .map_err(|_| gone())
        .and_then(|()| answer.recv().map_err(|_| gone()))
        .and_then(|spawned| spawned)
        .doing(|| format!("starting {name}"))
}

/// Runs a command to its end with `input` on its standard input and returns what it printed.
///
/// # Errors
/// If it cannot be started, or ends with another status than 0; then with what it said.
pub fn run(mut command: Command, input: &str) -> Result<String> {
    let line = words(&command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    tie(&mut command);
    let output = (|| -> io::Result<Output> {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that ends without reading everything says why in its exit status.
            match stdin.write_all(input.as_bytes()) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                _ => {}
            }
        }
        child.wait_with_output()
    })()
    .doing(|| format!("running {line}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Command {
        command: line,
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_string(),
    })
}

/// Kills a child with SIGKILL and collects it.
pub fn kill(child: &mut Child) {
    // Both fail only if the child is gone already.
    let _ = child.kill();
    let _ = child.wait();
}

fn words(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// The processor's time stamp counter; `None` where there is none that is known.
pub fn time_stamp() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every processor of this kind has the counter.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_returns_output_and_reports_failure() {
        assert_eq!(run(Command::new("cat"), "hello").unwrap(), "hello");
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo no >&2; exit 3"]);
        match run(failing, "") {
            Err(Error::Command { stderr, status, .. }) => {
                assert_eq!(stderr, "no");
                assert!(status.contains('3'));
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    #[test]
    fn a_spawned_child_outlives_the_thread_that_asked() {
        let mut child = thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("60");
            tie(&mut command);
            spawn(command).unwrap()
        })
        .join()
        .unwrap();
        thread::sleep(std::time::Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none());
        kill(&mut child);
    }
}
