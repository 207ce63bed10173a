//! Generates the messages and both ends of the service from `proto/agents.proto`, without a `protoc`.

fn main() {
    println!("cargo::rerun-if-changed=proto");
    let described = protox::compile(["agents.proto"], ["proto"])
        .unwrap_or_else(|error| panic!("proto/agents.proto: {error}"));
    tonic_prost_build::configure()
        .compile_fds(described)
        .unwrap_or_else(|error| panic!("proto/agents.proto: {error}"));
}
