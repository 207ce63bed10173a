"""How many new flows a service takes, in all and from each prefix of sources, and how many connections each prefix
may hold. What begins a flow is a SYN without ACK; whatever else comes is of a connection, and no cap is asked for it."""

import ipaddress

from errors import error, sent
from lists import segment
from model import VIP, VIP6, Book, backend, change, drops, eth, sends, service
from packet import FRAGMENT, HOP, Ext, Ip, Ip6, Packet, Tcp, Udp, Vlan
from parsing import NAMES, data

B1 = backend(1)
# Two hosts of one prefix, and one of another, as the set-ups tell them apart.
HOSTS = {4: ("10.3.2.7", "10.3.2.9", "10.3.3.7"),
         6: ("2001:db8:3:1ff::7", "2001:db8:3:101::9", "2001:db8:3:2ff::7")}
ALL = {"every": 1000, "burst": 3}
HELD = {"connections": 2, "ipv4_prefix": 24, "ipv6_prefix": 56}
SOURCE = {"source_every": 1000, "source_burst": 2, "ipv4_prefix": 24, "ipv6_prefix": 56}
# TCP's other bits change nothing: ECN set-up (RFC 3168) is a SYN as any.
BEGINS = ("S", "SEC", "SP", "SU")
OTHERS = ("SA", "A", "PA", "FA", "F", "R", "RA", "SF", "SR", "SFA", "")


def services(caps, **other):
    return [service(addr, 80, new_flows=caps, **other) for addr in (VIP, VIP6)]


def syn(source, flags="S", port=80, *between, **other):
    return segment(source, port, *between, flags=flags, **other)


def begin(source, port, to=None):
    """The SYN of a connection of its own."""
    v4 = ipaddress.ip_address(source).version == 4
    head = Ip(src=source, dst=to or VIP) if v4 else Ip6(src=source, dst=to or VIP6)
    return Packet(eth(), head, Tcp(sport=port, dport=80, flags="S"), data(20))


def held(book):
    """Connections that a prefix may hold."""
    full = "source_connection_cap"
    book.setup("held", [B1], services(HELD))
    book.setup("held_residue", [B1], [service(addr, 80, method="residue", new_flows=HELD) for addr in (VIP, VIP6)])
    book.setup("held_and_rates", [B1], services({**HELD, "connections": 1, "source_every": 1000, "source_burst": 2}))
    book.setup("held_and_spent", [B1], services({**HELD, "connections": 1, "every": 1000, "burst": 1}))
    book.setup("held_addresses", [B1], [service(VIP, 80, new_flows={**HELD, "connections": 1}, also=["10.0.0.77"])])
    for family, (host, neighbour, other) in HOSTS.items():
        said = NAMES[family]
        taken = lambda source, port: sends(begin(source, port), B1, new=True)
        refused = lambda source, port: drops(begin(source, port), full)
        both = [taken(host, 1), taken(neighbour, 2)]
        for setup in ("held", "held_residue"):
            name = setup.replace("held", "connections")
            book.case(f"{name}_{said}", "caps.held", setup, "All hosts of a prefix share what it may hold; another one has its own.",
                      *both, refused(host, 3), refused(neighbour, 4), taken(other, 5), taken(other, 6), refused(other, 7))
        book.case(f"connections_repeated_{said}", "caps.repeated", "held", "A SYN that is sent again is of the same connection.",
                  taken(host, 1), *both, *both, refused(host, 3), *both)
        book.case(f"connections_counted_{said}", "caps.counted", "held",
                  "What is known to live counts, and nothing else does once it is known.",
                  change(counted=[host, neighbour]), refused(host, 1), taken(other, 1), change(counted=[host]), taken(host, 1),
                  refused(host, 2), refused(neighbour, 3), taken(other, 2), taken(other, 3), refused(other, 4))
        book.case(f"connections_beyond_{said}", "caps.held", "held", "A prefix that holds more than it may begins none.",
                  change(counted=[host] * 5), refused(host, 1), change(ended=host, port=9), *[refused(host, 2)] * 2,
                  change(counted=[host] * 2), refused(host, 3), change(counted=[]), *both, refused(host, 3))
        book.case(f"connections_ended_{said}", "caps.counted", "held",
                  "In the place of one that has ended comes another, and one with its ports is none that was counted.",
                  *both, refused(host, 3), change(ended=host, port=1), taken(host, 3), refused(host, 1), refused(host, 4),
                  taken(neighbour, 2))
        book.case(f"connections_lapsed_{said}", "caps.passed", "held", "What nobody has counted for too long refuses nobody.",
                  *both, refused(host, 3), change(seconds=400), taken(host, 3), taken(host, 4))
        book.case(f"connections_before_rates_{said}", "caps.source", "held_and_rates",
                  "What a prefix may not hold takes nothing from its rate.",
                  taken(host, 1), *[refused(host, 2)] * 4, change(ended=host, port=1), taken(host, 3),
                  change(ended=host, port=3), drops(begin(host, 4), "source_flow_cap"))
        book.case(f"connections_after_rates_{said}", "caps.service", "held_and_spent",
                  "What a rate refuses is no connection.",
                  taken(other, 1), *[drops(begin(host, port), "new_flow_cap") for port in (1, 2, 3)])
        for flags in OTHERS:
            book.case(f"connections_no_beginning_{flags.lower() or 'none'}_{said}", "steer.deliver", "held",
                      "No other segment is refused, nor does it count.",
                      *[sends(syn(host, flags), B1)] * 3, *both, refused(host, 3), sends(syn(host, flags), B1))
    host = HOSTS[4][0]
    book.case("connections_addresses_ipv4", "caps.held", "held_addresses",
              "Connections to two addresses of a service are two, also with the same ports.",
              sends(begin(host, 1), B1, new=True), drops(begin(host, 1, "10.0.0.77"), full), sends(begin(host, 1), B1, new=True),
              drops(begin(host, 1, "10.0.0.77"), full))


def books():
    book = Book("new_flows", "How many new flows a service takes, and what is no new flow.")
    book.setup("all", [B1], services(ALL))
    book.setup("source", [B1], services(SOURCE))
    book.setup("both", [B1], services({**ALL, **SOURCE}))
    for family, (host, neighbour, other) in HOSTS.items():
        said = NAMES[family]
        taken = [sends(syn(source), B1, new=True) for source in (host, neighbour, other)]
        book.case(f"burst_{said}", "caps.passed", "all", "As many are taken at once as the burst is, from anybody.", *taken)
        book.case(f"beyond_burst_{said}", "caps.service", "all", "The next one is not.",
                  *taken, *(drops(syn(source), "new_flow_cap") for source in (host, neighbour, other)))
        book.case(f"rate_{said}", "caps.dropped", "all", "In the time of the rate comes one more, and not two.",
                  *taken, drops(syn(host), "new_flow_cap"), change(seconds=500), drops(syn(host), "new_flow_cap"),
                  change(seconds=600), sends(syn(host), B1, new=True), drops(syn(other), "new_flow_cap"))
        book.case(f"burst_again_{said}", "caps.passed", "all", "After a rest there are as many as at first, and no more.",
                  *taken, drops(syn(host), "new_flow_cap"), change(seconds=90_000), *taken, drops(syn(host), "new_flow_cap"))
        book.case(f"source_{said}", "caps.first_bucket", "source", "A prefix has a burst of its own.",
                  sends(syn(host), B1, new=True), sends(syn(neighbour), B1, new=True), sends(syn(other), B1, new=True))
        book.case(f"beyond_source_{said}", "caps.source", "source", "All hosts of a prefix share it; another one has its own.",
                  sends(syn(host), B1, new=True), sends(syn(neighbour), B1, new=True),
                  drops(syn(host), "source_flow_cap"), drops(syn(neighbour), "source_flow_cap"),
                  sends(syn(other), B1, new=True), sends(syn(other), B1, new=True), drops(syn(other), "source_flow_cap"))
        book.case(f"source_rate_{said}", "caps.ipv4" if family == 4 else "caps.ipv6", "source",
                  "In the time of the rate comes one more of each prefix.",
                  sends(syn(host), B1, new=True), sends(syn(host), B1, new=True), drops(syn(host), "source_flow_cap"),
                  change(seconds=1100), sends(syn(neighbour), B1, new=True), drops(syn(host), "source_flow_cap"),
                  sends(syn(other), B1, new=True))
        book.case(f"both_{said}", "caps.empty", "both",
                  "What its prefix has not, a flow does not take from the service's either.",
                  sends(syn(host), B1, new=True), sends(syn(host), B1, new=True),
                  *[drops(syn(host), "source_flow_cap")] * 3, sends(syn(other), B1, new=True),
                  drops(syn(other), "new_flow_cap"))
        spent = [*taken, drops(syn(host), "new_flow_cap")]
        for flags in BEGINS:
            book.case(f"begins_{flags.lower()}_{said}", "caps.dropped", "all", "A SYN without ACK begins a flow, whatever else it says.",
                      *spent, drops(syn(host, flags), "new_flow_cap"))
        for flags in OTHERS:
            book.case(f"no_beginning_{flags.lower() or 'none'}_{said}", "steer.deliver", "all",
                      "No other segment is refused, nor does it count.",
                      *(sends(syn(host, flags), B1) for _ in range(5)), *taken, drops(syn(host), "new_flow_cap"),
                      sends(syn(host, flags), B1))
        book.case(f"tag_{said}", "caps.dropped", "all", "Behind a tag.",
                  *taken, drops(syn(host, "S", 80, Vlan(id=5)), "new_flow_cap"))
        kind = (3, 3) if family == 4 else (1, 4)
        book.case(f"error_{said}", "icmp.quoted", "source", "An ICMP error begins no flow, whatever it quotes.",
                  *(sends(error(family, kind, sent(family, dst=host).bytes()), B1) for _ in range(5)))
    book.case("options_ipv4", "caps.dropped", "all", "IP options stand before it.",
              *(sends(syn(HOSTS[4][0], options=b"\1" * 8), B1, new=True) for _ in range(3)),
              drops(syn(HOSTS[4][0], options=b"\1" * 8), "new_flow_cap"))
    book.case("extension_ipv6", "caps.dropped", "all", "An extension header stands before it.",
              *(sends(syn(HOSTS[6][0], ext=[Ext(of=HOP)]), B1, new=True) for _ in range(3)),
              drops(syn(HOSTS[6][0], ext=[Ext(of=HOP)]), "new_flow_cap"))
    host, neighbour, other = HOSTS[6]
    taken = [sends(syn(source), B1, new=True) for source in (host, neighbour, other)]
    for flags in OTHERS:
        book.case(f"no_beginning_{flags.lower() or 'none'}_extension_ipv6", "steer.deliver", "all",
                  "No other segment is refused behind an extension header, either.",
                  *[sends(syn(host, flags, ext=[Ext(of=HOP)]), B1)] * 5, *taken, drops(syn(host), "new_flow_cap"),
                  sends(syn(host, flags, ext=[Ext(of=HOP)]), B1))
    host = HOSTS[4][0]
    first = Packet(eth(), Ip(src=host, dst=VIP, mf=1, df=0, id=7), Tcp(sport=5555, dport=80, flags="S"), data(12))
    later = Packet(eth(), Ip(src=host, dst=VIP, mf=0, df=0, frag=4, id=7, proto=6), data(24))
    book.case("fragments_ipv4", "caps.dropped", "all",
              "A first fragment may begin a flow, once; if it is not taken, the others find no first one.",
              sends(first, B1, new=True), sends(later, B1), sends(syn(host), B1, new=True), sends(syn(host), B1, new=True),
              drops(Packet(eth(), Ip(src=host, dst=VIP, mf=1, df=0, id=8), Tcp(sport=5555, dport=80, flags="S"), data(12)),
                    "new_flow_cap"),
              drops(Packet(eth(), Ip(src=host, dst=VIP, mf=0, df=0, frag=4, id=8, proto=6), data(24)), "later_fragment"))
    host = HOSTS[6][0]
    first = Packet(eth(), Ip6(src=host, dst=VIP6), Ext(of=FRAGMENT, frag=0, mf=1, id=7),
                   Tcp(sport=5555, dport=80, flags="S"), data(12))
    book.case("fragments_ipv6", "caps.dropped", "all", "The same of IPv6.",
              *(sends(first, B1, new=True) for _ in range(3)), drops(first, "new_flow_cap"))
    # Prefixes of all lengths: of two hosts that differ in one bit, those have one bucket whose prefixes end before it.
    for bits in (1, 8, 17, 24, 31, 32):
        book.setup(f"ipv4_{bits}", [B1], services({"source_every": 1000, "source_burst": 1, "ipv4_prefix": bits, "ipv6_prefix": 64}))
        for at in (bits - 1, bits):
            if at < 32:
                one = "41.64.9.8"
                two = str(ipaddress.IPv4Address(int(ipaddress.IPv4Address(one)) ^ 1 << 31 - at))
                judged = sends(syn(two), B1, new=True) if at < bits else drops(syn(two), "source_flow_cap")
                book.case(f"ipv4_{bits}_bit_{at}", "caps.ipv4", f"ipv4_{bits}", "Hosts that differ in a bit of the prefix, or behind it.",
                          sends(syn(one), B1, new=True), judged)
    for bits in (1, 48, 56, 63, 64, 65, 127, 128):
        book.setup(f"ipv6_{bits}", [B1], services({"source_every": 1000, "source_burst": 1, "ipv4_prefix": 32, "ipv6_prefix": bits}))
        for at in (bits - 1, bits):
            if at < 128:
                one = "2a00:db8:3:1234:5678:9abc:def0:7"
                two = str(ipaddress.IPv6Address(int(ipaddress.IPv6Address(one)) ^ 1 << 127 - at))
                judged = sends(syn(two), B1, new=True) if at < bits else drops(syn(two), "source_flow_cap")
                book.case(f"ipv6_{bits}_bit_{at}", "caps.ipv6", f"ipv6_{bits}", "Hosts that differ in a bit of the prefix, or behind it.",
                          sends(syn(one), B1, new=True), judged)
    caps = {**ALL, **SOURCE}
    for port, name in ((None, "any_port"), (80, "of_client")):
        other = {} if port is None else {"affinity": "client"}
        book.setup(name, [B1], [service(addr, port, new_flows=caps, **other) for addr in (VIP, VIP6)])
        for family, (host, _, _) in HOSTS.items():
            book.case(f"{name}_{NAMES[family]}", "caps.dropped", name, "Such services, too.",
                      *[sends(syn(host, port=port or 4444), B1, new=True)] * 2, drops(syn(host, port=port or 4444), "source_flow_cap"))
    for method in ("tracked", "jet", "residue", "cheetah", "cheetah-stateful"):
        book.setup(method, [B1], [service(addr, 80, method=method, new_flows=caps) for addr in (VIP, VIP6)])
        for family, (host, _, _) in HOSTS.items():
            book.case(f"{method}_{NAMES[family]}", "caps.dropped", method, "Whatever the method.",
                      *[sends(syn(host), B1, new=True)] * 2, drops(syn(host), "source_flow_cap"))
    book.setup("listed", [B1], services(caps, deny=[f"{HOSTS[4][0]}/32", f"{HOSTS[6][0]}/128"]))
    for family, (host, neighbour, _) in HOSTS.items():
        book.case(f"listed_{NAMES[family]}", "sources.denied", "listed", "What a list denies takes nothing out of a bucket.",
                  *[drops(syn(host), "denied_source")] * 3, *[sends(syn(neighbour), B1, new=True)] * 2,
                  drops(syn(neighbour), "source_flow_cap"), drops(syn(host), "denied_source"))
    book.setup("no_table", [B1], services(caps, method="none", backends=[]))
    book.case("no_table", "table.none", "no_table", "Without a table no cap is asked.",
              *[drops(syn(HOSTS[4][0]), "no_table")] * 5)
    book.setup("udp", [B1], [service(addr, 53, "udp") for addr in (VIP, VIP6)] + services(caps))
    for family, (host, _, _) in HOSTS.items():
        head = Ip(src=host, dst=VIP) if family == 4 else Ip6(src=host, dst=VIP6)
        packet = Packet(eth(), head, Udp(sport=5555, dport=53), data(20))
        book.case(f"other_service_{NAMES[family]}", "steer.deliver", "udp", "Another service of the address has no caps.",
                  *[sends(syn(host), B1, new=True)] * 2, drops(syn(host), "source_flow_cap"), sends(packet, B1, new=True))
    held(book)
    return [book]
