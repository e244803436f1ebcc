"""What it costs to start: servers beside Apache RocketMQ, imports, and a consumer in a test.

``make bench PART=startup``; ``ROWS='ready,memory*'`` picks rows, ``ARGS="--alone"`` leaves Apache
RocketMQ out (else a JDK and Maven are needed), ``ARGS="--rounds 9 --json FILE"`` measures more
often and appends results to a file, where a second run at the same commit finds them
(:mod:`bench.harness`). A whole run takes about two minutes.

``ready``           from the call of the command to the line that says ``ready``: ``skylark up`` on
                    an empty folder, with its defaults. Apache: from the call of the name server,
                    and of the broker as soon as the first listens, until the broker says that it
                    has booted; heaps of 512 MB and files of 16 MB, which is kind to it
``memory idle``     memory that no file stands behind (``RssAnon``), some seconds after that, of
                    all processes: one for ``skylark up``, which is supervisor, name server and
                    broker; two for Apache
``memory apart``    the same, of ``skylark namesrv`` and ``skylark broker``; each by itself is in
                    the last column
``memory of three`` the same, of ``skylark up --brokers 2``: the supervisor, which is also the name
                    server, and two brokers
``import skylark``  in a new interpreter, without the time that this one needs to start
``import clients``  the same for what a program with a producer and a consumer imports
``first message``   with a broker of :mod:`skylark.testing` in this process, as the pytest fixtures
                    have it: from the call that creates a push consumer until its function has the
                    message that is there already. ``sync``: ``skylark.sync`` at ``sync_broker()``,
                    on loopback; ``aio``: ``skylark.aio`` at ``broker()``, without sockets

All are measured in alternating rounds, forward and backward, after one that does not count; a
figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TextIO

from bench.compare_load.systems import parse_memory
from bench.harness import (
    BenchError,
    Ledger,
    compile_package,
    current_commit,
    machine_facts,
    run_program,
)
from skylark import Message, MessageExt
from skylark.sync import Producer, PushConsumer
from skylark.testing import broker, sync_broker
from tests.interop.java import HOST, ApacheBroker, ApacheNamesrv
from tests.interop.process import ProcessError, draw_port
from tests.interop.toolchain import CURRENT, ToolchainError, check_tools, classpath, java_version

BENCH: Final = "startup"
ROUNDS: Final = 5
IDLE_S: Final = 3.0
START_TIMEOUT_S: Final = 120.0
MESSAGE_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.002
#: So that a disk that is more than three quarters full stops nobody.
SETTINGS: Final = {"diskMaxUsedSpaceRatio": "95"}

READY, MEMORY, APART = "ready", "memory idle", "memory apart"
THREE, IMPORT, CLIENTS = "memory of three", "import skylark", "import clients"
FIRST_SYNC, FIRST_AIO = "first message sync", "first message aio"
IMPORTS: Final = {
    IMPORT: "import skylark",
    CLIENTS: "from skylark import Message; from skylark.sync import Producer, PushConsumer",
}


@dataclass(frozen=True)
class Row:
    """``limit`` is the goal: the figure is to be below it."""

    name: str
    unit: str
    limit: float | None = None


ROWS: Final = (
    Row(READY, "s", 1.0),
    Row(MEMORY, "MB", 90.0),
    Row(APART, "MB", 90.0),
    Row(THREE, "MB"),
    Row(IMPORT, "ms", 150.0),
    Row(CLIENTS, "ms"),
    Row(FIRST_SYNC, "ms", 50.0),
    Row(FIRST_AIO, "ms", 50.0),
)

#: Figures by the name of the row; what they are made of under ``ROW: PART``.
Found = dict[str, float]


# ---- ours ---------------------------------------------------------------------------------------


@contextmanager
def skylark(*arguments: str) -> Iterator[tuple[int, float, str]]:
    """A server that runs: its process, the time until it was ready, and the line that said so."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", "--log-level", "warning", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        took_s = time.perf_counter() - began
        if not line.startswith("ready "):
            raise BenchError(f"skylark {arguments[0]} did not start")
        yield process.pid, took_s, line
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_TIMEOUT_S)


def up(folder: Path, *arguments: str) -> list[str]:
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    ports = ["--namesrv-port", str(draw_port()), "--broker-port", "0"]
    return ["up", "--data", str(folder / "data"), *ports, *settings, *arguments]


def own_memory(pid: int) -> float:
    """MB that no file stands behind."""
    return parse_memory(Path(f"/proc/{pid}/status").read_text()).own * (1 << 20) / 1e6


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def together(folder: Path, idle_s: float) -> Found:
    with skylark(*up(folder)) as (pid, took_s, _):
        time.sleep(idle_s)
        return {READY: took_s, MEMORY: own_memory(pid)}


def apart(folder: Path, idle_s: float) -> Found:
    files = {"namesrv": {"listenPort": str(draw_port()), "kvConfigPath": str(folder / "kv.json")}}
    with ExitStack() as stack:
        pids: dict[str, int] = {}
        for role in ("namesrv", "broker"):
            config = folder / f"{role}.conf"
            config.write_text("".join(f"{key}={value}\n" for key, value in files[role].items()))
            pids[role], _, line = stack.enter_context(skylark(role, "-c", str(config)))
            files["broker"] = {
                "listenPort": "0",
                "namesrvAddr": line.strip().rpartition("=")[2],
                "storePathRootDir": str(folder / "store"),
                **SETTINGS,
            }
        time.sleep(idle_s)
        parts = {f"{APART}: {role}": own_memory(pid) for role, pid in pids.items()}
        return {APART: sum(parts.values()), **parts}


def three(folder: Path, idle_s: float) -> Found:
    with skylark(*up(folder, "--brokers", "2")) as (pid, _, _):
        time.sleep(idle_s)
        parts = {f"{THREE}: supervisor": own_memory(pid)}
        for number, child in enumerate(children(pid), 1):
            parts[f"{THREE}: broker {number}"] = own_memory(child)
        return {THREE: sum(parts.values()), **parts}


def imports(_folder: Path, _idle_s: float) -> Found:
    found: Found = {}
    for row, statement in IMPORTS.items():
        program = (
            f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        found[row] = float(done.stdout) * 1e3
    return found


def first_messages(_folder: Path, _idle_s: float) -> Found:
    return {
        FIRST_SYNC: first_message_sync() * 1e3,
        FIRST_AIO: asyncio.run(first_message_aio()) * 1e3,
    }


def first_message_sync() -> float:
    """Seconds; the time is taken by the handler itself, on its thread."""
    handled_s: list[float] = []
    handled = threading.Event()

    def handle(_message: MessageExt) -> None:
        handled_s.append(time.perf_counter())
        handled.set()

    with sync_broker() as b, Producer("producers", b.options) as producer:
        topic, group = b.topic(), b.group()
        producer.send(Message(topic, b"hello"))
        began_s = time.perf_counter()
        consumer = PushConsumer(group, b.options)
        consumer.subscribe(topic, handle)
        with consumer:
            if not handled.wait(MESSAGE_TIMEOUT_S):
                raise BenchError(f"no message in {MESSAGE_TIMEOUT_S:g} s")
    return handled_s[0] - began_s


async def first_message_aio() -> float:
    handled: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def handle(_message: MessageExt) -> None:
        if not handled.done():
            handled.set_result(time.perf_counter())

    async with broker() as b, b.producer() as producer:
        topic, group = await b.topic(), await b.group()
        await producer.send(Message(topic, b"hello"))
        began_s = time.perf_counter()
        consumer = b.consumer(group)
        consumer.subscribe(topic, handle)
        async with consumer:
            try:
                return await asyncio.wait_for(handled, MESSAGE_TIMEOUT_S) - began_s
            except TimeoutError as error:
                raise BenchError(f"no message in {MESSAGE_TIMEOUT_S:g} s") from error


# ---- Apache's -----------------------------------------------------------------------------------


def apache(folder: Path, idle_s: float) -> Found:
    namesrv = ApacheNamesrv(folder=folder / "namesrv")
    with ExitStack() as stack:
        stack.callback(namesrv.kill)
        began = time.perf_counter()
        namesrv.launch()
        until_listening(namesrv)
        broker = ApacheBroker(namesrv.address, SETTINGS, folder=folder / "broker")
        stack.callback(broker.kill)
        broker.launch()
        broker.wait_ready()
        took_s = time.perf_counter() - began
        time.sleep(idle_s)
        return {READY: took_s, MEMORY: own_memory(namesrv.pid) + own_memory(broker.pid)}


def until_listening(namesrv: ApacheNamesrv) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while namesrv.running and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((HOST, namesrv.port), timeout=5):
            return
        time.sleep(POLL_S)
    raise namesrv.failure("does not listen")


# ---- results ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """One way to find figures, and the rows it finds."""

    take: Callable[[Path, float], Found]
    rows: tuple[str, ...]
    is_apache: bool = False


MEASURES: Final = (
    Measure(apache, (READY, MEMORY), is_apache=True),
    Measure(together, (READY, MEMORY)),
    Measure(apart, (APART,)),
    Measure(three, (THREE,)),
    Measure(imports, (IMPORT, CLIENTS)),
    Measure(first_messages, (FIRST_SYNC, FIRST_AIO)),
)


@dataclass
class Result:
    """What was found for one row; ``goal`` is a text and whether it was met."""

    case: str
    unit: str
    samples: list[float]
    apache: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    goal: tuple[str, bool] | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def ratio(self) -> float | None:
        """How many times more Apache takes."""
        return statistics.median(self.apache) / self.median if self.apache else None


def make_result(row: Row, ours: Sequence[Found], apaches: Sequence[Found]) -> Result:
    prefix = f"{row.name}: "
    parts = {
        name.removeprefix(prefix): statistics.median(found[name] for found in ours)
        for name in ours[0]
        if name.startswith(prefix)
    }
    theirs = [found[row.name] for found in apaches if row.name in found]
    result = Result(row.name, row.unit, [found[row.name] for found in ours], theirs, parts)
    if row.limit is not None:
        result.goal = f"under {row.limit:g} {row.unit}", result.median < row.limit
    return result


def shown(value: float, unit: str) -> str:
    return f"{value:,.2f}" if unit == "s" else f"{value:,.0f}"


def format_table(results: Sequence[Result]) -> str:
    lines = [("row", "unit", "median", "from", "to", "apache", "ratio", "goal", "parts")]
    for result in results:
        goal = ""
        if result.goal is not None:
            goal = f"{result.goal[0]}: {'met' if result.goal[1] else 'MISSED'}"
        theirs = statistics.median(result.apache) if result.apache else None
        lines.append(
            (
                result.case,
                result.unit,
                shown(result.median, result.unit),
                shown(min(result.samples), result.unit),
                shown(max(result.samples), result.unit),
                "" if theirs is None else shown(theirs, result.unit),
                "" if result.ratio is None else f"{result.ratio:.1f}x",
                goal,
                ", ".join(f"{name} {shown(x, result.unit)}" for name, x in result.parts.items()),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = {0, 1, 7, 8}
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# ---- the command --------------------------------------------------------------------------------


def select(patterns_text: str) -> list[Row]:
    """The rows that match, in order."""
    patterns = [pattern.strip() for pattern in patterns_text.split(",") if pattern.strip()] or ["*"]
    chosen = [row for row in ROWS if any(fnmatchcase(row.name, each) for each in patterns)]
    if not chosen:
        names = ", ".join(row.name for row in ROWS)
        raise BenchError(f"no row matches {patterns_text}; there are: {names}")
    return chosen


def measure(rows: Sequence[Row], options: argparse.Namespace) -> list[Result]:
    """Alternating rounds, after one that does not count."""
    names = {row.name for row in rows}
    taken = [
        each
        for each in MEASURES
        if names & set(each.rows) and not (each.is_apache and options.alone)
    ]
    found: dict[Measure, list[Found]] = {each: [] for each in taken}
    for number in range(-1, options.rounds):
        for each in taken if number % 2 else reversed(taken):
            with tempfile.TemporaryDirectory(
                dir=Path.cwd(), prefix=".bench-startup-", ignore_cleanup_errors=True
            ) as folder:
                figures = each.take(Path(folder), options.idle_s)
            if number >= 0:
                found[each].append(figures)
    apaches = [figures for each in taken if each.is_apache for figures in found[each]]
    results = []
    for row in rows:
        (ours,) = (found[each] for each in taken if row.name in each.rows and not each.is_apache)
        results.append(make_result(row, ours, apaches))
    return results


def finished(ledger: Ledger, stamp: Mapping[str, Any]) -> dict[str, Result]:
    """Results that need no second measurement; none while the commit is unknown."""
    found: dict[str, Result] = {}
    for entry in ledger.entries() if stamp["commit"] is not None else ():
        if all(entry.get(key) == value for key, value in stamp.items()):
            values = {key: entry[key] for key in Result.__dataclass_fields__}
            values["goal"] = tuple(values["goal"]) if values["goal"] else None
            found[entry["case"]] = Result(**values)
    return found


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    """Measure and print; whether all goals are met."""
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of rows")
    parser.add_argument("--json", type=Path, help="append results to this file and resume from it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="rest before memory is read")
    parser.add_argument("--alone", action="store_true", help="without Apache RocketMQ")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.idle_s < 0:
        raise BenchError("--rounds must be positive, and --idle-s not negative")
    rows = select(options.rows)
    facts = machine_facts()
    compile_package()
    if not options.alone:
        check_tools()
        classpath()  # fetches the jars, before anything is timed
        facts |= {"java": java_version(), "rocketmq": CURRENT}
    stamp = {"bench": BENCH, "commit": current_commit(Path(__file__).parent), "machine": facts}
    ledger = Ledger(options.json) if options.json else None
    results = finished(ledger, stamp) if ledger else {}
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    missing = [row for row in rows if row.name not in results]
    if missing:
        before = os.getloadavg()[0]
        for result in measure(missing, options):
            results[result.case] = result
            if ledger:
                ledger.append({**stamp, **asdict(result)})
        stdout.write(f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after\n")
    stdout.write(f"\n{format_table([results[row.name] for row in rows])}\n")
    return all(goal[1] for row in rows if (goal := results[row.name].goal))


if __name__ == "__main__":
    run_program(BENCH, run, ProcessError, ToolchainError)
