//! Search over hashed states, for the model checkers: breadth first, which finds the shortest way to
//! a violation and holds a whole generation of states in memory; or, to the end of worlds that are
//! too large for that, depth first.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
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

/// Whether every world is to be explored to its end, however long that takes.
pub fn deep() -> bool {
    std::env::var("WEIR_MODEL").is_ok_and(|word| word == "deep")
}

/// Says how far a deep search is, every few seconds.
struct Progress {
    begin: Instant,
    said: Instant,
    speaks: bool,
}

impl Progress {
    const EVERY: Duration = Duration::from_secs(10);

    fn new() -> Self {
        let now = Instant::now();
        Self { begin: now, said: now, speaks: deep() }
    }

    fn say(&mut self, states: usize, steps: usize) {
        // The clock is not asked for every state.
        let due = self.speaks && states.is_multiple_of(1024) && self.said.elapsed() >= Self::EVERY;
        if due {
            self.said = Instant::now();
            let seconds = self.begin.elapsed().as_secs();
            println!("  {seconds} s: {states} states, now {steps} steps from the beginning");
        }
    }
}

/// Explores everything, or up to the first violation, or so many states: breadth first, unless the
/// run is deep and there is no limit.
pub fn explore<M: Model>(model: &mut M, limit: usize) -> Found {
    if deep() && limit == usize::MAX {
        depth_first(model, limit)
    } else {
        breadth_first(model, limit)
    }
}

/// A limit is exceeded by the rest of the steps that lead as far.
fn breadth_first<M: Model>(model: &mut M, limit: usize) -> Found {
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
                        trace = Some(replay(model, way_to(&visited, print)));
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

/// One step of the way that a depth-first search is on: a state, and what is left to try from it.
struct Step<S> {
    print: u64,
    next: Vec<S>,
}

/// The memory is that of the fingerprints, some ten bytes a state, and of one way. The depth that it
/// finds is that of its longest way, and a violation is not the nearest one.
pub fn depth_first<M: Model>(model: &mut M, limit: usize) -> Found {
    let mut progress = Progress::new();
    let mut bytes = Bytes::default();
    let mut visited = HashSet::<u64, BuildHasherDefault<Identity>>::default();
    let mut sink = Sink { states: Vec::new(), labels: None };
    let (mut depth, mut trace) = (0, None);
    // What leads to the initial states is no state.
    let mut way = vec![Step { print: 0, next: model.initial() }];
    while let Some(step) = way.last_mut()
        && visited.len() < limit
    {
        let Some(state) = step.next.pop() else {
            way.pop();
            continue;
        };
        let print = bytes.fingerprint(model, &state);
        if !visited.insert(print) {
            continue;
        }
        if model.broken(&state) {
            let prints = way.iter().skip(1).map(|step| step.print).chain([print]);
            trace = Some(replay(model, prints.collect()));
            break;
        }
        model.visited(&state);
        model.successors(&model.representative(state), &mut sink);
        way.push(Step { print, next: std::mem::take(&mut sink.states) });
        depth = depth.max(way.len() - 2);
        progress.say(visited.len(), way.len() - 1);
    }
    let complete = way.is_empty();
    Found { states: visited.len(), depth, complete, took: progress.begin.elapsed(), trace }
}

/// The fingerprints on the way to a state, from an initial one on.
fn way_to(visited: &Visited, last: u64) -> Vec<u64> {
    let mut way = vec![last];
    while let Some(&before) = way.last().and_then(|print| visited.get(print))
        && before != 0
    {
        way.push(before);
    }
    way.reverse();
    way
}

/// The labels on the way to a state. The way is kept as fingerprints; it is walked again from its
/// first state, not from representatives, so that a name stays the same from line to line.
fn replay<M: Model>(model: &M, way: Vec<u64>) -> Vec<String> {
    let mut bytes = Bytes::default();
    let mut way = way.into_iter();
    let first = way.next();
    let mut state = model
        .initial()
        .into_iter()
        .find(|state| Some(bytes.fingerprint(model, state)) == first)
        .expect("the way begins at an initial state");
    let mut lines = Vec::new();
    for print in way {
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
