//! What a value may be.

use super::{Scenario, ScenarioError};
use crate::requests::QueueSpec;
use crate::world::{Action, LoadKind};
use std::borrow::Cow;
use std::collections::HashSet;

fn positive(value: f64) -> bool {
    value > 0.0 && value.is_finite()
}

fn not_negative(value: f64) -> bool {
    value >= 0.0 && value.is_finite()
}

/// Seconds of the longest run.
const LONGEST: f64 = 365.0 * 24.0 * 3600.0;

/// So often may something happen in a run.
const MOST_TIMES: f64 = 1e8;
const SELDOM: &str =
    "more than 0 seconds, and so many that it is at most 100,000,000 times in the duration";

const WEIGHT: std::ops::RangeInclusive<u32> = 1..=1000;

/// A field, and what would be right.
type Fault = Option<(String, Cow<'static, str>)>;

fn fault(wrong: bool, field: &str, right: &'static str) -> Fault {
    wrong.then(|| (field.to_owned(), right.into()))
}

impl Scenario {
    /// The first value that makes no sense is an error.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let found = self
            .check_run()
            .or_else(|| self.check_traffic())
            .or_else(|| self.check_pool())
            .or_else(|| self.check_feedback())
            .or_else(|| self.check_events())
            .or_else(|| self.check_effects())
            .or_else(|| self.check_methods());
        match found {
            Some((field, right)) => Err(self.value(&field, &right)),
            None => Ok(()),
        }
    }

    fn check_run(&self) -> Fault {
        let late = !not_negative(self.warmup) || self.warmup >= self.duration;
        let endless = !positive(self.duration) || self.duration > LONGEST;
        let right = "more than 0 seconds, and at most 31,536,000, a year";
        fault(!(1..=100_000).contains(&self.runs), "runs", "from 1 to 100,000")
            .or_else(|| fault(endless, "duration", right))
            .or_else(|| fault(late, "warmup", "from 0 seconds to less than the duration"))
            .or_else(|| fault(self.too_often(self.sample_every), "sample_every", SELDOM))
    }

    /// Whether what happens again after so many seconds happens too often for a run to end.
    fn too_often(&self, every: f64) -> bool {
        !positive(every) || self.duration / every > MOST_TIMES
    }

    fn check_traffic(&self) -> Fault {
        let traffic = &self.traffic;
        let queued = self.queue.is_some();
        let bad = |list: &Option<super::OneOrMany<f64>>| {
            list.as_ref().is_some_and(|list| !list.all(positive))
        };
        let peak = traffic.peak.is_some_and(|peak| !(peak >= 1.0 && peak.is_finite()));
        let uneven = traffic.peak.is_some() != traffic.period.is_some();
        let given = [&traffic.flows, &traffic.rate].iter().filter(|list| list.is_some()).count();
        fault(
            queued && traffic != &Default::default(),
            "traffic",
            "left out where there is [queue]",
        )
        .or_else(|| {
            fault(!queued && given != 1, "traffic.flows", "given, or traffic.rate: one of them")
        })
        .or_else(|| fault(bad(&traffic.flows), "traffic.flows", "more than 0"))
        .or_else(|| fault(bad(&traffic.rate), "traffic.rate", "more than 0 per second"))
        .or_else(|| fault(peak, "traffic.peak", "at least 1 (times the lowest rate)"))
        .or_else(|| fault(uneven, "traffic.peak", "given with traffic.period, or neither"))
        .or_else(|| {
            let period = traffic.period.is_some_and(|period| !positive(period));
            fault(period, "traffic.period", "more than 0 seconds")
        })
        .or_else(|| {
            let bad = traffic.packets_per_kb.is_some_and(|packets| !not_negative(packets));
            fault(bad, "traffic.packets_per_kb", "at least 0")
        })
        .or_else(|| fault(traffic.max_packets == Some(0), "traffic.max_packets", "at least 1"))
        .or_else(|| self.queue.as_ref().and_then(check_queue))
    }

    /// Of the numbers to go through, the largest.
    fn most_servers(&self) -> u32 {
        let most = |list: &super::OneOrMany<u16>| list.values().iter().copied().max().unwrap_or(0);
        let (servers, horizon) = (most(&self.pool.servers), most(&self.pool.horizon));
        u32::from(servers) + u32::from(self.pool.standby) + u32::from(horizon)
    }

    fn check_pool(&self) -> Fault {
        let pool = &self.pool;
        let servers = pool.servers.values();
        let none = servers.is_empty() || servers.contains(&0) || self.most_servers() > 60_000;
        let weights = &pool.weights;
        let rates = &pool.updates_per_minute;
        let reshuffles = &pool.reshuffles_per_minute;
        let one_list = servers.len() > 1 && !self.events.is_empty();
        fault(!rates.all(not_negative), "pool.updates_per_minute", "at least 0")
            .or_else(|| {
                let right = "from 1, and with standby and horizon at most 60,000";
                fault(none, "pool.servers", right)
            })
            .or_else(|| fault(one_list, "pool.servers", "one number where there are events"))
            .or_else(|| {
                fault(pool.horizon.values().is_empty(), "pool.horizon", "at least one number")
            })
            .or_else(|| {
                let bad = weights.is_empty() || !weights.iter().all(|w| WEIGHT.contains(w));
                fault(bad, "pool.weights", "at least one, each from 1 to 1,000")
            })
            .or_else(|| {
                fault(!(1..=1000).contains(&pool.balancers), "pool.balancers", "from 1 to 1,000")
            })
            .or_else(|| {
                fault(!reshuffles.all(not_negative), "pool.reshuffles_per_minute", "at least 0")
            })
    }

    fn check_feedback(&self) -> Fault {
        let feedback = self.feedback.as_ref()?;
        let busy = feedback.load == LoadKind::Busy && self.queue.is_none();
        fault(self.too_often(feedback.interval), "feedback.interval", SELDOM)
            .or_else(|| {
                fault(!not_negative(feedback.delay), "feedback.delay", "at least 0 seconds")
            })
            .or_else(|| {
                fault(busy, "feedback.load", "\"connections\": only with [queue] are servers busy")
            })
    }

    fn check_events(&self) -> Fault {
        let known = u32::from(self.pool.servers.values().iter().copied().max().unwrap_or(0))
            + u32::from(self.pool.standby);
        let queued = self.queue.is_some() && !self.events.is_empty();
        let events = self.events.iter().enumerate().find_map(|(place, event)| {
            let field = |name: &str| format!("event.{place}.{name}");
            let actions = event.actions();
            let [(name, action)] = &actions[..] else {
                let right = "one of add, remove, drain, weights, reweight, random_weights";
                return Some((format!("event.{place}"), right.into()));
            };
            fault(!not_negative(event.at), &field("at"), "at least 0 seconds")
                .or_else(|| {
                    let right = format!("less than the duration, {} seconds", self.duration);
                    (event.at >= self.duration).then(|| (field("at"), right.into()))
                })
                .or_else(|| {
                    let bad = event.every.is_some_and(|every| self.too_often(every));
                    fault(bad, &field("every"), SELDOM)
                })
                .or_else(|| check_action(action, known).map(|right| (field(name), right.into())))
        });
        fault(queued, "event", "left out where there is [queue]").or(events)
    }

    /// The first event that lets a server join that is in the pool anyway, or leave that is not. Who is in the pool is
    /// known where servers depart by events alone; of servers with events that repeat themselves it is not looked at.
    fn check_effects(&self) -> Fault {
        if self.pool.updates_per_minute.values().iter().any(|&rate| rate > 0.0) {
            return None;
        }
        let known = usize::from(self.pool.servers.values().iter().copied().max().unwrap_or(0));
        let all = known + usize::from(self.pool.standby);
        let mut places: Vec<Place> =
            (0..all).map(|server| if server < known { Place::In } else { Place::Out }).collect();
        let mut events: Vec<_> = self.events.iter().enumerate().collect();
        events.sort_by(|(_, a), (_, b)| a.at.total_cmp(&b.at));
        let repeated: HashSet<u16> = self
            .events
            .iter()
            .filter(|event| event.every.is_some())
            .flat_map(|event| event.actions())
            .flat_map(|(_, action)| moved(&action).to_vec())
            .collect();
        for (number, event) in events {
            for (name, action) in event.actions() {
                for server in moved(&action).iter().filter(|server| !repeated.contains(*server)) {
                    let place = places.get_mut(usize::from(*server))?;
                    if let Err(right) = place.follow(&action) {
                        return Some((format!("event.{number}.{name}"), right.into()));
                    }
                }
            }
        }
        None
    }

    fn check_methods(&self) -> Fault {
        let wrong = |(place, method): (usize, &super::MethodSpec)| {
            let (field, right) = method.fault(self.most_servers())?;
            Some((format!("method.{place}.{field}"), right))
        };
        let deaf = |(place, method): (usize, &super::MethodSpec)| {
            let deaf = method.needs_feedback() && self.feedback.is_none();
            fault(deaf, &format!("method.{place}.scheduler"), "used with a [feedback] table")
        };
        fault(self.methods.is_empty(), "method", "at least one")
            .or_else(|| self.methods.iter().enumerate().find_map(wrong))
            .or_else(|| self.methods.iter().enumerate().find_map(deaf))
    }
}

/// Where a server is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    In,
    /// It gets nothing new, and has connections that a removal ends.
    Draining,
    Out,
}

impl Place {
    /// Where an action leads; an error says of what servers it would lead anywhere.
    fn follow(&mut self, action: &Action) -> Result<(), &'static str> {
        *self = match (action, *self) {
            (Action::Add(_), Self::In) => {
                return Err("of servers that are not in the pool by then");
            }
            (Action::Add(_), _) => Self::In,
            (Action::Remove(_), Self::Out) => {
                return Err("of servers that are in the pool by then");
            }
            (Action::Remove(_), _) => Self::Out,
            (Action::Drain(_), Self::In) => Self::Draining,
            (Action::Drain(_), _) => return Err("of servers that are in the pool by then"),
            (_, place) => place,
        };
        Ok(())
    }
}

/// The servers that join or leave.
fn moved(action: &Action) -> &[u16] {
    match action {
        Action::Add(servers) | Action::Remove(servers) | Action::Drain(servers) => servers,
        Action::Weights(_) | Action::Reweight(..) | Action::RandomWeights(..) => &[],
    }
}

fn check_queue(queue: &QueueSpec) -> Fault {
    let share: f64 = queue.demands.iter().map(|demand| demand.share).sum();
    let shares = queue.demands.iter().all(|demand| not_negative(demand.share));
    let seconds = queue.demands.iter().all(|demand| positive(demand.seconds));
    let load = queue.load.all(|load| load > 0.0 && load < 1.0);
    fault(!load, "queue.load", "more than 0 and less than 1")
        .or_else(|| {
            let bad = !shares || (share - 1.0).abs() > 1e-6;
            fault(bad, "queue.demands", "shares of at least 0 that are 1 together")
        })
        .or_else(|| fault(!seconds, "queue.demands", "of more than 0 seconds each"))
}

/// `known`: the number of servers that an event may name.
fn check_action(action: &Action, known: u32) -> Option<&'static str> {
    match action {
        Action::Add(servers) | Action::Remove(servers) | Action::Drain(servers) => {
            let bad = servers.is_empty() || servers.iter().any(|&s| u32::from(s) >= known);
            bad.then_some("numbers of servers, from 0 to less than servers + standby")
        }
        Action::Weights(weights) => {
            let bad = weights.is_empty() || !weights.iter().all(|w| WEIGHT.contains(w));
            bad.then_some("at least one, each from 1 to 1,000")
        }
        Action::Reweight(server, weight) => {
            let bad = u32::from(*server) >= known || !WEIGHT.contains(weight);
            bad.then_some(
                "a server from 0 to less than servers + standby, a weight from 1 to 1,000",
            )
        }
        Action::RandomWeights(from, to) => {
            let bad = from > to || !WEIGHT.contains(from) || !WEIGHT.contains(to);
            bad.then_some("[smallest, largest], from 1 to 1,000")
        }
    }
}
