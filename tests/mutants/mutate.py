"""Plants small faults into a copy of the sources and counts those that tests notice.

tests/mutants/*.txt hold the faults, one record each, separated by empty lines:

    in   the function that holds the expression; '-' outside of functions
    at   (if several functions have that name) a part of the file's path, such as comm/shm
    now  the expression as it stands; white space doesn't matter
    new  what is planted in its place; nothing removes it
    by   regular expression of the tests (CTest's names) that should notice
    but  (if no test can notice) the reason
    set  (if it has one) a name for some faults that belong together: --set=NAME

One build holds all faults: a function is compiled with its sound body and with one body for each
fault, and the environment variable LKS_PLANTED says which are on. A fault outside of functions is
built by itself. A fault that no longer finds its expression is an error, so the list stays true.

With --draw=N the list isn't used. The faults are drawn by draw.py, and drawn/tests.txt has the tests of
each folder; a fault that the compiler refuses isn't counted.
--draw=N --store keeps N of them in tests/mutants/drawn (stored.py), by function and line. --stored plants
those again: before and after a redesign the same faults tell more than two draws.

The tests of a fault run one after another, the quickest first, until one fails that passes without a
fault. Each has ten times the seconds that it took without one, and 30 more. If only that limit ended it,
it runs again at the end: a fault counts as noticed by a time limit only if the faulty program doesn't
keep to three times the limit, and the sound one to the limit itself.
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
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import stored
from draw import draw

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = Path(os.environ.get("LKS_MUTANTS_BUILD", ROOT / "build-mutants"))
TREE, BUILD = WORK / "tree", WORK / "build"
FIELDS = ("in", "at", "now", "new", "by", "but", "set")

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
        text = "\0".join((self.function, self.at, self.now, self.new))
        self.name = hashlib.sha256(text.encode()).hexdigest()[:6]
        self.tests = [{self.by}, set()]  # expressions of CTest's names; the first ones run first
        self.line = ""  # of a drawn one: the line as it stands

    def __str__(self):
        whole = f"{self.line}  |  " if self.line else ""
        return f"{self.name}  {self.function}: {whole}{self.now.strip()}  ->  {self.new.strip() or '(removed)'}"


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
                    if "by" not in fields and "but" not in fields:
                        fail(f"{faults[-1].where}: a record needs 'by' or 'but'")
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
        self.text = self.sound = path.read_text()
        self.functions = {}  # word of a header: [(start, end) of the body]
        for head, start, end in functions_of(self.text):
            for word in set(re.findall(r"\w+", head)):
                self.functions.setdefault(word, []).append((start, end))
        self.bodies = {}  # (start, end): [(number, other body)]

    def matches(self, fault, pattern):
        if fault.function == "-":
            return [(m, None) for m in pattern.finditer(self.text)]
        return [(m, body) for body in self.functions.get(fault.function, [])
                for m in pattern.finditer(self.text, *body)]

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
        settle(fault, number, source, match.span())
        if body is not None:
            add_body(fault, body)
    if lost:
        fail("\n".join(lost))


def settle(fault, number, source, place):
    fault.number, fault.source, fault.place = number, source, place
    parts = source.path.relative_to(TREE).parts
    fault.folder = parts[1] if parts[0] == "src" else parts[0]


def add_body(fault, body):
    """Its function's body, with the fault, beside the sound one."""
    (start, end), text = fault.place, fault.source.text
    new = fault.new or ";" * fault.now.endswith(";")  # a statement may have to be there
    fault.source.bodies.setdefault(body, []).append((fault.number, text[body[0] : start] + new + text[end : body[1]]))


def tests_of_files(sources):
    """{source: expression of the tests of its folder, or else of the folder around it}"""
    rows = (ROOT / "tests/mutants/drawn/tests.txt").read_text().splitlines()
    tests, found = dict(row.split() for row in rows if row and row[0] != "#"), {}
    for source in sources:
        path = source.path.relative_to(TREE)
        near = [str(folder) for folder in path.parents if str(folder) in tests]
        if not near:
            fail(f"drawn/tests.txt has no tests for {path}")
        found[source] = tests[near[0]]
    return found


def drawn(sources, count, seed):
    """Faults that nobody chose, and the tests of their files."""
    tests, faults = tests_of_files(sources), []
    for number, (source, body, span, new) in enumerate(draw(sources, count, seed), 1):
        path = source.path.relative_to(TREE)
        line = source.text.count("\n", 0, span[0]) + 1
        fault = Fault({"in": f"{path}:{line}", "now": source.text[slice(*span)], "new": new}, "drawn")
        settle(fault, number, source, span)
        fault.line = source.text.splitlines()[line - 1].strip()
        fault.tests[0] = {tests[source]}
        add_body(fault, body)
        faults.append(fault)
    return faults


def planted_again(sources):
    """The faults that are stored, and those that were not found again."""
    fields, rooms = stored.read(stored.FILE)
    faults, lost = [], 0
    for number, one in enumerate(fields, 1):
        fault = Fault({k: one.get(k, "") for k in ("in", "at", "now", "new")}, "stored")
        fault.name = hashlib.sha256("\0".join((fault.function, fault.at, fault.now, fault.new, one.get("nth", ""))).encode()).hexdigest()[:6]
        found = stored.find(one, sources, pattern_of)
        if isinstance(found, str):
            print(f"lost: {fault}: {found}", flush=True)
            lost += 1
            continue
        settle(fault, number, *found[:2])
        fault.tests = [{rf"^{name}$" for name in one.get("by", "").split()}, {rf"^{name}$" for name in rooms.get(one["room"], [])}]
        add_body(fault, found[2])
        faults.append(fault)
    return faults, lost


def store(faults, sources, count):
    """Keep `count` of the drawn faults that the compiler accepts."""
    all_names = [t["name"] for t in all_tests()]

    def names_of(patterns):
        return [name for name in all_names if any(p and re.search(p, name) for p in patterns)]

    kept = stored.write(stored.FILE, faults, sources, names_of, functions_of, pattern_of, count)
    print(f"{kept} of {len(faults)} faults are in {stored.FILE.relative_to(ROOT)}")


def refused_in(log, folder):
    """Numbers of the faults that the compiler's errors are about; paths begin in `folder`."""
    refused = set()
    for name, line in re.findall(r"^(\S+?):(\d+):\d+: error: ", log, re.M):
        before = "".join((folder / name).read_text().splitlines(True)[: int(line)])
        refused |= set(map(int, re.findall(r"lks__planted\[(\d+)\]", before)[-1:]))
    return refused


def build_drawn(faults, sources, targets):
    """Builds, without those that the compiler refuses; the others are returned."""
    while run(["ninja", "-C", BUILD, "-k", "0", *targets], WORK / "logs/build.log") != 0:
        refused = refused_in(open(WORK / "logs/build.log").read(), BUILD)
        if not refused:
            fail(f"the build failed: see {WORK}/logs/build.log")
        faults = [f for f in faults if f.number not in refused]
        for source in sources:
            for body, others in source.bodies.items():
                source.bodies[body] = [(n, text) for n, text in others if n not in refused]
            write(source.path, source.with_bodies())
    return faults


def copy_tree():
    """The files of the repository, as they stand in the working tree; unchanged ones stay."""
    names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT,
                           capture_output=True, check=True).stdout.decode().split("\0")
    names = {n for n in names if n and (ROOT / n).is_file()}
    for name in names:
        here, there = ROOT / name, TREE / name
        there.parent.mkdir(parents=True, exist_ok=True)
        planted = re.match(r"(src|tools)/.*\.(c|h|cc|cu)$", name)  # written later, with its faults
        if not there.exists() or not planted and here.read_bytes() != there.read_bytes():
            shutil.copy(here, there)  # with a time of now, so that ninja sees it
    for there in [p for p in TREE.rglob("*") if p.is_file()]:
        if str(there.relative_to(TREE)) not in names:
            there.unlink()
    # The copy isn't a repository, so it has the last commit's author and date as a source tarball has.
    write(TREE / "cmake/identity.txt", subprocess.run(
        ["git", "log", "-1", "--format=%an <%ae>%n%cs%n%ct"], cwd=ROOT, capture_output=True, check=True).stdout.decode())
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
    elif run(["ninja", "-C", BUILD, "build.ninja"], log) != 0:  # tests may have come since
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
    """Programs of the tests that these faults name; the tool and its modules are always there. CTest
    shows no command for a program that has yet to be built: then all of them."""
    wanted = re.compile("|".join(sorted({f"(?:{by})" for f in faults for by in f.tests[0] | f.tests[1] if by})) or "$^")
    named = [t for t in tests if wanted.search(t["name"])]
    if any("command" not in t for t in named):
        return ["all"]
    programs = [t["command"][t["command"][0].endswith("/steady.sh")] for t in named]
    programs += [v.partition("=")[2] for t in named for p in t["properties"] if p["name"] == "ENVIRONMENT"
                 for v in p["value"] if v.startswith("LKS_TEST_PROGRAM=")]  # another form of the tool
    inside = {os.path.relpath(p, BUILD) for p in programs if p.startswith(str(BUILD))}
    return sorted(inside | {"tools/all"}) if inside else ["all"]


def kill_all(mark):
    """Processes that a faulty program has left, in sessions of their own: those with `mark` in their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass  # it has ended, or isn't ours


class Test:
    """One of CTest's tests, run without CTest: its command, environment and exit code."""

    def __init__(self, described):
        self.name, self.command = described["name"], described.get("command")
        self.env, self.changes, self.skip, self.seconds, self.lock = {}, [], None, None, threading.Lock()
        self.sound = None  # what it gives without a fault
        for p in described.get("properties", []):
            if p["name"] == "ENVIRONMENT":
                self.env = dict(pair.split("=", 1) for pair in p["value"])
            elif p["name"] == "ENVIRONMENT_MODIFICATION":
                self.changes = [re.fullmatch(r"(\w+)=(path_list_prepend|string_append):(.*)", pair).groups() for pair in p["value"]]
            elif p["name"] == "SKIP_RETURN_CODE":
                self.skip = p["value"]

    def run(self, numbers, log, patience=1):
        """"passes", "fails", "late" or "skipped"."""
        mark = f"LKS_PLANTED_RUN={os.getpid()}.{threading.get_ident()}"
        env = dict(os.environ, LKS_PLANTED=",".join(map(str, numbers)), **self.env)
        env.update([mark.split("=")])
        for name, how, value in self.changes:
            there = env.get(name, "")
            env[name] = there + value if how == "string_append" else ":".join(filter(None, [value, there]))
        limit = 600 if self.seconds is None else (30 + 10 * self.seconds) * patience
        started = time.time()
        with open(log, "a") as out:
            out.write(f"---- {self.name}\n")
            out.flush()
            process = subprocess.Popen(self.command, cwd=BUILD, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = None
            kill_all(mark)
            took = time.time() - started
            result = ("late" if code is None else "passes" if code == 0 else
                      "skipped" if code == self.skip else "fails")
            out.write(f"---- {self.name} {result} after {took:.1f} s\n")
        if not numbers:
            self.seconds = took
        return result

    def works(self):
        """Does it run here, and pass without a fault? One that fails judges nothing; main() names it."""
        with self.lock:
            if self.sound is None:
                for _ in range(2):  # a busy machine may break a test's own limits once
                    self.sound = self.run([], WORK / f"logs/sound.{self.name}.log")
                    if self.sound in ("passes", "skipped"):
                        break
                times[self.name] = self.seconds
                if not self.passes_sound():
                    print(f"{self.name} {self.sound} without a fault: see {WORK}/logs/sound.{self.name}.log", flush=True)
        return self.sound == "passes"

    def passes_sound(self):
        return self.sound in (None, "passes", "skipped")


times = {}  # seconds of each test, of earlier runs too
longest = float("inf")  # seconds of a test of a fault's folder


def tests_of(fault, tests):
    out = []
    for names in fault.tests:
        named = [t for t in tests if t.command and t not in out and any(by and re.search(by, t.name) for by in names)
                 and (names is fault.tests[0] and not fault.line or times.get(t.name, 0.0) <= longest)]
        out += sorted(named, key=lambda t: times.get(t.name, 0.0))
    return out


def judge(fault, tests, patience=1):
    """"fails" if a test does, else "late" if one was, else "passes"; "not judged": all are skipped."""
    log = WORK / f"logs/{fault.name}.log"
    if patience == 1:
        log.unlink(missing_ok=True)
    result, ran = "passes", 0
    numbers = [fault.number] if fault.function != "-" else [0]
    for test in tests_of(fault, tests):
        if test.seconds is None:
            test.works()
        if not test.passes_sound():
            continue
        # One that is skipped in part may notice, too.
        now = test.run(numbers, log, patience)
        ran += now != "skipped"
        if now in ("fails", "late"):
            test.works()
            result = now if test.passes_sound() else result
        if result == "fails":
            break
    return result if ran or not fault.by else "not judged"


def judge_alone(fault, tests, targets):
    """A fault outside of functions: build with it, run, and build without it."""
    for test in tests_of(fault, tests):
        test.works()
    source, path = fault.source, fault.source.path
    sound = path.read_text()
    start, end = fault.place_now
    path.write_text(source.text[:start] + fault.new + source.text[end:])
    try:
        if run(["ninja", "-C", BUILD, *targets], WORK / f"logs/{fault.name}.build.log") != 0:
            return "fails"  # the compiler has noticed
        return judge(fault, tests)
    finally:
        path.write_text(sound)
        run(["ninja", "-C", BUILD, *targets], WORK / "logs/build.log")


def judge_again(fault, tests):
    """A test ran out of time: was it the fault, or the machine?"""
    for test in tests_of(fault, tests):
        test.sound = None
    return judge(fault, tests, 3)


def at_once(faults, jobs):
    """Plant all of them in one source and say how many tests notice."""
    for source in {f.source for f in faults}:
        out, at = "", 0
        for f in sorted((f for f in faults if f.source is source), key=lambda f: f.place[0]):
            if f.place[0] < at:
                print(f"left out, its place is another fault's: {f}")
                continue
            out += source.sound[at : f.place[0]] + (f.new or ";" * f.now.endswith(";"))
            at = f.place[1]
        write(source.path, out + source.sound[at:])
    build(["all"])
    log = WORK / "logs/together.log"
    run(["ctest", "--test-dir", BUILD, "-LE", "lint", "-j", str(jobs)], log)
    failed = re.findall(r"Test *#\d+: (\S+) \.*\*\*\*(?!Skipped)", open(log, errors="replace").read())
    print(f"{len(faults)} faults at once: {len(failed)} tests notice: {' '.join(sorted(failed))}")
    for source in {f.source for f in faults}:
        write(source.path, source.text)


def chosen(faults, args):
    if args.only:
        names = args.only.split(",")
        faults = [f for f in faults if f.name in names or f.function in names]
    if args.set:
        faults = [f for f in faults if f.set == args.set]
    if args.folder:
        faults = [f for f in faults if f.folder in args.folder.split(",")]
    if args.today:
        day = random.Random(args.seed or datetime.date.today().isoformat())
        quick = [f for f in faults if f.by and not f.but and f.function != "-"]
        faults = day.sample(quick, min(args.today, len(quick)))
    return faults


def main():
    global longest
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # --list | head
    options = argparse.ArgumentParser(prog="scripts/mutate.sh", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", help="names or functions, with commas between")
    options.add_argument("--folder", help="faults of these folders of src, such as comm,hier")
    options.add_argument("--set", help="faults with this name in their field 'set'")
    options.add_argument("--today", type=int, metavar="N", help="N faults, chosen by the date")
    options.add_argument("--draw", type=int, metavar="N",
                         help="N faults that aren't in the list, at places that the seed determines")
    options.add_argument("--store", action="store_true", help="with --draw: keep these faults, and judge none")
    options.add_argument("--stored", action="store_true", help="plant the faults that are kept")
    options.add_argument("--longest", type=float, default=longest, metavar="S",
                         help="with --draw and --stored: without tests of the folder that take more than S seconds")
    options.add_argument("--seed", help="with --today and --draw: choose by this instead of the date")
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    options.add_argument("--together", action="store_true",
                         help="afterwards run all tests with all survivors planted at once")
    options.add_argument("--at_once", action="store_true",
                         help="don't judge one by one: run all tests with all of them planted at once")
    options.add_argument("--list", action="store_true", help="show the faults and end")
    args = options.parse_args()
    longest = args.longest
    faults = read_faults()
    # Sources are taken from the repository itself: the copies hold faults.
    sources = [Source(p) for folder in ("src", "tools") for p in sorted((ROOT / folder).rglob("*"))
               if p.suffix in (".c", ".h", ".cc", ".cu")]
    for source in sources:
        source.path = TREE / source.path.relative_to(ROOT)
    place(faults, sources)
    tests_of_files(sources)
    if args.draw:
        for source in sources:
            source.bodies = {}
        more = args.draw + args.draw // 4 if args.store else args.draw  # the compiler refuses some
        faults = drawn(sources, more, args.seed or datetime.date.today().isoformat())
    lost = 0
    if args.stored:
        for source in sources:
            source.bodies = {}
        faults, lost = planted_again(sources)
    unlisted = args.draw or args.stored
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
        if not unlisted:
            source.text = source.path.read_text() if source.bodies else source.text
    for f in faults_now:  # their place in the text that is there now
        if f.function == "-":
            f.place_now = pattern_of(f.now).search(f.source.text).span()
    write(WORK / "planted.h", HEADER)
    started = time.time()
    configure()
    if args.at_once:
        at_once(faults_now, args.jobs)
        return
    targets = ["tools/all"] if args.store else targets_of(all_tests(), faults_now)
    if unlisted:
        faults_now = build_drawn(faults_now, sources, targets)
    if args.store:
        store(faults_now, sources, args.draw)
        return
    build(targets)
    tests = [Test(d) for d in all_tests()]
    print(f"{len(faults_now)} faults, built in {time.time() - started:.0f} s", flush=True)

    kept = WORK / "seconds.json"
    times.update(json.loads(kept.read_text()) if kept.exists() else {})
    for test in tests:
        test.seconds = times.get(test.name)
    noticed, by_time = {}, []

    def note(fault, result):
        noticed[fault] = result in ("fails", "late")
        if not noticed[fault]:
            word = "survives" if result == "passes" else "survives, as its tests don't run here"
            print(f"{word}: {fault.folder} {fault}", flush=True)

    late = []
    inside = [f for f in faults_now if f.function != "-"]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for fault, result in zip(inside, pool.map(lambda f: judge(f, tests), inside)):
            if result == "late":
                late.append(fault)
            else:
                note(fault, result)
    for fault in late:
        result = judge_again(fault, tests)
        note(fault, result)
        if result == "late":
            print(f"a test doesn't end: {fault.folder} {fault}", flush=True)
            by_time.append(fault)
    for fault in faults_now:
        if fault.function == "-":
            note(fault, judge_alone(fault, tests, targets))

    kept.write_text(json.dumps(times))
    left = [f for f in faults_now if not noticed[f]]
    for folder in sorted({f.folder for f in faults_now}):
        here = [f for f in faults_now if f.folder == folder]
        print(f"{folder:9} {sum(bool(noticed[f]) for f in here):3} of {len(here):3} noticed")
    total = len(faults_now) - len(left)
    print(f"{total} of {len(faults_now)} faults were noticed ({100.0 * total / len(faults_now):.1f} %), "
          f"{len(by_time)} of them only because a test didn't end, {time.time() - started:.0f} s" + f"; {lost} of the stored ones are lost" * (lost > 0))
    if args.together and left:
        at_once(left, args.jobs)
    unexplained = [f for f in left if not f.but]
    if unexplained:
        fail(f"{len(unexplained)} survivors without a reason")
    unsound = [t.name for t in tests if not t.passes_sound()]
    if unsound:
        fail(f"without a fault these fail, too, and so have judged nothing: {' '.join(unsound)}")


if __name__ == "__main__":
    main()
