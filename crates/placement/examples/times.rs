//! The times on docs/placement.md: `cargo run --release -p weir-placement --example times`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Backend, Rng, SIZE, filled, maglev, pool};
use std::hint::black_box;
use std::time::Instant;
use weir_placement::{Anchor, Horizon, Hrw, HrwTable};
use weir_placement::{NONE, Placement, Ring};

const COPIES: u32 = 160;

fn best_of<T>(times: usize, mut run: impl FnMut() -> T) -> f64 {
    let mut once = || {
        let start = Instant::now();
        black_box(run());
        start.elapsed().as_secs_f64()
    };
    (0..times).map(|_| once()).fold(f64::MAX, f64::min)
}

fn time_lookup(name: &str, placement: &dyn Placement, flows: &[u64]) {
    let mut out = vec![NONE; flows.len()];
    let per_flow = 1e9 / flows.len() as f64;
    let batch = best_of(5, || placement.lookup_batch(flows, &mut out)) * per_flow;
    let single = best_of(5, || {
        flows.iter().fold(0u64, |sum, &hash| sum + u64::from(placement.lookup(hash).unwrap_or(0)))
    }) * per_flow;
    println!("| {name:<14} | {single:>8.2} ns | {batch:>8.2} ns |");
}

fn time_changes<P: Horizon>(name: &str, placement: &mut P, new: &Backend) {
    let number = new.number;
    let mut times = [f64::MAX; 4];
    for _ in 0..5 {
        let mut least = |slot: usize, run: &mut dyn FnMut()| {
            times[slot] = times[slot].min(best_of(1, run) * 1e6);
        };
        least(0, &mut || placement.add(new.candidate()).unwrap());
        least(1, &mut || placement.retire(number).unwrap());
        least(2, &mut || placement.admit(number).unwrap());
        least(3, &mut || placement.remove(number).unwrap());
    }
    let [add, retire, admit, remove] = times;
    println!(
        "| {name:<8} | {add:>9.1} us | {remove:>9.1} us | {retire:>9.1} us | {admit:>9.1} us |"
    );
}

fn main() {
    let mut rng = Rng(1);
    let flows = rng.hashes(1_000_000);
    for n in [100, 500] {
        let backends = pool(&mut rng, n + 1, &[1]);
        let (new, backends) = backends.split_last().unwrap();
        let mut ring = filled(Ring::new(COPIES).unwrap(), backends);
        let mut table = filled(HrwTable::new(SIZE).unwrap(), backends);
        let mut anchor = filled(Anchor::new(2 * u32::from(n)).unwrap(), backends);
        let mut hrw = filled(Hrw::new(), backends);
        println!("| n = {n} | single | batch |");
        time_lookup("maglev", &maglev(backends), &flows);
        time_lookup("table", &table, &flows);
        time_lookup("ring", &ring, &flows);
        time_lookup("anchor", &anchor, &flows);
        time_lookup("hrw", &hrw, &flows[..20_000]);
        println!("ring: {} bytes", ring.memory());
        println!("| n = {n} | add | remove | retire | admit |");
        println!("maglev: build {:.1} us", 1e6 * best_of(5, || maglev(backends)));
        time_changes("table", &mut table, new);
        time_changes("ring", &mut ring, new);
        time_changes("anchor", &mut anchor, new);
        time_changes("hrw", &mut hrw, new);
    }
}
