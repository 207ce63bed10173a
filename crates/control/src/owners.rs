//! Whose files are, for a process that may give none away: the packaged unit has no `CAP_CHOWN`.

use nix::unistd::{Gid, setfsgid};

/// Does some work as a member of a group. A file may be given to a group by an owner who is one of its members, which
/// takes `CAP_SETGID` for this moment, and no more. Only this thread is one, and only meanwhile.
pub fn as_member<T>(group: Gid, work: impl FnOnce() -> T) -> T {
    let before = setfsgid(group);
    let done = work();
    setfsgid(before);
    done
}
