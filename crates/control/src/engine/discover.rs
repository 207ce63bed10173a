//! Backends that were looked up in the domain name system (`[[service.discover]]`).
//!
//! An answer makes the pool what it says as one change, like a command. Who is in it and was not comes in as a
//! backend that is added does, once its check has succeeded. Whose record is gone *leaves*: it drains, and is
//! removed when its last connection has ended, at the latest after `leave_after`. A record that comes back in
//! the meantime takes it back. No answer, or one without a record, changes nothing: an outage of name servers
//! is no reason to take a service down.
//!
//! Found backends are written down with the pool, so that a restart goes on with them before anybody has
//! answered.

use super::service::{PoolMember, ServiceRuntime};
use super::{Engine, EngineError, Happening, ServiceStatus};
use crate::config::{Backend, Discover, Service};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{info, warn};
use weir_plane::Plane;
use weir_steering::BackendId;

/// Reports of connections that began before a backend drained are in after so many seconds.
const SETTLED: u32 = 5;
/// Records that are named of those that are left out.
const MOST_NAMED: usize = 3;

/// That a backend was looked up, and what is known of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// The name of the entry.
    pub by: String,
    /// The weight that its record said last.
    pub said: u16,
    /// Since when there is no record of it, in seconds by the engine's clock; none: there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<u32>,
}

/// What is to be looked up for a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sought {
    /// The service.
    pub service: String,
    /// Whether by IPv4 addresses, or by those of IPv6.
    pub ipv4: bool,
    /// How.
    pub discover: Discover,
}

/// What was found of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Not one of those with the lowest priority number.
    pub backup: bool,
    /// Its address.
    pub address: IpAddr,
    /// Its port, if the record has one.
    pub port: Option<u16>,
    /// Its weight, at least 1.
    pub weight: u16,
}

/// What has come of a look-up: records, or why there are none.
pub type Answer = Result<Vec<Record>, String>;

/// What is known of an entry of a service.
#[derive(Clone, Debug, Default)]
pub(super) struct Discovery {
    /// Records in the last answer.
    records: usize,
    /// When that was.
    answered: Option<Instant>,
    /// Why there was none since.
    failure: Option<String>,
    failures: u64,
    /// What of the last answer is not in the pool, and why.
    left_out: Option<String>,
}

/// What is looked up for a service.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DiscoverStatus {
    /// Name of the entry.
    pub name: String,
    /// What is asked for, "dns NAME" or "srv NAME".
    pub records: String,
    /// Number of records in the last answer.
    pub answered: usize,
    /// Seconds since that came; none: there was none since `weir run` started.
    pub answered_seconds: Option<u64>,
    /// Number of backends that were found and whose record is there.
    pub backends: usize,
    /// Number of those whose record is gone, and whose connections have not ended.
    pub leaving: usize,
    /// Why the last look-up gave nothing, if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Number of look-ups that gave nothing.
    pub failures: u64,
    /// What of the last answer is not in the pool, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

impl PoolMember {
    /// Whether its record is gone.
    pub fn is_gone(&self) -> bool {
        self.found.as_ref().is_some_and(|found| found.gone.is_some())
    }

    fn is_found_by(&self, entry: &str) -> bool {
        self.found.as_ref().is_some_and(|found| found.by == entry)
    }

    fn place(&self) -> (IpAddr, Option<u16>) {
        (self.wanted.address, self.wanted.port)
    }
}

impl ServiceRuntime {
    /// Whether a backend that was looked up stays in the pool when the service is to be so.
    pub fn keeps_found(wanted: &Service, member: &PoolMember) -> bool {
        let by = member.found.as_ref().and_then(|found| wanted.discover_named(&found.by));
        let place = (member.wanted.address, member.wanted.port);
        by.is_some() && !wanted.backends.iter().any(|one| (one.address, one.port) == place)
    }

    /// What such a backend is then: it comes from where its entry says.
    pub fn as_found(wanted: &Service, member: &PoolMember) -> Option<Backend> {
        let by = member.found.as_ref().and_then(|found| wanted.discover_named(&found.by));
        let nat_sources = by?.nat_sources.clone();
        Self::keeps_found(wanted, member).then(|| Backend { nat_sources, ..member.wanted.clone() })
    }

    /// Forgets entries that the file has no more.
    pub fn prune_discoveries(&mut self) {
        let configured = &self.configured;
        self.discoveries.retain(|name, _| configured.discover_named(name).is_some());
    }

    /// Where an entry's record is in the pool; the words say why it cannot be.
    fn place_of(
        &self,
        discover: &Discover,
        record: &Record,
    ) -> Result<(IpAddr, Option<u16>), String> {
        let configured = &self.configured;
        let port = record.port.or(discover.port);
        if configured.forward.is_nat() {
            return Ok((record.address, port.filter(|_| configured.port.is_some())));
        }
        let fits = match (port, configured.port, &configured.ports) {
            (None, ..) | (_, None, None) => true,
            (Some(port), Some(own), _) => port == own,
            (Some(port), None, Some(ports)) => (ports.first..=ports.last).contains(&port),
        };
        if fits {
            return Ok((record.address, None));
        }
        Err(format!(
            "{} has port {}, and packets keep port {} (forward = \"nat\" translates)",
            record.address,
            port.unwrap_or(0),
            configured.port_text()
        ))
    }

    fn discover_status(&self, entry: &Discover) -> DiscoverStatus {
        let known = self.discoveries.get(&entry.name).cloned().unwrap_or_default();
        let of_it = self.pool.iter().filter(|member| member.is_found_by(&entry.name));
        let (leaving, there): (Vec<_>, Vec<_>) = of_it.partition(|member| member.is_gone());
        DiscoverStatus {
            name: entry.name.clone(),
            records: entry.records.to_string(),
            answered: known.records,
            answered_seconds: known.answered.map(|at| at.elapsed().as_secs()),
            backends: there.len(),
            leaving: leaving.len(),
            failure: known.failure,
            failures: known.failures,
            left_out: known.left_out,
        }
    }

    /// What is looked up for it.
    pub fn discover_statuses(&self) -> Vec<DiscoverStatus> {
        self.configured.discover.iter().map(|entry| self.discover_status(entry)).collect()
    }
}

/// What an answer makes of a pool.
#[derive(Default)]
struct Edits {
    new: Vec<PoolMember>,
    /// Members with another record: whose weight it says, and that they are backups.
    changed: Vec<(BackendId, Option<u16>, bool)>,
    back: Vec<(BackendId, String)>,
    gone: Vec<(BackendId, String)>,
    left_out: Vec<String>,
}

impl Edits {
    fn is_empty(&self) -> bool {
        self.new.is_empty()
            && self.changed.is_empty()
            && self.back.is_empty()
            && self.gone.is_empty()
    }
}

impl<P: Plane> Engine<P> {
    /// Tells who looks up what is to be looked up, now and when that changes.
    pub(crate) fn look_up_by(&mut self, seeker: watch::Sender<Arc<[Sought]>>) {
        self.seeker = Some(seeker);
        self.tell_seeker();
    }

    pub(super) fn tell_seeker(&self) {
        let Some(seeker) = &self.seeker else { return };
        let of = |service: &ServiceRuntime| {
            let configured = &service.configured;
            let sought = |discover: &Discover| Sought {
                service: configured.name.clone(),
                ipv4: configured.discovers_ipv4(),
                discover: discover.clone(),
            };
            configured.discover.iter().map(sought).collect::<Vec<_>>()
        };
        let all: Arc<[Sought]> = self.services.values().flat_map(of).collect();
        seeker.send_if_modified(|told| {
            let other = **told != *all;
            if other {
                *told = all;
            }
            other
        });
    }

    /// Takes up what a look-up has given.
    pub(super) fn looked_up(&mut self, sought: &Sought, answer: Answer) {
        let Some(service) = self.services.get_mut(&sought.service) else { return };
        // The file may have changed since it was asked.
        if !service.configured.discover.contains(&sought.discover) {
            return;
        }
        let (name, discover) = (&sought.service, &sought.discover);
        let entry = &discover.name;
        let known = service.discoveries.entry(entry.clone()).or_default();
        let records = match answer {
            Ok(records) if !records.is_empty() => records,
            answer => {
                let why = answer.err().unwrap_or_else(|| "no record".into());
                if known.failure.is_none() {
                    let records = discover.records.to_string();
                    warn!(service = name, entry, records, why, "looked up in vain; backends stay");
                }
                known.failures += 1;
                known.failure = Some(why);
                return;
            }
        };
        if known.failure.take().is_some() {
            info!(service = name, entry, records = records.len(), "looked up again");
        }
        (known.records, known.answered) = (records.len(), Some(Instant::now()));
        let left_out = match self.follow_records(sought, records) {
            Ok(left_out) => left_out,
            Err(error) => Some(error.to_string()),
        };
        let Some(service) = self.services.get_mut(name) else { return };
        let Some(known) = service.discoveries.get_mut(entry) else { return };
        if let Some(why) = left_out.as_ref().filter(|why| Some(*why) != known.left_out.as_ref()) {
            warn!(service = name, entry, why, "not all that was found is in the pool");
        }
        known.left_out = left_out;
    }

    /// Makes the pool what an answer says. Returns what of it cannot be in it, and why.
    fn follow_records(
        &mut self,
        sought: &Sought,
        records: Vec<Record>,
    ) -> Result<Option<String>, EngineError> {
        let (name, entry) = (&sought.service, &sought.discover.name);
        let edits = self.edits_of(sought, records)?;
        let left_out = words_of(&edits.left_out);
        if edits.is_empty() {
            return Ok(left_out);
        }
        let now = self.now();
        self.commit_with(name, &edits.new, |service| {
            for member in &mut service.pool {
                let Some(found) = &mut member.found else { continue };
                let id = member.id;
                if let Some((_, weight, backup)) = edits.changed.iter().find(|(one, ..)| *one == id)
                {
                    if let Some(weight) = *weight {
                        (found.said, member.wanted.weight) = (weight, weight);
                    }
                    member.wanted.backup = *backup;
                }
                if edits.back.iter().any(|(one, _)| *one == id) {
                    found.gone = None;
                }
                if edits.gone.iter().any(|(one, _)| *one == id) {
                    found.gone = Some(now);
                }
            }
            service.pool.extend_from_slice(&edits.new);
        })?;
        let came = edits.new.iter().map(|member| &member.wanted.name);
        let came = came.chain(edits.back.iter().map(|(_, backend)| backend));
        let there = came.map(|backend| (backend, true));
        let gone = edits.gone.iter().map(|(_, backend)| (backend, false));
        for (backend, there) in there.chain(gone) {
            info!(service = name, entry, backend, there, "a backend was looked up");
            self.events.push(Happening::Discovered {
                service: name.clone(),
                backend: backend.clone(),
                there,
            });
        }
        Ok(left_out)
    }

    fn edits_of(&self, sought: &Sought, mut records: Vec<Record>) -> Result<Edits, EngineError> {
        let Sought { service: name, discover, .. } = sought;
        let service = self.service(name)?;
        let mut edits = Edits::default();
        records.sort_unstable();
        let (mut places, mut wanted) = (HashSet::new(), Vec::new());
        for record in records {
            let place = service.place_of(discover, &record);
            // Also of who is there: the file may have taken the address while nobody ran.
            let place = place.and_then(|place| match self.not_apart(record.address) {
                None => Ok(place),
                Some(why) => Err(format!("{} {why}", record.address)),
            });
            match place {
                // The first of several is the one with the higher priority.
                Ok(place) if places.insert(place) => wanted.push((place, record)),
                Ok(_) => {}
                Err(why) => edits.left_out.push(why),
            }
        }
        let mut there = 0;
        let mut candidates = Vec::new();
        for (place, record) in wanted {
            let Some(member) = service.pool.iter().find(|member| member.place() == place) else {
                candidates.push((place, record));
                continue;
            };
            let Some(found) = member.found.as_ref().filter(|_| member.is_found_by(&discover.name))
            else {
                // It is in the file, or was found by another entry.
                continue;
            };
            there += 1;
            if found.gone.is_some() {
                edits.back.push((member.id, member.wanted.name.clone()));
            }
            let weight = (found.said != record.weight).then_some(record.weight);
            if weight.is_some() || member.wanted.backup != record.backup {
                edits.changed.push((member.id, weight, record.backup));
            }
        }
        for member in service.pool.iter().filter(|member| member.is_found_by(&discover.name)) {
            if !member.is_gone() && !places.contains(&member.place()) {
                edits.gone.push((member.id, member.wanted.name.clone()));
            }
        }
        // As with a service that is new: where nobody is up, nobody is waited for.
        let alone = !service.pool.iter().any(|member| member.up && service.takes_new(member));
        let mut numbers = self.numbers();
        for ((address, port), record) in candidates {
            let backend = Backend {
                name: discover.backend_name(address, port),
                address,
                port,
                weight: record.weight,
                drain: false,
                backup: record.backup,
                nat_sources: discover.nat_sources.clone(),
            };
            if there + edits.new.len() >= usize::from(discover.most) {
                edits
                    .left_out
                    .push(format!("{address}: there are most = {} already", discover.most));
                continue;
            }
            let member = self.may_join(name, &backend, edits.new.len()).and_then(|()| {
                let checked = service.configured.check_of(&backend).is_some();
                self.allot(backend, alone || !checked, (&mut numbers, 0))
            });
            match member {
                Ok(member) => {
                    let by = discover.name.clone();
                    let found = Some(Found { by, said: record.weight, gone: None });
                    edits.new.push(PoolMember { found, ..member });
                }
                Err(why) => edits.left_out.push(format!("{address}: {why}")),
            }
        }
        Ok(edits)
    }

    /// Removes backends whose record is gone, and whose connections have ended or have had their time.
    pub(super) fn let_leave(&mut self) {
        let now = self.now();
        let due = self.services.iter().filter_map(|(name, service)| {
            let gone = service.pool.iter().filter(|member| may_leave(service, member, now));
            let gone: Vec<(BackendId, String)> =
                gone.map(|member| (member.id, member.wanted.name.clone())).collect();
            let waits = service.trouble.as_ref().is_some_and(|one| one.again > Instant::now());
            (!gone.is_empty() && !waits).then(|| (name.clone(), gone))
        });
        let due: Vec<_> = due.collect();
        for (name, gone) in due {
            let held = |id| self.services.get(&name).and_then(|service| service.states_of(id));
            let held: Vec<Option<usize>> = gone.iter().map(|(id, _)| held(*id)).collect();
            let removed = self.commit(&name, |service| {
                service.pool.retain(|member| !gone.iter().any(|(id, _)| *id == member.id));
                gone.iter().for_each(|(id, _)| service.leave(*id));
            });
            if let Err(error) = removed {
                warn!(service = name, %error, "cannot remove backends whose records are gone");
                continue;
            }
            for ((_, backend), held) in gone.iter().zip(held) {
                match held {
                    Some(0) => info!(service = name, backend, "removed: its record is gone"),
                    held => warn!(
                        service = name,
                        backend,
                        connections = held,
                        "removed: its record is gone for as long as leave_after says"
                    ),
                }
            }
        }
    }
}

/// What an operator should know of what is looked up.
pub(super) fn warnings(services: &[ServiceStatus]) -> Vec<String> {
    let mut warnings = Vec::new();
    let entries =
        services.iter().flat_map(|service| service.discover.iter().map(move |one| (service, one)));
    for (service, entry) in entries {
        let (what, records) =
            (format!("service {}: discover {}", service.name, entry.name), &entry.records);
        if let Some(why) = &entry.failure {
            let since = match entry.answered_seconds {
                Some(seconds) => {
                    let since = humantime::format_duration(Duration::from_secs(seconds));
                    format!("no answer about {records} in {since}")
                }
                None => format!("no answer about {records} yet"),
            };
            let kept = entry.backends + entry.leaving;
            warnings.push(format!(
                "{what}: {since} ({why}); the {kept} backends that it has found stay"
            ));
        }
        if let Some(why) = &entry.left_out {
            warnings.push(format!("{what}: not in the pool: {why}"));
        }
    }
    warnings
}

fn words_of(left_out: &[String]) -> Option<String> {
    // Each once: a name may be listed several times.
    let each: BTreeSet<&String> = left_out.iter().collect();
    let more = each.len().saturating_sub(MOST_NAMED);
    let mut words: Vec<String> = each.into_iter().take(MOST_NAMED).cloned().collect();
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    (!words.is_empty()).then(|| words.join("; "))
}

/// Whether a backend whose record is gone can be removed.
fn may_leave(service: &ServiceRuntime, member: &PoolMember, now: u32) -> bool {
    let Some(found) = &member.found else { return false };
    let Some(since) = found.gone else { return false };
    // By another clock: the machine was started anew, and no connection of before is left.
    let Some(age) = now.checked_sub(since) else { return true };
    let entry = service.configured.discover_named(&found.by);
    let most = entry.map_or(0, |entry| entry.leave_after.as_secs());
    if u64::from(age) >= most {
        return true;
    }
    // Where not all connections are known, a backend without known ones may have some.
    let all_known =
        service.refused() == 0 && service.beyond_prefix == 0 && service.unremembered() == 0;
    age >= SETTLED
        && all_known
        && service.states_of(member.id) == Some(0)
        && service.young.len() == 0
}
