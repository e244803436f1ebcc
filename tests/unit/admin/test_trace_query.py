"""Traces: pairs of before and after, and a real trace topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.admin.errors import NotFoundError
from skylark.admin.trace_query import arrange
from skylark.client.core.client_message import Message
from skylark.client.trace.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    encode_trace,
)
from tests.unit.admin.sites import indexed, running_site

PUB = PubTrace(
    time_ms=5,
    region_id="r",
    group="pg",
    topic="T",
    msg_id="M",
    tags="A",
    keys="k",
    store_host="h:1",
    body_size=3,
    cost_ms=2,
    message_type=0,
    offset_msg_id="O",
)


def before(request: str, time_ms: int, group: str = "g") -> SubBeforeTrace:
    return SubBeforeTrace(
        time_ms=time_ms, region_id="r", group=group, request_id=request, msg_id="M",
        retry_times=0, keys=None,
    )  # fmt: skip


def after(request: str, success: bool = True) -> SubAfterTrace:
    return SubAfterTrace(
        request_id=request, msg_id="M", cost_ms=4, success=success, keys=None, time_ms=99,
        group="late",
    )  # fmt: skip


def test_before_and_after_are_paired_and_sorted() -> None:
    traces: list[Trace] = [after("2"), before("2", 30), before("1", 20), PUB, PUB, after("3")]
    found = arrange("M", traces)
    assert found.sends == (PUB,)
    assert [(d.request_id, d.before, d.after) for d in found.deliveries] == [
        ("1", before("1", 20), None),
        ("2", before("2", 30), after("2")),
        ("3", None, after("3")),
    ]
    assert [d.group for d in found.deliveries] == ["g", "g", "late"]
    assert [d.time_ms for d in found.deliveries] == [20, 30, 99]


def test_transactions_are_shown_and_recalls_passed_over() -> None:
    end = EndTransactionTrace(
        time_ms=1, region_id="r", group="pg", topic="T", msg_id="M", tags=None, keys=None,
        store_host="h", transaction_id="X", state="COMMIT_MESSAGE", from_check=False,
    )  # fmt: skip
    recall = RecallTrace(time_ms=1, region_id="r", group="pg", topic="T", msg_id="M", success=True)
    found = arrange("M", [end, recall])
    assert (found.transactions, found.sends, found.deliveries) == ((end,), (), ())


async def test_a_trace_is_found_by_the_id_of_the_message(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        texts = [encode_trace(PUB) + encode_trace(before("1", 20)), encode_trace(after("1"))]
        sent = await site.send(
            *(Message("RMQ_SYS_TRACE_TOPIC", text.encode(), keys=["M", "k"]) for text in texts)
        )
        await indexed(admin, "RMQ_SYS_TRACE_TOPIC", *(result.msg_id for result in sent))
        found = await admin.messages.trace("M")
        assert (found.msg_id, found.sends) == ("M", (PUB,))
        (delivery,) = found.deliveries
        assert (delivery.before, delivery.after) == (before("1", 20), after("1"))
        with pytest.raises(NotFoundError, match="has no trace of message N"):
            await admin.messages.trace("N")
