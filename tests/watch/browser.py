"""Drives the page of `lockstep watch` in headless Chromium: browser.py CHROMIUM TOOL WORK [PICTURES]

Speaks Chromium's DevTools protocol over a pipe, so it needs Python alone. PICTURES is a folder that
gets screenshots to look at."""
import base64, fcntl, json, os, re, shutil, signal, subprocess, sys, time

chromium, tool, work = sys.argv[1:4]
pictures = sys.argv[4] if len(sys.argv) > 4 else None
patience = float(os.environ.get("LKS_TEST_PATIENCE") or 1)


class Browser:
    def __init__(self):
        (theirs_in, self.to), (self.come, theirs_out) = os.pipe(), os.pipe()
        theirs_in, theirs_out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (theirs_in, theirs_out))
        self.process = subprocess.Popen(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             f"--user-data-dir={work}/profile", "about:blank"], pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: (os.dup2(theirs_in, 3), os.dup2(theirs_out, 4)))
        os.close(theirs_in)
        os.close(theirs_out)
        self.n, self.rest, self.events, self.session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.come, 1 << 20)
                assert more, "the browser has ended"
                self.rest += more
            text, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.n:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def ask(self, expression):
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def wait(self, expression, what, seconds=20.0):
        end = time.monotonic() + seconds * patience
        while not self.ask(expression):
            assert time.monotonic() < end, f"{what}: never; it is {self.ask('document.body.innerText')}"
            time.sleep(0.05)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && typeof runs !== 'undefined'", url)

    def forget(self):
        """Leave the page, whose connection may fail now, and what it complained of."""
        self.call("Page.navigate", url="about:blank")
        self.wait("document.URL === 'about:blank' && document.readyState === 'complete'", "an empty page")
        self.events.clear()

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def key(self, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, name):
        if pictures:
            with open(f"{pictures}/{name}.png", "wb") as out:
                out.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def complaints(self):
        self.call("Runtime.evaluate", expression="0")
        return [e for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
                or (e.get("method") == "Runtime.consoleAPICalled" and e["params"]["type"] in ("error", "warning"))]


def append(folder, record):
    with open(folder + "/metrics.jsonl", "a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


def train(folder, i, loss):
    append(folder, {"kind": "train", "iter": i, "loss": loss, "lr": 1e-3, "grad_norm": 1.0 + i % 7, "tokens": 1000 * (i + 1), "ms": 100, "tok_per_s": 10000 + i % 13,
                    "mfu": 0.5, "comm_exposed_ms": i % 5})


def run(name, steps, rate, ended):
    folder = f"{work}/{name}"
    os.mkdir(folder)
    append(folder, {"kind": "config", "version": "0.1.0", "n_layer": 2, "learning_rate": rate, "note": "<img src=x onerror=alert(1)>"})
    start = {"kind": "host", "schema": 1, "time": "2026-11-22T12:00:00Z", "host": "somewhere", "world_size": 2, "threads": 1, "cpu": "a processor"}
    append(folder, start)
    for i in range(steps):
        if not ended and i == 150:
            append(folder, start | {"resumed_iter": 150})
        if i % 50 == 0:
            append(folder, {"kind": "eval", "iter": i, "train_loss": 4 * 0.99 ** i + 1, "val_loss": 4 * 0.99 ** i + 1.1 + rate,
                            "sample": f"<script>alert({i})</script>\n    a line of {name}, far in"})
            append(folder, {"kind": "checkpoint", "iter": i, "path": f"ckpt-{i:08d}", "params_hash": "0" * 16})
        train(folder, i, 4 * 0.99 ** i + 1 + rate * (i * 7919 % 13 - 6))
    with open(folder + "/ranks.jsonl", "w", encoding="utf-8") as out:
        for i in range(0, steps, 50):
            compute = {} if i == 50 else {"compute_ms": [90, 75]} # a line that lacks it has no share
            out.write(json.dumps({"iter": i, "steps": 50} | compute | {"wait_ms": [10, 25], "memory_bytes": [50000000 + i * 1000, 70000000]}) + "\n")
    if ended:
        append(folder, {"kind": "final", "iter": steps, "train_loss": 1.5, "val_loss": 1.61234567})
        append(folder, {"kind": "host", "micro_batches": [4, 4], "memory_bytes": 123456})
    return folder


# Records how a chart is drawn: lines as [colour, width, opacity, dashes], dots as [x, radius].
RECORD = """(chart => {
  const p = CanvasRenderingContext2D.prototype, kept = [p.stroke, p.arc, p.fillText], out = { lines: [], dots: [], texts: [] };
  p.stroke = function () { out.lines.push([this.strokeStyle, Math.round(100 * this.lineWidth) / 100, this.globalAlpha, this.getLineDash()]); kept[0].call(this); };
  p.arc = function (x, y, r, ...more) { out.dots.push([x, r]); kept[1].call(this, x, y, r, ...more); };
  p.fillText = function (text, ...more) { out.texts.push(text); kept[2].call(this, text, ...more); };
  paint(chart);
  [p.stroke, p.arc, p.fillText] = kept;
  return out;
})(CHARTS[%d])"""

one, two = run("<b>one", 300, 0.01, False), run("two", 200, 0.02, True)
browser = Browser()
server = subprocess.Popen([tool, "watch", "--port=0", one, two], stdout=subprocess.PIPE, text=True)
try:
    url = server.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url), url
    browser.size(1300, 1500)
    browser.open(url)
    browser.wait("runs.length === 2 && runs[0].points.length === 300 && runs[1].points.length === 200", "all points")
    browser.wait("document.getElementById('state').textContent === 'connected'", "the connection")
    browser.wait("!due && document.body.innerText.includes('123.5 kB')", "the tables")
    text = browser.ask("document.body.innerText")
    for part in ("<b>one", "two", "<img src=x onerror=alert(1)>", "ckpt-00000250", "somewhere", "a processor", "learning_rate", "memory of all ranks", "123.5 kB", "share of the peak (MFU) of the last step", "complete"):
        assert part in text, f"{part} is not in {text}"
    assert browser.ask("document.images.length") == 0
    assert browser.ask("[...document.querySelectorAll('tr.differs td:first-child')].map(e => e.textContent).join()") == "learning_rate"
    # Texts, the newest first, with their lines and spaces.
    assert browser.ask("document.querySelectorAll('#samples pre').length") == 10
    assert browser.ask("document.querySelector('#samples pre').textContent") == "<script>alert(250)</script>\n    a line of <b>one, far in"
    assert browser.ask("document.querySelector('#samples .read').textContent") == "<b>one, iteration 250"
    assert not browser.ask("document.getElementById('texts').hidden")
    # Something is drawn in each picture.
    drawn = "(() => { const d = document.getElementById('%s'); return d.getContext('2d').getImageData(0, 0, d.width, d.height).data.some(v => v > 0); })()"
    for chart in ("loss", "speed", "mfu", "norm", "lr", "ms", "wait", "ranks", "memory"):
        assert browser.ask(drawn % chart), chart
    read = "[...document.getElementById('%s').parentNode.querySelectorAll('.read span')].map(e => e.textContent).join('; ')"
    assert browser.ask(read % "ranks") == ("<b>one rank 0: 10% at iteration 250; <b>one rank 1: 25% at iteration 250; "
                                           "two rank 0: 10% at iteration 150; two rank 1: 25% at iteration 150"), browser.ask(read % "ranks")
    assert "<b>one rank 0: 50.3 MB at iteration 250; <b>one rank 1: 70.0 MB at" in browser.ask(read % "memory"), browser.ask(read % "memory")
    # Both losses name their own iteration.
    said = browser.ask(read % "loss")
    assert re.search(r"^<b>one: [\d.]+ at iteration 299, validation [\d.]+ at iteration 250; two: [\d.]+ at iteration 199, final validation 1.612 at iteration 200$", said), said
    # Short numbers with units.
    for expression, want in (("count(12345678)", "12.35M"), ("count(9999)", "9999"), ("duration(30.1)", "30.1 s"), ("duration(8000)", "2.22 h"), ("milliseconds(1234)", "1.23 s"),
                             ("small(0.0006)", "6.0e-4"), ("small(0.003)", "0.003"), ("percent(51.239)", "51.2%"), ("size(1234567)", "1.2 MB")):
        assert browser.ask(expression) == want, (expression, browser.ask(expression))
    about = "[...document.querySelectorAll('#runs label')].map(e => e.innerText.replace(/\\n/g, ' | ')).join(' || ')"
    said = browser.ask(about)
    assert re.search(r"^<b>one \| learning_rate 0.01 \| stopped · iteration 299 · loss [\d.]+ · best validation [\d.]+ · 10k tokens/s \|\| "
                     r"two \| learning_rate 0.02 \| complete · iteration 199 · loss [\d.]+ · final validation 1.612 · 10k tokens/s$", said), said
    # A smoothed line over a faint raw one, for each run; evaluations as dots on a line, the final one as a ring; the resume is marked.
    drawing = browser.ask(RECORD % 0)
    for colour in ("#2f7fd6", "#e8873a"):
        lines = [line[1:] for line in drawing["lines"] if line[0] == colour]
        assert [1, 0.35, []] in lines and [1.8, 1, []] in lines and [1, 1, []] in lines, lines
    assert sorted({radius for _, radius in drawing["dots"]}) == [3.5, 4.5] and len(drawing["dots"]) == 6 + 4 + 1, drawing["dots"]
    assert ["#2f7fd6", 1.2, 1, [2, 3]] in drawing["lines"] and drawing["texts"].count("resume") == 1, drawing
    assert browser.ask("runs[0].marks.push([155, 'resume'], [250, 'resume']), show(), " + RECORD % 0)["texts"].count("resume") == 2
    browser.ask("runs[0].marks.splice(-2), show()")
    assert browser.ask("document.querySelector('.legend').textContent") == "line: training · dots: validation · ring: final checkpoint"
    assert "10k" in browser.ask(RECORD % 1)["texts"], browser.ask(RECORD % 1)["texts"]
    assert all(text.endswith("%") for text in browser.ask(RECORD % 2)["texts"] if "." in text), browser.ask(RECORD % 2)["texts"]
    browser.picture("two-runs")
    # Long labels stand side by side, so that many runs leave room for the losses.
    browser.ask("document.querySelectorAll('#runs small').forEach(e => { e.textContent = 'n_layer 4, '.repeat(20); })")
    assert browser.ask("new Set([...document.querySelectorAll('#runs label')].map(e => e.offsetTop)).size") == 1
    # Live: within 2 seconds.
    train(one, 300, 1.5)
    began = time.monotonic()
    browser.wait("runs[0].points.length === 301", "the new step", 2.0)
    browser.wait("document.getElementById('loss').parentNode.querySelector('.read').textContent.includes('<b>one: 1.5 at iteration 300, ')", "its loss", 2.0)
    print(f"a new step is on the page after {time.monotonic() - began:.2f} s")
    # Keys: axis, logarithm, smoothing.
    before = browser.ask("document.getElementById('loss').toDataURL()")
    browser.key("l")
    assert browser.ask("document.getElementById('log').checked")
    assert browser.ask("document.getElementById('loss').toDataURL()") != before
    browser.key("l")
    browser.key("x")
    browser.key("x")
    assert browser.ask("axis()") == 5
    assert "30.1 s of training" in browser.ask("document.getElementById('loss').parentNode.querySelector('.read').textContent")
    browser.key("x")
    browser.key("s")
    assert browser.ask("document.getElementById('smooth').value") == "0.8"
    browser.key("a")
    assert browser.ask("document.getElementById('smooth').value") == "0.6"
    # The mean of a run that is smoothed, by its definition.
    assert abs(browser.ask("document.getElementById('smooth').value = 0.5, smooth([[0, 1, 0], [1, 3, 0]])[1][1]") - (0.5 * 0.5 + 0.5 * 3) / 0.75) < 1e-12
    browser.ask("document.getElementById('smooth').value = 0, show()")
    assert not any(opacity < 1 for _, _, opacity, _ in browser.ask(RECORD % 0)["lines"])
    browser.ask("document.getElementById('smooth').value = 0.6, show()")
    # Drag over a part of a picture; a key shows all again.
    box = browser.ask("(() => { const r = document.getElementById('loss').getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()")
    y = box[1] + box[3] / 2
    browser.mouse("mousePressed", box[0] + 300, y, button="left", buttons=1, clickCount=1)
    browser.mouse("mouseMoved", box[0] + 600, y, button="left", buttons=1)
    browser.mouse("mouseReleased", box[0] + 600, y, button="left", clickCount=1)
    low, high = browser.ask("range")
    assert 0 < low < high < 300, (low, high)
    browser.picture("part")
    # One that ends beyond the picture's edge counts, up to that edge.
    browser.key("r")
    assert browser.ask("range") is None
    browser.mouse("mousePressed", box[0] + box[2] - 200, y, button="left", buttons=1, clickCount=1)
    browser.mouse("mouseMoved", box[0] + box[2] + 15, y - 20, button="left", buttons=1)
    browser.mouse("mouseReleased", box[0] + box[2] + 15, y - 20, button="left", clickCount=1)
    assert browser.ask("range[0] > 150 && range[1] === 300"), browser.ask("range")
    assert browser.ask("getSelection().toString()") == ""
    # Between two points there is nothing.
    browser.ask("range = [10.2, 10.4], show()")
    assert "no values in this part" in browser.ask(RECORD % 0)["texts"]
    browser.key("r")
    # What is selected stays selected when a step comes.
    browser.ask("document.querySelectorAll('#facts td')[1].textContent === 'stopped' && getSelection().selectAllChildren(document.querySelectorAll('#facts td')[1])")
    train(one, 301, 1.5)
    browser.wait("document.getElementById('facts').textContent.includes('302k')", "the step in the table")
    assert browser.ask("getSelection().toString()") == "stopped"
    # A drawing is followed by a rest.
    assert browser.ask("(() => { const before = performance.now(); show(); return ready >= before + 250; })()")
    # Of many points the extreme ones of each column are drawn; a run that diverged flattens no other; a constant 0 is at the bottom.
    assert browser.ask("JSON.stringify(thin([...Array(4000).keys()].map(i => [i, i === 2500 ? 9 : i === 2600 ? -9 : i % 7, 0]), p => [p[0] / 1000, 0]).map(p => p[1]))") == "[0,6,6,0,9,-9,6,0]"
    line = "{ line: %s, raw: [], evals: [], marks: [] }"
    usual, wild, zero = (line % points for points in ("[...Array(300).keys()].map(i => [i, 2 + i / 100, 0])", "[[0, 4, 0], [1, 2e8, 0], [2, 2e8, 0]]", "[[0, 0, 0], [1, 0, 0]]"))
    assert browser.ask(f"boundsOf([{usual}, {wild}], false).y1") < 10
    assert browser.ask(f"boundsOf([{usual}], false).y1") > 4.99
    assert -0.05 < browser.ask(f"boundsOf([{zero}], false).y0") <= 0
    # Settings with most values first.
    assert browser.ask("(() => { const kept = runs.splice(0, 2, ...[1, 2, 3].map(i => ({ config: { few: i > 1, many: i, kind: i } }))), keys = differing();"
                       " runs.splice(0, 3, ...kept); return keys.join(); })()") == "many,few"
    # A run that isn't wanted.
    browser.ask("document.querySelector('#runs input').click()")
    assert browser.ask("CHARTS[0].curves.length") == 1
    browser.ask("document.querySelector('#runs input').click()")
    # Dark, and a phone: nothing is wider than the screen.
    browser.size(1300, 1000, dark=True)
    browser.open(url)
    browser.wait("runs.length === 2 && runs[1].points.length === 200", "all points")
    assert browser.ask("document.documentElement.dataset.theme") == "dark"
    time.sleep(0.3)
    browser.picture("dark")
    browser.size(390, 844)
    browser.open(url)
    browser.wait("runs.length === 2 && runs[1].points.length === 200", "all points")
    assert browser.ask("document.documentElement.scrollWidth") <= 390
    browser.wait("!due", "the drawing")
    dots = browser.ask("runs[1].shown = false, runs[0].evals = runs[0].points.map(p => [p[0], null, p[1]]), show(), " + RECORD % 0)["dots"]
    assert len(dots) > 10 and all(radius < 2.5 for _, radius in dots), dots
    assert all(right[0] - left[0] >= 16 for left, right in zip(dots, dots[1:])), dots
    browser.open(url)
    time.sleep(0.3)
    browser.picture("phone")
    assert not browser.complaints(), browser.complaints()
    # A hidden page doesn't hold a connection.
    hide = "Object.defineProperty(document, 'hidden', { value: %s, configurable: true }), document.dispatchEvent(new Event('visibilitychange')), source === null"
    assert browser.ask(hide % "true")
    assert not browser.ask(hide % "false")
    browser.wait("source.readyState === 1 && runs[0].points.length === 302", "the connection")
    # A server that doesn't answer is noticed without an error of the connection.
    browser.ask("silence = 300")
    train(one, 302, 1.5)
    browser.wait("runs[0].points.length === 303", "a step")
    os.kill(server.pid, signal.SIGSTOP)
    browser.wait("document.getElementById('state').textContent.includes('answer')", "the silence")
    browser.ask("silence = 25000")
    os.kill(server.pid, signal.SIGCONT)
    browser.wait("document.getElementById('state').textContent === 'connected'", "the answer")
    # Without the server: it says so.
    server.terminate()
    server.wait()
    browser.wait("document.getElementById('state').textContent.includes('answer')", "the end")
    # A folder in which runs begin, diverge, are removed and resumed while the page is open.
    os.mkdir(work + "/later")
    server = subprocess.Popen([tool, "watch", "--port=0", work + "/later"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    browser.forget()
    browser.size(1300, 1500)
    browser.open(server.stdout.readline().strip())
    browser.wait("document.getElementById('state').textContent === 'connected' && runs.length === 0", "an empty page")
    diverged, ended = run("diverged", 20, 5.0, False), run("ended", 60, 0.02, True)
    append(diverged, {"kind": "eval", "iter": 25, "train_loss": None, "val_loss": None})
    for i in range(20, 40):
        append(diverged, {"kind": "skip", "iter": i, "what": "loss", "place": "wte"})
    os.rename(diverged, work + "/later/diverged")
    browser.wait("runs.length === 1 && runs[0].marks.length > 20 && !due", "the first run")
    browser.ask("document.querySelector('#runs input').click()")
    os.rename(ended, work + "/later/ended")
    browser.wait("runs.length === 2 && runs[1].evals.length === 3 && !due", "the second run")
    assert browser.ask("[...document.querySelectorAll('#runs input')].map(e => e.checked).join()") == "false,true"
    browser.ask("document.querySelector('#runs input').click()")
    said = browser.ask(about)
    assert re.search(r"^diverged \| learning_rate 5 \| stopped · iteration 19 · loss [\d.-]+ · validation nan at iteration 25 · 10k tokens/s · 20 not finite \|\| ended \|", said), said
    assert browser.ask("getComputedStyle(document.querySelector('#runs .bad')).color") == "rgb(201, 37, 45)"
    drawing = browser.ask(RECORD % 0)
    assert len([line for line in drawing["lines"] if line == ["#c9252d", 2, 1, []]]) == 20, drawing["lines"]
    assert browser.ask("document.querySelector('.legend').textContent").endswith(" · red: not finite")
    assert browser.ask("range = [30, 50], show(), CHARTS[1].bounds.x1") == 50
    browser.ask("range = null, runs[1].shown = false, show()")
    assert browser.ask("CHARTS[1].bounds.x1") == 39
    browser.ask("runs[1].shown = true, show()")
    browser.picture("diverged")
    # The final loss of an earlier end is that of another checkpoint.
    assert browser.ask("final(runs[1])[0]") == 60
    append(work + "/later/ended", {"kind": "host", "schema": 1, "world_size": 3})
    train(work + "/later/ended", 60, 1.5)
    browser.wait("runs[1].points.length === 61", "a step after the resume")
    assert not browser.ask("final(runs[1])")
    os.rename(work + "/later/diverged", work + "/removed")
    browser.wait(about + ".startsWith('diverged | removed, or no record yet || ended')", "the removed run")
    assert browser.ask("document.querySelectorAll('tr.differs').length") == 0
    assert browser.ask("getComputedStyle(document.querySelector('#settings td')).position") == "sticky"
    assert browser.ask("getComputedStyle(document.querySelector('#settings td + td')).minWidth") == "91px"
    assert not browser.complaints(), browser.complaints()
    server.terminate()
    server.wait()
    # One file.
    subprocess.run([tool, "watch", f"--html={work}/runs.html", one, two], check=True)
    browser.forget()
    browser.size(1300, 1500)
    browser.open(f"file://{work}/runs.html")
    browser.wait("runs.length === 2 && runs[0].points.length === 303", "the file")
    assert "as of the time this file was written" in browser.ask("document.body.innerText")
    time.sleep(0.3)
    browser.picture("file")
    assert not browser.complaints(), browser.complaints()
    # Equal runs: the second is dashed over the first, and their dots take turns.
    shutil.copytree(two, f"{work}/three")
    subprocess.run([tool, "watch", f"--html={work}/equal.html", two, f"{work}/three"], check=True)
    browser.open(f"file://{work}/equal.html")
    browser.wait("!due && runs.length === 2", "the file")
    lines = browser.ask(RECORD % 0)["lines"]
    assert ["#2f7fd6", 1.8, 1, []] in lines and ["#e8873a", 1.8, 1, [9, 9]] in lines and ["#e8873a", 1, 1, [9, 9]] in lines, lines
    assert browser.ask("CHARTS[0].curves[1].line.every(p => p[2] === 1)") and browser.ask("CHARTS[0].period") == 2
    assert len(browser.ask(RECORD % 0)["dots"]) == 5 + 2
    browser.picture("equal")
    print("the page: values, live steps, keys, a part, dark, a phone's width, one file; no complaint")
finally:
    server.kill()
    browser.process.kill()
    browser.process.wait()
    shutil.rmtree(work + "/profile", ignore_errors=True)
