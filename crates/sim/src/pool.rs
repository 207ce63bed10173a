//! The history of the pool: who serves, who is down, who is expected back.

use crate::distribution::StepCdf;
use crate::method::Change;
use crate::world::{Action, Scripted, World};
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

impl Departure {
    fn change(self, server: u16) -> Change {
        match self {
            Self::Fail => Change::Remove(server),
            Self::Drain => Change::Drain(server),
        }
    }
}

/// Servers `0..servers` serve at first, those on standby have the numbers after them, and the
/// last ones are spares that only ever stand on the horizon.
pub(crate) struct Pool {
    working: Vec<u16>,
    /// (return time, server), soonest first. An infinite time: not known to return.
    down: Vec<(f64, u16)>,
    horizon: Vec<u16>,
    spares: std::ops::Range<u16>,
    size: usize,
    departure: Departure,
    script: Vec<Scripted>,
    rng: ChaCha8Rng,
}

impl Pool {
    pub fn new(world: &World, seed: u64) -> Self {
        let first_spare = world.servers + world.standby;
        let mut pool = Self {
            working: (0..world.servers).collect(),
            down: Vec::new(),
            horizon: Vec::new(),
            spares: first_spare..first_spare + world.horizon,
            size: usize::from(world.horizon),
            departure: world.departure,
            script: world.script.clone(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        for server in world.servers..first_spare {
            pool.put_down(pool.next_add(server, -1.0), server);
        }
        pool
    }

    pub fn working(&self) -> &[u16] {
        &self.working
    }

    /// All servers join, and the horizon fills.
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
        self.put_down(back, server);
        changes.push(self.departure.change(server));
        self.expect(changes);
        Some((back, server))
    }

    /// A server that is down returns, if it is still this departure that it returns from.
    pub fn come_back(&mut self, now: f64, server: u16, changes: &mut Vec<Change>) -> bool {
        let due = self.down.contains(&(now, server));
        due && self.add(server, changes)
    }

    /// A server joins. False if it serves already.
    pub fn add(&mut self, server: u16, changes: &mut Vec<Change>) -> bool {
        if self.working.contains(&server) {
            return false;
        }
        self.down.retain(|other| other.1 != server);
        self.horizon.retain(|&other| other != server);
        self.working.push(server);
        changes.push(Change::Add(server));
        self.expect(changes);
        true
    }

    /// A server leaves because the script says so. False if it does not serve.
    pub fn take(
        &mut self,
        now: f64,
        server: u16,
        how: Departure,
        changes: &mut Vec<Change>,
    ) -> bool {
        let Some(place) = self.working.iter().position(|&other| other == server) else {
            return false;
        };
        self.working.swap_remove(place);
        self.put_down(self.next_add(server, now), server);
        changes.push(how.change(server));
        self.expect(changes);
        true
    }

    fn put_down(&mut self, back: f64, server: u16) {
        let place = self.down.partition_point(|other| other.0 <= back);
        self.down.insert(place, (back, server));
    }

    /// When the script lets a server join.
    fn next_add(&self, server: u16, now: f64) -> f64 {
        let adds = self.script.iter().filter(
            |scripted| matches!(&scripted.action, Action::Add(servers) if servers.contains(&server)),
        );
        adds.filter_map(|scripted| scripted.next_after(now)).fold(f64::INFINITY, f64::min)
    }

    /// The horizon: the servers that come back soonest, filled up with spares.
    fn expect(&mut self, changes: &mut Vec<Change>) {
        let known = self.down.iter().filter(|down| down.0.is_finite()).map(|down| down.1);
        let wanted: Vec<u16> = known.chain(self.spares.clone()).take(self.size).collect();
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

    fn pool(servers: u16, standby: u16, horizon: u16, script: Vec<Scripted>) -> Pool {
        let world = World { servers, standby, horizon, script, ..World::published(1.0, 1) };
        Pool::new(&world, 1)
    }

    #[test]
    fn the_horizon_holds_those_that_return_first() {
        let mut pool = pool(4, 0, 2, Vec::new());
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
        assert!(!pool.come_back(9.0, gone[2], &mut changes), "not yet");
        assert!(pool.come_back(10.0, gone[2], &mut changes));
        assert_eq!(changes, [Change::Add(gone[2]), Change::Expect(gone[0])]);
    }

    #[test]
    fn a_server_that_the_script_will_add_is_expected_before_any_spare() {
        let scripted = Scripted { at: 7.0, every: Some(10.0), action: Action::Add(vec![2]) };
        let mut pool = pool(2, 2, 1, vec![scripted]);
        let mut changes = Vec::new();
        pool.open(&mut changes);
        assert_eq!(changes[2..], [Change::Expect(2)], "3 is on standby without a date, 4 a spare");
        changes.clear();
        assert!(pool.add(2, &mut changes));
        assert!(!pool.add(2, &mut changes), "it serves already");
        assert_eq!(changes, [Change::Add(2), Change::Expect(4)]);
        changes.clear();
        assert!(pool.take(8.0, 2, Departure::Drain, &mut changes));
        assert_eq!(changes, [Change::Drain(2), Change::Unexpect(4), Change::Expect(2)]);
        assert_eq!(pool.next_add(2, 8.0), 17.0);
    }
}
