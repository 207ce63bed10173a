//! What is announced, and what is not, and why.

use crate::Route;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What there is to know of a service at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// Name of the service, as the configuration has it.
    pub service: String,
    /// Whether packets follow a table of it.
    pub served: bool,
    /// Backends that get new connections.
    pub up: usize,
    /// How many of them it needs; 0: it is served with whatever it has.
    pub need: usize,
    /// Whether its balancer has been apart from its fleet for so long that it is not to be announced.
    pub apart: bool,
    /// Whether another balancer of its fleet has its name: it is none of them.
    pub namesake: bool,
}

/// All services, by the networks that lead to them.
pub type Facts = BTreeMap<Route, Vec<Fact>>;

/// Why a route is not announced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Why {
    /// The operator has withdrawn this balancer.
    Drained,
    /// The balancer takes no packets yet.
    Untaken,
    /// The balancer has just started, and learns which connections live.
    Learning {
        /// Milliseconds that are left.
        left_ms: u64,
    },
    /// The balancer has not been in touch with its fleet for too long.
    Apart,
    /// Another balancer of its fleet has the balancer's name.
    Namesake,
    /// Packets for a service would not find it.
    Unserved {
        /// Its name.
        service: String,
    },
    /// Too few backends of a service are up.
    TooFew {
        /// Its name.
        service: String,
        /// How many are.
        up: usize,
        /// How many must be.
        need: usize,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drained => write!(f, "this balancer is drained"),
            Self::Untaken => {
                write!(f, "no packets are taken yet: agents tell first what their backends hold")
            }
            Self::Learning { left_ms } => {
                write!(f, "it learns which connections live, for {:.1} s", *left_ms as f64 / 1e3)
            }
            Self::Apart => write!(f, "this balancer has not followed its fleet for too long"),
            Self::Namesake => write!(f, "another balancer of its fleet has this one's name"),
            Self::Unserved { service } => write!(f, "{service} has no table yet"),
            Self::TooFew { service, up, need } => {
                write!(f, "{service} has {up} of the {need} backends that it needs")
            }
        }
    }
}

/// What is to become of a route.
pub type Verdict = Result<(), Why>;

/// Decides what is announced. It knows no clock: times are counted from the start of the process.
#[derive(Clone, Debug)]
pub struct Gate {
    learn: Duration,
    /// Since when packets are taken.
    taken: Option<Duration>,
}

impl Gate {
    /// One that holds everything back until packets have been taken for `learn`; zero where packets were balanced
    /// all the time and routers may know it.
    pub fn new(learn: Duration) -> Self {
        Self { learn, taken: None }
    }

    /// Packets are taken now. The time to learn counts from the first time that it is said: until then no connection
    /// is seen.
    pub fn takes(&mut self, now: Duration) {
        self.taken.get_or_insert(now);
    }

    /// How long it is still to learn; none: it has not begun.
    fn left(&self, now: Duration) -> Option<Duration> {
        self.taken.map(|since| (since + self.learn).saturating_sub(now))
    }

    /// What is to become of each route at this time. The operator's word comes first, then whether another balancer
    /// has this one's name, which takes no packets for that reason, then whether packets are taken, then the time to learn, then the first service, in the order of the facts, that stands in the way.
    pub fn decide(&self, facts: &Facts, drained: bool, now: Duration) -> BTreeMap<Route, Verdict> {
        let whole = match (drained, self.left(now)) {
            (true, _) => Err(Why::Drained),
            _ if facts.values().flatten().any(|fact| fact.namesake) => Err(Why::Namesake),
            (_, None) => Err(Why::Untaken),
            (_, Some(left)) if left.is_zero() => Ok(()),
            (_, Some(left)) => Err(Why::Learning { left_ms: left.as_millis() as u64 }),
        };
        let one =
            |facts: &Vec<Fact>| whole.clone().and_then(|()| facts.iter().try_for_each(stands));
        facts.iter().map(|(route, facts)| (*route, one(facts))).collect()
    }

    /// How long until it decides otherwise by itself.
    pub fn changes_in(&self, now: Duration) -> Option<Duration> {
        self.left(now).filter(|left| !left.is_zero())
    }
}

fn stands(fact: &Fact) -> Verdict {
    let service = || fact.service.clone();
    if fact.apart {
        Err(Why::Apart)
    } else if !fact.served {
        Err(Why::Unserved { service: service() })
    } else if fact.up < fact.need {
        Err(Why::TooFew { service: service(), up: fact.up, need: fact.need })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(service: &str, served: bool, up: usize, need: usize) -> Fact {
        Fact { service: service.into(), served, up, need, apart: false, namesake: false }
    }

    fn route(text: &str) -> Route {
        text.parse().expect("a route")
    }

    const LATE: Duration = Duration::from_secs(100);

    /// One that has taken packets since the start.
    fn taking(learn: Duration) -> Gate {
        let mut gate = Gate::new(learn);
        gate.takes(Duration::ZERO);
        gate
    }

    #[test]
    fn every_service_of_an_address_must_stand() {
        let (one, two, three) =
            (route("10.0.0.1/32"), route("10.0.0.2/32"), route("2001:db8::1/128"));
        let facts = Facts::from([
            (one, vec![fact("web", true, 2, 1), fact("dns", true, 0, 1)]),
            (two, vec![fact("mail", true, 3, 3)]),
            (three, vec![fact("web6", false, 3, 1)]),
        ]);
        let verdicts = taking(Duration::ZERO).decide(&facts, false, LATE);
        let too_few = Why::TooFew { service: "dns".into(), up: 0, need: 1 };
        assert_eq!(verdicts[&one], Err(too_few));
        assert_eq!(verdicts[&two], Ok(()));
        assert_eq!(verdicts[&three], Err(Why::Unserved { service: "web6".into() }));
    }

    #[test]
    fn who_needs_none_is_announced_without_any() {
        let facts = Facts::from([(route("10.0.0.1/32"), vec![fact("web", true, 0, 0)])]);
        let verdicts = taking(Duration::ZERO).decide(&facts, false, LATE);
        assert_eq!(verdicts[&route("10.0.0.1/32")], Ok(()));
    }

    #[test]
    fn who_is_apart_from_its_fleet_is_not() {
        let apart = Fact { apart: true, ..fact("web", true, 2, 1) };
        let facts = Facts::from([(route("10.0.0.1/32"), vec![apart])]);
        let verdicts = taking(Duration::ZERO).decide(&facts, false, LATE);
        assert_eq!(verdicts[&route("10.0.0.1/32")], Err(Why::Apart));
        let double = Fact { namesake: true, ..fact("web", true, 2, 1) };
        let facts = Facts::from([(route("10.0.0.1/32"), vec![double])]);
        let verdicts = Gate::new(Duration::ZERO).decide(&facts, false, LATE);
        assert_eq!(verdicts[&route("10.0.0.1/32")], Err(Why::Namesake));
    }

    #[test]
    fn it_learns_first_and_a_drained_one_announces_nothing() {
        let one = route("10.0.0.1/32");
        let facts = Facts::from([(one, vec![fact("web", true, 2, 1)])]);
        let gate = taking(Duration::from_secs(5));
        let at = |seconds| Duration::from_secs(seconds);
        assert_eq!(gate.decide(&facts, false, at(3))[&one], Err(Why::Learning { left_ms: 2000 }));
        assert_eq!(gate.changes_in(at(3)), Some(at(2)));
        assert_eq!(gate.decide(&facts, false, at(5))[&one], Ok(()));
        assert_eq!(gate.changes_in(at(5)), None);
        for now in [3, 5] {
            assert_eq!(gate.decide(&facts, true, at(now))[&one], Err(Why::Drained));
        }
    }

    #[test]
    fn who_takes_no_packets_is_not_and_learns_from_when_it_does() {
        let one = route("10.0.0.1/32");
        let facts = Facts::from([(one, vec![fact("web", true, 2, 1)])]);
        let mut gate = Gate::new(Duration::from_secs(5));
        let at = |seconds| Duration::from_secs(seconds);
        for now in [0, 5, 100] {
            assert_eq!(gate.decide(&facts, false, at(now))[&one], Err(Why::Untaken));
            assert_eq!(gate.decide(&facts, true, at(now))[&one], Err(Why::Drained));
            assert_eq!(gate.changes_in(at(now)), None);
        }
        let said = Why::Untaken.to_string();
        assert!(said.starts_with("no packets are taken yet"), "{said}");
        gate.takes(at(100));
        // Said again and again, it has begun once.
        gate.takes(at(103));
        assert_eq!(gate.decide(&facts, false, at(103))[&one], Err(Why::Learning { left_ms: 2000 }));
        assert_eq!(gate.changes_in(at(103)), Some(at(2)));
        assert_eq!(gate.decide(&facts, false, at(105))[&one], Ok(()));
        let mut gate = Gate::new(Duration::ZERO);
        assert_eq!(gate.decide(&facts, false, at(3))[&one], Err(Why::Untaken));
        gate.takes(at(3));
        assert_eq!(gate.decide(&facts, false, at(3))[&one], Ok(()));
    }
}
