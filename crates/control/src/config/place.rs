//! Where in a file a field stands, for refusals that are found after it was read: what contradicts a
//! running balancer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::plain;
use super::include;

/// What a configuration was read from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, which is read again where a line is looked for.
    File(PathBuf),
    /// A text that is not, or not yet, in the file of that name.
    Text {
        /// What problems call it.
        name: String,
        /// The text.
        text: Arc<str>,
    },
}

impl Source {
    /// A text, by the name that problems give it.
    pub fn text(name: impl Into<String>, text: &str) -> Self {
        Self::Text { name: name.into(), text: text.into() }
    }

    /// What problems call it.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Text { name, .. } => name.clone(),
        }
    }

    /// `FILE:LINE: ` of the field of a table. Where it is not set, the line is that of the table, and the
    /// first one where there is no such table either.
    pub fn place(&self, table: Table<'_>, field: &str) -> String {
        let text: Arc<str> = match self {
            // A file that has gone since it was read is named all the same.
            Self::File(path) => super::Config::text(path)
                .or_else(|_| super::text_in(path))
                .unwrap_or_default()
                .into(),
            Self::Text { text, .. } => Arc::clone(text),
        };
        let own = self.name();
        let (file, line) =
            include::place(&include::marks(&text), &own, line_of(&text, table, field));
        format!("{}:{line}: ", plain(file.to_owned()))
    }
}

/// A table of the file.
#[derive(Clone, Copy, Debug)]
pub enum Table<'a> {
    /// `[balancer]`.
    Balancer,
    /// `[af_xdp]`.
    AfXdp,
    /// `[dpdk]`.
    Dpdk,
    /// `[offload]`.
    Offload,
    /// `[p4]`.
    P4,
    /// `[limits]`.
    Limits,
    /// `[[service]]` of this name.
    Service(&'a str),
}

/// [`Source::place`] of a file.
pub fn place_of(path: &Path, table: Table<'_>, field: &str) -> String {
    Source::File(path.to_owned()).place(table, field)
}

fn line_of(text: &str, table: Table<'_>, field: &str) -> usize {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let header = match table {
        Table::Balancer => "[balancer]",
        Table::AfXdp => "[af_xdp]",
        Table::Dpdk => "[dpdk]",
        Table::Offload => "[offload]",
        Table::P4 => "[p4]",
        Table::Limits => "[limits]",
        Table::Service(_) => "[[service]]",
    };
    let begins = (0..lines.len()).filter(|at| is_header(lines[*at], header));
    let mut found = 1;
    for begin in begins {
        let end = (begin + 1..lines.len()).find(|at| lines[*at].starts_with('['));
        let own = &lines[begin + 1..end.unwrap_or(lines.len())];
        let named = |name: &str| {
            let value = own.iter().find_map(|line| value_of(line, "name"));
            value.is_some_and(|value| value.trim_matches(['"', '\'']) == name)
        };
        if matches!(table, Table::Service(name) if !named(name)) {
            continue;
        }
        let at = own.iter().position(|line| value_of(line, field).is_some());
        found = at.map_or(begin + 1, |at| begin + 2 + at);
        break;
    }
    found
}

fn is_header(line: &str, header: &str) -> bool {
    line.strip_prefix(header).is_some_and(|rest| {
        let rest = rest.trim_start();
        rest.is_empty() || rest.starts_with('#')
    })
}

/// What a line sets a field to, with what comes behind it if that is no comment.
fn value_of<'a>(line: &'a str, field: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(field)?.trim_start().strip_prefix('=')?;
    Some(rest.split('#').next().unwrap_or(rest).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# one\n[balancer] # two\nmode = \"auto\"\n\n[[service]]\nname = \"a\"\n\
                        port = 80\n[service.check]\nport = 81\n[[service]]\nport = 82\nname = 'b' # b\n\
                        method = \"jet\"\n[limits]\n# few\nbackends = 7\n";

    #[test]
    fn a_text_that_is_in_no_file_is_called_by_its_name() {
        let source = Source::text("<stdin>", TEXT);
        assert_eq!(source.place(Table::Service("b"), "method"), "<stdin>:13: ");
        let gone = Source::File("/nowhere/weir.toml".into());
        assert_eq!(gone.place(Table::Limits, "backends"), "/nowhere/weir.toml:1: ");
    }

    #[test]
    fn fields_are_found_in_their_tables() {
        let at = |table, field| line_of(TEXT, table, field);
        assert_eq!(at(Table::Balancer, "mode"), 3);
        assert_eq!(at(Table::Balancer, "run_dir"), 2);
        assert_eq!(at(Table::Service("a"), "port"), 7);
        assert_eq!(at(Table::Service("b"), "port"), 11);
        assert_eq!(at(Table::Service("b"), "method"), 13);
        assert_eq!(at(Table::Service("a"), "method"), 5);
        assert_eq!(at(Table::Service("c"), "method"), 1);
        assert_eq!(at(Table::Limits, "backends"), 16);
        assert_eq!(at(Table::Limits, "services"), 14);
    }
}
