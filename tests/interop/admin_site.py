"""``skylark up`` in a process of its own, and the real mqadmin asking it.

An :class:`AdminView` notes which commands were run and which requests the broker has answered well
(:mod:`tests.interop.answered`); so what a test declares with ``shows`` is checked against what has
happened.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from skylark.wire.catalogue import CATALOGUE
from skylark.wire.codes import RequestCode
from tests.interop.answered import answered_requests
from tests.interop.cluster import Cluster
from tests.interop.java import MqAdmin
from tests.interop.process import ManagedProcess, draw_port


class SkylarkUp(ManagedProcess):
    """A name server and a broker, started by one command; data below the folder."""

    def __init__(self, settings: Mapping[str, object], *, folder: Path) -> None:
        super().__init__("skylark-up", folder=folder)
        self._metrics_port = draw_port()
        self._settings = {
            "metricsExporterType": "PROM",
            "metricsPromExporterPort": self._metrics_port,
            **settings,
        }
        self.namesrv = ""
        self.broker = ""

    def command(self) -> list[str]:
        settings = [f"--set={key}={value}" for key, value in self._settings.items()]
        ports = ["--namesrv-port=0", "--broker-port=0"]
        data = f"--data={self.folder / 'data'}"
        return [sys.executable, "-m", "skylark", "up", data, *ports, *settings]

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def wait_ready(self) -> None:
        line = self.wait_for_line("ready ")
        addresses = dict(word.split("=", 1) for word in line.split()[1:])
        self.namesrv, self.broker = addresses["namesrv"], addresses["broker-a"]

    def answered(self) -> Counter[str]:
        """Requests that the broker has answered with success up to now, by name."""
        return answered_requests(self._metrics_port)


class AdminView(Cluster):
    """What mqadmin shows of a site, and what it has been asked."""

    def __init__(self, mqadmin: MqAdmin, up: SkylarkUp) -> None:
        super().__init__(mqadmin, up.namesrv)
        self.up = up
        self.broker = up.broker
        self._ran: set[str] = set()
        self._before = up.answered()

    def run(self, command: str, *options: str, expect: str = "") -> str:
        self._ran.add(command)
        return super().run(command, *options, expect=expect)

    def refusal(self, command: str, *options: str) -> tuple[int, str]:
        self._ran.add(command)
        return super().refusal(command, *options)

    def raw(self, command: str, *options: str) -> str:
        """Whatever a command printed."""
        self._ran.add(command)
        return self._mqadmin.run(command, "-n", self.namesrv, *options)

    def rows(self, command: str, *options: str, expect: str = "#") -> list[list[str]]:
        """The words of each line of a table, without its head and what follows an empty line."""
        printed = self.run(command, *options, expect=expect)
        table = printed[printed.index("#") :].split("\n\n")[0]
        return [line.split() for line in table.splitlines()[1:] if line.strip()]

    def settings(self, command: str, *options: str) -> dict[str, str]:
        """Lines of the form ``key = value`` or ``key : value``."""
        found = re.findall(r"^ *(\S+) +[=:]  ?(.*?) *$", self.run(command, *options), re.MULTILINE)
        return dict(found)

    def check(self, commands: frozenset[str], codes: frozenset[RequestCode]) -> None:
        """Raise unless these commands were run, and these requests answered by the broker.

        Requests to others, name server and clients, are shown by what came of them.
        """
        assert commands <= self._ran, f"declared but not run: {sorted(commands - self._ran)}"
        answered = self.up.answered() - self._before
        missing = sorted(
            code.name
            for code in codes
            if "B" in CATALOGUE[code].receivers and not answered[code.name]
        )
        assert not missing, f"declared but not answered: {missing}, answered: {sorted(answered)}"
