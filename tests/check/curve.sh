#!/bin/sh
# scripts/curve.py: a picture of two runs, and what it refuses. curve.sh SOURCE
set -eu
curve=$1/scripts/curve.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    exit 1
}

cat >"$work/run" <<'END'
{"kind":"config","n_layer":1}
{"kind":"eval","iter":0,"val_loss":4.5}
{"kind":"train","iter":0,"loss":4.25}
{"kind":"train","iter":1,"loss":3.5}
{"kind":"train","iter":2,"loss":null}
{"kind":"eval","iter":3,"val_loss":3}
END
"$curve" "one <&>=$work/run" "two=$work/run" >"$work/svg"
python3 - "$work/svg" <<'END'
import sys
from xml.dom.minidom import parse
svg = parse(sys.argv[1])
lines = [l.getAttribute("points").split() for l in svg.getElementsByTagName("polyline")]
assert len(lines) == 2 and lines[0] == lines[1] and len(lines[0]) == 2, lines
heights = [float(p.split(",")[1]) for p in lines[0]]
assert heights[0] < heights[1], "the higher loss is not above"
assert len(svg.getElementsByTagName("circle")) == 2 * 2 + 2, "a dot for each evaluation and in the legend"
texts = [t.firstChild.data for t in svg.getElementsByTagName("text")]
assert "one <&>: training, validation" in texts, texts
END
head -n 3 "$work/run" >"$work/short"
! "$curve" "x=$work/short" >/dev/null 2>"$work/err" || fail 'a run of one iteration was drawn'
grep -q 'at least two iterations' "$work/err" || fail 'no reason was given'
! "$curve" "$work/run" >/dev/null 2>&1 || fail 'a run without a name was drawn'
cmp -s "$1/docs/loss.svg" /dev/null && fail 'docs/loss.svg is empty'
python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$1/docs/loss.svg"
