//! Requests that come at times of their own, each on a connection of its own, whether or not those before
//! have been answered; and how long each took.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, sleep_until, timeout};

use crate::error::{Doing, Error, Result};
use crate::lab::Lab;
use crate::topology::{self, VIP4, WEB_PORT};
use crate::traffic::{Failure, begin_connect, read_answer};
use weir_testbed::interrupt::interrupted;
use weir_testbed::process;

/// A request does not follow the handshake's last ACK at once (docs/lab.md).
const REQUEST_AFTER: Duration = Duration::from_millis(1);
/// How often those that wait look whether they should go on.
const LOOK: Duration = Duration::from_millis(200);

/// What a request asks its backend for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ask {
    /// To be worked on for so long, after all that came before; see
    /// [`LabSpec::work`](crate::LabSpec::work).
    Work(Duration),
    /// So many bytes of the long download, at its rate; at least one.
    Bytes(u64),
}

/// A request that is to be made.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Planned {
    /// When, from the start.
    pub at: Duration,
    /// What the client asks the server for.
    pub ask: Ask,
}

/// Requests as they come from very many clients: after times that are exponentially distributed, at a
/// `rate` a second that may change, and is never above `peak`.
pub fn poisson(
    seed: u64,
    duration: Duration,
    peak: f64,
    rate: impl Fn(f64) -> f64,
    mut ask: impl FnMut(&mut ChaCha8Rng) -> Ask,
) -> Vec<Planned> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut now, mut all) = (0.0, Vec::new());
    loop {
        now -= (1.0 - random.random::<f64>()).ln() / peak;
        if now >= duration.as_secs_f64() {
            return all;
        }
        if random.random::<f64>() * peak < rate(now) {
            all.push(Planned { at: Duration::from_secs_f64(now), ask: ask(&mut random) });
        }
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Request {
    /// When it was made, from the start.
    pub at: Duration,
    /// From its SYN to the end of the answer, or to its failure.
    pub took: Duration,
    /// Who answered, if somebody began to.
    pub backend: Option<usize>,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
}

/// Requests that are being made. Dropping it lets the clients end by themselves.
#[derive(Debug)]
pub struct Requests {
    threads: Vec<JoinHandle<weir_testbed::Result<Result<Vec<Request>>>>>,
    started: Instant,
}

impl Requests {
    /// Makes these requests, in the order of their times, to the web service of IPv4 from all clients of a
    /// lab. `patience`: the longest wait for a piece of an answer, and, when all were made, for the last of
    /// them.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn start(lab: &Lab, planned: &[Planned], patience: Duration) -> Result<Self> {
        process::raise_file_limit()?;
        let started = Instant::now();
        let names: Arc<[String]> = lab.backends().iter().map(|b| b.name().to_owned()).collect();
        let clients = lab.clients().len();
        let mut requests = Self { threads: Vec::new(), started };
        for (index, netns) in lab.clients().iter().enumerate() {
            let mine: Vec<Planned> = planned.iter().skip(index).step_by(clients).copied().collect();
            let addresses = 0..lab.spec().addresses_per_client;
            let sources = addresses.map(|n| topology::client4(index, n).into()).collect();
            let client = Client { started, patience, sources, names: Arc::clone(&names) };
            requests.threads.push(netns.spawn(move || run(client, &mine))?);
        }
        Ok(requests)
    }

    /// When they began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Waits for the last one. Those that have not ended by then are not among the results.
    ///
    /// # Errors
    /// [`Error::Interrupted`], or if a client could not run.
    pub fn finish(self) -> Result<Vec<Request>> {
        let mut all = Vec::new();
        for thread in self.threads {
            match thread.join() {
                Ok(requests) => all.extend(requests??),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        if interrupted() {
            return Err(Error::Interrupted);
        }
        all.sort_by_key(|request| request.at);
        Ok(all)
    }
}

struct Client {
    started: Instant,
    patience: Duration,
    sources: Vec<IpAddr>,
    names: Arc<[String]>,
}

fn run(client: Client, planned: &[Planned]) -> Result<Vec<Request>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "starting a runtime".into())?;
    Ok(LocalSet::new().block_on(&runtime, make_all(Rc::new(client), planned)))
}

async fn make_all(client: Rc<Client>, planned: &[Planned]) -> Vec<Request> {
    let (mut under_way, mut ended) = (JoinSet::new(), Vec::new());
    for (number, one) in planned.iter().enumerate() {
        let due = client.started + one.at;
        while !interrupted() && Instant::now() < due {
            sleep_until(due.min(Instant::now() + LOOK).into()).await;
        }
        if interrupted() {
            break;
        }
        let (client, ask) = (Rc::clone(&client), one.ask);
        under_way.spawn_local(async move { client.make(number, ask).await });
        while let Some(done) = under_way.try_join_next() {
            ended.extend(done);
        }
    }
    let last = Instant::now() + client.patience;
    while !interrupted() && Instant::now() < last {
        match timeout(LOOK, under_way.join_next()).await {
            Ok(Some(done)) => ended.extend(done),
            Ok(None) => break,
            Err(_) => {}
        }
    }
    ended
}

impl Client {
    async fn make(&self, number: usize, ask: Ask) -> Request {
        let (began, mut backend) = (Instant::now(), None);
        let from = SocketAddr::new(self.sources[number % self.sources.len()], 0);
        let result = self.answered(from, ask, &mut backend).await;
        Request { at: began - self.started, took: began.elapsed(), backend, failure: result.err() }
    }

    async fn answered(
        &self,
        from: SocketAddr,
        ask: Ask,
        backend: &mut Option<usize>,
    ) -> Result<(), Failure> {
        let local = |error: std::io::Error| Failure::Local(error.to_string());
        let begun = begin_connect(from, SocketAddr::new(VIP4.into(), WEB_PORT))?;
        let mut stream = TcpStream::from_std(begun).map_err(local)?;
        match timeout(self.patience, stream.writable()).await {
            Err(_) => return Err(Failure::Timeout("connect")),
            Ok(ready) => ready.map_err(local)?,
        }
        if let Some(error) = stream.take_error().map_err(local)? {
            return Err(Failure::of_connect(&error));
        }
        sleep(REQUEST_AFTER).await;
        let (path, range) = match ask {
            Ask::Work(demand) => (format!("/work/{}", demand.as_micros()), String::new()),
            Ask::Bytes(bytes) => {
                ("/big".to_owned(), format!("Range: bytes=0-{}\r\n", bytes.max(1) - 1))
            }
        };
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n{range}\r\n");
        stream.write_all(request.as_bytes()).await.map_err(|error| Failure::of(&error))?;
        let mut buffer = vec![0; 16 << 10];
        let (_, length) = read_answer(&mut stream, &mut buffer, self.patience, |name| {
            let at = self.names.iter().position(|one| one.as_bytes() == name);
            *backend = at;
            at.ok_or_else(|| Failure::Garbled(format!("backend {}", name.escape_ascii())))
        })
        .await?;
        match ask {
            Ask::Bytes(bytes) if length != bytes.max(1) => {
                Err(Failure::Garbled(format!("{length} bytes, and not {bytes}")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_at_the_rate_that_is_asked_for() {
        let plan = |seed| {
            let rate = |now: f64| if now < 100.0 { 10.0 } else { 40.0 };
            let ask = |_: &mut ChaCha8Rng| Ask::Bytes(1);
            poisson(seed, Duration::from_secs(200), 40.0, rate, ask)
        };
        let all = plan(7);
        assert_eq!(all, plan(7));
        assert_ne!(all, plan(8));
        assert!(all.is_sorted_by_key(|one| one.at));
        let slow = all.iter().filter(|one| one.at < Duration::from_secs(100)).count();
        let fast = all.len() - slow;
        // 1,000 and 4,000, more than five standard deviations apart from these bounds.
        assert!((830..1170).contains(&slow) && (3650..4350).contains(&fast), "{slow} {fast}");
    }
}
