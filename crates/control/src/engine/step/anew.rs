//! What the leader has all make anew although no pool has changed: the store was restored from an old copy and does not
//! have the last step any more, the leader itself has not followed that one, or tables differ all the same.

use super::Stepping;
use crate::engine::Engine;
use crate::engine::fleet::Fleet;
use crate::engine::service::ServiceRuntime;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use weir_fleet::{Ack, Report, ServiceSign, Sign, StepId};
use weir_plane::Plane;

/// Tables that differ for so long after the last step do not come to be alike by themselves.
const LASTS: Duration = Duration::from_secs(5);
/// Where that has not helped it is tried again after twice as long each time, and never later than this: new flows wait
/// for it.
const AT_MOST: Duration = Duration::from_secs(3_600);
/// So often the leader compares tables.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Of a step that others have said something of, it has heard by then.
const HEARD_BY: Duration = Duration::from_secs(1);

/// What the leader has found.
#[derive(Default)]
pub(super) struct Anew {
    looked: Option<Instant>,
    /// Services whose tables differ: since when, or since when that was last tried to mend, and how long it waits.
    differ: BTreeMap<String, (Instant, Duration)>,
    /// A step that somebody else has followed, and since when that is known.
    ahead: Option<(StepId, Instant)>,
}

impl Anew {
    /// The services whose tables differ are these now.
    fn note(&mut self, differ: BTreeSet<String>) {
        let now = Instant::now();
        self.differ.retain(|name, _| differ.contains(name));
        for name in differ {
            self.differ.entry(name).or_insert((now, LASTS));
        }
    }

    /// Those for which something is to be done.
    fn due(&self) -> BTreeSet<String> {
        let all = self.differ.iter().filter(|(_, (since, after))| since.elapsed() >= *after);
        all.map(|(name, _)| name.clone()).collect()
    }

    /// That is done.
    fn tried(&mut self, services: &BTreeSet<String>) {
        for (since, after) in
            self.differ.iter_mut().filter(|(name, _)| services.contains(*name)).map(|(_, of)| of)
        {
            (*since, *after) = (Instant::now(), (*after * 2).min(AT_MOST));
        }
    }
}

/// The highest step of which a balancer that lives has said something.
fn highest_said(report: &Report) -> Option<StepId> {
    let lives = |(name, ack): &(&String, &Ack)| {
        report.balancers.get(*name).is_some_and(|sign| sign.id == ack.id)
    };
    report.acks.iter().filter(lives).map(|(_, ack)| ack.step).max()
}

/// Whether a balancer was left behind by the last step, as it says.
pub(super) fn is_left(report: &Report, name: &str, sign: &Sign) -> bool {
    let ack = report.acks.get(name).filter(|ack| ack.id == sign.id);
    sign.left_behind.is_some() || ack.is_some_and(|ack| ack.late || ack.lags)
}

/// Services whose tables differ on balancers that take part in steps, follow the same configuration and have as many
/// backends up: who has found others dead than this one, which has the id `own`, leads flows otherwise on purpose. Who was
/// left behind by the last step makes up for it by itself, as soon as it can, and not by another step.
fn differing(report: &Report, own: &str, change: u64) -> BTreeSet<String> {
    let here = report.balancers.values().find(|sign| sign.id == own);
    let Some(here) = here else { return BTreeSet::new() };
    let here: BTreeMap<&str, &ServiceSign> =
        here.services.iter().map(|service| (service.name.as_str(), service)).collect();
    let takes_part = |of: &(&String, &Sign)| {
        let (name, sign) = *of;
        sign.steps && sign.change == change && !is_left(report, name, sign)
    };
    let others = report.balancers.iter().filter(takes_part).flat_map(|(_, sign)| &sign.services);
    let differs = |there: &&ServiceSign| {
        here.get(there.name.as_str()).is_some_and(|here| {
            (here.up, here.backends) == (there.up, there.backends)
                && here.digest.is_some()
                && there.digest.is_some()
                && here.digest != there.digest
        })
    };
    others.filter(differs).map(|service| service.name.clone()).collect()
}

impl Stepping {
    /// The term of the last step.
    pub fn term(&self) -> u64 {
        self.step.as_ref().map_or(0, |step| step.begun.max(step.term))
    }
}

impl Fleet {
    /// The step that another balancer has said something of, if it is later than the last that this one has heard of.
    fn is_ahead(&self) -> Option<StepId> {
        let own = self.stepping.step.as_ref().map_or((0, 0), |step| step.id());
        self.with_report(highest_said).filter(|said| *said > own)
    }

    /// Whether the store is to have the last step again, which all that live follow or an earlier one.
    pub(super) fn tells_again(&self) -> bool {
        let can = self.stepping.outlived && !self.stepping.pauses() && self.revision().is_some();
        can && self.is_ahead().is_none()
    }
}

impl<P: Plane> Engine<P> {
    /// The step that others have followed and this balancer has not. `Err`: that may be known soon.
    pub(super) fn step_ahead(&mut self) -> Result<Option<StepId>, ()> {
        let Some(fleet) = &mut self.fleet else { return Ok(None) };
        let Some(ahead) = fleet.is_ahead() else {
            fleet.stepping.anew.ahead = None;
            return Ok(None);
        };
        let known = fleet.stepping.anew.ahead.filter(|(id, _)| *id == ahead);
        let (_, since) =
            *fleet.stepping.anew.ahead.insert(known.unwrap_or((ahead, Instant::now())));
        if since.elapsed() < HEARD_BY { Err(()) } else { Ok(Some(ahead)) }
    }

    /// The services whose tables all are to make anew, as they differ.
    pub(super) fn made_anew_now(&mut self) -> BTreeSet<String> {
        let Some(fleet) = &mut self.fleet else { return BTreeSet::new() };
        let looked = fleet.stepping.anew.looked;
        if looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            let change = fleet.change();
            let mut differ = fleet.with_report(|report| differing(report, fleet.id(), change));
            let services = &self.services;
            differ.retain(|name| services.get(name).is_some_and(ServiceRuntime::changes_in_step));
            fleet.stepping.anew.looked = Some(Instant::now());
            fleet.stepping.anew.note(differ);
        }
        match fleet.stepping.since.elapsed() < LASTS {
            // They may differ because of the last step.
            true => BTreeSet::new(),
            false => fleet.stepping.anew.due(),
        }
    }

    /// A step begins that makes these anew.
    pub(super) fn makes_anew(&mut self, services: &BTreeSet<String>) {
        if let Some(fleet) = &mut self.fleet {
            fleet.stepping.anew.tried(services);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a balancer says whose service has this table, and so many backends up.
    fn sign(digest: &str, up: usize) -> Sign {
        let digest = Some(digest.to_owned());
        let service =
            ServiceSign { name: "a".into(), digest, up, backends: 3, ..Default::default() };
        Sign { change: 7, steps: true, services: vec![service], ..Sign::default() }
    }

    fn report<const N: usize>(signs: [Sign; N]) -> Report {
        let mut report = Report::default();
        for (at, sign) in signs.into_iter().enumerate() {
            let name = format!("lb{at}");
            report.balancers.insert(name.clone(), Sign { id: name, ..sign });
        }
        report
    }

    #[test]
    fn tables_differ_where_nothing_says_why() {
        let differs = |other: Sign| {
            let report = report([sign("1", 3), sign("1", 3), other]);
            !differing(&report, "lb0", 7).is_empty()
        };
        assert!(differs(sign("2", 3)));
        assert!(!differs(sign("1", 3)));
        assert!(!differs(sign("2", 2)), "it has another one dead");
        assert!(!differs(Sign { change: 6, ..sign("2", 3) }), "it is behind");
        assert!(!differs(Sign { steps: false, ..sign("2", 3) }), "it takes no packets yet");
    }

    /// No step does better than the last for who could not come to that, and says so.
    #[test]
    fn no_step_is_made_for_who_was_left_behind() {
        for (late, lags, differs) in
            [(false, false, true), (true, false, false), (false, true, false)]
        {
            let mut report = report([sign("1", 3), sign("1", 3), sign("2", 3)]);
            let stage = weir_fleet::Stage::Collect;
            let mut ack = Ack { id: "lb2".into(), step: (4, 2), stage, late, lags };
            report.acks.insert("lb2".into(), ack.clone());
            assert_eq!(!differing(&report, "lb0", 7).is_empty(), differs, "{ack:?}");
            // It is another process that has said so.
            ack.id = "former".into();
            report.acks.insert("lb2".into(), ack);
            assert!(!differing(&report, "lb0", 7).is_empty());
        }
    }

    #[test]
    fn what_does_not_help_is_tried_ever_more_seldom() {
        let mut anew = Anew::default();
        let differ = || BTreeSet::from(["a".to_owned()]);
        anew.note(differ());
        assert!(anew.due().is_empty(), "it may pass");
        anew.tried(&differ());
        anew.note(differ());
        assert_eq!(anew.differ["a"].1, LASTS * 2);
        (0..40).for_each(|_| anew.tried(&differ()));
        assert_eq!(anew.differ["a"].1, AT_MOST);
        anew.note(BTreeSet::new());
        anew.note(differ());
        assert_eq!(anew.differ["a"].1, LASTS);
    }

    #[test]
    fn only_who_lives_is_ahead() {
        let mut report = report([sign("1", 3), sign("1", 3)]);
        let ack = |id: &str, step| {
            let stage = weir_fleet::Stage::Done;
            Ack { id: id.into(), step, stage, late: false, lags: false }
        };
        assert_eq!(highest_said(&report), None);
        report.acks.insert("lb0".into(), ack("lb0", (4, 2)));
        report.acks.insert("lb1".into(), ack("another", (9, 1)));
        report.acks.insert("lb9".into(), ack("lb9", (8, 1)));
        assert_eq!(highest_said(&report), Some((4, 2)));
    }
}
