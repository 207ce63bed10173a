//! Compiles the BPF program with clang and generates its skeleton. What it shares with the balancer's, and
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
    SkeletonBuilder::new()
        .source("bpf/agent.bpf.c")
        .obj(out.join("agent.bpf.o"))
        .clang(told("CLANG"))
        .clang_args(arguments)
        .build_and_generate(out.join("agent.skel.rs"))
        .unwrap_or_else(|error| panic!("bpf/agent.bpf.c: {error:?}"));
}
