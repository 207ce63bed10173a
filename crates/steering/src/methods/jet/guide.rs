//! Which packets have to ask the connection table.
//!
//! Algorithm 1 asks it for every packet, because a flow that is safe now may be in it: it was
//! unsafe once, was tracked, and the backend that the placement names today is another one. Such
//! an entry is called a *stray*. A guide asks the placement first, and knows, a little too
//! generously, where strays can be; all other safe packets have their answer already.

use crate::table::{NO_BACKEND, SLOT_BACKEND};
use weir_hash::scale;
use weir_placement::{Horizon, HrwTable, NONE, PoolError, Verdict};

use super::JetError;

/// Packets that are worked on together: enough for the few among them that ask the connection
/// table to hide each other's cache misses.
pub const BURST: usize = 256;

/// The packets of a burst that must ask the connection table, by position.
#[derive(Debug)]
pub struct Asks {
    positions: [u8; BURST],
    count: usize,
}

impl Default for Asks {
    fn default() -> Self {
        Self { positions: [0; BURST], count: 0 }
    }
}

impl Asks {
    /// Notes a position if it asks. No branch: whether it does cannot be predicted.
    #[inline(always)]
    pub fn push_if(&mut self, position: usize, ask: bool) {
        self.positions[self.count & (BURST - 1)] = position as u8;
        self.count += usize::from(ask);
    }

    /// The positions that were noted, in order.
    #[inline(always)]
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.positions.iter().take(self.count).map(|&position| usize::from(position))
    }
}

/// A placement with marks where strays may be.
///
/// The promise: a flow that is in the connection table either is unsafe, or is told to ask.
pub trait Guide {
    /// What it guides over.
    type Placement: Horizon;

    /// The placement without its marks.
    fn placement(&self) -> &Self::Placement;

    /// Changes the placement. `joined`: the backend that gets flows by the change, if it is one.
    ///
    /// # Errors
    ///
    /// Those of the change; nothing has changed then.
    fn change(
        &mut self,
        joined: Option<u16>,
        change: impl FnOnce(&mut Self::Placement) -> Result<(), PoolError>,
    ) -> Result<(), PoolError>;

    /// Where a flow that is not in the connection table goes ([`NO_BACKEND`]: nowhere), and
    /// whether it may be there.
    fn guide(&self, hash: u64) -> (u16, bool);

    /// The same for a burst, at most [`BURST`] packets; who must ask goes to `asks`.
    fn guide_batch(&self, hashes: &[u64], out: &mut [u16], asks: &mut Asks);

    /// A flow that is safe at `backend` is in the connection table.
    fn mark(&mut self, hash: u64, backend: u16);

    /// Forgets all marks. The caller marks all strays that are left.
    fn clear_marks(&mut self);

    /// Bytes that packets read, apart from the placement's own.
    fn bytes(&self) -> usize;
}

/// Marks by backend: the safe flows that the placement sends *here* may be in the table.
///
/// Why marking the backend that joins is enough: docs/jet.md, "Where strays can be".
#[derive(Clone, Debug)]
pub struct ByBackend<P> {
    placement: P,
    marks: Vec<u64>,
}

impl<P: Horizon> ByBackend<P> {
    pub(super) fn new(placement: P) -> Self {
        Self { placement, marks: vec![0; (usize::from(NONE) + 1) / 64] }
    }

    #[inline(always)]
    fn judge(&self, verdict: Option<Verdict>) -> (u16, bool) {
        let Some(Verdict { backend, may_differ }) = verdict else {
            return (NO_BACKEND, true);
        };
        let mark = self.marks[usize::from(backend) / 64] >> (backend % 64) & 1;
        (backend, may_differ | (mark != 0))
    }
}

impl<P: Horizon> Guide for ByBackend<P> {
    type Placement = P;

    fn placement(&self) -> &P {
        &self.placement
    }

    fn change(
        &mut self,
        joined: Option<u16>,
        change: impl FnOnce(&mut P) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        change(&mut self.placement)?;
        if let Some(backend) = joined {
            self.mark(0, backend);
        }
        Ok(())
    }

    #[inline(always)]
    fn guide(&self, hash: u64) -> (u16, bool) {
        self.judge(self.placement.verdict(hash))
    }

    #[inline(always)]
    fn guide_batch(&self, hashes: &[u64], out: &mut [u16], asks: &mut Asks) {
        let mut verdicts = [None; BURST];
        let verdicts = &mut verdicts[..hashes.len()];
        self.placement.verdict_batch(hashes, verdicts);
        for (i, (out, verdict)) in out.iter_mut().zip(verdicts).enumerate() {
            let (backend, ask) = self.judge(*verdict);
            *out = backend;
            asks.push_if(i, ask);
        }
    }

    fn mark(&mut self, _hash: u64, backend: u16) {
        self.marks[usize::from(backend) / 64] |= 1 << (backend % 64);
    }

    fn clear_marks(&mut self) {
        self.marks.fill(0);
    }

    fn bytes(&self) -> usize {
        self.marks.len() * 8
    }
}

/// Marks by row of a [`HrwTable`], in a copy of the table: two bytes per row, the backend and in
/// the highest bit "ask". A packet of a clean row costs this one read.
///
/// A row is marked if it is unsafe, has been at any time since the marks were cleared, or had a
/// stray then: what is in the table was put there while its row was one of these.
#[derive(Clone, Debug)]
pub struct ByRow {
    table: HrwTable,
    /// CH(W) and the mark of each row.
    packed: Vec<u16>,
    /// Rows with strays when the marks were cleared, or that were marked since.
    strays: Vec<u64>,
}

/// The mark of a row.
const ASK: u16 = !SLOT_BACKEND;

impl ByRow {
    pub(super) fn new(table: HrwTable) -> Result<Self, JetError> {
        let holders = table.rows().iter().chain(table.rows_all());
        if let Some(&backend) = holders.clone().find(|&&b| b != NONE && b >= NO_BACKEND) {
            return Err(JetError::BackendNumber(backend));
        }
        let packed = vec![NO_BACKEND; table.rows().len()];
        let strays = vec![0; table.was_unsafe().len()];
        let mut guide = Self { table, packed, strays };
        guide.pack();
        Ok(guide)
    }

    /// The part of the rows whose packets ask, from 0 to 1.
    pub fn asking(&self) -> f64 {
        let asking = self.packed.iter().filter(|&&entry| entry & ASK != 0).count();
        asking as f64 / self.packed.len() as f64
    }

    fn pack(&mut self) {
        let marks = self.table.was_unsafe().iter().zip(&self.strays);
        let words = self.packed.chunks_mut(64).zip(self.table.rows().chunks(64)).zip(marks);
        for ((packed, holders), (was_unsafe, strays)) in words {
            for (bit, (packed, &holder)) in packed.iter_mut().zip(holders).enumerate() {
                let mark = (was_unsafe | strays) >> bit & 1 != 0;
                *packed = holder & SLOT_BACKEND | if mark { ASK } else { 0 };
            }
        }
    }

    #[inline(always)]
    fn row(&self, hash: u64) -> usize {
        scale(hash as u32, self.packed.len() as u32) as usize
    }
}

impl Guide for ByRow {
    type Placement = HrwTable;

    fn placement(&self) -> &HrwTable {
        &self.table
    }

    fn change(
        &mut self,
        _joined: Option<u16>,
        change: impl FnOnce(&mut HrwTable) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        change(&mut self.table)?;
        self.pack();
        Ok(())
    }

    #[inline(always)]
    fn guide(&self, hash: u64) -> (u16, bool) {
        let entry = self.packed[self.row(hash)];
        (entry & SLOT_BACKEND, entry & ASK != 0)
    }

    #[inline(always)]
    fn guide_batch(&self, hashes: &[u64], out: &mut [u16], asks: &mut Asks) {
        for (i, (out, &hash)) in out.iter_mut().zip(hashes).enumerate() {
            let (backend, ask) = self.guide(hash);
            *out = backend;
            asks.push_if(i, ask);
        }
    }

    fn mark(&mut self, hash: u64, _backend: u16) {
        let row = self.row(hash);
        self.strays[row / 64] |= 1 << (row % 64);
        self.packed[row] |= ASK;
    }

    fn clear_marks(&mut self) {
        self.table.forget_unsafe();
        self.strays.fill(0);
        self.pack();
    }

    fn bytes(&self) -> usize {
        self.packed.len() * 2
    }
}
