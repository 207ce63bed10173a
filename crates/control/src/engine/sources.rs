//! Prefixes that commands put on a service's lists of sources, over what its file has there: for a time or until
//! they are taken back. They are written down with the service, outlive the process and reloads, and end by the
//! clock of the boot, which nobody sets.

use super::limits::of_limits;
use super::service::ServiceRuntime;
use super::status::SourceStatus;
use super::{Engine, EngineError};
use crate::config::{Config, Lists, PlaneKind, Service, Table};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tracing::{error, info};
use weir_plane::{Plane, Prefix};

/// Prefixes of one service: they are written down anew with each of its tables. More belong into a file.
const MOST: usize = 1000;
/// Seconds for which one may be there, a year of 365 days.
const LONGEST: u32 = 365 * 24 * 3600;
/// Characters of a reason.
const MOST_SAID: usize = 200;
/// Those that are named of all that end at once.
const NAMED: usize = 5;
/// The same in every process of one boot, and in no other boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A prefix that is to be on a service's lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSource {
    /// The prefix, such as `198.51.100.0/24`; an address is one host.
    pub prefix: String,
    /// `true`: its packets are taken; `false`: they are dropped.
    pub allow: bool,
    /// For so many seconds, 1 to 31,536,000; if it is not said, until it is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// Why, in 200 characters at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A prefix that a command has put on a service's lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListedSource {
    /// The prefix.
    pub prefix: String,
    /// Whether its packets are taken, or dropped.
    pub allow: bool,
    /// Who has put it there.
    pub by: String,
    /// Why, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For how many seconds more it is there; none: until it is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u32>,
}

/// What a restart finds of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSources {
    /// The boot by whose clock they end.
    boot: String,
    entries: Vec<SavedSource>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSource {
    prefix: String,
    allow: bool,
    by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// For how many seconds it was put there, and when they are over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ends: Option<(u32, u32)>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    prefix: Prefix,
    allow: bool,
    by: String,
    reason: Option<String>,
    /// For how many seconds it was put there, and when they are over, in seconds since the machine was started.
    ends: Option<(u32, u32)>,
}

impl Entry {
    fn is_over(&self, now: u32) -> bool {
        self.ends.is_some_and(|(_, end)| end <= now)
    }

    fn left(&self, now: u32) -> Option<u32> {
        self.ends.map(|(_, end)| end.saturating_sub(now))
    }
}

/// What commands have put on a service's lists.
#[derive(Default)]
pub(super) struct Listed {
    entries: Vec<Entry>,
    /// The file's lists with them over; none if there are none, or the file's were not read.
    over: Option<Lists>,
}

impl Listed {
    /// A file's lists with these over them; none if there are none, or the file's were not read.
    fn laid_over(&self, file: Option<&Lists>) -> Option<Lists> {
        let rules: Vec<(Prefix, bool)> =
            self.entries.iter().map(|entry| (entry.prefix, entry.allow)).collect();
        if rules.is_empty() { None } else { Lists::with(file, &rules) }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What a restart is to find of them.
    pub fn saved(&self) -> Option<SavedSources> {
        if self.entries.is_empty() {
            return None;
        }
        let saved = |entry: &Entry| SavedSource {
            prefix: entry.prefix.to_string(),
            allow: entry.allow,
            by: entry.by.clone(),
            reason: entry.reason.clone(),
            ends: entry.ends,
        };
        Some(SavedSources { boot: boot(), entries: self.entries.iter().map(saved).collect() })
    }

    /// As they were left, without those that have ended meanwhile. The clock of another boot says nothing of how
    /// long ago they were put there: they have their whole time again.
    pub fn restored(saved: Option<SavedSources>, now: u32) -> Self {
        let Some(SavedSources { boot: then, entries }) = saved else { return Self::default() };
        let same = then == boot();
        let entry = |saved: SavedSource| {
            let SavedSource { prefix, allow, by, reason, ends } = saved;
            let anew = |(seconds, _): (u32, u32)| (seconds, now.saturating_add(seconds));
            let ends = if same { ends } else { ends.map(anew) };
            Some(Entry { prefix: prefix.parse().ok()?, allow, by, reason, ends })
        };
        let entries = entries.into_iter().filter_map(entry);
        let entries = entries.filter(|entry| !entry.is_over(now)).collect();
        Self { entries, over: None }
    }

    /// What is to be said of a prefix that decides, if a command has put it there.
    pub fn words_of(&self, prefix: Prefix, now: u32) -> String {
        let Some(entry) = self.entries.iter().find(|entry| entry.prefix == prefix) else {
            return String::new();
        };
        let reason = entry.reason.as_ref().map(|reason| format!(": {reason}"));
        let left = entry.left(now).map(|left| format!(", for {} more", time(left)));
        let (reason, left) = (reason.unwrap_or_default(), left.unwrap_or_default());
        format!(" (a command of {}{left}{reason})", entry.by)
    }

    fn shown(&self, now: u32) -> Vec<ListedSource> {
        let shown = |entry: &Entry| ListedSource {
            prefix: entry.prefix.to_string(),
            allow: entry.allow,
            by: entry.by.clone(),
            reason: entry.reason.clone(),
            seconds_left: entry.left(now),
        };
        self.entries.iter().map(shown).collect()
    }
}

/// Which boot of the machine this is.
pub(super) fn boot() -> String {
    std::fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned()
}

fn time(seconds: u32) -> String {
    humantime::format_duration(Duration::from_secs(seconds.into())).to_string()
}

impl ServiceRuntime {
    /// What its packets are judged by: the file's lists, with what commands have put over them.
    pub fn lists(&self) -> Option<&Lists> {
        self.listed.over.as_ref().or(self.configured.lists.as_ref())
    }

    /// The file's lists, or what is over them, are others from now on.
    pub fn lay_over(&mut self) {
        self.listed.over = self.listed.laid_over(self.configured.lists.as_ref());
    }
}

impl<P: Plane> Engine<P> {
    pub(super) fn source_status(&self, service: &ServiceRuntime) -> Option<SourceStatus> {
        let by_commands = service.listed.shown(self.now());
        let file = service.configured.lists.as_ref();
        if by_commands.is_empty() && file.is_none() {
            return None;
        }
        let (allow, deny) = file.map_or((0, 0), Lists::counts);
        let digest = self.plane.source_digest(service.number);
        let digest = digest.map(|digest| format!("{digest:016x}"));
        Some(SourceStatus { allow, deny, by_commands, digest })
    }

    /// Puts a prefix on a service's lists; one that is there is replaced. Also says whether that has changed
    /// anything.
    pub(super) fn list_source(
        &mut self,
        name: &str,
        wanted: &ListSource,
    ) -> Result<(String, bool), EngineError> {
        let entry = self.entry_of(wanted)?;
        let service = self.service(name)?;
        if !service.configured.has_family(!entry.prefix.is_ipv6()) {
            let (family, other) = match entry.prefix.is_ipv6() {
                true => ("IPv6", "IPv4"),
                false => ("IPv4", "IPv6"),
            };
            return Err(EngineError::Invalid(format!(
                "{} is {family}, and service {name} has addresses of {other} only ({}): no packet for it comes from \
                 there",
                entry.prefix,
                service.configured.address_text()
            )));
        }
        let listed = &service.listed.entries;
        if self.config.balancer.plane == PlaneKind::P4 {
            return Err(EngineError::Conflict("a switch has no lists of sources".into()));
        }
        let verb = if entry.allow { "allowed" } else { "denied" };
        let time = wanted.seconds.map(|seconds| format!(" for {}", time(seconds)));
        let reason = entry.reason.as_ref().map(|reason| format!(": {reason}"));
        let said = format!("{} is {verb} by {name}{}", entry.prefix, time.unwrap_or_default());
        let there = listed.iter().position(|one| one.prefix == entry.prefix);
        if let Some(there) = there.and_then(|at| listed.get(at)) {
            let same = |one: &Entry| (one.allow, one.ends, one.reason.clone());
            if entry.ends.is_none() && same(there) == same(&entry) {
                return Ok((format!("{said} already"), false));
            }
        }
        let mut entries = listed.clone();
        if let Some(there) = there {
            entries.remove(there);
        } else if entries.len() >= MOST {
            return Err(EngineError::Conflict(format!(
                "the list is full: commands have put {MOST} prefixes on those of service {name}; take some back \
                 (weir source list {name}), or put them into a file (allow_file, deny_file)"
            )));
        }
        entries.push(entry);
        self.commit_sources(name, entries, true)?;
        Ok((format!("{said}{}", reason.unwrap_or_default()), true))
    }

    /// Takes back what a command has put on a service's lists.
    pub(super) fn unlist_source(
        &mut self,
        name: &str,
        prefix: &str,
    ) -> Result<String, EngineError> {
        let prefix = parse(prefix)?;
        let mut entries = self.service(name)?.listed.entries.clone();
        let before = entries.len();
        entries.retain(|entry| entry.prefix != prefix);
        if entries.len() == before {
            return Err(EngineError::NotFound(format!(
                "no command has put {prefix} on the lists of service {name}; weir source list {name} shows those \
                 that have, and what the file lists is changed there"
            )));
        }
        self.commit_sources(name, entries, false)?;
        Ok(format!("{prefix} is off the lists of {name} that commands make"))
    }

    fn entry_of(&self, wanted: &ListSource) -> Result<Entry, EngineError> {
        let ListSource { prefix, allow, seconds, reason } = wanted;
        let prefix = parse(prefix)?;
        if let Some(seconds) = seconds.filter(|seconds| !(1..=LONGEST).contains(seconds)) {
            let wrong = format!("seconds: {seconds} is not 1 to {LONGEST}, which is a year");
            return Err(EngineError::Invalid(wrong));
        }
        let bad =
            |text: &&String| text.chars().count() > MOST_SAID || text.chars().any(char::is_control);
        if reason.as_ref().filter(bad).is_some() {
            let wrong = format!("reason: give {MOST_SAID} characters at most, on one line");
            return Err(EngineError::Invalid(wrong));
        }
        let ends = seconds.map(|seconds| (seconds, self.now().saturating_add(seconds)));
        let reason = reason.clone().filter(|reason| !reason.is_empty());
        Ok(Entry { prefix, allow: *allow, by: self.who.name.clone(), reason, ends })
    }

    /// Makes room for a service's lists, writes them down and tells packets. If any of that cannot be done, all
    /// is as before.
    fn commit_sources(
        &mut self,
        name: &str,
        entries: Vec<Entry>,
        grows: bool,
    ) -> Result<(), EngineError> {
        let before = self.lay_over(name, entries)?;
        // What takes room from nobody is never refused for want of it.
        let done = (if grows { self.room_for_lists() } else { Ok(()) })
            .map(|()| {
                if grows {
                    self.begin_time(name)
                }
            })
            .and_then(|()| self.save_some([name]))
            .and_then(|()| self.tell_sources(name));
        if done.is_err() {
            self.lay_over(name, before)?;
            self.save_later();
        }
        done.map_err(EngineError::of_undone)
    }

    /// The time of what was put on a service's lists last begins: memory for the first list is made before, which
    /// may take longer than it is to be there.
    fn begin_time(&mut self, name: &str) {
        let now = self.now();
        let service = self.services.get_mut(name);
        let last = service.and_then(|service| service.listed.entries.last_mut());
        if let Some((seconds, end)) = last.and_then(|entry| entry.ends.as_mut()) {
            *end = now.saturating_add(*seconds);
        }
    }

    /// Returns what was there.
    fn lay_over(&mut self, name: &str, entries: Vec<Entry>) -> Result<Vec<Entry>, EngineError> {
        let service = self.service_mut(name)?;
        let before = std::mem::replace(&mut service.listed.entries, entries);
        service.lay_over();
        Ok(before)
    }

    /// Refuses a file whose lists, with what commands have put over them, would take more room than it gives.
    pub(super) fn lists_fit(&self, config: &Config) -> Result<(), EngineError> {
        let takes = |wanted: &Service| {
            let file = wanted.lists.as_ref();
            let there = self.services.get(&wanted.name).filter(|one| !one.listed.is_empty());
            match there {
                Some(there) => there.listed.laid_over(file).as_ref().map_or(0, Lists::takes),
                None => file.map_or(0, Lists::takes),
            }
        };
        let taken: usize = config.services.iter().map(takes).sum();
        let most = config.limits.list_prefixes;
        if taken <= most as usize || self.services.values().all(|one| one.listed.is_empty()) {
            return Ok(());
        }
        let place = self.source().place(Table::Limits, "list_prefixes");
        Err(EngineError::Conflict(format!(
            "{place}limits.list_prefixes = {most}: all lists together would take the memory of {taken} prefixes, \
             with those that commands have put there; raise it, or take some of those back (weir source list, \
             weir source remove)"
        )))
    }

    /// At a start: what commands have put on lists and finds no room any more is left out, the longest first, as
    /// nobody could take it back otherwise.
    pub(super) fn leave_out_lists(&mut self, config: &Config) {
        while self.lists_fit(config).is_err() {
            let longest = self.services.values_mut().max_by_key(|one| one.listed.entries.len());
            let Some(service) = longest.filter(|one| !one.listed.is_empty()) else { return };
            let (service_name, count) = (&service.configured.name, service.listed.entries.len());
            error!(
                service = service_name,
                count, "commands' prefixes do not fit beside the file's, and are left out"
            );
            service.listed = Listed::default();
        }
    }

    fn room_for_lists(&mut self) -> Result<(), EngineError> {
        let most = self.config.limits.list_prefixes;
        let all = self.services.values().filter_map(ServiceRuntime::lists);
        let taken: usize = all.map(Lists::takes).sum();
        if taken > most as usize {
            return Err(EngineError::Conflict(format!(
                "the list is full: all lists together would take the memory of {taken} prefixes, and \
                 limits.list_prefixes is {most}"
            )));
        }
        if self.plane.limits().list_prefixes < most {
            // The first list that there is.
            let config = self.config.clone();
            self.grow(&config)?;
        }
        Ok(())
    }

    fn tell_sources(&mut self, name: &str) -> Result<(), EngineError> {
        let from = self.source();
        let Some(service) = self.services.get(name) else { return Ok(()) };
        let Some(sources) = service.sources() else {
            return Err(EngineError::Conflict(format!(
                "the files that list the sources of service {name} were not read; weir reload reads them"
            )));
        };
        let told = self.plane.set_sources(service.number, sources);
        told.map_err(|error| of_limits::<P>(&from, error))
    }

    /// Takes off the lists what has been there for its time.
    pub(super) fn look_at_sources(&mut self) {
        let now = self.now();
        let due = |service: &&ServiceRuntime| {
            service.listed.entries.iter().any(|entry| entry.is_over(now))
        };
        let due = self.services.values().filter(due).map(|one| one.configured.name.clone());
        for name in due.collect::<Vec<_>>() {
            if let Err(error) = self.end_sources(&name, now) {
                error!(service = name, %error, "cannot take sources off its lists");
            }
        }
    }

    fn end_sources(&mut self, name: &str, now: u32) -> Result<(), EngineError> {
        let all = self.service(name)?.listed.entries.clone();
        let (over, rest): (Vec<Entry>, Vec<Entry>) =
            all.into_iter().partition(|entry| entry.is_over(now));
        let before = self.lay_over(name, rest)?;
        if let Err(error) = self.tell_sources(name) {
            self.lay_over(name, before)?;
            return Err(error);
        }
        // A start looks at the clock itself.
        self.save_some_later([name]);
        let mut named: Vec<String> =
            over.iter().take(NAMED).map(|entry| entry.prefix.to_string()).collect();
        named.extend((over.len() > NAMED).then(|| format!("and {} more", over.len() - NAMED)));
        let said = format!("off the lists of {name}, as the time is over: {}", named.join(", "));
        info!(service = name, "{said}");
        self.remember_own(said);
        Ok(())
    }
}

/// What somebody has given for a prefix.
fn parse(text: &str) -> Result<Prefix, EngineError> {
    let wrong = |error: weir_plane::PrefixError| {
        EngineError::Invalid(format!("prefix: {error}; {}", error.right()))
    };
    text.trim().parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_goes_on_with_the_time_that_is_left_and_another_boot_begins_it_anew() {
        let entry = |prefix: &str, ends| {
            let prefix = prefix.parse().expect("a prefix");
            Entry { prefix, allow: false, by: "alice".into(), reason: None, ends }
        };
        let entries = vec![entry("10.0.0.0/8", None), entry("192.0.2.0/24", Some((60, 1060)))];
        let listed = Listed { entries: entries.clone(), over: None };
        let saved = listed.saved().expect("there are some");
        let text = serde_json::to_string(&saved).expect("JSON");
        let read = || Some(serde_json::from_str::<SavedSources>(&text).expect("JSON"));
        assert_eq!(Listed::restored(read(), 1000).entries, entries);
        assert_eq!(Listed::restored(read(), 1059).shown(1059)[1].seconds_left, Some(1));
        assert_eq!(Listed::restored(read(), 1060).entries, entries[..1]);
        let other = read().map(|saved| SavedSources { boot: "another".into(), ..saved });
        for now in [5, 5000] {
            let shown = Listed::restored(other.clone(), now).shown(now);
            assert_eq!((shown[0].seconds_left, shown[1].seconds_left), (None, Some(60)));
        }
        assert!(Listed::default().saved().is_none() && Listed::restored(None, 0).is_empty());
    }
}
