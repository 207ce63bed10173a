"""SCTP (RFC 9260): its ports stand where those of UDP do, and its first chunk says what becomes of the
association. Nothing in it is changed."""

import full_nat
from errors import error, sent
from forwarding import FAR, FAR6, KINDS, tunnel
from messages import MANY, told
from model import (CLIENT, CLIENT6, DEVICES, OTHER, OUR_MAC, TAGGED, VIP, VIP6, Book, backend, change, drops, eth, passes,
                   sends, service)
from packet import DESTINATION, FRAGMENT, HOP, Ext, Ip, Ip6, Packet, Sctp, Vlan
from parsing import NAMES, data, ip, nobody, tcp, udp
from translated import INSIDE, INSIDE6, pool

B1 = backend(1)
PORT = 3868
INIT, INIT_ACK, ABORT, SHUTDOWN, SHUTDOWN_ACK, COOKIE_ECHO, COMPLETE = 1, 2, 6, 7, 8, 10, 14
ENDS = {"abort": ABORT, "shutdown_ack": SHUTDOWN_ACK, "shutdown_complete": COMPLETE}
# What goes on: DATA, INIT ACK, SACK, HEARTBEAT, SHUTDOWN, COOKIE ECHO, AUTH, I-DATA, FORWARD TSN.
OTHERS = (0, INIT_ACK, 3, 4, SHUTDOWN, COOKIE_ECHO, 15, 64, 192)


def services(**other):
    return [service(addr, PORT, "sctp", **other) for addr in (VIP, VIP6)]


def sctp(chunk=0, **other):
    return Sctp(**{"sport": 5555, "dport": PORT, "chunk": chunk, "tag": 0 if chunk == INIT else 0x01020304, **other})


def packet(family, chunk=0, *tags, size=16, mac=None, **other):
    return Packet(mac or eth(), *tags, ip(family, **other), sctp(chunk), data(size))


def about(family, size=16, **other):
    """What a backend has sent, and an error quotes."""
    made = sent(family, **other)
    return Packet(made.layers[0].but(**({"proto": 132} if family == 4 else {"next": 132})),
                  Sctp(sport=PORT, dport=5555), data(size))


def read(book):
    for family in (4, 6):
        name = NAMES[family]
        where = f"sctp.ipv{family}"
        for size in (0, 4, 16, 1200):
            book.case(f"{name}_init_{size}", "sctp.init", "plain", "An INIT without a tag begins a flow.",
                      sends(packet(family, INIT, size=size), B1, new=True))
        book.case(f"{name}_association", "sctp.goes_on", "plain", "An association from its first chunk to its last.",
                  sends(packet(family, INIT), B1, new=True), sends(packet(family, COOKIE_ECHO), B1),
                  *(sends(packet(family, 0, size=size), B1) for size in (4, 400)), sends(packet(family, 3), B1),
                  sends(packet(family, SHUTDOWN), B1), sends(packet(family, COMPLETE, size=0), B1))
        tagged = Packet(eth(), ip(family), sctp(INIT, tag=7), data(16))
        book.case(f"{name}_init_with_tag", "sctp.goes_on", "plain", "An INIT with a tag asks for no association.",
                  sends(tagged, B1))
        for tag in (1, 0x01000000):
            made = Packet(eth(), ip(family), sctp(INIT, tag=tag), data(16))
            book.case(f"{name}_init_with_tag_{tag}", "sctp.goes_on", "plain", "Any bit of a tag is one.", sends(made, B1))
        for said, chunk in ENDS.items():
            of = "sctp.abort" if chunk == ABORT else "sctp.shutdown"
            book.case(f"{name}_{said}", of, "plain", "The association ends: the packet goes where it lives.",
                      sends(packet(family, INIT), B1, new=True), sends(packet(family, chunk, size=0), B1))
            book.case(f"{name}_{said}_unknown", of, "plain", "The same of one that nobody knows begins none.",
                      sends(packet(family, chunk, size=0), B1))
        for chunk in OTHERS:
            book.case(f"{name}_chunk_{chunk}", "sctp.goes_on", "plain", "Any other chunk is one in the middle.",
                      sends(packet(family, chunk), B1))
        book.case(f"{name}_more_chunks", "sctp.goes_on", "plain", "The first chunk is read; what stands behind it is not.",
                  sends(Packet(eth(), ip(family), sctp(3, len=16), data(212)), B1))
        for tags, said in (([Vlan(id=7)], "tagged"), ([Vlan(id=7, tpid=0x88A8), Vlan(id=8)], "twice_tagged")):
            book.case(f"{name}_{said}", where, "plain", "Behind tags, which stay.", sends(packet(family, 0, *tags), B1))
        book.case(f"{name}_padded", where, "plain", "Padding is no part of the packet.",
                  sends(Packet(eth(), ip(family), sctp(), pad=bytes(6)), B1))
        book.case(f"{name}_wrong_sum", where, "plain", "The checksum is neither asked for nor changed.",
                  sends(Packet(eth(), ip(family), sctp(sum=0x12345678), data(8)), B1, wrong=["sctp sum"]))
        # What it is not.
        for body, said in ((tcp(dport=PORT), "tcp"), (udp(dport=PORT), "udp")):
            book.case(f"{name}_is_not_{said}", "service.none", "plain", "The port is of SCTP alone.",
                      passes(Packet(eth(), ip(family), body), "no_service"))
        for chunk in (INIT, 0, ABORT):
            made = Packet(eth(), ip(family), sctp(chunk, dport=80), data(8))
            book.case(f"{name}_other_port_{chunk}", "service.none", "plain", "A port of TCP, or none, is no service of SCTP.",
                      passes(made, "no_service"))
            made = Packet(eth(), ip(family, nobody(family)), sctp(chunk), data(8))
            book.case(f"{name}_nobody_{chunk}", "service.none", "plain", "SCTP for others is the kernel's.",
                      passes(made, "no_service"))
        book.case(f"{name}_flooded", "host.other", "own", "A frame to another host was flooded.",
                  drops(packet(family, 0, mac=eth(dst="02:00:00:00:00:77")), "other_host"))
        # What is too short or lies.
        for flag in (None, True):
            end, suffix, dst = (passes, "_no_vip", nobody(family)) if flag else (drops, "", None)
            for left in (0, 4, 11, 12, 15):
                said = {"len": (20 if family == 4 else 0) + left}
                book.case(f"{name}_left_{left}{suffix}", "sctp.truncated", "plain",
                          "The packet ends inside the SCTP header or its first chunk's.",
                          end(Packet(eth(), ip(family, dst, **said), sctp(), data(8)), "truncated_sctp"))
            for says in (0, 3, 13, 0xFFFF):
                book.case(f"{name}_chunk_of_{says}{suffix}", "sctp.chunk", "plain",
                          "The first chunk is shorter than its header, or longer than the packet.",
                          end(Packet(eth(), ip(family, dst), sctp(INIT, len=says), data(8)), "bad_sctp_chunk"))
        for says in (4, 5, 12):
            book.case(f"{name}_chunk_of_{says}_fits", "sctp.good", "plain", "It may be as long as what is there.",
                      sends(Packet(eth(), ip(family), sctp(len=says), data(8)), B1))
    for length in (4, 40):
        book.case(f"ipv4_options_{length}", "sctp.ipv4", "plain", "IP options stand before it.",
                  sends(packet(4, INIT, options=b"\1" * length), B1, new=True))
    for kinds in ((HOP,), (DESTINATION, HOP), (FRAGMENT,)):
        made = Packet(eth(), ip(6), *[Ext(of=kind) for kind in kinds], sctp(INIT), data(8))
        book.case(f"ipv6_behind_{'_'.join(map(str, kinds))}", "sctp.ipv6", "plain", "Extension headers stand before it.",
                  sends(made, B1, new=True))


def fragments(book):
    numbers = iter(range(1, 1000))
    for family in (4, 6):
        name = NAMES[family]

        def part(body, *more, ident, offset=0, mf=0, **head):
            if family == 4:
                return Packet(eth(), ip(4, mf=mf, df=0, frag=offset, id=ident, proto=132, **head), *body, *more)
            head = {key: value - 12 if key == "len" else value for key, value in head.items()}
            return Packet(eth(), ip(6, **head), Ext(of=FRAGMENT, mf=mf, frag=offset, id=ident, next=132), *body, *more)

        for chunk, new in ((INIT, True), (0, False)):
            ident = next(numbers)
            # The chunk is as long as the whole packet has room for.
            first = part([sctp(chunk, len=3000)], data(8), ident=ident, mf=1)
            later = part([data(24)], ident=ident, offset=3)
            book.case(f"{name}_fragments_{chunk}", "sctp.fragment6" if family == 6 else "sctp.good", "plain",
                      "The first fragment is decided like a whole packet, and the others follow it.",
                      sends(first, B1, new=new, wrong=["sctp sum"]), sends(later, B1))
            alone = later.but(**({"ip": {"id": next(numbers)}} if family == 4 else {"ext": {"id": next(numbers)}}))
            book.case(f"{name}_later_{chunk}", "fragment.lost", "plain", "A later one without its first goes nowhere.",
                      sends(first, B1, new=new, wrong=["sctp sum"]), drops(alone, "later_fragment"))
        for left in (8, 15):
            made = part([sctp()], data(8), ident=next(numbers), mf=1, len=20 + left)
            book.case(f"{name}_first_of_{left}", "sctp.truncated", "plain", "A first fragment without the whole header.",
                      drops(made, "truncated_sctp"))
        made = part([sctp(len=3)], data(8), ident=next(numbers), mf=1)
        book.case(f"{name}_first_chunk_of_3", "sctp.chunk", "plain", "Its chunk is shorter than its own header.",
                  drops(made, "bad_sctp_chunk"))


def ways(book):
    for said, interface, rule in (("other", OTHER, "l2.redirect"), ("tagged", TAGGED, "l2.tag")):
        to = backend(1, interface=interface)
        book.setup(said, [to], services(), devices=DEVICES)
        for family in (4, 6):
            more = {"needs": ["tags"]} if said == "tagged" else {}
            book.case(f"{said}_{NAMES[family]}", rule, said, "By another interface, or with its tag.",
                      sends(packet(family, INIT), to, new=True), **more)
    for kind in KINDS:
        for over6 in (False, True):
            to = backend(1, FAR6 if over6 else FAR, tunnel=tunnel(kind, over6))
            setup = f"{kind}_over{6 if over6 else 4}"
            book.setup(setup, [to], services())
            for family in (4, 6):
                # Where nothing outside varies with the flow, nobody asks for its ports.
                rule = f"tunnel.{'ports' if over6 or kind in ('fou', 'gue') else 'in'}{family}"
                for sport in (5555, 40000):
                    made = lambda chunk: Packet(eth(), ip(family), sctp(chunk, sport=sport), data(20))
                    book.case(f"{setup}_{NAMES[family]}_{sport}", rule, setup,
                              "In its tunnel, whose numbers vary with the ports.",
                              sends(made(INIT), to, new=True), sends(made(0), to), sends(made(ABORT), to))
    to = backend(1, FAR, tunnel=tunnel("ipip", False, mtu=1320))
    book.setup("small", [to], services(), errors=MANY)
    for family in (4, 6):
        book.case(f"too_big_{NAMES[family]}", f"tell.put{family}", "small", "Its sender is told what would fit.",
                  told(packet(family, 0, size=1400), family, "too_big_told", 1300))


def errors(book):
    for family in (4, 6):
        name, kind = NAMES[family], (3, 4) if family == 4 else (2, 0)
        header = 20 if family == 4 else 40
        whole = about(family).bytes()
        book.case(f"{name}_error", "icmp.quoted", "plain", "An error goes to the backend of the association that it quotes.",
                  sends(error(family, kind, whole), B1))
        book.case(f"{name}_error_least", "icmp.quoted", "plain", "Ports and tag are enough.",
                  sends(error(family, kind, whole[:header + 8]), B1))
        book.case(f"{name}_error_short", "icmp.quote_short", "plain", "Less than that names no flow.",
                  passes(error(family, kind, whole[:header + 7]), "other_protocol"))
        other = Packet(about(family).layers[0], Sctp(sport=PORT + 1, dport=5555), data(8)).bytes()
        book.case(f"{name}_error_other_port", "service.none", "plain", "The quoted packet is of no service.",
                  passes(error(family, kind, other), "no_service"))
        book.case(f"{name}_error_tracked", "tracked.unknown_quote", "tracked", "It begins no flow.",
                  drops(error(family, kind, whole), "unknown_quote"), sends(packet(family), B1, new=True),
                  sends(error(family, kind, whole), B1))


def decided(book):
    """By methods, lists, caps and affinity as any other flow."""
    for method in ("tracked", "jet", "residue"):
        if method != "tracked":
            book.setup(method, [B1], services(method=method))
        for family in (4, 6):
            book.case(f"{method}_{NAMES[family]}", "sctp.init", method, "Every method that needs no more than flows takes it.",
                      sends(packet(family, INIT), B1, new=True), sends(packet(family), B1), sends(packet(family, 3), B1),
                      sends(packet(family, ABORT, size=0), B1))
    for family in (4, 6):
        book.case(f"tracked_middle_{NAMES[family]}", "tracked.placed", "tracked", "A flow that is not known counts as new.",
                  sends(packet(family, 0), B1, new=True), sends(packet(family, 0), B1))
    b2 = backend(2)
    book.setup("two", [B1, b2], [service(VIP, PORT, "sctp", method="tracked")])
    book.case("stays", "sctp.goes_on", "two", "A known association stays when the table leads elsewhere.",
              sends(packet(4, INIT), B1, new=True), change(pool=["b2"]), sends(packet(4, COOKIE_ECHO), B1),
              sends(packet(4), B1))
    book.setup("pending", [B1, b2], [service(VIP, PORT, "sctp")])
    book.case("pending", "concury.pending", "pending", "One that began while an update was under way stays where it began.",
              change(record=True), sends(packet(4, INIT), B1, new=True), change(pool=["b2"]), change(pending=True),
              sends(packet(4, COOKIE_ECHO), B1), sends(Packet(eth(), ip(4), sctp(sport=9), data(4)), b2))
    book.setup("client", [B1], [service(addr, None, "sctp", affinity="client") for addr in (VIP, VIP6)])
    book.setup("capped", [B1], services(new_flows={"every": 1000, "burst": 2}))
    book.setup("denied", [B1], services(deny=["10.1.0.0/24", "2001:db8:1::/64"]))
    prefixes = (("10.7.0.0", 16, "10.7.1.9"), ("2001:db8:7::", 48, "2001:db8:7::1:9"))
    for (net, bits, host), family in zip(prefixes, (4, 6)):
        name = NAMES[family]
        book.case(f"client_{name}", "service.any_port", "client", "A service for any port, with affinity by client.",
                  sends(packet(family, INIT), B1, new=True), sends(packet(family), B1))
        others = [sends(packet(family, chunk), B1) for chunk in (0, COOKIE_ECHO, ABORT, COMPLETE)]
        book.case(f"capped_{name}", "caps.dropped", "capped", "An INIT counts as a new flow, and nothing else does.",
                  *others, sends(packet(family, INIT), B1, new=True), sends(packet(family, INIT), B1, new=True),
                  drops(packet(family, INIT), "new_flow_cap"), *others, change(seconds=1100),
                  sends(packet(family, INIT), B1, new=True))
        book.case(f"denied_{name}", "sources.denied", "denied", "The service's list denies the source.",
                  drops(packet(family, INIT), "denied_source"), drops(packet(family), "denied_source"))
        setup = f"prefix_{name}"
        book.setup(setup, [B1], [service(net, PORT, "sctp", bits=bits)])
        made = lambda chunk: Packet(eth(), ip(family, host), sctp(chunk), data(4))
        book.case(setup, "service.salted", setup, "A service of a prefix.",
                  sends(made(INIT), B1, new=True), sends(made(0), B1))
    dead = backend(1, down=True, resets=True)
    book.setup("dead", [dead], services(), resets=MANY)
    for family in (4, 6):
        book.case(f"dead_{NAMES[family]}", f"reset.not{family}", "dead", "No reset of TCP answers what is none.",
                  drops(packet(family), "dead_backend"))


def beside_nat(book):
    book.setup("nat", pool(port=PORT), [service(VIP, 80), service(VIP6, 80, backends=("b2",))])
    for family, (inside, client) in {4: (INSIDE, CLIENT), 6: (INSIDE6, CLIENT6)}.items():
        head = Ip(src=inside, dst=client) if family == 4 else Ip6(src=inside, dst=client)
        made = Packet(eth(), head, Sctp(sport=PORT, dport=5555), data(8))
        book.case(f"nat_{NAMES[family]}", "back.none", "nat", "From a backend behind NAT it is no answer of a service.",
                  passes(made, "no_service"))


    book.setup("full_nat", full_nat.pool(port=PORT), [service(VIP, 80), service(VIP6, 80, backends=("b2",))])
    for family in (4, 6):
        made = full_nat.answer(family, Sctp(sport=PORT, dport=full_nat.SOURCE), data(8))
        book.case(f"full_nat_{NAMES[family]}", "service.none", "full_nat", "The ports that connections have are not of SCTP.",
                  passes(made, "no_service"))


def books():
    book = Book("sctp", "SCTP: ports and the first chunk are read, and nothing in it is changed.")
    book.setup("plain", [B1], [*services(), service(VIP, 80), service(VIP6, 80)])
    book.setup("own", [B1], services(), own_macs=[OUR_MAC])
    book.setup("tracked", [B1], services(method="tracked"))
    for cases in (read, fragments, ways, errors, decided, beside_nat):
        cases(book)
    return [book]
