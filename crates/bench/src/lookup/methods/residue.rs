//! residue with exact exceptions (docs/residue.md).

use super::Ready;
use super::baselines::filled;
use crate::Result;
use crate::lookup::bound::Reads;
use crate::lookup::subject::{Mailbox, Shared, share};
use crate::lookup::world::{Control, Pool, World};
use std::sync::Arc;
use weir_hash::HashKey;
use weir_placement::{HrwTable, Incremental};
use weir_steering::NO_BACKEND;
use weir_steering::residue::{Leftovers, Table};

/// Rows: what a service gets that has no very uneven weights.
const ROWS: u32 = 1 << 16;

pub fn exact(world: &World) -> Result<Ready> {
    let key = HashKey::from_seed(world.seed);
    let rows = filled(HrwTable::new(ROWS)?, &world.pool())?;
    let mut method = Table::new(key, column(&rows), &[], 1)?;
    // Exceptions are what the published workload leaves behind at 10 updates a minute, and live at
    // the backend after the row's.
    let left = Leftovers::new(world.states, world.seed);
    let (mut owners, mut entries) = (Vec::with_capacity(world.states), Vec::new());
    for (number, flow) in (0..).zip(world.all_keys()) {
        let mut owner = method.lookup(&flow);
        if left.has(number, method.row(&flow)) {
            owner = (owner + 1) % world.backends;
            entries.push((flow, owner));
        }
        owners.push(owner);
    }
    method = Table::new(key, column(&rows), &entries, 2)?;
    let reads = Reads::one(method.row_bytes());
    let readers: Vec<_> = (0..world.threads).map(|_| Shared::alone(method.clone())).collect();
    let mailboxes = readers.iter().map(Shared::mailbox).collect();
    let control = Commits { key, rows, entries, pool: world.pool(), generation: 2, mailboxes };
    Ok(Ready {
        readers: share(readers),
        owners,
        control: Box::new(control),
        // Of a packet of a row without exceptions.
        reads,
        more_bytes: 0,
        sharded: false,
        tolerated: 0.0,
    })
}

fn column(rows: &HrwTable) -> Arc<[u16]> {
    rows.rows().iter().map(|&backend| backend.min(NO_BACKEND)).collect()
}

/// Commits a table at each change, with as many exceptions as before: what the change leaves
/// behind and what has ended are taken to balance.
struct Commits {
    key: HashKey,
    rows: HrwTable,
    entries: Vec<(u64, u16)>,
    pool: Pool,
    generation: u64,
    mailboxes: Vec<Arc<Mailbox<Table<u64>>>>,
}

impl Control for Commits {
    fn change(&mut self) -> Result<()> {
        for (backend, weight) in self.pool.turn() {
            self.rows.reweight(backend, weight)?;
        }
        self.generation += 1;
        let table = Table::new(self.key, column(&self.rows), &self.entries, self.generation)?;
        for mailbox in &self.mailboxes {
            let table = table.clone();
            mailbox.leave(move |method| *method = table);
        }
        Ok(())
    }
}
