//! Renders the repository's pages as a site: a file each, with navigation, a search over headings, and nothing
//! that is fetched from elsewhere.
//!
//! Links between pages lead to their files there. A link to something that is no page (a source file) becomes
//! plain text, since the site stands alone; one to a page or heading that is not there is an error.
#![forbid(unsafe_code)]

mod nav;
mod page;
mod reference;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use nav::SECTIONS;
use page::{Page, escape};

const STYLE: &str = include_str!("style.css");
const SEARCH: &str = include_str!("search.js");

/// Why there is no site.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Pages or links that are not as they should be, one on a line.
    #[error("{}", .0.join("\n"))]
    Wrong(Vec<String>),
}

/// Writes the site of a repository into a directory, which is made; files of other names in it stay. `said`: a folder
/// with what the program says of itself (`weir man`, `weir schema`), of which the reference is made; without one there
/// is no such part. Returns the number of pages.
///
/// # Errors
/// [`Error`]; some files may have been written.
pub fn write(root: &Path, said: Option<&Path>, out: &Path) -> Result<usize, Error> {
    let pages = read(root, said)?;
    let faults = faults(&pages);
    if !faults.is_empty() {
        return Err(Error::Wrong(faults));
    }
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    };
    fs::create_dir_all(out).map_err(io(out))?;
    let put = |name: &str, text: &str| {
        let path = out.join(name);
        fs::write(&path, text).map_err(io(&path))
    };
    put("style.css", STYLE)?;
    put("search.js", &format!("const PAGES = {};\n{SEARCH}", index(&pages)))?;
    for page in &pages {
        put(&page.file, &whole(page, &pages))?;
    }
    Ok(pages.len())
}

/// All pages of the navigation, each with its section.
fn read(root: &Path, said: Option<&Path>) -> Result<Vec<Page>, Error> {
    let mut all = Vec::new();
    for (section, paths) in SECTIONS {
        for path in *paths {
            let at = root.join(path);
            let text = fs::read_to_string(&at).map_err(|source| Error::Io { path: at, source })?;
            all.push(Page::new(section, path, &text));
        }
        if let (&nav::REFERENCE, Some(said)) = (section, said) {
            let made = reference::pages(said)?;
            all.extend(made.iter().map(|(path, text)| Page::new(section, path, text)));
        }
    }
    Ok(all)
}

/// Links to pages and headings that are not there.
fn faults(pages: &[Page]) -> Vec<String> {
    let mut faults = Vec::new();
    for page in pages {
        for link in &page.links {
            let (target, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = if target.is_empty() { page.path.clone() } else { page.resolve(target) };
            match pages.iter().find(|other| other.path == path) {
                Some(other) if heading.is_empty() || other.has(heading) => {}
                Some(_) => faults.push(format!("{}: no heading {link}", page.path)),
                // Other folders have pages of their own, for who works there.
                None if path.ends_with(".md")
                    && (path.starts_with("docs/") || !path.contains('/')) =>
                {
                    faults.push(format!("{}: {link} is not in the navigation", page.path));
                }
                None => {}
            }
        }
    }
    faults
}

/// Titles and headings, for the search, as JSON.
fn index(pages: &[Page]) -> String {
    let json = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let one = |page: &Page| {
        let headings =
            page.headings.iter().map(|(anchor, text)| format!("[{},{}]", json(anchor), json(text)));
        let headings: Vec<String> = headings.collect();
        format!("[{},{},[{}]]", json(&page.file), json(&page.title), headings.join(","))
    };
    format!("[{}]", pages.iter().map(one).collect::<Vec<_>>().join(","))
}

/// A page with all that stands around it.
fn whole(page: &Page, pages: &[Page]) -> String {
    let mut nav = String::new();
    for (section, _) in SECTIONS {
        nav += &format!("<h2>{}</h2>\n<ul>\n", escape(section));
        for other in pages.iter().filter(|other| other.section == *section) {
            let here = if other.path == page.path { " aria-current=\"page\"" } else { "" };
            let (file, title) = (&other.file, escape(&other.title));
            nav += &format!("<li><a href=\"{file}\"{here}>{title}</a></li>\n");
        }
        nav += "</ul>\n";
    }
    let title = escape(&page.title);
    let body = page.html(pages);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} - weir</title>\n<link rel=\"stylesheet\" href=\"style.css\">\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">To the page</a>\n\
         <nav aria-label=\"Pages\">\n<label for=\"search\">Search headings</label>\n\
         <input id=\"search\" type=\"search\" autocomplete=\"off\">\n\
         <ul id=\"found\" aria-live=\"polite\"></ul>\n<details open>\n<summary>Pages</summary>\n{nav}</details>\n\
         </nav>\n<main id=\"main\">\n{body}</main>\n<script src=\"search.js\"></script>\n</body>\n</html>\n"
    )
}
