//! As whom the agent speaks: the files that were named, and in the place of others what `weir pki` has made.

use crate::error::Error;
use crate::ready;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use weir_rpc::pki::{self, Listed};
use weir_rpc::tls::Files;

/// The files that were named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The agent's certificate; none: one of `directory` that is an agent's and names an address of this host.
    pub certificate: Option<PathBuf>,
    /// Its key; none: beside it, with the end .key.
    pub key: Option<PathBuf>,
    /// The authority of the balancers' certificates; none: ca.pem of `directory`.
    pub ca: Option<PathBuf>,
    /// Where those are that are not named.
    pub directory: PathBuf,
}

impl Credentials {
    /// All three. Whether they can be used, [`look_at`](super::look_at) says.
    ///
    /// # Errors
    /// [`Error::NoCertificate`], [`Error::NoKey`] or [`Error::NoAuthority`], with what to do; of the host, if it
    /// does not tell its addresses; and of the directory, if it cannot be read.
    pub fn files(&self) -> Result<Files, Error> {
        let certificate = match &self.certificate {
            Some(certificate) => certificate.clone(),
            None => self.own_certificate()?,
        };
        let key = self.key.clone().unwrap_or_else(|| certificate.with_extension("key"));
        let ca = self.ca.clone().unwrap_or_else(|| self.directory.join("ca.pem"));
        if self.key.is_none() && !key.exists() {
            return Err(Error::NoKey { key, certificate });
        }
        if self.ca.is_none() && !ca.exists() {
            return Err(Error::NoAuthority(ca));
        }
        Ok(Files { certificate, key, ca })
    }

    fn own_certificate(&self) -> Result<PathBuf, Error> {
        let own: BTreeSet<IpAddr> =
            ready::addresses()?.into_iter().map(|(_, address)| address).collect();
        let found = if self.directory.exists() { pki::list(&self.directory)? } else { Vec::new() };
        own_of(&found, &own).ok_or_else(|| Error::NoCertificate {
            directory: self.directory.clone(),
            certificates: found.len(),
            own: own.into_iter().filter(|one| !one.is_loopback()).collect(),
        })
    }
}

/// The certificate of an agent with one of these addresses that ends last.
fn own_of(found: &[Listed], own: &BTreeSet<IpAddr>) -> Option<PathBuf> {
    let known = found.iter().filter_map(|(path, found)| Some((path, found.as_ref().ok()?)));
    let mine = known.filter(|(_, one)| {
        let agents = one.usage.client && !one.usage.server && !one.usage.authority;
        agents && one.addresses.iter().any(|address| own.contains(address))
    });
    mine.max_by_key(|(_, one)| one.ends).map(|(path, _)| path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_of_this_host_is_found() {
        let home = tempfile::tempdir().unwrap();
        let here: IpAddr = "192.0.2.7".parse().unwrap();
        let own = BTreeSet::from([here]);
        let directory = home.path();
        pki::init(directory, "test", 30).unwrap();
        let issue = |name: &str, role, address: IpAddr, days| {
            let (name, addresses, hosts) = (name.into(), vec![address], Vec::new());
            let request = pki::Request { name, role, addresses, hosts, days };
            pki::issue(directory, directory, &request).unwrap();
        };
        let found = || own_of(&pki::list(directory).unwrap(), &own);
        let agent = pki::Role::Agent;
        issue("lb", pki::Role::Balancer, here, 20);
        issue("other", agent, "192.0.2.8".parse().unwrap(), 20);
        std::fs::write(directory.join("none.pem"), "no certificate").unwrap();
        assert_eq!(found(), None);
        issue("b0", agent, here, 10);
        assert_eq!(found(), Some(directory.join("b0.pem")));
        // Renewed, under another name.
        issue("a-newer-b0", agent, here, 20);
        assert_eq!(found(), Some(directory.join("a-newer-b0.pem")));
    }
}
