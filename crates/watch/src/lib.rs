//! What is shown of a running balancer to whoever watches it: the screen of `weir top`, and the packets of
//! `weir trace` in words and in files of pcapng.
//!
//! It asks an instance as every client does, and knows nothing of command lines.
#![forbid(unsafe_code)]

mod capture;
mod screen;
mod words;

pub use capture::{Capture, may_create};
pub use screen::run;
pub use words::{sentence, weight};
