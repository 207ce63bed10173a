//! The control API: HTTP with JSON over a Unix socket (`curl --unix-socket` works too).
//!
//! | request | does |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `POST /v1/explain` `{"flow": {"protocol", "source", "destination"}}` | [`Explanation`] |
//! | `POST /v1/services/S/backends` `{"name", "address", "weight"}` | adds a backend |
//! | `DELETE /v1/services/S/backends/B` | removes it |
//! | `PUT /v1/services/S/backends/B/drain` `{"drain": true}` | starts or ends its draining |
//! | `PUT /v1/services/S/backends/B/weight` `{"weight": 3}` | changes its weight |
//! | `PUT /v1/services/S/backends/B/load` `{"load": 0.7}` | says how loaded it is |
//! | `POST /v1/plan` `{"file": "/etc/weir.toml"}` | [`PlanReport`]: what a file would change; without one, the instance's own |
//! | `POST /v1/trace` [`TraceRequest`] | [`TraceLine`]s as they come, one to a line, until the connection ends |
//! | `GET /v1/announce` | [`Report`]: which routes are announced, and why others are not |
//! | `PUT /v1/announce/drain` `{"drain": true}` | withdraws this balancer from routers, or takes that back |
//! | `POST /v1/reload` | reads the configuration file again |
//! | `POST /v1/apply` `{"file": "weir.toml", "text": "..."}` | [`Apply`]: puts a configuration in force, and in the place of the instance's file |
//! | `POST /v1/rollback` `{"number": 7}` | goes back to the file of a change; without a number, to the one before |
//! | `GET /v1/history` | [`HistoryReport`]: what has been changed, when, by whom |
//! | `GET /v1/history/N` | the file of a change, as `{"text": "..."}` |
//!
//! A request that is refused is answered with `{"error": "...", "kind": "..."}`:
//!
//! | status | kind | why |
//! |---|---|---|
//! | 400 | `invalid` | the request makes no sense, whatever is in force |
//! | 404 | `not_found` | there is no such service or backend |
//! | 409 | `conflict` | it contradicts what is in force |
//! | 422 | `file` | the configuration file cannot be used |
//! | 500 | `failed` | it was tried, and failed; `weir status` shows what is tried again |
//! | 503 | `busy` | the instance is stopping |

use crate::config::Backend;
use crate::engine::{
    Apply, Command, EngineError, Explanation, HistoryReport, Kind, PlanReport, Sender, Status,
    TraceLine, TraceRequest,
};
use crate::history::Who;
use axum::body::Body;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use futures_util::stream;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path as FilePath, PathBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use weir_announce::Report;
use weir_wire::quic::Id;
use weir_wire::{FlowKey, Protocol};

/// A backend to be added.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
}

fn one() -> u16 {
    1
}

/// A flow to be explained.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowRequest {
    /// Protocol of the flow, `tcp` or `udp`.
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
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// `true`: no new connections from now on; `false`: new ones again.
    pub drain: bool,
}

/// Body of a weight request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightRequest {
    /// New weight, 0 to 65,535; with 0 the backend gets no new connection.
    pub weight: u16,
}

/// Body of a load request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadRequest {
    /// How loaded the backend is: a number of 0 or more, in any unit that is the same for all backends
    /// of the service.
    pub load: f64,
}

/// Body of a reload request; without one, the defaults.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReloadRequest {
    /// Also where that breaks connections.
    pub break_connections: bool,
}

/// Body of a plan request; without one, the instance's own file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlanRequest {
    /// Absolute path of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// Body of a rollback request; without one, the defaults.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RollbackRequest {
    /// The change whose file is to be in force again; none: the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Also where that breaks connections.
    pub break_connections: bool,
}

/// The file of a change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileText {
    /// Its text.
    pub text: String,
}

/// Answer to a change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// What was done, as a sentence for a person.
    pub done: String,
}

/// Answer to a request that was refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// The process at the other end of a connection, as the kernel tells it.
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: Option<u32>,
    pid: Option<i32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let known = stream.io().peer_cred().ok();
        Self {
            uid: known.as_ref().map(tokio::net::unix::UCred::uid),
            pid: known.as_ref().and_then(tokio::net::unix::UCred::pid),
        }
    }
}

impl Peer {
    async fn who(self) -> Who {
        let Self { uid, pid } = self;
        let Some(number) = uid else { return Who { name: "somebody".into(), uid, pid } };
        // Names may come from far away.
        let find = move || nix::unistd::User::from_uid(number.into()).ok().flatten();
        let user = tokio::task::spawn_blocking(find).await.ok().flatten();
        Who { name: user.map_or_else(|| format!("uid {number}"), |user| user.name), uid, pid }
    }
}

type Asker = ConnectInfo<Peer>;

/// As [`ask`], for what changes something.
async fn change<T>(
    engine: &Sender,
    ConnectInfo(peer): Asker,
    command: impl FnOnce(oneshot::Sender<Result<T, EngineError>>) -> Command,
) -> Result<T, Failure> {
    let who = peer.who().await;
    ask(engine, |reply| Command::By(who, Box::new(command(reply)))).await
}

async fn status(State(engine): State<Sender>) -> Reply<Status> {
    Ok(Json(ask(&engine, Command::Status).await?))
}

async fn explain(
    State(engine): State<Sender>,
    Json(request): Json<FlowRequest>,
) -> Reply<Explanation> {
    let protocol: Protocol = request
        .protocol
        .parse()
        .map_err(|error| Failure(Kind::Invalid, format!("protocol: {error}")))?;
    if request.source.is_ipv4() != request.destination.is_ipv4() {
        let wrong = "source and destination must be of one family".into();
        return Err(Failure(Kind::Invalid, wrong));
    }
    let id = request.connection_id.as_deref().map(|text| {
        let wrong = format!("connection_id: {text:?} is not 1 to 20 bytes in hexadecimal");
        Id::from_hex(text)
            .filter(|id| !id.as_bytes().is_empty())
            .ok_or(Failure(Kind::Invalid, wrong))
    });
    let id = id.transpose()?;
    let flow = Box::new(FlowKey::new(request.source, request.destination, protocol));
    Ok(Json(ask(&engine, |reply| Command::Explain(flow, id, reply)).await?))
}

async fn add(
    State(engine): State<Sender>,
    from: Asker,
    Path(service): Path<String>,
    Json(new): Json<NewBackend>,
) -> Reply<Answer> {
    let NewBackend { name, address, port, weight } = new;
    let backend = Backend { name, address, port, weight, drain: false };
    let done = change(&engine, from, |reply| Command::Add(service, backend, reply)).await?;
    Ok(Json(Answer { done }))
}

async fn remove(
    State(engine): State<Sender>,
    from: Asker,
    Path((service, backend)): Path<(String, String)>,
) -> Reply<Answer> {
    let done = change(&engine, from, |reply| Command::Remove(service, backend, reply)).await?;
    Ok(Json(Answer { done }))
}

async fn drain(
    State(engine): State<Sender>,
    from: Asker,
    Path((service, backend)): Path<(String, String)>,
    Json(DrainRequest { drain }): Json<DrainRequest>,
) -> Reply<Answer> {
    let done =
        change(&engine, from, |reply| Command::Drain(service, backend, drain, reply)).await?;
    Ok(Json(Answer { done }))
}

async fn announced(State(engine): State<Sender>) -> Reply<Report> {
    Ok(Json(ask(&engine, Command::Announced).await?))
}

async fn drain_self(
    State(engine): State<Sender>,
    from: Asker,
    Json(DrainRequest { drain }): Json<DrainRequest>,
) -> Reply<Answer> {
    let done = change(&engine, from, |reply| Command::DrainSelf(drain, reply)).await?;
    Ok(Json(Answer { done }))
}

async fn weight(
    State(engine): State<Sender>,
    from: Asker,
    Path((service, backend)): Path<(String, String)>,
    Json(WeightRequest { weight }): Json<WeightRequest>,
) -> Reply<Answer> {
    let done =
        change(&engine, from, |reply| Command::Weight(service, backend, weight, reply)).await?;
    Ok(Json(Answer { done }))
}

async fn load(
    State(engine): State<Sender>,
    Path((service, backend)): Path<(String, String)>,
    Json(LoadRequest { load }): Json<LoadRequest>,
) -> Reply<Answer> {
    let done = ask(&engine, |reply| Command::Load(service, backend, load, reply)).await?;
    Ok(Json(Answer { done }))
}

async fn plan(
    State(engine): State<Sender>,
    request: Option<Json<PlanRequest>>,
) -> Reply<PlanReport> {
    let PlanRequest { file } = request.map_or_else(Default::default, |Json(r)| r);
    if let Some(file) = file.as_ref().filter(|file| !file.is_absolute()) {
        let wrong = format!("file: {} is not an absolute path", file.display());
        return Err(Failure(Kind::Invalid, wrong));
    }
    Ok(Json(ask(&engine, |reply| Command::Plan(file, reply)).await?))
}

async fn trace(
    State(engine): State<Sender>,
    request: Option<Json<TraceRequest>>,
) -> Result<Response, Failure> {
    let request = Box::new(request.map_or_else(Default::default, |Json(request)| request));
    let back = engine.clone();
    let lines = ask(&engine, |reply| Command::Trace(request, back, reply)).await?;
    let lines = stream::unfold(lines, |mut lines| async {
        let line = lines.recv().await?;
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        Some((Ok::<_, Infallible>(text), lines))
    });
    let headers = [(CONTENT_TYPE, "application/x-ndjson")];
    Ok((headers, Body::from_stream(lines)).into_response())
}

async fn reload(
    State(engine): State<Sender>,
    from: Asker,
    request: Option<Json<ReloadRequest>>,
) -> Reply<Answer> {
    let ReloadRequest { break_connections } = request.map_or_else(Default::default, |Json(r)| r);
    let done = change(&engine, from, |reply| Command::Reload(break_connections, reply)).await?;
    Ok(Json(Answer { done }))
}

/// Files are larger than other requests.
const MOST_TEXT: usize = 16 << 20;

async fn apply(
    State(engine): State<Sender>,
    from: Asker,
    Json(request): Json<Apply>,
) -> Reply<Answer> {
    let done = change(&engine, from, |reply| Command::Apply(Box::new(request), reply)).await?;
    Ok(Json(Answer { done }))
}

async fn rollback(
    State(engine): State<Sender>,
    from: Asker,
    request: Option<Json<RollbackRequest>>,
) -> Reply<Answer> {
    let RollbackRequest { number, break_connections } =
        request.map_or_else(Default::default, |Json(r)| r);
    let command = |reply| Command::Rollback(number, break_connections, reply);
    Ok(Json(Answer { done: change(&engine, from, command).await? }))
}

async fn history(State(engine): State<Sender>) -> Reply<HistoryReport> {
    Ok(Json(ask(&engine, Command::History).await?))
}

async fn text_of(State(engine): State<Sender>, Path(number): Path<u64>) -> Reply<FileText> {
    let text = ask(&engine, |reply| Command::Text(number, reply)).await?;
    Ok(Json(FileText { text }))
}

/// Makes the socket. Only the owner of the process may use it.
///
/// # Errors
/// If it cannot be made.
pub fn listen(socket: &FilePath) -> io::Result<UnixListener> {
    // The run directory is locked by this process, so a socket that is there is a dead one.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves the API until the task is dropped.
///
/// # Errors
/// If the socket fails.
pub async fn serve(listener: UnixListener, engine: Sender) -> io::Result<()> {
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/explain", post(explain))
        .route("/v1/announce", get(announced))
        .route("/v1/announce/drain", put(drain_self))
        .route("/v1/plan", post(plan))
        .route("/v1/trace", post(trace))
        .route("/v1/reload", post(reload))
        .route("/v1/apply", post(apply).layer(DefaultBodyLimit::max(MOST_TEXT)))
        .route("/v1/rollback", post(rollback))
        .route("/v1/history", get(history))
        .route("/v1/history/{number}", get(text_of))
        .route("/v1/services/{service}/backends", post(add))
        .route("/v1/services/{service}/backends/{backend}", delete(remove))
        .route("/v1/services/{service}/backends/{backend}/drain", put(drain))
        .route("/v1/services/{service}/backends/{backend}/weight", put(weight))
        .route("/v1/services/{service}/backends/{backend}/load", put(load))
        .with_state(engine);
    axum::serve(listener, router.into_make_service_with_connect_info::<Peer>()).await
}

/// Why a request to an instance has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers at the socket.
    #[error(
        "cannot reach weir at {path}: {source}; is `weir run` running? (--socket or WEIR_SOCKET \
         name another socket)"
    )]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The instance refused the request; its reason.
    #[error("{words}")]
    Refused {
        /// What kind of refusal it is.
        kind: Kind,
        /// Why nothing was done.
        words: String,
    },
    /// The connection broke, or the answer is not what the API gives.
    #[error("talking to weir: {0}")]
    Protocol(String),
}

impl ClientError {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Connect { .. } => Kind::Busy,
            Self::Refused { kind, .. } => *kind,
            Self::Protocol(_) => Kind::Failed,
        }
    }
}

/// A client of the API, for one instance. It connects anew for each request.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the instance at this Unix socket; nothing is connected yet.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Makes a request; `body` is sent as JSON.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn request<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|e| odd(&e))?.to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|e| odd(&e));
        }
        Err(refusal(status, &bytes))
    }

    /// Looks at packets: `take` is given each line, until it says that it wants no more, or there
    /// is none.
    ///
    /// # Errors
    /// [`ClientError`]; also when the instance goes away in between.
    pub async fn trace(
        &self,
        wanted: &TraceRequest,
        mut take: impl FnMut(TraceLine) -> bool,
    ) -> Result<(), ClientError> {
        let response = self.send("POST", "/v1/trace", Some(wanted)).await?;
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let bytes = body.collect().await.map_err(|e| odd(&e))?.to_bytes();
            return Err(refusal(status, &bytes));
        }
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|e| odd(&e))?.into_data() else { continue };
            text.extend_from_slice(&data);
            let mut begin = 0;
            while let Some(length) = text[begin..].iter().position(|byte| *byte == b'\n') {
                let line = serde_json::from_slice(&text[begin..begin + length]);
                if !take(line.map_err(|e| odd(&e))?) {
                    return Ok(());
                }
                begin += length + 1;
            }
            text.drain(..begin);
        }
        Ok(())
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<hyper::Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|source| ClientError::Connect { path: self.socket.clone(), source })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| odd(&e))?;
        tokio::spawn(connection);
        let json = body.map(serde_json::to_vec).transpose().map_err(|e| odd(&e))?;
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "weir")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(json.unwrap_or_default())))
            .map_err(|e| odd(&e))?;
        sender.send_request(request).await.map_err(|e| odd(&e))
    }
}

fn odd(error: &dyn std::fmt::Display) -> ClientError {
    ClientError::Protocol(error.to_string())
}

fn refusal(status: StatusCode, bytes: &[u8]) -> ClientError {
    // What is not the API's own: a path that there is not, a body that is no JSON.
    let foreign = || Refusal {
        error: String::from_utf8_lossy(bytes).into_owned(),
        kind: if status.is_client_error() { Kind::Invalid } else { Kind::Failed },
    };
    let refusal = serde_json::from_slice(bytes).unwrap_or_else(|_| foreign());
    let Refusal { error: words, kind } = refusal;
    ClientError::Refused { kind, words }
}
