//! How packets get to each backend, made of its entry in the kernel's memory and made anew when that is
//! another one.

use crate::ports::{Fate, Frame};
use crate::ways::enter;
use std::net::IpAddr;
use weir_dataplane::user::{BACKEND_WORDS, UserMemory};
use weir_plane::Backend;
use weir_plane::forward::nat::{End, translate};
use weir_plane::forward::{Outer, Translation, Tunnel};
use weir_steering::BackendId;
use weir_wire::map_address;

/// Where the MTU of a way is not known, packets up to this one pass any (RFC 8200).
const ANY_WAY: u32 = 1280;

/// How packets get to a backend.
#[derive(Clone, Debug)]
pub struct Way {
    macs: [u8; 12],
    device: u32,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// With other MAC addresses.
    Link,
    /// In another packet besides, if they are no larger.
    Tunnel(Box<Outer>, u32),
    /// With the backend's address and port in them.
    Translated(IpAddr, Translation),
}

struct Known {
    words: [u64; BACKEND_WORDS],
    /// None: the program in the kernel knows.
    way: Option<Way>,
    /// Which use of the number this is; none if nobody has it.
    incarnation: Option<u32>,
    age: u32,
}

/// All backends that packets have gone to, by their numbers.
#[derive(Default)]
pub struct Ways {
    known: Vec<Option<Known>>,
    /// Raised when what does not stand in entries is to be looked at again.
    age: u32,
}

impl Ways {
    pub fn refresh(&mut self) {
        self.age = self.age.wrapping_add(1);
    }

    /// The way to a backend; none if this plane has none.
    pub fn of(&mut self, shared: &UserMemory, backend: BackendId) -> Option<&Way> {
        self.known(shared, backend)?.way.as_ref()
    }

    /// Which use of a backend's number is the present one.
    pub fn incarnation(&mut self, shared: &UserMemory, backend: BackendId) -> Option<u32> {
        self.known(shared, backend)?.incarnation
    }

    fn known(&mut self, shared: &UserMemory, backend: BackendId) -> Option<&Known> {
        let words = shared.backend_words(backend)?;
        let at = backend.index();
        if at >= self.known.len() {
            self.known.resize_with(at + 1, || None);
        }
        let age = self.age;
        let fresh = |known: &Known| known.words == words && known.age == age;
        if !self.known[at].as_ref().is_some_and(fresh) {
            let entry = shared.backend(backend);
            let way = entry.as_ref().and_then(|entry| Way::to(shared, entry));
            let incarnation = entry.map(|entry| entry.incarnation);
            self.known[at] = Some(Known { words, way, incarnation, age });
        }
        self.known[at].as_ref()
    }
}

impl Way {
    fn to(shared: &UserMemory, backend: &Backend) -> Option<Self> {
        let hop = backend.hop.filter(|_| !backend.resets)?;
        if hop.ifindex != 0 && !shared.is_plain_device(hop.ifindex).ok()? {
            return None;
        }
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&hop.next.mac);
        macs[6..].copy_from_slice(&hop.next.source_mac);
        let kind = match (backend.tunnel, backend.translation) {
            (Some(tunnel), _) => {
                let said = shared.path_mtu(&map_address(backend.address)).ok()?;
                let mtu = match (tunnel.mtu, said) {
                    (mtu, None) => mtu,
                    (0, Some(said)) => said,
                    (mtu, Some(said)) => mtu.min(said),
                };
                let tunnel = Tunnel { mtu: if mtu == 0 { ANY_WAY } else { mtu }, ..tunnel };
                let most = tunnel.most()
                    - tunnel.encapsulation.overhead(backend.address).min(tunnel.most());
                let outer = Outer::new(&tunnel, backend.address).ok()?;
                Kind::Tunnel(Box::new(outer), most as u32)
            }
            // Full NAT has a table of connections, which only the program reaches.
            (None, Some(Translation { ports: Some(_), .. })) => return None,
            (None, Some(to)) => Kind::Translated(backend.address, to),
            (None, None) => Kind::Link,
        };
        Some(Self { macs, device: hop.ifindex, kind })
    }

    /// Makes a frame one that goes this way. False, and nothing is done to it, if it cannot.
    pub fn take(
        &self,
        memory: &mut [u8],
        frame: &mut Frame,
        bytes: u32,
        sends_by: &dyn Fn(u32) -> bool,
        scratch: &mut Vec<u8>,
    ) -> bool {
        if self.device != 0 && !sends_by(self.device) {
            return false;
        }
        let (at, len) = (frame.at as usize, frame.len as usize);
        match &self.kind {
            Kind::Link => {}
            Kind::Tunnel(outer, most) => {
                if !enter(outer, &self.macs, *most, memory, frame, bytes) {
                    return false;
                }
            }
            Kind::Translated(address, to) => {
                let most = if to.mtu == 0 { ANY_WAY } else { to.mtu };
                scratch.clear();
                scratch.extend_from_slice(&memory[at..at + len]);
                let refused = bytes > most || to.refuses(scratch).is_some();
                if refused
                    || translate(scratch, End::Destination, (*address, to.port), None).is_err()
                {
                    return false;
                }
                memory[at..at + len].copy_from_slice(scratch);
            }
        }
        if let Some(head) = memory[frame.at as usize..].first_chunk_mut() {
            *head = self.macs;
        }
        (frame.fate, frame.device) = (Fate::Send, self.device);
        true
    }
}
