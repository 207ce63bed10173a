//! The site of this repository: every page is there and is reached, and no link leads nowhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// What stands between two texts, each time.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split(after).next()).collect()
}

#[test]
fn every_page_of_docs_is_in_the_navigation() {
    let listed: BTreeSet<String> = weir_site::SECTIONS
        .iter()
        .flat_map(|(_, pages)| pages.iter().map(|&page| page.into()))
        .collect();
    let all = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let all: Vec<String> = all.map(|name| format!("docs/{}", name.to_string_lossy())).collect();
    let missing: Vec<&String> =
        all.iter().filter(|path| path.ends_with(".md") && !listed.contains(*path)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_site_is_whole() {
    let out = tempfile::tempdir().unwrap();
    let pages =
        weir_site::write(root(), None, out.path()).unwrap_or_else(|error| panic!("{error}"));
    assert!(pages > 30, "{pages}");
    let mut ids = std::collections::BTreeMap::new();
    let mut texts = Vec::new();
    for entry in fs::read_dir(out.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let found: BTreeSet<String> =
            between(&text, "id=\"", "\"").into_iter().map(str::to_owned).collect();
        ids.insert(name.clone(), found);
        if name.ends_with(".html") {
            texts.push((name, text));
        }
    }
    assert_eq!(texts.len(), pages);
    let mut links = 0;
    for (name, text) in &texts {
        assert!(text.contains("<h1 id=\"") && text.contains("aria-current=\"page\""), "{name}");
        for link in between(text, "href=\"", "\"") {
            if link.contains("://") {
                continue;
            }
            links += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { name.as_str() } else { file };
            let there = ids.get(file).unwrap_or_else(|| panic!("{name}: {link}: no such file"));
            assert!(
                heading.is_empty() || there.contains(heading),
                "{name}: {link}: no such heading"
            );
        }
        // Nothing is fetched from elsewhere.
        for source in between(text, "src=\"", "\"") {
            assert!(!source.contains("//"), "{name}: {source}");
        }
    }
    assert!(links > 1000, "{links}");
    // Again, over what is there.
    assert_eq!(weir_site::write(root(), None, out.path()).unwrap(), pages);
}

#[test]
fn a_link_to_nothing_is_an_error() {
    let other = tempfile::tempdir().unwrap();
    for page in weir_site::SECTIONS.iter().flat_map(|(_, pages)| pages.iter()) {
        let path = other.path().join(page);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "# Title\n\n## A `b` & c\n").unwrap();
    }
    let out = other.path().join("site");
    weir_site::write(other.path(), None, &out).unwrap();
    let start = fs::read_to_string(out.join("start.html")).unwrap();
    assert!(start.contains("<h2 id=\"a-b--c\">A <code>b</code> &amp; c</h2>"), "{start}");
    fs::write(
        other.path().join("docs/start.md"),
        "# S\n[a](import.md#none) [b](other.md) [c](../crates/x.rs) <b>no</b>\n",
    )
    .unwrap();
    let error = weir_site::write(other.path(), None, &out).unwrap_err().to_string();
    assert_eq!(
        error,
        "docs/start.md: no heading import.md#none\ndocs/start.md: other.md is not in the navigation"
    );
    fs::remove_file(other.path().join("docs/fuse.md")).unwrap();
    let error = weir_site::write(other.path(), None, &out).unwrap_err().to_string();
    assert!(error.contains("fuse.md"), "{error}");
}
