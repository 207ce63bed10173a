//! One page.

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

/// A page, as it was read.
#[derive(Debug)]
pub(crate) struct Page {
    /// That of the navigation that it stands in.
    pub section: &'static str,
    /// From the root of the repository.
    pub path: String,
    /// Its name in the site.
    pub file: String,
    pub title: String,
    /// Anchors and texts, in their order.
    pub headings: Vec<(String, String)>,
    /// Targets of links to files of the repository.
    pub links: Vec<String>,
    text: String,
}

impl Page {
    pub fn new(section: &'static str, path: &str, text: &str) -> Self {
        let file = match path {
            "README.md" => "index.html".to_owned(),
            path => path.trim_start_matches("docs/").replace('/', "-").replace(".md", ".html"),
        };
        let mut page = Self {
            section,
            path: path.to_owned(),
            file: file.to_lowercase(),
            title: String::new(),
            headings: Vec::new(),
            links: Vec::new(),
            text: text.to_owned(),
        };
        page.look();
        page
    }

    fn look(&mut self) {
        let mut heading: Option<String> = None;
        for event in events(&self.text) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let text = heading.take().unwrap_or_default();
                    if self.title.is_empty() {
                        self.title.clone_from(&text);
                    }
                    self.headings.push((anchor(&text), text));
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::Start(Tag::Link { dest_url, .. }) if !dest_url.contains("://") => {
                    self.links.push(dest_url.to_string());
                }
                _ => {}
            }
        }
    }

    pub fn has(&self, heading: &str) -> bool {
        self.headings.iter().any(|(anchor, _)| anchor == heading)
    }

    /// A target of a link, as a path from the root.
    pub fn resolve(&self, target: &str) -> String {
        let mut parts: Vec<&str> = self.path.split('/').collect();
        parts.pop();
        for part in target.split('/') {
            match part {
                ".." => drop(parts.pop()),
                "." | "" => {}
                part => parts.push(part),
            }
        }
        parts.join("/")
    }

    /// Where a link leads in the site; none: nowhere.
    fn target(&self, link: &str, pages: &[Page]) -> Option<String> {
        if link.contains("://") || link.starts_with('#') {
            return Some(link.to_owned());
        }
        let (target, heading) = link.split_once('#').unwrap_or((link, ""));
        let path = self.resolve(target);
        let page = pages.iter().find(|page| page.path == path)?;
        let hash = if heading.is_empty() { "" } else { "#" };
        Some(format!("{}{hash}{heading}", page.file))
    }

    pub fn html(&self, pages: &[Page]) -> String {
        let mut anchors = self.headings.iter();
        let mut open = Vec::new();
        let mut events = Vec::new();
        for event in self::events(&self.text) {
            match event {
                Event::Start(Tag::Heading { level, .. }) => {
                    let id = anchors.next().map(|(anchor, _)| CowStr::from(anchor.clone()));
                    let (classes, attrs) = (Vec::new(), Vec::new());
                    events.push(Event::Start(Tag::Heading { level, id, classes, attrs }));
                }
                Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                    let to = self.target(&dest_url, pages);
                    open.push(to.is_some());
                    if let Some(to) = to {
                        let dest_url = CowStr::from(to);
                        events.push(Event::Start(Tag::Link { link_type, dest_url, title, id }));
                    }
                }
                Event::End(TagEnd::Link) => {
                    if open.pop() == Some(true) {
                        events.push(Event::End(TagEnd::Link));
                    }
                }
                // Wide tables scroll by themselves.
                Event::Start(Tag::Table(columns)) => {
                    events.push(Event::Html("<div class=\"wide\">".into()));
                    events.push(Event::Start(Tag::Table(columns)));
                }
                Event::End(TagEnd::Table) => {
                    events.push(Event::End(TagEnd::Table));
                    events.push(Event::Html("</div>\n".into()));
                }
                // Pages have none of their own; what looks like it is text.
                Event::Html(text) | Event::InlineHtml(text) => events.push(Event::Text(text)),
                event => events.push(event),
            }
        }
        let mut body = String::new();
        html::push_html(&mut body, events.into_iter());
        body
    }
}

fn events(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

/// A heading as links name it: lower case, hyphens for spaces, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
