"""The comparison of sends finds a difference wherever one is put in.

Each row of :data:`SEEDED` replaces one function of a quicker form by one that is slightly wrong. A
fixed list of requests must then differ from the plain form, in the part of the outcome that the row
names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest

from skylark.broker.handlers import send_run
from skylark.broker.send.message_policy import PlainIds
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.send_back import SendBackHandlers
from skylark.broker.send.send_replies import SentAnswers
from skylark.broker.transaction.recent_halves import PlainHalf
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.store.put_message import Putter
from skylark.store.reput import Dispatch
from skylark.wire import cut_command
from skylark.wire.command import Command
from tests.property.send_outcomes import Case, Way
from tests.property.send_requests import EVERY_KIND, EVERY_KIND_BACK, Request, Send
from tests.property.test_send_pipeline import compare

Original = Callable[..., Any]
#: Makes the wrong function from the right one.
Wrong = Callable[[Original], Original]


@dataclass(frozen=True)
class Seeded:
    """A difference that is put in."""

    place: str
    owner: Any
    name: str
    wrong: Wrong
    shows_in: str  # the section of the outcome
    requests: Sequence[Request] = EVERY_KIND
    is_timed: bool = True


def _queue_lost(original: Original) -> Original:
    def read(self: Any, values: tuple[str, ...]) -> Any:
        header = original(self, values)
        if header is not None:
            header.queue_id = 0
        return header

    return read


def _retries_are_plain(_original: Original) -> Any:
    return "no prefix"


def _delay_is_plain(original: Original) -> Original:
    def find(self: PlainIds, text: str) -> Any:
        return original(self, text.replace("DELAY\x011\x02", ""))

    return find


def _half_keeps_its_bits(original: Original) -> Original:
    def prepare(self: Any, draft: Any, added: str) -> None:
        sys_flag = draft.sys_flag
        original(self, draft, added)
        draft.sys_flag = sys_flag

    return prepare


def _reconsume_times_lost(original: Original) -> Original:
    def put_run(self: Putter, drafts: list[Any]) -> Any:
        changed = [msgspec.structs.replace(draft, reconsume_times=0) for draft in drafts]
        return original(self, changed if len(drafts) > 1 else drafts)

    return put_run


def _tells_nobody(original: Original) -> Original:
    def add_run(self: Dispatch, run: Any, now_ms: int) -> None:
        awaited, self._is_awaited = self._is_awaited, lambda *_queue: False
        try:
            original(self, run, now_ms)
        finally:
            self._is_awaited = awaited

    return add_run


def _tags_lost(original: Original) -> Original:
    def add_run(self: Dispatch, run: Any, now_ms: int) -> None:
        properties = tuple(each.replace(b"TAGS", b"TAG_") for each in run.properties)
        original(self, run._replace(properties=properties), now_ms)

    return add_run


def _wrong_queue_in_reply(original: Original) -> Original:
    def frame(self: Any, request: Command, queue_id: int, result: Any, unique_id: str) -> Any:
        return original(self, request, queue_id + 1, result, unique_id)

    return frame


def _refused_counts_as_stored(original: Original) -> Original:
    def put_run(self: MessageWriter, drafts: list[Any]) -> Any:
        results = original(self, drafts)
        self._stats.put_failed_count = 0
        return results

    return put_run


def _commits_not_counted(original: Original) -> Original:
    def recent_committed(self: TransactionService, halves: Any, results: Any) -> None:
        commit, self.counts.commit = self.counts.commit, lambda *_: None  # type: ignore[method-assign]
        try:
            original(self, halves, results)
        finally:
            self.counts.commit = commit  # type: ignore[method-assign]

    return recent_committed


def _lost_in_company(original: Original) -> Original:
    async def send_back(self: Any, connection: Connection, request: Command) -> Any:
        if len(connection._tasks) > 1:
            return success(request)
        return await original(self, connection, request)

    return send_back


#: One place for the names of today's functions.
SEEDED: Final = (
    Seeded("header reading", cut_command._Alike, "read", _queue_lost, "answers"),
    Seeded("checks", send_run, "RETRY_PREFIX", _retries_are_plain, "records"),
    Seeded("policy", PlainIds, "find", _delay_is_plain, "records"),
    Seeded("half builder", PlainHalf, "prepare", _half_keeps_its_bits, "records"),
    Seeded("put", Putter, "put_run", _reconsume_times_lost, "records"),
    Seeded("arrival", Dispatch, "add_run", _tells_nobody, "pulls", [Send(), Send()]),
    Seeded("queue entries", Dispatch, "add_run", _tags_lost, "queues"),
    Seeded("reply", SentAnswers, "frame", _wrong_queue_in_reply, "answers", is_timed=False),
    Seeded("counters", MessageWriter, "put_run", _refused_counts_as_stored, "counters"),
    Seeded("metrics", TransactionService, "recent_committed", _commits_not_counted, "metrics"),
    Seeded(
        "send-back", SendBackHandlers, "send_back", _lost_in_company, "records", EVERY_KIND_BACK
    ),
)


@pytest.mark.parametrize("seeded", SEEDED, ids=lambda seeded: seeded.place)
def test_a_seeded_difference_is_found(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeded.owner, seeded.name, seeded.wrong(getattr(seeded.owner, seeded.name)))
    lines = compare(Case(seeded.requests, is_timed=seeded.is_timed), [Way.RUN])
    assert any(line.startswith(f"{Way.RUN.value}: {seeded.shows_in}/") for line in lines), lines


@pytest.mark.parametrize("requests", [EVERY_KIND, EVERY_KIND_BACK], ids=["sends", "send-backs"])
def test_nothing_is_found_without(requests: Sequence[Request]) -> None:
    assert compare(Case(requests, is_timed=False), [Way.RUN]) == []
