//! The bounds: what their programs read has the size of the tables.

use super::tables::BACKENDS;
use super::{Memory, skeleton};
use crate::error::{Context, Error};
use crate::mapped::Mapped;
use crate::numbers::{BOUND_BACKENDS, BOUND_ENTRY, BOUND_SLOTS};
use libbpf_rs::skel::OpenSkel;
use weir_hash::{HashKey, Key};
use weir_steering::cheetah;

const ENTRY: usize = BOUND_ENTRY as usize;
/// Bytes of concury's slots.
const SLOTS: usize = BOUND_SLOTS as usize * 2;
const _: () = assert!(BOUND_BACKENDS == BACKENDS as u32);
/// Bytes that a read may take, less one.
const SLACK: usize = 8;

/// Loads the bench's programs. Their frames go from the second of these addresses to the first.
pub(super) fn load<'a>(
    mut open: skeleton::OpenBenchSkel<'a>,
    memory: &Memory,
    flows: u32,
    [to, from]: [[u8; 6]; 2],
) -> Result<skeleton::BenchSkel<'a>, Error> {
    let half_of_cells = (memory.concury_bytes - memory.concury_fixed_bytes) / 2;
    let tracked = flows as usize;
    let asking = (tracked * memory.jet_asks / memory.jet_rows).max(1);
    let sizes = [
        half_of_cells * 2 + SLOTS,
        memory.residue_rows * 2,
        memory.jet_rows * 2,
        cheetah::NUMBERS as usize * 2,
        tracked * ENTRY,
    ];
    let bytes = sizes.into_iter().max().unwrap_or(0).next_multiple_of(8) + SLACK;
    let constants = open.maps.rodata_data.as_deref_mut().expect("the bench has .rodata");
    constants.random_count = bytes as u32;
    constants.half_of_cells = half_of_cells as u32;
    constants.residue_rows = memory.residue_rows as u32;
    constants.jet_rows = memory.jet_rows as u32;
    constants.jet_asks = (memory.jet_asks * 256 / memory.jet_rows) as u32;
    constants.jet_entries = asking as u32;
    constants.tracked_entries = flows;
    let key = HashKey::from_seed(4);
    let words = key.words();
    constants.bound_key.xor = words[0];
    constants.bound_key.mul1 = words[2];
    constants.bound_key.mul2 = words[3];
    open.maps
        .data_random_bytes
        .set_value_size(bytes as u32)
        .context(|| "size the bytes that bounds read".into())?;
    let mut skel = open.load().context(|| "load the bench programs".into())?;
    let mut random = Mapped::new(&skel.maps.data_random_bytes, bytes)?;
    for (n, word) in random.bytes_mut()[..bytes].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(n as u64).hash(&key).to_ne_bytes());
    }
    let data = skel.maps.bss_data.as_deref_mut().expect("the bench has .bss");
    let mut addresses = [0; 16];
    addresses[..6].copy_from_slice(&to);
    addresses[6..12].copy_from_slice(&from);
    for backend in &mut data.bound_backends[..usize::from(BACKENDS)] {
        backend.first = u64::from_ne_bytes(*addresses.first_chunk().expect("16 bytes"));
        backend.rest = u32::from_ne_bytes(*addresses[8..].first_chunk().expect("8 bytes"));
    }
    Ok(skel)
}
