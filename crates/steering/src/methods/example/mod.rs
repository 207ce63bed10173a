//! A method to be copied (docs/add-a-method.md): rows in proportion to the weights, no memory.
//! Only builds with the feature `example` have it.

use crate::method::{self, Build, Built, Drafts, Needs, Publish, ServiceConfig, Setting, Settings};
use crate::{
    BuildError, Decide, Decision, Flags, Header, Image, Member, Memory, MethodId, Question,
};
use crate::{NO_BACKEND, Rows, Table, Why, slot_elements};
use std::sync::Arc;
use weir_hash::{HashKey, Key};

/// The example, as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Method;

impl method::Method for Method {
    const ID: MethodId = MethodId::Example;
    const NAME: &'static str = "example";
    const SUMMARY: &'static str = "rows in proportion to the weights";
    const NEEDS: Needs = Needs::NOTHING;
    const SETTINGS: &'static [Setting] = &[Setting::number("rows", (1, 1 << 16), 256)];
}

impl<K: Key> Decide<K> for Table<Rows<Method>> {
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

struct Builder(ServiceConfig, Drafts);

impl Publish for Method {
    type Body = Rows<Self>;

    fn most_elements(settings: &Settings, _: usize) -> usize {
        slot_elements(settings.get("rows") as usize)
    }

    fn builder(config: &ServiceConfig, _: Option<Arc<Image>>) -> Box<dyn Build> {
        Box::new(Builder(config.clone(), Drafts::default()))
    }
}

impl Build for Builder {
    fn method(&self) -> MethodId {
        MethodId::Example
    }

    fn draft(&mut self, generation: u64, pool: &[Member], _: u32) -> Result<Built, BuildError> {
        let shares = pool.iter().flat_map(|m| (0..m.effective_weight()).map(|_| m.backend.get()));
        let shares: Vec<u16> = shares.collect();
        let at = |row: u32| shares.get(row as usize % shares.len().max(1)).copied();
        let rows = (0..self.0.settings.get("rows")).map(|row| at(row).unwrap_or(NO_BACKEND));
        let flags = Flags::default().with(Flags::CLIENT, self.0.client_affinity);
        let header = Header::new(HashKey::from_seed(self.0.seed), flags, generation, 0);
        Ok(self.1.draft(Image::from(Table::new(header, Rows::<Method>::new(rows)))))
    }

    fn publish_draft(&mut self) {
        self.1.publish();
    }

    fn discard_draft(&mut self) -> Result<(), BuildError> {
        self.1.discard();
        Ok(())
    }

    fn published(&self) -> Option<&Arc<Image>> {
        self.1.published()
    }
}
