"""What the Java side needs: a JDK, Maven, the released RocketMQ jars, our compiled programs.

Everything made here lives under ``build/interop`` (not tracked) and is made once:

- ``lib-VERSION``: the jars of one RocketMQ release with all they depend on, copied by Maven;
- ``classes-VERSION/NAME-HASH``: one program of ``tests/interop/java``, compiled against them;
- ``wheel-VERSION``: the C++ client (see ``cpp.py``).

A folder is filled under another name and renamed when complete, so that a run which was killed
leaves nothing half done and two runs at once do not disturb each other: that a folder exists says
that it is complete. Maven is asked only while jars are missing; later runs need no network.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

JAVA_VERSION_MIN: Final = 17

#: The release that Skylark is compatible with: servers, tools, client, benchmark programs.
CURRENT: Final = "5.5.0"
#: The last client of the 4.x line.
OLD_CLIENT: Final = "4.9.8"
#: A client of the 5.x line whose property strings end without a separator, as those of 4.x do.
MIDDLE_CLIENT: Final = "5.1.4"
#: Clients of the 4.x line that are still met in the field.
FIELD_CLIENTS: Final = ("4.4.0", "4.7.1")
#: The last servers of the 4.x line that were published as jars; there are none of 4.9.8.
OLD_SERVERS: Final = "4.9.7"

_ARTIFACTS: Final = {
    CURRENT: (
        "rocketmq-namesrv",
        "rocketmq-broker",
        "rocketmq-tools",
        "rocketmq-client",
        "rocketmq-example",
    ),
    OLD_CLIENT: ("rocketmq-client",),
    MIDDLE_CLIENT: ("rocketmq-client",),
    **dict.fromkeys(FIELD_CLIENTS, ("rocketmq-client",)),
    OLD_SERVERS: ("rocketmq-namesrv", "rocketmq-broker"),
}
#: What the tests run; the other releases are for recordings and benchmarks.
_TESTED: Final = (CURRENT, OLD_CLIENT, OLD_SERVERS)
_COPY_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_COPY_ONE_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_MAVEN_TIMEOUT_S: Final = 1200
_JAVAC_TIMEOUT_S: Final = 120

_SOURCES: Final = Path(__file__).resolve().parent / "java"
_CACHE: Final = Path(__file__).resolve().parents[2] / "build" / "interop"


class ToolchainError(Exception):
    """Something the Java side needs is missing or failed; the text says what to do about it."""


def check_tools() -> None:
    """Raise :class:`ToolchainError` unless the tools that this machine will need are there."""
    missing = [name for name in ("java", "javac") if _find_tool(name) is None]
    if _find_tool("mvn") is None and not all(map(_has_jars, _TESTED)):
        missing.append("mvn")
    if missing:
        raise ToolchainError(
            f"interoperability tests need {' and '.join(missing)}, not found in JAVA_HOME or "
            f"PATH: install a JDK of version {JAVA_VERSION_MIN} or newer and Maven "
            "(on Debian: apt-get install openjdk-17-jdk-headless maven)"
        )
    version = java_version()
    if version < JAVA_VERSION_MIN:
        raise ToolchainError(
            f"interoperability tests need Java {JAVA_VERSION_MIN} or newer, but {tool('java')} is "
            f"version {version}: install a newer JDK or let JAVA_HOME name one "
            "(on Debian: apt-get install openjdk-17-jdk-headless)"
        )


def tool(name: str) -> str:
    """The path of ``java``, ``javac`` or ``mvn``."""
    path = _find_tool(name)
    if path is None:
        raise ToolchainError(f"{name} is not in JAVA_HOME or PATH: install a JDK and Maven")
    return path


@cache
def java_version() -> int:
    """The feature number of the Java runtime: 8, 17, 21."""
    shown = subprocess.run(
        [tool("java"), "-version"], capture_output=True, text=True, timeout=60, check=False
    ).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', shown)
    if found is None:
        raise ToolchainError(f"cannot read the Java version from {shown!r}")
    return int(found.group(1))


@cache
def classpath(version: str = CURRENT) -> str:
    """The class path of one RocketMQ release; fetches its jars the first time."""
    folder = _jars_folder(version)
    if folder.exists() and not _has_jars(version):
        shutil.rmtree(folder)  # made for another list of artifacts
    return f"{filled(folder.name, lambda target: _copy_jars(version, target))}/*"


@cache
def compiled(program: str, version: str = CURRENT) -> Path:
    """The folder with the classes of one of our Java programs, compiled if need be."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.glob("*.java")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update(str(java_version()).encode())
    folder = f"classes-{version}/{program}-{digest.hexdigest()[:16]}"
    return filled(folder, lambda target: _compile(program, version, target))


def filled(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache; if it does not exist, filled aside and renamed."""
    folder = _CACHE / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as aside:
        made = Path(aside) / "made"
        made.mkdir()
        fill(made)
        try:
            made.rename(folder)
        except OSError:
            # Another run was quicker and its folder, equally complete, is in the way.
            if not folder.exists():
                raise
    return folder


def maven_copy(artifact: str, target: Path) -> None:
    """Fetch one jar, without its dependencies: ``group:name:version``."""
    _run(
        [
            *(tool("mvn"), "--batch-mode", "--quiet", _COPY_ONE_GOAL),
            *(f"-Dartifact={artifact}", f"-DoutputDirectory={target}"),
        ],
        f"Maven could not fetch {artifact} (this needs the network once)",
        _MAVEN_TIMEOUT_S,
    )


def _find_tool(name: str) -> str | None:
    java_home = os.environ.get("JAVA_HOME")
    in_home = shutil.which(name, path=str(Path(java_home) / "bin")) if java_home else None
    return in_home or shutil.which(name)


def _jars_folder(version: str) -> Path:
    return _CACHE / f"lib-{version}"


def _has_jars(version: str) -> bool:
    folder = _jars_folder(version)
    return all((folder / f"{name}-{version}.jar").exists() for name in _ARTIFACTS[version])


def _copy_jars(version: str, target: Path) -> None:
    artifacts = _ARTIFACTS[version]
    copy_dependencies([f"org.apache.rocketmq:{each}:{version}" for each in artifacts], target)
    for artifact in artifacts:
        if not (target / f"{artifact}-{version}.jar").exists():
            raise ToolchainError(f"Maven ended well but left no {artifact}-{version}.jar")


def copy_dependencies(wanted: Sequence[str], target: Path, *, boms: Sequence[str] = ()) -> None:
    """Copy jars, named as ``group:artifact:version``, and all that they depend on.

    ``boms``: poms that say which versions these have.
    """
    managed = "".join(_dependency(bom, "<type>pom</type><scope>import</scope>") for bom in boms)
    pom = target.parent / f"{target.name}-pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>skylark</groupId><artifactId>interop</artifactId><version>1</version>"
        "<packaging>pom</packaging><dependencyManagement><dependencies>"
        f"{managed}</dependencies></dependencyManagement>"
        f"<dependencies>{''.join(map(_dependency, wanted))}</dependencies></project>\n"
    )
    _run(
        [
            *(tool("mvn"), "--batch-mode", "--quiet", "--file", str(pom), _COPY_GOAL),
            *("-DincludeScope=runtime", f"-DoutputDirectory={target}"),
        ],
        f"Maven could not fetch {', '.join(wanted)} (this needs the network once)",
        _MAVEN_TIMEOUT_S,
    )


def _dependency(coordinates: str, more: str = "") -> str:
    group, artifact, version = coordinates.split(":")
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{more}</dependency>"
    )


def _compile(program: str, version: str, target: Path) -> None:
    options = ("-Xlint:all,-path", "-Werror", "-sourcepath", str(_SOURCES), "-implicit:class")
    compile_java(_SOURCES / f"{program}.java", classpath(version), target, *options)


def compile_java(source: Path, path: str, target: Path, *options: str) -> None:
    """Compile a source against a class path into the folder ``target``."""
    _run(
        [
            *(tool("javac"), "-encoding", "UTF-8", "-proc:none", *options),
            *("-classpath", path, "-d", str(target), str(source)),
        ],
        f"{source.name} does not compile against {path}",
        _JAVAC_TIMEOUT_S,
    )


def _run(command: list[str], failure: str, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolchainError(f"{failure}: no end after {timeout_s:g} s") from None
    if done.returncode:
        raise ToolchainError(f"{failure}:\n{done.stdout[-4000:]}")
