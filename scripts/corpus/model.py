"""What a packet must become, said by the RFCs and by the pages under docs/, and the files that say it."""

import ipaddress
from packet import Eth, Gre, Gue, Ip, Ip6, Packet, Udp, Vlan, address

OUR_MAC, CLIENT_MAC, SOURCE_MAC = "02:00:00:00:00:02", "02:00:00:00:00:01", "02:00:00:00:00:09"
CLIENT, VIP = "10.1.0.1", "10.0.0.2"
CLIENT6, VIP6 = "2001:db8:1::1", "2001:db8::2"
NOBODY, NOBODY6 = "10.0.0.99", "2001:db8::99"
# Interfaces of set-ups: the one that frames come in by, another, a VLAN over that, and one without a way.
HERE, OTHER, TAGGED, REFUSED = 0, 5, 77, 78
TAG_ID = 0x123
DEVICES = [{"interface": TAGGED, "lower": HERE, "tag": "81000123"}, {"interface": REFUSED, "refused": True}]
M64 = (1 << 64) - 1


def backend_mac(number):
    return f"02:00:00:01:00:{number:02x}"


def backend(number, addr="192.0.2.10", interface=HERE, tunnel=None, **other):
    made = {"name": f"b{number}", "address": addr, "interface": interface, **other}
    if not other.get("unknown_hop"):
        made |= {"mac": backend_mac(number), "source_mac": SOURCE_MAC}
    if tunnel:
        made["tunnel"] = tunnel
    return made


def service(addr, port, protocol="tcp", method="concury", backends=("b1",), **other):
    made = {"address": addr, "protocol": protocol, "method": method, "backends": list(backends), **other}
    if port is not None:
        made["port"] = port
    return made


def eth(**other):
    return Eth(**{"dst": OUR_MAC, "src": CLIENT_MAC, **other})


def length_of(packet):
    """Bytes from the IP header on, as the header says."""
    at = packet.l3()
    packet.bytes()
    ip = packet.layers[at]
    return ip.len if isinstance(ip, Ip) else 40 + ip.len


# docs/networks.md: tags.
def tags_of(packet):
    return [layer for layer in packet.layers if isinstance(layer, Vlan)]


def way_tags(packet, interface):
    """The tags that a frame leaves with: those it came with if it goes back as it came; else the way's,
    with the priority of its first."""
    before = tags_of(packet)
    if interface == TAGGED:
        first = before[0] if before else Vlan(id=0)
        return [Vlan(id=TAG_ID, prio=first.get("prio", 0), dei=first.get("dei", 0))]
    return []


def l2(packet, to):
    """Other MAC addresses, and the way's tag."""
    rest = [layer for layer in packet.layers[1:] if not isinstance(layer, Vlan)]
    interface = to.get("interface", HERE)
    tags = tags_of(packet) if interface == HERE else way_tags(packet, interface)
    tpids = {"tpid": 0x8100} if interface != HERE else {}
    tags = [tag.but(**tpids) for tag in tags]
    head = Eth(dst=to["mac"], src=to["source_mac"], type=packet.layers[0].get("type"))
    return Packet(head, *tags, *rest, cut=packet.cut, pad=packet.pad)


def spread(src, dst, ports):
    """crates/wire/src/spread.rs: 32 bits of a flow. Words as they stand in memory, little-endian."""
    word = lambda data: int.from_bytes(data, "little")
    src, dst, ports = address(src), address(dst), word(ports)
    high, low, to = (0, word(src), word(dst)) if len(src) == 4 else (word(src[:8]), word(src[8:]), word(dst[8:]))
    hash_ = (high ^ (low * 0xAEF17502108EF2D9 & M64) ^ to ^ ports) * 0x9E3779B97F4A7C15 & M64
    return ((hash_ ^ hash_ >> 32) * 0xD1B54A32D192ED03 & M64) >> 32


def tunnelled(packet, to):
    """docs/forwarding.md: the packet, with one less of TTL, in another one."""
    at = packet.l3()
    inner = packet.layers[at]
    v4 = isinstance(inner, Ip)
    whole = Packet(*packet.layers[at:]).bytes()
    if v4:
        start = 4 * inner.ihl
        tos, ttl = inner.get("tos", 0), {"ttl": inner.get("ttl", 64) - 1}
        # RFC 1624: as far as the checksum was wrong, it stays so.
        if inner.get("sum") is not None:
            more = inner.get("sum") + 0x100
            ttl["sum"] = (more + (more >= 0xFFFF)) & 0xFFFF
    else:
        start, tos, ttl = 40, inner.get("tc", 0), {"hlim": inner.get("hlim", 64) - 1}
    named = whole[start:start + 4] if v4 or inner.next in (6, 17, 132) else b""
    ports = named if len(named) == 4 else bytes(4)
    flow = spread(inner.get("src"), inner.get("dst"), ports)
    tunnel, over6 = to["tunnel"], ":" in to["address"]
    kind = tunnel["kind"]
    between = []
    if kind == "gre":
        between = [Gre()]
    elif kind in ("fou", "gue"):
        between = [Udp(sport=0xC000 | flow & 0x3FFF, dport=tunnel["port"], sum=0)]
        between += [Gue()] if kind == "gue" else []
    source = tunnel["source"]
    if over6:
        outer = Ip6(src=source, dst=to["address"], tc=tos, label=flow & 0xFFFFF,
                    next=17 if kind in ("fou", "gue") else None)
    else:
        number = int(ipaddress.ip_address(source)) | flow & ((1 << tunnel.get("spread", 0)) - 1)
        outer = Ip(src=str(ipaddress.ip_address(number)), dst=to["address"], tos=tos, ttl=64, df=1, id=0,
                   proto=17 if kind in ("fou", "gue") else None)
    head = Eth(dst=to["mac"], src=to["source_mac"])
    rest = [inner.but(**ttl), *packet.layers[at + 1:]]
    made = Packet(head, *way_tags(packet, to.get("interface", HERE)), outer, *between, *rest)
    # What padded the frame stays behind the packet, where no header counts it.
    made.pad = packet.pad
    return made


class Step:
    def __init__(self, **said):
        self.said = said


def sends(packet, to, new=False, out=None, **other):
    """It goes to a backend: as it is, or in its tunnel."""
    interface = to.get("interface", HERE)
    out = out or (tunnelled if to.get("tunnel") else l2)(packet, to)
    verdict = "redirect" if interface == OTHER else "transmit"
    return Step(packet=packet, verdict=verdict, backend=to["name"], new=new, bytes=length_of(packet), out=out,
                **other)


def lowers(step, packet):
    """The step with a packet in whose place another one comes out as if it had come."""
    return Step(**{**step.said, "packet": packet})


def passes(packet, reason, **other):
    return Step(packet=packet, verdict="pass", reason=reason, **other)


def drops(packet, reason, **other):
    return Step(packet=packet, verdict="drop", reason=reason, **other)


def change(**what):
    return Step(change=what)


class Book:
    """One file of cases."""

    def __init__(self, name, about):
        self.name, self.about = name, about
        self.setups, self.cases = {}, []

    def setup(self, name, backends, services, **other):
        self.setups[name] = {"backends": backends, "services": services, **other}
        return {made["name"]: made for made in backends}

    def case(self, name, rule, setup, shows, *steps, **other):
        assert setup in self.setups, setup
        self.cases.append({"name": name, "rule": rule, "setup": setup, "shows": shows, "steps": steps, **other})

    def text(self):
        out = [f"# {line}".rstrip() for line in self.about.splitlines()]
        out += ["# Written by scripts/corpus, which has the same cases as rules; README.md says what the words mean.", ""]
        for name, setup in self.setups.items():
            out.append(f"[setup.{name}]")
            out += [f"{key} = {toml(value)}" for key, value in setup.items() if key not in ("backends", "services")]
            for key in ("backends", "services"):
                out.append(f"{key} = [")
                out += [f"    {toml(value)}," for value in setup[key]]
                out.append("]")
            out.append("")
        for case in self.cases:
            out.append("[[case]]")
            steps = case["steps"]
            out += [f"{key} = {toml(value)}" for key, value in case.items() if key != "steps"]
            for step in steps:
                out.append("")
                out += ["[[case.step]]", *step_lines(step.said)]
            out.append("")
        return "\n".join(out)


def step_lines(said):
    lines = []
    for key, value in said.items():
        if isinstance(value, Packet):
            lines += [f"{key} = [", *(f"    {toml(line)}," for line in value.lines()), "]"]
            lines.append(f'{key}_bytes = "{value.bytes().hex()}"')
        else:
            lines.append(f"{key} = {toml(value)}")
    return lines


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
