//! What an upload sends, and what its backend is to say of it.

use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use xxhash_rust::xxh3::Xxh3;

use crate::uploads::receipt;

/// Bytes that are sent at once.
pub(crate) const PIECE: usize = 32 << 10;

/// The body of an upload: bytes of a seed, as they are sent.
pub(crate) struct Body {
    random: ChaCha8Rng,
    length: u64,
    sent: u64,
    hash: Xxh3,
}

impl Body {
    pub(crate) fn new(random: ChaCha8Rng, length: u64) -> Self {
        Self { random, length, sent: 0, hash: Xxh3::new() }
    }

    /// The head of its request.
    pub(crate) fn head(&self) -> String {
        format!("POST /upload HTTP/1.1\r\nHost: lab\r\nContent-Length: {}\r\n\r\n", self.length)
    }

    /// The next bytes of it, put into `buffer`; none when all were.
    pub(crate) fn next<'a>(&mut self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let left = self.length - self.sent;
        let length = left.min(buffer.len() as u64) as usize;
        if length == 0 {
            return None;
        }
        let piece = &mut buffer[..length];
        self.random.fill(piece);
        self.hash.update(piece);
        self.sent += length as u64;
        Some(piece)
    }

    /// What the backend says of it, if every byte has come, in order.
    pub(crate) fn receipt(&self) -> String {
        receipt(self.sent, &self.hash)
    }
}

/// How long a piece takes at a rate in bytes per second.
pub(crate) fn pace(rate: u64) -> Duration {
    Duration::from_secs_f64(PIECE as f64 / rate as f64)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_body_has_its_length_and_its_receipt_whatever_the_pieces() {
        let whole = |length: u64, piece: usize| {
            let mut body = Body::new(ChaCha8Rng::seed_from_u64(7), length);
            let (mut buffer, mut all) = (vec![0; piece], Vec::new());
            while let Some(piece) = body.next(&mut buffer) {
                all.extend_from_slice(piece);
            }
            let mut hash = Xxh3::new();
            hash.update(&all);
            assert_eq!(all.len() as u64, length);
            assert_eq!(body.receipt(), receipt(length, &hash));
            all
        };
        for length in [1, 64, 65, 1000] {
            whole(length, 64);
        }
        // Nothing in it repeats itself by the piece.
        let all = whole(256, 64);
        assert_ne!(all[..64], all[64..128]);
    }

    #[test]
    fn a_rate_is_in_bytes_per_second() {
        assert_eq!(pace(PIECE as u64), Duration::from_secs(1));
        assert_eq!(pace(1 << 20), Duration::from_micros(31_250));
    }
}
