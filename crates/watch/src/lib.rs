//! What is shown of a running balancer to whoever watches it: the screen of `weir top`, the packets of `weir trace` in
//! words and in files of pcapng, and in words what it answers (`weir status`, `explain`, `plan`, `history`, `fleet`).
//!
//! It asks an instance as every client does, and knows nothing of command lines.
#![forbid(unsafe_code)]

mod capture;
mod explain;
mod fleet;
mod history;
mod plan;
mod screen;
mod sources;
mod status;
mod text;
mod words;

pub use capture::{Capture, may_create};
pub use explain::explanation;
pub use fleet::fleet;
pub use history::history;
pub use plan::plan;
pub use screen::run;
pub use sources::{Listed, sources};
pub use status::status;
pub use text::table;
pub use words::{Sentences, packet, sentence, weight};
