#!/bin/sh
# scripts/record.py: a recorded command becomes a well-formed picture with its lines. record.sh SOURCE
set -eu
. "${0%/*}/../support.sh"
work_folder
record() { python3 -B "$1/scripts/record.py" --out="$work/picture.svg" --size=40x6 --seconds=5 sh -c "$2" >"$work/log" 2>&1; }

# Rewritten, erased, coloured and wrapped lines, a tab, and more lines than the terminal has rows.
record "$1" 'stty size; printf "old text\rnew\033[K\n\033[31mred & <b>\033[0m\tend\n"
    seq 100 108; printf "%045d\n" 7; printf "gone\033[2K\rlast\n"' || fail 'the recording'
python3 -B - "$1/scripts" "$work/picture.svg" <<'PYTHON' >"$work/python.log" 2>&1 || fail 'the picture'
import sys
import xml.etree.ElementTree as tree

sys.path.insert(0, sys.argv[1])
import record

svg = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[2]).getroot()
texts = {text.text: text for text in root.iter(svg + "text")}
for line in ["6 40", "new", "red & <b>", "100", "108", "0" * 40, "00007", "last"]:
    assert line in texts, (line, sorted(texts))
assert "old text" not in texts and "gone" not in texts, sorted(texts)
assert texts["red & <b>"].get("class") == "c1" and not texts["end"].get("class")
assert texts["end"].get("x") == f"{16 * record.CELL[0]:g}"
style = root.find(svg + "style").text
assert "infinite" in style and "@keyframes m{" in style and "@import" not in style and "url(" not in style

# A sequence that arrives in two pieces, and a character that does.
screen = record.Screen(10, 3)
for piece in [b"\x1b[3", b"2mgr\xc3", b"\xbcn\x1b[", b"0m."]:
    screen.write(piece)
assert screen.runs(0) == ((0, 4, "grün", (2, False, False)), (4, 1, ".", record.PLAIN)), screen.runs(0)

# A wait of 100 s is shortened, and one of half a second isn't.
pieces, length = record.shorten([(0.0, b"a\n"), (0.5, b"b\n"), (100.5, b"c\n")], 10, [])
assert abs(length - 10) < 0.1 and [real for _, real, _ in pieces] == [0.0, 0.5, 100.5], (length, pieces)
assert 0.5 <= pieces[1][0] - pieces[0][0] < 0.7, pieces
PYTHON

# A command that fails leaves no picture.
rm "$work/picture.svg"
! record "$1" 'echo why; exit 3' || fail 'a failed command was recorded'
grep -q 'exit code 3' "$work/log" && grep -q why "$work/log" && [ ! -e "$work/picture.svg" ] || fail 'its message'
