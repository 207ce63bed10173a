//! Topologies and routes.

use crate::common::seed;
use weir_fib::{Host, Network, Topology};

#[test]
fn networks_are_connected_the_same_for_a_seed_and_heavy_tailed() {
    let seed = seed();
    for nodes in [1, 2, 3, 5, 20, 318, 1000] {
        let topology = Topology::isp(nodes, seed);
        assert_eq!(topology, Topology::isp(nodes, seed));
        let mut seen = vec![false; nodes];
        let mut stack = vec![0];
        while let Some(node) = stack.pop() {
            if !std::mem::replace(&mut seen[node], true) {
                stack.extend(topology.links(node).iter().map(|&(other, _)| usize::from(other)));
            }
        }
        assert!(seen.iter().all(|&seen| seen), "{nodes} nodes");
        for node in 0..nodes {
            for &(other, weight) in topology.links(node) {
                assert!(topology.links(usize::from(other)).contains(&(node as u16, weight)));
                assert!(weight > 0 && usize::from(other) != node);
            }
        }
    }
    let large = Topology::isp(318, seed);
    let mut degrees: Vec<usize> = (0..318).map(|node| large.links(node).len()).collect();
    degrees.sort_unstable();
    println!("degrees: median {}, largest {:?}", degrees[159], &degrees[308..]);
    assert!(degrees[317] >= 6 * degrees[159]);
    assert_ne!(large, Topology::isp(318, seed ^ 1));
}

/// Bellman and Ford find the same lengths, and following ports adds up to them.
#[test]
fn ports_follow_shortest_paths() {
    let seed = seed();
    let network = Network::new(Topology::isp(60, seed), 3);
    let topology = network.topology();
    for to in 0..60 {
        let mut length = vec![u64::MAX / 2; 60];
        length[to] = 0;
        for _ in 0..60 {
            for node in 0..60 {
                for &(other, weight) in topology.links(node) {
                    length[node] = length[node].min(length[usize::from(other)] + u64::from(weight));
                }
            }
        }
        let host = Host { node: to as u16, slot: 2 };
        for (from, &shortest) in length.iter().enumerate() {
            let way = network.way(from, host);
            let sum: u64 = way
                .windows(2)
                .map(|step| {
                    let links = topology.links(step[0]).iter();
                    let mut there = links.filter(|(other, _)| usize::from(*other) == step[1]);
                    there.next().map(|&(_, weight)| u64::from(weight)).unwrap()
                })
                .sum();
            assert_eq!((way.last(), sum), (Some(&to), shortest));
            assert!(usize::from(network.port(from, host)) < network.ports(from));
        }
        assert_eq!(usize::from(network.port(to, host)), topology.links(to).len() + 2);
    }
}

#[test]
fn an_overlay_is_one_hop_wide() {
    let network = Network::new(Topology::full_mesh(50), 1);
    for (from, to) in [(0usize, 49u16), (49, 0), (7, 8), (8, 7)] {
        let way = network.way(from, Host { node: to, slot: 0 });
        assert_eq!(way, [from, usize::from(to)]);
    }
    assert!(!network.has(Host { node: 50, slot: 0 }));
    assert!(!network.has(Host { node: 0, slot: 1 }));
}

#[test]
fn a_line_is_walked_node_by_node() {
    let network = Network::new(Topology::line(9), 2);
    assert_eq!(network.way(0, Host { node: 8, slot: 1 }), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(network.way(5, Host { node: 3, slot: 0 }), [5, 4, 3]);
    let degrees: Vec<usize> = (0..9).map(|node| network.topology().links(node).len()).collect();
    assert_eq!(degrees, [1, 2, 2, 2, 2, 2, 2, 2, 1]);
    assert_eq!(Topology::line(1).links(0), []);
}
