//! The same by gRPC: each call stands for one request of HTTP. It is put together from the message, goes
//! through the same router (who may, how much, how long, what is expected, the audit log), and its answer is
//! put into a message. So there is one list, one set of rules and one place where things are done.
//!
//! The messages are those of `proto/weir/v1/weir.proto`, which is made of the same types as the OpenAPI
//! document ([`proto`] has the test); what is served goes by its descriptor.

mod message;
#[cfg(test)]
mod proto;

use super::client::quoted;
use super::guard::{self, Call, Gate, HEADER, Rule, Told};
use super::openapi::{Called, Pieces};
use super::server::Working;
use super::{Caller, Common, Refusal};
use crate::config::Role;
use crate::engine::Kind;
use axum::Router;
use axum::body::{Body, BodyDataStream, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode, Version};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use message::Dynamic;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use tonic::metadata::MetadataValue;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Code, Status};
use tower::ServiceExt;

/// The description of the API by gRPC.
pub const PROTO: &str = include_str!("../../proto/weir/v1/weir.proto");

/// The same for machines, with what it imports.
const DESCRIBED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weir.v1.bin"));

/// What the service is called.
const SERVICE: &str = "weir.v1.Balancer";

/// The kind of a refusal, beside the status of gRPC.
const KIND: &str = "weir-kind";

/// Bytes of the words of a refusal: they go into a header.
const WORDS: usize = 2048;

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIBED).expect("the build has described it"));

/// A call, and the request that it stands for.
struct Way {
    called: Called,
    input: MessageDescriptor,
    output: MessageDescriptor,
}

/// All calls, and where their requests go.
struct Calls {
    ways: BTreeMap<&'static str, Arc<Way>>,
    common: Arc<Common>,
    inner: Router,
}

/// The router of HTTP, and beside it the one of gRPC that leads to it.
pub(super) fn beside(inner: Router, called: Vec<Called>, common: &Arc<Common>) -> Router {
    let service = POOL.get_service_by_name(SERVICE);
    let methods = service.iter().flat_map(|service| service.methods());
    let methods: BTreeMap<String, _> =
        methods.map(|method| (method.name().to_owned(), method)).collect();
    let way = |called: Called| {
        let method = methods.get(called.name)?;
        let (input, output) = (method.input(), method.output());
        Some((called.name, Arc::new(Way { called, input, output })))
    };
    let ways = called.into_iter().filter_map(way).collect();
    let calls = Calls { ways, common: Arc::clone(common), inner: inner.clone() };
    let mut router =
        Router::new().route(&format!("/{SERVICE}/{{call}}"), any(call)).with_state(Arc::new(calls));
    // Whoever may look may also ask what there is to be asked.
    let rule = Rule { role: Role::Read, changes: false, often: false, most: 0, private: false };
    let gate = Gate { common: Arc::clone(common), rule };
    let about = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIBED)
    };
    if let (Ok(one), Ok(alpha)) = (about().build_v1(), about().build_v1alpha()) {
        let asked = Router::new()
            .route_service("/grpc.reflection.v1.ServerReflection/{call}", one)
            .route_service("/grpc.reflection.v1alpha.ServerReflection/{call}", alpha);
        router = router.merge(asked.layer(from_fn_with_state(gate, may_look)));
    }
    router.merge(inner)
}

/// Before reflection.
async fn may_look(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if let Some(refused) = not_grpc(&parts) {
        return refused;
    }
    let Some(caller) = parts.extensions.get::<Caller>() else { return unknown() };
    if let Err(words) = gate.admits(caller, &parts) {
        gate.record(caller, Told::of(&parts), StatusCode::FORBIDDEN, words.clone()).await;
        return refusal(Kind::Forbidden, StatusCode::FORBIDDEN, &words).into_http::<Body>();
    }
    next.run(Request::from_parts(parts, body)).await
}

/// What is no gRPC is answered as HTTP.
fn not_grpc(parts: &axum::http::request::Parts) -> Option<Response> {
    if parts.version != Version::HTTP_2 {
        let words = "this is a call of gRPC, which needs HTTP/2 (not at the page's address)".into();
        return Some(guard::refuse(StatusCode::BAD_REQUEST, words));
    }
    let kind = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let rest = kind.strip_prefix(b"application/grpc");
    if rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';'))) {
        return None;
    }
    let words = "this is a call of gRPC: Content-Type: application/grpc".into();
    Some(guard::refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, words))
}

fn unknown() -> Response {
    let words = "it is not known who asks";
    refusal(Kind::Forbidden, StatusCode::FORBIDDEN, words).into_http::<Body>()
}

/// A refusal, as gRPC has it.
fn refusal(kind: Kind, status: StatusCode, words: &str) -> Status {
    let code = match (kind, status) {
        (_, StatusCode::REQUEST_TIMEOUT) => Code::DeadlineExceeded,
        (_, StatusCode::PAYLOAD_TOO_LARGE) => Code::ResourceExhausted,
        (Kind::Invalid | Kind::File, _) => Code::InvalidArgument,
        (Kind::Forbidden, _) => Code::PermissionDenied,
        (Kind::NotFound, _) => Code::NotFound,
        (Kind::Conflict, _) => Code::FailedPrecondition,
        (Kind::Busy, _) => Code::Unavailable,
        (Kind::Failed, _) => Code::Internal,
    };
    let mut most = words.len().min(WORDS);
    while !words.is_char_boundary(most) {
        most -= 1;
    }
    let mut status = Status::new(code, &words[..most]);
    let name = serde_json::to_value(kind).ok();
    let name =
        name.as_ref().and_then(Json::as_str).and_then(|name| MetadataValue::try_from(name).ok());
    if let Some(name) = name {
        status.metadata_mut().insert(KIND, name);
    }
    status
}

async fn call(
    State(calls): State<Arc<Calls>>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    if let Some(refused) = not_grpc(&parts) {
        return refused;
    }
    let Some(caller) = parts.extensions.get::<Caller>().cloned() else { return unknown() };
    let Some(way) = calls.ways.get(name.as_str()).map(Arc::clone) else {
        let words = format!("{SERVICE} has no call {name:?}");
        return Status::unimplemented(words).into_http::<Body>();
    };
    // No form and no link of another site can send gRPC, as little as it could this header.
    parts.headers.insert(HEADER, HeaderValue::from_static("1"));
    let gate = Gate { common: Arc::clone(&calls.common), rule: way.called.rule };
    if let Err(words) = gate.admits(&caller, &parts) {
        parts.extensions.insert(Call(way.called.name));
        gate.record(&caller, Told::of(&parts), StatusCode::FORBIDDEN, words.clone()).await;
        return refusal(Kind::Forbidden, StatusCode::FORBIDDEN, &words).into_http::<Body>();
    }
    let most = gate.most(&caller);
    let (body, working) = match guard::taken(&mut parts, body, most + PREFIX).await {
        Ok(taken) => taken,
        Err((status, words)) => {
            return refusal(Kind::Invalid, status, &words).into_http::<Body>();
        }
    };
    let request = Request::from_parts(parts, Body::from(body));
    let codec = Dynamic(way.input.clone());
    let mut grpc = Grpc::new(codec).max_decoding_message_size(most);
    let pieces = way.called.pieces;
    let turn = Turn { way, caller, working, inner: calls.inner.clone() };
    let answer = match pieces {
        Pieces::One => grpc.unary(turn, request).await,
        Pieces::Lines | Pieces::Events => grpc.server_streaming(turn, request).await,
    };
    answer.map(Body::new).into_response()
}

/// One call that is worked at.
#[derive(Clone)]
struct Turn {
    way: Arc<Way>,
    caller: Caller,
    working: Option<Working>,
    inner: Router,
}

type Later<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

impl UnaryService<DynamicMessage> for Turn {
    type Response = DynamicMessage;
    type Future = Later<tonic::Response<DynamicMessage>>;

    fn call(&mut self, request: tonic::Request<DynamicMessage>) -> Self::Future {
        let turn = self.clone();
        async move {
            let answer = turn.ask(request.into_inner()).await?;
            let body = to_bytes(answer.into_body(), usize::MAX).await;
            let body = body.map_err(|error| failed(&error))?;
            Ok(tonic::Response::new(answered(&turn.way.output, &body)?))
        }
        .boxed()
    }
}

impl ServerStreamingService<DynamicMessage> for Turn {
    type Response = DynamicMessage;
    type ResponseStream = BoxStream<'static, Result<DynamicMessage, Status>>;
    type Future = Later<tonic::Response<Self::ResponseStream>>;

    fn call(&mut self, request: tonic::Request<DynamicMessage>) -> Self::Future {
        let turn = self.clone();
        async move {
            let answer = turn.ask(request.into_inner()).await?;
            let cut = Cut {
                body: answer.into_body().into_data_stream(),
                events: turn.way.called.pieces == Pieces::Events,
                read: Vec::new(),
            };
            let output = turn.way.output.clone();
            let pieces = stream::unfold(cut, |mut cut| async { Some((cut.next().await?, cut)) });
            let pieces = pieces.map(move |piece| answered(&output, &piece?));
            Ok(tonic::Response::new(pieces.boxed()))
        }
        .boxed()
    }
}

fn failed(error: &dyn std::fmt::Display) -> Status {
    refusal(Kind::Failed, StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
}

/// An answer of JSON, as a message.
fn answered(output: &MessageDescriptor, json: &[u8]) -> Result<DynamicMessage, Status> {
    let json: Json = serde_json::from_slice(json).map_err(|error| failed(&error))?;
    message::read(output, &json, &mut Vec::new()).map_err(|error| failed(&error))
}

impl Turn {
    /// Makes the request that the call stands for.
    async fn ask(&self, message: DynamicMessage) -> Result<Response, Status> {
        let request = self.request(&message)?;
        let answer = match self.inner.clone().oneshot(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap_or_default();
        let said: Refusal = serde_json::from_slice(&body).unwrap_or_else(|_| Refusal {
            error: String::from_utf8_lossy(&body).into_owned(),
            kind: Kind::Failed,
        });
        Err(refusal(said.kind, status, &said.error))
    }

    fn request(&self, message: &DynamicMessage) -> Result<Request, Status> {
        let invalid = |words: String| refusal(Kind::Invalid, StatusCode::BAD_REQUEST, &words);
        let called = &self.way.called;
        if let Some(field) = message.unknown_fields().next() {
            let words = format!("{} has no field {}", self.way.input.name(), field.number());
            return Err(invalid(words));
        }
        let mut fields = message::fields(message);
        let mut path = String::new();
        for (at, part) in called.path.split(['{', '}']).enumerate() {
            // Every other part stands in braces.
            if at % 2 == 0 {
                path += part;
                continue;
            }
            let value = message.get_field_by_name(part);
            fields.remove(part);
            match value.as_deref().map(plain) {
                Some(text) if !text.is_empty() => path += &quoted(&text),
                _ => return Err(invalid(format!("{part}: it is missing; say which one"))),
            }
        }
        let mut sign = '?';
        for (name, field) in &called.query {
            let value = message.get_field_by_name(field).filter(|_| fields.contains_key(field));
            fields.remove(field);
            if let Some(value) = value {
                path += &format!("{sign}{name}={}", quoted(&plain(&value)));
                sign = '&';
            }
        }
        let body = if called.takes { Json::Object(fields).to_string() } else { String::new() };
        let mut request = Request::builder()
            .method(called.method.to_ascii_uppercase().as_str())
            .uri(&path)
            .header(CONTENT_TYPE, "application/json")
            .header(HEADER, "1")
            .body(Body::from(body))
            .map_err(|error| invalid(error.to_string()))?;
        request.extensions_mut().insert(self.caller.clone());
        request.extensions_mut().insert(Call(called.name));
        if let Some(working) = &self.working {
            request.extensions_mut().insert(working.clone());
        }
        Ok(request)
    }
}

/// A value, as a path or a query has it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::U32(number) => number.to_string(),
        Value::U64(number) => number.to_string(),
        Value::I32(number) => number.to_string(),
        Value::I64(number) => number.to_string(),
        _ => String::new(),
    }
}

/// An answer that comes in pieces.
struct Cut {
    body: BodyDataStream,
    events: bool,
    read: Vec<u8>,
}

impl Cut {
    /// The next piece of JSON; none when there is no more.
    async fn next(&mut self) -> Option<Result<Vec<u8>, Status>> {
        loop {
            while let Some(piece) = self.piece() {
                let piece = if self.events { of_event(&piece) } else { Some(piece) };
                if let Some(piece) = piece.filter(|piece| !piece.is_empty()) {
                    return Some(Ok(piece));
                }
            }
            match self.body.next().await? {
                Ok(more) => self.read.extend_from_slice(&more),
                Err(error) => return Some(Err(failed(&error))),
            }
        }
    }

    /// Cuts the first piece off, if it is there whole.
    fn piece(&mut self) -> Option<Vec<u8>> {
        let end: &[u8] = if self.events { b"\n\n" } else { b"\n" };
        let at = self.read.windows(end.len()).position(|window| window == end)?;
        let piece = self.read[..at].to_vec();
        self.read.drain(..at + end.len());
        Some(piece)
    }
}

/// An event (the WHATWG's HTML standard, section 9.2.6), as one field by its name; none if it is a comment.
fn of_event(text: &[u8]) -> Option<Vec<u8>> {
    let (mut name, mut data) = (&b""[..], None);
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(rest) = line.strip_prefix(b"event: ") {
            name = rest;
        } else if let Some(rest) = line.strip_prefix(b"data: ") {
            data = Some(rest);
        }
    }
    Some([b"{\"", name, b"\":", data?, b"}"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Bytes;

    #[tokio::test]
    async fn answers_are_cut_where_their_pieces_end() {
        let sent = |text: &'static str| {
            // Byte by byte, as a network may.
            let bytes = text.bytes().map(|byte| Ok::<_, std::io::Error>(Bytes::from(vec![byte])));
            Body::from_stream(stream::iter(bytes.collect::<Vec<_>>())).into_data_stream()
        };
        let all = async |events: bool, text| {
            let cut = Cut { body: sent(text), events, read: Vec::new() };
            let pieces = stream::unfold(cut, |mut cut| async { Some((cut.next().await?, cut)) });
            let pieces: Vec<_> = pieces.collect().await;
            let text = |piece: Result<Vec<u8>, Status>| String::from_utf8(piece.expect("whole"));
            pieces.into_iter().map(|piece| text(piece).expect("text")).collect::<Vec<_>>()
        };
        assert_eq!(all(false, "{\"a\":1}\n\n{\"b\":2}\nhalf").await, ["{\"a\":1}", "{\"b\":2}"]);
        let events =
            ":\n\nevent: status\ndata: {\"a\":1}\n\n: kept\n\nevent: event\nid: 7\ndata: {}\n\n";
        assert_eq!(all(true, events).await, ["{\"status\":{\"a\":1}}", "{\"event\":{}}"]);
    }

    #[test]
    fn names_cannot_leave_their_place_in_a_path() {
        assert_eq!(quoted("web-4_a~"), "web-4_a~");
        assert_eq!(quoted("../a?b#c%/\u{fc}"), "%2E%2E%2Fa%3Fb%23c%25%2F%C3%BC");
    }

    #[test]
    fn words_of_a_refusal_are_bounded_and_its_kind_is_told() {
        let status = refusal(Kind::NotFound, StatusCode::NOT_FOUND, &"\u{fc}".repeat(5000));
        assert_eq!((status.code(), status.message().len()), (Code::NotFound, WORDS));
        assert_eq!(
            status.metadata().get(KIND).map(|kind| kind.as_bytes()),
            Some(&b"not_found"[..])
        );
        let late = refusal(Kind::Invalid, StatusCode::REQUEST_TIMEOUT, "late");
        assert_eq!(late.code(), Code::DeadlineExceeded);
    }

    #[test]
    fn every_call_that_is_described_is_served_and_the_other_way_round() {
        let service = POOL.get_service_by_name(SERVICE).expect("a service");
        let mut described: Vec<(String, bool)> = service
            .methods()
            .map(|method| (method.name().to_owned(), method.is_server_streaming()))
            .collect();
        let called = super::super::routes().into_iter().filter_map(|route| route.called());
        let mut served: Vec<(String, bool)> =
            called.map(|call| (call.name.to_owned(), call.pieces != Pieces::One)).collect();
        described.sort();
        served.sort();
        assert_eq!(described, served);
    }
}
