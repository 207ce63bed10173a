//! What a start of a balancer goes by that is of a fleet: its own part of the configuration, by its file or as it was
//! in force last, and the services that the store has, or that were followed last.

use super::file::{called, parse_joined};
use super::namesake::own_name;
use super::{Begun, parse};
use crate::config::{Config, PlaneKind};
use crate::engine::EngineError;
use crate::last_good::{self, Instead};
use std::path::{Path, PathBuf};
use weir_fleet::text::{self, Parts};
use weir_fleet::{Cache, Document, FleetError, Store, cache_path};

/// What is said of a store that does not answer to who has never heard of its fleet.
const NOTHING_YET: &str = "; without it nothing is served yet";

/// What a start goes by.
pub struct Start {
    /// The whole configuration.
    pub config: Config,
    /// What is known of its fleet, if it is of one.
    pub fleet: Option<Begun>,
    /// What is in force in the place of the file, if that would be refused.
    pub instead: Option<Instead>,
    /// What the fleet had when this balancer followed it last, if it has something else now.
    before: Option<Document>,
}

/// What a start goes by: the configuration that the store has, or that this balancer has followed last, in the
/// place of the services of its own file. `instead`: the configuration is not the file's.
///
/// # Errors
/// [`EngineError`] if what the balancer keeps, or what it is to follow, cannot be used.
pub async fn begin(
    config: Config,
    instead: Option<Instead>,
    path: &Path,
    plane: Option<PlaneKind>,
) -> Result<Start, EngineError> {
    let Some(store) = &config.store else {
        return Ok(Start { config, fleet: None, instead, before: None });
    };
    let parts = match &instead {
        Some(instead) => text::split(&instead.text)?,
        None => text::split(&Config::text(path)?)?,
    };
    let mut cache = Cache::load(&cache_path(path))?;
    let left = cache.document.as_ref().map(|document| document.text.clone());
    let joined = left.is_some();
    let mut notes = Vec::new();
    let looked = async {
        let mut store = Store::connect(store).await?;
        store.look().await
    };
    let seen = tokio::time::timeout(store.wait, looked).await;
    let seen = seen.unwrap_or_else(|_| Err(FleetError::Unreachable("no answer in time".into())));
    let (mut step, mut followed) = (None, seen.is_ok());
    let found = match seen {
        Ok(seen) => {
            let seen = own_name(store, &config.balancer.name, &cache.id, seen).await?;
            step = seen.step.map(|(step, _)| step);
            seen.document
        }
        Err(error) => {
            let error = error.by(store);
            notes.push(match &cache.document {
                Some(kept) => format!("{error}; this start goes on with change {}", kept.change),
                None => format!("{error}{NOTHING_YET}"),
            });
            // Its own file says nothing of what the others do.
            if cache.document.is_none() {
                let config = parse(&parts.own, path, plane, None)?;
                let own = parts.own;
                let fleet = Some(Begun { cache, step, own, joined, left, followed, notes });
                return Ok(Start { config, fleet, instead, before: None });
            }
            None
        }
    };
    let kept = cache.document.as_ref().map_or(0, |kept| kept.change);
    let mut before = None;
    if let Some((document, _)) = found.filter(|(document, _)| document.change > kept) {
        let name = called(document.change);
        match parse_joined(&parts.own, &document.text, &name, path, plane, None) {
            Ok(_) => before = cache.document.replace(document),
            Err(error) if joined => {
                followed = false;
                notes.push(not_followed(&document, kept, &error));
            }
            Err(error) => return Err(error),
        }
    }
    // A fleet without a configuration gets that of the first balancer.
    let Some(document) = &cache.document else {
        let fleet = Some(Begun { cache, step, own: parts.own, joined, left, followed, notes });
        return Ok(Start { config, fleet, instead, before: None });
    };
    let other = instead.is_none() && parts.shared != document.text && joined;
    let name = called(document.change);
    // What is kept of lists is what they said with the services that were followed last.
    let kept = |instead: &Instead| before.is_none().then(|| instead.lists.clone());
    let lists = instead.as_ref().and_then(kept);
    let joint = parse_joined(&parts.own, &document.text, &name, path, plane, lists.as_ref());
    let (parsed, own, instead) = match joint {
        // Good in itself, and not with the services of the fleet.
        Err(why) if instead.is_none() => match own_before(path, plane, &why) {
            Some((own, instead)) => {
                let lists = kept(&instead);
                let lists = lists.as_ref();
                let config = parse_joined(&own, &document.text, &name, path, plane, lists);
                (config.map_err(|_| why)?, own, Some(instead))
            }
            None => return Err(why),
        },
        parsed => (parsed?, parts.own, instead),
    };
    if other && instead.is_none() {
        notes.push(format!(
            "the services in {} are not those of the fleet, which count and are written there",
            path.display()
        ));
    }
    let fleet = Some(Begun { cache, step, own, joined, left, followed, notes });
    Ok(Start { config: parsed, fleet, instead, before })
}

impl Start {
    /// Why a start is not made that knows nothing of its fleet, as the store does not answer: packets go by the services of
    /// a process before it, which it would take away.
    pub fn takes_away(&self, path: &Path, plane: Option<PlaneKind>) -> Option<String> {
        let fleet = self.fleet.as_ref().filter(|fleet| !fleet.followed)?;
        if fleet.cache.document.is_some() {
            return None;
        }
        let services = last_good::find(path, plane)?.config.services.len();
        let why = fleet.notes.last().map_or("", |note| note.trim_end_matches(NOTHING_YET));
        (services > 0).then(|| {
            format!(
                "{why}, and this balancer has never heard of its fleet: its start would take away {services} services \
                 that packets go by now, and end their connections. Nothing has changed; mend [store], or put the \
                 file back as it was; --break-connections does it all the same"
            )
        })
    }
}

/// What there is to tell of a document that is not followed.
fn not_followed(document: &Document, kept: u64, why: &EngineError) -> String {
    let change = document.change;
    format!("change {change} of the fleet cannot be followed, and change {kept} goes on: {why}")
}

/// This balancer's own part of the configuration that was in force last, if packets are forwarded by it. That of one
/// that was of no fleet is none: who joins says so, and connections break.
fn own_before(
    path: &Path,
    plane: Option<PlaneKind>,
    why: &EngineError,
) -> Option<(String, Instead)> {
    let found = last_good::find(path, plane).filter(|found| found.config.store.is_some())?;
    let Parts { own, .. } = text::split(&found.text).ok()?;
    Some((own, found.instead(why.to_string())))
}

/// By what else a start may go that was refused.
pub struct Ways {
    path: PathBuf,
    plane: Option<PlaneKind>,
    kind: PlaneKind,
    fleet: Option<Begun>,
    before: Option<Document>,
    instead: Option<Instead>,
}

/// A way on.
pub type Way = (Config, Option<Begun>, Option<Instead>);

impl Ways {
    /// Of a start that has not been tried yet.
    pub fn of(start: &Start, path: &Path, plane: Option<PlaneKind>) -> Self {
        Self {
            path: path.to_owned(),
            plane,
            kind: start.config.balancer.plane,
            fleet: start.fleet.clone(),
            before: start.before.clone(),
            instead: start.instead.clone(),
        }
    }

    /// With what the fleet had before: what it has now cannot be followed yet, and is tried again.
    pub fn with_services_before(&self, why: &EngineError) -> Option<Way> {
        let (fleet, before) = (self.fleet.as_ref()?, self.before.as_ref()?);
        let note = fleet.cache.document.as_ref().map(|now| not_followed(now, before.change, why));
        let fleet = Begun { notes: note.into_iter().collect(), ..self.gone_back(fleet) };
        let config = self.config_of(&fleet, self.instead.as_ref())?;
        Some((config, Some(fleet), self.instead.clone()))
    }

    /// With what was in force before in the place of the file.
    pub fn with_file_before(&self, why: &EngineError) -> Option<Way> {
        // That was tried.
        if self.instead.is_some() {
            return None;
        }
        let Some(fleet) = &self.fleet else {
            // Whoever was of a fleet, and is not by its file, does not go on as one that never was.
            let found = last_good::find(&self.path, self.plane);
            let found = found.filter(|found| found.config.store.is_none())?;
            let instead = found.instead(why.to_string());
            let same = found.config.balancer.plane == self.kind;
            return same.then_some((found.config, None, Some(instead)));
        };
        let (own, instead) = own_before(&self.path, self.plane, why)?;
        let fleet = Begun { own, notes: Vec::new(), ..self.gone_back(fleet) };
        let config = self.config_of(&fleet, Some(&instead))?;
        (config.balancer.plane == self.kind).then_some((config, Some(fleet), Some(instead)))
    }

    /// A fleet as it was followed last.
    fn gone_back(&self, fleet: &Begun) -> Begun {
        let mut fleet = fleet.clone();
        if let Some(before) = &self.before {
            fleet.cache.document = Some(before.clone());
            fleet.followed = false;
        }
        fleet
    }

    fn config_of(&self, fleet: &Begun, instead: Option<&Instead>) -> Option<Config> {
        let lists = instead.map(|instead| &instead.lists);
        let shared = fleet.cache.document.as_ref().map_or("", |document| &document.text);
        parse(&text::join(&fleet.own, shared), &self.path, self.plane, lists).ok()
    }
}
