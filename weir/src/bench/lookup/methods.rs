//! The methods that can be measured, and how each is made ready.

mod baselines;
mod concury;
mod jet;
mod residue;

use super::bound::Reads;
use super::subject::Subject;
use super::world::{Control, World};
use anyhow::Result;

/// A method made ready: its flows are known, its pool has changed once since they began.
pub struct Ready {
    /// One for each thread.
    pub readers: Vec<Box<dyn Subject>>,
    /// Where each flow lives, by number.
    pub owners: Vec<u16>,
    /// Changes the pool, and learns of new flows.
    pub control: Box<dyn Control>,
    /// What a lookup must at least read.
    pub reads: Reads,
    /// Bytes that packets may read and [`Steer::bytes`](weir_steering::Steer::bytes) leaves out.
    pub more_bytes: usize,
    /// Packets write the tables, so each thread has its own for its part of the flows.
    pub sharded: bool,
    /// Share of the flows whose packets may go astray, as the method's documentation says.
    pub tolerated: f64,
}

/// A method by its name.
pub struct Method {
    /// The name.
    pub name: &'static str,
    /// What holds its states, where there is a choice.
    pub codec: Option<&'static str>,
    /// A table of digests, with which others are compared.
    pub digest: bool,
    /// Makes it ready.
    pub make: fn(&World) -> Result<Ready>,
}

const fn method(name: &'static str, make: fn(&World) -> Result<Ready>) -> Method {
    Method { name, codec: None, digest: false, make }
}

const fn digest(name: &'static str, make: fn(&World) -> Result<Ready>) -> Method {
    Method { name, codec: None, digest: true, make }
}

const fn coded(
    name: &'static str,
    codec: &'static str,
    make: fn(&World) -> Result<Ready>,
) -> Method {
    Method { name, codec: Some(codec), digest: false, make }
}

/// All of them. A new method is one more line here, and its `make`.
pub const METHODS: &[Method] = &[
    method("ecmp", baselines::ecmp),
    method("maglev", baselines::maglev),
    method("hrw-table", baselines::hrw_table),
    method("ring", baselines::ring),
    method("anchor", baselines::anchor),
    method("chain", baselines::chain),
    digest("digest", baselines::digest::<4>),
    digest("digest-6", baselines::digest::<6>),
    digest("multi-digest", baselines::multi_digest),
    method("full-tracking", jet::full_tracking),
    method("jet-hrw", jet::hrw),
    method("jet-ring", jet::ring),
    method("jet-table", jet::table),
    method("jet-anchor", jet::anchor),
    coded("concury", "othello", concury::othello),
    coded("concury", "fuse", concury::fuse),
    method("residue", residue::exact),
];

/// The methods of these names; `concury` means both codecs, `concury-fuse` one of them. All if
/// there are none.
///
/// # Errors
///
/// A name that no method has.
pub fn find(names: &[String]) -> Result<Vec<&'static Method>> {
    let called = |method: &Method, name: &str| {
        let whole = method.codec.map(|codec| format!("{}-{codec}", method.name));
        method.name == name || whole.as_deref() == Some(name)
    };
    for name in names {
        anyhow::ensure!(
            METHODS.iter().any(|method| called(method, name)),
            "no method is called {name}; there are {}",
            METHODS.iter().map(|m| m.label()).collect::<Vec<_>>().join(", ")
        );
    }
    let wanted =
        |method: &&Method| names.is_empty() || names.iter().any(|name| called(method, name));
    Ok(METHODS.iter().filter(wanted).collect())
}

impl Method {
    /// Name and codec.
    pub fn label(&self) -> String {
        match self.codec {
            Some(codec) => format!("{}-{codec}", self.name),
            None => self.name.to_owned(),
        }
    }
}
