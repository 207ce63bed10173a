"""What services listen on beside one address and one port: several addresses, prefixes, ranges of ports. A packet
is for the one that says most exactly what it takes, by its address first and then by its port."""

from model import CLIENT, CLIENT6, VIP, VIP6, Book, backend, drops, eth, passes, sends, service
from packet import FRAGMENT, Ext, Ip, Ip6, Packet, Tcp, Udp
from parsing import NAMES, data

NET, NET6 = "10.7.0.0", "2001:db8:7::"
METHODS = ("concury", "tracked", "jet", "residue")


def to(addr, port=80, flags="A", sport=5555, proto="tcp"):
    head = Ip6(src=CLIENT6, dst=addr) if ":" in addr else Ip(src=CLIENT, dst=addr)
    body = Tcp(sport=sport, dport=port, flags=flags) if proto == "tcp" else Udp(sport=sport, dport=port)
    return Packet(eth(), head, body, data(20))


def books():
    book = Book("places", "Several addresses of a service, prefixes, ranges of ports, and which of them a packet is for.")
    b1, b2, b3, b4 = (backend(n) for n in (1, 2, 3, 4))
    hosts = {4: ("10.7.0.0", "10.7.0.9", "10.7.255.255"), 6: ("2001:db8:7::", "2001:db8:7:5::9", "2001:db8:7:ffff:ffff:ffff:ffff:ffff")}
    beside = {4: ("10.6.255.255", "10.8.0.0"), 6: ("2001:db8:6:ffff::1", "2001:db8:8::")}
    nets = {4: (NET, 16), 6: (NET6, 48)}

    for method in METHODS:
        remembers = method == "tracked"
        for family in (4, 6):
            addr, bits = nets[family]
            name = f"prefix_{method}_{NAMES[family]}"
            book.setup(name, [b1], [service(addr, 80, method=method, bits=bits)])
            for at, host in enumerate(hosts[family]):
                book.case(f"{name}_{at}", "service.salted", name, "Each address of a prefix is the service's.",
                          sends(to(host, flags="S"), b1, new=True), sends(to(host), b1), sends(to(host, flags="FA"), b1))
            for at, host in enumerate(beside[family]):
                book.case(f"{name}_beside_{at}", "service.none", name, "The addresses beside a prefix are not.",
                          passes(to(host), "no_service"))
            book.case(f"{name}_port", "service.none", name, "A prefix of one port takes no other one.",
                      passes(to(hosts[family][1], port=81), "no_service"))
            first, second = ((VIP, "10.0.0.77"), (VIP6, "2001:db8::77"))[family == 6]
            name = f"several_{method}_{NAMES[family]}"
            book.setup(name, [b1], [service(first, 80, method=method, also=[second, "10.0.0.78"])])
            book.case(name, "service.salted", name, "A service takes packets for each of its addresses.",
                      sends(to(first, flags="S"), b1, new=True), sends(to(second, flags="S"), b1, new=True),
                      sends(to("10.0.0.78", flags="S"), b1, new=True), sends(to(first), b1), sends(to(second), b1),
                      sends(to("10.0.0.78"), b1))
            book.case(f"{name}_other", "service.none", name, "And for no other one.",
                      passes(to("10.0.0.79"), "no_service"))
            name = f"range_{method}_{NAMES[family]}"
            vip = (VIP, VIP6)[family == 6]
            book.setup(name, [b1], [service(vip, 8000, method=method, last_port=8999)])
            for port in (8000, 8001, 8063, 8064, 8191, 8192, 8703, 8704, 8959, 8960, 8999):
                book.case(f"{name}_{port}", "service.wide", name, "A range of ports takes each of them.",
                          sends(to(vip, port=port, flags="S"), b1, new=True), sends(to(vip, port=port), b1))
            for port in (1, 80, 7999, 9000, 65535):
                book.case(f"{name}_not_{port}", "service.none", name, "And no other port.",
                          passes(to(vip, port=port), "no_service"))

    for family in (4, 6):
        addr, bits = nets[family]
        for method in ("concury", "tracked", "residue"):
            name = f"datagrams_{method}_{NAMES[family]}"
            book.setup(name, [b1], [service(addr, 53, "udp", method=method, bits=bits)])
            for at, host in enumerate(hosts[family]):
                packet = to(host, port=53, proto="udp")
                book.case(f"{name}_{at}", "service.salted", name,
                          "The first datagram to each address begins a flow of its own.",
                          sends(packet, b1, new=True), sends(packet, b1))
            other = to(hosts[family][2], port=53, proto="udp")
            book.case(f"{name}_apart", "service.salted", name,
                      "The same ports of a client begin another flow at another address.",
                      sends(to(hosts[family][1], port=53, proto="udp"), b1, new=True), sends(other, b1, new=True),
                      sends(other, b1))
        name = f"client_{NAMES[family]}"
        book.setup(name, [b1], [service(addr, None, bits=bits, affinity="client")])
        book.case(name, "service.salted", name, "With affinity by client all addresses are one.",
                  *[sends(to(host, port=80 + at), b1) for at, host in enumerate(hosts[family])])

    # Most exact first: by the address, then by the port.
    exact = [service("10.7.1.9", 80, backends=("b1",)), service("10.7.1.9", 64, backends=("b2",), last_port=127),
             service("10.7.1.9", None, backends=("b3",)), service("10.7.1.0", 80, backends=("b2",), bits=24),
             service("10.7.1.0", None, backends=("b4",), bits=24), service("10.7.0.0", 80, backends=("b1",), bits=16),
             service("10.7.0.0", 64, backends=("b3",), bits=16, last_port=127)]
    book.setup("order", [b1, b2, b3, b4], exact)
    for name, host, port, who in (
            ("port", "10.7.1.9", 80, b1), ("range", "10.7.1.9", 81, b2), ("range_first", "10.7.1.9", 64, b2),
            ("range_last", "10.7.1.9", 127, b2), ("any", "10.7.1.9", 128, b3), ("any_63", "10.7.1.9", 63, b3),
            ("prefix_port", "10.7.1.8", 80, b2), ("prefix_any", "10.7.1.8", 81, b4),
            ("shorter_port", "10.7.2.9", 80, b1), ("shorter_range", "10.7.2.9", 81, b3)):
        book.case(f"order_{name}", "service.first_slot" if name == "port" else "service.wide", "order",
                  "An address comes before a prefix, a longer prefix before a shorter one; then a port before a "
                  "range, and any port last.", sends(to(host, port=port), who))
    book.case("order_none", "service.none", "order", "What none of them takes is the kernel's.",
              passes(to("10.7.2.9", port=128), "no_service"))
    book.case("order_protocol", "service.none", "order", "All of one protocol take nothing of another one.",
              passes(to("10.7.1.9", proto="udp"), "no_service"))

    # What has no flow is the service's by its address alone.
    book.setup("whole", [b1], [service(NET, 80, bits=16), service(NET6, 80, bits=48)], echoes=1000)
    for family in (4, 6):
        host, out = hosts[family][1], beside[family][0]
        book.case(f"fragment_{NAMES[family]}", "fragment.lost", "whole",
                  "A later fragment for an address of a prefix whose first one was not here is dropped.",
                  drops(later(host), "later_fragment"))
        book.case(f"fragment_beside_{NAMES[family]}", "reject.pass", "whole", "One for another address is the kernel's.",
                  passes(later(out), "later_fragment"))
    book.setup("no_table", [b1], [service(NET, 80, method="none", bits=16)])
    book.case("no_table", "table.none_apart", "no_table", "A service by prefix that has no table yet.",
              drops(to("10.7.0.9"), "no_table"))
    book.setup("denied", [b1], [service(NET, 80, bits=16, deny=["10.1.0.0/16"]), service(NET6, 80, bits=48, deny=["::/0"])])
    for family in (4, 6):
        book.case(f"denied_{NAMES[family]}", "sources.denied", "denied", "A list holds for each address of a prefix.",
                  drops(to(hosts[family][1]), "denied_source"))
    return [book]


def later(addr):
    if ":" in addr:
        return Packet(eth(), Ip6(src=CLIENT6, dst=addr), Ext(of=FRAGMENT, frag=8), data(24))
    return Packet(eth(), Ip(src=CLIENT, dst=addr, frag=8, proto=6), data(24))
