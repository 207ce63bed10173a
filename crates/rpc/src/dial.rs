//! A channel to a balancer, over TLS in which both sides show a certificate: an agent's, or another balancer's.

use crate::tls::{Files, TlsError, server_name};
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

/// For a connection and the handshake.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The files, or the name of the host.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The connection.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// The certificate that the other side of a channel has shown, in DER: of its last connection.
#[derive(Clone, Default, Debug)]
pub struct Shown(Arc<Mutex<Arc<[u8]>>>);

impl Shown {
    /// Its bytes; none before the handshake.
    pub fn certificate(&self) -> Arc<[u8]> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, certificate: &[u8]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = certificate.into();
    }
}

/// Calls a balancer, whose certificate must name `host`. `tuned`: what the channel is like besides. The files are read
/// anew each time: a certificate that was renewed counts from the next call on.
///
/// # Errors
/// [`DialError`].
pub async fn dial(
    host: &str,
    port: u16,
    files: &Files,
    tuned: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<Channel, DialError> {
    Ok(dial_and_look(host, port, files, tuned).await?.0)
}

/// As [`dial`], with the certificate that the balancer has shown.
///
/// # Errors
/// [`DialError`].
pub async fn dial_and_look(
    host: &str,
    port: u16,
    files: &Files,
    tuned: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<(Channel, Shown), DialError> {
    let shown = Shown::default();
    let seen = shown.clone();
    let tls = TlsConnector::from(files.client()?);
    let name = server_name(host)?;
    let host = host.to_owned();
    let connector = tower::service_fn(move |_| {
        let (tls, name, host, seen) = (tls.clone(), name.clone(), host.clone(), seen.clone());
        async move {
            let connected = async {
                let stream = TcpStream::connect((host.as_str(), port)).await?;
                stream.set_nodelay(true)?;
                tls.connect(name, stream).await
            };
            let late = || io::Error::from(io::ErrorKind::TimedOut);
            let stream = timeout(PATIENCE, connected).await.map_err(|_| late())??;
            let chain = stream.get_ref().1.peer_certificates();
            seen.set(chain.and_then(|chain| chain.first()).map_or(&[], |leaf| leaf.as_ref()));
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    // What it is called in HTTP does not matter; whom it leads to, TLS looks at.
    let endpoint = tuned(Endpoint::from_static("http://balancer"));
    Ok((endpoint.connect_with_connector(connector).await?, shown))
}
