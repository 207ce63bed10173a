"""Every line of the BPF program that decides a packet's fate has a rule: a mark at the end of the statement
(`/* rule: NAME */`) that rules.toml explains."""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parent.parent.parent
SOURCES = ROOT / "crates" / "dataplane" / "bpf"
RULES = ROOT / "corpus" / "rules.toml"

# What ends a packet's way: verdicts, and the functions that count and return one. Who returns what another
# function of this kind has decided (deliver, forward, balance, send_back) has nothing to add.
FATE = re.compile(r"\bXDP_(?:ABORTED|DROP|PASS|TX|REDIRECT)\b|\b(?:bpf_redirect\w*|leave|pass|drop)\s*\(")
COMPARED = re.compile(r"[!=]=\s*XDP_\w+")
# A verdict that is kept for a moment may have its mark where it is returned, so many lines further down.
KEPT_LINES = 4

# Statements without a mark, by file and text, and why.
EXEMPT = {
    ("forward/beyond.h", "return XDP_DROP"): "no frame is so short that was parsed: the verifier wants the check",
}


def packet_path():
    """The sources of the program by their paths; those of methods are included by a header that the build writes."""
    seen = {}
    for name in ("weir.bpf.c", *(f"methods/{path.name}" for path in (SOURCES / "methods").glob("*.h"))):
        read(name, seen)
    return seen


def read(name, seen):
    if name not in seen:
        seen[name] = (SOURCES / name).read_text()
        for included in re.findall(r'^#include "([^"]+)"', seen[name], re.M):
            path = (SOURCES / name).parent / included
            path = path if path.exists() else SOURCES / included
            read(path.resolve().relative_to(SOURCES.resolve()).as_posix(), seen)


def blank(text):
    """The text without comments, strings and the preprocessor's lines, with all else where it was."""
    blanks = lambda found: re.sub(r"[^\n]", " ", found.group())
    text = re.sub(r"/\*.*?\*/|//[^\n]*", blanks, text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blanks, text, flags=re.M)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', blanks, text)


def fates(text):
    """The statements that decide a fate: first line, last line, whether it is returned, and the code."""
    code = COMPARED.sub(lambda found: " " * len(found.group()), blank(text))
    for found in re.finditer(r"[^;{}]+;", code):
        fate = FATE.search(found.group())
        if not fate:
            continue
        returned = re.search(r"\breturn\b", found.group())
        begin = found.start() + (returned or fate).start()
        lines = [code.count("\n", 0, at) for at in (begin, found.end())]
        yield *lines, returned is not None, " ".join(code[begin:found.end() - 1].split())


def problems():
    """What is wrong, a line for each."""
    known = tomllib.loads(RULES.read_text())["rules"]
    left = set(EXEMPT)
    for name, text in sorted(packet_path().items()):
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            mark = re.search(r"/\* rule: (\S+) \*/", line)
            if mark and mark[1] not in known:
                yield f"{name}:{number}: the rule {mark[1]} is not in corpus/rules.toml"
        for first, last, returned, code in fates(text):
            last += 0 if returned else KEPT_LINES
            if any("/* rule: " in line for line in lines[first:last + 1]):
                continue
            if (name, code) in EXEMPT:
                left.discard((name, code))
            else:
                yield f"{name}:{first + 1}: no rule says what this decides: {code}"
    for name, code in sorted(left):
        yield f"scripts/corpus/marks.py: {name} has no such statement without a rule: {code}"
