#!/usr/bin/env python3
"""Print figures of the structure: rooms, circles, tests of the memory mode, the trainer, long files, comments.

    house.py [BUILD] [-v] [--root=ROOT]

BUILD is a build folder (cmake and ninja have run): then circles are also found from symbols. -v prints the
places, too. Rooms and their order are in scripts/rooms.py.
"""
import argparse
import collections
import os
import re
import subprocess
import sys

import rooms

# The trainer and its four structs.
TRAINER = ["lks__trainer", "lks__run", "lks__state", "lks__checks", "lks__step_work"]
# Files that know the memory mode: the modes' own, the device interface, and devices.
MODE_FILES = re.compile(r"src/ddp/memory/|src/compute/")
MODE = re.compile(r"\b(?:host_memory|joined)\b|(?:->|(?<!device)\.)exchange\b(?!->| == NULL)|\bmode\s*[!=]=(?! LKS__BIND)|\bmode->name\b")
OTHER = re.compile(r"src/comm/|src/ddp/library/params\.c")  # where these words are names of other things
LONG_FILE, LONG_FUNCTION, CROWDED = 500, 50, 12
# Habits of our comments; libuv, dav1d and llm.c have nearly none of them.
HABITS = {
    "begins with What": r"^What ", "begins with Of": r"^Of ",
    "what-clause": r"\b[Ww]hat (?:it|is|was|they|a|the|one|its|has|there) ", "question": r"\?$", "behind": r"\bbehind\b",
    "go on": r"\bgo(?:es)? on\b", "nobody": r"\bnobody\b", "beside": r"\bbeside\b", "anew": r"\banew\b",
}


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        return f.read()


def short(path):
    return path[4:] if path.startswith("src/") else path


def is_c(path):
    return re.search(r"\.(c|h|cc|cu|cuh)$", path) is not None


def functions(code):
    """(header, line, lines) of each function; `code` has no comments. The layout is clang-format's."""
    for body in re.finditer(r"^\{\n(.*?)^\}", code, re.S | re.M):
        head = code[: body.start()].rstrip()
        first = max(head.rfind("\n\n"), head.rfind("\n}\n") + 2, head.rfind(";\n") + 1, 0)
        header = re.sub(r"\s+", " ", head[first:]).strip()
        if "(" in header and not header.startswith(("struct", "enum", "typedef")):
            yield header, code.count("\n", 0, first + len(head[first:]) - len(head[first:].lstrip())) + 1, body[1].count("\n")


def name_of(header):
    names = re.findall(r"(\w+)\s*\(", header)
    return next((n for n in names if n not in ("__attribute__", "__launch_bounds__")), header)


def circles(graph):
    """Groups of nodes that reach each other (Tarjan), the largest first."""
    index, low, on, stack, found = {}, {}, set(), [], []
    for root in sorted(graph):
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while work:
            node, rest = work[-1]
            for to in rest:
                if to not in index:
                    index[to] = low[to] = len(index)
                    stack.append(to)
                    on.add(to)
                    work.append((to, iter(sorted(graph.get(to, ())))))
                    break
                if to in on:
                    low[node] = min(low[node], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = []
                    while not group or group[-1] != node:
                        group.append(stack.pop())
                        on.discard(group[-1])
                    found.append(sorted(group))
    return sorted((g for g in found if len(g) > 1), key=lambda g: (-len(g), g))


def graph_of(edges, key):
    graph = collections.defaultdict(set)
    for a, b in edges:
        graph[key(a)].add(key(b))
        graph.setdefault(key(b), set())
    for node in graph:
        graph[node].discard(node)
    return dict(graph)


def includes(root, sources):
    known = set(sources)
    for path in sources:
        for name in rooms.included(read(root, path)):
            for folder in ("src", os.path.dirname(path)):
                if os.path.normpath(os.path.join(folder, name)) in known:
                    yield path, os.path.normpath(os.path.join(folder, name))
                    break


def uses(root, build):
    """(user, definer) by symbols. One that several files define, such as a module's table, is left out."""
    symbols = rooms.Symbols(build, root)
    for path, used in symbols.used.items():
        for symbol in used:
            for definer in symbols.defined.get(symbol, ()) if len(symbols.defined.get(symbol, ())) == 1 else ():
                yield path, definer


def unit(path):
    """A source and its header are one."""
    return os.path.splitext(short(path))[0]


def print_circles(title, edges):
    for what, key in (("rooms", rooms.room_of), ("files", unit)):
        found = circles(graph_of(edges, key))
        print(f"circles of {what}, {title}: {len(found)}" + (f", {sum(map(len, found))} {what} in them" if found else ""))
        for group in found:
            print(f"  {len(group):3}  {' '.join(group)}")


def print_list(text):
    if text:
        print("  " + text)


# --- figures ----------------------------------------------------------------------------------------


def is_test(before, after):
    """Does a word decide something? `before` and `after` are the rest of its statement."""
    if re.match(r"\s*(?:[!=]=|[<>?]|&&|\|\|)", after) or re.search(r"(?:!|&&|\|\||\?)[\s(]*[\w.>-]*$", before):
        return True
    depth = 0
    for i in range(len(before) - 1, -1, -1):
        depth += (before[i] == ")") - (before[i] == "(")
        if depth < 0:  # an argument of a function, or a condition
            return re.search(r"\b(?:if|while|switch) $", before[:i]) is not None
    return re.match(r"\s*return\b", before) is not None


def print_modes(root, sources, verbose):
    count, places = collections.Counter(), []
    for path in sources:
        if not is_c(path) or MODE_FILES.match(path) or OTHER.match(path):
            continue
        code = rooms.code_of(read(root, path))
        for m in MODE.finditer(code):
            start = max(code.rfind(c, 0, m.start()) for c in ";{}") + 1
            end = min([i for i in (code.find(c, m.end()) for c in ";{") if i >= 0] or [len(code)])
            if m[0].startswith("mode") or is_test(code[start : m.start()], code[m.end() : end]):
                line = code.count("\n", 0, m.start())
                count[short(path)] += 1
                places.append(f"  {path}:{line + 1}: {code.splitlines()[line].strip()}")
    print(f"tests of the memory mode outside the files of modes and devices: {sum(count.values())} in {len(count)} files")
    print_list(", ".join(f"{path} {n}" for path, n in count.most_common()))
    if verbose:
        print("\n".join(places))


def print_trainer(root, sources, verbose):
    texts = {path: rooms.code_of(read(root, path)) for path in sources if is_c(path)}
    heads = [(path, header) for path, code in texts.items() for header, _, _ in functions(code)]
    for struct in TRAINER:
        for path, code in texts.items():
            body = re.search(rf"struct {struct} \{{\n(.*?)^\}}", code, re.S | re.M)
            if body is None:
                continue
            fields = [re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part) for line in body[1].split(";")
                      for part in re.sub(r"\{[^}]*\}", "", line).split(",") if part.strip()]
            takes = [(p, h) for p, h in heads if re.search(rf"\b{struct} \*", h)]
            reads = sum(re.search(rf"\bconst (?:struct )?{struct} \*", h) is not None for _, h in takes)
            print(f"{struct} ({short(path)}): {sum(map(bool, fields))} fields; {len(takes)} functions take it, {reads} of them as const; "
                  f"{len({p for p, _ in takes})} files")
            if verbose:
                print_list(" ".join(f[0] for f in fields if f))
                print("\n".join(f"  {short(p)}: {name_of(h)}" for p, h in takes))


def print_rooms(root, sources):
    lines, count, folders = collections.Counter(), collections.Counter(), collections.Counter()
    for path in sources:
        room = rooms.room_of(path)
        count[room] += 1
        lines[room] += read(root, path).count("\n")
        folders[os.path.dirname(path)] += 1
    names = list(dict.fromkeys([*rooms.allowed(root), *sorted(count)]))
    print(f"rooms: {len(names)} (files, lines), in their order")
    print_list(", ".join(f"{room} {count[room]} {lines[room]:,}" for room in names))
    crowded = [(f, n) for f, n in folders.most_common() if n > CROWDED]
    print(f"folders with more than {CROWDED} files: {len(crowded)} of {len(folders)}")
    print_list(", ".join(f"{short(folder)} {n}" for folder, n in crowded))


def print_long(root, sources):
    heads, total, all_lines, files = [], 0, 0, []
    for path in filter(is_c, sources):
        text = read(root, path)
        if text.count("\n") > LONG_FILE:
            files.append((text.count("\n"), path))
        for header, line, n in functions(rooms.code_of(text)):
            total, all_lines = total + 1, all_lines + n
            if n > LONG_FUNCTION:
                heads.append((n, f"{name_of(header)} ({short(path)}:{line})"))
    print(f"files over {LONG_FILE} lines: {len(files)}")
    print_list(", ".join(f"{short(path)} {n}" for n, path in sorted(files, reverse=True)))
    print(f"functions: {total:,}, {all_lines / max(total, 1):.1f} lines on average; over {LONG_FUNCTION} lines: {len(heads)}")
    print_list(", ".join(f"{name} {n}" for n, name in sorted(heads, reverse=True)))


def comments(text):
    for m in re.finditer(r"/\*(.*?)\*/|(?m:^\s*//([^\n]*)$)", text, re.S):
        comment = re.sub(r"\s*\n\s*\*?\s*", " ", m[1] or m[2] or "").strip()
        if len(comment) >= 4:
            yield text.count("\n", 0, m.start()) + 1, comment


def print_comments(root, paths, verbose):
    count, total = collections.Counter(), 0
    for path in paths:
        for line, comment in comments(read(root, path)):
            total += 1
            for habit, pattern in HABITS.items():
                if re.search(pattern, comment):
                    count[habit] += 1
                    if verbose:
                        print(f"  {path}:{line}: {habit}: {comment[:100]}")
    print(f"comments in src, tools and include: {total:,}; " + ", ".join(f"{habit} {count[habit]}" for habit in HABITS))


def print_totals(root):
    parts = {"src": "src/", "tools": "tools/", "include": "include/", "tests": "tests/", "tests/figures": "tests/figures/", "tests/mutants": "tests/mutants/",
             "scripts": "scripts/", "docs": "docs/"}
    names = [os.path.relpath(os.path.join(folder, n), root) for part in {p.split("/")[0] for p in parts}
             for folder, _, found in os.walk(os.path.join(root, part)) for n in found if "__pycache__" not in folder]
    names = [n for n in names if not re.search(r"\.(png|svg|pt|gz|zip)$", n)]
    count = {part: sum(read(root, n).count("\n") for n in names if n.startswith(prefix)) for part, prefix in parts.items()}
    c = sum(read(root, n).count("\n") for n in names if n.startswith(("src/", "tools/")) and re.search(r"\.[ch]", n))
    print(f"lines: src and tools {c:,} (*.[ch]*); all files: " + ", ".join(f"{part} {n:,}" for part, n in count.items()))
    print(f"  tests without figures {count['tests'] - count['tests/figures']:,}")
    rows = sum(len(re.findall(r"^now ", read(root, n), re.M)) for n in names if re.match(r"tests/mutants/[a-z_]+\.txt$", n))
    print(f"  planted faults that are anchored by hand: {rows:,}")
    mutate = os.path.join(root, "tests", "mutants", "mutate.py")
    if os.path.exists(mutate):
        lines = subprocess.run([sys.executable, "-B", mutate, "--stored", "--list"], stdout=subprocess.PIPE, text=True).stdout.splitlines()
        print(f"  drawn faults that are stored: {len(lines)}, not found any more: {sum(line.startswith('lost: ') for line in lines)}")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("build", nargs="?", metavar="BUILD")
    options.add_argument("-v", "--verbose", action="store_true")
    options.add_argument("--root", default=rooms.HERE)
    a = options.parse_args()
    sources = rooms.files(a.root)
    print_modes(a.root, sources, a.verbose)
    print_trainer(a.root, sources, a.verbose)
    print_rooms(a.root, sources)
    print_circles("from includes", list(includes(a.root, sources)))
    if a.build:
        print_circles("from symbols", list(uses(a.root, a.build)))
    print_long(a.root, sources)
    public = [os.path.join("include", "lockstep", n) for n in sorted(os.listdir(os.path.join(a.root, "include", "lockstep")))]
    print_comments(a.root, [p for p in sources + public if is_c(p)], a.verbose)
    print_totals(a.root)


if __name__ == "__main__":
    main()
