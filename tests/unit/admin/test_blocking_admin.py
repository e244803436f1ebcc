"""The blocking twin: every function is there, and does the same from any thread."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from skylark.admin import blocking_admin as blocking
from skylark.admin import cluster_stats as stats
from skylark.admin import dlq
from skylark.admin import group_operations as groups
from skylark.admin import message_operations as messages
from skylark.admin import offset_operations as offsets
from skylark.admin import server_settings as settings
from skylark.admin import topic_operations as topics
from skylark.admin.admin_client import Admin as AsyncAdmin
from skylark.admin.errors import NotFoundError
from skylark.core.errors import ClientStateError
from tests.unit.admin.sites import Site, running_site

FAMILIES: list[tuple[type, type]] = [
    (blocking.Topics, topics.Topics),
    (blocking.Groups, groups.Groups),
    (blocking.Offsets, offsets.Offsets),
    (blocking.Stats, stats.Stats),
    (blocking.Messages, messages.Messages),
    (blocking.DeadLetterQueues, dlq.DeadLetterQueues),
    (blocking.Settings, settings.Settings),
]


def functions(kind: type) -> dict[str, object]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(("twin", "family"), FAMILIES, ids=lambda kind: kind.__name__)
def test_no_function_is_missing(twin: type, family: type) -> None:
    assert functions(twin).keys() == functions(family).keys()
    for name, function in functions(twin).items():
        theirs = functions(family)[name]
        assert inspect.unwrap(function) is inspect.unwrap(theirs)  # type: ignore[arg-type]


def test_no_family_is_missing() -> None:
    names = {name for name in dir(AsyncAdmin) if not name.startswith("_")} - {"session"}
    twins = {name for name in dir(blocking.Admin) if not name.startswith("_")}
    assert twins == names | {"options", "state"}


def use(site: Site) -> None:
    with blocking.Admin(site.options()) as admin:
        admin.start()  # it runs already
        (made,) = admin.topics.create("T", queue_count=1)
        assert made.created
        asyncio.run(site.send_to_queue("T", 0, b"a", b"b", b"c"))
        assert [m.body for m in admin.messages.between("T", limit=2)] == [b"a", b"b"]
        for message in admin.messages.between("T"):
            assert message.body == b"a"
            break
        with pytest.raises(NotFoundError):
            admin.topics.describe("Missing")
    with pytest.raises(ClientStateError, match="has been stopped"):
        admin.topics.all()
    admin.stop()


async def test_it_works_from_a_thread(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, _):
        await asyncio.to_thread(use, site)


def test_it_is_started_first() -> None:
    admin = blocking.Admin()
    assert repr(admin).startswith("<sync Admin ")
    with pytest.raises(ClientStateError, match="has not been started"):
        admin.topics.all()
