"""Pull or pop, by topic and group."""

from __future__ import annotations

import pytest

from skylark.broker.groups import request_modes
from skylark.broker.groups.request_modes import RequestModes
from skylark.core.errors import BrokerError
from skylark.wire.bodies.pop_body import MessageRequestMode, SetMessageRequestModeRequestBody


def mode(topic: str, group: str, **fields: object) -> SetMessageRequestModeRequestBody:
    return SetMessageRequestModeRequestBody(topic=topic, consumer_group=group, **fields)  # type: ignore[arg-type]


def test_modes_are_kept_and_handed_out() -> None:
    modes = RequestModes()
    modes.set(mode("T", "g"))
    modes.set(mode("T", "h", pop_share_queue_num=3))
    modes.set(mode("T", "h", pop_share_queue_num=4))
    assert len(modes) == 2
    table = modes.dump().message_request_mode_map
    assert table["T"]["h"].pop_share_queue_num == 4
    again = RequestModes()
    again.load(modes.snapshot())
    assert again.dump() == modes.dump()


def test_a_snapshot_does_not_follow_changes() -> None:
    modes = RequestModes()
    modes.set(mode("T", "g"))
    snapshot = modes.snapshot()
    modes.set(mode("T", "h"))
    assert list(snapshot.message_request_mode_map["T"]) == ["g"]


def test_pop_is_a_mode_and_an_unknown_mode_is_refused() -> None:
    modes = RequestModes()
    popping = mode("T", "g", mode=MessageRequestMode.POP)
    modes.set(popping)
    with pytest.raises(BrokerError, match="missing, or unknown"):
        modes.set(mode("T", "g", mode=None))
    assert modes.get("T", "g") == popping
    assert modes.get("T", "other") is None
    assert modes.get("other", "g") is None


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_modes, "MODE_COUNT_MAX", 2)
    modes = RequestModes()
    modes.set(mode("T", "g"))
    modes.set(mode("U", "g"))
    with pytest.raises(BrokerError, match="2 groups have a request mode"):
        modes.set(mode("V", "g"))
    modes.set(mode("T", "g"))
    assert sorted(modes.dump().message_request_mode_map) == ["T", "U"]
