//! A client: draws contents, asks for them, and judges every answer.

use super::truth::{Fact, NOWHERE, Truth, Verdict};
use super::wire::{LONGEST, put_query, read_answer};
use crate::Result;
use crate::error::Context;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_fib::{ContentName, FibKey};

/// Datagrams under way.
const WINDOW: usize = 4;

/// One name in so many is of no content.
const ALIENS: u32 = 20;

/// How long an answer may take. (Nothing is lost on the loopback device with so few under way, so
/// this long a wait is a lost answer.)
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub datagrams: u64,
    pub right: u64,
    pub in_flight: u64,
    pub unchecked: u64,
    pub absent: u64,
    pub wrong: u64,
    pub lost: u64,
    pub aliens: u64,
    pub aliens_answered: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.datagrams += other.datagrams;
        self.right += other.right;
        self.in_flight += other.in_flight;
        self.unchecked += other.unchecked;
        self.absent += other.absent;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.aliens += other.aliens;
        self.aliens_answered += other.aliens_answered;
    }

    /// Names that were answered.
    pub fn answered(&self) -> u64 {
        self.right + self.in_flight + self.unchecked + self.absent + self.wrong + self.aliens
    }

    fn judge(&mut self, asked: Asked, truth: &Truth, answer: u16) {
        let Some((content, before)) = asked else {
            self.aliens += 1;
            self.aliens_answered += u64::from(answer != NOWHERE);
            return;
        };
        match Verdict::of(before, truth.get(content), answer) {
            Verdict::Right => self.right += 1,
            Verdict::RightInFlight => self.in_flight += 1,
            Verdict::Unchecked => self.unchecked += 1,
            Verdict::Absent => self.absent += 1,
            Verdict::Wrong => self.wrong += 1,
        }
    }
}

/// A content and what was known of it when it was asked for; an alien name is none.
type Asked = Option<(usize, Fact)>;

pub fn run(
    server: SocketAddr,
    truth: &Truth,
    batch: usize,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Tally> {
    let socket = UdpSocket::bind("127.0.0.1:0").context("a client's socket")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut window: Vec<(u32, Vec<Asked>)> = vec![(0, Vec::new()); WINDOW];
    let (mut tally, mut number) = (Tally::default(), 0u32);
    let (mut query, mut answer, mut found) = (Vec::new(), [0u8; LONGEST], Vec::new());
    while !stop.load(Ordering::Relaxed) {
        for (id, asked) in &mut window {
            number = number.wrapping_add(1);
            (*id, _) = (number, asked.clear());
            let names = (0..batch).map(|_| draw(truth, &mut rng, asked));
            put_query(number, names, &mut query);
            socket.send(&query).context("sending a query")?;
        }
        let mut missing = window.len();
        while missing > 0 {
            let bytes = match socket.recv(&mut answer) {
                Ok(bytes) => bytes,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    tally.lost += missing as u64;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error).context("receiving an answer")?,
            };
            let id = read_answer(&answer[..bytes], &mut found);
            let Some((_, asked)) = window.iter().find(|(sent, _)| Some(*sent) == id) else {
                continue;
            };
            missing -= 1;
            tally.datagrams += 1;
            tally.wrong += asked.len().abs_diff(found.len()) as u64;
            for (&asked, &found) in asked.iter().zip(&found) {
                tally.judge(asked, truth, found);
            }
        }
    }
    Ok(tally)
}

/// A name, and what is known of it.
fn draw(truth: &Truth, rng: &mut ChaCha8Rng, asked: &mut Vec<Asked>) -> ContentName {
    if rng.random_ratio(1, ALIENS) {
        asked.push(None);
        return ContentName::any(1, 1 << 32, rng);
    }
    let content = rng.random_range(0..truth.len());
    asked.push(Some((content, truth.get(content))));
    ContentName::numbered(0, content as u64)
}
