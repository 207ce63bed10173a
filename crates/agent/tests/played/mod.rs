//! A balancer that a test plays.

// Every test file is a program of its own and uses a part of this.
#![allow(dead_code)]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{copy_bidirectional, duplex};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};
use weir_agent::speak::{Balancer as Address, Options};
use weir_rpc::pki::{self, Role};
use weir_rpc::tls::Files;
use weir_rpc::{Balancer, BalancerServer, FromAgent, FromBalancer, from_agent};

/// Where tests play balancers.
pub const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// So long an agent may take to say something.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What an agent says in a session, and where it is answered.
pub type Session = (Streaming<FromAgent>, mpsc::Sender<Result<FromBalancer, Status>>);

/// Gives the test the sessions that begin.
pub struct Played(pub mpsc::Sender<Session>);

#[tonic::async_trait]
impl Balancer for Played {
    type SpeakStream = ReceiverStream<Result<FromBalancer, Status>>;

    async fn speak(
        &self,
        request: Request<Streaming<FromAgent>>,
    ) -> Result<Response<Self::SpeakStream>, Status> {
        let (to, answers) = mpsc::channel(16);
        let _ = self.0.send((request.into_inner(), to)).await;
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// A balancer that listens by TLS.
pub struct Listening {
    pub port: u16,
    pub sessions: mpsc::Receiver<Session>,
    /// Calls that came, and those of them that came through TLS.
    pub calls: Arc<AtomicUsize>,
    pub let_in: Arc<AtomicUsize>,
}

/// Listens with a certificate.
pub async fn listen(files: &Files) -> Listening {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tls = TlsAcceptor::from(files.server().unwrap());
    let (begun, sessions) = mpsc::channel(4);
    let (connections, incoming) = mpsc::channel(4);
    let serving = Server::builder()
        .add_service(BalancerServer::new(Played(begun)))
        .serve_with_incoming(ReceiverStream::new(incoming));
    tokio::spawn(serving);
    let (calls, let_in): (Arc<AtomicUsize>, Arc<AtomicUsize>) = (Arc::default(), Arc::default());
    let listening =
        Listening { port, sessions, calls: Arc::clone(&calls), let_in: Arc::clone(&let_in) };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            calls.fetch_add(1, Ordering::SeqCst);
            let Ok(mut stream) = tls.accept(stream).await else { continue };
            let_in.fetch_add(1, Ordering::SeqCst);
            let (one, mut other) = duplex(1 << 16);
            if connections.send(Ok::<_, std::io::Error>(one)).await.is_err() {
                return;
            }
            tokio::spawn(async move {
                let _ = copy_bidirectional(&mut stream, &mut other).await;
            });
        }
    });
    listening
}

/// An authority in a directory, and certificates of these names.
pub fn certified(directory: &Path, names: &[(&str, Role)]) {
    pki::init(directory, "test", 30).unwrap();
    for (name, role) in names {
        let (name, addresses) = ((*name).to_owned(), vec![HERE]);
        let request = pki::Request { name, role: *role, addresses, hosts: Vec::new(), days: 20 };
        pki::issue(directory, directory, &request).unwrap();
    }
}

/// The files of one of them.
pub fn files(directory: &Path, name: &str) -> Files {
    let at = |file: String| directory.join(file);
    Files {
        certificate: at(format!("{name}.pem")),
        key: at(format!("{name}.key")),
        ca: at("ca.pem".into()),
    }
}

/// An agent that tells one balancer, at this port, and nothing else.
pub fn tells(port: u16, files: Files) -> Options {
    Options {
        balancers: vec![Address { host: HERE.to_string(), port }],
        files,
        load: None,
        log: 1 << 16,
        alone: false,
        directory: None,
        said: Default::default(),
        lies: Default::default(),
        quic: None,
        health: None,
    }
}

/// The session of an agent that calls, which has said who it is.
pub async fn called(sessions: &mut mpsc::Receiver<Session>) -> Session {
    let called = timeout(PATIENCE, sessions.recv()).await;
    let (mut from, to) = called.expect("it calls").expect("a session");
    assert!(matches!(heard(&mut from).await, from_agent::What::Hello(_)));
    (from, to)
}

/// The next that an agent says, its load apart.
pub async fn heard(from: &mut Streaming<FromAgent>) -> from_agent::What {
    loop {
        let said = timeout(PATIENCE, from.message()).await.expect("it says something");
        match said.unwrap().expect("the session goes on").what.expect("something") {
            from_agent::What::Load(_) => {}
            what => return what,
        }
    }
}
