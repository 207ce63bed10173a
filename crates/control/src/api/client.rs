//! The client of the API.

use super::Refusal;
use crate::engine::{Kind, TraceLine, TraceRequest};
use axum::http::StatusCode;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use nix::unistd::{Gid, Group, Uid, User};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Why a request to an instance has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers at the socket.
    #[error("cannot reach weir at {}: {source}; {}", path.display(), unreached(path, source))]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Somebody holds the socket, and says nothing.
    #[error("{}", silence(path, *pid, *waited, *changes))]
    Silent {
        /// Path of the socket.
        path: PathBuf,
        /// The process that listens there, if the kernel tells.
        pid: Option<i32>,
        /// For how long it has said nothing.
        waited: Duration,
        /// Whether something was to be changed: it may be yet.
        changes: bool,
    },
    /// The instance refused the request; its reason.
    #[error("{words}")]
    Refused {
        /// What kind of refusal it is.
        kind: Kind,
        /// Why nothing was done.
        words: String,
    },
    /// The connection broke before all was said: whoever was to answer has died, as a rule.
    #[error("{}", broken(path, why, *changes))]
    Gone {
        /// Path of the socket.
        path: PathBuf,
        /// How it broke.
        why: String,
        /// Whether something was to be changed: it may be.
        changes: bool,
    },
    /// The answer is not what the API gives.
    #[error("talking to weir: {0}")]
    Protocol(String),
}

impl ClientError {
    /// What kind of refusal or failure it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Connect { .. } | Self::Silent { .. } => Kind::Busy,
            Self::Refused { kind, .. } => *kind,
            Self::Gone { .. } | Self::Protocol(_) => Kind::Failed,
        }
    }
}

/// What there is to do where no connection is made.
fn unreached(path: &Path, error: &io::Error) -> String {
    const OTHER: &str = "(--socket or WEIR_SOCKET name another socket)";
    if error.kind() != io::ErrorKind::PermissionDenied {
        return format!("is `weir run` running? {OTHER}");
    }
    let user = |uid: Uid| {
        let found = User::from_uid(uid).ok().flatten();
        found.map_or_else(|| format!("the user {uid}"), |user| user.name)
    };
    // Who may not even look into its directory is told no more.
    let may = std::fs::metadata(path).map(|about| {
        let owner = user(Uid::from_raw(about.uid()));
        let gid = Gid::from_raw(about.gid());
        let group = Group::from_gid(gid).ok().flatten();
        let group = group.map_or_else(|| gid.to_string(), |group| group.name);
        // To connect is to write.
        match about.mode() & 0o020 != 0 {
            true => format!("{owner} and the group {group} may"),
            false => format!("only {owner} may"),
        }
    });
    format!(
        "{} may not: {}; ask as a user who may, or have socket_group of [api] name a group of yours {OTHER}",
        user(Uid::effective()),
        may.unwrap_or_else(|_| "its directory is closed to others".into())
    )
}

/// What there is to say of an instance that says nothing.
fn silence(path: &Path, pid: Option<i32>, waited: Duration, changes: bool) -> String {
    let what = match waited {
        Duration::ZERO => "takes no connection, so many wait there already".to_owned(),
        waited => format!("has not answered for {}", humantime::format_duration(waited)),
    };
    let (who, mend) = match pid {
        Some(pid) if is_stopped(pid) => (
            format!(" (process {pid}, which is stopped)"),
            format!("kill -CONT {pid} lets it go on"),
        ),
        Some(pid) => {
            (format!(" (process {pid})"), "look at its log; packets go on without it".into())
        }
        None => (String::new(), "look at its log; packets go on without it".into()),
    };
    let rest = if changes {
        ". What was asked for may still be done: look at weir history once it answers"
    } else {
        ""
    };
    format!("weir at {}{who} {what}; {mend}{rest}", path.display())
}

/// What there is to say of an instance that has gone in the middle of a request.
fn broken(path: &Path, why: &str, changes: bool) -> String {
    let rest = if changes {
        ". What was asked for may be done all the same: look at weir history once it runs again"
    } else {
        ""
    };
    format!(
        "weir at {} went away before it had answered ({why}); look at its log; packets go on without it{rest}",
        path.display()
    )
}

/// Whether somebody has stopped a process, by SIGSTOP or with a debugger.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may have anything in it.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// For how long an instance may say nothing before it is asked whether it lives.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Whoever lives says who asks within this time, or half of all that there is: that needs nobody else of the process.
const LIVES: Duration = Duration::from_secs(10);

/// A client of the API, for one instance. It connects anew for each request.
///
/// It waits as long as the instance lets a request take, if that lives: one that has said nothing for
/// a while is asked, beside, for something that is told at once.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    patience: Duration,
}

impl Client {
    /// A client of the instance at this Unix socket; nothing is connected yet.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, patience: PATIENCE }
    }

    /// As it is, but with another time for which the instance may say nothing.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
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
        let changes = changes(method, path);
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let bytes = self.all(response.into_body(), changes).await?;
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
            return Err(refusal(status, &self.all(body, false).await?));
        }
        let mut text = Vec::new();
        while let Some(frame) = self.patiently(false, body.frame()).await? {
            let frame = frame.map_err(|error| self.broke(&error, false))?;
            let Ok(data) = frame.into_data() else { continue };
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

    /// All of a body.
    async fn all(&self, mut body: Incoming, changes: bool) -> Result<Vec<u8>, ClientError> {
        let mut bytes = Vec::new();
        while let Some(frame) = self.patiently(changes, body.frame()).await? {
            if let Ok(data) = frame.map_err(|error| self.broke(&error, changes))?.into_data() {
                bytes.extend_from_slice(&data);
            }
        }
        Ok(bytes)
    }

    /// Waits for something that the instance is to say, while it lives.
    async fn patiently<T>(
        &self,
        changes: bool,
        said: impl Future<Output = T>,
    ) -> Result<T, ClientError> {
        tokio::pin!(said);
        // Both together take as long as it may say nothing.
        let asks = LIVES.min(self.patience / 2);
        loop {
            if let Ok(said) = timeout(self.patience - asks, &mut said).await {
                return Ok(said);
            }
            tokio::select! {
                said = &mut said => return Ok(said),
                lives = self.lives(asks) => if let Err(pid) = lives {
                    let (path, waited) = (self.socket.clone(), self.patience);
                    return Err(ClientError::Silent { path, pid, waited, changes });
                }
            }
        }
    }

    /// Whether somebody answers within a time; else the process that should, if the kernel tells.
    async fn lives(&self, limit: Duration) -> Result<(), Option<i32>> {
        let mut pid = None;
        let asked = async {
            let stream = UnixStream::connect(&self.socket).await.ok()?;
            pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            let request = request("GET", "/v1/me", Vec::new()).ok()?;
            // Whoever closes the connection lives, too: too many are open.
            let _ = exchange(stream, request).await;
            Some(())
        };
        match timeout(limit, asked).await {
            Ok(Some(_)) => Ok(()),
            _ => Err(pid),
        }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<hyper::Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|source| {
            let path = self.socket.clone();
            match source.kind() {
                // So many wait for it already that there is no room for one more.
                io::ErrorKind::WouldBlock => {
                    let (waited, changes) = (Duration::ZERO, false);
                    ClientError::Silent { path, pid: None, waited, changes }
                }
                _ => ClientError::Connect { path, source },
            }
        })?;
        let json = body.map(serde_json::to_vec).transpose().map_err(|e| odd(&e))?;
        let request = request(method, path, json.unwrap_or_default()).map_err(|e| odd(&e))?;
        let changes = changes(method, path);
        let answered = self.patiently(changes, exchange(stream, request)).await?;
        answered.map_err(|error| self.broke(&error, changes))
    }

    /// Why nothing, or no more, comes by a connection.
    fn broke(&self, error: &hyper::Error, changes: bool) -> ClientError {
        // Somebody answers, and not as the API does.
        if error.is_parse() {
            return odd(error);
        }
        ClientError::Gone { path: self.socket.clone(), why: error.to_string(), changes }
    }
}

/// A name as it stands in a path or a query (RFC 3986, section 2.1).
pub fn quoted(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => {
                whole.push(char::from(byte));
            }
            // A point alone would be taken for a folder.
            _ => whole += &format!("%{byte:02X}"),
        }
    }
    whole
}

/// Whether something may be another after a request.
fn changes(method: &str, path: &str) -> bool {
    method != "GET" && !["/v1/explain", "/v1/plan", "/v1/snapshot", "/v1/trace"].contains(&path)
}

fn request(
    method: &str,
    path: &str,
    json: Vec<u8>,
) -> Result<hyper::Request<Full<Bytes>>, hyper::http::Error> {
    hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "weir")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(json)))
}

/// One request by a connection of its own.
async fn exchange(
    stream: UnixStream,
    request: hyper::Request<Full<Bytes>>,
) -> hyper::Result<hyper::Response<Incoming>> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Whoever holds the socket and says nothing is given up, and named.
    #[test]
    fn silence_has_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("weir.sock");
        let _holds = UnixListener::bind(&socket).unwrap();
        let client = Client::new(socket.clone()).with_patience(Duration::from_millis(50));
        let ask = |method: &'static str, path: &'static str| {
            let asked = client.request::<serde_json::Value>(method, path, None::<&()>);
            runtime().block_on(asked).unwrap_err()
        };
        let said = ask("GET", "/v1/status");
        assert_eq!(said.kind(), Kind::Busy);
        let own = std::process::id();
        let words =
            format!("weir at {} (process {own}) has not answered for 50ms", socket.display());
        assert!(said.to_string().starts_with(&words), "{said}");
        assert!(!said.to_string().contains("may still be done"), "{said}");
        assert!(!ask("POST", "/v1/explain").to_string().contains("may still be done"));
        let said = ask("POST", "/v1/reload").to_string();
        assert!(said.contains("may still be done"), "{said}");
    }

    /// Whoever goes away before an answer, or in the middle of one, is said to have; of a change, that it may be done.
    #[test]
    fn who_goes_away_is_told_of() {
        use std::io::{Read, Write};
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("weir.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let client = Client::new(socket.clone());
        let half = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"done\"";
        let words = format!("weir at {} went away before it had answered", socket.display());
        for (method, path, changes) in [
            ("GET", "/v1/status", false),
            ("POST", "/v1/plan", false),
            ("POST", "/v1/reload", true),
        ] {
            for answer in ["", half] {
                let error = std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let (mut stream, _) = listener.accept().unwrap();
                        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                        stream.write_all(answer.as_bytes()).unwrap();
                    });
                    let asked = client.request::<serde_json::Value>(method, path, None::<&()>);
                    runtime().block_on(asked).unwrap_err()
                });
                let said = error.to_string();
                assert!(said.starts_with(&words), "{path}: {said}");
                assert_eq!(said.contains("may be done all the same"), changes, "{path}: {said}");
                assert_eq!(error.kind(), Kind::Failed);
            }
        }
    }

    #[test]
    fn who_may_not_is_told_who_may() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("weir.sock");
        let _holds = UnixListener::bind(&socket).unwrap();
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        for (mode, group) in [(0o600, false), (0o660, true)] {
            std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(mode)).unwrap();
            let said = unreached(&socket, &denied);
            assert!(said.contains("may not") && said.contains("socket_group"), "{said}");
            assert_eq!((said.contains("and the group "), said.contains("only ")), (group, !group));
            assert!(!said.contains("running?"), "{said}");
        }
        let said = unreached(Path::new("/nowhere/weir.sock"), &denied);
        assert!(said.contains("its directory is closed to others"), "{said}");
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(unreached(&socket, &refused).starts_with("is `weir run` running?"));
    }

    /// Asking whether it lives takes no time beyond what it may be silent.
    #[test]
    fn silence_takes_no_longer_than_was_said() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("weir.sock");
        let _holds = UnixListener::bind(&socket).unwrap();
        let patience = Duration::from_secs(3);
        let client = Client::new(socket).with_patience(patience);
        let took = || {
            let begun = std::time::Instant::now();
            let asked = client.request::<serde_json::Value>("GET", "/v1/status", None::<&()>);
            runtime().block_on(asked).unwrap_err();
            begun.elapsed()
        };
        // A machine that is busy with other things takes longer, but not each time.
        let took: Vec<_> = (0..10)
            .map(|_| took())
            .inspect(|took| assert!(*took >= patience, "{took:?}"))
            .take_while(|took| *took >= patience * 2)
            .collect();
        assert!(took.len() < 10, "{took:?}");
    }

    /// Whoever lives is waited for, however long it takes.
    #[test]
    fn who_lives_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("weir.sock");
        let asked = runtime().block_on(async {
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            async fn slow() -> &'static str {
                tokio::time::sleep(Duration::from_secs(3)).await;
                "{\"done\": true}"
            }
            let router = axum::Router::new()
                .route("/v1/me", axum::routing::get(|| async { "{}" }))
                .route("/v1/reload", axum::routing::post(slow));
            tokio::spawn(async move { axum::serve(listener, router).await });
            let client = Client::new(socket.clone()).with_patience(Duration::from_secs(1));
            client.request::<serde_json::Value>("POST", "/v1/reload", None::<&()>).await
        });
        assert_eq!(asked.unwrap(), serde_json::json!({ "done": true }));
    }
}
