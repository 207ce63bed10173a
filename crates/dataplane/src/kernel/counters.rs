//! What was forwarded, and what was not and why.

use super::KernelPlane;
use crate::abi::{Plain, types};
use crate::error::{Context, Error};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::{Counters, LaneCounters};
use weir_wire::Reason;

impl KernelPlane {
    /// Clears a backend's counters and its cached next hops, before its number is used anew.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn reset_lane(&self, backend: u16) -> Result<(), Error> {
        let cpus = libbpf_rs::num_possible_cpus().context(|| "count CPUs".into())?;
        let zero = vec![vec![0u8; size_of::<types::lane>()]; cpus];
        self.maps
            .lanes
            .update_percpu(&u32::from(backend).to_ne_bytes(), &zero, MapFlags::ANY)
            .context(|| format!("clear the counters of backend {backend}"))
    }

    /// Forgets the next hops that the CPUs keep of a backend, each for 64 jiffies: the next packet
    /// asks. What a CPU counts at this very moment may be lost.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn forget_hop(&self, backend: u16) -> Result<(), Error> {
        let key = u32::from(backend).to_ne_bytes();
        let mut lanes = lookup_percpu(&self.maps.lanes, &key)?;
        for lane in &mut lanes {
            let at = offset_of!(types::lane, resolved);
            lane[at..at + size_of::<u64>()].fill(0);
        }
        self.maps
            .lanes
            .update_percpu(&key, &lanes, MapFlags::ANY)
            .context(|| format!("forget the next hop of backend {backend}"))
    }

    /// Counters of a backend, over all CPUs.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn lane(&self, backend: u16) -> Result<LaneCounters, Error> {
        let key = u32::from(backend).to_ne_bytes();
        let mut sum = LaneCounters::default();
        for lane in lookup_percpu(&self.maps.lanes, &key)? {
            let lane = types::lane::from_slice(&lane);
            sum.packets += lane.packets;
            sum.bytes += lane.bytes;
            sum.flows += lane.flows;
        }
        Ok(sum)
    }

    /// Packets that were not forwarded, by reason: (passed to the kernel, dropped).
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn outcomes(&self) -> Result<BTreeMap<Reason, (u64, u64)>, Error> {
        let mut found = BTreeMap::new();
        for &reason in Reason::ALL {
            let key = u32::from(reason.code()).to_ne_bytes();
            let (mut passed, mut dropped) = (0, 0);
            for counts in lookup_percpu(&self.maps.outcomes, &key)? {
                let counts = types::outcome::from_slice(&counts);
                passed += counts.passed;
                dropped += counts.dropped;
            }
            if passed + dropped > 0 {
                found.insert(reason, (passed, dropped));
            }
        }
        Ok(found)
    }

    /// All counters, in the form that the oracle keeps them.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn counters(&self, backends: impl Iterator<Item = u16>) -> Result<Counters, Error> {
        let mut counters = Counters::default();
        for backend in backends {
            let lane = self.lane(backend)?;
            if lane != LaneCounters::default() {
                counters.lanes.insert(backend, lane);
            }
        }
        for (reason, (passed, dropped)) in self.outcomes()? {
            if passed > 0 {
                counters.passed.insert(reason, passed);
            }
            if dropped > 0 {
                counters.dropped.insert(reason, dropped);
            }
        }
        Ok(counters)
    }

    /// Flows that neither the ring nor the *unreported* map could take.
    pub fn unrecorded(&self) -> u64 {
        self.control.word64(offset_of!(types::control, unrecorded)).load(Ordering::Relaxed)
    }
}

fn lookup_percpu(map: &MapHandle, key: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let found =
        map.lookup_percpu(key, MapFlags::ANY).context(|| format!("read map {:?}", map.name()))?;
    Ok(found.unwrap_or_default())
}
