//! Rules of a device of DPDK (`rte_flow`): a card's table for HNLB (docs/hnlb.md).

use crate::ffi::{self, RuleOfFlow};
use crate::ports::Device;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use weir_offload::{Answer, Answered, Limits, Location, Queue, Refusal, Rule, Rules, Serial};
use weir_wire::{FlowKey, Protocol};

/// Longest reason of a driver's.
const WHY_BYTES: usize = 160;
/// A flow that nobody has: what the driver is asked about first (RFC 5737).
const NOBODY: ([u8; 4], [u8; 4], u16) = ([192, 0, 2, 1], [198, 51, 100, 1], 9);

/// Rules by which a device leads packets of single flows to its queues. A driver answers when it has done what it
/// was asked for, so each answer is there at once. All rules go with this.
#[derive(Debug)]
pub struct Flows {
    device: Arc<Device>,
    /// Of a device that spreads flows by itself: the rule for all that no other one is for.
    rest: Option<*mut c_void>,
    limits: Limits,
    rules: HashMap<Location, (FlowKey, *mut c_void)>,
    flows: HashSet<FlowKey>,
    answers: VecDeque<Answer>,
}

// SAFETY: rules are DPDK's, which lets any thread name them, and one at a time ask a device for some.
unsafe impl Send for Flows {}

impl Drop for Flows {
    fn drop(&mut self) {
        for (_, rule) in std::mem::take(&mut self.rules).into_values() {
            let _ = end(&self.device, rule);
        }
        // The last one: until then packets of no rule come by the first queue.
        if let Some(rest) = self.rest.take() {
            let _ = end(&self.device, rest);
        }
    }
}

fn words(why: &[c_char; WHY_BYTES]) -> String {
    // SAFETY: the array is of zeros, and what is written into it ends in one.
    unsafe { CStr::from_ptr(why.as_ptr()) }.to_string_lossy().into_owned()
}

fn end(device: &Device, rule: *mut c_void) -> Result<(), Refusal> {
    let mut why: [c_char; WHY_BYTES] = [0; WHY_BYTES];
    // SAFETY: the rule is this port's, was made, and was not ended; the array has so many bytes.
    match unsafe { ffi::weir_dpdk_rule_end(device.number, rule, why.as_mut_ptr(), WHY_BYTES) } {
        0 => Ok(()),
        _ => Err(Refusal::Device(format!(
            "{}: a rule does not go: {}",
            device.arguments,
            words(&why)
        ))),
    }
}

impl Flows {
    /// Asks a device for one rule, which goes again, so that who has this has a driver that takes some. What no rule
    /// is for comes by the first queue from now on, also where the device would spread it.
    pub(crate) fn of(device: Arc<Device>, places: u32, ring: u32) -> Result<Self, Refusal> {
        let queues = device.queues();
        let limits = Limits { rules: places as usize, queues, ring, counts: false };
        let mut new = Self {
            device,
            rest: None,
            limits,
            rules: HashMap::new(),
            flows: HashSet::new(),
            answers: VecDeque::new(),
        };
        let (from, to, port) = NOBODY;
        let flow = FlowKey::new((from, port).into(), (to, port).into(), Protocol::Tcp);
        let probe = new.make(&Rule { flow, queue: Queue::SOFTWARE })?;
        end(&new.device, probe)?;
        let device = &new.device.arguments;
        if new.device.at_what_was_there {
            return Err(Refusal::Unsupported(format!(
                "the interface of {device} was there before, and rules of an earlier process may be: let DPDK make it"
            )));
        }
        if queues < 2 {
            return Err(Refusal::Unsupported(format!(
                "{device} has one queue, and each backend needs one besides"
            )));
        }
        if !new.device.leads_to_the_first {
            new.rest = Some(new.make_rest()?);
        }
        Ok(new)
    }

    /// Has all that no rule is for come by the first queue.
    fn make_rest(&self) -> Result<*mut c_void, Refusal> {
        let mut made: *mut c_void = null_mut();
        let mut why: [c_char; WHY_BYTES] = [0; WHY_BYTES];
        // SAFETY: the port is open; a rule that is written to, and an array of so many bytes.
        let error = unsafe {
            ffi::weir_dpdk_rule_rest(self.device.number, &mut made, why.as_mut_ptr(), WHY_BYTES)
        };
        if error == 0 {
            return Ok(made);
        }
        Err(Refusal::Unsupported(format!(
            "{} spreads what no rule is for over its queues, and its driver says of a rule for that: {}",
            self.device.arguments,
            words(&why)
        )))
    }

    /// Asks the driver whether it takes a rule, and then for it.
    fn make(&self, rule: &Rule) -> Result<*mut c_void, Refusal> {
        let FlowKey { src, dst, src_port, dst_port, protocol } = rule.flow;
        let wanted = RuleOfFlow {
            src,
            dst,
            src_port: src_port.to_be(),
            dst_port: dst_port.to_be(),
            ipv6: (!rule.flow.is_ipv4()).into(),
            protocol: protocol.number(),
            queue: rule.queue.0,
        };
        let (mut made, mut step): (*mut c_void, c_int) = (null_mut(), 0);
        let mut why: [c_char; WHY_BYTES] = [0; WHY_BYTES];
        // SAFETY: the port is open; a flow that is read, a rule and a number that are written to, and an array of
        // so many bytes.
        let error = unsafe {
            ffi::weir_dpdk_rule_make(
                self.device.number,
                &wanted,
                &mut made,
                &mut step,
                why.as_mut_ptr(),
                WHY_BYTES,
            )
        };
        if error == 0 {
            return Ok(made);
        }
        let (device, why) = (&self.device.arguments, words(&why));
        Err(match -error {
            libc::ENOSPC | libc::ENOMEM => Refusal::Full(self.rules.len()),
            libc::EBUSY | libc::EAGAIN => Refusal::Busy,
            libc::ENODEV | libc::EIO => Refusal::Device(format!("{device}: {why}")),
            libc::ENOSYS => {
                Refusal::Unsupported(format!("the driver of {device} has no rules (rte_flow)"))
            }
            _ if step == 0 => {
                Refusal::Unsupported(format!("the driver of {device} says of {}: {why}", rule.flow))
            }
            _ => Refusal::Unsupported(format!(
                "the driver of {device} takes such rules and could not make that of {}: {why}",
                rule.flow
            )),
        })
    }

    fn done(&mut self, at: Location, serial: Serial) {
        self.answers.push_back(Answer { at, serial, what: Answered::Done });
    }

    fn end_at(&mut self, at: Location) -> Result<(), Refusal> {
        if let Some(&(flow, rule)) = self.rules.get(&at) {
            // One that does not go leads packets still, and stays known.
            end(&self.device, rule)?;
            self.rules.remove(&at);
            self.flows.remove(&flow);
        }
        Ok(())
    }
}

impl Rules for Flows {
    fn limits(&self) -> Limits {
        self.limits
    }

    /// A rule for a flow that another place has is refused: which of two counts, no driver says. So is one at a place
    /// that is taken: the rule there could not be had back if the driver refused the new one.
    fn insert(&mut self, at: Location, rule: &Rule, serial: Serial) -> Result<(), Refusal> {
        let Limits { queues, rules, .. } = self.limits;
        if rule.queue.0 >= queues {
            return Err(Refusal::NoQueue { queue: rule.queue, queues });
        }
        if at.0 as usize >= rules {
            return Err(Refusal::NoPlace(at));
        }
        if let Some((flow, _)) = self.rules.get(&at) {
            let why = format!("{at} of {} has a rule for {flow}", self.device.arguments);
            return Err(Refusal::Unsupported(why));
        }
        if self.flows.contains(&rule.flow) {
            let why = format!("{} has a rule for {} already", self.device.arguments, rule.flow);
            return Err(Refusal::Unsupported(why));
        }
        let made = self.make(rule)?;
        self.rules.insert(at, (rule.flow, made));
        self.flows.insert(rule.flow);
        self.done(at, serial);
        Ok(())
    }

    fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal> {
        self.end_at(at)?;
        self.done(at, serial);
        Ok(())
    }

    fn answers(&mut self, take: &mut dyn FnMut(Answer)) {
        self.answers.drain(..).for_each(take);
    }

    /// No driver is asked for counters.
    fn hits(&mut self, _: Location) -> Option<u64> {
        None
    }
}
