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
    /// Port of the backend that is asked; of a script 0, if there is none.
    pub port: u16,
    /// Whether backends with a port of their own are asked there instead.
    #[serde(default)]
    pub backends_port: bool,
    /// What new connections meet when every backend is down.
    #[serde(default)]
    pub all_down: AllDown,
}

/// What becomes of new connections when the checks of all backends that could take them fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AllDown {
    /// All of them take new connections, as if they were up: it is likelier that the checks are
    /// wrong, and if they are right nothing is lost.
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
    /// For a record of the DNS, over UDP.
    Dns(Dns),
    /// For an answer to a datagram.
    Udp(Exchange),
    /// A program of the operator's.
    Script(Script),
}

impl What {
    /// The word of the file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http(_) => "http",
            Self::Https { .. } => "https",
            Self::Dns(_) => "dns",
            Self::Udp(_) => "udp",
            Self::Script(_) => "script",
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
