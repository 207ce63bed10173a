//! Rust for the messages of GoBGP that are used here.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/gobgp.proto");
    let files = protox::compile(["gobgp.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(files)?;
    Ok(())
}
