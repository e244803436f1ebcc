"""A difference that is put into the pipeline of sends is found, wherever it is.

Each row of :data:`SEEDED` replaces one function by one that is slightly wrong. What is wrong in an
accelerated form only is found because a run then differs from the plain form; what is wrong in code
that all forms share is found because the plain form differs from what was recorded
(:mod:`tests.property.send_oracle`). The row says which of the two finds it, and in which part of
the outcome.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest

from skylark.broker.send import send_back, send_checks, send_step
from skylark.broker.send.handlers import SendCodec
from skylark.broker.send.message_policy import PropertyScanner
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.send_back import SendBackHandlers
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.transaction import end_transaction
from skylark.broker.transaction.end_transaction import EndTransactionStep
from skylark.broker.transaction.recent_halves import RecentHalves
from skylark.broker.transaction.transaction_counts import TransactionCounts
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.store import reput
from skylark.store.put_message import Putter
from skylark.store.reput import Reput
from skylark.wire import command_codec
from skylark.wire.command import Command
from tests.property import send_oracle
from tests.property.send_outcomes import Case, Way
from tests.property.send_requests import ALIKE, EVERY_KIND, EVERY_KIND_BACK, Request, Send
from tests.property.test_send_pipeline import compare

Original = Callable[..., Any]
#: Makes the wrong function from the right one.
Wrong = Callable[[Original], Original]


class By(enum.Enum):
    """What finds a difference."""

    WAYS = "a run differs from the plain form"
    ORACLE = "the plain form differs from what was recorded"


@dataclass(frozen=True)
class Seeded:
    """A difference that is put in."""

    place: str
    owner: Any
    name: str
    wrong: Wrong
    shows_in: str  # the section of the outcome
    by: By
    requests: Sequence[Request] = EVERY_KIND
    is_timed: bool = True

    def found(self) -> list[str]:
        """The lines of what is wrong, without the way."""
        if self.by is By.ORACLE:
            case = "every-kind-back" if self.requests is EVERY_KIND_BACK else "every-kind"
            return send_oracle.unexplained(case)
        lines = compare(Case(self.requests, is_timed=self.is_timed), [Way.RUN])
        return [line.removeprefix(f"{Way.RUN.value}: ") for line in lines]


def _nothing(_original: Original) -> Original:
    return lambda *_args, **_names: None


def _queue_lost(original: Original) -> Original:
    def read(self: Any, values: tuple[str, ...]) -> Any:
        header = original(self, values)
        if header is not None:
            header.queue_id = 0
        return header

    return read


def _delay_is_plain(original: Original) -> Original:
    def scan(self: PropertyScanner, text: str) -> Any:
        return original(self, text.replace("DELAY\x011\x02", ""))

    return scan


def _half_keeps_its_bits(original: Original) -> Original:
    def turn_into_half(draft: Any, unique_id: str) -> Any:
        sys_flag = draft.sys_flag
        final_size = original(draft, unique_id)
        draft.sys_flag = sys_flag
        return final_size

    return turn_into_half


def _first_queue_is_kept(original: Original) -> Original:
    def add(self: Any, draft: Any, unique_id: str, topic: str, _queue_id: int, *rest: Any) -> None:
        original(self, draft, unique_id, topic, 0, *rest)

    return add


def _stores_nothing_first(original: Original) -> Original:
    def draft_from_log(self: EndTransactionStep, header: Any, **names: Any) -> Any:
        self._deferred = header
        return original(self, header, **names)

    return draft_from_log


def _reconsume_times_lost(original: Original) -> Original:
    def put_run(self: Putter, drafts: list[Any]) -> Any:
        return original(self, [msgspec.structs.replace(each, reconsume_times=0) for each in drafts])

    return put_run


def _reports_no_arrival(original: Original) -> Original:
    def add_entries(self: Reput, *args: Any) -> bool:
        awaited, self._is_awaited = self._is_awaited, lambda *_queue: False
        try:
            return bool(original(self, *args))
        finally:
            self._is_awaited = awaited

    return add_entries


def _other_tags(original: Original) -> Original:
    def read_alike(self: Reput, *args: Any) -> Any:
        codes = original(self, *args)
        return None if codes is None else [code + 1 for code in codes]

    return read_alike


def _other_ids(original: Original) -> Original:
    def alike_ids(properties: Any) -> Any:
        ids = original(properties)
        return None if ids is None else ids._replace(common=b"other")

    return alike_ids


def _wrong_queue_in_reply(original: Original) -> Original:
    def write(self: Any, request: Command, result: Any) -> Any:
        result.queue_id += 1
        return original(self, request, result)

    return write


def _refusal_without_fields(original: Original) -> Original:
    def write(self: Any, command: Command, outcome: Any) -> Any:
        answer = original(self, command, outcome)
        if isinstance(outcome, Exception):
            answer.ext = None
        return answer

    return write


def _refused_counts_as_stored(original: Original) -> Original:
    def put_run(self: MessageWriter, drafts: list[Any]) -> Any:
        results = original(self, drafts)
        self._stats.put_failed_count = 0
        return results

    return put_run


def _nothing_is_of_the_system(original: Original) -> Original:
    def put(self: BrokerStats, *args: Any, **_names: Any) -> None:
        original(self, *args, is_system=False)

    return put


def _lost_in_company(original: Original) -> Original:
    async def take_back(self: Any, connection: Connection, request: Command) -> Any:
        if len(connection._inbound.tasks) > 1:
            return success(request)
        return await original(self, connection, request)

    return take_back


def _origin_lost(original: Original) -> Original:
    def properties_of_copy(record: Any) -> dict[str, str]:
        properties: dict[str, str] = original(record)
        return {**properties, "RETRY_TOPIC": record.topic}

    return properties_of_copy


_FEW: Final = [Send()] * 4  # as many as are entered at once
_BACK: Final = EVERY_KIND_BACK

#: One place for the names of today's functions.
SEEDED: Final = (
    # In a form that is quicker than the plain one.
    Seeded("header", command_codec._HeaderReader, "read", _queue_lost, "answers", By.WAYS),
    Seeded("scan", PropertyScanner, "scan", _delay_is_plain, "records", By.WAYS),
    Seeded("halves kept", RecentHalves, "add", _first_queue_is_kept, "records", By.WAYS),
    Seeded(
        "order of a run", EndTransactionStep, "_draft_from_log", _stores_nothing_first, "answers",
        By.WAYS,
    ),
    Seeded("arrival", Reput, "_add_entries", _reports_no_arrival, "pulls", By.WAYS, _FEW),
    Seeded("queue entries", Reput, "_read_alike", _other_tags, "queues", By.WAYS, ALIKE),
    Seeded("index entries", reput, "alike_ids", _other_ids, "index", By.WAYS, ALIKE),
    Seeded(
        "reply", SendCodec, "_reply", _wrong_queue_in_reply, "answers", By.WAYS, is_timed=False
    ),
    Seeded("send-back", SendBackHandlers, "send_back", _lost_in_company, "records", By.WAYS, _BACK),
    # In what all forms share.
    Seeded("checks", send_checks, "send_problem", _nothing, "answers", By.ORACLE),
    Seeded("policy", send_step, "take_priority", _nothing, "records", By.ORACLE),
    Seeded("half builder", send_step, "turn_into_half", _half_keeps_its_bits, "records", By.ORACLE),
    Seeded("decisions", end_transaction, "check_decision", _nothing, "answers", By.ORACLE),
    Seeded("put", Putter, "put_run", _reconsume_times_lost, "records", By.ORACLE),
    Seeded("dispatch", reput.TagsCodes, "_due", _nothing, "queues", By.ORACLE),
    Seeded("refusal", SendCodec, "write", _refusal_without_fields, "answers", By.ORACLE),
    Seeded("counters", MessageWriter, "put_run", _refused_counts_as_stored, "counters", By.ORACLE),
    Seeded("statistics", BrokerStats, "put", _nothing_is_of_the_system, "counters", By.ORACLE),
    Seeded("metrics", TransactionCounts, "commit", _nothing, "metrics", By.ORACLE),
    Seeded(
        "copies", send_back, "_properties_of_copy", _origin_lost, "records", By.ORACLE, _BACK
    ),
)  # fmt: skip


@pytest.mark.parametrize("seeded", SEEDED, ids=lambda seeded: seeded.place)
def test_a_seeded_difference_is_found(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeded.owner, seeded.name, seeded.wrong(getattr(seeded.owner, seeded.name)))
    lines = seeded.found()
    assert any(line.startswith(f"{seeded.shows_in}/") for line in lines), lines


@pytest.mark.parametrize(
    "requests", [EVERY_KIND, EVERY_KIND_BACK, ALIKE, _FEW], ids=["sends", "back", "alike", "few"]
)
def test_nothing_is_found_without(requests: Sequence[Request]) -> None:
    assert compare(Case(requests, is_timed=False), [Way.RUN]) == []
