//! What was forwarded, and what was not and why.

use super::KernelPlane;
use super::hops::Hops;
use crate::abi::{Plain, types};
use crate::entries::BATCH;
use crate::error::{Context, Error};
use crate::reports::Unreported;
use libbpf_rs::libbpf_sys::bpf_map_lookup_batch;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::Ordering;
use weir_plane::{Counters, LaneCounters, Returned};
use weir_steering::BackendId;
use weir_wire::Reason;

impl KernelPlane {
    /// Clears a backend's counters and its cached next hops, before its number is used anew.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn reset_lane(&self, backend: BackendId) -> Result<(), Error> {
        self.reset_front_lane(backend);
        let cpus = libbpf_rs::num_possible_cpus().context(|| "count CPUs".into())?;
        let zero = vec![vec![0u8; size_of::<types::lane>()]; cpus];
        self.maps
            .lanes
            .update_percpu(&u32::from(backend.get()).to_ne_bytes(), &zero, MapFlags::ANY)
            .context(|| format!("clear the counters of backend {backend}"))
    }

    /// Forgets the next hops that the CPUs keep of a backend, each for 64 jiffies: the next packet
    /// asks. What packets count meanwhile is counted.
    ///
    /// # Errors
    /// [`Error::Bpf`] or [`Error::System`].
    pub fn forget_hop(&self, backend: BackendId) -> Result<(), Error> {
        if let Some(hops) = self.hops.get() {
            return hops.forget(backend);
        }
        let hops = Hops::over(&self.maps.lanes)?;
        self.hops.get_or_init(|| hops).forget(backend)
    }

    /// Frames that the program has sent since this was opened and that were lost before they left, by the
    /// number of the interface that they were to leave by; 0 stands for those beyond a thousand. `None`
    /// where the kernel does not tell.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn lost(&self) -> Result<Option<BTreeMap<u32, u64>>, Error> {
        self.lost.as_ref().map(super::lost::Lost::frames).transpose()
    }

    /// Counters of a backend, over all CPUs.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn lane(&self, backend: BackendId) -> Result<LaneCounters, Error> {
        let key = u32::from(backend.get()).to_ne_bytes();
        let mut sum = self.front_lane(backend);
        for lane in lookup_percpu(&self.maps.lanes, &key)? {
            let lane = types::lane::from_slice(&lane);
            sum.packets += lane.packets;
            sum.bytes += lane.bytes;
            sum.flows += lane.flows;
        }
        Ok(sum)
    }

    /// Counters of all backends, by number, over all CPUs.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn lanes(&self) -> Result<Vec<LaneCounters>, Error> {
        let numbers = 0..self.sizes.backends as u16;
        let front = |number| BackendId::new(number).map(|id| self.front_lane(id));
        let mut all: Vec<LaneCounters> =
            numbers.map(|number| front(number).unwrap_or_default()).collect();
        each_percpu(&self.maps.lanes, |backend, lane| {
            let lane = types::lane::from_slice(lane);
            if let Some(sum) = all.get_mut(backend as usize) {
                sum.packets += lane.packets;
                sum.bytes += lane.bytes;
                sum.flows += lane.flows;
            }
        })?;
        Ok(all)
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

    /// Answers that were translated.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn returned(&self) -> Result<Returned, Error> {
        let mut sum = Returned::default();
        for one in lookup_percpu(&self.maps.returned, &0u32.to_ne_bytes())? {
            let one = types::returned::from_slice(&one);
            sum.packets += one.packets;
            sum.bytes += one.bytes;
        }
        Ok(sum)
    }

    /// All counters, in the form that the oracle keeps them.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn counters(&self, backends: impl Iterator<Item = BackendId>) -> Result<Counters, Error> {
        let mut counters = Counters { returned: self.returned()?, ..Counters::default() };
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

    /// These flows were taken out of the *unreported* map, or all that were there: their services may have
    /// others in their place. What packets note at this moment may be counted as taken, too; such a service
    /// may have a few more than its share, until all is taken the next time.
    pub fn forget_untold(&self, flows: &[Unreported], all: bool) {
        let total = self.control.word64(offset_of!(types::control, untold));
        let services = (0..self.sizes.services as usize).map(|at| at * size_of::<i64>());
        if all {
            for at in services {
                let word = self.untold.word64(at);
                if word.load(Ordering::Relaxed) != 0 {
                    word.store(0, Ordering::Relaxed);
                }
            }
            total.store(0, Ordering::Relaxed);
            return;
        }
        for flow in flows.iter().filter(|flow| flow.state.service.0 < self.sizes.services) {
            let word = self.untold.word64(flow.state.service.index() * size_of::<i64>());
            word.fetch_sub(1, Ordering::Relaxed);
            total.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Flows that neither the ring nor the *unreported* map could take.
    pub fn unrecorded(&self) -> u64 {
        self.control.word64(offset_of!(types::control, unrecorded)).load(Ordering::Relaxed)
    }
}

/// Goes through all elements of an array with a value for each CPU, many of them in a system call:
/// the index, and the value of one CPU.
pub(super) fn each_percpu(map: &MapHandle, mut visit: impl FnMut(u32, &[u8])) -> Result<(), Error> {
    let doing = || format!("read map {:?}", map.name());
    let cpus = libbpf_rs::num_possible_cpus().context(|| "count CPUs".into())?;
    // The kernel keeps the value of each CPU at a multiple of eight bytes.
    let (value, stride) =
        (map.value_size() as usize, (map.value_size() as usize).next_multiple_of(8));
    let mut keys = vec![0u32; BATCH as usize];
    let mut values = vec![0u8; BATCH as usize * stride * cpus];
    let (mut from, mut next) = (None::<u32>, 0u32);
    loop {
        let mut count = BATCH;
        let start = from.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: there is room for `count` keys and values, each as large as the map's, and
        // `start` and `next` are positions in an array, which have four bytes.
        let status = unsafe {
            bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                start.cast(),
                (&raw mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                ptr::null(),
            )
        };
        let over = status == -libc::ENOENT;
        if status < 0 && !over {
            return Err(libbpf_rs::Error::from_raw_os_error(-status)).context(doing);
        }
        for (key, lanes) in keys.iter().zip(values.chunks_exact(stride * cpus)).take(count as usize)
        {
            lanes.chunks_exact(stride).for_each(|lane| visit(*key, &lane[..value]));
        }
        if over || count == 0 {
            return Ok(());
        }
        from = Some(next);
    }
}

pub(super) fn lookup_percpu(map: &MapHandle, key: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let found =
        map.lookup_percpu(key, MapFlags::ANY).context(|| format!("read map {:?}", map.name()))?;
    Ok(found.unwrap_or_default())
}
