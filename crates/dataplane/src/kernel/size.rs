//! How large the data plane's memory is: from the configuration, or as an earlier run left it.

use super::activity::WATCHED_WORDS;
use super::load::missing;
use crate::abi::types;
use crate::error::{Context, Error};
use crate::numbers::{ORIGINS, QUIC_KNOWN, QUIC_OUTCOMES, WAYS};
use crate::slots::{PARTITION_BYTES, STACKS_BYTES};
use libbpf_rs::{MapCore, MapHandle, OpenMapMut};
use std::collections::BTreeMap;
use std::path::PathBuf;
use weir_plane::{BYTES_PER_PREFIX, Limits, mapping_places};
use weir_steering::{ELEMENT_BYTES, HEADER_BYTES, SEEN_WAYS};
use weir_wire::Reason;

/// Sizes as they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub services: u32,
    pub backends: u32,
    pub vip_slots: u32,
    pub pool_elements: u32,
    pub mark_words: u32,
    pub stranger_words: u32,
    pub seen_lines: u32,
    pub partitions: u32,
    pub source_words: u32,
    /// Entries of the map of flows that are not reported yet.
    pub untold_room: u32,
    pub mappings: u32,
    /// QUIC ids that each processor remembers.
    pub known_ids: u32,
}

/// Sets sizes and pins of the program's maps; a map that is pinned already keeps its size.
pub(super) struct Sizer<'a> {
    pub maps: BTreeMap<String, OpenMapMut<'a>>,
    /// Where a map is pinned, or is to be; nowhere, if the data plane goes with the process.
    pub place: &'a dyn Fn(&str) -> Option<PathBuf>,
    /// How many entries a map gets that is not pinned yet, or bytes, if it is an array, whatever is wanted.
    pub counts: &'a dyn Fn(&str) -> Option<u32>,
    /// Maps of other sizes than were wanted.
    pub kept: Vec<String>,
}

impl<'a> Sizer<'a> {
    /// A map of the program.
    pub fn map(&mut self, name: &str) -> Result<&mut OpenMapMut<'a>, Error> {
        self.maps.get_mut(name).ok_or_else(|| missing("map", name))
    }

    /// Sizes a map to `wanted` entries; returns how many it has.
    fn entries(&mut self, name: &str, wanted: u32) -> Result<u32, Error> {
        let map = self.map(name)?;
        let ours = (map.key_size(), map.value_size());
        let mut entries = (self.counts)(name).unwrap_or(wanted).max(1);
        if let Some(found) = self.pinned(name, name)? {
            let theirs = (found.key_size(), found.value_size());
            if ours != theirs {
                return Err(self.incompatible(name, format!("{theirs:?} where {ours:?} is known")));
            }
            self.keep(name, &mut entries, found.max_entries());
        }
        self.map(name)?.set_max_entries(entries).context(|| format!("size map {name}"))?;
        Ok(entries)
    }

    /// Sizes an array in a section of its own to `wanted` elements of `element` bytes; returns how
    /// many it has.
    fn array(&mut self, name: &str, element: usize, wanted: u32) -> Result<u32, Error> {
        let section = format!(".data.{name}");
        // Of the program that is loaded, whose elements need not be ours.
        let mut given = (self.counts)(name);
        let mut elements = given.map_or(wanted, |bytes| bytes / element as u32).max(1);
        if let Some(found) = self.pinned(&section, name)? {
            given = None;
            let bytes = found.value_size() as usize;
            if !bytes.is_multiple_of(element) {
                return Err(self.incompatible(
                    name,
                    format!("{bytes} bytes do not hold elements of {element}"),
                ));
            }
            self.keep(name, &mut elements, (bytes / element) as u32);
        }
        let bytes = given.unwrap_or(elements * element as u32);
        self.map(&section)?.set_value_size(bytes).context(|| format!("size array {name}"))?;
        Ok(elements)
    }

    /// The map of this name that an earlier run pinned; and this run's will be pinned there.
    fn pinned(&mut self, map: &str, name: &str) -> Result<Option<MapHandle>, Error> {
        let Some(pin) = (self.place)(name) else { return Ok(None) };
        self.map(map)?.set_pin_path(&pin).context(|| format!("pin {name}"))?;
        if !pin.exists() {
            return Ok(None);
        }
        let found =
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))?;
        Ok(Some(found))
    }

    fn keep(&mut self, name: &str, wanted: &mut u32, found: u32) {
        if *wanted != found {
            self.kept.push(name.to_owned());
            *wanted = found;
        }
    }

    fn incompatible(&self, name: &str, detail: String) -> Error {
        let path = (self.place)(name).unwrap_or_default();
        Error::Incompatible { path, detail }
    }
}

/// The bits of a flow's hash name no more: 32 MB of each half.
const MOST_MARK_WORDS: u32 = 1 << 22;

/// Words of each half of the marks: up to two flows for each word of three lanes.
fn mark_words(flows: u32) -> u32 {
    flows.div_ceil(2).clamp(64, MOST_MARK_WORDS).next_power_of_two()
}

/// Flows that memory of marks has room for that is made for so many.
pub(super) fn marked_flows(flows: u32) -> u32 {
    mark_words(flows) * 2
}

/// Interfaces that are not sent by as they are.
const DEVICES: u32 = 8192;

/// Ways to backends whose MTU a router has said.
const PATHS: u32 = 16_384;

/// Configurations of QUIC ids, of all services together.
const ID_CONFIGS: u32 = 4096;

/// Servers that ids lead to, over all configurations: each backend may be in two, while keys change.
const ID_SERVERS: u32 = 65_536;

/// QUIC ids that a processor remembers at most: 8 MB.
const MOST_KNOWN_IDS: u32 = 1 << 18;

/// Places for QUIC ids of each processor: four for each of so many flows on all processors together, since of ids that
/// have the same place one is remembered.
fn known_ids(udp_flows: u32, cpus: usize) -> u32 {
    let wanted = u64::from(udp_flows) * 4 / cpus.max(1) as u64;
    (wanted.min(MOST_KNOWN_IDS.into()) as u32).max(QUIC_KNOWN).next_power_of_two()
}

/// Sizes all maps.
pub(super) fn size_maps(sizer: &mut Sizer<'_>, limits: &Limits) -> Result<Sizes, Error> {
    // One element, as large as the program that is loaded has it.
    let control = sizer.map(".data.control")?.value_size();
    sizer.array("control", control as usize, 1)?;
    sizer.entries("outcomes", Reason::SLOTS)?;
    sizer.entries("pending", limits.pending_flows)?;
    sizer.entries("pinned", limits.unreported_flows)?;
    sizer.entries("events", limits.event_ring_bytes)?;
    let untold_room = sizer.entries("unreported", limits.unreported_flows)?;
    sizer.array("untold", size_of::<i64>(), limits.services)?;
    sizer.entries("connections", limits.tracked_flows)?;
    sizer.entries("answers", limits.answered_flows)?;
    let translations = sizer.entries("translations", limits.translations)?;
    // Not pinned: the ways are found again.
    let ways = if translations > 1 { WAYS } else { 1 };
    sizer.map("ways")?.set_max_entries(ways).context(|| "size map ways".into())?;
    sizer.entries("returned", 1)?;
    // Of its own size, in the builds that have it.
    if let Some(places) = sizer.maps.get("interfaces").map(|map| map.max_entries()) {
        sizer.entries("interfaces", places)?;
    }
    sizer.entries("devices", DEVICES)?;
    sizer.entries("paths", PATHS)?;
    sizer.entries("quic_configs", ID_CONFIGS)?;
    sizer.entries("quic_servers", ID_SERVERS)?;
    sizer.entries("quic_outcomes", QUIC_OUTCOMES)?;
    let cpus = libbpf_rs::num_possible_cpus().context(|| "count CPUs".into())?;
    let known_ids = known_ids(limits.udp_flows, cpus);
    // Not pinned: ids are decoded again.
    let map = sizer.map("quic_known")?;
    map.set_max_entries(known_ids).context(|| "size map quic_known".into())?;
    // A two-choice table stays below half full: each service has its entry and its address's.
    let vip_slots = (limits.services * 4 + 4).next_power_of_two();
    let mark_words = mark_words(limits.marked_flows) * 2;
    let stranger_words = limits.stranger_bits.div_ceil(64).next_power_of_two() * 2;
    let pool = limits.table_bytes.div_ceil(ELEMENT_BYTES as u64) as u32;
    // Twice the lines that full ones would need: few flows are evicted.
    let seen_lines = (limits.udp_flows * 2).div_ceil(SEEN_WAYS as u32);
    let partitions = sizer.array("slots", PARTITION_BYTES, limits.slot_partitions)?;
    let stacks = sizer.array("stacks", STACKS_BYTES, limits.slot_partitions)?;
    sizer.array("origins", size_of::<types::origin>(), ORIGINS)?;
    let mappings =
        sizer.array("mappings", size_of::<types::mapping>(), mapping_places(limits.mappings))?;
    sizer.array("loads", size_of::<types::load>(), limits.backends)?;
    sizer.array("turns", size_of::<u64>(), limits.services)?;
    sizer.array("entered", size_of::<u64>(), limits.services)?;
    sizer.array("watched", size_of::<u64>(), WATCHED_WORDS as u32)?;
    sizer.array("caps", size_of::<types::cap>(), limits.services)?;
    sizer.array("lists", size_of::<types::source_list>(), limits.services * 2)?;
    let backends = sizer.array("backends", size_of::<types::backend>(), limits.backends)?;
    Ok(Sizes {
        services: sizer.array("tables", HEADER_BYTES, limits.services * 2)? / 2,
        backends: backends.min(sizer.entries("lanes", limits.backends)?),
        vip_slots: sizer.array("vips", size_of::<types::vip>(), vip_slots)?,
        pool_elements: sizer.array("pool", ELEMENT_BYTES, pool)?,
        mark_words: sizer.array("marks", size_of::<u64>(), mark_words)? / 2,
        stranger_words: sizer.array("strangers", size_of::<u64>(), stranger_words)? / 2,
        seen_lines: sizer.array("seen", size_of::<types::seen_line>(), seen_lines)?,
        partitions: partitions.min(stacks),
        untold_room,
        mappings,
        known_ids,
        source_words: sizer.array(
            "sources",
            size_of::<u64>(),
            limits.list_prefixes.max(1) * PREFIX_WORDS,
        )?,
    })
}

/// Words for each prefix of a list of sources: a list is made beside the one that it replaces.
const PREFIX_WORDS: u32 = 2 * (BYTES_PER_PREFIX / size_of::<u64>()) as u32;

impl Sizes {
    /// Prefixes of lists of sources that there is room for.
    pub fn list_prefixes(&self) -> u32 {
        self.source_words / PREFIX_WORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made for a number of flows is no smaller, up to the largest, and stays itself.
    #[test]
    fn marks_have_room_for_what_they_are_made_for() {
        for flows in [1, 128, 129, 50_000, 1 << 22, (1 << 22) + 1, 1 << 23] {
            let made = marked_flows(flows);
            assert!(made >= flows && marked_flows(made) == made, "{flows}: {made}");
        }
        assert_eq!(marked_flows(u32::MAX), marked_flows(1 << 23));
    }

    /// A power of two, within bounds for each processor, and less for each where there are more of them.
    #[test]
    fn processors_share_the_ids_that_are_remembered() {
        for (flows, cpus, places) in [
            (65_536, 1, 262_144),
            (65_536, 2, 131_072),
            (65_536, 3, 131_072),
            (65_536, 64, QUIC_KNOWN),
            (1, 1, QUIC_KNOWN),
            (u32::MAX, 1, MOST_KNOWN_IDS),
        ] {
            assert_eq!(known_ids(flows, cpus), places, "{flows} flows, {cpus} processors");
        }
    }
}
