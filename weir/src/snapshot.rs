//! `weir snapshot`, and `weir explain --snapshot`.

use crate::{control, out};
use anyhow::Context;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use weir_cli::Instance;
use weir_control::api::{FlowRequest, SnapshotRequest};
use weir_control::init::write_own;
use weir_control::snapshot::Snapshot;

pub fn take(instance: Instance, output: Option<PathBuf>, tables: bool) -> anyhow::Result<()> {
    let body = SnapshotRequest { tables };
    let snapshot: Snapshot = control::request(instance, "POST", "/v1/snapshot", Some(&body))?;
    if output.as_ref().is_some_and(|path| path.as_os_str() == "-") {
        return out::json(&snapshot);
    }
    let path = output.unwrap_or_else(|| {
        let name = &snapshot.status.name;
        PathBuf::from(format!("weir-snapshot-{name}-{}.json", snapshot.at))
    });
    let text = serde_json::to_vec_pretty(&snapshot)?;
    write_own(&path, &text)?;
    let keys = if tables { "; the keys of the tables' hashes are in it" } else { "" };
    let done = format!("{}: {} bytes{keys}", path.display(), text.len());
    out::changed(&done, &done);
    Ok(())
}

/// Bytes of a snapshot at most, with the tables of many services.
const MOST: u64 = 1 << 30;

/// What is no snapshot may have no end.
fn read(file: &Path) -> std::io::Result<String> {
    let no_snapshot = || std::io::Error::new(ErrorKind::InvalidData, "it is no snapshot of weir");
    let mut file = File::open(file)?.take(MOST + 1);
    let mut first = [0];
    if file.read(&mut first)? == 1 && first != *b"{" {
        return Err(no_snapshot());
    }
    let mut text = String::from_utf8(first.to_vec()).map_err(|_| no_snapshot())?;
    file.read_to_string(&mut text)?;
    if text.len() as u64 > MOST {
        return Err(no_snapshot());
    }
    Ok(text)
}

pub fn explain(file: &Path, flow: &FlowRequest, json: bool) -> anyhow::Result<()> {
    let text = read(file).with_context(|| format!("read {}", file.display()))?;
    let said = Snapshot::read(&text)
        .and_then(|snapshot| snapshot.explain(flow))
        .map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    control::tell(said, json)
}
