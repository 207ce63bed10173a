//! What packets and the control plane have put into maps is read to the last entry, however many there
//! are: an update that misses pending flows breaks them.

use weir_dataplane::{KernelPlane, LivePlane};
use weir_plane::Limits;
use weir_steering::update::Plane as _;
use weir_steering::{ServiceState, StateKey};
use weir_wire::{FlowKey, Protocol};

/// Far more than are read at once, and different buckets at the ends of the batches in every run: the
/// kernel draws each map's hash key.
const FLOWS: u32 = 150_000;

fn state(client: u32) -> ServiceState {
    let from = ((0x0a02_0000 + client).to_be_bytes(), 1000);
    let flow = FlowKey::new(from.into(), ([10, 1, 0, 1], 80).into(), Protocol::Tcp);
    ServiceState { service: client % 3, key: StateKey::of_flow(&flow) }
}

#[test]
fn a_map_is_read_to_its_end() {
    let limits = Limits { unreported_flows: FLOWS, ..Limits::default() };
    let (kernel, _) = KernelPlane::open(None, &limits).expect("load (needs root)");
    let mut plane = LivePlane::new(kernel).expect("its reports");
    let mut pins: Vec<_> = (0..FLOWS).map(|n| (state(n), (n % 7) as u16)).collect();
    plane.pin(&pins).expect("there is room");
    let mut found = plane.pinned().expect("they are read");
    pins.sort();
    found.sort();
    assert_eq!(found.len(), pins.len());
    assert!(found == pins);
    let (gone, left) = pins.split_at(pins.len() / 2);
    plane.unpin(&gone.iter().map(|(state, _)| *state).collect::<Vec<_>>()).expect("they go");
    let mut found = plane.pinned().expect("they are read");
    found.sort();
    assert!(found == left);
}
