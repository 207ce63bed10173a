//! One connection: what it does, and the books that are kept on it.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout, timeout_at};

use super::http;
use super::spec::{Kind, Plan, Planner};
use super::stats::BrokenConnection;
use super::verdict::{Failure, Outcome, judge};
use super::{Shared, http::read_answer};

/// A datagram is sent once and then so many times more.
const RESENDS: u32 = 3;
/// Longest wait before the last request, so that not all are sent at once.
const FINISH_SPREAD: Duration = Duration::from_secs(1);
/// After a failure a client waits for up to this before it connects again.
const SULK: Duration = Duration::from_millis(300);

/// What the connections of one client share; all of them run on one thread.
pub(crate) struct Client {
    pub(crate) shared: std::sync::Arc<Shared>,
    pub(crate) sources4: Vec<IpAddr>,
    pub(crate) sources6: Vec<IpAddr>,
    pub(crate) planner: RefCell<Planner>,
    /// Tasks, each of which makes one connection after the other.
    pub(crate) slots: Cell<usize>,
    /// Tasks that there should be.
    pub(crate) quota: Cell<usize>,
    pub(crate) finishing: Cell<bool>,
    /// Wakes everybody who thinks when `finishing` is set.
    pub(crate) finish: Notify,
}

impl Client {
    /// Pauses; returns early when the run is finishing, and says whether it is.
    async fn think(&self, pause: Duration) -> bool {
        if !self.finishing.get() {
            // Nothing can set the flag between this test and the wait: one thread, no await.
            tokio::select! {
                () = sleep(pause) => {}
                () = self.finish.notified() => {}
            }
        }
        self.finishing.get()
    }
}

/// Makes one connection after the other until there are too many tasks or the run finishes.
pub(crate) async fn slot(client: Rc<Client>) {
    while !client.finishing.get() && client.slots.get() <= client.quota.get() {
        let mut plan = client.planner.borrow_mut().draw(&client.shared.spec);
        let sulk = plan.random.random_range(Duration::ZERO..SULK);
        let mut flow = Flow::begin(Rc::clone(&client), plan.kind);
        let result = match plan.kind {
            Kind::Udp => flow.datagrams(plan).await,
            _ => flow.tcp(plan).await,
        };
        let failed = result.is_err();
        flow.end(result);
        if failed {
            client.think(sulk).await;
        }
    }
    client.slots.set(client.slots.get() - 1);
}

/// The books on one connection. Dropped without [`Flow::end`], it counts as given up.
struct Flow {
    client: Rc<Client>,
    kind: Kind,
    started: Instant,
    source: Option<SocketAddr>,
    backend: Option<usize>,
    answers: u64,
    ended: bool,
}

impl Flow {
    fn begin(client: Rc<Client>, kind: Kind) -> Self {
        client.shared.stats.begin(kind);
        Self {
            client,
            kind,
            started: Instant::now(),
            source: None,
            backend: None,
            answers: 0,
            ended: false,
        }
    }

    fn end(mut self, result: Result<(), Failure>) {
        let shared = &self.client.shared;
        let outcome = match result {
            Ok(()) => Outcome::Completed,
            Err(failure) => {
                judge(&shared.events, shared.spec.detection, self.started, self.backend, failure)
            }
        };
        if let Outcome::Broken(reason) = &outcome {
            let failed = shared.events.elapsed();
            shared.stats.keep_broken(BrokenConnection {
                kind: self.kind,
                source: self.source.map_or(String::new(), |s| s.to_string()),
                reason: reason.clone(),
                backend: self.backend.map(|b| shared.stats.name(b).to_string()),
                answers: self.answers,
                started: (failed.saturating_sub(self.started.elapsed())).as_secs_f64(),
                failed: failed.as_secs_f64(),
            });
        }
        shared.stats.end(self.kind, self.backend, Some(&outcome));
        self.ended = true;
    }

    /// An answer begins that names a backend: the first decides where the connection lives.
    fn meet(&mut self, name: &[u8]) -> Result<usize, Failure> {
        let stats = &self.client.shared.stats;
        let text = || String::from_utf8_lossy(name).into_owned();
        let met = stats
            .backend(name)
            .ok_or_else(|| Failure::Garbled(format!("unknown backend `{}`", text())))?;
        match self.backend {
            None => {
                self.backend = Some(met);
                stats.first_answer(met);
                Ok(met)
            }
            Some(own) if own == met => Ok(met),
            Some(_) => Err(Failure::Moved { to: text() }),
        }
    }

    fn answered(&mut self, backend: usize, bytes: u64, after: Option<Duration>) {
        self.answers += 1;
        self.client.shared.stats.answer(backend, bytes, after);
    }

    /// Where from and where to.
    fn ends(&self, plan: &Plan) -> (IpAddr, SocketAddr) {
        let target = &self.client.shared.spec.target;
        let (sources, to): (_, IpAddr) = if plan.ipv6 {
            (&self.client.sources6, target.v6.into())
        } else {
            (&self.client.sources4, target.v4.into())
        };
        let port = match plan.kind {
            Kind::Udp => target.echo_port,
            _ => target.web_port,
        };
        (sources[plan.source % sources.len()], SocketAddr::new(to, port))
    }

    async fn tcp(&mut self, plan: Plan) -> Result<(), Failure> {
        let mut stream = self.connect(&plan).await?;
        match plan.kind {
            Kind::Keepalive => self.keepalive(&mut stream, plan).await,
            Kind::Download => {
                // On the heap: few connections need so much, and every task would carry it.
                let mut buffer = vec![0; 64 << 10];
                self.ask(&mut stream, http::BIG, &mut buffer).await
            }
            Kind::Short | Kind::Udp => self.ask(&mut stream, http::SMALL, &mut [0; 512]).await,
        }
    }

    async fn connect(&mut self, plan: &Plan) -> Result<TcpStream, Failure> {
        let (from, to) = self.ends(plan);
        let local = |error: io::Error| Failure::Local(error.to_string());
        let socket = match to {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }
        .map_err(local)?;
        choose_port_late(&socket).map_err(local)?;
        socket.bind(SocketAddr::new(from, 0)).map_err(local)?;
        let shared = &self.client.shared;
        let before = Instant::now();
        let stream = match timeout(shared.spec.timeout, socket.connect(to)).await {
            Err(_) => return Err(Failure::Timeout("connect")),
            Ok(connected) => connected.map_err(|error| Failure::of_connect(&error))?,
        };
        shared.stats.connected(before.elapsed());
        self.source = stream.local_addr().ok();
        Ok(stream)
    }

    async fn ask(
        &mut self,
        stream: &mut TcpStream,
        request: &[u8],
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let patience = self.client.shared.spec.timeout;
        let before = Instant::now();
        stream.write_all(request).await.map_err(|error| Failure::of(&error))?;
        let (backend, bytes) =
            read_answer(stream, buffer, patience, |name| self.meet(name)).await?;
        // A download takes as long as its rate says.
        let after = (self.kind != Kind::Download).then(|| before.elapsed());
        self.answered(backend, bytes, after);
        Ok(())
    }

    async fn keepalive(&mut self, stream: &mut TcpStream, plan: Plan) -> Result<(), Failure> {
        let client = Rc::clone(&self.client);
        let (end, mut random) = (self.started + plan.life, plan.random);
        let mut buffer = [0; 512];
        loop {
            self.ask(stream, http::SMALL, &mut buffer).await?;
            if Instant::now() >= end {
                return Ok(());
            }
            let pause = random.random_range(client.shared.spec.think.clone());
            if client.think(pause).await {
                // One last request, to see that it still sits where it sat.
                sleep(random.random_range(Duration::ZERO..FINISH_SPREAD)).await;
                return self.ask(stream, http::SMALL, &mut buffer).await;
            }
        }
    }

    async fn datagrams(&mut self, plan: Plan) -> Result<(), Failure> {
        let client = Rc::clone(&self.client);
        let (from, to) = self.ends(&plan);
        let (end, mut random) = (self.started + plan.life, plan.random);
        let socket = async {
            let socket = UdpSocket::bind(SocketAddr::new(from, 0)).await?;
            socket.connect(to).await?;
            io::Result::Ok(socket)
        }
        .await
        .map_err(|error| Failure::Local(error.to_string()))?;
        self.source = socket.local_addr().ok();
        for number in 0.. {
            self.echo(&socket, number, &mut random).await?;
            if Instant::now() >= end {
                break;
            }
            let pause = random.random_range(client.shared.spec.udp_think.clone());
            if client.think(pause).await {
                sleep(random.random_range(Duration::ZERO..FINISH_SPREAD)).await;
                self.echo(&socket, number + 1, &mut random).await?;
                break;
            }
        }
        Ok(())
    }

    /// Sends a datagram until it is answered.
    async fn echo(
        &mut self,
        socket: &UdpSocket,
        number: u32,
        random: &mut ChaCha8Rng,
    ) -> Result<(), Failure> {
        let payload = format!("{number} {:08x}", random.random::<u32>());
        let shared = std::sync::Arc::clone(&self.client.shared);
        for attempt in 0..=RESENDS {
            if attempt > 0 {
                shared.stats.resent();
            }
            let deadline = tokio::time::Instant::now() + shared.spec.udp_timeout;
            // A refusal reported here belongs to the datagram before: its server was not there.
            // It is lost like any other, and the server may be back for the next.
            let _ = socket.send(payload.as_bytes()).await;
            if let Ok(answer) = timeout_at(deadline, self.hear(socket, payload.as_bytes())).await {
                let (backend, bytes) = answer?;
                self.answered(backend, bytes, None);
                return Ok(());
            }
        }
        Err(Failure::Timeout("answer to a datagram"))
    }

    /// Waits for the answer to this payload. Late answers to earlier ones are only asked for
    /// their backend.
    async fn hear(&mut self, socket: &UdpSocket, payload: &[u8]) -> Result<(usize, u64), Failure> {
        let mut buffer = [0; 128];
        loop {
            let Ok(length) = socket.recv(&mut buffer).await else {
                continue;
            };
            let answer = &buffer[..length];
            let Some(colon) = answer.iter().position(|byte| *byte == b':') else {
                let text = String::from_utf8_lossy(answer).into_owned();
                return Err(Failure::Garbled(text));
            };
            let backend = self.meet(&answer[..colon])?;
            if &answer[colon + 1..] == payload {
                return Ok((backend, payload.len() as u64));
            }
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if !self.ended {
            self.client.shared.stats.end(self.kind, self.backend, None);
        }
    }
}

/// Lets connect() choose the port, when it knows the far end: bind() would have to find one that
/// nobody uses towards anybody.
fn choose_port_late(socket: &TcpSocket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the option's value is an int that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
