//! What can go wrong in the engine.

use super::holder;
use crate::config::{Source, Table};
use crate::store::StoreError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_fleet::FleetError;
use weir_steering::Action;

/// What can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The data plane refused something, or failed.
    #[error("{0}")]
    Plane(Box<dyn std::error::Error + Send + Sync>),
    /// The program cannot be put on the interfaces that the file names.
    #[error("{place}interfaces: {source}")]
    Interfaces {
        /// The file and the line, as [`crate::config::place_of`] says it.
        place: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is less room than is in use or asked for, of what the file limits.
    #[error("{place}{source}")]
    Limit {
        /// The file and the line, as [`crate::config::place_of`] says it.
        place: String,
        /// What there is no room for.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The run directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What a restart must know of a change cannot be kept, so it was not made.
    #[error(
        "{0}; nothing has changed, as a restart would not know of it: try again when that is mended"
    )]
    Unkept(StoreError),
    /// A table could not be built.
    #[error(transparent)]
    Build(#[from] weir_steering::BuildError),
    /// A service's table could not be published. Its packets follow the one before, and other
    /// services are not concerned.
    #[error("service {service}: {source}; its packets follow the table before")]
    Unpublished {
        /// Name of the service.
        service: String,
        /// What could not be done.
        action: Action,
        /// The error of that action.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What the fleet shares cannot be changed or followed.
    #[error(transparent)]
    Fleet(#[from] weir_fleet::FleetError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// A request that makes no sense, whatever is in force; nothing has changed.
    #[error("{0}")]
    Invalid(String),
    /// A request about something that is not there; nothing has changed.
    #[error("{0}")]
    NotFound(String),
    /// A request that contradicts what is in force; nothing has changed.
    #[error("{0}")]
    Conflict(String),
    /// The data plane is at something else; nothing has changed, and the same works later.
    #[error("{0}")]
    Busy(Box<dyn std::error::Error + Send + Sync>),
    /// A request that is granted in part; the rest is tried again.
    #[error("{0}")]
    Unfinished(String),
}

/// What kind of refusal an error is, for programs. The API answers with its name and its status,
/// the command line with its exit status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The request makes no sense.
    Invalid,
    /// The configuration file cannot be used.
    File,
    /// There is no such service or backend.
    NotFound,
    /// It contradicts what is in force.
    Conflict,
    /// Whoever asks may not.
    Forbidden,
    /// Somebody else is at it, or nobody answers.
    Busy,
    /// It was tried, and failed.
    Failed,
}

impl EngineError {
    /// Whether there was no room on a disc, or it takes nothing.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Store(error) | Self::Unkept(error) if error.is_full())
    }

    /// Of a change that has been taken back: says so, where it does not by itself.
    pub(super) fn of_undone(self) -> Self {
        match self {
            Self::Store(error) => Self::Unkept(error),
            other => other,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Invalid(_) => Kind::Invalid,
            Self::Config(_) => Kind::File,
            Self::NotFound(_) => Kind::NotFound,
            Self::Conflict(_) => Kind::Conflict,
            Self::Busy(_) | Self::Store(StoreError::Locked { .. } | StoreError::Running { .. }) => {
                Kind::Busy
            }
            Self::Fleet(error) => match error {
                FleetError::Conflict { .. } | FleetError::Large { .. } => Kind::Conflict,
                FleetError::Unreachable(_) | FleetError::Unusable(_) | FleetError::Unknown => {
                    Kind::Busy
                }
                FleetError::Text(_) => Kind::Invalid,
                FleetError::Refused(_)
                | FleetError::Corrupt { .. }
                | FleetError::Copy(_)
                | FleetError::Io { .. } => Kind::Failed,
            },
            Self::Plane(_)
            | Self::Interfaces { .. }
            | Self::Limit { .. }
            | Self::Store(_)
            | Self::Unkept(_)
            | Self::Build(_)
            | Self::Unpublished { .. }
            | Self::Unfinished(_) => Kind::Failed,
        }
    }
}

/// What a plane says, as an error of the engine.
pub(super) trait PlaneResult<T> {
    fn plane(self) -> Result<T, EngineError>;

    /// It is about the interfaces that the file names.
    fn of_interfaces(self, from: &Source) -> Result<T, EngineError>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> PlaneResult<T> for Result<T, E> {
    fn plane(self) -> Result<T, EngineError> {
        self.map_err(|error| EngineError::Plane(Box::new(error)))
    }

    fn of_interfaces(self, from: &Source) -> Result<T, EngineError> {
        self.map_err(|source| EngineError::Interfaces {
            place: from.place(Table::Balancer, "interfaces"),
            source: holder::named(source),
        })
    }
}
