//! Every program of a balancer is one that the kernel takes. The other tests need some of them each; this one runs
//! under kernels that are not this machine's (`scripts/kernel-test programs`), too.

use libbpf_rs::ObjectBuilder;
use std::collections::BTreeSet;
use std::path::Path;
use weir_dataplane::{BY_INTERFACE, KernelPlane, Limits, TRACED};

macro_rules! object {
    ($name:literal) => {
        ($name, include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")).as_slice())
    };
}

/// A program with its name, and the first version of Linux that takes it.
type Alone = ((&'static str, &'static [u8]), [u32; 2]);

/// Those that are loaded as they are.
const BY_THEMSELVES: [Alone; 6] = [
    (object!("card"), [6, 1]),
    // Programs of netfilter.
    (object!("guard"), [6, 4]),
    (object!("hold"), [6, 1]),
    (object!("hops"), [6, 1]),
    (object!("lost"), [6, 1]),
    (object!("xsk"), [6, 1]),
];

/// Builds of the balancer, which get the sizes of its memory; with each the program in front is loaded.
const BALANCERS: [(&str, &[u8]); 3] =
    [object!("weir"), ("traced", TRACED), ("by_interface", BY_INTERFACE)];

/// No part of a balancer: for `weir bench xdp`, which gives it its sizes, and for `examples/aes.rs`.
const MEASURING: [&str; 2] = ["bench", "crypto"];

fn release() -> [u32; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("it is readable");
    let mut numbers = text.split(['.', '-']).map_while(|number| number.trim().parse().ok());
    [numbers.next(), numbers.next()].map(|number| number.unwrap_or_else(|| panic!("{text}")))
}

#[test]
fn this_kernel_takes_every_program() {
    let release = release();
    for ((name, object), since) in BY_THEMSELVES {
        if release < since {
            println!("{name}: Linux {since:?} takes it, and this is {release:?}");
            continue;
        }
        let open = ObjectBuilder::default().open_memory(object);
        let open = open.unwrap_or_else(|error| panic!("{name}: {error}"));
        let loaded = open.load().unwrap_or_else(|error| panic!("{name}: {error} (needs root)"));
        println!("{name}: {} programs", loaded.progs().count());
    }
    let limits = Limits { table_bytes: 1 << 20, ..Limits::default() };
    for (name, object) in BALANCERS {
        let pins = format!("/sys/fs/bpf/weir-programs-{}-{name}", std::process::id());
        let pins = Path::new(&pins);
        let opened = KernelPlane::open_object(object, Some(pins), &limits);
        let (mut plane, _) = opened.unwrap_or_else(|error| panic!("{name}: {error} (needs root)"));
        let front = plane.stand_in_front();
        drop(plane);
        KernelPlane::unload(pins).expect("its pins go");
        front.unwrap_or_else(|error| panic!("in front of {name}: {error}"));
        println!("{name}: loaded, and one in front");
    }
}

/// None of the sources is missing here.
#[test]
fn every_source_is_among_them() {
    let sources = weir_dataplane::other::sources();
    let programs: BTreeSet<&str> =
        sources.keys().filter_map(|name| name.strip_suffix(".bpf.c")).collect();
    let known = BY_THEMSELVES.iter().map(|((name, _), _)| *name);
    let known = known.chain(MEASURING).chain(["weir", "front"]).collect();
    assert_eq!(programs, known);
}
