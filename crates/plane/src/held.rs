//! How many connections prefixes of sources hold: counters of a fixed size, and what was counted lately.
//!
//! A prefix has a counter in each of two rows, where a secret key puts them. A packet that begins a connection
//! raises both, and is refused if the smaller one says that its prefix holds as many as it may. Others may be
//! in either counter, so that the smaller one is never below what the prefix holds: a prefix holds no more than
//! it may, and is refused too early only if others are in *both* of its counters. Where all together hold so
//! many that this would be common, nobody is refused.
//!
//! Packets say little of ends, so the control plane, which knows the connections that live, sets the counters
//! right ([`correction`]): it reads them, takes up all that was reported until then, and adds the difference.
//! What is counted meanwhile stays. A count is believed for so long only: while nobody sets the counters right,
//! no connection is refused. The twin of `bpf/caps.h`.

use crate::caps::{FlowCaps, prefix_of};
use std::collections::HashMap;
use std::time::Duration;
use weir_hash::Key;
use weir_steering::{ServiceId, StateKey};
use weir_wire::hash::hash_address;

/// Counters of each of both rows.
pub const HELD_ROW: u32 = 1 << 18;
/// Where the connections of all prefixes are counted, behind both rows.
const ALL: u32 = HELD_ROW * 2;
/// All counters.
pub const HELD_COUNTERS: u32 = ALL + 1;
/// While there are so many connections of all for each one that a prefix may hold, none is refused: a quarter
/// of that in a counter, which would soon say of innocent prefixes that they hold as many as they may.
pub const HELD_CROWD: u32 = 1 << 16;
/// Places for connections that were counted lately.
pub const HELD_FLOWS: u32 = 1 << 17;
/// Connections that a prefix may hold, at most.
pub const HELD_MOST: u32 = (1 << 24) - 1;
/// Nanoseconds shifted right by so many bits are the ticks until which counts are believed.
pub const HELD_TICK_SHIFT: u32 = 30;
/// So many counts later, a connection is not known to have been counted lately. With one in ten seconds, that
/// is longer than a client sends its SYN again.
const COUNTS_KEPT: u8 = 7;

/// How many connections each prefix of sources may hold. Its prefixes are those of the rate, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceLimit {
    /// Connections, 1 to [`HELD_MOST`].
    pub most: u32,
    /// Bits of a prefix of IPv4, 1 to 32.
    pub ipv4_bits: u8,
    /// Of IPv6, 1 to 128.
    pub ipv6_bits: u8,
}

impl SourceLimit {
    /// The prefix that an address has, as an address.
    pub fn prefix_of(&self, source: &[u8; 16]) -> [u8; 16] {
        prefix_of(source, self.ipv4_bits, self.ipv6_bits)
    }
}

/// Where the counters of a prefix stand, the rows beside each other.
pub(crate) fn places(caps: &FlowCaps, limit: &SourceLimit, source: &[u8; 16]) -> [u32; 2] {
    let hash = hash_address(&caps.key, &limit.prefix_of(source), 0);
    let column = |hash: u64| hash as u32 & (HELD_ROW - 1);
    [column(hash) * 2, column(hash >> 32) * 2 + 1]
}

/// The counters of a connection whose prefix has those.
pub fn counters([one, other]: [u32; 2]) -> [u32; 3] {
    [one, other, ALL]
}

/// How many connections more a prefix may begin by what its counters and that of all say; none: any number.
pub fn room(limit: &SourceLimit, [one, other, all]: [u32; 3]) -> Option<u32> {
    let crowd = u64::from(all) >= u64::from(limit.most) * u64::from(HELD_CROWD);
    (!crowd).then(|| limit.most.saturating_sub(one.min(other)))
}

/// The connections of prefixes, by the counters that these have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldCounts(Vec<u32>);

impl HeldCounts {
    /// As a plane has them.
    pub fn from_counters(counters: Vec<u32>) -> Self {
        Self(counters)
    }

    /// One connection more from this source. Nothing where connections are not limited.
    pub fn add(&mut self, caps: &FlowCaps, source: &[u8; 16]) {
        let Some(limit) = &caps.held else { return };
        if self.0.is_empty() {
            self.0 = vec![0; HELD_COUNTERS as usize];
        }
        for place in counters(places(caps, limit, source)) {
            let count = &mut self.0[place as usize];
            *count = count.saturating_add(1);
        }
    }

    /// What a counter says.
    pub fn at(&self, place: u32) -> u32 {
        self.0.get(place as usize).copied().unwrap_or(0)
    }

    /// Connections of all prefixes.
    pub fn all(&self) -> u32 {
        self.at(ALL)
    }
}

/// What a counter is to say: what it does, less what it did when the count began, and what was counted.
pub fn correction(now: u32, before: u32, counted: u32) -> u32 {
    now.saturating_sub(before).saturating_add(counted)
}

/// The tick of a time.
pub fn held_tick(nanoseconds: u64) -> u32 {
    (nanoseconds >> HELD_TICK_SHIFT) as u32
}

/// The tick until which a count is believed that was made at this time.
pub fn held_until(nanoseconds: u64, lasts: Duration) -> u32 {
    let ticks = (lasts.as_nanos() >> HELD_TICK_SHIFT).clamp(1, 1 << 30) as u32;
    held_tick(nanoseconds).wrapping_add(ticks)
}

/// Whether a count is still believed.
pub fn is_believed(until: u32, nanoseconds: u64) -> bool {
    until.wrapping_sub(held_tick(nanoseconds)).wrapping_sub(1) < 1 << 31
}

/// The number of the count after this one: any but 0.
pub fn next_count(count: u8) -> u8 {
    count.checked_add(1).unwrap_or(1)
}

/// Whether a word of the connections that were counted lately is of this flow.
pub fn is_counted(word: u64, flow: u64) -> bool {
    word != 0 && (word ^ flow) >> 8 == 0
}

/// Whether a word of the connections that were counted lately is too old, in a count of this number.
pub fn is_old(word: u64, count: u8) -> bool {
    word != 0 && count.wrapping_sub(word as u8) > COUNTS_KEPT
}

/// The counters of all services, and what they know of lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// Those that are not 0, by their places.
    counters: HashMap<u32, u32>,
    /// By their places.
    flows: HashMap<u32, u64>,
    /// Until when counts are believed.
    until: HashMap<ServiceId, u32>,
    count: u8,
}

/// A connection that counts if it is taken.
pub(crate) struct Uncounted {
    places: [u32; 2],
    flow: u64,
}

impl Held {
    /// Whether a connection may begin as far as its prefix is concerned; with what counts if it does. None:
    /// nobody counts it, or it was counted when its SYN came before.
    pub fn ask(
        &self,
        service: ServiceId,
        caps: &FlowCaps,
        flow: &StateKey,
        now: u64,
    ) -> Result<Option<Uncounted>, ()> {
        let Some(limit) = caps.held.filter(|_| self.is_believed(service, now)) else {
            return Ok(None);
        };
        let places = places(caps, &limit, &flow.address);
        let flow = flow.hash(&caps.key);
        let known = self.flows.get(&(flow as u32 & (HELD_FLOWS - 1)));
        if known.is_some_and(|word| is_counted(*word, flow)) {
            return Ok(None);
        }
        if room(&limit, self.said(places)) == Some(0) {
            return Err(());
        }
        Ok(Some(Uncounted { places, flow }))
    }

    /// It was taken.
    pub fn hold(&mut self, Uncounted { places, flow }: Uncounted) {
        for place in counters(places) {
            let counter = self.counters.entry(place).or_default();
            *counter = counter.wrapping_add(1);
        }
        let word = flow & !0xff | u64::from(self.count);
        self.flows.insert(flow as u32 & (HELD_FLOWS - 1), word);
    }

    /// A connection has ended that was counted.
    pub fn release(&mut self, caps: &FlowCaps, flow: &StateKey) {
        let Some(limit) = &caps.held else { return };
        for place in counters(places(caps, limit, &flow.address)) {
            if let Some(counter) = self.counters.get_mut(&place) {
                *counter = counter.saturating_sub(1);
            }
        }
        let flow = flow.hash(&caps.key);
        let place = flow as u32 & (HELD_FLOWS - 1);
        if self.flows.get(&place).is_some_and(|word| is_counted(*word, flow)) {
            self.flows.remove(&place);
        }
    }

    /// What the counters say.
    pub fn counts(&self) -> HeldCounts {
        if self.counters.is_empty() {
            return HeldCounts::default();
        }
        let mut counts = vec![0; HELD_COUNTERS as usize];
        self.counters.iter().for_each(|(place, counter)| counts[*place as usize] = *counter);
        HeldCounts(counts)
    }

    /// Sets them right, of these services until this tick.
    pub fn correct(
        &mut self,
        before: &HeldCounts,
        counted: &HeldCounts,
        services: impl Iterator<Item = ServiceId>,
        until: u32,
    ) {
        let changed = |place: &u32| before.at(*place) != 0 || counted.at(*place) != 0;
        for place in (0..HELD_COUNTERS).filter(changed) {
            let counter = self.counters.entry(place).or_default();
            *counter = correction(*counter, before.at(place), counted.at(place));
        }
        self.counters.retain(|_, counter| *counter != 0);
        self.count = next_count(self.count);
        self.flows.retain(|_, word| !is_old(*word, self.count));
        self.until = services.map(|service| (service, until)).collect();
    }

    /// What was counted of a service's prefixes says nothing until it is counted anew.
    pub fn begin(&mut self, service: ServiceId) {
        self.until.remove(&service);
    }

    /// How many connections more a source's prefix may begin; none: any number.
    pub fn room(
        &self,
        service: ServiceId,
        caps: &FlowCaps,
        source: &[u8; 16],
        now: u64,
    ) -> Option<u64> {
        let limit = caps.held.filter(|_| self.is_believed(service, now))?;
        room(&limit, self.said(places(caps, &limit, source))).map(u64::from)
    }

    fn is_believed(&self, service: ServiceId, now: u64) -> bool {
        self.until.get(&service).is_some_and(|until| is_believed(*until, now))
    }

    fn said(&self, places: [u32; 2]) -> [u32; 3] {
        counters(places).map(|place| self.counters.get(&place).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::HashSet;
    use std::net::IpAddr;
    use weir_hash::HashKey;
    use weir_wire::map_address;

    const WEB: ServiceId = ServiceId(0);

    fn random() -> ChaCha8Rng {
        let given = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(rand::random);
        println!("WEIR_SEED={seed}");
        ChaCha8Rng::seed_from_u64(seed)
    }

    fn caps(most: u32, seed: u64) -> FlowCaps {
        let held = Some(SourceLimit { most, ipv4_bits: 24, ipv6_bits: 56 });
        FlowCaps { all: None, source: None, held, key: HashKey::from_seed(seed) }
    }

    fn flow(host: u32, port: u16) -> StateKey {
        let address = map_address(IpAddr::from(host.to_be_bytes()));
        StateKey { address, src_port: port, dst_port: 80 }
    }

    fn begins(held: &mut Held, caps: &FlowCaps, flow: &StateKey, now: u64) -> bool {
        match held.ask(WEB, caps, flow, now) {
            Err(()) => false,
            Ok(None) => true,
            Ok(Some(one)) => {
                held.hold(one);
                true
            }
        }
    }

    fn correct(held: &mut Held, counted: &HeldCounts) {
        let before = held.counts();
        held.correct(
            &before,
            counted,
            std::iter::once(WEB),
            held_until(0, Duration::from_secs(30)),
        );
    }

    /// Whoever begins, ends and begins again, and whenever it is counted: no prefix holds more than it may, and
    /// none is refused that shares neither of its counters.
    #[test]
    fn a_prefix_holds_as_many_as_it_may() {
        let mut rng = random();
        for _ in 0..8 {
            let (most, caps) = (rng.random_range(1..30), rng.random());
            let caps = self::caps(most, caps);
            let mut held = Held::default();
            correct(&mut held, &HeldCounts::default());
            let mut lives: Vec<HashSet<StateKey>> = vec![HashSet::new(); 40];
            for step in 0..5_000_u32 {
                let prefix = rng.random_range(0..lives.len());
                let host = 0x0a00_0000 | (prefix as u32) << 8 | rng.random_range(0..256);
                if rng.random_bool(0.6) {
                    // No other begins with the ports of one that was there.
                    let one = StateKey { dst_port: (step >> 16) as u16, ..flow(host, step as u16) };
                    let full = lives[prefix].len() >= most as usize;
                    assert_eq!(begins(&mut held, &caps, &one, 0), !full, "of {most}");
                    if !full {
                        assert!(begins(&mut held, &caps, &one, 0), "its SYN is sent again");
                        lives[prefix].insert(one);
                    }
                } else if let Some(one) = lives[prefix].iter().next().copied() {
                    lives[prefix].remove(&one);
                    held.release(&caps, &one);
                }
                // A count takes its time, and connections begin meanwhile.
                if rng.random_bool(0.01) {
                    let mut counted = HeldCounts::default();
                    lives.iter().flatten().for_each(|one| counted.add(&caps, &one.address));
                    let before = held.counts();
                    let late = flow(0x0aff_0000 | step, 9);
                    assert!(begins(&mut held, &caps, &late, 0));
                    let until = held_until(0, Duration::from_secs(30));
                    held.correct(&before, &counted, std::iter::once(WEB), until);
                    assert_eq!(held.room(WEB, &caps, &late.address, 0), Some(u64::from(most) - 1));
                    held.release(&caps, &late);
                }
            }
        }
    }

    #[test]
    fn what_nobody_sets_right_refuses_nothing() {
        let caps = caps(1, 3);
        let mut held = Held::default();
        let one = |port| flow(0x0a00_0001, port);
        for port in 0..3 {
            assert!(begins(&mut held, &caps, &one(port), 0), "it was never counted");
        }
        correct(&mut held, &HeldCounts::default());
        assert!(begins(&mut held, &caps, &one(3), 0) && !begins(&mut held, &caps, &one(4), 0));
        let late = Duration::from_secs(20).as_nanos() as u64;
        assert!(!begins(&mut held, &caps, &one(5), late));
        let later = Duration::from_secs(31).as_nanos() as u64;
        assert!(begins(&mut held, &caps, &one(6), later), "the control plane is gone");
        held.begin(WEB);
        assert!(begins(&mut held, &caps, &one(7), 0), "another prefix than was counted");
    }

    #[test]
    fn a_repeated_syn_counts_again_after_a_minute() {
        let caps = caps(2, 4);
        let mut held = Held::default();
        let mut counted = HeldCounts::default();
        correct(&mut held, &counted);
        let one = flow(0x0a00_0001, 7);
        assert!(begins(&mut held, &caps, &one, 0));
        counted.add(&caps, &one.address);
        counted.add(&caps, &one.address);
        for _ in 0..COUNTS_KEPT {
            correct(&mut held, &counted);
            assert!(begins(&mut held, &caps, &one, 0));
            assert!(!begins(&mut held, &caps, &flow(0x0a00_0001, 8), 0));
        }
        correct(&mut held, &counted);
        assert!(!begins(&mut held, &caps, &one, 0));
    }

    /// Where so many connections are held that counters say little of single prefixes, nobody is refused.
    #[test]
    fn a_crowd_refuses_nobody() {
        let (caps, mut rng) = (caps(2, 5), random());
        let mut held = Held::default();
        let own = flow(0x0a00_0001, 7);
        let mut counted = HeldCounts::default();
        (0..2).for_each(|_| counted.add(&caps, &own.address));
        while counted.all() < 2 * HELD_CROWD - 1 {
            counted.add(&caps, &flow(0x8000_0000 | rng.random_range(0..1 << 30), 1).address);
        }
        correct(&mut held, &counted);
        assert!(!begins(&mut held, &caps, &own, 0));
        // Of those who hold none few are refused even so.
        let others = 2_000;
        let refused = |n: &u32| held.room(WEB, &caps, &flow(*n << 8, 1).address, 0) == Some(0);
        assert!((0x0b_0000..0x0b_0000 + others).filter(refused).count() < 40);
        counted.add(&caps, &flow(0xc000_0000, 1).address);
        correct(&mut held, &counted);
        assert!(begins(&mut held, &caps, &own, 0));
        assert_eq!(held.room(WEB, &caps, &own.address, 0), None);
    }

    /// What the documentation says of innocent prefixes beside many that hold as many as they may: of `n`, the
    /// share of others that find both of their counters full is `(1 - (1 - 1/row)^n)^2`.
    #[test]
    fn few_prefixes_share_both_counters_with_full_ones() {
        let mut rng = random();
        let caps = caps(1, rng.random());
        let mut counted = HeldCounts::default();
        let full = 24_000_u32;
        (0..full).for_each(|n| counted.add(&caps, &flow(n << 8, 1).address));
        let mut held = Held::default();
        correct(&mut held, &counted);
        let others = 100_000_u32;
        let refused = |n: &u32| held.ask(WEB, &caps, &flow(0x8000_0000 | *n << 8, 1), 0).is_err();
        let share = (0..others).filter(refused).count() as f64 / f64::from(others);
        let one = 1.0 - (1.0 - 1.0 / f64::from(HELD_ROW)).powi(full as i32);
        let expected = one * one;
        // Ten standard deviations of so many draws.
        let margin = 10.0 * (expected / f64::from(others)).sqrt();
        assert!((share - expected).abs() < margin, "{share} for {expected}");
    }
}
