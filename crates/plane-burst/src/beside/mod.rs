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

mod decide;
mod run;
mod ways;

pub use run::{RunError, run, sockets};

use crate::parse::{Heads, Plain4, SHORTEST_IPV6, plain6};
use crate::ports::{BURST, Fate, Frame};
use decide::{Looked, Picks, decide};
use ways::Ways;
use weir_dataplane::user::UserMemory;
use weir_hash::Key;
use weir_lookup::prefetch;
use weir_steering::StateKey;
use weir_wire::{Protocol, map_address};

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
                shared.add_to_lane(backend, 1, plain.bytes.into());
            }
        }
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

    fn hash(&self, key: &weir_hash::HashKey, client: bool) -> u64 {
        self.state(client).hash(key)
    }
}

/// An address as programs load it.
fn words(address: &[u8; 16]) -> [u64; 2] {
    let half = |at| address[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    [half(0), half(8)]
}
