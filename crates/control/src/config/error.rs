//! Problems of a configuration file, and where in it they are.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;

use serde::Serialize;

use super::include;
use super::lists::{KeptLists, Lists};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file, as it was asked for.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file was read and cannot be used.
    #[error("{}", Lines(problems))]
    Invalid {
        /// Every problem found, in the order of the file; at least one.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// The problems in the text; empty if the file could not be read at all.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read { .. } => &[],
            Self::Invalid { problems } => problems,
        }
    }
}

struct Lines<'a>(&'a [Problem]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

/// One problem of a configuration file.
///
/// It is displayed on one line: `weir.toml:12: service "web": port: 0 is not a port; give
/// 1..65535, or remove it and set any_port = true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, as it was named by whoever asked.
    pub file: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The field, for example `service "web": port`; empty for the file as a whole.
    pub field: String,
    /// What is wrong, without the field's name.
    pub wrong: String,
    /// What would be right; empty where the fault says it.
    pub right: String,
}

impl Problem {
    /// A file with bytes that are not UTF-8.
    pub(super) fn of_no_text(error: &FromUtf8Error, file: &str) -> Self {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let good = String::from_utf8_lossy(good);
        let byte = error.as_bytes()[good.len()];
        let last = good.rsplit('\n').next().unwrap_or_default();
        Self {
            file: plain(file.to_owned()),
            line: good.matches('\n').count() + 1,
            column: last.chars().count() + 1,
            field: String::new(),
            wrong: format!("byte {byte:#04x} is not UTF-8"),
            right: "write the file as UTF-8 text".to_owned(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.wrong)?;
        if !self.right.is_empty() {
            write!(f, "; {}", self.right)?;
        }
        Ok(())
    }
}

/// Words for one line of a terminal: what a key or a value of a file, or its name, has of control characters is
/// written out.
pub(crate) fn plain(words: String) -> String {
    if !words.contains(char::is_control) {
        return words;
    }
    let of = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    words.chars().map(of).collect()
}

/// The key that a line sets, if it sets one.
fn key_of(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.\"".contains(c);
    (!key.is_empty() && key.chars().all(plain)).then_some(key)
}

/// Collects problems and turns byte offsets into lines.
pub(super) struct Problems<'a> {
    text: &'a str,
    file: &'a str,
    /// Where files that the text names are looked for.
    folder: &'a Path,
    /// What counts in the place of files that list sources.
    lists: Option<&'a KeptLists>,
    /// Where each line begins.
    lines: Vec<usize>,
    /// The lines, from 1, behind which other files' texts stand, and the names of these.
    marks: Vec<(usize, &'a str)>,
    list: Vec<Problem>,
}

impl<'a> Problems<'a> {
    pub(super) fn new(text: &'a str, file: &'a str) -> Self {
        let after =
            text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let lines = [0].into_iter().chain(after).collect();
        let folder = super::beside(file);
        let marks = include::marks(text);
        Self { text, file, folder, lists: None, lines, marks, list: Vec::new() }
    }

    /// The same of a text that is called otherwise than the file in which it is to be: that one is in this folder.
    pub(super) fn in_folder(self, folder: &'a Path) -> Self {
        Self { folder, ..self }
    }

    /// The same of a text that was in force with these lists of sources, whatever their files say by now.
    pub(super) fn with_lists(self, lists: Option<&'a KeptLists>) -> Self {
        Self { lists, ..self }
    }

    /// What counts for a service in the place of files that list sources.
    pub(super) fn lists_of(&self, service: &str) -> Option<Lists> {
        self.lists?.get(service).cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Adds the problem of the field `field` at the bytes `span`.
    pub(super) fn add(
        &mut self,
        span: Range<usize>,
        field: impl Into<String>,
        wrong: impl Into<String>,
        right: impl Into<String>,
    ) {
        let (line, column) = self.position(span.start);
        let (file, line) = include::place(&self.marks, self.file, line);
        self.list.push(Problem {
            file: plain(file.to_owned()),
            line,
            column,
            field: plain(field.into()),
            wrong: plain(wrong.into()),
            right: plain(right.into()),
        });
    }

    /// Adds a problem on a line of another file.
    pub(super) fn add_in(
        &mut self,
        (file, line): (&Path, usize),
        field: impl Into<String>,
        wrong: impl Into<String>,
        right: impl Into<String>,
    ) {
        self.list.push(Problem {
            file: plain(file.display().to_string()),
            line,
            column: 1,
            field: plain(field.into()),
            wrong: plain(wrong.into()),
            right: plain(right.into()),
        });
    }

    /// Where files that the text names are looked for.
    pub(super) fn folder(&self) -> &'a Path {
        self.folder
    }

    /// The problems in the order of the file; then those in files that it names.
    pub(super) fn finish(mut self) -> Vec<Problem> {
        let own = plain(self.file.to_owned());
        self.list.sort_by_key(|problem| (problem.file != own, problem.line, problem.column));
        self.list
    }

    /// Line of a byte offset, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.lines.partition_point(|begin| *begin <= offset.min(self.text.len()))
    }

    /// The file in which a byte offset stands, and its line there, from 1.
    pub(super) fn place(&self, offset: usize) -> (&'a str, usize) {
        include::place(&self.marks, self.file, self.line(offset))
    }

    /// Where a byte offset stands, in words of a problem at another one: its file is said if it is not the same.
    pub(super) fn said(&self, offset: usize, problem: usize) -> String {
        match (self.place(offset), self.place(problem)) {
            ((file, line), (same, _)) if file == same => format!("line {line}"),
            ((file, line), _) => format!("line {line} of {file}"),
        }
    }

    /// The table header in force at a byte offset, without comment, for example `[[service]]`.
    pub(super) fn header_before(&self, offset: usize) -> Option<&'a str> {
        let lines: Vec<&str> = self.text.lines().take(self.line(offset)).collect();
        lines
            .into_iter()
            .rev()
            .map(|line| line.split('#').next().unwrap_or(line).trim())
            .find(|line| line.starts_with('[') && line.ends_with(']'))
    }

    /// The table headers up to the line of a byte offset, the last one first: where their lines begin, and the headers
    /// without comment.
    pub(super) fn headers_to(&self, offset: usize) -> impl Iterator<Item = (usize, &'a str)> {
        let text = self.text;
        self.lines[..self.line(offset)].iter().rev().filter_map(move |begin| {
            let line = text[*begin..].lines().next()?;
            let header = line.split('#').next().unwrap_or(line).trim();
            (header.starts_with('[') && header.ends_with(']')).then_some((*begin, header))
        })
    }

    /// The key on the line of a byte offset, if the line sets one.
    pub(super) fn key_at(&self, offset: usize) -> Option<&'a str> {
        key_of(self.text.lines().nth(self.line(offset) - 1)?)
    }

    /// Where the line begins that sets the key of this one before it, in the same table.
    pub(super) fn same_key_before(&self, offset: usize) -> Option<usize> {
        let key = self.key_at(offset)?;
        let before = self.lines[..self.line(offset) - 1].iter().rev();
        let lines =
            before.map(|begin| (*begin, self.text[*begin..].lines().next().unwrap_or_default()));
        let mut of_table = lines.take_while(|(_, line)| !line.trim_start().starts_with('['));
        of_table.find(|(_, line)| key_of(line) == Some(key)).map(|(begin, _)| begin)
    }

    fn position(&self, offset: usize) -> (usize, usize) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.line(offset);
        let begin = self.lines.get(line - 1).copied().unwrap_or(offset);
        (line, self.text[begin..offset].chars().count() + 1)
    }
}
