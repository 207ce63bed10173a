//! `weir explain`: where the packets of a flow go, and why, read from the data plane itself.

use super::service::ServiceRuntime;
use super::{Engine, EngineError};
use crate::config::Affinity;
use serde::{Deserialize, Serialize};
use weir_steering::{
    Image, Method, NO_BACKEND, SLOT_BACKEND, SLOT_RESERVED, ServiceState, StateKey, place_again,
};
use weir_wire::hash::scale;
use weir_wire::{FlowKey, map_address};

/// A flow's way through the tables.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The flow.
    pub flow: String,
    /// The service, if one takes it.
    pub service: Option<String>,
    /// Method of the service.
    pub method: Option<String>,
    /// Generation of the published table.
    pub generation: Option<u64>,
    /// Its digest, hexadecimal.
    pub digest: Option<String>,
    /// The flow's hash under the table's key, hexadecimal.
    pub hash: Option<String>,
    /// The Dcode, or the slot of the Maglev table.
    pub code: Option<u32>,
    /// Whether that Dcode is reserved for a draining backend.
    pub reserved: bool,
    /// Whether the control plane knows a state of this flow (or client).
    pub known: bool,
    /// Whether the flow is in the pending table.
    pub pending: bool,
    /// The backend that the flow's packets go to.
    pub backend: Option<String>,
    /// Its address.
    pub address: Option<String>,
    /// If the flow has not begun: the backend of its first packet.
    pub backend_if_new: Option<String>,
    /// Why.
    pub why: String,
}

impl Engine {
    pub(super) fn explain(&self, flow: &FlowKey) -> Result<Explanation, EngineError> {
        let mut said = Explanation { flow: flow.to_string(), ..Explanation::default() };
        let Some(service) = self.service_of(flow) else {
            said.why = "no service is configured at this destination; its packets are left to \
                        the kernel"
                .into();
            return Ok(said);
        };
        said.service = Some(service.configured.name.clone());
        said.method = Some(service.configured.method.name().into());
        let Some(image) = self.plane.published(service.number)? else {
            said.why = "the service has no published table; its packets are dropped".into();
            return Ok(said);
        };
        let key = match service.configured.affinity {
            Affinity::Flow => StateKey::of_flow(flow),
            Affinity::Client => StateKey::of_client(flow),
        };
        let state = ServiceState { service: service.number, key };
        let hash = weir_lookup::Key::hash(&key, &image.header().key);
        said.generation = Some(image.header().generation);
        said.digest = Some(format!("{:016x}", image.header().digest));
        said.hash = Some(format!("{hash:016x}"));
        match image.header().method {
            Method::Concury => self.explain_concury(service, &image, &state, hash, &mut said)?,
            Method::Tracked => self.explain_tracked(service, &image, flow, hash, &mut said)?,
        }
        Ok(said)
    }

    fn service_of(&self, flow: &FlowKey) -> Option<&ServiceRuntime> {
        let serves = |service: &&ServiceRuntime, port: Option<u16>| {
            let vip = service.vip();
            vip.address == flow.dst && vip.protocol == flow.protocol && vip.port == port
        };
        let all = || self.services.values();
        all()
            .find(|service| serves(service, Some(flow.dst_port)))
            .or_else(|| all().find(|service| serves(service, None)))
    }

    fn explain_concury(
        &self,
        service: &ServiceRuntime,
        image: &Image,
        state: &ServiceState,
        hash: u64,
        said: &mut Explanation,
    ) -> Result<(), EngineError> {
        let code = image.code(hash);
        let entry = image.slots()[code as usize & (image.slots().len() - 1)];
        let known = service.concury().and_then(|c| c.get(&state.key)).copied();
        let pending = self.plane.pending_backend(state)?;
        said.code = Some(code);
        said.reserved = entry & SLOT_RESERVED != 0;
        said.known = known.is_some();
        said.pending = pending.is_some();
        let table = entry & SLOT_BACKEND;
        let backend = pending.unwrap_or(table);
        name_backend(service, backend, said);
        if said.reserved && pending.is_none() {
            let first = known.map_or_else(|| place_again(image, hash), |state| state.backend);
            said.backend_if_new = service.by_id(first).map(|m| m.wanted.name.clone());
        }
        let place = match (said.reserved, table == NO_BACKEND) {
            (true, _) => {
                format!("Dcode {code} is reserved for a backend that gets no new flows")
            }
            (false, true) => format!("Dcode {code} leads nowhere: no backend serves"),
            (false, false) => format!("Dcode {code} leads to it in the DIP array"),
        };
        said.why = match (known, pending) {
            (_, Some(_)) => format!(
                "the flow started during an update (or on a reserved Dcode) and is in the pending \
                 table, which comes first; {place}"
            ),
            (Some(state), None) => format!(
                "a state is known ({:?}), and the table was built so that it finds its backend: \
                 {place}",
                state.phase
            ),
            (None, None) => {
                format!("no state is known; an unknown flow gets a uniform Dcode: {place}")
            }
        };
        Ok(())
    }

    fn explain_tracked(
        &self,
        service: &ServiceRuntime,
        image: &Image,
        flow: &FlowKey,
        hash: u64,
        said: &mut Explanation,
    ) -> Result<(), EngineError> {
        let key = match service.configured.affinity {
            Affinity::Flow => *flow,
            Affinity::Client => FlowKey { src_port: 0, dst_port: 0, ..*flow },
        };
        let slot = scale(hash as u32, image.header().slots);
        said.code = Some(slot);
        let placed = image.slots()[slot as usize] & SLOT_BACKEND;
        let tracked = self.plane.connection(&key)?.filter(|entry| {
            service.by_id(entry.backend).is_some_and(|m| m.incarnation == entry.incarnation)
        });
        said.known = tracked.is_some();
        said.why = match tracked {
            Some(entry) => {
                name_backend(service, entry.backend, said);
                "the connection table has the flow".into()
            }
            None => {
                name_backend(service, placed, said);
                format!(
                    "the connection table does not have the flow; slot {slot} of the Maglev \
                         table places it"
                )
            }
        };
        Ok(())
    }
}

fn name_backend(service: &ServiceRuntime, id: u16, said: &mut Explanation) {
    if let Some(member) = service.by_id(id) {
        said.backend = Some(member.wanted.name.clone());
        said.address =
            Some(weir_wire::unmap_address(&map_address(member.wanted.address)).to_string());
    }
}
