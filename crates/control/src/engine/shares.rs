//! What share of the new connections each backend gets: its weight, what it says of itself in its checks'
//! answers, and how long it has been up.

use std::time::{Duration, Instant};

use weir_plane::Plane;

use super::Engine;
use super::service::{PoolMember, ServiceRuntime};
use crate::config::{Check, Spoken};

/// Steps in which a backend that has come up gets its whole weight.
const STEPS: u32 = 10;
/// In these units weights are multiplied, so that parts of a small weight can be told.
const WHOLE: u32 = 100;
/// The largest, in those units: what tables take.
const MOST: u32 = u16::MAX as u32 * WHOLE;

/// The slow start of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rising {
    /// When it came up.
    since: Instant,
    /// How far it is, 1 to [`STEPS`] - 1.
    step: u32,
}

impl Rising {
    /// That of a backend that comes up now, if its check wants one.
    pub fn begin(check: Option<&Check>, now: Instant) -> Option<Self> {
        let slow = check.is_some_and(|check| !check.slow_start.is_zero());
        slow.then_some(Self { since: now, step: 1 })
    }

    /// How far it is after a time; none at its end.
    fn later(self, over: Duration, now: Instant) -> Option<Self> {
        let passed = now.saturating_duration_since(self.since);
        if passed >= over {
            return None;
        }
        let share = passed.as_secs_f64() / over.as_secs_f64();
        let step = (1 + (share * f64::from(STEPS - 1)) as u32).min(STEPS - 1);
        Some(Self { step, ..self })
    }

    /// Its share of the weight, in hundredths; never nothing.
    fn share(self, curve: u32) -> u32 {
        let part = f64::from(self.step) / f64::from(STEPS);
        let part = part.powi(curve.clamp(1, 10).cast_signed());
        ((part * f64::from(WHOLE)) as u32).clamp(1, WHOLE)
    }
}

/// The weight in hundredths: what it says, and how far it has risen.
fn hundredths(member: &PoolMember, check: Option<&Check>) -> u32 {
    let weight = u32::from(member.wanted.weight);
    // With a weight of 0 an operator has taken it out.
    let spoken = match member.spoken.filter(|_| weight > 0) {
        None => weight * WHOLE,
        Some(Spoken::Weight(own)) => u32::from(own) * WHOLE,
        Some(Spoken::Percent(percent)) => weight.saturating_mul(percent.into()),
    };
    let most = spoken.min(MOST);
    match (member.rising, check) {
        (Some(rising), Some(check)) if most > 0 => {
            let share = u64::from(most) * u64::from(rising.share(check.slow_start_curve));
            u32::try_from(share / u64::from(WHOLE)).unwrap_or(MOST).max(1)
        }
        _ => most,
    }
}

fn divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { divisor(other, one % other) }
}

impl ServiceRuntime {
    /// The weights of its pool, in its order, in units of their own.
    pub fn weights(&self) -> Vec<u32> {
        let plain = || self.pool.iter().map(|member| u32::from(member.wanted.weight)).collect();
        if self.pool.iter().all(|member| member.spoken.is_none() && member.rising.is_none()) {
            return plain();
        }
        let all: Vec<u32> = self
            .pool
            .iter()
            .map(|member| hundredths(member, self.configured.check_of(&member.wanted)))
            .collect();
        // If those that say 0 were all that there are, nobody would take what comes.
        let takes = |(member, weight): (&PoolMember, &u32)| *weight > 0 && self.takes(member);
        if !self.pool.iter().zip(&all).any(takes) {
            return plain();
        }
        let common = all.iter().copied().fold(0, divisor).max(1);
        // What weights of the file are is told as there.
        let common = if common % WHOLE == 0 { WHOLE } else { common };
        all.into_iter().map(|weight| weight / common).collect()
    }

    fn takes(&self, member: &PoolMember) -> bool {
        self.takes_new(member) && self.takes_as_up(member) && !self.is_spare(member)
    }

    /// Its weight as it counts now, in units of the file's.
    pub fn effective_weight(&self, member: &PoolMember) -> f64 {
        let check = self.configured.check_of(&member.wanted);
        f64::from(hundredths(member, check)) / f64::from(WHOLE)
    }

    /// Goes on with slow starts, and forgets what answers said that are not asked any more.
    pub fn rise(&mut self, now: Instant) {
        let mut changed = false;
        let told = |member: &&mut PoolMember| member.spoken.is_some() || member.rising.is_some();
        for member in self.pool.iter_mut().filter(told) {
            let check = self.configured.check_of(&member.wanted);
            if member.spoken.is_some() && check.is_none_or(|check| !check.what.asks_weight()) {
                member.spoken = None;
                changed = true;
            }
            if let Some(rising) = member.rising {
                let over = check.map_or(Duration::ZERO, |check| check.slow_start);
                let next = if member.up { rising.later(over, now) } else { None };
                changed |= next != member.rising;
                member.rising = next;
            }
        }
        self.dirty |= changed;
    }
}

impl<P: Plane> Engine<P> {
    /// Goes on with the slow starts of all services.
    pub(super) fn rise(&mut self) {
        let now = Instant::now();
        self.services.values_mut().for_each(|service| service.rise(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_start_has_ten_steps_and_a_curve() {
        let (since, over) = (Instant::now(), Duration::from_secs(90));
        let mut rising = Some(Rising { since, step: 1 });
        let mut shares = Vec::new();
        for second in 0..=90 {
            let now = since + Duration::from_secs(second);
            rising = rising.and_then(|one| one.later(over, now));
            shares.push(rising.map_or(100, |one| one.share(1)));
        }
        assert!(shares.is_sorted(), "{shares:?}");
        shares.dedup();
        assert_eq!(shares, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        let curved: Vec<u32> = (1..10).map(|step| Rising { since, step }.share(3)).collect();
        assert_eq!(curved, [1, 1, 2, 6, 12, 21, 34, 51, 72]);
    }
}
