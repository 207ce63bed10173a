//! `weir bench plane --ports af-xdp`: a running balancer whose packets are decided in user space, beside a bare
//! forwarder over the same sockets.
//!
//! ```text
//!  generator ── veth ──> weir run --plane af-xdp ──> AF_XDP: decide, other MAC addresses ──> back
//!            ── veth ──> a program that redirects ──> AF_XDP: MAC addresses swapped ──────> back
//! ```
//! Both are sent more than they take, in turn. What counts is the processor time that the thread at the
//! sockets takes for a frame that comes back, as the kernel's scheduler has it: it is the same however much
//! else the machine does.

use super::Beside;
use super::beside::cycles;
use crate::error::{Context, demand, ensure};
use crate::instance::Instance;
use crate::{Result, Spread, put};
use nix::unistd::gettid;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use weir_dataplane::Interface;
use weir_dataplane::bench::{Method, Storage, Stream, XdpBench};
use weir_dataplane::xsk::XskPorts;
use weir_plane_burst::beside::sockets;
use weir_plane_burst::macswap;
use weir_plane_burst::ports::AfXdp;
use weir_testbed::{link, process, sysctl};
use weir_wire::TcpFlags;

/// The methods of which such a plane decides all packets in the middle of connections. (Those of jet that its
/// connection table has are the program's.)
const METHODS: [Method; 2] = [Method::Concury, Method::Residue];
const ADDRESS: &str = "10.9.0.1/16";
const BACKENDS: u32 = 64;
/// Flows that begin at once: as many as a ring of reports takes.
const BEGIN: u32 = 4096;
/// Frames at a time of which all are to come back: no ring is that short.
const WINDOW: u32 = 256;
/// Longest wait for anything that has to come.
const PATIENCE: Duration = Duration::from_secs(120);
/// The bare forwarder looks for frames so long before it sleeps, and sleeps so long at a time.
const SPIN: Duration = Duration::from_micros(50);
const NAP: Duration = Duration::from_millis(100);

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program.
    pub weir: PathBuf,
    /// Flows, of each method.
    pub flows: u32,
    /// Frames that are sent in a measurement.
    pub packets: u32,
    /// Rounds; each measures everything once, in turn.
    pub rounds: u32,
}

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Frames that are sent in a measurement.
    pub packets: u32,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// One for each method.
    pub rows: Vec<Row>,
}

/// A method beside the bare forwarder.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// By the processor time that the thread at the sockets takes for frames that come back.
    #[serde(flatten)]
    pub beside: Beside,
    /// Share of the frames that came back: more were sent than could be taken.
    pub returned: f64,
    /// As `returned`, of the bare forwarder.
    pub macswap_returned: f64,
    /// Frames of which every one came back before the clock ran.
    pub checked: u32,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Beside { flows, method, forward, mpps, ns, .. } = self.beside;
        write!(
            f,
            "{flows:>9} flows  AF_XDP  {method:<8} {forward:<4}{mpps:>6.2} Mpps of processor time, {ns:>4.0} \
             ns/frame; {}",
            self.beside.ratio(),
        )
    }
}

/// Measures, in a network namespace of the calling thread's own. `progress` gets each row when it is ready.
///
/// # Errors
/// What the kernel refuses, or a plane that does not forward what it is sent.
pub fn run(request: &Request, progress: impl FnMut(&Row)) -> Result<Report> {
    demand!(request.flows >= 1 && request.packets >= 1, "give flows and packets, at least 1");
    thread::scope(|scope| {
        let measured = scope.spawn(|| measure(request));
        measured.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
    .map(|rows| {
        rows.iter().for_each(progress);
        Report { packets: request.packets, rounds: request.rounds, rows }
    })
}

/// Of a measurement: nanoseconds of the processor for a frame, and the share of frames that came back.
type Sample = (f64, f64);

fn measure(request: &Request) -> Result<Vec<Row>> {
    weir_testbed::enter_own_namespace()?;
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let other = 1 % cpus;
    let ends = [["gen0", "lb0"], ["gen1", "lb1"]];
    for pair in ends {
        link::ip(&link::veth(&pair.map(link::End::new)))?;
        for end in pair {
            sysctl(&format!("ipv6/conf/{end}/disable_ipv6"), "1")?;
        }
    }
    let subject = ends[0].map(Interface::find);
    let [generator, balancer] = subject;
    let subject = [generator?, balancer?];
    let [generator, reflector] = ends[1].map(Interface::find);
    let floor = [generator?, reflector?];
    let bare = Bare::start(ends[1][1], other)?;
    link::ip(&link::up(ends[1][0]))?;
    // What is started takes this thread's processor along.
    process::stay_on_cpu(other)?;
    let instance = balance(&request.weir, ends[0], request.flows)?;
    process::stay_on_cpu(0)?;
    let mut storage = Storage::uninit();
    let bench = XdpBench::new(&mut storage, 1, [subject[0].clone(), subject[1].clone()])?;
    bench.sink(&floor[0])?;
    let mut world = World { bench, instance, bare, subject, floor, flows: request.flows };
    world.make_ready()?;
    let mut rounds = Vec::new();
    for turn in 0..request.rounds.max(1) {
        let floor = world.floor(request.packets, turn)?;
        let each = METHODS.map(|method| world.method(method, request.packets, turn));
        let each = each.into_iter().collect::<Result<Vec<Sample>>>()?;
        rounds.push((floor, each));
    }
    Ok(METHODS.iter().enumerate().map(|(at, method)| row(*method, at, request, &rounds)).collect())
}

/// What one round has measured: the bare forwarder, and each method.
type Round = (Sample, Vec<Sample>);

fn row(method: Method, at: usize, request: &Request, rounds: &[Round]) -> Row {
    let median = |of: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
    let ratio = median(&|(floor, each)| floor.0 / each[at].0);
    let (ns, macswap_ns) =
        (median(&|(_, each)| each[at].0).median, median(&|(floor, _)| floor.0).median);
    let beside = Beside {
        plane: "af-xdp",
        method: method.name(),
        forward: "l2",
        flows: request.flows,
        cores: 1,
        mpps: 1e3 / ns,
        macswap_mpps: 1e3 / macswap_ns,
        ratio_to_macswap: ratio.median,
        ratio_spread: ratio,
        ns,
        macswap_ns,
        cycles: cycles(ns),
        macswap_cycles: cycles(macswap_ns),
    };
    Row {
        beside,
        returned: median(&|(_, each)| each[at].1).median,
        macswap_returned: median(&|(floor, _)| floor.1).median,
        checked: request.flows,
    }
}

struct World<'a> {
    bench: XdpBench<'a>,
    instance: Instance,
    bare: Bare,
    subject: [Interface; 2],
    floor: [Interface; 2],
    flows: u32,
}

impl World<'_> {
    /// Begins all flows, and sends packets of each until those in the middle of connections are decided in user
    /// space: while a table is made they are not.
    fn make_ready(&mut self) -> Result<()> {
        self.bench.sink(&self.subject[0])?;
        self.process()?;
        for method in METHODS {
            for first in (0..self.flows).step_by(BEGIN as usize) {
                self.all(method, TcpFlags::SYN, first, BEGIN.min(self.flows - first))?;
                thread::sleep(NAP);
            }
        }
        for method in METHODS {
            let began = Instant::now();
            loop {
                let before = self.received()?;
                for first in (0..self.flows).step_by(WINDOW as usize) {
                    self.all(method, TcpFlags::ACK, first, WINDOW.min(self.flows - first))?;
                }
                // It tells once a second.
                thread::sleep(Duration::from_millis(1500));
                if self.received()? - before >= u64::from(self.flows) {
                    break;
                }
                ensure!(
                    began.elapsed() < PATIENCE,
                    "packets of {} are not decided in user space:\n{}",
                    method.name(),
                    self.instance.log()
                );
            }
        }
        Ok(())
    }

    /// A packet of each of these flows. All must come back.
    fn all(&mut self, method: Method, flags: TcpFlags, first: u32, packets: u32) -> Result<()> {
        let (flows, seed) = (self.flows, first.into());
        let stream = Stream { method, packets, flows, seed, in_order: true, flags, running: false };
        let sample = self.bench.send(&self.subject, &stream)?;
        ensure!(
            sample.returned > 0.999,
            "{:.4} of the packets of {} come back:\n{}",
            sample.returned,
            method.name(),
            self.instance.log()
        );
        Ok(())
    }

    fn stream(&self, method: Method, packets: u32, turn: u32) -> Stream {
        let (flows, seed) = (self.flows, turn.into());
        Stream {
            method,
            packets,
            flows,
            seed,
            in_order: false,
            flags: TcpFlags::ACK,
            running: false,
        }
    }

    fn method(&mut self, method: Method, packets: u32, turn: u32) -> Result<Sample> {
        let (process, stream) = (self.process()?, self.stream(method, packets, turn));
        let path = format!("/proc/{process}/task/{process}/schedstat");
        let before = used(&path)?;
        let sample = self.bench.send(&self.subject, &stream)?;
        sampled(used(&path)? - before, packets, sample.returned)
    }

    fn floor(&mut self, packets: u32, turn: u32) -> Result<Sample> {
        let stream = self.stream(METHODS[0], packets, turn);
        let before = used(&self.bare.path)?;
        let sample = self.bench.send(&self.floor, &stream)?;
        sampled(used(&self.bare.path)? - before, packets, sample.returned)
    }

    /// What the plane in user space tells.
    fn plane(&self) -> Result<serde_json::Value> {
        let (mut status, _) = self.instance.status(PATIENCE)?;
        Ok(status["plane"].take())
    }

    fn received(&self) -> Result<u64> {
        Ok(self.plane()?["counts"]["received"].as_u64().unwrap_or(0))
    }

    /// Its process, when it is there.
    fn process(&self) -> Result<u64> {
        let began = Instant::now();
        loop {
            let plane = self.plane()?;
            if let Some(process) = plane["process"].as_u64() {
                return Ok(process);
            }
            ensure!(began.elapsed() < PATIENCE, "there is no plane in user space: {plane}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn sampled(used: u64, packets: u32, returned: f64) -> Result<Sample> {
    let frames = f64::from(packets) * returned;
    ensure!(frames >= 1.0, "nothing came back");
    Ok((used as f64 / frames, returned))
}

/// Nanoseconds that a thread has run, as the scheduler has it.
fn used(path: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let used = text.split(' ').next().and_then(|word| word.parse().ok());
    Ok(used.ok_or_else(|| std::io::Error::other("no number")).context("reading processor time")?)
}

/// A balancer at the second of two ends.
fn balance(weir: &Path, ends: [&str; 2], flows: u32) -> Result<Instance> {
    sysctl("ipv4/ip_forward", "1")?;
    let mut lines = link::address(ADDRESS, ends[1]) + &ends.map(link::up).concat();
    for backend in 0..BACKENDS {
        let mac = [2, 0xbe, 0, 0, 0, backend as u8];
        lines += &link::neighbour(address(backend).into(), mac, ends[1]);
    }
    link::ip(&lines)?;
    let mut command = Command::new(weir);
    process::tie(&mut command);
    let config = |name: &str, run_dir: &Path| config(name, run_dir, ends[1], flows);
    let mut instance = Instance::start(weir, command, config)?;
    instance.await_socket(PATIENCE)?;
    Ok(instance)
}

fn address(backend: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a09_0100 + backend)
}

fn config(name: &str, run_dir: &Path, interface: &str, flows: u32) -> String {
    let mut text = String::new();
    put!(text, "[balancer]\nname = \"{name}\"\ninterfaces = [\"{interface}\"]");
    put!(text, "mode = \"native\"\nplane = \"af-xdp\"\nrun_dir = \"{}\"", run_dir.display());
    put!(text, "[limits]\nservices = 8\nbackends = 512");
    put!(text, "states_per_service = {}", flows.max(1 << 16));
    // Its clients are of a few prefixes, and none of them ends a handshake.
    put!(text, "states_per_prefix = 0\nhalf_open_flows = {}", flows.max(1 << 16));
    put!(text, "tracked_flows = {}", flows.max(1 << 16));
    // As many half-open flows as open ones, in tables whose cells have just been doubled.
    let table_bytes = (64 << 20) + u64::from(flows) * 40;
    put!(text, "table_bytes = {}", table_bytes.min(1 << 29));
    for method in METHODS {
        let method_name = method.name();
        put!(text, "[[service]]\nname = \"{method_name}\"\nvip = \"{}\"", method.vip());
        put!(text, "protocol = \"tcp\"\nport = 80\nmethod = \"{method_name}\"");
        put!(text, "[service.check]\nenabled = false");
        for backend in 0..BACKENDS {
            put!(text, "[[service.backend]]\nname = \"b{backend}\"");
            put!(text, "address = \"{}\"", address(backend));
        }
    }
    text
}

/// A forwarder that swaps MAC addresses, on a thread in a namespace of its own: there is one memory for frames in
/// a namespace.
struct Bare {
    /// Where the scheduler says how long the thread has run.
    path: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Bare {
    /// Takes an interface of this thread's namespace there.
    fn start(interface: &'static str, cpu: usize) -> Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let told = Arc::clone(&stop);
        let (here, there) = mpsc::channel();
        let (moved, go) = mpsc::channel();
        let thread = thread::spawn(move || {
            weir_testbed::enter_own_namespace()?;
            process::stay_on_cpu(cpu)?;
            let _ = here.send(gettid());
            if go.recv().is_err() {
                return Ok(());
            }
            link::ip(&link::up(interface))?;
            let place = Interface::find(interface)?;
            let mut ports = XskPorts::open(sockets(1))?;
            ports.plug(0, place.index)?;
            let _ = here.send(gettid());
            reflect(AfXdp::new(ports, Box::new(|_, _, _| ())), &told)
        });
        let mut bare = Self { path: String::new(), stop, thread: Some(thread) };
        let Ok(id) = there.recv() else { return Err(bare.failure()) };
        link::ip(&format!("link set {interface} netns {id}\n"))?;
        let _ = moved.send(());
        if there.recv().is_err() {
            return Err(bare.failure());
        }
        bare.path = format!("/proc/self/task/{id}/schedstat");
        Ok(bare)
    }

    /// Why it has ended.
    fn failure(&mut self) -> crate::Error {
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(Err(error))) => error,
            _ => crate::Error::Fault("the bare forwarder has ended".into()),
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn reflect(mut ports: AfXdp<'_>, stop: &AtomicBool) -> Result<()> {
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if macswap(&mut ports)? > 0 {
            last = Instant::now();
        } else if last.elapsed() > SPIN {
            ports.sockets().wait_readable(NAP)?;
        }
    }
    Ok(())
}
