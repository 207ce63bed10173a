//! What will be written, and how it is written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::net::IpAddr;

use super::{Form, ImportError, Imported, Note};
use crate::config::{Config, Limits, Protocol, plain};

/// Services that are read; more are none that a balancer has.
pub(super) const MOST_SERVICES: usize = 65_536;
/// Backends of all services, as many as a balancer has.
const MOST_BACKENDS: usize = 32_767;
/// What is noted, at most: a group that nobody can use may be named by every service.
const MOST_NOTES: usize = 100_000;
/// Times that the text is read with less in it; what is refused is told all at once but for what only it hid.
const ROUNDS: usize = 100;
/// The largest memory of tables, and what a service more takes of it: two of its tables, as large as they come.
const MOST_TABLE_BYTES: usize = 512 << 20;
const TABLES_OF_SERVICE: usize = 160 << 10;

/// The file to be.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub interfaces: Vec<String>,
    pub services: Vec<Service>,
    pub notes: Vec<Note>,
    /// Backends of all of them.
    backends: usize,
    /// The first service of each address, port and protocol.
    places: HashMap<(IpAddr, Option<u16>, Protocol), usize>,
}

/// A service to be.
#[derive(Clone, Debug)]
pub(super) struct Service {
    /// Where it was read.
    pub line: usize,
    /// What stood there.
    pub said: String,
    pub name: String,
    pub vip: IpAddr,
    /// None: any port.
    pub port: Option<u16>,
    pub protocol: Protocol,
    /// Further settings, as written: `method = "tracked"`.
    pub settings: Vec<String>,
    /// What of the check all backends share.
    pub shared: Fields,
    pub backends: Vec<Backend>,
}

/// A backend to be.
#[derive(Clone, Debug)]
pub(super) struct Backend {
    pub line: usize,
    pub address: IpAddr,
    pub port: Option<u16>,
    pub weight: Option<u32>,
    pub drain: bool,
    pub backup: bool,
    pub check: Check,
}

/// The check of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// As weir does it without being told.
    Usual,
    /// None: it always counts as up.
    Off,
    /// Such a one.
    Of(Fields),
}

/// Settings with their values, as written.
pub(super) type Fields = BTreeMap<&'static str, String>;

/// A string as TOML has it.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A duration in whole milliseconds, as the file has it.
pub(super) fn seconds(seconds: f64) -> String {
    let millis = (seconds * 1000.0).clamp(10.0, 3_600_000.0) as u64;
    quoted(&humantime::format_duration(std::time::Duration::from_millis(millis)).to_string())
}

/// A name that a service or backend may have.
fn name_of(text: &str) -> String {
    let good = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    text.chars().take(64).map(good).collect()
}

/// What stands on a line of the text to be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Service(usize),
    Backend(usize, usize),
}

impl Draft {
    pub fn note(&mut self, line: usize, text: impl Into<String>) {
        if self.notes.len() < MOST_NOTES {
            self.notes.push(Note { line, text: text.into() });
        }
    }

    /// Adds a service; false, with a note, if there is no room for it.
    pub fn add(&mut self, service: Service) -> bool {
        if !self.has_room(service.line, 1, service.backends.len()) {
            return false;
        }
        let place = (service.vip, service.port, service.protocol);
        self.places.entry(place).or_insert(self.services.len());
        self.services.push(service);
        true
    }

    /// Whether there is room for so many services and backends more, which come now; if not it is noted.
    pub fn has_room(&mut self, line: usize, services: usize, backends: usize) -> bool {
        let has = self.services.len() + services <= MOST_SERVICES
            && self.backends + backends <= MOST_BACKENDS;
        if has {
            self.backends += backends;
        } else {
            let text = format!(
                "a balancer has up to {MOST_BACKENDS} backends, and no more than {MOST_SERVICES} services are \
                 read; left out"
            );
            self.note(line, text);
        }
        has
    }

    /// The number of the first service of an address, port and protocol.
    pub fn find(&self, vip: IpAddr, port: Option<u16>, protocol: Protocol) -> Option<usize> {
        self.places.get(&(vip, port, protocol)).copied()
    }

    /// Writes what passes `weir check`, and notes what does not.
    pub fn settle(mut self, form: Form) -> Result<Imported, ImportError> {
        self.unite();
        // Each round leaves something out, or is the last.
        let mut last = String::new();
        for _ in 0..ROUNDS {
            self.drop_empty();
            self.name_all();
            if self.services.is_empty() {
                return Err(ImportError::Nothing { notes: self.told() });
            }
            let (text, places) = self.written(form);
            let error = match Config::parse(&text, "the configuration") {
                Ok(_) => return Ok(self.done(text, form)),
                Err(error) => error,
            };
            let mut wrong = BTreeMap::new();
            for problem in error.problems() {
                let Some(Some(place)) = places.get(problem.line.saturating_sub(1)).copied() else {
                    return Err(ImportError::Refused(problem.to_string()));
                };
                let field = problem.field.rsplit(": ").next().unwrap_or_default();
                wrong.entry(place).or_insert(format!("{field}: {}", problem.wrong));
            }
            if wrong.is_empty() {
                return Err(ImportError::Refused(error.to_string()));
            }
            self.leave_out(&wrong);
            last = error.to_string();
        }
        Err(ImportError::Refused(format!("too much of it would be refused, at last: {last}")))
    }

    /// The notes by line, each as one line of a terminal: they quote what was read.
    fn told(&mut self) -> Vec<Note> {
        let mut notes = std::mem::take(&mut self.notes);
        for note in &mut notes {
            note.text = plain(std::mem::take(&mut note.text));
        }
        notes.sort();
        notes.dedup();
        notes
    }

    fn done(mut self, text: String, form: Form) -> Imported {
        let notes = self.told();
        let mut all = text;
        if !notes.is_empty() {
            let _ = writeln!(
                all,
                "\n# What has no counterpart, or another one, by line of what was read ({}):",
                form.name()
            );
            for note in &notes {
                let _ = writeln!(all, "#   line {}: {}", note.line, clean(&note.text));
            }
        }
        let backends = self.services.iter().map(|service| service.backends.len()).sum();
        Imported { text: all, notes, services: self.services.len(), backends }
    }

    /// One service for each address, protocol and port: the first.
    fn unite(&mut self) {
        let mut seen = BTreeSet::new();
        let notes = &mut self.notes;
        self.services.retain(|service| {
            let first = seen.insert((service.vip, service.port, service.protocol.number()));
            if !first {
                let text =
                    "a service of this address, protocol and port is there already; left out";
                notes.push(Note { line: service.line, text: text.into() });
            }
            first
        });
        for service in &mut self.services {
            let mut seen = BTreeSet::new();
            service.backends.retain(|backend| {
                let first = seen.insert((backend.address, backend.port));
                if !first {
                    let text = format!("backend {} is there already; left out", backend.address);
                    notes.push(Note { line: backend.line, text });
                }
                first
            });
        }
    }

    fn drop_empty(&mut self) {
        let notes = &mut self.notes;
        self.services.retain(|service| {
            let any = !service.backends.is_empty();
            if !any {
                let text = "the service has no backend that can be taken over; left out".into();
                notes.push(Note { line: service.line, text });
            }
            any
        });
    }

    /// Names that are names, and no two alike.
    fn name_all(&mut self) {
        let mut times: HashMap<String, usize> = HashMap::new();
        for service in &mut self.services {
            let name = name_of(&service.name);
            let count = times.entry(name.clone()).or_default();
            *count += 1;
            service.name = match *count {
                1 => name,
                more => {
                    let end = format!("-{more}");
                    name.chars().take(64 - end.len()).collect::<String>() + &end
                }
            };
        }
    }

    fn leave_out(&mut self, wrong: &BTreeMap<Place, String>) {
        for (place, why) in wrong {
            let found = match *place {
                Place::Service(at) => self.services.get(at).map(|one| (one.line, "service")),
                Place::Backend(at, number) => {
                    let backend = self.services.get(at).and_then(|one| one.backends.get(number));
                    backend.map(|one| (one.line, "backend"))
                }
            };
            if let Some((line, what)) = found {
                self.note(line, format!("the {what} is left out, as weir would refuse it: {why}"));
            }
        }
        let mut services = 0..;
        self.services.retain_mut(|service| {
            let at = services.next().unwrap_or_default();
            let mut backends = 0..;
            service.backends.retain(|_| {
                let number = backends.next().unwrap_or_default();
                !wrong.contains_key(&Place::Backend(at, number))
            });
            !wrong.contains_key(&Place::Service(at))
        });
    }

    /// The text, and whose each line is.
    fn written(&self, form: Form) -> (String, Vec<Option<Place>>) {
        let mut text = Text::default();
        text.line(
            None,
            &format!(
                "# Made by `weir import` of a file of {}. Look it through before you use it:",
                form.name()
            ),
        );
        text.line(
            None,
            "# `weir check --config FILE`, `weir doctor --config FILE`, docs/import.md.",
        );
        text.line(None, "[balancer]");
        let interfaces: Vec<String> = match self.interfaces.is_empty() {
            true => {
                text.line(None, "# The interfaces by which packets come; it was not said which.");
                vec![quoted("eth0")]
            }
            false => self.interfaces.iter().map(|name| quoted(name)).collect(),
        };
        text.line(None, &format!("interfaces = [{}]", interfaces.join(", ")));
        self.limits(&mut text);
        for (at, service) in self.services.iter().enumerate() {
            service.write(at, &mut text);
        }
        (text.all, text.places)
    }

    /// Those that it needs beyond the usual ones.
    fn limits(&self, text: &mut Text) {
        let usual = Limits::default();
        let services = self.services.len();
        let backends = self.services.iter().map(|one| one.backends.len()).sum::<usize>();
        let more = services.saturating_sub(usual.services as usize);
        let many = backends > usual.backends as usize;
        if more > 0 || many {
            text.line(None, "");
            text.line(None, "[limits]");
        }
        if more > 0 {
            let tables = usual.table_bytes as usize + more * TABLES_OF_SERVICE;
            text.line(None, &format!("services = {services}"));
            text.line(None, &format!("table_bytes = {}", tables.min(MOST_TABLE_BYTES)));
        }
        if many {
            text.line(None, &format!("backends = {backends}"));
        }
    }
}

#[derive(Default)]
struct Text {
    all: String,
    places: Vec<Option<Place>>,
}

impl Text {
    fn line(&mut self, place: Option<Place>, line: &str) {
        self.all += line;
        self.all.push('\n');
        self.places.push(place);
    }
}

/// A comment of one line, without what TOML does not take there.
fn clean(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{} ...", &text[..at]),
        None => text,
    }
}

impl Service {
    fn write(&self, at: usize, text: &mut Text) {
        let own = Some(Place::Service(at));
        let mut say = |line: &str| text.line(own, line);
        say("");
        say(&format!("# line {}: {}", self.line, clean(&self.said)));
        say("[[service]]");
        say(&format!("name = {}", quoted(&self.name)));
        say(&format!("vip = {}", quoted(&self.vip.to_string())));
        if self.protocol != Protocol::Tcp {
            say(&format!("protocol = \"{}\"", self.protocol.name()));
        }
        match self.port {
            Some(port) => say(&format!("port = {port}")),
            None => say("any_port = true"),
        }
        self.settings.iter().for_each(|line| say(line));
        let common = self.common_check();
        let mut check = self.shared.clone();
        match common {
            Some(Check::Off) => {
                check.clear();
                check.insert("enabled", "false".into());
            }
            Some(Check::Of(fields)) => check.extend(fields.clone()),
            Some(Check::Usual) => {}
            // Each backend has its own, or none.
            None => drop(check.insert("enabled", "false".into())),
        }
        if !check.is_empty() {
            say("");
            say("[service.check]");
            check.iter().for_each(|(field, value)| say(&format!("{field} = {value}")));
        }
        for (number, backend) in self.backends.iter().enumerate() {
            let place = Some(Place::Backend(at, number));
            backend.write(number, common.is_none(), &mut |line| text.line(place, line));
        }
    }

    /// The check of all backends, if they have one.
    fn common_check(&self) -> Option<&Check> {
        let first = &self.backends.first()?.check;
        self.backends.iter().all(|backend| backend.check == *first).then_some(first)
    }
}

impl Backend {
    fn write(&self, number: usize, own_check: bool, say: &mut dyn FnMut(&str)) {
        say("");
        say("[[service.backend]]");
        say(&format!("name = \"b{}\"", number + 1));
        say(&format!("address = {}", quoted(&self.address.to_string())));
        if let Some(port) = self.port {
            say(&format!("port = {port}"));
        }
        if let Some(weight) = self.weight.filter(|weight| *weight != 1) {
            say(&format!("weight = {weight}"));
        }
        if self.drain {
            say("drain = true");
        }
        if self.backup {
            say("backup = true");
        }
        let fields = match &self.check {
            Check::Off => Vec::new(),
            _ if !own_check => Vec::new(),
            Check::Usual => vec!["enabled = true".to_owned()],
            Check::Of(fields) => {
                let fields = fields.iter().map(|(field, value)| format!("{field} = {value}"));
                ["enabled = true".to_owned()].into_iter().chain(fields).collect()
            }
        };
        if !fields.is_empty() {
            say(&format!("check = {{ {} }}", fields.join(", ")));
        }
    }
}
