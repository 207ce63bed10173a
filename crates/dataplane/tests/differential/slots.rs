//! Connections by index, in both planes.

use crate::twin::Twin;
use rand::Rng;
use weir_plane::Plane;
use weir_steering::cheetah::SlotState;
use weir_steering::{BackendId, MethodId, ServiceId};

/// Some seconds pass.
pub fn pass_time(plane: &mut Twin, seconds: u32) {
    let now = plane.oracle.clock() + seconds;
    plane.oracle.set_clock(now);
    plane.kernel.set_clock(now);
}

/// Slots, stacks and counters must be alike, also after the control plane has looked over some. Returns
/// how many services have refused cookies.
pub fn compare(plane: &mut Twin, rng: &mut impl Rng) -> u64 {
    let all = plane.oracle.tables.iter();
    let all = all.filter(|(_, image)| image.method() == MethodId::CheetahStateful);
    let services: Vec<ServiceId> = all.map(|(service, _)| *service).collect();
    let mut lost = 0;
    for service in services {
        let (steps, unwanted) = (rng.random_range(0..40_000), rng.random_range(0..40));
        let keep = |backend: BackendId| backend.get() % 40 != unwanted;
        let released = plane.oracle.sweep_slots(service, steps, &keep).unwrap();
        assert_eq!(plane.kernel.sweep_slots(service, steps, &keep).unwrap(), released);
        let counts = plane.oracle.slot_counts(service).expect("it has slots");
        assert_eq!(plane.kernel.slot_counts(service), Some(counts));
        lost += u64::from(counts.stale > 0 && counts.foreign > 0);
        let found = plane.kernel.slot_entries(service).unwrap();
        let wanted = plane.oracle.memory.slots[&service].entries();
        assert_eq!(found.len() as u64, counts.slots);
        let mut used = 0;
        for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            assert_eq!(found.state, wanted.state, "slot {at} of service {service}");
            if found.state != SlotState::Free {
                assert_eq!(*found, wanted, "slot {at} of service {service}");
                used += 1;
            }
        }
        assert_eq!(used, counts.used);
    }
    lost
}
