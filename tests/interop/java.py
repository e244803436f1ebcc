"""Apache RocketMQ beside us: its servers, its mqadmin, and Java programs of our own.

    with ApacheNamesrv() as namesrv, ApacheBroker(namesrv.address) as broker, MqAdmin() as mqadmin:
        shown = mqadmin.run("clusterList", "-n", namesrv.address)
        records = run_program("SendAndConsume", {"namesrv": namesrv.address, "topic": "T", ...})

Servers listen on free ports of this machine, announce 127.0.0.1, and keep configuration, store and
logs in a folder of their own. ``broker.kill()`` followed by ``broker.start()`` is a crash and a
restart on the same store and the same ports.

Every Java process ends with its context manager, and at the latest with the test run itself (see
``java/Leashed.java``).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.interop.process import ManagedProcess, draw_port
from tests.interop.toolchain import CURRENT, classpath, compiled, tool

HOST: Final = "127.0.0.1"

_MQADMIN_CLASS: Final = "org.apache.rocketmq.tools.command.MQAdminStartup"

#: One line of a Java program's standard output.
Record = dict[str, object]

_LOGGING: Final = Path(__file__).resolve().parent / "java" / "logback.xml"

# RocketMQ reaches into packages that Java 17 has closed.
_JVM_FLAGS: Final = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-XX:+UseSerialGC",
    f"-Drmq.logback.configurationFile={_LOGGING}",
)

# Small files: tests start many brokers, and a fresh store of the defaults takes gigabytes.
_BROKER_DEFAULTS: Final = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "bindAddress": HOST,
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    "diskMaxUsedSpaceRatio": "98",
}


class JavaProcess(ManagedProcess):
    """A Java main class in a folder of its own."""

    def __init__(
        self,
        name: str,
        *,
        main_class: str,
        version: str = CURRENT,
        folder: Path | None = None,
        heap_mb: int = 512,
    ) -> None:
        super().__init__(name, folder=folder)
        self._main_class = main_class
        self._version = version
        self._heap_mb = heap_mb

    def arguments(self) -> list[str]:
        """What follows the main class on the command line."""
        return []

    def command(self) -> list[str]:
        path = f"{compiled(self._main_class, self._version)}{os.pathsep}{classpath(self._version)}"
        return [*_java(self.folder, self._heap_mb, path), self._main_class, *self.arguments()]

    def environment(self) -> Mapping[str, str]:
        return _java_environment(self.folder)

    def log_files(self) -> list[Path]:
        return [*super().log_files(), self.folder / "rocketmq.log"]


class ApacheServer(JavaProcess):
    """A server of the Apache release, configured by a properties file.

    ``settings`` holds properties by their Java names; they override what the harness sets.
    Changes made to it between two starts take effect. The end of a ``with`` block kills, because
    an orderly end takes Apache's broker 15 s; call ``stop()`` before, where it matters.
    """

    _PORT_OFFSETS: tuple[int, ...] = (0,)

    def __init__(
        self,
        name: str,
        startup_class: str,
        settings: Mapping[str, object],
        *,
        folder: Path | None,
        port: int | None,
        heap_mb: int,
        version: str,
    ) -> None:
        super().__init__(
            name, main_class="Leashed", version=version, folder=folder, heap_mb=heap_mb
        )
        self._startup_class = startup_class
        self.port = port or draw_port(self._PORT_OFFSETS)
        self.settings: dict[str, object] = {"listenPort": self.port, **settings}

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def arguments(self) -> list[str]:
        config = self.folder / f"{self.name}.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        # Servers of 4.x do not start without this file.
        logging = self.folder / "conf" / f"logback_{self.name}.xml"
        logging.parent.mkdir(exist_ok=True)
        logging.write_bytes(_LOGGING.read_bytes())
        return [self._startup_class, "-c", str(config)]

    def wait_ready(self) -> None:
        self.wait_for_line("boot success")

    def close(self) -> None:
        self.kill()
        super().close()


class ApacheNamesrv(ApacheServer):
    """The Apache name server."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        folder: Path | None = None,
        port: int | None = None,
        heap_mb: int = 512,
        version: str = CURRENT,
    ) -> None:
        super().__init__(
            "namesrv",
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            {"bindAddress": HOST, **(settings or {})},
            folder=folder,
            port=port,
            heap_mb=heap_mb,
            version=version,
        )


class ApacheBroker(ApacheServer):
    """The Apache broker; ``namesrv`` is one or more ``host:port`` separated by semicolons."""

    # The broker itself, its fast port for producers, its port for replicas.
    _PORT_OFFSETS = (0, -2, 1)

    def __init__(
        self,
        namesrv: str,
        settings: Mapping[str, object] | None = None,
        *,
        folder: Path | None = None,
        port: int | None = None,
        heap_mb: int = 512,
        version: str = CURRENT,
    ) -> None:
        super().__init__(
            "broker",
            "org.apache.rocketmq.broker.BrokerStartup",
            {},
            folder=folder,
            port=port,
            heap_mb=heap_mb,
            version=version,
        )
        self.store = self.folder / "store"
        self.settings |= _BROKER_DEFAULTS
        self.settings |= {
            "namesrvAddr": namesrv,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
        }
        self.settings |= settings or {}

    @property
    def cluster(self) -> str:
        return str(self.settings["brokerClusterName"])

    @property
    def broker_name(self) -> str:
        return str(self.settings["brokerName"])


class JavaProgram(JavaProcess):
    """A program of ``tests/interop/java``: options in, records out (see ``Harness.java``).

    ``version`` names the release whose jars it is compiled and run with.
    """

    def __init__(
        self,
        program: str,
        options: Mapping[str, str | int] | None = None,
        *,
        version: str = CURRENT,
        folder: Path | None = None,
        heap_mb: int = 256,
    ) -> None:
        super().__init__(
            program, main_class=program, version=version, folder=folder, heap_mb=heap_mb
        )
        self._options = dict(options or {})

    def wait_ready(self) -> None:
        """A program is in use from its start; what it prints says how far it is."""

    def arguments(self) -> list[str]:
        return [f"{name}={value}" for name, value in self._options.items()]

    def next_record(self, timeout_s: float) -> Record | None:
        """The next record, or ``None`` when the program ended without another."""
        line = self.next_line(timeout_s)
        if line is None:
            return None
        record = json.loads(line)
        assert isinstance(record, dict)
        return record

    def finish(self, timeout_s: float) -> list[Record]:
        """The records not yet read, after the program ended well within the deadline."""
        status = self.wait(timeout_s)
        records: list[Record] = []
        while (record := self.next_record(timeout_s)) is not None:
            records.append(record)
        if status:
            raise self.failure(f"failed with records {records}")
        return records


def run_program(
    program: str,
    options: Mapping[str, str | int],
    *,
    version: str = CURRENT,
    timeout_s: float = 120,
) -> list[Record]:
    """Run one of our Java programs to its end; its records."""
    with JavaProgram(program, options, version=version) as running:
        return running.finish(timeout_s)


class MqAdmin(JavaProgram):
    """The real mqadmin, many commands in one process.

    A command that fails prints a stack trace and reports success, so look at what was printed.
    Closing its client now and then costs a command 3 s: RocketMQ waits for a thread of its own.
    """

    def __init__(self, *, folder: Path | None = None) -> None:
        super().__init__("MqAdminDriver", folder=folder)

    def wait_ready(self) -> None:
        self.wait_for_line("ready")

    def run(self, *words: str, timeout_s: float = 60) -> str:
        """Run one command, for example ``run("topicList", "-n", address)``; all that it printed.

        A wrong usage, or no answer in time, costs a new process for the next command.
        """
        if any("\t" in word or "\n" in word for word in words):
            raise ValueError(f"a word may not hold a tab or a line break: {words}")
        if not self.running:
            self.stop()
            self.start()
        self.write_line("\t".join(words))
        try:
            record = self.next_record(timeout_s)
        except BaseException:
            self.kill()
            raise
        if record is None:
            raise self.failure(f"ended in {words}")
        if record["exited"]:
            self.wait(self.STOP_TIMEOUT_S)
        return str(record["output"])


def mqadmin_once(*words: str, timeout_s: float = 60) -> str:
    """One mqadmin command in a Java process of its own: slow, but nothing is between."""
    with tempfile.TemporaryDirectory(prefix="skylark-interop-") as home:
        done = subprocess.run(
            [*_java(Path(home), 256, classpath()), _MQADMIN_CLASS, *words],
            env=_java_environment(Path(home)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    return done.stdout


def _java(home: Path, heap_mb: int, path: str) -> list[str]:
    """The command line up to the main class; logs and defaults of RocketMQ go below ``home``."""
    heap = [f"-Xms{min(256, heap_mb)}m", f"-Xmx{heap_mb}m"]
    logs = [f"-Drocketmq.client.logRoot={home}", "-Drocketmq.client.logFileName=rocketmq.log"]
    return [tool("java"), *heap, *_JVM_FLAGS, f"-Duser.home={home}", *logs, "-cp", path]


def _java_environment(home: Path) -> dict[str, str]:
    """Our environment without what would change the behaviour of Java or RocketMQ."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "NAMESRV_ADDR")
        and not name.startswith("ROCKETMQ_")
    }
    return {**kept, "ROCKETMQ_HOME": str(home)}
