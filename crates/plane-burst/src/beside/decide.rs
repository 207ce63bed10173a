//! Where plain packets go, by tables as they stand in the kernel's memory. The twin of the ways of such
//! packets in `bpf/methods`: what reads of one packet wait for, those of the others do not. Of each packet it says
//! what the method's `decide` says, or nothing (`crates/dataplane/tests/beside.rs`).

use super::Plain;
use crate::ports::BURST;
use weir_dataplane::user::{METHODS, UserMemory};
use weir_hash::scale;
use weir_lookup::CHUNK_BYTES;
use weir_steering::residue::{LINE_ENTRIES, LINE_PROBES};
use weir_steering::{
    BackendId, Flags, MethodId, NO_BACKEND, RawHeader, SLOT_BACKEND, SLOT_RESERVED, ServiceId,
    ServiceState,
};

/// Bytes of a line of residue's exceptions, and where its parts are.
const LINE: usize = 64;
const LINE_BACKENDS: usize = LINE_ENTRIES * 8;
const LINE_PAST: usize = LINE_BACKENDS + LINE_ENTRIES * 2;

/// A service of a burst, with its table.
struct Pick {
    to: ([u64; 2], u32),
    /// What stands where a service has the number of its table, if it is one of this very port.
    exact: Option<u32>,
    /// None: its packets are not for this plane.
    table: Option<(ServiceId, RawHeader, Flags)>,
}

/// The services of a burst: mostly one.
#[derive(Default)]
pub struct Picks {
    picks: Vec<Pick>,
    any_port: bool,
}

/// What is known of a packet.
#[derive(Clone, Copy, Default)]
pub struct Looked {
    /// Its service's number among the burst's, plus one; 0: not for this plane.
    pick: usize,
    pub hash: u64,
    /// Where in its table its entry or row is, by element and byte.
    at: (u32, usize),
}

impl Picks {
    pub fn begin(&mut self) {
        self.picks.clear();
    }

    /// The table that a packet was decided by, and the number of its service's entry for the very address and port;
    /// `None` if it has none, or its service takes any port.
    pub fn exactly(&self, looked: &Looked) -> Option<(u32, &RawHeader)> {
        let pick = self.picks.get(looked.pick.wrapping_sub(1))?;
        let (_, header, _) = pick.table.as_ref()?;
        Some((pick.exact?, header))
    }

    /// Finds a packet's service and hashes its flow.
    pub fn look(&mut self, shared: &UserMemory, packet: &Plain) -> Looked {
        let to = (packet.to, packet.port_protocol);
        if self.picks.is_empty() {
            self.any_port = shared.has_any_port();
        }
        let known = self.picks.iter().position(|pick| pick.to == to);
        let at = known.unwrap_or_else(|| {
            let any = packet.port_protocol & !0xffff;
            let exact = shared.service(packet.to, packet.port_protocol);
            let number = match exact {
                None if self.any_port => shared.service(packet.to, any),
                found => found,
            };
            let table = number.and_then(|number| table_of(shared, number));
            self.picks.push(Pick { to, exact, table });
            self.picks.len() - 1
        });
        let Some((_, header, flags)) = &self.picks[at].table else { return Looked::default() };
        let hash = packet.hash(&header.key, flags.has(Flags::CLIENT));
        Looked { pick: at + 1, hash, ..Looked::default() }
    }
}

/// A table by its number, if this plane decides by it.
fn table_of(shared: &UserMemory, number: u32) -> Option<(ServiceId, RawHeader, Flags)> {
    let header = shared.header(number)?;
    let known = METHODS.iter().any(|method| method.number() == header.method);
    (known && header.codec == 0).then_some((ServiceId(number / 2), header, Flags(header.flags)))
}

fn is(header: &RawHeader, method: MethodId) -> bool {
    header.method == method.number()
}

/// A cell, as `read_cell` in `bpf/table.h` finds it: element, byte, and bits before it.
fn cell(header: &RawHeader, first: u32, chunks: u32, hash32: u32) -> (u32, usize, u32) {
    let product = u64::from(hash32) * u64::from(chunks);
    let bit = scale(product as u32, header.per_chunk) * u32::from(header.bits);
    (first + (product >> 32) as u32, (bit >> 3) as usize, bit & 7)
}

/// The two cells of a flow in a table of concury's.
fn cells(header: &RawHeader, hash: u64) -> [(u32, usize, u32); 2] {
    let first_b = header.first_a + header.chunks_a;
    [
        cell(header, header.first_a, header.chunks_a, hash as u32),
        cell(header, first_b, header.chunks_b, (hash >> 32) as u32),
    ]
}

/// Where the entry of a flow is in the DIP array, by the Dcode that its two cells have.
fn entry_at(shared: &UserMemory, header: &RawHeader, hash: u64) -> (u32, usize) {
    let [a, b] =
        cells(header, hash).map(|(element, byte, bits)| shared.word32(element, byte) >> bits);
    let slot = (a ^ b) & header.slots.wrapping_sub(1);
    (header.first_slot, slot as usize * 2)
}

/// Where the row of a flow is.
fn row_at(header: &RawHeader, hash: u64) -> (u32, usize) {
    (header.first_slot, scale(hash as u32, header.slots) as usize * 2)
}

/// An entry of a DIP array, or a row, that is nothing but a backend's.
fn is_plain(entry: u16, flags: Flags) -> bool {
    entry < NO_BACKEND && !flags.has(Flags::PENDING)
}

/// Whether a connection that begins may change where others of its client go, by the table that is there: not where
/// each goes by itself, nor by a plain entry.
pub fn moves_its_client(shared: &UserMemory, picks: &Picks, look: &Looked) -> bool {
    let table = picks.picks.get(look.pick.wrapping_sub(1)).and_then(|pick| pick.table.as_ref());
    let Some((_, header, flags)) = table else { return false };
    flags.has(Flags::CLIENT) && !is_plain(entry(shared, header, look.hash), *flags)
}

/// What a table says of a flow's hash, where all reads wait for each other.
fn entry(shared: &UserMemory, header: &RawHeader, hash: u64) -> u16 {
    let (element, byte) = match is(header, MethodId::Concury) {
        true => entry_at(shared, header, hash),
        false => row_at(header, hash),
    };
    shared.word16(element, byte)
}

/// The backends of packets; none of those that the program in the kernel is to decide.
pub fn decide(
    shared: &UserMemory,
    picks: &Picks,
    looked: &mut [Looked],
    plain: &[Option<Plain>],
) -> [Option<BackendId>; BURST] {
    let table = |look: &Looked| picks.picks.get(look.pick.wrapping_sub(1))?.table.as_ref();
    // The cells, or the rows.
    for look in looked.iter_mut() {
        let Some((_, header, _)) = table(look) else { continue };
        if is(header, MethodId::Concury) {
            for (element, byte, _) in cells(header, look.hash) {
                shared.prefetch(element, byte);
            }
        } else {
            look.at = row_at(header, look.hash);
            shared.prefetch(look.at.0, look.at.1);
        }
    }
    // The slots of concury. Where its cells are is worked out once more, and kept for no packet.
    for look in looked.iter_mut() {
        let Some((_, header, _)) = table(look) else { continue };
        if is(header, MethodId::Concury) {
            look.at = entry_at(shared, header, look.hash);
            shared.prefetch(look.at.0, look.at.1);
        }
    }
    let mut backends = [None; BURST];
    for (at, look) in looked.iter().enumerate() {
        let (Some((service, header, flags)), Some(packet)) = (table(look), &plain[at]) else {
            continue;
        };
        let entry = shared.word16(look.at.0, look.at.1);
        let state = || {
            let key = packet.state(flags.has(Flags::CLIENT));
            ServiceState { service: *service, key }
        };
        let slot = if is_plain(entry, *flags) {
            Some(entry)
        } else if is(header, MethodId::Concury) {
            concury(shared, *flags, entry, state)
        } else if is(header, MethodId::Residue) {
            residue(shared, header, *flags, entry, look.hash, state)
        } else {
            None
        };
        backends[at] = slot.and_then(BackendId::new);
        if backends[at].is_some() && flags.has(Flags::MARK) {
            shared.mark(look.hash);
        }
    }
    backends
}

/// `concury_slow` of a packet in the middle of a connection.
fn concury(
    shared: &UserMemory,
    flags: Flags,
    entry: u16,
    state: impl FnOnce() -> ServiceState,
) -> Option<u16> {
    let asks = flags.has(Flags::PENDING) || entry & SLOT_RESERVED != 0;
    let known = if asks { shared.pending(&state()).ok()? } else { None };
    // By a fleet's table it is pinned or placed again: the program knows.
    if known.is_none() && entry & SLOT_RESERVED != 0 && flags.has(Flags::EXACT) {
        return None;
    }
    Some(known.unwrap_or(entry) & SLOT_BACKEND).filter(|backend| *backend != NO_BACKEND)
}

/// `residue_slow` of one.
fn residue(
    shared: &UserMemory,
    header: &RawHeader,
    flags: Flags,
    row: u16,
    hash: u64,
    state: impl FnOnce() -> ServiceState,
) -> Option<u16> {
    let marked = row & SLOT_RESERVED != 0 && may_be_exception(shared, header, hash);
    let exception = if marked { exception(shared, header, hash) } else { None };
    let asks = flags.has(Flags::PENDING) || exception.is_some();
    let known = if asks { shared.pending(&state()).ok()? } else { None };
    let backend = known.map(|known| known & SLOT_BACKEND).or(exception);
    Some(backend.unwrap_or(row & SLOT_BACKEND)).filter(|backend| *backend != NO_BACKEND)
}

fn may_be_exception(shared: &UserMemory, header: &RawHeader, hash: u64) -> bool {
    let word = scale((hash >> 32) as u32, header.chunks_a * (CHUNK_BYTES as u32 / 8));
    let flags = shared.word64(header.first_a, word as usize * 8);
    flags >> (hash & 63) & flags >> (hash >> 6 & 63) & 1 != 0
}

/// `find_exception`.
fn exception(shared: &UserMemory, header: &RawHeader, hash: u64) -> Option<u16> {
    let (first, lines) =
        (header.first_a + header.chunks_a, header.chunks_b * (CHUNK_BYTES / LINE) as u32);
    let mut home = scale((hash >> 32) as u32, lines);
    for _ in 0..LINE_PROBES {
        let line = home as usize * LINE;
        for entry in 0..LINE_ENTRIES {
            let backend = shared.word16(first, line + LINE_BACKENDS + entry * 2);
            if shared.word64(first, line + entry * 8) == hash && backend != NO_BACKEND {
                return (backend < NO_BACKEND).then_some(backend);
            }
        }
        if shared.word32(first, line + LINE_PAST) == 0 {
            break;
        }
        home = if home + 1 == lines { 0 } else { home + 1 };
    }
    None
}
