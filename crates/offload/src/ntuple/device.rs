//! The kernel's interface to a card's rules.

use super::request::{
    self, ETHTOOL_GRXCLSRLCNT, ETHTOOL_GRXRINGS, REQUEST_BYTES, RX_CLS_LOC_SPECIAL, Request,
};
use crate::rule::{Answer, Answered, Limits, Location, Refusal, Rule, Rules, Serial};
use nix::errno::Errno;
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// The most that a request may be, so that it has the alignment of its numbers.
#[repr(C, align(8))]
struct Aligned(Request);

/// The rules of an interface in this thread's namespace.
#[derive(Debug)]
pub struct Device {
    name: String,
    socket: UdpSocket,
    limits: Limits,
    answers: VecDeque<Answer>,
}

impl Device {
    /// The rules of an interface, if its driver takes any. Those that are there already stay; nobody else may
    /// use the places from 0 on meanwhile.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`], if it takes none; [`Refusal::Device`], if there is no such interface.
    pub fn open(name: &str) -> Result<Self, Refusal> {
        let socket = UdpSocket::bind(("127.0.0.1", 0));
        let socket = socket.map_err(|why| Refusal::Device(format!("no socket: {why}")))?;
        let limits = Limits { rules: 0, queues: 0, ring: 4096, counts: false };
        let mut new = Self { name: name.to_owned(), socket, limits, answers: VecDeque::new() };
        let queues = request::data(&new.ask(request::bare(ETHTOOL_GRXRINGS))?);
        let places = request::data(&new.ask(request::bare(ETHTOOL_GRXCLSRLCNT))?);
        new.limits.queues = queues.min(u64::from(u16::MAX)) as u16;
        // A driver that does not say how many takes what it takes, and then says that it is full.
        let rules = match places & !RX_CLS_LOC_SPECIAL {
            0 => *crate::emulated::CARD_RULES.start() as u64,
            rules => rules,
        };
        new.limits.rules = rules.min(1 << 16) as usize;
        Ok(new)
    }

    /// A call of the kernel with a request, which it fills.
    fn ask(&self, request: Request) -> Result<Request, Refusal> {
        let mut data = Aligned(request);
        // SAFETY: an all-zero ifreq is valid.
        let mut call: libc::ifreq = unsafe { std::mem::zeroed() };
        let room = call.ifr_name.len() - 1;
        if self.name.len() > room || self.name.is_empty() {
            return Err(Refusal::Device(format!("{:?} is no interface's name", self.name)));
        }
        for (to, from) in call.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        call.ifr_ifru.ifru_data = (&raw mut data).cast();
        // SAFETY: the call names a device and points to a whole `ethtool_rxnfc`, of which none of these
        // commands makes the kernel write more.
        let done =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut call) };
        if done < 0 { Err(self.refusal(Errno::last())) } else { Ok(data.0) }
    }

    fn refusal(&self, errno: Errno) -> Refusal {
        let name = &self.name;
        match errno {
            Errno::ENOSPC => Refusal::Full(self.limits.rules),
            Errno::EBUSY | Errno::EAGAIN | Errno::EINTR => Refusal::Busy,
            Errno::EOPNOTSUPP => Refusal::Unsupported(format!(
                "the driver of {name} has no rules, or they are off (ethtool -K {name} ntuple on)"
            )),
            Errno::EINVAL | Errno::ERANGE => Refusal::Unsupported(format!("{name}: {errno}")),
            Errno::EPERM | Errno::EACCES => {
                Refusal::Device(format!("{name}: {errno}; CAP_NET_ADMIN is needed"))
            }
            _ => Refusal::Device(format!("{name}: {errno}")),
        }
    }

    fn done(&mut self, at: Location, serial: Serial) {
        self.answers.push_back(Answer { at, serial, what: Answered::Done });
    }
}

/// The kernel's calls come back when the driver has done what it was asked for, so each answer is there at once.
impl Rules for Device {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn insert(&mut self, at: Location, rule: &Rule, serial: Serial) -> Result<(), Refusal> {
        self.ask(request::insert(at, rule)?)?;
        self.done(at, serial);
        Ok(())
    }

    fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal> {
        match self.ask(request::delete(at)) {
            // There was none; drivers that look for it say so, some by the wrong word.
            Ok(_) => {}
            Err(Refusal::Device(why)) if why.contains(Errno::ENOENT.desc()) => {}
            Err(why) => return Err(why),
        }
        self.done(at, serial);
        Ok(())
    }

    fn answers(&mut self, take: &mut dyn FnMut(Answer)) {
        self.answers.drain(..).for_each(take);
    }

    /// The kernel's interface has no counters of rules.
    fn hits(&mut self, _: Location) -> Option<u64> {
        None
    }
}

const _: () = assert!(size_of::<Aligned>() == REQUEST_BYTES);
