//! A plane beside the program in the kernel: it has the same memory, and decides bursts of segments in the
//! middle of connections, which need nothing but to read it. What comes first, what ends a connection, what
//! is not plain, and what this plane would have to remember, is the program's; a frame of that kind that
//! comes here nevertheless, as a table has just been changed, is given back to it.
//!
//! ```text
//!             front program ──> AF_XDP ──> Beside::process ──> AF_XDP ──> backend
//!                   │                           │
//!                   └──> weir_balance <─────────┘ rarely
//! ```

mod card;
mod decide;
mod offloaded;
mod run;
mod veth;
mod ways;

pub use card::{Card, Decides, Ruled, RulesOf, Wanted};
pub use offloaded::Offloaded;
pub use run::{RunError, Setup, run, sockets};
pub use weir_offload::Choice;

use crate::parse::{Heads, Plain4, SHORTEST_IPV6, plain6};
use crate::ports::{BURST, Fate, Frame};
use decide::{Looked, Picks, decide};
use ways::Ways;
use weir_dataplane::user::UserMemory;
use weir_hash::Key;
use weir_lookup::prefetch;
use weir_steering::{BackendId, StateKey};
use weir_wire::{FlowKey, Protocol, map_address};

/// The MAC address in a word of eight bytes.
const MAC: u64 = 0xffff_ffff_ffff;

/// The plane: what it keeps between bursts is found out again if it is lost.
#[derive(Default)]
pub struct Beside {
    ways: Ways,
    heads: Box<Heads>,
    ipv4: Box<Plain4>,
    picks: Picks,
    scratch: Vec<u8>,
    counted: Counted,
}

/// What went to backends in a burst: packets and bytes by their numbers, and who has any. It is added to the shared
/// memory once, so that several threads write there by the burst and not by the packet.
#[derive(Default)]
struct Counted {
    lanes: Vec<(u64, u64)>,
    some: Vec<BackendId>,
}

impl Counted {
    fn add(&mut self, backend: BackendId, bytes: u32) {
        let at = backend.index();
        if at >= self.lanes.len() {
            self.lanes.resize(at + 1, (0, 0));
        }
        let (packets, all) = &mut self.lanes[at];
        if *packets == 0 {
            self.some.push(backend);
        }
        *packets += 1;
        *all += u64::from(bytes);
    }

    fn give(&mut self, shared: &UserMemory) {
        for backend in self.some.drain(..) {
            let (packets, bytes) = std::mem::take(&mut self.lanes[backend.index()]);
            shared.add_to_lane(backend, packets, bytes);
        }
    }
}

/// A packet on its way to a table.
#[derive(Clone, Copy)]
struct Plain {
    /// Where it goes: the address as two words of memory.
    to: [u64; 2],
    /// The port as on the wire, and the protocol << 16.
    port_protocol: u32,
    key: StateKey,
    /// From the IP header on.
    bytes: u32,
}

impl Beside {
    /// Time has passed: what is kept of backends is looked at again, which asks the kernel.
    pub fn refresh(&mut self) {
        self.ways.refresh();
    }

    /// Decides a burst of frames, which are in `memory`, by what `shared` says now, and writes into each what
    /// becomes of it: [`Fate::Send`] by the interface of its device, of which `sends_by` knows, or
    /// [`Fate::Pass`] if the program in the kernel is to decide it, as it came.
    ///
    /// # Panics
    /// With more than [`BURST`] frames, or with one outside of the memory.
    pub fn process(
        &mut self,
        shared: &UserMemory,
        sends_by: &dyn Fn(u32) -> bool,
        memory: &mut [u8],
        frames: &mut [Frame],
    ) {
        assert!(frames.len() <= BURST, "{} frames", frames.len());
        for frame in &*frames {
            prefetch(memory, frame.at as usize);
        }
        shared.enter();
        let mut plain = [None; BURST];
        self.classify(shared, memory, frames, &mut plain);
        let mut looked = [Looked::default(); BURST];
        self.picks.begin();
        for (plain, looked) in plain.iter().zip(&mut looked).take(frames.len()) {
            if let Some(plain) = plain {
                *looked = self.picks.look(shared, plain);
            }
        }
        let slots = decide(shared, &self.picks, &mut looked[..frames.len()], &plain);
        for (at, frame) in frames.iter_mut().enumerate() {
            frame.fate = Fate::Pass;
            let (Some(backend), Some(plain)) = (slots[at], plain[at]) else { continue };
            let Some(way) = self.ways.of(shared, backend) else { continue };
            if way.take(memory, frame, plain.bytes, sends_by, &mut self.scratch) {
                self.counted.add(backend, plain.bytes);
            }
        }
        self.counted.give(shared);
        shared.leave();
    }

    /// Finds the packets that are plain and for us.
    fn classify(
        &mut self,
        shared: &UserMemory,
        memory: &[u8],
        frames: &[Frame],
        plain: &mut [Option<Plain>; BURST],
    ) {
        let head = |frame: &Frame| memory.get(frame.at as usize..)?.first_chunk();
        for (at, frame) in frames.iter().enumerate() {
            self.heads.read(at, head(frame), frame.len);
        }
        self.heads.look(frames.len(), (0, 0), &mut self.ipv4);
        let own = shared.own_macs();
        let is_own = |word: u64| own[0] == 0 || own.contains(&(word & MAC));
        let tcp = u32::from(Protocol::Tcp.number()) << 16;
        for (at, frame) in frames.iter().enumerate() {
            let mac = memory.get(frame.at as usize..).and_then(<[u8]>::first_chunk);
            if !mac.is_some_and(|mac| is_own(u64::from_le_bytes(*mac))) {
                continue;
            }
            if self.ipv4.plain[at] != 0 {
                let (word, to) = (self.ipv4.words[at], self.ipv4.to[at]);
                let key = crate::parse::key_of_word(word);
                let to_address =
                    map_address(std::net::Ipv4Addr::from((to as u32).to_le_bytes()).into());
                plain[at] = Some(Plain {
                    to: words(&to_address),
                    port_protocol: (to >> 32) as u32 & 0xffff | tcp,
                    key,
                    bytes: self.ipv4.bytes[at],
                });
            } else if frame.len as usize >= SHORTEST_IPV6
                && let Some(head) = memory.get(frame.at as usize..).and_then(<[u8]>::first_chunk)
                && let Some(found) = plain6(head, frame.len)
            {
                let port = u32::from(found.key.dst_port.to_be());
                let (to, key, bytes) = (found.to, found.key, found.bytes);
                plain[at] = Some(Plain { to, port_protocol: port | tcp, key, bytes });
            }
        }
    }
}

impl Plain {
    /// The key of its state: of a client, without ports.
    fn state(&self, client: bool) -> StateKey {
        let mut key = self.key;
        if client {
            (key.src_port, key.dst_port) = (0, 0);
        }
        key
    }

    /// A packet of a flow.
    fn of(flow: &FlowKey) -> Self {
        let port_protocol =
            u32::from(flow.dst_port.to_be()) | u32::from(flow.protocol.number()) << 16;
        Self { to: words(&flow.dst), port_protocol, key: StateKey::of_flow(flow), bytes: 0 }
    }

    /// Its flow.
    fn flow(&self) -> FlowKey {
        let mut dst = [0; 16];
        let halves = self.to.map(u64::to_ne_bytes);
        dst[..8].copy_from_slice(&halves[0]);
        dst[8..].copy_from_slice(&halves[1]);
        let StateKey { address: src, src_port, .. } = self.key;
        let dst_port = u16::from_be(self.port_protocol as u16);
        FlowKey { src, dst, src_port, dst_port, protocol: Protocol::Tcp }
    }

    fn hash(&self, key: &weir_hash::HashKey, client: bool) -> u64 {
        self.state(client).hash(key)
    }
}

/// An address as programs load it.
fn words(address: &[u8; 16]) -> [u64; 2] {
    let half = |at| address[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    [half(0), half(8)]
}
