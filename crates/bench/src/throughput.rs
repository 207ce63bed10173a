//! `weir bench throughput`: what one connection of TCP carries through a running balancer, beside what it carries
//! through what the kernel has for the same purpose: nftables in place of NAT, its tunnel devices in place of
//! tunnels.
//!
//! ```text
//!  client ── veth ──> weir run ───────────────── veth ──> backend: iperf3 -s
//!  client ── veth ──> nftables, or ip link ───── veth ──> backend: iperf3 -s
//! ```
//! The two networks are alike, each in namespaces of its own, and are measured in turn. Neither joins packets to
//! larger ones: a segment is a frame everywhere, as between machines whose cards do not help. All of it, both ends
//! of the connection included, runs on the machine's processors, so ratios say what a user would see here, and
//! less than what the way itself costs ([`crate::xdp`] has that).

use crate::error::{Context, demand, ensure};
use crate::instance::Instance;
use crate::{Error, Result, Spread, put};
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use weir_testbed::decapsulate::{FOU_PORT, GUE_PORT};
use weir_testbed::{Namespaces, NetNs, link, process, xdp};

const INTERFACE: &str = "eth0";
/// The balancer's other one, to the backend.
const INSIDE: &str = "eth1";
const CLIENT: &str = "10.90.1.2";
const OUTER: &str = "10.90.1.1";
const INNER: &str = "10.90.2.1";
const BACKEND: &str = "10.90.2.2";
const VIP: &str = "10.90.0.9";
const PORT: u16 = 5201;
/// The client's packets leave room for every tunnel.
const CLIENT_MTU: u32 = 1440;
/// Longest wait for anything that has to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// How packets get to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// With the backend's address; answers pass the balancer.
    Nat,
    /// From an address of the balancer's, too.
    FullNat,
    /// In IP.
    Ipip,
    /// With four bytes more.
    Gre,
    /// In UDP.
    Fou,
    /// In UDP with a header.
    Gue,
}

impl Forward {
    /// All that are measured.
    pub const ALL: [Self; 6] =
        [Self::Nat, Self::FullNat, Self::Ipip, Self::Gre, Self::Fou, Self::Gue];

    /// As the configuration file has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::FullNat => "fullnat",
            Self::Ipip => "ipip",
            Self::Gre => "gre",
            Self::Fou => "fou",
            Self::Gue => "gue",
        }
    }

    /// Answers go past a balancer that forwards by tunnels.
    const fn ways(self) -> &'static [Way] {
        match self {
            Self::Nat | Self::FullNat => &[Way::Upload, Way::Download],
            _ => &[Way::Upload],
        }
    }

    /// What the kernel has for it, as commands of nftables.
    fn rules(self) -> Option<String> {
        let back = match self {
            Self::Nat => String::new(),
            Self::FullNat => format!(
                "chain back {{ type nat hook postrouting priority srcnat; ip daddr {BACKEND} snat to {INNER}; }}"
            ),
            _ => return None,
        };
        Some(format!(
            "table ip bench {{\n\
             chain there {{ type nat hook prerouting priority dstnat; \
             ip daddr {VIP} tcp dport {PORT} dnat to {BACKEND}; }}\n{back}\n}}"
        ))
    }

    /// The device of the kernel that packets are sent into, as the rest of `ip link add`.
    fn device(self) -> String {
        let ends = format!("local {INNER} remote {BACKEND} ttl 64");
        match self {
            Self::Nat | Self::FullNat => String::new(),
            Self::Ipip => format!("type ipip {ends}"),
            Self::Gre => format!("type gre {ends}"),
            Self::Fou => {
                format!("type ipip {ends} encap fou encap-sport auto encap-dport {FOU_PORT}")
            }
            Self::Gue => {
                format!("type ipip {ends} encap gue encap-sport auto encap-dport {GUE_PORT}")
            }
        }
    }

    /// The backend's receiver, of the kernel, as docs/forwarding.md has it.
    fn receiver(self) -> String {
        let under = link::up("tunl0");
        match self {
            Self::Nat | Self::FullNat => String::new(),
            Self::Ipip => under,
            Self::Gre => {
                format!("link add gre1 type gre local {BACKEND} remote any\n{}", link::up("gre1"))
            }
            Self::Fou => format!("fou add port {FOU_PORT} ipproto 4\n{under}"),
            Self::Gue => format!("fou add port {GUE_PORT} gue\n{under}"),
        }
    }
}

/// Which end sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The client.
    Upload,
    /// The backend.
    Download,
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program.
    pub weir: PathBuf,
    /// How packets get to the backend.
    pub forward: Vec<Forward>,
    /// Rounds; each measures both once, in turn.
    pub rounds: u32,
    /// Seconds of each measurement, after one that does not count.
    pub seconds: u32,
}

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seconds of each measurement.
    pub seconds: u32,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// One for each way to forward and each end that sends.
    pub rows: Vec<Row>,
}

/// One way to forward, beside the kernel's.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// As the configuration file has it.
    pub forward: &'static str,
    /// Which end sends.
    pub way: Way,
    /// What arrives through weir, in 10^9 bits of payload a second, median.
    pub weir_gbps: f64,
    /// The same through the kernel's.
    pub kernel_gbps: f64,
    /// The median of the rounds' ratios, weir's to the kernel's: above 1 weir carries more.
    pub ratio_to_kernel: f64,
    /// Its quartiles.
    pub ratio_spread: Spread,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { forward, weir_gbps, kernel_gbps, ratio_to_kernel, ratio_spread, .. } = self;
        let way = if self.way == Way::Upload { "upload" } else { "download" };
        write!(
            f,
            "{forward:<8} {way:<9}{weir_gbps:>7.3} Gbit/s, the kernel's {kernel_gbps:.3}; \
             {ratio_to_kernel:.2} of it ({:.2}..{:.2})",
            ratio_spread.low, ratio_spread.high
        )
    }
}

/// Measures; this needs root, iperf3, and nftables or tunnel devices. `progress` gets each row when it is ready.
///
/// # Errors
/// What the kernel refuses, or a connection that does not come about.
pub fn run(request: &Request, mut progress: impl FnMut(&Row)) -> Result<Report> {
    let Request { weir, forward, rounds, seconds } = request;
    demand!(*rounds >= 1 && *seconds >= 1, "give rounds and seconds, at least 1");
    let mut rows = Vec::new();
    for &forward in forward {
        for row in measure(weir, forward, *rounds, *seconds)? {
            progress(&row);
            rows.push(row);
        }
    }
    Ok(Report { seconds: *seconds, rounds: *rounds, rows })
}

fn measure(weir: &Path, forward: Forward, rounds: u32, seconds: u32) -> Result<Vec<Row>> {
    let mut namespaces = Namespaces::new("thr");
    let ours = Side::new(&mut namespaces, "w", forward)?;
    let theirs = Side::new(&mut namespaces, "k", forward)?;
    // After the namespaces, so that it is gone before them.
    let instance = ours.balance(weir, forward)?;
    theirs.use_kernel(forward)?;
    ours.begin(Some(&instance))?;
    theirs.begin(None)?;
    let mut rows = Vec::new();
    for &way in forward.ways() {
        let mut samples = Vec::new();
        for round in 0..rounds {
            // Whoever is first may be at an advantage.
            let sample = if round % 2 == 0 {
                let first = ours.carry(way, seconds)?;
                (first, theirs.carry(way, seconds)?)
            } else {
                let first = theirs.carry(way, seconds)?;
                (ours.carry(way, seconds)?, first)
            };
            samples.push(sample);
        }
        let ratio = Spread::of(samples.iter().map(|(ours, theirs)| ours / theirs));
        rows.push(Row {
            forward: forward.name(),
            way,
            weir_gbps: Spread::of(samples.iter().map(|(ours, _)| *ours)).median / 1e9,
            kernel_gbps: Spread::of(samples.iter().map(|(_, theirs)| *theirs)).median / 1e9,
            ratio_to_kernel: ratio.median,
            ratio_spread: ratio,
        });
    }
    Ok(rows)
}

/// A client, a balancer and a backend, in namespaces of their own.
struct Side {
    client: NetNs,
    balancer: NetNs,
    backend: NetNs,
    server: Child,
}

impl Drop for Side {
    fn drop(&mut self) {
        process::kill(&mut self.server);
    }
}

impl Side {
    fn new(namespaces: &mut Namespaces, name: &str, forward: Forward) -> Result<Self> {
        let mut add = |role: &str| namespaces.add(&format!("{name}{role}"));
        let (client, balancer, backend) = (add("client")?, add("lb")?, add("backend")?);
        let cable = |far: &NetNs, near: &str| {
            link::veth(&[
                link::End::new(INTERFACE).inside(far),
                link::End::new(near).inside(&balancer),
            ])
        };
        link::ip(&(cable(&client, INTERFACE) + &cable(&backend, INSIDE)))?;
        let ends = [
            (&client, INTERFACE),
            (&balancer, INTERFACE),
            (&balancer, INSIDE),
            (&backend, INTERFACE),
        ];
        for (netns, interface) in ends {
            netns.sysctl(&format!("ipv6/conf/{interface}/disable_ipv6"), "1")?;
            whole_frames(netns, interface)?;
        }
        balancer.ip(&(link::address(&format!("{OUTER}/24"), INTERFACE)
            + &link::address(&format!("{INNER}/24"), INSIDE)
            + &link::up(INTERFACE)
            + &link::up(INSIDE)))?;
        balancer.sysctl("ipv4/ip_forward", "1")?;
        client.ip(&(link::address(&format!("{CLIENT}/24"), INTERFACE)
            + &link::up(INTERFACE)
            + &format!("route add default via {OUTER} mtu {CLIENT_MTU}\n")))?;
        backend.ip(&(link::address(&format!("{BACKEND}/24"), INTERFACE)
            + &link::address(&format!("{VIP}/32"), "lo")
            + &link::up(INTERFACE)
            + &format!("route add default via {INNER}\n")))?;
        // What comes out of a tunnel is from elsewhere.
        for which in ["all", "default"] {
            backend.sysctl(&format!("ipv4/conf/{which}/rp_filter"), "0")?;
        }
        let receiver = forward.receiver();
        if !receiver.is_empty() {
            backend.ip(&receiver).map_err(|error| lacking(forward, &error))?;
        }
        let mut server = backend.command("iperf3")?;
        server.args(["-s", "-p", &PORT.to_string()]);
        server.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
        let server = process::spawn(server)?;
        Ok(Self { client, balancer, backend, server })
    }

    /// A running balancer on the way.
    fn balance(&self, weir: &Path, forward: Forward) -> Result<Instance> {
        // What a veth is sent by a program arrives only if there is one at its other end.
        xdp::attach_pass(&self.client, INTERFACE)?;
        xdp::attach_pass(&self.backend, INTERFACE)?;
        let command = self.balancer.command(weir)?;
        let mut instance =
            Instance::start(weir, command, |name, run_dir| config(name, run_dir, forward))?;
        instance.await_socket(PATIENCE)?;
        Ok(instance)
    }

    /// What the kernel has, on the way.
    fn use_kernel(&self, forward: Forward) -> Result<()> {
        if let Some(rules) = forward.rules() {
            let mut nft = self.balancer.command("nft")?;
            nft.args(["-f", "-"]);
            process::run(nft, &rules)?;
            return Ok(());
        }
        let lines = format!("link add t0 {}\n{}", forward.device(), link::up("t0"));
        let lines = lines + &format!("route add {VIP}/32 dev t0\n");
        self.balancer.ip(&lines).map_err(|error| lacking(forward, &error))
    }

    /// Waits until a connection comes about.
    fn begin(&self, instance: Option<&Instance>) -> Result<()> {
        let began = Instant::now();
        loop {
            let Err(error) = self.carry(Way::Upload, 1) else { return Ok(()) };
            let log = instance.map_or_else(String::new, Instance::log);
            ensure!(began.elapsed() < PATIENCE, "no connection comes about: {error}\n{log}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Bits of payload that arrive in a second.
    fn carry(&self, way: Way, seconds: u32) -> Result<f64> {
        let mut iperf = self.client.command("iperf3")?;
        iperf.args([
            "-c",
            VIP,
            "-p",
            &PORT.to_string(),
            "-J",
            "-O",
            "1",
            "--connect-timeout",
            "5000",
        ]);
        iperf.args(["-t", &seconds.to_string()]);
        if way == Way::Download {
            iperf.arg("-R");
        }
        let said = process::run(iperf, "")?;
        let said: Value = serde_json::from_str(&said).context("reading what iperf3 says")?;
        let rate = said["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0);
        ensure!(rate > 0.0, "nothing arrives: {}", said["error"]);
        Ok(rate)
    }
}

/// Each segment is a frame, with a checksum of its own.
fn whole_frames(netns: &NetNs, interface: &str) -> Result<()> {
    netns.no_checksum_offload(interface)?;
    let mut ethtool = netns.command("ethtool")?;
    ethtool.args(["-K", interface, "tso", "off", "gso", "off", "gro", "off"]);
    process::run(ethtool, "")?;
    Ok(())
}

fn lacking(forward: Forward, why: &weir_testbed::Error) -> Error {
    Error::Request(format!(
        "this kernel has no device for {}: {why} (`make kernel-test` has a guest with one)",
        forward.name()
    ))
}

fn config(name: &str, run_dir: &Path, forward: Forward) -> String {
    let mut text = String::new();
    put!(text, "[balancer]\nname = \"{name}\"\ninterfaces = [\"{INTERFACE}\", \"{INSIDE}\"]");
    put!(text, "mode = \"native\"\nrun_dir = \"{}\"", run_dir.display());
    if forward == Forward::FullNat {
        put!(text, "nat_sources = [\"{INNER}\"]");
    }
    put!(text, "[[service]]\nname = \"bench\"\nvip = \"{VIP}\"\nport = {PORT}");
    put!(text, "forward = \"{}\"\n[service.check]\nenabled = false", forward.name());
    put!(text, "[[service.backend]]\nname = \"b1\"\naddress = \"{BACKEND}\"");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_something_for_each_way_to_forward() {
        for forward in Forward::ALL {
            let tunnel = forward.rules().is_none();
            assert_eq!(tunnel, !forward.device().is_empty(), "{}", forward.name());
            assert_eq!(tunnel, !forward.receiver().is_empty(), "{}", forward.name());
            // Whoever answers past the balancer is measured one way.
            assert_eq!(forward.ways().len(), if tunnel { 1 } else { 2 });
        }
    }
}
