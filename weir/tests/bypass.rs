//! Others at the same interface: an AF_XDP socket of somebody else's gets what is none of weir's, by a program that
//! weir calls, and connections hold.

mod common;

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use common::WEIR;
use common::user_plane::{count, plane, process, sends_while};
use weir_lab::topology::{BALANCER4, INTERFACE};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec, PoolControl};
use weir_testbed::bypass::Bypass;

const BACKENDS: usize = 4;
/// The port of another service on the balancer's host.
const PORT: u16 = 7777;

/// A lab, and in it the other one, at the only queue of the balancer's interface.
fn beside_another() -> (Arc<Lab>, Bypass, PathBuf) {
    let spec = LabSpec { backends: BACKENDS, queues: Some(1), ..LabSpec::default() };
    let lab = common::lab_of(spec);
    let path = PathBuf::from(format!("/sys/fs/bpf/bypass-{}", std::process::id()));
    let other = Bypass::open(lab.balancer(), INTERFACE, PORT, &path).unwrap();
    (lab, other, path)
}

fn start(lab: &Arc<Lab>, balancer_lines: String) -> Balancer {
    common::start_spec(lab, BalancerSpec { balancer_lines, ..BalancerSpec::new(WEIR, BACKENDS) })
}

/// A client of the other service.
struct Client {
    socket: UdpSocket,
    sent: u32,
}

impl Client {
    fn new(lab: &Lab) -> Self {
        let socket = lab.clients()[0].enter(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        Self { socket, sent: 0 }
    }

    fn send(&mut self) -> String {
        self.sent += 1;
        let text = format!("for another: {}", self.sent);
        let to = SocketAddr::from((BALANCER4, PORT));
        assert_eq!(self.socket.send_to(text.as_bytes(), to).unwrap(), text.len());
        text
    }

    /// Sends until one has come to the socket, which gets these and nothing else.
    fn reaches(&mut self, other: &mut Bypass, when: &str) {
        // What came before says nothing of now.
        other.take();
        let mut sent = Vec::new();
        common::eventually(when, || {
            sent.push(self.send().into_bytes());
            let got = other.take();
            assert!(got.iter().all(|one| one.starts_with(b"for another: ")), "{when}: {got:?}");
            got.iter().any(|one| sent.contains(one))
        });
    }
}

/// Through changes of the pool, a reload, a trace, a killed control plane and a restart.
#[test]
fn another_ones_socket_gets_what_is_none_of_weirs() {
    let _alone = common::alone();
    let (lab, mut other, path) = beside_another();
    let balancer = start(&lab, format!("next_program = {:?}\n", path.display().to_string()));
    let mut client = Client::new(&lab);
    let own = SocketAddr::from((BALANCER4, PORT));
    let kernels = lab.balancer().enter(|| UdpSocket::bind(own).unwrap()).unwrap();
    kernels.set_nonblocking(true).unwrap();
    let traffic = common::mixed_traffic(&lab, 150);
    let mut held = common::hold_both(&lab, 30);
    client.reaches(&mut other, "beside weir");

    balancer.drain(0).unwrap();
    client.reaches(&mut other, "while a backend drains");
    balancer.undrain(0).unwrap();
    common::command(&balancer, "reload");
    client.reaches(&mut other, "after a reload");
    let trace = ["trace", "--for", "3s", "--reason", "no_service"];
    thread::scope(|scope| {
        let traced = scope.spawn(|| balancer.command(&trace));
        client.reaches(&mut other, "beside a trace");
        traced.join().unwrap().unwrap();
    });
    balancer.kill();
    client.reaches(&mut other, "without a control plane");
    common::assert_unbroken(&mut held, "without a control plane", &balancer);
    balancer.launch().unwrap();
    client.reaches(&mut other, "after a restart");
    common::assert_unbroken(&mut held, "at the end", &balancer);
    common::assert_none_broke(traffic);

    // None of it came to the host's own stack, as all does when the other one has gone.
    let mut buffer = [0; 64];
    assert_eq!(kernels.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(other);
    common::eventually("the host gets what nobody takes", || {
        client.send();
        kernels.recv(&mut buffer).is_ok()
    });
}

/// weir's own plane over AF_XDP has none of a queue that another socket has: the program decides all, and the plane
/// begins when the queue is free.
#[test]
fn a_queue_has_one_socket() {
    let _alone = common::alone();
    let (lab, other, _) = beside_another();
    let balancer = start(&lab, "plane = \"af-xdp\"\n".into());
    let mut held = common::hold_both(&lab, 30);
    let mut said = String::new();
    common::eventually("the plane says why it cannot begin", || {
        said = plane(&balancer)["failure"].as_str().unwrap_or_default().to_owned();
        !said.is_empty()
    });
    assert!(said.contains("queue 0 of eth0"), "{said}");
    common::assert_unbroken(&mut held, "by the program alone", &balancer);
    drop(other);
    process(&balancer);
    common::eventually("it has the socket of the queue", || count(&balancer, "sockets") == 1);
    sends_while(&balancer, || common::assert_unbroken(&mut held, "by the plane", &balancer));
}
