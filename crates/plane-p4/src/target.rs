//! What can be done to a switch.

use crate::error::Error;
use crate::layout::{Register, Table};

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

    /// Takes an interface for a port with this number, unless it is one.
    ///
    /// # Errors
    /// If the switch cannot open it.
    fn add_port(&mut self, name: &str, port: u32) -> Result<(), Error>;

    /// Packets by ports no more.
    ///
    /// # Errors
    /// If the switch refuses.
    fn remove_port(&mut self, port: u32) -> Result<(), Error>;
}
