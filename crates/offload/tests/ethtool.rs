//! The requests that we would send to a card, against those of Debian's `ethtool`, byte for byte. That program
//! runs as it is; a library before its own takes down what it asks the kernel's `SIOCETHTOOL`, and says that it
//! was done, as no card here takes rules.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use weir_offload::ntuple::{self, Device, REQUEST_BYTES};
use weir_offload::{Answered, Location, Queue, Refusal, Rule, Rules, Serial};
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

/// A driver that takes rules: three stand there, at places 3, 7 and 40, and its table of indirection has one row for
/// each number in WEIR_SPREAD. Of a rule that is not there it says one thing at one place, and another at the next, as
/// drivers do; that at place 50 never goes.
const DRIVER: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int there[64] = { [3] = 1, [7] = 1, [40] = 1 };

static int no(int why) { errno = why; return -1; }

static int count(void)
{
    int all = 0;
    for (int at = 0; at < 64; at++)
        all += there[at];
    return all;
}

static int spread(struct ethtool_rxfh_indir *table)
{
    const char *rows = getenv("WEIR_SPREAD");
    __u32 size = strlen(rows);
    if (!size)
        return no(EOPNOTSUPP);
    if (table->size && table->size != size)
        return no(EINVAL);
    for (__u32 at = 0; at < table->size; at++)
        table->ring_index[at] = rows[at] - '0';
    table->size = size;
    return 0;
}

int ioctl(int fd, unsigned long number, ...)
{
    va_list rest;
    va_start(rest, number);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (number != SIOCETHTOOL)
        return syscall(SYS_ioctl, fd, number, argument);
    struct ifreq *request = argument;
    struct ethtool_rxnfc *rules = (void *)request->ifr_data;
    switch (rules->cmd) {
    case ETHTOOL_GRXRINGS:
        rules->data = 8;
        return 0;
    case ETHTOOL_GRXCLSRLCNT:
        rules->rule_cnt = count();
        rules->data = 64;
        return 0;
    case ETHTOOL_GRXCLSRLALL: {
        __u32 all = 0;
        if (rules->rule_cnt < (__u32)count())
            return no(EMSGSIZE);
        for (int at = 0; at < 64; at++)
            if (there[at])
                rules->rule_locs[all++] = at;
        return 0;
    }
    case ETHTOOL_SRXCLSRLDEL:
        if (!there[rules->fs.location])
            return no(rules->fs.location % 2 ? ENOENT : EINVAL);
        if (rules->fs.location == 50)
            return no(EINVAL);
        there[rules->fs.location] = 0;
        return 0;
    case ETHTOOL_SRXCLSRLINS:
        there[rules->fs.location] = 1;
        return 0;
    case ETHTOOL_GRXFHINDIR:
        return spread((void *)rules);
    }
    return no(EOPNOTSUPP);
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
    library("listener", LISTENER)
}

/// A library of this source, in a directory of its own.
fn library(name: &str, text: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("ethtool-{name}"));
    std::fs::create_dir_all(&directory).expect("a directory of this test's own");
    let source = directory.join(format!("{name}.c"));
    let mut file = std::fs::File::create(&source).expect("it can be written");
    file.write_all(text.as_bytes()).expect("it can be written");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(directory.join(format!("{name}.so")))
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

/// Over the driver that takes rules, in a process of its own that has it.
fn beside_a_driver(spread: &str) {
    let mut device = Device::open("lo").expect("the driver has rules");
    assert_eq!((device.limits().rules, device.limits().queues), (64, 8));
    let first = device.leads_to_the_first_queue();
    if spread.bytes().all(|row| row == b'0') && !spread.is_empty() {
        first.expect("all come by the first queue");
    } else {
        let why = first.expect_err("others come by other queues").to_string();
        assert!(why.contains("ethtool -X lo equal 1"), "{why}");
    }
    assert_eq!(device.places_in_use().expect("it says so"), [3, 7, 40]);
    device.flush(32).expect("they go");
    assert_eq!(device.places_in_use().expect("it says so"), [40], "which is not ours");
    let flow = FlowKey::new(
        "10.0.0.1:4000".parse().expect("an address"),
        "10.9.0.1:80".parse().expect("an address"),
        Protocol::Tcp,
    );
    let mut answers = Vec::new();
    let rule = Rule { flow, queue: Queue(1) };
    // Also those that are not there any more.
    for at in [3, 4] {
        device.insert(Location(at), &rule, Serial(1)).expect("it is taken");
        assert_eq!(device.places_in_use().expect("it says so"), [at, 40]);
        device.delete(Location(at), Serial(2)).expect("it goes");
        device.delete(Location(at), Serial(3)).expect("it is gone");
        device.answers(&mut |answer| answers.push((answer.at, answer.serial, answer.what)));
        assert_eq!(answers, [1, 2, 3].map(|n| (Location(at), Serial(n), Answered::Done)));
        answers.clear();
    }
    // One that stays leads packets still, so nothing is answered.
    device.insert(Location(50), &rule, Serial(1)).expect("it is taken");
    let why = device.delete(Location(50), Serial(2)).expect_err("it does not go");
    assert!(matches!(&why, Refusal::Unsupported(why) if why.contains("EINVAL")), "{why}");
    device.answers(&mut |answer| answers.push((answer.at, answer.serial, answer.what)));
    assert_eq!(answers, [(Location(50), Serial(1), Answered::Done)]);
}

/// What a process has left that was killed goes, and no more; a card that spreads the rest is refused. It runs
/// itself once more for each kind of card, with the library before its own.
#[test]
fn over_a_driver() {
    if let Ok(spread) = std::env::var("WEIR_SPREAD") {
        return beside_a_driver(&spread);
    }
    let driver = library("driver", DRIVER).join("driver.so");
    for spread in ["0", "0000000000", "01", "0001", ""] {
        let done = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "over_a_driver"])
            .env("LD_PRELOAD", &driver)
            .env("WEIR_SPREAD", spread)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{spread:?}: {said}");
    }
}
