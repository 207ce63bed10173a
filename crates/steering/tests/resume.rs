//! A control plane that is started again goes on from the published table: nothing that it sends
//! anywhere changes, known or not, as long as the pool is the same.

use weir_lookup::Key;
use weir_steering::{Concury, ConcuryConfig, Member, Role, StateKey};
use weir_wire::{FlowKey, Protocol};

fn config(seed: u64) -> ConcuryConfig {
    ConcuryConfig {
        bits: 10,
        client_affinity: false,
        udp: true,
        mark: false,
        capacity: 1000,
        max_states: 1_000_000,
        idle_seconds: 100,
        seed,
    }
}

fn key(n: u32) -> StateKey {
    let source = (std::net::Ipv4Addr::from(0x0a00_0000 + n), 4000);
    let flow = FlowKey::new(source.into(), ([192, 0, 2, 1], 53).into(), Protocol::Udp);
    StateKey::of_flow(&flow)
}

#[test]
fn a_resumed_table_is_the_same_table() {
    let members: Vec<Member> = (0..7)
        .map(|backend| Member {
            backend,
            name: format!("b{backend}"),
            weight: u32::from(backend) + 1,
            role: Role::Serving,
        })
        .collect();
    let mut first = Concury::new(config(1));
    for n in 0..20_000 {
        first.start(key(n), (n % 7) as u16, 0).unwrap();
    }
    let (before, _) = first.build(1, &members, 10).unwrap();

    let mut second = Concury::resume(config(2), before.clone());
    for (state, held) in first.states() {
        second.restore(*state, held.backend, 20).unwrap();
    }
    let (after, report) = second.build(2, &members, 20).unwrap();
    assert_eq!(report.recoded, 0);
    assert_eq!(after.header().key, before.header().key);
    assert_eq!(after.header().digest, before.header().digest);
    let hash = key(1 << 23).hash(&after.header().key);
    assert_eq!(hash, key(1 << 23).hash(&before.header().key));

    // Other settings cannot go on from it, and begin anew.
    let other = Concury::resume(ConcuryConfig { bits: 11, ..config(3) }, before);
    assert!(other.published().is_none());
}
