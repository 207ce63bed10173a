//! The BGP speakers that can be told.

use crate::Route;
use crate::bird::Bird;
use crate::gobgp::Gobgp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A speaker that has not answered by then does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// A community (RFC 1997), written as two numbers of 16 bits: `65000:100`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Community(pub u32);

/// Why something is no community.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a community; give two numbers of 0 to 65535, such as \"65000:100\"")]
pub struct CommunityError(String);

impl Community {
    pub(crate) fn halves(self) -> (u16, u16) {
        ((self.0 >> 16) as u16, self.0 as u16)
    }
}

impl fmt::Display for Community {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low) = self.halves();
        write!(f, "{high}:{low}")
    }
}

impl FromStr for Community {
    type Err = CommunityError;

    fn from_str(text: &str) -> Result<Self, CommunityError> {
        let halves = text
            .split_once(':')
            .and_then(|(high, low)| Some((high.parse::<u16>().ok()?, low.parse::<u16>().ok()?)));
        let (high, low) = halves.ok_or_else(|| CommunityError(text.to_owned()))?;
        Ok(Self(u32::from(high) << 16 | u32::from(low)))
    }
}

impl TryFrom<String> for Community {
    type Error = CommunityError;

    fn try_from(text: String) -> Result<Self, CommunityError> {
        text.parse()
    }
}

impl From<Community> for String {
    fn from(community: Community) -> Self {
        community.to_string()
    }
}

/// What every route is announced with.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attributes {
    /// The next hop of IPv4; none: the speaker's own address.
    pub next_hop: Option<Ipv4Addr>,
    /// The next hop of IPv6; none: the speaker's own address.
    pub next_hop6: Option<Ipv6Addr>,
    /// BGP communities that each route carries (RFC 1997).
    pub communities: Vec<Community>,
    /// The metric among links to one neighbour (RFC 4271, section 5.1.4).
    pub med: Option<u32>,
}

/// A speaker, and how it is reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpeakerConfig {
    /// GoBGP, by its API.
    Gobgp {
        /// `host:port`, or `unix:` and the path of a socket.
        api: String,
        /// What routes are announced with.
        attributes: Attributes,
    },
    /// BIRD 2, by its control socket and a file that its configuration includes.
    Bird {
        /// The socket.
        socket: PathBuf,
        /// The file.
        file: PathBuf,
        /// What routes are announced with.
        attributes: Attributes,
    },
    /// Nobody is told: something else asks what was decided.
    None,
}

impl fmt::Display for SpeakerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gobgp { api, .. } => write!(f, "GoBGP at {api}"),
            Self::Bird { socket, .. } => write!(f, "BIRD at {}", socket.display()),
            Self::None => write!(f, "no speaker"),
        }
    }
}

impl SpeakerConfig {
    /// How routes are withdrawn without weir; none: nobody has been told of any.
    pub fn by_hand(&self) -> Option<String> {
        match self {
            Self::Gobgp { .. } => Some(
                "`gobgp global rib del ROUTE` for each of them (with `-a ipv6` for one of IPv6)"
                    .into(),
            ),
            Self::Bird { socket, file, .. } => Some(format!(
                "remove {} and have BIRD read its configuration, `birdc -s {} configure`",
                file.display(),
                socket.display()
            )),
            Self::None => None,
        }
    }
}

/// What keeps a speaker from being told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not there.
    #[error("cannot reach {speaker}: {reason}")]
    Unreachable {
        /// Which one.
        speaker: String,
        /// Why.
        reason: String,
    },
    /// It is there, and does not answer.
    #[error("{speaker} has not answered for {} s", PATIENCE.as_secs())]
    Silent {
        /// Which one.
        speaker: String,
    },
    /// It has refused.
    #[error("{speaker} refuses: {reason}")]
    Refused {
        /// Which one.
        speaker: String,
        /// What it says, and what to do.
        reason: String,
    },
    /// The file for BIRD cannot be written.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A routing daemon that weir tells its routes to, one of the two that it can speak with.
#[derive(Debug)]
pub enum Speaker {
    /// GoBGP.
    Gobgp(Gobgp),
    /// BIRD.
    Bird(Bird),
    /// None: it announces what it is told to.
    None(BTreeSet<Route>),
}

impl Speaker {
    /// One that is configured so. Nothing is asked of it yet.
    pub fn new(config: &SpeakerConfig) -> Self {
        let name = config.to_string();
        match config {
            SpeakerConfig::Gobgp { api, attributes } => {
                Self::Gobgp(Gobgp::new(name, api.clone(), attributes.clone()))
            }
            SpeakerConfig::Bird { socket, file, attributes } => {
                Self::Bird(Bird::new(name, socket.clone(), file.clone(), attributes.clone()))
            }
            SpeakerConfig::None => Self::None(BTreeSet::new()),
        }
    }

    /// Those of `known` that it announces for us now.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn current(&mut self, known: &BTreeSet<Route>) -> Result<BTreeSet<Route>, Error> {
        match self {
            Self::Gobgp(gobgp) => in_time(&gobgp.name.clone(), gobgp.current(known)).await,
            Self::Bird(bird) => in_time(&bird.name.clone(), bird.current()).await,
            Self::None(routes) => Ok(routes.clone()),
        }
    }

    /// Makes it announce `wanted` and nothing else, where it announces `current` now. What is taken away is
    /// taken away first.
    ///
    /// # Errors
    /// [`Error`]. What it announces then is to be asked.
    pub async fn set(
        &mut self,
        current: &BTreeSet<Route>,
        wanted: &BTreeSet<Route>,
    ) -> Result<(), Error> {
        match self {
            Self::Gobgp(gobgp) => in_time(&gobgp.name.clone(), gobgp.set(current, wanted)).await,
            Self::Bird(bird) => in_time(&bird.name.clone(), bird.set(wanted)).await,
            Self::None(routes) => {
                routes.clone_from(wanted);
                Ok(())
            }
        }
    }

    /// Makes it announce none of `known` any more. Returns those that it did announce.
    ///
    /// # Errors
    /// [`Error`]. What it announces then is to be asked.
    pub async fn withdraw(&mut self, known: &BTreeSet<Route>) -> Result<BTreeSet<Route>, Error> {
        let current = self.current(known).await?;
        self.set(&current, &BTreeSet::new()).await?;
        Ok(current)
    }
}

async fn in_time<T>(
    speaker: &str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| Err(Error::Silent { speaker: speaker.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_community_is_read_as_it_is_written() {
        for text in ["65000:100", "0:0", "65535:65535"] {
            assert_eq!(text.parse::<Community>().map(|one| one.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "1", "65536:1", "1:65536", "1:2:3", "-1:2", "a:b"] {
            assert!(text.parse::<Community>().is_err(), "{text}");
        }
    }
}
