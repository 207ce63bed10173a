//! One configuration in several files: `include` in `[balancer]` names files with further services.
//!
//! They become one text: that of the file itself, with `include` as a comment, and the others behind it,
//! each after a line that names it, and says how many lines it has. So everything that knows one text (validation,
//! `apply`, the history) knows all of them, and a problem is told where it stands. Such a line counts in that text
//! alone, which is made here: in a file, whoever has written it, it is a comment. So it is in a text that a client has
//! put together otherwise: there the numbers of lines do not add up.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::error::{ConfigError, Problem, Problems};
use super::written;

/// Begins the line behind which the text of another file stands: `#: file LINES NAME`.
pub(super) const MARK: &str = "#: file ";
/// The same where it does not count.
const OTHER_MARK: &str = "## file ";
/// What a text of UTF-8 may begin with.
const BYTE_ORDER: char = '\u{feff}';
/// Files that one may include.
const MOST_FILES: usize = 4096;

/// The text of a file with those that it includes; as it is where it includes none, or is not what is read
/// anyway: the parser says so.
///
/// # Errors
/// What is wrong with `include`, or with a file that it names.
pub(super) fn whole(path: &Path, text: String) -> Result<String, ConfigError> {
    if !text.contains("include") {
        return Ok(text);
    }
    let include = toml::from_str::<written::File>(&text)
        .ok()
        .and_then(|file| file.balancer?.into_inner().include);
    let Some(include) = include else { return Ok(text) };
    let name = path.display().to_string();
    let mut problems = Problems::new(&text, &name);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut files = Vec::new();
    for pattern in include.get_ref() {
        match matching(folder, pattern.get_ref()) {
            Ok(found) => files.extend(found.into_iter().map(|file| (file, pattern.span()))),
            Err((wrong, right)) => problems.add(pattern.span(), "balancer: include", wrong, right),
        }
    }
    if files.len() > MOST_FILES {
        let wrong = format!("{} files", files.len());
        problems.add(include.span(), "balancer: include", wrong, format!("at most {MOST_FILES}"));
    }
    let mut whole = commented(&text, include.span());
    let mut bad: Vec<Problem> = Vec::new();
    for (at, (file, span)) in files.iter().enumerate() {
        if files[..at].iter().any(|(other, _)| other == file) {
            let wrong = format!("{} is named twice", file.display());
            problems.add(span.clone(), "balancer: include", wrong, "name it once");
            continue;
        }
        match part(file) {
            Ok(part) => {
                let line = if whole.ends_with('\n') { "" } else { "\n" };
                let lines = part.lines().count();
                whole += &format!("{line}{MARK}{lines} {}\n{part}", file.display());
            }
            Err(ConfigError::Read { source, .. }) => {
                let wrong = format!("{} cannot be read: {source}", file.display());
                problems.add(span.clone(), "balancer: include", wrong, "");
            }
            Err(ConfigError::Invalid { problems }) => bad.extend(problems),
        }
    }
    let mut all = problems.finish();
    all.extend(bad);
    if all.is_empty() { Ok(whole) } else { Err(ConfigError::Invalid { problems: all }) }
}

/// The text with the lines of a span as comments: no line moves.
fn commented(text: &str, value: Range<usize>) -> String {
    let begin = text[..value.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[value.end..].find('\n').map_or(text.len(), |at| value.end + at);
    let lines: Vec<String> = text[begin..end].lines().map(|line| format!("# {line}")).collect();
    format!("{}{}{}", &text[..begin], lines.join("\n"), &text[end..])
}

type Fault = (String, String);

/// The files of a pattern, in the order of their names. A `*` stands for any characters of a name, in the
/// last part of the path.
fn matching(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, Fault> {
    let path = folder.join(pattern);
    let last = path.file_name().and_then(|name| name.to_str()).filter(|_| !pattern.ends_with('/'));
    let parent = path.parent().filter(|parent| !parent.to_string_lossy().contains('*'));
    let (Some(last), Some(parent)) = (last, parent) else {
        let wrong = format!("{pattern:?} is not a file, or files by a pattern");
        return Err((wrong, "give one such as \"conf.d/*.toml\"".into()));
    };
    if !last.contains('*') {
        return Ok(vec![path]);
    }
    let entries = match fs::read_dir(parent) {
        Ok(entries) => entries,
        Err(error) => {
            let wrong = format!("{} cannot be read: {error}", parent.display());
            return Err((wrong, "make the folder, or remove this".into()));
        }
    };
    let fits = |name: &str| !name.starts_with('.') && is_like(name, last);
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| fits(name)).collect();
    names.sort_unstable();
    Ok(names.iter().map(|name| parent.join(name)).collect())
}

fn is_like(name: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The text of a file that is included, which has services and nothing else: what stands before the first
/// header would be the last service's of the file before.
fn part(path: &Path) -> Result<String, ConfigError> {
    let mut text = super::text_in(path)?;
    // The mark that editors put before UTF-8 is nothing in the middle of a text.
    if text.starts_with(BYTE_ORDER) {
        text.remove(0);
    }
    let name = path.display().to_string();
    let mut problems = Problems::new(&text, &name);
    if let Some(file) = written::parse(&text, &mut problems) {
        for (table, span) in [
            ("balancer", file.balancer.as_ref().map(Spanned::span)),
            ("af_xdp", file.af_xdp.as_ref().map(Spanned::span)),
            ("dpdk", file.dpdk.as_ref().map(Spanned::span)),
            ("offload", file.offload.as_ref().map(Spanned::span)),
            ("p4", file.p4.as_ref().map(Spanned::span)),
            ("limits", file.limits.as_ref().map(Spanned::span)),
            ("api", file.api.as_ref().map(Spanned::span)),
        ] {
            if let Some(span) = span {
                let wrong = "it stands in a file that is included";
                problems.add(
                    span,
                    table,
                    wrong,
                    "only [[service]] may; move it to the file itself",
                );
            }
        }
    }
    let problems = problems.finish();
    if problems.is_empty() { Ok(text) } else { Err(ConfigError::Invalid { problems }) }
}

/// A whole text as one that stands in one file: its lines are counted through, whatever files they came from.
/// No byte of it moves.
pub fn in_one(mut text: String) -> String {
    let begins = |at: &usize| *at == 0 || text.as_bytes()[at - 1] == b'\n';
    let marks: Vec<usize> = text.match_indices(MARK).map(|(at, _)| at).filter(begins).collect();
    for at in marks {
        text.replace_range(at..at + MARK.len(), OTHER_MARK);
    }
    text
}

/// A text with another one behind it that problems call so, and whose lines they count by themselves.
pub(crate) fn followed_by(text: &str, name: &str, other: &str) -> String {
    let (text, other) = (in_one(text.to_owned()), in_one(other.to_owned()));
    let line = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{line}{MARK}{} {name}\n{other}", other.lines().count())
}

/// The lines of a whole text that name a file, from 1, and the names. None unless each is followed by as many lines as
/// it says, up to the next one or the end: else the text was not made by [`whole`], or has been changed since.
pub(super) fn marks(text: &str) -> Vec<(usize, &str)> {
    if !text.contains(MARK) {
        return Vec::new();
    }
    let mut found = Vec::new();
    // Where the next one is to be, and where this line is.
    let (mut end, mut last): (Option<usize>, usize) = (None, 0);
    for (at, line) in (1..).zip(text.lines()) {
        last = at;
        let Some(rest) = line.strip_prefix(MARK) else { continue };
        let Some((lines, file)) = rest.split_once(' ') else { return Vec::new() };
        let Ok(lines) = lines.parse::<usize>() else { return Vec::new() };
        if end.is_some_and(|end| end != at) {
            return Vec::new();
        }
        end = lines.checked_add(at + 1);
        if end.is_none() {
            return Vec::new();
        }
        found.push((at, file));
    }
    if end == Some(last + 1) { found } else { Vec::new() }
}

/// In which file a line of a whole text with these marks stands, and where in it; `line` counts from 1.
pub(super) fn place<'t>(marks: &[(usize, &'t str)], own: &'t str, line: usize) -> (&'t str, usize) {
    let before = marks.partition_point(|(mark, _)| *mark <= line);
    match marks[..before].last() {
        Some((mark, file)) if *mark < line => (file, line - mark),
        _ => (own, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Table, place_of};

    const MAIN: &str = "[balancer]\ninterfaces = [\"lo\"]\ninclude = [\n  \"conf.d/*.toml\",\n]\n\n\
                        [[service]]\nname = \"a\"\nvip = \"10.0.0.1\"\nport = 80\n\
                        [[service.backend]]\nname = \"b\"\naddress = \"10.0.0.11\"";

    fn service(name: &str, port: u16) -> String {
        format!(
            "[[service]]\nname = \"{name}\"\nvip = \"10.0.0.1\"\nport = {port}\n[[service.backend]]\n\
             name = \"b\"\naddress = \"10.0.0.11\"\n"
        )
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("conf.d")).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn several_files_are_one() {
        let (b, c) = (service("b", 81), service("c", 82));
        let folder = folder(&[
            ("weir.toml", MAIN),
            ("conf.d/20-c.toml", &c),
            ("conf.d/10-b.toml", &b),
            ("conf.d/.hidden.toml", "nonsense"),
            ("conf.d/notes.txt", "nonsense"),
        ]);
        let path = folder.path().join("weir.toml");
        let config = Config::load(&path).unwrap();
        let names: Vec<&str> = config.services.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        // The whole text is a file by itself, and means the same.
        let text = Config::text(&path).unwrap();
        assert_eq!(Config::parse(&text, "whole").unwrap(), config);
        assert!(text.contains("# include = [\n#   \"conf.d/*.toml\",\n# ]"), "{text}");
        // As it is kept it is one file, with lines of its own.
        let kept = in_one(text);
        assert_eq!(Config::parse(&kept, "kept").unwrap(), config);
        let at = kept.lines().position(|line| line == "port = 82").unwrap() + 1;
        let spoilt = kept.replace("port = 82", "port = 99999");
        let said = Config::parse(&spoilt, "kept").unwrap_err().to_string();
        assert!(said.starts_with(&format!("kept:{at}: ")), "{said}");
        // A refusal that is found later is told where the field stands.
        let at = place_of(&path, Table::Service("c"), "port");
        assert!(at.ends_with("conf.d/20-c.toml:4: "), "{at}");
        assert!(place_of(&path, Table::Service("a"), "port").ends_with("weir.toml:10: "));
    }

    #[test]
    fn problems_are_told_where_they_stand() {
        let odd_port = service("b", 81).replace("port = 81", "port = 99999");
        let same = service("a", 83);
        for (file, text, wanted) in [
            ("conf.d/b.toml", odd_port.as_str(), "conf.d/b.toml:4: service \"b\": port: 99999"),
            ("conf.d/b.toml", same.as_str(), "conf.d/b.toml:2: service \"a\": name"),
            ("conf.d/b.toml", "[[service]]\nnonsense = 1\n", "conf.d/b.toml:2: "),
            ("conf.d/b.toml", "port = 7\n", "conf.d/b.toml:1: "),
            ("conf.d/b.toml", "# b\n[limits]\nservices = 7\n", "conf.d/b.toml:2: limits: "),
            ("conf.d/b.toml", "[balancer]\ninterfaces = []\n", "conf.d/b.toml:1: balancer: "),
            ("conf.d/b.toml", "[[service]\n", "conf.d/b.toml:1: "),
        ] {
            let folder = folder(&[("weir.toml", MAIN), (file, text)]);
            let path = folder.path().join("weir.toml");
            let said = Config::load(&path).unwrap_err().to_string();
            assert!(said.contains(wanted), "{text}: {said}");
        }
        let main = |pattern: &str| MAIN.replace("\"conf.d/*.toml\"", pattern);
        for (pattern, wanted) in [
            ("\"none.toml\"", "weir.toml:4: balancer: include: "),
            ("\"none.d/*.toml\"", "weir.toml:4: balancer: include: "),
            ("\"*/x.toml\"", "is not a file"),
            ("\"conf.d/x.toml\", \"conf.d/*.toml\"", "named twice"),
        ] {
            let folder =
                folder(&[("weir.toml", &main(pattern)), ("conf.d/x.toml", &service("x", 9))]);
            let said = Config::load(folder.path().join("weir.toml")).unwrap_err().to_string();
            assert!(said.contains(wanted), "{pattern}: {said}");
        }
        // Of a text that comes without a folder.
        let said = Config::parse(MAIN, "text").unwrap_err().to_string();
        assert!(said.contains("text:3: balancer: include"), "{said}");
    }

    #[test]
    fn a_line_that_looks_like_a_mark_is_a_comment_in_a_file() {
        let marked = |port: u16| format!("{MARK}/etc/shadow\n{}", service("b", port));
        let alone = format!("[balancer]\ninterfaces = [\"lo\"]\n{}", marked(0));
        let alone = folder(&[("weir.toml", &alone)]);
        let said = |folder: &tempfile::TempDir| {
            Config::load(folder.path().join("weir.toml")).unwrap_err().to_string()
        };
        assert!(said(&alone).contains("weir.toml:7: service"), "{}", said(&alone));
        let both = folder(&[("weir.toml", MAIN), ("conf.d/b.toml", &marked(0))]);
        assert!(said(&both).contains("conf.d/b.toml:5: service"), "{}", said(&both));
        // In a text that somebody has put together, by hand or by a program, it says nothing either.
        let head = "[balancer]\ninterfaces = [\"lo\"]\n";
        for mark in
            ["/etc/shadow", "6 /etc/shadow", "99999999999999999999 x", "18446744073709551615 x"]
        {
            let text = format!("{head}{MARK}{mark}\n{}", service("b", 0));
            let said = Config::parse(&text, "text").unwrap_err().to_string();
            assert!(said.starts_with("text:7: service"), "{mark}: {said}");
        }
        // As it is written into one file, what is added there is that file's.
        let good = folder(&[("weir.toml", MAIN), ("conf.d/b.toml", &marked(81))]);
        let path = good.path().join("weir.toml");
        let whole = Config::text(&path).unwrap();
        fs::write(&path, whole + &service("c", 0)).unwrap();
        let line = fs::read_to_string(&path).unwrap().lines().count() - 3;
        let wanted = format!("weir.toml:{line}: service \"c\"");
        assert!(said(&good).contains(&wanted), "{wanted}: {}", said(&good));
        let at = place_of(&path, Table::Service("b"), "port");
        assert!(at.contains("weir.toml:"), "{at}");
    }

    #[test]
    fn an_included_file_may_begin_with_a_byte_order_mark() {
        let b = format!("\u{feff}{}", service("b", 81));
        let folder = folder(&[("weir.toml", MAIN), ("conf.d/b.toml", &b)]);
        let path = folder.path().join("weir.toml");
        assert_eq!(Config::load(&path).unwrap().services.len(), 2);
        fs::write(folder.path().join("conf.d/b.toml"), b.replace("port = 81", "port = 0")).unwrap();
        let said = Config::load(&path).unwrap_err().to_string();
        assert!(said.contains("conf.d/b.toml:4: service"), "{said}");
    }

    #[test]
    fn what_is_there_already_is_told_with_its_file_if_that_is_another() {
        let again = service("d", 83) + &service("d", 84);
        let twice =
            service("e", 85) + "[[service.backend]]\nname = \"b\"\naddress = \"10.0.0.12\"\n";
        for (text, words) in [
            (service("a", 83), "is on line 8 of "),
            (again, "is on line 2 already"),
            (twice, "is on line 6 already"),
        ] {
            let folder = folder(&[("weir.toml", MAIN), ("conf.d/b.toml", &text)]);
            let path = folder.path().join("weir.toml");
            let said = Config::load(&path).unwrap_err().to_string();
            assert!(said.contains(words), "{words}: {said}");
            let named = format!("of {} already", path.display());
            assert_eq!(said.contains(&named), words.ends_with(" of "), "{said}");
        }
    }

    #[test]
    fn stars_stand_for_any_characters() {
        for (name, pattern) in [
            ("a.toml", "*.toml"),
            ("a.toml", "*"),
            ("a.toml", "a*"),
            ("a.b.toml", "a*b*l"),
            ("aa", "a*a"),
        ] {
            assert!(is_like(name, pattern), "{name} {pattern}");
        }
        for (name, pattern) in [("a.toml", "*.txt"), ("b.toml", "a*"), ("a", "a*a"), ("ab", "a")] {
            assert!(!is_like(name, pattern), "{name} {pattern}");
        }
    }
}
