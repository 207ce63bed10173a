//! Lists of sources: in the file itself, and in files of one prefix a line.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use weir_plane::{Prefix, PrefixError, Sources};

use super::super::error::Problems;
use super::super::lists::MOST_LIST_PREFIXES;
use super::super::{Limits as Resolved, Lists, written};
use super::scope::Scope;
use super::{Limits, Service};

/// Bytes of a file of prefixes: those of as many lines as there may be prefixes, with comments.
const MOST_BYTES: u64 = 128 << 20;
/// Problems of a file that are told; of more, how many there are.
const MOST_TOLD: usize = 10;
/// Characters of a line that are quoted.
const MOST_QUOTED: usize = 60;

/// Where a prefix stands.
#[derive(Clone)]
enum Place {
    Here(Range<usize>),
    There(usize, usize),
}

/// What a service's lists say, while they are read.
struct Reading<'s, 'p, 't> {
    scope: &'s mut Scope<'p, 't>,
    files: Vec<PathBuf>,
    rules: HashMap<Prefix, (bool, Place)>,
    good: bool,
}

/// The lists of a service; none if it has none, or none that could be read.
pub(super) fn of_service(raw: &written::Service, scope: &mut Scope<'_, '_>) -> Option<Lists> {
    let given = raw.allow.is_some() || raw.allow_file.is_some();
    if !given && raw.deny.is_none() && raw.deny_file.is_none() {
        return None;
    }
    let of_files = raw.allow_file.is_some() || raw.deny_file.is_some();
    if of_files
        && let Some(kept) = raw.name.as_ref().and_then(|name| scope.lists_of(name.get_ref()))
    {
        return Some(kept);
    }
    let mut reading = Reading { scope, files: Vec::new(), rules: HashMap::new(), good: true };
    for (field, list, allows) in [("allow", &raw.allow, true), ("deny", &raw.deny, false)] {
        for text in list.iter().flat_map(|list| list.get_ref()) {
            reading.entry(field, text.get_ref(), allows, Place::Here(text.span()));
        }
    }
    for (field, path, allows) in
        [("allow_file", &raw.allow_file, true), ("deny_file", &raw.deny_file, false)]
    {
        if let Some(path) = path {
            reading.file(field, path, allows);
        }
    }
    let Reading { rules, good, scope, .. } = reading;
    if !good {
        return None;
    }
    // A list that was lost on its way here must not take everybody.
    if given && !rules.values().any(|(allows, _)| *allows) {
        let field = if raw.allow.is_some() { "allow" } else { "allow_file" };
        let lists =
            [raw.allow.as_ref().map(Spanned::span), raw.allow_file.as_ref().map(Spanned::span)];
        let span = lists.into_iter().flatten().next().unwrap_or_else(|| scope.span());
        let right = "name at least one prefix, or remove it if all sources are to be taken but \
                     those denied";
        scope.problem(span, field, "allows no source at all", right);
        return None;
    }
    let rules = rules.into_iter().map(|(prefix, (allows, _))| (prefix, allows));
    // Contradictions were found where they stand.
    Sources::new(rules).ok().map(|sources| Lists::new(sources, of_files))
}

impl Reading<'_, '_, '_> {
    fn problem(&mut self, place: &Place, field: &str, wrong: String, right: String) {
        self.good = false;
        match place {
            Place::Here(span) => self.scope.problem(span.clone(), field, wrong, right),
            Place::There(file, line) => {
                let file = self.files.get(*file).cloned().unwrap_or_default();
                self.scope.problem_in((&file, *line), field, wrong, right);
            }
        }
    }

    /// Takes a prefix; returns whether it could be taken.
    fn entry(&mut self, field: &str, text: &str, allows: bool, place: Place) -> bool {
        let prefix = match text.parse::<Prefix>() {
            Ok(prefix) => prefix,
            Err(error) => {
                let quoted = PrefixError::NoPrefix(text.chars().take(MOST_QUOTED).collect());
                let shown = if text.len() > MOST_QUOTED { &quoted } else { &error };
                self.problem(&place, field, shown.to_string(), error.right());
                return false;
            }
        };
        let before = match self.rules.get(&prefix) {
            Some((other, before)) if *other != allows => before.clone(),
            Some(_) => return true,
            None => {
                self.rules.insert(prefix, (allows, place));
                return true;
            }
        };
        let before = match before {
            Place::Here(span) => self.scope.place(span),
            Place::There(file, line) => {
                let file = self.files.get(file).cloned().unwrap_or_default();
                format!("{}:{line}", file.display())
            }
        };
        let (says, said) = if allows { ("allows", "denies") } else { ("denies", "allows") };
        let wrong = format!("{says} {prefix}, which {before} {said}");
        self.problem(&place, field, wrong, "remove one of them".into());
        false
    }

    /// Takes the prefixes of a file, which is named beside the configuration.
    fn file(&mut self, field: &str, name: &Spanned<String>, allows: bool) {
        let path = self.scope.folder().join(name.get_ref());
        let text = match read(&path) {
            Ok(text) => text,
            Err((wrong, right)) => {
                let wrong = format!("{}: {wrong}", path.display());
                return self.problem(&Place::Here(name.span()), field, wrong, right.into());
            }
        };
        let file = self.files.len();
        self.files.push(path);
        let mut bad = 0;
        for (line, text) in text.lines().enumerate() {
            let entry = text.split('#').next().unwrap_or_default().trim();
            if entry.is_empty() {
                continue;
            }
            let place = Place::There(file, line + 1);
            if self.rules.len() >= MOST_LIST_PREFIXES as usize {
                let wrong = format!("more than {MOST_LIST_PREFIXES} prefixes in one service");
                let right = "list fewer, or put neighbours together into shorter prefixes";
                return self.problem(&place, field, wrong, right.into());
            }
            bad += usize::from(!self.entry(field, entry, allows, place.clone()));
            if bad == MOST_TOLD {
                let wrong = format!("{MOST_TOLD} lines are wrong so far, and the rest is not read");
                return self.problem(&place, field, wrong, "give one prefix a line".into());
            }
        }
    }
}

/// The text of a file of prefixes; or what is wrong, and what would be right.
fn read(path: &Path) -> Result<String, (String, &'static str)> {
    let readable = "name a file that weir can read, as a path from the configuration's directory";
    // Whoever opens a pipe waits.
    let known = fs::metadata(path).map_err(|error| (error.to_string(), readable))?;
    if !known.is_file() {
        return Err(("is not a file".into(), readable));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| (error.to_string(), readable))?;
    file.take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| (error.to_string(), readable))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err((format!("has more than {MOST_BYTES} bytes"), "list fewer prefixes"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let bytes = error.as_bytes();
        let line =
            bytes[..error.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
        (format!("line {} is not text", line + 1), "give one prefix a line, as text")
    })
}

/// The lists of all services share the room that there is.
pub(super) fn fit(
    services: &[Service],
    places: &[Range<usize>],
    limits: &Limits,
    problems: &mut Problems<'_>,
) {
    let most = limits.list_prefixes.unwrap_or(Resolved::default().list_prefixes) as usize;
    let (mut taken, mut listed, mut beyond) = (0, 0, None);
    for (service, place) in services.iter().zip(places) {
        let Some(lists) = &service.lists else { continue };
        let (allow, deny) = lists.counts();
        (taken, listed) = (taken + lists.takes(), listed + allow + deny);
        if taken > most {
            beyond.get_or_insert((place, &service.name));
        }
    }
    let Some((place, name)) = beyond else { return };
    let right = match taken <= MOST_LIST_PREFIXES as usize {
        true => format!("set limits.list_prefixes to {taken} or more"),
        false => format!("list fewer: limits.list_prefixes is {MOST_LIST_PREFIXES} at most"),
    };
    problems.add(
        place.clone(),
        format!("service {name:?}: allow, deny"),
        format!(
            "{listed} prefixes in all lists take the memory of {taken}, and limits.list_prefixes is \
             {most}"
        ),
        right,
    );
}
