"""One broker in a process of its own: ``skylark broker``, watched from outside.

The child says ``ready NAME=HOST:PORT`` on its stdout; its log lines go to our stderr. The error it
ends with comes as ``failed SENTENCE`` on stdout instead (:data:`SUPERVISED` in its environment asks
for that), so that there is one sentence, in which the supervisor says whose it is. The child has a
session of its own, so that the interrupt key reaches only the supervisor, which stops its children
in order. Its stdin is a pipe from the supervisor: if that one is killed, the pipe ends, and the
child stops in order by itself.
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

log = logging.getLogger(__name__)

#: Set for a child: it tells its supervisor of errors, nobody else, and ends with its stdin.
SUPERVISED: Final = "SKYLARK_SUPERVISED"
FAILED: Final = "failed "
#: How long a child may take to stop before it is killed; it has grace times of its own within.
STOP_TIMEOUT_S: Final = 50.0


class BrokerDiedError(SkylarkError):
    """A broker's process has ended although nobody wanted it to."""


class BrokerProcess:
    """A broker that runs elsewhere; after it has died it can be started again."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, str],
        folder: Path,
        clock: Clock,
        *,
        arguments: Sequence[str] = (),
    ) -> None:
        """``name`` is for people; ``folder`` gets the settings file; ``arguments`` are options of
        ``skylark`` itself."""
        self.name = name
        self.address: Address | None = None
        self._settings = settings
        self._file = folder / f"{name}.conf"
        self._clock = clock
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self._reason: str | None = None  # what it says it died of

    async def start(self) -> None:
        """Run it until it is ready; raises BrokerDiedError, or OSError if it cannot be run."""
        self.address = self._reason = None
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # /tmp is tidied up
        self._file.write_text(format_properties(self._settings))
        self._process = await asyncio.create_subprocess_exec(
            # -P: the folder that we are called in may have modules of any name.
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
            self._note_reason(line)
            raise await self.died()
        self.address = parse_address(line.removeprefix(prefix))
        # One that has drawn its port keeps it: slaves and clients look for it there.
        self._settings = {**self._settings, "listenPort": str(self.address.port)}

    async def died(self) -> BrokerDiedError:
        """Wait until the process ends; says how it did."""
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
            how = f"{how}, although nobody stopped it"
        return BrokerDiedError(f"{self.name} {how}")

    def _note_reason(self, line: str) -> None:
        if line.startswith(FAILED):
            self._reason = line.removeprefix(FAILED)

    async def _read_reason(self) -> None:
        """From what is left of the output of a process that has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in (await self._process.stdout.read()).decode().splitlines():
            self._note_reason(line.strip())

    async def stop(self) -> None:
        """Ask it to stop in order, and kill it if it does not."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with self._clock.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            log.warning(
                "%s has not stopped within %.0f s and is killed; its next start repairs the store",
                self.name, STOP_TIMEOUT_S,
            )  # fmt: skip
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self._read_reason()
        if self._reason is not None:
            log.error("%s failed while it stopped, %s", self.name, self._reason)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
