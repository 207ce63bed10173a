//! One agent for each network namespace: a name of the abstract sockets, which the namespace has of its own
//! and which goes with the process.

use crate::error::{Context, Error};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const NAME: &str = "weir-agent";
/// Longest wait for the other one's interfaces, which are only for a message.
const PATIENCE: Duration = Duration::from_secs(2);

/// The name is taken as long as this lives.
#[derive(Debug)]
pub(crate) struct Alone {
    listener: UnixListener,
    told: Arc<Mutex<String>>,
}

impl Alone {
    /// Takes the name, and tells whoever wants it later which interfaces are taken, or others when
    /// [`tells`](Self::tells) says so.
    pub(crate) fn claim(interfaces: &[String]) -> Result<Self, Error> {
        let what = || "claim the network namespace".to_owned();
        let name = SocketAddr::from_abstract_name(NAME).context(what)?;
        let listener = match UnixListener::bind_addr(&name) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let (pid, interfaces) = ask(&name).unwrap_or((0, "some interface".into()));
                return Err(Error::Running { pid, interfaces });
            }
            bound => bound.context(what)?,
        };
        let own = listener.try_clone().context(what)?;
        let told = Arc::new(Mutex::new(interfaces.join(", ")));
        let tells = Arc::clone(&told);
        // Ends when the listener is shut down.
        thread::spawn(move || {
            for caller in own.incoming() {
                let Ok(mut caller) = caller else { return };
                let told = tells.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let _ = caller.write_all(told.as_bytes());
            }
        });
        Ok(Self { listener, told })
    }

    /// It has these interfaces from now on.
    pub(crate) fn tells(&self, interfaces: &[String]) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = interfaces.join(", ");
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        use std::os::fd::AsRawFd;
        let _ =
            nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
    }
}

/// The process of the agent that runs in this network namespace, and its interfaces.
pub(crate) fn running() -> Option<(i32, String)> {
    ask(&SocketAddr::from_abstract_name(NAME).ok()?).ok()
}

fn ask(name: &SocketAddr) -> io::Result<(i32, String)> {
    let mut other = UnixStream::connect_addr(name)?;
    other.set_read_timeout(Some(PATIENCE))?;
    let pid = getsockopt(&other, PeerCredentials)?.pid();
    let mut interfaces = String::new();
    other.read_to_string(&mut interfaces)?;
    Ok((pid, interfaces))
}
