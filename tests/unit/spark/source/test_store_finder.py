"""The store folder of a broker, and topics that are not read from files."""

from __future__ import annotations

from typing import Any, cast

import pytest

from skylark.admin.admin_session import Session
from skylark.core.errors import ConnectError
from skylark.spark.source.source_options import source_options
from skylark.spark.source.store_finder import StoreFinder
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.codes import RequestCode

ADDRESSES = {0: "192.0.2.1:10911"}


class FakeSession:
    """A broker with topics of these attributes; one that it does not know is an error."""

    def __init__(self, **attributes: dict[str, str]) -> None:
        self._attributes = attributes
        self.asked: list[str] = []

    async def ask(self, kind: type[Any], address: str, code: int, header: Any) -> Any:
        assert (kind, address, code) == (TopicConfig, ADDRESSES[0], RequestCode.GET_TOPIC_CONFIG)
        self.asked.append(header.topic)
        if header.topic not in self._attributes:
            raise ConnectError("refused")
        return TopicConfig(topic_name=header.topic, attributes=self._attributes[header.topic])


def finder(session: FakeSession, **more: str) -> StoreFinder:
    given = {"nameserver": "h:1", "topicspattern": ".*", **more}
    options = source_options(given, streaming=True, environ={})
    return StoreFinder(cast(Session, session), options)


@pytest.mark.parametrize("name", ["cleanup.policy", "+cleanup.policy"])
async def test_compacted_topics_are_pulled(name: str) -> None:
    session = FakeSession(Plain={}, Kept={name: "DELETE"}, Compacted={name: "COMPACTION"})
    stores = finder(session, storepath="/store")
    for _ in range(2):
        assert await stores.find("Plain", ADDRESSES) == "/store"
        assert await stores.find("Kept", ADDRESSES) == "/store"
        assert await stores.find("Compacted", ADDRESSES) is None
        assert await stores.find("Silent", ADDRESSES) is None
    assert session.asked == ["Plain", "Kept", "Compacted", "Silent", "Silent"]


async def test_remote_brokers_are_not_asked_for_their_store_folder() -> None:
    session = FakeSession()
    assert await finder(session).find("T", ADDRESSES) is None
    assert await finder(session, storepath="/store", readmode="pull").find("T", ADDRESSES) is None
    assert await finder(session, storepath="/store").find("T", {}) == "/store"
    assert session.asked == []
