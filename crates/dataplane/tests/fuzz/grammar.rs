//! Frames of a grammar: tags, options, extension headers, fragments, tunnels in tunnels, quotes in ICMP errors, to
//! services and from their backends; right in most of their fields, and now and then wrong in one.

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use weir_wire::checksum::Checksum;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// What frames are addressed to, and what answers come from: IPv4 as four bytes.
pub struct Targets {
    pub addresses: Vec<Vec<u8>>,
    /// Of services, by protocol; SCTP has that of TCP.
    pub tcp: u16,
    pub udp: u16,
    /// Backends whose answers are translated, with their ports.
    pub senders: Vec<(Vec<u8>, u16)>,
    /// QUIC ids of servers, hidden by keys.
    pub ids: Vec<Vec<u8>>,
}

/// Whose a packet is.
#[derive(Clone)]
pub struct Ends {
    pub src: Vec<u8>,
    pub dst: Vec<u8>,
    /// If they are said.
    pub ports: Option<[u16; 2]>,
    /// TCP, UDP or SCTP, if it is said.
    pub protocol: Option<u8>,
    /// From a service, or from a backend.
    pub away: bool,
}

impl Ends {
    /// Of a packet the other way.
    fn turned(&self) -> Self {
        Self {
            src: self.dst.clone(),
            dst: self.src.clone(),
            ports: self.ports.map(|[src, dst]| [dst, src]),
            away: !self.away,
            ..*self
        }
    }
}

pub struct Grammar<'a> {
    pub rng: &'a mut ChaCha8Rng,
    pub targets: &'a Targets,
    /// What an answer to an address of the balancer's would be now.
    pub mapped: Option<Ends>,
}

impl Grammar<'_> {
    fn one_in(&mut self, count: u32) -> bool {
        self.rng.random_ratio(1, count)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.rng.random_range(0..=most)).map(|_| self.rng.random()).collect()
    }

    /// A frame; one in four has something wrong.
    pub fn frame(&mut self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        let tags = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3]
            .choose(self.rng)
            .copied()
            .unwrap_or(0);
        for _ in 0..tags {
            frame.extend(if self.rng.random() { [0x81, 0] } else { [0x88, 0xa8] });
            frame.extend(self.rng.random::<[u8; 2]>());
        }
        let away = self.one_in(6);
        let ends = self.ends(away);
        let packet = self.packet(&ends, 0);
        frame.extend(if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] });
        frame.extend(packet);
        if self.one_in(8) {
            frame.extend(self.bytes(30));
        }
        if self.one_in(4) {
            self.damage(&mut frame);
        }
        frame
    }

    /// From a client to a target; or as backends send: from a target, or from themselves.
    fn ends(&mut self, away: bool) -> Ends {
        if away && self.one_in(3) && self.mapped.is_some() {
            let mut ends = self.mapped.clone().expect("it is some");
            if let Some([_, own]) = &mut ends.ports
                && self.one_in(12)
            {
                *own ^= 1;
            }
            return ends;
        }
        let target = self.targets.addresses.choose(self.rng).expect("there are some").clone();
        let mut client = target.clone();
        // Few, so that flows are met again.
        let last = client.len() - 1;
        client[last - 1] ^= 0x55;
        client[last] = self.rng.random_range(0..6);
        if away && self.one_in(3) {
            let alike = |(address, _): &&(Vec<u8>, u16)| address.len() == client.len();
            let senders: Vec<_> = self.targets.senders.iter().filter(alike).collect();
            if let Some((sender, port)) = senders.choose(self.rng) {
                let ports = Some([*port, self.rng.random_range(1000..1004)]);
                return Ends { src: sender.clone(), dst: client, ports, protocol: None, away };
            }
        }
        let (src, dst) = if away { (target, client) } else { (client, target) };
        Ends { src, dst, ports: None, protocol: None, away }
    }

    fn packet(&mut self, ends: &Ends, depth: u32) -> Vec<u8> {
        let Ends { src, dst, .. } = ends;
        let v4 = src.len() == 4;
        let kind = self.rng.random_range(0..22);
        let (protocol, body) = match kind {
            0..17 => {
                let usual = [TCP, UDP, SCTP][usize::from(kind >= 9) + usize::from(kind >= 15)];
                let protocol = ends.protocol.unwrap_or(usual);
                (protocol, self.segment(protocol, ends))
            }
            17..20 if depth < 2 => self.icmp(v4, ends, depth),
            20 if depth < 2 => self.tunnelled(depth),
            _ => (*[0, 2, 50, 58, 59, 132].choose(self.rng).expect("one"), self.bytes(30)),
        };
        let mut body = body;
        // Larger than some ways take, of either family.
        if depth == 0 && !ends.away && self.one_in(64) {
            body.resize(body.len() + 1300, 0x5a);
        }
        let body = checksummed(src, dst, protocol, body);
        if v4 { self.ipv4(src, dst, protocol, body) } else { self.ipv6(src, dst, protocol, body) }
    }

    fn segment(&mut self, protocol: u8, ends: &Ends) -> Vec<u8> {
        match protocol {
            TCP => self.tcp(ends),
            UDP => self.udp(ends),
            _ => self.sctp(ends),
        }
    }

    fn ipv4(&mut self, src: &[u8], dst: &[u8], protocol: u8, body: Vec<u8>) -> Vec<u8> {
        let options = if self.one_in(6) { self.rng.random_range(0..=10) * 4 } else { 0 };
        // Pieces of few packets, so that others find their first one.
        let (id, fragment) = match self.rng.random_range(0..40) {
            0 => (self.rng.random(), self.rng.random::<u16>()),
            1 | 2 => (self.rng.random_range(0..2), 0x2000),
            3 => (self.rng.random_range(0..2), 0x2000 | self.rng.random_range(1..9)),
            4 => (self.rng.random_range(0..2), self.rng.random_range(1..9)),
            _ => (self.rng.random::<u16>(), self.rng.random_range(0..2) << 14),
        };
        let ttl = if self.one_in(20) { self.rng.random_range(0..3) } else { self.rng.random() };
        let mut header = vec![0x45 + (options / 4) as u8, self.rng.random()];
        header.extend(((20 + options + body.len()) as u16).to_be_bytes());
        header.extend(id.to_be_bytes());
        header.extend(fragment.to_be_bytes());
        header.extend([ttl, protocol, 0, 0]);
        header.extend(src);
        header.extend(dst);
        header.extend((0..options).map(|_| 1));
        let sum = Checksum::default().add_bytes(&header).finish();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [header, body].concat()
    }

    fn ipv6(&mut self, src: &[u8], dst: &[u8], protocol: u8, body: Vec<u8>) -> Vec<u8> {
        let count = if self.one_in(4) { self.rng.random_range(1..=8) } else { 0 };
        let mut chain = Vec::new();
        let kinds: Vec<u8> =
            (0..count).map(|_| *[0, 43, 44, 51, 60].choose(self.rng).expect("one")).collect();
        for (at, kind) in kinds.iter().enumerate() {
            let next = kinds.get(at + 1).copied().unwrap_or(protocol);
            let units: u8 = self.rng.random_range(0..3);
            let size = match kind {
                44 => 8,
                51 => (usize::from(units) + 2) * 4,
                _ => (usize::from(units) + 1) * 8,
            };
            let mut header = vec![0; size];
            (header[0], header[1]) = (next, if *kind == 44 { 0 } else { units });
            if *kind == 44 && self.one_in(6) {
                header[3] = self.rng.random();
            }
            chain.extend(header);
        }
        let limit = if self.one_in(20) { self.rng.random_range(0..3) } else { self.rng.random() };
        let mut header = vec![0x60 | self.rng.random_range(0..16), self.rng.random()];
        header.extend(self.rng.random::<[u8; 2]>());
        header.extend(((chain.len() + body.len()) as u16).to_be_bytes());
        header.extend([kinds.first().copied().unwrap_or(protocol), limit]);
        header.extend(src);
        header.extend(dst);
        [header, chain, body].concat()
    }

    fn ports(&mut self, ends: &Ends, usual: u16) -> Vec<u8> {
        let near: u16 = self.rng.random_range(1000..1004);
        let port = if self.one_in(12) { self.rng.random_range(70..90) } else { usual };
        let [src, dst] = match ends.ports {
            Some(ports) if !self.one_in(20) => ports,
            _ if ends.away => [port, near],
            _ => [near, port],
        };
        [src.to_be_bytes(), dst.to_be_bytes()].concat()
    }

    /// Its common header, and the first chunk.
    fn sctp(&mut self, ends: &Ends) -> Vec<u8> {
        let mut packet = self.ports(ends, self.targets.tcp);
        let tag: u32 = if self.rng.random() { 0 } else { self.rng.random() };
        packet.extend(tag.to_be_bytes());
        packet.extend(self.rng.random::<[u8; 4]>());
        let kind = *[1, 1, 0, 3, 6, 8, 14].choose(self.rng).expect("one");
        let value = self.bytes(30);
        packet.extend([kind, self.rng.random()]);
        packet.extend(((4 + value.len()) as u16).to_be_bytes());
        packet.extend(value);
        packet
    }

    fn tcp(&mut self, ends: &Ends) -> Vec<u8> {
        let mut segment = self.ports(ends, self.targets.tcp);
        let options = self.options();
        segment.extend([0, 0, 0, 1, 0, 0, 0, 2]);
        let flags =
            *[0x02, 0x10, 0x10, 0x10, 0x18, 0x11, 0x04, 0x12].choose(self.rng).expect("one");
        segment.extend([(5 + options.len() / 4) as u8 * 16, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(options);
        segment.extend(self.bytes(40));
        segment
    }

    fn options(&mut self) -> Vec<u8> {
        let mut options = Vec::new();
        for _ in 0..self.rng.random_range(0..5) {
            match self.rng.random_range(0..6) {
                0 => options.extend([1]),
                1 => options.extend([2, 4, 5, 0xb4]),
                2 => options.extend([1, 3, 3, 7]),
                3 => options.extend([4, 2]),
                4 => {
                    options.extend([8, 10]);
                    options.extend(self.rng.random::<[u8; 8]>());
                }
                _ => {
                    let length = self.rng.random_range(0..12);
                    options.extend([self.rng.random(), length]);
                    options.extend((2..length).map(|_| 0xee));
                }
            }
        }
        options.resize(options.len().min(40).next_multiple_of(4), 0);
        options
    }

    fn udp(&mut self, ends: &Ends) -> Vec<u8> {
        let mut datagram = self.ports(ends, self.targets.udp);
        let payload = if self.rng.random() { self.quic() } else { self.bytes(50) };
        datagram.extend(((8 + payload.len()) as u16).to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(payload);
        datagram
    }

    fn quic(&mut self) -> Vec<u8> {
        // Servers of the set-up, in the open; or nobody's.
        let mut id =
            vec![self.rng.random_range(0..3) << 5 | 7, self.rng.random_range(0..4), 0xaa, 0xbb];
        id.extend(self.rng.random::<[u8; 4]>());
        if let Some(hidden) = self.targets.ids.choose(self.rng)
            && self.one_in(3)
        {
            id.clone_from(hidden);
        } else if self.one_in(4) {
            id = self.bytes(24);
        }
        let mut payload = Vec::new();
        if self.rng.random() {
            payload.extend([0xc3, 0, 0, 0, 1, id.len() as u8]);
        } else {
            payload.push(0x40);
        }
        payload.extend(id);
        payload.extend(self.bytes(60));
        payload
    }

    /// An error about a packet that went the other way, cut somewhere; an echo request; or another message.
    fn icmp(&mut self, v4: bool, ends: &Ends, depth: u32) -> (u8, Vec<u8>) {
        if self.one_in(4) {
            let kind = if v4 { 8 } else { 128 };
            let mut request = vec![kind, u8::from(self.one_in(8)), 0, 0];
            request.extend(self.rng.random::<[u8; 4]>());
            request.extend(self.bytes(60));
            return (if v4 { 1 } else { 58 }, request);
        }
        let about = if self.one_in(4) { self.ends(true) } else { ends.turned() };
        let mut quote = self.packet(&about, depth + 1);
        if self.one_in(3) {
            let length = self.rng.random_range(0..=quote.len());
            quote.truncate(length);
        }
        let kinds: &[u8] = if v4 { &[3, 3, 11, 12, 5, 8] } else { &[1, 2, 2, 3, 4, 128, 135] };
        let mut message = vec![*kinds.choose(self.rng).expect("one"), 4, 0, 0, 0, 0, 5, 0];
        message.extend(quote);
        (if v4 { 1 } else { 58 }, message)
    }

    /// Another packet in this one: bare, in GRE, or in GUE.
    fn tunnelled(&mut self, depth: u32) -> (u8, Vec<u8>) {
        let ends = self.ends(false);
        let inner = self.packet(&ends, depth + 1);
        let v4 = inner[0] >> 4 == 4;
        match self.rng.random_range(0..3) {
            0 => (if v4 { 4 } else { 41 }, inner),
            1 => (47, [if v4 { vec![0, 0, 8, 0] } else { vec![0, 0, 0x86, 0xdd] }, inner].concat()),
            _ => {
                let mut datagram = vec![0xc0, 0, 0x17, 0xc0];
                datagram.extend(((12 + inner.len()) as u16).to_be_bytes());
                datagram.extend([0, 0, 0, if v4 { 4 } else { 41 }, 0, 0]);
                datagram.extend(inner);
                (UDP, datagram)
            }
        }
    }

    /// Lengths that lie, bytes that are others, frames that end.
    pub fn damage(&mut self, frame: &mut Vec<u8>) {
        match self.rng.random_range(0..4) {
            0 => {
                let length = self.rng.random_range(14..=frame.len());
                frame.truncate(length);
            }
            1 => {
                // A byte that may be a length: near what it was.
                let at = self.rng.random_range(12..frame.len().min(90));
                let by: u8 = *[1, 2, 4, 255, 254, 128].choose(self.rng).expect("one");
                frame[at] = frame[at].wrapping_add(by);
            }
            2 => {
                let at = self.rng.random_range(12..frame.len());
                frame[at] = self.rng.random();
            }
            _ => {
                let at = self.rng.random_range(14..frame.len());
                let piece = self.bytes(9);
                frame.splice(at..at, piece);
            }
        }
    }
}

/// With the checksum of its transport.
fn checksummed(src: &[u8], dst: &[u8], protocol: u8, mut body: Vec<u8>) -> Vec<u8> {
    let at = match protocol {
        TCP => 16,
        UDP => 6,
        1 | 58 => 2,
        _ => return body,
    };
    if body.len() < at + 2 {
        return body;
    }
    let mut sum = Checksum::default();
    if protocol != 1 {
        let length = (body.len() as u32).to_be_bytes();
        sum = sum.add_bytes(src).add_bytes(dst).add_bytes(&length).add_bytes(&[0, 0, 0, protocol]);
    }
    let sum = sum.add_bytes(&body).finish();
    body[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    body
}
