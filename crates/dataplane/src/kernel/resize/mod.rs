//! Memory of another size takes the place of the memory in use, under traffic.
//!
//! A map cannot be resized. So the maps whose sizes change are made beside those in use, filled, and
//! taken over by replacing the program in the links; the others belong to both programs meanwhile.
//! What packets read comes from the control plane, which does nothing else in the meantime. What
//! packets note and read themselves, the pending table, the connection table and the timestamps of
//! answers, has *twins*:
//!
//! ```text
//!          pins of the new maps     packets read  note in   report to   after SIGKILL
//! make     directory `next`         old           old       old         old, `next` goes
//! twin     `next`                   old           both      old         old, `next` goes
//! fill     `next`                   old           both      old         old, `next` goes
//! turn     `next`                   new           both      old         old, `next` goes
//! commit   `next` becomes `taken`   new           both      old         new
//! arrive   `taken`                  new           new       new         new
//! drain    in place of the old      new           new       new         new
//! ```
//!
//! A grace period follows each change of the program. Reports go to the old memory until the new one
//! is committed, so the old one is whole for as long as it may have to be gone back to; then its
//! reports are taken before those of the new. *twin* and *turn* are left out where neither map with
//! a twin changes. The marks of activity go to the old memory for as long, too, and are taken up by
//! the new one at *arrive*.

mod fill;

use super::front;
use super::grace;
use super::links::Links;
use super::load::{Loading, PROGRAM, TWINS, remove_set};
use super::program::Program;
use super::size::marked_flows;
use super::{KernelPlane, Sizes};
use crate::error::{Context, Error};
use crate::mapped::Parted;
use crate::reports::Reports;
use libbpf_rs::{MapCore, MapHandle, Object};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use weir_plane::Limits;
use weir_steering::{ELEMENT_BYTES, SEEN_WAYS};

/// Directory of maps that are being made.
pub(super) const NEXT: &str = "next";
/// Directory of maps that have taken the place of those of the same names beside it.
pub(super) const TAKEN: &str = "taken";

/// Maps that can only take each other's place together.
const TOGETHER: [&[&str]; 4] = [
    &["tables", "vips", "pool", "turns", "entered", "untold", "caps"],
    &["backends", "lanes", "loads"],
    &["slots", "stacks"],
    &["lists", "sources"],
];
/// Those that stand alone.
const ALONE: [&str; 10] = [
    "pending",
    "pinned",
    "connections",
    "answers",
    "seen",
    MARKS,
    "events",
    "unreported",
    "translations",
    "mappings",
];
/// What says which flows are alive: it only grows, as where packets mark is one word for both programs, and has to
/// be in both. Like reports they go to the old memory until the new one is committed.
const MARKS: &str = "marks";
/// What reports go to.
const REPORTS: [&str; 2] = ["events", "unreported"];

/// A step, for tests that stop after it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the table above says what they are")]
pub enum ResizeStep {
    Make,
    Twin,
    Fill,
    Turn,
    Commit,
    Arrive,
}

impl ResizeStep {
    /// All, in their order.
    pub const ALL: [Self; 6] =
        [Self::Make, Self::Twin, Self::Fill, Self::Turn, Self::Commit, Self::Arrive];
}

/// Where a map in use is pinned.
pub(super) fn pin_of(directory: &Path, name: &str) -> PathBuf {
    let taken = directory.join(TAKEN).join(name);
    if taken.exists() { taken } else { directory.join(name) }
}

/// Memory that packets are being led away from.
pub(crate) struct Former {
    /// It is the memory that was to be: there was no room in it, or no time.
    given_up: bool,
    /// The ring and the map behind it, if it has memory of its own for reports.
    reports: Option<(MapHandle, MapHandle)>,
    /// The marks that are to be taken up when no packet writes to them, if it has others.
    marks: Option<Parted>,
    /// No packet reads it or writes to it.
    left: bool,
}

impl Former {
    /// What an earlier run has left behind.
    pub fn left_behind(directory: &Path) -> Result<Option<Self>, Error> {
        let taken = directory.join(TAKEN);
        if !taken.exists() {
            let given_up = Self { given_up: true, reports: None, marks: None, left: false };
            return Ok(directory.join(NEXT).exists().then_some(given_up));
        }
        let open = |name: &str| {
            let pin = directory.join(name);
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))
        };
        let reports = match REPORTS.iter().any(|name| taken.join(name).exists()) {
            true => Some((open("events")?, open("unreported")?)),
            false => None,
        };
        let marks = taken.join(MARKS).exists().then(|| {
            let map = open(MARKS)?;
            let bytes = map.value_size() as usize * map.max_entries() as usize;
            Parted::new(&map, bytes)
        });
        Ok(Some(Self { given_up: false, reports, marks: marks.transpose()?, left: false }))
    }
}

impl KernelPlane {
    /// How large its memory is.
    pub fn limits(&self) -> Limits {
        let entries = |map: &MapHandle| map.max_entries();
        Limits {
            services: self.sizes.services,
            table_bytes: u64::from(self.sizes.pool_elements) * ELEMENT_BYTES as u64,
            backends: self.sizes.backends,
            pending_flows: entries(&self.maps.pending),
            unreported_flows: entries(&self.maps.unreported).min(entries(&self.maps.pinned)),
            tracked_flows: entries(&self.maps.connections),
            answered_flows: entries(&self.maps.answers),
            slot_partitions: self.sizes.partitions,
            translations: entries(&self.maps.translations),
            mappings: (self.sizes.mappings / 2).max(1),
            udp_flows: self.sizes.seen_lines * SEEN_WAYS as u32 / 2,
            event_ring_bytes: entries(&self.maps.events),
            marked_flows: self.sizes.mark_words * 2,
            stranger_bits: self.sizes.stranger_words * u64::BITS,
            list_prefixes: self.sizes.list_prefixes(),
        }
    }

    /// Flows that its marks have room for with these limits.
    pub fn marked_by(&self, limits: &Limits) -> u32 {
        marked_flows(limits.marked_flows)
    }

    /// Makes its memory as large as these limits want it, without missing a packet. Then the consumer
    /// of its reports is the one that is returned, once those of the [`Former`] memory are taken;
    /// `None` if nothing had to change.
    ///
    /// # Errors
    /// [`Error::TooSmall`], [`Error::PoolFull`], [`Error::ServicesFull`] if what is there does not
    /// fit; all stays as it is then.
    pub(crate) fn resize(
        &mut self,
        limits: &Limits,
        last: Option<ResizeStep>,
    ) -> Result<Option<Reports>, Error> {
        match self.making(limits)? {
            Some(making) => self.take_place(making.make()?, last),
            None => Ok(None),
        }
    }

    /// The first step, *make*, which loads programs, and so takes seconds: it needs nothing of this plane, and
    /// may be taken on another thread. `None` if nothing has to change.
    ///
    /// # Errors
    /// If it is not pinned; [`Error::Resizing`] if what it was resized from is still there.
    pub(crate) fn making(&self, limits: &Limits) -> Result<Option<Making>, Error> {
        let Some(directory) = self.directory.clone() else {
            let source = io::Error::other("it is not pinned");
            return Err(source).context(|| "resize the data plane".into());
        };
        if self.former.is_some() {
            return Err(Error::Resizing);
        }
        let object = self.object.clone().unwrap_or_else(|| PROGRAM.to_vec());
        let possible = self.possible(limits);
        let changed = changed(&object, &directory, &possible)?;
        let moving = Moving { directory, object, changed };
        Ok((!moving.changed.is_empty()).then_some(Making { moving, asked: *limits, possible }))
    }

    /// As [`making`](Self::making), to memory of the same sizes in which all tables stand side by side: for a table that
    /// found no room in a row, though there is enough in sum, and for which others could not be moved. `None`
    /// if there is no such table. It is tried once for each time that one was refused.
    ///
    /// # Errors
    /// As [`making`](Self::making).
    pub(crate) fn packing(&mut self) -> Result<Option<Making>, Error> {
        if !self.tables.is_scattered() {
            return Ok(None);
        }
        self.tables.forget_scattered();
        let (limits, Some(directory), None) = (self.limits(), self.directory.clone(), &self.former)
        else {
            return Ok(None);
        };
        let object = self.object.clone().unwrap_or_else(|| PROGRAM.to_vec());
        let changed = TOGETHER[0].iter().map(|name| (*name).to_owned()).collect();
        let moving = Moving { directory, object, changed };
        Ok(Some(Making { moving, asked: limits, possible: self.possible(&limits) }))
    }

    /// Whether what is there fits into these limits, as far as that can be told before memory is made for them.
    ///
    /// # Errors
    /// [`Error::TooSmall`], or what the kernel says where it is asked what is there.
    pub(crate) fn fits_into(&self, limits: &Limits) -> Result<(), Error> {
        fill::would_fit(self, &self.possible(limits))
    }

    /// What of these limits can be had while packets use what is there.
    fn possible(&self, limits: &Limits) -> Limits {
        let mut limits = *limits;
        // Where packets mark has to be in both memories.
        limits.marked_flows = limits.marked_flows.max(self.sizes.mark_words * 2);
        // Packets write to slots that are in use, and those have no twins: their memory stays.
        if self.tables.slots.all().next().is_some() {
            limits.slot_partitions = self.sizes.partitions;
        }
        // Nor has a table of mappings that is in use.
        if self.mapping_rules().is_some() {
            limits.mappings = (self.sizes.mappings / 2).max(1);
        }
        // What flows of another layout were carried into may be larger by what processors keep free: as long as they
        // need that, it keeps nothing else from its change.
        // What nobody looks into has nothing to keep.
        let (connections, answers) = (&self.maps.connections, &self.maps.answers);
        if self.tables.use_connections() {
            limits.tracked_flows = fill::with_spare_kept(connections, limits.tracked_flows);
        }
        if self.tables.use_answers() {
            limits.answered_flows = fill::with_spare_kept(answers, limits.answered_flows);
        }
        limits
    }

    /// All other steps, or those up to the last one, for tests.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub(crate) fn take_place(
        &mut self,
        made: Made,
        last: Option<ResizeStep>,
    ) -> Result<Option<Reports>, Error> {
        if self.former.is_some() || made.possible != self.possible(&made.asked) {
            // Something has come into use meanwhile.
            let asked = made.asked;
            drop(made);
            return self.resize(&asked, last);
        }
        self.end_trace()?;
        if let Err(error) = front::send_away(&made.moving.directory) {
            self.let_front_back();
            return Err(error);
        }
        let last = last.unwrap_or(ResizeStep::Arrive);
        match made.take_over(self, last) {
            Ok(Some((mut plane, reports))) => {
                (plane.stamp, plane.object) = (self.stamp.take(), self.object.take());
                plane.lost = self.lost.take();
                plane.links = std::mem::take(&mut self.links);
                plane.held_count = self.held_count;
                for (to, from) in plane.tables.moved.iter_mut().zip(self.tables.moved) {
                    to.tables += from.tables;
                    to.bytes += from.bytes;
                }
                let fronted = self.front.is_some();
                *self = plane;
                // Without it all packets are decided by the program, which the control plane says; the next
                // start tries it again.
                if fronted && self.stand_in_front().is_err() {
                    self.front = None;
                }
                if last >= ResizeStep::Arrive {
                    // The new memory is whole. If this fails, nothing is changed in it before the
                    // next grace period, which tries it again.
                    let _ = self.arrive();
                }
                Ok(Some(reports))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                self.former =
                    Some(Former { given_up: true, reports: None, marks: None, left: false });
                // If that fails, the next grace period tries it again.
                let _ = self.arrive();
                self.let_front_back();
                Err(error)
            }
        }
    }

    /// Leads packets to this memory, if they may still follow another; none does when it returns.
    ///
    /// # Errors
    /// What the kernel says; then some packets may still follow the other.
    pub(crate) fn arrive(&mut self) -> Result<(), Error> {
        let (Some(directory), Some(former)) = (&self.directory, &mut self.former) else {
            return Ok(());
        };
        if !former.left {
            self.program.keep(directory)?;
            let entry = match &self.front {
                Some(front) => front.entry(),
                None => self.program.entry(),
            };
            self.links.replace_all(directory, entry)?;
            grace()?;
            self.program.forget_others(directory)?;
            let marks = former.marks.take();
            let followed = marks.as_ref().map_or(Ok(()), |marks| self.follow_marks(marks));
            if let Some(former) = &mut self.former {
                former.left = followed.is_ok();
                former.marks = marks.filter(|_| followed.is_err());
            }
            followed?;
        }
        let (Some(directory), Some(former)) = (&self.directory, &self.former) else {
            return Ok(());
        };
        if former.given_up {
            let next = directory.join(NEXT);
            remove_set(&next).context(|| format!("remove {}", next.display()))?;
            self.former = None;
        }
        Ok(())
    }

    /// The consumer of reports that are to be taken before all others.
    pub(crate) fn former_reports(&self) -> Result<Option<Reports>, Error> {
        let maps = self.former.as_ref().and_then(|former| former.reports.as_ref());
        maps.map(|(events, unreported)| Reports::new(copy(events)?, copy(unreported)?)).transpose()
    }

    /// Removes the former memory: nothing is left in it.
    pub(crate) fn forget_former(&mut self) -> Result<(), Error> {
        let (Some(directory), Some(_)) = (&self.directory, &self.former) else { return Ok(()) };
        let taken = directory.join(TAKEN);
        let what = || format!("replace the pins in {}", directory.display());
        for entry in fs::read_dir(&taken).context(what)? {
            let entry = entry.context(what)?;
            fs::rename(entry.path(), directory.join(entry.file_name())).context(what)?;
        }
        fs::remove_dir(&taken).context(what)?;
        self.former = None;
        Ok(())
    }
}

fn copy(map: &MapHandle) -> Result<MapHandle, Error> {
    MapHandle::try_from(map).context(|| "duplicate a map".into())
}

/// The maps that have to be made anew.
fn changed(object: &[u8], directory: &Path, limits: &Limits) -> Result<Vec<String>, Error> {
    let place = |name: &str| Some(directory.join(name));
    let differ = Loading::of(object, &place).differing(limits)?;
    let differs = |name: &&str| differ.iter().any(|one| one == name);
    let groups = TOGETHER.into_iter().filter(|group| group.iter().any(&differs));
    let alone = ALONE.into_iter().filter(differs);
    Ok(groups.flatten().copied().chain(alone).map(str::to_owned).collect())
}

/// A change of sizes that is to be made.
pub(crate) struct Making {
    moving: Moving,
    /// The limits that were asked for, and what of them can be had.
    asked: Limits,
    possible: Limits,
}

/// Memory of other sizes beside the memory in use, and what is to read it. No packet does yet.
pub(crate) struct Made {
    moving: Moving,
    asked: Limits,
    possible: Limits,
    next: Next,
    loaded: Object,
    sizes: Sizes,
    /// The programs of *twin* and *turn*, if there are to be any.
    programs: Option<(Program, Program)>,
}

/// The directory of maps that are being made; it goes with this, unless it is kept.
struct Next {
    path: PathBuf,
    kept: bool,
}

impl Next {
    fn create(path: PathBuf) -> Result<Self, Error> {
        fs::create_dir(&path).context(|| format!("create {}", path.display()))?;
        Ok(Self { path, kept: false })
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        if !self.kept {
            let _ = remove_set(&self.path);
        }
    }
}

impl Making {
    /// Makes the maps, and loads the programs.
    ///
    /// # Errors
    /// If there is no memory for them; all stays as it is then.
    pub fn make(self) -> Result<Made, Error> {
        let Self { moving, asked, possible } = self;
        let next = Next::create(moving.directory.join(NEXT))?;
        let place = |name: &str| Some(moving.new_pin(name));
        let loading = Loading::of(&moving.object, &place);
        let (loaded, sizes) = loading.load(&possible)?;
        let programs = match TWINS.iter().any(|name| moving.has(name)) {
            true => Some(moving.twins(&possible)?),
            false => None,
        };
        Ok(Made { moving, asked, possible, next, loaded, sizes, programs })
    }
}

impl Made {
    /// All steps from *twin* to *commit*. `None` if a test wanted no more.
    fn take_over(
        self,
        old: &mut KernelPlane,
        last: ResizeStep,
    ) -> Result<Option<(KernelPlane, Reports)>, Error> {
        let Self { moving, mut next, loaded, sizes, mut programs, .. } = self;
        // Whoever goes back to the old memory removes it, once no program can follow it.
        next.kept = true;
        let directory = &moving.directory;
        let mut plane = KernelPlane::of_object(&loaded, sizes, Some(directory), None)?;
        plane.program.hand_on(old.program.next()?)?;
        for program in programs.iter_mut().flat_map(|(twin, turned)| [twin, turned]) {
            program.hand_on(old.program.next()?)?;
        }
        plane.keys.clone_from(&old.keys);
        plane.ids.clone_from(&old.ids);
        plane.capped.clone_from(&old.capped);
        if !moving.has("lists") {
            plane.lists.take_over(&old.lists);
        }
        fill::fits(old, &plane)?;
        let reports = plane.reports()?;
        let own = REPORTS.iter().any(|name| moving.has(name));
        let maps = (copy(&old.maps.events)?, copy(&old.maps.unreported)?);
        let former = own.then_some(maps);
        let marks = moving.has(MARKS).then(|| old.marks.again()).transpose()?;
        if last == ResizeStep::Make {
            return Ok(None);
        }
        moving.replace(programs.as_ref().map(|(twin, _)| twin), &old.links)?;
        if last == ResizeStep::Twin {
            return Ok(None);
        }
        fill::fill(old, &mut plane, &moving.changed)?;
        if last == ResizeStep::Fill {
            return Ok(None);
        }
        moving.replace(programs.as_ref().map(|(_, turned)| turned), &old.links)?;
        if last == ResizeStep::Turn {
            return Ok(None);
        }
        let (next, taken) = (directory.join(NEXT), directory.join(TAKEN));
        fs::rename(&next, &taken).context(|| format!("rename {}", next.display()))?;
        plane.former = Some(Former { given_up: false, reports: former, marks, left: false });
        Ok(Some((plane, reports)))
    }
}

/// Which maps change, and where they are.
struct Moving {
    directory: PathBuf,
    object: Vec<u8>,
    changed: Vec<String>,
}

impl Moving {
    fn has(&self, name: &str) -> bool {
        self.changed.iter().any(|one| one == name)
    }

    /// Where a map is pinned that is used from now on.
    fn new_pin(&self, name: &str) -> PathBuf {
        let directory = if self.has(name) { self.directory.join(NEXT) } else { self.old() };
        directory.join(name)
    }

    fn old(&self) -> PathBuf {
        self.directory.clone()
    }

    fn old_pin(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn replace(&self, program: Option<&Program>, links: &Links) -> Result<(), Error> {
        let Some(program) = program else { return Ok(()) };
        program.keep(&self.directory)?;
        links.replace_all(&self.directory, program.entry())?;
        grace()
    }

    /// The programs that note flows in both: one that reads the old memory, one that reads the new.
    fn twins(&self, limits: &Limits) -> Result<(Program, Program), Error> {
        let load = |place: &dyn Fn(&str) -> Option<PathBuf>, twins: &dyn Fn(&str) -> PathBuf| {
            let loading = Loading { twins: Some(twins), ..Loading::of(&self.object, place) };
            let (loaded, _) = loading.load(limits)?;
            Program::of(&loaded)
        };
        let old = |name: &str| self.old_pin(name);
        let new = |name: &str| self.new_pin(name);
        let turned = |name: &str| {
            let old = REPORTS.contains(&name) || name == MARKS;
            Some(if old { self.old_pin(name) } else { self.new_pin(name) })
        };
        Ok((load(&|name| Some(old(name)), &new)?, load(&turned, &old)?))
    }
}
