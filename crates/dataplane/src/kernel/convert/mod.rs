//! Memory of another layout, which another version has made, becomes memory of this one, under traffic.
//!
//! What memory is made of is written down beside it. So maps whose structures are others here are made
//! beside those that are there, and filled field by field ([`fields`]); all others go on as they are. The old
//! program knows nothing of the new maps and cannot note in both, as it does while sizes change
//! (`resize`). So frames are dropped while what it has noted is carried over, and their senders send
//! them again. Who decides is one word of the program in front ([`hold`]):
//!
//! ```text
//!          pins of the new maps     packets go to              after SIGKILL
//! make     directory `convert`      the old program            old, `convert` goes
//! hold     `convert`                nobody, for a bounded time  old, once that time is over; `convert` goes
//! fill     `convert`                nobody                     the same
//! commit   `convert`                the new program            new
//! move     in place of the old      the new program            new
//! ```
//!
//! *commit* exchanges one word, and fails if a frame has found the time over and has gone to the old program: then
//! all is filled once more, with more time. Nothing that the old program notes is missing in the new memory, and
//! whoever dies in between leaves one of both whole.
//!
//! Something that is in use and has no place here is refused before anything is touched ([`mod@plan`]).

mod fields;
mod hold;
mod plan;

use super::KernelPlane;
use super::front;
use super::grace;
use super::load::{Loading, PROGRAM, remove_set};
use super::pinned::look_at;
use super::program::{self, Program};
use super::stamp::{DESCRIBED, Found, Layout, Other, STAMP_PIN, Stamp, describe, written};
use crate::entries;
use crate::error::{Context, Error};
use crate::link::{self, LINK_PREFIX};
use crate::mapped::Mapped;
pub(super) use fields::Described;
use hold::{Hold, WORDS_PIN, Words};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use plan::{How, Moved, Stop, per_cpu};
pub(super) use plan::{Plan, Version};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_plane::Limits;

/// Directory of the maps that are being filled.
const CONVERT: &str = "convert";
/// How long frames are held back at most: a second time, and a third, if that was too short.
const TIMES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8)];

/// A step, for tests that stop after it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the table above says what they are")]
pub enum ConvertStep {
    Make,
    Hold,
    Fill,
    Commit,
    Move,
}

impl ConvertStep {
    /// All, in their order.
    pub const ALL: [Self; 5] = [Self::Make, Self::Hold, Self::Fill, Self::Commit, Self::Move];
}

/// How memory of another layout was taken over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Converted {
    /// The maps that were made anew.
    pub maps: Vec<String>,
    /// How long frames were held back, over all times that it was tried.
    pub held: Duration,
    /// Frames that were dropped meanwhile.
    pub frames: u64,
}

impl KernelPlane {
    /// Makes pinned memory that of another build of the program, with a number that stands for its layout, as if
    /// another version had made it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[doc(hidden)]
    pub fn convert(
        directory: &Path,
        (object, described, shapes): (&[u8], &str, u64),
        limits: &Limits,
        last: Option<ConvertStep>,
    ) -> Result<Option<Converted>, Error> {
        recover(directory)?;
        let other = match Stamp::look(directory)? {
            Found::Nothing => return Ok(None),
            Found::Own(stamp) => stamp.into_other(directory)?,
            Found::Other(other) => other,
        };
        let program = Version { object, described };
        take_over(directory, program, limits, (&other, shapes), last)
    }
}

impl<'a> Version<'a> {
    /// A build of this version's program: its memory is what this version's is.
    pub fn own(object: &'a [u8]) -> Self {
        Self { object, described: DESCRIBED }
    }
}

/// Whether memory of another layout can be taken over. Touches nothing.
///
/// # Errors
/// [`Error::Layout`] with the reason, if not.
pub(super) fn plan(directory: &Path, other: &Other) -> Result<Plan, Error> {
    let plan = Plan::of(other, directory, Version::own(PROGRAM))?;
    program::next_in(directory).map_err(|error| other.refuse(error.to_string()))?;
    Ok(plan)
}

/// Ends what a process that was killed has begun: what is new is in force, or goes.
///
/// # Errors
/// What the kernel says.
pub(super) fn recover(directory: &Path) -> Result<(), Error> {
    let made = directory.join(CONVERT);
    if !made.exists() {
        return Ok(());
    }
    if Words::open(&made)?.is_some_and(|words| words.end()) {
        settle(directory)?;
        // Whoever was to remove it is gone.
        return match written(directory)? {
            Some(known) => plan::clean(directory, &known),
            None => Ok(()),
        };
    }
    remove_set(&made).context(|| format!("remove {}", made.display()))
}

/// Moves the new maps to the place of the old ones; their stamp last, by which other versions know.
fn settle(directory: &Path) -> Result<(), Error> {
    let made = directory.join(CONVERT);
    let what = || format!("replace the pins in {}", directory.display());
    let mut stamp = None;
    // All of them, before the first is moved.
    let entries = fs::read_dir(&made).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    for entry in entries.context(what)? {
        let to = directory.join(entry.file_name());
        match entry.file_name().to_str() {
            Some(WORDS_PIN) => {}
            Some(STAMP_PIN) => stamp = Some((entry.path(), to)),
            _ => fs::rename(entry.path(), to).context(what)?,
        }
    }
    if let Some((from, to)) = stamp {
        fs::rename(from, to).context(what)?;
    }
    // What was moved is known by these words until here.
    remove_set(&made).context(|| format!("remove {}", made.display()))
}

/// The directory of the new maps; it goes with this, unless it is kept.
struct Made {
    path: PathBuf,
    kept: bool,
}

impl Drop for Made {
    fn drop(&mut self) {
        if !self.kept {
            let _ = remove_set(&self.path);
        }
    }
}

/// Takes memory of another layout over, with a number that stands for the new one; ends after a step, if a test
/// wants no more.
///
/// # Errors
/// [`Error::Layout`] if it cannot be taken over; all stays as it is then, as with every other error before *commit*.
pub(super) fn take_over(
    directory: &Path,
    program: Version<'_>,
    limits: &Limits,
    (other, shapes): (&Other, u64),
    last: Option<ConvertStep>,
) -> Result<Option<Converted>, Error> {
    let Version { object, described } = program;
    let plan = Plan::of(other, directory, program)?;
    let former = former(directory)?;
    let path = directory.join(CONVERT);
    fs::create_dir(&path).context(|| format!("create {}", path.display()))?;
    let mut made = Made { path: path.clone(), kept: false };
    let place = |name: &str| {
        Some(if plan.is_shared(name) { directory.join(name) } else { path.join(name) })
    };
    let counts = |name: &str| plan.count(name);
    let loading = Loading { counts: &counts, ..Loading::of(object, &place) };
    let (loaded, _) = loading.load(&as_large(directory, limits))?;
    let mut program = Program::of(&loaded)?;
    program.hand_on(program::next_in(directory)?)?;
    for moved in plan.moved.iter().filter(|moved| moved.absent) {
        moved.make(&path.join(&moved.name))?;
    }
    let hold = Hold::load(former.as_ref().map(AsFd::as_fd), &program)?;
    Stamp::pin(Layout { shapes, methods: other.methods() }, &path)?;
    describe(described, &path)?;
    front::send_away(directory)?;
    // That of the new program goes with the new maps, or comes with them; the one before both is there as long as a
    // link has it.
    program.keep(&path)?;
    hold.keep(directory, &path)?;
    let turning = Turning { directory, path: &path, plan: &plan, other, hold: &hold };
    if last == Some(ConvertStep::Make) {
        made.kept = true;
        return Ok(None);
    }
    let converted = match turning.turn(former.is_some(), last) {
        Ok(converted) => converted,
        Err(error) => {
            // If that fails, packets go to the old program by the one in front.
            let _ = turning.go_back(former.as_ref());
            return Err(error);
        }
    };
    made.kept = true;
    if last.is_some_and(|last| last <= ConvertStep::Commit) {
        return Ok(None);
    }
    settle(directory)?;
    for pin in &plan.gone {
        fs::remove_file(pin).context(|| format!("remove {}", pin.display()))?;
    }
    Ok(converted)
}

/// Limits for maps that were not there: as large as those beside them, of services and of backends.
fn as_large(directory: &Path, limits: &Limits) -> Limits {
    let open = |name: &str| MapHandle::from_pinned_path(directory.join(name)).ok();
    let services = open("turns").map_or(0, |map| map.value_size() / size_of::<u64>() as u32);
    let backends = open("lanes").map_or(0, |map| map.max_entries());
    let (services, backends) = (limits.services.max(services), limits.backends.max(backends));
    Limits { services, backends, ..*limits }
}

/// The program that decides now; none if no interface has one. Where links have several, which are over the same
/// memory, one of them can take the place of all; so can the newest one of that which stands in front of it.
fn former(directory: &Path) -> Result<Option<OwnedFd>, Error> {
    let what = || format!("read {}", directory.display());
    let mut programs = BTreeSet::new();
    for entry in fs::read_dir(directory).context(what)? {
        let entry = entry.context(what)?;
        if !entry.file_name().to_string_lossy().starts_with(LINK_PREFIX) {
            continue;
        }
        let pin = entry.path();
        let (interface, program) =
            look_at(&pin).context(|| format!("look at link {}", pin.display()))?;
        if interface != 0 {
            programs.insert(program);
        }
    }
    let Some(newest) = programs.last().copied() else { return Ok(None) };
    let mut pinned = program::entries_in(directory)?;
    let attached = pinned.iter().rev().find(|(_, (number, _))| programs.contains(number));
    let parts = attached.or(pinned.iter().next_back()).map(|(parts, _)| *parts);
    if let Some((_, program)) = parts.and_then(|parts| pinned.remove(&parts)) {
        return Ok(Some(program));
    }
    // Of a version that pinned none.
    let program = program::of_number(newest);
    program.map(Some).context(|| "open the program that is attached".into())
}

/// What is under way from *hold* to *commit*.
struct Turning<'a> {
    directory: &'a Path,
    path: &'a Path,
    plan: &'a Plan,
    other: &'a Other,
    hold: &'a Hold,
}

impl Turning<'_> {
    /// Until the new program decides; `None` if a test wants no more.
    fn turn(&self, attached: bool, last: Option<ConvertStep>) -> Result<Option<Converted>, Error> {
        let new = |moved: &Moved| {
            let pin = self.path.join(&moved.name);
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))
        };
        let maps: Vec<_> = self
            .plan
            .moved
            .iter()
            .map(|moved| Ok((moved, new(moved)?)))
            .collect::<Result<_, Error>>()?;
        self.other.begin()?;
        if attached {
            link::replace_all(self.directory, self.hold.entry())?;
        }
        let mut held = Duration::ZERO;
        for time in TIMES {
            let begun = Instant::now();
            self.hold.words.begin(time);
            // What the old program is at, it ends.
            grace()?;
            if last == Some(ConvertStep::Hold) {
                return Ok(None);
            }
            for (moved, new) in &maps {
                fill(moved, new).map_err(|stop| stop.of(self.other, &moved.name))?;
            }
            if last == Some(ConvertStep::Fill) {
                return Ok(None);
            }
            if self.hold.words.commit() {
                let names = maps.iter().map(|(moved, _)| moved.name.clone());
                return Ok(Some(Converted {
                    maps: names.collect(),
                    held: held + begun.elapsed(),
                    frames: self.hold.words.held(),
                }));
            }
            // From then on the old program went on.
            held += begun.elapsed().min(time);
            for (moved, new) in &maps {
                clear(moved, new)?;
            }
        }
        let most = TIMES.map(|time| time.as_secs()).into_iter().max().unwrap_or_default();
        Err(self.other.refuse(format!("what is in it is not copied within {most} s")))
    }

    /// Everything as it was: the old program decides, and links have it. The stamp first, by which the old version knows.
    fn go_back(&self, former: Option<&OwnedFd>) -> Result<(), Error> {
        self.hold.words.end();
        self.other.restore()?;
        if let Some(former) = former {
            link::replace_all(self.directory, former.as_fd())?;
            grace()?;
        }
        self.hold.forget(self.directory)
    }
}

/// Makes the new map of what is in the old one, which nobody writes to.
fn fill(moved: &Moved, new: &MapHandle) -> Result<(), Stop> {
    let what = || format!("fill map {}", moved.name);
    match &moved.how {
        How::Entries { key, value } => {
            let (mut keys, mut values, mut done) = (Vec::new(), Vec::new(), Ok(()));
            entries::all(&moved.map, |old_key, old_value| {
                let (at_key, at_value) = (keys.len(), values.len());
                keys.resize(at_key + key.to_bytes, 0);
                values.resize(at_value + value.to_bytes, 0);
                if done.is_ok() {
                    done = key
                        .apply(old_key, &mut keys[at_key..])
                        .and_then(|()| value.apply(old_value, &mut values[at_value..]));
                }
            })?;
            done.map_err(Stop::Lost)?;
            entries::write_bytes(new, &keys, &values).context(what)?;
        }
        How::PerCpu(value) => {
            for number in 0..moved.map.max_entries().min(new.max_entries()) {
                let mut made = Vec::new();
                for old in per_cpu(&moved.map, number)? {
                    let mut new = vec![0; value.to_bytes];
                    value.apply(&old, &mut new).map_err(Stop::Lost)?;
                    made.push(new);
                }
                let key = number.to_ne_bytes();
                new.update_percpu(&key, &made, MapFlags::ANY).context(what)?;
            }
        }
        How::Elements(element) => {
            let (old, count) = moved.elements(element)?;
            let bytes = count * element.to_bytes;
            let mut new = Mapped::new(new, bytes)?;
            let places = new.bytes_mut()[..bytes].chunks_exact_mut(element.to_bytes);
            for (place, at) in places.zip(0..) {
                let from = old.get(at * element.from_bytes, element.from_bytes).unwrap_or_default();
                element.apply(from, place).map_err(Stop::Lost)?;
            }
        }
    }
    Ok(())
}

/// Empties a new map that is to be filled once more; arrays are written over.
fn clear(moved: &Moved, new: &MapHandle) -> Result<(), Error> {
    let How::Entries { .. } = moved.how else { return Ok(()) };
    let mut keys = Vec::new();
    entries::all(new, |key, _| keys.push(key.to_vec()))?;
    for key in keys {
        new.delete(&key).context(|| format!("empty map {}", moved.name))?;
    }
    Ok(())
}
