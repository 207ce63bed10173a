//! What an instance has attached, if it was started: interfaces may have changed since, and while
//! `weir run` does not run nobody follows.

#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use weir_dataplane::{Interface, KernelPlane};

use super::Finding;
use crate::api::Client;
use crate::config::Config;
use crate::engine::{Status, pin_directory};
use crate::last_good;
use crate::neigh;

const START: &str = "weir run follows such changes; start it, or see in its log why it does not";

const AGAIN: &str = "a running weir attaches and pins again within balancer.look_every, and at a weir reload; or \
                     weir status says why it cannot";

/// How long an instance has to say what it is called.
const PATIENCE: Duration = Duration::from_secs(5);

fn has_program(interface: &str) -> bool {
    Interface::find(interface).is_ok_and(|found| found.program().is_some())
}

/// What becomes of the packets of an interface for which nothing is pinned.
fn without(interface: &str) -> &'static str {
    if has_program(interface) {
        " that is pinned: what it has is another one's, or ends with the process"
    } else {
        "; its packets are not balanced"
    }
}

pub(super) fn examine(config: &Config, findings: &mut Vec<Finding>) {
    let name = &config.balancer.name;
    let pinned = match KernelPlane::left_in(&pin_directory(name)) {
        Ok(Some(pinned)) => pinned,
        Ok(None) => {
            findings.extend(without_pins(config));
            return;
        }
        Err(error) => {
            let mend = "run weir doctor as root, and of the version that made it";
            findings.push(Finding::warn("attached", error.to_string(), mend));
            return;
        }
    };
    for wanted in &config.balancer.interfaces {
        // One that is not there has its finding already.
        let Ok(interface) = neigh::interface(wanted) else { continue };
        let number =
            pinned.links.iter().find(|link| link.interface == *wanted).map(|link| link.number);
        findings.push(match number {
            None => Finding::fail(
                "attached",
                format!("{wanted}: instance {name:?} has no program there{}", without(wanted)),
                "weir reload takes an interface up that the file names, and attaches again where a pin was removed; so \
                 does a start",
            ),
            Some(0) => Finding::fail(
                "attached",
                format!(
                    "{wanted}: the program of {name:?} is not on it any more: the interface was made anew, or \
                     somebody has detached the program; its packets are not balanced"
                ),
                START,
            ),
            Some(number) if number != interface.index => Finding::fail(
                "attached",
                format!(
                    "{wanted} was made anew since the program was attached: the new one has none, and \
                     its packets are not balanced"
                ),
                START,
            ),
            Some(_) => match interface.mac {
                Some(mac) if !pinned.own_macs.is_empty() && !pinned.own_macs.contains(&mac) => {
                    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
                    Finding::fail(
                        "attached",
                        format!(
                            "{wanted} has another Ethernet address ({mac}) since weir has looked: \
                             frames to it are dropped as other_host"
                        ),
                        START,
                    )
                }
                _ => Finding::ok("attached", format!("{wanted}: the program of {name:?} is on it")),
            },
        });
    }
}

/// What there is to say of an instance that runs without its pins; nothing if none runs: it was not started yet.
fn without_pins(config: &Config) -> Option<Finding> {
    let (name, run_dir) = (&config.balancer.name, &config.balancer.run_dir);
    let socket = config.balancer.socket_path();
    let other = last_good::other_name(name, run_dir);
    let runs = match name_at(socket.clone()) {
        Some(running) => running == *name,
        // It says nothing: another's run directory is taken for that.
        None => other.is_none() && UnixStream::connect(socket).is_ok(),
    };
    if !runs {
        return None;
    }
    let pins = pin_directory(name);
    let gone = match other {
        Some(other) => format!(
            "{} is gone: somebody has moved its pins to {}",
            pins.display(),
            pin_directory(&other).display()
        ),
        None => format!("{} is gone or empty: somebody has removed its pins", pins.display()),
    };
    // Whoever runs holds its links.
    let then = match config.balancer.interfaces.iter().any(|name| has_program(name)) {
        true => "packets are balanced as long as its process runs, and no longer",
        false => "its program is on no interface, and packets are not balanced",
    };
    Some(Finding::fail("attached", format!("instance {name:?} runs, and {gone}; {then}"), AGAIN))
}

/// What the instance is called that answers at a socket, if one does.
fn name_at(socket: PathBuf) -> Option<String> {
    // A thread of its own: whoever asks may have a runtime already, in which none can be waited for.
    let asked = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let client = Client::new(socket).with_patience(PATIENCE);
        let status = client.request::<Status>("GET", "/v1/status", None::<&()>);
        Some(runtime.block_on(status).ok()?.name)
    });
    asked.join().ok()?
}
