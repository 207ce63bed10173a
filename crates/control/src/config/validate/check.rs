//! Validation of health checks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::http::uri::{Authority, PathAndQuery};
use hyper::http::{HeaderName, HeaderValue};
use rustls::pki_types::ServerName;
use toml::Spanned;

use super::super::written::{self, Value};
use super::super::{
    AllDown, Codes, DeadConnections, Dns, Exchange, Grpc, Http, Protocol, Record, Script, Tls, Via,
    WeightIn, What, resolve,
};
use super::scope::Scope;

/// A check with every given value in range.
#[derive(Debug)]
pub(in super::super) struct Check {
    pub what: What,
    pub interval: Option<Duration>,
    pub timeout: Option<Duration>,
    pub jitter: Option<u32>,
    pub rise: Option<u32>,
    pub fall: Option<u32>,
    pub flap_window: Option<Duration>,
    pub via: Option<Via>,
    pub weight_step: Option<u32>,
    pub weight_every: Option<Duration>,
    pub slow_start: Option<Duration>,
    pub slow_start_curve: Option<u32>,
    pub port: Option<u16>,
    /// The file names none, and packets are translated.
    pub backends_port: bool,
    pub all_down: Option<AllDown>,
    pub dead_connections: Option<DeadConnections>,
}

/// The port that a check uses if it names none.
#[derive(Clone, Copy)]
pub(super) enum CheckPort {
    /// The service's, of its protocol.
    Default(u16, Protocol),
    /// The service has no port of its own.
    None,
    /// A problem with the service's port or protocol was reported.
    Unknown,
}

/// Checks of backends, by their names.
type Own = BTreeMap<String, Option<Check>>;

/// The service's check, and those of backends that have one of their own.
pub(super) fn checks(
    raw: Option<Spanned<written::Check>>,
    backends: &[Spanned<written::Backend>],
    default: CheckPort,
    nat: bool,
    scope: &mut Scope<'_, '_>,
) -> (Option<Check>, Own) {
    let (span, raw) = match raw {
        Some(raw) => (raw.span(), raw.into_inner()),
        None => (scope.span(), written::Check::default()),
    };
    let before = scope.problems();
    let check = check(raw.clone(), default, nat, &mut scope.inner("check", span));
    let mut own = BTreeMap::new();
    // What is wrong with the service's would be said once more for each.
    if scope.problems() > before {
        return (check, own);
    }
    for backend in backends.iter().map(Spanned::get_ref) {
        let (Some(name), Some(given)) = (&backend.name, &backend.check) else { continue };
        let title = format!("backend {:?}: check", name.get_ref());
        let mut scope = scope.inner(&title, given.span());
        if let Some(all_down) = &given.get_ref().all_down {
            let wrong = "is a setting of the service";
            scope.problem(all_down.span(), "all_down", wrong, "put it into [service.check]");
        }
        let merged = given.get_ref().clone().over(&raw);
        let checked = self::check(merged, default, nat, &mut scope);
        own.insert(name.get_ref().clone(), checked);
    }
    (check, own)
}

fn check(
    raw: written::Check,
    default: CheckPort,
    nat: bool,
    scope: &mut Scope<'_, '_>,
) -> Option<Check> {
    let times = Duration::from_millis(10)..=Duration::from_secs(3600);
    let (what, known) = what(&raw, scope);
    let check = Check {
        interval: scope.duration(raw.interval.as_ref(), "interval", times.clone()),
        timeout: scope.duration(
            raw.timeout.as_ref(),
            "timeout",
            Duration::from_millis(1)..=*times.end(),
        ),
        jitter: scope.integer(raw.jitter.as_ref(), "jitter", 0..=50),
        rise: scope.integer(raw.rise.as_ref(), "rise", 1..=1000),
        fall: scope.integer(raw.fall.as_ref(), "fall", 1..=1000),
        flap_window: scope.duration(
            raw.flap_window.as_ref(),
            "flap_window",
            Duration::ZERO..=*times.end(),
        ),
        via: scope.choice(
            raw.via.as_ref(),
            "via",
            &[("direct", Via::Direct), ("service", Via::Service)],
        ),
        weight_step: scope.integer(raw.weight_step.as_ref(), "weight_step", 0..=100),
        weight_every: scope.duration(
            raw.weight_every.as_ref(),
            "weight_every",
            Duration::from_secs(1)..=*times.end(),
        ),
        slow_start: scope.duration(
            raw.slow_start.as_ref(),
            "slow_start",
            Duration::ZERO..=*times.end(),
        ),
        slow_start_curve: scope.integer(raw.slow_start_curve.as_ref(), "slow_start_curve", 1..=10),
        port: scope.integer(raw.port.as_ref(), "port", 1..=u16::MAX),
        backends_port: raw.port.is_none() && nat,
        all_down: scope.choice(
            raw.all_down.as_ref(),
            "all_down",
            &[("keep", AllDown::Keep), ("refuse", AllDown::Refuse)],
        ),
        dead_connections: scope.choice(
            raw.dead_connections.as_ref(),
            "dead_connections",
            &[
                ("keep", DeadConnections::Keep),
                ("move", DeadConnections::Move),
                ("reset", DeadConnections::Reset),
            ],
        ),
        what,
    };
    if raw.enabled.is_some_and(|enabled| !enabled.into_inner()) {
        return None;
    }
    if let (Some(given), Some(Via::Service), What::Script(_) | What::Agent) =
        (&raw.via, check.via, &check.what)
    {
        let wrong = match check.what {
            What::Agent => "an agent asks on its own host",
            _ => "a script makes its connections itself, by this host's own way",
        };
        scope.problem(given.span(), "via", wrong, "remove it, or give another type");
    }
    let interval_known = raw.interval.is_none() || check.interval.is_some();
    let interval = check.interval.unwrap_or(resolve::CHECK_INTERVAL);
    if let (Some(given), Some(timeout), true) = (&raw.timeout, check.timeout, interval_known)
        && timeout >= interval
    {
        let wrong = format!("{:?} is not less than the interval", given.get_ref());
        let show = humantime::format_duration(interval);
        let right = format!("give less than {show}, or a longer interval");
        scope.problem(given.span(), "timeout", wrong, right);
    }
    let protocol = match check.what {
        What::Dns(_) | What::Udp(_) => Some(Protocol::Udp),
        What::Script(_) | What::Agent => None,
        _ => Some(Protocol::Tcp),
    };
    let default_port = match default {
        CheckPort::Default(port, of) if protocol.is_none_or(|protocol| protocol == of) => {
            Some(port)
        }
        _ => None,
    };
    let port = check.port.or(default_port);
    let unknown = matches!(default, CheckPort::Unknown) || !known || raw.port.is_some();
    if let (None, Some(protocol), false) = (port, protocol, unknown) {
        let protocol = if protocol == Protocol::Tcp { "TCP" } else { "UDP" };
        scope.missing(
            "port",
            format!(
                "the service has no {protocol} port of its own: give the {protocol} port to check, \
                 or set enabled = false in [service.check]"
            ),
        );
    }
    Some(Check { port, ..check })
}

/// What a check asks, and whether its type is known: another one stands for it, so that all problems are
/// found.
fn what(raw: &written::Check, scope: &mut Scope<'_, '_>) -> (What, bool) {
    const TYPES: [&str; 9] =
        ["tcp", "http", "https", "grpc", "grpcs", "dns", "udp", "script", "agent"];
    let kinds: Vec<(&str, &str)> = TYPES.iter().map(|kind| (*kind, *kind)).collect();
    let kind = scope.choice(raw.kind.as_ref(), "type", &kinds);
    let known = raw.kind.is_none() || kind.is_some();
    let kind = kind.unwrap_or("tcp");
    if known {
        foreign(raw, kind, scope);
    }
    let what = match kind {
        "http" => What::Http(http(raw, scope)),
        "https" => {
            let http = http(raw, scope);
            let tls = tls(raw, http.host.as_deref(), scope);
            What::Https { http, tls }
        }
        "grpc" => What::Grpc(grpc(raw, scope)),
        "grpcs" => {
            let grpc = grpc(raw, scope);
            let tls = tls(raw, grpc.host.as_deref(), scope);
            What::Grpcs { grpc, tls }
        }
        "dns" => What::Dns(dns(raw, scope)),
        "udp" => What::Udp(Exchange {
            send: bytes(raw.send.as_ref(), raw.send_hex.as_ref(), "send", scope),
            expect: bytes(raw.expect.as_ref(), raw.expect_hex.as_ref(), "expect", scope),
        }),
        "script" => What::Script(script(raw, scope)),
        "agent" => What::Agent,
        _ => What::Tcp,
    };
    (what, known)
}

/// A field, the types that have it, and where it is given.
type Given<'a> = (&'a str, &'a [&'a str], Option<Range<usize>>);

/// A setting of another type would be ignored, which nobody wants.
fn foreign(raw: &written::Check, kind: &str, scope: &mut Scope<'_, '_>) {
    const HTTP: &[&str] = &["http", "https"];
    const HOST: &[&str] = &["http", "https", "grpc", "grpcs"];
    const TLS: &[&str] = &["https", "grpcs"];
    macro_rules! given {
        ($($field:ident: $types:expr),* $(,)?) => {
            [$((stringify!($field), $types, raw.$field.as_ref().map(Spanned::span))),*]
        };
    }
    let fields: [Given<'_>; 22] = given!(
        method: HTTP,
        path: HTTP,
        host: HOST,
        grpc_service: &["grpc", "grpcs"],
        headers: HTTP,
        status: HTTP,
        body: HTTP,
        answer_headers: HTTP,
        weight_header: HTTP,
        weight_body: HTTP,
        sni: TLS,
        verify: TLS,
        ca: TLS,
        expiry_warning: TLS,
        query: &["dns"],
        record: &["dns"],
        send: &["udp"],
        send_hex: &["udp"],
        expect: &["udp"],
        expect_hex: &["udp"],
        command: &["script"],
        user: &["script"],
    );
    for (field, types, span) in fields {
        if let (Some(span), false) = (span, types.contains(&kind)) {
            let types: Vec<String> = types.iter().map(|one| format!("{one:?}")).collect();
            let types = types.join(" or ");
            let wrong = format!("is a setting of checks with type = {types}");
            scope.problem(span, field, wrong, format!("remove it, or set type = {types}"));
        }
    }
}

fn http(raw: &written::Check, scope: &mut Scope<'_, '_>) -> Http {
    let method = text(raw.method.as_ref(), "method", scope, |method| {
        let word =
            (1..=16).contains(&method.len()) && method.bytes().all(|b| b.is_ascii_uppercase());
        (!word || method == "CONNECT").then_some("give one such as GET, HEAD or OPTIONS")
    });
    let method = method.unwrap_or_else(|| "GET".to_owned());
    let path = text(raw.path.as_ref(), "path", scope, |path| {
        let good = path.starts_with('/') && !path.contains('#') && path.len() <= 2048;
        (!good || PathAndQuery::try_from(path).is_err()).then_some(
            "give one that begins with /, such as /healthz, with % before what URLs reserve",
        )
    });
    let host = host(raw, scope);
    let mut headers = |field: &Option<Spanned<BTreeMap<String, String>>>,
                       name: &str,
                       sent: bool| {
        let Some(field) = field else { return BTreeMap::new() };
        for (header, value) in field.get_ref() {
            const OURS: [&str; 6] =
                ["host", "connection", "content-length", "transfer-encoding", "upgrade", "te"];
            let lower = header.to_ascii_lowercase();
            let wrong = if HeaderName::try_from(&lower).is_err() {
                Some((format!("{header:?} is not the name of a header"), "give one such as Accept"))
            } else if sent && OURS.contains(&&*lower) {
                Some((format!("{header:?} is set by the check itself"), "remove it"))
            } else if HeaderValue::from_str(value).is_err() {
                // What it is may be a password, and is not repeated.
                let wrong = format!("what {header:?} is to have is not the value of a header");
                Some((wrong, "use visible characters and spaces"))
            } else {
                None
            };
            if let Some((wrong, right)) = wrong {
                scope.problem(field.span(), name, wrong, right);
            }
        }
        field.get_ref().clone()
    };
    let (sent, wanted) = (
        headers(&raw.headers, "headers", true),
        headers(&raw.answer_headers, "answer_headers", false),
    );
    let body = text(raw.body.as_ref(), "body", scope, |body| {
        let good = (1..=1024).contains(&body.len());
        (!good).then_some("give 1 to 1024 bytes that the body must contain")
    });
    if let (Some(given), "HEAD") = (&raw.body, &*method) {
        let wrong = "an answer to HEAD has no body";
        scope.problem(given.span(), "body", wrong, "remove it, or set method = \"GET\"");
    }
    let weightless = method.clone();
    Http {
        method,
        path: path.unwrap_or_else(|| "/".to_owned()),
        host,
        headers: sent,
        status: status(raw.status.as_ref(), scope),
        body,
        answer_headers: wanted,
        weight: weight_in(raw, &weightless, scope),
    }
}

fn host(raw: &written::Check, scope: &mut Scope<'_, '_>) -> Option<String> {
    text(raw.host.as_ref(), "host", scope, |host| {
        let good = (1..=255).contains(&host.len()) && host.bytes().all(|b| b.is_ascii_graphic());
        (!good).then_some("give one such as www.example.org")
    })
}

fn grpc(raw: &written::Check, scope: &mut Scope<'_, '_>) -> Grpc {
    let service = text(raw.grpc_service.as_ref(), "grpc_service", scope, |name| {
        let good = name.len() <= 255 && name.bytes().all(|byte| byte.is_ascii_graphic());
        (!good)
            .then_some("give the name of a service such as shop.v1.Carts, or \"\" for the server")
    });
    let host = host(raw, scope);
    if let (Some(host), Some(given)) = (&host, &raw.host)
        && Authority::try_from(&**host).is_err()
    {
        let wrong = format!("{host:?} cannot be used");
        scope.problem(given.span(), "host", wrong, "give one such as www.example.org");
    }
    Grpc { service: service.unwrap_or_default(), host }
}

/// Where the answer says a weight. One to HEAD has no body.
fn weight_in(raw: &written::Check, method: &str, scope: &mut Scope<'_, '_>) -> Option<WeightIn> {
    let header = text(raw.weight_header.as_ref(), "weight_header", scope, |name| {
        HeaderName::try_from(name.to_ascii_lowercase())
            .is_err()
            .then_some("give the name of a header, such as X-Weight")
    });
    let body = text(raw.weight_body.as_ref(), "weight_body", scope, |text| {
        (text.len() > 1024)
            .then_some("give at most 1024 bytes that stand before the weight, or \"\" if none do")
    });
    if let (Some(given), "HEAD") = (&raw.weight_body, method) {
        let wrong = "an answer to HEAD has no body";
        scope.problem(
            given.span(),
            "weight_body",
            wrong,
            "give weight_header, or set method = \"GET\"",
        );
    }
    if let (Some(_), Some(given)) = (&raw.weight_header, &raw.weight_body) {
        let wrong = "weight_header says where the weight is already";
        scope.problem(given.span(), "weight_body", wrong, "remove one of them");
    }
    header.map(WeightIn::Header).or(body.map(WeightIn::Body))
}

/// What servers answer that are well: 2xx, and 3xx, which is not followed.
const GOOD: Codes = Codes(200, 399);

fn status(raw: Option<&Spanned<Vec<Spanned<Value>>>>, scope: &mut Scope<'_, '_>) -> Vec<Codes> {
    let right = "give codes of 100 to 599, such as status = [200, \"300-399\"]";
    let Some(raw) = raw else { return vec![GOOD] };
    if raw.get_ref().is_empty() {
        scope.problem(raw.span(), "status", "the list is empty", right);
    }
    let mut codes = Vec::new();
    for one in raw.get_ref() {
        let text = match one.get_ref() {
            Value::Number(code) => code.to_string(),
            Value::Word(text) => text.clone(),
        };
        match Codes::parse(&text) {
            Some(found) => codes.push(found),
            None => {
                scope.problem(one.span(), "status", format!("{text:?} are no status codes"), right);
            }
        }
    }
    codes
}

/// Where Debian, and others, keep the certificates of public authorities.
const CA: &str = "/etc/ssl/certs/ca-certificates.crt";
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

fn tls(raw: &written::Check, host: Option<&str>, scope: &mut Scope<'_, '_>) -> Tls {
    let is_name = |name: &str| ServerName::try_from(name.to_owned()).is_ok();
    let sni = text(raw.sni.as_ref(), "sni", scope, |name| {
        (!is_name(name)).then_some("give a host name such as www.example.org, or an address")
    });
    // The name of the page is that of its server, if it is one.
    let of_host = || {
        let host = host?;
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        [host, name].into_iter().find(|name| is_name(name)).map(str::to_owned)
    };
    let verify = raw.verify.as_ref().is_none_or(|verify| *verify.get_ref());
    let ca = text(raw.ca.as_ref(), "ca", scope, |path| {
        (!Path::new(path).is_absolute()).then_some("give an absolute path")
    });
    if let (Some(given), false) = (&raw.ca, verify) {
        let wrong = "would not be asked: verify = false";
        scope.problem(given.span(), "ca", wrong, "remove one of them");
    }
    let warning = scope.duration(
        raw.expiry_warning.as_ref(),
        "expiry_warning",
        Duration::ZERO..=Duration::from_secs(366 * 24 * 3600),
    );
    Tls {
        sni: sni.or_else(of_host),
        verify,
        ca: PathBuf::from(ca.unwrap_or_else(|| CA.to_owned())),
        expiry_warning: warning.unwrap_or(EXPIRY_WARNING),
    }
}

fn dns(raw: &written::Check, scope: &mut Scope<'_, '_>) -> Dns {
    if raw.query.is_none() {
        scope
            .missing("query", "give a name that the server knows, such as query = \"example.org\"");
    }
    let query = text(raw.query.as_ref(), "query", scope, |name| {
        let label = |label: &str| {
            (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let bare = name.strip_suffix('.').unwrap_or(name);
        let good = name == "." || bare.len() <= 253 && bare.split('.').all(label);
        (!good).then_some("give one such as example.org, or \".\" for the root")
    });
    Dns {
        query: query.unwrap_or_default(),
        record: scope.choice(raw.record.as_ref(), "record", &Record::ALL).unwrap_or(Record::A),
    }
}

/// Bytes, given as text or in hexadecimal.
fn bytes(
    plain: Option<&Spanned<String>>,
    hex: Option<&Spanned<String>>,
    name: &str,
    scope: &mut Scope<'_, '_>,
) -> Vec<u8> {
    const MOST: usize = 1024;
    let either = format!("give {name} as text, or {name}_hex in hexadecimal");
    let (span, field, bytes) = match (plain, hex) {
        (Some(plain), None) => {
            (plain.span(), name.to_owned(), Some(plain.get_ref().clone().into_bytes()))
        }
        (None, Some(hex)) => (hex.span(), format!("{name}_hex"), from_hex(hex.get_ref())),
        (Some(_), Some(hex)) => {
            let wrong = format!("{name} and {name}_hex contradict each other");
            scope.problem(hex.span(), &format!("{name}_hex"), wrong, either);
            return Vec::new();
        }
        (None, None) => {
            scope.missing(name, either);
            return Vec::new();
        }
    };
    match bytes {
        Some(bytes) if (1..=MOST).contains(&bytes.len()) => bytes,
        Some(bytes) => {
            let wrong = format!("{} bytes", bytes.len());
            scope.problem(span, &field, wrong, format!("give 1 to {MOST}"));
            Vec::new()
        }
        None => {
            let right = "give two of 0-9 and a-f for each byte, such as \"00ff\"";
            scope.problem(span, &field, "is not hexadecimal", right);
            Vec::new()
        }
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let pairs = (0..text.len()).step_by(2).map(|at| {
        let pair = text.get(at..at + 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    if digits { pairs.collect() } else { None }
}

fn script(raw: &written::Check, scope: &mut Scope<'_, '_>) -> Script {
    let right = "give the program and its arguments, such as \
                 command = [\"/usr/local/lib/check\", \"{address}\"]";
    let command = match &raw.command {
        Some(command) => {
            let words = command.get_ref();
            let program = words.first().is_some_and(|program| Path::new(program).is_absolute());
            let long = words.len() > 64 || words.iter().any(|word| word.contains('\0'));
            if !program {
                scope.problem(command.span(), "command", "begins with no absolute path", right);
            } else if long {
                let wrong = "has more than 64 words, or a byte 0";
                scope.problem(command.span(), "command", wrong, right);
            }
            words.clone()
        }
        None => {
            scope.missing("command", right);
            Vec::new()
        }
    };
    let user = text(raw.user.as_ref(), "user", scope, |user| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let good = (1..=32).contains(&user.len()) && user.chars().all(plain);
        (!good).then_some("give the name of a user, such as nobody")
    });
    Script { command, user }
}

/// A text that may be wrong, in which case this says what would be right.
fn text(
    field: Option<&Spanned<String>>,
    name: &str,
    scope: &mut Scope<'_, '_>,
    wrong: impl FnOnce(&str) -> Option<&'static str>,
) -> Option<String> {
    let field = field?;
    let text = field.get_ref();
    if let Some(right) = wrong(text) {
        scope.problem(field.span(), name, format!("{text:?} cannot be used"), right);
        return None;
    }
    Some(text.clone())
}
