//! Builds frames for tests, the laboratory and the bench.
//!
//! ```
//! use weir_wire::{FlowKey, Protocol, TcpFlags, craft::Frame, parse};
//!
//! let flow = FlowKey::new(
//!     "10.0.0.1:5555".parse()?,
//!     "10.0.0.2:80".parse()?,
//!     Protocol::Tcp,
//! );
//! let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).vlan(7).build();
//! let packet = parse(&frame)?;
//! assert_eq!(packet.flow, flow);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::checksum::Checksum;
use crate::flow::{FlowKey, Protocol};
use crate::parse::{SCTP_ABORT, SCTP_INIT, SCTP_SHUTDOWN_COMPLETE, TcpFlags};

/// The longest payload that fits into every kind of packet: the IPv4 total length
/// is 16 bits and covers 40 bytes of headers.
pub const MAX_PAYLOAD: u16 = u16::MAX - 40;

const HOP_LIMIT: u8 = 64;
/// The type of a chunk with user data (RFC 9260 section 3.3.1).
const SCTP_DATA: u8 = 0;

/// A frame to build. IPv4 if both addresses of the flow are, IPv6 otherwise.
#[derive(Clone, Debug)]
pub struct Frame {
    flow: FlowKey,
    destination_mac: [u8; 6],
    source_mac: [u8; 6],
    vlans: Vec<u16>,
    tcp_flags: TcpFlags,
    timestamps: Option<(u32, u32)>,
    payload_length: u16,
}

impl Frame {
    /// A frame of `flow` with locally administered MAC addresses, no VLAN tag,
    /// TCP flag ACK and no payload.
    pub fn new(flow: FlowKey) -> Self {
        Self {
            flow,
            destination_mac: [2, 0, 0, 0, 0, 2],
            source_mac: [2, 0, 0, 0, 0, 1],
            vlans: Vec::new(),
            tcp_flags: TcpFlags::ACK,
            timestamps: None,
            payload_length: 0,
        }
    }

    /// Sets the MAC addresses, in the order of the frame.
    #[must_use]
    pub fn macs(mut self, destination: [u8; 6], source: [u8; 6]) -> Self {
        self.destination_mac = destination;
        self.source_mac = source;
        self
    }

    /// Adds a VLAN tag inside those that are there. Only the low 12 bits are used.
    #[must_use]
    pub fn vlan(mut self, id: u16) -> Self {
        self.vlans.push(id & 0x0fff);
        self
    }

    /// Sets the TCP flags. UDP frames ignore them; an SCTP frame has the chunk that says the same
    /// ([`TcpFlags::of_sctp`]).
    #[must_use]
    pub fn tcp_flags(mut self, flags: TcpFlags) -> Self {
        self.tcp_flags = flags;
        self
    }

    /// Adds the TCP timestamp option, TSval and TSecr. Frames of other protocols ignore it.
    #[must_use]
    pub fn timestamps(mut self, value: u32, echo: u32) -> Self {
        self.timestamps = Some((value, echo));
        self
    }

    /// Sets the length of the payload in bytes, at most [`MAX_PAYLOAD`].
    #[must_use]
    pub fn payload(mut self, length: u16) -> Self {
        self.payload_length = length.min(MAX_PAYLOAD);
        self
    }

    /// The bytes of the frame, from the destination MAC, without padding or FCS.
    pub fn build(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(100 + usize::from(self.payload_length));
        let segment = self.segment();
        self.put_link(&mut frame);
        if self.flow.is_ipv4() {
            self.put_ipv4(&mut frame, segment.len());
        } else {
            self.put_ipv6(&mut frame, segment.len());
        }
        frame.extend(segment);
        frame
    }

    fn put_link(&self, frame: &mut Vec<u8>) {
        frame.extend(self.destination_mac);
        frame.extend(self.source_mac);
        for (depth, id) in self.vlans.iter().enumerate() {
            // 802.1ad: an 802.1Q tag is the innermost, every other is a service tag.
            let innermost = depth + 1 == self.vlans.len();
            let ethertype: u16 = if innermost { 0x8100 } else { 0x88a8 };
            frame.extend(ethertype.to_be_bytes());
            frame.extend(id.to_be_bytes());
        }
        let ethertype: u16 = if self.flow.is_ipv4() { 0x0800 } else { 0x86dd };
        frame.extend(ethertype.to_be_bytes());
    }

    fn put_ipv4(&self, frame: &mut Vec<u8>, segment_length: usize) {
        let mut header = [0; 20];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&length_field(20 + segment_length));
        header[6] = 0x40; // don't fragment
        header[8] = HOP_LIMIT;
        header[9] = self.flow.protocol.number();
        header[12..16].copy_from_slice(&self.flow.src[12..]);
        header[16..20].copy_from_slice(&self.flow.dst[12..]);
        let checksum = Checksum::default().add_bytes(&header).finish();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(header);
    }

    fn put_ipv6(&self, frame: &mut Vec<u8>, segment_length: usize) {
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(length_field(segment_length));
        frame.extend([self.flow.protocol.number(), HOP_LIMIT]);
        frame.extend(self.flow.src);
        frame.extend(self.flow.dst);
    }

    /// The transport header and the payload, with their checksum.
    fn segment(&self) -> Vec<u8> {
        let mut segment = Vec::with_capacity(20 + usize::from(self.payload_length));
        segment.extend(self.flow.src_port.to_be_bytes());
        segment.extend(self.flow.dst_port.to_be_bytes());
        let checksum_at = match self.flow.protocol {
            Protocol::Tcp => {
                segment.extend([0, 0, 0, 1]); // sequence number
                segment.extend([0, 0, 0, 0]); // acknowledgment number
                let words = if self.timestamps.is_some() { 8 } else { 5 };
                segment.extend([words << 4, self.tcp_flags.0]);
                segment.extend([0xff, 0xff]); // window
                segment.extend([0, 0, 0, 0]); // checksum, urgent pointer
                if let Some((value, echo)) = self.timestamps {
                    segment.extend([1, 1, 8, 10]); // NOP, NOP, timestamps
                    segment.extend(value.to_be_bytes());
                    segment.extend(echo.to_be_bytes());
                }
                16
            }
            Protocol::Udp => {
                segment.extend(length_field(8 + usize::from(self.payload_length)));
                segment.extend([0, 0]); // checksum
                6
            }
            Protocol::Sctp => {
                let (chunk, tag) = match self.tcp_flags {
                    flags if flags.starts() => (SCTP_INIT, 0),
                    flags if flags.intersects(TcpFlags::RST) => (SCTP_ABORT, 1),
                    flags if flags.ends() => (SCTP_SHUTDOWN_COMPLETE, 1),
                    _ => (SCTP_DATA, 1),
                };
                segment.extend(u32::to_be_bytes(tag));
                segment.extend([0, 0, 0, 0]); // checksum
                segment.extend([chunk, 0]);
                segment.extend(length_field(4 + usize::from(self.payload_length)));
                segment.extend((0..self.payload_length).map(|i| i as u8));
                // RFC 9260 section 6.8: the byte of the lowest powers stands first.
                let sum = crc32c(&segment);
                segment[8..12].copy_from_slice(&sum.to_le_bytes());
                return segment;
            }
        };
        // A visible pattern, so that a packet that was cut or shifted shows.
        segment.extend((0..self.payload_length).map(|i| i as u8));

        let checksum = Checksum::default()
            .add_pseudo_header(&self.flow, segment.len() as u32)
            .add_bytes(&segment)
            .finish();
        // RFC 768: a UDP checksum of zero says "none", so zero is sent as all ones.
        let checksum = match (self.flow.protocol, checksum) {
            (Protocol::Udp, 0) => 0xffff,
            (_, checksum) => checksum,
        };
        segment[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
        segment
    }
}

/// The checksum of SCTP (RFC 9260 appendix A), a bit at a time: nothing but tests computes it.
fn crc32c(bytes: &[u8]) -> u32 {
    let sum = bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| sum >> 1 ^ (0x82f6_3b78 * (sum & 1)))
    });
    !sum
}

/// A frame with an ICMP message, of type and code and with this word behind the checksum (of "too
/// big", the MTU), from one address to another; IPv4 if both are.
pub fn icmp((src, dst): ([u8; 16], [u8; 16]), kind: [u8; 2], word: u32, body: &[u8]) -> Vec<u8> {
    const ICMP: u8 = 1;
    const ICMPV6: u8 = 58;
    let ports = FlowKey { src, dst, src_port: 0, dst_port: 0, protocol: Protocol::Udp };
    let mut frame = Frame::new(ports).build();
    let v4 = ports.is_ipv4();
    let mut message = [&kind[..], &[0, 0], &word.to_be_bytes(), body].concat();
    let mut sum = Checksum::default();
    if !v4 {
        sum = sum.add_bytes(&src).add_bytes(&dst);
        sum = sum.add_bytes(&(message.len() as u32).to_be_bytes()).add_bytes(&[0, 0, 0, ICMPV6]);
    }
    let sum = sum.add_bytes(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    if v4 {
        frame.truncate(14 + 20);
        frame[16..18].copy_from_slice(&length_field(20 + message.len()));
        frame[23] = ICMP;
        frame[24..26].fill(0);
        let sum = Checksum::default().add_bytes(&frame[14..34]).finish();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame.truncate(14 + 40);
        frame[18..20].copy_from_slice(&length_field(message.len()));
        frame[20] = ICMPV6;
    }
    frame.extend(message);
    frame
}

/// The fragments of a frame as a router makes them, with so many bytes of the packet in each: a multiple
/// of eight. The frame has no IP options or extension headers. In IPv4 the identification is the last 16
/// bits of `id`.
pub fn fragments(frame: &[u8], id: u32, bytes: usize) -> Vec<Vec<u8>> {
    assert!(bytes > 0 && bytes.is_multiple_of(8), "a multiple of eight");
    let mut l3 = 14;
    while matches!(frame[l3 - 2..l3], [0x81, 0] | [0x88, 0xa8]) {
        l3 += 4;
    }
    let v4 = frame[l3] >> 4 == 4;
    let header = if v4 { 20 } else { 40 };
    let (front, packet) = frame.split_at(l3 + header);
    let parts = packet.chunks(bytes);
    let last = parts.len().saturating_sub(1);
    let of = |(number, part): (usize, &[u8])| {
        let mut out = front.to_vec();
        let units = (number * bytes / 8) as u16;
        let more = number < last;
        if v4 {
            out[l3 + 2..l3 + 4].copy_from_slice(&length_field(20 + part.len()));
            out[l3 + 4..l3 + 6].copy_from_slice(&(id as u16).to_be_bytes());
            let place = units | u16::from(more) << 13;
            out[l3 + 6..l3 + 8].copy_from_slice(&place.to_be_bytes());
            out[l3 + 10..l3 + 12].fill(0);
            let sum = Checksum::default().add_bytes(&out[l3..]).finish();
            out[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            out[l3 + 4..l3 + 6].copy_from_slice(&length_field(8 + part.len()));
            let next = std::mem::replace(&mut out[l3 + 6], 44);
            out.extend([next, 0]);
            out.extend((units << 3 | u16::from(more)).to_be_bytes());
            out.extend(id.to_be_bytes());
        }
        out.extend(part);
        out
    };
    parts.enumerate().map(of).collect()
}

/// A 16-bit length field. [`MAX_PAYLOAD`] keeps every length within it.
fn length_field(length: usize) -> [u8; 2] {
    (length as u16).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_sctp_is_the_published_one() {
        // The check value of CRC-32C, and RFC 3720 appendix B.4: 32 bytes of zeros.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
