//! Instructions per packet: the same in every run, on every path that has a name.

use std::collections::BTreeSet;
use weir_dataplane::instructions::{count, stacks};

#[test]
fn counts_repeat_themselves() {
    let object = include_bytes!(concat!(env!("OUT_DIR"), "/weir.bpf.o")).to_vec();
    let rows = count(&[object]).expect("load (needs root)");
    let names: BTreeSet<_> = rows.iter().map(|row| row.path).collect();
    assert_eq!(names.len(), rows.len(), "two paths of one name");
    for row in &rows {
        println!("{:<44} {:?}", row.path, row.instructions);
        assert_eq!(row.instructions[0], row.instructions[1], "{}", row.path);
    }
    // What a packet has to do more takes more.
    let of = |path: &str| {
        let found = rows.iter().find(|row| row.path == path).map(|row| row.instructions[0]);
        found.unwrap_or_else(|| panic!("no path {path}"))
    };
    let order = [
        "ARP",
        "no service, TCP",
        "concury, known flow, TCP over IPv4",
        "concury, known flow, TCP over IPv6",
        "concury, first datagram",
    ];
    assert!(order.is_sorted_by_key(|path| of(path)), "{order:?}");
    // A cookie decides with less than the SYN that was told it, and a slot is looked at apart.
    for form in ["cheetah", "cheetah-stateful"] {
        let cookie = of(&format!("{form}, cookie"));
        for first in ["SYN", "SYN repeated"] {
            assert!(cookie < of(&format!("{form}, {first}")), "{form}, {first}");
        }
    }
    assert!(of("cheetah, cookie") < of("cheetah-stateful, cookie"));
}

/// This kernel may count less, and would take what another refuses ("combined stack size of 7 calls is 544").
#[test]
fn chains_of_calls_fit_in_the_stack_of_older_kernels() {
    let plain = include_bytes!(concat!(env!("OUT_DIR"), "/weir.bpf.o"));
    for (name, object) in [("plain", plain.as_slice()), ("with notes", weir_dataplane::TRACED)] {
        let stacks = stacks(object).expect("load (needs root)");
        println!("{name}: {stacks:?} bytes");
        // It would be less than it has if functions were not found.
        assert!(stacks.iter().all(|bytes| (300..=512).contains(bytes)), "{name}: {stacks:?}");
    }
}
