//! What a balancer of a fleet reads from the store, and tables that another one lends it: whatever is there is read
//! or refused, and what is taken is the same when it is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_fleet::{Ack, Document, Leader, Sign, Stage, Step, text};
use weir_steering::{ELEMENT_BYTES, Parcel, digest_of};

/// What can be read; it comes back when it is written.
fn read<T: Serialize + DeserializeOwned + PartialEq>(bytes: &[u8]) -> Option<T> {
    let there: T = serde_json::from_slice(bytes).ok()?;
    let written = serde_json::to_vec(&there).expect("it can be written");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert!(again == there, "it comes back as it was");
    Some(there)
}

/// Whether there is a number with a fraction in it: those are not read to the last bit. No weir writes any.
fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(all) => all.iter().any(has_fraction),
        Value::Object(all) => all.values().any(has_fraction),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

fn document(bytes: &[u8]) {
    let Ok(document) = Document::parse(bytes) else { return };
    // What is not TOML is refused, and nothing else becomes of it.
    let _ = text::split(&document.text);
    if document.services.values().any(|keys| has_fraction(&keys.salts)) {
        return;
    }
    let again = Document::parse(&document.to_bytes()).expect("what was written can be read");
    assert!(again == document && again.digest() == document.digest(), "it comes back as it was");
}

fn step(bytes: &[u8]) {
    let Some(step) = read::<Step>(bytes) else { return };
    let mut at = step.clone();
    while at.stage != Stage::Done {
        let next = at.onward();
        assert!(next.stage > at.stage && next.id() == step.id(), "it goes on");
        at = next;
    }
    let done = at.onward();
    assert!(done.next.is_empty() && done.next_tables.is_empty() && done.onward() == done);
    assert!(done.pools == step.pools_at(Stage::Commit), "what is in force at the end");
    let given_up = step.given_up();
    assert!(given_up.stage == Stage::Done && given_up.next.is_empty());
    // Who is there, and with which weight, is not changed by it.
    let names = |step: &Step| -> Vec<(String, Vec<(String, u32)>)> {
        let shares = step.pools.iter().map(|(service, pool)| {
            (service.clone(), pool.iter().map(|share| (share.name.clone(), share.weight)).collect())
        });
        shares.collect()
    };
    assert!(names(&given_up) == names(&step) && given_up.tables == step.tables);
}

fn parcel(bytes: &[u8]) {
    let Ok(parcel) = Parcel::from_bytes(bytes) else { return };
    assert!(parcel.to_bytes() == bytes, "a table is written in one way");
    assert!(parcel.digest() == digest_of(bytes) && (1..=15).contains(&parcel.bits()));
    assert!(parcel.names().is_sorted_by(|one, other| one < other));
}

/// The bytes of a small table, which are damaged then as the input says: pairs of place and xor.
fn damaged_parcel(input: &[u8]) {
    let Some((&[bits, names], damage)) = input.split_first_chunk() else { return };
    let (bits, names) = (1 + bits % 8, u16::from(names % 9));
    let mut bytes = b"weircncy".to_vec();
    bytes.push(bits);
    bytes.extend([1u32.to_le_bytes(), 1u32.to_le_bytes()].concat());
    bytes.extend([7; 32]);
    bytes.extend(names.to_le_bytes());
    for n in 0..names {
        bytes.extend(2u16.to_le_bytes());
        bytes.extend([b'b', b'0' + n as u8]);
    }
    for slot in 0..1u16 << bits {
        let name = slot % (names + 1);
        bytes.extend(if name == names { u16::MAX } else { name }.to_le_bytes());
    }
    let head = bytes.len();
    bytes.resize(head + 2 * ELEMENT_BYTES, 0x5a);
    assert!(Parcel::from_bytes(&bytes).is_ok(), "it is one before");
    for change in damage.chunks_exact(3) {
        match u16::from_le_bytes([change[0], change[1]]) {
            0xffff => bytes.truncate(bytes.len().saturating_sub(usize::from(change[2]))),
            0xfffe => bytes.extend(std::iter::repeat_n(0x5a, usize::from(change[2]))),
            // Most of it is cells, of which all are good.
            place => {
                if let Some(byte) = bytes.get_mut(usize::from(place) % head) {
                    *byte ^= change[2];
                }
            }
        }
    }
    parcel(&bytes);
}

fuzz_target!(|input: &[u8]| {
    let Some((which, bytes)) = input.split_first() else { return };
    match which % 7 {
        0 => document(bytes),
        1 => step(bytes),
        2 => drop(read::<Ack>(bytes)),
        3 => drop(read::<Sign>(bytes)),
        4 => drop(read::<Leader>(bytes)),
        5 => parcel(bytes),
        _ => damaged_parcel(bytes),
    }
});
