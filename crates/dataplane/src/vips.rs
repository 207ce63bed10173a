//! The service table: exact match with two choices per key, changed while packets read it.

use crate::abi::types;
use crate::error::Error;
use crate::kernel::grace;
use crate::kinds::Kinds;
use crate::mapped::Mapped;
use crate::numbers::{
    TABLE_BY_ID, TABLE_CAPPED, TABLE_LIST_SIDE, TABLE_LISTED, TABLE_SALTED, VIP_FIRST, VIP_HIGH,
    VIP_IN_USE, VIP_KIND_SHIFT, VIP_SECOND,
};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::Listen;
use weir_wire::Protocol;

/// The number of no table: neither a list nor a cap is asked for it.
pub(crate) const NO_TABLE: u32 = !(TABLE_LISTED | TABLE_CAPPED);

/// Beside a salt: later fragments are led by their source.
const BY_SOURCE: u32 = 1 << 16;

/// Moves of entries tried before the table counts as full.
const MAX_MOVES: usize = 64;

/// The table's memory and its number of slots.
pub(crate) struct VipTable {
    memory: Mapped,
    slots: u32,
    /// What packets ask for beside the very address and port.
    kinds: Kinds,
    /// Slots that were taken out of use and may still be read by packets under way.
    cleared: BTreeSet<u32>,
    grace: Grace,
}

/// How packets under way are waited for.
pub(crate) type Grace = Box<dyn Fn() -> Result<(), Error> + Send + Sync>;

/// Where a service's packets are led.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leads {
    /// The number of its table.
    pub table: u32,
    /// Of its QUIC ids, a byte for each configuration; 0: packets are not led by ids.
    pub id_lengths: u64,
    /// Which of its two lists says what sources are taken; none: all are.
    pub list: Option<u32>,
    /// Not all new flows are taken.
    pub capped: bool,
}

impl Leads {
    /// By this table alone.
    pub fn by_table(table: u32) -> Self {
        Self { table, id_lengths: 0, list: None, capped: false }
    }

    /// What packets read.
    fn word(&self) -> u32 {
        if self.table == NO_TABLE {
            return NO_TABLE;
        }
        let by_id = if self.id_lengths != 0 { TABLE_BY_ID } else { 0 };
        let listed = match self.list {
            None => 0,
            Some(0) => TABLE_LISTED,
            Some(_) => TABLE_LISTED | TABLE_LIST_SIDE,
        };
        let capped = if self.capped { TABLE_CAPPED } else { 0 };
        self.table | by_id | listed | capped
    }

    fn of_entry(vip: &types::vip) -> Self {
        let id_lengths = vip.id_lengths;
        if vip.table == NO_TABLE {
            return Self { id_lengths, ..Self::by_table(NO_TABLE) };
        }
        let flags = TABLE_BY_ID | TABLE_LISTED | TABLE_LIST_SIDE | TABLE_SALTED | TABLE_CAPPED;
        let table = vip.table & !flags;
        let side = u32::from(vip.table & TABLE_LIST_SIDE != 0);
        let list = (vip.table & TABLE_LISTED != 0).then_some(side);
        Self { table, id_lengths, list, capped: vip.table & TABLE_CAPPED != 0 }
    }
}

/// What a packet is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Match {
    address: [u8; 16],
    port_protocol: u32,
}

impl Match {
    /// `kind`: its number.
    fn new(address: [u8; 16], protocol: u8, port: u16, kind: u32) -> Self {
        let port_protocol = u32::from(port.to_be()) | u32::from(protocol) << 16;
        Self { address, port_protocol: port_protocol | kind << VIP_KIND_SHIFT }
    }

    fn protocol(&self) -> u8 {
        (self.port_protocol >> 16) as u8
    }

    fn kind(&self) -> u32 {
        self.port_protocol >> VIP_KIND_SHIFT
    }

    fn choices(&self, slots: u32) -> [u32; 2] {
        let (high, low) = self.halves();
        let word = low ^ high.wrapping_mul(VIP_HIGH) ^ u64::from(self.port_protocol);
        let shift = 64 - slots.trailing_zeros();
        [VIP_FIRST, VIP_SECOND].map(|factor| (word.wrapping_mul(factor) >> shift) as u32)
    }

    fn halves(&self) -> (u64, u64) {
        let word = |range: std::ops::Range<usize>| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.address[range]);
            u64::from_ne_bytes(bytes)
        };
        (word(0..8), word(8..16))
    }

    /// `at`: what is listened on; none of the entry of an address.
    fn entry(&self, leads: Leads, at: Option<&Listen>) -> types::vip {
        let (high, low) = self.halves();
        types::vip {
            high,
            low,
            port_protocol: self.port_protocol | VIP_IN_USE,
            table: word_of(leads, at),
            id_lengths: leads.id_lengths,
            salt: at.map_or(0, salt_word),
            host_bits: at.map_or(0, |at| at.host_bits().into()),
        }
    }

    fn of_entry(vip: &types::vip) -> Self {
        let mut address = [0; 16];
        address[..8].copy_from_slice(&vip.high.to_ne_bytes());
        address[8..].copy_from_slice(&vip.low.to_ne_bytes());
        Self { address, port_protocol: vip.port_protocol & !VIP_IN_USE }
    }
}

/// The salt, and whether later fragments are led by their source.
fn salt_word(at: &Listen) -> u32 {
    u32::from(at.salt) | if at.fragments { BY_SOURCE } else { 0 }
}

/// Where the port of a protocol stands in the word of an address of which fragments are led by their source.
fn fragments_shift(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 16,
        Protocol::Sctp => 32,
    }
}

/// What packets read of where they are led, of those to a place that is listened on.
fn word_of(leads: Leads, at: Option<&Listen>) -> u32 {
    let salted = leads.table != NO_TABLE && at.is_some_and(Listen::is_salted);
    leads.word() | if salted { TABLE_SALTED } else { 0 }
}

impl VipTable {
    pub fn new(memory: Mapped, slots: u32, control: Mapped) -> Self {
        let kinds = Kinds::new(control, grace);
        Self { memory, slots, kinds, cleared: BTreeSet::new(), grace: Box::new(grace) }
    }

    /// Whether somebody listens there.
    pub fn contains(&self, at: &Listen) -> bool {
        self.matches(at).is_some_and(|(own, _)| self.find(own).is_some())
    }

    /// Whether packets have anything to ask for but any port of an address.
    pub fn is_wide(&self) -> bool {
        self.kinds.is_wide()
    }

    /// Waits for packets in this way from now on.
    pub fn wait_by(&mut self, grace: Grace) {
        self.grace = grace;
    }

    /// The entries of what is listened on, and of its addresses; none if packets do not ask for such.
    fn matches(&self, at: &Listen) -> Option<(Match, Match)> {
        let (own, address) = self.kinds.numbers(at)?;
        let own = Match::new(at.address, at.protocol.number(), at.port, own);
        Some((own, Match::new(at.address, 0, 0, address)))
    }

    /// Adds a service with the number of its table, or gives it another table: one 32-bit store,
    /// which is what publishes it.
    pub fn insert(&mut self, at: &Listen, leads: Leads) -> Result<(), Error> {
        if self.matches(at).is_none_or(|(own, _)| self.find(own).is_none()) {
            self.kinds.ask_for(at)?;
        }
        let Some((own, address)) = self.matches(at) else {
            return Err(Error::ServicesFull);
        };
        if let Some(slot) = self.find(own) {
            let entry = slot as usize * size_of::<types::vip>();
            let salt = self.memory.word32(entry + offset_of!(types::vip, salt));
            salt.store(salt_word(at), Ordering::Release);
            let table = self.memory.word32(entry + offset_of!(types::vip, table));
            let lengths = self.memory.word64(entry + offset_of!(types::vip, id_lengths));
            // A packet that is led by ids finds how long they are; one that found that it is, and
            // finds no lengths, is led by the table.
            lengths.store(leads.id_lengths, Ordering::Release);
            table.store(word_of(leads, Some(at)), Ordering::Release);
            self.lead_fragments(at, address, at.fragments);
            return Ok(());
        }
        // The address first: a fragment for the service must not be the kernel's for a moment.
        let known = self.find(address).map(|slot| self.load(slot));
        let mut nowhere = address.entry(Leads::by_table(NO_TABLE), None);
        nowhere.id_lengths = known.as_ref().map_or(0, |entry| entry.id_lengths);
        let known = known.is_some();
        let placed =
            self.put(address, nowhere).and_then(|()| self.put(own, own.entry(leads, Some(at))));
        if placed.is_err() && !known {
            self.clear(address);
        }
        if placed.is_ok() {
            self.lead_fragments(at, address, at.fragments);
        }
        placed
    }

    /// Leads later fragments to an address by their source, to the service at this port, or no longer to that.
    fn lead_fragments(&self, at: &Listen, address: Match, leads: bool) {
        let Some(slot) = self.find(address) else { return };
        let entry = slot as usize * size_of::<types::vip>();
        let word = self.memory.word64(entry + offset_of!(types::vip, id_lengths));
        let (shift, port) = (fragments_shift(at.protocol), u64::from(at.port.to_be()));
        let now = word.load(Ordering::Relaxed);
        let others = now & !(0xffff << shift);
        if leads {
            word.store(others | port << shift, Ordering::Release);
        } else if now >> shift & 0xffff == port {
            word.store(others, Ordering::Release);
        }
    }

    /// Removes what is listened on; does nothing if nobody does.
    pub fn remove(&mut self, at: &Listen) {
        let Some((own, address)) = self.matches(at) else { return };
        self.lead_fragments(at, address, false);
        self.clear(own);
        let still = self
            .services()
            .iter()
            .any(|(other, _)| (other.address, other.address_bits) == (at.address, at.address_bits));
        if !still {
            self.clear(address);
        }
    }

    /// Lets packets ask for nothing that nobody listens on.
    ///
    /// # Errors
    /// [`Error::System`] if there is no waiting for a grace period.
    pub fn tidy(&mut self) -> Result<(), Error> {
        let all: Vec<Listen> = self.services().into_iter().map(|(at, _)| at).collect();
        self.kinds.keep(&all)
    }

    /// All that is listened on, and where packets are led there.
    pub fn services(&self) -> Vec<(Listen, Leads)> {
        self.entries()
            .filter_map(|(_, vip)| {
                let found = Match::of_entry(&vip);
                let protocol = Protocol::from_number(found.protocol())?;
                let port = u16::from_be(found.port_protocol as u16);
                let (address_bits, port_bits) = self.kinds.exactness(found.kind(), port == 0)?;
                let at = Listen {
                    address: found.address,
                    address_bits,
                    protocol,
                    port,
                    port_bits,
                    salt: vip.salt as u16,
                    fragments: vip.salt & BY_SOURCE != 0,
                };
                Some((at, Leads::of_entry(&vip)))
            })
            .collect()
    }

    fn entries(&self) -> impl Iterator<Item = (u32, types::vip)> + '_ {
        (0..self.slots)
            .map(|slot| (slot, self.load(slot)))
            .filter(|(_, vip)| vip.port_protocol & VIP_IN_USE != 0)
    }

    fn load(&self, slot: u32) -> types::vip {
        self.memory.load_record(slot as usize)
    }

    fn store(&self, slot: u32, vip: &types::vip) {
        // The in-use bit last.
        self.memory.store_record(slot as usize, vip, offset_of!(types::vip, port_protocol));
    }

    fn find(&self, wanted: Match) -> Option<u32> {
        wanted.choices(self.slots).into_iter().find(|&slot| {
            let vip = self.load(slot);
            vip.port_protocol & VIP_IN_USE != 0 && Match::of_entry(&vip) == wanted
        })
    }

    fn clear(&mut self, wanted: Match) {
        // In two slots, if a control plane died while it moved the entry.
        while let Some(slot) = self.find(wanted) {
            self.clear_slot(slot);
        }
    }

    /// Takes a slot out of use. A packet that has found it may go on to read its table, so all else
    /// stays until a grace period is over.
    fn clear_slot(&mut self, slot: u32) {
        let word = slot as usize * size_of::<types::vip>() + offset_of!(types::vip, port_protocol);
        self.memory.word32(word).store(0, Ordering::Release);
        self.cleared.insert(slot);
    }

    /// Fills a slot that is not in use.
    fn fill(&mut self, slot: u32, vip: &types::vip) -> Result<(), Error> {
        if self.cleared.contains(&slot) {
            (self.grace)()?;
            self.cleared.clear();
        }
        self.store(slot, vip);
        Ok(())
    }

    fn put(&mut self, wanted: Match, entry: types::vip) -> Result<(), Error> {
        if let Some(slot) = self.find(wanted) {
            self.store(slot, &entry);
            return Ok(());
        }
        let mut target = wanted.choices(self.slots)[0];
        let free = |table: &Self, slot: u32| table.load(slot).port_protocol & VIP_IN_USE == 0;
        let mut path = Vec::new();
        // Walks from occupant to its other slot until one is free, then moves the occupants from
        // the far end on: each is in its new slot before it leaves the old one, so a packet finds
        // every service at any moment.
        for _ in 0..MAX_MOVES {
            if let Some(slot) = wanted.choices(self.slots).into_iter().find(|&s| free(self, s)) {
                return self.fill(slot, &entry);
            }
            path.clear();
            path.push(target);
            while path.len() < MAX_MOVES {
                let from = path[path.len() - 1];
                let occupant = self.load(from);
                let [a, b] = Match::of_entry(&occupant).choices(self.slots);
                let next = if a == from { b } else { a };
                if path.contains(&next) {
                    break;
                }
                path.push(next);
                if free(self, next) {
                    break;
                }
            }
            if !free(self, path[path.len() - 1]) {
                target = wanted.choices(self.slots)[1];
                continue;
            }
            for pair in path.windows(2).rev() {
                let occupant = self.load(pair[0]);
                self.fill(pair[1], &occupant)?;
                // A packet may have looked at the new slot before and look at the old one next.
                (self.grace)()?;
                self.cleared.clear();
                self.clear_slot(pair[0]);
            }
        }
        Err(Error::ServicesFull)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::atomic::AtomicU32;

    static GRACES: AtomicU32 = AtomicU32::new(0);

    fn counted() -> Result<(), Error> {
        GRACES.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn table(slots: u32) -> VipTable {
        let bytes = slots as usize * size_of::<types::vip>();
        let path = std::env::temp_dir().join(format!(
            "weir-vips-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("a file in the temporary directory");
        file.set_len(bytes as u64).expect("its length");
        std::fs::remove_file(&path).expect("it is there");
        let memory = Mapped::new(&file, bytes).expect("its memory");
        let control =
            File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let control = control.expect("a file in the temporary directory");
        control.set_len(size_of::<types::control>() as u64).expect("its length");
        std::fs::remove_file(&path).expect("it is there");
        let control = Mapped::new(&control, size_of::<types::control>()).expect("its memory");
        let mut table =
            VipTable { grace: Box::new(counted), ..VipTable::new(memory, slots, control) };
        table.kinds.set_grace(counted);
        table
    }

    fn key(n: u8) -> Listen {
        Listen::new(([10, 0, 0, n].into(), 32), Protocol::Tcp, (80, 16))
    }

    fn own(table: &VipTable, at: &Listen) -> Match {
        table.matches(at).expect("a kind that is asked for").0
    }

    fn address(table: &VipTable, at: &Listen) -> Match {
        table.matches(at).expect("a kind that is asked for").1
    }

    /// A packet that has compared a slot's key reads its table next: whatever becomes of the slot,
    /// it must not find another number there before it is done.
    #[test]
    fn what_a_packet_has_found_keeps_its_table_for_a_grace_period() {
        let mut table = table(16);
        for n in 1..=4 {
            table.insert(&key(n), Leads::by_table(100 + u32::from(n))).expect("there is room");
        }
        let mut found = std::collections::BTreeMap::new();
        for round in 0..200u32 {
            let n = (round % 4) as u8 + 1;
            let slot = table.find(own(&table, &key(n))).expect("it is there");
            let number = table.load(slot).table;
            table.remove(&key(n));
            assert_eq!(table.find(own(&table, &key(n))), None);
            assert_eq!(table.load(slot).table, number, "slot {slot} was cleared");
            found.insert(slot, number);
            let before = GRACES.load(Ordering::Relaxed);
            table.insert(&key(n), Leads::by_table(200 + round)).expect("there is room");
            let waited = GRACES.load(Ordering::Relaxed) != before;
            for (slot, number) in &found {
                let same = table.load(*slot).table == *number;
                assert!(same || waited, "slot {slot} was filled anew at once");
            }
            if waited {
                found.clear();
            }
        }
        for n in 1..=4 {
            let slot = table.find(own(&table, &key(n))).expect("it is there");
            assert!(table.load(slot).table >= 200);
        }
    }

    /// A service that is led by ids, or does not take all sources, keeps its table's number, and one
    /// without a table has none.
    #[test]
    fn the_marks_of_ids_and_lists_are_no_part_of_a_table() {
        let mut table = table(16);
        for (number, list, capped, word) in [
            (6, None, false, 6 | TABLE_BY_ID),
            (6, Some(0), false, 6 | TABLE_BY_ID | TABLE_LISTED),
            (7, Some(1), false, 7 | TABLE_BY_ID | TABLE_LISTED | TABLE_LIST_SIDE),
            (7, Some(1), true, 7 | TABLE_BY_ID | TABLE_LISTED | TABLE_LIST_SIDE | TABLE_CAPPED),
            (6, None, true, 6 | TABLE_BY_ID | TABLE_CAPPED),
            (NO_TABLE, None, false, NO_TABLE),
        ] {
            let leads = Leads { table: number, id_lengths: 8, list, capped };
            table.insert(&key(1), leads).expect("there is room");
            let slot = table.find(own(&table, &key(1))).expect("it is there");
            assert_eq!(table.load(slot).table, word);
            assert_eq!(table.services(), vec![(key(1), leads)]);
        }
    }

    /// Died between the two halves of a move: the entry stands twice, and neither may outlive it.
    #[test]
    fn an_entry_that_stands_twice_is_removed_twice() {
        let mut table = table(64);
        table.insert(&key(1), Leads::by_table(6)).expect("there is room");
        let one = own(&table, &key(1));
        let entry = one.entry(Leads::by_table(6), Some(&key(1)));
        for slot in one.choices(64) {
            table.store(slot, &entry);
        }
        table.remove(&key(1));
        assert_eq!(table.find(own(&table, &key(1))), None);
        assert_eq!(table.find(address(&table, &key(1))), None);
    }

    /// A service that has no room leaves nothing behind, and takes nobody's place.
    #[test]
    fn a_full_table_refuses_a_service_whole() {
        let mut table = table(64);
        let mut there = Vec::new();
        let refused = (0..=u8::MAX).find(|&n| {
            let placed = table.insert(&key(n), Leads::by_table(n.into()));
            there.extend(placed.is_ok().then_some((key(n), u32::from(n))));
            placed.is_err()
        });
        let refused = refused.expect("64 slots hold no 256 services");
        assert!(there.len() > 16, "{}", there.len());
        assert_eq!(table.find(address(&table, &key(refused))), None);
        let mut found: Vec<_> =
            table.services().into_iter().map(|(key, leads)| (key, leads.table)).collect();
        found.sort_by_key(|one| one.1);
        assert_eq!(found, there);
        there.iter().for_each(|(key, _)| table.remove(key));
        assert_eq!(table.entries().count(), 0);
    }

    /// What packets ask for comes and goes with what is listened on: of two lists one is written while the
    /// other one counts, and not before nobody reads it any more.
    #[test]
    fn packets_ask_for_what_is_listened_on_and_for_nothing_else() {
        let mut table = table(64);
        let net = Listen::new(([10, 1, 0, 0].into(), 16), Protocol::Tcp, (0, 0));
        let block = Listen { port: 8000, port_bits: 13, ..net };
        let mut one = Listen::new(([10, 1, 0, 9].into(), 32), Protocol::Udp, (8000, 10));
        one.salt = 7;
        let all = [net, block, one, key(1)];
        for (at, number) in all.iter().zip(2..) {
            let before = GRACES.load(Ordering::Relaxed);
            table.insert(at, Leads::by_table(number)).expect("there is room");
            let plain = at.exactness() == (128, 16);
            assert_eq!(GRACES.load(Ordering::Relaxed) != before, !plain, "{at:?}");
        }
        let sorted = |mut all: Vec<Listen>| {
            all.sort();
            all
        };
        let there =
            |table: &VipTable| sorted(table.services().into_iter().map(|(at, _)| at).collect());
        assert_eq!(there(&table), sorted(all.to_vec()));
        assert!(table.is_wide());
        // As the next control plane finds it.
        let slot = table.find(own(&table, &one)).expect("it is there");
        let entry = table.load(slot);
        assert_eq!((entry.salt, entry.table & TABLE_SALTED != 0), (7, true));
        for at in &all[..3] {
            table.remove(at);
            table.tidy().expect("graces are granted");
        }
        assert_eq!(there(&table), [key(1)]);
        assert!(!table.is_wide() && table.find(own(&table, &key(1))).is_some());
        assert_eq!(table.entries().count(), 2, "the address and the port of the last one");
    }

    /// Of more kinds than packets ask for the last ones are refused, and the others stay.
    #[test]
    fn one_kind_too_many_is_refused() {
        let mut table = table(1024);
        let mut there = 0;
        let refused = (8..=32u8).flat_map(|bits| (8..=16).map(move |ports| (bits, ports))).find(
            |&(bits, port_bits)| {
                let at = Listen::new(([10, 0, 0, 0].into(), bits), Protocol::Tcp, (0, port_bits));
                let placed = table.insert(&at, Leads::by_table(6));
                there += usize::from(placed.is_ok());
                matches!(placed, Err(Error::KindsFull { .. }))
            },
        );
        assert!(refused.is_some() && there > 50, "{there}");
        assert_eq!(table.services().len(), there);
    }
}
