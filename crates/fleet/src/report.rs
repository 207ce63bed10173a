//! What balancers say of themselves, and what one knows of all.

use crate::{Ack, LEASE};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// What a balancer says of itself. It is in the store for as long as the balancer's lease lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sign {
    /// Tells balancers of one name apart.
    pub id: String,
    /// Version of the program.
    pub version: String,
    /// The change of the shared configuration that it follows; 0: none.
    pub change: u64,
    /// Digest of that.
    pub digest: String,
    /// Its services, in the order of their names.
    pub services: Vec<ServiceSign>,
    /// Routes that it announces.
    pub announced: Vec<String>,
    /// Routes of which it is not known whether they are announced, as its speaker does not answer, or cannot do what it
    /// is told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub announced_unknown: Vec<String>,
    /// Whether it was drained by `weir drain self`.
    pub drained: bool,
    /// Whether it can take part in a change of pools that all make in step.
    #[serde(default)]
    pub steps: bool,
    /// Whether packets follow its tables, or those of the process before it: it is waited for in a change of pools, whether
    /// it can take part yet or not.
    #[serde(default)]
    pub forwards: bool,
    /// Where other balancers get the tables of it that all are to have alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<String>,
    /// Where agents of backends call it: host, which its certificate names, and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<String>,
    /// Services at which it keeps new flows from backends that it alone has found dead and that are alive again, until
    /// there is another table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wait_for_table: Vec<String>,
    /// Why it does not follow a later change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// As the leader: why a change of pools in step is not made, or whom it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// Why it does not run for leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfit: Option<String>,
    /// Why its packets follow another table than the last step has, if they do: the others have gone on without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_behind: Option<String>,
}

/// The balancer that leads its fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Leader {
    /// Its name.
    pub name: String,
    /// Its id, which tells balancers of one name apart.
    pub id: String,
    /// Which leader of the fleet it is. No other one, before or after it, has the same number, and a later one
    /// has a higher one.
    pub term: u64,
    /// Since when, in seconds since 1970, by its own clock.
    pub since: u64,
}

/// What a balancer says of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceSign {
    /// Name of the service.
    pub name: String,
    /// Method of its table.
    pub method: String,
    /// How many tables this balancer has published.
    pub generation: u64,
    /// Digest of how its table decides, by the names of the backends; none if there is no table. Balancers
    /// with the same digest lead every connection alike that they know nothing of.
    pub digest: Option<String>,
    /// Backends that this balancer has up.
    pub up: usize,
    /// Backends in all.
    pub backends: usize,
}

/// What a balancer knows of its store, and through it of the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Whether the store answers.
    pub reachable: bool,
    /// Since when that is so, in seconds since 1970.
    pub since: u64,
    /// Why it does not answer, if it does not.
    pub error: Option<String>,
    /// The last change that the store is known to have.
    pub change: u64,
    /// Times that everything was read anew, since the watch had been lost.
    pub resyncs: u64,
    /// Another balancer has the name of this one.
    pub namesake: bool,
    /// Balancers that are not of the fleet, as others of it have their names: what they say of themselves, by name and
    /// id (`lb1/0f3a`).
    pub doubles: BTreeMap<String, Sign>,
    /// All that have ever been in the fleet and were not forgotten.
    pub members: BTreeSet<String>,
    /// What those say of themselves that live, by their names.
    pub balancers: BTreeMap<String, Sign>,
    /// While the store does not answer: what those had said of themselves that lived when it did so last.
    pub before: BTreeMap<String, Sign>,
    /// What those have said last of a step of the pools, by their names.
    pub acks: BTreeMap<String, Ack>,
    /// Who leads; none: nobody, or the store does not answer.
    pub leader: Option<Leader>,
    /// Until when nobody else can be the leader, if this balancer is it.
    pub(crate) leads_until: Option<Instant>,
    /// Until when the others wait for this balancer: its lease, counted from before it was asked for, cannot have run
    /// out before. It stays when the store is lost; none: the store was not heard yet.
    pub lease_until: Option<Instant>,
}

impl Report {
    /// The same of a balancer that leads until then. For tests of what a leader does.
    pub fn leading(mut self, until: Option<Instant>) -> Self {
        self.leads_until = until;
        self
    }

    /// The names that more than one balancer has, as this one is called `own`.
    pub fn doubled(&self, own: &str) -> BTreeSet<String> {
        let others = self.doubles.keys().filter_map(|which| which.rsplit_once('/'));
        let others = others.map(|(name, _)| name.to_owned());
        others.chain(self.namesake.then(|| own.to_owned())).collect()
    }

    /// Whether the others may go on without this balancer, as far as it can tell.
    pub fn lease_is_over(&self) -> bool {
        self.lease_until.is_none_or(|until| until <= Instant::now())
    }

    /// For how long the store may not have heard of this balancer; none: it never has.
    pub fn unheard_for(&self) -> Option<Duration> {
        let (until, now) = (self.lease_until?, Instant::now());
        let left = until.saturating_duration_since(now);
        Some(LEASE.saturating_sub(left) + now.saturating_duration_since(until))
    }

    /// Whether this balancer leads. Then no other one does: its lease, counted from before it was asked for, has
    /// not run out.
    pub fn leads(&self) -> bool {
        self.leads_until.is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Balancers of a fleet may be of several versions.
    #[test]
    fn a_sign_of_another_version_is_read() {
        let old = r#"{"id":"1f","version":"0.1.0","change":7,"digest":"00ff","services":[],"announced":[],
            "drained":false}"#;
        let sign: Sign = serde_json::from_str(old).expect("it can be read");
        assert_eq!((sign.change, sign.waits.clone(), sign.steps), (7, None, false));
        let text = serde_json::to_string(&sign).expect("JSON");
        assert!(!text.contains("waits"), "{text}");
        let later =
            old.replace("\"drained\"", "\"waits\":\"for b\",\"of_tomorrow\":[1],\"drained\"");
        let sign: Sign = serde_json::from_str(&later).expect("it can be read");
        assert_eq!(sign.waits.as_deref(), Some("for b"));
    }

    #[test]
    fn names_that_two_have_are_said_once() {
        let mut report = Report::default();
        assert!(report.doubled("a").is_empty());
        report.namesake = true;
        for which in ["a/1", "b/2", "b/3"] {
            report.doubles.insert(which.into(), Sign::default());
        }
        assert_eq!(report.doubled("a").into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_lease_says_for_how_long_nothing_was_heard() {
        let mut report = Report::default();
        assert!(report.lease_is_over() && report.unheard_for().is_none());
        let now = Instant::now();
        report.lease_until = Some(now + LEASE);
        assert!(!report.lease_is_over());
        assert!(report.unheard_for().is_some_and(|time| time < LEASE));
        report.lease_until = now.checked_sub(Duration::from_secs(5));
        assert!(report.lease_is_over());
        let unheard = report.unheard_for().expect("it was heard once");
        assert!(unheard >= LEASE + Duration::from_secs(5), "{unheard:?}");
        report.lease_until = Some(now + LEASE * 100);
        assert_eq!(report.unheard_for(), Some(Duration::ZERO));
    }
}
