"""What interceptors of the services see of a remoting request."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.api import Call, Operation, Resource
from skylark.broker.remoting_endpoint import IN_BODY, operation_of, resources_of
from skylark.broker.service_interception import INTERCEPTED_CODES
from skylark.core.errors import NoPermissionError, RemoteProtocolError
from skylark.wire.bodies.common_body import Body
from skylark.wire.bodies.config import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from skylark.wire.bodies.pop_body import (
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
)
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from tests.unit.broker.stored import stored


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
        (RequestCode.SEND_MESSAGE, {}, []),  # a request that cannot be read names nothing
        (RequestCode.SEND_MESSAGE, None, []),
        (31_999, {"topic": "T"}, []),
    ],
)
def test_resources(code: int, ext: dict[str, str] | None, expected: list[tuple[str, str]]) -> None:
    found = resources_of(Command(code=code, ext=ext))
    assert found == [Resource(kind, name) for kind, name in expected]


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            CreateTopicListRequestBody(
                topic_config_list=[TopicConfig(topic_name="T"), TopicConfig(topic_name="U")]
            ),
            [("topic", "T"), ("topic", "U")],
        ),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            SubscriptionGroupConfig(group_name="g"),
            [("group", "g")],
        ),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            SubscriptionGroupList(group_config_list=[SubscriptionGroupConfig(group_name="g")]),
            [("group", "g")],
        ),
        (
            RequestCode.QUERY_ASSIGNMENT,
            QueryAssignmentRequestBody(topic="T", consumer_group="g"),
            [("topic", "T"), ("group", "g")],
        ),
        (
            RequestCode.SET_MESSAGE_REQUEST_MODE,
            SetMessageRequestModeRequestBody(topic="T", consumer_group="g"),
            [("topic", "T"), ("group", "g")],
        ),
    ],
)
def test_resources_in_bodies(code: int, body: Body, expected: list[tuple[str, str]]) -> None:
    found = resources_of(Command(code=code, ext={}, body=encode_body(body)))
    assert found == [Resource(kind, name) for kind, name in expected]
    with pytest.raises(RemoteProtocolError):
        resources_of(Command(code=code, ext={}, body=b"{"))


def test_every_body_that_names_resources_is_read() -> None:
    in_body = {
        code
        for code, row in CATALOGUE.items()
        if any(each.field is None and each.resource != "Cluster" for each in row.access)
    }
    assert in_body - INTERCEPTED_CODES - {RequestCode.BATCH_ACK_MESSAGE} == set(IN_BODY)


class RefusesAll:
    def __init__(self) -> None:
        self.calls: list[Call] = []

    def before(self, call: Call) -> None:
        self.calls.append(call)
        raise NoPermissionError("closed")

    def after(self, call: Call, code: int | None) -> None:
        assert call is self.calls[-1]
        assert code == 16


async def test_no_handler_runs_without_the_interceptors(tmp_path: Path) -> None:
    """Also one that gets a request without fields: it is refused, or it cannot be read."""
    refusing = RefusesAll()
    async with stored(tmp_path, None, [refusing]) as world:
        codes = world.features.endpoint.server.dispatcher.codes
        assert codes >= INTERCEPTED_CODES
        for code in sorted(codes - IN_BODY.keys()):
            refusing.calls.clear()
            answer = await world.call(code, {}, b"{}")
            if code in INTERCEPTED_CODES:
                assert (len(refusing.calls), answer.code) in {(1, 16), (0, 1)}, code
            else:
                assert ([call.operation.code for call in refusing.calls], answer.code) == (
                    [code], 16,
                )  # fmt: skip


def test_operations_have_the_names_of_the_catalogue() -> None:
    assert operation_of(310) == Operation(name="SEND_MESSAGE_V2", code=310)
    assert operation_of(31_999) == Operation(name="UNKNOWN(31999)", code=31_999)
