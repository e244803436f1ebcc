"""Runs one broker as a child process, ``skylark broker``, and supervises it.

The child prints ``ready NAME=HOST:PORT`` to stdout; its log lines go to our stderr. If it fails, it
prints ``failed MESSAGE`` to stdout (because :data:`SUPERVISED` is in its environment), and the
supervisor reports the message with the name of the broker. The child has its own session, so that
Ctrl-C reaches only the supervisor, which stops its children in order. Its stdin is a pipe from the
supervisor: if the supervisor is killed, the pipe ends, and the child stops by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from skylark.core.clock import Clock
from skylark.core.config import format_properties
from skylark.core.errors import SkylarkError
from skylark.core.names import Address, parse_address

logger = logging.getLogger(__name__)

#: Set for a child: it reports errors only to its supervisor, and stops when its stdin ends.
SUPERVISED: Final = "SKYLARK_SUPERVISED"
FAILED: Final = "failed "
#: How long a child may take to stop before it is killed; its own timeouts are shorter.
STOP_TIMEOUT_S: Final = 50.0


class BrokerDiedError(SkylarkError):
    """A broker process ended unexpectedly."""


class BrokerProcess:
    """A broker in a child process; it can be started again after it has died."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, str],
        folder: Path,
        clock: Clock,
        *,
        arguments: Sequence[str] = (),
    ) -> None:
        """``name`` is used in messages; the settings file is written to ``folder``; ``arguments``
        are global options of ``skylark``."""
        self.name = name
        self.address: Address | None = None
        self._settings = settings
        self._file = folder / f"{name}.conf"
        self._clock = clock
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self._reason: str | None = None  # of its failure, as it reported it

    async def start(self) -> None:
        """Start it and wait until it is ready; raises BrokerDiedError, or OSError."""
        self.address = self._reason = None
        self._file.parent.mkdir(
            mode=0o700, parents=True, exist_ok=True
        )  # a cleaner of /tmp may have removed it
        self._file.write_text(format_properties(self._settings))
        self._process = await asyncio.create_subprocess_exec(
            # -P: the working folder may contain modules that shadow ours.
            *(sys.executable, "-P", "-m", "skylark", *self._arguments, "broker"),
            *("-c", str(self._file)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, SUPERVISED: "1"},
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().strip()
        prefix = f"ready {self._settings['brokerName']}="
        if not line.startswith(prefix):
            self._keep_reason(line)
            raise await self.died()
        self.address = parse_address(line.removeprefix(prefix))
        # Keep a port chosen by the system: slaves and clients know it.
        self._settings = {**self._settings, "listenPort": str(self.address.port)}

    async def died(self) -> BrokerDiedError:
        """Wait until the process ends; returns an error that describes how."""
        assert self._process is not None, "start() comes first"
        code = await self._process.wait()
        await self._read_reason()
        how = (
            f"ended with exit code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        )
        if self._reason is not None:
            how = f"failed, {self._reason}"
        elif self.address is None:
            how = f"{how}, before it was ready"
        else:
            how = f"{how}, although it was not stopped"
        return BrokerDiedError(f"{self.name} {how}")

    def _keep_reason(self, line: str) -> None:
        if line.startswith(FAILED):
            self._reason = line.removeprefix(FAILED)

    async def _read_reason(self) -> None:
        """Read the reason from the remaining output of a process that has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in (await self._process.stdout.read()).decode().splitlines():
            self._keep_reason(line.strip())

    async def stop(self) -> None:
        """Send SIGTERM, and kill the process if it does not stop."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with self._clock.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            logger.warning(
                "killing %s: it has not stopped within %.0f s; its next start recovers the store",
                self.name, STOP_TIMEOUT_S,
            )  # fmt: skip
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self._read_reason()
        if self._reason is not None:
            logger.error("%s failed during its stop, %s", self.name, self._reason)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
