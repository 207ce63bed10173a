//! What a block of AES-128 costs a program in the kernel: by the tables of `bpf/aes.h`, and by the kernel's
//! own functions for it, `bpf_crypto_encrypt` (Linux 6.10).
//!
//! ```text
//! cargo run --release -p weir-dataplane --example aes    # as root
//! ```
//! Medians of the rounds, which take turns. Both make the same blocks, which is checked.

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ProgramInput, ProgramMut};
use std::mem::MaybeUninit;
use weir_wire::aes::expand;

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/crypto.skel.rs"));
}

/// `BLOCKS` of `bpf/crypto.bpf.c`.
const BLOCKS: f64 = 16.0;
const ROUNDS: usize = 31;
/// Runs of a program in each round.
const RUNS: u32 = 20_000;
const KEY: [u8; 16] = *b"sixteen bytes, a";
const FRAME: [u8; 64] = [0; 64];

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Nanoseconds of a run, and checks what it returned.
fn time(program: &ProgramMut<'_>, runs: u32) -> Outcome<f64> {
    let input = ProgramInput { data_in: Some(&FRAME), repeat: runs, ..Default::default() };
    let output = program.test_run(input)?;
    assert_eq!(output.return_value, libbpf_rs::libbpf_sys::XDP_PASS, "a program gave up");
    Ok(output.duration.as_nanos() as f64)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Outcome<()> {
    let mut storage = MaybeUninit::uninit();
    let mut open = skeleton::CryptoSkelBuilder::default().open(&mut storage)?;
    let data = open.maps.bss_data.as_deref_mut().ok_or("the program has .bss")?;
    data.config.keys = expand(&KEY);
    for (to, from) in
        [(&mut data.wanted.r#type[..], "skcipher"), (&mut data.wanted.algo, "ecb(aes)")]
    {
        for (to, from) in to.iter_mut().zip(from.bytes()) {
            *to = from as _;
        }
    }
    data.wanted.key[..KEY.len()].copy_from_slice(&KEY);
    data.wanted.key_len = KEY.len() as u32;
    let skel = open.load().map_err(|error| {
        format!("this kernel has no functions for AES, which take Linux 6.10: {error}")
    })?;
    let made = skel.progs.make.test_run(ProgramInput::default())?;
    let failed = skel.maps.bss_data.as_deref().ok_or("the program has .bss")?.failed;
    if made.return_value != 0 {
        return Err(format!("the kernel makes no cipher ecb(aes): error {failed}").into());
    }
    let programs = [&skel.progs.nothing, &skel.progs.tables, &skel.progs.kernel];
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (program, times) in programs.iter().zip(&mut times) {
            times.push(time(program, RUNS)?);
        }
    }
    let data = skel.maps.bss_data.as_deref().ok_or("the program has .bss")?;
    let by_tables = [data.by_tables.words[0], data.by_tables.words[1]];
    assert_eq!(by_tables, data.by_kernel, "both ways make the same blocks");
    let [nothing, tables, kernel] = times.map(median);
    println!("blocks of AES-128, {} of them made of one another", RUNS as usize * ROUNDS * 16);
    for (what, time) in [("tables", tables), ("bpf_crypto_encrypt", kernel)] {
        println!("{what:<20}{:>8.1} ns a block", (time - nothing) / BLOCKS);
    }
    Ok(())
}
