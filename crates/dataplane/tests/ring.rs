//! The ring of reports: all that is in it is taken, in its order, wherever it stands; and little of it is mapped.

mod concury;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, thread};

use concury::{LIMITS, flow, plane_of, send};
use weir_dataplane::{Limits, LivePlane, run_frame};
use weir_steering::{Event, EventKind, StateKey};
use weir_wire::TcpFlags;
use weir_wire::craft::Frame;

/// Several parts, as the ring is mapped.
const SEVERAL: u32 = 1 << 20;
/// Bytes of a report with what stands before it; the ring has no whole number of them.
const REPORT: u32 = 40;

/// What one test maps, the other one sees.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn plane(event_ring_bytes: u32) -> LivePlane {
    plane_of(&Limits { event_ring_bytes, ..LIMITS })
}

fn keys(flows: std::ops::Range<u32>) -> Vec<StateKey> {
    flows.map(|number| StateKey::of_flow(&flow(1, number))).collect()
}

/// Waits for reports until there are so many, `most` at a time.
fn wait_for(plane: &LivePlane, count: usize, most: usize) -> Vec<StateKey> {
    let mut found = Vec::new();
    while found.len() < count {
        let before = found.len();
        let take = |event: Event| {
            assert_eq!((event.kind, event.state.service.0), (EventKind::Start, 1));
            found.push(event.state.key);
        };
        plane.reports.wait(Duration::MAX, None, most, take).unwrap();
        assert!(found.len() - before <= most);
    }
    found
}

#[test]
fn reports_are_taken_in_their_order_wherever_they_stand() {
    let _alone = alone();
    for (ring, most) in [(4096, 7), (SEVERAL, 777), (SEVERAL, usize::MAX)] {
        let plane = plane(ring);
        // Nearly full each time, and more than three times around.
        let some = ring / REPORT - 3;
        for round in 0..4 {
            let flows = round * some..(round + 1) * some;
            flows.clone().for_each(|number| send(&plane, flow(1, number), TcpFlags::SYN.0));
            let found = wait_for(&plane, some as usize, most);
            assert!(found == keys(flows), "ring of {ring}, {most} at a time, round {round}");
        }
        plane.reports.drain(|event| panic!("{event:?}")).unwrap();
    }
}

/// Whoever waits for a report is woken by it.
#[test]
fn a_report_wakes() {
    let _alone = alone();
    let plane = plane(SEVERAL);
    let program = plane.program();
    for number in 0..20 {
        let found = thread::scope(|scope| {
            scope.spawn(move || {
                // Most likely somebody waits by now; if not, it is there at once.
                thread::sleep(Duration::from_millis(5));
                let frame = Frame::new(flow(1, number)).tcp_flags(TcpFlags::SYN).build();
                run_frame(program, &frame).unwrap();
            });
            wait_for(&plane, 1, usize::MAX)
        });
        assert_eq!(found, keys(number..number + 1));
    }
}

/// A ring of 16 MiB, as it is by default, takes no more of this process's memory than a small one, before and after
/// it is read.
#[test]
fn a_large_ring_is_not_mapped_as_a_whole() {
    let _alone = alone();
    let resident = |event_ring_bytes: u32| {
        let plane = plane(event_ring_bytes);
        send(&plane, flow(1, 0), TcpFlags::SYN.0);
        assert_eq!(wait_for(&plane, 1, usize::MAX).len(), 1);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let field = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes = field.split_whitespace().next().unwrap();
        kilobytes.parse::<u64>().unwrap() / 1024
    };
    // Once, so that code and libraries are there.
    resident(1 << 16);
    let (small, large) = (resident(1 << 16), resident(16 << 20));
    println!("{small} MB with a ring of 64 KiB, {large} MB with one of 16 MiB");
    assert!(large < small + 8, "{small} and {large} MB");
}
