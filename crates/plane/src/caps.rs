//! How many new flows a service takes, in all and from each prefix of sources: token buckets.
//!
//! A bucket is one word, the time at which it will be full, so that taking from it is one compare and swap.
//! Those of sources stand in an array of a fixed size, two for each prefix, where a secret key puts them. A
//! flow is taken if either has a whole one for it, and both give one, or what they have. So no prefix gets
//! more than its rate, since the fuller of its buckets loses one for each of its flows; and a prefix is kept
//! from what it may have only if others have emptied *both* of its buckets. The twin of `bpf/caps.h`.

use crate::held::{Held, HeldCounts, SourceLimit, places};
use std::collections::HashMap;
use std::convert::Infallible;
use weir_hash::HashKey;
use weir_steering::{ServiceId, StateKey};
use weir_wire::hash::hash_address;
use weir_wire::{Reason, unmap_address};

/// Buckets of each of both rows.
pub const CAP_ROW: u32 = 1 << 16;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// So many flows in a second, and so many at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    interval: u64,
    room: u64,
}

impl Rate {
    /// Of so many in a second, to the nearest nanosecond between two; and so many at once. Neither is 0.
    pub fn per_second(rate: u32, burst: u32) -> Self {
        let rate = u64::from(rate.max(1));
        Self::every((SECOND + rate / 2) / rate, burst)
    }

    /// Of one in so many nanoseconds; and so many at once. Neither is 0.
    pub fn every(nanoseconds: u64, burst: u32) -> Self {
        let interval = nanoseconds.max(1);
        Self { interval, room: interval.saturating_mul(burst.max(1).into()) }
    }

    /// As it stands in a kernel plane; `None` if there is none.
    pub fn from_words(interval: u64, room: u64) -> Option<Self> {
        (interval != 0).then_some(Self { interval, room })
    }

    /// Nanoseconds from one flow to the next, and those in which an empty bucket becomes full.
    pub fn words(&self) -> (u64, u64) {
        (self.interval, self.room)
    }
}

/// The rate of each prefix of sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceRate {
    /// Of each prefix.
    pub rate: Rate,
    /// Bits of a prefix of IPv4, 1 to 32.
    pub ipv4_bits: u8,
    /// Of IPv6, 1 to 128.
    pub ipv6_bits: u8,
}

impl SourceRate {
    /// The prefix that an address has, as an address.
    pub fn prefix_of(&self, source: &[u8; 16]) -> [u8; 16] {
        prefix_of(source, self.ipv4_bits, self.ipv6_bits)
    }
}

/// The prefix that an address has, as an address.
pub(crate) fn prefix_of(source: &[u8; 16], ipv4_bits: u8, ipv6_bits: u8) -> [u8; 16] {
    let ipv4 = unmap_address(source).is_ipv4();
    let bits = if ipv4 { 96 + u32::from(ipv4_bits) } else { ipv6_bits.into() };
    let host = u128::MAX.checked_shr(bits).unwrap_or(0);
    (u128::from_be_bytes(*source) & !host).to_be_bytes()
}

/// How many new flows a service takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowCaps {
    /// Of all sources together; `None`: any number.
    pub all: Option<Rate>,
    /// Of each prefix of sources; `None`: any number.
    pub source: Option<SourceRate>,
    /// Connections that each prefix of sources may hold; `None`: any number.
    pub held: Option<SourceLimit>,
    /// Which buckets a prefix has is known to who has it.
    pub key: HashKey,
}

impl FlowCaps {
    /// The buckets of a source's prefix, among those of both rows.
    pub fn buckets_of(&self, rate: &SourceRate, source: &[u8; 16]) -> [u32; 2] {
        let hash = hash_address(&self.key, &rate.prefix_of(source), 0);
        let bits = CAP_ROW - 1;
        [hash as u32 & bits, CAP_ROW + ((hash >> 32) as u32 & bits)]
    }

    /// Where the counters of a source's prefix stand, if there is a limit: by column, both rows beside each other.
    pub fn counters_of(&self, source: &[u8; 16]) -> Option<[u32; 2]> {
        self.held.as_ref().map(|limit| places(self, limit, source))
    }

    /// How many new flows are taken of a source now, by the service's own bucket and those of prefixes.
    ///
    /// # Errors
    /// What keeps a bucket from being read.
    pub fn room<E>(
        &self,
        source: &[u8; 16],
        now: u64,
        own: Bucket,
        of_prefixes: impl Fn(u32) -> Result<Bucket, E>,
    ) -> Result<FlowRoom, E> {
        let source = self.source.map(|each| {
            let [one, other] = self.buckets_of(&each, source);
            let left = |at| of_prefixes(at).map(|bucket| bucket.left(now, &each.rate));
            Ok(left(one)?.max(left(other)?))
        });
        let all = self.all.map(|rate| own.left(now, &rate));
        Ok(FlowRoom { all, source: source.transpose()?, connections: None })
    }
}

/// How many new flows would be taken just now, if they came at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowRoom {
    /// Of all sources together; `None`: any number.
    pub all: Option<u64>,
    /// Of a source's prefix; `None`: any number.
    pub source: Option<u64>,
    /// Until its prefix holds as many connections as it may; `None`: any number.
    pub connections: Option<u64>,
}

/// New flows that were not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CappedFlows {
    /// As the service had taken what it takes.
    pub all: u64,
    /// As their prefix had.
    pub source: u64,
    /// As their prefix held as many connections as it may.
    pub connections: u64,
}

/// A bucket, by the time at which it will be full, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bucket(u64);

impl Bucket {
    /// Takes one out, if there is a whole one.
    pub fn take(&mut self, now: u64, rate: &Rate) -> bool {
        let owed = self.owed(now, rate);
        let after = owed + rate.interval;
        if after > rate.room {
            // Other rates held when it was written.
            if self.0 > now + rate.room {
                self.0 = now + rate.room;
            }
            return false;
        }
        self.0 = now + after;
        true
    }

    /// Takes one out, or what there is of one.
    pub fn give(&mut self, now: u64, rate: &Rate) {
        self.0 = now + (self.owed(now, rate) + rate.interval).min(rate.room);
    }

    /// One that will be full at this time.
    pub fn full_at(time: u64) -> Self {
        Self(time)
    }

    /// How many flows there are in it.
    pub fn left(&self, now: u64, rate: &Rate) -> u64 {
        (rate.room - self.owed(now, rate)) / rate.interval
    }

    /// Nanoseconds until it is full.
    fn owed(&self, now: u64, rate: &Rate) -> u64 {
        self.0.saturating_sub(now).min(rate.room)
    }

    /// As if so much time had passed.
    fn age(&mut self, nanoseconds: u64) {
        self.0 = self.0.saturating_sub(nanoseconds);
    }
}

/// The buckets of all services, and what they have counted.
#[derive(Clone, Debug, Default)]
pub struct Buckets {
    all: HashMap<ServiceId, Bucket>,
    /// Of prefixes, by their places; those that are full may be missing.
    sources: HashMap<u32, Bucket>,
    capped: HashMap<ServiceId, CappedFlows>,
    held: Held,
}

impl Buckets {
    /// Whether a service takes this new flow now; it counts as taken. What is refused by one of its caps takes
    /// nothing by those after it.
    ///
    /// # Errors
    /// [`Reason::SourceConnectionCap`], [`Reason::SourceFlowCap`], [`Reason::NewFlowCap`].
    pub fn take(
        &mut self,
        service: ServiceId,
        caps: &FlowCaps,
        flow: &StateKey,
        now: u64,
    ) -> Result<(), Reason> {
        let source = &flow.address;
        let Ok(uncounted) = self.held.ask(service, caps, flow, now) else {
            self.capped.entry(service).or_default().connections += 1;
            return Err(Reason::SourceConnectionCap);
        };
        if let Some(each) = &caps.source
            && !self.take_of_source(caps.buckets_of(each, source), &each.rate, now)
        {
            self.capped.entry(service).or_default().source += 1;
            return Err(Reason::SourceFlowCap);
        }
        if let Some(rate) = &caps.all
            && !self.all.entry(service).or_default().take(now, rate)
        {
            self.capped.entry(service).or_default().all += 1;
            return Err(Reason::NewFlowCap);
        }
        if let Some(uncounted) = uncounted {
            self.held.hold(uncounted);
        }
        Ok(())
    }

    /// What the counters of connections say.
    pub fn held(&self) -> HeldCounts {
        self.held.counts()
    }

    /// Sets the counters of connections right: they said `before` when the count began. It is believed of these
    /// services until this tick.
    pub fn correct_held(
        &mut self,
        before: &HeldCounts,
        counted: &HeldCounts,
        services: impl Iterator<Item = ServiceId>,
        until: u32,
    ) {
        self.held.correct(before, counted, services, until);
    }

    /// A connection that was counted has ended.
    pub fn release_held(&mut self, caps: &FlowCaps, flow: &StateKey) {
        self.held.release(caps, flow);
    }

    /// The connections of a service's prefixes are to be counted before any is refused.
    pub fn begin_held(&mut self, service: ServiceId) {
        self.held.begin(service);
    }

    fn take_of_source(&mut self, [one, other]: [u32; 2], rate: &Rate, now: u64) -> bool {
        for (at, beside) in [(one, other), (other, one)] {
            if self.sources.entry(at).or_default().take(now, rate) {
                self.sources.entry(beside).or_default().give(now, rate);
                return true;
            }
        }
        false
    }

    /// A service's own bucket is full, and nothing is counted of it.
    pub fn begin(&mut self, service: ServiceId) {
        self.held.begin(service);
        self.all.remove(&service);
        self.capped.remove(&service);
    }

    /// How many new flows a service takes of this source now.
    pub fn room(
        &self,
        service: ServiceId,
        caps: &FlowCaps,
        source: &[u8; 16],
        now: u64,
    ) -> FlowRoom {
        let own = self.all.get(&service).copied().unwrap_or_default();
        let of_prefixes =
            |at| Ok::<_, Infallible>(self.sources.get(&at).copied().unwrap_or_default());
        let Ok(room) = caps.room(source, now, own, of_prefixes);
        FlowRoom { connections: self.held.room(service, caps, source, now), ..room }
    }

    /// What was not taken of a service.
    pub fn capped(&self, service: ServiceId) -> CappedFlows {
        self.capped.get(&service).copied().unwrap_or_default()
    }

    /// As if so much time had passed.
    pub fn age(&mut self, nanoseconds: u64) {
        self.all.values_mut().chain(self.sources.values_mut()).for_each(|one| one.age(nanoseconds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::net::IpAddr;
    use weir_wire::map_address;

    fn random() -> ChaCha8Rng {
        let given = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(rand::random);
        println!("WEIR_SEED={seed}");
        ChaCha8Rng::seed_from_u64(seed)
    }

    fn flow(address: [u8; 16]) -> StateKey {
        StateKey { address, src_port: 7, dst_port: 80 }
    }

    fn address(text: &str) -> [u8; 16] {
        map_address(text.parse::<IpAddr>().expect("an address"))
    }

    /// In any stretch of time a bucket gives at most the burst and what comes in meanwhile; and it refuses
    /// only when it has given as much as a bucket of whole tokens would have.
    #[test]
    fn a_bucket_gives_the_burst_and_then_the_rate() {
        let mut rng = random();
        for _ in 0..200 {
            let (interval, burst) = (rng.random_range(1..5000), rng.random_range(1..40));
            let rate = Rate::every(interval, burst);
            let mut bucket = Bucket::default();
            let (mut now, mut taken) = (rng.random_range(0..1 << 50), Vec::new());
            // The level in nanoseconds of the rate, kept in another way.
            let (mut level, mut last) = (rate.room, now);
            for _ in 0..500 {
                now += match rng.random_range(0..4) {
                    0 => 0,
                    1 => rng.random_range(0..interval * 2),
                    2 => rng.random_range(0..interval.div_ceil(4) + 1),
                    _ => rng.random_range(0..interval * u64::from(burst) / 8 + 1),
                };
                level = rate.room.min(level + (now - last));
                last = now;
                let gives = level >= interval;
                assert_eq!(bucket.take(now, &rate), gives, "at {now}, of {rate:?}");
                if gives {
                    level -= interval;
                    taken.push(now);
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, to) in taken.iter().enumerate().skip(first) {
                    let most = u64::from(burst) + (to - from) / interval;
                    assert!((last - first + 1) as u64 <= most, "{rate:?}: {first}..={last}");
                }
            }
        }
    }

    /// Whatever others take out of its buckets, a prefix gets no more than its rate; and if nobody is in both
    /// of them, no less.
    #[test]
    fn a_prefix_gets_its_rate_whoever_shares_its_buckets() {
        let mut rng = random();
        for _ in 0..100 {
            let (interval, burst) = (rng.random_range(1..2000), rng.random_range(1..20));
            let rate = Rate::every(interval, burst);
            let key = HashKey::from_seed(rng.random());
            let source = SourceRate { rate, ipv4_bits: 32, ipv6_bits: 56 };
            let caps = FlowCaps { all: None, source: Some(source), held: None, key };
            let own = address("192.0.2.1");
            let [one, other] = caps.buckets_of(&source, &own);
            // Who shares the first bucket, the second, or none.
            let mut neighbours: Vec<u32> = Vec::new();
            let both = rng.random_bool(0.5);
            neighbours.push(one);
            if both {
                neighbours.push(other);
            }
            let mut buckets = Buckets::default();
            let mut alone = Bucket::default();
            let (mut now, mut taken) = (rng.random_range(0..1 << 40), Vec::new());
            for _ in 0..600 {
                now += rng.random_range(0..interval);
                if rng.random_bool(0.7) {
                    let at = neighbours[rng.random_range(0..neighbours.len())];
                    buckets.take_of_source([at, CAP_ROW * 2 + at], &rate, now);
                    continue;
                }
                let took = buckets.take(ServiceId(0), &caps, &flow(own), now).is_ok();
                let would = alone.take(now, &rate);
                assert!(took || !would || both, "another one took what was its own");
                if took {
                    taken.push(now);
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, to) in taken.iter().enumerate().skip(first) {
                    let most = u64::from(burst) + (to - from) / interval;
                    assert!((last - first + 1) as u64 <= most, "{rate:?}: {first}..={last}");
                }
            }
            assert_eq!(buckets.capped(ServiceId(0)).all, 0);
        }
    }

    #[test]
    fn prefixes_are_of_either_family() {
        let rate = Rate::per_second(10, 1);
        let bits = |ipv4_bits, ipv6_bits| SourceRate { rate, ipv4_bits, ipv6_bits };
        for (of, source, prefix) in [
            (bits(24, 56), "192.0.2.77", "192.0.2.0"),
            (bits(32, 56), "192.0.2.77", "192.0.2.77"),
            (bits(1, 128), "192.0.2.77", "128.0.0.0"),
            (bits(24, 56), "2001:db8:1:2ff::7", "2001:db8:1:200::"),
            (bits(24, 128), "2001:db8:1:2ff::7", "2001:db8:1:2ff::7"),
            (bits(24, 1), "2001:db8::7", "::"),
            (bits(24, 65), "2001:db8::8000:0:0:7", "2001:db8:0:0:8000::"),
        ] {
            assert_eq!(of.prefix_of(&address(source)), address(prefix), "{source}");
        }
    }

    /// The nearest nanosecond; a million in a second is exact.
    #[test]
    fn rates_are_kept_as_nanoseconds() {
        for (rate, interval) in
            [(1, 1_000_000_000), (3, 333_333_333), (7, 142_857_143), (1_000_000, 1000)]
        {
            assert_eq!(Rate::per_second(rate, 5).words(), (interval, interval * 5));
        }
    }

    /// A slower rate that becomes a faster one holds from then on: what is owed of the slow one is no more
    /// than an empty bucket of the fast one.
    #[test]
    fn another_rate_holds_at_once() {
        let (slow, fast) = (Rate::every(3600 * SECOND, 5), Rate::every(1000, 5));
        let mut bucket = Bucket::default();
        assert_eq!((0..9).filter(|_| bucket.take(7, &slow)).count(), 5);
        assert!(!bucket.take(10, &fast));
        assert!(bucket.take(1010, &fast), "an interval later");
        assert!(!bucket.take(1011, &fast));
    }

    /// What the documentation says of innocent prefixes beside many that flood: of `n` that empty their
    /// buckets, the share of others that find both of theirs empty is `(1 - (1 - 1/row)^n)^2`.
    #[test]
    fn few_prefixes_share_both_buckets_with_floods() {
        let mut rng = random();
        let rate = Rate::every(SECOND * 3600, 2);
        let source = SourceRate { rate, ipv4_bits: 32, ipv6_bits: 56 };
        let key = HashKey::from_seed(rng.random());
        let caps = FlowCaps { all: None, source: Some(source), held: None, key };
        let mut buckets = Buckets::default();
        let floods = 6000_u32;
        let host = |n: u32| map_address(IpAddr::from(n.to_be_bytes()));
        for n in 0..floods {
            let from = flow(host(0x0a00_0000 + n));
            while buckets.take(ServiceId(0), &caps, &from, 1).is_ok() {}
        }
        let others = 100_000_u32;
        let empty = |n: &u32| {
            let at = caps.buckets_of(&source, &host(0xc000_0000 + n));
            at.iter().all(|at| buckets.sources.get(at).is_some_and(|one| one.0 > rate.interval * 2))
        };
        let share = (0..others).filter(empty).count() as f64 / f64::from(others);
        let one = 1.0 - (1.0 - 1.0 / f64::from(CAP_ROW)).powi(floods as i32);
        let expected = one * one;
        // Ten standard deviations of so many draws.
        let margin = 10.0 * (expected / f64::from(others)).sqrt();
        assert!((share - expected).abs() < margin, "{share} for {expected}");
    }
}
