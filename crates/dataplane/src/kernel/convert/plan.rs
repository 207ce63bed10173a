//! What becomes of each map, found out without touching any.

use super::fields::{Conversion, Described, Shape};
use crate::entries;
use crate::error::{Context, Error};
use crate::kernel::front;
use crate::kernel::guard::GUARD_PREFIX;
use crate::kernel::load::Loading;
use crate::kernel::program::{ENTRY_PREFIX, PREFIX};
use crate::kernel::resize::{NEXT, TAKEN};
use crate::kernel::stamp::{Other, STAMP_PIN};
use crate::link::LINK_PREFIX;
use crate::mapped::Mapped;
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The structure of a report. The ring does not name it.
const EVENT: &str = "event";
/// Free entries that each processor takes for itself, of a map that gives up the oldest (`LOCAL_FREE_TARGET` of the
/// kernel's list of least recently used entries).
const KEPT_FREE: u32 = 128;

/// A map that is made anew.
pub(in crate::kernel) struct Moved {
    pub name: String,
    /// The one that is there.
    pub map: MapHandle,
    pub how: How,
    /// Entries of the new one; of an array in a section of its own its bytes, as these count several elements as one.
    pub count: u32,
    /// The program to be loaded does not have it; another build of the same version does.
    pub absent: bool,
}

/// What makes the new one of it.
pub(in crate::kernel) enum How {
    /// A hash map.
    Entries { key: Conversion, value: Conversion },
    /// An array with a value for each processor.
    PerCpu(Conversion),
    /// An array in a section of its own.
    Elements(Conversion),
}

/// What becomes of all of them.
pub(in crate::kernel) struct Plan {
    pub moved: Vec<Moved>,
    /// Pins of maps that are not known here, with nothing in them.
    pub gone: Vec<PathBuf>,
    /// Maps that go on as they are.
    shared: BTreeSet<String>,
}

impl Plan {
    /// For memory in a directory, and a program with the description of its own. Touches nothing.
    ///
    /// # Errors
    /// [`Error::Layout`] with what cannot be taken over.
    pub fn of(other: &Other, directory: &Path, program: Version<'_>) -> Result<Self, Error> {
        let (theirs, ours) = other.understood(program.described)?;
        if [NEXT, TAKEN].iter().any(|name| directory.join(name).exists()) {
            let why =
                "a change of its limits is not over: start the version that made it once more";
            return Err(other.refuse(why.into()));
        }
        let pinned = Loading::pinned(program.object)?;
        let mut plan = Self { moved: Vec::new(), gone: Vec::new(), shared: BTreeSet::new() };
        // Those, too, that only another build of this version has: they wait for it.
        let known: BTreeSet<String> = ours.shapes.keys().chain(&pinned).cloned().collect();
        for name in &known {
            let pin = directory.join(name);
            if !pin.exists() {
                continue;
            }
            let map = open(&pin)?;
            if !theirs.shapes.contains_key(name) && is_empty(&map)? {
                // Left by a way there that was cut short: it is made anew.
                if !pinned.contains(name) {
                    plan.gone.push(pin);
                }
                continue;
            }
            let how = Ours::of(&ours, name)
                .and_then(|ours| Ok((ours.how(&map, &theirs, name)?, ours.kind)));
            match how.map_err(|why| other.refuse(format!("{name}: {why}")))? {
                (None, _) => drop(plan.shared.insert(name.clone())),
                (Some((how, count)), kind) => {
                    let absent = !pinned.contains(name);
                    if absent && !matches!(how, How::PerCpu(_)) {
                        let why = format!("{name} is another one, and this build has none");
                        return Err(other.refuse(why));
                    }
                    let count = with_spare(&map, kind, count)?;
                    plan.moved.push(Moved { name: name.clone(), map, how, count, absent });
                }
            }
        }
        for (name, pin, map) in unknown(directory, &known)? {
            if !is_empty(&map)? {
                return Err(other.refuse(format!("{name} is not known here, and is in use")));
            }
            plan.gone.push(pin);
        }
        for moved in &plan.moved {
            moved.fits().map_err(|stop| stop.of(other, &moved.name))?;
        }
        Ok(plan)
    }

    /// Whether a map goes on as it is.
    pub fn is_shared(&self, name: &str) -> bool {
        self.shared.contains(name)
    }

    /// How many entries one gets that is made anew, or bytes.
    pub fn count(&self, name: &str) -> Option<u32> {
        self.moved.iter().find(|moved| moved.name == name).map(|moved| moved.count)
    }

    /// What an array's only element is here.
    pub fn element(&self, name: &str, old: &[u8]) -> Option<Vec<u8>> {
        let moved = self.moved.iter().find(|moved| moved.name == name)?;
        let How::Elements(element) = &moved.how else { return None };
        let mut new = vec![0; element.to_bytes];
        element.apply(old.get(..element.from_bytes)?, &mut new).ok()?;
        Some(new)
    }
}

/// Why something is not carried over.
pub(super) enum Stop {
    /// It would be lost.
    Lost(String),
    /// The kernel says no.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Stop {
    pub fn of(self, other: &Other, name: &str) -> Error {
        match self {
            Self::Lost(why) => other.refuse(format!("{name}: {why}")),
            Self::Failed(error) => error,
        }
    }
}

impl Moved {
    /// Whether nothing of it would be lost, as far as can be seen while packets write to it.
    fn fits(&self) -> Result<(), Stop> {
        match &self.how {
            How::Entries { key, value } if key.may_lose() || value.may_lose() => {
                let mut fits = Ok(());
                entries::all(&self.map, |old_key, old_value| {
                    if fits.is_ok() {
                        fits = key.fits(old_key).and_then(|()| value.fits(old_value));
                    }
                })?;
                fits.map_err(Stop::Lost)
            }
            How::PerCpu(value) if value.may_lose() => {
                for number in 0..self.map.max_entries() {
                    for old in per_cpu(&self.map, number)? {
                        value.fits(&old).map_err(Stop::Lost)?;
                    }
                }
                Ok(())
            }
            How::Elements(element) if element.may_lose() => {
                let (memory, count) = self.elements(element)?;
                for at in 0..count {
                    let old = words(&memory, at * element.from_bytes, element.from_bytes);
                    element.fits(&old).map_err(Stop::Lost)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Makes and pins the new one, which no program that is loaded makes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn make(&self, pin: &Path) -> Result<(), Error> {
        let How::PerCpu(value) = &self.how else { return Ok(()) };
        let options =
            bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        let (key, value) = (self.map.key_size(), value.to_bytes as u32);
        let kind = self.map.map_type();
        MapHandle::create(kind, Some(&self.name), key, value, self.count, &options)
            .and_then(|mut map| map.pin(pin))
            .context(|| format!("make the map {}", self.name))
    }

    /// The memory of an array, and how many elements it has.
    pub fn elements(&self, element: &Conversion) -> Result<(Mapped, usize), Error> {
        let bytes = self.map.value_size() as usize;
        Ok((Mapped::new(&self.map, bytes)?, bytes / element.from_bytes))
    }
}

/// Bytes that packets may write to.
fn words(memory: &Mapped, at: usize, length: usize) -> Vec<u8> {
    let (first, end) = (at / 4 * 4, (at + length).next_multiple_of(4).min(memory.len() / 4 * 4));
    let load = |at| memory.word32(at).load(std::sync::atomic::Ordering::Relaxed).to_ne_bytes();
    let bytes: Vec<u8> = (first..end).step_by(4).flat_map(load).collect();
    bytes[at - first..][..length].to_vec()
}

/// The values of an array for each processor.
pub(super) fn per_cpu(map: &MapHandle, number: u32) -> Result<Vec<Vec<u8>>, Error> {
    let found = map.lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY);
    Ok(found.context(|| format!("read map {:?}", map.name()))?.unwrap_or_default())
}

fn open(pin: &Path) -> Result<MapHandle, Error> {
    MapHandle::from_pinned_path(pin).context(|| format!("open {}", pin.display()))
}

/// A program, and what its memory is made of.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Version<'a> {
    /// The object file.
    pub object: &'a [u8],
    /// The description that the build writes of it.
    pub described: &'a str,
}

/// A map of the program.
struct Ours<'a> {
    kind: MapType,
    key: Option<&'a Shape>,
    /// Of an array in a section of its own, an element; of a ring, a report.
    value: &'a Shape,
}

/// How a map is made anew, with so many entries or bytes; not at all, if it is the same. Or why it cannot be.
type Way = Result<Option<(How, u32)>, String>;

impl<'a> Ours<'a> {
    /// As a description says.
    fn of(described: &'a Described, name: &str) -> Result<Self, String> {
        let unknown = || "nothing is known of what it is made of".to_owned();
        let shape = described.shapes.get(name).ok_or_else(unknown)?;
        if let Shape::Array { of, .. } = shape {
            return Ok(Self { kind: MapType::Array, key: None, value: of });
        }
        // How a kind is declared: as the length of an array.
        let Some(Shape::Array { count, .. }) = shape.field("type") else { return Err(unknown()) };
        let kind = MapType::from(*count as u32);
        if kind == MapType::RingBuf {
            let value = described.shapes.get(EVENT).ok_or_else(unknown)?;
            return Ok(Self { kind, key: None, value });
        }
        let value = shape.field("value").ok_or_else(unknown)?;
        Ok(Self { kind, key: shape.field("key"), value })
    }

    fn how(&self, map: &MapHandle, described: &Described, name: &str) -> Way {
        let theirs = Ours::of(described, name)?;
        let is_hash = |kind| matches!(kind, MapType::Hash | MapType::LruHash);
        let kind = map.map_type();
        if kind != theirs.kind {
            return Err(format!(
                "it is a map of kind {kind:?}, and said to be of kind {:?}",
                theirs.kind
            ));
        }
        if kind != self.kind && !(is_hash(kind) && is_hash(self.kind)) {
            return Err(format!(
                "it is a map of kind {kind:?} there, and of kind {:?} here",
                self.kind
            ));
        }
        let entries = map.max_entries();
        let is_whole = |key: usize, value: usize| {
            let sizes = (map.key_size() as usize, map.value_size() as usize);
            if sizes == (key, value) { Ok(()) } else { Err(format!("its sizes are {sizes:?}")) }
        };
        match kind {
            MapType::Array => {
                let element = Conversion::between(theirs.value, self.value)?;
                let bytes = map.value_size() as usize;
                if element.from_bytes == 0 || !bytes.is_multiple_of(element.from_bytes) {
                    return Err(format!(
                        "{bytes} bytes do not hold elements of {}",
                        element.from_bytes
                    ));
                }
                let bytes = bytes / element.from_bytes * element.to_bytes;
                let bytes =
                    u32::try_from(bytes).map_err(|_| format!("it would take {bytes} bytes"))?;
                Ok((!element.same).then_some((How::Elements(element), bytes)))
            }
            MapType::PercpuArray => {
                let value = Conversion::between(theirs.value, self.value)?;
                is_whole(size_of::<u32>(), value.from_bytes)?;
                Ok((!value.same).then_some((How::PerCpu(value), entries)))
            }
            MapType::Hash | MapType::LruHash => {
                let (Some(ours), Some(theirs_key)) = (self.key, theirs.key) else {
                    return Err("nothing is known of its keys".into());
                };
                let key = Conversion::between(theirs_key, ours)?;
                let value = Conversion::between(theirs.value, self.value)?;
                is_whole(key.from_bytes, value.from_bytes)?;
                if let Some(field) = key.added.first() {
                    return Err(format!("its keys have no {field} there"));
                }
                if key.same && value.same && kind == self.kind {
                    return Ok(None);
                }
                Ok(Some((How::Entries { key, value }, entries)))
            }
            MapType::RingBuf => match theirs.value == self.value {
                true => Ok(None),
                false => Err("reports are of another structure".into()),
            },
            other => Err(format!("it is a map of kind {other:?}")),
        }
    }
}

/// How many entries a map needs to take over all that are in one: such a map gives up what is old, and refuses
/// nothing.
fn with_spare(map: &MapHandle, kind: MapType, count: u32) -> Result<u32, Error> {
    if kind != MapType::LruHash {
        return Ok(count);
    }
    let cpus = libbpf_rs::num_possible_cpus().context(|| "count CPUs".into())? as u32;
    let mut used = KEPT_FREE.saturating_mul(cpus);
    entries::all(map, |_, _| used = used.saturating_add(1))?;
    Ok(count.max(used))
}

/// Removes what is left of maps that are not known any more and were found empty, in memory that has become another
/// one.
///
/// # Errors
/// What the kernel says.
pub(super) fn clean(directory: &Path, known: &Described) -> Result<(), Error> {
    for (_, pin, map) in unknown(directory, &known.shapes.keys().cloned().collect())? {
        if is_empty(&map)? {
            fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
        }
    }
    Ok(())
}

/// Pins of maps that the program does not have.
fn unknown(
    directory: &Path,
    own: &BTreeSet<String>,
) -> Result<Vec<(String, PathBuf, MapHandle)>, Error> {
    let entries = fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let prefixes =
            [LINK_PREFIX, GUARD_PREFIX, PREFIX, ENTRY_PREFIX, front::BEHIND_PREFIX, STAMP_PIN];
        let of_programs = prefixes.iter().any(|prefix| name.starts_with(prefix));
        let is_pin = entry.file_type().is_ok_and(|kind| kind.is_file());
        if of_programs || front::KEPT.contains(&&*name) || own.contains(&name) || !is_pin {
            continue;
        }
        if let Ok(map) = MapHandle::from_pinned_path(entry.path()) {
            found.push((name, entry.path(), map));
        }
    }
    Ok(found)
}

/// Whether there is nothing in a map that is not known here.
fn is_empty(map: &MapHandle) -> Result<bool, Error> {
    let zero = |bytes: &Vec<u8>| bytes.iter().all(|byte| *byte == 0);
    match map.map_type() {
        MapType::Hash | MapType::LruHash => {
            let mut empty = true;
            entries::all(map, |_, _| empty = false)?;
            Ok(empty)
        }
        MapType::Array => {
            for number in 0..map.max_entries() {
                let value = map.lookup(&number.to_ne_bytes(), MapFlags::ANY);
                let value = value.context(|| format!("read map {:?}", map.name()))?;
                if !value.iter().all(zero) {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        MapType::PercpuArray => {
            for number in 0..map.max_entries() {
                if !per_cpu(map, number)?.iter().all(zero) {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}
