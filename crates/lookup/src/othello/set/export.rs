//! Filling the cells of many data planes along one walk over the graph.

use super::{OthelloSet, SetView};
use crate::Key;
use crate::othello::graph::OrderStep;

/// One edge of a tree, after all edges between it and the root.
#[derive(Clone, Copy, Debug)]
struct Step {
    up: u32,
    node: u32,
    /// Number of the key.
    edge: u32,
    fingerprint: u32,
}

/// A walk over the graph of an [`OthelloSet`], for exporting data planes; 16 bytes per key.
///
/// Finding the order of the cells and the keys' fingerprints is most of the work of an export, and
/// the same for every plane.
///
/// ```
/// use weir_lookup::OthelloSet;
///
/// let mut set: OthelloSet<u64, u32> = OthelloSet::new(8, 16, 1000, 1);
/// for host in 0..1000 {
///     set.insert(host, host as u32 % 4)?;
/// }
/// // Five nodes, each of which reaches the same hosts by other ports.
/// let exporter = set.exporter();
/// let planes: Vec<_> =
///     (0..5).map(|node| exporter.export(node, 0, |port| (port + node) % 4)).collect();
/// assert_eq!(planes[3].get(&6u64), Some((6 % 4 + 3) % 4));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Debug)]
pub struct SetExporter<'a, K, V> {
    set: &'a OthelloSet<K, V>,
    roots: Vec<u32>,
    steps: Vec<Step>,
}

impl<'a, K: Key, V> SetExporter<'a, K, V> {
    pub(super) fn new(set: &'a OthelloSet<K, V>) -> Self {
        let keys = set.index.keys();
        let mut inner = vec![false; set.geometry().cells()];
        let steps: Vec<Step> = (set.index.order())
            .map(|OrderStep { up, node, edge }| {
                inner[node as usize] = true;
                let hash = keys[edge as usize].hash(set.index.hash_key());
                Step { up, node, edge, fingerprint: set.layout.fingerprint(hash) }
            })
            .collect();
        let is_root = |up: &u32| !std::mem::replace(&mut inner[*up as usize], true);
        let roots = steps.iter().map(|step| step.up).filter(is_root).collect();
        Self { set, roots, steps }
    }

    /// The data plane `plane` as a whole; see [`OthelloSet::export`].
    pub fn export(&self, plane: u32, number: u64, value: impl Fn(&V) -> u32) -> SetView {
        let Self { set, roots, steps } = self;
        let layout = set.layout;
        let value_mask = crate::memory::bits::mask(layout.value_bits);
        let payload_mask = crate::memory::bits::mask(layout.payload_bits());
        let mut cells = vec![0u32; set.geometry().cells()];
        for &root in roots {
            // Roots hold anything; multiples of an odd number are spread well enough.
            cells[root as usize] = (root.wrapping_mul(0x9e37_79b1) & payload_mask) << 1 | 1;
        }
        for step in steps {
            let value = value(&set.values[step.edge as usize]) & value_mask;
            let payload = value << layout.fingerprint_bits | step.fingerprint;
            // The emptiness bit comes down from the root.
            cells[step.node as usize] = cells[step.up as usize] ^ payload << 1;
        }
        let (key, geometry) = (*set.index.hash_key(), set.geometry());
        let mut view = SetView::empty(set.plane_id(plane), number, layout, key, geometry);
        view.fill(&cells);
        view
    }
}
