//! Packets in pieces: some lost, late, twice, of another packet with the same identification, or damaged.

use super::World;
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use weir_plane::Outcome;
use weir_wire::craft::{self, Frame};
use weir_wire::{FlowKey, TcpFlags, fragment};

impl World {
    /// One of the fragments that are on their way.
    pub fn fragment(&mut self) -> Vec<u8> {
        while self.fragments.len() < 8 || self.rng.random_bool(0.1) {
            self.send_in_fragments();
        }
        let at = self.rng.random_range(0..self.fragments.len());
        let mut frame = if self.rng.random_bool(0.1) {
            self.fragments[at].clone()
        } else {
            self.fragments.remove(at)
        };
        if self.rng.random_bool(0.02) && frame[12..14] == [0x86, 0xdd] {
            self.extend(&mut frame);
        }
        if self.rng.random_bool(0.1) {
            self.damage(&mut frame);
        }
        frame
    }

    /// Now and then to a port of nobody's at a service's address.
    fn send_in_fragments(&mut self) {
        let mut flow = self.flow();
        if self.rng.random_bool(0.2) {
            flow = FlowKey { dst_port: self.rng.random(), ..flow };
        }
        let flags = *[TcpFlags::SYN, TcpFlags::ACK, TcpFlags::ACK].choose(&mut self.rng).unwrap();
        let mut whole =
            Frame::new(flow).tcp_flags(flags).payload(self.rng.random_range(0..300)).build();
        self.add_options(&flow, &mut whole);
        let id = self.rng.random_range(0..200u32) << 20 | self.rng.random_range(0..50);
        let bytes = *[8, 16, 24, 64, 128, 256].choose(&mut self.rng).unwrap();
        let mut parts = craft::fragments(&whole, id, bytes);
        parts.truncate(5);
        if self.rng.random_bool(0.3) {
            parts.shuffle(&mut self.rng);
        }
        if self.rng.random_bool(0.2) {
            parts.remove(0);
        }
        self.fragments.extend(parts);
        let surplus = self.fragments.len().saturating_sub(32);
        self.fragments.drain(..surplus);
    }

    /// What became of a later fragment.
    pub fn count_followed(&mut self, frame: &[u8], outcome: Outcome) {
        let later = fragment(frame).is_some_and(|part| part.key.id != 0 && part.packet.is_err());
        if !later {
            return;
        }
        let what = match outcome {
            Outcome::Returned => "returned",
            Outcome::Forwarded(_) => "forwarded",
            Outcome::Passed(_) => "passed",
            Outcome::Dropped(_) => "dropped",
        };
        *self.followed.entry(what).or_default() += 1;
    }
}
