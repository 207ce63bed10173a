//! Batched lookups give the same answers whatever vectors they are compiled for, and the same as
//! lookups one at a time. The seed is printed; `WEIR_SEED=n` repeats a run.
//!
//! One test, because what is used is a setting of the whole process.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_hash::HashKey;
use weir_lookup::simd::gather::Gather;
use weir_lookup::{
    CHUNK_BYTES, DigestCuckoo, Fuse, FuseShape, Geometry, MISS, MultiDigest, Value, Vectors, View,
};

fn rng() -> ChaCha8Rng {
    let seed =
        std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// What a batch in bursts of every kind of length says about the keys.
fn bursts<V: Value>(
    keys: &[u64],
    rng: &mut ChaCha8Rng,
    lookup: impl Fn(&[u64], &mut [V]),
) -> Vec<V> {
    let mut out = vec![V::default(); keys.len()];
    let (mut keys, mut left) = (keys, &mut out[..]);
    while !keys.is_empty() {
        let most = [1, 31, 33, 70, 300, 2_000][rng.random_range(0..6)];
        let (burst, next) = keys.split_at(rng.random_range(0..=most).min(keys.len()));
        let (found, rest) = left.split_at_mut(burst.len());
        lookup(burst, found);
        (keys, left) = (next, rest);
    }
    out
}

/// Tables of `cells` random cells of `bits` bits, a view and a fuse.
fn random_tables<V: Value>(bits: u32, cells: u64, rng: &mut ChaCha8Rng) -> (View<V>, Fuse<V>) {
    let random = |len: usize, rng: &mut ChaCha8Rng| {
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes[..]);
        bytes
    };
    let geometry = Geometry::for_cells(bits, cells.div_ceil(2));
    let chunks = (geometry.chunks_a + geometry.chunks_b) as usize;
    let bytes = random(chunks * CHUNK_BYTES, rng);
    let view = View::from_bytes(HashKey::from_seed(rng.random()), geometry, bytes);
    let shape = FuseShape::for_keys(bits, cells as usize * 8 / 9);
    let bytes = random(shape.bytes(), rng);
    let fuse = Fuse::from_bytes(HashKey::from_seed(rng.random()), shape, bytes);
    (view, fuse)
}

/// Batches of both tables, and single lookups.
fn batches_equal_single_lookups<V: Value>(bits: u32, cells: u64, rng: &mut ChaCha8Rng) {
    let asked: Vec<u64> = (0..3_000).map(|_| rng.random()).collect();
    let (view, fuse) = random_tables::<V>(bits, cells, rng);
    let found = bursts(&asked, rng, |keys, out| view.get_batch(keys, out));
    assert!(
        asked.iter().zip(found).all(|(key, found)| found == view.get(key)),
        "view of {cells} cells of {bits} bits in {}",
        V::BITS
    );
    let found = bursts(&asked, rng, |keys, out| fuse.get_batch(keys, out));
    assert!(
        asked.iter().zip(found).all(|(key, found)| found == fuse.get(key)),
        "fuse of {cells} cells of {bits} bits in {}",
        V::BITS
    );
}

#[test]
fn all_vectors_agree_with_single_lookups() {
    let mut rng = rng();
    for used in [Vectors::Avx512, Vectors::Avx2, Vectors::Baseline] {
        if Vectors::limit(used) != used {
            println!("this processor has no {used:?}");
            continue;
        }
        for cells in [1, 30_000] {
            (1..=32).for_each(|bits| batches_equal_single_lookups::<u32>(bits, cells, &mut rng));
            (1..=64).for_each(|bits| batches_equal_single_lookups::<u64>(bits, cells, &mut rng));
        }
        // Prefetched ones, of 8 MB and more.
        for bits in [12, 20, 31, 33, 40, 57, 60, 63, 64] {
            let cells = (9 << 23) / u64::from(bits);
            batches_equal_single_lookups::<u64>(bits, cells, &mut rng);
        }
        // Tables of digests are prefetched from half a megabyte on, that is the larger ones here.
        for n in [0, 5, 20_000, 200_000] {
            let keys: Vec<u64> = (0..n).map(|_| rng.random()).collect();
            let mut asked: Vec<u64> = (0..20_000).map(|_| rng.random()).collect();
            asked.iter_mut().zip(&keys).step_by(2).for_each(|(asked, key)| *asked = *key);
            for bits in [4, 7, 8, 12, 17, 20, 32] {
                let fuse = Fuse::build(bits, &keys, |i| i as u32, rng.random()).unwrap();
                let found = bursts(&asked, &mut rng, |keys, out| fuse.get_batch(keys, out));
                let want: Vec<u32> = asked.iter().map(|key| fuse.get(key)).collect();
                assert_eq!(found, want, "fuse of {bits} bits, {used:?}");
            }
            let mut cuckoo = DigestCuckoo::new(n, rng.random());
            let mut multi = MultiDigest::with_digest_bits(n, 12, rng.random());
            for (i, key) in keys.iter().enumerate() {
                cuckoo.insert(key, i as u16 & 0x7fff).unwrap();
                multi.insert(key, i as u16 & 0x7fff).unwrap();
            }
            let found = bursts(&asked, &mut rng, |keys, out| cuckoo.get_batch(keys, out));
            let one = |found: Option<u16>| found.map_or(MISS, u32::from);
            assert!(asked.iter().zip(found).all(|(key, found)| found == one(cuckoo.get(key))));
            let found = bursts(&asked, &mut rng, |keys, out| multi.get_batch(keys, out));
            assert!(asked.iter().zip(found).all(|(key, found)| found == one(multi.get(key))));

            // 40 MB are prefetched, like tables of cells of that size.
            let gather = Gather::<2>::new(n * 200);
            let found = bursts(&asked, &mut rng, |keys, out| gather.get_batch(keys, out));
            assert!(asked.iter().zip(found).all(|(&key, found)| found == gather.get(key)));
        }
    }
}
