"""The programs of ``examples/`` do what they say: run as a newcomer runs them, beside a cluster."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.docs_runner import broken_links, output_matches
from tests.support.up import cluster

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))

#: Most of them wait for a broker most of the time.
AT_ONCE = 3
TIMEOUT_S = 90
LINES_MIN, LINES_MAX = 15, 40

#: What each prints, as in console blocks of the documents: ``...`` stands for any text in a line.
EXPECTED: dict[str, str] = {
    "admin_tasks": """
        ExampleInvoices exists: True
        lag after consuming: 0
        queue 0: -5 messages
        queue 1: -5 messages
        lag after the reset: 10
        """,
    "asyncio_orders": """
        sent 500 to ... queues
        consumed 500, from 0 to 499
        """,
    "broadcasting": """
        left forgets user-1
        left forgets user-2
        right forgets user-1
        right forgets user-2
        """,
    "bulk_send": """
        20000 messages, ... per second, ... sent a second time
        """,
    "celery_tasks": """
        resized cat.png
        resized later.png later: True
        published dog.png at attempt 2
        """,
    "delay_and_recall": """
        recalled the meeting: True
        drink the tea: True
        after ... seconds
        """,
    "filters": """
        by tag: ['DE 140', 'DE 20', 'FR 250']
        by SQL: ['DE 140', 'FR 250']
        """,
    "first_consumer": """
        Hello ..., sent at ...:...:...
        Hello ..., sent at ...:...:...
        Hello ..., sent at ...:...:...
        all greeted
        """,
    "first_send": """
        SEND_OK: ...
        at ... in queue ...
        100 more, side by side
        2 in one request
        refused: ..., retriable: False
        """,
    "in_order": """
        A-1: open > deposit > withdraw > close
        B-2: open > deposit > withdraw > close
        C-3: open > deposit > withdraw > close
        """,
    "json_values": """
        Ada arrives on 24 December
        as JSON: {'guest': 'Ada', 'arrival': '2026-12-24'}
        Grace arrives on 31 December
        as JSON: {'guest': 'Grace', 'arrival': '2026-12-31'}
        """,
    "lite_pull": """
        loaded 100 readings, the highest is 99
        read again: True
        committed: True
        """,
    "pop_workers": """
        60 jobs are done, at the second attempt [7, 27, 47]
        """,
    "redrive_dead_letters": """
        first version: ['12', 'failed', 'failed']
        would send 2 again
        sent 2, complete: True
        second version: ['255', '42']
        """,
    "request_reply": """
        tea costs 3
        coffee costs 4
        nectar: nobody knows
        """,
    "retry_and_dead_letters": """
        attempt 1 for info@example.org
        attempt 2 for info@example.org
        delivered: True
        dead letter: nobody
        """,
    "spans": """
        sent SEND_OK
        handled in trace 0af7651916cd43dd8448eb211c80319c
        """,
    "taskiq_tasks": """
        resized cat.png to 40
        resized dog.png to 80
        """,
    "topic_to_pandas": """
        1000 rows of ['tags', 'body', 'storeTimestamp']
        cart: 250 clicks, the last is 997
        help: 250 clicks, the last is 999
        home: 500 clicks, the last is 998
        """,
    "trace_and_metrics": """
        skylark_client_messages_received_total{group="example-waiter",topic="ExampleDishes"} 1
        skylark_client_messages_sent_total{...topic="ExampleDishes",outcome="ok"} 1
        sent by example-kitchen in ... ms: True
        delivered to example-waiter
        """,
    "transaction": """
        rolled back: CHECK constraint failed: amount > 0
        orders to pack: ['tea']
        """,
    "typed_orders": """
        invoice of order 1: please pay 2.50
        """,
    "web_lifespan": """
        202 accepted red: SEND_OK
        202 accepted blue: SEND_OK
        worked on ['blue', 'red']
        """,
}


@dataclass(frozen=True)
class Outcome:
    """What became of a program; no ``code`` if it did not end in time."""

    code: int | None
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"code {self.code}\n{self.stdout}\n{self.stderr}"


def run(path: Path, environ: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run a program to its end; warnings are errors in it."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(path)],
        env=environ,
        cwd=environ["HOME"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code: int | None
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        code = None
    return Outcome(code, stdout, stderr)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """All programs, run beside one cluster."""
    home = tmp_path_factory.mktemp("home")
    # A machine that is busy with other tests must not look like a broker that is overloaded.
    with cluster(home, "--set", "waitTimeMillsInSendQueue=30000") as namesrv:
        environ = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(home),
            "SKYLARK_NAMESRV": namesrv,
        }
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = {name: pool.submit(run, FOLDER / f"{name}.py", environ) for name in EXAMPLES}
        return {name: future.result() for name, future in runs.items()}


def wanted_lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs_and_prints_what_it_should(name: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[name]
    assert outcome.code == 0, outcome
    assert outcome.stderr == ""  # no traceback, and no warning that a newcomer would wonder about
    assert output_matches(wanted_lines(EXPECTED[name]), outcome.stdout), outcome


def test_every_example_has_a_row_here_and_in_the_readme() -> None:
    assert len(EXAMPLES) >= 12
    assert sorted(EXPECTED) == EXAMPLES
    readme = (FOLDER / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", readme, re.MULTILINE)
    assert sorted(rows) == EXAMPLES
    assert broken_links(readme, FOLDER) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    module = ast.parse(text)
    docstring = ast.get_docstring(module) or ""
    assert "skylark up\n" in docstring
    assert f"NAMESRV_ADDR=127.0.0.1:9876 python examples/{name}.py" in docstring
    end = module.body[0].end_lineno
    lines = [line for line in text.splitlines()[end:] if line.strip()]
    assert LINES_MIN <= len(lines) <= LINES_MAX


def test_mypy_strict_has_no_complaint() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(FOLDER)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_that_fails_or_hangs_is_noticed(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    failing, hanging = tmp_path / "failing.py", tmp_path / "hanging.py"
    failing.write_text("print('begun')\nraise ValueError")
    hanging.write_text("import threading\nthreading.Event().wait()")
    failed = run(failing, environ)
    assert (failed.code, failed.stdout) == (1, "begun\n")
    assert "Traceback" in failed.stderr
    assert run(hanging, environ, timeout_s=0.1).code is None
