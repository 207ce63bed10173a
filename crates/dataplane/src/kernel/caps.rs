//! How many new flows services take: rates that packets read, and buckets that they write.

use super::KernelPlane;
use super::trace::monotonic;
use crate::abi::types;
use crate::error::{Context, Error};
use crate::mapped::Mapped;
use crate::numbers::{CAP_ROW, HELD_MOST};
use crate::tables::service_of;
use crate::vips::{Leads, NO_TABLE};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_hash::HashKey;
use weir_plane::{Bucket, CappedFlows, FlowCaps, FlowRoom, Listen, Rate, SourceLimit, SourceRate};
use weir_steering::ServiceId;

const _: () = assert!(CAP_ROW == weir_plane::CAP_ROW, "both pipelines find the same buckets");

const WORD: usize = size_of::<u64>();
/// The map of the buckets of prefixes.
const SOURCE_BUCKETS: &str = "source_buckets";

/// Services whose packets ask for caps, as an earlier run has left them.
pub(super) fn found(listed: &[(Listen, Leads)]) -> BTreeSet<ServiceId> {
    let capped = listed.iter().filter(|(_, leads)| leads.capped && leads.table != NO_TABLE);
    capped.map(|(_, leads)| service_of(leads.table)).collect()
}

/// The words of a mask of so many bits of an address, as packets have addresses.
fn mask(bits: u32) -> [u64; 2] {
    let mask = !u128::MAX.checked_shr(bits).unwrap_or(0);
    let bytes = mask.to_be_bytes();
    let half = |at: usize| bytes[at..].first_chunk().map_or(0, |half| u64::from_ne_bytes(*half));
    [half(0), half(WORD)]
}

impl KernelPlane {
    /// Takes so many new flows of a service from now on; `None`: any number. One that had no caps begins
    /// with a full bucket.
    ///
    /// # Errors
    /// [`Error::Beyond`].
    pub fn set_flow_caps(
        &mut self,
        service: ServiceId,
        caps: Option<&FlowCaps>,
    ) -> Result<(), Error> {
        self.check_service(service)?;
        let former = self.flow_caps(service);
        if former.as_ref() == caps {
            return Ok(());
        }
        let Some(caps) = caps else {
            self.capped.remove(&service);
            return self.lead_again(service);
        };
        if former.is_none() {
            for at in [offset_of!(types::cap, full), CAPPED, CAPPED_SOURCE, CAPPED_CONNECTIONS] {
                self.cap_word(service, at).store(0, Ordering::Relaxed);
            }
        }
        self.write_caps(service, caps);
        if self.capped.insert(service) {
            self.lead_again(service)?;
        }
        Ok(())
    }

    /// A packet may read the rate of one and the burst of the other, and then takes a flow that neither would,
    /// or none that both would.
    fn write_caps(&self, service: ServiceId, caps: &FlowCaps) {
        let store =
            |at: usize, word: u64| self.cap_word(service, at).store(word, Ordering::Release);
        let words = |rate: Option<Rate>| rate.map_or((0, 0), |rate| rate.words());
        // Until connections are counted by these prefixes, none is refused.
        store(LIMIT, 0);
        let (interval, room) = words(caps.source.map(|each| each.rate));
        let prefixes = caps.source.map(|each| (each.ipv4_bits, each.ipv6_bits));
        let prefixes = prefixes.or(caps.held.map(|each| (each.ipv4_bits, each.ipv6_bits)));
        if let Some((ipv4_bits, ipv6_bits)) = prefixes {
            let ipv4 = mask(96 + u32::from(ipv4_bits));
            store(offset_of!(types::cap, mask4), ipv4[1]);
            for (at, word) in mask(ipv6_bits.into()).into_iter().enumerate() {
                store(offset_of!(types::cap, mask6) + at * WORD, word);
            }
        }
        for (at, word) in caps.key.words().into_iter().enumerate() {
            store(offset_of!(types::cap, key) + at * WORD, word);
        }
        store(offset_of!(types::cap, source_room), room);
        store(offset_of!(types::cap, source_interval), interval);
        let (interval, room) = words(caps.all);
        store(offset_of!(types::cap, room), room);
        store(offset_of!(types::cap, interval), interval);
        store(LIMIT, caps.held.map_or(0, |held| u64::from(held.most & HELD_MOST)));
    }

    /// How many new flows of a service are taken; `None`: any number.
    pub fn flow_caps(&self, service: ServiceId) -> Option<FlowCaps> {
        if !self.capped.contains(&service) {
            return None;
        }
        let cap: types::cap = self.caps.load_record(service.0 as usize);
        let ones = |word: u64| word.count_ones() as u8;
        let ipv6_bits = ones(cap.mask6[0]) + ones(cap.mask6[1]);
        // All of the half that says that it is IPv4 are set, once there are prefixes.
        let ipv4_bits = ones(cap.mask4).saturating_sub(32);
        let source = Rate::from_words(cap.source_interval, cap.source_room)
            .map(|rate| SourceRate { rate, ipv4_bits, ipv6_bits });
        let most = cap.limit as u32 & HELD_MOST;
        let held = (most != 0).then_some(SourceLimit { most, ipv4_bits, ipv6_bits });
        let key = [cap.key.xor, cap.key.xor_wide, cap.key.mul1, cap.key.mul2];
        let bytes: Vec<u8> = key.iter().flat_map(|word| word.to_le_bytes()).collect();
        let key = HashKey::from_bytes(bytes.first_chunk()?);
        Some(FlowCaps { all: Rate::from_words(cap.interval, cap.room), source, held, key })
    }

    /// How many new flows of a service would be taken of a source now; `None`: any number.
    ///
    /// # Errors
    /// [`Error::Bpf`] if a bucket cannot be read.
    pub fn flow_room(
        &self,
        service: ServiceId,
        source: &[u8; 16],
    ) -> Result<Option<FlowRoom>, Error> {
        let Some(caps) = self.flow_caps(service) else { return Ok(None) };
        let full = self.cap_word(service, offset_of!(types::cap, full)).load(Ordering::Relaxed);
        let (_, map) = self.source_buckets()?;
        let of_prefixes = |at: u32| {
            let found = map.lookup(&at.to_ne_bytes(), MapFlags::ANY);
            let found = found.context(|| "read a bucket of new flows".into())?;
            let bytes = found.as_deref().and_then(|bytes| bytes.first_chunk());
            Ok(Bucket::full_at(bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))))
        };
        let room = caps.room(source, monotonic(), Bucket::full_at(full), of_prefixes)?;
        Ok(Some(FlowRoom { connections: self.connection_room(service, &caps, source)?, ..room }))
    }

    fn source_buckets(&self) -> Result<&(&'static str, MapHandle), Error> {
        self.shared(SOURCE_BUCKETS)
    }

    /// A map that is not pinned.
    pub(super) fn shared(&self, name: &'static str) -> Result<&(&'static str, MapHandle), Error> {
        let map = self.shared.iter().find(|(found, _)| *found == name);
        map.ok_or_else(|| super::load::missing("map", name))
    }

    /// New flows that were not taken of a service, since it has caps.
    pub fn capped_flows(&self, service: ServiceId) -> CappedFlows {
        if !self.capped.contains(&service) {
            return CappedFlows::default();
        }
        let count = |at: usize| self.cap_word(service, at).load(Ordering::Relaxed);
        CappedFlows {
            all: count(CAPPED),
            source: count(CAPPED_SOURCE),
            connections: count(CAPPED_CONNECTIONS),
        }
    }

    /// Services that do not take all new flows.
    pub(super) fn capped(&self) -> impl Iterator<Item = ServiceId> {
        self.capped.iter().copied()
    }

    /// The word of a service's that says how many connections each prefix may hold.
    pub(super) fn limit_word(&self, service: ServiceId) -> &AtomicU64 {
        self.cap_word(service, LIMIT)
    }

    fn cap_word(&self, service: ServiceId, at: usize) -> &AtomicU64 {
        self.caps.word64(service.0 as usize * size_of::<types::cap>() + at)
    }

    /// As if so much time had passed for all buckets, for tests that do not wait.
    ///
    /// # Errors
    /// [`Error::System`] if the buckets cannot be mapped.
    #[doc(hidden)]
    pub fn age_caps(&self, nanoseconds: u64) -> Result<(), Error> {
        let age = |word: &AtomicU64| {
            let full = word.load(Ordering::Relaxed);
            if full != 0 {
                word.store(full.saturating_sub(nanoseconds), Ordering::Relaxed);
            }
        };
        for service in 0..self.sizes.services {
            age(self.cap_word(ServiceId(service), offset_of!(types::cap, full)));
        }
        let (_, map) = self.source_buckets()?;
        let words = CAP_ROW as usize * 2;
        let buckets = Mapped::new(map, words * WORD)?;
        (0..words).for_each(|at| age(buckets.word64(at * WORD)));
        Ok(())
    }
}

const CAPPED: usize = offset_of!(types::cap, capped);
const CAPPED_SOURCE: usize = offset_of!(types::cap, capped_source);
const CAPPED_CONNECTIONS: usize = offset_of!(types::cap, capped_connections);
const LIMIT: usize = offset_of!(types::cap, limit);
