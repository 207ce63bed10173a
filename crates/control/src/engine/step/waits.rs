//! What a change of pools waits for, as far as this balancer can tell: the leader knows, and says it in its sign; where
//! it says nothing, or there is none, everybody sees that pools are not as the configuration has them.

use super::super::Engine;
use super::super::fleet::unfit_words;
use super::super::service::{PoolMember, ServiceRuntime};
use super::super::turn::InForce;
use super::StepStatus;
use crate::config::Config;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use weir_fleet::{Share, Stage, Step};
use weir_plane::Plane;
use weir_steering::{Member, Role};

/// A change that takes no longer is not said to wait.
const SAID_AFTER: Duration = Duration::from_secs(1);

impl<P: Plane> Engine<P> {
    /// How far the fleet is, where it has services that change in step.
    pub(in crate::engine) fn step_status(&self) -> Option<StepStatus> {
        let fleet = self.fleet.as_ref()?;
        let step = fleet.stepping.step.as_ref()?;
        let over = step.stage == Stage::Done;
        Some(StepStatus {
            number: step.number,
            stage: step.stage,
            services: step.next.keys().cloned().collect(),
            waits_for: if over {
                Vec::new()
            } else {
                fleet.with_report(|report| step.missing(report))
            },
            why: self.step_waits(),
        })
    }

    /// What is in the way of changes, and of this balancer's following them.
    pub(in crate::engine) fn step_warnings(&self) -> Vec<String> {
        let table = || self.fleet.as_ref()?.fetching.why().map(str::to_owned);
        let left = self.why_left_behind().map(|why| {
            format!(
                "left behind by the last change of pools in step: {why}; new flows start here by the table of before"
            )
        });
        self.step_waits().into_iter().chain(left.or_else(table)).collect()
    }

    /// Why pools do not change that are to change, if they do not.
    fn step_waits(&self) -> Option<String> {
        self.own_waits().or_else(|| self.leaders_waits()).or_else(|| self.unsaid_waits())
    }

    /// The same, for the others: what this balancer says of it as their leader.
    pub(in crate::engine) fn waits_as_leader(&self) -> Option<String> {
        let leads = self.fleet.as_ref().is_some_and(|fleet| fleet.leads().0);
        leads.then(|| self.own_waits().or_else(|| self.unsaid_waits())).flatten()
    }

    /// What it waits for itself.
    fn own_waits(&self) -> Option<String> {
        let fleet = self.fleet.as_ref()?;
        let stepping = &fleet.stepping;
        // Of one that does not lead, it was said of a step that has not begun.
        let begins = stepping.step.as_ref().is_some_and(|step| step.stage == Stage::Prepare);
        let misses = stepping.misses.as_ref().filter(|_| begins || fleet.leads().0);
        misses.or(stepping.why.as_ref()).cloned()
    }

    /// Why a step is given up in which somebody did not come so far. Where it is agents that have not answered this
    /// balancer, the others wait for them as well.
    pub(super) fn given_up_words(&self, step: &Step, who: &str, patience: Duration) -> String {
        let collected = (step.id(), Stage::Collect);
        let stepping = self.fleet.as_ref().map(|fleet| &fleet.stepping);
        // Where this one goes on without them, they are not what is waited for.
        let asked = stepping
            .filter(|one| step.stage == Stage::Collect && one.acked != Some(collected))
            .and_then(|one| one.asked);
        let silent = asked.map_or_else(Vec::new, |(number, _)| {
            let silent: HashSet<&IpAddr> = self.not_collected(number).collect();
            self.up_where(&step.next, |address| silent.contains(&address))
        });
        match &silent[..] {
            [] => format!(
                "a change of pools in step waits for {who}, which did not come to {} in {patience:?}",
                step.stage
            ),
            silent => format!(
                "a change of pools in step waits for the agents of {}, which have not said in {patience:?} what \
                 has begun",
                silent.join(", ")
            ),
        }
    }

    fn leaders_waits(&self) -> Option<String> {
        let (fleet, own) = (self.fleet.as_ref()?, &self.config.balancer.name);
        fleet.with_report(|report| {
            let leader = report.leader.as_ref().filter(|leader| leader.name != *own)?;
            report.balancers.get(&leader.name)?.waits.clone()
        })
    }

    /// Nobody says why, and it has been so for longer than a change takes.
    fn unsaid_waits(&self) -> Option<String> {
        let fleet = self.fleet.as_ref()?;
        fleet.stepping.pending.filter(|since| since.elapsed() >= SAID_AFTER)?;
        // What waits then is this balancer alone, and for its table.
        if self.why_left_behind().is_some() {
            return None;
        }
        let pools = self.pools_that_wait();
        let whom = fleet.with_report(|report| {
            // Without the store nothing is to change.
            report.reachable.then(|| match &report.leader {
                Some(leader) if leader.name == self.config.balancer.name => {
                    format!("{}, which leads and has not come to it yet", leader.name)
                }
                Some(leader) => format!("{}, which leads and says nothing of it", leader.name),
                None => match &unfit_words(report)[..] {
                    [] => "a leader, which is not elected yet".into(),
                    unfit => format!("a leader, which is not elected: {}", unfit.join("; ")),
                },
            })
        })?;
        let of = pools.join(", ");
        (!pools.is_empty()).then(|| format!("a change of pools in step, of {of}, waits for {whom}"))
    }

    /// Services whose pools, or methods, the configuration has otherwise than packets follow them, as no step was made
    /// by it.
    pub(in crate::engine) fn pools_that_wait(&self) -> Vec<String> {
        let Some(fleet) = &self.fleet else { return Vec::new() };
        // Where one was, what differs is what one balancer sees, and not what somebody wants.
        if fleet.stepping.made >= fleet.change() {
            return Vec::new();
        }
        let waits = self
            .services
            .iter()
            .filter(|(_, service)| service.turns_in_step() || service.has_another_pool());
        waits.map(|(name, _)| name.clone()).collect()
    }

    /// The services whose backends, or methods, are others by a configuration than by the one in force.
    pub(in crate::engine) fn pools_changed_by(&self, config: &Config) -> BTreeSet<String> {
        let changed = config.services.iter().filter(|wanted| {
            let now = self.services.get(&wanted.name);
            now.is_none_or(|now| {
                now.configured.backends != wanted.backends
                    || InForce::of(&now.configured) != InForce::of(wanted)
            })
        });
        changed.map(|wanted| wanted.name.clone()).collect()
    }

    /// What the answer to a change says of pools, and methods, that follow it later. `changed`: the services that it is
    /// about; others may still wait for a change before it.
    pub(in crate::engine) fn in_step_words(&self, changed: &BTreeSet<String>) -> String {
        let mut waits = self.pools_that_wait();
        waits.retain(|name| changed.contains(name));
        let turns =
            |name: &String| self.services.get(name).is_some_and(ServiceRuntime::turns_in_step);
        let (methods, pools): (Vec<_>, Vec<_>) = waits.into_iter().partition(turns);
        let words = |what: &str, names: &[String]| match names {
            [] => String::new(),
            [name] => format!("; the {what} of {name} changes in step with the others"),
            [names @ .., last] => {
                let names = names.join(", ");
                format!("; the {what}s of {names} and {last} change in step with the others")
            }
        };
        words("pool", &pools) + &words("method", &methods)
    }

    /// Notes since when pools wait.
    pub(in crate::engine) fn look_whether_pools_wait(&mut self) {
        let waits = !self.pools_that_wait().is_empty();
        let change = self.fleet.as_ref().map_or(0, |fleet| fleet.change());
        if let Some(stepping) = self.stepping() {
            // All are as this change wants them: nobody compares them again before the next one.
            if !waits {
                stepping.made = stepping.made.max(change);
            }
            let since = stepping.pending.filter(|_| waits);
            stepping.pending = since.or_else(|| waits.then(Instant::now));
        }
    }
}

impl ServiceRuntime {
    /// Whether packets follow another method, or other settings, until a step.
    fn turns_in_step(&self) -> bool {
        self.turn.is_some() && self.changes_in_step()
    }

    /// Whether the configuration has another pool than the one that all have agreed on, whatever checks and slow starts
    /// make of both.
    fn has_another_pool(&self) -> bool {
        let Some(agreed) = self.agreed.as_ref().filter(|_| self.changes_in_step()) else {
            return false;
        };
        let shares: HashMap<&str, &Share> =
            agreed.iter().map(|share| (share.name.as_str(), share)).collect();
        let differs = |(member, own): (&PoolMember, &Member)| {
            let Some(share) = shares.get(member.wanted.name.as_str()) else { return true };
            let drains = member.wanted.drain && !share.drains && !share.down;
            // Whether a backup serves is as checks have it.
            let serves = own.role == Role::Serving && share.drains && !member.wanted.backup;
            // One that comes up, or says its weight itself, has another one on each balancer.
            let written = member.rising.is_none()
                && member.spoken.is_none()
                && own.weight == u32::from(member.wanted.weight);
            drains || serves || written && share.weight != own.weight
        };
        agreed.len() != self.pool.len() || self.pool.iter().zip(&self.own_members()).any(differs)
    }
}
