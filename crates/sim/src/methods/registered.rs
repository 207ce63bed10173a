//! Any method of `weir_steering`'s registry that has tables of its own to publish.

use super::memory::{Remembered, Shared};
use super::pool::Members;
use super::steered::{Face, Steered};
use super::tables::{Connections, Eviction, Release};
use crate::flow::Traffic;
use crate::method::{Change, ENTRY_BYTES, Effects, FlowRef, Gauges, id_of, state_key};
use crate::world::World;
use std::sync::Arc;
use weir_hash::HashKey;
use weir_steering::{
    BackendId, Build, BuildError, DCODE_BITS, Decide, Decision, EventKind, Image, Memory, MethodId,
    Question, ServiceConfig, SettingError, Settings, TABLE_SIZE,
};

/// Why a method cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum MethodError {
    /// Its first table cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It has no such setting, or not with this value.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// JET refuses the pool or the placement.
    #[error(transparent)]
    Jet(#[from] weir_steering::jet::JetError),
    /// It has no tables that a kernel plane could hold.
    #[error("{0} has no tables of its own to publish")]
    NoTables(String),
    /// HNLB's card is one balancer's.
    #[error("hnlb has one card, so it needs a pool with one balancer (pool.balancers = 1)")]
    OneBalancer,
}

/// The build face of a registered method: the one that the balancer's engine drives.
///
/// It is told of every start, by the data plane's reports, and of every end, by the server. A
/// change builds a table from the pool and the states, and publishes it: record, collect and commit
/// take no time, so a flow is pending only if it started on a row of a draining server.
pub struct Registered {
    build: Box<dyn Build>,
    table: Arc<Image>,
    members: Members,
    generation: u64,
    /// Bits that a state takes in the compact map.
    bits_per_state: f64,
}

const SEED: u64 = 0x7265_6769;

/// Cells of an Othello for each state.
const CELLS_PER_STATE: f64 = 2.33;

/// A registered method under simulation.
pub type Published = Steered<Registered>;

impl Published {
    /// A registered method with these settings, for the servers and balancers of a world. Each
    /// balancer has a connection table for `room` flows, if the method needs one.
    ///
    /// # Errors
    ///
    /// [`MethodError`].
    pub fn new(
        settings: Settings,
        world: &World,
        room: usize,
        eviction: Eviction,
        release: Release,
    ) -> Result<Self, MethodError> {
        let info = settings.method().info();
        let builder = info.builder.ok_or(MethodError::NoTables(info.name.to_owned()))?;
        let bits_per_state = CELLS_PER_STATE * f64::from(settings.get(DCODE_BITS));
        let config = ServiceConfig {
            settings,
            client_affinity: false,
            udp: false,
            seed: SEED,
            nonce: SEED,
            capacity: 0,
            max_states: usize::MAX,
            idle_seconds: u32::MAX,
        };
        let mut build = builder(&config, None);
        let table = build.build(1, &[], 0)?.table;
        let key = HashKey::from_seed(SEED);
        let memory = |_| {
            let needed = info.needs.connections;
            Remembered::new(
                needed.then(|| Shared::new(key, Connections::new(room, eviction, release))),
            )
        };
        let memories = (0..world.balancers.max(1)).map(memory).collect();
        let members = Members::new(&world.server_weights());
        let face = Registered { build, table, members, generation: 1, bits_per_state };
        Ok(Self { face, memories })
    }

    /// Concury with Dcodes of so many bits.
    ///
    /// # Errors
    ///
    /// [`MethodError::Setting`].
    pub fn concury(bits: u32, world: &World) -> Result<Self, MethodError> {
        let mut settings = Settings::of(MethodId::Concury);
        settings.set(DCODE_BITS, bits.into())?;
        Self::new(settings, world, 0, Eviction::default(), Release::default())
    }

    /// Full tracking over Maglev hashing, as the XDP program has it: entries for `room` flows, which
    /// leave the kernel's table only to make room.
    ///
    /// # Errors
    ///
    /// [`MethodError::Setting`] for a table size that is no prime.
    pub fn tracked(slots: u32, world: &World, room: usize) -> Result<Self, MethodError> {
        let mut settings = Settings::of(MethodId::Tracked);
        settings.set(TABLE_SIZE, slots.into())?;
        Self::new(settings, world, room, Eviction::Kernel, Release::Never)
    }
}

/// The rows of a table whose flows are always grouped in the same way.
fn rows_of(table: &Image) -> Option<&[u16]> {
    match table {
        Image::Tracked(table) => Some(table.body().rows()),
        _ => None,
    }
}

impl Face for Registered {
    fn hash_key(&self, _: u16) -> &HashKey {
        &self.table.header().key
    }

    fn decide<M: Memory<u64>>(&self, _: u16, question: &Question<u64>, memory: &mut M) -> Decision {
        self.table.decide(question, memory)
    }

    fn rows(&self) -> usize {
        rows_of(&self.table).map_or(1, <[u16]>::len)
    }

    fn row_of(&self, hash: u64) -> u32 {
        match &*self.table {
            Image::Tracked(table) => table.body().row(hash),
            _ => 0,
        }
    }

    fn change(
        &mut self,
        changes: &[Change],
        memories: &mut [Remembered],
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) {
        for &change in changes {
            self.members.follow(change);
            if let Change::Remove(server) = change {
                memories.iter_mut().for_each(|memory| memory.forget(server, &mut effects.flows));
            }
        }
        self.generation += 1;
        let built = self.build.build(self.generation, self.members.all(), traffic.now() as u32);
        let built = match built {
            Ok(built) => built,
            // The engine of the balancer refuses the change, too: the former table stays.
            Err(error) => {
                debug_assert!(false, "{error}");
                return;
            }
        };
        let before = std::mem::replace(&mut self.table, built.table);
        let pins = built.pinned.iter().map(|(key, backend)| (id_of(key), *backend));
        for memory in memories {
            memory.pinned = pins.clone().collect();
            let build = &self.build;
            memory.pending.retain(|&id, backend| !build.agrees(&state_key(id), *backend));
        }
        match (rows_of(&before), rows_of(&self.table)) {
            (Some(before), Some(now)) => {
                let differ = before.iter().zip(now).enumerate().filter(|(_, (a, b))| a != b);
                effects.rows.extend(differ.map(|(row, _)| row as u32));
            }
            _ => effects.rows.push(0),
        }
    }

    fn reported(&mut self, flow: FlowRef, server: u16, kind: EventKind) {
        if let (EventKind::Start, Some(backend)) = (kind, BackendId::new(server)) {
            let started = self.build.start(state_key(flow.id), backend, 0);
            debug_assert!(started.is_ok(), "{started:?}");
        }
    }

    fn ended(&mut self, flow: FlowRef) {
        self.build.forget(&state_key(flow.id));
    }

    fn gauges(&self, memories: &[Remembered]) -> Gauges {
        let (states, entries) = (self.build.states(), memories.iter().map(Remembered::entries));
        let entries = entries.sum::<usize>();
        Gauges {
            tracked: states + entries,
            marked_rows: if entries > 0 { 1.0 } else { 0.0 },
            state_bytes: states as f64 * self.bits_per_state / 8.0 + entries as f64 * ENTRY_BYTES,
            evictions: memories.iter().map(Remembered::evictions).sum(),
            ..Gauges::default()
        }
    }
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Registered").field("table", &self.table.header()).finish_non_exhaustive()
    }
}
