"""A user's session from ``skylark up`` to ``skylark down``: every command, as processes.

The chapters, in the folder ``session``, are read like a console block of a document
(:mod:`tests.support.docs_runner`): below a command stands what it prints, ``...`` for anything.
Besides:

==========  ===================================================================================
``! text``  a line on stderr; what is not told to be there must not be, on either of the two
``< text``  a line that the command gets as its input
``[N]``     the exit code, where it is not 0
``{name}``  in a command: what the session has noted under this name, such as the id of a message
==========  ===================================================================================

Each command is a process of its own, so exit codes, the two streams and the absence of tracebacks
are real. Tables are checked by the transcripts; where programs read, ``--output json`` must parse
and agree with them. The last chapter looks at the files of the broker that has ended.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.cli.main import COMMANDS
from skylark.core.clock import SystemClock
from tests.support.docs_runner import Block, output_matches, parse_console
from tests.support.up import SMALL_FILES
from tests.unit.cli.shell import client_commands

CHAPTERS = Path(__file__).parent / "session"
TIMEOUT_S = 30
WAIT_S = 20.0
#: Commands that this session has no place for: servers that never end by themselves, jobs that
#: need Spark, and what has a test of its own because it takes minutes.
ELSEWHERE = {"broker", "namesrv", "demo"}
#: What the chapter "produced" puts into the one queue of orders.
BODIES = ["one", "two", "1", "2", "3", "a", "hi", "b1", "b2", "b3", "r1", "r2"]

SITE = """\
topics:
  - {name: orders, queues: 1}
groups:
  - {name: bills, retry_max_times: 0}
"""
WRONG_SITE = """\
topics:
  - {name: orders, queue: 1}
"""
LINES = """\
{"body": "a", "tag": "sold", "keys": ["k-9"]}
{"body_base64": "aGk="}
"""
#: A user's program whose handler fails at what is poison; its group gives up at once.
FAILING = """\
import threading
from skylark.sync import PushConsumer

failed = threading.Event()
consumer = PushConsumer("bills", max_reconsume_times=0)

@consumer.subscribe("orders")
def handle(message):
    failed.set()
    raise ValueError("poison")

with consumer:
    assert failed.wait(20)
"""


class Session:
    """Types commands into a shell of its own, and reads what they print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.noted: dict[str, str] = {}
        self.typed: list[list[str]] = []
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SKYLARK_")}
        self.environ = {**kept, "HOME": str(folder), "TMPDIR": str(folder), "COLUMNS": "120"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        self.typed.append(list(words))
        return subprocess.Popen(
            [sys.executable, "-m", "skylark", *words],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, typed: str = "", code: int = 0) -> tuple[str, str]:
        """What a command prints on stdout and on stderr."""
        process = self.start(*words)
        stdout, stderr = process.communicate(typed, timeout=TIMEOUT_S)
        assert process.returncode == code, (words, stdout, stderr)
        assert "Traceback" not in stderr
        assert "internal error" not in stderr
        return stdout, stderr

    def json(self, *words: str) -> Any:
        """What a program gets."""
        stdout, stderr = self.run("--output", "json", *words)
        assert stderr == ""
        return json.loads(stdout)

    def works(self, *words: str) -> bool:
        """Whether a command succeeds."""
        process = self.start(*words)
        process.communicate(timeout=TIMEOUT_S)
        return process.returncode == 0

    def sent(self, *words: str) -> str:
        """The id of a message that is sent."""
        return str(self.json("produce", *words)["msg_id"])

    def play(self, chapter: str) -> None:
        """Type what a chapter of the folder ``session`` has, and compare."""
        transcript = (CHAPTERS / f"{chapter}.console").read_text()
        for name, value in self.noted.items():
            transcript = transcript.replace(f"{{{name}}}", value)
        for command in parse_console(Block(0, "console", tuple(transcript.splitlines()))):
            parts: dict[str, list[str]] = {"!": [], "<": [], "[": [], "": []}
            for line in command.expected:
                mark = line[:1] if line[:2] in ("! ", "< ", "<") or line[:1] == "[" else ""
                parts[mark].append(line[2:] if mark in ("!", "<") else line)
            code = int(parts["["][0].strip("[]")) if parts["["] else 0
            typed = "".join(f"{line}\n" for line in parts["<"])
            stdout, stderr = self.run(*shlex.split(command.text)[1:], typed=typed, code=code)
            shown = f"$ {command.text}\n{stdout}--- stderr:\n{stderr}"
            assert output_matches(tuple(parts[""]), stdout), shown
            assert output_matches(tuple(parts["!"]), stderr), shown

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something holds, looking again and again."""
        clock = SystemClock()
        deadline = clock.monotonic() + WAIT_S
        while not is_so():
            assert clock.monotonic() < deadline, what


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """In an empty folder; nothing runs there any more when it is over."""
    files = {"site.yaml": SITE, "wrong.yaml": WRONG_SITE, "in.jsonl": LINES, "fail.py": FAILING}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    session = Session(tmp_path)
    yield session
    session.works("down", "--data", "data")


def test_a_session(session: Session) -> None:
    started(session)
    session.play("servers")
    doctor(session)
    session.play("topics")
    session.play("produced")
    session.play("consumed")
    followed(session)
    found(session)
    session.play("moved")
    buried(session)
    session.play("mistakes")
    session.play("cleared")
    measured(session)
    ended(session)
    everything_was_typed(session)


# ---- chapters ------------------------------------------------------------------------------------


def started(session: Session) -> None:
    free_ports = ("--namesrv-port", "0", "--broker-port", "0")
    stdout, _ = session.run("up", "--detach", "--data", "data", *free_ports, *SMALL_FILES)
    ready = re.fullmatch(r"ready namesrv=(\S+) broker-a=(\S+)\n", stdout)
    assert ready is not None
    session.noted["namesrv"] = session.environ["NAMESRV_ADDR"] = ready[1]
    (broker,) = session.json("cluster", "list")
    assert (broker["broker"], broker["address"]) == ("broker-a", ready[2])


def doctor(session: Session) -> None:
    """What it finds on this machine is not known here; what it finds of the cluster is."""
    process = session.start("--output", "json", "doctor", "--data", "data")
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert stderr == ""
    checks = {row["check"]: row for row in json.loads(stdout)}
    assert {"python", "ports", "disk", "clock", "java", "spark"} <= checks.keys()
    assert checks["namesrv"]["status"] == checks["addresses"]["status"] == "ok"
    is_well = all(row["status"] != "not" for row in checks.values())
    assert process.returncode == (0 if is_well else 1)


def followed(session: Session) -> None:
    """A consumer that is there gets what comes; the interrupt key would end it as well."""
    session.run("topic", "create", "news", "--queues", "1")
    reader = session.start("consume", "news", "--from", "end", "--count", "1", "--format", "body")

    def is_done() -> bool:
        session.run("produce", "news", "hot")
        return reader.poll() is not None

    session.until(is_done, "the consumer that follows does not end")
    assert reader.communicate() == ("hot\n", "")
    session.run("produce", "news", "late", "--delay", "500ms")
    last = ("consume", "news", "--no-follow", "--format", "body")
    session.until(lambda: "late\n" in session.run(*last)[0], "the delay does not end")
    session.run("topic", "delete", "news", "--yes")


def found(session: Session) -> None:
    rows = session.json("message", "query", "orders")
    assert [row["body"] for row in rows] == BODIES
    assert [row["offset"] for row in rows] == list(range(12))
    session.noted.update(first=rows[0]["msg_id"], last=rows[-1]["msg_id"])
    by_key = ("message", "query", "orders", "--key", "k-9")
    session.until(lambda: len(session.json(*by_key)) == 1, "the index has no key")
    session.noted["delayed"] = session.sent("orders", "later", "--delay", "1h")
    waits = ("message", "explain", session.noted["delayed"])
    session.until(lambda: session.works(*waits), "what waits is not found")
    session.play("found")
    (account,) = session.json("message", "explain", session.noted["last"], "--group", "bills")
    assert (account["consumed"], account["failures"]) == (False, [])
    group = session.json("group", "describe", "bills")
    assert group["lag"] == 9
    assert [queue["lag"] for queue in group["progress"]["queues"]] == [9]
    topic = session.json("topic", "describe", "orders")
    assert [queue["messages"] for queue in topic["queues"]] == [12]
    assert topic["groups"] == ["bills"]


def buried(session: Session) -> None:
    """A handler fails, and its group gives the message up."""
    session.noted["poison"] = session.sent("orders", "poison")
    program = [sys.executable, "fail.py"]
    subprocess.run(
        program, cwd=session.folder, env=session.environ, check=True, timeout=TIMEOUT_S,
        capture_output=True,
    )  # fmt: skip
    session.until(lambda: session.json("dlq", "list") != [], "there is no dead letter")
    session.play("buried")


def measured(session: Session) -> None:
    """A short run; how fast it is depends on the machine, how much was sent does not."""
    given = ("load", "--create", "--cleanup", "--count", "50", "--size", "100")
    results = session.json("bench", "e2e", *given)["results"]
    assert [(row["what"], row["messages"], row["errors"]) for row in results] == [
        ("send", 50, 0),
        ("e2e", 50, 0),
    ]


def ended(session: Session) -> None:
    """The files tell the same when nobody has them any more."""
    _, stderr = session.run("down", "--data", "data")
    assert "Error" not in stderr
    session.run("ping", code=3)
    report = session.json("store", "check", "data/broker-a")
    assert (report["state"], report["errors"]) == ("closed in order", 0)
    stdout, _ = session.run("store", "dump", "data/broker-a", "--topic", "orders", "--body", "text")
    bodies = [json.loads(line)["body"] for line in stdout.splitlines()]
    assert bodies == [*BODIES, "poison", "poison"]
    session.run("down", "--data", "data", code=4)


def everything_was_typed(session: Session) -> None:
    typed = [words[2:] if words[0] == "--output" else words for words in session.typed]
    families = {words[0] for words in typed}
    assert COMMANDS.keys() - families == ELSEWHERE
    missed = {
        name
        for name in client_commands()
        if not any(words[: len(name.split())] == name.split() for words in typed)
    }
    assert missed == set()
