//! What a run of the switch tells.

use super::node::Tally;
use super::ports::{Kind, Reason};
use crate::{Report, SwitchFib, SwitchKeys};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a network of switches did while its hosts moved.
#[derive(Serialize)]
pub struct SwitchReport {
    pub(super) fib: SwitchFib,
    pub(super) key: SwitchKeys,
    pub(super) seed: u64,
    pub(super) nodes: u16,
    pub(super) hosts: u16,
    pub(super) keys: usize,
    pub(super) seconds: f64,
    /// What frames are received and sent by, and why it is not AF_XDP if it was asked for first.
    pub(super) sockets: Kind,
    pub(super) fallback: Option<String>,
    pub(super) moves: u64,
    pub(super) updates: u64,
    pub(super) messages: u64,
    pub(super) message_bytes: f64,
    #[serde(flatten)]
    pub(super) frames: Frames,
    pub(super) fib_bytes_per_node: f64,
    pub(super) bits_per_key: f64,
    pub(super) control_bytes: usize,
    pub(super) frame_bytes_per_node: f64,
    pub(super) pings: u64,
    pub(super) pings_answered: u64,
    pub(super) streams: usize,
    pub(super) stream_bytes: u64,
    pub(super) broken_streams: Vec<String>,
    /// Lookups of all keys at all nodes after the last change, and how many were wrong.
    pub(super) checked_at_end: u64,
    pub(super) wrong_at_end: u64,
    pub(super) interrupted: bool,
}

/// What became of frames.
#[derive(Serialize, Default)]
pub struct Frames {
    /// Frames that nodes received; a frame counts at each node on its way.
    pub frames: u64,
    pub forwarded: u64,
    pub forwarded_per_s: f64,
    /// Frames that waited at a node while their host was moving.
    pub held: u64,
    /// Frames to group addresses: they are the kernel's.
    pub group: u64,
    /// Frames dropped, by reason; all reasons are there.
    pub drops: BTreeMap<&'static str, u64>,
    /// Frames received that were neither forwarded nor dropped.
    pub unaccounted: i64,
    pub lookups: u64,
    pub lost: u64,
    pub misdirected: u64,
    pub aliens: u64,
    pub bad_messages: u64,
}

impl Frames {
    pub fn of(tally: &Tally, seconds: f64) -> Self {
        let drops = Reason::ALL.iter().map(|&reason| (reason.name(), tally.drops.get(reason)));
        Self {
            frames: tally.frames,
            forwarded: tally.forwarded,
            forwarded_per_s: tally.forwarded as f64 / seconds,
            held: tally.held,
            group: tally.group,
            drops: drops.collect(),
            unaccounted: tally.unaccounted(),
            lookups: tally.lookups,
            lost: tally.lost,
            misdirected: tally.misdirected,
            aliens: tally.aliens,
            bad_messages: tally.bad_messages,
        }
    }

    /// Whether lookups were right and every frame is accounted for.
    pub fn held_up(&self) -> bool {
        self.lost + self.misdirected + self.bad_messages == 0
            && self.unaccounted == 0
            && self.lookups > 0
    }

    /// The reasons that there were, in words.
    pub fn dropped(&self) -> String {
        let some = self.drops.iter().filter(|(_, frames)| **frames > 0);
        let some: Vec<String> = some.map(|(name, frames)| format!("{name} {frames}")).collect();
        if some.is_empty() { "none".into() } else { some.join(", ") }
    }
}

impl Report for SwitchReport {
    fn held(&self) -> bool {
        self.frames.held_up()
            && self.wrong_at_end == 0
            && self.broken_streams.is_empty()
            && self.pings_answered > 0
            && !self.interrupted
    }

    fn text(&self) -> String {
        let frames = &self.frames;
        let mut text = format!(
            "{:?} by {}: {} nodes, {} hosts, {} keys, {} over {:.1} s, WEIR_SEED={}\n\
             {} moves of hosts, {} updates, {} messages of {:.1} bytes\n\
             FIB {:.1} KB per node ({:.2} bits per key), control plane {:.2} MB, \
             frames {:.1} MB per node\n\
             {} frames, {} forwarded ({:.0}/s), {} held while their host was moving\n\
             dropped: {}\n\
             {} lookups of valid keys: {} lost, {} misdirected; {} alien keys\n\
             {} lookups at the end, {} wrong; {} messages refused\n\
             {} of {} pings answered; {} TCP streams, {:.1} MB, {} broken",
            self.fib,
            self.key.name(),
            self.nodes,
            self.hosts,
            self.keys,
            self.sockets.name(),
            self.seconds,
            self.seed,
            self.moves,
            self.updates,
            self.messages,
            self.message_bytes,
            self.fib_bytes_per_node / 1e3,
            self.bits_per_key,
            self.control_bytes as f64 / 1e6,
            self.frame_bytes_per_node / 1e6,
            frames.frames,
            frames.forwarded,
            frames.forwarded_per_s,
            frames.held,
            frames.dropped(),
            frames.lookups,
            frames.lost,
            frames.misdirected,
            frames.aliens,
            self.checked_at_end,
            self.wrong_at_end,
            frames.bad_messages,
            self.pings_answered,
            self.pings,
            self.streams,
            self.stream_bytes as f64 / 1e6,
            self.broken_streams.len(),
        );
        for broken in &self.broken_streams {
            text += &format!("\n  {broken}");
        }
        text
    }
}
