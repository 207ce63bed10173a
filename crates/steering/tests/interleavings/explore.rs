//! Breadth-first search over hashed states.

use crate::model::{Rules, Sink, State, initial};
use std::collections::{HashMap, hash_map};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// What a search found.
pub struct Found {
    /// Different states.
    pub states: usize,
    /// Steps of the longest shortest way to a state.
    pub depth: usize,
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
struct Bytes {
    bytes: [u8; 256],
    length: usize,
}

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        xxh3_64(&self.bytes[..self.length])
    }
    fn write(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

fn fingerprint(state: &State) -> u64 {
    let mut bytes = Bytes { bytes: [0; 256], length: 0 };
    state.canonical().hash(&mut bytes);
    bytes.finish()
}

/// Explores everything, or up to the first violation.
pub fn explore(rules: &Rules) -> Found {
    let begin = Instant::now();
    let mut visited = Visited::default();
    let mut frontier = Vec::new();
    for state in initial(rules) {
        if visited.insert(fingerprint(&state), 0).is_none() {
            frontier.push(state);
        }
    }
    let mut sink = Sink::default();
    let mut depth = 0;
    let mut trace = None;
    'search: while !frontier.is_empty() {
        depth += 1;
        let mut following = Vec::new();
        for state in &frontier {
            let from = fingerprint(state);
            sink.states.clear();
            state.successors(rules, &mut sink);
            for next in &sink.states {
                let print = fingerprint(next);
                if let hash_map::Entry::Vacant(vacant) = visited.entry(print) {
                    vacant.insert(from);
                    if next.broken {
                        trace = Some(replay(rules, &visited, print));
                        break 'search;
                    }
                    following.push(next.canonical());
                }
            }
        }
        frontier = following;
    }
    Found { states: visited.len(), depth, took: begin.elapsed(), trace }
}

/// The labels on the way to a state. The way is kept as fingerprints; it is walked again with
/// the names of its first state, so that a flow keeps its number from line to line.
fn replay(rules: &Rules, visited: &Visited, last: u64) -> Vec<String> {
    let mut way = vec![last];
    while let Some(&before) = way.last().and_then(|print| visited.get(print))
        && before != 0
    {
        way.push(before);
    }
    let first = way.pop();
    let mut state = initial(rules)
        .into_iter()
        .find(|state| Some(fingerprint(state)) == first)
        .expect("the way begins at an initial state");
    let mut lines = Vec::new();
    while let Some(print) = way.pop() {
        let mut sink = Sink { labels: Some(Vec::new()), ..Sink::default() };
        state.successors(rules, &mut sink);
        let labels = sink.labels.unwrap_or_default();
        let (next, label) = sink
            .states
            .into_iter()
            .zip(labels)
            .find(|(next, _)| fingerprint(next) == print)
            .expect("renaming commutes with stepping");
        lines.push(label);
        state = next;
    }
    lines
}
