//! The backend gets its own timestamps back (paper, appendix C).

use super::layout::{FIELD_BITS, Layout};
use crate::method::Answer;

/// Versions that two bits can name.
const MAX_VERSIONS: usize = 4;
/// Ticks without an echo after which a client counts as deaf: 8 s at 1 kHz, longer than any round
/// trip and much shorter than a wrap.
pub const PATIENCE: u32 = 1 << 13;

/// The upper halves of one connection's timestamps, which the cookie displaces.
///
/// [`outgoing`](Self::outgoing) takes the backend's TSval, notes its upper half under a version
/// number and writes version and cookie in its place; [`incoming`](Self::incoming) takes the
/// client's TSecr and puts the upper half back that its version names.
///
/// A *wrap* is 65,536 ticks, 65.5 s at 1 kHz. While less than a wrap passes from a packet that the
/// client has echoed last to the echo of a later one, also where echoes overtake each other:
///
/// * PAWS (RFC 7323 section 5) accepts and refuses what it would of the original timestamps.
/// * Every echo is restored exactly.
///
/// Beyond that, for pauses of any length and clients that hear nothing for any time: PAWS accepts
/// the next packet, but for rare coincidences (a packet overtaken across a wrap right after the
/// pause; a wrap within the round trip that ends the silence), which end after 8,192 ticks without
/// a new echo. An echo from before may be restored as a younger one. A restored timestamp is never
/// newer than the newest that was sent.
///
/// One per connection: Linux gives each connection a clock offset of its own, so that the paper's
/// one per server would mix up connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repair {
    layout: Layout,
    /// The newest timestamp of the backend.
    newest: u32,
    /// The last echo, as it was sent but without the cookie: what the client is known to have.
    heard: u32,
    /// The first timestamp of the backend since then.
    unheard: Option<u32>,
    version: u8,
    uppers: [u16; MAX_VERSIONS],
}

impl Repair {
    /// For a connection whose backend sends `first` as its first TSval.
    pub fn new(layout: Layout, first: u32) -> Self {
        let heard = layout.versioned(0, 0, first as u16);
        let uppers = [0; MAX_VERSIONS];
        let mut repair = Self { layout, newest: first, heard, unheard: None, version: 0, uppers };
        // As if the clock had run for long: a packet that was sent before the first one we see
        // and comes after it may belong to the wrap before.
        for age in 0..repair.versions() {
            let version = repair.version_before(age);
            repair.uppers[usize::from(version)] = upper(first).wrapping_sub(u16::from(age));
        }
        repair
    }

    /// For a connection whose past is lost but for the last echo, without the cookie: `first` is the
    /// next TSval, and newer for the client than what it has.
    pub(super) fn resumed(layout: Layout, heard: u32, first: u32) -> Self {
        let mut repair = Self::new(layout, first);
        let last = layout.split(heard);
        repair.heard = heard;
        repair.version = repair.version_after(last.version, last.low, first as u16);
        for age in 0..repair.versions() {
            let version = repair.version_before(age);
            repair.uppers[usize::from(version)] = upper(first).wrapping_sub(u16::from(age));
        }
        repair
    }

    /// The newest timestamp of the backend.
    pub(super) fn newest(&self) -> u32 {
        self.newest
    }

    /// A newer timestamp than all before: gives it a version under which it is also newer for the
    /// client.
    fn advance(&mut self, tsval: u32) {
        let low = tsval as u16;
        let mut version = self.version;
        if upper(tsval) != self.uppers[usize::from(version)] {
            version = self.version_after(version, self.newest as u16, low);
        }
        let deaf = tsval.wrapping_sub(*self.unheard.get_or_insert(tsval)) >= PATIENCE;
        if deaf && is_later(self.heard, self.layout.versioned(version, 0, low)) {
            // The versions have gone round behind the client's back.
            let heard = self.layout.split(self.heard);
            version = self.version_after(heard.version, heard.low, low);
        }
        self.uppers[usize::from(version)] = upper(tsval);
        self.version = version;
        self.newest = tsval;
    }

    /// The version of another upper half that follows a packet of `version` and `before`.
    ///
    /// With one version bit the next version is half of the circle ahead, plus the change of the
    /// lower half. If that has grown, the pause was longer than a wrap, the sum is more than half
    /// a circle, and PAWS would see an old packet; but within the same version the grown lower
    /// half is newer. (The paper sends keep-alives to avoid such pauses.)
    fn version_after(&self, version: u8, before: u16, low: u16) -> u8 {
        let next = self.versions() > 2 || low < before;
        (version + u8::from(next)) % self.versions()
    }

    /// Notes what the client has. It is believed whatever it says: a wrong echo, or one that was
    /// overtaken, lasts until the next one, and the same one again is no news.
    fn hear(&mut self, echo: u32) {
        if echo != self.heard {
            self.heard = echo;
            self.unheard = None;
        }
    }

    /// The version of a packet that was overtaken: the one that has its upper half. If none has it
    /// any more, the oldest, so that the packet looks old.
    fn version_of_late(&self, upper: u16) -> u8 {
        (0..self.versions())
            .map(|age| self.version_before(age))
            .find(|&version| self.uppers[usize::from(version)] == upper)
            .unwrap_or_else(|| self.version_before(self.versions() - 1))
    }

    /// The version used `age` versions ago.
    fn version_before(&self, age: u8) -> u8 {
        (self.version + self.versions() - age) % self.versions()
    }

    /// 2 or 4.
    fn versions(&self) -> u8 {
        1 << self.layout.version_bits()
    }
}

/// Later in the sense of PAWS.
impl Answer for Repair {
    fn outgoing(&mut self, tsval: u32, cookie: u16) -> u32 {
        let behind = self.newest.wrapping_sub(tsval);
        let version = if behind < u32::from(self.versions()) << FIELD_BITS {
            self.version_of_late(upper(tsval))
        } else {
            self.advance(tsval);
            self.version
        };
        self.layout.versioned(version, cookie, tsval as u16)
    }

    fn incoming(&mut self, tsecr: u32) -> u32 {
        let parts = self.layout.split(tsecr);
        self.hear(self.layout.versioned(parts.version, 0, parts.low));
        let upper = u32::from(self.uppers[usize::from(parts.version)]);
        let restored = upper << FIELD_BITS | u32::from(parts.low);
        if is_later(restored, self.newest) {
            // Not sent yet, so this is the same version's use before: all versions ago.
            restored.wrapping_sub(u32::from(self.versions()) << FIELD_BITS)
        } else {
            restored
        }
    }
}

fn is_later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

fn upper(timestamp: u32) -> u16 {
    (timestamp >> FIELD_BITS) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts() -> [Layout; 3] {
        [Layout::stateless(), Layout::stateful(), Layout::new(2, 6).unwrap()]
    }

    /// A packet each second for an hour, from the offsets where something could go wrong.
    #[test]
    fn fifty_wraps_in_a_row() {
        for layout in layouts() {
            for start in [0, 0xffff, 0x7fff_ff00, 0x8000_0000, 0xffff_0001, u32::MAX] {
                let mut repair = Repair::new(layout, start);
                let mut last = None;
                for tick in 0..3_600u32 {
                    let tsval = start.wrapping_add(tick * 1_000);
                    let sent = repair.outgoing(tsval, 0x2bcd);
                    assert_eq!(repair.incoming(sent), tsval, "{layout:?} {start:#x} {tick}");
                    assert_eq!(sent as u16, tsval as u16);
                    assert!(last.is_none_or(|last| is_later(sent, last)));
                    last = Some(sent);
                }
            }
        }
    }

    #[test]
    fn a_wrap_toggles_the_top_bit_and_keeps_both_halves_of_the_memory() {
        let mut repair = Repair::new(Layout::stateless(), 0x0007_fff0);
        let before = repair.outgoing(0x0007_fff0, 0x1234);
        let after = repair.outgoing(0x0008_0010, 0x1234);
        assert_eq!((before, after), (0x1234_fff0, 0x9234_0010));
        assert_eq!((repair.incoming(before), repair.incoming(after)), (0x0007_fff0, 0x0008_0010));
        // One that was overtaken by the wrap.
        assert_eq!(repair.outgoing(0x0007_fffe, 0x1234), 0x1234_fffe);
        assert_eq!(repair.incoming(0x1234_fffe), 0x0007_fffe);
        assert_eq!(repair.incoming(after), 0x0008_0010);
    }

    #[test]
    fn the_first_packet_may_have_been_overtaken_by_a_wrap() {
        for layout in layouts() {
            let mut repair = Repair::new(layout, 0x0001_0003);
            let second = repair.outgoing(0x0001_0003, 5);
            let first = repair.outgoing(0x0000_fff0, 5);
            assert!(is_later(second, first));
            assert_eq!((repair.incoming(first), repair.incoming(second)), (0xfff0, 0x0001_0003));
        }
    }

    /// Pauses of any length, in particular those that the paper forbids.
    #[test]
    fn a_pause_never_makes_the_next_packet_old() {
        for layout in layouts() {
            for start in [5, 0x8000_fff0u32] {
                for pause in (1..400_000).step_by(331).chain([1 << 24, 1 << 30, (1 << 31) - 1]) {
                    let mut repair = Repair::new(layout, start);
                    let before = repair.outgoing(start, 77);
                    assert_eq!(repair.incoming(before), start);
                    let tsval = start.wrapping_add(pause);
                    let after = repair.outgoing(tsval, 77);
                    assert!(is_later(after, before) || after == before, "{layout:?} {pause}");
                    assert_eq!(repair.incoming(after), tsval);
                    assert!(!is_later(repair.incoming(before), tsval));
                    if layout.version_bits() == 2 {
                        assert_eq!(repair.incoming(before), start);
                    }
                }
            }
        }
    }

    #[test]
    fn more_than_24_days_of_silence_do_not_freeze_it() {
        for pause in [1 << 31, 0xc000_0000, 0xfff0_0000u32] {
            let mut repair = Repair::new(Layout::stateless(), 9);
            repair.outgoing(9, 3);
            let tsval = 9u32.wrapping_add(pause);
            let sent = repair.outgoing(tsval, 3);
            assert_eq!(repair.incoming(sent), tsval);
        }
    }

    /// Also one that was never sent: it is not restored to the future.
    #[test]
    fn every_echo_is_answered() {
        for newest in [0x0005_8000, 0x8000_0000, u32::MAX] {
            let mut repair = Repair::new(Layout::new(2, 0).unwrap(), newest);
            for version in 0..4 {
                for low in [0, 1, 0x8000, 0xffff] {
                    let restored = repair.incoming(version << 30 | low);
                    assert!(!is_later(restored, newest), "{newest:#x} {version} {low:#x}");
                }
            }
        }
    }
}
