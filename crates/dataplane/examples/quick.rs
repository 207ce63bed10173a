use weir_dataplane::bench::*;
fn main() {
    for flows in [1000u32, 65536, 1_000_000] {
        std::thread::spawn(move || {
            let mut st = Storage::uninit();
            let mut b = XdpBench::new(&mut st, flows).unwrap();
            println!(
                "{flows} {:?} bits/conn {:.2}",
                b.memory,
                (b.memory.concury_bytes - b.memory.concury_fixed_bytes) as f64 * 8.0 / flows as f64
            );
            let mut all = vec![vec![]; 3];
            for r in 0..7 {
                for (i, s) in
                    [Subject::Reflector, Subject::Concury, Subject::Tracked].into_iter().enumerate()
                {
                    let x = b.run(s, flows, 4_000_000, r).unwrap();
                    if r == 0 {
                        println!("{s:?} {x:?}");
                    }
                    all[i].push(x.nanoseconds);
                }
            }
            for v in &mut all {
                v.sort_by(f64::total_cmp);
            }
            let m: Vec<f64> = all.iter().map(|v| v[3]).collect();
            println!(
                "floor {:.0} concury +{:.1} tracked +{:.1} ratio {:.2}   min: {:.0} +{:.1} +{:.1}",
                m[0],
                m[1] - m[0],
                m[2] - m[0],
                (m[1] - m[0]) / (m[2] - m[0]),
                all[0][0],
                all[1][0] - all[0][0],
                all[2][0] - all[0][0]
            );
        })
        .join()
        .unwrap();
    }
}
