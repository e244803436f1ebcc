"""Filter for the stderr of Spark's processes: drops known warnings that look like failures.

Java warns about a module that Spark always requests, and about a library that is older than this
Java; PySpark's daemon prints a traceback when a session ends while a worker is still writing.
No setting turns these off. :func:`without_noise` drops them and passes on every other line.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Final

_WARNINGS: Final = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"Warning: Java versions > Java 11 can only operate in restricted mode",
)
_OPENINGS: Final = (
    b"PySpark daemon failed to flush the output to the worker process:",
    b"Traceback (most recent call last):",
)
_DAEMON_FRAME: Final = re.compile(rb'  File ".*[/\\]pyspark[/\\]daemon\.py", ')
#: Errors of such a worker: the JVM has closed its end of the socket.
_HANGUPS: Final = (b"BrokenPipeError: ", b"ConnectionResetError: ")


def without_daemon_tracebacks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Drop the tracebacks of PySpark's daemon that are due to a closed connection.

    A traceback is kept until one of its lines decides what it is. Several workers may write at
    once, and any may be killed while it writes: lines that are undecided at the end are dropped.
    """
    held: list[bytes] = []
    expected = 0  # last lines of tracebacks that were dropped together with another one
    for line in lines:
        undecided = bool(held) and (not line.strip() or line.startswith(b"   "))
        if undecided or line.startswith(_OPENINGS) or _DAEMON_FRAME.match(line):
            held.append(line)
        elif line.startswith(_HANGUPS) and any(map(_DAEMON_FRAME.match, held)):
            expected += held.count(_OPENINGS[-1] + b"\n") - 1
            held.clear()
        elif line.startswith(_HANGUPS) and expected > 0 and not held:
            expected -= 1
        else:
            yield from held
            held.clear()
            yield line


@contextmanager
def without_noise() -> Iterator[None]:
    """Give processes that are started in this context a filtered stderr.

    A thread passes the other lines on for as long as these processes, workers included, live.
    """
    reading, writing = os.pipe()
    stderr = os.dup(2)

    def pass_on() -> None:
        with os.fdopen(reading, "rb") as lines, os.fdopen(stderr, "wb", 0) as target:
            kept = (line for line in lines if not line.startswith(_WARNINGS))
            for line in without_daemon_tracebacks(kept):
                target.write(line)

    # Flush our own lines first, so that they do not pass through the filter.
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    Thread(target=pass_on, name="stderr-of-java", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
