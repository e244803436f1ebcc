"""Skylark's own servers as processes of their own, started by their command."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.interop.process import ManagedProcess, draw_port


class SkylarkNamesrv(ManagedProcess):
    """``skylark namesrv -c FILE``; ``settings`` holds properties by their Java names."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        folder: Path | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__("skylark-namesrv", folder=folder)
        self.address = ""
        self.settings: dict[str, object] = {
            "listenPort": draw_port() if port is None else port,
            "kvConfigPath": self.folder / "kvConfig.json",
            **(settings or {}),
        }

    def command(self) -> list[str]:
        config = self.folder / "namesrv.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        return [sys.executable, "-m", "skylark", "namesrv", "-c", str(config)]

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def wait_ready(self) -> None:
        line = self.wait_for_line("ready ")
        found = re.match(r"ready .*\bnamesrv=(\S+)", line)
        if found is None:
            raise self.failure(f"printed {line!r}, which names no address")
        self.address = found.group(1)
