#!/usr/bin/env python3
"""Record a command in a terminal as an animated SVG: record.py [OPTIONS] --out=FILE.svg COMMAND [ARGS]

The command runs in a pseudo-terminal of fixed size. The picture replays its output in a loop, by CSS
alone, so GitHub shows it in an <img>. Lines keep their order and colours. Waits are shortened: the
clock in the title bar counts the seconds of the real run, and the factor next to it says how much
faster the picture is. A renderer without animation shows the last screen.

  --size=100x30           columns and rows of the terminal
  --seconds=32            length of the picture, as far as shortening waits allows it
  --end=6                 seconds for which the last screen stays
  --hold=REGEX=SECONDS    wait before a line that matches; may be repeated
  --shown=TEXT            the command line to show, if it differs from the command
  --title=TEXT            text of the title bar, for example the machine's name

docs/pictures/quickstart.svg is made with the command in CONTRIBUTING.md.
"""
import argparse
import codecs
import fcntl
import html
import math
import os
import pty
import re
import shlex
import struct
import sys
import termios
import time
import unicodedata

FRAME = 0.1         # seconds: changes that are closer together are shown as one
LINE = 0.11         # seconds that each new line is shown before the next one, at least
CELL = (8.4, 18)    # width and height of a character, in pixels
MARGIN = 14         # around the text
BAR = 34            # height of the title bar
# Foreground colours 0 to 15 of the terminal, on a dark background.
COLOURS = ("#8b949e #ff7b72 #7ee787 #e3b341 #79c0ff #d2a8ff #76e3ea #c9d1d9 "
           "#8b949e #ffa198 #aff5b4 #f2cc60 #a5d6ff #e2c5ff #b3f0ff #ffffff").split()
PLAIN = (None, False, False)  # colour, bold, faint


# --- recording --------------------------------------------------------------------------------------


def record(command, columns, rows):
    """Run the command. Returns its output as [(seconds since the start, bytes)] and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), LINES=str(rows))
        try:
            # The parent sets the size before it lets the command start.
            sys.stdin.readline()
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)
    attributes = termios.tcgetattr(terminal)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.write(terminal, b"\n")
    pieces, start = [], time.monotonic()
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: the last process has closed the terminal
            break
        if not piece:
            break
        pieces.append((time.monotonic() - start, piece))
    return pieces, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- the terminal -----------------------------------------------------------------------------------


class Screen:
    """The part of a terminal that our output uses. Lines are numbered from the start of the recording
    and are never deleted: the window of `rows` lines moves down over them."""

    SEQUENCE = re.compile(r"\x1b\[([?>]?)([0-9;]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()].|\x1b[=>78]")

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.lines, self.top, self.row, self.column = {}, 0, 0, 0
        self.style, self.rest = PLAIN, ""
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def write(self, data):
        text, at = self.rest + self.decode(data), 0
        self.rest = ""
        while at < len(text):
            if text[at] == "\x1b":
                found = self.SEQUENCE.match(text, at)
                if found:
                    if found.group(3):
                        self.control(*found.groups())
                    at = found.end()
                    continue
                if len(text) - at < 64:  # the rest of the sequence comes with the next piece
                    self.rest = text[at:]
                    return
            self.character(text[at])
            at += 1

    def character(self, c):
        if c == "\n":
            self.move(self.row + 1, self.column)
        elif c == "\r":
            self.column = 0
        elif c == "\b":
            self.column = max(0, self.column - 1)
        elif c == "\t":
            self.column = min(self.columns - 1, self.column // 8 * 8 + 8)
        elif c >= " " and c != "\x7f" and not unicodedata.combining(c):
            width = 2 if unicodedata.east_asian_width(c) in "WF" else 1
            if self.column + width > self.columns:
                self.move(self.row + 1, 0)
            line = self.lines.setdefault(self.row, {})
            line[self.column] = (c, self.style)
            if width == 2:
                line[self.column + 1] = ("", self.style)
            self.column += width

    def move(self, row, column):
        self.row, self.column = max(self.top, row), min(max(0, column), self.columns)
        self.top = max(self.top, self.row - self.rows + 1)

    def control(self, private, parameters, final):
        numbers = [int(n) if n else 0 for n in parameters.split(";")]
        n = max(1, numbers[0])
        if private:
            return  # modes: the cursor's visibility, pasting
        if final == "m":
            self.colour(numbers)
        elif final == "K":
            self.erase(self.row, 0 if numbers[0] else self.column, self.columns if numbers[0] != 1 else self.column + 1)
        elif final == "J":
            first = self.top if numbers[0] else self.row + 1
            last = self.row if numbers[0] == 1 else self.top + self.rows
            for row in range(first, last):
                self.erase(row, 0, self.columns)
            self.control("", parameters if numbers[0] < 2 else "2", "K")
        elif final == "A":
            self.move(self.row - n, self.column)
        elif final == "B":
            self.move(min(self.row + n, self.top + self.rows - 1), self.column)
        elif final == "C":
            self.move(self.row, self.column + n)
        elif final == "D":
            self.move(self.row, self.column - n)
        elif final == "G":
            self.move(self.row, n - 1)
        elif final in "Hf":
            self.move(self.top + min(n, self.rows) - 1, (numbers[1] if len(numbers) > 1 and numbers[1] else 1) - 1)

    def erase(self, row, first, last):
        line = self.lines.get(row, {})
        for column in [c for c in line if first <= c < last]:
            del line[column]

    def colour(self, numbers):
        colour, bold, faint = self.style
        for at, n in enumerate(numbers):
            if n == 0:
                colour, bold, faint = PLAIN
            elif n == 1:
                bold = True
            elif n == 2:
                faint = True
            elif n == 22:
                bold = faint = False
            elif 30 <= n <= 37 or 90 <= n <= 97:
                colour = n - 30 if n < 40 else n - 82
            elif n == 39:
                colour = None
            elif n in (38, 48):  # 256 colours: the first 16 are known
                if n == 38 and numbers[at + 1:at + 2] == [5] and len(numbers) > at + 2 and numbers[at + 2] < 16:
                    colour = numbers[at + 2]
                break
        self.style = (colour, bold, faint)

    def runs(self, row):
        """The line as a tuple of (column, width, text, style): neighbours of one style are one run."""
        runs, line = [], self.lines.get(row, {})
        for column in sorted(line):
            c, style = line[column]
            if runs and runs[-1][3] == style and runs[-1][0] + runs[-1][1] == column:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1, runs[-1][2] + c, style)
            else:
                runs.append((column, 1, c, style))
        trimmed = []
        for column, width, text, style in runs:
            lead, tail = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
            if lead < len(text):
                trimmed.append((column + lead, width - lead - tail, text.strip(" "), style))
        return tuple(trimmed)


# --- time -------------------------------------------------------------------------------------------


def shorten(pieces, seconds, holds):
    """Split the output at its lines and give each part a time in the picture. Returns [(shown,
    real, bytes)] and the shown length. A part is all output up to the end of a line; one that took
    over a second is shown for 1 + a * log(its seconds), with `a` such that the whole lasts `seconds`."""
    parts, part = [], []
    for at, data in pieces:
        for piece in re.findall(rb"[^\n]*\n|[^\n]+", data):
            part.append((at, piece))
            if piece.endswith(b"\n"):
                parts.append(part)
                part = []
    if part:
        parts.append(part)
    begin, lengths, pauses = 0.0, [], []
    for part in parts:
        text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", b"".join(piece for _, piece in part)).strip().decode("utf-8", "replace")
        pauses.append(sum(pause for pattern, pause in holds if re.search(pattern, text)))
        lengths.append(part[-1][0] - begin)
        begin = part[-1][0]

    def shown(length, a):
        return max(LINE, length if length <= 1 else min(length, 1 + a * math.log(length)))

    low, high = 0.0, 20.0
    for _ in range(40):
        a = (low + high) / 2
        if sum(shown(length, a) for length in lengths) + sum(pauses) < seconds:
            low = a
        else:
            high = a
    out, begin, now = [], 0.0, 0.0
    for part, length, pause in zip(parts, lengths, pauses):
        now += pause
        factor = shown(length, low) / length if length > 0 else 0.0
        for at, piece in part:
            out.append((now + (at - begin) * factor, at, piece))
        now += shown(length, low)
        begin = part[-1][0]
    return out, now


# --- the picture ------------------------------------------------------------------------------------


class Picture:
    """Texts that are visible from one time to another. Those with the same times share a class."""

    def __init__(self):
        self.texts, self.moves = [], []  # (first, end or None, SVG), and (time, top line)

    def add(self, first, end, svg):
        if svg and (end is None or end > first):
            self.texts.append((first, end, svg))


def text_svg(runs, y):
    """One <text> for each run. Its length in pixels is fixed, so that every font fits the columns."""
    out = []
    for column, width, text, (colour, bold, faint) in runs:
        names = [f"c{colour}"] if colour is not None else []
        names += ["b"] * bold + ["f"] * faint
        named = f' class="{" ".join(names)}"' if names else ""
        out.append(f'<text x="{column * CELL[0]:g}" y="{y}" textLength="{width * CELL[0]:g}"{named}>{html.escape(text, False)}</text>')
    return "".join(out)


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def typing_seconds(shown):
    return 0.9 + min(1.6, 0.04 * len(shown))


def draw(pieces, length, columns, rows, shown, title, end):
    """The whole SVG. `pieces` and `length` are shorten()'s."""
    screen, picture = Screen(columns, rows), Picture()
    screen.write(b"\x1b[1;32m$\x1b[0m ")
    typing = typing_seconds(shown)
    total = typing + length + end
    alive, times = {}, []  # line -> (since, runs); (shown, real)

    def frame(now, real):
        now = round(now, 2)
        for row in list(screen.lines):
            runs = screen.runs(row)
            since, before = alive.get(row, (now, None))
            if runs != before:
                if before:
                    picture.add(since, now, text_svg(before, row * CELL[1]))
                alive[row] = (now, runs)
        if not picture.moves or picture.moves[-1][1] != screen.top:
            picture.moves.append((now, screen.top))
        times.append((now, real))

    frame(0, 0)
    for i, c in enumerate(shown):
        screen.write(c.encode())
        frame(0.6 + (typing - 0.9) * i / len(shown), 0)
    screen.write(b"\r\n")
    due = None
    for at, real, data in pieces:
        at += typing
        if due is not None and at - due[0] >= FRAME:
            frame(*due)
            due = None
        screen.write(data)
        if due is None:
            due = (at, real)
        due = (due[0], real)
    if due:
        frame(*due)
    for row, (since, runs) in alive.items():
        if runs:
            picture.add(since, None, text_svg(runs, row * CELL[1]))

    width = round(columns * CELL[0] + 2 * MARGIN)
    height = rows * CELL[1] + BAR + MARGIN
    # The clock, and how much faster than the run the picture is, from one state to the next.
    states = []
    for (now, real), (then, later) in zip(times, times[1:] + [(typing + length, times[-1][1])]):
        # A long step without output counts on, in pieces of half a second.
        steps = max(1, int((then - now) / 0.5))
        for i in range(steps):
            part = i / steps
            at = real + (later - real) * part
            speed = (later - real) / (then - now) if then > now else 1
            label = f"{clock(at)}|{f'{speed:.0f}x faster' if speed >= 1.5 and later - real > 1 else ''}"
            states.append((round(now + (then - now) * part, 2), label))
    states.append((round(typing + length, 2), clock(times[-1][1]) + "|"))
    kept = []
    for at, label in states:
        if kept and (label == kept[-1][1] or at - kept[-1][0] < 0.25 and at < states[-1][0]):
            continue
        kept.append((at, label))
    for (at, label), (then, _) in zip(kept, kept[1:] + [(None, "")]):
        seconds, speed = label.split("|")
        svg = f'<text x="{width - MARGIN}" y="22" class="t r">{seconds}</text>'
        if speed:
            svg += f'<text x="{width - MARGIN - 52}" y="22" class="c3 t r">{speed}</text>'
        picture.add(at, then, svg)

    def percent(at):
        return f"{100 * at / total:.5g}%"

    classes, rules = {}, []
    groups = {True: {}, False: {}}
    for first, then, svg in picture.texts:
        bar = " class=\"t" in svg or " t r" in svg
        groups[bar].setdefault((first, then), []).append(svg)
    bodies = {True: [], False: []}
    for bar, group in groups.items():
        for (first, then), svgs in group.items():
            if first == 0 and then is None:
                bodies[bar].append("".join(svgs))
                continue
            name = classes.setdefault((first, then), f"v{len(classes)}")
            bodies[bar].append(f'<g class="{name}">{"".join(svgs)}</g>')
    for (first, then), name in classes.items():
        frames = "0%{visibility:hidden}" if first else ""
        frames += f"{percent(first)}{{visibility:visible}}"
        frames += f"{percent(then)},to{{visibility:hidden}}" if then is not None else "to{visibility:visible}"
        still = "" if then is None else "visibility:hidden;"
        rules.append(f"@keyframes {name}{{{frames}}}.{name}{{{still}animation-name:{name}}}")
    last = -picture.moves[-1][1] * CELL[1]
    if last:
        moves = "".join(f"{percent(at)}{{transform:translateY({-top * CELL[1]}px)}}" for at, top in picture.moves)
        rules.append(f"@keyframes m{{{moves}to{{transform:translateY({last}px)}}}}"
                     f".m{{transform:translateY({last}px);animation-name:m}}")
    colours = "".join(f".c{i}{{fill:{colour}}}" for i, colour in enumerate(COLOURS) if f"c{i}" in "".join(s for _, _, s in picture.texts))
    newline = "\n"
    return f'''<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" xml:space="preserve">
<title>{html.escape(shown)}: a recording of a terminal</title>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;fill:#c9d1d9;white-space:pre}}
.b{{font-weight:bold}}.f{{opacity:.6}}.t{{font-size:13px}}.r{{text-anchor:end}}{colours}
@media(prefers-reduced-motion:reduce){{*{{animation:none!important}}}}
g{{animation:{total:.2f}s step-end infinite}}
{newline.join(rules)}
</style>
<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="#0d1117" stroke="#484f58"/>
<circle cx="20" cy="17" r="5.5" fill="#484f58"/><circle cx="38" cy="17" r="5.5" fill="#484f58"/><circle cx="56" cy="17" r="5.5" fill="#484f58"/>
<text x="76" y="22" class="t c0" style="fill:#8b949e">{html.escape(title)}</text>
{newline.join(bodies[True])}
<svg x="{MARGIN}" y="{BAR}" width="{width - 2 * MARGIN}" height="{rows * CELL[1] + 4}"><g class="m"><g transform="translate(0,14)">
{newline.join(bodies[False])}
</g></g></svg>
</svg>
''', total


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[0], description="")
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", default="100x30")
    parser.add_argument("--seconds", type=float, default=32)
    parser.add_argument("--end", type=float, default=6)
    parser.add_argument("--hold", action="append", default=[])
    parser.add_argument("--shown")
    parser.add_argument("--title", default="")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    a = parser.parse_args()
    if not a.command:
        parser.error("give a command")
    columns, rows = (int(n) for n in a.size.split("x"))
    holds = [(pattern, float(pause)) for pattern, pause in (hold.rsplit("=", 1) for hold in a.hold)]
    pieces, code = record(a.command, columns, rows)
    if code:
        sys.exit(f"record.py: the command ended with exit code {code}, so no picture was made; its output:\n"
                 + b"".join(data for _, data in pieces).decode("utf-8", "replace"))
    shown = a.shown or shlex.join(a.command)
    parts, length = shorten(pieces, a.seconds - a.end - typing_seconds(shown), holds)
    svg, total = draw(parts, length, columns, rows, shown, a.title, a.end)
    with open(a.out, "w", encoding="utf-8") as file:
        file.write(svg)
    print(f"{a.out}: {total:.1f} s, {len(svg.encode()) / 1024:.1f} KB, of a run of {pieces[-1][0] if pieces else 0:.1f} s")


if __name__ == "__main__":
    main()
