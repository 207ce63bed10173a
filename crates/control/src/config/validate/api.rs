//! `[api]`, and where the page for browsers is served.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Spanned;

use super::super::api::{Api, ApiTls, Client, Identity, Role, Web};
use super::super::error::Problems;
use super::super::written;
use super::scope::Scope;

const ROLES: [(&str, Role); 3] =
    [("read", Role::Read), ("operate", Role::Operate), ("admin", Role::Admin)];
/// More is a mistake, and each is looked at for every request.
const MOST_CLIENTS: usize = 1024;

/// An address with a port.
pub(super) fn address(
    field: Option<&Spanned<String>>,
    name: &str,
    example: &str,
    scope: &mut Scope<'_, '_>,
) -> Option<SocketAddr> {
    let field = field?;
    let parsed = field.get_ref().parse::<SocketAddr>().ok();
    let good = parsed.filter(|address| address.port() != 0);
    if good.is_none() {
        scope.problem(
            field.span(),
            name,
            format!("{:?} is not an address with a port", field.get_ref()),
            format!("give one such as {example}"),
        );
    }
    good
}

/// The page of `[balancer]`.
pub(super) fn web(raw: &written::Balancer, scope: &mut Scope<'_, '_>) -> Option<Web> {
    let example = "\"127.0.0.1:8080\" or \"[::1]:8080\"";
    let listen = address(raw.web.as_ref(), "web", example, scope);
    let role = scope.choice(raw.web_role.as_ref(), "web_role", &ROLES[..2]);
    let hosts = hosts(raw, scope);
    for (field, name) in [
        (raw.web_role.as_ref().map(Spanned::span), "web_role"),
        (raw.web_hosts.as_ref().map(Spanned::span), "web_hosts"),
    ] {
        if let (Some(span), None) = (field, &raw.web) {
            scope.problem(span, name, "there is no page without web", "set web, or remove this");
        }
    }
    let listen = listen?;
    if let (Some(Role::Operate), false) = (role, listen.ip().is_loopback())
        && let Some(field) = &raw.web_role
    {
        scope.problem(
            field.span(),
            "web_role",
            format!("whoever reaches {listen} could change the pools, unknown and unencrypted"),
            "serve the page on a loopback address, or by TLS with [api] listen",
        );
        return None;
    }
    Some(Web { listen, role: role.unwrap_or(Role::Read), hosts })
}

fn hosts(raw: &written::Balancer, scope: &mut Scope<'_, '_>) -> Vec<String> {
    let mut hosts = Vec::new();
    for host in raw.web_hosts.iter().flat_map(|hosts| hosts.get_ref()) {
        let name = host.get_ref();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if (1..=253).contains(&name.len()) && name.chars().all(plain) {
            hosts.push(name.to_ascii_lowercase());
        } else {
            scope.problem(
                host.span(),
                "web_hosts",
                format!("{name:?} is not the name of a host"),
                "give names such as \"lb1.example.org\", without a port",
            );
        }
    }
    hosts
}

/// `[api]`.
pub(super) fn api(raw: Option<Spanned<written::Api>>, problems: &mut Problems<'_>) -> Api {
    let Some(raw) = raw else { return Api::default() };
    let mut scope = Scope::new(problems, "api", raw.span());
    let raw = raw.into_inner();
    let listen = address(raw.listen.as_ref(), "listen", "\"192.0.2.1:9443\"", &mut scope);
    let files = [
        ("certificate", raw.certificate.as_ref()),
        ("key", raw.key.as_ref()),
        ("client_ca", raw.client_ca.as_ref()),
    ];
    let [certificate, key, client_ca] = files.map(|(name, field)| {
        let path = path(field, name, &mut scope);
        if let (Some(_), None) = (&raw.listen, field) {
            scope.missing(name, "listen needs certificate, key and client_ca");
        }
        if let (None, Some(field)) = (&raw.listen, field) {
            let words = "nothing is served by TLS without listen";
            scope.problem(field.span(), name, words, "set listen, or remove this");
        }
        path
    });
    let tls = match (listen, certificate, key, client_ca) {
        (Some(listen), Some(certificate), Some(key), Some(client_ca)) => {
            Some(ApiTls { listen, certificate, key, client_ca })
        }
        _ => None,
    };
    let audit = path(raw.audit.as_ref(), "audit", &mut scope);
    let socket_group = raw.socket_group.filter(|group| {
        let good = is_account(group.get_ref());
        if !good {
            let wrong = format!("{:?} is not the name of a group", group.get_ref());
            scope.problem(group.span(), "socket_group", wrong, "give one such as \"weir\"");
        }
        good
    });
    let given = raw.client.len();
    let clients: Vec<Client> = raw
        .client
        .into_iter()
        .enumerate()
        .filter_map(|(at, raw)| client(raw, at, &mut scope))
        .collect();
    if given > MOST_CLIENTS {
        let wrong = format!("{given} clients");
        scope.here("client", wrong, format!("give at most {MOST_CLIENTS}"));
    }
    Api { tls, socket_group: socket_group.map(Spanned::into_inner), audit, clients }
}

fn path(field: Option<&Spanned<String>>, name: &str, scope: &mut Scope<'_, '_>) -> Option<PathBuf> {
    let field = field?;
    let path = PathBuf::from(field.get_ref());
    if path.is_absolute() {
        return Some(path);
    }
    scope.problem(
        field.span(),
        name,
        format!("{:?} is not an absolute path", field.get_ref()),
        format!("give one such as /etc/weir/{name}.pem"),
    );
    None
}

fn is_account(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=32).contains(&name.len()) && name.chars().all(plain)
}

fn client(
    raw: Spanned<written::ApiClient>,
    at: usize,
    scope: &mut Scope<'_, '_>,
) -> Option<Client> {
    let span = raw.span();
    let raw = raw.into_inner();
    let mut scope = scope.inner(&format!("client {}", at + 1), span);
    let role = scope.choice(raw.role.as_ref(), "role", &ROLES);
    if raw.role.is_none() {
        scope.missing("role", "give one of read, operate, admin");
    }
    let who = match (raw.certificate, raw.user, raw.group) {
        (Some(name), None, None) => {
            let good = !name.get_ref().is_empty() && name.get_ref().len() <= 256;
            if !good {
                let wrong = format!("{:?} is not a name in a certificate", name.get_ref());
                scope.problem(name.span(), "certificate", wrong, "give its common name, or \"*\"");
            }
            good.then(|| Identity::Certificate(name.into_inner()))
        }
        (None, Some(name), None) => account(name, "user", &mut scope).map(Identity::User),
        (None, None, Some(name)) => account(name, "group", &mut scope).map(Identity::Group),
        _ => {
            let right = "give one of certificate, user and group";
            scope.here("", "it does not say who, or says it twice", right);
            None
        }
    };
    Some(Client { who: who?, role: role? })
}

fn account(name: Spanned<String>, field: &str, scope: &mut Scope<'_, '_>) -> Option<String> {
    if is_account(name.get_ref()) {
        return Some(name.into_inner());
    }
    let wrong = format!("{:?} is not the name of a {field}", name.get_ref());
    scope.problem(name.span(), field, wrong, "letters, digits and - _ .");
    None
}
