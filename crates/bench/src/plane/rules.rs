//! HNLB's gain in software: what a packet costs that a rule has led to its backend's queue, beside one that is
//! steered. The card is *emulated*, and its own work is left out: frames stand in the queues beforehand.

use super::beside::cycles;
use super::used;
use super::world::{FRAME_BYTES, Forward, METHODS, Tables, flow, stock_of};
use crate::error::{demand, ensure};
use crate::{Result, Spread};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, Instant};
use weir_offload::emulated::{CARD_RULES, Nic, Profile};
use weir_offload::{Choice, Queue, Setup};
use weir_plane_burst::ports::{Memory, Stock};
use weir_plane_burst::{BURST, Burst, Frame, Hybrid, Ports, Utilisation, macswap};
use weir_steering::MethodId;

/// Backends that connections are at; [`Tables`] has so many.
const BACKENDS: u16 = 64;
const BUFFERS: usize = 1024;
/// The least frames of a stock.
const STOCK: usize = 1 << 14;
/// Frames that a receive queue holds.
const RING: u64 = 512;
/// A pause in a polling loop that is longer was somebody else's: it counts neither as time nor for arrivals.
const PAUSE: Duration = Duration::from_micros(200);

/// Connections of a method of which some have rules, and the planes that take their packets.
pub struct Bed {
    hybrid: Hybrid<Nic<Frame>>,
    software: Burst,
    /// Frames of any of the connections.
    mixed: Stock,
    /// Frames of which each burst is of one queue, and these queues.
    sorted: Stock,
    bursts: Vec<Queue>,
    /// Frames of each queue.
    by_queue: Vec<(Queue, Stock)>,
}

/// What is made ready.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The steering method.
    pub method: MethodId,
    /// Connections that the software knows, and whose packets it gets.
    pub flows: u32,
    /// Those of them that have a rule, and whose packets come by the queues.
    pub ruled: u32,
    /// Backends that serve, each of which has a queue.
    pub queues: u16,
    /// Bytes of a frame.
    pub bytes: usize,
    /// Of all that is drawn.
    pub seed: u64,
}

/// Who takes the packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// MAC addresses are swapped, nothing else.
    Macswap,
    /// The pipeline, without rules.
    Software,
    /// The pipeline, which gives connections rules besides: what a packet costs that has none. The policy is
    /// `all`; with as many rules as the card holds it is told nothing more.
    Steered,
    /// By the queues that rules lead to.
    Led,
}

impl Bed {
    /// Connections at their backends, the plane that knows them, and rules for some.
    ///
    /// # Errors
    /// More rules than a card has, fewer connections than rules, or a rule that is not there in the end.
    pub fn new(plan: &Plan) -> Result<Self> {
        let most = *CARD_RULES.end();
        let ruled = plan.ruled as usize;
        demand!((1..=most).contains(&ruled), "{ruled} rules: a card has 1 to {most}");
        demand!(plan.bytes >= FRAME_BYTES, "{} bytes: a frame has {FRAME_BYTES}", plan.bytes);
        demand!(plan.ruled <= plan.flows, "{ruled} rules for {} connections", plan.flows);
        let tables = Tables::of_pool(plan.method, plan.flows, plan.queues)?;
        let soft = || tables.plane(plan.flows, Forward::L2);
        let numbers: Vec<u32> = (0..plan.ruled).collect();
        let setup = Setup { choice: Choice::All, ..Setup::default() };
        let card = Nic::new(Profile::sound(most, BACKENDS + 1), plan.seed);
        let mut hybrid = Hybrid::new(soft(), card, setup, plan.seed);
        give_rules(&mut hybrid, &numbers)?;
        let mut of_queue: Vec<(Queue, Vec<u32>)> = Vec::new();
        for &number in &numbers {
            let queue = hybrid.offload().card().lead(&flow(number));
            ensure!(hybrid.offload().trusted(queue).is_some(), "connection {number} has no rule");
            match of_queue.iter_mut().find(|(known, _)| *known == queue) {
                Some((_, numbers)) => numbers.push(number),
                None => of_queue.push((queue, vec![number])),
            }
        }
        let frames = (plan.flows as usize).max(STOCK);
        let rng = &mut ChaCha8Rng::seed_from_u64(plan.seed);
        let (mut sorted, mut bursts) = (Vec::with_capacity(frames), Vec::new());
        for (queue, numbers) in of_queue.iter().cycle().take(frames.div_ceil(BURST)) {
            bursts.push(*queue);
            sorted.extend((0..BURST).map(|_| numbers.choose(rng).copied().unwrap_or(0)));
        }
        let mixed: Vec<u32> = (0..frames).map(|_| rng.random_range(0..plan.flows)).collect();
        let by_queue = of_queue.iter().map(|(queue, numbers)| {
            let each = (STOCK / of_queue.len()).max(BURST);
            let order: Vec<u32> =
                (0..each).map(|_| numbers.choose(rng).copied().unwrap_or(0)).collect();
            (*queue, stock_of(&order, plan.bytes))
        });
        Ok(Self {
            by_queue: by_queue.collect(),
            hybrid,
            software: Burst::new(soft()),
            mixed: stock_of(&mixed, plan.bytes),
            sorted: stock_of(&sorted, plan.bytes),
            bursts,
        })
    }

    /// Processor time for a packet of a subject, in nanoseconds, over so many packets.
    ///
    /// # Errors
    /// If packets of trusted queues were not led, or others were.
    pub fn cost(&mut self, subject: Subject, packets: u64) -> Result<f64> {
        let stock = if subject == Subject::Led { &self.sorted } else { &self.mixed };
        let mut ports = Memory::new(stock, 0, BUFFERS);
        let (hybrid, software) = (&mut self.hybrid, &mut self.software);
        let before = hybrid.shares();
        let mut bursts = self.bursts.iter().cycle();
        let begin = used();
        let mut sent = 0u64;
        while sent < packets {
            let Ok(count) = match subject {
                Subject::Macswap => macswap(&mut ports),
                Subject::Software => software.turn(&mut ports),
                Subject::Steered => by_queue(hybrid, &mut ports, Queue::SOFTWARE),
                Subject::Led => {
                    by_queue(hybrid, &mut ports, bursts.next().copied().unwrap_or_default())
                }
            };
            sent += count as u64;
        }
        let spent = used().saturating_sub(begin);
        ensure!(ports.sent.frames == sent, "{} of {sent} frames were sent", ports.sent.frames);
        let led = hybrid.shares().led - before.led;
        let wanted = if subject == Subject::Led { sent } else { 0 };
        ensure!(led == wanted, "rules have led {led} of {sent} packets, not {wanted}");
        Ok(spent.as_secs_f64() * 1e9 / sent as f64)
    }

    /// A polling loop to which so many packets come in a second, for so long; with rules, each queue gets its
    /// share.
    ///
    /// # Errors
    /// None of these planes has any.
    pub fn offer(&mut self, subject: Subject, rate: f64, long: Duration) -> Result<Offered> {
        let mixed = [(Queue::SOFTWARE, self.mixed.clone())];
        let stocks = if subject == Subject::Led { &self.by_queue[..] } else { &mixed[..] };
        let buffers = (BUFFERS / stocks.len()).next_power_of_two().max(2 * BURST);
        let mut queues: Vec<(Queue, Memory<'_>, u64)> = stocks
            .iter()
            .map(|(queue, stock)| (*queue, Memory::new(stock, 0, buffers), 0))
            .collect();
        let each = rate / queues.len() as f64;
        let mut util = Utilisation::default();
        let (mut lost, mut stolen) = (0u64, Duration::ZERO);
        let begin = Instant::now();
        let mut last = Duration::ZERO;
        let time = |last: &mut Duration, stolen: &mut Duration| {
            let now = begin.elapsed() - *stolen;
            if now - *last > PAUSE {
                *stolen += now - *last;
                return *last;
            }
            *last = now;
            now
        };
        let cpu = used();
        while last < long {
            for (queue, ports, taken) in &mut queues {
                let now = time(&mut last, &mut stolen);
                util.begin(now);
                let came = (now.as_secs_f64() * each) as u64;
                if came - *taken > RING {
                    lost += came - *taken - RING;
                    *taken = came - RING;
                }
                ports.offered = ((came - *taken) as usize).min(BURST);
                let count = match subject {
                    Subject::Led | Subject::Steered => by_queue(&mut self.hybrid, ports, *queue),
                    Subject::Macswap => macswap(ports),
                    Subject::Software => self.software.turn(ports),
                };
                let Ok(count) = count;
                *taken += count as u64;
                util.end(time(&mut last, &mut stolen), count as u64);
            }
        }
        let cpu = used().saturating_sub(cpu).as_secs_f64();
        // Of one queue, and of several: the paper's two equations.
        let several = queues.len() > 1;
        let most = BURST as u64;
        let plus = if several { util.util_plus_of_queues(most / 2) } else { util.util_plus(most) };
        Ok(Offered {
            rate,
            util: util.util(),
            util_plus: plus,
            lost: lost as f64 / (rate * long.as_secs_f64()).max(1.0),
            processor: (cpu / long.as_secs_f64()).min(1.0),
        })
    }
}

/// What a polling loop said of its load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Offered {
    /// Packets offered in a second.
    pub rate: f64,
    /// Share of the time that it spent on bursts.
    pub util: f64,
    /// The same weighted by how full they were.
    pub util_plus: f64,
    /// Share of the packets that were lost as a queue was full.
    pub lost: f64,
    /// What the kernel says (`getrusage`): processor time over time.
    pub processor: f64,
}

/// A burst of one queue.
#[inline]
fn by_queue(
    hybrid: &mut Hybrid<Nic<Frame>>,
    ports: &mut Memory<'_>,
    queue: Queue,
) -> std::result::Result<usize, Infallible> {
    let mut frames = [Frame::default(); BURST];
    let count = ports.receive(&mut frames)?;
    hybrid.process(queue, ports.memory(), &mut frames[..count], false, SETTLED);
    ports.finish(&frames[..count])?;
    Ok(count)
}

/// Milliseconds at which all rules are in force.
const SETTLED: u64 = 1_000;

/// Sends a packet of each connection, so that it gets a rule.
fn give_rules(hybrid: &mut Hybrid<Nic<Frame>>, numbers: &[u32]) -> Result<()> {
    let stock = stock_of(numbers, FRAME_BYTES);
    let mut ports = Memory::new(&stock, 0, BUFFERS);
    for _ in 0..stock.frames().div_ceil(BURST) {
        let Ok(_) = by_queue(hybrid, &mut ports, Queue::SOFTWARE);
    }
    hybrid.offload().card().advance(Duration::from_millis(SETTLED));
    hybrid.tick(SETTLED);
    let (rules, wanted) = (hybrid.offload().card().in_force(), numbers.len());
    ensure!(rules == wanted, "{rules} of {wanted} rules are in force");
    Ok(())
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// The steering methods.
    pub methods: Vec<MethodId>,
    /// Numbers of connections that the software knows.
    pub flows: Vec<u32>,
    /// Connections that have a rule, at most.
    pub rules: u32,
    /// Packets of each subject in a round.
    pub packets: u64,
    /// Rounds; each measures everything once, in turn.
    pub rounds: u32,
    /// Of all that is drawn.
    pub seed: u64,
}

/// A packet that a rule leads beside one that is steered. The card is emulated, and costs nothing here.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `emulated`: what the card is.
    pub card: &'static str,
    /// Which ports the planes have.
    pub plane: &'static str,
    /// The steering method.
    pub method: &'static str,
    /// How frames get to backends.
    pub forward: &'static str,
    /// Number of cores.
    pub cores: usize,
    /// Connections that the software knows, each of which a steered packet may be of.
    pub flows: u32,
    /// Connections that have a rule.
    pub ruled: u32,
    /// Nanoseconds of the processor for a packet that a rule has led.
    pub led_ns: f64,
    /// As `led_ns`, of a packet that the pipeline steers, without a card.
    pub software_ns: f64,
    /// As `led_ns`, of a packet that the pipeline steers beside a card with a full table.
    pub steered_ns: f64,
    /// As `led_ns`, of the macswap: what of these is the ports'.
    pub macswap_ns: f64,
    /// `led_ns` in cycles, by the rate of the time stamp counter; none where there is no such counter.
    pub led_cycles: Option<f64>,
    /// `software_ns` in such cycles.
    pub software_cycles: Option<f64>,
    /// Millions of packets that rules have led for each second of the processor.
    pub mpps: f64,
    /// The same of the macswap.
    pub macswap_mpps: f64,
    /// Median of the rounds' ratios of the two rates.
    pub ratio_to_macswap: f64,
    /// Median of the rounds' ratios of `led_ns` to `software_ns`.
    pub ratio: f64,
    /// Quartiles of that ratio over the rounds.
    pub ratio_spread: Spread,
    /// The same without what the macswap takes.
    pub ratio_above_macswap: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>9} flows, {} with rules ({})  {:<8} led {:>5.1} ns/packet, steered {:>6.1} ns ({:.1} beside \
             the card): {:.2} ({:.2}..{:.2}); without the ports ({:.1} ns) {:.2}",
            self.flows,
            self.ruled,
            self.card,
            self.method,
            self.led_ns,
            self.software_ns,
            self.steered_ns,
            self.ratio,
            self.ratio_spread.low,
            self.ratio_spread.high,
            self.macswap_ns,
            self.ratio_above_macswap,
        )?;
        match (self.led_cycles, self.software_cycles) {
            (Some(led), Some(software)) => write!(f, "; {led:.0} and {software:.0} cycles"),
            _ => Ok(()),
        }
    }
}

/// Measures. `progress` gets each row when it is ready.
///
/// # Errors
/// A method that is not measured, or a packet that went another way than it should.
pub fn run(request: &Request, mut progress: impl FnMut(&Row)) -> Result<Vec<Row>> {
    for method in &request.methods {
        let known = METHODS.map(MethodId::name).join(", ");
        demand!(METHODS.contains(method), "{method} is not measured: give some of {known}");
    }
    let mut rows = Vec::new();
    for &flows in &request.flows {
        for &method in &request.methods {
            let ruled = request.rules.min(flows);
            let plan = Plan {
                method,
                flows,
                ruled,
                queues: BACKENDS,
                bytes: FRAME_BYTES,
                seed: request.seed,
            };
            let mut bed = Bed::new(&plan)?;
            let mut rounds: Vec<[f64; 4]> = Vec::new();
            const ALL: [Subject; 4] =
                [Subject::Macswap, Subject::Software, Subject::Steered, Subject::Led];
            for round in 0..request.rounds as usize {
                let mut costs = [0.0; 4];
                for turn in 0..ALL.len() {
                    let at = (round + turn) % ALL.len();
                    costs[at] = bed.cost(ALL[at], request.packets)?;
                }
                rounds.push(costs);
            }
            let of = |at: usize| Spread::of(rounds.iter().map(|costs| costs[at])).median;
            let ratio = Spread::of(rounds.iter().map(|costs| costs[3] / costs[1]));
            let above = rounds.iter().map(|costs| (costs[3] - costs[0]) / (costs[1] - costs[0]));
            let to_macswap = rounds.iter().map(|costs| costs[0] / costs[3]);
            let row = Row {
                card: weir_offload::emulated::LABEL,
                plane: "memory",
                method: method.name(),
                forward: Forward::L2.name(),
                cores: 1,
                flows,
                ruled,
                led_ns: of(3),
                software_ns: of(1),
                steered_ns: of(2),
                macswap_ns: of(0),
                led_cycles: cycles(of(3)),
                software_cycles: cycles(of(1)),
                mpps: 1e3 / of(3),
                macswap_mpps: 1e3 / of(0),
                ratio_to_macswap: Spread::of(to_macswap).median,
                ratio: ratio.median,
                ratio_spread: ratio,
                ratio_above_macswap: Spread::of(above).median,
            };
            progress(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(method: MethodId, flows: u32, ruled: u32, queues: u16) -> Plan {
        Plan { method, flows, ruled, queues, bytes: FRAME_BYTES, seed: 3 }
    }

    /// Every packet goes the way that is measured, with every method and few or many queues; how long it takes
    /// is not asked here.
    #[test]
    fn packets_go_the_way_that_is_measured() {
        for method in METHODS {
            let mut bed = Bed::new(&plan(method, 2_000, 200, 10)).expect("rules are given");
            for subject in [Subject::Macswap, Subject::Software, Subject::Steered, Subject::Led] {
                let ns = bed.cost(subject, 50_000).expect("all go that way");
                println!("{method}, {subject:?}: {ns:.1} ns");
                assert!(ns > 0.0);
            }
            assert_eq!(bed.by_queue.len(), 10);
        }
        let mut one = Bed::new(&plan(MethodId::Tracked, 64, 1, 1)).expect("a rule is given");
        assert!(one.cost(Subject::Led, 1_000).expect("it is led") > 0.0);
        let many = Bed::new(&plan(MethodId::Concury, 10_000, 9_000, 64));
        assert!(many.err().is_some_and(|error| error.to_string().contains("8192")));
    }

    /// util+ of a loop grows with what is offered, and is near nothing without packets.
    #[test]
    fn load_is_told_by_polling_loops() {
        let mut bed = Bed::new(&plan(MethodId::Concury, 2_000, 300, 10)).expect("rules are given");
        for subject in [Subject::Software, Subject::Led] {
            let most = 1e9 / bed.cost(subject, 200_000).expect("it goes that way");
            let long = Duration::from_millis(40);
            let shares = [0.0, 0.2, 0.6, 3.0].map(|share| {
                let offered = bed.offer(subject, share * most, long).expect("it runs");
                println!("{subject:?} {share}: {offered:?}");
                offered.util_plus
            });
            assert!(shares[0] < 0.01 && shares.is_sorted(), "{subject:?}: {shares:?}");
            assert!(shares[3] > 0.6, "{subject:?}: {shares:?}");
        }
    }
}
