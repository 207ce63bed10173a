"""From frame to flow: what is read, and every length that lies."""

from model import (CLIENT, CLIENT6, CLIENT_MAC, NOBODY, NOBODY6, OUR_MAC, VIP, VIP6, Book, backend, change, drops, eth,
                   passes, sends, service)
from packet import AUTH, DESTINATION, FRAGMENT, HOP, ROUTING, Ext, Icmp, Ip, Ip6, Packet, Raw, Tcp, Udp, Vlan

B1, B2 = backend(1), backend(2)
SERVICES = [service(VIP, 80), service(VIP, 53, "udp"), service(VIP6, 80), service(VIP6, 53, "udp")]
NAMES = {4: "ipv4", 6: "ipv6"}


def ip(family, dst=None, **other):
    if family == 4:
        return Ip(src=CLIENT, dst=dst or VIP, **other)
    return Ip6(src=CLIENT6, dst=dst or VIP6, **other)


def tcp(**other):
    return Tcp(**{"sport": 5555, "dport": 80, "flags": "A", **other})


def udp(**other):
    return Udp(**{"sport": 5555, "dport": 53, **other})


def data(count):
    return Raw(data=bytes(at & 0xFF for at in range(count)))


def nobody(family):
    return NOBODY if family == 4 else NOBODY6


def ethernet():
    book = Book("ethernet", "What stands before the IP header: EtherTypes, VLAN tags, whose frame it is.")
    book.setup("plain", [B1], SERVICES)
    book.setup("own", [B1], SERVICES, own_macs=[OUR_MAC, "02:00:00:00:00:03"])
    for kind, name in ((0x0806, "arp"), (0x88CC, "lldp"), (0x0026, "802_3_length"), (0x8847, "mpls"),
                       (0x88E5, "macsec"), (0x0000, "zero")):
        frame = Packet(eth(type=kind), data(46))
        book.case(f"not_ip_{name}", "ethernet.not_ip", "plain", f"EtherType 0x{kind:04x} is the kernel's.",
                  passes(frame, "not_ip"))
    book.case("nothing_behind_ethernet", "ethernet.not_ip", "plain", "A frame of 14 bytes that says ARP.",
              passes(Packet(eth(type=0x0806)), "not_ip"))
    for family in (4, 6):
        kind = 0x0800 if family == 4 else 0x86DD
        name = NAMES[family]
        for count, tpids in ((1, (0x8100,)), (1, (0x88A8,)), (2, (0x88A8, 0x8100)), (2, (0x8100, 0x8100))):
            tags = [Vlan(id=7 + at, prio=at * 5, dei=at, tpid=tpid) for at, tpid in enumerate(tpids)]
            packet = Packet(eth(), *tags, ip(family), tcp())
            said = "_".join(f"{tpid:04x}" for tpid in tpids)
            book.case(f"{name}_tags_{said}", "vlan.skipped", "plain",
                      f"{count} tag(s) are skipped, and stay where the frame goes back as it came.",
                      sends(packet, B1))
        book.case(f"{name}_priority_tag", "vlan.skipped", "plain", "A tag of VLAN 0 says a priority only.",
                  sends(Packet(eth(), Vlan(id=0, prio=7), ip(family), udp(), data(3)), B1, new=True))
        three = [Vlan(id=at + 1) for at in range(3)]
        book.case(f"{name}_three_tags", "vlan.too_many", "plain", "Of three tags no packet is read.",
                  passes(Packet(eth(), *three, ip(family), tcp()), "too_many_vlans"))
        for cut in (14, 15, 17):
            packet = Packet(eth(), Vlan(id=7), ip(family), tcp(), cut=cut)
            book.case(f"{name}_cut_in_tag_at_{cut}", "vlan.truncated", "plain", "The frame ends inside its tag.",
                      passes(packet, "truncated_vlan"))
        packet = Packet(eth(), Vlan(id=7, tpid=0x88A8), Vlan(id=8), ip(family), tcp(), cut=20)
        book.case(f"{name}_cut_in_second_tag", "vlan.truncated", "plain", "The frame ends inside its second tag.",
                  passes(packet, "truncated_vlan"))
        book.case(f"{name}_tag_of_arp", "ethernet.not_ip", "plain", "What is tagged is not IP.",
                  passes(Packet(eth(), Vlan(id=7, type=0x0806), data(28)), "not_ip"))
        for which, mac in (("first", OUR_MAC), ("second", "02:00:00:00:00:03")):
            book.case(f"{name}_own_mac_{which}", f"host.{which}", "own",
                      "A frame to an address of our interfaces is ours.",
                      sends(Packet(eth(dst=mac), ip(family), tcp()), B1))
        for which, mac in (("another", "02:00:00:00:00:04"), ("broadcast", "ff:ff:ff:ff:ff:ff"),
                           ("group", "01:00:5e:00:00:01"), ("last_byte", "02:00:00:00:00:12"),
                           ("first_byte", "03:00:00:00:00:02")):
            book.case(f"{name}_other_host_{which}", "host.other", "own",
                      "A frame to another address was flooded: to take it would deliver it twice.",
                      drops(Packet(eth(dst=mac), ip(family), tcp()), "other_host"))
        book.case(f"{name}_other_host_no_service", "service.none", "own",
                  "What is for no service is the kernel's, whoever it is addressed to.",
                  passes(Packet(eth(dst="02:00:00:00:00:04"), ip(family, nobody(family)), tcp()), "no_service"))
        book.case(f"{name}_any_mac", "host.first", "plain", "Without a list of own addresses any is ours.",
                  sends(Packet(eth(dst="0a:0b:0c:0d:0e:0f"), ip(family), tcp()), B1))
        wrong = Packet(eth(type=0x86DD if family == 4 else 0x0800), ip(family), tcp(), data(40))
        reason = "bad_ipv6_version" if family == 4 else "bad_ipv4_version"
        rule = "ipv6.version" if family == 4 else "ipv4.version"
        book.case(f"{name}_under_the_other_type", rule, "plain",
                  "The EtherType says one family and the version field another: no address is read, so the "
                  "kernel gets it.", passes(wrong, reason))
    return book


def good():
    book = Book("packets", "Good packets, which change in nothing but their MAC addresses.")
    book.setup("plain", [B1], SERVICES)
    book.setup("tracked", [B1], [{**one, "method": "tracked"} for one in SERVICES])
    for family in (4, 6):
        name = NAMES[family]
        plain = "ipv4.plain" if family == 4 else "ipv6.plain"
        for flags in ("S", "SA", "A", "PA", "FA", "F", "R", "RA", "SEC", "", "FPU", "SF"):
            new = flags in ("S", "SEC")
            book.case(f"{name}_tcp_{flags or 'none'}", plain, "plain",
                      "Each segment of a service goes to its backend; a SYN without ACK begins a flow.",
                      sends(Packet(eth(), ip(family), tcp(flags=flags), data(5)), B1, new=new))
        for size in (0, 1, 6, 1000, 1440):
            book.case(f"{name}_payload_{size}", plain, "plain", f"{size} bytes of payload.",
                      sends(Packet(eth(), ip(family), tcp(), data(size)), B1))
        book.case(f"{name}_padded", plain, "plain",
                  "What pads a short frame stays, and counts for nothing.",
                  sends(Packet(eth(), ip(family), tcp(), pad=bytes(range(6))), B1))
        for length in (4, 12, 40):
            options = bytes([1]) * length
            book.case(f"{name}_tcp_options_{length}", plain, "plain", f"{length} bytes of TCP options.",
                      sends(Packet(eth(), ip(family), tcp(options=options)), B1))
        rule = "udp.good"
        for size in (0, 1, 2, 1200):
            book.case(f"{name}_udp_{size}", rule, "plain",
                      "The first datagram of a flow begins it; the next one goes on.",
                      sends(Packet(eth(), ip(family), udp(), data(size)), B1, new=True),
                      sends(Packet(eth(), ip(family), udp(), data(size)), B1))
        book.case(f"{name}_udp_no_checksum", rule, "plain", "A datagram without a checksum is a good one.",
                  sends(Packet(eth(), ip(family), udp(sum=0), data(2)), B1, new=True))
        book.case(f"{name}_udp_wrong_checksum", rule, "plain", "Checksums are the receiver's to verify.",
                  sends(Packet(eth(), ip(family), udp(sum=0x1234), data(2)), B1, new=True, wrong=["udp sum"]))
        book.case(f"{name}_udp_shorter_than_ip", rule, "plain",
                  "A datagram may end before its packet does.",
                  sends(Packet(eth(), ip(family), udp(len=12, sum=0), data(9)), B1, new=True, wrong=["udp len"]))
        book.case(f"{name}_tcp_wrong_checksum", plain, "plain", "Checksums are the receiver's to verify.",
                  sends(Packet(eth(), ip(family), tcp(sum=0x1234), data(2)), B1, wrong=["tcp sum"]))
        other = nobody(family)
        book.case(f"{name}_no_service_address", "service.none", "plain", "An address of no service.",
                  passes(Packet(eth(), ip(family, other), tcp()), "no_service"))
        book.case(f"{name}_no_service_port", "service.none", "plain", "A port of no service.",
                  passes(Packet(eth(), ip(family), tcp(dport=81)), "no_service"))
        book.case(f"{name}_no_service_swapped_port", "service.none", "plain",
                  "A port whose bytes are those of a service's, swapped.",
                  passes(Packet(eth(), ip(family), tcp(dport=80 << 8)), "no_service"))
        book.case(f"{name}_no_service_source_port", "service.none", "plain",
                  "The service's port as source is no service.",
                  passes(Packet(eth(), ip(family), tcp(sport=80, dport=5555)), "no_service"))
        book.case(f"{name}_no_service_protocol", "service.none", "plain", "A port of the other protocol's service.",
                  passes(Packet(eth(), ip(family), udp(dport=80)), "no_service"),
                  passes(Packet(eth(), ip(family), tcp(dport=53)), "no_service"))
        for number in (2, 33, 47, 50, 103, 136):
            field = {"proto": number} if family == 4 else {"next": number}
            book.case(f"{name}_protocol_{number}", "protocol.other", "plain",
                      "Other protocols are the kernel's, also to a service's address.",
                      passes(Packet(eth(), ip(family, **field), data(24)), "other_protocol"))
        book.case(f"{name}_tracked_counts_new", "tracked.new", "tracked",
                  "The first packet of a flow that is not known counts as its first, SYN or not.",
                  sends(Packet(eth(), ip(family), tcp(flags="A")), B1, new=True),
                  sends(Packet(eth(), ip(family), tcp(flags="A")), B1))
    for ttl in (0, 1, 255):
        book.case(f"ipv4_ttl_{ttl}", "ipv4.plain", "plain", "On one link no TTL is taken from, nor asked.",
                  sends(Packet(eth(), ip(4, ttl=ttl), tcp()), B1))
        book.case(f"ipv6_hop_limit_{ttl}", "ipv6.plain", "plain", "On one link no hop limit is taken from.",
                  sends(Packet(eth(), ip(6, hlim=ttl), tcp()), B1))
    for tos in (0x01, 0x03, 0xB8, 0xFF):
        book.case(f"ipv4_tos_{tos:02x}", "ipv4.plain", "plain", "DSCP and ECN stay.",
                  sends(Packet(eth(), ip(4, tos=tos), tcp()), B1))
        book.case(f"ipv6_class_{tos:02x}", "ipv6.plain", "plain", "DSCP, ECN and flow label stay.",
                  sends(Packet(eth(), ip(6, tc=tos, label=0xABCDE), tcp()), B1))
    book.case("ipv4_without_df", "ipv4.plain", "plain", "DF is not asked for.",
              sends(Packet(eth(), ip(4, df=0, id=4711), tcp()), B1))
    book.case("ipv4_wrong_checksum", "ipv4.plain", "plain", "The header's checksum is the receiver's to verify.",
              sends(Packet(eth(), ip(4, sum=0xBEEF), tcp()), B1, wrong=["ip sum"]))
    for length in (4, 20, 40):
        book.case(f"ipv4_options_{length}", "ipv4.options", "plain",
                  f"{length} bytes of IP options before the TCP header.",
                  sends(Packet(eth(), ip(4, options=b"\1" * length), tcp(), data(4)), B1))
        book.case(f"ipv4_options_{length}_udp", "udp.good", "plain",
                  f"{length} bytes of IP options before the UDP header.",
                  sends(Packet(eth(), ip(4, options=b"\1" * length), udp(), data(4)), B1, new=True))
    return book


def lies():
    book = Book("lies", "Frames that end too early and lengths that lie. Of what is meant for a service none is\n"
                        "forwarded or left to the kernel, which has no socket for it; all else is the kernel's.")
    book.setup("plain", [B1], SERVICES)

    def both(name, rule, shows, reason, make):
        """To a service's address it is dropped, to another one it passes."""
        book.case(name, rule, "plain", shows, drops(make(None), reason))
        book.case(f"{name}_no_vip", "reject.pass", "plain", f"{shows} It is for no service.",
                  passes(make(True), reason))

    def to(family, flag):
        return nobody(family) if flag else None

    for family in (4, 6):
        name, header = NAMES[family], 20 if family == 4 else 40
        l3 = 14
        for cut in (l3, l3 + 1, l3 + header - 1):
            book.case(f"{name}_cut_in_header_at_{cut}", f"{name}.truncated", "plain",
                      "The frame ends inside the IP header: no address is read.",
                      passes(Packet(eth(), ip(family), tcp(), cut=cut), f"truncated_{name}"))
        tagged = Packet(eth(), Vlan(id=5), ip(family), tcp(), cut=l3 + 4 + header - 1)
        book.case(f"{name}_cut_in_header_behind_tag", f"{name}.truncated", "plain",
                  "The same behind a tag.", passes(tagged, f"truncated_{name}"))
        for cut in (l3 + header, l3 + header + 4, l3 + header + 19):
            both(f"{name}_cut_behind_header_at_{cut}", f"{name}.length", "The packet is longer than its frame.",
                 f"bad_{name}_length", lambda flag, cut=cut: Packet(eth(), ip(family, to(family, flag)), tcp(), cut=cut))
        field = (lambda count: {"len": header + count}) if family == 4 else (lambda count: {"len": count})
        both(f"{name}_length_one_more", f"{name}.length", "The length is one more than the frame has.",
             f"bad_{name}_length", lambda flag: Packet(eth(), ip(family, to(family, flag), **field(26)), tcp(), data(5)))
        both(f"{name}_length_65535", f"{name}.length", "The length says all that it can.",
             f"bad_{name}_length",
             lambda flag: Packet(eth(), ip(family, to(family, flag), len=65535), tcp(), data(5)))
        for count in (0, 1, 19):
            both(f"{name}_tcp_left_{count}", "tcp.truncated", f"The packet has {count} bytes for a TCP header.",
                 "truncated_tcp", lambda flag, count=count: Packet(
                     eth(), ip(family, to(family, flag), **field(count)), tcp(), data(5)))
        for count in (0, 1, 7):
            both(f"{name}_udp_left_{count}", "udp.truncated", f"The packet has {count} bytes for a UDP header.",
                 "truncated_udp", lambda flag, count=count: Packet(
                     eth(), ip(family, to(family, flag), **field(count)), udp(), data(5)))
        for offset in (0, 4):
            both(f"{name}_tcp_offset_{offset}", "tcp.offset", "The data offset is less than the header.",
                 "bad_tcp_offset", lambda flag, offset=offset: Packet(
                     eth(), ip(family, to(family, flag)), tcp(offset=offset), data(9)))
        for offset, left in ((6, 3), (15, 39)):
            both(f"{name}_tcp_offset_{offset}_of_{left}", "tcp.offset",
                 "The data offset is more than the packet has.", "bad_tcp_offset",
                 lambda flag, offset=offset, left=left: Packet(
                     eth(), ip(family, to(family, flag)), tcp(offset=offset), data(left)))
        both(f"{name}_tcp_offset_into_padding", "tcp.offset",
             "The TCP header would end in what pads the frame.", "bad_tcp_offset",
             lambda flag: Packet(eth(), ip(family, to(family, flag)), tcp(offset=6), pad=bytes(6)))
        book.case(f"{name}_tcp_offset_exact", "ipv4.plain" if family == 4 else "ipv6.plain", "plain",
                  "The TCP header may end where the packet does.",
                  sends(Packet(eth(), ip(family), tcp(offset=6), data(4)), B1, wrong=["tcp offset"]))
        for length in (0, 7):
            both(f"{name}_udp_length_{length}", "udp.length", "The UDP length is less than its header.",
                 "bad_udp_length", lambda flag, length=length: Packet(
                     eth(), ip(family, to(family, flag)), udp(len=length), data(9)))
        both(f"{name}_udp_length_one_more", "udp.length", "The UDP length is more than the packet has.",
             "bad_udp_length", lambda flag: Packet(eth(), ip(family, to(family, flag)), udp(len=18), data(9)))
        both(f"{name}_udp_length_into_padding", "udp.length", "It is as much as the padded frame has.",
             "bad_udp_length", lambda flag: Packet(eth(), ip(family, to(family, flag)), udp(len=15), data(1), pad=bytes(6)))
    for length in (0, 19):
        both(f"ipv4_length_{length}", "ipv4.length", "The total length is less than the header.",
             "bad_ipv4_length", lambda flag, length=length: Packet(eth(), ip(4, to(4, flag), len=length), tcp()))
    both("ipv4_length_in_options", "ipv4.length", "The total length ends inside the options.", "bad_ipv4_length",
         lambda flag: Packet(eth(), ip(4, to(4, flag), options=b"\1" * 8, len=27), tcp()))
    both("ipv4_cut_in_options", "ipv4.truncated_options", "The frame ends inside the options.", "truncated_ipv4",
         lambda flag: Packet(eth(), ip(4, to(4, flag), options=b"\1" * 8), tcp(), cut=14 + 27))
    both("ipv4_header_length_15_of_20", "ipv4.truncated_options", "The header would be longer than the frame.",
         "truncated_ipv4", lambda flag: Packet(eth(), ip(4, to(4, flag), ihl=15), tcp()))
    for ihl in (0, 1, 4):
        book.case(f"ipv4_header_length_{ihl}", "ipv4.header_length", "plain",
                  "The header length is less than a header: no address is read.",
                  passes(Packet(eth(), ip(4, ihl=ihl), tcp()), "bad_ipv4_header_length"))
    for version in (0, 5, 6, 15):
        book.case(f"ipv4_version_{version}", "ipv4.version", "plain", "The version field is not 4.",
                  passes(Packet(eth(), ip(4, version=version), tcp()), "bad_ipv4_version"))
    for version in (0, 4, 7):
        book.case(f"ipv6_version_{version}", "ipv6.version", "plain", "The version field is not 6.",
                  passes(Packet(eth(), ip(6, version=version), tcp()), "bad_ipv6_version"))
    for which, src, dst in (("source", "::ffff:10.1.0.1", VIP6), ("destination", CLIENT6, "::ffff:10.0.0.2"),
                            ("both", "::ffff:10.1.0.1", "::ffff:10.0.0.2")):
        book.case(f"ipv6_mapped_{which}", "ipv6.mapped", "plain",
                  "An IPv4-mapped address is not for the wire (RFC 6890), and would pass for an IPv4 flow.",
                  passes(Packet(eth(), Ip6(src=src, dst=dst), tcp()), "mapped_address"))
    book.case("ipv6_compatible_is_not_mapped", "ipv6.plain", "plain", "::a.b.c.d is no mapped address.",
              sends(Packet(eth(), Ip6(src="::10.1.0.1", dst=VIP6), tcp()), B1))
    book.case("ipv6_nearly_mapped", "ipv6.plain", "plain", "Nor is one whose first half is not zero.",
              sends(Packet(eth(), Ip6(src="2001:db8::ffff:10.1.0.1", dst=VIP6), tcp()), B1))
    return book


def fragments():
    book = Book("fragments", "Fragments: the first one is decided like a whole packet, the others go where it went.")
    book.setup("plain", [B1], SERVICES)
    places = [(addr, protocol) for addr in (VIP, VIP6) for protocol in ("udp", "tcp")]

    def of_any_port(**other):
        return [service(addr, None, protocol, **other) for addr, protocol in places]

    book.setup("by_source", [B1], of_any_port(affinity="client"))
    book.setup("by_source_own", [B1], of_any_port(affinity="client"), own_macs=[OUR_MAC])
    book.setup("by_source_denied", [B1], of_any_port(affinity="client", deny=["0.0.0.0/0", "::/0"]))
    book.setup("any_port", [B1], of_any_port())
    book.setup("by_source_beside", [B1, backend(2)],
               [service(addr, 53, "udp") for addr in (VIP, VIP6)] + of_any_port(affinity="client", backends=["b2"]))
    by_port = [service(addr, port, protocol, affinity="client", fragments=True)
               for addr in (VIP, VIP6) for protocol, port in (("udp", 53), ("tcp", 80))]
    book.setup("by_source_port", [B1], by_port)
    book.setup("by_source_port_also", [B1, backend(2)],
               [service(addr, 53, "udp", affinity="client", fragments=True, also=[other])
                for addr, other in (("10.0.0.3", VIP), ("2001:db8::3", VIP6))]
               + [service(addr, 80, "tcp", backends=["b2"]) for addr in (VIP, VIP6)])
    book.setup("client", [B1], [service(addr, 53, "udp", affinity="client") for addr in (VIP, VIP6)])
    numbers = iter(range(1, 60000))
    for name, body, new in (("tcp", tcp(), False), ("tcp_syn", tcp(flags="S"), True),
                            ("udp", udp(sum=0, len=4000), True)):
        wrong = {"wrong": ["udp len", "tcp sum"]}
        for offset, mf in ((1, 1), (185, 0), (0x1FFF, 0), (256, 0)):
            ident = next(numbers)
            first = Packet(eth(), ip(4, mf=1, df=0, id=ident), body, data(8))
            later = Packet(eth(), ip(4, mf=mf, df=0, frag=offset, id=ident, proto=17 if name == "udp" else 6), data(24))
            book.case(f"ipv4_{name}_{offset}_{mf}", "fragment.followed", "plain", "A later fragment follows the first one.",
                      sends(first, B1, new=new, **wrong), sends(later, B1))
            other = later.but(ip={"id": next(numbers)})
            book.case(f"ipv4_{name}_{offset}_{mf}_other", "fragment.lost", "plain",
                      "One of another packet has no first one.",
                      sends(first, B1, new=new, **wrong), drops(other, "later_fragment"))
            stranger = Packet(eth(), ip(4, NOBODY, mf=mf, df=0, frag=offset), body, data(8))
            book.case(f"ipv4_{name}_{offset}_{mf}_no_vip", "reject.pass", "plain", "Fragments for others are the kernel's.",
                      passes(stranger, "later_fragment"))
            first = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=ident), body, data(8))
            later = Packet(eth(), ip(6), Ext(of=FRAGMENT, frag=offset, mf=mf, id=ident,
                                             next=17 if name == "udp" else 6), data(24))
            book.case(f"ipv6_{name}_{offset}_{mf}", "fragment.followed", "plain", "A later fragment follows the first one.",
                      sends(first, B1, new=new, **wrong), sends(later, B1))
            ident = next(numbers)
            first, later = first.but(ext={"id": ident}), later.but(ext={"id": ident})
            book.case(f"ipv6_{name}_{offset}_{mf}_first", "fragment.lost", "plain", "It came before the first one.",
                      drops(later, "later_fragment"), sends(first, B1, new=new, **wrong), sends(later, B1))
            stranger = Packet(eth(), ip(6, NOBODY6), Ext(of=FRAGMENT, frag=offset, mf=mf, id=9), body, data(8))
            book.case(f"ipv6_{name}_{offset}_{mf}_no_vip", "reject.pass", "plain", "Fragments for others are the kernel's.",
                      passes(stranger, "later_fragment"))
        for flag in (None, True):
            if flag:
                book.case(f"ipv4_first_{name}_no_vip", "reject.pass", "plain", "A first fragment for others.",
                          passes(Packet(eth(), ip(4, NOBODY, mf=1, df=0), body, data(8)), "first_fragment"))
                book.case(f"ipv6_first_{name}_no_vip", "reject.pass", "plain", "A first fragment for others.",
                          passes(Packet(eth(), ip(6, NOBODY6), Ext(of=FRAGMENT, mf=1, id=9), body, data(8)), "first_fragment"))
    for left, reason in ((0, "truncated_tcp"), (19, "truncated_tcp")):
        book.case(f"ipv4_first_of_{left}", "tcp.truncated", "plain", "A first fragment without the whole TCP header.",
                  drops(Packet(eth(), ip(4, mf=1, df=0, len=20 + left), tcp()), reason))
    for left in (0, 7):
        said = {"len": 20 + left}
        book.case(f"ipv4_first_udp_of_{left}", "fragment.truncated_udp", "plain",
                  "A first fragment without the whole UDP header.",
                  drops(Packet(eth(), ip(4, mf=1, df=0, **said), udp(), data(8)), "truncated_udp"))
        made = Packet(eth(), ip(6, len=8 + left), Ext(of=FRAGMENT, mf=1, id=next(numbers)), udp(), data(8))
        book.case(f"ipv6_first_udp_of_{left}", "fragment.truncated_udp", "plain",
                  "A first fragment without the whole UDP header.", drops(made, "truncated_udp"))
        for family in (4, 6):
            body = [udp(len=left), data(8)]
            made = (Packet(eth(), ip(4, mf=1, df=0), *body) if family == 4 else
                    Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=next(numbers)), *body))
            book.case(f"{NAMES[family]}_first_udp_length_{left}", "fragment.udp_length", "plain",
                      "The datagram's length is less than its header.", drops(made, "bad_udp_length"))
    made = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=next(numbers)), tcp(offset=4), data(8))
    book.case("ipv6_first_tcp_offset", "fragment.bad_tcp", "plain", "A first fragment whose TCP header lies.",
              drops(made, "bad_tcp_offset"))
    made = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=next(numbers), next=58), data(40))
    book.case("ipv6_first_of_icmp", "fragment.other", "plain", "A first fragment of another protocol has no ports.",
              drops(made, "first_fragment"))
    for family in (4, 6):
        ident = next(numbers)
        tags = [Vlan(id=7, prio=3)]
        if family == 4:
            first = Packet(eth(), *tags, ip(4, mf=1, df=0, id=ident), udp(sum=0, len=4000), data(8))
            later = Packet(eth(), ip(4, df=0, frag=2, id=ident, proto=17), data(8))
            alien = Packet(eth(), ip(4, df=0, frag=2, id=ident, proto=6), data(8))
        else:
            first = Packet(eth(), *tags, ip(6), Ext(of=FRAGMENT, mf=1, id=ident), udp(sum=0, len=4000), data(8))
            later = Packet(eth(), ip(6), Ext(of=FRAGMENT, frag=2, id=ident, next=17), data(8))
            alien = Packet(eth(), ip(6, VIP6), Ext(of=FRAGMENT, frag=2, id=ident + 0x10000, next=17), data(8))
        begins = sends(first, B1, new=True, wrong=["udp len"])
        name = f"{NAMES[family]}_by"
        takes = sends(later, B1, new=True)
        book.case(f"{name}_source", "fragment.by_source", "by_source",
                  "Where clients are led by their address, whatever the port, a fragment needs no first one.",
                  takes, sends(later, B1))
        book.case(f"{name}_source_after", "fragment.by_source", "by_source", "With a first one it goes the same way.",
                  begins, sends(later, B1), sends(alien, B1))
        book.case(f"{name}_source_beside", "fragment.by_first", "by_source_beside",
                  "Where another service has a port of its own at the address, what the first one has said goes before.",
                  begins, sends(later, B1))
        book.case(f"{name}_source_beside_lost", "fragment.by_source", "by_source_beside",
                  "Without a first one, the service is asked that takes any port.",
                  sends(later, backend(2), new=True))
        book.case(f"{name}_source_other_host", "host.other", "by_source_own", "A flooded frame is not ours.",
                  drops(Packet(eth(dst="02:00:00:00:00:04"), *later.layers[1:]), "other_host"))
        book.case(f"{name}_source_denied", "sources.denied", "by_source_denied", "A list says whose are taken.",
                  drops(later, "denied_source"))
        book.case(f"{name}_source_of_a_port", "fragment.by_source", "by_source_port",
                  "So it is where a service of one port is alone at its address and says so.",
                  takes, sends(later, B1))
        book.case(f"{name}_source_of_a_port_after", "fragment.by_source", "by_source_port",
                  "With a first one it goes the same way.", begins, sends(later, B1), sends(alien, B1))
        book.case(f"{name}_source_of_a_second_address", "fragment.by_source", "by_source_port_also",
                  "At each of its addresses, whatever there is of another protocol.", takes, sends(later, B1))
        book.case(f"{name}_flow", "fragment.by_flow", "any_port", "Where flows are led, its port would be needed.",
                  drops(later, "later_fragment"), begins, sends(later, B1))
        book.case(f"{name}_client_of_a_port", "fragment.one_port", "client", "Where a service takes one port, it may be another's.",
                  drops(later, "later_fragment"), begins, sends(later, B1))
        book.case(f"{NAMES[family]}_old", "fragment.lost", "plain", "The first one was here too long ago.",
                  begins, change(seconds=61), drops(later, "later_fragment"))
        book.case(f"{NAMES[family]}_gone", "fragment.gone", "plain", "The backend that the first one went to is gone.",
                  begins, change(gone="b1"), drops(later, "later_fragment"), needs=["next_hops"])
        book.case(f"{NAMES[family]}_alien", "fragment.lost", "plain",
                  "The protocol of IPv4, and all 32 bits of an identification of IPv6, are the packet's.",
                  begins, drops(alien, "later_fragment"), sends(later, B1))
    ident = next(numbers)
    port = tcp(dport=81)
    book.setup("own", [B1], SERVICES, own_macs=[OUR_MAC])
    for family in (4, 6):
        ident, other = next(numbers), eth(dst="02:00:00:00:00:77")
        if family == 4:
            first = Packet(eth(), ip(4, mf=1, df=0, id=ident), udp(sum=0, len=4000), data(8))
            later = Packet(other, ip(4, df=0, frag=2, id=ident, proto=17), data(8))
        else:
            first = Packet(eth(), ip(6), Ext(of=FRAGMENT, mf=1, id=ident), udp(sum=0, len=4000), data(8))
            later = Packet(other, ip(6), Ext(of=FRAGMENT, frag=2, id=ident, next=17), data(8))
        book.case(f"{NAMES[family]}_later_other_host", "later.other_host", "own",
                  "A switch has flooded it: who it is for takes it.",
                  sends(first, B1, new=True, wrong=["udp len"]), drops(later, "other_host"))
    book.case("ipv4_no_service", "fragment.kernels", "plain", "Where the first one was the kernel's, the others are.",
              passes(Packet(eth(), ip(4, mf=1, df=0, id=ident), port, data(4)), "no_service"),
              passes(Packet(eth(), ip(4, df=0, frag=3, id=ident, proto=6), data(8)), "no_service"))
    book.case("ipv4_df_is_no_fragment", "ipv4.plain", "plain", "DF alone makes no fragment.",
              sends(Packet(eth(), ip(4, df=1), tcp()), B1))
    book.case("ipv6_atomic_tcp", "ext.atomic_fragment", "plain",
              "A fragment header of a whole packet (RFC 6946) is skipped.",
              sends(Packet(eth(), ip(6), Ext(of=FRAGMENT, id=9), tcp()), B1))
    book.case("ipv6_atomic_udp", "ext.atomic_fragment", "plain", "The same before UDP.",
              sends(Packet(eth(), ip(6), Ext(of=FRAGMENT, id=9), udp(), data(3)), B1, new=True))
    book.case("ipv6_fragment_in_chain", "ext.later_fragment", "plain", "A fragment header behind another header.",
              drops(Packet(eth(), ip(6), Ext(of=ROUTING), Ext(of=FRAGMENT, frag=2), tcp()), "later_fragment"))
    book.case("ipv4_fragment_of_icmp", "ipv4.fragment", "plain", "A fragmented ICMP message has no quote.",
              drops(Packet(eth(), ip(4, mf=1, df=0), Icmp(type=3, code=4), data(28)), "first_fragment"))
    return book


KINDS = {"hop": HOP, "routing": ROUTING, "destination": DESTINATION, "auth": AUTH, "fragment": FRAGMENT}


def extensions():
    book = Book("extensions", "IPv6 extension headers: up to six are walked.")
    book.setup("plain", [B1], SERVICES)
    for name, kind in KINDS.items():
        rule = {"auth": "ext.plain", "fragment": "ext.atomic_fragment"}.get(name, "ext.plain")
        for sizes in ((None,), (3,)) if name != "fragment" else ((None,),):
            units = sizes[0]
            packet = lambda body: Packet(eth(), ip(6), Ext(of=kind, units=units), body)
            size = "" if units is None else f"_{units}"
            book.case(f"{name}{size}_tcp", rule, "plain", f"One {name} header before TCP.", sends(packet(tcp()), B1))
            book.case(f"{name}{size}_udp", rule, "plain", f"One {name} header before UDP.",
                      sends(packet(udp()), B1, new=True))
        tagged = Packet(eth(), Vlan(id=9), ip(6), Ext(of=kind), tcp(flags="S"))
        book.case(f"{name}_behind_tag", rule, "plain", "The same behind a tag.", sends(tagged, B1, new=True))
        for flag in (None, True):
            end, suffix, dst = (passes, "_no_vip", NOBODY6) if flag else (drops, "", None)
            whole = 12 if name == "auth" else 8
            for left in (0, 1, whole - 1):
                packet = Packet(eth(), ip(6, dst, len=left), Ext(of=kind), tcp())
                book.case(f"{name}_left_{left}{suffix}", "ext.truncated_packet" if left < 2 or name == "fragment"
                          else "ext.truncated_size", "plain",
                          f"The packet ends after {left} bytes of the header, though the frame goes on.",
                          end(packet, "truncated_ipv6_extension"))
    for name in ("hop", "auth"):
        packet = Packet(eth(), ip(6), Ext(of=KINDS[name], says=255), tcp(), data(32))
        book.case(f"{name}_says_255", "ext.truncated_size", "plain", "The header says that it is longer than the packet.",
                  drops(packet, "truncated_ipv6_extension"))
    mixed = [HOP, DESTINATION, ROUTING, FRAGMENT, AUTH, DESTINATION, HOP]
    for count in (2, 4, 6):
        chain = [Ext(of=kind) for kind in mixed[:count]]
        book.case(f"chain_of_{count}", "ext.plain", "plain", f"{count} headers, of every kind, are walked.",
                  sends(Packet(eth(), ip(6), *chain, tcp(), data(9)), B1))
    for flag in (None, True):
        end, suffix, dst = (passes, "_no_vip", NOBODY6) if flag else (drops, "", None)
        chain = [Ext(of=kind) for kind in mixed]
        book.case(f"chain_of_7{suffix}", "ext.too_many", "plain", "Seven are too many.",
                  end(Packet(eth(), ip(6, dst), *chain, tcp()), "too_many_ipv6_extensions"))
    book.case("no_next_header", "protocol.other", "plain", "Next header 59: nothing follows.",
              passes(Packet(eth(), ip(6), Ext(of=HOP, next=59)), "other_protocol"))
    book.case("encrypted", "protocol.other", "plain", "ESP is not walked: what follows cannot be read.",
              passes(Packet(eth(), ip(6), Ext(of=DESTINATION, next=50), data(32)), "other_protocol"))
    book.case("mobility", "protocol.other", "plain", "Mobility headers (135) are not walked.",
              passes(Packet(eth(), ip(6, next=135), data(32)), "other_protocol"))
    for count in (0, 19):
        packet = Packet(eth(), ip(6, len=8 + count), Ext(of=HOP), tcp())
        book.case(f"tcp_left_{count}_behind_extension", "tcp.truncated", "plain",
                  "Extension headers count for the packet's length.", drops(packet, "truncated_tcp"))
    book.case("frame_ends_in_extension", "ipv6.length", "plain", "The frame ends inside the header.",
              drops(Packet(eth(), ip(6), Ext(of=HOP), tcp(), cut=14 + 44), "bad_ipv6_length"))
    return book


def books():
    return [ethernet(), good(), lies(), fragments(), extensions()]
