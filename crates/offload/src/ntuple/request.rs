//! `struct ethtool_rxnfc` of `linux/ethtool.h`, as bytes.
//!
//! ```text
//! 0 cmd   4 flow_type   8 data   16 fs.flow_type   20 fs.h_u (52)   72 fs.h_ext (20)
//! 92 fs.m_u (52)   144 fs.m_ext (20)   168 fs.ring_cookie   176 fs.location   184 rule_cnt   192
//! ```

use crate::rule::{Location, Refusal, Rule};
use weir_wire::{FlowKey, Protocol};

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 192;

/// A request, in the byte order of this machine where the kernel takes numbers so, as the network has it where
/// it takes addresses and ports.
pub type Request = [u8; REQUEST_BYTES];

pub(super) const ETHTOOL_GRXRINGS: u32 = 0x2d;
pub(super) const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
pub(super) const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
/// Another structure: `ethtool_ringparam`.
pub(super) const ETHTOOL_GRINGPARAM: u32 = 0x10;
/// Another one: `ethtool_rxfh_indir`, of a command, how many rows there are, and these.
pub(super) const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
/// In the answer to `ETHTOOL_GRXCLSRLCNT`: the driver knows special places besides.
pub(super) const RX_CLS_LOC_SPECIAL: u64 = 0x8000_0000;

const TCP_V4_FLOW: u32 = 1;
const UDP_V4_FLOW: u32 = 2;
const SCTP_V4_FLOW: u32 = 3;
const TCP_V6_FLOW: u32 = 5;
const UDP_V6_FLOW: u32 = 6;
const SCTP_V6_FLOW: u32 = 7;

const DATA: usize = 8;
const FLOW_TYPE: usize = 16;
const HEADER: usize = 20;
const MASK: usize = 92;
const RING_COOKIE: usize = 168;
const LOCATION: usize = 176;
pub(super) const RULE_COUNT: usize = 184;

fn put<const N: usize>(request: &mut Request, at: usize, bytes: [u8; N]) {
    request[at..at + N].copy_from_slice(&bytes);
}

/// A request without a rule.
pub(super) fn bare(command: u32) -> Request {
    let mut request = [0; REQUEST_BYTES];
    put(&mut request, 0, command.to_ne_bytes());
    request
}

/// What the kernel has written into `data`.
pub(super) fn data(request: &Request) -> u64 {
    request[DATA..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// How many rules there are, as the kernel has written it.
pub(super) fn rule_count(request: &Request) -> u32 {
    request[RULE_COUNT..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Addresses and ports as they stand in `h_u`, and which of these bytes must match.
fn header(flow: &FlowKey) -> ([u8; 36], usize) {
    let mut bytes = [0; 36];
    let ports = [flow.src_port.to_be_bytes(), flow.dst_port.to_be_bytes()].concat();
    let length = if flow.is_ipv4() {
        bytes[..4].copy_from_slice(&flow.src[12..]);
        bytes[4..8].copy_from_slice(&flow.dst[12..]);
        8
    } else {
        bytes[..16].copy_from_slice(&flow.src);
        bytes[16..32].copy_from_slice(&flow.dst);
        32
    };
    bytes[length..length + 4].copy_from_slice(&ports);
    (bytes, length + 4)
}

/// `ethtool -N DEV flow-type tcp4 src-ip A dst-ip B src-port P dst-port Q action QUEUE loc PLACE`.
///
/// # Errors
/// A flow from one family to the other.
pub fn insert(at: Location, rule: &Rule) -> Result<Request, Refusal> {
    let flow = &rule.flow;
    let both = [&flow.src, &flow.dst].map(|address| weir_wire::unmap_address(address).is_ipv4());
    let kind = match (both, flow.protocol) {
        ([true, true], Protocol::Tcp) => TCP_V4_FLOW,
        ([true, true], Protocol::Udp) => UDP_V4_FLOW,
        ([false, false], Protocol::Tcp) => TCP_V6_FLOW,
        ([false, false], Protocol::Udp) => UDP_V6_FLOW,
        ([true, true], Protocol::Sctp) => SCTP_V4_FLOW,
        ([false, false], Protocol::Sctp) => SCTP_V6_FLOW,
        _ => return Err(Refusal::Unsupported(format!("{flow} is of two families"))),
    };
    let mut request = bare(ETHTOOL_SRXCLSRLINS);
    put(&mut request, FLOW_TYPE, kind.to_ne_bytes());
    let (header, length) = header(flow);
    request[HEADER..HEADER + length].copy_from_slice(&header[..length]);
    request[MASK..MASK + length].fill(0xff);
    put(&mut request, RING_COOKIE, u64::from(rule.queue.0).to_ne_bytes());
    put(&mut request, LOCATION, at.0.to_ne_bytes());
    Ok(request)
}

/// `ethtool -N DEV delete PLACE`.
pub fn delete(at: Location) -> Request {
    let mut request = bare(ETHTOOL_SRXCLSRLDEL);
    put(&mut request, LOCATION, at.0.to_ne_bytes());
    request
}
