//! What can be done to a switch.

use crate::error::Error;
use crate::layout::{PORTS, Register, Table};
use nix::net::if_::if_nametoindex;
use std::collections::BTreeMap;
use std::io;

/// An action of the program with its arguments, each as the bytes that its width takes, in network order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Action {
    /// Its name in the program.
    pub name: &'static str,
    /// Its arguments.
    pub data: Vec<Vec<u8>>,
}

impl Action {
    /// An action without arguments.
    pub fn bare(name: &'static str) -> Self {
        Self { name, data: Vec::new() }
    }
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// An element of a register.
    Set {
        /// The register.
        register: Register,
        /// The element.
        index: u32,
        /// What it is from now on.
        value: u64,
    },
    /// Elements of a register, from one to before another.
    Fill {
        /// The register.
        register: Register,
        /// The first one.
        from: u32,
        /// The one after the last.
        to: u32,
        /// What they are from now on.
        value: u64,
    },
    /// An entry of a table, in the place of one with its key if there is one.
    Insert {
        /// The table.
        table: Table,
        /// The parts of the key, in network order.
        key: Vec<Vec<u8>>,
        /// What it does.
        action: Action,
    },
    /// No such entry any more; nothing if there is none.
    Remove {
        /// The table.
        table: Table,
        /// The parts of the key.
        key: Vec<Vec<u8>>,
    },
    /// What a table does without an entry.
    Default {
        /// The table.
        table: Table,
        /// What it does.
        action: Action,
    },
}

/// The index of an interface in the network namespace that is the switch's, too.
pub(crate) fn index_of(name: &str) -> Result<u32, Error> {
    let wrong = |errno| Error::Interface { name: name.to_owned(), source: io::Error::from(errno) };
    if_nametoindex(name).map_err(wrong)
}

/// The interface of a port whose packets are taken, by its index, or 0; from [`PORTS`] on, of which one the port is.
pub(crate) fn link_write(index: u32, ifindex: u32) -> Write {
    Write::Set { register: Register::Links, index, value: ifindex.into() }
}

/// Something that is written like a switch: one, or its registers in memory.
pub trait Target {
    /// Does all of this, in order.
    ///
    /// # Errors
    /// Some of it may be done.
    fn write(&mut self, writes: &[Write]) -> Result<(), Error>;

    /// Elements of registers.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&mut self, elements: &[(Register, u32)]) -> Result<Vec<u64>, Error>;

    /// The same of one that has to answer soon, as somebody waits who asks all the time.
    ///
    /// # Errors
    /// If they cannot be read, or not soon.
    fn read_soon(&mut self, elements: &[(Register, u32)]) -> Result<Vec<u64>, Error> {
        self.read(elements)
    }

    /// All elements of a register.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read_all(&mut self, register: Register) -> Result<Vec<u64>, Error>;

    /// Looks for one that was away. One that does not answer at once is not there.
    ///
    /// # Errors
    /// If it cannot be reached.
    fn find(&mut self) -> Result<(), Error>;

    /// Empties it: no table has entries, no packet is decided. Returns whether all registers are zeros; if not, those
    /// of tables, [`Register::OF_TABLES`], and [those behind others](Register::BEHIND_OTHERS) hold anything.
    ///
    /// # Errors
    /// If it cannot be reached.
    fn start_over(&mut self) -> Result<bool, Error>;

    /// Has an interface for a port, unless it is one; returns the port's number. There is no way back: it stays one until
    /// the switch ends. Its packets are taken when [its element](Register::Links) says so.
    ///
    /// # Errors
    /// [`Error::Port`] or [`Error::Interface`], if the switch cannot open it.
    fn add_port(&mut self, name: &str, ifindex: u32) -> Result<u32, Error>;
}

/// Of which interfaces ports are, by the ports' numbers. 0: nobody knows.
#[derive(Clone, Default, Debug)]
pub struct Ports(pub BTreeMap<u32, u32>);

impl Ports {
    /// The port of an interface.
    #[must_use]
    pub fn of(&self, ifindex: u32) -> Option<u32> {
        self.0.iter().find(|(_, of)| **of == ifindex).map(|(number, _)| *number)
    }

    /// A number that no port has.
    ///
    /// # Errors
    /// If all have one.
    pub fn free(&self, name: &str) -> Result<u32, Error> {
        (1..PORTS - 1).find(|number| !self.0.contains_key(number)).ok_or_else(|| Error::Port {
            name: name.to_owned(),
            why: "all numbers of ports are used; end the switch, and start it again".to_owned(),
        })
    }
}
