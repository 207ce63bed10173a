//! Keepers beside a real etcd that is stopped, killed, compacted and asked with and without certificates.

use serde_json::json;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};
use weir_fleet::{
    Ack, Ask, Document, Ends, FleetError, Keeper, Leader, News, Report, Sign, Stage, Store,
    StoreConfig, TlsFiles,
};
use weir_rpc::pki;
use weir_testbed::process;

/// Nothing here takes so long, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(120);

struct Etcd {
    process: Child,
    folder: TempDir,
    client: u16,
    peer: u16,
    more: Vec<String>,
    scheme: &'static str,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

fn spawn(folder: &Path, scheme: &str, client: u16, peer: u16, more: &[String]) -> Child {
    let log = std::fs::File::create(folder.join("etcd.log")).expect("a log");
    let mut command = Command::new("etcd");
    command
        .args(["--data-dir", &folder.join("data").display().to_string()])
        .args(["--listen-client-urls", &format!("{scheme}://127.0.0.1:{client}")])
        .args(["--advertise-client-urls", &format!("{scheme}://127.0.0.1:{client}")])
        .args(["--listen-peer-urls", &format!("http://127.0.0.1:{peer}")])
        .args(["--initial-advertise-peer-urls", &format!("http://127.0.0.1:{peer}")])
        .args(["--initial-cluster", &format!("default=http://127.0.0.1:{peer}")])
        .args(more)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log);
    process::spawn(command).expect("etcd is installed")
}

impl Etcd {
    fn begin(scheme: &'static str, more: &[String]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (client, peer) = (free_port(), free_port());
        let process = spawn(folder.path(), scheme, client, peer, more);
        Self { process, folder, client, peer, more: more.to_vec(), scheme }
    }

    fn kill(&mut self) {
        process::kill(&mut self.process);
    }

    fn again(&mut self) {
        self.process = spawn(self.folder.path(), self.scheme, self.client, self.peer, &self.more);
    }

    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let done = Command::new("kill").args(["-s", name, &id]).status().expect("kill");
        assert!(done.success());
    }

    fn config(&self) -> StoreConfig {
        StoreConfig {
            endpoints: vec![format!("{}://localhost:{}", self.scheme, self.client)],
            prefix: "/weir".into(),
            tls: TlsFiles::default(),
            user: None,
            password_file: None,
            wait: Duration::from_secs(1),
            withdraw_after: None,
        }
    }

    fn ctl(&self, words: &[&str]) -> String {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=http://127.0.0.1:{}", self.client))
            .args(words)
            .output()
            .expect("etcdctl");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(why) => assert!(begin.elapsed() < LIMIT, "{what}: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn store(config: &StoreConfig) -> Store {
    until("the store answers", async || {
        let mut store = Store::connect(config).await.map_err(|error| error.to_string())?;
        store.look().await.map_err(|error| error.to_string())?;
        Ok(store)
    })
    .await
}

fn document(change: u64) -> Document {
    let text = format!("[[service]]\nname = \"s{change}\"\n");
    let mut document = Document::new(change, text, BTreeMap::new());
    document.by = format!("lb{change}");
    document
}

/// A balancer that does nothing but be in touch.
fn balancer(config: &StoreConfig, name: &str, id: &str) -> Ends {
    let (keeper, ends) = Keeper::new(config.clone(), name.into(), id.into());
    tokio::spawn(keeper.run());
    ends
}

async fn heard(ends: &mut Ends, wanted: Option<u64>) -> i64 {
    let found = tokio::time::timeout(LIMIT, async {
        loop {
            match ends.news.recv().await.expect("it runs") {
                News::Config(found, revision)
                    if found.as_ref().map(|found| found.change) == wanted =>
                {
                    return revision;
                }
                _ => {}
            }
        }
    });
    found.await.expect("in time")
}

async fn reported(ends: &mut Ends, is_so: impl Fn(&Report) -> bool) -> Report {
    let waited = tokio::time::timeout(LIMIT, ends.report.wait_for(is_so)).await;
    waited.expect("in time").expect("it runs").clone()
}

async fn put(ends: &Ends, document: Document, expected: i64) -> Result<i64, FleetError> {
    let (then, answer) = oneshot::channel();
    let document = Box::new(document);
    let sent = ends.asks.send(Ask::Put { document, expected, then }).await;
    assert!(sent.is_ok());
    answer.await.expect("an answer")
}

#[tokio::test]
async fn a_change_is_one_transaction_and_reaches_all() {
    let etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    let mut a = balancer(&etcd.config(), "a", "1");
    let mut b = balancer(&etcd.config(), "b", "2");
    assert_eq!((heard(&mut a, None).await, heard(&mut b, None).await), (0, 0));
    let first = put(&a, document(1), 0).await.expect("it is the first");
    assert_eq!((heard(&mut a, Some(1)).await, heard(&mut b, Some(1)).await), (first, first));
    let second = put(&b, document(2), first).await.expect("it goes on from the first");
    // Whoever goes on from what was is told who was first, and nothing has changed.
    let refused = put(&a, document(2), first).await.expect_err("it is not the last any more");
    let FleetError::Conflict { expected: 1, has: 2, by } = &refused else { panic!("{refused}") };
    assert_eq!(by, "lb2");
    assert!(matches!(put(&a, document(1), 0).await, Err(FleetError::Conflict { .. })));
    assert_eq!((heard(&mut a, Some(2)).await, heard(&mut b, Some(2)).await), (second, second));
    let mut large = document(3);
    large.text = "#".repeat(1_500_000);
    let refused = put(&a, large, second).await.expect_err("there is no room for it");
    assert!(matches!(refused, FleetError::Large { .. }), "{refused}");
    // One that joins finds what there is.
    let mut c = balancer(&etcd.config(), "c", "3");
    assert_eq!(heard(&mut c, Some(2)).await, second);
    let wanted = |report: &Report| report.members.len() == 3 && report.balancers.len() == 3;
    assert_eq!(reported(&mut a, wanted).await.change, 2);
    // One that ends is away at once, and stays a member until it is forgotten.
    drop(c);
    reported(&mut a, |report| report.members.len() == 3 && report.balancers.len() == 2).await;
    let (then, forgotten) = oneshot::channel();
    let _ = a.asks.send(Ask::Forget { name: "c".into(), then }).await;
    assert!(forgotten.await.expect("an answer").expect("it is done"));
    reported(&mut b, |report| report.members.len() == 2).await;
}

#[tokio::test]
async fn it_goes_on_without_the_store_and_misses_nothing() {
    let mut etcd = Etcd::begin("http", &[]);
    let first = store(&etcd.config()).await.put(&document(1), 0).await.expect("it is the first");
    let mut a = balancer(&etcd.config(), "a", "1");
    heard(&mut a, Some(1)).await;
    // A store that stands still is noticed as one that is gone.
    for (stop, go_on) in [("STOP", "CONT"), ("KILL", "")] {
        etcd.signal(stop);
        let report = reported(&mut a, |report| !report.reachable).await;
        assert!(report.error.is_some() && report.change == 1, "{report:?}");
        let refused = put(&a, document(2), first).await.expect_err("nobody takes it");
        assert!(matches!(refused, FleetError::Unreachable(_)), "{refused}");
        if go_on.is_empty() {
            etcd.kill();
            etcd.again();
        } else {
            etcd.signal(go_on);
        }
        let report = reported(&mut a, |report| report.reachable).await;
        assert!(report.resyncs > 0 && report.error.is_none(), "{report:?}");
        assert_eq!(heard(&mut a, Some(1)).await, first);
    }
    // While it is away the store changes, and what it has seen last is compacted away.
    etcd.signal("STOP");
    reported(&mut a, |report| !report.reachable).await;
    etcd.signal("CONT");
    let mut other = store(&etcd.config()).await;
    let mut last = first;
    for change in 2..5 {
        last = other.put(&document(change), last).await.expect("it is next");
    }
    etcd.ctl(&["compact", &last.to_string()]);
    assert_eq!(heard(&mut a, Some(4)).await, last);
    etcd.ctl(&["del", "/weir/config"]);
    assert_eq!(heard(&mut a, None).await, 0);
    etcd.ctl(&["put", "/weir/config", "{\"version\": 9}"]);
    let report = reported(&mut a, |report| !report.reachable).await;
    let said = report.error.expect("it says why");
    assert!(
        said.contains("/weir/config in the store cannot be used: it is of version 9"),
        "{said}"
    );
}

#[tokio::test]
async fn all_answer_a_question_and_nobody_speaks_for_a_namesake() {
    let etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    let mut a = balancer(&etcd.config(), "a", "1");
    let b = balancer(&etcd.config(), "b", "2");
    let sign = Sign { id: "2".into(), change: 7, ..Sign::default() };
    b.sign.send_replace(sign.clone());
    let both =
        |report: &Report| report.balancers.get("b") == Some(&sign) && report.balancers.len() == 2;
    reported(&mut a, both).await;
    // One with more services than there is room for goes on without telling them.
    let service = weir_fleet::ServiceSign { name: "s".repeat(64), ..Default::default() };
    b.sign.send_replace(Sign { services: vec![service; 20_000], ..sign.clone() });
    b.sign.send_modify(|sign| sign.change = 8);
    let cut = Sign { change: 8, ..sign.clone() };
    reported(&mut a, |report| report.balancers.get("b") == Some(&cut)).await;
    b.sign.send_replace(sign.clone());
    reported(&mut a, both).await;
    // What it is asked by is kept, so that it goes on.
    let Ends { mut news, asks, sign, report: mut of_b } = b;
    tokio::spawn(async move {
        while let Some(news) = news.recv().await {
            if let News::Question(question, answer) = news {
                let _ = answer.send(json!({ "heard": question }));
            }
        }
    });
    let (then, answers) = oneshot::channel();
    let _ = a.asks.send(Ask::Question { question: json!("where?"), then }).await;
    // This one does not answer: it is told so, and not waited for for ever.
    let answers = answers.await.expect("an answer").expect("it is asked");
    assert_eq!(answers["b"], Some(json!({ "heard": "where?" })));
    assert_eq!(answers["a"], None);
    let mut other = balancer(&etcd.config(), "b", "3");
    reported(&mut other, |report| report.reachable && report.namesake).await;
    assert!(!of_b.borrow_and_update().namesake, "who was first keeps its name");
    // And all know of the other one.
    let told = |report: &Report| report.doubles.contains_key("b/3");
    let report = reported(&mut a, told).await;
    assert_eq!((report.balancers.len(), report.balancers["b"].id.as_str()), (2, "2"));
    assert_eq!(report.doubled("a").into_iter().collect::<Vec<_>>(), ["b"]);
    // When who was first is gone the name is free.
    drop((asks, sign));
    reported(&mut other, |report| report.reachable && !report.namesake).await;
}

/// Of two of one name that come at once one has it.
#[tokio::test]
async fn a_name_is_one_balancers() {
    let etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    let mut both = ["1", "2"].map(|id| balancer(&etcd.config(), "a", id));
    for one in &mut both {
        reported(one, |report| report.reachable && !report.doubles.is_empty()).await;
    }
    let doubles = both.iter().filter(|one| one.report.borrow().namesake);
    assert_eq!(doubles.count(), 1);
}

/// A store that was restored from an old copy has an old term, and whoever comes to it first may know of no other one:
/// it takes one above those of the steps that others have followed.
#[tokio::test]
async fn a_leader_takes_a_term_that_is_above_all_steps() {
    let etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    let mut a = balancer(&etcd.config(), "a", "1");
    assert_eq!(leader(&mut a, 1).await.term, 1);
    let b = balancer(&etcd.config(), "b", "2");
    let ack = Ack { id: "2".into(), step: (9, 4), stage: Stage::Done, late: false, lags: false };
    b.asks.send(Ask::Ack(ack)).await.expect("it runs");
    let later = leader(&mut a, 10).await;
    assert_eq!((later.name.as_str(), later.term), ("a", 10));
    reported(&mut a, Report::leads).await;
    // One that has followed such a step itself begins above it.
    etcd.ctl(&["del", "/weir/", "--prefix"]);
    let (keeper, mut c) = Keeper::new(etcd.config(), "c".into(), "3".into());
    tokio::spawn(keeper.above(20).run());
    drop((a, b));
    assert_eq!(leader(&mut c, 20).await.term, 21);
}

/// A balancer that keeps in a file which terms it has heard of.
fn remembering(config: &StoreConfig, name: &str, id: &str, file: &Path) -> Ends {
    let (keeper, ends) = Keeper::new(config.clone(), name.into(), id.into());
    tokio::spawn(keeper.remembering(file.to_owned()).run());
    ends
}

/// Until a balancer has ended, and said so to the store.
async fn ended(ends: Ends) {
    let Ends { asks, sign, report, mut news } = ends;
    drop((asks, sign, report));
    let over = async { while news.recv().await.is_some() {} };
    tokio::time::timeout(LIMIT, over).await.expect("in time");
}

/// Nor do terms come back where all that knew of them have ended and the store has lost its data: whoever has led, or has
/// heard of a leader alone, takes one above.
#[tokio::test]
async fn a_term_is_not_used_again_after_a_restart_without_the_store() {
    let etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(format!("{name}.json"));
    let mut a = remembering(&etcd.config(), "a", "1", &file("a"));
    reported(&mut a, Report::leads).await;
    let mut b = remembering(&etcd.config(), "b", "2", &file("b"));
    let last = leader(&mut b, 1).await.term;
    // The one that has heard of it is the first to be gone.
    ended(b).await;
    ended(a).await;
    for name in ["b", "a"] {
        etcd.ctl(&["del", "/weir/", "--prefix"]);
        let mut one = remembering(&etcd.config(), name, "3", &file(name));
        reported(&mut one, Report::leads).await;
        let next = leader(&mut one, 1).await;
        assert!(next.name == name && next.term > last, "{next:?} after {last}");
        ended(one).await;
    }
}

/// Who says that nobody could follow it does not lead, and gives the lead up.
#[tokio::test]
async fn who_is_unfit_does_not_lead() {
    let etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    let says = |ends: &Ends, unfit: Option<&str>| {
        ends.sign.send_modify(|sign| sign.unfit = unfit.map(str::to_owned));
    };
    let (keeper, mut a) = Keeper::new(etcd.config(), "a".into(), "1".into());
    says(&a, Some("its certificate has ended"));
    tokio::spawn(keeper.run());
    reported(&mut a, |report| report.balancers.contains_key("a")).await;
    let mut b = balancer(&etcd.config(), "b", "2");
    assert_eq!(leader(&mut a, 1).await.name, "b");
    reported(&mut b, Report::leads).await;
    assert!(!a.report.borrow().leads());
    // The one that leads becomes unfit, and the other one is fit again.
    says(&a, None);
    says(&b, Some("its certificate has ended"));
    reported(&mut a, Report::leads).await;
    assert!(!b.report.borrow().leads());
    let led = leader(&mut b, 2).await;
    assert_eq!(led.name, "a");
    // Nobody is fit, until one is.
    says(&a, Some("its certificate has ended"));
    reported(&mut b, |report| report.leader.is_none()).await;
    says(&b, None);
    reported(&mut b, Report::leads).await;
}

/// The leader that a balancer knows of, once it is of this term at least.
async fn leader(ends: &mut Ends, term: u64) -> Leader {
    let led = |report: &Report| report.leader.as_ref().is_some_and(|one| one.term >= term);
    reported(ends, led).await.leader.expect("there is one")
}

#[tokio::test]
async fn one_leads_and_who_comes_after_it_has_a_higher_term() {
    let mut etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    let mut a = balancer(&etcd.config(), "a", "1");
    let first = leader(&mut a, 1).await;
    assert_eq!((first.name.as_str(), first.id.as_str(), first.term), ("a", "1", 1));
    assert!(reported(&mut a, Report::leads).await.leads());
    let mut b = balancer(&etcd.config(), "b", "2");
    let mut c = balancer(&etcd.config(), "c", "3");
    for other in [&mut b, &mut c] {
        assert_eq!(leader(other, 1).await, first);
        assert!(!other.report.borrow().leads());
    }
    // One that ends is followed at once, by one of the others.
    drop(a);
    let second = leader(&mut b, 2).await;
    assert_eq!(leader(&mut c, 2).await, second);
    assert!(second.term == 2 && ["b", "c"].contains(&second.name.as_str()), "{second:?}");
    let (leads, other) = if second.name == "b" { (&mut b, &mut c) } else { (&mut c, &mut b) };
    assert!(reported(leads, Report::leads).await.leads());
    assert!(!other.report.borrow().leads());
    // Without the store nobody leads, and when it is back somebody does, in another term.
    etcd.signal("STOP");
    for one in [&mut *leads, &mut *other] {
        let report = reported(one, |report| !report.reachable).await;
        assert!(report.leader.is_none() && !report.leads(), "{report:?}");
    }
    etcd.signal("CONT");
    let third = leader(leads, 3).await;
    let same = |report: &Report| report.leader.as_ref() == Some(&third);
    assert_eq!(reported(other, same).await.leader, Some(third.clone()));
    // A store that has lost all begins with a term that nobody has heard of.
    etcd.ctl(&["del", "/weir/", "--prefix"]);
    let fourth = leader(leads, third.term + 1).await;
    let same = |report: &Report| report.leader.as_ref() == Some(&fourth);
    reported(other, same).await;
    let term = etcd.ctl(&["get", "/weir/term", "--print-value-only"]);
    assert_eq!(term.trim(), fourth.term.to_string());
    // So does one that lost them while nobody was in touch.
    etcd.kill();
    reported(leads, |report| !report.reachable).await;
    reported(other, |report| !report.reachable).await;
    std::fs::remove_dir_all(etcd.folder.path().join("data")).expect("its data");
    etcd.again();
    leader(leads, fourth.term + 1).await;
    // What nobody has written is an error that says what to do.
    etcd.ctl(&["put", "/weir/term", "many"]);
    let report = reported(other, |report| report.error.is_some()).await;
    let said = report.error.expect("it says why");
    assert!(said.contains("/weir/term in the store cannot be used"), "{said}");
    etcd.ctl(&["del", "/weir/term"]);
    leader(other, fourth.term + 2).await;
}

/// A way to etcd, by its port; once it is shut it keeps all to itself, as a network does that loses packets.
async fn way_to(etcd: &Etcd) -> (u16, watch::Sender<bool>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (shut, is_shut) = watch::channel(false);
    let there = etcd.client;
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let mut is_shut = is_shut.clone();
            tokio::spawn(async move {
                let to = tokio::net::TcpStream::connect(("127.0.0.1", there)).await;
                let mut to = to.expect("etcd listens");
                tokio::select! {
                    biased;
                    () = async { drop(is_shut.wait_for(|shut| *shut).await) } => {
                        std::future::pending().await
                    }
                    _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                }
            });
        }
    });
    (port, shut)
}

/// Whoever leads knows that it does not any more before another one can.
#[tokio::test]
async fn who_is_cut_off_leads_no_more_when_another_does() {
    let etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    let (port, shut) = way_to(&etcd).await;
    let endpoints = vec![format!("http://127.0.0.1:{port}")];
    let mut a = balancer(&StoreConfig { endpoints, ..etcd.config() }, "a", "1");
    reported(&mut a, Report::leads).await;
    let mut b = balancer(&etcd.config(), "b", "2");
    assert_eq!(leader(&mut b, 1).await.name, "a");
    shut.send_replace(true);
    let begin = Instant::now();
    loop {
        // In this order: who has stopped leading does not begin again.
        let (other, own) = (b.report.borrow().leads(), a.report.borrow().leads());
        assert!(!(other && own), "two lead");
        if other {
            break;
        }
        assert!(begin.elapsed() < LIMIT, "nobody follows");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(leader(&mut b, 2).await.name, "b");
}

/// Nor do two where leases are taken away.
#[tokio::test]
async fn two_never_lead_at_once() {
    let etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    let mut a = balancer(&etcd.config(), "a", "1");
    reported(&mut a, Report::leads).await;
    let mut b = balancer(&etcd.config(), "b", "2");
    leader(&mut b, 1).await;
    // Its lease is taken from it, as if it had not been kept: it hears of that at the same time as the other
    // one, and whichever leads next, the term is another.
    for round in 2..5 {
        let leases = etcd.ctl(&["get", "/weir/leader", "--write-out=fields"]);
        let lease = leases.lines().find_map(|line| line.strip_prefix("\"Lease\" : "));
        let lease = lease.expect("the leader has a lease").trim().parse::<i64>().expect("a number");
        etcd.ctl(&["lease", "revoke", &format!("{lease:x}")]);
        let next = leader(&mut a, round).await;
        reported(&mut b, |report| report.leader.as_ref() == Some(&next)).await;
        let leading = tokio::time::timeout(LIMIT, async {
            loop {
                let both = (a.report.borrow().leads(), b.report.borrow().leads());
                assert_ne!(both, (true, true), "two lead");
                if both.0 || both.1 {
                    return both;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let leading = leading.await.expect("somebody leads");
        assert_eq!(leading.0, next.name == "a", "{next:?}");
    }
}

fn issued(authority: &Path, to: &Path, name: &str, role: pki::Role) -> (PathBuf, PathBuf) {
    let request = pki::Request {
        name: name.into(),
        role,
        addresses: vec!["127.0.0.1".parse().expect("an address")],
        hosts: if role == pki::Role::Balancer { vec!["localhost".into()] } else { Vec::new() },
        days: 2,
    };
    let issued = pki::issue(authority, to, &request).expect("a certificate");
    (issued.certificate, issued.key)
}

/// What cannot be used of the store is said by its name, and what was known of the others stays known.
#[tokio::test]
async fn a_document_that_cannot_be_read_is_no_silent_store() {
    let etcd = Etcd::begin("http", &[]);
    let first = store(&etcd.config()).await.put(&document(1), 0).await.expect("it is the first");
    let mut a = balancer(&etcd.config(), "a", "1");
    let b = balancer(&etcd.config(), "b", "2");
    b.sign.send_replace(Sign { id: "2".into(), change: 7, ..Sign::default() });
    let there = |report: &Report| report.balancers.get("b").is_some_and(|sign| sign.change == 7);
    reported(&mut a, there).await;
    for (text, why) in
        [("garbage", "it is not what weir writes"), ("{\"version\": 9}", "it is of version 9")]
    {
        etcd.ctl(&["put", "/weir/config", text]);
        let said = |report: &Report| report.error.as_ref().is_some_and(|said| said.contains(why));
        let report = reported(&mut a, said).await;
        assert!(!report.reachable && report.balancers.is_empty(), "{report:?}");
        assert_eq!(report.before.get("b").map(|sign| sign.change), Some(7));
        let refused = put(&a, document(2), first).await.expect_err("nobody takes it").to_string();
        assert!(refused.starts_with("/weir/config in the store cannot be used: "), "{refused}");
        assert!(refused.contains(why), "{refused}");
    }
}

#[tokio::test]
async fn only_who_has_a_certificate_or_the_password_is_let_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = folder.path().join("pki");
    let ca = pki::init(&authority, "fleet", 3).expect("an authority").certificate;
    let (certificate, key) = issued(&authority, folder.path(), "etcd", pki::Role::Balancer);
    let files = [("--cert-file", &certificate), ("--key-file", &key), ("--trusted-ca-file", &ca)];
    let mut words: Vec<String> = files
        .iter()
        .flat_map(|(word, file)| [(*word).into(), file.display().to_string()])
        .collect();
    words.push("--client-cert-auth".into());
    let etcd = Etcd::begin("https", &words);
    let (certificate, key) = issued(&authority, folder.path(), "lb1", pki::Role::Agent);
    let mut config = etcd.config();
    config.tls = TlsFiles { ca: Some(ca.clone()), certificate: Some(certificate), key: Some(key) };
    store(&config).await.put(&document(1), 0).await.expect("it is let in");
    config.tls = TlsFiles { ca: Some(ca), ..TlsFiles::default() };
    let looked = async |config: &StoreConfig| {
        let mut store = Store::connect(config).await?;
        store.look().await.map(drop)
    };
    let refused = looked(&config).await.expect_err("it has no certificate");
    assert!(matches!(refused, FleetError::Unreachable(_)), "{refused}");
    config.tls.ca = Some("/nonexistent/ca.pem".into());
    let refused = looked(&config).await.expect_err("there is no such file").to_string();
    assert!(refused.starts_with("cannot read /nonexistent/ca.pem"), "{refused}");

    let etcd = Etcd::begin("http", &[]);
    store(&etcd.config()).await;
    etcd.ctl(&["user", "add", "root:secret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["auth", "enable"]);
    let mut config = etcd.config();
    let refused = looked(&config).await.expect_err("it names no user");
    assert!(matches!(refused, FleetError::Refused(_)), "{refused}");
    let password = folder.path().join("password");
    config.user = Some("root".into());
    config.password_file = Some(password.clone());
    std::fs::write(&password, "wrong\n").expect("a file");
    assert!(matches!(looked(&config).await, Err(FleetError::Refused(_))));
    std::fs::write(&password, "secret\n").expect("a file");
    looked(&config).await.expect("it is let in");
}
