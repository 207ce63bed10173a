//! The control API: HTTP with JSON at a Unix socket (`curl --unix-socket` works too), by mutual TLS, and
//! for the page in a browser; docs/api.md. [`openapi()`] describes every request.
//!
//! A request that is refused is answered with `{"error": "...", "kind": "..."}`:
//!
//! | status | kind | why |
//! |---|---|---|
//! | 400 | `invalid` | the request makes no sense, whatever is in force |
//! | 403 | `forbidden` | whoever asks may not |
//! | 404 | `not_found` | there is no such service or backend |
//! | 409 | `conflict` | it contradicts what is in force, or not the change was the last that was expected |
//! | 422 | `file` | the configuration file cannot be used |
//! | 500 | `failed` | it was tried, and failed; `weir status` shows what is tried again |
//! | 503 | `busy` | the instance is stopping or at another change of limits, or there is no room for another stream |
//!
//! 405, 408, 413 and 415 are HTTP's own, with the kind `invalid`.

mod access;
mod audit;
mod body;
mod client;
mod grpc;
mod guard;
mod openapi;
mod rest;
mod server;
mod socket;
pub mod wait;
mod watch;

pub use client::{Client, ClientError, PATIENCE, quoted};
pub use grpc::PROTO;
pub use socket::listen;
pub(crate) use socket::may_listen;
pub use watch::{EventList, Rate, Rates};

use crate::config::{Backend, Role, Source};
use crate::engine::{
    Apply, Asked, Command, EngineError, Events, Explanation, FleetStatus, Front, HistoryReport,
    Kind, ListSource, PlanReport, Sender, ServiceStatus, Status, TraceLine, TraceRequest,
};
use crate::snapshot::Snapshot;
use access::Caller;
use axum::body::Body;
use axum::extract::{Extension, FromRef, FromRequest, Path, Query, Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use futures_util::stream;
pub(crate) use guard::Common;
use hyper::body::Bytes;
use openapi::Route;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use server::Working;
pub(crate) use server::{listen_at, look_at_papers};
use socket::Door;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::{fmt, io};
use tokio::net::UnixListener;
use tokio::sync::{oneshot, watch as updates};
use watch::{EventQuery, Hub, RateQuery, WatchLine, WatchQuery};
use weir_announce::Report;
use weir_wire::quic::Id;
use weir_wire::{FlowKey, Protocol};

/// A backend to be added.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBackend {
    /// Name, unique in the service.
    pub name: String,
    /// Address, of the family of the service's.
    pub address: IpAddr,
    /// The port that its packets get, where they are translated.
    #[serde(default)]
    pub port: Option<u16>,
    /// Share of the new connections, 0 to 65,535; 0 gets none.
    #[serde(default = "one")]
    pub weight: u16,
    /// Under full NAT, those of balancer.nat_sources that its connections come from; else all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat_sources: Vec<IpAddr>,
}

fn one() -> u16 {
    1
}

/// A flow to be explained.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowRequest {
    /// Protocol of the flow, `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Client's address and port.
    pub source: SocketAddr,
    /// Service's address and port.
    pub destination: SocketAddr,
    /// The destination connection id of a QUIC packet of it, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_id: Option<String>,
}

/// Body of a drain request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// `true`: no new connections from now on; `false`: new ones again.
    pub drain: bool,
}

/// Body of a weight request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightRequest {
    /// New weight, 0 to 65,535; with 0 the backend gets no new connection.
    pub weight: u16,
}

/// Body of a load request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRequest {
    /// How loaded the backend is: a number of 0 or more, in any unit that is the same for all backends
    /// of the service.
    pub load: f64,
}

/// A prefix that is to be taken back from a service's lists.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnlistSource {
    /// The prefix, as it was given.
    pub prefix: String,
}

/// Body of a reload request; without one, the defaults.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReloadRequest {
    /// Also where that breaks connections.
    pub break_connections: bool,
}

/// Body of a plan request; without one, the instance's own file.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlanRequest {
    /// Absolute path of the file; with a text, what problems call that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The text of a configuration, whole, as TOML, in place of a file's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Body of a rollback request; without one, the defaults.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RollbackRequest {
    /// The change whose file is to be in force again; none: the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Also where that breaks connections.
    pub break_connections: bool,
}

/// The file of a change.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FileText {
    /// The text of the configuration file, whole, as TOML.
    pub text: String,
}

/// What a backend is to be.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WantedBackend {
    /// Address, of the family of the service's. Of a backend that is there it cannot change.
    pub address: IpAddr,
    /// The port that its packets get, where they are translated.
    #[serde(default)]
    pub port: Option<u16>,
    /// Share of the new connections, 0 to 65,535; 0 gets none.
    #[serde(default = "one")]
    pub weight: u16,
    /// Gets no new connection, and keeps those that it has.
    #[serde(default)]
    pub drain: bool,
    /// Under full NAT, those of balancer.nat_sources that its connections come from; else all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat_sources: Vec<IpAddr>,
}

/// What every change may expect.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Expected {
    /// Refused with 409 if the last change of the instance has another number (`change` of the status).
    /// Whoever asks again with the same number has it done once.
    #[serde(deserialize_with = "whole")]
    #[schemars(range(max = u64::MAX))]
    expect: Option<u64>,
}

/// A whole number of a query, where all is text.
fn whole<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| whole_of(&text).map_err(serde::de::Error::custom)).transpose()
}

/// A whole number. By JSON Schema `306.0` is one, too.
fn whole_of<T: FromStr>(text: &str) -> Result<T, T::Err> {
    let digits = match text.split_once('.') {
        Some((digits, rest)) if !rest.is_empty() && rest.bytes().all(|byte| byte == b'0') => digits,
        _ => text,
    };
    digits.parse()
}

/// Answer to a change.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// What was done, as a sentence for a person.
    pub done: String,
    /// Number of the last change of the instance, this one included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<u64>,
}

/// Answer to a request that was refused.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// Why nothing was done, as a sentence for a person.
    pub error: String,
    /// The same for a program.
    #[serde(default = "failed")]
    pub kind: Kind,
}

fn failed() -> Kind {
    Kind::Failed
}

struct Failure(Kind, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match self.0 {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::File => StatusCode::UNPROCESSABLE_ENTITY,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Conflict => StatusCode::CONFLICT,
            Kind::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(Refusal { error: self.1, kind: self.0 })).into_response()
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self(error.kind(), error.to_string())
    }
}

type Reply<T> = Result<Json<T>, Failure>;

/// The answer to a change; `same`: what was asked for was so already.
struct Changed {
    answer: Answer,
    same: bool,
}

/// Goes along with an answer to say so.
#[derive(Clone, Copy, Debug)]
struct Same;

impl IntoResponse for Changed {
    fn into_response(self) -> Response {
        let mut response = Json(self.answer).into_response();
        if self.same {
            response.extensions_mut().insert(Same);
        }
        response
    }
}

/// Sends a command and waits for the answer.
async fn ask<T>(
    engine: &Sender,
    command: impl FnOnce(oneshot::Sender<Result<T, EngineError>>) -> Command,
) -> Result<T, Failure> {
    let gone = || Failure(Kind::Busy, "weir is stopping".into());
    let (reply, answer) = oneshot::channel();
    engine.send(command(reply)).await.map_err(|_| gone())?;
    Ok(answer.await.map_err(|_| gone())??)
}

/// A body of JSON.
struct Input<T>(T);

/// A body of JSON, or none, for the defaults.
struct Maybe<T>(T);

/// A body that makes no sense, and HTTP's status for it.
struct Senseless(StatusCode, String);

impl IntoResponse for Senseless {
    fn into_response(self) -> Response {
        guard::refuse(self.0, self.1)
    }
}

fn read<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, Senseless> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let media = kind.split(';').next().unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case("application/json") {
        let words =
            format!("the body is {media:?}; send JSON, with Content-Type: application/json");
        return Err(Senseless(StatusCode::UNSUPPORTED_MEDIA_TYPE, words));
    }
    // An array of the right length would be taken for the fields in their order.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        let words = "the body: an array; send an object".into();
        return Err(Senseless(StatusCode::BAD_REQUEST, words));
    }
    body::from_json(body)
        .map_err(|wrong| Senseless(StatusCode::BAD_REQUEST, format!("the body: {wrong}")))
}

/// Headers and body of a request.
async fn taken(request: Request, state: &Shared) -> Result<(HeaderMap, Bytes), Senseless> {
    let headers = request.headers().clone();
    let odd = |error| Senseless(StatusCode::BAD_REQUEST, format!("the body: {error}"));
    Ok((headers, Bytes::from_request(request, state).await.map_err(odd)?))
}

impl<T: DeserializeOwned> FromRequest<Shared> for Input<T> {
    type Rejection = Senseless;

    async fn from_request(request: Request, state: &Shared) -> Result<Self, Senseless> {
        let (headers, body) = taken(request, state).await?;
        read(&headers, &body).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Shared> for Maybe<T> {
    type Rejection = Senseless;

    async fn from_request(request: Request, state: &Shared) -> Result<Self, Senseless> {
        let (headers, body) = taken(request, state).await?;
        if body.is_empty() { Ok(Self(T::default())) } else { read(&headers, &body).map(Self) }
    }
}

/// Whoever asks, and what they expect.
type Asker = (Extension<Caller>, Query<Expected>);

/// As [`ask`], for what changes something.
async fn change(
    engine: &Sender,
    (Extension(caller), Query(Expected { expect })): Asker,
    command: impl FnOnce(oneshot::Sender<Result<String, EngineError>>) -> Command,
) -> Result<Changed, Failure> {
    let (last, number) = oneshot::channel();
    let asked = |reply| {
        let command = command(reply);
        Command::Asked(Box::new(Asked { who: caller.who, expect, command, last }))
    };
    let done = ask(engine, asked).await?;
    let last = number.await.ok();
    let answer = Answer { done, change: last.map(|last| last.number) };
    Ok(Changed { answer, same: last.is_some_and(|last| last.same) })
}

async fn status(State(engine): State<Sender>, State(common): State<Arc<Common>>) -> Reply<Status> {
    let status = ask(&engine, Command::Status).await?;
    Ok(Json(common.complete(status).await))
}

impl FlowRequest {
    /// # Errors
    /// If something is asked for that flows of the protocol do not have.
    pub(crate) fn has_what_it_may(&self, protocol: Protocol) -> Result<(), String> {
        if self.connection_id.is_none() || protocol == Protocol::Udp {
            return Ok(());
        }
        Err(format!(
            "connection_id: packets of {} have none; leave it out, or give the protocol udp, which QUIC goes over",
            self.protocol
        ))
    }

    /// The flow, and the id of a packet of it.
    fn parse(&self) -> Result<(FlowKey, Option<Id>), Failure> {
        let protocol: Protocol = self
            .protocol
            .parse()
            .map_err(|error| Failure(Kind::Invalid, format!("protocol: {error}")))?;
        if self.source.is_ipv4() != self.destination.is_ipv4() {
            let wrong = "source and destination must be of one family".into();
            return Err(Failure(Kind::Invalid, wrong));
        }
        self.has_what_it_may(protocol).map_err(|wrong| Failure(Kind::Invalid, wrong))?;
        let id = self.connection_id.as_deref().map(|text| {
            let wrong = format!("connection_id: {text:?} is not 1 to 20 bytes in hexadecimal");
            Id::from_hex(text)
                .filter(|id| !id.as_bytes().is_empty())
                .ok_or(Failure(Kind::Invalid, wrong))
        });
        Ok((FlowKey::new(self.source, self.destination, protocol), id.transpose()?))
    }
}

async fn explain_here(engine: &Sender, request: &FlowRequest) -> Result<Explanation, Failure> {
    let (flow, id) = request.parse()?;
    let flow = Box::new(flow);
    ask(engine, |reply| Command::Explain(flow, id, reply)).await
}

/// What this balancer would do with a flow that another one asks all for.
pub(crate) async fn answer_question(engine: &Sender, question: Value) -> Option<Value> {
    let request: FlowRequest = serde_json::from_value(question).ok()?;
    serde_json::to_value(explain_here(engine, &request).await.ok()?).ok()
}

async fn explain(
    State(engine): State<Sender>,
    Input(request): Input<FlowRequest>,
) -> Reply<Explanation> {
    let mut said = explain_here(&engine, &request).await?;
    let Some(asks) = fleet_asks(&engine).await? else { return Ok(Json(said)) };
    let question = serde_json::to_value(&request).unwrap_or_default();
    let (then, answers) = oneshot::channel();
    let sent = asks.send(weir_fleet::Ask::Question { question, then }).await.is_ok();
    let answers = if sent { answers.await.ok() } else { None };
    let fleet = ask(&engine, Command::FleetStatus).await?;
    // Without the store this balancer can say what it does itself, and whom it could not ask.
    let failed = match answers {
        Some(Ok(answers)) => {
            let read = |answer| serde_json::from_value(answer).ok();
            let all = answers.into_iter().map(|(name, answer)| (name, answer.and_then(read)));
            said.beside(&fleet.name, all);
            None
        }
        Some(Err(error)) => Some(error.to_string()),
        None => Some("the instance is stopping".into()),
    };
    said.unasked(&fleet, failed.as_deref());
    Ok(Json(said))
}

async fn fleet_asks(engine: &Sender) -> Result<Option<weir_fleet::Asks>, Failure> {
    let (reply, asks) = oneshot::channel();
    let ended = || Failure(Kind::Busy, "the instance is stopping".into());
    engine.send(Command::FleetAsks(reply)).await.map_err(|_| ended())?;
    asks.await.map_err(|_| ended())
}

async fn fleet(State(engine): State<Sender>) -> Reply<FleetStatus> {
    Ok(Json(ask(&engine, Command::FleetStatus).await?))
}

/// Forgets a balancer that is away: one that is there says at once that it is.
async fn forget(State(engine): State<Sender>, Path(name): Path<String>) -> Reply<Answer> {
    let status = ask(&engine, Command::FleetStatus).await?;
    let known = status.balancers.iter().find(|balancer| balancer.name == name);
    let known = known
        .ok_or_else(|| Failure(Kind::NotFound, format!("the fleet has no balancer {name}")))?;
    // Who is unknown the store knows, and says why nothing can be asked of it.
    if known.role != "away" && known.role != "unknown" {
        let wrong = format!("{name} is not away; end it first");
        return Err(Failure(Kind::Conflict, wrong));
    }
    let asks = fleet_asks(&engine).await?;
    let (then, done) = oneshot::channel();
    let gone = || Failure(Kind::Busy, "the instance is stopping".into());
    let asks = asks.ok_or_else(gone)?;
    asks.send(weir_fleet::Ask::Forget { name: name.clone(), then }).await.map_err(|_| gone())?;
    done.await.map_err(|_| gone())?.map_err(EngineError::from)?;
    Ok(Json(Answer { done: format!("{name} is forgotten"), change: None }))
}

async fn add(
    State(engine): State<Sender>,
    from: Asker,
    Path(service): Path<String>,
    Input(new): Input<NewBackend>,
) -> Result<Changed, Failure> {
    let NewBackend { name, address, port, weight, nat_sources } = new;
    let backend = Backend { name, address, port, weight, drain: false, backup: false, nat_sources };
    change(&engine, from, |reply| Command::Add(service, Box::new(backend), reply)).await
}

async fn remove(
    State(engine): State<Sender>,
    from: Asker,
    Path((service, backend)): Path<(String, String)>,
) -> Result<Changed, Failure> {
    change(&engine, from, |reply| Command::Remove(service, backend, reply)).await
}

async fn drain(
    State(engine): State<Sender>,
    from: Asker,
    Path((service, backend)): Path<(String, String)>,
    Input(DrainRequest { drain }): Input<DrainRequest>,
) -> Result<Changed, Failure> {
    change(&engine, from, |reply| Command::Drain(service, backend, drain, reply)).await
}

async fn announced(State(engine): State<Sender>) -> Reply<Report> {
    Ok(Json(ask(&engine, Command::Announced).await?))
}

async fn drain_self(
    State(engine): State<Sender>,
    from: Asker,
    Input(DrainRequest { drain }): Input<DrainRequest>,
) -> Result<Changed, Failure> {
    change(&engine, from, |reply| Command::DrainSelf(drain, reply)).await
}

async fn weight(
    State(engine): State<Sender>,
    from: Asker,
    Path((service, backend)): Path<(String, String)>,
    Input(WeightRequest { weight }): Input<WeightRequest>,
) -> Result<Changed, Failure> {
    change(&engine, from, |reply| Command::Weight(service, backend, weight, reply)).await
}

async fn load(
    State(engine): State<Sender>,
    Path((service, backend)): Path<(String, String)>,
    Input(LoadRequest { load }): Input<LoadRequest>,
) -> Reply<Answer> {
    let done = ask(&engine, |reply| Command::Load(service, backend, load, reply)).await?;
    Ok(Json(Answer { done, change: None }))
}

async fn list(
    State(engine): State<Sender>,
    from: Asker,
    Path(service): Path<String>,
    Input(wanted): Input<ListSource>,
) -> Result<Changed, Failure> {
    change(&engine, from, |reply| Command::List(service, wanted, reply)).await
}

async fn unlist(
    State(engine): State<Sender>,
    from: Asker,
    Path(service): Path<String>,
    Input(UnlistSource { prefix }): Input<UnlistSource>,
) -> Result<Changed, Failure> {
    change(&engine, from, |reply| Command::Unlist(service, prefix, reply)).await
}

async fn plan(
    State(engine): State<Sender>,
    Extension(caller): Extension<Caller>,
    State(common): State<Arc<Common>>,
    Maybe(PlanRequest { file, text }): Maybe<PlanRequest>,
) -> Reply<PlanReport> {
    if let Some(file) = file.as_ref().filter(|file| text.is_none() && !file.is_absolute()) {
        let wrong = format!("file: {} is not an absolute path", file.display());
        return Err(Failure(Kind::Invalid, wrong));
    }
    // What is wrong with a file is told, and so would be what stands in it.
    if file.is_some() && text.is_none() && common.role(&caller) != Some(Role::Admin) {
        let wrong = "file: a plan by any file of this host's needs the role admin".into();
        return Err(Failure(Kind::Forbidden, wrong));
    }
    // It may name files, too.
    if text.is_some() && common.role(&caller) != Some(Role::Admin) {
        let wrong = "text: a plan by any text needs the role admin".into();
        return Err(Failure(Kind::Forbidden, wrong));
    }
    let from = match (file, text) {
        (file, Some(text)) => {
            let name = file.map_or("text".into(), |file| file.display().to_string());
            Some(Source::text(name, &text))
        }
        (file, None) => file.map(Source::File),
    };
    Ok(Json(ask(&engine, |reply| Command::Plan(from, reply)).await?))
}

async fn trace(
    State(engine): State<Sender>,
    Extension(working): Extension<Working>,
    Maybe(request): Maybe<TraceRequest>,
) -> Result<Response, Failure> {
    let request = Box::new(request);
    let back = engine.clone();
    let lines = ask(&engine, |reply| Command::Trace(request, back, reply)).await?;
    let lines = stream::unfold((lines, working), |(mut lines, working)| async {
        let line = lines.recv().await?;
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        Some((Ok::<_, Infallible>(text), (lines, working)))
    });
    let headers = [(CONTENT_TYPE, "application/x-ndjson")];
    Ok((headers, Body::from_stream(lines)).into_response())
}

async fn reload(
    State(engine): State<Sender>,
    from: Asker,
    Maybe(ReloadRequest { break_connections }): Maybe<ReloadRequest>,
) -> Result<Changed, Failure> {
    change(&engine, from, |reply| Command::Reload(break_connections, reply)).await
}

/// Files are larger than other requests.
const MOST_TEXT: usize = crate::config::MOST_TEXT;

async fn apply(
    State(engine): State<Sender>,
    from: Asker,
    Input(request): Input<Apply>,
) -> Result<Changed, Failure> {
    change(&engine, from, |reply| Command::Apply(Box::new(request), reply)).await
}

async fn rollback(
    State(engine): State<Sender>,
    from: Asker,
    Maybe(RollbackRequest { number, break_connections }): Maybe<RollbackRequest>,
) -> Result<Changed, Failure> {
    change(&engine, from, |reply| Command::Rollback(number, break_connections, reply)).await
}

async fn history(State(engine): State<Sender>) -> Reply<HistoryReport> {
    Ok(Json(ask(&engine, Command::History).await?))
}

async fn text_of(State(engine): State<Sender>, Path(number): Path<String>) -> Reply<FileText> {
    let wrong = |_| Failure(Kind::Invalid, format!("{number:?} is not the number of a change"));
    let number = whole_of::<u64>(&number).map_err(wrong)?;
    let text = ask(&engine, |reply| Command::Text(number, reply)).await?;
    Ok(Json(FileText { text }))
}

async fn set(
    State(engine): State<Sender>,
    from: Asker,
    Path((service, name)): Path<(String, String)>,
    Input(wanted): Input<WantedBackend>,
) -> Result<Changed, Failure> {
    let WantedBackend { address, port, weight, drain, nat_sources } = wanted;
    may_be_called(&name)?;
    let backend = Backend { name, address, port, weight, drain, backup: false, nat_sources };
    change(&engine, from, |reply| Command::Set(service, Box::new(backend), reply)).await
}

/// # Errors
/// If a backend cannot be called so.
fn may_be_called(name: &str) -> Result<(), Failure> {
    if crate::config::is_name(name) {
        return Ok(());
    }
    let wrong = format!("name: {name:?} is not a name; use 1 to 64 letters, digits and - _ .");
    Err(Failure(Kind::Invalid, wrong))
}

async fn service(
    State(engine): State<Sender>,
    Path(service): Path<String>,
) -> Reply<ServiceStatus> {
    let status = ask(&engine, Command::Status).await?;
    let found = status.services.into_iter().find(|one| one.name == service);
    let missing = || Failure(Kind::NotFound, format!("there is no service {service}"));
    found.map(Json).ok_or_else(missing)
}

async fn events(State(hub): State<Arc<Hub>>, Query(query): Query<EventQuery>) -> Json<EventList> {
    Json(hub.events(query))
}

async fn rates(State(hub): State<Arc<Hub>>, Query(query): Query<RateQuery>) -> Reply<Rates> {
    hub.rates(&query).await.map(Json)
}

async fn watch(
    State(hub): State<Arc<Hub>>,
    Extension(working): Extension<Working>,
    Query(query): Query<WatchQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    hub.watch(query, &headers, working)
}

/// Who somebody is, as the instance sees it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Myself {
    /// What the history calls them.
    pub name: String,
    /// What they may do.
    pub role: Option<Role>,
}

async fn myself(
    State(common): State<Arc<Common>>,
    Extension(caller): Extension<Caller>,
) -> Json<Myself> {
    let role = common.role(&caller);
    Json(Myself { name: caller.who.name, role })
}

/// How much of an instance is to be in a snapshot.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Also the tables themselves, with the keys of their hashes, so that `weir explain --snapshot` can read
    /// them.
    pub tables: bool,
}

async fn snapshot(
    State(Shared { engine, hub, .. }): State<Shared>,
    Maybe(SnapshotRequest { tables }): Maybe<SnapshotRequest>,
) -> Reply<Snapshot> {
    let status = ask(&engine, Command::Status).await?;
    let inside = ask(&engine, |reply| Command::Inside(tables, reply)).await?;
    let history = ask(&engine, Command::History).await?;
    let events = hub.events(EventQuery::default()).events;
    // It looks at the host, which may take seconds.
    let take = move || Snapshot::take(inside, status, history, events);
    let taken = tokio::task::spawn_blocking(take).await;
    taken.map(Json).map_err(|error| Failure(Kind::Failed, error.to_string()))
}

async fn description() -> Response {
    Json(openapi()).into_response()
}

/// The page: one file, in which nothing is fetched from elsewhere.
const PAGE: &str = include_str!("api/page.html");

async fn page() -> Response {
    // Scripts and styles of this answer alone, and nothing that stands in a name of a backend.
    let nonce = format!("{:032x}", rand::random::<u128>());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (CONTENT_TYPE.as_str(), "text/html; charset=utf-8".to_owned()),
        (CONTENT_SECURITY_POLICY.as_str(), policy),
        ("x-content-type-options", "nosniff".into()),
        ("referrer-policy", "no-referrer".into()),
        ("cache-control", "no-store".into()),
        ("cross-origin-resource-policy", "same-origin".into()),
    ];
    (headers, PAGE.replace("{nonce}", &nonce)).into_response()
}

/// What handlers share.
#[derive(Clone, Debug)]
struct Shared {
    engine: Sender,
    hub: Arc<Hub>,
    common: Arc<Common>,
}

impl FromRef<Shared> for Sender {
    fn from_ref(shared: &Shared) -> Self {
        shared.engine.clone()
    }
}

impl FromRef<Shared> for Arc<Hub> {
    fn from_ref(shared: &Shared) -> Self {
        Arc::clone(&shared.hub)
    }
}

impl FromRef<Shared> for Arc<Common> {
    fn from_ref(shared: &Shared) -> Self {
        Arc::clone(&shared.common)
    }
}

/// Every request that there is.
#[rustfmt::skip]
fn routes() -> Vec<Route> {
    use Role::{Admin, Operate};
    vec![
        Route::new("get", "/v1/status", get(status), "Services, backends and counters")
            .call("GetStatus").gives::<Status>(),
        Route::new("get", "/v1/services/{service}", get(service), "One service of the status")
            .call("GetService").gives::<ServiceStatus>(),
        Route::new("get", "/v1/me", get(myself), "Who asks, and what they may do")
            .call("GetMyself").gives::<Myself>(),
        Route::new("get", "/v1/events", get(events), "What has happened lately")
            .call("GetEvents").asks::<EventQuery>().gives::<EventList>(),
        Route::new("get", "/v1/rates", get(rates), "Rates over the last hour, while a page is served")
            .call("GetRates").asks::<RateQuery>().gives::<Rates>(),
        Route::new("get", "/v1/watch", get(watch), "The status every few seconds and what happens at once, as a \
            stream of Server-Sent Events named `status` (a Status) and `event` (an Event)")
            .call("Watch").asks::<WatchQuery>().streams::<String>("text/event-stream").says::<WatchLine>(),
        Route::new("post", "/v1/explain", post(explain), "Where a flow's packets go, and why")
            .call("Explain").takes::<FlowRequest>().gives::<Explanation>(),
        Route::new("post", "/v1/plan", post(plan), "What a file would change; without one, the instance's own")
            .call("Plan").file(MOST_TEXT).may_take::<PlanRequest>().gives::<PlanReport>(),
        Route::new("post", "/v1/trace", post(trace), "Packets as they come, until the connection ends: a TraceLine \
            on each line")
            .call("Trace").needs(Operate).may_take::<TraceRequest>().streams::<TraceLine>("application/x-ndjson"),
        Route::new("post", "/v1/services/{service}/backends", post(add), "Adds a backend")
            .call("AddBackend").changes(Operate).asks::<Expected>().takes::<NewBackend>().gives::<Answer>(),
        Route::new("put", "/v1/services/{service}/backends/{backend}", put(set), "Makes a backend what it is to be; \
            adds it if it is not there. Twice is as once")
            .call("SetBackend").changes(Operate).asks::<Expected>().takes::<WantedBackend>().gives::<Answer>(),
        Route::new("delete", "/v1/services/{service}/backends/{backend}", delete(remove), "Removes a backend; \
            connections that it still holds are lost")
            .call("RemoveBackend").changes(Operate).asks::<Expected>().gives::<Answer>(),
        Route::new("put", "/v1/services/{service}/backends/{backend}/drain", put(drain), "Starts or ends the \
            draining of a backend")
            .call("DrainBackend").changes(Operate).asks::<Expected>().takes::<DrainRequest>().gives::<Answer>(),
        Route::new("put", "/v1/services/{service}/backends/{backend}/weight", put(weight), "Changes the weight of a \
            backend")
            .call("WeighBackend").changes(Operate).asks::<Expected>().takes::<WeightRequest>().gives::<Answer>(),
        Route::new("put", "/v1/services/{service}/backends/{backend}/load", put(load), "Says how loaded a backend is, \
            for schedulers that are told")
            .call("TellLoad").changes(Operate).often().takes::<LoadRequest>().gives::<Answer>(),
        Route::new("put", "/v1/services/{service}/sources", put(list), "Puts a prefix on a service's lists of sources, \
            over what the file has there, for a time or until it is taken back")
            .call("ListSource").changes(Operate).asks::<Expected>().takes::<ListSource>().gives::<Answer>(),
        Route::new("post", "/v1/services/{service}/sources/remove", post(unlist), "Takes back a prefix that a request \
            has put on a service's lists of sources")
            .call("UnlistSource").changes(Operate).asks::<Expected>().takes::<UnlistSource>().gives::<Answer>(),
        Route::new("get", "/v1/announce", get(announced), "Which routes are announced, and why others are not")
            .call("GetAnnouncements").gives::<Report>(),
        Route::new("put", "/v1/announce/drain", put(drain_self), "Withdraws this balancer from routers, or takes \
            that back")
            .call("DrainBalancer").changes(Operate).asks::<Expected>().takes::<DrainRequest>().gives::<Answer>(),
        Route::new("get", "/v1/fleet", get(fleet), "The balancers of the fleet, what they follow, and in what they \
            differ")
            .call("GetFleet").gives::<FleetStatus>(),
        Route::new("delete", "/v1/fleet/{balancer}", delete(forget), "Forgets a balancer that is away")
            .call("ForgetBalancer").changes(Admin).gives::<Answer>(),
        Route::new("post", "/v1/reload", post(reload), "Reads the configuration file again")
            .call("Reload").changes(Admin).asks::<Expected>().may_take::<ReloadRequest>().gives::<Answer>(),
        Route::new("post", "/v1/apply", post(apply), "Puts a configuration in force, and in the place of the \
            instance's file, whole or not at all")
            .call("Apply").changes(Admin).file(MOST_TEXT).asks::<Expected>().takes::<Apply>().gives::<Answer>(),
        Route::new("post", "/v1/rollback", post(rollback), "Goes back to the file of a change; without a number, to \
            the one before")
            .call("Rollback").changes(Admin).asks::<Expected>().may_take::<RollbackRequest>().gives::<Answer>(),
        Route::new("get", "/v1/history", get(history), "What has been changed, when, by whom, and what that did to \
            connections")
            .call("GetHistory").gives::<HistoryReport>(),
        Route::new("get", "/v1/history/{number}", get(text_of), "The file of a change, which may have keys in it")
            .call("GetFile").needs(Admin).gives::<FileText>(),
        Route::new("post", "/v1/snapshot", post(snapshot), "Everything that a report of a fault needs, without \
            secrets; the keys of hashes are in tables, if these are asked for")
            .call("TakeSnapshot").needs(Admin).may_take::<SnapshotRequest>().gives::<Snapshot>(),
        Route::new("get", "/v1/openapi.json", get(description), "This description")
            .gives::<serde_json::Value>(),
        Route::new("get", "/", get(page), "The page for browsers").shows("text/html"),
    ]
}

/// The description of the API, OpenAPI 3.1.
pub fn openapi() -> serde_json::Value {
    openapi::document(&routes())
}

/// Serves the API until the task is dropped: at the socket, which goes with it, and where `front` says.
///
/// # Errors
/// If the socket fails.
pub(crate) async fn serve(
    listener: UnixListener,
    (socket, state_dir): (PathBuf, PathBuf),
    engine: Sender,
    (common, events): (Arc<Common>, Arc<Events>),
) -> io::Result<()> {
    let own = state_dir.join(guard::AUDIT);
    let front = common.front.clone();
    let hub = Arc::new(Hub::new(engine.clone(), events, Arc::clone(&common)));
    let shared = Shared { engine, hub: Arc::clone(&hub), common: Arc::clone(&common) };
    let routes = routes();
    let called = routes.iter().filter_map(Route::called).collect();
    let router: Router = openapi::router(routes, &common).with_state(shared);
    let router = grpc::beside(router, called, &common);
    let rates = hub.keep_rates(front.clone());
    let door = Door::new(socket.clone(), Arc::clone(&common));
    let at_socket = server::at_socket((listener, door), router.clone());
    let elsewhere = follow(front, router, Arc::clone(&common), move |front| {
        socket::share_as(&socket, front.api.socket_group.as_deref(), &common);
        common.audit.write_to(front.api.audit.as_ref().unwrap_or(&own));
    });
    tokio::select! {
        served = at_socket => served,
        ((), ()) = async { tokio::join!(rates, elsewhere) } => Ok(()),
    }
}

/// Serves where the configuration says, and elsewhere when it says something else.
async fn follow(
    mut front: updates::Receiver<Front>,
    router: Router,
    common: Arc<Common>,
    mut changed: impl FnMut(&Front),
) {
    let (mut web, mut tls) = (None, (None, None));
    let in_plain = |address| server::in_plain(address, router.clone(), Arc::clone(&common));
    let by_tls = |wanted| server::by_tls(wanted, router.clone(), Arc::clone(&common));
    let (plain, secret) = (in_plain(None), by_tls(None));
    tokio::pin!(plain, secret);
    loop {
        let wanted = front.borrow_and_update().clone();
        changed(&wanted);
        let address = wanted.web.map(|web| web.listen);
        if web != address {
            web = address;
            plain.set(in_plain(address));
        }
        // Certificates may be others under the same names. Where all is as it was, nobody's connection ends;
        // what cannot be read is tried anew.
        let papers = wanted.api.tls.as_ref().and_then(|tls| server::Papers::read(tls).ok());
        let now = (wanted.api.tls, papers);
        if now != tls || now.0.is_some() && now.1.is_none() {
            secret.set(by_tls(now.0.clone()));
            tls = now;
        }
        tokio::select! {
            () = &mut plain => {}
            () = &mut secret => {}
            more = front.changed() => if more.is_err() { return std::future::pending().await },
        }
    }
}
