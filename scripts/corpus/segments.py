"""The largest segment that a SYN asks for, made smaller (docs/forwarding.md; RFC 9293 section 3.7.1)."""

from forwarding import FAR, FAR6, tunnel
from model import (CLIENT, CLIENT6, DEVICES, OTHER, TAGGED, VIP, VIP6, Book, backend, eth, l2, sends, service, tunnelled)
from packet import AUTH, DESTINATION, FRAGMENT, HOP, Ext, Ip, Ip6, Packet, Tcp, Vlan
from parsing import NAMES, data, ip, tcp, udp

SERVICES = [service(VIP, 80), service(VIP, 53, "udp"), service(VIP6, 80), service(VIP6, 53, "udp")]
STAMPS = bytes.fromhex("080a0000000100000002")


def mss(value):
    return bytes([2, 4]) + value.to_bytes(2, "big")


def lowered(packet, to, before, after):
    """The same SYN with another option, on its way."""
    options = next(layer for layer in packet.layers if layer.kind == "tcp").get("options")
    assert options.count(mss(before)) == 1
    made = packet.but(tcp={"options": options.replace(mss(before), mss(after))})
    return sends(packet, to, new=True, out=(tunnelled if to.get("tunnel") else l2)(made, to))


def books():
    book = Book("segments", "The largest segment that a SYN asks for is made smaller; all else stays.")
    fixed = backend(1, segments=1000)
    book.setup("fixed", [fixed], SERVICES)
    for family in (4, 6):
        name = NAMES[family]
        syn = lambda options, flags="S", *before, **more: Packet(
            eth(), *before, ip(family), tcp(flags=flags, options=options), **more)
        for asked in (1001, 1460, 0xFFFF):
            book.case(f"{name}_{asked}", "mss.lowered", "fixed", "It asks for more than the service wants.",
                      lowered(syn(mss(asked)), fixed, asked, 1000))
        for asked in (0, 536, 999, 1000):
            book.case(f"{name}_{asked}", "mss.found", "fixed", "It asks for no more than that.",
                      sends(syn(mss(asked)), fixed, new=True))
        for options, said in ((b"\1" + mss(1460), "odd"), (b"\1\1" + mss(1460), "even"), (b"\1\1\1" + mss(1460), "odd_3"),
                              (b"\3\3\7" + mss(1460), "scale"), (b"\4\2" + mss(1460), "sack"),
                              (STAMPS + mss(1460), "stamps"), (b"\1" + STAMPS + mss(1460), "odd_stamps"),
                              (b"\1" * 36 + mss(1460), "last"), (b"\4\2\1\3\3\7" + STAMPS + mss(1460), "all")):
            rule = "mss.stamps" if "stamps" in said else "mss.next" if said != "all" else "mss.stamps"
            book.case(f"{name}_behind_{said}", rule, "fixed", "It stands behind other options.",
                      lowered(syn(options), fixed, 1460, 1000))
        for options, said, rule in ((b"", "none", "mss.without"), (STAMPS + b"\1\1", "stamps_only", "mss.without"),
                                    (b"\0\0\0\0" + mss(1460), "behind_end", "mss.walk_ended"),
                                    (b"\3\0\7\1" + mss(1460), "length_0", "mss.walk_ended"),
                                    (b"\3\1\7\1" + mss(1460), "length_1", "mss.walk_ended"),
                                    (b"\3\x20\7\1" + mss(1460), "length_32", "mss.walk_ended"),
                                    (b"\2\3\5" + b"\1" * 5, "length_3", "mss.other_option"),
                                    (b"\1" * 40, "nops", "mss.without"), (b"\1" * 37 + mss(1460)[:3], "cut", "mss.without")):
            book.case(f"{name}_without_{said}", rule, "fixed", "What says nothing of segments stays as it is.",
                      sends(syn(options), fixed, new=True))
        for flags in ("SA", "SEC"):
            book.case(f"{name}_flags_{flags.lower()}", "mss.lowered", "fixed", "Whatever flags are beside SYN.",
                      lowered(syn(mss(1460), flags), fixed, 1460, 1000) if flags != "SA" else
                      _known(lowered(syn(mss(1460), flags), fixed, 1460, 1000)))
        for flags in ("A", "PA", "RA"):
            book.case(f"{name}_no_syn_{flags.lower()}", "mss.no_syn", "fixed", "Only a SYN asks.",
                      sends(syn(mss(1460), flags), fixed))
        book.case(f"{name}_udp", f"mss.not_tcp{family}", "fixed", "Datagrams have no segments.",
                  sends(Packet(eth(), ip(family), udp(), data(20)), fixed, new=True))
        for tags, said in (([Vlan(id=7, prio=3)], "tagged"), ([Vlan(id=7, tpid=0x88A8), Vlan(id=8)], "twice_tagged")):
            book.case(f"{name}_{said}", f"mss.ipv{family}", "fixed", "The same behind tags.",
                      lowered(syn(mss(1460), "S", *tags), fixed, 1460, 1000))
        made = syn(mss(1460), pad=bytes(6))
        book.case(f"{name}_padded", "mss.lowered", "fixed", "Padding is no part of it.", lowered(made, fixed, 1460, 1000))
    book.case("ipv4_options", "mss.ipv4", "fixed", "Behind IP options.",
              lowered(Packet(eth(), ip(4, options=b"\1" * 8), tcp(flags="S", options=mss(1460))), fixed, 1460, 1000))
    for kinds in ((HOP,), (DESTINATION, AUTH), (FRAGMENT,)):
        made = Packet(eth(), ip(6), *[Ext(of=kind) for kind in kinds], tcp(flags="S", options=mss(1460)))
        book.case(f"ipv6_extension_{kinds[0]}", "mss.ipv6", "fixed", "Behind extension headers.",
                  lowered(made, fixed, 1460, 1000))
    made = Packet(eth(), ip(4, mf=1, df=0, id=41001), tcp(flags="S", options=mss(1460)), data(8))
    book.case("ipv4_fragment", "mss.not_tcp4", "fixed", "A fragment stays as it is: its sum is over all of them.",
              sends(made, fixed, new=True))
    made = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=41002), tcp(flags="S", options=mss(1460)), data(8))
    book.case("ipv6_fragment", "mss.not_tcp6", "fixed", "A fragment stays as it is: its sum is over all of them.",
              sends(made, fixed, new=True))
    for value, seq in ((1460, 0), (1460, 0xFFFF), (0xFFFF, 0x8000), (1001, 0xFE17)):
        made = Packet(eth(), ip(4), tcp(flags="S", seq=seq, options=mss(value)))
        book.case(f"carry_{value}_{seq:x}", "mss.lowered", "fixed", "The carry of RFC 1624 is where it must be.",
                  lowered(made, fixed, value, 1000))
    for over6 in (False, True):
        for kind, between in (("ipip", 0), ("gre", 4), ("fou", 8), ("gue", 12)):
            mtu = 1400
            to = backend(1, FAR6 if over6 else FAR, tunnel=tunnel(kind, over6, mtu=mtu), segments=0)
            setup = f"auto_{kind}_{'over6' if over6 else 'over4'}"
            book.setup(setup, [to], SERVICES)
            for family in (4, 6):
                most = mtu - (40 if over6 else 20) - between - (40 if family == 4 else 60)
                for asked in (most, most + 1, 9000):
                    made = Packet(eth(), ip(family), tcp(flags="S", options=mss(asked)))
                    book.case(f"{setup}_{NAMES[family]}_{asked}", "mss.auto", setup,
                              "What the way takes, less all headers.",
                              sends(made, to, new=True) if asked == most else lowered(made, to, asked, most))
    for mtu, most in ((0, None), (143, None), (144, 144 - 60)):
        to = backend(1, FAR, tunnel=tunnel("ipip", False, mtu=mtu), segments=0)
        book.setup(f"auto_{mtu}", [to], SERVICES)
        made = Packet(eth(), ip(4), tcp(flags="S", options=mss(1460)))
        book.case(f"auto_{mtu}", "mss.auto" if most else "mss.way_unknown", f"auto_{mtu}",
                  "Of a way of which nothing is known, or that takes next to nothing, no number is made.",
                  lowered(made, to, 1460, most) if most else sends(made, to, new=True))
    tagged = backend(1, interface=TAGGED, segments=1000)
    book.setup("tagged", [tagged], SERVICES, devices=DEVICES)
    book.case("to_tagged", "mss.lowered", "tagged", "To a backend in a VLAN.",
              lowered(Packet(eth(), ip(4), tcp(flags="S", options=mss(1460))), tagged, 1460, 1000), needs=["tags"])
    other = backend(1, interface=OTHER, segments=1000)
    book.setup("other", [other], SERVICES)
    book.case("to_other", "mss.lowered", "other", "By another interface.",
              lowered(Packet(eth(), ip(6), tcp(flags="S", options=mss(1460))), other, 1460, 1000))
    book.case("ipv4_error", "mss.not_tcp4", "fixed", "An ICMP error is no SYN.", sends(_error(), fixed))
    return [book]


def _error():
    from errors import error, sent
    return error(4, (3, 4), sent(4).bytes())


def _known(step):
    """A SYN with ACK begins no flow."""
    step.said["new"] = False
    return step
