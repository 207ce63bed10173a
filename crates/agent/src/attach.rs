//! The programs at the interfaces: filters of the queueing discipline clsact, which every kernel has that
//! weir runs on, and which stay when the process is killed.

use crate::error::{Context, Error};
use libbpf_rs::libbpf_sys;
use libbpf_rs::{
    PrintCallback, PrintLevel, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, set_print,
};
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use weir_dataplane::Interface;

/// Ours among the filters of an interface.
const PRIORITY: u32 = 0x7765;
const HANDLE: u32 = 1;
/// What the names of our programs begin with.
const OURS: &str = "weir_";
/// Ethernet, and the loopback device, whose frames have its header too.
const TYPES: [u16; 2] = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK];
const WAYS: [(TcAttachPoint, &str); 2] = [(TC_INGRESS, "ingress"), (TC_EGRESS, "egress")];

/// An interface with the programs.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    name: String,
    index: u32,
}

impl Attachment {
    pub(crate) fn name(&self) -> &String {
        &self.name
    }
}

#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) ingress: OwnedFd,
    pub(crate) egress: OwnedFd,
}

/// The interfaces of these names.
pub(crate) fn find(names: &[String]) -> Result<Vec<Attachment>, Error> {
    let mut known = HashSet::new();
    let one = |name: &String| {
        if !known.insert(name.clone()) {
            return Err(Error::Twice(name.clone()));
        }
        let found = Interface::find(name).map_err(|_| Error::NoInterface(name.clone()))?;
        if !device_type(name).is_ok_and(|kind| TYPES.contains(&kind)) {
            return Err(Error::NotEthernet(name.clone()));
        }
        Ok(Attachment { name: found.name, index: found.index })
    };
    names.iter().map(one).collect()
}

/// By ioctl: /sys may show another namespace's interfaces.
fn device_type(name: &str) -> std::io::Result<u16> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let fd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: SIOCGIFHWADDR reads the name and writes the address into the request.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR, &mut request) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFHWADDR has filled this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

fn hook(program: BorrowedFd<'_>, index: u32, way: TcAttachPoint) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(index as i32).attach_point(way).priority(PRIORITY).handle(HANDLE).replace(true);
    hook
}

/// What is where the program would be.
enum Present {
    /// A program of weir's, or one whose name this process may not read (that takes CAP_SYS_ADMIN): at
    /// this priority and handle it is no stranger.
    Ours,
    /// Another one, of this name.
    Other(String),
}

fn present(program: BorrowedFd<'_>, index: u32, way: TcAttachPoint) -> Option<Present> {
    let id = hook(program, index, way).query().ok()?;
    if info(program).is_some_and(|own| own.id == id) {
        return Some(Present::Ours);
    }
    // SAFETY: a system call with a number; what it returns is a new descriptor, or negative.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    if fd < 0 {
        return Some(Present::Ours);
    }
    // SAFETY: the descriptor was opened just now, and nobody else has it.
    let other = unsafe { OwnedFd::from_raw_fd(fd) };
    let name = name(other.as_fd()).unwrap_or_default();
    if name.starts_with(OURS) { Some(Present::Ours) } else { Some(Present::Other(name)) }
}

/// Whether there are programs in our places at an interface, both ways.
pub(crate) fn is_at(index: u32) -> bool {
    let _quiet = Quiet::new();
    [libbpf_sys::BPF_TC_INGRESS, libbpf_sys::BPF_TC_EGRESS].into_iter().all(|attach_point| {
        let hook = libbpf_sys::bpf_tc_hook {
            sz: size_of::<libbpf_sys::bpf_tc_hook>() as _,
            ifindex: index as i32,
            attach_point,
            ..Default::default()
        };
        let mut options = libbpf_sys::bpf_tc_opts {
            sz: size_of::<libbpf_sys::bpf_tc_opts>() as _,
            priority: PRIORITY,
            handle: HANDLE,
            ..Default::default()
        };
        // SAFETY: both structures outlive the call, and say how large they are.
        let found = unsafe { libbpf_sys::bpf_tc_query(&raw const hook, &raw mut options) };
        found == 0
    })
}

/// What the kernel says of a program.
pub(crate) fn info(program: BorrowedFd<'_>) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most as many bytes as it is told that there are.
    let failed = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
    };
    (failed == 0).then_some(info)
}

/// The name that the kernel knows a program by.
pub(crate) fn name(program: BorrowedFd<'_>) -> Option<String> {
    let info = info(program)?;
    let bytes = info.name.iter().map(|letter| *letter as u8).take_while(|byte| *byte != 0);
    Some(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned())
}

/// While it lives libbpf says nothing: that there is no filter, or a discipline already, is no trouble.
pub(crate) struct Quiet(Option<(PrintLevel, PrintCallback)>);

impl Quiet {
    pub(crate) fn new() -> Self {
        Self(set_print(None))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        set_print(self.0.take());
    }
}

impl Programs {
    fn of(&self, way: TcAttachPoint) -> BorrowedFd<'_> {
        if way == TC_INGRESS { self.ingress.as_fd() } else { self.egress.as_fd() }
    }

    /// Puts the programs at all of them, or at none that had none.
    pub(crate) fn attach_all(&self, wanted: Vec<Attachment>) -> Result<Vec<Attachment>, Error> {
        let _quiet = Quiet::new();
        let mut fresh = Vec::new();
        for one in &wanted {
            let had = WAYS.iter().any(|(way, _)| self.is_there(one.index, *way));
            if !had {
                fresh.push(one.clone());
            }
            if let Err(error) = self.attach(one) {
                let _ = self.detach_all(&fresh);
                return Err(error);
            }
        }
        Ok(wanted)
    }

    fn is_there(&self, index: u32, way: TcAttachPoint) -> bool {
        matches!(present(self.of(way), index, way), Some(Present::Ours))
    }

    /// First the way in: whoever has no cookie noted writes none.
    fn attach(&self, Attachment { name, index }: &Attachment) -> Result<(), Error> {
        for (way, called) in WAYS {
            let program = self.of(way);
            if let Some(Present::Other(other)) = present(program, *index, way) {
                return Err(Error::Occupied {
                    interface: name.clone(),
                    way: called,
                    program: other,
                    priority: PRIORITY,
                    handle: HANDLE,
                });
            }
            let mut hook = hook(program, *index, way);
            hook.create().context(|| format!("add clsact to interface {name}"))?;
            hook.attach().context(|| format!("attach to interface {name}, {called}"))?;
        }
        Ok(())
    }

    /// Attaches again where the programs are missing.
    pub(crate) fn mend(&self, attached: &mut [Attachment]) -> Result<Vec<String>, Error> {
        let _quiet = Quiet::new();
        let mut mended = Vec::new();
        for one in attached {
            // One that is away has to come back first.
            let Ok(found) = Interface::find(&one.name) else { continue };
            one.index = found.index;
            if WAYS.iter().all(|(way, _)| self.is_there(one.index, *way)) {
                continue;
            }
            self.attach(one)?;
            mended.push(one.name.clone());
        }
        Ok(mended)
    }

    /// First the way out, so that no cookie goes to a client of whom nothing is noted. What is not there
    /// need not be taken away.
    pub(crate) fn detach_all(&self, attached: &[Attachment]) -> Result<(), Error> {
        let _quiet = Quiet::new();
        let mut failure = Ok(());
        for Attachment { name, index } in attached {
            for (way, called) in WAYS.into_iter().rev() {
                if !self.is_there(*index, way) {
                    continue;
                }
                let detached = hook(self.of(way), *index, way).detach();
                let detached = detached.context(|| format!("detach from {name}, {called}"));
                failure = failure.and(detached);
            }
        }
        failure
    }
}
