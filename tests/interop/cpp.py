"""The C++ client, as the wheel ``rocketmq`` ships it: fetched once, run by a program of ours.

The wheel binds the library ``librocketmq`` by ctypes and has no other dependency. It lives in a
folder of its own under ``build/interop``, apart from our environment, and only the process of
``cpp_driver.py`` sees it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from tests.interop.driver import Client
from tests.interop.process import ManagedProcess
from tests.interop.toolchain import ToolchainError, filled

VERSION: Final = "0.4.4"
_WHEEL: Final = (
    f"rocketmq=={VERSION}"
    " --hash=sha256:19a10219f5074d1050e88cdbdfed3903a374b3f83c0dd2c8773e1e93e33ad02d\n"
)
_PIP_TIMEOUT_S: Final = 300
_PROGRAM: Final = Path(__file__).resolve().parent / "cpp_driver.py"


@cache
def wheel_folder() -> Path:
    """The folder with the unpacked wheel; fetches it the first time."""
    return filled(f"wheel-{VERSION}", _install)


def _install(target: Path) -> None:
    wanted = target.parent / "wheel.txt"
    wanted.write_text(_WHEEL)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--only-binary", ":all:", "--target", str(target)),
            *("-r", str(wanted)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PIP_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ToolchainError(
            f"pip could not fetch the C++ client, rocketmq {VERSION}, which exists for Linux on"
            f" x86-64 only (this needs the network once):\n{done.stdout[-4000:]}"
        )


class _CppDriver(ManagedProcess):
    def command(self) -> list[str]:
        return [sys.executable, str(_PROGRAM)]

    def environment(self) -> Mapping[str, str]:
        # The library keeps its log and the offsets of broadcast consumers in the home folder.
        return {**os.environ, "PYTHONPATH": str(wheel_folder()), "HOME": str(self.folder)}

    def wait_ready(self) -> None:
        self.wait_for_line("ready")


@contextmanager
def cpp_client(*, folder: Path | None = None) -> Iterator[Client]:
    """The C++ client in a process of its own."""
    with _CppDriver("cpp", folder=folder) as process:
        yield Client(process)
