//! One check, and what its outcome says of the backend, or only of this host.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpSocket;
use tokio::time::timeout;
use tracing::warn;

use crate::neigh::{self, NeighError};

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A connection was established after so long.
    Connected(Duration),
    /// The backend refused, or did not answer.
    Failed(String),
    /// Nothing was learnt: this host had no descriptor, port, memory or interface to ask with.
    Unknown(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected(took) => write!(f, "connected in {}us", took.as_micros()),
            Self::Failed(why) => f.write_str(why),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// Connects once from `source` (`None`: what the kernel chooses). `interfaces` are our own that lead
/// to backends.
pub async fn ask(
    source: Option<IpAddr>,
    address: SocketAddr,
    limit: Duration,
    interfaces: &[String],
) -> Outcome {
    let start = Instant::now();
    let silent = match timeout(limit, connect(source, address)).await {
        Ok(Ok(())) => return Outcome::Connected(start.elapsed()),
        Ok(Err(error)) => {
            if let Some(lack) = lack(&error) {
                return Outcome::Unknown(lack);
            }
            let words = reason(&error);
            if !blames_the_way(&error) {
                return Outcome::Failed(words);
            }
            words
        }
        Err(_) => format!("no answer within {}", humantime::format_duration(limit)),
    };
    // No answer came. That says nothing if nothing was asked.
    let interfaces = interfaces.to_vec();
    let own = tokio::task::spawn_blocking(move || own_trouble(address.ip(), &interfaces)).await;
    match own {
        Ok(Some(trouble)) => Outcome::Unknown(trouble),
        _ => Outcome::Failed(silent),
    }
}

async fn connect(source: Option<IpAddr>, address: SocketAddr) -> io::Result<()> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Closing then sends a reset: a FIN would leave a TIME_WAIT here for every check.
    socket.set_zero_linger()?;
    if let Some(source) = source {
        // The port is chosen when the other end is known, so that one port serves many targets.
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
        socket.bind((source, 0).into())?;
    }
    socket.connect(address).await.map(drop)
}

/// What this host lacks, if that is what an error says.
pub(super) fn lack(error: &io::Error) -> Option<String> {
    let what = match error.raw_os_error()? {
        libc::EMFILE => "this process has no file descriptor left (ulimit -n)",
        libc::ENFILE => "this host has no file descriptor left (fs.file-max)",
        libc::ENOBUFS | libc::ENOMEM => "this host has no memory for a socket",
        libc::EADDRNOTAVAIL | libc::EADDRINUSE | libc::EAGAIN => {
            "no local port or address is free to connect from"
        }
        libc::ENETDOWN | libc::ENODEV => "the own interface is down",
        libc::EPERM | libc::EACCES => "this host itself forbids it (firewall or prohibited route)",
        _ => return None,
    };
    Some(what.to_owned())
}

/// Whether an error may as well come from this host's own interface as from the backend.
fn blames_the_way(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error.kind(), HostUnreachable | NetworkUnreachable | TimedOut)
}

/// What is wrong with the own interface that leads to an address. Without a route, with any of
/// those given: an interface takes its routes with it.
fn own_trouble(address: IpAddr, interfaces: &[String]) -> Option<String> {
    let idle = |interface: &neigh::Interface| {
        let what = if interface.up { "has no carrier" } else { "is down" };
        (!interface.running).then(|| format!("the own interface {} {what}", interface.name))
    };
    match neigh::route(address) {
        Ok(route) => idle(&neigh::interface_by_index(route.ifindex).ok()?),
        Err(NeighError::NoRoute { .. }) => {
            interfaces.iter().find_map(|name| match neigh::interface(name) {
                Ok(interface) => idle(&interface),
                Err(NeighError::NoInterface { .. }) => {
                    Some(format!("the own interface {name} is not there"))
                }
                Err(_) => None,
            })
        }
        Err(_) => None,
    }
}

pub(super) fn reason(error: &io::Error) -> String {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut,
    };
    match error.kind() {
        ConnectionRefused => "connection refused".to_owned(),
        ConnectionReset => "connection reset".to_owned(),
        HostUnreachable => "host unreachable".to_owned(),
        NetworkUnreachable => "network unreachable: no route".to_owned(),
        TimedOut => "no answer: the kernel gave up".to_owned(),
        _ => error.to_string(),
    }
}

/// Raises the limit on open files as far as the system lets this process: each check has a socket.
/// Failure is no error, and is logged.
pub fn raise_limits() {
    let highest = std::fs::read_to_string("/proc/sys/fs/nr_open");
    let highest = highest.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1 << 20);
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    // Beyond the hard limit with privileges; else up to it.
    let raised = [highest, hard].into_iter().any(|limit| {
        soft >= limit || setrlimit(Resource::RLIMIT_NOFILE, limit, limit.max(hard)).is_ok()
    });
    if !raised {
        warn!(soft, hard, "the limit on open files cannot be raised");
    }
}
