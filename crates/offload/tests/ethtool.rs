//! The requests that we would send to a card, against those of Debian's `ethtool`, byte for byte. That program
//! runs as it is; a library before its own takes down what it asks the kernel's `SIOCETHTOOL`, and says that it
//! was done, as no card here takes rules.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use weir_offload::ntuple::{self, Device, REQUEST_BYTES};
use weir_offload::{Location, Queue, Refusal, Rule};
use weir_wire::{FlowKey, Protocol};

const LISTENER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The real one, but for requests about rules: these are appended to a file. */
int ioctl(int fd, unsigned long number, ...)
{
    va_list rest;
    va_start(rest, number);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (number == SIOCETHTOOL) {
        struct ifreq *request = argument;
        struct ethtool_rxnfc *rules = (void *)request->ifr_data;
        if (rules->cmd == ETHTOOL_SRXCLSRLINS || rules->cmd == ETHTOOL_SRXCLSRLDEL) {
            int file = open(getenv("WEIR_LISTENER"), O_WRONLY | O_APPEND | O_CREAT, 0600);
            if (file < 0 || write(file, rules, sizeof(*rules)) != sizeof(*rules))
                abort();
            close(file);
            return 0;
        }
    }
    return syscall(SYS_ioctl, fd, number, argument);
}
"#;

/// What the kernel reads of a request: the command and the rule; of a deletion, its place. The rest `ethtool`
/// leaves as its stack had it.
const READ_OF_INSERT: [Range<usize>; 2] = [0..4, 16..184];
const READ_OF_DELETE: [Range<usize>; 2] = [0..4, 176..180];

/// What `ethtool` asks the kernel when it is given these words.
fn asked(directory: &std::path::Path, words: &[&str]) -> Vec<u8> {
    let heard = directory.join("heard");
    let _ = std::fs::remove_file(&heard);
    let status = Command::new("ethtool")
        .args(words)
        .env("LD_PRELOAD", directory.join("listener.so"))
        .env("WEIR_LISTENER", &heard)
        .status()
        .expect("ethtool (scripts/setup) runs");
    assert!(status.success(), "ethtool {words:?}: {status}");
    std::fs::read(heard).expect("it has asked something")
}

fn listener() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ethtool");
    std::fs::create_dir_all(&directory).expect("a directory of this test's own");
    let source = directory.join("listener.c");
    let mut file = std::fs::File::create(&source).expect("it can be written");
    file.write_all(LISTENER.as_bytes()).expect("it can be written");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(directory.join("listener.so"))
        .arg(&source)
        .status()
        .expect("there is a C compiler");
    assert!(built.success());
    directory
}

#[test]
fn requests_are_those_of_ethtool() {
    let directory = listener();
    let cases = [
        ("10.0.0.1", "10.9.0.1", "tcp4", 4000, 80, 3, 17),
        ("192.0.2.255", "198.51.100.7", "tcp4", 65535, 1, 0, 0),
        ("2001:db8::1", "fd00::ff", "tcp6", 1024, 443, 63, 8191),
        ("203.0.113.9", "10.9.0.1", "udp4", 53, 5353, 15, 2047),
        ("fd00::1", "2001:db8:ffff::", "udp6", 1, 65535, 1, 1),
    ];
    for (from, to, kind, source, port, queue, place) in cases {
        let protocol = if kind.starts_with("tcp") { Protocol::Tcp } else { Protocol::Udp };
        let end = |address: &str, port| (address.parse::<std::net::IpAddr>().unwrap(), port).into();
        let flow = FlowKey::new(end(from, source), end(to, port), protocol);
        let rule = Rule { flow, queue: Queue(queue) };
        let number = |n: u32| n.to_string();
        let (source, port) = (number(source.into()), number(port.into()));
        let (queue, loc) = (number(queue.into()), number(place));
        let words = ["-N", "lo", "flow-type", kind, "src-ip", from, "dst-ip", to, "src-port"];
        let more = [&*source, "dst-port", &*port, "action", &*queue, "loc", &*loc];
        let theirs = asked(&directory, &[&words[..], &more[..]].concat());
        let ours = ntuple::insert(Location(place), &rule).expect("it is of one family");
        assert_eq!(theirs.len(), REQUEST_BYTES);
        for read in READ_OF_INSERT {
            assert_eq!(theirs[read.clone()], ours[read], "{kind} {from} -> {to}");
        }
        let theirs = asked(&directory, &["-N", "lo", "delete", &loc]);
        let ours = ntuple::delete(Location(place));
        for read in READ_OF_DELETE {
            assert_eq!(theirs[read.clone()], ours[read], "delete {place}");
        }
    }
}

/// What this machine's devices say: the loopback device takes no rules, and one that is not there is not there.
#[test]
fn a_device_without_rules_says_so() {
    let lo = Device::open("lo").expect_err("it has no rules");
    assert!(matches!(&lo, Refusal::Unsupported(why) if why.contains("ntuple on")), "{lo}");
    let none = Device::open("weirnone0").expect_err("there is none");
    assert!(matches!(&none, Refusal::Device(why) if why.contains("weirnone0")), "{none}");
    for name in ["", "a-name-of-many-letters"] {
        assert!(matches!(Device::open(name), Err(Refusal::Device(_))), "{name:?}");
    }
}
