//! The history of an [`crate::Anchor`], in bytes that another balancer can repeat.

use crate::pool::PoolError;
use crate::score::mix;

/// One change, as it was applied. Names are known by their hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A backend joined the working set ([`crate::Incremental::add`]).
    Add {
        /// Number of the backend.
        backend: u16,
        /// Its weight, in buckets.
        weight: u32,
        /// 64-bit hash of its name.
        name: u64,
    },
    /// A working backend left for good ([`crate::Incremental::remove`]).
    Remove {
        /// Number of the backend.
        backend: u16,
    },
    /// A working backend got another weight ([`crate::Incremental::reweight`]).
    Reweight {
        /// Number of the backend.
        backend: u16,
        /// Its new weight, in buckets.
        weight: u32,
    },
    /// A backend was announced ([`crate::Horizon::add_horizon`]).
    AddHorizon {
        /// Number of the backend.
        backend: u16,
        /// Its weight, in buckets.
        weight: u32,
        /// 64-bit hash of its name.
        name: u64,
    },
    /// An announced backend was given up ([`crate::Horizon::remove_horizon`]).
    RemoveHorizon {
        /// Number of the backend.
        backend: u16,
    },
    /// An announced backend began to work ([`crate::Horizon::admit`]).
    Admit {
        /// Number of the backend.
        backend: u16,
    },
    /// A working backend went back to the horizon ([`crate::Horizon::retire`]).
    Retire {
        /// Number of the backend.
        backend: u16,
    },
}

/// Why a serialised history is not accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogError {
    /// Not a log of this version.
    #[error("not an anchor log, or not of this version")]
    Format,
    /// The length is not that of the number of operations it announces.
    #[error("the log has {got} bytes, its header announces {wanted}")]
    Length {
        /// Bytes that there are.
        got: usize,
        /// Bytes that the announced number of operations takes.
        wanted: usize,
    },
    /// An unknown kind of operation, or bytes that must be zero and are not. The number is the
    /// operation's place in the log, from 0.
    #[error("operation {0} of the log is malformed")]
    Operation(usize),
    /// The operations are not the ones that were digested, or not in their order.
    #[error("the log's operations give digest {computed:016x}, it says {stored:016x}")]
    Digest {
        /// The digest that the log carries.
        stored: u64,
        /// The digest of the operations in the log.
        computed: u64,
    },
    /// An operation cannot be applied to what the ones before it made.
    #[error("operation {index} of the log: {error}")]
    Refused {
        /// Its place in the log, from 0.
        index: usize,
        /// Why the pool refuses it.
        error: PoolError,
    },
    /// The log's capacity is 0 or too large for an anchor.
    #[error(transparent)]
    Capacity(PoolError),
}

/// `kind` 1 byte, zero 1, `backend` 2, `weight` 4, `name` 8; little endian.
const RECORD: usize = 16;
const MAGIC: [u8; 8] = *b"weirAnc1";
const HEADER: usize = 16;
const DIGEST: usize = 8;

impl Operation {
    /// Kind, backend, weight and name.
    fn fields(self) -> (u8, u16, u32, u64) {
        match self {
            Self::Add { backend, weight, name } => (1, backend, weight, name),
            Self::Remove { backend } => (2, backend, 0, 0),
            Self::Reweight { backend, weight } => (3, backend, weight, 0),
            Self::AddHorizon { backend, weight, name } => (4, backend, weight, name),
            Self::RemoveHorizon { backend } => (5, backend, 0, 0),
            Self::Admit { backend } => (6, backend, 0, 0),
            Self::Retire { backend } => (7, backend, 0, 0),
        }
    }

    fn words(self) -> [u64; 2] {
        let (kind, backend, weight, name) = self.fields();
        [u64::from(kind) | u64::from(backend) << 16 | u64::from(weight) << 32, name]
    }

    fn from_words([word, name]: [u64; 2]) -> Option<Self> {
        let (backend, weight) = ((word >> 16) as u16, (word >> 32) as u32);
        let operation = match word as u8 {
            1 => Self::Add { backend, weight, name },
            2 => Self::Remove { backend },
            3 => Self::Reweight { backend, weight },
            4 => Self::AddHorizon { backend, weight, name },
            5 => Self::RemoveHorizon { backend },
            6 => Self::Admit { backend },
            7 => Self::Retire { backend },
            _ => return None,
        };
        // One spelling per operation: unused bytes are zero.
        (operation.words() == [word, name]).then_some(operation)
    }
}

/// The digest of an empty history.
pub(crate) fn first_digest(capacity: u32) -> u64 {
    mix(u64::from_le_bytes(MAGIC) ^ mix(u64::from(capacity)))
}

/// The digest after one more operation. It finds accidents and disagreement, not forgery.
pub(crate) fn next_digest(digest: u64, operation: Operation) -> u64 {
    let [word, name] = operation.words();
    mix(mix(mix(digest).wrapping_add(word)).wrapping_add(name))
}

pub(crate) fn encode(capacity: u32, log: &[Operation], digest: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + log.len() * RECORD + DIGEST);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&capacity.to_le_bytes());
    bytes.extend_from_slice(&(log.len() as u32).to_le_bytes());
    for operation in log {
        for word in operation.words() {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes.extend_from_slice(&digest.to_le_bytes());
    bytes
}

/// Capacity and operations, with a digest that is right.
pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Vec<Operation>), LogError> {
    let (header, rest) = bytes.split_at_checked(HEADER).ok_or(LogError::Format)?;
    if header[..8] != MAGIC {
        return Err(LogError::Format);
    }
    let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let (capacity, count) = (half(8), half(12) as usize);
    let wanted = HEADER + count * RECORD + DIGEST;
    if bytes.len() != wanted {
        return Err(LogError::Length { got: bytes.len(), wanted });
    }
    let word = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    let (records, stored) = rest.split_at(count * RECORD);
    let mut log = Vec::with_capacity(count);
    let mut computed = first_digest(capacity);
    for (index, record) in records.chunks_exact(RECORD).enumerate() {
        let words = [word(&record[..8]), word(&record[8..])];
        let operation = Operation::from_words(words).ok_or(LogError::Operation(index))?;
        computed = next_digest(computed, operation);
        log.push(operation);
    }
    let stored = word(stored);
    if stored != computed {
        return Err(LogError::Digest { stored, computed });
    }
    Ok((capacity, log))
}
