//! Namespaces that go with a value, and the sweeping of those whose process died.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Result;
use crate::{NetNs, link};

/// What all names begin with; kind, process number and a counter follow.
const PREFIX: &str = "weir";

/// A group of namespaces, called `weir<kind><pid>-<number><role>`. Dropping it removes them, and
/// with them their links.
#[derive(Debug)]
pub struct Namespaces {
    prefix: String,
    made: Vec<NetNs>,
}

impl Namespaces {
    /// An empty group of a kind (letters), after removing what processes that were killed left
    /// behind of the same kind.
    pub fn new(kind: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        sweep(kind);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { prefix: format!("{PREFIX}{kind}{}-{number}", std::process::id()), made: Vec::new() }
    }

    /// Makes a namespace, with its loopback interface up.
    ///
    /// # Errors
    /// If it cannot be made; this needs root.
    pub fn add(&mut self, role: &str) -> Result<NetNs> {
        self.add_all(&[role.to_owned()])?;
        let made = self.named(role);
        made.ip(&link::up("lo"))?;
        Ok(made)
    }

    /// Makes a namespace for each role, in one process; their loopback interfaces are down.
    ///
    /// # Errors
    /// If one cannot be made; this needs root.
    pub fn add_all(&mut self, roles: &[String]) -> Result<()> {
        let new: Vec<NetNs> = roles.iter().map(|role| self.named(role)).collect();
        let names: Vec<&str> = new.iter().map(NetNs::name).collect();
        // Before they are made: one may fail when others are there already.
        self.made.extend(new.iter().cloned());
        NetNs::create(&names)
    }

    /// The namespace of a role.
    pub fn named(&self, role: &str) -> NetNs {
        NetNs::named(format!("{}{role}", self.prefix))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        delete(&self.made);
    }
}

/// Removes namespaces; what cannot be removed is reported, and the rest is still removed.
fn delete(namespaces: &[NetNs]) {
    for namespace in namespaces {
        if let Err(error) = namespace.delete() {
            tracing::warn!("{error}");
        }
    }
}

fn sweep(kind: &str) {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let dead: Vec<NetNs> = names.filter(|name| is_dead(name, kind)).map(NetNs::named).collect();
    delete(&dead);
}

/// Whether a namespace of the kind belongs to a process that is gone.
fn is_dead(name: &str, kind: &str) -> bool {
    let rest = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(kind));
    let owner = rest.and_then(|rest| rest.split_once('-'));
    let owner = owner.and_then(|(pid, _)| pid.parse::<u32>().ok());
    owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_made_and_goes_with_its_value() {
        let mut group = Namespaces::new("own");
        group.add_all(&["a".into(), "b".into()]).expect("namespaces; this needs root");
        let all = [group.named("a"), group.named("b")];
        assert!(all.iter().all(|one| one.path().exists()));
        drop(group);
        assert!(!all.iter().any(|one| one.path().exists()));
    }

    #[test]
    fn only_dead_owners_are_swept() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (dead, alive) = (child.id(), std::process::id());
        child.wait().unwrap();
        let left = NetNs::named(format!("weirswp{dead}-0x"));
        NetNs::create(&[left.name()]).expect("a namespace; this needs root");
        let mut group = Namespaces::new("swp");
        assert!(!left.path().exists());
        let own = group.add("a").unwrap();
        drop(Namespaces::new("swp"));
        assert!(own.path().exists());
        assert!(!is_dead(&format!("weirswp{alive}-0a"), "swp"));
        assert!(is_dead(&format!("weirswp{dead}-0a"), "swp"));
        for other in ["weirswp", "weirswpx-0", "wlabcd-sw", "weirfib1"] {
            assert!(!is_dead(other, "swp"), "{other}");
        }
    }
}
