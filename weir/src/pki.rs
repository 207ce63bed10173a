//! `weir pki`: certificates for balancers and agents, for those who have no authority.

use crate::out;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_cli::PkiVerb;
use weir_rpc::pki::{self, Issued, Request};

/// What ends sooner is marked.
const SOON: i64 = 30 * 86_400;

/// Does it. Returns whether nothing has ended.
pub fn run(verb: PkiVerb) -> anyhow::Result<bool> {
    match verb {
        PkiVerb::Init { place, name, days } => {
            let made = pki::init(&place.directory, &name, days)?;
            let done = said(&made);
            let then = format!(
                "give ca.pem to balancers and agents; keep {} where nobody else can read it",
                made.key.display()
            );
            out::changed(format!("{done}\n{then}"), &done);
            Ok(true)
        }
        PkiVerb::Issue { name, role, addresses, hosts, days, place, output } => {
            let request = Request { name, role: role.into(), addresses, hosts, days };
            let to = output.as_deref().unwrap_or(&place.directory);
            let done = said(&pki::issue(&place.directory, to, &request)?);
            out::changed(&done, &done);
            Ok(true)
        }
        PkiVerb::List { place, json } => list(&place.directory, json),
    }
}

fn said(made: &Issued) -> String {
    let Issued { certificate, key, ends } = made;
    let (certificate, key) = (certificate.display(), key.display());
    format!("{certificate} and {key}: until {}", date(*ends))
}

fn date(seconds: i64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds.max(0).unsigned_abs());
    humantime::format_rfc3339_seconds(time).to_string()
}

fn list(directory: &Path, json: bool) -> anyhow::Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    let (rows, unread) = pki::shown(directory, now)?;
    // One that cannot be read keeps nobody from seeing the others.
    unread.iter().for_each(out::complain);
    let good = unread.is_empty() && rows.iter().all(|row| !row.ended);
    if json {
        out::json(&rows)?;
        return Ok(good);
    }
    let mut table = weir_watch::table(&["file", "name", "for", "names", "until"]);
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
