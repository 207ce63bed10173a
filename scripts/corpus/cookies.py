"""Cheetah: cookies in timestamps (docs/cheetah.md). The key of each service is that of its seed, and stands in
the set-up; the first backend has the number 0, and the first connection the slot 0."""

import struct

from errors import error, sent
from model import CLIENT, CLIENT6, CLIENT_MAC, M64, VIP, VIP6, Book, Step, backend, change, drops, eth, passes, sends, service
from packet import Ext, HOP, Ip, Ip6, Packet, Raw, Tcp, address
from parsing import NAMES, data

SEED = 4711


def key_of(seed):
    """SplitMix64, and odd multipliers: crates/hash."""
    words, state = [], seed
    for _ in range(4):
        state = (state + 0x9E3779B97F4A7C15) & M64
        z = state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
        words.append(z ^ z >> 31)
    for at in (2, 3):
        words[at] |= 1
        if not 20 <= words[at].bit_count() <= 44:
            words[at] ^= 0xAAAAAAAAAAAAAAAA
    return words


KEY = key_of(SEED)


def mix(x):
    x ^= x >> 32
    x = x * KEY[2] & M64
    x ^= x >> 29
    x = x * KEY[3] & M64
    return x ^ x >> 32


def hash_of(src, sport, dport):
    """Of a client and both ports, as words that stand in memory little-endian."""
    ports = int.from_bytes(struct.pack("!HH", sport, dport), "little")
    raw = address(src)
    if len(raw) == 4:
        return mix((int.from_bytes(raw, "little") << 32 | ports) ^ KEY[0])
    high, low = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")
    return mix(mix(low ^ mix(high ^ KEY[1])) ^ ports ^ KEY[0])


def cookie(src, sport, number):
    return (number ^ hash_of(src, sport, 80) >> 48) & 0x7FFF


LAYOUTS = {
    "nop": lambda stamps: b"\1\1" + stamps,
    "sack": lambda stamps: b"\2\4\5\xb4\4\2" + stamps,
    "mss_nop": lambda stamps: b"\2\4\5\xb4\1\1" + stamps,
    "scale": lambda stamps: b"\2\4\5\xb4\1\3\3\7\4\2" + stamps,
    "scale_nop": lambda stamps: b"\2\4\5\xb4\1\3\3\7\1\1" + stamps,
    "odd": lambda stamps: b"\1" + stamps + b"\0",
    "behind_sack": lambda stamps: b"\1\1\5\n" + bytes(8) + b"\1\1" + stamps,
}
RULES = {"nop": "stamps.nop", "sack": "stamps.mss", "mss_nop": "stamps.mss", "scale": "stamps.scale",
         "scale_nop": "stamps.scale", "odd": "stamps.walk_nop", "behind_sack": "stamps.walk"}


def stamps(value, echo, layout="nop"):
    return LAYOUTS[layout](struct.pack("!BBII", 8, 10, value, echo))


def books():
    book = Book("cookies", "Cheetah: cookies go out in the timestamps of answers, come back in the client's, and name the\n"
                           "backend; the backend gets its own timestamps back.")
    b1, b2 = backend(1), backend(2)
    key = [f"0x{word:016x}" for word in KEY]

    def services(method, **settings):
        return [service(addr, 80, method=method, seed=SEED, key=key, settings=settings) for addr in (VIP, VIP6)]

    ports = iter(range(10000, 60000))
    for method in ("cheetah", "cheetah-stateful"):
        under = method.replace("-", "_")
        stateful = method == "cheetah-stateful"
        book.setup(under, [b1], services(method))
        book.setup(f"{under}_refuse", [b1], services(method, forged="refuse"))
        book.setup(f"{under}_told", [b1], services(method, answers="backend"))
        for family in (4, 6):
            client, vip = (CLIENT, VIP) if family == 4 else (CLIENT6, VIP6)

            def packet(sport, flags, options=b"", size=0, back=False, ext=()):
                src, dst, ends = (vip, client, (80, sport)) if back else (client, vip, (sport, 80))
                head = Ip(src=src, dst=dst) if family == 4 else Ip6(src=src, dst=dst)
                body = Tcp(sport=ends[0], dport=ends[1], flags=flags, options=options)
                return Packet(eth(), head, *ext, body, *([data(size)] if size else []))

            def answer(sport, flags, value, echo, written, layout="nop"):
                out = packet(sport, flags, stamps(written, echo, layout), back=True)
                return passes(packet(sport, flags, stamps(value, echo, layout), back=True), "answer", out=out)

            def restored(sport, flags, value, echo, own, layout="nop", size=3, ext=()):
                made = packet(sport, flags, stamps(value, echo, layout), size, ext=ext)
                out = packet(sport, flags, stamps(value, own, layout), size, ext=ext)
                out.layers[0] = eth(dst=b1["mac"], src=b1["source_mac"])
                return sends(made, b1, out=out)

            name = f"{under}_{NAMES[family]}"
            for layout in LAYOUTS:
                sport = next(ports)
                bits = cookie(client, sport, 0)
                own = 0x12345678
                shown = bits << 16 | own & 0xFFFF
                book.case(f"{name}_connection_{layout}", RULES[layout], under,
                          f"SYN, answer with a cookie, and what echoes it; options laid out as {layout}.",
                          sends(packet(sport, "S", stamps(1000, 0, layout)), b1, new=True),
                          answer(sport, "SA", own, 1000, shown, layout),
                          restored(sport, "A", 1001, shown, own, layout),
                          answer(sport, "PA", own + 5, 1001, shown + 5, layout),
                          restored(sport, "PA", 1002, shown + 5, own + 5, layout))
            sport = next(ports)
            bits = cookie(client, sport, 0)
            own = 0x0001FFF0
            begun = [sends(packet(sport, "S", stamps(7, 0)), b1, new=True),
                     answer(sport, "SA", own, 7, bits << 16 | 0xFFF0)]
            book.case(f"{name}_upper_half_moves_on", "answer.written", under,
                      "When the lower half has come round, the version says which upper half is meant.",
                      *begun, restored(sport, "A", 8, bits << 16 | 0xFFF0, own),
                      answer(sport, "A", own + 0x20, 8, 1 << 31 | bits << 16 | 0x0010),
                      restored(sport, "A", 9, 1 << 31 | bits << 16 | 0x0010, own + 0x20),
                      restored(sport, "A", 9, bits << 16 | 0xFFF0, own))
            sport = next(ports)
            bits = cookie(client, sport, 0)
            end_rule = "slot.followed" if stateful else "cheetah.restored_end"
            book.case(f"{name}_end", end_rule, under, "The client's FIN carries its cookie.",
                      sends(packet(sport, "S", stamps(7, 0)), b1, new=True),
                      answer(sport, "SA", 0x00050006, 7, bits << 16 | 6),
                      restored(sport, "FA", 8, bits << 16 | 6, 0x00050006))
            sport = next(ports)
            bits = cookie(client, sport, 0)
            book.case(f"{name}_restored", end_rule if stateful else "cheetah.restored", under,
                      "A connection goes on whatever the table says: its cookie names the backend.",
                      sends(packet(sport, "S", stamps(7, 0)), b1, new=True),
                      answer(sport, "SA", 0x00050006, 7, bits << 16 | 6),
                      restored(sport, "A", 8, bits << 16 | 6, 0x00050006))
            if family == 6:
                sport = next(ports)
                bits = cookie(client, sport, 0)
                book.case(f"{name}_extension", "stamps.extension", under, "Timestamps behind extension headers.",
                          sends(packet(sport, "S", stamps(7, 0), ext=[Ext(of=HOP)]), b1, new=True),
                          answer(sport, "SA", 0x00050006, 7, bits << 16 | 6),
                          restored(sport, "A", 8, bits << 16 | 6, 0x00050006, ext=[Ext(of=HOP)]))
            sport = next(ports)
            book.case(f"{name}_answer_bare", "answer.bare", under, "An answer without timestamps goes on as it is.",
                      sends(packet(sport, "S", stamps(7, 0)), b1, new=True),
                      passes(packet(sport, "A", back=True), "answer"))
            sport = next(ports)
            book.case(f"{name}_backend_without", "answer.closes_slot" if stateful else "answer.without", under,
                      "A backend without timestamps says so in its SYN+ACK: the connection is tracked.",
                      sends(packet(sport, "S", stamps(7, 0)), b1, new=True),
                      passes(packet(sport, "SA", back=True), "answer"), sends(packet(sport, "A"), b1))
            sport = next(ports)
            book.case(f"{name}_answer_unknown", "service.answer", under, "An answer of a connection that is not known.",
                      passes(packet(sport, "A", stamps(1, 2), back=True), "no_service"))
            sport = next(ports)
            book.case(f"{name}_tracked", "cheetah.known", under, "A client without timestamps is tracked.",
                      sends(packet(sport, "S"), b1, new=True), sends(packet(sport, "A"), b1))
            sport = next(ports)
            forged = cookie(client, sport, 77) << 16 | 5
            lost = "slot.lost" if stateful else "cheetah.bad_cookie"
            book.case(f"{name}_forged", lost, under, "A cookie that leads nowhere: the scheduler decides, and nothing is kept.",
                      sends(packet(sport, "A", stamps(9, forged)), b1))
            book.case(f"{name}_refused", "cheetah.refused", f"{under}_refuse", "Or the packet is dropped.",
                      drops(packet(sport, "A", stamps(9, forged)), "no_cookie"))
            sport = next(ports)
            bits = cookie(client, sport, 0)
            told = 1 << 31 | bits << 16 | 0x7765
            out = packet(sport, "S", stamps(7, told))
            out.layers[0] = eth(dst=b1["mac"], src=b1["source_mac"])
            later = packet(sport, "A", stamps(8, bits << 16 | 9), 4)
            book.case(f"{name}_told", "conclude.none" if False else ("steer.deliver" if stateful else "cheetah.told"), f"{under}_told",
                      "Where backends write cookies, the SYN tells its cookie; then TSecr goes on as it is.",
                      sends(packet(sport, "S", stamps(7, 0)), b1, new=True, out=out), sends(later, b1))
            if stateful:
                sport = next(ports)
                book.case(f"{name}_syn_again", "slot.again", under, "A SYN that is repeated keeps its slot.",
                          sends(packet(sport, "S", stamps(7, 0)), b1, new=True),
                          sends(packet(sport, "S", stamps(8, 0)), b1, new=True))
                sport = next(ports)
                book.case(f"{name}_first", "slot.first", under, "A first packet takes a slot.",
                          sends(packet(sport, "S", stamps(7, 0)), b1, new=True))
    return [book]
