//! What a restarted control plane must know besides the states of connections.

use super::discover::Found;
use super::places::Salts;
use super::service::{PoolMember, ServiceRuntime};
use super::sources::SavedSources;
use super::turn::InForce;
use super::{Engine, EngineError};
use crate::config::{Backend, Service};
use crate::store::{Journal, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::error;
use weir_plane::Plane;
use weir_steering::ServiceId;

/// The file of a run directory that all of it is in; what has changed since stands in `runtime.log`.
pub const FILE: &str = "runtime.json";

/// After a failure to write it down.
const SAVE_AGAIN: Duration = Duration::from_secs(2);

/// What a restarted engine goes on from.
///
/// What an instance goes on from is taken as a whole: a field that is not known here was written by a newer
/// version, which uses it, and is refused. So a field that is new is left out where it says nothing, and
/// may be missing. The description of a service is the file's as it was read: what is not known of that
/// is passed over, since the file says it, too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The services as they were left, by name.
    pub services: BTreeMap<String, SavedService>,
    /// How often each backend number was given out, by number.
    pub incarnations: BTreeMap<u16, u32>,
}

/// What has changed in a [`Document`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// A service is new, or another than it was.
    Service {
        /// Its name.
        name: String,
        /// As it is now.
        service: Box<SavedService>,
        /// How often the numbers of its backends were given out.
        incarnations: BTreeMap<u16, u32>,
    },
    /// A service is gone.
    Removed {
        /// Its name.
        name: String,
    },
}

impl Document {
    /// What was written down in a run directory; nothing, if nothing was.
    ///
    /// # Errors
    /// [`StoreError::Forgotten`] if it cannot be understood, [`StoreError::Corrupt`] if what has changed since cannot.
    pub fn read(run_dir: &Path) -> Result<Self, StoreError> {
        let file = run_dir.join(FILE);
        let read = Journal::read::<Self, Change>(&file).map_err(|error| match error {
            StoreError::Corrupt { path, reason } if path == file => {
                StoreError::Forgotten { path, reason }
            }
            error => error,
        });
        let Some((mut document, changes)) = read? else { return Ok(Self::default()) };
        changes.into_iter().for_each(|change| document.take(change));
        Ok(document)
    }

    /// Takes a change up.
    pub fn take(&mut self, change: Change) {
        match change {
            Change::Service { name, service, incarnations } => {
                self.services.insert(name, *service);
                self.incarnations.extend(incarnations);
            }
            Change::Removed { name } => {
                self.services.remove(&name);
            }
        }
    }

    /// Whether a start from this, over the same data plane, comes to what one from this with `changes` comes to.
    pub(super) fn leads_where(&self, changes: &[Change]) -> bool {
        changes.iter().all(|change| match change {
            Change::Service { name, service, .. } => {
                self.services.get(name).is_some_and(|saved| saved.leads_where(service))
            }
            Change::Removed { .. } => false,
        })
    }

    /// What this says of a service that is no longer so; `None`: it is.
    pub(super) fn change_of(&self, name: &str, now: &ServiceRuntime) -> Option<Change> {
        if self.services.get(name).is_some_and(|saved| now.is_saved_as(saved)) {
            return None;
        }
        self.change_to(name, now.saved())
    }

    /// The same of a service that is to be so.
    pub(super) fn change_to(&self, name: &str, service: SavedService) -> Option<Change> {
        if self.services.get(name) == Some(&service) {
            return None;
        }
        let count = |id: u16| self.incarnations.get(&id).map(|count| (id, *count));
        let incarnations =
            service.backends.iter().filter_map(|backend| count(backend.id)).collect();
        Some(Change::Service { name: name.to_owned(), service: Box::new(service), incarnations })
    }
}

/// What a start says of a log of changes in which some may be missing that were made and answered.
pub(super) fn missing_changes(run_dir: &Path) -> Option<String> {
    let file = run_dir.join(FILE);
    let damage = Journal::damage(&file)?;
    let log = file.with_extension("log");
    Some(format!(
        "{} {damage}: changes that were made since {FILE} was written may be lost; weir history says which there were",
        log.display()
    ))
}

impl<P: Plane> Engine<P> {
    /// Writes down what a restart must know.
    pub(super) fn save(&mut self) -> Result<(), EngineError> {
        let gone = self.document.services.keys().filter(|name| !self.services.contains_key(*name));
        let mut changes: Vec<Change> =
            gone.map(|name| Change::Removed { name: name.clone() }).collect();
        let services = self.services.iter();
        changes.extend(services.filter_map(|(name, now)| self.document.change_of(name, now)));
        self.write_down(changes)
    }

    /// As [`save`](Self::save), of some services that are still there.
    pub(super) fn save_some<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), EngineError> {
        let change = |name| self.document.change_of(name, self.services.get(name)?);
        let changes = names.into_iter().filter_map(change).collect();
        self.write_down(changes)
    }

    pub(super) fn write_down(&mut self, changes: Vec<Change>) -> Result<(), EngineError> {
        let first = self.journal.is_to_be_rewritten();
        if !first {
            if changes.is_empty() {
                return Ok(());
            }
            self.journal.append(&changes)?;
        }
        let before = first.then(|| self.document.clone());
        changes.into_iter().for_each(|change| self.document.take(change));
        if first || self.journal.is_long() {
            let rewritten = self.journal.rewrite(&self.document);
            // What is appended is written, even if there is no room to write it in short.
            if let (Err(error), Some(before)) = (rewritten, before) {
                self.document = before;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// As [`save`](Self::save), where a failure stops nothing: it is shown, and tried again.
    pub(super) fn save_later(&mut self) {
        let saved = self.save();
        self.note_saved(saved);
    }

    /// As [`save_some`](Self::save_some), where a failure stops nothing. What could not be written
    /// before is left for later.
    pub(super) fn save_some_later<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        if self.unsaved.is_none() {
            let saved = self.save_some(names);
            self.note_saved(saved);
        }
    }

    pub(super) fn note_saved(&mut self, saved: Result<(), EngineError>) {
        match saved {
            Ok(()) => self.unsaved = None,
            Err(error) => {
                if self.unsaved.is_none() {
                    error!(%error, "cannot write down what a restart must know");
                }
                self.unsaved = Some((error.to_string(), Instant::now() + SAVE_AGAIN));
            }
        }
    }
}

/// A service as it was left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedService {
    /// Number of the service in the data plane.
    pub number: u32,
    /// Seed of its flow hash, where that must outlive a restart.
    pub seed: u64,
    /// Number of tables published so far.
    pub generation: u64,
    /// The service as the configuration file had it. While the file says the same, changes made by
    /// commands hold; when it says something else, it is followed.
    pub configured: Service,
    /// What its published table was made by, if that was not yet what the file wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce>,
    /// What the log of its states is called, if not as the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// What tells its addresses apart, if that is not what it would be at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salts: Option<Salts>,
    /// The numbers of servers in cookies: a plane whose tables nobody reads back has them from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbered: Vec<(String, Option<u64>)>,
    /// What commands have put on its lists of sources, if they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<SavedSources>,
    /// The backends as they were left, commands included.
    pub backends: Vec<SavedBackend>,
}

impl PoolMember {
    fn saved(&self) -> SavedBackend {
        SavedBackend {
            id: self.id.get(),
            name: self.wanted.name.clone(),
            address: self.wanted.address,
            port: self.wanted.port,
            weight: self.wanted.weight,
            drain: self.wanted.drain,
            backup: self.wanted.backup,
            nat_sources: self.wanted.nat_sources.clone(),
            up: self.up,
            unproven: !self.proven,
            found: self.found.clone(),
        }
    }
}

impl ServiceRuntime {
    /// The numbers that its servers have in cookies; none if its method has no cookies.
    fn numbered(&self) -> Vec<(String, Option<u64>)> {
        match self.builder.method().needs().timestamps {
            true => self.builder.numbered(&self.members()),
            false => Vec::new(),
        }
    }

    /// Whether a restart would find it as it is.
    pub fn is_saved_as(&self, saved: &SavedService) -> bool {
        let same = |(member, saved): (&PoolMember, &SavedBackend)| {
            let PoolMember { id, wanted, up, proven, .. } = member;
            (id.get(), &wanted.name, wanted.address, wanted.weight, *up)
                == (saved.id, &saved.name, saved.address, saved.weight, saved.up)
                && (wanted.drain, wanted.backup) == (saved.drain, saved.backup)
                && wanted.nat_sources == saved.nat_sources
                && *proven != saved.unproven
                && member.found == saved.found
        };
        (self.number, self.seed, self.generation)
            == (ServiceId(saved.number), saved.seed, saved.generation)
            && self.pool.len() == saved.backends.len()
            && self.pool.iter().zip(&saved.backends).all(same)
            && self.configured == saved.configured
            && saved.numbered == self.numbered()
            && saved.sources == self.listed.saved()
            && saved.in_force.as_ref().unwrap_or(&InForce::of(&saved.configured)) == &self.in_force
            && saved.log.as_ref().unwrap_or(&saved.configured.name) == &self.log_name
            && saved.salts.as_ref()
                == Some(&self.salts).filter(|salts| !salts.are_plain(&self.configured))
    }

    pub fn saved(&self) -> SavedService {
        self.saved_as(&self.configured, &self.salts, &self.pool)
    }

    /// As [`saved`](Self::saved), with another description, what tells the addresses in it apart, and another
    /// pool.
    pub fn saved_as(
        &self,
        configured: &Service,
        salts: &Salts,
        pool: &[PoolMember],
    ) -> SavedService {
        let turning = self.in_force != InForce::of(configured);
        SavedService {
            number: self.number.0,
            seed: self.seed,
            generation: self.generation,
            configured: configured.clone(),
            in_force: turning.then(|| self.in_force.clone()),
            log: (self.log_name != configured.name).then(|| self.log_name.clone()),
            salts: (!salts.are_plain(configured)).then(|| salts.clone()),
            numbered: self.numbered(),
            sources: self.listed.saved(),
            backends: pool.iter().map(PoolMember::saved).collect(),
        }
    }
}

/// A backend as it was left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedBackend {
    /// Number of the backend in the data plane.
    pub id: u16,
    /// Name of the backend, unique in its service.
    pub name: String,
    /// Address of the backend.
    pub address: IpAddr,
    /// The port that its packets get; none: the one that they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Share of the new connections, 0 to 65,535.
    pub weight: u16,
    /// Whether it is draining.
    pub drain: bool,
    /// Whether it is a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
    /// Which of the balancer's sources its packets get under full NAT; none: all of its family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat_sources: Vec<IpAddr>,
    /// Whether its health check had it up.
    pub up: bool,
    /// Whether its health check has never had it up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unproven: bool,
    /// It was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
}

impl SavedService {
    /// Whether both say the same but for what a start finds out otherwise: generation and method from the table that
    /// packets follow, who is up from the checks, and which prefixes of commands are over from the clock. Numbers,
    /// seeds, logs, pools and what tells addresses apart are nowhere else: who started from others would take a
    /// backend's connections for another one's.
    fn leads_where(&self, other: &Self) -> bool {
        let alike = |(one, two): (&SavedBackend, &SavedBackend)| {
            *one == SavedBackend { up: one.up, unproven: one.unproven, ..two.clone() }
        };
        let as_here = Self {
            generation: self.generation,
            in_force: self.in_force.clone(),
            sources: self.sources.clone(),
            backends: self.backends.clone(),
            ..other.clone()
        };
        *self == as_here
            && self.backends.len() == other.backends.len()
            && self.backends.iter().zip(&other.backends).all(alike)
    }
}

impl SavedBackend {
    /// The backend as a configuration file would have it.
    pub fn wanted(&self) -> Backend {
        Backend {
            name: self.name.clone(),
            address: self.address,
            port: self.port,
            weight: self.weight,
            drain: self.drain,
            backup: self.backup,
            nat_sources: self.nat_sources.clone(),
        }
    }
}
