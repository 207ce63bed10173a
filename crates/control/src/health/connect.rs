//! One check, and what its outcome says of the backend, or only of this host.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::error::Elapsed;
use tokio::time::timeout_at;
use tracing::warn;

use super::answer::{self, Good, Trouble};
use super::{Way, grpc, http, script, stack, tls, told};
use crate::config::{Spoken, What};
use crate::frames::{Frames, Upper};
use crate::neigh::{self, NeighError};

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The backend is well.
    Passed(Passed),
    /// The backend refused, or did not answer, or not as it should.
    Failed(String),
    /// Nothing was learnt: this host had no descriptor, port, memory or interface to ask with.
    Unknown(String),
}

/// A check that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// What the backend did, for example `connected`.
    pub said: String,
    /// After how long.
    pub took: Duration,
    /// When its certificate ends, if it has shown one, in seconds since 1970.
    pub certificate_ends: Option<i64>,
    /// The weight that it says is its own.
    pub spoken: Option<Spoken>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(Passed { said, took, .. }) => {
                write!(f, "{said} in {}us", took.as_micros())
            }
            Self::Failed(why) => f.write_str(why),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// Room for checks that are under way at once, in units of about 16 KiB of this process' memory. Whoever
/// finds none waits, and the time of his check begins later.
static ROOM: Semaphore = Semaphore::const_new(4096);

/// What a check may take of that room: buffers and keys; of a script, a process.
fn room(what: &What) -> u32 {
    match what {
        What::Tcp | What::Dns(_) | What::Udp(_) | What::Agent => 1,
        What::Http(_) => 4,
        // HTTP/2 has windows and tables of headers.
        What::Grpc(_) | What::Https { .. } => 8,
        What::Grpcs { .. } => 12,
        What::Script(_) => 128,
    }
}

/// What a stack of its own may take besides.
const STACK: u32 = 6;

/// Asks once from `source` (`None`: what the kernel chooses). `interfaces` are our own that lead
/// to backends; `way`: that of a service's packets, if the check goes by it. At once 4096 checks are under way at most, or 1024 by HTTP, 512 by HTTPS, 32 scripts.
pub async fn ask(
    source: Option<IpAddr>,
    address: SocketAddr,
    what: &What,
    limit: Duration,
    (interfaces, way): (&[String], Option<(&Way, &Frames)>),
) -> Outcome {
    // The semaphore is never closed.
    let _room = ROOM.acquire_many(room(what) + if way.is_some() { STACK } else { 0 }).await;
    let start = Instant::now();
    let end = tokio::time::Instant::now() + limit;
    let shown = humantime::format_duration(limit);
    let asked = match what {
        What::Tcp | What::Http(_) | What::Https { .. } | What::Grpc(_) | What::Grpcs { .. } => {
            by_connection(source, address, (what, limit), end, way).await
        }
        What::Dns(dns) => silence(timeout_at(end, answer::dns(source, address, dns, way)).await),
        What::Udp(udp) => {
            silence(timeout_at(end, answer::exchange(source, address, udp, way)).await)
        }
        What::Agent => told::ask(address.ip()),
        What::Script(script) => {
            timeout_at(end, script::run(script, address)).await.unwrap_or_else(|_| {
                Err(Trouble::Answer(format!("the script took longer than {shown}")))
            })
        }
    };
    let silent = match asked {
        Ok(Good { said, certificate_ends, spoken }) => {
            let took = start.elapsed();
            return Outcome::Passed(Passed { said, took, certificate_ends, spoken });
        }
        Err(Trouble::Answer(words)) => return Outcome::Failed(words),
        Err(Trouble::Host(words)) => return Outcome::Unknown(words),
        Err(Trouble::Io(error)) => {
            if let Some(lack) = lack(&error) {
                return Outcome::Unknown(lack);
            }
            if !blames_the_way(&error) {
                return Outcome::Failed(reason(&error));
            }
            // An error without a number is ours.
            match error.raw_os_error() {
                Some(_) => reason(&error),
                None if way.is_some() => {
                    format!("no answer within {shown}, asked by the way of the service's packets")
                }
                None => format!("no answer within {shown}"),
            }
        }
    };
    // No answer came. That says nothing if nothing was asked.
    let interfaces = interfaces.to_vec();
    let own = tokio::task::spawn_blocking(move || own_trouble(address.ip(), &interfaces)).await;
    match own {
        Ok(Some(trouble)) => Outcome::Unknown(trouble),
        _ => Outcome::Failed(silent),
    }
}

fn silence(answer: Result<Result<Good, Trouble>, Elapsed>) -> Result<Good, Trouble> {
    answer.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

/// Opens a connection, as this host does or by the way of a service's packets, and asks over it.
async fn by_connection(
    source: Option<IpAddr>,
    address: SocketAddr,
    (what, limit): (&What, Duration),
    end: tokio::time::Instant,
    way: Option<(&Way, &Frames)>,
) -> Result<Good, Trouble> {
    let well = |asked: Result<Result<Good, Trouble>, Elapsed>| {
        asked.unwrap_or_else(|_| {
            let shown = humantime::format_duration(limit);
            Err(Trouble::Answer(format!("connected, but not well within {shown}")))
        })
    };
    let Some((way, frames)) = way else {
        let opened = timeout_at(end, answer::connect(source, address)).await;
        let stream = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        return well(timeout_at(end, by_stream(stream, address, what)).await);
    };
    let open = async { stack::connect(way.find(address, Upper::Tcp, frames).await?).await };
    let opened = timeout_at(end, open).await;
    let stream = opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
    let service = (way.vip, address.port()).into();
    well(timeout_at(end, by_stream(stream, service, what)).await)
}

/// What is asked over a connection.
async fn by_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    what: &What,
) -> Result<Good, Trouble> {
    match what {
        What::Http(http) => http::ask(stream, address, 80, http).await,
        What::Https { http, tls } => {
            let (stream, certificate_ends) = tls::shake(stream, address.ip(), tls, None).await?;
            let good = http::ask(stream, address, 443, http).await?;
            Ok(Good { certificate_ends, ..good })
        }
        What::Grpc(asked) => grpc::ask(stream, address, "http", asked).await,
        What::Grpcs { grpc: asked, tls } => {
            let shaken = tls::shake(stream, address.ip(), tls, Some(b"h2")).await?;
            let (stream, certificate_ends) = shaken;
            let good = grpc::ask(stream, address, "https", asked).await?;
            Ok(Good { certificate_ends, ..good })
        }
        _ => Ok(Good::new("connected")),
    }
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
