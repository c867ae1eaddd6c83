"""Coding agents that nobody here wrote, each made to call a tool twice by a simulated model that follows a script: every
turn of a conversation is served by one data-parallel rank of one worker, and so is what the user says next."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

from cluster import Processes, eventually, free_port
from recorder import Recorder

AGENTS = pathlib.Path(os.environ["RANKPIN_AGENTS"])
PATIENCE = 180
# The first tool of these that an agent offers is called, for each of the first two steps.
CALLS = [
    {"name": "exec_command", "arguments": {"cmd": "cat note.txt"}},
    {"name": "shell_command", "arguments": {"command": "cat note.txt"}},
    {"name": "shell", "arguments": {"command": ["cat", "note.txt"]}},
    {"name": "bash", "arguments": {"command": "cat note.txt", "description": "Read the note"}},
    {"name": "Bash", "arguments": {"command": "cat note.txt", "description": "Read the note"}},
]
SCRIPT = [{"calls": CALLS}, {"calls": CALLS}, {"text": "The note says hello."}]
NOTE = "hello from the note"


def setUpModule():
    global cluster
    cluster = Agents()


def tearDownModule():
    cluster.stop()


class Agents(Processes):
    """Two routers, and two workers with four ranks each: no router knows by itself where the other placed a turn."""

    def __init__(self):
        super().__init__()
        self.routers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        for address in self.routers:
            self.rankpin("router", "--listen", address)
        script = self.script(SCRIPT)
        for worker, start in (("gpu-0", "0"), ("gpu-1", "4")):
            ranks = ["--worker", worker, "--dp-start", start, "--dp-size", "4"]
            self.rankpin("sim", *ranks, "--model", "m", "--speed", "20", "--script", script)
        self.gateway()
        eventually("the model is served", lambda: self.models() == {"m"})
        eventually("both routers know both workers", lambda: self.counted("workers") == 4)

    def counted(self, name, label=""):
        pages = [self.get("/metrics", "http://" + address) for address in self.routers]
        lines = [line for page in pages for line in page.splitlines() if line.startswith(f"rankpin_router_{name}")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if label in line)


class Agent:
    """One agent, at home in a directory of its own."""

    def __init__(self, recorder, home):
        self.recorder, self.home = recorder, pathlib.Path(home)
        self.work = self.home / "work"
        self.work.mkdir()
        (self.work / "note.txt").write_text(NOTE + "\n")
        subprocess.run(["git", "init", "-q"], cwd=self.work, check=True)
        self.setup()

    def run(self, *command, **env):
        """Runs it to its end; the processes it leaves are ended too."""
        base = {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "NO_COLOR": "1"}
        process = subprocess.Popen(
            [str(AGENTS / command[0]), *command[1:]], cwd=self.work, env=base | env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        return process.returncode, said


class Codex(Agent):
    path, session = "/v1/responses", "thread-id"

    def setup(self):
        (self.home / "codex").mkdir()
        (self.home / "codex" / "config.toml").write_text(f"""
model = "m"
model_provider = "rankpin"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.rankpin]
name = "rankpin"
base_url = "{self.recorder.http}/v1"
wire_api = "responses"
""")

    # The commands are the script's own; its sandbox needs rights that a container may not have.
    FLAGS = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]

    def begin(self, words):
        return self.run("codex", "exec", *self.FLAGS, words, CODEX_HOME=str(self.home / "codex"))

    def go_on(self, words):
        return self.run("codex", "exec", "resume", "--last", *self.FLAGS, words, CODEX_HOME=str(self.home / "codex"))


class OpenCode(Agent):
    path, session = "/v1/chat/completions", "x-session-id"
    provider = {"npm": "@ai-sdk/openai-compatible"}

    def setup(self):
        provider = self.provider | {
            "name": "rankpin", "models": {"m": {"name": "m"}},
            "options": {"baseURL": self.recorder.http + "/v1", "apiKey": "any"},
        }
        config = {
            "autoupdate": False, "share": "disabled", "model": "rankpin/m", "small_model": "rankpin/m",
            "provider": {"rankpin": provider}, "permission": {"*": "allow"},
        }
        (self.work / "opencode.json").write_text(json.dumps(config))

    def begin(self, words):
        return self.run("opencode", "run", words, OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_AUTOUPDATE="1")

    def go_on(self, words):
        return self.run(
            "opencode", "run", "--continue", words, OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_AUTOUPDATE="1"
        )


class OpenCodeMessages(OpenCode):
    path = "/v1/messages"
    provider = {"npm": "@ai-sdk/anthropic"}


class ClaudeCode(Agent):
    path, session = "/v1/messages", "x-claude-code-session-id"

    def setup(self):
        pass

    def claude(self, *args):
        return self.run(
            "claude", *args, "--model", "m", "--allowedTools", "Bash",
            ANTHROPIC_BASE_URL=self.recorder.http, ANTHROPIC_API_KEY="any", ANTHROPIC_SMALL_FAST_MODEL="m",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1", DISABLE_TELEMETRY="1",
        )

    def begin(self, words):
        return self.claude("-p", words)

    def go_on(self, words):
        return self.claude("-p", "--continue", words)


class Conversations(unittest.TestCase):
    def converse(self, kind, strips):
        recorder = Recorder(cluster.http, strips)
        self.addCleanup(recorder.stop)
        home = tempfile.TemporaryDirectory(prefix="rankpin-agent-", ignore_cleanup_errors=True)
        self.addCleanup(home.cleanup)
        agent = kind(recorder, home.name)
        pinned = cluster.counted("decisions_total", 'reason="pinned"')
        for ask, words in ((agent.begin, "What does note.txt say?"), (agent.go_on, "And once more, please.")):
            before = len(recorder.turns())
            code, said = ask(words)
            told = [(seen.path, seen.status, seen.place) for seen in recorder.seen]
            self.assertEqual(code, 0, f"{said}\n{told}")
            self.assertIn("The note says hello.", said, told)
            self.assertGreaterEqual(len(recorder.turns()) - before, 3, f"two calls and an answer: {told}\n{said}")
        turns = recorder.turns()
        self.assertEqual({turn.path for turn in turns}, {agent.path})
        self.assertTrue(any(NOTE in json.dumps(turn.items) for turn in turns), "the tool was run")
        named = {turn.headers.get(agent.session) for turn in turns}
        self.assertEqual(named == {None}, strips, named)
        self.assertEqual(len(named), 1, f"one conversation: {named}")
        places = {turn.place for turn in turns}
        self.assertEqual(len(places), 1, [(turn.place, turn.decision) for turn in turns])
        self.assertEqual({turn.decision for turn in turns[1:]}, {"pinned,derived" if strips else "pinned"})
        # What the routers count says the same. What an agent asks on the side may be pinned as well.
        counted = cluster.counted("decisions_total", 'reason="pinned"') - pinned
        self.assertGreaterEqual(counted, len(turns) - 1)
        session = "its text" if strips else f"`{agent.session}`"
        side = len(recorder.seen) - len(turns)
        worker, rank = places.pop()
        print(f"\n| {kind.__name__} | {agent.path} | {session} | {len(turns)} | {worker}/{rank} | {side} |")

    def test_codex(self):
        self.converse(Codex, strips=False)

    def test_codex_without_headers(self):
        self.converse(Codex, strips=True)

    def test_opencode(self):
        self.converse(OpenCode, strips=False)

    def test_opencode_without_headers(self):
        self.converse(OpenCode, strips=True)

    def test_opencode_messages(self):
        self.converse(OpenCodeMessages, strips=False)

    def test_opencode_messages_without_headers(self):
        self.converse(OpenCodeMessages, strips=True)

    def test_claude_code(self):
        self.converse(ClaudeCode, strips=False)

    def test_claude_code_without_headers(self):
        self.converse(ClaudeCode, strips=True)
