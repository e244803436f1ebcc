"""Programs of ours that use frameworks of RocketMQ's ecosystem, with jars from Maven Central.

Each program of ``java/ecosystem`` has a framework of its own, whose jars are copied once into
``build/interop`` (see ``toolchain.py``), with the RocketMQ client that the framework brings.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.interop.toolchain import compile_java, copy_dependencies, filled, tool

SOURCES: Final = Path(__file__).resolve().parent / "java" / "ecosystem"
TIMEOUT_S: Final = 180
#: The client that all of them use logs into the home folder.
_FLAGS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-Drocketmq.client.logUseSlf4j=true")


class Framework(NamedTuple):
    """What a program is compiled against: coordinates as ``group:artifact:version``."""

    name: str
    version: str
    dependencies: tuple[str, ...]
    #: Poms whose versions the dependencies use.
    boms: tuple[str, ...] = ()


SPRING_BOOT: Final = "org.springframework.boot:spring-boot-dependencies:3.2.9"
FRAMEWORKS: Final = {
    "SpringProgram": Framework(
        "spring-starter", "2.3.5", ("org.apache.rocketmq:rocketmq-spring-boot-starter:2.3.5",)
    ),
    "BinderProgram": Framework(
        "stream-binder",
        "2023.0.3.3",
        ("com.alibaba.cloud:spring-cloud-starter-stream-rocketmq:2023.0.3.3",),
        (SPRING_BOOT, "org.springframework.cloud:spring-cloud-dependencies:2023.0.3"),
    ),
    "CamelProgram": Framework(
        "camel",
        "4.10.5",
        ("org.apache.camel:camel-rocketmq:4.10.5", "org.apache.camel:camel-main:4.10.5"),
    ),
}


@cache
def program_path(program: str) -> str:
    """The class path of a program, compiled if need be."""
    framework = FRAMEWORKS[program]
    jars = filled(
        f"{framework.name}-{framework.version}",
        lambda target: copy_dependencies(framework.dependencies, target, boms=framework.boms),
    )
    source = SOURCES / f"{program}.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    classes = filled(
        f"classes-{framework.name}/{program}-{digest}",
        lambda target: compile_java(source, f"{jars}/*", target),
    )
    return f"{classes}{os.pathsep}{jars}/*"


def run_ecosystem_program(program: str, arguments: Sequence[str], folder: Path) -> list[str]:
    """Run a program to its end; its lines that begin with a word of ours."""
    output = folder / f"{program}.log"
    with output.open("w") as log:
        done = subprocess.run(
            [
                *(tool("java"), *_FLAGS, f"-Duser.home={folder}"),
                *("-classpath", program_path(program), program, *arguments),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    text = output.read_text()
    assert done.returncode == 0, text[-4000:]
    words = ("got ", "sent ", "complete", "incomplete")
    return [line for line in text.splitlines() if line.startswith(words)]
