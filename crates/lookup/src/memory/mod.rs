//! How tables lie in memory: fields and cells of any width without gaps, lists of neighbours, large
//! pages.

pub(crate) mod adjacency;
pub(crate) mod bits;
pub(crate) mod packed;
pub(crate) mod pages;
