//! The bucket locator's control structure: an Othello forest made for one-bit values.

use crate::memory::adjacency::{Adjacency, Endless, Walks};
use crate::memory::packed::Packed;
use crate::memory::pages::Pages;
use std::collections::HashSet;

/// Steps of a pair of walks before they are done again with a set of visited nodes: far more than
/// a component has nodes, so the walks go round in a cycle.
const MAX_STEPS: usize = 1 << 12;

/// The graph: nodes are cells of the locator, edges are keys. It is a forest but for a cycle or two.
///
/// An edge whose cells already agree with its value is added without a look at the rest of the
/// graph, so it may close a cycle. That does no harm until one of the cycle's values is to be
/// inverted, which is refused then: the key cannot be moved.
#[derive(Clone, Debug)]
pub(crate) struct Forest {
    graph: Adjacency<[u32; 2]>,
    walks: Walks,
}

/// An edge is, or would be, on a cycle with values that do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cycle;

impl Forest {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { graph: Adjacency::new(Pages::filled([0; 2], nodes)), walks: Walks::default() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.graph.bytes() + self.walks.bytes()
    }

    /// Asks for what an insertion or a removal of this edge will touch.
    #[inline(always)]
    pub(crate) fn fetch(&self, edge: (u32, u32)) {
        self.graph.fetch(edge);
    }

    /// Asks for the neighbours of both ends, once the ends themselves are there.
    #[inline(always)]
    pub(crate) fn fetch_neighbours(&self, edge: (u32, u32)) {
        self.graph.fetch_neighbours(edge);
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
        let alone = [a, b].into_iter().find(|&node| self.graph.is_isolated(node));
        match alone {
            Some(node) if wrong => {
                cells.flip(node.into());
                flipped.push(node);
            }
            Some(_) => {}
            None if self.graph.neighbours(a).any(|other| other == b) => return Err(Cycle),
            None if wrong => self.flip_smaller((a, b), false, cells, flipped)?,
            None => {}
        }
        self.graph.join(a, b);
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
        self.graph.part(a, b);
    }

    /// Inverts all cells on the smaller side of an edge, which is in the graph or not.
    fn flip_smaller(
        &mut self,
        (a, b): (u32, u32),
        present: bool,
        cells: &Packed,
        flipped: &mut Vec<u32>,
    ) -> Result<(), Cycle> {
        match self.walks.smaller_side(&self.graph, [a, b], present, MAX_STEPS) {
            Ok(side) => flip_all(self.walks.nodes(side), cells, flipped),
            Err(Endless::Met) => return Err(Cycle),
            Err(Endless::GivenUp) => {
                flip_all(self.component((a, b), present)?, cells, flipped);
            }
        }
        Ok(())
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
            for other in self.graph.neighbours(node) {
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
}

fn flip_all(nodes: impl Iterator<Item = u32>, cells: &Packed, flipped: &mut Vec<u32>) {
    for node in nodes {
        cells.flip(node.into());
        flipped.push(node);
    }
}
