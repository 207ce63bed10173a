//! The same names, without DPDK.

use crate::{Buffers, Counts, Error, Link, Memory, Pair};
use std::convert::Infallible;
use weir_offload::{Answer, Limits, Location, Refusal, Rule, Rules, Serial};
use weir_plane_burst::{BURST, Frame, Ports};

/// DPDK in this process: never.
#[derive(Clone, Copy, Debug)]
pub struct Eal(Infallible);

impl Eal {
    /// Says that there is none.
    ///
    /// # Errors
    /// [`Error::NotBuilt`].
    pub fn start(_: Memory) -> Result<Self, Error> {
        Err(Error::NotBuilt)
    }

    /// Says that there is none.
    ///
    /// # Errors
    /// [`Error::NotBuilt`].
    pub fn start_for(_: Memory, _: &[&str]) -> Result<Self, Error> {
        Err(Error::NotBuilt)
    }
}

/// What a thread gets: never.
#[derive(Debug)]
pub struct Share(Infallible);

impl Share {
    /// As with DPDK.
    ///
    /// # Errors
    /// There is no DPDK to come here with.
    pub fn enter(self) -> Result<Dpdk, Error> {
        match self.0 {}
    }

    /// As with DPDK.
    pub fn leave(self) {
        match self.0 {}
    }
}

/// DPDK's ports: never.
#[derive(Debug)]
pub struct Dpdk(Infallible);

impl Dpdk {
    /// As with DPDK.
    ///
    /// # Errors
    /// There is no DPDK to come here with.
    pub fn open(eal: Eal, _: &[&str], _: Option<&str>, _: Buffers) -> Result<Self, Error> {
        match eal.0 {}
    }

    /// As with DPDK.
    ///
    /// # Errors
    /// There is no DPDK to come here with.
    pub fn open_pairs(eal: Eal, _: &[Pair<'_>], _: Buffers) -> Result<Self, Error> {
        match eal.0 {}
    }

    /// As with DPDK.
    ///
    /// # Errors
    /// There is no DPDK to come here with.
    pub fn open_for(
        eal: Eal,
        _: &[&str],
        _: Option<&str>,
        _: u16,
        _: Buffers,
    ) -> Result<Vec<Share>, Error> {
        match eal.0 {}
    }

    /// As with DPDK.
    ///
    /// # Errors
    /// There is no DPDK to come here with.
    pub fn open_pairs_for(
        eal: Eal,
        _: &[Pair<'_>],
        _: u16,
        _: Buffers,
    ) -> Result<Vec<Share>, Error> {
        match eal.0 {}
    }

    /// As with DPDK.
    ///
    /// # Errors
    /// There is no DPDK to come here with.
    pub fn open_pairs_led(
        eal: Eal,
        _: &[Pair<'_>],
        _: u16,
        _: Buffers,
    ) -> Result<Vec<Share>, Error> {
        match eal.0 {}
    }

    /// As with DPDK.
    pub fn leave(self) {
        match self.0 {}
    }

    /// As with DPDK.
    #[must_use]
    pub fn keeping(self) -> Self {
        match self.0 {}
    }

    /// As with DPDK.
    pub fn missed(&self) -> (u64, u64) {
        match self.0 {}
    }

    /// As with DPDK.
    pub fn counts(&self) -> Counts {
        match self.0 {}
    }

    /// As with DPDK.
    pub fn link(&self, _: usize) -> Link {
        match self.0 {}
    }

    /// As with DPDK.
    pub fn interface(&self, _: usize) -> u32 {
        match self.0 {}
    }

    /// As with DPDK.
    ///
    /// # Errors
    /// There is no DPDK to come here with.
    pub fn still_there(&self) -> Result<(), Error> {
        match self.0 {}
    }

    /// As with DPDK.
    ///
    /// # Errors
    /// There is no DPDK to come here with.
    pub fn flows(&self, _: usize, _: u32) -> Result<Flows, Refusal> {
        match self.0 {}
    }

    /// As with DPDK.
    ///
    /// # Errors
    /// There is no DPDK to come here with.
    pub fn put(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
        match self.0 {}
    }

    /// As with DPDK.
    pub fn take(&mut self, _: usize) -> Vec<Vec<u8>> {
        match self.0 {}
    }

    /// As with DPDK.
    pub fn free_buffers(&self) -> u32 {
        match self.0 {}
    }
}

impl Ports for Dpdk {
    type Error = Error;

    fn receive(&mut self, _: &mut [Frame; BURST]) -> Result<usize, Error> {
        match self.0 {}
    }

    fn memory(&mut self) -> &mut [u8] {
        match self.0 {}
    }

    fn finish(&mut self, _: &[Frame]) -> Result<(), Error> {
        match self.0 {}
    }
}

/// Rules of a device: never.
#[derive(Debug)]
pub struct Flows(Infallible);

impl Rules for Flows {
    fn limits(&self) -> Limits {
        match self.0 {}
    }

    fn insert(&mut self, _: Location, _: &Rule, _: Serial) -> Result<(), Refusal> {
        match self.0 {}
    }

    fn delete(&mut self, _: Location, _: Serial) -> Result<(), Refusal> {
        match self.0 {}
    }

    fn answers(&mut self, _: &mut dyn FnMut(Answer)) {
        match self.0 {}
    }

    fn hits(&mut self, _: Location) -> Option<u64> {
        match self.0 {}
    }
}
