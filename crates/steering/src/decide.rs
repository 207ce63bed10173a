//! The decision: what a method is asked of a packet, and what it answers.
//!
//! ```text
//! packet ──> Question { service, key, hash, signals, now } ──┐
//! table (read only) ─────────────────────────────────────────┼──> Decision { backend, new, cookie, row, why }
//! Memory (pending, pins, connections, …; asked and told) ────┘
//! ```
//! Everything that a decision reads beside the table, and everything that it leaves behind, goes
//! through [`Memory`]. So the same function steers packets, is the oracle of the C program, and
//! explains itself to an operator: for that it is given a [`Rehearsal`](crate::Rehearsal), which
//! asks the real memory and changes nothing.

use crate::ids::{BackendId, ServiceId};
use crate::memory::Memory;
use crate::registry::Image;
use crate::state::{ServiceState, StateKey};
use crate::table::Flags;
use std::fmt;
use std::sync::Arc;
use weir_hash::{HashKey, Key};
use weir_lookup::{Work, vectorised};
use weir_wire::quic::Id;
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags};

/// What a packet says beside its flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Signals {
    /// It may start a flow: a SYN without ACK, or a datagram of a flow not seen recently.
    pub starts: bool,
    /// It may end one: FIN or RST.
    pub ends: bool,
    /// It is a RST.
    pub reset: bool,
    /// It has the ACK flag.
    pub acks: bool,
    /// TSecr, if the packet has a TCP timestamp option (RFC 7323 section 3).
    pub echo: Option<u32>,
    /// The destination connection id, if it is a QUIC packet (RFC 9000 section 5.1). A plane gives
    /// the bytes that stand in its place in any datagram; of a short header, 20 at most, of which
    /// the id is the beginning.
    pub connection_id: Option<Id>,
    /// It is an ICMP error that quotes a packet which the flow's backend has sent. It goes to that
    /// backend, as a packet in the middle of the flow would, and begins nothing; `echo` is then the
    /// TSval of the quoted packet, which is what the client would have echoed.
    pub quoted: bool,
    /// Of a service with several addresses, which one the packet is for: what the destination port of its
    /// state is XORed with, so that connections of one client from one of its ports to two addresses
    /// have two states. Nothing with affinity by client.
    pub salt: u16,
}

impl Signals {
    /// A packet in the middle of its flow.
    pub const LATER: Self = Self {
        starts: false,
        ends: false,
        reset: false,
        acks: true,
        echo: None,
        connection_id: None,
        quoted: false,
        salt: 0,
    };

    /// The first packet of a flow.
    pub const FIRST: Self = Self { starts: true, acks: false, ..Self::LATER };

    /// By its TCP flags.
    pub fn of_tcp(flags: TcpFlags) -> Self {
        Self {
            starts: flags.starts(),
            ends: flags.ends(),
            reset: flags.intersects(TcpFlags::RST),
            acks: flags.intersects(TcpFlags::ACK),
            ..Self::LATER
        }
    }

    /// With the TSecr of its timestamp option, if it has one.
    pub fn with_echo(self, echo: Option<u32>) -> Self {
        Self { echo, ..self }
    }

    /// TSecr where it means something: RFC 7323 section 3.2 says with ACK only.
    pub fn valid_echo(&self) -> Option<u32> {
        self.echo.filter(|_| self.acks)
    }
}

/// What a method is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<K = StateKey> {
    /// The service that the packet is for.
    pub service: ServiceId,
    /// What tells its flow from the service's others: a [`StateKey`], after affinity; or in
    /// benches and simulations a number.
    pub key: K,
    /// The key's hash under the table's hash key.
    pub hash: u64,
    /// What else the packet says.
    pub signals: Signals,
    /// Seconds, from any fixed moment on.
    pub now: u32,
}

impl<K> Question<K> {
    /// About a packet in the middle of its flow, of service 0.
    #[inline(always)]
    pub fn later(key: K, hash: u64) -> Self {
        Self { service: ServiceId(0), key, hash, signals: Signals::LATER, now: 0 }
    }

    /// About the first packet of a flow, of service 0.
    #[inline(always)]
    pub fn first(key: K, hash: u64) -> Self {
        Self { signals: Signals::FIRST, ..Self::later(key, hash) }
    }
}

impl Question {
    /// The state that the flow has or would have.
    #[inline(always)]
    pub fn state(&self) -> ServiceState {
        ServiceState { service: self.service, key: self.key }
    }
}

/// The answer of a method about one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Where the packet goes, or why it is dropped.
    pub backend: Result<BackendId, Reason>,
    /// Whether the flow counts as new at that backend.
    pub new: bool,
    /// What the timestamps of everything that the backend sends must carry in their upper half,
    /// right-aligned.
    pub cookie: Option<u16>,
    /// The TSecr that the backend must get instead of the packet's, which has a cookie in it.
    pub echo: Option<u32>,
    /// The row of the table that the flow's hash led to, if one was looked at: Concury's Dcode,
    /// or the place in a Maglev table.
    pub row: Option<u32>,
    /// How it came about.
    pub why: Why,
}

impl Decision {
    /// To the backend that an entry of a table names; nowhere if it names none.
    #[inline(always)]
    pub fn to(slot: u16, why: Why) -> Self {
        let backend = BackendId::of_slot(slot).ok_or(Reason::NoBackend);
        Self { backend, new: false, cookie: None, echo: None, row: None, why }
    }

    /// The packet is dropped, for this reason.
    #[inline(always)]
    pub fn drop(reason: Reason, why: Why) -> Self {
        Self { backend: Err(reason), new: false, cookie: None, echo: None, row: None, why }
    }

    /// The flow counts as new.
    #[inline(always)]
    pub fn new_if(self, new: bool) -> Self {
        Self { new, ..self }
    }

    /// By way of this row.
    #[inline(always)]
    pub fn by_row(self, row: u32) -> Self {
        Self { row: Some(row), ..self }
    }

    /// As bursts answer: the backend's number, or [`NO_BACKEND`](crate::NO_BACKEND).
    #[inline(always)]
    pub fn slot(&self) -> u16 {
        BackendId::to_slot(self.backend.ok())
    }
}

/// Every way in which a decision comes about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// The table's row names the backend.
    Row,
    /// The row is kept for a backend that gets no new flows, and the packet starts none.
    Reserved,
    /// The row is kept for a backend that gets no new flows, so the new flow was placed again.
    PlacedAgain,
    /// The flow is in the pending table, which comes first.
    Pending,
    /// The flow is pinned: its first packet may be repeated, and its row is reserved.
    Pinned,
    /// The connection table has the flow.
    Tracked,
    /// The connection table did not have the flow; the row placed it, and now it has.
    NewlyTracked,
    /// The flow lives elsewhere than its row points; the table says so.
    Exception,
    /// The next table, which is not in force yet, has the flow as an exception: it may have
    /// started before this table was in force.
    Prepared,
    /// The packet's cookie names the backend.
    Cookie,
    /// A scheduler picked the backend for a first packet; a cookie will lead the others there.
    Scheduled,
    /// No cookie, and the caller's table knows the flow.
    Known(NoCookie),
    /// No cookie, and a first packet: a scheduler picked, and the caller's table remembers.
    Remembered(NoCookie),
    /// No cookie, and no first packet: a scheduler picked a backend, which will reset it.
    Astray(NoCookie),
    /// Dropped: a cookie that leads nowhere.
    Refused(NoCookie),
    /// Dropped: the row is changing hands, and a flow must not start, or cannot be told.
    InTransition,
    /// Dropped: the balancer has no table that it may use.
    NoTable,
    /// Dropped: nobody takes it.
    NoBackend,
    /// Dropped: it would have had to be noted as pending, and there is no room.
    PendingFull,
    /// Dropped: an ICMP error quotes a packet of a flow that nobody knows.
    UnknownQuote,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row => f.write_str("the table decides"),
            Self::Reserved => {
                f.write_str("the table decides, and its row is kept for flows that exist")
            }
            Self::PlacedAgain => {
                f.write_str("a new flow on a reserved row, which is placed again by its hash")
            }
            Self::Pending => f.write_str(
                "the flow started during an update (or on a reserved row) and is in the pending \
                 table, which comes first",
            ),
            Self::Pinned => f.write_str(
                "the flow is pinned: its first packet may be repeated, and its row is reserved",
            ),
            Self::Tracked => f.write_str("the connection table has the flow"),
            Self::NewlyTracked => f.write_str("the connection table does not have the flow"),
            Self::Exception => f.write_str("the flow is an exception of the table"),
            Self::Prepared => f.write_str("the flow is an exception of the table that comes next"),
            Self::Cookie => f.write_str("the packet's cookie names the backend"),
            Self::Scheduled => f.write_str("a new flow, for which the scheduler picks"),
            Self::Known(why) => write!(f, "{why}, and the flow is known without one"),
            Self::Remembered(why) => {
                write!(f, "{why}; a new flow, for which the scheduler picks, and remembered")
            }
            Self::Astray(why) => {
                write!(f, "{why}; the packet belongs to no connection, and any backend resets it")
            }
            Self::Refused(why) => write!(f, "{why}, and the service drops such packets"),
            Self::InTransition => f.write_str("its row is changing hands; the packet is dropped"),
            Self::NoTable => f.write_str("there is no table to decide by; the packet is dropped"),
            Self::NoBackend => f.write_str("no backend serves; the packet is dropped"),
            Self::PendingFull => {
                f.write_str("the pending table has no room to note it; the packet is dropped")
            }
            Self::UnknownQuote => {
                f.write_str("an ICMP error about a connection that is not known; it is dropped")
            }
        }
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

impl fmt::Display for NoCookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTimestamp => "the packet carries no cookie",
            Self::NotOurs => "the packet's cookie names no server of this service",
            Self::NoSlot => "the packet's cookie names no connection of this flow",
            Self::TableFull => "the table of connections has no room for a cookie",
        })
    }
}

/// The lookup face of a method, which every table has: from a question and the memory to a
/// decision.
///
/// `K` is what tells flows apart: [`StateKey`] in the data planes, `u64` in benches and
/// simulations. The code is the same.
pub trait Decide<K> {
    /// The key that flows are hashed under.
    fn hash_key(&self) -> &HashKey;

    /// Decides one packet. What it asks and leaves behind goes through `memory`.
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision;

    /// Decides packets that neither start nor end a flow and carry no cookie, with the memory
    /// reads of many under way at once: backends, or [`NO_BACKEND`](crate::NO_BACKEND). The
    /// answers and the memory afterwards are those of [`decide`](Self::decide), one after the
    /// other.
    ///
    /// # Panics
    /// If the two slices differ in length.
    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M)
    where
        K: Key,
    {
        assert_eq!(keys.len(), out.len(), "one answer per packet");
        for (key, out) in keys.iter().zip(out) {
            let hash = key.hash(self.hash_key());
            *out = self.decide(&Question::later(*key, hash), memory).slot();
        }
    }

    /// Whether the memory may hold anything of a flow that ends.
    #[inline(always)]
    fn may_remember(&self, question: &Question<K>) -> bool {
        let _ = question;
        true
    }

    /// Bytes that packets may read, from the allocations.
    fn bytes(&self) -> usize;
}

/// Packets whose hashes are worked out in one go.
pub(crate) const HASHED: usize = 64;

/// The hashes of at most [`HASHED`] flows, by their numbers.
#[inline]
pub(crate) fn hash_burst<K: Key>(key: &HashKey, flows: &[K], hashes: &mut [u64; HASHED]) {
    vectorised(Hashes { key: *key, flows, hashes });
}

/// The work of [`hash_burst`].
struct Hashes<'a, K> {
    key: HashKey,
    flows: &'a [K],
    hashes: &'a mut [u64; HASHED],
}

impl<K: Key> Work for Hashes<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { key, flows, hashes } = self;
        for (flow, hash) in flows.iter().zip(hashes) {
            *hash = flow.hash(&key);
        }
    }
}

/// A shared table.
impl<K, T: Decide<K>> Decide<K> for Arc<T> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        (**self).hash_key()
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        (**self).decide(question, memory)
    }

    #[inline(always)]
    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M)
    where
        K: Key,
    {
        (**self).decide_burst(keys, out, memory);
    }

    fn bytes(&self) -> usize {
        (**self).bytes()
    }
}

/// The question that a packet with these signals puts to a published table. A datagram starts a
/// flow if the method wants to know of first ones and the memory has not seen it recently.
#[inline]
pub fn ask(
    image: &Image,
    service: ServiceId,
    flow: &FlowKey,
    signals: Signals,
    now: u32,
    memory: &mut impl Memory,
) -> Question {
    let header = image.header();
    let key = if header.flags().has(Flags::CLIENT) {
        StateKey::of_client(flow)
    } else {
        StateKey::of_flow_to(flow, signals.salt)
    };
    let hash = key.hash(&header.key);
    let mut question = Question { service, key, hash, signals, now };
    if flow.protocol == Protocol::Udp && !signals.quoted {
        let starts = image.method().needs().first_datagrams && !memory.seen_before(&question);
        question.signals = Signals {
            connection_id: signals.connection_id,
            salt: signals.salt,
            ..if starts { Signals::FIRST } else { Signals::LATER }
        };
    }
    question
}

/// Decides a packet of a service: the whole lookup face, as the BPF program does it.
pub fn decide(
    image: &Image,
    service: ServiceId,
    flow: &FlowKey,
    flags: TcpFlags,
    memory: &mut impl Memory,
) -> Decision {
    decide_by(image, service, flow, Signals::of_tcp(flags), memory)
}

/// The same by all that the packet says.
pub fn decide_by(
    image: &Image,
    service: ServiceId,
    flow: &FlowKey,
    signals: Signals,
    memory: &mut impl Memory,
) -> Decision {
    let question = ask(image, service, flow, signals, memory.now(), memory);
    image.decide(&question, memory)
}
