//! Packets that are led by their QUIC ids: configurations, servers, and what became of ids.

use super::KernelPlane;
use crate::abi::{Plain, types};
use crate::entries;
use crate::error::{Context, Error};
use crate::numbers::{QUIC_CONFIGS, QUIC_FOUR, QUIC_PLAIN, QUIC_SINGLE, QUIC_THREE};
use crate::reports;
use crate::tables::service_of;
use crate::vips::Leads;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::{IdOutcome, IdOutcomes, IdRoutes, Listen};
use weir_steering::{BackendId, ServiceId};
use weir_wire::aes;
use weir_wire::quic::{Id, QuicLb};

/// Bytes of an AES block.
const BLOCK: usize = 16;

/// The lengths of each service's ids: a byte for each configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct ByIds(HashMap<ServiceId, u64>);

impl ByIds {
    /// As an earlier run has left them.
    pub fn found(listed: &[(Listen, Leads)]) -> Self {
        let led = listed.iter().filter(|(_, leads)| leads.id_lengths != 0);
        Self(led.map(|(_, leads)| (service_of(leads.table), leads.id_lengths)).collect())
    }

    /// Those of a service; 0: its packets are not led by ids.
    pub fn lengths(&self, service: ServiceId) -> u64 {
        self.0.get(&service).copied().unwrap_or(0)
    }
}

impl KernelPlane {
    /// Leads packets of a service by their QUIC ids first, from now on; `None`: no more.
    ///
    /// # Errors
    /// [`Error::Bpf`] if there is no room for so many configurations or servers.
    pub fn set_id_routes(
        &mut self,
        service: ServiceId,
        routes: Option<&IdRoutes>,
    ) -> Result<(), Error> {
        let none = IdRoutes::default();
        let wanted = routes.unwrap_or(&none);
        let lengths = wanted.configs().fold(0, |lengths, config| {
            lengths | (config.id_length() as u64) << (8 * config.rotation())
        });
        if lengths == 0 {
            if self.ids.0.remove(&service).is_none() {
                return Ok(());
            }
            // Before what leads them is gone.
            self.lead_again(service)?;
        }
        let configs: Vec<_> = wanted.configs().map(|one| config_entry(service, one)).collect();
        let servers: Vec<_> = wanted
            .servers()
            .map(|(config, id, at)| server_entry(service, config, id, at))
            .collect();
        let of = |key: u32| ServiceId(key / QUIC_CONFIGS) == service;
        let config_of = |key: &[u8]| of(number_of(key));
        let server_of = |key: &[u8]| of(types::quic_server::from_slice(key).config);
        let stale = follow(&self.maps.quic_servers, &servers, server_of)?;
        let unused = follow(&self.maps.quic_configs, &configs, config_of)?;
        stale.iter().try_for_each(|key| reports::delete(&self.maps.quic_servers, key))?;
        unused.iter().try_for_each(|key| reports::delete(&self.maps.quic_configs, key))?;
        // What processors remember counts no more. Last: what is remembered from here on is new.
        let generation = self.control.word64(offset_of!(types::control, quic_generation));
        generation.fetch_add(1, Ordering::SeqCst);
        if lengths != 0 && self.ids.0.insert(service, lengths) != Some(lengths) {
            self.lead_again(service)?;
        }
        Ok(())
    }

    /// What became of packets that could be led by their ids.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn id_outcomes(&self) -> Result<IdOutcomes, Error> {
        let mut sums = BTreeMap::new();
        for outcome in IdOutcome::ALL {
            let key = u32::from(outcome as u8).to_ne_bytes();
            let found = super::counters::lookup_percpu(&self.maps.quic_outcomes, &key)?;
            let counts = found.iter().filter_map(|count| count.first_chunk());
            sums.insert(outcome, counts.map(|count| u64::from_ne_bytes(*count)).sum());
        }
        Ok(sums)
    }
}

/// Writes what is not there so already. Returns the keys of what is there and not wanted.
pub(super) fn follow(
    map: &MapHandle,
    wanted: &[(Vec<u8>, Vec<u8>)],
    ours: impl Fn(&[u8]) -> bool,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut there: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    entries::all(map, |key, value| {
        if ours(key) {
            there.insert(key.to_vec(), value.to_vec());
        }
    })?;
    for (key, value) in wanted {
        if there.remove(key).as_ref() != Some(value) {
            map.update(key, value, MapFlags::ANY)
                .context(|| format!("write into map {:?}", map.name()))?;
        }
    }
    Ok(there.into_keys().collect())
}

fn number_of(key: &[u8]) -> u32 {
    key.first_chunk().map_or(u32::MAX, |bytes| u32::from_ne_bytes(*bytes))
}

/// The words of up to 16 bytes.
fn words(bytes: &[u8]) -> [u64; 2] {
    let mut whole = [0; BLOCK];
    whole[..bytes.len()].copy_from_slice(bytes);
    let words = whole.as_chunks().0;
    [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])]
}

fn server_entry(service: ServiceId, config: u8, id: &Id, backend: BackendId) -> (Vec<u8>, Vec<u8>) {
    let config = service.0 * QUIC_CONFIGS + u32::from(config);
    let key = types::quic_server { id: words(id.as_bytes()), config, reserved: 0 };
    (key.bytes().to_vec(), u32::from(backend.get()).to_ne_bytes().to_vec())
}

fn config_entry(service: ServiceId, config: &QuicLb) -> (Vec<u8>, Vec<u8>) {
    let key = service.0 * QUIC_CONFIGS + u32::from(config.rotation());
    let block = config.id_length() - 1;
    let (half, odd) = (block.div_ceil(2), !block.is_multiple_of(2));
    let (mut left, mut right) = ([0xff; BLOCK], [0xff; BLOCK]);
    left[half..].fill(0);
    right[half..].fill(0);
    if odd {
        // The byte in the middle is in both halves, four bits in each.
        left[half - 1] = 0xf0;
        right[0] = 0x0f;
    }
    let way = match config.key() {
        None => QUIC_PLAIN,
        Some(_) if block == BLOCK => QUIC_SINGLE,
        Some(_) if config.server_id_length() <= block / 2 => QUIC_THREE,
        Some(_) => QUIC_FOUR,
    };
    let keys = match config.key() {
        None => [0; aes::KEY_WORDS],
        Some(key) if way == QUIC_SINGLE => aes::expand_inverse(key),
        Some(key) => aes::expand(key),
    };
    let entry = types::quic_config {
        left: words(&left),
        right: words(&right),
        server: words(&[0xff; BLOCK][..config.server_id_length()]),
        keys,
        way,
        block: block as u8,
        right_at: (block - half) as u8,
        least: if config.says_length() { block as u8 } else { 0 },
        reserved: 0,
    };
    (key.to_ne_bytes().to_vec(), entry.bytes().to_vec())
}
