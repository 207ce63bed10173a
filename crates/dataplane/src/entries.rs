//! Hash maps as a whole: many entries are read, written or removed in a system call.

use crate::abi::Plain;
use crate::error::{Context, Error};
use libbpf_rs::libbpf_sys::{bpf_map_delete_batch, bpf_map_lookup_batch, bpf_map_update_batch};
use libbpf_rs::{MapCore, MapHandle};
use std::cell::Cell;
use std::ffi::c_void;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd};
use std::{ptr, thread};

/// Entries of one system call.
pub(crate) const BATCH: u32 = 4096;

/// A batch is tried again so often when the kernel says that it is busy.
const TRIES: u32 = 1000;

/// Goes through the entries of a hash map, until `visit` has enough: every one that is there from
/// beginning to end is visited.
///
/// A batch ends before a bucket that does not fit into what is left of it: one that is not full says
/// nothing of what comes behind it. Only `ENOENT` is the end.
///
/// # Errors
/// [`Error::Bpf`] if the kernel refuses; some entries may have been visited then.
pub(crate) fn each(
    map: &MapHandle,
    visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<(), Error> {
    read(map, None, visit, || true).map(drop)
}

/// As [`each`], a part of them: begins `from` a place that an earlier part has returned, and ends with a batch by
/// which `most` entries are reached. Returns where the next part begins; `None`: this was the last one. Every entry
/// that is there from the beginning of the first part to the end of the last one is in one of them, whatever comes
/// and goes meanwhile, as an entry stays in its bucket.
///
/// # Errors
/// As [`each`].
pub(crate) fn part(
    map: &MapHandle,
    from: Option<u32>,
    most: usize,
    mut visit: impl FnMut(&[u8], &[u8]),
) -> Result<Option<u32>, Error> {
    let visited = Cell::new(0);
    let count = |key: &[u8], value: &[u8]| {
        visited.set(visited.get() + 1);
        visit(key, value);
        ControlFlow::Continue(())
    };
    read(map, from, count, || visited.get() < most)
}

/// Both: goes on after a batch if `go_on` says so, and returns where the rest begins if there may be one.
fn read(
    map: &MapHandle,
    mut from: Option<u32>,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    go_on: impl Fn() -> bool,
) -> Result<Option<u32>, Error> {
    let (key_size, value_size) = (map.key_size() as usize, map.value_size() as usize);
    let mut room = BATCH as usize;
    let (mut keys, mut values) = (vec![0u8; room * key_size], vec![0u8; room * value_size]);
    // A position is the number of a bucket.
    let mut next = 0u32;
    let mut tries = 0;
    loop {
        let mut count = room as u32;
        let start = from.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: there is room for `count` keys and values, each as large as the map's, and
        // `start` and `next` are positions in a hash map, which have four bytes.
        let status = unsafe {
            bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                start.cast(),
                (&raw mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                ptr::null(),
            )
        };
        match -status {
            0 | libc::ENOENT => {}
            libc::ENOSPC if room < map.max_entries() as usize => {
                // A bucket with more entries than a batch.
                room *= 2;
                keys.resize(room * key_size, 0);
                values.resize(room * value_size, 0);
                continue;
            }
            libc::EINTR | libc::EAGAIN | libc::EBUSY if tries < TRIES => {
                tries += 1;
                thread::yield_now();
                continue;
            }
            error => {
                return Err(libbpf_rs::Error::from_raw_os_error(error))
                    .context(|| format!("read map {:?}", map.name()));
            }
        }
        tries = 0;
        let entries = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size));
        for (key, value) in entries.take(count as usize) {
            if visit(key, value).is_break() {
                return Ok(None);
            }
        }
        if status != 0 {
            return Ok(None);
        }
        from = Some(next);
        if !go_on() {
            return Ok(from);
        }
    }
}

/// As [`each`], to the end.
pub(crate) fn all(map: &MapHandle, mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), Error> {
    each(map, |key, value| {
        visit(key, value);
        ControlFlow::Continue(())
    })
}

/// Writes entries, whatever stood there.
///
/// # Errors
/// What the kernel says; some entries may be there then.
pub(crate) fn write<K: Plain, V: Plain>(
    map: &MapHandle,
    entries: impl Iterator<Item = (K, V)>,
) -> libbpf_rs::Result<()> {
    let sizes = (map.key_size() as usize, map.value_size() as usize);
    assert_eq!(sizes, (size_of::<K>(), size_of::<V>()), "entries of map {:?}", map.name());
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let mut entries = entries.peekable();
    while entries.peek().is_some() {
        keys.clear();
        values.clear();
        for (key, value) in entries.by_ref().take(BATCH as usize) {
            keys.push(key);
            values.push(value);
        }
        let (first_key, first_value) = (keys.as_ptr().cast(), values.as_ptr().cast());
        // SAFETY: as many keys and values, plain bytes of the sizes that the map was made for.
        unsafe { update_batch(map, first_key, first_value, keys.len()) }?;
    }
    Ok(())
}

/// Writes entries by one call.
///
/// # Safety
/// There are `count` keys and values there, of the map's sizes, one after the other.
unsafe fn update_batch(
    map: &MapHandle,
    keys: *const c_void,
    values: *const c_void,
    count: usize,
) -> libbpf_rs::Result<()> {
    let mut count = count as u32;
    let map = map.as_fd().as_raw_fd();
    // SAFETY: as the caller says.
    match unsafe { bpf_map_update_batch(map, keys, values, &raw mut count, ptr::null()) } {
        status if status < 0 => Err(libbpf_rs::Error::from_raw_os_error(-status)),
        _ => Ok(()),
    }
}

/// As [`write`], of keys and values that stand one after the other.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_bytes(map: &MapHandle, keys: &[u8], values: &[u8]) -> libbpf_rs::Result<()> {
    let (key, value) = (map.key_size() as usize, map.value_size() as usize);
    assert_eq!(keys.len() / key, values.len() / value, "entries of map {:?}", map.name());
    let batch = BATCH as usize;
    for (keys, values) in keys.chunks(key * batch).zip(values.chunks(value * batch)) {
        let (first_key, first_value) = (keys.as_ptr().cast(), values.as_ptr().cast());
        // SAFETY: as many keys and values of the sizes that the map was made for.
        unsafe { update_batch(map, first_key, first_value, keys.len() / key) }?;
    }
    Ok(())
}

/// Removes entries; that one is gone already is no error.
///
/// # Errors
/// [`Error::Bpf`] if the kernel refuses; some entries may be gone then.
pub(crate) fn remove<K: Plain>(
    map: &MapHandle,
    keys: impl Iterator<Item = K>,
) -> Result<(), Error> {
    assert_eq!(map.key_size() as usize, size_of::<K>(), "keys of map {:?}", map.name());
    let mut keys = keys.peekable();
    let mut batch: Vec<K> = Vec::new();
    while keys.peek().is_some() {
        batch.clear();
        batch.extend(keys.by_ref().take(BATCH as usize));
        let mut left = &batch[..];
        while !left.is_empty() {
            let mut count = left.len() as u32;
            // SAFETY: `count` keys, plain bytes of the size that the map was made for.
            let status = unsafe {
                bpf_map_delete_batch(
                    map.as_fd().as_raw_fd(),
                    left.as_ptr().cast(),
                    &raw mut count,
                    ptr::null(),
                )
            };
            // It stops at a key that is not there, and says how many it removed before.
            let gone = (count as usize).min(left.len());
            match -status {
                0 => break,
                libc::ENOENT if gone < left.len() => left = &left[gone + 1..],
                error => {
                    return Err(libbpf_rs::Error::from_raw_os_error(error))
                        .context(|| format!("delete from map {:?}", map.name()));
                }
            }
        }
    }
    Ok(())
}
