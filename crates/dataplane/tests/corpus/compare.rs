//! What differs between frames, and between counters.

use std::collections::BTreeMap;
use weir_plane::{Counters, LaneCounters};

pub fn l3_of(frame: &[u8]) -> usize {
    let mut at = 12;
    while matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8])) {
        at += 4;
    }
    (at + 2).min(frame.len())
}

/// Counters that have changed, by how much.
#[derive(PartialEq, Eq)]
pub struct Difference(pub BTreeMap<String, u64>);

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each: Vec<String> = self.0.iter().map(|(name, by)| format!("{by} {name}")).collect();
        f.write_str(&if each.is_empty() { "nothing".to_owned() } else { each.join(", ") })
    }
}

pub fn difference(before: &Counters, after: &Counters) -> Difference {
    let mut all = BTreeMap::new();
    let mut add = |name: String, by: u64| {
        if by > 0 {
            all.insert(name, by);
        }
    };
    for (number, lane) in &after.lanes {
        let was = before.lanes.get(number).copied().unwrap_or_default();
        let LaneCounters { packets, bytes, flows } = *lane;
        add(format!("packets to {number}"), packets - was.packets);
        add(format!("bytes to {number}"), bytes - was.bytes);
        add(format!("flows to {number}"), flows - was.flows);
    }
    add("returned".to_owned(), after.returned.packets - before.returned.packets);
    add("bytes returned".to_owned(), after.returned.bytes - before.returned.bytes);
    for (reason, count) in &after.passed {
        let was = before.passed.get(reason).copied().unwrap_or_default();
        add(format!("passed {}", reason.name()), count - was);
    }
    for (reason, count) in &after.dropped {
        let was = before.dropped.get(reason).copied().unwrap_or_default();
        add(format!("dropped {}", reason.name()), count - was);
    }
    Difference(all)
}

pub fn bytes_differ(found: &[u8], wanted: &[u8]) -> Option<String> {
    if found == wanted {
        return None;
    }
    let at = found.iter().zip(wanted).position(|(a, b)| a != b);
    let at = at.unwrap_or(found.len().min(wanted.len()));
    let show = |bytes: &[u8]| -> String {
        let near = &bytes[at.saturating_sub(4).min(bytes.len())..(at + 12).min(bytes.len())];
        near.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    Some(format!(
        "byte {at} differs: ..{}.. of {} bytes, not ..{}.. of {}",
        show(found),
        found.len(),
        show(wanted),
        wanted.len()
    ))
}
