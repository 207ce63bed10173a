//! Many lookups at once, so that their cache misses overlap.

use crate::{Vectors, Work, vectorised};

/// How many lookups are in flight: a packet burst of the usual size, and enough to cover a miss.
pub const BATCH: usize = 32;

/// Looks up `keys` and writes what is found to `out`, [`BATCH`] lookups in flight.
///
/// `locate` computes where a key's cells are, `fetch` prefetches them, `read` reads them. The cells
/// of a batch are read after those of the next one were asked for, so the memory is never idle.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub fn pipeline<K, P: Copy + Default, R>(
    keys: &[K],
    out: &mut [R],
    locate: impl Fn(&K) -> P,
    fetch: impl Fn(P),
    read: impl FnMut(P) -> R,
) {
    run::<K, P, R, false>(keys, out, locate, fetch, read);
}

/// As [`pipeline`], for places that are computed by arithmetic alone: where the processor has
/// AVX-512 they are computed in vectors. At a million keys that makes Othello 1.5 times as fast and
/// a fuse 1.2 times (examples/rates.rs); what reads memory in `locate` or branches does not gain.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn pipeline_vectored<K, P: Copy + Default, R>(
    keys: &[K],
    out: &mut [R],
    locate: impl Fn(&K) -> P,
    fetch: impl Fn(P),
    read: impl FnMut(P) -> R,
) {
    if Vectors::used() == Vectors::Avx512 {
        vectorised(Pipeline { keys, out, locate, fetch, read });
    } else {
        pipeline(keys, out, locate, fetch, read);
    }
}

/// The work of [`pipeline_vectored`].
struct Pipeline<'a, K, R, L, F, A> {
    keys: &'a [K],
    out: &'a mut [R],
    locate: L,
    fetch: F,
    read: A,
}

impl<K, P, R, L, F, A> Work for Pipeline<'_, K, R, L, F, A>
where
    P: Copy + Default,
    L: Fn(&K) -> P,
    F: Fn(P),
    A: FnMut(P) -> R,
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        run::<K, P, R, true>(self.keys, self.out, self.locate, self.fetch, self.read);
    }
}

/// With `APART` all places of a batch are computed before the first is asked for: prefetches in
/// the same loop would keep it from being made of vector instructions.
#[inline(always)]
fn run<K, P: Copy + Default, R, const APART: bool>(
    keys: &[K],
    out: &mut [R],
    locate: impl Fn(&K) -> P,
    fetch: impl Fn(P),
    mut read: impl FnMut(P) -> R,
) {
    assert_eq!(keys.len(), out.len(), "one result per key");
    let (keys, last_keys) = keys.as_chunks::<BATCH>();
    let (out, last_out) = out.as_chunks_mut::<BATCH>();
    let ask = |keys: &[K]| {
        let mut places = [P::default(); BATCH];
        for (place, key) in places.iter_mut().zip(keys) {
            *place = locate(key);
            if !APART {
                fetch(*place);
            }
        }
        if APART {
            places[..keys.len()].iter().for_each(|place| fetch(*place));
        }
        places
    };
    let mut answer = |places: &[P; BATCH], out: &mut [R]| {
        out.iter_mut().zip(places).for_each(|(out, place)| *out = read(*place));
    };
    let mut before: Option<([P; BATCH], &mut [R; BATCH])> = None;
    for (keys, out) in keys.iter().zip(out) {
        let places = ask(keys);
        if let Some((places, out)) = before {
            answer(&places, out);
        }
        before = Some((places, out));
    }
    let places = ask(last_keys);
    if let Some((places, out)) = before {
        answer(&places, out);
    }
    answer(&places, last_out);
}

/// Tables of this size and more are prefetched by [`Passes`]. Smaller ones lie in the caches, and
/// the processor looks far enough ahead by itself to hide their latency. Between: a fuse of 13.5 MB
/// (third-level cache: 32 MB) made 225 and 292 M lookups/s without prefetching and 339 and 375 with
/// it, in turn, beside programs that used the same cache. With the cache for itself not to prefetch
/// was faster, by a quarter in a prototype; the loss is smaller than the gain.
pub(crate) const PREFETCH_FROM: usize = 8 << 20;

/// A lookup in passes over the keys of a block. Every function of an implementation must be
/// `#[inline(always)]`: what is not inlined is not compiled for vectors.
pub(crate) trait Passes<K> {
    /// What a lookup gives.
    type Value: Copy;

    /// Where the values of a block of keys stand.
    type Block: Copy;

    /// A block, with any contents.
    fn empty(&self) -> Self::Block;

    /// Computes the places.
    fn locate(&self, keys: &[K; BATCH]) -> Self::Block;

    /// Prefetches them, if that is of use.
    fn fetch(&self, block: &Self::Block);

    /// Reads them.
    fn read(&self, block: &Self::Block) -> [Self::Value; BATCH];

    /// All steps for one key.
    fn one(&self, key: &K) -> Self::Value;

    /// Looks up `keys`, inside of [`vectorised`](crate::vectorised). The places of a block are
    /// read after those of the next one were asked for; keys that do not fill a block are looked
    /// up one at a time. `finish` sees what was read, in the order of the keys.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline(always)]
    fn run<R>(&self, keys: &[K], out: &mut [R], mut finish: impl FnMut(Self::Value) -> R) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        let (keys, last_keys) = keys.as_chunks::<BATCH>();
        let (out, last_out) = out.as_chunks_mut::<BATCH>();
        let mut blocks = [self.empty(); 2];
        for i in 0..=keys.len() {
            // (Each function is called at one place, so that the closures in it are inlined too.)
            if let Some(keys) = keys.get(i) {
                blocks[i % 2] = self.locate(keys);
                self.fetch(&blocks[i % 2]);
            }
            if let Some(out) = i.checked_sub(1).and_then(|i| out.get_mut(i)) {
                let found = self.read(&blocks[(i + 1) % 2]);
                out.iter_mut().zip(found).for_each(|(out, found)| *out = finish(found));
            }
        }
        last_out.iter_mut().zip(last_keys).for_each(|(out, key)| *out = finish(self.one(key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gives_every_key_its_own_result() {
        for len in 0..200u32 {
            let keys: Vec<u32> = (0..len).collect();
            let mut out = vec![0; keys.len()];
            pipeline(&keys, &mut out, |key| key * 3, |_| (), |place| place + 1);
            let want: Vec<u32> = keys.iter().map(|key| key * 3 + 1).collect();
            assert_eq!(out, want);
            out.fill(0);
            pipeline_vectored(&keys, &mut out, |key| key * 3, |_| (), |place| place + 1);
            assert_eq!(out, want);
        }
    }

    #[test]
    #[should_panic = "one result per key"]
    fn lengths_must_agree() {
        pipeline(&[1u32], &mut [0; 2], |key| *key, |_| (), |place| place);
    }
}
