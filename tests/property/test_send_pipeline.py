"""Sends give the same whether they come alone, in one write, cut anywhere, or as a batch.

The plain form of a send is :data:`~tests.property.send_outcomes.Way.PLAIN`: one request, handled
by the handler for a single request. Whatever is quicker (runs, half messages kept in memory, headers
that are cut by a known layout, answers from a template) must leave the same answers, records, queue
and index entries, counters, metrics and wake-ups. What each outcome holds, and what is masked, is in
:mod:`tests.property.send_outcomes`.

More examples: ``SEND_EXAMPLES=2000 pytest tests/property/test_send_pipeline.py``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.property.send_outcomes import Case, Way, differences, play
from tests.property.send_requests import (
    EVERY_KIND,
    EVERY_KIND_BACK,
    SETTINGS,
    Request,
    Send,
    requests,
)

EXAMPLES: Final = int(os.environ.get("SEND_EXAMPLES", "60"))
#: A message becomes less plain in each of these steps; longer lists only repeat them.
QUICK: Final = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


# ---- what is known to differ ----------------------------------------------------------------------


def _has_a_name_twice(request: Request) -> bool:
    if not isinstance(request, Send) or request.parts:
        return False
    items = (request.properties or "").split("\x02")
    names = [item.partition("\x01")[0] for item in items if "\x01" in item]
    return len(set(names)) < len(names)


@dataclass(frozen=True)
class KnownDifference:
    """Requests that a quicker form does not handle as the plain form does."""

    name: str
    reason: str
    covers: Callable[[Request], bool]
    example: Sequence[Request]
    is_timed: bool = True


#: No list that is compared has such a request. A row goes when the difference is mended:
#: ``test_known_differences_are_there`` fails then.
KNOWN_DIFFERENCES: Final = (
    KnownDifference(
        name="a name twice",
        reason=(
            "Of a name that occurs twice among the properties, the plain form keeps the last item"
            " alone, as Java's map does. The form for runs stores the string as it came, with both"
            " items; readers take the last. The plain form is right: records have another size."
        ),
        covers=_has_a_name_twice,
        example=[Send(properties="UNIQ_KEY\x01U{id}\x02TAGS\x01A\x02TAGS\x01B\x02")],
    ),
)


def is_comparable(request: Request) -> bool:
    """Whether no known difference covers a request."""
    return not any(known.covers(request) for known in KNOWN_DIFFERENCES)


# ---- alone, in a run, split -----------------------------------------------------------------------

cases = st.builds(
    Case,
    requests=requests.map(lambda drawn: [each for each in drawn if is_comparable(each)]),
    settings=st.sampled_from([{}] * 6 + list(SETTINGS)),
    is_timed=st.booleans(),
    cuts=st.lists(st.integers(0, 10_000), max_size=8).map(tuple),
)


def compare(case: Case, ways: Sequence[Way] = (Way.ALONE, Way.RUN, Way.SPLIT)) -> list[str]:
    """How the outcomes of these ways differ from that of the plain one."""

    async def compared() -> list[str]:
        expected, frames = await play(case, Way.PLAIN)
        lines = []
        for way in ways:
            found, _ = await play(case, way, frames)
            lines += [f"{way.value}: {line}" for line in differences(expected, found)]
        return lines

    return asyncio.run(compared())


@QUICK
@given(cases)
@example(Case(EVERY_KIND, cuts=(1, 77, 500, 3_333, 9_999)))
@example(Case(EVERY_KIND, is_timed=False, cuts=(5_000,)))
@example(Case(EVERY_KIND_BACK, cuts=(2_000, 4_000)))
@example(Case(EVERY_KIND_BACK, is_timed=False, cuts=(2_500,)))
@example(Case([Send()] * 8 + [Send(is_binary=True)] * 8, is_timed=False))
def test_requests_give_the_same_alone_in_a_run_and_split(case: Case) -> None:
    """Records, queue and index entries, counters, metrics, wake-ups and answers."""
    assert compare(case) == []


@pytest.mark.parametrize("given_settings", SETTINGS, ids=str)
def test_every_kind_gives_the_same_with_any_settings(given_settings: dict[str, str]) -> None:
    case = Case(EVERY_KIND, settings=given_settings, is_timed=False)
    assert compare(case, [Way.RUN]) == []


def test_every_kind_is_stored_or_refused_for_a_reason_of_its_own() -> None:
    """What is compared is not all the same."""

    async def codes(requests: Sequence[Request]) -> list[int]:
        outcome, _ = await play(Case(requests), Way.RUN, (await play(Case(requests), Way.PLAIN))[1])
        return [answer["code"] for answer in outcome.answers.values()]

    found = asyncio.run(codes(EVERY_KIND))
    assert {code: found.count(code) for code in sorted(set(found))} == {
        0: 83,
        1: 6,
        13: 13,
        16: 2,
        17: 1,
        26: 1,
        29: 5,
    }
    assert set(asyncio.run(codes(EVERY_KIND_BACK))) == {0, 1, 26}


@pytest.mark.parametrize("known", KNOWN_DIFFERENCES, ids=lambda known: known.name)
def test_known_differences_are_there(known: KnownDifference) -> None:
    """A row that nothing shows any more is to be removed."""
    assert any(known.covers(request) for request in known.example)
    assert compare(Case(known.example, is_timed=known.is_timed)) != []
