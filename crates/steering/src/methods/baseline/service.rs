//! Baselines as services: tables of rows and nothing else, so a change breaks the flows whose rows
//! it moves.

use super::{ConsistentMethod, EcmpMethod};
use crate::BuildError;
use crate::decide::{Decide, Decision, Question, Why};
use crate::memory::Memory;
use crate::method::{Build, Built, Drafts, Method, Publish, ServiceConfig, Settings};
use crate::methods::jet::{Columns, PLACEMENT};
use crate::pool::{Member, shares};
use crate::registry::{Image, MethodId};
use crate::rows::{ROWS, Rows};
use crate::table::{Flags, Header, NO_BACKEND, Table, slot_elements};
use std::sync::Arc;
use weir_hash::{HashKey, Key};

/// Copies of all backends in the list of [`EcmpMethod`], unless there are more backends.
const MOST_COPIES: u64 = 4_096;

impl<K: Key> Decide<K> for Table<Rows<EcmpMethod>> {
    fn hash_key(&self) -> &HashKey {
        &self.header().key
    }

    fn decide<M: Memory<K>>(&self, question: &Question<K>, _: &mut M) -> Decision {
        // A remainder, as routers take it: a longer list moves nearly all flows.
        let row = question.hash as u32 % self.body().rows().len() as u32;
        Decision::to(self.body().at(row), Why::Row).by_row(row).new_if(question.signals.starts)
    }

    fn bytes(&self) -> usize {
        self.row_bytes()
    }
}

impl<K: Key> Decide<K> for Table<Rows<ConsistentMethod>> {
    fn hash_key(&self) -> &HashKey {
        &self.header().key
    }

    fn decide<M: Memory<K>>(&self, question: &Question<K>, _: &mut M) -> Decision {
        let row = self.body().row(question.hash);
        Decision::to(self.body().at(row), Why::Row).by_row(row).new_if(question.signals.starts)
    }

    fn bytes(&self) -> usize {
        self.row_bytes()
    }
}

/// The rows of a pool.
type Place = fn(&ServiceConfig, &[Member]) -> Result<Vec<u16>, BuildError>;

/// Builds tables of rows that depend on the pool alone.
struct Builder<M> {
    config: ServiceConfig,
    place: Place,
    drafts: Drafts,
    wrap: fn(Table<Rows<M>>) -> Image,
}

impl<M> Builder<M>
where
    Image: From<Table<Rows<M>>>,
{
    fn new(config: &ServiceConfig, place: Place) -> Self {
        let (config, drafts) = (config.clone(), Drafts::default());
        Self { config, place, drafts, wrap: Image::from }
    }
}

impl<M: Method + Clone + Eq + std::fmt::Debug> Build for Builder<M> {
    fn method(&self) -> MethodId {
        M::ID
    }

    fn draft(&mut self, generation: u64, pool: &[Member], _: u32) -> Result<Built, BuildError> {
        let rows = (self.place)(&self.config, pool)?;
        let flags = Flags::default().with(Flags::CLIENT, self.config.client_affinity);
        let header = Header::new(HashKey::from_seed(self.config.seed), flags, generation, 0);
        Ok(self.drafts.draft((self.wrap)(Table::new(header, Rows::<M>::new(rows)))))
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

impl Publish for EcmpMethod {
    type Body = Rows<Self>;

    /// Shares are rounded, each by half an entry at most.
    fn most_elements(_: &Settings, _: usize) -> usize {
        slot_elements(2 * MOST_COPIES.max(NO_BACKEND.into()) as usize)
    }

    fn builder(config: &ServiceConfig, _: Option<Arc<Image>>) -> Box<dyn Build> {
        Box::new(Builder::<Self>::new(config, |_, pool| {
            let rows = shares(pool, MOST_COPIES);
            Ok(if rows.is_empty() { vec![NO_BACKEND] } else { rows })
        }))
    }
}

impl Publish for ConsistentMethod {
    type Body = Rows<Self>;

    fn most_elements(settings: &Settings, _: usize) -> usize {
        slot_elements(settings.get(ROWS) as usize)
    }

    fn builder(config: &ServiceConfig, _: Option<Arc<Image>>) -> Box<dyn Build> {
        Box::new(Builder::<Self>::new(config, |config, pool| {
            let rows = config.settings.get(ROWS);
            let columns = Columns::new(config.settings.get(PLACEMENT), rows, pool)?;
            Ok((0..rows).map(|row| columns.at(row).0).collect())
        }))
    }
}
