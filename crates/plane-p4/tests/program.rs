//! What the Rust side believes of the program, against the program's own text.

use std::collections::BTreeMap;
use std::path::Path;
use weir_plane_p4::layout::{PENDING_PLACES, PENDING_WAYS, Register, TRACKED_SETS, Table};
use weir_steering::cheetah::{self, SlotState};
use weir_steering::{Flags, MethodId, NEXT_TRY, NO_BACKEND, SECOND_TRIES, SLOT_RESERVED};
use weir_wire::Reason;

fn sources() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4");
    let mut text = String::new();
    for folder in [root.clone(), root.join("methods")] {
        let mut files: Vec<_> = std::fs::read_dir(&folder)
            .expect("the program is there")
            .map(|entry| entry.expect("it can be read").path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "p4"))
            .collect();
        files.sort();
        for file in files {
            text += &std::fs::read_to_string(file).expect("it can be read");
        }
    }
    text
}

/// `const bit<N> NAME = VALUE;`, wherever it stands.
fn constants(text: &str) -> BTreeMap<&str, u64> {
    let mut found = BTreeMap::new();
    for part in text.split("const bit<").skip(1) {
        let line = part.split(';').next().expect("it ends");
        let (name, value) = line
            .split_once("> ")
            .and_then(|(_, rest)| rest.split_once(" = "))
            .expect("a constant has a value");
        let value = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        found.insert(name, value.expect("a number"));
    }
    found
}

#[test]
fn sizes_reasons_and_flags_are_those_of_the_program() {
    let text = sources();
    let constants = constants(&text);
    let mut reasons = 0;
    for reason in Reason::ALL {
        let name = match reason {
            Reason::NoBackend => "NO_BACKEND_REASON".to_owned(),
            other => other.name().to_uppercase(),
        };
        if let Some(number) = constants.get(&name[..]) {
            assert_eq!(*number, *reason as u64, "{name}");
            reasons += 1;
        }
    }
    assert!(reasons >= 27, "only {reasons} reasons were found");
    for (name, value) in [
        ("RECORD", Flags::RECORD.into()),
        ("PENDING", Flags::PENDING.into()),
        ("MARK", Flags::MARK.into()),
        ("CLIENT", Flags::CLIENT.into()),
        ("CONCURY", MethodId::Concury.number().into()),
        ("RESIDUE", MethodId::Residue.number().into()),
        ("CHEETAH", MethodId::Cheetah.number().into()),
        ("CHEETAH_STATEFUL", MethodId::CheetahStateful.number().into()),
        ("TURNS", Flags::TURNS.into()),
        ("TOLD_MARK", cheetah::TOLD_MARK.into()),
        ("OPENING", SlotState::Opening as u64),
        ("OPEN", SlotState::Open as u64),
        ("CLOSING", SlotState::Closing as u64),
        ("OPENING_SECONDS", cheetah::OPENING_SECONDS.into()),
        ("LINGER_SECONDS", cheetah::LINGER_SECONDS.into()),
        ("PARTITION_SLOTS", cheetah::PARTITION_SLOTS.into()),
        ("PENDING_PLACES", PENDING_PLACES.into()),
        ("PENDING_SETS", (PENDING_PLACES / PENDING_WAYS).into()),
        ("PENDING_WAYS", PENDING_WAYS.into()),
        ("TRACKED_SETS", TRACKED_SETS.into()),
        ("NEXT_TRY", NEXT_TRY),
        ("NO_BACKEND", NO_BACKEND.into()),
        ("RESERVED", SLOT_RESERVED.into()),
        ("LANE_ONES", weir_steering::LANE_ONES),
        ("LANE_TAGS", weir_steering::LANE_TAGS),
        ("LANE_ACTIVE", weir_steering::LANE_ACTIVE),
        ("SEEN_STRIDE", weir_steering::SEEN_STRIDE),
    ] {
        assert_eq!(constants.get(name), Some(&value), "{name}");
    }
    let tries = text.matches("SIX(TRY)").count() * 6;
    assert_eq!(tries, SECOND_TRIES, "further rows that a new flow tries");
    let turns = text.matches("SIX(DRAW)").count() * 6;
    assert_eq!(turns, SECOND_TRIES, "turns that a new connection takes at most");
}

#[test]
fn registers_and_tables_are_those_of_the_program() {
    let text = sources();
    let constants = constants(&text);
    let size_of = |text: &str| -> u64 {
        text.split(" * ")
            .map(|part| {
                constants.get(part).copied().unwrap_or_else(|| part.parse().expect("a size"))
            })
            .product()
    };
    let mut registers = BTreeMap::new();
    for part in text.split("\nregister<bit<").skip(1) {
        let (bits, rest) = part.split_once(">>(").expect("it has elements");
        let (size, rest) = rest.split_once(") ").expect("it has a name");
        let name = rest.split(';').next().expect("it ends");
        registers.insert(name, (bits.parse::<u32>().expect("bits"), size_of(size)));
    }
    for register in Register::ALL {
        let wanted = (register.bits(), u64::from(register.size()));
        assert_eq!(registers.remove(register.name()), Some(wanted), "{}", register.name());
    }
    assert!(registers.is_empty(), "nobody knows of {registers:?}");
    let mut names: Vec<&str> = text
        .split(") table ")
        .skip(1)
        .map(|part| part.split(' ').next().expect("it has a name"))
        .collect();
    for table in Table::ALL {
        let at = names.iter().position(|name| *name == table.name());
        names.remove(at.unwrap_or_else(|| panic!("no table {}", table.name())));
        let part = text.split(&format!(") table {} {{", table.name())).nth(1).expect("it is there");
        let body = part.split("\n    }\n").next().expect("it ends");
        let size =
            body.split("size = ").nth(1).map(|rest| rest.split(';').next().expect("it ends"));
        let keys: usize = body.matches(": exact;").count();
        let size: u32 = size.map_or(1, |size| size.parse().expect("a number"));
        assert_eq!(size, table.size(), "{}", table.name());
        assert_eq!(keys, table.key_bits().len(), "{}", table.name());
        assert!(text.contains(&format!("@name(\".{}\")", table.name())), "its name is absolute");
    }
    assert!(names.is_empty(), "nobody knows of {names:?}");
}
