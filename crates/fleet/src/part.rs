//! What is done in steps, decided by what was heard, said and done before, and by nothing else: no clock, no plane, no
//! store. A balancer's engine and the model checker (crates/fleet/tests/steps.rs) decide by this alone.

use crate::{Report, Stage, Step, StepId};

/// How far which step is.
pub type At = (StepId, Stage);

impl Step {
    /// How far which step it is.
    pub fn at(&self) -> At {
        (self.id(), self.stage)
    }
}

/// A balancer's part in steps: what it has said and done in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// What it has said of a step.
    pub acked: Option<At>,
    /// The step in which it has taken that back.
    pub left: Option<StepId>,
    /// The one in which its lease has run out while it kept its word.
    pub lapsed: Option<StepId>,
    /// The step for which no flow starts here.
    pub frozen: Option<StepId>,
    /// Whether the process before this one has kept flows from starting; none: nobody has looked.
    pub found_frozen: Option<bool>,
    /// Nothing that an earlier process has frozen is left so.
    pub thawed: bool,
    /// The last step whose pools packets follow.
    pub committed: Option<StepId>,
    /// The step for which nothing is left to do.
    pub over: Option<StepId>,
}

/// What is due in a step at a balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing, or no more.
    Nothing,
    /// To say that it takes part, if it can.
    Prepare,
    /// To keep flows from starting, and say so.
    Freeze,
    /// The same, and to learn what has begun.
    Collect,
    /// The same, and to let packets follow the next pools.
    Commit,
    /// To let packets follow the pools in force, where they do not, and flows start.
    End,
}

/// What a balancer's clock says while the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// For so long that it is no matter of a moment.
    pub lasts: bool,
    /// For so long that its lease has run out, by its own clock.
    pub lease_is_over: bool,
    /// This process began so long ago that the lease of the one before it has run out.
    pub lease_before_is_over: bool,
}

/// What a balancer does in steps while the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// It goes on in the step as far as it can.
    Follows,
    /// The same; but it notes that nobody waits for it any more. No flow starts, and it is not announced.
    Lapses(StepId),
    /// Nothing: it keeps the word of the process before it.
    Waits,
    /// It lets flows start by the table that it has, where none started, and takes its word back if it has given one.
    Starts {
        /// Its own, or that of the process before it.
        word: bool,
    },
}

impl Part {
    /// Whether it has said of a step, of whose end it has not heard, that no flow starts here.
    pub fn has_given_word(&self, at: Option<At>) -> bool {
        let said = at.filter(|(_, stage)| *stage != Stage::Done).zip(self.acked);
        said.is_some_and(|((step, _), (id, stage))| id == step && stage >= Stage::Freeze)
    }

    /// Whether it has said that it takes part in a step that is not over.
    pub fn is_in_step(&self, at: Option<At>) -> bool {
        let said = at.filter(|(_, stage)| *stage != Stage::Done).zip(self.acked);
        said.is_some_and(|((step, _), (id, _))| id == step)
    }

    /// Whether it has taken its word back in a step: it can come to no further stage before *commit*.
    pub fn has_left(&self, at: Option<At>) -> bool {
        let step = at.filter(|(_, stage)| *stage < Stage::Commit);
        step.is_some_and(|(step, _)| self.left == Some(step))
    }

    /// Whether a process before this one may have died after it has given its word. It stands until this process lets flows
    /// start, however far it has come in the step itself, and whether the store has answered it meanwhile: what the one
    /// before has said is there for as long as its lease.
    pub fn found_word(&self) -> bool {
        !self.thawed && self.found_frozen == Some(true)
    }

    /// What is due.
    pub fn due(&self, at: At) -> Due {
        match at.1 {
            Stage::Prepare if self.is_in_step(Some(at)) => Due::Nothing,
            Stage::Prepare => Due::Prepare,
            // It has let flows start since.
            Stage::Freeze | Stage::Collect if self.has_left(Some(at)) => Due::Nothing,
            Stage::Freeze => Due::Freeze,
            Stage::Collect => Due::Collect,
            Stage::Commit => Due::Commit,
            Stage::Done => Due::End,
        }
    }

    /// The step that it follows from now on, as the store has this one and it has followed another. One that is older,
    /// or none, is of a store that has lost its data, or has those of a copy: what has begun ends as it can. And whether
    /// that is so.
    pub fn hears(&self, own: Option<&Step>, stored: Option<Step>) -> (Option<Step>, bool) {
        let followed = own.map(Step::at).max(self.over.map(|id| (id, Stage::Done)));
        let old = |step: &Step| followed.is_some_and(|followed| step.at() < followed);
        let ends = |step: &Step| match step.stage >= Stage::Commit {
            true => step.onward().onward(),
            false => step.given_up(),
        };
        let stored = stored.filter(|step| !old(step));
        let outlived = stored.is_none() && own.is_some();
        (stored.or_else(|| own.map(ends)), outlived)
    }

    /// It follows another step, or another stage, than it did. Returns whether it has to ask agents again what has begun:
    /// what they have said before *collect*, for a table that was to be made up for, knows nothing of flows that others
    /// have let start since.
    pub fn turns_to(&mut self, own: Option<&Step>, next: Option<&Step>) -> bool {
        // The table that was to be followed is lost, and another one takes its place.
        if let (Some(was), Some(is)) = (own, next)
            && was.at() == is.at()
            && is.stage == Stage::Commit
            && was.next_tables != is.next_tables
        {
            (self.committed, self.acked) = (None, Some((is.id(), Stage::Collect)));
        }
        self.over = None;
        let collects = next.filter(|next| next.stage >= Stage::Collect);
        collects.is_some_and(|next| own.is_none_or(|own| own.at() < (next.id(), Stage::Collect)))
    }

    /// What it does while the store does not answer. `strict`: it is not announced while the others may go on by its word
    /// without its hearing of that.
    pub fn apart(&self, at: Option<At>, strict: bool, silence: Silence) -> Apart {
        let word = self.has_given_word(at);
        let found = !word && self.found_word();
        if found && (strict || !silence.lease_before_is_over) {
            return Apart::Waits;
        }
        let lapses = at.filter(|_| word && strict && silence.lease_is_over);
        if let Some((step, _)) = lapses.filter(|(step, _)| self.lapsed != Some(*step)) {
            return Apart::Lapses(step);
        }
        if !silence.lasts || word && (strict || !silence.lease_is_over) {
            return Apart::Follows;
        }
        Apart::Starts { word: word || found }
    }

    /// Flows start here again, and what was said of the step counts no more.
    pub fn takes_back(&mut self, step: StepId) {
        (self.left, self.acked, self.committed) = (Some(step), None, None);
    }

    /// A process that comes after one of which nothing is known but how it has left the packets.
    pub fn after(frozen: bool) -> Self {
        Self { found_frozen: Some(frozen), ..Self::default() }
    }
}

/// What a leader waits for in a stage, for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Nobody.
    None,
    /// That all come so far, before *commit*.
    Stage(Stage),
    /// That all come to *commit*, of which they know.
    Commit,
    /// That all come to *commit*, or the leases of those have run out that do not know of it.
    Lease,
}

/// What a leader does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Nothing yet.
    Waits,
    /// The words by which it would go on are old: it gives the step up.
    GivesUpOld,
    /// Not everybody came so far in time: it gives the step up.
    GivesUp,
    /// All know what there is: it builds the tables that all are to follow, and goes on to *commit*.
    Commits,
    /// The same again, as those that were built are lost.
    CommitsAnew,
    /// It goes on to the next stage.
    GoesOn,
    /// It goes on without those that did not come so far.
    GoesOnWithout,
}

/// What a leader knows of the step that it leads, beside the step.
#[derive(Debug)]
pub struct Leading<'a> {
    /// Who has not come so far.
    pub missing: &'a [String],
    /// What all have said.
    pub report: &'a Report,
    /// It has written the step's stage itself, in this term, and not so long ago that anybody may have taken back by now
    /// what it has said since.
    pub wrote: bool,
    /// The tables that all are to follow are lost.
    pub lost: bool,
}

impl Step {
    /// What the leader does next, who has waited long enough for some.
    pub fn led(&self, leading: &Leading<'_>, is_over: impl FnOnce(Patience) -> bool) -> Lead {
        let &Leading { missing, report, wrote, lost } = leading;
        if matches!(self.stage, Stage::Freeze | Stage::Collect) && !wrote {
            return Lead::GivesUpOld;
        }
        if missing.is_empty() {
            return if self.stage == Stage::Collect { Lead::Commits } else { Lead::GoesOn };
        }
        if self.stage == Stage::Commit && lost {
            return Lead::CommitsAnew;
        }
        // Whoever lags leads flows by another table, however long the others wait.
        let awaited = self.awaited(missing, report);
        let patience = match self.stage {
            Stage::Commit if awaited.is_empty() => Patience::None,
            Stage::Commit | Stage::Done if self.may_not_know(&awaited, report) => Patience::Lease,
            Stage::Commit | Stage::Done => Patience::Commit,
            stage => Patience::Stage(stage),
        };
        if patience != Patience::None && !is_over(patience) {
            return Lead::Waits;
        }
        if self.stage >= Stage::Commit { Lead::GoesOnWithout } else { Lead::GivesUp }
    }
}
