"""The two systems that are compared, each a name server and a broker on an empty folder.

Apache RocketMQ runs as :mod:`tests.interop.java` starts it, but as it is meant for work: heap of
2 GB from the start, the collector that Java chooses for servers, and files of the sizes that are
its defaults. Skylark runs by its command, ``skylark up``. Both listen on loopback only, get the
same settings on top of their defaults, and end with this process at the latest, because each holds
a pipe from it.

What a system costs is the sum over its processes, from ``/proc``.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.compare_load.summary import APACHE, SKYLARK
from bench.harness import BenchError
from skylark.wire.codes import CURRENT_VERSION, RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.interop.java import HOST, ApacheBroker, ApacheNamesrv
from tests.interop.process import ManagedProcess, draw_port

HEAP_MB: Final = 2_048
START_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.01
FIRST_TOPIC: Final = "compare-first"

#: For both: a disk that is more than three quarters full stops neither, and SQL filters work.
COMMON: Final = {"diskMaxUsedSpaceRatio": "95", "enablePropertyFilter": "true"}
#: What Apache has by itself; the classes used here are made for tests and set smaller ones.
APACHE_DEFAULTS: Final = {
    "mappedFileSizeCommitLog": 1 << 30,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}


def for_work(command: Iterable[str], heap_mb: int) -> list[str]:
    """A Java command line made for tests, with the heap and the collector of a server."""
    heap = {"-Xms": f"-Xms{heap_mb}m", "-Xmx": f"-Xmx{heap_mb}m"}
    changed = [heap.get(word[:4], word) for word in command]
    return ["-XX:+UseG1GC" if word == "-XX:+UseSerialGC" else word for word in changed]


class WorkingBroker(ApacheBroker):
    """Apache's broker as it is meant for work."""

    def command(self) -> list[str]:
        return for_work(super().command(), HEAP_MB)


class SkylarkUp(ManagedProcess):
    """``skylark up``, ended with this process."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        super().__init__("skylark-up", folder=folder)
        self._settings = settings
        self.namesrv_port = draw_port()
        self.broker_port = draw_port((0, -2, 1))

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "tests.interop.leashed", "up"]
        words += ["--data", str(self.folder / "data")]
        words += ["--namesrv-port", str(self.namesrv_port), "--broker-port", str(self.broker_port)]
        for key, value in self._settings.items():
            words += ["--set", f"{key}={value}"]
        return words

    def environment(self) -> Mapping[str, str]:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path}

    def wait_ready(self) -> None:
        self.wait_for_line("ready ")


# ---- what a process costs ------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Resident memory in MiB: what no file stands behind, and pages of mapped files."""

    own: float
    mapped: float


def parse_memory(status: str) -> Memory:
    """From the text of ``/proc/PID/status``."""
    sizes = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    own, of_files, shared = (
        int(sizes[key].split()[0]) / 1024 for key in ("RssAnon", "RssFile", "RssShmem")
    )
    return Memory(own, of_files + shared)


def parse_processor_ticks(stat: str) -> int:
    """User and system time from the text of ``/proc/PID/stat``."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# ---- systems -------------------------------------------------------------------------------------


class System(ABC):
    """A name server and a broker; the block in which it runs starts and ends it."""

    name: str

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.folder = folder
        self.settings = {**COMMON, **settings}
        self.namesrv = ""
        self.broker = ""
        self.start_up_s = 0.0  #: until the first message was acknowledged
        self._stack = ExitStack()
        self._processes: list[ManagedProcess] = []

    @abstractmethod
    def launch(self) -> None:
        """Start all processes and set the addresses."""

    def __enter__(self) -> Self:
        try:
            began = time.perf_counter()
            self.launch()
            self._send_first()
            self.start_up_s = time.perf_counter() - began
            for process in self._processes:
                process.wait_ready()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def memory(self) -> Memory:
        found = [parse_memory(self._proc(each, "status")) for each in self._processes]
        return Memory(sum(each.own for each in found), sum(each.mapped for each in found))

    def open_files(self) -> float:
        """Descriptors, of connections too."""
        found = [Path(f"/proc/{each.pid}/fd") for each in self._processes]
        return float(sum(len(list(folder.iterdir())) for folder in found))

    def processor_s(self) -> float:
        """Seconds of processor time so far."""
        ticks = sum(parse_processor_ticks(self._proc(each, "stat")) for each in self._processes)
        return ticks / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _proc(process: ManagedProcess, name: str) -> str:
        return Path(f"/proc/{process.pid}/{name}").read_text()

    def _run(self, process: ManagedProcess) -> None:
        process.launch()
        self._stack.callback(process.kill)
        self._processes.append(process)

    def _send_first(self) -> None:
        """As a producer would: find the route of new topics, then send until it is taken."""
        route = Command(
            code=RequestCode.GET_ROUTEINFO_BY_TOPIC,
            opaque=1,
            version=CURRENT_VERSION,
            ext={"topic": "TBW102"},
        )
        message = Command(
            code=RequestCode.SEND_MESSAGE_V2,
            opaque=2,
            version=CURRENT_VERSION,
            ext={
                "a": "compare", "b": FIRST_TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0",
                "g": str(time.time_ns() // 1_000_000), "h": "0", "i": "WAIT\x01true",
            },
            body=b"first",
        )  # fmt: skip
        self._ask_until(self.namesrv, route)
        self._ask_until(self.broker, message)

    def _ask_until(self, address: str, request: Command) -> None:
        """Until the answer is that all is well."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with suppress(OSError):
                if ask(address, request).code == ResponseCode.SUCCESS:
                    return
            for process in self._processes:
                if not process.running:
                    raise process.failure("ended while it started")
            if time.monotonic() > deadline:
                raise BenchError(f"{self.name} takes longer than {START_TIMEOUT_S:g} s to start")
            time.sleep(POLL_S)


def ask(address: str, request: Command) -> Command:
    """One request on a connection of its own; raises OSError where there is no answer."""
    host, _, port = address.rpartition(":")
    frames = FrameBuffer()
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(encode_frame(request))
        while data := connection.recv(1 << 16):
            for command in frames.feed(data):
                if command.is_response:
                    return command
    raise ConnectionResetError(f"{address} hung up")


class ApacheSystem(System):
    """Apache RocketMQ; its broker starts when the name server answers."""

    name = APACHE

    def launch(self) -> None:
        namesrv = ApacheNamesrv(folder=self.folder / "namesrv")
        self._run(namesrv)
        self.namesrv = namesrv.address
        self._wait_listening(namesrv)
        settings = {**APACHE_DEFAULTS, **self.settings}
        broker = WorkingBroker(namesrv.address, settings, folder=self.folder / "broker")
        self._run(broker)
        self.broker = broker.address

    def _wait_listening(self, namesrv: ApacheNamesrv) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection((HOST, namesrv.port), timeout=5).close()
            except OSError:
                if time.monotonic() > deadline or not namesrv.running:
                    raise namesrv.failure("does not listen") from None
                time.sleep(POLL_S)
            else:
                return


class SkylarkSystem(System):
    """Skylark with its released defaults."""

    name = SKYLARK

    def launch(self) -> None:
        process = SkylarkUp(self.folder / "skylark", self.settings)
        self._run(process)
        self.namesrv = f"{HOST}:{process.namesrv_port}"
        self.broker = f"{HOST}:{process.broker_port}"


SYSTEMS: Final[Mapping[str, type[System]]] = {APACHE: ApacheSystem, SKYLARK: SkylarkSystem}
