//! `weir plane`: the process of a plane in user space.

use anyhow::Context;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use weir_control::process::PlaneLock;
use weir_plane_burst::beside;

/// Runs it until a signal, or until the data plane wants none any more. If another one runs for this
/// instance, it leaves that alone.
pub fn run(pins: &Path, run_dir: &Path) -> anyhow::Result<()> {
    crate::begin_to_log();
    let lock = PlaneLock::acquire(run_dir)
        .with_context(|| format!("cannot lock {}", run_dir.display()))?;
    let Some(lock) = lock else {
        info!("another process is this instance's plane in user space");
        return Ok(());
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
    let done = beside::run(pins, &stop);
    if let Err(error) = &done {
        lock.say(&error.to_string());
    }
    Ok(done?)
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
