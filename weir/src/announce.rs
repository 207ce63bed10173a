//! `weir announce`, `weir drain self` and `weir undrain self`: what routers are told (docs/announcing.md).

use crate::cli::{AnnounceVerb, Instance, USUAL_SOCKET};
use crate::control::{NO_BODY, request, say, table};
use crate::out;
use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_announce::{Report, Route, Speaker};
use weir_control::api::{Answer, Client, DrainRequest};
use weir_control::config::Config;
use weir_control::engine::{EngineError, announced_file};

/// From one question of the guard to the next.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// A speaker has withdrawn all routes by then, or somebody is told that it has not.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// An instance that has not answered by then does not.
const PATIENCE: Duration = Duration::from_secs(5);

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
    let mut answer: Answer = request(instance.clone(), "PUT", "/v1/announce/drain", Some(&body))?;
    if drain && is_withdrawn(&instance)? {
        answer.done = "this balancer is drained: its routes are withdrawn".into();
    }
    say(&answer, json)
}

/// Waits until the speaker has withdrawn all routes; whether there is one.
fn is_withdrawn(instance: &Instance) -> anyhow::Result<bool> {
    let begun = Instant::now();
    loop {
        let report: Report = request(instance.clone(), "GET", "/v1/announce", NO_BODY)?;
        if report.speaker.is_none() {
            return Ok(false);
        }
        let left = report.routes.iter().filter(|one| one.announced != Some(false)).count();
        if report.drained && report.error.is_none() && left == 0 {
            return Ok(true);
        }
        if begun.elapsed() >= WITHDRAWN_WITHIN {
            let why = report.error.map_or_else(String::new, |error| format!(": {error}"));
            let words = format!(
                "this balancer is drained, but {left} of its routes are not withdrawn yet{why}; it is tried \
                 again, and weir announce says when it is done"
            );
            return Err(EngineError::Unfinished(words).into());
        }
        std::thread::sleep(LOOK_EVERY);
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
    let mut lines = table(&["route", "to be announced", "announced", "why not"]);
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

/// Whether the route with an address is to be announced.
fn check(instance: Instance, address: IpAddr) -> anyhow::Result<bool> {
    let report: Report = request(instance, "GET", "/v1/announce", NO_BODY)?;
    let one = report.routes.iter().filter(|one| one.route.contains(address));
    let Some(one) = one.max_by_key(|one| one.route.length()) else {
        let nothing = format!("no service of an instance that announces is at {address}");
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
    let config = Config::load(path)?;
    let Some(announce) = &config.announce else {
        bail!("{}: there is no [announce], so there is nothing to guard", path.display());
    };
    let (socket, file) = (config.balancer.socket_path(), announced_file(&config.balancer.run_dir));
    if ![Path::new(USUAL_SOCKET), &socket].contains(&instance.socket.as_path()) {
        bail!(
            "--socket {}: the instance of {} is at {}, and that is the one that is guarded; leave --socket out",
            instance.socket.display(),
            path.display(),
            socket.display()
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::new(socket);
        let mut answered = Instant::now();
        let mut withdrawn = false;
        loop {
            let asked = client.request::<Report>("GET", "/v1/announce", NO_BODY);
            if matches!(tokio::time::timeout(PATIENCE, asked).await, Ok(Ok(_))) {
                if std::mem::take(&mut withdrawn) {
                    out::note("the instance answers again, and announces by itself");
                }
                answered = Instant::now();
            } else if answered.elapsed() >= after && !withdrawn {
                match withdraw(&announce.speaker, &file).await {
                    Ok(many) => {
                        withdrawn = true;
                        let late = humantime::format_duration(Duration::from_secs(
                            answered.elapsed().as_secs(),
                        ));
                        out::note(format_args!(
                            "the instance has not answered for {late}: {many} routes withdrawn"
                        ));
                    }
                    Err(error) => out::complain(format_args!("{error:#}; tried again")),
                }
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    })
}

async fn withdraw(speaker: &weir_announce::SpeakerConfig, file: &Path) -> anyhow::Result<usize> {
    let known: BTreeSet<Route> = match std::fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| file.display().to_string())?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeSet::new(),
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    let mut speaker = Speaker::new(speaker);
    let current = speaker.current(&known).await?;
    speaker.set(&current, &BTreeSet::new()).await?;
    Ok(current.len())
}
