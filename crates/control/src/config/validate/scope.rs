//! Checks of single fields, within a named part of the file.

use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::time::Duration;

use toml::Spanned;

use super::super::error::Problems;
use super::super::lists::Lists;

/// A part of the file that problems are reported in.
pub(super) struct Scope<'p, 't> {
    problems: &'p mut Problems<'t>,
    title: String,
    span: Range<usize>,
}

impl<'p, 't> Scope<'p, 't> {
    /// The part called `title` at the bytes `span`.
    pub(super) fn new(
        problems: &'p mut Problems<'t>,
        title: impl Into<String>,
        span: Range<usize>,
    ) -> Self {
        Self { problems, title: title.into(), span }
    }

    /// A part of this part.
    pub(super) fn inner(&mut self, title: &str, span: Range<usize>) -> Scope<'_, 't> {
        let title = format!("{}: {title}", self.title);
        Scope::new(self.problems, title, span)
    }

    pub(super) fn problem(
        &mut self,
        span: Range<usize>,
        field: &str,
        wrong: impl Into<String>,
        right: impl Into<String>,
    ) {
        let field =
            if field.is_empty() { self.title.clone() } else { format!("{}: {field}", self.title) };
        self.problems.add(span, field, wrong, right);
    }

    /// Reports something about the part itself, at its first line.
    pub(super) fn here(&mut self, field: &str, wrong: impl Into<String>, right: impl Into<String>) {
        self.problem(self.span.clone(), field, wrong, right);
    }

    pub(super) fn missing(&mut self, field: &str, right: impl Into<String>) {
        self.here(field, "is missing", right);
    }

    /// Reports something in another file.
    pub(super) fn problem_in(
        &mut self,
        place: (&Path, usize),
        field: &str,
        wrong: impl Into<String>,
        right: impl Into<String>,
    ) {
        self.problems.add_in(place, format!("{}: {field}", self.title), wrong, right);
    }

    /// Where files that the configuration names are looked for.
    pub(super) fn folder(&self) -> &Path {
        self.problems.folder()
    }

    /// What counts for a service in the place of files that list sources.
    pub(super) fn lists_of(&self, service: &str) -> Option<Lists> {
        self.problems.lists_of(service)
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Problems of the file that have been found so far.
    pub(super) fn problems(&self) -> usize {
        self.problems.len()
    }

    /// The line in its file, from 1.
    pub(super) fn line(&self, span: Range<usize>) -> usize {
        self.problems.place(span.start).1
    }

    /// `FILE:LINE`.
    pub(super) fn place(&self, span: Range<usize>) -> String {
        let (file, line) = self.problems.place(span.start);
        format!("{file}:{line}")
    }

    /// A whole number in a range.
    pub(super) fn integer<T>(
        &mut self,
        field: Option<&Spanned<i64>>,
        name: &str,
        range: RangeInclusive<T>,
    ) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + std::fmt::Display,
    {
        let field = field?;
        let value = T::try_from(*field.get_ref()).ok();
        let value = value.filter(|value| range.contains(value));
        if value.is_none() {
            self.problem(
                field.span(),
                name,
                format!("{} is out of range", field.get_ref()),
                format!("give {}..{}", range.start(), range.end()),
            );
        }
        value
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(
        &mut self,
        field: Option<&Spanned<String>>,
        name: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let field = field?;
        let found = choices.iter().find(|(word, _)| word == field.get_ref());
        if found.is_none() {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.problem(
                field.span(),
                name,
                format!("{:?} is not known", field.get_ref()),
                format!("give one of {}", words.join(", ")),
            );
        }
        found.map(|(_, value)| *value)
    }

    /// A duration such as `2h15m`, in a range.
    pub(super) fn duration(
        &mut self,
        field: Option<&Spanned<String>>,
        name: &str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let field = field?;
        let text = field.get_ref();
        let Ok(value) = humantime::parse_duration(text) else {
            self.problem(
                field.span(),
                name,
                format!("{text:?} is not a duration"),
                "give a number with a unit, such as 500ms, 30s or 2h15m",
            );
            return None;
        };
        if !range.contains(&value) {
            let show = humantime::format_duration;
            self.problem(
                field.span(),
                name,
                format!("{text:?} is out of range"),
                format!("give {} to {}", show(*range.start()), show(*range.end())),
            );
            return None;
        }
        Some(value)
    }
}
