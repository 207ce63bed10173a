//! Tells balancers what connections this backend holds, and how loaded it is (docs/agent.md).
//!
//! ```text
//!  TCP ──tracepoint──> ring ──> log of the last changes ──> a session for each balancer
//!   └───────────────sock_diag: all connections that there are ──┘
//! ```
//! A session reads the log from where its balancer is. If that is not there any more, or the balancer asks, it
//! lists all connections, and reads on from where it began to list.

mod app;
mod credentials;
mod dump;
mod follow;
mod holds;
mod kept;
mod kernel;
mod lies;
mod load;
mod log;
mod roster;
mod session;

pub use app::{Asks, Health, Source, Url};
pub use credentials::Credentials;
pub use lies::Lies;
pub use load::LoadOf;

use crate::alone::Alone;
use crate::asked::Said;
use crate::error::Error;
use crate::quic;
use crate::ready;
use app::Word;
use kept::Kept;
use kernel::{Kernel, ToldOf};
use roster::Roster;
use session::News;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, watch};
use weir_rpc::tls::{Files, Identity};

/// The port at which balancers listen for agents, unless another one is given.
pub const PORT: u16 = 4479;
/// Changes that are kept for balancers that are away, if nothing else is said: 12 MB of them.
pub const LOG: usize = 1 << 18;
/// What sessions have said of balancers and nobody has looked at yet: they wait.
const NEWS: usize = 64;

/// What the agent says, a line at a time.
pub type Say = fn(fmt::Arguments<'_>);

/// A balancer, as the agent calls it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Balancer {
    /// Its address, or a name of its host: what its certificate must name.
    pub host: String,
    /// The port at which it listens for agents.
    pub port: u16,
}

impl FromStr for Balancer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Balancer(text.to_owned());
        let within = |text: &str| {
            text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
        };
        if let Some(address) = within(text).or_else(|| text.parse().ok()) {
            return Ok(Self { host: address.to_string(), port: PORT });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok().filter(|port| *port != 0)),
            None => (text, Some(PORT)),
        };
        let host = within(host).map_or_else(|| host.to_owned(), |address| address.to_string());
        weir_rpc::tls::server_name(&host).map_err(|_| wrong())?;
        Ok(Self { host, port: port.ok_or_else(wrong)? })
    }
}

impl fmt::Display for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Whom to tell, and as whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The balancers that are told, each in a session of its own; and with them those that they name as the others
    /// of their fleet.
    pub balancers: Vec<Balancer>,
    /// The agent's certificate, which names the backends that it may speak for, and the authority of the
    /// balancers'.
    pub files: Files,
    /// What is told as the load; none: no load is told.
    pub load: Option<LoadOf>,
    /// Changes that are kept for balancers that are away.
    pub log: usize,
    /// Whether it is this network namespace's agent by that alone: nothing else runs here that is.
    pub alone: bool,
    /// Where it is kept which balancers others have named; none: nowhere.
    pub directory: Option<PathBuf>,
    /// What an agent before this one was told of how packets come, by those that it was told by.
    pub said: Said,
    /// Where it is written how servers make QUIC ids; none: nowhere.
    pub quic: Option<quic::Options>,
    /// How it is found out whether the application is well; none: nobody is told of that.
    pub health: Option<Health>,
    /// What is said wrongly, in a laboratory.
    pub lies: Lies,
}

/// What the sessions have in common.
struct Common {
    options: Options,
    kernel: Kernel,
    /// 16 bytes, drawn at the start.
    instance: [u8; 16],
    /// What each session's balancer wants to be told of.
    told: Mutex<HashMap<usize, ToldOf>>,
    /// What sessions hear of balancers, by the sessions' numbers.
    news: mpsc::Sender<(usize, News)>,
    /// What each balancer has said last of how packets come.
    said: watch::Sender<Said>,
    /// And of how servers make QUIC ids.
    quic: watch::Sender<quic::Said>,
    /// The number that the application says as its load, if it is known.
    load: watch::Receiver<Option<f64>>,
    /// Whether the application is well, if somebody has asked.
    health: watch::Receiver<Option<Arc<Word>>>,
    say: Say,
}

impl Common {
    /// A session wants to be told of connections to these. What others want stays told.
    async fn tell(&self, session: usize, wanted: ToldOf) -> Result<(), Error> {
        let mut told = self.told.lock().await;
        told.insert(session, wanted);
        self.kernel.tell(told.values().flatten().copied().collect()).await
    }

    /// A session is over for good: what only it wanted is told no more.
    async fn leave(&self, session: usize) -> Result<(), Error> {
        let mut told = self.told.lock().await;
        told.remove(&session);
        self.kernel.tell(told.values().flatten().copied().collect()).await
    }
}

/// The agent as it tells balancers. Dropping it ends all sessions.
#[derive(Debug)]
pub struct Speaking {
    stop: watch::Sender<bool>,
    said: watch::Receiver<Said>,
    thread: Option<JoinHandle<()>>,
    /// Held as long as this is the network namespace's agent.
    _alone: Option<Alone>,
}

impl Speaking {
    /// Follows connections, and begins to tell. A balancer that cannot be reached is tried again and again;
    /// `say` is told when something about that changes.
    ///
    /// # Errors
    /// [`Error`]: of the files, or as the kernel refuses the program.
    pub fn start(options: Options, say: Say) -> Result<Self, Error> {
        for warning in look_at(&options.files)? {
            say(format_args!("warning: {warning}"));
        }
        for lie in options.lies.words() {
            say(format_args!("warning: for a laboratory: {lie}"));
        }
        let alone =
            options.alone.then(|| Alone::claim(&["none: it only tells balancers".to_owned()]));
        let alone = alone.transpose()?;
        let kernel = Kernel::start(options.log)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let system = |source| Error::System { what: "start telling balancers".into(), source };
        let runtime = runtime.map_err(system)?;
        let (stop, stopped) = watch::channel(false);
        let mut roster = Roster::new(&options.balancers);
        let kept = options.directory.as_ref().map(|directory| {
            let name = options.files.identity()?.name;
            Ok::<_, Error>(Kept::open(directory, &name, &mut roster))
        });
        // Who does not know whom others have named forgets nobody yet.
        let mut forgets = true;
        let kept = kept.transpose()?.map(|(kept, trouble)| {
            forgets = trouble.is_none();
            trouble.iter().for_each(|trouble| say(format_args!("warning: {trouble}")));
            kept
        });
        let told = Mutex::new(HashMap::new());
        let (news, heard) = mpsc::channel(NEWS);
        let (said, hears) = watch::channel(options.said.clone());
        let (quic, ids) = watch::channel(quic::Said::new());
        let keep = options.quic.clone();
        let files = options.files.clone();
        let instance = rand::random();
        let (found, load) = watch::channel(None);
        let source = match &options.load {
            Some(LoadOf::Said(source)) => Some(source.clone()),
            _ => None,
        };
        let (word, health) = watch::channel(None);
        let asks = options.health.clone();
        let common =
            Common { options, kernel, instance, told, news, said, quic, load, health, say };
        let tell = move || {
            if let Some(source) = source {
                runtime.spawn(app::follow_load(source, found, say));
            }
            if let Some(asks) = asks {
                runtime.spawn(app::follow_health(asks, word));
            }
            if let Some(keep) = keep {
                runtime.spawn(quic::keep(keep, ids, say));
            }
            runtime.spawn(holds::look_after(files, say));
            runtime.block_on(follow::follow(
                Arc::new(common),
                (roster, forgets),
                kept,
                heard,
                stopped,
            ));
            runtime.shutdown_timeout(Duration::from_millis(200));
        };
        let thread = std::thread::Builder::new().name("balancers".into()).spawn(tell);
        Ok(Self { stop, said: hears, thread: Some(thread.map_err(system)?), _alone: alone })
    }

    /// What each balancer has said last of how packets come. What one has said that is away stays, as its packets may
    /// come all the same; what one has said that is left alone goes.
    pub fn said(&self) -> watch::Receiver<Said> {
        self.said.clone()
    }
}

impl Drop for Speaking {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether the files can be used, and what there is to say of them.
///
/// # Errors
/// [`Error`], with the file and what is wrong with it.
pub fn look_at(files: &Files) -> Result<Vec<String>, Error> {
    files.client()?;
    let identity = files.identity()?;
    if !identity.usage.client || identity.usage.server {
        let why = "it is not for agents (clientAuth alone): balancers would not take it; \
                   `weir pki issue NAME --role agent --address ...` makes one";
        return Err(Error::Certificate { path: files.certificate.clone(), why: why.into() });
    }
    if identity.addresses.is_empty() {
        let why = "it names no address, so it speaks for no backend; `weir pki issue NAME --role agent \
                   --address ...` makes one that does";
        return Err(Error::Certificate { path: files.certificate.clone(), why: why.into() });
    }
    let ca = Identity::of_file(&files.ca)?;
    let both = [(&files.certificate, identity), (&files.ca, ca)];
    let ends = both.into_iter().filter_map(|(path, one)| holds::warning(path, &one));
    // A balancer says itself whom it trusts.
    let foreign = files.foreign().map(|foreign| {
        format!("{foreign}: a balancer that trusts the same authority does not take it")
    });
    Ok(ends.chain(foreign).collect())
}

/// The addresses of this host that the agent's certificate names: those of the backends that it speaks for.
///
/// # Errors
/// [`Error::NotHere`] if there is none; of the file, if it cannot be read, and of the host.
pub fn own_addresses(files: &Files) -> Result<Vec<IpAddr>, Error> {
    let own = ready::addresses()?;
    let named = files.identity()?.addresses;
    let has = |address: &IpAddr| own.iter().any(|(_, one)| one == address);
    let here: Vec<IpAddr> = named.iter().copied().filter(has).collect();
    if here.is_empty() {
        return Err(Error::NotHere { certificate: files.certificate.clone(), named });
    }
    Ok(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balancers_are_read_as_they_are_written() {
        let read = |text: &str| text.parse::<Balancer>().map(|one| one.to_string()).ok();
        let same = ["10.0.0.1:80", "[2001:db8::1]:443", "lb.example:4479"];
        for text in same {
            assert_eq!(read(text).as_deref(), Some(text));
        }
        assert_eq!(read("10.0.0.1").as_deref(), Some("10.0.0.1:4479"));
        assert_eq!(read("2001:db8::1").as_deref(), Some("[2001:db8::1]:4479"));
        assert_eq!(read("[2001:db8::1]").as_deref(), Some("[2001:db8::1]:4479"));
        assert_eq!(read("lb").as_deref(), Some("lb:4479"));
        for text in ["", ":80", "lb:0", "lb:", "lb:70000", "a b:80", "http://lb:80"] {
            assert_eq!(read(text), None, "{text}");
        }
        // Brackets are around an address of IPv6, and there are two.
        for text in ["[::1", "::1]", "[::1:80", "::1]:80", "[[::1]]", "[10.0.0.1]", "[lb]:80"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
