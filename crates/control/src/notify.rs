//! What a service manager is told (sd_notify(3)): ready, reloading done, stopping, alive.
//!
//! Without `NOTIFY_SOCKET` in the environment nobody is told anything.

#![forbid(unsafe_code)]

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::engine::{Command, Sender};

/// Tells the service manager, if there is one. What cannot be told is no reason to end.
pub fn tell(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let bytes = path.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let told = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = told {
        warn!(%error, state, "the service manager cannot be told");
    }
}

/// How often it wants to hear that this process is alive; none: never.
fn wanted() -> Option<Duration> {
    let ours = env::var("WATCHDOG_PID").map_or(Ok(std::process::id()), |pid| pid.parse());
    let micros: u64 = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (ours == Ok(std::process::id()) && micros > 0).then(|| Duration::from_micros(micros))
}

/// Says that it is alive three times in each such time, while the engine answers.
pub async fn watchdog(engine: Sender) {
    let Some(limit) = wanted() else { return };
    let mut ticks = interval((limit / 3).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (reply, answer) = oneshot::channel();
        if engine.send(Command::Ping(reply)).await.is_err() || answer.await.is_err() {
            return;
        }
        tell("WATCHDOG=1");
    }
}
