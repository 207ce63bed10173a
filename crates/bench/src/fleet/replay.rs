//! Agents that are played, and a balancer that runs: `weir run` in a namespace of its own, which they call by TLS on
//! its loopback interface. Whether it serves is seen at the other end of its cable.

use super::Request;
use super::agents::{Agent, Common, PORT};
use crate::control::Size;
use crate::control::plan::{host_address, vip};
use crate::control::world::{Seen, World};
use crate::error::{Context, ensure};
use crate::instance::Instance;
use crate::{Error, Result, put};
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use weir_rpc::pki::{self, Role};
use weir_rpc::tls::Files;

/// Agents, each of a backend.
const AGENTS: u32 = 8;
/// Threads of agents, at most.
const THREADS: u32 = 8;
/// Where the balancer listens for them.
const LISTEN: u16 = 4479;
/// Between two looks at what the balancer knows.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Between two first packets of new flows.
const PACE: Duration = Duration::from_millis(1);

/// Connections told at a rate.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// Agents that tell.
    pub agents: u32,
    /// Connections that opened in a second, as it was asked for.
    pub wanted_per_s: u32,
    /// Seconds for which it was asked for.
    pub seconds: u32,
    /// Connections that were told, each with its opening and its end.
    pub connections: u64,
    /// Of these, in a second: until the balancer had taken up the last of them.
    pub per_s: f64,
    /// Events that the balancer has not taken up; more than none ends the bench.
    pub lost: u64,
    /// Microseconds of processor time of the whole balancer for each: TLS, HTTP/2, reading, and all that the engine
    /// does with it.
    pub balancer_cpu_us: f64,
}

/// A balancer that begins while connections live.
#[derive(Clone, Debug, Serialize)]
pub struct Join {
    /// Agents that list them.
    pub agents: u32,
    /// Connections that live.
    pub connections: u32,
    /// From the start of the process to the first packet that it has forwarded, seconds.
    pub serves_s: f64,
    /// Connections that it knew then.
    pub known: u64,
    /// Processor time of the whole balancer until then, seconds.
    pub balancer_cpu_s: f64,
    /// Its resident memory then, in MB of 10^6 bytes.
    pub rss_mb: f64,
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agents, wanted_per_s, connections, per_s, lost, balancer_cpu_us, .. } = self;
        write!(
            f,
            "{connections} connections told by {agents} agents, {wanted_per_s} asked for in a second: {per_s:.0}/s \
             taken up, {lost} events lost, {balancer_cpu_us:.2} us of the balancer's processor for each"
        )
    }
}

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agents, connections, serves_s, known, balancer_cpu_s, rss_mb } = self;
        write!(
            f,
            "begins while {connections} connections live at {agents} agents: serves after {serves_s:.2} s, and knows \
             {known}; {balancer_cpu_s:.2} s of its processor, {rss_mb:.0} MB resident"
        )
    }
}

/// A balancer, and agents that speak to it.
pub(super) struct Stage<'a> {
    request: &'a Request,
    world: World,
    pub(super) instance: Instance,
    /// Where the certificates are.
    pki: &'a Path,
    agents: u32,
}

/// The balancer's file, with so many services that have a backend for each agent.
fn config(name: &str, run_dir: &Path, pki: &Path, agents: u32, services: u32) -> String {
    let mut text = String::new();
    let file = |name: &str| pki.join(name).display().to_string();
    put!(text, "[balancer]\nname = \"{name}\"\ninterfaces = [\"eth0\"]");
    put!(text, "run_dir = \"{}\"", run_dir.display());
    put!(text, "[agents]\nlisten = \"127.0.0.1:{LISTEN}\"\nlearn = \"5m\"");
    put!(text, "certificate = {:?}\nkey = {:?}", file("lb.pem"), file("lb.key"));
    put!(text, "ca = {:?}", file("ca.pem"));
    for service in 0..services {
        let vip = vip(service);
        put!(text, "[[service]]\nname = \"s{service}\"\nvip = \"{vip}\"\nprotocol = \"tcp\"");
        put!(text, "port = {PORT}\nmethod = \"residue\"\nstates = \"agents\"");
        put!(text, "[service.check]\nenabled = false");
        for backend in 0..agents {
            let address = host_address(backend);
            put!(text, "[[service.backend]]\nname = \"b{backend}\"\naddress = \"{address}\"");
        }
    }
    text
}

/// Certificates of a balancer and of the agents.
pub(super) fn certificates(directory: &Path, balancer: IpAddr, agents: &[IpAddr]) -> Result<()> {
    let failed = |error: pki::PkiError| Error::Fault(format!("making certificates: {error}"));
    pki::init(directory, "bench", 2).map_err(failed)?;
    let issue = |name: String, role, address: IpAddr| {
        let (addresses, hosts) = (vec![address], Vec::new());
        let request = pki::Request { name, role, addresses, hosts, days: 1 };
        pki::issue(directory, directory, &request).map(drop).map_err(failed)
    };
    issue("lb".into(), Role::Balancer, balancer)?;
    let mut agents = agents.iter().enumerate();
    agents.try_for_each(|(n, address)| issue(format!("b{n}"), Role::Agent, *address))
}

/// Starts a balancer and agents, and does something meanwhile.
pub(super) fn with_agents<T>(
    request: &Request,
    common: &Arc<Common>,
    work: impl FnOnce(&mut Stage<'_>) -> Result<T>,
) -> Result<T> {
    let agents = common.agents;
    let pki = tempfile::tempdir().context("making a directory")?;
    let addresses: Vec<IpAddr> = (0..agents).map(|n| host_address(n).into()).collect();
    certificates(pki.path(), Ipv4Addr::LOCALHOST.into(), &addresses)?;
    let size = Size { services: 1, backends: agents, states: 0, checks: false };
    let world = World::new(&size)?;
    let balancer = world.balancer.clone();
    let command = balancer.command(&request.weir)?;
    let instance = Instance::start(&request.weir, command, |name, run| {
        config(name, run, pki.path(), agents, 1)
    })?;
    let mut stage = Stage { request, world, instance, pki: pki.path(), agents };
    let failed = Mutex::new(None);
    let done = thread::scope(|scope| {
        for first in 0..agents.min(THREADS) {
            let (balancer, failed, pki) = (&balancer, &failed, pki.path());
            scope.spawn(move || {
                let agent = |number: u32| {
                    let file = |end: &str| pki.join(format!("b{number}.{end}"));
                    let (certificate, key) = (file("pem"), file("key"));
                    let files = Files { certificate, key, ca: pki.join("ca.pem") };
                    let address = host_address(number).into();
                    Agent { number, address, files, common: Arc::clone(common) }
                };
                let own: Vec<Agent> =
                    (first..agents).step_by(THREADS as usize).map(agent).collect();
                let ran = balancer.enter(|| speak(own)).map_err(Error::from).flatten();
                if let Err(error) = ran {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            });
        }
        let done = stage.instance.await_socket(request.patience).and_then(|()| work(&mut stage));
        common.stop.store(true, Ordering::SeqCst);
        done
    });
    // Why it has come to nothing, if an agent knows.
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (failed, done) {
        (Some(error), _) => Err(error),
        (None, done) => done,
    }
}

/// In the balancer's namespace, by one thread. The first session that breaks is what came of it.
fn speak(agents: Vec<Agent>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (runtime, tasks) = (runtime.context("starting agents")?, LocalSet::new());
    let all = agents.into_iter();
    let all: Vec<_> =
        all.map(|agent| tasks.spawn_local(async move { agent.run().await })).collect();
    tasks.block_on(&runtime, async {
        let mut came_of_it = Ok(());
        for one in all {
            let ran = one.await.context("playing an agent").map_err(Error::from).flatten();
            came_of_it = came_of_it.and(ran);
        }
        came_of_it
    })
}

/// So many agents with so many connections in all, that tell so many more in a second. `places`: how many of them may
/// call at once.
pub(super) fn common(agents: u32, held: u32, rate: u32, places: usize) -> Arc<Common> {
    Arc::new(Common {
        port: LISTEN,
        agents,
        held,
        stop: AtomicBool::new(false),
        rate,
        pace: Mutex::new(None),
        calls: Semaphore::new(places),
        told: AtomicU64::new(0),
        listed: AtomicU64::new(0),
        changed: AtomicU64::new(0),
        changed_at: Mutex::new(None),
    })
}

/// The sum of a field over all agents.
pub(super) fn sum(status: &Value, field: &str) -> u64 {
    let agents = status["agents"].as_array().map_or(&[][..], Vec::as_slice);
    agents.iter().filter_map(|agent| agent[field].as_u64()).sum()
}

impl Stage<'_> {
    pub(super) fn status(&self) -> Result<Value> {
        Ok(self.instance.status(self.request.patience)?.0)
    }

    /// Gives the balancer another file, with so many services.
    pub(super) fn configure(&self, services: u32) -> Result<()> {
        let text = |name: &str, run: &Path| config(name, run, self.pki, self.agents, services);
        self.instance.follow(text, self.request.patience)
    }

    /// Waits for something that the balancer says.
    pub(super) fn await_status(&self, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        let begun = Instant::now();
        loop {
            let status = self.status()?;
            if is(&status) {
                return Ok(status);
            }
            ensure!(
                begun.elapsed() < self.request.patience,
                "{what}: not in {:?}; {} states, agents {}; the log ends:\n{}",
                self.request.patience,
                status["services"][0]["states"],
                status["agents"],
                self.instance.log()
            );
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until a first packet comes out at a host.
    fn await_packet(&mut self) -> Result<()> {
        loop {
            let late = self.instance.started.elapsed() > self.request.patience;
            ensure!(!late, "no packet is forwarded; the log ends:\n{}", self.instance.log());
            self.world.begin(0)?;
            if let Some(Seen::Flow { .. }) = self.world.next(PACE) {
                return Ok(());
            }
        }
    }
}

/// Lets agents tell connections at a rate.
pub(super) fn replay(request: &Request) -> Result<Replay> {
    let common = common(AGENTS, 0, request.rate, AGENTS as usize);
    let time = Duration::from_secs(request.seconds.into());
    let wanted: u64 = {
        let of = (f64::from(request.rate) / f64::from(AGENTS) * time.as_secs_f64()) as u64;
        of * u64::from(AGENTS)
    };
    with_agents(request, &common, |stage| {
        stage.await_status("all agents are told of", |status| {
            let agents = status["agents"].as_array().map_or(0, Vec::len);
            let told = status["agents"]
                .as_array()
                .is_some_and(|all| all.iter().all(|agent| agent["told"] == true));
            agents == AGENTS as usize && told
        })?;
        let (before, begun) = (stage.instance.cpu()?, Instant::now());
        *common.pace.lock().unwrap_or_else(PoisonError::into_inner) = Some((begun, time));
        let limit = time + request.patience;
        while common.told.load(Ordering::SeqCst) < wanted && begun.elapsed() < limit {
            thread::sleep(LOOK_EVERY);
        }
        let status = stage.await_status("the balancer has taken up all", |status| {
            sum(status, "events") >= wanted * 2
        })?;
        let took = begun.elapsed();
        let used = stage.instance.cpu()?.saturating_sub(before);
        let events = sum(&status, "events");
        let lost = (wanted * 2).saturating_sub(events) + sum(&status, "lost");
        let refused = sum(&status, "refused") + status["agents_refused"].as_u64().unwrap_or(0);
        let states = status["services"][0]["states"].as_u64();
        ensure!(
            lost == 0 && refused == 0 && states == Some(0),
            "{lost} events are lost, {refused} refused, and {states:?} connections left of {wanted}"
        );
        Ok(Replay {
            agents: AGENTS,
            wanted_per_s: request.rate,
            seconds: request.seconds,
            connections: wanted,
            per_s: wanted as f64 / took.as_secs_f64(),
            lost,
            balancer_cpu_us: used.as_secs_f64() * 1e6 / wanted as f64,
        })
    })
}

/// Lets a balancer begin while connections live.
pub(super) fn join(request: &Request) -> Result<Join> {
    let common = common(AGENTS, request.connections, 0, AGENTS as usize);
    with_agents(request, &common, |stage| {
        stage.await_packet()?;
        let serves = stage.instance.started.elapsed();
        let used = stage.instance.cpu()?;
        let (resident, _) = stage.instance.memory()?;
        let known = stage.status()?["services"][0]["states"].as_u64().unwrap_or(0);
        ensure!(
            known >= u64::from(request.connections),
            "it serves, and knows {known} of {} connections; the log ends:\n{}",
            request.connections,
            stage.instance.log()
        );
        Ok(Join {
            agents: AGENTS,
            connections: request.connections,
            serves_s: serves.as_secs_f64(),
            known,
            balancer_cpu_s: used.as_secs_f64(),
            rss_mb: resident as f64 / 1e6,
        })
    })
}
