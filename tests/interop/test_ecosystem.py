"""Frameworks of RocketMQ's ecosystem, unchanged, in small programs of ours against our servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark import ClientOptions
from skylark.sync import Admin
from tests.interop.ecosystem import run_ecosystem_program
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv

COUNT = 20


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    """Our servers, with topics ``first`` and ``second``."""
    with (
        SkylarkNamesrv(folder=tmp_path / "namesrv") as server,
        SkylarkBroker(server.address, folder=tmp_path / "broker"),
    ):
        with Admin(ClientOptions(namesrv=server.address)) as admin:
            for topic in ("first", "second"):
                admin.topics.create(topic, queue_count=4)
        yield server.address


@pytest.mark.interop
def test_spring_boot_starter(namesrv: str, tmp_path: Path) -> None:
    """A template sends, a listener with a tag receives."""
    lines = run_ecosystem_program(
        "SpringProgram",
        [
            f"--rocketmq.name-server={namesrv}",
            "--rocketmq.producer.group=spring",
            "--topic=first",
            f"--count={COUNT}",
        ],
        tmp_path,
    )
    assert lines.count("sent SEND_OK") == COUNT
    assert sorted(set(lines)) == sorted(
        {"sent SEND_OK", "complete", *(f"got m-{i}" for i in range(COUNT))}
    )


@pytest.mark.interop
def test_spring_cloud_stream_binder(namesrv: str, tmp_path: Path) -> None:
    """A bridge sends, a function carries messages to another topic, a sink takes them."""
    bindings = "--spring.cloud.stream.bindings"
    rocketmq = "--spring.cloud.stream.rocketmq"
    lines = run_ecosystem_program(
        "BinderProgram",
        [
            "--spring.cloud.function.definition=upper;sink",
            f"{rocketmq}.binder.name-server={namesrv}",
            f"{bindings}.bridge-out-0.destination=first",
            f"{rocketmq}.bindings.bridge-out-0.producer.group=bridge",
            f"{bindings}.upper-in-0.destination=first",
            f"{bindings}.upper-in-0.group=upper",
            f"{bindings}.upper-out-0.destination=second",
            f"{rocketmq}.bindings.upper-out-0.producer.group=upper-out",
            f"{bindings}.sink-in-0.destination=second",
            f"{bindings}.sink-in-0.group=sink",
            f"--count={COUNT}",
        ],
        tmp_path,
    )
    assert lines.count("sent true") == COUNT
    assert {line for line in lines if line.startswith("got")} == {
        f"got M-{i}" for i in range(COUNT)
    }
    assert lines[-1] == "complete"


@pytest.mark.interop
def test_camel(namesrv: str, tmp_path: Path) -> None:
    """A route from one topic to another, and a route that ends there."""
    lines = run_ecosystem_program(
        "CamelProgram", [namesrv, "first", "second", str(COUNT)], tmp_path
    )
    assert sorted(set(lines)) == sorted({"complete", *(f"got m-{i}!" for i in range(COUNT))})
