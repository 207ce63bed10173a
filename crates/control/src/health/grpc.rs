//! A check by the gRPC health protocol (`grpc.health.v1.Health/Check`): one call over HTTP/2. What a server
//! sends is bounded: its headers by [`HEAD`], the message by [`MESSAGE`], and all of it by the time that the
//! check has.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{HeaderMap, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::answer::{Good, Trouble};
use crate::config::Grpc;

/// Bytes of headers.
const HEAD: u32 = 16 << 10;
/// Bytes of an answer: the one that servers give has two.
const MESSAGE: usize = 4 << 10;
/// For an answer whose bytes are there, once the connection has ended.
const AFTER: Duration = Duration::from_millis(50);
/// Before each message stand a flag for compression and its length (gRPC over HTTP/2, "Length-Prefixed-Message").
const PREFIX: usize = 5;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
struct Asked {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, Message)]
struct Said {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SERVING`, of the statuses.
const SERVING: i32 = 1;
const STATUSES: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

/// The names of gRPC's codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Makes one call, and judges the answer. `scheme`: `http` or `https`.
pub(super) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    scheme: &str,
    grpc: &Grpc,
) -> Result<Good, Trouble> {
    let authority = grpc.host.clone().unwrap_or_else(|| address.to_string());
    let message = Asked { service: grpc.service.clone() }.encode_to_vec();
    let mut body = vec![0];
    // The configuration bounds the name.
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    let wrong = |error: hyper::http::Error| Trouble::Host(format!("no request: {error}"));
    let request = hyper::Request::builder()
        .method("POST")
        .uri(format!("{scheme}://{authority}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", concat!("weir/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(Bytes::from(body)))
        .map_err(wrong)?;
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| trouble(&error))?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(|error| trouble(&error))?;
        judge(answer, grpc).await
    };
    let (mut exchange, mut connection) = (pin!(exchange), pin!(connection));
    let ended = tokio::select! {
        done = &mut exchange => return done,
        ended = &mut connection => ended,
    };
    // What came before the end still counts; what has not come does not come any more, and a call that had not
    // begun would wait for ever.
    if let Ok(done) = timeout(AFTER, &mut exchange).await {
        return done;
    }
    Err(match ended {
        Err(error) => trouble(&error),
        Ok(()) => Trouble::Answer("no HTTP/2 answer: the connection was closed before it".into()),
    })
}

async fn judge(answer: Response<Incoming>, grpc: &Grpc) -> Result<Good, Trouble> {
    let code = answer.status().as_u16();
    if code != 200 {
        return Err(Trouble::Answer(format!("no gRPC answer: HTTP status {code}")));
    }
    // One without a message has the status among its headers.
    refused(answer.headers(), grpc)?;
    let (mut held, mut body) = (Vec::new(), answer.into_body());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| trouble(&error))?;
        if let Some(trailers) = frame.trailers_ref() {
            refused(trailers, grpc)?;
        }
        if let Ok(bytes) = frame.into_data() {
            held.extend_from_slice(&bytes);
        }
        if held.len() > MESSAGE {
            return Err(Trouble::Answer("no answer about health: it is too long".into()));
        }
    }
    let unread = || Trouble::Answer("no answer about health: its message cannot be read".into());
    let (prefix, message) = held.split_at_checked(PREFIX).ok_or_else(unread)?;
    if prefix[0] != 0 {
        return Err(Trouble::Answer("no answer about health: its message is compressed".into()));
    }
    let said = Said::decode(message).map_err(|_| unread())?;
    match usize::try_from(said.status).ok().and_then(|status| STATUSES.get(status)) {
        Some(_) if said.status == SERVING => Ok(Good::new("gRPC SERVING")),
        Some(status) => Err(Trouble::Answer(format!("gRPC health {status}, not SERVING"))),
        None => Err(Trouble::Answer(format!("gRPC health {}, not SERVING", said.status))),
    }
}

/// What `grpc-status` says, if that is no success.
fn refused(headers: &HeaderMap, grpc: &Grpc) -> Result<(), Trouble> {
    let Some(status) = headers.get("grpc-status") else { return Ok(()) };
    let status = String::from_utf8_lossy(status.as_bytes()).into_owned();
    let code = status.parse::<usize>().ok();
    if code == Some(0) {
        return Ok(());
    }
    let name = code.and_then(|code| CODES.get(code)).copied().unwrap_or(&status);
    let why = match (name, &*grpc.service) {
        ("NOT_FOUND", service) => format!(": the server knows no service {service:?}"),
        ("UNIMPLEMENTED", _) => ": the server has no health service".into(),
        _ => String::new(),
    };
    Err(Trouble::Answer(format!("gRPC status {name}{why}")))
}

/// hyper's error with its causes.
fn trouble(error: &hyper::Error) -> Trouble {
    let mut words = format!("no HTTP/2 answer: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words += &format!(": {error}");
        cause = error.source();
    }
    Trouble::Answer(words)
}
