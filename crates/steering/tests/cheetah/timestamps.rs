//! Long-lived connections under the repair of timestamps.
//!
//! A backend with a clock, a path on which packets overtake each other and get lost, and a client
//! that judges by RFC 7323 section 5.3. The client is run on the rewritten timestamps and on the
//! original ones side by side: it must accept and refuse the same packets, and what the backend
//! gets back must be what it would have got.

use super::seeded;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use weir_steering::Answer;
use weir_steering::cheetah::{Layout, Repair};

/// What happens on a connection, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Packet `n` of the backend passes the balancer.
    Out(usize),
    /// It reaches the client, which answers.
    AtClient(usize),
    /// That answer passes the balancer.
    Back(usize),
}

/// How a connection behaves.
#[derive(Clone, Copy)]
struct Style {
    /// Ticks of the backend's clock in a second.
    hertz: u64,
    /// The longest pause of the backend, in ticks.
    longest_pause: u64,
    /// The most that a packet is delayed on each part of the way, in microseconds.
    jitter: u64,
    /// The longest time in which the client hears nothing, in ticks.
    deaf: u64,
    packets: usize,
}

#[derive(Default, Debug)]
struct Tally {
    packets: u64,
    wraps: u64,
    lost: u64,
    overtaken: u64,
    refused: u64,
    inexact: u64,
    /// Packets that PAWS judges otherwise than it would the original ones.
    stalled: u64,
}

/// Times of the packets and what happens when, in order.
fn script(style: &Style, rng: &mut ChaCha8Rng) -> (Vec<u64>, Vec<(u64, Event)>) {
    let tick = 1_000_000 / style.hertz;
    let mut now = rng.random_range(0..1_000_000);
    let mut times = Vec::with_capacity(style.packets);
    for _ in 0..style.packets {
        times.push(now);
        let ticks = match rng.random_range(0..10) {
            0 => 0,
            1..=3 => rng.random_range(0..200),
            4..=8 => rng.random_range(0..style.longest_pause.min(20_000)),
            _ => rng.random_range(0..=style.longest_pause),
        };
        now += ticks * tick;
    }
    let mut events = Vec::with_capacity(3 * style.packets);
    let mut deaf_until = 0;
    for (n, &time) in times.iter().enumerate() {
        let out = time + rng.random_range(0..=style.jitter);
        events.push((out, Event::Out(n)));
        if style.deaf > 0 && rng.random_ratio(1, 50) {
            deaf_until = time + rng.random_range(0..=style.deaf) * tick;
        }
        // Single packets are lost where the client hears others in less than a wrap.
        let around = times.get(n + 1).zip(n.checked_sub(1)).map(|(next, n)| next - times[n]);
        let dense = n % 2 == 1 && around.is_some_and(|around| around < SHORT * tick);
        if time >= deaf_until && !(dense && rng.random_ratio(2, 5)) {
            let there = out + rng.random_range(0..=style.jitter);
            events.push((there, Event::AtClient(n)));
            events.push((there + rng.random_range(0..=style.jitter), Event::Back(n)));
        }
    }
    events.sort_unstable();
    (times, events)
}

/// Plays one connection. `exact`: every echo must be restored exactly.
fn play(layout: Layout, style: &Style, exact: bool, rng: &mut ChaCha8Rng, tally: &mut Tally) {
    let (times, events) = script(style, rng);
    let offset: u32 = rng.random();
    let clock = |n: usize| offset.wrapping_add((times[n] * style.hertz / 1_000_000) as u32);
    let cookie = rng.random::<u16>() >> layout.version_bits();

    let mut repair = None;
    let mut sent = vec![0; times.len()];
    // TS.Recent of the client, as the packet that it came with.
    let mut recent = None;
    let mut echoes = vec![0; times.len()];
    let mut newest = 0;
    for (_, event) in events {
        match event {
            Event::Out(n) => {
                let repair = repair.get_or_insert_with(|| Repair::new(layout, clock(n)));
                sent[n] = repair.outgoing(clock(n), cookie);
                assert_eq!(sent[n] as u16, clock(n) as u16);
                let parts = layout.split(sent[n]);
                assert_eq!(layout.cookie(parts.front, parts.back), cookie);
                tally.overtaken += u64::from(n < newest);
                newest = newest.max(n);
            }
            Event::AtClient(n) => {
                let fresh = |tsval: &dyn Fn(usize) -> u32| {
                    recent.is_none_or(|recent| tsval(n).wrapping_sub(tsval(recent)) as i32 >= 0)
                };
                let as_original = fresh(&clock);
                let as_rewritten = fresh(&|n| sent[n]);
                assert!(as_rewritten == as_original || !exact, "PAWS judges otherwise");
                tally.stalled += u64::from(as_rewritten != as_original);
                if as_rewritten {
                    recent = Some(n);
                } else {
                    tally.refused += 1;
                }
                echoes[n] = recent.expect("the first packet is fresh");
            }
            Event::Back(n) => {
                let echoed = echoes[n];
                let repair = repair.as_mut().expect("the client was sent something");
                let restored = repair.incoming(sent[echoed]);
                let right = restored == clock(echoed);
                tally.inexact += u64::from(!right);
                assert!(right || !exact, "{restored:#x} for {:#x}", clock(echoed));
                // Never from the future: the backend would measure a negative round trip.
                assert!(clock(newest).wrapping_sub(restored) as i32 >= 0);
            }
        }
    }
    tally.packets += times.len() as u64;
    tally.lost += echoes.iter().filter(|&&echoed| echoed == 0).count() as u64;
    tally.wraps += ((times.last().unwrap() - times[0]) * style.hertz / 1_000_000) >> 16;
}

fn play_many(layout: Layout, longest_pause: u64, deaf: u64, exact: bool) -> Tally {
    let mut rng = seeded();
    let mut tally = Tally::default();
    for n in 0..300 {
        let hertz = [1_000, 250, 100][n % 3];
        // Together the jitters stay below the time between a pause's end and a wrap.
        let jitter = [0, 1_000, 300_000, 2_000_000][n % 4];
        let style = Style { hertz, longest_pause, jitter, deaf, packets: 2_000 };
        play(layout, &style, exact, &mut rng, &mut tally);
    }
    println!("{layout:?}: {tally:?}");
    assert!(tally.wraps > 20_000 && tally.lost > 10_000);
    assert!(tally.overtaken > 1_000 && tally.refused > 1_000);
    tally
}

/// Pauses shorter than a wrap by twice the longest way there and back, 6 s at 1 kHz: the last echo that the
/// balancer has may be an older one that a newer one has overtaken, and while the next echo is on its way, packets
/// go on.
const SHORT: u64 = (1 << 16) - 12_001;

#[test]
fn one_version_bit_over_many_wraps() {
    play_many(Layout::stateless(), SHORT, 0, true);
}

#[test]
fn two_version_bits_over_many_wraps() {
    play_many(Layout::new(2, 4).unwrap(), SHORT, 0, true);
}

/// Of 600,000 packets 15 at most were judged otherwise, or their echoes restored otherwise, in 24
/// runs; a single connection that stays stuck would make it a thousand.
fn hardly_ever_wrong(tally: &Tally) {
    assert!(tally.stalled < 100 && tally.inexact < 100, "{tally:?}");
}

/// Beyond the paper, which needs keep-alives: pauses of up to 16 wraps. What goes wrong are
/// packets that overtake each other across a wrap right after such a pause.
#[test]
fn pauses_of_any_length() {
    for layout in [Layout::stateless(), Layout::new(2, 4).unwrap()] {
        hardly_ever_wrong(&play_many(layout, 1 << 20, 0, false));
    }
}

/// A client that sleeps while its backend goes on sending, for up to eight wraps, takes what it
/// hears again.
#[test]
fn deaf_clients_come_back() {
    for layout in [Layout::stateless(), Layout::new(2, 4).unwrap()] {
        hardly_ever_wrong(&play_many(layout, SHORT, 8 << 16, false));
    }
}

/// The test notices a balancer that forgets the wrap before.
#[test]
fn one_upper_half_would_not_be_enough() {
    let mut rng = seeded();
    let style =
        Style { hertz: 1_000, longest_pause: SHORT, jitter: 2_000_000, deaf: 0, packets: 60_000 };
    let (times, events) = script(&style, &mut rng);
    let clock = |n: usize| (times[n] / 1_000) as u32;
    let (mut upper, mut newest, mut wrong) = (0, 0, 0);
    for (_, event) in events {
        match event {
            Event::Out(n) => {
                upper = clock(n) & 0xffff_0000;
                newest = newest.max(n);
            }
            Event::Back(n) => wrong += u32::from(upper | clock(n) & 0xffff != clock(n)),
            Event::AtClient(_) => {}
        }
    }
    assert!(wrong > 10, "{wrong}");
}
