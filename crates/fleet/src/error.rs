//! What can go wrong with what a fleet shares.

use std::io;
use std::path::PathBuf;
use weir_rpc::tls::with_causes;

/// Why something cannot be shared, or is not followed.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The store does not answer, or refuses. Nothing has changed.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// What is in the store cannot be used, or it refuses this balancer: in words. Nothing has changed.
    #[error("{0}")]
    Unusable(String),
    /// The store refuses what was asked, and would again.
    #[error("the store refuses: {0}")]
    Refused(String),
    /// The store did not answer in time: what was asked for may have been done, or not.
    #[error("the store has not answered; whether it took the change, weir fleet status shows")]
    Unknown,
    /// Another balancer was first.
    #[error(
        "another balancer has changed the configuration: this was made of change {expected}, and the store has \
         {} (by {by}); look at weir plan and ask again",
        current(*has, *expected)
    )]
    Conflict {
        /// Change that was expected.
        expected: u64,
        /// Change that the store has; 0: none.
        has: u64,
        /// Who made that.
        by: String,
    },
    /// What is in the store is not what a weir of this version writes.
    #[error("{key} in the store cannot be used: {reason}")]
    Corrupt {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration is larger than the store takes in one transaction.
    #[error(
        "the shared configuration has {bytes} bytes, and the store takes {most}; split the fleet"
    )]
    Large {
        /// Bytes that it has.
        bytes: usize,
        /// Bytes that there is room for.
        most: usize,
    },
    /// The shared part of a configuration cannot be told from the rest, or changed.
    #[error("{0}")]
    Text(String),
    /// What was kept of the fleet on this balancer's own disc is not what was written there.
    #[error("{0}")]
    Copy(String),
    /// A file cannot be used.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done, for example `read`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// How what cannot be reached is told.
const UNREACHED: &str = "the store cannot be reached: ";

/// The change that a store has. Where a store was made anew numbers begin anew, too.
fn current(has: u64, expected: u64) -> String {
    match has {
        0 => "none".into(),
        has if has == expected => format!("another change {has}"),
        has => format!("change {has}"),
    }
}

impl FleetError {
    /// Why a store cannot be asked, in the words of the error after which it was not asked any more; `more` is put behind.
    pub fn without(said: &str, more: &str) -> Self {
        match said.strip_prefix(UNREACHED) {
            Some(why) => Self::Unreachable(format!("{why}{more}")),
            None => Self::Unusable(format!("{said}{more}")),
        }
    }

    pub(crate) fn io(
        doing: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

impl From<etcd_client::Error> for FleetError {
    fn from(error: etcd_client::Error) -> Self {
        use etcd_client::Error;
        // The code of a status and where it came from tell an operator nothing that the words do not.
        match error {
            Error::GRpcStatus(status) => {
                let words = status.message().to_owned();
                // gRPC: INVALID_ARGUMENT, PERMISSION_DENIED, UNAUTHENTICATED.
                match status.code() as i32 {
                    3 | 7 | 16 => Self::Refused(words),
                    _ => Self::Unreachable(with_causes(words, &status)),
                }
            }
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                Self::Refused(error.to_string())
            }
            Error::TransportError(source) => {
                Self::Unreachable(with_causes(source.to_string(), &source))
            }
            error => Self::Unreachable(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store whose document cannot be read is not one that cannot be reached.
    #[test]
    fn who_asks_later_is_told_the_same() {
        let corrupt =
            FleetError::Corrupt { key: "/weir/config".into(), reason: "it is odd".into() };
        for (error, unreachable) in [
            (FleetError::Unreachable("no answer".into()), true),
            (FleetError::Refused("permission denied".into()), false),
            (corrupt, false),
        ] {
            let first = error.to_string();
            assert_eq!(first.starts_with(UNREACHED), unreachable, "{first}");
            let later = FleetError::without(&first, "; nothing has changed");
            assert_eq!(later.to_string(), format!("{first}; nothing has changed"));
            assert_eq!(matches!(later, FleetError::Unreachable(_)), unreachable, "{later}");
        }
    }

    #[test]
    fn an_error_is_told_with_all_that_it_comes_of() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Because(&'static str, #[source] Option<Box<Because>>);
        let last = Because("certificate expired", None);
        let middle = Because("a handshake failed", Some(Box::new(last)));
        let first = Because("transport error", Some(Box::new(middle)));
        let words = with_causes(first.to_string(), &first);
        assert_eq!(words, "transport error: a handshake failed: certificate expired");
        let again = Because("transport error: certificate expired", Some(Box::new(first)));
        let words = with_causes(again.to_string(), &again);
        assert_eq!(words, "transport error: certificate expired: a handshake failed");
    }

    #[test]
    fn a_conflict_says_what_was_expected_and_what_there_is() {
        let said =
            |expected, has| FleetError::Conflict { expected, has, by: "lb2".into() }.to_string();
        assert!(said(6, 7).contains("made of change 6, and the store has change 7 (by lb2)"));
        assert!(
            said(7, 7).contains("made of change 7, and the store has another change 7 (by lb2)")
        );
        assert!(said(7, 0).contains("made of change 7, and the store has none (by lb2)"));
    }
}
