//! `weir announce`, `weir drain self` and `weir undrain self`: what routers are told (docs/announcing.md).

use crate::control::{NO_BODY, block_on, request, say};
use crate::out;
use anyhow::bail;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use weir_announce::{Report, Route};
use weir_cli::{AnnounceVerb, Instance, USUAL_SOCKET};
use weir_control::api::{Answer, DrainRequest, wait};
use weir_control::config::Config;
use weir_control::engine::EngineError;
use weir_control::guard::{Event, Guard};

/// Whether what was asked for is so.
pub fn run(instance: Instance, verb: Option<AnnounceVerb>, json: bool) -> anyhow::Result<bool> {
    match verb {
        None => show(instance, json).map(|()| true),
        Some(AnnounceVerb::Check { address }) => check(instance, address),
        Some(AnnounceVerb::Guard { config, after }) => {
            guard(&instance, &config, after).map(|()| true)
        }
    }
}

pub fn drain(instance: Instance, drain: bool, json: bool) -> anyhow::Result<()> {
    let body = DrainRequest { drain };
    let answer: Answer = request(instance.clone(), "PUT", "/v1/announce/drain", Some(&body))?;
    // The speaker may take its time.
    if !json || !drain {
        say(&answer, json)?;
    }
    if !drain {
        return Ok(());
    }
    match block_on(wait::withdrawn(&instance.client()))?? {
        Some(done) => say(&Answer { done, change: answer.change }, json),
        None if json => say(&answer, json),
        None => Ok(()),
    }
}

fn show(instance: Instance, json: bool) -> anyhow::Result<()> {
    let report: Report = request(instance, "GET", "/v1/announce", NO_BODY)?;
    if json {
        return out::json(&report);
    }
    let Some(speaker) = &report.speaker else {
        out::line("nothing is announced: the file has no [announce] (docs/announcing.md)");
        return Ok(());
    };
    let drained = if report.drained { "; this balancer is drained" } else { "" };
    out::line(format_args!("through {speaker}{drained}"));
    if let Some(error) = &report.error {
        out::line(format_args!("warning: {error}; tried again"));
    }
    let mut lines = weir_watch::table(&["route", "to be announced", "announced", "why not"]);
    for one in &report.routes {
        let yes = |yes: bool| if yes { "yes" } else { "no" };
        lines.add_row([
            one.route.to_string(),
            yes(one.withheld.is_none()).into(),
            one.announced.map_or("unknown", yes).into(),
            one.withheld.as_ref().map_or_else(String::new, ToString::to_string),
        ]);
    }
    out::line(format_args!("{lines}"));
    Ok(())
}

/// Whether the route with an address, or just this one, is to be announced.
fn check(instance: Instance, (address, length): (IpAddr, Option<u8>)) -> anyhow::Result<bool> {
    let report: Report = request(instance, "GET", "/v1/announce", NO_BODY)?;
    // A route of one address alone says no more than that.
    let route = length.and_then(|length| Route::network(address, length));
    let route = route.filter(|route| *route != Route::of(address));
    let one = report.routes.iter().filter(|one| match route {
        Some(route) => one.route == route,
        None => one.route.contains(address),
    });
    let Some(one) = one.max_by_key(|one| one.route.length()) else {
        let what = route.map_or_else(|| address.to_string(), |route| route.to_string());
        let nothing = format!("no service of an instance that announces is at {what}");
        return Err(EngineError::NotFound(nothing).into());
    };
    match &one.withheld {
        None => out::line(format_args!("{} is to be announced", one.route)),
        Some(why) => out::line(format_args!("{} is not to be announced: {why}", one.route)),
    }
    Ok(one.withheld.is_none())
}

/// Withdraws what an instance has announced, when it has not answered for so long. Until a signal.
fn guard(instance: &Instance, path: &Path, after: Duration) -> anyhow::Result<()> {
    let Some(guard) = Guard::of(&Config::load(path)?) else {
        bail!("{}: there is no [announce], so there is nothing to guard", path.display());
    };
    if ![Path::new(USUAL_SOCKET), guard.socket()].contains(&instance.socket.as_path()) {
        bail!(
            "--socket {}: the instance of {} is at {}, and that is the one that is guarded; leave --socket out",
            instance.socket.display(),
            path.display(),
            guard.socket().display()
        );
    }
    block_on(guard.watch(after, |event| match event {
        Event::Answers => out::note("the instance answers again, and announces by itself"),
        Event::Withdrawn { silent, routes } => {
            let late = humantime::format_duration(Duration::from_secs(silent.as_secs()));
            out::note(format_args!(
                "the instance has not answered for {late}: {routes} routes withdrawn"
            ));
        }
        Event::Failed(error) => out::complain(format_args!("{error:#}; tried again")),
    }))
}
