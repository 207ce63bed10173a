//! What the memory that a data plane pins is made of, as text, and a number that stands for it.

use libbpf_rs::btf::types::{Array, Composite, DataSec, Int, MemberAttr, Ptr, Var};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, ReferencesType, TypeId};
use std::fmt::Write;
use std::path::Path;

/// FNV-1a of a layout's text.
pub fn stamp(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Every map of an object: its kind, its flags, and its keys and values field by field.
pub fn of_object(object: &Path) -> String {
    let btf = Btf::from_path(object)
        .unwrap_or_else(|error| panic!("types of {}: {error}", object.display()));
    let mut sections: Vec<DataSec<'_>> = btf.type_by_kind().collect();
    sections.sort_by_key(|section| section.name().map(ToOwned::to_owned));
    let mut text = String::new();
    for section in sections {
        let name = section.name().unwrap_or_default().to_string_lossy().into_owned();
        if name == ".maps" || name.starts_with(".data.") {
            for variable in section.iter() {
                let Some(variable) = btf.type_by_id::<Var<'_>>(variable.ty) else { continue };
                let of = variable.name().unwrap_or_default().to_string_lossy().into_owned();
                // Never pinned with the memory: a twin stands for the map without this ending, and the
                // parts of the program are made anew with it.
                if of.ends_with("_twin") || of == "parts" {
                    continue;
                }
                let _ = write!(text, "{of}: ");
                describe(&btf, variable.referenced_type(), &mut text);
                text.push('\n');
            }
        }
    }
    assert!(text.contains("vips: "), "no maps found in {}", object.display());
    text
}

/// A structure of an object, in the same form.
pub fn of_structure(object: &Path, name: &str) -> String {
    let btf = Btf::from_path(object)
        .unwrap_or_else(|error| panic!("types of {}: {error}", object.display()));
    let structure = btf.type_by_name::<BtfType<'_>>(name);
    let structure = structure.unwrap_or_else(|| panic!("no {name} in {}", object.display()));
    let mut text = format!("{name}: ");
    describe(&btf, structure, &mut text);
    text + "\n"
}

/// The program's constants, and where each stands.
pub fn constants(object: &Path) -> Vec<(String, u32)> {
    let btf = Btf::from_path(object)
        .unwrap_or_else(|error| panic!("types of {}: {error}", object.display()));
    let mut sections = btf.type_by_kind::<DataSec<'_>>();
    let section = sections.find(|section| section.name().is_some_and(|name| name == ".rodata"));
    let section = section.unwrap_or_else(|| panic!("no constants in {}", object.display()));
    let of = |ty| btf.type_by_id::<Var<'_>>(ty).and_then(|variable| variable.name());
    let place = |variable: libbpf_rs::btf::types::VarSecInfo| {
        (of(variable.ty).unwrap_or_default().to_string_lossy().into_owned(), variable.offset)
    };
    section.iter().map(place).collect()
}

fn describe(btf: &Btf<'_>, of: BtfType<'_>, text: &mut String) {
    let of = of.skip_mods_and_typedefs();
    match of.kind() {
        BtfKind::Struct => {
            let composite = Composite::try_from(of).expect("it is a structure");
            text.push('{');
            for member in composite.iter() {
                let name = member.name.unwrap_or_default().to_string_lossy();
                // Sizes are set when the program is loaded.
                if name == "max_entries" {
                    continue;
                }
                let MemberAttr::Normal { offset } = member.attr else {
                    panic!("a bit field in {:?}", of.name())
                };
                let _ = write!(text, "{name}@{}=", offset / 8);
                describe_id(btf, member.ty, text);
                text.push(' ');
            }
            text.push('}');
        }
        BtfKind::Array => {
            let array = Array::try_from(of).expect("it is an array");
            let _ = write!(text, "{}*", array.capacity());
            describe(btf, array.contained_type(), text);
        }
        // How a map's keys, values and settings are declared.
        BtfKind::Ptr => {
            describe(btf, Ptr::try_from(of).expect("it is a pointer").referenced_type(), text);
        }
        BtfKind::Int => {
            let _ = write!(text, "{}", Int::try_from(of).expect("it is an integer").bits);
        }
        other => panic!("a {other:?} in a map"),
    }
}

fn describe_id(btf: &Btf<'_>, id: TypeId, text: &mut String) {
    let of = btf.type_by_id::<BtfType<'_>>(id).expect("types name types that are there");
    describe(btf, of, text);
}
