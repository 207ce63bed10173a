//! What the program takes of a switch: bits of registers and tables, and stages of a pipeline like Tofino's, by a
//! written estimate (docs/p4.md).

use crate::layout::{Register, TRACKED_PLACES, Table};

/// Bits of a register array.
pub fn register_bits(register: Register) -> u64 {
    u64::from(register.bits()) * u64::from(register.size())
}

/// Bits of a table's keys, for as many entries as it has room for: what an exact match compares. Actions and their
/// arguments, and what a hash table leaves free, come on top.
pub fn key_bits(table: Table) -> u64 {
    let key: u32 = table.key_bits().iter().sum();
    u64::from(key) * u64::from(table.size())
}

/// Bits of all registers.
pub fn all_register_bits() -> u64 {
    Register::ALL.iter().map(|register| register_bits(*register)).sum()
}

/// What Concury's arrays take for so many states of 2^`dcode_bits` Dcodes, in one of the two versions: 2.33 cells
/// for each state, and the DIP array.
pub fn concury_bits(states: u64, dcode_bits: u32) -> u64 {
    let cells = states * 233 / 100;
    cells * u64::from(dcode_bits) + (16 << dcode_bits)
}

/// Steps of a packet that needs the result of the one before, so that each has a stage of its own at least.
///
/// A register array is read once by a packet, and is in one stage; what is hashed takes the hash units in front of
/// a stage. So the reads of one array for the second to twenty-fourth try, and of the second set of pending flows,
/// need arrays of their own, or another pass (recirculation): both are counted once here.
pub const STAGES: &[(&str, u32)] = &[
    ("service, addresses, own MAC addresses: exact tables", 1),
    ("selector: one register", 1),
    ("the version's table: where its arrays are", 1),
    ("hash of the state (CRC; the mixer has no counterpart), tag of a datagram", 1),
    ("cells of A and B: two registers side by side, at places that the hash gives", 1),
    ("slot, at the place that their xor gives; residue's row", 1),
    ("pins, exceptions, state of the backend; pending flows' words: exact tables and registers", 1),
    ("whether it is down, a further row", 1),
    ("writing the pending flow", 1),
    ("the report's place", 1),
    ("the report's words, marks", 1),
    ("backend: an exact table; counters", 1),
];

/// The same of Cheetah. A packet with a good cookie is done after the first six and the last one. What a first packet
/// asks twice, the servers and the states of backends, needs copies of these arrays, or another pass; what sweeps
/// slots, and the turns that go on past backends that are down, need one for each step. The parser walks the options.
pub const COOKIE_STAGES: &[(&str, u32)] = &[
    ("service, addresses, own MAC addresses: exact tables", 1),
    ("selector: one register", 1),
    ("the version's table: where its arrays are", 1),
    ("hash of the state", 1),
    (
        "server of the number, or the slot's three words, at the place that cookie and hash give; the turn",
        1,
    ),
    ("server of the slot; tracked flow's words; the list, at the turn", 1),
    ("server of the number that was drawn or is known", 1),
    ("state of the backend", 1),
    ("slots of the partition in use", 1),
    ("the free slot on top of the stack", 1),
    ("the slot's words; the tracked flow's", 1),
    ("backend: an exact table; counters", 1),
];

/// Stages in all.
pub fn stages(of: &[(&str, u32)]) -> u32 {
    of.iter().map(|(_, stages)| stages).sum()
}

/// Bits of what connections by index take, with their stacks.
pub fn connection_bits() -> u64 {
    let of = [Register::SlotHigh, Register::SlotLow, Register::SlotWords, Register::FreeSlots];
    of.into_iter().map(register_bits).sum()
}

/// Bits of what tracked flows take.
pub fn tracked_bits() -> u64 {
    let word = u64::from(Register::Pending0.bits());
    register_bits(Register::Tracked) + 4 * word * u64::from(TRACKED_PLACES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of docs/p4.md.
    #[test]
    fn figures_of_the_page() {
        let text = include_str!("../../../docs/p4.md");
        let megabits = |bits: u64| format!("{:.1} Mbit", bits as f64 / 1e6);
        let cells = register_bits(Register::CellsA) + register_bits(Register::CellsB);
        for (what, figure) in [
            ("all registers", megabits(all_register_bits())),
            ("cells", megabits(cells)),
            ("slots", megabits(register_bits(Register::Slots))),
            ("exceptions", megabits(key_bits(Table::Exceptions))),
            ("pins", megabits(key_bits(Table::Pins))),
            ("a million states", megabits(concury_bits(1_000_000, 12))),
            ("connections", megabits(connection_bits())),
            ("tracked flows", megabits(tracked_bits())),
            ("stages", format!("{} stages", stages(STAGES))),
            ("stages of cookies", format!("Cheetah {}", stages(COOKIE_STAGES))),
        ] {
            assert!(text.contains(&figure), "{what}: docs/p4.md does not say {figure}");
        }
    }
}
