//! What an instance has attached, if it was started: interfaces may have changed since, and while
//! `weir run` does not run nobody follows.

#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use weir_dataplane::{Interface, KernelPlane};

use super::Finding;
use crate::config::Config;
use crate::engine::pin_directory;
use crate::last_good;
use crate::neigh;

const START: &str = "weir run follows such changes; start it, or see in its log why it does not";

const AGAIN: &str = "a running weir attaches and pins again within balancer.look_every, and at a weir reload; or \
                     weir status says why it cannot";

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
            // If none runs, it was not started yet.
            let run_dir = &config.balancer.run_dir;
            if !last_good::is_anothers(name, run_dir)
                && UnixStream::connect(config.balancer.socket_path()).is_ok()
            {
                let any = config.balancer.interfaces.iter().any(|interface| has_program(interface));
                let then = if any {
                    "forwarding ends with the process"
                } else {
                    "and no interface has a program; packets are not balanced"
                };
                let gone = format!(
                    "instance {name:?} runs, and {} is gone or empty: somebody has removed its pins: {then}",
                    pin_directory(name).display()
                );
                findings.push(Finding::fail("attached", gone, AGAIN));
            }
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
