//! The health checks, made once, as `weir run` makes them: the same address, port, source and time.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::config::{Backend, Check, Service, What};
use crate::health::{self, Outcome};
use crate::neigh;

use super::path::title;
use super::{DoctorInput, Finding};

pub(super) fn examine(input: &DoctorInput, findings: &mut Vec<Finding>) {
    let config = &input.config;
    let vips: BTreeSet<IpAddr> =
        config.services.iter().flat_map(Service::addresses).map(|vip| vip.address).collect();
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
            (source, SocketAddr::from((backend.address, port)), check.what.clone(), check.timeout)
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

type Question = (Option<IpAddr>, SocketAddr, What, std::time::Duration);

/// Makes all checks at once, on a thread of its own, whatever the calling one runs.
fn all(asked: &[Question], interfaces: &[String]) -> std::io::Result<Vec<Outcome>> {
    let make = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(async {
            let started: Vec<_> = asked
                .iter()
                .cloned()
                .map(|(source, address, what, limit)| {
                    let interfaces = interfaces.to_vec();
                    tokio::spawn(async move {
                        health::ask(source, address, &what, limit, &interfaces).await
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
        What::Tcp => format!("health check on port {port}"),
        What::Script(script) => {
            format!("health check by {}", script.command.first().map_or("", String::as_str))
        }
        other => format!("health check by {} on port {port}", other.name()),
    };
    match outcome {
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
                _ => format!(
                    "the server must listen on {} too, not only on {}; or give the check another port",
                    backend.address, service.vip
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
