//! Cheetah under random histories: every packet of a live connection reaches its backend, forged
//! cookies reach nobody in particular, timestamps come back as they were, slots are given back.
//!
//! A run is made of its seed: `WEIR_SEED=n cargo test` repeats one.

mod seed;
#[path = "cheetah/stateless.rs"]
mod stateless;
#[path = "cheetah/table.rs"]
mod table;
#[path = "cheetah/tiers.rs"]
mod tiers;
#[path = "cheetah/timestamps.rs"]
mod timestamps;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_steering::{Member, Role};
use weir_wire::{FlowKey, Protocol};

/// The source of everything random in a test: `WEIR_SEED`, or another one each time.
fn seeded() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed::seed())
}

/// A flow to one service, a third of them IPv6.
fn flow(rng: &mut ChaCha8Rng) -> FlowKey {
    let port = rng.random_range(1_024..=u16::MAX);
    if rng.random_ratio(1, 3) {
        let mut address: [u8; 16] = rng.random();
        address[0] = 0x20;
        let service = "[2001:db8::1]:443".parse().unwrap();
        FlowKey::new((address, port).into(), service, Protocol::Tcp)
    } else {
        let service = "192.0.2.1:443".parse().unwrap();
        FlowKey::new((rng.random::<[u8; 4]>(), port).into(), service, Protocol::Tcp)
    }
}

fn member(name: &str, backend: u16, role: Role) -> Member {
    Member { backend, name: name.to_owned(), weight: 1, role }
}

/// How many standard deviations chi-squared is off what a uniform source gives (Wilson and
/// Hilferty 1931).
fn deviation(counts: &[u32]) -> f64 {
    let total: u32 = counts.iter().sum();
    let expected = f64::from(total) / counts.len() as f64;
    let chi_squared: f64 =
        counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    let freedom = (counts.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((chi_squared / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}
