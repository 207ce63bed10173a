//! A check by HTTP. Whatever a server sends is bounded: its head by hyper's buffer, its body by
//! [`BODY`], and all of it by the time that the check has.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;

use http_body_util::{BodyExt, Empty};
use hyper::Response;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer::{Good, Trouble, contains};
use crate::config::{Http, Spoken, WeightIn};

/// A head that is longer than this, in bytes, is none.
const HEAD: usize = 16 << 10;
/// So many bytes of a body are looked through.
const BODY: usize = 64 << 10;
/// So many bytes are shown of what is no weight.
const SHOWN: usize = 32;

/// Makes one request, and judges the answer. `standard`: the port that URLs leave out.
pub(super) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    standard: u16,
    http: &Http,
) -> Result<Good, Trouble> {
    let host = http.host.clone().unwrap_or_else(|| match address {
        address if address.port() != standard => address.to_string(),
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    });
    let mut request = hyper::Request::builder()
        .method(&*http.method)
        .uri(&*http.path)
        .header("host", host)
        .header("user-agent", concat!("weir/", env!("CARGO_PKG_VERSION")))
        .header("accept", "*/*")
        .header("connection", "close");
    for (name, value) in &http.headers {
        request = request.header(name, value);
    }
    // The configuration refuses what makes no request.
    let wrong = |error: hyper::http::Error| Trouble::Host(format!("no request: {error}"));
    let request = request.body(Empty::<Bytes>::new()).map_err(wrong)?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| trouble(&error))?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(|error| trouble(&error))?;
        judge(http, answer).await
    };
    let (mut exchange, mut connection) = (pin!(exchange), pin!(connection));
    let mut closed = false;
    loop {
        tokio::select! {
            done = &mut exchange => return done,
            // What went wrong there is told to the exchange, and what came before the end still counts.
            _ = &mut connection, if !closed => closed = true,
        }
    }
}

async fn judge(http: &Http, answer: Response<Incoming>) -> Result<Good, Trouble> {
    let code = answer.status().as_u16();
    if !http.status.iter().any(|good| good.has(code)) {
        let good: Vec<String> = http.status.iter().map(ToString::to_string).collect();
        let words = format!("HTTP status {code}, not {}", good.join(", "));
        return Err(Trouble::Answer(words));
    }
    for (name, wanted) in &http.answer_headers {
        let mut values = answer.headers().get_all(name).iter().peekable();
        if values.peek().is_none() {
            return Err(Trouble::Answer(format!("HTTP status {code}, without the header {name}")));
        }
        if !values.any(|value| contains(value.as_bytes(), wanted.as_bytes())) {
            let words = format!("HTTP status {code}, and the header {name} is without {wanted:?}");
            return Err(Trouble::Answer(words));
        }
    }
    let in_header = match &http.weight {
        Some(WeightIn::Header(name)) => {
            Some(answer.headers().get(name).map(|one| one.as_bytes().to_vec()))
        }
        _ => None,
    };
    let in_body = match &http.weight {
        Some(WeightIn::Body(before)) => Some(before.as_bytes()),
        _ => None,
    };
    let wanted = http.body.as_ref().map(String::as_bytes);
    let says_end = says_its_end(answer.headers());
    if let (Some(value), Some(WeightIn::Header(name))) = (in_header, &http.weight) {
        look_through(answer.into_body(), wanted, (code, says_end)).await?;
        return Ok(weighed(code, name, value.as_deref()));
    }
    let Some(before) = in_body else {
        look_through(answer.into_body(), wanted, (code, says_end)).await?;
        return Ok(Good::new(format!("HTTP {code}")));
    };
    let body = beginning(answer.into_body()).await?;
    if wanted.is_some_and(|wanted| !contains(&body, wanted)) {
        return Err(without(code, body.len() >= BODY));
    }
    let mut places =
        (0..=body.len().saturating_sub(before.len())).filter(|at| body[*at..].starts_with(before));
    let found = places.next().map(|at| &body[at + before.len()..]);
    Ok(weighed(code, "the weight in the body", found))
}

/// A good answer that was to say a weight. One that does not, or says something that is none, is good all the same, and
/// leaves the weight as it was. `name`: what stands there is called so.
fn weighed(code: u16, name: &str, found: Option<&[u8]>) -> Good {
    let spoken = found.and_then(Spoken::parse);
    let said = match (spoken, found) {
        (Some(spoken), _) => format!("HTTP {code}, weight {spoken},"),
        (None, Some(found)) => {
            format!("HTTP {code}, {name} is {:?}, which is no weight,", shown(found))
        }
        (None, None) => format!("HTTP {code}, without a weight,"),
    };
    Good { spoken, ..Good::new(said) }
}

/// The first word of what stands where a weight is expected, or the beginning of it.
fn shown(found: &[u8]) -> String {
    let found = found.trim_ascii_start();
    let word = found.iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
    let text = String::from_utf8_lossy(&found[..word.min(SHOWN)]);
    if word > SHOWN { format!("{text}...") } else { text.into_owned() }
}

/// Whether the head says where the body ends. Else the end of the connection is its end.
fn says_its_end(head: &HeaderMap) -> bool {
    head.contains_key(CONTENT_LENGTH) || head.contains_key(TRANSFER_ENCODING)
}

fn without(code: u16, cut: bool) -> Trouble {
    Trouble::Answer(if cut {
        format!(
            "HTTP status {code}, and the first {} KiB of the body are without what is expected",
            BODY >> 10
        )
    } else {
        format!("HTTP status {code}, and the body is without what is expected")
    })
}

/// The body, or its beginning.
async fn beginning(mut body: Incoming) -> Result<Vec<u8>, Trouble> {
    let mut held = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(|error| trouble(&error))?.into_data() {
            held.extend_from_slice(&bytes);
        }
        if held.len() >= BODY {
            break;
        }
    }
    Ok(held)
}

/// Reads a body to its end, or as much of it as is looked through: a server that has begun to answer and does not go
/// on hangs, and the time that the check has is over. One that closes before the end that it has said has failed on its
/// way, whatever it has said before; where the end of the connection is the end, how that ends says nothing.
async fn look_through(
    mut body: Incoming,
    wanted: Option<&[u8]>,
    (code, says_end): (u16, bool),
) -> Result<(), Trouble> {
    let mut missing = wanted;
    let (mut held, mut seen) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Err(_) if missing.is_none() && !says_end => return Ok(()),
            frame => frame.map_err(|error| trouble(&error))?,
        };
        let Ok(bytes) = frame.into_data() else { continue };
        seen += bytes.len();
        if let Some(wanted) = missing {
            held.extend_from_slice(&bytes);
            if contains(&held, wanted) {
                missing = None;
            } else {
                // What is wanted may go on in the next part.
                held.drain(..held.len().saturating_sub(wanted.len() - 1));
            }
        }
        if seen >= BODY {
            break;
        }
    }
    if missing.is_none() { Ok(()) } else { Err(without(code, seen >= BODY)) }
}

/// Whether the connection has ended within a body.
fn is_cut_off(error: &hyper::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let of_system = error.downcast_ref::<io::Error>();
        if of_system.is_some_and(|one| one.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// hyper's error with its causes.
fn trouble(error: &hyper::Error) -> Trouble {
    if error.is_parse_too_large() {
        return Trouble::Answer(format!(
            "no HTTP answer: its head is longer than {} KiB",
            HEAD >> 10
        ));
    }
    if error.is_incomplete_message() || is_cut_off(error) {
        return Trouble::Answer(
            "no whole HTTP answer: the connection was closed before its end".into(),
        );
    }
    let mut words = format!("no HTTP answer: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words += &format!(": {error}");
        cause = error.source();
    }
    Trouble::Answer(words)
}
