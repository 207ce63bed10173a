//! Breadth-first search over hashed states.

use crate::world::{Budget, Fault, Sink, World};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// What a search found.
pub struct Found {
    /// Different states.
    pub states: usize,
    /// Steps of the longest shortest way to a state.
    pub depth: usize,
    /// Whether every state within the budget was visited.
    pub complete: bool,
    /// States in which a connection whose agent had been given up was misled.
    pub excused: usize,
    /// How long it took.
    pub took: Duration,
    /// The steps to the nearest violation, if there is one.
    pub trace: Option<Vec<String>>,
}

/// 64-bit fingerprints: 10 million states collide with probability 3 in a million.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed")
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// Fingerprint of a state -> fingerprint of the state before it.
type Visited = HashMap<u64, u64, BuildHasherDefault<Identity>>;

/// Collects what `derive(Hash)` writes, to hash it in one go.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        xxh3_64(&self.0)
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn fingerprint(world: &World, bytes: &mut Bytes) -> u64 {
    bytes.0.clear();
    world.hash(bytes);
    bytes.finish()
}

/// Explores everything within a budget, or up to the first violation, or so many states.
pub fn explore(budget: Budget, fault: Fault, limit: usize) -> Found {
    let begin = Instant::now();
    let mut bytes = Bytes::default();
    let first = World::new(budget, fault);
    let mut visited = Visited::default();
    visited.insert(fingerprint(&first, &mut bytes), 0);
    let mut frontier = vec![first.clone()];
    let mut sink = Sink::default();
    let (mut depth, mut excused) = (0, 0);
    let mut trace = None;
    'search: while !frontier.is_empty() && visited.len() < limit {
        depth += 1;
        let mut following = Vec::new();
        for world in &frontier {
            let from = fingerprint(world, &mut bytes);
            sink.states.clear();
            world.successors(fault, &mut sink);
            for next in sink.states.drain(..) {
                let print = fingerprint(&next, &mut bytes);
                if let Entry::Vacant(vacant) = visited.entry(print) {
                    vacant.insert(from);
                    if next.broken {
                        trace = Some(replay(&first, fault, &visited, print));
                        break 'search;
                    }
                    if next.excused {
                        // Put down to the agent that was given up, or to nobody.
                        assert!(next.stale_agents() > 0);
                        excused += 1;
                    }
                    following.push(next);
                }
            }
        }
        frontier = following;
    }
    let complete = frontier.is_empty();
    Found { states: visited.len(), depth, complete, excused, took: begin.elapsed(), trace }
}

/// The labels on the way to a state.
fn replay(first: &World, fault: Fault, visited: &Visited, last: u64) -> Vec<String> {
    let mut way = vec![last];
    while let Some(&before) = way.last().and_then(|print| visited.get(print))
        && before != 0
    {
        way.push(before);
    }
    way.pop();
    let mut bytes = Bytes::default();
    let mut world = first.clone();
    let mut lines = Vec::new();
    while let Some(print) = way.pop() {
        let mut sink = Sink { labels: Some(Vec::new()), ..Sink::default() };
        world.successors(fault, &mut sink);
        let labels = sink.labels.unwrap_or_default();
        let (next, label) = sink
            .states
            .into_iter()
            .zip(labels)
            .find(|(next, _)| fingerprint(next, &mut bytes) == print)
            .expect("a step can be taken again");
        lines.push(label);
        world = next;
    }
    lines
}
