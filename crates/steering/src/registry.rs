//! All methods, listed once.

use crate::decide::{Decide, Decision, Question};
use crate::memory::Memory;
use crate::method::{
    Build, InFleet, Method, Misfit, Needs, Publish, ServiceConfig, Setting, Settings, decides,
};
use crate::methods::{baseline, cheetah, concury, jet, residue, tracked};
use crate::shared::RawHeader;
use crate::table::{Body, Header, ImageError, Table};
use std::fmt;
use std::sync::Arc;
use weir_hash::{HashKey, Key};

/// What the registry knows of a method.
#[derive(Clone, Copy, Debug)]
pub struct MethodInfo {
    /// The number that its tables carry.
    pub id: MethodId,
    /// Its name in configurations and commands.
    pub name: &'static str,
    /// What it is, in half a sentence.
    pub summary: &'static str,
    /// What it needs from around it.
    pub needs: Needs,
    /// What it can be configured with.
    pub settings: &'static [Setting],
    /// Whether it can track every connection; see [`Method::TRACKS_ALL`].
    pub tracks_all: bool,
    /// What balancers of a fleet have to do when a pool changes; see [`Method::IN_FLEET`].
    pub in_fleet: InFleet,
    /// Version of its published tables' layout; 0 if it has none.
    pub layout: u16,
    /// Whether so many backends fit; see [`Method::fits`].
    pub fits: fn(&Settings, usize) -> Result<(), Misfit>,
    /// What a row of its table is called.
    pub row_name: fn(u32) -> String,
    /// Makes the build face of a service, if its tables can be published; see
    /// [`Publish::builder`].
    pub builder: Option<MakeBuilder>,
    /// Elements of a table at most, if its tables can be published; see [`Publish::most_elements`].
    pub most_elements: Option<MostElements>,
}

/// Makes the build face of a service: from its configuration, and from the table that an earlier
/// run has published. See [`Publish::builder`].
pub type MakeBuilder = fn(&ServiceConfig, Option<Arc<Image>>) -> Box<dyn Build>;

/// Elements that the body of a table fills at most. See [`Publish::most_elements`].
pub type MostElements = fn(&Settings, usize) -> usize;

impl MethodInfo {
    const fn published<M: Publish>() -> Self {
        let mut info = Self::of::<M>();
        info.layout = <M::Body as Body>::LAYOUT;
        info.builder = Some(M::builder);
        info.most_elements = Some(M::most_elements);
        info
    }

    const fn of<M: Method>() -> Self {
        Self {
            id: M::ID,
            name: M::NAME,
            summary: M::SUMMARY,
            needs: M::NEEDS,
            settings: M::SETTINGS,
            tracks_all: M::TRACKS_ALL,
            in_fleet: M::IN_FLEET,
            layout: 0,
            fits: M::fits,
            row_name: M::row_name,
            builder: None,
            most_elements: None,
        }
    }
}

macro_rules! registry {
    (
        published { $($(#[$meta:meta])* $published:ident = $number:literal => $method:ty: $doc:literal,)* }
        in_memory { $($(#[$other_meta:meta])* $other:ident = $other_number:literal => $other_method:ty: $other_doc:literal,)* }
    ) => {
        /// A method, by the number that its tables carry.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum MethodId {
            $(#[doc = $doc] $(#[$meta])* $published = $number,)*
            $(#[doc = $other_doc] $(#[$other_meta])* $other = $other_number,)*
        }

        impl MethodId {
            /// Every method of this build, those with published tables first.
            pub const ALL: &[Self] =
                &[$($(#[$meta])* Self::$published,)* $($(#[$other_meta])* Self::$other,)*];

            /// What the registry knows of it.
            pub const fn info(self) -> &'static MethodInfo {
                match self {
                    $($(#[$meta])* Self::$published => const {
                        decides::<$method>();
                        &MethodInfo::published::<$method>()
                    },)*
                    $($(#[$other_meta])* Self::$other => const {
                        &MethodInfo::of::<$other_method>()
                    },)*
                }
            }
        }

        /// A published table of any method, byte for byte as a plane holds it.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Image {
            $(#[doc = $doc] $(#[$meta])* $published(Table<<$method as Publish>::Body>),)*
        }

        $($(#[$meta])*
        impl From<Table<<$method as Publish>::Body>> for Image {
            fn from(table: Table<<$method as Publish>::Body>) -> Self {
                Self::$published(table)
            }
        })*

        macro_rules! each {
            ($self:expr, $table:ident => $call:expr) => {
                match $self {
                    $($(#[$meta])* Image::$published($table) => $call,)*
                }
            };
        }

        impl Image {
            /// The method that the table belongs to.
            #[inline(always)]
            pub fn method(&self) -> MethodId {
                match self {
                    $($(#[$meta])* Self::$published(_) => MethodId::$published,)*
                }
            }

            pub(crate) fn elements_of(raw: &RawHeader) -> Result<usize, ImageError> {
                match raw.method {
                    $($(#[$meta])* $number => Table::<<$method as Publish>::Body>::elements_of(raw),)*
                    other => Err(ImageError::Method(other)),
                }
            }

            pub(crate) fn read(raw: &RawHeader, elements: Vec<u8>) -> Result<Self, ImageError> {
                match raw.method {
                    $($(#[$meta])* $number => Table::read(raw, elements).map(Self::$published),)*
                    other => Err(ImageError::Method(other)),
                }
            }
        }
    };
}

// A new method is one more line here: its number for ever, and the type that describes it.
registry! {
    published {
        Concury = 1 => concury::Method: "Concury: a compact table from flows to Dcodes.",
        Tracked = 2 => tracked::Method: "A connection table over Maglev hashing.",
        Jet = 3 => jet::Method: "Tracks only the flows that a foreseen change could move.",
        Cheetah = 4 => cheetah::StatelessMethod: "A cookie in the timestamps names the server.",
        CheetahStateful = 5 => cheetah::StatefulMethod: "A cookie in the timestamps names a slot.",
        Residue = 6 => residue::Method: "Remembers only what a change of the pool has left behind.",
        Ecmp = 8 => baseline::EcmpMethod: "A hash modulo the size of the pool.",
        Consistent = 9 => baseline::ConsistentMethod: "Consistent hashing without a memory.",
        #[cfg(feature = "example")]
        Example = 200 => crate::methods::example::Method: "A method to be copied.",
    }
    in_memory {
        FullTracking = 7 => jet::FullMethod: "A connection table over any placement.",
        Chain = 10 => baseline::ChainMethod: "Buckets that know one former owner.",
        Digest = 11 => baseline::DigestMethod: "A digest of every flow, over Maglev hashing.",
        MultiDigest = 12 => baseline::MultiLevelMethod: "Shorter digests in several tables.",
    }
}

impl Image {
    /// What all tables have in common: key, generation, digest, flags.
    #[inline(always)]
    pub fn header(&self) -> &Header {
        each!(self, table => table.header())
    }

    /// How many elements of [`ELEMENT_BYTES`](crate::ELEMENT_BYTES) the body fills.
    pub fn elements(&self) -> usize {
        each!(self, table => table.body().elements())
    }

    /// The header for a body that begins at element `base`.
    pub fn header_bytes(&self, base: u32) -> [u8; crate::table::HEADER_BYTES] {
        each!(self, table => table.raw_header(base)).to_bytes()
    }

    /// Writes the body into its [`elements`](Self::elements), which are zero.
    pub fn write_body(&self, target: &mut [u8]) {
        each!(self, table => table.body().write(target));
    }
}

/// The table of any published method decides as that method does.
impl<K: Key> Decide<K> for Image {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.header().key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        each!(self, table => table.decide(question, memory))
    }

    #[inline(always)]
    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M) {
        each!(self, table => table.decide_burst(keys, out, memory));
    }

    fn bytes(&self) -> usize {
        each!(self, table => Decide::<K>::bytes(table))
    }
}

impl MethodId {
    /// The method of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|method| method.name() == name)
    }

    /// Its number in the header of a table.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The method of this number.
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|method| *method as u8 == number)
    }

    /// The methods whose tables can be published, to a plane that knows the method.
    pub fn published() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|method| method.info().builder.is_some())
    }

    /// Its name in configurations and commands.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// What it needs from around it.
    #[inline(always)]
    pub const fn needs(self) -> Needs {
        self.info().needs
    }
}

impl fmt::Display for MethodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_numbers_are_unique_and_found() {
        let names: HashSet<_> = MethodId::ALL.iter().map(|method| method.name()).collect();
        assert_eq!(names.len(), MethodId::ALL.len());
        for &method in MethodId::ALL {
            assert_eq!(MethodId::named(method.name()), Some(method));
            assert_eq!(MethodId::numbered(method as u8), Some(method));
            assert_eq!(method.info().id, method);
            assert!(!method.info().summary.is_empty());
        }
        assert_eq!((MethodId::named("none"), MethodId::numbered(0)), (None, None));
    }
}
