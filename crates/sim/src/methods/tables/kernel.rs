//! The kernel's LRU hash map, as far as evictions go.

use super::uses::Uses;
use super::{Release, Tracked};
use crate::flow::Traffic;
use weir_steering::{BackendId, TrackedFlow};

/// Free nodes that a CPU takes from the shared list at a time, and nodes that one rotation looks
/// at (`LOCAL_FREE_TARGET` and `LOCAL_NR_SCANS` in the kernel's `bpf_lru_list.c`).
const BATCH: usize = 128;

const NIL: u32 = u32::MAX;

/// The lists that a node can be on. A new node waits on the CPU's own list until the CPU needs
/// free nodes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum List {
    Free,
    Pending,
    Active,
    Inactive,
}

const LISTS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Node {
    flow: Tracked,
    entry: TrackedFlow,
    list: List,
    /// A use after this time is the reference bit, which a list clears when it takes the node.
    cleared: f64,
    before: u32,
    after: u32,
}

/// The algorithm of `BPF_MAP_TYPE_LRU_HASH` (Linux, `kernel/bpf/bpf_lru_list.c`), of one CPU.
///
/// There is no order of use, only a bit on each entry that a lookup sets. Entries stand on an
/// active and an inactive list. When the CPU has no free entry left it looks at up to 128 of each:
/// used ones go to the front of the active list, and of the inactive ones that were not used up to
/// 128 are given up *at once*. If there is none, the oldest inactive one goes, used or not.
///
/// The kernel's map keeps a list of new and of free entries for each CPU, and can take entries from
/// another CPU's lists in need; here all packets are one CPU's. The bits are not written down: when
/// a list asks, the flow's last packet is compared with the time at which the bit was cleared.
#[derive(Debug)]
pub struct Kernel {
    release: Release,
    nodes: Vec<Node>,
    /// Nodes that were never used.
    fresh: usize,
    /// First and last node of each list; the first is the one that was put there last.
    ends: [(u32, u32); LISTS],
    counts: [usize; LISTS],
    /// Free nodes that the CPU has taken; the next is the last.
    local: Vec<u32>,
    /// Where the next rotation of the inactive list begins; nil: at its end.
    hand: u32,
    /// The most that the CPU takes at a time.
    target: usize,
    by_slot: Vec<u32>,
    /// Entries of flows that are not in a slot any more, and where they are.
    ended: std::collections::HashMap<u64, u32>,
    uses: Uses,
    used: usize,
    evictions: u64,
    now: f64,
}

impl Kernel {
    /// An empty table.
    pub fn new(capacity: usize, release: Release) -> Self {
        let capacity = capacity.min(1 << 28);
        Self {
            release,
            nodes: Vec::new(),
            fresh: capacity,
            ends: [(NIL, NIL); LISTS],
            counts: [0; LISTS],
            local: Vec::new(),
            hand: NIL,
            target: (capacity / 2).clamp(1, BATCH),
            by_slot: Vec::new(),
            ended: std::collections::HashMap::new(),
            uses: Uses::default(),
            used: 0,
            evictions: 0,
            now: 0.0,
        }
    }

    fn node_of(&self, flow: Tracked) -> Option<u32> {
        let node = *self.by_slot.get(flow.slot as usize)?;
        (node != NIL && self.nodes[node as usize].flow == flow).then_some(node)
    }

    pub fn peek(&self, flow: Tracked) -> Option<TrackedFlow> {
        self.node_of(flow).map(|node| self.nodes[node as usize].entry)
    }

    pub fn prepare(&mut self, flow: Tracked, traffic: &mut Traffic, gone: &mut Vec<u32>) {
        self.now = traffic.now();
        if self.local.is_empty() && self.node_of(flow).is_none() {
            self.take_free(traffic, gone);
        }
    }

    pub fn insert(&mut self, flow: Tracked, entry: TrackedFlow) {
        if let Some(node) = self.node_of(flow) {
            self.nodes[node as usize].entry = entry;
            return;
        }
        let Some(node) = self.local.pop() else {
            self.evictions += 1;
            return;
        };
        let (list, cleared) = (List::Pending, self.now);
        self.nodes[node as usize] = Node { flow, entry, list, cleared, before: NIL, after: NIL };
        self.link(node, List::Pending);
        let slot = flow.slot as usize;
        self.by_slot.resize(self.by_slot.len().max(slot + 1), NIL);
        self.by_slot[slot] = node;
        self.used += 1;
    }

    fn remove(&mut self, flow: Tracked) {
        if let Some(node) = self.node_of(flow) {
            self.delete(node);
        }
    }

    /// The slots of the flows with entries that name a server, of those that live.
    pub fn list(&self, server: u16, into: &mut Vec<u32>) {
        let named = |node: &&Node| node.list != List::Free && node.entry.backend == server;
        let flows = self.nodes.iter().filter(named).map(|node| node.flow);
        into.extend(flows.filter(|&flow| self.uses.lives(flow)).map(|flow| flow.slot));
    }

    pub fn end(&mut self, flow: Tracked, traffic: &mut Traffic) {
        match self.release {
            Release::AtEnd => self.remove(flow),
            Release::Never => self.end_elsewhere(flow, traffic),
        }
    }

    pub fn end_elsewhere(&mut self, flow: Tracked, traffic: &mut Traffic) {
        if let Some(node) = self.node_of(flow) {
            self.uses.stops(flow, true, traffic);
            self.by_slot[flow.slot as usize] = NIL;
            self.ended.insert(flow.id, node);
        }
    }

    pub fn leaves(&mut self, flow: Tracked, traffic: &mut Traffic) {
        if self.node_of(flow).is_some() {
            self.uses.stops(flow, false, traffic);
        }
    }

    pub fn comes(&mut self, flow: Tracked, now: f64) {
        self.uses.comes(flow, now);
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u64, u16) -> bool, gone: &mut Vec<u32>) {
        let in_use = |node: &u32| self.nodes[*node as usize].list != List::Free;
        let all: Vec<u32> = (0..self.nodes.len() as u32).filter(in_use).collect();
        for node in all {
            let Node { flow, entry, .. } = self.nodes[node as usize];
            if !keep(flow.id, entry.backend.get()) {
                gone.extend(self.uses.lives(flow).then_some(flow.slot));
                self.delete(node);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// `bpf_lru_list_pop_free_to_local`: called when the CPU has no free node.
    fn take_free(&mut self, traffic: &mut Traffic, gone: &mut Vec<u32>) {
        self.flush(traffic);
        self.rotate(traffic);
        while self.local.len() < self.target {
            let free = self.ends[List::Free as usize].1;
            if free != NIL {
                self.unlink(free);
                self.local.push(free);
            } else if self.fresh > 0 {
                self.fresh -= 1;
                let flow = Tracked::default();
                let (list, cleared) = (List::Free, 0.0);
                let entry = TrackedFlow::new(BackendId::of(0), 0);
                self.nodes.push(Node { flow, entry, list, cleared, before: NIL, after: NIL });
                self.local.push(self.nodes.len() as u32 - 1);
            } else {
                break;
            }
        }
        if self.local.len() < self.target {
            self.shrink(traffic, gone);
        }
    }

    /// `__local_list_flush`: new nodes go to the lists that all CPUs share.
    fn flush(&mut self, traffic: &mut Traffic) {
        loop {
            let node = self.ends[List::Pending as usize].1;
            if node == NIL {
                return;
            }
            let used = self.was_used(node, traffic);
            self.move_to(node, if used { List::Active } else { List::Inactive });
        }
    }

    /// `__bpf_lru_list_rotate`.
    fn rotate(&mut self, traffic: &mut Traffic) {
        if self.counts[List::Inactive as usize] < self.counts[List::Active as usize] {
            let (first, mut node) = self.ends[List::Active as usize];
            for _ in 0..BATCH {
                if node == NIL {
                    break;
                }
                let next = self.nodes[node as usize].before;
                let used = self.was_used(node, traffic);
                self.move_to(node, if used { List::Active } else { List::Inactive });
                if node == first {
                    break;
                }
                node = next;
            }
        }
        let mut looked = 0;
        let mut node = match self.hand {
            NIL => self.ends[List::Inactive as usize].1,
            hand => hand,
        };
        let all = self.counts[List::Inactive as usize];
        while looked < BATCH.min(all) && node != NIL {
            let next = self.nodes[node as usize].before;
            if self.was_used(node, traffic) {
                self.move_to(node, List::Active);
            }
            node = match next {
                NIL => self.ends[List::Inactive as usize].1,
                next => next,
            };
            looked += 1;
        }
        self.hand = node;
    }

    /// `__bpf_lru_list_shrink`.
    fn shrink(&mut self, traffic: &mut Traffic, gone: &mut Vec<u32>) {
        let before = self.local.len();
        let mut node = self.ends[List::Inactive as usize].1;
        for _ in 0..BATCH {
            if node == NIL || self.local.len() == self.target {
                break;
            }
            let next = self.nodes[node as usize].before;
            match self.was_used(node, traffic) {
                true => self.move_to(node, List::Active),
                false => self.evict(node, gone),
            }
            node = next;
        }
        if self.local.len() == before {
            let [inactive, active] =
                [List::Inactive, List::Active].map(|l| self.ends[l as usize].1);
            match (inactive, active) {
                (NIL, NIL) => {}
                (NIL, node) | (node, _) => self.evict(node, gone),
            }
        }
    }

    fn was_used(&self, node: u32, traffic: &mut Traffic) -> bool {
        let Node { flow, cleared, .. } = self.nodes[node as usize];
        self.uses.last(flow, traffic) > cleared
    }

    /// The CPU that evicts a node has it for its next flow.
    fn evict(&mut self, node: u32, gone: &mut Vec<u32>) {
        let flow = self.nodes[node as usize].flow;
        if self.uses.lives(flow) {
            gone.push(flow.slot);
        }
        self.evictions += 1;
        self.forget(node);
        self.nodes[node as usize].list = List::Free;
        self.local.push(node);
    }

    fn delete(&mut self, node: u32) {
        self.forget(node);
        self.link(node, List::Free);
    }

    /// The node holds no flow any more, and is on no list.
    fn forget(&mut self, node: u32) {
        self.unlink(node);
        let flow = self.nodes[node as usize].flow;
        if self.ended.remove(&flow.id).is_none() {
            self.by_slot[flow.slot as usize] = NIL;
        }
        self.uses.forget(flow.id);
        self.used -= 1;
    }

    /// `__bpf_lru_node_move`: to the front of a list, with the bit cleared.
    fn move_to(&mut self, node: u32, list: List) {
        self.unlink(node);
        self.nodes[node as usize].cleared = self.now;
        self.link(node, list);
    }

    fn link(&mut self, node: u32, list: List) {
        let (first, last) = self.ends[list as usize];
        let fields = &mut self.nodes[node as usize];
        (fields.list, fields.before, fields.after) = (list, NIL, first);
        match first {
            NIL => self.ends[list as usize] = (node, node),
            first => {
                self.nodes[first as usize].before = node;
                self.ends[list as usize] = (node, last);
            }
        }
        self.counts[list as usize] += 1;
    }

    fn unlink(&mut self, node: u32) {
        let Node { list, before, after, .. } = self.nodes[node as usize];
        if self.hand == node {
            self.hand = before;
        }
        let ends = &mut self.ends[list as usize];
        match before {
            NIL => ends.0 = after,
            before => self.nodes[before as usize].after = after,
        }
        let ends = &mut self.ends[list as usize];
        match after {
            NIL => ends.1 = before,
            after => self.nodes[after as usize].before = before,
        }
        self.counts[list as usize] -= 1;
    }
}
