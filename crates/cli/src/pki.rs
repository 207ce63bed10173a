//! What `weir pki` is asked for.

use clap::{Args, Subcommand, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;
use weir_rpc::pki::{self, Role};

/// Where the authority is, if nothing else is said.
pub const DIRECTORY: &str = "/etc/weir/pki";

/// What to do with certificates.
#[derive(Subcommand)]
pub enum PkiVerb {
    /// Make an authority: ca.pem, which balancers and agents need, and ca.key, which only this command needs
    /// and nobody else should have. Refused if there is one.
    Init {
        /// Where certificates are.
        #[command(flatten)]
        place: Place,
        /// What it is called in its certificate.
        #[arg(long, default_value = "weir")]
        name: String,
        /// Days for which it holds.
        #[arg(long, default_value_t = pki::AUTHORITY_DAYS, value_parser = days())]
        days: u32,
    },
    /// Make a key and have the authority sign a certificate for it: NAME.key and NAME.pem. Refused if one of
    /// them is there.
    Issue {
        /// What the holder is called, and the files.
        name: String,
        /// Whom it is for: with an agent's nobody can pose as a balancer, nor the other way round.
        #[arg(long)]
        role: PkiRole,
        /// Of an agent: the backend's own address, as the balancer has it; it speaks for no other. Of a
        /// balancer: an address by which agents call it. Of a balancer that a fleet's store is to know, which
        /// is an agent's there: its own. May be given more than once.
        #[arg(long = "address", value_name = "ADDRESS", value_delimiter = ',')]
        addresses: Vec<IpAddr>,
        /// Of a balancer: a name by which agents call it. May be given more than once.
        #[arg(long = "host", value_name = "NAME", value_delimiter = ',')]
        hosts: Vec<String>,
        /// Days for which it holds.
        #[arg(long, default_value_t = pki::DAYS, value_parser = days())]
        days: u32,
        /// Where certificates are.
        #[command(flatten)]
        place: Place,
        /// Where to write the two; next to the authority, if it is not given.
        #[arg(long, short, value_name = "DIR")]
        output: Option<PathBuf>,
    },
    /// Show the certificates of a directory, with whom they are for and when they end. Ends with 1 if one has
    /// ended.
    List {
        /// Where certificates are.
        #[command(flatten)]
        place: Place,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Where certificates are.
#[derive(Args)]
pub struct Place {
    /// The authority's directory.
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    pub directory: PathBuf,
}

/// A value of --role.
#[derive(Clone, Copy, ValueEnum)]
pub enum PkiRole {
    /// It is called by agents.
    Balancer,
    /// It calls balancers; or it is a balancer, and calls a fleet's store.
    Agent,
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=36_500)
}

impl From<PkiRole> for Role {
    fn from(role: PkiRole) -> Self {
        match role {
            PkiRole::Balancer => Self::Balancer,
            PkiRole::Agent => Self::Agent,
        }
    }
}
