//! Requests to the APIs of balancers and of the store, without a process for each.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Doing, Error, Result};

/// Longest wait for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Sends a request to a balancer's API at a socket.
///
/// # Errors
/// If nobody answers there, or what the answer says if its status is not 2xx.
pub(crate) fn put(socket: &Path, path: &str, body: &str) -> Result<()> {
    at(socket, "PUT", path, body).map(drop)
}

/// Asks a balancer's API at a socket.
///
/// # Errors
/// As [`put`], or if the answer is no JSON.
pub(crate) fn get(socket: &Path, path: &str) -> Result<Value> {
    let answer = at(socket, "GET", path, "")?;
    serde_json::from_str(&answer)
        .map_err(|error| Error::BadFile { path: path.into(), what: error.to_string() })
}

fn at(socket: &Path, method: &str, path: &str, body: &str) -> Result<String> {
    let ask = || {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        ask(stream, method, path, body)
    };
    let answer = ask().doing(|| format!("{method} {path} at {}", socket.display()))?;
    answer.map_err(|answer| Error::Refused { request: format!("{method} {path}"), answer })
}

/// Asks over a connection, and returns the body of the answer, or all of one whose status is not 2xx.
pub(crate) fn ask(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    body: &str,
) -> io::Result<Result<String, String>> {
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 2") => Ok(Ok(body.to_owned())),
        _ => Ok(Err(answer.trim().to_owned())),
    }
}
