"""What a message costs the broker, whoever sends it, whatever it is and wherever it goes.

``make bench PART=coverage``; it needs what ``make bench PART=compare`` needs, for some rows Go and
Node (they are void without), and half an hour. ``ROWS='Java 4*'`` picks rows; ``ARGS`` may be:

``--seconds 3 --warm-up 3``  to make it small
``--json FILE``              to append each sample to a file, from which a second run goes on

A row is a cell of a matrix with four dimensions: the client that sends; what it sends; the topic;
the consumer, if there is one. Not the full product: every value occurs at least twice. Producers
have 16 threads, or as many sends under way, that wait for their acknowledgements; bodies have
100 B unless a row says otherwise. ``CPU`` is processor time of name server and broker per message
that was sent, for rows with a consumer per message that it took. Rows of Java clients are run
against Apache RocketMQ 5.5.0 as well.

Rows of the same *work* differ in the client only, or in a property of the topic that asks the
broker for nothing more. At the end the dearest of them is compared with the cheapest: of Java
clients, since the others are slower or quicker, and fewer requests in a read cost more each.

``python -m tools.coverage_map FILE`` makes the picture of ``docs/performance.md`` from the file.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from bench.compare_load.beside import BesideApache
from bench.compare_load.programs import LoadProgram, cost_of
from bench.compare_load.rows import Figure, Row, at_most
from bench.compare_load.session import Session
from bench.compare_load.summary import APACHE, Result
from bench.harness import ROOT, BenchError, run_program
from tests.interop.cpp import wheel_folder
from tests.interop.process import ProcessError
from tests.interop.toolchain import (
    CURRENT,
    FIELD_CLIENTS,
    MIDDLE_CLIENT,
    OLD_CLIENT,
    ToolchainError,
    filled,
)

PROGRAM: Final = "CoverageLoad"
THREADS: Final = 16
FOLDER: Final = Path(__file__).parent / "coverage_load"
PREPARE_TIMEOUT_S: Final = 600
JAVA: Final = {
    **{f"Java {version}": version for version in (*FIELD_CLIENTS, OLD_CLIENT, MIDDLE_CLIENT)},
    f"Java {CURRENT}": CURRENT,
    f"Java {CURRENT} binary": CURRENT,
}
OTHERS: Final = ("Go v2", "Node ali-ons", "C++ wheel", "Skylark")
NEW, OLD, MIDDLE, BINARY = f"Java {CURRENT}", "Java 4.9.8", "Java 5.1.4", f"Java {CURRENT} binary"
#: Queues and attributes of a topic.
WHERE: Final[Mapping[str, tuple[int, dict[str, str]]]] = {
    "plain": (16, {}),
    "NORMAL": (16, {"message.type": "NORMAL"}),
    "FIFO": (16, {"message.type": "FIFO"}),
    "1 queue": (1, {}),
    "64 queues": (64, {}),
}
#: The dearest of the same work, as a multiple of the cheapest.
SPREAD_MAX: Final = 1.15
RATIO_MAX: Final = 0.8


def _cell(who: str, what: str, where: str = "plain", how: str = "") -> Row:
    name = " / ".join(filter(None, (who, what, where, how)))
    goal = at_most(RATIO_MAX) if who in JAVA else None
    figures = (Figure("CPU", "us/message", goal), Figure("rate", "msg/s"))
    options: dict[str, str | int] = {"who": who, "what": what, "where": where, "how": how}
    # An attribute of the topic, and the number of its queues, ask the broker for nothing more.
    options["work"] = f"{what} / {how}" if how else what
    return Row(name, "load", "cell", figures, options)


def rows() -> list[Row]:
    return [
        *(_cell(who, "tag and key") for who in (*JAVA, *OTHERS)),
        *(_cell(who, "bare") for who in (NEW, "Java 4.4.0", OLD, "Node ali-ons")),
        *(
            _cell(who, "user properties")
            for who in (NEW, BINARY, "Java 4.7.1", MIDDLE, "Go v2", "C++ wheel")
        ),
        *(_cell(who, what) for what in ("traced", "delayed", "half") for who in (NEW, OLD)),
        *(_cell(who, "ordered") for who in (NEW, MIDDLE)),
        *(_cell(who, "compressed") for who in (NEW, OLD, "Skylark")),
        *(
            _cell(who, "tag and key", where)
            for where in ("NORMAL", "1 queue", "64 queues")
            for who in (NEW, MIDDLE)
        ),
        *(_cell(who, "ordered", "FIFO") for who in (NEW, MIDDLE)),
        *(
            _cell(who, "tag and key", how=how)
            for how in ("no filter", "one tag", "three tags", "SQL", "orderly", "broadcast")
            for who in (NEW, OLD)
        ),
    ]


# ---- programs ------------------------------------------------------------------------------------


class OtherProgram(LoadProgram):
    """A client in another language; it has the options and the records of the Java program."""

    def __init__(self, who: str, options: Mapping[str, object], folder: Path) -> None:
        super().__init__(PROGRAM, "produce", options, folder)
        self._who = who

    def command(self) -> list[str]:
        return [*_command(self._who), *self.arguments()]

    def environment(self) -> Mapping[str, str]:
        path = wheel_folder() if self._who == "C++ wheel" else ROOT
        return {**super().environment(), "HOME": str(self.folder), "PYTHONPATH": str(path)}


def _command(who: str) -> list[str]:
    if who == "Skylark":
        return [sys.executable, "-m", "bench.coverage_load.our_producer"]
    if who == "C++ wheel":
        return [sys.executable, str(FOLDER / "cpp_producer.py")]
    if who == "Go v2":
        return [str(_made("go", _build_go) / "load")]
    return [_tool("node"), str(_made("node", _install_node) / "load.js")]


def _made(language: str, make: Callable[[Path], None]) -> Path:
    """The folder with the program of this language, made anew when its sources have changed."""
    digest = hashlib.sha256()
    for source in sorted((FOLDER / language).iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return filled(f"coverage-{language}-{digest.hexdigest()[:16]}", make)


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise BenchError(f"{name} is not in PATH: the rows of this client need it")
    return path


def _build_go(target: Path) -> None:
    _prepare([_tool("go"), "build", "-o", str(target / "load"), "."], FOLDER / "go")


def _install_node(target: Path) -> None:
    for name in ("package.json", "package-lock.json", "load.js"):
        shutil.copy(FOLDER / "node" / name, target / name)
    _prepare([_tool("npm"), "ci", "--silent", "--no-audit", "--no-fund"], target)


def _prepare(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PREPARE_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise BenchError(f"{' '.join(command[:2])} failed: {(done.stderr or done.stdout)[-500:]}")


def cell(session: Session, row: Row) -> dict[str, Any]:
    """Measure one cell."""
    who, what, where, how = (str(row.options[name]) for name in ("who", "what", "where", "how"))
    if who not in JAVA and session.system.name == APACHE:
        return {"figures": {}}
    queues, attributes = WHERE[where]
    topic = session.topic(queues, attributes)
    common: dict[str, object] = {"namesrv": session.system.namesrv, "topic": topic}
    folder = session.system.folder / f"coverage-{topic}"
    produce = common | {"group": "coverage", "threads": THREADS, "what": what}
    producer: LoadProgram
    if who in JAVA:
        flags = ["-Drocketmq.serialize.type=ROCKETMQ"] if who == BINARY else []
        producer = LoadProgram(
            *(PROGRAM, "produce", produce, folder / "produce"),
            version=JAVA[who],
            jvm_flags=flags,
        )
    else:
        producer = OtherProgram(who, produce, folder / "produce")
    if not how:
        with producer:
            cost = cost_of(session, [producer], producer)
    else:
        consume = common | {"group": session.group_at_start(topic), "how": how}
        consumer = LoadProgram(
            PROGRAM, "consume", consume, folder / "consume", version=JAVA.get(who, CURRENT)
        )
        with consumer, producer:
            cost = cost_of(session, [consumer, producer], consumer)
    return {"figures": cost, "notes": {"failed_sends": producer.records[-1]["failed"]}}


# ---- the same work -------------------------------------------------------------------------------


def spreads(cells: Sequence[Row], results: Sequence[Result]) -> dict[str, float]:
    """For each kind of work, what its dearest Java cell costs us, as a multiple of its cheapest."""
    costs: dict[str, list[float]] = {}
    by_row = {result.row: result for result in results if result.figure == "CPU"}
    for row in cells:
        result = by_row.get(row.name)
        if row.options["who"] in JAVA and result is not None and result.skylark:
            middle = sorted(result.skylark)[len(result.skylark) // 2]
            costs.setdefault(str(row.options["work"]), []).append(middle)
    return {work: max(found) / min(found) for work, found in costs.items() if len(found) > 1}


class Coverage(BesideApache):
    """Compares rows of the same work, too."""

    def judge(self, results: Sequence[Result], stdout: TextIO) -> bool:
        chosen = [row for row in self.rows if any(row.name == each.row for each in results)]
        found = spreads(chosen, results)
        stdout.write("\nthe dearest Java client of the same work beside the cheapest:\n")
        for work, spread in found.items():
            verdict = "" if spread <= SPREAD_MAX else f"  MISSED: at most {SPREAD_MAX}x"
            stdout.write(f"{work:<30} {spread:.2f}x{verdict}\n")
        return super().judge(results, stdout) and max(found.values(), default=1) <= SPREAD_MAX


COVERAGE: Final = Coverage(
    name="coverage",
    rows=rows(),
    measures={"cell": cell},
    program=PROGRAM,
    seconds=6.0,
    warm_up_s=5.0,
    rounds=1,
)


if __name__ == "__main__":
    run_program(COVERAGE.name, COVERAGE.run, ProcessError, ToolchainError)
