//! What is shown of agents, and what there is to say of them.

use super::super::Engine;
use crate::certificates::warning;
use crate::config::States;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use weir_plane::Plane;

/// An agent, as `weir status` shows it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AgentStatus {
    /// Name in its certificate.
    pub name: String,
    /// From where it calls; none: it is lost.
    pub from: Option<SocketAddr>,
    /// Version of its program.
    pub version: Option<String>,
    /// Addresses of the backends that it speaks for.
    pub addresses: Vec<IpAddr>,
    /// Whether what it says counts: it has told all that it holds.
    pub told: bool,
    /// Seconds since it called, or since it was lost.
    pub seconds: u64,
    /// How far what it says is behind, in milliseconds; none: not known yet.
    pub lag_ms: Option<f64>,
    /// Open connections to services with states = "agents", as it counts them.
    pub connections: u64,
    /// Part of its processors that is busy, 0 to 1.
    pub cpu: f64,
    /// Processes there that run or want to.
    pub run_queue: u32,
    /// Dumps that it has sent in this session.
    pub dumps: u64,
    /// Events that it has sent in this session.
    pub events: u64,
    /// Events that it has lost since its start; a dump followed each time.
    pub lost: u64,
    /// Connections that it named and that are not its own.
    pub refused: u64,
    /// When its certificate ends, in seconds since 1970.
    pub certificate_ends: Option<i64>,
}

/// Seconds since 1970.
impl<P: Plane> Engine<P> {
    /// Whether nobody speaks for a backend now, whose agent was lost, or has not called since it came up.
    pub(in crate::engine) fn has_lost_agent(&self, address: IpAddr) -> bool {
        self.misses(address)
            || self.agents.lost.iter().any(|lost| lost.addresses.contains(&address))
    }

    /// All agents, for `weir status`.
    pub(in crate::engine) fn agent_status(&self) -> Vec<AgentStatus> {
        let speaking = self.agents.speakers.values().map(|one| AgentStatus {
            name: one.newcomer.name.clone(),
            from: Some(one.newcomer.from),
            version: Some(one.newcomer.version.clone()),
            addresses: one.newcomer.addresses.clone(),
            told: one.next.is_some() && one.held.len() == one.places.len(),
            seconds: one.since.elapsed().as_secs(),
            lag_ms: one.lag.map(|lag| lag.as_secs_f64() * 1000.0),
            connections: one.connections,
            cpu: one.cpu,
            run_queue: one.run_queue,
            dumps: one.dumps,
            events: one.events,
            lost: one.lost,
            refused: one.refused,
            certificate_ends: Some(one.newcomer.ends),
        });
        let lost = self.agents.lost.iter().map(|one| AgentStatus {
            name: one.name.clone(),
            from: None,
            version: None,
            addresses: one.addresses.clone(),
            told: !one.held.is_empty(),
            seconds: one.at.elapsed().as_secs(),
            lag_ms: None,
            connections: 0,
            cpu: 0.0,
            run_queue: 0,
            dumps: 0,
            events: 0,
            lost: 0,
            refused: 0,
            certificate_ends: None,
        });
        speaking.chain(lost).collect()
    }

    /// Calls that were refused, and connections that agents named and that were not theirs.
    pub(in crate::engine) fn agents_refused(&self) -> (u64, u64) {
        let speaking = self.agents.speakers.values().map(|one| one.refused).sum::<u64>();
        (self.agents.turned_away, self.agents.refused + speaking)
    }

    /// What is in the way of whoever listens for agents, and for other balancers.
    pub(in crate::engine) fn agents_trouble(&self) -> Option<String> {
        self.agents.trouble.as_ref().and_then(|trouble| trouble.borrow().clone())
    }

    /// When the certificate ends that this balancer shows to them, if it could be read.
    pub(in crate::engine) fn own_certificate_ends(&self) -> Option<i64> {
        self.agents.own_ends
    }

    /// What there is to say of agents.
    pub(in crate::engine) fn agent_warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(until) = self.agents.learning {
            let left = until.saturating_duration_since(Instant::now()).as_secs();
            found.push(format!(
                "no packets are taken yet: agents tell first what their backends hold (agents.learn, \
                 {left} s left)"
            ));
        }
        if let Some(until) = self.agents.settling {
            let left = until.saturating_duration_since(Instant::now()).as_secs();
            found.push(format!(
                "changes wait until agents have listed what their backends hold, after the restart ({left} s left)"
            ));
        }
        found.extend(self.agents_trouble().map(|trouble| format!("agents: {trouble}")));
        let own = self
            .agents
            .own_ends
            .map(|ends| ("this balancer's certificate for agents".into(), ends));
        let theirs = self.agents.speakers.values().map(|one| {
            (format!("the certificate of agent {}", one.newcomer.name), one.newcomer.ends)
        });
        let all = own.into_iter().chain(theirs);
        found.extend(all.filter_map(|(whose, ends): (String, i64)| warning(&whose, ends)));
        for (name, service) in &self.services {
            if service.configured.states != States::Agents {
                continue;
            }
            let silent = service.pool.iter().filter(|member| !service.is_told_of(member.id));
            let silent: Vec<&str> = silent.map(|member| member.wanted.name.as_str()).collect();
            if !silent.is_empty() {
                found.push(format!(
                    "service {name}: no agent tells of {}: what the balancer sees stands in for it",
                    silent.join(", ")
                ));
            }
            let missed = service.young.missed();
            if missed > 0 {
                found.push(format!(
                    "service {name}: packets of {missed} connections were seen of which no agent has told: \
                     the next change of the pool may break them"
                ));
            }
        }
        found
    }
}
