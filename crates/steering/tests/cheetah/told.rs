//! Backends that write the cookies themselves, and some that write none.

use super::{Packet, flow, member, seeded};
use rand::Rng;
use weir_hash::HashKey;
use weir_steering::cheetah::{AllServers, Forged, Layout, ServiceServers, Stateless, Table, told};
use weir_steering::{BackendId, Decide, Decision, Member, Role, SoftMemory, Why};
use weir_wire::{FlowKey, TcpFlags};

/// So many that one arbitrary upper half in 32 looks right.
const BACKENDS: u16 = 1_024;
const FLOWS: usize = 20_000;

fn members() -> Vec<Member> {
    (0..BACKENDS).map(|n| member(&format!("b{n}"), n, Role::Serving)).collect()
}

fn table(members: &[Member]) -> Table<Stateless> {
    let cheetah = Stateless::new(HashKey::from_seed(7), Layout::stateless(), Forged::Schedule);
    let mut all = AllServers::new(cheetah.codec().numbers());
    for one in members {
        all.join(&one.name).unwrap();
    }
    Table::new(cheetah.with_told(true), ServiceServers::new(&all, members).unwrap())
}

fn ask(
    table: &Table<Stateless>,
    memory: &mut SoftMemory,
    (flow, flags, echo): (FlowKey, TcpFlags, u32),
) -> Decision {
    let packet = Packet { flow, flags, echo: Some(echo) };
    table.decide(&packet.question(table, 0), memory)
}

fn memory() -> SoftMemory {
    let mut memory = SoftMemory::new(16, 16, 16);
    memory.incarnations.extend((0..BACKENDS).map(|backend| (BackendId::of(backend), 1)));
    memory
}

/// A SYN tells its cookie, also when it comes again; with it a packet finds home without any memory.
#[test]
fn a_syn_tells_its_cookie() {
    let (mut rng, mut memory, table) = (seeded(), memory(), table(&members()));
    for _ in 0..1_000 {
        let flow = flow(&mut rng);
        let first = ask(&table, &mut memory, (flow, TcpFlags::SYN, rng.random()));
        let (backend, cookie) = (first.backend.unwrap(), first.cookie.unwrap());
        assert_eq!((first.why, first.echo), (Why::Scheduled, Some(told(cookie))));
        let again = ask(&table, &mut memory, (flow, TcpFlags::SYN, 0));
        assert_eq!(again, first);
        let echo = u32::from(cookie) << 16 | rng.random::<u32>() & 0x8000_ffff;
        let later = ask(&table, &mut SoftMemory::default(), (flow, TcpFlags::ACK, echo));
        assert_eq!((later.backend, later.why, later.echo), (Ok(backend), Why::Cookie, None));
    }
    assert_eq!(memory.bare, 0);
    // One whose backend drains goes elsewhere, and says so.
    let flow = flow(&mut rng);
    let first = ask(&table, &mut memory, (flow, TcpFlags::SYN, 0));
    let mut members = members();
    members[usize::from(first.backend.unwrap().get())].role = Role::Draining;
    let drained = self::table(&members);
    let again = ask(&drained, &mut memory, (flow, TcpFlags::SYN, 0));
    assert_ne!(again.backend, first.backend);
    assert_eq!(again.echo, again.cookie.map(told));
}

/// All echo what they like: after the first that is found out, every flow stays where it began, however many
/// of their echoes look like good cookies.
#[test]
fn backends_without_an_agent_keep_their_connections() {
    let (mut rng, mut memory, table) = (seeded(), memory(), table(&members()));
    let mut homes = Vec::new();
    for _ in 0..FLOWS {
        let flow = flow(&mut rng);
        let first = ask(&table, &mut memory, (flow, TcpFlags::SYN, 0));
        homes.push((flow, first.backend.unwrap()));
    }
    let (mut astray, mut looked_right) = (0, 0);
    for (flow, home) in homes {
        for _ in 0..4 {
            let echo = rng.random();
            let known = memory.bare > 0;
            let decision = ask(&table, &mut memory, (flow, TcpFlags::ACK, echo));
            if decision.backend == Ok(home) {
                looked_right += u32::from(
                    ask(&table, &mut SoftMemory::default(), (flow, TcpFlags::ACK, echo)).why
                        == Why::Cookie,
                );
                continue;
            }
            assert!(!known, "{decision:?}");
            astray += 1;
        }
    }
    assert!(looked_right > 1_000, "{looked_right} echoes looked like cookies");
    assert!(astray < 10, "{astray} packets before the first that was found out");
    assert!(memory.bare > 1_000);
}
