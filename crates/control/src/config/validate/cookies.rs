//! Keys of cookies that change under connections.

use toml::Spanned;
use weir_steering::MethodId;
use weir_steering::cheetah::{COOKIE_KEYS, answered_by_backends, numbers};

use super::super::written;
use super::super::{CookieKeys, Key, Method, Protocol};
use super::scope::Scope;

/// Why a service cannot have keys that change, and what it could do.
fn wrong(method: &Method, protocol: Protocol) -> Option<(String, &'static str)> {
    let name = method.name();
    match method.id() {
        MethodId::Cheetah if protocol != Protocol::Tcp => Some((
            "cookies stand in timestamps of TCP, and this service has none".into(),
            "remove it, or set protocol = \"tcp\"",
        )),
        MethodId::Cheetah if !answered_by_backends(method.settings()) => Some((
            "what the balancer remembers of a connection whose answers it writes does not say under which key its \
             cookie is"
                .into(),
            "set answers = \"backend\", with weir agent on the backends",
        )),
        MethodId::Cheetah => None,
        MethodId::CheetahStateful => Some((
            "a cookie of cheetah-stateful leads nowhere but to a slot that has the flow's own hash, whoever knows \
             the key"
                .into(),
            "remove it, or set method = \"cheetah\"",
        )),
        _ => Some((format!("{name} has no cookies"), "remove it, or set method = \"cheetah\"")),
    }
}

/// What cookies are hidden under, where that may change under connections.
pub(super) fn keys(
    raw: &written::Service,
    method: Option<&Method>,
    protocol: Protocol,
    scope: &mut Scope<'_, '_>,
) -> Option<CookieKeys> {
    let method = method?;
    let Some(given) = &raw.cookie_keys else {
        if let Some(issue) = &raw.issue_key {
            let right = "give cookie_keys, or remove it";
            scope.problem(issue.span(), "issue_key", "there are no keys to choose from", right);
        }
        return None;
    };
    if let Some((wrong, right)) = wrong(method, protocol) {
        scope.problem(given.span(), "cookie_keys", wrong, right);
        return None;
    }
    let list = given.get_ref();
    if !(1..=COOKIE_KEYS).contains(&list.len()) {
        let wrong = format!("{} keys: a cookie tells {COOKIE_KEYS} apart", list.len());
        scope.problem(given.span(), "cookie_keys", wrong, "give one or two, by their numbers");
        return None;
    }
    let most = numbers(method.settings()) as usize / 2;
    if raw.backend.len() > most {
        let wrong = format!("a cookie with a bit for its key tells {most} backends apart");
        scope.problem(given.span(), "cookie_keys", wrong, "split the service, or remove it");
        return None;
    }
    let issue = scope.integer(raw.issue_key.as_ref(), "issue_key", 0..=1u8);
    let issue = if raw.issue_key.is_some() { issue? } else { 0 };
    let mut keys = [None, None];
    for (key, text) in keys.iter_mut().zip(list) {
        *key = one(text, scope)?;
    }
    if keys[usize::from(issue)].is_none() {
        let span = raw.issue_key.as_ref().map_or(given.span(), Spanned::span);
        let wrong = format!("cookie_keys has no key {issue} that could issue");
        scope.problem(span, "issue_key", wrong, "name a key that there is");
        return None;
    }
    if keys[0] == keys[1] {
        let right = "draw another one, such as `openssl rand -hex 16` prints";
        scope.problem(given.span(), "cookie_keys", "both keys are the same", right);
        return None;
    }
    Some(CookieKeys { keys, issue })
}

/// A key; or none, where the text is empty.
fn one(text: &Spanned<String>, scope: &mut Scope<'_, '_>) -> Option<Option<Key>> {
    if text.get_ref().is_empty() {
        return Some(None);
    }
    let key = Key::from_hex(text.get_ref());
    if key.is_none() {
        // What is there may be most of a secret.
        let right = "give 32 of 0-9 and a-f, such as `openssl rand -hex 16` prints";
        scope.problem(text.span(), "cookie_keys", "is not 16 bytes in hexadecimal", right);
    }
    key.map(Some)
}
