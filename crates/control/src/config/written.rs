//! The file as it is written: TOML with known fields, values not yet looked at.
//!
//! Every field is optional and numbers are wide, so that what is missing or out of range is
//! reported by validation, with all other problems, and not by the parser, alone.

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;
use toml::Spanned;
use weir_steering::MethodId;

use super::error::Problems;

type Field<T> = Option<Spanned<T>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub balancer: Field<Balancer>,
    pub af_xdp: Field<AfXdp>,
    pub dpdk: Field<Dpdk>,
    pub offload: Field<Offload>,
    pub p4: Field<P4>,
    pub limits: Field<Limits>,
    pub api: Field<Api>,
    pub agents: Field<Agents>,
    pub announce: Field<Announce>,
    pub store: Field<Store>,
    #[serde(default)]
    pub service: Vec<Spanned<Service>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Balancer {
    pub name: Field<String>,
    pub interfaces: Field<Vec<Spanned<String>>>,
    pub mode: Field<String>,
    pub plane: Field<String>,
    pub run_dir: Field<String>,
    pub state_dir: Field<String>,
    pub next_program: Field<String>,
    pub look_every: Field<String>,
    pub icmp_per_second: Field<i64>,
    pub resets_per_second: Field<i64>,
    pub echo: Field<bool>,
    pub metrics: Field<String>,
    pub web: Field<String>,
    pub web_role: Field<String>,
    pub web_hosts: Field<Vec<Spanned<String>>>,
    pub include: Field<Vec<Spanned<String>>>,
    pub hold_checks_at: Field<i64>,
    pub follow_flows: Field<i64>,
    pub count_interfaces: Field<bool>,
    pub tunnel_source: Field<String>,
    pub tunnel_source6: Field<String>,
    pub nat_sources: Field<Vec<Spanned<String>>>,
    pub nat_ports: Field<String>,
    pub nat_log: Field<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AfXdp {
    pub threads: Field<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dpdk {
    pub devices: Field<Vec<Spanned<String>>>,
    pub huge_pages: Field<bool>,
    pub memory_mb: Field<i64>,
    pub longest_nap: Field<String>,
    pub threads: Field<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Offload {
    pub card: Field<String>,
    pub rules: Field<i64>,
    pub queues: Field<i64>,
    pub choice: Field<String>,
    pub hysteresis: Field<i64>,
    pub profile: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct P4 {
    pub thrift: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Api {
    pub listen: Field<String>,
    pub certificate: Field<String>,
    pub key: Field<String>,
    pub client_ca: Field<String>,
    pub socket_group: Field<String>,
    pub audit: Field<String>,
    #[serde(default)]
    pub client: Vec<Spanned<ApiClient>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ApiClient {
    pub certificate: Field<String>,
    pub user: Field<String>,
    pub group: Field<String>,
    pub role: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    pub services: Field<i64>,
    pub backends: Field<i64>,
    pub pending_flows: Field<i64>,
    pub unreported_flows: Field<i64>,
    pub tracked_flows: Field<i64>,
    pub answered_flows: Field<i64>,
    pub slot_partitions: Field<i64>,
    pub udp_flows: Field<i64>,
    pub event_ring_bytes: Field<i64>,
    pub table_bytes: Field<i64>,
    pub states_per_service: Field<i64>,
    pub half_open_flows: Field<i64>,
    pub states_per_prefix: Field<i64>,
    pub list_prefixes: Field<i64>,
    pub nat_connections: Field<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Agents {
    pub listen: Field<String>,
    pub certificate: Field<String>,
    pub key: Field<String>,
    pub ca: Field<String>,
    pub learn: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Announce {
    pub speaker: Field<String>,
    pub api: Field<String>,
    pub socket: Field<String>,
    pub file: Field<String>,
    pub next_hop: Field<String>,
    pub next_hop6: Field<String>,
    pub communities: Field<Vec<Spanned<String>>>,
    pub med: Field<i64>,
    pub learn_delay: Field<String>,
    pub at_stop: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Store {
    pub kind: Field<String>,
    pub endpoints: Field<Vec<Spanned<String>>>,
    pub prefix: Field<String>,
    pub ca: Field<String>,
    pub certificate: Field<String>,
    pub key: Field<String>,
    pub user: Field<String>,
    pub password_file: Field<String>,
    pub wait: Field<String>,
    pub withdraw_after: Field<String>,
}

#[derive(Debug, Default)]
pub(super) struct Service {
    pub name: Field<String>,
    pub vip: Field<Texts>,
    pub protocol: Field<String>,
    pub port: Field<Value>,
    pub any_port: Field<bool>,
    pub method: Field<String>,
    pub affinity: Field<String>,
    pub fragments: Field<String>,
    pub states: Field<String>,
    pub idle_timeout: Field<String>,
    pub forward: Field<String>,
    pub tunnel_port: Field<i64>,
    pub mss: Field<Value>,
    pub cookie_key: Field<String>,
    pub cookie_keys: Field<Vec<Spanned<String>>>,
    pub issue_key: Field<i64>,
    pub allow: Field<Vec<Spanned<String>>>,
    pub deny: Field<Vec<Spanned<String>>>,
    pub allow_file: Field<String>,
    pub deny_file: Field<String>,
    pub new_flows: Field<NewFlows>,
    pub need: Field<i64>,
    pub quic: Field<Quic>,
    pub check: Field<Check>,
    pub backend: Vec<Spanned<Backend>>,
    pub discover: Vec<Spanned<Discover>>,
    /// Whatever a method can be set by, in the order of the file.
    pub settings: Vec<(&'static str, Spanned<Value>)>,
}

/// A text, or several in a list.
#[derive(Clone, Debug)]
pub(super) enum Texts {
    One(String),
    Several(Vec<Spanned<String>>),
}

impl Texts {
    /// Each with its place; `whole`: that of all.
    pub(super) fn each(&self, whole: Range<usize>) -> Vec<(&str, Range<usize>)> {
        match self {
            Self::One(text) => vec![(text, whole)],
            Self::Several(all) => all.iter().map(|one| (&**one.get_ref(), one.span())).collect(),
        }
    }
}

/// By hand, so that a value of another kind is told as everywhere else.
impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_newtype_struct(TEXTS, AnyTexts)
    }
}

/// The name by which the schema knows it.
pub(super) const TEXTS: &str = "Texts";

struct AnyTexts;

impl<'de> Visitor<'de> for AnyTexts {
    type Value = Texts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotes, or a list of such")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Texts, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_str<E>(self, value: &str) -> Result<Texts, E> {
        Ok(Texts::One(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Texts, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = all.next_element()? {
            texts.push(text);
        }
        Ok(Texts::Several(texts))
    }
}

/// The value of a method's setting.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(i64),
    Word(String),
}

/// By hand, so that a value of another kind is told as everywhere else.
impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl Visitor<'_> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number or a text in quotes")
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Word(value.to_owned()))
    }
}

/// The names of all settings of the methods whose tables can be published, each once.
fn settings() -> impl Iterator<Item = &'static str> {
    let all = MethodId::published().flat_map(|method| method.info().settings);
    let mut seen = HashSet::new();
    all.map(|setting| setting.name).filter(move |name| seen.insert(*name))
}

/// The names of all fields of a service.
fn names() -> &'static [&'static str] {
    const OWN: [&str; 26] = [
        "name",
        "vip",
        "protocol",
        "port",
        "any_port",
        "method",
        "affinity",
        "fragments",
        "states",
        "idle_timeout",
        "forward",
        "tunnel_port",
        "mss",
        "cookie_key",
        "cookie_keys",
        "issue_key",
        "allow",
        "deny",
        "allow_file",
        "deny_file",
        "new_flows",
        "need",
        "quic",
        "check",
        "backend",
        "discover",
    ];
    static ALL: LazyLock<Vec<&str>> = LazyLock::new(|| OWN.into_iter().chain(settings()).collect());
    &ALL
}

/// By hand, because the fields that methods add are the registry's.
impl<'de> Deserialize<'de> for Service {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_struct("Service", names(), Fields)
    }
}

/// The name of a field that there is; of another one the problem is shown where it stands.
struct FieldName(&'static str);

impl<'de> Deserialize<'de> for FieldName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = String::deserialize(from)?;
        let known = names().iter().find(|name| **name == written);
        known.map(|name| Self(name)).ok_or_else(|| D::Error::unknown_field(&written, names()))
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Service;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("struct Service")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Service, A::Error> {
        let mut service = Service::default();
        while let Some(FieldName(name)) = map.next_key()? {
            match name {
                "name" => service.name = Some(map.next_value()?),
                "vip" => service.vip = Some(map.next_value()?),
                "protocol" => service.protocol = Some(map.next_value()?),
                "port" => service.port = Some(map.next_value()?),
                "any_port" => service.any_port = Some(map.next_value()?),
                "method" => service.method = Some(map.next_value()?),
                "affinity" => service.affinity = Some(map.next_value()?),
                "fragments" => service.fragments = Some(map.next_value()?),
                "states" => service.states = Some(map.next_value()?),
                "idle_timeout" => service.idle_timeout = Some(map.next_value()?),
                "forward" => service.forward = Some(map.next_value()?),
                "tunnel_port" => service.tunnel_port = Some(map.next_value()?),
                "mss" => service.mss = Some(map.next_value()?),
                "cookie_key" => service.cookie_key = Some(map.next_value()?),
                "cookie_keys" => service.cookie_keys = Some(map.next_value()?),
                "issue_key" => service.issue_key = Some(map.next_value()?),
                "allow" => service.allow = Some(map.next_value()?),
                "deny" => service.deny = Some(map.next_value()?),
                "allow_file" => service.allow_file = Some(map.next_value()?),
                "deny_file" => service.deny_file = Some(map.next_value()?),
                "new_flows" => service.new_flows = Some(map.next_value()?),
                "need" => service.need = Some(map.next_value()?),
                "quic" => service.quic = Some(map.next_value()?),
                "check" => service.check = Some(map.next_value()?),
                "backend" => service.backend = map.next_value()?,
                "discover" => service.discover = map.next_value()?,
                setting => service.settings.push((setting, map.next_value()?)),
            }
        }
        Ok(service)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewFlows {
    pub per_second: Field<i64>,
    pub burst: Field<i64>,
    pub source_per_second: Field<i64>,
    pub source_burst: Field<i64>,
    pub source_connections: Field<i64>,
    pub ipv4_prefix: Field<i64>,
    pub ipv6_prefix: Field<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    pub enabled: Field<bool>,
    #[serde(rename = "type")]
    pub kind: Field<String>,
    pub interval: Field<String>,
    pub timeout: Field<String>,
    pub jitter: Field<i64>,
    pub rise: Field<i64>,
    pub fall: Field<i64>,
    pub flap_window: Field<String>,
    pub via: Field<String>,
    pub weight_step: Field<i64>,
    pub weight_every: Field<String>,
    pub slow_start: Field<String>,
    pub slow_start_curve: Field<i64>,
    pub port: Field<i64>,
    pub all_down: Field<String>,
    pub dead_connections: Field<String>,
    pub method: Field<String>,
    pub path: Field<String>,
    pub host: Field<String>,
    pub headers: Field<BTreeMap<String, String>>,
    pub status: Field<Vec<Spanned<Value>>>,
    pub body: Field<String>,
    pub answer_headers: Field<BTreeMap<String, String>>,
    pub weight_header: Field<String>,
    pub weight_body: Field<String>,
    pub sni: Field<String>,
    pub verify: Field<bool>,
    pub ca: Field<String>,
    pub expiry_warning: Field<String>,
    pub grpc_service: Field<String>,
    pub query: Field<String>,
    pub record: Field<String>,
    pub send: Field<String>,
    pub send_hex: Field<String>,
    pub expect: Field<String>,
    pub expect_hex: Field<String>,
    pub command: Field<Vec<String>>,
    pub user: Field<String>,
}

impl Check {
    /// These fields, and for what they do not say those of the service's check: of one of another type
    /// only what every check has.
    pub(super) fn over(self, base: &Self) -> Self {
        let word = |kind: &Field<String>| kind.as_ref().map(|kind| kind.get_ref().clone());
        let same = self.kind.is_none()
            || word(&self.kind) == Some(word(&base.kind).unwrap_or_else(|| "tcp".to_owned()));
        let mut base = base.clone();
        // Whoever says it in one way has said it.
        if self.send.is_some() || self.send_hex.is_some() {
            (base.send, base.send_hex) = (None, None);
        }
        if self.expect.is_some() || self.expect_hex.is_some() {
            (base.expect, base.expect_hex) = (None, None);
        }
        if self.weight_header.is_some() || self.weight_body.is_some() {
            (base.weight_header, base.weight_body) = (None, None);
        }
        macro_rules! over {
            ($($shared:ident)*; $($own:ident)*) => {
                Self {
                    $($shared: self.$shared.or(base.$shared),)*
                    $($own: self.$own.or(base.$own.filter(|_| same)),)*
                }
            };
        }
        over!(enabled interval timeout jitter rise fall flap_window weight_step weight_every slow_start
            slow_start_curve all_down
            dead_connections; kind via port method path
            host headers status body answer_headers weight_header weight_body sni verify ca expiry_warning grpc_service query record send
            send_hex expect expect_hex command user)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Quic {
    pub issue: Field<i64>,
    #[serde(default)]
    pub config: Vec<Spanned<QuicConfig>>,
    #[serde(default)]
    pub server_ids: BTreeMap<String, Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QuicConfig {
    pub config_id: Field<i64>,
    pub server_id_length: Field<i64>,
    pub nonce_length: Field<i64>,
    pub key: Field<String>,
    pub encode_length: Field<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Discover {
    pub name: Field<String>,
    pub dns: Field<String>,
    pub srv: Field<String>,
    pub port: Field<i64>,
    pub weight: Field<i64>,
    pub nat_sources: Field<Vec<Spanned<String>>>,
    pub servers: Field<Vec<Spanned<String>>>,
    pub every: Field<String>,
    pub most: Field<i64>,
    pub leave_after: Field<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Backend {
    pub name: Field<String>,
    pub address: Field<String>,
    pub port: Field<i64>,
    pub weight: Field<i64>,
    pub drain: Field<bool>,
    pub backup: Field<bool>,
    pub maintenance: Field<Vec<Spanned<String>>>,
    pub nat_sources: Field<Vec<Spanned<String>>>,
    pub check: Field<Check>,
}

/// Parses the text; a fault is added to `problems`.
pub(super) fn parse(text: &str, problems: &mut Problems<'_>) -> Option<File> {
    match toml::from_str(text) {
        Ok(file) => Some(file),
        Err(error) => {
            report(&error, problems);
            None
        }
    }
}

fn report(error: &toml::de::Error, problems: &mut Problems<'_>) {
    let span = error.span().unwrap_or(0..0);
    let message = error.message().replace('\n', ", ");
    if let Some((at, wrong, right)) = of_header(&message, span.start, problems) {
        let field = field_at(at, problems);
        return problems.add(at..at, field, wrong, right);
    }
    let (wrong, mut right) = explain(&message);
    let field = field_at(span.start, problems);
    let key = problems.key_at(span.start).unwrap_or_default();
    if let Some(number) = number_of(&wrong).filter(|_| is_duration(key)) {
        right = format!("{right} with a unit, such as {}", duration_like(key, number));
    }
    if is_twice(&message)
        && let Some(first) = problems.same_key_before(span.start)
    {
        right = format!("it is on {} already; remove one", problems.said(first, span.start));
    }
    problems.add(span, field, wrong, right);
}

/// Tables of which there may be several, each below a header of its own.
const SEVERAL: [&str; 5] =
    ["service", "service.backend", "service.discover", "service.quic.config", "api.client"];

/// Whether a message of the TOML parser says that something is there already.
fn is_twice(message: &str) -> bool {
    message.starts_with("duplicate key")
}

/// The table of a header.
fn table_of(header: &str) -> &str {
    header.trim_matches(['[', ']']).trim()
}

/// Of a fault that lies in how a header is written: where that one begins, what is wrong, and what would be right. The
/// parser tells of the second of two that contradict each other, whichever it is.
fn of_header(message: &str, at: usize, problems: &Problems<'_>) -> Option<(usize, String, String)> {
    let mut headers = problems.headers_to(at);
    let (begin, header) = headers.next()?;
    if problems.line(begin) != problems.line(at) {
        return None;
    }
    let table = table_of(header);
    let several = SEVERAL.contains(&table);
    let form = if several { format!("[[{table}]]") } else { format!("[{table}]") };
    let is_right = |header: &str| header.starts_with("[[") == several;
    if message.starts_with("invalid type: map") || message.starts_with("invalid type: sequence") {
        let wrong = match several {
            true => "there may be several of these tables",
            false => "there is one of these tables at most",
        };
        return (!is_right(header)).then(|| (begin, wrong.to_owned(), format!("write {form}")));
    }
    if !is_twice(message) {
        return None;
    }
    // One of the same table: a service's check has nothing to do with that of the service before.
    let parent = table.rsplit_once('.').map(|(parent, _)| parent);
    let mut headers = headers.take_while(|(_, other)| Some(table_of(other)) != parent);
    let (first, other) = headers.find(|(_, other)| table_of(other) == table)?;
    let (typo, rest, goes) = match (is_right(header), is_right(other)) {
        (true, false) => (first, begin, header),
        (false, true) => (begin, first, other),
        (true, true) => {
            let wrong = format!("it is on {} already", problems.said(first, begin));
            return Some((begin, wrong, "put the fields of both below one header".to_owned()));
        }
        (false, false) => {
            let wrong = format!("it is on {} already", problems.said(first, begin));
            return Some((begin, wrong, format!("write {form} in both places")));
        }
    };
    let wrong = format!("does not go with {goes} on {}", problems.said(rest, typo));
    Some((typo, wrong, format!("write {form}")))
}

/// The number that stands where there is to be something else.
fn number_of(wrong: &str) -> Option<&str> {
    let rest = wrong.strip_prefix("invalid type: ")?;
    let rest = rest.strip_prefix("integer `").or_else(|| rest.strip_prefix("floating point `"))?;
    rest.strip_suffix('`').filter(|number| !number.starts_with('-'))
}

/// Fields that are durations.
const DURATIONS: [&str; 18] = [
    "at_stop",
    "every",
    "expiry_warning",
    "flap_window",
    "idle_timeout",
    "interval",
    "keep",
    "learn",
    "learn_delay",
    "leave_after",
    "longest_nap",
    "look_every",
    "slow_start",
    "timeout",
    "wait",
    "weight_every",
    "withdraw",
    "withdraw_after",
];

/// Whether a key is of a duration.
fn is_duration(key: &str) -> bool {
    DURATIONS.contains(&last_of(key))
}

/// The last part of a key, which may be that of a table in a table.
fn last_of(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key).trim_matches('"')
}

/// How a duration is written of which somebody has given a number alone. Where nobody knows of what unit that was it is
/// an example, and not the number.
fn duration_like(key: &str, number: &str) -> String {
    match last_of(key) {
        "interval" | "timeout" => "\"500ms\" or \"5s\"".to_owned(),
        "longest_nap" => "\"200us\"".to_owned(),
        _ => format!("\"{number}s\""),
    }
}

/// Splits a message of serde or of the TOML parser into what is wrong and what would be right.
fn explain(message: &str) -> (String, String) {
    let Some((wrong, expected)) = message.split_once(", expected ") else {
        return (message.to_owned(), String::new());
    };
    if wrong.starts_with("unknown field") {
        let fields = expected.trim_start_matches("one of ").replace('`', "");
        return (wrong.to_owned(), format!("the fields here are {fields}"));
    }
    let expected = match expected {
        "i64" | "i128" => "a whole number",
        "a string" => "a text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list in [ ]",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    (wrong.to_owned(), format!("expected {expected}"))
}

/// Names the place of a fault by its table header and the key of its line.
fn field_at(offset: usize, problems: &Problems<'_>) -> String {
    let header = problems.header_before(offset).unwrap_or_default();
    let key = problems.key_at(offset);
    match (header.is_empty(), key) {
        (true, None) => String::new(),
        (true, Some(key)) => key.to_owned(),
        (false, None) => header.to_owned(),
        (false, Some(key)) => format!("{header} {key}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    /// What contradicts something else is told where it stands, and with the other place.
    #[test]
    fn what_is_there_twice_is_told_with_both_lines() {
        let balancer = "[balancer]\ninterfaces = [\"lo\"]\n";
        let service = |port: u16| {
            format!(
                "name = \"s{port}\"\nvip = \"10.0.0.1\"\nport = {port}\n[[service.backend]]\nname = \"b\"\n\
                 address = \"10.0.0.11\"\n"
            )
        };
        let (a, b) = (service(80), service(81));
        for (text, wanted) in [
            (
                format!("{balancer}[service] # a = b\n{a}[[service]]\n{b}"),
                "weir.toml:3: [service]: does not go with [[service]] on line 10; write [[service]]",
            ),
            (
                format!("{balancer}[[service]]\n{a}[service]\n{b}"),
                "weir.toml:10: [service]: does not go with [[service]] on line 3; write [[service]]",
            ),
            (
                format!("{balancer}[service]\n{a}[service]\n{b}"),
                "weir.toml:10: [service]: it is on line 3 already; write [[service]] in both places",
            ),
            (
                format!("{balancer}[service]\n{a}"),
                "weir.toml:3: [service]: there may be several of these tables; write [[service]]",
            ),
            (
                format!("{balancer}{balancer}[[service]]\n{a}"),
                "weir.toml:3: [balancer]: it is on line 1 already; put the fields of both below one header",
            ),
            (
                format!("{balancer}interfaces = [\"lo\"]\n[[service]]\n{a}"),
                "weir.toml:3: [balancer] interfaces: duplicate key; it is on line 2 already; remove one",
            ),
        ] {
            let said = Config::parse(&text, "weir.toml").unwrap_err().to_string();
            assert_eq!(said, wanted, "{text}");
        }
    }
}
