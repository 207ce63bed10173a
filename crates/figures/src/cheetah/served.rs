//! Figures 6 to 9 by real packets: nginx in namespaces, clients, and weir's program between them.

use crate::Result;
use crate::error::ensure;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Quote, Says, Scale, Series, Setup};
use crate::number::{ratio, short};
use crate::simulated::quotient;
use rand::Rng;
use std::time::{Duration, Instant};
use weir_lab::requests::{Ask, Planned, Request, poisson};
use weir_lab::{PoolControl, Trial, TrialSpec, sleep};
use weir_sim::StepCdf;

const HASH: &str = "hash";
const ROBIN: &str = "Cheetah, round robin";
const TWO: &str = "Cheetah, power of two (reported)";
const LEAST: &str = "Cheetah, least loaded (reported)";
const AUTOMATIC: &str = "Cheetah, AWRR (reported)";

/// A method, as a service has it.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    method: &'static str,
    lines: &'static str,
    /// Whether it goes by what backends report.
    told: bool,
}

const fn way(name: &'static str, method: &'static str, lines: &'static str) -> Way {
    Way { name, method, lines, told: false }
}

const fn reported(name: &'static str, lines: &'static str) -> Way {
    Way { name, method: "cheetah", lines, told: true }
}

const UNIFORM: Way = way(HASH, "concury", "");
const TURNS: Way = way(ROBIN, "cheetah", "scheduler = \"rr\"");
const BY_LOAD: [Way; 3] = [
    reported(AUTOMATIC, "scheduler = \"awrr\"\nload = \"told\""),
    reported(TWO, "scheduler = \"p2c\"\nload = \"told\""),
    reported(LEAST, "scheduler = \"least\"\nload = \"told\""),
];

/// Time from one report of the servers' loads to the next. The paper has 10 ms, and says that 100 ms
/// come to the same (section 5.2).
const REPORTS: Duration = Duration::from_millis(100);
/// Part of a run's time of which nothing is counted: queues have to fill.
const BEFORE: f64 = 0.2;
const PATIENCE: Duration = Duration::from_secs(60);

const WHY: &str = "Real packets, real nginx, real TCP, on one machine of a few processors: so a server \
    does not burn CPU for a request but waits for the time that it takes, one request after the \
    other, in an application behind its nginx. Their demands are longer than the paper’s by as \
    much as its machines have more processors. Times do not compare; factors between schedulers do, on a \
    machine that does nothing else: if it does, its pauses are in the 99th percentile of either. The \
    hash is that of weir’s concury; the paper’s are those of Click, DPDK and a NIC.";

const LOAD: Axis = Axis { label: "average load of the servers, percent", scale: Scale::Near };
const SERVERS: Axis = Axis { label: "servers", scale: Scale::Log };
const FACTOR: Axis = Axis { label: "times", scale: Scale::Linear };

/// What a run is of.
struct Run {
    servers: usize,
    /// Average share of the time that a server is busy.
    load: f64,
    seconds: u64,
    /// Demands, in seconds, with their shares.
    demands: &'static [(f64, f64)],
}

impl Run {
    fn plan(&self, seed: u64) -> Vec<Planned> {
        let mean: f64 = self.demands.iter().map(|(share, seconds)| share * seconds).sum();
        let rate = self.load * self.servers as f64 / mean;
        poisson(
            seed,
            Duration::from_secs(self.seconds),
            rate,
            |_| rate,
            |random| {
                let mut left: f64 = random.random();
                let drawn = self.demands.iter().find(|(share, _)| {
                    left -= share;
                    left < 0.0
                });
                let (_, seconds) = drawn.or(self.demands.last()).copied().unwrap_or_default();
                Ask::Work(Duration::from_secs_f64(seconds))
            },
        )
    }

    /// Runs it once with a method. Runs of one seed have the same requests at the same times.
    fn play(&self, setup: &Setup<'_>, way: Way, seed: u64) -> Result<Trial> {
        let percent = 100.0 * self.load;
        (setup.progress)(&format!("{}: {} servers, {percent:.0} %", way.name, self.servers));
        let spec = TrialSpec {
            weir: setup.program.to_owned(),
            backends: self.servers,
            pool: self.servers,
            method: way.method.into(),
            service_lines: way.lines.into(),
            balancer_lines: String::new(),
            told: way.told.then_some(REPORTS),
            big_rate: 1 << 20,
            planned: self.plan(seed),
            patience: PATIENCE,
        };
        let trial = Trial::run(&spec, |_, _| Ok(()))?;
        let failed = trial.requests.iter().filter_map(|request| request.failure.as_ref());
        let failed: Vec<String> = failed.map(ToString::to_string).collect();
        ensure!(failed.is_empty(), "{}: {} requests failed: {}", way.name, failed.len(), failed[0]);
        let (made, planned) = (trial.requests.len(), spec.planned.len());
        ensure!(made == planned, "{}: {made} of {planned} requests were answered", way.name);
        Ok(trial)
    }

    fn begins(&self) -> Duration {
        Duration::from_secs_f64(self.seconds as f64 * BEFORE)
    }

    /// The 99th percentile of completion times, in milliseconds.
    fn p99(&self, trial: &Trial) -> f64 {
        let counted = trial.requests.iter().filter(|request| request.at >= self.begins());
        let mut times: Vec<Duration> = counted.map(|request| request.took).collect();
        times.sort_unstable();
        let at = (times.len() * 99 / 100).min(times.len().saturating_sub(1));
        times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }

    /// The variance among the servers of the share of a second that they were busy; mean of the seconds.
    fn variance(&self, trial: &Trial) -> f64 {
        let first = trial.busy.len().min(self.begins().as_secs() as usize);
        let seconds = &trial.busy[first..];
        let one = |loads: &Vec<f64>| {
            let mean = loads.iter().sum::<f64>() / loads.len() as f64;
            loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / loads.len() as f64
        };
        seconds.iter().map(one).sum::<f64>() / seconds.len().max(1) as f64
    }
}

/// What several runs had: the mean, and the range.
fn mean(x: f64, values: &[f64]) -> Point {
    let y = values.iter().sum::<f64>() / values.len() as f64;
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(low, f64::max);
    Point { x, y, spread: (values.len() > 1).then_some((low, high)) }
}

/// Every run with every method, and the factor of the hash over the others.
fn compare(
    setup: &Setup<'_>,
    runs: &[Run],
    ways: &[Way],
    x: fn(&Run) -> f64,
    y: fn(&Run, &Trial) -> f64,
    of: &str,
) -> Result<Measured> {
    let times: u64 = setup.size.pick(1, 1, 3);
    let mut series: Vec<Series> = ways.iter().map(|way| Series::new(0, way.name)).collect();
    for run in runs {
        let mut values = vec![Vec::new(); ways.len()];
        for time in 0..times {
            for (way, values) in ways.iter().zip(&mut values) {
                values.push(y(run, &run.play(setup, *way, setup.seed.wrapping_add(time))?));
            }
        }
        for (line, values) in series.iter_mut().zip(&values) {
            line.points.push(mean(x(run), values));
        }
    }
    let hash = series.iter().find(|line| line.name == HASH).cloned();
    let others = series.iter().filter(|line| line.name != HASH);
    let factors: Vec<Series> = hash
        .iter()
        .flat_map(|hash| others.clone().map(|o| quotient(1, &o.name, hash, o)))
        .collect();
    let facts = factors.iter().filter_map(|line| {
        let (low, high) = line.range()?;
        let (low, high) = (ratio(low), ratio(high));
        Some(format!("{of} of the hash is {low} to {high} times that of {}.", line.name))
    });
    let facts = facts.collect();
    Ok(Measured { series: series.into_iter().chain(factors).collect(), facts })
}

const MILLISECONDS: Axis = Axis { label: "ms", scale: Scale::Log };

pub static FIG_6: Figure = Figure {
    id: "cheetah-fig6-packets",
    title: "99th percentile of completion times by load, by real packets",
    paper: "Cheetah, Fig. 6, in small",
    measures: "By real packets: requests of equal work (20 ms; 50 ms in full size), each a connection of \
        its own, at times of a Poisson process, through weir to nginx in namespaces: 6, 16 or 64 of \
        them by size. From the client’s SYN to the end of the answer of 8 KB.",
    charts: &[
        Chart { title: "99th percentile", x: LOAD, y: MILLISECONDS },
        Chart { title: "Hash over Cheetah", x: LOAD, y: FACTOR },
    ],
    quotes: &[Quote {
        chart: 1,
        name: "2 to 3 times: lower end",
        like: ROBIN,
        says: Says::AtLeast,
        points: &[(50.0, 2.0), (90.0, 2.0)],
        source: "Cheetah, section 5.2 and Fig. 6: a factor of 2-3 over Hash RSS",
    }],
    note: "the figure’s values are not in the text, only the factor of 2 to 3 between RSS hashing \
        and Cheetah with round robin.",
    why: WHY,
    times: ["20 s", "2 min", "15 min"],
    run: |setup| {
        const SHORT: &[(f64, f64)] = &[(1.0, 0.02)];
        const LONG: &[(f64, f64)] = &[(1.0, 0.05)];
        let loads: &[f64] = setup.size.pick(&[0.7], &[0.5, 0.7, 0.9], &[0.5, 0.6, 0.7, 0.8, 0.9]);
        let run = |load: &f64| Run {
            servers: setup.size.pick(6, 16, 64),
            load: *load,
            seconds: setup.size.pick(5, 12, 15),
            demands: setup.size.pick(SHORT, SHORT, LONG),
        };
        let runs: Vec<Run> = loads.iter().map(run).collect();
        let load = |run: &Run| (100.0 * run.load).round();
        compare(setup, &runs, &[UNIFORM, TURNS], load, Run::p99, "The 99th percentile")
    },
};

pub static FIG_7: Figure = Figure {
    id: "cheetah-fig7-packets",
    title: "Variance of load among servers, by real packets",
    paper: "Cheetah, Fig. 7, in small",
    measures: "The same at a load of 60 %, by the number of servers: variance among them of the share of \
        each second that they were busy.",
    charts: &[
        Chart { title: "Variance", x: SERVERS, y: Axis { label: "variance", scale: Scale::Log } },
        Chart { title: "Hash over Cheetah", x: SERVERS, y: FACTOR },
    ],
    quotes: &[Quote {
        chart: 1,
        name: "considerably smaller with round robin",
        like: ROBIN,
        says: Says::AtLeast,
        points: &[(16.0, 1.0), (64.0, 1.0)],
        source: "Cheetah, section 5.2 and Fig. 7",
    }],
    note: "the figure’s values are not in the text; it says that round robin’s variance is \
        considerably smaller than that of every hash (drawn as a factor of more than 1).",
    why: WHY,
    times: ["20 s", "2 min", "10 min"],
    run: |setup| {
        const SHORT: &[(f64, f64)] = &[(1.0, 0.02)];
        const LONG: &[(f64, f64)] = &[(1.0, 0.05)];
        let servers: &[usize] = setup.size.pick(&[6], &[8, 16, 32], &[16, 32, 64]);
        let run = |servers: &usize| Run {
            servers: *servers,
            load: 0.6,
            seconds: setup.size.pick(5, 12, 15),
            demands: setup.size.pick(SHORT, SHORT, LONG),
        };
        let runs: Vec<Run> = servers.iter().map(run).collect();
        let servers = |run: &Run| run.servers as f64;
        compare(setup, &runs, &[UNIFORM, TURNS], servers, Run::variance, "The variance")
    },
};

pub static FIG_8: Figure = Figure {
    id: "cheetah-fig8-packets",
    title: "Completion times of a bimodal workload, by real packets",
    paper: "Cheetah, Fig. 8, in small",
    measures: "The same at a load of 60 %; one request in ten takes 500 ms of work, the others 0.3 ms. The \
        balancer is told ten times a second how busy each server has been, by its API.",
    charts: &[
        Chart { title: "99th percentile", x: SERVERS, y: MILLISECONDS },
        Chart { title: "Hash over Cheetah", x: SERVERS, y: FACTOR },
    ],
    quotes: &[
        Quote {
            chart: 1,
            name: "AWRR",
            like: AUTOMATIC,
            says: Says::Value,
            points: &[(64.0, 2.2)],
            source: "Cheetah, Fig. 8: 2.2 times with 64 servers",
        },
        Quote {
            chart: 1,
            name: "Pow2",
            like: TWO,
            says: Says::Value,
            points: &[(64.0, 1.9)],
            source: "Cheetah, Fig. 8: 1.9 times with 64 servers",
        },
    ],
    note: "of the figure’s values the caption gives two factors with 64 servers. The text adds \
        that round robin is bad with 64 servers and that the least loaded server, by reports that \
        are 10 ms old, is worse still.",
    why: "As for the other figures by real packets, times do not compare. A request waits for all that \
        came before it at its server, so one of 0.3 ms may wait for seconds; the paper does not say \
        whether its servers share their time among requests. Reports tell the share of the last \
        moments that a server was busy, and not how long its queue is: of servers that are all busy \
        they make equals.",
    times: ["1 min", "5 min", "50 min"],
    run: |setup| {
        const DEMANDS: &[(f64, f64)] = &[(0.9, 0.0003), (0.1, 0.5)];
        let servers: &[usize] = setup.size.pick(&[6], &[8, 16], &[16, 32, 64]);
        let run = |servers: &usize| Run {
            servers: *servers,
            load: 0.6,
            seconds: setup.size.pick(6, 25, 60),
            demands: DEMANDS,
        };
        let runs: Vec<Run> = servers.iter().map(run).collect();
        let ways: Vec<Way> = [UNIFORM, TURNS].into_iter().chain(BY_LOAD).collect();
        let servers = |run: &Run| run.servers as f64;
        compare(setup, &runs, &ways, servers, Run::p99, "The 99th percentile")
    },
};

const MAGLEV: &str = "consistent hash (Maglev)";
const RING: &str = "consistent hash (ring)";
const CHEETAH: &str = "Cheetah";
const NAMES: &[&str] = &["worst second"];

/// Without room to remember connections, so that a hash is all that leads them; and Cheetah the same,
/// which needs none.
const SCALED: [Way; 3] = [
    way(MAGLEV, "tracked", ""),
    way(RING, "jet", "placement = \"ring\"\nwarm_up = 0"),
    way(CHEETAH, "cheetah", "scheduler = \"rr\""),
];
const FORGETFUL: &str = "[limits]\ntracked_flows = 16";

/// A scaling of the pool, and the requests under it.
struct Scaling {
    /// Servers at first, more of them later, and how many of all are drained.
    servers: usize,
    more: usize,
    drained: usize,
    /// Requests a second, at the ends and in the middle.
    rates: (f64, f64),
    /// Seconds before the first counted one, and of the figure.
    before: f64,
    length: f64,
    /// Bytes a second of each answer.
    big_rate: u64,
}

impl Scaling {
    fn of(setup: &Setup<'_>) -> Self {
        let (servers, more, drained) = setup.size.pick((6, 2, 3), (24, 7, 8), (24, 7, 8));
        let rates = setup.size.pick((40.0, 70.0), (75.0, 125.0), (150.0, 250.0));
        let (before, length) = setup.size.pick((1.0, 6.0), (10.0, 40.0), (60.0, 40.0));
        Self { servers, more, drained, rates, before, length, big_rate: 4096 }
    }

    /// Durations as published, of answers at a rate: nginx sends the first second's worth at once.
    fn plan(&self, seed: u64) -> Vec<Planned> {
        let durations = StepCdf::hadoop_durations();
        let (low, high) = self.rates;
        let rate = |now: f64| {
            let phase = ((now - self.before).max(0.0) / self.length).min(1.0);
            low + (high - low) * (std::f64::consts::PI * phase).sin()
        };
        let length = Duration::from_secs_f64(self.before + self.length);
        poisson(seed, length, high, rate, |random| {
            let seconds = durations.sample(random);
            let bytes = (seconds + if seconds > 1.0 { 1.0 } else { 0.0 }) * self.big_rate as f64;
            Ask::Bytes(bytes.max(1.0) as u64)
        })
    }

    /// The changes of the pool, in order: when, and whom to add (true) or drain.
    fn changes(&self) -> Vec<(f64, bool, usize)> {
        let at = |share: f64| self.before + self.length * share;
        let span = |n: usize, all: usize| n as f64 / all as f64;
        let adds =
            (0..self.more).map(|n| (at(0.075 + 0.35 * span(n, self.more)), true, self.servers + n));
        let all = self.servers + self.more;
        let drains = (0..self.drained)
            .map(|n| (at(0.575 + 0.4 * span(n, self.drained)), false, n * all / self.drained));
        adds.chain(drains).collect()
    }

    fn play(&self, setup: &Setup<'_>, way: Way) -> Result<Vec<Request>> {
        (setup.progress)(way.name);
        let spec = TrialSpec {
            weir: setup.program.to_owned(),
            backends: self.servers + self.more,
            pool: self.servers,
            method: way.method.into(),
            service_lines: way.lines.into(),
            balancer_lines: FORGETFUL.into(),
            told: None,
            big_rate: self.big_rate,
            planned: self.plan(setup.seed),
            patience: Duration::from_secs(3),
        };
        let trial = Trial::run(&spec, |balancer, started| {
            for (at, adds, server) in self.changes() {
                sleep(
                    (started + Duration::from_secs_f64(at))
                        .saturating_duration_since(Instant::now()),
                );
                if adds { balancer.add(server, 1)? } else { balancer.drain(server)? }
            }
            Ok(())
        })?;
        Ok(trial.requests)
    }

    /// Of the requests that ended in each second of the figure, how many, and how many of them broken.
    fn seconds(&self, requests: &[Request]) -> Vec<(u32, u32)> {
        let mut all = vec![(0, 0); self.length.ceil() as usize];
        for request in requests {
            let end = (request.at + request.took).as_secs_f64() - self.before;
            if let Some((ended, broken)) = (end >= 0.0).then(|| all.get_mut(end as usize)).flatten()
            {
                *ended += 1;
                *broken += u32::from(request.failure.is_some());
            }
        }
        all
    }
}

const fn peak(like: &'static str, percent: &'static [(f64, f64)]) -> Quote {
    const SOURCE: &str = "Cheetah, Fig. 9, caption: “up to”";
    Quote { chart: 1, name: like, like, says: Says::Value, points: percent, source: SOURCE }
}

pub static FIG_9: Figure = Figure {
    id: "cheetah-fig9-packets",
    title: "Broken requests while servers are added and drained, by real packets",
    paper: "Cheetah, Fig. 9, in small",
    measures: "By real packets: downloads of the published durations from nginx in namespaces, through weir; \
        24 servers, 7 are added while the rate rises, 8 drained while it falls back, within 40 s (6, 2 \
        and 3 within 6 s in the smallest size). 75 requests a second, rising to 125; 150 and 250 in full \
        size. Nothing has room to remember a connection (tracked_flows = 16): so weir’s tracked is a \
        Maglev table by itself, and its JET a ring. Broken among the requests that ended in each second.",
    charts: &[
        Chart {
            title: "Over time",
            x: Axis { label: "seconds", scale: Scale::Linear },
            y: Axis { label: "broken, percent", scale: Scale::Linear },
        },
        Chart {
            title: "Worst second",
            x: Axis { label: "", scale: Scale::Names(NAMES) },
            y: Axis { label: "broken, percent", scale: Scale::Linear },
        },
    ],
    quotes: &[peak(MAGLEV, &[(0.0, 3.0)]), peak(RING, &[(0.0, 3.0)]), peak(CHEETAH, &[(0.0, 0.0)])],
    note: "the caption gives the highest values of its curves: 11 % for a hash, 3 % for a consistent hash, \
        0.5 % for Beamer, none for Cheetah.",
    why: "A tenth of the paper’s requests or fewer, from clients, servers and a balancer that share a \
        machine. Connections have the published durations, a few of which last for minutes; those break at \
        the changes, and in the smallest size each change concerns a sixth of the pool. Draining is what hurts a hash: the connections of a drained server live on, but their \
        packets go elsewhere. The paper’s hash is not here, as weir’s program has no method that moves most \
        connections; nor is Beamer, whose servers hand packets on to each other: both are in the simulated \
        figure.",
    times: ["40 s", "3 min", "6 min"],
    run: |setup| {
        let scaling = Scaling::of(setup);
        let (mut series, mut facts) = (Vec::new(), Vec::new());
        for way in SCALED {
            let requests = scaling.play(setup, way)?;
            let seconds = scaling.seconds(&requests);
            let percent = |(ended, broken): &(u32, u32)| {
                100.0 * f64::from(*broken) / f64::from((*ended).max(1))
            };
            let line =
                Series::of(0, way.name, (0..).map(f64::from).zip(seconds.iter().map(percent)));
            let worst = line.range().map_or(0.0, |(_, high)| high);
            let (ended, broken) =
                seconds.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let why = requests.iter().find_map(|request| request.failure.as_ref());
            let first = why.map_or(String::new(), |why| format!(" (the first: {why})"));
            facts.push(format!(
                "{}: {broken} of {ended} requests broke{first}, {} % in the worst second.",
                way.name,
                short(worst)
            ));
            ensure!(ended > 0, "{}: no request ended", way.name);
            ensure!(way.name != CHEETAH || broken == 0, "{}", facts.concat());
            series.push(line);
            series.push(Series::of(1, way.name, [(0.0, worst)]));
        }
        Ok(Measured { series, facts })
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;

    fn setup(progress: &dyn Fn(&str)) -> Setup<'_> {
        let program = std::path::Path::new("weir");
        Setup { size: Size::Normal, seed: 3, program, progress }
    }

    #[test]
    fn demands_come_to_the_load_that_is_asked_for() {
        const DEMANDS: &[(f64, f64)] = &[(0.9, 0.0003), (0.1, 0.5)];
        let run = Run { servers: 16, load: 0.6, seconds: 2000, demands: DEMANDS };
        let worked: f64 = (run.plan(5).iter())
            .map(|one| match one.ask {
                Ask::Work(time) => time.as_secs_f64(),
                Ask::Bytes(_) => 0.0,
            })
            .sum();
        let load = worked / 2000.0 / 16.0;
        // 38,000 long requests: a standard deviation of half a percent.
        assert!((load - 0.6).abs() < 0.02, "{load}");
    }

    #[test]
    fn a_variance_is_of_the_servers_of_a_second() {
        let run = Run { servers: 2, load: 0.5, seconds: 5, demands: &[(1.0, 0.1)] };
        // Of five seconds the first does not count.
        let busy =
            vec![vec![0.0, 9.0], vec![0.5, 0.5], vec![0.2, 0.4], vec![0.3, 0.3], vec![0.1, 0.1]];
        let trial = Trial { requests: Vec::new(), busy };
        assert!((run.variance(&trial) - 0.01 / 4.0).abs() < 1e-12);
    }

    #[test]
    fn the_pool_grows_while_the_rate_does_and_shrinks_with_it() {
        let scaling = Scaling::of(&setup(&|_| {}));
        let changes = scaling.changes();
        assert!(changes.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(changes.iter().filter(|(_, adds, _)| *adds).count(), 7);
        assert!(changes.iter().all(|(at, adds, _)| (*at < 30.0) == *adds && *at < 50.0));
        let planned = scaling.plan(1);
        let of = |from: u64| {
            let seconds = Duration::from_secs(from)..Duration::from_secs(from + 10);
            planned.iter().filter(|one| seconds.contains(&one.at)).count()
        };
        assert!(of(25) > of(0) * 5 / 4 && of(25) > of(40), "{} {} {}", of(0), of(25), of(40));
    }
}
