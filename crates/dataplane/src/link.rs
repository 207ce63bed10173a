//! Attaching the program to interfaces, by links that are pinned.

use crate::error::{Context, Error};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How the program is attached to an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpMode {
    /// In the driver if it can, else generic.
    Auto,
    /// In the driver; attaching fails where the driver cannot.
    Native,
    /// In the network stack, for any interface, slower.
    Generic,
}

/// Name of a link's pin, before the interface's.
pub(crate) const LINK_PREFIX: &str = "link-";

const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// A network interface of this namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Name of the interface, for example `eth0`.
    pub name: String,
    /// Number of the interface in its network namespace.
    pub index: u32,
    /// MAC address of the interface.
    pub mac: [u8; 6],
}

impl Interface {
    /// Looks an interface up by name.
    ///
    /// # Errors
    /// [`Error::NoInterface`].
    pub fn find(name: &str) -> Result<Self, Error> {
        let missing = || Error::NoInterface(name.to_owned());
        let c_name = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the argument is a C string.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if index == 0 {
            return Err(missing());
        }
        Ok(Self { name: name.to_owned(), index, mac: read_mac(name).unwrap_or_default() })
    }

    /// The number of the program that it has, whosever that is; none if it has none, or several (in the driver
    /// and in the network stack), or cannot be asked.
    pub fn program(&self) -> Option<u32> {
        attached(self).ok().map(|options| options.prog_id).filter(|number| *number != 0)
    }
}

/// Asks for something of an interface by ioctl: /sys may show another namespace's interfaces.
fn ask(name: &str, what: libc::Ioctl) -> Option<libc::ifreq> {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: creates a socket; the descriptor is owned below.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return None;
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: such requests read the name and write the answer into the request.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), what, &mut request) };
    (done == 0).then_some(request)
}

fn read_mac(name: &str) -> Option<[u8; 6]> {
    let request = ask(name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR has filled this member of the union.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    let mut mac = [0; 6];
    mac.iter_mut().zip(data).for_each(|(to, from)| *to = from as u8);
    Some(mac)
}

/// The MTU of an interface.
pub(crate) fn read_mtu(name: &str) -> Option<u32> {
    let request = ask(name, libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU has filled this member of the union.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

/// Puts the program on an interface: replaces the program of the pinned link if there is one (not
/// a packet is missed), else makes a link and pins it. Returns whether it runs in generic mode.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    interface: &Interface,
    mode: XdpMode,
    pin: &Path,
) -> Result<bool, Error> {
    if pin.exists() {
        if replace_program(pin, program).is_ok() {
            return is_generic(interface);
        }
        // The interface went away and came back: the old link leads nowhere.
        std::fs::remove_file(pin).context(|| format!("remove stale link {}", pin.display()))?;
    }
    let modes: &[u32] = match mode {
        XdpMode::Auto => &[XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE],
        XdpMode::Native => &[XDP_FLAGS_DRV_MODE],
        XdpMode::Generic => &[XDP_FLAGS_SKB_MODE],
    };
    let mut failure = io::Error::from_raw_os_error(libc::EINVAL);
    for &flags in modes {
        match create(program, interface.index, flags) {
            Ok(link) => {
                pin_fd(&link, pin)?;
                return Ok(flags == XDP_FLAGS_SKB_MODE);
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                return Err(Error::Occupied { interface: interface.name.clone() });
            }
            Err(error) => failure = error,
        }
    }
    Err(failure).context(|| format!("attach the XDP program to {}", interface.name))
}

/// Puts the program into every link that is pinned in a directory.
pub(crate) fn replace_all(directory: &Path, program: BorrowedFd<'_>) -> Result<(), Error> {
    for pin in pins_of_links(directory)? {
        let link = open(&pin).context(|| format!("open link {}", pin.display()))?;
        replace_in(&link, program)?;
    }
    Ok(())
}

/// Puts the program into a link. One whose interface is gone leads nowhere, and is left alone.
pub(crate) fn replace_in(link: &OwnedFd, program: BorrowedFd<'_>) -> Result<(), Error> {
    match update(link, program) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOLINK | libc::ENODEV)) => Ok(()),
        replaced => replaced.context(|| "replace the program in a link".into()),
    }
}

/// Whether the interface's program runs in the network stack.
pub(crate) fn is_generic(interface: &Interface) -> Result<bool, Error> {
    const XDP_ATTACHED_SKB: u8 = 2;
    Ok(attached_how(interface)? == XDP_ATTACHED_SKB)
}

/// Whether the interface has a program, whosever it is. Where that cannot be asked, attaching tells.
pub(crate) fn has_program(interface: &Interface) -> bool {
    attached_how(interface).is_ok_and(|how| how != 0)
}

/// How a program is attached to an interface (linux/if_link.h, XDP_ATTACHED_*); 0: none is.
fn attached_how(interface: &Interface) -> Result<u8, Error> {
    Ok(attached(interface)?.attach_mode)
}

fn attached(interface: &Interface) -> Result<libbpf_rs::libbpf_sys::bpf_xdp_query_opts, Error> {
    let mut options = libbpf_rs::libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: the options outlive the call, which fills them.
    let done =
        unsafe { libbpf_rs::libbpf_sys::bpf_xdp_query(interface.index as i32, 0, &mut options) };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
        .context(|| format!("ask how XDP is attached to {}", interface.name))?;
    Ok(options)
}

/// Name of an interface's pin. The BPF file system takes no dots, which names of VLANs have; nor has
/// the name of an interface a space.
pub(crate) fn pin_name(interface: &str) -> String {
    format!("{LINK_PREFIX}{}", interface.replace('.', " "))
}

/// The pins of links in a directory.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn pins_of_links(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries =
        std::fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
    let is_link = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(LINK_PREFIX))
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(is_link).collect())
}

/// Opens a link that is pinned.
pub(crate) fn open(pin: &Path) -> io::Result<OwnedFd> {
    let path = c_path(pin)?;
    // SAFETY: the argument is a C string.
    let fd = unsafe { libbpf_rs::libbpf_sys::bpf_obj_get(path.as_ptr()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes a pinned link's program off its interface, in whichever network namespace that is: the kernel ends a
/// link some time after its last pin is gone, and until then nobody can attach another program there.
pub(crate) fn end(pin: &Path) {
    if let Ok(link) = open(pin) {
        // SAFETY: a plain number to the kernel. A link whose interface is gone has nothing to detach, and
        // one that cannot be detached ends with its pin.
        unsafe { libbpf_rs::libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
    }
}

/// Detaches from interfaces whose names are not among `wanted`: removing a link's pin ends it.
pub(crate) fn detach_others(directory: &Path, wanted: &[String]) -> Result<(), Error> {
    let wanted: Vec<PathBuf> = wanted.iter().map(|name| directory.join(pin_name(name))).collect();
    for pin in pins_of_links(directory)?.into_iter().filter(|pin| !wanted.contains(pin)) {
        end(&pin);
        std::fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
    }
    Ok(())
}

pub(crate) fn create(program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    let options = libbpf_rs::libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: both descriptors are plain numbers to the kernel; the options outlive the call.
    let fd = unsafe {
        libbpf_rs::libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex as i32,
            libbpf_rs::libbpf_sys::BPF_XDP,
            &options,
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn replace_program(pin: &Path, program: BorrowedFd<'_>) -> io::Result<()> {
    update(&open(pin)?, program)
}

fn update(link: &OwnedFd, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: two descriptors and no options.
    let done = unsafe {
        libbpf_rs::libbpf_sys::bpf_link_update(
            link.as_raw_fd(),
            program.as_raw_fd(),
            std::ptr::null(),
        )
    };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
}

/// Pins a link or a program.
pub(crate) fn pin_fd(link: &impl AsRawFd, pin: &Path) -> Result<(), Error> {
    let path = c_path(pin).context(|| format!("pin {}", pin.display()))?;
    // SAFETY: a descriptor and a C string.
    let done = unsafe { libbpf_rs::libbpf_sys::bpf_obj_pin(link.as_raw_fd(), path.as_ptr()) };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
        .context(|| format!("pin {}", pin.display()))
}

pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}
