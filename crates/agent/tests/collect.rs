//! What an agent says is half-open when a balancer asks: a real agent, over the kernel's own connections, and a
//! balancer that the test plays.

mod played;

use nix::sys::socket::{self, Backlog, setsockopt};
use nix::{setsockopt_impl, sockopt_impl};
use played::{HERE, PATIENCE, called, certified, files, heard, listen, tells};
use std::collections::HashSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tonic::Streaming;
use weir_agent::speak::Speaking;
use weir_rpc::message::{self, Connection, Kind};
use weir_rpc::pki::Role;
use weir_rpc::{
    Collect, Endpoints, FromAgent, FromBalancer, MOST_OF_A_MESSAGE, PROTOCOL, Welcome, from_agent,
    from_balancer,
};

sockopt_impl!(
    /// How long the kernel waits for the first data before a connection is open.
    Deferred, SetOnly, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, u32
);

/// More than one message has room for, over two servers.
const CLIENTS: usize = MOST_OF_A_MESSAGE / 2 + 100;

/// A server for which its clients are half-open until they say something.
fn server() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    setsockopt(&listener, Deferred, &60).unwrap();
    socket::listen(&listener, Backlog::new(4096).unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
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
    certified(directory.path(), &[("lb", Role::Balancer), ("b0", Role::Agent)]);
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
        let mut balancer = listen(&files(directory.path(), "lb")).await;
        let options = tells(balancer.port, files(directory.path(), "b0"));
        let _agent = Speaking::start(options, |_| {}).expect("it starts; needs root");
        let (mut from, to) = called(&mut balancer.sessions).await;
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
