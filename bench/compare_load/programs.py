"""Java programs of ours that make load until they are ended, and report what they did.

A program prints JSON records, one a line, each with ``event`` and ``at_ms`` (of the epoch). It
works from its start, so a measurement is the records between two moments.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.compare_load.session import CLIENT_HEAP_MB, Session
from bench.harness import BenchError
from tests.interop.java import JavaProcess
from tests.interop.toolchain import CURRENT

START_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.2


class LoadProgram(JavaProcess):
    """One program; it works until the end of its block."""

    def __init__(
        self,
        main_class: str,
        kind: str,
        options: Mapping[str, object],
        folder: Path,
        *,
        version: str = CURRENT,
        jvm_flags: Sequence[str] = (),
    ) -> None:
        """``version``: of the client."""
        super().__init__(
            kind, main_class=main_class, version=version, folder=folder, heap_mb=CLIENT_HEAP_MB
        )
        self._jvm_flags = jvm_flags
        self._options = {"kind": kind, **options}
        self.records: list[dict[str, Any]] = []

    def command(self) -> list[str]:
        java, *rest = super().command()
        return [java, *self._jvm_flags, *rest]

    def arguments(self) -> list[str]:
        return [f"{name}={value}" for name, value in self._options.items()]

    def wait_ready(self) -> None:
        """Wait for the first record, which the program prints when its client has started."""
        self.records.append(json.loads(self.wait_for_line('"event"', START_TIMEOUT_S)))

    def read(self) -> None:
        """Take the records since the last call; raises if the program has ended."""
        if not self.running:
            raise self.failure("ended early")
        self.records += [json.loads(line) for line in self.waiting_lines()]

    def close(self) -> None:
        self.kill()  # the programs have no orderly end
        super().close()


def work(programs: Sequence[LoadProgram], seconds: float) -> None:
    """Let programs work for so long, and take their records."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for program in programs:
            program.read()
        time.sleep(min(left, POLL_S))


def between(
    records: Sequence[Mapping[str, Any]], begin_ms: float, end_ms: float
) -> list[Mapping[str, Any]]:
    """The records of this time."""
    return [each for each in records if begin_ms <= each["at_ms"] <= end_ms]


def rate_between(records: Sequence[Mapping[str, Any]], begin_ms: float, end_ms: float) -> float:
    """Messages per second by the records with a ``count`` in this time."""
    counts = [
        (each["at_ms"], each["count"])
        for each in between(records, begin_ms, end_ms)
        if "count" in each
    ]
    if len(counts) < 2:
        raise BenchError("a program reported too little: measure for longer")
    (first_ms, first), (last_ms, last) = counts[0], counts[-1]
    return float((last - first) / (last_ms - first_ms) * 1_000)


def cost_of(
    session: Session, programs: Sequence[LoadProgram], counted: LoadProgram
) -> dict[str, float]:
    """Let programs work; the rate of one of them, and what each of its messages cost the system."""
    work(programs, session.timing.warm_up_s)
    begin, begin_ms = session.mark(), time.time() * 1_000
    work(programs, session.timing.seconds)
    end, end_ms = session.mark(), time.time() * 1_000
    rate = rate_between(counted.records, begin_ms, end_ms)
    if not rate:
        raise BenchError("no message was counted; see the logs of the programs")
    processor_s = (end.processor_s - begin.processor_s) / (end.at_s - begin.at_s)
    return {"rate": rate, "CPU": processor_s / rate * 1e6}
