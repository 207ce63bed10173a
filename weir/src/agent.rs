//! `weir agent`, and `weir doctor --backend`: what weir has on backends (docs/agent.md).

use crate::cli::Cli;
use crate::{out, pki};
use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_agent::ready::{self, Decapsulated, Network, Ready, Segments, Server, Wanted};
use weir_agent::speak::{self, Balancer, LoadOf, Speaking};
use weir_agent::{Agent, CLOCK_BITS, Counts, FLOWS, MOST_FLOWS, Options, Service};
use weir_control::config::{Config, Protocol};
use weir_control::{doctor, neigh};
use weir_plane::forward::Encapsulation;
use weir_plane::forward::tunnel::{FOU_PORT, GUE_PORT};
use weir_rpc::pki as pki_files;
use weir_rpc::tls::Files;
use weir_steering::cheetah;

/// From one look at the interfaces to the next: somebody may have taken the programs away.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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

#[derive(Args)]
#[command(after_help = "\
Needs root, or CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and the right to write to /proc/sys and /run; \
Linux 5.15. For timestamps, bpffs at /sys/fs/bpf.

What it changes it notes before in /run/weir-agent. SIGINT and SIGTERM end it, and undo everything. \
Killed by SIGKILL it leaves all as it is, and the next one takes that over without a packet between the \
two; or `weir agent --undo` undoes it.")]
pub struct AgentOptions {
    #[command(flatten)]
    pub backend: BackendOptions,
    /// Make the host ready, and end: nothing is looked after, and `weir agent --undo` undoes it.
    #[arg(long, conflicts_with = "timestamps_only")]
    pub once: bool,
    /// Undo what an agent has left that was killed, or run with --once or --keep.
    #[arg(long, conflicts_with_all = ["config", "vips", "interfaces", "forward", "from", "once",
        "timestamps_only", "services", "keep", "balancers"])]
    pub undo: bool,
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
    /// Whether balancers are given, and nothing that anything else could be done for.
    fn says_only_whom(&self) -> bool {
        let Self { backend, services, keep, tell, .. } = self;
        let nothing = backend.config.is_none()
            && backend.vips.is_empty()
            && backend.interfaces.is_empty()
            && backend.forward.is_empty()
            && backend.from.is_empty()
            && services.is_empty();
        nothing && !keep && !tell.balancers.is_empty()
    }
}

/// What balancers are told, and how.
#[derive(Args)]
pub struct TellOptions {
    /// A balancer that is told what connections this backend holds, and how loaded it is: an address or a
    /// name, which its certificate names, and the port of `listen` in its table agents (4479); may be given more than
    /// once. One of a fleet says who the others are, and they are told, too. Without --config, --vip and
    /// --interface nothing else is done.
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
    #[arg(long, value_name = "DIR", default_value = pki::DIRECTORY)]
    pub pki: PathBuf,
    /// What is told as this backend's load, for services with load = "told": cpu (per cent), run-queue, or
    /// connections. Nothing, if it is not given.
    #[arg(long, value_name = "WHAT", value_parser = load_of, requires = "balancers")]
    pub load: Option<LoadOf>,
    /// Only tell balancers: the host was made ready by somebody else.
    #[arg(long, requires = "balancers",
        conflicts_with_all = ["config", "vips", "interfaces", "forward", "from", "services", "keep"])]
    pub only_tell: bool,
    /// Changes of connections that are kept for a balancer that is away: for tests.
    #[arg(long, hide = true, default_value_t = speak::LOG)]
    pub log: usize,
}

fn load_of(text: &str) -> Result<LoadOf, String> {
    match text {
        "cpu" => Ok(LoadOf::Cpu),
        "run-queue" => Ok(LoadOf::RunQueue),
        "connections" => Ok(LoadOf::Connections),
        _ => Err("there are cpu, run-queue and connections".into()),
    }
}

impl TellOptions {
    /// Those that are named, and in the place of others what `weir pki` has made; none if nobody is told.
    fn files(&self) -> anyhow::Result<Option<Files>> {
        if self.balancers.is_empty() {
            return Ok(None);
        }
        let certificate = match &self.certificate {
            Some(certificate) => certificate.clone(),
            None => self.own_certificate()?,
        };
        let key = self.key.clone().unwrap_or_else(|| certificate.with_extension("key"));
        let ca = self.ca.clone().unwrap_or_else(|| self.pki.join("ca.pem"));
        if self.key.is_none() && !key.exists() {
            anyhow::bail!(
                "{}: the key of {} is not there; copy it there, or name it with --key",
                key.display(),
                certificate.display()
            );
        }
        if self.ca.is_none() && !ca.exists() {
            anyhow::bail!(
                "{}: the authority's certificate is not there; copy ca.pem there from where `weir pki init` has \
                 made it, or name it with --ca",
                ca.display()
            );
        }
        Ok(Some(Files { certificate, key, ca }))
    }

    fn own_certificate(&self) -> anyhow::Result<PathBuf> {
        let directory = self.pki.display();
        let own: BTreeSet<IpAddr> = neigh::addresses()?.into_iter().map(|(_, one)| one).collect();
        let found = if self.pki.exists() { pki_files::list(&self.pki)? } else { Vec::new() };
        own_of(&found, &own).with_context(|| {
            let here = own.iter().filter(|one| !one.is_loopback()).map(ToString::to_string);
            let here = here.collect::<Vec<_>>();
            let there = match found.len() {
                0 => format!("{directory} has no certificates"),
                _ => format!(
                    "no certificate in {directory} is an agent's and names an address of this host ({})",
                    here.join(", ")
                ),
            };
            format!(
                "{there}, and balancers listen to nobody without one: `weir pki issue NAME --role agent --address {}` \
                 makes one where the authority is; copy NAME.pem, NAME.key and ca.pem to {directory}, or name them \
                 with --certificate, --key and --ca",
                here.first().map_or("ADDRESS", String::as_str)
            )
        })
    }

    /// Begins to tell, if there is anybody to be told. `alone`: nothing else makes this process the agent.
    /// `directory`: where it is kept whom balancers have named.
    fn start(&self, alone: bool, directory: &Path) -> anyhow::Result<Option<Speaking>> {
        let Some(files) = self.files()? else { return Ok(None) };
        let options = speak::Options {
            directory: Some(directory.to_owned()),
            balancers: self.balancers.clone(),
            files,
            load: self.load,
            log: self.log,
            alone,
        };
        Ok(Some(Speaking::start(options, say)?))
    }
}

/// The certificate of an agent with one of these addresses that ends last.
fn own_of(found: &[pki_files::Listed], own: &BTreeSet<IpAddr>) -> Option<PathBuf> {
    let known = found.iter().filter_map(|(path, found)| Some((path, found.as_ref().ok()?)));
    let mine = known.filter(|(_, one)| {
        let agents = one.usage.client && !one.usage.server && !one.usage.authority;
        agents && one.addresses.iter().any(|address| own.contains(address))
    });
    mine.max_by_key(|(_, one)| one.ends).map(|(path, _)| path.clone())
}

/// Says what is wrong with the arguments, and ends.
fn usage(message: impl std::fmt::Display) -> ! {
    Cli::command().error(ErrorKind::MissingRequiredArgument, message).exit()
}

/// What a host is to be.
struct Backend {
    wanted: Wanted,
    /// Those whose connections carry cookies.
    stamped: Vec<Service>,
    /// What should listen here.
    servers: Vec<Server>,
}

impl BackendOptions {
    fn resolve(&self) -> anyhow::Result<Backend> {
        match &self.config {
            Some(path) => self.of_file(path),
            None => Ok(self.of_arguments()),
        }
    }

    fn of_arguments(&self) -> Backend {
        if self.vips.is_empty() {
            usage("give the services' addresses with --vip, or the balancer's file with --config");
        }
        if self.interfaces.is_empty() {
            usage(
                "give the interface by which packets come with --interface; `ip link` lists them",
            );
        }
        let tunnels = self.forward.iter().filter_map(|way| match way {
            Way::Plain => None,
            Way::Tunnel(tunnel) => Some(*tunnel),
        });
        let wanted = self.wanted(self.vips.clone(), tunnels.collect(), self.interfaces.clone());
        Backend { wanted, stamped: Vec::new(), servers: Vec::new() }
    }

    fn wanted(
        &self,
        mut services: Vec<IpAddr>,
        tunnels: Vec<Encapsulation>,
        interfaces: Vec<String>,
    ) -> Wanted {
        let mut once = BTreeSet::new();
        services.retain(|address| once.insert(*address));
        let mut different = Vec::new();
        for tunnel in tunnels {
            if !different.contains(&tunnel) {
                different.push(tunnel);
            }
        }
        let (sources, segments) = (self.from.clone(), self.mss);
        Wanted { interfaces, services, tunnels: different, sources, segments }
    }

    /// The services of a file that this host is a backend of, by its addresses.
    fn of_file(&self, path: &Path) -> anyhow::Result<Backend> {
        let config = Config::load(path)?;
        let own = neigh::addresses()?;
        let holders = |address: IpAddr| own.iter().filter(move |(_, one)| *one == address);
        let mut vips = Vec::new();
        let (mut tunnels, mut stamped) = (Vec::new(), Vec::new());
        let (mut servers, mut indices) = (BTreeSet::new(), BTreeSet::new());
        let mut translated = None;
        for service in &config.services {
            let here = service.backends.iter().find(|one| holders(one.address).next().is_some());
            let Some(backend) = here else { continue };
            if service.forward.is_nat() {
                translated = Some((&service.name, service.forward));
                continue;
            }
            indices.extend(holders(backend.address).map(|(index, _)| *index));
            if let Some(prefix) = service.addresses().iter().find(|vip| !vip.is_host()) {
                anyhow::bail!(
                    "{}: service {:?} has the prefix {prefix}, and an agent takes addresses only; on a \
                     backend of it: ip route add local {prefix} dev lo",
                    path.display(),
                    service.name
                );
            }
            vips.extend(service.hosts());
            tunnels.extend(service.forward.encapsulation());
            // Where the kernel lists who listens there is not asked for SCTP.
            if let Some(port) = service.port.filter(|_| service.protocol != Protocol::Sctp) {
                let udp = service.protocol == Protocol::Udp;
                servers.extend(service.hosts().map(|address| Server { address, port, udp }));
            }
            let method = &service.method;
            if method.id().needs().timestamps && cheetah::answered_by_backends(method.settings()) {
                let port = service.port;
                stamped.extend(service.hosts().map(|address| Service { address, port }));
            }
        }
        let file = path.display();
        if let (true, Some((service, forward))) = (vips.is_empty(), translated) {
            anyhow::bail!(
                "{file}: service {service:?} has forward = {:?}: its backends need no agent",
                forward.name()
            );
        }
        if vips.is_empty() {
            let own: BTreeSet<String> = own
                .iter()
                .filter(|one| !one.1.is_loopback())
                .map(|one| one.1.to_string())
                .collect();
            let own = own.into_iter().collect::<Vec<_>>().join(", ");
            anyhow::bail!(
                "{file}: no service has a backend with an address of this host ({own}); give the \
                 services' addresses with --vip if the backend was added by a command"
            );
        }
        let mut interfaces = self.interfaces.clone();
        if interfaces.is_empty() {
            let names = indices.into_iter().map(neigh::interface_by_index);
            let names = names.map(|found| found.map(|interface| interface.name));
            interfaces = names.collect::<Result<_, _>>()?;
            interfaces.retain(|name| name != "lo");
            anyhow::ensure!(
                !interfaces.is_empty(),
                "{file}: the backend's address is on lo here; give the interfaces by which packets come \
                 with --interface"
            );
        }
        let wanted = self.wanted(vips, tunnels, interfaces);
        Ok(Backend { wanted, stamped, servers: servers.into_iter().collect() })
    }
}

/// `weir doctor --backend`. Returns whether nothing failed.
pub fn doctor(options: &BackendOptions, json: bool) -> anyhow::Result<bool> {
    let backend = options.resolve()?;
    let mut findings = doctor::examine_host();
    findings.extend(ready::examine(&backend.wanted, &backend.servers));
    if json {
        out::json(&findings)?;
    } else {
        out::text(doctor::render(&findings));
    }
    Ok(doctor::passed(&findings))
}

/// Ends if options of a backend were given to the doctor of a balancer; returns the file that it needs.
pub fn balancers_file(options: BackendOptions) -> PathBuf {
    let BackendOptions { config, vips, interfaces, forward, from, .. } = options;
    if !(vips.is_empty() && interfaces.is_empty() && forward.is_empty() && from.is_empty()) {
        usage("--vip, --interface, --forward and --from go with --backend");
    }
    config.unwrap_or_else(|| usage("give the configuration file with --config"))
}

pub fn run(options: &AgentOptions) -> anyhow::Result<()> {
    weir_lab::catch_interrupts();
    if options.undo {
        if !ready::undo(&options.state_dir, &mut say)? {
            say(format_args!("there is nothing to undo in this network namespace"));
        }
        return Ok(());
    }
    if options.timestamps_only {
        return write_timestamps(options);
    }
    if let Some(files) = options.tell.files()? {
        // Before anything is changed.
        speak::look_at(&files)?;
    }
    if options.tell.only_tell || options.says_only_whom() {
        let _speaking = options.tell.start(true, &options.state_dir)?;
        if !options.tell.only_tell {
            say(format_args!("makes nothing ready here: neither --config nor --vip says for what"));
        }
        say(format_args!("tells balancers"));
        while weir_lab::sleep(LOOK_EVERY) {}
        say(format_args!("ended"));
        return Ok(());
    }
    let Backend { wanted, mut stamped, .. } = options.backend.resolve()?;
    stamped.extend(options.services.iter().copied());
    let timestamps = (!stamped.is_empty()).then(|| Options {
        interfaces: wanted.interfaces.clone(),
        services: stamped,
        flows: options.flows,
        clock_bits: options.clock_bits,
    });
    let mut agent = Ready::start(&wanted, timestamps.as_ref(), &options.state_dir, &mut say)?;
    for warning in agent.warnings() {
        say(format_args!("warning: {warning}"));
    }
    let names = wanted.interfaces.join(", ");
    if options.once {
        say(format_args!("ready at {names}; `weir agent --undo` undoes it"));
        return Ok(());
    }
    let started = options.tell.start(false, &options.state_dir);
    if started.is_err() {
        // What was done is undone, as always when not all can be done.
        let _ = agent.end(&mut say);
        return started.map(drop);
    }
    say(format_args!("ready at {names}"));
    let mut trouble = String::new();
    while weir_lab::sleep(LOOK_EVERY) {
        let found = agent.mend(&mut say).err().map(|error| error.to_string()).unwrap_or_default();
        // The same once a second would fill a disc.
        if found != trouble && !found.is_empty() {
            say(format_args!("{found}; tried again every second"));
        }
        trouble = found;
    }
    if let Some(counts) = agent.counts()? {
        say_decapsulated(&counts);
    }
    if let Some(counts) = agent.stamped()? {
        say_counts(&counts);
    }
    if options.keep {
        say(format_args!("ended; all stays as it is at {names} (--keep)"));
        return Ok(());
    }
    agent
        .end(&mut say)
        .context("not everything could be undone; `weir agent --undo` tries again")?;
    say(format_args!("ended; this host is as it was"));
    Ok(())
}

fn say(what: std::fmt::Arguments<'_>) {
    out::note(format_args!("weir agent: {what}"));
}

fn write_timestamps(options: &AgentOptions) -> anyhow::Result<()> {
    let AgentOptions { backend, services, flows, clock_bits, .. } = options;
    let interfaces = &backend.interfaces;
    let wanted = Options {
        interfaces: interfaces.clone(),
        services: services.clone(),
        flows: *flows,
        clock_bits: *clock_bits,
    };
    let mut agent = Agent::start(&wanted)?;
    let names = interfaces.join(", ");
    if agent.took_over() {
        let size = match agent.flows() == *flows {
            true => String::new(),
            false => format!(", in a table of {}, not of {flows}", agent.flows()),
        };
        say(format_args!("took over what an agent before this one knew of connections{size}"));
    }
    say(format_args!(
        "writes cookies into timestamps at {names}; remembers {} connections; maps in {}",
        agent.flows(),
        agent.pins().display()
    ));
    while weir_lab::sleep(LOOK_EVERY) {
        match agent.mend() {
            Ok(mended) => {
                for name in mended {
                    say(format_args!("the programs were gone from {name}; put back"));
                }
            }
            Err(error) => say(format_args!("{error}; tried again")),
        }
    }
    if options.keep {
        say_counts(&agent.counts()?);
        say(format_args!("ended; the programs go on at {names} (--keep)"));
        return Ok(());
    }
    say_counts(&agent.end()?);
    say(format_args!("ended; the programs are gone from {names}"));
    Ok(())
}

fn say_counts(counts: &Counts) {
    let Counts { opened, written, restored, resumed, foreign, failed } = counts;
    say(format_args!(
        "{opened} SYNs with a cookie, {written} answers written, {restored} timestamps \
         restored, {resumed} connections brought back by their cookies, {foreign} packets with another \
         cookie than their connection's, {failed} packets that could not be changed"
    ));
}

fn say_decapsulated(counts: &Decapsulated) {
    let Decapsulated {
        taken,
        elsewhere,
        strange,
        untrusted,
        damaged,
        fragments,
        congested,
        refused,
        lowered,
    } = counts;
    say(format_args!(
        "{taken} packets taken out of tunnels, {lowered} segment sizes lowered; left to the kernel: \
         {elsewhere} to other hosts, {strange} for no service, {untrusted} from elsewhere, {damaged} \
         damaged, {fragments} in fragments; dropped: {congested} without room for the mark of congestion, \
         {refused} that could not be cut"
    ));
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

    #[test]
    fn the_certificate_of_this_host_is_found() {
        let home = tempfile::tempdir().unwrap();
        let here: IpAddr = "192.0.2.7".parse().unwrap();
        let own = BTreeSet::from([here]);
        let directory = home.path();
        pki_files::init(directory, "test", 30).unwrap();
        let issue = |name: &str, role, address: IpAddr, days| {
            let (name, addresses, hosts) = (name.into(), vec![address], Vec::new());
            let request = pki_files::Request { name, role, addresses, hosts, days };
            pki_files::issue(directory, directory, &request).unwrap();
        };
        let found = || own_of(&pki_files::list(directory).unwrap(), &own);
        let agent = pki_files::Role::Agent;
        issue("lb", pki_files::Role::Balancer, here, 20);
        issue("other", agent, "192.0.2.8".parse().unwrap(), 20);
        std::fs::write(directory.join("none.pem"), "no certificate").unwrap();
        assert_eq!(found(), None);
        issue("b0", agent, here, 10);
        assert_eq!(found(), Some(directory.join("b0.pem")));
        // Renewed, under another name.
        issue("a-newer-b0", agent, here, 20);
        assert_eq!(found(), Some(directory.join("a-newer-b0.pem")));
    }
}
