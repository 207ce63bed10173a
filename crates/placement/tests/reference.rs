//! Each placement against a naive one that is written straight from its definition.

mod common;

use common::{Backend, Rng, pool, seed};
use weir_placement::{
    Anchor, Horizon, Hrw, HrwTable, Incremental, LogError, NONE, Operation, Placement, PoolError,
    Ring,
};

/// The finalizer of MurmurHash3, written again.
fn mix(mut x: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        x ^= x >> 33;
        x = x.wrapping_mul(factor);
    }
    x ^ x >> 33
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn name_hash(name: &str) -> u64 {
    mix(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }))
}

/// -w / ln(u) in floating point; and how far the second best is behind, relatively.
fn naive_hrw(backends: &[Backend], key: u64) -> (u16, f64) {
    let mut scores: Vec<(f64, u16)> = backends
        .iter()
        .filter(|backend| backend.weight > 0)
        .map(|backend| {
            let x = mix(name_hash(&backend.name) ^ key);
            // 1 - u is exact where it matters: u next to one.
            let rest = (u64::MAX - x) as f64 / 2f64.powi(64);
            (f64::from(backend.weight) / -(-rest).ln_1p(), backend.number)
        })
        .collect();
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    (scores[0].1, if scores.len() > 1 { 1.0 - scores[1].0 / scores[0].0 } else { 1.0 })
}

#[test]
fn hrw_is_the_logarithmic_method() {
    let mut rng = Rng(seed());
    for weights in [&[1][..], &[1, 2, 3, 0], &[1, 1000], &[1_000_000, 999_999]] {
        let backends = pool(&mut rng, 30, weights);
        let mut hrw = Hrw::new();
        backends.iter().for_each(|backend| hrw.add(backend.candidate()).unwrap());
        let mut close = 0;
        for key in rng.hashes(20_000) {
            let (winner, lead) = naive_hrw(&backends, key);
            // The logarithm errs by one part in 4,096 at most, on either side.
            if lead < 0.001 {
                close += 1;
            } else {
                assert_eq!(hrw.lookup(key), Some(winner));
            }
        }
        assert!(close < 100, "{close} of 20,000 were too close to tell");
    }
}

/// The order of arrival, the numbers and the history leave no trace.
fn check_history_is_forgotten<P: Horizon + Clone + PartialEq + std::fmt::Debug>(
    empty: &P,
    rng: &mut Rng,
) {
    let mut backends = pool(rng, 20, &[2, 1, 0, 4]);
    let build = |backends: &[Backend], horizon: &[Backend]| {
        let mut built = empty.clone();
        backends.iter().for_each(|backend| built.add(backend.candidate()).unwrap());
        horizon.iter().for_each(|backend| built.add_horizon(backend.candidate()).unwrap());
        built
    };
    let (working, horizon) = backends.split_at(15);
    let direct = build(working, horizon);

    let mut roundabout = build(horizon, working);
    let mut numbers: Vec<u16> = backends.iter().map(|backend| backend.number).collect();
    rng.shuffle(&mut numbers);
    for &number in &numbers {
        let back = if number < 15 { roundabout.admit(number) } else { roundabout.retire(number) };
        back.unwrap();
    }
    assert_eq!(roundabout, direct);
    roundabout.reweight(3, 9).unwrap();
    roundabout.reweight(3, working[3].weight).unwrap();
    roundabout.remove(5).unwrap();
    roundabout.remove_horizon(17).unwrap();
    roundabout.add_horizon(backends[17].candidate()).unwrap();
    roundabout.add(backends[5].candidate()).unwrap();
    assert_eq!(roundabout, direct);

    let flows = rng.hashes(2000);
    let before: Vec<_> = flows.iter().map(|&hash| direct.lookup(hash)).collect();
    backends.iter_mut().for_each(|backend| backend.number += 500);
    let renumbered = build(&backends[..15], &backends[15..]);
    let after: Vec<_> = flows.iter().map(|&hash| renumbered.lookup(hash)).collect();
    assert_eq!(after, before.iter().map(|n| n.map(|n| n + 500)).collect::<Vec<_>>());
}

#[test]
fn only_the_pool_counts() {
    let mut rng = Rng(seed());
    check_history_is_forgotten(&Hrw::new(), &mut rng);
    check_history_is_forgotten(&Ring::new(20).unwrap(), &mut rng);
}

/// The table after each change of a long history: both columns, both bitmaps.
#[test]
fn table_rows_are_hrw_in_rows() {
    let mut rng = Rng(seed());
    for rows in [1, 63, 64, 1021, 1024] {
        let mut table = HrwTable::new(rows).unwrap();
        let mut hrw = Hrw::new();
        let backends = pool(&mut rng, 12, &[1, 3, 0, 2]);
        let mut was_unsafe = vec![false; rows as usize];
        for step in 0..200 {
            let backend = &backends[rng.below(backends.len())];
            let number = backend.number;
            // Most are refused, by both alike.
            let (one, other) = match rng.below(7) {
                0 => (table.add(backend.candidate()), hrw.add(backend.candidate())),
                1 => (table.add_horizon(backend.candidate()), hrw.add_horizon(backend.candidate())),
                2 => (table.admit(number), hrw.admit(number)),
                3 => (table.retire(number), hrw.retire(number)),
                4 => (table.remove_horizon(number), hrw.remove_horizon(number)),
                5 if rng.below(3) == 0 => (table.remove(number), hrw.remove(number)),
                _ => (table.reweight(number, 2), hrw.reweight(number, 2)),
            };
            assert_eq!(one, other);
            if step % 50 == 49 {
                table.forget_unsafe();
                was_unsafe.fill(false);
            }
            for row in 0..rows as usize {
                let key = HrwTable::row_key(row);
                let (working, all) = (hrw.lookup(key), hrw.lookup_all(key));
                assert_eq!(table.rows()[row], working.unwrap_or(NONE));
                assert_eq!(table.rows_all()[row], all.unwrap_or(NONE));
                let bit = |map: &[u64]| map[row / 64] >> (row % 64) & 1 != 0;
                assert_eq!(bit(table.may_differ()), working != all);
                was_unsafe[row] |= working != all;
                // A reweight leaves and comes back, so it may flag a row too many.
                assert!(bit(table.was_unsafe()) || !was_unsafe[row]);
            }
            let flow = rng.next();
            let row = ((flow & 0xffff_ffff) * u64::from(rows)) >> 32;
            assert_eq!(table.row_of(flow), row as usize);
        }
    }
}

/// All points in one list, walked from its start.
fn naive_ring(backends: &[Backend], copies: u64, hash: u64) -> Option<u16> {
    let mut points: Vec<(u64, u16)> = Vec::new();
    for backend in backends {
        for copy in 1..=copies * u64::from(backend.weight) {
            let position = mix(name_hash(&backend.name).wrapping_add(copy.wrapping_mul(STEP)));
            points.push((position, backend.number));
        }
    }
    let after = points.iter().filter(|point| point.0 >= hash).min();
    after.or_else(|| points.iter().min()).map(|point| point.1)
}

#[test]
fn ring_is_a_linear_scan() {
    let mut rng = Rng(seed());
    for (n, copies) in [(1, 1), (2, 1), (3, 4), (20, 10)] {
        let backends = pool(&mut rng, n, &[1, 2, 3, 0]);
        let mut ring = Ring::new(copies).unwrap();
        for used in 0..=usize::from(n) {
            let mut flows = rng.hashes(300);
            flows.extend([0, 1, 1 << 63, u64::MAX]);
            for backend in &backends[..used] {
                // On a point, before it and behind it.
                let point = mix(name_hash(&backend.name).wrapping_add(STEP));
                flows.extend([point.wrapping_sub(1), point, point.wrapping_add(1)]);
            }
            for &hash in &flows {
                let want = naive_ring(&backends[..used], u64::from(copies), hash);
                assert_eq!(ring.lookup(hash), want, "{used} backends");
            }
            if let Some(backend) = backends.get(used) {
                ring.add(backend.candidate()).unwrap();
            }
        }
    }
}

/// AnchorHash with every working set written down when a bucket is removed, as the paper
/// introduces it before it saves the memory.
struct WrittenOut {
    capacity: u64,
    working: Vec<u32>,
    removed: Vec<(u32, Vec<u32>, Vec<u32>)>,
}

impl WrittenOut {
    fn new(capacity: u32) -> Self {
        let mut all = Self {
            capacity: u64::from(capacity),
            working: (0..capacity).collect(),
            removed: Vec::new(),
        };
        (0..capacity).rev().for_each(|bucket| all.remove(bucket));
        all
    }

    fn remove(&mut self, bucket: u32) {
        let before = self.working.clone();
        let place = self.working.iter().position(|&other| other == bucket).unwrap();
        self.working.swap_remove(place);
        self.removed.push((bucket, before, self.working.clone()));
    }

    fn add(&mut self) -> u32 {
        let (bucket, before, _) = self.removed.pop().unwrap();
        self.working = before;
        bucket
    }

    fn lookup(&self, hash: u64) -> u32 {
        let mut bucket = (((hash & 0xffff_ffff) * self.capacity) >> 32) as u32;
        while let Some((_, _, set)) = self.removed.iter().find(|removed| removed.0 == bucket) {
            let draw = mix(hash ^ u64::from(bucket + 1).wrapping_mul(STEP)) >> 32;
            bucket = set[((draw * set.len() as u64) >> 32) as usize];
        }
        bucket
    }
}

/// Backends of one bucket each, so that backends and buckets can be told apart by a map.
#[test]
fn anchor_is_the_written_out_one() {
    let mut rng = Rng(seed());
    for capacity in [1u32, 2, 5, 40] {
        let mut anchor = Anchor::new(capacity).unwrap();
        let mut written = WrittenOut::new(capacity);
        let mut owner: Vec<(u32, u16)> = Vec::new();
        let backends = pool(&mut rng, capacity as u16, &[1]);
        let mut free: Vec<u16> = (0..capacity as u16).collect();
        for _ in 0..400 {
            let grow = owner.is_empty() || !free.is_empty() && rng.below(2) == 0;
            if grow {
                let number = free.swap_remove(rng.below(free.len()));
                anchor.add(backends[usize::from(number)].candidate()).unwrap();
                owner.push((written.add(), number));
            } else {
                let (bucket, number) = owner.swap_remove(rng.below(owner.len()));
                anchor.remove(number).unwrap();
                written.remove(bucket);
                free.push(number);
            }
            for hash in rng.hashes(100) {
                let want = (!owner.is_empty()).then(|| {
                    let bucket = written.lookup(hash);
                    owner.iter().find(|owned| owned.0 == bucket).unwrap().1
                });
                assert_eq!(anchor.lookup(hash), want);
            }
        }
    }
}

/// What goes last comes back first: the state is the one before.
#[test]
fn anchor_restores_what_was_removed_last() {
    let mut rng = Rng(seed());
    let backends = pool(&mut rng, 30, &[1, 3, 2]);
    let mut anchor = Anchor::new(100).unwrap();
    backends.iter().for_each(|backend| anchor.add(backend.candidate()).unwrap());
    let flows = rng.hashes(5000);
    let answers = |anchor: &Anchor| flows.iter().map(|&h| anchor.lookup(h)).collect::<Vec<_>>();
    let before = answers(&anchor);
    let tables_before = format!("{:?}", anchor.tables());
    let mut gone: Vec<u16> = (0..30).collect();
    rng.shuffle(&mut gone);
    gone.truncate(20);
    gone.iter().for_each(|&number| anchor.retire(number).unwrap());
    gone.iter().rev().for_each(|&number| anchor.admit(number).unwrap());
    assert_eq!(answers(&anchor), before);
    assert_eq!(format!("{:?}", anchor.tables()), tables_before);
}

#[test]
fn anchors_with_one_history_agree_and_the_digest_knows_another() {
    let mut rng = Rng(seed());
    let backends = pool(&mut rng, 10, &[1, 2]);
    let mut anchor = Anchor::new(64).unwrap();
    let fresh = anchor.clone();
    backends.iter().for_each(|backend| anchor.add(backend.candidate()).unwrap());
    for number in [3, 7, 1] {
        anchor.retire(number).unwrap();
    }
    anchor.admit(7).unwrap();
    anchor.reweight(2, 5).unwrap();
    anchor.remove_horizon(3).unwrap();
    anchor.remove(4).unwrap();
    anchor.add_horizon(backends[4].candidate()).unwrap();

    let bytes = anchor.encode();
    let copy = Anchor::replay(&bytes).unwrap();
    assert_eq!(copy, anchor);
    assert_eq!(copy.digest(), anchor.digest());

    // Each swap of two neighbours that both orders accept gives another digest.
    let log = anchor.log().to_vec();
    for at in 1..log.len() {
        let mut swapped = log.clone();
        swapped.swap(at - 1, at);
        let mut other = fresh.clone();
        if swapped.iter().all(|&operation| other.apply(operation).is_ok()) {
            assert_ne!(other.digest(), anchor.digest(), "{at}");
        }
    }
    assert_ne!(fresh.digest(), Anchor::new(65).unwrap().digest());

    // Every flipped bit and every missing byte is found.
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Anchor::replay(&damaged).is_err(), "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert!(Anchor::replay(&bytes[..length]).is_err());
    }
    let mut swapped = bytes.clone();
    swapped[16..48].rotate_left(16);
    assert!(matches!(Anchor::replay(&swapped), Err(LogError::Digest { .. })));
}

/// Another order may be another table: why the digest is needed.
#[test]
fn another_order_is_another_anchor() {
    let mut rng = Rng(seed());
    let backends = pool(&mut rng, 20, &[1]);
    let mut one = Anchor::new(40).unwrap();
    backends.iter().for_each(|backend| one.add(backend.candidate()).unwrap());
    let mut other = one.clone();
    for (first, second) in [(&mut one, [3, 12]), (&mut other, [12, 3])] {
        second.iter().for_each(|&number| first.remove(number).unwrap());
    }
    let differ = rng.hashes(10_000).iter().filter(|&&h| one.lookup(h) != other.lookup(h)).count();
    assert!(differ > 0);
    assert_ne!(one.digest(), other.digest());
}

#[test]
fn a_replayed_log_that_cannot_be_applied_says_where() {
    let mut anchor = Anchor::new(8).unwrap();
    let add = Operation::Add { backend: 1, weight: 2, name: 77 };
    anchor.apply(add).unwrap();
    assert_eq!(anchor.apply(add), Err(PoolError::DuplicateBackend(1)));
    assert_eq!(anchor.log(), [add]);
    let full = Operation::AddHorizon { backend: 2, weight: 7, name: 78 };
    assert_eq!(anchor.apply(full), Err(PoolError::NoRoom { room: 6, wanted: 7 }));
    let reserve = Operation::AddHorizon { backend: 2, weight: 5, name: 78 };
    anchor.apply(reserve).unwrap();
    // The horizon's buckets are spoken for.
    let more = Operation::Reweight { backend: 1, weight: 4 };
    assert_eq!(anchor.apply(more), Err(PoolError::NoRoom { room: 1, wanted: 2 }));
}

#[test]
fn sizes_are_checked() {
    assert!(matches!(HrwTable::new(0), Err(PoolError::Size { .. })));
    assert!(matches!(HrwTable::new(HrwTable::MAX_ROWS + 1), Err(PoolError::Size { .. })));
    assert!(matches!(Ring::new(0), Err(PoolError::Size { .. })));
    assert!(matches!(Anchor::new(0), Err(PoolError::Size { .. })));
    assert!(matches!(Anchor::new(u32::MAX), Err(PoolError::Size { .. })));
    let mut ring = Ring::new(1000).unwrap();
    let heavy = Backend { name: "a".into(), number: 0, weight: u32::MAX };
    assert!(matches!(ring.add(heavy.candidate()), Err(PoolError::NoRoom { .. })));
    assert_eq!(ring.points(), 0);
}
