//! The baselines (docs/baselines.md).

use super::Ready;
use crate::Result;
use crate::error::ensure;
use crate::lookup::bound::Reads;
use crate::lookup::subject::{Mailbox, Shared, share};
use crate::lookup::world::{Control, Pool, World};
use std::sync::Arc;
use weir_lookup::{DigestCuckoo, MultiDigest};
use weir_placement::{Anchor, HrwTable, Incremental, Maglev, Ring};
use weir_steering::Steer;
use weir_steering::baseline::{Chain, ConnTable, Consistent, Digests, Ecmp, Footprint};

/// Slots of a Maglev table, rows of a table and buckets of a chain: 655 for each of 100 backends.
const ROWS: u32 = 65_537;

/// A ring of 160 points per backend, as is usual (ketama).
const COPIES: u32 = 160;

/// The control plane of a method that is small: it changes its own and gives each reader a copy.
struct Copies<S, F> {
    method: S,
    pool: Pool,
    change: F,
    mailboxes: Vec<Arc<Mailbox<S>>>,
}

impl<S, F> Control for Copies<S, F>
where
    S: Clone + Send + 'static,
    F: FnMut(&mut S, &Pool, [(u16, u32); 2]) -> Result<()> + Send,
{
    fn change(&mut self) -> Result<()> {
        let moved = self.pool.turn();
        (self.change)(&mut self.method, &self.pool, moved)?;
        for mailbox in &self.mailboxes {
            let copy = self.method.clone();
            mailbox.leave(move |method| *method = copy);
        }
        Ok(())
    }
}

/// A method without a memory: flows live where it puts them.
fn memoryless<S: Steer<u64> + Clone + Send + 'static>(
    world: &World,
    mut method: S,
    reads: Reads,
    change: impl FnMut(&mut S, &Pool, [(u16, u32); 2]) -> Result<()> + Send + 'static,
) -> Result<Ready> {
    let owners = world.all_keys().map(|key| method.steer(&key)).collect();
    let readers: Vec<_> = (0..world.threads).map(|_| Shared::alone(method.clone())).collect();
    let mailboxes = readers.iter().map(Shared::mailbox).collect();
    let control = Copies { method, pool: world.pool(), change, mailboxes };
    Ok(Ready {
        readers: share(readers),
        owners,
        control: Box::new(control),
        reads,
        more_bytes: 0,
        sharded: false,
        tolerated: 0.0,
    })
}

pub fn ecmp(world: &World) -> Result<Ready> {
    let mut ecmp = Ecmp::new(world.seed);
    world.pool().with_candidates(|pool| ecmp.set_pool(pool));
    let reads = Reads::one(Steer::<u64>::bytes(&ecmp));
    memoryless(world, ecmp, reads, |ecmp, pool, _| {
        pool.with_candidates(|pool| ecmp.set_pool(pool));
        Ok(())
    })
}

pub fn maglev(world: &World) -> Result<Ready> {
    let seed = world.seed;
    let build = move |pool: &Pool| pool.with_candidates(|pool| Maglev::build(ROWS, pool));
    let method = Consistent::new(build(&world.pool())?, seed);
    let reads = Reads::one(method.placement().footprint());
    memoryless(world, method, reads, move |method, pool, _| {
        *method.placement_mut() = build(pool)?;
        Ok(())
    })
}

/// A placement that follows changes, with the pool of a world.
pub fn filled<P: Incremental>(mut placement: P, pool: &Pool) -> Result<P> {
    pool.with_candidates(|pool| placement.add_all(pool))?;
    Ok(placement)
}

fn incremental<P>(world: &World, placement: P, reads: impl FnOnce(&P) -> Reads) -> Result<Ready>
where
    P: Incremental + Footprint + Clone + Send + 'static,
{
    let method = Consistent::new(filled(placement, &world.pool())?, world.seed);
    let reads = reads(method.placement());
    memoryless(world, method, reads, |method, _, moved| {
        for (backend, weight) in moved {
            method.placement_mut().reweight(backend, weight)?;
        }
        Ok(())
    })
}

pub fn hrw_table(world: &World) -> Result<Ready> {
    incremental(world, HrwTable::new(ROWS)?, |table| Reads::one(table.footprint()))
}

pub fn ring(world: &World) -> Result<Ready> {
    // The jump table tells where the points are.
    incremental(world, Ring::new(COPIES)?, |ring| {
        let points = ring.points() * 16;
        let jumps = ring.footprint().saturating_sub(points);
        Reads { first: 1, bytes: jumps, then: Some(points) }
    })
}

pub fn anchor(world: &World) -> Result<Ready> {
    // A bucket that works needs its A and its owner.
    let capacity = 2 * (u32::from(world.backends) + 1);
    incremental(world, Anchor::new(capacity)?, |anchor| {
        let buckets = anchor.capacity() as usize;
        Reads { first: 1, bytes: buckets * 4, then: Some(buckets * 2) }
    })
}

pub fn chain(world: &World) -> Result<Ready> {
    let mut table = filled(HrwTable::new(ROWS)?, &world.pool())?;
    let mut chain = Chain::new(ROWS as usize, world.seed);
    chain.assign(table.rows(), 0);
    let reads = Reads::one(Steer::<u64>::bytes(&chain));
    let mut now = 0;
    memoryless(world, chain, reads, move |chain, _, moved| {
        for (backend, weight) in moved {
            table.reweight(backend, weight)?;
        }
        now += 1;
        chain.assign(table.rows(), now);
        Ok(())
    })
}

pub fn digest<const SLOTS: usize>(world: &World) -> Result<Ready> {
    let table = |capacity| DigestCuckoo::<SLOTS>::with_digest_bits(capacity, 64, world.seed);
    tracking(world, table, 0.0)
}

pub fn multi_digest(world: &World) -> Result<Ready> {
    // docs/digest.md: 1 flow in 5,000 gets another's backend, and 1 new one in 1,900; twice that.
    tracking(world, |capacity| MultiDigest::new(capacity, world.seed), 1.5e-3)
}

/// Tables of digests: each reader's flows come as packets, as they do in a real balancer.
fn tracking<T: Digests + Send + 'static>(
    world: &World,
    table: impl Fn(usize) -> T,
    tolerated: f64,
) -> Result<Ready> {
    let (mut owners, mut readers, mut bytes) = (Vec::with_capacity(world.states), vec![], 0);
    for thread in 0..world.threads {
        let mut method = ConnTable::new(table(world.part(thread).len()), ROWS, world.seed)?;
        world.first_pool().with_candidates(|pool| method.set_pool(pool))?;
        owners.extend(world.keys(thread).map(|key| method.steer(&key)));
        world.pool().with_candidates(|pool| method.set_pool(pool))?;
        ensure!(method.refused() == 0, "a table of digests is full");
        bytes += method.table().bytes();
        readers.push(Shared::alone(method));
    }
    let mailboxes = readers.iter().map(Shared::mailbox).collect();
    Ok(Ready {
        readers: share(readers),
        owners,
        control: Box::new(MaglevTables { pool: world.pool(), mailboxes }),
        // A lookup that finds its flow in the first bucket.
        reads: Reads::one(bytes),
        more_bytes: 0,
        sharded: true,
        tolerated,
    })
}

/// The control plane of connection tables: new flows are the packets' affair, so it only builds
/// the Maglev table for them.
struct MaglevTables<T> {
    pool: Pool,
    mailboxes: Vec<Arc<Mailbox<ConnTable<T>>>>,
}

impl<T: Digests + Send + 'static> Control for MaglevTables<T> {
    fn change(&mut self) -> Result<()> {
        self.pool.turn();
        let placement = self.pool.with_candidates(|pool| Maglev::build(ROWS, pool))?;
        let members: Vec<u16> = (0..self.pool.weights.len() as u16).collect();
        for mailbox in &self.mailboxes {
            let (placement, members) = (placement.clone(), members.clone());
            mailbox.leave(move |method| method.adopt(placement, &members));
        }
        Ok(())
    }
}
