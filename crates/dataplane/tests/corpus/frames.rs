//! Single frames through the program and through the pipeline: the fuzzer's.

use super::compare::{bytes_differ, l3_of};
use super::kernels::LIMITS;
use super::{LONG_AGO, World, take};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use weir_dataplane::{Verdict as Action, run_frame};
use weir_plane::forward::Mapping;
use weir_plane::forward::mapping::MAPPING_TICK_SHIFT;
use weir_plane::{Counters, Outcome, Soft, Verdict};
use weir_steering::Memory as _;
use weir_steering::update::Plane as _;
use weir_wire::{Reason, fragment, unmap_address};

/// What the namespace of the tests knows of the way to an address (`kernels.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// By the router.
    There,
    /// None.
    Nowhere,
    /// It depends on neighbours.
    Unsaid,
}

fn way_to(address: IpAddr) -> Way {
    match address {
        IpAddr::V4(address) => match address.octets() {
            [10, 9 | 1, ..] => Way::There,
            [10, 5, 0, _] => Way::Unsaid,
            _ => Way::Nowhere,
        },
        IpAddr::V6(address) => match address.segments() {
            [0xfd09, ..] | [0x2001, 0xdb8, 1, ..] => Way::There,
            [0x2001, 0xdb8, 5, ..] | [0xfe80..=0xffff, ..] => Way::Unsaid,
            _ => Way::Nowhere,
        },
    }
}

/// Whether the fuzzer's clients may have this address.
fn is_client(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets().starts_with(&[10, 9]),
        IpAddr::V6(address) => address.segments()[0] == 0xfd09,
    }
}

/// Where the packet in a frame goes.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    let packet = frame.get(l3_of(frame)..)?;
    match packet.first()? >> 4 {
        4 => Some(IpAddr::from(*packet.get(16..)?.first_chunk::<4>()?)),
        _ => Some(IpAddr::from(*packet.get(24..)?.first_chunk::<16>()?)),
    }
}

/// The largest answer of the balancer's own to a frame, from the Ethernet header on; none: it is no answer of its
/// own. A reply has what the request had. A reset has the bare headers, which what it answers has had, too. An error
/// is an IP header, the eight bytes of ICMP and as much of the packet as leaves the whole at what every host takes,
/// which RFC 1812 (section 4.3.2.3) and RFC 4443 (section 2.4) ask for: so it is larger by these two headers at
/// most.
pub fn largest_answer(verdict: &Verdict, frame: &[u8]) -> Option<usize> {
    match verdict {
        Verdict::Echo | Verdict::Reset => Some(frame.len()),
        Verdict::Tell { .. } => {
            let l3 = l3_of(frame);
            let v4 = frame.get(l3).is_some_and(|first| first >> 4 == 4);
            let (headers, most) = if v4 { (20 + 8, 576) } else { (40 + 8, 1280) };
            Some(l3 + (frame.len() - l3 + headers).min(most))
        }
        _ => None,
    }
}

/// As many messages may be sent now as at once. So no clock decides whether one is: where the set-up lets messages
/// be sent at all, it does without end.
pub fn fill_allowances(soft: &mut Soft) {
    soft.messages.fill();
    soft.echoes.fill();
    soft.resets.fill();
}

/// Takes back what a verdict has counted, of those that depend on the way back.
fn uncount(counters: &mut Counters, verdict: &Verdict) {
    let less = |counts: &mut BTreeMap<Reason, u64>, reason: &Reason| {
        let count = counts.get_mut(reason).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            counts.remove(reason);
        }
    };
    match verdict {
        Verdict::Return { bytes, .. } => {
            counters.returned.packets -= 1;
            counters.returned.bytes -= u64::from(*bytes);
        }
        Verdict::Pass(reason) => less(&mut counters.passed, reason),
        Verdict::Drop(reason) => less(&mut counters.dropped, reason),
        other => unreachable!("{other:?} asks for no way back"),
    }
}

/// What the program does for a verdict.
fn is_done(action: Action, verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Forward { .. } | Verdict::Return { .. } => {
            matches!(action, Action::Transmit | Action::Redirect)
        }
        Verdict::Tell { .. } | Verdict::Echo | Verdict::Reset => action == Action::Transmit,
        Verdict::Answer(_) | Verdict::Pass(_) => action == Action::Pass,
        Verdict::Drop(_) => action == Action::Drop,
    }
}

#[allow(dead_code, reason = "the fuzzer's")]
impl World<'_> {
    /// The same frame through both planes: how they differ, or what they did.
    ///
    /// # Errors
    /// How they differ.
    pub fn compare(&mut self, frame: &[u8]) -> Result<Outcome, String> {
        fill_allowances(&mut self.oracle);
        let mut written = frame.to_vec();
        let verdict = take(&mut self.oracle, self.setup, &mut written);
        let way = self.way_back(frame, &verdict);
        if way != Way::There {
            return self.compare_without_way(frame, &verdict, way);
        }
        let run = run_frame(self.kernel.live.kernel.program(), frame).expect("it runs");
        let outcome = Outcome::from(verdict);
        if !is_done(run.verdict, &verdict) {
            return Err(format!("bpf: {:?}, rust: {verdict:?}", run.verdict));
        }
        if run.verdict == Action::Drop {
            return Ok(outcome);
        }
        if let Verdict::Forward { backend, .. } = verdict {
            let hop = self.oracle.backends[&backend].hop.expect("each has one").next;
            if run.frame[..6] != hop.mac || run.frame[6..12] != hop.source_mac {
                return Err(format!("bpf: to {:02x?}, rust: {outcome:?}", &run.frame[..12]));
            }
        }
        let largest = largest_answer(&verdict, frame);
        if let Some(most) = largest.filter(|most| run.frame.len() > *most) {
            let (came, goes) = (frame.len(), run.frame.len());
            return Err(format!("{verdict:?}: {goes} bytes answer {came}, and {most} may"));
        }
        // Of what is sent on, the pipeline does not write the addresses of the link.
        let from = if largest.is_some() { 0 } else { 12 };
        match bytes_differ(&run.frame[from..], &written[from..]) {
            Some(differs) => Err(format!("{verdict:?}: from byte {from} on, bpf: {differs}")),
            None => Ok(outcome),
        }
    }

    /// The way back to the client, if the program asks for it before it does what the verdict says.
    fn way_back(&self, frame: &[u8], verdict: &Verdict) -> Way {
        let to = destination(frame);
        match verdict {
            Verdict::Return { client: Some((address, _)), .. } => way_to(*address),
            Verdict::Return { client: None, .. } | Verdict::Pass(Reason::TtlExceeded) => {
                to.map_or(Way::There, way_to)
            }
            // Whose it is is not said.
            Verdict::Drop(Reason::TtlExceeded) if to.is_some_and(|to| self.is_origin(to)) => {
                Way::Unsaid
            }
            _ => Way::There,
        }
    }

    fn is_origin(&self, address: IpAddr) -> bool {
        weir_plane::Plane::mapping_rules(&self.oracle)
            .is_some_and(|rules| rules.origins.iter().flatten().any(|one| one.address == address))
    }

    /// The same of a frame about which the kernel's routes have a say, which the pipeline in memory does not know.
    /// What the program does must be one of what it may do then, counted once; and is what the pipeline has done
    /// from here on.
    fn compare_without_way(
        &mut self,
        frame: &[u8],
        verdict: &Verdict,
        way: Way,
    ) -> Result<Outcome, String> {
        uncount(&mut self.oracle.counters, verdict);
        let before = self.counters();
        if before != self.oracle.counters {
            return Err(format!("before: bpf counts {before:?}, rust {:?}", self.oracle.counters));
        }
        let run = run_frame(self.kernel.live.kernel.program(), frame).expect("it runs");
        let to_origin = match verdict {
            Verdict::Return { client, .. } => client.is_some(),
            other => matches!(other, Verdict::Drop(_)),
        };
        let mut may = match to_origin {
            // The kernel is no help: it is this host that it is for.
            true => vec![Verdict::Drop(Reason::NoNextHop)],
            false => vec![Verdict::Pass(Reason::NoService)],
        };
        if way == Way::Unsaid {
            may.extend([*verdict, Verdict::Answer(None)]);
        }
        let after = self.counters();
        let counted = |one: &&Verdict| {
            let mut expected = before.clone();
            expected.count(one);
            expected == after
        };
        let Some(done) = may.iter().find(counted) else {
            return Err(format!("{way:?}, {verdict:?}: bpf counts {after:?} after {before:?}"));
        };
        if !is_done(run.verdict, done) {
            return Err(format!("bpf: {:?}, and counts {done:?}", run.verdict));
        }
        self.oracle.counters = after;
        if matches!(done, Verdict::Pass(_) | Verdict::Drop(_)) {
            // Nobody is to follow it.
            if let Some(first) = fragment(frame).filter(|one| one.packet.is_ok()) {
                self.oracle.memory.forget_fragment(&first.key);
            }
            if matches!(done, Verdict::Pass(_))
                && let Some(differs) = bytes_differ(&run.frame, frame)
            {
                return Err(format!("{done:?}: bpf: {differs}"));
            }
        }
        Ok(Outcome::from(*done))
    }

    /// Compares all counters; returns how many frames they have counted, each plane once.
    ///
    /// # Errors
    /// How they differ.
    pub fn compare_counters(&self) -> Result<u64, String> {
        let (found, wanted) = (self.counters(), &self.oracle.counters);
        if found != *wanted {
            return Err(format!("bpf counts {found:?}, rust {wanted:?}"));
        }
        let lanes: u64 = found.lanes.values().map(|lane| lane.packets).sum();
        let left = found.passed.values().chain(found.dropped.values());
        Ok(lanes + found.returned.packets + left.sum::<u64>())
    }

    /// So much time passes for mappings, buckets and what routers have said, in ticks of mappings. First fragments
    /// are long gone then, so that no clock decides whether one is.
    pub fn pass_time(&mut self, ticks: u32) {
        let time = u64::from(ticks) << MAPPING_TICK_SHIFT;
        self.kernel.live.kernel.age_mappings(ticks);
        self.kernel.live.kernel.age_paths(Duration::from_nanos(time)).expect("they can be written");
        self.kernel.live.kernel.age_caps(time).expect("they can be written");
        self.oracle.nanoseconds += time;
        self.kernel.live.kernel.age_fragments(LONG_AGO).expect("they can be written");
        self.oracle.memory.fragment_clock += LONG_AGO;
        for id in self.numbers.values() {
            self.kernel.live.kernel.forget_hop(*id).expect("it is there");
        }
    }

    /// All buckets of new flows gain what so many nanoseconds give.
    pub fn fill_buckets(&mut self, nanoseconds: u64) {
        self.kernel.live.kernel.age_caps(nanoseconds).expect("they can be written");
        self.oracle.buckets.get_mut().age(nanoseconds);
    }

    /// A connection under full NAT of a client that there is a way to, by a place to begin at; and its backend's end:
    /// address and port.
    pub fn mapped(&self, from: usize) -> Option<(Mapping, IpAddr, u16)> {
        let places = weir_plane::mapping_places(LIMITS.mappings) as usize;
        let from = from % places;
        let mut all = (from..places).chain(0..from);
        let found = all.find_map(|place| {
            weir_plane::Plane::mapping(&self.oracle, place)
                .filter(|found| is_client(unmap_address(&found.flow.src)))
        })?;
        let backend = self.oracle.backends.get(&found.backend)?;
        let port = backend.translation?.port.unwrap_or(found.flow.dst_port);
        Some((found, backend.address, port))
    }

    /// An address of the balancer's.
    pub fn origin(&self, number: u16) -> Option<IpAddr> {
        let rules = weir_plane::Plane::mapping_rules(&self.oracle)?;
        Some((*rules.origins.get(usize::from(number))?)?.address)
    }

    /// Takes the reports of flows, which must be alike.
    pub fn drain(&mut self) {
        let (mut found, mut wanted) = (Vec::new(), Vec::new());
        self.kernel.live.drain(&mut |event| found.push(*event)).expect("they can be read");
        self.oracle.drain(&mut |event| wanted.push(*event)).expect("nothing is refused");
        assert_eq!(found, wanted, "reports");
    }
}
