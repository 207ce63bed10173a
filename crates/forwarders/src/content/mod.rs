//! `weir fib content`: where is this content?

mod client;
mod index;
mod truth;
mod wire;

use crate::error::{Context, demand};
use crate::{ContentFib, ContentOptions, Report};
use crate::{Error, Result};
use client::Tally;
use index::{Index, Reader};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use truth::{NOWHERE, Truth};
use weir_fib::{ContentName, FibKey};
use weir_testbed::interrupt::interrupted;

/// Contents that are not there at the start, as a share of those that are.
const SPARE: usize = 20;

/// How often the updater looks how many updates are due.
const TICK: Duration = Duration::from_millis(1);

/// What an index answered while contents came, moved and went.
#[derive(Serialize)]
pub struct ContentReport {
    fib: ContentFib,
    seed: u64,
    contents: usize,
    locations: u16,
    seconds: f64,
    build_s: f64,
    queries_per_s: f64,
    datagrams_per_s: f64,
    updates_per_s: f64,
    updates: u64,
    /// Bytes of a message without its envelope, on average; messages with a whole view apart.
    message_bytes: f64,
    rebuilds: u64,
    view_bytes: usize,
    bits_per_content: f64,
    control_bytes: usize,
    right: u64,
    in_flight: u64,
    unchecked: u64,
    absent: u64,
    wrong: u64,
    lost_datagrams: u64,
    aliens: u64,
    aliens_answered: u64,
    /// Contents whose location the view does not tell at the end; all of them are asked for.
    wrong_at_end: u64,
}

impl Report for ContentReport {
    fn held(&self) -> bool {
        self.wrong == 0 && self.wrong_at_end == 0 && self.lost_datagrams == 0 && self.right > 0
    }

    fn text(&self) -> String {
        format!(
            "{:?}: {} contents at {} locations, WEIR_SEED={}\n\
             built in {:.2} s; view {:.2} MB ({:.2} bits per content), maintainer {:.1} MB\n\
             {:.0} names/s in {:.0} datagrams/s, {:.0} updates/s with {:.1} bytes each, {} rebuilds\n\
             right {}, right while moving {}, changing {}, absent {}\n\
             alien {}, of which answered {}\n\
             wrong {}, wrong at the end {}, datagrams lost {}",
            self.fib,
            self.contents,
            self.locations,
            self.seed,
            self.build_s,
            self.view_bytes as f64 / 1e6,
            self.bits_per_content,
            self.control_bytes as f64 / 1e6,
            self.queries_per_s,
            self.datagrams_per_s,
            self.updates_per_s,
            self.message_bytes,
            self.rebuilds,
            self.right,
            self.in_flight,
            self.unchecked,
            self.absent,
            self.aliens,
            self.aliens_answered,
            self.wrong,
            self.wrong_at_end,
            self.lost_datagrams,
        )
    }
}

/// Fills an index, and lets clients ask while contents change.
///
/// # Errors
///
/// Options that cannot be, or a socket or a change that fails.
pub fn run(options: &ContentOptions) -> Result<ContentReport> {
    demand!(options.contents > 0, "an index without contents answers nothing");
    demand!(options.seconds > 0.0, "--seconds is above 0");
    let seed = options.seed.unwrap_or_else(weir_testbed::draw_seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let place = |rng: &mut ChaCha8Rng| rng.random_range(0..options.locations);
    let items: Vec<(ContentName, u64)> = (0..options.contents as u64)
        .map(|n| (ContentName::numbered(0, n), u64::from(place(&mut rng))))
        .collect();
    let spare = options.contents / SPARE + 16;
    let truth = Truth::new(items.iter().map(|&(_, location)| location as u16), spare);
    let started = Instant::now();
    let mut index = Index::build(options.fib, options.locations, &items, spare, seed)?;
    let build_s = started.elapsed().as_secs_f64();
    drop(items);

    let socket = UdpSocket::bind("127.0.0.1:0").context("the index node's socket")?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let address = socket.local_addr()?;
    let (asking, serving) = (AtomicBool::new(false), AtomicBool::new(false));
    let started = Instant::now();
    let (tally, changes) = thread::scope(|scope| -> Result<(Tally, Changes)> {
        let servers: Vec<_> = (0..options.servers)
            .map(|_| (index.reader(), &socket, &serving))
            .map(|(reader, socket, stop)| scope.spawn(move || serve(socket, reader, stop)))
            .collect();
        let clients: Vec<_> = (0..options.clients)
            .map(|client| {
                let (truth, asking) = (&truth, &asking);
                let (batch, seed) =
                    (options.batch.into(), seed.wrapping_add(1 + u64::from(client)));
                scope.spawn(move || client::run(address, truth, batch, seed, asking))
            })
            .collect();
        let until = started + Duration::from_secs_f64(options.seconds);
        let changes = update(&mut index, &truth, options, until, &mut rng);
        asking.store(true, Ordering::Relaxed);
        let mut tally = Tally::default();
        let mut failed = None;
        for client in clients {
            match client.join().map_err(|_| Error::Failed("a client panicked".into())).flatten() {
                Ok(found) => tally.add(&found),
                Err(error) => failed = Some(error),
            }
        }
        serving.store(true, Ordering::Relaxed);
        for server in servers {
            server.join().map_err(|_| Error::Failed("a server panicked".into()))??;
        }
        failed.map_or(Ok((tally, changes?)), Err)
    })?;
    let seconds = changes.seconds;
    Ok(ContentReport {
        fib: options.fib,
        seed,
        contents: index.len(),
        locations: options.locations,
        seconds,
        build_s,
        queries_per_s: tally.answered() as f64 / seconds,
        datagrams_per_s: tally.datagrams as f64 / seconds,
        updates_per_s: changes.made as f64 / seconds,
        updates: changes.made,
        message_bytes: changes.bytes as f64 / (changes.made - changes.rebuilds).max(1) as f64,
        rebuilds: changes.rebuilds,
        view_bytes: index.view_bytes(),
        bits_per_content: index.view_bytes() as f64 * 8.0 / index.len() as f64,
        control_bytes: index.control_bytes(),
        right: tally.right,
        in_flight: tally.in_flight,
        unchecked: tally.unchecked,
        absent: tally.absent,
        wrong: tally.wrong,
        lost_datagrams: tally.lost,
        aliens: tally.aliens,
        aliens_answered: tally.aliens_answered,
        wrong_at_end: wrong_at_end(&index, &truth),
    })
}

/// Answers queries until told to stop.
fn serve(socket: &UdpSocket, mut reader: Reader, stop: &AtomicBool) -> Result<()> {
    let mut datagram = [0u8; wire::LONGEST + 1];
    let (mut names, mut answer) = (Vec::new(), Vec::new());
    let mut locations = [0u16; wire::MOST];
    while !stop.load(Ordering::Relaxed) {
        let (bytes, from) = match socket.recv_from(&mut datagram) {
            Ok(received) => received,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(error) => Err(error).context("receiving queries")?,
        };
        let Some(number) = wire::read_query(&datagram[..bytes], &mut names) else { continue };
        let locations = &mut locations[..names.len()];
        reader.locate(&names, locations);
        wire::put_answer(number, locations, &mut answer);
        socket.send_to(&answer, from).context("sending an answer")?;
    }
    Ok(())
}

/// What the updater did.
#[derive(Default)]
struct Changes {
    made: u64,
    bytes: u64,
    rebuilds: u64,
    seconds: f64,
}

/// Longer messages hold a whole view.
const WHOLE: usize = 4096;

/// Contents are drawn at random: one that is not there comes, one that is there moves, or goes once
/// in 21 times, so that one in 21 is missing in the long run as at the start.
fn update(
    index: &mut Index,
    truth: &Truth,
    options: &ContentOptions,
    until: Instant,
    rng: &mut ChaCha8Rng,
) -> Result<Changes> {
    let started = Instant::now();
    let mut changes = Changes::default();
    while Instant::now() < until && !interrupted() {
        let due = (started.elapsed().as_secs_f64() * options.updates_per_second) as u64;
        // Not more than a tick's worth at a time, so that a late updater does not starve others.
        let now = due.saturating_sub(changes.made).min(4096);
        for _ in 0..now {
            let content = rng.random_range(0..truth.len());
            let there = truth.get(content).location() != NOWHERE;
            let goes = there && rng.random_ratio(1, SPARE as u32 + 1);
            let location = if goes { NOWHERE } else { rng.random_range(0..options.locations) };
            let name = ContentName::numbered(0, content as u64);
            let bytes = truth.change(content, location, || index.change(name, location))?;
            changes.made += 1;
            match bytes {
                WHOLE.. => changes.rebuilds += 1,
                bytes => changes.bytes += bytes as u64,
            }
        }
        if now == 0 {
            thread::sleep(TICK);
        }
    }
    changes.seconds = started.elapsed().as_secs_f64();
    Ok(changes)
}

/// Asks the view for everything once nothing changes any more.
fn wrong_at_end(index: &Index, truth: &Truth) -> u64 {
    let mut reader = index.reader();
    let mut wrong = 0;
    let mut found = [0; 256];
    let all: Vec<usize> = (0..truth.len()).collect();
    for some in all.chunks(found.len()) {
        let names: Vec<ContentName> =
            some.iter().map(|&content| ContentName::numbered(0, content as u64)).collect();
        reader.locate(&names, &mut found[..names.len()]);
        for (&content, &found) in some.iter().zip(&found) {
            let location = truth.get(content).location();
            wrong += u64::from(location != NOWHERE && location != found);
        }
    }
    wrong
}
