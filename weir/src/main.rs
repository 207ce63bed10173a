//! weir: a layer-4 load balancer for Linux that does not break connections.
#![forbid(unsafe_code)]

mod agent;
mod announce;
#[cfg(feature = "laboratory")]
mod bench;
mod control;
#[cfg(feature = "laboratory")]
mod fib;
mod fleet;
mod history;
mod import;
mod init;
#[cfg(feature = "laboratory")]
mod lab;
mod out;
mod pki;
mod plan;
#[cfg(feature = "laboratory")]
mod reproduce;
#[cfg(feature = "laboratory")]
mod sim;
mod snapshot;
mod source;
#[cfg(feature = "laboratory")]
mod target;
mod trace;
mod user_plane;

use clap::Parser;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use weir_cli::{Cli, Verb, manual};
use weir_control::api::{ClientError, FlowRequest};
use weir_control::config::PlaneKind;
use weir_control::engine::{EngineError, Kind};
use weir_control::otlp::{self, Exporter};

fn main() -> ExitCode {
    if cfg!(feature = "dpdk") {
        weir_control::config::offer_dpdk();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and the version are output, too.
        Err(said) => return ExitCode::from(out::parsed(&said)),
    };
    match dispatch(cli.verb) {
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

/// Whether it is about what a verb of the laboratory was asked for.
#[cfg(feature = "laboratory")]
fn is_senseless(error: &anyhow::Error) -> bool {
    use weir_bench::Error as Bench;
    use weir_figures::Error as Figures;
    use weir_forwarders::Error as Forwarders;
    use weir_lab::Error as Lab;

    error.chain().any(|cause| {
        matches!(cause.downcast_ref::<Lab>(), Some(Lab::BadSpec(_)))
            || matches!(cause.downcast_ref::<Bench>(), Some(Bench::Request(_)))
            || matches!(cause.downcast_ref::<Figures>(), Some(Figures::Unknown(_)))
            || matches!(cause.downcast_ref::<Forwarders>(), Some(Forwarders::Options(_)))
    })
}

/// There is no such verb.
#[cfg(not(feature = "laboratory"))]
fn is_senseless(_: &anyhow::Error) -> bool {
    false
}

/// What a command ends with that has failed; `weir --help` tells.
fn status(error: &anyhow::Error) -> u8 {
    match kind(error) {
        None if is_senseless(error) => 2,
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
        Verb::Doctor { backend: true, options, asked, json, .. } => {
            agent::doctor(&options, &asked, json)
        }
        Verb::Doctor { options, no_probe, json, .. } => {
            control::doctor(&options.balancers_file(), !no_probe, json)
        }
        Verb::Check { file, config, upgrade } => {
            done(control::check(&config.unwrap_or(file), upgrade))
        }
        #[cfg(feature = "laboratory")]
        Verb::Fib { what } => fib::run(what),
        Verb::Schema { proto: true, .. } => {
            out::text(weir_control::api::PROTO);
            Ok(true)
        }
        Verb::Schema { api: true, .. } => done(out::json(&weir_control::api::openapi())),
        Verb::Schema { .. } => done(out::json(&weir_control::config::schema())),
        Verb::Completions { shell } => done(manual::completions(shell).map(out::text)),
        Verb::Man { directory } => done(manual::write(&directory)),
        Verb::Pki { verb } => pki::run(verb),
        Verb::Agent(options) => done(agent::run(&options)),
        #[cfg(feature = "laboratory")]
        Verb::Lab(command) => lab::run(*command),
        #[cfg(feature = "laboratory")]
        Verb::Sim(options) => done(sim::run(&options)),
        #[cfg(feature = "laboratory")]
        Verb::Reproduce(options) => done(reproduce::run(&options)),
        #[cfg(feature = "laboratory")]
        Verb::Bench { what } => done(bench::run(what)),
        #[cfg(not(feature = "laboratory"))]
        Verb::Absent(verb) => Err(verb.refused()),
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
        Verb::Apply { file, expect, options } => done(history::apply(&file, expect, options)),
        Verb::Rollback { number, expected, options } => {
            done(history::rollback(number, expected, options))
        }
        Verb::History { number, instance, json } => done(history::show(instance, number, json)),
        Verb::Fleet { verb, instance, json } => done(fleet::run(instance, verb, json)),
        Verb::Announce { verb, instance, json } => announce::run(instance, verb, json),
        Verb::Drain { instance, json, .. } => done(announce::drain(instance, true, json)),
        Verb::Undrain { instance, json, .. } => done(announce::drain(instance, false, json)),
        Verb::Reload { expected, options } => done(control::reload(expected, options)),
    }
}

fn run(
    config: &std::path::Path,
    break_connections: bool,
    plane: Option<PlaneKind>,
) -> anyhow::Result<()> {
    let log = begin_to_log();
    let ended = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(weir_control::run::run(config, break_connections, plane));
    if let Some(log) = log {
        log.flush(LAST_LINES);
    }
    ended
}

/// How long a collector has to take the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

/// What processes that go on say goes to standard error, and to a collector if there is one (docs/metrics.md). They go
/// on as well where nobody takes it: a full disk, or a reader that is gone.
fn begin_to_log() -> Option<Exporter> {
    let filter = EnvFilter::try_from_env("WEIR_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let (collector, wrong) = match otlp::from_environment() {
        Ok(collector) => (collector, None),
        Err(wrong) => (None, Some(wrong)),
    };
    let (lines, exporter) = collector.unzip();
    let errors = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    tracing_subscriber::registry().with(filter).with(errors).with(lines).init();
    if let Some(wrong) = wrong {
        tracing::warn!("{wrong}");
    }
    exporter
}

#[cfg(all(test, not(feature = "laboratory")))]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn what_is_not_there_is_told_whatever_it_is_asked() {
        for (words, name) in [
            ("weir lab --method jet --duration 10s", "`weir lab`"),
            ("weir lab compare", "`weir lab`"),
            ("weir sim --list", "`weir sim`"),
            ("weir fib switch --nodes 3", "`weir fib`"),
            ("weir reproduce", "`weir reproduce`"),
            ("weir bench xdp --json", "`weir bench`"),
        ] {
            let Ok(cli) = Cli::try_parse_from(words.split(' ')) else { panic!("{words}") };
            let said = dispatch(cli.verb).map_err(|error| error.to_string()).unwrap_err();
            assert!(said.contains("built without the laboratory") && said.contains(name), "{said}");
        }
        assert!(Cli::try_parse_from(["weir", "nonsense"]).is_err());
        let help = Cli::command().render_help().to_string();
        assert!(help.starts_with("A layer-4 load balancer"), "{help}");
        assert!(help.contains("agent") && !help.contains("Not in this program"), "{help}");
    }
}
