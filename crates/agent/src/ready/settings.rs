//! Settings of the kernel that a backend needs: what they are, and what they ought to be.

use crate::error::{Context, Error};
use std::fs;
use std::path::Path;

const ROOT: &str = "/proc/sys/net";

/// A setting that is not as a backend needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wrong {
    /// Below /proc/sys/net.
    pub(super) name: String,
    pub(super) is: String,
    pub(super) wanted: &'static str,
    pub(super) why: &'static str,
}

pub(super) fn read(name: &str) -> Result<String, Error> {
    let path = Path::new(ROOT).join(name);
    let text = fs::read_to_string(&path).context(|| format!("read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

pub(super) fn write(name: &str, value: &str) -> Result<(), Error> {
    let path = Path::new(ROOT).join(name);
    fs::write(&path, value).context(|| format!("write {value} to {}", path.display()))
}

pub(super) fn exists(name: &str) -> bool {
    Path::new(ROOT).join(name).exists()
}

/// What counts, of one interface.
fn of(interface: &str, setting: &str) -> Option<u32> {
    read(&format!("ipv4/conf/{interface}/{setting}")).ok()?.parse().ok()
}

/// All settings that are not as a backend of IPv4 services needs them. `incoming`: interfaces by which packets
/// for the services come.
pub(super) fn wrong(incoming: &[String]) -> Result<Vec<Wrong>, Error> {
    let directory = Path::new(ROOT).join("ipv4/conf");
    let entries = fs::read_dir(&directory).context(|| format!("read {}", directory.display()))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut all: Vec<[Option<u32>; 3]> = Vec::new();
    let mut interfaces = Vec::new();
    for name in names.filter(|name| !["all", "default", "lo"].contains(&name.as_str())) {
        all.push(["arp_ignore", "arp_announce", "rp_filter"].map(|one| of(&name, one)));
        interfaces.push(name);
    }
    let of_all = |setting| of("all", setting).unwrap_or(0);
    let values =
        |which: usize| interfaces.iter().zip(all.iter().map(move |one| one[which].unwrap_or(0)));
    let mut found = Vec::new();
    found.extend(silent(of_all("arp_ignore"), values(0)));
    found.extend(announced(of_all("arp_announce"), values(1)));
    let filtered = values(2).filter(|(name, _)| incoming.contains(name));
    found.extend(filters(of_all("rp_filter"), filtered));
    Ok(found)
}

/// Whether a host with this arp_ignore says nothing of addresses of its loopback device. 1 and 2 answer for
/// addresses of the interface only; 3 not for those of host scope; 8 never; of the others the kernel knows
/// nothing, and answers.
fn is_silent(value: u32) -> bool {
    matches!(value, 1..=3 | 8)
}

/// The larger one of `all` and the interface's counts.
fn silent<'a>(all: u32, each: impl Iterator<Item = (&'a String, u32)>) -> Vec<Wrong> {
    let why = "so that routers do not hear of the services' addresses from this backend";
    let loud: Vec<_> = each.filter(|(_, value)| !is_silent(all.max(*value))).collect();
    if loud.is_empty() {
        return Vec::new();
    }
    let wrong = |name: String, is: u32| Wrong { name, is: is.to_string(), wanted: "1", why };
    let mut found = Vec::new();
    if !is_silent(all) {
        found.push(wrong("ipv4/conf/all/arp_ignore".into(), all));
    }
    let other = loud.into_iter().filter(|(_, value)| !is_silent((*value).max(1)));
    found.extend(other.map(|(name, value)| wrong(format!("ipv4/conf/{name}/arp_ignore"), value)));
    found
}

fn announced<'a>(all: u32, mut each: impl Iterator<Item = (&'a String, u32)>) -> Option<Wrong> {
    each.any(|(_, value)| all.max(value) < 2).then(|| Wrong {
        name: "ipv4/conf/all/arp_announce".into(),
        is: all.to_string(),
        wanted: "2",
        why: "so that this backend asks for its routers from its own address",
    })
}

/// 1 is strict, 2 is loose, and the larger one counts: so the loose one of the interface is enough.
fn filters<'a>(all: u32, each: impl Iterator<Item = (&'a String, u32)>) -> Vec<Wrong> {
    let strict = each.filter(|(_, value)| all.max(*value) == 1);
    let one = |(name, value): (&String, u32)| Wrong {
        name: format!("ipv4/conf/{name}/rp_filter"),
        is: value.to_string(),
        wanted: "2",
        why: "so that packets of clients may come by another interface than answers leave by",
    };
    strict.map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(values: &[(&str, u32)]) -> Vec<(String, u32)> {
        values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    fn names(found: Vec<Wrong>) -> Vec<String> {
        found.into_iter().map(|one| format!("{} {} {}", one.name, one.is, one.wanted)).collect()
    }

    #[test]
    fn the_larger_one_of_all_and_the_interfaces_counts() {
        let each = named(&[("eth0", 0), ("eth1", 2)]);
        let pairs = || each.iter().map(|(name, value)| (name, *value));
        assert_eq!(names(silent(0, pairs())), ["ipv4/conf/all/arp_ignore 0 1"]);
        assert_eq!(names(silent(1, pairs())), [""; 0]);
        assert_eq!(names(silent(8, pairs())), [""; 0]);
        assert_eq!(announced(0, pairs()).unwrap().name, "ipv4/conf/all/arp_announce");
        assert_eq!(announced(2, pairs()), None);
        assert_eq!(names(filters(1, pairs())), ["ipv4/conf/eth0/rp_filter 0 2"]);
        assert_eq!(names(filters(0, pairs())), [""; 0]);
        assert_eq!(names(filters(2, pairs())), [""; 0]);
    }

    #[test]
    fn an_interface_that_answers_whatever_all_says_is_set_itself() {
        let each = named(&[("eth0", 5)]);
        let pairs = || each.iter().map(|(name, value)| (name, *value));
        let both = ["ipv4/conf/all/arp_ignore 0 1", "ipv4/conf/eth0/arp_ignore 5 1"];
        assert_eq!(names(silent(0, pairs())), both);
        assert_eq!(names(silent(1, pairs())), both[1..]);
        let quiet = named(&[("eth0", 1), ("eth1", 2)]);
        assert_eq!(names(silent(0, quiet.iter().map(|(name, value)| (name, *value)))), [""; 0]);
    }
}
