"""Fixtures of the interoperability tests; see ``java.py`` and ``driver.py`` for what they start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.interop.broker_scenarios.scene import (
    QUEUES,
    Scene,
    Site,
    running_client,
    running_site,
)
from tests.interop.broker_scenarios.table import JAVA_5
from tests.interop.client_scenarios import stage as client_stage
from tests.interop.cluster import Cluster
from tests.interop.driver import Client
from tests.interop.java import MqAdmin
from tests.interop.shown import shown_by
from tests.interop.toolchain import (
    OLD_CLIENT,
    OLD_SERVERS,
    ToolchainError,
    check_tools,
    classpath,
)


@pytest.fixture(scope="session", autouse=True)
def _java_side() -> None:
    """Stop the whole run with one sentence when the Java side cannot work here.

    The jars are fetched now, so that no deadline of a test includes a download.
    """
    try:
        check_tools()
        classpath()
        classpath(OLD_CLIENT)
        classpath(OLD_SERVERS)
    except ToolchainError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture(scope="session")
def mqadmin() -> Iterator[MqAdmin]:
    with MqAdmin() as running:
        yield running


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Our servers, for all scenarios that leave them running."""
    with running_site(tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.fixture(autouse=True)
def _declared_codes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold a test on this site to the codes that it declares; its newest client shows them."""
    _, codes = shown_by(request.function)
    kind = request.getfixturevalue("kind") if "kind" in request.fixturenames else JAVA_5
    if not codes or kind != JAVA_5 or "site" not in request.fixturenames:
        yield
        return
    running: Site = request.getfixturevalue("site")
    before = running.answered()
    yield
    answered = running.answered() - before
    missing = sorted(code.name for code in codes if not answered[code.name])
    assert not missing, f"declared but not answered: {missing}, answered: {sorted(answered)}"


@pytest.fixture(scope="session")
def client_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Client]]:
    """The client of a column of the table; each starts when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def started(kind: str) -> Client:
            return stack.enter_context(running_client(kind, tmp_path_factory.mktemp(kind)))

        yield started


@pytest.fixture
def scene(
    kind: str, site: Site, client_of: Callable[[str], Client], request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """One scenario with one client; its topic has four queues."""
    made = Scene(client_of(kind), site, scene_name(request))
    made.create_topic()
    yield made
    made.close()


@pytest.fixture(scope="session")
def apache_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Site]]:
    """The site with Apache's servers of a release; each starts when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def started(release: str) -> Site:
            folder = tmp_path_factory.mktemp(f"apache-{release}")
            return stack.enter_context(client_stage.running_site(folder, release))

        yield started


@pytest.fixture(scope="session")
def member_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Client]]:
    """A process with our client or one of Java's; each starts when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def started(kind: str) -> Client:
            folder = tmp_path_factory.mktemp(f"member-{kind}")
            return stack.enter_context(client_stage.running_client(kind, folder))

        yield started


@pytest.fixture(params=client_stage.SITES)
def stage(
    apache_of: Callable[[str], Site],
    member_of: Callable[[str], Client],
    mqadmin: MqAdmin,
    request: pytest.FixtureRequest,
) -> Iterator[client_stage.Stage]:
    """One scenario of our client on servers of Apache's; its topic has four queues."""
    site = apache_of(request.param)
    cluster = Cluster(mqadmin, site.namesrv.address)
    made = client_stage.Stage(site, member_of, cluster, scene_name(request).replace(".", "_"))
    site.create_topic(made.topic, QUEUES)
    yield made
    made.close()


def scene_name(request: pytest.FixtureRequest) -> str:
    """``test_sync_send[java-5]`` -> ``sync_send-java-5``."""
    name: str = request.node.name
    return name.removeprefix("test_").replace("[", "-").removesuffix("]")
