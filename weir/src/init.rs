//! `weir init`: a configuration for this host.

use crate::cli::InitOptions;
use crate::out;
use anyhow::Context;
use std::fs::{DirBuilder, OpenOptions, remove_file};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use weir_control::config::Protocol;
use weir_control::engine::EngineError;
use weir_control::init::{InitError, Plan, Wanted};

/// An address, with a port or without.
pub fn address(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    if let Some(address) = bare.and_then(|text| text.parse::<IpAddr>().ok()) {
        return Ok((address, None));
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Ok((address.ip(), Some(address.port()))),
        _ => {
            Err("give an address, such as 10.0.0.11, 10.0.0.11:8080 or [2001:db8::11]:8080".into())
        }
    }
}

pub fn run(options: InitOptions) -> anyhow::Result<()> {
    let InitOptions { vip, backends, name, udp, forward, nat, interfaces, output, prepare } =
        options;
    let forward = if nat { Some("fullnat".into()) } else { forward };
    let (ip, port) = vip;
    let wanted = Wanted {
        name,
        vip: SocketAddr::new(ip, port.unwrap_or(80)),
        protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
        backends,
        forward,
        interfaces,
    };
    let to_output = output.as_os_str() == "-";
    if !to_output && output.symlink_metadata().is_ok() {
        return Err(there_already(&output));
    }
    let plan = Plan::new(&wanted).map_err(|error| match error {
        InitError::Wanted(words) => EngineError::Invalid(words).into(),
        error => anyhow::Error::from(error),
    })?;
    if to_output {
        out::text(&plan.text);
    } else {
        write(&output, &plan.text)?;
    }
    if prepare && let Err(error) = plan.prepare() {
        // Whoever tries again begins with what is left to do.
        if !to_output {
            let _ = remove_file(&output);
        }
        return Err(error.into());
    }
    // What is printed beside the file must not come into it.
    let say = |line: String| if to_output { out::complain(line) } else { out::line(line) };
    if !to_output {
        say(format!("{} written", output.display()));
    }
    plan.notes.iter().for_each(|note| say(format!("look at this: {note}")));
    if !plan.here.is_empty() {
        say(match prepare {
            true => "done on this host, until it is restarted:".into(),
            false => "this host needs (--prepare does it):".into(),
        });
        plan.here.iter().for_each(|command| say(format!("  {command}")));
    }
    if !plan.there.is_empty() {
        say("each backend needs:".into());
        plan.there.iter().for_each(|command| say(format!("  {command}")));
    }
    if !to_output {
        let file = output.display();
        say(format!("then: weir doctor --config {file}; weir run --config {file}"));
    }
    Ok(())
}

fn there_already(path: &Path) -> anyhow::Error {
    let words = format!(
        "{} is there already and stays as it is; remove it, or give --output another file, or - for the \
         standard output",
        path.display()
    );
    EngineError::Conflict(words).into()
}

/// Writes a file that is not there yet: whole, or not at all.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).with_context(failed)?;
    }
    // Keys may come into it later.
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o640).open(path);
    let mut file = match opened {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(there_already(path)),
        opened => opened.with_context(failed)?,
    };
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = remove_file(path);
    }
    written.with_context(failed)
}
