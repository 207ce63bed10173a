//! Compiles the BPF programs with clang and generates their skeletons.

use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = find_clang();
    // clang -target bpf does not search Debian's multiarch directory, where asm/types.h is.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    let include = format!("-I/usr/include/{arch}-linux-gnu");
    for name in ["weir", "bench", "xsk"] {
        SkeletonBuilder::new()
            .source(format!("bpf/{name}.bpf.c"))
            .clang(&clang)
            .clang_args([include.as_str(), "-mcpu=v3", "-O2", "-Wall", "-Werror"])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| panic!("bpf/{name}.bpf.c: {error:?}"));
    }
    // Headers are in `bpf` too; SkeletonBuilder tells cargo of the source only.
    for entry in fs::read_dir("bpf").expect("bpf/ is part of the crate").flatten() {
        println!("cargo::rerun-if-changed={}", entry.path().display());
    }
}

/// `$CLANG`, or the newest clang that can build BPF.
fn find_clang() -> PathBuf {
    if let Some(clang) = env::var_os("CLANG") {
        return clang.into();
    }
    ["clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14", "clang"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok())
        .unwrap_or_else(|| panic!("no clang found: install clang-19, or set CLANG"))
        .into()
}
