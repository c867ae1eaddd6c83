"""A proxy between an agent and the gateway: it notes where each request was served, and can take the headers away that
name its session."""

import http.client
import http.server
import json
import threading
from dataclasses import dataclass

# What an HTTP request needs, and nothing that says whose it is or which conversation.
PLAIN = {"accept", "content-type", "content-length", "anthropic-version", "anthropic-beta"}
# Of one connection.
HOPS = {"connection", "host", "keep-alive", "transfer-encoding", "accept-encoding", "expect"}


@dataclass
class Seen:
    """One request, and what became of it."""

    path: str
    headers: dict
    body: dict
    status: int
    worker: str
    rank: str
    decision: str
    answer: str

    @property
    def place(self):
        return self.worker, self.rank

    @property
    def is_turn(self):
        """Whether it is the conversation itself: agents ask for titles and the like without tools."""
        return self.status == 200 and bool(self.body.get("tools"))

    @property
    def items(self):
        return self.body.get("messages") or self.body.get("input") or []


class Recorder:
    def __init__(self, gateway, strips):
        host, _, port = gateway.removeprefix("http://").partition(":")
        self.seen, lock = [], threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.relay(b"")

            def do_POST(self):
                self.relay(self.body())

            def body(self):
                if self.headers.get("transfer-encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                whole = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    whole += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return whole

            def relay(self, body):
                given = {name.lower(): value for name, value in self.headers.items()}
                goes = {name: value for name, value in given.items() if name not in HOPS}
                goes = {name: value for name, value in goes.items() if name in PLAIN or not strips}
                goes["content-length"] = str(len(body))
                onward = http.client.HTTPConnection(host, int(port), timeout=60)
                onward.request(self.command, self.path, body, goes)
                answer = onward.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in HOPS | {"content-length"}:
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.close_connection = True
                self.end_headers()
                said = b""
                while piece := answer.read1(65536):
                    said += piece
                    self.wfile.write(piece)
                    self.wfile.flush()
                onward.close()
                try:
                    parsed = json.loads(body or b"{}")
                except ValueError:
                    parsed = {}
                placed = [answer.getheader(f"x-rankpin-{name}", "") for name in ("worker", "dp-rank", "decision")]
                text = said.decode(errors="replace")
                with lock:
                    owner.seen.append(Seen(self.path.split("?")[0], goes, parsed, answer.status, *placed, text))

            def log_message(self, *_):
                pass

        owner = self
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.http = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def turns(self):
        return [seen for seen in self.seen if seen.is_turn]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
