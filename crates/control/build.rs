//! Describes the messages of the control API, without a `protoc`.

use prost::Message;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let described = protox::compile(["weir/v1/weir.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("weir.v1.bin"), described.encode_to_vec())?;
    Ok(())
}
