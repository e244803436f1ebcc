"""Child processes for interoperability tests: start, watch the output, stop, leave none behind.

Every child writes its standard output and standard error to files in a folder of its own. Readers
poll those files, so that no pipe can fill up, no thread is needed, and the whole output is still
there when a test fails. Standard input is a pipe that stays open: a child that watches it (see
``java/Leashed.java``) ends by itself even when the test run is killed.

A process object may be started again after :meth:`ManagedProcess.stop` or
:meth:`ManagedProcess.kill`: same folder, same command, new output files. This is how crash tests
restart a broker on its store.
"""

from __future__ import annotations

import random
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

T = TypeVar("T")

_POLL_INTERVAL_S = 0.02
_TAIL_SIZE_MAX = 4000

# Below the range that the kernel gives to outgoing connections, so that nobody takes a port
# between our look and the server's bind.
_PORT_MIN, _PORT_MAX = 20_000, 30_000
_drawn_ports: set[int] = set()


class ProcessError(Exception):
    """A child process did not do what the test needs; the text ends with its logs."""


def poll_until(check: Callable[[], T | None], *, timeout_s: float, what: str) -> T:
    """Call ``check`` until its result is true and return it; ``what`` names it in the error."""
    deadline = time.monotonic() + timeout_s
    while not (result := check()):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s, last seen: {result!r}")
        time.sleep(_POLL_INTERVAL_S)
    return result


def draw_port(offsets: Sequence[int] = (0,)) -> int:
    """A port ``p`` such that every ``p + offset`` is free now and was not drawn before."""
    for _ in range(200):
        port = random.randrange(_PORT_MIN, _PORT_MAX)
        wanted = {port + offset for offset in offsets}
        if wanted & _drawn_ports:
            continue
        with ExitStack() as held:
            try:
                for each in wanted:
                    held.enter_context(socket.socket()).bind(("", each))
            except OSError:
                continue
        _drawn_ports.update(wanted)
        return port
    raise ProcessError(f"found no free port with offsets {list(offsets)}")


class ManagedProcess(ABC):
    """One child process with a folder, output files and a deadline for everything.

    ``folder`` is the child's working directory. It is kept when the caller names one, otherwise a
    temporary folder is made, and removed by :meth:`close`.
    """

    START_TIMEOUT_S = 60.0
    STOP_TIMEOUT_S = 60.0

    def __init__(self, name: str, *, folder: Path | None = None) -> None:
        self.name = name
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="skylark-interop-")
            folder = Path(self._temporary.name)
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: BinaryIO | None = None
        self._start_count = 0

    @abstractmethod
    def command(self) -> list[str]:
        """The command line; called at every start, after the folder exists."""

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """The whole environment of the child."""

    @abstractmethod
    def wait_ready(self) -> None:
        """Return when the started child can be used."""

    def log_files(self) -> list[Path]:
        """Files whose ends are shown when something fails."""
        return [self._output("out"), self._output("err")]

    # Start and stop

    def start(self) -> Self:
        """Start the child and wait until it is ready; on failure none is left running."""
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> Self:
        """Start the child without waiting until it is ready."""
        assert self._process is None, f"{self.name} runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._start_count += 1
        with self._output("out").open("wb") as out, self._output("err").open("wb") as err:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )
        self._reader = self._output("out").open("rb")
        return self

    def stop(self) -> int | None:
        """Ask the child to end (SIGTERM), insist after a deadline (SIGKILL); its exit status."""
        if self._process is None:
            return None
        self._process.terminate()
        try:
            self._process.wait(self.STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._release()

    def kill(self) -> None:
        """End the child at once (SIGKILL), as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._release()

    def wait(self, timeout_s: float) -> int:
        """Wait until the child ends by itself; its exit status."""
        try:
            return self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failure(f"still runs after {timeout_s:g} s") from None

    def close(self) -> None:
        """End the child, if it runs, and remove the folder if it is temporary."""
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Talking to the child

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def next_line(self, timeout_s: float) -> str | None:
        """The next line of standard output, or ``None`` if the child ended without another."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = not self.running  # asked before reading: then all it wrote is in the file
            line = self._read_line(ended)
            if line is not None or ended:
                return line
            if time.monotonic() >= deadline:
                raise self.failure(f"printed nothing more within {timeout_s:g} s")
            time.sleep(_POLL_INTERVAL_S)

    def waiting_lines(self) -> list[str]:
        """The complete lines of standard output that are there and not read yet."""
        lines = []
        while (line := self._read_line(ended=False)) is not None:
            lines.append(line)
        return lines

    def wait_for_line(self, text: str, timeout_s: float | None = None) -> str:
        """The next line of standard output that contains ``text``."""
        deadline = time.monotonic() + (timeout_s or self.START_TIMEOUT_S)
        while (line := self.next_line(max(0.0, deadline - time.monotonic()))) is not None:
            if text in line:
                return line
        raise self.failure(f"ended before it printed {text!r}")

    def write_line(self, text: str) -> None:
        """Send one line to the child's standard input."""
        stdin = self._running().stdin
        assert stdin is not None
        stdin.write(text.encode() + b"\n")
        stdin.flush()

    def failure(self, what: str) -> ProcessError:
        """An error that says what happened and shows the ends of the logs."""
        status = self._process.poll() if self._process else None
        parts = [f"{self.name} {what} (exit status {status})"]
        parts += [f"--- end of {path}\n{_tail(path)}" for path in self.log_files()]
        return ProcessError("\n".join(parts))

    # Inside

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def _output(self, stream: str) -> Path:
        return self.folder / f"{self.name}-{self._start_count}.{stream}"

    def _read_line(self, ended: bool) -> str | None:
        """The next complete line, if there is one; ``ended`` makes any rest a line."""
        assert self._reader is not None
        position = self._reader.tell()
        line = self._reader.readline()
        if line.endswith(b"\n") or (line and ended):
            return line.decode(errors="replace").rstrip("\r\n")
        self._reader.seek(position)
        return None

    def _release(self) -> int:
        """Reap the child and close our ends; what it printed stays in the files."""
        process, self._process = self._running(), None
        status = process.wait()
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        return status


def _tail(path: Path) -> str:
    if not path.exists():
        return "(no such file)"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_SIZE_MAX))
        return file.read().decode(errors="replace").rstrip() or "(empty)"
