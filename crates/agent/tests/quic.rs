//! How servers make QUIC ids comes from balancers, which the test plays, into a file that is whole and its owner's
//! alone, and the server hears of each change by a signal, over a rotation of keys. Needs root.

mod played;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use played::{HERE, Session, certified, files, listen};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;
use weir_agent::quic::{self, Notify};
use weir_agent::speak::{Balancer, Options, Speaking};
use weir_rpc::pki::Role;
use weir_rpc::quic::{Config, Key, Service};
use weir_rpc::{Endpoints, FromBalancer, PROTOCOL, QuicLb, Welcome, from_agent, from_balancer};

const PATIENCE: Duration = Duration::from_secs(60);

async fn say(session: &Session, what: from_balancer::What) {
    session.1.send(Ok(FromBalancer { what: Some(what) })).await.unwrap();
}

/// Waits for the agent to call, and welcomes it with these.
async fn welcomes(sessions: &mut mpsc::Receiver<Session>, quic_lb: Option<QuicLb>) -> Session {
    let called = timeout(PATIENCE, sessions.recv()).await;
    let mut session = called.expect("it calls").expect("a session");
    let first = timeout(PATIENCE, session.0.message()).await.expect("it speaks").unwrap();
    assert!(matches!(first.unwrap().what, Some(from_agent::What::Hello(_))));
    let endpoints = Some(Endpoints::default());
    let welcome = Welcome { protocol: PROTOCOL, endpoints, quic_lb, ..Welcome::default() };
    say(&session, from_balancer::What::Welcome(welcome)).await;
    session
}

fn ids(issue: u8, keys: &[u8]) -> QuicLb {
    let config = |(config_id, key): (u8, &u8)| Config {
        config_id,
        server_id: vec![0x0a, 0x5b],
        nonce_length: 8,
        key: Some(Key([*key; 16])),
        encode_length: false,
    };
    let configs = (0..).zip(keys).filter(|(_, key)| **key != 0).map(config).collect();
    let (service, backend) = ("h3".to_owned(), "b1".to_owned());
    weir_rpc::quic::message(&[Service { service, backend, address: HERE, issue, configs }]).0
}

/// What stands in the file after the next signal.
async fn after(hup: &mut Signal, file: &Path, words: &[&str], not: &[&str]) {
    let there = async {
        loop {
            hup.recv().await.expect("signals go on");
            let text = std::fs::read_to_string(file).expect("it is written before anybody is told");
            let has = |word: &&str| text.contains(*word);
            if words.iter().all(has) && !not.iter().any(has) {
                return;
            }
        }
    };
    let said = timeout(PATIENCE, there).await;
    let text = std::fs::read_to_string(file).unwrap_or_default();
    said.unwrap_or_else(|_| panic!("{words:?} without {not:?}: {text}"));
    let mode = std::fs::metadata(file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn a_rotation_reaches_the_servers() {
    let home = tempfile::tempdir().unwrap();
    let (own, file, pid) =
        (home.path().join("pki"), home.path().join("ids.toml"), home.path().join("h3.pid"));
    certified(&own, &[("lb", Role::Balancer), ("b1", Role::Agent)]);
    std::fs::write(&pid, std::process::id().to_string()).unwrap();
    let notify: Notify = format!("USR1:{}", pid.display()).parse().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut hup = signal(SignalKind::user_defined1()).unwrap();
        let lb = files(&own, "lb");
        let (mut first, mut second) = (listen(&lb).await, listen(&lb).await);
        let options = Options {
            balancers: [first.port, second.port]
                .map(|port| Balancer { host: HERE.to_string(), port })
                .into(),
            files: files(&own, "b1"),
            load: None,
            log: 1 << 10,
            alone: false,
            directory: None,
            said: Default::default(),
            lies: Default::default(),
            quic: Some(quic::Options { file: file.clone(), notify: Some(notify) }),
            health: None,
        };
        let speaking = Speaking::start(options, |_| {}).expect("it starts; needs root");
        let one = welcomes(&mut first.sessions, Some(ids(0, &[1]))).await;
        after(&mut hup, &file, &["issue = 0", "key = \"0101", "server_id = \"0a5b\""], &[]).await;
        // One of an older version says nothing, and is in nobody's way.
        let two = welcomes(&mut second.sessions, None).await;
        say(&one, from_balancer::What::QuicLb(ids(0, &[1, 2]))).await;
        after(&mut hup, &file, &["issue = 0", "key = \"0101", "key = \"0202"], &[]).await;
        say(&one, from_balancer::What::QuicLb(ids(1, &[1, 2]))).await;
        after(&mut hup, &file, &["issue = 1"], &[]).await;
        // It is told after all by a version that says it, and has a key too few: what it could not read is not made.
        say(&two, from_balancer::What::QuicLb(ids(0, &[1]))).await;
        after(&mut hup, &file, &["issue = 0", "key = \"0202"], &[]).await;
        say(&two, from_balancer::What::QuicLb(ids(1, &[1, 2]))).await;
        after(&mut hup, &file, &["issue = 1"], &[]).await;
        for session in [&one, &two] {
            say(session, from_balancer::What::QuicLb(ids(1, &[0, 2]))).await;
        }
        after(&mut hup, &file, &["issue = 1", "key = \"0202"], &["key = \"0101"]).await;
        // The next agent finds the file as it is, and tells nobody before there is something new.
        drop(speaking);
    });
}
