//! What traffic to make: kinds, mixture, times; and the plan of a single connection.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::time::Duration;

use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::topology::{ECHO_PORT, QUIC_PORT, VIP4, VIP6, WEB_PORT};

/// A kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Many requests with pauses on one TCP connection, for a while.
    Keepalive,
    /// One request with a long answer, which nginx sends slowly.
    Download,
    /// A request with a short answer, and one with a long body, which the client sends slowly. The answer to that says
    /// what has come.
    Upload,
    /// One request with a short answer, then the connection is closed.
    Short,
    /// A UDP socket that asks an echo server every so often, for a while.
    Udp,
    /// A QUIC connection that asks every so often, for a while, and changes its address and port in between.
    Quic,
}

impl Kind {
    /// All kinds, in the order of [`Mix`].
    pub const ALL: [Self; 6] =
        [Self::Keepalive, Self::Download, Self::Upload, Self::Short, Self::Udp, Self::Quic];

    /// The kind in one word, as reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keepalive => "keepalive",
            Self::Download => "download",
            Self::Upload => "upload",
            Self::Short => "short",
            Self::Udp => "udp",
            Self::Quic => "quic",
        }
    }

    /// Whether its packets are of UDP: a port of it is free again at once.
    pub(crate) fn is_of_udp(self) -> bool {
        matches!(self, Self::Udp | Self::Quic)
    }
}

/// How often each kind is drawn when a connection is replaced by a new one; any scale.
///
/// Kinds that live long take a larger share of the connections open at a time than of those drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mix {
    /// Weight of [`Kind::Keepalive`].
    pub keepalive: f64,
    /// Weight of [`Kind::Download`].
    pub download: f64,
    /// Weight of [`Kind::Upload`].
    pub upload: f64,
    /// Weight of [`Kind::Short`].
    pub short: f64,
    /// Weight of [`Kind::Udp`].
    pub udp: f64,
    /// Weight of [`Kind::Quic`], which needs [`LabSpec::quic`](crate::LabSpec::quic).
    pub quic: f64,
}

impl Mix {
    /// Nothing, for what a mix does not name.
    pub const NONE: Self =
        Self { keepalive: 0.0, download: 0.0, upload: 0.0, short: 0.0, udp: 0.0, quic: 0.0 };

    /// One kind and nothing else.
    pub fn only(kind: Kind) -> Self {
        let weight = |k| f64::from(u8::from(k == kind));
        Self {
            keepalive: weight(Kind::Keepalive),
            download: weight(Kind::Download),
            upload: weight(Kind::Upload),
            short: weight(Kind::Short),
            udp: weight(Kind::Udp),
            quic: weight(Kind::Quic),
        }
    }

    fn weights(&self) -> [f64; 6] {
        [self.keepalive, self.download, self.upload, self.short, self.udp, self.quic]
    }
}

/// Addresses and ports that clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// IPv4 address of both services.
    pub v4: Ipv4Addr,
    /// IPv6 address of both services.
    pub v6: Ipv6Addr,
    /// TCP port of the web service.
    pub web_port: u16,
    /// UDP port of the echo service.
    pub echo_port: u16,
    /// UDP port of the service of QUIC, which has no IPv6 address.
    pub quic_port: u16,
}

impl Default for Target {
    fn default() -> Self {
        Self { v4: VIP4, v6: VIP6, web_port: WEB_PORT, echo_port: ECHO_PORT, quic_port: QUIC_PORT }
    }
}

/// The traffic of one run.
#[derive(Clone, Debug)]
pub struct TrafficSpec {
    /// Seed of every choice. The plan of the n-th connection of a client depends on nothing else.
    pub seed: u64,
    /// Connections open at a time, over all clients; [`TrafficHandle::set_target`] changes it.
    ///
    /// [`TrafficHandle::set_target`]: super::TrafficHandle::set_target
    pub connections: usize,
    /// New connections per second while the target has not been reached, over all clients.
    pub ramp: usize,
    /// How often each kind of connection is drawn.
    pub mix: Mix,
    /// Kinds of which nobody has promised that they are kept: what breaks of them is counted apart.
    pub unpromised: Vec<Kind>,
    /// Share of TCP connections that use IPv6, 0 to 1.
    pub ipv6_share: f64,
    /// Share of UDP flows that use IPv6, 0 to 1.
    pub udp_ipv6_share: f64,
    /// Pause between an answer and the next request of a keepalive connection.
    pub think: Range<Duration>,
    /// Life of a keepalive connection.
    pub life: Range<Duration>,
    /// Bytes of an upload.
    pub upload_bytes: u64,
    /// Rate of an upload, in bytes per second.
    pub upload_rate: u64,
    /// Pause between datagrams of a UDP flow, and between questions over QUIC.
    pub udp_think: Range<Duration>,
    /// Life of a UDP flow, and of a QUIC connection.
    pub udp_life: Range<Duration>,
    /// An answer does not come or does not go on, or the connection is not made, for so long:
    /// the connection has failed.
    pub timeout: Duration,
    /// How long a client waits for its connection to be made, if that is longer.
    pub connect_timeout: Duration,
    /// A datagram that was not answered for so long is sent again, three times at most.
    pub udp_timeout: Duration,
    /// A QUIC connection that hears nothing for so long has failed.
    pub quic_timeout: Duration,
    /// A connection that fails before its first answer may have gone to a backend that was killed
    /// up to so long before it started, and whose death the balancer had no time to notice, or up
    /// to so long after its SYN.
    pub detection: Duration,
    /// Addresses and ports that clients connect to.
    pub target: Target,
    /// Share of the connections open at a time that ask once and then are silent until the run
    /// finishes, 0 to 1. Whether they still sit where they sat shows then.
    pub idle_share: f64,
    /// TCP connections end with a reset, and others begin from the same ports of the same addresses:
    /// each five-tuple is used again and again.
    pub reuse: bool,
}

impl Default for TrafficSpec {
    fn default() -> Self {
        Self {
            seed: 1,
            connections: 1000,
            ramp: 2000,
            mix: Mix {
                keepalive: 0.6,
                download: 0.01,
                upload: 0.005,
                short: 0.335,
                udp: 0.05,
                quic: 0.0,
            },
            unpromised: Vec::new(),
            ipv6_share: 0.4,
            udp_ipv6_share: 0.0,
            think: Duration::from_millis(500)..Duration::from_secs(3),
            life: Duration::from_secs(2)..Duration::from_secs(30),
            upload_bytes: 4 << 20,
            upload_rate: 1 << 20,
            udp_think: Duration::from_millis(200)..Duration::from_secs(1),
            udp_life: Duration::from_secs(2)..Duration::from_secs(20),
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::ZERO,
            udp_timeout: Duration::from_secs(1),
            quic_timeout: Duration::from_secs(30),
            detection: Duration::from_millis(1500),
            target: Target::default(),
            idle_share: 0.0,
            reuse: false,
        }
    }
}

impl TrafficSpec {
    /// The longest that a connection can live without an answer: one that cannot be made, then one
    /// whose answer does not come; or datagrams that are sent again and again.
    pub(crate) fn longest_without_answer(&self) -> Duration {
        (self.until_made() + self.timeout).max(self.udp_timeout * 5).max(self.quic_timeout * 2)
    }

    /// How long a client waits for its connection to be made.
    pub(crate) fn until_made(&self) -> Duration {
        self.timeout.max(self.connect_timeout)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::BadSpec(what.into()));
        if WeightedIndex::new(self.mix.weights()).is_err() {
            return bad("the mix of connections needs weights of at least 0, and one above 0");
        }
        for share in [self.ipv6_share, self.udp_ipv6_share, self.idle_share] {
            if !(0.0..=1.0).contains(&share) {
                return bad("a share is between 0 and 1");
            }
        }
        for range in [&self.think, &self.life, &self.udp_think, &self.udp_life] {
            if range.is_empty() {
                return bad("a range of times must not be empty");
            }
        }
        if self.upload_bytes == 0 || self.upload_rate == 0 {
            return bad("an upload has a size and a rate above 0");
        }
        if self.ramp == 0 {
            return bad("a ramp is at least 1 connection per second");
        }
        Ok(())
    }
}

/// What one connection is going to do, as drawn before it starts.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) ipv6: bool,
    /// Which source address of the client, modulo their number.
    pub(crate) source: usize,
    pub(crate) life: Duration,
    /// Source port, if not any.
    pub(crate) port: Option<u16>,
    /// After its first request it is silent until the run finishes.
    pub(crate) idle: bool,
    /// For what is drawn on the way.
    pub(crate) random: ChaCha8Rng,
}

/// Draws plans for one client.
#[derive(Debug)]
pub(crate) struct Planner {
    kinds: WeightedIndex<f64>,
    seed: u64,
    client: u64,
    next: u64,
}

impl Planner {
    pub(crate) fn new(spec: &TrafficSpec, client: usize) -> Result<Self> {
        let kinds = WeightedIndex::new(spec.mix.weights())
            .map_err(|error| Error::BadSpec(format!("the mix of connections: {error}")))?;
        Ok(Self { kinds, seed: spec.seed, client: client as u64, next: 0 })
    }

    pub(crate) fn draw(&mut self, spec: &TrafficSpec) -> Plan {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(self.client << 40 | self.next);
        self.next += 1;
        let kind = Kind::ALL[self.kinds.sample(&mut random)];
        let (share, life) = match kind {
            Kind::Udp => (spec.udp_ipv6_share, &spec.udp_life),
            Kind::Quic => (0.0, &spec.udp_life),
            _ => (spec.ipv6_share, &spec.life),
        };
        Plan {
            kind,
            ipv6: random.random_bool(share),
            source: random.random_range(0..usize::from(u16::MAX)),
            life: random.random_range(life.clone()),
            port: None,
            idle: false,
            random,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_depend_on_seed_client_and_number_only() {
        let spec = TrafficSpec::default();
        let draw = |client| {
            let mut planner = Planner::new(&spec, client).unwrap();
            (0..50)
                .map(|_| planner.draw(&spec))
                .map(|plan| (plan.kind, plan.ipv6, plan.source, plan.life))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
    }

    #[test]
    fn a_mix_of_one_kind_draws_only_that() {
        for kind in Kind::ALL {
            let spec = TrafficSpec { mix: Mix::only(kind), ..TrafficSpec::default() };
            let mut planner = Planner::new(&spec, 0).unwrap();
            assert!((0..100).all(|_| planner.draw(&spec).kind == kind));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut spec = TrafficSpec::default();
        assert!(spec.check().is_ok());
        spec.ipv6_share = 1.5;
        assert!(spec.check().is_err());
        spec.ipv6_share = 0.5;
        spec.mix = Mix { keepalive: 0.0, ..Mix::only(Kind::Keepalive) };
        assert!(spec.check().is_err());
        spec = TrafficSpec { upload_bytes: 0, ..TrafficSpec::default() };
        assert!(spec.check().is_err());
    }
}
