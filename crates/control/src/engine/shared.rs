//! Services whose table all balancers of a fleet have alike: the leader builds it, in a step, of the states of all,
//! and the others get it from it, or from one another (docs/fleet.md, In step).

use super::fleet::{Fleet, FleetNews, digest_of, digest_of_rows};
use super::service::ServiceRuntime;
use super::{Command, Engine, EngineError};
use crate::tables::{Shelf, Wish, get};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, warn};
use weir_fleet::{Pools, Share, Stage, Step};
use weir_plane::Plane;
use weir_steering::{Armed, Image, InFleet, Parcel};

/// A table that nobody gave is asked for again after so long.
const AGAIN: Duration = Duration::from_millis(100);
/// One that has not come for so long, in which the others have gone on without, is asked for more seldom.
const OFTEN_FOR: Duration = Duration::from_secs(5);
/// So often.
const SELDOM: Duration = Duration::from_secs(1);

/// A table that one balancer has built.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub digest: String,
    pub parcel: Arc<Parcel>,
}

impl Base {
    fn of(parcel: Parcel) -> Self {
        Self { digest: parcel.digest(), parcel: Arc::new(parcel) }
    }
}

/// Tables on their way here.
#[derive(Default)]
pub(super) struct Fetching {
    /// By service and digest: none while the others are being asked, else when they are asked again.
    asked: HashMap<(String, String), Option<Instant>>,
    /// Since when a table is not here that packets are to follow, and why.
    lacks: Option<(Instant, Option<String>)>,
    /// A test plays the other balancers.
    #[cfg(test)]
    pub by: Option<tokio::sync::mpsc::UnboundedSender<Wish>>,
}

impl Fetching {
    /// For how long a table has not come that packets are to follow; none while somebody may be sending it.
    pub fn lacks_for(&self) -> Option<Duration> {
        let asks = self.asked.values().any(Option::is_none);
        self.lacks.as_ref().filter(|_| !asks).map(|(since, _)| since.elapsed())
    }

    /// All is here that is to be followed, or something else is to be.
    pub fn found(&mut self) {
        self.lacks = None;
        self.asked.retain(|_, again| again.is_none());
    }

    /// Whether a table is not here that packets are to follow.
    pub fn is_lacking(&self) -> bool {
        self.lacks.is_some()
    }

    /// Why.
    pub fn why(&self) -> Option<&str> {
        self.lacks.as_ref()?.1.as_deref()
    }
}

impl Fleet {
    /// Whether the configuration that a step goes by is on its way here still.
    pub(super) fn awaits_configuration(&self, step: &Step) -> bool {
        self.is_followed() && self.change() < step.change
    }
}

impl ServiceRuntime {
    /// Whether all balancers of a fleet follow one table of it.
    pub fn is_shared(&self) -> bool {
        self.configured.method.id().info().in_fleet == InFleet::Shared
    }

    /// The same, or all still do.
    pub fn lends(&self) -> bool {
        self.is_shared() || self.follows_shared()
    }

    /// Whether the table that packets follow is another than that of this digest.
    pub fn lacks(&self, digest: &str) -> bool {
        self.base.as_ref().is_none_or(|base| base.digest != digest)
    }

    /// Whether a pool has somebody of whom nothing is known here.
    pub fn lacks_one_of(&self, pool: &[Share]) -> bool {
        pool.iter().any(|share| self.member(&share.name).is_none())
    }

    /// Those of the pool of the last step of whom nothing is known here.
    pub fn unknown_members(&self) -> Vec<String> {
        let unknown = |share: &&Share| self.member(&share.name).is_none();
        self.agreed.iter().flatten().filter(unknown).map(|share| share.name.clone()).collect()
    }

    /// Whether the configuration has somebody now without whom the table of its step was followed.
    pub fn has_joined(&self) -> bool {
        self.unknown.iter().any(|name| self.member(name).is_some())
    }

    /// After a restart: what packets follow is a table of the fleet.
    pub fn base_of_published(&mut self, shelf: &Shelf) {
        if self.base.is_none() && self.follows_shared() {
            let image = self.builder.published();
            let parcel = image.and_then(|image| Parcel::of(image, |id| self.name_of(id)));
            self.base = parcel.map(Base::of);
            if let Some(Base { digest, parcel }) = &self.base {
                shelf.put(&self.configured.name, digest, Arc::new(parcel.to_bytes()));
            }
        }
    }

    /// The digest of the rows that its table has with this pool, by a method whose rows go by the pool alone.
    ///
    /// # Errors
    /// [`EngineError::Build`].
    pub fn digest_of_rows(&mut self, pool: &[Share]) -> Result<Option<String>, EngineError> {
        let Some(key) = self.builder.published().map(|image| image.header().key) else {
            return Ok(None);
        };
        // Packets are to follow another key or method then.
        if self.turn.is_some() {
            return Ok(None);
        }
        let agreed = self.agreed.replace(pool.to_vec());
        let dead = std::mem::take(&mut self.dead_here);
        let members = self.members();
        (self.agreed, self.dead_here) = (agreed, dead);
        let rows = self.builder.rows_of(&members)?;
        Ok(rows.map(|rows| digest_of_rows(self, &rows, &key)))
    }

    /// Whether a table that is built has the rows that the leader has made.
    ///
    /// # Errors
    /// [`EngineError::Conflict`], if not.
    pub fn has_wanted_rows(&self, image: &Image) -> Result<(), EngineError> {
        let Some(wanted) = &self.wanted_rows else { return Ok(()) };
        let found = digest_of(self, image);
        if *wanted == found {
            return Ok(());
        }
        Err(EngineError::Conflict(format!(
            "its rows have the digest {found}, and the leader's {wanted}: it is not followed; do all balancers have \
             the same version?"
        )))
    }

    /// Builds the table that all are to follow of what is known of connections here. What packets follow stays.
    fn build_for_all(&mut self, now: u32) -> Result<Parcel, EngineError> {
        self.to_be_shared = true;
        let built = self.build(now, usize::MAX, Armed::NONE);
        self.to_be_shared = false;
        let (image, ..) = built?;
        let parcel = Parcel::of(&image, |id| self.name_of(id));
        self.discard()?;
        parcel.ok_or_else(|| {
            EngineError::Conflict("its table leads to a backend without a name".into())
        })
    }
}

impl<P: Plane> Engine<P> {
    /// The tables that this balancer has for others.
    pub(crate) fn shelf(&self) -> Arc<Shelf> {
        Arc::clone(&self.shelf)
    }

    /// The services that wait for another one.
    pub(super) fn wait_for_table(&self) -> Vec<String> {
        let all = self.services.iter().filter(|(_, service)| service.waits_for_table());
        all.map(|(name, _)| name.clone()).collect()
    }

    /// Where the others of a fleet get them, if there are any.
    pub(super) fn tables_at(&self) -> Option<String> {
        let shares = self.services.values().any(ServiceRuntime::lends);
        let agents = self.config.agents.as_ref().filter(|_| shares)?;
        let listen = agents.listen;
        if !listen.ip().is_unspecified() {
            return Some(listen.to_string());
        }
        let host = self.own_host()?;
        let bare = host.contains(':') && !host.starts_with('[');
        let port = listen.port();
        Some(if bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    }

    /// The leader has taken all as far as *collect*: what is known now is what there is. The tables that all are to
    /// follow next, by their digests.
    pub(super) fn build_for_all(
        &mut self,
        step: &Step,
    ) -> Result<BTreeMap<String, String>, EngineError> {
        let now = self.now();
        let mut tables = BTreeMap::new();
        for (name, pool) in &step.next {
            let Some(service) = self.services.get_mut(name).filter(|one| one.is_shared()) else {
                continue;
            };
            let begun = Instant::now();
            let agreed = service.agreed.replace(pool.clone());
            let dead = std::mem::take(&mut service.dead_here);
            let built = service.build_for_all(now);
            (service.agreed, service.dead_here) = (agreed, dead);
            let parcel = built?;
            let bytes = parcel.to_bytes();
            let base = Base::of(parcel);
            debug!(service = name, bytes = bytes.len(), took = ?begun.elapsed(), "a table for all");
            self.shelf.put(name, &base.digest, Arc::new(bytes));
            tables.insert(name.clone(), base.digest);
        }
        Ok(tables)
    }

    /// Whether the tables are here that packets of these services are to follow at a stage. Those that are not are
    /// asked for.
    pub(super) fn tables_are_here(&mut self, step: &Step, stage: Stage, pools: &Pools) -> bool {
        let mut here = true;
        for name in pools.keys() {
            if let Some(digest) = step.table_at(stage, name) {
                let digest = digest.clone();
                here &= self.table_is_here(name, &digest);
            }
        }
        if let Some(fleet) = self.fleet.as_mut().filter(|_| here) {
            fleet.fetching.found();
        }
        here
    }

    /// Whether a service's next table can be the one of this digest. If it is not here it is asked for.
    pub(super) fn table_is_here(&mut self, name: &str, digest: &str) -> bool {
        let Some(service) = self.services.get_mut(name).filter(|one| one.lends()) else {
            return true;
        };
        if !service.lacks(digest) {
            service.next_base = None;
            return true;
        }
        if service.next_base.as_ref().is_some_and(|base| base.digest == digest) {
            return true;
        }
        if let Some(bytes) = self.shelf.get(name, digest) {
            match Parcel::from_bytes(&bytes) {
                Ok(parcel) => {
                    service.next_base = Some(Base::of(parcel));
                    return true;
                }
                Err(error) => warn!(service = name, %error, "a table cannot be read"),
            }
        }
        self.ask_for_table(name, digest);
        false
    }

    fn ask_for_table(&mut self, name: &str, digest: &str) {
        let Some(fleet) = &mut self.fleet else { return };
        fleet.fetching.lacks.get_or_insert((Instant::now(), None));
        let key = (name.to_owned(), digest.to_owned());
        match fleet.fetching.asked.get(&key) {
            Some(None) => return,
            Some(Some(again)) if Instant::now() < *again => return,
            _ => {}
        }
        let own = fleet.id().to_owned();
        let peers = fleet.with_report(|report| {
            let leader = report.leader.as_ref().map(|leader| leader.name.clone());
            let others = report.balancers.iter().filter(|(_, sign)| sign.id != own);
            let mut all: Vec<(bool, String)> = others
                .filter_map(|(name, sign)| {
                    Some((leader.as_ref() != Some(name), sign.tables.clone()?))
                })
                .collect();
            all.sort();
            all.into_iter().map(|(_, place)| place).collect::<Vec<_>>()
        });
        let (service, digest) = key.clone();
        let wish = Wish { service, digest, peers };
        #[cfg(test)]
        if let Some(by) = &fleet.fetching.by {
            fleet.fetching.asked.insert(key, None);
            let _ = by.send(wish);
            return;
        }
        let Some((_, commands)) = fleet.ways() else { return };
        let Some(files) = self.config.agents.as_ref().map(crate::config::Agents::files) else {
            return;
        };
        fleet.fetching.asked.insert(key, None);
        debug!(service = wish.service, digest = wish.digest, "asks for a table");
        tokio::spawn(async move {
            let got = get(&wish, &files).await;
            let news = FleetNews::Table(wish.service, wish.digest, got);
            let _ = commands.send(Command::Fleet(news)).await;
        });
    }

    /// Another balancer has given a table, or nobody has.
    pub(super) fn table_came(
        &mut self,
        name: String,
        digest: String,
        got: Result<Vec<u8>, String>,
    ) {
        let Some(fleet) = &mut self.fleet else { return };
        let fetching = &mut fleet.fetching;
        match got {
            Ok(bytes) => {
                debug!(service = name, digest, bytes = bytes.len(), "a table came");
                self.shelf.put(&name, &digest, Arc::new(bytes));
                if let Some(service) = self.services.get_mut(&name) {
                    service.dirty = true;
                }
                fetching.asked.remove(&(name, digest));
                fetching.lacks = None;
            }
            Err(why) => {
                debug!(service = name, digest, why, "a table did not come");
                let mut after = AGAIN;
                if let Some((since, said)) = &mut fetching.lacks {
                    // Of several services the first is named, as long as it lacks its own.
                    let of = format!("the table of service {name} did not come: ");
                    if said.as_ref().is_none_or(|before| before.starts_with(&of)) {
                        *said = Some(of + &why);
                    }
                    if since.elapsed() >= OFTEN_FOR {
                        after = SELDOM;
                    }
                }
                // Those of former steps are asked for no more.
                let now = Instant::now();
                fetching.asked.retain(|_, again| again.is_none_or(|again| again + SELDOM > now));
                fetching.asked.insert((name, digest), Some(now + after));
            }
        }
    }
}
