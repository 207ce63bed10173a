//! JET and full tracking with exact connection tables (docs/jet.md).

use super::Ready;
use super::baselines::filled;
use crate::Result;
use crate::lookup::bound::Reads;
use crate::lookup::subject::{Mailbox, Shared, share};
use crate::lookup::world::{Control, Pool, World, name};
use std::sync::Arc;
use std::time::Duration;
use weir_hash::HashKey;
use weir_placement::{Anchor, Candidate, Horizon, Hrw, HrwTable, Incremental, Ring};
use weir_steering::baseline::Footprint;
use weir_steering::jet::{FullTracking, Guide, Jet, JetTable};
use weir_steering::{ConnectionTable, Steer, Unbounded};

const ROWS: u32 = 65_537;
const COPIES: u32 = 160;

type Connections = Unbounded<u64>;

/// The pool, and a tenth of it on the horizon.
fn foreseen<P: Horizon>(placement: P, world: &World) -> Result<P> {
    let mut placement = filled(placement, &world.pool())?;
    let names: Vec<(u16, String)> =
        expected(world).map(|backend| (backend, name(usize::from(backend)))).collect();
    let candidates: Vec<Candidate<'_>> = names
        .iter()
        .map(|(backend, name)| Candidate { name, backend: *backend, weight: 1 })
        .collect();
    placement.add_all_horizon(&candidates)?;
    Ok(placement)
}

fn expected(world: &World) -> std::ops::Range<u16> {
    world.backends..world.backends + world.horizon()
}

/// A table for the flows that are tracked, so large that it need not grow.
fn connections(world: &World, thread: usize, share: f64) -> Connections {
    let flows = world.part(thread).len() as f64 * share;
    Unbounded::with_capacity(HashKey::from_seed(world.seed), (flows * 1.05) as usize + 16)
}

fn share_of_horizon(world: &World) -> f64 {
    f64::from(world.horizon()) / f64::from(world.backends + world.horizon())
}

pub fn table(world: &World) -> Result<Ready> {
    let placement = foreseen(HrwTable::new(ROWS)?, world)?;
    // A packet reads the rows' copy with the marks, nothing of the placement.
    jet(world, 0, |table| Ok(JetTable::by_row(placement.clone(), table, Duration::ZERO)?))
}

pub fn ring(world: &World) -> Result<Ready> {
    by_backend(world, Ring::new(COPIES)?, Footprint::footprint)
}

pub fn anchor(world: &World) -> Result<Ready> {
    by_backend(
        world,
        Anchor::new(2 * u32::from(world.backends + world.horizon()))?,
        Footprint::footprint,
    )
}

pub fn hrw(world: &World) -> Result<Ready> {
    // A packet reads every member: a seed and the reciprocal of a weight at least.
    let members = 16 * usize::from(world.backends + world.horizon());
    by_backend(world, Hrw::new(), move |_| members)
}

fn by_backend<P>(world: &World, placement: P, bytes: impl FnOnce(&P) -> usize) -> Result<Ready>
where
    P: Horizon + Clone + Send + 'static,
{
    let placement = foreseen(placement, world)?;
    jet(world, bytes(&placement), |table| Ok(Jet::new(placement.clone(), table, Duration::ZERO)))
}

/// Each reader's flows have sent their first packets, so those that a change of the horizon would
/// move are tracked.
fn jet<G>(
    world: &World,
    placement_bytes: usize,
    make: impl Fn(Connections) -> Result<Jet<G, Connections>>,
) -> Result<Ready>
where
    G: Guide + Send + 'static,
{
    let (mut owners, mut readers, mut guide) = (Vec::with_capacity(world.states), vec![], 0);
    for thread in 0..world.threads {
        let mut method = make(connections(world, thread, share_of_horizon(world)))?;
        owners.extend(world.keys(thread).map(|key| method.steer(&key)));
        guide = method.bytes() - method.connections().bytes();
        readers.push(Shared::alone(method));
    }
    let mailboxes = readers.iter().map(Shared::mailbox).collect();
    Ok(Ready {
        readers: share(readers),
        owners,
        control: Box::new(Arrivals { backend: world.backends, joined: false, mailboxes }),
        // Of a packet that need not look into the connection table.
        reads: Reads::one(guide + placement_bytes),
        more_bytes: placement_bytes,
        sharded: true,
        tolerated: 0.0,
    })
}

/// The pool changes as JET foresees it: a backend of the horizon joins, and leaves again. The
/// packets' thread makes the change, because the connection table is its own.
struct Arrivals<S> {
    backend: u16,
    joined: bool,
    mailboxes: Vec<Arc<Mailbox<S>>>,
}

impl<G: Guide + Send + 'static> Control for Arrivals<Jet<G, Connections>> {
    fn change(&mut self) -> Result<()> {
        let (backend, joined) = (self.backend, self.joined);
        for mailbox in &self.mailboxes {
            mailbox.leave(move |jet| {
                let made = match joined {
                    true => jet.retire(backend).map(|_| ()),
                    false => jet.admit(backend, Duration::ZERO),
                };
                debug_assert!(made.is_ok(), "the pools differ");
            });
        }
        self.joined = !joined;
        Ok(())
    }
}

pub fn full_tracking(world: &World) -> Result<Ready> {
    let (first, pool) = (world.first_pool(), world.pool());
    let placement = filled(HrwTable::new(ROWS)?, &first)?;
    let mut last = placement.clone();
    for (backend, (&before, &now)) in first.weights.iter().zip(&pool.weights).enumerate() {
        if before != now {
            last.reweight(backend as u16, now)?;
        }
    }
    let last_bytes = last.footprint();
    let (mut owners, mut readers, mut bytes) = (Vec::with_capacity(world.states), vec![], 0);
    for thread in 0..world.threads {
        let mut method = FullTracking::new(placement.clone(), connections(world, thread, 1.0));
        owners.extend(world.keys(thread).map(|key| method.steer(&key)));
        *method.placement_mut() = last.clone();
        bytes += method.connections().bytes();
        readers.push(Shared::alone(method));
    }
    let mailboxes = readers.iter().map(Shared::mailbox).collect();
    Ok(Ready {
        readers: share(readers),
        owners,
        control: Box::new(Placements { placement: last, pool, mailboxes }),
        reads: Reads::one(bytes),
        more_bytes: last_bytes,
        sharded: true,
        tolerated: 0.0,
    })
}

type Tracking = FullTracking<HrwTable, Connections>;

/// Builds the placement of new flows; the connections are the packets' affair.
struct Placements {
    placement: HrwTable,
    pool: Pool,
    mailboxes: Vec<Arc<Mailbox<Tracking>>>,
}

impl Control for Placements {
    fn change(&mut self) -> Result<()> {
        for (backend, weight) in self.pool.turn() {
            self.placement.reweight(backend, weight)?;
        }
        for mailbox in &self.mailboxes {
            let placement = self.placement.clone();
            mailbox.leave(move |method| *method.placement_mut() = placement);
        }
        Ok(())
    }
}
