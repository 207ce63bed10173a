//! Long random histories over the real tables, builder, coordinator and nodes of residue: every
//! packet of a live connection, at whichever balancer, must reach its backend; and without the
//! collection as many connections break as rows moved.
//!
//! A history is made of its seed: `WEIR_SEED=n cargo test` repeats one.

mod seed;
#[path = "residue_world/mod.rs"]
mod world;

use seed::seed;
use std::collections::HashMap;
use std::sync::Arc;
use weir_hash::HashKey;
use weir_steering::residue::{Residue, ResidueConfig, Table, rows_for};
use weir_steering::{BackendId, Member, Role, StateKey, Steer};
use world::{Kind, World};

fn kinds() -> impl Iterator<Item = Kind> {
    (0..8).map(|n| Kind { wide: n & 1 != 0, client: n & 2 != 0, udp: n & 4 != 0 })
}

fn nothing_breaks(balancers: u16, changes: u64) {
    let seed = seed();
    for kind in kinds() {
        let mut world = World::new(kind, balancers, 2_000, seed);
        world.fill(2_000);
        world.run(changes);
        let tally = &world.tally;
        println!("{kind:?}: {tally:?}");
        assert!(tally.packets > 10 * changes);
        assert_eq!(tally.violations, 0);
        if !kind.udp {
            assert_eq!(tally.held_of_live, 0, "packets of connections that exist are never held");
        }
        assert!(tally.most_exceptions > 100, "nothing was put to the test");
        world.empty();
        assert_eq!(world.residue.exceptions().len(), 0, "exceptions outlive their connections");
    }
}

#[test]
fn three_balancers_break_nothing() {
    nothing_breaks(3, 700);
}

#[test]
fn a_balancer_alone_breaks_nothing_and_holds_nothing() {
    nothing_breaks(1, 400);
}

/// Without the collection, the flows of the rows that moved break, and no others.
#[test]
fn a_deaf_control_plane_breaks_what_moved() {
    let kind = Kind { wide: false, client: false, udp: false };
    let mut world = World::new(kind, 2, 0, seed());
    world.fill(20_000);
    world.deaf = true;
    let mut members = world.members.clone();
    let before = world.residue.published().table.rows().to_vec();
    members.push(Member {
        backend: BackendId::of(9),
        name: "b9".into(),
        weight: 2,
        role: Role::Serving,
    });
    world.set_pool(members);
    let after = world.residue.published().table.rows().to_vec();
    let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count() as f64;
    let predicted = moved / before.len() as f64;
    world.every_flow_sends();
    // The traffic of the change itself has broken some already; all of them count.
    let share = world.tally.violations as f64 / 20_000.0;
    println!("{share:.4} of the flows break, {predicted:.4} of the rows moved");
    assert!((predicted - 1.0 / 6.0).abs() < 0.04);
    let band = 6.0 * (predicted * (1.0 - predicted) / 20_000.0).sqrt();
    assert!((share - predicted).abs() < band);
}

/// The same change with the collection leaves exactly the flows of the moved rows as exceptions;
/// when the backend goes again, the table points at their backends, and they are none any more.
#[test]
fn exceptions_are_what_moved_and_go_when_it_moves_back() {
    let kind = Kind { wide: true, client: false, udp: false };
    let mut world = World::new(kind, 2, 0, seed());
    world.fill(20_000);
    let five = world.members.clone();
    let mut six = five.clone();
    six.push(Member {
        backend: BackendId::of(9),
        name: "b9".into(),
        weight: 2,
        role: Role::Serving,
    });
    world.set_pool(six);
    let exceptions = world.residue.exceptions().len();
    // The traffic of the change has ended a few.
    assert!((0..50).contains(&(exceptions - world.live_exceptions())));
    let share = exceptions as f64 / world.live() as f64;
    assert!((share - 1.0 / 6.0).abs() < 0.04, "{share}");
    world.set_pool(five);
    assert_eq!(world.residue.exceptions().len(), 0);
    world.every_flow_sends();
    assert_eq!(world.tally.violations, 0);
}

/// One packet or a burst, narrow keys or wide ones: the answer of a map of the same flows.
#[test]
fn tables_are_exact() {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed());
    let rows: Arc<[u16]> = (0..5000).map(|row| row % 97).collect();
    for count in [0usize, 1, 7, 1000, 60_000] {
        let mut truth = HashMap::new();
        while truth.len() < count {
            let mut address = [0; 16];
            rng.fill(&mut address[12..]);
            match rng.random_bool(0.5) {
                true => address[10..12].copy_from_slice(&[0xff, 0xff]),
                false => rng.fill(&mut address[..8]),
            }
            let key = StateKey { address, src_port: rng.random(), dst_port: 443 };
            truth.insert(key, rng.random_range(100..200u16));
        }
        let entries: Vec<_> = truth.iter().map(|(key, at)| (*key, *at)).collect();
        let key = HashKey::from_seed(rng.random());
        let mut table = Table::new(key, rows.clone(), &entries, 1).unwrap();
        let mut flows: Vec<StateKey> = truth.keys().copied().collect();
        let strangers = flows.iter().map(|flow| StateKey { dst_port: 80, ..*flow });
        let strangers: Vec<_> = strangers.collect();
        flows.extend(strangers);
        // In the worst case every row has exceptions; then a stranger finds both of its bits set
        // in 3.5 % of the cases.
        let spared = flows[count..].iter().filter(|flow| table.is_unflagged(flow)).count();
        assert!(spared as f64 >= 0.95 * count as f64, "{spared} of {count} strangers are spared");
        let clean = flows[count..].iter().filter(|flow| table.is_clean(flow)).count();
        let expected = count as f64 * (-(count as f64) / 5000.0).exp();
        // Strangers and exceptions stand in rows that are independent of each other.
        assert!((clean as f64 - expected).abs() < 0.1 * count as f64 + 6.0, "{clean} clean");
        let mut out = vec![0; flows.len()];
        table.steer_batch(&flows, &mut out);
        for (flow, out) in flows.iter().zip(&out) {
            assert_eq!(*out, table.steer(flow));
            assert!(truth.get(flow).is_none_or(|at| at == out));
            assert_eq!(truth.contains_key(flow), *out >= 100);
        }
        if count >= 1000 {
            let each = table.exception_bytes() as f64 / count as f64;
            println!("{count} exceptions, half of them wide: {each:.1} bytes each with flags");
        }
        let mut shuffled = entries.clone();
        shuffled.reverse();
        let twin = Table::new(key, rows.clone(), &shuffled, 2).unwrap();
        assert_eq!(twin.digest(), table.digest(), "equal tables, equal digests");
    }
}

fn pool(weights: &[u32]) -> Vec<Member> {
    let member = |(at, &weight): (usize, &u32)| Member {
        backend: BackendId::of(at as u16),
        name: format!("b{at}"),
        weight,
        role: Role::Serving,
    };
    weights.iter().enumerate().map(member).collect()
}

/// Very uneven weights ask for more rows, and then each backend has its share within what a
/// binomial of its rows allows.
#[test]
fn uneven_weights_get_their_rows() {
    assert_eq!(rows_for(&pool(&[1; 468])), 1 << 16);
    let members = pool(&[1, 10, 100, 1000]);
    let rows = rows_for(&members);
    assert_eq!(rows, 1 << 17);
    let residue = Residue::<u64>::new(ResidueConfig { rows, seed: seed() }, &members).unwrap();
    assert!(residue.coarse(100.0).is_empty());
    for member in &members {
        let table = residue.published().table.rows();
        let held = table.iter().filter(|&&at| at == member.backend.get()).count() as f64;
        let expected = f64::from(rows) * f64::from(member.weight) / 1111.0;
        assert!((held - expected).abs() < 6.0 * expected.sqrt(), "{held} rows for {expected}");
    }
    let members = pool(&[1, 1_000_000]);
    assert_eq!(rows_for(&members), 1 << 22);
    let config = ResidueConfig { rows: 1 << 16, seed: 1 };
    let residue = Residue::<u64>::new(config, &members).unwrap();
    assert_eq!(residue.coarse(100.0).len(), 1, "the small one is known to be coarse");
}
