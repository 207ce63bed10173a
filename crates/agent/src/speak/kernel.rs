//! The program of `bpf/connections.bpf.c`, and a thread that reads what it tells.

use super::dump::{self, Which};
use super::log::{Change, Log};
use crate::attach::Quiet;
use crate::error::{Context, Error};
use crate::ready::state::network;
use crate::skeleton::connections::ConnectionsSkelBuilder;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, RingBufferBuilder};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use weir_rpc::message::Kind;

/// From one look at the ring to the next: connections are told of so much later at most.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The same where much happens. A look takes a wake-up of this thread, one of the thread that tells balancers, and a
/// message to each of these: at thousands of connections a second that is more than the connections take themselves,
/// unless more of them share it. The ring has room for 87,000 changes.
const LOOK_EVERY_BUSY: Duration = Duration::from_millis(20);
/// So many changes in one look are much.
const MUCH: usize = 16;
/// Open connections are counted anew: the count goes by what was told since, and some may come twice.
const COUNT_EVERY: Duration = Duration::from_secs(60);
/// Bytes of a change in the ring (`struct change`), and of a key (`struct told_of`).
const CHANGE: usize = 40;
const KEY: usize = 20;

/// Connections to these are told: address and port, 0 for any.
pub(super) type ToldOf = HashSet<(IpAddr, u16)>;

enum Request {
    /// All that has happened until now is to stand in the log.
    Flush(oneshot::Sender<()>),
    Tell(ToldOf, oneshot::Sender<Result<(), Error>>),
}

/// The running program. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Kernel {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    pub log: Arc<Mutex<Log>>,
    /// Open connections to what is told, about.
    pub open: Arc<AtomicI64>,
    /// The number of the next change, as it grows.
    pub grown: watch::Receiver<u64>,
}

/// What the thread has in common with others.
struct Shared {
    log: Arc<Mutex<Log>>,
    open: Arc<AtomicI64>,
    grows: watch::Sender<u64>,
}

impl Kernel {
    /// Loads and attaches the program, which tells nothing yet. `most`: changes that are kept.
    pub fn start(most: usize) -> Result<Self, Error> {
        let log = Arc::new(Mutex::new(Log::new(most)));
        let open = Arc::new(AtomicI64::new(0));
        let (grows, grown) = watch::channel(0);
        let (requests, asked) = channel();
        let (started, result) = channel();
        let shared = Shared { log: Arc::clone(&log), open: Arc::clone(&open), grows };
        let network = network()?;
        let thread = std::thread::Builder::new()
            .name("connections".into())
            .spawn(move || {
                // The skeleton lives on the stack of whoever runs it.
                if let Err(error) = run(network, &shared, &asked, &started) {
                    let _ = started.send(Err(error));
                }
            })
            .context(|| "start a thread".into())?;
        match result.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(Error::Object),
        }
        Ok(Self { requests: Some(requests), thread: Some(thread), log, open, grown })
    }

    /// Waits until all that has happened stands in the log. Whether the thread still runs.
    pub async fn flush(&self) -> bool {
        let (done, wait) = oneshot::channel();
        self.ask(Request::Flush(done)) && wait.await.is_ok()
    }

    /// From now on connections to these are told, and no others.
    pub async fn tell(&self, told: ToldOf) -> Result<(), Error> {
        let (done, wait) = oneshot::channel();
        if !self.ask(Request::Tell(told, done)) {
            return Err(Error::Object);
        }
        wait.await.unwrap_or(Err(Error::Object))
    }

    fn ask(&self, request: Request) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    network: u64,
    shared: &Shared,
    asked: &Receiver<Request>,
    started: &Sender<Result<(), Error>>,
) -> Result<(), Error> {
    let mut room = MaybeUninit::uninit();
    let mut skel = {
        let _quiet = Quiet::new();
        let what = || "load the program that follows connections".to_owned();
        let mut open = ConnectionsSkelBuilder::default().open(&mut room).context(what)?;
        open.maps.rodata_data.as_deref_mut().ok_or(Error::Object)?.network = network;
        let mut skel = open.load().context(what)?;
        skel.attach().context(|| "attach the program that follows connections".into())?;
        skel
    };
    // Where there are no control groups of version 2, or it may not be there, the tracepoint tells all.
    if let Ok(root) = root_of_groups() {
        skel.links.weir_opened = skel.progs.weir_opened.attach_cgroup(root.as_raw_fd()).ok();
    }
    let fresh = RefCell::new(Vec::new());
    let mut builder = RingBufferBuilder::new();
    builder
        .add(&skel.maps.changes, |bytes: &[u8]| {
            fresh.borrow_mut().extend(parse(bytes));
            0
        })
        .context(|| "read the ring of changes".into())?;
    let ring = builder.build().context(|| "read the ring of changes".into())?;
    let _ = started.send(Ok(()));
    let (mut told, mut missed_before) = (ToldOf::new(), 0);
    // Takes what has happened until now; how many changes that were. The ring wakes nobody, so it is looked at.
    let mut look = || {
        let _ = ring.consume();
        // What the ring has lost is no less of what has happened so far.
        let missed = missed_so_far(&skel.maps.missed);
        let more = missed.saturating_sub(std::mem::replace(&mut missed_before, missed));
        let mut fresh = fresh.borrow_mut();
        let found = fresh.len();
        take(shared, &mut fresh, more);
        found
    };
    let (mut counted, mut pause) = (Instant::now(), LOOK_EVERY);
    loop {
        // Whoever asks does not wait for the next look.
        match asked.recv_timeout(pause) {
            Ok(Request::Flush(done)) => {
                look();
                let _ = done.send(());
            }
            Ok(Request::Tell(wanted, done)) => {
                look();
                let set = set(&skel.maps.told, &told, &wanted);
                if set.is_ok() {
                    told = wanted;
                    counted = Instant::now();
                    count(shared, &told);
                }
                let _ = done.send(set);
            }
            Err(RecvTimeoutError::Timeout) => {
                pause = if look() < MUCH { LOOK_EVERY } else { LOOK_EVERY_BUSY };
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        if counted.elapsed() >= COUNT_EVERY {
            counted = Instant::now();
            count(shared, &told);
        }
    }
}

/// Where the file system of control groups is mounted, where it is: alone, or beside that of version 1.
const GROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The root of the control groups that this process sees, whether and wherever their file system is mounted; for
/// those who may mount nothing (the packaged unit), where it usually is.
fn root_of_groups() -> io::Result<OwnedFd> {
    mounted_by_us().or_else(|why| {
        let there = GROUPS.iter().filter_map(|path| File::open(path).ok());
        let is_it = |file: &File| {
            fstatfs(file).is_ok_and(|about| about.filesystem_type() == CGROUP2_SUPER_MAGIC)
        };
        there.filter(is_it).map(OwnedFd::from).next().ok_or(why)
    })
}

fn mounted_by_us() -> io::Result<OwnedFd> {
    let own = |fd: libc::c_long| match fd {
        // SAFETY: the kernel has just made it, and nobody else has it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: a name that ends with a zero, and numbers.
    let system =
        own(unsafe { libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), libc::FSOPEN_CLOEXEC) })?;
    let none = std::ptr::null::<u8>();
    // SAFETY: a descriptor of ours; this command takes neither key nor value.
    let made = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            system.as_raw_fd(),
            libc::FSCONFIG_CMD_CREATE,
            none,
            none,
            0,
        )
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor of ours, and numbers.
    own(unsafe { libc::syscall(libc::SYS_fsmount, system.as_raw_fd(), libc::FSMOUNT_CLOEXEC, 0) })
}

fn take(shared: &Shared, fresh: &mut Vec<Change>, missed: u64) {
    if fresh.is_empty() && missed == 0 {
        return;
    }
    let more = |one: &Change| if one.kind == Kind::Opened { 1 } else { -1 };
    shared.open.fetch_add(fresh.iter().map(more).sum(), Ordering::Relaxed);
    let mut log = shared.log.lock().unwrap_or_else(PoisonError::into_inner);
    fresh.drain(..).for_each(|change| log.push(change));
    if missed > 0 {
        log.lose(missed);
    }
    let next = log.next();
    drop(log);
    shared.grows.send_replace(next);
}

fn count(shared: &Shared, told: &ToldOf) {
    let mut open = 0;
    let counted = dump::each(Which::Open, &mut |one| {
        let of = |port| told.contains(&(one.local, port));
        open += i64::from(of(one.local_port) || of(0));
        true
    });
    if counted.is_ok() {
        shared.open.store(open, Ordering::Relaxed);
    }
}

fn missed_so_far(map: &impl MapCore) -> u64 {
    let found = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
    let lanes = found.ok().flatten().into_iter().flatten();
    lanes.filter_map(|lane| Some(u64::from_ne_bytes(*lane.first_chunk()?))).sum()
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn set(map: &impl MapCore, told: &ToldOf, wanted: &ToldOf) -> Result<(), Error> {
    let key = |(address, port): &(IpAddr, u16)| {
        let mut key = [0; KEY];
        key[..16].copy_from_slice(&mapped(*address));
        key[16..].copy_from_slice(&u32::from(*port).to_ne_bytes());
        key
    };
    for new in wanted.difference(told) {
        map.update(&key(new), &0u32.to_ne_bytes(), MapFlags::ANY)
            .context(|| "note where connections are told of".into())?;
    }
    for old in told.difference(wanted) {
        map.delete(&key(old)).context(|| "forget where connections were told of".into())?;
    }
    Ok(())
}

/// A change as it stands in the ring; `None` for what is none.
fn parse(bytes: &[u8]) -> Option<Change> {
    let bytes: &[u8; CHANGE] = bytes.first_chunk()?;
    let address = |at: usize| {
        let octets: [u8; 16] = bytes[at..at + 16].try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)).to_canonical())
    };
    let port = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    Some(Change {
        kind: match u32::from_ne_bytes([bytes[36], bytes[37], bytes[38], bytes[39]]) {
            0 => Kind::Opened,
            1 => Kind::Closed,
            2 => Kind::Lingers,
            _ => return None,
        },
        local: address(0)?,
        remote: address(16)?,
        local_port: port(32),
        remote_port: port(34),
    })
}
