//! Ctrl-C: a flag that everything that waits looks at.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

extern "C" fn note(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT, SIGTERM and SIGHUP set the flag of [`interrupted`] instead of ending the process.
///
/// The first signal asks for an orderly end. The handler is then gone, so a second one ends the
/// process at once; the kernel kills the children, and the next laboratory sweeps up the rest.
pub fn catch_interrupts() {
    HOOK.call_once(|| {
        let action = SigAction::new(
            SigHandler::Handler(note),
            SaFlags::SA_RESETHAND | SaFlags::SA_RESTART,
            SigSet::empty(),
        );
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // SAFETY: `note` only stores to an atomic, which is async-signal-safe.
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
