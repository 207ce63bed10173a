//! What can go wrong with DPDK, and what to do about it.

/// Why there are no ports, or one is of no more use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The binary has no DPDK.
    #[error(
        "this binary is built without DPDK: install libdpdk-dev, and build with `--features dpdk`"
    )]
    NotBuilt,
    /// There are too few huge pages.
    #[error(
        "DPDK wants {wanted} MB in huge pages and {free} MB are free: `sysctl vm.nr_hugepages={pages}`, or go \
         without huge pages"
    )]
    HugePages {
        /// Megabytes.
        wanted: u64,
        /// Megabytes.
        free: u64,
        /// How many of the machine's would do.
        pages: u64,
    },
    /// DPDK does not start.
    #[error("DPDK does not start: {0}; its own words are on standard error")]
    Start(String),
    /// It was started otherwise before.
    #[error("DPDK has started with other memory in this process: it starts once")]
    Started,
    /// No name of a device.
    #[error("device {0:?}: give DPDK's device arguments, as net_af_packet0,iface=eth0")]
    Device(String),
    /// No driver has this name.
    #[error(
        "device {device:?}: DPDK has no driver for it: check the name (net_af_packet0, net_tap0, net_ring0, \
         net_null0), or install the driver's package (librte-net-...)"
    )]
    Driver {
        /// Device arguments.
        device: String,
    },
    /// A card is not where DPDK could find it.
    #[error(
        "device {device:?}: DPDK has found no card there: `dpdk-devbind.py --status` shows those that are and \
         their drivers; a card needs vfio-pci (`dpdk-devbind.py -b vfio-pci ADDRESS`), and its driver's package \
         (librte-net-...)"
    )]
    Card {
        /// Device arguments.
        device: String,
    },
    /// An interface is no tap, or none that DPDK can have.
    #[error(
        "interface {interface} is to stand for a device in the kernel, and {why}: `ip tuntap add dev \
         {interface} mode tap multi_queue` makes one, which then gets the host's addresses and routes"
    )]
    Tap {
        /// Its name.
        interface: String,
        /// What is wrong with it.
        why: String,
    },
    /// The host would answer at an interface itself what is the plane's to answer.
    #[error(
        "device {device:?}: {interface} is an interface of this host, which would answer by itself: {why}; {mend}"
    )]
    Answers {
        /// Device arguments.
        device: String,
        /// Its name.
        interface: String,
        /// What is set there.
        why: &'static str,
        /// What to do.
        mend: String,
    },
    /// An interface that a device is to be at is not there.
    #[error("device {device:?}: there is no interface {interface}: `ip link` shows those that are")]
    Interface {
        /// Device arguments.
        device: String,
        /// Its name.
        interface: String,
    },
    /// It is in use.
    #[error("device {device:?} is in use: end what has it, or give another number")]
    Busy {
        /// Device arguments.
        device: String,
    },
    /// The driver refuses.
    #[error(
        "device {device:?}: {step} is refused: {why}; the driver's own words are on standard error"
    )]
    Refused {
        /// Device arguments.
        device: String,
        /// What was asked of the driver.
        step: &'static str,
        /// As DPDK says it.
        why: String,
    },
    /// It has fewer queues than threads want.
    #[error(
        "device {device:?} has too few queues ({there}, and one for each of {wanted} threads is wanted): run fewer \
         threads; or ask its driver for more, as net_af_packet0,iface=eth0,qpairs={wanted}"
    )]
    Queues {
        /// Device arguments.
        device: String,
        /// How many are wanted, one for each thread.
        wanted: u16,
        /// How many there are.
        there: u16,
    },
    /// There is no room for buffers.
    #[error(
        "no room for {count} buffers of {room} bytes: {why}; give DPDK more memory, or fewer buffers"
    )]
    Buffers {
        /// How many.
        count: u32,
        /// Bytes of each.
        room: u16,
        /// As DPDK says it.
        why: String,
    },
    /// A thread cannot be DPDK's.
    #[error("this thread cannot use DPDK: {0}; at most 128 can at once")]
    Thread(String),
    /// A frame cannot be put into a port.
    #[error("a frame of {bytes} bytes does not fit: {why}")]
    Frame {
        /// Its length.
        bytes: usize,
        /// As DPDK says it.
        why: String,
    },
    /// All devices have gone away.
    #[error("device {device:?} has gone away: bring it back and start the plane again")]
    Gone {
        /// Device arguments.
        device: String,
    },
}
