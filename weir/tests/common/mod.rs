//! What the end-to-end tests share: the program, a lab around it, and clients that know which
//! backend they sit on.

// Every test file is a program of its own and uses a part of this.
#![allow(dead_code)]

pub mod agent;
pub mod disc;
pub mod echoes;
pub mod hops;
pub mod pool;
pub mod user_plane;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use weir_lab::demo::{DemoSpec, Goals, run_in};
use weir_lab::topology::{self, VIP4, VIP6, WEB_PORT};
use weir_lab::traffic::Mix;
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec, NetNs, Traffic, TrafficHandle, TrafficSpec};

/// The program under test.
pub const WEIR: &str = env!("CARGO_BIN_EXE_weir");
/// Where clients find the web services.
pub const WEB4: SocketAddr = SocketAddr::new(IpAddr::V4(VIP4), WEB_PORT);
pub const WEB6: SocketAddr = SocketAddr::new(IpAddr::V6(VIP6), WEB_PORT);
/// The services of the balancer of a lab.
pub const SERVICES: [&str; 3] = ["web4", "web6", "echo4"];
/// The methods that every promise is tested with.
pub const METHODS: [&str; 2] = ["concury", "tracked"];

/// Longest wait for anything that has to come: a machine that is busy with other things is slow.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Connections that one client makes side by side.
const LANES: usize = 6;
/// Into so many parts all ports are divided; the last is for connections that are held. A
/// five-tuple that was used a moment ago is known where it was, so a test of where new connections
/// go takes a part that was not used before.
const PARTS: u16 = 16;

/// The tests of a file run in threads, and the machine is small: heavy ones go one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The seed of a test: `WEIR_SEED`, or a fresh one. It is printed, so that a failure can be had
/// again.
pub fn seed() -> u64 {
    let seed = match std::env::var("WEIR_SEED") {
        Ok(text) => text.parse().expect("WEIR_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("WEIR_SEED={seed}");
    seed
}

pub fn lab(backends: usize) -> Arc<Lab> {
    lab_of(LabSpec { backends, ..LabSpec::default() })
}

pub fn lab_of(spec: LabSpec) -> Arc<Lab> {
    Arc::new(Lab::create(spec).expect("a lab; the tests run as root"))
}

/// `weir run` with a method and the lab's first `pool` backends.
pub fn start(lab: &Arc<Lab>, method: &str, pool: usize) -> Balancer {
    start_spec(lab, BalancerSpec { method: method.into(), ..BalancerSpec::new(WEIR, pool) })
}

pub fn start_spec(lab: &Arc<Lab>, spec: BalancerSpec) -> Balancer {
    Balancer::start(lab, spec).expect("weir run")
}

/// A balancer with these lines in `[balancer]`, or after it.
pub fn start_with(lab: &Arc<Lab>, balancer_lines: &str) -> Balancer {
    let balancer_lines = balancer_lines.to_owned();
    start_spec(lab, BalancerSpec { balancer_lines, ..BalancerSpec::new(WEIR, 2) })
}

/// The program as a unit of the packages runs it: with its capabilities, and no others. The file stands in the
/// laboratory's directory.
pub fn as_unit(lab: &Lab, unit: &str) -> std::path::PathBuf {
    let path = format!("{}/../packaging/{unit}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let all = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names = all.split(' ').map(|name| format!(",+{}", name[4..].to_lowercase()));
    let program = lab.directory().join(unit);
    let names: String = names.collect();
    let line = format!(
        "#!/bin/sh\nexec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all{names} {WEIR} \"$@\"\n"
    );
    std::fs::write(&program, line).unwrap();
    std::os::unix::fs::chown(&program, Some(0), Some(0)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    program
}

/// What a balancer's audit log says.
pub fn audited(balancer: &Balancer) -> Vec<Value> {
    let log = balancer.socket().parent().unwrap().join("audit.log");
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs `weir` with arguments.
pub fn weir(arguments: &[&str]) -> Output {
    Command::new(WEIR).args(arguments).output().expect("running weir")
}

/// The lines of `weir explain` that begin with these words are there, and the same by the balancer as by a snapshot of
/// it.
pub fn assert_explained_alike(balancer: &Balancer, (from, to): (&str, &str), words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("whole.json").display().to_string();
    balancer.command(&["snapshot", "--tables", "--output", &file]).unwrap();
    let flow = ["explain", "tcp", from, to];
    let asked = balancer.command(&flow).unwrap();
    let told = balancer.command(&[&flow[..], &["--snapshot", &file]].concat()).unwrap();
    for word in words {
        let line = |text: &str| {
            let found = text.lines().find(|line| line.starts_with(word));
            found.unwrap_or_else(|| panic!("no {word}: {text}")).to_owned()
        };
        assert_eq!(line(&told), line(&asked));
    }
}

/// Runs `weir` with arguments and a text at its standard input.
pub fn weir_fed(arguments: &[&str], text: &str) -> Output {
    let mut command = Command::new(WEIR);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("running weir");
    // One that refuses its arguments reads nothing.
    let _ = child.stdin.take().expect("piped").write_all(text.as_bytes());
    child.wait_with_output().expect("running weir")
}

/// Runs `weir` with arguments in the balancer's namespace.
pub fn weir_in(lab: &Lab, arguments: &[&str]) -> Output {
    lab.balancer_command(WEIR).unwrap().args(arguments).output().expect("running weir")
}

/// Starts `weir run` by a command of one's own, with its log in a file, and waits until it answers.
pub fn started(mut command: Command, log: &Path, balancer: &Balancer) -> Child {
    let log = std::fs::File::create(log).unwrap();
    let mut run = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
    eventually("it answers", || {
        assert_eq!(run.try_wait().unwrap(), None, "it has ended");
        balancer.status().is_ok()
    });
    run
}

/// The balancer's `weir run` in a mount namespace of its own without a BPF file system, as `ip netns exec` makes one;
/// and where its log stands.
pub fn started_apart(lab: &Lab, balancer: &Balancer) -> (Child, PathBuf) {
    let script = format!(
        "while umount -l /sys/fs/bpf 2>/dev/null; do :; done; exec {WEIR} run --config {}",
        balancer.config().display()
    );
    let log = lab.directory().join("apart.log");
    let mut command = lab.balancer_command("unshare").unwrap();
    command.args(["--mount", "sh", "-c", &script]);
    (started(command, &log, balancer), log)
}

/// What connections of a namespace send in one segment, as `ss` says of those that it is asked for.
pub fn segments(netns: &NetNs, which: &str) -> Vec<String> {
    let mut ss = netns.command("ss").unwrap();
    let text = stdout(&ss.args(["-tinH", "state", "established", which]).output().unwrap());
    let words = text.split_whitespace().filter(|word| word.starts_with("mss:"));
    words.map(str::to_owned).collect()
}

/// Clients send segments as small as a service says whose answers pass the balancer.
pub fn clients_are_limited(lab: LabSpec, spec: BalancerSpec) {
    let _alone = alone();
    let lab = lab_of(lab);
    let spec = BalancerSpec { tcp_lines: "mss = 1000".into(), ..spec };
    let balancer = start_spec(&lab, spec);
    for to in [WEB4, WEB6] {
        let mut held = hold(&lab, to, 12);
        assert_unbroken(&mut held, "held", &balancer);
        let clients = lab.clients().iter();
        let found: Vec<String> =
            clients.flat_map(|client| segments(client, "( dport = :80 )")).collect();
        assert!(found.len() >= 12, "{found:?}");
        // Less the timestamps.
        assert!(found.iter().all(|one| one == "mss:988"), "{to}: {found:?}");
    }
}

/// Runs a program in a namespace and expects it to succeed.
pub fn sh(netns: &NetNs, line: &str) {
    let mut words = line.split_whitespace();
    let mut command = netns.command(words.next().expect("a program")).unwrap();
    let output = command.args(words).output().expect("running it");
    assert!(output.status.success(), "{line}: {}", stderr(&output));
}

pub fn sysctl(netns: &NetNs, name: &str, value: &str) {
    netns.sysctl(name, value).unwrap();
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits for something to become true; returns how long it took.
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
    started.elapsed()
}

/// Gives a running balancer a command, as a line; returns what it says.
pub fn try_command(balancer: &Balancer, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split(' ').collect();
    balancer.command(&words).map_err(|error| error.to_string())
}

/// The same of a command that is not to be refused.
pub fn command(balancer: &Balancer, line: &str) -> String {
    try_command(balancer, line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Gives one for each service: what `line` makes of its name.
pub fn command_all(balancer: &Balancer, line: impl Fn(&str) -> String) {
    for service in SERVICES {
        command(balancer, &line(service));
    }
}

/// Connections that come and go while the balancer changes, to all services.
pub fn mixed_traffic(lab: &Lab, connections: usize) -> TrafficHandle {
    let spec = TrafficSpec {
        connections,
        mix: Mix { keepalive: 0.3, short: 0.5, udp: 0.2, ..Mix::NONE },
        timeout: PATIENCE,
        detection: PATIENCE,
        udp_timeout: Duration::from_secs(3),
        ..TrafficSpec::default()
    };
    Traffic::start(lab, spec).unwrap()
}

/// Ends that traffic: none of it broke, and there was enough of it to say so.
pub fn assert_none_broke(traffic: TrafficHandle) {
    let report = traffic.finish().unwrap();
    assert_eq!(report.totals.broken, 0, "{:#?}", report.broken_connections);
    assert!(report.totals.answers > 500, "{report:?}");
}

/// Real servers and clients of both families, changes of the pool, a control plane that is killed: nothing
/// breaks. Returns the status after that.
pub fn unbroken(lab: LabSpec, balancer: BalancerSpec, what: &str) -> Value {
    let seed = seed();
    let mut demo = DemoSpec::new(WEIR, seed);
    demo.show = weir_lab::view::Show::Lines;
    (demo.lab, demo.balancer) = (lab, balancer);
    demo.duration = Duration::from_secs(8);
    demo.limit = Duration::from_secs(900);
    (demo.traffic.timeout, demo.traffic.detection) = (PATIENCE, PATIENCE);
    demo.traffic.udp_timeout = Duration::from_secs(3);
    demo.traffic.connections = 400;
    demo.goals = Goals { changes: 8, kinds: &["crash"], open: 300, ..Goals::default() };
    demo.churn.gap = Duration::from_millis(300)..Duration::from_millis(600);
    let lab = lab_of(demo.lab.clone());
    let balancer = Arc::new(start_spec(&lab, demo.balancer.clone()));
    let report = run_in(&lab, Arc::clone(&balancer) as _, &demo).unwrap();
    println!("{}\n{}", report.table(), report.line());
    if !report.held() {
        println!("{:#?}\n{}", report.churn.log, log_tail(&balancer, 100));
    }
    assert_eq!(report.fault(), None, "{what}, WEIR_SEED={seed}");
    balancer.status().unwrap()
}

/// How many packets were dropped for a reason.
pub fn dropped(status: &Value, reason: &str) -> u64 {
    let outcomes = status["outcomes"].as_array().unwrap();
    let found = outcomes.iter().find(|one| one["reason"] == reason);
    found.map_or(0, |one| one["dropped"].as_u64().unwrap())
}

/// A process that is killed takes no connection along, and neither does the one after it.
pub fn kill_and_launch(lab: &Lab, balancer: &Balancer, held: &mut Vec<Held>, when: &str) {
    balancer.kill();
    held.extend(hold_both(lab, 10));
    assert_unbroken(held, &format!("{when}, killed"), balancer);
    balancer.launch().unwrap();
    assert_unbroken(held, when, balancer);
}

pub fn log(balancer: &Balancer) -> String {
    std::fs::read_to_string(balancer.log()).unwrap_or_default()
}

/// The last lines of weir's log, for a failure's report.
pub fn log_tail(balancer: &Balancer, lines: usize) -> String {
    let text = log(balancer);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A service of `weir status --json`.
pub fn service<'a>(status: &'a Value, name: &str) -> &'a Value {
    let services = status["services"].as_array().expect("services");
    services.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}: {status}"))
}

/// A backend of a service.
pub fn backend<'a>(service: &'a Value, name: &str) -> &'a Value {
    let backends = service["backends"].as_array().expect("backends");
    backends.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// The sum of a counter over the backends of a service.
pub fn sum(service: &Value, counter: &str) -> u64 {
    let backends = service["backends"].as_array().expect("backends");
    backends.iter().map(|one| one[counter].as_u64().expect(counter)).sum()
}

/// Name, generation and digest of every service: what a change that was refused must not touch.
pub fn tables(status: &Value) -> Vec<(String, u64, String)> {
    let services = status["services"].as_array().expect("services");
    services
        .iter()
        .map(|one| {
            let text = |field: &str| one[field].as_str().expect(field).to_string();
            (text("name"), one["generation"].as_u64().expect("generation"), text("digest"))
        })
        .collect()
}

/// An open connection that has been answered.
#[derive(Debug)]
pub struct Held {
    stream: TcpStream,
    pub source: SocketAddr,
    pub target: SocketAddr,
    /// The backend that answered first.
    pub backend: String,
}

impl Held {
    /// Connects from an address and a port (0: any), asks once, and stays open. For a thread that
    /// is in the client's namespace.
    pub fn open(from: SocketAddr, to: SocketAddr) -> io::Result<Self> {
        let mut stream = connect(from, to)?;
        let source = stream.local_addr()?;
        let backend = ask(&mut stream, "keep-alive")?;
        Ok(Self { stream, source, target: to, backend })
    }

    /// Asks again; returns who answered.
    pub fn ask(&mut self) -> io::Result<String> {
        ask(&mut self.stream, "keep-alive")
    }

    /// Asks once more, and has the server end it. This end stays open, and sends no FIN.
    pub fn ended_by_server(&mut self) -> io::Result<String> {
        ask(&mut self.stream, "close")
    }

    /// Whether it gets no answer any more, within a time in which any other connection has one.
    pub fn is_cut_off(&mut self) -> bool {
        let waits = self.stream.set_read_timeout(Some(Duration::from_secs(2)));
        waits.is_err() || self.ask().is_err()
    }

    /// What is wrong with it, if something is: it has failed, or somebody else answered.
    pub fn trouble(&mut self) -> Option<String> {
        match self.ask() {
            Ok(name) if name == self.backend => None,
            Ok(name) => Some(format!("{} moved from {} to {name}", self.source, self.backend)),
            Err(error) => Some(format!("{} on {}: {error}", self.source, self.backend)),
        }
    }
}

fn connect(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    // One port leads to several addresses and ports at a time.
    socket.set_reuse_address(from.port() != 0)?;
    socket.bind(&from.into())?;
    socket.connect_timeout(&to.into(), PATIENCE)?;
    // Servers' kernels before Linux 6.19 may answer what comes together with the handshake's last ACK with
    // a reset (docs/lab.md): not at once.
    thread::sleep(Duration::from_micros(500));
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// One request; returns the header `X-Backend` of the answer.
fn ask(stream: &mut TcpStream, connection: &str) -> io::Result<String> {
    let request = format!("GET / HTTP/1.1\r\nHost: lab\r\nConnection: {connection}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::with_capacity(512);
    let mut buffer = [0; 512];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend(&buffer[..length]);
        if let Some(name) = complete(&answer) {
            return Ok(name);
        }
    }
}

/// The backend's name, if the answer is all there: its body is that name and a line end.
fn complete(answer: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let name = head.lines().find_map(|line| line.strip_prefix("X-Backend: "))?;
    (body.strip_suffix('\n')? == name).then(|| name.to_string())
}

/// Source addresses of a client of the lab, of the family of the target.
fn sources(lab: &Lab, client: usize, to: SocketAddr) -> Vec<IpAddr> {
    (0..lab.spec().addresses_per_client)
        .map(|number| match to {
            SocketAddr::V4(_) => topology::client4(client, number).into(),
            SocketAddr::V6(_) => topology::client6(client, number).into(),
        })
        .collect()
}

/// Runs `work` on several threads in every client's namespace: with the source addresses, the
/// number of times that it has to work, and a random number generator.
fn clients<T: Send>(
    lab: &Lab,
    to: SocketAddr,
    count: usize,
    seed: u64,
    work: impl Fn(&[IpAddr], usize, StdRng) -> T + Sync,
) -> Vec<T> {
    let lanes = lab.clients().len() * LANES;
    let share = |lane: usize| count / lanes + usize::from(lane < count % lanes);
    let one = |client: usize| {
        let inside = || {
            thread::scope(|scope| {
                let started: Vec<_> = (client * LANES..(client + 1) * LANES)
                    .map(|lane| {
                        let work = &work;
                        scope.spawn(move || {
                            let random = StdRng::seed_from_u64(seed ^ (lane as u64) << 32);
                            work(&sources(lab, client, to), share(lane), random)
                        })
                    })
                    .collect();
                started.into_iter().map(|lane| lane.join().expect("client")).collect::<Vec<T>>()
            })
        };
        lab.clients()[client].enter(inside).expect("entering a client")
    };
    thread::scope(|scope| {
        let one = &one;
        let started: Vec<_> =
            (0..lab.clients().len()).map(|client| scope.spawn(move || one(client))).collect();
        started.into_iter().flat_map(|client| client.join().expect("client")).collect()
    })
}

/// A random source, with a port of one part of all ports that nobody holds: ports are drawn until
/// one is free.
fn from_anywhere<T>(
    sources: &[IpAddr],
    part: u16,
    random: &mut StdRng,
    connect: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        let source = sources[random.random_range(0..sources.len())];
        let port = random.random_range(1024 / PARTS..=u16::MAX / PARTS) * PARTS + part % PARTS;
        let result = connect(SocketAddr::new(source, port));
        match result {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
                ) => {}
            result => return result,
        }
    }
}

/// Opens connections from all clients, all addresses and random ports.
pub fn hold(lab: &Lab, to: SocketAddr, count: usize) -> Vec<Held> {
    let lanes = clients(lab, to, count, rand::random(), |sources, count, mut random| {
        (0..count)
            .map(|_| from_anywhere(sources, PARTS - 1, &mut random, |from| Held::open(from, to)))
            .collect::<io::Result<Vec<_>>>()
    });
    let held = lanes.into_iter().collect::<io::Result<Vec<_>>>().expect("a connection");
    held.into_iter().flatten().collect()
}

/// Opens connections to both web services, half of them to each.
pub fn hold_both(lab: &Lab, count: usize) -> Vec<Held> {
    let mut held = hold(lab, WEB4, count / 2);
    held.extend(hold(lab, WEB6, count - count / 2));
    held
}

/// Makes a request on every connection; returns what went wrong.
pub fn troubles(held: &mut [Held]) -> Vec<String> {
    thread::scope(|scope| {
        let size = held.len().div_ceil(2 * LANES).max(1);
        let started: Vec<_> = held
            .chunks_mut(size)
            .map(|part| {
                scope.spawn(|| part.iter_mut().filter_map(Held::trouble).collect::<Vec<_>>())
            })
            .collect();
        started.into_iter().flat_map(|part| part.join().expect("client")).collect()
    })
}

/// Expects that every connection is where it was.
pub fn assert_unbroken(held: &mut [Held], when: &str, balancer: &Balancer) {
    let all = held.len();
    let troubles = troubles(held);
    assert!(
        troubles.is_empty(),
        "{when}: {} of {all} connections broke: {:#?}\nweir's log ends:\n{}",
        troubles.len(),
        &troubles[..troubles.len().min(10)],
        log_tail(balancer, 40)
    );
}

/// A flow of datagrams to an echo service, each answered with the name of the backend.
pub struct Flow {
    socket: UdpSocket,
    /// The backend that answered first.
    pub backend: String,
}

impl Flow {
    /// From an address of a client and any port, asked once. For a thread that is in the client's namespace.
    pub fn open(from: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        let mut flow = Self { socket, backend: String::new() };
        flow.backend = flow.ask()?;
        Ok(flow)
    }

    /// Who answers: nobody repeats what UDP loses, so it is asked again. Datagrams bear numbers, that a late
    /// answer is not taken for that of another question.
    fn ask(&self) -> io::Result<String> {
        let mut answer = [0; 128];
        for _ in 0..10 {
            let question = rand::random::<u64>().to_be_bytes();
            // What an error on the way has left at the socket is told once, and is no answer.
            let _ = self.socket.send(&question);
            while let Ok(length) = self.socket.recv(&mut answer) {
                if let Some(name) = answer[..length].strip_suffix(&question) {
                    let name = String::from_utf8_lossy(name);
                    return Ok(name.trim_end_matches(':').to_owned());
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to ten datagrams"))
    }

    /// What is wrong with it, if something is.
    pub fn trouble(&self) -> Option<String> {
        match self.ask() {
            Ok(name) if name == self.backend => None,
            Ok(name) => Some(format!("{:?} moved from {} to {name}", self.socket, self.backend)),
            Err(error) => Some(format!("{:?} on {}: {error}", self.socket, self.backend)),
        }
    }
}

/// Opens flows of datagrams from the first address of the first client.
pub fn flows(lab: &Lab, to: SocketAddr, count: usize) -> Vec<Flow> {
    let from = sources(lab, 0, to)[0];
    let open = || (0..count).map(|_| Flow::open(from, to)).collect::<io::Result<Vec<_>>>();
    lab.clients()[0].enter(open).expect("entering a client").expect("a flow of datagrams")
}

/// How many connections sit on each backend.
pub fn spread(held: &[Held]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for one in held {
        *counts.entry(one.backend.clone()).or_default() += 1;
    }
    counts
}

/// Makes short connections, from all clients, all their addresses and random ports of a part;
/// counts who answered. None may fail.
pub fn shorts(
    lab: &Lab,
    to: SocketAddr,
    count: usize,
    part: u16,
    seed: u64,
) -> BTreeMap<String, u64> {
    let lanes = clients(lab, to, count, seed, |sources, count, mut random| {
        let mut counts = BTreeMap::<String, u64>::new();
        for _ in 0..count {
            let name = from_anywhere(sources, part, &mut random, |from| {
                ask(&mut connect(from, to)?, "close")
            })?;
            *counts.entry(name).or_default() += 1;
        }
        io::Result::Ok(counts)
    });
    let mut all = BTreeMap::new();
    for counts in lanes {
        for (name, count) in counts.expect("a short connection") {
            *all.entry(name).or_default() += count;
        }
    }
    all
}

/// Waits until new connections reach so many backends: on a busy machine a check may fail, and a backend
/// that is down for that has to come up first. Ports that were used a moment ago are known where they
/// were, so others are taken each time.
pub fn reach_all(lab: &Lab, to: SocketAddr, backends: usize) {
    let mut part = 0;
    eventually("new connections reach every backend", || {
        part = (part + 1) % (PARTS - 1);
        shorts(lab, to, 300, part, u64::from(part)).len() == backends
    });
}

/// SYNs that the clients' kernels have sent again: each of them is a first packet too.
pub fn repeated_syns(lab: &Lab) -> u64 {
    let one = |client: &NetNs| client.enter(|| counter("TcpExt:", "TCPSynRetrans")).unwrap();
    lab.clients().iter().map(one).sum()
}

/// A counter of /proc/net/netstat: names on one line, values on the next.
fn counter(group: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").expect("netstat");
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split(' ').position(|one| one == name).expect("counter");
    values.split(' ').nth(at).and_then(|value| value.parse().ok()).expect("value")
}

/// Any address, for who does not care.
pub const ANY4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
