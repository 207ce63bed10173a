//! Validation of what a plane over ports of DPDK has.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use weir_dataplane::user::PLANE_THREADS;

use super::super::error::Problems;
use super::super::{Dpdk, XdpMode, has_dpdk, written};
use super::scope::Scope;

/// For one thread, whose buffers alone take about 20 MB, and for each one more, with what describes them.
const LEAST_MB: u32 = 64;
const MORE_MB: u32 = 22;
const MOST_MB: u32 = 65_536;
/// Longer ones would lose what comes meanwhile.
const LONGEST_NAP: Duration = Duration::from_millis(10);

const EXAMPLE: &str = "one for each of balancer.interfaces, such as devices = [\"0000:01:00.0\"] or \
                       [\"net_af_packet0,iface=eth1\"]";

/// Where the file names devices, and how many it names, whether they are some or not.
pub(super) struct Named {
    place: Range<usize>,
    devices: usize,
}

/// What the file says of DPDK, and of its devices.
pub(super) fn table(
    raw: Option<Spanned<written::Dpdk>>,
    problems: &mut Problems<'_>,
) -> (Dpdk, Option<Named>) {
    let mut all = Dpdk::default();
    let Some(raw) = raw else { return (all, None) };
    let devices = raw.get_ref().devices.as_ref().map_or(0, |all| all.get_ref().len());
    let span = raw.get_ref().devices.as_ref().map_or(raw.span(), Spanned::span);
    let mut scope = Scope::new(problems, "dpdk", raw.span());
    let raw = raw.into_inner();
    let mut names = HashSet::new();
    for device in raw.devices.into_iter().flat_map(Spanned::into_inner) {
        let (span, device) = (device.span(), device.into_inner());
        let name = device.split(',').next().unwrap_or_default();
        let odd = |c: char| c.is_whitespace() || c.is_control();
        if name.is_empty() || device.contains(odd) {
            let wrong = format!("{device:?} is no device");
            let right = "give DPDK's device arguments, such as net_af_packet0,iface=eth1, or an address of PCI, \
                         such as 0000:01:00.0, without spaces";
            scope.problem(span, "devices", wrong, right);
        } else if !names.insert(name.to_owned()) {
            let wrong = format!("{name:?} is there twice");
            scope.problem(span, "devices", wrong, "name each device once");
        } else {
            all.devices.push(device);
        }
    }
    all.huge_pages = raw.huge_pages.map_or(all.huge_pages, Spanned::into_inner);
    let nap = scope.duration(raw.longest_nap.as_ref(), "longest_nap", Duration::ZERO..=LONGEST_NAP);
    all.longest_nap = nap.unwrap_or(all.longest_nap);
    let threads = scope.integer(raw.threads.as_ref(), "threads", 1..=PLANE_THREADS as u16);
    all.threads = threads.unwrap_or(all.threads);
    let least = LEAST_MB + MORE_MB * u32::from(all.threads - 1);
    let memory = scope.integer(raw.memory_mb.as_ref(), "memory_mb", least..=MOST_MB);
    all.memory_mb = memory.unwrap_or(all.memory_mb);
    (all, Some(Named { place: span, devices }))
}

/// Refuses a plane over DPDK that this program has not, or that has no device for each interface. `plane`: where
/// the file says what decides packets.
pub(super) fn is_whole(
    named: Option<&Named>,
    interfaces: usize,
    plane: Range<usize>,
    problems: &mut Problems<'_>,
) {
    if !has_dpdk() {
        problems.add(
            plane.clone(),
            "balancer: plane",
            "this program is built without DPDK",
            "install libdpdk-dev and build with `cargo build --locked --release --features dpdk`, or take \
             \"kernel\" or \"af-xdp\"",
        );
    }
    let found = named.map_or(0, |named| named.devices);
    if found != interfaces {
        let of = |count: usize, what| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let wrong = format!("{} for {}", of(found, "device"), of(interfaces, "interface"));
        let place = named.map_or(plane, |named| named.place.clone());
        problems.add(place, "dpdk: devices", wrong, EXAMPLE);
    }
}

/// At taps the program is attached in the network stack: DPDK opens them with a word in front of each frame, which
/// those lack that a native program sends back.
pub(super) fn at_taps(
    mode: &mut Option<XdpMode>,
    said: Option<Range<usize>>,
    problems: &mut Problems<'_>,
) {
    if *mode == Some(XdpMode::Native) {
        problems.add(
            said.unwrap_or(0..0),
            "balancer: mode",
            "at the taps of plane = \"dpdk\" there is no native XDP",
            "remove it, or give \"generic\"",
        );
    }
    *mode = Some(XdpMode::Generic);
}

#[cfg(test)]
mod tests {
    use super::super::super::{Config, offer_dpdk};
    use super::*;

    fn parse(balancer: &str, dpdk: &str) -> Result<Config, String> {
        offer_dpdk();
        let text = format!(
            "[balancer]\nplane = \"dpdk\"\n{balancer}\n[dpdk]\n{dpdk}\n[[service]]\nname = \"web\"\n\
             vip = \"10.0.0.1\"\nport = 80\n[[service.backend]]\nname = \"b0\"\naddress = \"10.0.0.2\"\n"
        );
        Config::parse(&text, "weir.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn a_device_stands_for_each_interface() {
        let two = "interfaces = [\"lan0\", \"lan1\"]";
        let devices = "devices = [\"0000:01:00.0\", \"net_af_packet0,iface=eth1\"]";
        let config = parse(two, devices).unwrap();
        let Dpdk { devices: found, huge_pages, memory_mb, longest_nap, threads } = config.dpdk;
        assert_eq!(found, ["0000:01:00.0", "net_af_packet0,iface=eth1"]);
        assert_eq!((huge_pages, memory_mb, longest_nap), (true, 256, Duration::from_micros(200)));
        assert_eq!(threads, 1);
        assert_eq!(config.balancer.mode, XdpMode::Generic);
        let more = "huge_pages = false\nmemory_mb = 86\nlongest_nap = \"0s\"\nthreads = 2\n";
        let dpdk = parse(two, &format!("{more}{devices}")).unwrap().dpdk;
        assert_eq!(
            (dpdk.huge_pages, dpdk.memory_mb, dpdk.longest_nap, dpdk.threads),
            (false, 86, Duration::ZERO, 2)
        );
    }

    #[test]
    fn what_is_wrong_is_told_where_it_stands() {
        let one = "interfaces = [\"lan0\"]";
        let device = "devices = [\"net_ring0\"]";
        for (balancer, dpdk, line, wanted) in [
            (one, "devices = []", 5, "0 devices for 1 interface;"),
            (one, "", 4, "0 devices for 1 interface;"),
            (one, "devices = [\"net_ring0\", \"net_ring1\"]", 5, "2 devices for 1 interface;"),
            (
                one,
                "devices = [\"net_ring0,a=1\", \"net_ring0\"]",
                5,
                "\"net_ring0\" is there twice",
            ),
            (one, "devices = [\"net ring0\"]", 5, "is no device; give DPDK's device arguments"),
            (one, "devices = [\",iface=eth0\"]", 5, "is no device"),
            ("interfaces = [\"lan0\", \"lan1\"]", device, 5, "1 device for 2 interfaces"),
            (one, "memory_mb = 63\ndevices = [\"net_ring0\"]", 5, "give 64..65536"),
            (one, "memory_mb = 64\ndevices = [\"net_ring0\"]\nthreads = 5", 5, "give 152..65536"),
            (one, "longest_nap = \"1s\"\ndevices = [\"net_ring0\"]", 5, "give 0s to 10ms"),
            (one, "threads = 6\ndevices = [\"net_ring0\"]", 5, "give 1..5"),
            ("interfaces = [\"lan0\"]\nmode = \"native\"", device, 4, "there is no native XDP"),
            ("interfaces = [\"lan0\"]\nfollow_flows = 64", device, 4, "user space (dpdk) follows"),
        ] {
            let said = parse(balancer, dpdk).unwrap_err();
            let place = format!("weir.toml:{line}: ");
            assert!(said.contains(&place) && said.contains(wanted), "{dpdk}: {said}");
        }
    }

    /// What is no device is told as that, and not as one too few.
    #[test]
    fn a_device_that_is_none_is_counted_all_the_same() {
        for device in ["bla bla", ""] {
            let devices = format!("devices = [\"{device}\"]");
            let said = parse("interfaces = [\"lan0\"]", &devices).unwrap_err();
            assert!(said.contains("is no device") && !said.contains("devices for"), "{said}");
        }
    }
}
