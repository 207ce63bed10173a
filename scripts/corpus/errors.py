"""ICMP: errors go to the backend of the flow whose packet they quote (RFC 792, RFC 4443); the rest is the
kernel's."""

from forwarding import FAR, FAR6, KINDS, tunnel
from model import (CLIENT, CLIENT6, DEVICES, NOBODY, NOBODY6, TAGGED, VIP, VIP6, Book, backend, drops, eth, passes, sends,
                   service)
from packet import AUTH, DESTINATION, FRAGMENT, HOP, Ext, Icmp, Ip, Ip6, Packet, Raw, Tcp, Udp, Vlan
from parsing import NAMES, data

ROUTER, ROUTER6 = "10.9.9.9", "2001:db8:9::9"
SERVICES = [service(VIP, 80), service(VIP, 53, "udp"), service(VIP6, 80), service(VIP6, 53, "udp")]
ERRORS = {4: [(3, 4), (3, 0), (3, 1), (3, 3), (3, 13), (11, 0), (12, 0)], 6: [(1, 0), (1, 4), (2, 0), (3, 0), (4, 1)]}
OTHERS = {4: [0, 4, 5, 8, 9, 13, 17], 6: [0, 5, 100, 128, 129, 130, 133, 135, 136, 143]}


def sent(family, protocol="tcp", src=None, dst=None, sport=None, size=40, **other):
    """What a backend has sent: from the service's address to a client."""
    body = (Tcp(sport=sport or 80, dport=5555, flags="PA", options=other.pop("tcp_options", b"")) if protocol == "tcp"
            else Udp(sport=sport or 53, dport=5555))
    if family == 4:
        ip = Ip(src=src or VIP, dst=dst or CLIENT, **other)
    else:
        ip = Ip6(src=src or VIP6, dst=dst or CLIENT6, **other)
    return Packet(ip, body, data(size))


def error(family, kind, quote, *before, to=None, word=1400, pad=b"", **ip):
    """An ICMP error about some bytes."""
    if family == 4:
        head = Ip(src=ROUTER, dst=to or VIP, **{"df": 0, **ip})
    else:
        head = Ip6(src=ROUTER6, dst=to or VIP6, **ip)
    body = Icmp(type=kind[0], code=kind[1], word=word, v6=family == 6)
    return Packet(eth(), *before, head, body, Raw(data=quote), pad=pad)


def books():
    book = Book("icmp", "ICMP errors addressed to a service, and all other ICMP.")
    to = backend(1)
    book.setup("plain", [to], SERVICES)
    for family in (4, 6):
        name, header = NAMES[family], 20 if family == 4 else 40
        for kind in ERRORS[family]:
            for protocol in ("tcp", "udp"):
                book.case(f"{name}_{kind[0]}_{kind[1]}_{protocol}", "icmp.quoted", "plain",
                          "The error goes to the backend of the flow that it quotes, and begins none.",
                          sends(error(family, kind, sent(family, protocol).bytes()), to))
        for kind in OTHERS[family]:
            book.case(f"{name}_no_error_{kind}", "icmp.no_error", "plain",
                      "A message that is no error is the kernel's.",
                      passes(error(family, (kind, 0), sent(family).bytes()), "other_protocol"))
        least = header + 8
        kind = (3, 4) if family == 4 else (2, 0)
        whole = sent(family).bytes()
        book.case(f"{name}_least", "icmp.quoted", "plain", "Eight bytes of the transport header are enough.",
                  sends(error(family, kind, whole[:least]), to))
        for left in (least - 1, header + 4, header):
            book.case(f"{name}_quote_of_{left}", "icmp.quote_short", "plain",
                      "A quote without eight bytes of the transport header names no flow.",
                      passes(error(family, kind, whole[:left]), "other_protocol"))
        for left in (header - 1, 1):
            book.case(f"{name}_quote_of_{left}", f"icmp.quote{family}", "plain",
                      "The quote ends inside its IP header.",
                      passes(error(family, kind, whole[:left]), "other_protocol"))
        book.case(f"{name}_quote_of_0", f"icmp.quote{family}", "plain", "Nothing is quoted.",
                  passes(error(family, kind, b""), "other_protocol"))
        shorter = {"len": 20 + 8 + least - 1} if family == 4 else {"len": 8 + least - 1}
        book.case(f"{name}_quote_in_padding", "icmp.quote_short", "plain",
                  "What follows the packet in its frame is not quoted.",
                  passes(error(family, kind, whole[:least], **shorter), "other_protocol"))
        for left in (0, 7):
            cut = {"len": 20 + left} if family == 4 else {"len": left}
            book.case(f"{name}_message_of_{left}", "icmp.truncated", "plain", "The packet ends inside the ICMP header.",
                      passes(error(family, kind, whole, **cut), "other_protocol"))
        lying = {"len": 2000}
        book.case(f"{name}_length_lies", f"{name}.length", "plain", "The error's packet is longer than its frame.",
                  drops(error(family, kind, whole, **lying), f"bad_{name}_length"))
        foreign = sent(family, src=NOBODY if family == 4 else NOBODY6).bytes()
        book.case(f"{name}_about_others", "icmp.foreign", "plain",
                  "An error about packets from another address than it is sent to is nobody's here.",
                  passes(error(family, kind, foreign), "other_protocol"))
        book.case(f"{name}_other_port", "service.none", "plain", "The quoted packet is from a port without a service.",
                  passes(error(family, kind, sent(family, sport=81).bytes()), "no_service"))
        book.case(f"{name}_not_vip", "reject.pass", "plain", "An error to an address of no service.",
                  passes(error(family, kind, foreign, to=NOBODY if family == 4 else NOBODY6), "other_protocol"))
        other = {"proto": 136} if family == 4 else {"next": 136}
        book.case(f"{name}_quotes_udp_lite", "icmp.quote_short", "plain", "The quoted packet is of a protocol that services have not.",
                  passes(error(family, kind, sent(family, **other).bytes()), "other_protocol"))
        wrong = 6 if family == 4 else 4
        book.case(f"{name}_quotes_version_{wrong}", f"icmp.quote{family}", "plain",
                  "The quote says another version.",
                  passes(error(family, kind, sent(family, version=wrong).bytes()), "other_protocol"))
        book.case(f"{name}_tagged", "icmp.quoted", "plain", "The same behind two tags.",
                  sends(error(family, kind, whole, Vlan(id=3, tpid=0x88A8), Vlan(id=4)), to))
        for size in (0, 1, 400):
            book.case(f"{name}_of_{size}", "icmp.quoted", "plain", f"A quote with {size} bytes of payload.",
                      sends(error(family, kind, sent(family, size=size).bytes()), to))
        book.case(f"{name}_padded", "icmp.quoted", "plain", "Padding counts for nothing.",
                  sends(error(family, kind, whole[:least], pad=bytes(4)), to))
    whole = sent(4).bytes()
    for frag, mf, fine in ((0, 1, True), (1, 0, False), (0x1FFF, 1, False)):
        made = error(4, (3, 4), sent(4, frag=frag, mf=mf, df=0).bytes())
        book.case(f"ipv4_quotes_fragment_{frag}", "icmp.quoted" if fine else "icmp.quote4", "plain",
                  "A first fragment has the ports; a later one has none.",
                  sends(made, to) if fine else passes(made, "other_protocol"))
        inner = sent(6)
        inner.layers.insert(1, Ext(of=FRAGMENT, frag=frag, mf=mf, id=5))
        made = error(6, (2, 0), inner.bytes())
        book.case(f"ipv6_quotes_fragment_{frag}", "icmp.quote_first_fragment6" if fine else "icmp.quote_fragment6",
                  "plain", "A first fragment has the ports; a later one has none.",
                  sends(made, to) if fine else passes(made, "other_protocol"))
    inner = sent(6)
    inner.layers.insert(1, Ext(of=FRAGMENT, id=5))
    for left, rule in ((47, "icmp.quote_fragment6"), (55, "icmp.quote_short"), (56, "icmp.quote_first_fragment6")):
        made = error(6, (2, 0), inner.bytes()[:left])
        book.case(f"ipv6_quotes_fragment_header_of_{left}", rule, "plain", "The quote ends near a fragment header.",
                  sends(made, to) if left == 56 else passes(made, "other_protocol"))
    for kind in (HOP, DESTINATION, AUTH):
        inner = sent(6)
        inner.layers.insert(1, Ext(of=kind))
        book.case(f"ipv6_quotes_extension_{kind}", "icmp.quote_short", "plain",
                  "Of extension headers in a quote only a fragment header is walked.",
                  passes(error(6, (2, 0), inner.bytes()), "other_protocol"))
    for length in (4, 40):
        options = b"\1" * length
        book.case(f"ipv4_quotes_options_{length}", "icmp.quoted", "plain", "The quoted packet has IP options.",
                  sends(error(4, (3, 4), sent(4, options=options).bytes()), to))
        book.case(f"ipv4_with_options_{length}", "icmp.quoted", "plain", "The error has IP options.",
                  sends(error(4, (3, 4), whole, options=options), to))
    for ihl in (0, 4):
        book.case(f"ipv4_quotes_header_length_{ihl}", "icmp.quote_header_length", "plain",
                  "The quoted header is shorter than a header.",
                  passes(error(4, (3, 4), sent(4, ihl=ihl).bytes()), "other_protocol"))
    book.case("ipv4_quotes_header_length_15", "icmp.quote_short", "plain",
              "The quoted header is longer than what is quoted.",
              passes(error(4, (3, 4), sent(4, ihl=15, size=0).bytes()), "other_protocol"))
    for kinds in ((HOP,), (DESTINATION, AUTH)):
        said = "_".join(map(str, kinds))
        extended = error(6, (2, 0), sent(6).bytes())
        extended.layers[2:2] = [Ext(of=kind) for kind in kinds]
        book.case(f"ipv6_behind_extension_{said}", "icmp.quoted", "plain", "The error has extension headers.",
                  sends(extended, to))
    mismatched = error(4, (3, 4), whole, proto=58)
    book.case("ipv4_icmpv6", "reject.pass", "plain", "ICMPv6 in IPv4 is no ICMP.", passes(mismatched, "other_protocol"))
    mismatched = error(6, (2, 0), sent(6).bytes(), next=1)
    book.case("ipv6_icmpv4", "icmp.wrong_family6", "plain", "ICMP of IPv4 in IPv6 is no ICMPv6.",
              passes(mismatched, "other_protocol"))
    book.case("ipv4_quotes_ipv6", "icmp.quote4", "plain", "An error of IPv4 quotes a packet of IPv6.",
              passes(error(4, (3, 4), sent(6).bytes()), "other_protocol"))
    book.case("ipv6_quotes_ipv4", "icmp.quote6", "plain", "An error of IPv6 quotes a packet of IPv4.",
              passes(error(6, (2, 0), sent(4).bytes()), "other_protocol"))
    own = book.setup("own", [to], SERVICES, own_macs=["02:00:00:00:00:02"])
    flooded = error(4, (3, 4), whole)
    flooded.layers[0] = eth(dst="02:00:00:00:00:77")
    book.case("ipv4_flooded", "host.other", "own", "An error in a frame to another host.", drops(flooded, "other_host"))
    for kind in KINDS:
        for over6 in (False, True):
            far = backend(1, FAR6 if over6 else FAR, tunnel=tunnel(kind, over6))
            setup = f"{kind}_{'over6' if over6 else 'over4'}"
            book.setup(setup, [far], SERVICES)
            for family in (4, 6):
                made = error(family, (3, 4) if family == 4 else (2, 0), sent(family).bytes())
                book.case(f"{setup}_{NAMES[family]}", f"tunnel.in{family}", setup,
                          "An error goes through the tunnel, as its backend's packets do.", sends(made, far))
    tagged = backend(1, interface=TAGGED)
    book.setup("tagged", [tagged], SERVICES, devices=DEVICES)
    book.case("ipv4_to_tagged", "l2.tag", "tagged", "An error to a backend in a VLAN.",
              sends(error(4, (3, 4), whole), tagged), needs=["tags"])
    for method in ("tracked", "jet", "residue", "cheetah", "cheetah-stateful"):
        book.setup(method.replace("-", "_"), [to], [{**one, "method": method} for one in SERVICES])
    book.setup("none", [to], [{**one, "method": "none", "backends": []} for one in SERVICES])
    book.setup("empty", [to], [{**one, "backends": []} for one in SERVICES])
    for family in (4, 6):
        kind, name = (3, 4) if family == 4 else (2, 0), NAMES[family]
        made = error(family, kind, sent(family).bytes())
        flow = (Ip(src=CLIENT, dst=VIP) if family == 4 else Ip6(src=CLIENT6, dst=VIP6))
        syn = Packet(eth(), flow, Tcp(sport=5555, dport=80, flags="S"))
        datagram = Packet(eth(), flow, Udp(sport=5555, dport=53), data(4))
        about_udp = error(family, kind, sent(family, "udp").bytes())
        for method in ("tracked", "cheetah", "cheetah_stateful"):
            book.case(f"{method}_{name}_unknown", f"{method.split('_')[0]}.unknown_quote", method,
                      "A method that remembers flows does not guess where an unknown one lives.",
                      drops(made, "unknown_quote"))
            book.case(f"{method}_{name}_known_udp", "icmp.quoted", method,
                      "Where the flow is known, the error follows it.",
                      sends(datagram, to, new=True), sends(about_udp, to))
        book.case(f"tracked_{name}_known", "icmp.quoted", "tracked", "Where the flow is known, the error follows it.",
                  sends(syn, to, new=True), sends(made, to))
        for method in ("jet", "residue"):
            book.case(f"{method}_{name}", f"{method}.row", method, "A row leads the flow of the quoted packet.",
                      sends(made, to))
        book.case(f"no_table_{name}", "table.none_apart", "none", "The service has no table yet.", drops(made, "no_table"))
        book.case(f"no_backend_{name}", "conclude.no_backend", "empty", "The service has no backend.",
                  drops(made, "no_backend"))
    return [book]
