"""Draws small faults at places that a seed determines: mutate.py --draw=N.

The lists of faults were written by people who knew the tests. This one measures what the tests make
of a fault that nobody chose: each line of a function's body that has something to change is as likely
as another, and each change in it.
"""
import random
import re

# What stands there, and what may come in its place. Blanks tell an operator from a pointer's star or a sign.
CHANGES = [
    (r" < ", " <= "), (r" < ", " > "), (r" <= ", " < "), (r" > ", " >= "), (r" > ", " < "), (r" >= ", " > "),
    (r" == ", " != "), (r" != ", " == "), (r" && ", " || "), (r" \|\| ", " && "),
    (r" \+ ", " - "), (r" - ", " + "), (r" \* ", " + "), (r" / ", " * "), (r" % ", " / "),
    (r" & ", " | "), (r" \| ", " & "), (r" << ", " >> "), (r" >> ", " << "), (r" \+= ", " -= "), (r" -= ", " += "), (r" \+= ", " = "),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"(?<=[(\s])!(?=[\w(])", ""),
    (r"(?<![\w.])0(?![\w.])", "1"), (r"(?<![\w.])1(?![\w.])", "0"), (r"(?<![\w.])1(?![\w.])", "2"), (r"\bcontinue;", "break;"),
    (r"\b\d*\.\d+f?\b", "0.37"), (r"(?<![\w.])(?:[2-9]|[1-9]\d+)(?![\w.])", "+1"),
    (r"\bmin\b", "max"), (r"\bmax\b", "min"),
]
# A call or an assignment that fills its line: taken out as a whole.
STATEMENT = re.compile(r"^\s+(?:\(void\))?(?:\w+\(.*\)|\*?[\w.\[\]]+(?:->[\w.\[\]]+)* (?:[-+*/|&]|<<|>>)?= .*|[\w.>\[\]-]+(?:\+\+|--));$")
CONDITION = re.compile(r"\b(?:if|while) \(")


def code_only(text):
    """The same length, with blanks in place of comments, texts and the preprocessor's lines."""
    hide = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M)
    return hide.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def closing(text, at):
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return None


def changes_of(code, start, end):
    """(start, end, new) of everything that may change in a line."""
    line, found = code[start:end], []
    for old, new in CHANGES:
        for m in re.finditer(old, line):
            here = str(int(m[0]) + 1) if new == "+1" else new
            found.append((start + m.start(), start + m.end(), here))
    if STATEMENT.match(line):
        found.append((start + len(line) - len(line.lstrip()), end, ";"))
    for m in CONDITION.finditer(line):
        last = closing(code, start + m.end() - 1)
        if last is not None:
            at = start + m.end()
            found.append((at, last, f"!({code[at:last]})"))
    return found


def draw(sources, count, seed):
    """(source, body, (start, end), new) of `count` changes."""
    places = []
    for source in sources:
        code = code_only(source.text)
        for body in sorted({b for bodies in source.functions.values() for b in bodies}):
            at = body[0]
            for line in code[slice(*body)].splitlines(True):
                changes = changes_of(code, at, at + len(line.rstrip("\n")))
                if changes and "static const" not in line:
                    places.append((source, body, changes))
                at += len(line)
    chance = random.Random(seed)
    for source, body, changes in chance.sample(places, min(count, len(places))):
        start, end, new = chance.choice(changes)
        if new.startswith("!("):  # with the texts that `code` hides
            new = f"!({source.text[start:end]})"
        yield source, body, (start, end), new
