//! What can go wrong on a backend.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// An error of the agent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such interface here.
    #[error("no interface is called {0:?} in this network namespace; `ip link` lists them")]
    NoInterface(String),
    /// Frames of the interface have no Ethernet header.
    #[error("interface {0}: it is no Ethernet device, and the programs read Ethernet frames")]
    NotEthernet(String),
    /// An interface was named twice.
    #[error("interface {0} is named twice")]
    Twice(String),
    /// More services than the programs have room for.
    #[error("{services} services are given with --service, and there is room for {most}")]
    TooMany {
        /// Those that were given.
        services: usize,
        /// Those that there is room for.
        most: usize,
    },
    /// Another agent runs here.
    #[error(
        "another weir agent (process {pid}) runs in this network namespace, on {interfaces}. One has \
         all interfaces of it, as a connection's packets may come by one and leave by another: end \
         it, and give one agent all balancers with --balancer, which say the rest; or, where they do \
         not, all interfaces with --interface, and all services with cookies with --service (it goes \
         with --vip), or a file with --config"
    )]
    Running {
        /// Its process.
        pid: i32,
        /// What it was given.
        interfaces: String,
    },
    /// Somebody else's XDP program is at the interface.
    #[error(
        "interface {interface}: it has an XDP program that is not weir agent's ({program:?}); \
         `ip link show {interface}` shows it. An interface has one: give the agent another interface, \
         or let the kernel's tunnel devices take the packets (without --forward)"
    )]
    Xdp {
        /// The interface.
        interface: String,
        /// Name of its program.
        program: String,
    },
    /// The services' and the host's own addresses are too many.
    #[error(
        "{services} addresses of services and {own} of this host's own are more than the {most} that \
         there is room for"
    )]
    TooManyAddresses {
        /// Addresses of services.
        services: usize,
        /// Addresses of this host.
        own: usize,
        /// Those that there is room for.
        most: usize,
    },
    /// Tunnels end at too many ports.
    #[error("tunnels end at {ports} UDP ports, and there is room for {most}")]
    TooManyPorts {
        /// Those that were given.
        ports: usize,
        /// Those that there is room for.
        most: usize,
    },
    /// Too many networks.
    #[error("tunnels may come from {sources} networks, and there is room for {most}")]
    TooManySources {
        /// Those that were given.
        sources: usize,
        /// Those that there is room for.
        most: usize,
    },
    /// IPv6 is turned off, and a service has an address of it.
    #[error(
        "IPv6 is off at {interface}, and a service has an address of it; \
         `sysctl -w net.ipv6.conf.{interface}.disable_ipv6=0` turns it on"
    )]
    NoIpv6 {
        /// The interface.
        interface: String,
    },
    /// What an agent has left cannot be read.
    #[error(
        "{}: it says what an agent has changed on this host, and cannot be read ({why}). It is left as \
         it is, and nothing is changed; if you have put things right by hand, remove it",
        path.display()
    )]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody else's filter is where the program would be.
    #[error(
        "interface {interface}: a filter that is not weir's ({program:?}) has priority {priority} and \
         handle {handle} there; `tc filter show dev {interface} {way}` shows it"
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// `ingress` or `egress`.
        way: &'static str,
        /// Name of its program.
        program: String,
        /// Its priority.
        priority: u32,
        /// Its handle.
        handle: u32,
    },
    /// Not allowed.
    #[error(
        "{what}: not permitted; the agent needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    Privilege {
        /// What was being done.
        what: String,
    },
    /// There is no place for what outlives the process.
    #[error("no BPF file system is mounted at {0}; `mount -t bpf bpf {0}` mounts it")]
    NoBpffs(&'static str),
    /// A part of what makes a host ready; all others are done.
    #[error("{}: {source}", waiting(part, addresses))]
    Part {
        /// What cannot be done.
        part: &'static str,
        /// The addresses that wait for it.
        addresses: Vec<IpAddr>,
        /// Why.
        source: Box<Error>,
    },
    /// Pinned maps are not of this version's shape.
    #[error(
        "{path} is of another version of weir. Connections that began with it need it; when they have \
         ended, remove {directory} and start again"
    )]
    Incompatible {
        /// The map's path.
        path: PathBuf,
        /// All of them.
        directory: PathBuf,
    },
    /// What is needed to speak to balancers.
    #[error(transparent)]
    Tls(#[from] weir_rpc::tls::TlsError),
    /// A certificate that cannot be used for this.
    #[error("{}: {why}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The certificate is another host's.
    #[error(
        "{} names {}, and none is an address of this host",
        certificate.display(),
        listed(named)
    )]
    NotHere {
        /// The certificate.
        certificate: PathBuf,
        /// The addresses that it names.
        named: Vec<IpAddr>,
    },
    /// The certificate's key is not where it is looked for.
    #[error(
        "{}: the key of {} is not there; copy it there, or name it with --key",
        key.display(),
        certificate.display()
    )]
    NoKey {
        /// Where it would be.
        key: PathBuf,
        /// The certificate.
        certificate: PathBuf,
    },
    /// The authority's certificate is not where it is looked for.
    #[error(
        "{}: the authority's certificate is not there; copy ca.pem there from where `weir pki init` has \
         made it, or name it with --ca",
        .0.display()
    )]
    NoAuthority(PathBuf),
    /// No certificate was named, and none is found.
    #[error("{}", no_certificate(directory, *certificates, own))]
    NoCertificate {
        /// Where they are looked for.
        directory: PathBuf,
        /// Those that are there.
        certificates: usize,
        /// This host's addresses, of which it would name one.
        own: Vec<IpAddr>,
    },
    /// A directory of certificates cannot be read.
    #[error(transparent)]
    Pki(#[from] weir_rpc::pki::PkiError),
    /// Something is left of what was changed.
    #[error("not everything could be undone; `weir agent --undo` tries again")]
    NotUndone(#[source] Box<Error>),
    /// Something that is no balancer.
    #[error("{0:?} is not HOST:PORT, like 10.0.0.1:4479, [2001:db8::1]:4479 or lb.example:4479")]
    Balancer(String),
    /// The compiled program is not as it should be.
    #[error("the compiled program has no constants: weir was built wrongly")]
    Object,
    /// The kernel refused a BPF operation.
    #[error("{what}: {source}")]
    Bpf {
        /// What was being done.
        what: String,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

fn waiting(part: &str, addresses: &[IpAddr]) -> String {
    if addresses.is_empty() {
        return part.to_owned();
    }
    let all = listed(addresses);
    format!("{part} (what is of no use without waits, and all else goes on: {all})")
}

fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn no_certificate(directory: &Path, certificates: usize, own: &[IpAddr]) -> String {
    let directory = directory.display();
    let there = match certificates {
        0 => format!("{directory} has no certificates"),
        _ => format!(
            "no certificate in {directory} is an agent's and names an address of this host ({})",
            listed(own)
        ),
    };
    format!(
        "{there}, and balancers listen to nobody without one: `weir pki issue NAME --role agent --address {}` \
         makes one where the authority is; copy NAME.pem, NAME.key and ca.pem to {directory}, or name them \
         with --certificate, --key and --ca",
        own.first().map_or_else(|| "ADDRESS".into(), ToString::to_string)
    )
}

pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Context<T> for Result<T, libbpf_rs::Error> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => Error::Privilege { what: what() },
            _ => Error::Bpf { what: what(), source },
        })
    }
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => Error::Privilege { what: what() },
            _ => Error::System { what: what(), source },
        })
    }
}
