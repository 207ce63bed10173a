//! How large the segments are that SYNs to a backend may ask for.

use super::Tunnel;
use std::net::IpAddr;
use weir_wire::mss;

const TCP: u32 = 20;
const IPV4: u32 = 20;
const IPV6: u32 = 40;
/// The smallest that is asked for.
const LEAST: u32 = 64;

/// How large the segments are that SYNs to a backend may ask for, at most. The twin of `limit_segments` in
/// `bpf/forward/mss.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Segments {
    /// What the way to it takes, less all headers.
    Auto,
    /// So many bytes.
    Most(u16),
}

impl Segments {
    /// Lowers what a SYN, or a SYN+ACK, asks for. `tunnel`: through which it goes; `mtu`: what the way takes, 0 if that is
    /// not known. Returns whether the frame has changed.
    pub fn limit(self, frame: &mut [u8], tunnel: Option<(&Tunnel, IpAddr)>, mtu: u32) -> bool {
        match self {
            Self::Most(most) => mss::clamp(frame, |_| most),
            Self::Auto => {
                let outer =
                    |(tunnel, to): (&Tunnel, IpAddr)| tunnel.encapsulation.overhead(to) as u32;
                let headers = tunnel.map_or(0, outer) + TCP;
                let most = mtu.min(u16::MAX.into());
                if most < headers + IPV6 + LEAST {
                    return false;
                }
                let less = |ip: u32| (most - headers - ip) as u16;
                mss::clamp(frame, |flow| less(if flow.is_ipv4() { IPV4 } else { IPV6 }))
            }
        }
    }
}
