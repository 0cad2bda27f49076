"""A server on the loopback for fetch.sh: fetch_server.py ROOT PORTFILE. The first part of a path says how it
answers, the rest is a file below ROOT. It writes its port to PORTFILE, and each request's first line and range to
standard output."""
import http.server
import os
import sys

ROOT, PORTFILE = sys.argv[1:]
seen = {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        print(self.path, self.headers.get("Range", "-"), flush=True)

    def answer(self, code, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_GET(self):
        _, how, name = self.path.split("/", 2)
        number = seen[self.path] = seen.get(self.path, 0) + 1
        self.close_connection = True
        if how in ("file", "ftp", "loop"):
            to = {"file": "file:///etc/hostname", "ftp": "ftp://127.0.0.1/x", "loop": self.path}[how]
            return self.answer(302, Location=to, Content_Length="0")
        path = os.path.join(ROOT, name)
        if how == "missing" or not os.path.isfile(path):
            return self.answer(404, Content_Length="0")
        with open(path, "rb") as file:
            body = file.read()
        if how == "changed" or (how == "edited" and number > 1):
            body = b"X" + body[1:]
        if how == "page":
            body = b"<html>please sign in</html>"
        if how == "short":
            body = body[:-7]
        if how == "empty":
            body = b""
        tag = '"%d-%d"' % (len(body), body[0] if body else 0)
        if how == "endless" or how == "unannounced":
            self.answer(200, **({"Transfer_Encoding": "chunked"} if how == "endless" else {}))
            try:
                while how == "endless":
                    self.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                self.wfile.write(body)
            except OSError:
                pass
            return None
        if how == "huge":
            self.answer(200, Content_Length=str(1 << 50))
            self.wfile.write(body)
            return None
        first = 0
        asked = self.headers.get("Range")
        if asked and how != "norange":
            first = int(asked[len("bytes="):].split("-")[0]) if how != "lying" else 0
            if first >= len(body):
                return self.answer(416, Content_Length="0")
            if how == "cut" and number == 2:
                return None
            self.answer(206, ETag=tag, Content_Length=str(len(body) - first),
                        Content_Range="bytes %d-%d/%d" % (first, len(body) - 1, len(body)))
        else:
            self.answer(206 if how == "part" else 200, ETag=tag, Content_Length=str(len(body)))
        end = len(body) if how != "pieces" else first + 1200000
        if how == "dead" or (how in ("cut", "edited", "norange", "lying", "stalls") and number == 1):
            end = first + (len(body) - first) // 2 if number == 1 else first
        try:
            self.wfile.write(body[first:end])
            if how == "stalls" and number == 1:
                self.rfile.read(1)  # until the client has ended
        except OSError:
            pass  # the client refuses it
        return None


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(PORTFILE + ".new", "w", encoding="ascii") as out:
    out.write(str(server.server_address[1]))
os.rename(PORTFILE + ".new", PORTFILE)
server.serve_forever()
