//! The table `[store]`, and which services several balancers can serve alike.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use weir_fleet::{StoreConfig, TlsFiles};
use weir_steering::cheetah::answered_by_backends;
use weir_steering::jet::PLACEMENT;
use weir_steering::{InFleet, MethodId};

use super::super::error::Problems;
use super::super::{Protocol, States, resolve, written};
use super::Service;
use super::scope::Scope;

const PREFIX: &str = "/weir";
/// Members of an etcd cluster; more are slower and no safer.
const MOST_ENDPOINTS: usize = 16;
/// Longer nobody waits for a balancer that could serve.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// An election in etcd takes a second or two, and is no reason to leave.
const SHORTEST_APART: Duration = Duration::from_secs(5);

/// The store of several balancers, if there is one and its table is whole; and whether one is asked for.
pub(super) fn table(
    raw: Option<Spanned<written::Store>>,
    problems: &mut Problems<'_>,
) -> (Option<StoreConfig>, bool) {
    let Some(raw) = raw else { return (None, false) };
    let mut scope = Scope::new(problems, "store", raw.span());
    let raw = raw.into_inner();
    let kind = scope.choice(raw.kind.as_ref(), "kind", &[("file", false), ("etcd", true)]);
    if raw.kind.is_none() {
        scope.missing("kind", "give \"file\" for one balancer, or \"etcd\" for several");
    }
    match kind {
        Some(true) => (etcd(raw, &mut scope), true),
        Some(false) => {
            of_etcd_alone(&raw, &mut scope);
            (None, false)
        }
        None => (None, false),
    }
}

/// Reports what has no meaning for one balancer.
fn of_etcd_alone(raw: &written::Store, scope: &mut Scope<'_, '_>) {
    let texts = [
        ("prefix", &raw.prefix),
        ("ca", &raw.ca),
        ("certificate", &raw.certificate),
        ("key", &raw.key),
        ("user", &raw.user),
        ("password_file", &raw.password_file),
        ("wait", &raw.wait),
        ("withdraw_after", &raw.withdraw_after),
    ];
    let texts = texts.into_iter().filter_map(|(name, field)| Some((name, field.as_ref()?.span())));
    let endpoints = raw.endpoints.as_ref().map(|field| ("endpoints", field.span()));
    for (name, span) in endpoints.into_iter().chain(texts) {
        scope.problem(span, name, "is not of this kind", "remove it, or set kind = \"etcd\"");
    }
}

fn etcd(raw: written::Store, scope: &mut Scope<'_, '_>) -> Option<StoreConfig> {
    let before = scope.problems();
    let endpoints = endpoints(raw.endpoints, scope);
    let prefix = raw.prefix.as_ref().map_or(PREFIX, |prefix| prefix.get_ref());
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if let Some(given) = &raw.prefix
        && !(prefix.starts_with('/') && prefix.len() > 1 && prefix.chars().all(plain))
    {
        let right = "give one such as \"/weir\", of letters, digits and - _ . /";
        scope.problem(given.span(), "prefix", format!("{prefix:?} is not a prefix of keys"), right);
    }
    let tls = endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
    let mut file = |field: &Option<Spanned<String>>, name: &str, of_tls: bool| {
        let given = field.as_ref()?;
        if of_tls && !tls {
            let wrong = "nothing is encrypted to endpoints with http://";
            scope.problem(given.span(), name, wrong, "write https:// in endpoints, or remove this");
        }
        absolute(given, name, scope)
    };
    let ca = file(&raw.ca, "ca", true);
    let certificate = file(&raw.certificate, "certificate", true);
    let key = file(&raw.key, "key", true);
    let password_file = file(&raw.password_file, "password_file", false);
    let pairs = [
        (&raw.certificate, &raw.key, "key"),
        (&raw.key, &raw.certificate, "certificate"),
        (&raw.user, &raw.password_file, "password_file"),
        (&raw.password_file, &raw.user, "user"),
    ];
    for (given, other, name) in pairs {
        if given.is_some() && other.is_none() {
            scope.missing(name, "the two belong together");
        }
    }
    let wait = scope.duration(raw.wait.as_ref(), "wait", Duration::ZERO..=LONGEST_WAIT);
    let withdraw_after = scope.duration(
        raw.withdraw_after.as_ref(),
        "withdraw_after",
        SHORTEST_APART..=Duration::from_secs(3600),
    );
    (scope.problems() == before).then(|| StoreConfig {
        endpoints,
        prefix: prefix.trim_end_matches('/').to_owned(),
        tls: TlsFiles { ca, certificate, key },
        user: raw.user.map(Spanned::into_inner),
        password_file,
        wait: wait.unwrap_or(resolve::STORE_WAIT),
        withdraw_after,
    })
}

fn endpoints(raw: Option<Spanned<Vec<Spanned<String>>>>, scope: &mut Scope<'_, '_>) -> Vec<String> {
    let example = "name at least one, such as endpoints = [\"https://10.0.0.9:2379\"]";
    let Some(raw) = raw else {
        scope.missing("endpoints", example);
        return Vec::new();
    };
    match raw.get_ref().len() {
        0 => scope.problem(raw.span(), "endpoints", "the list is empty", example),
        many if many > MOST_ENDPOINTS => {
            let right = format!("give up to {MOST_ENDPOINTS}");
            scope.problem(raw.span(), "endpoints", format!("{many} are too many"), right);
        }
        _ => {}
    }
    let mut all: Vec<String> = Vec::new();
    for one in raw.into_inner() {
        let text = one.get_ref().as_str();
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let good = rest.and_then(|rest| rest.rsplit_once(':')).is_some_and(|(host, port)| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
            let port = port.parse::<u16>().is_ok_and(|port| port != 0);
            port && !host.is_empty() && host.chars().all(plain)
        });
        if !good {
            let wrong = format!("{text:?} is not where an etcd is");
            let right =
                "give one such as \"https://10.0.0.9:2379\", with http:// or https:// and a port";
            scope.problem(one.span(), "endpoints", wrong, right);
        } else if all.iter().any(|other| other == text) {
            let wrong = format!("{text:?} is listed twice");
            scope.problem(one.span(), "endpoints", wrong, "remove one");
        } else if all
            .first()
            .is_some_and(|first| first.starts_with("https") != text.starts_with("https"))
        {
            let wrong = "some are encrypted and some are not";
            scope.problem(
                one.span(),
                "endpoints",
                wrong,
                "write http:// or https:// in all of them",
            );
        } else {
            all.push(text.to_owned());
        }
    }
    all
}

fn absolute(given: &Spanned<String>, name: &str, scope: &mut Scope<'_, '_>) -> Option<PathBuf> {
    let path = Path::new(given.get_ref());
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let wrong = format!("{:?} is not an absolute path", given.get_ref());
    scope.problem(given.span(), name, wrong, "give one such as /etc/weir/pki/ca.pem");
    None
}

/// Whether balancers of a fleet have to change its pools in step.
fn in_step(method: MethodId) -> bool {
    method.info().in_fleet != InFleet::Alone
}

/// Why several balancers cannot serve a service alike, and what they could.
fn alone(service: &Service) -> Option<(&'static str, &'static str, &'static str)> {
    let settings = service.method.settings();
    Some(match service.method.id() {
        method if in_step(method) && service.protocol != Protocol::Tcp => (
            "method",
            "no agent tells of flows without connections, so that no balancer can know those of the others",
            "take \"jet\", \"tracked\" or \"cheetah\" for it",
        ),
        method if in_step(method) && service.states != Some(States::Agents) => (
            "states",
            "each balancer sees the connections that come by it, and a change of the pool has to know all",
            "set states = \"agents\", with weir agent on the backends",
        ),
        MethodId::CheetahStateful => (
            "method",
            "its cookies name places in one balancer's memory",
            "take method = \"cheetah\" in the fleet, with tier_bits before balancers that are not of it",
        ),
        MethodId::Cheetah if !answered_by_backends(settings) => (
            "answers",
            "answers pass one balancer, which keeps what it has written over in them; another one does not \
             know it",
            "set answers = \"backend\", with weir agent on the backends",
        ),
        MethodId::Jet if settings.word(PLACEMENT) == Some("anchor") => (
            "placement",
            "AnchorHash goes by the order of all changes, those of health included, which every balancer sees \
             in an order of its own",
            "take \"table\" or \"ring\"",
        ),
        _ if service.forward.is_full_nat() => (
            "forward",
            "a mapping of full NAT is known to one balancer alone, so that connections which come to another \
             one break",
            "take a tunnel, \"l2\" or \"nat\"",
        ),
        _ => return None,
    })
}

/// Reports services that several balancers would not serve alike.
pub(super) fn serve_a_fleet(
    services: &[Service],
    places: &[Range<usize>],
    problems: &mut Problems<'_>,
) {
    for (service, place) in services.iter().zip(places) {
        if let Some((field, wrong, right)) = alone(service) {
            let field = format!("service {:?}: {field}", service.name);
            problems.add(place.clone(), field, wrong, format!("{right} (docs/fleet.md)"));
        }
    }
}
