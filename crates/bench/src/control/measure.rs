//! One size: start, changes, deaths of a host, status, reloads, memory.

use super::plan::METRICS;
use super::world::{Seen, World};
use super::{Request, Row, Size, Tail};
use crate::Result;
use crate::error::ensure;
use crate::instance::{Instance, scrape};
use crate::neighbour::{self, Away};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

/// Between two new flows of a service whose weights change.
const PACE: Duration = Duration::from_micros(200);
/// New flows that follow the new table, one after the other, before it counts as followed for good:
/// half of them would not, by the old one.
const CONVINCED: usize = 40;
/// Between two bursts of new flows of the services of a dead host.
const BURST_EVERY: Duration = Duration::from_millis(1);
/// A service of a dead host gets a new flow this often.
const PROBED_EVERY: Duration = Duration::from_millis(8);
/// Times that the status is asked for.
const STATUSES: usize = 9;
/// Times that the unchanged file is read again, and that it is asked what it would change.
const RELOADS: usize = 9;
/// Between two readings of metrics: who asks sooner than a second after the one before gets the same text again.
const FRESH: Duration = Duration::from_millis(1100);

/// Measures a size.
pub fn row(request: &Request, size: &Size) -> Result<Row> {
    let spare = if size.states > 0 { neighbour::spare_core() } else { None };
    // A thread of its own, because what it starts inherits the cores that it may use.
    let joined = thread::scope(|scope| scope.spawn(|| Bench::run(request, size, spare)).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Readings of all metrics.
struct Scrapes {
    /// Milliseconds of each.
    times: Vec<f64>,
    /// Processor time of the balancer meanwhile.
    cpu: Duration,
    /// Bytes of the last one.
    bytes: usize,
}

struct Bench<'a> {
    request: &'a Request,
    size: &'a Size,
    world: World,
    instance: Instance,
    rng: ChaCha8Rng,
}

impl<'a> Bench<'a> {
    fn run(request: &'a Request, size: &'a Size, spare: Option<(usize, Away)>) -> Result<Row> {
        if let Some((_, away)) = &spare {
            away.keep()?;
        }
        let world = World::new(size)?;
        let instance = Instance::start(
            &request.weir,
            world.balancer.command(&request.weir)?,
            |name, run_dir| size.config(name, run_dir),
        )?;
        let rng = ChaCha8Rng::seed_from_u64(request.seed);
        let mut bench = Self { request, size, world, instance, rng };
        let ready = bench.await_ready()?;
        if size.states > 0 {
            bench.world.load(size.states, spare.map(|(core, _)| core))?;
            bench.await_states()?;
        }
        let (changes, answers) = bench.changes()?;
        let failovers = if size.checks { bench.failovers()? } else { Vec::new() };
        let mut statuses = Vec::new();
        for _ in 0..STATUSES {
            statuses.push(ms(bench.instance.status(request.patience)?.1));
        }
        let (plans, reloads) = bench.reloads()?;
        let Scrapes { times, cpu, bytes } = bench.scrapes()?;
        let (resident, own) = bench.instance.memory()?;
        Ok(Row {
            services: size.services,
            backends: size.services * size.pool(),
            hosts: size.hosts(),
            states: if size.states > 0 { bench.states()? } else { 0 },
            busy: spare.is_some(),
            checks: size.checks,
            ready_s: ready.as_secs_f64(),
            change_ms: Tail::of(changes),
            answer_ms: Tail::of(answers),
            failover_services: size.services_on(0).len(),
            failover_ms: (!failovers.is_empty()).then(|| Tail::of(failovers)),
            status_ms: Tail::of(statuses).median,
            plan_ms: Tail::of(plans),
            reload_ms: Tail::of(reloads),
            scrape_cpu_ms: ms(cpu) / times.len() as f64,
            scrape_ms: Tail::of(times),
            scrape_bytes: bytes,
            rss_mb: resident as f64 / 1e6,
            anonymous_mb: own as f64 / 1e6,
            saved_mb: bench.instance.saved() as f64 / 1e6,
        })
    }

    /// Waits until it answers, and first packets of the first and the last service come out.
    fn await_ready(&mut self) -> Result<Duration> {
        self.instance.await_socket(self.request.patience)?;
        for service in [0, self.size.services - 1] {
            self.await_host(service, None)?;
        }
        Ok(self.instance.started.elapsed())
    }

    /// Sends new flows of a service until one comes to this host, or any.
    fn await_host(&mut self, service: u32, wanted: Option<u32>) -> Result<()> {
        let begun = Instant::now();
        loop {
            ensure!(
                begun.elapsed() < self.request.patience,
                "no flow of service {service} comes to a host that it should; the log ends:\n{}",
                self.instance.log()
            );
            self.world.begin(service)?;
            while let Some(seen) = self.world.next(Duration::from_millis(2)) {
                if let Seen::Flow { service: of, host, .. } = seen
                    && of == service
                    && wanted.is_none_or(|wanted| wanted == host)
                {
                    return Ok(());
                }
            }
        }
    }

    /// Has the file, which nobody has changed, planned and read again, in turn. Returns both times.
    fn reloads(&self) -> Result<(Vec<f64>, Vec<f64>)> {
        let patience = self.request.patience;
        let (mut plans, mut reloads) = (Vec::new(), Vec::new());
        for _ in 0..RELOADS {
            let (plan, took) = self.instance.plan(patience)?;
            ensure!(plan["changes"] == false, "the file is unchanged, and it would change {plan}");
            plans.push(ms(took));
            reloads.push(ms(self.instance.reload(patience)?));
        }
        Ok((plans, reloads))
    }

    /// Reads all metrics, on the balancer's own host.
    fn scrapes(&self) -> Result<Scrapes> {
        let mut all = Scrapes { times: Vec::new(), cpu: Duration::ZERO, bytes: 0 };
        let patience = self.request.patience;
        for _ in 0..self.request.scrapes.max(1) {
            thread::sleep(FRESH);
            let before = self.instance.cpu()?;
            let (took, bytes) = self.world.balancer.enter(|| scrape(METRICS, patience))??;
            all.cpu += self.instance.cpu()?.saturating_sub(before);
            all.times.push(ms(took));
            all.bytes = bytes;
        }
        Ok(all)
    }

    /// The states of the first service.
    fn states(&self) -> Result<u64> {
        let (status, _) = self.instance.status(self.request.patience)?;
        Ok(status["services"][0]["states"].as_u64().unwrap_or(0))
    }

    /// Waits until all flows but one in a hundred are known: the report of one may have been lost.
    fn await_states(&self) -> Result<()> {
        let begun = Instant::now();
        let enough = u64::from(self.size.states - self.size.states / 100);
        while self.states()? < enough {
            let known = self.states()?;
            ensure!(
                begun.elapsed() < self.request.patience,
                "{known} of {} flows are known",
                self.size.states
            );
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Takes the weight of heavy backends away and gives it back. Returns times until packets
    /// followed, and times until the answers came.
    fn changes(&mut self) -> Result<(Vec<f64>, Vec<f64>)> {
        let (mut changes, mut answers) = (Vec::new(), Vec::new());
        let mut light = HashSet::new();
        for _ in 0..self.request.rounds.max(1) {
            // Live flows are the first service's.
            let service = match self.size.states {
                0 => self.rng.random_range(0..self.size.services),
                _ => 0,
            };
            let heavier = light.remove(&service);
            if !heavier {
                light.insert(service);
            }
            let (change, answer) = self.change(service, heavier)?;
            changes.push(ms(change));
            answers.push(ms(answer));
        }
        for service in light {
            self.change(service, true)?;
        }
        Ok((changes, answers))
    }

    fn change(&mut self, service: u32, heavier: bool) -> Result<(Duration, Duration)> {
        let backend = self.size.heavy(service);
        let host = self.size.host(service, backend);
        self.world.forget();
        let weight = if heavier { self.size.heavy_weight() } else { 0 };
        let mut answer =
            self.instance.set_weight(&format!("s{service}"), &format!("b{backend}"), weight)?;
        let asked = answer.asked;
        // The first of the flows that have followed the new table since.
        let (mut since, mut followed) = (None, 0);
        let mut sent = Instant::now();
        loop {
            ensure!(
                asked.elapsed() < self.request.patience,
                "packets of service {service} do not follow weight {weight}; the log ends:\n{}",
                self.instance.log()
            );
            let answered = answer.take()?;
            if sent.elapsed() >= PACE {
                sent = Instant::now();
                self.world.begin(service)?;
            }
            while let Some(seen) = self.world.next(PACE.saturating_sub(sent.elapsed())) {
                let Seen::Flow { at, service: of, host: to } = seen else { continue };
                if of != service {
                    continue;
                }
                // By the old table nothing comes there, or by the new one nothing does.
                match (heavier, to == host) {
                    (true, true) | (false, false) => {
                        since.get_or_insert(at);
                        followed += 1;
                    }
                    (true, false) => {}
                    (false, true) => (since, followed) = (None, 0),
                }
            }
            if let (Some(since), Some(answered)) = (since, answered)
                && (heavier || followed >= CONVINCED)
            {
                return Ok((since.saturating_duration_since(asked), answered));
            }
        }
    }

    /// Lets the first host die, and live again.
    fn failovers(&mut self) -> Result<Vec<f64>> {
        let services = self.size.services_on(0);
        let mut times = Vec::new();
        for _ in 0..self.request.failovers {
            for &service in &services {
                self.await_host(service, Some(0))?;
            }
            times.extend(self.failover(&services)?);
            self.world.kill(None);
        }
        Ok(times)
    }

    fn failover(&mut self, services: &[u32]) -> Result<Vec<f64>> {
        self.world.forget();
        self.world.kill(Some(0));
        let begun = Instant::now();
        let mut checked = None;
        // By service: the first of the flows that have gone elsewhere since, and how many.
        let mut moved: HashMap<u32, (Option<Instant>, usize)> =
            services.iter().map(|service| (*service, (None, 0))).collect();
        let shares = PROBED_EVERY.as_millis() / BURST_EVERY.as_millis();
        let burst = services.len().div_ceil(shares as usize);
        let mut turn = services.iter().cycle();
        let mut sent = Instant::now();
        while checked.is_none() || moved.values().any(|(_, flows)| *flows < CONVINCED) {
            ensure!(
                begun.elapsed() < self.request.patience,
                "{} services still send new flows to a dead host; the log ends:\n{}",
                moved.values().filter(|(_, flows)| *flows < CONVINCED).count(),
                self.instance.log()
            );
            if sent.elapsed() >= BURST_EVERY {
                sent = Instant::now();
                for service in turn.by_ref().take(burst) {
                    self.world.begin(*service)?;
                }
            }
            while let Some(seen) = self.world.next(BURST_EVERY.saturating_sub(sent.elapsed())) {
                match seen {
                    Seen::Check { at } => {
                        checked.get_or_insert(at);
                    }
                    Seen::Flow { at, service, host } => {
                        let Some(entry) = moved.get_mut(&service) else { continue };
                        // Before the check, that is chance.
                        let dead = host == 0 || checked.is_none();
                        *entry = if dead { (None, 0) } else { (entry.0.or(Some(at)), entry.1 + 1) };
                    }
                }
            }
        }
        let checked = checked.unwrap_or(begun);
        let after = |at: Option<Instant>| at.map(|at| ms(at.saturating_duration_since(checked)));
        Ok(moved.values().filter_map(|(since, _)| after(*since)).collect())
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
