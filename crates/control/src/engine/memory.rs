//! Memory that the allocator holds and nobody uses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// So long after a configuration was compared what that took is given back: whoever compares one often needs the same
/// again and again.
const SOON: Duration = Duration::from_secs(10);

/// Gives back to the system what was needed and no longer is: a walk over all that is free.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches free memory of the allocator only, and takes its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The same a little later, and on another thread: nobody waits for it who does not allocate just then. What was made to
/// compare two configurations would lie between what stays for ever.
pub(super) fn give_back_soon() {
    static COMES: AtomicBool = AtomicBool::new(false);
    if COMES.swap(true, Ordering::Relaxed) {
        return;
    }
    let later = || {
        thread::sleep(SOON);
        COMES.store(false, Ordering::Relaxed);
        give_back();
    };
    if thread::Builder::new().name("memory".into()).spawn(later).is_err() {
        COMES.store(false, Ordering::Relaxed);
    }
}
