//! Compiles the BPF programs with clang and generates their skeletons. What they share with the balancer's, and
//! the compiler, are those of `weir-dataplane`'s build, which tells where they are.

use libbpf_cargo::SkeletonBuilder;
use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=bpf");
    let told = |name: &str| {
        let name = format!("DEP_WEIR_DATAPLANE_{name}");
        env::var(&name).unwrap_or_else(|_| panic!("weir-dataplane's build sets {name}"))
    };
    let sources = told("SOURCES");
    println!("cargo::rerun-if-changed={sources}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arguments = told("ARGUMENTS").split('\u{1f}').map(str::to_owned).collect::<Vec<_>>();
    for name in ["agent", "backend", "connections"] {
        let source = format!("bpf/{name}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{name}.bpf.o")))
            .clang(told("CLANG"))
            .clang_args(&arguments)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| panic!("{source}: {error:?}"));
    }
}
