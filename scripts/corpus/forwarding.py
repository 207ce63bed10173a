"""Ways to a backend: tags, interfaces, tunnels of every kind over both families."""

from model import (CLIENT, CLIENT6, DEVICES, HERE, OTHER, REFUSED, TAGGED, VIP, VIP6, Book, backend, change, drops, eth,
                   length_of, sends, service)
from packet import AUTH, DESTINATION, FRAGMENT, HOP, ROUTING, Ext, Ip, Ip6, Packet, Raw, Tcp, Udp, Vlan, ones_sum
from parsing import NAMES, data, ip, tcp, udp

SERVICES = [service(VIP, 80), service(VIP, 53, "udp"), service(VIP6, 80), service(VIP6, 53, "udp")]
SOURCE, SOURCE6 = "198.51.100.1", "2001:db8:1000::1"
FAR, FAR6 = "203.0.113.7", "2001:db8:2000::7"
KINDS = {"ipip": 0, "gre": 4, "fou": 8, "gue": 12}
PORTS = {"fou": 5555, "gue": 6080}


def tunnel(kind, over6, **other):
    made = {"kind": kind, "source": SOURCE6 if over6 else SOURCE, **other}
    if kind in PORTS:
        made["port"] = other.get("port", PORTS[kind])
    return made


def ways():
    book = Book("ways", "A packet as it is to its backend: by the interface that it came in by, or another,\n"
                        "with the tag of the way.")
    for name, interface in (("here", HERE), ("other", OTHER), ("tagged", TAGGED), ("ingress", 1)):
        to = backend(1, interface=interface)
        book.setup(name, [to], SERVICES, devices=DEVICES)
        rule = {"here": "l2.plain", "other": "l2.redirect", "tagged": "l2.tag", "ingress": "l2.plain"}[name]
        for family in (4, 6):
            for tags, said in (([], "untagged"), ([Vlan(id=7, prio=5, dei=1)], "tagged"),
                               ([Vlan(id=7, prio=3, tpid=0x88A8), Vlan(id=8, prio=1)], "twice_tagged")):
                packet = Packet(eth(), *tags, ip(family), tcp(flags="PA"), data(11))
                needs = {"needs": ["tags"]} if name != "here" and (tags or name == "tagged") else {}
                of = rule
                if name in ("other", "ingress") and tags:
                    of = "l2.untag"
                shows = {"here": "It goes back as it came, tags and all.",
                         "other": "It leaves by another interface, without the tags of the first.",
                         "tagged": "It leaves with the way's tag, and the priority of its own first one.",
                         "ingress": "The way leads back by the interface itself: no redirect, and no tag."}[name]
                book.case(f"{name}_{NAMES[family]}_{said}", of, name, shows, sends(packet, to), **needs)
    refused = backend(1, interface=REFUSED)
    book.setup("refused", [refused], SERVICES, devices=DEVICES)
    unknown = backend(1, unknown_hop=True)
    book.setup("unknown", [unknown], SERVICES)
    book.setup("no_pool", [backend(1)], [{**one, "backends": []} for one in SERVICES])
    book.setup("no_table", [backend(1)], [{**one, "method": "none", "backends": []} for one in SERVICES])
    gone = backend(1)
    book.setup("leaves", [gone], SERVICES)
    for family in (4, 6):
        name = NAMES[family]
        packet = Packet(eth(), ip(family), tcp())
        book.case(f"refused_{name}", "resolve.refused", "refused", "The way leads by an interface that cannot be sent by.",
                  drops(packet, "no_way_out"), needs=["next_hops"])
        book.case(f"unknown_{name}", "resolve.unknown", "unknown", "Nobody knows the next hop.",
                  drops(packet, "no_next_hop"), needs=["next_hops"])
        book.case(f"gone_{name}", "resolve.gone", "leaves", "The table leads to a backend that is gone.",
                  sends(packet, gone), change(gone="b1"), drops(packet, "no_next_hop"), needs=["next_hops"])
        for body, kind in ((tcp(flags="S"), "syn"), (tcp(), "ack"), (udp(), "udp")):
            made = Packet(eth(), ip(family), body)
            book.case(f"no_pool_{kind}_{name}", "conclude.no_backend", "no_pool", "The service has no backend.",
                      drops(made, "no_backend"))
            book.case(f"no_table_{kind}_{name}", "table.none", "no_table", "The service has no table yet.",
                      drops(made, "no_table"))
        extended = Packet(eth(), ip(6), Ext(of=HOP), tcp())
    book.case("no_table_extension", "table.none", "no_table", "The same behind an extension header.",
              drops(extended, "no_table"))
    return book


def tunnels():
    book = Book("tunnels", "The packet in another one (docs/forwarding.md): IP in IP, GRE, FOU, GUE, each family in each.")
    for kind, between in KINDS.items():
        for over6 in (False, True):
            over = "over6" if over6 else "over4"
            setup = f"{kind}_{over}"
            to = backend(1, FAR6 if over6 else FAR, tunnel=tunnel(kind, over6))
            book.setup(setup, [to], SERVICES)
            outer = "tunnel.outer6" if over6 else "tunnel.outer4"
            for family in (4, 6):
                name = f"{setup}_{NAMES[family]}"
                mode = "tunnel.udp" if kind == "fou" else f"tunnel.{kind}"
                book.case(f"{name}_syn", mode, setup, "A SYN in its tunnel.",
                          sends(Packet(eth(), ip(family), tcp(flags="S")), to, new=True))
                book.case(f"{name}_data", outer, setup, "TTL less one, its checksum with it; DSCP and ECN outside.",
                          sends(Packet(eth(), ip(family, **({"tos": 0xB9, "ttl": 9, "id": 77} if family == 4 else
                                                            {"tc": 0xB9, "hlim": 9, "label": 0x12345})),
                                       tcp(flags="PA", sport=40000), data(100)), to))
                book.case(f"{name}_udp", mode, setup, "A datagram in its tunnel.",
                          sends(Packet(eth(), ip(family), udp(sport=1234), data(7)), to, new=True))
                book.case(f"{name}_tagged", "tunnel.untag", setup, "The frame's tag comes off.",
                          sends(Packet(eth(), Vlan(id=7, prio=6), ip(family), tcp()), to))
                book.case(f"{name}_padded", outer, setup, "Padding stays behind the packet and counts for nothing.",
                          sends(Packet(eth(), ip(family), tcp(), pad=bytes(6)), to))
    return book


def edges():
    book = Book("tunnel_edges", "Tunnels: what varies with the flow, what is too big, whose TTL is used up, tags.")
    over4, over6 = backend(1, FAR, tunnel=tunnel("ipip", False)), backend(1, FAR6, tunnel=tunnel("ipip", True))
    book.setup("ipip_over4", [over4], SERVICES)
    book.setup("ipip_over6", [over6], SERVICES)
    for setup, to in (("ipip_over4", over4), ("ipip_over6", over6)):
        for ttl in (0, 1):
            book.case(f"{setup}_ttl_{ttl}", "tunnel.ttl4", setup, "Whatever loop there is ends; no messages may be sent here.",
                      drops(Packet(eth(), ip(4, ttl=ttl), tcp()), "untold"))
            book.case(f"{setup}_hop_limit_{ttl}", "tunnel.ttl6", setup, "Whatever loop there is ends; no messages may be sent here.",
                      drops(Packet(eth(), ip(6, hlim=ttl), tcp()), "untold"))
        for ttl in (2, 255):
            book.case(f"{setup}_ttl_{ttl}_left", "tunnel.in4", setup, "One is taken from the TTL.",
                      sends(Packet(eth(), ip(4, ttl=ttl), tcp()), to))
            book.case(f"{setup}_hop_limit_{ttl}_left", "tunnel.in6", setup, "One is taken from the hop limit.",
                      sends(Packet(eth(), ip(6, hlim=ttl), tcp()), to))
        for tos in (0x00, 0x01, 0x02, 0x03, 0x2E << 2, 0xFF):
            book.case(f"{setup}_tos_{tos:02x}", "tunnel.in4", setup,
                      "DSCP and ECN of the packet are the tunnel's (RFC 2983, RFC 6040).",
                      sends(Packet(eth(), ip(4, tos=tos), tcp()), to))
            book.case(f"{setup}_class_{tos:02x}", "tunnel.in6", setup,
                      "DSCP and ECN of the packet are the tunnel's; its flow label is not.",
                      sends(Packet(eth(), ip(6, tc=tos, label=0xFFFFF), tcp()), to))
        for df in (0, 1):
            book.case(f"{setup}_df_{df}", "tunnel.in4", setup, "DF is set outside, whatever is inside.",
                      sends(Packet(eth(), ip(4, df=df, id=4660), tcp()), to))
        for sum_ in (0xFEFF, 0xFF00, 0xFFFE, 0xFFFF, 0x0000, 0x00FF):
            packet = checksummed(sum_)
            wrong = [] if packet.layers[1].get("sum") is None else ["ip sum"]
            book.case(f"{setup}_checksum_{sum_:04x}", "tunnel.in4", setup,
                      f"A header with the checksum 0x{sum_:04x}: the carry of RFC 1624 is where it must be.",
                      sends(packet, to, wrong=wrong) if wrong else sends(packet, to))
        book.case(f"{setup}_wrong_checksum", "tunnel.in4", setup, "A wrong checksum stays as wrong as it was.",
                  sends(Packet(eth(), ip(4, sum=0x1234), tcp()), to, wrong=["ip sum"]))
        book.case(f"{setup}_options", "tunnel.in4", setup, "IP options stay inside; ports are behind them.",
                  sends(Packet(eth(), ip(4, options=b"\1" * 12), tcp()), to))
        for kinds in ((HOP,), (DESTINATION, ROUTING), (AUTH,), (FRAGMENT,)):
            said = "_".join(map(str, kinds))
            book.case(f"{setup}_extension_{said}", "tunnel.in6", setup,
                      "Behind extension headers no ports are looked for: the flow's number is that of its addresses.",
                      sends(Packet(eth(), ip(6), *[Ext(of=kind) for kind in kinds], tcp(), data(3)), to))
    for over, to_address in ((False, FAR), (True, FAR6)):
        suffix = "over6" if over else "over4"
        more = {"needs": []}
        for kind, between in KINDS.items():
            header = (40 if over else 20) + between
            for which, mtu, fits in (("fits", 1000, True), ("too_big", 1000, False)):
                to = backend(1, to_address, tunnel=tunnel(kind, over, mtu=mtu))
                setup = f"mtu_{kind}_{suffix}"
                book.setup(setup, [to], SERVICES)
                for family in (4, 6):
                    size = mtu - header - (40 if family == 4 else 60) + (0 if fits else 1)
                    packet = Packet(eth(), ip(family), tcp(), data(size))
                    name = f"{kind}_{suffix}_{which}_{NAMES[family]}"
                    if fits:
                        book.case(name, "tunnel.fits", setup, "It is just as large as the way takes.", sends(packet, to))
                    else:
                        book.case(name, "tunnel.too_big", setup, "It is a byte larger than the way takes.",
                                  drops(packet, "untold" if family == 4 else "too_big"))
        for kind in KINDS:
            to = backend(1, to_address, interface=TAGGED, tunnel=tunnel(kind, over))
            setup = f"tag_{kind}_{suffix}"
            book.setup(setup, [to], SERVICES, devices=DEVICES)
            for family in (4, 6):
                for tags, said in (([], "untagged"), ([Vlan(id=9, prio=4, dei=1)], "tagged"),
                                   ([Vlan(id=9, prio=2, tpid=0x88A8), Vlan(id=10, prio=7)], "twice_tagged")):
                    book.case(f"{setup}_{NAMES[family]}_{said}", "tunnel.tag", setup,
                              "The way's tag goes on, with the priority of the frame's first.",
                              sends(Packet(eth(), *tags, ip(family), tcp()), to))
        no_source = backend(1, to_address, tunnel={"kind": "ipip"})
        book.setup(f"no_source_{suffix}", [no_source], SERVICES)
        for family in (4, 6):
            book.case(f"no_source_{suffix}_{NAMES[family]}", "tunnel.no_source", f"no_source_{suffix}",
                      "This host has no address of the backend's family.",
                      drops(Packet(eth(), ip(family), tcp()), "no_tunnel_source"))
        elsewhere = backend(1, to_address, interface=OTHER, tunnel=tunnel("gue", over))
        book.setup(f"redirect_{suffix}", [elsewhere], SERVICES)
        for family in (4, 6):
            book.case(f"redirect_{suffix}_{NAMES[family]}", "l2.redirect", f"redirect_{suffix}",
                      "The tunnel begins at another interface.",
                      sends(Packet(eth(), ip(family), tcp()), elsewhere))
    for bits in (1, 8, 31):
        to = backend(1, FAR, tunnel={**tunnel("ipip", False), "source": "198.18.0.0", "spread": bits})
        if bits == 31:
            to["tunnel"]["source"] = "128.0.0.0"
        book.setup(f"spread_{bits}", [to], SERVICES)
        for sport in (1024, 1025, 50000):
            for family in (4, 6):
                book.case(f"spread_{bits}_{sport}_{NAMES[family]}", "tunnel.outer4", f"spread_{bits}",
                          f"The last {bits} bits of the tunnel's source are the flow's.",
                          sends(Packet(eth(), ip(family), tcp(sport=sport)), to))
    gue = backend(1, FAR, tunnel=tunnel("gue", False))
    book.setup("gue", [gue], SERVICES)
    for sport in (1, 1024, 65535):
        for family in (4, 6):
            book.case(f"gue_source_port_{sport}_{NAMES[family]}", "tunnel.udp", "gue",
                      "The source port of the tunnel varies with the flow, within the dynamic ports.",
                      sends(Packet(eth(), ip(family), udp(sport=sport)), gue, new=True))
    odd = backend(1, FAR, tunnel=tunnel("fou", False, port=0x1234))
    book.setup("port", [odd], SERVICES)
    book.case("fou_other_port", "tunnel.udp", "port", "The port of the tunnel is the configuration's.",
              sends(Packet(eth(), ip(4), tcp()), odd))
    return book


def checksummed(sum_):
    """A packet with this checksum: a good one by its identification, where there is one."""
    plain = Packet(eth(), ip(4, id=0), tcp())
    plain.bytes()
    for ident in range(0x10000):
        packet = plain.but(ip={"id": ident})
        header = Packet(packet.layers[1]).bytes()
        if int.from_bytes(header[10:12], "big") == sum_:
            break
        # The sum is linear in the identification: go there.
        target = (ones_sum(b"") + 0xFFFF - sum_)
        have = 0xFFFF - int.from_bytes(header[10:12], "big")
        ident = (target - have) % 0xFFFF
        packet = plain.but(ip={"id": ident, "proto": 6, "len": 40})
        packet.bytes()
        if packet.layers[1].sum == sum_:
            return plain.but(ip={"id": ident})
        return plain.but(ip={"sum": sum_})
    return packet


def books():
    return [ways(), tunnels(), edges()]
