"""``skylark produce``: sends messages from the command line, or one per line of the input.

The command prints a line for each message as soon as it is stored: id, broker, queue, offset and
status, in columns or, with ``--output json``, as one JSON object per line. It sends the input in
the chunks in which it arrives, so interactive input, an endless pipe and a large file all work in
little memory. With ``--shard`` messages are sent one after the other, because they all go to one
queue and keep their order; with ``--batch`` each request has a number of messages, which are stored
together or not at all; otherwise the messages of a chunk are sent concurrently. ``--rate`` makes
the chunks small and spaces them.

Input lines of ``--jsonl`` may be what ``skylark consume --format json`` prints: then the fields
about the place and time of the original, and the properties that a client or broker sets, are
ignored.

If a message fails, the command prints the results of the rest of its chunk and then ends with the
first error. Errors have a hint what to do (:func:`skylark.cli.exit_codes.translated_errors`).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import (
    client_options,
    duration_s,
    given_namesrv,
    key_value,
    namesrv_option,
    topic_argument,
)
from skylark.cli.exit_codes import translated_errors

if TYPE_CHECKING:
    from skylark.cli.output import Output
    from skylark.client.core.client_message import Message, SendResult
    from skylark.client.core.client_options import ClientOptions
    from skylark.client.producer.producer import Producer
    from skylark.client.producer.send_options import SendKeywords
    from skylark.client.public_names import MessageQueue

PRODUCER_GROUP = "skylark-produce"
#: Longer than that of the client library: a message sent again after a timeout may be stored twice.
SEND_TIMEOUT_S = 15.0
STDIN = "-"
#: Messages sent concurrently, at most.
PIECE_COUNT_MAX = 1_000
READ_SIZE = 1024 * 1024
#: Longer lines are refused: bodies have at most 4 MiB, and base64 adds a third.
LINE_SIZE_MAX = 8 * 1024 * 1024
#: With --rate: chunks per second, if there are enough messages.
PIECES_PER_SECOND = 10
#: Show a progress bar from this number of messages on, if the results are redirected.
LONG_COUNT = 1_000


@dataclass
class JsonLine:
    """The fields of a line of ``--jsonl``; one of the two bodies is required."""

    body: str | None = None
    body_base64: bytes | None = None
    tag: str | None = None
    keys: list[str] | str = ""
    properties: dict[str, str] = field(default_factory=dict)


#: Further fields of a line that ``skylark consume`` has printed.
PRINTED = frozenset(
    {"topic", "broker", "queue", "offset", "msg_id", "born_time", "store_time", "reconsume_times"}
)


@dataclass(frozen=True)
class Common:
    """The options that apply to every message."""

    topic: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]


@click.command(
    "produce",
    epilog="Examples: skylark produce orders hello --tag new; seq 9 | skylark produce orders -",
)
@topic_argument
@click.argument("bodies", metavar="[BODY]...", nargs=-1)
@namesrv_option
@click.option("--tag", help="Tag of the messages, for filters of consumers.")
@click.option("--key", "keys", multiple=True, help="Key to find the messages by; repeatable.")
@click.option(
    "--property",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="Message property; repeatable.",
)
@click.option(
    "--shard",
    metavar="KEY",
    help="Sharding key: messages with equal keys go to one queue, in order.",
)
@click.option(
    "--queue",
    metavar="[BROKER:]ID",
    help="Send to this queue; with several brokers give BROKER:ID. Not with --shard.",
)
@click.option("--delay", metavar="TIME", help="Delay of the delivery: 500ms, 10s, 5m, 2h, 1d.")
@click.option(
    "--count",
    "repeats",
    type=click.IntRange(min=1),
    default=1,
    help="How many times to send each message.",
)
@click.option(
    "--jsonl",
    is_flag=True,
    help="Input lines are JSON objects: body or body_base64, and tag, keys, properties; or what"
    " consume --format json prints.",
)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the lines of this file instead of stdin.",
)
@click.option(
    "--batch",
    "batch_size",
    type=click.IntRange(1, 1_000),
    help="Maximum messages per request; not with --delay or --shard.  [default: automatic]",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum messages per second."
)
@click.pass_obj
def command(
    context: CliContext,
    topic: str,
    bodies: tuple[str, ...],
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    shard: str | None,
    queue: str | None,
    delay: str | None,
    repeats: int,
    jsonl: bool,
    path: Path | None,
    batch_size: int | None,
    rate: float | None,
) -> None:
    """Send messages to a topic.

    Each BODY is a message. Without BODY, or with -, each line of stdin or of --file is a message;
    empty lines are skipped.
    """
    import asyncio

    from skylark.client.producer.send_options import SendKeywords

    reads_lines = bodies in ((), (STDIN,))
    if (jsonl or path is not None) and not reads_lines:
        option = "--jsonl reads stdin" if jsonl else "--file has the messages"
        raise click.UsageError(f"{option}: leave out BODY")
    if queue is not None and shard is not None:
        raise click.UsageError("--shard chooses the queue: leave out --queue or --shard")
    if batch_size is not None and (delay, shard) != (None, None):
        raise click.UsageError("--batch cannot be combined with --delay or --shard")
    _check_tag_and_keys(tag, keys)
    common = Common(topic, tag, keys, dict(_property(text) for text in properties))
    sizes = Sizes(repeats, _chunk_size(batch_size, rate))
    make = _json_message if jsonl else _plain_message
    empty = EmptyLines()
    pieces = (
        _piped(common, make, path, sizes, empty) if reads_lines else _given(common, bodies, sizes)
    )
    how = SendKeywords()
    if shard is not None:
        how["shard"] = shard
    if delay is not None:
        how["delay"] = duration_s(delay, "--delay")
    context.configure_logging(
        "error"
    )  # the client's warnings that matter are errors of this command
    if reads_lines and path is None and sys.stdin.isatty():
        context.output.info("Each line is a message; end with Ctrl-D.")
    total = None if reads_lines else len(bodies) * repeats
    # A progress bar and results on the same terminal would overwrite each other.
    watched = not sys.stdout.isatty() and (total is None or total >= LONG_COUNT)
    with (
        translated_errors(topic),
        _reported(empty, context.output),
        context.output.progress(f"sending to {topic}", total) if watched else nullcontext() as step,
    ):
        sending = _Sending(context.output.is_json, how, step or (lambda count: None))
        if batch_size is not None:
            sending.batch_size = batch_size
        sending.rate = rate
        sending.queue = queue
        asyncio.run(sending.run(client_options(given_namesrv()), topic, pieces))


def _check_tag_and_keys(tag: str | None, keys: tuple[str, ...]) -> None:
    from skylark.client.core.client_message import checked_tag, joined_keys
    from skylark.core.errors import InvalidMessageError

    option = "--tag"
    try:
        if tag is not None:
            checked_tag(tag)
        option = "--key"
        if keys:
            joined_keys(keys)
    except InvalidMessageError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _property(text: str) -> tuple[str, str]:
    name, value = key_value(text, "--property")
    if problem := _property_problem(name, value):
        raise click.BadParameter(problem, param_hint="--property")
    return name, value


def _property_problem(name: str, value: str) -> str | None:
    """Why an application may not set this property, or None."""
    from skylark.client.core.validation import check_properties
    from skylark.core.errors import InvalidMessageError

    try:
        check_properties({name: value})
    except InvalidMessageError as error:
        return str(error)
    return None


def _chunk_size(batch_size: int | None, rate: float | None) -> int:
    """Messages sent concurrently: whole batches, and only a few with --rate."""
    size = PIECE_COUNT_MAX if rate is None else max(1, int(rate / PIECES_PER_SECOND))
    if batch_size is None:
        return min(size, PIECE_COUNT_MAX)
    return max(1, min(size, PIECE_COUNT_MAX) // batch_size) * batch_size


class _Sending:
    """Sends chunks of the input and prints the result of each message."""

    def __init__(self, is_json: bool, how: SendKeywords, step: Callable[[int], None]) -> None:
        self.batch_size = 0  # 0: no batches
        self.rate: float | None = None
        self.queue: str | None = None
        self._is_json = is_json
        self._how = how
        self._step = step
        self._has_heading = False

    async def run(
        self, options: ClientOptions, topic: str, pieces: AsyncIterator[list[Message]]
    ) -> None:
        from skylark.client.producer.producer import Producer
        from skylark.core.clock import LoopClock

        clock = LoopClock()
        due = clock.monotonic()
        async with Producer(PRODUCER_GROUP, options, send_timeout=SEND_TIMEOUT_S) as producer:
            if self.queue is not None:
                self._how["queue"] = _chosen_queue(self.queue, await producer.queues(topic))
            async for piece in pieces:
                if self.rate is not None:
                    await clock.sleep(due - clock.monotonic())
                    due = max(due, clock.monotonic()) + len(piece) / self.rate
                error = await self._send(producer, piece)
                self._step(len(piece))
                sys.stdout.flush()
                if error is not None:
                    raise error

    async def _send(self, producer: Producer, piece: list[Message]) -> BaseException | None:
        """Send a chunk and print the results in order; returns the first error."""
        import asyncio

        if "shard" in self._how:
            for message in piece:
                self._show(await producer.send(message, **self._how))
            return None
        if self.batch_size:
            for start in range(0, len(piece), self.batch_size):
                batch = piece[start : start + self.batch_size]
                for stored in await producer.send_batch(batch, **self._how):
                    self._show(stored)
            return None
        sends = (producer.send(message, **self._how) for message in piece)
        first_error: BaseException | None = None
        for result in await asyncio.gather(*sends, return_exceptions=True):
            if not isinstance(result, BaseException):
                self._show(result)
            elif first_error is None:
                first_error = result
        return first_error

    def _show(self, result: SendResult) -> None:
        import json

        queue, status = result.queue, result.status.value
        if self._is_json:
            record = {
                "msg_id": result.msg_id,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "offset": result.queue_offset,
                "status": status,
            }
            sys.stdout.write(f"{json.dumps(record)}\n")
            return
        if not self._has_heading:
            self._has_heading = True
            broker = "BROKER".ljust(len(queue.broker_name))
            sys.stdout.write(f"{'MSG ID':<32}  {broker}  QUEUE    OFFSET  STATUS\n")
        sys.stdout.write(
            f"{result.msg_id:<32}  {queue.broker_name:<6}  {queue.queue_id:>5}"
            f"  {result.queue_offset:>8}  {status}\n"
        )


def _chosen_queue(text: str, queues: list[MessageQueue]) -> MessageQueue:
    """The queue that ``--queue`` names."""
    found = [
        queue
        for queue in queues
        if text in (str(queue.queue_id), f"{queue.broker_name}:{queue.queue_id}")
    ]
    if len(found) == 1:
        return found[0]
    first, last = queues[0], queues[-1]
    problem = (
        f"{first.topic} has no such queue: {first.broker_name}:{first.queue_id} to"
        f" {last.broker_name}:{last.queue_id}"
    )
    if found:
        problem = (
            f"several brokers have it: {', '.join(f'{it.broker_name}:{text}' for it in found)}"
        )
    raise click.BadParameter(problem, param_hint="--queue")


# ---- the messages to send ------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """How many times each message is sent, and how many are sent concurrently."""

    repeats: int
    piece_size: int


@dataclass
class EmptyLines:
    """The input lines that were skipped."""

    count: int = 0
    first: int = 0  #: number of the first one

    def skip(self, number: int) -> None:
        self.first = self.first or number
        self.count += 1


@contextmanager
def _reported(empty: EmptyLines, output: Output) -> Iterator[None]:
    """Print how many lines were skipped at the end of the block, also after an error or Ctrl-C."""
    try:
        yield
    finally:
        if empty.count:
            which = f"line, line {empty.first}"
            if empty.count > 1:
                which = f"lines, the first is line {empty.first}"
            output.warn(f"skipped {empty.count} empty {which}: a message needs a body")


async def _given(
    common: Common, bodies: Iterable[str], sizes: Sizes
) -> AsyncIterator[list[Message]]:
    """Messages from the command line; bytes that are not UTF-8 are kept."""
    messages = [_plain_message(common, os.fsencode(body), 0) for body in bodies]
    for piece in _chunks(messages, sizes):
        yield piece


async def _piped(
    common: Common,
    make: Callable[[Common, bytes, int], Message],
    path: Path | None,
    sizes: Sizes,
    empty: EmptyLines,
) -> AsyncIterator[list[Message]]:
    """Messages from the lines of a file or stdin, in the chunks in which they arrive."""
    number = 0
    with nullcontext(sys.stdin) if path is None else path.open("rb") as source:
        async for lines in _lines(source.fileno()):
            messages = []
            for line in lines:
                number += 1
                if line:
                    messages.append(make(common, line, number))
                else:
                    empty.skip(number)
            for piece in _chunks(messages, sizes):
                yield piece


def _chunks(messages: list[Message], sizes: Sizes) -> Iterator[list[Message]]:
    from itertools import chain, islice, repeat

    repeated = chain.from_iterable(repeat(message, sizes.repeats) for message in messages)
    while piece := list(islice(repeated, sizes.piece_size)):
        yield piece


async def _lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Complete lines of a file, as many as are available each time; the last may lack its end.

    It never blocks in ``read``, where Ctrl-C would have no effect.
    """
    rest = b""
    while True:
        await _readable(descriptor)
        data = os.read(descriptor, READ_SIZE)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > LINE_SIZE_MAX:
            raise click.ClickException(
                f"an input line is longer than {LINE_SIZE_MAX} bytes, too long for a message"
            )
        yield lines
    if rest:
        yield [rest]


async def _readable(descriptor: int) -> None:
    import asyncio

    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return  # a regular file never blocks, and macOS would wait until it grows
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except OSError:  # for example /dev/null
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def _plain_message(common: Common, body: bytes, number: int) -> Message:
    from skylark.client.core.client_message import Message

    del number
    return Message(
        common.topic, body, tag=common.tag, keys=common.keys, properties=common.properties
    )


def _json_message(common: Common, line: bytes, number: int) -> Message:
    """Parse a line of ``--jsonl`` into a message.

    The options give tag and keys if the line has none, and properties that it does not have. A line
    names no topic, unless ``skylark consume`` has printed it; that topic is ignored.
    """
    import json
    from dataclasses import fields

    import msgspec

    from skylark.client.core.client_message import Message

    try:
        found = json.loads(line)
        row = msgspec.convert(found, JsonLine)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise click.ClickException(f"input line {number}: {error}") from error
    known = [each.name for each in fields(JsonLine)]
    is_printed = "msg_id" in found
    if unknown := sorted(found.keys() - set(known) - (PRINTED if is_printed else set())):
        raise click.ClickException(
            f"input line {number}: unknown key {unknown[0]!r}: known are {', '.join(known)}"
        )
    if (row.body is None) == (row.body_base64 is None):
        raise click.ClickException(f"input line {number}: give body or body_base64")
    body = row.body_base64
    if row.body is not None:
        body = row.body.encode("utf-8", "surrogatepass")
    assert body is not None
    keys = row.keys.split() if isinstance(row.keys, str) else row.keys
    properties = row.properties
    if is_printed:
        properties = {
            key: value for key, value in properties.items() if not _property_problem(key, value)
        }
    return Message(
        common.topic,
        body,
        tag=row.tag if row.tag is not None else common.tag,
        keys=keys or common.keys,
        properties={**common.properties, **properties},
    )
