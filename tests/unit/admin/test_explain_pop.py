"""What an explanation says of a popped message, from what brokers report."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.admin.explain_checks import Check, Status
from skylark.admin.explain_pop import PopFacts, decide
from skylark.client.core.client_message import MessageExt
from skylark.wire.bodies.stats import PoppedReport
from skylark.wire.message import decode_record, encode_record, pack_host


def message(times: int = 0) -> MessageExt:
    """At offset 5 of its queue, stored at 5 s."""
    raw = encode_record(
        topic="T",
        body=b"x",
        properties=b"",
        queue_id=0,
        queue_offset=5,
        log_offset=0,
        store_host=pack_host("127.0.0.1", 1),
        reconsume_times=times,
        store_timestamp=5_000,
    )
    return MessageExt(decode_record(raw), "broker-a")


def decided(times: int = 0, **given: Any) -> Check:
    facts: dict[str, Any] = {
        "held": message(times),
        "is_copy": times > 0,
        "report": PoppedReport(known_since=1_000),
        "committed": 6,
        "pops": True,
    }
    return decide(PopFacts(**{**facts, **given}))


def test_it_is_popped() -> None:
    report = PoppedReport(known_since=1, pop_time=10_000, invisible_time=60_000)
    found = decided(1, report=report)
    assert found.status == "not"
    assert found.finding.startswith("popped at 1970-01-01 ")
    assert ":10.000" in found.finding
    assert "invisible until 1970-01-01 " in found.finding
    assert found.finding.endswith("attempt 2")
    assert found.fix is not None


def test_it_was_not_acknowledged_in_time() -> None:
    report = PoppedReport(pop_time=10_000, invisible_time=60_000, expired=True, earlier_count=2)
    found = decided(report=report, committed=5)
    assert found.status == "not"
    assert "and not acknowledged until 1970-01-01 " in found.finding
    assert found.finding.endswith("attempt 3; the next one is due")


ACKED = PoppedReport(known_since=1_000, pop_time=2_000, invisible_time=1, acknowledged=True)
LATE = PoppedReport(known_since=9_000)


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"report": ACKED}, "ok", "it was popped and acknowledged, attempt 1"),
        ({"report": ACKED, "times": 2}, "ok", "it was popped and acknowledged, attempt 3"),
        ({"report": ACKED, "pops": False}, "ok", "it was popped and acknowledged, attempt 1"),
        ({"report": ACKED, "committed": 5}, "ok", "no client has popped it"),  # it was reset
        ({"report": ACKED, "silent": frozenset({"b"})}, "unknown", "b did not respond"),
        ({}, "ok", "no consumer holds it: it was acknowledged, or not popped at all"),
        ({"times": 1}, "ok", "no consumer holds it"),
        ({"pops": False}, "ok", "no consumer holds it"),
        ({"committed": 5}, "ok", "no client has popped it"),
        ({"committed": None}, "ok", "no client has popped it"),
        ({"committed": 5, "report": PoppedReport(next_offset=6)}, "ok", "no consumer holds it"),
        ({"committed": 5, "report": LATE}, "ok", "the next pop of the group begins at offset 0"),
        ({"times": 1, "committed": 5}, "not", "it was popped and not acknowledged, and attempt 2"),
        ({"report": None}, "unknown", "only masters of Skylark report whether it was acknowledged"),
        ({"report": None, "committed": 5}, "unknown", "only masters of Skylark report whether it"),
        ({"report": None, "pops": False}, "ok", "no member pops the topic; only masters"),
        ({"report": LATE}, "unknown", "whether it is popped is known only of pops since"),
        ({"report": LATE, "pops": False}, "unknown", "whether it is popped is known only"),
        ({"silent": frozenset({"b"})}, "unknown", "b did not respond"),
    ],
)
def test_it_is_not_popped(given: dict[str, Any], status: Status, said: str) -> None:
    found = decided(**given)
    assert (found.check, found.status) == ("pop", status)
    assert found.finding.startswith(said)
