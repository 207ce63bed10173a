//! What everybody makes of it: whether all are of one mind, and what stands where if not.

use super::*;
use weir_fleet::Replayed;

impl Fleet {
    /// What every balancer makes of a connection.
    pub(super) fn looks(&self, client: u32) -> String {
        let key = StateKey::of_flow(&flow(0, client));
        let each = self.members.iter().map(|member| {
            let engine = member.engine.as_ref().expect("it runs");
            let service = &engine.services["a"];
            let name = |id| service.name_of(id);
            let known = service.known(&key).map(|known| (name(known.backend), known.phase));
            let to = service.pool.iter().find(|one| service.builder.agrees(&key, one.id));
            let table = (to.map(|one| one.wanted.name.clone()), service.builder.on_reserved(&key));
            let agreed: Vec<_> = service
                .agreed
                .iter()
                .flatten()
                .map(|s| (s.name.clone(), s.weight, s.drains, s.down))
                .collect();
            let words = member.sessions.iter().map(|(n, session)| (n, session.words.len()));
            let state = weir_steering::ServiceState { service: service.number, key };
            let pending = weir_plane::Plane::pending_backend(&engine.plane, &state);
            let pending = pending.expect("it can be read").map(name);
            let pinned = engine.plane.memory.pinned.get(&state).copied().map(name);
            let flags = engine.plane.tables.get(&service.number).map(|table| table.header().flags());
            let here = (&service.dead_here, service.pool.iter().map(|one| (one.id, one.up)));
            let here = (here.0, here.1.collect::<Vec<_>>());
            format!(
                "knows {known:?}, leads to {table:?}, pending {pending:?}, pinned {pinned:?}, {flags:?}, \
                 dead here {here:?}, claim {:?}, begun {:?}, generation {}, {agreed:?}, words {:?}, cut {:?}",
                service.claims.of(&key).iter().map(|at| name(*at)).collect::<Vec<_>>(),
                service.young.get(&key).map(|begun| name(begun.backend)),
                service.generation,
                words.collect::<Vec<_>>(),
                member.cut.keys().collect::<Vec<_>>()
            )
        });
        let doings = self.doings.borrow();
        let doings: Vec<&str> = doings.get(&client).into_iter().flatten().map(|s| &**s).collect();
        format!(
            "{}\ndead {:?}\n{}\n{}\n{}",
            each.collect::<Vec<_>>().join("\n"),
            self.dead,
            self.stands(),
            doings.join("\n"),
            self.marks_of(self.step_at_all())
        )
    }

    /// Where everybody is, in words.
    pub(super) fn stands(&self) -> String {
        let members = self.members.iter().map(|member| {
            let engine = member.engine.as_ref().expect("it runs");
            let waits = (engine.is_learning(), engine.settles(), member.items.len());
            format!("{waits:?} {:?} {:?}", engine.fleet_warnings(), engine.step_status())
        });
        let members: Vec<String> = members.collect();
        let (done, given_up) = (self.done, self.given_up);
        format!(
            "{done} steps, {given_up} given up, leader {}, {:?}, {members:?}",
            self.leader, self.step
        )
    }

    /// Nothing is left to do.
    pub(super) fn is_quiet(&self) -> bool {
        let over = self.step.as_ref().is_some_and(|step| {
            let pool = step.pools.get("a").map_or(&[][..], Vec::as_slice);
            let agreed = |(n, weight): (&u8, &u32)| {
                let share = pool.iter().find(|share| share.name == format!("b{n}"));
                // Who is down and drains counts as down.
                share.is_some_and(|share| {
                    share.down || share.drains == (*weight == 0) && share.weight == (*weight).max(1)
                })
            };
            step.stage == Stage::Done
                && pool.len() == self.pool.len()
                && self.pool.iter().all(agreed)
        });
        over && self.members.iter().all(|member| {
            let engine = member.engine.as_ref().expect("it runs");
            let alone = engine.services.values().any(|service| !service.dead_here.is_empty());
            let words = member.sessions.values().all(|session| session.words.is_empty());
            // Whoever was late to hear that a step is done lets flows start a moment later.
            let starts = engine.services.get("a").is_some_and(|service| {
                let table = engine.plane.tables.get(&service.number);
                table.is_some_and(|table| {
                    let flags = table.header().flags();
                    !flags.has(Flags::FROZEN) && !flags.has(Flags::PENDING)
                })
            });
            // Whoever was cut off may lead flows by the table of before until it has the one that the others have.
            let lacks = engine.services.get("a").is_some_and(|service| {
                let digest = self.step.as_ref().and_then(|step| step.tables.get("a"));
                service.is_shared() && digest.is_some_and(|digest| service.lacks(digest))
            });
            member.items.is_empty()
                && words
                && starts
                && !lacks
                && !alone
                && member.sessions.len() + self.off.len() == usize::from(BACKENDS)
        })
    }

    /// The tables of all balancers lead new flows alike.
    pub(super) fn agree(&self) {
        let lend = self.method == CONCURY;
        let say = |sign: &Sign| sign.tables.as_deref() == Some("127.0.0.1:4479");
        assert!(self.signs.len() == BALANCERS && self.signs.values().all(|sign| say(sign) == lend));
        let digests = self.members.iter().map(|member| {
            let engine = member.engine.as_ref().expect("it runs");
            let service = &engine.services["a"];
            let table = || {
                format!(
                    "a table: {:?}, {:?}, {:?}",
                    self.step,
                    service.agreed,
                    engine.fleet_warnings()
                )
            };
            let image = service.builder.published().unwrap_or_else(|| panic!("{}", table()));
            let flags = engine.plane.tables[&service.number].header().flags();
            assert!(
                !flags.has(Flags::FROZEN) && !flags.has(Flags::PENDING),
                "flows start: {flags:?}"
            );
            crate::engine::fleet::digest_of(service, image)
        });
        let digests: Vec<String> = digests.collect();
        assert!(digests.iter().all(|one| *one == digests[0]), "{digests:?}");
    }

    /// What a balancer has done in steps since.
    pub(super) fn note_marks(&mut self, at: usize) {
        let fleet = self.members[at].engine.as_mut().and_then(|engine| engine.fleet.as_mut());
        let marks = std::mem::take(&mut fleet.expect("it is of one").stepping.marks);
        self.trace.extend(marks);
    }

    /// What all have done in the last steps up to one.
    fn marks_of(&self, number: u64) -> String {
        let of = self.trace.iter().filter(|mark| (number - 1..=number).contains(&mark.step.1));
        of.map(|mark| format!("{mark:?}")).collect::<Vec<_>>().join("\n")
    }

    /// All that was done in steps keeps to their rules.
    pub(super) fn replay(&self) -> Replayed {
        weir_fleet::replay(&self.trace).unwrap_or_else(|broken| {
            let all: Vec<String> = self.trace.iter().map(|mark| format!("{mark:?}")).collect();
            panic!("{broken}\n{}", all.join("\n"))
        })
    }
}
