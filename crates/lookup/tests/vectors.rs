//! Batched lookups give the same answers whatever vectors they are compiled for, and the same as
//! lookups one at a time. The seed is printed; `WEIR_SEED=n` repeats a run.
//!
//! One test, because what is used is a setting of the whole process.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_lookup::gather::Gather;
use weir_lookup::{DigestCuckoo, Fuse, Geometry, HashKey, MISS, MultiDigest, Vectors, View};

fn rng() -> ChaCha8Rng {
    let seed =
        std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// What a batch in bursts of every kind of length says about the keys.
fn bursts(keys: &[u64], rng: &mut ChaCha8Rng, lookup: impl Fn(&[u64], &mut [u32])) -> Vec<u32> {
    let mut out = vec![0; keys.len()];
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

#[test]
fn all_vectors_agree_with_single_lookups() {
    let mut rng = rng();
    for used in [Vectors::Avx512, Vectors::Avx2, Vectors::Baseline] {
        if Vectors::limit(used) != used {
            println!("this processor has no {used:?}");
            continue;
        }
        // Tables of digests are prefetched from half a megabyte on, that is the larger ones here.
        for n in [0, 5, 20_000, 200_000] {
            let keys: Vec<u64> = (0..n).map(|_| rng.random()).collect();
            let mut asked: Vec<u64> = (0..20_000).map(|_| rng.random()).collect();
            asked.iter_mut().zip(&keys).step_by(2).for_each(|(asked, key)| *asked = *key);
            for bits in [1, 4, 7, 8, 10, 12, 16, 17, 20, 25, 26, 28, 32] {
                let fuse = Fuse::build(bits, &keys, |i| i as u32, rng.random()).unwrap();
                let found = bursts(&asked, &mut rng, |keys, out| fuse.lookup_batch(keys, out));
                let want: Vec<u32> = asked.iter().map(|key| fuse.lookup(key)).collect();
                assert_eq!(found, want, "fuse of {bits} bits, {used:?}");

                let geometry = Geometry::for_cells(bits, n as u64 + 1);
                let mut bytes = vec![0; (geometry.chunks_a + geometry.chunks_b) as usize * 4096];
                rng.fill(&mut bytes[..]);
                let view = View::from_bytes(HashKey::from_seed(rng.random()), geometry, bytes);
                let found = bursts(&asked, &mut rng, |keys, out| view.lookup_batch(keys, out));
                let want: Vec<u32> = asked.iter().map(|key| view.lookup(key)).collect();
                assert_eq!(found, want, "view of {bits} bits, {used:?}");
            }
            let mut cuckoo = DigestCuckoo::new(n, rng.random());
            let mut multi = MultiDigest::with_digest_bits(n, 12, rng.random());
            for (i, key) in keys.iter().enumerate() {
                cuckoo.insert(key, i as u16 & 0x7fff).unwrap();
                multi.insert(key, i as u16 & 0x7fff).unwrap();
            }
            let found = bursts(&asked, &mut rng, |keys, out| cuckoo.lookup_batch(keys, out));
            let one = |found: Option<u16>| found.map_or(MISS, u32::from);
            assert!(asked.iter().zip(found).all(|(key, found)| found == one(cuckoo.lookup(key))));
            let found = bursts(&asked, &mut rng, |keys, out| multi.lookup_batch(keys, out));
            assert!(asked.iter().zip(found).all(|(key, found)| found == one(multi.lookup(key))));

            // 40 MB are prefetched, like tables of cells of that size.
            let gather = Gather::<2>::new(n * 200);
            let found = bursts(&asked, &mut rng, |keys, out| gather.lookup_batch(keys, out));
            assert!(asked.iter().zip(found).all(|(&key, found)| found == gather.lookup(key)));
        }
    }
}
