"""Trace records: the text is that of Java, and old forms are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.consumer.push.concurrent_settlement import ReturnType
from skylark.client.trace import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TraceMessageType,
    decode_traces,
)
from skylark.client.trace.trace_records import encode_trace, trace_keys
from skylark.core.errors import RemoteProtocolError

#: Printed by Traces.java beside it, with the classes of RocketMQ 5.5.0.
GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "client" / "traces.jsonl"

TIME_MS = 1_700_000_000_123
REQUEST_ID = "0A00000130391234567800000000000A"


def msg_id(number: int) -> str:
    return f"0A0000013039123456780000000000{number:02}"


def pub(number: int, **changes: object) -> PubTrace:
    fields: dict[str, object] = {
        "time_ms": TIME_MS,
        "region_id": "DefaultRegion",
        "group": "GroupA",
        "topic": "TopicA",
        "msg_id": msg_id(number),
        "tags": "TagA",
        "keys": "k1 k2",
        "store_host": "127.0.0.1:10911",
        "body_size": 26,
        "cost_ms": 7,
        "message_type": TraceMessageType.NORMAL,
        "offset_msg_id": "7F00000100002A9F0000000000000000",
    }
    return PubTrace(**(fields | changes))  # type: ignore[arg-type]


def before(number: int, keys: str | None) -> SubBeforeTrace:
    return SubBeforeTrace(
        time_ms=TIME_MS,
        region_id="DefaultRegion",
        group="GroupA",
        request_id=REQUEST_ID,
        msg_id=msg_id(number),
        retry_times=2,
        keys=keys,
    )


def after(number: int, keys: str | None, *, cloud: bool = False) -> SubAfterTrace:
    return SubAfterTrace(
        request_id=REQUEST_ID,
        msg_id=msg_id(number),
        cost_ms=7,
        success=True,
        keys=keys,
        context_code=ReturnType.RETURN_NULL,
        time_ms=None if cloud else TIME_MS,
        group=None if cloud else "GroupA",
    )


END = EndTransactionTrace(
    time_ms=TIME_MS,
    region_id="DefaultRegion",
    group="GroupA",
    topic="TopicA",
    msg_id=msg_id(5),
    tags="TagA",
    keys="k1",
    store_host="127.0.0.1:10911",
    transaction_id="tx-1",
    state="COMMIT_MESSAGE",
    from_check=True,
)
RECALL = RecallTrace(
    time_ms=TIME_MS,
    region_id="DefaultRegion",
    group="GroupA",
    topic="TopicA",
    msg_id=msg_id(6),
    success=True,
)

CASES: dict[str, list[Trace]] = {
    "pub": [pub(1)],
    "pub without tag": [
        pub(2, tags=None, keys=None, message_type=TraceMessageType.TRANSACTION_HALF)
    ],
    "before": [before(3, "k1"), before(4, None)],
    "after": [after(3, "k1"), after(4, None)],
    "after in the cloud": [after(3, "k1", cloud=True)],
    "end": [END],
    "recall": [RECALL],
}


def golden() -> dict[str, dict[str, str]]:
    lines = map(json.loads, GOLDEN.read_text().splitlines())
    return {line["name"]: line for line in lines}


@pytest.mark.spec("client.8.38")
@pytest.mark.parametrize("name", CASES)
def test_the_text_is_that_of_java(name: str) -> None:
    printed = golden()[name]
    assert "".join(map(encode_trace, CASES[name])) == printed["data"]
    assert decode_traces(printed["data"]) == CASES[name]
    if name != "recall":  # Java adds keys that the record itself does not have
        keys = {key for trace in CASES[name] for key in trace_keys(trace)}
        assert sorted(keys) == printed["keys"].split()


def test_every_printed_record_is_compared() -> None:
    assert sorted(golden()) == sorted(CASES)


@pytest.mark.spec("client.8.38")
def test_a_send_has_fourteen_fields_and_null_for_no_tag() -> None:
    fields = encode_trace(pub(1, tags=None)).removesuffix("\x02").split("\x01")
    assert (len(fields), fields[6]) == (14, "null")


def test_old_and_newer_forms_of_a_send() -> None:
    fields = encode_trace(pub(1, success=False)).removesuffix("\x02").split("\x01")
    short = "\x01".join([*fields[:12], "TRUE"])
    long = "\x01".join([*fields, "10.0.0.9", "more"])
    assert decode_traces(f"{short}\x02{long}") == [
        pub(1, offset_msg_id="", success=True),
        pub(1, success=False, client_host="10.0.0.9"),
    ]


def test_old_forms_of_a_consumption() -> None:
    six = "\x01".join(["SubAfter", REQUEST_ID, msg_id(3), "7", "true", "k1"])
    expected = SubAfterTrace(
        request_id=REQUEST_ID, msg_id=msg_id(3), cost_ms=7, success=True, keys="k1"
    )
    assert decode_traces(six) == [expected]
    assert decode_traces(f"{six}\x012") == [
        SubAfterTrace(
            request_id=REQUEST_ID,
            msg_id=msg_id(3),
            cost_ms=7,
            success=True,
            keys="k1",
            context_code=2,
        )
    ]
    assert decode_traces("SubBefore\x011\x01r\x01g\x01q\x01m\x010\x01") == [
        SubBeforeTrace(
            time_ms=1, region_id="r", group="g", request_id="q", msg_id="m", retry_times=0, keys=""
        )
    ]


def test_unknown_kinds_are_passed_over() -> None:
    assert decode_traces("") == []
    assert decode_traces(f"Later\x01x\x02{encode_trace(RECALL)}") == [RECALL]


@pytest.mark.parametrize("text", ["Pub", "Pub\x01x", "SubAfter\x01a\x01b\x01c\x01true\x01k"])
def test_broken_records_are_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="is broken"):
        decode_traces(text)


def test_separators_in_keys_do_not_break_a_record() -> None:
    [found] = decode_traces(encode_trace(pub(1, keys="a\x01b\x02c")))
    assert isinstance(found, PubTrace)
    assert found.keys == "a b c"
    assert found.success


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("\x01\x02aPub1")), st.sampled_from(["Pub", "SubBefore", "Recall"]))
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    try:
        found = decode_traces(f"{kind}\x01{text}")
    except RemoteProtocolError:
        return
    assert decode_traces("".join(map(encode_trace, found))) == found
