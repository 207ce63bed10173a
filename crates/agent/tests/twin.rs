//! The programs against their twin in Rust: random packets of connections and of others, in both directions,
//! must come out alike, byte for byte. `WEIR_SEED=n` repeats a run.

#[allow(dead_code, reason = "a part of it is for services")]
#[path = "../../dataplane/tests/differential/options.rs"]
mod options;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use weir_agent::{CLOCK_BITS, Counts, Loaded, Options};
use weir_dataplane::run_frame;
use weir_steering::cheetah::{Answered, PATIENCE, SAME_CLOCK, TOLD, TOLD_MARK, told};
use weir_wire::craft::Frame;
use weir_wire::tcp_options::{Timestamps, TimestampsMut, find};
use weir_wire::{FlowKey, Protocol, TcpFlags, parse};

const PACKETS: usize = 60_000;
const COOKIE: u16 = 0x7fff;
/// Ports of the services that the programs are told of, and one that is none.
const SERVICES: [u16; 2] = [80, 443];
const OTHER: u16 = 9;

/// What the programs remember of a connection.
struct Known {
    answered: Answered,
    newest: Option<u32>,
    /// More than its SYN was seen.
    begun: bool,
}

impl Known {
    fn new(cookie: u16) -> Self {
        Self { answered: Answered::new(cookie), newest: None, begun: false }
    }

    fn outgoing(&mut self, tsval: u32, starts: bool) -> u32 {
        let newer = match self.newest {
            None => true,
            Some(newest) if starts && tsval.wrapping_sub(newest) >= SAME_CLOCK => true,
            Some(newest) => newest.wrapping_sub(tsval) >= 2 << CLOCK_BITS,
        };
        if newer {
            self.newest = Some(tsval);
        }
        self.begun = true;
        self.answered.outgoing(tsval, self.answered.number(), starts)
    }
}

#[derive(Default)]
struct Twin {
    /// Connections whose clients have echoed what was sent to them.
    flows: HashMap<FlowKey, Known>,
    /// All others.
    openings: HashMap<FlowKey, Known>,
    counts: Counts,
}

fn has_number(known: Option<&Known>, cookie: u16) -> bool {
    known.is_some_and(|known| known.answered.number() == cookie)
}

impl Twin {
    /// The TSecr that a client's packet gets.
    fn ingress(
        &mut self,
        flow: &FlowKey,
        flags: TcpFlags,
        stamps: Option<Timestamps>,
    ) -> Option<u32> {
        let echo = stamps?.echo;
        let cookie = (echo >> CLOCK_BITS) as u16 & COOKIE;
        let is_endpoint = SERVICES.contains(&flow.dst_port);
        if flags == TcpFlags::SYN {
            if !is_endpoint || echo & (TOLD | 0xffff) != TOLD | u32::from(TOLD_MARK) {
                return None;
            }
            if has_number(self.flows.get(flow), cookie) {
                self.openings.remove(flow);
            } else if !has_number(self.openings.get(flow), cookie) {
                self.openings.insert(*flow, Known::new(cookie));
            }
            self.counts.opened += 1;
            return Some(0);
        }
        if flags.intersects(TcpFlags::SYN) || !flags.intersects(TcpFlags::ACK) {
            return None;
        }
        let proved = self.flows.contains_key(flow);
        if !proved && !self.openings.get(flow).is_some_and(|known| known.begun) {
            if !is_endpoint {
                return None;
            }
            self.counts.resumed += 1;
            self.openings.insert(*flow, Known { begun: true, ..Known::new(cookie) });
        }
        let known = if proved { &mut self.flows } else { &mut self.openings };
        let known = known.get_mut(flow)?;
        let own = known.answered.incoming(echo);
        if known.answered.number() != cookie {
            self.counts.foreign += 1;
            return None;
        }
        if !proved && known.newest.is_some_and(|newest| newest.wrapping_sub(own) < PATIENCE) {
            self.flows.insert(*flow, self.openings.remove(flow)?);
        }
        self.counts.restored += u64::from(own != echo);
        Some(own)
    }

    /// The TSval that a backend's packet gets; the flow is that of the client.
    fn egress(
        &mut self,
        flow: &FlowKey,
        flags: TcpFlags,
        stamps: Option<Timestamps>,
    ) -> Option<u32> {
        let (syn, ack) = (flags.intersects(TcpFlags::SYN), flags.intersects(TcpFlags::ACK));
        if syn && !ack {
            return None;
        }
        if syn && self.openings.contains_key(flow) {
            self.flows.remove(flow);
        }
        let known = self.flows.get_mut(flow).or_else(|| self.openings.get_mut(flow))?;
        if !syn && !known.begun {
            return None;
        }
        let Some(stamps) = stamps else {
            if syn {
                self.openings.remove(flow);
            }
            return None;
        };
        let value = known.outgoing(stamps.value, syn);
        self.counts.written += u64::from(value != stamps.value);
        Some(value)
    }
}

fn reversed(flow: FlowKey) -> FlowKey {
    let FlowKey { src, dst, src_port, dst_port, protocol } = flow;
    FlowKey { src: dst, dst: src, src_port: dst_port, dst_port: src_port, protocol }
}

fn clients(number: u32) -> FlowKey {
    let port = 1_000 + number as u16;
    let service = [SERVICES[0], SERVICES[1], OTHER][number as usize % 3];
    let protocol = Protocol::Tcp;
    if number.is_multiple_of(2) {
        let from = format!("10.8.0.{number}:{port}").parse().unwrap();
        FlowKey::new(from, format!("10.9.0.1:{service}").parse().unwrap(), protocol)
    } else {
        let from = format!("[fd08::{number:x}]:{port}").parse().unwrap();
        FlowKey::new(from, format!("[fd09::1]:{service}").parse().unwrap(), protocol)
    }
}

fn cookie(number: u32) -> u16 {
    (number.wrapping_mul(0x9e37_79b9) >> 16) as u16 & COOKIE
}

#[test]
fn programs_and_twin_agree() {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let services = ["10.9.0.1:80", "10.9.0.1:443", "[fd09::1]:80", "[fd09::1]:443"];
    let options = Options {
        interfaces: Vec::new(),
        services: services.map(|service| service.parse().unwrap()).to_vec(),
        flows: 65_536,
        clock_bits: CLOCK_BITS,
    };
    let programs = Loaded::new(&options).expect("load (needs root)");
    let mut twin = Twin::default();
    let (mut sent, mut ticks) = (HashMap::<u32, u32>::new(), rng.random::<u32>());
    let (mut layouts, mut seen) = ([0u64; 2], [0u64; 2]);
    for packet in 0..PACKETS {
        ticks = ticks.wrapping_add(rng.random_range(0..200));
        let number = rng.random_range(0..48);
        let (flow, out) = (clients(number), rng.random_bool(0.5));
        let clock = ticks.wrapping_add(number.wrapping_mul(0x0123_4567));
        let flags = *[
            TcpFlags::SYN,
            TcpFlags::SYN | TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::FIN | TcpFlags::ACK,
            TcpFlags::RST,
        ]
        .choose(&mut rng)
        .unwrap();
        let echo = match rng.random_range(0..20) {
            0 => rng.random(),
            1 if flags == TcpFlags::SYN => told(rng.random::<u16>() & COOKIE),
            _ if flags == TcpFlags::SYN => told(cookie(number)),
            1..3 => clock,
            _ => sent.get(&number).copied().unwrap_or_else(|| rng.random()),
        };
        let value = clock.wrapping_sub(rng.random_range(0..100));
        let on_wire = if out { reversed(flow) } else { flow };
        let mut frame = Frame::new(on_wire).tcp_flags(flags).payload(rng.random_range(0..40));
        if rng.random_bool(0.1) {
            frame = frame.vlan(7);
        }
        let mut frame = frame.build();
        if rng.random_bool(0.95) {
            let options = options::options(&mut rng, value, echo);
            options::insert(&mut frame, &options);
        }
        let Ok(parsed) = parse(&frame) else { continue };
        let at = usize::from(parsed.l4_offset);
        let end = usize::from(parsed.l3_offset) + parsed.ip_length as usize;
        let stamps = find(&frame[at..end]).ok().flatten();
        let (program, wanted) = if out {
            (programs.egress(), twin.egress(&flow, flags, stamps))
        } else {
            (programs.ingress(), twin.ingress(&flow, flags, stamps))
        };
        let found = run_frame(program, &frame).unwrap().frame;
        let mut expected = frame.clone();
        if let (Some(wanted), Ok(Some(mut stamps))) =
            (wanted, TimestampsMut::find(&mut expected[at..end]))
        {
            if out {
                stamps.set_value(wanted);
                sent.insert(number, wanted);
            } else {
                stamps.set_echo(wanted);
            }
            seen[usize::from(out)] += 1;
        }
        layouts[usize::from(stamps.is_some())] += 1;
        assert_eq!(
            found, expected,
            "WEIR_SEED={seed}, packet {packet}: {flow:?} {flags:?} out {out}"
        );
    }
    assert!(seen.iter().all(|&changed| changed > 5_000), "{seen:?}");
    assert!(layouts.iter().all(|&one| one > 1_000), "{layouts:?}");
    let counts = programs.counts().unwrap();
    assert_eq!(counts, twin.counts);
    assert!(counts.resumed > 0 && counts.foreign > 100, "{counts:?}");
    let proved = twin.flows.len();
    assert!(proved > 10, "{proved} connections have proved to be there");
}

/// Neither a SYN in the name of an open connection, whoever sent it, nor one to what is no service, makes
/// the programs write another cookie, or one where there was none.
#[test]
fn a_forged_syn_changes_no_open_connection() {
    let options = Options {
        interfaces: Vec::new(),
        services: vec!["10.9.0.1:80".parse().unwrap()],
        flows: 1_024,
        clock_bits: CLOCK_BITS,
    };
    let programs = Loaded::new(&options).expect("load (needs root)");
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut sent = |flow: FlowKey, out: bool, flags: TcpFlags, value: u32, echo: u32| {
        let on_wire = if out { reversed(flow) } else { flow };
        // Some of the layouts that are drawn have no timestamps.
        let stamps_of = |frame: &[u8]| {
            let at = usize::from(parse(frame).ok()?.l4_offset);
            find(&frame[at..]).ok().flatten()
        };
        let frame = loop {
            let mut frame = Frame::new(on_wire).tcp_flags(flags).build();
            options::insert(&mut frame, &options::options(&mut rng, value, echo));
            if stamps_of(&frame).is_some_and(|found| (found.value, found.echo) == (value, echo)) {
                break frame;
            }
        };
        let program = if out { programs.egress() } else { programs.ingress() };
        stamps_of(&run_frame(program, &frame).unwrap().frame).expect("timestamps")
    };
    let cookie_of = |stamps: Timestamps| (stamps.value >> CLOCK_BITS) as u16 & COOKIE;
    let (ack, clock) = (TcpFlags::ACK, 0x1234_5678);
    let open = FlowKey::new(
        "10.8.0.1:1000".parse().unwrap(),
        "10.9.0.1:80".parse().unwrap(),
        Protocol::Tcp,
    );
    assert_eq!(sent(open, false, TcpFlags::SYN, 5, told(7)).echo, 0);
    let answer = sent(open, true, TcpFlags::SYN | ack, clock, 5);
    assert_eq!(cookie_of(answer), 7);
    assert_eq!(sent(open, false, ack, 6, answer.value).echo, clock);
    sent(open, false, TcpFlags::SYN, 99, told(9));
    assert_eq!(cookie_of(sent(open, true, ack, clock + 10, 6)), 7);
    assert_eq!(sent(open, false, ack, 7, answer.value).echo, clock);

    let other = FlowKey { dst_port: 22, ..open };
    assert_eq!(sent(other, false, TcpFlags::SYN, 5, told(9)).echo, told(9));
    assert_eq!(sent(other, true, ack, clock, 6).value, clock);
    assert_eq!(sent(other, false, ack, 7, clock).echo, clock);
}
