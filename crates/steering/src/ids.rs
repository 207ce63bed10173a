//! Numbers that must not be mistaken for each other.

use crate::table::{NO_BACKEND, SLOT_BACKEND};
use std::fmt;

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
