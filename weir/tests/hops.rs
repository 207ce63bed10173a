//! Clients behind a router, in each topology: pings to services, traceroute, and ICMP errors of routers outside and of
//! backends. Topologies of VLANs and bonds are in `guest.rs`.

mod common;

use common::hops::{Way, is_as_promised};
use weir_lab::topology::Topology;

/// The balancer is no hop: a frame goes to a neighbour as it came.
#[test]
fn frames_on_one_link() {
    is_as_promised(Way::new(Topology::L2, "", 0));
}

#[test]
fn frames_by_another_interface() {
    is_as_promised(Way::new(Topology::Dual, "", 0));
}

#[test]
fn frames_through_the_backends_router() {
    is_as_promised(Way::new(Topology::Inline, "", 0));
}

/// A tunnel takes one from the TTL, and what is between its ends does not show.
#[test]
fn tunnels_behind_a_router() {
    for forward in ["ipip", "gre", "fou", "gue"] {
        is_as_promised(Way::new(Topology::Routed, &format!("forward = \"{forward}\""), 1));
    }
}

#[test]
fn addresses_of_backends() {
    is_as_promised(Way::new(Topology::Nat, "forward = \"nat\"", 1));
}

/// The router between balancer and backends shows, too, by the service's address: those behind the balancer do not
/// get out.
#[test]
fn addresses_of_the_balancer_and_of_backends() {
    is_as_promised(Way::new(Topology::FullNat, "forward = \"fullnat\"", 2));
}
