//! Compiles the shim over DPDK's inline functions, if it is asked for.

fn main() {
    println!("cargo::rerun-if-changed=shim/shim.c");
    #[cfg(feature = "dpdk")]
    shim();
}

#[cfg(feature = "dpdk")]
fn shim() {
    let found = pkg_config::Config::new().cargo_metadata(false).probe("libdpdk");
    let dpdk = match found {
        Ok(dpdk) => dpdk,
        Err(error) => {
            println!(
                "cargo::error=feature dpdk needs DPDK 22.11: apt-get install libdpdk-dev ({error})"
            );
            return;
        }
    };
    let mut build = cc::Build::new();
    build.file("shim/shim.c").includes(&dpdk.include_paths).opt_level(3);
    // As libdpdk.pc says: the inline functions want it.
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        build.flag("-march=corei7");
    }
    build.flag("-include").flag("rte_config.h").flag("-Wno-deprecated-declarations");
    build.compile("weir_dpdk_shim");
    for path in &dpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    for library in ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_kvargs"] {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
}
