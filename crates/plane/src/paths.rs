//! What routers on the way to backends behind tunnels have said of its MTU.

use std::collections::HashMap;
use weir_wire::icmp::TooBig;

/// What was said holds so long, in nanoseconds: RFC 1191 section 6.3, RFC 8201 section 4.
pub const PATH_NANOSECONDS: u64 = 600_000_000_000;

/// The MTUs of ways, by the address that they lead to. The twin of `bpf/path_mtu.h`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Paths {
    known: HashMap<[u8; 16], (u64, u32)>,
}

impl Paths {
    /// Takes what a router says at this time, in nanoseconds. An MTU is only ever lowered, until it is
    /// too old.
    pub fn learn(&mut self, said: &TooBig, now: u64) {
        let known = self.known.get(&said.to);
        let lower = |&(since, mtu): &(u64, u32)| {
            mtu < said.mtu && now.wrapping_sub(since) < PATH_NANOSECONDS
        };
        if !known.is_some_and(lower) {
            self.known.insert(said.to, (now, said.mtu));
        }
    }

    /// The MTU of a way at this time, which is otherwise known to be `mtu`; 0: not known.
    pub fn lower(&self, to: &[u8; 16], mtu: u32, now: u64) -> u32 {
        match self.known.get(to) {
            Some((since, said)) if now.wrapping_sub(*since) < PATH_NANOSECONDS => {
                if mtu == 0 {
                    *said
                } else {
                    mtu.min(*said)
                }
            }
            _ => mtu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_lowered_for_ten_minutes() {
        let to = [7; 16];
        let said = |mtu| TooBig { to, mtu };
        let mut paths = Paths::default();
        assert_eq!(paths.lower(&to, 1500, 9), 1500);
        paths.learn(&said(1400), 10);
        assert_eq!([1500, 0, 1300].map(|mtu| paths.lower(&to, mtu, 11)), [1400, 1400, 1300]);
        assert_eq!(paths.lower(&[8; 16], 1500, 11), 1500, "another backend's way");
        paths.learn(&said(1450), 12);
        assert_eq!(paths.lower(&to, 1500, 13), 1400, "nobody raises it");
        paths.learn(&said(1300), 14);
        let age = 14 + PATH_NANOSECONDS;
        assert_eq!(paths.lower(&to, 1500, age - 1), 1300);
        assert_eq!(paths.lower(&to, 1500, age), 1500);
        paths.learn(&said(1450), age);
        assert_eq!(paths.lower(&to, 1500, age), 1450);
    }
}
