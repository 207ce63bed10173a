//! A simple switch (P4's behavioral model) over Thrift.

use crate::error::Error;
use crate::layout::{PORTS, Register, Table};
use crate::target::{Action, Ports, Target, Write, index_of, link_write};
use crate::thrift::{Calls, Kind, Replies, Returned};
use nix::net::if_::if_nametoindex;
use std::collections::HashMap;
use std::io::{self, BufReader, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

/// Calls that are under way before replies are read: their bytes and those of the replies fit into the buffers
/// of both sockets, so that neither side waits for the other.
const UNDER_WAY: usize = 512;
/// The service of the switch's server.
const SERVICE: &str = "standard";
/// The one of what only the simple switch has.
const SIMPLE_SWITCH: &str = "simple_switch";
/// Packets that wait for a port; the switch itself has room for 64, which a burst fills.
const QUEUE: i32 = 4096;
/// It answers within this time, whatever it is asked for: emptying all registers takes it half a second, if it is alone
/// on its machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// One that is silent for so long, asked whether it is there, hangs: nobody waits longer. That takes it microseconds.
const SOON: Duration = Duration::from_secs(1);
/// The same while one that was away is looked for again and again.
const SHORT_PATIENCE: Duration = Duration::from_millis(200);
/// Bytes that are sent over one connection: Thrift's library lets a server read 100 MB of each, whatever messages
/// these are, and then ends it.
const MOST_SENT: usize = 64 << 20;

type Keyed = (Table, Vec<Vec<u8>>);

/// A switch at the other end of a connection. Its server has no access control, so that it must listen on the
/// loopback of a network namespace that is the switch's own (docs/p4.md).
pub struct Switch {
    address: String,
    stream: Option<TcpStream>,
    /// For how long an answer is waited for now.
    patience: Duration,
    /// Bytes that have gone over this connection.
    sent: usize,
    sequence: i32,
    /// What the switch calls its entries.
    handles: HashMap<Keyed, i32>,
    ports: Ports,
}

impl Switch {
    /// The switch with its Thrift server at this address, such as `127.0.0.1:9090`.
    ///
    /// # Errors
    /// If it is not there.
    pub fn connect(address: &str) -> Result<Self, Error> {
        Self::connect_within(address, PATIENCE)
    }

    fn connect_within(address: &str, patience: Duration) -> Result<Self, Error> {
        let mut switch = Self {
            address: address.to_owned(),
            stream: None,
            patience,
            sent: 0,
            sequence: 0,
            handles: HashMap::new(),
            ports: Ports::default(),
        };
        switch.reach()?;
        Ok(switch)
    }

    /// Looks whether a switch is at this address that runs the program, and leaves it as it is.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn look(address: &str, patience: Duration) -> Result<(), Error> {
        Self::connect_within(address, patience)?.read(&[(Register::Epoch, 0)]).map(drop)
    }

    fn lost(&self, source: io::Error) -> Error {
        // What the system calls a time that is over.
        let late = source.kind() == io::ErrorKind::WouldBlock;
        let source = if late { io::Error::other("it does not answer in time") } else { source };
        Error::Connection { address: self.address.clone(), source }
    }

    fn reach(&mut self) -> Result<(), Error> {
        self.stream = None;
        let open = || {
            let mut addresses = self.address.to_socket_addrs()?;
            let address = addresses.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
            let stream = TcpStream::connect_timeout(&address, SOON)?;
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(PATIENCE))?;
            io::Result::Ok(stream)
        };
        self.stream = Some(open().map_err(|source| self.lost(source))?);
        self.sent = 0;
        self.set_patience(self.patience)
    }

    fn set_patience(&mut self, patience: Duration) -> Result<(), Error> {
        self.patience = patience;
        let set = self.stream.as_ref().map_or(Ok(()), |s| s.set_read_timeout(Some(patience)));
        set.map_err(|source| self.lost(source))
    }

    fn read_within(
        &mut self,
        patience: Duration,
        elements: &[(Register, u32)],
    ) -> Result<Vec<u64>, Error> {
        self.set_patience(patience)?;
        let read = self.read(elements);
        self.set_patience(PATIENCE)?;
        read
    }

    /// Makes calls, and gives what each returns to `take`. `put` writes the arguments of a call, and says what
    /// it is.
    fn calls(
        &mut self,
        count: usize,
        put: impl Fn(usize, &mut Calls, i32) -> &'static str,
        mut take: impl FnMut(&mut Self, usize, Returned) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut done = 0;
        while done < count {
            if self.sent > MOST_SENT {
                self.reach()?;
            }
            let part = (count - done).min(UNDER_WAY);
            let (mut calls, first) = (Calls::default(), self.sequence);
            let mut names = Vec::with_capacity(part);
            for at in 0..part {
                names.push(put(done + at, &mut calls, first.wrapping_add(at as i32)));
            }
            self.sequence = first.wrapping_add(part as i32);
            self.sent += calls.bytes.len();
            let Some(stream) = &self.stream else {
                return Err(self.lost(io::ErrorKind::NotConnected.into()));
            };
            let exchange = || {
                let mut stream = stream.try_clone()?;
                stream.write_all(&calls.bytes)?;
                let mut replies = Replies(BufReader::with_capacity(1 << 16, stream));
                let answer = |at| replies.next(first.wrapping_add(at as i32));
                (0..part).map(answer).collect::<io::Result<Vec<_>>>()
            };
            // After half a reply nothing on this connection can be believed.
            let returned = exchange().map_err(|source| {
                self.stream = None;
                self.lost(source)
            })?;
            for (at, returned) in returned.into_iter().enumerate() {
                if let Returned::Refused(code) = returned {
                    return Err(Error::Refused { call: names[at].to_owned(), code });
                }
                take(self, done + at, returned)?;
            }
            done += part;
        }
        Ok(())
    }

    fn empty_all(&mut self) -> Result<(), Error> {
        let returned = self.one(|calls, number| {
            calls.begin(SERVICE, "bm_reset_state", number).end();
            "bm_reset_state"
        })?;
        self.is_nothing("bm_reset_state", &returned)
    }

    /// Once it is begun, the epoch is that of nobody: whoever goes on after an error has to empty all.
    fn empty_what_is_asked(&mut self) -> Result<(), Error> {
        let closed = Write::Default { table: Table::PlaneKeys, action: Action::bare("no_table") };
        self.write(&[closed, Write::Set { register: Register::Epoch, index: 0, value: 0 }])?;
        self.wait_for_packets()?;
        // Whether a service has connections by index, and where, stands among these.
        let used = self.read_all(Register::SlotCounts)?.iter().any(|count| *count != 0);
        let stay = |register: &Register| match register {
            // Packets count themselves there while this is going on.
            Register::Begun | Register::Ended => true,
            register if Register::OF_SLOTS.contains(register) => !used,
            register if Register::BEHIND_OTHERS.contains(register) => true,
            register => Register::OF_TABLES.contains(register),
        };
        for register in Register::ALL.iter().filter(|register| !stay(register)) {
            let returned = self.one(|calls, number| {
                calls.begin(SERVICE, "bm_register_reset", number).i32(1, 0);
                calls.string(2, register.name().as_bytes()).end();
                "bm_register_reset"
            })?;
            self.is_nothing("bm_register_reset", &returned)?;
        }
        for table in Table::ALL.iter().filter(|table| **table != Table::PlaneKeys) {
            let returned = self.one(|calls, number| {
                calls.begin(SERVICE, "bm_mt_clear_entries", number).i32(1, 0);
                calls.string(2, table.name().as_bytes()).bool(3, false).end();
                "bm_mt_clear_entries"
            })?;
            self.is_nothing("bm_mt_clear_entries", &returned)?;
        }
        Ok(())
    }

    /// Until those that met the tables still whole are decided.
    fn wait_for_packets(&mut self) -> Result<(), Error> {
        let begun = self.read(&[(Register::Begun, 0)])?[0];
        let end = Instant::now() + PATIENCE;
        while self.read(&[(Register::Ended, 0)])?[0] < begun {
            if Instant::now() > end {
                return Err(Error::Stuck);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn is_nothing(&self, call: &str, returned: &Returned) -> Result<(), Error> {
        match returned {
            Returned::Nothing => Ok(()),
            other => Err(self.unexpected(call, other)),
        }
    }

    /// Its ports' numbers and interfaces.
    fn read_ports(&mut self) -> Result<Vec<(u32, String)>, Error> {
        const CALL: &str = "bm_dev_mgr_show_ports";
        let returned = self.one(|calls, number| {
            calls.begin(SERVICE, CALL, number).end();
            CALL
        })?;
        match returned {
            Returned::Ports(all) => Ok(all),
            other => Err(self.unexpected(CALL, &other)),
        }
    }

    /// Its ports, and of which interfaces they are. Of one that somebody else has opened, or an earlier process that was
    /// ended in the midst of it, only the name is known: it is the interface that has this name now, if no other port
    /// is of that.
    fn look_at_ports(&mut self) -> Result<(), Error> {
        let mut all = self.read_ports()?;
        all.sort_unstable();
        let links = self.read_all(Register::Links)?;
        let of = |port: u32| links.get((PORTS + port) as usize).map_or(0, |link| *link as u32);
        let mut ports = Ports(all.iter().map(|(port, _)| (*port, of(*port))).collect());
        // Of two of one name the later one: the interface was made anew.
        for (port, name) in all.iter().rev().filter(|(port, _)| of(*port) == 0) {
            let now = if_nametoindex(&name[..]).unwrap_or(0);
            if ports.of(now).is_none() {
                ports.0.insert(*port, now);
            }
        }
        self.ports = ports;
        Ok(())
    }

    fn unexpected(&self, call: &str, returned: &Returned) -> Error {
        let what = format!("{returned:?}");
        Error::Answer { address: self.address.clone(), call: call.to_owned(), what }
    }

    fn one(&mut self, put: impl Fn(&mut Calls, i32) -> &'static str) -> Result<Returned, Error> {
        let mut found = Returned::Nothing;
        self.calls(
            1,
            |_, calls, number| put(calls, number),
            |_, _, returned| {
                found = returned;
                Ok(())
            },
        )?;
        Ok(found)
    }
}

fn put_action(calls: &mut Calls, first: i16, action: &Action) {
    calls.string(first, action.name.as_bytes());
    calls.list(first + 1, Kind::String, action.data.len());
    for argument in &action.data {
        calls.bare_string(argument);
    }
}

fn put_key(calls: &mut Calls, id: i16, key: &[Vec<u8>]) {
    calls.list(id, Kind::Struct, key.len());
    for part in key {
        // BmMatchParam: type EXACT, and the key in a structure of its own.
        calls.i32(1, 0).structure(2).string(1, part).end().end();
    }
}

/// One call for a write; none if there is nothing to do.
fn put_write(
    write: &Write,
    handles: &HashMap<Keyed, i32>,
    calls: &mut Calls,
    number: i32,
) -> &'static str {
    let named = |calls: &mut Calls, method: &str, name: &str| {
        calls.begin(SERVICE, method, number).i32(1, 0).string(2, name.as_bytes());
    };
    match write {
        Write::Set { register, index, value } => {
            named(calls, "bm_register_write", register.name());
            calls.i32(3, *index as i32).i64(4, *value as i64).end();
            "bm_register_write"
        }
        Write::Fill { register, from, to, value } => {
            named(calls, "bm_register_write_range", register.name());
            calls.i32(3, *from as i32).i32(4, *to as i32).i64(5, *value as i64).end();
            "bm_register_write_range"
        }
        Write::Insert { table, key, action } => {
            match handles.get(&(*table, key.clone())) {
                Some(handle) => {
                    named(calls, "bm_mt_modify_entry", table.name());
                    calls.i32(3, *handle);
                    put_action(calls, 4, action);
                }
                None => {
                    named(calls, "bm_mt_add_entry", table.name());
                    put_key(calls, 3, key);
                    put_action(calls, 4, action);
                    // BmAddEntryOptions, with nothing set.
                    calls.structure(6).end();
                }
            }
            calls.end();
            "bm_mt_add_entry"
        }
        Write::Remove { table, key } => {
            let handle = handles.get(&(*table, key.clone())).copied().unwrap_or(-1);
            named(calls, "bm_mt_delete_entry", table.name());
            calls.i32(3, handle).end();
            "bm_mt_delete_entry"
        }
        Write::Default { table, action } => {
            named(calls, "bm_mt_set_default_action", table.name());
            put_action(calls, 3, action);
            calls.end();
            "bm_mt_set_default_action"
        }
    }
}

impl Target for Switch {
    /// Entries of one key in one batch would need the handle that the first one gets: such a batch is cut.
    fn write(&mut self, writes: &[Write]) -> Result<(), Error> {
        let mut rest = writes;
        while !rest.is_empty() {
            let mut seen = std::collections::HashSet::new();
            let again = |write: &Write| match write {
                Write::Insert { table, key, .. } | Write::Remove { table, key } => {
                    !seen.insert((*table, key.clone()))
                }
                _ => false,
            };
            let end = rest.iter().position(again).unwrap_or(rest.len());
            let (part, others) = rest.split_at(end);
            rest = others;
            let part: Vec<&Write> = part
                .iter()
                .filter(|write| match write {
                    Write::Remove { table, key } => {
                        self.handles.contains_key(&(*table, key.clone()))
                    }
                    _ => true,
                })
                .collect();
            let handles = std::mem::take(&mut self.handles);
            let mut changed = Vec::new();
            let result = self.calls(
                part.len(),
                |at, calls, number| put_write(part[at], &handles, calls, number),
                |switch, at, returned| {
                    match (part[at], returned) {
                        (Write::Insert { table, key, .. }, Returned::Number(handle)) => {
                            changed.push(((*table, key.clone()), Some(handle as i32)));
                        }
                        (Write::Remove { table, key }, _) => {
                            changed.push(((*table, key.clone()), None));
                        }
                        (_, Returned::Nothing) => {}
                        (_, other) => return Err(switch.unexpected("a write", &other)),
                    }
                    Ok(())
                },
            );
            self.handles = handles;
            for (key, handle) in changed {
                match handle {
                    Some(handle) => self.handles.insert(key, handle),
                    None => self.handles.remove(&key),
                };
            }
            result?;
        }
        Ok(())
    }

    fn read(&mut self, elements: &[(Register, u32)]) -> Result<Vec<u64>, Error> {
        let mut values = Vec::with_capacity(elements.len());
        self.calls(
            elements.len(),
            |at, calls, number| {
                let (register, index) = elements[at];
                calls.begin(SERVICE, "bm_register_read", number).i32(1, 0);
                calls.string(2, register.name().as_bytes()).i32(3, index as i32).end();
                "bm_register_read"
            },
            |switch, _, returned| match returned {
                Returned::Number(value) => {
                    values.push(value as u64);
                    Ok(())
                }
                other => Err(switch.unexpected("bm_register_read", &other)),
            },
        )?;
        Ok(values)
    }

    fn read_soon(&mut self, elements: &[(Register, u32)]) -> Result<Vec<u64>, Error> {
        self.read_within(SOON, elements)
    }

    fn read_all(&mut self, register: Register) -> Result<Vec<u64>, Error> {
        const CALL: &str = "bm_register_read_all";
        let returned = self.one(|calls, number| {
            calls.begin(SERVICE, CALL, number).i32(1, 0);
            calls.string(2, register.name().as_bytes()).end();
            CALL
        })?;
        match returned {
            Returned::Numbers(all) if all.len() == register.size() as usize => {
                Ok(all.into_iter().map(|value| value as u64).collect())
            }
            other => Err(self.unexpected(CALL, &other)),
        }
    }

    fn find(&mut self) -> Result<(), Error> {
        self.patience = SHORT_PATIENCE;
        let found = self.reach().and_then(|()| self.read(&[(Register::Epoch, 0)]));
        self.set_patience(PATIENCE)?;
        found.map(drop)
    }

    /// Emptying all registers takes the switch most of a second, in which it does nothing else. One that was filled
    /// is emptied of what packets ask without anything having been written for them.
    fn start_over(&mut self) -> Result<bool, Error> {
        self.handles.clear();
        self.patience = PATIENCE;
        self.reach()?;
        self.look_at_ports()?;
        let filled = self.read(&[(Register::Epoch, 0)])?[0] != 0;
        if filled {
            self.empty_what_is_asked()?;
        } else {
            self.empty_all()?;
        }
        let ports = self.ports.0.iter().map(|(port, of)| link_write(PORTS + port, *of));
        self.write(&ports.collect::<Vec<_>>())?;
        self.one(|calls, number| {
            calls.begin(SIMPLE_SWITCH, "set_all_egress_queue_depths", number).i32(1, QUEUE).end();
            "set_all_egress_queue_depths"
        })?;
        Ok(!filled)
    }

    /// A port is never removed: the switch holds the lock of its ports while it waits for its receiving thread, which
    /// may wait for that lock with a packet in its hands, and both wait for ever.
    fn add_port(&mut self, name: &str, ifindex: u32) -> Result<u32, Error> {
        if let Some(port) = self.ports.of(ifindex) {
            return Ok(port);
        }
        let port = self.ports.free(name)?;
        let refused = |why: String| Error::Port { name: name.to_owned(), why };
        let added = self.one(|calls, number| {
            calls.begin(SERVICE, "bm_dev_mgr_add_port", number);
            calls.string(1, name.as_bytes()).i32(2, port as i32).string(3, b"").end();
            "bm_dev_mgr_add_port"
        });
        match added {
            Err(Error::Refused { code, .. }) => {
                let why = format!("it cannot open it (code {code}); may it read packets there?");
                return Err(refused(why));
            }
            added => added.map(drop)?,
        }
        // It opens what has this name, which another interface may have by now.
        let of = index_of(name);
        self.ports
            .0
            .insert(port, if of.as_ref().is_ok_and(|of| *of == ifindex) { ifindex } else { 0 });
        if of? != ifindex {
            return Err(refused("another interface has this name by now; try again".to_owned()));
        }
        self.write(&[link_write(PORTS + port, ifindex)])?;
        Ok(port)
    }
}
