//! The question and the answers, the same for stateless and stateful.

use super::servers::ServiceServers;
use weir_wire::{FlowKey, TcpFlags};

/// A packet from a client, as far as Cheetah looks at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    /// The five-tuple, from client to service.
    pub flow: FlowKey,
    /// TCP flags.
    pub flags: TcpFlags,
    /// TSecr, if the packet has a timestamp option
    /// ([`find`](weir_wire::tcp_options::find)).
    pub echo: Option<u32>,
}

impl Question {
    /// TSecr where it means something: RFC 7323 section 3.2 says with ACK only.
    pub(super) fn valid_echo(&self) -> Option<u32> {
        self.echo.filter(|_| self.flags.intersects(TcpFlags::ACK))
    }
}

/// Why a packet was not decided by a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoCookie {
    /// It has no timestamp, or none that echoes anything: a client without timestamps, UDP, or a
    /// reset (which may leave the option out on any connection).
    NoTimestamp,
    /// The cookie names no server, or one that this service does not use: forged, or its server is
    /// gone, or the connection is older than the cookies.
    NotOurs,
    /// The cookie names a free slot or one of another flow: forged, or expired.
    NoSlot,
    /// The table has no room for another connection.
    TableFull,
}

/// What to do with a packet whose cookie is no good.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Forged {
    /// Send it to a backend that the scheduler picks, and remember nothing. That backend answers
    /// with a reset, so a client whose backend is gone hears of it at once. Forgers reach what
    /// anyone reaches with a SYN.
    #[default]
    Schedule,
    /// Drop it.
    Refuse,
}

/// Where a packet goes, and what the caller must do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// To the backend that the cookie names.
    Cookie {
        /// Backend number.
        backend: u16,
    },
    /// The first packet of a connection that can carry cookies. Nothing to remember; everything
    /// that the backend sends must carry `cookie` ([`Repair::outgoing`](super::Repair::outgoing)).
    First {
        /// Backend number.
        backend: u16,
        /// The cookie, right-aligned.
        cookie: u16,
    },
    /// To where the caller's own table says, for want of a cookie.
    Known {
        /// Backend number.
        backend: u16,
    },
    /// To a backend that the scheduler picked. The caller must remember it for this flow.
    Track {
        /// Backend number.
        backend: u16,
        /// Why no cookie leads there.
        why: NoCookie,
        /// What its timestamps must carry all the same, so that the stateless front finds this
        /// balancer again.
        cookie: Option<u16>,
    },
    /// To a backend that the scheduler picked, but this is no beginning of anything: do not
    /// remember it.
    Astray {
        /// Backend number.
        backend: u16,
        /// What is wrong with it.
        why: NoCookie,
    },
    /// Dropped.
    Refused {
        /// What is wrong with it.
        why: NoCookie,
    },
    /// The service has no backend that takes new connections, or its scheduler picked none of them.
    NoBackend,
}

impl Verdict {
    /// The backend, if there is one.
    pub fn backend(&self) -> Option<u16> {
        match *self {
            Self::Cookie { backend }
            | Self::First { backend, .. }
            | Self::Known { backend }
            | Self::Track { backend, .. }
            | Self::Astray { backend, .. } => Some(backend),
            Self::Refused { .. } | Self::NoBackend => None,
        }
    }
}

/// Picks a backend for a new connection. What is not among the serving counts as none.
pub(super) fn pick(
    servers: &ServiceServers,
    mut schedule: impl FnMut(&[u16]) -> Option<u16>,
) -> Option<u16> {
    schedule(servers.serving()).filter(|backend| servers.serving().binary_search(backend).is_ok())
}

/// The decision for a packet without a good cookie.
pub(super) fn without_cookie(
    question: &Question,
    why: NoCookie,
    forged: Forged,
    servers: &ServiceServers,
    known: impl FnOnce() -> Option<u16>,
    schedule: impl FnMut(&[u16]) -> Option<u16>,
) -> Verdict {
    // A first packet is placed even if the caller knows the flow: it is a new connection on old
    // ports. For a repeated SYN the caller's table says the same as before.
    let known = known().filter(|backend| {
        servers.uses(*backend) && (!question.flags.starts() || servers.serves(*backend))
    });
    if let Some(backend) = known {
        return Verdict::Known { backend };
    }
    let lost = matches!(why, NoCookie::NotOurs | NoCookie::NoSlot);
    if lost && forged == Forged::Refuse {
        return Verdict::Refused { why };
    }
    match pick(servers, schedule) {
        None => Verdict::NoBackend,
        Some(backend) if lost || question.flags.intersects(TcpFlags::RST) => {
            Verdict::Astray { backend, why }
        }
        Some(backend) => Verdict::Track { backend, why, cookie: None },
    }
}
