//! What the program tells senders, and what routers tell it.

use super::KernelPlane;
use crate::abi::{Plain, types};
use crate::entries;
use crate::error::{Context, Error};
use crate::numbers::{ECHOES, ERRORS, LEAST_PATH_IPV4, MESSAGE_BURST, PATH_NANOSECONDS, RESETS};
use libbpf_rs::{MapCore, MapFlags};
use std::mem::offset_of;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_plane::Allowance;
use weir_wire::{icmp, map_address};

const _: () = assert!(MESSAGE_BURST == weir_plane::MESSAGE_BURST);
const _: () = assert!(PATH_NANOSECONDS == weir_plane::PATH_NANOSECONDS);
const _: () = assert!(LEAST_PATH_IPV4 == icmp::LEAST_PATH_IPV4);

/// The map of what became of first fragments.
const FRAGMENTS: &str = "fragments";
/// The map of the ways to clients.
const WAYS: &str = "ways";

/// The time by which the program notes what routers say.
pub(crate) fn monotonic() -> u64 {
    // SAFETY: a time of zeros is valid.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the time outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl KernelPlane {
    /// Sets how many ICMP errors, and how many replies to echo requests, each processor may send in a second.
    /// 0: none; echo requests are the kernel's then.
    pub fn set_message_rates(&self, errors: u32, echoes: u32) {
        for (kind, rate) in [(ERRORS, errors), (ECHOES, echoes)] {
            self.set_rate(kind, rate);
        }
    }

    /// Sets how many resets, of connections whose backend is down, each processor may send in a second.
    pub fn set_reset_rate(&self, resets: u32) {
        self.set_rate(RESETS, resets);
    }

    fn set_rate(&self, kind: u32, rate: u32) {
        let at = offset_of!(types::control, intervals) + kind as usize * size_of::<u64>();
        self.control.word64(at).store(Allowance::interval(rate), Ordering::Relaxed);
    }

    /// What a router has said of the way to a backend behind a tunnel, while it holds.
    ///
    /// # Errors
    /// [`Error::Bpf`] if it cannot be read.
    pub fn path_mtu(&self, to: IpAddr) -> Result<Option<u32>, Error> {
        let doing = || format!("ask for the MTU of the way to {to}");
        let found = self.maps.paths.lookup(&map_address(to), MapFlags::ANY).context(doing)?;
        let path = found.map(|value| types::path::from_slice(&value));
        let holds = |path: &types::path| monotonic().wrapping_sub(path.since) < PATH_NANOSECONDS;
        Ok(path.filter(holds).map(|path| path.mtu))
    }

    /// As if time had passed since routers said something, for tests.
    ///
    /// # Errors
    /// [`Error::Bpf`] if it cannot be written.
    #[doc(hidden)]
    pub fn age_paths(&self, by: Duration) -> Result<(), Error> {
        let mut told = Vec::new();
        entries::all(&self.maps.paths, |key, value| {
            told.push((key.to_vec(), types::path::from_slice(value)));
        })?;
        for (key, mut path) in told {
            path.since = path.since.wrapping_sub(by.as_nanos() as u64);
            let doing = || "make what routers said older".into();
            self.maps.paths.update(&key, path.bytes(), MapFlags::ANY).context(doing)?;
        }
        Ok(())
    }

    /// Forgets the ways to clients that processors keep, for tests.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    #[doc(hidden)]
    pub fn forget_ways(&self) -> Result<(), Error> {
        let map = self.shared.iter().find(|(name, _)| *name == WAYS);
        let (_, map) = map.ok_or_else(|| super::load::missing("map", WAYS))?;
        let doing = || "forget ways to clients".into();
        let cpus = libbpf_rs::num_possible_cpus().context(doing)?;
        let none = vec![vec![0u8; size_of::<types::lane>()]; cpus];
        for number in 0..map.max_entries() {
            map.update_percpu(&number.to_ne_bytes(), &none, MapFlags::ANY).context(doing)?;
        }
        Ok(())
    }

    /// Makes what is known of first fragments older by so many seconds.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn age_fragments(&self, seconds: u32) -> Result<(), Error> {
        let map = self.shared.iter().find(|(name, _)| *name == FRAGMENTS);
        let (_, map) = map.ok_or_else(|| super::load::missing("map", FRAGMENTS))?;
        let mut first = Vec::new();
        entries::all(map, |key, value| {
            first.push((key.to_vec(), types::fragment::from_slice(value)));
        })?;
        for (key, mut went) in first {
            went.clock = went.clock.wrapping_sub(seconds);
            let doing = || "make first fragments older".into();
            map.update(&key, went.bytes(), MapFlags::ANY).context(doing)?;
        }
        Ok(())
    }
}
