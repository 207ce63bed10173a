//! Associations of SCTP (RFC 9260), with the kernel's own at both ends: they stay where they are while the pool
//! changes and the control plane dies, large answers find their path's MTU, and those that end are forgotten.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use weir_lab::topology::{Receivers, Topology, VIP4, VIP6, WEB_PORT, client4, client6};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec, NetNs};

use crate::common::{self, WEIR};

const PORT: u16 = 3868;
const BACKENDS: usize = 4;
/// Associations that are held, and how many at least come and go beside them.
const HELD: usize = 24;
const SHORT: u64 = 90;
/// Longer than what has ended is remembered, for what of it is still on its way.
const FORGETTING: Duration = Duration::from_secs(400);
/// More than any path takes in one packet.
const LARGE: usize = 60_000;
const SERVICES: [(&str, IpAddr); 2] = [("sctp4", IpAddr::V4(VIP4)), ("sctp6", IpAddr::V6(VIP6))];

/// One association for each socket, as TCP has connections (RFC 6458 section 4), at one address only.
fn socket(at: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::from(132)))?;
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    Ok(socket)
}

/// Answers `?` with the number of the backend, and `!` with many bytes of it.
fn serve(netns: &NetNs, number: u8) {
    for (_, vip) in SERVICES {
        let listen = || {
            let socket = socket(SocketAddr::new(vip, PORT))?;
            socket.listen(256)?;
            io::Result::Ok(TcpListener::from(socket))
        };
        let listener = netns.enter(listen).unwrap().expect("listening with SCTP");
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut asked = [0];
                    while stream.read_exact(&mut asked).is_ok() {
                        let length = if asked[0] == b'!' { LARGE } else { 1 };
                        if stream.write_all(&vec![number; length]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
    }
}

struct Association {
    stream: TcpStream,
    source: SocketAddr,
    target: SocketAddr,
    backend: u8,
}

impl Association {
    /// For a thread that is in the client's namespace.
    fn open(service: usize) -> io::Result<Self> {
        let (_, vip) = SERVICES[service];
        let target = SocketAddr::new(vip, PORT);
        let own = if vip.is_ipv4() { client4(0, 0).into() } else { client6(0, 0).into() };
        let socket = socket(SocketAddr::new(own, 0))?;
        socket.connect_timeout(&target.into(), common::PATIENCE)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(common::PATIENCE))?;
        let source = stream.local_addr()?;
        let mut new = Self { stream, source, target, backend: 0 };
        new.backend = new.ask(b'?')?;
        Ok(new)
    }

    fn ask(&mut self, question: u8) -> io::Result<u8> {
        self.stream.write_all(&[question])?;
        let mut answer = vec![0; if question == b'!' { LARGE } else { 1 }];
        self.stream.read_exact(&mut answer)?;
        let first = answer[0];
        assert!(answer.iter().all(|byte| *byte == first), "answers of several backends");
        Ok(first)
    }
}

fn assert_unbroken(held: &mut [Association], question: u8, when: &str, balancer: &Balancer) {
    for one in held {
        let answer = one.ask(question);
        assert!(
            matches!(answer, Ok(backend) if backend == one.backend),
            "{when}: {} to {}, with backend {}: {answer:?}\n{}",
            one.source,
            one.target,
            one.backend,
            common::log_tail(balancer, 30)
        );
    }
}

/// Associations that come, ask and go, by a SHUTDOWN or by an ABORT, until they are told to stop.
struct Short {
    stop: Arc<AtomicBool>,
    ended: Arc<AtomicU64>,
    worker: thread::JoinHandle<Result<(), String>>,
}

impl Short {
    fn start(client: &NetNs) -> Self {
        let (stop, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (stop.clone(), ended.clone());
        let come_and_go = move || {
            while !until.load(Ordering::Relaxed) {
                let number = count.load(Ordering::Relaxed);
                let failed = |error| format!("association {number}: {error}");
                let mut one = Association::open(number as usize % 2).map_err(failed)?;
                for _ in 0..4 {
                    let backend = one.ask(b'?').map_err(failed)?;
                    if backend != one.backend {
                        return Err(format!(
                            "{} went from {} to {backend}",
                            one.source, one.backend
                        ));
                    }
                    thread::sleep(Duration::from_millis(10));
                }
                if number % 4 > 1 {
                    let linger = Some(Duration::ZERO);
                    Socket::from(one.stream).set_linger(linger).map_err(failed)?;
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let client = client.clone();
        let worker = thread::spawn(move || client.enter(come_and_go).unwrap());
        Self { stop, ended, worker }
    }

    fn await_more(&self, more: u64) {
        let wanted = self.ended.load(Ordering::Relaxed) + more;
        common::eventually("associations come and go", || {
            self.worker.is_finished() || self.ended.load(Ordering::Relaxed) >= wanted
        });
    }

    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.join().unwrap().unwrap();
        self.ended.load(Ordering::Relaxed)
    }
}

/// Waits until no more associations than that are remembered.
fn await_states(balancer: &Balancer, wanted: u64) {
    let started = Instant::now();
    loop {
        let status = balancer.status().unwrap();
        let of = |name| common::service(&status, name)["states"].as_u64().unwrap();
        let states: u64 = SERVICES.iter().map(|(name, _)| of(name)).sum();
        assert!(states >= wanted, "{states} associations are remembered, and {wanted} are open");
        if states == wanted {
            return;
        }
        let waited = started.elapsed();
        assert!(waited < FORGETTING, "{states} associations are remembered, not {wanted}");
        thread::sleep(Duration::from_millis(500));
    }
}

fn services(lab: &Lab, forward: &str, method: &str) -> String {
    let mut text = String::new();
    for (name, vip) in SERVICES {
        let _ = writeln!(
            text,
            "\n[[service]]\nname = \"{name}\"\nvip = \"{vip}\"\nport = {PORT}\nprotocol = \"sctp\"\n\
             method = \"{method}\"\nforward = \"{forward}\"\n\
             [service.check]\nport = {WEB_PORT}\ninterval = \"500ms\"\ntimeout = \"400ms\""
        );
        for (n, backend) in lab.backends().iter().enumerate() {
            let address: IpAddr =
                if vip.is_ipv4() { backend.address4().into() } else { backend.address6().into() };
            let _ = writeln!(text, "[[service.backend]]\nname = \"b{n}\"\naddress = \"{address}\"");
        }
    }
    text
}

fn stay(topology: Topology, forward: &str, method: &str) {
    let _alone = common::alone();
    let mut lab = LabSpec { topology, backends: BACKENDS, ..LabSpec::default() };
    if let Ok(receivers) = Receivers::of_the_kernel(forward) {
        lab.receivers = receivers;
    }
    let lab = common::lab_of(lab);
    for (number, backend) in lab.backends().iter().enumerate() {
        serve(backend.netns(), number as u8);
    }
    let spec = BalancerSpec {
        service_lines: format!("forward = \"{forward}\""),
        more_services: services(&lab, forward, method),
        ..BalancerSpec::new(WEIR, BACKENDS)
    };
    let balancer = common::start_spec(&lab, spec);
    let client = &lab.clients()[0];
    let open = || (0..HELD).map(|n| Association::open(n % 2)).collect::<io::Result<Vec<_>>>();
    let mut held = client.enter(open).unwrap().expect("associations");
    let homes: BTreeSet<u8> = held.iter().map(|one| one.backend).collect();
    assert!(homes.len() > 1, "all with {homes:?}");
    assert_unbroken(&mut held, b'!', "large answers", &balancer);
    let ends = [held[0].source.to_string(), held[0].target.to_string()];
    let explained = common::command(&balancer, &format!("explain sctp {} {}", ends[0], ends[1]));
    assert!(explained.contains(&format!("b{}", held[0].backend)), "{explained}");

    let short = Short::start(client);
    short.await_more(SHORT / 5);
    for words in
        ["backend drain NAME b0", "backend weight NAME b1 5", "backend drain NAME b0 --undo"]
    {
        for (name, _) in SERVICES {
            common::command(&balancer, &words.replace("NAME", name));
        }
        assert_unbroken(&mut held, b'?', words, &balancer);
        short.await_more(SHORT / 5);
    }
    balancer.kill();
    assert_unbroken(&mut held, b'?', "without a control plane", &balancer);
    short.await_more(SHORT / 5);
    balancer.launch().unwrap();
    assert_unbroken(&mut held, b'!', "with a control plane again", &balancer);
    short.await_more(SHORT / 5);
    let ended = short.finish();
    assert!(ended >= SHORT, "{ended}");
    assert_unbroken(&mut held, b'?', "at the end", &balancer);
    let status = balancer.status().unwrap();
    for reason in ["bad_sctp_chunk", "truncated_sctp", "too_big", "no_next_hop"] {
        assert_eq!(common::dropped(&status, reason), 0, "{reason}");
    }
    if method == "concury" && topology == Topology::L2 {
        // Those that have ended leave nothing, long before their time-out, also those that the process before
        // has seen end; the others stay.
        await_states(&balancer, HELD as u64);
        drop(held);
        await_states(&balancer, 0);
    }
    println!(
        "guest: sctp by {forward}, {method}: {HELD} associations held, {ended} came and went, 0 broken"
    );
}

#[test]
fn associations_stay_in_one_network() {
    stay(Topology::L2, "l2", "concury");
}

#[test]
fn associations_stay_behind_a_router() {
    stay(Topology::Routed, "ipip", "concury");
}

#[test]
fn associations_stay_with_a_connection_table() {
    stay(Topology::L2, "l2", "tracked");
}
