//! Configurations and files of other balancers, damaged: what the fuzz targets of `make fuzz` ask of whatever bytes come
//! is asked here of their seeds with lines that are gone, moved, or another one's, and with values and letters that are
//! out of place. `WEIR_INPUTS=100000 WEIR_SEED=7` goes on with others.

#[path = "../../../fuzz/readers/config.rs"]
mod config;
#[path = "../../../fuzz/readers/import.rs"]
mod import;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use std::{env, fs, thread};

/// Damaged inputs of each kind.
const INPUTS: u64 = 400;
/// What stands where something else should.
const VALUES: [&str; 27] = [
    "",
    " -1",
    " 0",
    " 65536",
    " 18446744073709551616",
    " 1.5",
    " nan",
    " true",
    " \"\"",
    " \"x\"",
    " \"10.0.0.1\"",
    " \"10.0.0.0/8\"",
    " \"2001:db8::/129\"",
    " \"::ffff:10.0.0.1\"",
    " \"0s\"",
    " \"99999999999h\"",
    " \"\\u0000\"",
    " \"\\u001b[31m\"",
    " \"/\"",
    " \"*\"",
    " []",
    " [\"a\", 1]",
    " {}",
    " { enabled = false }",
    " \"\"\"",
    " '",
    " 2026-12-01T22:00:00Z",
];
/// What is put into a line.
const LETTERS: &[u8] = b"\t\x1b\x00\"'[]{}()#!=:.,-/\\ 09azAZ";

/// The inputs that a fuzz target begins with.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // What a fuzzer has found on this machine is nobody else's.
    let is_seed = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with("seed-");
    let mut files: Vec<_> = files.filter(|path| is_seed(path)).collect();
    files.sort();
    assert!(files.len() > 5, "{files:?}");
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn lines(text: &[u8]) -> Vec<Vec<u8>> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// A seed with some damage.
fn damaged(seeds: &[Vec<u8>], random: &mut ChaCha8Rng) -> Vec<u8> {
    let seed = &seeds[random.random_range(0..seeds.len())];
    let other = lines(&seeds[random.random_range(0..seeds.len())][1..]);
    let mut all = lines(&seed[1..]);
    // It says how the rest is read.
    let first = if random.random_bool(0.8) { seed[0] } else { random.random() };
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..all.len());
        match random.random_range(0..6) {
            0 => all[at].clear(),
            1 => {
                let again = all[at].clone();
                all.push(again);
            }
            2 => {
                let there = random.random_range(0..all.len());
                all.swap(at, there);
            }
            3 => {
                let more = other[random.random_range(0..other.len())].clone();
                all.insert(at, more);
            }
            4 => {
                let key = all[at].iter().position(|byte| b"=:".contains(byte));
                all[at].truncate(key.map_or(0, |key| key + 1));
                let value = VALUES[random.random_range(0..VALUES.len())];
                all[at].extend_from_slice(value.as_bytes());
            }
            _ => {
                let place = random.random_range(0..=all[at].len());
                all[at].insert(place, LETTERS[random.random_range(0..LETTERS.len())]);
            }
        }
    }
    let mut input = vec![first];
    input.extend(all.join(&b'\n'));
    input
}

/// Shows what is read just now if that fails.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("read was:\n{}", String::from_utf8_lossy(self.0));
        }
    }
}

fn read_damaged(target: &str, read: fn(&[u8])) {
    let given = |name: &str| env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = given("WEIR_SEED").unwrap_or(1);
    println!("WEIR_SEED={seed}");
    let seeds = seeds(target);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let damaged = (0..given("WEIR_INPUTS").unwrap_or(INPUTS)).map(|_| damaged(&seeds, &mut random));
    for input in seeds.iter().cloned().chain(damaged) {
        let _shown = Shown(&input);
        read(&input);
    }
}

#[test]
fn damaged_configurations_are_taken_or_refused_in_words() {
    read_damaged("config", config::read);
    let _ = fs::remove_dir_all(&*config::FOLDER);
}

#[test]
fn damaged_files_of_other_balancers_are_taken_or_refused_in_words() {
    read_damaged("import", import::read);
}
