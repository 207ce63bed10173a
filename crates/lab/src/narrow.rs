//! A link between the router and the backends that takes less than all others.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::api;
use crate::topology::{BACKENDS_INTERFACE, INTERFACE, Topology};
use crate::traffic::Kind;

/// The least that such a link takes: a packet of 1,280 bytes, as IPv6 asks, in any tunnel.
pub const LEAST_MTU: u32 = 1280 + 52;
/// What all others take.
pub const USUAL_MTU: u32 = 1500;
/// Bytes of the headers of TCP and IPv6.
const HEADERS: u32 = 60;

/// The link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Link {
    /// The largest packet that it takes.
    pub mtu: u32,
    /// Whether what is larger is lost without a word. Else the router tells the sender.
    pub silent: bool,
}

impl Link {
    /// Whether a network has a router for it.
    pub(crate) fn goes_with(topology: Topology) -> bool {
        matches!(topology, Topology::Routed | Topology::FullNat | Topology::Dual)
    }

    /// The router's routes by a link that it tells senders of, as lines of `ip`: they are more particular than those
    /// of its addresses. A locked MTU is one for packets that are passed on, too.
    pub(crate) fn routes(self) -> String {
        let ways = [
            ("10.77.0.0/17", INTERFACE),
            ("10.77.128.0/17", INTERFACE),
            ("fd77::/65", INTERFACE),
            ("10.77.2.0/25", BACKENDS_INTERFACE),
            ("10.77.2.128/25", BACKENDS_INTERFACE),
            ("fd77::2:0/113", BACKENDS_INTERFACE),
        ];
        let line = |(to, dev)| format!("route add {to} dev {dev} mtu lock {}\n", self.mtu);
        ways.map(line).concat()
    }

    /// What stands still where it is silent, if SYNs and SYN+ACKs that pass the balancer ask for segments of at most
    /// `mss` bytes: nobody else makes them smaller.
    pub(crate) fn stalls(self, topology: Topology, mss: Option<u32>) -> Vec<Kind> {
        let fits = mss.is_some_and(|mss| mss + HEADERS <= self.mtu);
        let answers = (!fits).then_some(Kind::Download);
        // In `dual` requests go another way. In `routed` the SYN+ACK does, and says nothing of the link.
        let requests = match topology {
            Topology::Dual => false,
            Topology::FullNat => !fits,
            _ => true,
        };
        let requests = requests.then_some(Kind::Upload);
        if self.silent { answers.into_iter().chain(requests).collect() } else { Vec::new() }
    }
}

/// What was said of packets that are too large.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Told {
    /// How often the balancer has told a client.
    pub clients: u64,
    /// How often a router has told the balancer, of packets in tunnels.
    pub balancer: u64,
}

impl Told {
    /// What a balancer at this socket says; nothing while none answers.
    pub(crate) fn of(socket: &Path) -> Option<Self> {
        Self::read(&api::get(socket, "/v1/status").ok()?)
    }

    fn read(status: &Value) -> Option<Self> {
        let outcomes = status["outcomes"].as_array()?;
        let count = |reason: &str, kind: &str| {
            let found = outcomes.iter().find(|one| one["reason"] == reason);
            found.and_then(|one| one[kind].as_u64()).unwrap_or(0)
        };
        let (clients, balancer) = (count("too_big_told", "dropped"), count("path_mtu", "passed"));
        Some(Self { clients, balancer })
    }

    /// The same in words.
    pub(crate) fn words(self, link: Link) -> String {
        let Self { clients, balancer } = self;
        format!(
            "a link of {} bytes in the middle: the balancer told clients {clients} times that a packet is too large, \
             and was told {balancer} times by the router",
            link.mtu
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_still_is_what_nobody_makes_smaller() {
        let (told, silent) = (Link { mtu: 1400, silent: false }, Link { mtu: 1400, silent: true });
        let (download, upload) = (Kind::Download, Kind::Upload);
        for topology in [Topology::Routed, Topology::FullNat, Topology::Dual] {
            assert!(Link::goes_with(topology) && told.stalls(topology, None).is_empty());
        }
        assert!(!Link::goes_with(Topology::L2) && !Link::goes_with(Topology::Fleet));
        assert_eq!(silent.stalls(Topology::Routed, None), [download, upload]);
        assert_eq!(silent.stalls(Topology::Routed, Some(1340)), [upload]);
        assert_eq!(silent.stalls(Topology::FullNat, Some(1341)), [download, upload]);
        assert!(silent.stalls(Topology::FullNat, Some(1340)).is_empty());
        assert_eq!(silent.stalls(Topology::Dual, None), [download]);
    }

    #[test]
    fn what_was_told_is_read_from_the_outcomes() {
        let outcomes = serde_json::json!([
            {"reason": "too_big_told", "dropped": 7, "passed": 0},
            {"reason": "path_mtu", "dropped": 0, "passed": 3},
        ]);
        let told = Told::read(&serde_json::json!({"outcomes": outcomes})).unwrap();
        assert_eq!(told, Told { clients: 7, balancer: 3 });
        assert!(told.words(Link { mtu: 1400, silent: false }).contains("of 1400 bytes"));
        let none = Told::read(&serde_json::json!({"outcomes": []}));
        assert_eq!(none, Some(Told { clients: 0, balancer: 0 }));
        assert_eq!(Told::read(&serde_json::json!({})), None);
    }
}
