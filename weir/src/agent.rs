//! `weir agent`, and `weir doctor --backend`: what weir has on backends (docs/agent.md).

use crate::out;
use std::collections::BTreeSet;
use std::path::Path;
use weir_agent::asked::{Given, Said};
use weir_agent::look;
use weir_agent::quic;
use weir_agent::ready::{self, Server, Wanted};
use weir_agent::speak::{self, Credentials};
use weir_agent::work::{self, Backend, End};
use weir_agent::{CLOCK_BITS, FLOWS, Options, Service};
use weir_cli::{AgentOptions, AskedOptions, BackendOptions, TellOptions};
use weir_control::backend::{PassedOver, Served};
use weir_control::doctor::{self, Finding};
use weir_testbed::interrupt;

/// `weir doctor --backend`. Returns whether nothing failed.
pub fn doctor(options: &BackendOptions, asked: &AskedOptions, json: bool) -> anyhow::Result<bool> {
    let mut findings = doctor::examine_host();
    if !asked.balancers.is_empty() {
        let AskedOptions { certificate, key, ca, pki, .. } = asked;
        let credentials = Credentials {
            certificate: certificate.clone(),
            key: key.clone(),
            ca: ca.clone(),
            directory: pki.clone(),
        };
        findings.extend(look::certificate(&credentials));
    }
    let by_hand = options.config.is_some() || !options.vips.is_empty();
    let heard = if by_hand { None } else { heard(options, asked, &mut findings)? };
    let (backend, passed_over) = match heard {
        Some(backend) => (backend, Vec::new()),
        None => backend(options)?,
    };
    findings.extend(ready::examine(&backend.wanted, &backend.servers));
    findings.extend(ready::cookies(&backend.wanted, &backend.stamped));
    findings.extend(passed_over.iter().map(PassedOver::look));
    out::findings(&findings, json)
}

/// What balancers have said last to the agent of this host; none: options are to say what it is to be.
fn heard(
    options: &BackendOptions,
    asked: &AskedOptions,
    findings: &mut Vec<Finding>,
) -> anyhow::Result<Option<Backend>> {
    let meant = asked.state_dir.is_some() || !asked.balancers.is_empty();
    let directory = asked.state_dir.as_deref().unwrap_or(Path::new(ready::DIRECTORY));
    let given = given_by(options, &[], FLOWS, CLOCK_BITS);
    Ok(look::asked(given, directory, meant, findings)?)
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
    given_by(&options.backend, &options.services, options.flows, options.clock_bits)
}

fn given_by(options: &BackendOptions, stamped: &[Service], flows: u32, clock_bits: u32) -> Given {
    let BackendOptions { interfaces, forward, from, mss, .. } = options;
    Given {
        interfaces: interfaces.clone(),
        tunnels: (!forward.is_empty()).then(|| options.tunnels()),
        sources: from.clone(),
        segments: *mss,
        stamped: stamped.to_vec(),
        flows,
        clock_bits,
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
