//! The verbs that look at or change a balancer.

use crate::out;
use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;
use weir_cli::{BackendVerb, ChangeOptions, Expected, Instance};
use weir_control::api::wait::Draining;
use weir_control::api::{
    Answer, Client, DrainRequest, FlowRequest, LoadRequest, NewBackend, Refusal, ReloadRequest,
    WeightRequest, wait,
};
use weir_control::config::{Config, MOST_TEXT, in_one, text_of};
use weir_control::doctor::{self, DoctorInput};
use weir_control::engine::{self, EngineError, Explanation, Kind, Status};
use weir_control::process::{PinnedElsewhere, pinned_elsewhere};
use weir_control::unload::{self, Routes};

/// Makes a request of the instance behind a socket.
pub fn request<T: DeserializeOwned>(
    instance: Instance,
    method: &str,
    path: &str,
    body: Option<&impl Serialize>,
) -> anyhow::Result<T> {
    Ok(block_on(instance.client().request(method, path, body))??)
}

/// Waits on this thread for something.
pub fn block_on<T>(something: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(something))
}

pub const NO_BODY: Option<&()> = None;

/// What problems call the standard input.
pub const STDIN: &str = "<stdin>";

/// Whether a file stands for the standard input.
pub fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The configuration at the standard input.
pub fn stdin_text() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MOST_TEXT as u64 + 1).read_to_end(&mut bytes);
    read.context("cannot read the standard input")?;
    anyhow::ensure!(bytes.len() <= MOST_TEXT, "{STDIN}: it is larger than {} MiB", MOST_TEXT >> 20);
    Ok(in_one(text_of(bytes, STDIN)?))
}

pub fn check(path: &Path, upgrade: bool) -> anyhow::Result<()> {
    let (name, config) = match is_stdin(path) {
        true => (STDIN.to_owned(), Config::parse(&stdin_text()?, STDIN)?),
        false => (path.display().to_string(), Config::load(path)?),
    };
    let unreachable = doctor::behind_routers(&config);
    anyhow::ensure!(unreachable.is_empty(), "{}", unreachable.join("\n"));
    let missing = doctor::missing_interfaces(&config);
    let elsewhere = match missing.len() {
        0 => String::new(),
        _ => format!("; this host has no {}, so weir run would not start here", missing.join(", ")),
    };
    let services = config.services.len();
    let words = if services == 1 { "service" } else { "services" };
    out::line(format_args!("{name}: good; {services} {words}{elsewhere}"));
    if let Some(warning) = config.store.as_ref().and_then(|store| store.warning()) {
        out::line(format_args!("warning: {warning}"));
    }
    // Elsewhere addresses are others'.
    for why in doctor::against_inline(&config).into_iter().filter(|_| missing.is_empty()) {
        out::line(format_args!("warning: {why}"));
    }
    // Elsewhere the files are others, or are not there.
    for why in doctor::of_listeners(&config).into_iter().filter(|_| missing.is_empty()) {
        out::line(format_args!("warning: {why}"));
    }
    if let Some(warning) = doctor::of_store(&config) {
        out::line(format_args!("warning: {warning}"));
    }
    if upgrade {
        let words = match engine::goes_on_from(&config)? {
            true => "this version goes on from what is there",
            false => "nothing is there to go on from",
        };
        out::line(format_args!("{}: {words}", config.balancer.name));
    }
    // Elsewhere there is other memory.
    if let Some(short) = doctor::short_of_memory(&config).filter(|_| missing.is_empty()) {
        out::line(format_args!("warning: {short}"));
    }
    Ok(())
}

pub fn unload(config: Option<&Path>, name: Option<String>) -> anyhow::Result<()> {
    let given = name.is_some();
    let file = config.map(Config::load).transpose()?;
    let name = match (name, &file) {
        (Some(name), _) => name,
        (None, Some(file)) => file.balancer.name.clone(),
        (None, None) => match &engine::loaded()?[..] {
            [] => return not_seen(None, "no data plane is loaded"),
            [name] => name.clone(),
            several => {
                let names = several.join(", ");
                let which = format!("there are several data planes: {names}; give --name");
                return Err(EngineError::Conflict(which).into());
            }
        },
    };
    // Routes that outlive forwarding would draw packets here.
    let mut routes = Ok(Routes::None);
    let removed = engine::unload(&name, || {
        routes = block_on(unload::withdraw(&name, file.as_ref(), true));
    });
    let left = told(&name, routes?);
    if removed? {
        let done = format!("{name}: data plane removed");
        out::changed(&done, &done);
        return left;
    }
    // Of what a file describes nothing is to be there, whether it was or not; a name may be mistyped.
    if !given {
        not_seen(Some(&name), &format!("{name}: no data plane is loaded"))?;
        if !elsewhere(Some(&name)).is_empty() {
            return Ok(());
        }
        return told(&name, block_on(unload::withdraw(&name, file.as_ref(), false))?);
    }
    let elsewhere = elsewhere(Some(&name));
    if let Some(one) = elsewhere.first() {
        return Err(EngineError::Conflict(one.to_string()).into());
    }
    let there = match &engine::loaded()?[..] {
        [] => "none is".to_owned(),
        several => format!("there are {}", several.join(", ")),
    };
    let words = format!("no data plane of an instance {name} is loaded; {there}");
    Err(EngineError::NotFound(words).into())
}

/// Says what became of the routes of an instance.
fn told(name: &str, routes: Routes) -> anyhow::Result<()> {
    match routes {
        Routes::None => Ok(()),
        Routes::Withdrawn { speaker, routes } => {
            let done = format!("{name}: not announced any more by {speaker}: {routes}");
            out::changed(&done, &done);
            Ok(())
        }
        Routes::Left(why) => Err(EngineError::Unfinished(format!("{name}: {why}")).into()),
    }
}

/// Says that nothing is loaded, unless something may be that is pinned where it is not seen: in this network namespace,
/// and under the name, that is what was to be removed.
fn not_seen(name: Option<&str>, nothing: &str) -> anyhow::Result<()> {
    let all = elsewhere(name);
    if let Some(here) = all.iter().find(|one| one.is_in_this_network) {
        return Err(EngineError::Conflict(here.to_string()).into());
    }
    out::line(nothing);
    all.iter().for_each(out::line);
    Ok(())
}

/// The data planes that are pinned in other mount namespaces; with a name those of such instances.
fn elsewhere(name: Option<&str>) -> Vec<PinnedElsewhere> {
    let mut all = pinned_elsewhere();
    all.retain(|one| name.is_none_or(|name| one.name == name));
    all
}

/// Whether nothing failed.
pub fn doctor(path: &Path, probe: bool, json: bool) -> anyhow::Result<bool> {
    let mut input = DoctorInput { probe, ..DoctorInput::new(Config::load(path)?) };
    // An instance that runs by this file knows of backends that it does not name; there need be none.
    let instance = Client::new(input.config.balancer.socket_path()).with_patience(input.patience);
    let status: Result<Status, _> = block_on(instance.request("GET", "/v1/status", NO_BODY))?;
    if let Ok(status) = status {
        input = input.beside(&status);
    }
    let findings = doctor::examine(&input);
    out::findings(&findings, json)
}

pub fn status(instance: Instance, json: bool) -> anyhow::Result<()> {
    let status: Status = request(instance, "GET", "/v1/status", NO_BODY)?;
    out::report(&status, json, || weir_watch::status(&status))
}

pub fn explain(instance: Instance, flow: &FlowRequest, json: bool) -> anyhow::Result<()> {
    tell(request(instance, "POST", "/v1/explain", Some(flow))?, json)
}

/// Prints where a flow's packets go.
pub fn tell(said: Explanation, json: bool) -> anyhow::Result<()> {
    if json {
        return out::json(&said);
    }
    out::text(weir_watch::explanation(said));
    Ok(())
}

/// Whoever asks for JSON gets some also where it is refused, or not done in time.
pub fn backend(instance: Instance, verb: BackendVerb, json: bool) -> anyhow::Result<()> {
    let done = change(instance, verb, json);
    if json && let Err(error) = &done {
        let kind = crate::kind(error).unwrap_or(Kind::Failed);
        out::json(&Refusal { error: out::causes(error), kind })?;
    }
    done
}

fn change(instance: Instance, verb: BackendVerb, json: bool) -> anyhow::Result<()> {
    let at = |service: &str, rest: &str| format!("/v1/services/{service}/backends{rest}");
    let answer: Answer = match verb {
        BackendVerb::Add { service, name, address, port, weight, nat_sources, expected } => {
            let body = NewBackend { name, address, port, weight, nat_sources };
            request(instance, "POST", &expected.of(&at(&service, "")), Some(&body))
        }
        BackendVerb::Remove { service, name, expected } => {
            let path = expected.of(&at(&service, &format!("/{name}")));
            request(instance, "DELETE", &path, NO_BODY)
        }
        BackendVerb::Drain { service, name, undo, wait, deadline, quiet, expected } => {
            let body = DrainRequest { drain: !undo };
            let again = instance.clone();
            let path = expected.of(&at(&service, &format!("/{name}/drain")));
            let answer: Answer = request(instance, "PUT", &path, Some(&body))?;
            if !wait {
                return say(&answer, json);
            }
            if !json {
                say(&answer, json)?;
            }
            let wanted = Draining { service, name, deadline, quiet };
            let away = |error: &anyhow::Error| {
                out::note(format_args!("{error}; the wait goes on for a minute"));
            };
            let done = block_on(wait::drained(&again.client(), &wanted, away))??;
            Ok(Answer { done, change: answer.change })
        }
        BackendVerb::Undrain { service, name, expected } => {
            let body = DrainRequest { drain: false };
            let path = expected.of(&at(&service, &format!("/{name}/drain")));
            request(instance, "PUT", &path, Some(&body))
        }
        BackendVerb::Weight { service, name, weight, expected } => {
            let body = WeightRequest { weight };
            let path = expected.of(&at(&service, &format!("/{name}/weight")));
            request(instance, "PUT", &path, Some(&body))
        }
        BackendVerb::Load { service, name, load } => {
            let body = LoadRequest { load };
            request(instance, "PUT", &at(&service, &format!("/{name}/load")), Some(&body))
        }
    }?;
    say(&answer, json)
}

pub fn reload(expected: Expected, options: ChangeOptions) -> anyhow::Result<()> {
    let ChangeOptions { instance, break_connections, json } = options;
    let body = ReloadRequest { break_connections };
    let answer: Answer = request(instance, "POST", &expected.of("/v1/reload"), Some(&body))?;
    say(&answer, json)
}

pub fn say(answer: &Answer, json: bool) -> anyhow::Result<()> {
    let text = match json {
        true => serde_json::to_string_pretty(answer).context("print")?,
        false => answer.done.clone(),
    };
    out::changed(text, &answer.done);
    Ok(())
}
