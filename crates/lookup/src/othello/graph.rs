//! The bipartite forest under Othello: nodes are cells, edges are keys.

use crate::memory::adjacency::{Adjacency, Record, Walks};
use crate::memory::pages::{Pages, vec_on_pages};
use crate::{Value, prefetch};

/// A cell: its neighbours, and its value. They stand together since a walk needs the neighbours of
/// each node whose value it is going to change.
#[derive(Clone, Copy, Debug)]
struct Node<V> {
    links: [u32; 2],
    value: V,
}

impl<V> Record for Node<V> {
    #[inline(always)]
    fn links(&self) -> [u32; 2] {
        self.links
    }

    #[inline(always)]
    fn links_mut(&mut self) -> &mut [u32; 2] {
        &mut self.links
    }
}

/// A forest. Edges are numbered densely, `0..len`, in the caller's order.
#[derive(Clone, Debug)]
pub(crate) struct Graph<V> {
    cells: Adjacency<Node<V>>,
    edges: Vec<[u32; 2]>,
    walks: Walks,
}

/// One of the two parts that an edge joins or would join: the smaller one, as far as two walks in
/// turn can tell. It is good until the next walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side(usize);

impl<V: Value> Graph<V> {
    /// Nodes without edges, with these values.
    pub(crate) fn new(values: Vec<V>, capacity: usize) -> Self {
        let nodes = values.iter().map(|&value| Node { links: [0; 2], value });
        let cells = Adjacency::new(Pages::collected(values.len(), nodes));
        Self { cells, edges: vec_on_pages(capacity), walks: Walks::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.edges.len()
    }

    pub(crate) fn ends(&self, edge: usize) -> (u32, u32) {
        let [a, b] = self.edges[edge];
        (a, b)
    }

    /// Bytes of the arrays.
    pub(crate) fn bytes(&self) -> usize {
        self.cells.bytes() + self.edges.capacity() * size_of::<[u32; 2]>() + self.walks.bytes()
    }

    /// The value of a cell.
    #[inline]
    pub(crate) fn value(&self, node: u32) -> V {
        self.cells.nodes[node as usize].value
    }

    /// Whether a cell has no edge.
    #[inline]
    pub(crate) fn is_isolated(&self, node: u32) -> bool {
        self.cells.is_isolated(node)
    }

    /// Appends an edge. The caller has made sure that it closes no cycle.
    #[inline]
    pub(crate) fn push(&mut self, a: u32, b: u32) {
        self.cells.join(a, b);
        self.edges.push([a, b]);
    }

    /// Removes an edge; the last edge takes its number.
    #[inline]
    pub(crate) fn swap_remove(&mut self, edge: usize) {
        let [a, b] = self.edges.swap_remove(edge);
        self.cells.part(a, b);
    }

    /// Whether two nodes are in different trees; if they are, the smaller tree.
    #[inline]
    pub(crate) fn join(&mut self, a: u32, b: u32) -> Option<Side> {
        self.walks.smaller_side(&self.cells, [a, b], false, usize::MAX).ok().map(Side)
    }

    /// The smaller side of an edge: what must change when its value changes.
    #[inline]
    pub(crate) fn smaller_side(&mut self, edge: usize) -> Side {
        let ends = self.edges[edge];
        let side = self.walks.smaller_side(&self.cells, ends, true, usize::MAX);
        Side(side.expect("an edge of a forest is the only way between its ends"))
    }

    /// The nodes of a side, the edge's own first.
    pub(crate) fn nodes_of(&self, Side(side): Side) -> impl Iterator<Item = u32> {
        self.walks.nodes(side)
    }

    /// Xors `delta` into the values of a side.
    #[inline]
    pub(crate) fn flip(&mut self, Side(side): Side, delta: V) {
        for node in self.walks.nodes(side) {
            self.cells.nodes[node as usize].value ^= delta;
        }
    }

    /// Gives every edge its value: in each tree, the root keeps its cell.
    pub(crate) fn assign(&mut self, values: &[V]) {
        for step in self.order() {
            let value = self.value(step.up) ^ values[step.edge as usize];
            self.cells.nodes[step.node as usize].value = value;
        }
    }

    /// An order in which each edge comes after those between it and its tree's root.
    ///
    /// Leaves are taken off until only the roots are left; backwards, that is the order. All that
    /// is needed to know of a node is how many edges it has left, and the xor of their numbers,
    /// which is the edge itself when one is left.
    pub(crate) fn order(&self) -> impl Iterator<Item = OrderStep> + use<V> {
        let mut left = vec![(0u32, 0u32); self.cells.nodes.len()];
        for (number, edge) in (0u32..).zip(&self.edges) {
            for &node in edge {
                let (degree, edges) = &mut left[node as usize];
                *degree += 1;
                *edges ^= number;
            }
        }
        let mut leaves = Vec::with_capacity(self.edges.len());
        for node in 0..left.len() {
            let mut node = node;
            // What a leaf hung on may be a leaf now.
            while let (1, edge) = left[node] {
                let [a, b] = self.edges[edge as usize];
                let up = a ^ b ^ node as u32;
                leaves.push(OrderStep { up, node: node as u32, edge });
                left[node].0 = 0;
                node = up as usize;
                left[node].0 -= 1;
                left[node].1 ^= edge;
            }
        }
        leaves.into_iter().rev()
    }

    /// Asks for an edge, which is going to be changed.
    #[inline(always)]
    pub(crate) fn fetch_edge(&self, edge: usize) {
        prefetch(&self.edges, edge);
    }

    /// Asks for two nodes.
    #[inline(always)]
    pub(crate) fn fetch(&self, ends: (u32, u32)) {
        self.cells.fetch(ends);
    }

    /// Asks for the neighbours of two nodes, once these are there.
    #[inline(always)]
    pub(crate) fn fetch_neighbours(&self, ends: (u32, u32)) {
        self.cells.fetch_neighbours(ends);
    }
}

/// An edge from a node that was visited, or is a root, to one that was not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderStep {
    /// The node nearer to the root.
    pub(crate) up: u32,
    /// The other node.
    pub(crate) node: u32,
    /// The edge's number.
    pub(crate) edge: u32,
}

/// Union-find with path halving: tells whether a whole set of edges is acyclic, fast. Linking
/// without ranks is enough: below the threshold trees stay small, and halving keeps paths short.
pub(crate) fn is_forest(nodes: usize, edges: impl Iterator<Item = (u32, u32)>) -> bool {
    fn find(parent: &mut [u32], mut node: u32) -> u32 {
        while parent[node as usize] != node {
            let up = parent[parent[node as usize] as usize];
            parent[node as usize] = up;
            node = up;
        }
        node
    }
    let mut parent: Vec<u32> = (0..nodes as u32).collect();
    for (a, b) in edges {
        let (a, b) = (find(&mut parent, a), find(&mut parent, b));
        if a == b {
            return false;
        }
        parent[a as usize] = b;
    }
    true
}
