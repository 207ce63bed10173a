//! Networks by seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Nodes, and links with weights between them. A link is a port at each of its ends.
#[derive(Clone, PartialEq, Debug)]
pub struct Topology {
    /// `links[node][port] = (neighbour, weight)`.
    links: Vec<Vec<(u16, u32)>>,
    places: Vec<(f64, f64)>,
}

impl Topology {
    /// A network like those that Rocketfuel found: points of presence on a map, a few backbone
    /// routers and many access routers in each, and long links that prefer near points and such as
    /// have many links already. So degrees are heavy-tailed; a link weighs what it is long.
    /// Connected.
    ///
    /// # Panics
    /// If there is no node, or there are more than 65,535.
    pub fn isp(nodes: usize, seed: u64) -> Self {
        assert!((1..=usize::from(u16::MAX)).contains(&nodes), "{nodes} nodes");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut topology =
            Self { links: vec![Vec::new(); nodes], places: Vec::with_capacity(nodes) };
        let points = (nodes as f64).sqrt().ceil() as usize;
        // The first nodes are the first backbone routers of their points.
        for _ in 0..points.min(nodes) {
            topology.places.push((rng.random::<f64>() * 1000.0, rng.random::<f64>() * 1000.0));
        }
        topology.grow_backbone(&mut rng);
        let sizes: Vec<f64> = (0..points).map(|point| 1.0 / (point as f64 + 1.0).sqrt()).collect();
        let mut members: Vec<Vec<usize>> = (0..points).map(|point| vec![point]).collect();
        for node in points..nodes {
            let point = pick(&sizes, &mut rng);
            let (x, y) = topology.places[point];
            topology.places.push((x + rng.random::<f64>() * 20.0, y + rng.random::<f64>() * 20.0));
            // Every eighth router of a point joins its backbone: it gets a long link too.
            let uplinks = if members[point].len() > 1 { 2 } else { 1 };
            for uplink in 0..uplinks {
                let up = members[point][uplink % members[point].len()];
                topology.link(node, up);
            }
            if members[point].len() % 8 == 1 {
                let far = topology.near_and_popular(node, points, &mut rng);
                topology.link(node, far);
            }
            members[point].push(node);
        }
        topology
    }

    /// Every node linked to every other, as in an overlay: port `j` of a node leads to node `j`,
    /// or to node `j + 1` from its own number on.
    ///
    /// # Panics
    /// If there is no node, or there are more than 65,535.
    pub fn full_mesh(nodes: usize) -> Self {
        assert!((1..=usize::from(u16::MAX)).contains(&nodes), "{nodes} nodes");
        let others = |node| (0..nodes as u16).filter(move |&other| other != node);
        let links = (0..nodes as u16).map(|node| others(node).map(|other| (other, 1)).collect());
        Self { links: links.collect(), places: vec![(0.0, 0.0); nodes] }
    }

    /// Nodes in a row, each linked to the one before and the one behind it.
    ///
    /// # Panics
    /// If there is no node, or there are more than 65,535.
    pub fn line(nodes: usize) -> Self {
        assert!((1..=usize::from(u16::MAX)).contains(&nodes), "{nodes} nodes");
        let mut line = Self { links: vec![Vec::new(); nodes], places: vec![(0.0, 0.0); nodes] };
        (1..nodes).for_each(|node| line.link(node - 1, node));
        line
    }

    fn grow_backbone(&mut self, rng: &mut ChaCha8Rng) {
        for node in 1..self.places.len() {
            for _ in 0..2.min(node) {
                let other = self.near_and_popular(node, node, rng);
                self.link(node, other);
            }
        }
    }

    /// One of the first `among` nodes, preferring those that are near and those with many links.
    fn near_and_popular(&self, node: usize, among: usize, rng: &mut ChaCha8Rng) -> usize {
        let chances: Vec<f64> = (0..among)
            .map(|other| {
                let linked =
                    other == node || self.links[node].iter().any(|&(to, _)| to == other as u16);
                let popular = self.links[other].len() as f64 + 1.0;
                if linked { 0.0 } else { popular * (-self.distance(node, other) / 300.0).exp() }
            })
            .collect();
        pick(&chances, rng)
    }

    fn distance(&self, a: usize, b: usize) -> f64 {
        let ((ax, ay), (bx, by)) = (self.places[a], self.places[b]);
        (ax - bx).hypot(ay - by)
    }

    /// Links two nodes, unless they are or are one.
    fn link(&mut self, a: usize, b: usize) {
        if a == b || self.links[a].iter().any(|&(to, _)| to == b as u16) {
            return;
        }
        let weight = (self.distance(a, b) * 10.0) as u32 + 1;
        self.links[a].push((b as u16, weight));
        self.links[b].push((a as u16, weight));
    }

    /// Number of nodes; their own numbers are below it.
    pub fn nodes(&self) -> usize {
        self.links.len()
    }

    /// The links of a node in the order of its ports: neighbour and weight.
    pub fn links(&self, node: usize) -> &[(u16, u32)] {
        &self.links[node]
    }

    /// The number of links of the node that has most.
    pub fn max_degree(&self) -> usize {
        self.links.iter().map(Vec::len).max().unwrap_or(0)
    }
}

/// A number with probability proportional to its chance.
fn pick(chances: &[f64], rng: &mut ChaCha8Rng) -> usize {
    let mut left = rng.random::<f64>() * chances.iter().sum::<f64>();
    for (at, chance) in chances.iter().enumerate() {
        left -= chance;
        if left < 0.0 {
            return at;
        }
    }
    0
}
