//! What a balancer says of itself to its fleet, and what it can tell of the others.

use super::super::agents::place;
use super::{Fleet, ServiceRuntime, namesake, unfit};
use crate::certificates::warning_for_store;
use crate::engine::{Engine, EngineError, StepStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tracing::{info, warn};
use weir_fleet::{Document, Leader, ServiceSign, Sign};
use weir_hash::HashKey;
use weir_plane::Plane;
use weir_steering::cheetah::servers;
use weir_steering::{BackendId, Image, MethodId, SLOT_BACKEND};
use xxhash_rust::xxh3::Xxh3;

/// A fleet, as one of its balancers knows it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FleetStatus {
    /// Name of the balancer that was asked.
    pub name: String,
    /// The store, in words.
    pub store: String,
    /// Whether it answers.
    pub reachable: bool,
    /// For how many seconds it does, or does not.
    pub seconds: u64,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The last change that the store is known to have; 0: none.
    pub change: u64,
    /// Who made the change that this balancer follows, with whom and what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<String>,
    /// Times that everything was read anew, since the store had been lost.
    pub resyncs: u64,
    /// The balancer that leads; none: nobody does just now, or the store does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Leader>,
    /// Whether that is the one that was asked, and sure of it: its lease has not run out.
    #[serde(default)]
    pub leads: bool,
    /// All balancers, in the order of their names.
    pub balancers: Vec<BalancerStatus>,
    /// In what balancers differ that should be alike, as far as the store answers, a sentence each.
    pub disagreements: Vec<String>,
    /// The last change of pools that all make in step; none if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepStatus>,
}

/// A balancer of a fleet.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BalancerStatus {
    /// Its name.
    pub name: String,
    /// "serves", "drained", "behind" (it does not follow the last change, or the table of the last step), "away" (it does
    /// not say anything to the store), or "unknown" (the store does not answer the balancer that was asked).
    pub role: String,
    /// What it says of itself; if that is unknown, what it has said last. None if it is away, or nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sign: Option<Sign>,
    /// Changes that it is behind the store.
    pub lag: u64,
}

impl<P: Plane> Engine<P> {
    /// Says what this balancer does, if that is another than before.
    pub(in crate::engine) fn tell_fleet(&mut self) {
        let (waits, left_behind) = (self.waits_as_leader(), self.why_left_behind());
        let Some(mut fleet) = self.fleet.take() else { return };
        let sign = Sign { waits, left_behind, ..self.sign(&mut fleet) };
        if let Some(ends) = &fleet.ends {
            ends.sign.send_if_modified(|before| {
                let changed = *before != sign;
                match &sign.unfit {
                    unfit if *unfit == before.unfit => {}
                    Some(why) => warn!(why, "this balancer does not run for leader"),
                    None => info!("this balancer runs for leader again"),
                }
                match &sign.left_behind {
                    left if *left == before.left_behind => {}
                    Some(why) => warn!(
                        why,
                        "the others go on without this balancer; new flows start here by the table of before"
                    ),
                    None => info!("this balancer follows the table that the others follow again"),
                }
                if changed {
                    *before = sign;
                }
                changed
            });
        }
        self.fleet = Some(fleet);
    }

    fn sign(&self, fleet: &mut Fleet) -> Sign {
        let digests = &mut fleet.digests;
        digests.retain(|number, _| self.names.contains_key(number));
        let services = self.services.values().map(|service| {
            let image = service.builder.published();
            let digest = image.map(|image| {
                let known =
                    digests.get(&service.number).filter(|known| known.0 == service.generation);
                known.map(|known| known.1.clone()).unwrap_or_else(|| {
                    let digest = digest_of(service, image);
                    digests.insert(service.number, (service.generation, digest.clone()));
                    digest
                })
            });
            ServiceSign {
                name: service.configured.name.clone(),
                method: service.in_force.method.name().into(),
                generation: service.generation,
                digest,
                up: service.pool.iter().filter(|member| member.up).count(),
                backends: service.pool.len(),
            }
        });
        let services = services.collect();
        let document = fleet.cache.document.as_ref();
        let announced = self.announced();
        Sign {
            id: fleet.cache.id.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            change: fleet.change(),
            digest: document.map(Document::digest).unwrap_or_default(),
            services,
            announced: announced.0,
            announced_unknown: self.announced_unknown(),
            drained: announced.1,
            steps: fleet.is_followed()
                && !self.settles()
                && !self.is_learning()
                && self.can_get_tables(),
            forwards: !self.is_learning(),
            tables: self.tables_at(),
            agents: self.called_at().map(|(host, port)| place(&host, port)),
            wait_for_table: self.wait_for_table(),
            trouble: fleet
                .behind
                .as_ref()
                .map(|behind| behind.why.clone())
                .or_else(|| self.turning_keys()),
            waits: None,
            unfit: self.unfit(),
            left_behind: None,
        }
    }

    /// What the fleet does, as far as this balancer knows.
    pub(in crate::engine) fn fleet_status(&self) -> Result<FleetStatus, EngineError> {
        let (Some(fleet), Some(store)) = (&self.fleet, &self.config.store) else {
            return Err(EngineError::NotFound(
                "this balancer is of no fleet: its file has no [store] with kind = \"etcd\" (docs/fleet.md)".into(),
            ));
        };
        let report = fleet.report();
        let own = &self.config.balancer.name;
        let asked = report.reachable;
        let mut signs = if asked { report.balancers.clone() } else { report.before.clone() };
        if let Some(ends) = fleet.ends.as_ref().filter(|_| !report.namesake) {
            signs.insert(own.clone(), ends.sign.borrow().clone());
        }
        let names = report.members.iter().chain(signs.keys()).collect::<BTreeSet<_>>();
        let last = report.change.max(fleet.change());
        let balancers = names.into_iter().map(|name| {
            let sign = signs.get(name).cloned();
            let lag = sign.as_ref().map_or(0, |sign| last.saturating_sub(sign.change));
            let role = match &sign {
                // Of itself it knows all the same.
                _ if !asked && name != own => "unknown",
                None => "away",
                Some(sign) if lag > 0 || sign.trouble.is_some() || sign.left_behind.is_some() => {
                    "behind"
                }
                Some(sign) if sign.drained => "drained",
                Some(_) => "serves",
            };
            BalancerStatus { name: name.clone(), role: role.into(), sign, lag }
        });
        let balancers: Vec<BalancerStatus> = balancers.collect();
        let made = fleet.cache.document.as_ref().map(|document| {
            format!(
                "change {} by {}@{}: {}",
                document.change, document.who, document.by, document.what
            )
        });
        let doubled = report.doubled(own);
        Ok(FleetStatus {
            name: own.clone(),
            store: store.to_string(),
            reachable: report.reachable,
            seconds: self.seconds_of_store(),
            error: report.error.clone(),
            change: report.change,
            made,
            resyncs: report.resyncs,
            leads: report.leads(),
            leader: report.leader,
            disagreements: disagreements(&balancers, &doubled),
            balancers,
            step: self.step_status(),
        })
    }

    /// What an operator should know of the fleet.
    pub(in crate::engine) fn fleet_warnings(&self) -> Vec<String> {
        let Some(fleet) = &self.fleet else { return Vec::new() };
        let report = fleet.report();
        let mut warnings = Vec::new();
        warnings.extend(self.config.store.as_ref().and_then(weir_fleet::StoreConfig::warning));
        warnings.extend(self.config.store.as_ref().and_then(warning_for_store));
        if let (false, Some(error)) = (report.reachable, &report.error) {
            let seconds = self.seconds_of_store();
            warnings.push(format!(
                "without the fleet's store for {seconds} s: this balancer goes on with change {}, and changes are \
                 refused ({error})",
                fleet.change()
            ));
        }
        let own = &self.config.balancer.name;
        warnings.extend(namesake::warning(&report, own));
        if report.reachable {
            let sign = fleet.ends.as_ref().map(|ends| ends.sign.borrow().clone());
            let sign = sign.as_ref().filter(|_| !report.namesake).map(|sign| (own, sign));
            let others = report.balancers.iter().filter(|(name, _)| *name != own);
            // Who has no table yet takes no packets.
            warnings.extend(tables_differ(others.chain(sign), false));
        }
        warnings
            .extend(fleet.behind.as_ref().map(|behind| format!("not followed: {}", behind.why)));
        let unfit = self.unfit();
        warnings.extend(unfit.map(|why| format!("this balancer does not run for leader: {why}")));
        warnings.extend(self.step_warnings());
        warnings
    }
}

/// What a slot of a table says, by the names of the backends, for a digest.
struct Slots<'a> {
    service: &'a ServiceRuntime,
    names: HashMap<u16, String>,
    hash: Xxh3,
}

impl<'a> Slots<'a> {
    fn new(service: &'a ServiceRuntime) -> Self {
        Self { service, names: HashMap::new(), hash: Xxh3::new() }
    }

    fn add(&mut self, slot: u16) {
        let (service, id) = (self.service, slot & SLOT_BACKEND);
        let name = self.names.entry(id).or_insert_with(|| {
            BackendId::new(id).and_then(|id| service.name_of(id)).unwrap_or_default()
        });
        self.hash.update(name.as_bytes());
        self.hash.update(&(slot & !SLOT_BACKEND).to_le_bytes());
    }

    /// With what else it goes by.
    fn end(mut self, method: MethodId, key: &HashKey) -> String {
        self.hash.update(&[method.number()]);
        self.hash.update(&key.to_bytes());
        format!("{:016x}", self.hash.digest())
    }
}

/// The digest of a table that has these rows, as [`digest_of`] has it.
pub(in crate::engine) fn digest_of_rows(
    service: &ServiceRuntime,
    rows: &[u16],
    key: &HashKey,
) -> String {
    let mut slots = Slots::new(service);
    rows.iter().for_each(|row| slots.add(*row & SLOT_BACKEND));
    slots.end(MethodId::Residue, key)
}

/// The digest of how a table decides, which is the same on balancers that call backends by other numbers.
pub(in crate::engine) fn digest_of(service: &ServiceRuntime, image: &Image) -> String {
    let mut slots = Slots::new(service);
    let mut name_of = |slot: u16| slots.add(slot);
    match image {
        Image::Cheetah(_) | Image::CheetahStateful(_) => {
            let Some(servers) = servers(image) else { return String::new() };
            servers.backends().iter().for_each(|backend| name_of(*backend));
            // In which order they take turns is each balancer's own.
            let names =
                servers.serving().iter().filter_map(|id| service.name_of(BackendId::new(*id)?));
            let mut names: Vec<String> = names.collect();
            names.sort_unstable();
            names.iter().for_each(|name| slots.hash.update(name.as_bytes()));
            if let Image::Cheetah(table) = image
                && let Some(keys) = table.body().0.method.keys()
            {
                slots.hash.update(&keys.to_bytes());
                slots.hash.update(&[keys.issue()]);
            }
        }
        Image::Tracked(table) => table.body().rows().iter().for_each(|row| name_of(*row)),
        // Which rows ask the connection table differs with what each has seen.
        Image::Jet(table) => {
            table.body().owners().iter().for_each(|row| name_of(*row & SLOT_BACKEND))
        }
        // Exceptions are what each has been told of.
        Image::Residue(table) => {
            table.body().rows().iter().for_each(|row| name_of(*row & SLOT_BACKEND));
        }
        Image::Concury(table) => {
            table.body().slots().iter().for_each(|slot| name_of(*slot));
            slots.hash.update(table.body().codes().bytes());
        }
        // Not of a fleet.
        image => slots.hash.update(&image.header().digest.to_le_bytes()),
    }
    slots.end(image.method(), &image.header().key)
}

/// In what balancers differ that should be alike. `doubled`: the names that more than one has.
fn disagreements(balancers: &[BalancerStatus], doubled: &BTreeSet<String>) -> Vec<String> {
    let names = doubled.iter();
    let mut said: Vec<String> =
        names.map(|name| format!("two balancers are called {name}; rename one of them")).collect();
    let signs = || {
        let signs = balancers.iter().filter(|balancer| balancer.role != "unknown");
        signs.filter_map(|balancer| Some((&balancer.name, balancer.sign.as_ref()?)))
    };
    said.extend(signs().filter_map(|(name, sign)| {
        let trouble = sign.trouble.as_ref()?;
        Some(format!("{name} does not follow the store: {trouble}"))
    }));
    said.extend(signs().filter_map(|(name, sign)| {
        let why = sign.left_behind.as_ref()?;
        Some(format!("{name} does not follow the last change of pools in step: {why}"))
    }));
    said.extend(
        signs().filter_map(|(name, sign)| Some(unfit::sentence(name, sign.unfit.as_ref()?))),
    );
    said.extend(tables_differ(signs(), true));
    said
}

/// Services whose tables differ, a sentence each. `all`: those included who have none yet.
fn tables_differ<'a>(
    signs: impl Iterator<Item = (&'a String, &'a Sign)>,
    all: bool,
) -> Vec<String> {
    let mut tables: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (name, sign) in signs {
        for service in sign.services.iter().filter(|service| all || service.digest.is_some()) {
            let digest = service.digest.as_deref().unwrap_or("no table");
            let of = tables.entry(&service.name).or_default();
            of.entry(digest).or_default().push(name);
        }
    }
    let differ = tables.iter().filter(|(_, digests)| digests.len() > 1);
    let sentences = differ.map(|(service, digests)| {
        let groups: Vec<String> = digests
            .iter()
            .map(|(digest, names)| format!("{digest} on {}", names.join(", ")))
            .collect();
        format!("service {service}: tables differ: {}", groups.join("; "))
    });
    sentences.collect()
}
