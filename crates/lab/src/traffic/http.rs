//! As much of HTTP/1.1 as the lab's nginx speaks.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::verdict::Failure;

/// Request for the short answer.
pub(crate) const SMALL: &[u8] = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n";
/// Request for the long answer.
pub(crate) const BIG: &[u8] = b"GET /big HTTP/1.1\r\nHost: lab\r\n\r\n";

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    /// The header `X-Backend`.
    pub(crate) backend: &'a [u8],
    /// The header `Content-Length`.
    pub(crate) body: u64,
    /// Bytes of the head, with the empty line.
    pub(crate) length: usize,
}

/// Parses the head at the start of `bytes`; `Ok(None)` if there is more to come.
pub(crate) fn parse_head(bytes: &[u8]) -> Result<Option<Head<'_>>, Failure> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let garbled = |what: &str, bytes: &[u8]| {
        Failure::Garbled(format!("{what}: {}", String::from_utf8_lossy(bytes)))
    };
    let mut lines = bytes[..end].split(|byte| *byte == b'\n');
    let status = lines.next().unwrap_or_default().trim_ascii();
    // The second: a part that was asked for.
    if !status.starts_with(b"HTTP/1.1 200 ") && !status.starts_with(b"HTTP/1.1 206 ") {
        return Err(garbled("status", status));
    }
    let (mut backend, mut body) = (None, None);
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Err(garbled("header", line));
        };
        let value = line[colon + 1..].trim_ascii();
        if line[..colon].eq_ignore_ascii_case(b"x-backend") {
            backend = Some(value);
        } else if line[..colon].eq_ignore_ascii_case(b"content-length") {
            body = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok());
        }
    }
    match (backend, body) {
        (Some(backend), Some(body)) => Ok(Some(Head { backend, body, length: end + 4 })),
        _ => Err(garbled("head", &bytes[..end])),
    }
}

/// Reads one answer. `check` is called with the backend's name as soon as the head is there, and
/// returns its number; the result is that and the length of the body. `patience` is the longest
/// wait for a first or further piece.
pub(crate) async fn read_answer(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    patience: Duration,
    check: impl FnOnce(&[u8]) -> Result<usize, Failure>,
) -> Result<(usize, u64), Failure> {
    read_body(stream, buffer, patience, check, |_| ()).await
}

/// The same; `take` gets the body, piece by piece.
pub(crate) async fn read_body(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    patience: Duration,
    check: impl FnOnce(&[u8]) -> Result<usize, Failure>,
    mut take: impl FnMut(&[u8]),
) -> Result<(usize, u64), Failure> {
    let mut filled = 0;
    let (backend, body, mut got) = loop {
        if filled == buffer.len() {
            return Err(Failure::Garbled("a head without an end".into()));
        }
        filled += piece(stream, &mut buffer[filled..], patience, "answer").await?;
        if let Some(head) = parse_head(&buffer[..filled])? {
            take(&buffer[head.length..filled]);
            break (check(head.backend)?, head.body, (filled - head.length) as u64);
        }
    };
    while got < body {
        let length = piece(stream, buffer, patience, "rest of the answer").await?;
        take(&buffer[..length]);
        got += length as u64;
    }
    if got > body {
        return Err(Failure::Garbled(format!("{} bytes too many", got - body)));
    }
    Ok((backend, body))
}

async fn piece(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    patience: Duration,
    what: &'static str,
) -> Result<usize, Failure> {
    match timeout(patience, stream.read(buffer)).await {
        Err(_) => Err(Failure::Timeout(what)),
        Ok(Ok(0)) => Err(Failure::Eof),
        Ok(Ok(length)) => Ok(length),
        Ok(Err(error)) => Err(Failure::of(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 3\r\n\
        Connection: keep-alive\r\nX-Backend: b7\r\n\r\nb7\n";

    #[test]
    fn a_head_is_parsed_when_it_is_complete() {
        let head = parse_head(ANSWER).unwrap().unwrap();
        assert_eq!((head.backend, head.body), (&b"b7"[..], 3));
        assert_eq!(&ANSWER[head.length..], b"b7\n");
        for cut in 0..head.length {
            assert_eq!(parse_head(&ANSWER[..cut]), Ok(None), "{cut}");
        }
    }

    #[test]
    fn other_answers_are_garbled() {
        for bad in [
            &b"HTTP/1.1 500 Oh\r\nX-Backend: b1\r\nContent-Length: 0\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX-Backend: b1\r\nContent-Length: x\r\n\r\n",
            b"SSH-2.0-x\r\n\r\n",
        ] {
            assert!(matches!(parse_head(bad), Err(Failure::Garbled(_))));
        }
    }
}
