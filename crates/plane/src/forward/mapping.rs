//! Connections under full NAT: which port of the balancer's each has towards its backend. The twin of
//! `bpf/forward/mapping.h`; `docs/forwarding.md` says why it is built so.
//!
//! A key and the flow give [`MAPPING_TRIES`] sources, always the same ones, and a source and the backend's end
//! give one place in the table. So the mapping of a packet is found from either side, nothing is chained, and
//! nothing has to be given back: a place whose connection has been silent for its time is vacant for whoever has
//! a source that leads there, and still its own until somebody comes.

use std::net::IpAddr;
use weir_hash::{HashKey, scale};
use weir_steering::BackendId;
use weir_wire::hash::{hash_address, ports_word};
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

/// Addresses of the balancer's that sources are taken from, of all services, at most.
pub const ORIGINS: usize = 256;
/// Ports that are tried for a connection.
pub const MAPPING_TRIES: u32 = 16;
/// log2 of the nanoseconds of a tick, by which mappings grow old.
pub const MAPPING_TICK_SHIFT: u32 = 30;

/// The sources that packets to a backend get.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ports {
    /// The number of the first address among the [`origins`](MappingRules::origins).
    pub first: u16,
    /// How many there are, one after the other.
    pub addresses: u16,
    /// The first port of each.
    pub first_port: u16,
    /// How many there are.
    pub ports: u32,
}

/// An address of the balancer's that packets under full NAT come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Origin {
    /// The address, of IPv4 or IPv6.
    pub address: IpAddr,
    /// The ports that are for connections, from this one
    pub first_port: u16,
    /// to this one; all others are the host's own.
    pub last_port: u16,
}

/// How long a mapping is kept, in ticks of 2^30 nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MappingTicks {
    /// As long as the backend has not answered.
    pub opening: u32,
    /// After both ends have closed the connection, or one has reset it.
    pub closed: u32,
    /// An open one of TCP.
    pub tcp: u32,
    /// One of UDP.
    pub udp: u32,
}

impl Default for MappingTicks {
    fn default() -> Self {
        Self { opening: 28, closed: 112, tcp: 6705, udp: 279 }
    }
}

/// What mappings are made by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappingRules {
    /// Who has it knows which ports connections get.
    pub key: HashKey,
    /// How long they are kept.
    pub ticks: MappingTicks,
    /// The balancer's addresses, by number.
    pub origins: Vec<Option<Origin>>,
}

impl Default for MappingRules {
    fn default() -> Self {
        Self { key: HashKey::from_seed(0), ticks: MappingTicks::default(), origins: Vec::new() }
    }
}

/// What is known of a connection under full NAT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// From the client to the service.
    pub flow: FlowKey,
    /// Where it is.
    pub backend: BackendId,
    /// Of the backend, when it began.
    pub incarnation: u32,
    /// The number of our address towards it.
    pub origin: u16,
    /// The port of that address that packets to the backend come from.
    pub port: u16,
    /// The tick at which it began.
    pub since: u32,
    /// That of its latest packet.
    pub last: u32,
    /// What has happened to it.
    pub state: MappingState,
}

/// What has happened to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MappingState {
    /// The backend has answered.
    pub answered: bool,
    /// The client has sent FIN.
    pub client_ended: bool,
    /// The backend has.
    pub backend_ended: bool,
    /// One of them has sent RST.
    pub reset: bool,
}

impl MappingState {
    /// Whether the connection is over.
    pub fn has_ended(self) -> bool {
        self.reset || (self.client_ended && self.backend_ended)
    }
}

impl Mapping {
    /// Whether its time is up. `there`: its backend is, in the use of the number that it began in; a connection
    /// whose backend has gone is over.
    pub fn is_vacant(&self, ticks: &MappingTicks, now: u32, there: bool) -> bool {
        let most = match self.state {
            MappingState { answered: false, .. } => ticks.opening,
            state if state.has_ended() || !there => ticks.closed,
            _ if self.flow.protocol == Protocol::Tcp => ticks.tcp,
            _ => ticks.udp,
        };
        // A clock that is a little behind another one makes nobody old.
        now.wrapping_sub(self.last) as i32 > most as i32
    }

    /// Notes a packet of it.
    fn touch(&mut self, signs: &Signs, now: u32) {
        if signs.quoted {
            return;
        }
        if signs.flags.intersects(TcpFlags::SYN) && !signs.backend && self.state.has_ended() {
            (self.state, self.since) = (MappingState::default(), now);
        }
        self.state.answered |= signs.backend;
        if signs.flags.intersects(TcpFlags::FIN) {
            match signs.backend {
                true => self.state.backend_ended = true,
                false => self.state.client_ended = true,
            }
        }
        self.state.reset = signs.flags.intersects(TcpFlags::RST);
        self.last = now;
    }
}

/// What a packet does with its mapping.
#[derive(Clone, Copy, Debug)]
pub struct Signs {
    /// Its flags; none in UDP.
    pub flags: TcpFlags,
    /// It is the backend's.
    pub backend: bool,
    /// An error quotes it: nothing is made or noted.
    pub quoted: bool,
}

/// Where a connection is, as its mapping has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The backend's number.
    pub backend: BackendId,
    /// Counts the uses of the number.
    pub incarnation: u32,
    /// Address of the backend.
    pub address: IpAddr,
    /// Its port; none: that of the service.
    pub port: Option<u16>,
    /// The sources that its packets get.
    pub ports: Ports,
}

/// Whether a client can have sent a packet of this flow to a backend at an address, with a port or that of the
/// service. What no single host has sent is answered to nobody; what the backend itself has sent, from the port that
/// it is to come to, would be answered by the backend to itself without end. From another port its host is a client
/// like others. The twin of `has_client` in `bpf/forward/full_nat.h`.
pub fn has_client(flow: &FlowKey, address: IpAddr, port: Option<u16>) -> bool {
    let backend = (map_address(address), port.unwrap_or(flow.dst_port));
    flow.is_from_host() && (flow.src, flow.src_port) != backend
}

/// A source that a flow may have, and where its mapping stands then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its place in the table.
    pub place: usize,
    /// The number of the address.
    pub origin: u16,
    /// The port of that address that packets would come from.
    pub port: u16,
}

/// The mixers' words of a backend's end.
fn hash_end(key: &HashKey, address: &[u8; 16], port: u16, protocol: Protocol) -> u64 {
    let word = u32::from(port.to_be()) | u32::from(protocol.number()) << 16;
    hash_address(key, address, word)
}

fn place(key: &HashKey, end: u64, origin: u16, port: u16, places: usize) -> usize {
    let source = u64::from(origin) << 16 | u64::from(port.to_be());
    scale((key.mix(end ^ source) >> 32) as u32, places as u32) as usize
}

/// The sources that a flow to this backend may have, in their order, in a table of so many places.
pub fn candidates(
    key: &HashKey,
    flow: &FlowKey,
    to: &Target,
    places: usize,
) -> impl Iterator<Item = Candidate> {
    let key = *key;
    let Ports { first, addresses, first_port, ports } = to.ports;
    let listens = to.port.unwrap_or(flow.dst_port);
    let end = hash_end(&key, &map_address(to.address), listens, flow.protocol);
    let ends = ports_word(flow.src_port, flow.dst_port);
    let client = hash_address(&key, &flow.src, ends).wrapping_add(end);
    let service = hash_address(&key, &flow.dst, flow.protocol.number().into());
    let hash = key.mix(client ^ service);
    (0..MAPPING_TRIES).map(move |number| {
        let hash = key.mix(hash ^ u64::from(number));
        let origin = first + scale((hash >> 32) as u32, addresses.into()) as u16;
        let port = first_port.wrapping_add(scale(hash as u32, ports) as u16);
        Candidate { place: place(&key, end, origin, port, places), origin, port }
    })
}

/// Where the mapping of a packet from a backend stands, which comes to the address of ours with this number, in a
/// table of so many places.
pub fn place_of_answer(key: &HashKey, answer: &FlowKey, origin: u16, places: usize) -> usize {
    let end = hash_end(key, &answer.src, answer.src_port, answer.protocol);
    place(key, end, origin, answer.dst_port, places)
}

/// The table of a plane in memory.
#[derive(Clone, Debug, Default)]
pub struct Mappings {
    /// What mappings are made by.
    pub rules: MappingRules,
    /// The mapping at each place of the table, of which a connection has a few to choose from; `None`:
    /// free.
    pub places: Vec<Option<Mapping>>,
}

impl Mappings {
    /// The mapping of a flow to its backend.
    fn find(&mut self, flow: &FlowKey, to: &Target) -> Option<&mut Mapping> {
        let mut all = candidates(&self.rules.key, flow, to, self.places.len());
        let found = all.find(|candidate| {
            self.places[candidate.place].is_some_and(|one| {
                one.flow == *flow
                    && (one.backend, one.incarnation) == (to.backend, to.incarnation)
                    && (one.origin, one.port) == (candidate.origin, candidate.port)
            })
        })?;
        self.places[found.place].as_mut()
    }

    /// The number of the address, and the port, that a flow has on its way to a backend; a mapping is made if
    /// there is none. None: all ports that it could have are in use, or an error quotes a flow that has none.
    /// `known`: whether the backend of a mapping is still there.
    pub fn there(
        &mut self,
        flow: &FlowKey,
        to: &Target,
        signs: &Signs,
        now: u32,
        known: impl Fn(&Mapping) -> bool,
    ) -> Option<(u16, u16)> {
        if let Some(found) = self.find(flow, to) {
            found.touch(signs, now);
            return Some((found.origin, found.port));
        }
        if signs.quoted || self.places.is_empty() {
            return None;
        }
        let ticks = self.rules.ticks;
        let Candidate { place, origin, port } =
            candidates(&self.rules.key, flow, to, self.places.len()).find(|candidate| {
                let held = self.places[candidate.place];
                held.is_none_or(|one| one.is_vacant(&ticks, now, known(&one)))
            })?;
        let state = MappingState::default();
        let Target { backend, incarnation, .. } = *to;
        let (since, last) = (now, now);
        let flow = *flow;
        let mut made = Mapping { flow, backend, incarnation, origin, port, since, last, state };
        made.touch(signs, now);
        self.places[place] = Some(made);
        Some((origin, port))
    }

    /// The mapping of a packet from a backend to one of our addresses, if it comes to a port that is for
    /// connections: none inside, if no connection has it. `known`: address and port of a mapping's backend, if
    /// it is still there.
    pub fn back(
        &mut self,
        flow: &FlowKey,
        signs: &Signs,
        now: u32,
        known: impl Fn(&Mapping) -> Option<(IpAddr, u16)>,
    ) -> Option<Option<Mapping>> {
        let own = |origin: &Option<Origin>| {
            origin.is_some_and(|origin| map_address(origin.address) == flow.dst)
        };
        let number = self.rules.origins.iter().position(own)?;
        let Origin { first_port, last_port, .. } = self.rules.origins[number]?;
        if !(first_port..=last_port).contains(&flow.dst_port) {
            return None;
        }
        let (origin, port) = (number as u16, flow.dst_port);
        let at = place_of_answer(&self.rules.key, flow, origin, self.places.len());
        let found = self.places.get_mut(at).and_then(Option::as_mut).filter(|one| {
            (one.origin, one.port, one.flow.protocol) == (origin, port, flow.protocol)
                && known(one).is_some_and(|(address, port)| {
                    (map_address(address), port) == (flow.src, flow.src_port)
                })
        });
        Some(found.map(|found| {
            found.touch(signs, now);
            *found
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::SocketAddr;

    fn flow(number: u32) -> FlowKey {
        let client =
            (std::net::Ipv4Addr::from(0x0a08_0000 | number >> 4), 1000 + number as u16 % 16);
        FlowKey::new(client.into(), "10.9.0.1:80".parse().expect("an address"), Protocol::Tcp)
    }

    fn target() -> Target {
        let ports = Ports { first: 0, addresses: 2, first_port: 1024, ports: 31_744 };
        let address = [10, 6, 0, 1].into();
        Target { backend: BackendId::of(3), incarnation: 1, address, port: Some(8080), ports }
    }

    fn table(places: usize) -> Mappings {
        let origin = |last| {
            Some(Origin { address: [10, 0, 0, last].into(), first_port: 1024, last_port: 32_767 })
        };
        let key = HashKey::from_seed(7);
        let rules =
            MappingRules { key, origins: vec![origin(2), origin(3)], ..MappingRules::default() };
        Mappings { rules, places: vec![None; places] }
    }

    fn signs(flags: TcpFlags, backend: bool) -> Signs {
        Signs { flags, backend, quoted: false }
    }

    fn answer(origin: u16, port: u16) -> FlowKey {
        let own = (std::net::Ipv4Addr::new(10, 0, 0, 2 + origin as u8), port);
        FlowKey::new("10.6.0.1:8080".parse().expect("an address"), own.into(), Protocol::Tcp)
    }

    /// What a flow to the backend becomes, which is there.
    fn there(table: &mut Mappings, number: u32, signs: &Signs, now: u32) -> Option<(u16, u16)> {
        table.there(&flow(number), &target(), signs, now, |_| true)
    }

    fn known(_: &Mapping) -> Option<(IpAddr, u16)> {
        Some(([10, 6, 0, 1].into(), 8080))
    }

    const SYN: TcpFlags = TcpFlags::SYN;

    /// Whoever has a port has it alone, keeps it, and its answers find it; all but a few in ten thousand have one
    /// where there are twice as many places. Sources lead to places at random, so some places have more of them
    /// than others and are taken sooner: in the end a source is free with 0.41, not 0.5, and a connection finds
    /// none of 16 with 0.59^16 = 0.0002.
    #[test]
    fn every_connection_has_a_port_and_answers_find_it() {
        let mut table = table(16_384);
        let mut seen = HashSet::new();
        let mut held = Vec::new();
        for number in 0..8_192 {
            let Some(got) = there(&mut table, number, &signs(SYN, false), 5) else {
                continue;
            };
            assert!(seen.insert(got), "{got:?} twice");
            assert!((1024..=32_767).contains(&got.1) && got.0 < 2);
            held.push((number, got));
        }
        assert!(held.len() >= 8_192 - 3, "{} of 8192 have a port", held.len());
        for (number, got) in held {
            let ack = signs(TcpFlags::ACK, false);
            assert_eq!(there(&mut table, number, &ack, 6), Some(got));
            let answer = answer(got.0, got.1);
            let found = table.back(&answer, &signs(TcpFlags::ACK, true), 7, known);
            assert_eq!(found.expect("ours").expect("known").flow, flow(number));
        }
    }

    /// A port that was given up is not anybody's before its time, and not lost after it.
    #[test]
    fn a_port_rests_and_then_comes_back() {
        let mut table = table(1);
        let (origin, port) = there(&mut table, 0, &signs(SYN, false), 10).expect("room");
        let closed = table.rules.ticks.closed;
        let answer = answer(origin, port);
        for (flags, backend) in [(SYN, true), (TcpFlags::FIN, false), (TcpFlags::FIN, true)] {
            match backend {
                true => drop(table.back(&answer, &signs(flags, true), 11, known)),
                false => _ = there(&mut table, 0, &signs(flags, false), 11),
            }
        }
        assert_eq!(there(&mut table, 1, &signs(SYN, false), 11 + closed), None);
        // Its client may, as it could without us.
        let again = there(&mut table, 0, &signs(SYN, false), 12);
        assert_eq!(again, Some((origin, port)));
        assert!(!table.places[0].expect("held").state.has_ended());
        let opening = table.rules.ticks.opening;
        assert_eq!(there(&mut table, 1, &signs(SYN, false), 12 + opening), None);
        assert!(there(&mut table, 1, &signs(SYN, false), 13 + opening).is_some());
    }

    /// A backend that goes takes its connections along: their ports are free as soon as those of connections that
    /// have ended.
    #[test]
    fn a_port_of_a_backend_that_is_gone_comes_back() {
        let mut table = table(1);
        let (origin, port) = there(&mut table, 0, &signs(SYN, false), 10).expect("room");
        table.back(&answer(origin, port), &signs(SYN, true), 10, known);
        let closed = table.rules.ticks.closed;
        let new = Target { backend: BackendId::of(4), ..target() };
        let mut try_at = |tick, known: fn(&Mapping) -> bool| {
            table.there(&flow(1), &new, &signs(SYN, false), tick, known).is_some()
        };
        assert!(!try_at(11 + closed, |_| true), "it lives");
        assert!(!try_at(10 + closed, |_| false));
        assert!(try_at(11 + closed, |_| false));
    }

    /// What is forged does not end a connection for good: its next packet says that it lives.
    #[test]
    fn a_reset_that_nobody_believed_is_taken_back() {
        let mut table = table(64);
        let (origin, port) = there(&mut table, 0, &signs(SYN, false), 1).expect("room");
        let answer = answer(origin, port);
        let ended = |table: &Mappings| {
            table.places.iter().flatten().next().expect("held").state.has_ended()
        };
        table.back(&answer, &signs(TcpFlags::RST, true), 1, known);
        assert!(ended(&table));
        there(&mut table, 0, &signs(TcpFlags::ACK, false), 2);
        assert!(!ended(&table));
    }

    /// Errors make nothing; another backend under the number, or another port, has nothing.
    #[test]
    fn what_is_not_known_is_not_found() {
        let mut table = table(64);
        let quoted = Signs { quoted: true, ..signs(SYN, false) };
        assert_eq!(there(&mut table, 0, &quoted, 1), None);
        let (origin, port) = there(&mut table, 0, &signs(SYN, false), 1).expect("room");
        let answer = answer(origin, port);
        let ack = signs(TcpFlags::ACK, true);
        assert!(table.back(&answer, &ack, 1, |_| None).expect("ours").is_none());
        let other = FlowKey { dst_port: 40_000, ..answer };
        assert!(table.back(&other, &ack, 1, known).is_none(), "that port is the host's");
        let gone = Target { incarnation: 2, ..target() };
        assert_ne!(
            table.there(&flow(0), &gone, &signs(SYN, false), 1, |_| true),
            Some((origin, port)),
            "another backend has another end"
        );
    }

    #[test]
    fn a_backend_is_no_client_of_itself() {
        let flow = |client: &str, service: &str| {
            let end = |text: &str| text.parse::<SocketAddr>().expect("an address");
            FlowKey::new(end(client), end(service), Protocol::Udp)
        };
        for (client, service, backend, port, good) in [
            ("10.6.0.1:8080", "10.9.0.1:53", "10.6.0.1", Some(8080), false),
            ("10.6.0.1:8081", "10.9.0.1:53", "10.6.0.1", Some(8080), true),
            ("10.6.0.2:8080", "10.9.0.1:53", "10.6.0.1", Some(8080), true),
            ("10.6.0.1:53", "10.9.0.1:53", "10.6.0.1", None, false),
            ("10.6.0.1:8080", "10.9.0.1:53", "10.6.0.1", None, true),
            ("224.0.0.1:53", "10.9.0.1:53", "10.6.0.1", None, false),
            ("[fd06::1]:8080", "[fd09::1]:53", "fd06::1", Some(8080), false),
            ("[fd06::1]:53", "[fd09::1]:53", "fd06::1", Some(8080), true),
            ("[ff02::1]:53", "[fd09::1]:53", "fd06::1", Some(8080), false),
        ] {
            let address: IpAddr = backend.parse().expect("an address");
            let found = has_client(&flow(client, service), address, port);
            assert_eq!(found, good, "{client} to {backend} {port:?}");
        }
    }

    /// Which port the next connection gets cannot be told from the last ones.
    #[test]
    fn ports_are_spread_and_depend_on_the_key() {
        let ports = |seed| -> Vec<u16> {
            let key = HashKey::from_seed(seed);
            let first = |number| candidates(&key, &flow(number), &target(), 1 << 20).next();
            (0..4096).map(|number| first(number).expect("there are some").port).collect()
        };
        let (one, other) = (ports(1), ports(2));
        let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 10, "{same}");
        let mut eighths = [0; 8];
        one.iter().for_each(|port| eighths[usize::from((port - 1024) / 3968)] += 1);
        assert!(eighths.iter().all(|count| (400..630).contains(count)), "{eighths:?}");
    }
}
