//! `weir pki`: certificates for balancers and agents, for those who have no authority.

use crate::out;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_rpc::pki::{self, Issued, Request, Role};
use weir_rpc::tls::Identity;

/// Where the authority is, if nothing else is said.
pub const DIRECTORY: &str = "/etc/weir/pki";
/// What ends sooner is marked.
const SOON: i64 = 30 * 86_400;

/// What to do with certificates.
#[derive(Subcommand)]
pub enum PkiVerb {
    /// Make an authority: ca.pem, which balancers and agents need, and ca.key, which only this command needs
    /// and nobody else should have. Refused if there is one.
    Init {
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
        /// balancer: an address by which agents call it. May be given more than once.
        #[arg(long = "address", value_name = "ADDRESS", value_delimiter = ',')]
        addresses: Vec<IpAddr>,
        /// Of a balancer: a name by which agents call it. May be given more than once.
        #[arg(long = "host", value_name = "NAME", value_delimiter = ',')]
        hosts: Vec<String>,
        /// Days for which it holds.
        #[arg(long, default_value_t = pki::DAYS, value_parser = days())]
        days: u32,
        #[command(flatten)]
        place: Place,
        /// Where to write the two; next to the authority, if it is not given.
        #[arg(long, short, value_name = "DIR")]
        output: Option<PathBuf>,
    },
    /// Show the certificates of a directory, with whom they are for and when they end. Ends with 1 if one has
    /// ended.
    List {
        #[command(flatten)]
        place: Place,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct Place {
    /// The authority's directory.
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    directory: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum PkiRole {
    /// It is called by agents.
    Balancer,
    /// It calls balancers.
    Agent,
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=36_500)
}

/// A certificate as `weir pki list` shows it.
#[derive(Serialize)]
struct Row {
    file: PathBuf,
    name: String,
    role: &'static str,
    addresses: Vec<IpAddr>,
    hosts: Vec<String>,
    ends: i64,
    ended: bool,
}

/// Does it. Returns whether nothing has ended.
pub fn run(verb: PkiVerb) -> anyhow::Result<bool> {
    match verb {
        PkiVerb::Init { place, name, days } => {
            let made = pki::init(&place.directory, &name, days)?;
            say(&made);
            out::line(format_args!(
                "give ca.pem to balancers and agents; keep {} where nobody else can read it",
                made.key.display()
            ));
            Ok(true)
        }
        PkiVerb::Issue { name, role, addresses, hosts, days, place, output } => {
            let role = match role {
                PkiRole::Balancer => Role::Balancer,
                PkiRole::Agent => Role::Agent,
            };
            let request = Request { name, role, addresses, hosts, days };
            let to = output.as_deref().unwrap_or(&place.directory);
            say(&pki::issue(&place.directory, to, &request)?);
            Ok(true)
        }
        PkiVerb::List { place, json } => list(&place.directory, json),
    }
}

fn say(made: &Issued) {
    let Issued { certificate, key, ends } = made;
    let (certificate, key) = (certificate.display(), key.display());
    out::line(format_args!("{certificate} and {key}: until {}", date(*ends)));
}

fn date(seconds: i64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds.max(0).unsigned_abs());
    humantime::format_rfc3339_seconds(time).to_string()
}

fn role(identity: &Identity) -> &'static str {
    match identity.usage {
        usage if usage.authority => "authority",
        usage if usage.server => "balancer",
        usage if usage.client => "agent",
        _ => "none",
    }
}

fn list(directory: &Path, json: bool) -> anyhow::Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    let (mut rows, mut unread) = (Vec::new(), Vec::new());
    for (file, found) in pki::list(directory)? {
        match found {
            Ok(identity) => rows.push(Row {
                file,
                role: role(&identity),
                ended: identity.ends <= now,
                ends: identity.ends,
                name: identity.name,
                addresses: identity.addresses,
                hosts: identity.hosts,
            }),
            Err(error) => unread.push(error),
        }
    }
    // One that cannot be read keeps nobody from seeing the others.
    unread.iter().for_each(out::complain);
    let good = unread.is_empty() && rows.iter().all(|row| !row.ended);
    if json {
        out::json(&rows)?;
        return Ok(good);
    }
    let mut table = crate::control::table(&["file", "name", "for", "names", "until"]);
    for row in rows {
        let addresses = row.addresses.iter().map(ToString::to_string);
        let names: Vec<String> = addresses.chain(row.hosts).collect();
        let left = row.ends - now;
        let until = match (row.ended, left < SOON) {
            (true, _) => format!("{} (ended)", date(row.ends)),
            (false, true) => format!("{} ({} days left)", date(row.ends), left / 86_400),
            (false, false) => date(row.ends),
        };
        let file = row.file.display().to_string();
        table.add_row([file, row.name, row.role.to_owned(), names.join(", "), until]);
    }
    out::line(table);
    Ok(good)
}
