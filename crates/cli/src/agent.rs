//! What an agent is asked for, and the doctor of a backend.

use crate::{Cli, USUAL_FILE};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use weir_agent::quic::Notify;
use weir_agent::ready::{self, Network, Segments};
use weir_agent::speak::{self, Asks, Balancer, Health, Lies, LoadOf, Source, Url};
use weir_agent::{CLOCK_BITS, FLOWS, MOST_FLOWS, Service};
use weir_plane::forward::Encapsulation;
use weir_plane::forward::tunnel::{FOU_PORT, GUE_PORT};

/// What a backend is to be: the same for the agent and for the doctor.
#[derive(Args)]
pub struct BackendOptions {
    /// The balancer's configuration file: the services that have an address of this host among their
    /// backends, and how packets reach them. (Without --backend, `weir doctor` looks at a balancer.)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vips", "forward"])]
    pub config: Option<PathBuf>,
    /// A service's address, in place of a file; may be given more than once.
    #[arg(long = "vip", value_name = "ADDRESS")]
    pub vips: Vec<IpAddr>,
    /// An interface by which packets for the services come or answers leave; may be given more than once.
    /// With a file: those that have the backend's addresses, if this is not given.
    #[arg(long = "interface", value_name = "NAME")]
    pub interfaces: Vec<String>,
    /// How packets come, in place of a file: l2, ipip, gre, fou or fou:PORT, gue or gue:PORT
    /// (5555 and 6080, if no port is given).
    #[arg(long, value_name = "WAY,...", value_delimiter = ',', value_parser = way)]
    pub forward: Vec<Way>,
    /// Networks or addresses that tunnels are taken from, those of the balancers; from anywhere, if this
    /// is not given.
    #[arg(long, value_name = "NETWORK,...", value_delimiter = ',')]
    pub from: Vec<Network>,
    /// How large segments clients are asked to send (in SYN+ACKs): auto, so that they fit into the
    /// tunnels; a number of bytes; or off.
    #[arg(long, default_value = "auto")]
    pub mss: Segments,
}

/// A value of --forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// As they are.
    Plain,
    /// In a tunnel.
    Tunnel(Encapsulation),
}

fn way(text: &str) -> Result<Way, String> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let port = |usual: u16| match port.map(str::parse) {
        None => Ok(usual),
        Some(Ok(port)) if port > 0 => Ok(port),
        Some(_) => Err("a port is a number from 1 to 65535".to_owned()),
    };
    match (name, text) {
        (_, "l2") => Ok(Way::Plain),
        (_, "ipip") => Ok(Way::Tunnel(Encapsulation::Ipip)),
        (_, "gre") => Ok(Way::Tunnel(Encapsulation::Gre)),
        ("fou", _) => Ok(Way::Tunnel(Encapsulation::Fou(port(FOU_PORT)?))),
        ("gue", _) => Ok(Way::Tunnel(Encapsulation::Gue(port(GUE_PORT)?))),
        (_, "nat" | "fullnat") => Err(format!("backends of forward = {name:?} need no agent")),
        _ => Err("there are l2, ipip, gre, fou[:PORT] and gue[:PORT]".into()),
    }
}

/// What an agent is asked for.
#[derive(Args)]
#[command(after_help = "\
Needs root, or CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and the right to write to /proc/sys and /run; \
Linux 5.15. For timestamps, bpffs at /sys/fs/bpf.

What it changes it notes before in /run/weir-agent. SIGINT and SIGTERM end it, and undo everything. \
Killed by SIGKILL it leaves all as it is, and the next one takes that over without a packet between the \
two; or `weir agent --undo` undoes it.")]
pub struct AgentOptions {
    /// What the host is to be.
    #[command(flatten)]
    pub backend: BackendOptions,
    /// Make the host ready, and end: nothing is looked after, and `weir agent --undo` undoes it.
    #[arg(long, conflicts_with = "timestamps_only")]
    pub once: bool,
    /// Undo what an agent has left that was killed, or run with --once or --keep.
    #[arg(long, conflicts_with_all = ["config", "vips", "interfaces", "forward", "from", "once",
        "timestamps_only", "services", "keep", "balancers"])]
    pub undo: bool,
    /// Whom it tells.
    #[command(flatten)]
    pub tell: TellOptions,
    /// Only write cookies into the timestamps of the services of --service.
    #[arg(long, conflicts_with_all = ["config", "vips", "forward", "from"],
        requires_all = ["services", "interfaces"])]
    pub timestamps_only: bool,
    /// A service with answers = "backend", as ADDRESS:PORT, or ADDRESS for all ports, whose connections get
    /// cookies in their timestamps; may be given more than once. With a file, those that are in it.
    #[arg(long = "service", value_name = "ADDRESS[:PORT]", conflicts_with = "config")]
    pub services: Vec<Service>,
    /// Open connections with cookies that are remembered, of 128 bytes each; the one that was silent for
    /// longest goes first. It should hold all that are open.
    #[arg(long, value_name = "N", default_value_t = FLOWS,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_FLOWS)))]
    pub flows: u32,
    /// Leave everything as it is when SIGINT or SIGTERM ends it, as SIGKILL does: for a restart that
    /// breaks nothing.
    #[arg(long)]
    pub keep: bool,
    /// Where it notes what it has changed, and finds what an agent before it has: a directory that a
    /// reboot clears.
    #[arg(long, value_name = "DIR", default_value = ready::DIRECTORY,
        conflicts_with = "timestamps_only")]
    pub state_dir: PathBuf,
    /// Bits of the clock that stay in a timestamp, so that it wraps more often: for tests.
    #[arg(long, hide = true, default_value_t = CLOCK_BITS,
        value_parser = clap::value_parser!(u32).range(8..=i64::from(CLOCK_BITS)))]
    pub clock_bits: u32,
}

impl AgentOptions {
    /// Whether balancers say what the host is to be: nothing else does.
    pub fn asks_balancers(&self) -> bool {
        let Self { backend, tell, .. } = self;
        !tell.balancers.is_empty()
            && !tell.only_tell
            && backend.config.is_none()
            && backend.vips.is_empty()
    }
}

/// What balancers are told, and how.
#[derive(Args)]
pub struct TellOptions {
    /// A balancer that is told what connections this backend holds, and how loaded it is: an address or a
    /// name, which its certificate names, and the port of `listen` in its table agents (4479); may be given more than
    /// once. One of a fleet says who the others are, and they are told, too. Without --config and --vip balancers say
    /// which services have a backend here and how their packets come, and the host is made ready for that as long as
    /// they say so; --interface, --forward and --service go before it.
    #[arg(long = "balancer", value_name = "HOST[:PORT]", value_delimiter = ',',
        conflicts_with_all = ["once", "timestamps_only"])]
    pub balancers: Vec<Balancer>,
    /// This agent's certificate, in PEM, which names the backend's addresses; `weir pki issue` makes one. Without
    /// it, one of --pki that is an agent's and names an address of this host: the one that ends last.
    #[arg(long, value_name = "FILE", requires = "balancers")]
    pub certificate: Option<PathBuf>,
    /// Its key; beside it, with the end .key, if it is not given.
    #[arg(long, value_name = "FILE", requires = "balancers")]
    pub key: Option<PathBuf>,
    /// The authority of the balancers' certificates; ca.pem of --pki, if it is not given.
    #[arg(long, value_name = "FILE", requires = "balancers")]
    pub ca: Option<PathBuf>,
    /// Where certificates are that are not named: where `weir pki` makes them, or what was copied from there.
    #[arg(long, value_name = "DIR", default_value = crate::pki::DIRECTORY)]
    pub pki: PathBuf,
    /// What is told as this backend's load, for services with load = "told": cpu (per cent), run-queue, or
    /// connections. Nothing, if it is not given.
    #[arg(long, value_name = "WHAT", value_parser = load_of, requires = "balancers")]
    pub load: Option<LoadOf>,
    /// In place of --load: a file at whose beginning the application writes a number, its load.
    #[arg(long, value_name = "FILE", requires = "balancers", conflicts_with = "load")]
    pub load_file: Option<PathBuf>,
    /// Seconds after which what stands in that file is too old, and the load is not known.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "load_file",
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub load_stale: u32,
    /// In place of --load: where the application says a number by HTTP, at the beginning of the body.
    #[arg(long, value_name = "URL", requires = "balancers", conflicts_with_all = ["load", "load_file"])]
    pub load_url: Option<Url>,
    /// The header of that answer which has the number, in place of its body.
    #[arg(long, value_name = "NAME", requires = "load_url")]
    pub load_header: Option<String>,
    /// Tell whether the application is well, for checks of type "agent": it is if an answer by HTTP from there has a
    /// status of 200 to 299.
    #[arg(long, value_name = "URL", requires = "balancers")]
    pub health_url: Option<Url>,
    /// The same by a command without a shell, whose first word is an absolute path: it is well if that ends with 0.
    #[arg(long, value_name = "COMMAND", requires = "balancers", conflicts_with = "health_url")]
    pub health_command: Option<String>,
    /// How often that is asked, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(100..=60_000))]
    pub health_every: u32,
    /// The header of the answer of --health-url that says a weight, as weight_header of a check does.
    #[arg(long, value_name = "NAME", requires = "health_url")]
    pub weight_header: Option<String>,
    /// Write how this backend's servers make QUIC connection ids, as balancers say it (docs/quic.md), to this file,
    /// whole and readable by its owner only, whenever it changes.
    #[arg(long, value_name = "FILE", requires = "balancers")]
    pub quic_lb_file: Option<PathBuf>,
    /// Who is told when that file has changed: a command that begins with an absolute path, or as SIGNAL:PIDFILE the
    /// process whose number stands in a file.
    #[arg(long, value_name = "COMMAND|SIGNAL:PIDFILE", requires = "quic_lb_file")]
    pub quic_lb_notify: Option<Notify>,
    /// Only tell balancers, and do nothing of what they say: the host was made ready by somebody else.
    #[arg(long, requires = "balancers",
        conflicts_with_all = ["config", "vips", "interfaces", "forward", "from", "services", "keep"])]
    pub only_tell: bool,
    /// Changes of connections that are kept for a balancer that is away: for tests.
    #[arg(long, hide = true, default_value_t = speak::LOG)]
    pub log: usize,
    /// Say nothing of connections whose client's port N divides: for laboratories (docs/lab.md).
    #[cfg(feature = "laboratory")]
    #[arg(long, hide = true, value_name = "N", requires = "balancers",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub omit_one_in: Option<u16>,
    /// Say that connections whose client's port N divides have ended as soon as they are open: for laboratories.
    #[cfg(feature = "laboratory")]
    #[arg(long, hide = true, value_name = "N", requires = "balancers",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub end_one_in: Option<u16>,
}

impl TellOptions {
    /// What is to be said wrongly.
    #[cfg(feature = "laboratory")]
    pub fn lies(&self) -> Lies {
        Lies { omit_one_in: self.omit_one_in, end_one_in: self.end_one_in }
    }

    /// Nothing is said wrongly: this program has no laboratory.
    #[cfg(not(feature = "laboratory"))]
    pub fn lies(&self) -> Lies {
        Lies::default()
    }
}

impl TellOptions {
    /// What is told as the load.
    pub fn load_of(&self) -> Option<LoadOf> {
        if let Some(file) = &self.load_file {
            let stale = Duration::from_secs(self.load_stale.into());
            return Some(LoadOf::Said(Source::File(file.clone(), stale)));
        }
        if let Some(url) = &self.load_url {
            return Some(LoadOf::Said(Source::Url(url.clone(), self.load_header.clone())));
        }
        self.load.clone()
    }

    /// How it is found out whether the application is well, if that is told.
    pub fn health(&self) -> Option<Health> {
        let command = self.health_command.as_ref().map(|line| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            if !words.first().is_some_and(|program| program.starts_with('/')) {
                usage("--health-command: begin with the absolute path of a program");
            }
            Asks::Command(words)
        });
        let asks = command.or_else(|| self.health_url.clone().map(Asks::Url))?;
        let every = Duration::from_millis(self.health_every.into());
        Some(Health { asks, every, weight_header: self.weight_header.clone() })
    }
}

fn load_of(text: &str) -> Result<LoadOf, String> {
    match text {
        "cpu" => Ok(LoadOf::Cpu),
        "run-queue" => Ok(LoadOf::RunQueue),
        "connections" => Ok(LoadOf::Connections),
        _ => Err("there are cpu, run-queue and connections".into()),
    }
}

/// What an agent was started with that does what balancers say, for the doctor of a backend. Balancers are not asked.
#[derive(Args)]
pub struct AskedOptions {
    /// With --backend: where the agent notes what balancers have asked for, /run/weir-agent. Without --config and --vip
    /// the host is looked at as they have said last.
    #[arg(long, value_name = "DIR", requires = "backend")]
    pub state_dir: Option<PathBuf>,
    /// With --backend: a balancer, as it was given to the agent. It is not called; the agent's certificate is looked at.
    #[arg(
        long = "balancer",
        value_name = "HOST[:PORT]",
        value_delimiter = ',',
        requires = "backend"
    )]
    pub balancers: Vec<Balancer>,
    /// With --balancer: the agent's certificate, as it was given to the agent.
    #[arg(long, value_name = "FILE", requires = "balancers")]
    pub certificate: Option<PathBuf>,
    /// With --balancer: its key.
    #[arg(long, value_name = "FILE", requires = "balancers")]
    pub key: Option<PathBuf>,
    /// With --balancer: the authority of the balancers' certificates.
    #[arg(long, value_name = "FILE", requires = "balancers")]
    pub ca: Option<PathBuf>,
    /// With --balancer: where certificates are that are not named.
    #[arg(long, value_name = "DIR", default_value = crate::pki::DIRECTORY, requires = "balancers")]
    pub pki: PathBuf,
}

/// Says what is wrong with the arguments, and ends.
fn usage(message: impl std::fmt::Display) -> ! {
    Cli::command().error(ErrorKind::MissingRequiredArgument, message).exit()
}

impl BackendOptions {
    /// Ends, with words and the status of arguments that make no sense, if there is no file and something that a
    /// file would say is missing.
    pub fn expect_all(&self) {
        if self.config.is_some() {
            return;
        }
        if self.vips.is_empty() {
            usage(
                "give a balancer that says what for with --balancer, the services' addresses with --vip, or the \
                 balancer's file with --config",
            );
        }
        if self.interfaces.is_empty() {
            usage(
                "give the interface by which packets come with --interface; `ip link` lists them",
            );
        }
    }

    /// The tunnels of --forward.
    pub fn tunnels(&self) -> Vec<Encapsulation> {
        let tunnels = self.forward.iter().filter_map(|way| match way {
            Way::Plain => None,
            Way::Tunnel(tunnel) => Some(*tunnel),
        });
        tunnels.collect()
    }

    /// The file that the doctor of a balancer needs. Ends, as [`expect_all`](Self::expect_all) does, if options of
    /// a backend were given to it, or no file.
    pub fn balancers_file(self) -> PathBuf {
        let Self { config, vips, interfaces, forward, from, .. } = self;
        if !(vips.is_empty() && interfaces.is_empty() && forward.is_empty() && from.is_empty()) {
            usage("--vip, --interface, --forward and --from go with --backend");
        }
        config.unwrap_or_else(|| USUAL_FILE.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_with_their_ports() {
        assert_eq!(way("l2"), Ok(Way::Plain));
        assert_eq!(way("gue"), Ok(Way::Tunnel(Encapsulation::Gue(6080))));
        assert_eq!(way("fou:7000"), Ok(Way::Tunnel(Encapsulation::Fou(7000))));
        for text in ["", "nat", "ipip:4", "gue:0", "gue:", "fou:70000", "vxlan"] {
            assert!(way(text).is_err(), "{text}");
        }
    }
}
