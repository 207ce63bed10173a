//! The bipartite forest under Othello: nodes are cells, edges are keys.

use crate::prefetch;

/// No edge.
const NIL: u32 = u32::MAX;

/// A cell: its value, and the first of its edges. They stand together since a walk needs the edges
/// of each node whose value it is going to change.
#[derive(Clone, Copy, Debug)]
struct Node {
    head: u32,
    value: u32,
}

/// One key's edge, threaded through the edge list of both its nodes.
#[derive(Clone, Copy, Debug)]
struct Edge {
    nodes: [u32; 2],
    next: [u32; 2],
}

/// Nodes and edges. Edges are numbered densely, `0..len`, in the caller's order.
#[derive(Clone, Debug)]
struct Forest {
    /// The first node of B; the nodes of A stand before it.
    boundary: u32,
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

/// A forest, and the memory of the walks over it.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    forest: Forest,
    walks: [Walk; 2],
}

/// One of the two parts that an edge joins or would join: the smaller one, as far as two walks in
/// turn can tell. It is good until the next walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side(usize);

impl Graph {
    /// Nodes without edges, with these values; `boundary` is the number of A's.
    pub(crate) fn new(boundary: u32, values: Vec<u32>, capacity: usize) -> Self {
        let nodes = values.into_iter().map(|value| Node { head: NIL, value }).collect();
        let forest = Forest { boundary, nodes, edges: Vec::with_capacity(capacity) };
        Self { forest, walks: Default::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.forest.edges.len()
    }

    pub(crate) fn ends(&self, edge: usize) -> (u32, u32) {
        let [a, b] = self.forest.edges[edge].nodes;
        (a, b)
    }

    /// Bytes of the arrays.
    pub(crate) fn bytes(&self) -> usize {
        let Forest { nodes, edges, .. } = &self.forest;
        let walks: usize = self.walks.iter().map(|walk| walk.seen.capacity()).sum();
        nodes.capacity() * size_of::<Node>()
            + edges.capacity() * size_of::<Edge>()
            + walks * size_of::<(u32, u32)>()
    }

    /// The value of a cell.
    #[inline]
    pub(crate) fn value(&self, node: u32) -> u32 {
        self.forest.nodes[node as usize].value
    }

    /// Whether a cell has no edge.
    pub(crate) fn is_isolated(&self, node: u32) -> bool {
        self.forest.nodes[node as usize].head == NIL
    }

    /// Appends an edge. The caller has made sure that it closes no cycle.
    pub(crate) fn push(&mut self, a: u32, b: u32) {
        let Forest { nodes, edges, .. } = &mut self.forest;
        let index = edges.len() as u32;
        let next = [a, b].map(|node| std::mem::replace(&mut nodes[node as usize].head, index));
        edges.push(Edge { nodes: [a, b], next });
    }

    /// Removes an edge; the last edge takes its number.
    pub(crate) fn swap_remove(&mut self, edge: usize) {
        let forest = &mut self.forest;
        for side in 0..2 {
            let after = forest.edges[edge].next[side];
            *forest.link_to(edge, side) = after;
        }
        let last = forest.edges.len() - 1;
        if edge != last {
            for side in 0..2 {
                *forest.link_to(last, side) = edge as u32;
            }
            forest.edges[edge] = forest.edges[last];
        }
        forest.edges.pop();
    }

    /// Whether two nodes are in different trees; if they are, the smaller tree. Walks both in turn
    /// until one is exhausted, so that the cost follows the smaller one.
    pub(crate) fn join(&mut self, a: u32, b: u32) -> Option<Side> {
        self.walk([a, b], NIL)
    }

    /// The smaller side of an edge: what must change when its value changes.
    pub(crate) fn smaller_side(&mut self, edge: usize) -> Side {
        let ends = self.forest.edges[edge].nodes;
        self.walk(ends, edge as u32).expect("an edge of a forest is the only way between its ends")
    }

    /// Walks from two nodes in turn, never over the edge `except`; `None` if they meet.
    fn walk(&mut self, [a, b]: [u32; 2], except: u32) -> Option<Side> {
        let [from_a, from_b] = &mut self.walks;
        from_a.begin(a, except);
        from_b.begin(b, except);
        loop {
            if !from_a.step(&self.forest) {
                return Some(Side(0));
            }
            if !from_b.step(&self.forest) {
                return Some(Side(1));
            }
            // Only a step that took up a node can have met the other walk's beginning.
            if from_a.took(b) || from_b.took(a) {
                return None;
            }
        }
    }

    /// The nodes of a side.
    pub(crate) fn nodes_of(&self, Side(side): Side) -> impl Iterator<Item = u32> {
        self.walks[side].seen.iter().map(|&(node, _)| node)
    }

    /// Xors `delta` into the values of a side.
    pub(crate) fn flip(&mut self, Side(side): Side, delta: u32) {
        for &(node, _) in &self.walks[side].seen {
            self.forest.nodes[node as usize].value ^= delta;
        }
    }

    /// Gives every edge its value: in each tree, the root keeps its cell.
    pub(crate) fn assign(&mut self, values: &[u32]) {
        let mut cells: Vec<u32> = self.forest.nodes.iter().map(|node| node.value).collect();
        self.each_tree(|parent, node| {
            if let Some((up, edge)) = parent {
                cells[node as usize] = cells[up as usize] ^ values[edge as usize];
            }
        });
        for (node, value) in self.forest.nodes.iter_mut().zip(cells) {
            node.value = value;
        }
    }

    /// Visits every tree: `visit(None, root)` first, then `visit(Some((parent, edge)), node)`.
    /// Isolated nodes are not visited.
    pub(crate) fn each_tree(&self, mut visit: impl FnMut(Option<(u32, u32)>, u32)) {
        let mut done = vec![false; self.forest.nodes.len()];
        let mut stack = Vec::new();
        for root in self.forest.edges.iter().map(|edge| edge.nodes[0]) {
            if done[root as usize] {
                continue;
            }
            done[root as usize] = true;
            visit(None, root);
            stack.push(root);
            while let Some(node) = stack.pop() {
                self.forest.neighbours(node, |edge, other| {
                    if !done[other as usize] {
                        done[other as usize] = true;
                        visit(Some((node, edge)), other);
                        stack.push(other);
                    }
                });
            }
        }
    }
}

impl Forest {
    /// Calls `visit(edge, neighbour)` for each edge at a node.
    #[inline(always)]
    fn neighbours(&self, node: u32, mut visit: impl FnMut(u32, u32)) {
        let side = usize::from(node >= self.boundary);
        let mut at = self.nodes[node as usize].head;
        while at != NIL {
            let edge = &self.edges[at as usize];
            visit(at, edge.nodes[1 - side]);
            at = edge.next[side];
        }
    }

    /// The link (a node's head or an edge's next) that points to `edge` on the given side.
    fn link_to(&mut self, edge: usize, side: usize) -> &mut u32 {
        let node = self.edges[edge].nodes[side] as usize;
        let mut at = self.nodes[node].head;
        if at == edge as u32 {
            return &mut self.nodes[node].head;
        }
        while self.edges[at as usize].next[side] != edge as u32 {
            at = self.edges[at as usize].next[side];
        }
        &mut self.edges[at as usize].next[side]
    }
}

/// A breadth-first walk over one tree: each node with the edge that it was reached by, which is all
/// that a forest needs so as not to go back. What was seen is the queue as well.
#[derive(Clone, Debug, Default)]
struct Walk {
    seen: Vec<(u32, u32)>,
    next: usize,
    met: usize,
}

impl Walk {
    fn begin(&mut self, node: u32, except: u32) {
        self.seen.clear();
        self.seen.push((node, except));
        (self.next, self.met) = (0, 1);
    }

    /// Takes up the neighbours of one more node; false when there is none.
    #[inline(always)]
    fn step(&mut self, forest: &Forest) -> bool {
        let Some(&(node, came_by)) = self.seen.get(self.next) else {
            return false;
        };
        self.next += 1;
        forest.neighbours(node, |edge, other| {
            if edge != came_by {
                prefetch(&forest.nodes, other as usize);
                self.seen.push((other, edge));
            }
        });
        true
    }

    /// Whether a node is among those taken up since the last time that this was asked.
    #[inline(always)]
    fn took(&mut self, goal: u32) -> bool {
        let new = &self.seen[self.met..];
        self.met = self.seen.len();
        new.iter().any(|&(node, _)| node == goal)
    }
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
