"""The verdict of an explanation, from what its checks found."""

from __future__ import annotations

import pytest

from skylark.admin.explain import Explanation, judge
from skylark.admin.explain_checks import Check, Status

ORDER = (
    "message", "route", "queue", "group", "members", "subscription", "conflict", "filter",
    "owner", "lock", "offset", "pop", "retry", "dlq", "trace",
)  # fmt: skip


def found(**given: Status) -> list[Check]:
    """All checks, ok unless said otherwise; without a trace, as usual."""
    statuses: dict[str, Status] = dict.fromkeys(ORDER, "ok")
    statuses["trace"] = "unknown"
    statuses.update(given)
    return [
        Check(check=name, status=status, finding=f"<{name}>") for name, status in statuses.items()
    ]


@pytest.mark.parametrize(
    ("statuses", "consumed", "said"),
    [
        ({}, True, "consumed: the offset is past it"),
        ({"trace": "ok", "dlq": "not", "members": "not"}, True, "consumed: <trace>"),
        ({"dlq": "not", "retry": "not"}, False, "not consumed: <dlq>"),
        ({"retry": "not"}, False, "not consumed: <retry>"),
        ({"pop": "not"}, False, "not consumed: <pop>"),
        ({"pop": "not", "dlq": "not"}, False, "not consumed: <dlq>"),
        ({"pop": "unknown"}, None, "unknown: <pop>"),
        ({"pop": "unknown", "trace": "ok"}, True, "consumed: <trace>"),
        ({"message": "not"}, False, "not consumed: <message>"),
        ({"filter": "not"}, False, "not consumed: <filter>"),
        ({"members": "not", "filter": "unknown"}, None, "passed: the offset is past it"),
        ({"conflict": "not"}, None, "unknown: the offset is past it, but members"),
        ({"offset": "not", "members": "not"}, False, "not consumed: <members>"),
        ({"offset": "not", "filter": "not", "owner": "not"}, False, "not consumed: <filter>"),
        ({"offset": "not"}, False, "not consumed: <offset>"),
        ({"offset": "unknown"}, None, "unknown: <offset>"),
        ({"offset": "unknown", "members": "not"}, None, "unknown: <offset>"),
        ({"offset": "unknown", "filter": "not"}, False, "not consumed: <filter>"),
        ({"dlq": "unknown"}, None, "unknown: <dlq>"),
        ({"retry": "unknown"}, None, "unknown: <retry>"),
        ({"retry": "unknown", "dlq": "not"}, False, "not consumed: <dlq>"),
        ({"retry": "unknown", "trace": "ok"}, True, "consumed: <trace>"),
        ({"group": "unknown"}, True, "consumed: the offset is past it"),
    ],
)
def test_verdicts(statuses: dict[str, Status], consumed: bool | None, said: str) -> None:
    verdict = judge(found(**statuses))
    assert verdict[0] is consumed
    assert verdict[1].startswith(said)


def test_an_acknowledged_message_is_consumed_whatever_the_filter() -> None:
    checks = [check for check in found(members="not", filter="unknown") if check.check != "pop"]
    popped = Check(check="pop", status="ok", finding="it was popped and acknowledged, attempt 1")
    expected = (True, "consumed: it was popped and acknowledged, attempt 1")
    assert judge([*checks, popped]) == expected


def test_a_group_that_nobody_could_ask_about() -> None:
    checks = [check for check in found(group="unknown") if check.check in ORDER[:4]]
    assert judge(checks) == (None, "unknown: <group>")


def test_causes_are_what_is_in_the_way() -> None:
    account = Explanation(
        group="g", checks=tuple(found(filter="not", owner="unknown")), consumed=False, verdict=""
    )
    assert [check.check for check in account.causes] == ["filter"]
