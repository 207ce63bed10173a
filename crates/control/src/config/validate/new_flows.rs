//! Validation of how many new flows a service takes.

use super::super::new_flows::{IPV4_PREFIX, IPV6_PREFIX, MOST_FLOWS};
use super::super::{Affinity, FlowRate, NewFlows, Protocol, written};
use super::scope::Scope;
use toml::Spanned;
use weir_steering::MethodId;

/// The section with everything in range; `None` after a problem that nothing can stand in for.
pub(super) fn validate(
    raw: Spanned<written::NewFlows>,
    (method, protocol, affinity): (Option<MethodId>, Protocol, Option<Affinity>),
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
    let rates = [&raw.per_second, &raw.source_per_second, &raw.source_connections];
    if rates.iter().all(|rate| rate.is_none()) {
        let right = "give per_second, source_per_second or source_connections; or remove \
                     [service.new_flows]";
        scope.missing("per_second", right);
    }
    if let Some(limit) = &raw.source_connections {
        limits(limit, method, affinity, &mut scope);
    }
    let of_source = raw.source_per_second.as_ref().or(raw.source_connections.as_ref());
    for (field, name) in [(&raw.ipv4_prefix, "ipv4_prefix"), (&raw.ipv6_prefix, "ipv6_prefix")] {
        if let (Some(field), None) = (field, of_source) {
            let wrong = "there is no source_per_second, and no source_connections";
            scope.problem(field.span(), name, wrong, "give one of them, or remove it");
        }
    }
    for (field, name, rate, of) in [
        (&raw.burst, "burst", &raw.per_second, "per_second"),
        (&raw.source_burst, "source_burst", &raw.source_per_second, "source_per_second"),
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
    let flows = 1..=MOST_FLOWS;
    let source_connections =
        scope.integer(raw.source_connections.as_ref(), "source_connections", flows);
    let ipv4 = scope.integer(raw.ipv4_prefix.as_ref(), "ipv4_prefix", 1..=32_u8);
    let ipv6 = scope.integer(raw.ipv6_prefix.as_ref(), "ipv6_prefix", 1..=128_u8);
    Some(NewFlows {
        all,
        source,
        source_connections,
        ipv4_prefix: ipv4.unwrap_or(IPV4_PREFIX),
        ipv6_prefix: ipv6.unwrap_or(IPV6_PREFIX),
    })
}

/// A limit to the connections of each prefix is kept only where the control plane knows which ones live.
fn limits(
    limit: &Spanned<i64>,
    method: Option<MethodId>,
    affinity: Option<Affinity>,
    scope: &mut Scope<'_, '_>,
) {
    let field = "source_connections";
    if let Some(method) = method.filter(|method| !method.needs().states) {
        let wrong = format!("with {} nobody knows which connections have ended", method.name());
        let right = "remove it, or set method = \"concury\" or \"residue\"";
        scope.problem(limit.span(), field, wrong, right);
    } else if affinity == Some(Affinity::Client) {
        let wrong = "with affinity by client nobody knows how many connections a client has";
        scope.problem(limit.span(), field, wrong, "remove it, or set affinity = \"flow\"");
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, FlowRate, NewFlows};

    fn read(protocol: &str, lines: &str) -> Result<Option<NewFlows>, String> {
        read_with(protocol, "", lines)
    }

    /// `settings`: of the service.
    fn read_with(protocol: &str, settings: &str, lines: &str) -> Result<Option<NewFlows>, String> {
        let text = format!(
            "[balancer]\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\n\
             protocol = \"{protocol}\"\nport = 80\n{settings}\n[service.new_flows]\n{lines}\n[service.check]\n\
             enabled = false\n[[service.backend]]\nname = \"b1\"\naddress = \"10.0.0.11\"\n"
        );
        let config = Config::parse(&text, "weir.toml").map_err(|error| error.to_string())?;
        Ok(config.services[0].new_flows)
    }

    #[test]
    fn rates_and_what_is_left_out() {
        let rate = |per_second, burst| Some(FlowRate { per_second, burst });
        let (ipv4_prefix, ipv6_prefix) = (32, 56);
        for (lines, all, source) in [
            ("per_second = 7", rate(7, 7), None),
            ("per_second = 7\nburst = 1", rate(7, 1), None),
            ("source_per_second = 1000000", None, rate(1_000_000, 1_000_000)),
            ("per_second = 7\nsource_per_second = 2\nsource_burst = 3", rate(7, 7), rate(2, 3)),
        ] {
            let source_connections = None;
            let wanted = NewFlows { all, source, source_connections, ipv4_prefix, ipv6_prefix };
            assert_eq!(read("tcp", lines), Ok(Some(wanted)), "{lines}");
        }
        let read = read("tcp", "source_per_second = 2\nipv4_prefix = 24\nipv6_prefix = 64");
        let read = read.expect("it is good").expect("it is there");
        assert_eq!((read.ipv4_prefix, read.ipv6_prefix), (24, 64));
        let limits = "source_connections = 9\nipv6_prefix = 48";
        let limited = read_with("tcp", "method = \"residue\"", limits);
        let limited = limited.expect("it is good").expect("it is there");
        assert_eq!((limited.source_connections, limited.source), (Some(9), None));
        assert_eq!((limited.ipv4_prefix, limited.ipv6_prefix), (32, 48));
        let saved = serde_json::to_string(&read).expect("it can be written");
        assert_eq!(serde_json::from_str::<NewFlows>(&saved).expect("as it was written"), read);
    }

    #[test]
    fn what_cannot_be_kept_is_refused_with_the_field() {
        for (protocol, lines, words) in [
            ("tcp", "", "service \"web\": new_flows: per_second: is missing"),
            ("tcp", "per_second = 0", "new_flows: per_second: 0 is out of range; give 1..1000000"),
            ("tcp", "per_second = 9\nburst = 1000001", "new_flows: burst: 1000001 is out of range"),
            ("tcp", "source_per_second = -1", "new_flows: source_per_second: -1 is out of range"),
            ("tcp", "source_per_second = 1\nburst = 2", "new_flows: burst: there is no per_second"),
            (
                "tcp",
                "per_second = 1\nipv4_prefix = 24",
                "ipv4_prefix: there is no source_per_second, and no source_connections",
            ),
            (
                "tcp",
                "source_per_second = 1\nipv4_prefix = 0",
                "ipv4_prefix: 0 is out of range; give 1..32",
            ),
            ("tcp", "source_per_second = 1\nipv6_prefix = 129", "ipv6_prefix: 129 is out of range"),
            ("tcp", "per_second = 1\nburts = 2", "burts"),
            ("tcp", "per_second = \"1\"", "per_second"),
            ("tcp", "source_connections = 0", "new_flows: source_connections: 0 is out of range"),
            ("tcp", "source_connections = 1\nsource_burst = 1", "there is no source_per_second"),
            ("udp", "per_second = 1", "new_flows: no datagram says that it begins a flow"),
        ] {
            let error = read(protocol, lines).expect_err(lines);
            assert!(error.contains("weir.toml:") && error.contains(words), "{lines}: {error}");
        }
    }

    /// A limit needs somebody who knows which connections live; rates need nobody.
    #[test]
    fn a_limit_is_refused_where_nobody_knows_what_has_ended() {
        for (settings, words) in [
            ("method = \"tracked\"", "with tracked nobody knows which connections have ended"),
            ("method = \"jet\"", "with jet nobody knows"),
            ("method = \"cheetah\"", "with cheetah nobody knows"),
            ("method = \"cheetah-stateful\"", "with cheetah-stateful nobody knows"),
            ("affinity = \"client\"", "nobody knows how many connections a client has"),
        ] {
            let error = read_with("tcp", settings, "source_connections = 5").expect_err(settings);
            assert!(error.contains("new_flows: source_connections: "), "{settings}: {error}");
            assert!(error.contains(words), "{settings}: {error}");
            read_with("tcp", settings, "source_per_second = 5").expect(settings);
        }
    }
}
