//! What only a program with the laboratory has: known by name, so that its absence is told.

use clap::{Args, Subcommand};
use std::ffi::OsString;

/// Verbs of the feature `laboratory`, in a program that was built without it.
#[derive(Subcommand)]
pub enum AbsentVerb {
    /// Not in this program: real clients and servers around a balancer.
    #[command(hide = true)]
    Lab(Words),
    /// Not in this program: simulated pools, flows and steering methods.
    #[command(hide = true)]
    Sim(Words),
    /// Not in this program: forwarders by name.
    #[command(hide = true)]
    Fib(Words),
    /// Not in this program: the papers' figures.
    #[command(hide = true)]
    Reproduce(Words),
    /// Not in this program: measurements.
    #[command(hide = true)]
    Bench(Words),
}

/// Whatever such a verb is asked.
#[derive(Args)]
pub struct Words {
    /// What the verb would be asked.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<OsString>,
}

impl AbsentVerb {
    /// Why it is not done.
    pub fn refused(&self) -> anyhow::Error {
        let name = match self {
            Self::Lab(_) => "lab",
            Self::Sim(_) => "sim",
            Self::Fib(_) => "fib",
            Self::Reproduce(_) => "reproduce",
            Self::Bench(_) => "bench",
        };
        anyhow::anyhow!(
            "this program was built without the laboratory, and has no `weir {name}`: build it with the feature \
             laboratory, which is on by default"
        )
    }
}
