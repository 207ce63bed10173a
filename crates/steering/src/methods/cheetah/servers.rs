//! The numbers that cookies carry: `AllServers`, and which of them a service may use.

use crate::pool::{Member, Role, shares};
use crate::schedule::Scheduler;
use crate::table::NO_BACKEND;
use std::collections::HashMap;

/// Entries of the list of those that take new connections, if their weights do not ask for fewer
/// or their number for more: a share is off by one entry at most.
const MOST_SHARES: u64 = 4_096;

/// What can go wrong with the numbers of servers.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServersError {
    /// All numbers are taken by servers that are there.
    #[error("all {numbers} server numbers of the cookie are taken; give it more bits")]
    Full {
        /// How many there are.
        numbers: u32,
    },
    /// A service names a server that has no number.
    #[error("server {0:?} is in a service but not among all servers")]
    Unknown(String),
}

/// Every server there is, by the number that its cookies hide.
///
/// A server keeps its number for as long as there are free ones: also when it leaves and comes
/// back, since connections that it still holds carry the number. When numbers run out, the one
/// whose server left longest ago is given to somebody else.
#[derive(Clone, Debug)]
pub struct AllServers {
    numbers: u32,
    servers: Vec<Server>,
    by_name: HashMap<String, u16>,
    departures: u64,
}

#[derive(Clone, Debug)]
struct Server {
    name: String,
    /// When it left, counted in departures.
    left: Option<u64>,
}

impl AllServers {
    /// No servers yet, and `numbers` numbers ([`Codec::numbers`](super::Codec::numbers)), at most
    /// 65,535.
    pub fn new(numbers: u32) -> Self {
        Self {
            numbers: numbers.min(u32::from(u16::MAX)),
            servers: Vec::new(),
            by_name: HashMap::new(),
            departures: 0,
        }
    }

    /// Goes on with these servers by number, each with the departure by which it left, if it did.
    pub fn of_list(numbers: u32, list: &[(String, Option<u64>)]) -> Self {
        let mut all = Self::new(numbers);
        for (name, left) in list.iter().take(all.numbers as usize) {
            all.by_name.insert(name.clone(), all.servers.len() as u16);
            all.servers.push(Server { name: name.clone(), left: *left });
            all.departures = all.departures.max(left.unwrap_or(0));
        }
        all
    }

    /// All servers by number, as [`of_list`](Self::of_list) takes them.
    pub fn list(&self) -> Vec<(String, Option<u64>)> {
        self.servers.iter().map(|server| (server.name.clone(), server.left)).collect()
    }

    /// Goes on with these names by number; who has none here has left, and so has its name.
    pub(super) fn resume(numbers: u32, names: impl Iterator<Item = Option<String>>) -> Self {
        let mut all = Self::new(numbers);
        for (number, name) in names.take(all.numbers as usize).enumerate() {
            all.departures += u64::from(name.is_none());
            let left = name.is_none().then_some(all.departures);
            if let Some(name) = &name {
                all.by_name.insert(name.clone(), number as u16);
            }
            all.servers.push(Server { name: name.unwrap_or_default(), left });
        }
        all
    }

    /// All servers but these leave.
    pub fn keep_only(&mut self, keep: impl Fn(&str) -> bool) {
        let mut names: Vec<String> =
            self.by_name.keys().filter(|name| !keep(name)).cloned().collect();
        // Those that leave at once do so in the same order everywhere.
        names.sort_unstable();
        for name in &names {
            self.leave(name);
        }
    }

    /// Adds a server, or brings it back. Returns its number.
    ///
    /// # Errors
    /// [`ServersError::Full`].
    pub fn join(&mut self, name: &str) -> Result<u16, ServersError> {
        let server = || Server { name: name.to_owned(), left: None };
        if let Some(&number) = self.by_name.get(name) {
            self.servers[usize::from(number)] = server();
            return Ok(number);
        }
        let number = if (self.servers.len() as u32) < self.numbers {
            self.servers.push(server());
            self.servers.len() - 1
        } else {
            let longest_gone = (0..self.servers.len())
                .filter_map(|number| Some((self.servers[number].left?, number)))
                .min();
            let (_, number) = longest_gone.ok_or(ServersError::Full { numbers: self.numbers })?;
            let former = std::mem::replace(&mut self.servers[number], server());
            self.by_name.remove(&former.name);
            number
        };
        self.by_name.insert(name.to_owned(), number as u16);
        Ok(number as u16)
    }

    /// A server has left; its number waits for it. Whether it was there.
    pub fn leave(&mut self, name: &str) -> bool {
        let Some(&number) = self.by_name.get(name) else { return false };
        let server = &mut self.servers[usize::from(number)];
        let was_there = server.left.is_none();
        if was_there {
            self.departures += 1;
            server.left = Some(self.departures);
        }
        was_there
    }

    /// The number of a server that is there.
    pub fn number(&self, name: &str) -> Option<u16> {
        let number = *self.by_name.get(name)?;
        self.servers[usize::from(number)].left.is_none().then_some(number)
    }
}

/// The servers of one service: the paper's `VIPToServers`, and `AllServers` as far as the service
/// may use it. This is the table that packets read; it is made anew for a change of the pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServiceServers {
    /// Number to backend: [`NO_BACKEND`] where the service has none.
    backends: Vec<u16>,
    /// Backend to number, ordered.
    numbers: Vec<(u16, u16)>,
    /// Backends that take new connections, ordered.
    serving: Vec<u16>,
}

impl ServiceServers {
    /// The table of a pool. Members that drain or are down keep their connections.
    ///
    /// # Errors
    /// [`ServersError::Unknown`] for a member that has not joined `all`.
    pub fn new(all: &AllServers, members: &[Member]) -> Result<Self, ServersError> {
        let mut table = Self::default();
        for member in members {
            let number = all
                .number(&member.name)
                .ok_or_else(|| ServersError::Unknown(member.name.clone()))?;
            let slot = usize::from(number);
            if table.backends.len() <= slot {
                table.backends.resize(slot + 1, NO_BACKEND);
            }
            table.backends[slot] = member.backend.get();
            table.numbers.push((member.backend.get(), number));
            if member.role == Role::Serving && member.weight > 0 {
                table.serving.push(member.backend.get());
            }
        }
        table.numbers.sort_unstable();
        table.serving.sort_unstable();
        Ok(table)
    }

    /// The same, where those that take new connections are named as often as their weights say, so
    /// that one of the list chosen evenly is chosen by weight.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn weighted(all: &AllServers, members: &[Member]) -> Result<Self, ServersError> {
        let mut table = Self::new(all, members)?;
        table.serving = shares(members, MOST_SHARES);
        table.serving.sort_unstable();
        Ok(table)
    }

    /// The same, where those that take new connections are the list of a scheduler.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn scheduled(
        all: &AllServers,
        members: &[Member],
        scheduler: Scheduler,
    ) -> Result<Self, ServersError> {
        if scheduler == Scheduler::Uniform {
            return Self::weighted(all, members);
        }
        Ok(Self { serving: scheduler.list(members), ..Self::new(all, members)? })
    }

    /// Of the backend of each number, and of those that take new connections.
    pub(super) fn of_parts(backends: Vec<u16>, serving: Vec<u16>) -> Self {
        let numbered = (0..).zip(&backends).filter(|(_, backend)| **backend != NO_BACKEND);
        let mut numbers: Vec<(u16, u16)> =
            numbered.map(|(number, backend)| (*backend, number)).collect();
        numbers.sort_unstable();
        Self { backends, numbers, serving }
    }

    /// The backend of each number.
    pub fn backends(&self) -> &[u16] {
        &self.backends
    }

    /// Bytes that packets may read.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.backends[..])
            + size_of_val(&self.numbers[..])
            + size_of_val(&self.serving[..])
    }

    /// The backend with this number, if the service uses it. One read.
    #[inline]
    pub fn backend(&self, number: u16) -> Option<u16> {
        self.backends.get(usize::from(number)).copied().filter(|&backend| backend != NO_BACKEND)
    }

    /// The number of a backend that the service uses.
    pub fn number(&self, backend: u16) -> Option<u16> {
        let at = self.numbers.binary_search_by_key(&backend, |&(backend, _)| backend).ok()?;
        Some(self.numbers[at].1)
    }

    /// The numbers of those that take new connections, in the order of their backends.
    pub(super) fn serving_numbers(&self) -> Vec<u16> {
        // All of them are in the service.
        self.serving.iter().filter_map(|&backend| self.number(backend)).collect()
    }

    /// Whether the backend may get packets of this service.
    pub fn uses(&self, backend: u16) -> bool {
        self.number(backend).is_some()
    }

    /// Whether the backend takes new connections.
    pub fn serves(&self, backend: u16) -> bool {
        self.serving.binary_search(&backend).is_ok()
    }

    /// The backends that take new connections, ordered. What a scheduler chooses from.
    pub fn serving(&self) -> &[u16] {
        &self.serving
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::BackendId;

    fn member(name: &str, backend: u16, role: Role, weight: u32) -> Member {
        Member { backend: BackendId::of(backend), name: name.into(), weight, role }
    }

    #[test]
    fn numbers_wait_for_their_servers_and_go_to_others_last() {
        let mut all = AllServers::new(3);
        assert_eq!((all.join("a"), all.join("b"), all.join("c")), (Ok(0), Ok(1), Ok(2)));
        assert_eq!(all.join("d"), Err(ServersError::Full { numbers: 3 }));
        assert!(all.leave("b") && all.leave("a") && !all.leave("a") && !all.leave("x"));
        assert_eq!(all.number("a"), None);
        assert_eq!(all.join("a"), Ok(0), "it comes back");
        assert!(all.leave("a"));
        assert_eq!(all.join("d"), Ok(1), "b left before a");
        assert_eq!(all.join("b"), Ok(0));
        assert_eq!(all.join("a"), Err(ServersError::Full { numbers: 3 }));
    }

    #[test]
    fn another_balancer_goes_on_with_a_list() {
        let mut one = AllServers::new(3);
        for name in ["a", "b", "c"] {
            one.join(name).unwrap();
        }
        one.keep_only(|name| name == "c");
        let mut two = AllServers::of_list(3, &one.list());
        assert_eq!(two.list(), one.list());
        for all in [&mut one, &mut two] {
            assert_eq!((all.number("a"), all.number("c")), (None, Some(2)));
            assert_eq!((all.join("d"), all.join("b")), (Ok(0), Ok(1)), "a left first");
            assert!(all.leave("c"));
        }
        assert_eq!(one.list(), two.list());
    }

    #[test]
    fn a_service_uses_its_own_servers_only() {
        let mut all = AllServers::new(100);
        for name in ["a", "other", "b", "c", "d"] {
            all.join(name).unwrap();
        }
        let members = [
            member("a", 7, Role::Serving, 1),
            member("b", 3, Role::Draining, 1),
            member("c", 5, Role::Down, 1),
            member("d", 4, Role::Serving, 0),
        ];
        let servers = ServiceServers::new(&all, &members).unwrap();
        assert_eq!(servers.serving(), [7]);
        for member in &members {
            let number = all.number(&member.name).unwrap();
            assert_eq!(servers.number(member.backend.get()), Some(number));
            assert_eq!(servers.backend(number), Some(member.backend.get()));
        }
        assert_eq!(servers.backend(all.number("other").unwrap()), None);
        assert!(!servers.uses(8) && servers.uses(3) && !servers.serves(3));
        assert_eq!(servers.backend(u16::MAX), None);
        let stranger = [member("x", 1, Role::Serving, 1)];
        let unknown = ServersError::Unknown("x".into());
        assert_eq!(ServiceServers::new(&all, &stranger), Err(unknown));
    }
}
