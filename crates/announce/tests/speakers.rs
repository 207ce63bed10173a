//! Real speakers: gobgpd and bird, each in a network namespace with a neighbour that says what it has learnt.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::watch;
use weir_announce::{
    Attributes, Fact, Facts, Gate, Keeper, Report, Route, Speaker, SpeakerConfig, Wanted,
};
use weir_testbed::{Namespaces, process};

/// Nothing here takes so long, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(120);

/// A process in a network namespace of its own, so that ports are free. Both end with this.
struct Alone {
    process: Child,
    _namespaces: Namespaces,
}

impl Alone {
    fn new(line: &str, log: &Path) -> Self {
        let mut namespaces = Namespaces::new("speaker");
        let netns = namespaces.add("").expect("a namespace; this needs root");
        let log = std::fs::File::create(log).expect("a log");
        let mut words = line.split(' ');
        let mut command = netns.command(words.next().expect("a program")).expect("it is there");
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        let process = process::spawn(command).expect("the speaker is installed");
        Self { process, _namespaces: namespaces }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        process::kill(&mut self.process);
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(why) => assert!(begin.elapsed() < LIMIT, "{what}: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn routes(texts: &[&str]) -> BTreeSet<Route> {
    texts.iter().map(|text| text.parse().expect("a route")).collect()
}

const ALL: [&str; 3] = ["192.0.2.1/32", "198.51.100.0/24", "2001:db8::1/128"];

fn attributes() -> Attributes {
    Attributes {
        communities: vec!["65000:7".parse().expect("a community")],
        med: Some(30),
        ..Attributes::default()
    }
}

/// gobgpd, with its API on a socket.
fn gobgpd(folder: &TempDir) -> (Alone, SpeakerConfig) {
    let config = folder.path().join("gobgpd.toml");
    let text = "[global.config]\n  as = 65001\n  router-id = \"10.9.0.1\"\n  port = -1\n";
    std::fs::write(&config, text).expect("a file");
    let socket = folder.path().join("api.sock");
    let _ = std::fs::remove_file(&socket);
    let line = format!(
        "gobgpd -f {} --api-hosts unix://{} --pprof-disable",
        config.display(),
        socket.display()
    );
    let speaker = Alone::new(&line, &folder.path().join("gobgpd.log"));
    let api = format!("unix:{}", socket.display());
    (speaker, SpeakerConfig::Gobgp { api, attributes: attributes() })
}

fn bird(folder: &TempDir) -> (Alone, SpeakerConfig) {
    let config = folder.path().join("bird.conf");
    let file = folder.path().join("weir.conf");
    let text =
        format!("router id 10.9.0.1;\nprotocol device {{ }}\ninclude \"{}*\";\n", file.display());
    std::fs::write(&config, text).expect("a file");
    let socket = folder.path().join("bird.ctl");
    let line = format!("/usr/sbin/bird -f -c {} -s {}", config.display(), socket.display());
    let speaker = Alone::new(&line, &folder.path().join("bird.log"));
    (speaker, SpeakerConfig::Bird { socket, file, attributes: attributes() })
}

type Begin = fn(&TempDir) -> (Alone, SpeakerConfig);

async fn it_announces_what_it_is_told(begin: Begin) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_process, config) = begin(&folder);
    let mut speaker = Speaker::new(&config);
    let known = routes(&ALL);
    let nothing = BTreeSet::new();
    let found =
        until("it answers", async || speaker.current(&known).await.map_err(|e| e.to_string()));
    assert_eq!(found.await, nothing);
    // In any order, and what is there already once more.
    let mut current = nothing.clone();
    for wanted in [&ALL[..1], &ALL[..], &ALL[..], &ALL[1..], &ALL[..2], &[], &ALL[2..]] {
        let wanted = routes(wanted);
        speaker.set(&current, &wanted).await.expect("it is told");
        current = speaker.current(&known).await.expect("it answers");
        assert_eq!(current, wanted, "{config}");
    }
}

#[tokio::test]
async fn gobgp_announces_what_it_is_told() {
    it_announces_what_it_is_told(gobgpd).await;
}

#[tokio::test]
async fn bird_announces_what_it_is_told() {
    it_announces_what_it_is_told(bird).await;
}

/// What a keeper reports, once it is so.
async fn reported(
    reports: &mut watch::Receiver<Report>,
    is_so: impl Fn(&Report) -> bool,
) -> Report {
    let waited = tokio::time::timeout(LIMIT, reports.wait_for(is_so)).await;
    waited.expect("in time").expect("it runs").clone()
}

fn announced(report: &Report) -> BTreeSet<Route> {
    let is = |one: &&weir_announce::RouteReport| one.announced == Some(true);
    report.routes.iter().filter(is).map(|one| one.route).collect()
}

async fn a_keeper_mends_what_a_speaker_forgets(begin: Begin) {
    let folder = tempfile::tempdir().expect("a folder");
    let (process, config) = begin(&folder);
    let file = folder.path().join("announced.json");
    let fact = |up| Fact {
        service: "web".into(),
        served: true,
        up,
        need: 1,
        apart: false,
        namesake: false,
    };
    let facts = |up| -> Facts {
        ALL.iter().map(|text| (text.parse().expect("a route"), vec![fact(up)])).collect()
    };
    let wanted =
        |up| Wanted { speaker: Some(config.clone()), facts: facts(up), ..Wanted::default() };
    let (tell, told) = watch::channel(wanted(2));
    let (report, mut reports) = watch::channel(Report::default());
    let keeper = Keeper::new(Gate::new(Duration::ZERO), file.clone()).expect("a keeper");
    let running = tokio::spawn(keeper.run(told, report));
    reported(&mut reports, |report| announced(report) == routes(&ALL)).await;

    // The speaker dies, and comes back with nothing.
    drop(process);
    reported(&mut reports, |report| report.error.is_some()).await;
    let (_process, _) = begin(&folder);
    reported(&mut reports, |report| announced(report) == routes(&ALL)).await;

    // No backend is up; then one is.
    tell.send_replace(wanted(0));
    let report = reported(&mut reports, |report| announced(report).is_empty()).await;
    assert!(report.routes.iter().all(|one| one.withheld.is_some()), "{report:?}");
    tell.send_replace(wanted(1));
    reported(&mut reports, |report| announced(report) == routes(&ALL)).await;
    tell.send_replace(Wanted { drained: true, ..wanted(1) });
    reported(&mut reports, |report| announced(report).is_empty()).await;
    tell.send_replace(wanted(1));
    reported(&mut reports, |report| announced(report) == routes(&ALL)).await;

    // The keeper is killed; the next one has one address only, and takes the others away.
    running.abort();
    let only: Facts = facts(1).into_iter().take(1).collect();
    let (tell, told) = watch::channel(Wanted { facts: only.clone(), ..wanted(1) });
    let (report, mut reports) = watch::channel(Report::default());
    let keeper = Keeper::new(Gate::new(Duration::ZERO), file.clone()).expect("a keeper");
    let running = tokio::spawn(keeper.run(told, report));
    let first: BTreeSet<Route> = only.keys().copied().collect();
    reported(&mut reports, |report| announced(report) == first).await;
    let mut speaker = Speaker::new(&config);
    let left = speaker.current(&routes(&ALL)).await.expect("it answers");
    // BIRD's file tells what is ours by itself; GoBGP is asked for what was written down.
    assert_eq!(left, first);

    // A route that cannot be written down is not announced, and keeps none announced that is to be withdrawn.
    std::fs::remove_file(&file).expect("it was written");
    std::fs::create_dir(&file).expect("nothing can be written there");
    let second = ALL.iter().take(2).zip([fact(0), fact(1)]);
    let second: Facts =
        second.map(|(text, fact)| (text.parse().expect("a route"), vec![fact])).collect();
    tell.send_replace(Wanted { facts: second, ..wanted(1) });
    reported(&mut reports, |report| report.error.is_some()).await;
    assert_eq!(speaker.current(&routes(&ALL)).await.expect("it answers"), BTreeSet::new());
    std::fs::remove_dir(&file).expect("it is empty");
    tell.send_replace(Wanted { facts: only.clone(), ..wanted(1) });
    reported(&mut reports, |report| announced(report) == first).await;

    // It stops, and leaves them; the next one stops, and does not.
    tell.send_replace(Wanted { facts: only.clone(), stops: Some(true), ..wanted(1) });
    running.await.expect("it ends");
    assert_eq!(speaker.current(&routes(&ALL)).await.expect("it answers"), BTreeSet::new());
}

#[tokio::test]
async fn a_keeper_mends_what_gobgp_forgets() {
    a_keeper_mends_what_a_speaker_forgets(gobgpd).await;
}

#[tokio::test]
async fn a_keeper_mends_what_bird_forgets() {
    a_keeper_mends_what_a_speaker_forgets(bird).await;
}

#[tokio::test]
async fn who_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = format!("unix:{}/none", folder.path().display());
    let socket = folder.path().join("none");
    let file = folder.path().join("weir.conf");
    for config in [
        SpeakerConfig::Gobgp { api, attributes: Attributes::default() },
        SpeakerConfig::Bird { socket, file, attributes: Attributes::default() },
    ] {
        let refused = Speaker::new(&config).current(&routes(&ALL)).await;
        let error = refused.expect_err("nobody is there").to_string();
        assert!(error.contains(&config.to_string()) && error.contains("No such file"), "{error}");
    }
}
