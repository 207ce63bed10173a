//! Which service a packet is for: destinations and numbers, looked through from a hash on.

use std::sync::Arc;
use weir_plane::Soft;
use weir_steering::{Image, MethodId, ServiceId};
use weir_wire::{Protocol, unmap_address};

/// No service that plain packets take the short way to.
pub const NONE: u16 = u16::MAX;
/// A service, but only the long way leads there.
const LONG: u16 = u16::MAX - 1;
/// Odd factor of the hash: what is looked up here is the operator's, so nobody can aim at a place.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Above the port of a destination: any.
const ANY: u64 = 1 << 48;
/// No destination has these bits in its last word.
const EMPTY: u64 = u64::MAX;

/// A service whose plain packets take the short way.
#[derive(Clone, Debug)]
pub struct Service {
    pub id: ServiceId,
    pub table: Arc<Image>,
    /// Whether its address is of IPv4.
    pub ipv4: bool,
}

/// Destinations of one family, each of `N` words, the port in the last one.
#[derive(Clone, Debug)]
struct Places<const N: usize> {
    places: Vec<([u64; N], u16)>,
    any: bool,
}

impl<const N: usize> Places<N> {
    /// At most half of the places are taken.
    fn new(of: &[([u64; N], u16)]) -> Self {
        let places = (of.len() * 2 + 2).next_power_of_two();
        let any = of.iter().any(|(key, _)| key[N - 1] & ANY != 0);
        let mut new = Self { places: vec![([EMPTY; N], NONE); places], any };
        for &(key, service) in of {
            let at = new.place(key);
            new.places[at] = (key, service);
        }
        new
    }

    /// Where a destination stands, or would.
    #[inline(always)]
    fn place(&self, key: [u64; N]) -> usize {
        let mix = |sum: u64, word: &u64| (sum.rotate_left(29) ^ word).wrapping_mul(FACTOR);
        let mask = self.places.len() - 1;
        let mut at = (key.iter().fold(0, mix) >> 32) as usize & mask;
        while self.places[at].0 != key && self.places[at].0[N - 1] != EMPTY {
            at = (at + 1) & mask;
        }
        at
    }

    /// The service of a destination, by its port or by any.
    #[inline(always)]
    fn get(&self, key: [u64; N]) -> u16 {
        let mut found = self.places[self.place(key)].1;
        if found == NONE && self.any {
            let mut any = key;
            any[N - 1] = key[N - 1] & !(0xffff << 32) | ANY;
            found = self.places[self.place(any)].1;
        }
        if found == LONG { NONE } else { found }
    }
}

/// The services of TCP, and where packets of the short way find them.
#[derive(Clone, Debug)]
pub struct Services {
    services: Vec<Service>,
    ipv4: Places<1>,
    ipv6: Places<3>,
}

/// Whether plain packets need nothing but the table and what a burst asks.
fn is_short(method: MethodId) -> bool {
    use MethodId::{Concury, Consistent, Ecmp, Jet, Residue, Tracked};
    [Concury, Residue, Tracked, Jet, Ecmp, Consistent].contains(&method)
}

/// A port as it stands in the last word of a destination.
fn port_word(port: Option<u16>) -> u64 {
    port.map_or(ANY, |port| u64::from(port.to_be()) << 32)
}

impl Services {
    /// Of what is configured. Services of other methods, those that do not take all sources or all
    /// new flows, and those
    /// without a table, are known too, so that no service for any port takes their packets.
    pub fn new(soft: &Soft) -> Self {
        let mut services = Vec::new();
        let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
        for (vip, &id) in soft.vips.iter().filter(|(vip, _)| vip.protocol == Protocol::Tcp) {
            let is_ipv4 = unmap_address(&vip.address).is_ipv4();
            let short = |table: &&Arc<Image>| {
                let judged = soft.sources.contains_key(&id) || soft.caps.contains_key(&id);
                is_short(table.method()) && !judged
            };
            let number = match soft.tables.get(&id).filter(short) {
                // What a place that is not looked up here says, comes before any port.
                _ if vip.port.is_none() && !soft.wide.is_empty() => LONG,
                Some(table) if services.len() < usize::from(LONG) => {
                    services.push(Service { id, table: table.clone(), ipv4: is_ipv4 });
                    services.len() as u16 - 1
                }
                _ => LONG,
            };
            let [high, low] = words(&vip.address);
            let port = port_word(vip.port);
            if is_ipv4 {
                ipv4.push(([low >> 32 | port], number));
            } else {
                ipv6.push(([high, low, port], number));
            }
        }
        Self { services, ipv4: Places::new(&ipv4), ipv6: Places::new(&ipv6) }
    }

    /// A service by the number that [`of_ipv4`](Self::of_ipv4) and [`of_ipv6`](Self::of_ipv6) give.
    #[inline(always)]
    pub fn get(&self, number: u16) -> &Service {
        &self.services[usize::from(number)]
    }

    /// The service of a destination; see [`Plain4::to`](crate::parse::Plain4::to).
    #[inline(always)]
    pub fn of_ipv4(&self, to: u64) -> u16 {
        self.ipv4.get([to])
    }

    /// The same over IPv6, with the port in host order.
    #[inline(always)]
    pub fn of_ipv6(&self, [high, low]: [u64; 2], port: u16) -> u16 {
        self.ipv6.get([high, low, port_word(Some(port))])
    }
}

/// The two little-endian halves of an address.
fn words(address: &[u8; 16]) -> [u64; 2] {
    let half = |at| address[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    [half(0), half(8)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_plane::VipKey;
    use weir_steering::{BackendId, Member, Role, ServiceConfig, Settings};
    use weir_wire::map_address;

    fn table(method: MethodId) -> Arc<Image> {
        let config = ServiceConfig {
            settings: Settings::of(method),
            client_affinity: false,
            udp: false,
            seed: 1,
            nonce: 1,
            capacity: 0,
            max_states: 10,
            idle_seconds: 10,
        };
        let make = method.info().builder.expect("it has tables");
        let member =
            Member { backend: BackendId::of(0), name: "b".into(), weight: 1, role: Role::Serving };
        make(&config, None).build(1, &[member], 0).expect("it fits").table
    }

    /// By port before any port; a service of the long way hides the one for any port.
    #[test]
    fn services_are_found_as_the_pipeline_finds_them() {
        let mut soft = Soft::default();
        let mut add = |number: u32, address: &str, port, protocol, method: Option<MethodId>| {
            let address = map_address(address.parse().expect("an address"));
            soft.vips.insert(VipKey { address, protocol, port }, ServiceId(number));
            if let Some(method) = method {
                soft.tables.insert(ServiceId(number), table(method));
            }
        };
        let concury = Some(MethodId::Concury);
        for (first, address) in [(0, "10.0.0.1"), (10, "fd00::1")] {
            add(first, address, Some(80), Protocol::Tcp, concury);
            add(first + 1, address, None, Protocol::Tcp, Some(MethodId::Residue));
            add(first + 2, address, Some(81), Protocol::Tcp, Some(MethodId::Cheetah));
            add(first + 3, address, Some(82), Protocol::Tcp, None);
            add(first + 4, address, Some(83), Protocol::Udp, concury);
        }
        let services = Services::new(&soft);
        let id = |number| (number != NONE).then(|| services.get(number).id.0);
        let ipv4 = |address: [u8; 4], port: u16| {
            let to = u64::from(u32::from_le_bytes(address)) | u64::from(port.to_be()) << 32;
            id(services.of_ipv4(to))
        };
        let ipv6 = |address: &str, port| {
            let address = map_address(address.parse().expect("an address"));
            id(services.of_ipv6(words(&address), port))
        };
        for (port, wanted) in [(80, Some(0)), (81, None), (82, None), (83, Some(1)), (0, Some(1))] {
            assert_eq!(ipv4([10, 0, 0, 1], port), wanted);
            assert_eq!(ipv6("fd00::1", port), wanted.map(|number| number + 10));
        }
        assert_eq!((ipv4([10, 0, 0, 2], 80), ipv6("fd00::2", 80)), (None, None));
        let nothing = Services::new(&Soft::default());
        assert_eq!((nothing.of_ipv4(0), nothing.of_ipv6([0; 2], 0)), (NONE, NONE));
    }
}
