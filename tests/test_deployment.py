"""Dockerfile, compose.yaml and the unit files of systemd: what they run, runs.

No builder of images is needed: the commands and settings are taken from the files and run here.
In place of addresses of a container network stand addresses of loopback, and in place of ``/data``
stands a folder; ports stay as they are where every server has an address of its own.
"""

from __future__ import annotations

import configparser
import fnmatch
import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.docs_runner import parse_blocks
from tests.support.up import SMALL_FILES

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 60
#: Files of a size that a test can afford, as properties.
SMALL = "\n".join(word for word in SMALL_FILES if word != "--set")


def skylark(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "skylark", "--log-level", "warning", *arguments]


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        skylark(*arguments),
        env={**os.environ, "HOME": str(home), "TMPDIR": str(home)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@contextmanager
def server(home: Path, *arguments: str) -> Iterator[str]:
    """A server that runs; the line with which it said that it is ready."""
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            skylark(*arguments),
            env={**os.environ, "HOME": str(home), "TMPDIR": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), (home / "server.log").read_text()
        yield line
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0


# ---- Dockerfile ---------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """(name, rest) of every instruction, with lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [
        (name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line)
    ]


def only(name: str) -> str:
    """The one instruction of this name."""
    (rest,) = (rest for found, rest in instructions() if found == name)
    return rest


def test_the_image_runs_what_it_says(tmp_path: Path) -> None:
    command = [*json.loads(only("ENTRYPOINT")), *json.loads(only("CMD"))]
    assert command == ["skylark", "up", "--host", "0.0.0.0", "--data", "/data"]
    health = json.loads(only("HEALTHCHECK").partition("CMD")[2])
    assert health[:2] == ["skylark", "ping"]
    here = {"/data": str(tmp_path / "data"), "0.0.0.0": "127.0.0.1"}
    words = [here.get(word, word) for word in command[1:]]
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    with server(tmp_path, *words, *ports, *SMALL_FILES) as ready:
        namesrv = ready.split()[1].removeprefix("namesrv=")
        assert run(tmp_path, *health[1:], "-n", namesrv).returncode == 0
    assert run(tmp_path, *health[1:], "-n", namesrv).returncode == 3
    # Whatever is written is below /data: the root file system may be read-only.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "server.log"]


def test_the_image_belongs_to_nobody_and_holds_what_the_build_needs() -> None:
    assert only("USER") == "10001:10001"
    assert only("VOLUME") == "/data"
    assert set(only("EXPOSE").split()) == {"9876", "10909", "10911", "10912", "5557"}
    patterns = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    allowed = {line.removeprefix("!") for line in patterns if line.startswith("!")}
    refused = [line for line in patterns if not line.startswith("!")]
    copied = {
        word
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for word in rest.split()[:-1]
    }
    assert copied == allowed
    for word in copied:
        assert (ROOT / word).exists()
    assert any(fnmatch.fnmatch(".venv", pattern) for pattern in refused)


# ---- compose.yaml -------------------------------------------------------------------------------


class Site:
    """The services of compose.yaml on this machine: each has an address of loopback."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.file: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
        self.services: dict[str, Any] = {
            name: service
            for name, service in self.file["services"].items()
            if "profiles" not in service
        }
        block = f"127.{random.randrange(1, 255)}.{random.randrange(255)}."
        self.addresses = {
            name: service["networks"]["cluster"]["ipv4_address"].replace("172.30.87.", block)
            for name, service in self.services.items()
        }
        self._block = block

    def adapted(self, name: str, text: str) -> str:
        own = self.addresses[name]
        for there, here in (
            ("172.30.87.", self._block),
            ("0.0.0.0", own),
            ("namesrv:9876", f"{self.addresses['namesrv']}:9876"),
            ("127.0.0.1", own),
            ("/data", str(self.home / name)),
        ):
            text = text.replace(there, here)
        return text

    def command(self, name: str) -> list[str]:
        """The words of a service, with its settings in a file."""
        service = self.services[name]
        words = list(service["command"])
        for config in service["configs"]:
            path = self.home / f"{name}.conf"
            content = self.adapted(name, self.file["configs"][config["source"]]["content"])
            path.write_text(f"{content}\n{SMALL}\n" if "broker" in words else content)
            words[words.index(config["target"])] = str(path)
        (self.home / name).mkdir(exist_ok=True)
        return words

    def health(self, name: str) -> int:
        first, *words = self.services[name]["healthcheck"]["test"]
        assert (first, words[0]) == ("CMD", "skylark")
        words = [self.adapted(name, word) for word in words[1:]]
        if "--broker" not in words:
            words += ["-n", f"{self.addresses[name]}:9876"]
        return run(self.home, *words).returncode


def test_the_cluster_of_compose_works(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert list(site.services) == ["namesrv", "broker-a", "broker-b", "broker-a-slave"]
    namesrv = f"{site.addresses['namesrv']}:9876"
    with ExitStack() as stack:
        for name in site.services:
            if "depends_on" in site.services[name]:
                assert all(site.health(other) == 0 for other in site.services[name]["depends_on"])
            stack.enter_context(server(tmp_path, *site.command(name)))
        assert [site.health(name) for name in site.services] == [0, 0, 0, 0]
        listed = json.loads(
            run(tmp_path, "--output", "json", "cluster", "list", "-n", namesrv).stdout
        )
        assert [(row["broker"], row["role"], row["address"]) for row in listed] == [
            ("broker-a", "MASTER", f"{site.addresses['broker-a']}:10911"),
            ("broker-a", "SLAVE", f"{site.addresses['broker-a-slave']}:10911"),
            ("broker-b", "MASTER", f"{site.addresses['broker-b']}:10911"),
        ]
        assert run(tmp_path, "topic", "create", "T", "-n", namesrv).returncode == 0
        assert run(tmp_path, "produce", "T", "hello", "-n", namesrv).returncode == 0
        read = run(tmp_path, "consume", "T", "--no-follow", "--format", "body", "-n", namesrv)
        assert read.stdout == "hello\n"
    assert "unknown setting" not in (tmp_path / "server.log").read_text()


def test_every_service_is_as_closed_as_it_can_be() -> None:
    file: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    for service in file["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["tmpfs"] == ["/tmp"]
    volumes = {
        volume.partition(":")[0]
        for service in file["services"].values()
        for volume in service.get("volumes", ())
    }
    assert volumes == set(file["volumes"])
    addresses = [
        place["ipv4_address"]
        for service in file["services"].values()
        if "ipv4_address" in (place := service["networks"]["cluster"])
    ]
    assert len(set(addresses)) == len(addresses) == 4


# ---- systemd ------------------------------------------------------------------------------------


def units() -> dict[str, configparser.ConfigParser]:
    """The unit files of the document, by name."""
    text = (ROOT / "docs" / "how-to" / "systemd.md").read_text()
    names = re.findall(r"`/etc/systemd/system/([^`]+)`", text)
    blocks = [block for block in parse_blocks(text) if block.language == "ini"]
    found = {}
    for name, block in zip(names, blocks, strict=True):
        found[name] = configparser.ConfigParser(interpolation=None)
        found[name].optionxform = str  # type: ignore[assignment,method-assign]
        found[name].read_string("\n".join(block.lines))
    return found


@pytest.mark.parametrize("name", list(units()))
def test_units_run_commands_that_are(name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "systemd.md").read_text()
    unit = units()[name]
    assert list(unit) == ["DEFAULT", "Unit", "Service", "Install"]
    program, *words = shlex.split(unit["Service"]["ExecStart"].replace("%i", "broker-a"))
    assert program == "/opt/skylark/bin/skylark"
    if "-c" in words:  # the settings stand in the document, below the name of their file
        path = words[words.index("-c") + 1]
        block = re.search(rf"`{path}`[^\n]*\n\n```properties\n(.*?)```", text, re.DOTALL)
        assert block is not None
        (tmp_path / "file.conf").write_text(block[1])
        words[words.index(path)] = str(tmp_path / "file.conf")
    printed = run(tmp_path, *words, "--print-config" if words[0] == "up" else "-p")
    assert (printed.returncode, printed.stderr) == (0, "")
    state = unit["Service"]["StateDirectory"].replace("%i", "broker-a")
    assert f"=/var/lib/{state}" in printed.stdout
