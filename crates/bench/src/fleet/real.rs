//! What an agent takes of processors: a real `weir agent` in the namespace of a server, to which clients connect as fast
//! as they can. It tells a `weir run` in the clients' namespace of each connection.
//!
//! Its programs run where the connections are handled, on account of whoever is there: the kernel measures them. All
//! else is the processor time of its process.

use super::replay::{certificates, sum};
use super::{Request, ms};
use crate::error::{Context, ensure};
use crate::instance::{Instance, cpu_of};
use crate::{Result, put};
use nix::libc::linger;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{Backlog, listen, setsockopt, sockopt};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir_testbed::programs::{Measuring, Ran};
use weir_testbed::{Namespaces, NetNs, link, process};

const INTERFACE: &str = "eth0";
const BALANCER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const BACKEND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 1), 80);
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Where the balancer listens for agents.
const LISTEN: u16 = 4479;
/// Threads of clients, and as many of the server.
const THREADS: usize = 2;
/// How often the server looks whether it is to end, in milliseconds.
const GLANCE: u16 = 20;
/// So long there are connections of which nobody is told.
const UNTOLD_FOR: Duration = Duration::from_secs(1);
/// From one look at what the balancer was told to the next.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// It is told no more when nothing has come for so many looks.
const SILENT_LOOKS: u32 = 20;
/// A server waits so long for the end of a connection. Linux before 6.19 loses a reset that comes while the handshake's
/// last ACK is handled on another processor (docs/lab.md): then the server ends it.
const PATIENCE: Duration = Duration::from_secs(1);

/// An agent, and connections of the kernel's TCP.
#[derive(Clone, Debug, Serialize)]
pub struct Real {
    /// Connections that were opened and closed.
    pub connections: u64,
    /// Of these, in a second.
    pub per_s: f64,
    /// Nanoseconds of processor time of the agent's process for each: what it reads, writes and encrypts, and what the
    /// kernel does for that.
    pub agent_cpu_ns: f64,
    /// Nanoseconds that its BPF programs ran for each, wherever they did.
    pub bpf_ns: f64,
    /// How often they ran for each: once for every change of a socket's state, and for every event of a new one.
    pub bpf_runs: f64,
    /// Nanoseconds that they ran, just before, for each connection of which nobody is told, both of whose ends are on
    /// this machine: all of those runs are over after a few instructions, and most of it is the kernel's look at the clock.
    pub bpf_untold_ns: f64,
    /// Both together.
    pub whole_ns: f64,
    /// Openings and ends of which the balancer has not heard.
    pub untold: u64,
    /// Milliseconds from the end of the last connection until the balancer had heard of it.
    pub behind_ms: f64,
}

impl fmt::Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, per_s, agent_cpu_ns, bpf_ns, bpf_runs, .. } = self;
        let Self { bpf_untold_ns, whole_ns, .. } = self;
        write!(
            f,
            "an agent beside {connections} connections, {per_s:.0} opened and closed in a second: {agent_cpu_ns:.0} ns \
             of its process for each, and {bpf_ns:.0} ns in {bpf_runs:.1} runs of its programs ({bpf_untold_ns:.0} ns \
             for one of which nobody is told); {whole_ns:.0} ns in all; {} untold",
            self.untold
        )
    }
}

/// Two namespaces with a cable: the balancer's and clients', and the backend's.
struct World {
    front: NetNs,
    backend: NetNs,
    _namespaces: Namespaces,
}

impl World {
    fn new() -> Result<Self> {
        let mut namespaces = Namespaces::new("agt");
        let (front, backend) = (namespaces.add("lb")?, namespaces.add("b0")?);
        let ends = [
            link::End::new(INTERFACE).inside(&front).mac(MACS[0]),
            link::End::new(INTERFACE).inside(&backend).mac(MACS[1]),
        ];
        link::ip(&link::veth(&ends))?;
        for (end, address) in [(&front, BALANCER), (&backend, BACKEND)] {
            end.sysctl("ipv6/conf/eth0/disable_ipv6", "1")?;
            end.no_checksum_offload(INTERFACE)?;
            let address = link::address(&format!("{address}/24"), INTERFACE);
            end.ip(&(link::up("lo") + &address + &link::up(INTERFACE)))?;
        }
        front.sysctl("ipv4/ip_forward", "1")?;
        // Clients go to the backend straight: the balancer has no part in what is measured.
        front.ip(&format!("route add {}/32 via {BACKEND}\n", SERVICE.ip()))?;
        backend.ip(&link::address(&format!("{}/32", SERVICE.ip()), "lo"))?;
        Ok(Self { front, backend, _namespaces: namespaces })
    }
}

fn config(name: &str, run_dir: &Path, pki: &Path) -> String {
    let mut text = String::new();
    let file = |name: &str| pki.join(name).display().to_string();
    put!(text, "[balancer]\nname = \"{name}\"\ninterfaces = [\"{INTERFACE}\"]");
    put!(text, "run_dir = \"{}\"", run_dir.display());
    put!(text, "[agents]\nlisten = \"{BALANCER}:{LISTEN}\"\nlearn = \"5m\"");
    put!(text, "certificate = {:?}\nkey = {:?}", file("lb.pem"), file("lb.key"));
    put!(text, "ca = {:?}", file("ca.pem"));
    put!(text, "[[service]]\nname = \"s0\"\nvip = \"{}\"\nprotocol = \"tcp\"", SERVICE.ip());
    put!(text, "port = {}\nmethod = \"residue\"\nstates = \"agents\"", SERVICE.port());
    put!(text, "[service.check]\nenabled = false");
    put!(text, "[[service.backend]]\nname = \"b0\"\naddress = \"{BACKEND}\"");
    text
}

/// The agent's process. Dropping it kills it.
struct Agent(Child);

impl Agent {
    fn start(weir: &Path, backend: &NetNs, pki: &Path) -> Result<Self> {
        let log = File::create(pki.join("agent.log")).context("making the agent's log")?;
        let mut command = backend.command(weir)?;
        command.args(["agent", "--only-tell", "--balancer", &format!("{BALANCER}:{LISTEN}")]);
        for (option, file) in [("--certificate", "b0.pem"), ("--key", "b0.key"), ("--ca", "ca.pem")]
        {
            command.arg(option).arg(pki.join(file));
        }
        command.arg("--state-dir").arg(pki.join("agent"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(Self(process::spawn(command)?))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        process::kill(&mut self.0);
    }
}

fn listen_at(inside: &NetNs, address: SocketAddr) -> Result<TcpListener> {
    let listener = inside.enter(|| {
        let listener = TcpListener::bind(address)?;
        // Nobody is to wait for a SYN that is sent again.
        listen(&listener, Backlog::MAXCONN)?;
        listener.set_nonblocking(true)?;
        std::io::Result::Ok(listener)
    })?;
    Ok(listener.context("listening for clients")?)
}

/// Takes connections, and waits for the end of each, until it is to end.
fn serve(listener: &TcpListener, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let mut wanted = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        // One that was interrupted is asked again.
        let _ = poll(&mut wanted, GLANCE);
        while let Ok((mut connection, _)) = listener.accept() {
            // A reset is its end, too. One that cannot be waited for is closed.
            if connection.set_read_timeout(Some(PATIENCE)).is_ok() {
                while matches!(connection.read(&mut [0; 8]), Ok(1..)) {}
            }
        }
    }
}

/// Connects again and again, and resets each connection, so that its port is free again at once. How often.
fn connect(to: SocketAddr, over: &AtomicBool) -> Result<u64> {
    let mut made = 0;
    while !over.load(Ordering::Relaxed) {
        let stream = TcpStream::connect(to).context("connecting to the server")?;
        let at_once = linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&stream, sockopt::Linger, &at_once).context("closing a connection")?;
        made += 1;
    }
    Ok(made)
}

/// Connects from all threads for so long; how many connections there were.
fn connect_for(world: &World, to: SocketAddr, time: Duration) -> Result<u64> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| world.front.enter(|| connect(to, &over)).map_err(crate::Error::from))
            })
            .collect();
        let begun = Instant::now();
        while begun.elapsed() < time && !clients.iter().any(|one| one.is_finished()) {
            thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Ordering::Relaxed);
        let made = clients.into_iter().map(|one| match one.join() {
            Ok(made) => made.flatten(),
            Err(panic) => std::panic::resume_unwind(panic),
        });
        made.sum()
    })
}

/// How long the agent's programs run for a connection of which nobody is told, in nanoseconds.
fn of_untold(world: &World, agent: u32) -> Result<f64> {
    let listener = listen_at(&world.front, (Ipv4Addr::LOCALHOST, 0).into())?;
    let at = listener.local_addr().context("asking where a server listens")?;
    let over = AtomicBool::new(false);
    let ran = || Ran::of(agent).context("asking for the agent's programs");
    let measure = || -> Result<f64> {
        let before = ran()?;
        let connections = connect_for(world, at, UNTOLD_FOR)?;
        let time = ran()?.since(before).time;
        Ok(time.as_nanos() as f64 / connections.max(1) as f64)
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| serve(&listener, &over));
        }
        let measured = measure();
        over.store(true, Ordering::Relaxed);
        measured
    })
}

pub(super) fn run(request: &Request) -> Result<Real> {
    let _measuring = Measuring::begin().context("having the kernel measure BPF programs")?;
    let directory = tempfile::tempdir().context("making a directory")?;
    let pki = directory.path();
    certificates(pki, BALANCER.into(), &[BACKEND.into()])?;
    let world = World::new()?;
    let listener = listen_at(&world.backend, SERVICE.into())?;
    let command = world.front.command(&request.weir)?;
    let mut instance = Instance::start(&request.weir, command, |name, run| config(name, run, pki))?;
    instance.await_socket(request.patience)?;
    let agent = Agent::start(&request.weir, &world.backend, pki)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| serve(&listener, &over));
        }
        let measured = measure(request, &world, &instance, agent.0.id());
        over.store(true, Ordering::Relaxed);
        measured
    })
}

fn measure(request: &Request, world: &World, instance: &Instance, agent: u32) -> Result<Real> {
    let begun = Instant::now();
    loop {
        let (status, _) = instance.status(request.patience)?;
        let told = status["agents"]
            .as_array()
            .is_some_and(|all| all.len() == 1 && all.iter().all(|agent| agent["told"] == true));
        if told {
            break;
        }
        let late = begun.elapsed() > request.patience;
        ensure!(!late, "no agent has called; the log ends:\n{}", instance.log());
        thread::sleep(LOOK_EVERY);
    }
    let bpf_untold_ns = of_untold(world, agent)?;
    let ran = || Ran::of(agent).context("asking for the agent's programs");
    let events = || Ok::<_, crate::Error>(sum(&instance.status(request.patience)?.0, "events"));
    let (before, told_before) = (ran()?, events()?);
    let (cpu, began) = (cpu_of(agent)?, Instant::now());
    let time = Duration::from_secs(request.seconds.into());
    let connections = connect_for(world, SERVICE.into(), time)?;
    let took = began.elapsed();
    ensure!(connections > 0, "nobody has connected");
    let ran = ran()?.since(before);
    // What is told last has taken something, too.
    let ended = Instant::now();
    let (mut used, mut last, mut behind) = (cpu_of(agent)?, events()?, Duration::ZERO);
    let mut silent = 0;
    while silent < SILENT_LOOKS && last.saturating_sub(told_before) < connections * 2 {
        thread::sleep(LOOK_EVERY);
        let now = events()?;
        if now == last {
            silent += 1;
        } else {
            (used, last, behind, silent) = (cpu_of(agent)?, now, ended.elapsed(), 0);
        }
        ensure!(ended.elapsed() < request.patience, "the agent is not through in time");
    }
    let untold = (connections * 2).saturating_sub(last - told_before);
    // A program at a tracepoint is passed over now and then (docs/agent.md).
    ensure!(untold <= connections / 100, "{untold} events of {connections} connections are untold");
    let each = |time: Duration| time.as_nanos() as f64 / connections as f64;
    let (process, programs) = (each(used.saturating_sub(cpu)), each(ran.time));
    Ok(Real {
        connections,
        per_s: connections as f64 / took.as_secs_f64(),
        agent_cpu_ns: process,
        bpf_ns: programs,
        bpf_runs: ran.runs as f64 / connections as f64,
        bpf_untold_ns,
        whole_ns: process + programs,
        untold,
        behind_ms: ms(behind),
    })
}
