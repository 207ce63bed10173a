//! The control socket: how it is made, whose it is, and that it stays where commands look for it.

use super::guard::Common;
use crate::owners::as_member;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::warn;
use weir_host::files;

/// How often it is looked whether it is still there.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What is said of it in the status, for those who ask by TLS or look at the page.
const SOCKET: &str = "control socket";

/// Makes the socket. Only the owner of the process may use it, until the configuration is followed.
///
/// # Errors
/// If it cannot be made.
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    // The run directory is locked by this process, so a socket that is there is a dead one.
    let _ = fs::remove_file(socket);
    bind(socket).map_err(|error| {
        let why = explained(socket, error);
        io::Error::new(why.kind(), format!("{}: {why}", socket.display()))
    })
}

/// Looks whether the socket can be made; there is none afterwards.
///
/// # Errors
/// Why it cannot be, and what to do.
pub(crate) fn may_listen(socket: &Path) -> io::Result<()> {
    // As above.
    let _ = fs::remove_file(socket);
    let made = as_owners(|| std::os::unix::net::UnixListener::bind(socket));
    made.map_err(|error| explained(socket, error))?;
    fs::remove_file(socket)
}

/// Why a socket cannot be made, with what is in its place.
fn explained(socket: &Path, error: io::Error) -> io::Error {
    let why = match fs::symlink_metadata(socket) {
        Ok(about) if about.is_dir() => "a directory is there; remove it, or move it away".into(),
        Ok(_) => format!("{error}; remove what is there"),
        Err(_) => return error,
    };
    io::Error::new(error.kind(), why)
}

/// Makes the socket where there is nothing.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    as_owners(|| UnixListener::bind(socket))
}

/// Makes a socket with the mode that it is born with: between bind and chmod nobody else may slip in.
fn as_owners<L>(make: impl FnOnce() -> io::Result<L>) -> io::Result<L> {
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let listener = make();
    nix::sys::stat::umask(before);
    listener
}

/// Lets the members of a group use the socket, too, or nobody but its owner.
fn share(socket: &Path, group: Option<&str>) -> io::Result<()> {
    let Some(group) = group else { return files::share_socket(socket, 0o600, None) };
    let found = nix::unistd::Group::from_name(group).map_err(io::Error::from)?;
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no group {group}"));
    let gid = found.ok_or_else(missing)?.gid;
    as_member(gid, || files::share_socket(socket, 0o660, Some(gid.as_raw())))
}

/// Gives the socket to whom the configuration says, and says so where that cannot be.
pub(super) fn share_as(socket: &Path, group: Option<&str>, common: &Common) {
    let shared = share(socket, group);
    if let Err(error) = &shared {
        warn!(socket = %socket.display(), %error, "the socket stays its owner's");
    }
    let why = |error| format!("the socket stays its owner's (api.socket_group): {error}");
    *common.unshared.lock().unwrap_or_else(PoisonError::into_inner) = shared.err().map(why);
}

/// The place of the socket in the file system. Somebody may clear it away there, and no command would find the
/// instance any more.
pub(super) struct Door {
    socket: PathBuf,
    /// Device and number of the socket that was made there. While it is listened at, no other file has that number.
    made: Option<(u64, u64)>,
    looks: Interval,
    /// It was said that it cannot be made again.
    said: bool,
    common: Arc<Common>,
}

impl Door {
    /// Of a socket that has just been made.
    pub fn new(socket: PathBuf, common: Arc<Common>) -> Self {
        let made = number_of(&socket).ok();
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { socket, made, looks, said: false, common }
    }

    /// Waits until the socket is gone from its place; returns the one that was made there again.
    pub async fn made_again(&mut self) -> UnixListener {
        loop {
            self.looks.tick().await;
            if let Some(listener) = self.look() {
                return listener;
            }
        }
    }

    fn look(&mut self) -> Option<UnixListener> {
        let made = match number_of(&self.socket) {
            Ok(there) if Some(there) == self.made => {
                self.is_well();
                return None;
            }
            // It may be another process's, which somebody listens at.
            Ok(_) => Err("something else is there now; remove it".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make(),
            Err(error) => Err(error.to_string()),
        };
        match made {
            Ok(listener) => {
                let socket = self.socket.display();
                warn!(%socket, "the control socket was gone from its place, and was made again");
                self.is_well();
                Some(listener)
            }
            Err(why) => {
                let socket = self.socket.display();
                if !self.said {
                    warn!(%socket, %why, "no command finds this instance: its socket is gone; tried again");
                    self.said = true;
                }
                let why = format!("no {SOCKET} at {socket}: {why}; tried again");
                self.common.say_of(SOCKET, Some(why));
                None
            }
        }
    }

    fn make(&mut self) -> Result<UnixListener, String> {
        if let Some(folder) = self.socket.parent().filter(|folder| !folder.is_dir()) {
            // As it was made at the start.
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(folder)
                .map_err(|error| error.to_string())?;
            warn!(run_dir = %folder.display(), "the run directory was gone, and was made again");
        }
        // What somebody else has made there in between stays.
        let listener = bind(&self.socket).map_err(|error| error.to_string())?;
        self.made = number_of(&self.socket).ok();
        let group = self.common.front.borrow().api.socket_group.clone();
        share_as(&self.socket, group.as_deref(), &self.common);
        Ok(listener)
    }

    fn is_well(&mut self) {
        if self.said {
            self.said = false;
            self.common.say_of(SOCKET, None);
        }
    }
}

/// Who ends takes its own socket away, and no other.
impl Drop for Door {
    fn drop(&mut self) {
        if self.made.is_some() && number_of(&self.socket).ok() == self.made {
            let _ = fs::remove_file(&self.socket);
        }
    }
}

/// What tells a file from every other one; a link is not followed.
fn number_of(path: &Path) -> io::Result<(u64, u64)> {
    let about = fs::symlink_metadata(path)?;
    Ok((about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Front;
    use std::os::unix::net::UnixListener as Listener;
    use tokio::sync::watch;

    #[tokio::test]
    async fn a_socket_that_is_gone_is_made_again_and_anothers_stays() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("run");
        fs::create_dir(&folder).unwrap();
        let socket = folder.join("weir.sock");
        let (_front, front) = watch::channel(Front::default());
        let common = Arc::new(Common::new(home.path(), front));
        let _first = listen(&socket).unwrap();
        let mut door = Door::new(socket.clone(), common);
        assert!(door.look().is_none(), "it is there");
        fs::remove_file(&socket).unwrap();
        let _second = door.look().expect("it is made again");
        assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o7777, 0o600);
        assert!(door.look().is_none());
        fs::remove_dir_all(&folder).unwrap();
        let _third = door.look().expect("with its folder");
        // What another process has made there is not taken away, neither now nor at the end.
        fs::remove_file(&socket).unwrap();
        let others = Listener::bind(&socket).unwrap();
        assert!(door.look().is_none() && door.look().is_none());
        assert!(door.said);
        drop(others);
        fs::remove_file(&socket).unwrap();
        let _fourth = door.look().expect("there is room again");
        assert!(!door.said);
        fs::remove_file(&socket).unwrap();
        let _others = Listener::bind(&socket).unwrap();
        drop(door);
        assert!(socket.exists());
    }

    #[tokio::test]
    async fn what_is_in_the_place_of_a_socket_is_said() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("weir.sock");
        assert!(may_listen(&socket).is_ok() && !socket.exists());
        // One that a dead process has left.
        drop(Listener::bind(&socket).unwrap());
        assert!(may_listen(&socket).is_ok() && !socket.exists());
        fs::create_dir(&socket).unwrap();
        let said = may_listen(&socket).unwrap_err().to_string();
        assert_eq!(said, "a directory is there; remove it, or move it away");
        let said = listen(&socket).unwrap_err().to_string();
        let place = socket.to_str().unwrap();
        assert!(said.starts_with(place) && said.contains("a directory"), "{said}");
    }

    #[tokio::test]
    async fn the_own_socket_goes_at_the_end() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("weir.sock");
        let (_front, front) = watch::channel(Front::default());
        let common = Arc::new(Common::new(home.path(), front));
        let _listener = listen(&socket).unwrap();
        drop(Door::new(socket.clone(), common));
        assert!(!socket.exists());
    }
}
