//! What there is to tell of a change: whose connections end, and how many.

use super::{How, Plan};
use crate::config::{Backend, Config, Service, Table, Vip};
use crate::engine::Engine;
use crate::engine::places::ports_of;
use crate::engine::service::ServiceRuntime;
use std::collections::HashMap;
use weir_plane::{Listen, Plane};
use weir_steering::{BackendId, Phase};

/// Backends that are named of those that are as before commands changed them.
const MOST_UNDONE: usize = 5;

/// The same of those that go, and take no connection with them.
const MOST_NAMED: usize = 5;

/// What a service does not listen on any more.
pub(in crate::engine) struct GivenUp {
    /// In words.
    pub words: String,
    /// All of it; none where it is a part of what the service had.
    pub at: Option<Vec<Listen>>,
}

impl<P: Plane> Engine<P> {
    /// What there is to tell of backends that leave a service.
    pub(super) fn left_behind(
        &self,
        now: &ServiceRuntime,
        leaving: &[BackendId],
    ) -> Option<String> {
        if leaving.is_empty() {
            return None;
        }
        let open = self.known_by_backend(now);
        // Where it is not known which backend has which, none has any if there is none.
        let none = match open {
            Some(_) => None,
            None => self.count_known(now).filter(|known| *known == 0),
        };
        let (mut said, mut quiet) = (Vec::new(), Vec::new());
        for member in now.pool.iter().filter(|member| leaving.contains(&member.id)) {
            let removed = format!("backend {} removed", member.wanted.name);
            let here = open.as_ref().map(|open| open.get(&member.id).copied().unwrap_or(0));
            match here.or(none) {
                Some(0) => quiet.push(removed),
                here => said.push(format!("{removed}: {}", in_words(here, "ends", "end"))),
            }
        }
        let more = quiet.len().saturating_sub(MOST_NAMED);
        quiet.truncate(MOST_NAMED);
        said.extend(quiet);
        if more > 0 {
            said.push(format!("and {more} more without known connections"));
        }
        let service = &now.configured.name;
        (!said.is_empty()).then(|| format!("service {service}: {}", said.join(", ")))
    }

    /// What there is to tell of changes that commands have made to a service, and that the file does not have.
    pub(super) fn undone(&self, now: &ServiceRuntime, wanted: &Service) -> Option<String> {
        let mut said = Vec::new();
        let there: HashMap<&str, &Backend> =
            now.pool.iter().map(|member| (member.wanted.name.as_str(), &member.wanted)).collect();
        let of_file: HashMap<&str, &Backend> =
            now.configured.backends.iter().map(|one| (one.name.as_str(), one)).collect();
        for to in &wanted.backends {
            let name = to.name.as_str();
            // What somebody has written into the file is no news.
            if of_file.get(name) != Some(&to) {
                continue;
            }
            let Some(was) = there.get(name) else {
                said.push(format!("backend {name} is there again"));
                continue;
            };
            match (was.drain, to.drain) {
                (true, false) => said.push(format!("backend {name} takes new connections again")),
                (false, true) => said.push(format!("backend {name} drains again")),
                _ => {}
            }
            if was.weight != to.weight {
                said.push(format!("backend {name} has weight {} again", to.weight));
            }
        }
        let more = said.len().saturating_sub(MOST_UNDONE);
        said.truncate(MOST_UNDONE);
        if more > 0 {
            said.push(format!("and {more} more are as before commands changed them"));
        }
        let service = &now.configured.name;
        (!said.is_empty())
            .then(|| format!("service {service}: {}, as the file has it", said.join(", ")))
    }

    /// What there is to tell of connections that nobody remembers, of services that get another table.
    pub(in crate::engine) fn unremembered_of(&self, plan: &Plan) -> Vec<String> {
        let dirty = plan.services.iter().filter(|planned| planned.dirty);
        let now = dirty.filter_map(|planned| self.services.get(planned.now.as_ref()?));
        now.filter_map(|now| {
            let said = unremembered_in_words(now)?;
            Some(format!("service {}: {said}", now.configured.name))
        })
        .collect()
    }

    /// Why a configuration is refused whatever becomes of each of its services, unless connections may break.
    pub(in crate::engine) fn against_all(&self, config: &Config, start: bool) -> Vec<String> {
        let mut why = if self.keeps_seeds() { self.of_other_seeds(config) } else { Vec::new() };
        // A file that was cut off looks like this.
        if config.services.is_empty() && !self.services.is_empty() {
            why.push(self.leaves_nothing(self.services.len()));
        }
        let place = || self.source().place(Table::Balancer, "interfaces");
        why.extend(self.answers_given_up(config, start).map(|what| place() + &what));
        why
    }

    /// The services whose connections would break because the fleet has other seeds for them.
    fn of_other_seeds(&self, config: &Config) -> Vec<String> {
        let pairs = self.pairs_by_place(&config.services).into_iter().zip(&config.services);
        let others = pairs.filter_map(|(now, wanted)| {
            let now = now.filter(|now| !self.has_seed_of(now, wanted))?;
            let used = self.plane.table_bytes(now.number) > 0;
            used.then(|| {
                format!(
                    "service {}: the fleet hashes it under another key than this balancer, which was not of \
                     the fleet, and {}",
                    wanted.name,
                    self.breaking(now)
                )
            })
        });
        others.collect()
    }

    /// What there is to tell of the addresses and ports that a service gives up.
    pub(super) fn moved(&self, now: &ServiceRuntime, wanted: &Service) -> Option<String> {
        let GivenUp { words, .. } = self.given_up(now, wanted)?;
        Some(format!("service {}: {words}", wanted.name))
    }

    /// The addresses and ports that a service gives up. What it still listens on, and tells apart otherwise, is a
    /// loss (`overtaken.rs`).
    pub(in crate::engine) fn given_up(
        &self,
        now: &ServiceRuntime,
        wanted: &Service,
    ) -> Option<GivenUp> {
        let (before, after) = (&now.configured, wanted);
        let addresses = after.addresses();
        let places = before.places();
        let (mut gone, mut at) = (Vec::new(), Some(Vec::new()));
        for vip in before.addresses().into_iter().filter(|vip| !addresses.contains(vip)) {
            let kept: Vec<Vip> = addresses.iter().filter(|one| one.meets(&vip)).copied().collect();
            if kept.iter().any(|part| part.bits <= vip.bits) {
                continue;
            }
            let parts: Vec<String> = kept.iter().map(ToString::to_string).collect();
            let of_vip = places.iter().filter(|place| place.vip() == (vip.address, vip.bits));
            at = at.filter(|_| parts.is_empty()).map(|mut all: Vec<Listen>| {
                all.extend(of_vip);
                all
            });
            gone.push(match &parts[..] {
                [] => vip.to_string(),
                parts => format!("{vip} (but for {})", parts.join(", ")),
            });
        }
        let (had, has) = (ports_of(before), ports_of(after));
        if !(has.contains(had.start()) && has.contains(had.end())) {
            at = None;
            gone.push(ports_gone(before, after));
        }
        (!gone.is_empty())
            .then(|| GivenUp { words: format!("connections to {} end", gone.join(", ")), at })
    }

    /// How many connections of a service are known, without those that have ended; none if nobody knows.
    pub(in crate::engine) fn count_known(&self, service: &ServiceRuntime) -> Option<usize> {
        let method = service.in_force.method.id();
        if method.needs().states {
            let mut open = 0;
            service.builder.each_state(&mut |_, known| {
                open += usize::from(known.phase != Phase::Closing);
            });
            Some(open)
        } else if method.info().tracks_all {
            let known = self.plane.connections(service.number).ok();
            known.map(|known| known.iter().filter(|(_, flow)| !flow.ended).count())
        } else {
            None
        }
    }

    /// The same of a start, or a reload: none, too, where a start has not read yet what packets have reported.
    pub(super) fn count_heard(&self, service: &ServiceRuntime, how: How) -> Option<usize> {
        let known = self.count_known(service);
        known.filter(|known| *known > 0 || !how.start || self.has_all_left())
    }

    /// The same by backend; those without any are left out.
    pub(in crate::engine) fn known_by_backend(
        &self,
        service: &ServiceRuntime,
    ) -> Option<HashMap<BackendId, usize>> {
        service.in_force.method.id().needs().states.then(|| {
            let mut open = HashMap::new();
            service.builder.each_state(&mut |_, known| {
                if known.phase != Phase::Closing {
                    *open.entry(known.backend).or_default() += 1;
                }
            });
            open
        })
    }

    /// How many connections of a service break.
    pub(super) fn breaking(&self, service: &ServiceRuntime) -> String {
        breaking_in_words(self.count_known(service))
    }

    /// How many end with it.
    pub(super) fn ending(&self, service: &ServiceRuntime) -> String {
        in_words(self.count_known(service), "ends", "end")
    }
}

/// What may become of connections that began beyond a limit; none if there are none. No count of those that are known
/// has them.
pub(in crate::engine) fn unremembered_in_words(service: &ServiceRuntime) -> Option<String> {
    match service.unremembered() {
        0 => None,
        1 => Some("one that began beyond a limit is not remembered and may break".into()),
        many => Some(format!(
            "some of {many} that began beyond a limit, and are not remembered, may break"
        )),
    }
}

/// The ports that a service gives up, in words.
fn ports_gone(before: &Service, after: &Service) -> String {
    let (had, has) = (ports_of(before), ports_of(after));
    let parts = had.start() <= has.end() && has.start() <= had.end();
    let but = if parts { format!(" but {}", after.port_text()) } else { String::new() };
    match (before.port, before.ports) {
        (Some(port), _) => format!("port {port}"),
        (None, Some(ports)) => format!("ports {ports}{but}"),
        (None, None) => format!("any port{but}"),
    }
}

/// That so many connections break; none if nobody knows how many there are. It is said of what is refused, which has a
/// reason where there are none at the moment, too.
pub(in crate::engine) fn breaking_in_words(count: Option<usize>) -> String {
    match count {
        Some(0) => {
            "no connection is known now, but those that begin before it is done break".into()
        }
        count => in_words(count, "breaks", "break"),
    }
}

/// What so many connections do, one or several; none if nobody knows how many there are.
pub(in crate::engine) fn in_words(count: Option<usize>, one: &str, several: &str) -> String {
    match count {
        Some(1) => format!("1 known connection {one}"),
        Some(n) => format!("{n} known connections {several}"),
        None => format!("an unknown number of connections {several}"),
    }
}
