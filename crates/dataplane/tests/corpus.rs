//! The conformance corpus (corpus/README.md): each case through the BPF program, by BPF_PROG_RUN, and through
//! the Rust pipeline. Verdict, bytes and counters must be what the case says.

#[path = "corpus/format.rs"]
mod format;
#[path = "corpus/world.rs"]
mod world;

use weir_testbed::in_own_namespace;
use world::Kernels;

/// The cases whose names contain `WEIR_CASE`; without it all.
#[test]
fn every_case_holds_in_both_planes() {
    let only = std::env::var("WEIR_CASE").unwrap_or_default();
    in_own_namespace(|| {
        let files = format::files();
        let mut kernels = Kernels::new(None);
        let (mut cases, mut wrong) = (0, Vec::new());
        for file in &files {
            for case in file.case.iter().filter(|case| case.name.contains(&only)) {
                cases += 1;
                wrong.extend(world::run(&mut kernels, file, case).expect("the program loads"));
            }
        }
        println!("{cases} cases of {} files, {} faults", files.len(), wrong.len());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(!only.is_empty() || cases >= 300, "only {cases} cases");
    })
    .expect("needs root");
}
