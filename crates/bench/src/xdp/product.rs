//! `weir run` as the subject of the bench: a balancer with a service of each method, whose tables are
//! made of the first packets that it saw, and of a change of its pool.

use crate::Result;
use crate::error::ensure;
use crate::instance::Instance;
use crate::put;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use weir_dataplane::Interface;
use weir_dataplane::bench::{Method, Stream, XdpBench};
use weir_testbed::{link, process, sysctl};
use weir_wire::TcpFlags;

/// The methods that a balancer runs without answers passing it.
pub const METHODS: [Method; 4] = [Method::Concury, Method::Tracked, Method::Jet, Method::Residue];

const ENDS: [&str; 2] = ["gen1", "lb1"];
const ADDRESS: &str = "10.9.0.1/16";
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

/// A balancer that runs.
pub struct Product {
    /// The generator's end, and the balancer's.
    pub ends: [Interface; 2],
    instance: Instance,
    flows: u32,
}

impl Product {
    /// Starts one in the namespace of this thread, beside the processor that is measured if there is
    /// another.
    pub fn start(weir: &Path, flows: u32, measured: usize) -> Result<Self> {
        link::ip(&link::veth(&ENDS.map(link::End::new)))?;
        for end in ENDS {
            sysctl(&format!("ipv6/conf/{end}/disable_ipv6"), "1")?;
        }
        sysctl("ipv4/ip_forward", "1")?;
        let mut lines = link::address(ADDRESS, ENDS[1]) + &ENDS.map(link::up).concat();
        for backend in 0..BACKENDS + STANDBY {
            let mac = [2, 0xbe, 0, 0, 0, backend as u8];
            lines += &link::neighbour(address(backend).into(), mac, ENDS[1]);
        }
        link::ip(&lines)?;
        let [generator, balancer] = ENDS.map(Interface::find);
        let ends = [generator?, balancer?];
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        process::stay_on_cpu((measured + 1) % cpus)?;
        let mut command = Command::new(weir);
        process::tie(&mut command);
        let config = |name: &str, run_dir: &Path| config(name, run_dir, flows);
        let mut instance = Instance::start(weir, command, config)?;
        instance.await_socket(PATIENCE)?;
        Ok(Self { ends, instance, flows })
    }

    /// Begins all flows, has the pool of each service change, and waits until what comes after it is
    /// over.
    pub fn make_ready(&mut self, bench: &mut XdpBench<'_>) -> Result<()> {
        bench.sink(&self.ends[0])?;
        for method in METHODS {
            for first in (0..self.flows).step_by(BURST as usize) {
                let packets = BURST.min(self.flows - first);
                self.all(bench, method, TcpFlags::SYN, first, packets)?;
                thread::sleep(PAUSE);
            }
            // Their second packets: what answers a handshake is open.
            self.all(bench, method, TcpFlags::ACK, 0, self.flows)?;
        }
        self.await_states()?;
        for method in METHODS {
            let mut answer = self.instance.set_weight(method.name(), "b0", 2)?;
            let asked = Instant::now();
            while answer.take()?.is_none() {
                ensure!(asked.elapsed() < PATIENCE, "no answer to a change of a weight");
                thread::sleep(Duration::from_millis(10));
            }
        }
        thread::sleep(TWO_LOOKS);
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
        let stream = Stream { method, packets, flows, seed, in_order: true, flags };
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
            let services = status["services"].as_array();
            let known = |method: Method| {
                let mut services = services.into_iter().flatten();
                let of = services.find(|service| service["name"] == method.name());
                of.and_then(|service| service["states"].as_u64()).unwrap_or(0)
            };
            let methods = METHODS.into_iter().filter(|method| method.has_marks());
            let fewest = methods.map(known).min().unwrap_or(0);
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
}

fn address(backend: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a09_0100 + backend)
}

fn config(name: &str, run_dir: &Path, flows: u32) -> String {
    let mut text = String::new();
    put!(text, "[balancer]\nname = \"{name}\"\ninterfaces = [\"{}\"]", ENDS[1]);
    put!(text, "mode = \"native\"\nrun_dir = \"{}\"", run_dir.display());
    put!(text, "[limits]\nservices = 8\nbackends = 512");
    // As the bench has it.
    put!(text, "tracked_flows = {}", (flows + flows / 4 * 3).max(4096));
    put!(text, "states_per_service = {}", flows.max(1 << 16));
    // Its clients are of a few prefixes.
    put!(text, "states_per_prefix = 0");
    put!(text, "table_bytes = {}", (64 << 20) + u64::from(flows) * 16);
    for method in METHODS {
        let method_name = method.name();
        put!(text, "[[service]]\nname = \"{method_name}\"\nvip = \"{}\"", method.vip());
        put!(text, "protocol = \"tcp\"\nport = 80\nmethod = \"{method_name}\"");
        put!(text, "[service.check]\nenabled = false");
        let standby = if method == Method::Jet { STANDBY } else { 0 };
        for backend in 0..BACKENDS + standby {
            put!(text, "[[service.backend]]\nname = \"b{backend}\"");
            put!(text, "address = \"{}\"\ndrain = {}", address(backend), backend >= BACKENDS);
        }
    }
    text
}
