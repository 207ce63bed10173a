//! Many agents that speak to one balancer: what their sessions take, and how soon a change of its pools reaches all.

use super::agents::Common;
use super::replay::{common, with_agents};
use super::{Request, ms};
use crate::Result;
use crate::error::ensure;
use serde::Serialize;
use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use weir_testbed::process;

/// So many call at once: a balancer takes no more than 256 that are not through with TLS.
const CALLERS: usize = 32;
/// Between two looks at how far they are.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Files of a process that are open besides sessions.
const OTHER_FILES: u64 = 200;

/// Agents that have called a balancer, each by TLS, and told it that they hold nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Sessions {
    /// Agents, each with a certificate, a backend and a session of its own.
    pub agents: u32,
    /// From the first call until all had told what they hold, seconds.
    pub connected_s: f64,
    /// Of the balancer's processor for each meanwhile, milliseconds: TLS of both sides' certificates, and the first
    /// list.
    pub connect_cpu_ms: f64,
    /// Resident memory that a session has added, in KB of 1,000 bytes.
    pub session_kb: f64,
    /// All resident memory then, in MB.
    pub rss_mb: f64,
    /// Of a processor, while nothing happens: each agent is asked once a second how far it is, and answers. Per cent.
    pub idle_cpu_percent: f64,
    /// From the command by which all their backends join a second service until the last agent had heard of it,
    /// milliseconds.
    pub change_ms: f64,
    /// The same until the balancer had heard from all what they hold of that.
    pub told_ms: f64,
}

impl fmt::Display for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agents, connected_s, connect_cpu_ms, session_kb, rss_mb, .. } = self;
        let Self { idle_cpu_percent, change_ms, told_ms, .. } = self;
        write!(
            f,
            "{agents} agents by TLS: all there after {connected_s:.2} s, {connect_cpu_ms:.2} ms of the balancer's \
             processor and {session_kb:.0} KB for each, {rss_mb:.0} MB in all; idle {idle_cpu_percent:.1} % of a \
             processor; a change of pools has reached all after {change_ms:.0} ms, and all have answered after \
             {told_ms:.0} ms"
        )
    }
}

/// Waits until so many of them have come to something.
fn await_all(
    request: &Request,
    what: &str,
    common: &Common,
    so_far: impl Fn() -> u64,
) -> Result<()> {
    let begun = Instant::now();
    while so_far() < u64::from(common.agents) {
        ensure!(
            begun.elapsed() < request.patience,
            "{what}: {} of {} agents in {:?}",
            so_far(),
            common.agents,
            request.patience
        );
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

pub(super) fn run(request: &Request) -> Result<Sessions> {
    // For both sides: the balancer has the limit of who starts it.
    let files = process::raise_file_limit()?;
    let most = files.saturating_sub(OTHER_FILES);
    ensure!(
        u64::from(request.sessions) <= most,
        "{} sessions: this system's limit of open files allows {most}",
        request.sessions
    );
    // Nobody calls before it has been looked what the balancer takes without them.
    let common = common(request.sessions, 0, 0, 0);
    let number = f64::from(request.sessions);
    with_agents(request, &common, |stage| {
        let (before, _) = stage.instance.memory()?;
        let (cpu, begun) = (stage.instance.cpu()?, Instant::now());
        common.calls.add_permits(CALLERS);
        await_all(request, "all have called", &common, || common.listed.load(Ordering::SeqCst))?;
        let all_told = |status: &serde_json::Value| {
            let agents = status["agents"].as_array().map_or(&[][..], Vec::as_slice);
            let told = agents.iter().filter(|agent| agent["told"] == true).count();
            agents.len() == told && told == common.agents as usize
        };
        stage.await_status("all agents are told of", all_told)?;
        let connected = begun.elapsed();
        let connect = stage.instance.cpu()?.saturating_sub(cpu);
        let (resident, _) = stage.instance.memory()?;

        let (cpu, idle) = (stage.instance.cpu()?, Instant::now());
        thread::sleep(Duration::from_secs(request.seconds.into()));
        let (used, idle) = (stage.instance.cpu()?.saturating_sub(cpu), idle.elapsed());

        let begun = Instant::now();
        stage.configure(2)?;
        await_all(request, "all have heard", &common, || common.changed.load(Ordering::SeqCst))?;
        let heard = *common.changed_at.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = heard.map_or_else(|| begun.elapsed(), |at| at.saturating_duration_since(begun));
        let status = stage.await_status("all have told of both services", all_told)?;
        let told = begun.elapsed();
        let refused = status["agents_refused"].as_u64().unwrap_or(0);
        ensure!(refused == 0, "{refused} agents, or what they said, were refused");
        Ok(Sessions {
            agents: request.sessions,
            connected_s: connected.as_secs_f64(),
            connect_cpu_ms: ms(connect) / number,
            session_kb: resident.saturating_sub(before) as f64 / 1e3 / number,
            rss_mb: resident as f64 / 1e6,
            idle_cpu_percent: used.as_secs_f64() / idle.as_secs_f64() * 100.0,
            change_ms: ms(heard),
            told_ms: ms(told),
        })
    })
}
