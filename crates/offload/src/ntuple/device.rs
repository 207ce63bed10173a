//! The kernel's interface to a card's rules.

use super::request::{
    self, ETHTOOL_GRINGPARAM, ETHTOOL_GRXCLSRLALL, ETHTOOL_GRXCLSRLCNT, ETHTOOL_GRXFHINDIR,
    ETHTOOL_GRXRINGS, REQUEST_BYTES, RULE_COUNT, RX_CLS_LOC_SPECIAL, Request,
};
use crate::rule::{Answer, Answered, Limits, Location, Refusal, Rule, Rules, Serial};
use nix::errno::Errno;
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Words as the bytes that they are.
fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    let bytes = std::mem::size_of_val(words);
    // SAFETY: integers have no padding, and any bytes are some; the slice borrows the words.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), bytes) }
}

/// Frames in a receive ring of a card that does not say how many: no ring of a driver is larger.
const MOST_RING: u32 = 1 << 16;

/// The rules of an interface in this thread's namespace.
#[derive(Debug)]
pub struct Device {
    name: String,
    socket: UdpSocket,
    limits: Limits,
    answers: VecDeque<Answer>,
    /// Places that are this process's own, since [`flush`](Self::flush).
    used: u32,
}

/// Who comes next finds none of these rules, nor do packets.
impl Drop for Device {
    fn drop(&mut self) {
        if self.used > 0 {
            // Of an interface that is gone there are none.
            let _ = self.flush(self.used);
        }
    }
}

impl Device {
    /// The rules of an interface, if its driver takes any. Those that are there already stay until
    /// [`flush`](Self::flush); nobody else may use the places from 0 on meanwhile.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`], if it takes none; [`Refusal::Device`], if there is no such interface.
    pub fn open(name: &str) -> Result<Self, Refusal> {
        let socket = UdpSocket::bind(("127.0.0.1", 0));
        let socket = socket.map_err(|why| Refusal::Device(format!("no socket: {why}")))?;
        let limits = Limits { rules: 0, queues: 0, ring: MOST_RING, counts: false };
        let answers = VecDeque::new();
        let mut new = Self { name: name.to_owned(), socket, limits, answers, used: 0 };
        new.limits.ring = new.ring().unwrap_or(MOST_RING);
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

    /// Removes the rules at the places from 0 on, as many as are used here: those that a process has left which was
    /// killed. Whoever begins with an account of an empty table calls this first.
    ///
    /// # Errors
    /// If the driver does not say which there are, or one does not go.
    pub fn flush(&mut self, places: u32) -> Result<(), Refusal> {
        self.used = self.used.max(places);
        for at in self.places_in_use()?.into_iter().filter(|at| *at < places) {
            self.ask(request::delete(Location(at)))?;
        }
        let left = self.places_in_use()?.into_iter().find(|at| *at < places);
        match left {
            None => Ok(()),
            Some(at) => Err(Refusal::Device(format!(
                "{}: a rule stays at place {at}, which is to be free (ethtool -N {} delete {at})",
                self.name, self.name
            ))),
        }
    }

    /// Where rules stand.
    ///
    /// # Errors
    /// What the driver says.
    pub fn places_in_use(&self) -> Result<Vec<u32>, Refusal> {
        let counted = self.ask(request::bare(ETHTOOL_GRXCLSRLCNT))?;
        let count = request::rule_count(&counted);
        if count == 0 {
            return Ok(Vec::new());
        }
        // Others may make some meanwhile; the kernel says then that there is no room.
        let mut words = vec![0u64; (REQUEST_BYTES + 4 * count as usize).div_ceil(8)];
        let bytes = bytes_of(&mut words);
        bytes[..4].copy_from_slice(&ETHTOOL_GRXCLSRLALL.to_ne_bytes());
        bytes[RULE_COUNT..RULE_COUNT + 4].copy_from_slice(&count.to_ne_bytes());
        self.call(&mut words)?;
        let bytes = bytes_of(&mut words);
        // Some may be gone since they were counted.
        let given = bytes[RULE_COUNT..].first_chunk().copied().map_or(0, u32::from_ne_bytes);
        let count = count.min(given);
        // They begin where the count ends, and the structure has padding after it.
        let places = bytes[RULE_COUNT + 4..].chunks_exact(4).take(count as usize);
        Ok(places.filter_map(|word| Some(u32::from_ne_bytes(word.try_into().ok()?))).collect())
    }

    /// Refuses a card that leads what no rule matches to other queues than the first one, as receive-side scaling
    /// does: who is to say then which packets a rule has led?
    ///
    /// # Errors
    /// [`Refusal::Unsupported`], with the command that changes it.
    pub fn leads_to_the_first_queue(&self) -> Result<(), Refusal> {
        let name = &self.name;
        let told = format!("have the others come by the first queue: ethtool -X {name} equal 1");
        let mut words = vec![0u64; 2];
        bytes_of(&mut words)[..4].copy_from_slice(&ETHTOOL_GRXFHINDIR.to_ne_bytes());
        let asked = self.call(&mut words);
        if let Err(why) = asked {
            return Err(Refusal::Unsupported(format!(
                "{name} does not say by which queue packets come that no rule matches ({why}); {told}"
            )));
        }
        let size = bytes_of(&mut words)[4..8].first_chunk().copied().map_or(0, u32::from_ne_bytes);
        let mut words = vec![0u64; (8 + 4 * size as usize).div_ceil(8)];
        let bytes = bytes_of(&mut words);
        bytes[..4].copy_from_slice(&ETHTOOL_GRXFHINDIR.to_ne_bytes());
        bytes[4..8].copy_from_slice(&size.to_ne_bytes());
        self.call(&mut words)?;
        let rows = bytes_of(&mut words)[8..].chunks_exact(4).take(size as usize);
        match rows.into_iter().all(|row| row == [0; 4]) {
            true => Ok(()),
            false => Err(Refusal::Unsupported(format!(
                "{name} spreads packets that no rule matches over its queues; {told}"
            ))),
        }
    }

    /// Frames that a receive ring of the card may have at most.
    fn ring(&self) -> Result<u32, Refusal> {
        // ethtool_ringparam: nine words of 32 bits, the second of which is it.
        let mut words = vec![0u64; 5];
        bytes_of(&mut words)[..4].copy_from_slice(&ETHTOOL_GRINGPARAM.to_ne_bytes());
        self.call(&mut words)?;
        let most = bytes_of(&mut words)[4..].first_chunk().copied().map_or(0, u32::from_ne_bytes);
        Ok(if most == 0 { MOST_RING } else { most })
    }

    /// A call of the kernel with a request, which it fills.
    fn ask(&self, request: Request) -> Result<Request, Refusal> {
        let mut words = [0u64; REQUEST_BYTES / 8];
        bytes_of(&mut words).copy_from_slice(&request);
        self.call(&mut words)?;
        let mut answer = [0; REQUEST_BYTES];
        answer.copy_from_slice(bytes_of(&mut words));
        Ok(answer)
    }

    /// The same with a request of any length: for commands that take and give whole `ethtool_rxnfc`, as many words
    /// as that has, or more; of `ethtool_rxfh_indir`, with as many rows as it says to have.
    fn call(&self, words: &mut [u64]) -> Result<(), Refusal> {
        // SAFETY: an all-zero ifreq is valid.
        let mut call: libc::ifreq = unsafe { std::mem::zeroed() };
        let room = call.ifr_name.len() - 1;
        if self.name.len() > room || self.name.is_empty() {
            return Err(Refusal::Device(format!("{:?} is no interface's name", self.name)));
        }
        for (to, from) in call.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        call.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: the call names a device and points to a request, with room behind it for as much as it says that
        // there is; none of the commands makes the kernel write more.
        let done =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut call) };
        if done < 0 { Err(self.refusal(Errno::last())) } else { Ok(()) }
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

    /// Rules go by themselves, too: by `ethtool`, or as a card is reset. Drivers that look for one say by various words
    /// that there is none, so after a refusal it counts what stands there.
    fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal> {
        if let Err(why) = self.ask(request::delete(at)) {
            let gone = self.places_in_use().is_ok_and(|there| !there.contains(&at.0));
            if !gone {
                return Err(why);
            }
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
