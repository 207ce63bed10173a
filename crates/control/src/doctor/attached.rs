//! What an instance has attached, if it was started: interfaces may have changed since, and while
//! `weir run` does not run nobody follows.

#![forbid(unsafe_code)]

use weir_dataplane::KernelPlane;

use super::Finding;
use crate::config::Config;
use crate::engine::pin_directory;
use crate::neigh;

const START: &str = "weir run follows such changes; start it, or see in its log why it does not";

pub(super) fn examine(config: &Config, findings: &mut Vec<Finding>) {
    let name = &config.balancer.name;
    let pinned = match KernelPlane::left_in(&pin_directory(name)) {
        Ok(Some(pinned)) => pinned,
        // Not started yet.
        Ok(None) => return,
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
                format!("{wanted}: instance {name:?} has no program there; its packets are not balanced"),
                "weir reload takes an interface up that the file names; so does a start",
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
