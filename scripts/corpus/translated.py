"""NAT (docs/forwarding.md): the destination is another one on the way to the backend, the source on the way back;
checksums follow (RFC 1624), and so does what an ICMP error quotes (RFC 5508)."""

from errors import ROUTER, ROUTER6
from forwarding import FAR, tunnel
from messages import MANY, told
from model import (CLIENT, CLIENT6, DEVICES, NOBODY, NOBODY6, OTHER, OUR_MAC, TAGGED, VIP, VIP6, Book, Step, backend,
                   change, drops, eth, length_of, lowers, passes, sends, service, way_tags)
from packet import AUTH, DESTINATION, FRAGMENT, HOP, Eth, Ext, Icmp, Ip, Ip6, Packet, Raw, Tcp, Udp, Vlan
from parsing import NAMES, data, ip, tcp, udp

INSIDE, INSIDE6, PORT = "10.6.0.1", "2001:db8:6::1", 8080
# Where the FIB of the test's network leads to.
NEXT_MAC, LEAVING_MAC = "02:00:00:00:05:02", "02:00:00:00:05:01"
SMALL, SMALL6 = "10.1.9.1", "2001:db8:1:9::1"
THIS_HOST, THIS_HOST6 = "10.5.0.1", "2001:db8:5::1"
SILENT, SILENT6 = "10.5.0.77", "2001:db8:5::77"
NOWHERE, NOWHERE6 = "192.0.2.200", "2001:db8:77::1"
END = {"src": "sport", "dst": "dport"}


def other_end(packet, end, addr, port, ttl=1):
    """The layers from the IP header on, with another end; `port` None: the same."""
    layers = list(packet.layers[packet.l3():])
    head = layers[0]
    left = {"ttl": head.get("ttl", 64) - ttl} if isinstance(head, Ip) else {"hlim": head.get("hlim", 64) - ttl}
    layers[0] = head.but(**{end: addr}, **left)
    for at, layer in enumerate(layers):
        if isinstance(layer, (Tcp, Udp)) and port is not None:
            layers[at] = layer.but(**{END[end]: port})
    return layers


def there(packet, to, quote=None, **other):
    """On its way to the backend; `quote`: what an error about the backend's packets quotes then."""
    packet.bytes()
    layers = other_end(packet, "dst", to["address"], to["nat"].get("port"))
    if quote is not None:
        layers[-1] = Raw(data=quote)
    head = Eth(dst=to["mac"], src=to["source_mac"])
    out = Packet(head, *way_tags(packet, to.get("interface", 0)), *layers, pad=packet.pad)
    return sends(packet, to, out=out, **other)


def back(packet, vip, port, quote=None, **other):
    """On its way to the client, from the service."""
    packet.bytes()
    layers = other_end(packet, "src", vip, port)
    if quote is not None:
        layers[-1] = Raw(data=quote)
    out = Packet(Eth(dst=NEXT_MAC, src=LEAVING_MAC), *layers, pad=packet.pad)
    return Step(packet=packet, verdict="redirect", returned=True, bytes=length_of(packet), out=out, **other)


def kernels(packet, vip, port):
    """The kernel forwards it: translated, in the frame that it came in, with the TTL that it has."""
    packet.bytes()
    before = packet.layers[:packet.l3()]
    out = Packet(*before, *other_end(packet, "src", vip, port, ttl=0), pad=packet.pad)
    return Step(packet=packet, verdict="pass", reason="answer", out=out)


def pool(**other):
    given = {key: other.pop(key) for key in ("port", "mtu") if key in other}
    return [backend(1, INSIDE, nat=given, **other), {**backend(2, INSIDE6, nat=given, **other)}]


def services(tcp_port=80, udp_port=53):
    return [service(VIP, tcp_port), service(VIP, udp_port, "udp"),
            service(VIP6, tcp_port, backends=("b2",)), service(VIP6, udp_port, "udp", backends=("b2",))]


def answer(family, body, *more, dst=None, src=None, tags=(), mac=None, pad=b"", **head):
    """What a backend sends to a client."""
    if family == 4:
        made = Ip(src=src or INSIDE, dst=dst or CLIENT, **head)
    else:
        made = Ip6(src=src or INSIDE6, dst=dst or CLIENT6, **head)
    return Packet(mac or eth(), *tags, made, body, *more, pad=pad)


def from_tcp(port=PORT, **other):
    return Tcp(**{"sport": port, "dport": 5555, "flags": "A", **other})


def from_udp(port=PORT, **other):
    return Udp(**{"sport": port, "dport": 5555, **other})


TAGS = (((Vlan(id=7, prio=5),), "tagged"), ((Vlan(id=7, tpid=0x88A8), Vlan(id=8)), "twice_tagged"))


def tells_sender(book, family, rules, head, header):
    """Packets that cannot go to a backend that takes 1,400 bytes, and whose senders are told, of the set-up "tells"."""
    name = NAMES[family]
    large = Packet(eth(), head, tcp(), data(1401 - header))
    book.case(f"{name}_too_big_told", f"{rules}.too_big", "tells", "The sender is told what fits.",
              told(large, family, "too_big_told", 1400, entered=False))
    spent = Packet(eth(), head.but(**({"ttl": 1} if family == 4 else {"hlim": 1})), tcp())
    book.case(f"{name}_ttl_told", "tell.ttl", "tells", "The sender is told that its TTL is used up.",
              told(spent, family, "ttl_told"))
    if family == 4:
        book.case(f"{name}_may_be_cut", "tell.may_be_cut", "tells", "It may be made into fragments.",
                  drops(Packet(eth(), head.but(df=0), tcp(), data(1401 - header)), "too_big"))


def to_backends():
    book = Book("nat", "NAT on the way to the backend: another destination, one less of TTL.")
    sets = {"port": pool(port=PORT), "same": pool(), "small": pool(port=PORT, mtu=1400),
            "tagged": pool(port=PORT, interface=TAGGED), "other": pool(port=PORT, interface=OTHER)}
    for name, made in sets.items():
        book.setup(name, made, services(), **({"devices": DEVICES} if name == "tagged" else {}))
    book.setup("tells", sets["small"], services(), errors=MANY)
    for family in (4, 6):
        name, header = NAMES[family], 40 if family == 4 else 60
        ttl = "ttl" if family == 4 else "hlim"
        for setup, made in sets.items():
            to = made[0 if family == 4 else 1]
            rule = "nat.same_port" if setup == "same" else "nat.port"
            needs = {"needs": ["tags"]} if setup == "tagged" else {}
            book.case(f"{setup}_{name}_syn", rule, setup, "A SYN with the backend's address and port.",
                      there(Packet(eth(), ip(family), tcp(flags="S", options=bytes([2, 4, 5, 180]))), to, new=True), **needs)
            book.case(f"{setup}_{name}_data", "nat.tcp", setup, "A segment; DSCP, ECN, identification stay.",
                      there(Packet(eth(), ip(family, **({"tos": 0xB9, "id": 77, "ttl": 9} if family == 4 else
                                                        {"tc": 0xB9, "label": 0x12345, "hlim": 9})),
                                   tcp(flags="PA", sport=40000), data(101)), to), **needs)
            book.case(f"{setup}_{name}_udp", "nat.udp_summed", setup, "A datagram.",
                      there(Packet(eth(), ip(family), udp(), data(7)), to, new=True), **needs)
            book.case(f"{setup}_{name}_udp_unsummed", "nat.udp_unsummed", setup, "A datagram without a checksum keeps none.",
                      there(Packet(eth(), ip(family), udp(sum=0), data(7)), to, new=True), **needs)
            for tags, said in TAGS:
                book.case(f"{setup}_{name}_{said}", "l2.untag" if setup != "tagged" else "l2.tag", setup,
                          "The frame's tags come off.",
                          there(Packet(eth(), *tags, ip(family), tcp(), data(3)), to), needs=["tags"])
            whole = "nat.plain" if family == 4 and setup != "tagged" else "nat.there"
            book.case(f"{setup}_{name}_padded", whole, setup, "Padding stays behind the packet.",
                      there(Packet(eth(), ip(family), tcp(), pad=bytes(6)), to), **needs)
        to = sets["port"][0 if family == 4 else 1]
        for left in (0, 1):
            for body, said in ((tcp(), "tcp"), (udp(), "udp")):
                book.case(f"{name}_ttl_{left}_{said}", f"nat.ttl{family}", "port", "Whatever loop there is ends.",
                          drops(Packet(eth(), ip(family, **{ttl: left}), body), "untold"))
        for left in (2, 255):
            book.case(f"{name}_ttl_{left}", f"nat.aged{family}", "port", "One is taken from the TTL.",
                      there(Packet(eth(), ip(family, **{ttl: left}), tcp()), to))
        book.case(f"{name}_zero_sum", "nat.udp_summed", "port", "A checksum that would be 0 is 0xffff (RFC 768).",
                  there(zero_summed(family, to), to, new=True))
        small = sets["small"][0 if family == 4 else 1]
        book.case(f"{name}_fits", "nat.plain" if family == 4 else "nat.there", "small", "It is just as large as the way takes.",
                  there(Packet(eth(), ip(family), tcp(), data(1400 - header)), small))
        book.case(f"{name}_too_big", "nat.too_big", "small", "It is a byte larger than the way takes.",
                  drops(Packet(eth(), ip(family), tcp(), data(1401 - header)), "untold"))
        tells_sender(book, family, "nat", ip(family), header)
        for sport in range(1, 60000, 5003):
            book.case(f"{name}_from_{sport}", "nat.tcp", "port", "The carry of RFC 1624 is where it must be.",
                      there(Packet(eth(), ip(family, **({"id": sport} if family == 4 else {})), tcp(sport=sport), data(5)), to))
    to, to6 = sets["port"]
    for length in (4, 40):
        book.case(f"ipv4_options_{length}", "nat.tcp", "port", "IP options stay; the ports are behind them.",
                  there(Packet(eth(), ip(4, options=b"\1" * length), tcp()), to))
    for kinds in ((HOP,), (DESTINATION, AUTH), (FRAGMENT,)):
        for body, said, new in ((tcp(), "tcp", False), (udp(), "udp", True)):
            made = Packet(eth(), ip(6), *[Ext(of=kind) for kind in kinds], body, data(4))
            book.case(f"ipv6_extension_{kinds[0]}_{said}", "nat.extension", "port", "The ports are behind extension headers.",
                      there(made, to6, new=new))
    for at, (body, proto, new) in enumerate(((tcp(), 6, False), (udp(len=4000), 17, True))):
        wrong = {"wrong": ["udp len"]} if proto == 17 else {}
        first = Packet(eth(), ip(4, mf=1, df=0, id=42001 + at), body, data(8))
        later = Packet(eth(), ip(4, df=0, frag=2, id=42001 + at, proto=proto), data(24))
        book.case(f"ipv4_fragments_{proto}", "nat.later", "port", "Only the first one has ports; the others follow it.",
                  there(first, to, new=new, **wrong), there(later, to))
        first = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=42003 + at), body, data(8))
        later = Packet(eth(), ip(6), Ext(of=FRAGMENT, frag=2, id=42003 + at, next=proto), data(24))
        book.case(f"ipv6_first_fragment_{proto}", "nat.first_fragment6", "port", "The ports are behind the fragment header.",
                  there(first, to6, new=new, **wrong))
        book.case(f"ipv6_fragments_{proto}", "nat.later", "port", "Only the first one has ports; the others follow it.",
                  there(first, to6, new=new, **wrong), there(later, to6))
    for family in (4, 6):
        name, header = NAMES[family], 20 if family == 4 else 40
        for setup in ("port", "same", "tagged"):
            to = sets[setup][0 if family == 4 else 1]
            port = to["nat"].get("port")
            for kind in ([(3, 4), (3, 1), (11, 0)] if family == 4 else [(2, 0), (1, 4), (3, 0)]):
                for body, said, rule, own in ((Tcp(sport=80, dport=5555, flags="PA"), "tcp", "nat.quote_tcp", port or 80),
                                              (Udp(sport=53, dport=5555), "udp", "nat.quote_udp", port or 53)):
                    needs = {"needs": ["tags"]} if setup == "tagged" else {}
                    for keep in (None, 8, 17, 18):
                        before, after = (quote(family, src, to["address"], body.but(sport=sport), keep, header, VIP, VIP6)
                                         for src, sport in ((None, body.get("sport")), (to["address"], own)))
                        if keep is not None and (kind not in ((3, 4), (2, 0)) or setup == "tagged"):
                            continue
                        if keep == 17 and said == "tcp":
                            # Half a checksum stays as it is.
                            after = after[:-1] + before[-1:]
                        of = rule if keep in (None, 18) or said == "udp" else f"nat.quote{family}"
                        book.case(f"{setup}_{name}_{kind[0]}_{kind[1]}_{said}_{keep or 'all'}", of, setup,
                                  "An error about what the backend has sent quotes what it has sent.",
                                  there(error(family, kind, before, VIP if family == 4 else VIP6), to, quote=after), **needs)
    inner = Packet(Ip6(src=VIP6, dst=CLIENT6), Ext(of=FRAGMENT, mf=1, id=9), Tcp(sport=80, dport=5555), data(16))
    outer = Packet(Ip6(src=INSIDE6, dst=CLIENT6), Ext(of=FRAGMENT, mf=1, id=9), Tcp(sport=PORT, dport=5555), data(16))
    book.case("ipv6_quotes_fragment", "nat.quote_fragment6", "port", "A first fragment is quoted.",
              there(error(6, (2, 0), inner.bytes(), VIP6), sets["port"][1], quote=outer.bytes()))
    return book


def error(family, kind, inside, to, **ip):
    head = Ip(src=ROUTER, dst=to, **{"df": 0, **ip}) if family == 4 else Ip6(src=ROUTER6, dst=to, **ip)
    return Packet(eth(), head, Icmp(type=kind[0], code=kind[1], word=1400, v6=family == 6), Raw(data=inside))


def quote(family, src, _, body, keep, header, vip, vip6):
    """What a service, or its backend, has sent to a client: so many bytes of it from the transport header on."""
    head = (Ip(src=src or vip, dst=CLIENT) if family == 4 else Ip6(src=src or vip6, dst=CLIENT6))
    whole = Packet(head, body, data(40)).bytes()
    return whole if keep is None else whole[:header + keep]


def zero_summed(family, to):
    """A datagram whose checksum is 0 as the backend's."""
    for sport in range(1, 65536):
        packet = Packet(eth(), ip(family), udp(sport=sport), data(2))
        at_backend = Packet(*other_end(packet, "dst", to["address"], to["nat"]["port"]))
        at_backend.bytes()
        if at_backend.layers[1].sum == 0xFFFF:
            return packet
    raise AssertionError("there is one")


def mss(value):
    """What a SYN, or its answer, asks for."""
    return {"flags": "SA", "options": bytes([2, 4]) + value.to_bytes(2, "big")}


# By the number that the service gives, and by the way of 1,400 bytes to the backend.
LIMITS = {"fixed": ({"segments": 1000}, {4: 1000, 6: 1000}), "auto": ({"segments": 0, "mtu": 1400}, {4: 1360, 6: 1340})}


def asks_for_less(book, setup, family, most, answer, back, rule, *before, later="mss.no_syn"):
    """SYN+ACKs of a service that limits segments; `before`: what comes before them."""
    name = f"{setup}_{NAMES[family]}"
    for value in (most + 1, 1460, 0xFFFF):
        book.case(f"{name}_{value}", rule, setup, "It asks for more than the client is to send.", *before,
                  lowers(back(answer(mss(most))), answer(mss(value))))
    for value in (536, most):
        book.case(f"{name}_{value}", "mss.answer", setup, "It asks for no more than that.", *before,
                  back(answer(mss(value))))
    book.case(f"{name}_none", "mss.without", setup, "It asks for nothing.", *before, back(answer({"flags": "SA"})))
    book.case(f"{name}_later", later, setup, "Only a SYN+ACK asks.", *before,
              back(answer({**mss(1460), "flags": "A"})))


def to_clients():
    book = Book("nat_back", "NAT on the way back: what a backend sends to a client is the service's.")
    book.setup("port", pool(port=PORT), services())
    book.setup("same", pool(), services())
    book.setup("any", pool(), services(None, None))
    book.setup("own", pool(port=PORT), services(), own_macs=[OUR_MAC])
    # What quotes a datagram may be about a tunnel's, too, where there are some.
    beside = [backend(3, FAR, tunnel=tunnel("fou", False))]
    book.setup("port_beside", pool(port=PORT) + beside, services())
    book.setup("any_beside", pool() + beside, services(None, None))
    for setup, (given, most) in LIMITS.items():
        book.setup(setup, pool(port=PORT, **given), services())
        for family in (4, 6):
            vip, silent = (VIP, SILENT) if family == 4 else (VIP6, SILENT6)
            made = lambda tcp, **other: answer(family, from_tcp(**tcp), **other)
            asks_for_less(book, setup, family, most[family], made, lambda packet: back(packet, vip, 80), "back.limited",
                          later="back.plain" if family == 4 else "mss.no_syn")
            book.case(f"{setup}_{NAMES[family]}_silent", "back.kernels_limited", setup, "The kernel forwards it.",
                      lowers(kernels(made(mss(most[family]), dst=silent), vip, 80), made(mss(1460), dst=silent)),
                      needs=["next_hops"])
    for family in (4, 6):
        name, vip = NAMES[family], VIP if family == 4 else VIP6
        inside = INSIDE if family == 4 else INSIDE6
        ttl = "ttl" if family == 4 else "hlim"
        pick = lambda four, six: four if family == 4 else six
        for setup, ports, to_ports in (("port", (PORT, PORT), (80, 53)), ("same", (80, 53), (None, None)),
                                       ("any", (1234, 4321), (None, None))):
            rule = "back.any_port" if setup == "any" else pick("back.plain", "back.sent")
            for flags in ("SA", "A", "FA", "R"):
                book.case(f"{setup}_{name}_{flags.lower()}", rule, setup, "An answer is the service's.",
                          back(answer(family, from_tcp(ports[0], flags=flags), data(9 if flags == "A" else 0)), vip, to_ports[0]))
            book.case(f"{setup}_{name}_udp", rule, setup, "So is a datagram.",
                      back(answer(family, from_udp(ports[1]), data(7)), vip, to_ports[1]))
            book.case(f"{setup}_{name}_udp_unsummed", "nat.udp_unsummed", setup, "One without a checksum keeps none.",
                      back(answer(family, from_udp(ports[1], sum=0), data(7)), vip, to_ports[1]))
        for tags, said in TAGS:
            book.case(f"{name}_{said}", "l2.untag", "port", "The frame's tags come off.",
                      back(answer(family, from_tcp(), data(3), tags=tags), vip, 80))
        book.case(f"{name}_padded", pick("back.plain", "back.sent"), "port", "Padding stays behind the packet.",
                  back(answer(family, from_tcp(), pad=bytes(6)), vip, 80))
        book.case(f"{name}_again", pick("back.plain", "back.fits"), "port", "The way is kept for a while.",
                  *[back(answer(family, from_tcp(), data(size)), vip, 80) for size in range(3)])
        for setup in ("port", "same", "own"):
            both = (PORT, PORT, 80, 53) if setup != "same" else (80, 53, None, None)
            mac = {"mac": eth(dst=OUR_MAC)} if setup == "own" else {}
            for said, *more in (("whole",), ("with_options", {"options": b"\1" * 8}), ("of_the_last_hop", {ttl: 2})):
                if family == 6 and said == "with_options":
                    continue
                head = more[0] if more else {}
                book.case(f"{setup}_{name}_again_{said}", pick("back.fits" if said == "with_options" else "back.plain", "back.fits"),
                          setup, "By a way that is known, an answer is the service's as well.",
                          *[back(answer(family, body, data(size), **head, **mac), vip, port)
                            for size, body, port in ((0, from_tcp(both[0], flags="SA"), both[2]), (9, from_tcp(both[0]), both[2]),
                                                     (7, from_udp(both[1]), both[3]), (7, from_udp(both[1], sum=0), both[3]))])
        book.case(f"{name}_there_and_back", pick("back.plain", "back.sent"), "port", "A connection, both ways.",
                  there(Packet(eth(), ip(family), tcp(flags="S")), pool(port=PORT)[family == 6], new=True),
                  back(answer(family, from_tcp(flags="SA")), vip, 80))
        known = back(answer(family, from_tcp(), data(1)), vip, 80)
        book.case(f"{name}_again_ttl_1", "back.ttl", "port", "Also where the way is known, the kernel tells the backend.",
                  known, passes(answer(family, from_tcp(), **{ttl: 1}), "ttl_exceeded"))
        book.case(f"{name}_again_other_port", "back.none", "port", "The backend's other ports are its own, also where the way is known.",
                  known, passes(answer(family, from_tcp(PORT + 1)), "no_service"))
        book.case(f"{name}_again_flooded", "back.other_host", "own", "A frame to another host, whose way is known.",
                  known, passes(answer(family, from_tcp(), mac=eth(dst="02:00:00:00:00:77")), "no_service"))
        for tags, said in TAGS:
            book.case(f"{name}_again_{said}", "l2.untag", "port", "Where the way is known, tags come off as well.",
                      known, back(answer(family, from_tcp(), data(3), tags=tags), vip, 80))
        for left in (0, 1):
            book.case(f"{name}_ttl_{left}", "back.ttl", "port", "Its TTL is used up: the kernel tells the backend.",
                      passes(answer(family, from_tcp(), **{ttl: left}), "ttl_exceeded"))
        book.case(f"{name}_other_port", "back.none", "port", "The backend's other ports are its own.",
                  passes(answer(family, from_tcp(PORT + 1)), "no_service"))
        book.case(f"{name}_other_host", "back.none", "port", "So are other hosts'.",
                  passes(answer(family, from_tcp(), src=pick("10.6.0.2", "2001:db8:6::2")), "no_service"))
        book.case(f"{name}_flooded", "back.other_host", "own", "A frame to another host.",
                  passes(answer(family, from_tcp(), mac=eth(dst="02:00:00:00:00:77")), "no_service"))
        for who, said in ((pick(THIS_HOST, THIS_HOST6), "this_host"), (pick(NOWHERE, NOWHERE6), "nowhere")):
            book.case(f"{name}_to_{said}", "back.nowhere", "port", "It is for this host, as of a health check; or no way leads there.",
                      passes(answer(family, from_tcp(), dst=who), "no_service"), needs=["next_hops"])
        silent = pick(SILENT, SILENT6)
        for body, said, port in ((from_tcp(), "tcp", 80), (from_udp(), "udp", 53)):
            book.case(f"{name}_silent_{said}", "back.kernels", "port", "The kernel asks for the neighbour, and forwards it.",
                      kernels(answer(family, body, data(5), dst=silent), vip, port), needs=["next_hops"])
        small, most = pick(SMALL, SMALL6), 600 if family == 4 else 1300
        header = 40 if family == 4 else 60
        book.case(f"{name}_fits", pick("back.plain", "back.fits"), "port", "It is just as large as the way takes.",
                  back(answer(family, from_tcp(), data(most - header), dst=small), vip, 80), needs=["next_hops"])
        big = answer(family, from_tcp(), data(most - header + 1), dst=small)
        book.case(f"{name}_too_big", "back.too_big", "port", "The kernel tells the backend what fits.",
                  passes(big, "too_big"), needs=["next_hops"])
        book.case(f"{name}_again_too_big", "back.too_big", "port", "So it does where the way is known.",
                  back(answer(family, from_tcp(), data(most - header), dst=small), vip, 80), passes(big, "too_big"),
                  needs=["next_hops"])
        for kind in ([(3, 4), (3, 1), (11, 0)] if family == 4 else [(2, 0), (1, 4), (3, 0)]):
            for body, said, port in ((Tcp(sport=5555, dport=PORT, flags="PA"), "tcp", 80),
                                     (Udp(sport=5555, dport=PORT), "udp", 53)):
                for keep in (None, 8):
                    made = [Packet(Ip(src=CLIENT, dst=to) if family == 4 else Ip6(src=CLIENT6, dst=to),
                                   body.but(dport=dport), data(40)).bytes()
                            for to, dport in ((inside, PORT), (vip, port))]
                    before, after = (whole if keep is None else whole[:(20 if family == 4 else 40) + keep] for whole in made)
                    book.case(f"{name}_error_{kind[0]}_{kind[1]}_{said}_{keep or 'all'}", "nat.with_quote", "port",
                              "An error about what was sent to a backend is the service's, about what the client has sent.",
                              back(error(family, kind, before, pick(CLIENT, CLIENT6)), vip, None, quote=after))
        made = [Packet(Ip(src=CLIENT, dst=to) if family == 4 else Ip6(src=CLIENT6, dst=to),
                       Tcp(sport=5555, dport=1234, flags="PA"), data(40)).bytes() for to in (inside, vip)]
        book.case(f"{name}_error_any_port", "back.about_any_port", "any", "An error about a packet to any port of a backend.",
                  back(error(family, pick((3, 4), (2, 0)), made[0], pick(CLIENT, CLIENT6)), vip, None, quote=made[1]))
        for setup, rule, inner, outer in (("port_beside", "back.about_nat", PORT, 53),
                                          ("any_beside", "back.about_any_port", 1234, 1234)):
            made = [Packet(Ip(src=CLIENT, dst=to) if family == 4 else Ip6(src=CLIENT6, dst=to),
                           Udp(sport=5555, dport=dport), data(40)).bytes() for to, dport in ((inside, inner), (vip, outer))]
            book.case(f"{name}_error_{setup}", rule, setup, "An error about a backend's datagram, which is no tunnel's.",
                      back(error(family, pick((3, 4), (2, 0)), made[0], pick(CLIENT, CLIENT6)), vip, None, quote=made[1]))
        head = Ip(src=ROUTER, dst=CLIENT, df=0) if family == 4 else Ip6(src=ROUTER6, dst=CLIENT6)
        asks = Icmp(type=pick(8, 128), code=0, word=7, v6=family == 6)
        book.case(f"{name}_no_error", "back.about_nothing", "port", "An echo request to somebody quotes nothing.",
                  passes(Packet(eth(), head, asks, data(8)), "other_protocol"))
        foreign = Packet(Ip(src=CLIENT, dst=NOBODY) if family == 4 else Ip6(src=CLIENT6, dst=NOBODY6),
                         Tcp(sport=5555, dport=PORT), data(40)).bytes()
        book.case(f"{name}_error_about_others", "back.none", "port", "An error about what was sent to others.",
                  passes(error(family, pick((3, 1), (1, 4)), foreign, pick(CLIENT, CLIENT6)), "no_service"))
    made = answer(4, from_tcp(), data(561), dst=SMALL, df=0)
    book.case("ipv4_may_be_cut", "back.cut", "port", "Without DF the kernel makes pieces of it.",
              kernels(made, VIP, 80), needs=["next_hops"])
    fragments_back(book)
    made = answer(6, Ext(of=HOP), from_tcp(), data(8))
    book.case("ipv6_extension", "nat.extension", "port", "The ports are behind extension headers.", back(made, VIP6, 80))
    return book


def piece_of(answer, family):
    """Makes a first fragment of what a backend sends, or another one."""
    def piece(number, body, *more, proto=17, first=False, **other):
        place = {"mf": 1} if first else {"frag": 2}
        if family == 4:
            of = {} if first else {"proto": proto}
            return answer(4, body, *more, df=0, id=number, **place, **of, **other)
        of = {} if first else {"next": proto}
        return answer(6, Ext(of=FRAGMENT, id=number, **place, **of), body, *more, **other)
    return piece


def fragments_back(book):
    """The first one has the port, which says whose answer it is; the others have its identification."""
    for family in (4, 6):
        name, vip, src = NAMES[family], VIP if family == 4 else VIP6, "10.6.0.2" if family == 4 else "2001:db8:6::2"
        piece = piece_of(answer, family)

        for at, (setup, body, port, own) in enumerate((("port", from_tcp(), 80, 6), ("port", from_udp(len=4000), 53, 17),
                                                       ("same", from_udp(53, len=4000), None, 17),
                                                       ("any", from_udp(4321, len=4000), None, 17))):
            wrong = {"wrong": ["udp len"]} if own == 17 else {}
            first = piece(43001 + at, body, data(8), first=True)
            later = piece(43001 + at, data(24), proto=own)
            book.case(f"{name}_fragments_{setup}_{own}", "service.later_answer", setup,
                      "The fragments of an answer follow its first one to the client.",
                      back(first, vip, port, **wrong), back(later, vip, None), back(later, vip, None))
        first, later = piece(43011, from_udp(len=4000), data(8), first=True), piece(43011, data(24))
        wrong = {"wrong": ["udp len"]}
        book.case(f"{name}_fragments_swapped", "fragment.no_answer", "port",
                  "What comes before the first one is the kernel's, and what comes behind it follows.",
                  passes(later, "later_fragment"), back(first, vip, 53, **wrong), back(later, vip, None))
        book.case(f"{name}_fragments_old", "fragment.no_answer", "port", "The first one was here too long ago.",
                  back(first, vip, 53, **wrong), change(seconds=61), passes(later, "later_fragment"))
        book.case(f"{name}_fragments_of_another_packet", "fragment.no_answer", "port", "Another identification, or another host.",
                  back(first, vip, 53, **wrong), passes(piece(43012, data(24)), "later_fragment"),
                  passes(piece(43011, data(24), src=src), "later_fragment"))
        other = piece(43011, from_udp(PORT + 1, len=4000), data(8), first=True)
        book.case(f"{name}_fragments_of_the_next_packet", "fragment.answer_forgotten", "port",
                  "A packet from another port, with the identification of an answer, is none.",
                  back(first, vip, 53, **wrong), back(later, vip, None), passes(other, "no_service", **wrong),
                  passes(later, "later_fragment"))
        strange = piece(43013, from_udp(PORT + 1, len=4000), data(8), first=True)
        book.case(f"{name}_fragments_of_others", "fragment.no_answer", "port", "The backend's other ports are its own.",
                  passes(strange, "no_service", **wrong), passes(piece(43013, data(24)), "later_fragment"))
        second = [piece(43014, from_udp(len=4000), data(8), first=True), piece(43014, data(24))]
        book.case(f"{name}_fragments_noted", "service.first_answer", "port", "Two packets at the same time.",
                  back(first, vip, 53, **wrong), back(second[0], vip, 53, **wrong), back(later, vip, None),
                  back(second[1], vip, None))
        for left in (3, 7):
            short = piece(43015, data(left), first=True, proto=17)
            short = Packet(*[layer.but(proto=17) if isinstance(layer, Ip) else layer.but(next=17) if isinstance(layer, Ext)
                             else layer for layer in short.layers])
            book.case(f"{name}_fragment_of_{left}", "reject.pass", "port", "A first fragment without the whole UDP header.",
                      passes(short, "truncated_udp"))


def books():
    return [to_backends(), to_clients()]
