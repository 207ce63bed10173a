//! `weir plane`: the process of a plane in user space.

use crate::out;
use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use weir_cli::UserPlaneOptions;
use weir_control::process::{PlaneLock, started_with};
use weir_plane_burst::beside::{self, Choice, RulesOf, Wanted};
use weir_plane_dpdk::{Memory, beside as dpdk};

/// Runs it until a signal, or until the data plane wants none any more. If another one runs for this
/// instance, it leaves that alone. Returns whether all is well with what was to be looked at.
pub fn run(options: &UserPlaneOptions) -> anyhow::Result<bool> {
    crate::begin_to_log();
    let setup = setup(options)?;
    if options.probe {
        // `weir run` reads it.
        return Ok(match setup.as_ref().map_or(Ok(()), dpdk::probe) {
            Ok(()) => true,
            Err(error) => {
                out::line(error);
                false
            }
        });
    }
    let pins = options.pins.as_deref().context("--pins is missing")?;
    let arguments = started_with(std::env::args().skip(2));
    let lock = PlaneLock::acquire_for(&options.run_dir, &arguments)
        .with_context(|| format!("cannot lock {}", options.run_dir.display()))?;
    let Some(lock) = lock else {
        info!("another process is this instance's plane in user space");
        return Ok(true);
    };
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    thread::Builder::new().name("signals".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            let _ = runtime.block_on(ended());
        }
        told.store(true, Ordering::Relaxed);
    })?;
    let no_rules = |why: &str| lock.say_no_rules(why);
    let done = match &setup {
        Some(setup) => dpdk::run(pins, setup, &stop, &no_rules).map_err(anyhow::Error::from),
        None => {
            let setup = beside::Setup { threads: options.threads.into(), rules: rules(options) };
            beside::run(pins, &setup, &stop, &no_rules).map_err(anyhow::Error::from)
        }
    };
    if let Err(error) = &done {
        lock.say(&error.to_string());
    }
    done.map(|()| true)
}

/// Rules of a card, if there are to be some.
fn rules(options: &UserPlaneOptions) -> Option<Wanted> {
    let card = match options.offload.as_deref()? {
        "ntuple" => RulesOf::Ntuple,
        "rte_flow" => RulesOf::RteFlow,
        "emulated-veth" => RulesOf::Veth,
        _ => RulesOf::Emulated,
    };
    let choice = match &*options.choice {
        "all" => Choice::All,
        "sampled" => Choice::Sampled { one_in: 16, least: 4, flows: 65_536 },
        _ => Choice::Heavy { width: 1 << 14, least: 32 },
    };
    let UserPlaneOptions { rules, queues, hysteresis, hostile, .. } = *options;
    Some(Wanted { card, rules, queues, choice, hysteresis, hostile })
}

/// Ports of DPDK, if there are to be any.
fn setup(options: &UserPlaneOptions) -> anyhow::Result<Option<dpdk::Setup>> {
    let split = |port: &String| {
        let parts = port.split_once('=').map(|(tap, device)| (tap.to_owned(), device.to_owned()));
        parts.with_context(|| format!("--port {port}: give TAP=DEVICE"))
    };
    let ports: Vec<_> = options.port.iter().map(split).collect::<anyhow::Result<_>>()?;
    Ok((!ports.is_empty()).then_some(dpdk::Setup {
        ports,
        memory: Memory { huge: options.huge_pages, megabytes: options.memory_mb },
        longest_nap: options.longest_nap,
        threads: options.threads,
        rules: rules(options),
    }))
}

/// Somebody wants the process to end.
async fn ended() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
