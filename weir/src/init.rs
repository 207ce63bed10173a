//! `weir init`: a configuration for this host.

use crate::out;
use std::fs::remove_file;
use std::net::SocketAddr;
use std::path::Path;
use weir_cli::{InitOptions, USUAL_FILE};
use weir_control::config::Protocol;
use weir_control::engine::EngineError;
use weir_control::init::{InitError, Plan, Wanted, there_already, write_new};

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
        write_new(&output, Path::new(USUAL_FILE), &plan.text)?;
    }
    if prepare && let Err(error) = plan.prepare() {
        // Whoever tries again begins with what is left to do.
        if !to_output {
            let _ = remove_file(&output);
        }
        return Err(error.into());
    }
    let mut said: Vec<String> =
        plan.notes.iter().map(|note| format!("look at this: {note}")).collect();
    if !plan.here.is_empty() {
        said.push(match prepare {
            true => "done on this host, until it is restarted:".into(),
            false => "this host needs (--prepare does it):".into(),
        });
        said.extend(plan.here.iter().map(|command| format!("  {command}")));
        said.push(
            "how it comes again after a restart: docs/start.md, After a restart of the host".into(),
        );
    }
    if !plan.there.is_empty() {
        said.push("each backend needs:".into());
        said.extend(plan.there.iter().map(|command| format!("  {command}")));
    }
    if to_output {
        // What is printed beside the file must not come into it.
        said.iter().for_each(out::complain);
        return Ok(());
    }
    let file = output.display();
    let done = format!("{file} written");
    said.insert(0, done.clone());
    said.push(format!("then: weir doctor --config {file}; weir run --config {file}"));
    out::changed(said.join("\n"), &done);
    Ok(())
}
