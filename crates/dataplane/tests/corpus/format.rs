//! The files of the corpus, as corpus/README.md says what stands in them.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The corpus of this tree.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    #[serde(skip)]
    pub name: String,
    #[serde(default)]
    pub setup: BTreeMap<String, Setup>,
    #[serde(default)]
    pub case: Vec<Case>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// ICMP errors, and replies to echo requests, that may be sent in a second.
    #[serde(default)]
    pub errors: u32,
    #[serde(default)]
    pub echoes: u32,
    /// And resets of connections whose backend is down.
    #[serde(default)]
    pub resets: u32,
    #[serde(default)]
    pub own_macs: Vec<Mac>,
    #[serde(default)]
    pub devices: Vec<Device>,
    pub backends: Vec<Backend>,
    pub services: Vec<Service>,
    /// Connections under full NAT have many ports, not one; and time passes for them only when it is made to.
    #[serde(skip)]
    pub many_ports: bool,
}

impl Setup {
    pub fn has_slots(&self) -> bool {
        self.services.iter().any(|service| service.method == "cheetah-stateful")
    }
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Device {
    pub interface: u32,
    #[serde(default)]
    pub lower: u32,
    pub tag: Option<Hex>,
    #[serde(default)]
    pub refused: bool,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    pub name: String,
    pub address: IpAddr,
    #[serde(default)]
    pub interface: u32,
    pub mac: Option<Mac>,
    pub source_mac: Option<Mac>,
    pub tunnel: Option<Tunnel>,
    pub nat: Option<Nat>,
    /// With the one source that there is of its family (`sources.rs`).
    pub full_nat: Option<Nat>,
    /// The largest segment that a SYN may ask for; 0: what the way takes.
    pub segments: Option<u16>,
    #[serde(default)]
    pub down: bool,
    /// What comes for it is answered by resets.
    #[serde(default)]
    pub resets: bool,
    #[serde(default)]
    pub unknown_hop: bool,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Nat {
    pub port: Option<u16>,
    #[serde(default)]
    pub mtu: u32,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Tunnel {
    pub kind: String,
    pub source: Option<IpAddr>,
    #[serde(default)]
    pub port: u16,
    #[serde(default)]
    pub spread: u8,
    #[serde(default)]
    pub mtu: u32,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Service {
    pub address: IpAddr,
    pub protocol: String,
    pub port: Option<u16>,
    /// Bits of a prefix.
    pub bits: Option<u8>,
    /// The last one of a range of ports.
    pub last_port: Option<u16>,
    /// Further addresses.
    #[serde(default)]
    pub also: Vec<IpAddr>,
    pub method: String,
    pub backends: Vec<String>,
    #[serde(default)]
    pub settings: BTreeMap<String, toml::Value>,
    #[serde(default)]
    pub affinity: Option<String>,
    /// Later fragments are led by their source.
    #[serde(default)]
    pub fragments: bool,
    pub seed: Option<u64>,
    pub key: Option<Vec<Hex>>,
    #[serde(default)]
    pub ids: Vec<Ids>,
    #[serde(default)]
    pub allow: Vec<String>,
    #[serde(default)]
    pub deny: Vec<String>,
    pub new_flows: Option<NewFlows>,
}

/// How many new flows a service takes: one in so many seconds, and so many at once; and of each prefix.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct NewFlows {
    pub every: Option<u64>,
    #[serde(default)]
    pub burst: u32,
    pub source_every: Option<u64>,
    #[serde(default)]
    pub source_burst: u32,
    /// Connections that each prefix may hold.
    pub connections: Option<u32>,
    #[serde(default)]
    pub ipv4_prefix: u8,
    #[serde(default)]
    pub ipv6_prefix: u8,
}

/// A configuration of QUIC-LB, and the backends that server ids lead to.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Ids {
    pub config: u8,
    pub server_id: usize,
    pub nonce: usize,
    pub key: Option<Hex>,
    #[serde(default)]
    pub any_length: bool,
    pub servers: BTreeMap<String, String>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    pub rule: String,
    pub setup: String,
    pub shows: String,
    /// What a plane must have beyond the way of packets.
    #[serde(default)]
    pub needs: Vec<String>,
    pub step: Vec<Step>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub packet_bytes: Option<Hex>,
    #[serde(default)]
    pub zeros: usize,
    pub verdict: Option<String>,
    pub reason: Option<String>,
    pub backend: Option<String>,
    #[serde(default)]
    pub new: bool,
    pub bytes: Option<u64>,
    /// It goes back to a client, as the service's.
    #[serde(default)]
    pub returned: bool,
    /// What may be sent at once was sent before, about the same packet.
    #[serde(default)]
    pub spent: bool,
    pub out_bytes: Option<Hex>,
    pub id: Option<String>,
    pub change: Option<Change>,
    // For readers, and for scripts/corpus-judge.
    #[serde(default, rename = "packet")]
    _packet: Vec<String>,
    #[serde(default, rename = "out")]
    _out: Vec<String>,
    #[serde(default, rename = "wrong")]
    _wrong: Vec<String>,
}

/// What happens between two packets.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Change {
    pub down: Option<String>,
    /// Goes down, and what comes for it is answered by resets.
    pub resets: Option<String>,
    pub up: Option<String>,
    pub gone: Option<String>,
    pub record: Option<bool>,
    pub pending: Option<bool>,
    /// Whether flows may not start.
    pub frozen: Option<bool>,
    /// Of the first service.
    pub pool: Option<Vec<String>>,
    /// The same, by a table that another balancer has built, which knows all flows that have begun; with `drains`.
    pub shared: Option<Vec<String>>,
    /// Backends that keep their flows and get no new ones.
    pub drains: Vec<String>,
    /// A connection of each of these, and no others, is known to live: what prefixes hold is counted anew.
    pub counted: Option<Vec<IpAddr>>,
    /// A connection from this address, and `port`, to port 80 is known to have ended.
    pub ended: Option<IpAddr>,
    pub port: Option<u16>,
    /// Of the clock by which connections grow old.
    pub seconds: Option<u32>,
}

/// Bytes as hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Hex(pub Vec<u8>);

impl TryFrom<String> for Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        let byte = |at: usize| digits.get(at..at + 2).and_then(|d| u8::from_str_radix(d, 16).ok());
        let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Option<_>>();
        bytes.map(Self).ok_or_else(|| format!("{text:?}: give pairs of hexadecimal digits"))
    }
}

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes = Hex::try_from(text.replace(':', ""))?.0;
        bytes.try_into().map(Self).map_err(|_| format!("{text:?}: give six bytes of a MAC address"))
    }
}

/// All files with cases, in the order of their names.
pub fn files() -> Vec<File> {
    let directory = directory();
    let entries = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it is listed").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    let apart = ["rules.toml", "mutations.toml"];
    paths.retain(|path| !apart.iter().any(|name| path.ends_with(name)));
    paths.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let mut file: File = toml::from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        file.name = path.file_name().expect("it is a file").to_string_lossy().into_owned();
        for case in &file.case {
            let known = file.setup.contains_key(&case.setup);
            assert!(known, "{}: {}: no set-up {:?}", file.name, case.name, case.setup);
        }
        file
    };
    paths.iter().map(read).collect()
}
