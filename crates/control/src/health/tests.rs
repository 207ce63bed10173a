use std::io;
use std::net::{Ipv4Addr, TcpListener};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::checker::{GOLDEN, State};
use super::connect::{lack, reason};
use super::*;
use crate::config::{Exchange, Script, What};
use crate::testnet::Pair;
use tokio::sync::mpsc;

/// Feeds a word of `+` and `-`; gives the state after each as `U` and `d`, a change with `!`.
fn run(rise: u32, fall: u32, up: bool, results: &str) -> String {
    let mut machine = Hysteresis::new(rise, fall, up);
    let mut out = String::new();
    for result in results.chars() {
        let change = machine.observe(result == '+');
        out.push(if machine.is_up() { 'U' } else { 'd' });
        if let Some(now) = change {
            assert_eq!(now, machine.is_up());
            out.push('!');
        }
    }
    out
}

#[test]
fn hysteresis_table() {
    let cases = [
        (2, 3, true, "---", "UUd!"),
        (2, 3, true, "--+--+", "UUUUUU"),
        (2, 3, true, "-----", "UUd!dd"),
        (2, 3, false, "++", "dU!"),
        (2, 3, false, "+-+-++", "dddddU!"),
        (2, 3, false, "+++---++", "dU!UUUd!dU!"),
        (1, 1, true, "-+-+", "d!U!d!U!"),
        (0, 0, true, "-+", "d!U!"),
        (2, 3, true, "+++", "UUU"),
        (2, 3, false, "---", "ddd"),
    ];
    for (rise, fall, up, results, expected) in cases {
        assert_eq!(run(rise, fall, up, results), expected, "{results}");
    }
}

#[test]
fn hysteresis_keeps_its_counts_with_other_thresholds() {
    let mut machine = Hysteresis::new(2, 5, true);
    (0..3).for_each(|_| assert_eq!(machine.observe(false), None));
    machine.set_thresholds(2, 4);
    assert_eq!(machine.observe(false), Some(false));
    assert_eq!((machine.successes(), machine.failures()), (0, 4));
}

/// Longest wait for what has to come, which a busy machine keeps to as well.
const PATIENCE: Duration = Duration::from_secs(120);

fn target(id: u64, address: SocketAddr) -> Target {
    Target {
        id,
        source: None,
        address,
        way: None,
        what: Arc::default(),
        interval: Duration::from_millis(20),
        // An answer that is late because the machine is busy is an answer.
        timeout: PATIENCE,
        jitter: 0,
        interfaces: Arc::from([]),
        rise: 2,
        fall: 3,
        flap_window: Duration::ZERO,
        weight_step: 10,
        weight_every: Duration::ZERO,
        initially_up: true,
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The next transition.
async fn next(receiver: &mut mpsc::Receiver<Vec<Transition>>) -> Transition {
    let mut all = next_batch(receiver).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The next transitions that one check has decided.
async fn next_batch(receiver: &mut mpsc::Receiver<Vec<Transition>>) -> Vec<Transition> {
    let wait = timeout(PATIENCE, receiver.recv()).await;
    wait.expect("no transition in time").unwrap()
}

/// Waits until the first target is as it should be.
async fn until(checker: &Checker, is: impl Fn(&Status) -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !is(&checker.snapshot()[0]) {
        assert!(std::time::Instant::now() < end, "{:?}", checker.snapshot());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn quiet(receiver: &mut mpsc::Receiver<Vec<Transition>>, millis: u64) {
    let got = timeout(Duration::from_millis(millis), receiver.recv()).await;
    assert!(got.is_err(), "{got:?}");
}

#[tokio::test]
async fn a_listener_that_closes_and_opens_again() {
    let (listener, address) = listen();
    let (checker, mut receiver) = Checker::new();
    checker.set_targets(vec![target(7, address)]);
    until(&checker, |status| status.successes >= 5).await;
    quiet(&mut receiver, 1).await;
    let status = &checker.snapshot()[0];
    assert!(status.up && status.last_change.is_none());
    assert!(status.last_result.as_ref().unwrap().starts_with("connected in "));

    drop(listener);
    let down = next(&mut receiver).await;
    assert_eq!((down.id, down.up, &*down.detail), (7, false, "connection refused"));
    // One transition for one change.
    until(&checker, |status| status.failures >= 8).await;
    quiet(&mut receiver, 1).await;
    let status = &checker.snapshot()[0];
    assert!(!status.up && status.last_change == Some(down.at));

    let _again = TcpListener::bind(address).unwrap();
    let up = next(&mut receiver).await;
    assert!(up.up && up.detail.starts_with("connected in "), "{up:?}");
    quiet(&mut receiver, 100).await;
}

#[tokio::test]
async fn targets_that_stay_keep_their_state() {
    let (_open, address) = listen();
    let closed = listen().1;
    let (checker, mut receiver) = Checker::new();
    checker.set_targets(vec![target(1, address), target(2, closed)]);
    let down = next(&mut receiver).await;
    assert_eq!((down.id, down.up), (2, false));

    // Other settings, the same target: it stays down and says nothing.
    let mut changed = target(2, closed);
    changed.interval = Duration::from_millis(30);
    changed.fall = 1;
    checker.set_targets(vec![target(1, address), changed, target(3, closed)]);
    let down = next(&mut receiver).await;
    assert_eq!((down.id, down.up), (3, false));
    quiet(&mut receiver, 200).await;
    let status = checker.snapshot();
    let ups: Vec<(u64, bool)> = status.iter().map(|one| (one.id, one.up)).collect();
    assert_eq!(ups, [(1, true), (2, false), (3, false)]);

    // Another address under the same number is another target.
    checker.set_targets(vec![target(2, address)]);
    let status = checker.snapshot();
    assert_eq!(status.len(), 1);
    assert!(status[0].up && status[0].last_result.is_none());
    quiet(&mut receiver, 150).await;
}

/// Connections that a listener has got since the last call.
fn connections(listener: &TcpListener) -> usize {
    listener.set_nonblocking(true).unwrap();
    std::iter::from_fn(|| listener.accept().ok()).count()
}

/// 256 services on one host: one connection each time, and all hear of its death at once, each by
/// its own count.
#[tokio::test]
async fn targets_that_ask_the_same_share_a_connection() {
    const TARGETS: u64 = 256;
    let (listener, address) = listen();
    let (checker, mut receiver) = Checker::new();
    let falls = |id: u64| 2 + (id % 3) as u32;
    let all = || (0..TARGETS).map(|id| Target { fall: falls(id), ..target(id, address) });
    checker.set_targets(all().collect());
    // No more connections than there were checks: the first target has counted them all.
    let mut seen = 0;
    while checker.snapshot()[0].checks < 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        seen += connections(&listener);
    }
    let checks = checker.snapshot()[0].checks;
    seen += connections(&listener);
    // One may be under way.
    assert!((5..=checks as usize + 1).contains(&seen), "{seen} connections for {checks} checks");
    drop(listener);
    for fall in 2..5 {
        let down = next_batch(&mut receiver).await;
        let expected: Vec<u64> = (0..TARGETS).filter(|id| falls(*id) == fall).collect();
        assert_eq!(down.iter().map(|one| one.id).collect::<Vec<_>>(), expected);
        assert!(down.iter().all(|one| !one.up && &*one.detail == "connection refused"));
    }

    // One that comes later begins with its own state, and one that goes takes nobody along.
    let late = Target { initially_up: true, fall: 3, ..target(TARGETS, address) };
    checker.set_targets(all().skip(1).chain([late]).collect());
    assert_eq!(checker.snapshot().len(), TARGETS as usize);
    assert!(checker.snapshot().iter().all(|one| one.up == (one.id == TARGETS)));
    assert_eq!(next(&mut receiver).await.id, TARGETS);

    // Among the others, one asks more often: its count goes on, and theirs.
    let before = checker.snapshot();
    let hasty = Target { interval: Duration::from_millis(7), ..target(9, address) };
    checker.set_targets_among(9..=9, vec![hasty]);
    assert_eq!(checker.snapshot().len(), TARGETS as usize);
    for (now, before) in checker.snapshot().iter().zip(before) {
        assert!(now.failures >= before.failures && !now.up, "{now:?}");
    }
    let _again = TcpListener::bind(address).unwrap();
    let mut up = std::collections::BTreeSet::new();
    while up.len() < TARGETS as usize {
        let batch = next_batch(&mut receiver).await;
        assert!(batch.iter().all(|one| one.up && up.insert(one.id)), "{batch:?}");
    }
    checker.set_targets(Vec::new());
    assert!(checker.snapshot().is_empty());
}

#[tokio::test]
async fn a_silent_target_times_out() {
    // A full accept queue: the kernel drops further SYNs.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(Ok(stream)) =
        timeout(Duration::from_secs(1), tokio::net::TcpStream::connect(address)).await
    {
        held.push(stream);
        assert!(held.len() < 100);
    }
    let (checker, mut receiver) = Checker::new();
    let impatient = Target { timeout: Duration::from_millis(15), ..target(1, address) };
    checker.set_targets(vec![impatient]);
    let down = next(&mut receiver).await;
    assert_eq!((down.up, &*down.detail), (false, "no answer within 15ms"));
    drop(checker);
    assert!(receiver.recv().await.is_none(), "tasks end with the checker");
}

#[test]
fn reasons_are_named() {
    for (errno, words) in [
        (libc::ECONNREFUSED, "connection refused"),
        (libc::ECONNRESET, "connection reset"),
        (libc::EHOSTUNREACH, "host unreachable"),
        (libc::ENETUNREACH, "network unreachable: no route"),
        (libc::EPROTO, "Protocol error"),
    ] {
        let text = reason(&io::Error::from_raw_os_error(errno));
        assert!(text.starts_with(words), "{text}");
    }
}

#[test]
fn what_this_host_lacks_is_no_failure_of_the_backend() {
    for (errno, words) in [
        (libc::EMFILE, Some("no file descriptor left (ulimit -n)")),
        (libc::ENFILE, Some("no file descriptor left (fs.file-max)")),
        (libc::ENOBUFS, Some("no memory")),
        (libc::EADDRNOTAVAIL, Some("no local port or address is free")),
        (libc::ENETDOWN, Some("the own interface is down")),
        (libc::EPERM, Some("this host itself forbids it")),
        (libc::ECONNREFUSED, None),
        (libc::EHOSTUNREACH, None),
        (libc::ENETUNREACH, None),
    ] {
        let found = lack(&io::Error::from_raw_os_error(errno));
        let right = found.as_deref().zip(words).is_some_and(|(found, words)| found.contains(words));
        assert!(right || found.is_none() && words.is_none(), "{errno}: {found:?}");
    }
}

/// Our address is taken from us, then the interface goes down, then away. Nothing of it is the
/// backend's doing, so it stays up; and what was counted before goes on after.
#[test]
fn a_check_that_cannot_be_made_decides_nothing() {
    let pair = Pair::new();
    let address: SocketAddr = "10.9.0.2:80".parse().unwrap();
    let listener = pair.backend.enter(|| TcpListener::bind(address).unwrap()).unwrap();
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (checker, mut receiver) = Checker::new();
            let wanted = Target {
                source: Some("10.9.0.1".parse().unwrap()),
                timeout: Duration::from_millis(200),
                // A link that has just come up may take a second to get a SYN across.
                fall: 8,
                interfaces: Arc::from(["eth0".to_owned()]),
                ..target(1, address)
            };
            checker.set_targets(vec![wanted]);
            until(&checker, |status| status.successes >= 3).await;
            let unknown = async |words: &str, checks: u64| {
                until(&checker, |status| {
                    status.unknown && status.last_result.as_ref().unwrap().contains(words)
                })
                .await;
                // So many more that it would be down by now.
                let end = checker.snapshot()[0].checks + checks;
                until(&checker, |status| status.checks >= end).await;
                let status = &checker.snapshot()[0];
                assert!(status.up && status.unknown, "{status:?}");
            };
            pair.lb.ip("addr del 10.9.0.1/24 dev eth0").unwrap();
            unknown("no local port or address", 10).await;
            pair.lb.ip("addr add 10.9.0.1/24 dev eth0").unwrap();
            until(&checker, |status| !status.unknown && status.successes >= 6).await;
            pair.lb.ip("link set eth0 down").unwrap();
            unknown("the own interface eth0 is down", 10).await;
            pair.lb.ip("link set eth0 up").unwrap();
            until(&checker, |status| !status.unknown && status.successes >= 9).await;
            pair.backend.ip("link set eth0 down").unwrap();
            unknown("the own interface eth0 has no carrier", 10).await;
            pair.backend.ip("link set eth0 up").unwrap();
            until(&checker, |status| !status.unknown && status.successes >= 1).await;
            quiet(&mut receiver, 1).await;
            drop(listener);
            assert!(!next(&mut receiver).await.up);
            pair.lb.ip("link del eth0").unwrap();
            until(&checker, |status| status.unknown).await;
            let status = &checker.snapshot()[0];
            assert!(!status.up, "{status:?}");
        });
    };
    pair.lb.enter(inside).unwrap();
}

/// This process has no file descriptor left: that is no failure of the backend, however it is asked, and what becomes
/// of it meanwhile is learnt later.
#[test]
fn a_check_without_a_file_descriptor_decides_nothing() {
    // The limit is the process's, and others are in need of it: so a process of its own, this test once more.
    const ALONE: &str = "WEIR_WITHOUT_FILES";
    if std::env::var_os(ALONE).is_none() {
        let (_, module) = module_path!().split_once("::").expect("the crate's name");
        let test = format!("{module}::a_check_without_a_file_descriptor_decides_nothing");
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let done = again.args(["--exact", &test]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (listener, address) = listen();
        let (checker, mut receiver) = Checker::new();
        checker.set_targets(vec![target(1, address)]);
        until(&checker, |status| status.successes >= 3).await;
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // What is open stays so.
        setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
        let learns_nothing = async || {
            until(&checker, |status| status.unknown).await;
            // So many more that it would be down by now.
            let end = checker.snapshot()[0].checks + 10;
            until(&checker, |status| status.checks >= end).await;
            let status = &checker.snapshot()[0];
            assert!(status.up && status.unknown && status.failed == 0, "{status:?}");
            let words = "no file descriptor left (ulimit -n)";
            assert!(status.last_result.as_ref().unwrap().contains(words), "{status:?}");
        };
        learns_nothing().await;
        let udp = Exchange { send: b"?".to_vec(), expect: Vec::new() };
        let script = Script { command: vec!["/bin/true".into()], user: None };
        for what in [What::Udp(udp), What::Script(script)] {
            let outcome = ask(None, address, &what, PATIENCE, (&[], None)).await;
            assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
        }
        drop(listener);
        learns_nothing().await;
        quiet(&mut receiver, 1).await;
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        let down = next(&mut receiver).await;
        assert_eq!((down.up, &*down.detail), (false, "connection refused"));
    });
}

#[test]
fn the_limit_on_open_files_is_raised() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(512), hard).unwrap();
    raise_limits();
    let (soft, now) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(soft == now && now >= hard && soft > 512, "{soft} of {now}, {hard} before");
}

/// 40 targets at 200 ms: however they fall, no tenth of the interval has more than a fifth of
/// them, and no target is checked twice in one interval.
#[tokio::test]
async fn checks_are_spread_over_the_interval() {
    let mut tenths = [0; 10];
    for started in 1..=40u64 {
        let share = started.wrapping_mul(GOLDEN) as f64 / 2f64.powi(64);
        tenths[(share * 10.0) as usize] += 1;
    }
    assert!(tenths.iter().all(|&count| (2..=6).contains(&count)), "{tenths:?}");

    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (checker, _receiver) = Checker::new();
    let interval = Duration::from_millis(200);
    let targets = (0..40u8).map(|id| {
        let address = (Ipv4Addr::new(127, 0, 1, id), port).into();
        Target { interval, ..target(id.into(), address) }
    });
    let started = std::time::Instant::now();
    checker.set_targets(targets.collect());
    tokio::time::sleep(interval * 19 / 20).await;
    let seen = checker.snapshot();
    // One interval has begun, or more if this thread woke late.
    let intervals = started.elapsed().as_millis() / interval.as_millis() + 1;
    for status in seen {
        assert!(u128::from(status.successes) <= intervals, "{status:?}");
    }
    drop(listener);
}

/// Each fall soon after a rise doubles what the next rise needs; a calm time forgives all of it.
#[test]
fn whoever_flaps_has_to_show_more() {
    let window = Duration::from_secs(60);
    let wanted =
        Target { flap_window: window, fall: 1, ..target(1, "10.0.0.1:80".parse().unwrap()) };
    let mut state = State::new(&wanted);
    let mut now = std::time::Instant::now();
    let words: Arc<str> = "words".into();
    let good = Outcome::Passed(Passed {
        said: "connected".into(),
        took: Duration::ZERO,
        certificate_ends: None,
        spoken: None,
    });
    let bad = Outcome::Failed("refused".into());
    let mut needed = Vec::new();
    for _ in 0..9 {
        assert_eq!(state.note(&bad, false, &words, now), Some(false));
        let mut successes = 1;
        while state.note(&good, false, &words, now).is_none() {
            successes += 1;
        }
        needed.push(successes);
        now += Duration::from_secs(59);
    }
    assert_eq!(needed, [2, 4, 8, 16, 32, 64, 128, 128, 128]);
    now += window;
    assert_eq!(state.note(&bad, false, &words, now), Some(false));
    assert_eq!(state.rise(), 2);
}

/// Four of five servers end at once: none goes down for it, until most are well again; what then still
/// fails does.
#[tokio::test]
async fn what_fails_together_is_held() {
    let (checker, mut receiver) = Checker::new();
    checker.hold_at(70);
    let mut listeners: Vec<_> = (0..5).map(|_| Some(listen())).collect();
    let addresses: Vec<_> = listeners.iter().map(|one| one.as_ref().unwrap().1).collect();
    let targets = addresses.iter().zip(1..).map(|(address, id)| Target {
        // Longer than a busy machine takes to end four of them.
        interval: Duration::from_millis(100),
        fall: 20,
        ..target(id, *address)
    });
    checker.set_targets(targets.collect());
    until(&checker, |_| checker.snapshot().iter().all(|one| one.successes >= 2)).await;
    assert_eq!(checker.held(), None);
    listeners.iter_mut().take(4).for_each(|one| *one = None);
    until(&checker, |_| checker.snapshot().iter().take(4).all(|one| one.failures >= 30)).await;
    assert_eq!(checker.held(), Some((4, 5)));
    let now = checker.snapshot();
    assert!(now.iter().all(|one| one.up), "{now:?}");
    assert!(now[..4].iter().all(|one| one.held && one.failed >= 30 && one.last_error.is_some()));
    assert!(!now[4].held && now[4].last_error.is_none());
    quiet(&mut receiver, 1).await;
    // Two are well again, and three still fail less than the share.
    let _back: Vec<_> =
        addresses[..2].iter().map(|address| TcpListener::bind(address).unwrap()).collect();
    let mut down = std::collections::BTreeSet::new();
    while down.len() < 2 {
        let batch = next_batch(&mut receiver).await;
        assert!(batch.iter().all(|one| !one.up && down.insert(one.id)), "{batch:?}");
    }
    assert_eq!(down.into_iter().collect::<Vec<_>>(), [3, 4]);
    assert_eq!(checker.held(), None);
    until(&checker, |_| checker.snapshot()[..2].iter().all(|one| one.up && !one.held)).await;
    checker.set_targets(Vec::new());
    assert_eq!(checker.held(), None);
}
