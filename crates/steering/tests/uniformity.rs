//! Keys that a table does not hold spread over its Dcodes as evenly as SHA-256 would spread them
//! (Concury section 5.3, figures 6 and 7): the same keys, the same two tests, at every width of
//! Dcode.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};
use weir_hash::Key;
use weir_steering::{BackendId, Codec, Concury, ConcuryConfig, Member, Role, StateKey};

/// Tables per width, and sets of keys per table.
const TABLES: u32 = 5;
const SETS: u32 = 20;
const STATES: u32 = 50_000;

/// Upper 10 % points of the normal and of the Kolmogorov distribution.
const NORMAL_90: f64 = 1.2816;
const KOLMOGOROV_90: f64 = 1.2238;

/// Of 100 tests of a uniform source 10 fail, with a standard deviation of 3; the difference of two
/// sources has 4.2. The margin is 3.5 of these.
const MARGIN: i32 = 15;

/// Client number `n`: addresses and ports count up, as they do behind a NAT.
fn key(n: u32) -> StateKey {
    let mut address = [0; 16];
    address[10..12].fill(0xff);
    address[12..].copy_from_slice(&(0x0a00_0000 + n / 1000).to_be_bytes());
    StateKey { address, src_port: (20_000 + n % 1000) as u16, dst_port: 443 }
}

/// Whether codes fail the chi-squared test at the 10 % level.
fn fails_chi_squared(counts: &[u32], keys: u32) -> bool {
    let expected = f64::from(keys) / counts.len() as f64;
    let chi_squared: f64 =
        counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    // Wilson and Hilferty 1931.
    let freedom = (counts.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((chi_squared / freedom).cbrt() - (1.0 - spread)) / spread.sqrt() > NORMAL_90
}

/// Whether codes fail the Kolmogorov-Smirnov test at the 10 % level.
fn fails_kolmogorov_smirnov(counts: &[u32], keys: u32) -> bool {
    let mut below = 0u32;
    let mut greatest: f64 = 0.0;
    for (code, &count) in counts.iter().enumerate() {
        below += count;
        let share = f64::from(below) / f64::from(keys);
        let uniform = (code + 1) as f64 / counts.len() as f64;
        greatest = greatest.max((share - uniform).abs());
    }
    greatest > KOLMOGOROV_90 / f64::from(keys).sqrt()
}

/// Failures of both tests.
#[derive(Default, Clone, Copy, Debug)]
struct Failures {
    chi_squared: i32,
    kolmogorov_smirnov: i32,
}

impl Failures {
    fn judge(&mut self, bits: u32, keys: u32, code: impl Fn(u32) -> u32) {
        let mut counts = vec![0; 1 << bits];
        for n in 0..keys {
            counts[code(n) as usize] += 1;
        }
        self.chi_squared += i32::from(fails_chi_squared(&counts, keys));
        self.kolmogorov_smirnov += i32::from(fails_kolmogorov_smirnov(&counts, keys));
    }
}

fn table(codec: Codec, bits: u32, rng: &mut ChaCha8Rng) -> std::sync::Arc<weir_steering::Image> {
    let mut concury = Concury::new(ConcuryConfig {
        capacity: STATES as usize,
        ..ConcuryConfig::unbounded(codec, bits, rng.random())
    });
    let members: Vec<Member> = (0..16)
        .map(|backend| Member {
            backend: BackendId::of(backend),
            name: format!("b{backend}"),
            weight: 1,
            role: Role::Serving,
        })
        .collect();
    for n in 0..STATES {
        let started = concury.start(key(n), BackendId::of(rng.random_range(0..16)), 0);
        assert_eq!(started, Ok(true));
    }
    concury.build(1, &members, 0).unwrap().0
}

fn sha(n: u32, bits: u32) -> u32 {
    let digest = Sha256::digest(key(n).to_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]) >> (32 - bits)
}

#[test]
fn unknown_keys_spread_over_dcodes_as_sha_256_spreads_them() {
    spread_like_sha_256(Codec::Othello);
}

#[test]
fn unknown_keys_spread_over_dcodes_of_a_fuse_as_sha_256_spreads_them() {
    spread_like_sha_256(Codec::Fuse);
}

fn spread_like_sha_256(codec: Codec) {
    println!("failures of 100     chi-squared        Kolmogorov-Smirnov");
    println!("Dcode bits      concury  SHA-256       concury  SHA-256");
    let mut worst = 0;
    let mut failures = 0;
    for bits in 8..=14 {
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(bits));
        let keys = (5u32 << bits).max(20_000);
        let (mut ours, mut theirs) = (Failures::default(), Failures::default());
        for number in 0..TABLES {
            let image = table(codec, bits, &mut rng);
            let hash_key = image.header().key;
            for set in 0..SETS {
                // Other keys for each width, so that chance is not counted seven times.
                let first = bits * 10_000_000 + (number * SETS + set) * keys;
                let code =
                    |n| image.code(key(first + n).hash(&hash_key)).expect("it has Dcodes").cell();
                ours.judge(bits, keys, code);
                theirs.judge(bits, keys, |n| sha(first + n, bits));
            }
        }
        println!(
            "{bits:10} {:12} {:8} {:13} {:8}",
            ours.chi_squared,
            theirs.chi_squared,
            ours.kolmogorov_smirnov,
            theirs.kolmogorov_smirnov
        );
        failures += ours.chi_squared + ours.kolmogorov_smirnov;
        worst = worst
            .max(ours.chi_squared - theirs.chi_squared)
            .max(ours.kolmogorov_smirnov - theirs.kolmogorov_smirnov);
    }
    // 1,400 tests; those of one table are not independent, so the margin is more than three
    // standard deviations.
    let share = f64::from(failures) / 1400.0;
    println!("{share:.3} of all tests fail with concury, {codec:?}");
    assert!(share < 0.14, "{share} of all tests fail at the 10 % level");
    assert!(worst <= MARGIN, "{worst} more of 100 tests fail than with SHA-256");
}

/// The tests see a tenth of the keys losing one bit of their Dcode.
#[test]
fn a_slight_bias_is_noticed() {
    let mut failures = Failures::default();
    for set in 0..20 {
        let first = set * 20_000;
        failures.judge(8, 20_000, |n| sha(first + n, 8) & !u32::from(n % 10 == 0));
        failures.judge(8, 20_000, |n| sha(first + n, 8) & !(u32::from(n % 10 == 0) << 7));
    }
    println!("{failures:?} of 40");
    assert!(failures.chi_squared >= 36, "{failures:?}");
    assert!(failures.kolmogorov_smirnov >= 20, "{failures:?}");
}
