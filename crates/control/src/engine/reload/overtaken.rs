//! Connections that a change loses while their service listens for them as before: it hands them to another
//! service, or tells them apart otherwise. Whose a packet is, the places of all services say together: one that is
//! added, or gets others, may take what another one has had, of which nothing else changes. And a prefix that an
//! address has grown to may have no room for its salt.

use super::words::in_words;
use crate::config::{Affinity, Service, Vip};
use crate::engine::Engine;
use crate::engine::service::ServiceRuntime;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use weir_plane::{Listen, Plane};
use weir_steering::{BackendId, Phase, StateKey};
use weir_wire::unmap_address;

/// Places that are named of those that others take.
const MOST_NAMED: usize = 5;

/// A part of what a service has, which another one takes.
#[derive(Clone, Debug, PartialEq)]
struct Taken {
    at: Listen,
    by: String,
}

/// What a service loses, to others or as it tells it apart otherwise, while it listens there as before.
#[derive(Debug)]
pub(in crate::engine) struct Loss {
    /// Why its connections break, beginning with the field.
    pub why: String,
    /// How many do, in words.
    pub how_many: String,
    /// One of those that take it, or the service itself.
    pub by: String,
    /// Where.
    pub at: Vec<Listen>,
}

/// How many connections break: so many at least and at most, as not every state says where its connection is to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Broken {
    least: usize,
    most: usize,
}

impl Broken {
    /// Their number, if it is known.
    pub fn exactly(self) -> Option<usize> {
        (self.least == self.most).then_some(self.most)
    }

    /// How many there may be, if their number is not known.
    pub fn at_most(self) -> Option<usize> {
        (self.least < self.most).then_some(self.most)
    }

    fn count(&mut self, fate: u8) {
        self.least += usize::from(fate == GONE);
        self.most += usize::from(fate & GONE != 0);
    }
}

impl<P: Plane> Engine<P> {
    /// For each wanted service what it loses of the running one that it is, of what it still listens on. `pairs`: that
    /// one.
    pub(super) fn losses(
        &self,
        wanted: &[Service],
        pairs: &[Option<&ServiceRuntime>],
    ) -> Vec<Option<Loss>> {
        let there: Vec<&Service> = self.services.values().map(|now| &now.configured).collect();
        let before: Vec<Option<&Service>> =
            pairs.iter().map(|now| now.map(|now| &now.configured)).collect();
        let taken = overtaken(&there, &before, wanted);
        let all = pairs.iter().zip(wanted).zip(taken);
        all.map(|((now, wanted), taken)| self.loss((*now)?, wanted, &taken)).collect()
    }

    fn loss(&self, now: &ServiceRuntime, wanted: &Service, taken: &[Taken]) -> Option<Loss> {
        let retold = retold(now, wanted);
        // What packets do not follow breaks nothing.
        if taken.is_empty() && retold.is_empty() || self.plane.table_bytes(now.number) == 0 {
            return None;
        }
        let by = taken.first().map_or(&wanted.name, |one| &one.by).clone();
        let at: Vec<Listen> =
            taken.iter().map(|one| one.at).chain(retold.iter().copied()).collect();
        let broken = self.count_broken(now, &[], &at);
        let how_many: String = match broken {
            // Others of the fleet may know some, and all must come to one judgement.
            Some(Broken { most: 0, .. }) if self.is_of_fleet() => {
                "no connection is known here now, but those of other balancers break".into()
            }
            Some(Broken { most: 0, .. }) => return None,
            Some(Broken { least, most }) if least < most => {
                format!("up to {}", in_words(Some(most), "breaks", "break"))
            }
            broken => in_words(broken.map(|broken| broken.most), "breaks", "break"),
        };
        let others = (!taken.is_empty()).then(|| in_words_of(taken));
        let own = (!retold.is_empty()).then(|| retold_in_words(&retold, wanted));
        let why: Vec<String> = others.into_iter().chain(own).collect();
        Some(Loss { why: why.join("; "), how_many, by, at })
    }

    /// How many connections of a service break if backends leave, and what is to some of its places is another's
    /// or nobody's; without those that have ended. None if nobody knows.
    pub(in crate::engine) fn count_broken(
        &self,
        now: &ServiceRuntime,
        leaving: &[BackendId],
        gone: &[Listen],
    ) -> Option<Broken> {
        let method = now.in_force.method.id();
        let fates = Fates::of(now, gone);
        let mut broken = Broken::default();
        if method.needs().states {
            now.builder.each_state(&mut |key, known| {
                if known.phase != Phase::Closing {
                    let leaves = leaving.contains(&known.backend);
                    broken.count(if leaves { GONE } else { fates.of_state(key) });
                }
            });
            Some(broken)
        } else if method.info().tracks_all && leaving.is_empty() {
            let known = self.plane.connections(now.number).ok()?;
            let open = known.iter().filter(|(_, flow)| !flow.ended);
            open.for_each(|(state, _)| broken.count(fates.of_state(&state.key)));
            Some(broken)
        } else {
            None
        }
    }
}

/// What a service has of addresses that it has in other prefixes from now on, under other salts: it knows nothing of
/// their connections any more.
fn retold(now: &ServiceRuntime, wanted: &Service) -> Vec<Listen> {
    let (before, addresses) = (now.configured.addresses(), wanted.addresses());
    // All addresses lead a client to one backend.
    if before == addresses || now.in_force.affinity == Affinity::Client {
        return Vec::new();
    }
    let stay: HashSet<&Vip> = addresses.iter().collect();
    let mut salts = now.salts.clone();
    salts.follow(&addresses);
    let after = salts.places(wanted);
    let mut retold = Vec::new();
    for place in now.salts.places(&now.configured) {
        let (address, bits) = place.vip();
        if stay.contains(&Vip { address, bits }) {
            continue;
        }
        for other in &after {
            let Some(part) = common(&place, other) else { continue };
            let alike = place.salt_of(&part.address) == other.salt_of(&part.address);
            // Of more addresses than there are salts, several have one, and others in another prefix.
            let divides = host_bits(&place).max(host_bits(other)) <= 16;
            if !(alike && divides) {
                retold.push(part.place());
            }
        }
    }
    retold.sort_unstable();
    retold
}

/// A connection of a state may be to what is another's, or nobody's, from now on.
const GONE: u8 = 1;
/// It may be to what stays.
const STAYS: u8 = 2;

/// What becomes of the connections of states, by what these have in the place of the destination port: of IPv6
/// and of IPv4.
struct Fates {
    of: [Vec<u8>; 2],
    by_client: bool,
}

impl Fates {
    fn of(now: &ServiceRuntime, gone: &[Listen]) -> Self {
        // A client's state says of none of its connections where it is to.
        let by_client = now.in_force.affinity == Affinity::Client;
        let each = if by_client { 1 } else { 1 << 16 };
        let mut fates = Self { of: [vec![0; each], vec![0; each]], by_client };
        for place in now.salts.places(&now.configured) {
            let whole = place.place();
            let parts: Vec<Listen> = gone.iter().filter_map(|one| common(one, &whole)).collect();
            for part in &parts {
                fates.mark(&place, &values(&place, part), GONE);
            }
            if parts.contains(&whole) {
                continue;
            }
            let all = values(&place, &whole);
            if by_client || !tells_all(&whole) {
                fates.mark(&place, &all, STAYS);
                continue;
            }
            let parts: Vec<RangeInclusive<u16>> =
                parts.iter().map(|part| values(&place, part)).collect();
            for value in all.filter(|value| !parts.iter().any(|part| part.contains(value))) {
                fates.mark(&place, &(value..=value), STAYS);
            }
        }
        fates
    }

    fn mark(&mut self, place: &Listen, values: &RangeInclusive<u16>, fate: u8) {
        let of = &mut self.of[usize::from(unmap_address(&place.address).is_ipv4())];
        let of = match self.by_client {
            true => &mut of[..],
            false => &mut of[usize::from(*values.start())..=usize::from(*values.end())],
        };
        of.iter_mut().for_each(|one| *one |= fate);
    }

    fn of_state(&self, key: &StateKey) -> u8 {
        let of = &self.of[usize::from(unmap_address(&key.address).is_ipv4())];
        of[if self.by_client { 0 } else { usize::from(key.dst_port) }]
    }
}

/// Bits of an address of a place, of those that a state can have, that are not the place's.
fn host_bits(at: &Listen) -> u32 {
    128 - u32::from(at.address_bits)
}

/// Bits of a port that are not the place's.
fn open_bits(at: &Listen) -> u32 {
    16 - u32::from(at.port_bits)
}

/// Whether a state at a place says address and port of its connection: what it has in the place of the port is
/// of one address and port alone.
fn tells_all(at: &Listen) -> bool {
    host_bits(at) <= 16 && (host_bits(at) == 0 || open_bits(at) == 0)
}

/// All that states of connections to a part of a place have in the place of the destination port.
fn values(place: &Listen, part: &Listen) -> RangeInclusive<u16> {
    let base = place.salt_of(&part.address) ^ part.port;
    let open = host_bits(part).min(16).max(open_bits(part));
    let mask = ((1_u32 << open) - 1) as u16;
    base & !mask..=base | mask
}

/// What packets could be for both.
fn common(one: &Listen, other: &Listen) -> Option<Listen> {
    one.meets(other).then(|| {
        let longer = if one.address_bits < other.address_bits { other } else { one };
        let finer = if one.port_bits < other.port_bits { other } else { one };
        Listen { port: finer.port, port_bits: finer.port_bits, ..*longer }
    })
}

/// The place of fewer bits that a place is in.
fn cut(at: &Listen, (address_bits, port_bits): (u8, u8)) -> Listen {
    let kept = u128::MAX.checked_shl(128 - u32::from(address_bits)).unwrap_or(0);
    let ports = u32::from(u16::MAX) << (16 - u32::from(port_bits));
    Listen {
        address: (u128::from_be_bytes(at.address) & kept).to_be_bytes(),
        address_bits,
        port: at.port & ports as u16,
        port_bits,
        ..*at
    }
}

/// Whose places are, by names.
struct Owners<'a> {
    at: HashMap<Listen, &'a str>,
    kinds: BTreeSet<(u8, u8)>,
}

impl<'a> Owners<'a> {
    fn of(services: impl IntoIterator<Item = &'a Service>) -> Self {
        let all = services.into_iter().flat_map(|service| {
            service.places().into_iter().map(move |at| (at, service.name.as_str()))
        });
        let at: HashMap<Listen, &str> = all.collect();
        let kinds = at.keys().map(Listen::exactness).collect();
        Self { at, kinds }
    }

    /// The most exact place that a part is in, and whose it is.
    fn find(&self, part: &Listen) -> Option<(Listen, &'a str)> {
        let (addresses, ports) = part.exactness();
        let kinds = self.kinds.iter().rev();
        let mut wider = kinds.filter(|kind| kind.0 <= addresses && kind.1 <= ports);
        wider.find_map(|kind| {
            let at = cut(part, *kind);
            self.at.get(&at).map(|name| (at, *name))
        })
    }
}

/// For each wanted service what another one takes of what the running one has that it is (`pairs`), of all that
/// are `there`, and still listens on.
fn overtaken(
    there: &[&Service],
    pairs: &[Option<&Service>],
    wanted: &[Service],
) -> Vec<Vec<Taken>> {
    let mut taken: Vec<Vec<Taken>> = vec![Vec::new(); wanted.len()];
    let places: Vec<Vec<Listen>> = wanted.iter().map(Service::places).collect();
    let had = |now: &Option<&Service>| -> HashSet<Listen> {
        now.map(|now| now.places().into_iter().collect()).unwrap_or_default()
    };
    let had: Vec<HashSet<Listen>> = pairs.iter().map(had).collect();
    let is_new = |at: usize, place: &Listen| !had[at].contains(place);
    // Nobody has another place, as with most changes.
    if (0..wanted.len()).all(|at| !places[at].iter().any(|place| is_new(at, place))) {
        return taken;
    }
    let (before, after) = (Owners::of(there.iter().copied()), Owners::of(wanted));
    // What those listen on that are there already, by address.
    let mut losers: HashMap<Listen, Vec<(usize, Listen)>> = HashMap::new();
    for at in (0..wanted.len()).filter(|at| pairs[*at].is_some()) {
        for place in &places[at] {
            let address = cut(place, (place.address_bits, 0));
            losers.entry(address).or_default().push((at, *place));
        }
    }
    let lengths: BTreeSet<u8> = losers.keys().map(|address| address.address_bits).collect();
    for (taker, place) in
        places.iter().enumerate().flat_map(|(at, all)| all.iter().map(move |place| (at, place)))
    {
        let new = is_new(taker, place);
        let wider = lengths.iter().filter(|bits| **bits <= place.address_bits);
        let wider = wider.filter_map(|bits| losers.get(&cut(place, (*bits, 0))));
        for (at, other) in wider.flatten() {
            // What costs least comes first: many services may share an address.
            if *at == taker || other.exactness() >= place.exactness() {
                continue;
            }
            let Some(part) = common(place, other) else { continue };
            if !new && !is_new(*at, other) {
                continue;
            }
            let parts: Vec<Listen> = match is_new(*at, other) {
                true => had[*at].iter().filter_map(|own| common(own, &part)).collect(),
                // No two places of a service have anything in common.
                false => vec![part],
            };
            let name = pairs[*at].map(|now| now.name.as_str());
            for at_stake in parts {
                let was_its = before.find(&at_stake).map(|(_, owner)| owner) == name;
                if was_its && after.find(&at_stake).is_some_and(|(at, _)| at == *place) {
                    let by = wanted[taker].name.clone();
                    taken[*at].push(Taken { at: at_stake, by });
                }
            }
        }
    }
    let order = |one: &Taken| (one.by.clone(), one.at);
    taken.iter_mut().for_each(|all| all.sort_by_key(order));
    taken
}

/// Addresses, and the first and the last of their ports.
type Ports = ((IpAddr, u8), u16, u16);

fn place_words(((address, bits), first, last): &Ports) -> String {
    let vip = Vip { address: *address, bits: *bits };
    match (*first, *last) {
        (0, u16::MAX) => format!("{vip} (any port)"),
        (first, last) if first == last => format!("{vip} port {first}"),
        (first, last) => format!("{vip} ports {first}-{last}"),
    }
}

/// One place more. Blocks of ports that follow each other are told as one.
fn add_to(all: &mut Vec<Ports>, at: &Listen) {
    let (vip, first) = (at.vip(), at.port);
    let last = first | ((1_u32 << open_bits(at)) - 1) as u16;
    match all.last_mut() {
        Some(before) if before.0 == vip && before.2.checked_add(1) == Some(first) => {
            before.2 = last;
        }
        _ => all.push((vip, first, last)),
    }
}

fn named(all: &[Ports]) -> String {
    let mut named: Vec<String> = all.iter().take(MOST_NAMED).map(place_words).collect();
    if all.len() > MOST_NAMED {
        named.push(format!("{} more", all.len() - MOST_NAMED));
    }
    named.join(", ")
}

/// Why connections break that are told apart otherwise.
fn retold_in_words(retold: &[Listen], wanted: &Service) -> String {
    let mut all = Vec::new();
    retold.iter().for_each(|at| add_to(&mut all, at));
    format!(
        "vip: connections to {} end, as their salts are not free in {}; put other addresses and prefixes beside \
         what is there, which stays as it is then",
        named(&all),
        wanted.address_text()
    )
}

/// Why connections break by what others take.
fn in_words_of(taken: &[Taken]) -> String {
    let mut takers: Vec<(&str, Vec<Ports>)> = Vec::new();
    for Taken { at, by } in taken {
        if takers.last().is_none_or(|(last, _)| last != by) {
            takers.push((by.as_str(), Vec::new()));
        }
        if let Some((_, all)) = takers.last_mut() {
            add_to(all, at);
        }
    }
    let said: Vec<String> = takers
        .iter()
        .map(|(by, all)| format!("connections to {} come to service {by}", named(all)))
        .collect();
    let all = said.join(", ");
    let exactly = match takers.len() {
        1 => "which says more exactly what it takes",
        _ => "which say more exactly what they take",
    };
    format!("vip: {all}, {exactly}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::places::tests::listening as services;

    /// What the first one loses, in words.
    fn lost(before: &[(&str, &str, &str)], after: &[(&str, &str, &str)]) -> String {
        let (before, after) = (services(before), services(after));
        let there: Vec<&Service> = before.iter().collect();
        let named = |wanted: &Service| before.iter().find(|one| one.name == wanted.name);
        let pairs: Vec<Option<&Service>> = after.iter().map(named).collect();
        let taken = overtaken(&there, &pairs, &after);
        if taken[0].is_empty() { String::new() } else { in_words_of(&taken[0]) }
    }

    const ANY: &str = "any_port = true";
    const HTTP: &str = "port = 80";

    /// Whatever makes another service the more exact one, on either side.
    #[test]
    fn what_others_say_more_exactly_is_theirs() {
        let one = r#""10.0.0.1""#;
        let any = ("any", one, ANY);
        let said = lost(&[any], &[any, ("own", one, "port = 8100")]);
        assert_eq!(
            said,
            "vip: connections to 10.0.0.1 port 8100 come to service own, which says more exactly what it takes"
        );
        // A range grows, and what it had is no news.
        let (from, to) = ("port = \"8000-8063\"", "port = \"8000-8999\"");
        let said = lost(&[any, ("own", one, from)], &[any, ("own", one, to)]);
        assert!(said.contains("connections to 10.0.0.1 ports 8064-8999 come"), "{said}");
        // A second address.
        let net = ("net", r#""10.0.0.0/24""#, HTTP);
        let both = ("own", r#"["10.1.0.1", "10.0.0.9"]"#, HTTP);
        let said = lost(&[net, ("own", r#""10.1.0.1""#, HTTP)], &[net, both]);
        assert!(said.contains("connections to 10.0.0.9 port 80 come to service own"), "{said}");
        let part = ("part", r#""10.0.0.64/26""#, HTTP);
        assert!(lost(&[net], &[net, part]).contains("to 10.0.0.64/26 port 80 come"));
        // The other one stays as it is, and this one gets less exact.
        let (exact, wide) = (("a", one, HTTP), ("a", r#""10.0.0.0/24""#, HTTP));
        let said = lost(&[exact, any], &[wide, any]);
        assert!(said.contains("connections to 10.0.0.1 port 80 come to service any"), "{said}");
        let six = ("six", r#"["2001:db8::/64", "10.7.0.1"]"#, ANY);
        let own = ("own", r#"["2001:db8::1", "10.7.0.2"]"#, ANY);
        let said = lost(&[six], &[six, own]);
        assert!(said.contains("connections to 2001:db8::1 (any port) come"), "{said}");
    }

    /// What it did not have, does not have any more, or keeps, is not lost to anybody.
    #[test]
    fn nothing_else_is_lost() {
        let one = r#""10.0.0.1""#;
        let (any, own) = (("any", one, ANY), ("own", one, HTTP));
        assert_eq!(lost(&[any, own], &[any, own]), "");
        let (net, part) = (("net", r#""10.0.0.0/24""#, ANY), ("part", r#""10.0.0.0/25""#, HTTP));
        // A third one had it.
        assert_eq!(lost(&[net, own], &[net, ("other", one, HTTP)]), "");
        assert_eq!(lost(&[own, net], &[own, net, part]), "");
        assert_eq!(lost(&[own], &[own, any]), "");
        assert_eq!(lost(&[net], &[net, ("other", r#""10.0.1.1""#, ANY)]), "");
        // What it gives up is told by what it gives up.
        assert_eq!(lost(&[any], &[("any", one, HTTP), ("own", one, "port = 81")]), "");
    }
}
