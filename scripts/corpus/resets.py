"""Resets of connections whose backend is down (docs/health-checks.md): as a host without the connection answers,
RFC 9293 section 3.10.7.1."""

from errors import error, sent
from forwarding import FAR, tunnel
from messages import GROUP_MAC, answers, back
from model import (OUR_MAC, VIP, VIP6, Book, backend, change, drops, eth, sends,
                   service)
from packet import DESTINATION, FRAGMENT, Ext, Ip, Ip6, Packet, Tcp, Vlan
from parsing import NAMES, data, ip, tcp, udp

SERVICES = [service(VIP, 80), service(VIP, 53, "udp"), service(VIP6, 80), service(VIP6, 53, "udp")]
MANY, FEW = 1_000_000, 1
M32 = (1 << 32) - 1


def reset(packet):
    """What a packet is answered with: the sequence number is what it acknowledges; one that acknowledges nothing is
    acknowledged."""
    packet.bytes()
    at = packet.l3()
    head = packet.layers[at]
    segment = next(layer for layer in packet.layers if isinstance(layer, Tcp))
    flags = segment.get("flags", "A")
    ends = {"src": head.get("dst"), "dst": head.get("src")}
    outer = Ip(**ends, id=0, df=1, ttl=64) if isinstance(head, Ip) else Ip6(**ends, hlim=64)
    ports = {"sport": segment.get("dport"), "dport": segment.get("sport")}
    if "A" in flags:
        says = {"flags": "R", "seq": segment.get("ack", 0), "ack": 0}
    else:
        length = head.len - 4 * (head.ihl if isinstance(head, Ip) else 0) - 4 * segment.offset
        length += ("S" in flags) + ("F" in flags)
        says = {"flags": "RA", "seq": 0, "ack": (segment.get("seq", 1) + length) & M32}
    return Packet(*back(packet), outer, Tcp(**ports, **says, window=0))


def resets(packet, **other):
    return answers(packet, "reset_sent", reset(packet), **other)


def books():
    book = Book("resets", "Packets whose backend is down, where the service has connections there reset (docs/health-checks.md).")
    dead = backend(1, down=True, resets=True)
    book.setup("dead", [dead], SERVICES, resets=MANY)
    book.setup("off", [dead], SERVICES)
    book.setup("few", [dead], SERVICES, resets=FEW)
    book.setup("own", [dead], SERVICES, resets=MANY, own_macs=[OUR_MAC])
    book.setup("far", [backend(1, FAR, tunnel=tunnel("ipip", False, mtu=1400), down=True, resets=True)], SERVICES,
               resets=MANY, errors=MANY)
    book.setup("unknown", [backend(1, unknown_hop=True, down=True, resets=True)], SERVICES, resets=MANY)
    book.setup("nat", [backend(1, nat={"port": 8080, "mtu": 0}, down=True, resets=True)],
               [service(VIP, 80)], resets=MANY)
    alive = backend(1)
    book.setup("alive", [alive], SERVICES, resets=MANY)
    for method in ("tracked", "jet", "residue", "cheetah"):
        book.setup(method, [dead], [service(VIP, 80, method=method), service(VIP6, 80, method=method)], resets=MANY)
    for family in (4, 6):
        name = NAMES[family]
        put = f"reset.put{family}"
        for flags in ("A", "PA", "FA", "UA"):
            made = Packet(eth(), ip(family), tcp(flags=flags, seq=M32 - 1, ack=0x12345678), data(100))
            book.case(f"{name}_{flags.lower()}", "reset.acknowledges", "dead", "It has the number that the packet acknowledges.",
                      resets(made))
        for flags, size in (("S", 0), ("S", 7), ("F", 3), ("", 9), ("SF", 1)):
            made = Packet(eth(), ip(family), tcp(flags=flags, seq=M32 - 2), data(size))
            book.case(f"{name}_without_ack_{flags.lower() or 'none'}_{size}", "reset.acknowledged", "dead",
                      "A packet that acknowledges nothing is acknowledged: its bytes, SYN and FIN count.", resets(made))
        for ack in (0, 0xFFFF, 0x10000, 0xFFFF0000, M32):
            made = Packet(eth(), ip(family), tcp(ack=ack))
            book.case(f"{name}_ack_{ack:x}", put, "dead", "The carries of the checksum are where they must be.", resets(made))
        made = Packet(eth(), ip(family), tcp(flags="RA"))
        book.case(f"{name}_of_reset", "reset.of_reset", "dead", "No reset is answered.", drops(made, "dead_backend"))
        for tags, said in (([Vlan(id=7, prio=5)], "tagged"), ([Vlan(id=7, tpid=0x88A8), Vlan(id=8)], "twice_tagged")):
            made = Packet(eth(), *tags, ip(family), tcp(ack=5), data(20))
            book.case(f"{name}_{said}", put, "dead", "It goes back with the tags that it has.", resets(made))
        made = Packet(eth(), ip(family), tcp(ack=9, options=b"\1" * 20), data(1400))
        book.case(f"{name}_options", put, "dead", "A reset has no options and no data.", resets(made))
        made = Packet(eth(), ip(family), tcp(ack=9), pad=bytes(6))
        book.case(f"{name}_padded", put, "dead", "Nor padding.", resets(made))
        made = Packet(eth(), ip(family, **({"tos": 0xB9, "id": 77, "ttl": 1} if family == 4 else {"tc": 0xB9, "label": 5, "hlim": 1})),
                      tcp(ack=9))
        book.case(f"{name}_head", put, "dead", "Nothing else of the header stays.", resets(made))
        book.case(f"{name}_datagram", f"reset.not{family}", "dead", "A datagram is answered by nothing.",
                  drops(Packet(eth(), ip(family), udp(), data(20)), "dead_backend"))
        book.case(f"{name}_off", "reset.limited", "off", "Without a rate nothing is sent.",
                  drops(Packet(eth(), ip(family), tcp()), "reset_limited"))
        book.case(f"{name}_limited", "reset.limited", "few", "More than may be sent are dropped.",
                  drops(Packet(eth(), ip(family), tcp(), data(10)), "reset_limited", spent=True))
        book.case(f"{name}_far", put, "far", "Through a tunnel no packet would come either; nobody is told of its MTU.",
                  resets(Packet(eth(), ip(family), tcp(ack=3), data(1440 if family == 4 else 1420))))
        book.case(f"{name}_unknown_hop", put, "unknown", "No next hop is asked for.", resets(Packet(eth(), ip(family), tcp(ack=3))))
        for mac, said in ((eth(src=GROUP_MAC), "from_group"), (eth(dst=GROUP_MAC), "to_group")):
            book.case(f"{name}_{said}", "reset.group", "dead", "A frame for a group, or from one, is not answered.",
                      drops(Packet(mac, ip(family), tcp()), "dead_backend"))
        nobodies = {4: ("0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", VIP), 6: ("::", "ff02::1", VIP6)}
        for at, source in enumerate(nobodies[family]):
            head = Ip(src=source, dst=VIP) if family == 4 else Ip6(src=source, dst=VIP6)
            book.case(f"{name}_from_no_host_{at}", f"reset.not{family}", "dead", f"{source} is no single other host.",
                      drops(Packet(eth(), head, tcp()), "dead_backend"))
        made = Packet(eth(), ip(family), tcp(ack=7), data(20))
        book.case(f"{name}_goes_down", "resolve.dead", "alive", "A backend goes down and comes back: its next packets know.",
                  sends(made, alive), change(resets="b1"), resets(made), change(up="b1"), sends(made, alive),
                  change(down="b1"), sends(made, alive))
        book.case(f"{name}_again", "deliver.reset", "dead", "One after the other is answered.",
                  *[resets(Packet(eth(), ip(family), tcp(ack=ack), data(ack))) for ack in range(3)])
        book.case(f"{name}_flooded", "host.other", "own", "A frame to another host is not answered.",
                  drops(Packet(eth(dst="02:00:00:00:00:77"), ip(family), tcp()), "other_host"))
        # What an ICMP error quotes leads to a backend that is down.
        book.case(f"{name}_quoted", f"reset.not{family}", "dead", "An ICMP error about a connection is answered by nothing.",
                  drops(error(family, (3, 4) if family == 4 else (2, 0), sent(family).bytes()), "dead_backend"))
        for method in ("tracked", "jet", "residue", "cheetah"):
            book.case(f"{name}_{method}", "deliver.reset", method, "Whatever the method.",
                      resets(Packet(eth(), ip(family), tcp(ack=11), data(5))))
    made = Packet(eth(), ip(4, options=b"\1" * 8), tcp(ack=9), data(30))
    book.case("ipv4_options_of_ip", "reset.put4", "dead", "A reset has no options of IP.", resets(made))
    made = Packet(eth(), ip(4, options=b"\1" * 40), tcp(flags="S", seq=100), data(30))
    book.case("ipv4_options_of_ip_syn", "reset.acknowledged", "dead", "They do not count as data.", resets(made))
    made = Packet(eth(), ip(6), Ext(of=DESTINATION), tcp(), data(30))
    book.case("ipv6_extension", "reset.not6", "dead", "What has extension headers is not answered.", drops(made, "dead_backend"))
    made = Packet(eth(), ip(4, mf=1, df=0, id=40003), tcp(), data(32))
    book.case("ipv4_fragment", "reset.not4", "dead", "Nor is a fragment.", drops(made, "dead_backend"))
    made = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=40004), tcp(), data(32))
    book.case("ipv6_fragment", "reset.not6", "dead", "Nor is a fragment.", drops(made, "dead_backend"))
    book.case("ipv4_nat", "reset.put4", "nat", "It comes from the service's address and port, not from the backend's.",
              resets(Packet(eth(), ip(4), tcp(ack=3), data(10))))
    return [book]
