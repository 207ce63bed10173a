"""Full NAT (docs/forwarding.md): both ends are others, those of the backend and of the balancer on the way there,
those of the client and of the service on the way back. The balancer has one address of each family, and one port for
each backend, so that what comes out does not depend on a key."""

from errors import ROUTER, ROUTER6
from messages import MANY, told
from model import (CLIENT, CLIENT6, OUR_MAC, TAGGED, DEVICES, VIP, VIP6, Book, Step, backend, change, drops, eth,
                   length_of, passes, sends, service, way_tags)
from packet import FRAGMENT, HOP, Eth, Ext, Icmp, Ip, Ip6, Packet, Raw, Tcp, Udp
from parsing import NAMES, data, tcp, udp
from translated import (INSIDE, INSIDE6, LEAVING_MAC, LIMITS, NEXT_MAC, NOWHERE, NOWHERE6, PORT, SILENT, SILENT6, SMALL,
                        SMALL6, TAGS, asks_for_less, error, other_end, piece_of, tells_sender)
from translated import back as plainly

OWN, OWN6, SOURCE, UNUSED = "10.7.0.1", "2001:db8:7::1", 2000, 2001
OTHER_CLIENT, OTHER_CLIENT6 = "10.1.0.9", "2001:db8:1::9"
# What a mapping is kept for, in seconds, and a little more (weir_plane::forward::MappingTicks).
OPENING, CLOSED = 40, 130


def ip(family, **other):
    """From a client to a service."""
    if family == 4:
        return Ip(**{"src": CLIENT, "dst": VIP, **other})
    return Ip6(**{"src": CLIENT6, "dst": VIP6, **other})


def pick(family, four, six):
    return four if family == 4 else six


def both(packet, target, target_port, source, source_port, ttl=1):
    """The layers from the IP header on, with other ends."""
    there = Packet(*other_end(packet, "dst", target, target_port, ttl))
    return other_end(there, "src", source, source_port, 0)


def there(packet, to, quote=None, port=SOURCE, own=None, **other):
    """On its way to the backend; `quote`: what an error about the backend's packets quotes then."""
    packet.bytes()
    layers = both(packet, to["address"], to["full_nat"].get("port"), own or pick_own(packet), port)
    if quote is not None:
        layers[-1] = Raw(data=quote)
    head = Eth(dst=to["mac"], src=to["source_mac"])
    out = Packet(head, *way_tags(packet, to.get("interface", 0)), *layers, pad=packet.pad)
    return sends(packet, to, out=out, **other)


def pick_own(packet):
    return OWN if isinstance(packet.layers[packet.l3()], Ip) else OWN6


def back(packet, client, client_port, vip, port, quote=None, **other):
    """On its way to the client, from the service."""
    packet.bytes()
    layers = both(packet, client, client_port, vip, port)
    if quote is not None:
        layers[-1] = Raw(data=quote)
    out = Packet(Eth(dst=NEXT_MAC, src=LEAVING_MAC), *layers, pad=packet.pad)
    return Step(packet=packet, verdict="redirect", returned=True, bytes=length_of(packet), out=out, **other)


def kernels(packet, client, vip):
    """The kernel forwards it: translated, in the frame that it came in, with the TTL that it has."""
    packet.bytes()
    out = Packet(*packet.layers[:packet.l3()], *both(packet, client, 5555, vip, 80, ttl=0), pad=packet.pad)
    return Step(packet=packet, verdict="pass", reason="answer", out=out)


def pool(**other):
    given = {key: other.pop(key) for key in ("port", "mtu") if key in other}
    return [backend(1, INSIDE, full_nat=given, **other), {**backend(2, INSIDE6, full_nat=given, **other)}]


def services():
    return [service(VIP, 80), service(VIP, 53, "udp"),
            service(VIP6, 80, backends=("b2",)), service(VIP6, 53, "udp", backends=("b2",))]


def answer(family, body, *more, dst=None, src=None, tags=(), mac=None, pad=b"", **head):
    """What a backend sends to the balancer."""
    if family == 4:
        made = Ip(src=src or INSIDE, dst=dst or OWN, **head)
    else:
        made = Ip6(src=src or INSIDE6, dst=dst or OWN6, **head)
    return Packet(mac or eth(), *tags, made, body, *more, pad=pad)


def from_tcp(port=PORT, **other):
    return Tcp(**{"sport": port, "dport": SOURCE, "flags": "A", **other})


def from_udp(port=PORT, **other):
    return Udp(**{"sport": port, "dport": SOURCE, **other})


def to_backends():
    book = Book("full_nat", "Full NAT on the way to the backend: both ends are others, one less of TTL.")
    sets = {"port": pool(port=PORT), "same": pool(), "small": pool(port=PORT, mtu=1400),
            "tagged": pool(port=PORT, interface=TAGGED)}
    for name, made in sets.items():
        book.setup(name, made, services(), **({"devices": DEVICES} if name == "tagged" else {}))
    book.setup("tells", sets["small"], services(), errors=MANY)
    for family in (4, 6):
        name, header = NAMES[family], pick(family, 40, 60)
        ttl = pick(family, "ttl", "hlim")
        for setup, made in sets.items():
            to = made[pick(family, 0, 1)]
            needs = {"needs": ["tags"]} if setup == "tagged" else {}
            syn = Packet(eth(), ip(family), tcp(flags="S", options=bytes([2, 4, 5, 180])))
            book.case(f"{setup}_{name}_syn", "mapping.claimed", setup, "A SYN gets a port of the balancer's.",
                      there(syn, to, new=True), **needs)
            segment = Packet(eth(), ip(family, **({"tos": 0xB9, "id": 77, "ttl": 9} if family == 4 else
                                                  {"tc": 0xB9, "label": 0x12345, "hlim": 9})), tcp(flags="PA"), data(101))
            book.case(f"{setup}_{name}_connection", "mapping.found", setup, "Its segments keep it.",
                      there(syn, to, new=True), there(segment, to), there(segment, to), **needs)
            book.case(f"{setup}_{name}_segment", "full.tcp", setup,
                      "A segment of a connection that is not known gets the port that its SYN would get.",
                      there(segment, to), **needs)
            book.case(f"{setup}_{name}_udp", "full.both", setup, "A datagram.",
                      there(Packet(eth(), ip(family), udp(), data(7)), to, new=True), **needs)
            book.case(f"{setup}_{name}_udp_unsummed", "nat.udp_unsummed", setup, "A datagram without a checksum keeps none.",
                      there(Packet(eth(), ip(family), udp(sum=0), data(7)), to, new=True), **needs)
            for tags, said in TAGS:
                book.case(f"{setup}_{name}_{said}", "full.there", setup, "The frame's tags come off.",
                          there(Packet(eth(), *tags, ip(family), tcp(), data(3)), to), needs=["tags"])
            book.case(f"{setup}_{name}_padded", "nat.full", setup, "Padding stays behind the packet.",
                      there(Packet(eth(), ip(family), tcp(), pad=bytes(6)), to), **needs)
        to = sets["port"][pick(family, 0, 1)]
        for left in (0, 1):
            for body, said in ((tcp(), "tcp"), (udp(), "udp")):
                book.case(f"{name}_ttl_{left}_{said}", f"full.ttl{family}", "port", "Whatever loop there is ends.",
                          drops(Packet(eth(), ip(family, **{ttl: left}), body), "untold"))
        for left in (2, 255):
            book.case(f"{name}_ttl_{left}", f"nat.aged{family}", "port", "One is taken from the TTL.",
                      there(Packet(eth(), ip(family, **{ttl: left}), tcp()), to))
        small = sets["small"][pick(family, 0, 1)]
        book.case(f"{name}_fits", "full.there", "small", "It is just as large as the way takes.",
                  there(Packet(eth(), ip(family), tcp(), data(1400 - header)), small))
        book.case(f"{name}_too_big", "full.too_big", "small", "It is a byte larger than the way takes.",
                  drops(Packet(eth(), ip(family), tcp(), data(1401 - header)), "untold"))
        tells_sender(book, family, "full", ip(family), header)
        # One port only: who comes second finds none, until the first has ended and rested.
        mine = Packet(eth(), ip(family), tcp(flags="S"))
        others = Packet(eth(), ip(family, src=pick(family, OTHER_CLIENT, OTHER_CLIENT6)), tcp(flags="S"))
        full = drops(others, "no_port")
        took = there(others, to, new=True)
        book.case(f"{name}_no_port", "full.no_port", "port", "All ports that the connection could have are in use.",
                  there(mine, to, new=True), full)
        book.case(f"{name}_never_answered", "mapping.aged", "port", "One that is not answered gives its port up soon.",
                  there(mine, to, new=True), change(seconds=OPENING - 15), full, change(seconds=20), took)
        answered = back(answer(family, from_tcp(flags="SA")), pick(family, CLIENT, CLIENT6), 5555,
                        pick(family, VIP, VIP6), 80)
        book.case(f"{name}_open", "mapping.answered", "port", "An open one keeps it.",
                  there(mine, to, new=True), answered, change(seconds=CLOSED), full)
        fin = Packet(eth(), ip(family), tcp(flags="FA"))
        fin_back = back(answer(family, from_tcp(flags="FA")), pick(family, CLIENT, CLIENT6), 5555,
                        pick(family, VIP, VIP6), 80)
        ended = [there(mine, to, new=True), answered, there(fin, to), fin_back]
        book.case(f"{name}_rests", "mapping.ended", "port", "A port rests when the connection has ended: TIME_WAIT.",
                  *ended, change(seconds=CLOSED - 40), full, change(seconds=40), took)
        book.case(f"{name}_half_closed", "mapping.ended", "port", "One end alone does not end it.",
                  *ended[:3], change(seconds=CLOSED), full)
        book.case(f"{name}_anew", "mapping.anew", "port", "Its client may use it again at once.",
                  *ended, there(mine, to, new=True), change(seconds=OPENING), took)
        reset = Packet(eth(), ip(family), tcp(flags="R"))
        book.case(f"{name}_reset", "mapping.reset", "port", "A reset ends it.",
                  *ended[:2], there(reset, to), change(seconds=CLOSED), took)
        book.case(f"{name}_reset_of_nobody", "mapping.reset", "port", "One that is followed by more did not.",
                  *ended[:2], there(reset, to), there(Packet(eth(), ip(family), tcp()), to), change(seconds=CLOSED), full)
        former, latter = (backend(number, pick(family, INSIDE, INSIDE6), full_nat={"port": PORT}) for number in (1, 3))
        book.setup(f"{name}_anew", [former, latter], [service(pick(family, VIP, VIP6), 80)])
        book.case(f"{name}_gone", "mapping.gone", f"{name}_anew", "A port rests when the backend has gone.",
                  there(mine, former, new=True), answered, change(gone="b1"), change(pool=["b3"]), full,
                  change(seconds=CLOSED - 40), full, change(seconds=40), there(others, latter, new=True))
        # What no client sends takes no port: there is one only, and another client gets it.
        inside, vip = pick(family, INSIDE, INSIDE6), pick(family, VIP, VIP6)
        same, asks = sets["same"][pick(family, 0, 1)], Packet(eth(), others.layers[1], udp(), data(3))
        took_udp = there(asks, to, new=True)
        for made, said, port in ((tcp, "tcp", 80), (udp, "udp", 53)):
            def own(port, **head):
                return Packet(eth(), ip(family, src=inside, **head), made(sport=port), data(3))

            new = said == "udp"
            book.case(f"{name}_itself_{said}", "full.itself", "port", "A backend that is answered talks to itself without end.",
                      drops(own(PORT), "no_client"), took_udp if new else took)
            book.case(f"same_{name}_itself_{said}", "full.itself", "same", "The same where it has the service's port.",
                      drops(own(port), "no_client"), there(asks if new else others, same, new=True))
            book.case(f"{name}_own_host_{said}", "full.client", "port", "From another port a backend's host is a client.",
                      there(own(PORT + 1), to, new=new))
            book.case(f"same_{name}_own_host_{said}", "full.client", "same", "The same where it has the service's port.",
                      there(own(PORT), same, new=new))
            book.case(f"{name}_itself_ttl_{said}", f"full.ttl{family}", "port", "That its TTL is used up is seen first.",
                      drops(own(PORT, **{ttl: 1}), "untold"))
        nobodies = pick(family, ("224.0.0.1", "0.0.0.0", "255.255.255.255", "127.0.0.1", "240.0.0.1"), ("::", "::1", "ff02::1"))
        for at, source in enumerate(nobodies):
            book.case(f"{name}_from_no_host_{at}", f"full.no_host{family}", "port", f"{source} is no single host's.",
                      drops(Packet(eth(), ip(family, src=source), tcp(flags="S")), "no_client"),
                      drops(Packet(eth(), ip(family, src=source), udp(), data(3)), "no_client"), took, took_udp)
        book.case(f"{name}_from_no_host_ttl", f"full.ttl{family}", "port", "Nobody is told that its TTL is used up.",
                  drops(Packet(eth(), ip(family, src=nobodies[0], **{ttl: 1}), udp(), data(3)), "ttl_exceeded"))
        book.case(f"{name}_from_the_service", "full.own_address", "port", "The service is no client of itself.",
                  drops(Packet(eth(), ip(family, src=vip), tcp(flags="S")), "no_client"), took)
        for kind in pick(family, [(3, 4), (3, 1), (11, 0)], [(2, 0), (1, 4), (3, 0)]):
            for body, said, own, opens in ((Tcp(sport=80, dport=5555, flags="PA"), "tcp", PORT, mine),
                                           (Udp(sport=53, dport=5555), "udp", PORT,
                                            Packet(eth(), ip(family), udp(), data(3)))):
                for keep in (None, 8):
                    before, after = (quote(family, *ends, body.but(sport=sport, dport=dport), keep)
                                     for ends, sport, dport in (
                                         ((pick(family, VIP, VIP6), pick(family, CLIENT, CLIENT6)), body.get("sport"), 5555),
                                         ((to["address"], pick(family, OWN, OWN6)), own, SOURCE)))
                    made = error(family, kind, before, pick(family, VIP, VIP6))
                    book.case(f"{name}_{kind[0]}_{kind[1]}_{said}_{keep or 'all'}", "full.quoted", "port",
                              "An error about what the backend has sent quotes what it has sent.",
                              there(opens, to, new=True), there(made, to, quote=after, port=None))
        stray = error(family, pick(family, (3, 4), (2, 0)),
                      quote(family, pick(family, VIP, VIP6), pick(family, CLIENT, CLIENT6),
                            Tcp(sport=80, dport=5555, flags="PA"), None), pick(family, VIP, VIP6))
        book.case(f"{name}_error_makes_nothing", "mapping.none", "port", "An error about a connection that is not known makes none.",
                  drops(stray, "no_mapping"), there(others, to, new=True))
    to, to6 = sets["port"]
    book.case("ipv4_options", "full.tcp", "port", "IP options stay; the ports are behind them.",
              there(Packet(eth(), ip(4, options=b"\1" * 8), tcp()), to))
    book.case("ipv6_extension", "full.extension", "port", "The ports are behind extension headers.",
              there(Packet(eth(), ip(6), Ext(of=HOP), tcp(), data(4)), to6))
    for at, (body, proto, new) in enumerate(((tcp(), 6, False), (udp(len=4000), 17, True))):
        wrong = {"wrong": ["udp len"]} if proto == 17 else {}
        first = Packet(eth(), ip(4, mf=1, df=0, id=44001 + at), body, data(8))
        later = Packet(eth(), ip(4, df=0, frag=2, id=44001 + at, proto=proto), data(24))
        book.case(f"ipv4_fragments_{proto}", "full.later_fragment", "port", "Only the first one has ports; the others follow it.",
                  there(first, to, new=new, **wrong), there(later, to, port=None))
        first = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=44003 + at), body, data(8))
        later = Packet(eth(), ip(6), Ext(of=FRAGMENT, frag=2, id=44003 + at, next=proto), data(24))
        book.case(f"ipv6_fragments_{proto}", "full.fragment6", "port", "Only the first one has ports; the others follow it.",
                  there(first, to6, new=new, **wrong), there(later, to6, port=None))
    # The first one found no port, so the others have nobody to come from.
    taken = Packet(eth(), ip(4, src=OTHER_CLIENT), udp(), data(3))
    first = Packet(eth(), ip(4, mf=1, df=0, id=44010), udp(len=4000), data(8))
    later = Packet(eth(), ip(4, df=0, frag=2, id=44010, proto=17), data(24))
    book.case("ipv4_lost_fragment", "full.lost_fragment", "port", "Without the first one the others go nowhere.",
              there(taken, to, new=True), drops(first, "no_port"), drops(later, "no_mapping"))
    first = Packet(eth(), ip(4, src=INSIDE, mf=1, df=0, id=44011), udp(sport=PORT, len=4000), data(8))
    later = Packet(eth(), ip(4, src=INSIDE, df=0, frag=2, id=44011, proto=17), data(24))
    book.case("ipv4_itself_in_fragments", "full.no_client", "port", "Nor does a backend talk to itself in fragments.",
              drops(first, "no_client"), drops(later, "no_mapping"))
    first = Packet(eth(), ip(6, src=INSIDE6), Ext(of=FRAGMENT, mf=1, id=44012), udp(sport=PORT, len=4000), data(8))
    later = Packet(eth(), ip(6, src=INSIDE6), Ext(of=FRAGMENT, frag=2, id=44012, next=17), data(24))
    book.case("ipv6_itself_in_fragments", "full.no_client", "port", "Nor does a backend talk to itself in fragments.",
              drops(first, "no_client"), drops(later, "no_mapping"))
    return book


def quote(family, src, dst, body, keep):
    head = Ip(src=src, dst=dst) if family == 4 else Ip6(src=src, dst=dst)
    whole = Packet(head, body, data(40)).bytes()
    return whole if keep is None else whole[:pick(family, 20, 40) + keep]


def to_clients():
    book = Book("full_nat_back", "Full NAT on the way back: what comes to the balancer's port is the service's.")
    book.setup("port", pool(port=PORT), services())
    book.setup("same", pool(), services())
    book.setup("own", pool(port=PORT), services(), own_macs=[OUR_MAC])
    book.setup("tells", pool(port=PORT), services(), errors=MANY)
    for setup, (given, most) in LIMITS.items():
        limited = pool(port=PORT, **given)
        book.setup(setup, limited, services())
        for family in (4, 6):
            vip, client = pick(family, VIP, VIP6), pick(family, CLIENT, CLIENT6)
            asks_for_less(book, setup, family, most[family], lambda tcp: answer(family, from_tcp(**tcp)),
                          lambda packet: back(packet, client, 5555, vip, 80), "back.full_limited",
                          there(Packet(eth(), ip(family), tcp(flags="S")), limited[family == 6], new=True))
    for family in (4, 6):
        name, ttl = NAMES[family], pick(family, "ttl", "hlim")
        vip, client = pick(family, VIP, VIP6), pick(family, CLIENT, CLIENT6)
        to = pool(port=PORT)[pick(family, 0, 1)]
        syn = there(Packet(eth(), ip(family), tcp(flags="S")), to, new=True)
        asks = there(Packet(eth(), ip(family), udp(), data(3)), to, new=True)
        home = lambda packet, port=80, **other: back(packet, client, 5555, vip, port, **other)
        for flags in ("SA", "A", "FA", "R"):
            book.case(f"{name}_{flags.lower()}", "back.full_sent", "port", "An answer is the service's.",
                      syn, home(answer(family, from_tcp(flags=flags), data(9 if flags == "A" else 0))))
        same = pool()[pick(family, 0, 1)]
        book.case(f"{name}_same_port", "mapping.back", "same", "The backend listens on the service's port.",
                  there(Packet(eth(), ip(family), tcp(flags="S")), same, new=True),
                  home(answer(family, from_tcp(80, flags="SA"))))
        book.case(f"{name}_udp", "mapping.answered", "port", "So is a datagram.", asks,
                  home(answer(family, from_udp(), data(7)), 53))
        from_0 = there(Packet(eth(), ip(family), udp(sport=0), data(3)), to, new=True)
        to_0 = back(answer(family, from_udp(), data(7)), client, 0, vip, 53)
        book.case(f"{name}_udp_port_0", "mapping.answered", "port", "A client that sends from port 0 is answered there.",
                  from_0, to_0)
        book.case(f"{name}_udp_unsummed", "nat.udp_unsummed", "port", "One without a checksum keeps none.", asks,
                  home(answer(family, from_udp(sum=0), data(7)), 53))
        plain = backend(4, to["address"], nat={"port": PORT})
        book.setup(f"{name}_both", [to, plain], [service(vip, 80, backends=(to["name"],)), service(vip, 81, backends=("b4",))])
        book.case(f"{name}_both", "service.full_nat", f"{name}_both", "Its backend is another service's, too, under plain NAT.",
                  syn, home(answer(family, from_tcp(flags="SA"))),
                  plainly(answer(family, from_tcp(dport=5555, flags="SA"), dst=client), vip, 81))
        for tags, said in TAGS:
            book.case(f"{name}_{said}", "l2.untag", "port", "The frame's tags come off.", syn,
                      home(answer(family, from_tcp(), data(3), tags=tags)), needs=["tags"])
        book.case(f"{name}_again", "back.full_fits", "port", "The way is kept for a while.", syn,
                  *[home(answer(family, from_tcp(), data(size))) for size in range(3)])
        for left in (0, 1):
            book.case(f"{name}_ttl_{left}", "back.full_refused", "port", "Its TTL is used up.", syn,
                      drops(answer(family, from_tcp(), **{ttl: left}), "ttl_exceeded"))
        book.case(f"{name}_unknown", "back.full_unknown", "port", "Nobody has the port.",
                  drops(answer(family, from_tcp()), "no_mapping"))
        piece = piece_of(answer, family)
        for number, begins, body, port, own in ((44101, syn, from_tcp(), 80, 6), (44102, asks, from_udp(len=4000), 53, 17)):
            wrong = {"wrong": ["udp len"]} if own == 17 else {}
            first, later = piece(number, body, data(8), first=True), piece(number, data(24), proto=own)
            book.case(f"{name}_fragments_{own}", "service.later_answer", "port",
                      "The fragments of an answer follow its first one to the client.",
                      begins, home(first, port, **wrong), back(later, client, None, vip, None))
            book.case(f"{name}_fragments_{own}_unknown", "back.full_unknown", "port", "Nobody has the port.",
                      drops(first, "no_mapping", **wrong), passes(later, "later_fragment"))
            early, late = piece(number + 10, body, data(8), first=True), piece(number + 10, data(24), proto=own)
            book.case(f"{name}_fragments_{own}_swapped", "fragment.no_answer", "port",
                      "What comes before the first one is the host's own, and what comes behind it follows.",
                      begins, passes(late, "later_fragment"), home(early, port, **wrong),
                      back(late, client, None, vip, None))
        book.case(f"{name}_unused", "mapping.unknown", "port", "Nobody has this one.", syn,
                  drops(answer(family, from_tcp(dport=UNUSED)), "no_mapping"))
        book.case(f"{name}_other_protocol", "mapping.unknown", "port", "Nobody has it of this protocol.", syn,
                  drops(answer(family, from_udp()), "no_mapping"))
        book.case(f"{name}_other_backend", "back.full_unknown", "port", "It is the port of a connection to another host.", syn,
                  drops(answer(family, from_tcp(), src=pick(family, "10.6.0.2", "2001:db8:6::2")), "no_mapping"))
        book.case(f"{name}_gone", "mapping.other_backend", "port", "Its backend is no more.", syn,
                  change(gone=to["name"]), drops(answer(family, from_tcp()), "no_mapping"))
        book.case(f"{name}_own_port", "back.full_own_port", "port", "Other ports are this host's, as of its health checks.",
                  syn, passes(answer(family, from_tcp(dport=40000)), "no_service"))
        book.case(f"{name}_flooded", "back.full_other_host", "own", "A frame to another host.",
                  passes(answer(family, from_tcp(), mac=eth(dst="02:00:00:00:00:77")), "no_service"))
        silent, nowhere = pick(family, SILENT, SILENT6), pick(family, NOWHERE, NOWHERE6)
        for who, said in ((silent, "silent"), (nowhere, "nowhere"), (pick(family, SMALL, SMALL6), "small")):
            opens = there(Packet(eth(), ip(family, src=who), tcp(flags="S")), to, new=True)
            if said == "silent":
                book.case(f"{name}_silent", "back.full_kernels", "port", "The kernel asks for the neighbour, and forwards it.",
                          opens, kernels(answer(family, from_tcp(), data(5)), who, vip), needs=["next_hops"])
            elif said == "nowhere":
                book.case(f"{name}_nowhere", "back.full_nowhere", "port", "No way leads to the client.",
                          opens, drops(answer(family, from_tcp(), data(5)), "no_next_hop"), needs=["next_hops"])
            else:
                most, header = pick(family, 600, 1300), pick(family, 40, 60)
                book.case(f"{name}_fits", "back.full_fits", "port", "It is just as large as the way takes.", opens,
                          back(answer(family, from_tcp(), data(most - header)), who, 5555, vip, 80), needs=["next_hops"])
                large = answer(family, from_tcp(), data(most - header + 1))
                book.case(f"{name}_too_big", "back.full_too_big", "tells", "The backend is told what fits, by the balancer.",
                          opens, told(large, family, "too_big_told", most, entered=False), needs=["next_hops"])
                book.case(f"{name}_too_big_untold", "back.full_too_big", "port", "No message may be sent.",
                          opens, drops(large, "untold"), needs=["next_hops"])
        for kind in pick(family, [(3, 4), (3, 1), (11, 0)], [(2, 0), (1, 4), (3, 0)]):
            for body, said, port, opens in ((Tcp(sport=SOURCE, dport=PORT, flags="PA"), "tcp", 80, syn),
                                            (Udp(sport=SOURCE, dport=PORT), "udp", 53, asks)):
                for keep in (None, 8):
                    own = pick(family, OWN, OWN6)
                    before, after = (quote(family, *ends, body.but(sport=sport, dport=dport), keep) for ends, sport, dport in (
                        ((own, to["address"]), SOURCE, PORT), ((client, vip), 5555, port)))
                    book.case(f"{name}_error_{kind[0]}_{kind[1]}_{said}_{keep or 'all'}", "mapping.quoted", "port",
                              "An error about what was sent to a backend is the service's, about what the client has sent.",
                              opens, back(error(family, kind, before, own), client, None, vip, None, quote=after))
    made = Packet(eth(), ip(4, src=SMALL), tcp(flags="S"))
    book.case("ipv4_may_be_cut", "back.full_kernels", "port", "Without DF the kernel makes pieces of it.",
              there(made, pool(port=PORT)[0], new=True),
              kernels(answer(4, from_tcp(), data(561), df=0), SMALL, VIP), needs=["next_hops"])
    return book


def books():
    return [to_backends(), to_clients()]
