//! The build face of Cheetah: numbers for servers, which outlive their tables.

use super::body::{Body, Form, MOST_ELEMENTS, Partitioned, Slots};
use super::config::{
    NUMBERS, PARTITIONS, StatefulMethod, StatelessMethod, TIER_BITS, answered_by_backends, forged,
    numbers,
};
use super::layout::FIELD_BITS;
use super::{AllServers, ServiceServers, Stateless, Table as Cookies};
use crate::BuildError;
use crate::method::{Build, Built, Publish, ServiceConfig, Settings};
use crate::pool::Member;
use crate::registry::{Image, MethodId};
use crate::schedule::{self, Scheduler};
use crate::table::{Flags, Header, Table};
use std::marker::PhantomData;
use std::sync::Arc;
use weir_hash::HashKey;

/// Builds tables of one service.
pub struct CheetahBuilder<S> {
    config: ServiceConfig,
    all: AllServers,
    /// The numbers that somebody else has given, for all balancers alike.
    given: Option<AllServers>,
    published: Option<Arc<Image>>,
    draft: Option<(Arc<Image>, AllServers)>,
    /// The published table says which backend has which number; names are not known yet.
    resumed: bool,
    form: PhantomData<fn() -> S>,
}

impl<S: Form> CheetahBuilder<S> {
    /// Goes on from a published table: whoever is still there keeps its number.
    pub fn new(config: &ServiceConfig, published: Option<Arc<Image>>) -> Self {
        let key = HashKey::from_seed(config.seed);
        let same = |image: &Arc<Image>| image.method() == S::METHOD && image.header().key == key;
        let published = published.filter(same);
        Self {
            config: config.clone(),
            all: AllServers::new(Self::most_servers(config)),
            given: None,
            resumed: published.is_some(),
            published,
            draft: None,
            form: PhantomData,
        }
    }

    /// How many servers cookies, or slots, tell apart.
    fn most_servers(config: &ServiceConfig) -> u32 {
        if S::PARTITIONED { NUMBERS } else { numbers(&config.settings) }
    }

    /// The numbers with those of the table that an earlier run has left.
    fn numbers(&self, members: &[Member]) -> AllServers {
        if let Some(given) = &self.given {
            return given.clone();
        }
        let numbers = self.published.as_deref().and_then(servers).filter(|_| self.resumed);
        let Some(servers) = numbers else { return self.all.clone() };
        let name = |backend: &u16| {
            let member = members.iter().find(|member| member.backend == *backend);
            member.map(|member| member.name.clone())
        };
        AllServers::resume(Self::most_servers(&self.config), servers.backends().iter().map(name))
    }
}

/// The servers of a table, if it is one of cookies.
pub fn servers(image: &Image) -> Option<&ServiceServers> {
    match image {
        Image::Cheetah(table) => Some(&table.body().0.servers),
        Image::CheetahStateful(table) => Some(&table.body().0.servers),
        _ => None,
    }
}

impl<S: Form> Build for CheetahBuilder<S>
where
    Image: From<Table<Body<S>>>,
{
    fn method(&self) -> MethodId {
        S::METHOD
    }

    fn draft(&mut self, generation: u64, pool: &[Member], _: u32) -> Result<Built, BuildError> {
        self.draft = None;
        let mut all = self.numbers(pool);
        all.keep_only(|name| pool.iter().any(|member| member.name == name));
        for member in pool {
            all.join(&member.name)?;
        }
        let settings = &self.config.settings;
        let servers = ServiceServers::scheduled(&all, pool, Scheduler::of(settings))?;
        let key = HashKey::from_seed(self.config.seed);
        let slots =
            Slots { partitions: settings.get(PARTITIONS), idle_seconds: self.config.idle_seconds };
        let tells = answered_by_backends(settings);
        let wanted =
            schedule::flags(settings).with(Flags::ANSWERS, !tells).with(Flags::TELLS, tells);
        let others = match settings.get(TIER_BITS) {
            bits if bits > 0 && !S::PARTITIONED => FIELD_BITS - 1 - bits,
            bits => bits,
        };
        let layout = S::shared(others).expect("the setting's range is that of layouts");
        let method = S::new(key, forged(settings), slots, wanted, layout);
        // What stands in an answer the balancer writes by its number alone.
        let method = method.keyed(settings.cookie_keys().filter(|_| tells));
        let flags = method
            .scheduling()
            .with(Flags::CLIENT, self.config.client_affinity)
            .with(Flags::ANSWERS, method.answers())
            .with(Flags::TELLS, method.tells());
        let header = Header::new(key, flags, generation, 0);
        let table = Table::new(header, Body(Cookies::new(method, servers)));
        let image = Arc::new(Image::from(table));
        self.draft = Some((image.clone(), all));
        Ok(Built { table: image, pinned: Vec::new(), orphans: Vec::new(), astray: 0 })
    }

    fn publish_draft(&mut self) {
        if let Some((image, all)) = self.draft.take() {
            (self.published, self.all, self.resumed) = (Some(image), all, false);
        }
    }

    fn discard_draft(&mut self) -> Result<(), BuildError> {
        self.draft = None;
        Ok(())
    }

    fn set_idle_seconds(&mut self, seconds: u32) {
        self.config.idle_seconds = seconds;
    }

    fn published(&self) -> Option<&Arc<Image>> {
        self.published.as_ref()
    }

    fn number_servers(&mut self, servers: &[(String, Option<u64>)]) {
        self.given = Some(AllServers::of_list(Self::most_servers(&self.config), servers));
    }

    fn resume_numbers(&mut self, servers: &[(String, Option<u64>)]) {
        if self.published.is_none() {
            self.all = AllServers::of_list(Self::most_servers(&self.config), servers);
        }
    }

    fn numbered(&self, members: &[Member]) -> Vec<(String, Option<u64>)> {
        self.numbers(members).list()
    }
}

impl Publish for StatelessMethod {
    type Body = Body<Stateless>;

    fn most_elements(_: &Settings, _: usize) -> usize {
        MOST_ELEMENTS
    }

    fn builder(config: &ServiceConfig, published: Option<Arc<Image>>) -> Box<dyn Build> {
        Box::new(CheetahBuilder::<Stateless>::new(config, published))
    }
}

impl Publish for StatefulMethod {
    type Body = Body<Partitioned>;

    fn most_elements(_: &Settings, _: usize) -> usize {
        MOST_ELEMENTS
    }

    fn builder(config: &ServiceConfig, published: Option<Arc<Image>>) -> Box<dyn Build> {
        Box::new(CheetahBuilder::<Partitioned>::new(config, published))
    }
}
