//! What a switch forwards by: which bytes of a frame are the key, and which keys lead to a host.

use super::lab::{address, mac};
use super::ports::Reason;
use super::traffic::{PORT, SOURCE_PORT};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::net::IpAddr;
use weir_fib::{FibKey, Flow, Ipv4, Ipv6, Mac};

/// Address family of the hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Family {
    V4,
    V6,
}

const ETHERNET: usize = 14;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A key that frames have.
pub trait SwitchKey: FibKey + Copy + Eq + Hash + Debug {
    /// What the hosts talk by.
    const FAMILY: Family = Family::V4;

    /// The key of a frame to a unicast address, which is 14 bytes long at least.
    ///
    /// # Errors
    /// Why it has none.
    fn of_frame(frame: &[u8]) -> Result<Self, Reason>;

    /// The keys of all frames that hosts with traffic send, each with the host it leads to.
    fn of_hosts(hosts: usize) -> Vec<(Self, usize)>;

    /// A frame with a key that leads to `to`, as the comparison of sockets sends it; of 60 bytes at
    /// least.
    fn frame(from: usize, to: usize, length: usize) -> Vec<u8> {
        let length = length.max(60);
        let mut frame = vec![0; length];
        frame[..6].copy_from_slice(&mac(to).octets());
        frame[6..12].copy_from_slice(&mac(from).octets());
        match (address(Self::FAMILY, from), address(Self::FAMILY, to)) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame[12..14].copy_from_slice(&[8, 0]);
                frame[14] = 0x45;
                frame[16..18].copy_from_slice(&((length - 14) as u16).to_be_bytes());
                frame[23] = ICMP;
                frame[26..30].copy_from_slice(&from.octets());
                frame[30..34].copy_from_slice(&to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
                frame[14] = 0x60;
                frame[18..20].copy_from_slice(&((length - 54) as u16).to_be_bytes());
                frame[20] = 59;
                frame[22..38].copy_from_slice(&from.octets());
                frame[38..54].copy_from_slice(&to.octets());
            }
            _ => unreachable!("one family"),
        }
        frame
    }
}

/// The headers behind Ethernet's, if it is of this type.
fn payload(frame: &[u8], ethertype: u16) -> Result<&[u8], Reason> {
    let (header, payload) = frame.split_at_checked(ETHERNET).ok_or(Reason::BadFrame)?;
    let found = u16::from_be_bytes([header[12], header[13]]);
    if found == ethertype { Ok(payload) } else { Err(Reason::NoKey) }
}

/// The fixed header of an IPv4 packet.
fn ipv4(frame: &[u8]) -> Result<(&[u8; 20], &[u8]), Reason> {
    let packet = payload(frame, 0x0800)?;
    let header = packet.first_chunk::<20>().ok_or(Reason::BadFrame)?;
    let length = usize::from(header[0] & 15) * 4;
    if header[0] >> 4 != 4 || length < 20 {
        return Err(Reason::BadFrame);
    }
    Ok((header, packet.get(length..).ok_or(Reason::BadFrame)?))
}

impl SwitchKey for Mac {
    fn of_frame(frame: &[u8]) -> Result<Self, Reason> {
        frame.first_chunk().map(|octets| Self::from_octets(*octets)).ok_or(Reason::BadFrame)
    }

    fn of_hosts(hosts: usize) -> Vec<(Self, usize)> {
        (0..hosts).map(|host| (mac(host), host)).collect()
    }
}

impl SwitchKey for Ipv4 {
    fn of_frame(frame: &[u8]) -> Result<Self, Reason> {
        let (header, _) = ipv4(frame)?;
        Ok(Self(u32::from_be_bytes([header[16], header[17], header[18], header[19]])))
    }

    fn of_hosts(hosts: usize) -> Vec<(Self, usize)> {
        let key = |host| match address(Family::V4, host) {
            IpAddr::V4(address) => (Self(address.into()), host),
            IpAddr::V6(_) => unreachable!("an IPv4 address was asked for"),
        };
        (0..hosts).map(key).collect()
    }
}

impl SwitchKey for Ipv6 {
    const FAMILY: Family = Family::V6;

    fn of_frame(frame: &[u8]) -> Result<Self, Reason> {
        let header = payload(frame, 0x86dd)?.first_chunk::<40>().ok_or(Reason::BadFrame)?;
        let destination = header.last_chunk().ok_or(Reason::BadFrame)?;
        if header[0] >> 4 == 6 {
            Ok(weir_hash::Octets(*destination))
        } else {
            Err(Reason::BadFrame)
        }
    }

    fn of_hosts(hosts: usize) -> Vec<(Self, usize)> {
        let key = |host| match address(Family::V6, host) {
            IpAddr::V6(address) => (weir_hash::Octets(address.octets()), host),
            IpAddr::V4(_) => unreachable!("an IPv6 address was asked for"),
        };
        (0..hosts).map(key).collect()
    }
}

/// Source and destination address, ports, protocol. Ports of ICMP and the like are 0.
fn flow(from: [u8; 4], to: [u8; 4], ports: [u8; 4], protocol: u8) -> Flow {
    let mut bytes = [protocol; 13];
    bytes[..4].copy_from_slice(&from);
    bytes[4..8].copy_from_slice(&to);
    bytes[8..12].copy_from_slice(&ports);
    weir_hash::Octets(bytes)
}

impl SwitchKey for Flow {
    /// Fragments have no ports, but for the first: they have no key.
    fn of_frame(frame: &[u8]) -> Result<Self, Reason> {
        let (header, payload) = ipv4(frame)?;
        let [_, _, _, _, _, _, high, low, _, protocol, ..] = *header;
        if (u16::from(high) << 8 | u16::from(low)) & 0x3fff != 0 {
            return Err(Reason::NoKey);
        }
        let ports = match protocol {
            TCP | UDP => *payload.first_chunk().ok_or(Reason::BadFrame)?,
            _ => [0; 4],
        };
        let [.., a, b, c, d, e, f, g, h] = *header;
        Ok(flow([a, b, c, d], [e, f, g, h], ports, protocol))
    }

    fn of_hosts(hosts: usize) -> Vec<(Self, usize)> {
        let octets = |host| match address(Family::V4, host) {
            IpAddr::V4(address) => address.octets(),
            IpAddr::V6(_) => unreachable!("an IPv4 address was asked for"),
        };
        // With few hosts, an answer to one is a request of the other.
        let mut keys = BTreeMap::new();
        for host in 0..hosts {
            let next = (host + 1) % hosts;
            for (from, to) in [(host, next), (next, host)] {
                keys.insert(flow(octets(from), octets(to), [0; 4], ICMP), to);
            }
        }
        for (from, to) in (0..hosts / 2).map(|host| (host, host + hosts / 2)) {
            let ([a, b], [c, d]) = (SOURCE_PORT.to_be_bytes(), PORT.to_be_bytes());
            keys.insert(flow(octets(from), octets(to), [a, b, c, d], TCP), to);
            keys.insert(flow(octets(to), octets(from), [c, d, a, b], TCP), from);
        }
        keys.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame that leads to a host has one of the host's keys; cut off anywhere it has none, or,
    /// where only payload is missing, the same.
    fn keys_come_back_from_frames<K: SwitchKey>(headers: usize) {
        let known: std::collections::HashMap<K, usize> = K::of_hosts(6).into_iter().collect();
        for (from, to) in [(0, 1), (3, 2), (5, 0)] {
            let frame = K::frame(from, to, 100);
            let key = K::of_frame(&frame).expect("a key");
            assert_eq!(known.get(&key), Some(&to), "{}", K::NAME);
            for length in 14..frame.len() {
                let cut = K::of_frame(&frame[..length]);
                let expected = if length < headers { Err(Reason::BadFrame) } else { Ok(key) };
                assert_eq!(cut, expected, "{} cut to {length}", K::NAME);
            }
        }
    }

    #[test]
    fn keys_of_all_kinds_come_back_from_frames() {
        keys_come_back_from_frames::<Mac>(6);
        keys_come_back_from_frames::<Ipv4>(34);
        keys_come_back_from_frames::<Ipv6>(54);
        keys_come_back_from_frames::<Flow>(34);
    }

    #[test]
    fn frames_without_a_key_say_so() {
        let mut frame = Flow::frame(0, 1, 100);
        assert_eq!(Ipv6::of_frame(&frame), Err(Reason::NoKey));
        let icmp = Flow::of_frame(&frame).expect("a key");
        frame[23] = TCP;
        frame[34..38].copy_from_slice(&[156, 64, 19, 137]);
        let tcp = Flow::of_frame(&frame).expect("a key");
        assert_ne!(icmp, tcp);
        assert_eq!(tcp.0[8..], [156, 64, 19, 137, TCP]);
        assert_eq!(Flow::of_frame(&frame[..37]), Err(Reason::BadFrame));
        // With options the ports stand behind them.
        frame[14] = 0x46;
        frame[38..42].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(Flow::of_frame(&frame).map(|key| key.0[8..12].to_vec()), Ok(vec![1, 2, 3, 4]));
        for (high, low) in [(0x20, 0), (0, 1), (0x1f, 0xff)] {
            (frame[20], frame[21]) = (high, low);
            assert_eq!(Flow::of_frame(&frame), Err(Reason::NoKey), "a fragment");
        }
        (frame[20], frame[21]) = (0x40, 0);
        assert!(Flow::of_frame(&frame).is_ok(), "only that it must not be fragmented");
        for bad in [0x44, 0x65, 0x05] {
            frame[14] = bad;
            assert_eq!(Ipv4::of_frame(&frame), Err(Reason::BadFrame));
        }
        frame[14] = 0x45;
        (frame[12], frame[13]) = (8, 6);
        assert_eq!(Ipv4::of_frame(&frame), Err(Reason::NoKey), "ARP");
        assert!(Mac::of_frame(&frame).is_ok());
    }
}
