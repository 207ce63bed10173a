//! How many health checks a second one thread makes, and what one of them costs it:
//!
//! ```text
//! cargo run --release -p weir-control --example checks -- 10000 http 10
//! ```
//!
//! So many backends on this host, asked once a second by TCP or HTTP for so many seconds, by a runtime of
//! one thread. Another thread answers; its work is not counted.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_control::config::{Codes, Http, What};
use weir_control::health::{Checker, Target, raise_limits};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nup\n";

/// Nanoseconds that this thread has run for.
fn busy() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(10_000);
    let kind = arguments.next().unwrap_or_else(|| "tcp".into());
    let seconds: u64 = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(10);
    raise_limits();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let pages = kind == "http";
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 1024];
            if pages && stream.read(&mut request).is_ok() {
                let _ = stream.write_all(ANSWER);
            }
        }
    });
    let what = Arc::new(if pages {
        What::Http(Http {
            method: "GET".into(),
            path: "/".into(),
            host: None,
            headers: [].into(),
            status: vec![Codes(200, 299)],
            body: Some("up".into()),
            answer_headers: [].into(),
            weight: None,
        })
    } else {
        What::Tcp
    });
    let address = |id: u64| {
        let [_, _, b, c] = u32::try_from(id).unwrap_or(0).to_be_bytes();
        SocketAddr::from((Ipv4Addr::new(127, 1, b, c), port))
    };
    let targets = (0..count).map(|id| Target {
        id,
        source: None,
        address: address(id),
        what: Arc::clone(&what),
        interfaces: Arc::from([]),
        interval: Duration::from_secs(1),
        timeout: Duration::from_millis(900),
        jitter: 0,
        rise: 2,
        fall: 3,
        flap_window: Duration::ZERO,
        weight_step: 10,
        weight_every: Duration::ZERO,
        way: None,
        initially_up: true,
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (checker, _transitions) = Checker::new();
        checker.set_targets(targets.collect());
        // The first second spreads them.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let sum = || checker.snapshot().iter().fold((0, 0), |(a, b), s| (a + s.checks, b + s.failed));
        let (before, begin, worked) = (sum(), Instant::now(), busy());
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let (after, took) = (sum(), begin.elapsed().as_secs_f64());
        let worked = (busy() - worked) as f64;
        let checks = after.0 - before.0;
        println!(
            "{count} backends by {kind}: {:.0} checks/s, {} failed; {:.1} us of one thread each, {:.0} % of it",
            checks as f64 / took,
            after.1 - before.1,
            worked / 1e3 / checks.max(1) as f64,
            worked / 1e9 / took * 100.0
        );
    });
}
