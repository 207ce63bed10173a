"""Writes the files of the corpus, or with --check compares them with what is there, and looks for rules that
the program's source lacks: python3 scripts/corpus [--check]"""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import marks  # noqa: E402
import parsing  # noqa: E402

MODULES = [parsing]
for name in ("forwarding", "errors", "ids", "methods", "cookies", "messages", "segments", "translated", "full_nat", "lists", "new_flows", "places", "resets", "sctp"):
    try:
        MODULES.append(__import__(name))
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise

CORPUS = pathlib.Path(__file__).parent.parent.parent / "corpus"


def main():
    check, stale, cases = "--check" in sys.argv[1:], [], 0
    for book in (book for module in MODULES for book in module.books()):
        path, text = CORPUS / f"{book.name}.toml", book.text()
        names = [case["name"] for case in book.cases]
        assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1]
        cases += len(names)
        if check and (not path.exists() or path.read_text() != text):
            stale.append(path.name)
        elif not check:
            path.write_text(text)
    print(f"{cases} cases")
    missing = list(marks.problems()) if check else []
    if missing:
        sys.exit("\n".join(missing))
    if stale:
        sys.exit(f"corpus: {', '.join(stale)}: not what scripts/corpus writes; run python3 scripts/corpus")


main()
