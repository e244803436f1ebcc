"""Requests that store a message each and came together: stored together, in their order.

Hot. A run is what the kernel had at once from one connection: sends (10, 310) and ends of
transactions (37), in any order. Each kind has a part (:class:`RunPart`) that knows which of its
requests are *plain*: ready to be stored as they are, whatever happens to those before them. These
go into the store in one put. Everything else takes its turn by itself; what came before it is
stored first.

What is the same for all of a run is done once: looking at settings and clocks, counting, waking
whoever writes to the disk or to slaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from skylark.broker.send.message_writer import MessageWriter
from skylark.net.connection import Connection
from skylark.net.dispatch import Answer, error_response
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.wire.command import Command

Note = TypeVar("Note")
#: A message that can be stored, its request, and what its part wants to know afterwards.
Plain: TypeAlias = tuple[Draft, Command, Note]


class RunPart(Protocol[Note]):
    """One kind of requests."""

    def follow(self) -> None:
        """A run begins: take over changed settings."""

    def plain(self, connection: Connection, request: Command) -> Plain[Note] | None:
        """The message of a request, ready to be stored; None if it takes more thought."""

    def stored(
        self,
        connection: Connection,
        plain: Sequence[Plain[Note]],
        results: Sequence[PutResult],
        as_frames: bool,
    ) -> Sequence[Answer | bytes]:
        """The answers to requests whose messages were stored, or not."""

    def alone(self, connection: Connection, request: Command) -> Answer:
        """Handle a request that is not plain; may raise as a handler may."""


class PutRuns:
    """Answers runs."""

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer
        self._parts: dict[int, RunPart[Any]] = {}

    def add(self, code: int, part: RunPart[Any]) -> None:
        """Let a part take the requests of a code."""
        self._parts[int(code)] = part

    def run(
        self, connection: Connection, requests: list[Command], as_frames: bool
    ) -> list[Answer | bytes]:
        """The answers to requests, in their order."""
        for part in self._parts.values():
            part.follow()
        answers: list[Answer | bytes] = []
        waiting: list[Plain[Any]] = []
        for request in requests:
            part = self._parts[request.code]
            try:
                plain = part.plain(connection, request)
            except Exception:  # noqa: BLE001 - what is wrong with it is said when it is alone
                plain = None
            if plain is not None:
                waiting.append(plain)
                continue
            if waiting:
                answers += self._put(connection, waiting, as_frames)
                waiting = []
            try:
                answers.append(part.alone(connection, request))
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - becomes code 1
                answers.append(error_response(request, error))
        if waiting:
            answers += self._put(connection, waiting, as_frames)
        return answers

    def _put(
        self, connection: Connection, plain: list[Plain[Any]], as_frames: bool
    ) -> Sequence[Answer | bytes]:
        try:
            results = self._writer.put_run([draft for draft, _, _ in plain])
        except Exception as error:  # noqa: BLE001 - becomes code 1; what came before is answered
            return _errors(plain, error)
        part = self._parts[plain[0][1].code]
        if len(plain) == 1 or all(self._parts[request.code] is part for _, request, _ in plain):
            return _told(part, connection, plain, results, as_frames)
        by_part: dict[RunPart[Any], list[int]] = {}
        for index, (_, request, _) in enumerate(plain):
            by_part.setdefault(self._parts[request.code], []).append(index)
        answers: list[Answer | bytes] = [None] * len(plain)
        for part, indexes in by_part.items():
            own = [plain[index] for index in indexes]
            own_results = [results[index] for index in indexes]
            given = _told(part, connection, own, own_results, as_frames)
            for index, answer in zip(indexes, given, strict=True):
                answers[index] = answer
        return answers


def _told(
    part: RunPart[Any],
    connection: Connection,
    plain: Sequence[Plain[Any]],
    results: Sequence[PutResult],
    as_frames: bool,
) -> Sequence[Answer | bytes]:
    """What a part answers; if it fails, no other part may miss what was stored of its own."""
    try:
        return part.stored(connection, plain, results, as_frames)
    except Exception as error:  # noqa: BLE001 - becomes code 1
        return _errors(plain, error)


def _errors(plain: Sequence[Plain[Any]], error: Exception) -> list[Answer | bytes]:
    return [error_response(request, error) for _, request, _ in plain]
