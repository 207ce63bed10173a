//! The certificate by which the store knows this balancer. A store that refuses one that does not hold says nothing of
//! certificates that a client would hear, so that it is looked at here.

use crate::{FleetError, StoreConfig};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_rpc::tls::{Identity, TlsError};

impl StoreConfig {
    /// The file of this balancer's own certificate, if it shows one.
    pub fn own_certificate(&self) -> Option<&Path> {
        self.tls.certificate.as_deref().filter(|_| self.is_tls())
    }

    /// What its own certificate says, and by which words it is named; none: it shows none.
    ///
    /// # Errors
    /// [`TlsError`] if the file cannot be used.
    pub fn identity(&self) -> Result<Option<(String, Identity)>, TlsError> {
        let Some(file) = self.own_certificate() else { return Ok(None) };
        let whose = format!("this balancer's certificate for the store ({})", file.display());
        Ok(Some((whose, Identity::of_file(file)?)))
    }

    /// Why its own certificate does not hold now, if it is there and does not.
    pub fn lapsed(&self) -> Option<String> {
        let (whose, own) = self.identity().ok().flatten()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        if own.ends <= now {
            return Some(format!("{whose} has ended"));
        }
        (own.begins > now)
            .then(|| format!("{whose} does not hold yet, by this host's clock: is that right?"))
    }
}

impl FleetError {
    /// The same of a store that cannot be reached with this balancer's certificate, where that does not hold.
    #[must_use]
    pub fn by(self, config: &StoreConfig) -> Self {
        match self {
            Self::Unreachable(why) => Self::Unreachable(match config.lapsed() {
                Some(lapsed) => format!("{why}; {lapsed}"),
                None => why,
            }),
            other => other,
        }
    }
}
