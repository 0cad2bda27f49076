"""Drawn faults that are kept, to be planted again after functions have moved to other files: mutate.py --stored.

drawn.txt has a record for each, separated by empty lines; a fault is found by its function and its line:

    in    the function
    at    (if several functions have that name and line) the file's name without its folders
    nth   (if the function has several such lines) which one, of how many: 2/3
    now   the line as it stands, without comments; white space doesn't matter
    new   the line with the fault
    by    names of the tests that run first: those that the lists named for its file when it was drawn
    room  then those of this folder, which are in the record that begins with `tests`
"""
import re
from pathlib import Path

FILE = Path(__file__).with_name("drawn") / "drawn.txt"
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|/\*.*?\*/|//[^\n]*', re.S)


def function_of(source, body, functions_of):
    for head, start, _ in functions_of(source.text):
        if start == body[0]:
            return next(n for n in re.findall(r"(\w+)\s*\(", head) if n not in ("__attribute__", "__launch_bounds__"))
    raise ValueError(f"{source.path}: no function begins at {body[0]}")


def line_around(text, start, end):
    """(start, end) of the line, or lines, around a place, without comments and blanks at both ends."""
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    for m in COMMENT.finditer(text):
        if m[0][0] == "/" and m.end() <= start:
            first = max(first, m.end())
        elif m[0][0] == "/" and m.start() >= end:
            last = min(last, m.start())
            break
    while text[first].isspace():
        first += 1
    while text[last - 1].isspace():
        last -= 1
    return first, last


def one_line(text):
    return re.sub(r"\s*\n\s*", " ", text).strip()


def matches_of(name, at, now, sources, pattern_of):
    """[(source, match, body)] of the lines `now` in functions of that name."""
    pattern = pattern_of(now)
    return [(s, m, body) for s in sources if at in ("", s.path.name) for body in s.functions.get(name, []) for m in pattern.finditer(s.text, *body)]


def record_of(fault, sources, names_of, functions_of, pattern_of):
    """The text of a drawn fault, with its tests' names. None if it can't be found again."""
    source, (start, end) = fault.source, fault.place
    body = next(b for b in {b for bodies in source.functions.values() for b in bodies} if b[0] <= start < b[1])
    name = function_of(source, body, functions_of)
    first, last = line_around(source.text, start, end)
    now = one_line(source.text[first:last])
    new = one_line(source.text[first:start] + fault.new + source.text[end:last])
    at = source.path.name if len({(s, b) for s, _, b in matches_of(name, "", now, sources, pattern_of)}) > 1 else ""
    found = matches_of(name, at, now, sources, pattern_of)
    here = [i for i, (s, m, b) in enumerate(found, 1) if s is source and b == body and m.start() <= start and end <= m.end()]
    if len(here) != 1 or {(s, b) for s, _, b in found} != {(source, body)}:
        return None
    rows = [("in", name), ("at", at), ("nth", f"{here[0]}/{len(found)}" if len(found) > 1 else ""), ("now", now), ("new", new),
            ("by", " ".join(names_of(fault.tests[0]))), ("room", fault.folder)]
    return "\n".join(f"{key:5} {value}" for key, value in rows if value) + "\n"


def write(path, faults, sources, names_of, functions_of, pattern_of, count):
    """Keep the first `count` of them that can be found again."""
    texts, rooms = [], {}
    for fault in faults:
        text = record_of(fault, sources, names_of, functions_of, pattern_of)
        if text is not None and text not in texts and len(texts) < count:
            texts.append(text)
            rooms.setdefault(fault.folder, names_of(fault.tests[0] | fault.tests[1]))
    head = ["# Drawn faults that are kept: stored.py says what the fields mean.\n"]
    head += [f"tests {room} {' '.join(names)}\n" for room, names in sorted(rooms.items())]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*head, *texts]))
    return len(texts)


def read(path):
    """[fields] of the faults, {room: names of tests}."""
    faults, rooms = [], {}
    for block in path.read_text().split("\n\n"):
        lines = [line.split(None, 1) for line in block.splitlines() if line and not line.startswith("#")]
        if lines and lines[0][0] == "tests":
            room, _, names = lines[0][1].partition(" ")
            rooms[room] = names.split()
        elif lines:
            faults.append({line[0]: line[1] if len(line) > 1 else "" for line in lines})
    return faults, rooms


def find(fields, sources, pattern_of):
    """(source, (start, end), body), or a sentence that says why it can't be planted."""
    found = matches_of(fields["in"], fields.get("at", ""), fields["now"], sources, pattern_of)
    if not found and fields.get("at"):  # its file may have another name now
        found = matches_of(fields["in"], "", fields["now"], sources, pattern_of)
    which, _, of = fields.get("nth", "1/1").partition("/")
    if len(found) != int(of) or len({(s, b) for s, _, b in found}) != 1:
        return f"found {len(found)} times in {len({(s, b) for s, _, b in found})} functions, not {of} in one"
    source, match, body = found[int(which) - 1]
    return source, match.span(), body
