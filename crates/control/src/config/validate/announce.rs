//! Validation of what is announced.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
use weir_announce::{Attributes, Community, SpeakerConfig};

use super::super::error::Problems;
use super::super::{Announce, written};
use super::scope::Scope;

const GOBGP: &str = "127.0.0.1:50051";
const BIRD: &str = "/run/bird/bird.ctl";
const FILE: &str = "/run/weir/bird.conf";
const LEARN_DELAY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gobgp,
    Bird,
    None,
}

const KINDS: &[(&str, Kind)] =
    &[("gobgp", Kind::Gobgp), ("bird", Kind::Bird), ("none", Kind::None)];

/// What the file says of announcing; none if it says nothing.
pub(super) fn validate(
    raw: Option<Spanned<written::Announce>>,
    problems: &mut Problems<'_>,
) -> Option<Announce> {
    let raw = raw?;
    let mut scope = Scope::new(problems, "announce", raw.span());
    let raw = raw.into_inner();
    if raw.speaker.is_none() {
        scope.missing("speaker", "give one of gobgp, bird, none");
    }
    let kind = scope.choice(raw.speaker.as_ref(), "speaker", KINDS);
    of_another(&raw, kind, &mut scope);
    let attributes = Attributes {
        next_hop: parsed(raw.next_hop.as_ref(), "next_hop", "an IPv4 address", &mut scope),
        next_hop6: parsed(raw.next_hop6.as_ref(), "next_hop6", "an IPv6 address", &mut scope),
        communities: communities(raw.communities, &mut scope),
        med: scope.integer(raw.med.as_ref(), "med", 0..=u32::MAX),
    };
    let api = raw.api.as_ref().map_or(Some(GOBGP.to_owned()), |api| gobgp_at(api, &mut scope));
    let socket = path(raw.socket.as_ref(), "socket", BIRD, &mut scope);
    let file = path(raw.file.as_ref(), "file", FILE, &mut scope);
    let hour = Duration::from_secs(3600);
    let learn_delay =
        scope.duration(raw.learn_delay.as_ref(), "learn_delay", Duration::ZERO..=hour);
    let at_stop =
        scope.choice(raw.at_stop.as_ref(), "at_stop", &[("keep", false), ("withdraw", true)]);
    let speaker = match kind? {
        Kind::Gobgp => SpeakerConfig::Gobgp { api: api?, attributes },
        Kind::Bird => SpeakerConfig::Bird { socket: socket?, file: file?, attributes },
        Kind::None => SpeakerConfig::None,
    };
    Some(Announce {
        speaker,
        learn_delay: learn_delay.unwrap_or(LEARN_DELAY),
        withdraw_at_stop: at_stop.unwrap_or(false),
    })
}

/// Reports what only another speaker has.
fn of_another(raw: &written::Announce, kind: Option<Kind>, scope: &mut Scope<'_, '_>) {
    let Some(kind) = kind else { return };
    let texts = [
        (&raw.api, "api", Kind::Gobgp),
        (&raw.socket, "socket", Kind::Bird),
        (&raw.file, "file", Kind::Bird),
    ];
    for (field, name, of) in texts {
        if let Some(field) = field.as_ref().filter(|_| kind != of) {
            let word = KINDS.iter().find(|(_, one)| *one == of).map_or("", |(word, _)| *word);
            let right = format!("remove it, or set speaker = \"{word}\"");
            scope.problem(field.span(), name, "is not of this speaker", right);
        }
    }
    let told = [
        (raw.next_hop.as_ref().map(Spanned::span), "next_hop"),
        (raw.next_hop6.as_ref().map(Spanned::span), "next_hop6"),
        (raw.communities.as_ref().map(Spanned::span), "communities"),
        (raw.med.as_ref().map(Spanned::span), "med"),
    ];
    for (span, name) in told {
        if let Some(span) = span.filter(|_| kind == Kind::None) {
            let right = "remove it, or name a speaker";
            scope.problem(span, name, "is told to nobody", right);
        }
    }
}

fn parsed<T: FromStr>(
    raw: Option<&Spanned<String>>,
    field: &str,
    what: &str,
    scope: &mut Scope<'_, '_>,
) -> Option<T> {
    let raw = raw?;
    let found = raw.get_ref().parse().ok();
    if found.is_none() {
        let wrong = format!("{:?} is not {what}", raw.get_ref());
        scope.problem(raw.span(), field, wrong, "give one, or leave it to the speaker");
    }
    found
}

fn communities(
    raw: Option<Spanned<Vec<Spanned<String>>>>,
    scope: &mut Scope<'_, '_>,
) -> Vec<Community> {
    // As many as a message of BGP has room for beside everything else.
    const MOST: usize = 64;
    let Some(raw) = raw else { return Vec::new() };
    if raw.get_ref().len() > MOST {
        let wrong = format!("{} communities are too many", raw.get_ref().len());
        scope.problem(raw.span(), "communities", wrong, format!("give up to {MOST}"));
    }
    let mut all = Vec::new();
    for one in raw.into_inner() {
        match one.get_ref().parse::<Community>() {
            Ok(community) if all.contains(&community) => {
                let wrong = format!("{community} is listed twice");
                scope.problem(one.span(), "communities", wrong, "remove one");
            }
            Ok(community) => all.push(community),
            Err(_) => {
                let wrong = format!("{:?} is not a community", one.get_ref());
                let right = "give two numbers of 0 to 65535, such as \"65000:100\"";
                scope.problem(one.span(), "communities", wrong, right);
            }
        }
    }
    all
}

/// `host:port`, or `unix:` and an absolute path.
fn gobgp_at(raw: &Spanned<String>, scope: &mut Scope<'_, '_>) -> Option<String> {
    let text = raw.get_ref();
    let good = match text.strip_prefix("unix:") {
        Some(path) => path.starts_with('/'),
        None => text.rsplit_once(':').is_some_and(|(host, port)| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
            !host.is_empty()
                && host.chars().all(plain)
                && port.parse::<u16>().is_ok_and(|port| port != 0)
        }),
    };
    if !good {
        let wrong = format!("{text:?} is not a place");
        let right = format!("give one such as \"{GOBGP}\" or \"unix:/run/gobgpd.sock\"");
        scope.problem(raw.span(), "api", wrong, right);
    }
    good.then(|| text.clone())
}

fn path(
    raw: Option<&Spanned<String>>,
    field: &str,
    default: &str,
    scope: &mut Scope<'_, '_>,
) -> Option<PathBuf> {
    let Some(raw) = raw else { return Some(default.into()) };
    // It stands in quotes in the configuration of others.
    let good = raw.get_ref().starts_with('/') && !raw.get_ref().contains(['"', '\n']);
    if !good {
        let wrong = format!("{:?} is not an absolute path", raw.get_ref());
        scope.problem(raw.span(), field, wrong, format!("give one such as {default}"));
    }
    good.then(|| raw.get_ref().into())
}
