//! What makes a random test repeatable.

/// The seed of this run: `WEIR_SEED`, or another one each time.
pub fn seed() -> u64 {
    let seed = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    seed
}
