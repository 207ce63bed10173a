//! What balancers ask of this host, made into what it is to be: without sockets and clocks, which come in as
//! arguments (docs/agent.md).
//!
//! ```text
//!  a balancer's Serving ─┐
//!  another one's ────────┼─ the union ─ what was given ─ what has just gone ──> Wish
//!  those of before ──────┘              goes before      lingers
//! ```

mod kept;

pub use kept::Kept;

use crate::ready::{Network, Segments, Waiting, Wanted};
use crate::speak::Balancer;
use crate::{Options, Service};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use weir_host::prefix::by_hand;
use weir_plane::forward::Encapsulation;
use weir_rpc::serving::{Prefix, Served, Transport, Way};

/// What no balancer asks for any more stays for so long: packets may be on their way, another balancer may follow a
/// change a moment later, and who has come back with an older file is soon told of the newer one.
pub const LINGERS: Duration = Duration::from_secs(10);

/// What each balancer has said last of the services that have backends here.
pub type Said = BTreeMap<Balancer, Vec<Served>>;

/// What was given to the agent: it goes before what balancers say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    /// Names of interfaces; none: those that have the backends' addresses.
    pub interfaces: Vec<String>,
    /// The tunnels that packets come in; `None`: those that balancers say.
    pub tunnels: Option<Vec<Encapsulation>>,
    /// Where tunnels may come from; empty: from anywhere.
    pub sources: Vec<Network>,
    /// How large segments clients are asked to send.
    pub segments: Segments,
    /// Services whose connections carry cookies, beside those that balancers say.
    pub stamped: Vec<Service>,
    /// Connections with cookies that are remembered.
    pub flows: u32,
    /// Bits of the clock that stay in a timestamp.
    pub clock_bits: u32,
}

/// What the host is to be now, and what there is to say of that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// How it is to be made ready; without any address: not at all.
    pub wanted: Wanted,
    /// How cookies are written, if any service's connections carry them.
    pub timestamps: Option<Options>,
    /// Which addresses are of no use without a part of that.
    pub waiting: Waiting,
    /// Contradictions, and what cannot be done, in words.
    pub words: BTreeSet<String>,
}

impl Wish {
    /// Services' addresses that this host has stay beside those that are asked for, if any are.
    pub fn keep(&mut self, given: impl IntoIterator<Item = IpAddr>) {
        let services = &mut self.wanted.services;
        if services.is_empty() {
            return;
        }
        for address in given {
            if !services.contains(&address) {
                services.push(address);
            }
        }
        services.sort();
    }

    /// Takes out what needs IPv6, which is off at an interface, and says so.
    pub fn leave_out_ipv6(&mut self, interface: &str) {
        for address in self.wanted.services.extract_if(.., |one| one.is_ipv6()) {
            self.words.insert(format!(
                "IPv6 is off at {interface}, so {address} is passed over; sysctl -w \
                 net.ipv6.conf.{interface}.disable_ipv6=0"
            ));
        }
        if let Some(timestamps) = &mut self.timestamps {
            timestamps.services.retain(|one| one.address.is_ipv4());
        }
        self.timestamps.take_if(|timestamps| timestamps.services.is_empty());
        if self.wanted.services.is_empty() {
            self.wanted.tunnels.clear();
            self.wanted.interfaces.clear();
            self.timestamps = None;
        }
    }
}

/// A part of what is asked for, which lingers alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    Address(IpAddr),
    Tunnel(Way),
    Stamped(IpAddr, Option<u16>),
}

/// What is asked for, and what has been a moment ago.
#[derive(Debug)]
pub struct Asked {
    given: Given,
    /// When each part was asked for last.
    parts: BTreeMap<Part, Instant>,
    /// Those that had the backends' addresses when they were looked for last and found.
    interfaces: Vec<String>,
}

impl Asked {
    /// Nothing is asked for yet.
    pub fn new(given: Given) -> Self {
        Self { given, parts: BTreeMap::new(), interfaces: Vec::new() }
    }

    /// What the host is to be by what all have said, `own` being its addresses with the names of their interfaces.
    pub fn wish(&mut self, said: &Said, own: &[(String, IpAddr)], now: Instant) -> Wish {
        let mut words = BTreeSet::new();
        let asked = self.parts_of(said, &mut words);
        contradictions(said, &mut words);
        self.parts.retain(|_, at| now.saturating_duration_since(*at) < LINGERS);
        self.parts.extend(asked.iter().map(|part| (*part, now)));
        let waiting = self.waiting(said);
        let interfaces = self.interfaces(said, own, &mut words);
        let mut wanted = Wanted {
            interfaces,
            services: Vec::new(),
            tunnels: self.given.tunnels.clone().unwrap_or_default(),
            sources: self.given.sources.clone(),
            segments: self.given.segments,
        };
        let (mut ways, mut services) = (Vec::new(), self.given.stamped.clone());
        // Those that are asked for come before those that linger.
        let (current, lingering): (Vec<&Part>, Vec<&Part>) =
            self.parts.keys().partition(|part| asked.contains(part));
        for part in current.into_iter().chain(lingering) {
            match *part {
                Part::Address(address) => wanted.services.push(address),
                Part::Tunnel(way) => ways.push(way),
                Part::Stamped(address, port) => services.push(Service { address, port }),
            }
        }
        wanted.services.sort();
        if self.given.tunnels.is_none() {
            wanted.tunnels = tunnels(&ways, &asked, &mut words);
        }
        if wanted.interfaces.is_empty() {
            wanted.services.clear();
        }
        if wanted.services.is_empty() {
            wanted.tunnels.clear();
            wanted.interfaces.clear();
            return Wish { wanted, timestamps: None, waiting, words };
        }
        let mut once = BTreeSet::new();
        services.retain(|one| once.insert((one.address, one.port)));
        let timestamps = (!services.is_empty()).then(|| Options {
            interfaces: wanted.interfaces.clone(),
            services,
            flows: self.given.flows,
            clock_bits: self.given.clock_bits,
        });
        Wish { wanted, timestamps, waiting, words }
    }

    /// The addresses all of whose services need a part.
    fn waiting(&self, said: &Said) -> Waiting {
        let known = said.values().flatten().filter(|one| one.way.is_some());
        let all: Vec<(IpAddr, &Served)> =
            known.flat_map(|one| one.vips.iter().map(move |vip| (vip.address, one))).collect();
        let tunnelled = |one: &Served| match &self.given.tunnels {
            Some(tunnels) => !tunnels.is_empty(),
            None => one.way != Some(Way::Plain),
        };
        let (mut plain, mut bare) = (BTreeSet::new(), BTreeSet::new());
        for (address, one) in &all {
            if !tunnelled(one) {
                plain.insert(*address);
            }
            if !one.timestamps {
                bare.insert(*address);
            }
        }
        let without = |others: &BTreeSet<IpAddr>| -> BTreeSet<IpAddr> {
            all.iter().map(|(address, _)| *address).filter(|one| !others.contains(one)).collect()
        };
        Waiting { tunnels: without(&plain), cookies: without(&bare) }
    }

    /// All that is asked for now.
    fn parts_of(&self, said: &Said, words: &mut BTreeSet<String>) -> BTreeSet<Part> {
        let mut parts = BTreeSet::new();
        for (balancer, one) in
            said.iter().flat_map(|(at, all)| all.iter().map(move |one| (at, one)))
        {
            let service = &one.service;
            let Some(way) = one.way else {
                words.insert(format!(
                    "balancer {balancer}: packets of service {service} come in a way that this version of \
                     the agent does not know; run that of the balancer here"
                ));
                continue;
            };
            let mut taken = false;
            for vip in &one.vips {
                if let Some(why) = refused(vip, one.backend, way) {
                    words.insert(format!("balancer {balancer}: service {service}: {why}"));
                    continue;
                }
                taken = true;
                parts.insert(Part::Address(vip.address));
                if one.timestamps {
                    parts.insert(Part::Stamped(vip.address, one.port));
                }
            }
            if taken && way != Way::Plain {
                parts.insert(Part::Tunnel(way));
            }
        }
        parts
    }

    fn interfaces(
        &mut self,
        said: &Said,
        own: &[(String, IpAddr)],
        words: &mut BTreeSet<String>,
    ) -> Vec<String> {
        if !self.given.interfaces.is_empty() {
            return self.given.interfaces.clone();
        }
        let backends: BTreeSet<IpAddr> = said.values().flatten().map(|one| one.backend).collect();
        let of = |backend: &IpAddr| {
            let here = own.iter().filter(|(name, one)| one == backend && name != "lo");
            here.map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        let found: BTreeSet<String> = backends.iter().flat_map(of).collect();
        for backend in backends.iter().filter(|backend| of(backend).is_empty()) {
            words.insert(format!(
                "the backend's address {backend} is on no interface here that packets come by; give \
                 those with --interface"
            ));
        }
        if !found.is_empty() {
            self.interfaces = found.into_iter().collect();
        }
        // One whose address has gone for a moment is waited for.
        self.interfaces.clone()
    }
}

/// Why a service's address is not given to this host.
fn refused(vip: &Prefix, backend: IpAddr, way: Way) -> Option<String> {
    let Prefix { address, bits } = vip;
    if !vip.is_host() {
        let prefix = format!("{address}/{bits}");
        let tunnel = (way != Way::Plain).then(|| way_name(way));
        let by_hand = by_hand(&prefix, tunnel.as_deref());
        return Some(format!(
            "vip: {prefix} is a prefix, which an agent does not make this host's; by hand: {by_hand}"
        ));
    }
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified() {
        return Some(format!(
            "{address} is no address that a service could have; it is passed over"
        ));
    }
    (*address == backend)
        .then(|| format!("{address} is this backend's own address; it is passed over"))
}

/// Services of the same address, port and transport of which balancers say different things.
fn contradictions(said: &Said, words: &mut BTreeSet<String>) {
    type Place = (IpAddr, Transport, Option<u16>);
    let mut places: BTreeMap<Place, Vec<(&Balancer, &Served)>> = BTreeMap::new();
    for (balancer, all) in said {
        for one in all.iter().filter(|one| one.way.is_some()) {
            for vip in one.vips.iter().filter(|vip| vip.is_host()) {
                let place = (vip.address, one.transport, one.port);
                places.entry(place).or_default().push((balancer, one));
            }
        }
    }
    for ((address, transport, port), all) in places {
        let place = Service { address, port };
        let transport = match transport {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
            Transport::Sctp => "SCTP",
        };
        let each = |what: fn(&Served) -> String| {
            let of =
                |(balancer, one): &(&Balancer, &Served)| format!("{} by {balancer}", what(one));
            all.iter().map(of).collect::<Vec<_>>().join(", ")
        };
        if all.iter().any(|(_, one)| one.way != all[0].1.way) {
            let ways = each(|one| one.way.map_or_else(String::new, way_name));
            words.insert(format!(
                "balancers disagree of how packets of {place} ({transport}) come: {ways}; they are taken in each way"
            ));
        }
        if all.iter().any(|(_, one)| one.timestamps != all[0].1.timestamps) {
            let who = each(|one| (if one.timestamps { "cookies" } else { "none" }).into());
            words.insert(format!(
                "balancers disagree of cookies in the timestamps of {place} ({transport}): {who}; they are written"
            ));
        }
    }
}

/// The tunnels of these ways, the first of which count where several have a UDP port.
fn tunnels(
    ways: &[Way],
    asked: &BTreeSet<Part>,
    words: &mut BTreeSet<String>,
) -> Vec<Encapsulation> {
    let mut ports: BTreeMap<u16, Way> = BTreeMap::new();
    let mut tunnels = Vec::new();
    for way in ways {
        if let Way::Fou(port) | Way::Gue(port) = way {
            let first = ports.entry(*port).or_insert(*way);
            if first != way {
                if asked.contains(&Part::Tunnel(*way)) {
                    words.insert(format!(
                        "UDP port {port} is to be of {} and of {}: what comes there is taken for the former",
                        way_name(*first),
                        way_name(*way)
                    ));
                }
                continue;
            }
        }
        tunnels.extend(encapsulation(*way));
    }
    tunnels
}

fn encapsulation(way: Way) -> Option<Encapsulation> {
    match way {
        Way::Plain => None,
        Way::Ipip => Some(Encapsulation::Ipip),
        Way::Gre => Some(Encapsulation::Gre),
        Way::Fou(port) => Some(Encapsulation::Fou(port)),
        Way::Gue(port) => Some(Encapsulation::Gue(port)),
    }
}

fn way_name(way: Way) -> String {
    match way {
        Way::Plain => "l2".into(),
        Way::Ipip => "ipip".into(),
        Way::Gre => "gre".into(),
        Way::Fou(port) => format!("fou:{port}"),
        Way::Gue(port) => format!("gue:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Balancer {
        text.parse().expect("a balancer")
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn served(vip: &str, way: Way) -> Served {
        let (address, bits) = vip.split_once('/').unwrap_or((vip, "32"));
        let bits = bits.parse().expect("a number");
        Served {
            service: "web".into(),
            backend: self::address("192.0.2.1"),
            vips: vec![Prefix { address: self::address(address), bits }],
            transport: Transport::Tcp,
            port: Some(80),
            way: Some(way),
            timestamps: false,
        }
    }

    fn given() -> Given {
        Given {
            interfaces: Vec::new(),
            tunnels: None,
            sources: Vec::new(),
            segments: Segments::Auto,
            stamped: Vec::new(),
            flows: 1 << 10,
            clock_bits: 16,
        }
    }

    fn own() -> Vec<(String, IpAddr)> {
        let eth0 = |text| ("eth0".to_owned(), address(text));
        vec![("lo".into(), address("127.0.0.1")), eth0("192.0.2.1"), eth0("192.0.2.2")]
    }

    fn said(all: &[(&str, Vec<Served>)]) -> Said {
        all.iter().map(|(who, served)| (at(who), served.clone())).collect()
    }

    #[test]
    fn all_that_balancers_say_is_taken_together() {
        let mut asked = Asked::new(given());
        let now = Instant::now();
        let nothing = asked.wish(&Said::new(), &own(), now);
        assert!(nothing.wanted.services.is_empty() && nothing.wanted.interfaces.is_empty());
        let gue = served("10.0.0.1", Way::Gue(6080));
        let cookies = Served { timestamps: true, ..served("10.0.0.2", Way::Plain) };
        let both = said(&[("lb1", vec![gue.clone()]), ("lb2", vec![gue, cookies])]);
        let wish = asked.wish(&both, &own(), now);
        assert_eq!(wish.wanted.interfaces, ["eth0"]);
        assert_eq!(wish.wanted.services, [address("10.0.0.1"), address("10.0.0.2")]);
        assert_eq!(wish.wanted.tunnels, [Encapsulation::Gue(6080)]);
        let stamped = wish.timestamps.expect("cookies").services;
        assert_eq!(stamped, [Service { address: address("10.0.0.2"), port: Some(80) }]);
        assert_eq!(wish.words, BTreeSet::new());
    }

    #[test]
    fn an_address_waits_for_a_part_that_all_its_services_need() {
        let cookies = |vip| Served { timestamps: true, ..served(vip, Way::Plain) };
        let all = vec![
            cookies("10.0.0.1"),
            cookies("10.0.0.2"),
            served("10.0.0.2", Way::Plain),
            served("10.0.0.3", Way::Gue(6080)),
            served("10.0.0.4", Way::Gue(6080)),
            served("10.0.0.4", Way::Plain),
        ];
        let said = said(&[("lb1", all)]);
        let waiting = Asked::new(given()).wish(&said, &own(), Instant::now()).waiting;
        assert_eq!(waiting.cookies, BTreeSet::from([address("10.0.0.1")]));
        assert_eq!(waiting.tunnels, BTreeSet::from([address("10.0.0.3")]));
        // What is given goes before what they say.
        let given = Given { tunnels: Some(vec![Encapsulation::Ipip]), ..given() };
        let waiting = Asked::new(given).wish(&said, &own(), Instant::now()).waiting;
        assert_eq!(waiting.tunnels.len(), 4);
    }

    #[test]
    fn what_is_asked_for_no_more_lingers_and_goes() {
        let mut asked = Asked::new(given());
        let start = Instant::now();
        let before = said(&[("lb1", vec![served("10.0.0.1", Way::Ipip)])]);
        asked.wish(&before, &own(), start);
        // Another way: both are taken for a while.
        let after = said(&[("lb1", vec![served("10.0.0.2", Way::Gre)])]);
        let wish = asked.wish(&after, &own(), start + LINGERS / 2);
        assert_eq!(wish.wanted.tunnels, [Encapsulation::Gre, Encapsulation::Ipip]);
        assert_eq!(wish.wanted.services.len(), 2);
        let wish = asked.wish(&after, &own(), start + LINGERS);
        assert_eq!(wish.wanted.tunnels, [Encapsulation::Gre]);
        assert_eq!(wish.wanted.services, [address("10.0.0.2")]);
        // The interface stays, whose address is away for a moment.
        let wish = asked.wish(&after, &own()[..1], start + LINGERS);
        assert_eq!(wish.wanted.interfaces, ["eth0"]);
        assert!(wish.words.iter().any(|word| word.contains("--interface")), "{:?}", wish.words);
        let wish = asked.wish(&Said::new(), &own(), start + 3 * LINGERS);
        assert!(wish.wanted.services.is_empty() && wish.wanted.tunnels.is_empty());
    }

    #[test]
    fn what_needs_ipv6_is_left_out_where_that_is_off() {
        let cookies = |text| Served { timestamps: true, ..served(text, Way::Plain) };
        let both = said(&[("lb1", vec![cookies("10.0.0.1"), cookies("2001:db8::1/128")])]);
        let mut wish = Asked::new(given()).wish(&both, &own(), Instant::now());
        wish.leave_out_ipv6("lo");
        assert_eq!(wish.wanted.services, [address("10.0.0.1")]);
        assert_eq!(wish.timestamps.expect("cookies").services.len(), 1);
        assert!(wish.words.iter().any(|word| word.contains("so 2001:db8::1 is passed over")));
        // Nothing is left: nothing is to be attached either.
        let six = said(&[("lb1", vec![cookies("2001:db8::1/128")])]);
        let mut wish = Asked::new(given()).wish(&six, &own(), Instant::now());
        wish.leave_out_ipv6("lo");
        assert!(wish.wanted.services.is_empty() && wish.wanted.interfaces.is_empty());
        assert_eq!(wish.timestamps, None);
    }

    #[test]
    fn what_was_given_goes_before_what_is_said() {
        let given = Given {
            interfaces: vec!["eth9".into()],
            tunnels: Some(vec![Encapsulation::Ipip]),
            stamped: vec![Service { address: address("10.0.0.1"), port: None }],
            ..given()
        };
        let mut asked = Asked::new(given);
        let said = said(&[("lb1", vec![served("10.0.0.1", Way::Gue(6080))])]);
        let wish = asked.wish(&said, &own(), Instant::now());
        assert_eq!(wish.wanted.interfaces, ["eth9"]);
        assert_eq!(wish.wanted.tunnels, [Encapsulation::Ipip]);
        assert_eq!(wish.timestamps.expect("cookies").services.len(), 1);
    }

    #[test]
    fn contradictions_are_said_and_what_makes_no_sense_is_passed_over() {
        let words = |all: &[(&str, Vec<Served>)]| {
            let wish = Asked::new(given()).wish(&said(all), &own(), Instant::now());
            (wish.words.into_iter().collect::<Vec<_>>().join("\n"), wish.wanted)
        };
        let one = |way| vec![served("10.0.0.1", way)];
        let (found, wanted) = words(&[("lb1", one(Way::Ipip)), ("lb2", one(Way::Plain))]);
        let wanted_words = "10.0.0.1:80 (TCP) come: ipip by lb1:4479, l2 by lb2:4479";
        assert!(found.contains(wanted_words), "{found}");
        assert_eq!(wanted.tunnels, [Encapsulation::Ipip]);
        let stamped = Served { timestamps: true, ..served("10.0.0.1", Way::Plain) };
        let (found, _) = words(&[("lb1", one(Way::Plain)), ("lb2", vec![stamped])]);
        assert!(found.contains("none by lb1:4479, cookies by lb2:4479"), "{found}");
        let (found, wanted) = words(&[
            ("lb1", vec![served("10.0.0.1", Way::Fou(7))]),
            ("lb2", vec![served("10.0.0.2", Way::Gue(7))]),
        ]);
        assert!(found.contains("UDP port 7 is to be of fou:7 and of gue:7"), "{found}");
        assert_eq!(wanted.tunnels, [Encapsulation::Fou(7)]);
        for (vip, said) in [
            ("10.0.0.0/8", "ip route add local 10.0.0.0/8 dev lo"),
            ("127.0.0.1", "no address that a service could have"),
            ("224.0.0.1", "no address that a service could have"),
            ("0.0.0.0", "no address that a service could have"),
            ("192.0.2.1", "own address"),
        ] {
            let (found, wanted) = words(&[("lb1", vec![served(vip, Way::Plain)])]);
            assert!(found.contains(said) && wanted.services.is_empty(), "{vip}: {found}");
        }
        // Behind a tunnel the route is not enough, and nothing else is kept from the agent.
        let both = vec![served("10.1.0.0/24", Way::Gue(7)), served("10.0.0.2", Way::Ipip)];
        let (found, wanted) = words(&[("lb1", both)]);
        assert!(found.contains("service web: vip: 10.1.0.0/24 is a prefix"), "{found}");
        assert!(found.contains("out of gue:7, with an IPv4 address and rp_filter = 2"), "{found}");
        assert_eq!(wanted.services, [address("10.0.0.2")]);
        assert_eq!(wanted.tunnels, [Encapsulation::Ipip]);
        let later = Served { way: None, ..served("10.0.0.1", Way::Plain) };
        let (found, wanted) = words(&[("lb1", vec![later])]);
        assert!(found.contains("does not know") && wanted.services.is_empty(), "{found}");
    }
}
