//! Connections under full NAT, and the addresses that they have towards backends.

use super::KernelPlane;
use super::by_id::follow;
use super::messages::monotonic;
use crate::abi::{Plain, address_words, types};
use crate::error::Error;
use crate::numbers::{
    MAPPING_ANSWERED, MAPPING_BACKEND_ENDED, MAPPING_BUSY, MAPPING_CLIENT_ENDED, MAPPING_HELD,
    MAPPING_RESET, MAPPING_TICK_SHIFT, MAPPING_TRIES, ORIGINS, TRANSLATED_ORIGIN, UNUSUAL_FULL_NAT,
    UNUSUAL_NAT,
};
use crate::reports;
use libbpf_rs::{MapCore, MapFlags};
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_hash::HashKey;
use weir_plane::forward::{Mapping, MappingRules, MappingState, MappingTicks, Origin, mapping};
use weir_steering::BackendId;
use weir_wire::{FlowKey, Protocol, unmap_address};

const _: () = assert!(
    ORIGINS as usize == mapping::ORIGINS
        && MAPPING_TRIES == mapping::MAPPING_TRIES
        && MAPPING_TICK_SHIFT == mapping::MAPPING_TICK_SHIFT,
    "both pipelines make the same of a packet"
);

/// Where the words of the key stand, and the times.
const KEY_AT: usize = offset_of!(types::control, mapping_key);
const TICKS_AT: usize = offset_of!(types::control, mapping_ticks);

impl KernelPlane {
    /// Makes mappings by these rules from now on; those that are there stay.
    ///
    /// # Errors
    /// [`Error::Bpf`] if the addresses cannot be set.
    pub fn set_mapping_rules(&mut self, rules: &MappingRules) -> Result<(), Error> {
        for (at, word) in rules.key.words().into_iter().enumerate() {
            self.control.word64(KEY_AT + at * size_of::<u64>()).store(word, Ordering::Relaxed);
        }
        let MappingTicks { opening, closed, tcp, udp } = rules.ticks;
        for (at, ticks) in [opening, closed, tcp, udp].into_iter().enumerate() {
            self.control.word32(TICKS_AT + at * size_of::<u32>()).store(ticks, Ordering::Relaxed);
        }
        let mut entries = Vec::new();
        for (number, origin) in rules.origins.iter().take(ORIGINS as usize).enumerate() {
            let Some(origin) = origin else { continue };
            let address = address_words(&weir_wire::map_address(origin.address));
            self.origins.store_record(number, &types::origin { address }, 0);
            let key = types::translated { address, port_protocol: TRANSLATED_ORIGIN, reserved: 0 };
            let range = u64::from(origin.first_port) | u64::from(origin.last_port) << 16;
            let (address, port) = ([range, 0], number as u32);
            let to = types::translation { address, port, limits: 0 };
            entries.push((key.bytes().to_vec(), to.bytes().to_vec()));
        }
        let word = self.control.word32(offset_of!(types::control, unusual));
        let before = word.load(Ordering::Relaxed);
        // Nothing is to be read, nor was there before.
        if entries.is_empty() && before & UNUSUAL_FULL_NAT == 0 {
            return Ok(());
        }
        let stale = follow(&self.maps.translations, &entries, is_origin)?;
        stale.iter().try_for_each(|key| reports::delete(&self.maps.translations, key))?;
        let flags = if entries.is_empty() { 0 } else { UNUSUAL_FULL_NAT | UNUSUAL_NAT };
        let kept = before & !UNUSUAL_FULL_NAT;
        word.store(kept | flags, Ordering::Release);
        Ok(())
    }

    /// The rules that mappings are made by.
    pub fn mapping_rules(&self) -> Option<MappingRules> {
        let word = |at: usize| self.control.word64(KEY_AT + at * 8).load(Ordering::Relaxed);
        let bytes: Vec<u8> = (0..4).flat_map(|at| word(at).to_le_bytes()).collect();
        let key = HashKey::from_bytes(&bytes.try_into().ok()?);
        let tick = |at: usize| self.control.word32(TICKS_AT + at * 4).load(Ordering::Relaxed);
        let ticks = MappingTicks { opening: tick(0), closed: tick(1), tcp: tick(2), udp: tick(3) };
        let origins: Vec<_> = (0..ORIGINS as usize).map(|number| self.origin(number)).collect();
        let last = origins.iter().rposition(Option::is_some)?;
        Some(MappingRules { key, ticks, origins: origins[..=last].to_vec() })
    }

    fn origin(&self, number: usize) -> Option<Origin> {
        let types::origin { address } = self.origins.load_record(number);
        let key = types::translated { address, port_protocol: TRANSLATED_ORIGIN, reserved: 0 };
        let found = self.maps.translations.lookup(key.bytes(), MapFlags::ANY).ok()??;
        let to = types::translation::from_slice(&found);
        let (first_port, last_port) = (to.address[0] as u16, (to.address[0] >> 16) as u16);
        let address = unmap_address(&bytes_of(address));
        (to.port as usize == number).then_some(Origin { address, first_port, last_port })
    }

    /// Places in the table of mappings.
    pub fn mapping_places(&self) -> usize {
        self.sizes.mappings as usize
    }

    /// The mapping that stands at a place.
    pub fn mapping(&self, place: usize) -> Option<Mapping> {
        let at = place * size_of::<types::mapping>();
        let word = || self.mappings.word64(at).load(Ordering::Acquire);
        let before = word();
        if before as u32 & (MAPPING_HELD | MAPPING_BUSY) != MAPPING_HELD {
            return None;
        }
        let found: types::mapping = self.mappings.load_record(place);
        // Somebody else's meanwhile.
        if word() as u32 & !FLAGS != before as u32 & !FLAGS {
            return None;
        }
        let [src, dst] = [found.client, found.vip].map(bytes_of);
        let [src_port, dst_port] =
            [found.ports as u16, (found.ports >> 16) as u16].map(u16::from_be);
        let protocol = match found.protocol {
            6 => Protocol::Tcp,
            _ => Protocol::Udp,
        };
        let has = |flag| before as u32 & flag != 0;
        Some(Mapping {
            flow: FlowKey { src, dst, src_port, dst_port, protocol },
            backend: BackendId::new(found.backend)?,
            incarnation: found.incarnation,
            origin: found.origin,
            port: u16::from_be(found.port),
            since: found.since,
            last: (before >> 32) as u32,
            state: MappingState {
                answered: has(MAPPING_ANSWERED),
                client_ended: has(MAPPING_CLIENT_ENDED),
                backend_ended: has(MAPPING_BACKEND_ENDED),
                reset: has(MAPPING_RESET),
            },
        })
    }

    /// The tick that mappings grow old by.
    pub fn mapping_tick(&self) -> u32 {
        (monotonic() >> MAPPING_TICK_SHIFT) as u32
    }

    /// Forgets all mappings, for tests that begin anew.
    #[doc(hidden)]
    pub fn forget_mappings(&self) {
        for place in 0..self.mapping_places() {
            self.mappings.word64(place * size_of::<types::mapping>()).store(0, Ordering::Relaxed);
        }
    }

    /// Makes all mappings older, for tests that do not wait.
    #[doc(hidden)]
    pub fn age_mappings(&self, ticks: u32) {
        for place in 0..self.mapping_places() {
            let word = self.mappings.word64(place * size_of::<types::mapping>());
            let before = word.load(Ordering::Relaxed);
            if before as u32 & MAPPING_HELD != 0 {
                let last = ((before >> 32) as u32).wrapping_sub(ticks);
                word.store(u64::from(last) << 32 | before & 0xffff_ffff, Ordering::Relaxed);
            }
        }
    }
}

/// What packets change of a mapping's word.
const FLAGS: u32 = MAPPING_ANSWERED | MAPPING_CLIENT_ENDED | MAPPING_BACKEND_ENDED | MAPPING_RESET;

/// Whether a key of the translations is an address of the balancer's.
pub(super) fn is_origin(key: &[u8]) -> bool {
    types::translated::from_slice(key).port_protocol & TRANSLATED_ORIGIN != 0
}

fn bytes_of(words: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
    bytes
}
