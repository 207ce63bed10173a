//! Validation of how many new flows a service takes.

use super::super::new_flows::{IPV4_PREFIX, IPV6_PREFIX, MOST_FLOWS};
use super::super::{FlowRate, NewFlows, Protocol, written};
use super::scope::Scope;
use toml::Spanned;

/// The section with everything in range; `None` after a problem that nothing can stand in for.
pub(super) fn validate(
    raw: Spanned<written::NewFlows>,
    protocol: Protocol,
    scope: &mut Scope<'_, '_>,
) -> Option<NewFlows> {
    let mut scope = scope.inner("new_flows", raw.span());
    let raw = raw.into_inner();
    if protocol == Protocol::Udp {
        let wrong = "no datagram says that it begins a flow, and one of a connection that there is \
                     must not be dropped";
        let right = "remove [service.new_flows], or list the sources to deny in deny_file";
        scope.here("", wrong, right);
    }
    if raw.per_second.is_none() && raw.source_per_second.is_none() {
        let right = "give per_second, source_per_second, or both; or remove [service.new_flows]";
        scope.missing("per_second", right);
    }
    for (field, name, rate, of) in [
        (&raw.burst, "burst", &raw.per_second, "per_second"),
        (&raw.source_burst, "source_burst", &raw.source_per_second, "source_per_second"),
        (&raw.ipv4_prefix, "ipv4_prefix", &raw.source_per_second, "source_per_second"),
        (&raw.ipv6_prefix, "ipv6_prefix", &raw.source_per_second, "source_per_second"),
    ] {
        if let (Some(field), None) = (field, rate) {
            let (wrong, right) = (format!("there is no {of}"), format!("give {of}, or remove it"));
            scope.problem(field.span(), name, wrong, right);
        }
    }
    let mut rate =
        |per_second: &Option<Spanned<i64>>, burst: &Option<Spanned<i64>>, names: [_; 2]| {
            let flows = 1..=MOST_FLOWS;
            let burst = scope.integer(burst.as_ref(), names[1], flows.clone());
            let per_second = scope.integer(per_second.as_ref(), names[0], flows)?;
            Some(FlowRate { per_second, burst: burst.unwrap_or(per_second) })
        };
    let all = rate(&raw.per_second, &raw.burst, ["per_second", "burst"]);
    let names = ["source_per_second", "source_burst"];
    let source = rate(&raw.source_per_second, &raw.source_burst, names);
    let ipv4 = scope.integer(raw.ipv4_prefix.as_ref(), "ipv4_prefix", 1..=32_u8);
    let ipv6 = scope.integer(raw.ipv6_prefix.as_ref(), "ipv6_prefix", 1..=128_u8);
    Some(NewFlows {
        all,
        source,
        ipv4_prefix: ipv4.unwrap_or(IPV4_PREFIX),
        ipv6_prefix: ipv6.unwrap_or(IPV6_PREFIX),
    })
}
