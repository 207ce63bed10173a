//! The state of cilium's standalone load balancer (`--lb-state-file`): services of Kubernetes and the endpoint
//! slices that are theirs by namespace and the label `kubernetes.io/service-name`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use marked_yaml::types::{MarkedMappingNode, MarkedSequenceNode};
use marked_yaml::{LoadError, Marker, Node, parse_yaml};

use super::draft::{Backend, Check, Draft, Service, quoted};
use super::keepalived::persistence;
use super::{ImportError, Note};
use crate::config::Protocol;

/// Larger files are none that somebody wrote.
const MOST: usize = 16 << 20;
/// What stands within each other, at most: the reader goes down by itself.
const DEEPEST: usize = 64;
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The time by which kube-proxy and cilium keep clients together, if it is not said.
const AFFINITY_SECONDS: u64 = 10_800;

/// Reads it.
pub(super) fn read(text: &str) -> Result<Draft, ImportError> {
    bounded(text)?;
    let mut draft = Draft::default();
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(draft);
    }
    let file = parse_yaml(0, text).map_err(|error| refused(&error))?;
    let Some(file) = file.as_mapping() else {
        let wrong = "give a file with `services` and `endpoints`".into();
        return Err(ImportError::Text { line: 1, wrong });
    };
    for (key, _) in file.iter() {
        if !["services", "endpoints"].contains(&key.as_str()) {
            draft.note(
                line_of(key.span()),
                format!("{}: is neither services nor endpoints", key.as_str()),
            );
        }
    }
    let mut slices = Slices::default();
    for slice in maps(file, "endpoints") {
        if let Some(of) = service_of(slice) {
            slices.entry(of).or_default().push(slice);
        }
    }
    let mut named = HashSet::new();
    for one in maps(file, "services") {
        let (namespace, name) = name_of(one);
        if named.insert((namespace, name)) {
            service(one, &slices, &mut draft);
        } else {
            let text = format!("service {name:?} is there already; left out");
            draft.note(line_of(one.span()), text);
        }
    }
    Ok(draft)
}

/// Endpoint slices by the namespace and name of their service.
type Slices<'a> = HashMap<(&'a str, &'a str), Vec<&'a MarkedMappingNode>>;

/// Refuses what would go deeper than the reader's stack, before it is read. Quotation marks are not looked at:
/// what is refused so is no state file either.
fn bounded(text: &str) -> Result<(), ImportError> {
    let refuse = |line: usize, wrong: String| Err(ImportError::Text { line, wrong });
    if text.len() > MOST {
        return refuse(1, format!("{} bytes; a state file has {MOST} at most", text.len()));
    }
    let mut flow = 0usize;
    for (at, line) in text.lines().enumerate() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        let words = bare.split_whitespace();
        let marks = words.take_while(|word| ["-", "?", ":"].contains(word)).count();
        for byte in bare.bytes() {
            match byte {
                b'[' | b'{' => flow += 1,
                b']' | b'}' => flow = flow.saturating_sub(1),
                _ => {}
            }
            if flow > DEEPEST {
                return refuse(at + 1, format!("more than {DEEPEST} lists within each other"));
            }
        }
        if marks > DEEPEST || (indent > 4 * DEEPEST && flow == 0) {
            return refuse(at + 1, "stands too far within others".into());
        }
    }
    Ok(())
}

fn refused(error: &LoadError) -> ImportError {
    let at = |marker: &Marker| marker.line();
    let line = match error {
        LoadError::TopLevelMustBeMapping(at_)
        | LoadError::TopLevelMustBeSequence(at_)
        | LoadError::UnexpectedAnchor(at_)
        | LoadError::MappingKeyMustBeScalar(at_)
        | LoadError::UnexpectedTag(at_)
        | LoadError::ScanError(at_, _) => at(at_),
        LoadError::DuplicateKey(inner) => line_of(inner.key.span()),
    };
    ImportError::Text { line: line.max(1), wrong: format!("no state file: {error}") }
}

fn line_of(span: &marked_yaml::Span) -> usize {
    span.start().map_or(1, Marker::line)
}

/// The maps of a list in a map.
fn maps<'a>(
    map: &'a MarkedMappingNode,
    key: &str,
) -> impl Iterator<Item = &'a MarkedMappingNode> + use<'a> {
    list(map, key).into_iter().flat_map(|list| list.iter().filter_map(Node::as_mapping))
}

fn list<'a>(map: &'a MarkedMappingNode, key: &str) -> Option<&'a MarkedSequenceNode> {
    map.get_sequence(key)
}

fn text<'a>(map: &'a MarkedMappingNode, key: &str) -> Option<&'a str> {
    map.get_scalar(key).map(|node| node.as_str())
}

fn number<T: std::str::FromStr>(map: &MarkedMappingNode, key: &str) -> Option<T> {
    text(map, key)?.parse().ok()
}

fn words<'a>(map: &'a MarkedMappingNode, key: &str) -> Vec<(usize, &'a str)> {
    let all = list(map, key).into_iter().flat_map(|list| list.iter());
    all.filter_map(Node::as_scalar).map(|one| (line_of(one.span()), one.as_str())).collect()
}

/// Namespace and name.
fn name_of(object: &MarkedMappingNode) -> (&str, &str) {
    let metadata = object.get_mapping("metadata");
    let word = |key| metadata.and_then(|map| text(map, key)).unwrap_or_default();
    (word("namespace"), word("name"))
}

fn service(object: &MarkedMappingNode, slices: &Slices<'_>, draft: &mut Draft) {
    let line = line_of(object.span());
    let (namespace, name) = name_of(object);
    let Some(spec) = object.get_mapping("spec") else {
        draft.note(line, format!("service {name:?} has no spec; left out"));
        return;
    };
    let vips = vips(object, spec, draft);
    if vips.is_empty() {
        let text = format!(
            "service {name:?} has no address that clients outside reach (status.loadBalancer.ingress, \
             spec.externalIPs); left out"
        );
        draft.note(line, text);
        return;
    }
    annotations(object, draft);
    let settings = settings(spec, draft);
    let slices = slices.get(&(namespace, name)).map_or(&[][..], |slices| slices);
    for port in maps(spec, "ports") {
        let line = line_of(port.span());
        let protocol = match text(port, "protocol").unwrap_or("TCP") {
            "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            other => {
                draft.note(line, format!("{other}: weir translates TCP and UDP only"));
                continue;
            }
        };
        let Some(number) = number::<u16>(port, "port").filter(|port| *port > 0) else {
            draft.note(line, "no port of 1 to 65535; left out");
            continue;
        };
        if let Some(node) = text(port, "nodePort") {
            draft.note(
                line,
                format!("nodePort {node}: weir has services at their own addresses only"),
            );
        }
        let port_name = text(port, "name").unwrap_or_default();
        let backends = backends(slices, port_name, (number, protocol), draft);
        for (at, vip) in vips.iter().enumerate() {
            let (one, backends): (_, Vec<Backend>) = (
                vip.is_ipv4(),
                backends
                    .iter()
                    .filter(|one| one.address.is_ipv4() == vip.is_ipv4())
                    .cloned()
                    .collect(),
            );
            let family = if one { "" } else { "-v6" };
            let more = if at > 1 { format!("-{at}") } else { String::new() };
            let added = draft.add(Service {
                line,
                said: format!("{namespace}/{name} {port_name}"),
                name: format!("{namespace}-{name}-{number}{family}{more}"),
                vip: *vip,
                port: Some(number),
                protocol,
                settings: settings.clone(),
                shared: Default::default(),
                backends,
            });
            if !added {
                return;
            }
        }
    }
}

/// The addresses at which clients outside reach it.
fn vips(
    object: &MarkedMappingNode,
    spec: &MarkedMappingNode,
    draft: &mut Draft,
) -> BTreeSet<IpAddr> {
    let mut found = words(spec, "externalIPs");
    let status = object.get_mapping("status").and_then(|map| map.get_mapping("loadBalancer"));
    for ingress in status.into_iter().flat_map(|map| maps(map, "ingress")) {
        let line = line_of(ingress.span());
        match text(ingress, "ip") {
            Some(ip) => found.push((line, ip)),
            None => draft.note(line, "an ingress without ip; left out"),
        }
    }
    if let Some(node) =
        spec.get_scalar("clusterIP").filter(|node| !["", "None"].contains(&node.as_str()))
    {
        let text = format!("clusterIP {}: is for the inside of a cluster; left out", node.as_str());
        draft.note(line_of(node.span()), text);
    }
    let mut all = BTreeSet::new();
    for (line, ip) in found {
        match ip.parse() {
            Ok(address) => drop(all.insert(address)),
            Err(_) => draft.note(line, format!("{ip:?} is no address; left out")),
        }
    }
    all
}

fn annotations(object: &MarkedMappingNode, draft: &mut Draft) {
    let annotations = object.get_mapping("metadata").and_then(|map| map.get_mapping("annotations"));
    for (key, _) in annotations.into_iter().flat_map(|map| map.iter()) {
        if key.as_str().contains("cilium.io/") {
            draft
                .note(line_of(key.span()), format!("annotation {}: is not followed", key.as_str()));
        }
    }
}

/// What all services of one have in common.
fn settings(spec: &MarkedMappingNode, draft: &mut Draft) -> Vec<String> {
    // cilium translates addresses and ports, and endpoints know nothing of the service.
    let mut lines = vec!["forward = \"nat\"".to_owned()];
    draft.note(
        line_of(spec.span()),
        "weir's NAT leaves the client's address in the packet: answers must pass the balancer (docs/forwarding.md)",
    );
    if text(spec, "sessionAffinity") == Some("ClientIP") {
        let config =
            spec.get_mapping("sessionAffinityConfig").and_then(|map| map.get_mapping("clientIP"));
        let seconds =
            config.and_then(|map| number(map, "timeoutSeconds")).unwrap_or(AFFINITY_SECONDS);
        // Of TCP it is the longest.
        let (kept, text) = persistence(seconds, Protocol::Tcp, "timeoutSeconds");
        lines.extend(kept);
        if let Some(config) = config {
            draft.note(line_of(config.span()), text);
        }
    }
    let ranges = words(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() {
        let ranges: Vec<String> = ranges.iter().map(|(_, range)| quoted(range)).collect();
        lines.push(format!("allow = [{}]", ranges.join(", ")));
    }
    const ELSEWHERE: [&str; 6] = [
        "healthCheckNodePort",
        "externalTrafficPolicy",
        "internalTrafficPolicy",
        "loadBalancerClass",
        "trafficDistribution",
        "publishNotReadyAddresses",
    ];
    for key in ELSEWHERE {
        if let Some(node) = spec.get_node(key) {
            draft.note(line_of(node.span()), format!("{key}: weir has nothing like it"));
        }
    }
    lines
}

/// Namespace and name of the service that a slice is of.
fn service_of(slice: &MarkedMappingNode) -> Option<(&str, &str)> {
    let labels = slice.get_mapping("metadata").and_then(|map| map.get_mapping("labels"));
    Some((name_of(slice).0, text(labels?, SERVICE_NAME)?))
}

/// The endpoints of a port, by its name.
fn backends(
    slices: &[&MarkedMappingNode],
    port_name: &str,
    (service_port, protocol): (u16, Protocol),
    draft: &mut Draft,
) -> Vec<Backend> {
    let mut backends = Vec::new();
    for slice in slices {
        let of_port = |port: &&MarkedMappingNode| {
            let of = protocol.name().to_ascii_uppercase();
            text(port, "name").unwrap_or_default() == port_name
                && text(port, "protocol").unwrap_or("TCP") == of
        };
        let Some(port) = maps(slice, "ports").find(of_port) else { continue };
        let Some(port) = number::<u16>(port, "port").filter(|port| *port > 0) else {
            draft.note(line_of(port.span()), "no port of 1 to 65535; left out");
            continue;
        };
        for endpoint in maps(slice, "endpoints") {
            let conditions = endpoint.get_mapping("conditions");
            let is = |key, otherwise| {
                let said =
                    conditions.and_then(|map| map.get_scalar(key)).and_then(|one| one.as_bool());
                said.unwrap_or(otherwise)
            };
            let (ready, terminating) = (is("ready", true), is("terminating", false));
            let line = line_of(endpoint.span());
            if !ready && !is("serving", ready) {
                draft
                    .notes
                    .push(Note { line, text: "an endpoint that is not ready; left out".into() });
                continue;
            }
            for (line, address) in words(endpoint, "addresses") {
                let Ok(address) = address.parse() else {
                    draft.note(line, format!("{address:?} is no address; left out"));
                    continue;
                };
                backends.push(Backend {
                    line,
                    address,
                    port: Some(port).filter(|port| *port != service_port),
                    weight: None,
                    // It ends, and keeps what it has.
                    drain: terminating,
                    backup: false,
                    check: if protocol == Protocol::Udp { Check::Off } else { Check::Usual },
                });
            }
        }
    }
    backends
}
