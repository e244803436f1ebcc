"""Names inside a namespace, in both versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.client.core.namespace import Namespace
from skylark.core.names import retry_topic
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import HeartbeatData
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import FakeConsumer, world


@pytest.mark.spec("client.8.39")
def test_names_are_wrapped_in_their_namespace() -> None:
    namespace = Namespace("ns")
    assert [namespace.wrap(name) for name in ("T", "G", "ns%T")] == ["ns%T", "ns%G", "ns%T"]
    assert namespace.wrap(retry_topic("G")) == "%RETRY%ns%G"
    assert namespace.unwrap("%RETRY%ns%G") == "%RETRY%G"
    assert namespace.unwrap("ns%T") == "T"
    assert namespace.wrap("RMQ_SYS_TRACE_TOPIC") == "RMQ_SYS_TRACE_TOPIC"
    queue = MessageQueue(topic="T", broker_name="a", queue_id=1)
    assert namespace.wrap_queue(queue).topic == "ns%T"
    assert namespace.unwrap_queue(namespace.wrap_queue(queue)) == queue
    nothing = Namespace()
    assert (nothing.wrap("T"), nothing.unwrap("ns%T")) == ("T", "ns%T")
    assert nothing.wrap_queue(queue) is nothing.unwrap_queue(queue) is queue


@pytest.mark.spec("client.8.39")
@pytest.mark.parametrize("v2", [False, True])
async def test_a_namespace_over_the_wire(tmp_path: Path, v2: bool) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        given: dict[str, Any] = {"namespace_v2": "ns"} if v2 else {"namespace": "ns"}
        async with w.client(namesrv=await server.start(), **given) as instance:
            topic, group = instance.namespace.wrap("T"), instance.namespace.wrap("G")
            server.serve_route(topic, a=server.address)
            retries = instance.namespace.wrap(retry_topic("G"))
            await instance.register_consumer(FakeConsumer(group, topic, retries))
            await instance.refresh_route(topic)
            await instance.heartbeat_all()
            (beat,) = server.of(RequestCode.HEART_BEAT)
            body = decode_body(HeartbeatData, beat.body or b"").consumer_data_set[0]
            names = {body.group_name, *(each.topic for each in body.subscription_data_set)}
            if v2:
                assert names == {"G", "T", "%RETRY%G"}
                assert beat.ext == {"nsd": "true", "ns": "ns"}
            else:
                assert names == {"ns%G", "ns%T", "%RETRY%ns%G"}
                assert not beat.ext
        await w.finish(server.stop())
