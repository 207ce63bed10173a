//! The sources that a service takes packets from.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use weir_plane::{BYTES_PER_PREFIX, Prefix, SourceTable, Sources};

/// What `limits.list_prefixes` may be: the words of the lists must stay within 512 MiB, beyond which the
/// kernel's verifier follows no offset.
pub(super) const MOST_LIST_PREFIXES: u32 = 2_000_000;

/// What `limits.list_prefixes` is if the file does not say it.
pub(super) fn default_prefixes() -> u32 {
    131_072
}

/// Prefixes that allow sources, and that deny them. Where it is written down it is what tells it from
/// others, and not the prefixes, which stand in files.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Told", into = "Told")]
pub struct Lists {
    told: Told,
    made: Option<Arc<Made>>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Told {
    allow: usize,
    deny: usize,
    digest: String,
}

struct Made {
    sources: Sources,
    table: SourceTable,
}

impl Lists {
    pub(super) fn new(sources: Sources) -> Self {
        let table = sources.table();
        let (allow, deny) = sources.counts();
        let told = Told { allow, deny, digest: format!("{:016x}", table.digest()) };
        Self { told, made: Some(Arc::new(Made { sources, table })) }
    }

    /// The same with others over them, each prefix once, with whether it allows ([`Sources::with`]); over no lists
    /// at all, those others. `None` if the prefixes below were not read from the files that list them.
    pub(crate) fn with(below: Option<&Self>, over: &[(Prefix, bool)]) -> Option<Self> {
        let none = Sources::default();
        let sources = match below {
            Some(lists) => &lists.made.as_ref()?.sources,
            None => &none,
        };
        Some(Self::new(sources.with(over)))
    }

    /// How many prefixes allow, and how many deny.
    pub fn counts(&self) -> (usize, usize) {
        (self.told.allow, self.told.deny)
    }

    /// What packets walk; none if it was not read from the files that list the prefixes.
    pub fn table(&self) -> Option<&SourceTable> {
        self.made.as_ref().map(|made| &made.table)
    }

    /// The prefix that decides on a source, and whether the source is allowed; none if that is not known.
    pub fn decide(&self, source: &[u8; 16]) -> Option<(Option<Prefix>, bool)> {
        self.made.as_ref().map(|made| made.sources.decide(source))
    }

    /// Of `limits.list_prefixes`, how many it takes: its prefixes, or more if it takes the memory of more.
    pub(crate) fn takes(&self) -> usize {
        let bytes = self.table().map_or(0, SourceTable::bytes);
        (self.told.allow + self.told.deny).max(bytes.div_ceil(BYTES_PER_PREFIX))
    }
}

impl PartialEq for Lists {
    fn eq(&self, other: &Self) -> bool {
        self.told == other.told
    }
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told { allow, deny, digest } = &self.told;
        write!(f, "Lists({allow} allow, {deny} deny, {digest})")
    }
}

impl From<Told> for Lists {
    fn from(told: Told) -> Self {
        Self { told, made: None }
    }
}

impl From<Lists> for Told {
    fn from(lists: Lists) -> Self {
        lists.told
    }
}
