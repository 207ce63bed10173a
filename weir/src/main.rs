//! weir: a layer-4 load balancer for Linux that does not break connections.
#![forbid(unsafe_code)]

mod agent;
mod announce;
mod bench;
mod cli;
mod control;
mod fib;
mod fleet;
mod history;
mod import;
mod init;
mod lab;
mod manual;
mod out;
mod pki;
mod plan;
mod reproduce;
mod sim;
mod snapshot;
mod source;
mod trace;
mod user_plane;

use clap::Parser;
use cli::{Cli, Verb};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use weir_control::api::{ClientError, FlowRequest};
use weir_control::config::PlaneKind;
use weir_control::engine::{EngineError, Kind};

fn main() -> ExitCode {
    if cfg!(feature = "dpdk") {
        weir_control::config::offer_dpdk();
    }
    match dispatch(Cli::parse().verb) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            out::complain(out::causes(&error));
            ExitCode::from(status(&error))
        }
    }
}

/// What kind of refusal or failure it is, if it is one of an instance's.
fn kind(error: &anyhow::Error) -> Option<Kind> {
    error.chain().find_map(|cause| {
        let client = cause.downcast_ref::<ClientError>().map(ClientError::kind);
        client.or_else(|| cause.downcast_ref::<EngineError>().map(EngineError::kind))
    })
}

/// What a command ends with that has failed; `weir --help` tells.
fn status(error: &anyhow::Error) -> u8 {
    match kind(error) {
        None | Some(Kind::File | Kind::Failed | Kind::Forbidden) => 1,
        Some(Kind::Invalid) => 2,
        Some(Kind::NotFound) => 3,
        Some(Kind::Conflict) => 4,
        Some(Kind::Busy) => 5,
    }
}

/// Whether what was promised held, of the verbs that promise something.
fn dispatch(verb: Verb) -> anyhow::Result<bool> {
    let done = |result: anyhow::Result<()>| result.map(|()| true);
    match verb {
        Verb::Run { config, break_connections, plane } => {
            done(run(&config, break_connections, plane))
        }
        Verb::Plane(options) => user_plane::run(&options),
        Verb::Init(options) => done(init::run(options)),
        Verb::Import(options) => done(import::run(options)),
        Verb::Unload { config, name } => done(control::unload(config.as_deref(), name)),
        Verb::Doctor { backend: true, options, json, .. } => agent::doctor(&options, json),
        Verb::Doctor { options, no_probe, json, .. } => {
            control::doctor(&agent::balancers_file(*options), !no_probe, json)
        }
        Verb::Check { file, config, upgrade } => {
            done(control::check(&config.unwrap_or(file), upgrade))
        }
        Verb::Fib { what } => fib::run(what),
        Verb::Schema { proto: true, .. } => {
            out::text(weir_control::api::PROTO);
            Ok(true)
        }
        Verb::Schema { api: true, .. } => done(out::json(&weir_control::api::openapi())),
        Verb::Schema { .. } => done(out::json(&weir_control::config::schema())),
        Verb::Completions { shell } => done(manual::completions(shell)),
        Verb::Man { directory } => done(manual::write(&directory)),
        Verb::Pki { verb } => pki::run(verb),
        Verb::Agent(options) => done(agent::run(&options)),
        Verb::Lab(command) => lab::run(*command),
        Verb::Sim(options) => done(sim::run(&options)),
        Verb::Reproduce(options) => done(reproduce::run(&options)),
        Verb::Bench { what } => done(bench::run(what)),
        Verb::Status { instance, json } => done(control::status(instance, json)),
        Verb::Explain {
            protocol,
            source,
            destination,
            connection_id,
            snapshot,
            instance,
            json,
        } => {
            let flow = FlowRequest { protocol, source, destination, connection_id };
            done(match snapshot {
                Some(file) => snapshot::explain(&file, &flow, json),
                None => control::explain(instance, &flow, json),
            })
        }
        Verb::Snapshot { output, tables, instance } => {
            done(snapshot::take(instance, output, tables))
        }
        Verb::Trace { options, instance } => done(trace::run(instance, *options)),
        Verb::Backend { verb, instance, json } => done(control::backend(instance, verb, json)),
        Verb::Source { verb, instance, json } => done(source::run(instance, verb, json)),
        Verb::Plan { file, instance, json } => done(plan::run(instance, file, json)),
        Verb::Top { instance, interval } => done(weir_watch::run(instance.client(), interval)),
        Verb::Apply { file, instance, break_connections, expect, json } => {
            done(history::apply(instance, &file, break_connections, expect, json))
        }
        Verb::Rollback { number, expected, instance, break_connections, json } => {
            done(history::rollback(instance, number, break_connections, expected, json))
        }
        Verb::History { number, instance, json } => done(history::show(instance, number, json)),
        Verb::Fleet { verb, instance, json } => done(fleet::run(instance, verb, json)),
        Verb::Announce { verb, instance, json } => announce::run(instance, verb, json),
        Verb::Drain { instance, json, .. } => done(announce::drain(instance, true, json)),
        Verb::Undrain { instance, json, .. } => done(announce::drain(instance, false, json)),
        Verb::Reload { expected, instance, break_connections, json } => {
            done(control::reload(instance, break_connections, expected, json))
        }
    }
}

fn run(
    config: &std::path::Path,
    break_connections: bool,
    plane: Option<PlaneKind>,
) -> anyhow::Result<()> {
    begin_to_log();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(weir_control::run::run(config, break_connections, plane))
}

/// What processes that go on say goes to standard error. They go on as well where nobody takes it: a full disk, or
/// a reader that is gone.
fn begin_to_log() {
    let filter = EnvFilter::try_from_env("WEIR_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
}
