//! What became of frames by the interface that they came by, where the program counts that.

use super::KernelPlane;
use super::counters::each_percpu;
use crate::error::{Context, Error};
use libbpf_rs::{MapCore, MapHandle, Object};
use std::collections::BTreeMap;
use weir_plane::InterfaceCounters;

/// The program that counts frames by interface, too: a build of its own, so that the usual one has no instruction
/// for it.
pub const BY_INTERFACE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/by_interface.bpf.o"));

/// Its map; none in a program that does not count so.
pub(super) fn map_of(object: &Object) -> Result<Option<MapHandle>, Error> {
    let map = object.maps().find(|map| map.name() == "interfaces");
    let copy = |map| MapHandle::try_from(&map).context(|| "duplicate map interfaces".into());
    map.map(copy).transpose()
}

impl KernelPlane {
    /// What became of frames, by the number of the interface that they came by; 0 stands for interfaces that found no
    /// place among the thousand. `None` if the program does not count so.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn interfaces(&self) -> Result<Option<BTreeMap<u32, InterfaceCounters>>, Error> {
        let Some(map) = &self.maps.interfaces else { return Ok(None) };
        let mut all: BTreeMap<u32, InterfaceCounters> = BTreeMap::new();
        each_percpu(map, |_, one| {
            // struct interface_counts
            let (words, _) = one.as_chunks();
            let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            let &[ifindex, forwarded, passed, dropped] = &words[..] else { return };
            if forwarded + passed + dropped > 0 {
                let sum = all.entry(ifindex as u32).or_default();
                sum.forwarded += forwarded;
                sum.passed += passed;
                sum.dropped += dropped;
            }
        })?;
        Ok(Some(all))
    }
}
