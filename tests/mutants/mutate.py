"""Plants small faults into a copy of the sources and counts those that tests notice.

tests/mutants/*.txt hold the faults, one record each, separated by empty lines:

    in   the function that holds the expression; '-' outside of functions
    at   (if several functions have that name) a part of the file's path, such as comm/shm
    now  the expression as it stands; white space doesn't matter
    new  what is planted in its place; nothing removes it
    by   regular expression of the tests (CTest's names) that should notice
    but  (if no test can notice) the reason

One build holds all faults: a function is compiled with its sound body and with one body for each
fault, and the environment variable LKS_PLANTED says which are on. A fault outside of functions is
built by itself. A fault that no longer finds its expression is an error, so the list stays true.
"""
import argparse
import concurrent.futures
import datetime
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = Path(os.environ.get("LKS_MUTANTS_BUILD", ROOT / "build-mutants"))
TREE, BUILD = WORK / "tree", WORK / "build"
FIELDS = ("in", "at", "now", "new", "by", "but")

HEADER = """
#ifndef LKS_PLANTED_H
#define LKS_PLANTED_H
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
static unsigned char lks__planted[4096];
__attribute__((constructor, unused)) static void lks__planted_read(void)
{
    const char *text = getenv("LKS_PLANTED");
    while (text != NULL && *text != '\\0') {
        char *end;
        unsigned long k = strtoul(text, &end, 10);
        if (k < sizeof lks__planted)
            lks__planted[k] = 1;
        text = *end == ',' ? end + 1 : NULL;
    }
}
#endif
"""


def fail(text):
    sys.exit(f"mutate: {text}")


class Fault:
    def __init__(self, fields, where):
        self.__dict__.update({("function" if k == "in" else k): fields.get(k, "") for k in FIELDS})
        self.where = where
        for key in ("function", "now"):
            if not getattr(self, key):
                fail(f"{where}: a record needs 'in' and 'now'")
        if not self.by and not self.but:
            fail(f"{where}: a record needs 'by' or 'but'")
        text = "\0".join((self.function, self.at, self.now, self.new))
        self.name = hashlib.sha256(text.encode()).hexdigest()[:6]

    def __str__(self):
        return f"{self.name}  {self.function}: {self.now}  ->  {self.new or '(removed)'}"


def read_faults():
    faults = []
    for path in sorted((ROOT / "tests/mutants").glob("[a-z]*.txt")):
        fields, start = {}, 0
        for n, line in enumerate(path.read_text().splitlines() + [""], 1):
            if line.startswith("#"):
                continue
            if not line.strip():
                if fields:
                    faults.append(Fault(fields, f"{path.name}:{start}"))
                fields = {}
                continue
            key, _, value = line.partition(" ")
            if key not in FIELDS or key in fields:
                fail(f"{path.name}:{n}: {key!r} is no field, or there twice")
            start = start if fields else n
            fields[key] = value.strip()
    names = [f.name for f in faults]
    for f in faults:
        if names.count(f.name) > 1:
            fail(f"{f.where}: the same fault stands elsewhere, too: {f}")
    return faults


def pattern_of(expression):
    """The expression with any white space between its parts."""
    parts = re.findall(r'"(?:\\.|[^"\\])*"|\w+|[^\w\s]', expression)
    words = [re.escape(p) for p in parts]
    out = (r"\b" if re.match(r"\w", words[0]) else "") + words[0]
    for before, word in zip(words, words[1:]):
        both = re.match(r"\w", before[-1]) and re.match(r"\w", word[0])
        out += (r"\s+" if both else r"\s*") + word
    return re.compile(out + (r"\b" if re.match(r"\w", words[-1][-1]) else ""))


def functions_of(text):
    """(header, start, end) of each function's body, braces outside; clang-format's layout."""
    for body in re.finditer(r"^\{\n(.*?)^\}", text, re.S | re.M):
        head = text[: body.start()].rstrip("\n")
        first = max(head.rfind("\n\n"), head.rfind("\n}\n"), head.rfind(";\n"), head.rfind("*/\n"))
        yield head[first + 1 :], body.start(1), body.end(1)


class Source:
    def __init__(self, path):
        self.path = path
        self.text = path.read_text()
        self.functions = list(functions_of(self.text))
        self.bodies = {}  # (start, end): [(number, other body)]

    def matches(self, fault, pattern):
        if fault.function == "-":
            return [(m, None) for m in pattern.finditer(self.text)]
        found = []
        for head, start, end in self.functions:
            if re.search(rf"\b{re.escape(fault.function)}\b\W", head + " "):
                found += [(m, (start, end)) for m in pattern.finditer(self.text, start, end)]
        return found

    def with_bodies(self):
        out, at = "", 0
        for (start, end), others in sorted(self.bodies.items()):
            out += self.text[at:start]
            for number, body in others:
                labels = re.findall(r"^\s*(?!default\b)(\w+):\s*$", body, re.M)
                local = f"__label__ {', '.join(labels)};" if labels else ""
                out += f"if (lks__planted[{number}]) {{ {local}\n{body}}} else\n"
            body = self.text[start:end]
            labels = re.findall(r"^\s*(?!default\b)(\w+):\s*$", body, re.M)
            local = f"__label__ {', '.join(labels)};" if labels else ""
            out += f"{{ {local}\n{body}}}\n"
            at = end
        return out + self.text[at:]


def place(faults, sources):
    """Find each fault's expression; the number of one inside a function is its place in the list."""
    lost = []
    for number, fault in enumerate(faults, 1):
        pattern, found = pattern_of(fault.now), []
        for source in sources:
            if fault.at in str(source.path):
                found += [(source, *m) for m in source.matches(fault, pattern)]
        if len(found) != 1:
            places = ", ".join(str(s.path.relative_to(TREE)) for s, _, _ in found)
            lost.append(f"{fault.where}: found {len(found)} times{': ' + places if places else ''}: {fault}")
            continue
        source, match, body = found[0]
        fault.number, fault.source, fault.match = number, source, match
        parts = source.path.relative_to(TREE).parts
        fault.folder = parts[1] if parts[0] == "src" else parts[0]
        if body is not None:
            new = fault.new or ";" * fault.now.endswith(";")  # a statement may have to be there
            text = source.text[body[0] : match.start()] + new + source.text[match.end() : body[1]]
            source.bodies.setdefault(body, []).append((number, text))
    if lost:
        fail("\n".join(lost))


def copy_tree():
    """The files of the repository, as they stand in the working tree; unchanged ones stay."""
    names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT,
                           capture_output=True, check=True).stdout.decode().split("\0")
    names = {n for n in names if n and (ROOT / n).is_file()}
    for name in names:
        here, there = ROOT / name, TREE / name
        there.parent.mkdir(parents=True, exist_ok=True)
        planted = re.match(r"(src|tools)/.*\.(c|h|cc)$", name)  # written later, with its faults
        if not there.exists() or not planted and here.read_bytes() != there.read_bytes():
            shutil.copy(here, there)  # with a time of now, so that ninja sees it
    for there in [p for p in TREE.rglob("*") if p.is_file()]:
        if str(there.relative_to(TREE)) not in names:
            there.unlink()
    shared = TREE.parent / "shared"
    if (ROOT.parent / "shared").exists() and not shared.exists():
        shared.symlink_to(ROOT.parent / "shared")


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def run(command, log, **more):
    with open(log, "w") as out:
        return subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              **more).returncode


def configure():
    log = WORK / "logs/configure.log"
    if not (BUILD / "build.ninja").exists():
        flags = f"-include {WORK}/planted.h -w"
        command = ["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja",
                   f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"]
        if shutil.which("ccache"):
            command += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
        if run(command, log) != 0:
            fail(f"cmake failed: see {log}")


def build(targets):
    log = WORK / "logs/build.log"
    if run(["ninja", "-C", BUILD, "-k", "0", *targets], log) != 0:
        sys.stderr.write("".join(line for line in open(log) if ": error: " in line))
        fail(f"the build failed: see {log}")


def all_tests():
    text = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True,
                          check=True).stdout
    return json.loads(text)["tests"]


def targets_of(tests, faults):
    """Programs of the tests that these faults name; the tool and its modules are always there."""
    wanted = re.compile("|".join(f"(?:{f.by})" for f in faults if f.by) or "$^")
    paths = [t["command"][0] for t in tests if "command" in t and wanted.search(t["name"])]
    inside = {os.path.relpath(p, BUILD) for p in paths if p.startswith(str(BUILD))}
    return sorted(inside | {"tools/all"}) if inside else ["all"]


def tests_fail(by, numbers, log, jobs=1):
    """True if a test fails; None if no test has such a name, or all were skipped."""
    env = dict(os.environ, LKS_PLANTED=",".join(map(str, numbers)))
    code = run(["ctest", "--test-dir", BUILD, "-j", str(jobs), "-R", by, "--stop-on-failure",
                "--output-on-failure", "--no-tests=error", "--timeout", "120"], log, env=env)
    text = open(log, errors="replace").read()
    if "No tests were found" in text or " Passed " not in text and code == 0:
        return None
    if "***Timeout" in text:
        print(f"a test ran out of time, which may be the machine's fault: see {log}", flush=True)
    return code != 0


def built_alone(fault):
    """A fault outside of functions: build with it, run, and build without it."""
    source, path = fault.source, fault.source.path
    sound = path.read_text()
    at = fault.match.start()
    path.write_text(source.text[:at] + fault.new + source.text[fault.match.end() :])
    try:
        log = WORK / f"logs/{fault.name}.log"
        if run(["ninja", "-C", BUILD], log) != 0:
            return True  # the compiler has noticed
        return tests_fail(fault.by, [], log)
    finally:
        path.write_text(sound)


def judge(fault):
    if fault.by == "":
        return None
    if fault.function == "-":
        return built_alone(fault)
    return tests_fail(fault.by, [fault.number], WORK / f"logs/{fault.name}.log")


def chosen(faults, args):
    if args.only:
        names = args.only.split(",")
        faults = [f for f in faults if f.name in names or f.function in names]
    if args.folder:
        faults = [f for f in faults if f.folder == args.folder]
    if args.today:
        day = random.Random(args.seed or datetime.date.today().isoformat())
        quick = [f for f in faults if f.by and not f.but and f.function != "-"]
        faults = day.sample(quick, min(args.today, len(quick)))
    return faults


def main():
    options = argparse.ArgumentParser(prog="scripts/mutate.sh", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", help="names or functions, with commas between")
    options.add_argument("--folder", help="faults of one folder of src, such as comm")
    options.add_argument("--today", type=int, metavar="N", help="N faults, chosen by the date")
    options.add_argument("--seed", help="with --today: choose by this instead of the date")
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    options.add_argument("--together", action="store_true",
                         help="afterwards run all tests with all survivors planted at once")
    options.add_argument("--list", action="store_true", help="show the faults and end")
    args = options.parse_args()
    faults = read_faults()
    # Sources are taken from the repository itself: the copies hold faults.
    sources = [Source(p) for folder in ("src", "tools") for p in sorted((ROOT / folder).rglob("*"))
               if p.suffix in (".c", ".h", ".cc")]
    for source in sources:
        source.path = TREE / source.path.relative_to(ROOT)
    place(faults, sources)
    faults_now = chosen(faults, args)
    if not faults_now:
        fail("no fault was chosen")
    if args.list:
        for f in faults_now:
            print(f"{f.folder:9} {f}  [{f.by or f.but}]")
        return
    (WORK / "logs").mkdir(parents=True, exist_ok=True)
    copy_tree()
    for source in sources:
        source.path.parent.mkdir(parents=True, exist_ok=True)
        write(source.path, source.with_bodies())
        source.text = source.path.read_text() if source.bodies else source.text
    for f in faults_now:  # their place in the text that is there now
        if f.function == "-":
            f.match = pattern_of(f.now).search(f.source.text)
    write(WORK / "planted.h", HEADER)
    started = time.time()
    configure()
    build(targets_of(all_tests(), faults_now))
    print(f"{len(faults_now)} faults, built in {time.time() - started:.0f} s", flush=True)

    wanted = "|".join(sorted({f.by for f in faults_now if f.by}))
    if wanted and tests_fail(wanted, [], WORK / "logs/sound.log", args.jobs) is not False:
        fail(f"the tests fail, or are skipped, without a fault: see {WORK}/logs/sound.log")
    inside = [f for f in faults_now if f.function != "-"]
    noticed = {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for fault, result in zip(inside, pool.map(judge, inside)):
            noticed[fault] = result
            if not result:
                print(f"survives: {fault.folder} {fault}", flush=True)
    for fault in faults_now:
        if fault.function == "-":
            noticed[fault] = judge(fault)
            if not noticed[fault]:
                print(f"survives: {fault.folder} {fault}", flush=True)

    left = [f for f in faults_now if not noticed[f]]
    for folder in sorted({f.folder for f in faults_now}):
        here = [f for f in faults_now if f.folder == folder]
        print(f"{folder:9} {sum(bool(noticed[f]) for f in here):3} of {len(here):3} noticed")
    total = len(faults_now) - len(left)
    print(f"{total} of {len(faults_now)} faults were noticed ({100.0 * total / len(faults_now):.1f} %), "
          f"{time.time() - started:.0f} s")
    numbers = [f.number for f in left if f.function != "-"]
    if args.together and numbers:
        build(["all"])
        log = WORK / "logs/together.log"
        code = run(["ctest", "--test-dir", BUILD, "-E", "mutants_anchored"], log,
                   env=dict(os.environ, LKS_PLANTED=",".join(map(str, numbers))))
        print(f"all {len(numbers)} survivors at once: tests {'fail' if code else 'pass'}, see {log}")
    unexplained = [f for f in left if not f.but]
    if unexplained:
        fail(f"{len(unexplained)} survivors without a reason")


main()
