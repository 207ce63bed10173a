//! What takes packets out of tunnels on the backends of `routed`, if no agent of weir's does.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::INTERFACE;
use crate::error::{Error, Result};
use weir_testbed::decapsulate::{FOU_PORT, GUE_PORT};
use weir_testbed::{NetNs, decapsulate, link};

/// Who takes packets out of tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receivers {
    /// An XDP program of the testbed's, for tunnels of every kind.
    #[default]
    Testbed,
    /// The kernel's own tunnel devices, set up by the commands of docs/forwarding.md. Not every kernel has
    /// them.
    Kernel(Tunnel),
}

/// A kind of tunnel, by the word of the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// IP in IP.
    Ipip,
    /// GRE without options.
    Gre,
    /// UDP, with the packet in it.
    Fou,
    /// UDP, with a header that says what follows.
    Gue,
}

impl Receivers {
    /// The kernel's for `forward`, as the configuration file has it.
    ///
    /// # Errors
    /// [`Error::BadSpec`] if that is no tunnel.
    pub fn of_the_kernel(forward: &str) -> Result<Self> {
        let tunnel = match forward {
            "ipip" => Tunnel::Ipip,
            "gre" => Tunnel::Gre,
            "fou" => Tunnel::Fou,
            "gue" => Tunnel::Gue,
            other => {
                let wrong = format!("{other:?} is no tunnel; there are: ipip, gre, fou, gue");
                return Err(Error::BadSpec(wrong));
            }
        };
        Ok(Self::Kernel(tunnel))
    }

    /// Makes a backend with these addresses take packets out of tunnels.
    pub(super) fn set_up(self, netns: &NetNs, own: (Ipv4Addr, Ipv6Addr)) -> Result<()> {
        match self {
            Self::Testbed => Ok(decapsulate::attach(netns, INTERFACE)?),
            Self::Kernel(tunnel) => Ok(netns.ip(&tunnel.lines(own))?),
        }
    }
}

impl Tunnel {
    /// The lines of `ip` that docs/forwarding.md tells.
    fn lines(self, (v4, v6): (Ipv4Addr, Ipv6Addr)) -> String {
        match self {
            Self::Ipip => ip_in_ip(v6),
            Self::Gre => format!(
                "link add gre1 type gre local {v4} remote any\n{}\
                 link add gre2 type ip6gre local {v6} remote any\n{}",
                link::up("gre1"),
                link::up("gre2")
            ),
            Self::Fou => format!(
                "fou add port {FOU_PORT} ipproto 4\nfou add port {FOU_PORT} ipproto 41 -6\n{}",
                ip_in_ip(v6)
            ),
            Self::Gue => format!(
                "fou add port {GUE_PORT} gue\nfou add port {GUE_PORT} gue -6\n{}",
                ip_in_ip(v6)
            ),
        }
    }
}

/// Both families in both.
fn ip_in_ip(v6: Ipv6Addr) -> String {
    format!(
        "{}{}link add ip6tnl1 type ip6tnl local {v6} remote :: mode any\n{}",
        link::up("tunl0"),
        link::up("sit0"),
        link::up("ip6tnl1")
    )
}
