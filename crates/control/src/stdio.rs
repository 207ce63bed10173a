//! What becomes of a standard output that was closed (`weir schema >&-`). Rust's runtime opens `/dev/null` in its place
//! before `main`, so that whatever is written seems to arrive; so it is looked at before that.

use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    // SAFETY: it asks for the flags of a descriptor, touches no memory, and fails if there is no such descriptor.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED.store(flags == -1, Ordering::Relaxed);
}

// SAFETY: the loader calls functions of this section once, before the runtime begins; this one needs nothing of that:
// it makes a system call and writes to an atomic.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Whether this process was started without a standard output.
pub fn stdout_was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}
