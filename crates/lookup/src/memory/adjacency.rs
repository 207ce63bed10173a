//! Who is whose neighbour in a sparse graph, in eight bytes a node; and walks over it.

use crate::memory::pages::Pages;
use crate::prefetch;

/// Marks a record's second word as the place of a chain.
const CHAIN: u32 = 1 << 31;

/// What is kept of a node, its two words of neighbours included.
pub(crate) trait Record {
    /// Neighbour (number + 1; 0 is none), and another or a chain's name.
    fn links(&self) -> [u32; 2];

    /// The same, to be changed.
    fn links_mut(&mut self) -> &mut [u32; 2];
}

impl Record for [u32; 2] {
    #[inline(always)]
    fn links(&self) -> [u32; 2] {
        *self
    }

    #[inline(always)]
    fn links_mut(&mut self) -> &mut [u32; 2] {
        self
    }
}

/// A graph of nodes numbered below 2^31 - 1, with one edge between two nodes at most: an edge then
/// needs no number, and a walk touches one line per node. Nodes with three neighbours or more (6 %
/// of them at an Othello's full load) keep all but one in a chain.
#[derive(Clone, Debug)]
pub(crate) struct Adjacency<R> {
    pub(crate) nodes: Pages<R>,
    /// Neighbour, and the next of its chain as a record's second word names it (0: the end).
    chains: Vec<[u32; 2]>,
    /// The first free entry of `chains`, in the same way.
    free: u32,
}

impl<R: Record> Adjacency<R> {
    /// Nodes without neighbours.
    pub(crate) fn new(nodes: Pages<R>) -> Self {
        Self { nodes, chains: Vec::new(), free: 0 }
    }

    /// Bytes of the arrays.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.allocated() + self.chains.capacity() * size_of::<[u32; 2]>()
    }

    #[inline(always)]
    fn links(&self, node: u32) -> [u32; 2] {
        self.nodes[node as usize].links()
    }

    /// Whether a node has no neighbour.
    #[inline(always)]
    pub(crate) fn is_isolated(&self, node: u32) -> bool {
        self.links(node)[0] == 0
    }

    /// The neighbour that a record's or an entry's second word stands for, and what follows it.
    #[inline(always)]
    fn after(&self, rest: u32) -> [u32; 2] {
        match rest & CHAIN {
            0 => [rest, 0],
            _ => self.chains[(rest & !CHAIN) as usize],
        }
    }

    /// The neighbours of a node.
    #[inline(always)]
    pub(crate) fn neighbours(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let [mut next, mut rest] = self.links(node);
        std::iter::from_fn(move || {
            let neighbour = next.checked_sub(1)?;
            [next, rest] = self.after(rest);
            Some(neighbour)
        })
    }

    /// Adds an edge, of which the caller knows that it is not there.
    #[inline]
    pub(crate) fn join(&mut self, a: u32, b: u32) {
        self.link(a, b);
        self.link(b, a);
    }

    /// Takes an edge out.
    #[inline]
    pub(crate) fn part(&mut self, a: u32, b: u32) {
        self.unlink(a, b);
        self.unlink(b, a);
    }

    fn link(&mut self, node: u32, to: u32) {
        let [first, second] = self.links(node);
        let place = usize::from(first != 0);
        if first == 0 || second == 0 {
            self.nodes[node as usize].links_mut()[place] = to + 1;
            return;
        }
        let rest = if second & CHAIN == 0 { self.chain([second, 0]) } else { second };
        self.nodes[node as usize].links_mut()[1] = self.chain([to + 1, rest]);
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
        let [first, second] = self.links(node);
        let gone = to + 1;
        if second & CHAIN == 0 {
            let left = if first == gone { second } else { first };
            *self.nodes[node as usize].links_mut() = [left, 0];
            return;
        }
        let [neighbour, mut rest] = self.chains[(second & !CHAIN) as usize];
        if first == gone || neighbour == gone {
            let left = if first == gone { neighbour } else { first };
            *self.nodes[node as usize].links_mut() = [left, rest];
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

    /// Asks for what an insertion or a removal of this edge will touch.
    #[inline(always)]
    pub(crate) fn fetch(&self, (a, b): (u32, u32)) {
        prefetch(&self.nodes, a as usize);
        prefetch(&self.nodes, b as usize);
    }

    /// Asks for the neighbours of both ends, once the ends themselves are there. An edge to a node
    /// without neighbours needs no walk.
    #[inline(always)]
    pub(crate) fn fetch_neighbours(&self, (a, b): (u32, u32)) {
        let links = [a, b].map(|node| self.links(node));
        if links.iter().all(|&[first, _]| first != 0) {
            for neighbour in links.as_flattened() {
                prefetch(&self.nodes, neighbour.wrapping_sub(1) as usize);
            }
        }
    }
}

/// Why walks did not end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Endless {
    /// One met the other's beginning.
    Met,
    /// They were given up, so they go round in a cycle.
    GivenUp,
}

/// Two walks in turn from the ends of an edge, never over the edge itself, until one is exhausted:
/// the cost follows the smaller of the two parts that the edge joins or would join.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walks([Walk; 2]);

/// Nodes in the order of a walk, each with the one it came from, which is all that a forest needs
/// so as not to go back. What was seen is the queue as well.
#[derive(Clone, Debug, Default)]
struct Walk {
    queue: Vec<(u32, u32)>,
    at: usize,
}

impl Walks {
    /// The smaller side of an edge, which is in the graph (`present`) or not, by at most `steps`
    /// steps: which of its ends is there. [`nodes`](Self::nodes) are that side until the next walk.
    #[inline]
    pub(crate) fn smaller_side<R: Record>(
        &mut self,
        graph: &Adjacency<R>,
        [a, b]: [u32; 2],
        present: bool,
        steps: usize,
    ) -> Result<usize, Endless> {
        let ends = [(a, b), (b, a)];
        for (walk, (from, to)) in self.0.iter_mut().zip(ends) {
            walk.start(from, if present { to } else { u32::MAX });
        }
        for step in 0..steps {
            let side = step & 1;
            match self.0[side].step(graph, ends[side].1) {
                Step::On => {}
                Step::Done => return Ok(side),
                Step::Met => return Err(Endless::Met),
            }
        }
        Err(Endless::GivenUp)
    }

    /// The nodes of a side, the edge's own first.
    #[inline]
    pub(crate) fn nodes(&self, side: usize) -> impl Iterator<Item = u32> + '_ {
        self.0[side].queue.iter().map(|&(node, _)| node)
    }

    /// Bytes of the memory that walks keep.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|walk| walk.queue.capacity() * size_of::<(u32, u32)>()).sum()
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
    fn step<R: Record>(&mut self, graph: &Adjacency<R>, goal: u32) -> Step {
        let Some(&(node, from)) = self.queue.get(self.at) else {
            return Step::Done;
        };
        self.at += 1;
        let [mut neighbour, mut rest] = graph.links(node);
        while neighbour != 0 {
            let other = neighbour - 1;
            if other != from {
                if other == goal {
                    return Step::Met;
                }
                prefetch(&graph.nodes, other as usize);
                self.queue.push((other, node));
            }
            [neighbour, rest] = graph.after(rest);
        }
        if self.at == self.queue.len() { Step::Done } else { Step::On }
    }
}
