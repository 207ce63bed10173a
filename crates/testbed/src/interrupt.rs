//! Ctrl-C: a flag that everything that waits looks at.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static SIGNALS: AtomicUsize = AtomicUsize::new(0);
static HOOK: Once = Once::new();

/// What is said at the second signal.
const ENDING: &str =
    "weir: removing what was made; the next signal ends this at once, and leaves it behind\n";

extern "C" fn note(signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
    match SIGNALS.fetch_add(1, Ordering::Relaxed) {
        0 => {}
        1 => say(ENDING),
        _ => {
            // SAFETY: both are async-signal-safe. The signal is held back until this returns, and meets what the
            // kernel does without a handler.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
}

/// Writes to the error output from within a handler of signals.
fn say(words: &str) {
    // SAFETY: write is async-signal-safe, and reads the bytes of `words` alone. Where this thread keeps its last error
    // is known for as long as it runs; whoever was interrupted finds it as it was.
    unsafe {
        let error = libc::__errno_location();
        let before = *error;
        libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len());
        *error = before;
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP set the flag of [`interrupted`] instead of ending the process.
///
/// The first signal asks for an orderly end, which a second one does not cut short: whoever ends a process may send
/// the same to its group, too, as `timeout` does. A third one ends the process at once; the kernel kills the children,
/// and the next laboratory sweeps up the rest.
pub fn catch_interrupts() {
    HOOK.call_once(|| {
        let action =
            SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // SAFETY: `note` does nothing that is not async-signal-safe.
            if let Err(error) = unsafe { sigaction(signal, &action) } {
                tracing::warn!("cannot catch {signal}: {error}");
            }
        }
    });
}

/// Whether SIGINT, SIGTERM or SIGHUP arrived, or [`interrupt`] was called.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Sets the flag, as a key press in the live view does.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Sleeps, and wakes up early when interrupted. Returns whether the time passed undisturbed.
pub fn sleep(duration: Duration) -> bool {
    let end = Instant::now() + duration;
    while !interrupted() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(Duration::from_millis(20)));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tie;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    /// Set in the process of the test below.
    const HELPER: &str = "WEIR_INTERRUPT_TEST_HELPER";

    /// Not a test by itself: a process that goes on whatever it is asked, until it is killed.
    #[test]
    fn helper_does_not_end() {
        if std::env::var_os(HELPER).is_none() {
            return;
        }
        catch_interrupts();
        eprintln!("caught");
        while sleep(Duration::from_secs(3600)) {}
        eprintln!("interrupted");
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }

    fn terminate(child: &Child) {
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    #[test]
    fn a_second_signal_is_heard_and_the_third_ends_it() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["interrupt::tests::helper_does_not_end", "--exact", "--nocapture"])
            .env(HELPER, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // It goes with this thread, should that fail.
        tie(&mut command);
        let mut helper = command.spawn().unwrap();
        let mut said = BufReader::new(helper.stderr.take().unwrap()).lines();
        let mut next = || said.next().unwrap().unwrap();
        assert_eq!(next(), "caught");
        terminate(&helper);
        assert_eq!(next(), "interrupted");
        terminate(&helper);
        assert_eq!(next(), ENDING.trim_end());
        assert!(helper.try_wait().unwrap().is_none(), "it goes on");
        terminate(&helper);
        assert_eq!(helper.wait().unwrap().signal(), Some(libc::SIGTERM));
    }
}
