"""A real cluster in a process of its own, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skylark import ClientOptions
from tests.support.up import cluster


@pytest.fixture(scope="package")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


@pytest.fixture
def options(namesrv: str) -> ClientOptions:
    return ClientOptions(namesrv=namesrv)
