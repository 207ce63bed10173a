//! What services listen on, before and after a change: which running service a configured one is, and what
//! tells its addresses apart.
//!
//! A service is the one that it has most places in common with, so that its connections stay where its
//! addresses do. Each of its addresses has a salt for as long as it is listened on (`weir_plane::Listen`),
//! which the data plane keeps: the first one of a family has none.

use crate::config::Service;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;
use weir_plane::Listen;

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
    // Ranges that begin or end elsewhere may have no block in common.
    for (at, service) in wanted.iter().enumerate().filter(|(_, one)| one.ports.is_some()) {
        let meets = |other: &Service| {
            let ports = other.ports.zip(service.ports).is_some_and(|(one, two)| one.meets(&two));
            let addresses = other.addresses();
            ports
                && other.protocol == service.protocol
                && service.addresses().iter().any(|vip| addresses.contains(vip))
        };
        if pairs[at].is_none() {
            let found = (0..there.len()).find(|at| !taken.contains(at) && meets(there[*at]));
            pairs[at] = found.filter(|number| taken.insert(*number));
        }
    }
    pairs
}

/// The places of a service with their salts: those that it has now, and for others numbers that are free.
/// With affinity by client none has any: all its addresses lead a client to one backend.
pub(super) fn salted(service: &Service, now: &[Listen]) -> Vec<Listen> {
    let mut salts: HashMap<([u8; 16], u8), u16> = HashMap::new();
    let of = |at: &Listen| (at.address, at.address_bits);
    let ipv4 = |at: &Listen| at.vip().0.is_ipv4();
    let mut places = service.places();
    let kept: BTreeSet<_> = places.iter().map(of).collect();
    salts.extend(now.iter().filter(|at| kept.contains(&of(at))).map(|at| (of(at), at.salt)));
    let mut used: Vec<(bool, RangeInclusive<u16>)> =
        now.iter().map(|at| (ipv4(at), salts_of(at, at.salt))).collect();
    for at in &mut places {
        let family = ipv4(at);
        at.salt = *salts.entry(of(at)).or_insert_with(|| {
            let meets = |salts: &RangeInclusive<u16>| {
                used.iter().any(|(of, taken)| {
                    *of == family && taken.start() <= salts.end() && salts.start() <= taken.end()
                })
            };
            let step = 1usize << at.host_bits().min(16);
            let mut all = (0..=u16::MAX).step_by(step);
            // Where there is no room, some addresses share states.
            let free = all.find(|salt| !meets(&salts_of(at, *salt))).unwrap_or(0);
            used.push((family, salts_of(at, free)));
            free
        });
    }
    places
}

/// All that destination ports are XORed with at a place that has this salt, a multiple of how many they are.
fn salts_of(at: &Listen, salt: u16) -> RangeInclusive<u16> {
    let last = u16::MAX.checked_shr(16 - u32::from(at.host_bits().min(16))).unwrap_or(0);
    salt..=salt | last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn services(services: &[(&str, &str, &str)]) -> Vec<Service> {
        let mut text = "[balancer]\ninterfaces = [\"eth0\"]\n".to_owned();
        for (name, vip, port) in services {
            text += &format!(
                "[[service]]\nname = {name:?}\nvip = {vip}\nport = {port}\n[service.check]\n\
                 enabled = false\n[[service.backend]]\nname = \"b\"\naddress = \"10.9.0.1\"\n"
            );
        }
        Config::parse(&text, "weir.toml").unwrap_or_else(|error| panic!("{error}")).services
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

    /// An address that stays keeps its salt, whatever comes and goes beside it; the first one of a family
    /// has none.
    #[test]
    fn salts_stay_with_their_addresses() {
        let of = |vips: &str, now: &[Listen]| {
            let all = services(&[("a", vips, "80")]);
            salted(&all[0], now)
        };
        let salts = |all: &[Listen]| all.iter().map(|at| at.salt).collect::<Vec<_>>();
        let first = of(r#"["10.0.0.1", "2001:db8::1"]"#, &[]);
        assert_eq!(salts(&first), [0, 0]);
        let second = of(r#"["10.0.0.7", "10.0.0.1", "10.0.0.2", "2001:db8::1"]"#, &first);
        assert_eq!(salts(&second), [1, 0, 2, 0]);
        let third = of(r#"["10.0.0.2", "10.0.0.7"]"#, &second);
        assert_eq!(salts(&third), [2, 1]);
        // What was given up lately is not given again at once.
        let fourth = of(r#"["10.0.0.2", "10.0.0.8"]"#, &third);
        assert_eq!(salts(&fourth), [2, 0]);
        // The addresses of a prefix have a salt each.
        let nets = of(r#"["10.0.0.1", "10.1.0.0/24", "10.0.0.2", "10.2.0.0/25"]"#, &[]);
        assert_eq!(salts(&nets), [0, 256, 1, 128]);
        let ranges = services(&[("a", r#"["10.0.0.1", "10.0.0.2"]"#, r#""8000-8999""#)]);
        let all = salted(&ranges[0], &[]);
        assert!(all.len() > 4 && all.iter().all(|at| at.salt == u16::from(at.address[15] == 2)));
    }
}
