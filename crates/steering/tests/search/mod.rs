//! Breadth-first search over hashed states, for the model checkers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// What is searched.
pub trait Model {
    /// A state. It is taken as visited if one with the same hash was.
    type State;

    /// The states that it can begin in.
    fn initial(&self) -> Vec<Self::State>;

    /// Writes what tells a state from others.
    fn hash(&self, state: &Self::State, hasher: &mut impl Hasher);

    /// The state that goes on instead of this one, with the same hash.
    fn representative(&self, state: Self::State) -> Self::State {
        state
    }

    /// What can happen next.
    fn successors(&self, state: &Self::State, sink: &mut Sink<Self::State>);

    /// Whether the promise does not hold.
    fn broken(&self, state: &Self::State) -> bool;

    /// A state in which the promise holds was found.
    fn visited(&mut self, _state: &Self::State) {}
}

/// Where successors go.
pub struct Sink<S> {
    /// Successors.
    pub states: Vec<S>,
    /// What led to each, if asked for.
    pub labels: Option<Vec<String>>,
}

impl<S> Sink<S> {
    pub fn push(&mut self, state: S, label: impl FnOnce() -> String) {
        self.states.push(state);
        if let Some(labels) = &mut self.labels {
            labels.push(label());
        }
    }
}

/// What a search found.
pub struct Found {
    /// Different states.
    pub states: usize,
    /// Steps of the longest shortest way to a state.
    pub depth: usize,
    /// Whether every state was visited.
    pub complete: bool,
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

/// Fingerprint of a state -> fingerprint of the state before it; 0 for an initial one.
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

impl Bytes {
    fn fingerprint<M: Model>(&mut self, model: &M, state: &M::State) -> u64 {
        self.0.clear();
        model.hash(state, self);
        self.finish()
    }
}

/// Explores everything, or up to the first violation, or so many states (and the rest of the
/// steps that lead as far).
pub fn explore<M: Model>(model: &mut M, limit: usize) -> Found {
    let begin = Instant::now();
    let mut bytes = Bytes::default();
    let mut visited = Visited::default();
    let mut frontier = model.initial();
    frontier.retain(|state| visited.insert(bytes.fingerprint(model, state), 0).is_none());
    let mut sink = Sink { states: Vec::new(), labels: None };
    let mut depth = 0;
    let mut trace = None;
    'search: while !frontier.is_empty() && visited.len() < limit {
        depth += 1;
        let mut following = Vec::new();
        for state in &frontier {
            let from = bytes.fingerprint(model, state);
            model.successors(state, &mut sink);
            for next in sink.states.drain(..) {
                let print = bytes.fingerprint(model, &next);
                if let Entry::Vacant(vacant) = visited.entry(print) {
                    vacant.insert(from);
                    if model.broken(&next) {
                        trace = Some(replay(model, &visited, print));
                        break 'search;
                    }
                    model.visited(&next);
                    following.push(model.representative(next));
                }
            }
        }
        frontier = following;
    }
    let complete = frontier.is_empty();
    Found { states: visited.len(), depth, complete, took: begin.elapsed(), trace }
}

/// The labels on the way to a state. The way is kept as fingerprints; it is walked again from its
/// first state, not from representatives, so that a name stays the same from line to line.
fn replay<M: Model>(model: &M, visited: &Visited, last: u64) -> Vec<String> {
    let mut bytes = Bytes::default();
    let mut way = vec![last];
    while let Some(&before) = way.last().and_then(|print| visited.get(print))
        && before != 0
    {
        way.push(before);
    }
    let first = way.pop();
    let mut state = model
        .initial()
        .into_iter()
        .find(|state| Some(bytes.fingerprint(model, state)) == first)
        .expect("the way begins at an initial state");
    let mut lines = Vec::new();
    while let Some(print) = way.pop() {
        let mut sink = Sink { states: Vec::new(), labels: Some(Vec::new()) };
        model.successors(&state, &mut sink);
        let labels = sink.labels.unwrap_or_default();
        let (next, label) = sink
            .states
            .into_iter()
            .zip(labels)
            .find(|(next, _)| bytes.fingerprint(model, next) == print)
            .expect("a step can be taken again, whatever things are called");
        lines.push(label);
        state = next;
    }
    lines
}
