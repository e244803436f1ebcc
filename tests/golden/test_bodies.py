"""Bodies of a real RocketMQ 5.5.0 decode to structs, and encode back to the same bytes.

``data/frames`` holds recorded traffic. ``data/bodies/java-5.5.0.jsonl`` was printed by
``BodySamples.java`` beside it, from the bean classes themselves: every field set, odd characters,
doubles, a registration in both forms, and what fastjson 1.2.83 makes of repeated objects.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.wire.bodies import admin_body as admin
from skylark.wire.bodies import common_body as common
from skylark.wire.bodies import config, heartbeat, register, stats
from skylark.wire.bodies import ha_body as ha
from skylark.wire.bodies import pop_body as pop
from skylark.wire.bodies import route_body as route
from skylark.wire.bodies import slave_sync_body as sync
from skylark.wire.bodies.heartbeat import HeartbeatData, heartbeat_fingerprint
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.frame import decode_frame

DATA = Path(__file__).parent / "data"
SCENARIOS = sorted(p.stem for p in (DATA / "frames").glob("*.jsonl") if p.stem != "ha-stream")

# Written by hand to provoke an error, not by a bean: members are missing on purpose.
NOT_FROM_BEANS = {("errors", RequestCode.REGISTER_BROKER, b"{}")}


class RecordedBody(msgspec.Struct):
    """A JSON body from a recorded frame; ``standard`` as the request asked for it."""

    code: int
    response: bool
    standard: bool
    data: bytes


def recorded_bodies(scenario: str) -> list[RecordedBody]:
    bodies = []
    versions: dict[tuple[Any, ...], int] = {}
    for text in (DATA / "frames" / f"{scenario}.jsonl").read_text().splitlines():
        line = json.loads(text)
        command = decode_frame(base64.b64decode(line["raw"]))
        exchange = (line["link"], line["conn"], line["opaque"])
        if not command.is_response:
            versions[exchange] = command.version
        code = line["request_code"] if command.is_response else command.code
        if command.body and command.body[:1] in b"{[":
            standard = (
                code == RequestCode.GET_ROUTEINFO_BY_TOPIC
                and command.is_response
                and versions[exchange] >= 401
            )
            bodies.append(RecordedBody(code, command.is_response, standard, command.body))
    return bodies


def test_all_recorded_json_bodies_are_covered() -> None:
    assert sum(len(recorded_bodies(scenario)) for scenario in SCENARIOS) == 587


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_recorded_bodies_are_written_again_byte_by_byte(scenario: str) -> None:
    for body in recorded_bodies(scenario):
        row = CATALOGUE[body.code]
        body_type = row.response_body_type if body.response else row.request_body_type
        assert body_type is not None, row.name
        value = decode_body(body_type, body.data)
        if (scenario, body.code, body.data) not in NOT_FROM_BEANS:
            assert encode_body(value, standard=body.standard) == body.data


def test_what_a_recorded_route_says() -> None:
    (first, *_) = (
        body for body in recorded_bodies("route-versions") if body.code == 105 and not body.standard
    )
    assert b'{0:"127.0.0.2:20911"}' in first.data
    found = decode_body(route.TopicRouteData, first.data)
    assert found.broker_datas[0].broker_addrs == {0: "127.0.0.2:20911"}
    assert found.broker_datas[0].cluster == "DefaultCluster"
    assert found.queue_datas[0].perm == 6


def test_a_recorded_consumer_table_has_queues_as_keys() -> None:
    (body,) = (body for body in recorded_bodies("admin-topicStatus") if body.code == 202)
    table = decode_body(stats.TopicStatsTable, body.data).offset_table
    queue = common.MessageQueue(topic="FrameA", broker_name="broker-a", queue_id=1)
    assert table[queue].max_offset == 12


def test_recorded_fingerprints_belong_to_their_subscriptions() -> None:
    beats = [
        decode_body(HeartbeatData, body.data)
        for body in recorded_bodies("heartbeat-v2")
        if body.code == RequestCode.HEART_BEAT and not body.response
    ]
    full = [beat for beat in beats if beat.heartbeat_fingerprint and not beat.without_sub]
    assert [heartbeat_fingerprint(beat) for beat in full] == [
        beat.heartbeat_fingerprint for beat in full
    ]
    assert {beat.heartbeat_fingerprint for beat in full} == {1744566926, -1819768481, -2100892154}


def test_recorded_timer_checkpoints() -> None:
    lines = (DATA / "frames" / "slave-sync.jsonl").read_text().splitlines()
    bodies = [
        decode_frame(base64.b64decode(line["raw"])).body
        for line in map(json.loads, lines)
        if line.get("request_code") == RequestCode.GET_TIMER_CHECK_POINT
    ]
    found = [body for body in bodies if body]
    assert len(found) == 23
    for body in found:
        assert sync.TimerCheckpoint.decode(body).encode() == body
    first = sync.TimerCheckpoint.decode(found[0])
    assert first.last_timer_log_flush_pos == 52
    assert first.master_timer_queue_offset == 1
    assert first.data_version == common.DataVersion(
        state_version=0, counter=39, timestamp=1794711639675
    )


# ---- printed by the Java beans -----------------------------------------------------------------


@cache
def samples(kind: str) -> list[tuple[str, str]]:
    with (DATA / "bodies" / "java-5.5.0.jsonl").open(encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    return [(line["name"], line["text"]) for line in found if line["kind"] == kind]


def body_types() -> dict[str, Any]:
    modules = [admin, common, config, ha, heartbeat, pop, register, route, stats, sync]
    return {name: member for module in modules for name, member in vars(module).items()}


# Ours has another name, because Java has the two counters in a separate class.
RENAMED = {"AccAndTimeStamp": "ColdDataReadCount"}


@pytest.mark.parametrize(("name", "text"), samples("bean"))
def test_every_bean_with_every_field(name: str, text: str) -> None:
    body_type = body_types()[RENAMED.get(name, name)]
    assert encode_body(decode_body(body_type, text.encode())).decode() == text


def test_all_body_types_have_a_java_sample() -> None:
    structs = {
        name
        for name, member in body_types().items()
        if isinstance(member, type)
        and issubclass(member, common.Body)
        and member is not common.Body
    }
    sampled = {RENAMED.get(name, name) for name, _ in samples("bean")}
    # Java has no class for these: a manager of the broker writes them.
    written_by_managers = {
        "ColdDataFlowCtrInfo",
        "DelayOffsetSerializeWrapper",
        "TimerMetric",
        "TimerMetrics",
    }
    extensions = {"PoppedReport", "QueueLock", "SubscriptionConflict", "SubscriptionSide"}
    assert structs - sampled == written_by_managers | extensions


def test_escapes() -> None:
    ((_, text),) = samples("escapes")
    table = decode_body(common.KVTable, text.encode())
    expected = "".join(map(chr, range(0x180))) + "\u2028\u4e2d\U0001f600"
    assert table.table == {"k": expected}
    assert encode_body(table).decode() == text
    assert json.loads(encode_body(table, standard=True).decode("ascii")) == {
        "table": {"k": expected}
    }


@pytest.mark.parametrize(("number", "text"), samples("double"))
def test_doubles(number: str, text: str) -> None:
    assert encode_body(stats.BrokerStatsItem(tps=float(number))).decode() == text


def test_references_by_fastjson_1() -> None:
    found = dict(samples("reference"))
    assert all('"$ref"' in text for text in found.values())

    connection = decode_body(admin.ConsumerConnection, found["ConsumerConnection"].encode())
    assert connection.subscription_table["x"].topic == "%RETRY%g-a.b"

    groups = decode_body(stats.ConsumeStatsList, found["ConsumeStatsList"].encode())
    queue = common.MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    first, second, third = groups.consume_stats_list
    assert first == second
    assert [list(each.offset_table) for each in third["h.x y\u4e2d"]] == [[queue], [queue]]

    wrapper = decode_body(
        sync.TopicConfigAndMappingSerializeWrapper,
        found["TopicConfigAndMappingSerializeWrapper"].encode(),
    )
    assert wrapper.mapping_data_version == wrapper.data_version
    assert wrapper.mapping_data_version.timestamp == 1700000000000


def test_a_reference_to_a_key_is_left_out() -> None:
    text = dict(samples("reference"))["GetConsumerStatusBody"]
    assert r"@c.null" in text
    status = decode_body(admin.GetConsumerStatusBody, text.encode())
    queue = common.MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    assert status.consumer_table == {"127.0.0.1@c": {queue: 3}}
    assert status.message_queue_table == {}


def test_registration_in_both_forms() -> None:
    found = dict(samples("registration"))
    compressed = bytes.fromhex(found["compressed"])
    plain = register.decode_register_body(found["plain"].encode(), version=513)
    wrapper = plain.topic_config_serialize_wrapper
    assert wrapper.topic_config_table["T"].attributes == {"message.type": "NORMAL"}
    assert wrapper.topic_queue_mapping_info_map["S"].curr_id_map == {0: 1}

    inflated = register.decode_register_body(compressed, version=513)
    # The compressed form has no version of the mappings.
    wrapper.mapping_data_version = common.DataVersion()
    assert inflated == plain

    again = register.encode_register_body(inflated, compress=True)
    assert register.decode_register_body(again, version=513) == plain


def test_fingerprint_of_a_java_heartbeat() -> None:
    ((_, text),) = samples("fingerprint")
    beat = decode_body(HeartbeatData, text.encode())
    assert beat.heartbeat_fingerprint == 2051189860
    assert heartbeat_fingerprint(beat) == 2051189860
