//! What schedulers remember: loads of backends, and turns of services.

use super::KernelPlane;
use crate::abi::types;
use crate::error::Error;
use crate::numbers::{ANSWER_COUNTED, TRACKED_OPEN};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weir_steering::{BackendId, BackendLoad, Image, ServiceId};

impl KernelPlane {
    /// The words of a backend's load: what is counted, and the weight. None beyond the bound.
    fn load_words(&self, backend: BackendId) -> Option<(&AtomicU64, &AtomicU32)> {
        let at = backend.index() * size_of::<types::load>();
        let there = u32::from(backend.get()) < self.sizes.backends;
        there.then(|| {
            let value = self.loads.word64(at + offset_of!(types::load, value));
            (value, self.loads.word32(at + offset_of!(types::load, weight)))
        })
    }

    /// The word of what its connections echo.
    pub(super) fn echoes_word(&self, backend: BackendId) -> Option<&AtomicU32> {
        let at = backend.index() * size_of::<types::load>();
        let there = u32::from(backend.get()) < self.sizes.backends;
        there.then(|| self.loads.word32(at + offset_of!(types::load, echoes)))
    }

    /// What another memory has noted of them.
    pub(super) fn copy_echoes(&self, backend: BackendId, from: &Self) {
        if let (Some(to), Some(from)) = (self.echoes_word(backend), from.echoes_word(backend)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Another backend gets the number: nothing is known of what its connections echo.
    pub fn forget_echoes(&self, backend: BackendId) {
        if let Some(word) = self.echoes_word(backend) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The load of a backend.
    pub fn load(&self, backend: BackendId) -> BackendLoad {
        self.load_words(backend).map_or_else(BackendLoad::default, |(value, weight)| BackendLoad {
            value: value.load(Ordering::Relaxed) as i64,
            weight: weight.load(Ordering::Relaxed),
        })
    }

    /// Sets the weight by which the load of a backend is compared, and the load, unless packets count
    /// it.
    pub fn set_load(&self, backend: BackendId, weight: u32, load: Option<i64>) {
        if let Some((value, weight_word)) = self.load_words(backend) {
            weight_word.store(weight, Ordering::Relaxed);
            if let Some(load) = load {
                value.store(load as u64, Ordering::Relaxed);
            }
        }
    }

    /// Adds to the load of a backend, while packets count.
    pub fn add_load(&self, backend: BackendId, by: i64) {
        if let Some((value, _)) = self.load_words(backend) {
            value.fetch_add(by as u64, Ordering::Relaxed);
        }
    }

    /// Turns that a service has had.
    pub fn turn(&self, service: ServiceId) -> u64 {
        let there = service.0 < self.sizes.services;
        if there { self.turn_word(service).load(Ordering::Relaxed) } else { 0 }
    }

    /// Goes on from this turn of a service.
    pub(super) fn set_turn(&self, service: ServiceId, turn: u64) {
        self.turn_word(service).store(turn, Ordering::Relaxed);
    }

    fn turn_word(&self, service: ServiceId) -> &AtomicU64 {
        self.turns.word64(service.index() * size_of::<u64>())
    }

    /// The connections of a service that count as open, by backend, as the connection table and the
    /// timestamps of answers have them.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn open_connections(&self, service: ServiceId) -> Result<BTreeMap<BackendId, i64>, Error> {
        let mut open = BTreeMap::new();
        for (_, entry) in self.entries_of::<types::tracked>(service, &self.maps.connections)? {
            let present = self.present(entry.backend, entry.incarnation);
            if let Some(backend) = present.filter(|_| entry.number == TRACKED_OPEN) {
                *open.entry(backend).or_default() += 1;
            }
        }
        let Some(Image::Cheetah(table)) = self.published(service)? else { return Ok(open) };
        let servers = &table.body().0.servers;
        for (_, entry) in self.entries_of::<types::answer>(service, &self.maps.answers)? {
            let backend = servers.backend(entry.number).and_then(BackendId::new);
            if let Some(backend) = backend.filter(|_| entry.flags & ANSWER_COUNTED != 0) {
                *open.entry(backend).or_default() += 1;
            }
        }
        Ok(open)
    }
}
