"""The pytest plugin: a real broker for the tests of any project that has Skylark installed.

::

    def test_orders(rocketmq, rocketmq_topic, rocketmq_group):
        with skylark.sync.Producer("p", rocketmq.options) as producer: ...

    async def test_reminder(rocketmq_virtual):  # with pytest-asyncio or anyio
        await rocketmq_virtual.clock.advance(hours=2)

    @pytest.mark.faults(duplicate=0.1, drop_ack=0.05, delay_ms=(0, 50), seed=7)
    def test_idempotence(rocketmq, rocketmq_topic): ...

=====================  ===========================================================================
``rocketmq``           a broker on free ports of loopback, on a thread of the test process: one for
                       the session, with pytest-xdist one for each worker
``rocketmq_topic``     the name of a topic for this test only, deleted afterwards
``rocketmq_group``     the name of a consumer group for this test only, deleted afterwards
``rocketmq_env``       sets ``NAMESRV_ADDR`` to that broker for this test: for code that makes its
                       clients without options
``rocketmq_async``     a broker of its own for this test, on the event loop of the test and without
                       sockets
``rocketmq_virtual``   the same on virtual time
``rocketmq_settings``  no settings; a project may override it, Java name -> value
=====================  ===========================================================================

The asynchronous ones need pytest-asyncio or anyio (:mod:`skylark.testing.async_fixtures`). If the
broker cannot start, the tests that need it fail with the cause; they are not skipped.

The marker ``faults`` injects faults into the broker while the test itself runs, not during set-up
and teardown of its fixtures (:mod:`skylark.testing.request_faults`). ``rocketmq.faults`` is the
plan. The report of a failed test shows the marker, with the seed, that repeats the same faults.

If a call of Skylark raises one of its own errors, the report ends at the line of the test that made
the call: frames inside Skylark are left out, unless pytest is run with ``--full-trace`` or the
project sets ``rocketmq_full_trace = true``. Other errors keep all their frames.

This module is loaded in every run of pytest: it imports Skylark only when a fixture is used.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from skylark.testing.request_faults import MessageFaults
    from skylark.testing.thread_broker import ThreadBroker

MARKER = "faults"
ARGUMENTS = ("duplicate", "drop_ack", "delay_ms", "seed")
FULL_TRACE = "rocketmq_full_trace"
#: Variables that name a name server, in the order in which clients read them.
ADDRESS_VARIABLES = ("SKYLARK_NAMESRV", "NAMESRV_ADDR", "ROCKETMQ_NAMESRV_ADDR")
NAME_LENGTH_MAX = 40  # of the test's name within that of its topic or group
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")
_PLAN = pytest.StashKey["MessageFaults"]()


# ---- fixtures ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def rocketmq_settings() -> Mapping[str, str | int | float | bool]:
    """Settings of the broker behind ``rocketmq``, by their Java names: to be overridden."""
    return {}


@pytest.fixture(scope="session")
def rocketmq(
    rocketmq_settings: Mapping[str, str | int | float | bool],
) -> Iterator[ThreadBroker]:
    """A RocketMQ broker with its name server: ``rocketmq.options``, ``rocketmq.namesrv``."""
    from skylark.testing.thread_broker import sync_broker

    with sync_broker(rocketmq_settings) as broker:
        yield broker


@pytest.fixture
def rocketmq_topic(rocketmq: ThreadBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a topic that no other test uses, with four queues."""
    name = rocketmq.topic(_prefix(request))
    yield name
    rocketmq.delete_topic(name)


@pytest.fixture
def rocketmq_group(rocketmq: ThreadBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a consumer group that no other test uses."""
    name = rocketmq.group(_prefix(request))
    yield name
    rocketmq.delete_group(name)


@pytest.fixture
def rocketmq_env(rocketmq: ThreadBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sets ``NAMESRV_ADDR`` for this test; returns the address."""
    for name in ADDRESS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NAMESRV_ADDR", rocketmq.namesrv)
    return rocketmq.namesrv


def _prefix(request: pytest.FixtureRequest) -> str:
    """The name of the test, as far as it can stand in that of a topic."""
    return _NOT_IN_NAMES.sub("-", request.node.name)[:NAME_LENGTH_MAX].strip("-")


# ---- reports -------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        FULL_TRACE, "show the frames inside Skylark of errors that it raises", type="bool"
    )


def _hide_our_frames(item: pytest.Item, caught: pytest.ExceptionInfo[BaseException]) -> None:
    """Let the report of an error of ours end in the user's code."""
    errors = sys.modules.get("skylark.core.errors")
    if errors is None or not isinstance(caught.value, errors.SkylarkError):
        return
    if item.config.getini(FULL_TRACE) or item.config.getoption("fulltrace"):
        return
    entries = []
    entry: TracebackType | None = caught.tb
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    names = [str(entry.tb_frame.f_globals.get("__name__", "")) for entry in entries]
    shown = zip(entries, users_frames(names), strict=True)
    kept = [entry for entry, is_users in shown if is_users]
    for one, following in zip(kept, [*kept[1:], None], strict=True):
        one.tb_next = following  # pytest makes its own list of entries anew from this chain


def users_frames(modules: Iterable[str]) -> Iterator[bool]:
    """For each frame, by the name of its module: whether it is not inside a call of Skylark.

    Between frames of Skylark there are those of futures and of event loops; they belong to it.
    """
    inside = False
    for module in modules:
        root = module.partition(".")[0]
        if root == "skylark":
            inside = True
        elif root not in sys.stdlib_module_names and root != "uvloop":
            inside = False
        yield not inside


# ---- faults --------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    if any(map(config.pluginmanager.hasplugin, ("asyncio", "anyio"))):
        from skylark.testing import async_fixtures

        config.pluginmanager.register(async_fixtures, "skylark-async")
    config.addinivalue_line(
        "markers",
        f"{MARKER}(*, duplicate=0.0, drop_ack=0.0, delay_ms=0, seed=None): what goes wrong between"
        " the broker of the fixture rocketmq and its clients",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return
    fixture_names: Collection[str] = getattr(item, "fixturenames", ())
    if "rocketmq" in fixture_names:
        item.stash[_PLAN] = _plan(marker)
    elif marker.kwargs and marker.kwargs.keys() <= set(ARGUMENTS):
        _refuse("the test does not use the fixture rocketmq, whose broker would have them")
    # Else it is a marker of the same name that means something else.


def _plan(marker: pytest.Mark) -> MessageFaults:
    """What the marker asks for; what is wrong with it is an error of the test."""
    from skylark.core.errors import ConfigError
    from skylark.testing.request_faults import MessageFaults

    for name in marker.kwargs:
        if name not in ARGUMENTS:
            _refuse(f"{name} is not one of {', '.join(ARGUMENTS)}")
    if marker.args:
        _refuse(f"it takes keywords only, not {marker.args[0]!r}")
    try:
        return MessageFaults(**marker.kwargs)
    except ConfigError as error:
        _refuse(str(error))


def _refuse(why: str) -> NoReturn:
    pytest.fail(f"@pytest.mark.{MARKER}: {why}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    plan = item.stash.get(_PLAN, None)
    if plan is None:
        return (yield)
    broker: ThreadBroker = item.funcargs["rocketmq"]  # type: ignore[attr-defined]
    broker.faults = plan
    try:
        return (yield)
    finally:
        broker.faults = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None:
        _hide_our_frames(item, call.excinfo)
    report = yield
    plan = item.stash.get(_PLAN, None)
    if plan is not None and report.failed:
        report.sections.append(("Faults of rocketmq", f"@pytest.mark.{plan}"))
    return report
