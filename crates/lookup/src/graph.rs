//! The bipartite forest under Othello: nodes are cells, edges are keys.

/// No edge.
const NIL: u32 = u32::MAX;

/// One key's edge, threaded through the edge list of both its nodes.
#[derive(Clone, Copy, Debug)]
struct Edge {
    nodes: [u32; 2],
    next: [u32; 2],
}

/// A forest over `cells` nodes. Edges are numbered densely, `0..len`, in the caller's order.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    head: Vec<u32>,
    edges: Vec<Edge>,
}

/// What joining two nodes would do.
pub(crate) enum Join {
    /// They are connected already: the edge would close a cycle.
    Cycle,
    /// They are not; the smaller of the two trees (or the one that was finished first).
    Separate(Vec<u32>),
}

impl Graph {
    pub(crate) fn new(nodes: usize, capacity: usize) -> Self {
        Self { head: vec![NIL; nodes], edges: Vec::with_capacity(capacity) }
    }

    pub(crate) fn len(&self) -> usize {
        self.edges.len()
    }

    pub(crate) fn ends(&self, edge: usize) -> (u32, u32) {
        let [a, b] = self.edges[edge].nodes;
        (a, b)
    }

    /// Bytes of the two arrays.
    pub(crate) fn bytes(&self) -> usize {
        self.head.capacity() * 4 + self.edges.capacity() * size_of::<Edge>()
    }

    pub(crate) fn is_isolated(&self, node: u32) -> bool {
        self.head[node as usize] == NIL
    }

    /// Appends an edge. The caller has made sure that it closes no cycle.
    pub(crate) fn push(&mut self, a: u32, b: u32) {
        let index = self.edges.len() as u32;
        let next = [self.head[a as usize], self.head[b as usize]];
        self.edges.push(Edge { nodes: [a, b], next });
        self.head[a as usize] = index;
        self.head[b as usize] = index;
    }

    /// Removes an edge; the last edge takes its number.
    pub(crate) fn swap_remove(&mut self, edge: usize) {
        for side in 0..2 {
            let after = self.edges[edge].next[side];
            *self.link_to(edge, side) = after;
        }
        let last = self.edges.len() - 1;
        if edge != last {
            for side in 0..2 {
                *self.link_to(last, side) = edge as u32;
            }
            self.edges[edge] = self.edges[last];
        }
        self.edges.pop();
    }

    /// The link (a node's head or an edge's next) that points to `edge` on the given side.
    fn link_to(&mut self, edge: usize, side: usize) -> &mut u32 {
        let node = self.edges[edge].nodes[side] as usize;
        let mut at = self.head[node];
        if at == edge as u32 {
            return &mut self.head[node];
        }
        while self.edges[at as usize].next[side] != edge as u32 {
            at = self.edges[at as usize].next[side];
        }
        &mut self.edges[at as usize].next[side]
    }

    /// Calls `visit(edge, neighbour)` for each edge at a node. `side` is 0 for a node of A.
    fn neighbours(&self, node: u32, side: usize, mut visit: impl FnMut(u32, u32)) {
        let mut at = self.head[node as usize];
        while at != NIL {
            let edge = &self.edges[at as usize];
            visit(at, edge.nodes[1 - side]);
            at = edge.next[side];
        }
    }

    /// Walks both trees in turn until one is exhausted, so that the cost follows the smaller one.
    pub(crate) fn join(&self, a: u32, b: u32) -> Join {
        if self.is_isolated(a) {
            return Join::Separate(vec![a]);
        }
        if self.is_isolated(b) {
            return Join::Separate(vec![b]);
        }
        let mut walks = [Walk::from(a, 0, NIL), Walk::from(b, 1, NIL)];
        let goals = [b, a];
        loop {
            for (walk, goal) in walks.iter_mut().zip(goals) {
                match walk.step(self) {
                    None => return Join::Separate(std::mem::take(&mut walk.seen)),
                    Some(node) if node == goal => return Join::Cycle,
                    Some(_) => {}
                }
            }
        }
    }

    /// The nodes on the smaller side of an edge: what must change when its value changes.
    pub(crate) fn smaller_side(&self, edge: usize) -> Vec<u32> {
        let [a, b] = self.edges[edge].nodes;
        let mut walks = [Walk::from(a, 0, edge as u32), Walk::from(b, 1, edge as u32)];
        loop {
            for walk in &mut walks {
                if walk.step(self).is_none() {
                    return std::mem::take(&mut walk.seen);
                }
            }
        }
    }

    /// Visits every tree: `visit(None, root)` first, then `visit(Some((parent, edge)), node)`.
    /// Isolated nodes are not visited.
    pub(crate) fn each_tree(&self, mut visit: impl FnMut(Option<(u32, u32)>, u32)) {
        let mut done = vec![false; self.head.len()];
        let mut stack = Vec::new();
        for root in self.edges.iter().map(|edge| edge.nodes[0]) {
            if done[root as usize] {
                continue;
            }
            done[root as usize] = true;
            visit(None, root);
            stack.push((root, 0usize));
            while let Some((node, side)) = stack.pop() {
                self.neighbours(node, side, |edge, other| {
                    if !done[other as usize] {
                        done[other as usize] = true;
                        visit(Some((node, edge)), other);
                        stack.push((other, 1 - side));
                    }
                });
            }
        }
    }
}

/// A walk over one tree; a forest needs no marks, only the edge it came by.
struct Walk {
    seen: Vec<u32>,
    stack: Vec<(u32, usize, u32)>,
}

impl Walk {
    fn from(node: u32, side: usize, except: u32) -> Self {
        Self { seen: Vec::new(), stack: vec![(node, side, except)] }
    }

    /// Takes up one more node and returns it; `None` when the tree is exhausted.
    fn step(&mut self, graph: &Graph) -> Option<u32> {
        let (node, side, came_by) = self.stack.pop()?;
        self.seen.push(node);
        graph.neighbours(node, side, |edge, other| {
            if edge != came_by {
                self.stack.push((other, 1 - side, edge));
            }
        });
        Some(node)
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
