//! A balancer and a backend on one link, for tests. They need root, as weir does.

use weir_testbed::{Namespaces, NetNs};

/// Two namespaces that go away with the value: 10.9.0.1 and fd09::1, and 10.9.0.2 and fd09::2.
pub(crate) struct Pair {
    pub(crate) lb: NetNs,
    pub(crate) backend: NetNs,
    pub(crate) namespaces: Namespaces,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let mut namespaces = Namespaces::new("test");
        let mut add = |role| namespaces.add(role).expect("a namespace (these tests need root)");
        let (lb, backend) = (add("lb"), add("be"));
        lb.join(&backend).unwrap();
        for (end, number) in [(&lb, 1), (&backend, 2)] {
            end.ip(&format!("addr add 10.9.0.{number}/24 dev eth0")).unwrap();
            end.ip(&format!("addr add fd09::{number}/64 dev eth0 nodad")).unwrap();
        }
        Self { lb, backend, namespaces }
    }
}
