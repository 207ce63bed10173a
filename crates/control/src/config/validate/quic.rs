//! Validation of what leads a service's packets by their QUIC ids.

use super::super::written;
use super::super::{Backend, Key, Protocol, Quic, QuicConfig};
use super::scope::Scope;
use std::collections::{BTreeMap, HashMap};
use toml::Spanned;
use weir_wire::quic::Id;

/// Server id and nonce, in an id of 20 bytes.
const MOST_OF_BOTH: u8 = 19;

/// The section with everything in range; `None` after a problem that nothing can stand in for.
pub(super) fn validate(
    raw: Spanned<written::Quic>,
    protocol: Protocol,
    backends: &[Backend],
    scope: &mut Scope<'_, '_>,
) -> Option<Quic> {
    let mut scope = scope.inner("quic", raw.span());
    let raw = raw.into_inner();
    if protocol != Protocol::Udp {
        let right = "set protocol = \"udp\", or remove [service.quic]";
        let of = if protocol == Protocol::Sctp { "SCTP" } else { "TCP" };
        scope.here("", format!("QUIC goes over UDP, and the service is one of {of}"), right);
    }
    if raw.config.is_empty() {
        let right =
            "add a [[service.quic.config]] with config_id, server_id_length and nonce_length";
        scope.missing("config", right);
    }
    let mut numbers = HashMap::new();
    let given = raw.config.len();
    let configs: Vec<QuicConfig> = raw
        .config
        .into_iter()
        .enumerate()
        .filter_map(|(at, raw)| config(raw, at, &mut numbers, &mut scope))
        .collect();
    let whole = configs.len() == given && given > 0;
    let issue = scope.integer(raw.issue.as_ref(), "issue", 0..=6);
    if let (Some(span), Some(number), true) = (&raw.issue, issue, whole)
        && configs.iter().all(|config| config.config_id != number)
    {
        let known: Vec<String> = configs.iter().map(|one| one.config_id.to_string()).collect();
        let right = format!("give one of {}", known.join(", "));
        scope.problem(span.span(), "issue", format!("there is no configuration {number}"), right);
    }
    let server_ids = server_ids(raw.server_ids, &configs, backends, whole, &mut scope);
    let issue = issue.or(configs.last().map(|last| last.config_id))?;
    let quic = Quic { configs, issue, server_ids };
    let names = backends.iter().map(|backend| backend.name.as_str());
    if let (true, Some((one, other, length))) = (whole, quic.clash(names)) {
        scope.here(
            "server_ids",
            format!("backends {one:?} and {other:?} have one server id of {length} bytes"),
            "give one of them another in server_ids, or more bytes in server_id_length",
        );
    }
    Some(quic)
}

fn config(
    raw: Spanned<written::QuicConfig>,
    at: usize,
    numbers: &mut HashMap<u8, usize>,
    scope: &mut Scope<'_, '_>,
) -> Option<QuicConfig> {
    let span = raw.span();
    let raw = raw.into_inner();
    let mut scope = scope.inner(&format!("config number {}", at + 1), span);
    let mut wanted = |field: &Option<Spanned<i64>>, name, range: std::ops::RangeInclusive<u8>| {
        if field.is_none() {
            let right = format!("give {}..{}", range.start(), range.end());
            scope.missing(name, right);
        }
        scope.integer(field.as_ref(), name, range)
    };
    let config_id = wanted(&raw.config_id, "config_id", 0..=6);
    let server = wanted(&raw.server_id_length, "server_id_length", 1..=15);
    let nonce = wanted(&raw.nonce_length, "nonce_length", 4..=18);
    if let (Some(number), Some(given)) = (config_id, &raw.config_id)
        && let Some(line) = numbers.insert(number, scope.line(given.span()))
    {
        let wrong = format!("configuration {number} is on line {line} already");
        scope.problem(given.span(), "config_id", wrong, "give another number from 0 to 6");
        return None;
    }
    if let (Some(server), Some(nonce), Some(given)) = (server, nonce, &raw.nonce_length)
        && server + nonce > MOST_OF_BOTH
    {
        let wrong = format!("{nonce} and a server_id_length of {server} make more than 19");
        let right = format!("give 4..{}", MOST_OF_BOTH - server);
        scope.problem(given.span(), "nonce_length", wrong, right);
        return None;
    }
    let key = raw.key.as_ref().map(|text| (text, Key::from_hex(text.get_ref())));
    if let Some((text, None)) = &key {
        // What is there may be most of a secret.
        let right = "give 32 of 0-9 and a-f, such as `openssl rand -hex 16` prints";
        scope.problem(text.span(), "key", "is not 16 bytes in hexadecimal", right);
        return None;
    }
    Some(QuicConfig {
        config_id: config_id?,
        server_id_length: server?,
        nonce_length: nonce?,
        key: key.and_then(|(_, key)| key),
        encode_length: raw.encode_length.is_some_and(Spanned::into_inner),
    })
}

/// `whole`: all configurations are known.
fn server_ids(
    raw: BTreeMap<String, Spanned<String>>,
    configs: &[QuicConfig],
    backends: &[Backend],
    whole: bool,
    scope: &mut Scope<'_, '_>,
) -> BTreeMap<String, String> {
    let mut lengths: Vec<usize> =
        configs.iter().map(|config| config.server_id_length.into()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let lengths_text: Vec<String> = lengths.iter().map(ToString::to_string).collect();
    let mut ids = BTreeMap::new();
    for (name, text) in raw {
        let field = format!("server_ids.{name}");
        if backends.iter().all(|backend| backend.name != name) {
            let wrong = "the service has no backend of this name";
            scope.problem(text.span(), &field, wrong, "name one of its backends, or remove it");
            continue;
        }
        let id = Id::from_hex(text.get_ref());
        let fits = id.is_some_and(|id| !whole || lengths.contains(&id.as_bytes().len()));
        if !fits {
            let wrong = format!("{:?} is no server id of any configuration", text.get_ref());
            let right = format!("give {} bytes in hexadecimal", lengths_text.join(" or "));
            scope.problem(text.span(), &field, wrong, right);
            continue;
        }
        ids.insert(name, text.into_inner().to_ascii_lowercase());
    }
    ids
}
