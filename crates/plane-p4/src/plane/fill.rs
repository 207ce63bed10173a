//! A switch that is empty becomes what is wanted.

use super::kept::Kept;
use super::{Core, Port, UNKNOWN};
use crate::encode;
use crate::error::Error;
use crate::layout::{MARK_WORDS, Register, SERVICES, Table};
use crate::state;
use crate::target::{Action, Target, Write, link_write};
use nix::net::if_::if_nametoindex;
use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Instant;
use weir_plane::forward::Encapsulation;
use weir_plane::{Backend, VipKey};
use weir_steering::{BackendId, LANE_ACTIVE, LANE_TAGS, ServiceId, ServiceState};
use weir_wire::map_address;

/// A backend that is present, and one that its health check has down.
const PRESENT: u64 = 1;
const DOWN: u64 = 2;
/// Its incarnation stands above.
const INCARNATION_AT: u32 = 16;

impl<T: Target> Core<T> {
    /// Empties the switch and writes all of it. The key without which nothing is decided comes last, so that no
    /// packet meets a part of it.
    pub(super) fn fill(&mut self) -> Result<(), Error> {
        self.lost = true;
        let known = self.take_over()?;
        let zeros = self.target.start_over()?;
        let closed = Action::bare("no_table");
        self.target.write(&[Write::Default { table: Table::PlaneKeys, action: closed }])?;
        if zeros || !known {
            self.held.iter_mut().for_each(|part| part.fill(if zeros { 0 } else { UNKNOWN }));
        }
        self.add_up();
        // The ring is empty; what was read of it and waits has no place there any more.
        (self.taken, self.tail) = (0, Some(0));
        self.waiting.iter_mut().for_each(|(place, _)| *place = 0);
        let mut writes = self.mac_writes();
        for port in &mut self.ports {
            let ifindex = if_nametoindex(&port.name[..]).unwrap_or(0);
            (port.ifindex, port.number) = (ifindex, None);
            if ifindex == 0 {
                tracing::warn!(
                    interface = port.name,
                    "it is not there, and so no port of the switch"
                );
                continue;
            }
            match self.target.add_port(&port.name, ifindex) {
                Ok(number) => {
                    port.number = Some(number);
                    writes.push(link_write(number, ifindex));
                }
                Err(error @ (Error::Port { .. } | Error::Interface { .. })) => {
                    tracing::warn!(%error, "packets that come by it are not taken");
                }
                Err(error) => return Err(error),
            }
        }
        let record = &self.record;
        for (&id, backend) in &record.backends {
            writes.extend(backend_writes(id, Some(backend), &self.ports)?);
        }
        for (key, service) in &record.vips {
            writes.extend(service_writes(key, *service));
        }
        for (state, backend) in &record.memory.pinned {
            writes.push(pin_write(state, Some(*backend)));
        }
        writes.extend(self.mark_writes());
        let generation = self.generation;
        writes.push(Write::Set { register: Register::SeenGeneration, index: 0, value: generation });
        let clock = self.record.memory.now.into();
        writes.push(Write::Set { register: Register::Clock, index: 0, value: clock });
        self.target.write(&writes)?;
        self.fill_tables()?;
        self.fill_pending()?;
        self.put_back()?;
        self.epoch = rand::random_range(1..1 << 47);
        let epoch = Write::Set { register: Register::Epoch, index: 0, value: self.epoch };
        let data = encode::key_arguments(&self.key);
        let open = Action { name: "set_plane_key", data };
        self.target.write(&[epoch, Write::Default { table: Table::PlaneKeys, action: open }])?;
        self.kept = Kept::default();
        (self.lost, self.seen) = (false, Instant::now());
        self.fills += 1;
        self.link.filled();
        Ok(())
    }

    /// The tables that packets follow; the other version of each is what it was, and is written anew when it is
    /// shown next.
    fn fill_tables(&mut self) -> Result<(), Error> {
        let services: Vec<ServiceId> = self.versions.keys().copied().collect();
        for service in services {
            let Some(versions) = self.versions.get_mut(&service) else { continue };
            versions.exceptions.iter_mut().for_each(Vec::clear);
            let Some(version) = versions.shown else { continue };
            let places = versions.places[version];
            let Some(image) = versions.images[version].clone() else { continue };
            let parts = encode::parts(&image)?;
            let mut writes = self.table_writes(service, version, &image, &parts);
            let value = self.selector(service);
            writes.push(Write::Set { register: Register::Selectors, index: service.0, value });
            self.target.write(&writes)?;
            self.hold(&parts, &places);
            if let Some(versions) = self.versions.get_mut(&service) {
                versions.exceptions[version] = parts.exceptions;
            }
        }
        Ok(())
    }

    /// The pending flows that reports told of. One without a place is left out, as packets would have it.
    fn fill_pending(&mut self) -> Result<(), Error> {
        let (mut used, mut writes) = (HashSet::new(), Vec::new());
        for (state, backend) in &self.noted {
            let sets = state::sets_of(&self.key, &state.key);
            let Some(index) = state::place_in(sets, |at| used.contains(&at)) else { continue };
            used.insert(index);
            let words = state::pending_words(state, *backend);
            for (register, value) in super::watch::PENDING.into_iter().zip(words) {
                writes.push(Write::Set { register, index, value });
            }
        }
        self.target.write(&writes)
    }

    /// The lanes of the half that is written. Nobody knows any more which of their flows have sent something, so
    /// all have.
    fn mark_writes(&self) -> Vec<Write> {
        let first = self.half as u32 * MARK_WORDS;
        // The lanes with a tag; those without one keep their zeros.
        let active = |word: u64| word | (word & LANE_TAGS).wrapping_add(LANE_TAGS) & LANE_ACTIVE;
        let words = (first..).zip(&self.armed).filter(|(_, word)| **word != 0);
        let register = Register::Marks;
        let mut writes: Vec<Write> = words
            .map(|(index, word)| Write::Set { register, index, value: active(*word) })
            .collect();
        let value = u64::from(first) << 24 | (self.armed.len() as u64 - 1);
        writes.push(Write::Set { register: Register::MarkSide, index: 0, value });
        writes
    }

    /// Which frames are ours.
    pub(super) fn mac_writes(&self) -> Vec<Write> {
        let table = Table::OwnMacs;
        let mine = |mac: &[u8; 6]| Write::Insert {
            table,
            key: vec![mac.to_vec()],
            action: Action::bare("ours"),
        };
        let by = if self.macs.is_empty() { "ours" } else { "not_ours" };
        let default = Write::Default { table, action: Action::bare(by) };
        self.macs.iter().map(mine).chain([default]).collect()
    }
}

/// Lets packets find a service, its address first: what is damaged there is dropped.
pub(super) fn service_writes(key: &VipKey, service: ServiceId) -> Vec<Write> {
    debug_assert!(service.0 < SERVICES);
    let action = Action { name: "set_service", data: vec![encode::argument(service.0.into(), 16)] };
    let address = Write::Insert {
        table: Table::Addresses,
        key: vec![key.address.to_vec()],
        action: Action::bare("known_address"),
    };
    let (table, key) = place_of(key);
    vec![address, Write::Insert { table, key, action }]
}

/// The table that finds a service, and its entry's key.
pub(super) fn place_of(key: &VipKey) -> (Table, Vec<Vec<u8>>) {
    let mut parts = vec![key.address.to_vec(), vec![key.protocol.number()]];
    let Some(port) = key.port else { return (Table::AnyPort, parts) };
    parts.push(port.to_be_bytes().to_vec());
    (Table::Services, parts)
}

/// Pins a state, or unpins it.
pub(super) fn pin_write(state: &ServiceState, backend: Option<BackendId>) -> Write {
    let ports = u32::from(state.key.src_port) << 16 | u32::from(state.key.dst_port);
    let key = vec![
        (state.service.0 as u16).to_be_bytes().to_vec(),
        state.key.address.to_vec(),
        ports.to_be_bytes().to_vec(),
    ];
    let Some(backend) = backend else { return Write::Remove { table: Table::Pins, key } };
    let data = vec![encode::argument(backend.get().into(), 16)];
    Write::Insert { table: Table::Pins, key, action: Action { name: "set_pin", data } }
}

/// What is known of a backend, and how packets get there: as they are, or by IPIP.
pub(super) fn backend_writes(
    id: BackendId,
    backend: Option<&Backend>,
    ports: &[Port],
) -> Result<Vec<Write>, Error> {
    let (register, index) = (Register::States, u32::from(id.get()));
    let (table, key) = (Table::Backends, vec![id.get().to_be_bytes().to_vec()]);
    let Some(backend) = backend else {
        return Ok(vec![Write::Remove { table, key }, Write::Set { register, index, value: 0 }]);
    };
    let up = if backend.up { PRESENT } else { PRESENT | DOWN };
    let value = u64::from(backend.incarnation as u16) << INCARNATION_AT | up;
    let state = Write::Set { register, index, value };
    let Some(action) = way_to(backend, ports)? else {
        return Ok(vec![Write::Remove { table, key }, state]);
    };
    Ok(vec![Write::Insert { table, key, action }, state])
}

/// The action that sends packets to a backend; none if nobody knows how to reach it.
fn way_to(backend: &Backend, ports: &[Port]) -> Result<Option<Action>, Error> {
    let unsupported = |what: &str, right| Error::Unsupported { what: what.to_owned(), right };
    if backend.translation.is_some() {
        return Err(unsupported("translate addresses", "set forward = \"l2\" or \"ipip\""));
    }
    if backend.segments.is_some() {
        return Err(unsupported(
            "lower what SYNs ask for",
            "lower the MTU of the backends' routes",
        ));
    }
    let Some(hop) = backend.hop else { return Ok(None) };
    // 0 is the port that the packet came in by; one that is none of the switch's leads nowhere.
    let known = ports.iter().find(|port| port.ifindex == hop.ifindex).and_then(|port| port.number);
    let port = match known {
        _ if hop.ifindex == 0 => 0,
        Some(port) => port,
        None => return Ok(None),
    };
    let mut data =
        vec![encode::argument(port.into(), 9), hop.next.mac.to_vec(), hop.next.source_mac.to_vec()];
    let Some(tunnel) = backend.tunnel else { return Ok(Some(Action { name: "send", data })) };
    if tunnel.encapsulation != Encapsulation::Ipip || tunnel.spread != 0 {
        return Err(unsupported(
            "build this tunnel",
            "set forward = \"ipip\", without source bits",
        ));
    }
    let (version, from, to) = match (tunnel.source, backend.address) {
        (Some(from @ IpAddr::V4(_)), to @ IpAddr::V4(_)) => (4, from, to),
        (Some(from @ IpAddr::V6(_)), to @ IpAddr::V6(_)) => (6, from, to),
        _ => return Ok(None),
    };
    data.extend([
        encode::argument(version, 8),
        map_address(from).to_vec(),
        map_address(to).to_vec(),
    ]);
    data.push(encode::argument(tunnel.most() as u64, 32));
    Ok(Some(Action { name: "tunnel", data }))
}
