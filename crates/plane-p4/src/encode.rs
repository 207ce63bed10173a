//! A table of `weir-steering` as the switch has it: numbers in registers, entries, and an action that says where
//! they are.

use crate::error::Error;
use crate::target::Action;
use weir_hash::HashKey;
use weir_steering::cheetah::{KEYED, servers};
use weir_steering::{
    BackendId, Codes, Flags, Image, MethodId, NO_BACKEND, RawHeader, SLOT_RESERVED,
};

/// What the registers and the table `exceptions` get.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// The DIP array, or rows, or the numbers of servers that take new connections.
    pub slots: Vec<u16>,
    /// Concury's array A, or servers by number.
    pub a: Vec<u16>,
    /// Concury's array B.
    pub b: Vec<u16>,
    /// Flows that their rows do not lead to their backends, by their hashes.
    pub exceptions: Vec<(u64, u16)>,
    /// Partitions of connections by index.
    pub partitions: u32,
}

/// Where the parts of a table stand in the registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Places {
    /// First element in `slots`, and how many.
    pub slots: (u32, u32),
    /// The same in `cells_a`.
    pub a: (u32, u32),
    /// The same in `cells_b`; of a table with connections by index, their partitions.
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
                ..Parts::default()
            })
        }
        Image::Residue(table) => Ok(Parts {
            slots: table.body().rows().to_vec(),
            exceptions: table.body().exceptions().collect(),
            ..Parts::default()
        }),
        Image::Cheetah(_) | Image::CheetahStateful(_) => cookie_parts(image),
        other => Err(unsupported(
            &format!("decide by the method {}", other.method()),
            "set method = \"concury\", \"residue\", \"cheetah\" or \"cheetah-stateful\", or use the \
             kernel's plane",
        )),
    }
}

fn raw(image: &Image) -> RawHeader {
    RawHeader::from_bytes(&image.header_bytes(0))
}

/// The parts of a table of cookies: whoever takes no new connections is marked among the servers.
fn cookie_parts(image: &Image) -> Result<Parts, Error> {
    let (raw, flags) = (raw(image), image.header().flags());
    if !flags.has(Flags::TELLS) {
        return Err(unsupported(
            "write cookies into answers, which do not pass it",
            "set answers = \"backend\", and run weir agent on every backend",
        ));
    }
    if raw.segment_bits & KEYED != 0 {
        return Err(unsupported("tell keys of cookies apart", "leave cookie_keys out"));
    }
    if raw.segment_bits != 0 {
        return Err(unsupported("share cookies with another tier", "leave tier_bits out"));
    }
    if flags.has(Flags::TWO_CHOICES | Flags::COUNTS) {
        return Err(unsupported("pick by load", "set scheduler = \"uniform\", \"rr\" or \"wrr\""));
    }
    let Some(servers) = servers(image) else { return Ok(Parts::default()) };
    let server = |backend: &u16| match servers.serves(*backend) || *backend == NO_BACKEND {
        true => *backend,
        false => *backend | SLOT_RESERVED,
    };
    let stateful = image.method() == MethodId::CheetahStateful;
    Ok(Parts {
        slots: servers.serving().iter().filter_map(|backend| servers.number(*backend)).collect(),
        a: servers.backends().iter().map(server).collect(),
        partitions: if stateful { raw.fallback.into() } else { 0 },
        ..Parts::default()
    })
}

fn unsupported(what: &str, right: &'static str) -> Error {
    Error::Unsupported { what: what.to_owned(), right }
}

/// The action that says what a table is and where it stands.
pub fn set_image(image: &Image, places: &Places) -> Action {
    let raw = raw(image);
    let (fallback, idle, refuses) = match image {
        Image::Cheetah(_) => (raw.fallback, 0, raw.codec),
        Image::CheetahStateful(_) => (raw.chunks_a as u16, raw.segments, raw.codec),
        other => {
            let fallback = other.concury().and_then(|table| table.body().fallback());
            (BackendId::to_slot(fallback), 0, 0)
        }
    };
    let mut data = vec![
        argument(image.method().number().into(), 8),
        argument(u64::from(image.method().info().needs.first_datagrams), 8),
    ];
    data.extend(key_arguments(&image.header().key));
    for (first, length) in [places.slots, places.a, places.b] {
        data.extend([argument(first.into(), 32), argument(length.into(), 32)]);
    }
    data.push(argument(fallback.into(), 16));
    let inverse = u64::MAX / u64::from(places.slots.1.max(1));
    data.extend([argument(inverse, 64), argument(idle.into(), 32), argument(refuses.into(), 8)]);
    Action { name: "set_image", data }
}
