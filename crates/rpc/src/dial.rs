//! A channel to a balancer, over TLS in which both sides show a certificate: an agent's, or another balancer's.

use crate::tls::{Files, TlsError, refusal, server_name};
use hyper_util::rt::TokioIo;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

/// For a name, and for a connection and the handshake.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The files, or the name of the host.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The host's name has no address that is known here.
    #[error("the name {host} cannot be resolved ({why})")]
    Unresolved {
        /// The name.
        host: String,
        /// Why not.
        why: String,
    },
    /// The other side does not take the certificate, in words.
    #[error("{0}")]
    Refused(String),
    /// The connection.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// What the other side of a channel has shown and said, before anybody speaks by it.
#[derive(Clone, Default, Debug)]
pub struct Shown {
    /// The certificate of its last connection, in DER.
    certificate: Arc<Mutex<Arc<[u8]>>>,
    /// What it says of the certificate that it was shown, if it refuses that.
    refusal: Arc<Mutex<Option<String>>>,
}

impl Shown {
    /// The bytes of its certificate; none before the handshake.
    pub fn certificate(&self) -> Arc<[u8]> {
        Arc::clone(&self.certificate.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What it says of the certificate that it was shown, if it refuses that: whoever uses the channel hears no more
    /// than that it broke, as with TLS 1.3 this comes after the handshake.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, certificate: &[u8]) {
        *self.certificate.lock().unwrap_or_else(PoisonError::into_inner) = certificate.into();
    }

    fn note(&self, error: &io::Error) {
        if let Some(words) = refusal(error) {
            *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
        }
    }
}

/// The stream of a channel, which notes what the other side says at its end.
struct Watched {
    stream: TlsStream<TcpStream>,
    seen: Shown,
}

impl Watched {
    /// Where nothing can be written any more, what was said before may lie there unread.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(_)) = result {
            let mut byte = [0];
            let read = Pin::new(&mut self.stream).poll_read(context, &mut ReadBuf::new(&mut byte));
            if let Poll::Ready(Err(error)) = &read {
                self.seen.note(error);
            }
        }
        result
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read {
            self.seen.note(error);
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.written(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.written(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Where a host is: its addresses, with a port.
///
/// # Errors
/// [`DialError::Unresolved`].
pub async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
    let unresolved = |why: String| DialError::Unresolved { host: host.to_owned(), why };
    let found = match timeout(PATIENCE, lookup_host((host, port))).await {
        Ok(Ok(found)) => found.collect::<Vec<_>>(),
        Ok(Err(error)) => return Err(unresolved(error.to_string())),
        Err(_) => {
            return Err(unresolved(format!("there is no answer in {} s", PATIENCE.as_secs())));
        }
    };
    if found.is_empty() { Err(unresolved("it has no address".into())) } else { Ok(found) }
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
    let places = resolve(host, port).await?;
    Ok(dial_and_look(host, places, files, tuned).await?.0)
}

/// As [`dial`], where that host has been found to be, with what the balancer has shown.
///
/// # Errors
/// [`DialError`].
pub async fn dial_and_look(
    host: &str,
    places: Vec<SocketAddr>,
    files: &Files,
    tuned: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<(Channel, Shown), DialError> {
    let shown = Shown::default();
    let seen = shown.clone();
    let tls = TlsConnector::from(files.client()?);
    let name = server_name(host)?;
    let connector = tower::service_fn(move |_| {
        let (tls, name, places, seen) = (tls.clone(), name.clone(), places.clone(), seen.clone());
        async move {
            let connected = async {
                let stream = TcpStream::connect(places.as_slice()).await?;
                stream.set_nodelay(true)?;
                tls.connect(name, stream).await
            };
            let late = || io::Error::from(io::ErrorKind::TimedOut);
            let connected = timeout(PATIENCE, connected).await.map_err(|_| late())?;
            let stream = connected.inspect_err(|error| seen.note(error))?;
            let chain = stream.get_ref().1.peer_certificates();
            seen.set(chain.and_then(|chain| chain.first()).map_or(&[], |leaf| leaf.as_ref()));
            Ok::<_, io::Error>(TokioIo::new(Watched { stream, seen }))
        }
    });
    // What it is called in HTTP does not matter; whom it leads to, TLS looks at.
    let endpoint = tuned(Endpoint::from_static("http://balancer"));
    match endpoint.connect_with_connector(connector).await {
        Ok(channel) => Ok((channel, shown)),
        Err(error) => Err(shown.refusal().map_or(DialError::Transport(error), DialError::Refused)),
    }
}
