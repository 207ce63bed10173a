//! What connections go by, of which a change may make something else: the names of backends, where a method knows
//! nothing else of them, and the numbers of configurations that QUIC ids are of.

use super::How;
use crate::config::{Backend, QuicConfig, Service};
use crate::engine::Engine;
use crate::engine::service::{PoolMember, ServiceRuntime};
use std::collections::HashMap;
use std::net::IpAddr;
use weir_plane::Plane;

/// Whoever has another address, or port, is another.
pub(super) type Who<'a> = (&'a str, IpAddr, Option<u16>);

pub(super) fn who(backend: &Backend) -> Who<'_> {
    (&backend.name, backend.address, backend.port)
}

/// For each of the wanted backends the one of a pool that it was under another name.
pub(super) fn former<'a>(
    pool: &'a [PoolMember],
    wanted: &[Backend],
) -> Vec<Option<&'a PoolMember>> {
    let mut left: HashMap<Who<'_>, &'a PoolMember> =
        pool.iter().map(|member| (who(&member.wanted), member)).collect();
    let known: Vec<bool> =
        wanted.iter().map(|backend| left.remove(&who(backend)).is_some()).collect();
    let place = |backend: &Backend| (backend.address, backend.port);
    let mut by_place: HashMap<(IpAddr, Option<u16>), &'a PoolMember> =
        left.into_values().map(|member| (place(&member.wanted), member)).collect();
    let all = wanted.iter().zip(known);
    all.map(|(backend, known)| if known { None } else { by_place.remove(&place(backend)) })
        .collect()
}

impl<P: Plane> Engine<P> {
    /// Whether it is to be found out here what a service's connections would go by.
    pub(super) fn judges(&self, now: &ServiceRuntime, wanted: &Service, how: How) -> bool {
        // At a start with the same file, what commands have changed holds. In a fleet one that has missed a change
        // would find what was removed in one and added in the next called otherwise.
        let holds = how.start && now.configured == *wanted;
        !holds && (how.asked || !self.is_of_fleet())
    }
}

/// Whether connections of a service are known by more than the names of their backends.
pub(super) fn knows_where(now: &ServiceRuntime) -> bool {
    let method = now.in_force.method.id();
    method.needs().states || method.info().tracks_all
}

/// Why connections break as what they go by would mean something else, beginning with the field.
pub(super) fn other_meaning(now: &ServiceRuntime, wanted: &Service) -> Option<String> {
    let before = former(&now.pool, &wanted.backends);
    renamed(now, wanted, &before).or_else(|| other_ids(now, wanted, &before))
}

/// Placements and the numbers in cookies go by names: one that is called otherwise is another to them.
fn renamed(
    now: &ServiceRuntime,
    wanted: &Service,
    before: &[Option<&PoolMember>],
) -> Option<String> {
    if knows_where(now) {
        return None;
    }
    let pairs = wanted.backends.iter().zip(before);
    let mut all =
        pairs.filter_map(|(backend, was)| Some((&backend.name, &was.as_ref()?.wanted.name)));
    let (name, was) = all.next()?;
    let more = match all.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let method = now.in_force.method.id();
    Some(format!(
        "backend {name}: it is called {was} now{more}, and with {method} names of backends cannot change under \
         connections, as it does not know where each of them lives"
    ))
}

/// Ids that servers have made are read by the number of their configuration: it stands for the same as long as there
/// are such ids.
fn other_ids(
    now: &ServiceRuntime,
    wanted: &Service,
    before: &[Option<&PoolMember>],
) -> Option<String> {
    let (had, has) = now.configured.quic.as_ref().zip(wanted.quic.as_ref())?;
    let there: HashMap<Who<'_>, &PoolMember> =
        now.pool.iter().map(|member| (who(&member.wanted), member)).collect();
    let named = wanted.backends.iter().zip(before).filter_map(|(backend, was)| {
        let member = was.or_else(|| there.get(&who(backend)).copied())?;
        Some((member, &backend.name))
    });
    let found = now.pool.iter().filter(|one| ServiceRuntime::as_found(wanted, one).is_some());
    let found = found.map(|member| (member, &member.wanted.name));
    let stay: Vec<(&PoolMember, &String)> = named.chain(found).collect();
    let lengths = |one: &QuicConfig| (one.server_id_length, one.nonce_length);
    for config in &has.configs {
        let number = config.config_id;
        let Some(was) = had.configs.iter().find(|one| one.config_id == number) else { continue };
        let other = if was.key != config.key {
            "another key"
        } else if lengths(was) != lengths(config) {
            "other lengths"
        } else if config.encode_length && !was.encode_length {
            "a length in the first byte"
        } else {
            let length = usize::from(config.server_id_length);
            let ids = stay.iter().map(|(member, name)| {
                (*name, had.server_id(&member.wanted.name, length), has.server_id(name, length))
            });
            let mut others = ids.filter(|(_, id, next)| id != next);
            if let Some((name, id, _)) = others.next() {
                return Some(format!(
                    "quic: config {number}: ids of connections say {id:?} for backend {name}, which would have \
                     another one; keep it by server_ids, {name} = \"{id:?}\""
                ));
            }
            continue;
        };
        return Some(format!(
            "quic: config {number}: with {other}, ids of connections would be read otherwise than they were made; \
             give it a number that is not in use, and remove this one when its connections have ended \
             (docs/quic.md, Rotation)"
        ));
    }
    None
}

/// Whether ids of a configuration that there is are not read any more.
pub(in crate::engine) fn leaves_ids(now: &Service, wanted: &Service) -> bool {
    let numbers = |service: &Service| -> Vec<u8> {
        let configs = service.quic.iter().flat_map(|quic| &quic.configs);
        configs.map(|config| config.config_id).collect()
    };
    let stay = numbers(wanted);
    numbers(now).iter().any(|number| !stay.contains(number))
}
