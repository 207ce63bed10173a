"""Sources that services take packets from: of the prefixes that an address has, the longest one decides; where
any prefix allows, an address that has none is denied."""

import ipaddress

from errors import ROUTER, ROUTER6, error, sent
from ids import short
from model import CLIENT, CLIENT6, VIP, VIP6, Book, backend, drops, eth, passes, sends, service
from packet import FRAGMENT, HOP, Ext, Ip, Ip6, Packet, Raw, Tcp, Udp, Vlan
from parsing import NAMES, data

B1 = backend(1)
DENY = ["10.1.0.0/24", "192.0.2.128/25", "203.0.113.7/32", "16.0.0.0/4", "255.255.255.255/32",
        "2001:db8:1::/64", "2001:db8:66::5/128", "fe80::/10"]
NESTED_ALLOW = ["10.1.0.0/16", "10.1.2.3/32", "2001:db8::/32", "2001:db8:1:2::7/128"]
NESTED_DENY = ["10.1.2.0/24", "10.1.2.2/31", "2001:db8:1:2::/64", "2001:db8::/47"]
LISTS = {
    "deny": {"deny": DENY},
    "allow": {"allow": DENY},
    "nested": {"allow": NESTED_ALLOW, "deny": NESTED_DENY},
    "everybody": {"allow": ["0.0.0.0/0", "::/0"], "deny": ["10.1.0.1/32", "2001:db8:1::1/128"]},
    "nobody": {"deny": ["0.0.0.0/0", "::/0"]},
    "ipv4": {"deny": ["0.0.0.0/0"]},
    # Many, so that the first bits choose among more nodes.
    "many": {"deny": [f"10.{n}.{n * 7 % 256}.{n * 13 % 256}/32" for n in range(256)]
             + [f"172.16.{n}.0/{24 + n % 9}" for n in range(64)]
             + [f"2001:db8:{n * 257 % 65536:x}::/48" for n in range(2, 130)]},
}


def allowed(source, lists):
    """What the longest prefix says that an address has."""
    source, found = ipaddress.ip_address(source), []
    for says in (True, False):
        for prefix in map(ipaddress.ip_network, lists.get("allow" if says else "deny", [])):
            if prefix.version == source.version and source in prefix:
                found.append((prefix.prefixlen, says))
    return max(found)[1] if found else not lists.get("allow")


def edges(prefix):
    """The first and the last address that have a prefix, and those beside them."""
    prefix = ipaddress.ip_network(prefix)
    first, last = int(prefix[0]), int(prefix[-1])
    make = ipaddress.IPv4Address if prefix.version == 4 else ipaddress.IPv6Address
    most = 2 ** prefix.max_prefixlen - 1
    return [make(n) for n in dict.fromkeys((first - 1, first, last, last + 1)) if 0 <= n <= most]


def segment(source, port=80, *between, ext=(), flags="A", **other):
    source = ipaddress.ip_address(source)
    head = Ip(src=str(source), dst=VIP, **other) if source.version == 4 else Ip6(src=str(source), dst=VIP6, **other)
    return Packet(eth(), *between, head, *ext, Tcp(sport=5555, dport=port, flags=flags), data(20))


def datagram(source, port=53):
    source = ipaddress.ip_address(source)
    head = Ip(src=str(source), dst=VIP) if source.version == 4 else Ip6(src=str(source), dst=VIP6)
    return Packet(eth(), head, Udp(sport=5555, dport=port), data(20))


def services(lists):
    return [service(addr, port, protocol, **lists)
            for addr in (VIP, VIP6) for port, protocol in ((80, "tcp"), (53, "udp"))]


def judged(packet, source, lists):
    return sends(packet, B1) if allowed(source, lists) else drops(packet, "denied_source")


def books():
    book = Book("lists", "Sources that services take packets from, and those that they do not.")
    for name, lists in LISTS.items():
        book.setup(name, [B1], services(lists))
        prefixes = lists.get("allow", []) + lists.get("deny", [])
        sources = dict.fromkeys(source for prefix in prefixes[:: 1 + len(prefixes) // 24] for source in edges(prefix))
        sources = [*sources, *map(ipaddress.ip_address, (CLIENT, CLIENT6, "198.51.100.9", "3fff::9"))]
        for source in dict.fromkeys(sources):
            if source.version == 6 and source.ipv4_mapped:
                continue
            good = allowed(source, lists)
            rule = ("sources.first4" if source.version == 4 else "sources.first6") if good else "sources.denied"
            text = str(source).replace(".", "_").replace(":", "-")
            book.case(f"{name}_{text}", rule, name, "The longest prefix decides.",
                      judged(segment(source), source, lists))
    # Prefixes far from others are reached over bits in which nothing else is decided.
    book.setup("far", [B1], services({"deny": ["198.51.100.77/32", "2001:db8:66::5/128", "2001:db8:66:1::/64"]}))
    far = book.setups["far"]["services"][0]
    for source, rule in (("198.51.100.76", "sources.answer_beyond"), ("198.51.100.77", "sources.ipv4"),
                         ("198.51.100.78", "sources.others"), ("198.51.101.77", "sources.others"),
                         ("199.0.0.1", "sources.others"), ("10.1.0.1", "sources.answer"),
                         ("2001:db8:66::4", "sources.passed"), ("2001:db8:66::5", "sources.answer_beyond"),
                         ("2001:db8:66:1::9", "sources.denied"), ("2001:db8:66:2::9", "sources.passed"),
                         ("2001:db8:67::5", "sources.others")):
        text = source.replace(".", "_").replace(":", "-")
        book.case(f"far_{text}", rule, "far", "A walk to its end.", judged(segment(source), source, far))
    deny = LISTS["deny"]
    for family, (denied, good) in {4: (CLIENT, "10.1.1.1"), 6: (CLIENT6, "2001:db8:1:1::1")}.items():
        said = NAMES[family]
        for flags in ("S", "SA", "A", "FA", "R"):
            book.case(f"flags_{flags.lower()}_{said}", "sources.denied", "deny", "Every segment is judged, the first and all others.",
                      drops(segment(denied, flags=flags), "denied_source"))
        book.case(f"udp_{said}", "sources.denied", "deny", "Datagrams, too.",
                  drops(datagram(denied), "denied_source"))
        book.case(f"udp_good_{said}", "steer.deliver", "deny", "Datagrams, too.", sends(datagram(good), B1, new=True))
        book.case(f"tag_{said}", "sources.denied", "deny", "Behind a tag.",
                  drops(segment(denied, 80, Vlan(id=5)), "denied_source"))
        book.case(f"other_port_{said}", "service.none", "deny", "No service on the port: the packet is the kernel's.",
                  passes(segment(denied, 81), "no_service"))
        kind = (3, 3) if family == 4 else (1, 4)
        book.case(f"error_denied_{said}", "sources.denied", "deny",
                  "An ICMP error is judged by the client of the flow that it quotes, wherever it comes from.",
                  drops(error(family, kind, sent(family, dst=denied).bytes()), "denied_source"))
        book.case(f"error_good_{said}", "icmp.quoted", "deny", "The client is allowed.",
                  sends(error(family, kind, sent(family, dst=good).bytes()), B1))
    router = {"deny": [f"{ROUTER}/32", f"{ROUTER6}/128"]}
    book.setup("router", [B1], services(router))
    for family in (4, 6):
        kind = (3, 3) if family == 4 else (1, 4)
        book.case(f"error_of_denied_{NAMES[family]}", "icmp.quoted", "router",
                  "The router that sends the error is denied, and the client is not.",
                  sends(error(family, kind, sent(family).bytes()), B1))
    book.case("options_ipv4", "sources.denied", "deny", "IP options stand before it.",
              drops(segment(CLIENT, options=b"\1" * 8), "denied_source"))
    book.case("extension_ipv6", "sources.denied", "deny", "An extension header stands before it.",
              drops(segment(CLIENT6, ext=[Ext(of=HOP)]), "denied_source"))
    first = Packet(eth(), Ip(src=CLIENT, dst=VIP, mf=1, df=0, id=7), Tcp(sport=5555, dport=80, flags="A"), data(12))
    later = Packet(eth(), Ip(src=CLIENT, dst=VIP, mf=0, df=0, frag=4, id=7, proto=6), data(24))
    book.case("fragments_ipv4", "sources.denied", "deny", "The first fragment is judged, and the others go where it went: nowhere.",
              drops(first, "denied_source"), drops(later, "later_fragment"))
    first = Packet(eth(), Ip6(src=CLIENT6, dst=VIP6), Ext(of=FRAGMENT, frag=0, mf=1, id=7),
                   Tcp(sport=5555, dport=80, flags="A"), data(12))
    book.case("fragments_ipv6", "sources.denied", "deny", "The same of IPv6.", drops(first, "denied_source"))
    for port, name in ((None, "any_port"), (80, "of_client")):
        other = {} if port is None else {"affinity": "client"}
        book.setup(name, [B1], [service(addr, port, **deny, **other) for addr in (VIP, VIP6)])
        for source in (CLIENT, CLIENT6):
            book.case(f"{name}_{NAMES[ipaddress.ip_address(source).version]}", "sources.denied", name, "Such services, too.",
                      drops(segment(source, port or 4444), "denied_source"))
    for method in ("tracked", "jet", "residue", "cheetah"):
        book.setup(method, [B1], [service(addr, 80, method=method, **deny) for addr in (VIP, VIP6)])
        for source in (CLIENT, CLIENT6):
            book.case(f"{method}_{NAMES[ipaddress.ip_address(source).version]}", "sources.denied", method, "Whatever the method.",
                      drops(segment(source), "denied_source"))
    book.setup("no_table", [B1], [service(addr, 80, method="none", backends=[], **deny) for addr in (VIP, VIP6)])
    book.case("no_table", "table.none", "no_table", "Without a table no list is asked.",
              drops(segment(CLIENT), "no_table"))
    ids = {"config": 0, "server_id": 3, "nonce": 4, "servers": {"c4605e": "b1"}}
    book.setup("led", [B1], [service(addr, 443, "udp", ids=[ids], **deny) for addr in (VIP, VIP6)])
    for source, good in ((CLIENT, "10.1.1.1"), (CLIENT6, "2001:db8:1:1::1")):
        said = NAMES[ipaddress.ip_address(source).version]
        book.case(f"quic_{said}", "sources.denied", "led", "A service that is led by QUIC ids.",
                  drops(quic(source), "denied_source"))
        book.case(f"quic_good_{said}", "quic.decoded", "led", "The id of an allowed source leads.",
                  sends(quic(good), B1, id="decoded"))
    return [book]


def quic(source):
    source = ipaddress.ip_address(source)
    head = Ip(src=str(source), dst=VIP) if source.version == 4 else Ip6(src=str(source), dst=VIP6)
    id_ = bytes.fromhex("07c4605e4504cc4f")
    return Packet(eth(), head, Udp(sport=5555, dport=443), Raw(data=short(id_)))
