//! The table of addresses that the programs read: whose each of them is.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// Places of the table, as in `bpf/backend.h`.
pub(super) const PLACES: usize = 2048;
/// Addresses that it holds at most: so few that two places for each are enough.
pub(super) const MOST: usize = PLACES / 4;
/// Moves before another seed is tried.
const MOVES: usize = 64;

/// What an address is, as in `bpf/backend.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Is {
    /// This host's alone.
    Own = 1,
    /// A service's.
    Service = 2,
}

pub(super) type Entry = ([u64; 2], Is);

/// An address as the programs have it: two words as on the wire, IPv4 as `::ffff:a.b.c.d`.
pub(super) fn words(address: IpAddr) -> [u64; 2] {
    let octets = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let (high, low) = octets.split_at(8);
    [high, low].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()))
}

/// The two places of an address: the twin of `what_is` in `bpf/backend.bpf.c`.
fn places([high, low]: [u64; 2], seed: u64) -> [usize; 2] {
    let part = |word: u64, factor: u64| (word ^ word >> 32).wrapping_add(seed).wrapping_mul(factor);
    let hash = part(low, 0x9e37_79b9_7f4a_7c15) ^ part(high, 0xbf58_476d_1ce4_e5b9);
    [hash >> 53, hash >> 32].map(|at| at as usize & (PLACES - 1))
}

/// A seed, and what is in each place: every address in one of its two. An address that is a service's and
/// this host's is a service's. `None` if there are more than [`MOST`].
pub(super) fn table(
    own: &BTreeSet<IpAddr>,
    services: &BTreeSet<IpAddr>,
) -> Option<(u64, Vec<Option<Entry>>)> {
    let own = own.difference(services).map(|address| (words(*address), Is::Own));
    let all: Vec<Entry> =
        services.iter().map(|address| (words(*address), Is::Service)).chain(own).collect();
    if all.len() > MOST {
        return None;
    }
    // With a quarter of the places taken nearly every seed will do.
    (1..=1000).find_map(|seed| Some((seed, fill(&all, seed)?)))
}

fn fill(all: &[Entry], seed: u64) -> Option<Vec<Option<Entry>>> {
    let mut table = vec![None; PLACES];
    for entry in all {
        let mut entry = *entry;
        let mut at = places(entry.0, seed)[0];
        let mut moves = 0;
        // Whoever is there goes to its other place.
        while let Some(other) = table[at].replace(entry) {
            entry = other;
            let [first, second] = places(entry.0, seed);
            at = if at == first { second } else { first };
            moves += 1;
            if moves > MOVES {
                return None;
            }
        }
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn every_address_is_in_one_of_its_places() {
        let own: BTreeSet<IpAddr> =
            (0..256u32).map(|n| Ipv4Addr::from(0x0a4d_0000 + n).into()).collect();
        let services: BTreeSet<IpAddr> =
            (0..256u128).map(|n| Ipv6Addr::from((0xfd77 << 112) + n).into()).collect();
        let (seed, table) = table(&own, &services).unwrap();
        for (all, is) in [(&own, Is::Own), (&services, Is::Service)] {
            for address in all {
                let entry = Some((words(*address), is));
                assert!(places(words(*address), seed).iter().any(|at| table[*at] == entry));
            }
        }
        assert_eq!(table.iter().flatten().count(), 512);
    }

    /// Networks as people number them: hosts in a row, networks in a row, the same host of many networks.
    #[test]
    fn there_is_a_table_for_every_usual_set_of_addresses() {
        let one = BTreeSet::from([IpAddr::from([192, 0, 2, 1])]);
        for step in [1u32, 2, 16, 256, 1 << 16, 3 << 18] {
            let all = (0..511u32)
                .map(|n| Ipv4Addr::from(0x0a00_0001u32.wrapping_add(n.wrapping_mul(step))));
            assert!(table(&one, &all.map(IpAddr::V4).collect()).is_some(), "{step}");
        }
        for shift in [0, 4, 16, 32, 48, 64, 80, 96] {
            let all = (0..511u128).map(|n| Ipv6Addr::from(0x2001_0db8 << 96 | 1 | n << shift));
            assert!(table(&one, &all.map(IpAddr::V6).collect()).is_some(), "{shift}");
        }
    }

    #[test]
    fn a_services_address_is_not_this_hosts_own_and_too_many_are_refused() {
        let both = BTreeSet::from([IpAddr::from([10, 0, 0, 1])]);
        let (_, found) = table(&both, &both).unwrap();
        assert_eq!(found.into_iter().flatten().map(|one| one.1).collect::<Vec<_>>(), [Is::Service]);
        let many = (0..=MOST as u32).map(|n| Ipv4Addr::from(n).into()).collect();
        assert!(table(&many, &both).is_none());
    }
}
