//! The sources that a service takes packets from.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
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
    of_files: bool,
}

/// What the lists of services said when they came into force, by the services' names, for a start whose files say
/// something else by now, or cannot be read.
pub type KeptLists = BTreeMap<String, Lists>;

/// Begins a text of lists that are kept.
const HEAD: &str = "# Sources as they were listed when that came into force, for a start that cannot use their files\n";
/// Begins a line of a prefix that allows, and one of a prefix that denies.
const ALLOWS: &str = "allow ";
const DENIES: &str = "deny ";

impl Lists {
    /// `of_files`: prefixes of them stand in files of their own.
    pub(super) fn new(sources: Sources, of_files: bool) -> Self {
        let table = sources.table();
        let (allow, deny) = sources.counts();
        let told = Told { allow, deny, digest: format!("{:016x}", table.digest()) };
        Self { told, made: Some(Arc::new(Made { sources, table, of_files })) }
    }

    /// The same with others over them, each prefix once, with whether it allows ([`Sources::with`]); over no lists
    /// at all, those others. `None` if the prefixes below were not read from the files that list them.
    pub(crate) fn with(below: Option<&Self>, over: &[(Prefix, bool)]) -> Option<Self> {
        let none = Sources::default();
        let sources = match below {
            Some(lists) => &lists.made.as_ref()?.sources,
            None => &none,
        };
        Some(Self::new(sources.with(over), false))
    }

    /// Whether prefixes of them were read from files of their own.
    pub(crate) fn are_of_files(&self) -> bool {
        self.made.as_ref().is_some_and(|made| made.of_files)
    }

    /// A name for what they say: two that say the same of every address, by as many prefixes, have one.
    pub(crate) fn key(&self) -> String {
        let Told { allow, deny, digest } = &self.told;
        format!("{allow}-{deny}-{digest}")
    }

    /// All prefixes as a text, from which [`from_text`](Self::from_text) makes the same lists; none if they were not
    /// read from the files that list them.
    pub(crate) fn text(&self) -> Option<String> {
        let made = self.made.as_ref()?;
        let mut text = HEAD.to_owned();
        for (prefix, allows) in made.sources.rules() {
            let word = if allows { ALLOWS } else { DENIES };
            // A text takes whatever is written to it.
            let _ = writeln!(text, "{word}{prefix}");
        }
        Some(text)
    }

    /// The lists that a text was made of; none if it was not made so.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let rule = |line: &str| {
            let (prefix, allows) = match line.strip_prefix(ALLOWS) {
                Some(prefix) => (prefix, true),
                None => (line.strip_prefix(DENIES)?, false),
            };
            Some((prefix.parse::<Prefix>().ok()?, allows))
        };
        let rules: Option<Vec<_>> = text.strip_prefix(HEAD)?.lines().map(rule).collect();
        Some(Self::new(Sources::new(rules?).ok()?, true))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_lists_says_the_same() {
        let none: &[(&str, bool)] = &[];
        for rules in [
            none,
            &[("192.0.2.0/24", false), ("192.0.2.7/32", true), ("2001:db8::/32", true)],
            &[("0.0.0.0/0", false), ("::/0", false), ("2001:db8::1/128", false)],
        ] {
            let rules = rules
                .iter()
                .map(|(text, allows)| (text.parse::<Prefix>().expect("it is one"), *allows));
            let sources = Sources::new(rules).expect("they agree");
            let lists = Lists::new(sources, true);
            let text = lists.text().expect("they are known");
            let again = Lists::from_text(&text).expect("it is one");
            assert_eq!(again, lists);
            assert_eq!(again.key(), lists.key());
            assert!(again.are_of_files());
            // What was cut off is none.
            assert!(Lists::from_text(&text[..text.len() - 2]).is_none(), "{text}");
        }
        assert!(Lists::from_text("").is_none());
        assert!(Lists::from_text("deny 192.0.2.0/24\n").is_none());
    }
}
