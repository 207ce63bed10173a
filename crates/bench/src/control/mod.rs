//! `weir bench control`: what the control plane takes, measured at the running product.
//!
//! `weir run` balances the frames of a veth pair, with the XDP program that everybody runs. At the
//! other end stands a program that is all clients and all hosts (`world`): it sends first packets
//! of new flows, sees which host's MAC address they come back with, and answers health checks. So
//! a change counts when packets follow it, and nothing that the balancer says of itself is believed
//! except its memory in `/proc`.
//!
//! A *host* stands behind many services: every `hosts`-th backend of the configuration is on the
//! same one. Of each pool one backend, the *heavy* one, has as much weight as all others, so that
//! half of the new flows tell whether it serves.

mod measure;
pub(crate) mod plan;
pub(crate) mod world;

use crate::Result;
use crate::error::demand;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program, for `weir run`.
    pub weir: PathBuf,
    /// The sizes, a row each.
    pub sizes: Vec<Size>,
    /// Pool changes of each size.
    pub rounds: u32,
    /// Deaths of a host of each size.
    pub failovers: u32,
    /// Times that metrics are read of each size, more than a second apart.
    pub scrapes: u32,
    /// Longest wait for anything that has to come.
    pub patience: Duration,
    /// Seed of what is drawn: services and flows.
    pub seed: u64,
}

/// A size of the configuration, and of what it carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Number of services.
    pub services: u32,
    /// Backends of all services together.
    pub backends: u32,
    /// Live flows of the first service. With any, a core is busy with their packets throughout.
    pub states: u32,
    /// Whether backends are checked, once a second.
    pub checks: bool,
}

/// Services of a host, as far as there are backends enough.
const SERVICES_OF_HOST: u32 = 256;

impl Size {
    /// Backends of each service.
    pub fn pool(&self) -> u32 {
        self.backends / self.services.max(1)
    }

    /// Hosts that the backends are on.
    pub fn hosts(&self) -> u32 {
        (self.backends / SERVICES_OF_HOST).max(self.pool())
    }

    fn check(&self) -> Result<()> {
        let Self { services, backends, states, .. } = *self;
        demand!(services > 0 && services <= 16_384, "{services} services: 1 to 16384");
        demand!(backends <= 32_767, "{backends} backends: a balancer has up to 32767");
        demand!(
            (2..=256).contains(&self.pool()),
            "{backends} backends for {services} services: 2 to 256 for each"
        );
        demand!(states <= 8_000_000, "{states} states: at most 8M");
        Ok(())
    }
}

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// CPUs that the balancer and the bench have.
    pub cpus: usize,
    /// Pool changes of each row.
    pub rounds: u32,
    /// Seed of what was drawn.
    pub seed: u64,
    /// A row for each size.
    pub rows: Vec<Row>,
}

/// The figures of one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Number of services.
    pub services: u32,
    /// Backends of all services together.
    pub backends: u32,
    /// Hosts that they are on.
    pub hosts: u32,
    /// Live flows of the first service, as the balancer counts them.
    pub states: u64,
    /// Whether a core was busy with packets of these flows.
    pub busy: bool,
    /// Whether backends are checked.
    pub checks: bool,
    /// Seconds from the start of the process until it answers at its socket and new flows of the
    /// first and the last service are forwarded.
    pub ready_s: f64,
    /// Milliseconds from a command (the weight of a backend) to the first new flow after which all
    /// follow the new table.
    pub change_ms: Tail,
    /// Milliseconds from the command to its answer.
    pub answer_ms: Tail,
    /// Milliseconds from the check that fails, when it reaches the dead host, to the first new flow
    /// of a service after which none goes there; over all services of the host. None without
    /// checks.
    pub failover_ms: Option<Tail>,
    /// Services of the host that dies.
    pub failover_services: usize,
    /// Milliseconds for all of `/v1/status`, median.
    pub status_ms: f64,
    /// Milliseconds for what the unchanged file would change, which is nothing.
    pub plan_ms: Tail,
    /// Milliseconds for a reload of the unchanged file, from the command to its answer.
    pub reload_ms: Tail,
    /// Milliseconds for all metrics, from the connection to the last byte.
    pub scrape_ms: Tail,
    /// Milliseconds of processor time of the process meanwhile, all that it does besides included, on average.
    pub scrape_cpu_ms: f64,
    /// Bytes of an answer with all metrics.
    pub scrape_bytes: usize,
    /// Resident memory of the process at the end, in MB of 10^6 bytes.
    pub rss_mb: f64,
    /// Of it, what is its own: without memory that it shares with the kernel or with files.
    pub anonymous_mb: f64,
    /// Bytes of files in the run directory at the end, in MB: what is really stored.
    pub saved_mb: f64,
}

/// The middle of some times, and their end.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Tail {
    /// The median, in milliseconds.
    pub median: f64,
    /// The 99th percentile: the smallest that at least 99 of 100 do not exceed.
    pub p99: f64,
    /// The largest, in milliseconds.
    pub max: f64,
}

impl Tail {
    /// Of at least one time.
    pub fn of(times: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = times.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (sorted.len() as f64 * share).ceil() as usize;
            sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
        };
        Self { median: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms (p99 {:.1}, max {:.1})", self.median, self.p99, self.max)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>5} services, {:>5} backends on {} hosts",
            self.services, self.backends, self.hosts
        )?;
        if self.states > 0 {
            let busy = if self.busy { ", a core busy with their packets" } else { "" };
            write!(f, ", {} states{busy}", self.states)?;
        }
        write!(
            f,
            ": ready {:.2} s, change {}, answer {}",
            self.ready_s, self.change_ms, self.answer_ms
        )?;
        if let Some(failover) = &self.failover_ms {
            write!(f, ", failover of {} services {failover}", self.failover_services)?;
        }
        write!(
            f,
            ", status {:.1} ms, plan {}, reload {}, metrics {}, {:.1} ms of a core for {:.1} MB, {:.0} MB \
             resident ({:.0} its own), {:.1} MB saved",
            self.status_ms,
            self.plan_ms,
            self.reload_ms,
            self.scrape_ms,
            self.scrape_cpu_ms,
            self.scrape_bytes as f64 / 1e6,
            self.rss_mb,
            self.anonymous_mb,
            self.saved_mb
        )
    }
}

/// Measures. `progress` gets each row when it is ready.
///
/// # Errors
/// A size that there cannot be; a network that cannot be made; a balancer that does not start, or
/// does not do what it is told within the patience.
pub fn run(request: &Request, mut progress: impl FnMut(&Row)) -> Result<Report> {
    request.sizes.iter().try_for_each(Size::check)?;
    let mut rows = Vec::new();
    for size in &request.sizes {
        let row = measure::row(request, size)?;
        progress(&row);
        rows.push(row);
    }
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Report { cpus, rounds: request.rounds, seed: request.seed, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_known_times() {
        let tail = Tail::of((1..=200).rev().map(f64::from));
        assert_eq!(tail, Tail { median: 100.0, p99: 198.0, max: 200.0 });
        assert_eq!(Tail::of([7.0]), Tail { median: 7.0, p99: 7.0, max: 7.0 });
    }

    #[test]
    fn sizes_that_there_cannot_be_are_refused() {
        let size = |services, backends| Size { services, backends, states: 0, checks: false };
        assert!(size(1_000, 10_000).check().is_ok());
        assert!(size(10_000, 20_000).check().is_ok());
        for (services, backends) in [(0, 0), (10, 10), (10, 40_000), (1, 257), (20_000, 32_000)] {
            assert!(size(services, backends).check().is_err(), "{services}, {backends}");
        }
    }
}
