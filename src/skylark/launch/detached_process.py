"""Runs work in a background process without a terminal; the parent waits until it is ready.

::

    parent   in_background(work, log, failure) -------- reads ---------> ready line, or raises
               | fork                                      ^
    child      setsid, stdio to the log, work(ready) -- one message --> goes on until it is done

The child has its own session and ignores SIGHUP, so neither Ctrl-C nor closing the terminal affects
it. It sends the parent one message about its start: the line that ``work`` passes to ``ready``, or
the text and the exit code of an earlier error. If the child dies before that, the pipe closes and
the parent notices at once; so no timeout is needed, however long a recovery takes. Errors after
``ready`` are only in the log, which :func:`limit_log` keeps small.

Call it while the process has one thread, because ``fork`` copies only the calling thread.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from skylark.core.clock import Clock
from skylark.core.errors import SkylarkError
from skylark.core.interrupts import held_signals, release_signals

#: A log larger than this is moved to ``NAME.1``, at the start and while it runs.
LOG_SIZE_MAX: Final = 10 << 20
LOG_INTERVAL_S: Final = 5.0
_MESSAGE_SIZE_MAX: Final = 1 << 16

Failure = Callable[[BaseException], tuple[str, int]]


class BackgroundError(SkylarkError):
    """The work ended before it was ready; ``exit_code`` is the exit code for its error."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class _Message(msgspec.Struct):
    """The message of the child; ``exit_code`` is None if it is ready."""

    text: str
    exit_code: int | None = None


def in_background(
    work: Callable[[Callable[[str], None]], None], log: Path, failure: Failure
) -> str:
    """Start ``work`` and return what it passes to its argument; raises BackgroundError, OSError.

    ``failure`` returns the text and the exit code for an error.
    """
    log_fd = _open_log(log)
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = 0
    try:
        with held_signals():  # an interrupt comes before the fork, or ends the child
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                _run_child(work, log_fd, writing, failure)
            os.close(log_fd)
            os.close(writing)
        data = _read_all(reading)
    except BaseException:
        if pid:  # our child, not reaped yet: its id is not reused
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
        raise
    finally:
        os.close(reading)
    if not data:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        raise BackgroundError(
            f"the background process ended with {code} before it was ready; see {log}", 1
        )
    message = msgspec.json.decode(data, type=_Message)
    if message.exit_code is not None:
        os.waitpid(pid, 0)
        raise BackgroundError(message.text, message.exit_code)
    return message.text


def _run_child(
    work: Callable[[Callable[[str], None]], None], log_fd: int, writing: int, failure: Failure
) -> None:
    """Run the child; never returns, so that nothing of the parent is cleaned up twice."""
    code = 1
    try:
        _leave_terminal(log_fd)
        waiting = [writing]

        def send(message: _Message) -> None:
            if waiting:  # only the first message counts; the parent may have ended
                with suppress(BrokenPipeError):
                    os.write(waiting[0], msgspec.json.encode(message))
                os.close(waiting.pop())

        try:
            work(lambda line: send(_Message(line)))
            code = 0
        except BaseException as error:  # noqa: BLE001 - the boundary of the process
            text, code = failure(error)
            sys.stderr.write(f"Error: {text}\n")
            sys.stderr.flush()
            send(_Message(text, code))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # a full disk: there is no place to report it
                stream.flush()
        os._exit(code)


def _leave_terminal(log_fd: int) -> None:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    release_signals()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log_fd)


def _open_log(path: Path) -> int:
    with suppress(FileNotFoundError):
        if path.stat().st_size > LOG_SIZE_MAX:
            path.replace(path.with_name(f"{path.name}.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


async def limit_log(log: Path, clock: Clock) -> None:
    """Keep the log of a cluster small while its processes write to it, until cancelled.

    They all have the file open for appending, so it cannot be renamed: it is copied, and emptied
    when the copy has everything. A line written between these two steps is lost. A crash in
    between leaves the lines in both files.
    """
    while True:
        await clock.sleep(LOG_INTERVAL_S)
        with suppress(OSError):  # a full disk: it is tried again
            await asyncio.to_thread(_empty_if_large, log)


def _empty_if_large(log: Path) -> None:
    if log.stat().st_size <= LOG_SIZE_MAX:
        return
    with log.open("r+b") as source, log.with_name(f"{log.name}.1").open("wb") as target:
        shutil.copyfileobj(source, target)
        target.flush()
        source.truncate(0)


def _read_all(fd: int) -> bytes:
    data = b""
    while len(data) < _MESSAGE_SIZE_MAX and (more := os.read(fd, _MESSAGE_SIZE_MAX)):
        data += more
    return data
