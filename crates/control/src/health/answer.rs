//! What a check asks, kind by kind, and what of an answer is good. Each ends when its caller drops it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use super::Way;
use super::stack::Datagrams;
use crate::config::{Dns, Exchange, Spoken};
use crate::frames::{Frames, Upper};

/// Why a check has not succeeded.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The system said so.
    Io(io::Error),
    /// The backend said so.
    Answer(String),
    /// This host cannot ask.
    Host(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What a good answer was.
#[derive(Debug)]
pub(super) struct Good {
    /// What the server said, in a few words for people.
    pub said: String,
    /// When the server's certificate ends, in seconds since 1970.
    pub certificate_ends: Option<i64>,
    /// The weight that it says is its own.
    pub spoken: Option<Spoken>,
}

impl Good {
    pub(super) fn new(said: impl Into<String>) -> Self {
        Self { said: said.into(), certificate_ends: None, spoken: None }
    }
}

/// Opens a TCP connection.
pub(super) async fn connect(source: Option<IpAddr>, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Closing then sends a reset: a FIN would leave a TIME_WAIT here for every check.
    socket.set_zero_linger()?;
    if let Some(source) = source {
        // The port is chosen when the other end is known, so that one port serves many targets.
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
        socket.bind((source, 0).into())?;
    }
    socket.connect(address).await
}

/// A UDP socket that hears one server only, and of its port being closed.
async fn datagrams(source: Option<IpAddr>, address: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((source.unwrap_or(any), 0)).await?;
    socket.connect(address).await?;
    Ok(socket)
}

/// The largest datagram that is looked at; of a longer one the beginning.
const DATAGRAM: usize = 4096;

/// Whom datagrams are sent to, and how.
enum Asker {
    Host(UdpSocket),
    Way(Box<Datagrams>),
}

impl Asker {
    async fn new(
        source: Option<IpAddr>,
        address: SocketAddr,
        way: Option<(&Way, &Frames)>,
    ) -> Result<Self, Trouble> {
        Ok(match way {
            None => Self::Host(datagrams(source, address).await?),
            Some((way, frames)) => {
                let passage = way.find(address, Upper::Udp, frames).await?;
                Self::Way(Box::new(Datagrams::new(passage)?))
            }
        })
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        match self {
            Self::Host(socket) => Ok(socket.send(bytes).await.map(drop)?),
            Self::Way(datagrams) => datagrams.send(bytes),
        }
    }

    async fn receive(&mut self) -> Result<Vec<u8>, Trouble> {
        match self {
            Self::Host(socket) => {
                let mut answer = vec![0; DATAGRAM];
                let length = socket.recv(&mut answer).await?;
                answer.truncate(length);
                Ok(answer)
            }
            Self::Way(datagrams) => datagrams.receive().await,
        }
    }
}

/// Sends a datagram; the first answer must have what is expected.
pub(super) async fn exchange(
    source: Option<IpAddr>,
    address: SocketAddr,
    asked: &Exchange,
    way: Option<(&Way, &Frames)>,
) -> Result<Good, Trouble> {
    let mut asker = Asker::new(source, address, way).await?;
    asker.send(&asked.send).await?;
    let answer = asker.receive().await?;
    if contains(&answer, &asked.expect) {
        return Ok(Good::new("answered"));
    }
    let length = answer.len();
    Err(Trouble::Answer(format!("an answer of {length} bytes without what is expected")))
}

pub(super) fn contains(text: &[u8], wanted: &[u8]) -> bool {
    wanted.is_empty() || text.windows(wanted.len()).any(|part| part == wanted)
}

/// Asks for a record. Answers to other questions are passed over.
pub(super) async fn dns(
    source: Option<IpAddr>,
    address: SocketAddr,
    asked: &Dns,
    way: Option<(&Way, &Frames)>,
) -> Result<Good, Trouble> {
    let mut asker = Asker::new(source, address, way).await?;
    let id: u16 = rand::random();
    let query = dns_query(id, asked);
    asker.send(&query).await?;
    loop {
        let answer = asker.receive().await?;
        if let Some(good) = dns_answer(&query, &answer) {
            return good.map(Good::new).map_err(Trouble::Answer);
        }
    }
}

/// A question in the form of RFC 1035, section 4: recursion desired, one question of class IN.
fn dns_query(id: u16, asked: &Dns) -> Vec<u8> {
    let mut query = id.to_be_bytes().to_vec();
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in asked.query.split('.').filter(|label| !label.is_empty()) {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend((asked.record as u16).to_be_bytes());
    query.extend(1u16.to_be_bytes());
    query
}

/// What a datagram says to a question; none if it is no answer to it.
fn dns_answer(query: &[u8], answer: &[u8]) -> Option<Result<String, String>> {
    let (question, header) = (query.get(12..)?, answer.get(..12)?);
    // An answer bit, no operation but a query, and our id.
    if header[..2] != query[..2] || header[2] & 0xf8 != 0x80 {
        return None;
    }
    let code = header[3] & 0x0f;
    // Some servers leave the question out where they refuse it.
    let repeated = answer.get(12..).and_then(|rest| rest.get(..question.len()));
    let same = repeated.is_some_and(|repeated| repeated.eq_ignore_ascii_case(question));
    if !same && (code == 0 || header[4..6] != [0, 0]) {
        return None;
    }
    let (truncated, records) = (header[2] & 2 != 0, u16::from_be_bytes([header[6], header[7]]));
    const CODES: [&str; 6] = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"];
    Some(match (code, records) {
        (0, 0) if !truncated => Err("DNS: no such record".into()),
        (0, 1) => Ok("DNS: 1 record".into()),
        (0, _) => Ok(format!("DNS: {records} records")),
        (code, _) => Err(match CODES.get(usize::from(code)) {
            Some(name) => format!("DNS: {name}"),
            None => format!("DNS: code {code}"),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Record;

    #[test]
    fn a_question_is_written_as_the_rfc_has_it() {
        let asked = Dns { query: "www.Example.org.".into(), record: Record::Aaaa };
        let query = dns_query(0x1234, &asked);
        assert_eq!(query[..12], [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&query[12..], b"\x03www\x07Example\x03org\0\0\x1c\0\x01");
        let root = dns_query(1, &Dns { query: ".".into(), record: Record::Ns });
        assert_eq!(&root[12..], b"\0\0\x02\0\x01");
    }

    #[test]
    fn an_answer_is_one_to_the_question() {
        let query = dns_query(7, &Dns { query: "a.b".into(), record: Record::A });
        let with = |header: [u8; 8], question: &[u8]| {
            let mut answer = header.to_vec();
            answer.extend([0; 4]);
            answer.extend(question);
            answer
        };
        let good = with([0, 7, 0x81, 0x80, 0, 1, 0, 2], &query[12..]);
        assert_eq!(dns_answer(&query, &good), Some(Ok("DNS: 2 records".into())));
        let upper = good.to_ascii_uppercase();
        assert!(dns_answer(&query, &upper).is_some(), "names have no case");
        for (header, words) in [
            ([0, 7, 0x80, 0, 0, 1, 0, 0], "DNS: no such record"),
            ([0, 7, 0x80, 3, 0, 1, 0, 0], "DNS: NXDOMAIN"),
            ([0, 7, 0x80, 2, 0, 1, 0, 0], "DNS: SERVFAIL"),
            ([0, 7, 0x80, 11, 0, 1, 0, 0], "DNS: code 11"),
        ] {
            let said = dns_answer(&query, &with(header, &query[12..]));
            assert_eq!(said, Some(Err(words.into())));
        }
        let refused = with([0, 7, 0x80, 5, 0, 0, 0, 0], b"");
        assert_eq!(dns_answer(&query, &refused), Some(Err("DNS: REFUSED".into())));
        let truncated = with([0, 7, 0x82, 0, 0, 1, 0, 0], &query[12..]);
        assert_eq!(dns_answer(&query, &truncated), Some(Ok("DNS: 0 records".into())));
        for (what, other) in [
            ("another id", with([0, 8, 0x80, 0, 0, 1, 0, 1], &query[12..])),
            ("a question", with([0, 7, 0x01, 0, 0, 1, 0, 1], &query[12..])),
            ("another operation", with([0, 7, 0x90, 0, 0, 1, 0, 1], &query[12..])),
            ("another question", with([0, 7, 0x80, 0, 0, 1, 0, 1], b"\x01c\x01b\0\0\x01\0\x01")),
            ("no question", with([0, 7, 0x80, 0, 0, 1, 0, 1], b"")),
            ("too short", vec![0, 7, 0x80]),
        ] {
            assert_eq!(dns_answer(&query, &other), None, "{what}");
        }
        // Whatever comes is read without harm.
        for length in 0..good.len() {
            let _ = dns_answer(&query, &good[..length]);
        }
    }
}
