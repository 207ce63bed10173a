//! Packet traces: made, written, read and played.
//!
//! The tuple format is 13 bytes per packet and nothing else: source address (4), destination
//! address (4), source port (2), destination port (2), IP protocol (1), in network order.

mod balance;

pub use balance::{Balance, PlacedBy, balance, flows_of, sized_trace, zipf_flows};

use crate::flow::{NewFlow, Traffic};
use crate::method::{Change, Effects, FlowRef, Method, Placed};
use crate::world::Engine;
use crate::zipf::Zipf;
use pcap_file::pcap::PcapReader;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use weir_hash::HashKey;

/// Bytes of a tuple.
pub const TUPLE_BYTES: usize = 13;

/// The five-tuple of an IPv4 packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tuple {
    /// Source address, in network order.
    pub src: [u8; 4],
    /// Destination address, in network order.
    pub dst: [u8; 4],
    /// Source port, 0 to 65,535.
    pub src_port: u16,
    /// Destination port, 0 to 65,535.
    pub dst_port: u16,
    /// Number of the protocol in the IP header: 6 is TCP, 17 UDP.
    pub protocol: u8,
}

impl Tuple {
    /// The tuple in 13 bytes: addresses, ports and protocol, in network order.
    pub fn to_bytes(self) -> [u8; TUPLE_BYTES] {
        let mut bytes = [0; TUPLE_BYTES];
        bytes[..4].copy_from_slice(&self.src);
        bytes[4..8].copy_from_slice(&self.dst);
        bytes[8..10].copy_from_slice(&self.src_port.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.dst_port.to_be_bytes());
        bytes[12] = self.protocol;
        bytes
    }

    /// The tuple that stands in 13 bytes; the inverse of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(b: &[u8; TUPLE_BYTES]) -> Self {
        Self {
            src: [b[0], b[1], b[2], b[3]],
            dst: [b[4], b[5], b[6], b[7]],
            src_port: u16::from_be_bytes([b[8], b[9]]),
            dst_port: u16::from_be_bytes([b[10], b[11]]),
            protocol: b[12],
        }
    }

    /// A TCP flow to 10.0.0.1:80 for each number, all different below 2^48.
    pub fn numbered(number: u64) -> Self {
        let src_port = (number >> 32) as u16;
        let src = (number as u32).to_be_bytes();
        Self { src, dst: [10, 0, 0, 1], src_port, dst_port: 80, protocol: 6 }
    }

    /// A uniform 64-bit hash under a key; different tuples may collide.
    pub fn hash(self, key: &HashKey) -> u64 {
        let word = |at: usize| {
            let b = self.to_bytes();
            u64::from_be_bytes([
                b[at],
                b[at + 1],
                b[at + 2],
                b[at + 3],
                b[at + 4],
                b[at + 5],
                b[at + 6],
                b[at + 7],
            ])
        };
        key.hash_word(key.hash_word(word(0)) ^ word(5))
    }
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file or stream fails.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The last tuple lacks bytes.
    #[error("the trace ends inside a tuple: {0} bytes after the last whole one")]
    Torn(usize),
    /// Not a capture, or a damaged one.
    #[error("not a readable capture: {0}")]
    Capture(#[from] pcap_file::PcapError),
}

/// Writes tuples.
///
/// # Errors
///
/// What the writer says.
pub fn write_tuples(
    mut out: impl Write,
    tuples: impl IntoIterator<Item = Tuple>,
) -> io::Result<()> {
    tuples.into_iter().try_for_each(|tuple| out.write_all(&tuple.to_bytes()))
}

/// Reads all tuples.
///
/// # Errors
///
/// [`TraceError`], but not `Capture`.
pub fn read_tuples(mut input: impl Read) -> Result<Vec<Tuple>, TraceError> {
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes)?;
    let (whole, rest) = bytes.as_chunks::<TUPLE_BYTES>();
    if !rest.is_empty() {
        return Err(TraceError::Torn(rest.len()));
    }
    Ok(whole.iter().map(Tuple::from_bytes).collect())
}

/// What a capture held.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Capture {
    /// The IPv4 packets of TCP and UDP.
    pub tuples: Vec<Tuple>,
    /// All others: not IPv4, other protocols, fragments, damaged.
    pub skipped: u64,
}

/// Reads a capture of Ethernet frames.
///
/// # Errors
///
/// [`TraceError::Capture`].
pub fn read_pcap(input: impl Read) -> Result<Capture, TraceError> {
    let mut reader = PcapReader::new(input)?;
    let mut capture = Capture::default();
    while let Some(packet) = reader.next_packet() {
        match tuple_of_frame(&packet?.data) {
            Some(tuple) => capture.tuples.push(tuple),
            None => capture.skipped += 1,
        }
    }
    Ok(capture)
}

/// A capture often holds the first bytes of a frame only, so lengths are not checked against the
/// headers, as `weir_wire::parse` does; the ports must be there.
fn tuple_of_frame(frame: &[u8]) -> Option<Tuple> {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let ip = match word(12)? {
        0x0800 => 14,
        0x8100 if word(16)? == 0x0800 => 18,
        _ => return None,
    };
    let header = frame.get(ip..ip + 20)?;
    let (version, length) = (header[0] >> 4, usize::from(header[0] & 15) * 4);
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let protocol = header[9];
    if version != 4 || length < 20 || fragment || !matches!(protocol, 6 | 17) {
        return None;
    }
    Some(Tuple {
        src: header[12..16].try_into().ok()?,
        dst: header[16..20].try_into().ok()?,
        src_port: word(ip + length)?,
        dst_port: word(ip + length + 2)?,
        protocol,
    })
}

/// A trace in which the flows of the packets are drawn from a Zipf distribution: JET's synthetic
/// traces have 2^24 ranks, skews from 0.6 to 1.4 and 10 or 100 million packets.
pub fn zipf_trace(zipf: Zipf, packets: u64, seed: u64) -> impl Iterator<Item = Tuple> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..packets).map(move |_| Tuple::numbered(zipf.sample(&mut rng)))
}

/// What playing a trace yields.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct TraceReport {
    /// Number of packets that were played.
    pub packets: u64,
    /// Number of different five-tuples among them.
    pub flows: u64,
    /// Entries at the end.
    pub tracked: usize,
    /// Flows of the server that has most, over the average.
    pub oversubscription: f64,
    /// Packets that went to another server than the flow's first.
    pub misdirected: u64,
}

/// Plays a trace with a pool that does not change: servers `0..servers`, and the numbers up to
/// `servers + horizon` on the horizon. No flow ends.
pub fn replay(
    tuples: impl IntoIterator<Item = Tuple>,
    method: &mut dyn Method,
    servers: u16,
    horizon: u16,
    seed: u64,
) -> TraceReport {
    let all = usize::from(servers) + usize::from(horizon);
    let mut traffic = Traffic::new(method.rows(), &vec![1; all], seed, Engine::Lazy);
    let mut effects = Effects::default();
    let joining = (0..servers).map(Change::Add);
    let expected = (servers..servers + horizon).map(Change::Expect);
    let changes: Vec<Change> = joining.chain(expected).collect();
    method.change(&changes, &mut traffic, &mut effects);
    let key = HashKey::from_seed(seed);
    let mut slots: HashMap<Tuple, u32> = HashMap::new();
    let (mut packets, mut misdirected) = (0, 0);
    for tuple in tuples {
        packets += 1;
        traffic.set_now(packets as f64);
        if let Some(&slot) = slots.get(&tuple) {
            let flow: FlowRef = traffic.refer(slot);
            traffic.flow_mut(slot).last = packets as f64;
            let owner = traffic.flow(slot).owner;
            let route = method.packet(flow, &mut traffic, &mut effects);
            misdirected += u64::from(route.end(owner) != owner);
            effects.flows.clear();
            continue;
        }
        let id = tuple.hash(&key);
        let row = method.row_of(id);
        let (start, end) = (packets as f64, f64::INFINITY);
        let new = NewFlow { id, start, end, packets: 1, row, counted: true };
        let slot = traffic.insert(new);
        slots.insert(tuple, slot);
        let flow = traffic.refer(slot);
        if let Some(Placed { server, echo }) = method.first(flow, &mut traffic, &mut effects) {
            traffic.give(slot, server);
            traffic.flow_mut(slot).echo = echo;
        }
        effects.rows.clear();
        effects.flows.clear();
    }
    let most = (0..servers).map(|server| traffic.load(server)).max().unwrap_or(0);
    let flows = slots.len() as u64;
    TraceReport {
        packets,
        flows,
        tracked: method.gauges(&traffic).tracked,
        oversubscription: f64::from(most) * f64::from(servers) / (flows as f64).max(1.0),
        misdirected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::{PcapPacket, PcapWriter};
    use std::time::Duration;
    use weir_wire::craft::Frame;

    #[test]
    fn tuples_come_back_as_they_were_written() {
        let zipf = Zipf::new(1 << 24, 1.0).unwrap();
        let tuples: Vec<Tuple> = zipf_trace(zipf, 1000, 3).collect();
        let mut bytes = Vec::new();
        write_tuples(&mut bytes, tuples.iter().copied()).unwrap();
        assert_eq!(bytes.len(), 13_000);
        assert_eq!(read_tuples(&bytes[..]).unwrap(), tuples);
        assert!(matches!(read_tuples(&bytes[..20]), Err(TraceError::Torn(7))));
        let tuple = Tuple { src_port: 0x0102, ..Tuple::numbered(0x0a0b_0c0d) };
        let expected = [10, 11, 12, 13, 10, 0, 0, 1, 1, 2, 0, 80, 6];
        assert_eq!(tuple.to_bytes(), expected);
    }

    /// JET, figure 7 and table 2: of 1,602,007 flows 145,543 were tracked with 500 servers and a
    /// horizon of 50, which is 50 / 550. Here some 60,000 flows, so one part in 13 is four standard
    /// deviations of the flows; the rows of a table add as much again.
    #[test]
    fn jet_tracks_the_share_of_the_horizon_and_full_tracking_all() {
        use crate::methods::{Connections, Eviction, Jet, Over, Release, Tracked};
        use crate::world::World;
        let zipf = Zipf::new(1 << 20, 1.0).unwrap();
        let play =
            |method: &mut dyn Method| replay(zipf_trace(zipf, 200_000, 5), method, 500, 50, 5);
        let world = World::of_servers(&[1; 550]);
        let (rows, room) = (150_000, usize::MAX);
        let table = Connections::new(room, Eviction::Buckets, Release::Never);
        let full = &mut Tracked::new(Over::Table, rows, &world, table).unwrap();
        let full = play(full);
        assert_eq!(full.tracked as u64, full.flows, "seed 5");
        for over in [Over::Table, Over::Anchor] {
            let jet = play(&mut Jet::new(over, rows, &world, table).unwrap());
            let share = jet.tracked as f64 / jet.flows as f64;
            println!("{over:?}, seed 5: {jet:?}, tracked {share:.4}");
            assert_eq!((jet.flows, jet.misdirected), (full.flows, 0));
            assert!((0.0909 * 0.92..0.0909 * 1.08).contains(&share), "{over:?}: {share}");
            assert!((1.15..1.6).contains(&jet.oversubscription), "{over:?}: {jet:?}");
        }
    }

    #[test]
    fn a_capture_gives_its_tcp_and_udp_packets() {
        let flow = |text: &str, protocol| {
            let (src, dst) = text.split_once('>').unwrap();
            weir_wire::FlowKey::new(src.parse().unwrap(), dst.parse().unwrap(), protocol)
        };
        use weir_wire::Protocol::{Tcp, Udp};
        let frames = [
            Frame::new(flow("10.1.2.3:1000>10.0.0.1:80", Tcp)).build(),
            Frame::new(flow("10.1.2.4:53>10.0.0.1:53", Udp)).vlan(7).build(),
            Frame::new(flow("[fd00::1]:1>[fd00::2]:2", Tcp)).build(),
            vec![0; 9],
        ];
        let mut writer = PcapWriter::new(Vec::new()).unwrap();
        for frame in &frames {
            let length = frame.len() as u32;
            writer.write_packet(&PcapPacket::new(Duration::ZERO, length, frame)).unwrap();
        }
        let capture = read_pcap(&writer.into_writer()[..]).unwrap();
        assert_eq!(capture.skipped, 2);
        let first = Tuple { src_port: 1000, ..Tuple::numbered(0x0a01_0203) };
        assert_eq!(capture.tuples[0], first);
        assert_eq!((capture.tuples[1].protocol, capture.tuples[1].dst_port), (17, 53));
        assert!(read_pcap(&b"nonsense"[..]).is_err());
    }
}
