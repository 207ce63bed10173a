//! TLS in which both sides show a certificate, and what a certificate says of its holder.
//!
//! The role stands in the certificate's *extended key usage*, which TLS itself holds both sides to: an agent's
//! is for clients only, so with it nobody can pose as a balancer. A balancer's is for servers, and for clients where
//! it calls others of its fleet: what only balancers may ask for is given to certificates for servers alone.

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};
use std::error::Error;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Seconds since 1970, by which certificates begin and end.
pub fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    i64::try_from(now).unwrap_or(i64::MAX)
}

/// So many seconds in words, in the largest unit of which there are two; none if there are not two minutes.
pub fn lasting(seconds: i64) -> Option<String> {
    match seconds {
        172_800.. => Some(format!("{} days", seconds / 86_400)),
        7200.. => Some(format!("{} hours", seconds / 3600)),
        120.. => Some(format!("{} minutes", seconds / 60)),
        _ => None,
    }
}

/// Certificate and key of one side, and the authority whose certificates it takes from the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// A chain in PEM, its own first.
    pub certificate: PathBuf,
    /// Its key in PEM.
    pub key: PathBuf,
    /// Authorities in PEM.
    pub ca: PathBuf,
}

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is something else.
    #[error("{}: it is no {what} in PEM: {why}", path.display())]
    NoPem {
        /// The file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// What the parser says.
        why: String,
    },
    /// Certificate and key do not go together, or cannot be used for TLS.
    #[error("{} and {}: {why}", certificate.display(), key.display())]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The authority cannot be used.
    #[error("{}: {why}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A name that no certificate can have.
    #[error("{0:?} is neither an address nor a name of a host")]
    Name(String),
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let no_pem = |why: String| TlsError::NoPem { path: path.to_owned(), what: "certificate", why };
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| no_pem(error.to_string()))?;
    if found.is_empty() { Err(no_pem("there is none in it".into())) } else { Ok(found) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| TlsError::NoPem {
        path: path.to_owned(),
        what: "key",
        why: error.to_string(),
    })
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| TlsError::Authority {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
    }
    Ok(roots)
}

/// What takes certificates that an authority of this file has signed.
fn verifier(ca: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let (roots, provider) = (Arc::new(roots(ca)?), Arc::new(ring::default_provider()));
    WebPkiClientVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| TlsError::Authority { path: ca.to_owned(), why: error.to_string() })
}

/// Whether a certificate was refused since none of the known authorities has signed it: one that is called the same as
/// who did has another key.
fn is_of_another(error: &rustls::Error) -> bool {
    use CertificateError::{BadSignature, UnknownIssuer};
    matches!(error, rustls::Error::InvalidCertificate(BadSignature | UnknownIssuer))
}

fn of_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Why a caller was not let in, in words. `ca`: the authorities that its certificate was held against.
pub fn not_let_in(error: &io::Error, ca: &Path) -> String {
    match of_tls(error) {
        Some(inner) if is_of_another(inner) => {
            format!("its certificate is not signed by an authority in {}", ca.display())
        }
        _ => error.to_string(),
    }
}

/// What the other side says of the certificate that it was shown, if this error is an alert of it about that (RFC 8446,
/// section 6).
pub fn refusal(error: &io::Error) -> Option<String> {
    let Some(rustls::Error::AlertReceived(alert)) = of_tls(error) else { return None };
    let why = match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is not of an authority that is trusted there"
        }
        AlertDescription::CertificateExpired => "it does not hold now, by the clock there",
        AlertDescription::CertificateRequired => "none was shown",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => "it is not taken there",
        _ => return None,
    };
    Some(format!("the other side has refused the certificate that it was shown: {why} ({alert:?})"))
}

/// Words for an error, with all that it comes of, each once: only the last of it names a certificate, or an address.
pub fn with_causes(mut words: String, error: &dyn Error) -> String {
    let mut cause = error.source();
    while let Some(one) = cause {
        let alert = one.downcast_ref::<io::Error>().and_then(refusal);
        let said = alert.unwrap_or_else(|| one.to_string());
        // Many say themselves what they come of.
        if !words.contains(&said) {
            words = format!("{words}: {said}");
        }
        cause = one.source();
    }
    words
}

impl Files {
    fn pair(&self, error: impl ToString) -> TlsError {
        let Self { certificate, key, .. } = self.clone();
        TlsError::Pair { certificate, key, why: error.to_string() }
    }

    /// For a balancer: nobody gets through without a certificate of the authority.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.pair(error))?
            .with_client_cert_verifier(verifier(&self.ca)?)
            .with_single_cert(certificates(&self.certificate)?, key(&self.key)?)
            .map_err(|error| self.pair(error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// For an agent.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn client(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.pair(error))?
            .with_root_certificates(roots(&self.ca)?)
            .with_client_auth_cert(certificates(&self.certificate)?, key(&self.key)?)
            .map_err(|error| self.pair(error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// That none of the authorities whose certificates are taken from the other side has signed the own one, in words,
    /// if it is so and the files can be read. It may be meant: the other side says whom it trusts.
    pub fn foreign(&self) -> Option<String> {
        let (verifier, chain) = (verifier(&self.ca).ok()?, certificates(&self.certificate).ok()?);
        let (own, between) = chain.split_first()?;
        let judged = verifier.verify_client_cert(own, between, UnixTime::now());
        judged.is_err_and(|error| is_of_another(&error)).then(|| {
            let (certificate, ca) = (self.certificate.display(), self.ca.display());
            format!("{certificate} is not signed by an authority in {ca}")
        })
    }

    /// What its own certificate says.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn identity(&self) -> Result<Identity, TlsError> {
        Identity::of_file(&self.certificate)
    }
}

/// What a balancer is to be called by its certificate.
///
/// # Errors
/// [`TlsError::Name`].
pub fn server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))
}

/// What a certificate says of its holder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// Its common name (CN of the subject, RFC 5280); empty if it has none.
    pub name: String,
    /// Addresses in it.
    pub addresses: Vec<IpAddr>,
    /// Names of hosts in it.
    pub hosts: Vec<String>,
    /// What it is for.
    pub usage: Usage,
    /// When it begins, in seconds since 1970.
    pub begins: i64,
    /// When it ends, in seconds since 1970.
    pub ends: i64,
}

/// What a certificate is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// To be signed by.
    pub authority: bool,
    /// To serve: a balancer's.
    pub server: bool,
    /// To call: an agent's.
    pub client: bool,
}

impl Identity {
    /// What this certificate, in DER, says; `None` if it is none.
    pub fn of(der: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let (mut addresses, mut hosts) = (Vec::new(), Vec::new());
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::IPAddress(bytes) => {
                    addresses.extend(crate::message::address_of("address", bytes));
                }
                GeneralName::DNSName(name) => hosts.push((*name).to_owned()),
                _ => {}
            }
        }
        let usage = parsed.extended_key_usage().ok().flatten();
        let has = |want: fn(&x509_parser::extensions::ExtendedKeyUsage<'_>) -> bool| {
            usage.as_ref().is_some_and(|usage| want(usage.value))
        };
        let name = parsed.subject().iter_common_name().next();
        Some(Self {
            name: name.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned(),
            addresses,
            hosts,
            usage: Usage {
                authority: parsed.is_ca(),
                server: has(|usage| usage.server_auth),
                client: has(|usage| usage.client_auth),
            },
            begins: parsed.validity().not_before.timestamp(),
            ends: parsed.validity().not_after.timestamp(),
        })
    }

    /// The same of the first certificate in a file.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn of_file(path: &Path) -> Result<Self, TlsError> {
        let found = certificates(path)?;
        found.first().and_then(|first| Self::of(first)).ok_or_else(|| TlsError::NoPem {
            path: path.to_owned(),
            what: "certificate",
            why: "it cannot be read".into(),
        })
    }

    /// The public key of the first certificate of a file (SubjectPublicKeyInfo, RFC 5280), in DER.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn key_of_file(path: &Path) -> Result<Vec<u8>, TlsError> {
        let found = certificates(path)?;
        let parsed = found.first().and_then(|first| X509Certificate::from_der(first).ok());
        parsed.map(|(_, parsed)| parsed.tbs_certificate.subject_pki.raw.to_vec()).ok_or_else(|| {
            TlsError::NoPem {
                path: path.to_owned(),
                what: "certificate",
                why: "it cannot be read".into(),
            }
        })
    }
}
