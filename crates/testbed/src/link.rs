//! Lines of `ip` for links, addresses and neighbours, and running them.
//!
//! A laboratory makes thousands of settings; collected as lines they take one process for each
//! namespace. So the functions here write a line each, with its line end, and [`ip`] and
//! [`NetNs::ip`] run any number of them.

use std::fmt;
use std::net::IpAddr;
use std::process::Command;

use crate::NetNs;
use crate::error::{Error, Result};
use crate::process;

/// Runs lines of `ip` in the namespace of the calling thread, in one process.
///
/// # Errors
/// [`Error::Command`] with what `ip` said to the first line that it refused.
pub fn ip(lines: &str) -> Result<()> {
    batch(Command::new("ip"), lines)
}

pub(crate) fn batch(mut ip: Command, lines: &str) -> Result<()> {
    ip.args(["-batch", "-"]);
    process::run(ip, &format!("{lines}\n")).map(drop).map_err(|error| in_words(error, lines))
}

/// What `ip` said, or which devices the kernel has not, where that is why it failed.
fn in_words(error: Error, lines: &str) -> Error {
    let Error::Command { stderr, .. } = &error else {
        return error;
    };
    match unknown_type(stderr, lines) {
        Some((kind, line)) => Error::NoDevices { kind: kind.to_owned(), line: line.to_owned() },
        None => error,
    }
}

/// The type of device that the kernel does not know, and the line that asked for it.
fn unknown_type<'a>(said: &str, lines: &'a str) -> Option<(&'a str, &'a str)> {
    if !said.contains("Unknown device type") {
        return None;
    }
    let number = said.split("Command failed -:").nth(1)?;
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    let line = lines.lines().nth(digits.parse::<usize>().ok()?.checked_sub(1)?)?;
    Some((line.split(" type ").nth(1)?.split_whitespace().next()?, line))
}

/// One end of a veth pair that is to be made.
#[derive(Clone, Debug)]
pub struct End {
    name: String,
    netns: Option<String>,
    mac: Option<[u8; 6]>,
    queues: Option<u16>,
}

impl End {
    /// An interface of this name, where `ip` runs.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), netns: None, mac: None, queues: None }
    }

    /// In this namespace instead.
    pub fn inside(mut self, netns: &NetNs) -> Self {
        self.netns = Some(netns.name().to_owned());
        self
    }

    /// With this hardware address instead of a random one.
    pub fn mac(mut self, mac: [u8; 6]) -> Self {
        self.mac = Some(mac);
        self
    }

    /// With so many queues in each direction, instead of one for each CPU. An AF_XDP socket serves
    /// one queue.
    pub fn queues(mut self, queues: u16) -> Self {
        self.queues = Some(queues);
        self
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(mac) = self.mac {
            write!(f, " address {}", mac_text(mac))?;
        }
        if let Some(netns) = &self.netns {
            write!(f, " netns {netns}")?;
        }
        if let Some(queues) = self.queues {
            write!(f, " numrxqueues {queues} numtxqueues {queues}")?;
        }
        Ok(())
    }
}

/// Makes a veth pair; both ends are down.
pub fn veth([a, b]: &[End; 2]) -> String {
    format!("link add {a} type veth peer name {b}\n")
}

/// Makes a tap with several queues, which is there without a process that has one; it is down.
pub fn tap(name: &str, mac: [u8; 6]) -> String {
    let mac = mac_text(mac);
    format!("tuntap add dev {name} mode tap multi_queue\nlink set {name} address {mac}\n")
}

/// Switches an interface on.
pub fn up(interface: &str) -> String {
    format!("link set {interface} up\n")
}

/// Switches an interface off.
pub fn down(interface: &str) -> String {
    format!("link set {interface} down\n")
}

/// Gives an interface an address, with the length of its prefix: `10.0.0.1/24`. IPv6 addresses are
/// usable at once: duplicate address detection would take a second or two.
pub fn address(address: &str, interface: &str) -> String {
    let nodad = if address.contains(':') { " nodad" } else { "" };
    format!("addr add {address} dev {interface}{nodad}\n")
}

/// Tells an interface the hardware address of a neighbour, for good: nobody is asked.
pub fn neighbour(address: IpAddr, mac: [u8; 6], interface: &str) -> String {
    format!("neigh replace {address} lladdr {} dev {interface} nud permanent\n", mac_text(mac))
}

/// A hardware address as `ip` reads it.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_a_kernel_has_not_are_named() {
        let line = "link add link eth0 name eth0.2 type vlan id 2";
        let lines = format!("link set eth0 up\n{line}\nlink set eth0.2 up\n");
        let failed = |stderr: &str| Error::Command {
            command: "ip -batch -".into(),
            status: "exit status: 1".into(),
            stderr: stderr.into(),
        };
        let said = "Error: Unknown device type.\nCommand failed -:2";
        let error = in_words(failed(said), &lines);
        assert!(matches!(&error, Error::NoDevices { kind, .. } if kind == "vlan"), "{error}");
        assert!(error.to_string().contains(line), "{error}");
        let other = "Cannot find device \"eth0\"\nCommand failed -:1";
        assert!(matches!(in_words(failed(other), &lines), Error::Command { .. }));
        assert!(matches!(in_words(failed("Unknown device type"), &lines), Error::Command { .. }));
    }

    #[test]
    fn lines_are_what_ip_reads() {
        let ends = [
            End::new("p1").queues(1),
            End::new("eth0").inside(&NetNs::named("n")).mac([2, 0, 0, 0, 0, 0xab]),
        ];
        assert_eq!(
            veth(&ends),
            "link add p1 numrxqueues 1 numtxqueues 1 type veth peer name eth0 \
             address 02:00:00:00:00:ab netns n\n"
        );
        assert_eq!(
            tap("eth0", [2, 0, 0, 0, 0, 1]),
            "tuntap add dev eth0 mode tap multi_queue\nlink set eth0 address 02:00:00:00:00:01\n"
        );
        assert_eq!(address("10.0.0.1/24", "eth0"), "addr add 10.0.0.1/24 dev eth0\n");
        assert_eq!(address("fd00::1/64", "eth0"), "addr add fd00::1/64 dev eth0 nodad\n");
        assert_eq!(
            neighbour("10.0.0.2".parse().unwrap(), [2, 0, 0, 0, 0, 1], "eth0"),
            "neigh replace 10.0.0.2 lladdr 02:00:00:00:00:01 dev eth0 nud permanent\n"
        );
    }
}
