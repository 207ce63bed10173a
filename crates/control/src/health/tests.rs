use std::net::{Ipv4Addr, TcpListener};

use super::*;

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
        interval: Duration::from_millis(20),
        // An answer that is late because the machine is busy is an answer.
        timeout: PATIENCE,
        rise: 2,
        fall: 3,
        initially_up: true,
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The next transition.
async fn next(receiver: &mut mpsc::Receiver<Transition>) -> Transition {
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

async fn quiet(receiver: &mut mpsc::Receiver<Transition>, millis: u64) {
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
    assert_eq!((down.id, down.up, down.detail.as_str()), (7, false, "connection refused"));
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
    assert_eq!((down.up, down.detail.as_str()), (false, "no answer within 15ms"));
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
        (libc::EADDRNOTAVAIL, "no local port"),
        (libc::EACCES, "Permission denied"),
    ] {
        let text = reason(&io::Error::from_raw_os_error(errno));
        assert!(text.starts_with(words), "{text}");
    }
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

    let (listener, address) = listen();
    let (checker, _receiver) = Checker::new();
    let interval = Duration::from_millis(200);
    let targets = (0..40).map(|id| Target { interval, ..target(id, address) });
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
