//! How large a plane's memory is.

/// How much a plane has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Services that there is room for.
    pub services: u32,
    /// Bytes of the pool that holds the tables: twice what the tables in use take, since a new
    /// table is made beside the old one.
    pub table_bytes: u64,
    /// Backends of all services together, below 32,767.
    pub backends: u32,
    /// Entries of the pending table: flows that start during an update.
    pub pending_flows: u32,
    /// Entries of the *unreported* map: flows whose report the ring had no room for.
    pub unreported_flows: u32,
    /// Entries of the connection table of the methods `tracked` and `jet`.
    pub tracked_flows: u32,
    /// Connections whose answers pass the balancer, which restores their timestamps.
    pub answered_flows: u32,
    /// Partitions of 32,768 connections by index, of all services together.
    pub slot_partitions: u32,
    /// Addresses and ports of backends whose answers are translated.
    pub translations: u32,
    /// Connections under full NAT.
    pub mappings: u32,
    /// UDP flows that are told from new ones.
    pub udp_flows: u32,
    /// Bytes of the event ring, a power of two.
    pub event_ring_bytes: u32,
    /// Flows whose activity is told from that of all others: 8 to 16 bytes for each.
    pub marked_flows: u32,
    /// Bits of each of the two bitmaps of activity for all others.
    pub stranger_bits: u32,
    /// Prefixes of sources that services take packets from, or do not, of all services together.
    pub list_prefixes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            services: 256,
            table_bytes: 64 << 20,
            backends: 4096,
            pending_flows: 65_536,
            unreported_flows: 262_144,
            tracked_flows: 262_144,
            answered_flows: 1,
            slot_partitions: 1,
            translations: 1,
            mappings: 1,
            udp_flows: 65_536,
            event_ring_bytes: 16 << 20,
            marked_flows: 1 << 20,
            stranger_bits: 16 << 20,
            list_prefixes: 1,
        }
    }
}

impl Limits {
    /// Room for both.
    pub fn or_larger(&self, other: &Self) -> Self {
        Self {
            services: self.services.max(other.services),
            table_bytes: self.table_bytes.max(other.table_bytes),
            backends: self.backends.max(other.backends),
            pending_flows: self.pending_flows.max(other.pending_flows),
            unreported_flows: self.unreported_flows.max(other.unreported_flows),
            tracked_flows: self.tracked_flows.max(other.tracked_flows),
            answered_flows: self.answered_flows.max(other.answered_flows),
            slot_partitions: self.slot_partitions.max(other.slot_partitions),
            translations: self.translations.max(other.translations),
            mappings: self.mappings.max(other.mappings),
            udp_flows: self.udp_flows.max(other.udp_flows),
            event_ring_bytes: self.event_ring_bytes.max(other.event_ring_bytes),
            marked_flows: self.marked_flows.max(other.marked_flows),
            stranger_bits: self.stranger_bits.max(other.stranger_bits),
            list_prefixes: self.list_prefixes.max(other.list_prefixes),
        }
    }
}

/// Places of the table for so many connections under full NAT: half full, one connection in 65,000 finds none
/// for any of its ports.
pub fn mapping_places(mappings: u32) -> u32 {
    if mappings <= 1 { 1 } else { (mappings * 2).next_power_of_two() }
}
