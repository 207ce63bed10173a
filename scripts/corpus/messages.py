"""What weir sends itself: replies to echo requests, and errors to senders (RFC 792, RFC 1191, RFC 4443); and
what it learns of ways from the errors of others."""

from forwarding import FAR, FAR6, SOURCE, SOURCE6, tunnel
from model import (CLIENT, CLIENT6, CLIENT_MAC, DEVICES, OUR_MAC, TAGGED, VIP, VIP6, Book, Step, backend, change, drops,
                   eth, passes, sends, service)
from packet import AUTH, DESTINATION, FRAGMENT, HOP, Eth, Ext, Icmp, Ip, Ip6, Packet, Raw, Tcp, Vlan
from parsing import NAMES, data, ip, tcp, udp

SERVICES = [service(VIP, 80), service(VIP, 53, "udp"), service(VIP6, 80), service(VIP6, 53, "udp")]
# More in a second than packets are sent; and so few that none comes back between two packets for long.
MANY, FEW = 1_000_000, 1
GROUP_MAC = "01:00:5e:00:00:01"
ROUTER, ROUTER6 = "10.9.9.9", "2001:db8:9::9"


def back(packet):
    """The link's header of what goes back: the addresses changed, the tags as they are."""
    head, tags = packet.layers[0], [layer for layer in packet.layers if isinstance(layer, Vlan)]
    return [Eth(dst=head.get("src"), src=head.get("dst")), *tags]


def answers(packet, reason, out, **other):
    """A message in the packet's place."""
    return Step(packet=packet, verdict="transmit", reason=reason, out=out, **other)


def request(family, *tags, size=56, body=None, mac=None, kind=None, code=0, pad=b"", **over):
    kind = kind if kind is not None else (8 if family == 4 else 128)
    made = Icmp(type=kind, code=code, word=0x12340007, v6=family == 6)
    return Packet(mac or eth(), *tags, ip(family, **over), made, data(size), pad=pad)


def reply(packet, family):
    at = packet.l3()
    head = packet.layers[at]
    ends = {"src": head.get("dst"), "dst": head.get("src")}
    message = packet.layers[at + 1].but(type=0 if family == 4 else 129)
    made = head.but(**ends, **({"ttl": 64} if family == 4 else {"hlim": 64}))
    return Packet(*back(packet), made, message, *packet.layers[at + 2:], pad=packet.pad)


def echo():
    book = Book("echo", "Echo requests to the services' addresses (docs/forwarding.md).")
    to = backend(1)
    book.setup("answers", [to], SERVICES, echoes=MANY)
    book.setup("off", [to], SERVICES)
    book.setup("few", [to], SERVICES, echoes=FEW)
    book.setup("own", [to], SERVICES, echoes=MANY, own_macs=[OUR_MAC])
    for family in (4, 6):
        name = NAMES[family]
        ttl = "ttl" if family == 4 else "hlim"
        for size in (0, 1, 56, 1400):
            made = request(family, size=size)
            book.case(f"{name}_of_{size}", f"echo.answered{family}", "answers", "The request becomes the reply.",
                      answers(made, "echo_answered", reply(made, family)))
        for tags, said in (([Vlan(id=7, prio=5)], "tagged"), ([Vlan(id=7, tpid=0x88A8), Vlan(id=8)], "twice_tagged")):
            made = request(family, *tags)
            book.case(f"{name}_{said}", f"echo.answered{family}", "answers", "It goes back with the tags that it has.",
                      answers(made, "echo_answered", reply(made, family)))
        for left in (1, 255):
            made = request(family, **{ttl: left})
            book.case(f"{name}_ttl_{left}", f"echo.answered{family}", "answers", "The reply begins with a TTL of 64.",
                      answers(made, "echo_answered", reply(made, family)))
        made = request(family, size=4, pad=bytes(14))
        book.case(f"{name}_padded", f"echo.answered{family}", "answers", "Padding stays behind the packet.",
                  answers(made, "echo_answered", reply(made, family)))
        made = request(family, **({"tos": 0x2E << 2, "id": 77} if family == 4 else {"tc": 0xB8, "label": 0x12345}))
        book.case(f"{name}_class", f"echo.answered{family}", "answers", "DSCP and the rest of the header stay.",
                  answers(made, "echo_answered", reply(made, family)))
        book.case(f"{name}_off", "echo.off", "off", "Without a rate requests are the kernel's.",
                  passes(request(family), "other_protocol"))
        book.case(f"{name}_limited", f"echo.limited{family}", "few", "More than may be answered are dropped.",
                  drops(request(family), "echo_limited", spent=True))
        book.case(f"{name}_again", "message.allowed", "answers", "One request after the other is answered.",
                  *[answers(request(family, size=size), "echo_answered", reply(request(family, size=size), family))
                    for size in range(3)])
        for kind in ((0, 3, 13) if family == 4 else (1, 129, 135)):
            book.case(f"{name}_type_{kind}", f"echo.no_request{family}", "answers", "It is no echo request.",
                      passes(request(family, kind=kind), "other_protocol"))
        book.case(f"{name}_code", f"echo.no_request{family}", "answers", "No request has a code.",
                  passes(request(family, code=1), "other_protocol"))
        nobodies = {4: ("0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", VIP), 6: ("::", "ff02::1", VIP6)}
        for at, source in enumerate(nobodies[family]):
            head = Ip(src=source, dst=VIP) if family == 4 else Ip6(src=source, dst=VIP6)
            made = request(family)
            made.layers[1] = head
            book.case(f"{name}_from_no_host_{at}", f"echo.no_request{family}", "answers",
                      f"{source} is no single other host: nothing is sent there.", passes(made, "other_protocol"))
        for mac, said in ((eth(src=GROUP_MAC), "from_group"), (eth(dst=GROUP_MAC), "to_group")):
            book.case(f"{name}_{said}", "echo.group", "answers", "A frame for a group, or from one, is not answered.",
                      passes(request(family, mac=mac), "other_protocol"))
        for left in (0, 7):
            length = {"len": left + (20 if family == 4 else 0)}
            book.case(f"{name}_length_{left}", f"echo.not_plain{family}", "answers", "The packet ends inside the ICMP header.",
                      passes(request(family, **length), "other_protocol"))
        book.case(f"{name}_flooded", "reject.pass", "own", "A request in a frame to another host.",
                  passes(request(family, mac=eth(dst="02:00:00:00:00:77")), "other_protocol"))
        stranger = request(family, dst="10.0.0.99" if family == 4 else "2001:db8::99")
        book.case(f"{name}_no_vip", "reject.pass", "answers", "A request to an address of no service.",
                  passes(stranger, "other_protocol"))
    book.case("ipv4_options", "echo.not_plain4", "answers", "What has IP options is the kernel's.",
              passes(request(4, options=b"\1" * 4), "other_protocol"))
    made = request(6)
    made.layers.insert(2, Ext(of=DESTINATION))
    book.case("ipv6_extension", "echo.not_plain6", "answers", "What has extension headers is the kernel's.",
              passes(made, "other_protocol"))
    book.case("ipv4_cut_short", "echo.not_plain4", "answers", "A frame that ends behind the IP header.",
              passes(Packet(eth(), ip(4, proto=1)), "other_protocol"))
    # A checksum whose change carries.
    for word in (0, 0xF7FF, 0xF800, 0xFFFE):
        made = Packet(eth(), ip(4), Icmp(type=8, word=word), Raw(data=b""))
        book.case(f"ipv4_carry_{word:04x}", "echo.answered4", "answers", "The carry of RFC 1624 is where it must be.",
                  answers(made, "echo_answered", reply(made, 4)))
    return book


def error(packet, family, kind, word, entered=True):
    """The message to a packet's sender (docs/forwarding.md): it quotes the packet in words of four bytes, so much that it
    has 576 bytes or 1,280. One that is too big for a tunnel had entered that already: its TTL is one less."""
    at = packet.l3()
    if entered and kind[0] in (2, 3) and word:
        ttl = "ttl" if family == 4 else "hlim"
        packet = packet.but(**{packet.layers[at].kind: {ttl: packet.layers[at].get(ttl, 64) - 1}})
        packet.bytes()
    head = packet.layers[at]
    length = head.len if family == 4 else 40 + head.len
    whole = Packet(*packet.layers[at:]).bytes()[:length]
    most = 576 - 28 if family == 4 else 1280 - 48
    quote = whole[:min(len(whole), most) // 4 * 4]
    ends = {"src": head.get("dst"), "dst": head.get("src")}
    outer = Ip(**ends, tos=0xC0, id=0, df=1, ttl=64) if family == 4 else Ip6(**ends, hlim=64)
    return Packet(*back(packet), outer, Icmp(type=kind[0], code=kind[1], word=word, v6=family == 6), Raw(data=quote))


def told(packet, family, reason, mtu=0, entered=True, **other):
    packet.bytes()
    if reason == "ttl_told":
        kind = (11, 0) if family == 4 else (3, 0)
        return answers(packet, reason, error(packet, family, kind, 0), **other)
    kind = (3, 4) if family == 4 else (2, 0)
    said = mtu if family == 4 else max(mtu, 1280)
    return answers(packet, reason, error(packet, family, kind, said, entered), **other)


def tell():
    book = Book("messages", "Packets that go nowhere, and whose senders are told: too big, TTL used up (docs/forwarding.md).")
    for over6 in (False, True):
        for kind, between in (("ipip", 0), ("gue", 12)):
            outer = (40 if over6 else 20) + between
            for mtu in (1000, 1400, 1500):
                to = backend(1, FAR6 if over6 else FAR, tunnel=tunnel(kind, over6, mtu=mtu))
                setup = f"{kind}_{'over6' if over6 else 'over4'}_{mtu}"
                book.setup(setup, [to], SERVICES, errors=MANY)
                fits = mtu - outer
                for family in (4, 6):
                    header = 40 if family == 4 else 60
                    name = f"{setup}_{NAMES[family]}"
                    for more in (1, 2, 3, 4):
                        made = Packet(eth(), ip(family), tcp(flags="PA"), data(max(fits, 1280 if family == 6 else 0)
                                                                              - header + more))
                        rule = "tell.too_big" if family == 4 or fits >= 1280 else "tell.least_mtu"
                        book.case(f"{name}_too_big_{more}", rule, setup, "The sender is told what fits.",
                                  told(made, family, "too_big_told", fits))
                    if family == 6 and fits < 1280:
                        made = Packet(eth(), ip(6), tcp(), data(1280 - header))
                        book.case(f"{name}_least", "tell.small6", setup, "Nobody need send less than 1,280 bytes.",
                                  drops(made, "too_big"))
                made = Packet(eth(), ip(4, df=0), tcp(), data(fits))
                book.case(f"{setup}_may_be_cut", "tell.may_be_cut", setup, "Without DF it might be made into fragments.",
                          drops(made, "too_big"))
    to = backend(1, FAR, tunnel=tunnel("ipip", False, mtu=87))
    book.setup("next_to_nothing", [to], SERVICES, errors=MANY)
    book.case("next_to_nothing", "tell.may_be_cut", "next_to_nothing", "Less than 68 bytes fit: nobody need send so little.",
              drops(Packet(eth(), ip(4), tcp(), data(28)), "too_big"))
    over4 = backend(1, FAR, tunnel=tunnel("ipip", False, mtu=1320))
    for setup, rate in (("plain", MANY), ("off", 0), ("few", FEW)):
        book.setup(setup, [over4], SERVICES, errors=rate)
    for family in (4, 6):
        name = NAMES[family]
        ttl = "ttl" if family == 4 else "hlim"
        big = lambda *tags, mac=None, size=1400, body=None, **other: Packet(
            mac or eth(), *tags, ip(family, **other), body or tcp(), data(size))
        for left in (0, 1):
            for body, said in ((tcp(), "tcp"), (udp(), "udp"), (tcp(flags="S"), "syn")):
                made = Packet(eth(), ip(family, **{ttl: left}), body, data(9))
                book.case(f"{name}_ttl_{left}_{said}", "tell.ttl", "plain", "The sender is told that the TTL is used up.",
                          told(made, family, "ttl_told"))
        for size in (0, 1, 2, 3, 500, 1200, 1260):
            made = Packet(eth(), ip(family, **{ttl: 1}), tcp(), data(size))
            book.case(f"{name}_quotes_{size}", f"tell.put{family}", "plain", "So much of the packet is quoted as the RFCs want.",
                      told(made, family, "ttl_told"))
        for tags, said in (([Vlan(id=7, prio=5)], "tagged"), ([Vlan(id=7, tpid=0x88A8), Vlan(id=8)], "twice_tagged")):
            book.case(f"{name}_{said}", f"tell.put{family}", "plain", "The message goes back with the tags that there are.",
                      told(big(*tags), family, "too_big_told", 1300))
        made = Packet(eth(), ip(family, **{ttl: 1}), tcp(), pad=bytes(6))
        book.case(f"{name}_padded", f"tell.put{family}", "plain", "Padding is not quoted.", told(made, family, "ttl_told"))
        book.case(f"{name}_off", "message.off", "off", "No messages may be sent.", drops(big(), "untold"))
        book.case(f"{name}_few", "tell.untold", "few", "More than may be sent are not.", drops(big(), "untold", spent=True))
        book.case(f"{name}_limited", "message.limited", "few", "The same of packets whose TTL is used up.",
                  drops(Packet(eth(), ip(family, **{ttl: 1}), tcp()), "untold", spent=True))
        for mac, said in ((eth(src=GROUP_MAC), "from_group"), (eth(dst=GROUP_MAC), "to_group")):
            book.case(f"{name}_{said}", "tell.group", "plain", "Of a frame for a group, or from one, nobody is told.",
                      drops(big(mac=mac), "too_big"))
        nobodies = {4: ("0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", VIP), 6: ("::", "ff02::1", VIP6)}
        for at, source in enumerate(nobodies[family]):
            made = big()
            made.layers[1] = Ip(src=source, dst=VIP) if family == 4 else Ip6(src=source, dst=VIP6)
            book.case(f"{name}_from_no_host_{at}", "tell.not_told4" if family == 4 else "tell.no_host6", "plain",
                      f"{source} is no single other host.", drops(made, "too_big"))
        # What an ICMP error quotes leads to a backend; of it no error is sent.
        inner = Packet(Ip(src=VIP, dst=CLIENT) if family == 4 else Ip6(src=VIP6, dst=CLIENT6), Tcp(sport=80, dport=5555),
                       data(1400))
        head = Ip(src=ROUTER, dst=VIP) if family == 4 else Ip6(src=ROUTER6, dst=VIP6)
        made = Packet(eth(), head, Icmp(type=3 if family == 4 else 1, code=1, v6=family == 6), Raw(data=inner.bytes()))
        book.case(f"{name}_about_error", f"tell.not_told{family}", "plain", "Of an ICMP error no error is sent.",
                  drops(made, "too_big"))
    made = Packet(eth(), ip(4, mf=1, df=1, id=40001), tcp(), data(1400))
    book.case("ipv4_fragment", "tell.not_told4", "plain", "Of a fragment no sender is told.", drops(made, "too_big"))
    made = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=40002), tcp(), data(1400))
    book.case("ipv6_fragment", "tell.put6", "plain", "Nobody but its sender makes smaller fragments of it.",
              told(made, 6, "too_big_told", 1300))
    small = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=40003), tcp(), data(1000))
    later = Packet(eth(), ip(6), Ext(of=FRAGMENT, frag=128, id=40003, next=6), data(1400))
    book.case("ipv6_later_fragment", "tell.put6", "plain", "The same of another fragment of a packet whose first one fits.",
              sends(small, over4), told(later, 6, "too_big_told", 1300))
    for kinds in ((HOP,), (AUTH, DESTINATION)):
        made = Packet(eth(), ip(6), *[Ext(of=kind) for kind in kinds], tcp(), data(1400))
        book.case(f"ipv6_extension_{kinds[0]}", "tell.put6", "plain", "Extension headers are quoted with the rest.",
                  told(made, 6, "too_big_told", 1300))
    made = Packet(eth(), ip(4, options=b"\1" * 40, ttl=1), tcp(), data(600))
    book.case("ipv4_options", "tell.put4", "plain", "IP options are quoted; the message has none.", told(made, 4, "ttl_told"))
    return book


def learnt():
    book = Book("path_mtu", "What routers say of the ways of tunnels (docs/forwarding.md).")

    def said(family, mtu, proto=None, kind=None, mine=None, far=None, size=40, version=None, word=None):
        """A router's error about a tunnel's packet."""
        inside = Packet(Ip(src=CLIENT, dst=VIP), tcp(), data(20)).bytes()
        mine, far = mine or (SOURCE if family == 4 else SOURCE6), far or (FAR if family == 4 else FAR6)
        proto = proto if proto is not None else (4 if family == 4 else 41)
        if family == 4:
            quote = Packet(Ip(src=mine, dst=far, proto=proto, version=version), Raw(data=inside)).bytes()
            head = Ip(src=ROUTER, dst=SOURCE)
        else:
            quote = Packet(Ip6(src=mine, dst=far, next=proto, version=version), Raw(data=inside)).bytes()
            head = Ip6(src=ROUTER6, dst=SOURCE6)
        kind = kind or ((3, 4) if family == 4 else (2, 0))
        word = mtu if word is None else word
        return Packet(eth(), head, Icmp(type=kind[0], code=kind[1], word=word, v6=family == 6), Raw(data=quote[:size]))

    for family in (4, 6):
        name, over6 = NAMES[family], family == 6
        outer = 40 if over6 else 20
        ways = {}
        for kind in ("ipip", "gre", "gue"):
            for mtu in (0, 1500):
                ways[kind, mtu] = backend(1, FAR6 if over6 else FAR, tunnel=tunnel(kind, over6, mtu=mtu))
                book.setup(f"{name}_{kind}_{mtu}", [ways[kind, mtu]], SERVICES, errors=MANY)
        between = {"ipip": 0, "gre": 4, "gue": 12}
        proto = {"ipip": 41 if over6 else 4, "gre": 47, "gue": 17}

        def big(mtu, kind="ipip", more=1):
            return Packet(eth(), ip(4), tcp(), data(mtu - outer - between[kind] - 40 + more))

        for kind in between:
            for before in (0, 1500):
                to, setup = ways[kind, before], f"{name}_{kind}_{before}"
                tells = passes(said(family, 1400, proto[kind]), "path_mtu")
                book.case(f"{setup}_learned", "path.learned", setup, "A router says what its link takes: no more is sent.",
                          sends(big(1400, kind), to), tells, change(seconds=1),
                          told(big(1400, kind), 4, "too_big_told", 1400 - outer - between[kind]),
                          sends(big(1400, kind, 0), to))
        to, setup = ways["ipip", 1500], f"{name}_ipip_1500"
        tells = lambda mtu, **other: passes(said(family, mtu, **other), "path_mtu")
        book.case(f"{name}_lower", f"path.ipv{family}", setup, "Another link takes less.",
                  tells(1400), tells(1350), change(seconds=1), told(big(1350), 4, "too_big_told", 1350 - outer),
                  sends(big(1350, more=0), to))
        book.case(f"{name}_never_raised", "path.known", setup, "Nobody raises it.", tells(1350), tells(1400),
                  change(seconds=1), told(big(1350), 4, "too_big_told", 1350 - outer))
        book.case(f"{name}_old", "path.learned", setup, "After ten minutes it is too old.", tells(1350), change(seconds=601),
                  sends(big(1350), to), tells(1400), change(seconds=1), told(big(1400), 4, "too_big_told", 1400 - outer))
        book.case(f"{name}_more_than_known", "path.learned", setup, "What the configuration says is less.", tells(1600),
                  change(seconds=1), sends(big(1500, more=0), to), told(big(1500), 4, "too_big_told", 1500 - outer))
        least = 1280 if over6 else 584
        low = 1000 if over6 else 100
        book.case(f"{name}_least", f"path.ipv{family}", setup, f"Less than {least} is not believed.", tells(low),
                  change(seconds=1), sends(big(least, more=0), to), told(big(least), 4, "too_big_told", least - outer))
        far = "203.0.113.8" if family == 4 else "2001:db8:2000::8"
        book.case(f"{name}_another_way", "path.learned", setup, "The way of another backend takes less.",
                  tells(1400, far=far), change(seconds=1), sends(big(1400), to))
        nothing = lambda **other: passes(said(family, 1400, **other), "other_protocol")
        for what, other, rule in (
                ("foreign", {"mine": "198.51.100.9" if family == 4 else "2001:db8:1000::9"}, "path.foreign"),
                ("protocol", {"proto": 50}, f"path.other{family}"),
                ("version", {"version": 5}, f"path.other{family}"),
                ("kind", {"kind": (3, 1) if family == 4 else (1, 0)}, f"path.other{family}"),
                ("short", {"size": 19 if family == 4 else 39}, f"path.other{family}"),
                ("no_error", {"kind": (13, 0) if family == 4 else (135, 0)}, "path.no_error")):
            book.case(f"{name}_{what}", rule, setup, "It says nothing of the ways of our tunnels.", nothing(**other),
                      change(seconds=1), sends(big(1400), to))
        flooded = said(family, 1400)
        flooded.layers[0] = eth(dst="02:00:00:00:00:77")
        book.setup(f"{name}_own", [to], SERVICES, errors=MANY, own_macs=[OUR_MAC])
        book.case(f"{name}_flooded", "reject.pass", f"{name}_own", "A frame to another host says nothing here.",
                  passes(flooded, "other_protocol"), change(seconds=1), sends(big(1400), to))
        to = backend(1, FAR6 if over6 else FAR)
        book.setup(f"{name}_no_tunnel", [to], SERVICES, errors=MANY)
        book.case(f"{name}_no_tunnel", "path.no_tunnel", f"{name}_no_tunnel", "Nothing is followed where there is no tunnel.",
                  passes(said(family, 1400), "other_protocol"))
    setup, to = "ipv4_ipip_1500", backend(1, FAR, tunnel=tunnel("ipip", False, mtu=1500))
    for word in (0, 0xFFFF0000):
        book.case(f"ipv4_unsaid_{word:x}", "path.unsaid", setup, "Routers of before RFC 1191 do not say it.",
                  passes(said(4, 0, word=word), "other_protocol"), change(seconds=1),
                  sends(Packet(eth(), ip(4), tcp(), data(1400)), to))
    return book


def books():
    return [echo(), tell(), learnt()]
