//! What is done to a balancer and its clients, besides that the pool changes: the places where
//! balancers are known to lose connections.
//!
//! A [`Scenario`] fits a run's spec to itself ([`Scenario::suit`]); what goes on beside traffic and
//! churn is a `Stress`. What each does, and which method promises what in it, is a table in
//! `docs/lab.md`.

mod flood;
mod handshake;
mod stress;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::demo::DemoSpec;
use crate::error::{Error, Result};
use crate::lab::Lab;
use crate::traffic::{Mix, REUSED};
use weir_testbed::NetNs;

pub(crate) use flood::Floods;
pub use flood::{Flood, FloodKind};
pub(crate) use stress::Stress;

/// The backend that flaps; the script of changes leaves it alone.
pub(crate) const FLAPPING: usize = 0;
/// Changes that a scenario is to see at least. One without a change would prove nothing.
const CHANGES: u64 = 4;
/// Kinds of change that have to be among them.
const KINDS: &[&str] = &["add", "drain"];
/// In a flood packets are lost where the machine has no room for them, before any balancer sees
/// them, and a client waits for longer each time that it sends one again.
const PATIENCE_IN_A_FLOOD: Duration = Duration::from_secs(60);
/// Room for the reports of several seconds of flood.
const FLOOD_LIMITS: &str = "[limits]\nevent_ring_bytes = 268435456\nunreported_flows = 1048576\n";

/// What happens besides changes of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// Nothing: connections come and go, and the pool changes.
    #[default]
    Churn,
    /// SYNs of random flows at the generator's full speed.
    SynFlood,
    /// ACKs of random flows, of no connection, at the generator's full speed.
    AckFlood,
    /// Connections that are silent for minutes.
    Idle,
    /// The pool changes between a connection's SYN and its first ACK.
    Handshake,
    /// The control plane is dead for minutes while clients come and go.
    DeadControl,
    /// A backend dies and comes back each second.
    Flap,
    /// Five-tuples are used again within a minute, after a reset.
    Reuse,
}

impl Scenario {
    /// Every scenario, in the order in which `weir lab` lists them.
    pub const ALL: [Self; 8] = [
        Self::Churn,
        Self::SynFlood,
        Self::AckFlood,
        Self::Idle,
        Self::Handshake,
        Self::DeadControl,
        Self::Flap,
        Self::Reuse,
    ];
    /// The names that a person types, in the order of [`Scenario::ALL`].
    pub const NAMES: [&'static str; 8] =
        ["churn", "syn-flood", "ack-flood", "idle", "handshake", "dead-control", "flap", "reuse"];

    /// The name a person types.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// How long it lasts if nothing else is said.
    pub fn usual_duration(self) -> Duration {
        match self {
            Self::Idle | Self::DeadControl => Duration::from_secs(300),
            _ => Duration::from_secs(30),
        }
    }

    /// Connections open at a time if nothing else is said.
    pub fn usual_connections(self) -> usize {
        match self {
            Self::SynFlood | Self::AckFlood => 2000,
            _ => 4000,
        }
    }

    /// What is counted as [`Snapshot::met`](crate::traffic::Snapshot::met), for a table.
    pub fn counted(self) -> Option<&'static str> {
        match self {
            Self::Churn => None,
            Self::SynFlood => Some("SYNs of the flood"),
            Self::AckFlood => Some("ACKs of the flood"),
            Self::Idle => Some("connections that were silent all the time and then asked again"),
            Self::Handshake => Some("connections with a change between SYN and first ACK"),
            Self::DeadControl => Some("connections begun while the control plane was dead"),
            Self::Flap => Some("deaths of the backend that flaps"),
            Self::Reuse => Some("five-tuples used again within a minute"),
        }
    }

    /// Why a method of this name may break connections in it, as its page says; `None` if it
    /// promises not to.
    pub fn foreseen(self, method: &str) -> Option<&'static str> {
        match (self, method) {
            (Self::SynFlood | Self::AckFlood, "tracked") => Some(
                "its table is bounded, and a flood pushes out who was silent for longest \
                 (docs/tracked.md, Limits)",
            ),
            (Self::SynFlood | Self::AckFlood, "jet") => Some(
                "its connection table is bounded, and a flood pushes out who was silent for longest \
                 (docs/jet.md, The promise)",
            ),
            (Self::Idle, "jet") => Some(
                "a connection that is silent for longer than the warm-up may move \
                 (docs/jet.md, The promise)",
            ),
            _ => None,
        }
    }

    /// Gets the lab's clients ready, before any traffic.
    pub(crate) fn prepare(self, lab: &Lab) -> Result<()> {
        let ports = match self {
            Self::Handshake => handshake::PORTS,
            Self::Reuse => REUSED,
            _ => return Ok(()),
        };
        let range = format!("{}-{}", ports.start(), ports.end());
        let reserve = |client: &NetNs| client.sysctl("ipv4/ip_local_reserved_ports", &range);
        Ok(lab.clients().iter().try_for_each(reserve)?)
    }

    /// Fits a run to this scenario; `duration` is how long it lasts. To be called before the spec is
    /// refined by what a person asked for.
    pub fn suit(self, spec: &mut DemoSpec, duration: Duration) {
        spec.scenario = self;
        spec.duration = duration;
        spec.traffic.connections = self.usual_connections();
        if self == Self::Churn {
            return;
        }
        spec.goals.changes = CHANGES;
        spec.goals.kinds = KINDS;
        spec.goals.met = 1;
        match self {
            Self::Churn => {}
            Self::SynFlood | Self::AckFlood => {
                spec.goals.met = 100_000;
                in_a_flood(spec);
            }
            // Who was silent shows at the end. In minutes every backend would be killed once, and
            // nearly all that were silent would have an excuse.
            Self::Idle => {
                spec.goals.met = 0;
                spec.churn.kills = false;
                spec.traffic.idle_share = 0.8;
            }
            Self::Handshake => {
                spec.goals.met = 100;
                spec.churn.kills = false;
            }
            Self::DeadControl => {
                // When it is back, no more can begin while it is dead: that there were some is seen
                // at the end.
                spec.goals.met = 0;
                // None of them was made while it was dead.
                spec.goals.changes = 2 * CHANGES;
                spec.dead = duration;
                spec.duration = spec.churn.settle;
            }
            Self::Flap => {
                spec.goals.met = 5;
                spec.churn.leave = vec![FLAPPING];
            }
            Self::Reuse => {
                spec.goals.met = 500;
                spec.traffic.reuse = true;
                spec.traffic.mix = Mix { keepalive: 0.6, short: 0.35, udp: 0.05, ..Mix::NONE };
                spec.traffic.life = Duration::from_millis(300)..Duration::from_secs(6);
            }
        }
    }
}

/// Fits a run to a flood beside it.
pub(crate) fn in_a_flood(spec: &mut DemoSpec) {
    spec.traffic.mix.udp = 0.0;
    spec.traffic.timeout = spec.traffic.timeout.max(PATIENCE_IN_A_FLOOD);
    // Health checks may be lost in it, too. What is not noticed in time must not be done.
    spec.churn.kills = false;
    // Nor may nobody be there to take the reports: a flood fills what holds them in seconds (docs/concury.md, limits).
    // An update of a million states takes some, too.
    spec.churn.crashes = false;
    spec.balancer.balancer_lines += FLOOD_LIMITS;
    spec.balancer.check_interval = Duration::from_secs(3);
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scenario {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name).ok_or_else(|| {
            let all = Self::NAMES.join(", ");
            Error::BadSpec(format!("no scenario is called `{name}`; there are: {all}"))
        })
    }
}

impl Serialize for Scenario {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_scenario_and_back() {
        for (scenario, name) in Scenario::ALL.into_iter().zip(Scenario::NAMES) {
            assert_eq!(scenario.name(), name);
            assert_eq!(name.parse::<Scenario>().unwrap(), scenario);
        }
        let error = "flod".parse::<Scenario>().unwrap_err().to_string();
        assert!(error.contains("`flod`") && error.contains("syn-flood, ack-flood"), "{error}");
    }

    #[test]
    fn every_scenario_sees_changes_and_what_it_is_about() {
        for scenario in Scenario::ALL {
            let mut spec = DemoSpec::new("weir", 1);
            scenario.suit(&mut spec, Duration::from_secs(7));
            assert_eq!(spec.scenario, scenario);
            assert_eq!(scenario.counted().is_none(), scenario == Scenario::Churn);
            assert_eq!(spec.goals.changes > 0, scenario != Scenario::Churn, "{scenario}");
            // What observes every connection, and what the packet itself remembers, promises all.
            for method in ["concury", "residue", "cheetah", "cheetah-stateful"] {
                assert_eq!(scenario.foreseen(method), None, "{scenario} {method}");
            }
        }
    }
}
