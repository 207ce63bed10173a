//! The bucket locator's control structure: an Othello forest made for one-bit values.

use super::packed::Packed;
use std::collections::HashSet;

/// Marks a record's second word as the place of a chain.
const CHAIN: u32 = 1 << 31;

/// Steps of a pair of walks before they are done again with a set of visited nodes: far more than
/// a component has nodes, so the walks go round in a cycle.
const MAX_STEPS: usize = 1 << 12;

/// The graph: nodes are cells of the locator, edges are keys. It is a forest but for a cycle or two.
///
/// A record holds the *neighbours* of a node (number + 1; 0 is none), not its edges: two nodes
/// share one edge at most, so an edge needs no number, and a walk touches one line per node. Nodes
/// with three neighbours or more (6 % at full load) keep all but one in a chain. A bit for each
/// node says whether it has neighbours.
///
/// An edge whose cells already agree with its value is added without a look at the rest of the
/// graph, so it may close a cycle. That does no harm until one of the cycle's values is to be
/// inverted, which is refused then: the key cannot be moved.
#[derive(Clone, Debug)]
pub(crate) struct Forest {
    nodes: Vec<[u32; 2]>,
    used: Vec<u64>,
    /// Neighbour, and the next of its chain as a record's second word names it (0: the end).
    chains: Vec<[u32; 2]>,
    /// The first free entry of `chains`, in the same way.
    free: u32,
    walks: [Walk; 2],
}

/// Nodes in the order of a walk, each with the one it came from.
#[derive(Clone, Debug, Default)]
struct Walk {
    queue: Vec<(u32, u32)>,
    at: usize,
}

/// An edge is, or would be, on a cycle with values that do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cycle;

impl Forest {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes: vec![[0; 2]; nodes],
            used: vec![0; nodes.div_ceil(64)],
            chains: Vec::new(),
            free: 0,
            walks: Default::default(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.nodes.capacity() + self.chains.capacity() + self.used.capacity()) * 8
    }

    #[inline(always)]
    fn is_used(&self, node: u32) -> bool {
        self.used[node as usize >> 6] >> (node & 63) & 1 != 0
    }

    /// Asks for what an insertion or a removal of this edge will touch.
    #[inline(always)]
    pub(crate) fn fetch(&self, a: u32, b: u32) {
        crate::prefetch(&self.nodes, a as usize);
        crate::prefetch(&self.nodes, b as usize);
    }

    /// Adds the edge of a key whose two cells shall xor to `bit`; notes the cells that were
    /// inverted. On a cycle nothing is changed.
    pub(crate) fn insert(
        &mut self,
        (a, b): (u32, u32),
        bit: u64,
        cells: &Packed,
        flipped: &mut Vec<u32>,
    ) -> Result<(), Cycle> {
        let wrong = cells.bit(a.into()) ^ cells.bit(b.into()) != bit;
        let alone = [a, b].into_iter().find(|&node| !self.is_used(node));
        match alone {
            Some(node) if wrong => {
                cells.flip(node.into());
                flipped.push(node);
            }
            Some(_) => {}
            None if self.are_neighbours(a, b) => return Err(Cycle),
            None if wrong => self.flip_smaller((a, b), false, cells, flipped)?,
            None => {}
        }
        self.link(a, b);
        self.link(b, a);
        Ok(())
    }

    /// Inverts the value of an edge; refused, with nothing changed, if the edge is on a cycle.
    pub(crate) fn invert(
        &mut self,
        edge: (u32, u32),
        cells: &Packed,
        flipped: &mut Vec<u32>,
    ) -> Result<(), Cycle> {
        self.flip_smaller(edge, true, cells, flipped)
    }

    /// Takes an edge out. Cells keep their values.
    pub(crate) fn remove(&mut self, (a, b): (u32, u32)) {
        self.unlink(a, b);
        self.unlink(b, a);
    }

    /// Inverts all cells on the smaller side of an edge, which is in the graph or not.
    ///
    /// Walks from both ends in turn, not over the edge itself, until one is exhausted, so that the
    /// cost follows the smaller side.
    fn flip_smaller(
        &mut self,
        (a, b): (u32, u32),
        present: bool,
        cells: &Packed,
        flipped: &mut Vec<u32>,
    ) -> Result<(), Cycle> {
        let mut walks = std::mem::take(&mut self.walks);
        let ends = [(a, b), (b, a)];
        for (walk, (from, to)) in walks.iter_mut().zip(ends) {
            walk.start(from, if present { to } else { u32::MAX });
        }
        let mut result = None;
        for step in 0..MAX_STEPS {
            let side = step & 1;
            match walks[side].step(self, ends[side].1) {
                Step::On => continue,
                Step::Done => result = Some(Ok(side)),
                Step::Met => result = Some(Err(Cycle)),
            }
            break;
        }
        let result = match result {
            Some(Ok(side)) => {
                flip_all(walks[side].queue.iter().map(|&(node, _)| node), cells, flipped);
                Ok(())
            }
            Some(Err(cycle)) => Err(cycle),
            None => self.component((a, b), present).map(|side| flip_all(side, cells, flipped)),
        };
        self.walks = walks;
        result
    }

    /// The nodes that `a` is connected with, but not over the edge to `b`; exact with cycles too.
    #[cold]
    fn component(
        &self,
        (a, b): (u32, u32),
        present: bool,
    ) -> Result<impl Iterator<Item = u32>, Cycle> {
        let mut seen = HashSet::from([a]);
        let mut stack = vec![a];
        while let Some(node) = stack.pop() {
            for other in self.neighbours(node) {
                if present && node == a && other == b {
                    continue;
                }
                if other == b {
                    return Err(Cycle);
                }
                if seen.insert(other) {
                    stack.push(other);
                }
            }
        }
        Ok(seen.into_iter())
    }

    fn neighbours(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let [mut next, mut rest] = self.nodes[node as usize];
        std::iter::from_fn(move || {
            let neighbour = next.checked_sub(1)?;
            [next, rest] = self.after(rest);
            Some(neighbour)
        })
    }

    /// The neighbour that a record's or an entry's second word stands for, and what follows it.
    #[inline(always)]
    fn after(&self, rest: u32) -> [u32; 2] {
        match rest & CHAIN {
            0 => [rest, 0],
            _ => self.chains[(rest & !CHAIN) as usize],
        }
    }

    fn are_neighbours(&self, a: u32, b: u32) -> bool {
        self.neighbours(a).any(|other| other == b)
    }

    fn link(&mut self, node: u32, to: u32) {
        self.used[node as usize >> 6] |= 1 << (node & 63);
        let [first, second] = self.nodes[node as usize];
        let place = usize::from(first != 0);
        if first == 0 || second == 0 {
            self.nodes[node as usize][place] = to + 1;
            return;
        }
        let rest = if second & CHAIN == 0 { self.chain([second, 0]) } else { second };
        self.nodes[node as usize][1] = self.chain([to + 1, rest]);
    }

    /// Puts an entry of a chain somewhere; returns its name.
    fn chain(&mut self, entry: [u32; 2]) -> u32 {
        if self.free == 0 {
            self.chains.push(entry);
            return CHAIN | (self.chains.len() - 1) as u32;
        }
        let name = self.free;
        let place = &mut self.chains[(name & !CHAIN) as usize];
        self.free = std::mem::replace(place, entry)[1];
        name
    }

    fn unlink(&mut self, node: u32, to: u32) {
        let [first, second] = self.nodes[node as usize];
        let gone = to + 1;
        if second & CHAIN == 0 {
            let left = if first == gone { second } else { first };
            self.nodes[node as usize] = [left, 0];
            if left == 0 {
                self.used[node as usize >> 6] &= !(1 << (node & 63));
            }
            return;
        }
        let [neighbour, mut rest] = self.chains[(second & !CHAIN) as usize];
        if first == gone || neighbour == gone {
            let left = if first == gone { neighbour } else { first };
            self.nodes[node as usize] = [left, rest];
            self.release(second);
            return;
        }
        let mut before = second;
        while rest != 0 {
            let [neighbour, next] = self.chains[(rest & !CHAIN) as usize];
            if neighbour == gone {
                self.chains[(before & !CHAIN) as usize][1] = next;
                self.release(rest);
                return;
            }
            (before, rest) = (rest, next);
        }
    }

    fn release(&mut self, name: u32) {
        self.chains[(name & !CHAIN) as usize] = [0, self.free];
        self.free = name;
    }

    /// Asks for the neighbours of both ends, once the ends themselves are there.
    #[inline(always)]
    pub(crate) fn fetch_neighbours(&self, a: u32, b: u32) {
        if !self.is_used(a) || !self.is_used(b) {
            return;
        }
        for node in [a, b] {
            for neighbour in self.nodes[node as usize] {
                crate::prefetch(&self.nodes, neighbour.wrapping_sub(1) as usize);
            }
        }
    }
}

fn flip_all(nodes: impl Iterator<Item = u32>, cells: &Packed, flipped: &mut Vec<u32>) {
    for node in nodes {
        cells.flip(node.into());
        flipped.push(node);
    }
}

enum Step {
    On,
    Done,
    Met,
}

impl Walk {
    fn start(&mut self, node: u32, from: u32) {
        self.queue.clear();
        self.queue.push((node, from));
        self.at = 0;
    }

    /// Visits one more node.
    #[inline]
    fn step(&mut self, forest: &Forest, goal: u32) -> Step {
        let Some(&(node, from)) = self.queue.get(self.at) else {
            return Step::Done;
        };
        self.at += 1;
        let [first, mut rest] = forest.nodes[node as usize];
        let mut neighbour = first;
        while neighbour != 0 {
            let other = neighbour - 1;
            if other != from {
                if other == goal {
                    return Step::Met;
                }
                crate::prefetch(&forest.nodes, other as usize);
                self.queue.push((other, node));
            }
            [neighbour, rest] = forest.after(rest);
        }
        self.state()
    }

    #[inline(always)]
    fn state(&self) -> Step {
        if self.at == self.queue.len() { Step::Done } else { Step::On }
    }
}
