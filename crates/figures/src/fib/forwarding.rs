//! Forwarders by name over ports of memory (Figs 3.30 to 3.41 and 4.22 to 4.29): software alone, without the
//! dissertation's cards and wires.

use super::world::{Draw, Keys, Table, Widths, World, isp, overlay};
use super::{BFW, CFW, GATEWAY, LUDO, OFW, add, add_ratio, quote};
use crate::Result;
use crate::burst::cores;
use crate::error::ensure;
use crate::figure::{Axis, Chart, Figure, Measured, Says, Scale, Setup};
use crate::measure::median;
use crate::number::short;
use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::Arc;
use weir_bench::plane::forwarders::{Forwarder, decided, rates};
use weir_fib::{ContentName, FibKey, Mac, Network};
use weir_hash::Octets;
use weir_plane_burst::ports::Stock;
use weir_plane_burst::{BURST, Fate, Frame};

const CAPACITY: &str = "no look-up";
const OFW_BFW: &str = "OFW over BFW";
const CFW_BFW: &str = "CFW over BFW";
const LUDO_BFW: &str = "Ludo over BFW";
const LUDO_OFW: &str = "Ludo over OFW";

const KEYS: Axis = Axis { label: "keys of the FIB", scale: Scale::Log };

const fn rate(title: &'static str) -> Chart {
    Chart { title, x: KEYS, y: Axis { label: "million packets per second", scale: Scale::Linear } }
}

const fn over(title: &'static str) -> Chart {
    Chart { title, x: KEYS, y: Axis { label: "ratio of rates", scale: Scale::Log } }
}

/// Of valid keys, drawn uniformly: the rates of one core, and of two against as many that look nothing up.
const RATIOS: Chart = over("Ratios, valid keys, uniform, one core");
const SHARE: Chart = Chart {
    title: "Share of the capacity of two cores, valid keys, uniform",
    x: KEYS,
    y: Axis { label: "share", scale: Scale::Linear },
};

/// The line rate of the dissertation's servers, in million packets per second.
const WIRE: f64 = 28.40;

const MEASURES: &str = "Frames stand in a stock in the order in which their keys were drawn, are copied into the \
    buffers of a port of memory as a card does it, up to 64 at a time, and sent ones give their buffers back. The \
    forwarder reads each frame’s key, looks all of them up in a burst, and says by which port each is sent. Each core \
    has a port of its own and shares the table. The capacity is the dissertation’s empty forwarder: it reads the keys \
    and looks nothing up. Before the clock runs, ports are compared with those of a table of whole keys; BFW alone \
    may err. Forwarders take turns; rates are for each second of the processors, medians and quartiles of the rounds.";

const WHY: &str = "No card, no driver and no wire take their share: the dissertation’s capacity of 28.40 Mpps is that \
    of two ports of 10 Gbit/s, ours what a core does that copies frames from memory to memory and reads their keys. So \
    a share of it is a much harder measure here, and its full line rate says that a FIB is fast enough for a wire, \
    which nothing here can say. What compares is who is faster, and by how much. Our forwarders look keys up in \
    bursts, whose reads of memory do not wait for each other; the dissertation’s one at a time.";

pub static FIG_3_30: Figure = Figure {
    id: "fib-fig3.30",
    title: "Forwarding in an L2 network, over ports of memory, frames of 64 bytes",
    paper: "dissertation, Figs 3.30 to 3.33, 3.38, 3.39, over ports of memory",
    measures: MEASURES,
    charts: &[
        rate("Valid keys, Zipf 1, one core (Fig 3.30)"),
        rate("Valid keys, Zipf 1, two cores (Fig 3.31)"),
        rate("Valid keys, uniform, one core (Fig 3.32)"),
        rate("Valid keys, uniform, two cores (Fig 3.33)"),
        rate("Alien keys, one core (Fig 3.38)"),
        rate("Alien keys, two cores (Fig 3.39)"),
        RATIOS,
        SHARE,
    ],
    quotes: &[
        quote(
            2,
            "empty forwarder, two ports of 10 Gbit/s",
            CAPACITY,
            Says::Value,
            &[(16e3, WIRE), (16e6, WIRE)],
            "dissertation, section 3.7.3: 28.40 Mpps for 64-byte packets",
        ),
        quote(
            6,
            "more than 2 times BFW",
            OFW_BFW,
            Says::AtLeast,
            &[(1e4, 2.0), (16e6, 2.0)],
            "dissertation, section 3.7.3: OFW and CFW > 2x better than BFW in all cases",
        ),
        quote(
            6,
            "more than 2 times BFW",
            CFW_BFW,
            Says::AtLeast,
            &[(1e4, 2.0), (16e6, 2.0)],
            "dissertation, section 3.7.3: OFW and CFW > 2x better than BFW in all cases",
        ),
        quote(
            7,
            "OFW, two threads",
            OFW,
            Says::Value,
            &[(16e6, 1.0)],
            "dissertation, section 3.7.3: two threads of OFW reach the capacity for 16M",
        ),
    ],
    note: "the text gives the capacity and these bounds; it says besides that one thread of OFW almost reaches the \
        capacity. MAC addresses, a network like an ISP’s as in fib-fig3.12, no fingerprint for OFW and digests of \
        13 bits for CFW.",
    why: WHY,
    times: ["5 s", "2 min", "15 min"],
    run: l2,
};

pub static FIG_3_34: Figure = Figure {
    id: "fib-fig3.34",
    title: "Forwarding in an L7 overlay, over ports of memory, a name of 45 bytes in each frame",
    paper: "dissertation, Figs 3.34 to 3.37, 3.40, 3.41, over ports of memory",
    measures: MEASURES,
    charts: &[
        rate("Valid names, Zipf 1, one core (Fig 3.34)"),
        rate("Valid names, Zipf 1, two cores (Fig 3.35)"),
        rate("Valid names, uniform, one core (Fig 3.36)"),
        rate("Valid names, uniform, two cores (Fig 3.37)"),
        rate("Alien names, one core (Fig 3.40)"),
        rate("Alien names, two cores (Fig 3.41)"),
        RATIOS,
        SHARE,
    ],
    quotes: &[quote(
        7,
        "none reaches the capacity",
        OFW,
        Says::AtMost,
        &[(1e4, 1.0), (16e6, 1.0)],
        "dissertation, section 3.7.3: all three failed to reach the forwarding capacity",
    )],
    note: "the text has no other numbers. It says that OFW is the fastest in most experiments, CFW the slowest with \
        alien names, and that a second thread gains nothing. Names of 45 bytes behind the headers of UDP, an overlay \
        as in fib-fig3.16, 8 bits for the fingerprint of OFW and the digest of CFW.",
    why: WHY,
    times: ["9 s", "5 min", "30 min"],
    run: l7,
};

pub static FIG_4_22: Figure = Figure {
    id: "ludo-fig4.22",
    title: "Queries to an index of contents, over ports of memory, a name of 45 bytes in each frame",
    paper: "dissertation, Figs 4.22 to 4.25, over ports of memory",
    measures: "An index node takes queries, each with a name of 45 bytes behind the headers of UDP, looks up which \
        storage node has the content, and sends the query there with that node’s MAC address. Frames stand in a \
        stock in the order in which names were drawn, are copied into the buffers of a port of memory as a card does \
        it, up to 64 at a time, and sent ones give their buffers back. The capacity reads the names and looks nothing \
        up. Before the clock runs, nodes are compared with those of a table of whole names; BFW alone may err. \
        Subjects take turns; rates are for each second of the processors, medians and quartiles of the rounds.",
    charts: &[
        rate("Zipf 1, one core (Fig 4.22)"),
        rate("Zipf 1, two cores (Fig 4.23)"),
        rate("Uniform, one core (Fig 4.24)"),
        rate("Uniform, two cores (Fig 4.25)"),
        RATIOS,
        SHARE,
    ],
    quotes: &[
        quote(
            2,
            "bounded by 7 Mqps",
            LUDO,
            Says::AtMost,
            &[(16e3, 7.0), (16e6, 7.0)],
            "dissertation, section 4.6.4: processing and forwarding bounded by 7 Mqps",
        ),
        quote(
            4,
            "Ludo is the fastest",
            LUDO_OFW,
            Says::AtLeast,
            &[(1e4, 1.0), (16e6, 1.0)],
            "dissertation, section 4.6.4: Ludo has the highest throughput of the four",
        ),
    ],
    note: "which of the four figures is which is taken from the order in the text: one and two threads, Zipf and \
        uniform. OFW without a fingerprint is Othello, CFW (digests of 13 bits, and whole keys for those that collide) \
        stands for partial-key cuckoo, BFW for the Bloom filters. 318 storage nodes (100 in smoke size).",
    why: WHY,
    times: ["5 s", "2 min", "15 min"],
    run: contents,
};

pub static FIG_4_26: Figure = Figure {
    id: "ludo-fig4.26",
    title: "Forwarding with Ludo’s FIB beside others, over ports of memory, frames of 64 bytes",
    paper: "dissertation, Figs 4.26 to 4.29, over ports of memory",
    measures: MEASURES,
    charts: &[
        rate("Zipf 1, one core (Fig 4.26)"),
        rate("Zipf 1, two cores (Fig 4.27)"),
        rate("Uniform, one core (Fig 4.28)"),
        rate("Uniform, two cores (Fig 4.29)"),
        RATIOS,
        SHARE,
    ],
    quotes: &[
        quote(
            2,
            "line rate of two ports of 10 Gbit/s",
            CAPACITY,
            Says::Value,
            &[(16e3, WIRE), (16e6, WIRE)],
            "dissertation, section 4.6.5: 28.40 Mpps",
        ),
        quote(
            4,
            "more than 2 times Bloom filters",
            LUDO_BFW,
            Says::AtLeast,
            &[(1e4, 2.0), (16e6, 2.0)],
            "dissertation, section 4.6.5: > 2x higher throughput than Bloom filters",
        ),
        quote(
            4,
            "more than 2 times Bloom filters",
            OFW_BFW,
            Says::AtLeast,
            &[(1e4, 2.0), (16e6, 2.0)],
            "dissertation, section 4.6.5: > 2x higher throughput than Bloom filters",
        ),
        quote(
            5,
            "two threads of Ludo",
            LUDO,
            Says::Value,
            &[(16e6, 1.0)],
            "dissertation, section 4.6.5: two threads fill the line rate for a 16M FIB",
        ),
        quote(
            5,
            "two threads of Othello",
            OFW,
            Says::Value,
            &[(16e6, 1.0)],
            "dissertation, section 4.6.5: two threads fill the line rate for a 16M FIB",
        ),
        quote(
            5,
            "two threads of partial-key cuckoo",
            CFW,
            Says::Value,
            &[(16e6, 1.0)],
            "dissertation, section 4.6.5: two threads fill the line rate for a 16M FIB",
        ),
    ],
    note: "the text says besides that Othello is the fastest on one thread. MAC addresses, a network like an ISP’s as \
        in fib-fig3.12. OFW without a fingerprint is Othello, CFW (digests of 13 bits, and whole keys for those that \
        collide) stands for partial-key cuckoo, BFW for the Bloom filters.",
    why: WHY,
    times: ["5 s", "2 min", "15 min"],
    run: fibs,
};

/// A key that stands in frames.
trait Framed: FibKey + Copy {
    /// Bytes of a frame.
    const FRAME: usize;
    /// What is looked up for a frame without a key, which is dropped.
    const NONE: Self;

    /// A frame with this key.
    fn write(&self, frame: &mut [u8]);

    /// The key of a frame, if it has one.
    fn read(frame: &[u8]) -> Option<Self>;
}

impl Framed for Mac {
    const FRAME: usize = 64;
    const NONE: Self = Self(0);

    fn write(&self, frame: &mut [u8]) {
        frame[..6].copy_from_slice(&self.octets());
    }

    #[inline]
    fn read(frame: &[u8]) -> Option<Self> {
        frame.first_chunk().map(|octets| Self::from_octets(*octets))
    }
}

/// Bytes of Ethernet's, IPv4's and UDP's headers, and what is written into them.
const HEADERS: usize = 42;
const IPV4: [u8; 2] = [8, 0];
const NO_OPTIONS: u8 = 0x45;
const UDP: u8 = 17;

impl Framed for ContentName {
    const FRAME: usize = HEADERS + Self::BYTES;
    const NONE: Self = Octets([0; Self::BYTES]);

    fn write(&self, frame: &mut [u8]) {
        frame[12..14].copy_from_slice(&IPV4);
        frame[14] = NO_OPTIONS;
        frame[23] = UDP;
        frame[HEADERS..].copy_from_slice(&self.0);
    }

    #[inline]
    fn read(frame: &[u8]) -> Option<Self> {
        let (head, rest) = frame.split_first_chunk::<HEADERS>()?;
        let named = head[12..14] == IPV4 && head[14] == NO_OPTIONS && head[23] == UDP;
        rest.first_chunk().filter(|_| named).map(|name| Octets(*name))
    }
}

/// Reads the keys of a burst, and has `ports` look them up; `None` for a frame without one.
#[inline]
fn look_up<K: Framed>(
    memory: &[u8],
    frames: &[Frame],
    ports: impl FnOnce(&[K], &mut [Option<u16>]),
) -> [Option<u16>; BURST] {
    let (mut keys, mut has, mut found) = ([K::NONE; BURST], [false; BURST], [None; BURST]);
    for ((frame, key), has) in frames.iter().zip(&mut keys).zip(&mut has) {
        let bytes = memory.get(frame.at as usize..);
        let bytes = bytes.and_then(|bytes| bytes.get(..frame.len as usize));
        if let Some(read) = bytes.and_then(K::read) {
            (*key, *has) = (read, true);
        }
    }
    let count = frames.len();
    ports(&keys[..count], &mut found[..count]);
    for (found, has) in found.iter_mut().zip(has) {
        *found = found.filter(|_| has);
    }
    found
}

/// Reads the keys, looks nothing up, and sends.
struct Empty<K>(PhantomData<fn(K)>);

impl<K: Framed> Forwarder for Empty<K> {
    fn decide(&self, memory: &mut [u8], frames: &mut [Frame]) {
        let read = |keys: &[K], found: &mut [Option<u16>]| {
            black_box(keys);
            found.fill(Some(0));
        };
        let found = look_up::<K>(memory, frames, read);
        send(frames, &found);
    }
}

/// Sends each frame by the port that its key leads to.
struct ByKey<'a, K> {
    table: &'a dyn Table<K>,
    /// MAC addresses that frames get by the port: of a storage node, and our own. None: frames stay as they are.
    hops: &'a [[u8; 12]],
}

impl<K: Framed> Forwarder for ByKey<'_, K> {
    fn decide(&self, memory: &mut [u8], frames: &mut [Frame]) {
        let look = |keys: &[K], found: &mut [Option<u16>]| self.table.bursts(keys, found);
        let found = look_up::<K>(memory, frames, look);
        send(frames, &found);
        if self.hops.is_empty() {
            return;
        }
        for (frame, port) in frames.iter().zip(found) {
            let hop = port.and_then(|port| self.hops.get(usize::from(port)));
            let head = memory.get_mut(frame.at as usize..).and_then(<[u8]>::first_chunk_mut::<12>);
            if let (Some(hop), Some(head)) = (hop, head) {
                *head = *hop;
            }
        }
    }
}

/// Frames are sent by the interfaces of ports, which are numbered from 1; an alien key's goes nowhere.
fn send(frames: &mut [Frame], ports: &[Option<u16>; BURST]) {
    for (frame, port) in frames.iter_mut().zip(ports) {
        (frame.fate, frame.device) = match port {
            Some(port) => (Fate::Send, u32::from(*port) + 1),
            None => (Fate::Drop, 0),
        };
    }
}

const VALID: &[Draw] = &[Draw::Zipf, Draw::Uniform];
const WITH_ALIENS: &[Draw] = &[Draw::Zipf, Draw::Uniform, Draw::Alien];

fn l2(setup: &Setup<'_>) -> Result<Measured> {
    let widths = Widths { ofw: 0, cfw: 13, bfw: 16.0 };
    run::<Mac>(setup, &isp(setup), widths, &[OFW, CFW, BFW], WITH_ALIENS, false)
}

fn l7(setup: &Setup<'_>) -> Result<Measured> {
    let widths = Widths { ofw: 8, cfw: 8, bfw: 16.0 };
    run::<ContentName>(setup, &overlay(setup), widths, &[OFW, CFW, BFW], WITH_ALIENS, false)
}

fn contents(setup: &Setup<'_>) -> Result<Measured> {
    let widths = Widths { ofw: 0, cfw: 13, bfw: 16.0 };
    run::<ContentName>(setup, &overlay(setup), widths, &[LUDO, OFW, CFW, BFW], VALID, true)
}

fn fibs(setup: &Setup<'_>) -> Result<Measured> {
    let widths = Widths { ofw: 0, cfw: 13, bfw: 16.0 };
    run::<Mac>(setup, &isp(setup), widths, &[LUDO, OFW, CFW, BFW], VALID, false)
}

/// Two charts of each draw, one for each number of cores; then ratios, and shares of the capacity.
fn run<K: Framed>(
    setup: &Setup<'_>,
    network: &Arc<Network>,
    widths: Widths,
    names: &[&'static str],
    draws: &[Draw],
    rewrite: bool,
) -> Result<Measured> {
    const NORMAL: &[usize] = &[16_000, 256_000, 1_000_000, 4_000_000];
    const FULL: &[usize] = &[16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000];
    let (cores, rounds) = (cores(), setup.size.pick(2, 5, 9));
    let packets = setup.size.pick(20_000, 400_000, 2_000_000);
    let frames = setup.size.pick(1 << 15, 1 << 20, 1 << 22);
    let hop = |port: usize| [2, 0xbe, 0, 0, (port >> 8) as u8, port as u8, 2, 0, 0, 0, 0, 9];
    let hops: Vec<[u8; 12]> = match rewrite {
        true => (0..network.ports(super::world::NODE)).map(hop).collect(),
        false => Vec::new(),
    };
    let mut measured = Measured::default();
    let mut astray = 0.0;
    for &count in setup.size.pick(&[10_000, 40_000][..], NORMAL, FULL) {
        (setup.progress)(&format!("{} keys", short(count as f64)));
        let world = World::<K>::new(network, count, widths, setup.seed)?;
        let table = |name: &str| {
            let found = world.planes.iter().find(|(other, _)| *other == name);
            found.map(|(_, table)| ByKey { table: table.as_ref(), hops: &hops })
        };
        let all: Vec<(&'static str, ByKey<'_, K>)> =
            names.iter().filter_map(|&name| Some((name, table(name)?))).collect();
        for (at, &draw) in draws.iter().enumerate() {
            let mut keys = Vec::new();
            Keys::new(draw, count, setup.seed)?.fill::<K>(&mut keys, frames);
            let stock = Stock::filled(keys.len(), K::FRAME, |at, to| keys[at].write(to));
            if let Some(whole) = table(GATEWAY).filter(|_| draw != Draw::Alien) {
                for (name, forwarder) in &all {
                    let wrong = differ(&stock, forwarder, &whole);
                    ensure!(
                        wrong == 0.0 || *name == BFW,
                        "{name} sends {wrong} of the frames astray"
                    );
                    astray = if *name == BFW { wrong } else { astray };
                }
            }
            let empty = Empty::<K>(PhantomData);
            let mut subjects: Vec<(&dyn Forwarder, u64)> =
                vec![(&empty as &dyn Forwarder, packets)];
            for (name, forwarder) in &all {
                // It asks the filters of one port after the other.
                let slow = if *name == BFW { 10 } else { 1 };
                subjects.push((forwarder, packets / slow));
            }
            let found = rates(&stock, &subjects, &cores, rounds);
            let names = [CAPACITY].into_iter().chain(all.iter().map(|(name, _)| *name));
            for (name, by_cores) in names.zip(found) {
                for (cores, found) in by_cores.into_iter().enumerate() {
                    add(&mut measured.series, 2 * at + cores, name, median(count as f64, found));
                }
            }
        }
    }
    let (ratios, share) = (2 * draws.len(), 2 * draws.len() + 1);
    let uniform = 2 * draws.iter().position(|draw| *draw == Draw::Uniform).unwrap_or(0);
    for (over, under) in [(OFW, BFW), (CFW, BFW), (LUDO, BFW), (LUDO, OFW)] {
        add_ratio(&mut measured, ratios, uniform, over, under);
    }
    for &name in names {
        let (of, capacity) =
            (measured.find(uniform + 1, name), measured.find(uniform + 1, CAPACITY));
        if let (Some(of), Some(capacity)) = (of, capacity) {
            let series = crate::simulated::quotient(share, name, of, capacity);
            measured.series.push(series);
        }
    }
    for (chart, words) in [(uniform, "one core"), (uniform + 1, "two cores")] {
        measured.facts.extend(said(&measured, chart, words));
    }
    measured.facts.push(format!(
        "BFW sends {} % of the frames with valid keys, of the largest FIB, elsewhere than a table of whole keys; the \
         others none.",
        short(100.0 * astray)
    ));
    Ok(measured)
}

/// Frames that are compared before the clock runs.
const CHECKED: usize = 1 << 15;

/// Share of the first frames that one forwarder sends elsewhere than another one.
fn differ(stock: &Stock, one: &dyn Forwarder, other: &dyn Forwarder) -> f64 {
    let mut wanted = Vec::with_capacity(CHECKED + BURST);
    decided(stock, other, CHECKED, |_, frame| wanted.push((frame.fate, frame.device)));
    let (mut at, mut wrong) = (0, 0);
    decided(stock, one, CHECKED, |_, frame| {
        wrong += usize::from(wanted[at] != (frame.fate, frame.device));
        at += 1;
    });
    wrong as f64 / at as f64
}

/// Rates at the largest FIB.
fn said(measured: &Measured, chart: usize, cores: &str) -> Option<String> {
    let last = |name: &str| {
        let point = measured.find(chart, name)?.points.last()?;
        Some(format!("{name} {}", short(point.y)))
    };
    let keys = short(measured.find(chart, CAPACITY)?.points.last()?.x);
    let all: Vec<String> = [CAPACITY, LUDO, OFW, CFW, BFW].into_iter().filter_map(last).collect();
    Some(format!("Valid keys, uniform, {keys} of them, {cores}, Mpps: {}.", all.join(", ")))
}
