//! The kernel and the rights of this process.

#![forbid(unsafe_code)]

use std::path::Path;

use nix::sys::statfs::statfs;

use super::{Finding, read};

const OLDEST: (u32, u32) = (5, 15);
/// Type of the BPF file system in `statfs` (linux/magic.h).
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Number of the capability in a mask (linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_BPF: u32 = 39;
const CAP_PERFMON: u32 = 38;

pub(super) fn examine(findings: &mut Vec<Finding>) {
    let status = read("/proc/thread-self/status").unwrap_or_default();
    findings.push(privileges(effective(&status)));
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    findings.push(kernel(&release));
    findings.push(btf(Path::new("/sys/kernel/btf/vmlinux").exists()));
    findings.push(bpffs("/sys/fs/bpf"));
    findings.push(jit(read("/proc/sys/net/core/bpf_jit_enable").as_deref()));
}

/// The effective capabilities in a status file of /proc.
pub(super) fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

pub(super) fn privileges(mask: u64) -> Finding {
    let has = |cap: u32| mask & (1 << cap) != 0;
    let mut missing = Vec::new();
    if !has(CAP_BPF) && !has(CAP_SYS_ADMIN) {
        missing.push("CAP_BPF");
    }
    if !has(CAP_NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    if !missing.is_empty() {
        return Finding::fail(
            "privileges",
            format!("without {}", missing.join(" and ")),
            "run as root, or with AmbientCapabilities=CAP_BPF CAP_NET_ADMIN CAP_NET_RAW CAP_PERFMON in the unit",
        );
    }
    if !has(CAP_NET_RAW) {
        return Finding::warn(
            "privileges",
            "without CAP_NET_RAW: backends cannot be probed",
            "run weir doctor as root",
        );
    }
    if !has(CAP_PERFMON) && !has(CAP_SYS_ADMIN) {
        return Finding::warn(
            "privileges",
            "without CAP_PERFMON: frames that are lost on their way out are not counted",
            "add CAP_PERFMON to AmbientCapabilities= in the unit",
        );
    }
    Finding::ok("privileges", "BPF programs can be loaded and attached")
}

pub(super) fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    let Some(version) = number().zip(number()) else {
        return Finding::warn(
            "kernel",
            format!("version {release:?} is not understood"),
            "weir needs Linux 5.15 or newer",
        );
    };
    if version < OLDEST {
        return Finding::fail(
            "kernel",
            format!("Linux {release}"),
            "weir needs Linux 5.15 or newer",
        );
    }
    Finding::ok("kernel", format!("Linux {release}"))
}

pub(super) fn btf(present: bool) -> Finding {
    if present {
        return Finding::ok("btf", "the kernel describes its types");
    }
    Finding::fail(
        "btf",
        "/sys/kernel/btf/vmlinux is not there",
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y; distributions have it",
    )
}

fn bpffs(path: &str) -> Finding {
    let mounted = statfs(path).is_ok_and(|fs| fs.filesystem_type().0 == BPF_FS_MAGIC);
    if mounted {
        return Finding::ok("bpffs", format!("mounted at {path}"));
    }
    Finding::fail(
        "bpffs",
        format!("not mounted at {path}: forwarding would end with the control plane"),
        format!("mount -t bpf bpf {path}"),
    )
}

pub(super) fn jit(setting: Option<&str>) -> Finding {
    match setting {
        Some("0") => Finding::warn(
            "jit",
            "the BPF compiler is off: every packet costs several times as much",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Some(_) => Finding::ok("jit", "the BPF compiler is on"),
        // The file is in the first network namespace only.
        None => Finding::ok("jit", "not visible in this network namespace"),
    }
}
