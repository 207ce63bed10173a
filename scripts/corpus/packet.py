"""Packets of layers, from first principles: every field can be given, also a wrong one; what is not given
is computed as the RFCs say. Nothing here is weir's."""

import ipaddress
import struct

TCP, UDP, SCTP, ICMP, ICMP6 = 6, 17, 132, 1, 58
HOP, ROUTING, FRAGMENT, AUTH, DESTINATION = 0, 43, 44, 51, 60
FLAGS = {"F": 1, "S": 2, "R": 4, "P": 8, "A": 16, "U": 32, "E": 64, "C": 128}


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def address(text):
    return ipaddress.ip_address(text).packed


def ones_sum(data):
    """RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def checksum(data):
    return ~ones_sum(data) & 0xFFFF


class Layer:
    """A header. `given` are fields that a test sets; `line` says all of them to a reader."""

    kind = ""

    def __init__(self, **given):
        self.given = given

    def get(self, name, default=None):
        value = self.given.get(name)
        return default if value is None else value

    def but(self, **other):
        return type(self)(**{**self.given, **other})

    def shown(self):
        return {}

    def line(self):
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.shown().items())])


class Eth(Layer):
    kind = "eth"

    def put(self, after, body, ends):
        self.type = self.get("type", ethertype(after))
        return mac(self.get("dst")) + mac(self.get("src")) + struct.pack("!H", self.type) + body

    def shown(self):
        return {"dst": self.get("dst"), "src": self.get("src"), "type": f"0x{self.type:04x}"}


class Vlan(Layer):
    kind = "vlan"

    def put(self, after, body, ends):
        self.type = self.get("type", ethertype(after))
        tci = self.get("prio", 0) << 13 | self.get("dei", 0) << 12 | self.get("id")
        return struct.pack("!HH", tci, self.type) + body

    def shown(self):
        return {"id": self.get("id"), "prio": self.get("prio", 0), "dei": self.get("dei", 0),
                "type": f"0x{self.type:04x}"}


class Ip(Layer):
    kind = "ip"

    def ends(self):
        return address(self.get("src")), address(self.get("dst"))

    def put(self, after, body, ends):
        options = self.get("options", b"")
        self.ihl = self.get("ihl", 5 + len(options) // 4)
        self.len = self.get("len", 20 + len(options) + len(body))
        self.proto = self.get("proto", protocol(after, 4))
        fragment = self.get("mf", 0) << 13 | self.get("df", 1) << 14 | self.get("frag", 0)
        src, dst = self.ends()
        header = struct.pack("!BBHHHBBH4s4s", self.get("version", 4) << 4 | self.ihl, self.get("tos", 0),
                             self.len, self.get("id", 0), fragment, self.get("ttl", 64), self.proto, 0,
                             src, dst) + options
        self.sum = self.get("sum", checksum(header))
        return header[:10] + struct.pack("!H", self.sum) + header[12:] + body

    def shown(self):
        shown = {"src": self.get("src"), "dst": self.get("dst"), "proto": self.proto,
                 "ttl": self.get("ttl", 64), "tos": f"0x{self.get('tos', 0):02x}", "len": self.len,
                 "id": self.get("id", 0), "df": self.get("df", 1)}
        for name, value, usual in (("version", self.get("version", 4), 4), ("ihl", self.ihl, 5),
                                   ("mf", self.get("mf", 0), 0), ("frag", self.get("frag", 0), 0)):
            if value != usual:
                shown[name] = value
        if self.get("options"):
            shown["options"] = self.get("options").hex()
        return shown


class Ip6(Layer):
    kind = "ip6"

    def ends(self):
        return address(self.get("src")), address(self.get("dst"))

    def put(self, after, body, ends):
        self.len = self.get("len", len(body))
        self.next = self.get("next", protocol(after, 6))
        word = self.get("version", 6) << 28 | self.get("tc", 0) << 20 | self.get("label", 0)
        src, dst = self.ends()
        return struct.pack("!IHBB", word, self.len, self.next, self.get("hlim", 64)) + src + dst + body

    def shown(self):
        shown = {"src": self.get("src"), "dst": self.get("dst"), "next": self.next,
                 "hlim": self.get("hlim", 64), "tc": f"0x{self.get('tc', 0):02x}",
                 "label": f"0x{self.get('label', 0):05x}", "len": self.len}
        if self.get("version", 6) != 6:
            shown["version"] = self.get("version")
        return shown


class Ext(Layer):
    """An extension header. `of`: which; `units`: its length as that kind counts it."""

    kind = "ext"

    def put(self, after, body, ends):
        of = self.get("of")
        self.next = self.get("next", protocol(after, 6))
        if of == FRAGMENT:
            offset = self.get("frag", 0) << 3 | self.get("mf", 0)
            return struct.pack("!BBHI", self.next, self.get("units", 0), offset, self.get("id", 0)) + body
        units = self.get("units", 2 if of == AUTH else 0)
        bytes_ = (units + 2) * 4 if of == AUTH else (units + 1) * 8
        rest = bytes_ - 2
        # PadN, so that it is one that a host would take.
        inside = b"\1" + bytes([rest - 2]) + bytes(rest - 2) if of in (HOP, DESTINATION) else bytes(rest)
        written = bytes([self.next, self.get("says", units)]) + inside
        return written[:self.get("cut", len(written))] + body

    def shown(self):
        shown = {"of": self.get("of"), "next": self.next}
        for name in ("units", "says", "frag", "mf", "id", "cut"):
            if self.get(name) is not None:
                shown[name] = self.get(name)
        return shown


class Tcp(Layer):
    kind = "tcp"

    def put(self, after, body, ends):
        options = self.get("options", b"")
        options += bytes(-len(options) % 4)
        self.offset = self.get("offset", 5 + len(options) // 4)
        flags = sum(FLAGS[letter] for letter in self.get("flags", "A"))
        header = struct.pack("!HHIIBBHHH", self.get("sport"), self.get("dport"), self.get("seq", 1),
                             self.get("ack", 0), (self.offset & 15) << 4, flags, self.get("window", 0xFFFF), 0, 0) + options
        self.sum = self.get("sum", transport_sum(ends, TCP, header + body))
        return header[:16] + struct.pack("!H", self.sum) + header[18:] + body

    def shown(self):
        shown = {"sport": self.get("sport"), "dport": self.get("dport"), "flags": self.get("flags", "A"),
                 "offset": self.offset}
        if self.get("options"):
            shown["options"] = self.get("options").hex()
        return shown


class Udp(Layer):
    kind = "udp"

    def put(self, after, body, ends):
        self.len = self.get("len", 8 + len(body))
        header = struct.pack("!HHHH", self.get("sport"), self.get("dport"), self.len, 0)
        sum_ = self.get("sum")
        self.sum = (transport_sum(ends, UDP, header + body) or 0xFFFF) if sum_ is None else sum_
        return header[:6] + struct.pack("!H", self.sum) + body

    def shown(self):
        shown = {"sport": self.get("sport"), "dport": self.get("dport"), "len": self.len}
        if self.sum == 0:
            shown["sum"] = 0
        return shown


def crc32c(data):
    """RFC 9260 appendix A, a bit at a time."""
    total = 0xFFFFFFFF
    for byte in data:
        total ^= byte
        for _ in range(8):
            total = total >> 1 ^ (0x82F63B78 if total & 1 else 0)
    return total ^ 0xFFFFFFFF


class Sctp(Layer):
    """The common header and the header of the first chunk, of whose content the rest is."""

    kind = "sctp"

    def put(self, after, body, ends):
        self.len = self.get("len", 4 + len(body))
        chunk = struct.pack("!BBH", self.get("chunk", 0), self.get("flags", 0), self.len)
        header = struct.pack("!HHII", self.get("sport"), self.get("dport"), self.get("tag", 0x01020304), 0) + chunk
        # The byte of the lowest powers stands first.
        given = self.get("sum")
        self.sum = struct.pack("<I", crc32c(header + body)) if given is None else struct.pack("!I", given)
        return header[:8] + self.sum + header[12:] + body

    def shown(self):
        return {"sport": self.get("sport"), "dport": self.get("dport"), "tag": f"0x{self.get('tag', 0x01020304):08x}",
                "chunk": self.get("chunk", 0), "len": self.len}


class Icmp(Layer):
    """Of both families; `word` is what stands behind the checksum."""

    def __init__(self, **given):
        super().__init__(**given)
        self.kind = "icmp6" if self.get("v6") else "icmp"

    def put(self, after, body, ends):
        message = struct.pack("!BBHI", self.get("type"), self.get("code", 0), 0, self.get("word", 0)) + body
        over = transport_sum(ends, ICMP6, message) if self.get("v6") else checksum(message)
        return message[:2] + struct.pack("!H", over) + message[4:]

    def shown(self):
        return {"type": self.get("type"), "code": self.get("code", 0), "word": self.get("word", 0)}


class Gre(Layer):
    kind = "gre"

    def put(self, after, body, ends):
        self.type = ethertype(after)
        return struct.pack("!HH", 0, self.type) + body

    def shown(self):
        return {"type": f"0x{self.type:04x}"}


class Gue(Layer):
    kind = "gue"

    def put(self, after, body, ends):
        self.proto = protocol(after, 4)
        return struct.pack("!BBH", 0, self.proto, 0) + body

    def shown(self):
        return {"proto": self.proto}


class Raw(Layer):
    kind = "payload"

    def put(self, after, body, ends):
        return self.get("data") + body

    def shown(self):
        return {"len": len(self.get("data"))}


def transport_sum(ends, number, segment):
    src, dst = ends
    if len(src) == 4:
        pseudo = src + dst + struct.pack("!BBH", 0, number, len(segment))
    else:
        pseudo = src + dst + struct.pack("!II", len(segment), number)
    return checksum(pseudo + segment)


def ethertype(after):
    if isinstance(after, Vlan):
        return after.get("tpid", 0x8100)
    return {"ip": 0x0800, "ip6": 0x86DD}.get(after.kind if after else "", 0x88B5)


def protocol(after, family):
    kind = after.kind if after else ""
    if kind == "ext":
        return after.get("of")
    return {"tcp": TCP, "udp": UDP, "sctp": SCTP, "icmp": ICMP, "icmp6": ICMP6, "ip": 4, "ip6": 41, "gre": 47}.get(kind, 59)


class Packet:
    """Layers, and what is wrong with the frame as a whole: `cut` bytes are left of it, or `pad` follow."""

    def __init__(self, *layers, cut=None, pad=b""):
        self.layers, self.cut, self.pad = list(layers), cut, pad

    def but(self, **others):
        """With other fields, by kind: of the first layer of that kind."""
        left, layers = dict(others), []
        for layer in self.layers:
            given = left.pop(layer.kind, None)
            layers.append(layer.but(**given) if given else layer)
        assert not left, left
        return Packet(*layers, cut=self.cut, pad=self.pad)

    def bytes(self):
        body, ends = b"", [None] * len(self.layers)
        inside = None
        for at, layer in enumerate(self.layers):
            inside = layer.ends() if isinstance(layer, (Ip, Ip6)) else inside
            ends[at] = inside
        for at in reversed(range(len(self.layers))):
            after = self.layers[at + 1] if at + 1 < len(self.layers) else None
            body = self.layers[at].put(after, body, ends[at])
        body += self.pad
        return body if self.cut is None else body[: self.cut]

    def lines(self):
        self.bytes()
        lines = [layer.line() for layer in self.layers]
        if self.pad:
            lines.append(f"padding len={len(self.pad)}")
        if self.cut is not None:
            lines.append(f"cut after={self.cut}")
        return lines

    def l3(self):
        """Where the network layer is among the layers."""
        return next(at for at, layer in enumerate(self.layers) if not isinstance(layer, (Eth, Vlan)))
