//! What balancers are told and what they answer.

use std::sync::Arc;

/// A set of table rows: the rows in which two tables differ.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct RowSet {
    words: Arc<[u64]>,
}

impl RowSet {
    /// The rows below `rows` for which `contains` says so.
    pub fn of(rows: usize, contains: impl Fn(usize) -> bool) -> Self {
        let word = |at: usize| {
            (0..64usize.min(rows - at * 64))
                .fold(0, |word, bit| word | u64::from(contains(at * 64 + bit)) << bit)
        };
        Self { words: (0..rows.div_ceil(64)).map(word).collect() }
    }

    /// The rows in which two columns of one length differ.
    pub fn differing(before: &[u16], after: &[u16]) -> Self {
        Self::of(before.len(), |row| before[row] != after[row])
    }

    /// Whether a row is in the set.
    #[inline]
    pub fn contains(&self, row: u32) -> bool {
        self.words.get(row as usize / 64).is_some_and(|word| word >> (row % 64) & 1 != 0)
    }

    /// Number of rows in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no row is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}

/// A published table as the protocol sees it: where packets of a flow go.
pub trait Routes<K> {
    /// The row of a flow, by its hash.
    fn row(&self, flow: &K) -> u32;
    /// The backend that the row points at.
    fn points_at(&self, flow: &K) -> u16;
    /// The backend of a flow that lives elsewhere than its row points.
    fn exception(&self, flow: &K) -> Option<u16>;
    /// Counts the tables of a service.
    fn generation(&self) -> u64;

    /// Where packets of the flow go.
    fn route(&self, flow: &K) -> u16 {
        self.exception(flow).unwrap_or_else(|| self.points_at(flow))
    }
}

/// An order to a balancer. Orders of one epoch are numbered from 0; a balancer carries out the
/// next one of its epoch, or the first one of a later epoch, and repeats its answer to the last.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Order<T> {
    /// Which attempt at a change. A later one makes all orders of earlier ones void.
    pub epoch: u64,
    /// Which order of the epoch.
    pub step: u32,
    /// Which incarnation of the balancer it is meant for; any one may be asked to report.
    pub incarnation: u32,
    /// What the balancer has to do.
    pub work: Work<T>,
}

/// What a balancer is ordered to do.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Work<T> {
    /// Say which table you have: the coordinator has restarted. Changes nothing else.
    Report,
    /// *Record.* Route by `base` (which you have, unless you join, or a backend died), and note
    /// the flows that start in `rows`.
    Open {
        /// The table in force.
        base: T,
        /// The rows that the change moves.
        rows: RowSet,
        /// Backends that have died: their pending flows are to be forgotten.
        dead: Vec<u16>,
    },
    /// Say which flows are pending.
    Gather,
    /// Keep the next table beside the present one.
    Prepare {
        /// The next table, without the flows that have started since it was collected.
        next: T,
        /// Under [`Window::Hold`](super::Window::Hold): from now on, drop what cannot be decided.
        hold: bool,
    },
    /// Start no flow in the open rows until [`Work::Stop`]; say which flows are pending.
    Freeze,
    /// *Commit.* Route by `next`.
    Commit {
        /// The table to publish, those flows included.
        next: T,
        /// The rows that the change moves.
        rows: RowSet,
        /// Under [`Window::Freeze`](super::Window::Freeze): start no flow there yet.
        freeze: bool,
        /// As in [`Work::Open`].
        dead: Vec<u16>,
    },
    /// Note no more flows; flows may start again.
    Stop,
    /// Forget the pending flows and the rows.
    Clear,
}

/// A balancer's answer: the order has been carried out, and a grace period has passed since.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Answer<K, T> {
    /// Epoch of the order.
    pub epoch: u64,
    /// Number of the order that is answered.
    pub step: u32,
    /// Which incarnation of the balancer answers.
    pub incarnation: u32,
    /// To [`Work::Gather`] and [`Work::Freeze`]: the pending flows with their backends.
    pub pending: Vec<(K, u16)>,
    /// To [`Work::Report`]: the table in force and the open rows, if the balancer has a table.
    pub state: Option<(T, RowSet)>,
}
