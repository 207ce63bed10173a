//! What a balancer in the way of the answers remembers of a connection: enough to give the backend its
//! own timestamps back. Where a connection lives the cookie says; this may be lost at any time.

use super::layout::Layout;
use super::repair::Repair;
use crate::method::Answer;

/// A SYN and ACK whose clock is further ahead than this (17 min at 1 kHz) is another connection's.
pub const SAME_CLOCK: u32 = 1 << 20;

/// One connection of a service whose answers pass the balancer, with the layout of stateless
/// cookies. The twin of `bpf/answers.h`.
///
/// It begins with the SYN, which says where its answers will come from; or, where the memory of it was
/// lost, with the next packet that has a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answered {
    number: u16,
    ended: bool,
    /// It counts among the open connections of its backend.
    counted: bool,
    /// What the client echoed before an answer was seen, without the cookie.
    heard: Option<u32>,
    repair: Option<Repair>,
}

impl Answered {
    /// Of a connection at the server with this number.
    pub fn new(number: u16) -> Self {
        Self { number, ended: false, counted: false, heard: None, repair: None }
    }

    /// The same; whether it counts among the open connections of its backend.
    #[must_use]
    pub fn counted(self, counted: bool) -> Self {
        Self { counted, ..self }
    }

    /// The number of its server.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The number of its server, unless it has ended: a SYN that comes now is a repeated one.
    pub fn live(&self) -> Option<u16> {
        (!self.ended).then_some(self.number)
    }

    /// Whether an answer with a timestamp of the backend has passed.
    pub fn is_answered(&self) -> bool {
        self.repair.is_some()
    }

    /// An end has sent FIN or RST. Returns whether it counts no more among the open connections.
    pub fn end(&mut self) -> bool {
        self.ended = true;
        std::mem::take(&mut self.counted)
    }

    /// The TSval that the client must get; `starts`: with the SYN of the backend.
    pub fn outgoing(&mut self, tsval: u32, cookie: u16, starts: bool) -> u32 {
        let foreign = |repair: &Repair| tsval.wrapping_sub(repair.newest()) >= SAME_CLOCK;
        if starts && self.repair.as_ref().is_some_and(foreign) {
            (self.repair, self.heard) = (None, None);
        }
        let layout = Layout::stateless();
        let heard = self.heard;
        let repair = self.repair.get_or_insert_with(|| match heard {
            None => Repair::new(layout, tsval),
            Some(heard) => Repair::resumed(layout, heard, tsval),
        });
        repair.outgoing(tsval, cookie)
    }

    /// The TSecr that the backend must get: 0, which says nothing, if its clock is not known.
    pub fn incoming(&mut self, tsecr: u32) -> u32 {
        match &mut self.repair {
            Some(repair) => repair.incoming(tsecr),
            None => {
                self.heard = Some(tsecr & 0x8000_ffff);
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: u16 = 0x1234;

    fn later(a: u32, b: u32) -> bool {
        a.wrapping_sub(b) as i32 > 0
    }

    #[test]
    fn a_connection_gets_its_timestamps_back() {
        let mut one = Answered::new(7);
        assert_eq!(one.live(), Some(7));
        let stamp = one.outgoing(0xdead_fff0, COOKIE, true);
        assert_eq!(stamp, u32::from(COOKIE) << 16 | 0xfff0);
        assert_eq!(one.incoming(stamp), 0xdead_fff0);
        let next = one.outgoing(0xdeae_0010, COOKIE, false);
        assert!(later(next, stamp));
        assert_eq!((one.incoming(next), one.incoming(stamp)), (0xdeae_0010, 0xdead_fff0));
        one.end();
        assert_eq!((one.live(), one.number()), (None, 7));
    }

    /// Whatever the client had before the memory was lost, the next answer is not older for it, and what
    /// it echoes of that is restored.
    #[test]
    fn a_lost_memory_heals_with_the_clients_next_packet() {
        for start in [0x0001_0000u32, 0x7fff_ff00, 0xabcd_fff0] {
            for pause in [1, 200, 40_000, 70_000, 1 << 20] {
                let mut one = Answered::new(3);
                let before = one.outgoing(start, COOKIE, true);
                let mut one = Answered::new(3);
                assert_eq!(one.incoming(before), 0, "nothing is known of it");
                let tsval = start.wrapping_add(pause);
                let after = one.outgoing(tsval, COOKIE, false);
                assert!(later(after, before) || after == before, "{start:#x} {pause}");
                assert_eq!(one.incoming(after), tsval);
            }
        }
    }

    /// A new connection on old ports, at a host with another clock.
    #[test]
    fn a_syn_of_another_clock_begins_anew() {
        let mut one = Answered::new(3);
        one.outgoing(0x8000_0000, COOKIE, true);
        let repeated = one.outgoing(0x8000_0400, COOKIE, true);
        assert_eq!(one.incoming(repeated), 0x8000_0400);
        let other = one.outgoing(0x1000_0000, COOKIE, true);
        assert_eq!(one.incoming(other), 0x1000_0000);
    }
}
