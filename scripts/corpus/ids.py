"""QUIC: a connection id that a server has made leads to it (draft-ietf-quic-load-balancers-21). The ids are
the vectors of its Appendix B and of its section 5.4."""

from errors import error, sent
from model import CLIENT, CLIENT6, VIP, VIP6, Book, backend, change, drops, eth, sends, service
from packet import HOP, Ext, Ip, Ip6, Packet, Raw, Tcp, Udp, Vlan
from parsing import NAMES

KEY, EXAMPLE = "8f95f09245765f80256934e50c66207f", "fdf726a9893ec05c0632d3956680baf0"
# Name, rule, configuration, bytes of server id and nonce, key, server id, connection id.
VECTORS = [
    ("open", "quic.decoded", 0, 3, 4, None, "c4605e", "07c4605e4504cc4f"),
    ("three_7", "quic.three", 0, 3, 4, KEY, "ed793a", "0720b1d07b359d3c"),
    ("four_15", "quic.four", 1, 10, 5, KEY, "ed793a51d49b8f5fab65", "2fcc381bc74cb4fbad2823a3d1f8fed2"),
    ("single", "quic.single", 2, 8, 8, KEY, "ed793a51d49b8f5f", "504dd2d05a7b0de9b2b9907afb5ecf8cc3"),
    ("three_18", "quic.three", 0, 9, 9, KEY, "ed793a51d49b8f5fab", "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc"),
    ("example", "quic.four", 0, 3, 4, EXAMPLE, "31441a", "0767947d29be054a"),
]


def short(id_, more=40):
    return bytes([0x40]) + id_ + bytes(range(more))


def long(id_, more=40, version=1, says=None):
    return (bytes([0xC3]) + version.to_bytes(4, "big") + bytes([len(id_) if says is None else says]) + id_
            + bytes([2, 0xEE, 0xFF]) + bytes(range(more)))


def datagram(family, payload, *before, sport=5555, ext=(), **ip):
    head = Ip(src=CLIENT, dst=VIP, **ip) if family == 4 else Ip6(src=CLIENT6, dst=VIP6, **ip)
    return Packet(eth(), *before, head, *ext, Udp(sport=sport, dport=443), Raw(data=payload))


def books():
    book = Book("quic", "Datagrams that are led by their QUIC ids, and those that the method decides.\n"
                        "Ids lead to b1; tables lead to b2.")
    led, table = backend(1), backend(2)
    for name, rule, config, server_id, nonce, key, server, id_ in VECTORS:
        ids = {"config": config, "server_id": server_id, "nonce": nonce, "servers": {server: "b1"}}
        if key:
            ids["key"] = key
        services = [service(addr, 443, "udp", backends=["b2"], ids=[ids]) for addr in (VIP, VIP6)]
        book.setup(name, [led, table], services)
        if name == "example":
            rule = "quic.three"
        id_ = bytes.fromhex(id_)
        for family in (4, 6):
            said = f"{name}_{NAMES[family]}"
            for form, make in (("short", short), ("long", long)):
                packet = datagram(family, make(id_))
                book.case(f"{said}_{form}", rule, name, "The id leads to the server that made it; then it is known.",
                          sends(packet, led, id="decoded"), sends(packet, led, id="remembered"))
            book.case(f"{said}_moves", "quic.remembered", name, "From another port, the connection stays.",
                      sends(datagram(family, short(id_)), led, id="decoded"),
                      sends(datagram(family, short(id_), sport=6666), led, id="remembered"))
            other = bytes([id_[0]]) + bytes([id_[1] ^ 1]) + id_[2:]
            book.case(f"{said}_other_server", "quic.no_server", name, "An id of no server: the method decides.",
                      sends(datagram(family, short(other)), table, new=True, id="no_server"))
            unset = bytes([(id_[0] & 31) | 6 << 5]) + id_[1:]
            book.case(f"{said}_unset", "quic.unconfigured", name, "A configuration that is not set.",
                      sends(datagram(family, short(unset)), table, new=True, id="unconfigured"))
            none = bytes([id_[0] | 7 << 5]) + id_[1:]
            book.case(f"{said}_none", "quic.unconfigured", name, "Configuration 7 is none.",
                      sends(datagram(family, short(none)), table, new=True, id="unconfigured"))
            book.case(f"{said}_too_short", "quic.too_short", name, "A long header's id is shorter than the configuration's.",
                      sends(datagram(family, long(id_[:-1])), table, new=True, id="too_short"))
            says = bytes([id_[0] & 0xE0 | (len(id_) - 2)]) + id_[1:]
            book.case(f"{said}_says_less", "quic.says_less", name, "The id's first byte says that it is shorter.",
                      sends(datagram(family, short(says)), table, new=True, id="too_short"))
            book.case(f"{said}_tagged", rule, name, "The same behind a tag.",
                      sends(datagram(family, short(id_), Vlan(id=5)), led, id="decoded"))
    id_ = bytes.fromhex(VECTORS[0][-1])
    for family in (4, 6):
        said = NAMES[family]
        for left in (0, 1, 6, 26):
            book.case(f"short_of_{left}_{said}", "quic.no_id" if left >= 6 else "quic.no_payload", "open",
                      "A datagram that is too small for QUIC: RFC 9000 section 10.3.",
                      sends(datagram(family, short(id_)[:left]), table, new=True, id="no_id"))
        book.case(f"short_of_27_{said}", "quic.decoded", "open", "The smallest that is looked at.",
                  sends(datagram(family, short(id_)[:27]), led, id="decoded"))
        book.case(f"long_of_31_{said}", "quic.no_id", "open", "A long header that is too small.",
                  sends(datagram(family, long(id_)[:31]), table, new=True, id="no_id"))
        book.case(f"long_of_32_{said}", "quic.decoded", "open", "The smallest that is looked at.",
                  sends(datagram(family, long(id_)[:32]), led, id="decoded"))
        book.case(f"long_id_of_21_{said}", "quic.no_id", "open", "An id of more than 20 bytes.",
                  sends(datagram(family, long(id_, says=21)), table, new=True, id="no_id"))
        book.case(f"long_id_of_0_{said}", "quic.empty", "open", "A long header without a destination id.",
                  sends(datagram(family, long(b"")), table, new=True, id="too_short"))
        book.case(f"version_negotiation_{said}", "quic.decoded", "open", "The version does not matter.",
                  sends(datagram(family, long(id_, version=0)), led, id="decoded"))
        other = id_[:1] + bytes([id_[1] ^ 1]) + id_[2:]
        book.case(f"coalesced_{said}", "quic.decoded", "open",
                  "Packets of one connection in one datagram: RFC 9000 section 12.2. The first one's id leads.",
                  sends(datagram(family, long(id_) + long(id_) + short(id_)), led, id="decoded"),
                  sends(datagram(family, short(id_)), led, id="remembered"))
        book.case(f"coalesced_with_another_{said}", "quic.decoded", "open",
                  "One with another id behind it: nobody looks there.",
                  sends(datagram(family, long(id_) + short(other)), led, id="decoded"))
        book.case(f"coalesced_behind_another_{said}", "quic.no_server", "open",
                  "One with an id of no server before it: nobody looks behind that.",
                  sends(datagram(family, long(other) + short(id_)), table, new=True, id="no_server"))
        book.case(f"gone_{said}", "quic.gone", "open", "An id of a backend that has just gone leads nowhere.",
                  sends(datagram(family, short(id_)), led, id="decoded"), change(gone="b1"),
                  sends(datagram(family, short(id_)), table, new=True, id="gone"))
        book.case(f"gone_at_first_{said}", "quic.gone_decoded", "open", "The same of an id that was not seen before.",
                  change(gone="b1"), sends(datagram(family, short(id_)), table, new=True, id="gone"))
        book.case(f"error_{said}", "icmp.quoted", "open",
                  "What backends send has the clients' ids: an error goes by the table.",
                  sends(error(family, (3, 3) if family == 4 else (1, 4), sent(family, "udp", sport=443).bytes()), table))
    book.case("options_ipv4", "quic.decoded", "open", "IP options stand before it.",
              sends(datagram(4, short(id_), options=b"\1" * 8), led, id="decoded"))
    book.case("extension_ipv6", "quic.extension", "open", "An extension header stands before it.",
              sends(datagram(6, short(id_), ext=[Ext(of=HOP)]), led, id="decoded"))
    ids = {"config": 0, "server_id": 3, "nonce": 4, "servers": {"c4605e": "b1"}, "any_length": True}
    book.setup("any_length", [led, table], [service(addr, 443, "udp", backends=["b2"], ids=[ids]) for addr in (VIP, VIP6)])
    for low in (0, 31):
        book.case(f"any_length_{low}", "quic.decoded", "any_length", "Where the first byte says no length, it may be anything.",
                  sends(datagram(4, short(bytes([low]) + id_[1:])), led, id="decoded"))
    book.setup("no_table", [led], [service(addr, 443, "udp", "none", [], ids=[ids]) for addr in (VIP, VIP6)])
    book.case("no_table", "table.none", "no_table", "Without a table nothing is led.",
              drops(datagram(4, short(id_)), "no_table"))
    return [book]
