//! The table `[agents]`, and services that go by what agents say.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use weir_steering::MethodId;

use super::super::error::Problems;
use super::super::{Affinity, Agents, Protocol, States, What, resolve, written};
use super::Service;
use super::scope::Scope;

/// Longer than that a balancer need not stay away.
const LEARN_AT_MOST: Duration = Duration::from_secs(300);

/// The table, if it is there and whole.
pub(super) fn table(
    raw: Option<Spanned<written::Agents>>,
    problems: &mut Problems<'_>,
) -> Option<Agents> {
    let raw = raw?;
    let mut scope = Scope::new(problems, "agents", raw.span());
    let raw = raw.into_inner();
    let listen = match &raw.listen {
        None => {
            scope.missing("listen", "give an address and a port such as \"10.0.0.2:4479\"");
            None
        }
        Some(text) => {
            let parsed = text.get_ref().parse::<SocketAddr>().ok();
            let good = parsed.filter(|address| address.port() != 0);
            if good.is_none() {
                let wrong = format!("{:?} is not an address with a port", text.get_ref());
                let right = "give one such as \"10.0.0.2:4479\" or \"[2001:db8::2]:4479\"";
                scope.problem(text.span(), "listen", wrong, right);
            }
            good
        }
    };
    let certificate = path(raw.certificate.as_ref(), "certificate", &mut scope);
    let key = path(raw.key.as_ref(), "key", &mut scope);
    let ca = path(raw.ca.as_ref(), "ca", &mut scope);
    let learn = scope.duration(raw.learn.as_ref(), "learn", Duration::ZERO..=LEARN_AT_MOST);
    Some(Agents {
        listen: listen?,
        certificate: certificate?,
        key: key?,
        ca: ca?,
        learn: learn.unwrap_or(resolve::LEARN),
    })
}

/// Whether the file is there is for whoever serves: agents read this configuration, too, on hosts that have
/// no such file.
fn path(
    raw: Option<&Spanned<String>>,
    field: &'static str,
    scope: &mut Scope<'_, '_>,
) -> Option<PathBuf> {
    let Some(raw) = raw else {
        scope.missing(field, "`weir pki` makes it, if you have none; give its absolute path");
        return None;
    };
    let path = Path::new(raw.get_ref());
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let wrong = format!("{:?} is not an absolute path", raw.get_ref());
    scope.problem(raw.span(), field, wrong, "give one such as /etc/weir/pki/balancer.pem");
    None
}

/// Who says what connections a service has, where that can be.
pub(super) fn states(
    raw: Option<&Spanned<String>>,
    (method, protocol, affinity): (Option<MethodId>, Protocol, Option<Affinity>),
    scope: &mut Scope<'_, '_>,
) -> Option<States> {
    let words = [("observed", States::Observed), ("agents", States::Agents)];
    let states = scope.choice(raw, "states", &words)?;
    let (States::Agents, Some(raw)) = (states, raw) else { return Some(states) };
    let wrong = match method {
        Some(method) if !method.needs().states => {
            format!(
                "what agents say is for methods that know every connection; {} goes by what passes \
                 the balancer",
                method.name()
            )
        }
        _ if protocol == Protocol::Udp => {
            "a backend's kernel knows no connections of UDP, so its agent cannot tell them"
                .to_owned()
        }
        _ if protocol == Protocol::Sctp => {
            "agents tell connections of TCP, and know nothing of SCTP's associations".to_owned()
        }
        _ if affinity == Some(Affinity::Client) => {
            "agents tell connections, and with affinity = \"client\" clients are remembered"
                .to_owned()
        }
        _ => return Some(states),
    };
    let right = "remove it, or set method = \"concury\" or \"residue\", protocol = \"tcp\" and affinity = \"flow\"";
    scope.problem(raw.span(), "states", wrong, right);
    None
}

/// Without a place where agents are listened for, none says anything.
pub(super) fn are_heard(
    services: &[Service],
    places: &[Range<usize>],
    agents: bool,
    problems: &mut Problems<'_>,
) {
    for (service, place) in services.iter().zip(places) {
        if service.states == Some(States::Agents) && !agents {
            problems.add(
                place.clone(),
                format!("service {:?}: states", service.name),
                "agents are listened for nowhere",
                "add a table [agents] with listen, certificate, key and ca",
            );
        }
        let own = service.backend_checks.values().flatten();
        let mut checks = service.check.iter().chain(own);
        if !agents && checks.any(|check| check.what == What::Agent) {
            problems.add(
                place.clone(),
                format!("service {:?}: check", service.name),
                "no agent says anything, as agents are listened for nowhere",
                "add a table [agents] with listen, certificate, key and ca",
            );
        }
    }
}
