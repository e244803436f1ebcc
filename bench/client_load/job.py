"""What both sides of the client benchmark share: what to do, how it is timed, how it is reported.

A sample is a process of its own: ``python -m bench.client_load.SIDE JOB``, where ``JOB`` is a
:class:`Job` as JSON and the last line of its output a JSON object with what came of it. So the
processor time is the client's alone, and one sample cannot warm or burden the next. The other side,
the wheel, lives without our packages: nothing but the standard library here.
"""

from __future__ import annotations

import json
import resource
import time
from dataclasses import asdict, dataclass
from typing import Any

#: In flight without batching; the wheel's window too.
WINDOW = 64
WARM_UP = 200
SEND_TIMEOUT_S = 10
#: Messages a second, where latency is measured.
RATE = 1_000


@dataclass(frozen=True)
class Job:
    """What one process does."""

    kind: str  #: send, consume, pop, arrow, latency, memory
    how: str
    namesrv: str
    topic: str
    count: int
    body_size: int
    group: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        return Job(**json.loads(text))


def bodies(count: int, size: int) -> list[str]:
    """Texts of one size, all different, without a NUL byte (the wheel ends a body there)."""
    filler = "x" * (size - 8)
    return [f"{number:08d}{filler}" for number in range(count)]


class Watch:
    """Wall and processor time, of all threads, since :meth:`start`."""

    def __init__(self) -> None:
        self._wall = self._processor = 0.0
        self.wall_s = self.processor_s = 0.0

    def start(self) -> None:
        self._processor = _processor_s()
        self._wall = time.perf_counter()

    def stop(self) -> None:
        self.wall_s = time.perf_counter() - self._wall
        self.processor_s = _processor_s() - self._processor

    def report(self, count: int, **more: Any) -> dict[str, Any]:
        """``count`` messages were done in this time."""
        times = {"wall_s": self.wall_s, "processor_s": self.processor_s}
        return {"count": count, **times, **more}


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
