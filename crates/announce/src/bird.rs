//! BIRD 2: routes of two static protocols, in a file that its configuration includes, and its control socket.

use crate::Route;
use crate::speaker::{Attributes, Error};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// The static protocols, of IPv4 and of IPv6.
const PROTOCOLS: [&str; 2] = ["weir4", "weir6"];
/// Lines of an answer; a longer one is none of BIRD's.
const MOST_LINES: usize = 200_000;
/// From here on a reply is a refusal.
const FIRST_ERROR: u16 = 8000;

/// A BIRD daemon that routes are told to, by a file that it includes and its control socket.
#[derive(Debug)]
pub struct Bird {
    pub(crate) name: String,
    socket: PathBuf,
    file: PathBuf,
    attributes: Attributes,
}

impl Bird {
    pub(crate) fn new(
        name: String,
        socket: PathBuf,
        file: PathBuf,
        attributes: Attributes,
    ) -> Self {
        Self { name, socket, file, attributes }
    }

    /// What its protocols hold. All routes of these protocols are ours.
    pub(crate) async fn current(&mut self) -> Result<BTreeSet<Route>, Error> {
        match self.routes().await {
            // It has never read a file of ours.
            Err(Error::Refused { .. }) => {
                self.set(&BTreeSet::new()).await?;
                self.routes().await.map_err(|error| self.not_included(error))
            }
            routes => {
                let routes = routes?;
                // With other attributes than those that hold, they are as good as none.
                let text = self.text(&routes);
                let same = std::fs::read_to_string(&self.file).is_ok_and(|found| found == text);
                Ok(if same { routes } else { BTreeSet::new() })
            }
        }
    }

    pub(crate) async fn set(&mut self, wanted: &BTreeSet<Route>) -> Result<(), Error> {
        let before = match std::fs::read(&self.file) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(Error::File { file: self.file.clone(), source }),
        };
        self.write(self.text(wanted).as_bytes())?;
        let configured = self.ask("configure").await;
        // A file that it does not take must not keep it from starting.
        if let (Err(Error::Refused { .. }), Some(before)) = (&configured, before) {
            self.write(&before)?;
        }
        configured.map(drop)
    }

    fn write(&self, text: &[u8]) -> Result<(), Error> {
        write_whole(&self.file, text)
            .map_err(|source| Error::File { file: self.file.clone(), source })
    }

    async fn routes(&self) -> Result<BTreeSet<Route>, Error> {
        let mut found = BTreeSet::new();
        for protocol in PROTOCOLS {
            let lines = self.ask(&format!("show route protocol {protocol}")).await?;
            found.extend(lines.iter().filter_map(|line| network_of(line)));
        }
        Ok(found)
    }

    /// The file: a protocol for each family, with no route where none is announced.
    fn text(&self, routes: &BTreeSet<Route>) -> String {
        let mut text = String::from(
            "# Written by weir, which announces these; what is changed here is lost.\n",
        );
        for (six, protocol) in [false, true].into_iter().zip(PROTOCOLS) {
            let channel = if six { "ipv6" } else { "ipv4" };
            let _ = writeln!(text, "protocol static {protocol} {{\n\t{channel};");
            let with = self.attributes_of(six);
            for route in routes.iter().filter(|route| route.is_ipv6() == six) {
                let _ = writeln!(text, "\troute {route} blackhole{with};");
            }
            text.push_str("}\n");
        }
        text
    }

    /// The statements that give a route its attributes.
    fn attributes_of(&self, six: bool) -> String {
        let Attributes { next_hop, next_hop6, communities, med } = &self.attributes;
        let mut with = String::new();
        let hop = if six {
            next_hop6.map(|hop| hop.to_string())
        } else {
            next_hop.map(|hop| hop.to_string())
        };
        if let Some(hop) = hop {
            let _ = write!(with, " bgp_next_hop = {hop};");
        }
        if let Some(med) = med {
            let _ = write!(with, " bgp_med = {med};");
        }
        for community in communities {
            let (high, low) = community.halves();
            let _ = write!(with, " bgp_community.add(({high},{low}));");
        }
        if with.is_empty() { with } else { format!(" {{{with} }}") }
    }

    fn not_included(&self, error: Error) -> Error {
        let Error::Refused { speaker, reason } = error else { return error };
        let file = self.file.display();
        let reason =
            format!("{reason}; is there a line `include \"{file}\";` in its configuration?");
        Error::Refused { speaker, reason }
    }

    /// Asks one thing. Returns the lines of the answer without their numbers.
    async fn ask(&self, command: &str) -> Result<Vec<String>, Error> {
        let unreachable = |error: io::Error| Error::Unreachable {
            speaker: self.name.clone(),
            reason: error.to_string(),
        };
        let mut stream = UnixStream::connect(&self.socket).await.map_err(unreachable)?;
        let (read, mut write) = stream.split();
        let mut read = BufReader::new(read);
        // It says who it is.
        answer(&mut read).await.map_err(unreachable)?;
        write.write_all(format!("{command}\n").as_bytes()).await.map_err(unreachable)?;
        let (number, lines) = answer(&mut read).await.map_err(unreachable)?;
        if number >= FIRST_ERROR {
            let reason = lines.last().cloned().unwrap_or_else(|| format!("reply {number}"));
            return Err(Error::Refused { speaker: self.name.clone(), reason });
        }
        Ok(lines)
    }
}

/// One answer: lines of a number, `-` and text, or of a blank and text, up to one with a blank behind its
/// number. Returns that number.
async fn answer(from: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<(u16, Vec<String>)> {
    let strange = |line: &str| io::Error::other(format!("not what BIRD says: {line:?}"));
    let mut lines = Vec::new();
    for _ in 0..MOST_LINES {
        let mut line = String::new();
        if from.read_line(&mut line).await? == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "it has closed the connection"));
        }
        let line = line.trim_end_matches('\n');
        if let Some(text) = line.strip_prefix(' ') {
            lines.push(text.to_owned());
            continue;
        }
        let (number, text) = line.split_at_checked(4).ok_or_else(|| strange(line))?;
        let number = number.parse().map_err(|_| strange(line))?;
        let rest = text.get(1..).unwrap_or_default();
        if !rest.is_empty() {
            lines.push(rest.to_owned());
        }
        match text.chars().next() {
            Some('-') => {}
            None | Some(' ') => return Ok((number, lines)),
            Some(_) => return Err(strange(line)),
        }
    }
    Err(io::Error::other("an answer without an end"))
}

/// The network at the beginning of a line of `show route`.
fn network_of(line: &str) -> Option<Route> {
    line.split_whitespace().next()?.parse().ok()
}

/// Whole or not at all, and for BIRD's user to read.
fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    let mut file = tempfile::NamedTempFile::new_in(parent)?;
    file.write_all(text)?;
    file.as_file().set_permissions(PermissionsExt::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bird(attributes: Attributes) -> Bird {
        Bird::new("BIRD".into(), "/none".into(), "/none".into(), attributes)
    }

    #[test]
    fn the_file_has_a_protocol_for_each_family() {
        let routes = ["10.0.0.1/32", "2001:db8::1/128"];
        let routes = routes.iter().filter_map(|text| text.parse().ok()).collect();
        let attributes = Attributes {
            med: Some(5),
            communities: vec!["65000:1".parse().expect("a community")],
            ..Attributes::default()
        };
        let text = bird(attributes).text(&routes);
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            [
                "protocol static weir4 {",
                "\tipv4;",
                "\troute 10.0.0.1/32 blackhole { bgp_med = 5; bgp_community.add((65000,1)); };",
                "}",
                "protocol static weir6 {",
                "\tipv6;",
                "\troute 2001:db8::1/128 blackhole { bgp_med = 5; bgp_community.add((65000,1)); };",
                "}",
            ]
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn answers_are_read_up_to_their_last_line() {
        let read = |text: &'static str| async move { answer(&mut text.as_bytes()).await };
        let routes = "1007-Table master4:\n 10.0.0.1/32          blackhole [weir4 08:00:00.000] * (200)\n0000 \n";
        let (number, lines) = read(routes).await.expect("an answer");
        assert_eq!(number, 0);
        let found: Vec<Route> = lines.iter().filter_map(|line| network_of(line)).collect();
        assert_eq!(found, ["10.0.0.1/32".parse().expect("a route")]);
        let (number, lines) =
            read("0002-Reading\n8002 a.conf:3 syntax error\n").await.expect("one");
        assert_eq!(
            (number, lines.last().map(String::as_str)),
            (8002, Some("a.conf:3 syntax error"))
        );
        for broken in ["", "0002-Reading\n", "hello\n", "00", "12345\n"] {
            assert!(read(broken).await.is_err(), "{broken:?}");
        }
    }
}
