//! What services listen on, before and after a change: which running service a configured one is, and what
//! tells its addresses apart.
//!
//! A service is the one that it has most places in common with, so that its connections stay where its
//! addresses do. Each of its addresses has a salt for as long as it is listened on (`weir_plane::Listen`),
//! which the data plane keeps: the first one of a family has none.

use crate::config::{Service, Vip};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use weir_plane::Listen;
use weir_steering::StateKey;
use weir_wire::{map_address, unmap_address};

/// Addresses that a service had before of which it is known what told them apart.
const MOST_KEPT: usize = 4096;

/// Addresses that have all but so many of their bits in common have salts with which a prefix around them can go on.
const NEAR: u8 = 8;

/// For each wanted service the number of the one that it is, of those that there are; none twice.
pub(super) fn pair(there: &[&Service], wanted: &[Service]) -> Vec<Option<usize>> {
    let mut holders: HashMap<Listen, usize> = HashMap::new();
    for (number, service) in there.iter().enumerate() {
        holders.extend(service.places().into_iter().map(|at| (at, number)));
    }
    let mut taken = HashSet::new();
    let mut pairs: Vec<Option<usize>> = vec![None; wanted.len()];
    // Whoever keeps most has the first choice, so that an address which moves takes no service with it.
    let mut shared: Vec<(usize, bool, usize, usize)> = Vec::new();
    for (at, service) in wanted.iter().enumerate() {
        let mut common: HashMap<usize, usize> = HashMap::new();
        for place in service.places() {
            if let Some(number) = holders.get(&place) {
                *common.entry(*number).or_default() += 1;
            }
        }
        let named = |number: usize| there[number].name == service.name;
        shared.extend(common.into_iter().map(|(number, n)| (n, named(number), at, number)));
    }
    shared.sort_by_key(|&(n, named, at, number)| (std::cmp::Reverse((n, named)), at, number));
    for (_, _, at, number) in shared {
        if pairs[at].is_none() && taken.insert(number) {
            pairs[at] = Some(number);
        }
    }
    // Ranges that begin or end elsewhere may have no block in common, and wider and narrower prefixes are
    // other places.
    for (at, service) in wanted.iter().enumerate() {
        let addresses = service.addresses();
        let meets = |other: &Service| {
            other.protocol == service.protocol
                && ports_meet(other, service)
                && other.addresses().iter().any(|one| addresses.iter().any(|two| one.meets(two)))
        };
        if pairs[at].is_none() {
            let found = (0..there.len()).find(|at| !taken.contains(at) && meets(there[*at]));
            pairs[at] = found.filter(|number| taken.insert(*number));
        }
    }
    pairs
}

/// Whether they have a port in common: one port, a range, or any. Who translates ports is another if it is
/// not a range that becomes a range: packets of its connections would get other ports.
fn ports_meet(one: &Service, two: &Service) -> bool {
    if (one.port, one.ports) == (two.port, two.ports) {
        return true;
    }
    let translated = one.forward.is_nat() || two.forward.is_nat();
    if translated && !(one.ports.is_some() && two.ports.is_some()) {
        return false;
    }
    let (one, two) = (ports_of(one), ports_of(two));
    one.start() <= two.end() && two.start() <= one.end()
}

/// The ports that a service listens on.
pub(super) fn ports_of(service: &Service) -> RangeInclusive<u16> {
    match (service.ports, service.port) {
        (Some(ports), _) => ports.first..=ports.last,
        (None, Some(port)) => port..=port,
        // Any.
        (None, None) => 0..=u16::MAX,
    }
}

/// What tells the addresses of a service apart: the salt of each, those that it had before included, since
/// states of their connections may be there still. Who comes back has the one that it had. The longest ago
/// given up comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Salts(Vec<Salt>);

/// The salt of an address or a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Salt {
    vip: Vip,
    salt: u16,
}

impl Salt {
    /// All that destination ports are XORed with there: a block of as many, of which the first address has any.
    fn range(&self) -> RangeInclusive<u16> {
        let others = (self.step() - 1) as u16;
        (self.salt & !others)..=(self.salt | others)
    }

    /// What an address of it has.
    fn at(&self, address: IpAddr) -> u16 {
        let (at, protocol) = ((self.vip.address, self.vip.bits), weir_wire::Protocol::Tcp);
        let at = Listen { salt: self.salt, ..Listen::new(at, protocol, (0, 0)) };
        at.salt_of(&map_address(address))
    }

    /// Whether its addresses have one each, which halves of it keep.
    fn divides(&self) -> bool {
        let whole = if self.is_ipv4() { 32 } else { 128 };
        whole - self.vip.bits <= 16
    }

    /// Whether the addresses that both have are told apart by the same in either.
    fn agrees(&self, other: &Self) -> bool {
        let (wide, part) =
            if self.vip.bits < other.vip.bits { (self, other) } else { (other, self) };
        let whole = wide.divides() || wide.vip.bits == part.vip.bits;
        whole && wide.vip.contains(part.vip.address) && wide.at(part.vip.address) == part.salt
    }

    /// What an address that was given up had, or as a part of a prefix. The rest of that stays among those
    /// given up.
    fn split_off(&self, left: &mut VecDeque<Salt>) -> Option<u16> {
        let within = |old: &Salt| {
            let part = old.divides() && old.vip.bits < self.vip.bits;
            old.vip == self.vip || part && old.vip.contains(self.vip.address)
        };
        // The last one is the one that packets went by last.
        let mut old = left.iter().rposition(within).and_then(|at| left.remove(at))?;
        while old.vip.bits < self.vip.bits {
            let bits = old.vip.bits + 1;
            let halves = halves(&old.vip)
                .map(|address| Salt { vip: Vip { address, bits }, salt: old.at(address) });
            let [low, high] = halves;
            let (own, other) =
                if high.vip.contains(self.vip.address) { (high, low) } else { (low, high) };
            left.push_back(other);
            old = own;
        }
        Some(old.salt)
    }

    /// What a prefix has that an address or a prefix in it which was given up has grown to, if nobody else has
    /// any of that.
    fn grown(&self, left: &mut VecDeque<Salt>, taken: &mut Taken) -> Option<u16> {
        let salt = |old: &Salt| {
            let zero = Salt { vip: self.vip, salt: 0 };
            let salt = old.salt ^ zero.at(old.vip.address);
            let one = Salt { vip: self.vip, salt };
            (self.divides() && self.vip.bits < old.vip.bits && one.agrees(old)).then_some(salt)
        };
        let found = left.iter().rev().find_map(salt)?;
        let one = Salt { vip: self.vip, salt: found };
        let (own, others): (Vec<Salt>, Vec<Salt>) =
            left.iter().partition(|old| self.vip.bits < old.vip.bits && one.agrees(old));
        own.iter().for_each(|old| taken.remove(old));
        if !taken.is_vacant(&one) {
            own.iter().for_each(|old| taken.add(old));
            return None;
        }
        taken.add(&one);
        *left = others.into();
        Some(found)
    }

    /// What agrees with one that is near, so that a prefix around both has room for what both have, if nobody else
    /// has any of it.
    fn beside(&self, others: &[Salt], taken: &mut Taken) -> Option<u16> {
        let whole: u8 = if self.is_ipv4() { 32 } else { 128 };
        let bits = whole - NEAR;
        let around = Salt { vip: Vip { address: self.vip.address, bits }, salt: 0 };
        let near = |other: &&Salt| {
            self.vip.bits.min(other.vip.bits) >= bits && around.vip.contains(other.vip.address)
        };
        let own = around.at(self.vip.address);
        let mut salts =
            others.iter().filter(near).map(|one| one.salt ^ around.at(one.vip.address) ^ own);
        salts.find(|salt| taken.is_vacant(&Salt { vip: self.vip, salt: *salt }))
    }

    /// Takes out what was given up and had some of its addresses under other salts: packets for these come under its
    /// own now, so that nothing ends what is known of their connections.
    fn ended(&self, left: &mut VecDeque<Salt>, taken: &mut Taken) -> Vec<Salt> {
        let (ended, others): (Vec<Salt>, Vec<Salt>) =
            left.iter().partition(|old| self.vip.meets(&old.vip) && !self.agrees(old));
        ended.iter().for_each(|old| taken.remove(old));
        *left = others.into();
        ended
    }

    fn step(&self) -> usize {
        let whole = if self.is_ipv4() { 32 } else { 128 };
        1 << (whole - self.vip.bits).min(16)
    }

    fn is_ipv4(&self) -> bool {
        self.vip.address.is_ipv4()
    }

    /// Whether a state could be of one of its connections, of a service with this port alone.
    pub(super) fn has(&self, key: &StateKey, port: u16) -> bool {
        unmap_address(&key.address).is_ipv4() == self.is_ipv4()
            && self.range().contains(&(key.dst_port ^ port))
    }
}

impl Salts {
    /// Those of a service's addresses.
    pub fn of(service: &Service) -> Self {
        let mut salts = Self::default();
        salts.follow(&service.addresses());
        salts
    }

    /// Whether nothing need be kept of them: all are what a service with these addresses has at first.
    pub fn are_plain(&self, service: &Service) -> bool {
        let addresses = service.addresses();
        self.0.len() == addresses.len()
            && self.0.iter().all(|one| one.salt == 0 && addresses.contains(&one.vip))
    }

    /// Those that are not among others.
    pub fn not_in(&self, others: &Self) -> Vec<Salt> {
        self.0.iter().filter(|one| !others.0.contains(one)).copied().collect()
    }

    /// A place as the data plane has it.
    pub fn adopt(&mut self, at: &Listen) {
        let (address, bits) = at.vip();
        let vip = Vip { address, bits };
        self.0.retain(|one| one.vip != vip);
        self.0.push(Salt { vip, salt: at.salt });
    }

    /// These addresses have one each from now on. Returns what others had that are given to them, because
    /// no more were left, and what they had themselves and could not keep: those connections must be forgotten
    /// first.
    pub fn follow(&mut self, addresses: &[Vip]) -> Vec<Salt> {
        let wanted: HashSet<&Vip> = addresses.iter().collect();
        let has: HashSet<&Vip> = self.0.iter().map(|one| &one.vip).collect();
        // Nothing comes or goes, as with most services at most reloads.
        if has == wanted {
            return Vec::new();
        }
        let mut taken = Taken::default();
        self.0.iter().for_each(|one| taken.add(one));
        let (mut kept, left): (Vec<Salt>, Vec<Salt>) =
            self.0.iter().partition(|one| wanted.contains(&one.vip));
        // Of those that share one anyway nothing is kept.
        let (left, shared): (Vec<Salt>, Vec<Salt>) =
            left.into_iter().partition(|one| taken.is_alone(one));
        let mut left = VecDeque::from(left);
        shared.iter().for_each(|one| taken.remove(one));
        let known: HashSet<Vip> = kept.iter().map(|one| one.vip).collect();
        let mut given = Vec::new();
        for vip in addresses.iter().filter(|vip| !known.contains(vip)) {
            let mut one = Salt { vip: *vip, salt: 0 };
            if let Some(salt) =
                one.split_off(&mut left).or_else(|| one.grown(&mut left, &mut taken))
            {
                one.salt = salt;
                given.extend(one.ended(&mut left, &mut taken));
                kept.push(one);
                continue;
            }
            let mut free = one.beside(&kept, &mut taken).or_else(|| taken.free(&one));
            while free.is_none() {
                let oldest = left.iter().position(|old| old.is_ipv4() == one.is_ipv4());
                let Some(oldest) = oldest.and_then(|at| left.remove(at)) else { break };
                taken.remove(&oldest);
                given.push(oldest);
                free = taken.free(&one);
            }
            // Of more addresses than there are salts some share states.
            one.salt = free.unwrap_or(0);
            taken.add(&one);
            given.extend(one.ended(&mut left, &mut taken));
            kept.push(one);
        }
        given.extend(left.drain(..left.len().saturating_sub(MOST_KEPT)));
        self.0 = left.into_iter().chain(kept).collect();
        given
    }

    /// The places of a service. With affinity by client nothing comes of them: all addresses lead a client to
    /// one backend.
    pub fn places(&self, service: &Service) -> Vec<Listen> {
        let salt = |at: &Listen| {
            let (address, bits) = at.vip();
            self.get(&Vip { address, bits })
        };
        // Of any port it needs no saying.
        let fragments = service.fragments_by_source && service.port.is_some();
        let places = service.places().into_iter();
        places.map(|at| Listen { salt: salt(&at), fragments, ..at }).collect()
    }

    /// That of one of the addresses.
    pub fn get(&self, vip: &Vip) -> u16 {
        self.0.iter().find(|one| one.vip == *vip).map_or(0, |one| one.salt)
    }
}

/// The first addresses of both halves of a prefix.
fn halves(vip: &Vip) -> [IpAddr; 2] {
    let high = match vip.address {
        IpAddr::V4(low) => Ipv4Addr::from_bits(low.to_bits() | 1 << (31 - vip.bits)).into(),
        IpAddr::V6(low) => Ipv6Addr::from_bits(low.to_bits() | 1 << (127 - vip.bits)).into(),
    };
    [vip.address, high]
}

/// How many have each salt, of IPv4 and of IPv6.
struct Taken([Vec<u32>; 2]);

impl Default for Taken {
    fn default() -> Self {
        Self([vec![0; 1 << 16], vec![0; 1 << 16]])
    }
}

impl Taken {
    fn of(&mut self, one: &Salt) -> &mut [u32] {
        let range = one.range();
        &mut self.0[usize::from(one.is_ipv4())][(*range.start()).into()..=(*range.end()).into()]
    }

    fn add(&mut self, one: &Salt) {
        self.of(one).iter_mut().for_each(|n| *n += 1);
    }

    fn remove(&mut self, one: &Salt) {
        self.of(one).iter_mut().for_each(|n| *n -= 1);
    }

    fn is_alone(&mut self, one: &Salt) -> bool {
        self.of(one).iter().all(|n| *n == 1)
    }

    fn is_vacant(&mut self, one: &Salt) -> bool {
        self.of(one).iter().all(|n| *n == 0)
    }

    /// The first salt that an address could have for itself.
    fn free(&self, one: &Salt) -> Option<u16> {
        let mut all = self.0[usize::from(one.is_ipv4())].chunks(one.step());
        let free = all.position(|salts| salts.iter().all(|n| *n == 0))?;
        Some((free * one.step()) as u16)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Config;

    /// Services by name, address and the line that says on which port.
    pub(in crate::engine) fn listening(services: &[(&str, &str, &str)]) -> Vec<Service> {
        let mut text = "[balancer]\ninterfaces = [\"eth0\"]\n".to_owned();
        for (name, vip, port) in services {
            text += &format!(
                "[[service]]\nname = {name:?}\nvip = {vip}\n{port}\n[service.check]\n\
                 enabled = false\n[[service.backend]]\nname = \"b\"\naddress = \"10.9.0.1\"\n"
            );
        }
        Config::parse(&text, "weir.toml").unwrap_or_else(|error| panic!("{error}")).services
    }

    fn services(services: &[(&str, &str, &str)]) -> Vec<Service> {
        let ports: Vec<String> =
            services.iter().map(|(.., port)| format!("port = {port}")).collect();
        let named = services.iter().zip(&ports);
        let named: Vec<_> = named.map(|((name, vip, _), port)| (*name, *vip, &**port)).collect();
        listening(&named)
    }

    /// By what they listen on, not by their names; where one is divided, the larger part is it.
    #[test]
    fn a_service_is_the_one_that_it_has_most_places_in_common_with() {
        let before = services(&[
            ("a", r#"["10.0.0.1", "10.0.0.2", "10.0.0.3"]"#, "80"),
            ("b", r#"["10.0.0.4", "10.0.0.5"]"#, "80"),
            ("range", r#""10.0.0.6""#, r#""8000-8999""#),
        ]);
        let before: Vec<&Service> = before.iter().collect();
        let after = services(&[
            ("b", r#"["10.0.0.3", "10.0.0.4"]"#, "80"),
            ("new", r#"["10.0.0.1", "10.0.0.2"]"#, "80"),
            ("other", r#""10.0.0.9""#, "80"),
            ("wider", r#""10.0.0.6""#, r#""8003-9002""#),
        ]);
        assert_eq!(pair(&before, &after), [Some(1), Some(0), None, Some(2)]);
    }

    fn vips(vips: &[&str]) -> Vec<Vip> {
        vips.iter().map(|vip| vip.parse().expect("an address or a prefix")).collect()
    }

    /// What these addresses have, and whose it was before.
    fn follow(salts: &mut Salts, addresses: &[&str]) -> (Vec<u16>, Vec<String>) {
        let addresses = vips(addresses);
        let given = salts.follow(&addresses);
        let of = |vip: &Vip| salts.0.iter().find(|one| one.vip == *vip).expect("it has one").salt;
        let all = addresses.iter().map(of).collect();
        (all, given.iter().map(|one| one.vip.to_string()).collect())
    }

    /// An address that stays keeps its salt, whatever comes and goes beside it, and one that comes back has
    /// the one that it had; the first one of a family has none.
    #[test]
    fn salts_stay_with_their_addresses() {
        let mut salts = Salts::default();
        let none = Vec::<String>::new();
        let first = follow(&mut salts, &["10.0.0.1", "2001:db8::1"]);
        assert_eq!(first, (vec![0, 0], none.clone()));
        let second = follow(&mut salts, &["10.0.0.7", "10.0.0.1", "10.0.0.2", "2001:db8::1"]);
        assert_eq!(second, (vec![6, 0, 3, 0], none.clone()));
        assert_eq!(follow(&mut salts, &["10.0.0.2", "10.0.0.7"]), (vec![3, 6], none.clone()));
        // What was given up is not given to another one while there are others.
        assert_eq!(follow(&mut salts, &["10.0.0.2", "10.0.0.8"]), (vec![3, 9], none.clone()));
        assert_eq!(follow(&mut salts, &["10.0.0.7", "10.0.0.1"]), (vec![6, 0], none.clone()));
        // The addresses of a prefix have a salt each.
        let nets = ["10.0.0.1", "10.1.0.0/24", "10.0.0.2", "10.2.0.0/25"];
        assert_eq!(follow(&mut Salts::default(), &nets), (vec![0, 256, 3, 128], none));
        let ranges = services(&[("a", r#"["10.0.0.1", "10.0.0.2"]"#, r#""8000-8999""#)]);
        let all = Salts::of(&ranges[0]).places(&ranges[0]);
        assert!(
            all.len() > 4 && all.iter().all(|at| at.salt == 3 * u16::from(at.address[15] == 2))
        );
    }

    /// Parts of a prefix keep what they had in it, and so does what grows, where there is room.
    #[test]
    fn what_narrows_and_grows_keeps_its_salts() {
        let none = Vec::<String>::new();
        let mut salts = Salts::default();
        follow(&mut salts, &["10.0.0.1", "10.3.0.0/24"]);
        let parts = ["10.0.0.1", "10.3.0.128/25", "10.3.0.9", "10.3.0.64/26"];
        assert_eq!(
            follow(&mut salts, &parts),
            (vec![0, 256 + 128, 256 + 9, 256 + 64], none.clone())
        );
        assert_eq!(follow(&mut salts, &["10.3.0.0/24"]), (vec![256], none.clone()));
        // Beside it is room only for as much as there is.
        assert_eq!(
            follow(&mut salts, &["10.3.0.0/24", "10.4.0.0/24"]),
            (vec![256, 512], none.clone())
        );
        assert_eq!(follow(&mut salts, &["10.3.0.0/24", "10.4.0.0/23"]).0, [256, 512]);
        // What it had is forgotten, as its addresses come under others.
        let given = vec!["10.4.0.0/23".to_owned()];
        assert_eq!(follow(&mut salts, &["10.3.0.0/24", "10.4.0.0/22"]), (vec![256, 1024], given));
    }

    /// Whatever place in it the addresses have that a prefix is put around, all keep what they had, and have it still
    /// when it narrows again.
    #[test]
    fn a_prefix_around_addresses_has_what_they_had() {
        let none = Vec::<String>::new();
        let mut salts = Salts::default();
        assert_eq!(follow(&mut salts, &["10.9.1.1"]), (vec![0], none.clone()));
        assert_eq!(follow(&mut salts, &["10.9.1.0/24"]), (vec![1], none.clone()));
        let two = ["10.9.1.1", "10.9.1.2"];
        assert_eq!(follow(&mut salts, &two), (vec![0, 3], none.clone()));
        assert_eq!(follow(&mut salts, &["10.9.1.0/24"]), (vec![1], none.clone()));
        // From nothing, and in the other family.
        let mut salts = Salts::default();
        let six = ["2001:db8::9", "2001:db8::a", "2001:db8::40/122"];
        assert_eq!(follow(&mut salts, &six), (vec![0, 3, 73], none.clone()));
        assert_eq!(follow(&mut salts, &["2001:db8::/112"]), (vec![9], none));
    }

    /// Where there is no room the address is told apart otherwise from then on, and what went by the old salt is told;
    /// it is not what the address has when the prefix narrows again.
    #[test]
    fn what_has_no_room_to_grow_ends() {
        let none = Vec::<String>::new();
        let mut salts = Salts::default();
        assert_eq!(follow(&mut salts, &["10.0.0.1", "10.9.1.1"]), (vec![0, 1], none.clone()));
        let wider = ["10.0.0.1", "10.9.1.0/24"];
        assert_eq!(follow(&mut salts, &wider), (vec![0, 256], vec!["10.9.1.1".to_owned()]));
        assert_eq!(follow(&mut salts, &["10.0.0.1", "10.9.1.1"]), (vec![0, 257], none));
    }

    /// Where no more are left the one that was given up the longest ago is next, and is told, so that what is
    /// known of its connections goes first.
    #[test]
    fn the_oldest_is_given_again_where_no_more_are_left() {
        let mut salts = Salts::default();
        assert_eq!(follow(&mut salts, &["10.0.0.0/17", "10.0.128.0/18"]).0, [0, 0x8000]);
        assert_eq!(follow(&mut salts, &["10.1.0.0/18"]), (vec![0xc000], vec![]));
        let again = follow(&mut salts, &["10.1.0.0/18", "10.2.0.0/18"]);
        assert_eq!(again, (vec![0xc000, 0], vec!["10.0.0.0/17".to_owned()]));
        // It has nothing left to come back to.
        let back = follow(&mut salts, &["10.2.0.0/18", "10.0.0.0/17"]);
        assert_eq!(back.0, [0, 0x8000]);
        assert_eq!(back.1, ["10.0.128.0/18".to_owned(), "10.1.0.0/18".to_owned()]);
        // More than there are: they share, and nobody's is given to another.
        let mut salts = Salts::default();
        assert_eq!(follow(&mut salts, &["10.1.0.0/16", "10.0.0.1"]), (vec![0, 0], vec![]));
        assert_eq!(follow(&mut salts, &["10.1.0.0/16"]), (vec![0], vec![]));
    }

    /// A state is of one address, and of no other one, as long as there is one port.
    #[test]
    fn a_state_is_told_from_those_of_other_addresses() {
        let service = &services(&[("a", r#"["10.0.0.1", "10.1.0.0/24"]"#, "80")])[0];
        let salts = Salts::of(service);
        let places = salts.places(service);
        for (at, to) in [(0, [10, 0, 0, 1]), (1, [10, 1, 0, 0]), (1, [10, 1, 0, 255])] {
            let flow = weir_wire::FlowKey::new(
                ([192, 0, 2, 1], 4000).into(),
                (to, 80).into(),
                weir_wire::Protocol::Tcp,
            );
            let key = StateKey::of_flow_to(&flow, places[at].salt_of(&flow.dst));
            let has: Vec<bool> = salts.0.iter().map(|one| one.has(&key, 80)).collect();
            assert_eq!(has, [at == 0, at == 1]);
        }
    }

    /// What a restart finds is what was there, also what addresses had that are gone.
    #[test]
    fn salts_are_kept_where_they_are_not_the_usual_ones() {
        let both = &services(&[("a", r#"["10.0.0.1", "2001:db8::1"]"#, "80")])[0];
        let one = &services(&[("a", r#""10.0.0.1""#, "80")])[0];
        let mut salts = Salts::of(both);
        assert!(salts.are_plain(both) && Salts::of(one).are_plain(one));
        // An address of the other family that comes next is not the first one.
        salts.follow(&one.addresses());
        assert!(!salts.are_plain(one), "{salts:?}");
        let text = serde_json::to_string(&salts).expect("JSON");
        assert_eq!(serde_json::from_str::<Salts>(&text).expect("the same"), salts);
    }
}
