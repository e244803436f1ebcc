"""The put pipeline: the only way from requests into the log. Every put is a run of drafts.

::

    1 admit, 2 draft   PutStep.draft     per request: checks, policy, the message to be stored
    3 put              MessageWriter     all drafts of the run at once
    4 after, 5 result  PutStep.finish    per request: counters, wake-ups, the result

A run is the requests that were read from one connection at once: sends (10, 310, 320), decisions
about half messages (37) and others that store messages, in any order; a run of one is a single
request. The type of a request chooses its :class:`PutStep`.

Requests may share a message (:class:`Joined`): acks of one pop that come together become one
record.

A request that is refused in step 1 or 2 gets its error as outcome and does not split the run. Only
a request that needs the earlier messages of its run in the log splits it into two puts
(:data:`STORE_FIRST`): a decision about a half message of the same run, the second decision about a
half message, a rollback.

**Unexpected errors.** Each request fails alone: an exception becomes the outcome of the
request for which it was raised.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from skylark.broker.api import Peer
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_outcome import Durability
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult

logger = logging.getLogger(__name__)


class StoreFirst(enum.Enum):
    """Result of a step that needs the earlier messages of its run in the log."""

    STORE_FIRST = enum.auto()


STORE_FIRST: Final = StoreFirst.STORE_FIRST


class Done(msgspec.Struct, eq=False):
    """The outcome of a request that stores nothing in this run."""

    outcome: object


class Joined(msgspec.Struct, eq=False):
    """The message of an earlier request of the same put stores this request as well."""

    draft: Draft
    #: Gives the draft its final content; called once, before the put.
    complete: Callable[[], None]


#: Result of drafting a request: a message to be stored, that of an earlier request, the outcome of
#: the request, or neither yet.
Drafted: TypeAlias = Draft | Joined | Done | Literal[StoreFirst.STORE_FIRST]


class PutStep(Protocol):
    """Handles one kind of request before and after its message is stored."""

    def draft(self, peer: Peer, request: Any) -> Drafted:
        """Check a request and make the message that it stores; raises an error to refuse it."""

    def finish(self, request: Any, draft: Any, result: PutResult, *, is_durable: bool) -> object:
        """The outcome of a request after the put of its message, which may have failed.

        Without ``is_durable``, the result may have to wait (:meth:`Durability.when_durable`).
        """


class PutPipeline:
    """Runs requests through their steps; a :class:`~skylark.broker.api.PutService`."""

    def __init__(self, writer: MessageWriter, durability: Durability) -> None:
        self._writer = writer
        self._durability = durability
        self._steps: dict[type, PutStep] = {}
        self._after_put: tuple[Callable[[], None], ...] = ()
        #: The put that the next draft belongs to: a draft of another put cannot be joined any more.
        self.put_number = 0

    def add_step(
        self, request: type, step: PutStep, *, after_put: Callable[[], None] | None = None
    ) -> None:
        """Handle requests of a type by a step.

        ``after_put`` is called when all requests of one put have their outcomes.
        """
        self._steps[request] = step
        if after_put is not None:
            self._after_put += (after_put,)

    def run(
        self,
        peer: Peer,
        requests: Sequence[Any],
        *,
        stops_at: Callable[[BaseException], bool] | None = None,
    ) -> list[Any]:
        """The outcomes of requests, in their order.

        Stops at a request that is refused with an error for which ``stops_at`` returns true; the
        outcome of later requests is None.
        """
        steps = self._steps
        self.put_number += 1
        outcomes: list[Any] = [None] * len(requests)
        places: list[int] = []
        drafts: list[Draft] = []
        joined: list[tuple[int, Joined]] = []
        for place, request in enumerate(requests):
            drafted: Drafted | BaseException
            try:
                step = steps[type(request)]
                drafted = step.draft(peer, request)
                if drafted is STORE_FIRST:
                    self._put(requests, places, drafts, joined, outcomes)
                    self.put_number += 1
                    places, drafts, joined = [], [], []
                    drafted = step.draft(peer, request)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the outcome
                outcomes[place] = request if isinstance(request, Exception) else error
                if stops_at is not None and stops_at(outcomes[place]):
                    break
                continue
            if isinstance(drafted, Draft):
                places.append(place)
                drafts.append(drafted)
            elif isinstance(drafted, Joined):
                joined.append((place, drafted))
            else:
                assert isinstance(drafted, Done), "STORE_FIRST comes once per request"
                outcomes[place] = drafted.outcome
        self._put(requests, places, drafts, joined, outcomes)
        return outcomes

    def _put(
        self,
        requests: Sequence[Any],
        places: list[int],
        drafts: list[Draft],
        joined: list[tuple[int, Joined]],
        outcomes: list[Any],
    ) -> None:
        """Store drafts and set the outcomes of their requests, whose indexes are ``places``.

        ``joined``: the requests that have joined one of the drafts, by index.
        """
        if not drafts:
            return
        try:
            if joined:
                for each in {id(each): each for _, each in joined}.values():
                    each.complete()
            results = self._writer.put_run(drafts)
            is_durable = self._durability.is_durable_now(results)
        except Exception as error:  # noqa: BLE001 - the outcome
            for place in (*places, *(place for place, _ in joined)):
                outcomes[place] = error
        else:
            if joined:
                result_of = {
                    id(draft): result for draft, result in zip(drafts, results, strict=True)
                }
                for place, each in joined:
                    places.append(place)
                    drafts.append(each.draft)
                    results.append(result_of[id(each.draft)])
            for place, draft, result in zip(places, drafts, results, strict=True):
                request = requests[place]
                try:
                    outcomes[place] = self._steps[type(request)].finish(
                        request, draft, result, is_durable=is_durable
                    )
                except Exception as error:  # noqa: BLE001 - the outcome
                    outcomes[place] = error
        for call in self._after_put:
            try:
                call()
            except Exception:
                logger.exception("a callback after a put failed")
