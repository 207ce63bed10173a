//! The TLS of a check: who the server is, and until when its certificate holds.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::answer::Trouble;
use crate::config::Tls;

/// Shakes hands, for a protocol if one is named (ALPN, RFC 7301); also returns when the server's certificate
/// ends, in seconds since 1970.
pub(super) async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    address: IpAddr,
    tls: &Tls,
    protocol: Option<&[u8]>,
) -> Result<(TlsStream<S>, Option<i64>), Trouble> {
    let name = match &tls.sni {
        Some(name) => ServerName::try_from(name.clone())
            .map_err(|error| Trouble::Host(format!("sni {name:?}: {error}")))?,
        None => ServerName::from(address),
    };
    let roots = tls.verify.then_some(&*tls.ca);
    let mut config = config(roots).map_err(Trouble::Host)?;
    if let Some(protocol) = protocol {
        Arc::make_mut(&mut config).alpn_protocols = vec![protocol.to_vec()];
    }
    let stream = TlsConnector::from(config).connect(name, stream).await.map_err(trouble)?;
    let certificates = stream.get_ref().1.peer_certificates();
    let ends =
        certificates.and_then(<[_]>::first).and_then(|first| crate::certificates::ends(first));
    Ok((stream, ends))
}

fn trouble(error: io::Error) -> Trouble {
    let said = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match said {
        Some(said) => Trouble::Answer(format!("TLS: {said}")),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            Trouble::Answer("TLS: the connection was closed during the handshake".into())
        }
        None => Trouble::Io(error),
    }
}

/// What tells that a file is as it was read.
type Version = (Option<SystemTime>, u64);

/// Settings by their file of certificates, each with the file's version.
type Read = HashMap<Option<PathBuf>, (Version, Arc<ClientConfig>)>;

/// The settings for servers whose certificates go back to those of a file; none: for any server. A file is
/// read again when it has changed.
fn config(roots: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    static READ: Mutex<Option<Read>> = Mutex::new(None);
    let wrong = |path: &Path, error: &dyn std::fmt::Display| {
        format!("the certificates of {} cannot be used: {error}", path.display())
    };
    let version = match roots {
        Some(path) => {
            let about = std::fs::metadata(path).map_err(|error| wrong(path, &error))?;
            (about.modified().ok(), about.len())
        }
        None => (None, 0),
    };
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let read = read.get_or_insert_default();
    let key = roots.map(Path::to_path_buf);
    if let Some((before, config)) = read.get(&key)
        && *before == version
    {
        return Ok(Arc::clone(config));
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut config = match roots {
        Some(path) => {
            let mut store = RootCertStore::empty();
            let all = CertificateDer::pem_file_iter(path).map_err(|error| wrong(path, &error))?;
            // One that is odd, as old authorities have, does not take the others along.
            let (added, _) = store.add_parsable_certificates(all.filter_map(Result::ok));
            if added == 0 {
                return Err(wrong(path, &"there is none in it"));
            }
            builder.with_root_certificates(store).with_no_client_auth()
        }
        None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth(),
    };
    // A session that is resumed shows no certificate.
    config.resumption = Resumption::disabled();
    let config = Arc::new(config);
    read.insert(key, (version, Arc::clone(&config)));
    Ok(config)
}

/// Takes any certificate, where the configuration says so; whoever shows it must have its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
