//! `weir doctor`: looks at the host, the interfaces, the addresses and the backends that a
//! configuration names, and says what would keep it from working, and how to mend that.
//!
//! It changes nothing. It sends a few packets: a datagram to the discard port of a backend
//! whose Ethernet address is not known, and for each pair of service and backend the health check,
//! once, and (see [`probe`]) one TCP SYN.

mod answers;
mod attached;
mod certificate;
mod check;
mod ethtool;
mod host;
mod interface;
mod memory;
mod path;
pub mod probe;
mod switch;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use crate::config::{Backend, Config, PlaneKind};
use crate::engine::Status;
use crate::neigh::{self, NeighError};

pub(crate) use answers::accepts_local;
pub use certificate::{of_listeners, of_store};
pub(crate) use interface::filters_strictly;
pub use memory::short_of_memory;
pub(crate) use switch::{Hindrance, in_the_way};
pub use weir_host::{Finding, Verdict};

/// What [`examine`] is to look at, and how long.
#[derive(Clone, Debug)]
pub struct DoctorInput {
    /// The configuration that is to work on this host.
    pub config: Config,
    /// Whether to send a SYN to each backend, to see if it accepts packets for the service.
    pub probe: bool,
    /// Longest wait for neighbours to resolve, and once more for the answers to the probes.
    pub patience: Duration,
    /// Backends that run and that the configuration does not name, looked up or added by a command, each with the name
    /// of its service.
    pub running: Vec<(String, Backend)>,
}

impl DoctorInput {
    /// All checks, probes included, with two seconds of patience.
    pub fn new(config: Config) -> Self {
        Self { config, probe: true, patience: Duration::from_secs(2), running: Vec::new() }
    }

    /// Also with the backends that an instance has beyond the configuration, and that do not leave.
    #[must_use]
    pub fn beside(mut self, status: &Status) -> Self {
        for service in &status.services {
            let mut services = self.config.services.iter();
            let Some(wanted) = services.find(|one| one.name == service.name) else { continue };
            let named = |name: &str| wanted.backends.iter().any(|one| one.name == name);
            let others = service.backends.iter().filter(|one| !one.leaving && !named(&one.name));
            self.running.extend(others.map(|one| {
                let backend = Backend {
                    name: one.name.clone(),
                    address: one.address,
                    port: one.port,
                    weight: one.weight,
                    drain: one.drain,
                    backup: false,
                    nat_sources: one.nat_sources.clone(),
                };
                (service.name.clone(), backend)
            }));
        }
        self
    }
}

/// Examines the host in the network namespace of the calling thread. It may take a few times
/// the patience, while backends do not answer.
pub fn examine(input: &DoctorInput) -> Vec<Finding> {
    let mut findings = Vec::new();
    if input.config.balancer.plane == PlaneKind::P4 {
        // Nothing of it is in the kernel.
        certificate::examine(&input.config, &mut findings);
        switch::examine(input, &mut findings);
        path::examine(input, &mut findings);
        return findings;
    }
    host::examine(&mut findings);
    memory::examine(&input.config, &mut findings);
    certificate::examine(&input.config, &mut findings);
    for name in &input.config.balancer.interfaces {
        interface::examine(name, &input.config, &mut findings);
    }
    attached::examine(&input.config, &mut findings);
    answers::examine(&input.config, &input.running, &mut findings);
    path::examine(input, &mut findings);
    findings
}

/// Examines only what every program of weir's needs of a host: rights, the kernel, and its BPF.
pub fn examine_host() -> Vec<Finding> {
    let mut findings = Vec::new();
    host::examine(&mut findings);
    findings
}

/// The backends that are this host itself, or only reachable through a router, and so not at all, if this is the host that
/// the configuration is for: one of the services' addresses is its own. Elsewhere routes say nothing.
pub fn behind_routers(config: &Config) -> Vec<String> {
    let own = neigh::addresses().unwrap_or_default();
    if !config
        .services
        .iter()
        .any(|service| own.iter().any(|(_, own)| service.hosts().any(|vip| vip == *own)))
    {
        return Vec::new();
    }
    let backends =
        config.services.iter().filter(|service| !service.forward.passes_routers()).flat_map(
            |service| service.backends.iter().map(move |backend| (&service.name, backend)),
        );
    let found = backends.filter_map(|(service, backend)| {
        let error = match neigh::route(backend.address) {
            Ok(route) => NeighError::Gateway { address: backend.address, gateway: route.gateway? },
            Err(error @ (NeighError::Local { .. } | NeighError::Broadcast { .. })) => error,
            Err(_) => return None,
        };
        Some(format!("service {service:?}: backend {:?}: {error}", backend.name))
    });
    found.collect()
}

/// Why services whose answers are to pass this host break connections on it, with what to do; nothing where the kernel
/// forwards no packets.
pub fn against_inline(config: &Config) -> Vec<String> {
    if config.balancer.plane == PlaneKind::P4 {
        return Vec::new();
    }
    let found = answers::inline_here(config).into_iter().filter(|one| one.verdict == Verdict::Fail);
    let said = found.map(|one| match one.mend {
        Some(mend) => format!("{}: {}", one.detail, mend.replace('\n', "; ")),
        None => one.detail,
    });
    said.collect()
}

/// The interfaces of a configuration that this host has not: it is for another one, or `weir run` would refuse it.
pub fn missing_interfaces(config: &Config) -> Vec<String> {
    let there = |name: &String| nix::net::if_::if_nametoindex(name.as_str()).is_ok();
    let mut missing = config.balancer.interfaces.clone();
    missing.retain(|name| !there(name));
    missing
}

/// Whether no check failed: `weir doctor` exits with 0 then, and with 1 otherwise.
pub fn passed(findings: &[Finding]) -> bool {
    findings.iter().all(|one| one.verdict != Verdict::Fail)
}

/// The findings as text, one on a line with what to do below, and a sum at the end.
pub fn render(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{mark:<5} {:<11} {}", finding.check, finding.detail);
        for line in finding.mend.iter().flat_map(|mend| mend.lines()) {
            let _ = writeln!(text, "{:17} -> {line}", "");
        }
    }
    let count = |verdict| findings.iter().filter(|one| one.verdict == verdict).count();
    let _ = writeln!(
        text,
        "{} ok, {} to look at, {} failed",
        count(Verdict::Ok),
        count(Verdict::Warn),
        count(Verdict::Fail)
    );
    text
}

/// The content of a small file of the kernel's, without the line's end.
fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
