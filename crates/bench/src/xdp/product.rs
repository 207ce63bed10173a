//! `weir run` as the subject of the bench: balancers with a service of each method, whose tables are
//! made of the first packets that they saw, and of a change of their pools.

use crate::Result;
use crate::error::ensure;
use crate::instance::Instance;
use crate::put;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use weir_dataplane::Interface;
use weir_dataplane::bench::{Method, Sample, Stream, XdpBench, partitions};
use weir_testbed::{link, process, sysctl};
use weir_wire::TcpFlags;

/// The methods that are measured so.
pub const METHODS: [Method; 6] = Method::ALL;

/// One of the balancers, and its cable.
#[derive(Debug)]
struct Site {
    /// Letters of its instance's name.
    name: &'static str,
    /// The generator's end, and the balancer's.
    ends: [&'static str; 2],
    /// The second byte of its network's addresses.
    network: u8,
    methods: &'static [Method],
}

/// Those with cookies have a balancer of their own. It notes in its connection table what each SYN was
/// told, which no packet with a cookie reads; in one table with theirs, those of `tracked` would have less
/// room than they have in the bench's own.
const SITES: [Site; 2] = [
    Site {
        name: "",
        ends: ["gen1", "lb1"],
        network: 9,
        methods: &[Method::Concury, Method::Tracked, Method::Jet, Method::Residue],
    },
    Site {
        name: "cookies",
        ends: ["gen2", "lb2"],
        network: 10,
        methods: &[Method::Cheetah, Method::CheetahStateful],
    },
];

impl Site {
    fn own_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.network, 0, 1)
    }

    fn address(&self, backend: u32) -> Ipv4Addr {
        Ipv4Addr::new(10, self.network, 1, backend as u8)
    }
}

/// Backends of each service that serve, and those that stand by, for the method with a horizon.
const BACKENDS: u32 = 64;
const STANDBY: u32 = 6;
/// Flows that begin at once, and the time until the next ones do: some 130,000 in a second.
const BURST: u32 = 8192;
const PAUSE: Duration = Duration::from_millis(60);
/// Longest wait for anything that has to come.
const PATIENCE: Duration = Duration::from_secs(120);
/// The balancer looks every 10 s which flows are active: it has looked twice.
const TWO_LOOKS: Duration = Duration::from_secs(21);
/// Seconds for which jet tracks the flows of a row before it gives the row to another backend.
const WARM_UP: u32 = 20;

/// Balancers that run.
pub struct Product {
    balancers: Vec<Balancer>,
    flows: u32,
}

/// One of them.
struct Balancer {
    /// The generator's end, and the balancer's.
    ends: [Interface; 2],
    instance: Instance,
    methods: &'static [Method],
    flows: u32,
}

impl Product {
    /// Starts them in the namespace of this thread, beside the processor that is measured if there is
    /// another.
    pub fn start(weir: &Path, flows: u32, measured: usize) -> Result<Self> {
        sysctl("ipv4/ip_forward", "1")?;
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        process::stay_on_cpu((measured + 1) % cpus)?;
        let balancers = SITES.iter().map(|site| Balancer::start(weir, site, flows));
        Ok(Self { balancers: balancers.collect::<Result<_>>()?, flows })
    }

    /// Packets of a method's flows, through its balancer.
    pub fn send(
        &self,
        bench: &mut XdpBench<'_>,
        method: Method,
        packets: u32,
        seed: u64,
    ) -> Result<Sample> {
        let of = self.balancers.iter().find(|balancer| balancer.methods.contains(&method));
        let Some(balancer) = of else { unreachable!("each method has its balancer") };
        let (flows, flags) = (self.flows, TcpFlags::ACK);
        let stream = Stream { method, packets, flows, seed, in_order: false, flags, running: true };
        Ok(bench.send(&balancer.ends, &stream)?)
    }

    /// Begins all flows, has the pool of each service change, and waits until what comes after it is
    /// over.
    pub fn make_ready(&self, bench: &mut XdpBench<'_>) -> Result<()> {
        for balancer in &self.balancers {
            balancer.make_ready(bench)?;
        }
        thread::sleep(TWO_LOOKS);
        Ok(())
    }
}

impl Balancer {
    fn start(weir: &Path, site: &Site, flows: u32) -> Result<Self> {
        link::ip(&link::veth(&site.ends.map(link::End::new)))?;
        for end in site.ends {
            sysctl(&format!("ipv6/conf/{end}/disable_ipv6"), "1")?;
        }
        let own = format!("{}/16", site.own_address());
        let mut lines = link::address(&own, site.ends[1]) + &site.ends.map(link::up).concat();
        for backend in 0..BACKENDS + STANDBY {
            let mac = [2, 0xbe, 0, 0, site.network, backend as u8];
            lines += &link::neighbour(site.address(backend).into(), mac, site.ends[1]);
        }
        link::ip(&lines)?;
        let [generator, balancer] = site.ends.map(Interface::find);
        let ends = [generator?, balancer?];
        let mut command = Command::new(weir);
        process::tie(&mut command);
        let config = |name: &str, run_dir: &Path| config(site, name, run_dir, flows);
        let mut instance = Instance::start_beside(weir, site.name, command, config)?;
        instance.await_socket(PATIENCE)?;
        Ok(Self { ends, instance, methods: site.methods, flows })
    }

    fn make_ready(&self, bench: &mut XdpBench<'_>) -> Result<()> {
        bench.sink(&self.ends[0])?;
        for &method in self.methods {
            self.begin(bench, method)?;
        }
        self.await_states()?;
        for &method in self.methods {
            self.change(bench, method)?;
        }
        Ok(())
    }

    /// Begins all flows of a method.
    fn begin(&self, bench: &mut XdpBench<'_>, method: Method) -> Result<()> {
        for first in (0..self.flows).step_by(BURST as usize) {
            let packets = BURST.min(self.flows - first);
            self.all(bench, method, TcpFlags::SYN, first, packets)?;
            // A slot whose connection does not open is given back.
            if method.has_cookies() {
                self.all(bench, method, TcpFlags::ACK, first, packets)?;
            }
            thread::sleep(PAUSE);
        }
        // Their second packets: what answers a handshake is open.
        self.all(bench, method, TcpFlags::ACK, 0, self.flows)
    }

    /// Changes the pool of a method's service, and waits until the change is over.
    fn change(&self, bench: &mut XdpBench<'_>, method: Method) -> Result<()> {
        let mut answer = self.instance.set_weight(method.name(), "b0", 2)?;
        let asked = Instant::now();
        while answer.take()?.is_none() {
            ensure!(asked.elapsed() < PATIENCE, "no answer to a change of a weight");
            thread::sleep(Duration::from_millis(10));
        }
        if method != Method::Jet {
            return Ok(());
        }
        // The rows that are to move are tracked until the warm-up is over. No flow is silent in it.
        let announced = self.tracked_share()?;
        self.all(bench, method, TcpFlags::ACK, 0, self.flows)?;
        let began = Instant::now();
        while self.tracked_share()? >= announced {
            ensure!(began.elapsed() < PATIENCE, "jet's rows are still announced");
            thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    /// A packet of each of these flows. All must come back.
    fn all(
        &self,
        bench: &mut XdpBench<'_>,
        method: Method,
        flags: TcpFlags,
        first: u32,
        packets: u32,
    ) -> Result<()> {
        let (flows, seed) = (self.flows, u64::from(first));
        let stream = Stream { method, packets, flows, seed, in_order: true, flags, running: true };
        let sample = bench.send(&self.ends, &stream)?;
        ensure!(
            sample.returned > 0.99,
            "the running balancer forwards {:.3} of the packets of {}:\n{}",
            sample.returned,
            method.name(),
            self.instance.log()
        );
        Ok(())
    }

    /// Waits until the control plane knows all flows of methods that remember them.
    fn await_states(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let (status, _) = self.instance.status(PATIENCE)?;
            let known =
                |method: Method| of_service(&status, method)["states"].as_u64().unwrap_or(0);
            let methods = self.methods.iter().copied().filter(|method| method.has_marks());
            let Some(fewest) = methods.map(known).min() else { return Ok(()) };
            if fewest >= u64::from(self.flows) {
                return Ok(());
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "the running balancer knows {fewest} of {} flows",
                self.flows
            );
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// The part of jet's rows whose flows are tracked.
    fn tracked_share(&self) -> Result<f64> {
        let (status, _) = self.instance.status(PATIENCE)?;
        let share = of_service(&status, Method::Jet)["tracking"]["tracked_share"].as_f64();
        ensure!(share.is_some(), "the status does not say what jet tracks");
        Ok(share.unwrap_or(0.0))
    }
}

/// What a status says of a method's service.
fn of_service(status: &Value, method: Method) -> &Value {
    let mut services = status["services"].as_array().into_iter().flatten();
    services.find(|service| service["name"] == method.name()).unwrap_or(&Value::Null)
}

fn config(site: &Site, name: &str, run_dir: &Path, flows: u32) -> String {
    let mut text = String::new();
    put!(text, "[balancer]\nname = \"{name}\"\ninterfaces = [\"{}\"]", site.ends[1]);
    put!(text, "mode = \"native\"\nrun_dir = \"{}\"", run_dir.display());
    put!(text, "[limits]\nservices = 8\nbackends = 512");
    // As the bench has it.
    put!(text, "tracked_flows = {}", (flows + flows / 4 * 3).max(4096));
    put!(text, "states_per_service = {}", flows.max(1 << 16));
    // Its clients are of a few prefixes.
    put!(text, "states_per_prefix = 0");
    put!(text, "table_bytes = {}", (64 << 20) + u64::from(flows) * 16);
    if site.methods.contains(&Method::CheetahStateful) {
        put!(text, "slot_partitions = {}", partitions(flows));
    }
    for &method in site.methods {
        let method_name = method.name();
        put!(text, "[[service]]\nname = \"{method_name}\"\nvip = \"{}\"", method.vip());
        put!(text, "protocol = \"tcp\"\nport = 80\nmethod = \"{method_name}\"");
        if method == Method::Jet {
            put!(text, "warm_up = {WARM_UP}");
        }
        if method.has_cookies() {
            // A SYN tells its cookie on the way to the backend, where the bench takes it in.
            put!(text, "answers = \"backend\"");
        }
        if method == Method::CheetahStateful {
            put!(text, "partitions = {}", partitions(flows));
        }
        put!(text, "[service.check]\nenabled = false");
        let standby = if method == Method::Jet { STANDBY } else { 0 };
        for backend in 0..BACKENDS + standby {
            put!(text, "[[service.backend]]\nname = \"b{backend}\"");
            put!(text, "address = \"{}\"\ndrain = {}", site.address(backend), backend >= BACKENDS);
        }
    }
    text
}
