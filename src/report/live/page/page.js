"use strict";
// Rows of a run: iter, loss, lr, grad_norm, tokens, seconds, tok_per_s, mfu, wait_ms, ms.
const ITER = 0, LOSS = 1, LR = 2, NORM = 3, TOKENS = 4, SECONDS = 5, SPEED = 6, MFU = 7, WAIT = 8, MS = 9;
// The same colours as those of `lockstep plot`.
const COLOURS = ["#2f7fd6", "#e8873a", "#2f9e5b", "#b05cc4", "#d1495b", "#1fa3a8", "#9a7b2d", "#7a6ff0"];
const LINE = 1.8, DASH = 9, MOST_RANKS = 16; // MOST_RANKS: lines of a run in one picture
const $ = id => document.getElementById(id);
const none = v => v === null || v === undefined;
const digits = (v, n) => String(+v.toPrecision(n));
// A number with the largest unit below it: of counts, or of seconds.
const count = (v, n = 4) => {
  const unit = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]].find(u => Math.abs(v) >= (u[0] === 1e3 ? 1e4 : u[0]));
  return unit ? digits(v / unit[0], n) + unit[1] : digits(v, n);
};
const duration = v => v >= 7200 ? digits(v / 3600, 3) + " h" : v >= 120 ? digits(v / 60, 3) + " min" : digits(v, 3) + " s";
const milliseconds = (v, n = 3) => v >= 1000 ? digits(v / 1000, n) + " s" : digits(v, n) + " ms";
const percent = (v, n = 3) => digits(v, n) + "%";
const small = (v, n = 4) => v !== 0 && Math.abs(v) < 0.001 ? v.toExponential(n < 4 ? n - 1 : 1) : digits(v, n);
const size = v => { // in powers of 1000, as the other commands print it
  const unit = [[1e12, "TB", 2], [1e9, "GB", 2], [1e6, "MB", 1], [1e3, "kB", 1]].find(u => v >= u[0]);
  return unit ? (v / unit[0]).toFixed(unit[2]) + " " + unit[1] : v + " bytes";
};
const AXES = {
  0: { name: "iteration", text: v => `iteration ${v}`, tick: v => count(v, 6) },
  4: { name: "tokens", text: v => `${count(v)} tokens`, tick: v => count(v, 6) },
  5: { name: "time", text: v => `${duration(v)} of training`, tick: duration },
};
const CHARTS = [
  { id: "loss", name: "Loss", column: LOSS, text: (v, n = 4) => digits(v, n), log: true, wide: true, evals: true },
  { id: "speed", name: "Tokens per second", column: SPEED, text: (v, n = 3) => count(v, n) },
  { id: "mfu", name: "Share of the peak (MFU)", column: MFU, times: 100, text: percent },
  { id: "norm", name: "Gradient norm", column: NORM, text: small, log: true },
  { id: "lr", name: "Learning rate", column: LR, text: small, exact: true },
  { id: "ms", name: "Time per step", column: MS, text: milliseconds },
  { id: "wait", name: "Wait of rank 0 per step", column: WAIT, text: milliseconds },
  { id: "ranks", name: "Wait of each rank, share of a step", text: percent, ranks: row => row[3] && row[4] && row[4].map((w, k) => 100 * w / (w + row[3][k])) },
  { id: "memory", name: "Memory of each rank", text: size, ranks: row => row[5] },
];
const NOTHING = () => ({ points: [], evals: [], marks: [], ranks: [], samples: [], config: {}, host: {}, end: null, state: "" });
const runs = [];
let range = null, hover = null, drag = null, due = false, ready = 0; // ready: the time from which show() may be called again
const element = (tag, text, to) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text; // never as markup: names may hold any characters
  if (to) to.append(e);
  return e;
};
const axis = () => Number(document.querySelector("#axis input:checked").value);
const narrow = () => innerWidth < 600;
const colour = i => COLOURS[i % COLOURS.length];
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function take(message) {
  if (message.kind === "runs") {
    runs.length = Math.min(runs.length, message.names.length);
    message.names.forEach((name, i) => { runs[i] = Object.assign(runs[i] || { shown: true, ...NOTHING() }, { name }); });
    showRuns();
    showSamples();
  } else {
    const run = runs[message.run];
    if (!run) return;
    if (message.kind === "run") { Object.assign(run, NOTHING()); showSamples(); }
    if (message.kind === "about") Object.assign(run, { config: message.config || {}, host: message.host || {}, end: message.end, state: message.state });
    if (message.kind === "points") run.points.push(...message.rows);
    if (message.kind === "evals") run.evals.push(...message.rows);
    if (message.kind === "marks") run.marks.push(...message.rows);
    if (message.kind === "ranks") run.ranks = message.rows;
    if (message.kind === "samples") { run.samples = message.rows; showSamples(); }
  }
  if (due) return;
  due = true;
  setTimeout(() => requestAnimationFrame(() => { due = false; show(); }), Math.max(0, ready - performance.now()));
}

// --- curves: points are [x, y, earlier curves that have the same point] ---

function pointsOf(rows, column, times = 1) {
  const x = axis(), out = [];
  for (const row of rows) if (!none(row[column]) && !none(row[x])) out.push([row[x], times * row[column], 0]);
  return out;
}

// A moving mean with exponential weights, without a bias at the start.
function smooth(points) {
  const share = Number($("smooth").value);
  let mean = 0, weight = 0;
  return points.map(p => {
    mean = share * mean + (1 - share) * p[1];
    weight = share * weight + (1 - share);
    return [p[0], mean / weight, p[2]];
  });
}

// Count for each point the earlier curves that have the same one. Curves that begin with another point are different.
function countEqual(all) {
  all.forEach((mine, i) => {
    for (const theirs of all.slice(0, i)) {
      if (!mine.length || !theirs.length || mine[0][0] !== theirs[0][0] || mine[0][1] !== theirs[0][1]) continue;
      let k = 0;
      for (const p of mine) {
        while (k < theirs.length && theirs[k][0] < p[0]) k++;
        if (k < theirs.length && theirs[k][0] === p[0] && theirs[k][1] === p[1]) p[2]++;
      }
    }
  });
}

// A line for each rank, paler with its number if there are several runs: rows of ranks have tokens and seconds in their second and third column.
function rankCurves(run, i, values) {
  const x = axis() === TOKENS ? 1 : axis() === SECONDS ? 2 : 0, lines = [];
  for (const row of run.ranks) (values(row) || []).slice(0, MOST_RANKS).forEach((value, k) => {
    if (!lines[k]) lines[k] = { i: runs.length === 1 ? k : i, alpha: runs.length === 1 ? 1 : 1 / (1 + 0.7 * k), name: `${runs.length > 1 ? run.name + " " : ""}rank ${k}`, raw: [], line: [], evals: [], marks: [] };
    if (Number.isFinite(value)) lines[k].line.push([row[x], value, 0]);
  });
  return lines;
}

const hasEval = e => !none(e[2]);
function curvesOf(chart) {
  if (chart.ranks) {
    const lines = runs.flatMap((run, i) => run.shown ? rankCurves(run, i, chart.ranks) : []);
    countEqual(lines.map(line => line.line));
    return lines;
  }
  const x = axis(), at = x === TOKENS ? 4 : x === SECONDS ? 5 : 0;
  const curves = runs.map((run, i) => ({ run, i })).filter(c => c.run.shown).map(({ run, i }) => ({
    i, name: runs.length > 1 ? run.name : "", raw: pointsOf(run.points, chart.column, chart.times), marks: marksOf(run, x),
    evals: chart.evals ? run.evals.filter(hasEval).map(e => [e[at], e[2], 0, e[6]]) : [] }));
  countEqual(curves.map(c => c.raw));
  countEqual(curves.map(c => c.evals));
  const exact = chart.exact || Number($("smooth").value) === 0; // a schedule has no noise
  for (const c of curves) c.line = exact ? c.raw : smooth(c.raw);
  if (exact) for (const c of curves) c.raw = [];
  return curves;
}

const isLost = m => m[1] === "skip" || m[1] === "rollback"; // a step that was not finite
// Where the run was resumed, or lost a step: [place on the axis, kind].
function marksOf(run, x) {
  return run.marks.filter(m => m[1] === "resume" || isLost(m)).map(m => [x === ITER ? m[0] : (pointFrom(run.points, m[0]) || [])[x], m[1]]).filter(m => !none(m[0]));
}

// The first point from iteration `iter` on, or the last one.
function pointFrom(points, iter) {
  let low = 0, high = points.length - 1;
  while (low < high) { const mid = (low + high) >> 1; if (points[mid][ITER] < iter) low = mid + 1; else high = mid; }
  return points[low];
}

// --- drawing ---

function ticks(low, high, n) {
  const span = high - low, base = 10 ** Math.floor(Math.log10(span / n));
  const step = [1, 2, 5, 10].map(m => m * base).find(s => s * (n + 1) >= span), out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && out.length < 40; k++) out.push(+(k * step).toPrecision(10));
  return out;
}

function ticksX(low, high, n) {
  if (axis() !== SECONDS) return ticks(low, high, n);
  const unit = high >= 7200 ? 3600 : high >= 120 ? 60 : 1;
  return ticks(low / unit, high / unit, n).map(t => t * unit);
}

// Round losses on a logarithmic axis: 1, 2 and 5 times the powers of ten if it is long.
function ticksLog(low, high, n) {
  if (high - low < 1) return ticks(10 ** low, 10 ** high, n).map(Math.log10);
  const out = [];
  for (let k = Math.floor(low); k <= high; k++) for (const m of high - low > 4 ? [1] : [1, 2, 5]) out.push(k + Math.log10(m));
  return out.filter(t => t >= low && t <= high);
}

// Bounds of the visible points. The lowest and the highest 1% of all runs' points may leave the picture: a slow step, or a run that diverged, must not flatten
// the others. A smoothed line and evaluations leave it only if they are very far away.
function boundsOf(curves, log) {
  const to = v => log ? Math.log10(v) : v, inside = p => (!range || (p[0] >= range[0] && p[0] <= range[1])) && (!log || p[1] > 0);
  const smooth = [], raw = [];
  for (const c of curves) {
    for (const p of c.line) if (inside(p)) smooth.push(p);
    for (const p of c.evals) if (inside(p)) smooth.push(p);
    for (const p of c.raw.length ? c.raw : c.line) if (inside(p)) raw.push(p);
  }
  if (!smooth.length) return null;
  const all = Float64Array.from(raw.length ? raw : smooth, p => to(p[1])).sort(), few = Math.floor(all.length / 100);
  let x0 = Infinity, x1 = -Infinity, y0 = all[few], y1 = all[all.length - 1 - few];
  const far = 10 * (y1 - y0), low = y0 - far, high = y1 + far;
  for (const p of smooth) {
    const y = to(p[1]);
    x0 = Math.min(x0, p[0]);
    x1 = Math.max(x1, p[0]);
    if (few === 0 || (y >= low && y <= high)) { y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
  }
  for (const curve of curves) for (const m of curve.marks) { x0 = Math.min(x0, m[0]); x1 = Math.max(x1, m[0]); }
  if (range) [x0, x1] = range;
  if (x1 === x0) x1 = x0 + 1;
  if (y1 - y0 <= 0.002 * Math.max(Math.abs(y0), Math.abs(y1))) { y0 -= Math.abs(y0) * 0.1 || (log ? 0.5 : 0); y1 += Math.abs(y1) * 0.1 || 0.5; } // a constant
  return { x0, x1, y0: y0 - 0.03 * (y1 - y0), y1: y1 + 0.03 * (y1 - y0) };
}

function prepare(chart) {
  chart.isLog = Boolean(chart.log && $("log").checked);
  chart.curves = curvesOf(chart);
  chart.bounds = boundsOf(chart.curves, chart.isLog);
  chart.period = 1;
  for (const c of chart.curves) for (const points of [c.line, c.evals]) for (const p of points) chart.period = Math.max(chart.period, p[2] + 1);
}

// Of many points, the lowest and the highest of each column of pixels.
function thin(points, place) {
  if (points.length < 2000) return points;
  const out = [], columns = points.map(p => Math.floor(place(p)[0]));
  for (let i = 0, next; i < points.length; i = next) {
    let low = i, high = i;
    for (next = i + 1; next < points.length && columns[next] === columns[i] && points[next][2] === points[i][2]; next++) {
      if (points[next][1] < points[low][1]) low = next;
      if (points[next][1] > points[high][1]) high = next;
    }
    out.push(points[Math.min(low, high)]);
    if (low !== high) out.push(points[Math.max(low, high)]);
  }
  return out;
}

// A line in stretches. Where earlier curves have the same points it is dashed, and each curve has its part of the dashes' period.
function stroke(c, chart, points, place) {
  const visible = thin(chart.isLog ? points.filter(p => p[1] > 0) : points, place);
  const below = k => Math.min(visible[k][2], visible[k + 1][2]);
  for (let i = 0, end; i + 1 < visible.length; i = end) {
    c.beginPath();
    c.moveTo(...place(visible[i]));
    for (end = i + 1; ; end++) {
      c.lineTo(...place(visible[end]));
      if (end + 1 >= visible.length || below(end) !== below(i)) break;
    }
    c.setLineDash(below(i) ? [DASH, DASH * (chart.period - 1)] : []);
    c.lineDashOffset = -DASH * below(i);
    c.stroke();
  }
  c.setLineDash([]);
}

// Dots that would cover each other are left out. Where curves coincide their dots take turns.
function drawDots(c, chart, curve, place) {
  const radius = narrow() ? 2.4 : 3.5, between = narrow() ? 16 : 12, card = css("--card");
  let last = -Infinity, k = 0;
  for (const p of curve.line.length === 1 ? [...curve.line, ...curve.evals] : curve.evals) { // a line of one point shows nothing
    if (chart.isLog && p[1] <= 0) continue;
    const [x, y] = place(p);
    if (x - last < between && !p[3]) continue;
    last = x;
    if (p[2] && k++ % chart.period !== p[2]) continue;
    if (!p[2]) k++;
    c.beginPath();
    c.arc(x, y, p[3] ? radius + 1 : radius, 0, 7);
    c.fillStyle = p[3] ? card : colour(curve.i);
    c.strokeStyle = p[3] ? colour(curve.i) : card;
    c.lineWidth = p[3] ? LINE : 1.2;
    c.fill();
    c.stroke();
  }
}

function drawAxes(c, chart, box, width, height) {
  const { x0, x1 } = chart.bounds;
  c.strokeStyle = css("--rule");
  c.fillStyle = css("--dim");
  c.lineWidth = 1;
  c.textAlign = "right";
  for (const t of chart.ticks) {
    const y = Math.round(box.y(t)) + 0.5;
    c.beginPath(); c.moveTo(box.left, y); c.lineTo(box.right, y); c.stroke();
    c.fillText(chart.tick(t), box.left - 7, y + 4);
  }
  c.textAlign = "center";
  for (const t of ticksX(x0, x1, width > 600 ? 8 : 4)) {
    const text = AXES[axis()].tick(t), half = c.measureText(text).width / 2;
    c.fillText(text, Math.min(box.x(t), width - half), height - 5);
  }
}

// A line for a resume, with the word if it has room; a short red one for a lost step.
function drawMarks(c, chart, curve, box) {
  const dim = runs.length > 1 ? colour(curve.i) : css("--dim"), bad = css("--bad");
  let last = -Infinity;
  for (const [at, kind] of curve.marks) {
    if (at < chart.bounds.x0 || at > chart.bounds.x1) continue;
    const x = box.x(at), lost = kind !== "resume";
    if (lost && x - last < 1) continue;
    c.setLineDash(lost ? [] : [2, 3]);
    c.lineWidth = lost ? 2 : 1.2;
    c.strokeStyle = c.fillStyle = lost ? bad : dim;
    c.beginPath(); c.moveTo(x, lost ? box.bottom - 10 : box.top); c.lineTo(x, box.bottom); c.stroke();
    if (lost) last = x;
    else if (chart.wide && !chart.labels.some(other => Math.abs(other - x) < 50)) { chart.labels.push(x); c.textAlign = x > box.right - 60 ? "right" : "left"; c.fillText(kind, x + (c.textAlign === "left" ? 4 : -4), box.top + 10); }
  }
  c.setLineDash([]);
}

function paint(chart) {
  const canvas = chart.canvas, width = canvas.clientWidth, height = canvas.clientHeight, scale = devicePixelRatio || 1;
  if (!width) return;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const c = canvas.getContext("2d"), bounds = chart.bounds;
  c.scale(scale, scale);
  c.font = "12px system-ui, sans-serif";
  c.lineJoin = "round";
  chart.view = null;
  if (!bounds) { c.fillStyle = css("--dim"); c.fillText(range ? "no values in this part" : "no values yet", 12, 24); read(chart); return; }
  const { x0, x1, y0, y1 } = bounds, n = height > 250 ? 6 : 4;
  chart.ticks = chart.isLog ? ticksLog(y0, y1, n) : ticks(y0, y1, n);
  const most = Math.max(...chart.ticks.map(Math.abs)), needed = 1 + Math.ceil(Math.log10(most / (chart.ticks[1] - chart.ticks[0])) - 1e-9); // digits
  chart.tick = t => chart.isLog ? chart.text(10 ** t) : chart.text(t, needed > 0 ? needed : 1);
  const left = 12 + Math.max(...chart.ticks.map(t => c.measureText(chart.tick(t)).width), 24), right = width - 10, top = 6, bottom = height - 22;
  const box = { left, right, top, bottom, x: x => left + (right - left) * (x - x0) / (x1 - x0), y: y => bottom - (bottom - top) * (y - y0) / (y1 - y0) };
  const place = p => [box.x(p[0]), box.y(chart.isLog ? Math.log10(p[1]) : p[1])];
  chart.view = { left, right, x0, x1 };
  drawAxes(c, chart, box, width, height);
  c.save();
  c.beginPath(); c.rect(left - 6, top - 6, right - left + 12, bottom - top + 12); c.clip();
  chart.labels = []; // where marks have a word, so that words don't overlap
  for (const curve of chart.curves) drawMarks(c, chart, curve, box);
  c.globalAlpha = 0.35;
  c.lineWidth = 1;
  for (const curve of chart.curves) { c.strokeStyle = colour(curve.i); stroke(c, chart, curve.raw, place); }
  c.globalAlpha = 1;
  for (const curve of chart.curves) { c.globalAlpha = curve.alpha || 1; c.strokeStyle = colour(curve.i); c.lineWidth = LINE; stroke(c, chart, curve.line, place); }
  c.globalAlpha = 1;
  for (const curve of chart.curves) { c.strokeStyle = colour(curve.i); c.lineWidth = 1; stroke(c, chart, curve.evals, place); }
  for (const curve of chart.curves) drawDots(c, chart, curve, place);
  c.restore();
  if (drag && drag.chart === chart) { c.fillStyle = "rgba(47,127,214,.2)"; c.fillRect(Math.min(drag.from, drag.to), top, Math.abs(drag.to - drag.from), bottom - top); }
  if (hover !== null && hover >= x0 && hover <= x1) { c.strokeStyle = css("--dim"); c.lineWidth = 1; c.beginPath(); c.moveTo(box.x(hover), top); c.lineTo(box.x(hover), bottom); c.stroke(); }
  read(chart);
}

// The values at the pointer, or the newest ones, below the picture.
const nearest = (points, x) => points.reduce((best, p) => best === null || Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best, null);
function read(chart) {
  const at = AXES[axis()].text, pick = points => hover === null ? points[points.length - 1] : nearest(points, hover);
  chart.read.replaceChildren();
  for (const curve of chart.curves) {
    const p = pick(curve.raw.length ? curve.raw : curve.line), e = pick(curve.evals);
    if (!p) continue;
    const span = element("span", undefined, chart.read);
    if (chart.curves.length > 1) Object.assign(element("i", undefined, span).style, { background: colour(curve.i), opacity: curve.alpha || 1 });
    span.append(`${curve.name ? curve.name + ": " : ""}${chart.text(p[1])} at ${at(p[0])}${e ? `, ${e[3] ? "final " : ""}validation ${chart.text(e[1])} at ${at(e[0])}` : ""}`);
  }
}

// --- runs, tables, texts ---

const best = run => run.evals.reduce((b, e) => hasEval(e) && (!b || e[2] < b[2]) ? e : b, null);
const newestEval = run => run.evals[run.evals.length - 1];
const final = run => run.evals.filter(e => e[6] && hasEval(e) && !(last(run) && last(run)[ITER] >= e[0])).pop(); // not that of an earlier end
const last = run => run.points[run.points.length - 1];
const value = (v, text) => none(v) ? "-" : text ? text(v) : String(v);
const stateOf = run => run.state || "removed, or no record yet";
const setText = (e, text) => { if (e.textContent !== text) e.textContent = text; }; // a new text ends a selection

// Settings in which runs differ, those with the most values first.
function differing() {
  const known = runs.filter(r => Object.keys(r.config).length), keys = [...new Set(known.flatMap(r => Object.keys(r.config)))].filter(k => k !== "kind");
  const values = new Map(keys.map(k => [k, new Set(known.map(r => JSON.stringify(r.config[k]))).size]));
  return keys.filter(k => values.get(k) > 1).sort((a, b) => values.get(b) - values.get(a));
}

function showRuns() {
  const box = $("runs");
  box.replaceChildren();
  runs.forEach((run, i) => {
    const label = element("label", undefined, box), check = element("input", undefined, label), swatch = element("span", undefined, label);
    check.type = "checkbox";
    check.checked = run.shown;
    check.onchange = () => { run.shown = check.checked; show(); };
    swatch.className = "swatch";
    swatch.style.background = swatch.style.borderColor = colour(i);
    element("b", run.name, label);
    run.about = element("small", "", label);
    const news = element("small", undefined, label);
    run.news = element("span", "", news);
    run.lost = element("span", "", news);
    run.lost.className = "bad";
  });
}

// Each run's label: how it differs from the others, and its newest numbers.
function labelRuns() {
  const keys = differing().filter(k => k !== "version" && k !== "parameters");
  const ranks = new Set(runs.map(r => r.host.world_size).filter(n => n)).size > 1;
  for (const run of runs) {
    const parts = keys.slice(0, 4).map(k => `${k} ${none(run.config[k]) ? "-" : typeof run.config[k] === "object" ? JSON.stringify(run.config[k]) : run.config[k]}`);
    if (keys.length > 4) parts.push(`and ${keys.length - 4} more`);
    if (ranks && run.host.world_size) parts.push(`${run.host.world_size} rank${run.host.world_size > 1 ? "s" : ""}`);
    setText(run.about, parts.join(", "));
    run.about.hidden = !parts.length;
    const p = last(run), e = final(run) || best(run), newest = newestEval(run), lost = run.marks.filter(isLost).length, news = [stateOf(run)];
    if (p) news.push(`iteration ${p[ITER]}`);
    if (p && !none(p[LOSS])) news.push(`loss ${digits(p[LOSS], 4)}`);
    if (newest && !hasEval(newest)) news.push(`validation nan at iteration ${newest[0]}`);
    else if (e) news.push(`${e[6] ? "final" : "best"} validation ${digits(e[2], 4)}`);
    if (p && !none(p[SPEED])) news.push(`${count(p[SPEED], 3)} tokens/s`);
    setText(run.news, news.join(" · "));
    setText(run.lost, lost ? ` · ${lost} not finite` : "");
  }
}

// Only cells with another text change, so that the others can be selected.
function table(id, rows) {
  const body = $(id);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, k) => {
    const tr = body.rows[k] || element("tr", undefined, body);
    tr.className = row.differs ? "differs" : "";
    while (tr.cells.length > row.cells.length) tr.deleteCell(-1);
    row.cells.forEach((cell, i) => setText(tr.cells[i] || element(row.head ? "th" : "td", "", tr), none(cell) ? "-" : typeof cell === "object" ? JSON.stringify(cell) : String(cell)));
  });
}

function showTables() {
  const newest = (column, text) => r => last(r) && value(last(r)[column], text);
  const facts = [["state", stateOf], ["last iteration", newest(ITER)], ["last loss", newest(LOSS, v => digits(v, 6))],
    ["best validation loss", r => best(r) && `${digits(best(r)[2], 6)} at iteration ${best(r)[0]}`],
    ["final validation loss", r => final(r) && `${digits(final(r)[2], 6)} at iteration ${final(r)[0]}`],
    ["tokens", newest(TOKENS, v => count(v))], ["time of all steps", newest(SECONDS, duration)],
    ["tokens/s of the last step", newest(SPEED, v => count(v, 3))], ["share of the peak (MFU) of the last step", newest(MFU, v => (100 * v).toFixed(1) + "%")],
    ["ranks x threads", r => `${value(r.host.world_size)} x ${value(r.host.threads)}`], ["host", r => r.host.host], ["processor", r => r.host.cpu],
    ["memory of all ranks", r => r.end && size(r.end.memory_bytes)], ["micro-batches of each rank since the last start", r => r.end && Array.isArray(r.end.micro_batches) && r.end.micro_batches.join(", ")],
    ["started", r => r.host.time]];
  table("facts", [{ head: true, cells: ["", ...runs.map(r => r.name)] }, ...facts.map(f => ({ cells: [f[0], ...runs.map(r => f[1](r))] }))]);
  const events = runs.flatMap(r => r.marks.map(m => ({ cells: [r.name, m[0], m[1], m[2]] })));
  for (const r of runs) {
    if (best(r)) events.push({ cells: [r.name, best(r)[0], "best", digits(best(r)[2], 6)] });
    if (final(r)) events.push({ cells: [r.name, final(r)[0], "final", digits(final(r)[2], 6)] });
  }
  events.sort((a, b) => b.cells[1] - a.cells[1]);
  table("events", [{ head: true, cells: ["run", "iteration", "event", ""] }, ...events.slice(0, 300)]);
  const keys = [...new Set(runs.flatMap(r => Object.keys(r.config)))].filter(k => k !== "kind"), different = new Set(differing());
  const rows = keys.map(k => ({ cells: [k, ...runs.map(r => r.config[k])], differs: different.has(k) }));
  rows.sort((a, b) => b.differs - a.differs);
  table("settings", [{ head: true, cells: ["setting", ...runs.map(r => r.name)] }, ...rows]);
}

// The newest text first. Only a new text replaces them, so that one can be selected and copied.
function showSamples() {
  $("samples").replaceChildren();
  $("texts").hidden = !runs.some(r => r.samples.length);
  for (const run of runs.filter(r => r.samples.length)) {
    const column = element("div", undefined, $("samples"));
    for (const [iter, text] of [...run.samples].reverse()) {
      element("div", `${runs.length > 1 ? run.name + ", " : ""}iteration ${iter}`, column).className = "read";
      element("pre", text, column);
    }
  }
}

function show() {
  const began = performance.now();
  $("share").textContent = $("smooth").value;
  $("reset").hidden = range === null;
  CHARTS.forEach(prepare);
  CHARTS.forEach(paint);
  CHARTS[0].legend.textContent = legendOfLoss();
  labelRuns();
  showTables();
  document.title = runs.length === 1 ? `${runs[0].name} - lockstep` : `${runs.length} runs - lockstep`;
  const now = performance.now();
  ready = now + Math.max(250, 4 * (now - began)); // leave time for all else
}

// The key of the loss. Other pictures need none.
function legendOfLoss() {
  const evals = runs.some(r => r.evals.some(hasEval));
  return [evals && "line: training", evals && "dots: validation", runs.some(final) && "ring: final checkpoint", runs.some(r => r.marks.some(isLost)) && "red: not finite"].filter(t => t).join(" · ");
}

for (const chart of CHARTS) {
  const card = element("section", undefined, $("charts")), head = element("div", undefined, card);
  card.className = chart.wide ? "card wide" : "card";
  head.className = "head";
  element("h2", chart.name, head);
  chart.legend = element("span", "", head);
  chart.legend.className = "legend";
  chart.canvas = element("canvas", undefined, card);
  chart.canvas.id = chart.id;
  chart.canvas.setAttribute("role", "img");
  chart.canvas.setAttribute("aria-label", chart.name);
  chart.read = element("div", "", card);
  chart.read.className = "read";
  const at = event => event.clientX - chart.canvas.getBoundingClientRect().left;
  const valueAt = x => { const v = chart.view; return v.x0 + (v.x1 - v.x0) * (Math.min(Math.max(x, v.left), v.right) - v.left) / (v.right - v.left); };
  chart.canvas.onpointerdown = event => {
    if (!chart.view) return;
    event.preventDefault(); // no text is selected
    chart.canvas.setPointerCapture(event.pointerId); // the drag may leave the picture
    drag = { chart, from: at(event), to: at(event) };
  };
  chart.canvas.onpointermove = event => { if (!chart.view) return; hover = valueAt(at(event)); if (drag) drag.to = at(event); CHARTS.forEach(paint); };
  chart.canvas.onpointerleave = event => { if (event.pointerType !== "touch") hover = null; drag = null; CHARTS.forEach(paint); };
  chart.canvas.onpointerup = () => {
    if (drag && chart.view && Math.abs(drag.to - drag.from) > 5) range = [valueAt(Math.min(drag.from, drag.to)), valueAt(Math.max(drag.from, drag.to))];
    drag = null;
    show();
  };
  chart.canvas.ondblclick = () => { range = null; show(); };
}
const theme = dark => { document.documentElement.dataset.theme = dark ? "dark" : "light"; show(); };
const isDark = () => document.documentElement.dataset.theme === "dark";
const reset = () => { range = null; show(); };
const state = text => { setText($("state"), text); $("state").classList.toggle("live", text === "connected"); };
$("axis").onchange = reset;
$("log").onchange = $("smooth").oninput = show;
$("reset").onclick = reset;
$("theme").onclick = () => theme(!isDark());
addEventListener("resize", show);
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const smoother = $("smooth"), axes = [...document.querySelectorAll("#axis input")];
  if (event.key === "x") { axes[(axes.findIndex(a => a.checked) + 1) % axes.length].checked = true; reset(); }
  else if (event.key === "l") { $("log").checked = !$("log").checked; show(); }
  else if (event.key === "s") { smoother.value = Math.min(0.99, 1 - (1 - smoother.value) / 2); show(); }
  else if (event.key === "a") { smoother.value = Math.max(0, 1 - (1 - smoother.value) * 2); show(); }
  else if (event.key === "r") reset();
  else if (event.key === "d") theme(!isDark());
});
theme(matchMedia("(prefers-color-scheme: dark)").matches);

const data = $("data").textContent;
let source = null, silence = 25000; // ms without an event; the server sends a sign every 10 s
if (data) {
  JSON.parse(data).forEach(take);
  state("as of the time this file was written");
} else {
  let timer = 0, ended = false;
  const fail = () => state("lockstep watch doesn't answer; trying again");
  const close = () => { clearTimeout(timer); if (source) source.close(); source = null; };
  const heard = () => { clearTimeout(timer); timer = setTimeout(() => { fail(); connect(); }, silence); };
  const connect = () => { // only while the page is visible: a browser has few connections to one server
    close();
    if (document.hidden || ended) return;
    source = new EventSource("events");
    source.onopen = () => { state("connected"); heard(); };
    source.onmessage = event => { heard(); take(JSON.parse(event.data)); };
    source.addEventListener("sign", heard);
    source.addEventListener("end", () => { ended = true; close(); state("closed for a newer page; reload to continue"); });
    source.onerror = fail;
    heard();
  };
  document.onvisibilitychange = connect;
  connect();
}
