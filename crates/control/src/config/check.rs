//! What a health check is, resolved.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::human;

/// A health check: what is asked, how often, and what counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What is asked, and what has to be answered.
    #[serde(default)]
    pub what: What,
    /// Time from the start of one check to the start of the next.
    #[serde(with = "human")]
    pub interval: Duration,
    /// A check that has not succeeded after this time has failed; less than `interval`.
    #[serde(with = "human")]
    pub timeout: Duration,
    /// Per cent of the interval by which a check may be later than it was due, drawn each time.
    #[serde(default)]
    pub jitter: u32,
    /// Successes in a row that bring a backend up.
    pub rise: u32,
    /// Failures in a row that bring a backend down.
    pub fall: u32,
    /// Whoever goes down again within this time of coming up needs twice as many successes; zero: never.
    #[serde(default, with = "human")]
    pub flap_window: Duration,
    /// By what way it is asked.
    #[serde(default)]
    pub via: Via,
    /// Port of the backend that is asked; of a script and of an agent 0, if there is none.
    pub port: u16,
    /// Whether backends with a port of their own are asked there instead.
    #[serde(default)]
    pub backends_port: bool,
    /// By how much a weight that answers say must have changed to be followed, in per cent of the one before.
    #[serde(default)]
    pub weight_step: u32,
    /// The shortest time between two such changes of one backend.
    #[serde(default, with = "human")]
    pub weight_every: Duration,
    /// The time in which a backend that has come up gets its whole weight; zero: at once.
    #[serde(default, with = "human")]
    pub slow_start: Duration,
    /// How its share grows with the time, as a power: 1 evenly, more later.
    #[serde(default)]
    pub slow_start_curve: u32,
    /// What new connections meet when every backend is down.
    #[serde(default)]
    pub all_down: AllDown,
    /// What becomes of the connections of a backend that goes down.
    #[serde(default)]
    pub dead_connections: DeadConnections,
}

/// What becomes of the connections of a backend that goes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeadConnections {
    /// They stay there, for as long as they would otherwise: it may come back, or never have been away.
    #[default]
    Keep,
    /// Their next packets go where new connections do.
    Move,
    /// Their next packets are answered by resets in the service's name.
    Reset,
}

/// By what way a backend is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// At its own address, as this host sends.
    #[default]
    Direct,
    /// At the service's address, as the service's packets are forwarded.
    Service,
}

/// What becomes of new connections when the checks of all backends that could take them fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AllDown {
    /// All of them that have been up take new connections, as if they were, or all if none has been: it is likelier
    /// that the checks are wrong, and if they are right nothing is lost.
    #[default]
    Keep,
    /// Their packets are dropped, until a backend is up.
    Refuse,
}

/// What a check asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum What {
    /// For a TCP connection, which is closed again.
    #[default]
    Tcp,
    /// For a page, by HTTP/1.1.
    Http(Http),
    /// The same by TLS.
    Https {
        /// The page.
        #[serde(flatten)]
        http: Http,
        /// How the server is known.
        #[serde(flatten)]
        tls: Tls,
    },
    /// For a server's health, by gRPC over HTTP/2.
    Grpc(Grpc),
    /// The same by TLS.
    Grpcs {
        /// What is asked about.
        #[serde(flatten)]
        grpc: Grpc,
        /// How the server is known.
        #[serde(flatten)]
        tls: Tls,
    },
    /// For a record of the DNS, over UDP.
    Dns(Dns),
    /// For an answer to a datagram.
    Udp(Exchange),
    /// A program of the operator's.
    Script(Script),
    /// The backend's agent, which has asked there.
    Agent,
}

impl What {
    /// Whether answers are to say a weight.
    pub fn asks_weight(&self) -> bool {
        match self {
            Self::Http(http) | Self::Https { http, .. } => http.weight.is_some(),
            Self::Tcp | Self::Grpc(_) | Self::Grpcs { .. } | Self::Dns(_) => false,
            Self::Udp(_) | Self::Script(_) => false,
            Self::Agent => true,
        }
    }

    /// The word of the file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http(_) => "http",
            Self::Https { .. } => "https",
            Self::Grpc(_) => "grpc",
            Self::Grpcs { .. } => "grpcs",
            Self::Dns(_) => "dns",
            Self::Udp(_) => "udp",
            Self::Script(_) => "script",
            Self::Agent => "agent",
        }
    }
}

/// A request by HTTP, and what a good answer is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Http {
    /// GET, HEAD, or another method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The header `Host`; none: the backend's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Further headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Status codes that are good.
    pub status: Vec<Codes>,
    /// What the body must contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Headers that the answer must have, with what their values must contain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub answer_headers: BTreeMap<String, String>,
    /// Where the answer says the backend's weight, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<WeightIn>,
}

/// Where an answer says the backend's weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightIn {
    /// In this header.
    Header(String),
    /// In the body, behind this text.
    Body(String),
}

/// A weight as a backend says it of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken<N = u16> {
    /// In place of the configured one.
    Weight(N),
    /// In per cent of the configured one.
    Percent(N),
}

impl Spoken {
    /// The largest share of the configured weight, in per cent.
    pub const MOST_PERCENT: u16 = 1000;

    /// Reads `37` or `75%` at the beginning of a text, after spaces; none if it is no weight of 0 to 65,535, or
    /// more than [`MOST_PERCENT`](Self::MOST_PERCENT).
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii_start();
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&text[..digits]).ok()?.parse::<u16>().ok()?;
        match text.get(digits) {
            Some(b'%') => (number <= Self::MOST_PERCENT).then_some(Self::Percent(number)),
            // A part of a number, or of a word.
            Some(b'.' | b'-' | b'_') => None,
            Some(other) if other.is_ascii_alphanumeric() => None,
            _ => Some(Self::Weight(number)),
        }
    }
}

impl<N: Copy + Into<f64>> Spoken<N> {
    /// The number.
    pub fn number(self) -> f64 {
        match self {
            Self::Weight(number) | Self::Percent(number) => number.into(),
        }
    }

    /// Another number of the same kind.
    pub fn with<M>(self, number: M) -> Spoken<M> {
        match self {
            Self::Weight(_) => Spoken::Weight(number),
            Self::Percent(_) => Spoken::Percent(number),
        }
    }

    /// Whether both are of one kind.
    pub fn is_like<M>(&self, other: &Spoken<M>) -> bool {
        matches!(
            (self, other),
            (Self::Weight(_), Spoken::Weight(_)) | (Self::Percent(_), Spoken::Percent(_))
        )
    }
}

impl fmt::Display for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight(weight) => write!(f, "{weight}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Status codes from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Codes(pub u16, pub u16);

impl Codes {
    /// As in the file: `200` or `200-299`; none if it is not so, or not within 100 to 599.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let code = |text: &str| {
            let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|code| digits && (100..600).contains(code))
        };
        let (first, last) = (code(first)?, code(last)?);
        (first <= last).then_some(Self(first, last))
    }

    /// Whether a code is one of them.
    pub fn has(self, code: u16) -> bool {
        (self.0..=self.1).contains(&code)
    }
}

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == self.1 { write!(f, "{}", self.0) } else { write!(f, "{}-{}", self.0, self.1) }
    }
}

impl From<Codes> for String {
    fn from(codes: Codes) -> Self {
        codes.to_string()
    }
}

impl TryFrom<String> for Codes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} are no status codes"))
    }
}

/// How a server is known by TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tls {
    /// The name that is asked for (SNI), and that the certificate must be for; none: the backend's
    /// address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
    /// Whether the certificate must be good.
    pub verify: bool,
    /// File of the certificates that it may go back to, PEM.
    pub ca: PathBuf,
    /// A certificate that ends within this time is warned of.
    #[serde(with = "human")]
    pub expiry_warning: Duration,
}

/// A question to a server that speaks gRPC (`grpc.health.v1.Health/Check`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grpc {
    /// The service that is asked about; empty: the server as a whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// The authority of the call (`:authority`); none: the backend's address and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A question to a DNS server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dns {
    /// The name that is asked for.
    pub query: String,
    /// The type of its records.
    pub record: Record,
}

/// The type of a DNS record (RFC 1035, section 3.2.2, and others), by name and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
#[repr(u16)]
pub enum Record {
    A = 1,
    Ns = 2,
    Cname = 5,
    Soa = 6,
    Ptr = 12,
    Mx = 15,
    Txt = 16,
    Aaaa = 28,
    Srv = 33,
}

impl Record {
    /// All of them, by their names in the file.
    pub(super) const ALL: [(&'static str, Self); 9] = [
        ("A", Self::A),
        ("AAAA", Self::Aaaa),
        ("NS", Self::Ns),
        ("SOA", Self::Soa),
        ("CNAME", Self::Cname),
        ("PTR", Self::Ptr),
        ("MX", Self::Mx),
        ("TXT", Self::Txt),
        ("SRV", Self::Srv),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, one)| *one == self).map_or("", |(name, _)| name)
    }
}

/// A datagram, and what its answer must contain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Exchange {
    /// What is sent.
    pub send: Vec<u8>,
    /// What an answer must contain.
    pub expect: Vec<u8>,
}

/// A program whose exit status says whether the backend is well: 0 if it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Script {
    /// Path of the program, and its arguments; `{address}` and `{port}` in them stand for the backend's.
    pub command: Vec<String>,
    /// Who it runs as, where weir runs as root; none: nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}
