//! From the memory in use into that which takes its place.

use crate::abi::{BackendFlags, types};
use crate::entries;
use crate::error::{Context, Error};
use crate::kernel::KernelPlane;
use crate::kernel::activity::merge_marks;
use crate::tables::service_of;
use crate::vips::{Leads, NO_TABLE};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::Limits;
use weir_steering::{BackendId, ELEMENT_BYTES, SEEN_WAYS, ServiceId};

/// Whether what is in use is within the new bounds.
pub(super) fn fits(old: &KernelPlane, new: &KernelPlane) -> Result<(), Error> {
    let sizes = &new.sizes;
    fits_within(old, (sizes.services, sizes.backends, sizes.pool_elements))
}

/// Whether memory of these limits, which is not made yet, would have room for what is there. Of what packets note
/// themselves that is told of the tables that refuse nothing, and would give up what is old.
pub(super) fn would_fit(old: &KernelPlane, limits: &Limits) -> Result<(), Error> {
    let pool = limits.table_bytes.div_ceil(ELEMENT_BYTES as u64);
    let pool = u32::try_from(pool).unwrap_or(u32::MAX);
    fits_within(old, (limits.services, limits.backends, pool))?;
    // As below: what no service looks for any more stays behind.
    if old.tables.use_connections() {
        holds_all(&old.maps.connections, ("tracked_flows", limits.tracked_flows))?;
    }
    if old.tables.use_answers() {
        holds_all(&old.maps.answers, ("answered_flows", limits.answered_flows))?;
    }
    Ok(())
}

/// The numbers of services and of backends that are in use, and the tables, against bounds.
fn fits_within(
    old: &KernelPlane,
    (services, backends, pool): (u32, u32, u32),
) -> Result<(), Error> {
    let refuse = |limit: &'static str, wanted: u32, used: String| {
        if used.is_empty() { Ok(()) } else { Err(Error::TooSmall { limit, wanted, used }) }
    };
    let last = old.keys.keys().copied().max().filter(|number| number.0 >= services);
    let used = last.map_or(String::new(), |number| format!("service number {number} is in use"));
    refuse("services", services, used)?;
    let beyond = backends..old.sizes.backends;
    let last = beyond
        .rev()
        .filter_map(|number| BackendId::new(number as u16))
        .find(|id| old.backend(*id).flags & BackendFlags::PRESENT != 0);
    let used = last.map_or(String::new(), |number| format!("backend number {number} is in use"));
    refuse("backends", backends, used)?;
    fits_twice(old, pool)
}

/// Whether a smaller pool holds all tables, and the largest one a second time: otherwise that could not change any
/// more.
fn fits_twice(old: &KernelPlane, pool: u32) -> Result<(), Error> {
    let (sum, largest) = old.tables.elements_in_use();
    if pool >= old.sizes.pool_elements || u64::from(sum) + u64::from(largest) <= u64::from(pool) {
        return Ok(());
    }
    let bytes = |elements: u32| u64::from(elements) * ELEMENT_BYTES as u64;
    let used = format!(
        "the tables in use take {} bytes, and the next one of the largest beside it {}",
        bytes(sum),
        bytes(largest)
    );
    let wanted = u32::try_from(bytes(pool)).unwrap_or(u32::MAX);
    Err(Error::TooSmall { limit: "table_bytes", wanted, used })
}

/// Fills the maps of these names.
pub(super) fn fill(
    old: &KernelPlane,
    new: &mut KernelPlane,
    names: &[String],
) -> Result<(), Error> {
    for name in names {
        match name.as_str() {
            "vips" => tables(old, new)?,
            "backends" => backends(old, new),
            "loads" => loads(old, new),
            "turns" => turns(old, new),
            "entered" => entered(old, new),
            "caps" => caps(old, new),
            "lanes" => lanes(old, new)?,
            "pinned" => {
                let limit = ("unreported_flows", new.maps.pinned.max_entries());
                carry(&old.maps.pinned, &new.maps.pinned, limit)?;
            }
            "pending" => {
                let limit = ("pending_flows", new.maps.pending.max_entries());
                carry(&old.maps.pending, &new.maps.pending, limit)?;
            }
            // Such maps give nothing up by themselves: what no service looks for any more stays behind.
            "connections" if !old.tables.use_connections() => {}
            "answers" if !old.tables.use_answers() => {}
            "connections" => {
                let limit = ("tracked_flows", new.maps.connections.max_entries());
                holds_all(&old.maps.connections, limit)?;
                carry(&old.maps.connections, &new.maps.connections, limit)?;
            }
            "answers" => {
                let limit = ("answered_flows", new.maps.answers.max_entries());
                holds_all(&old.maps.answers, limit)?;
                carry(&old.maps.answers, &new.maps.answers, limit)?;
            }
            "translations" => {
                let limit = ("backends", new.maps.translations.max_entries());
                carry(&old.maps.translations, &new.maps.translations, limit)?;
            }
            "lists" => new.lists.copy(&old.lists)?,
            "seen" => seen(old, new)?,
            // Armed there as here; what is marked between this and the change of the program is taken up after it.
            "marks" => {
                let words = old.marks.len() / size_of::<u64>();
                merge_marks(&old.marks, &new.marks, [0, 0], words)?;
            }
            // With the services; and reports are taken out of the memory that they are in.
            _ => {}
        }
    }
    Ok(())
}

/// Services and their tables, each with the flags that it has: the largest first, so that they stand at the ends of
/// the pool, where they leave the rest in one piece, and small ones beside what is free.
fn tables(old: &KernelPlane, new: &mut KernelPlane) -> Result<(), Error> {
    // Their memory is shared: it changes its size only while nobody has any of it.
    old.tables.slots.all().for_each(|(service, has)| new.tables.slots.adopt(service, has));
    let mut numbers = BTreeMap::new();
    let bytes = |leads: &Leads| match leads.table {
        NO_TABLE => 0,
        table => old.tables.bytes_of(service_of(table)),
    };
    let mut services = old.vips.services();
    services.sort_by_cached_key(|(_, leads)| Reverse(bytes(leads)));
    for (at, leads) in services {
        let table = leads.table;
        if table == NO_TABLE {
            new.vips.insert(&at, leads)?;
            continue;
        }
        let service = service_of(table);
        let number = match numbers.get(&service) {
            Some(number) => *number,
            None => {
                let Some(image) = old.published(service)? else { continue };
                new.tables.write(service, &image, image.header().flags())?
            }
        };
        new.vips.insert(&at, Leads { table: number, ..leads })?;
        if numbers.insert(service, number).is_none() {
            new.tables.published(number);
            let bytes = new.tables.bytes_of(service);
            new.tables.moved[1].add(bytes);
        }
    }
    Ok(())
}

fn backends(old: &KernelPlane, new: &KernelPlane) {
    for number in 0..old.sizes.backends.min(new.sizes.backends) as usize {
        let entry: types::backend = old.backends.load_record(number);
        new.backends.store_record(number, &entry, offset_of!(types::backend, flags));
    }
}

/// What is counted between this and the change of the program is told at the next recount.
fn loads(old: &KernelPlane, new: &KernelPlane) {
    let both = 0..old.sizes.backends.min(new.sizes.backends) as u16;
    for backend in both.filter_map(BackendId::new) {
        let load = old.load(backend);
        new.set_load(backend, load.weight, Some(load.value));
        new.copy_echoes(backend, old);
    }
}

/// Turns go on where they were, but for those of this moment.
fn turns(old: &KernelPlane, new: &KernelPlane) {
    for service in (0..old.sizes.services.min(new.sizes.services)).map(ServiceId) {
        new.set_turn(service, old.turn(service));
    }
}

/// What enters between this and the change of the program is not counted.
fn entered(old: &KernelPlane, new: &KernelPlane) {
    for service in (0..old.sizes.services.min(new.sizes.services)).map(ServiceId) {
        new.set_entered(service, old.entered(service));
    }
}

/// Flows that are taken between this and the change of the program count for nothing.
fn caps(old: &KernelPlane, new: &KernelPlane) {
    for number in 0..old.sizes.services.min(new.sizes.services) as usize {
        let cap: types::cap = old.caps.load_record(number);
        new.caps.store_record(number, &cap, offset_of!(types::cap, source_interval));
    }
}

/// Counters, and next hops. What is counted between this and the change of the program is lost.
fn lanes(old: &KernelPlane, new: &KernelPlane) -> Result<(), Error> {
    for number in 0..old.sizes.backends.min(new.sizes.backends) {
        let key = number.to_ne_bytes();
        let what = || format!("carry over the counters of backend {number}");
        let found = old.maps.lanes.lookup_percpu(&key, MapFlags::ANY).context(what)?;
        let Some(lanes) = found.filter(|lanes| lanes.iter().flatten().any(|byte| *byte != 0))
        else {
            continue;
        };
        new.maps.lanes.update_percpu(&key, &lanes, MapFlags::ANY).context(what)?;
    }
    Ok(())
}

/// Free entries that each processor takes for itself, of a map that gives up the oldest (`LOCAL_FREE_TARGET` of the
/// kernel's list of least recently used entries).
const KEPT_FREE: u32 = 128;

/// Whether a smaller map has room for all that is in one: such a map gives up what is old, and refuses nothing.
fn holds_all(old: &MapHandle, (limit, wanted): (&'static str, u32)) -> Result<(), Error> {
    if wanted >= old.max_entries() {
        return Ok(());
    }
    let mut used = 0u32;
    entries::all(old, |_, _| used += 1)?;
    let cpus = libbpf_rs::num_possible_cpus().context(|| "count CPUs".into())?;
    let free = KEPT_FREE * cpus as u32;
    if used == 0 || used.saturating_add(free) <= wanted {
        return Ok(());
    }
    let used = format!("{used} flows are in the table, and processors keep {free} entries free");
    Err(Error::TooSmall { limit, wanted, used })
}

/// How many entries such a map is to have, if `wanted` would do but for what processors keep free, and it is larger by
/// no more than that: so many as it has.
pub(super) fn with_spare_kept(map: &MapHandle, wanted: u32) -> u32 {
    let now = map.max_entries();
    let spare = libbpf_rs::num_possible_cpus().map_or(0, |cpus| KEPT_FREE * cpus as u32);
    if wanted >= now || now - wanted > spare {
        return wanted;
    }
    let mut used = 0u32;
    let counted = entries::all(map, |_, _| used += 1);
    let tight = used > 0 && used <= wanted && used.saturating_add(spare) > wanted;
    if counted.is_ok() && tight { now } else { wanted }
}

/// All entries but those that are there already: packets note them in both.
fn carry(
    old: &MapHandle,
    new: &MapHandle,
    (limit, wanted): (&'static str, u32),
) -> Result<(), Error> {
    let (mut used, mut filled) = (0, Ok(()));
    entries::all(old, |key, value| {
        used += 1;
        if filled.is_ok() {
            filled = new.update(key, value, MapFlags::NO_EXIST);
            if filled.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
                filled = Ok(());
            }
        }
    })?;
    match filled {
        Err(error) if error.kind() == ErrorKind::TooBig => {
            let used = format!("{used} flows are in the table");
            Err(Error::TooSmall { limit, wanted, used })
        }
        filled => filled.context(|| format!("fill map {:?}", new.name())),
    }
}

/// The "seen recently" filter; what finds its line full counts as new once more.
fn seen(old: &KernelPlane, new: &KernelPlane) -> Result<(), Error> {
    let (old_words, new_words) =
        (old.seen.part(0, old.seen.len())?, new.seen.part(0, new.seen.len())?);
    let offset = |line: u32, way: usize| (line as usize * SEEN_WAYS + way) * size_of::<u64>();
    for line in 0..old.sizes.seen_lines {
        for way in 0..SEEN_WAYS {
            let tag = old_words.word64(offset(line, way)).load(Ordering::Relaxed);
            let to = weir_hash::scale((tag >> 32) as u32, new.sizes.seen_lines);
            let empty = |way: &usize| {
                let word = new_words.word64(offset(to, *way));
                word.compare_exchange(0, tag, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            };
            if tag & 3 != 0 {
                let _ = (0..SEEN_WAYS).find(empty);
            }
        }
    }
    Ok(())
}
