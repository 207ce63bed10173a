//! What stands before every request: who asks, whether they may, whether a browser asks for a stranger,
//! how much they send and how long it takes; and after those that change something, the audit log.

use super::access::{Caller, Way};
use super::audit::{Audit, Record};
use super::openapi::BODY as USUAL_BODY;
use super::server::Working;
use super::{Failure, Refusal, Same};
use crate::certificates::warning;
use crate::config::Role;
use crate::engine::{Front, Kind, Status};
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Bytes;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// For all of a request's body.
const BODY: Duration = Duration::from_secs(10);
/// For an answer to begin. What changes something goes on all the same.
const ANSWER: Duration = Duration::from_secs(60);
/// Bytes of a body that the audit log repeats.
const SHORT: usize = 1024;
/// The log of what has changed something, in the state directory.
pub(super) const AUDIT: &str = "audit.log";
/// The header that no form and no link of another site can send.
pub(super) const HEADER: &str = "x-weir";

/// What all requests have in common.
#[derive(Debug)]
pub(crate) struct Common {
    /// What the configuration says.
    pub(super) front: watch::Receiver<Front>,
    pub(super) audit: Arc<Audit>,
    /// Why the socket is its owner's only, where a group was to have it.
    pub(super) unshared: Mutex<Option<String>>,
    /// Why the API, or the page, is not where the file says.
    unserved: Mutex<BTreeMap<&'static str, String>>,
    /// When the certificate ends that is shown by TLS.
    own_ends: Mutex<Option<i64>>,
}

/// What a kind of request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// The least role that may ask for it.
    pub role: Role,
    /// It changes something, and is written down.
    pub changes: bool,
    /// It is a measurement that comes all the time: only its refusal is written down.
    pub often: bool,
    /// Bytes of a body.
    pub most: usize,
    /// The body is not repeated: it may have keys in it.
    pub private: bool,
}

#[derive(Clone)]
pub(super) struct Gate {
    pub common: Arc<Common>,
    pub rule: Rule,
}

impl Common {
    /// Of an instance with this state directory.
    pub fn new(state_dir: &Path, front: watch::Receiver<Front>) -> Self {
        let audit = Arc::new(Audit::new(state_dir.join(AUDIT)));
        Self {
            front,
            audit,
            unshared: Mutex::default(),
            unserved: Mutex::default(),
            own_ends: Mutex::default(),
        }
    }

    /// Why something is not served, or that it is.
    pub(crate) fn say_of(&self, what: &'static str, why: Option<String>) {
        let mut unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => drop(unserved.insert(what, why)),
            None => drop(unserved.remove(what)),
        }
    }

    /// When the certificate ends that is shown by TLS, if one is.
    pub(super) fn own_ends_at(&self, ends: Option<i64>) {
        *self.own_ends.lock().unwrap_or_else(PoisonError::into_inner) = ends;
    }

    /// What there is to say of that certificate.
    pub(super) fn ending(&self) -> Option<String> {
        let ends = *self.own_ends.lock().unwrap_or_else(PoisonError::into_inner);
        let said = warning("the certificate of the API by TLS", ends?)?;
        Some(format!("{said}: renew {}, and weir reload", self.certificate()))
    }

    /// The file of it.
    fn certificate(&self) -> String {
        let front = self.front.borrow();
        let file = front.api.tls.as_ref().map(|tls| tls.certificate.display().to_string());
        file.unwrap_or_else(|| "it".into())
    }

    /// The status with what an operator should know of the API itself.
    pub async fn complete(self: Arc<Self>, mut status: Status) -> Status {
        status.api_certificate_ends = *self.own_ends.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have to open a file.
        let more = tokio::task::spawn_blocking(move || self.warnings()).await;
        status.warnings.extend(more.unwrap_or_default());
        status
    }

    fn warnings(&self) -> Vec<String> {
        let unshared = self.unshared.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        let unserved: Vec<String> = unserved.values().cloned().collect();
        let more = unserved.into_iter().chain(self.ending()).chain(self.audit.trouble());
        unshared.into_iter().chain(more).collect()
    }

    /// What somebody may do now.
    pub(super) fn role(&self, caller: &Caller) -> Option<Role> {
        let front = self.front.borrow();
        caller.role(&front.api.clients, front.web.as_ref().map(|web| web.role))
    }
}

pub(super) async fn guard(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let Some(caller) = parts.extensions.get::<Caller>().cloned() else {
        return Failure(Kind::Forbidden, "it is not known who asks".into()).into_response();
    };
    let mut told = Told::of(&parts);
    if let Err(words) = gate.admits(&caller, &parts) {
        gate.record(&caller, told, StatusCode::FORBIDDEN, words.clone()).await;
        return Failure(Kind::Forbidden, words).into_response();
    }
    let (body, _working) = match taken(&mut parts, body, gate.most(&caller)).await {
        Ok(taken) => taken,
        Err((status, words)) => return refuse(status, words),
    };
    if !gate.rule.changes {
        let answer = next.run(Request::from_parts(parts, Body::from(body)));
        let answer = timeout(ANSWER, answer).await.unwrap_or_else(|_| {
            Failure(Kind::Busy, "weir has not answered in time".into()).into_response()
        });
        // Some of what looks only needs another role by what it looks at.
        if answer.status() == StatusCode::FORBIDDEN {
            let (parts, body) = answer.into_parts();
            let body = to_bytes(body, SHORT).await.unwrap_or_default();
            gate.record(&caller, told, parts.status, outcome(&body)).await;
            return Response::from_parts(parts, Body::from(body));
        }
        return answer;
    }
    told.body = (!gate.rule.private && body.len() <= SHORT).then(|| body.clone());
    // Whoever asks may hang up: what was asked for is done and written down.
    let done = tokio::spawn(async move {
        let answer = next.run(Request::from_parts(parts, Body::from(body))).await;
        let (parts, body) = answer.into_parts();
        let body = to_bytes(body, gate.rule.most).await.unwrap_or_default();
        told.same = parts.extensions.get::<Same>().is_some();
        if !(gate.rule.often && parts.status.is_success()) {
            gate.record(&caller, told, parts.status, outcome(&body)).await;
        }
        Response::from_parts(parts, Body::from(body))
    });
    match timeout(ANSWER, done).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Failure(Kind::Failed, "weir has failed at it".into()).into_response(),
        Err(_) => {
            let words = "it is not done yet; the history tells when it is";
            Failure(Kind::Failed, words.into()).into_response()
        }
    }
}

/// All of a body, and what says that the request is worked at from now on. Whoever sends slowly is not
/// worked for, and goes first when there is no place left.
///
/// # Errors
/// HTTP's status, and why.
pub(super) async fn taken(
    parts: &mut Parts,
    body: Body,
    most: usize,
) -> Result<(Bytes, Option<Working>), (StatusCode, String)> {
    let idle = parts.extensions.remove::<Working>().map(|working| working.rest());
    let body = match timeout(BODY, to_bytes(body, most)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let words = format!("the body has more than {most} bytes, or has ended early");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, words));
        }
        Err(_) => {
            let words = format!("the body did not come within {} seconds", BODY.as_secs());
            return Err((StatusCode::REQUEST_TIMEOUT, words));
        }
    };
    let working = idle.and_then(|idle| idle.again());
    if let Some(working) = &working {
        parts.extensions.insert(working.clone());
    }
    Ok((body, working))
}

/// What an answer says, as a sentence.
fn outcome(body: &[u8]) -> String {
    let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let words = answer.get("done").or_else(|| answer.get("error"));
    words.and_then(|words| words.as_str()).unwrap_or_default().to_owned()
}

/// A refusal that is HTTP's own.
pub(super) fn refuse(status: StatusCode, error: String) -> Response {
    (status, Json(Refusal { error, kind: Kind::Invalid })).into_response()
}

/// The call of gRPC that a request stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call(pub &'static str);

/// What the audit log says of a request.
pub(super) struct Told {
    method: String,
    path: String,
    call: Option<&'static str>,
    body: Option<Bytes>,
    /// What was asked for was so already.
    same: bool,
}

impl Told {
    pub fn of(parts: &Parts) -> Self {
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let call = parts.extensions.get::<Call>().map(|call| call.0);
        Self {
            method: parts.method.to_string(),
            path: path.to_owned(),
            call,
            body: None,
            same: false,
        }
    }
}

impl Gate {
    /// Bytes of a body that somebody may send: as many as a file has only who may put one in force.
    pub fn most(&self, caller: &Caller) -> usize {
        match self.common.role(caller) {
            Some(Role::Admin) => self.rule.most,
            _ => self.rule.most.min(USUAL_BODY),
        }
    }

    /// # Errors
    /// Why not.
    pub fn admits(&self, caller: &Caller, parts: &Parts) -> Result<(), String> {
        let name = &caller.who.name;
        let needed = self.rule.role;
        match self.common.role(caller) {
            Some(role) if role >= needed => {}
            Some(role) => {
                return Err(format!(
                    "{name} has the role {}, and this needs {}",
                    role.name(),
                    needed.name()
                ));
            }
            None => return Err(format!("{name} has no role here ([[api.client]])")),
        }
        if caller.way == Way::Socket {
            return Ok(());
        }
        if caller.way == Way::Web {
            let front = self.common.front.borrow();
            let hosts = front.web.as_ref().map_or(&[][..], |web| &web.hosts);
            let host = host(parts);
            if !host.is_some_and(|host| is_ours(host, hosts)) {
                return Err(format!(
                    "{:?} is no name of this host: ask by its address, or name it in web_hosts",
                    host.unwrap_or_default()
                ));
            }
        }
        from_no_other_site(&parts.headers, host(parts).unwrap_or_default())?;
        if self.rule.changes && !parts.headers.contains_key(HEADER) {
            return Err(
                "what changes something needs the header X-Weir: 1 here, which no other site \
                        can have a browser send"
                    .into(),
            );
        }
        Ok(())
    }

    pub async fn record(&self, caller: &Caller, told: Told, status: StatusCode, outcome: String) {
        let audit = Arc::clone(&self.common.audit);
        let role = self.common.role(caller).map(Role::name);
        let caller = caller.clone();
        // Files may take their time.
        let written = tokio::task::spawn_blocking(move || {
            let body = told.body.as_deref().and_then(|body| std::str::from_utf8(body).ok());
            audit.write(Record {
                role,
                method: &told.method,
                path: &told.path,
                call: told.call,
                body: body.filter(|body| !body.is_empty()),
                status: status.as_u16(),
                outcome: &outcome,
                same: told.same,
                ..Record::new(&caller.who, caller.from)
            });
        });
        let _ = written.await;
    }
}

/// The host that is asked for, with its port.
fn host(parts: &Parts) -> Option<&str> {
    let named = parts.uri.authority().map(|authority| authority.as_str());
    named.or_else(|| parts.headers.get(HOST)?.to_str().ok())
}

/// Whether a host is one that no other site can have a browser take for this one: a name that it owns could
/// be led to this address, an address cannot.
fn is_ours(host: &str, hosts: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else { return false };
            return address.parse::<IpAddr>().is_ok() && (port.is_empty() || port.starts_with(':'));
        }
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.to_ascii_lowercase();
    name.parse::<IpAddr>().is_ok() || name == "localhost" || hosts.contains(&name)
}

/// What browsers say of who has them ask.
fn from_no_other_site(headers: &HeaderMap, host: &str) -> Result<(), String> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = text("sec-fetch-site")
        && !["same-origin", "none"].contains(&site)
        // A link to the page itself is fine.
        && text("sec-fetch-mode") != Some("navigate")
    {
        return Err("another site has a browser ask for this".into());
    }
    if let Some(origin) = text(ORIGIN.as_str()) {
        let own = origin.split_once("://").is_some_and(|(_, own)| own.eq_ignore_ascii_case(host));
        if !own {
            return Err(format!("the site {origin:?} has a browser ask for this"));
        }
    }
    Ok(())
}

/// Refusals that are not the API's own (a path that there is not, a method that a path has not) become such.
pub(super) async fn typed(request: Request, next: Next) -> Response {
    let answer = next.run(request).await;
    let status = answer.status();
    let json = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if json || !(status.is_client_error() || status.is_server_error()) {
        return answer;
    }
    let (mut parts, body) = answer.into_parts();
    let said = to_bytes(body, SHORT).await.unwrap_or_default();
    let words = match String::from_utf8_lossy(&said).into_owned() {
        words if !words.is_empty() => words,
        _ => status.canonical_reason().unwrap_or("it was refused").to_ascii_lowercase(),
    };
    let kind = match status {
        StatusCode::NOT_FOUND => Kind::NotFound,
        status if status.is_client_error() => Kind::Invalid,
        _ => Kind::Failed,
    };
    let typed = (status, Json(Refusal { error: words, kind })).into_response();
    let (own, body) = typed.into_parts();
    parts.headers.extend(own.headers);
    Response::from_parts(parts, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_nobody_else_owns_are_ours() {
        let hosts = ["lb1.example.org".to_owned()];
        for good in [
            "127.0.0.1:8080",
            "127.0.0.1",
            "[::1]:8080",
            "[::1]",
            "localhost:9",
            "LOCALHOST",
            "192.0.2.1:80",
            "lb1.example.org:8080",
            "LB1.example.org",
        ] {
            assert!(is_ours(good, &hosts), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[::1].evil.example",
            "[::1",
            "lb1.example.org.evil.example:80",
        ] {
            assert!(!is_ours(bad, &hosts), "{bad}");
        }
    }

    #[test]
    fn other_sites_are_told_by_what_browsers_say() {
        let headers = |all: &[(&'static str, &'static str)]| -> HeaderMap {
            let value = |(name, value): &(&'static str, &'static str)| {
                ((*name).parse().expect("a name"), value.parse().expect("a value"))
            };
            all.iter().map(value).collect()
        };
        let host = "127.0.0.1:8080";
        for good in [
            &[][..],
            &[("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:8080")],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")],
        ] {
            assert!(from_no_other_site(&headers(good), host).is_ok(), "{good:?}");
        }
        for bad in [
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")][..],
            &[("sec-fetch-site", "same-site")],
            &[("origin", "http://127.0.0.1:8081")],
            &[("origin", "null")],
            &[("origin", "http://evil.example")],
        ] {
            assert!(from_no_other_site(&headers(bad), host).is_err(), "{bad:?}");
        }
    }
}
