//! The bench of a plane over DPDK's null port. Rates mean nothing here, but every frame must have gone where the
//! pipeline says, and each row must have its figures. `WEIR_FLOWS`, `WEIR_PACKETS` and `WEIR_ROUNDS` make it a
//! measurement; it prints its rows.

use weir_bench::plane::{Forward, Request, dpdk};
use weir_steering::MethodId;

fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn every_pipeline_has_its_row_beside_a_macswap() {
    let flows = from_environment("WEIR_FLOWS", 1000) as u32;
    let request = Request {
        methods: vec![MethodId::Concury, MethodId::Residue],
        forward: Forward::ALL.to_vec(),
        flows: vec![flows],
        residue_flows: Vec::new(),
        cores: vec![1],
        frame_bytes: 64,
        packets: from_environment("WEIR_PACKETS", 20_000),
        rounds: from_environment("WEIR_ROUNDS", 2) as u32,
        seed: from_environment("WEIR_SEED", 1),
    };
    let report = dpdk::run(&request, |row| println!("{row}")).expect("it can be measured");
    println!("huge pages: {}", report.huge_pages);
    let kinds: Vec<_> =
        report.rows.iter().map(|row| (row.beside.method, row.beside.forward)).collect();
    let wanted = [("concury", "l2"), ("concury", "ipip"), ("residue", "l2"), ("residue", "ipip")];
    assert_eq!(kinds, wanted);
    for row in &report.rows {
        let beside = &row.beside;
        assert!(beside.plane == "dpdk" && row.checked >= 1000 && beside.cores == 1, "{row:?}");
        let rates = [beside.mpps, beside.macswap_mpps, beside.ratio_to_macswap];
        assert!(rates.iter().all(|rate| *rate > 0.0), "{row:?}");
    }
    for row in &report.rows {
        let given = [row.testpmd_mpps, row.ratio_to_testpmd];
        let spread = row.testpmd_ratio_spread.is_some();
        assert!(given.iter().all(|rate| rate.is_some() == spread), "all of it or nothing: {row:?}");
        assert!(given.iter().flatten().all(|rate| *rate > 0.0), "{row:?}");
    }
    let there = std::thread::available_parallelism().map_or(1, usize::from);
    if there > 1 {
        let one = (vec![MethodId::Residue], vec![Forward::L2]);
        let two = Request { cores: vec![1, 2], methods: one.0, forward: one.1, ..request.clone() };
        let report = dpdk::run(&two, |row| println!("{row}")).expect("it can be measured");
        let cores: Vec<_> = report.rows.iter().map(|row| row.beside.cores).collect();
        assert_eq!(cores, [1, 2]);
        for row in &report.rows {
            assert!(row.beside.mpps > 0.0 && row.beside.macswap_mpps > 0.0, "{row:?}");
            assert_eq!(row.ratio_to_one_core.is_some(), row.beside.cores == 2, "{row:?}");
            assert!(row.testpmd_mpps.is_none() || row.beside.cores == 1, "{row:?}");
        }
    }
    let many = Request { cores: vec![1000], ..request };
    let refused = dpdk::run(&many, |_| ()).expect_err("there are not so many");
    assert!(refused.to_string().contains("1000 cores: give 1 to"), "{refused}");
}
