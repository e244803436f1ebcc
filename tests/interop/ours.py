"""Skylark's own servers as processes of their own, started by their command."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.interop.process import ManagedProcess, draw_port


class SkylarkServer(ManagedProcess):
    """``skylark COMMAND -c FILE``; ``settings`` holds properties by their Java names.

    Changes made to them between two starts take effect.
    """

    def __init__(
        self, command: str, settings: Mapping[str, object], *, folder: Path | None
    ) -> None:
        super().__init__(f"skylark-{command}", folder=folder)
        self._command = command
        self.address = ""
        self.settings = dict(settings)

    def command(self) -> list[str]:
        config = self.folder / f"{self._command}.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        return [sys.executable, "-m", "tests.interop.leashed", self._command, "-c", str(config)]

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}

    def wait_ready(self) -> None:
        line = self.wait_for_line("ready ")
        found = re.match(rf"ready .*\b{self._ready_name()}=(\S+)", line)
        if found is None:
            raise self.failure(f"printed {line!r}, which names no address")
        self.address = found.group(1)

    def _ready_name(self) -> str:
        """What the server calls itself when it is ready."""
        return self._command


class SkylarkNamesrv(SkylarkServer):
    """Our name server."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        folder: Path | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__("namesrv", {}, folder=folder)
        self.settings |= {
            "listenPort": draw_port() if port is None else port,
            "kvConfigPath": self.folder / "kvConfig.json",
            **(settings or {}),
        }


class SkylarkBroker(SkylarkServer):
    """Our broker, a store of small files below its folder; it keeps its ports at a restart."""

    def __init__(
        self,
        namesrv: str,
        settings: Mapping[str, object] | None = None,
        *,
        folder: Path | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__("broker", {}, folder=folder)
        self.store = self.folder / "store"
        self.settings |= {
            "brokerName": "broker-a",
            "listenPort": port or draw_port((0, -2, 1)),
            "namesrvAddr": namesrv,
            "storePathRootDir": self.store,
            "mappedFileSizeCommitLog": 16 << 20,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            **(settings or {}),
        }

    @property
    def broker_name(self) -> str:
        return str(self.settings["brokerName"])

    def _ready_name(self) -> str:
        return self.broker_name
