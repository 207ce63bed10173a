//! The client of the API.

use super::Refusal;
use crate::engine::{Kind, TraceLine, TraceRequest};
use axum::http::StatusCode;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::PathBuf;
use tokio::net::UnixStream;

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
    /// What kind of refusal or failure it is.
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
