"""The one way from requests into the log: every put is a run of drafts, also a run of one.

::

    1 admit, 2 draft   PutStep.draft     per request: checks, policy, the message to be stored
    3 put              MessageWriter     all drafts of the run at once
    4 after, 5 result  PutStep.finish    per kind of request: counters, wake-ups, results

A run is what the kernel had at once from one connection: sends (10, 310, 320), decisions about half
messages (37) and others that store messages, in any order. Each kind has a :class:`PutStep`, chosen
by the type of the request.

A request that is refused in step 1 or 2 has its refusal in its place; it splits nothing. Only a
request that must come behind what the ones before it have stored makes two puts of a run
(:data:`STORE_FIRST`): a decision about a half message of the same run, the second decision about
one, a rollback.

**Unexpected errors.** Each request fails alone: an exception becomes the outcome of the
request in whose step it was raised. A step whose ``finish`` breaks off answers for its own
requests, not for those of another step, whose messages are stored as well and must be counted.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

from skylark.broker.api import Peer
from skylark.broker.send.message_writer import MessageWriter
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult


class StoreFirst(enum.Enum):
    """What a step returns that must see the messages of the requests before it."""

    STORE_FIRST = enum.auto()


STORE_FIRST: Final = StoreFirst.STORE_FIRST


class Done:
    """The outcome of a request that stores nothing in this run."""

    __slots__ = ("outcome",)

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome


#: What becomes of a request: a message to be stored, or an outcome, or neither yet.
Drafted: TypeAlias = Draft | Done | Literal[StoreFirst.STORE_FIRST]


class PutStep(Protocol):
    """What one kind of request does before and after its messages are stored."""

    def begin(self) -> None:
        """A run begins: take over changed settings."""

    def draft(self, peer: Peer, request: Any) -> Drafted:
        """Check a request and make the message that it stores; raises what refuses it."""

    def finish(
        self, requests: Sequence[Any], drafts: Sequence[Any], results: Sequence[PutResult]
    ) -> Sequence[object]:
        """The outcomes of requests whose messages were stored, or not."""


class PutPipeline:
    """Runs requests through their steps; a :class:`~skylark.broker.api.PutService`."""

    def __init__(self, writer: MessageWriter, steps: Mapping[type, PutStep]) -> None:
        self._writer = writer
        self._steps = dict(steps)
        self._each_step = tuple(dict.fromkeys(self._steps.values()))

    def run(
        self,
        peer: Peer,
        requests: Sequence[Any],
        *,
        stops_at: Callable[[BaseException], bool] | None = None,
    ) -> list[Any]:
        """The outcomes of requests, in their order.

        Requests behind one that is refused with an error for which ``stops_at`` holds are not
        handled; their outcome is None.
        """
        for step in self._each_step:
            step.begin()
        steps = self._steps
        outcomes: list[Any] = [None] * len(requests)
        places: list[int] = []
        drafts: list[Draft] = []
        for place, request in enumerate(requests):
            drafted: Drafted | BaseException
            try:
                drafted = steps[type(request)].draft(peer, request)
                if drafted is STORE_FIRST:
                    self._put(requests, places, drafts, outcomes)
                    places, drafts = [], []
                    drafted = steps[type(request)].draft(peer, request)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the outcome
                outcomes[place] = request if isinstance(request, Exception) else error
                if stops_at is not None and stops_at(error):
                    break
                continue
            if isinstance(drafted, Draft):
                places.append(place)
                drafts.append(drafted)
            else:
                assert isinstance(drafted, Done), "nothing is stored before it any more"
                outcomes[place] = drafted.outcome
        if drafts:
            self._put(requests, places, drafts, outcomes)
        return outcomes

    def _put(
        self,
        requests: Sequence[Any],
        places: list[int],
        drafts: list[Draft],
        outcomes: list[Any],
    ) -> None:
        """Store drafts and note the outcomes of their requests, which stand at ``places``."""
        if not drafts:
            return
        try:
            results = self._writer.put_run(drafts)
        except Exception as error:  # noqa: BLE001 - the outcome
            for place in places:
                outcomes[place] = error
            return
        stored = [requests[place] for place in places]
        kinds = set(map(type, stored))
        if len(kinds) == 1:
            self._finish(self._steps[kinds.pop()], places, stored, drafts, results, outcomes)
            return
        by_step: dict[PutStep, list[int]] = {}
        for index, request in enumerate(stored):
            by_step.setdefault(self._steps[type(request)], []).append(index)
        for step, indexes in by_step.items():
            self._finish(
                step,
                [places[index] for index in indexes],
                [stored[index] for index in indexes],
                [drafts[index] for index in indexes],
                [results[index] for index in indexes],
                outcomes,
            )

    def _finish(
        self,
        step: PutStep,
        places: list[int],
        requests: list[Any],
        drafts: list[Draft],
        results: list[PutResult],
        outcomes: list[Any],
    ) -> None:
        try:
            finished: Sequence[object] = step.finish(requests, drafts, results)
        except Exception as error:  # noqa: BLE001 - the outcome
            finished = [error] * len(places)
        for place, outcome in zip(places, finished, strict=True):
            outcomes[place] = outcome
