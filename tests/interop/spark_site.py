"""Spark for interoperability tests: a session, and clusters and servers started from its wheel.

Everything listens on 127.0.0.1, and every process ends with its context manager. What the wheel
lacks are the start scripts of a standalone cluster; ``spark-class`` starts its classes as well.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from skylark.spark.java import java_home
from skylark.spark.session import make_session
from tests.interop.process import ManagedProcess, draw_port, poll_until

HOST: Final = "127.0.0.1"
ROOT: Final = Path(__file__).resolve().parents[2]
#: Python workers may start slowly on a busy machine.
PATIENT: Final = {"spark.python.authenticate.socketTimeout": "120s"}
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_CONNECT: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"

#: Runs a command that ends with us: when it is told to, or when the test run is gone.
_LEASH: Final = """
import os, signal, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
def watch():
    while os.read(0, 4096):
        pass
    child.kill()
threading.Thread(target=watch, daemon=True).start()
os._exit(child.wait())
"""


def spark_home() -> Path:
    """The folder of the wheel."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@contextmanager
def running_session(folder: Path, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """``local[2]`` in this process, its files below ``folder``."""
    settings = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        **PATIENT,
        **(conf or {}),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", HOST)
        patch.setenv("JAVA_HOME", str(java_home(os.environ, Path(sys.prefix, "java"))))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        session = make_session("local[2]", conf=settings)
        try:
            yield session
        finally:
            session.stop()


class SparkProcess(ManagedProcess):
    """A class of Spark's in a JVM of its own; it is up when a line of its log says so."""

    START_TIMEOUT_S = 180.0

    def __init__(self, name: str, words: Sequence[str], ready: str, *, folder: Path) -> None:
        super().__init__(name, folder=folder)
        self._words = words
        self._ready = ready

    def command(self) -> list[str]:
        program = str(spark_home() / "bin" / "spark-class")
        return [sys.executable, "-c", _LEASH, program, *self._words]

    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "JAVA_HOME": str(java_home(os.environ, Path(sys.prefix, "java"))),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "512m",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }

    def wait_ready(self) -> None:
        """Spark's log goes to standard error."""

        def is_ready() -> bool:
            if not self.running:
                raise self.failure("ended at once")
            return any(self._ready in path.read_text() for path in self.log_files())

        poll_until(is_ready, timeout_s=self.START_TIMEOUT_S, what=f"{self.name} to be ready")


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """The address of a master with so many workers, each with one core."""
    port = draw_port()
    master = f"spark://{HOST}:{port}"
    words = [_MASTER, "--host", HOST, "--port", str(port), "--webui-port", str(draw_port())]
    with ExitStack() as stack:
        stack.enter_context(
            SparkProcess("master", words, "New state: ALIVE", folder=folder / "master")
        )
        for number in range(workers):
            home = folder / f"worker-{number}"
            words = [
                *(_WORKER, "--host", HOST, "--cores", "1", "--memory", "1g"),
                *("--webui-port", str(draw_port()), "--work-dir", str(home / "work"), master),
            ]
            stack.enter_context(
                SparkProcess(
                    f"worker-{number}", words, "Successfully registered with master", folder=home
                )
            )
        yield master


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The address of a Spark Connect server over ``local[2]``."""
    port = draw_port()
    conf = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
        **PATIENT,
    }
    words = [
        *("org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", "--class", _CONNECT),
        *("--driver-memory", "1g"),
    ]
    for name, value in conf.items():
        words += ["--conf", f"{name}={value}"]
    words.append("spark-internal")
    with SparkProcess("connect", words, "Spark Connect server started", folder=folder):
        yield f"sc://{HOST}:{port}"
