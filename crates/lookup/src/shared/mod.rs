//! Tables that threads read while one changes them: versions of their parts, a hub that replaces
//! whole tables, and cells under versions.

pub(crate) mod cells;
pub(crate) mod hub;
pub(crate) mod version;

/// What versions are made of; a model of them is made of other atomics.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
}
