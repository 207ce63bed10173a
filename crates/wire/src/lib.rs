//! Packets as bytes: a checked parser, flow keys and a frame builder.
//!
//! This crate does no I/O and has no `unsafe`. [`parse`] never panics, on any
//! input, and what it accepts is in bounds: the offsets of a [`Packet`] can be
//! used on the frame without further checks. The C parser of the data plane is
//! its twin and is tested against it bit for bit.

#![forbid(unsafe_code)]

pub mod aes;
pub mod checksum;
pub mod craft;
pub mod echo;
mod flow;
mod fragment;
pub mod hash;
pub mod icmp;
pub mod icmp_error;
pub mod mss;
mod parse;
pub mod quic;
mod reason;
pub mod reset;
mod spread;
pub mod tcp_options;

pub use flow::{FlowKey, Protocol, UnknownProtocol, map_address, unmap_address};
pub use fragment::{Fragment, FragmentKey, fragment};
pub use parse::{
    MAX_IPV6_EXTENSIONS, MAX_VLAN_TAGS, Packet, Rejected, SCTP_ABORT, SCTP_INIT, SCTP_SHUTDOWN_ACK,
    SCTP_SHUTDOWN_COMPLETE, TcpFlags, parse,
};
pub use reason::Reason;
pub use spread::{SPREAD_FIRST, SPREAD_LOW, SPREAD_SECOND, spread};

/// TTL, or hop limit, of packets that begin at the balancer: replies, messages, outer headers of tunnels. As
/// many as hosts give theirs.
pub const FIRST_TTL: u8 = 64;
