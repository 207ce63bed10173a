//! `weir agent`, and `weir doctor --backend`: what weir has on backends (docs/agent.md).

use crate::out;
use std::collections::BTreeSet;
use weir_agent::asked::{Given, Said};
use weir_agent::quic;
use weir_agent::ready::{self, Server, Wanted};
use weir_agent::speak::{self, Credentials};
use weir_agent::work::{self, Backend, End};
use weir_agent::{Options, Service};
use weir_cli::{AgentOptions, BackendOptions, TellOptions};
use weir_control::backend::{PassedOver, Served};
use weir_control::doctor;
use weir_testbed::interrupt;

/// `weir doctor --backend`. Returns whether nothing failed.
pub fn doctor(options: &BackendOptions, json: bool) -> anyhow::Result<bool> {
    let (backend, passed_over) = backend(options)?;
    let mut findings = doctor::examine_host();
    findings.extend(ready::examine(&backend.wanted, &backend.servers));
    findings.extend(ready::cookies(&backend.wanted, &backend.stamped));
    findings.extend(passed_over.iter().map(PassedOver::look));
    out::findings(&findings, json)
}

pub fn run(options: &AgentOptions) -> anyhow::Result<()> {
    interrupt::catch_interrupts();
    let AgentOptions { services, flows, clock_bits, state_dir, tell, .. } = options;
    let (flows, clock_bits) = (*flows, *clock_bits);
    if options.undo {
        return Ok(work::undo(state_dir, say)?);
    }
    if options.timestamps_only {
        let (interfaces, services) = (options.backend.interfaces.clone(), services.clone());
        let wanted = Options { interfaces, services, flows, clock_bits };
        return Ok(work::stamp(&wanted, options.keep, say, interrupt::sleep)?);
    }
    let told = told(options)?;
    if let Some(told) = &told {
        // Before anything is changed.
        speak::look_at(&told.files)?;
    }
    match told {
        Some(told) if tell.only_tell => Ok(work::tell(told, say, interrupt::sleep)?),
        Some(told) if options.asks_balancers() => {
            let end = if options.keep { End::Keep } else { End::Undo };
            Ok(work::follow(given(options), told, state_dir, end, say, interrupt::sleep)?)
        }
        told => {
            let (Backend { wanted, mut stamped, .. }, passed_over) = backend(&options.backend)?;
            passed_over.iter().for_each(|prefix| say(format_args!("{prefix}")));
            stamped.extend(services.iter().copied());
            let interfaces = wanted.interfaces.clone();
            let timestamps = (!stamped.is_empty()).then_some(Options {
                interfaces,
                services: stamped,
                flows,
                clock_bits,
            });
            let end = match (options.once, options.keep) {
                (true, _) => End::Once,
                (false, true) => End::Keep,
                (false, false) => End::Undo,
            };
            let (stamps, wait) = (timestamps.as_ref(), interrupt::sleep);
            Ok(work::serve(&wanted, stamps, told, state_dir, end, say, wait)?)
        }
    }
}

/// What goes before that which balancers say.
fn given(options: &AgentOptions) -> Given {
    let BackendOptions { interfaces, forward, from, mss, .. } = &options.backend;
    Given {
        interfaces: interfaces.clone(),
        tunnels: (!forward.is_empty()).then(|| options.backend.tunnels()),
        sources: from.clone(),
        segments: *mss,
        stamped: options.services.clone(),
        flows: options.flows,
        clock_bits: options.clock_bits,
    }
}

fn say(what: std::fmt::Arguments<'_>) {
    out::note(format_args!("weir agent: {what}"));
}

/// Whom to tell, and as whom, if anybody is told.
fn told(options: &AgentOptions) -> anyhow::Result<Option<speak::Options>> {
    let TellOptions { balancers, certificate, key, ca, pki, log, .. } = &options.tell;
    let TellOptions { quic_lb_file, quic_lb_notify, .. } = &options.tell;
    if balancers.is_empty() {
        return Ok(None);
    }
    let credentials = Credentials {
        certificate: certificate.clone(),
        key: key.clone(),
        ca: ca.clone(),
        directory: pki.clone(),
    };
    Ok(Some(speak::Options {
        balancers: balancers.clone(),
        files: credentials.files()?,
        load: options.tell.load_of(),
        health: options.tell.health(),
        log: *log,
        alone: false,
        directory: Some(options.state_dir.clone()),
        said: Said::new(),
        quic: quic_lb_file
            .clone()
            .map(|file| quic::Options { file, notify: quic_lb_notify.clone() }),
        lies: options.tell.lies(),
    }))
}

/// What this host is to be, by a file or by arguments, and what of the file somebody else must see to.
fn backend(options: &BackendOptions) -> anyhow::Result<(Backend, Vec<PassedOver>)> {
    options.expect_all();
    let (mut interfaces, sources) = (options.interfaces.clone(), options.from.clone());
    let segments = options.mss;
    let Some(path) = &options.config else {
        let (services, tunnels) = (options.vips.clone(), options.tunnels());
        let wanted = Wanted { interfaces, services, tunnels, sources, segments };
        return Ok((Backend::new(wanted), Vec::new()));
    };
    let served = Served::here(path)?;
    if interfaces.is_empty() {
        interfaces = served.interfaces()?;
    }
    let Served { addresses: services, tunnels, listeners, stamped, passed_over, .. } = served;
    let backend = Backend::new(Wanted { interfaces, services, tunnels, sources, segments });
    let stamped = stamped.into_iter().map(|(address, port)| Service { address, port }).collect();
    let servers: BTreeSet<Server> = listeners
        .into_iter()
        .map(|one| Server { address: one.address, port: one.port, udp: one.udp })
        .collect();
    Ok((Backend { stamped, servers: servers.into_iter().collect(), ..backend }, passed_over))
}
