//! Laboratories for a load balancer: named topologies of network namespaces with real servers, and
//! thousands of real connections that notice when one of them breaks.
//!
//! A [`Lab`] is a bridge, clients, a balancer's place and backends, each in a namespace of its own.
//! Everything that it made goes when it is dropped, after Ctrl-C ([`catch_interrupts`]) and, at the
//! next lab's start, after a crash. Labs run side by side. `docs/lab.md` has the picture and says
//! what counts as broken.

mod agent;
mod api;
mod backend;
pub mod balancer;
mod bgp;
pub mod churn;
mod classic;
pub mod compare;
pub mod demo;
mod echo;
mod error;
mod events;
mod fleet;
mod frames;
mod home;
mod kernel;
mod lab;
mod loads;
mod narrow;
mod quic;
pub mod requests;
mod rules;
pub mod scenario;
mod shares;
mod switch;
mod tiers;
pub mod topology;
pub mod traffic;
mod trial;
mod uploads;
pub mod view;
pub mod wanted;
mod witness;
mod work;

pub use agent::{AgentSpec, Lies};
pub use backend::Backend;
pub use balancer::{Balancer, BalancerSpec, Node, PoolControl, dpdk};
pub use bgp::Speaker;
pub use churn::{Churn, ChurnSpec};
pub use error::{Error, Result};
pub use events::PoolEvents;
pub use fleet::{Fleet, Happening};
pub use frames::FrameSender;
pub use home::sweep;
pub use lab::{Lab, LabSpec};
pub use loads::Loads;
pub use narrow::{LEAST_MTU, Link, Told, USUAL_MTU};
pub use rules::{Ruled, RulesSpec};
pub use scenario::{Flood, FloodKind, Scenario};
pub use switch::Program;
pub use tiers::Tiers;
pub use traffic::{Report, Traffic, TrafficHandle, TrafficSpec};
pub use trial::{Trial, TrialSpec};
pub use weir_testbed::interrupt::{catch_interrupts, interrupt, interrupted, sleep};
pub use weir_testbed::process::spawn;
pub use weir_testbed::{NetNs, draw_seed};
pub use witness::Resets;
