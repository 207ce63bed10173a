//! What pinned memory is made of, written beside it, so that no other version of weir takes it for
//! its own.

use super::KernelPlane;
use super::convert::Described;
use super::load::missing;
use crate::error::{Context, Error};
use crate::link;
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use weir_steering::MethodId;

/// Name of the stamp's pin.
pub(super) const STAMP_PIN: &str = "layout";

/// Stands for every structure and number that the maps' bytes depend on; the build computes it.
const SHAPES: u64 = include!(concat!(env!("OUT_DIR"), "/stamp.rs"));

const SHAPES_BYTES: usize = size_of::<u64>();
const METHOD_BYTES: usize = size_of::<u16>();
const VALUE_BYTES: usize = SHAPES_BYTES + 256 * METHOD_BYTES;

/// What this version's memory is made of, as text.
pub(crate) const DESCRIBED: &str = include_str!(concat!(env!("OUT_DIR"), "/described.txt"));
/// Name of that text's pin. The first versions have none.
pub(super) const TEXT_PIN: &str = "layout-text";
/// In the place of the number of all structures while what is pinned becomes memory of another layout: no version
/// has this one.
const CHANGING: u64 = 0;

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

/// What is pinned in a directory, by its stamp.
pub(super) enum Found {
    /// No data plane.
    Nothing,
    /// One of this layout.
    Own(Stamp),
    /// One of another layout.
    Other(Other),
}

/// The stamp of another layout.
pub(super) struct Other {
    directory: PathBuf,
    /// The map, and its first entry; none if there is no stamp.
    stamp: Option<(MapHandle, Vec<u8>)>,
}

/// The map's entry.
fn entry(map: &MapHandle, pin: &Path) -> Result<Vec<u8>, Error> {
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
    Ok(value.context(|| format!("read {}", pin.display()))?.unwrap_or_default())
}

impl Other {
    /// Its layout; none if it has recorded none.
    fn layout(&self) -> Option<Layout> {
        self.stamp.as_ref().and_then(|(_, value)| Layout::from_bytes(value))
    }

    /// The methods that there may be tables of, in layouts that are known here.
    pub fn methods(&self) -> BTreeMap<u8, u16> {
        self.layout().map_or_else(BTreeMap::new, |layout| layout.methods)
    }

    /// That it is left as it is, and why.
    pub fn refuse(&self, why: String) -> Error {
        Error::Layout {
            directory: self.directory.clone(),
            found: self.layout(),
            expected: Layout::own(),
            why: why.into(),
            forwards: KernelPlane::forwards(&self.directory),
        }
    }

    /// What it is made of, and what that of such a description is, if its tables and its numbers mean here what they
    /// mean there. Structures are another question.
    ///
    /// # Errors
    /// [`Error::Layout`] if not.
    pub fn understood(&self, own_text: &str) -> Result<(Described, Described), Error> {
        let Some((_, value)) = &self.stamp else {
            return Err(self.refuse("it does not say what it is made of".into()));
        };
        let own = Layout::own();
        let strange = |(method, layout): &(&u8, &u16)| own.methods.get(method) != Some(layout);
        if value.len() != VALUE_BYTES {
            return Err(self.refuse("its stamp is of another form".into()));
        }
        let methods = self.methods();
        if let Some((method, layout)) = methods.iter().find(strange) {
            let why = format!("its tables of method {method} are in layout {layout}");
            return Err(self.refuse(why));
        }
        let described = self.described()?;
        let own_described = Described::parse(own_text);
        let own_described = own_described.ok_or_else(|| missing("a description of", "the maps"))?;
        if let Some(number) = described.strange_number(&own_described) {
            return Err(
                self.refuse(format!("{number} means something else there, or is not known here"))
            );
        }
        Ok((described, own_described))
    }

    /// What it is made of.
    fn described(&self) -> Result<Described, Error> {
        if !self.directory.join(TEXT_PIN).exists() {
            let why = "the version that made it has not written down what it is made of";
            return Err(self.refuse(why.into()));
        }
        written(&self.directory)?
            .ok_or_else(|| self.refuse("what it is made of is written in another form".into()))
    }

    /// Has no version take it for its own, while it is taken over.
    pub fn begin(&self) -> Result<(), Error> {
        self.write(CHANGING)
    }

    /// As it was.
    pub fn restore(&self) -> Result<(), Error> {
        self.write(self.layout().map_or(CHANGING, |layout| layout.shapes))
    }

    fn write(&self, shapes: u64) -> Result<(), Error> {
        let Some((map, value)) = &self.stamp else { return Ok(()) };
        let mut value = value.clone();
        value[..SHAPES_BYTES].copy_from_slice(&shapes.to_le_bytes());
        map.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
            .context(|| "write the layout's stamp".into())
    }
}

impl Stamp {
    /// What is pinned in a directory. Only reads.
    pub fn look(directory: &Path) -> Result<Found, Error> {
        let what = || format!("read {}", directory.display());
        let occupied = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            entries => entries.context(what)?.next().transpose().context(what)?.is_some(),
        };
        if !occupied {
            return Ok(Found::Nothing);
        }
        let directory = directory.to_owned();
        let pin = directory.join(STAMP_PIN);
        if !pin.exists() {
            return Ok(Found::Other(Other { directory, stamp: None }));
        }
        let map =
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))?;
        // A stamp of another size, made by another version, is read as far as it goes.
        let value = entry(&map, &pin)?;
        match Layout::from_bytes(&value) {
            Some(layout) if value.len() == VALUE_BYTES && Layout::own().takes(&layout) => {
                Ok(Found::Own(Self { map, layout }))
            }
            _ => Ok(Found::Other(Other { directory, stamp: Some((map, value)) })),
        }
    }

    /// Makes and pins the stamp of a data plane that is about to be pinned: the first pin, so that
    /// no memory is there without it. It names no method before there is a table.
    pub fn make(directory: &Path) -> Result<Self, Error> {
        let stamp = Self::pin(Layout { shapes: SHAPES, methods: BTreeMap::new() }, directory)?;
        describe(DESCRIBED, directory)?;
        Ok(stamp)
    }

    /// A stamp of this layout.
    pub fn pin(layout: Layout, directory: &Path) -> Result<Self, Error> {
        let map = array("weir_layout", VALUE_BYTES)?;
        let mut stamp = Self { map, layout };
        stamp.write()?;
        let pin = directory.join(STAMP_PIN);
        stamp.map.pin(&pin).context(|| format!("pin {}", pin.display()))?;
        Ok(stamp)
    }

    /// As that of another layout than one that is to be made.
    pub fn into_other(self, directory: &Path) -> Result<Other, Error> {
        let directory = directory.to_owned();
        let value = entry(&self.map, &directory.join(STAMP_PIN))?;
        Ok(Other { directory, stamp: Some((self.map, value)) })
    }

    /// With the description of what it is made of, which the first versions did not write down; it was the same.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn complete(self, directory: &Path) -> Result<Self, Error> {
        if !directory.join(TEXT_PIN).exists() {
            describe(DESCRIBED, directory)?;
        }
        Ok(self)
    }

    /// Pins stamp and description again where they are gone: the description first, as without a stamp nothing goes by
    /// it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn put_back(&self, directory: &Path) -> Result<(), Error> {
        if !directory.join(TEXT_PIN).exists() {
            describe(DESCRIBED, directory)?;
        }
        let pin = directory.join(STAMP_PIN);
        if !pin.exists() {
            link::pin_fd(&self.map.as_fd(), &pin)?;
        }
        Ok(())
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

/// An array with one value.
fn array(name: &str, bytes: usize) -> Result<MapHandle, Error> {
    let options =
        bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
    let key_bytes = size_of::<u32>() as u32;
    MapHandle::create(MapType::Array, Some(name), key_bytes, bytes as u32, 1, &options)
        .context(|| format!("make the map {name}"))
}

/// What is written in a directory of what memory is made of; `None` if nothing that is understood here.
pub(super) fn written(directory: &Path) -> Result<Option<Described>, Error> {
    let pin = directory.join(TEXT_PIN);
    if !pin.exists() {
        return Ok(None);
    }
    let map = MapHandle::from_pinned_path(&pin);
    let map = map.context(|| format!("open {}", pin.display()))?;
    let text = String::from_utf8(entry(&map, &pin)?).ok();
    Ok(text.and_then(|text| Described::parse(&text)))
}

/// Pins a description of what memory is made of.
pub(super) fn describe(text: &str, directory: &Path) -> Result<(), Error> {
    let mut map = array("weir_described", text.len())?;
    map.update(&0u32.to_ne_bytes(), text.as_bytes(), MapFlags::ANY)
        .context(|| "write what memory is made of".into())?;
    let pin = directory.join(TEXT_PIN);
    map.pin(&pin).context(|| format!("pin {}", pin.display()))
}
