//! By which interfaces answers of translated backends come. Where they come by one that the program is not at, no
//! client gets them as the service's. They come back by the interface that packets for the backend leave by, as far
//! as this host knows; that stands in the data plane for each backend, and follows the kernel's routes, so that nobody
//! has to be asked for a route again.

use super::reload::words::breaking_in_words;
use super::service::{PoolMember, ServiceRuntime};
use super::{Engine, pin_directory};
use crate::config::{Config, Service};
use crate::neigh::{self, Interface};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tracing::warn;
use weir_dataplane::KernelPlane;
use weir_plane::Plane;

/// Services that one sentence names.
const MOST_NAMED: usize = 5;

impl<P: Plane> Engine<P> {
    /// The backends of a service whose answers come by one of these interfaces, with its name.
    fn answers_by<'a>(
        &'a self,
        service: &'a ServiceRuntime,
        interfaces: &'a HashMap<u32, &'a str>,
    ) -> impl Iterator<Item = (&'a PoolMember, &'a str)> + 'a {
        service.pool.iter().filter_map(move |member| {
            let hop = self.plane.backend(member.id)?.hop?;
            Some((member, *interfaces.get(&hop.ifindex)?))
        })
    }

    /// Whose connections break by a configuration since it gives up the interface by which answers come. Those that
    /// come by one that is not the balancer's now either are as before. `start`: what is in force is what an earlier run
    /// has attached.
    pub(super) fn answers_given_up(&self, config: &Config, start: bool) -> Option<String> {
        let new = &config.balancer.interfaces;
        let (old, links) = self.taken_from(new, start)?;
        let (before, after) = (neigh::with_above(&old, &links), neigh::with_above(new, &links));
        let given_up = numbered(&links, |name| before.contains(name) && !after.contains(name));
        let (mut by, mut services) = (BTreeSet::new(), Vec::new());
        let (mut backends, mut open) = (0, Some(0));
        for (wanted, now) in config.services.iter().zip(self.pairs(&config.services)) {
            let Some(now) = now.filter(|now| keeps_answers(now, wanted)) else { continue };
            // What packets do not follow breaks nothing.
            if self.plane.table_bytes(now.number) == 0 {
                continue;
            }
            let found = self.answers_by(now, &given_up).filter(|(one, _)| stays(wanted, one));
            let found: Vec<(&PoolMember, &str)> = found.collect();
            if found.is_empty() {
                continue;
            }
            let known = self.known_by_backend(now);
            for (member, interface) in &found {
                let here = known.as_ref().map(|known| known.get(&member.id).copied().unwrap_or(0));
                open = open.zip(here).map(|(all, more)| all + more);
                by.insert(*interface);
            }
            backends += found.len();
            services.push(wanted.name.as_str());
        }
        let by: Vec<&str> = by.into_iter().collect();
        (backends > 0).then(|| {
            format!(
                "interfaces: the answers of {} of {} come by {}, which is no longer among them: clients do not \
                 get them as the service's, and {}",
                backends_of(backends),
                named(&services),
                by.join(" and "),
                breaking_in_words(open)
            )
        })
    }

    /// What there is to tell of interfaces that a configuration gives up: packets for services that come by them are the
    /// kernel's then. Of one by which none of what was forwarded came, where that is counted, there is nothing. `start`:
    /// as above.
    pub(super) fn interfaces_given_up(&self, config: &Config, start: bool) -> Option<String> {
        let new = &config.balancer.interfaces;
        let (old, links) = self.taken_from(new, start)?;
        // What packets do not follow breaks nothing.
        if !self.services.values().any(|one| self.plane.table_bytes(one.number) > 0) {
            return None;
        }
        let after = neigh::with_above(new, &links);
        // Frames of a bond come by its members, whichever of them the program is said to be at.
        let over = |link: &Interface| {
            let bond = links.iter().find(|one| link.master == Some(one.index));
            bond.is_some_and(|bond| after.contains(&bond.name))
        };
        let counted = self.plane.interfaces().unwrap_or_default();
        let forwarded = |link: &Interface| -> Option<u64> {
            let own = |number: u32| {
                let member = |one: &&Interface| one.index == number;
                let master = links.iter().find(member).and_then(|one| one.master);
                number == link.index || master == Some(link.index)
            };
            let all = counted.as_ref()?.iter().filter(|(number, _)| own(**number));
            Some(all.map(|(_, counts)| counts.forwarded).sum())
        };
        let given_up = links
            .iter()
            .filter(|link| old.contains(&link.name) && !after.contains(&link.name) && !over(link));
        let said = given_up.filter_map(|link| match forwarded(link) {
            Some(0) => None,
            Some(1) => Some(format!("{}, by which 1 frame came that was forwarded", link.name)),
            Some(many) => {
                Some(format!("{}, by which {many} frames came that were forwarded", link.name))
            }
            None => Some(link.name.clone()),
        });
        let said: Vec<String> = said.collect();
        (!said.is_empty()).then(|| {
            format!(
                "interfaces: no packets are taken any more from {}: those for services that come in there reach no \
                 backend, and connections that come in there end",
                said.join(", and from ")
            )
        })
    }

    /// The interfaces that packets are taken from, if those are others, and all that there are.
    fn taken_from(&self, others: &[String], start: bool) -> Option<(Vec<String>, Vec<Interface>)> {
        let known = &self.config.balancer.interfaces;
        // At a start the configuration is that of the file already.
        if !start {
            return (known != others).then(|| Some((known.clone(), (self.links)().ok()?)))?;
        }
        let left = KernelPlane::left_in(&pin_directory(&self.config.balancer.name));
        let told = left.inspect_err(|error| warn!(%error, "it is not known what packets come by"));
        let pinned = told.ok()??;
        let links = (self.links)().ok()?;
        let on = |link: &&Interface| pinned.links.iter().any(|pin| pin.number == link.index);
        let names = links.iter().filter(on).map(|link| link.name.clone()).collect();
        Some((names, links))
    }

    /// What an operator should know of answers that come where weir takes no frames.
    pub(super) fn answers_past(&self) -> Vec<String> {
        let translated = || self.services.values().filter(|one| one.configured.forward.is_nat());
        if translated().next().is_none() {
            return Vec::new();
        }
        let Ok(links) = (self.links)() else { return Vec::new() };
        let taken = neigh::with_above(&self.config.balancer.interfaces, &links);
        let past = numbered(&links, |name| !taken.contains(name));
        let mut found: BTreeMap<&str, (usize, Vec<&str>)> = BTreeMap::new();
        for service in translated() {
            let name = service.configured.name.as_str();
            for (_, interface) in self.answers_by(service, &past) {
                let (backends, services) = found.entry(interface).or_default();
                *backends += 1;
                if services.last() != Some(&name) {
                    services.push(name);
                }
            }
        }
        let said = found.into_iter().map(|(interface, (backends, services))| {
            format!(
                "answers of {} of {} come by {interface}, which weir takes no frames from: clients do not get them \
                 as the service's; add {interface:?} to balancer.interfaces",
                backends_of(backends),
                named(&services)
            )
        });
        said.collect()
    }
}

/// The names of the interfaces that something is said of, by their numbers.
fn numbered(links: &[Interface], wanted: impl Fn(&String) -> bool) -> HashMap<u32, &str> {
    let found = links.iter().filter(|link| wanted(&link.name));
    found.map(|link| (link.index, link.name.as_str())).collect()
}

/// Whether answers of a service's backends are translated, and are to be as before.
fn keeps_answers(now: &ServiceRuntime, wanted: &Service) -> bool {
    wanted.forward.is_nat() && now.configured.forward == wanted.forward
}

/// Whether a backend stays one of a service that is to be so.
fn stays(wanted: &Service, member: &PoolMember) -> bool {
    let place = (member.wanted.address, member.wanted.port);
    wanted.backends.iter().any(|one| (one.address, one.port) == place)
        || ServiceRuntime::keeps_found(wanted, member)
}

fn backends_of(count: usize) -> String {
    if count == 1 { "1 backend".into() } else { format!("{count} backends") }
}

fn named(services: &[&str]) -> String {
    match services {
        [one] => format!("service {one}"),
        all if all.len() <= MOST_NAMED => format!("services {}", all.join(", ")),
        all => format!("{} services ({}, ...)", all.len(), all[..MOST_NAMED].join(", ")),
    }
}
