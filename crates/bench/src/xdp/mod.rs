//! `weir bench xdp`: what the XDP program costs above a reflector.

mod decapsulation;
mod product;

use crate::error::{demand, ensure};
use crate::neighbour::Neighbour;
use crate::{Company, Spread};
use crate::{Error, Result};
pub use decapsulation::DecapsulationRow;
use product::Product;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::thread;
use weir_dataplane::Interface;
use weir_dataplane::bench::{Memory, Method, Sample, Storage, Subject, XdpBench};
pub use weir_plane::forward::Encapsulation;
pub use weir_plane::forward::tunnel::{FOU_PORT, GUE_PORT};
use weir_testbed::link;

/// The processor that packets are made and handled on.
const CPU: usize = 0;
/// Clients whose ways are all remembered.
const FEW_CLIENTS: u32 = 1024;
/// Packets that go through one program before it is another one's turn.
const SLICE: u32 = 1_000_000;

/// Whether services observe their flows by activity marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Marks {
    /// Those that do by default.
    #[default]
    On,
    /// None: their states are listed by somebody else.
    Off,
    /// Both, in rows of their own.
    Both,
}

impl Marks {
    /// With and without, for a method.
    fn ways(self, method: Method) -> &'static [bool] {
        match self {
            _ if !method.has_marks() => &[false],
            Self::On => &[true],
            Self::Off => &[false],
            Self::Both => &[true, false],
        }
    }
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// Numbers of flows to draw from.
    pub flows: Vec<u32>,
    /// Packets in each measurement.
    pub packets: u32,
    /// Rounds; each measures everything once, in turn.
    pub rounds: u32,
    /// What else the machine does.
    pub company: Company,
    /// Whether flows are marked as active.
    pub marks: Marks,
    /// Tunnels to measure beside frames that go as they are, with concury.
    pub tunnels: Vec<Encapsulation>,
    /// Tunnels that a backend takes packets out of.
    pub decapsulated: Vec<Encapsulation>,
    /// Whether NAT is measured beside them, in both directions.
    pub nat: bool,
    /// Whether full NAT is, on the way to the backend.
    pub full_nat: bool,
    /// Whether a service that does not take all sources is, with clients of any network.
    pub lists: bool,
    /// The program, if `weir run` is to be measured besides, with tables that it made itself.
    pub product: Option<PathBuf>,
}

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Nanoseconds per packet of the reflector, generator and veth included.
    pub floor_ns: f64,
    /// Packets in each measurement.
    pub packets: u32,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Bytes that the neighbour walks through, if there was one.
    pub neighbour_bytes: Option<usize>,
    /// One row for each method and number of flows, and for each way to measure it.
    pub rows: Vec<Row>,
    /// One for each number of flows, quiet or beside a neighbour: services that are led by QUIC ids.
    pub quic: Vec<QuicRow>,
    /// One for each tunnel that a backend takes packets out of, as above.
    pub decapsulation: Vec<DecapsulationRow>,
}

/// What QUIC ids cost, at one number of flows. Every packet is led by its id.
#[derive(Clone, Debug, Serialize)]
pub struct QuicRow {
    /// Flows that packets are drawn from.
    pub flows: u32,
    /// Different ids among them; how many a processor remembers is in docs/quic.md.
    pub ids: u32,
    /// Whether a thread on another core walked through a buffer larger than the last-level cache.
    pub neighbour: bool,
    /// The reflector's time, with the same frames.
    pub floor_ns: f64,
    /// Median of the differences to the reflector in the same round: ids that are not encrypted.
    pub plain_ns: f64,
    /// Ids that are encrypted.
    pub encrypted: Vec<EncryptedIds>,
    /// Least share of the packets that came back; under 1, something was dropped.
    pub returned: f64,
}

/// One way to encrypt them.
#[derive(Clone, Debug, Serialize)]
pub struct EncryptedIds {
    /// Passes of AES: 3 for lengths that the configuration has if nothing is said, 1 for 16 bytes.
    pub passes: u32,
    /// Median of the differences to the reflector in the same round.
    pub above_floor_ns: f64,
    /// Median of the differences to plain ids in the same round.
    pub added_ns: f64,
    /// Median of the rounds' ratios of that to the reflector's own time.
    pub share_of_floor: f64,
    /// Quartiles of that ratio over the rounds.
    pub share_spread: Spread,
}

impl fmt::Display for QuicRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>8} flows{}  quic, {} ids: plain {:.1} ns above the reflector",
            self.flows,
            if self.neighbour { " beside a neighbour" } else { "" },
            self.ids,
            self.plain_ns,
        )?;
        for one in &self.encrypted {
            write!(
                f,
                "; {} {} {:.1}, encryption adds {:.1}, {:.2} of the reflector's own {:.0} \
                 ({:.2}..{:.2})",
                one.passes,
                if one.passes == 1 { "pass" } else { "passes" },
                one.above_floor_ns,
                one.added_ns,
                one.share_of_floor,
                self.floor_ns,
                one.share_spread.low,
                one.share_spread.high,
            )?;
        }
        Ok(())
    }
}

/// One method at one number of flows.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Steering method that the frames went through.
    pub method: &'static str,
    /// How they were forwarded: "l2", or through a tunnel over IPv4.
    pub forward: &'static str,
    /// Of a tunnel: median of the differences to "l2" in the same round, as a share of the reflector's time
    /// in it.
    pub above_l2_share: Option<f64>,
    /// Quartiles of that share over the rounds.
    pub above_l2_spread: Option<Spread>,
    /// Flows that packets are drawn from.
    pub flows: u32,
    /// Whether the balancer observes which flows are active.
    pub marks: bool,
    /// Whether a thread on another core walked through a buffer larger than the last-level cache.
    pub neighbour: bool,
    /// Whether the balancer was a running one, which made its tables of first packets and of a change
    /// of the pool.
    pub product: bool,
    /// Median of the differences to the reflector in the same round.
    pub above_floor_ns: f64,
    /// Quartiles of those differences over the rounds, in nanoseconds.
    pub above_floor_spread: Spread,
    /// The same of a program that does what no program of this method could do without.
    pub bound_ns: f64,
    /// Median of the rounds' ratios to that program, of the whole time of a packet: above the reflector
    /// a bound may cost nothing.
    pub ratio_to_bound: f64,
    /// The reflector's time at this number of flows, with the same frames.
    pub floor_ns: f64,
    /// Of the whole path: generator, veth and balancer, on one core.
    pub mpps: f64,
    /// Median of the rounds' ratios; of a running balancer, to that one's `tracked`.
    pub ratio_to_tracked: f64,
    /// Quartiles of that ratio over the rounds.
    pub ratio_spread: Spread,
    /// Of a running balancer: median of the rounds' ratios to the row whose tables the bench made.
    pub ratio_to_bench: Option<f64>,
    /// Share of the packets that came back; under 1, something was dropped.
    pub returned: f64,
    /// Bits per connection of the table's cells; `None` where there are none.
    pub bits_per_connection: Option<f64>,
    /// Bytes of the table that do not depend on the number of connections (DIP array, header).
    pub fixed_bytes: Option<usize>,
}

/// Measures. `progress` gets the rows of each number of flows when they are ready.
///
/// # Errors
///
/// The kernel refuses a program or a veth pair.
pub fn run(request: &Request, mut progress: impl FnMut(&[Row])) -> Result<Report> {
    let (packets, rounds) = (request.packets, request.rounds);
    let (mut rows, mut quic, mut decapsulation) = (Vec::new(), Vec::new(), Vec::new());
    for &count in &request.flows {
        // Each number of flows gets a thread, because a bench keeps its thread's namespace.
        let part = Request { flows: vec![count], ..request.clone() };
        let measured = thread::spawn(move || measure(count, &part));
        let (found, led, taken) =
            measured.join().map_err(|_| Error::Fault("the bench panicked".into()))??;
        progress(&found);
        rows.extend(found);
        quic.extend(led);
        decapsulation.extend(taken);
    }
    let floor_ns = Spread::of(rows.iter().map(|row| row.floor_ns)).median;
    let neighbour_bytes = request.company.bytes();
    Ok(Report { floor_ns, packets, rounds, neighbour_bytes, rows, quic, decapsulation })
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = self.above_floor_spread;
        write!(
            f,
            "{:>8} flows{}  {:<20}{:>6.1} ns above the reflector ({:.1}..{:.1}; floor {:.0}; \
             bound {:.1}; whole packets {:.2} of the bound's), {:.2} Mpps, {:.2} of tracked ({:.2}..{:.2})",
            self.flows,
            if self.neighbour { " beside a neighbour" } else { "" },
            match (self.product, self.marks) {
                _ if self.forward != "l2" => format!("{}, {}", self.method, self.forward),
                (true, _) => format!("{}, running", self.method),
                (false, true) => format!("{}, with marks", self.method),
                (false, false) => self.method.to_owned(),
            },
            self.above_floor_ns,
            spread.low,
            spread.high,
            self.floor_ns,
            self.bound_ns,
            self.ratio_to_bound,
            self.mpps,
            self.ratio_to_tracked,
            self.ratio_spread.low,
            self.ratio_spread.high,
        )?;
        if let (Some(share), Some(spread)) = (self.above_l2_share, self.above_l2_spread) {
            write!(
                f,
                ", {share:.3} of the reflector's time above l2 ({:.3}..{:.3})",
                spread.low, spread.high
            )?;
        }
        if let Some(ratio) = self.ratio_to_bench {
            write!(f, ", {ratio:.2} of the bench's own")?;
        }
        match self.bits_per_connection {
            Some(bits) => write!(f, ", {bits:.2} bits/connection"),
            None => Ok(()),
        }
    }
}

fn name_of(tunnel: Encapsulation) -> &'static str {
    match tunnel {
        Encapsulation::Ipip => "ipip",
        Encapsulation::Gre => "gre",
        Encapsulation::Fou(_) => "fou",
        Encapsulation::Gue(_) => "gue",
    }
}

/// What frames go through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// A program of the bench's, or the balancer's over tables that the bench made.
    Bench(Subject),
    /// A service of a running balancer.
    Running(Method),
}

/// The reflectors of the frames that take different time to make: plain ones, those for which the
/// generator looks a cookie up, and those with QUIC ids.
const REFLECTORS: [Subject; 3] = [
    Subject::Reflector(Method::Concury),
    Subject::Reflector(Method::CheetahStateful),
    Subject::Reflector(Method::QuicPlain),
];

/// All that a request wants measured; the reflectors come first.
fn ways(request: &Request) -> Vec<Way> {
    let mut ways = REFLECTORS.map(Way::Bench).to_vec();
    for method in Method::ALL {
        let marks = request.marks.ways(method).iter();
        ways.extend(marks.map(|&marks| Way::Bench(Subject::Balancer { method, marks })));
        ways.push(Way::Bench(Subject::Bound(method)));
    }
    let tunnels = request.tunnels.iter();
    ways.extend(tunnels.map(|&tunnel| Way::Bench(Subject::Tunnel(tunnel))));
    if request.nat {
        let nat = [Subject::Nat, Subject::NatBack(FEW_CLIENTS), Subject::NatBack(u32::MAX)];
        ways.extend(nat.map(Way::Bench));
    }
    ways.extend(request.full_nat.then_some(Way::Bench(Subject::FullNat)));
    for &tunnel in &request.decapsulated {
        ways.extend([Subject::InTunnel(tunnel), Subject::Decapsulated(tunnel)].map(Way::Bench));
    }
    if request.lists {
        ways.extend([Subject::Scattered, Subject::Listed].map(Way::Bench));
    }
    let led = Method::QUIC.map(|method| Subject::Balancer { method, marks: false });
    ways.extend(led.map(Way::Bench));
    // The last ones are compared with tracked whatever the request is.
    let running = product::METHODS.into_iter().map(Way::Running);
    ways.extend(request.product.is_some().then_some(running).into_iter().flatten());
    ways
}

type Measured = (Vec<Row>, Vec<QuicRow>, Vec<DecapsulationRow>);

/// All methods at one number of flows, quiet, beside a neighbour, or in turn; in a network
/// namespace of the thread's own, on one processor.
fn measure(flows: u32, request: &Request) -> Result<Measured> {
    let company = request.company.ways();
    let neighbour = match company {
        [false] => None,
        _ => Some(Neighbour::new(1)?),
    };
    if let Some(neighbour) = &neighbour {
        demand!(!neighbour.shares(CPU), "no core beside that of processor {CPU} is free");
    }
    weir_testbed::enter_own_namespace()?;
    let product = match &request.product {
        // Its threads may use the cores that this one may use now.
        Some(weir) => Some(Product::start(weir, flows, CPU)?),
        None => None,
    };
    weir_testbed::process::stay_on_cpu(CPU)?;
    let ends = ["gen0", "lb0"];
    link::ip(&link::veth(&ends.map(link::End::new)))?;
    link::ip(&ends.map(link::up).concat())?;
    let [generator, balancer] = ends.map(Interface::find);
    let (generator, balancer) = (generator?, balancer?);
    if request.nat {
        // To the generator leads a router that every client of the bench is behind.
        let mac = generator.mac.map(|byte| format!("{byte:02x}")).join(":");
        weir_testbed::sysctl("ipv4/conf/all/forwarding", "1")?;
        link::ip(&format!(
            "addr add 192.0.2.2/24 dev lb0\n\
             neigh add 192.0.2.254 lladdr {mac} nud permanent dev lb0\n\
             route add 10.0.0.0/8 via 192.0.2.254\n"
        ))?;
    }
    let mut storage = Storage::uninit();
    let mut bench = XdpBench::new(&mut storage, flows, [generator, balancer])?;
    if !request.decapsulated.is_empty() {
        bench.set_decapsulation(decapsulation::program()?);
    }
    let mut bench = Bench { bench, product, flows, ways: ways(request) };
    bench.make_ready(request.packets)?;
    let mut samples: Vec<Vec<Round>> = company.iter().map(|_| Vec::new()).collect();
    for turn in 0..request.rounds.max(1) {
        for (&awake, samples) in company.iter().zip(&mut samples) {
            let mut measured = || bench.round(request.packets, turn);
            samples.push(match &neighbour {
                Some(neighbour) => neighbour.beside(awake, measured)?,
                None => measured()?,
            });
        }
    }
    let found = || company.iter().zip(&samples);
    let rows = found().flat_map(|(&awake, samples)| bench.rows(awake, samples)).collect();
    let quic = found().map(|(&awake, samples)| bench.quic_row(awake, samples)).collect();
    let taken = found().flat_map(|(&awake, samples)| bench.decapsulation_rows(awake, samples));
    Ok((rows, quic, taken.collect()))
}

/// A sample of each way.
type Round = Vec<Sample>;

struct Bench<'a> {
    bench: XdpBench<'a>,
    product: Option<Product>,
    flows: u32,
    ways: Vec<Way>,
}

impl Bench<'_> {
    /// Lets a running balancer learn of its flows, and warms caches and the LRU map.
    fn make_ready(&mut self, packets: u32) -> Result<()> {
        if let Some(product) = &self.product {
            product.make_ready(&mut self.bench)?;
        }
        let packets = packets.min(500_000);
        (0..self.ways.len()).try_for_each(|which| self.sample(which, packets, 0).map(drop))
    }

    fn sample(&mut self, which: usize, packets: u32, seed: u64) -> Result<Sample> {
        let flows = self.flows;
        match (self.ways[which], &self.product) {
            (Way::Bench(subject), _) => Ok(self.bench.run(subject, flows, packets, seed)?),
            (Way::Running(method), Some(product)) => {
                product.send(&mut self.bench, method, packets, seed)
            }
            (Way::Running(_), None) => unreachable!("it is asked for only if it runs"),
        }
    }

    /// So many packets through everything, in slices that take turns, so that whatever else the machine
    /// does meets all alike. The order turns, so that nothing always follows the same other.
    fn round(&mut self, packets: u32, turn: u32) -> Result<Round> {
        let count = self.ways.len();
        let slices = (packets / SLICE).max(1);
        let mut round = vec![Sample { nanoseconds: 0.0, returned: 0.0 }; count];
        for slice in 0..slices {
            for offset in 0..count {
                let which = (offset + (turn + slice) as usize) % count;
                let seed = u64::from(turn) << 32 | u64::from(slice + 1);
                let sample = self.sample(which, packets / slices, seed)?;
                ensure!(
                    sample.returned > 0.99
                        || !matches!(self.ways[which], Way::Bench(Subject::Bound(_))),
                    "a bound loses packets: {:?}",
                    self.ways[which]
                );
                round[which].nanoseconds += sample.nanoseconds / f64::from(slices);
                round[which].returned += sample.returned / f64::from(slices);
            }
        }
        Ok(round)
    }

    fn at(&self, way: Way) -> Option<usize> {
        self.ways.iter().position(|other| *other == way)
    }

    fn rows(&self, neighbour: bool, samples: &[Round]) -> Vec<Row> {
        let rows = self.ways.iter().enumerate().filter_map(|(which, way)| match *way {
            Way::Bench(Subject::Balancer { method, .. }) if Method::QUIC.contains(&method) => None,
            Way::Bench(Subject::Balancer { method, marks }) => {
                Some(self.row(which, method, marks, false, neighbour, samples))
            }
            Way::Running(method) => {
                Some(self.row(which, method, method.has_marks(), true, neighbour, samples))
            }
            Way::Bench(
                Subject::Tunnel(_)
                | Subject::Nat
                | Subject::FullNat
                | Subject::NatBack(_)
                | Subject::Scattered
                | Subject::Listed,
            ) => Some(self.row(which, Method::Concury, true, false, neighbour, samples)),
            Way::Bench(_) => None,
        });
        rows.collect()
    }

    fn quic_row(&self, neighbour: bool, samples: &[Round]) -> QuicRow {
        let at = |subject| self.at(Way::Bench(subject)).unwrap_or(0);
        let floor = at(Subject::Reflector(Method::QuicPlain));
        let [plain, three, one] =
            Method::QUIC.map(|method| at(Subject::Balancer { method, marks: false }));
        let each = |of: &dyn Fn(&Round) -> f64| Spread::of(samples.iter().map(of));
        let above =
            |which: usize| each(&|row| row[which].nanoseconds - row[floor].nanoseconds).median;
        let encrypted = [(3, three), (1, one)].map(|(passes, which)| {
            let added = |row: &Round| row[which].nanoseconds - row[plain].nanoseconds;
            let share_spread = each(&|row| added(row) / row[floor].nanoseconds);
            EncryptedIds {
                passes,
                above_floor_ns: above(which),
                added_ns: each(&added).median,
                share_of_floor: share_spread.median,
                share_spread,
            }
        });
        let returned = [plain, three, one].map(|which| each(&|row| row[which].returned).median);
        QuicRow {
            flows: self.flows,
            ids: self.bench.ids,
            neighbour,
            floor_ns: each(&|row| row[floor].nanoseconds).median,
            plain_ns: above(plain),
            encrypted: encrypted.into(),
            returned: returned.into_iter().fold(1.0, f64::min),
        }
    }

    fn row(
        &self,
        which: usize,
        method: Method,
        marks: bool,
        product: bool,
        neighbour: bool,
        samples: &[Round],
    ) -> Row {
        let floor_of = |way: Way| {
            let frames_of = match way {
                Way::Bench(subject) => subject.method(),
                // The generator looks up what each flow was told.
                Way::Running(method) if method.has_cookies() => Method::CheetahStateful,
                Way::Running(method) => method,
            };
            self.at(Way::Bench(Subject::Reflector(frames_of))).unwrap_or(0)
        };
        let above = |which: usize| -> Vec<f64> {
            let floor = floor_of(self.ways[which]);
            samples.iter().map(|row| row[which].nanoseconds - row[floor].nanoseconds).collect()
        };
        let floor = floor_of(self.ways[which]);
        let mine = above(which);
        let ratio = |to: usize| Spread::of(mine.iter().zip(above(to)).map(|(a, b)| a / b));
        let whole = |to: usize| {
            Spread::of(samples.iter().map(|row| row[which].nanoseconds / row[to].nanoseconds))
        };
        let own = |method, marks| self.at(Way::Bench(Subject::Balancer { method, marks }));
        let tracked = match product {
            true => self.at(Way::Running(Method::Tracked)),
            false => own(Method::Tracked, false),
        };
        let (tracked, bound) = (tracked, self.at(Way::Bench(Subject::Bound(method))));
        let (tracked, bound) = (tracked.unwrap_or(which), bound.unwrap_or(which));
        let above_floor_spread = Spread::of(mine.iter().copied());
        let ratio_spread = ratio(tracked);
        let median = |of: &dyn Fn(&Round) -> f64| Spread::of(samples.iter().map(of)).median;
        let Memory { concury_bytes, concury_fixed_bytes, .. } = self.bench.memory;
        let plain = own(method, marks).or_else(|| own(method, !marks)).unwrap_or(which);
        let forward = match self.ways[which] {
            Way::Bench(Subject::Tunnel(tunnel)) => name_of(tunnel),
            Way::Bench(Subject::Nat) => "nat",
            Way::Bench(Subject::FullNat) => "fullnat",
            Way::Bench(Subject::NatBack(FEW_CLIENTS)) => "nat, answers to 1024 clients",
            Way::Bench(Subject::NatBack(_)) => "nat, answers",
            Way::Bench(Subject::Scattered) => "any sources",
            Way::Bench(Subject::Listed) => "any sources, 100000 prefixes",
            _ => "l2",
        };
        // A list is compared with the same clients without it.
        let plain = match self.ways[which] {
            Way::Bench(Subject::Listed) => self.at(Way::Bench(Subject::Scattered)).unwrap_or(plain),
            _ => plain,
        };
        let above_l2 = (forward != "l2").then(|| {
            Spread::of(samples.iter().map(|row| {
                (row[which].nanoseconds - row[plain].nanoseconds) / row[floor].nanoseconds
            }))
        });
        let cells = method == Method::Concury && !product;
        let bits = (concury_bytes - concury_fixed_bytes) as f64 * 8.0 / f64::from(self.flows);
        Row {
            method: method.name(),
            forward,
            above_l2_share: above_l2.map(|spread| spread.median),
            above_l2_spread: above_l2,
            flows: self.flows,
            marks,
            neighbour,
            product,
            above_floor_ns: above_floor_spread.median,
            above_floor_spread,
            bound_ns: Spread::of(above(bound)).median,
            ratio_to_bound: whole(bound).median,
            floor_ns: median(&|row| row[floor].nanoseconds),
            mpps: 1e3 / median(&|row| row[which].nanoseconds),
            ratio_to_tracked: ratio_spread.median,
            ratio_spread,
            ratio_to_bench: own(method, marks).filter(|_| product).map(|own| ratio(own).median),
            returned: median(&|row| row[which].returned),
            bits_per_connection: cells.then_some(bits),
            fixed_bytes: cells.then_some(concury_fixed_bytes),
        }
    }
}
