//! The build face: a Maglev table, or the list of a scheduler; the connections are the data plane's own affair.

use crate::BuildError;
use crate::method::{Build, Built, Drafts};
use crate::pool::Member;
use crate::registry::{Image, MethodId};
use crate::rows::Rows;
use crate::schedule::{Load, Scheduler};
use crate::state::StateKey;
use crate::table::{Flags, Header, NO_BACKEND, Table};
use std::sync::Arc;
use weir_hash::HashKey;
use weir_placement::{Candidate, Maglev};

/// Builds tables of one service.
#[derive(Clone, Debug)]
pub struct TrackedBuilder {
    key: HashKey,
    size: u32,
    flags: Flags,
    scheduler: Scheduler,
    drafts: Drafts,
}

impl TrackedBuilder {
    /// Tables of `size` slots (prime), hashed under a key that should outlive restarts.
    pub fn new(key: HashKey, size: u32, client_affinity: bool) -> Self {
        let flags = Flags::default().with(Flags::CLIENT, client_affinity);
        Self { key, size, flags, scheduler: Scheduler::Uniform, drafts: Drafts::default() }
    }

    /// The same, where new flows go where a scheduler says.
    #[must_use]
    pub fn scheduled(self, scheduler: Scheduler, load: Load) -> Self {
        Self { flags: Flags(self.flags.0 | scheduler.flags(load).0), scheduler, ..self }
    }

    /// Builds the table of a pool: a Maglev table, or the list that its scheduler picks from.
    ///
    /// # Errors
    /// [`BuildError::Maglev`] for a size that is not prime or too small.
    pub fn build(&self, generation: u64, members: &[Member]) -> Result<Image, BuildError> {
        let header = Header::new(self.key, self.flags, generation, 0);
        if self.scheduler != Scheduler::Uniform {
            let mut list = self.scheduler.list(members);
            if list.is_empty() {
                list.push(NO_BACKEND);
            }
            return Ok(Image::from(Table::new(header, Rows::<super::Method>::new(list))));
        }
        let candidates: Vec<_> = members
            .iter()
            .map(|member| Candidate {
                name: &member.name,
                backend: member.backend.get(),
                weight: member.effective_weight(),
            })
            .collect();
        let table = Maglev::build(self.size, &candidates)?;
        Ok(Image::from(Table::new(
            header,
            Rows::<super::Method>::new(table.slots().iter().copied()),
        )))
    }
}

impl Build for TrackedBuilder {
    fn method(&self) -> MethodId {
        MethodId::Tracked
    }

    fn draft(
        &mut self,
        generation: u64,
        members: &[Member],
        _now: u32,
    ) -> Result<Built<StateKey>, BuildError> {
        let table = Self::build(self, generation, members)?;
        Ok(self.drafts.draft(table))
    }

    fn publish_draft(&mut self) {
        self.drafts.publish();
    }

    fn discard_draft(&mut self) -> Result<(), BuildError> {
        self.drafts.discard();
        Ok(())
    }

    fn published(&self) -> Option<&Arc<Image>> {
        self.drafts.published()
    }
}
