//! What is behind a backend's nginx for uploads: it reads what a client sends, and answers how much came and
//! the hash of it.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Doing, Result};

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Longest head of a request: nginx's own are far shorter.
const MOST_HEAD: usize = 4 << 10;

/// What is said of an upload: by the backend, of what has come, and expected by the client, of what it has sent.
pub(crate) fn receipt(length: u64, hash: &Xxh3) -> String {
    format!("{length} bytes, {:032x}\n", hash.digest128())
}

/// Whoever takes a backend's uploads; dropping it ends it. Uploads that are under way end with their connections,
/// which nginx has.
#[derive(Debug)]
pub(crate) struct Uploads {
    /// Closing it tells the thread to end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Uploads {
    /// Where nginx of a backend with this directory finds it.
    pub(crate) fn socket(directory: &Path) -> PathBuf {
        directory.join("upload.sock")
    }

    /// Starts it; it listens when this returns.
    pub(crate) fn start(directory: &Path, name: &str) -> Result<Self> {
        let path = Self::socket(directory);
        let what = || format!("starting what takes uploads of {name}");
        // Left by one before.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).doing(what)?;
        listener.set_nonblocking(true).doing(what)?;
        let (stop, stopped) = UnixStream::pair().doing(what)?;
        let thread = thread::Builder::new()
            .name(format!("{name}-uploads"))
            .spawn(move || serve(&listener, stopped))
            .doing(what)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, mut stopped: UnixStream) {
    loop {
        while let Ok((stream, _)) = listener.accept() {
            // It ends when nginx closes the connection, at the latest when that dies. Without a thread nginx
            // says to the client that nobody is here.
            let _ = thread::Builder::new().name("upload".into()).spawn(move || take(stream));
        }
        let mut waiting = [
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut waiting, PollTimeout::NONE).is_ok()
            && waiting[1].any().unwrap_or(true)
            && matches!(stopped.read(&mut [0]), Ok(0))
        {
            return;
        }
    }
}

/// Takes one upload. nginx notices one that fails, and its client misses the answer.
fn take(mut stream: UnixStream) {
    let taken = read(&mut stream);
    if let Ok(receipt) = taken {
        let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", receipt.len());
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(receipt.as_bytes());
    }
}

/// Reads a request; returns the receipt for its body.
fn read(from: &mut impl Read) -> io::Result<String> {
    let mut buffer = vec![0; PIECE];
    let mut filled = 0;
    let (length, body) = loop {
        if filled >= MOST_HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match from.read(&mut buffer[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => filled += more,
        }
        if let Some(end) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            let length = length_of(&buffer[..end]).ok_or(io::ErrorKind::InvalidData)?;
            break (length, end + 4);
        }
    };
    let mut hash = Xxh3::new();
    let mut got = (filled - body) as u64;
    hash.update(&buffer[body..filled]);
    while got < length {
        match from.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => {
                hash.update(&buffer[..more]);
                got += more as u64;
            }
        }
    }
    Ok(receipt(got, &hash))
}

/// The length of the body that a head tells.
fn length_of(head: &[u8]) -> Option<u64> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is_it = name.eq_ignore_ascii_case(b"content-length");
        is_it.then(|| std::str::from_utf8(value).ok()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt_of(bytes: &[u8]) -> String {
        let mut hash = Xxh3::new();
        hash.update(bytes);
        receipt(bytes.len() as u64, &hash)
    }

    #[test]
    fn what_came_is_told_and_what_did_not_is_an_error() {
        let head = b"POST /upload HTTP/1.0\r\nHost: x\r\nContent-length: 5\r\n\r\n";
        let whole = [&head[..], b"abcde"].concat();
        assert_eq!(read(&mut &whole[..]).unwrap(), receipt_of(b"abcde"));
        for cut in 0..whole.len() {
            let error = read(&mut &whole[..cut]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
        }
        // One byte too many is not what was sent, either.
        let more = [&whole[..], b"f"].concat();
        assert_eq!(read(&mut &more[..]).unwrap(), receipt_of(b"abcdef"));
        for bad in ["", "Content-Length: x\r\n", "Content-Length: -1\r\n"] {
            let request = format!("POST /upload HTTP/1.0\r\n{bad}\r\n");
            let error = read(&mut request.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bad}");
        }
    }

    #[test]
    fn bytes_that_are_exchanged_or_missing_give_another_receipt() {
        let sent = receipt_of(b"abcdefgh");
        for other in [&b"abcdefhg"[..], b"abcdefg", b"abcdefgg", b"abcdabcd"] {
            assert_ne!(receipt_of(other), sent);
        }
    }

    #[test]
    fn uploads_are_taken_side_by_side_until_it_ends() {
        let directory = std::env::temp_dir().join(format!("weir-uploads-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let uploads = Uploads::start(&directory, "b0").unwrap();
        let connect = || UnixStream::connect(Uploads::socket(&directory)).unwrap();
        // One that does not go on keeps nobody waiting.
        let mut slow = connect();
        slow.write_all(b"POST /upload HTTP/1.0\r\nContent-Length: 2\r\n\r\na").unwrap();
        for length in [0, 1, 3 * PIECE + 7] {
            let body: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut stream = connect();
            let head = format!("POST /upload HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&body).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
            assert!(answer.ends_with(&format!("\r\n\r\n{}", receipt_of(&body))), "{answer}");
        }
        slow.write_all(b"b").unwrap();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with(&receipt_of(b"ab")), "{answer}");
        drop(uploads);
        let gone = UnixStream::connect(Uploads::socket(&directory));
        assert_eq!(gone.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
