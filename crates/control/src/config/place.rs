//! Where in a file a field stands, for refusals that are found after it was read: what contradicts a
//! running balancer.

use std::path::Path;

use super::include;

/// A table of the file.
#[derive(Clone, Copy, Debug)]
pub enum Table<'a> {
    /// `[balancer]`.
    Balancer,
    /// `[dpdk]`.
    Dpdk,
    /// `[limits]`.
    Limits,
    /// `[[service]]` of this name.
    Service(&'a str),
}

/// `FILE:LINE: ` of the field of a table. Where it is not set, the line is that of the table, and the
/// first one where there is no such table either.
pub fn place_of(path: &Path, table: Table<'_>, field: &str) -> String {
    // A file that has gone since it was read is named all the same.
    let text = super::Config::text(path).or_else(|_| super::text_of(path)).unwrap_or_default();
    let own = path.display().to_string();
    let (file, line) = include::place(&text, &own, line_of(&text, table, field));
    format!("{file}:{line}: ")
}

fn line_of(text: &str, table: Table<'_>, field: &str) -> usize {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let header = match table {
        Table::Balancer => "[balancer]",
        Table::Dpdk => "[dpdk]",
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
