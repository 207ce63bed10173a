//! What an agent says is half-open when a balancer asks: a real agent, over the kernel's own connections, and a
//! balancer that the test plays.

mod played;

use nix::sys::socket::{Backlog, listen, setsockopt};
use nix::{setsockopt_impl, sockopt_impl};
use played::{Played, Session};
use std::collections::HashSet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{copy_bidirectional, duplex};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Server;
use weir_agent::speak::{Balancer as Address, Options, Speaking};
use weir_rpc::message::{self, Connection, Kind};
use weir_rpc::pki::{self, Role};
use weir_rpc::tls::Files;
use weir_rpc::{
    BalancerServer, Collect, Endpoints, FromAgent, FromBalancer, MOST_OF_A_MESSAGE, PROTOCOL,
    Welcome, from_agent, from_balancer,
};

sockopt_impl!(
    /// How long the kernel waits for the first data before a connection is open.
    Deferred, SetOnly, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, u32
);

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(20);
/// More than one message has room for, over two servers.
const CLIENTS: usize = MOST_OF_A_MESSAGE / 2 + 100;

fn files(directory: &Path, name: &str) -> Files {
    let at = |file: String| directory.join(file);
    Files {
        certificate: at(format!("{name}.pem")),
        key: at(format!("{name}.key")),
        ca: at("ca.pem".into()),
    }
}

fn certificates(directory: &Path) {
    pki::init(directory, "test", 30).unwrap();
    for (name, role) in [("lb", Role::Balancer), ("b0", Role::Agent)] {
        let (name, addresses) = (name.to_owned(), vec![HERE]);
        let request = pki::Request { name, role, addresses, hosts: Vec::new(), days: 20 };
        pki::issue(directory, directory, &request).unwrap();
    }
}

/// A server for which its clients are half-open until they say something.
fn server() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    setsockopt(&listener, Deferred, &60).unwrap();
    listen(&listener, Backlog::new(4096).unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Waits for an agent to call.
async fn called(listener: tokio::net::TcpListener, tls: TlsAcceptor) -> Session {
    let (sessions, mut called) = mpsc::channel(1);
    let (connections, incoming) = mpsc::channel(1);
    let serving = Server::builder()
        .add_service(BalancerServer::new(Played(sessions)))
        .serve_with_incoming(ReceiverStream::new(incoming));
    tokio::spawn(serving);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(stream).await.unwrap();
        let (one, mut other) = duplex(1 << 16);
        connections.send(Ok::<_, std::io::Error>(one)).await.unwrap();
        let _ = copy_bidirectional(&mut stream, &mut other).await;
    });
    timeout(PATIENCE, called.recv()).await.expect("it calls").expect("a session")
}

async fn heard(from: &mut Streaming<FromAgent>) -> from_agent::What {
    loop {
        let said = timeout(PATIENCE, from.message()).await.expect("it says something");
        match said.unwrap().expect("the session goes on").what.expect("something") {
            from_agent::What::Load(_) => {}
            what => return what,
        }
    }
}

/// What is half-open by the answer to a question, and what has happened before.
async fn answer(
    from: &mut Streaming<FromAgent>,
    wanted: u64,
) -> (HashSet<Connection>, Vec<(Kind, Connection)>, usize) {
    let (mut half_open, mut events, mut parts) = (HashSet::new(), Vec::new(), 0);
    loop {
        match heard(from).await {
            from_agent::What::Events(said) => {
                assert_eq!(parts, 0, "what has happened is said before");
                events.extend(message::events(&said).unwrap());
            }
            from_agent::What::Collected(said) => {
                assert_eq!(said.number, wanted);
                parts += 1;
                for one in message::collected(&said).unwrap() {
                    assert!(half_open.insert(one), "{one:?} is said twice");
                }
                if said.last {
                    return (half_open, events, parts);
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn half_open_connections_are_said_when_a_balancer_asks() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let servers = [server(), server()];
    let mut clients = Vec::new();
    for (_, at) in &servers {
        clients.extend((0..CLIENTS).map(|_| TcpStream::connect(at).unwrap()));
    }
    let connection = |(n, client): (usize, &TcpStream)| Connection {
        endpoint: (n / CLIENTS) as u32,
        client: HERE,
        client_port: client.local_addr().unwrap().port(),
        port: None,
    };
    let begun: HashSet<Connection> = clients.iter().enumerate().map(connection).collect();
    // A server that the balancer does not ask for.
    let (_other, at) = server();
    let _client = TcpStream::connect(at).unwrap();

    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((HERE, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tls = TlsAcceptor::from(files(directory.path(), "lb").server().unwrap());
        let options = Options {
            balancers: vec![Address { host: HERE.to_string(), port }],
            files: files(directory.path(), "b0"),
            load: None,
            log: 1 << 16,
            alone: false,
            directory: None,
            said: Default::default(),
            lies: Default::default(),
            quic: None,
            health: None,
        };
        let _agent = Speaking::start(options, |_| {}).expect("it starts; needs root");
        let (mut from, to) = called(listener, tls).await;
        assert!(matches!(heard(&mut from).await, from_agent::What::Hello(_)));
        let say = async |what| to.send(Ok(FromBalancer { what: Some(what) })).await.unwrap();
        let endpoint = servers.iter().zip(0..).map(|((_, at), id)| {
            message::Endpoint { id, address: HERE, port: Some(at.port()) }.into()
        });
        say(from_balancer::What::Welcome(Welcome {
            protocol: PROTOCOL,
            endpoints: Some(Endpoints { number: 1, endpoint: endpoint.collect() }),
            ..Welcome::default()
        }))
        .await;
        // Asked before it has begun, it answers after the list of what is open.
        let collect = |number| from_balancer::What::Collect(Collect { number });
        say(collect(1)).await;
        say(collect(2)).await;
        assert!(matches!(heard(&mut from).await, from_agent::What::DumpBegin(_)));
        assert!(matches!(heard(&mut from).await, from_agent::What::DumpEnd(_)), "none is open");
        for number in [1, 2] {
            let (half_open, events, parts) = answer(&mut from, number).await;
            assert!(half_open == begun, "{} of {}", half_open.len(), begun.len());
            assert_eq!((events, parts), (Vec::new(), 2));
        }

        // Some open, and what is said of them comes before the rest.
        let opened: Vec<_> = (0..20).map(|n| connection((n, &clients[n]))).collect();
        for client in &mut clients[..20] {
            client.write_all(b"x").unwrap();
        }
        let held: Vec<_> = (0..20).map(|_| servers[0].0.accept().unwrap()).collect();
        say(collect(3)).await;
        let (half_open, events, _) = answer(&mut from, 3).await;
        let mut left = begun.clone();
        opened.iter().for_each(|one| assert!(left.remove(one)));
        assert!(half_open == left, "{} of {}", half_open.len(), left.len());
        let told: Vec<_> = opened.iter().map(|one| (Kind::Opened, *one)).collect();
        assert_eq!(events, told);

        // None is left, as soon as the kernel has taken what is on its way; the answer says that, too.
        drop((held, clients, servers));
        let limit = Instant::now() + PATIENCE;
        for number in 4.. {
            say(collect(number)).await;
            let (half_open, ..) = answer(&mut from, number).await;
            if half_open.is_empty() {
                break;
            }
            assert!(half_open.is_subset(&left) && Instant::now() < limit, "{half_open:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}
