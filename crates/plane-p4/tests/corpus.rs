//! The conformance corpus (corpus/README.md), as far as a switch does what its cases are about: verdict, reason,
//! backend and counters, from the registers in memory. `tests/switch.rs` runs the same cases, and further ones, on
//! a running switch.
//!
//! `WEIR_CASE=word`: the cases whose names contain it.

mod conformance;

use conformance::{Tally, Wanted, World, asks_too_much, format};
use std::collections::BTreeMap;
use weir_plane::Outcome;
use weir_plane_p4::{Model, P4};
use weir_wire::{parse, tcp_options};

/// TSecr of a frame.
fn echo(frame: &[u8]) -> Option<u32> {
    let packet = parse(frame).ok()?;
    let found = tcp_options::find(frame.get(packet.l4_offset.into()..)?);
    found.ok().flatten().map(|stamps| stamps.echo)
}

/// A frame through the registers in memory, which say what a frame's TSecr becomes, and write none.
fn through(plane: &mut P4<Model>, frame: &[u8], wanted: Option<Wanted>) -> Vec<String> {
    let outcome = plane.target().process(frame);
    let told = wanted.as_ref().and_then(|wanted| echo(&wanted.frame));
    let told = told.filter(|told| echo(frame) != Some(*told));
    let right = match outcome {
        Outcome::Forwarded(_) => wanted.is_some() && plane.target().told == told,
        _ => wanted.is_none(),
    };
    if right { Vec::new() } else { vec![format!("{outcome:?}, and tells {told:?}")] }
}

#[test]
fn the_registers_do_what_the_corpus_says() {
    let only = conformance::only();
    let (mut tally, mut wrong) = (Tally::default(), Vec::new());
    let none = BTreeMap::new();
    for file in &format::files() {
        for case in file.case.iter().filter(|case| case.name.contains(&only)) {
            let setup = &file.setup[&case.setup];
            // In memory nothing is a port.
            let elsewhere = setup.backends.iter().any(|backend| backend.interface != 0);
            let why = asks_too_much(setup, case).or(elsewhere.then_some("other ports"));
            if let Some(why) = why {
                tally.leave(why);
                continue;
            }
            tally.count(setup, case);
            let plane = P4::new(Model::default()).expect("it is in memory");
            wrong.extend(World::new(plane, setup, &none).run(file, case, &mut through));
        }
    }
    let floors = if only.is_empty() { conformance::FLOORS } else { &[] };
    tally.end(&wrong, floors);
}
