//! Numbers that must not be mistaken for each other.

use crate::table::{NO_BACKEND, SLOT_BACKEND};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU16;

/// A backend's number in the data plane, below [`NO_BACKEND`]. In tables and in hot loops it is
/// a bare `u16`, where [`NO_BACKEND`] stands for none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(transparent)]
pub struct BackendId(u16);

impl BackendId {
    /// The backend with this number; `None` from [`NO_BACKEND`] on, which no backend has.
    #[inline(always)]
    pub const fn new(number: u16) -> Option<Self> {
        if number < NO_BACKEND { Some(Self(number)) } else { None }
    }

    /// The backend with a number that is known to be one: a constant, or one that was checked.
    ///
    /// # Panics
    /// From [`NO_BACKEND`] on.
    #[inline(always)]
    pub const fn of(number: u16) -> Self {
        assert!(number < NO_BACKEND, "no backend has this number");
        Self(number)
    }

    /// Its place in an array that has one for each backend.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The backend that an entry of a table names, whatever its reserved bit says.
    #[inline(always)]
    pub const fn of_slot(slot: u16) -> Option<Self> {
        Self::new(slot & SLOT_BACKEND)
    }

    /// The bare number, as tables and the kernel have it.
    #[inline(always)]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// As tables hold it: the number, or [`NO_BACKEND`].
    #[inline(always)]
    pub fn to_slot(backend: Option<Self>) -> u16 {
        backend.map_or(NO_BACKEND, Self::get)
    }
}

/// What is known by backend, and asked for with each packet. Who chooses the numbers is ourselves, so nobody can
/// make them share a place.
pub type ByBackend<V> = HashMap<BackendId, V, BuildHasherDefault<OfNumber>>;

/// Spreads a small number over 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfNumber(u64);

impl Hasher for OfNumber {
    fn finish(&self) -> u64 {
        // A map takes its places from either end.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u16((*byte).into()));
    }

    fn write_u16(&mut self, number: u16) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl From<BackendId> for u16 {
    #[inline(always)]
    fn from(backend: BackendId) -> Self {
        backend.0
    }
}

/// Compares with a bare number, as tables and pools hold it.
impl PartialEq<u16> for BackendId {
    #[inline(always)]
    fn eq(&self, number: &u16) -> bool {
        self.0 == *number
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A Dcode of Concury (section 4 of the paper): the place in the DIP array at which a flow's backend stands, below
/// 2^15. One that there may not be takes no more memory than one that is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Dcode(NonZeroU16);

impl Dcode {
    /// The Dcode that a cell of a lookup structure holds, in its lower 15 bits.
    #[inline(always)]
    pub const fn of_cell(cell: u32) -> Self {
        Self(match NonZeroU16::new((cell as u16) << 1 | 1) {
            Some(odd) => odd,
            None => unreachable!(),
        })
    }

    /// Its place in the DIP array.
    #[inline(always)]
    pub const fn index(self) -> usize {
        (self.0.get() >> 1) as usize
    }

    /// As a cell holds it.
    #[inline(always)]
    pub const fn cell(self) -> u32 {
        (self.0.get() >> 1) as u32
    }
}

impl fmt::Display for Dcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cell().fmt(f)
    }
}

/// A service's number in the data plane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct ServiceId(pub u32);

impl ServiceId {
    /// Its place in an array that has one for each service.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<u32> for ServiceId {
    #[inline(always)]
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl From<ServiceId> for u32 {
    #[inline(always)]
    fn from(service: ServiceId) -> Self {
        service.0
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
