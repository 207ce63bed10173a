//! The certificate by which the store knows this balancer. A store that refuses one that does not hold says nothing of
//! certificates that a client would hear, so that it is looked at here.

use crate::{FleetError, StoreConfig};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_rpc::tls::{Files, Identity, TlsError};

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

    /// That the authority of the store's certificates has not signed its own one, in words, if it is so and all can be
    /// read. A store may take others' than that.
    fn foreign(&self) -> Option<String> {
        let certificate = self.own_certificate()?.to_owned();
        let (key, ca) = (self.tls.key.clone()?, self.tls.ca.clone()?);
        Files { certificate, key, ca }.foreign()
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
    /// The same of a store that cannot be reached with this balancer's certificate, where that does not hold, or is of
    /// another authority.
    #[must_use]
    pub fn by(self, config: &StoreConfig) -> Self {
        match self {
            Self::Unreachable(why) => {
                Self::Unreachable(match config.lapsed().or_else(|| config.foreign()) {
                    Some(doubt) => format!("{why}; {doubt}"),
                    None => why,
                })
            }
            other => other,
        }
    }
}
