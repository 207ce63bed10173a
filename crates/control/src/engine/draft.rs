//! The next table of a service: what it is made by, and what comes of it.

use super::EngineError;
use super::prefixes::Counted;
use super::service::{Pins, ServiceRuntime};
use crate::config::Protocol;
use std::collections::HashSet;
use std::sync::Arc;
use tracing::warn;
use weir_steering::{
    Armed, BackendId, BuildError, Built, Flags, Image, Member, Parcel, Role, ServiceState, StateKey,
};

/// What a table is made by, beside the states.
pub(super) struct Draft {
    members: Vec<Member>,
    generation: u64,
    servers: Option<Vec<(String, Option<u64>)>>,
    parcel: Option<Arc<Parcel>>,
}

impl Draft {
    /// Makes it of the states.
    pub fn make(
        self,
        builder: &mut Counted,
        now: u32,
        armed: Armed<'_>,
    ) -> Result<Built, BuildError> {
        let Self { members, generation, servers, parcel } = self;
        if let Some(servers) = &servers {
            builder.number_servers(servers);
        }
        match parcel {
            Some(parcel) => builder.draft_of(generation, &members, &parcel),
            None => builder.draft_beside(generation, &members, now, armed),
        }
    }
}

impl ServiceRuntime {
    /// Drafts the next table; with the states to be pinned beside it. It is published when
    /// [`published`](Self::published) says so.
    ///
    /// Of the connections whose first packet may be repeated no more than `most` are pinned, the
    /// youngest: those that are armed keep their place without.
    ///
    /// Those that packets know to live are not pinned.
    ///
    /// The last of the three are connections that the connection table must have besides.
    pub fn build(
        &mut self,
        now: u32,
        most: usize,
        armed: Armed<'_>,
    ) -> Result<(Arc<Image>, Pins, Pins), EngineError> {
        let draft = self.begin_draft(now)?;
        let drafted = self.next_builder(now).and_then(|(builder, tracked)| {
            let built = draft.make(builder, now, armed)?;
            Ok((built, tracked))
        });
        let taken = drafted.and_then(|(built, tracked)| {
            let (table, pins) = self.take_draft(built, now, most)?;
            Ok((table, pins, tracked))
        });
        if taken.is_err() {
            self.unfold_young();
        }
        taken
    }

    /// What the next table is to be made by: what begins with that is over when it is published or discarded, or
    /// [given up](Self::unfold_young).
    pub fn begin_draft(&mut self, now: u32) -> Result<Draft, EngineError> {
        let begun = self.fold_young(now).and_then(|()| self.draft_of());
        if begun.is_err() {
            self.unfold_young();
        }
        begun
    }

    fn draft_of(&self) -> Result<Draft, EngineError> {
        let members = self.members();
        let generation = self.generation + 1;
        let servers = self.servers.clone();
        let follows = self.agreed.is_some() && self.makes_shared() && !self.to_be_shared;
        let base = self.next_base.as_ref().or(self.base.as_ref());
        let parcel = base.filter(|_| follows).map(|base| Arc::clone(&base.parcel));
        if follows && parcel.is_none() {
            return Err(EngineError::Conflict("the table of the fleet is not here yet".into()));
        }
        Ok(Draft { members, generation, servers, parcel })
    }

    /// The next table is made: what is to be published, with the states to be pinned.
    ///
    /// # Errors
    /// [`EngineError`] if it is not the one that the fleet has agreed on.
    pub fn take_draft(
        &mut self,
        mut built: Built,
        now: u32,
        most: usize,
    ) -> Result<(Arc<Image>, Pins), EngineError> {
        let number = self.number;
        self.has_wanted_rows(&built.table)?;
        let before = built.pinned.len();
        if built.table.header().flags().has(Flags::MARK) && !self.is_by_client() {
            built.pinned.truncate(most);
        } else {
            self.leave_out_the_dead(&mut built.pinned, most);
        }
        let left = before - built.pinned.len();
        if built.astray > 0 {
            let (service, astray) = (&self.configured.name, built.astray);
            warn!(
                service,
                astray, "the table of the fleet leads connections astray that it was built without"
            );
        }
        if left > 0 {
            // Then a flow that is not pinned may be one that lives there.
            let flags = built.table.header().flags();
            built.table.set_flags(flags.with(Flags::EXACT, false));
        }
        self.unpinned = (left, now);
        if left > 0 {
            let service = &self.configured.name;
            let [whose, _] = self.of_unpinned();
            warn!(service, left, most, "{whose} are not pinned: too many");
        }
        self.orphans = built.orphans;
        let pin = |(key, id): (StateKey, BackendId)| (ServiceState { service: number, key }, id);
        Ok((built.table, built.pinned.into_iter().map(pin).collect()))
    }

    /// Leaves pins of backends that are down out, the oldest first, while there are more than `most` in all. (The
    /// youngest come first.) Those flows are lost, if the check is right. Where any packet may look like a first one
    /// all others are to be pinned; but for the sake of these a service would get no other table, and note new flows
    /// among the pending ones of all services, until they have been silent for its idle time.
    fn leave_out_the_dead(&self, pins: &mut Vec<(StateKey, BackendId)>, most: usize) {
        let beyond = pins.len().saturating_sub(most);
        if beyond == 0 {
            return;
        }
        let members = self.members();
        let down = members.iter().filter(|member| member.role == Role::Down);
        let down: HashSet<BackendId> = down.map(|member| member.backend).collect();
        let dead = pins.iter().filter(|(_, backend)| down.contains(backend)).count();
        let mut kept = dead.saturating_sub(beyond);
        pins.retain(|(_, backend)| {
            if !down.contains(backend) {
                return true;
            }
            let stays = kept > 0;
            kept = kept.saturating_sub(1);
            stays
        });
    }

    /// Of what there may be more than may be pinned, and what becomes of it.
    pub fn of_unpinned(&self) -> [&'static str; 2] {
        if self.configured.protocol == Protocol::Udp || self.is_by_client() {
            [
                "flows of backends that are down",
                "one that comes again after a silence goes elsewhere",
            ]
        } else {
            [
                "connections of draining backends",
                "a SYN that is repeated before they were seen alive goes elsewhere",
            ]
        }
    }
}
