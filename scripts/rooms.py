#!/usr/bin/env python3
"""The rooms: folders of src, and tools, in the order of the table in docs/inside/architecture.md.

    rooms.py BUILD [ROOT [EXCEPTION...]]   compare includes and the symbols of BUILD's objects with that table

A room's objects may use symbols of its own room and of rooms above it, its headers may declare only those,
and its files may include headers of the rooms that the table's last column names. scripts/lint.sh calls this;
scripts/house.py uses the functions. Prints each fault; exit code 1 if it found one.
"""
import json
import os
import re
import subprocess
import sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

# Places that break the order: "FILE includes HEADER" or "ROOM uses|declares SYMBOL". Don't add one; an entry
# that isn't needed any more is an error, so the list can only become shorter.
EXCEPTIONS = {
    # Lists that are put together at link time, since test programs link others: they stay.
    "settings declares lks__families",
    "settings uses lks__families",
}


def allowed(root=HERE):
    """{room: rooms whose headers it may include}, in the table's order. Its last column may be empty, "all above", or "all above but …"."""
    with open(os.path.join(root, "docs", "inside", "architecture.md"), encoding="utf-8") as f:
        rows = re.findall(r"^\| `(?:src/([a-z_]+)|(tools))` \|.*\|([^|\n]*)\|$", f.read(), re.M)
    above, may = set(), {}
    for folder, tools, cell in rows:
        room = folder or tools
        words = set(re.findall(r"[a-z_]+", re.sub(r"\(.*", "", cell)))
        may[room] = above - words if not words or "all" in words else above & words
        above.add(room)
    return may


def room_of(path):
    """The room of a file, "" outside of src and tools."""
    m = re.match(r"src/([^/]+)/|(tools)/", path)
    return (m[1] or m[2]) if m else ""


def files(root=HERE, suffixes=("c", "h", "cc", "cu", "cuh", "html")):
    """Paths of the sources in src and tools."""
    found = []
    for room in ("src", "tools"):
        for folder, _, names in os.walk(os.path.join(root, room)):
            found += [os.path.relpath(os.path.join(folder, name), root) for name in names if name.split(".")[-1] in suffixes]
    return sorted(found)


def code_of(text):
    """The same lines without comments, texts and the preprocessor's lines."""
    hide = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M)
    return hide.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


class Symbols:
    """Global symbols of the objects in a build folder, without those of tests."""

    def __init__(self, build, root=HERE):
        self.defined, self.used = {}, {}  # symbol: files that define it; file: symbols
        root = os.path.realpath(root)
        objects = {}
        try:
            with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
                commands = json.load(f)
        except OSError as e:
            sys.exit(f"{build}: not a build folder of cmake: {e}")
        for c in commands:
            path = os.path.relpath(os.path.realpath(c["file"]), root)
            out = re.search(r" -o (\S+)", c["command"])
            if room_of(path) and out and not out[1].startswith("tests/"):
                objects[os.path.join(c["directory"], out[1])] = path
        built = sorted(o for o in objects if os.path.exists(o))
        if len(built) < 0.9 * len(objects) or not built:
            sys.exit(f"{build} has {len(built)} of {len(objects)} objects: build it first")
        lines = subprocess.run(["nm", "-gA", *built], stdout=subprocess.PIPE, check=True, text=True).stdout
        for path, kind, symbol in re.findall(r"^(.*?):[ 0-9a-f]* ([A-TV-Zu-w]|U) (\S+)$", lines, re.M):
            source = objects[path]
            if kind == "U":
                self.used.setdefault(source, set()).add(symbol)
            else:
                self.defined.setdefault(symbol, set()).add(source)


def declared(text):
    """Names that a header declares: functions, and variables with `extern`."""
    code, before = code_of(text), None
    while code != before:  # without bodies of functions, structs and enums
        before, code = code, re.sub(r"\{[^{}]*\}", "", code)
    for m in re.finditer(r"\b(lks_\w+)\s*\([^;]*;|\bextern\b[^;(]*?\b(lks_\w+)\s*(?:\[[^;]*)?;", code):
        yield m[1] or m[2]


def included(text):
    """Names in a source's #include lines with quotes."""
    return re.findall(r'^[ \t]*#[ \t]*include "([^"]+)"', text, re.M)


def breaks(build, root=HERE):
    """{"FILE includes HEADER" or "ROOM uses|declares SYMBOL": sentence} of all that breaks the order."""
    may, symbols, found = allowed(root), Symbols(build, root), {}
    rank = {room: i for i, room in enumerate(may)}
    places = {symbol: {room_of(source) for source in sources} for symbol, sources in symbols.defined.items()}

    def look(path, word, symbol):
        room, there = room_of(path), places.get(symbol)
        if there and room in rank and all(rank.get(r, -1) > rank[room] for r in there):
            found[f"{room} {word} {symbol}"] = f"{path} {word} {symbol} of {' and '.join(sorted(there))}, a room below {room} in docs/inside/architecture.md"

    for path, used in sorted(symbols.used.items()):
        for symbol in sorted(used):
            look(path, "uses", symbol)
    for path in files(root, ("h",)):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            for symbol in declared(f.read()):
                look(path, "declares", symbol)
    for path in files(root, ("c", "h", "cc", "cu", "cuh")):
        room = room_of(path)
        if room not in rank:
            found[f"no row for {room}"] = f"docs/inside/architecture.md has no row for {room}: {path}"
            continue
        with open(os.path.join(root, path), encoding="utf-8") as f:
            for header in included(f.read()):
                there = room_of("src/" + header)
                if there in rank and there != room and there not in may[room] and os.path.exists(os.path.join(root, "src", header)):
                    found[f"{path} includes {header}"] = f"{path} includes {header} of {there}, which docs/inside/architecture.md doesn't allow {room}"
    return found


def main(build, root=HERE, *exceptions):
    exceptions = set(exceptions) if root != HERE else EXCEPTIONS
    found = breaks(build, root)
    lines = [found[key] for key in sorted(found) if key not in exceptions]
    lines += [f"scripts/rooms.py: take this exception out, nothing needs it any more: {key}" for key in sorted(exceptions - set(found))]
    print("".join(line + "\n" for line in lines), end="")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
