"""A NATS server, routers, simulated workers and a gateway, each a process, for the tests of one file."""

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

RANKPIN = os.environ["RANKPIN"]
NATS_SERVER = os.environ["RANKPIN_NATS_SERVER"]
PATIENCE = 30

SCRIPT = [{"calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}, {"text": "It is sunny in Paris."}]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(what, look):
    end = time.monotonic() + PATIENCE
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        time.sleep(0.05)


class Processes:
    """A directory and a NATS server of its own, and whatever is started beside it."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="rankpin-sdk-")
        self.path = pathlib.Path(self.dir.name)
        self.processes = []
        nats, http = free_port(), free_port()
        self.nats_url, self.http = f"nats://127.0.0.1:{nats}", f"http://127.0.0.1:{http}"
        store = str(self.path / "store")
        self.start("nats", [NATS_SERVER, "-a", "127.0.0.1", "-p", str(nats), "-js", "-sd", store])
        eventually("the NATS server takes connections", lambda: self.takes_connections(nats))

    def gateway(self, *args):
        self.rankpin("gateway", "--listen", self.http.removeprefix("http://"), *args)

    def script(self, steps):
        script = self.path / "script.json"
        script.write_text(json.dumps(steps))
        return str(script)

    def rankpin(self, *args):
        self.start(args[0], [RANKPIN, *args, "--nats-url", self.nats_url])

    def start(self, name, command):
        log = open(self.path / f"{name}.log", "ab")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("RANKPIN", "NATS_"))}
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=clean))
        log.close()

    @staticmethod
    def takes_connections(port):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def get(self, path, http=None):
        with urllib.request.urlopen((http or self.http) + path, timeout=10) as answer:
            return answer.read().decode()

    def models(self):
        try:
            return {model["id"] for model in json.loads(self.get("/v1/models"))["data"]}
        except urllib.error.URLError:
            return set()

    def metric(self, line):
        values = [found.rsplit(" ", 1)[1] for found in self.get("/metrics").splitlines() if found.startswith(line)]
        return sum(float(value) for value in values)

    def stop(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self.dir.cleanup()


class Cluster(Processes):
    """One router, a worker that talks, one that follows a script, a slow one, and a gateway."""

    def __init__(self):
        super().__init__()
        self.rankpin("router", "--listen", "off")
        sim = ["sim", "--dp-size", "4", "--speed", "20"]
        self.rankpin(*sim, "--worker", "plain", "--model", "m")
        self.rankpin(*sim, "--worker", "scripted", "--model", "scripted", "--script", self.script(SCRIPT))
        self.rankpin("sim", "--worker", "slow", "--model", "slow", "--decode-rate", "2", "--output-tokens", "3600")
        self.gateway()
        eventually("all models are served", lambda: self.models() == {"m", "scripted", "slow"})
