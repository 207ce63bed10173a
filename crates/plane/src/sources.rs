//! The sources that a service takes packets from: prefixes that allow or deny, of which the longest one
//! that an address has decides; and the table that packets walk, made of them.
//!
//! What the prefixes say is a function from addresses to yes or no, so the table has nothing but the places
//! where it changes. Sixty-four answers stand in a node of two words. The first bits of an address choose
//! one of the first nodes, of which there are so many that nearly every address finds its answer there,
//! with one read; the others go on by six bits a node, and over bits in which nothing is decided at once
//! ([`SourceTable`]). `docs/lists.md` has the picture. The BPF program walks the same words
//! (`bpf/sources.h`).

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use weir_wire::unmap_address;

/// Bits of an address that a node decides.
pub const SOURCE_STRIDE: u32 = 6;
/// Bits that are passed over at once, at most.
const MOST_SKIPPED: u32 = 60;
/// Nodes that an address passes, at most.
pub const SOURCE_STEPS: u32 = 22;
/// Where a passing node has the answer for addresses that differ in the bits passed over.
pub const SOURCE_OTHERS_ALLOWED: u64 = 1 << 8;
/// Bytes of a table for each prefix, with room: a host of IPv6 takes two nodes and two that pass over bits.
pub const BYTES_PER_PREFIX: usize = 96;

/// A prefix of IPv4 or of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    v6: bool,
    /// The address, its first bit on top.
    bits: u128,
    length: u8,
}

/// Why a text is no prefix.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrefixError {
    /// It is neither an address nor an address with a length.
    #[error("{0:?} is no prefix")]
    NoPrefix(String),
    /// There are no such lengths.
    #[error("{0:?}: a prefix of this family has 0 to {1} bits")]
    Length(String, u8),
    /// Bits behind the prefix are set.
    #[error("{0:?} has bits behind its {1} bits")]
    Behind(String, u8, Prefix),
    /// An IPv4 address as one of IPv6: no packet has it for a source.
    #[error("{0:?} is an IPv4 prefix in IPv6 form")]
    Mapped(String, Option<Prefix>),
}

impl PrefixError {
    /// What would be right.
    pub fn right(&self) -> String {
        match self {
            Self::Behind(_, _, right) | Self::Mapped(_, Some(right)) => format!("write {right}"),
            Self::Mapped(_, None) => "write it as IPv4, such as 192.0.2.0/24".into(),
            Self::NoPrefix(_) | Self::Length(..) => {
                "give one such as 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7".into()
            }
        }
    }
}

impl Prefix {
    /// Of an address and a length; bits behind it do not count. `None` if the address has fewer bits.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let (v6, bits, most) = match address {
            IpAddr::V4(v4) => (false, u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (true, v6.to_bits(), 128),
        };
        (length <= most).then(|| Self { v6, bits: bits & mask(length), length })
    }

    /// Whether an address has it, IPv4 mapped.
    pub fn contains(&self, address: &[u8; 16]) -> bool {
        let (v6, bits) = bits_of(address);
        self.v6 == v6 && bits & mask(self.length) == self.bits
    }

    /// Its first address and its mask, of addresses that are IPv4 mapped, as words that stand in memory as the
    /// bytes on the wire do.
    pub fn words(&self) -> ([u64; 2], [u64; 2]) {
        let words = |bits: u128| {
            let bytes = bits.to_be_bytes();
            let word = |at| bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
            [word(0), word(8)]
        };
        match self.v6 {
            true => (words(self.bits), words(mask(self.length))),
            false => (words(self.bits >> 96 | 0xffff << 32), words(mask(self.length + 96))),
        }
    }

    /// Whether it is of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.v6
    }

    /// The last address of it, in the same form as `bits`.
    fn last(&self) -> u128 {
        self.bits | !mask(self.length)
    }

    /// Shorter ones before longer ones that they contain.
    fn order(&self, other: &Self) -> Ordering {
        (self.v6, self.bits, self.length).cmp(&(other.v6, other.bits, other.length))
    }
}

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// The family of an address, and its bits with the first one on top.
fn bits_of(address: &[u8; 16]) -> (bool, u128) {
    match unmap_address(address) {
        IpAddr::V4(v4) => (false, u128::from(v4.to_bits()) << 96),
        IpAddr::V6(v6) => (true, v6.to_bits()),
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let no_prefix = || PrefixError::NoPrefix(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| no_prefix())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => most,
            // No signs, and no zeros in front.
            Some(digits) if digits.len() > 1 && digits.starts_with('0') => return Err(no_prefix()),
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let length = digits.parse().ok().filter(|length| *length <= most);
                length.ok_or_else(|| PrefixError::Length(text.to_owned(), most))?
            }
            Some(_) => return Err(no_prefix()),
        };
        let whole = Self::new(address, most).ok_or_else(no_prefix)?;
        let prefix = Self::new(address, length).ok_or_else(no_prefix)?;
        if let IpAddr::V6(v6) = address
            && let Some(v4) = v6.to_ipv4_mapped()
        {
            let right = length.checked_sub(96).and_then(|length| Self::new(v4.into(), length));
            return Err(PrefixError::Mapped(text.to_owned(), right));
        }
        if whole.bits != prefix.bits {
            return Err(PrefixError::Behind(text.to_owned(), length, prefix));
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address: IpAddr = match self.v6 {
            false => Ipv4Addr::from_bits((self.bits >> 96) as u32).into(),
            true => Ipv6Addr::from_bits(self.bits).into(),
        };
        write!(f, "{address}/{}", self.length)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prefixes that allow and that deny, with what they mean together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sources {
    /// Each once, with whether it allows; those that contain others before them.
    rules: Vec<(Prefix, bool)>,
    /// What holds for an address that no prefix has.
    denies_others: bool,
}

impl Sources {
    /// Of prefixes, each with whether it allows; one that is there twice counts once. Where any allows, an
    /// address that no prefix has is denied.
    ///
    /// # Errors
    /// A prefix that is there with both.
    pub fn new(rules: impl IntoIterator<Item = (Prefix, bool)>) -> Result<Self, Prefix> {
        let mut rules: Vec<_> = rules.into_iter().collect();
        rules.sort_by(|(a, _), (b, _)| a.order(b));
        rules.dedup();
        if let Some(pair) = rules.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(pair[0].0);
        }
        let denies_others = rules.iter().any(|(_, allows)| *allows);
        Ok(Self { rules, denies_others })
    }

    /// The same with others over them, each prefix once, with whether it allows: what is said of one here counts.
    /// An address that no prefix has is taken or denied as before, so one that allows is an exception and no more.
    #[must_use]
    pub fn with(&self, over: &[(Prefix, bool)]) -> Self {
        let said: HashSet<Prefix> = over.iter().map(|(prefix, _)| *prefix).collect();
        let stays = self.rules.iter().filter(|(prefix, _)| !said.contains(prefix));
        let mut rules: Vec<_> = stays.chain(over).copied().collect();
        rules.sort_by(|(a, _), (b, _)| a.order(b));
        Self { rules, denies_others: self.denies_others }
    }

    /// How many prefixes allow, and how many deny.
    pub fn counts(&self) -> (usize, usize) {
        let allow = self.rules.iter().filter(|(_, allows)| *allows).count();
        (allow, self.rules.len() - allow)
    }

    /// The prefixes, each with whether it allows.
    pub fn rules(&self) -> impl Iterator<Item = (Prefix, bool)> + '_ {
        self.rules.iter().copied()
    }

    /// The prefix that decides on an address, IPv4 mapped; and whether the address is allowed. It looks at
    /// every prefix: packets ask a [`SourceTable`].
    pub fn decide(&self, address: &[u8; 16]) -> (Option<Prefix>, bool) {
        let having = self.rules.iter().filter(|(prefix, _)| prefix.contains(address));
        match having.max_by_key(|(prefix, _)| prefix.length) {
            Some((prefix, allows)) => (Some(*prefix), *allows),
            None => (None, !self.denies_others),
        }
    }

    /// What packets walk.
    pub fn table(&self) -> SourceTable {
        let mut made = Maker { nodes: Vec::new(), children: Vec::new() };
        let (_, shift4) = made.family(&self.changes(false));
        let (root6, shift6) = made.family(&self.changes(true));
        SourceTable { nodes: made.nodes, children: made.children, root6, shift4, shift6 }
    }

    /// Where the answer changes among the addresses of a family.
    fn changes(&self, v6: bool) -> Changes {
        let mut said: Vec<(u128, bool)> = Vec::new();
        let mut around: Vec<(u128, bool)> = Vec::new();
        let otherwise = !self.denies_others;
        let ends = |around: &mut Vec<(u128, bool)>, said: &mut Vec<(u128, bool)>| {
            let Some((last, _)) = around.pop() else { return };
            let outer = around.last().map_or(otherwise, |(_, allows)| *allows);
            said.extend(last.checked_add(1).map(|next| (next, outer)));
        };
        for (prefix, allows) in self.rules.iter().filter(|(prefix, _)| prefix.v6 == v6) {
            while around.last().is_some_and(|(last, _)| *last < prefix.bits) {
                ends(&mut around, &mut said);
            }
            said.push((prefix.bits, *allows));
            around.push((prefix.last(), *allows));
        }
        while !around.is_empty() {
            ends(&mut around, &mut said);
        }
        let mut changes = Changes { first: otherwise, at: Vec::new() };
        let mut now = otherwise;
        for (position, (at, allows)) in said.iter().enumerate() {
            // Of what is said of one place, the last counts.
            if said.get(position + 1).is_some_and(|(next, _)| next == at) || now == *allows {
                continue;
            }
            now = *allows;
            match at {
                0 => changes.first = now,
                _ => changes.at.push(*at),
            }
        }
        changes
    }
}

/// The answer for the first address, and the addresses from which on it is the other one.
struct Changes {
    first: bool,
    at: Vec<u128>,
}

/// A part of the addresses: those that begin like `first`, whose bits behind `depth` are 0.
#[derive(Clone, Copy)]
struct Part<'a> {
    first: u128,
    depth: u32,
    /// The answer for the first of them.
    allowed: bool,
    /// Where the answer changes behind the first one.
    at: &'a [u128],
}

impl<'a> Part<'a> {
    fn last(&self) -> u128 {
        self.first | !mask(self.depth as u8)
    }

    /// The part of it that begins at `first` and has `depth` bits in common.
    fn inner(&self, first: u128, depth: u32) -> Self {
        let before = self.at.partition_point(|at| *at <= first);
        let last = first | !mask(depth as u8);
        let behind = self.at.partition_point(|at| *at <= last);
        let allowed = self.allowed ^ !before.is_multiple_of(2);
        Part { first, depth, allowed, at: &self.at[before..behind] }
    }

    /// How many bits can be passed over at once, since all addresses that differ in them have one answer;
    /// and that answer.
    fn skips(&self) -> (u32, bool) {
        let [begin, end] = match self.at {
            [] => return (0, self.allowed),
            [one] => [*one, *one],
            [first, .., last] => [*first, *last],
        };
        let bits = |from: u128, to: u128| {
            let common = (from ^ to).leading_zeros();
            // The node behind them must decide something.
            let most = common.saturating_sub(1).saturating_sub(self.depth).min(MOST_SKIPPED);
            most / SOURCE_STRIDE * SOURCE_STRIDE
        };
        if self.at.len().is_multiple_of(2) {
            return (bits(begin, end - 1), self.allowed);
        }
        let (early, late) = (bits(self.first, end - 1), bits(begin, self.last()));
        if early > late { (early, !self.allowed) } else { (late, self.allowed) }
    }
}

/// What packets walk to find whether their source is allowed.
///
/// A node is two words, of which bit *i* is about addresses whose next six bits are *i*: of the first word,
/// whether there is more to ask; of the second, the answer. Where there is more to ask, the node that does
/// is the one at `children[node]`, plus as many as there are bits set below *i*; and the bit of the second
/// word says that this one passes over bits: the first of its words has them, the second how many they are,
/// and from bit 8 on the answer for addresses that have others. For the address that has them, the next
/// node is its `children`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceTable {
    /// The nodes of IPv4, and those of IPv6.
    pub nodes: Vec<[u64; 2]>,
    /// By the node's number.
    pub children: Vec<u32>,
    /// The first of IPv6's nodes.
    pub root6: u32,
    /// The first of 64 bits of an IPv4 address, shifted right by so many, choose the first node.
    pub shift4: u32,
    /// The same for IPv6.
    pub shift6: u32,
}

impl SourceTable {
    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<[u64; 2]>() + self.children.len().div_ceil(2) * 8
    }

    /// Tells it from others.
    pub fn digest(&self) -> u64 {
        let step = |hash: u64, word: u64| {
            let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 29
        };
        let head = [self.root6.into(), self.shift4.into(), self.shift6.into()];
        let words = self.nodes.iter().flatten().copied();
        let children = self.children.iter().map(|child| u64::from(*child));
        head.into_iter().chain(words).chain(children).fold(1, step)
    }

    /// Whether an address is allowed, IPv4 mapped. The twin of `is_denied` in `bpf/sources.h`.
    pub fn allows(&self, address: &[u8; 16]) -> bool {
        let (v6, mut rest) = bits_of(address);
        let (root, shift) = if v6 { (self.root6, self.shift6) } else { (0, self.shift4) };
        let mut node = root as usize + ((rest >> 64) as u64 >> shift) as usize;
        rest <<= 64 - shift;
        for _ in 0..SOURCE_STEPS {
            let Some([more, answers]) = self.nodes.get(node).copied() else { return false };
            let slot = rest >> (128 - SOURCE_STRIDE);
            rest <<= SOURCE_STRIDE;
            let bit = 1 << slot;
            if more & bit == 0 {
                return answers & bit != 0;
            }
            let before = (more & (bit - 1)).count_ones();
            let Some(child) = self.children.get(node) else { return false };
            node = (child + before) as usize;
            if answers & bit != 0 {
                let Some([wanted, others]) = self.nodes.get(node).copied() else { return false };
                let bits = (others & 63) as u32;
                if (rest >> 64) as u64 >> (64 - bits) != wanted {
                    return others & SOURCE_OTHERS_ALLOWED != 0;
                }
                rest <<= bits;
                node = self.children.get(node).map_or(usize::MAX, |next| *next as usize);
            }
        }
        false
    }
}

/// A table that is being made.
struct Maker {
    nodes: Vec<[u64; 2]>,
    children: Vec<u32>,
}

impl Maker {
    /// The nodes of a family; returns the first one, and the shift by which one of the first is chosen. There are eight to
    /// sixteen answers in them for each prefix, about, so few addresses go on.
    fn family(&mut self, changes: &Changes) -> (u32, u32) {
        let prefixes = changes.at.len().div_ceil(2).clamp(1, 1 << 20);
        let bits =
            (8 * prefixes).next_power_of_two().ilog2().clamp(SOURCE_STRIDE + 1, 24) - SOURCE_STRIDE;
        let part = Part { first: 0, depth: 0, allowed: changes.first, at: &changes.at };
        let first = self.grow(1 << bits);
        for number in 0..1u32 << bits {
            let inner = part.inner(u128::from(number) << (128 - bits), bits);
            self.fill(first + number, inner);
        }
        (first, 64 - bits)
    }

    /// Room for so many nodes; returns the first one.
    fn grow(&mut self, nodes: usize) -> u32 {
        let first = self.nodes.len();
        self.nodes.resize(first + nodes, [0; 2]);
        self.children.resize(first + nodes, 0);
        first as u32
    }

    fn fill(&mut self, node: u32, part: Part<'_>) {
        let (mut more, mut answers) = (0u64, 0u64);
        let mut inner = Vec::new();
        let depth = (part.depth + SOURCE_STRIDE).min(128);
        // Behind an address's last bit there are zeros.
        let beyond = part.depth + SOURCE_STRIDE - depth;
        for slot in 0..64u32 {
            let first = part.first | u128::from(slot >> beyond) << (128 - depth);
            let of_slot = part.inner(first, depth);
            if of_slot.at.is_empty() {
                answers |= u64::from(of_slot.allowed) << slot;
            } else {
                more |= 1 << slot;
                inner.push((slot, of_slot));
            }
        }
        let children = self.grow(inner.len());
        self.children[node as usize] = children;
        for (child, (slot, part)) in (children..).zip(inner) {
            let (bits, others) = part.skips();
            if bits == 0 {
                self.fill(child, part);
                continue;
            }
            answers |= 1 << slot;
            let depth = part.depth + bits;
            // Whatever changes, it does within them.
            let begin = if others == part.allowed { part.at[0] } else { part.first };
            let behind = part.inner(begin & mask(depth as u8), depth);
            let wanted = (begin << part.depth) >> (128 - bits);
            let others = if others { SOURCE_OTHERS_ALLOWED } else { 0 };
            let next = self.grow(1);
            self.nodes[child as usize] = [wanted as u64, u64::from(bits) | others];
            self.children[child as usize] = next;
            self.fill(next, behind);
        }
        self.nodes[node as usize] = [more, answers];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::map_address;

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    fn sources(allow: &[&str], deny: &[&str]) -> Sources {
        let of = |texts: &[&str], allows| {
            texts.iter().map(|text| (prefix(text), allows)).collect::<Vec<_>>()
        };
        Sources::new([of(allow, true), of(deny, false)].concat()).expect("they agree")
    }

    fn allows(sources: &Sources, address: &str) -> bool {
        let address = map_address(address.parse().expect("an address"));
        let by_table = sources.table().allows(&address);
        assert_eq!(by_table, sources.decide(&address).1, "{address:?}");
        by_table
    }

    struct Draw(u64);

    impl Draw {
        fn below(&mut self, below: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % below
        }

        fn address(&mut self, v6: bool) -> IpAddr {
            let mut word = || (self.below(1 << 16) as u128) << 16 | self.below(1 << 16) as u128;
            let (a, b, c, d) = (word(), word(), word(), word());
            match v6 {
                false => Ipv4Addr::from_bits(a as u32).into(),
                true => Ipv6Addr::from_bits(a << 96 | b << 64 | c << 32 | d).into(),
            }
        }
    }

    #[test]
    fn the_longest_prefix_decides_and_others_are_denied_where_any_allows() {
        let none = sources(&[], &[]);
        assert!(allows(&none, "192.0.2.1") && allows(&none, "2001:db8::1"));
        let deny = sources(&[], &["10.0.0.0/8", "2001:db8::/32"]);
        assert!(!allows(&deny, "10.1.2.3") && !allows(&deny, "2001:db8:ffff::1"));
        assert!(allows(&deny, "11.0.0.0") && allows(&deny, "9.255.255.255"));
        assert!(allows(&deny, "2001:db9::") && allows(&deny, "::1"));
        let both = sources(&["10.1.0.0/16", "10.1.2.3/32"], &["10.1.2.0/24", "10.1.2.3/32"][..1]);
        for (address, allowed) in [
            ("10.1.0.0", true),
            ("10.1.1.255", true),
            ("10.1.2.0", false),
            ("10.1.2.2", false),
            ("10.1.2.3", true),
            ("10.1.2.4", false),
            ("10.1.3.0", true),
            ("10.2.0.0", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(allows(&both, address), allowed, "{address}");
        }
        let all = sources(&["0.0.0.0/0"], &["::/0", "255.255.255.255/32"]);
        assert!(allows(&all, "0.0.0.0") && allows(&all, "255.255.255.254"));
        assert!(!allows(&all, "255.255.255.255") && !allows(&all, "::"));
        assert!(!allows(&all, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
        let last = sources(&[], &["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", "::/128"]);
        assert!(!allows(&last, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
        assert!(allows(&last, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"));
        assert!(!allows(&last, "::") && allows(&last, "::1"));
    }

    #[test]
    fn one_prefix_cannot_do_both() {
        let both = [(prefix("10.0.0.0/8"), true), (prefix("10.0.0.0/8"), false)];
        assert_eq!(Sources::new(both), Err(prefix("10.0.0.0/8")));
        let twice = Sources::new([(prefix("10.0.0.0/8"), true), (prefix("10.0.0.0/8"), true)]);
        assert_eq!(twice.map(|sources| sources.counts()), Ok((1, 0)));
    }

    #[test]
    fn what_is_laid_over_decides_and_leaves_others_as_they_are() {
        let deny = sources(&[], &["10.0.0.0/8", "10.9.0.0/16"]);
        let over = deny.with(&[
            (prefix("10.1.0.0/16"), true),
            (prefix("192.0.2.0/24"), false),
            (prefix("10.9.0.0/16"), true),
        ]);
        assert_eq!(over.counts(), (2, 2));
        assert!(allows(&over, "10.1.2.3") && allows(&over, "10.9.0.1"));
        assert!(!allows(&over, "10.2.0.0") && !allows(&over, "192.0.2.7"));
        assert!(allows(&over, "198.51.100.1"), "an exception keeps nobody else out");
        // And where others are denied they stay so, even if nothing allows any more.
        let allow = sources(&["10.0.0.0/8"], &[]).with(&[(prefix("10.0.0.0/8"), false)]);
        assert!(!allows(&allow, "10.0.0.1") && !allows(&allow, "192.0.2.1"));
        assert_eq!(deny.with(&[]), deny);
    }

    /// Sets of prefixes of every size, dense and sparse, beside a look at all of them.
    #[test]
    fn a_table_answers_as_the_prefixes_do() {
        let mut draw = Draw(1);
        for round in 0..400 {
            let near: Vec<IpAddr> = (0..4).map(|n| draw.address(n % 2 == 1)).collect();
            let mut rules = std::collections::HashMap::new();
            for _ in 0..draw.below([3, 20, 200][round % 3]) + 1 {
                let v6 = draw.below(2) == 1;
                let random = draw.address(v6);
                let most = if v6 { 128 } else { 32 };
                let shared = draw.below(most + 1) as u8;
                let base = near[draw.below(2) as usize * 2 + usize::from(v6)];
                // Some bits of one that others are near, and then any.
                let base = bits_of(&map_address(base)).1;
                let mixed = base & mask(shared) | bits_of(&map_address(random)).1 & !mask(shared);
                let length = draw.below(most + 1).max(draw.below(3)) as u8;
                let bits = mixed & mask(length);
                rules.insert(Prefix { v6, bits, length }, draw.below(2) == 1);
            }
            let sources = Sources::new(rules).expect("each is there once");
            let table = sources.table();
            for (prefix, _) in sources.rules() {
                let edges = [prefix.bits, prefix.last()];
                let around = edges.map(|edge| [edge, edge.wrapping_sub(1), edge.wrapping_add(1)]);
                let unit = if prefix.v6 { 1 } else { 1 << 96 };
                let beside = edges.map(|edge| [edge.wrapping_sub(unit), edge.wrapping_add(unit)]);
                for bits in around.as_flattened().iter().chain(beside.as_flattened()) {
                    let address: IpAddr = match prefix.v6 {
                        false => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
                        true => Ipv6Addr::from_bits(*bits).into(),
                    };
                    let address = map_address(address);
                    assert_eq!(table.allows(&address), sources.decide(&address).1, "{address:?}");
                }
            }
            for _ in 0..100 {
                let v6 = draw.below(2) == 1;
                let address = map_address(draw.address(v6));
                assert_eq!(table.allows(&address), sources.decide(&address).1, "{address:?}");
            }
        }
    }

    /// Lists as they are: hosts, networks, and both families; and the worst that come to mind.
    #[test]
    fn tables_take_about_as_many_bytes_as_there_is_room_for() {
        let mut draw = Draw(7);
        let mut list = |count: usize, v6: bool, lengths: &[u8], within: u32| {
            let mut rules = Vec::new();
            for _ in 0..count {
                let length = lengths[draw.below(lengths.len() as u64) as usize];
                let address = draw.address(v6);
                let bits = bits_of(&map_address(address)).1 >> within & mask(length);
                rules.push((Prefix { v6, bits, length }, false));
            }
            let sources = Sources::new(rules).expect("all deny");
            let count = sources.counts().1;
            sources.table().bytes() as f64 / count as f64
        };
        for (name, bytes) in [
            ("hosts", list(100_000, false, &[32], 0)),
            ("networks", list(100_000, false, &[16, 20, 22, 24, 24, 24, 28, 32], 0)),
            ("hosts of one /8", list(100_000, false, &[32], 8)),
            ("hosts of IPv6", list(100_000, true, &[128], 3)),
            ("networks of IPv6", list(100_000, true, &[32, 36, 40, 48, 48, 56, 64], 3)),
            ("networks of one /20", list(100_000, true, &[48, 56, 64, 64], 20)),
        ] {
            println!("{name}: {bytes:.1} bytes for each prefix");
            assert!(bytes < BYTES_PER_PREFIX as f64, "{name}: {bytes}");
        }
    }

    #[test]
    fn texts_that_are_no_prefixes_are_told_what_would_be_right() {
        for text in ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32", "::/0", "0.0.0.0/0"] {
            assert_eq!(prefix(text).to_string(), text);
        }
        assert_eq!(prefix("192.0.2.7").to_string(), "192.0.2.7/32");
        assert_eq!(prefix("2001:DB8::1").to_string(), "2001:db8::1/128");
        let right = |text: &str| text.parse::<Prefix>().map_err(|error| error.right());
        assert_eq!(right("10.1.2.3/8"), Err("write 10.0.0.0/8".into()));
        assert_eq!(right("2001:db8::1/64"), Err("write 2001:db8::/64".into()));
        assert_eq!(right("::ffff:10.0.0.0/104"), Err("write 10.0.0.0/8".into()));
        for text in [
            "",
            "/",
            "10.0.0/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "10.0.0.0/33",
            "::/129",
            "a/8",
        ] {
            let right = right(text).expect_err("no prefix");
            assert!(right.starts_with("give one such as"), "{text}: {right}");
        }
    }
}
