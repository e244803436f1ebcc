"""What Spark's processes say on stderr that is nobody's business.

Java warns of a module that Spark always asks for, a library of Java's age, and PySpark's daemon
prints a traceback when a session ends while one of its workers still has an answer to give. Nothing
turns these off, and to a user they look like a failure. :func:`without_noise` leaves them out;
everything else is passed on, line by line.
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
#: What such a worker meets: the JVM has closed its end of the socket.
_HANGUPS: Final = (b"BrokenPipeError: ", b"ConnectionResetError: ")


def without_daemon_tracebacks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Drop the tracebacks of PySpark's daemon that tell of a JVM which has hung up.

    A traceback is held back until a line decides what it is. Several workers may speak at once, and
    any of them may be ended in the middle of it: what is undecided at the end is dropped.
    """
    held: list[bytes] = []
    expected = 0  # lines that end tracebacks which were dropped together with another one
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
    """Give processes that are started meanwhile a stderr that leaves out the noise.

    A thread passes everything else on as long as they live: what workers say goes that way.
    """
    reading, writing = os.pipe()
    stderr = os.dup(2)

    def pass_on() -> None:
        with os.fdopen(reading, "rb") as lines, os.fdopen(stderr, "wb", 0) as target:
            told = (line for line in lines if not line.startswith(_WARNINGS))
            for line in without_daemon_tracebacks(told):
                target.write(line)

    # Lines of our own must not wait in the buffer until they would go that way as well.
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    Thread(target=pass_on, name="stderr-of-java", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
