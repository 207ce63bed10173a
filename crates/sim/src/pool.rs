//! The history of the pool: who serves, who is down, who is expected back.

use crate::distribution::StepCdf;
use crate::method::Change;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What happens to the connections of a server that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Departure {
    /// It fails: they are lost.
    #[default]
    Fail,
    /// It drains: they live on, new flows go elsewhere.
    Drain,
}

/// Servers `0..servers` serve at first; the numbers after them are spares that only ever stand on
/// the horizon.
pub(crate) struct Pool {
    working: Vec<u16>,
    /// (return time, server), soonest first.
    down: Vec<(f64, u16)>,
    horizon: Vec<u16>,
    spares: std::ops::Range<u16>,
    size: usize,
    departure: Departure,
    rng: ChaCha8Rng,
}

impl Pool {
    pub fn new(servers: u16, horizon: u16, departure: Departure, seed: u64) -> Self {
        Self {
            working: (0..servers).collect(),
            down: Vec::new(),
            horizon: Vec::new(),
            spares: servers..servers + horizon,
            size: usize::from(horizon),
            departure,
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    pub fn working(&self) -> &[u16] {
        &self.working
    }

    /// All servers join, and the horizon fills with spares.
    pub fn open(&mut self, changes: &mut Vec<Change>) {
        changes.extend(self.working.iter().map(|&server| Change::Add(server)));
        self.expect(changes);
    }

    /// The gap to the next event of a Poisson process.
    pub fn gap(&mut self, per_second: f64) -> f64 {
        -(1.0 - self.rng.random::<f64>()).ln() / per_second
    }

    /// A working server leaves, each with equal probability, and the time when it will be back.
    /// The last one stays. Every call draws as much from the generator as any other.
    pub fn depart(
        &mut self,
        now: f64,
        down_times: &StepCdf,
        changes: &mut Vec<Change>,
    ) -> Option<(f64, u16)> {
        let (u, down) = (self.rng.random::<f64>(), down_times.sample(&mut self.rng));
        if self.working.len() < 2 {
            return None;
        }
        let server = self.working.swap_remove((u * self.working.len() as f64) as usize);
        let back = now + down;
        let place = self.down.partition_point(|other| other.0 <= back);
        self.down.insert(place, (back, server));
        changes.push(match self.departure {
            Departure::Fail => Change::Remove(server),
            Departure::Drain => Change::Drain(server),
        });
        self.expect(changes);
        Some((back, server))
    }

    pub fn come_back(&mut self, server: u16, changes: &mut Vec<Change>) {
        self.down.retain(|other| other.1 != server);
        self.horizon.retain(|&other| other != server);
        self.working.push(server);
        changes.push(Change::Add(server));
        self.expect(changes);
    }

    /// The horizon: the servers that come back soonest, filled up with spares.
    fn expect(&mut self, changes: &mut Vec<Change>) {
        let wanted: Vec<u16> =
            self.down.iter().map(|d| d.1).chain(self.spares.clone()).take(self.size).collect();
        let gone = self.horizon.iter().filter(|s| !wanted.contains(s));
        changes.extend(gone.map(|&server| Change::Unexpect(server)));
        let new = wanted.iter().filter(|s| !self.horizon.contains(s));
        changes.extend(new.map(|&server| Change::Expect(server)));
        self.horizon = wanted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_horizon_holds_those_that_return_first() {
        let mut pool = Pool::new(4, 2, Departure::Fail, 1);
        let mut changes = Vec::new();
        pool.open(&mut changes);
        assert_eq!(changes[4..], [Change::Expect(4), Change::Expect(5)]);
        let mut gone = Vec::new();
        for down in [30.0, 20.0, 10.0] {
            changes.clear();
            gone.push(pool.depart(0.0, &StepCdf::constant(down), &mut changes).unwrap().1);
        }
        let last_two = [Change::Unexpect(gone[0]), Change::Expect(gone[2])];
        assert_eq!(changes, [vec![Change::Remove(gone[2])], last_two.to_vec()].concat());
        assert!(pool.depart(0.0, &StepCdf::constant(1.0), &mut changes).is_none(), "the last one");
        changes.clear();
        pool.come_back(gone[2], &mut changes);
        assert_eq!(changes, [Change::Add(gone[2]), Change::Expect(gone[0])]);
    }
}
