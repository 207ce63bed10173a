//! What can go wrong with a switch.

use std::io;
use weir_plane::SoftError;

/// What a switch, or what is known of it, says.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be reached, or the connection broke.
    #[error("the switch at {address}: {source}")]
    Connection {
        /// Where its Thrift server is.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// It answers something that is no answer.
    #[error("the switch at {address} answers {what} to {call}")]
    Answer {
        /// Where its Thrift server is.
        address: String,
        /// What was asked.
        call: String,
        /// What came.
        what: String,
    },
    /// It refuses: another program runs there, or one of other sizes.
    #[error("the switch refuses {call} (code {code}); does it run p4/weir.p4 of this version?")]
    Refused {
        /// What was asked.
        call: String,
        /// The code of the exception.
        code: i32,
    },
    /// It has no room.
    #[error(
        "no room on the switch for {what}: {wanted} wanted, {most} there at most; make {name} larger in p4/"
    )]
    Full {
        /// What there is no room for.
        what: &'static str,
        /// How many were wanted.
        wanted: u64,
        /// How many there can be.
        most: u64,
        /// The name of the size.
        name: &'static str,
    },
    /// The switch's program cannot do it.
    #[error("a switch cannot {what}; {right}")]
    Unsupported {
        /// What was asked.
        what: String,
        /// What to do instead.
        right: &'static str,
    },
    /// Packets that are under way do not come to their end.
    #[error("packets that were under way have not come to their end in a second")]
    Stuck,
    /// What it holds is not what was written.
    #[error("the switch's register {register} has {found} at {index} where {wanted} was written")]
    Damaged {
        /// The register's name.
        register: &'static str,
        /// Which element.
        index: u32,
        /// What was written.
        wanted: u64,
        /// What is there.
        found: u64,
    },
    /// The switch cannot have an interface for a port.
    #[error("interface {name} is no port of the switch: {why}")]
    Port {
        /// The interface's name.
        name: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// An interface is not there.
    #[error("interface {name}: {source}")]
    Interface {
        /// Its name.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// What is remembered of it refuses.
    #[error(transparent)]
    Record(#[from] SoftError),
}

impl Error {
    /// Whether the switch may have gone, so that it has to be filled anew.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Connection { .. } | Self::Answer { .. })
    }
}
