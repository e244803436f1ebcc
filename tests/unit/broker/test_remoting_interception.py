"""What interceptors of the services see of a remoting request."""

from __future__ import annotations

import pytest

from skylark.broker.api import Operation, Resource
from skylark.broker.remoting_interception import operation_of, resources_of
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command


@pytest.mark.parametrize(
    ("code", "ext", "expected"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "T", "b": "U"}, [("topic", "T")]),
        (RequestCode.SEND_MESSAGE_V2, {"topic": "T", "b": "U"}, [("topic", "U")]),
        (
            RequestCode.PULL_MESSAGE,
            {"consumerGroup": "g", "topic": "T"},
            [("topic", "T"), ("group", "g")],
        ),
        (
            RequestCode.GET_CONSUME_STATS,
            {"consumerGroup": "g", "topicList": "T;U"},
            [("group", "g"), ("topic", "T"), ("topic", "U")],
        ),
        (RequestCode.GET_BROKER_RUNTIME_INFO, None, [("cluster", "")]),
        (RequestCode.HEART_BEAT, None, []),  # its groups are in the body
        (RequestCode.SEND_MESSAGE, {}, []),  # a request that cannot be read names nothing
        (RequestCode.SEND_MESSAGE, None, []),
        (31_999, {"topic": "T"}, []),
    ],
)
def test_resources(code: int, ext: dict[str, str] | None, expected: list[tuple[str, str]]) -> None:
    found = resources_of(Command(code=code, ext=ext))
    assert found == [Resource(kind, name) for kind, name in expected]


def test_operations_have_the_names_of_the_catalogue() -> None:
    assert operation_of(310) == Operation(name="SEND_MESSAGE_V2", code=310)
    assert operation_of(31_999) == Operation(name="UNKNOWN(31999)", code=31_999)
