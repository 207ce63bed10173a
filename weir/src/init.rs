//! `weir init`: a configuration for this host.

use crate::out;
use std::fs::remove_file;
use std::net::SocketAddr;
use weir_cli::InitOptions;
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
        write_new(&output, &plan.text)?;
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
