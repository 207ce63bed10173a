//! The kernel's memory that a data plane takes when it is made, against what there is.

use std::fs;
use std::path::Path;

/// No pool of tables is smaller (`limits.table_bytes`).
const FEWEST: u64 = 1 << 20;

/// What a data plane takes at once, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needed {
    /// All of it.
    pub bytes: u64,
    /// Of that the pool of tables, `limits.table_bytes`.
    pub table_bytes: u64,
}

impl Needed {
    /// What to do where so many bytes are available.
    pub fn advice(&self, available: Option<u64>) -> String {
        let Some(available) = available else {
            return "lower limits.table_bytes, or free memory".into();
        };
        let rest = self.bytes.saturating_sub(self.table_bytes);
        let room = available.saturating_sub(rest).min(self.table_bytes) / FEWEST * FEWEST;
        if room < FEWEST {
            return format!(
                "{available} bytes are available, and what other [limits] ask for takes {rest} of them: lower \
                 limits.table_bytes and those, or free memory"
            );
        }
        if room >= self.table_bytes {
            return format!(
                "{available} bytes are available, and not in pieces that are large enough: free memory, or lower \
                 limits.table_bytes"
            );
        }
        format!(
            "{available} bytes are available: set limits.table_bytes to {room} at most, or free memory"
        )
    }
}

/// Bytes that this process can have: what the machine has available, or what is left of a bound of its control
/// group, whichever is less. `None` if neither is known.
pub fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        left_in_group(Path::new("/sys/fs/cgroup"), Path::new(&path))
    });
    match (machine, group) {
        (Some(machine), Some(group)) => Some(machine.min(group)),
        (machine, group) => machine.or(group),
    }
}

/// `MemAvailable` of /proc/meminfo.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// What is left of the least bound of a control group and of those that it is in.
fn left_in_group(root: &Path, group: &Path) -> Option<u64> {
    let number = |at: &Path, name: &str| -> Option<u64> {
        fs::read_to_string(at.join(name)).ok()?.trim().parse().ok()
    };
    // Without a bound it reads "max".
    let left = group.ancestors().filter_map(|group| {
        let at = root.join(group);
        let bound = number(&at, "memory.max")?;
        Some(bound.saturating_sub(number(&at, "memory.current").unwrap_or(0)))
    });
    left.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_read() {
        let text = "MemTotal:        8000000 kB\nMemFree:  1 kB\nMemAvailable:     1024 kB\n";
        assert_eq!(available_in(text), Some(1 << 20));
        for text in ["", "MemAvailable: many kB\n", "MemAvailable: 5\n"] {
            assert_eq!(available_in(text), None, "{text}");
        }
    }

    /// The least bound counts, wherever above it stands.
    #[test]
    fn bounds_of_control_groups_are_read() {
        let name = format!("weir-memory-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let group = Path::new("system.slice/weir.service");
        fs::create_dir_all(root.join(group)).expect("a directory");
        let write = |at: &str, name: &str, text: &str| {
            fs::write(root.join(at).join(name), text).expect("a file");
        };
        assert_eq!(left_in_group(&root, group), None);
        write("system.slice/weir.service", "memory.max", "max\n");
        assert_eq!(left_in_group(&root, group), None);
        write("system.slice", "memory.max", "9000\n");
        write("system.slice", "memory.current", "2000\n");
        assert_eq!(left_in_group(&root, group), Some(7000));
        write("system.slice/weir.service", "memory.max", "5000\n");
        write("system.slice/weir.service", "memory.current", "6000\n");
        assert_eq!(left_in_group(&root, group), Some(0));
        fs::remove_dir_all(&root).expect("it is there");
    }

    /// What is advised fits, and is no more than was asked for.
    #[test]
    fn advice_names_a_size_that_fits() {
        const MIB: u64 = 1 << 20;
        let needed = Needed { bytes: 300 * MIB, table_bytes: 160 * MIB };
        let said = needed.advice(Some(200 * MIB + 5));
        assert!(said.contains(&format!("table_bytes to {} at most", 60 * MIB)), "{said}");
        let said = needed.advice(Some(140 * MIB + 5));
        assert!(said.contains("other [limits]") && !said.contains("at most"), "{said}");
        assert!(needed.advice(Some(400 * MIB)).contains("in pieces"));
        assert!(needed.advice(None).contains("limits.table_bytes"));
    }
}
