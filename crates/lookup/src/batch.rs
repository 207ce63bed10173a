//! Many lookups at once, so that their cache misses overlap.

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
pub fn pipeline<K, P: Copy + Default>(
    keys: &[K],
    out: &mut [u32],
    locate: impl Fn(&K) -> P,
    fetch: impl Fn(P),
    read: impl Fn(P) -> u32,
) {
    assert_eq!(keys.len(), out.len(), "one result per key");
    let (keys, last_keys) = keys.as_chunks::<BATCH>();
    let (out, last_out) = out.as_chunks_mut::<BATCH>();
    let ask = |keys: &[K]| {
        let mut places = [P::default(); BATCH];
        for (place, key) in places.iter_mut().zip(keys) {
            *place = locate(key);
            fetch(*place);
        }
        places
    };
    let answer = |places: &[P; BATCH], out: &mut [u32]| {
        out.iter_mut().zip(places).for_each(|(out, place)| *out = read(*place));
    };
    let mut before: Option<([P; BATCH], &mut [u32; BATCH])> = None;
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
        }
    }

    #[test]
    #[should_panic = "one result per key"]
    fn lengths_must_agree() {
        pipeline(&[1u32], &mut [0; 2], |key| *key, |_| (), |place| place);
    }
}
