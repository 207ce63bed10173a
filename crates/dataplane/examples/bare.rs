use weir_dataplane::bench::*;
fn main() {
    let which = std::env::args().nth(1).unwrap_or_default();
    let n: u32 = std::env::args().nth(2).and_then(|s| s.parse().ok()).unwrap_or(20_000_000);
    std::thread::spawn(move || {
        let mut st = Storage::uninit();
        let b = XdpBench::new(&mut st, 1000).unwrap();
        for _ in 0..3 {
            for s in [Subject::Reflector, Subject::Concury, Subject::Tracked] {
                if which.is_empty() || which == s.name() {
                    print!("{s:?} {} ", b.bare(s, n).unwrap());
                }
            }
        }
        println!();
    })
    .join()
    .unwrap();
}
