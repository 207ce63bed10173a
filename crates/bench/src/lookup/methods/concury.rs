//! Concury with either codec (docs/concury.md).

use super::Ready;
use crate::Result;
use crate::lookup::bound::Reads;
use crate::lookup::subject::{Mailbox, Shared, share};
use crate::lookup::world::{Control, Pool, World};
use std::sync::Arc;
use weir_hash::HashKey;
use weir_placement::Maglev;
use weir_steering::{BackendId, Codec, Concury, ConcuryConfig, Forwarder, Steer};

/// Bits of a Dcode.
const BITS: u32 = 12;

/// Each backend needs a Dcode.
pub const MOST_BACKENDS: u16 = 1 << BITS;

/// Seconds between two changes, by the control plane's clock: longer than it keeps a flow that has
/// ended, so that each change finds the states of the live flows.
const STEP: u32 = 100;

pub fn othello(world: &World) -> Result<Ready> {
    ready(world, Codec::Othello, 2)
}

pub fn fuse(world: &World) -> Result<Ready> {
    ready(world, Codec::Fuse, 3)
}

fn ready(world: &World, codec: Codec, cells: usize) -> Result<Ready> {
    // Where flows begin does not matter to it: any placement of the first pool.
    let placement = world.first_pool().with_candidates(|pool| Maglev::build(65_537, pool))?;
    let spread = HashKey::from_seed(world.seed);
    let owner = |key: u64| placement.lookup(spread.hash_word(key)).unwrap_or(0);
    let owners: Vec<u16> = world.all_keys().map(owner).collect();
    let pool = world.pool();
    let config = ConcuryConfig::unbounded(codec, BITS, world.seed);
    let states = world.all_keys().zip(owners.iter().copied().map(BackendId::of));
    let (concury, forwarder) = Forwarder::build(config, &pool.members(), states)?;
    let bytes = forwarder.bytes();
    let dips = size_of_val(forwarder.image().slots());
    let readers: Vec<_> = (0..world.threads).map(|_| Shared::alone(forwarder.clone())).collect();
    let mailboxes = readers.iter().map(Shared::mailbox).collect();
    let control = Updates { concury, latest: forwarder, pool, mailboxes, generation: 1 };
    Ok(Ready {
        readers: share(readers),
        owners,
        control: Box::new(control),
        reads: Reads { first: cells, bytes: bytes.saturating_sub(dips), then: Some(dips) },
        more_bytes: 0,
        sharded: false,
        tolerated: 0.0,
    })
}

/// Learns of every flow that begins or ends, and builds a table when the pool changes.
struct Updates {
    concury: Concury<u64>,
    latest: Forwarder<u64>,
    pool: Pool,
    mailboxes: Vec<Arc<Mailbox<Forwarder<u64>>>>,
    generation: u64,
}

impl Updates {
    fn now(&self) -> u32 {
        self.generation as u32 * STEP
    }
}

impl Control for Updates {
    fn turnover(&mut self, old: u64, new: u64) -> Result<()> {
        let now = self.now();
        self.concury.end(&old, now);
        self.concury.start(new, BackendId::of(self.latest.steer(&new)), now)?;
        Ok(())
    }

    fn change(&mut self) -> Result<()> {
        self.generation += 1;
        self.pool.turn();
        let now = self.now();
        self.concury.sweep(now, |_| false);
        let (image, _) = self.concury.build(self.generation, &self.pool.members(), now)?;
        self.latest.publish(image.clone())?;
        for mailbox in &self.mailboxes {
            let image = image.clone();
            mailbox.leave(move |forwarder| {
                // It was taken above, so it is one of Concury's.
                let taken = forwarder.publish(image);
                debug_assert!(taken.is_ok());
            });
        }
        Ok(())
    }
}
