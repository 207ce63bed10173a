//! The interfaces whose packets are balanced.

#![forbid(unsafe_code)]

use crate::config::{Config, XdpMode};
use crate::neigh::{self, Interface, Kind};

use super::{Finding, ethtool, read};

/// Drivers of the kernel's own tree that have native XDP, XDP_TX included, as `ethtool -i`
/// names them. Not complete for ever, so that what is missing here is a warning, no failure.
const NATIVE: &[&str] = &[
    "am65-cpsw-nuss",
    "atlantic",
    "bnxt_en",
    "bonding",
    "ena",
    "fec",
    "fsl_dpaa",
    "fsl_dpaa2_eth",
    "fsl_enetc",
    "fsl_enetc_vf",
    "fsl_enetc4",
    "funeth",
    "gve",
    "hv_netvsc",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mana",
    "mlx4_en",
    "mlx5_core",
    "mtk_soc_eth",
    "mvneta",
    "mvpp2",
    "netsec",
    "nfp",
    "qede",
    "rvu_nicpf",
    "rvu_nicvf",
    "sfc",
    "sfc-siena",
    "st_gmac",
    "stmmac",
    "thunder-nicvf",
    "tsnep",
    "tun",
    "veth",
    "vif",
    "virtio_net",
    "vmxnet3",
];
/// The largest MTU of a driver that gives XDP one page for each frame: 4096 less 256 bytes of
/// headroom, 320 of `struct skb_shared_info`, 14 of Ethernet and 8 of two VLAN tags.
const MOST_MTU: u32 = 3498;

/// Drivers that hand native XDP frames in several buffers, and so any MTU; from Linux 5.18 on.
const SEVERAL_BUFFERS: &[&str] = &[
    "bnxt_en",
    "fsl_enetc",
    "fsl_enetc4",
    "i40e",
    "ice",
    "mlx5_core",
    "mvneta",
    "veth",
    "virtio_net",
];

pub(super) fn examine(name: &str, config: &Config, findings: &mut Vec<Finding>) {
    let interface = match neigh::interface(name) {
        Ok(interface) => interface,
        Err(error) => {
            findings.push(Finding::fail(
                "interface",
                error.to_string(),
                "correct balancer.interfaces in the configuration",
            ));
            return;
        }
    };
    let mode = config.balancer.mode;
    let driver = ethtool::driver(name).unwrap_or_default();
    findings.push(state(&interface));
    findings.push(native(&interface, &driver, mode));
    if driver == "veth" && mode != XdpMode::Generic {
        findings.push(peer(&interface));
    }
    findings.push(offloads(name, ethtool::lro(name), ethtool::gro(name), mode));
    findings.push(mtu(&interface, &driver, mode));
    let all = neigh::interfaces().unwrap_or_default();
    // A pair of veths has no card, whatever its features say.
    let takes_tags_off = ethtool::takes_tags_off(name).filter(|_| driver != "veth");
    findings.extend(vlans(&interface, &all, takes_tags_off, mode));
    let families = [("ipv4", true), ("ipv6", false)];
    for (family, is_v4) in families {
        let used = config.services.iter().any(|one| one.has_family(is_v4));
        if used {
            findings.push(forwarding(name, family));
        }
    }
    findings.push(rp_filter(name));
}

fn state(interface: &Interface) -> Finding {
    let name = &interface.name;
    if !interface.up {
        return Finding::fail(
            "interface",
            format!("{name} is down"),
            format!("ip link set {name} up"),
        );
    }
    if !interface.running {
        return Finding::warn(
            "interface",
            format!("{name} has no carrier"),
            "look at the cable and at the other end",
        );
    }
    Finding::ok("interface", format!("{name} is up"))
}

pub(super) fn native(interface: &Interface, driver: &str, mode: XdpMode) -> Finding {
    let name = &interface.name;
    let known = NATIVE.contains(&driver);
    let driver = if driver.is_empty() { "(unnamed)" } else { driver };
    if let (Some(Kind::Bond { refuses: Some(why) }), false) =
        (&interface.kind, mode == XdpMode::Generic)
    {
        let mend = "set its mode to 802.3ad, balance-xor, balance-rr or active-backup, with an \
                    xmit_hash_policy other than vlan+srcmac";
        let what = format!("{name}: a bond {why} takes no native XDP program");
        return match mode {
            XdpMode::Native => Finding::fail("driver", what, mend),
            _ => Finding::warn("driver", format!("{what}; generic is several times slower"), mend),
        };
    }
    match (mode, known) {
        (XdpMode::Generic, true) => Finding::warn(
            "driver",
            format!("{name}: generic mode, several times slower, though {driver} has native XDP"),
            "set balancer.mode = \"auto\"",
        ),
        (XdpMode::Generic, false) => Finding::warn(
            "driver",
            format!("{name}: generic mode, several times slower than native"),
            "an interface with a driver that has native XDP is faster",
        ),
        (_, true) => Finding::ok("driver", format!("{name}: {driver} has native XDP")),
        (XdpMode::Auto, false) => Finding::warn(
            "driver",
            format!(
                "{name}: {driver} is not known to have native XDP; weir will try, and use generic mode, several times slower, if it has not"
            ),
            "an interface with a driver that has native XDP is faster",
        ),
        (XdpMode::Native, false) => Finding::warn(
            "driver",
            format!(
                "{name}: {driver} is not known to have native XDP; weir will not start if it has not"
            ),
            "set balancer.mode = \"auto\" to fall back to generic mode",
        ),
    }
}

/// A frame sent back with XDP_TX on a veth is lost unless its peer runs an XDP program, or has GRO on. By GRO alone it
/// is not for long: when programs of this end come and go, as with a restart, the peer's queue may stand still for good.
fn peer(interface: &Interface) -> Finding {
    let name = &interface.name;
    let peer = interface.link.and_then(|index| neigh::interface_by_index(index).ok());
    let mend = |peer: &str| {
        format!(
            "attach a program that returns XDP_PASS to the peer: ip link set {peer} xdp obj pass.o; where frames stand \
             still and it has GRO on, ethtool -K {peer} gro off; ethtool -K {peer} gro on lets them go on until the next time"
        )
    };
    let Some(peer) = peer else {
        let detail = format!(
            "{name}: its peer is in another network namespace; without an XDP program there frames sent back are lost, \
             at once, or where it has GRO on from some restart of weir run on"
        );
        return Finding::warn("veth-peer", detail, mend("PEER"));
    };
    let other = &peer.name;
    if peer.xdp {
        return Finding::ok("veth-peer", format!("{name}: its peer {other} runs XDP"));
    }
    let what = match ethtool::gro(other) {
        Some(true) => {
            "but has GRO on: frames sent back get through until weir run is started again, and may then be lost for good"
        }
        _ => "and has GRO off: frames sent back are lost",
    };
    let detail = format!("{name}: its peer {other} runs no XDP program, {what}");
    Finding::fail("veth-peer", detail, mend(other))
}

pub(super) fn offloads(name: &str, lro: Option<bool>, gro: Option<bool>, mode: XdpMode) -> Finding {
    if lro == Some(true) {
        return Finding::warn(
            "offloads",
            format!("{name}: LRO is on, which merges packets before XDP; many drivers refuse both"),
            format!("ethtool -K {name} lro off"),
        );
    }
    if gro == Some(true) && mode == XdpMode::Generic {
        return Finding::warn(
            "offloads",
            format!(
                "{name}: GRO is on, and generic mode sees packets after it: merged ones do not fit the wire again"
            ),
            format!("ethtool -K {name} gro off"),
        );
    }
    Finding::ok("offloads", format!("{name}: no receive offload is in the way"))
}

pub(super) fn mtu(interface: &Interface, driver: &str, mode: XdpMode) -> Finding {
    let (name, mtu) = (&interface.name, interface.mtu);
    if mtu > MOST_MTU && mode != XdpMode::Generic && SEVERAL_BUFFERS.contains(&driver) {
        let detail =
            format!("{name}: MTU {mtu}; {driver} hands on jumbo frames in several buffers");
        return Finding::ok("mtu", detail);
    }
    if mtu > MOST_MTU && mode != XdpMode::Generic {
        let who = if driver.is_empty() { "a driver" } else { driver };
        return Finding::warn(
            "mtu",
            format!("{name}: MTU {mtu}; {who} may refuse native XDP above {MOST_MTU}"),
            format!("ip link set {name} mtu 1500"),
        );
    }
    Finding::ok("mtu", format!("{name}: MTU {mtu}; forwarding adds no bytes"))
}

/// What becomes of frames with VLAN tags: nothing to say where there is no VLAN.
pub(super) fn vlans(
    interface: &Interface,
    all: &[Interface],
    takes_tags_off: Option<bool>,
    mode: XdpMode,
) -> Option<Finding> {
    let is_vlan = |one: &Interface| matches!(one.kind, Some(Kind::Vlan { .. }));
    let above = |below: u32| {
        all.iter().filter(move |one| is_vlan(one) && one.link == Some(below)).collect::<Vec<_>>()
    };
    let name = &interface.name;
    let own = above(interface.index);
    // Of a VLAN's interface, its own VLANs are in it.
    let inner = match is_vlan(interface) {
        true => own.clone(),
        false => own.iter().flat_map(|vlan| above(vlan.index)).collect(),
    };
    let names = |vlans: &[&Interface]| {
        vlans.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    if takes_tags_off == Some(true) && !own.is_empty() {
        return Some(Finding::warn(
            "vlans",
            format!(
                "{name}: rx-vlan-offload is on, and it has VLANs ({}): if the driver leaves it on with an XDP \
                 program, tags are gone before the program sees a frame, and what came by a VLAN leaves by none",
                names(&own)
            ),
            format!("ethtool -K {name} rxvlan off"),
        ));
    }
    if !inner.is_empty() && mode != XdpMode::Generic {
        return Some(Finding::warn(
            "vlans",
            format!(
                "{name}: {} in a VLAN: packets whose way out is there are dropped as no_way_out",
                match &inner[..] {
                    [one] => format!("{} is a VLAN", one.name),
                    several => format!("{} are VLANs", names(several)),
                }
            ),
            "let backends and routers be in VLANs of the interface itself; or set balancer.mode = \"generic\"",
        ));
    }
    (!own.is_empty()).then(|| Finding::ok("vlans", format!("{name}: with {}", names(&own))))
}

fn forwarding(name: &str, family: &str) -> Finding {
    let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
    match read(&path).as_deref() {
        Some("0") => Finding::warn(
            "forwarding",
            format!(
                "{name}: {family} forwarding is off, so bpf_fib_lookup does not answer; weir uses the neighbour table instead, which follows changes more slowly"
            ),
            format!("sysctl -w {}=1", key(family, name, "forwarding")),
        ),
        Some(_) => Finding::ok("forwarding", format!("{name}: {family} forwarding is on")),
        None => Finding::warn(
            "forwarding",
            format!("{name}: {path} cannot be read; is {family} turned off?"),
            format!("turn {family} on, or remove its services"),
        ),
    }
}

pub(super) fn rp_filter(name: &str) -> Finding {
    if filters_strictly(name) {
        return Finding::warn(
            "rp-filter",
            format!(
                "{name}: strict reverse-path filtering drops packets whose source is routed elsewhere"
            ),
            format!("sysctl -w {}=2", key("ipv4", name, "rp_filter")),
        );
    }
    Finding::ok("rp-filter", format!("{name}: not strict"))
}

/// Whether the kernel drops IPv4 packets that come by an interface from where it would not send by it.
pub(crate) fn filters_strictly(interface: &str) -> bool {
    let one = |name: &str| {
        let value = read(&format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"));
        value.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0)
    };
    // The kernel takes the larger of the two.
    one("all").max(one(interface)) == 1
}

/// The name of a sysctl; dots in an interface's name are written as slashes.
pub(super) fn key(family: &str, name: &str, setting: &str) -> String {
    format!("net.{family}.conf.{}.{setting}", name.replace('.', "/"))
}
