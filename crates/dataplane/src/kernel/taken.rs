//! What somebody has taken away while a control plane runs: links that were detached, pins that were removed. The
//! process holds all maps, whatever becomes of their pins, so what is gone is made anew.

use super::KernelPlane;
use super::front;
use super::pinned::look_at;
use super::resize::pin_of;
use super::stamp::{STAMP_PIN, TEXT_PIN};
use crate::error::{Context, Error};
use crate::link::{self, Interface};
use libbpf_rs::{MapHandle, Object};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use weir_host::files::{in_words, is_gone};
use weir_plane::TakenAway;

/// A map that is pinned, by the name of its pin.
pub(super) type Kept = (String, MapHandle);

/// The maps of an object that are pinned.
///
/// # Errors
/// If a descriptor cannot be had.
pub(super) fn kept(object: &Object) -> Result<Vec<Kept>, Error> {
    let mut kept = Vec::new();
    for map in object.maps() {
        let Some(pin) = map.get_pin_path() else { continue };
        let Some(name) = Path::new(pin).file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let handle = MapHandle::try_from(&map).context(|| format!("duplicate map {name}"))?;
        kept.push((name.to_owned(), handle));
    }
    Ok(kept)
}

impl KernelPlane {
    /// What somebody has taken away of what lets it take frames from those of these interfaces that are there, and of
    /// what outlives this process.
    pub fn taken_away(&self, names: &[String]) -> TakenAway {
        // While memory of another size takes its place, pins move.
        let (Some(directory), None) = (&self.directory, &self.former) else {
            return TakenAway::default();
        };
        let without = |name: &String| {
            let interface = Interface::find(name).ok()?;
            if self.links.is_on(interface.index) {
                return None;
            }
            let what = off(&directory.join(link::pin_name(name)), &interface)?;
            Some((name.clone(), what.to_owned()))
        };
        TakenAway {
            interfaces: names.iter().filter_map(without).collect(),
            pins: self.missing_pins(directory, names),
            guard: None,
        }
    }

    /// Pins again what was pinned and is not any more. Links that were detached are [`reattach`](Self::reattach)'s.
    ///
    /// # Errors
    /// [`Error::Bpf`] or [`Error::System`] if something cannot be pinned; it is to be called again then.
    pub fn put_back(&mut self) -> Result<(), Error> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        if self.former.is_some() {
            let source = io::Error::other("memory of another size is just taking its place");
            return Err(source).context(|| format!("pin {}", directory.display()));
        }
        fs::create_dir_all(&directory).context(|| format!("create {}", directory.display()))?;
        for (name, map) in &self.kept {
            let pin = pin_of(&directory, name);
            if is_gone(&pin) {
                link::pin_fd(&map.as_fd(), &pin)?;
            }
        }
        // Last: what is not whole is not resumed.
        if let Some(stamp) = &self.stamp {
            stamp.put_back(&directory)?;
        }
        self.program.keep(&directory)?;
        self.links.pin_again(&directory)?;
        if self.missing_of_front(&directory).is_empty() {
            return Ok(());
        }
        // Another page, which the plane beside does not read: it is to be gone before.
        self.leave_front()?;
        self.stand_in_front()
    }

    /// The pins that are gone, in words.
    fn missing_pins(&self, directory: &Path, interfaces: &[String]) -> Option<String> {
        if is_gone(directory) {
            return Some(format!("{} is gone", directory.display()));
        }
        let mut missing: Vec<String> = Vec::new();
        if self.stamp.is_some() {
            let names = [STAMP_PIN, TEXT_PIN].into_iter();
            missing.extend(names.filter(|name| is_gone(&directory.join(name))).map(str::to_owned));
        }
        let names = self.kept.iter().map(|(name, _)| name);
        missing.extend(names.filter(|name| is_gone(&pin_of(directory, name))).cloned());
        let parts = self.program.pins().unwrap_or_default();
        missing.extend(parts.into_iter().filter(|name| is_gone(&directory.join(name))));
        missing.extend(self.missing_of_front(directory));
        let pins = interfaces.iter().map(|name| (name, link::pin_name(name)));
        let without = pins.filter(|(name, pin)| {
            is_gone(&directory.join(pin))
                && Interface::find(name).is_ok_and(|found| self.links.is_on(found.index))
        });
        missing.extend(without.map(|(_, pin)| pin));
        if missing.is_empty() {
            return None;
        }
        Some(format!("in {} there is no {}", directory.display(), in_words(&missing)))
    }

    /// Those of the program in front, if there is one.
    fn missing_of_front(&self, directory: &Path) -> Vec<String> {
        if self.front.is_none() {
            return Vec::new();
        }
        let kept = front::KEPT.iter().filter(|name| is_gone(&directory.join(name)));
        let mut missing: Vec<String> = kept.map(|name| (*name).to_owned()).collect();
        if self.behind_pin(directory).is_ok_and(|pin| pin.is_none()) {
            missing.push(front::BEHIND.to_owned());
        }
        missing
    }
}

/// Why an interface has not the program, if it has not. What cannot be told is not.
fn off(pin: &Path, interface: &Interface) -> Option<&'static str> {
    match look_at(pin) {
        Ok((number, _)) if number == interface.index => None,
        Ok((0, _)) => Some("its link was detached"),
        Ok(_) => Some("its link is on another interface"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some("the pin of its link was removed")
        }
        Err(_) => None,
    }
}
