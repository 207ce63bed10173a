//! Where the API is served: the socket, TLS, and plain HTTP for the page. A place for each connection, of
//! which there are so many at once: when all are taken, the one goes that has kept its own longest without
//! asking for anything.

use super::access::Caller;
use super::guard::Common;
use super::rest::Lent;
use super::socket::Door;
use crate::config::ApiTls;
use crate::pace::Pace;
use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpUserTimeout;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};
use weir_rpc::tls::not_let_in;

/// Connections at once, of each listener.
const PLACES: usize = 256;
/// For the head of a request, from when the one before was answered.
const HEAD: Duration = Duration::from_secs(30);
/// For the handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes of the head of a request.
const HEAD_BYTES: usize = 64 << 10;
/// Requests at once of a connection by HTTP/2.
const STREAMS: u32 = 16;
/// Milliseconds for which a client may take nothing of what it is sent, or confirm none of it.
const STALLED: u32 = 30_000;
/// For what is under way when a listener ends, as its certificates are others.
const GOODBYE: Duration = Duration::from_secs(10);
/// How often the log says that the certificate ends soon.
const DAY: Duration = Duration::from_secs(86_400);
/// How long an address that cannot be listened at is left alone.
const AGAIN: Duration = Duration::from_secs(5);

/// Whoever holds it works at a request, or reads a stream: its connection is not one that may go.
#[derive(Clone, Debug)]
pub(super) struct Working(Arc<()>);

/// What lets somebody work again that waits for the client.
#[derive(Debug)]
pub(super) struct Resting(Weak<()>);

impl Working {
    pub fn rest(self) -> Resting {
        Resting(Arc::downgrade(&self.0))
    }
}

impl Resting {
    /// None if the connection has gone.
    pub fn again(&self) -> Option<Working> {
        self.0.upgrade().map(Working)
    }
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, (AbortHandle, Arc<()>)>,
}

impl Places {
    /// Sees that there is a place; false if there is none.
    fn make_room(&mut self) -> bool {
        if self.taken.len() < PLACES {
            return true;
        }
        // Numbers are the order in which they came.
        let idle = self.taken.iter().find(|(_, (_, token))| Arc::strong_count(token) <= 2);
        let Some(number) = idle.map(|(number, _)| *number) else { return false };
        if let Some((task, _)) = self.taken.remove(&number) {
            task.abort();
        }
        true
    }
}

/// Gives the place back.
struct Place {
    places: Arc<Mutex<Places>>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places).taken.remove(&self.number);
    }
}

fn lock(places: &Mutex<Places>) -> std::sync::MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections of a listener. They end with it, when the requests that are under way have their answers:
/// one of them may have had the listener end.
#[derive(Default)]
struct Crowd {
    tasks: JoinSet<()>,
    places: Arc<Mutex<Places>>,
    ending: watch::Sender<bool>,
}

/// What a connection of a crowd is given.
struct Seat {
    /// Says that it works.
    token: Arc<()>,
    /// Whether its listener has ended.
    ending: watch::Receiver<bool>,
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.ending.send_replace(true);
        let mut tasks = std::mem::take(&mut self.tasks);
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let all = async { while tasks.join_next().await.is_some() {} };
            // Streams have no end of their own.
            let _ = timeout(GOODBYE, all).await;
        });
    }
}

impl Crowd {
    /// Takes a connection in.
    fn take<F: Future<Output = ()> + Send + 'static>(&mut self, serve: impl FnOnce(Seat) -> F) {
        while self.tasks.try_join_next().is_some() {}
        let mut places = lock(&self.places);
        if !places.make_room() {
            // It is closed at once; whoever it is sees that, and does not wait.
            return;
        }
        let number = places.next;
        places.next += 1;
        let token = Arc::new(());
        let place = Place { places: Arc::clone(&self.places), number };
        let serving = serve(Seat { token: Arc::clone(&token), ending: self.ending.subscribe() });
        let task = self.tasks.spawn(async move {
            serving.await;
            drop(place);
        });
        places.taken.insert(number, (task, token));
    }
}

/// What a client may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    /// HTTP/1.1, as for the page in the clear.
    One,
    /// Also HTTP/2, which gRPC needs.
    Both,
}

/// Answers the requests of a connection.
async fn answer<S>(mut stream: S, speech: Speech, router: Router, caller: Caller, seat: Seat)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Seat { token, mut ending } = seat;
    let ends = async move {
        let _ = ending.wait_for(|ending| *ending).await;
    };
    tokio::pin!(ends);
    let mut head = Vec::new();
    let begun = async {
        match speech {
            Speech::One => Some(false),
            Speech::Both => timeout(HEAD, begins_two(&mut stream, &mut head)).await.ok()?.ok(),
        }
    };
    // Nobody is let in by what holds no more.
    let two = tokio::select! {
        biased;
        () = &mut ends => None,
        two = begun => two,
    };
    let Some(two) = two else { return };
    let stream = TokioIo::new(Ahead { head: head.into(), stream });
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        // By HTTP/1.1 such an answer ends the connection, and says so.
        let (body, rest) = if two {
            let (lent, rest) = Lent::of(body);
            (Body::new(lent), Some(rest))
        } else {
            (Body::new(body), None)
        };
        let mut request = Request::from_parts(head, body);
        request.extensions_mut().insert(caller.clone());
        request.extensions_mut().insert(Working(Arc::clone(&token)));
        let answered = router.call(request);
        async move {
            let answer = answered.await;
            if let Some(rest) = rest {
                rest.read().await;
            }
            answer
        }
    });
    let served = if two {
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(HEAD)
            .keep_alive_timeout(HANDSHAKE)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEAD_BYTES as u32)
            .max_send_buf_size(HEAD_BYTES)
            .serve_connection(stream, service);
        serve_until(connection, ends).await
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(stream, service);
        serve_until(connection, ends).await
    };
    if let Err(error) = served {
        debug!(%error, "a connection of the API has ended");
    }
}

/// Serves a connection; when its listener ends, it takes no more requests, and ends with the last answer.
async fn serve_until<C: GracefulConnection>(
    connection: C,
    ends: impl Future<Output = ()>,
) -> Result<(), C::Error> {
    tokio::pin!(connection);
    tokio::select! {
        served = connection.as_mut() => served,
        () = ends => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

/// What every connection of HTTP/2 begins with (RFC 9113, section 3.4); no request of HTTP/1.1 does.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether a client begins HTTP/2; what was read for that is left in `head`.
async fn begins_two<S>(stream: &mut S, head: &mut Vec<u8>) -> io::Result<bool>
where
    S: AsyncRead + Unpin,
{
    while PREFACE.starts_with(head.as_slice()) && head.len() < PREFACE.len() {
        if stream.read_buf(head).await? == 0 {
            return Ok(false);
        }
    }
    Ok(head.starts_with(PREFACE))
}

/// A connection of which something was read already.
struct Ahead<S> {
    head: Bytes,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.head.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let length = self.head.len().min(buffer.remaining());
        buffer.put_slice(&self.head.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ahead<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Serves at the socket, until it is dropped. Where that is made again, connections by the former one go on.
pub(super) async fn at_socket(
    (mut listener, mut door): (UnixListener, Door),
    router: Router,
) -> io::Result<()> {
    let mut crowd = Crowd::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            again = door.made_again() => {
                listener = again;
                continue;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if passes(&error) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let router = router.clone();
        let known = stream.peer_cred().ok();
        crowd.take(move |seat| async move {
            // Names may come from far away.
            let who = move || {
                let known = known.as_ref();
                Caller::at_socket(
                    known.map(tokio::net::unix::UCred::uid),
                    known.map(tokio::net::unix::UCred::gid),
                    known.and_then(tokio::net::unix::UCred::pid),
                )
            };
            let Ok(caller) = tokio::task::spawn_blocking(who).await else { return };
            answer(stream, Speech::Both, router, caller, seat).await;
        });
    }
}

/// Whether an error of `accept` is one of that connection, or of a lack of descriptors.
fn passes(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let known = error.raw_os_error().map(Errno::from_raw);
    !matches!(known, Some(Errno::EBADF | Errno::EINVAL | Errno::ENOTSOCK))
}

/// What is served beside the socket, for people.
const PAGE: &str = "page";
const BY_TLS: &str = "API by TLS";

/// Listens at an address, as soon as that can be. Until then the status says that there is none of what is served there.
pub(crate) async fn listen_at(
    address: SocketAddr,
    what: &'static str,
    common: &Common,
) -> TcpListener {
    let mut warned = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(%address, "{what}");
                common.say_of(what, None);
                return listener;
            }
            Err(error) => {
                if !warned {
                    warn!(%address, %error, "no {what}: cannot listen there; it is tried again");
                    warned = true;
                }
                let why = format!("no {what}: cannot listen at {address}: {error}; tried again");
                common.say_of(what, Some(why));
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                // A watcher that takes nothing has a place and a stream that others want.
                let _ = setsockopt(&stream, TcpUserTimeout, &STALLED);
                return (stream, from);
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Serves the page in plain HTTP, until it is dropped.
pub(super) async fn in_plain(address: Option<SocketAddr>, router: Router, common: Arc<Common>) {
    common.say_of(PAGE, None);
    let Some(address) = address else { return std::future::pending().await };
    let listener = listen_at(address, PAGE, &common).await;
    let mut crowd = Crowd::default();
    loop {
        let (stream, from) = accept(&listener).await;
        let router = router.clone();
        crowd.take(move |seat| answer(stream, Speech::One, router, Caller::anybody(from), seat));
    }
}

/// Serves by TLS, until it is dropped.
pub(super) async fn by_tls(wanted: Option<ApiTls>, router: Router, common: Arc<Common>) {
    common.say_of(BY_TLS, None);
    common.own_ends_at(None);
    let Some(wanted) = wanted else { return std::future::pending().await };
    let mut warned = false;
    let acceptor = loop {
        let papers = Papers::read(&wanted);
        let ends = papers.as_ref().ok().and_then(Papers::ends);
        match papers.and_then(|papers| acceptor(&wanted, papers)) {
            Ok(acceptor) => {
                common.own_ends_at(ends);
                break acceptor;
            }
            Err(error) => {
                if !warned {
                    warn!("the API is not served by TLS, and it is tried again: {error}");
                    warned = true;
                }
                common.say_of(BY_TLS, Some(format!("no {BY_TLS}: {error}")));
            }
        }
        tokio::time::sleep(AGAIN).await;
    };
    let listener = listen_at(wanted.listen, BY_TLS, &common).await;
    let mut crowd = Crowd::default();
    let mut daily = tokio::time::interval(DAY);
    loop {
        let (stream, from) = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = daily.tick() => {
                if let Some(said) = common.ending() {
                    warn!("{said}");
                }
                continue;
            }
        };
        let (router, acceptor, ca) = (router.clone(), acceptor.clone(), wanted.client_ca.clone());
        crowd.take(move |seat| async move {
            let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return warn_of(from, &not_let_in(&error, &ca)),
                Err(_) => return warn_of(from, "it takes too long"),
            };
            let certificates = stream.get_ref().1.peer_certificates();
            let Some(own) = certificates.and_then(<[_]>::first) else { return };
            let caller = Caller::with_certificate(own, from);
            answer(stream, Speech::Both, router, caller, seat).await;
        });
    }
}

/// Says that somebody was not let in, now and then: whoever asks a thousand times fills no log.
fn warn_of(from: SocketAddr, error: &str) {
    static PACE: Pace = Pace::new(1);
    if let Some(unsaid) = PACE.take() {
        warn!(%from, unsaid, "API: refused in the handshake of TLS: {error}");
    }
}

fn wrong(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{} cannot be used: {error}", path.display())
}

/// What a listener by TLS shows, and whom it believes, as it stands in its files.
#[derive(PartialEq, Eq)]
pub(super) struct Papers {
    own: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authorities: Vec<CertificateDer<'static>>,
}

impl Papers {
    /// When the own certificate ends, in seconds since 1970.
    fn ends(&self) -> Option<i64> {
        self.own.first().and_then(|own| crate::certificates::ends(own))
    }

    /// # Errors
    /// What is wrong with which file.
    pub fn read(wanted: &ApiTls) -> Result<Self, String> {
        for path in [&wanted.certificate, &wanted.key, &wanted.client_ca] {
            // A pipe would keep whoever opens it.
            if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
                return Err(wrong(path, &"it is no regular file"));
            }
        }
        let read = |path: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
            let all = CertificateDer::pem_file_iter(path).map_err(|error| wrong(path, &error))?;
            let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(path, &error))?;
            if all.is_empty() {
                Err(wrong(path, &"there is no certificate in it"))
            } else {
                Ok(all)
            }
        };
        Ok(Self {
            own: read(&wanted.certificate)?,
            key: PrivateKeyDer::from_pem_file(&wanted.key).map_err(|e| wrong(&wanted.key, &e))?,
            authorities: read(&wanted.client_ca)?,
        })
    }
}

/// Looks whether the API can be served by TLS with what stands in these files, and when the certificate ends.
///
/// # Errors
/// What is wrong with which file.
pub(crate) fn look_at_papers(wanted: &ApiTls) -> Result<Option<i64>, String> {
    let papers = Papers::read(wanted)?;
    let ends = papers.ends();
    acceptor(wanted, papers)?;
    Ok(ends)
}

/// # Errors
/// What is wrong with which file.
fn acceptor(wanted: &ApiTls, papers: Papers) -> Result<TlsAcceptor, String> {
    let Papers { own, key, authorities } = papers;
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority).map_err(|error| wrong(&wanted.client_ca, &error))?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| wrong(&wanted.client_ca, &error))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_single_cert(own, key)
        .map_err(|error| wrong(&wanted.certificate, &error))?;
    // gRPC speaks to nobody who does not say that it knows HTTP/2.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
