//! What pinned memory is made of, written beside it, so that no other version of weir takes it for
//! its own.

use crate::error::{Context, Error};
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use weir_steering::MethodId;

/// Name of the stamp's pin.
pub(super) const STAMP_PIN: &str = "layout";

/// Stands for every structure and number that the maps' bytes depend on; the build computes it.
const SHAPES: u64 = include!(concat!(env!("OUT_DIR"), "/stamp.rs"));

const SHAPES_BYTES: usize = size_of::<u64>();
const METHOD_BYTES: usize = size_of::<u16>();
const VALUE_BYTES: usize = SHAPES_BYTES + 256 * METHOD_BYTES;

/// What a data plane's memory is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Stands for the structures and numbers of all maps.
    pub shapes: u64,
    /// By the number of a method, the version of its tables' layout: those of which there may be
    /// tables.
    pub methods: BTreeMap<u8, u16>,
}

impl Layout {
    /// Of the memory that this program makes, with tables of every method.
    pub fn own() -> Self {
        let methods = MethodId::published().map(|method| (method.number(), method.info().layout));
        Self { shapes: SHAPES, methods: methods.collect() }
    }

    /// Whether a program of this layout can take over memory of the other.
    fn takes(&self, other: &Self) -> bool {
        let known = |(method, layout)| self.methods.get(method) == Some(layout);
        self.shapes == other.shapes && other.methods.iter().all(known)
    }

    fn to_bytes(&self) -> [u8; VALUE_BYTES] {
        let mut bytes = [0; VALUE_BYTES];
        bytes[..SHAPES_BYTES].copy_from_slice(&self.shapes.to_le_bytes());
        for (&method, layout) in &self.methods {
            let at = SHAPES_BYTES + usize::from(method) * METHOD_BYTES;
            bytes[at..][..METHOD_BYTES].copy_from_slice(&layout.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (shapes, methods) = bytes.split_first_chunk()?;
        let layouts = methods.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
        let methods = (0..=u8::MAX).zip(layouts).filter(|(_, layout)| *layout != 0);
        Some(Self { shapes: u64::from_le_bytes(*shapes), methods: methods.collect() })
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.shapes)?;
        for (number, layout) in &self.methods {
            write!(f, ", method {number} in layout {layout}")?;
        }
        Ok(())
    }
}

/// The stamp of a data plane that is pinned.
pub(super) struct Stamp {
    map: MapHandle,
    layout: Layout,
}

impl Stamp {
    /// The stamp in a directory where a data plane is pinned; `None` if none is. Only reads.
    pub fn check(directory: &Path) -> Result<Option<Self>, Error> {
        let what = || format!("read {}", directory.display());
        let occupied = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            entries => entries.context(what)?.next().transpose().context(what)?.is_some(),
        };
        if !occupied {
            return Ok(None);
        }
        let refuse = |found| Error::Layout {
            directory: directory.to_owned(),
            found,
            expected: Layout::own(),
        };
        let pin = directory.join(STAMP_PIN);
        if !pin.exists() {
            return Err(refuse(None));
        }
        let map =
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))?;
        // A stamp of another size, made by another version, is read as far as it goes.
        let value = map
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .context(|| format!("read {}", pin.display()))?
            .unwrap_or_default();
        match Layout::from_bytes(&value) {
            Some(layout) if value.len() == VALUE_BYTES && Layout::own().takes(&layout) => {
                Ok(Some(Self { map, layout }))
            }
            found => Err(refuse(found)),
        }
    }

    /// Makes and pins the stamp of a data plane that is about to be pinned: the first pin, so that
    /// no memory is there without it. It names no method before there is a table.
    pub fn make(directory: &Path) -> Result<Self, Error> {
        let pin = directory.join(STAMP_PIN);
        let options =
            bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        let key_bytes = size_of::<u32>() as u32;
        let map = MapHandle::create(
            MapType::Array,
            Some("weir_layout"),
            key_bytes,
            VALUE_BYTES as u32,
            1,
            &options,
        )
        .context(|| "make the map of the layout's stamp".into())?;
        let mut stamp = Self { map, layout: Layout { shapes: SHAPES, methods: BTreeMap::new() } };
        stamp.write()?;
        stamp.map.pin(&pin).context(|| format!("pin {}", pin.display()))?;
        Ok(stamp)
    }

    /// Notes that there may be tables of a method from now on.
    pub fn note(&mut self, method: u8, layout: u16) -> Result<(), Error> {
        if self.layout.methods.insert(method, layout) == Some(layout) {
            return Ok(());
        }
        self.write()
    }

    fn write(&self) -> Result<(), Error> {
        self.map
            .update(&0u32.to_ne_bytes(), &self.layout.to_bytes(), MapFlags::ANY)
            .context(|| "write the layout's stamp".into())
    }
}
