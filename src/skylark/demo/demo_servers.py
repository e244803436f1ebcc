"""``skylark up`` in a process of its own, on free ports, for the length of a ``with``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from skylark.core.errors import SkylarkError
from skylark.launch.launch_plan import EPHEMERAL

STOP_WITHIN_S: Final = 30
#: Brokers ask soon about transactions whose end they have not heard of.
SETTINGS: Final = {"transactionCheckInterval": "1000", "transactionTimeOut": "1000"}


@contextmanager
def running_servers(folder: Path, topics: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """The addresses of the servers: ``namesrv``, ``broker-a``; ``topics`` with their queues.

    Raises SkylarkError if they do not start. Their log is ``up.log`` in ``folder``.
    """
    log = folder / "up.log"
    command = [
        *(sys.executable, "-P", "-m", "skylark", "--log-level", "warning", "up"),
        *("--data", str(folder / "store"), "--namesrv-port", "0", "--broker-port", "0"),
    ]
    for key, value in {**EPHEMERAL, **SETTINGS}.items():
        command += ["--set", f"{key}={value}"]
    for topic, queue_count in topics.items():
        command += ["--topic", f"{topic}:{queue_count}"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        ready, *pairs = process.stdout.readline().split() or [""]
        if ready != "ready":
            said = log.read_text().strip().splitlines() or ["it said nothing"]
            raise SkylarkError(f"skylark up did not start: {said[-1].removeprefix('Error: ')}")
        yield dict(pair.split("=", 1) for pair in pairs)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_WITHIN_S)
        except subprocess.TimeoutExpired:  # its folder goes away: it must not stay
            process.kill()
            process.communicate()
