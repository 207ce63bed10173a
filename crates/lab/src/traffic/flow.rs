//! One connection: what it does, and the books that are kept on it.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until, timeout, timeout_at};

use super::account::Account;
use super::http;
use super::spec::{Kind, Plan, Planner};
use super::upload::{Body, PIECE, pace};
use super::verdict::{Failure, Home};
use super::{Shared, http::read_answer};
use crate::quic::Peer;
use crate::witness::Key;

/// A request does not follow the handshake's last ACK at once.
const FIRST_REQUEST_AFTER: Duration = Duration::from_millis(1);
/// A datagram is sent once and then so many times more.
const RESENDS: u32 = 3;
/// A client of QUIC goes on from another address in so many cases before it asks again.
const MOVES: f64 = 0.5;
/// So long after a question a client of QUIC looks whether its server was killed.
const LOOK_AT_HOME: Duration = Duration::from_secs(1);
/// Longest wait before the last request, so that not all are sent at once.
const FINISH_SPREAD: Duration = Duration::from_secs(1);
/// How often, and after which time each, a port that is still taken is tried again.
const TRIES: usize = 200;
const TRY_AGAIN: Duration = Duration::from_millis(10);
/// A five-tuple that was used less than so long ago is used again.
const MINUTE: Duration = Duration::from_secs(60);
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
    /// Whether the connections of this task are silent until the run finishes.
    fn is_idle(&self, number: usize) -> bool {
        let share = self.shared.spec.idle_share;
        // Spread over all numbers, so that the ramp begins with some of both.
        (number as f64 * share).fract() + share >= 1.0 - 1e-9
    }

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

    /// Waits until the run is finishing.
    async fn finishing_begins(&self) {
        if !self.finishing.get() {
            // As above.
            self.finish.notified().await;
        }
    }
}

/// A task's place among those of its client, given back however it ends: a run waits for all of them.
struct Slot(Rc<Client>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.slots.set(self.0.slots.get() - 1);
    }
}

/// Makes one connection after the other until there are too many tasks or the run finishes.
pub(crate) async fn slot(client: Rc<Client>, number: usize) {
    let _slot = Slot(Rc::clone(&client));
    let mut ports = Ports::of(number);
    while !client.finishing.get() && client.slots.get() <= client.quota.get() {
        let mut plan = client.planner.borrow_mut().draw(&client.shared.spec);
        let sulk = plan.random.random_range(Duration::ZERO..SULK);
        plan.idle = client.is_idle(number);
        if plan.idle {
            plan.kind = Kind::Keepalive;
        }
        if client.shared.spec.reuse && !plan.kind.is_of_udp() {
            let again = ports.take(&mut plan);
            client.shared.stats.met(again.into());
        }
        let mut flow = Flow::begin(Rc::clone(&client), plan.kind);
        let result = match plan.kind {
            Kind::Udp => flow.datagrams(plan).await,
            Kind::Quic => flow.quic(plan).await,
            _ => flow.tcp(plan).await,
        };
        let failed = result.is_err();
        flow.end(result);
        if failed {
            client.think(sulk).await;
        }
    }
}

/// The books on one connection. Dropped without [`Flow::end`], it counts as given up.
struct Flow {
    client: Rc<Client>,
    kind: Kind,
    started: Instant,
    /// Its two ends, once it has a port.
    key: Option<Key>,
    /// The backend of its first answer, and when that came.
    backend: Option<(usize, Instant)>,
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
            key: None,
            backend: None,
            answers: 0,
            ended: false,
        }
    }

    fn end(mut self, result: Result<(), Failure>) {
        self.ended = true;
        // A port is free again at once if the connection failed, had no connection, or ended with a
        // reset: what was seen of it must not be taken for its next user's.
        let shared = &self.client.shared;
        let reusable = result.is_err() || self.kind.is_of_udp() || shared.spec.reuse;
        let account = Account {
            kind: self.kind,
            started: self.started,
            key: self.key,
            backend: self.backend,
            answers: self.answers,
        };
        account.close(shared, result, reusable);
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
                self.backend = Some((met, Instant::now()));
                stats.first_answer(met);
                Ok(met)
            }
            Some((own, _)) if own == met => Ok(met),
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
            Kind::Quic => target.quic_port,
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
            // Boxed for the same reason.
            Kind::Upload => Box::pin(self.upload(&mut stream, plan)).await,
            Kind::Short | Kind::Udp | Kind::Quic => {
                self.ask(&mut stream, http::SMALL, &mut [0; 512]).await
            }
        }
    }

    async fn connect(&mut self, plan: &Plan) -> Result<TcpStream, Failure> {
        let (from, to) = self.ends(plan);
        let local = |error: io::Error| Failure::Local(error.to_string());
        let before = Instant::now();
        let begun = match plan.port {
            None => begin_connect(SocketAddr::new(from, 0), to)?,
            Some(port) => again_from(SocketAddr::new(from, port), to).await?,
        };
        // Known before it is clear whether anybody listens, and not afterwards.
        let source = begun.local_addr().map_err(local)?;
        let key = Key { udp: false, source, target: to };
        self.key = Some(key);
        self.client.shared.witness.begins(key, self.started);
        let stream = TcpStream::from_std(begun).map_err(local)?;
        let shared = &self.client.shared;
        match timeout(shared.spec.until_made(), stream.writable()).await {
            Err(_) => return Err(Failure::Timeout("connect")),
            Ok(ready) => ready.map_err(local)?,
        }
        if let Some(error) = stream.take_error().map_err(local)? {
            return Err(Failure::of_connect(&error));
        }
        shared.stats.connected(before.elapsed());
        // Linux before 6.19 may find no socket for a packet that comes on one processor while the
        // handshake's last ACK, just before it, is handled on another, and answers it with a reset: its
        // look-up takes no lock, and misses the entry that is being replaced. Namespaces of one machine
        // are near enough for that (docs/lab.md).
        sleep(FIRST_REQUEST_AFTER).await;
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

    /// Asks once, so that it is known where the connection lives, and sends much. The backend is to have got every
    /// byte of it, in order.
    async fn upload(&mut self, stream: &mut TcpStream, plan: Plan) -> Result<(), Failure> {
        let shared = std::sync::Arc::clone(&self.client.shared);
        // On the heap: few connections need so much.
        let mut buffer = vec![0; PIECE];
        self.ask(stream, http::SMALL, &mut buffer).await?;
        let mut body = Body::new(plan.random, shared.spec.upload_bytes);
        self.send(stream, body.head().as_bytes()).await?;
        let mut due = tokio::time::Instant::now();
        while let Some(piece) = body.next(&mut buffer) {
            self.send(stream, piece).await?;
            due += pace(shared.spec.upload_rate);
            sleep_until(due).await;
        }
        let (patience, mut said) = (shared.spec.timeout, Vec::new());
        let check = |name: &[u8]| self.meet(name);
        let take = |piece: &[u8]| said.extend_from_slice(piece);
        let (backend, bytes) = http::read_body(stream, &mut buffer, patience, check, take).await?;
        let wanted = body.receipt();
        if said != wanted.as_bytes() {
            let said = String::from_utf8_lossy(&said).into_owned();
            return Err(Failure::Garbled(format!(
                "{}, of an upload of {}",
                said.trim(),
                wanted.trim()
            )));
        }
        self.answered(backend, bytes, None);
        shared.stats.uploaded(shared.spec.upload_bytes);
        Ok(())
    }

    /// Sends a piece of an upload; gives up if nobody takes it.
    async fn send(&self, stream: &mut TcpStream, piece: &[u8]) -> Result<(), Failure> {
        match timeout(self.client.shared.spec.timeout, stream.write_all(piece)).await {
            Err(_) => Err(Failure::Timeout("room for more of an upload")),
            Ok(sent) => sent.map_err(|error| Failure::of(&error)),
        }
    }

    async fn keepalive(&mut self, stream: &mut TcpStream, plan: Plan) -> Result<(), Failure> {
        let client = Rc::clone(&self.client);
        let (end, mut random) = (self.started + plan.life, plan.random);
        let mut buffer = [0; 512];
        loop {
            self.ask(stream, http::SMALL, &mut buffer).await?;
            if plan.idle {
                client.finishing_begins().await;
                sleep(random.random_range(Duration::ZERO..FINISH_SPREAD)).await;
                self.ask(stream, http::SMALL, &mut buffer).await?;
                client.shared.stats.met(1);
                return Ok(());
            }
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
        self.key = socket.local_addr().ok().map(|source| Key { udp: true, source, target: to });
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

    /// A connection whose client goes on from another address and port again and again, which to a router and to
    /// balancers is another flow each time.
    async fn quic(&mut self, plan: Plan) -> Result<(), Failure> {
        let client = Rc::clone(&self.client);
        let (from, to) = self.ends(&plan);
        let (end, mut random) = (self.started + plan.life, plan.random);
        let Some(config) = &client.shared.quic else {
            return Err(Failure::Local("the lab has no servers of QUIC".into()));
        };
        let bind = |from: IpAddr| {
            let socket = std::net::UdpSocket::bind(SocketAddr::new(from, 0));
            socket.map_err(|error| Failure::Local(error.to_string()))
        };
        let socket = bind(from)?;
        self.key = socket.local_addr().ok().map(|source| Key { udp: true, source, target: to });
        let peer = Peer::open(config, socket, to).await?;
        loop {
            self.ask_over_quic(&peer, &mut random).await?;
            if Instant::now() >= end {
                return Ok(());
            }
            let pause = random.random_range(client.shared.spec.udp_think.clone());
            let last = client.think(pause).await;
            if last {
                sleep(random.random_range(Duration::ZERO..FINISH_SPREAD)).await;
            }
            if random.random_bool(MOVES) {
                let sources = &client.sources4;
                peer.move_to(bind(sources[random.random_range(0..sources.len())])?)?;
                client.shared.stats.moved();
            }
            if last {
                return self.ask_over_quic(&peer, &mut random).await;
            }
        }
    }

    async fn ask_over_quic(&mut self, peer: &Peer, random: &mut ChaCha8Rng) -> Result<(), Failure> {
        let question = format!("{:016x}", random.random::<u64>());
        let mut asking = std::pin::pin!(peer.ask(question.as_bytes()));
        let answer = loop {
            if let Ok(answer) = timeout(LOOK_AT_HOME, &mut asking).await {
                break answer?;
            }
            // Its server is gone with all that it knew, and nobody says so to a client of UDP.
            let events = &self.client.shared.events;
            if self.backend.is_some_and(|(home, first)| events.killed_since(home, first)) {
                return Err(Failure::Timeout("packets of QUIC"));
            }
        };
        let backend = answer.strip_suffix(question.as_bytes());
        let Some(name) = backend.and_then(|name| name.strip_suffix(b":")) else {
            return Err(Failure::Garbled(String::from_utf8_lossy(&answer).into_owned()));
        };
        let backend = self.meet(name)?;
        self.answered(backend, question.len() as u64, None);
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
            let home = self.backend.map_or(Home::Nowhere, |(at, first)| Home::Answered(at, first));
            self.client.shared.stats.end(self.kind, home, None);
        }
    }
}

/// Source ports from which connections begin again and again. Linux gives them to no other
/// ([`Scenario::prepare`](crate::scenario::Scenario::prepare)).
pub(crate) const REUSED: std::ops::RangeInclusive<u16> = 2_000..=31_999;

/// Those of one task, which no other task has.
struct Ports {
    first: u16,
    source: usize,
    /// When each was used last, for each family.
    used: [[Option<Instant>; Ports::EACH]; 2],
}

impl Ports {
    const EACH: usize = 3;
    const BLOCKS: usize = (*REUSED.end() - *REUSED.start() + 1) as usize / Self::EACH;

    fn of(number: usize) -> Self {
        let block = number % Self::BLOCKS;
        let first = REUSED.start() + (block * Self::EACH) as u16;
        Self { first, source: number / Self::BLOCKS, used: Default::default() }
    }

    /// Gives the plan a port; says whether its five-tuple was used less than a minute ago.
    fn take(&mut self, plan: &mut Plan) -> bool {
        let which = plan.random.random_range(0..Self::EACH);
        (plan.port, plan.source) = (Some(self.first + which as u16), self.source);
        let before = self.used[usize::from(plan.ipv6)][which].replace(Instant::now());
        before.is_some_and(|before| before.elapsed() < MINUTE)
    }
}

/// Connects from a port that was closed a moment ago. A process that is being started has a copy of
/// every socket until it becomes its program, so the port may be taken for some milliseconds more.
async fn again_from(from: SocketAddr, to: SocketAddr) -> Result<std::net::TcpStream, Failure> {
    for _ in 0..TRIES {
        match begin_connect(from, to) {
            Err(Failure::Local(_)) => sleep(TRY_AGAIN).await,
            result => return result,
        }
    }
    begin_connect(from, to)
}

/// Sends the SYN and does not wait for the answer. Without a port, connect() chooses one, when it
/// knows the far end: bind() would have to find one that nobody uses towards anybody. A connection
/// from a given port ends with a reset, so that the port is free again at once.
pub(crate) fn begin_connect(
    from: SocketAddr,
    to: SocketAddr,
) -> Result<std::net::TcpStream, Failure> {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket,
        sockopt,
    };
    let local = |error: Errno| Failure::Local(io::Error::from(error).to_string());
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, None).map_err(local)?;
    if from.port() == 0 {
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true).map_err(local)?;
    } else {
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&socket, sockopt::Linger, &at_once).map_err(local)?;
        setsockopt(&socket, sockopt::ReuseAddr, &true).map_err(local)?;
    }
    let descriptor = socket.as_raw_fd();
    bind(descriptor, &SockaddrStorage::from(from)).map_err(local)?;
    match connect(descriptor, &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket.into()),
        Err(error) => Err(Failure::of_connect(&error.into())),
    }
}
