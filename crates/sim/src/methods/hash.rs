//! Plain hashing, with and without a second chance.

use super::{below, mix};
use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, Method, NOBODY, Probe};

/// Equal-cost multipath: the hash modulo the number of live servers. A change moves nearly every
/// flow. (This is not the "hash" of Cheetah's figure 2a; that is [`Buckets::hash`].)
#[derive(Default, Debug)]
pub struct Modulo {
    servers: Vec<u16>,
}

impl Modulo {
    /// Without servers.
    pub fn new() -> Self {
        Self::default()
    }

    fn pick(&self, hash: u64) -> Option<u16> {
        let n = self.servers.len() as u64;
        (n > 0).then(|| self.servers[(hash % n) as usize])
    }
}

impl Method for Modulo {
    fn first(&mut self, flow: FlowRef, _: &mut Traffic, _: &mut Effects) -> Option<u16> {
        self.pick(flow.hash)
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        Probe::quiet(self.pick(flow.hash).unwrap_or(NOBODY))
    }

    fn change(&mut self, changes: &[Change], _: &mut Traffic, effects: &mut Effects) {
        for &change in changes {
            match change {
                Change::Add(server) => self.servers.push(server),
                Change::Remove(server) | Change::Drain(server) => {
                    self.servers.retain(|&other| other != server);
                }
                Change::Expect(_) | Change::Unexpect(_) => {}
            }
        }
        self.servers.sort_unstable();
        effects.rows.push(0);
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        Gauges::default()
    }
}

/// An indirection table of buckets. Each server is the home of its share of them; while it is
/// away they are with others, drawn at random, and they come home when it is back.
///
/// With the chain it is Beamer's and Faild's: a bucket also names its previous server, and the
/// current one passes on what it does not hold. A flow breaks when its bucket changes twice.
#[derive(Debug)]
pub struct Buckets {
    current: Vec<u16>,
    previous: Vec<u16>,
    home: Vec<u16>,
    live: Vec<u16>,
    chain: bool,
    draws: u64,
}

impl Buckets {
    /// The table without a second chance: "hash" in Cheetah's figure 2a.
    pub fn hash(buckets: usize, weights: &[u32]) -> Self {
        Self::new(buckets, weights, false)
    }

    /// The table with one previous owner per bucket.
    pub fn chain(buckets: usize, weights: &[u32]) -> Self {
        Self::new(buckets, weights, true)
    }

    /// `weights`: of the servers that serve at first; their numbers are its indices.
    fn new(buckets: usize, weights: &[u32], chain: bool) -> Self {
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum::<u64>().max(1);
        let mut home = Vec::with_capacity(buckets);
        let mut upto = 0;
        for (server, &weight) in weights.iter().enumerate() {
            upto += u64::from(weight);
            home.resize((buckets as u64 * upto / total) as usize, server as u16);
        }
        home.resize(buckets, NOBODY);
        let nobody = vec![NOBODY; buckets];
        let (current, previous) = (nobody.clone(), nobody);
        Self { current, previous, home, live: Vec::new(), chain, draws: 0 }
    }

    fn set(&mut self, bucket: usize, server: u16, effects: &mut Effects) {
        if self.current[bucket] != server {
            self.previous[bucket] = self.current[bucket];
            self.current[bucket] = server;
            effects.rows.push(bucket as u32);
        }
    }

    fn any(&mut self) -> u16 {
        self.draws += 1;
        match self.live.len() {
            0 => NOBODY,
            n => self.live[below(mix(self.draws), n)],
        }
    }
}

impl Method for Buckets {
    fn rows(&self) -> usize {
        self.current.len()
    }

    fn row_of(&self, hash: u64) -> u32 {
        below(hash, self.current.len()) as u32
    }

    fn first(&mut self, flow: FlowRef, _: &mut Traffic, _: &mut Effects) -> Option<u16> {
        let server = self.current[self.row_of(flow.hash) as usize];
        (server != NOBODY).then_some(server)
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        let bucket = self.row_of(flow.hash) as usize;
        let second = self.chain && self.previous[bucket] == flow.owner;
        Probe::quiet(if second { flow.owner } else { self.current[bucket] })
    }

    fn change(&mut self, changes: &[Change], _: &mut Traffic, effects: &mut Effects) {
        for &change in changes {
            match change {
                Change::Add(server) => {
                    self.live.push(server);
                    for bucket in 0..self.current.len() {
                        if self.home[bucket] == server || self.current[bucket] == NOBODY {
                            self.set(bucket, server, effects);
                        }
                    }
                }
                Change::Remove(server) | Change::Drain(server) => {
                    self.live.retain(|&other| other != server);
                    for bucket in 0..self.current.len() {
                        if self.current[bucket] == server {
                            let other = self.any();
                            self.set(bucket, other, effects);
                        }
                    }
                }
                Change::Expect(_) | Change::Unexpect(_) => {}
            }
        }
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        Gauges::default()
    }
}
