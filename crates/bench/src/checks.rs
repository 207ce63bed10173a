//! `weir bench checks`: how many health checks one process makes, how punctually, and what that takes.
//!
//! `weir run` in a namespace of its own checks backends by TCP, each at an address of its own. All addresses are
//! those of one other namespace, whose kernel answers, and one listener there sees each connection: what it
//! counts has been made. Of what the balancer says of itself, only the number of failures is believed.

use crate::control::Tail;
use crate::error::{Context, demand, ensure};
use crate::instance::Instance;
use crate::{Result, put};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{Backlog, listen};
use serde::Serialize;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use weir_testbed::{Namespaces, NetNs, link};

const BALANCER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const BACKENDS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const INTERFACE: &str = "eth0";
/// The balancer's address, and that of everybody else.
const ADDRESSES: [&str; 2] = ["10.0.0.1/15", "10.0.0.2/15"];
/// Addresses of backends: a half of the network of both.
const BACKENDS: &str = "10.1.0.0/16";
/// The first of them.
const FIRST: u32 = 0x0a01_0000;
/// The port that checks connect to.
const PORT: u16 = 9000;
/// Backends of a service, at most.
const POOL: u32 = 100;
/// How often the listener looks whether it is to end, in milliseconds.
const GLANCE: u16 = 20;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program, for `weir run`.
    pub weir: PathBuf,
    /// Numbers of backends, a row each.
    pub backends: Vec<u32>,
    /// Time from one check of a backend to the next.
    pub interval: Duration,
    /// How long checks are counted, once each backend has been checked.
    pub time: Duration,
    /// Longest wait for that.
    pub patience: Duration,
}

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// CPUs that the balancer and the bench have.
    pub cpus: usize,
    /// A row for each number of backends.
    pub rows: Vec<Row>,
}

/// The figures of one number of backends.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Backends, each of which is checked.
    pub backends: u32,
    /// Milliseconds from one check of a backend to the next, as the file has it.
    pub interval_ms: f64,
    /// Checks a second that this asks for.
    pub asked_per_s: f64,
    /// Checks a second that the listener has seen.
    pub checks_per_s: f64,
    /// Seconds in which they were counted.
    pub seconds: f64,
    /// Checks of that time that failed, as the balancer says.
    pub failed: u64,
    /// How much later than an interval after the one before a check was, as the listener has seen it; one that was
    /// earlier counts as 0.
    pub late_ms: Tail,
    /// Processor time of the process in that time, as a share of one core.
    pub core_share: f64,
    /// Resident memory of the process at the end, in MB of 10^6 bytes.
    pub rss_mb: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>5} backends, each every {} ms: {:.0} of {:.0} checks a second, {} failed, late by {}, \
             {:.1} % of a core, {:.0} MB resident",
            self.backends,
            self.interval_ms,
            self.checks_per_s,
            self.asked_per_s,
            self.failed,
            self.late_ms,
            self.core_share * 100.0,
            self.rss_mb
        )
    }
}

/// Measures. `progress` gets each row when it is ready.
///
/// # Errors
/// What cannot be measured; a network that cannot be made; a balancer that does not run, or does not check each
/// backend within the patience.
pub fn run(request: &Request, mut progress: impl FnMut(&Row)) -> Result<Report> {
    let Request { backends, interval, .. } = request;
    let shortest = Duration::from_millis(10);
    demand!(
        (shortest..=Duration::from_secs(3600)).contains(interval),
        "an interval of {interval:?}: 10 ms to 1 h"
    );
    for count in backends {
        demand!((1..=32_000).contains(count), "{count} backends: 1 to 32000");
    }
    let mut rows = Vec::new();
    for &count in backends {
        let row = row(request, count)?;
        progress(&row);
        rows.push(row);
    }
    let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Report { cpus, rows })
}

fn row(request: &Request, backends: u32) -> Result<Row> {
    let world = World::new(backends, request.interval)?;
    let command = world.balancer.command(&request.weir)?;
    let config = |name: &str, run_dir: &Path| config(name, run_dir, (backends, request.interval));
    let mut instance = Instance::start(&request.weir, command, config)?;
    instance.await_socket(request.patience)?;
    while world.seen().is_new_to_some() {
        let late = instance.started.elapsed() > request.patience;
        ensure!(!late, "not each backend is checked; the log ends:\n{}", instance.log());
        thread::sleep(Duration::from_millis(20));
    }
    let failed = failures(&instance, request.patience)?;
    let before = instance.cpu()?;
    let begun = Instant::now();
    world.seen().late = Some(Vec::new());
    thread::sleep(request.time);
    let late = world.seen().late.take().unwrap_or_default();
    let time = begun.elapsed().as_secs_f64();
    let busy = instance.cpu()?.saturating_sub(before);
    ensure!(!late.is_empty(), "no check was made; the log ends:\n{}", instance.log());
    Ok(Row {
        backends,
        interval_ms: request.interval.as_secs_f64() * 1e3,
        asked_per_s: f64::from(backends) / request.interval.as_secs_f64(),
        checks_per_s: late.len() as f64 / time,
        seconds: time,
        failed: failures(&instance, request.patience)?.saturating_sub(failed),
        late_ms: Tail::of(late.iter().map(|late| late.as_secs_f64() * 1e3)),
        core_share: busy.as_secs_f64() / time,
        rss_mb: instance.memory()?.0 as f64 / 1e6,
    })
}

/// Checks that have failed, as the balancer says.
fn failures(instance: &Instance, patience: Duration) -> Result<u64> {
    let (status, _) = instance.status(patience)?;
    let of = |value: &serde_json::Value, name: &str| {
        value[name].as_array().cloned().unwrap_or_default().into_iter()
    };
    let backends = of(&status, "services").flat_map(|service| of(&service, "backends"));
    Ok(backends.filter_map(|backend| backend["check"]["failed"].as_u64()).sum())
}

fn address(backend: u32) -> Ipv4Addr {
    // Not the network's own.
    Ipv4Addr::from(FIRST + 1 + backend)
}

/// The backend of an address that a check connected to.
fn backend_of(address: SocketAddr) -> Option<usize> {
    let SocketAddr::V4(address) = address else { return None };
    u32::from(*address.ip()).checked_sub(FIRST + 1).map(|backend| backend as usize)
}

/// The configuration file.
fn config(name: &str, run_dir: &Path, (backends, interval): (u32, Duration)) -> String {
    let mut text = String::new();
    let services = backends.div_ceil(POOL);
    put!(text, "[balancer]\nname = \"{name}\"\ninterfaces = [\"{INTERFACE}\"]");
    put!(text, "run_dir = \"{}\"", run_dir.display());
    put!(text, "[limits]\nservices = {}\nbackends = {}", services + 8, backends + 64);
    for service in 0..services {
        let vip = Ipv4Addr::from(0x0ac8_0000 + service);
        put!(text, "[[service]]\nname = \"s{service}\"\nvip = \"{vip}\"");
        put!(text, "protocol = \"tcp\"\nport = 80");
        put!(text, "[service.check]\nport = {PORT}\ninterval = \"{}us\"", interval.as_micros());
        put!(text, "timeout = \"{}us\"\nrise = 1\nfall = 1", (interval * 4 / 5).as_micros());
        for backend in (service * POOL)..((service + 1) * POOL).min(backends) {
            put!(text, "[[service.backend]]\nname = \"b{backend}\"");
            put!(text, "address = \"{}\"", address(backend));
        }
    }
    text
}

/// What the listener has seen.
struct Seen {
    interval: Duration,
    /// By backend, when its last check came.
    last: Vec<Option<Instant>>,
    /// How late checks were, while that is wanted.
    late: Option<Vec<Duration>>,
}

impl Seen {
    fn note(&mut self, backend: usize, at: Instant) {
        let Some(last) = self.last.get_mut(backend) else { return };
        let before = last.replace(at);
        if let (Some(before), Some(late)) = (before, &mut self.late) {
            late.push(at.saturating_duration_since(before).saturating_sub(self.interval));
        }
    }

    /// Whether a backend was not checked yet.
    fn is_new_to_some(&self) -> bool {
        self.last.iter().any(Option::is_none)
    }
}

/// Two namespaces with a cable: the balancer's, and the one of all backends, whose kernel answers.
struct World {
    balancer: NetNs,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
    _namespaces: Namespaces,
}

impl World {
    fn new(backends: u32, interval: Duration) -> Result<Self> {
        let mut namespaces = Namespaces::new("chk");
        let (balancer, rest) = (namespaces.add("lb")?, namespaces.add("rest")?);
        let ends = [
            link::End::new(INTERFACE).inside(&balancer).mac(BALANCER_MAC),
            link::End::new(INTERFACE).inside(&rest).mac(BACKENDS_MAC),
        ];
        link::ip(&link::veth(&ends))?;
        for (end, address) in [&balancer, &rest].into_iter().zip(ADDRESSES) {
            end.sysctl("ipv6/conf/eth0/disable_ipv6", "1")?;
            end.no_checksum_offload(INTERFACE)?;
            end.ip(&(link::address(address, INTERFACE) + &link::up(INTERFACE)))?;
        }
        // Nobody is asked for addresses that all stand behind one.
        let known = |backend| link::neighbour(address(backend).into(), BACKENDS_MAC, INTERFACE);
        balancer.ip(&(0..backends).map(known).collect::<String>())?;
        balancer.sysctl("ipv4/ip_forward", "1")?;
        rest.ip(&format!("route add local {BACKENDS} dev lo\n"))?;
        let listener = rest.enter(|| {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
            // Checks that begin together wait for the listener, not for their SYNs to be sent again.
            listen(&listener, Backlog::MAXCONN)?;
            listener.set_nonblocking(true)?;
            std::io::Result::Ok(listener)
        })?;
        let listener = listener.context("listening for checks")?;
        let last = vec![None; backends as usize];
        let seen = Arc::new(Mutex::new(Seen { interval, last, late: None }));
        let stop = Arc::new(AtomicBool::new(false));
        let (noting, stopping) = (Arc::clone(&seen), Arc::clone(&stop));
        let listener = thread::spawn(move || listen_until(&listener, &noting, &stopping));
        Ok(Self { balancer, seen, stop, listener: Some(listener), _namespaces: namespaces })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(listener) = self.listener.take() {
            // One that has panicked has said so.
            let _ = listener.join();
        }
    }
}

fn listen_until(listener: &TcpListener, seen: &Mutex<Seen>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut wanted = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        // One that was interrupted is asked again.
        let _ = poll(&mut wanted, GLANCE);
        while let Ok((connection, _)) = listener.accept() {
            let at = Instant::now();
            if let Some(backend) = connection.local_addr().ok().and_then(backend_of) {
                seen.lock().unwrap_or_else(PoisonError::into_inner).note(backend, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_late_by_what_is_beyond_the_interval() {
        let interval = Duration::from_millis(100);
        let mut seen = Seen { interval, last: vec![None; 2], late: Some(Vec::new()) };
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        for (backend, ms) in [(0, 0), (0, 103), (1, 110), (0, 190), (9, 190)] {
            seen.note(backend, at(ms));
        }
        assert_eq!(seen.late.as_deref(), Some(&[Duration::from_millis(3), Duration::ZERO][..]));
        assert!(!seen.is_new_to_some());
    }

    #[test]
    fn addresses_of_backends_lead_back() {
        for backend in [0, 254, 255, 31_999] {
            let at = SocketAddr::from((address(backend), PORT));
            assert_eq!(backend_of(at), Some(backend as usize));
        }
    }

    #[test]
    fn what_cannot_be_asked_for_is_refused() {
        let request = |backends, ms| Request {
            weir: PathBuf::new(),
            backends: vec![backends],
            interval: Duration::from_millis(ms),
            time: Duration::ZERO,
            patience: Duration::ZERO,
        };
        for bad in [request(0, 100), request(32_001, 100), request(1, 9), request(1, 3_600_001)] {
            assert!(run(&bad, |_| ()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn each_backend_is_in_one_service() {
        let text = config("x", Path::new("/run/x"), (250, Duration::from_millis(100)));
        assert_eq!(text.matches("[[service]]").count(), 3);
        assert_eq!(text.matches("[[service.backend]]").count(), 250);
        assert!(text.contains("interval = \"100000us\"\ntimeout = \"80000us\""), "{text}");
        assert!(text.ends_with("name = \"b249\"\naddress = \"10.1.0.250\"\n"), "{text}");
    }
}
