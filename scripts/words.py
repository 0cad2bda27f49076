#!/usr/bin/env python3
"""Find phrases that we don't use, in text that people read; scripts/lint.sh calls this.

    words.py FILE...           search pages (*.md, without code), C sources (string literals), shell
                               scripts (without comments) and plain text; - is standard input
    words.py --clean FILE...   skip the FILEs that aren't on the CLEAN list below
    words.py --texts FILE...   print the texts instead of searching them

Prints FILE:LINE: RULE: TEXT for each phrase, a count per rule, and plainer words. Exit code 1 if it found any.
"""
import collections
import fnmatch
import re
import sys

# Pages, folders and scripts that have been rewritten: lint fails if one of the phrases comes back.
CLEAN = [
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "config/*.conf", "examples/*", "include/*",
    "quickstart", "check", "scripts/*.sh", "cmake/pages/man.awk", "tools/*.[ch]",
    "src/*.c", "src/*.h", "src/*.cc", "src/*.cu", "src/*.cuh", "src/*.html",
]

UNITS = (
    "bytes?|B|[KMGT]i?B|tokens?|steps?|samples?|ranks?|threads?|cores?|values?|elements?|numbers?|copies|copy|lines?|files?|ms|us|ns|"
    "seconds?|s|micro-batch(?:es)?|batch(?:es)?|processes|GPUs?|checkpoints?|iterations?|writes?|messages?|operations?|FLOPs?|bits?"
)
PER = "second|minute|hour|day|step|token|parameter|rank|host|node|thread|element|sample|row|layer|core|iteration|process|GPU|batch|micro-batch|value|run|weight|byte"
RULES = [  # name, plainer words, pattern
    # A question is no noun, and neither is an error message's "says what to do".
    ("what-clause", "the text that, each, how", r"\b(?-i:[Ww]hat)\b(?! to do\b)(?![^.!?;:]*\?)"),
    ("behind", "after", r"\bbehind\b"),
    ("beside", "next to, in addition to", r"\bbeside\b"),
    ("go on", "continue", r"\b(?:go|goes|going|went|gone) on\b(?! to\b)"),
    ("is there", "exists", r"\b(?:is|isn't|are|aren't|was|wasn't|were|weren't|be) (?:already |not |all |both |still )?there\b(?! (?:a|an|any|no)\b)"),
    ("as it is", "unchanged", r"\bas (?:it is|they are|it was|they were)\b"),
    ("alone", "only, separate", r"(?<!let )(?<!leave )(?<!left )\balone\b"),
    ("at hand", "available", r"\bat hand\b"),
    ("anew", "again", r"\banew\b"),
    ("in its place", "instead", r"\bin (?:its|their) place\b"),
    ("where", "if, in which", r"\bwhere (?:that|this|it|there|possible|no|none|a|an)\b(?! (?:is|was) (?:written|stored)\b)"),
    ("by its name", "by name", r"\bby (?:its|their) names?\b"),
    ("of its own", "its own, a separate", r"\bof (?:its|their|one's) own\b"),
    ("nobody", "no one", r"\bnobody\b"),
    ("a, not per", "per", rf"\b(?:{UNITS}) an? (?:{PER})\b"),
    ("heading", "name the contents", r"^#+ (?:there|here)\b"),
]
RULES = [(name, instead, re.compile(pattern, re.I)) for name, instead, pattern in RULES]
# Text that the patterns find although it is plain English.
EXCEPTIONS = [re.compile(pattern, re.I) for pattern in [r"\bWhat works today\b", r"\bWhat to try next\b", r"\bWhat's\b"]]


def literals(text):
    """Yield (line, text) of each string literal of C source; adjacent ones are one."""
    token = re.compile(r'/\*.*?\*/|//[^\n]*|"((?:[^"\\\n]|\\.)*)"|\'(?:[^\'\\]|\\.)+\'', re.S)
    between = re.compile(r"[\s\\]*(?:(?:PRI[a-zA-Z0-9]+|LKS__[A-Z_]+)[\s\\]*)?$")
    start = end = None
    whole = ""
    for m in token.finditer(text):
        if m.group(1) is None:
            continue
        if end is not None and between.match(text[end : m.start()]):
            whole += ("d" if whole.endswith("%") else "") + m.group(1)
        else:
            if start is not None:
                yield text.count("\n", 0, start) + 1, whole
            start, whole = m.start(), m.group(1)
        end = m.end()
    if start is not None:
        yield text.count("\n", 0, start) + 1, whole


def pieces(name, text):
    """Yield (line, text) of the sentences that people read."""
    if re.search(r"\.(c|cc|h|cu|cuh|html)$", name):
        for line, literal in literals(text):
            literal = re.sub(r"%[-+ #0-9.*]*(?:[lhzjt]*[a-zA-Z]|$)", "X", literal).replace("\\n", " ").replace('\\"', '"')
            if re.search(r"[A-Za-z] [A-Za-z]", literal):
                yield line, literal
    elif name.endswith(".md"):
        # A paragraph is one piece, since a phrase may be broken over two lines. Code is no sentence.
        text = re.sub(r"^```.*?^```", lambda m: re.sub(r"[^\n]", "", m.group()), text, flags=re.S | re.M)
        text = re.sub(r"`[^`\n]*`", "`X`", text)
        text = re.sub(r"\]\([^)\n]*\)", "]", text)
        line = 1
        for block in re.split(r"(\n(?=[ \t]*(?:\n|[-*|#]|\d+\. )))", text):
            if block.strip():
                yield line, block.strip("\n") if block.startswith("#") else block
            line += block.count("\n")
    else:
        # Of a shell script: here-documents, arguments of commands that print, and skips.sh's list.
        printed = re.compile(r"\b(?:die|echo|printf|fail|lacks)\b|^ +[a-z0-9_-]+\) # ")
        shell, here = bool(re.search(r"\A#!.*\bsh\b|\A# shellcheck", text)), None
        for line, one in enumerate(text.split("\n"), 1):
            begins = re.search(r"<<-?'?([A-Z]+)'?", one) if shell else None
            if one == here:
                here = None
            elif not shell or here or (printed.search(one) and not re.match(r"\s*# ", one)):
                yield line, re.sub(r"\$\{?\w+", "$", one)
            if begins:
                here = begins.group(1)


def find(name, text):
    for line, piece in pieces(name, text):
        flat = re.sub(r"\s+", " ", piece)
        for pattern in EXCEPTIONS:
            flat = pattern.sub("X", flat)
        for rule, _, pattern in RULES:
            for m in pattern.finditer(flat):
                yield line, rule, flat[max(0, m.start() - 40) : m.end() + 50].strip()


def main(args):
    clean, texts = "--clean" in args, "--texts" in args
    names = [a for a in args if not a.startswith("--")]
    counts = collections.Counter()
    for name in names:
        if clean and not any(fnmatch.fnmatch(name, pattern) for pattern in CLEAN):
            continue
        with sys.stdin if name == "-" else open(name, encoding="utf-8", errors="replace") as f:
            text = f.read()
        if texts:
            for line, piece in pieces(name, text):
                print(f"{name}:{line}: {piece}")
            continue
        for line, rule, shown in find(name, text):
            counts[rule] += 1
            print(f"{name}:{line}: {rule}: {shown}")
    if counts:
        print(f"{sum(counts.values())} in all: " + ", ".join(f"{rule} {n}" for rule, n in counts.most_common()))
        print("phrases that we don't use; plainer: " + "; ".join(f"{instead} ({rule})" for rule, instead, _ in RULES if rule in counts))
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
