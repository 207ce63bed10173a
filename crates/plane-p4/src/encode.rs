//! A table of `weir-steering` as the switch has it: numbers in registers, entries, and an action that says where
//! they are.

use crate::error::Error;
use crate::target::Action;
use weir_hash::HashKey;
use weir_steering::{BackendId, Codes, Image};

/// What the registers and the table `exceptions` get.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// The DIP array, or rows.
    pub slots: Vec<u16>,
    /// Concury's array A.
    pub a: Vec<u16>,
    /// Concury's array B.
    pub b: Vec<u16>,
    /// Flows that their rows do not lead to their backends, by their hashes.
    pub exceptions: Vec<(u64, u16)>,
}

/// Where the parts of a table stand in the registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Places {
    /// First element in `slots`, and how many.
    pub slots: (u32, u32),
    /// The same in `cells_a`.
    pub a: (u32, u32),
    /// The same in `cells_b`.
    pub b: (u32, u32),
}

/// The bytes of numbers, as arguments of actions have them.
pub fn argument(value: u64, bits: u32) -> Vec<u8> {
    let bytes = bits.div_ceil(8) as usize;
    value.to_be_bytes()[8 - bytes..].to_vec()
}

/// The arguments that a hash key is.
pub fn key_arguments(key: &HashKey) -> Vec<Vec<u8>> {
    key.words().into_iter().map(|word| argument(word, 64)).collect()
}

/// The parts of a table.
///
/// # Errors
/// If the switch's program does not know its method, or how it holds its Dcodes.
pub fn parts(image: &Image) -> Result<Parts, Error> {
    match image {
        Image::Concury(table) => {
            let Codes::Othello(view) = table.body().codes() else {
                return Err(unsupported("hold Dcodes in a fuse", "set codec = \"othello\""));
            };
            let geometry = view.geometry();
            let (a, all) = (geometry.cells_a(), geometry.cells() as u32);
            let cell = |node| view.cell(node) as u16;
            Ok(Parts {
                slots: table.body().slots().to_vec(),
                a: (0..a).map(cell).collect(),
                b: (a..all).map(cell).collect(),
                exceptions: Vec::new(),
            })
        }
        Image::Residue(table) => Ok(Parts {
            slots: table.body().rows().to_vec(),
            exceptions: table.body().exceptions().collect(),
            ..Parts::default()
        }),
        other => Err(unsupported(
            &format!("decide by the method {}", other.method()),
            "set method = \"concury\" or \"residue\", or use the kernel's plane",
        )),
    }
}

fn unsupported(what: &str, right: &'static str) -> Error {
    Error::Unsupported { what: what.to_owned(), right }
}

/// The action that says what a table is and where it stands.
pub fn set_image(image: &Image, places: &Places) -> Action {
    let fallback = image.concury().and_then(|table| table.body().fallback());
    let mut data = vec![
        argument(image.method().number().into(), 8),
        argument(u64::from(image.method().info().needs.first_datagrams), 8),
    ];
    data.extend(key_arguments(&image.header().key));
    for (first, length) in [places.slots, places.a, places.b] {
        data.extend([argument(first.into(), 32), argument(length.into(), 32)]);
    }
    data.push(argument(BackendId::to_slot(fallback).into(), 16));
    Action { name: "set_image", data }
}
