//! Where this process listens itself: no two of these at one place, and none where packets are a service's.

use std::net::SocketAddr;
use std::ops::Range;

use toml::Spanned;

use super::super::error::Problems;
use super::super::{Protocol, Vip, written};
use super::service::{self, Claim};

/// A field that names where to listen, all of them by TCP.
struct Listener {
    field: &'static str,
    address: SocketAddr,
    span: Range<usize>,
}

impl Listener {
    /// Whether the kernel would let only one of both listen. What listens at all addresses of IPv6 does so at those of
    /// IPv4, too.
    fn meets(&self, other: &Self) -> bool {
        let (own, others) = (self.address.ip().to_canonical(), other.address.ip().to_canonical());
        let all = own.is_unspecified() && (own.is_ipv6() || others.is_ipv4())
            || others.is_unspecified() && (others.is_ipv6() || own.is_ipv4());
        self.address.port() == other.address.port() && (all || own == others)
    }

    /// The address of a service whose packets are those to this listener. One at all addresses is still there at
    /// others, and of a service that takes any port, there is no port of its own to give up.
    fn taken_by(&self, claim: &Claim) -> Option<Vip> {
        let (address, port) = (self.address.ip().to_canonical(), self.address.port());
        let named = claim.port == Some(port) || claim.ports.is_some_and(|all| all.contains(port));
        let any = claim.port.is_none() && claim.ports.is_none();
        let meets = |vip: &&Vip| match address.is_unspecified() {
            true => named && (address.is_ipv6() || vip.address.is_ipv4()),
            false => (named || any) && vip.contains(address),
        };
        claim.vips.iter().find(meets).filter(|_| claim.protocol == Protocol::Tcp).copied()
    }
}

/// Those of a file; what is no address with a port is told elsewhere.
fn all(file: &written::File) -> Vec<Listener> {
    let balancer = file.balancer.as_ref().map(Spanned::get_ref);
    let api = file.api.as_ref().map(Spanned::get_ref);
    let agents = file.agents.as_ref().map(Spanned::get_ref);
    let fields = [
        ("balancer: metrics", balancer.and_then(|table| table.metrics.as_ref())),
        ("balancer: web", balancer.and_then(|table| table.web.as_ref())),
        ("api: listen", api.and_then(|table| table.listen.as_ref())),
        ("agents: listen", agents.and_then(|table| table.listen.as_ref())),
    ];
    let read = |(field, text): (&'static str, Option<&Spanned<String>>)| {
        let text = text?;
        let address: SocketAddr = text.get_ref().parse().ok()?;
        (address.port() != 0).then(|| Listener { field, address, span: text.span() })
    };
    let mut all: Vec<Listener> = fields.into_iter().filter_map(read).collect();
    all.sort_by_key(|one| one.span.start);
    all
}

/// Refuses what could not listen, and what no packet would come to.
pub(super) fn apart(file: &written::File, problems: &mut Problems<'_>) {
    let all = all(file);
    for (at, one) in all.iter().enumerate() {
        let Some(other) = all[..at].iter().find(|other| other.meets(one)) else { continue };
        let there = match other.address == one.address {
            true => String::new(),
            false => format!(", which is {}", other.address),
        };
        let wrong = format!(
            "{} is taken by {} on {}{there}",
            one.address,
            other.field,
            problems.said(other.span.start, one.span.start)
        );
        problems.add(one.span.clone(), one.field, wrong, "give it another address or port");
    }
    for (at, service) in file.service.iter().enumerate() {
        let raw = service.get_ref();
        let Some((claim, place)) = service::claim(raw) else { continue };
        for one in &all {
            let Some(vip) = one.taken_by(&claim) else { continue };
            let wrong = format!(
                "{} is taken by {} on {}, which gets packets to {vip} tcp {}",
                one.address,
                service::title(raw, at),
                problems.said(place.start, one.span.start),
                claim.port_text()
            );
            problems.add(one.span.clone(), one.field, wrong, "give it another address or port");
        }
    }
}
