//! The plane that a control plane drives: what is wanted, and a switch that is kept like it.
//!
//! Beside the switch there is a record of all that was asked of it: services, backends, tables, pins. By it an
//! update writes what differs, and a switch that was started anew is filled again before it takes packets.

mod control;
mod fill;
mod kept;
mod link;
mod watch;

pub use control::P4;

use crate::encode::{self, Parts, Places};
use crate::error::Error;
use crate::layout::{CELLS, EXCEPTIONS, PARTITIONS, Register, SERVICES, SLOTS, Table};
use crate::ranges::Ranges;
use crate::target::{Action, Target, Write};
use kept::Kept;
use link::Link;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_hash::HashKey;
use weir_plane::{LaneCounters, Outcomes, Soft};
use weir_steering::{BackendId, Event, Flags, Image, ServiceId, ServiceState};

/// Packets that are under way have come to their end by then.
const GRACE: Duration = Duration::from_secs(1);
/// A table's flags stand in its service's selector from this bit on.
const FLAGS_AT: u32 = 16;

/// The two tables of a service, of which packets follow one.
#[derive(Default)]
struct Versions {
    /// Which one; none before the first.
    shown: Option<usize>,
    flags: Flags,
    places: [Places; 2],
    images: [Option<Arc<Image>>; 2],
    /// The first partition of its connections by index, and how many: the same for both.
    partitions: (u32, u32),
    exceptions: [Vec<(u64, u16)>; 2],
}

/// An interface that is to be a port, and is one if it has a number.
struct Port {
    name: String,
    ifindex: u32,
    number: Option<u32>,
}

/// What is wanted of a switch, and the switch.
pub(crate) struct Core<T> {
    target: T,
    record: Soft,
    key: HashKey,
    epoch: u64,
    /// Whether the switch has to be filled before anything else.
    lost: bool,
    link: Link,
    /// When it was last seen to be what it was.
    seen: Instant,
    versions: HashMap<ServiceId, Versions>,
    /// Free ranges of `slots`, `cells_a` and `cells_b`, and what these hold.
    ranges: [Ranges; 3],
    /// Partitions of connections by index.
    partitions: Ranges,
    /// What an earlier process had there.
    kept: Kept,
    held: [Vec<u32>; 3],
    /// Lanes that were given to flows, of the half that is written, and which one that is.
    armed: Vec<u64>,
    half: usize,
    generation: u64,
    /// Reports that were read from the ring, and those of them that nobody has asked for yet, with their places:
    /// packets write over what stands before `tail`, once that is known.
    taken: u64,
    waiting: Vec<(u64, Event)>,
    tail: Option<u64>,
    /// Flows that live elsewhere than their tables say, as far as reports told.
    noted: HashMap<ServiceState, BackendId>,
    ports: Vec<Port>,
    macs: Vec<[u8; 6]>,
    /// What the counters were before the switch was started anew, and when they were last read.
    before: Counts,
    counted: Counts,
    fills: u64,
}

/// Counters that begin at zero when the switch does.
#[derive(Clone, Default)]
struct Counts {
    lanes: Vec<LaneCounters>,
    outcomes: Outcomes,
    lost: u64,
}

/// Connections by index of a partition.
const PARTITION: u32 = weir_steering::cheetah::PARTITION_SLOTS;
const PARTS: [Register; 3] = Register::OF_TABLES;
/// Of what nobody knows what is there.
const UNKNOWN: u32 = u32::MAX;
const SIZES: [(u32, &str, &str); 3] = [
    (SLOTS, "entries of DIP arrays and rows", "SLOTS"),
    (CELLS, "cells of Concury's arrays", "CELLS"),
    (CELLS, "cells of Concury's arrays", "CELLS"),
];

impl<T: Target> Core<T> {
    /// A plane on this switch, whatever is in it: it is emptied and filled.
    ///
    /// # Errors
    /// If the switch refuses.
    pub fn new(target: T) -> Result<Self, Error> {
        let mut plane = Self::empty(target);
        plane.fill()?;
        Ok(plane)
    }

    /// What nobody has asked for anything yet.
    fn empty(target: T) -> Self {
        let sizes = SIZES.map(|(size, ..)| size);
        Self {
            target,
            record: Soft::default(),
            key: HashKey::from_seed(rand::random()),
            epoch: 0,
            lost: false,
            link: Link::default(),
            seen: Instant::now(),
            versions: HashMap::new(),
            ranges: sizes.map(Ranges::new),
            partitions: Ranges::new(PARTITIONS),
            kept: Kept::default(),
            held: sizes.map(|size| vec![0; size as usize]),
            armed: vec![0; weir_steering::words_for(0, crate::layout::MARK_WORDS as usize)],
            half: 0,
            generation: 1,
            taken: 0,
            waiting: Vec::new(),
            tail: None,
            noted: HashMap::new(),
            ports: Vec::new(),
            macs: Vec::new(),
            before: Counts::default(),
            counted: Counts::default(),
            fills: 0,
        }
    }

    /// Waits until the packets that are under way are decided. None are on a switch that is away, which is filled
    /// before it decides others.
    fn wait_for_packets(&mut self) -> Result<(), Error> {
        if !self.is_there() {
            return Ok(());
        }
        match self.wait_until_decided() {
            Err(error) if error.is_gone() => {
                self.leaves_out();
                Ok(())
            }
            waited => waited,
        }
    }

    /// One thread of the switch runs all ingress pipelines, one packet after the other: with the packet that had
    /// begun last, all have ended.
    fn wait_until_decided(&mut self) -> Result<(), Error> {
        let begun = self.read(&[(Register::Begun, 0)])?[0];
        let end = Instant::now() + GRACE;
        while self.read(&[(Register::Ended, 0)])?[0] < begun {
            if Instant::now() > end {
                return Err(Error::Stuck);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn selector(&self, service: ServiceId) -> u64 {
        let Some(versions) = self.versions.get(&service) else { return 0 };
        let Some(shown) = versions.shown else { return 0 };
        u64::from(versions.flags.0) << FLAGS_AT | (shown as u64) << 1 | 1
    }

    fn write_selector(&mut self, service: ServiceId) -> Result<(), Error> {
        let value = self.selector(service);
        self.write(&[Write::Set { register: Register::Selectors, index: service.0, value }])
    }

    /// Takes ranges for the parts of a table that is shown next, those of the version before the last one if
    /// they are as long.
    fn place(
        &mut self,
        service: ServiceId,
        version: usize,
        parts: &Parts,
    ) -> Result<Places, Error> {
        let lengths = [&parts.slots, &parts.a, &parts.b].map(|part| part.len() as u32);
        let versions = self.versions.entry(service).or_default();
        let old = versions.places[version];
        let old = [old.slots, old.a, old.b];
        let mut new = old;
        let same = old.iter().zip(lengths).all(|((_, length), wanted)| *length == wanted);
        if !same {
            versions.places[version] = Places::default();
            for (ranges, (first, length)) in self.ranges.iter_mut().zip(old) {
                ranges.give(first, length);
            }
            for (at, wanted) in lengths.into_iter().enumerate() {
                let Some(first) = self.ranges[at].take(wanted) else {
                    for (ranges, (first, length)) in self.ranges.iter_mut().zip(&new[..at]) {
                        ranges.give(*first, *length);
                    }
                    let (size, what, name) = SIZES[at];
                    let wanted = u64::from(wanted + self.ranges[at].in_use());
                    return Err(Error::Full { what, wanted, most: size.into(), name });
                };
                new[at] = (first, wanted);
            }
        }
        let places = Places { slots: new[0], a: new[1], b: new[2] };
        versions.places[version] = places;
        Ok(places)
    }

    /// Takes partitions for the connections of a service, which keeps them: what is in them is in use.
    fn place_connections(&mut self, service: ServiceId, wanted: u32) -> Result<(), Error> {
        let had = self.versions.entry(service).or_default().partitions.1;
        if wanted == 0 || wanted == had {
            return Ok(());
        }
        if had != 0 {
            return Err(Error::Unsupported {
                what: "give a service with connections another number of partitions".into(),
                right: "remove the service and add it again",
            });
        }
        let Some(first) = self.partitions.take(wanted) else {
            let (what, name) = ("partitions of connections", "PARTITIONS");
            let wanted = u64::from(wanted + self.partitions.in_use());
            return Err(Error::Full { what, wanted, most: PARTITIONS.into(), name });
        };
        self.versions.entry(service).or_default().partitions = (first, wanted);
        Ok(())
    }

    /// What packets are told of where a table stands.
    fn told_places(&self, service: ServiceId, parts: &Parts, places: Places) -> Places {
        let partitions = self.versions.get(&service).map(|versions| versions.partitions);
        let partitions = partitions.filter(|_| parts.partitions > 0);
        Places { b: partitions.unwrap_or(places.b), ..places }
    }

    /// What has to be written so that registers hold these parts there.
    fn differences(&self, parts: &Parts, places: &Places) -> Vec<Write> {
        let mut writes = Vec::new();
        let wanted = [(&parts.slots, places.slots), (&parts.a, places.a), (&parts.b, places.b)];
        for ((register, held), (part, (first, _))) in PARTS.into_iter().zip(&self.held).zip(wanted)
        {
            for (index, value) in (first..).zip(part) {
                if held[index as usize] != u32::from(*value) {
                    let value = u64::from(*value);
                    writes.push(Write::Set { register, index, value });
                }
            }
        }
        writes
    }

    fn hold(&mut self, parts: &Parts, places: &Places) {
        let wanted = [(&parts.slots, places.slots), (&parts.a, places.a), (&parts.b, places.b)];
        for (held, (part, (first, length))) in self.held.iter_mut().zip(wanted) {
            let held = &mut held[first as usize..][..length as usize];
            held.iter_mut().zip(part).for_each(|(held, value)| *held = u32::from(*value));
        }
    }

    /// Writes a table where no packet looks, and then the one word that all packets read first.
    fn publish(
        &mut self,
        service: ServiceId,
        image: &Arc<Image>,
        flags: Flags,
    ) -> Result<(), Error> {
        if service.0 >= SERVICES {
            let (wanted, most) = (u64::from(service.0) + 1, u64::from(SERVICES));
            return Err(Error::Full { what: "services", wanted, most, name: "SERVICES" });
        }
        let parts = encode::parts(image)?;
        // Packets that follow the table before the last one are gone.
        self.wait_for_packets()?;
        let version = self.versions.get(&service).and_then(|of| of.shown).map_or(0, |now| 1 - now);
        self.place_connections(service, parts.partitions)?;
        self.fits_exceptions(service, version, parts.exceptions.len())?;
        let places = self.place(service, version, &parts)?;
        // What differs is known of a switch that is not filled anew meanwhile.
        loop {
            let fills = self.fills;
            let writes = self.table_writes(service, version, image, &parts);
            self.write(&writes)?;
            if self.fills == fills {
                break;
            }
        }
        self.hold(&parts, &places);
        let versions = self.versions.entry(service).or_default();
        versions.exceptions[version] = parts.exceptions;
        versions.images[version] = Some(Arc::clone(image));
        let before = (versions.shown, versions.flags);
        (versions.shown, versions.flags) = (Some(version), flags);
        let shown = self.write_selector(service);
        let Some(versions) = self.versions.get_mut(&service) else { return shown };
        match &shown {
            Ok(()) => versions.images[1 - version] = None,
            Err(_) => (versions.shown, versions.flags) = before,
        }
        shown
    }

    /// What puts a version of a table there, as far as it is not.
    fn table_writes(
        &self,
        service: ServiceId,
        version: usize,
        image: &Image,
        parts: &Parts,
    ) -> Vec<Write> {
        let places = self.versions.get(&service).map(|versions| versions.places[version]);
        let places = places.unwrap_or_default();
        let mut writes = self.differences(parts, &places);
        writes.extend(self.exceptions(service, version, &parts.exceptions));
        writes.extend(self.partitions_write(service));
        writes.push(Write::Insert {
            table: Table::Images,
            key: vec![table_number(service, version).to_be_bytes().to_vec()],
            action: encode::set_image(image, &self.told_places(service, parts, places)),
        });
        writes
    }

    /// Whether there is room for so many exceptions of a version. Those of both versions are there at once.
    fn fits_exceptions(
        &self,
        service: ServiceId,
        version: usize,
        wanted: usize,
    ) -> Result<(), Error> {
        let count = |versions: &Versions| versions.exceptions.iter().map(Vec::len).sum::<usize>();
        let others: usize = self.versions.values().map(count).sum();
        let old = self.versions.get(&service).map_or(0, |of| of.exceptions[version].len());
        let all = (others - old + wanted) as u64;
        let (what, name) = ("exceptions, with those of the tables before", "the table exceptions");
        match wanted > 0 && all > EXCEPTIONS.into() {
            true => Err(Error::Full { what, wanted: all, most: EXCEPTIONS.into(), name }),
            false => Ok(()),
        }
    }

    /// The exceptions of a version that go, and those that come.
    fn exceptions(&self, service: ServiceId, version: usize, wanted: &[(u64, u16)]) -> Vec<Write> {
        let number = table_number(service, version).to_be_bytes().to_vec();
        let key = |hash: u64| vec![number.clone(), hash.to_be_bytes().to_vec()];
        let there: HashMap<u64, u16> = self
            .versions
            .get(&service)
            .into_iter()
            .flat_map(|versions| versions.exceptions[version].iter().copied())
            .collect();
        let stays: HashMap<u64, u16> = wanted.iter().copied().collect();
        let table = Table::Exceptions;
        let gone = there.keys().filter(|hash| !stays.contains_key(hash));
        let gone = gone.map(|hash| Write::Remove { table, key: key(*hash) });
        let new = stays.iter().filter(|(hash, backend)| there.get(hash) != Some(backend));
        let new = new.map(|(hash, backend)| {
            let data = vec![encode::argument((*backend).into(), 16)];
            Write::Insert { table, key: key(*hash), action: Action { name: "set_exception", data } }
        });
        gone.chain(new).collect()
    }

    /// Gives back what a service had that packets do not find any more.
    fn free(&mut self, service: ServiceId) -> Result<(), Error> {
        let mut writes = Vec::new();
        for version in 0..2 {
            writes.extend(self.exceptions(service, version, &[]));
            let key = vec![table_number(service, version).to_be_bytes().to_vec()];
            writes.push(Write::Remove { table: Table::Images, key });
        }
        writes.extend(self.empty_partitions(service));
        self.write(&writes)?;
        self.forget_tracked(service)?;
        let Some(versions) = self.versions.remove(&service) else { return Ok(()) };
        self.partitions.give(versions.partitions.0, versions.partitions.1);
        for places in versions.places {
            let parts = [places.slots, places.a, places.b];
            for (ranges, (first, length)) in self.ranges.iter_mut().zip(parts) {
                ranges.give(first, length);
            }
        }
        self.noted.retain(|state, _| state.service != service);
        Ok(())
    }

    /// Reads the published table of a service back.
    fn verify(&mut self, service: ServiceId) -> Result<Option<Image>, Error> {
        let Some(image) = self.record.tables.get(&service).map(Arc::clone) else { return Ok(None) };
        let shown = self.versions.get(&service).and_then(|of| Some((of.shown?, of.places)));
        let Some((version, places)) = shown else { return Ok(None) };
        if !self.is_there() {
            return Ok(Some(Image::clone(&image)));
        }
        let parts = encode::parts(&image)?;
        let places = places[version];
        let wanted = [(&parts.slots, places.slots), (&parts.a, places.a), (&parts.b, places.b)];
        for (register, (part, (first, _))) in PARTS.into_iter().zip(wanted) {
            if part.is_empty() {
                continue;
            }
            let found = self.read_all(register)?;
            for (index, wanted) in (first..).zip(part) {
                let (found, wanted) = (found[index as usize], u64::from(*wanted));
                if found != wanted {
                    let register = register.name();
                    return Err(Error::Damaged { register, index, wanted, found });
                }
            }
        }
        Ok(Some(Image::clone(&image)))
    }
}

/// The number by which packets find a table of a service.
fn table_number(service: ServiceId, version: usize) -> u32 {
    service.0 << 1 | version as u32
}
