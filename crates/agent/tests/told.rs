//! What an agent says of connections that open and end in a hurry: a real agent, over the kernel's own connections, and
//! a balancer that the test plays.

mod played;

use nix::sys::socket::{setsockopt, sockopt};
use played::{HERE, called, certified, files, heard, listen, tells};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use weir_agent::speak::Speaking;
use weir_rpc::message::{self, Kind};
use weir_rpc::pki::Role;
use weir_rpc::{Endpoints, FromBalancer, Mark, PROTOCOL, Welcome, from_agent, from_balancer};

const ROUNDS: u64 = 5;
/// Of a round: more than an agent waits for, and than it takes up one by one.
const AT_A_TIME: usize = 400;

/// Connections that open, and that their server resets then. Their clients' ports.
fn come_and_go(listener: &TcpListener, at: SocketAddr) -> Vec<u16> {
    let open = |_| {
        let client = TcpStream::connect(at).unwrap();
        let port = client.local_addr().unwrap().port();
        (port, client, listener.accept().unwrap().0)
    };
    let held: Vec<_> = (0..AT_A_TIME).map(open).collect();
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    let end = |(port, client, server): (u16, TcpStream, TcpStream)| {
        setsockopt(&server, sockopt::Linger, &at_once).unwrap();
        drop(server);
        drop(client);
        port
    };
    held.into_iter().map(end).collect()
}

/// Whoever asks how far the agent is hears first of all that had happened when it asked, each connection as it opened
/// and then as it ended; and of no other connection.
#[test]
fn all_that_has_happened_is_said_before_a_mark_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    certified(directory.path(), &[("lb", Role::Balancer), ("b0", Role::Agent)]);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    // One that nobody asks for.
    let other = TcpListener::bind((HERE, 0)).unwrap();
    let elsewhere = other.local_addr().unwrap();
    runtime.block_on(async {
        let mut balancer = listen(&files(directory.path(), "lb")).await;
        let options = tells(balancer.port, files(directory.path(), "b0"));
        let _agent = Speaking::start(options, |_| {}).expect("it starts; needs root");
        let (mut from, to) = called(&mut balancer.sessions).await;
        let say = async |what| to.send(Ok(FromBalancer { what: Some(what) })).await.unwrap();
        let endpoint = message::Endpoint { id: 7, address: HERE, port: Some(at.port()) };
        say(from_balancer::What::Welcome(Welcome {
            protocol: PROTOCOL,
            endpoints: Some(Endpoints { number: 1, endpoint: vec![endpoint.into()] }),
            ..Welcome::default()
        }))
        .await;
        assert!(matches!(heard(&mut from).await, from_agent::What::DumpBegin(_)));
        assert!(matches!(heard(&mut from).await, from_agent::What::DumpEnd(_)), "none is open");
        let (mut next, mut untold) = (None, 0);
        for mark in 1..=ROUNDS {
            come_and_go(&other, elsewhere);
            let ports = come_and_go(&listener, at);
            say(from_balancer::What::Mark(Mark { mark })).await;
            let mut told: BTreeMap<u16, Vec<Kind>> =
                ports.iter().map(|port| (*port, Vec::new())).collect();
            loop {
                match heard(&mut from).await {
                    from_agent::What::Events(said) => {
                        assert_eq!(said.first, next.unwrap_or(said.first), "none is left out");
                        next = Some(said.next);
                        for (kind, one) in message::events(&said).unwrap() {
                            assert_eq!((one.endpoint, one.client, one.port), (7, HERE, None));
                            told.get_mut(&one.client_port).expect("it is of these").push(kind);
                        }
                    }
                    from_agent::What::Reached(said) => {
                        assert_eq!((said.mark, said.lost), (mark, 0));
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            for (port, mut kinds) in told {
                // An opening may be told twice, which changes nothing.
                kinds.dedup();
                let whole = kinds == [Kind::Opened, Kind::Closed];
                assert!(whole || kinds.len() <= 1, "{port}: {kinds:?}");
                untold += usize::from(!whole);
            }
        }
        // A program at a tracepoint is passed over now and then (docs/agent.md).
        let all = ROUNDS as usize * AT_A_TIME;
        assert!(untold <= all / 100, "{untold} of {all} connections");
    });
}
