//! What has happened to connections lately, numbered: so much of it as there is room for. Every session reads
//! on from where it was; one that has fallen behind further than that lists all connections anew. So however
//! long a balancer is away, and whatever happens meanwhile, it takes no more memory.

use std::collections::VecDeque;
use std::net::IpAddr;
use weir_rpc::message::Kind;

/// What has become of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Change {
    pub kind: Kind,
    pub local: IpAddr,
    pub local_port: u16,
    pub remote: IpAddr,
    pub remote_port: u16,
}

/// The last changes, in order.
#[derive(Debug)]
pub(super) struct Log {
    changes: VecDeque<Change>,
    /// Number of the first of them.
    first: u64,
    most: usize,
    lost: u64,
}

impl Log {
    /// Room for so many.
    pub fn new(most: usize) -> Self {
        Self { changes: VecDeque::new(), first: 0, most: most.max(1), lost: 0 }
    }

    /// Number of the first change that is there.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Number of the next change.
    pub fn next(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    /// Changes that were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub fn push(&mut self, change: Change) {
        if self.changes.len() == self.most {
            self.changes.pop_front();
            self.first += 1;
        }
        self.changes.push_back(change);
    }

    /// So many changes were never seen, before those that come next: nobody can read on over that.
    pub fn lose(&mut self, changes: u64) {
        self.first = self.next() + changes.max(1);
        self.changes.clear();
        self.lost += changes;
    }

    /// Up to `most` changes from number `from` on, and the number after them; `None` if those are there no
    /// more, or never were.
    pub fn read(&self, from: u64, most: usize) -> Option<(u64, Vec<Change>)> {
        let skip = usize::try_from(from.checked_sub(self.first)?).ok()?;
        if skip > self.changes.len() {
            return None;
        }
        let found: Vec<Change> = self.changes.range(skip..).take(most).copied().collect();
        Some((from + found.len() as u64, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: u16) -> Change {
        let local = IpAddr::from([10, 0, 0, 1]);
        let kind = Kind::Opened;
        Change { kind, local, local_port: 80, remote: local, remote_port: number }
    }

    fn ports(read: Option<(u64, Vec<Change>)>) -> Option<(u64, Vec<u16>)> {
        let (next, changes) = read?;
        Some((next, changes.iter().map(|one| one.remote_port).collect()))
    }

    #[test]
    fn whoever_falls_behind_is_told_so() {
        let mut log = Log::new(4);
        assert_eq!(ports(log.read(0, 10)), Some((0, vec![])));
        (0..6).for_each(|number| log.push(change(number)));
        assert_eq!((log.first(), log.next()), (2, 6));
        assert_eq!(ports(log.read(1, 10)), None, "forgotten");
        assert_eq!(ports(log.read(2, 2)), Some((4, vec![2, 3])));
        assert_eq!(ports(log.read(4, 10)), Some((6, vec![4, 5])));
        assert_eq!(ports(log.read(6, 10)), Some((6, vec![])));
        assert_eq!(ports(log.read(7, 10)), None, "of another instance");
    }

    #[test]
    fn nobody_reads_on_over_a_loss() {
        let mut log = Log::new(4);
        log.push(change(0));
        log.lose(3);
        log.push(change(4));
        assert_eq!(log.lost(), 3);
        // Not even who had read everything before.
        assert_eq!((0..4).filter_map(|from| log.read(from, 9)).count(), 0);
        assert_eq!(ports(log.read(4, 9)), Some((5, vec![4])));
    }
}
