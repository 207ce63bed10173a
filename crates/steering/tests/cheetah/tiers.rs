//! Stateless balancers in front, stateful ones behind, and both pools changing.

use super::{Packet, Verdict, caller, flow, member, seeded, verdict};
use rand::Rng;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_hash::HashKey;
use weir_steering::cheetah::{
    AllServers, ConnTable, ConnTableConfig, Forged, Layout, Repair, ServiceServers, Stateful,
    Stateless, Table, Tier, WithSlots,
};
use weir_steering::{Answer, Decide, Member, NoCookie, Role};
use weir_wire::{FlowKey, TcpFlags};

/// 5 bits for the balancer, 10 for the index.
const FRONT: u32 = 5;
const FRONT_KEY: u64 = 11;

/// A stateful balancer with its own table of flows without cookies.
struct Balancer {
    cheetah: Stateful,
    slots: ConnTable,
    tracked: HashMap<FlowKey, u16>,
}

impl Balancer {
    fn new(layout: Layout, number: u16, slots: u32) -> Self {
        let config = ConnTableConfig {
            partitions: 4,
            slots,
            bits: layout.back_bits(),
            opening_seconds: 1_000,
            idle_seconds: 1_000,
            linger_seconds: 1_000,
        };
        let table = ConnTable::new(HashKey::from_seed(u64::from(number) + 100), config).unwrap();
        let tier = Tier { key: HashKey::from_seed(FRONT_KEY), number };
        let cheetah = Stateful::new(layout, *table.key(), Some(tier), Forged::Refuse);
        Self { cheetah, slots: table, tracked: HashMap::new() }
    }
}

/// The decision of the front.
fn in_front_decide(
    front: &Stateless,
    servers: &Arc<ServiceServers>,
    packet: &Packet,
    schedule: impl FnMut(&[u16]) -> Option<u16>,
) -> Verdict {
    let table = Table::new(*front, servers.clone());
    let mut memory = caller(|| None, schedule);
    let decision = table.decide(&packet.question(&table, 0), &mut memory);
    verdict(decision, memory.remembered)
}

/// The decision of a stateful balancer.
fn decide(
    cheetah: &Stateful,
    slots: &mut ConnTable,
    servers: &Arc<ServiceServers>,
    (packet, now): (&Packet, u32),
    known: impl FnOnce() -> Option<u16>,
    schedule: impl FnMut(&[u16]) -> Option<u16>,
) -> Verdict {
    let table = Table::new(*cheetah, servers.clone());
    let mut memory = WithSlots { slots, rest: caller(known, schedule) };
    let decision = table.decide(&packet.question(&table, now), &mut memory);
    verdict(decision, memory.rest.remembered)
}

struct Connection {
    flow: FlowKey,
    balancer: String,
    backend: String,
    echo: u32,
    tracked: bool,
}

/// Names in, tables out.
#[derive(Default)]
struct Pool {
    members: BTreeMap<String, Member>,
    servers: Arc<ServiceServers>,
}

impl Pool {
    fn publish(&mut self, all: &AllServers) {
        let members: Vec<Member> = self.members.values().cloned().collect();
        self.servers = ServiceServers::new(all, &members).unwrap().into();
    }
}

#[test]
fn connections_find_their_balancer_and_there_their_slot() {
    let mut rng = seeded();
    let layout = Layout::new(1, FRONT).unwrap();
    let front = Stateless::new(HashKey::from_seed(FRONT_KEY), layout, Forged::Refuse);
    let mut all_balancers = AllServers::new(front.codec().numbers());
    let mut all_backends = AllServers::new(u32::MAX);
    let (mut in_front, mut behind) = (Pool::default(), Pool::default());
    let mut balancers = BTreeMap::<u16, Balancer>::new();
    for n in 0..40u16 {
        let name = format!("b{n}");
        all_backends.join(&name).unwrap();
        behind.members.insert(name.clone(), member(&name, n, Role::Serving));
    }
    behind.publish(&all_backends);

    let mut connections: Vec<Connection> = Vec::new();
    for step in 0..24u16 {
        // A balancer joins in each step. From the ninth step on another one takes no new
        // connections, keeping its own; a backend drains and one is gone.
        let name = format!("lb{step}");
        let number = all_balancers.join(&name).unwrap();
        balancers.insert(step, Balancer::new(layout, number, 100));
        in_front.members.insert(name.clone(), member(&name, step, Role::Serving));
        if step >= 8 {
            in_front.members.get_mut(&format!("lb{}", step - 8)).unwrap().role = Role::Draining;
            let drains = format!("b{}", 30 - step);
            behind.members.get_mut(&drains).unwrap().role = Role::Draining;
            let gone = format!("b{}", 39 - (step - 8) / 2);
            if behind.members.remove(&gone).is_some() {
                all_backends.leave(&gone);
            }
        }
        in_front.publish(&all_balancers);
        behind.publish(&all_backends);

        for _ in 0..500 {
            let flow = flow(&mut rng);
            let syn = Packet { flow, flags: TcpFlags::SYN, echo: Some(0) };
            let choose = |serving: &[u16]| serving.choose(&mut rng).copied();
            let placed = in_front_decide(&front, &in_front.servers, &syn, choose);
            let Verdict::First { backend: lb, .. } = placed else { panic!("{placed:?}") };
            let balancer = balancers.get_mut(&lb).unwrap();
            let verdict = decide(
                &balancer.cheetah,
                &mut balancer.slots,
                &behind.servers,
                (&syn, 0),
                || None,
                |serving| serving.choose(&mut rng).copied(),
            );
            let (backend, cookie, tracked) = match verdict {
                Verdict::First { backend, cookie } => (backend, cookie, false),
                Verdict::Track { backend, why: NoCookie::TableFull, cookie } => {
                    balancer.tracked.insert(flow, backend);
                    (backend, cookie.expect("the front needs one"), true)
                }
                other => panic!("{other:?}"),
            };
            let clock = rng.random();
            let echo = Repair::new(layout, clock).outgoing(clock, cookie);
            connections.push(Connection {
                flow,
                balancer: format!("lb{lb}"),
                backend: format!("b{backend}"),
                echo,
                tracked,
            });
        }
        for connection in &connections {
            follow(connection, &front, &in_front, &behind, &mut balancers);
        }
    }
    let tracked = connections.iter().filter(|connection| connection.tracked).count();
    println!("{} connections, {tracked} of them tracked: no free slot", connections.len());
    assert!(tracked > 100 && tracked < connections.len() / 2);
}

/// A packet of the connection through both tiers.
fn follow(
    connection: &Connection,
    front: &Stateless,
    in_front: &Pool,
    behind: &Pool,
    balancers: &mut BTreeMap<u16, Balancer>,
) {
    let flow = connection.flow;
    let ack = Packet { flow, flags: TcpFlags::ACK, echo: Some(connection.echo) };
    let never = |_: &[u16]| -> Option<u16> { panic!("this is no new connection") };
    let verdict = in_front_decide(front, &in_front.servers, &ack, never);
    let lb = in_front.members[&connection.balancer].backend;
    assert_eq!(verdict, Verdict::Cookie { backend: lb.get() });
    let balancer = balancers.get_mut(&lb.get()).unwrap();
    let known = balancer.tracked.get(&flow).copied();
    let (cheetah, slots) = (&balancer.cheetah, &mut balancer.slots);
    let verdict = decide(cheetah, slots, &behind.servers, (&ack, 0), || known, never);
    match behind.members.get(&connection.backend) {
        Some(Member { backend, .. }) if connection.tracked => {
            assert_eq!(verdict, Verdict::Known { backend: (*backend).get() });
        }
        Some(Member { backend, .. }) => {
            assert_eq!(verdict, Verdict::Cookie { backend: (*backend).get() })
        }
        // Broken inevitably. The slot is given back at the first packet.
        None => assert!(matches!(verdict, Verdict::Refused { .. }), "{verdict:?}"),
    }
}

/// One balancer alone; its backend goes, and with it the slot.
#[test]
fn a_slot_does_not_outlive_its_backend() {
    let mut rng = seeded();
    let layout = Layout::stateful();
    let config = ConnTableConfig {
        partitions: 1,
        slots: 1 << 15,
        bits: layout.back_bits(),
        opening_seconds: 10,
        idle_seconds: 300,
        linger_seconds: 10,
    };
    let mut slots = ConnTable::new(HashKey::from_seed(1), config).unwrap();
    let cheetah = Stateful::new(layout, *slots.key(), None, Forged::Schedule);
    let mut all = AllServers::new(10);
    let members = ["a", "b"].map(|name| member(name, all.join(name).unwrap(), Role::Serving));
    let both = Arc::new(ServiceServers::new(&all, &members).unwrap());
    let only_a = Arc::new(ServiceServers::new(&all, &members[..1]).unwrap());

    let flow = flow(&mut rng);
    let syn = Packet { flow, flags: TcpFlags::SYN, echo: Some(0) };
    let verdict = decide(&cheetah, &mut slots, &both, (&syn, 0), || None, |_| Some(1));
    let Verdict::First { backend: 1, cookie } = verdict else { panic!("{verdict:?}") };
    let echo = Repair::new(layout, 5).outgoing(5, cookie);
    let ack = Packet { flow, flags: TcpFlags::ACK, echo: Some(echo) };
    let later = |slots: &mut ConnTable, servers| {
        let first = |serving: &[u16]| serving.first().copied();
        decide(&cheetah, slots, servers, (&ack, 1), || None, first)
    };
    assert_eq!(later(&mut slots, &both), Verdict::Cookie { backend: 1 });
    assert_eq!(slots.len(), 1);
    let gone = Verdict::Astray { backend: 0, why: NoCookie::NotOurs };
    assert_eq!(later(&mut slots, &only_a), gone);
    assert!(slots.is_empty());
    let free = Verdict::Astray { backend: 0, why: NoCookie::NoSlot };
    assert_eq!(later(&mut slots, &both), free);
    slots.sweep(10, 2, |_| true);
}
