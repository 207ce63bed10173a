//! How many new flows services take: rates that packets read, and buckets that they write.

use super::KernelPlane;
use super::trace::monotonic;
use crate::abi::types;
use crate::error::{Context, Error};
use crate::mapped::Mapped;
use crate::numbers::CAP_ROW;
use crate::tables::service_of;
use crate::vips::{Leads, NO_TABLE};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_hash::HashKey;
use weir_plane::{Bucket, CappedFlows, FlowCaps, FlowRoom, Listen, Rate, SourceRate};
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
            for at in [offset_of!(types::cap, full), CAPPED, CAPPED_SOURCE] {
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
        let (interval, room) = words(caps.source.map(|each| each.rate));
        if let Some(each) = &caps.source {
            let ipv4 = mask(96 + u32::from(each.ipv4_bits));
            store(offset_of!(types::cap, mask4), ipv4[1]);
            for (at, word) in mask(each.ipv6_bits.into()).into_iter().enumerate() {
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
    }

    /// How many new flows of a service are taken; `None`: any number.
    pub fn flow_caps(&self, service: ServiceId) -> Option<FlowCaps> {
        if !self.capped.contains(&service) {
            return None;
        }
        let cap: types::cap = self.caps.load_record(service.0 as usize);
        let source = Rate::from_words(cap.source_interval, cap.source_room).map(|rate| {
            let ones = |word: u64| word.count_ones() as u8;
            let ipv6_bits = ones(cap.mask6[0]) + ones(cap.mask6[1]);
            // All of the half that says that it is IPv4 are set.
            SourceRate { rate, ipv4_bits: ones(cap.mask4) - 32, ipv6_bits }
        });
        let key = [cap.key.xor, cap.key.xor_wide, cap.key.mul1, cap.key.mul2];
        let bytes: Vec<u8> = key.iter().flat_map(|word| word.to_le_bytes()).collect();
        let key = HashKey::from_bytes(bytes.first_chunk()?);
        Some(FlowCaps { all: Rate::from_words(cap.interval, cap.room), source, key })
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
        caps.room(source, monotonic(), Bucket::full_at(full), of_prefixes).map(Some)
    }

    fn source_buckets(&self) -> Result<&(&'static str, MapHandle), Error> {
        let map = self.shared.iter().find(|(name, _)| *name == SOURCE_BUCKETS);
        map.ok_or_else(|| super::load::missing("map", SOURCE_BUCKETS))
    }

    /// New flows that were not taken of a service, since it has caps.
    pub fn capped_flows(&self, service: ServiceId) -> CappedFlows {
        if !self.capped.contains(&service) {
            return CappedFlows::default();
        }
        let count = |at: usize| self.cap_word(service, at).load(Ordering::Relaxed);
        CappedFlows { all: count(CAPPED), source: count(CAPPED_SOURCE) }
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
