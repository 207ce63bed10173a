use super::*;
use crate::flow::NewFlow;
use crate::world::Engine;
use weir_steering::BackendId;

/// Flows of one packet each, so that their last packet is their first.
fn traffic() -> Traffic {
    Traffic::new(1, &[1, 1], 1, Engine::Lazy)
}

fn flow(traffic: &mut Traffic, start: f64) -> Tracked {
    traffic.set_now(start);
    let (id, end) = (crate::methods::mix(start.to_bits()), start + 1_000.0);
    let slot = traffic.insert(NewFlow { id, start, end, packets: 1, row: 0, counted: true });
    Tracked { id, slot }
}

fn at(backend: u16) -> TrackedFlow {
    TrackedFlow::new(BackendId::of(backend), 0)
}

/// Inserts a flow. Returns the slots of those that had to go.
fn put(table: &mut Table, flow: Tracked, server: u16, traffic: &mut Traffic) -> Vec<u32> {
    let mut gone = Vec::new();
    table.prepare(flow, traffic, &mut gone);
    table.insert(flow, at(server));
    assert_eq!(table.peek(flow), Some(at(server)));
    gone
}

/// Tables of up to six flows evict in the order of use, in one bucket as in all.
const ORDERED: [Eviction; 2] = [Eviction::Buckets, Eviction::Exact];
/// No slot.
const NONE: [u32; 0] = [];
const ALL: [Eviction; 3] = [Eviction::Buckets, Eviction::Exact, Eviction::Kernel];

#[test]
fn the_oldest_goes_first_and_an_ended_one_leaves_room() {
    for eviction in ORDERED {
        let mut traffic = traffic();
        let mut table = Table::new(eviction, 2, Release::AtEnd, HashKey::from_seed(1));
        let flows = [0.0, 1.0, 2.0, 3.0].map(|start| flow(&mut traffic, start));
        assert_eq!(put(&mut table, flows[0], 0, &mut traffic), NONE);
        assert_eq!(put(&mut table, flows[1], 1, &mut traffic), NONE);
        assert_eq!(put(&mut table, flows[2], 1, &mut traffic), [flows[0].slot]);
        assert_eq!([table.peek(flows[0]), table.peek(flows[1])], [None, Some(at(1))]);
        table.end(flows[1], &mut traffic);
        assert_eq!(put(&mut table, flows[3], 0, &mut traffic), NONE);
        assert_eq!((table.len(), table.evictions()), (2, 1));
        let mut gone = Vec::new();
        table.retain(|_, server| server != 1, &mut gone);
        assert_eq!((gone, table.len()), (vec![flows[2].slot], 1));
        assert_eq!([table.peek(flows[2]), table.peek(flows[3])], [None, Some(at(0))]);
    }
}

/// 0 is used at 0 and leaves at 4; 1 is used at 1, 2 at 2. What 0 sends elsewhere does not
/// keep its entry young, and what it sends after it has come back does.
#[test]
fn packets_that_go_elsewhere_are_not_uses() {
    for (eviction, back) in ORDERED.into_iter().flat_map(|e| [(e, false), (e, true)]) {
        let mut traffic = traffic();
        let mut table = Table::new(eviction, 3, Release::AtEnd, HashKey::from_seed(1));
        let flows = [0.0, 1.0, 2.0, 3.0].map(|start| flow(&mut traffic, start));
        for (&flow, time) in flows[..3].iter().zip([0.0, 1.0, 2.0]) {
            traffic.set_now(time);
            put(&mut table, flow, 0, &mut traffic);
        }
        traffic.set_now(4.0);
        table.leaves(flows[0], &mut traffic);
        traffic.flow_mut(flows[0].slot).last = 5.0;
        if back {
            table.comes(flows[0], 6.0);
            traffic.flow_mut(flows[0].slot).last = 7.0;
        }
        traffic.set_now(8.0);
        let gone = put(&mut table, flows[3], 0, &mut traffic);
        assert_eq!(gone, [flows[usize::from(back)].slot], "{eviction:?}, came back: {back}");
    }
}

#[test]
fn an_entry_of_an_ended_flow_is_evicted_in_its_turn() {
    for eviction in ALL {
        let mut traffic = traffic();
        let mut table = Table::new(eviction, 1, Release::Never, HashKey::from_seed(1));
        let first = flow(&mut traffic, 0.0);
        put(&mut table, first, 0, &mut traffic);
        table.end(first, &mut traffic);
        assert_eq!(table.len(), 1);
        let second = flow(&mut traffic, 1.0);
        assert_eq!(put(&mut table, second, 0, &mut traffic), NONE, "no live flow had to go");
        assert_eq!((table.len(), table.evictions()), (1, 1), "{eviction:?}");
    }
}

/// In the kernel's table those that were used since they came are safe, whatever their age, and
/// of the others as many as the processor takes at a time go at once.
#[test]
fn the_kernels_table_gives_up_the_unused_in_batches() {
    let mut traffic = traffic();
    let mut table = Table::new(Eviction::Kernel, 1_024, Release::AtEnd, HashKey::from_seed(1));
    let flows: Vec<Tracked> = (0..1_024).map(|n| flow(&mut traffic, f64::from(n))).collect();
    for (time, &flow) in flows.iter().enumerate() {
        traffic.set_now(time as f64);
        assert_eq!(put(&mut table, flow, 0, &mut traffic), NONE);
    }
    // Every second one of the oldest 200 is used again.
    for flow in flows[..200].iter().step_by(2) {
        traffic.flow_mut(flow.slot).last = 1_100.0;
    }
    traffic.set_now(1_101.0);
    let new = flow(&mut traffic, 1_101.0);
    let gone = put(&mut table, new, 0, &mut traffic);
    // 128 are looked at, half of them were used.
    let unused: Vec<u32> = flows[..128].iter().skip(1).step_by(2).map(|flow| flow.slot).collect();
    let mut sorted = gone.clone();
    sorted.sort_unstable();
    assert!(gone.len() >= 64 && sorted[..64] == unused, "{sorted:?}");
    assert!(flows[..200].iter().step_by(2).all(|&flow| table.peek(flow).is_some()));
    assert_eq!(table.evictions(), gone.len() as u64);
    assert_eq!(table.len(), 1_025 - gone.len());
    // The room that is left is used before anybody else has to go.
    for n in 1..gone.len() {
        let next = flow(&mut traffic, 1_101.0 + n as f64);
        assert_eq!(put(&mut table, next, 0, &mut traffic), NONE);
    }
}

/// Where no entry is unused, the oldest goes all the same.
#[test]
fn the_kernels_table_gives_up_a_used_one_in_need() {
    let mut traffic = traffic();
    let mut table = Table::new(Eviction::Kernel, 4, Release::AtEnd, HashKey::from_seed(1));
    let flows: Vec<Tracked> = (0..4).map(|n| flow(&mut traffic, f64::from(n))).collect();
    for (time, &flow) in flows.iter().enumerate() {
        traffic.set_now(time as f64);
        put(&mut table, flow, 0, &mut traffic);
    }
    for round in 1..50 {
        let now = 10.0 * f64::from(round);
        let live: Vec<u32> = (0..traffic.live() as u32).collect();
        live.iter().for_each(|&slot| traffic.flow_mut(slot).last = now - 1.0);
        let new = flow(&mut traffic, now);
        let gone = put(&mut table, new, 0, &mut traffic);
        assert!(gone.len() <= 2, "{gone:?}");
        assert!(table.len() <= 4);
    }
    assert!(table.evictions() >= 49);
}
