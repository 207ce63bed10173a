//! The health checks, made once, as `weir run` makes them: the same address, port, source and time.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::config::{Backend, Check, Service, Via, What};
use crate::frames::Frames;
use crate::health::{self, Outcome, Way};
use crate::neigh;

use super::path::title;
use super::{DoctorInput, Finding};

pub(super) fn examine(input: &DoctorInput, findings: &mut Vec<Finding>) {
    let config = &input.config;
    let vips: BTreeSet<IpAddr> =
        config.services.iter().flat_map(Service::addresses).map(|vip| vip.address).collect();
    let vips = Arc::new(vips);
    let checked: Vec<(&Service, &Backend, &Check)> = config
        .services
        .iter()
        .flat_map(|service| service.backends.iter().map(move |backend| (service, backend)))
        .filter_map(|(service, backend)| Some((service, backend, service.check_of(backend)?)))
        .collect();
    let asked: Vec<_> = checked
        .iter()
        .map(|(service, backend, check)| {
            let source = neigh::source_for(backend.address, &vips);
            let port = service.check_port(check, backend);
            let way = || Way::of(service, backend.address, &config.balancer, Arc::clone(&vips));
            let way = (check.via == Via::Service).then(way);
            let address = SocketAddr::from((backend.address, port));
            (source, address, check.what.clone(), check.timeout, way)
        })
        .collect();
    let interfaces = &config.balancer.interfaces;
    match all(&asked, interfaces) {
        Ok(outcomes) => {
            let found = checked.iter().zip(outcomes);
            findings.extend(found.map(|((service, backend, check), outcome)| {
                finding(service, backend, check, &outcome)
            }));
        }
        Err(error) => {
            let mend = "can this process start threads?";
            findings.push(Finding::warn("check", format!("no check can be made: {error}"), mend));
        }
    }
}

type Question = (Option<IpAddr>, SocketAddr, What, std::time::Duration, Option<Way>);

/// Makes all checks at once, on a thread of its own, whatever the calling one runs.
fn all(asked: &[Question], interfaces: &[String]) -> std::io::Result<Vec<Outcome>> {
    let make = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let frames = Arc::new(Frames::default());
        Ok(runtime.block_on(async {
            let started: Vec<_> = asked
                .iter()
                .cloned()
                .map(|(source, address, what, limit, way)| {
                    let frames = Arc::clone(&frames);
                    let interfaces = interfaces.to_vec();
                    tokio::spawn(async move {
                        let way = way.as_ref().map(|way| (way, &*frames));
                        health::ask(source, address, &what, limit, (&interfaces, way)).await
                    })
                })
                .collect();
            let mut outcomes = Vec::with_capacity(started.len());
            for one in started {
                let stopped = |error| Outcome::Unknown(format!("the check ended: {error}"));
                outcomes.push(one.await.unwrap_or_else(stopped));
            }
            outcomes
        }))
    };
    let joined = std::thread::scope(|scope| scope.spawn(make).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn finding(service: &Service, backend: &Backend, check: &Check, outcome: &Outcome) -> Finding {
    let (title, port) = (title(service, backend), service.check_port(check, backend));
    let kind = match &check.what {
        What::Agent => "agent".to_owned(),
        What::Tcp => format!("health check on port {port}"),
        What::Script(script) => {
            format!("health check by {}", script.command.first().map_or("", String::as_str))
        }
        other => format!("health check by {} on port {port}", other.name()),
    };
    let kind = match check.via {
        Via::Direct => kind,
        Via::Service => format!("{kind} through the service"),
    };
    match outcome {
        // It says so to the balancer alone.
        _ if check.what == What::Agent => Finding::ok(
            "check",
            format!("{title}: its agent says how it is; `weir status` shows that"),
        ),
        Outcome::Passed(_) => Finding::ok("check", format!("{title}: its {kind} succeeds")),
        // A server may be started any time: weir is as it should be.
        Outcome::Failed(why) => Finding::warn(
            "check",
            format!("{title}: its {kind} fails: {why}"),
            match check.what {
                What::Script(_) => {
                    "is the backend well, and does the script need what nobody has who \
                                    runs it?"
                        .to_owned()
                }
                _ if check.via == Via::Service => format!(
                    "the backend must take packets for {} in {}, and its server listen there",
                    service.address_for(backend.address),
                    service.forward
                ),
                _ => format!(
                    "the server must listen on {} too, not only on {}; or give the check another port",
                    backend.address,
                    service.address_for(backend.address)
                ),
            },
        ),
        Outcome::Unknown(why) => Finding::warn(
            "check",
            format!("{title}: its {kind} cannot be made: {why}"),
            "until it can, the backend stays as it was: up, after a first start",
        ),
    }
}
