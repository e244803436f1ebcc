"""Fixtures of the interoperability tests; see ``java.py`` for what they start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.java import MqAdmin
from tests.interop.toolchain import OLD_CLIENT, ToolchainError, check_tools, classpath


@pytest.fixture(scope="session", autouse=True)
def _java_side() -> None:
    """Stop the whole run with one sentence when the Java side cannot work here.

    The jars are fetched now, so that no deadline of a test includes a download.
    """
    try:
        check_tools()
        classpath()
        classpath(OLD_CLIENT)
    except ToolchainError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture(scope="session")
def mqadmin() -> Iterator[MqAdmin]:
    with MqAdmin() as running:
        yield running
