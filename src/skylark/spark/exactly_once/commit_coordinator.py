"""Commit coordinator: the driver side of an exactly-once sink, which runs the commit protocol.

It executes the steps of :mod:`skylark.spark.exactly_once.commit_protocol` on a cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from skylark.spark.exactly_once.commit_protocol import (
    Append,
    CommitHalves,
    Confirm,
    Prepared,
    ReadStatus,
    Remember,
    RollBack,
    Step,
    Steps,
    abort,
    check_manifest,
    commit,
)
from skylark.spark.exactly_once.half_message_completion import (
    CompletionCounts,
    HalfMessageCompleter,
    half_locations,
)
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.sink.sink_client import SinkClient
from skylark.spark.sink.sink_options import SinkOptions

logger = logging.getLogger(__name__)


class CommitCoordinator:
    """Commits and aborts the batches of a sink."""

    def __init__(self, client: SinkClient, options: SinkOptions) -> None:
        """``deliveryTimeoutMs`` is how long one half message is retried."""
        outage_s = options.outage_timeout_s
        self._log = TxnLog(client, strict_ack=options.strict_ack, outage_s=outage_s)
        self._completer = HalfMessageCompleter(
            client, options.delivery_timeout_ms / 1000, outage_s, verify=options.verify
        )
        self.ended = CompletionCounts()  #: figures of all commits so far

    async def commit(
        self, sink: str, batch: int, messages: Sequence[Prepared], *, returns: bool = True
    ) -> None:
        """Commit a batch whose tasks have all succeeded; ``returns``: see the protocol."""
        await self._run(commit(sink, batch, messages, returns=returns))
        if self.ended.handed_over:
            logger.warning(
                "%d half messages of batch %d of sink %s were too old for the driver to commit: the"
                " resolver commits them, if one runs (skylark txn resolver)",
                self.ended.handed_over,
                batch,
                sink,
            )

    async def abort(self, messages: Sequence[Prepared | None]) -> None:
        """Roll back after a failed task or a failed commit."""
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
            case ReadStatus(sink, batch):
                return await self._log.read_status(sink, batch)
            case Remember(sink, memory):
                await self._log.remember(sink, memory)
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
                    await self._completer.roll_back(half_locations(manifest))
        return None

    async def _commit(self, step: CommitHalves) -> None:
        sink, batch = step.decision.sink, step.decision.batch
        found = await self._log.manifest(sink, step.position)
        manifest = check_manifest(found, step.winner, sink, batch)
        ended = await self._completer.commit(half_locations(manifest), ordered=manifest.ordered)
        self.ended.count += ended.count
        self.ended.handed_over += ended.handed_over
        self.ended.skipped += ended.skipped
