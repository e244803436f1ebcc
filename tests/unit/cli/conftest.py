"""One cluster for the tests of client commands, and order behind each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skylark.cli import consume
from skylark.client.core.instance_registry import instance_count
from tests.support.up import cluster
from tests.unit.cli.shell import Shell


@pytest.fixture(scope="session")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="session")
def shell(namesrv: str) -> Shell:
    """At a cluster that all share: names of topics and groups are those of one test."""
    return Shell(namesrv)


@pytest.fixture(autouse=True)
def order_behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No client is left by a shell; a group ends where it looks like it."""
    monkeypatch.setattr(consume, "GROUP_IDLE_S", 0.3)
    before = instance_count()
    yield
    if {"alone", "shell"} & set(request.fixturenames):
        assert instance_count() == before
