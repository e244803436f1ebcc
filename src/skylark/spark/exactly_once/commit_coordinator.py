"""Runs the steps of :mod:`skylark.spark.exactly_once.commit_protocol` on a cluster: the driver's
side of a sink."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from skylark.spark.exactly_once.commit_protocol import (
    Append,
    CommitHalves,
    Confirm,
    Look,
    Prepared,
    RollBack,
    Step,
    Steps,
    abort,
    check_manifest,
    commit,
)
from skylark.spark.exactly_once.half_message_completion import Ended, Ends, places_of
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.sink.sink_client import SinkClient

log = logging.getLogger(__name__)


class Deciding:
    """Commits and aborts batches, over a client."""

    def __init__(
        self,
        client: SinkClient,
        patience_s: float,
        *,
        verify: bool = False,
        strict_ack: bool = False,
    ) -> None:
        """``patience_s``: how long the end of one half is tried; ``verify``: see Ends."""
        self._log = TxnLog(client, strict_ack=strict_ack)
        self._ends = Ends(client, patience_s, verify=verify)
        self.ended = Ended()  #: what was committed so far

    async def commit(self, sink: str, batch: int, messages: Sequence[Prepared]) -> None:
        """All tasks have ended well."""
        await self._run(commit(sink, batch, messages))
        if self.ended.handed_over:
            log.warning(
                "%d halves of batch %d of sink %s were too old to be committed by the driver:"
                " the resolver does it, if one runs (skylark txn resolver)",
                self.ended.handed_over,
                batch,
                sink,
            )

    async def abort(self, messages: Sequence[Prepared | None]) -> None:
        """A task has failed, or the commit has."""
        await self._run(abort(messages))

    async def _run(self, steps: Steps) -> None:
        result: Any = None
        try:
            while True:
                result = await self._do(steps.send(result))
        except StopIteration:
            return

    async def _do(self, step: Step) -> Any:
        match step:
            case Look(sink, batch):
                return await self._log.look(sink, batch)
            case Append(record):
                return await self._log.append(record)
            case Confirm(sink, batch, start, end):
                return await self._log.confirm(sink, batch, start, end)
            case CommitHalves():
                await self._commit(step)
            case RollBack(prepared):
                for position in prepared.manifests:
                    found = await self._log.manifest(prepared.sink, position)
                    manifest = check_manifest(found, prepared, prepared.sink, prepared.batch)
                    await self._ends.roll_back(places_of(manifest))
        return None

    async def _commit(self, step: CommitHalves) -> None:
        sink, batch = step.decision.sink, step.decision.batch
        found = await self._log.manifest(sink, step.position)
        manifest = check_manifest(found, step.winner, sink, batch)
        ended = await self._ends.commit(places_of(manifest), ordered=manifest.ordered)
        self.ended.count += ended.count
        self.ended.handed_over += ended.handed_over
        self.ended.skipped += ended.skipped
