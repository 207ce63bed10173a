//! Network namespaces for tests. They need root, as weir does.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CloneFlags, setns};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace that goes away with the value.
pub(crate) struct NetNs {
    pub(crate) name: String,
}

impl NetNs {
    /// A namespace with its loopback up.
    pub(crate) fn new(role: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-{role}-{}-{number}", std::process::id());
        ip(&format!("netns add {name}"));
        let ns = Self { name };
        ns.ip("link set lo up");
        ns
    }

    /// Runs `ip` with words inside.
    pub(crate) fn ip(&self, words: &str) {
        ip(&format!("-n {} {words}", self.name));
    }

    /// Writes a sysctl (path below /proc/sys) inside.
    pub(crate) fn sysctl(&self, path: &str, value: &str) {
        let path = format!("/proc/sys/{path}");
        let value = value.to_owned();
        self.run(move || std::fs::write(path, value).unwrap());
    }

    /// Runs a function on a thread that lives inside, and returns what it returns.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        thread::scope(|scope| {
            let worker = scope.spawn(move || {
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            worker.join().unwrap()
        })
    }

    /// Joins two namespaces with a veth pair; both ends are called `eth0` and are up.
    pub(crate) fn join(&self, other: &Self) {
        let (a, b) = (&self.name, &other.name);
        ip(&format!("-n {a} link add eth0 type veth peer name eth0 netns {b}"));
        for ns in [self, other] {
            // Duplicate address detection would keep addresses unusable for a second or two.
            ns.sysctl("net/ipv6/conf/eth0/accept_dad", "0");
            ns.ip("link set eth0 up");
        }
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Runs `ip` with words.
pub(crate) fn ip(words: &str) {
    let output =
        Command::new("ip").args(words.split_whitespace()).output().expect("ip of iproute2 runs");
    assert!(
        output.status.success(),
        "ip {words}: {} (these tests need root)",
        String::from_utf8_lossy(&output.stderr)
    );
}
