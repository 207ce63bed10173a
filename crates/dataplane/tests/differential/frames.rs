//! Frames at random: of flows that there are and others, with options, damaged ones, answers, ICMP errors.

use super::*;

impl World {
    pub(super) fn flow(&mut self) -> FlowKey {
        let service = self.tables.services.choose(&mut self.rng).unwrap();
        let number: u32 = self.rng.random_range(0..300);
        let v4 = service.vip.address.starts_with(&[0; 10]);
        let src = if v4 {
            format!("10.8.{}.{}:{}", number >> 4, number & 15, 1000 + number % 7)
        } else {
            format!("[fd08::{:x}:{:x}]:{}", number >> 4, number & 15, 1000 + number % 7)
        };
        let port = service.vip.port.unwrap_or_else(|| self.rng.random_range(1..5));
        let port = if self.rng.random_bool(0.02) { 9 } else { port };
        let address = weir_wire::unmap_address(&service.vip.address);
        let flow = FlowKey::new(src.parse().unwrap(), (address, port).into(), service.vip.protocol);
        let flow = wide::moved(&mut self.rng, &self.places, service, flow);
        if let Some(at) = wide::place(&self.places, &flow) {
            *self.to_places.entry(wide::kind(at)).or_default() += 1;
        }
        flow
    }

    /// Half of the TCP packets have timestamps; those of Cheetah's services mostly good ones.
    pub(super) fn add_options(&mut self, flow: &FlowKey, frame: &mut Vec<u8>) {
        if flow.protocol != Protocol::Tcp || self.rng.random_bool(0.5) {
            return;
        }
        let service = self.tables.services.iter().find(|one| one.vip.address == flow.dst);
        let table = service.and_then(|one| self.plane.oracle.tables.get(&one.number));
        let known = weir_plane::Plane::answered(&self.plane.oracle, flow).unwrap();
        // Where the backends are told cookies, the entry of the connection table names the slot.
        let told = weir_plane::Plane::connection(&self.plane.oracle, flow).unwrap();
        let known = known.or(told.and_then(|told| told.former).map(|former| former.number()));
        let echo = table.map_or(0, |table| options::echo(&mut self.rng, table, flow, known));
        let value = self.rng.random();
        options::insert(frame, &options::options(&mut self.rng, value, echo));
    }

    /// A packet of a backend to a client, by a clock of the connection's own.
    pub(super) fn answer(&mut self) -> Vec<u8> {
        let FlowKey { src, dst, src_port, dst_port, protocol } = self.flow();
        let flow = FlowKey { src: dst, dst: src, src_port: dst_port, dst_port: src_port, protocol };
        let flags = [
            TcpFlags::SYN | TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::FIN | TcpFlags::ACK,
            TcpFlags::RST,
        ];
        let flags = *flags.choose(&mut self.rng).unwrap();
        let mut frame = Frame::new(flow).tcp_flags(flags).build();
        self.ticks += self.rng.random_range(0..40);
        if self.rng.random_bool(0.9) && protocol == Protocol::Tcp {
            let offset = u32::from(src_port).wrapping_mul(0x9e37_79b9);
            let late = self.rng.random_range(0..200);
            let value = self.ticks.wrapping_add(offset).wrapping_sub(late);
            let echo = self.rng.random();
            options::insert(&mut frame, &options::options(&mut self.rng, value, echo));
        }
        frame
    }

    /// An ICMP error of a router about a packet that a backend has sent, cut somewhere; now and then
    /// about another address's.
    pub(super) fn icmp(&mut self) -> Vec<u8> {
        let flow = self.flow();
        let FlowKey { src, dst, src_port, dst_port, protocol } = flow;
        let back = FlowKey { src: dst, dst: src, src_port: dst_port, dst_port: src_port, protocol };
        let mut sent = Frame::new(back).payload(self.rng.random_range(0..64)).build();
        if self.rng.random_bool(0.8) && protocol == Protocol::Tcp {
            let service = self.tables.services.iter().find(|one| one.vip.address == dst);
            let table = service.and_then(|one| self.plane.oracle.tables.get(&one.number));
            let known = weir_plane::Plane::answered(&self.plane.oracle, &flow).unwrap();
            let value = table.map_or(0, |table| options::echo(&mut self.rng, table, &flow, known));
            options::insert(&mut sent, &options::options(&mut self.rng, value, 7));
        }
        let mut quote = sent.split_off(14);
        if self.rng.random_bool(0.2) {
            if quote[0] >> 4 == 4 {
                // Fragments, and IP options.
                quote[6] = *[0x20, 0x20, 0, 1].choose(&mut self.rng).unwrap();
                if self.rng.random_bool(0.3) {
                    quote[0] = 0x46;
                    quote.splice(20..20, [1; 4]);
                }
            } else {
                let next = std::mem::replace(&mut quote[6], 44);
                let more = *[1, 1, 0, 8].choose(&mut self.rng).unwrap();
                quote.splice(40..40, [next, 0, 0, more, 0, 0, 0, 9]);
            }
        }
        if self.rng.random_bool(0.3) {
            let length = self.rng.random_range(0..=quote.len());
            quote.truncate(length);
        }
        let v4 = flow.is_ipv4();
        let to = if self.rng.random_bool(0.05) { self.flow().dst } else { dst };
        let kinds: &[u8] = if v4 { &[3, 3, 3, 11, 12, 4, 8] } else { &[1, 2, 2, 2, 3, 4, 128] };
        let router = if v4 { "10.8.9.9" } else { "fd08::9:9" };
        let router = weir_wire::map_address(router.parse().unwrap());
        let kind = *kinds.choose(&mut self.rng).unwrap();
        let code = if matches!(kind, 8 | 128) { self.rng.random_range(0..2) } else { 4 };
        let mut frame = craft::icmp((router, to), [kind, code], 1280, &quote);
        if !v4 && self.rng.random_bool(0.1) {
            self.extend(&mut frame);
        }
        if self.rng.random_bool(0.2) {
            self.damage(&mut frame);
        }
        frame
    }

    pub(super) fn frame(&mut self) -> Vec<u8> {
        if self.rng.random_bool(0.2) {
            return self.answer();
        }
        if self.rng.random_bool(0.1) {
            return self.icmp();
        }
        if self.rng.random_bool(0.2)
            && let Some(frame) = nat::frame(self)
        {
            return frame;
        }
        if self.rng.random_bool(0.05) {
            return self.fragment();
        }
        let flow = self.flow();
        let flags = [
            TcpFlags::SYN,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::FIN | TcpFlags::ACK,
            TcpFlags::RST,
            TcpFlags::SYN | TcpFlags::ACK,
        ];
        let mut frame = Frame::new(flow)
            .tcp_flags(*flags.choose(&mut self.rng).unwrap())
            .payload(self.rng.random_range(0..64));
        for _ in 0..self.rng.random_range(0..50u32).saturating_sub(46) {
            frame = frame.vlan(self.rng.random_range(1..4000));
        }
        if self.rng.random_bool(0.02) {
            frame = frame.payload(self.rng.random_range(64..1500));
        }
        let mut bytes = frame.build();
        tunnels::vary(&mut self.rng, &mut bytes);
        self.add_options(&flow, &mut bytes);
        if self.rng.random_bool(0.02) && bytes[12..14] == [0x86, 0xdd] {
            self.extend(&mut bytes);
        }
        if self.rng.random_bool(0.1) {
            self.damage(&mut bytes);
        }
        bytes
    }

    /// Puts IPv6 extension headers in front of the transport header.
    pub(super) fn extend(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.rng.random_range(1..=8) {
            let units: u8 = self.rng.random_range(0..3);
            let kind = *[0, 43, 44, 51, 60].choose(&mut self.rng).unwrap();
            let mut header = match kind {
                51 => vec![0; (usize::from(units) * 2 + 2) * 4],
                44 => vec![0; 8],
                _ => vec![0; (usize::from(units) + 1) * 8],
            };
            header[0] = std::mem::replace(&mut bytes[20], kind);
            header[1] = if kind == 51 { units * 2 } else { units };
            if kind == 44 {
                // An atomic fragment, which is a whole packet, or now and then a real one.
                header[1] = 0;
                header[3] = u8::from(self.rng.random_bool(0.1));
            }
            bytes.splice(54..54, header);
        }
        let payload = (bytes.len() - 54) as u16;
        bytes[18..20].copy_from_slice(&payload.to_be_bytes());
    }

    /// Truncates the frame or changes some bytes of its headers.
    pub(super) fn damage(&mut self, bytes: &mut Vec<u8>) {
        if self.rng.random_bool(0.3) {
            let length = self.rng.random_range(14..=bytes.len());
            bytes.truncate(length);
        }
        for _ in 0..self.rng.random_range(0..4) {
            let at = self.rng.random_range(12..bytes.len().clamp(13, 80));
            if at < bytes.len() {
                // Small values are next-header numbers and lengths; the rest is anything.
                if at == 24 && bytes.len() >= 34 && self.rng.random_bool(0.2) {
                    // An IPv4-mapped source.
                    bytes[22..34].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
                    return;
                }
                bytes[at] = if self.rng.random_bool(0.5) {
                    *[0, 1, 6, 17, 43, 44, 51, 58, 60, 0x45, 0x46, 0x60]
                        .choose(&mut self.rng)
                        .unwrap()
                } else {
                    self.rng.random()
                };
            }
        }
    }
}
