//! An agent that is given one balancer, played by the test, which names the others of its fleet: it calls those that
//! have a certificate of its authority, follows those that come and go, and goes on with them after its next start.
//! Needs root.

mod played;

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use played::{HERE, Listening, Session, certified, files, listen};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Status;
use weir_agent::speak::{Balancer as Address, Options, Speaking};
use weir_rpc::message::{Balancers, Peer};
use weir_rpc::pki::Role;
use weir_rpc::tls::Files;
use weir_rpc::{Endpoints, FromBalancer, PROTOCOL, Welcome, from_agent, from_balancer};

const PATIENCE: Duration = Duration::from_secs(60);

/// A balancer that a test plays.
struct Stage(Listening);

impl Stage {
    async fn new(files: &Files) -> Self {
        Self(listen(files).await)
    }

    fn peer(&self, name: &str) -> Peer {
        Peer { name: name.into(), at: Some((HERE.to_string(), self.0.port)) }
    }

    /// Waits for the agent to call, and welcomes it with these.
    async fn welcomes(&mut self, balancers: Option<Balancers>) -> Session {
        let called = timeout(PATIENCE, self.0.sessions.recv()).await;
        let (mut from, to) = called.expect("it calls").expect("a session");
        let first = timeout(PATIENCE, from.message()).await.expect("it speaks").unwrap();
        assert!(matches!(first.unwrap().what, Some(from_agent::What::Hello(_))));
        let welcome = Welcome {
            protocol: PROTOCOL,
            endpoints: Some(Endpoints::default()),
            balancers: balancers.as_ref().map(Into::into),
            ..Welcome::default()
        };
        say(&to, from_balancer::What::Welcome(welcome)).await;
        (from, to)
    }
}

async fn say(to: &mpsc::Sender<Result<FromBalancer, Status>>, what: from_balancer::What) {
    to.send(Ok(FromBalancer { what: Some(what) })).await.unwrap();
}

/// Waits until the agent has ended a session.
async fn ended((mut from, _to): Session) {
    let over = async { while let Ok(Some(_)) = from.message().await {} };
    timeout(PATIENCE, over).await.expect("it is told no more");
}

#[test]
fn an_agent_that_is_given_one_balancer_calls_the_others_of_its_authority() {
    let home = tempfile::tempdir().unwrap();
    let (own, other) = (home.path().join("own"), home.path().join("other"));
    certified(&own, &[("lb", Role::Balancer), ("b0", Role::Agent), ("b1", Role::Agent)]);
    certified(&other, &[("lb", Role::Balancer)]);
    // It would let the agent in.
    let liar = Files { ca: own.join("ca.pem"), ..files(&other, "lb") };
    // Of the right authority, and no balancer's certificate.
    let agents = files(&own, "b1");
    let state = home.path().join("state");
    let start = |port: u16| {
        let options = Options {
            balancers: vec![Address { host: HERE.to_string(), port }],
            files: files(&own, "b0"),
            load: None,
            log: 1 << 10,
            alone: false,
            directory: Some(state.clone()),
            said: Default::default(),
            lies: Default::default(),
            quic: None,
            health: None,
        };
        Speaking::start(options, |_| {}).expect("it starts; needs root")
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let lb = files(&own, "lb");
        let (mut a, mut b, mut c) =
            (Stage::new(&lb).await, Stage::new(&lb).await, Stage::new(&lb).await);
        let (stranger, agent) = (Stage::new(&liar).await, Stage::new(&agents).await);
        let list = |own: &str, peers: Vec<Peer>| Balancers { own: own.into(), peers };
        let first = start(a.0.port);

        // It names another one, and two that are none.
        let all = vec![a.peer("a"), b.peer("b"), stranger.peer("x"), agent.peer("y")];
        let to_a = a.welcomes(Some(list("a", all))).await;
        let to_b = b.welcomes(Some(list("b", vec![a.peer("a"), b.peer("b")]))).await;
        let tried = async {
            while [&stranger, &agent].iter().any(|one| one.0.calls.load(Ordering::SeqCst) < 2) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, tried).await.expect("both are tried");
        for one in [&stranger, &agent] {
            assert_eq!(one.0.let_in.load(Ordering::SeqCst), 0, "it has spoken to one that is none");
        }

        // Another one joins; and one of an older version, which says nothing, changes nothing.
        let more = vec![a.peer("a"), b.peer("b"), c.peer("c")];
        say(&to_a.1, from_balancer::What::Balancers((&list("a", more)).into())).await;
        let to_c = c.welcomes(None).await;
        // It leaves when nobody names it any more, and the file with it.
        let less = list("a", vec![a.peer("a"), b.peer("b")]);
        say(&to_a.1, from_balancer::What::Balancers((&less).into())).await;
        ended(to_c).await;
        let file = state.join("balancers-b0.json");
        let kept = || std::fs::read_to_string(&file).unwrap_or_default();
        let written = async {
            let there = format!("{HERE}:{}", b.0.port);
            let gone = format!("{HERE}:{}", c.0.port);
            while !kept().contains(&there) || kept().contains(&gone) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, written).await.expect("it is kept");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);

        // The one that it is given does not answer at its next start, and the other one is called all the same.
        drop(first);
        ended(to_a).await;
        ended(to_b).await;
        let _second = start(a.0.port);
        let mut to_b = b.welcomes(Some(list("b", less.peers))).await;
        // And one that is welcomed goes on.
        let says = timeout(PATIENCE, to_b.0.message()).await.expect("it speaks");
        assert!(says.unwrap().is_some());
    });
}
