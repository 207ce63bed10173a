//! Lookups in bursts: passes over blocks of keys in the vectors that the processor has, with the
//! memory of the next block on its way.

pub(crate) mod batch;
pub mod gather;
mod prefetch;
pub(crate) mod vector;

pub use batch::{BATCH, pipeline, pipeline_vectored};
pub use prefetch::prefetch;
pub use vector::{Vectors, Work, vectorised};
