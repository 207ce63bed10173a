"""Methods: what each does with a pool of one backend, and where states decide with one of two."""

from model import CLIENT, CLIENT6, VIP, VIP6, Book, backend, change, drops, eth, passes, sends, service
from packet import HOP, Ext, Ip, Ip6, Packet, Tcp, Udp
from parsing import NAMES, data, ip, tcp, udp

NAMES_OF = ("concury", "tracked", "jet", "residue", "cheetah", "cheetah-stateful")


def books():
    book = Book("methods", "Each method: which packet begins a flow, where it goes on, and what is asked of memory.")
    b1, b2 = backend(1), backend(2)
    down = backend(1, down=True)

    def services(method, **other):
        return [service(VIP, 80, method=method, **other), service(VIP, 53, "udp", method=method, **other),
                service(VIP6, 80, method=method, **other), service(VIP6, 53, "udp", method=method, **other)]

    for method in NAMES_OF:
        under = method.replace("-", "_")
        # Rows lead packets in the middle of a flow; whoever remembers flows begins one with any packet.
        remembers = method in ("tracked", "cheetah", "cheetah-stateful")
        book.setup(under, [b1], services(method))
        book.setup(f"{under}_empty", [b1], services(method, backends=()))
        if not method.startswith("cheetah"):
            book.setup(f"{under}_client", [b1], services(method, affinity="client"))
        for family in (4, 6):
            name = f"{under}_{NAMES[family]}"
            packet = lambda flags, **other: Packet(eth(), ip(family), tcp(flags=flags, **other))
            rule = {"concury": "concury.slow", "jet": "jet.row", "residue": "residue.slow", "tracked": "tracked.new",
                    "cheetah": "cheetah.tracked", "cheetah-stateful": "cheetah.tracked"}[method]
            book.case(f"{name}_connection", rule, under, "A connection from its SYN to its FIN.",
                      sends(packet("S"), b1, new=True), sends(packet("S"), b1, new=True), sends(packet("A"), b1),
                      sends(packet("PA"), b1), sends(packet("FA"), b1), sends(packet("A"), b1))
            book.case(f"{name}_middle", rule if remembers else {"concury": "concury.middle"}.get(method, "rows.plain"),
                      under, "A packet in the middle of an unknown connection.",
                      sends(packet("A"), b1, new=remembers), sends(packet("A"), b1))
            rst_rule = {"concury": "conclude.end", "cheetah": "cheetah.stray", "cheetah-stateful": "cheetah.stray"}
            book.case(f"{name}_reset", rst_rule.get(method, rule), under, "A reset of an unknown connection.",
                      sends(packet("R"), b1, new=method == "tracked"), sends(packet("RA"), b1))
            extended = Packet(eth(), ip(6), Ext(of=HOP), tcp(flags="S"))
            if family == 6:
                book.case(f"{name}_extension", "apart.ipv6", under, "The same behind an extension header.",
                          sends(extended, b1, new=True))
            first = Packet(eth(), ip(family), udp(), data(9))
            udp_rule = {"concury": "udp.first", "jet": "udp.first_apart", "residue": "udp.first_apart",
                        "tracked": "tracked.new"}.get(method, "cheetah.tracked")
            book.case(f"{name}_datagrams", udp_rule, under, "The first datagram of a flow begins it.",
                      sends(first, b1, new=True), sends(first, b1), sends(first, b1))
            for body, kind in ((tcp(flags="S"), "syn"), (tcp(), "ack"), (tcp(flags="R"), "rst"), (udp(), "udp")):
                of = {"concury": "conclude.no_backend", "residue": "conclude.no_backend", "jet": "steer.none",
                      "tracked": "tracked.no_backend"}.get(method, "cheetah.no_backend")
                book.case(f"{name}_empty_{kind}", of, f"{under}_empty", "A pool without a backend.",
                          drops(Packet(eth(), ip(family), body), "no_backend"))
            if not method.startswith("cheetah"):
                client = rule if method != "concury" else "concury.slow"
                book.case(f"{name}_client", client, f"{under}_client",
                          "With affinity by client all its connections are one.",
                          sends(packet("S"), b1, new=True), sends(packet("A", sport=7000), b1),
                          sends(packet("A", sport=7001), b1))
    for method in ("concury", "residue"):
        book.setup(f"{method}_two", [b1, b2], [service(VIP, 80, method=method)])
    for method, rule in (("concury", "concury.pending"), ("residue", "residue.pending")):
        syn, ack = Packet(eth(), ip(4), tcp(flags="S")), Packet(eth(), ip(4), tcp())
        book.case(f"{method}_pending", rule, f"{method}_two",
                  "A flow that began while an update was under way stays where it began.",
                  change(record=True), sends(syn, b1, new=True), change(pool=["b2"]), change(pending=True),
                  sends(ack, b1), sends(Packet(eth(), ip(4), tcp(sport=9999)), b2))
        book.case(f"{method}_not_recorded", f"{method}.slow", f"{method}_two",
                  "One that was not recorded follows the table.",
                  sends(syn, b1, new=True), change(pool=["b2"]), sends(ack, b2))
        full = [sends(Packet(eth(), ip(4), tcp(sport=1000 + at, flags="S")), b1, new=True) for at in range(4)]
        book.case(f"{method}_pending_full", "pending.full", f"{method}_two",
                  "Where there is no room to record a flow its SYN is dropped: its sender repeats it.",
                  change(record=True), *full, drops(Packet(eth(), ip(4), tcp(sport=2000, flags="S")), "pending_full"),
                  sends(Packet(eth(), ip(4), tcp(sport=1000, flags="S")), b1, new=True))
    syn, ack = Packet(eth(), ip(4), tcp(flags="S")), Packet(eth(), ip(4), tcp())
    for method in ("concury", "residue"):
        book.case(f"{method}_frozen", f"{method}.frozen", f"{method}_two",
                  "Between the steps of a change of several balancers no flow starts, and all others go on.",
                  sends(syn, b1, new=True), change(frozen=True), drops(syn, "in_transition"),
                  drops(Packet(eth(), ip(4), tcp(sport=2000, flags="S")), "in_transition"), sends(ack, b1),
                  sends(Packet(eth(), ip(4), tcp(flags="FA")), b1), change(frozen=False), sends(syn, b1, new=True))
    book.setup("concury_shared", [b1, b2], [service(VIP, 80, settings={"dcode_bits": 4})])
    later = [sends(Packet(eth(), ip(4), tcp(sport=at, flags=flags)), b2, new=flags == "S")
             for at in range(4000, 4064) for flags in ("S", "A")]
    book.case("concury_shared", "concury.exact", "concury_shared",
              "By the table of a fleet a draining backend keeps its flows, and all packets of others go elsewhere.",
              sends(syn, b1, new=True), change(shared=["b2"], drains=["b1"]), sends(ack, b1), sends(syn, b1, new=True),
              *later, sends(Packet(eth(), ip(4), tcp(flags="FA")), b1))
    book.case("concury_shared_down", "concury.again", "concury_shared",
              "One that is down keeps its flows, and gets no first packet, not even of these.",
              sends(syn, b1, new=True), change(shared=["b2"], drains=["b1"]), change(down="b1"), sends(ack, b1),
              sends(syn, b2, new=True), sends(ack, b2))
    book.setup("tracked_two", [b1, b2], [service(VIP, 80, method="tracked", backends=("b1", "b2"))])
    book.setup("tracked_one", [b1, b2], [service(VIP, 80, method="tracked")])
    syn, ack = Packet(eth(), ip(4), tcp(flags="S")), Packet(eth(), ip(4), tcp())
    book.case("tracked_stays", "tracked.known", "tracked_one", "A known flow stays when the table leads elsewhere.",
              sends(syn, b1, new=True), change(pool=["b2"]), sends(ack, b1), sends(syn, b1, new=True))
    book.case("tracked_leaves_gone", "tracked.new", "tracked_one", "But not at a backend that is gone.",
              sends(syn, b1, new=True), change(pool=["b2"]), change(gone="b1"), sends(ack, b2, new=True))
    book.case("tracked_down_keeps", "tracked.known", "tracked_one", "A backend that is down keeps its connections.",
              sends(syn, b1, new=True), change(down="b1"), sends(ack, b1))
    book.case("tracked_down_syn", "tracked.new", "tracked_one", "A first packet does not follow an entry to one that is down.",
              sends(syn, b1, new=True), change(down="b1"), change(pool=["b2"]), sends(syn, b2, new=True), sends(ack, b2))
    book.case("tracked_another_row", "table.another_row", "tracked_two",
              "A new flow whose row leads to a backend that is down gets another row.",
              change(down="b1"), *[sends(Packet(eth(), ip(4), tcp(sport=at, flags="S")), b2, new=True)
                                   for at in range(3000, 3012)])
    book.case("tracked_recorded", "tracked.placed", "tracked_one", "While an update is under way a new flow is recorded.",
              change(record=True), sends(syn, b1, new=True), sends(ack, b1))
    book.case("tracked_pending_full", "tracked.pending_full", "tracked_one", "Where there is no room it is dropped.",
              change(record=True), *[sends(Packet(eth(), ip(4), tcp(sport=1000 + at, flags="S")), b1, new=True)
                                     for at in range(4)],
              drops(Packet(eth(), ip(4), tcp(sport=2000, flags="S")), "pending_full"))
    for scheduler in ("wrr", "p2c", "least"):
        setup = f"tracked_{scheduler}"
        settings = {"scheduler": scheduler}
        book.setup(setup, [b1, b2], [service(VIP, 80, method="tracked", backends=("b1", "b2"), settings=settings)])
        flows = [Packet(eth(), ip(4), tcp(sport=4000 + at, flags="S")) for at in range(6)]
        # The less loaded of two may be the one that is down; tables without it follow soon.
        if scheduler != "p2c":
            book.case(f"{setup}_avoids_down", "schedule.least" if scheduler == "least" else "tracked.scheduled", setup,
                      "A scheduler gives one that is down no flow.",
                      change(down="b1"), *[sends(flow, b2, new=True) for flow in flows])
        one = f"{setup}_one"
        book.setup(one, [b1], [service(VIP, 80, method="tracked", settings=settings)])
        of = {"wrr": "tracked.scheduled", "p2c": "tracked.counted", "least": "tracked.counted"}[scheduler]
        book.case(f"{setup}_end", of, one,
                  "A connection is opened once and ends once.", sends(flows[0], b1, new=True),
                  sends(Packet(eth(), ip(4), tcp(sport=4000, flags="FA")), b1),
                  sends(flows[0], b1, new=True), sends(Packet(eth(), ip(4), tcp(sport=4000)), b1))
        book.setup(f"{setup}_empty", [b1], [service(VIP, 80, method="tracked", backends=(), settings=settings)])
        book.case(f"{setup}_empty", "tracked.no_backend_apart", f"{setup}_empty", "A pool without a backend.",
                  drops(flows[0], "no_backend"))
    book.setup("any_port", [b1], [service(VIP, None), service(VIP6, None, "udp"), service(VIP, 443, method="tracked")])
    for port in (1, 80, 65535):
        book.case(f"any_port_{port}", "service.any_port", "any_port", "A service for any port takes each.",
                  sends(Packet(eth(), ip(4), tcp(dport=port)), b1))
        book.case(f"any_port_udp_{port}", "service.any_port", "any_port", "A service for any port takes each.",
                  sends(Packet(eth(), ip(6), udp(dport=port), data(2)), b1, new=True))
    book.case("any_port_but_one", "tracked.new", "any_port", "The service of a port comes first.",
              sends(Packet(eth(), ip(4), tcp(dport=443)), b1, new=True))
    book.case("any_port_other_protocol", "service.none", "any_port", "Any port of one protocol is none of the other's.",
              passes(Packet(eth(), ip(4), udp(dport=80)), "no_service"))
    return [book]
