#!/usr/bin/env python3
"""Draws the losses of runs as an SVG picture, from their metrics.jsonl:

    scripts/curve.py '1 rank=out/one/metrics.jsonl' '4 ranks=out/four/metrics.jsonl' >loss.svg

Each run has a line for its training loss and dots for its validation loss. Earlier runs have wider
lines, so that equal runs remain visible. Colours are readable on light and dark backgrounds.
"""
import json
import math
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 16, 44
COLOURS = ["#e8973a", "#2f7fd6", "#3f9b57", "#b05cc4"]
GREY = "#7a828b"


def losses(path):
    """(iteration, training loss) and (iteration, validation loss) of a run."""
    train, val = [], []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["kind"] == "train" and record["loss"] is not None:
                train.append((record["iter"], record["loss"]))
            elif record["kind"] == "eval" and record["val_loss"] is not None:
                val.append((record["iter"], record["val_loss"]))
    if len(train) < 2:
        sys.exit(f"{path}: a run of at least two iterations is needed")
    return train, val


def step_of(span):
    """A distance between marks: about six of them in `span`."""
    base = 10.0 ** math.floor(math.log10(span / 6))
    return next(base * m for m in (1, 2, 5, 10) if base * m * 6 >= span * 0.999)


def marks(low, high):
    step = step_of(high - low)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def picture(runs):
    points = [p for _, train, val in runs for p in train + val]
    last = max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    step = step_of(high - low) if high > low else 1.0
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step

    def at(point):
        x = LEFT + (WIDTH - LEFT - RIGHT) * point[0] / last
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - point[1]) / (high - low)
        return f"{x:.1f},{y:.1f}"

    def text(x, y, anchor, words):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           f'font-family="sans-serif" font-size="13" fill="{GREY}">']
    for y in marks(low, high):
        left, height = at((0, y)).split(",")
        out.append(f'<path d="M{left} {height}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity="0.3"/>')
        out.append(text(LEFT - 8, float(height) + 4, "end", f"{y:g}"))
    for x in marks(0, last):
        out.append(text(float(at((x, low)).split(",")[0]), HEIGHT - BOTTOM + 18, "middle", f"{x:g}"))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle", "iteration"))
    for i, (_, train, val) in enumerate(runs):
        colour, width = COLOURS[i % len(COLOURS)], 1.5 + 5.0 * (len(runs) - 1 - i)
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round" points="'
                   + " ".join(map(at, train)) + '"/>')
        for point in val:
            x, y = at(point).split(",")
            out.append(f'<circle cx="{x}" cy="{y}" r="{width / 2 + 2.5:.2f}" fill="{colour}"/>')
    x, y = WIDTH - RIGHT - 250, TOP + 18
    for i, (name, _, val) in enumerate(runs):
        colour, width = COLOURS[i % len(COLOURS)], 1.5 + 5.0 * (len(runs) - 1 - i)
        out.append(f'<path d="M{x} {y}h36" stroke="{colour}" stroke-width="{width}"/>')
        if val:
            out.append(f'<circle cx="{x + 54}" cy="{y}" r="{width / 2 + 2.5:.2f}" fill="{colour}"/>')
        out.append(text(x + 68, y + 4, "start", f"{name}: training, validation" if val else f"{name}: training"))
        y += 24
    return "\n".join(out + ["</svg>"])


def main():
    if len(sys.argv) < 2 or "=" not in "".join(sys.argv[1:2]):
        sys.exit(__doc__)
    runs = []
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        if not path:
            sys.exit(f"{argument}: NAME=METRICS.jsonl is expected")
        runs.append((name, *losses(path)))
    print(picture(runs))


main()
